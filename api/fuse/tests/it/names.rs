//! Names, links and listings.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use sietch_fs::FileSystem as _;

use crate::mounted::{Mounted, eventually, options};

#[test]
fn a_file_that_is_replaced_or_unlinked_stays_readable_and_writable_while_it_is_open() {
    let Some(mounted) = Mounted::new("replaced") else { return };
    let (old, new) = (mounted.path("old"), mounted.path("new"));
    fs::write(&old, b"old").expect("written");
    fs::write(&new, b"new").expect("written");
    let mut open = File::options().read(true).append(true).open(&old).expect("open");
    fs::rename(&new, &old).expect("renamed");
    assert_eq!(fs::read(&old).expect("read"), b"new");
    assert_eq!(open.metadata().expect("attributes").nlink(), 0);
    open.write_all(b" one").expect("written");
    let mut text = String::new();
    open.rewind().expect("a place");
    open.read_to_string(&mut text).expect("read");
    assert_eq!(text, "old one");
    let unlinked = File::open(&old).expect("open");
    fs::remove_file(&old).expect("removed");
    assert_eq!(std::io::read_to_string(&unlinked).expect("read"), "new");
    let inodes = |mounted: &Mounted| mounted.model.inside().model.usage().inodes;
    assert_eq!(inodes(&mounted), 3, "the root and two files without names");
    drop((open, unlinked));
    let model = mounted.unmount().expect("it ended well");
    assert_eq!(model.inside().model.usage().inodes, 1, "the files are gone");
    assert!(model.inside().handles.is_empty());
    assert!(model.inside().retained.values().all(|count| *count == 0));
}

#[test]
fn a_listing_of_many_names_has_each_that_stays_once_while_others_are_removed() {
    let keep = Some(std::time::Duration::from_secs(1));
    for keep in [None, keep] {
        // With time, the kernel asks for listings with attributes.
        let options = sietch_fuse::Options { keep: keep.unwrap_or_default(), ..options() };
        let Some(mounted) = Mounted::with("listing", &options) else { return };
        for number in 0..10_000 {
            File::create(mounted.path(format!("name-{number}"))).expect("created");
        }
        let mut seen = BTreeSet::new();
        let mut listing = fs::read_dir(&mounted.directory).expect("a listing");
        for entry in listing.by_ref().take(100) {
            assert!(seen.insert(entry.expect("an entry").file_name()));
        }
        for number in (0..10_000).step_by(2) {
            fs::remove_file(mounted.path(format!("name-{number}"))).expect("removed");
        }
        for entry in listing {
            assert!(seen.insert(entry.expect("an entry").file_name()), "an entry twice");
        }
        for number in (1..10_000).step_by(2) {
            assert!(seen.contains(&OsString::from(format!("name-{number}"))), "name-{number} is missing");
        }
        assert_eq!(fs::read_dir(&mounted.directory).expect("a listing").count(), 5000);
        for number in (1..10_000).step_by(2) {
            fs::remove_file(mounted.path(format!("name-{number}"))).expect("removed");
        }
        // The kernel forgets an inode without a name; what it does not know is not retained.
        let only_the_root = || mounted.model.inside().model.usage().inodes == 1;
        assert!(eventually(only_the_root), "removed files are retained");
    }
}

