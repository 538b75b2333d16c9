//! Reads the facts of an ELF file that decide whether a library can be loaded into it: word size,
//! machine, loader, whether the Go tool chain made it, and which libraries it names itself.
//!
//! 1. The file is untrusted. Each number in it is checked against a limit before it is used for a
//!    read. Offsets are added with a check for overflow, and nothing is read twice. A part that
//!    does not fit is named in [`ElfError::Damaged`].
//! 2. ELF header, then the program headers: the kernel starts a program by these alone, so they
//!    must be whole. `PT_INTERP` names the loader; without one there is no loader that could load a
//!    library.
//! 3. A Go program is recognised by one of three signs: a note `Go` (`PT_NOTE`); a section
//!    `.go.buildinfo` or `.note.go.buildid`; the bytes that `go version` searches for at the start
//!    of its writable data. Sections may be missing or wrong: the kernel does not read them either.
//!
//! Source: System V ABI, chapter 4 and 5 (ELF-64 object file format, version 1.5); Go's
//! `debug/buildinfo`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Program headers that are read: Linux refuses more than fit in 64 KiB.
const PROGRAM_HEADERS: usize = 65_536 / PROGRAM_HEADER;

/// Bytes of a program header.
const PROGRAM_HEADER: usize = 56;

/// Bytes of a section header.
const SECTION_HEADER: usize = 64;

/// Bytes of the section names that are read: programs have some hundred bytes.
const SECTION_NAMES: u64 = 1 << 16;

/// The longest name of a loader: PATH_MAX, as in Linux.
const LOADER_NAME: u64 = 4096;

/// Bytes of notes that are read; the Go note is among the first.
const NOTES: u64 = 1 << 12;

/// Bytes of writable data in which Go's bytes are searched for: they are at its very start, or
/// after a few relocated pointers.
const DATA: u64 = 1 << 16;

/// The bytes that `go version` searches for.
const GO_WORDS: &[u8] = b"\xff Go buildinf:";

/// Bytes of the dynamic section that are read, and names of libraries: programs have some
/// dozen.
const DYNAMIC: u64 = 1 << 14;
const LIBRARIES: usize = 256;

/// Bytes of a library's name that are read.
const LIBRARY_NAME: usize = 64;

const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const PF_W: u32 = 2;

/// `EM_X86_64` and `EM_AARCH64`, `EM_RISCV`.
const OWN_MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else if cfg!(target_arch = "riscv64") {
    Some(243)
} else {
    None
};

/// Why there are no facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ElfError {
    /// It does not begin like an ELF file.
    #[error("not an ELF file")]
    NotElf,
    /// A part is missing or makes no sense.
    #[error("damaged: its {0} cannot be read")]
    Damaged(&'static str),
}

/// The facts in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// 64-bit words, and for this kind of machine.
    pub own_machine: bool,
    /// 32-bit words.
    pub narrow: bool,
    /// `PT_INTERP`, without its final zero. 32-bit files are not read this far.
    pub loader: Option<Vec<u8>>,
    /// Made by the Go tool chain.
    pub go: bool,
}

/// Bytes at an offset.
pub(super) trait Source {
    /// Up to `length` bytes at `offset`: fewer at the end of the file, none where it cannot be
    /// read.
    fn read(&self, offset: u64, length: usize) -> Vec<u8>;
}

impl Source for [u8] {
    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        rest[..rest.len().min(length)].to_vec()
    }
}

impl Source for File {
    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            let Some(place) = offset.checked_add(filled as u64) else { break };
            match self.read_at(&mut bytes[filled..], place) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        bytes.truncate(filled);
        bytes
    }
}

/// Reads the file.
///
/// # Errors
/// [`ElfError`].
pub(super) fn facts(source: &(impl Source + ?Sized)) -> Result<Facts, ElfError> {
    let header = source.read(0, 64);
    if !header.starts_with(b"\x7fELF") {
        return Err(ElfError::NotElf);
    }
    // EI_CLASS and EI_DATA: 64-bit words, the lowest byte first.
    let (class, order) = (header.get(4).copied(), header.get(5).copied());
    if class == Some(1) {
        return Ok(Facts { own_machine: false, narrow: true, loader: None, go: false });
    }
    if class != Some(2) || header.len() < 64 {
        return Err(ElfError::Damaged("header"));
    }
    if order != Some(1) || OWN_MACHINE.is_some_and(|own| u16_at(&header, 18) != Some(own)) {
        return Ok(Facts { own_machine: false, narrow: false, loader: None, go: false });
    }
    let segments = segments(source, &header).ok_or(ElfError::Damaged("program headers"))?;
    let loader = match segments.iter().find(|segment| segment.kind == PT_INTERP) {
        None => None,
        Some(segment) => Some(loader(source, segment).ok_or(ElfError::Damaged("loader's name"))?),
    };
    let go = segments.iter().any(|segment| has_go(source, segment)) || has_go_section(source, &header);
    Ok(Facts { own_machine: true, narrow: false, loader, go })
}

/// A program header.
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    /// Its address in memory.
    address: u64,
    bytes: u64,
}

fn segments(source: &(impl Source + ?Sized), header: &[u8]) -> Option<Vec<Segment>> {
    let (offset, size, count) = (u64_at(header, 32)?, u16_at(header, 54)?, usize::from(u16_at(header, 56)?));
    if usize::from(size) != PROGRAM_HEADER || count == 0 || count > PROGRAM_HEADERS {
        return None;
    }
    let table = source.read(offset, count * PROGRAM_HEADER);
    if table.len() != count * PROGRAM_HEADER {
        return None;
    }
    let segment = |entry: &[u8]| {
        Some(Segment {
            kind: u32_at(entry, 0)?,
            flags: u32_at(entry, 4)?,
            offset: u64_at(entry, 8)?,
            address: u64_at(entry, 16)?,
            bytes: u64_at(entry, 32)?,
        })
    };
    table.chunks_exact(PROGRAM_HEADER).map(segment).collect()
}

