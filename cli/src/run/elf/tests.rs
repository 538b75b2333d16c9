//! Intact files, files with every kind of damage, and the programs of this machine.
//!
//! A damaged file must give an error that names the damage, or facts that do not depend on it. No
//! bytes may cause a panic, an endless loop or a read beyond the bounds.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use proptest::prelude::*;

use super::*;

const GLIBC: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";

/// Parts of a file to be put together.
#[derive(Clone, Default)]
pub(super) struct Image {
    loader: Option<&'static [u8]>,
    note: Option<&'static [u8]>,
    data: Option<&'static [u8]>,
    section: Option<&'static [u8]>,
}

impl Image {
    /// Header, program headers, then what they name, then the section headers.
    fn bytes(&self) -> Vec<u8> {
        let mut segments: Vec<(u32, u32, &[u8])> = vec![(6, 4, b"")];
        segments.extend(self.loader.map(|name| (PT_INTERP, 4, name)));
        segments.extend(self.note.map(|note| (PT_NOTE, 4, note)));
        segments.extend(self.data.map(|data| (PT_LOAD, PF_W | 4, data)));
        let mut file = vec![0; 64 + segments.len() * PROGRAM_HEADER];
        for (index, (kind, flags, content)) in segments.iter().enumerate() {
            let (entry, offset) = (64 + index * PROGRAM_HEADER, file.len() as u64);
            put(&mut file, entry, &kind.to_le_bytes());
            put(&mut file, entry + 4, &flags.to_le_bytes());
            put(&mut file, entry + 8, &offset.to_le_bytes());
            put(&mut file, entry + 32, &(content.len() as u64).to_le_bytes());
            file.extend_from_slice(content);
        }
        put(&mut file, 0, b"\x7fELF\x02\x01\x01");
        put(&mut file, 16, &3_u16.to_le_bytes());
        put(&mut file, 18, &OWN_MACHINE.unwrap_or(62).to_le_bytes());
        put(&mut file, 32, &64_u64.to_le_bytes());
        put(&mut file, 54, &56_u16.to_le_bytes());
        put(&mut file, 56, &u16::try_from(segments.len()).unwrap().to_le_bytes());
        if let Some(names) = self.section {
            let names_at = file.len();
            file.extend_from_slice(names);
            let table = file.len();
            file.extend_from_slice(&[0; SECTION_HEADER]);
            put(&mut file, table + 24, &(names_at as u64).to_le_bytes());
            put(&mut file, table + 32, &(names.len() as u64).to_le_bytes());
            put(&mut file, 40, &(table as u64).to_le_bytes());
            put(&mut file, 58, &64_u16.to_le_bytes());
            put(&mut file, 60, &1_u16.to_le_bytes());
        }
        file
    }
}