#[test]
fn a_listing_has_the_two_directories_that_each_has_and_goes_on_at_any_place() {
    let Some(mounted) = Mounted::new("places") else { return };
    let inner = mounted.path("inner");
    fs::create_dir(&inner).expect("created");
    for number in 0..50 {
        File::create(inner.join(format!("{number}"))).expect("created");
    }
    let open = rustix::fs::open(&inner, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("open");
    let mut listing = rustix::fs::Dir::new(open).expect("a listing");
    let mut entries = Vec::new();
    while let Some(entry) = listing.read() {
        let entry = entry.expect("an entry");
        entries.push((entry.file_name().to_owned(), entry.ino(), entry.offset()));
    }
    assert_eq!(entries.len(), 52);
    let number = |path: &std::path::Path| fs::metadata(path).expect("attributes").ino();
    assert_eq!((entries[0].0.to_bytes(), entries[0].1), (b".".as_slice(), number(&inner)));
    assert_eq!((entries[1].0.to_bytes(), entries[1].1), (b"..".as_slice(), number(&mounted.directory)));
    for at in [0, 1, 2, 17, 50] {
        listing.seek(entries[at].2).expect("a place");
        let next = listing.read().expect("one more").expect("an entry");
        assert_eq!(next.file_name(), entries[at + 1].0.as_c_str(), "behind entry {at}");
    }
}

#[test]
fn names_of_any_bytes_and_of_the_longest_length_work_and_longer_ones_are_refused() {
    let Some(mounted) = Mounted::new("bytes") else { return };
    let bytes: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').chain([b'x']).collect();
    assert_eq!(bytes.len(), 255);
    let name = OsString::from_vec(bytes);
    fs::write(mounted.path(&name), b"data").expect("written");
    let listed: Vec<_> = fs::read_dir(&mounted.directory).expect("a listing").collect();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].as_ref().expect("an entry").file_name(), name);
    assert_eq!(fs::read(mounted.path(&name)).expect("read"), b"data");
    for length in [256, 1024, 1025, 4000] {
        let error = File::create(mounted.path("x".repeat(length))).expect_err("too long");
        assert_eq!(error.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()), "{length}");
    }
    let target = OsString::from_vec(vec![0xff; 4095]);
    symlink(&target, mounted.path("link")).expect("a link");
    assert_eq!(fs::read_link(mounted.path("link")).expect("its target"), target);
}

#[test]
fn every_kind_of_inode_and_link_is_made_counted_and_removed() {
    let Some(mounted) = Mounted::new("kinds") else { return };
    let make = |name: &str, kind, device| {
        rustix::fs::mknodat(CWD, mounted.path(name), kind, Mode::from(0o640), device).expect("made");
        fs::symlink_metadata(mounted.path(name)).expect("attributes")
    };
    assert!(make("pipe", rustix::fs::FileType::Fifo, 0).file_type().is_fifo());
    let device = rustix::fs::makedev(0xabc, 0xdef12);
    let shown = make("device", rustix::fs::FileType::CharacterDevice, device);
    assert!(shown.file_type().is_char_device());
    assert_eq!(shown.rdev(), device);
    assert!(std::os::unix::net::UnixListener::bind(mounted.path("socket")).is_ok());
    assert!(std::os::unix::net::UnixStream::connect(mounted.path("socket")).is_err(), "closed already");
    fs::create_dir_all(mounted.path("a/b")).expect("directories");
    assert_eq!(fs::metadata(mounted.path("a")).expect("attributes").nlink(), 3);
    fs::write(mounted.path("a/file"), b"1").expect("written");
    fs::hard_link(mounted.path("a/file"), mounted.path("a/b/second")).expect("linked");
    assert_eq!(fs::metadata(mounted.path("a/b/second")).expect("attributes").nlink(), 2);
    let error = fs::remove_dir(mounted.path("a")).expect_err("not empty");
    assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty);
    fs::remove_dir_all(mounted.path("a")).expect("removed");
    assert_eq!(fs::read_dir(&mounted.directory).expect("a listing").count(), 3);
}

