//! Areas as a crash, a failing disk or another writer left them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::OnceLock;

use sietch_disk::MemoryQueue;
use sietch_disk::nvm::{Medium, NvmQueue};
use sietch_fs::change::Place;
use sietch_fs::check::{Options, check};
use sietch_fs::inode::{InodeNumber, Kind, Timestamp};
use sietch_fs::log::{Durability, LogIdentity, LogWriter};
use sietch_fs::name::NameKey;
use sietch_fs::pool::{self, Class, FormatOptions, Member, Pool};
use sietch_fs::{Change, Digest};
use sietch_persist::{self as persist, Log, OpenError};
use sietch_volume::Volume;

use crate::patched::patched;

/// A log whose superblocks, records and snapshot are patched. What `check` accepts opens, and takes
/// records again.
pub(crate) fn log(data: &[u8]) {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    let image = IMAGE.get_or_init(|| {
        let mut disk = MemoryQueue::new(16384 + 24 * 16384);
        let options = persist::FormatOptions { identity: 3, segment_bytes: Some(16384) };
        Log::format(&mut disk, options).expect("large enough");
        let open = |disk: MemoryQueue| {
            Log::open(disk, persist::Options::default(), &mut |_| Ok(())).expect("whole").0
        };
        let written = |log: &mut Log<MemoryQueue>| {
            log.submit().expect("a memory does not fail");
            while log.poll().expect("a memory does not fail") < log.last() || log.is_snapshotting() {}
        };
        let mut log = open(disk);
        log.append(&[6; 10]).expect("room");
        log.begin_snapshot().expect("room");
        log.snapshot_append(&[5; 300]).expect("room");
        log.finish_snapshot().expect("a memory does not fail");
        written(&mut log);
        log.append(&[8]).expect("room");
        written(&mut log);
        // A second run.
        let mut log = open(log.into_disk());
        for length in [0, 1, 100, 5000, 20_000] {
            log.append(&vec![7; length]).expect("room");
        }
        written(&mut log);
        log.into_disk().into_bytes()
    });
    let area = patched(image, data);
    let accepted = persist::check(&mut MemoryQueue::from_bytes(area.clone())).is_ok();
    match Log::open(MemoryQueue::from_bytes(area), persist::Options::default(), &mut |_| Ok(())) {
        Ok(_) => assert!(accepted, "a check refuses what opens"),
        // A check takes a queue or a map as well, and one whose epochs are used up.
        Err(OpenError::Content { .. } | OpenError::ContentVersion { .. } | OpenError::Worn { .. }) => {}
        Err(refused) => assert!(!accepted, "a check accepts what does not open: {refused}"),
    }
}

/// A volume whose superblocks and journal are patched.
pub(crate) fn volume(data: &[u8]) {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    let image = IMAGE.get_or_init(|| {
        let mut disk = MemoryQueue::new(256 * 4096);
        let options = sietch_volume::FormatOptions { identity: 1, half_bytes: None };
        Volume::format(&mut disk, options).expect("room");
        let mut volume = Volume::open(&mut disk).expect("just formatted");
        for (name, blocks) in [("first", 3), ("second", 2), ("third", 1)] {
            volume.create(&mut disk, name, 1000, blocks * 4096).expect("room");
        }
        volume.delete(&mut disk, "second").expect("it is there");
        volume.resize(&mut disk, "first", 7 * 4096).expect("room");
        disk.into_bytes()
    });
    let mut disk = MemoryQueue::from_bytes(patched(image, data));
    let Ok(mut volume) = Volume::open(&mut disk) else { return };
    let total: u64 = volume.areas().map(|area| area.size()).sum();
    assert!(total <= disk.bytes().len() as u64, "areas of {total} bytes share blocks, or leave the volume");
    let _ = volume.create(&mut disk, "fuzz", 1, 4096);
}

const POOL: usize = 2 << 20;
const RING: usize = 256 << 10;
const IDENTITY: LogIdentity = LogIdentity { log: 1, epoch: 0, seed: 0x1234_5678 };
const KEY: NameKey = NameKey([7; 16]);
const BIRTH: Timestamp = Timestamp { seconds: 1_000_000, nanoseconds: 0 };

type Disk = NvmQueue<Memory>;

fn members(memory: &Memory) -> Vec<Member<Disk>> {
    vec![Member { name: "nvm".into(), class: Class::Nvm, disk: NvmQueue::over(memory.clone(), None) }]
}

