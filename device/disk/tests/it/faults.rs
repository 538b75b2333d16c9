//! What a queue says when file, file system or thread are not what they should be.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use crate::support::{CAPACITY, Folder, attempt, execute, filled};
use sietch_disk::uring::{Mode, UringOptions};
use sietch_disk::{
    AreaQueue, BlockingQueue, Buffer, DiskQueue, Feature, OpenError, Operation, UringQueue, open_area,
};

/// io_uring in a mode; `None` where the machine refuses it.
fn uring(fd: OwnedFd, mode: Mode) -> Option<UringQueue> {
    match UringQueue::open(fd, CAPACITY as u64, UringOptions { depth: 8, mode }) {
        Ok(queue) => Some(queue),
        Err(OpenError::Unavailable { cause }) => {
            eprintln!("SKIPPED a part: needs io_uring: {cause}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// The file queues over the same descriptor, one after another.
fn each(fd: &OwnedFd, test: impl Fn(&mut dyn DiskQueue)) {
    let reopen = || fd.try_clone().expect("a descriptor");
    test(&mut BlockingQueue::open(reopen(), CAPACITY as u64).expect("a regular file"));
    if let Some(mut queue) = uring(reopen(), Mode::Cooperative) {
        test(&mut queue);
    }
}

fn write(offset: u64, durable: bool) -> Operation {
    Operation::Write { offset, length: 4096, buffer: filled(4096, 1), durable }
}

fn read(offset: u64) -> Operation {
    Operation::Read { offset, length: 4096, buffer: Buffer::new(4096) }
}

fn find<'a>(features: &'a [Feature], what: &str) -> &'a Feature {
    features.iter().find(|finding| finding.what == what).expect(what)
}

#[test]
fn reading_an_area_whose_file_was_cut_short_is_an_error_that_says_so() {
    let folder = Folder::temporary();
    let fd = folder.area();
    let file = std::fs::OpenOptions::new().write(true).open(folder.path()).expect("ours");
    each(&fd, |queue| {
        execute(queue, write(8192, true));
        file.set_len(8192).expect("shorter");
        let (result, buffer) = attempt(queue, read(8192));
        let error = result.expect_err("nothing is there").to_string();
        assert!(error.contains("0 of 4096 bytes") && error.contains("cut short"), "{error}");
        assert!(buffer.is_some());
        let (result, _) =
            attempt(queue, Operation::Read { offset: 4096, length: 8192, buffer: Buffer::new(8192) });
        assert!(result.expect_err("half is there").to_string().contains("4096 of 8192 bytes"));
        // What is left works.
        execute(queue, write(4096, true));
        execute(queue, read(4096));
        file.set_len(CAPACITY as u64).expect("room");
    });
}

#[test]
fn a_descriptor_that_may_only_read_fails_each_change_and_still_reads() {
    let folder = Folder::temporary();
    drop(folder.area());
    let fd: OwnedFd = std::fs::File::open(folder.path()).expect("readable").into();
    each(&fd, |queue| {
        for operation in [write(0, true), write(0, false), Operation::Discard { offset: 0, length: 4096 }] {
            let has_buffer = matches!(operation, Operation::Write { .. });
            let (result, buffer) = attempt(queue, operation);
            assert_eq!(result.expect_err("read only").raw_os_error(), Some(libc::EBADF));
            assert_eq!(buffer.is_some(), has_buffer, "the buffer comes back with the error");
        }
        execute(queue, read(0));
    });
}

/// A mounted file system that is detached when dropped, so that its folder can be removed.
struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        // A ring that was just dropped may hold a file of it for another moment.
        drop(Command::new("umount").args(["--lazy", &self.0]).status());
    }
}

/// Mounts a file system of `kind` in a mount namespace of a thread, which it goes with, and lets
/// `test` have a sparse area on it.
fn on_file_system(kind: &'static str, options: &'static str, test: impl Fn(&Path, OwnedFd) + Send + 'static) {
    let run = move || {
        let folder = Folder::temporary();
        // SAFETY: a new mount namespace and file system context for this thread, which ends with
        // this closure.
        let unshared = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0;
        let mount = |arguments: &[&str]| {
            Command::new("mount").args(arguments).status().is_ok_and(|status| status.success())
        };
        let path = folder.0.display().to_string();
        let is_there = unshared
            && mount(&["--make-rprivate", "/"])
            && mount(&["-t", kind, "-o", options, "area", &path]);
        if !is_there {
            return eprintln!("SKIPPED a test on {kind}: needs root, to mount it");
        }
        let _mounted = Mounted(path);
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(folder.path());
        let file = file.expect("a new file");
        file.set_len(CAPACITY as u64).expect("a sparse file");
        test(&folder.path(), file.into());
    };
    std::thread::spawn(run).join().expect("the thread failed");
}

