//! What another client changes is seen at once.

use std::fs::{self, File, Permissions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};

use sietch_fs::FileSystem as _;
use sietch_fs::file_system::{AttributeChange, NewInode, OpenMode, RenameMode, WriteAt};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fuse::Options;

use crate::beside::{Beside, FLEETING, OVERTAKEN};
use crate::mounted::{Mounted, eventually, options};
use crate::shared_page::SharedPage;

/// Whether the kernel keeps its cache right where a descriptor writes beside it.
fn kernel_writes_appends_directly() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(6))
}

const ROOT: InodeNumber = InodeNumber::ROOT;

/// Another client writes.
fn write(model: &Beside, name: &str, at: WriteAt, bytes: &[u8]) {
    let inode = model.find(name);
    let mode = OpenMode { write: true, ..OpenMode::default() };
    model.client(|model, caller| {
        let handle = model.open(caller, inode, mode)?;
        model.write(caller, handle, at, bytes)?;
        model.close(handle);
        Ok(())
    });
}

#[test]
fn names_that_another_client_makes_moves_and_removes_are_seen_at_once() {
    let Some(mounted) = Mounted::new("names") else { return };
    let model = &mounted.model;
    assert!(!mounted.path("new").exists());
    let new = NewInode { kind: Kind::File, mode: 0o644, device: 0, target: &[] };
    let made = model.client(|model, caller| model.create(caller, ROOT, b"new", &new));
    assert_eq!(fs::metadata(mounted.path("new")).expect("there").ino(), made.inode.0);
    model.client(|model, caller| model.rename(caller, (ROOT, b"new"), (ROOT, b"moved"), RenameMode::Replace));
    assert!(!mounted.path("new").exists());
    assert_eq!(fs::metadata(mounted.path("moved")).expect("there").ino(), made.inode.0);
    let other = model.client(|model, caller| model.create(caller, ROOT, b"other", &new));
    model.client(|model, caller| {
        model.rename(caller, (ROOT, b"other"), (ROOT, b"moved"), RenameMode::Replace)
    });
    assert_eq!(fs::metadata(mounted.path("moved")).expect("there").ino(), other.inode.0);
    model.client(|model, caller| model.unlink(caller, ROOT, b"moved"));
    assert!(!mounted.path("moved").exists());
    assert_eq!(fs::read_dir(&mounted.directory).expect("a listing").count(), 0);
}

#[test]
fn attributes_and_sizes_that_another_client_changes_are_seen_through_an_open_file() {
    let Some(mounted) = Mounted::new("attributes") else { return };
    fs::write(mounted.path("file"), b"12345").expect("written");
    let file = File::open(mounted.path("file")).expect("open");
    assert_eq!(file.metadata().expect("attributes").len(), 5);
    let inode = mounted.model.find("file");
    let change = AttributeChange { mode: Some(0o600), size: Some(3), ..AttributeChange::default() };
    mounted.model.client(|model, caller| model.set_attributes(caller, inode, None, &change));
    let shown = file.metadata().expect("attributes");
    assert_eq!((shown.len(), shown.mode() & 0o7777), (3, 0o600));
    write(&mounted.model, "file", WriteAt::End, b"more");
    let mut text = String::new();
    (&file).read_to_string(&mut text).expect("read");
    assert_eq!(text, "123more");
}

#[test]
fn data_that_another_client_writes_are_read_although_the_kernel_has_the_old_ones() {
    let Some(mounted) = Mounted::new("data") else { return };
    fs::write(mounted.path("file"), vec![0; 100_000]).expect("written");
    let file = File::options().read(true).write(true).open(mounted.path("file")).expect("open");
    let mut bytes = vec![0; 100_000];
    for round in 1..=20_u8 {
        file.read_exact_at(&mut bytes, 0).expect("read");
        write(&mounted.model, "file", WriteAt::Offset(50_000), &[round; 10]);
        file.read_exact_at(&mut bytes[..30], 49_990).expect("read");
        assert_eq!(bytes[9..21], [&[0][..], &[round; 10], &[0]].concat());
        // A write of its own does not bring old data back.
        file.write_all_at(&[round], 50_020).expect("written");
        file.read_exact_at(&mut bytes[..30], 49_995).expect("read");
        assert_eq!((bytes[5], bytes[14], bytes[25]), (round, round, round));
    }
}

#[test]
fn an_append_goes_behind_what_another_client_appended() {
    let Some(mounted) = Mounted::new("append") else { return };
    let mut file =
        File::options().read(true).append(true).create(true).open(mounted.path("log")).expect("open");
    let mut expected = Vec::new();
    for round in 0..20 {
        let (own, other) = (format!("own {round};"), format!("other client {round};"));
        file.write_all(own.as_bytes()).expect("appended");
        write(&mounted.model, "log", WriteAt::End, other.as_bytes());
        expected.extend_from_slice(own.as_bytes());
        expected.extend_from_slice(other.as_bytes());
    }
    file.write_all(b"end").expect("appended");
    expected.extend_from_slice(b"end");
    assert_eq!(
        String::from_utf8_lossy(&fs::read(mounted.path("log")).expect("read")),
        String::from_utf8_lossy(&expected)
    );
    // Through the descriptor that wrote, whose pages the kernel has.
    let mut bytes = Vec::new();
    file.rewind().expect("a place");
    file.read_to_end(&mut bytes).expect("read");
    assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(&expected));
}

