//! Ends: unmounting, panics, and what a killed process leaves.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use sietch_fs_oracle::Model;
use sietch_fuse::{Mount, MountError};

use crate::beside::PANICS;
use crate::mounted::{Mounted, can_mount, directory, options};

/// Where [`serve_until_killed`] mounts.
const DIRECTORY: &str = "SIETCH_FUSE_TEST_DIRECTORY";

#[test]
fn a_panic_of_the_file_system_is_an_error_for_every_caller_and_blocks_none() {
    let Some(mounted) = Mounted::new("panic") else { return };
    let file = File::create(mounted.path("file")).expect("created");
    for name in [PANICS, "file", "other"] {
        let error = fs::metadata(mounted.path(name)).expect_err("it panicked");
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{name}");
    }
    assert!(file.sync_all().is_err());
    drop(file);
    let ended = mounted.unmount();
    assert!(matches!(ended, Err(MountError::Panicked { .. })), "{:?}", ended.err());
}

#[test]
fn a_mount_in_use_is_unmounted_only_when_it_is_free() {
    let Some(mounted) = Mounted::new("busy") else { return };
    let file = File::create(mounted.path("file")).expect("created");
    let busy = Command::new("umount").arg(&mounted.directory).output().expect("umount runs");
    assert!(!busy.status.success());
    drop(file);
    mounted.unmount().expect("it ended well");
}

#[test]
fn a_directory_that_is_served_is_not_mounted_over() {
    let Some(mounted) = Mounted::new("twice") else { return };
    let second = Mount::new(Model::new(), &mounted.directory, &options());
    assert!(matches!(second.err(), Some(MountError::Taken { .. })));
    let missing = Mount::new(Model::new(), &mounted.path("missing"), &options());
    assert!(matches!(missing.err(), Some(MountError::Directory { .. })));
}

/// A process of its own, for [`the_mount_of_a_killed_process_is_cleared`].
#[test]
#[ignore = "only as the process that is killed"]
fn serve_until_killed() {
    let directory = std::env::var_os(DIRECTORY).expect("only as the process that is killed");
    let mount = Mount::new(Model::new(), Path::new(&directory), &options()).expect("it is mounted");
    println!("mounted");
    mount.run().expect("it is killed before");
}

#[test]
fn the_mount_of_a_killed_process_is_cleared() {
    if !can_mount("killed") {
        return;
    }
    let directory = directory("killed");
    let mut process = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "recovery::serve_until_killed", "--ignored", "--nocapture"])
        .env(DIRECTORY, &directory)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let output = BufReader::new(process.stdout.take().expect("its output"));
    let mounted = output.lines().map_while(Result::ok).any(|line| line.ends_with("mounted"));
    process.kill().expect("killed");
    process.wait().expect("it ended");
    assert!(mounted, "the process did not mount");
    let error = fs::read_dir(&directory).expect_err("nothing serves it");
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    let mounted = Mounted::at(directory, &options());
    fs::write(mounted.path("file"), b"data").expect("written");
    mounted.unmount().expect("it ended well");
}

#[test]
fn many_threads_use_every_kind_of_operation_together() {
    let Some(mounted) = Mounted::new("together") else { return };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let mounted = &mounted;
            scope.spawn(move || {
                for round in 0..60 {
                    let (own, common) = (mounted.path(format!("{thread}-{round}")), mounted.path("common"));
                    fs::write(&own, vec![round; 200_000]).expect("written");
                    fs::rename(&own, &common).expect("renamed");
                    // Another thread replaces it meanwhile; what is read is one whole file.
                    let bytes = fs::read(&common).expect("read");
                    assert!(bytes.len() == 200_000 && bytes.iter().all(|byte| *byte == bytes[0]));
                    fs::create_dir(&own).expect("created");
                    assert!(fs::read_dir(&mounted.directory).expect("a listing").count() >= 2);
                    fs::remove_dir(&own).expect("removed");
                }
            });
        }
    });
    let model = mounted.unmount().expect("it ended well");
    assert!(model.inside().handles.is_empty());
}

#[test]
fn a_mount_that_ends_late_does_not_unmount_the_next_one_on_its_directory() {
    let Some(first) = Mounted::new("late") else { return };
    let file = File::create(first.path("file")).expect("created");
    let model = first.model.clone();
    // The thread that closes the file waits for this, and with it the end of the first mount.
    let held = model.inside();
    drop(file);
    let serving = first.unmount_only();
    let second = Mounted::at(serving.directory.clone(), &options());
    drop(held);
    serving.thread.join().expect("serving does not panic").expect("it ended well");
    fs::write(second.path("file"), b"data").expect("written");
    assert_eq!(
        second.model.find("file"),
        sietch_fs::inode::InodeNumber(2),
        "it was written beside the mount"
    );
    second.unmount().expect("it ended well");
}