/// Memory without power losses: that of `sietch_sim` takes a second for an input.
#[derive(Clone)]
struct Memory(Rc<RefCell<Vec<u8>>>);

impl Memory {
    fn new(bytes: Vec<u8>) -> Self {
        Self(Rc::new(RefCell::new(bytes)))
    }
}

impl Medium for Memory {
    fn len(&self) -> usize {
        self.0.borrow().len()
    }

    fn load(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.0.borrow()[offset..offset + out.len()]);
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.0.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn fence(&mut self) {}

    fn description(&self) -> &'static str {
        "memory of a fuzzer"
    }
}

/// A pool with some files, and a log that holds more: pool and log.
fn file_system() -> &'static (Vec<u8>, Vec<u8>) {
    static IMAGE: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let (pool, log) = (Memory::new(vec![0; POOL]), Memory::new(vec![0; RING]));
        pool::format(&mut members(&pool), &FormatOptions { identity: 7, name_key: KEY }).expect("a pool");
        let mut digest = digest(&pool).expect("a pool");
        digest.inode_numbers(64).expect("numbers");
        let state = digest.begin_epoch(IDENTITY.log, IDENTITY.seed).expect("an epoch");
        let identity = LogIdentity { epoch: state.epoch, ..IDENTITY };
        let mut writer = LogWriter::new(log.clone(), identity, Durability::Operation).expect("a log");
        writer.continue_at(state.position, state.sequence + 1);
        append_files(&mut writer, 2);
        digest.digest(&log, IDENTITY.log, IDENTITY.seed).expect("it digests");
        append_files(&mut writer, 32);
        drop(digest);
        (pool.0.take(), log.0.take())
    })
}

/// A folder with files, a link and an attribute; their numbers begin with `first`.
fn append_files(writer: &mut LogWriter<Memory>, first: u64) {
    let mut append = |change: Change<'_>, data: &[u8]| {
        writer.append(BIRTH, &change, data).expect("the log is large enough");
    };
    let folder = format!("folder {first}");
    append(create(first, InodeNumber::ROOT, &folder, Kind::Directory), &[]);
    for number in 1..8 {
        let inode = InodeNumber(first + number);
        append(create(inode.0, InodeNumber(first), &format!("file {number}"), Kind::File), &[]);
        append(Change::Write { inode, offset: number * 3000, length: 5000 }, &[number as u8; 5000]);
    }
    append(create(first + 8, InodeNumber(first), "link", Kind::Symlink), &[]);
}

fn create<'a>(inode: u64, directory: InodeNumber, name: &'a str, kind: Kind) -> Change<'a> {
    let target: &[u8] = if kind == Kind::Symlink { b"somewhere" } else { b"" };
    let place = Place { directory, cookie: KEY.cookie(name.as_bytes()), name: name.as_bytes() };
    let inode = InodeNumber(inode);
    Change::Create { inode, place: Some(place), kind, mode: 0o755, uid: 0, gid: 0, device: 0, target }
}

fn digest(pool: &Memory) -> Option<Digest<Disk>> {
    let mut opened = Pool::open(members(pool)).ok()?;
    opened.readers_at(u64::MAX);
    Digest::new(opened, BIRTH).ok()
}

/// A pool whose superblocks, nodes and data are patched: it is checked, and takes the records of a
/// log.
pub(crate) fn pool(data: &[u8]) {
    let (pool, log) = file_system();
    let pool = Memory::new(patched(pool, data));
    let Ok(mut opened) = Pool::open(members(&pool)) else { return };
    let _ = check(&mut opened, Options { data: true });
    drop(opened);
    let Some(mut digest) = digest(&pool) else { return };
    let _ = digest.digest(&Memory::new(log.clone()), IDENTITY.log, IDENTITY.seed);
    let _ = digest.reap();
}

/// A log whose records are patched. After a digest, whatever it refused, a check finds nothing.
pub(crate) fn operation_log(data: &[u8]) {
    let (pool, log) = file_system();
    let log = Memory::new(patched(log, data));
    let mut digest = digest(&Memory::new(pool.clone())).expect("a pool");
    for _ in 0..64 {
        match digest.digest(&log, IDENTITY.log, IDENTITY.seed) {
            Ok(batch) if batch.invalid.is_none() && batch.records != 0 => {}
            _ => break,
        }
    }
    while digest.reap().expect("the memory does not fail") {}
    let report = check(digest.pool(), Options { data: true }).expect("it can be checked");
    assert_eq!(report.findings, Vec::<String>::new());
}
