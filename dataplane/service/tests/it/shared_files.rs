//! A file system of [`sietch_service::fs::shared`] with several clients, each of which could be a
//! process: they share nothing but its socket, and what they got through it.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sietch_disk::nvm::Mapped;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{Handle, NewInode, OpenMode, RenameMode, WriteAt};
use sietch_fs::inode::{InodeNumber, Kind, Timestamp};
use sietch_fs::{Client, FileSystem as _};
use sietch_protocol::frame;
use sietch_service::fs::description::MediumDescription;
use sietch_service::fs::shared::{Remote, Server, attach, serve};
use sietch_service::fs::{ClassName, CreateOptions, StoreError, check, create, open};
use sietch_structures::Random;

const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };
const ROOT: InodeNumber = InodeNumber::ROOT;
/// How long something that must come takes, at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder in memory with a file system, which goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, class: ClassName) -> Self {
        Self::of_bytes(name, class, 64 << 20)
    }

    fn of_bytes(name: &str, class: ClassName, bytes: u64) -> Self {
        let path = Path::new("/dev/shm").join(format!("sietch-shared-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        let folder = Self(path);
        let media = vec![MediumDescription { class, path: folder.0.join("data"), bytes, model: None }];
        let options = CreateOptions {
            media,
            log_memory: Some(folder.0.clone()),
            log_bytes: Some(1 << 20),
            durability: None,
        };
        create(&folder.path(), &options, &mut |_| {}).expect("a file system");
        folder
    }

    fn path(&self) -> PathBuf {
        self.0.join("fs")
    }

    fn serve(&self) -> Server {
        serve(&self.path(), || {}).expect("it is served")
    }

    fn client(&self) -> Files {
        Files::new(&self.path(), true)
    }

    fn assert_whole(&self) {
        let checked = check(&self.path(), true).expect("it can be checked");
        assert!(checked.is_whole(), "{checked:?}");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

type SharedClient = Arc<Mutex<Client<Remote, Mapped>>>;

/// A client. It goes as a process does: without a word.
struct Files {
    client: SharedClient,
    who: Credentials,
}

impl Files {
    fn new(folder: &Path, looks_after: bool) -> Self {
        let mut attached = attach(folder).expect("it is served");
        let client = Arc::new(Mutex::new(attached.client));
        let looked = Arc::downgrade(&client);
        if looks_after {
            // It ends with the client.
            std::thread::spawn(move || {
                while attached.attention.wait() {
                    let Some(client) = looked.upgrade() else { return };
                    client.lock().unwrap_or_else(PoisonError::into_inner).advance();
                }
            });
        }
        Self { client, who: Credentials::root() }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Client<Remote, Mapped>, Caller<'_>) -> T) -> T {
        let caller = Caller { credentials: &self.who, now: NOW };
        work(&mut self.client.lock().expect("no panic"), caller)
    }

    fn make(&self, directory: InodeNumber, name: &str, kind: Kind) -> Result<InodeNumber, Errno> {
        let new = NewInode { kind, mode: 0o700, device: 0, target: &[] };
        self.with(|client, caller| Ok(client.create(caller, directory, name.as_bytes(), &new)?.inode))
    }

    fn find(&self, directory: InodeNumber, name: &str) -> Result<InodeNumber, Errno> {
        self.with(|client, caller| Ok(client.lookup(caller, directory, name.as_bytes())?.inode))
    }

    fn open(&self, inode: InodeNumber) -> Result<Handle, Errno> {
        let mode = OpenMode { read: true, write: true, truncate: false };
        self.with(|client, caller| client.open(caller, inode, mode))
    }

    fn append(&self, inode: InodeNumber, bytes: &[u8]) -> Result<(), Errno> {
        let handle = self.open(inode)?;
        let written = self.with(|client, caller| client.write(caller, handle, WriteAt::End, bytes));
        self.with(|client, _| client.close(handle));
        written.map(drop)
    }

    fn read(&self, inode: InodeNumber) -> Result<Vec<u8>, Errno> {
        let handle = self.open(inode)?;
        let content = self.content(handle, inode);
        self.with(|client, _| client.close(handle));
        content
    }

    fn content(&self, handle: Handle, inode: InodeNumber) -> Result<Vec<u8>, Errno> {
        self.with(|client, _| {
            let mut bytes = vec![0; client.attributes(inode)?.size as usize];
            let count = client.read(handle, 0, &mut bytes)?;
            bytes.truncate(count);
            Ok(bytes)
        })
    }

    fn remove(&self, directory: InodeNumber, name: &str) -> Result<(), Errno> {
        self.with(|client, caller| client.unlink(caller, directory, name.as_bytes()))
    }

    fn rename(&self, from: (InodeNumber, &str), to: (InodeNumber, &str)) -> Result<(), Errno> {
        let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
        self.with(|client, caller| client.rename(caller, from, to, RenameMode::Replace))
    }
}

/// Waits until `question` has an answer.
fn wait_for<T>(what: &str, mut question: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = question() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_one_client_does_the_others_see() {
    for class in [ClassName::Nvm, ClassName::Ssd] {
        let folder = Folder::new(&format!("seen-{class}"), class);
        let server = folder.serve();
        let (a, b) = (folder.client(), folder.client());
        let file = a.make(ROOT, "file", Kind::File).expect("made");
        a.append(file, b"one").expect("written");
        assert_eq!(b.find(ROOT, "file"), Ok(file));
        assert_eq!(b.read(file).as_deref(), Ok(&b"one"[..]));
        b.append(file, b", two").expect("written");
        let directory = b.make(ROOT, "directory", Kind::Directory).expect("made");
        a.rename((ROOT, "file"), (directory, "moved")).expect("renamed");
        assert_eq!((b.find(ROOT, "file"), b.find(directory, "moved")), (Err(Errno::NOENT), Ok(file)));
        assert_eq!(a.read(file).as_deref(), Ok(&b"one, two"[..]));
        drop((a, b));
        server.end().expect("all is digested");
        folder.assert_whole();
        let mut alone = open(&folder.path()).expect("it opens");
        assert_eq!(alone.recovered, 0, "the service digested all");
        let who = Credentials::root();
        let caller = Caller { credentials: &who, now: NOW };
        assert_eq!(alone.client.lookup(caller, directory, b"moved").expect("it is there").size, 8);
    }
}

#[test]
fn a_file_that_one_client_has_open_outlives_its_name() {
    let folder = Folder::new("open", ClassName::Nvm);
    let server = folder.serve();
    let (a, b) = (folder.client(), folder.client());
    let free = || b.with(|client, _| client.usage().inodes);
    let before = free();
    let file = a.make(ROOT, "file", Kind::File).expect("made");
    a.append(file, &[7; 100_000]).expect("written");
    let handle = a.open(file).expect("opened");
    b.remove(ROOT, "file").expect("removed");
    assert_eq!(b.find(ROOT, "file"), Err(Errno::NOENT));
    assert_eq!(a.content(handle, file), Ok(vec![7; 100_000]));
    a.with(|client, _| client.close(handle));
    wait_for("the file to go", || {
        b.make(ROOT, "other", Kind::File).ok()?;
        b.remove(ROOT, "other").ok()?;
        std::thread::sleep(Duration::from_millis(600));
        b.with(|client, _| client.advance());
        (free() == before).then_some(())
    });
    drop((a, b));
    server.end().expect("all is digested");
    folder.assert_whole();
}

/// Appends of several clients to one file: each is there once, whole, and in its client's order.
#[test]
fn appends_of_several_clients_are_atomic_and_in_order() {
    const CLIENTS: u64 = 4;
    const APPENDS: u64 = 120;
    for class in [ClassName::Nvm, ClassName::Ssd] {
        let folder = Folder::new(&format!("appends-{class}"), class);
        let server = folder.serve();
        let first = folder.client();
        let file = first.make(ROOT, "file", Kind::File).expect("made");
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let folder = &folder;
                scope.spawn(move || {
                    let files = folder.client();
                    for turn in 0..APPENDS {
                        let record = (number << 32 | turn).to_le_bytes();
                        files.append(file, &record).expect("appended");
                        files.make(ROOT, &format!("{number}-{turn}"), Kind::File).expect("made");
                    }
                });
            }
        });
        let content = first.read(file).expect("read");
        let mut next = [0; CLIENTS as usize];
        for record in content.chunks(8) {
            let record = u64::from_le_bytes(record.try_into().expect("whole records"));
            let (number, turn) = ((record >> 32) as usize, record & 0xffff_ffff);
            assert_eq!(turn, next[number], "client {number}");
            next[number] += 1;
        }
        assert_eq!(next, [APPENDS; CLIENTS as usize]);
        let names = first.with(|client, _| client.attributes(ROOT).map(|found| found.size));
        assert_eq!(names, Ok(1 + CLIENTS * APPENDS));
        drop(first);
        server.end().expect("all is digested");
        folder.assert_whole();
    }
}

/// Random changes of one small tree by several clients, some of which go without a word. No client
/// sees an error that a file system does not have, and what is left is whole.
#[test]
fn random_clients_leave_a_whole_file_system() {
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let folder = Folder::new("random", ClassName::Nvm);
    let server = folder.serve();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let folder = &folder;
            scope.spawn(move || {
                let mut random = Random::new(77 + number);
                let mut files = folder.client();
                let mut directories = vec![ROOT];
                for _ in 0..300 {
                    if random.chance(10) {
                        files = folder.client();
                    }
                    let pick = |random: &mut Random| NAMES[random.below(NAMES.len() as u64) as usize];
                    let name = pick(&mut random);
                    let directory = directories[random.below(directories.len() as u64) as usize];
                    let result = match random.below(7) {
                        0 => files.make(directory, name, Kind::File).map(drop),
                        1 => files.make(directory, name, Kind::Directory).map(|made| directories.push(made)),
                        2 => files.remove(directory, name),
                        3 => files.with(|client, caller| {
                            client.remove_directory(caller, directory, name.as_bytes())
                        }),
                        4 => {
                            let other = directories[random.below(directories.len() as u64) as usize];
                            files.rename((directory, name), (other, pick(&mut random)))
                        }
                        5 => files.find(directory, name).and_then(|inode| files.append(inode, &[1; 5000])),
                        _ => files.find(directory, name).and_then(|inode| files.read(inode)).map(drop),
                    };
                    let may = [
                        Errno::NOENT,
                        Errno::EXIST,
                        Errno::ISDIR,
                        Errno::NOTDIR,
                        Errno::NOTEMPTY,
                        Errno::INVAL,
                        Errno::BUSY,
                    ];
                    if let Err(errno) = result {
                        let ended = files.with(|client, _| client.service().ended());
                        assert!(may.contains(&errno), "{errno}: {ended:?}");
                    }
                    if directories.len() > 12 {
                        directories.drain(1..6);
                    }
                }
            });
        }
    });
    server.end().expect("all is digested");
    folder.assert_whole();
}

