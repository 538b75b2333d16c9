//! What users read: what is wrong with which file, and a fix that loses nothing.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::fs::description::{ClassName, FILE, MediumDescription};
use crate::fs::test_folder::{Folder, MIB};
use crate::fs::{CreateOptions, StoreError, add, create, grow, open, shared};

fn refused(folder: &Folder) -> String {
    match open(&folder.store()) {
        Ok(_) => panic!("it opens"),
        Err(error) => {
            let error = error.to_string();
            assert!(!error.contains("remove it") && !error.contains("anew"), "{error}");
            error
        }
    }
}

fn has(error: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

fn options(media: Vec<MediumDescription>, log: &Path) -> CreateOptions {
    let (log_memory, log_bytes) = (Some(log.to_owned()), Some(MIB));
    CreateOptions { media, log_memory, log_bytes, durability: None }
}

#[test]
fn a_medium_has_no_name_that_the_file_system_uses() {
    let folder = Folder::new("own-names");
    let (store, new) = (folder.store(), folder.file("new"));
    let memory = folder.read().log.memory.file_name().expect("a name").display().to_string();
    let medium = |path: PathBuf| MediumDescription { class: ClassName::Ssd, path, bytes: MIB, model: None };
    let names = ["fs.toml", "fs.toml.partial", "socket", "log", "log.2", "log.16.partial", "log.partial"];
    for name in names {
        // By another path, too.
        for path in [store.join(name), folder.file("store/../store").join(name)] {
            let added = add(&store, &medium(path), &mut |_| {});
            assert!(matches!(added, Err(StoreError::OwnName { .. })), "{name}: {added:?}");
        }
        let options = options(vec![medium(new.join(name))], &folder.file(""));
        let made = create(&new, &options, &mut |_| {});
        assert!(matches!(made, Err(StoreError::OwnName { .. })), "{name}: {made:?}");
    }
    for name in [format!("{memory}.2"), format!("{memory}.loading"), format!("{memory}.3.loading.partial")] {
        let added = add(&store, &medium(folder.file(&name)), &mut |_| {});
        assert!(matches!(added, Err(StoreError::OwnName { .. })), "{name}: {added:?}");
    }
    for name in ["log.old", "socket.2", "logs"] {
        add(&store, &medium(store.join(name)), &mut |_| {}).expect(name);
    }
    folder.verify("before", 12);
}

#[test]
fn a_service_removes_only_a_socket() {
    let folder = Folder::new("no-socket");
    let socket = folder.store().join("socket");
    std::fs::write(&socket, b"of a user").expect("room");
    match shared::serve(&folder.store(), || {}) {
        Ok(_) => panic!("it is served"),
        Err(error) => has(&error.to_string(), &["no socket", &socket.display().to_string()]),
    }
    assert_eq!(std::fs::read(&socket).expect("it stays"), b"of a user");
    std::fs::remove_file(&socket).expect("it goes");
    // As a service that was killed leaves it.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    let server = shared::serve(&folder.store(), || {}).expect("it is served");
    std::fs::remove_file(&socket).expect("it goes");
    std::fs::write(&socket, b"of a user").expect("room");
    assert_eq!(server.end(), Ok(()));
    assert_eq!(std::fs::read(&socket).expect("it stays"), b"of a user");
}

#[test]
fn a_file_of_another_size_names_both_and_a_fix_that_loses_nothing() {
    let folder = Folder::new("sizes");
    let slow = folder.file("slow");
    let set = |bytes: u64| {
        let file = std::fs::File::options().write(true).open(&slow).expect("a medium");
        file.set_len(bytes).expect("a size");
    };
    set(MIB / 2);
    let name = slow.display().to_string();
    has(&refused(&folder), &[&name, "has 524288 bytes", "have 1048576", "restore it from a copy"]);
    set(2 * MIB);
    let error = refused(&folder);
    let cut = format!("keep a copy of it, and cut it: `truncate -s 1048576 {name}`");
    has(&error, &["has 2097152 bytes", "have 1048576", &cut, "write `bytes = 2097152`"]);
    // The fix is one.
    set(MIB);
    grow(&folder.store(), &slow, 2 * MIB).expect("room");
    let description = folder.store().join(FILE);
    let text = std::fs::read_to_string(&description).expect("a description");
    let wrong = text.replace("bytes = 2097152", "bytes = 1048576");
    assert_ne!(wrong, text);
    std::fs::write(&description, wrong).expect("room");
    has(
        &refused(&folder),
        &["If only the line `bytes` of fs.toml was changed, write `bytes = 2097152` there"],
    );
    std::fs::write(&description, text).expect("room");
    folder.verify("before", 12);
}

#[test]
fn a_file_that_is_not_there_is_named_with_its_class() {
    let folder = Folder::new("missing");
    let (slow, away) = (folder.file("slow"), folder.file("away"));
    std::fs::rename(&slow, &away).expect("a rename");
    let name = slow.display().to_string();
    has(&refused(&folder), &[&name, "the medium of class hdd is not there", "fs.toml", "Replace a disk"]);
    std::fs::rename(&away, &slow).expect("a rename");
    std::fs::rename(folder.read().log.memory, &away).expect("a rename");
    let name = folder.read().log.memory.display().to_string();
    has(&refused(&folder), &[&name, "this file of the file system is not there"]);
}

#[test]
fn a_file_of_others_names_its_owner_its_mode_and_a_command() {
    let folder = Folder::new("owners");
    let own = rustix::process::geteuid().as_raw();
    for file in [folder.store().join(FILE), folder.file("slow")] {
        let name = file.display().to_string();
        let set = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode));
        set(0o640).expect("chmod");
        let owner = format!("belongs to user {own}, with mode 0640");
        has(&refused(&folder), &[&name, &owner, &format!("`chmod 600 {name}`")]);
        set(0o600).expect("chmod");
        if own == 0 {
            std::os::unix::fs::chown(&file, Some(7), None).expect("chown");
            assert_eq!(file.metadata().expect("a file").uid(), 7);
            let fix =
                format!("run this as user 7, or, if you know that what it has is right, `chown 0 {name}`");
            has(&refused(&folder), &["belongs to user 7, with mode 0600", &fix]);
            std::os::unix::fs::chown(&file, Some(0), None).expect("chown");
        }
    }
    let other = folder.file("other-name");
    std::fs::hard_link(folder.file("slow"), &other).expect("a link");
    has(&refused(&folder), &["2 names", "find its other names"]);
    std::fs::remove_file(other).expect("it goes");
    folder.verify("before", 12);
}

