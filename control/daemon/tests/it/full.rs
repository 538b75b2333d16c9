//! A file system that is really full: a small ext4 in a file, mounted in a namespace of the test's
//! own.
//!
//! 1. Areas are created and grown until no room remains. Then another file takes the last block.
//!    Every refusal names the volume and changes nothing. Areas that are held can be written.
//!    Deleting and creating work again as soon as there is room.
//! 2. The daemon's own state is on the full file system. A grant that cannot be recorded is
//!    refused. When there is room again the same daemon continues, and the next one has all grants.
//! 3. Revoking needs no room. It is recorded when there is some.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::scene::{self, Scene};
use sietch_protocol::{CallError, Connection, ErrorKind, ErrorReply, HeldGrant, Target};

const MIB: u64 = 1 << 20;
/// Where the small file system is mounted, for the child.
const MOUNT: &str = "SIETCH_TEST_MOUNT";

/// Runs the ignored test `child` where `bytes` of ext4 are mounted, with temporary files there too
/// if `all`.
fn on_a_small_file_system(name: &str, child: &str, bytes: u64, all: bool) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {name}: needs root to mount a file system");
        return;
    }
    for tool in ["mkfs.ext4", "unshare", "losetup"] {
        let mut command = Command::new(tool);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        let found = scene::starting(|| command.status());
        // mkfs.ext4 has no such option; that it starts is enough.
        if found.is_err() {
            eprintln!("SKIPPED {name}: needs {tool}");
            return;
        }
    }
    // Short: the path of a socket in it has room for 107 bytes.
    let root = std::env::temp_dir().join(format!("sietch-{child}-{}", std::process::id()));
    let (image, mount) = (root.join("image"), root.join("m"));
    std::fs::create_dir_all(&mount).unwrap();
    File::create(&image).unwrap().set_len(bytes).unwrap();
    let mut mkfs = Command::new("mkfs.ext4");
    let made = scene::starting(|| mkfs.args(["-q", "-F", "-m", "0"]).arg(&image).output()).unwrap();
    assert!(made.status.success(), "{made:?}");
    let mut command = Command::new("unshare");
    // The mount, and the loop device under it, go away with the namespace.
    command
        .args(["--mount", "sh", "-c", "mount -o loop \"$0\" \"$1\" && shift && exec \"$@\""])
        .arg(&image)
        .arg(&mount)
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", &format!("full::{child}"), "--nocapture", "--test-threads=1"])
        .env(MOUNT, &mount);
    if all {
        command.env("TMPDIR", &mount);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = scene::starting(|| command.spawn()).unwrap().wait_with_output().unwrap();
    drop(std::fs::remove_dir_all(&root));
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if said.contains("mount: ") {
        eprintln!("SKIPPED {name}: needs loop devices: {said}");
        return;
    }
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, CallError>) -> ErrorReply {
    match outcome {
        Err(CallError::Refused(error)) => error,
        other => panic!("it should be refused: {other:?}"),
    }
}

/// Occupies every free block.
fn hog(mount: &Path) -> PathBuf {
    let path = mount.join("hog");
    let mut file = File::create(&path).unwrap();
    for size in [MIB as usize, 4096, 512] {
        while file.write_all(&vec![7; size]).is_ok() {}
    }
    file.sync_all().ok();
    path
}

fn pattern(file: &OwnedFd, at: u64, byte: u8) {
    assert_eq!(rustix::io::pwrite(file.as_fd(), &[byte; 4096], at), Ok(4096));
    rustix::fs::fsync(file).unwrap();
}

fn holds(file: &OwnedFd, at: u64, byte: u8) -> bool {
    let mut bytes = [0; 4096];
    rustix::io::pread(file.as_fd(), &mut bytes, at) == Ok(4096) && bytes == [byte; 4096]
}

