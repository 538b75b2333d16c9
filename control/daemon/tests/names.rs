//! Areas for whoever wants to read them: what a reader can do, and what not.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod scene;

use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::io::Errno;
use scene::Scene;
use sietch_protocol::{CallError, ErrorKind};

fn refused<T: std::fmt::Debug>(result: Result<T, CallError>) -> (ErrorKind, String) {
    match result {
        Err(CallError::Refused(error)) => (error.kind, error.to_string()),
        other => panic!("a refusal was expected, not {other:?}"),
    }
}

/// A scene with a volume of each kind.
fn volumes(name: &str) -> Scene {
    let scene = Scene::own(name);
    let uid = rustix::process::geteuid().as_raw();
    let extents = scene.root.join("extents.vol");
    scene.configure(&format!(
        "[[volume]]\nname = \"blocks\"\nkind = \"extents\"\npath = {extents:?}\nsize = \"32MiB\"\n\n\
         [[volume]]\nname = \"ram\"\nkind = \"memory\"\nsize = \"32MiB\"\n\n\
         [[vsa]]\nname = \"kv\"\nuid = {uid}\nsize = \"1MiB\"\n"
    ));
    scene
}

fn all(file: &OwnedFd, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    assert_eq!(rustix::io::pread(file, &mut bytes[..], 0).unwrap(), size);
    bytes
}

#[test]
fn a_reader_reads_what_the_holder_writes_and_can_do_nothing_else() {
    let scene = volumes("reader");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    connection.create_vsa("/main/second", 1 << 20, None).unwrap();
    for path in ["/main/kv", "/main/second"] {
        let (grant, file) = connection.acquire_vsa(path).unwrap();
        rustix::io::pwrite(&file, &[7; 4096], 4096).unwrap();
        let (area, reader) = connection.read_vsa(path).unwrap();
        let reader = reader.unwrap();
        assert_eq!((area.path.as_str(), area.size), (path, 1 << 20));
        assert!(area.modified.is_some());
        let bytes = all(&reader, 1 << 20);
        assert!(bytes[4096..8192].iter().all(|&byte| byte == 7));
        assert_eq!(bytes.iter().filter(|&&byte| byte != 0).count(), 4096);
        assert_eq!(rustix::io::pwrite(&reader, b"x", 0), Err(Errno::BADF));
        assert!(rustix::fs::ftruncate(&reader, 0).is_err());
        let flags = rustix::fs::fcntl_getfl(&reader).unwrap();
        assert!(!flags.intersects(rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::RDWR));
        // It is in nobody's way: once released, the area can be had again.
        drop(file);
        connection.release(grant.grant).unwrap();
        connection.acquire_vsa(path).unwrap();
    }
}

#[test]
fn an_area_without_a_descriptor_is_read_in_pieces_that_end_where_it_ends() {
    let scene = volumes("pieces");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    for path in ["/blocks/a", "/ram/a"] {
        connection.create_vsa(path, 8192, None).unwrap();
        let (area, reader) = connection.read_vsa(path).unwrap();
        assert!(reader.is_none());
        assert_eq!(area.size, 8192);
        for (offset, length, expected) in
            [(0, 8192, 8192), (1, 10, 10), (8190, 100, 2), (8192, 1, 0), (u64::MAX, 9, 0)]
        {
            let piece = connection.read_vsa_at(path, offset, length).unwrap();
            assert_eq!(piece, vec![0; expected], "{offset}");
        }
    }
    // What its holder writes is seen.
    let (_, file) = connection.acquire_vsa("/ram/a").unwrap();
    rustix::io::pwrite(&file, b"written", 4095).unwrap();
    assert_eq!(connection.read_vsa_at("/ram/a", 4094, 9).unwrap(), b"\0written\0");
    let (kind, said) = refused(connection.read_vsa_at("/blocks/a", 0, (1 << 20) + 1));
    assert_eq!(kind, ErrorKind::Limit, "{said}");
    assert_eq!(refused(connection.read_vsa_at("/main/kv", 0, 1)).0, ErrorKind::Unknown);
    assert_eq!(refused(connection.read_vsa("/blocks/none")).0, ErrorKind::Unknown);
    assert_eq!(refused(connection.read_vsa("/blocks/../a")).0, ErrorKind::Invalid);
}

#[test]
fn what_is_for_another_user_is_not_read() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED what_is_for_another_user_is_not_read: needs root to be two users");
        return;
    }
    let scene = volumes("readers-uid");
    let _daemon = scene.start();
    let mut root = scene.connect();
    for path in ["/main/theirs", "/ram/theirs", "/blocks/theirs"] {
        root.create_vsa(path, 8192, Some(4711)).unwrap();
        root.create_vsa(&path.replace("theirs", "roots"), 8192, None).unwrap();
    }
    let mut other = scene.application(Some(4711));
    for volume in ["main", "ram", "blocks"] {
        assert_eq!(other.ask(&format!("read /{volume}/theirs"), "DID "), "ok 8192");
        let said = other.ask(&format!("read /{volume}/roots"), "DID ");
        assert!(said.starts_with("Denied"), "{said}");
        let said = other.ask(&format!("read-at /{volume}/roots"), "DID ");
        assert!(said.starts_with("Denied"), "{said}");
    }
    // Nor is a descriptor for reading made one for writing.
    assert_eq!(other.ask("escape-reading /main/theirs", "DID"), "");
}

#[test]
#[ignore = "a process of other tests"]
fn daemon_process() {
    scene::be_a_daemon();
}

#[test]
#[ignore = "a process of other tests"]
fn application_process() {
    scene::be_an_application();
}

#[test]
fn a_descriptor_for_reading_is_not_inherited_by_programs() {
    let scene = volumes("cloexec");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    connection.create_vsa("/main/a", 4096, None).unwrap();
    let (_, reader) = connection.read_vsa("/main/a").unwrap();
    let flags = rustix::io::fcntl_getfd(reader.as_ref().unwrap()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "{}", reader.unwrap().as_raw_fd());
}