fn loader(source: &(impl Source + ?Sized), segment: &Segment) -> Option<Vec<u8>> {
    if segment.bytes < 2 || segment.bytes > LOADER_NAME {
        return None;
    }
    let length = usize::try_from(segment.bytes).ok()?;
    let mut name = source.read(segment.offset, length);
    if name.len() != length || name.pop() != Some(0) {
        return None;
    }
    // Linux reads up to the first zero too.
    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
    Some(name)
}

/// Whether a program of this machine names a library whose name begins so (`DT_NEEDED`). What
/// cannot be read names none.
pub(super) fn needs(source: &(impl Source + ?Sized), library: &str) -> bool {
    let header = source.read(0, 64);
    let Some(segments) = segments(source, &header) else { return false };
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else { return false };
    let table = source.read(dynamic.offset, usize::try_from(dynamic.bytes.min(DYNAMIC)).unwrap_or(0));
    let entries = || {
        let entry = |entry: &[u8]| Some((u64_at(entry, 0)?, u64_at(entry, 8)?));
        table.chunks_exact(16).filter_map(entry).take_while(|(tag, _)| *tag != DT_NULL)
    };
    let Some((_, texts)) = entries().find(|(tag, _)| *tag == DT_STRTAB) else { return false };
    let inside = |segment: &&Segment| {
        segment.kind == PT_LOAD && texts.checked_sub(segment.address).is_some_and(|into| into < segment.bytes)
    };
    let Some(holder) = segments.iter().find(inside) else { return false };
    let Some(texts) = holder.offset.checked_add(texts - holder.address) else { return false };
    let names = entries().filter(|(tag, _)| *tag == DT_NEEDED).take(LIBRARIES);
    names
        .filter_map(|(_, at)| texts.checked_add(at))
        .any(|at| source.read(at, LIBRARY_NAME).starts_with(library.as_bytes()))
}

fn has_go(source: &(impl Source + ?Sized), segment: &Segment) -> bool {
    let read = |most: u64| source.read(segment.offset, usize::try_from(segment.bytes.min(most)).unwrap_or(0));
    match segment.kind {
        PT_NOTE => has_go_note(&read(NOTES)),
        PT_LOAD if segment.flags & PF_W != 0 => {
            read(DATA).windows(GO_WORDS.len()).any(|window| window == GO_WORDS)
        }
        _ => false,
    }
}

/// Notes: sizes of name and description, a type, then both, each filled up to four bytes.
fn has_go_note(mut notes: &[u8]) -> bool {
    loop {
        let (Some(name), Some(description)) = (u32_at(notes, 0), u32_at(notes, 4)) else { return false };
        let Some(name_end) = 12_usize.checked_add(name as usize) else { return false };
        match notes.get(12..name_end) {
            Some(b"Go\0\0") => return true,
            None => return false,
            Some(_) => {}
        }
        let filled = |size: u32| (size as usize).checked_next_multiple_of(4);
        let next = filled(name)
            .and_then(|name| filled(description)?.checked_add(name))
            .and_then(|both| both.checked_add(12));
        match next.and_then(|next| notes.get(next..)) {
            Some(rest) => notes = rest,
            None => return false,
        }
    }
}

fn has_go_section(source: &(impl Source + ?Sized), header: &[u8]) -> bool {
    let names = section_names(source, header).unwrap_or_default();
    names.split(|byte| *byte == 0).any(|name| matches!(name, b".go.buildinfo" | b".note.go.buildid"))
}

fn section_names(source: &(impl Source + ?Sized), header: &[u8]) -> Option<Vec<u8>> {
    let entry = section(source, header, u16_at(header, 62)?)?;
    contents(source, &entry, SECTION_NAMES)
}

/// The header of the section of this number.
fn section(source: &(impl Source + ?Sized), header: &[u8], number: u16) -> Option<Vec<u8>> {
    let (table, size) = (u64_at(header, 40)?, u16_at(header, 58)?);
    let offset = table.checked_add(u64::from(number) * u64::from(size))?;
    (usize::from(size) == SECTION_HEADER).then(|| source.read(offset, SECTION_HEADER))
}

/// The content of a section, at most `most` bytes.
fn contents(source: &(impl Source + ?Sized), entry: &[u8], most: u64) -> Option<Vec<u8>> {
    let (offset, bytes) = (u64_at(entry, 24)?, u64_at(entry, 32)?);
    Some(source.read(offset, usize::try_from(bytes.min(most)).ok()?))
}

/// The content of the section of this name, at most `most` bytes, in a file of this machine.
pub(super) fn section_named(source: &(impl Source + ?Sized), name: &str, most: u64) -> Option<Vec<u8>> {
    let header = source.read(0, 64);
    let names = section_names(source, &header)?;
    let is_named = |entry: &[u8]| {
        let start = u32_at(entry, 0).and_then(|start| names.get(usize::try_from(start).ok()?..));
        start.and_then(|start| start.split(|byte| *byte == 0).next()) == Some(name.as_bytes())
    };
    let entries = (0..u16_at(&header, 60)?).map_while(|number| section(source, &header, number));
    let entry = entries.into_iter().find(|entry| is_named(entry))?;
    contents(source, &entry, most)
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u16::from_le_bytes(*chunk))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests;