#[test]
#[ignore = "the child of a test below"]
fn areas_child() {
    let Some(mount) = std::env::var_os(MOUNT).map(PathBuf::from) else { return };
    let place = mount.join("areas");
    let scene = Scene::own("full-areas");
    scene.configure(&format!("[[volume]]\nname = \"small\"\npath = \"{}\"\n", place.display()));
    let daemon = scene.start();
    let mut connection = scene.connect();
    connection.create_vsa("/small/kept", 4 * MIB, None).unwrap();
    let (_, file) = connection.acquire_vsa("/small/kept").unwrap();
    pattern(&file, 0, 1);
    pattern(&file, 4 * MIB - 4096, 2);
    let mut made = 0;
    let error = loop {
        match connection.create_vsa(&format!("/small/fill{made}"), 4 * MIB, None) {
            Ok(_) => made += 1,
            other => break refused(other),
        }
    };
    assert!(made >= 3 && error.kind == ErrorKind::Full, "{made}: {error}");
    assert!(error.to_string().contains("volume small"), "{error}");
    let sizes = |connection: &mut Connection| -> Vec<(String, u64)> {
        let mut all: Vec<_> =
            connection.vsas().unwrap().into_iter().map(|area| (area.path, area.size)).collect();
        all.sort();
        all
    };
    let before = sizes(&mut connection);
    assert_eq!(before.len(), made + 1);
    let error = refused(connection.resize_vsa("/small/kept", 12 * MIB));
    assert_eq!(error.kind, ErrorKind::Full, "{error}");
    assert_eq!(sizes(&mut connection), before, "what did not fit changed nothing");

    // Another file takes the rest, to the last block.
    let hog = hog(&mount);
    for size in [4096, MIB] {
        for error in [
            refused(connection.create_vsa("/small/more", size, None)),
            refused(connection.resize_vsa("/small/kept", 4 * MIB + size)),
        ] {
            let said = error.to_string();
            let names_it = error.kind == ErrorKind::Full && said.contains("volume small");
            assert!(names_it || said.contains("No space left"), "{said}");
        }
    }
    assert_eq!(sizes(&mut connection), before, "what was refused has changed nothing");
    assert!(!place.join("more.vsa").exists() && !place.join("more.vsa.partial").exists());
    // What is held needs no new block.
    pattern(&file, MIB, 3);
    assert!(holds(&file, 0, 1) && holds(&file, MIB, 3) && holds(&file, 4 * MIB - 4096, 2));

    // Deleting needs no room, and frees some.
    connection.delete_vsa("/small/fill0").unwrap();
    connection.create_vsa("/small/again", 2 * MIB, None).unwrap();
    std::fs::remove_file(hog).unwrap();
    connection.delete_vsa("/small/fill1").unwrap();
    assert_eq!(connection.resize_vsa("/small/kept", 6 * MIB).unwrap().size, 6 * MIB);
    assert!(
        holds(&file, 0, 1)
            && holds(&file, MIB, 3)
            && holds(&file, 4 * MIB - 4096, 2)
            && holds(&file, 5 * MIB, 0)
    );
    let before = sizes(&mut connection);
    drop((connection, file));
    daemon.crash();
    let _daemon = scene.start();
    assert_eq!(sizes(&mut scene.connect()), before, "the next daemon sees the same");
}