#[test]
fn a_full_file_system_fails_the_write_that_needs_room_and_a_discard_makes_some() {
    on_file_system("tmpfs", "size=16k", |_, fd| {
        let queue = &mut open_area(fd, CAPACITY as u64).expect("a regular file");
        let full = (0..16).find(|block| attempt(queue, write(block * 4096, true)).0.is_err());
        let full = full.expect("16 KiB do not hold 64") * 4096;
        let (result, buffer) = attempt(queue, write(full, false));
        assert_eq!(result.expect_err("full").raw_os_error(), Some(libc::ENOSPC));
        assert!(buffer.is_some());
        execute(queue, Operation::Discard { offset: 0, length: 4096 });
        execute(queue, write(full, true));
        let (result, _) = attempt(queue, write(0, true));
        assert_eq!(
            result.expect_err("what was discarded needs room again").raw_os_error(),
            Some(libc::ENOSPC)
        );
        let zeros = execute(queue, read(0)).expect("the buffer");
        assert!(zeros.iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_file_system_without_holes_refuses_a_discard_and_keeps_the_bytes() {
    on_file_system("ramfs", "mode=700", |_, fd| {
        each(&fd, |queue| {
            execute(queue, write(0, true));
            let (result, _) = attempt(queue, Operation::Discard { offset: 0, length: 4096 });
            assert_eq!(result.expect_err("ramfs has no holes").kind(), std::io::ErrorKind::Unsupported);
            assert!(execute(queue, read(0)).expect("the buffer").iter().all(|byte| *byte == 1));
        });
        let queue = open_area(fd, CAPACITY as u64).expect("a regular file");
        assert!(!find(&queue.features(), "discard").used && !find(&queue.features(), "O_DIRECT").used);
    });
}

#[test]
fn a_device_that_cannot_zero_by_itself_is_zeroed_by_the_kernel() {
    // A loop device can what its file can, and that cannot punch holes.
    on_file_system("ramfs", "mode=700", |path, _| {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(path).output().expect("losetup");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        let fd: OwnedFd =
            std::fs::File::options().read(true).write(true).open(&device).expect("just made").into();
        let zeroed = std::panic::catch_unwind(|| {
            each(&fd, |queue| {
                execute(queue, write(0, true));
                execute(queue, write(4096, true));
                execute(queue, Operation::Discard { offset: 0, length: 4096 });
                assert!(execute(queue, read(0)).expect("the buffer").iter().all(|byte| *byte == 0));
                assert!(execute(queue, read(4096)).expect("the buffer").iter().all(|byte| *byte == 1));
            });
            let queue = open_area(fd.try_clone().expect("a descriptor"), CAPACITY as u64).expect("a device");
            find(&queue.features(), "discard").to_string()
        });
        drop(fd);
        drop(Command::new("losetup").arg("--detach").arg(&device).status());
        let said = zeroed.expect("each assertion holds");
        assert!(said.contains("the kernel writes zeros"), "{said}");
    });
}

#[test]
fn a_queue_in_deferred_mode_belongs_to_the_thread_that_rings_it_first() {
    let folder = Folder::temporary();
    let Some(mut queue) = uring(folder.area(), Mode::Deferred) else { return };
    if queue.mode() != Mode::Deferred {
        return eprintln!("SKIPPED a_queue_in_deferred_mode: needs Linux 6.1");
    }
    // Made here and notified there.
    let mut queue = std::thread::spawn(move || {
        execute(&mut queue, write(0, true));
        queue
    })
    .join()
    .expect("the owner's thread");
    queue.submit(1, write(0, true)).expect("room");
    let error = queue.notify().expect_err("another thread").to_string();
    assert!(error.contains("belongs to the thread"), "{error}");
}

#[test]
fn a_queue_in_the_default_mode_moves_between_threads() {
    let folder = Folder::temporary();
    let Some(mut queue) = uring(folder.area(), Mode::Cooperative) else { return };
    execute(&mut queue, write(0, true));
    let moved = std::thread::spawn(move || execute(&mut queue, read(0)).expect("the buffer")[0]);
    assert_eq!(moved.join().expect("the other thread"), 1);
}

#[test]
fn used_and_unused_features_are_reported_with_their_reason() {
    let folder = Folder::temporary();
    let queue = open_area(folder.area(), CAPACITY as u64).expect("a regular file");
    let features = queue.features();
    assert!(features.iter().all(|finding| finding.used || !finding.why.is_empty()), "{features:?}");
    let said: Vec<String> = features.iter().map(Feature::to_string).collect();
    println!("{}: {}", queue.description(), said.join("; "));
    let AreaQueue::Uring(_) = queue else {
        assert!(!find(&features, "io_uring").used);
        return;
    };
    for what in ["DEFER_TASKRUN", "SQPOLL", "IOPOLL", "NVMe passthrough", "registered buffers"] {
        let finding = find(&features, what);
        assert!(!finding.used && finding.to_string().starts_with(&format!("no {what} (")), "{finding}");
    }
    assert!(find(&features, "registered file").used);
    drop(queue);
    // A thread with a priority of its own keeps it.
    let fd = folder.reopen();
    let features = std::thread::spawn(move || {
        const IDLE: libc::c_int = 3 << 13;
        // SAFETY: no pointer is passed; the priority is this thread's, which ends with this
        // closure.
        let set = unsafe { libc::syscall(libc::SYS_ioprio_set, 1, 0, IDLE) };
        assert_eq!(set, 0);
        let mut queue = open_area(fd, CAPACITY as u64).expect("a regular file");
        execute(&mut queue, write(0, true));
        queue.features()
    })
    .join()
    .expect("the other thread");
    assert!(!find(&features, "a priority for each request").used);
    assert!(folder.path().exists() && folder.reopen().as_fd().try_clone_to_owned().is_ok());
}
