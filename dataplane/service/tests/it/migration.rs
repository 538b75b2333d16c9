//! Data that move between media while a client works.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sietch_disk::nvm::Mapped;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{Handle, NewInode, OpenMode, WriteAt, XattrMode};
use sietch_fs::inode::{InodeNumber, Kind, Timestamp};
use sietch_fs::{Client, FileSystem};
use sietch_service::fs::description::MediumDescription;
use sietch_service::fs::shared::{Remote, attach, serve};
use sietch_service::fs::{BLOCK, ClassName, CreateOptions, Moves, PIN, Running, Totals, check, create, open};
use sietch_structures::Random;

const MIB: u64 = 1 << 20;
const NOW: Timestamp = Timestamp { seconds: 1_000_000, nanoseconds: 0 };

/// How long data take to move, at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// Folders that are removed at the end: in memory, and on a disk.
struct Folders([PathBuf; 2]);

impl Folders {
    fn new(name: &str) -> Self {
        let disk = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folders = [Path::new("/dev/shm"), disk]
            .map(|folder| folder.join(format!("sietch-service-migration-{name}-{}", std::process::id())));
        for folder in &folders {
            // It may be there from a run that was killed.
            let _ = std::fs::remove_dir_all(folder);
            std::fs::create_dir_all(folder).expect("make a folder");
        }
        Self(folders)
    }