/// A client that does not answer keeps others waiting for a bounded time, and gets `EIO` from then
/// on. What it did before is there.
#[test]
fn a_client_that_does_not_answer_is_fenced() {
    let folder = Folder::new("fenced", ClassName::Nvm);
    let server = folder.serve();
    let (silent, other) = (Files::new(&folder.path(), false), folder.client());
    let file = silent.make(ROOT, "file", Kind::File).expect("made");
    silent.append(file, b"before").expect("written");
    let begin = Instant::now();
    other.append(file, b", after").expect("written");
    assert!(begin.elapsed() > Duration::from_secs(1), "it was waited for");
    assert_eq!(silent.append(file, b"late"), Err(Errno::IO));
    assert_eq!(other.read(file).as_deref(), Ok(&b"before, after"[..]));
    // Its memory is still mapped: others get another log.
    let next = folder.client();
    assert_eq!(next.read(file).as_deref(), Ok(&b"before, after"[..]));
    drop((silent, next));
    assert_eq!(folder.client().read(file).as_deref(), Ok(&b"before, after"[..]), "its number is free again");
    drop(other);
    server.end().expect("all is digested");
    folder.assert_whole();
}

/// What does not speak the protocol, or lies, harms itself alone.
#[test]
fn a_client_that_lies_is_ended_alone() {
    let folder = Folder::new("lies", ClassName::Nvm);
    let server = folder.serve();
    let honest = folder.client();
    let file = honest.make(ROOT, "file", Kind::File).expect("made");
    let hello = frame::encode(&serde_json::json!({ "version": 2 })).expect("it fits");
    let lies = [
        serde_json::json!({ "Logged": u64::MAX }),
        serde_json::json!({ "Wait": u64::MAX }),
        serde_json::json!({ "Reads": 0 }),
        serde_json::json!({ "Release": { "inode": 1, "serial": 1, "shares": false, "position": u64::MAX, "referenced": true } }),
        serde_json::json!({ "Room": u64::MAX }),
        serde_json::json!({ "Closed": u64::MAX }),
        serde_json::json!({ "Lease": { "inode": 1, "exclusive": true } }),
        serde_json::json!("Numbers"),
        serde_json::json!("nonsense"),
    ];
    for lie in &lies {
        let mut stream = UnixStream::connect(folder.path().join("socket")).expect("it listens");
        stream.write_all(&hello).expect("sent");
        let mut welcome = [0; 4];
        stream.read_exact(&mut welcome).expect("an answer");
        // A thousand of them, and no answer is read.
        let lie = frame::encode(lie).expect("it fits");
        for _ in 0..1000 {
            if stream.write_all(&lie).is_err() {
                break;
            }
        }
        honest.append(file, b"+").expect("an honest client goes on");
    }
    for junk in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n", b"\x02\0\0\0{}"] {
        let mut stream = UnixStream::connect(folder.path().join("socket")).expect("it listens");
        stream.write_all(junk).expect("sent");
        honest.append(file, b"+").expect("an honest client goes on");
    }
    assert_eq!(honest.read(file).map(|content| content.len()), Ok(lies.len() + 4));
    drop(honest);
    server.end().expect("all is digested");
    folder.assert_whole();
}