/// A write that crosses the end of a page, which the kernel's cache would send in two parts.
#[test]
fn an_append_is_whole_where_another_client_appends_at_once() {
    let options = Options { service: Some("/nowhere".into()), ..options() };
    let Some(mounted) = Mounted::with("append-whole", &options) else { return };
    if !kernel_writes_appends_directly() {
        println!("SKIPPED append-whole: needs Linux 6.6");
        return;
    }
    let page = [b'.'; 4090];
    let cases = [(true, true), (true, false), (false, true), (false, false)];
    for (case, (created, is_cached)) in cases.into_iter().enumerate() {
        let path = mounted.path(format!("log{case}"));
        if !created {
            fs::write(&path, b"").expect("written");
        }
        let mut file = File::options().append(true).create(created).open(&path).expect("open");
        file.write_all(&page).expect("appended");
        // Of a page that the kernel has not as a whole, it sends what is added to it first.
        if is_cached {
            assert_eq!(fs::read(&path).expect("read"), page);
        }
        mounted.model.inside().appended_next = Some(b"other;".to_vec());
        file.write_all(b"twenty bytes of own;").expect("appended");
        let read = fs::read(&path).expect("read");
        let added = String::from_utf8_lossy(&read[page.len()..]);
        assert_eq!(added, "twenty bytes of own;other;", "created: {created}, cached: {is_cached}");
    }
}

/// Pages that a mapping has changed are not lost by an append beside the cache, and do not hide it.
#[test]
fn an_append_beside_the_cache_and_a_mapping_agree() {
    let options = Options { service: Some("/nowhere".into()), ..options() };
    let Some(mounted) = Mounted::with("append-mapped", &options) else { return };
    let path = mounted.path("log");
    fs::write(&path, b"first;").expect("written");
    let file = File::options().read(true).write(true).open(&path).expect("open");
    let page = SharedPage::of(&file);
    let mut appends = File::options().append(true).open(&path).expect("open");
    page.write(0, b'F');
    appends.write_all(b"second;").expect("appended");
    let expected = b"First;second;";
    assert!(eventually(|| (0..expected.len()).all(|at| page.read(at) == expected[at])), "in the mapping");
    page.write(6, b'S');
    page.flush();
    let inode = mounted.model.find("log");
    let mut bytes = [0; 100];
    let count = mounted.model.client(|model, caller| {
        let handle = model.open(caller, inode, OpenMode { read: true, ..OpenMode::default() })?;
        let count = model.read(handle, 0, &mut bytes)?;
        model.close(handle);
        Ok(count)
    });
    assert_eq!(String::from_utf8_lossy(&bytes[..count]), "First;Second;");
}

#[test]
fn a_file_that_another_client_creates_first_is_opened_instead() {
    let Some(mounted) = Mounted::new("overtaken") else { return };
    let file = File::options().write(true).create(true).truncate(false).open(mounted.path(OVERTAKEN));
    assert_eq!(
        file.expect("opened").metadata().expect("attributes").mode() & 0o777,
        0o600,
        "the other's mode"
    );
    fs::remove_file(mounted.path(OVERTAKEN)).expect("removed");
    let error = File::create_new(mounted.path(OVERTAKEN)).expect_err("exclusive");
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
}

/// A lock file, say, that programs of two mounts make and remove again and again.
#[test]
fn a_file_that_is_gone_whenever_the_kernel_looks_is_opened_if_that_is_permitted() {
    let Some(mounted) = Mounted::new("fleeting") else { return };
    let path = mounted.path(FLEETING);
    let mut file = File::options().write(true).create(true).truncate(true).open(&path).expect("opened");
    assert_eq!(file.metadata().expect("attributes").mode() & 0o777, 0o600, "the other's mode");
    file.write_all(b"data").expect("written");
    fs::set_permissions(&mounted.directory, Permissions::from_mode(0o777)).expect("set");
    let printed = mounted.shell_as(3000, 3000, "", "echo data >> fleeting");
    assert!(printed.contains("Stale file handle"), "it is another user's: {printed}");
    let error = File::create_new(&path).expect_err("exclusive");
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
}

#[test]
fn an_append_that_the_kernel_has_at_a_wrong_place_does_not_stay_in_a_mapping() {
    let Some(mounted) = Mounted::new("mapped-append") else { return };
    let mut file =
        File::options().read(true).append(true).create(true).open(mounted.path("log")).expect("open");
    file.write_all(b"first;").expect("appended");
    let page = SharedPage::of(&file);
    assert_eq!(page.read(0), b'f');
    // The kernel has not seen this, and has the next record in its page where this is.
    write(&mounted.model, "log", WriteAt::End, b"other;");
    file.write_all(b"third;").expect("appended");
    let expected = b"first;other;third;";
    let same = || (0..expected.len()).all(|at| page.read(at) == expected[at]);
    assert!(eventually(same), "the mapping keeps what the file does not have");
}