    /// Makes a file system with media of so many MiB in memory and on the disk.
    fn make(&self, nvm: u64, ssd: u64, log: u64) -> PathBuf {
        let medium = |class, folder: &Path, size: u64| MediumDescription {
            class,
            path: folder.join("data"),
            bytes: size * MIB,
            model: None,
        };
        let media = vec![medium(ClassName::Nvm, &self.0[0], nvm), medium(ClassName::Ssd, &self.0[1], ssd)];
        let options = CreateOptions {
            media,
            log_memory: Some(self.0[0].clone()),
            log_bytes: Some(log * MIB),
            durability: None,
        };
        let store = self.0[1].join("store");
        create(&store, &options, &mut |_| {}).expect("a file system");
        store
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        for folder in &self.0 {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

fn as_root<T>(work: impl FnOnce(Caller<'_>) -> T) -> T {
    let credentials = Credentials::root();
    work(Caller { credentials: &credentials, now: NOW })
}

fn content(file: u64, block: u64) -> Vec<u8> {
    (file << 32 | block << 4 | 5).to_le_bytes().repeat(BLOCK / 8)
}

fn new_file(client: &mut impl FileSystem, name: &str) -> (InodeNumber, Handle) {
    let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
    let mode = OpenMode { read: true, write: true, truncate: false };
    as_root(|caller| {
        let made = client.create(caller, InodeNumber::ROOT, name.as_bytes(), &new).expect("room").inode;
        (made, client.open(caller, made, mode).expect("a file"))
    })
}

fn write(client: &mut impl FileSystem, (file, handle): (InodeNumber, Handle), block: u64) {
    let at = WriteAt::Offset(block * BLOCK as u64);
    as_root(|caller| client.write(caller, handle, at, &content(file.0, block)).expect("room"));
}

fn verify(client: &mut impl FileSystem, (file, handle): (InodeNumber, Handle), blocks: u64) {
    let mut bytes = vec![0; BLOCK];
    for block in 0..blocks {
        let read = client.read(handle, block * BLOCK as u64, &mut bytes);
        assert!(read == Ok(BLOCK) && bytes == content(file.0, block), "block {block} of {file}: {read:?}");
    }
}

/// Lets the client take notice of commits until `is_done`.
fn wait_for(running: &mut Running, what: &str, is_done: impl Fn(&Running) -> bool) {
    let start = Instant::now();
    while !is_done(running) {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: {:?}", running.digester.totals());
        assert_eq!(running.digester.failure(), None);
        running.client.advance();
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn end(running: Running, store: &Path) -> Moves {
    let moves = running.digester.totals().moves;
    drop(running.client);
    assert_eq!(running.digester.end(), Ok(()));
    let checked = check(store, true).expect("it is not open");
    assert!(checked.is_whole(), "{:#?}", checked.pool.findings);
    moves
}

/// A working set twice the fast medium, written and changed, reads back; the fast medium is
/// drained.
#[test]
fn a_working_set_twice_the_fast_medium_is_kept_and_cold_data_leave() {
    let folders = Folders::new("twice");
    let store = folders.make(32, 128, 8);
    let mut running = open(&store).expect("it opens");
    let files: Vec<_> = (0..8).map(|name| new_file(&mut running.client, &format!("{name}"))).collect();
    let mut random = Random::new(1);
    for block in 0..2048 {
        for file in &files {
            write(&mut running.client, *file, block);
        }
        // Changed again while its data may be moving.
        write(&mut running.client, files[random.index(8)], random.below(block + 1));
    }
    // The changes may have taken the fast medium below its high watermark before anything moved.
    wait_for(&mut running, "the digest", |running| running.digester.is_idle());
    let extra = new_file(&mut running.client, "extra");
    for block in 0..if running.digester.totals().moves.demoted == 0 { 1000 } else { 0 } {
        write(&mut running.client, extra, block);
    }
    wait_for(&mut running, "the drain", |running| {
        let Totals { moves, media, .. } = running.digester.totals();
        moves.demoted > 0 && !media[0].is_at_high() && running.digester.is_idle()
    });
    running.client.close(extra.1);
    for file in &files {
        verify(&mut running.client, *file, 2048);
    }
    for (_, handle) in files {
        running.client.close(handle);
    }
    let moves = end(running, &store);
    assert!(moves.demoted > 0 && moves.damaged == 0, "{moves:?}");
    let mut running = open(&store).expect("it opens again");
    let found = as_root(|caller| running.client.lookup(caller, InodeNumber::ROOT, b"3")).expect("a name");
    assert_eq!(found.size, 2048 * BLOCK as u64);
    end(running, &store);
}

/// A pin that is set on a file moves its data, in both directions, without anything else going on.
#[test]
fn a_pin_moves_the_data_of_a_file() {
    let folders = Folders::new("pin");
    let store = folders.make(32, 64, 8);
    let mut running = open(&store).expect("it opens");
    let file = new_file(&mut running.client, "file");
    for block in 0..512 {
        write(&mut running.client, file, block);
    }
    for (class, on_ssd, moved) in [(&b"ssd"[..], 512, 512), (b"nvm", 0, 1024), (b"ssd", 512, 1536)] {
        as_root(|caller| running.client.set_xattr(caller, file.0, PIN, class, XattrMode::Set)).expect("room");
        wait_for(&mut running, "the pin", |running| {
            let totals = running.digester.totals();
            let slow = totals.media.get(1).map_or(0, |medium| medium.used());
            slow == on_ssd && totals.moves.demoted + totals.moves.promoted == moved
        });
        verify(&mut running.client, file, 512);
    }
    running.client.close(file.1);
    let moves = end(running, &store);
    assert_eq!((moves.demoted, moves.promoted), (1024, 512));
}

/// A client of a file system that is served, and a thread that looks after it.
struct Served(Arc<Mutex<Client<Remote, Mapped>>>);

impl Served {
    fn new(store: &Path) -> Self {
        let mut attached = attach(store).expect("it is served");
        let client = Arc::new(Mutex::new(attached.client));
        let looked = Arc::downgrade(&client);
        // It ends with the client.
        std::thread::spawn(move || {
            while attached.attention.wait() {
                let Some(client) = looked.upgrade() else { return };
                client.lock().expect("no panic").advance();
            }
        });
        Self(client)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Client<Remote, Mapped>) -> T) -> T {
        work(&mut self.0.lock().expect("no panic"))
    }

    /// Writes a block of one of its files again, and reads it. It may be moving.
    fn change(&self, files: &[(InodeNumber, Handle)], random: &mut Random) {
        let (file, block) = (files[random.index(files.len())], random.below(2048));
        self.with(|client| write(client, file, block));
        let mut bytes = vec![0; BLOCK];
        let read = self.with(|client| client.read(file.1, block * BLOCK as u64, &mut bytes));
        assert!(read == Ok(BLOCK) && bytes == content(file.0.0, block), "block {block}: {read:?}");
    }
}

/// Two clients write twice what the fast medium holds, and change some of it. Data leave that
/// medium meanwhile, and each client reads what both wrote. A pin moves data too.
#[test]
fn data_of_a_file_system_that_is_served_move() {
    let folders = Folders::new("served");
    let store = folders.make(32, 128, 8);
    let server = serve(&store, || {}).expect("it is served");
    let clients = [Served::new(&store), Served::new(&store)];
    let written: Vec<Vec<_>> = std::thread::scope(|scope| {
        let writers: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(number, client)| scope.spawn(move || write_files(client, number as u64)))
            .collect();
        writers.into_iter().map(|writer| writer.join().expect("it writes")).collect()
    });
    let (start, mut random, mut changed) = (Instant::now(), Random::new(1), 0);
    let mut moves_while = |what: &str, is_done: &dyn Fn() -> bool| {
        while !is_done() {
            assert!(start.elapsed() < PATIENCE, "{what}: {:?} {:?}", server.moves(), server.media());
            // Operations go on.
            let number = random.index(2);
            clients[number].change(&written[number], &mut random);
            changed += 1;
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    moves_while("the drain", &|| {
        server.moves().demoted > 0 && server.media().first().is_some_and(|home| !home.is_at_high())
    });
    for files in &written {
        for (file, _) in files {
            // Of the one that wrote it, and of the other one.
            let mode = OpenMode { read: true, write: false, truncate: false };
            for client in &clients {
                let opened = client.with(|client| as_root(|caller| client.open(caller, *file, mode)));
                client.with(|client| verify(client, (*file, opened.expect("it opens")), 2048));
            }
        }
    }
    let before = server.moves();
    assert_eq!(before.damaged, 0);
    let pinned = clients[0].with(|client| new_file(client, "pinned"));
    for block in 0..64 {
        clients[0].with(|client| write(client, pinned, block));
    }
    clients[0]
        .with(|client| as_root(|caller| client.set_xattr(caller, pinned.0, PIN, b"ssd", XattrMode::Set)))
        .expect("room");
    moves_while("the pin", &|| server.moves().demoted >= before.demoted + 64);
    assert!(changed > 20, "operations go on: {changed} while data moved");
    clients[0].with(|client| verify(client, pinned, 64));
    drop(clients);
    server.end().expect("all is digested");
    let checked = check(&store, true).expect("it is not open");
    assert!(checked.is_whole(), "{:#?}", checked.pool.findings);
}

/// Writes four files of 8 MiB.
fn write_files(client: &Served, number: u64) -> Vec<(InodeNumber, Handle)> {
    let files: Vec<_> =
        (0..4).map(|name| client.with(|client| new_file(client, &format!("{number}-{name}")))).collect();
    for block in 0..2048 {
        for file in &files {
            client.with(|client| write(client, *file, block));
        }
    }
    files
}

/// Prints how many operations a client does in each 100 ms, while it writes twice what the fast
/// medium holds and overwrites some of it, and data leave that medium.
#[test]
#[ignore = "a measurement: cargo test --release -p sietch-service --test it migration -- --ignored --nocapture"]
fn measure_operations_while_data_move() {
    let folders = Folders::new("measure");
    let store = folders.make(256, 1024, 64);
    let mut running = open(&store).expect("it opens");
    let files: Vec<_> = (0..8).map(|name| new_file(&mut running.client, &format!("{name}"))).collect();
    let (start, mut random) = (Instant::now(), Random::new(1));
    let (mut windows, mut longest, mut before) = (Vec::<(u64, u64)>::new(), Duration::ZERO, Duration::ZERO);
    let blocks = 2 * 256 * MIB / BLOCK as u64;
    let mut number = 0;
    while number < blocks || start.elapsed() < Duration::from_secs(15) {
        let (file, block) = match number {
            number if number < blocks => (number % 8, number / 8),
            _ => (random.below(8), random.below(blocks / 8)),
        };
        write(&mut running.client, files[file as usize], block);
        number += 1;
        let now = start.elapsed();
        longest = longest.max(now - before);
        before = now;
        let window = (now.as_millis() / 100) as usize;
        if windows.len() <= window {
            let moves = running.digester.totals().moves;
            windows.resize(window + 1, (0, moves.demoted + moves.promoted));
        }
        windows[window].0 += 1;
    }
    let seconds: Vec<u64> =
        windows.chunks(10).map(|second| second.iter().map(|(count, _)| count).sum()).collect();
    println!("operations of 4 KiB in each 100 ms, a second a line; MiB moved until then");
    for (second, counts) in windows.chunks(10).enumerate() {
        let moved = counts.last().map_or(0, |(_, moved)| moved * BLOCK as u64 / MIB);
        let counts: Vec<String> = counts.iter().map(|(count, _)| format!("{count:6}")).collect();
        println!("{second:3} s {} | {moved} MiB", counts.join(" "));
    }
    println!(
        "longest operation {longest:?}; least in a second {:?}; {:?}",
        seconds.iter().min(),
        running.digester.totals()
    );
    for (_, handle) in files {
        running.client.close(handle);
    }
    end(running, &store);
}
