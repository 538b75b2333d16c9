//! Areas and views as files: what a reader may do, what an owner may do, and what is refused.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::scene::{PATIENCE, Scene};
use rustix::io::Errno;
use sietch_protocol::{
    CallError, Connection, ErrorKind, FileAttributes, Notice, ViewEntry, ViewError, ViewOperation, ViewPage,
    ViewReply, ViewRequest, sealed,
};

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
fn a_reader_reads_the_bytes_of_the_holder_and_can_do_nothing_else() {
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
        // The reader does not prevent granting: once released, the area can be granted again.
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
fn an_area_of_another_user_is_not_read() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED an_area_of_another_user_is_not_read: needs root to be two users");
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
        assert_eq!(other.command(&format!("read /{volume}/theirs"), "DID "), "ok 8192");
        let said = other.command(&format!("read /{volume}/roots"), "DID ");
        assert!(said.starts_with("Denied"), "{said}");
        let said = other.command(&format!("read-at /{volume}/roots"), "DID ");
        assert!(said.starts_with("Denied"), "{said}");
    }
    let said = other.command("stat /main/roots", "DID ");
    assert!(said.starts_with("Denied"), "{said}");
    // Nor is a descriptor for reading made one for writing.
    assert_eq!(other.command("escape-reading /main/theirs", "DID"), "");
}

/// The requester's side of a view query, which waits on a thread.
fn start_query(
    scene: &Scene,
    path: &str,
    operation: ViewOperation,
) -> JoinHandle<Result<(ViewReply, Vec<u8>), CallError>> {
    let mut connection = scene.connect();
    let question = ViewRequest { path: path.to_owned(), operation };
    std::thread::spawn(move || connection.view("kv", question))
}

/// The next question that an owner gets.
fn next_query(owner: &mut Connection) -> (u64, u32, ViewRequest) {
    let end = Instant::now() + PATIENCE;
    loop {
        match owner.take_notice().unwrap() {
            Some((Notice::View { id, uid, question, .. }, _)) => return (id, uid, question),
            Some(_) => {}
            None => assert!(Instant::now() < end, "no question"),
        }
    }
}

/// A connection that holds the area `kv` and shows a view of it.
fn owner(scene: &Scene) -> (Connection, u64) {
    let mut owner = scene.connect();
    let (grant, _file) = owner.acquire_vsa("kv").unwrap();
    owner.attend_with_views(vec![grant.grant], vec![grant.grant]).unwrap();
    (owner, grant.grant)
}

#[test]
fn a_view_query_reaches_the_owner_and_the_answer_its_requester() {
    let scene = volumes("view");
    let _daemon = scene.start();
    let (mut owner, grant) = owner(&scene);
    let mut connection = scene.connect();
    let list = connection.vsas().unwrap();
    assert!(list.iter().any(|area| area.path == "/main/kv" && area.view), "{list:?}");

    let query = start_query(&scene, "keys", ViewOperation::Stat);
    let (id, uid, question) = next_query(&mut owner);
    assert_eq!(uid, rustix::process::geteuid().as_raw());
    assert_eq!(question, ViewRequest { path: "keys".to_owned(), operation: ViewOperation::Stat });
    owner.answer_view(id, Ok(ViewReply::Stat(FileAttributes::DIRECTORY)), None).unwrap();
    assert_eq!(query.join().unwrap().unwrap().0, ViewReply::Stat(FileAttributes::DIRECTORY));

    let read = start_query(&scene, "keys/a", ViewOperation::Read { offset: 3, length: 5 });
    let (id, ..) = next_query(&mut owner);
    let piece = sealed::make("test", b"bytes").unwrap();
    owner.answer_view(id, Ok(ViewReply::Piece), Some(piece.as_fd())).unwrap();
    assert_eq!(read.join().unwrap().unwrap(), (ViewReply::Piece, b"bytes".to_vec()));

    let list = start_query(&scene, "", ViewOperation::List { cursor: 0 });
    let (id, ..) = next_query(&mut owner);
    let mut page = ViewPage::default();
    assert!(page.push("a", FileAttributes::file(3)));
    page.next = Some(9);
    owner.answer_view(id, Ok(ViewReply::Page(page.clone())), None).unwrap();
    assert_eq!(list.join().unwrap().unwrap().0, ViewReply::Page(page));

    for (refusal, expected) in [
        (ViewError::Missing, ErrorKind::Unknown),
        (ViewError::IsDirectory, ErrorKind::Invalid),
        (ViewError::Failed("\x1b[2J".repeat(200)), ErrorKind::Failed),
    ] {
        let query = start_query(&scene, "x", ViewOperation::Stat);
        let (id, ..) = next_query(&mut owner);
        owner.answer_view(id, Err(refusal), None).unwrap();
        let (kind, said) = refused(query.join().unwrap());
        assert_eq!(kind, expected);
        assert!(!said.contains('\x1b') && said.len() < 2000, "{said}");
    }
    // An invalid path is not passed on, and without a view no query is sent.
    for path in ["..", "a//b", "/a", "a\0"] {
        assert_eq!(
            refused(start_query(&scene, path, ViewOperation::Stat).join().unwrap()).0,
            ErrorKind::Invalid
        );
    }
    owner.attend(vec![grant]).unwrap();
    assert_eq!(refused(start_query(&scene, "", ViewOperation::Stat).join().unwrap()).0, ErrorKind::Unknown);
    owner.release(grant).unwrap();
    assert_eq!(refused(start_query(&scene, "", ViewOperation::Stat).join().unwrap()).0, ErrorKind::Unknown);
}

