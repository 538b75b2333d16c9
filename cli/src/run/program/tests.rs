//! The search for a program, and the check of it.
//!
//! Programs are found as a shell finds them, in the order of `PATH`. A script is checked by its
//! interpreter, and a program by its loader and privileges.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use super::*;

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sietch-program-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn find_in(name: &str, path: &str) -> Result<PathBuf, RunError> {
    find(OsStr::new(name), Some(OsStr::new(path)))
}

#[test]
fn programs_are_found_in_the_order_of_path_and_must_be_executable() {
    let folder = Folder::new("path");
    std::fs::create_dir(folder.0.join("a")).unwrap();
    std::fs::create_dir(folder.0.join("b")).unwrap();
    let path = format!("{0}/none:{0}/a:{0}/b", folder.0.display());
    assert!(matches!(find_in("tool", &path), Err(RunError::NotFound { .. })));
    folder.file("a/tool", b"", 0o644);
    assert!(matches!(find_in("tool", &path), Err(RunError::NotExecutable { .. })));
    let second = folder.file("b/tool", b"", 0o755);
    assert_eq!(find_in("tool", &path).unwrap(), second);
    let first = folder.file("a/tool", b"", 0o755);
    assert_eq!(find_in("tool", &path).unwrap(), first);
    // A folder is no program, a name with a slash is not searched for, and nothing has no name.
    assert!(matches!(find_in(&folder.0.display().to_string(), ""), Err(RunError::NotExecutable { .. })));
    assert!(matches!(find_in("./no-such-tool", &path), Err(RunError::NotFound { .. })));
    assert!(matches!(find_in("", &path), Err(RunError::NotFound { .. })));
    assert!(find(OsStr::new("sh"), None).is_ok());
}

/// Enough of a program to be checked: a header and one program header that is no loader's.
fn static_program() -> Vec<u8> {
    let mut file = vec![0; 64 + 56];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    file[18..20].copy_from_slice(&std::fs::read("/proc/self/exe").unwrap()[18..20]);
    file[32] = 64;
    file[54] = 56;
    file[56] = 1;
    file
}

#[test]
fn a_script_is_checked_by_its_interpreter() {
    let folder = Folder::new("script");
    let path = Some(folder.0.clone().into_os_string());
    let checked = |file: &Path| check(file, path.as_deref()).unwrap();
    let program = folder.file("still", &static_program(), 0o755);
    assert_eq!(checked(&program), Some(Unsupported::Static));
    let direct = folder.file("direct", format!("#! {}  -x\n", program.display()).as_bytes(), 0o755);
    assert_eq!(checked(&direct), Some(Unsupported::Static));
    for line in ["#!/usr/bin/env still", "#!/usr/bin/env -S A=1 still -x\r", "#!/usr/bin/env\tstill"] {
        let script = folder.file("env", format!("{line}\nexit\n").as_bytes(), 0o755);
        assert_eq!(checked(&script), Some(Unsupported::Static), "{line}");
    }
    let twice = folder.file("twice", format!("#!{}", direct.display()).as_bytes(), 0o755);
    assert_eq!(checked(&twice), Some(Unsupported::Static));
    for fit in [
        "#!/bin/sh\n",
        "echo no first line\n",
        "",
        "#!",
        "#!\n",
        "#!/no/such/interpreter\n",
        "#!/usr/bin/env none",
    ] {
        assert_eq!(checked(&folder.file("fit", fit.as_bytes(), 0o755)), None, "{fit:?}");
    }
    let round = folder.0.join("round");
    let round = folder.file("round", format!("#!{}\n", round.display()).as_bytes(), 0o755);
    assert_eq!(checked(&round), None);
    assert!(matches!(
        check(&folder.file("cut", &static_program()[..90], 0o755), None),
        Err(RunError::Damaged { .. })
    ));
}

#[test]
fn loaders_decide() {
    let facts = |loader: Option<&str>| elf::Facts {
        own_machine: true,
        narrow: false,
        loader: loader.map(|name| name.as_bytes().to_vec()),
        go: false,
    };
    assert_eq!(unsupported(&facts(Some("/lib64/ld-linux-x86-64.so.2"))), None);
    assert_eq!(unsupported(&facts(Some("/nix/store/x-glibc/lib/ld-linux-x86-64.so.2"))), None);
    assert!(matches!(
        unsupported(&facts(Some("/lib/ld-musl-x86_64.so.1"))),
        Some(Unsupported::OtherLibrary(_))
    ));
    assert!(matches!(unsupported(&facts(Some("/system/bin/linker64"))), Some(Unsupported::OtherLibrary(_))));
    assert_eq!(unsupported(&facts(None)), Some(Unsupported::Static));
    assert_eq!(unsupported(&elf::Facts { go: true, ..facts(None) }), Some(Unsupported::Go));
    assert_eq!(
        unsupported(&elf::Facts { own_machine: false, ..facts(None) }),
        Some(Unsupported::OtherMachine)
    );
    assert_eq!(
        unsupported(&elf::Facts { narrow: true, own_machine: false, ..facts(None) }),
        Some(Unsupported::Narrow)
    );
}

#[test]
fn a_loader_of_an_old_glibc_is_seen() {
    let folder = Folder::new("loader");
    let of = |content: &[u8]| {
        let loader = folder.file("ld-linux-x86-64.so.2", content, 0o755);
        let name = Some(loader.into_os_string().into_vec());
        unsupported(&elf::Facts { own_machine: true, narrow: false, loader: name, go: false })
    };
    assert!(matches!(of(b"\0GLIBC_2.31\0GLIBC_2.33\0"), Some(Unsupported::OldLibrary(_))));
    assert_eq!(of(b"\0GLIBC_2.33\0GLIBC_2.34\0"), None);
    assert_eq!(of(b""), None, "nothing is known of it");
}

#[test]
fn a_program_that_becomes_another_user_is_seen() {
    let name = "a_program_that_becomes_another_user_is_seen";
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {name}: needs root to give a file away");
        return;
    }
    let folder = Folder::new("owner");
    let file = folder.file("tool", b"", 0o755);
    assert!(!gains_privileges(&File::open(&file).unwrap()));
    std::os::unix::fs::chown(&file, Some(61870), Some(61870)).unwrap();
    for (mode, gains) in [(0o4755, true), (0o2755, true), (0o2745, false), (0o755, false)] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(gains_privileges(&File::open(&file).unwrap()), gains, "{mode:o}");
    }
    // Root's own set-user-ID program changes nothing for root.
    std::os::unix::fs::chown(&file, Some(0), Some(0)).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o6755)).unwrap();
    assert!(!gains_privileges(&File::open(&file).unwrap()));
}