/// Clients that fill a pool together, remove files and fill it again. Messages about room cross
/// each other: no client is ended, and what each wrote is there.
#[test]
fn clients_that_compete_for_room_are_never_ended() {
    let folder = Folder::of_bytes("room", ClassName::Nvm, 10 << 20);
    let server = folder.serve();
    let refused: u64 = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let folder = &folder;
                scope.spawn(move || compete(&folder.client(), number))
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("no client is ended")).sum()
    });
    assert!(refused > 20, "the pool gets full: {refused} operations found no room");
    server.end().expect("all is digested");
    folder.assert_whole();
}

/// One of the clients. Returns how often it found no room.
fn compete(files: &Files, number: u64) -> u64 {
    let mut random = Random::new(500 + number);
    let (mut refused, mut own) = (0, Vec::new());
    for turn in 0..400_u64 {
        let name = format!("{number}-{turn}");
        let fill = turn as u8 | 1;
        let bytes = vec![fill; 1 + random.below(200_000) as usize];
        let done = match random.below(10) {
            0..=6 => files.make(ROOT, &name, Kind::File).and_then(|inode| {
                let written = files.append(inode, &bytes);
                let content = if written.is_ok() { bytes } else { Vec::new() };
                own.push((name, inode, content));
                written
            }),
            _ if own.is_empty() => Ok(()),
            7 => {
                let (name, ..) = own.swap_remove(random.below(own.len() as u64) as usize);
                files.remove(ROOT, &name)
            }
            _ => {
                let (_, inode, content) = &own[random.below(own.len() as u64) as usize];
                files.read(*inode).map(|found| assert!(found == *content, "{inode} has other content"))
            }
        };
        match done {
            Ok(()) => {}
            Err(Errno::NOSPC) => {
                refused += 1;
                // Others get it, or this client again.
                own.drain(..own.len() / 2).for_each(|(name, ..)| {
                    files.remove(ROOT, &name).expect("removing needs no room");
                });
            }
            Err(errno) => panic!("{errno}: {:?}", files.with(|client, _| client.service().ended())),
        }
    }
    refused
}