fn put(file: &mut [u8], offset: usize, bytes: &[u8]) {
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn of(image: &Image) -> Facts {
    facts(image.bytes().as_slice()).expect("a whole file")
}

const GO_NOTE: &[u8] = b"\x04\0\0\0\x04\0\0\0\x01\0\0\0GNU\0abcd\x04\0\0\0\x03\0\0\0\x04\0\0\0Go\0\0id0\0";
const GNU_NOTE: &[u8] = b"\x04\0\0\0\x04\0\0\0\x03\0\0\0GNU\0abcd";

fn dynamic() -> Image {
    Image { loader: Some(GLIBC), note: Some(GNU_NOTE), ..Image::default() }
}

#[test]
fn the_loader_is_named_and_its_lack_is_seen() {
    assert_eq!(of(&dynamic()).loader.as_deref(), Some(&b"/lib64/ld-linux-x86-64.so.2"[..]));
    let musl = Image { loader: Some(b"/lib/ld-musl-x86_64.so.1\0"), ..Image::default() };
    assert_eq!(of(&musl).loader.as_deref(), Some(&b"/lib/ld-musl-x86_64.so.1"[..]));
    let without = of(&Image::default());
    assert!(without.loader.is_none() && without.own_machine && !without.go && !without.narrow);
}

#[test]
fn go_is_known_by_note_section_or_data() {
    assert!(!of(&dynamic()).go);
    assert!(of(&Image { note: Some(GO_NOTE), ..dynamic() }).go);
    assert!(of(&Image { section: Some(b"\0.text\0.go.buildinfo\0"), ..dynamic() }).go);
    assert!(!of(&Image { section: Some(b"\0.text\0.go.buildinfox\0"), ..dynamic() }).go);
    assert!(of(&Image { data: Some(b"\0\0\0\0\0\0\0\0\xff Go buildinf:\x08\x02"), ..dynamic() }).go);
}

#[test]
fn other_machines_and_word_sizes_are_seen() {
    let mut narrow = dynamic().bytes();
    narrow[4] = 1;
    assert!(facts(narrow.as_slice()).unwrap().narrow);
    let mut other = dynamic().bytes();
    put(&mut other, 18, &8_u16.to_le_bytes());
    assert!(!facts(other.as_slice()).unwrap().own_machine);
    let mut order = dynamic().bytes();
    order[5] = 2;
    assert!(!facts(order.as_slice()).unwrap().own_machine);
}

#[test]
fn a_file_that_is_not_elf_is_reported_as_such() {
    for bytes in [&b""[..], b"\x7fEL", b"#!/bin/sh\n", b"MZ"] {
        assert_eq!(facts(bytes), Err(ElfError::NotElf));
    }
}

#[test]
fn a_file_cut_anywhere_is_damaged_or_lacks_only_unneeded_bytes() {
    let whole = Image { section: Some(b"\0.text\0"), data: Some(b"data"), ..dynamic() };
    let bytes = whole.bytes();
    let all = of(&whole);
    for length in 0..bytes.len() {
        match facts(&bytes[..length]) {
            Err(ElfError::NotElf) => assert!(length < 4, "{length}"),
            Err(ElfError::Damaged(_)) => assert!(length < 64 + 4 * PROGRAM_HEADER + GLIBC.len(), "{length}"),
            Ok(facts) => assert_eq!(facts, all, "{length}"),
        }
    }
}

#[test]
fn numbers_at_the_edge_are_damage_and_no_panic() {
    for place in [8, 32] {
        // Short names and early offsets are bytes of the file like others.
        let small: &[u64] = if place == 32 { &[0, 1, 4097] } else { &[] };
        for &value in [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 40].iter().chain(small) {
            let mut bytes = dynamic().bytes();
            // The second program header is the loader's.
            put(&mut bytes, 64 + PROGRAM_HEADER + place, &value.to_le_bytes());
            assert_eq!(facts(bytes.as_slice()), Err(ElfError::Damaged("loader's name")), "{place}: {value}");
        }
    }
    for (place, value) in [(32, u64::MAX), (32, 1 << 50), (40, u64::MAX)] {
        let mut bytes = Image { section: Some(b"\0"), ..dynamic() }.bytes();
        put(&mut bytes, place, &value.to_le_bytes());
        let found = facts(bytes.as_slice());
        assert_eq!(found.is_err(), place == 32, "{found:?}");
    }
}

#[test]
fn programs_of_this_machine_are_read() {
    let own = facts(&File::open("/proc/self/exe").unwrap()).unwrap();
    assert!(own.own_machine && !own.go, "{own:?}");
    let shell = facts(&File::open("/bin/sh").unwrap()).unwrap();
    assert!(shell.own_machine && !shell.go, "{shell:?}");
}

proptest! {
    /// Bytes that were changed at random, and bytes that never were a file.
    #[test]
    fn no_bytes_bring_it_down(
        changes in proptest::collection::vec((0_usize..600, any::<u8>()), 0..12),
        length in 0_usize..700,
        noise in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let image = Image { note: Some(GO_NOTE), section: Some(b"\0.go.buildinfo\0"), data: Some(GO_WORDS), ..dynamic() };
        let mut bytes = image.bytes();
        for (place, value) in changes {
            if let Some(byte) = bytes.get_mut(place) {
                *byte = value;
            }
        }
        bytes.truncate(length);
        let _ = facts(bytes.as_slice());
        let _ = facts([&b"\x7fELF\x02\x01"[..], &noise].concat().as_slice());
        let _ = has_go_note(&noise);
    }
}

/// A program with a dynamic section that names these libraries.
fn linked(libraries: &[&str]) -> Vec<u8> {
    let mut file = vec![0; 64 + 2 * PROGRAM_HEADER];
    let (mut texts, mut entries) = (vec![0], Vec::new());
    for library in libraries {
        entries.push((DT_NEEDED, texts.len() as u64));
        texts.extend_from_slice(library.as_bytes());
        texts.push(0);
    }
    let base = 0x40_0000_u64;
    entries.push((DT_STRTAB, base + file.len() as u64));
    entries.push((DT_NULL, 0));
    let at = (file.len() + texts.len()) as u64;
    file.extend_from_slice(&texts);
    for (tag, value) in &entries {
        file.extend_from_slice(&tag.to_le_bytes());
        file.extend_from_slice(&value.to_le_bytes());
    }
    let whole = file.len() as u64;
    let segments = [(PT_LOAD, 0, base, whole), (PT_DYNAMIC, at, base + at, 16 * entries.len() as u64)];
    for (index, (kind, offset, address, bytes)) in segments.into_iter().enumerate() {
        let entry = 64 + index * PROGRAM_HEADER;
        put(&mut file, entry, &kind.to_le_bytes());
        put(&mut file, entry + 8, &offset.to_le_bytes());
        put(&mut file, entry + 16, &address.to_le_bytes());
        put(&mut file, entry + 32, &bytes.to_le_bytes());
    }
    put(&mut file, 0, b"\x7fELF\x02\x01\x01");
    put(&mut file, 18, &OWN_MACHINE.unwrap_or(62).to_le_bytes());
    put(&mut file, 32, &64_u64.to_le_bytes());
    put(&mut file, 54, &56_u16.to_le_bytes());
    put(&mut file, 56, &2_u16.to_le_bytes());
    file
}

#[test]
fn libraries_that_a_program_names_are_found() {
    assert!(needs(&linked(&["libc.so.6", "liburing.so.2"])[..], "liburing"));
    assert!(!needs(&linked(&["libc.so.6", "libnot-liburing.so"])[..], "liburing"));
    assert!(!needs(&linked(&[])[..], "liburing"));
    let own = File::open("/proc/self/exe").unwrap();
    assert!(needs(&own, "libc.so") && !needs(&own, "liburing"));
}

proptest! {
    #[test]
    fn a_damaged_dynamic_section_names_nothing_and_does_no_harm(
        cut in 0_usize..400,
        changes in prop::collection::vec((0_usize..400, any::<u8>()), 0..12),
    ) {
        let mut file = linked(&["liburing.so.2"]);
        file.truncate(cut);
        for (at, byte) in changes {
            if let Some(to) = file.get_mut(at) {
                *to = byte;
            }
        }
        let _ = needs(&file[..], "liburing");
    }
}