#[test]
#[ignore = "the child of a test below"]
fn state_child() {
    let Some(mount) = std::env::var_os(MOUNT).map(PathBuf::from) else { return };
    let scene = Scene::own("full-state");
    assert!(scene.root.starts_with(&mount), "{:?}", scene.root);
    scene.configure("");
    let daemon = scene.start();
    let mut connection = scene.connect();
    let names: Vec<String> = (0..12).map(|n| format!("area{n}")).collect();
    for name in &names {
        connection.create_vsa(name, 64 << 10, None).unwrap();
    }
    let path = hog(&mount);
    let (mut held, mut refusals) = (Vec::new(), Vec::new());
    for name in &names {
        match connection.acquire_vsa(name) {
            Ok((grant, file)) => {
                pattern(&file, 0, 9);
                held.push((name.clone(), grant, file));
            }
            other => refusals.push(refused(other).to_string()),
        }
    }
    assert!(!refusals.is_empty(), "the state never needed a block");
    for refusal in &refusals {
        assert!(refusal.contains("state") && refusal.contains("disk is full"), "{refusal}");
    }
    eprintln!("{} granted, {} refused: {}", held.len(), refusals.len(), refusals[0]);
    assert_eq!(connection.vsas().unwrap().len(), names.len(), "listing still works");
    std::fs::remove_file(path).unwrap();

    // The same daemon continues.
    for name in &names {
        if !held.iter().any(|(other, ..)| other == name) {
            let (grant, file) = connection.acquire_vsa(name).unwrap();
            held.push((name.clone(), grant, file));
        }
    }
    let mut numbers: Vec<u64> = held.iter().map(|(_, grant, _)| grant.grant).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), names.len(), "a number was given twice");
    daemon.crash();
    let _daemon = scene.start();
    let mut again = scene.connect();
    let grants = held
        .iter()
        .map(|(_, grant, _)| HeldGrant { grant: grant.grant, generation: grant.generation })
        .collect();
    let adopted = again.adopt(grants).unwrap();
    assert!(adopted.iter().all(|grant| grant.held), "what was granted is forgotten: {adopted:?}");
    drop(connection);
}

#[test]
#[ignore = "the child of a test below"]
fn revoke_child() {
    let Some(mount) = std::env::var_os(MOUNT).map(PathBuf::from) else { return };
    let scene = Scene::own("full-revoke");
    assert!(scene.root.starts_with(&mount), "{:?}", scene.root);
    scene.configure("");
    let daemon = scene.start();
    let mut connection = scene.connect();
    let names: Vec<String> = (0..12).map(|n| format!("area{n}")).collect();
    for name in &names {
        connection.create_vsa(name, 64 << 10, None).unwrap();
    }
    let (_, file) = connection.acquire_vsa("area0").unwrap();
    let path = hog(&mount);
    let mut said = Vec::new();
    for name in &names {
        said.extend(connection.revoke(Target::Name(name.clone())).unwrap());
    }
    eprintln!("{said:#?}");
    assert!(rustix::io::pwrite(&file, &[1; 4096], 0).is_err(), "{said:?}");
    assert!(
        said.iter().any(|line| line.contains("not recorded yet")),
        "the state never needed a block: {said:?}"
    );
    let check = |connection: &mut Connection| {
        for name in &names {
            let error = refused(connection.acquire_vsa(name));
            assert_eq!(error.kind, ErrorKind::Revoked, "{error}");
        }
    };
    check(&mut connection);
    std::fs::remove_file(path).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3));
    daemon.crash();
    let _daemon = scene.start();
    let mut again = scene.connect();
    check(&mut again);
    again.restore("area0").unwrap();
    drop(file);
    again.acquire_vsa("area0").unwrap();
    drop(connection);
}

#[test]
fn a_really_full_file_system_refuses_and_loses_nothing() {
    on_a_small_file_system(
        "a_really_full_file_system_refuses_and_loses_nothing",
        "areas_child",
        24 * MIB,
        false,
    );
}

#[test]
fn a_daemon_whose_state_has_no_room_refuses_and_continues() {
    on_a_small_file_system(
        "a_daemon_whose_state_has_no_room_refuses_and_continues",
        "state_child",
        16 * MIB,
        true,
    );
}

#[test]
fn a_revocation_on_a_full_disk_takes_effect_and_is_recorded_later() {
    on_a_small_file_system(
        "a_revocation_on_a_full_disk_takes_effect_and_is_recorded_later",
        "revoke_child",
        16 * MIB,
        true,
    );
}
