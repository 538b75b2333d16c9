//! The content of files.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{CWD, FallocateFlags, SeekFrom as At, Timespec, Timestamps};
use rustix::io::Errno;
use sietch_fuse::Options;

use crate::mounted::{Mounted, eventually, options};
use crate::shared_page::SharedPage;

/// Bytes that differ from place to place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 4096 * 31 + at) as u8).collect()
}

#[test]
fn records_that_several_threads_append_are_all_there_and_whole() {
    const RECORD: usize = 1000;
    let Some(mounted) = Mounted::new("appends") else { return };
    let path = mounted.path("log");
    File::create(&path).expect("created");
    std::thread::scope(|scope| {
        for writer in 1..=4_u8 {
            let mut file = File::options().append(true).open(&path).expect("open");
            scope.spawn(move || {
                for _ in 0..100 {
                    file.write_all(&[writer; RECORD]).expect("appended");
                }
            });
        }
    });
    let bytes = fs::read(&path).expect("read");
    assert_eq!(bytes.len(), 400 * RECORD);
    let mut counts = [0; 5];
    for record in bytes.chunks(RECORD) {
        assert!(record.iter().all(|byte| *byte == record[0]), "a torn record");
        counts[usize::from(record[0])] += 1;
    }
    assert_eq!(counts, [0, 100, 100, 100, 100]);
}

#[test]
fn writes_larger_than_a_request_and_reads_at_odd_places_agree() {
    let Some(mounted) = Mounted::new("large") else { return };
    let path = mounted.path("file");
    let bytes = pattern((5 << 20) + 123);
    fs::write(&path, &bytes).expect("written");
    let file = File::options().read(true).write(true).open(&path).expect("open");
    for (offset, length) in [(0, bytes.len()), (4095, 8194), ((1 << 20) - 1, 2 << 20), (5 << 20, 123)] {
        let mut read = vec![0; length];
        file.read_exact_at(&mut read, offset as u64).expect("read");
        assert!(read == bytes[offset..offset + length], "{length} bytes at {offset}");
    }
    assert_eq!(file.read_at(&mut [0; 10], bytes.len() as u64).expect("read"), 0, "the end");
    file.set_len(100).expect("shorter");
    file.set_len(200).expect("longer");
    assert_eq!(fs::read(&path).expect("read"), [&bytes[..100], &[0; 100]].concat());
    // With O_TRUNC.
    assert_eq!(File::create(&path).expect("open").metadata().expect("attributes").len(), 0);
    assert_eq!(file.metadata().expect("attributes").len(), 0);
}

#[test]
fn what_is_written_through_a_shared_mapping_is_in_the_file_and_the_reverse() {
    let Some(mounted) = Mounted::new("mapping") else { return };
    let path = mounted.path("file");
    fs::write(&path, [1; 6000]).expect("written");
    let file = File::options().read(true).write(true).open(&path).expect("open");
    let (page, other) = (SharedPage::of(&file), SharedPage::of(&file));
    page.write(10, 2);
    assert_eq!(other.read(10), 2);
    page.flush();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 10).expect("read");
    assert_eq!(byte, [2]);
    file.write_all_at(&[3], 11).expect("written");
    assert_eq!(page.read(11), 3);
    page.write(12, 4);
    // The file is unlinked, and its descriptor closed, before the page is written back.
    let second = File::open(&path).expect("open");
    fs::remove_file(&path).expect("removed");
    drop((file, page, other));
    let mut bytes = Vec::new();
    (&second).read_to_end(&mut bytes).expect("read");
    assert_eq!(bytes.len(), 6000);
    assert_eq!(bytes[9..14], [1, 2, 3, 4, 1]);
}

/// The kernel writes pages back in its own name. They count at the file's owner, who may have a
/// limit: the program that waits for them gets the error, and what exceeds it is not written.
#[test]
fn pages_of_a_mapping_are_written_back_for_the_owner_of_the_file() {
    const OWNER: u32 = 54_321;
    let Some(mounted) = Mounted::new("written-back") else { return };
    let path = mounted.path("file");
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("created");
    file.set_len(4096).expect("a size");
    std::os::unix::fs::chown(&path, Some(OWNER), None).expect("root may");
    let page = SharedPage::of(&file);
    page.write(0, 1);
    page.flush();
    mounted.model.inside().at_limit = Some(OWNER);
    page.write(1, 2);
    assert_eq!(page.try_flush(), Err(Errno::DQUOT));
    drop(page);
    // Root itself has no limit.
    file.write_all_at(&[3], 2).expect("written");
    mounted.model.inside().at_limit = None;
    let read = mounted.model.content("file", 3);
    assert_eq!((read[0], read[2]), (1, 3));
}