#[test]
fn a_description_that_cannot_be_read_names_its_line() {
    let folder = Folder::new("syntax");
    let file = folder.store().join(FILE);
    let text = std::fs::read_to_string(&file).expect("a description");
    let cases = [
        ("version = 1\n", "version = 1\nspeed = 3\n", "speed", "correct line 2"),
        ("version = 1\n", "# two\nversion = \n", "", "correct line 2"),
        ("class = \"nvm\"", "class = \"floppy\"", "floppy", "correct line 4"),
        ("version = 1\n", "version = 7\n", "version 7", "correct it, or restore it from a copy"),
    ];
    for (from, to, what, fix) in cases {
        let wrong = text.replacen(from, to, 1);
        assert_ne!(wrong, text);
        std::fs::write(&file, &wrong).expect("room");
        let error = refused(&folder);
        has(&error, &[what, fix]);
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn a_wrong_option_of_a_new_file_system_is_named() {
    let folder = Folder::new("options");
    let (new, log) = (folder.file("new"), folder.file(""));
    let medium = folder.medium("one", ClassName::Nvm, 8);
    let short = CreateOptions { log_bytes: Some(1024), ..options(vec![medium], &log) };
    for (options, option) in [(short, "`--log`: "), (options(Vec::new(), &log), "`--nvm, --ssd, --hdd`: ")] {
        let error = create(&new, &options, &mut |_| {}).expect_err("it is wrong").to_string();
        assert!(error.starts_with(option) && !error.contains(FILE), "{error}");
    }
}

/// A mount would refuse it: the log must be memory.
#[test]
fn a_log_that_is_no_memory_is_refused_when_it_is_made() {
    let folder = Folder::new("no-dax");
    let disk = std::env::temp_dir().join(format!("sietch-no-dax-{}", std::process::id()));
    std::fs::create_dir_all(&disk).expect("a folder");
    let is_memory = crate::fs::media::is_tmpfs(&std::fs::File::open(&disk).expect("a folder").into());
    let medium = MediumDescription { path: disk.join("data"), ..folder.medium("data", ClassName::Nvm, 8) };
    let made = create(&folder.file("new"), &options(vec![medium], &disk), &mut |_| {});
    let left = std::fs::read_dir(&disk).expect("a folder").count();
    std::fs::remove_dir_all(&disk).expect("it goes");
    match made {
        Err(error) => {
            has(&error.to_string(), &["sietch-log-", "-o dax"]);
            assert_eq!((left, folder.file("new").join(FILE).exists()), (0, false));
        }
        Ok(_) if is_memory => println!("SKIPPED: {} is memory", disk.display()),
        // With direct access, it opens.
        Ok(_) => println!("SKIPPED: {} has direct access", disk.display()),
    }
}

#[test]
fn a_log_that_cannot_be_applied_is_kept() {
    let path = PathBuf::from("/dev/shm/log");
    let log = StoreError::Log { path: path.clone(), position: 64, cause: "torn".to_owned() }.to_string();
    let keep = "move the file elsewhere, keep it, and make a new file of zeros in its place, of the same size and with mode 0600";
    has(&log, &["the record at 64", "first move this file elsewhere", "read back from the copy", keep]);
    assert!(log.find("from the copy") < log.find(keep), "{log}");
    let full = StoreError::NoRoom { path, wanted: 9 }.to_string();
    has(&full, &["needs 9 blocks", "`sietch fs grow`", "`sietch fs add`", keep]);
}