#[test]
fn an_owner_with_invalid_answers_harms_no_other() {
    let scene = volumes("view-hostile");
    let _daemon = scene.start();
    let (mut owner, _) = owner(&scene);
    let entry = |name: &str| ViewEntry { name: name.to_owned(), attributes: FileAttributes::file(1) };
    let page = |names: &[&str], next| {
        Ok(ViewReply::Page(ViewPage { entries: names.iter().map(|name| entry(name)).collect(), next }))
    };
    let list = ViewOperation::List { cursor: 5 };
    let read = ViewOperation::Read { offset: 0, length: 4 };
    let unsealed = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::io::write(&unsealed, b"abcd").unwrap();
    let [long, whole] = [&b"abcde"[..], b"abcd"].map(|bytes| sealed::make("test", bytes).unwrap());
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let device = std::fs::File::open("/dev/zero").unwrap().into();
    let hostile: [(ViewOperation, Result<ViewReply, ViewError>, Option<&OwnedFd>); 14] = [
        (list, page(&["a/b"], None), None),
        (list, page(&["a", ".."], None), None),
        (list, page(&["a\0b"], None), None),
        (list, page(&[""], None), None),
        (list, page(&["a".repeat(256).as_str()], None), None),
        (list, page(&["a"; 257], None), None),
        (list, page(&["a"], Some(5)), None),
        (list, Ok(ViewReply::Piece), Some(&whole)),
        (ViewOperation::Stat, page(&["a"], None), None),
        (read, Ok(ViewReply::Piece), None),
        (read, Ok(ViewReply::Piece), Some(&unsealed)),
        (read, Ok(ViewReply::Piece), Some(&long)),
        (read, Ok(ViewReply::Piece), Some(&pipe)),
        (read, Ok(ViewReply::Piece), Some(&device)),
    ];
    for (ask, outcome, descriptor) in hostile {
        let waits = start_query(&scene, "a", ask);
        let (id, ..) = next_query(&mut owner);
        // Another owner's query, and one that was never sent.
        for wrong in [id + 1, u64::MAX] {
            assert_eq!(refused(owner.answer_view(wrong, outcome.clone(), None)).0, ErrorKind::Unknown);
        }
        owner.answer_view(id, outcome.clone(), descriptor.map(AsFd::as_fd)).unwrap();
        let (kind, said) = refused(waits.join().unwrap());
        assert_eq!(kind, ErrorKind::Failed, "{outcome:?}: {said}");
        assert!(said.contains("(`test`) answered with what is no answer"), "{said}");
    }
    // Another process cannot answer in its place.
    let waits = start_query(&scene, "a", ViewOperation::Stat);
    let (id, ..) = next_query(&mut owner);
    let foreign = scene.connect().answer_view(id, Ok(ViewReply::Stat(FileAttributes::file(9))), None);
    assert_eq!(refused(foreign).0, ErrorKind::Unknown);
    owner.answer_view(id, Ok(ViewReply::Stat(FileAttributes::file(3))), None).unwrap();
    assert_eq!(waits.join().unwrap().unwrap().0, ViewReply::Stat(FileAttributes::file(3)));
}

#[test]
fn an_owner_that_does_not_answer_is_awaited_for_a_second_and_then_no_longer_queried() {
    let scene = volumes("view-silent");
    let _daemon = scene.start();
    let (mut owner, _) = owner(&scene);
    let silent: Vec<_> = (0..16).map(|_| start_query(&scene, "a", ViewOperation::Stat)).collect();
    let questions: Vec<u64> = (0..16).map(|_| next_query(&mut owner).0).collect();
    // It owes enough.
    assert_eq!(refused(start_query(&scene, "a", ViewOperation::Stat).join().unwrap()).0, ErrorKind::Limit);
    for waits in silent {
        let (kind, said) = refused(waits.join().unwrap());
        assert_eq!(kind, ErrorKind::Silent, "{said}");
        assert!(said.contains("(`test`) has not answered within a second"), "{said}");
    }
    let (kind, said) = refused(start_query(&scene, "a", ViewOperation::Stat).join().unwrap());
    assert_eq!(kind, ErrorKind::Silent, "{said}");
    assert!(said.contains("16 questions to answer"), "{said}");
    assert!(owner.take_notice().unwrap().is_none());
    // Others are served meanwhile, and so is its area.
    assert!(scene.connect().read_vsa("kv").unwrap().1.is_some());
    // Once it has answered, even late, it is queried again.
    let late = Ok(ViewReply::Stat(FileAttributes::DIRECTORY));
    for id in questions {
        assert_eq!(refused(owner.answer_view(id, late.clone(), None)).0, ErrorKind::Unknown);
    }
    let waits = start_query(&scene, "a", ViewOperation::Stat);
    let (id, ..) = next_query(&mut owner);
    owner.answer_view(id, late, None).unwrap();
    assert!(waits.join().unwrap().is_ok());
    // An owner that ends during a query is not waited for.
    let waits = start_query(&scene, "a", ViewOperation::Stat);
    next_query(&mut owner);
    drop(owner);
    let (kind, said) = refused(waits.join().unwrap());
    assert_eq!(kind, ErrorKind::Failed, "{said}");
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
