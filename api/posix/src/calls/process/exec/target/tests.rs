//! Programs of this machine, damaged files, and loaders of other C libraries.
//!
//! Every file is written here, except those of the machine itself. A damaged file must be left to
//! the kernel: the answer is yes, without a panic and without a read beyond a bound.
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::ffi::CString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sietch-target-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: &[u8]) -> CString {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        CString::new(path.to_str().unwrap()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn takes(path: &CString) -> bool {
    // SAFETY: a text.
    unsafe { takes_the_library(Named::Path(libc::AT_FDCWD, path.as_ptr())) }
}

fn searched(name: &str) -> bool {
    let name = CString::new(name).unwrap();
    // SAFETY: a text.
    unsafe { takes_the_library(Named::Search(name.as_ptr())) }
}

/// A program that has no loader, at a fixed place or with flags of `DT_FLAGS_1`.
fn alone(kind: u16, flags: u64) -> Vec<u8> {
    let mut file = program(None);
    file[16..18].copy_from_slice(&kind.to_le_bytes());
    file[64..68].copy_from_slice(&DYNAMIC.to_le_bytes());
    file[96..104].copy_from_slice(&32_u64.to_le_bytes());
    for word in [5, 0, FLAGS, flags] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file
}

/// A program whose loader is the file of this name; none: it has no loader.
fn program(loader: Option<&CString>) -> Vec<u8> {
    let name = loader.map_or(&b""[..], |name| name.as_bytes_with_nul());
    let mut file = vec![0; 64 + PROGRAM_HEADER];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    file[18..20].copy_from_slice(&MACHINE.to_le_bytes());
    file[32..40].copy_from_slice(&64_u64.to_le_bytes());
    file[54..56].copy_from_slice(&56_u16.to_le_bytes());
    file[56..58].copy_from_slice(&1_u16.to_le_bytes());
    file[64..68].copy_from_slice(&if loader.is_some() { INTERPRETER } else { 1 }.to_le_bytes());
    let at = file.len() as u64;
    file[72..80].copy_from_slice(&at.to_le_bytes());
    file[96..104].copy_from_slice(&(name.len() as u64).to_le_bytes());
    file.extend_from_slice(name);
    file
}

#[test]
fn programs_of_this_machine_accept_the_library() {
    let own = CString::new(std::env::current_exe().unwrap().to_str().unwrap()).unwrap();
    assert!(takes(&own));
    assert!(searched("sh") && searched("/bin/sh"));
    assert!(searched("no-such-program") && takes(&CString::new("/no/such/program").unwrap()));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    // SAFETY: an open file.
    assert!(unsafe { takes_the_library(Named::Open(std::os::fd::AsRawFd::as_raw_fd(&file))) });
}

#[test]
fn the_loader_decides() {
    let folder = Folder::new("loader");
    let mut recent = vec![b'x'; 5000];
    recent.extend_from_slice(VERSION);
    let recent = folder.file("ld-linux-x86-64.so.2", &recent);
    let old = folder.file("ld-linux-old.so.2", b"\0GLIBC_2.31\0GLIBC_2.33\0");
    let musl = folder.file("ld-musl-x86_64.so.1", VERSION);
    let far = folder.file("ld-linux-far.so.2", &[&vec![0; LOADER_START + 2048], VERSION].concat());
    for (name, loader, expected) in [
        ("recent", Some(&recent), true),
        ("old", Some(&old), false),
        ("musl", Some(&musl), false),
        ("far", Some(&far), false),
        ("none", None, false),
    ] {
        let program = folder.file(name, &program(loader));
        assert_eq!(takes(&program), expected, "{name}");
        let path = program.to_str().unwrap();
        let script = folder.file("script", format!("#! {path} -x\n").as_bytes());
        assert_eq!(takes(&script), expected, "a script for {name}");
        let further = folder.file("further", format!("#!{}\n", script.to_str().unwrap()).as_bytes());
        assert_eq!(takes(&further), expected, "a script for a script for {name}");
    }
    let mut narrow = program(Some(&recent));
    narrow[4] = 1;
    assert!(!takes(&folder.file("narrow", &narrow)));
    let mut foreign = program(Some(&recent));
    foreign[18] ^= 0x55;
    assert!(!takes(&folder.file("foreign", &foreign)));
}

#[test]
fn a_static_program_keeps_the_environment_and_a_loader_does_not() {
    let folder = Folder::new("static");
    let now = 1_u64;
    for (name, content, expected) in [
        ("fixed", alone(FIXED, 0), true),
        ("anywhere", alone(3, PROGRAM | now), true),
        ("loader", alone(3, now), false),
    ] {
        let program = folder.file(name, &content);
        assert_eq!(takes(&program), expected, "{name}");
        let script = folder.file("script", format!("#!{}\n", program.to_str().unwrap()).as_bytes());
        assert_eq!(takes(&script), expected, "a script for {name}");
    }
    let source = folder.file("main.c", b"int main(void) { return 0; }\n");
    for kind in ["-static", "-static-pie"] {
        let program = folder.0.join("compiled");
        let mut cc = std::process::Command::new("cc");
        cc.arg(kind).arg("-o").arg(&program).arg(source.to_str().unwrap());
        if !cc.output().is_ok_and(|output| output.status.success()) {
            eprintln!("SKIPPED a program with {kind}: needs cc and a static C library");
            continue;
        }
        assert!(takes(&CString::new(program.to_str().unwrap()).unwrap()), "{kind}");
    }
}

#[test]
fn scripts_that_lead_in_a_circle_and_pipes_end_the_search() {
    let folder = Folder::new("circle");
    let path = folder.0.join("round");
    let round = folder.file("round", format!("#!{}\n", path.display()).as_bytes());
    assert!(takes(&round));
    let pipe = CString::new(folder.0.join("pipe").to_str().unwrap()).unwrap();
    // SAFETY: a text.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o755) }, 0);
    assert!(takes(&pipe));
    let script = folder.file("piped", format!("#!{}\n", pipe.to_str().unwrap()).as_bytes());
    assert!(takes(&script));
}

proptest! {
    #[test]
    fn damaged_programs_are_checked_without_harm(
        cut in 0_usize..400,
        changes in prop::collection::vec((0_usize..200, any::<u8>()), 0..12),
    ) {
        let folder = Folder::new("damage");
        let loader = CString::new("/lib64/ld-linux-x86-64.so.2").unwrap();
        let mut file = program(Some(&loader));
        file.truncate(cut);
        for (at, byte) in changes {
            if let Some(to) = file.get_mut(at) {
                *to = byte;
            }
        }
        let _ = takes(&folder.file("program", &file));
    }
}