#[test]
fn renames_replace_refuse_and_exchange() {
    let Some(mounted) = Mounted::new("renames") else { return };
    let (one, two) = (mounted.path("one"), mounted.path("two"));
    fs::write(&one, b"1").expect("written");
    fs::create_dir(&two).expect("created");
    let rename = |flags| rustix::fs::renameat_with(CWD, &one, CWD, &two, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    assert_eq!(rename(RenameFlags::empty()), Err(Errno::ISDIR));
    let whiteout = rustix::fs::renameat_with(CWD, &one, CWD, mounted.path("three"), RenameFlags::WHITEOUT);
    assert_eq!(whiteout, Err(Errno::INVAL));
    assert_eq!(rename(RenameFlags::EXCHANGE), Ok(()));
    assert!(one.is_dir());
    assert_eq!(fs::read(&two).expect("read"), b"1");
    let into_itself = fs::rename(&one, one.join("below")).expect_err("a cycle");
    assert_eq!(into_itself.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
}

#[test]
fn extended_attributes_are_set_listed_sized_and_removed() {
    let Some(mounted) = Mounted::new("xattrs") else { return };
    let path = mounted.path("file");
    File::create(&path).expect("created");
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    let get = |name: &str, room: usize| {
        let mut value = vec![0; room];
        rustix::fs::getxattr(&path, name, value.as_mut_slice()).map(|length| {
            value.truncate(length);
            value
        })
    };
    set("user.a", b"value", XattrFlags::CREATE).expect("set");
    set("trusted.b", &[7; 65536], XattrFlags::empty()).expect("set");
    assert_eq!(set("user.a", b"", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.c", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(set("other.c", b"", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(get("user.a", 100).expect("its value"), b"value");
    assert_eq!(get("user.a", 4), Err(Errno::RANGE));
    assert_eq!(rustix::fs::getxattr_query(&path, "trusted.b"), Ok(65536));
    assert_eq!(get("trusted.b", 65536).expect("its value"), vec![7; 65536]);
    let mut names = vec![0; 100];
    let length = rustix::fs::listxattr(&path, names.as_mut_slice()).expect("a list");
    let names: BTreeSet<&[u8]> = names[..length].split_inclusive(|byte| *byte == 0).collect();
    assert_eq!(names, BTreeSet::from([b"user.a\0".as_slice(), b"trusted.b\0".as_slice()]));
    rustix::fs::removexattr(&path, "user.a").expect("removed");
    assert_eq!(get("user.a", 100), Err(Errno::NODATA));
}

#[test]
fn what_is_not_supported_says_so() {
    let Some(mounted) = Mounted::new("unsupported") else { return };
    let flags = OFlags::RDWR | OFlags::TMPFILE;
    let error = rustix::fs::open(&mounted.directory, flags, Mode::from(0o600)).expect_err("no O_TMPFILE");
    assert_eq!(error, Errno::OPNOTSUPP);
}

#[test]
fn an_inode_is_retained_while_the_kernel_knows_it_and_no_longer() {
    for keep in [0, 1000] {
        let keep = std::time::Duration::from_millis(keep);
        let Some(mounted) = Mounted::with("retained", &sietch_fuse::Options { keep, ..options() }) else {
            return;
        };
        fs::create_dir(mounted.path("directory")).expect("created");
        let file = File::create(mounted.path("directory/file")).expect("created");
        fs::hard_link(mounted.path("directory/file"), mounted.path("second")).expect("linked");
        symlink("second", mounted.path("link")).expect("linked");
        rustix::fs::mknodat(CWD, mounted.path("pipe"), rustix::fs::FileType::Fifo, Mode::from(0o600), 0)
            .expect("made");
        assert_eq!(fs::read_dir(&mounted.directory).expect("a listing").count(), 4);
        assert!(fs::metadata(mounted.path("link")).expect("attributes").is_file());
        let held = || mounted.model.inside().retained.values().filter(|count| **count > 0).count();
        assert_eq!(held(), 4);
        // The kernel drops the names that it has cached, and so the inodes that are not open.
        let forget = || {
            let remount = ["-i", "-o", "remount"];
            Command::new("mount")
                .args(remount)
                .arg(&mounted.directory)
                .status()
                .expect("mount runs")
                .success()
        };
        assert!(forget());
        assert!(eventually(|| held() <= 2), "only the open file, and perhaps its directory, are known");
        assert!(held() >= 1);
        drop(file);
        assert!(forget());
        assert!(eventually(|| held() == 0), "nothing is known");
    }
}