#[test]
fn holes_are_made_found_and_filled() {
    const MIB: u64 = 1 << 20;
    let Some(mounted) = Mounted::new("holes") else { return };
    let mut file =
        File::options().read(true).write(true).create_new(true).open(mounted.path("file")).expect("open");
    file.write_all_at(&[1; 8192], 4 * MIB).expect("written");
    let seek = |at| rustix::fs::seek(&file, at);
    assert_eq!(seek(At::Data(0)), Ok(4 * MIB));
    assert_eq!(seek(At::Hole(4 * MIB)), Ok(4 * MIB + 8192));
    assert_eq!(seek(At::Data(4 * MIB + 8192)), Err(Errno::NXIO));
    let allocate = |flags, offset, length| rustix::fs::fallocate(&file, flags, offset, length);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    allocate(punch, 4 * MIB + 100, 4096).expect("punched");
    let mut bytes = [9; 8192];
    file.read_exact_at(&mut bytes, 4 * MIB).expect("read");
    assert!(bytes[..100].iter().all(|byte| *byte == 1));
    assert!(bytes[100..4196].iter().all(|byte| *byte == 0));
    assert!(bytes[4196..].iter().all(|byte| *byte == 1));
    allocate(FallocateFlags::KEEP_SIZE, 0, 16 * MIB).expect("reserved");
    assert_eq!(file.metadata().expect("attributes").len(), 4 * MIB + 8192);
    allocate(FallocateFlags::empty(), 0, 16 * MIB).expect("reserved");
    assert_eq!(file.metadata().expect("attributes").len(), 16 * MIB);
    allocate(FallocateFlags::ZERO_RANGE, 4 * MIB, 50).expect("cleared");
    file.seek(SeekFrom::Start(4 * MIB)).expect("a place");
    file.read_exact(&mut bytes[..100]).expect("read");
    assert!(bytes[..50].iter().all(|byte| *byte == 0) && bytes[50..100].iter().all(|byte| *byte == 1));
    let collapse = rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapse, Err(Errno::OPNOTSUPP));
}

#[test]
fn a_range_is_copied_within_the_file_system() {
    let Some(mounted) = Mounted::new("copy") else { return };
    let bytes = pattern((3 << 20) + 77);
    fs::write(mounted.path("from"), &bytes).expect("written");
    let from = File::open(mounted.path("from")).expect("open");
    let to = File::create(mounted.path("to")).expect("open");
    let (mut offset, mut at) = (50, 7);
    loop {
        let copied = rustix::fs::copy_file_range(&from, Some(&mut offset), &to, Some(&mut at), 64 << 20);
        if copied.expect("copied") == 0 {
            break;
        }
    }
    assert_eq!((offset, at), (bytes.len() as u64, bytes.len() as u64 - 43));
    let copied = fs::read(mounted.path("to")).expect("read");
    assert!(copied == [&[0; 7], &bytes[50..]].concat());
}

#[test]
fn times_are_kept_to_the_nanosecond_also_before_1970() {
    let Some(mounted) = Mounted::new("times") else { return };
    let path = mounted.path("file");
    File::create(&path).expect("created");
    for (seconds, nanoseconds) in [
        (1_700_000_000, 123_456_789),
        (-2, 500_000_001),
        (0, 0),
        (-1, 0),
        (1 << 33, 1),
        (i64::MIN, 0),
        (i64::MIN + 1, 999_999_999),
        (i64::MAX, 0),
    ] {
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, rustix::fs::AtFlags::empty()).expect("set");
        let shown = fs::metadata(&path).expect("attributes");
        assert_eq!((shown.mtime(), shown.mtime_nsec()), (seconds, nanoseconds));
        assert_eq!((shown.atime(), shown.atime_nsec()), (seconds, nanoseconds));
    }
    let before = std::time::SystemTime::now();
    File::options().append(true).open(&path).expect("open").write_all(b"x").expect("written");
    let modified = fs::metadata(&path).expect("attributes").modified().expect("a time");
    // The clock of the test's own process, at both ends.
    assert!(modified >= before && modified <= std::time::SystemTime::now(), "{modified:?}");
    assert!(modified > UNIX_EPOCH + Duration::from_secs(1));
}

#[test]
fn a_sync_and_a_synchronous_write_reach_the_file_system_and_other_writes_do_not() {
    let Some(mounted) = Mounted::new("sync") else { return };
    let syncs = || std::mem::take(&mut mounted.model.inside().syncs);
    let mut file = File::create(mounted.path("file")).expect("created");
    file.write_all(b"data").expect("written");
    assert_eq!(syncs(), 0);
    file.sync_data().expect("synced");
    assert!(syncs() > 0, "fdatasync");
    File::open(&mounted.directory).expect("open").sync_all().expect("synced");
    assert!(syncs() > 0, "fsync of a directory");
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::DSYNC;
    let synchronous = rustix::fs::open(mounted.path("file"), flags, rustix::fs::Mode::empty()).expect("open");
    rustix::io::write(&synchronous, b"more").expect("written");
    assert!(syncs() > 0, "O_DSYNC");
}

/// The kernel does not tell of `sync(2)`: what was done is made durable after a while anyway.
#[test]
fn what_was_done_is_made_durable_without_being_asked_for() {
    let options = Options { flush: Some(Duration::from_millis(10)), ..options() };
    let Some(mounted) = Mounted::with("flush", &options) else { return };
    fs::write(mounted.path("file"), b"data").expect("written");
    mounted.model.inside().syncs = 0;
    assert!(eventually(|| mounted.model.inside().syncs > 1));
    mounted.unmount().expect("the thread ends with the mount");
}

#[test]
fn the_file_system_says_how_much_room_it_has() {
    let Some(mounted) = Mounted::new("room") else { return };
    let free = || rustix::fs::statvfs(&mounted.directory).expect("a report");
    let before = free();
    assert_eq!((before.f_frsize, before.f_namemax), (4096, 255));
    fs::write(mounted.path("file"), [1; 40960]).expect("written");
    assert_eq!(before.f_bfree - free().f_bfree, 10);
    assert_eq!(fs::metadata(mounted.path("file")).expect("attributes").blocks(), 80);
}