/// What removals freed is there without another change: a program that asks how much room there is
/// may be the only one.
#[test]
fn room_that_removals_freed_is_there_without_another_change() {
    let folder = Folder::of_bytes("idle-room", ClassName::Nvm, 8 << 20);
    let server = folder.serve();
    let files = folder.client();
    let free = || files.with(|client, _| client.usage().free);
    let before = free();
    let mut names = Vec::new();
    loop {
        let name = names.len().to_string();
        match files.make(ROOT, &name, Kind::File).and_then(|inode| files.append(inode, &[1; 100])) {
            Ok(()) => names.push(name),
            Err(Errno::NOSPC) => break,
            Err(errno) => panic!("{errno}"),
        }
    }
    for name in &names {
        files.remove(ROOT, name).expect("removing needs no room");
    }
    // One chunk of blocks for nodes, 32 of them, may stay.
    wait_for("room", || (free() + 48 >= before).then_some(()));
    drop(files);
    server.end().expect("all is digested");
    folder.assert_whole();
}

#[test]
fn clients_are_counted_and_their_places_come_back() {
    let folder = Folder::new("many", ClassName::Nvm);
    let server = folder.serve();
    let mut all: Vec<_> = (0..16).map(|_| folder.client()).collect();
    for (number, files) in all.iter().enumerate() {
        files.make(ROOT, &format!("{number}"), Kind::File).expect("made");
    }
    match attach(&folder.path()) {
        Err(StoreError::Service { cause, .. }) => assert!(cause.contains("16 clients"), "{cause}"),
        other => panic!("{:?}", other.map(|attached| attached.service)),
    }
    all.truncate(3);
    let again = wait_for("a place", || attach(&folder.path()).ok());
    drop(again);
    assert_eq!(all[0].with(|client, _| client.attributes(ROOT).map(|found| found.size)), Ok(16));
    assert!(matches!(open(&folder.path()), Err(StoreError::Area(_))), "it is served");
    drop(all);
    server.end().expect("all is digested");
    folder.assert_whole();
}
