//! A log that a mirror makes durable keeps every record that a sync acknowledged.
//!
//! 1. A run appends, syncs, polls and digests, on a disk that tears writes and spoils the rest of a
//!    physical block. It loses its power at *every* boundary of the disk; memory is lost too.
//! 2. The ring is loaded. The reader then finds the records up to one that was appended, among them
//!    all that were acknowledged, and sees no damage.
//! 3. The digest takes them, the log goes on under a new epoch, and the power fails again.
//! 4. The same must lose something on a disk whose durable writes are not durable, on one that does
//!    not flush, and on one that hides the size of its physical blocks.

use std::io;
use std::time::Duration;

use sietch_disk::nvm::{Mapped, Medium};
use sietch_disk::{BLOCK, Buffer, Completion, DiskQueue, MemoryQueue, Operation, Priority, SubmitError};
use sietch_fs::Change;
use sietch_fs::inode::{InodeNumber, Timestamp};
use sietch_fs::log::{
    AppendError, Durability, Group, LogDamage, LogIdentity, LogReader, LogWriter, Mirror, MirrorError,
};
use sietch_sim::disk::{Crash, Fault, Media, Options, SimDisk};
use sietch_sim::seeds::{self, Budget};
use sietch_sim::{Memory, Random};

use crate::log::changes::{IDENTITY, Kept, Owned};

/// Bytes of a small ring. A large one takes many requests for a group.
const RING: usize = 64 << 10;
const LARGE: usize = 2 << 20;

/// How the disk breaks its contract.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Durable writes are ordinary ones.
    Volatile,
    /// A flush does nothing.
    Unflushed,
    /// A disk of larger physical blocks says that they are sectors.
    Blocks,
}

struct Flawed {
    disk: SimDisk,
    flaw: Flaw,
}

impl DiskQueue for Flawed {
    fn capacity(&self) -> u64 {
        self.disk.capacity()
    }

    fn block_size(&self) -> usize {
        self.disk.block_size()
    }

    fn physical_block_size(&self) -> usize {
        if self.flaw == Flaw::Blocks { self.disk.block_size() } else { self.disk.physical_block_size() }
    }

    fn depth(&self) -> usize {
        self.disk.depth()
    }

    fn submit_with(&mut self, token: u64, operation: Operation, with: Priority) -> Result<(), SubmitError> {
        let operation = match operation {
            Operation::Write { offset, length, buffer, durable } => {
                Operation::Write { offset, length, buffer, durable: durable && self.flaw != Flaw::Volatile }
            }
            Operation::Flush if self.flaw == Flaw::Unflushed => {
                Operation::Read { offset: 0, length: BLOCK, buffer: Buffer::new(BLOCK) }
            }
            other => other,
        };
        self.disk.submit_with(token, operation, with)
    }

    fn notify(&mut self) -> io::Result<()> {
        self.disk.notify()
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        self.disk.complete(out)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.disk.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.disk.in_flight()
    }
}

/// What survives: the disk, and what a digest knows.
struct World {
    media: Media,
    ring: usize,
    flaw: Flaw,
    epoch: u32,
    /// Every record that was appended in this epoch, and where it ends.
    records: Vec<(Kept, u64)>,
    /// Sequence of the first of them.
    first: u64,
    /// Position and sequence of the first record that the digest does not have.
    digested: (u64, u64),
    /// Everything before was acknowledged.
    persisted: u64,
}

impl World {
    fn new(seed: u64, ring: usize, physical: usize, flaw: Flaw) -> Self {
        let mut options = Options::new(ring);
        options.physical = physical;
        options.tear = 64;
        options.depth = 4;
        let media = Media::new(options, Random::new(seed));
        Self { media, ring, flaw, epoch: 1, records: Vec::new(), first: 1, digested: (0, 1), persisted: 0 }
    }

    fn identity(&self) -> LogIdentity {
        LogIdentity { epoch: self.epoch, seed: IDENTITY.seed + u64::from(self.epoch), ..IDENTITY }
    }

    fn disk(&self) -> Flawed {
        Flawed { disk: self.media.open(), flaw: self.flaw }
    }

    /// Appends and syncs until the power fails, or `steps` times.
    fn run(&mut self, memory: Mapped, dice: &mut Random, steps: u64) -> Result<(), String> {
        let disk = self.disk();
        let block = disk.physical_block_size();
        let mut writer =
            LogWriter::new(memory, self.identity(), Durability::Sync { block }).map_err(|e| e.to_string())?;
        writer.continue_at(self.digested.0, self.digested.1);
        let mut mirror = Mirror::new(disk, &writer).map_err(|e| e.to_string())?;
        (self.first, self.persisted) = (self.digested.1, self.digested.0);
        self.records.clear();
        // A group that another thread writes.
        let mut taken: Option<Group<Flawed>> = None;
        for _ in 0..steps {
            match dice.below(10) {
                0..5 => match self.append(&mut writer, dice) {
                    Ok(()) => {}
                    Err(AppendError::Full) => self.digest(&mut writer, dice)?,
                    Err(AppendError::Invalid(cause)) => return Err(cause.to_string()),
                },
                5..7 => drop(mirror.sync(&writer)),
                _ => {}
            }
            if taken.is_none() && dice.below(3) == 0 {
                taken = mirror.begin(&mut writer).map_err(|e| e.to_string())?;
            }
            if let Some(mut group) = taken.take_if(|_| dice.below(2) == 0) {
                if group.poll(writer.medium()) || dice.below(4) == 0 {
                    mirror.finish(&mut writer, group);
                } else {
                    taken = Some(group);
                }
            }
            let persisted = mirror.poll(&mut writer).map_err(|e| e.to_string())?;
            if self.media.is_off() {
                break;
            }
            if persisted < self.persisted {
                return Err("the mirror takes back what it said".into());
            }
            self.persisted = persisted;
        }
        Ok(())
    }

    fn append(&mut self, writer: &mut LogWriter<Mapped>, dice: &mut Random) -> Result<(), AppendError> {
        let owned = Owned::random(dice, self.ring / 10);
        let appended = owned.append(writer)?;
        assert!(appended.position.end <= writer.reclaimed() + writer.capacity(), "not reclaimed");
        self.records.push((owned.kept(appended.sequence), appended.position.end));
        Ok(())
    }

    /// The digest takes some records from memory, whether they are on the disk or not.
    fn digest(&mut self, writer: &mut LogWriter<Mapped>, dice: &mut Random) -> Result<(), String> {
        let mut reader = self.reader(writer.medium())?;
        for _ in 0..dice.between(1, 20) {
            if reader.next().map_err(|e| e.to_string())?.is_none() {
                break;
            }
        }
        self.digested = (reader.position(), reader.sequence());
        writer.reclaim(self.digested.0);
        Ok(())
    }

    fn reader<'m>(&self, memory: &'m Mapped) -> Result<LogReader<'m, Mapped>, String> {
        LogReader::new(memory, self.identity(), self.digested.0, self.digested.1).map_err(|e| e.to_string())
    }

    /// Loads the ring after a crash, compares it with what was promised, and digests it.
    fn recover(&mut self) -> Result<Mapped, String> {
        let mut memory = empty(self.ring);
        let loaded = Mirror::load(&mut self.disk(), &mut memory).map_err(|e| e.to_string())?;
        assert!(loaded.unreadable.is_empty(), "{:?}", loaded.unreadable);
        let mut reader = self.reader(&memory)?;
        let mut found = Vec::new();
        while let Some(record) = reader.next().map_err(|e| e.to_string())? {
            found.push(Kept::of(&record));
        }
        while !reader.verify_end(usize::MAX).map_err(|e| e.to_string())? {}
        let end = (reader.position(), reader.sequence());
        let rest = &self.records[(self.digested.1 - self.first) as usize..];
        let acknowledged = rest.iter().filter(|(_, end)| *end <= self.persisted).count();
        if found.len() < acknowledged {
            return Err(format!("{} of {acknowledged} acknowledged records are left", found.len()));
        }
        if found.len() > rest.len() || !found.iter().zip(rest).all(|(found, (kept, _))| found == kept) {
            return Err(format!("{} records are no prefix of what was appended", found.len()));
        }
        self.digested = end;
        self.epoch += 1;
        Ok(memory)
    }
}

fn empty(ring: usize) -> Mapped {
    Mapped::anonymous(ring).expect("memory")
}

fn every_boundary(seed: u64, ring: usize, physical: usize, flaw: Flaw) -> Result<(), String> {
    let mut dice = Random::new(seed ^ 0x5eed);
    let mut world = World::new(seed, ring, physical, flaw);
    world.run(empty(ring), &mut Random::new(seed), 250)?;
    let last = world.media.boundaries();
    assert!(last > 12, "only {last} boundaries: this run tests nothing");
    for boundary in 1..=last {
        let mut world = World::new(seed, ring, physical, flaw);
        world.media.power_off_at(boundary);
        world.run(empty(ring), &mut Random::new(seed), 250)?;
        for _ in 0..3 {
            world.media.crash(Crash::Random(dice.fork()));
            seeds::explored(1);
            let memory = world
                .recover()
                .map_err(|what| format!("power lost at boundary {boundary}, {physical}: {what}"))?;
            world.media.power_off_at(world.media.boundaries() + dice.between(1, 20));
            world.run(memory, &mut dice, 100)?;
        }
    }
    Ok(())
}

#[test]
fn every_acknowledged_record_is_found_wherever_the_power_fails() {
    let budget = Budget { seeds: 30, seconds: 5 };
    seeds::run("it log::mirror::every_acknowledged", &[], budget, |seed| {
        let physical = [512, 4096, 8192][seed as usize % 3];
        if let Err(what) = every_boundary(seed, RING, physical, Flaw::None) {
            panic!("{what}");
        }
    });
}

#[test]
fn groups_of_many_requests_are_durable_as_a_whole() {
    seeds::run("it log::mirror::groups_of_many", &[], Budget { seeds: 3, seconds: 4 }, |seed| {
        if let Err(what) = every_boundary(seed, LARGE, 4096, Flaw::None) {
            panic!("{what}");
        }
    });
}

#[test]
fn a_disk_that_breaks_its_contract_is_caught() {
    for (flaw, ring) in [(Flaw::Volatile, RING), (Flaw::Unflushed, LARGE), (Flaw::Blocks, RING)] {
        let caught = (0..4).filter(|&seed| every_boundary(seed, ring, 4096, flaw).is_err()).count();
        assert!(caught >= 3, "only {caught} of 4 runs noticed the disk's flaw");
    }
}

/// A log of small writes with its mirror.
struct Small<D: DiskQueue> {
    writer: LogWriter<Mapped>,
    mirror: Mirror<D>,
}

impl<D: DiskQueue> Small<D> {
    fn new(disk: D) -> Self {
        let block = disk.physical_block_size();
        let writer = LogWriter::new(empty(RING), IDENTITY, Durability::Sync { block }).expect("a ring");
        let mirror = Mirror::new(disk, &writer).expect("a disk that fits");
        Self { writer, mirror }
    }

    fn append(&mut self, byte: u8) {
        let change = Change::Write { inode: InodeNumber(2), offset: 0, length: 100 };
        self.writer.append(Timestamp::default(), &change, &[byte; 100]).expect("room");
    }

    /// Syncs and polls until it is done.
    fn settle(&mut self) -> Result<(), MirrorError> {
        let target = self.mirror.sync(&self.writer);
        while self.mirror.poll(&mut self.writer)? < target {
            self.mirror.wait(Duration::from_secs(1))?;
        }
        Ok(())
    }
}

fn media() -> Media {
    let mut options = Options::new(RING);
    options.physical = 4096;
    Media::new(options, Random::new(1))
}

/// Bytes that each record of the disk holds, or the damage.
fn load(media: &Media) -> Result<Vec<u8>, LogDamage> {
    let mut memory = empty(RING);
    Mirror::load(&mut media.open(), &mut memory).expect("a disk that works");
    let mut reader = LogReader::new(&memory, IDENTITY, 0, 1).expect("a ring");
    let mut found = Vec::new();
    while let Some(record) = reader.next()? {
        found.push(record.data.1[0]);
    }
    while !reader.verify_end(4096)? {}
    Ok(found)
}

#[test]
fn syncs_that_wait_share_one_write() {
    let media = media();
    let mut log = Small::new(media.open());
    log.append(1);
    log.mirror.sync(&log.writer);
    log.mirror.poll(&mut log.writer).expect("a disk that works");
    for byte in 2..20 {
        log.append(byte);
        log.mirror.sync(&log.writer);
    }
    log.settle().expect("a disk that works");
    assert!(log.mirror.is_idle());
    // Submission and completion of two writes.
    assert_eq!(media.boundaries(), 4);
    assert_eq!(load(&media), Ok((1..20).collect()));
}

#[test]
fn records_that_come_while_a_group_is_written_wait_for_the_next() {
    let media = media();
    let mut log = Small::new(media.open());
    log.append(1);
    log.mirror.sync(&log.writer);
    let mut group = log.mirror.begin(&mut log.writer).expect("a disk that works").expect("a group");
    log.append(2);
    log.mirror.sync(&log.writer);
    assert!(log.mirror.begin(&mut log.writer).expect("a disk that works").is_none(), "the disk is away");
    assert!(!log.mirror.is_idle());
    while !group.poll(log.writer.medium()) {
        group.wait(Duration::from_secs(1));
    }
    assert!(group.is_durable());
    assert_eq!(log.mirror.persisted(), 0);
    log.mirror.finish(&mut log.writer, group);
    assert_eq!(log.mirror.persisted(), 4096);
    assert_eq!(media.boundaries(), 2, "the second record is not written yet");
    log.settle().expect("a disk that works");
    assert_eq!(load(&media), Ok(vec![1, 2]));
}

#[test]
fn a_group_that_comes_back_half_written_is_continued() {
    let media = media();
    let mut log = Small::new(media.open());
    log.append(1);
    log.mirror.sync(&log.writer);
    for polls in 0..2 {
        let mut group = log.mirror.begin(&mut log.writer).expect("a disk that works").expect("a group");
        if polls > 0 {
            // It is submitted, and not looked at again.
            let _ = group.poll(log.writer.medium());
        }
        if !group.is_durable() {
            log.mirror.finish(&mut log.writer, group);
            assert_eq!(log.mirror.persisted(), 0);
        }
    }
    log.settle().expect("a disk that works");
    assert_eq!(media.boundaries(), 2, "it was written once");
    assert_eq!(load(&media), Ok(vec![1]));
}

#[test]
fn a_group_that_fails_elsewhere_stops_the_mirror() {
    let media = media();
    let mut log = Small::new(media.open());
    log.append(1);
    log.mirror.sync(&log.writer);
    media.inject(1, Fault::Error(5));
    let mut group = log.mirror.begin(&mut log.writer).expect("a disk that works").expect("a group");
    while !group.poll(log.writer.medium()) {
        group.wait(Duration::from_secs(1));
    }
    assert!(group.has_failed() && !group.is_durable());
    log.mirror.finish(&mut log.writer, group);
    assert!(log.mirror.begin(&mut log.writer).is_err());
    assert_eq!(log.mirror.persisted(), 0);
}

#[test]
fn a_failed_flush_of_a_long_group_stops_the_mirror() {
    let media = Media::new(Options::new(LARGE), Random::new(1));
    let disk = Failing { disk: media.open(), blocks: Vec::new(), flushes: true, failed: 0 };
    let mut writer =
        LogWriter::new(empty(LARGE), IDENTITY, Durability::Sync { block: 4096 }).expect("a ring");
    let mut mirror = Mirror::new(disk, &writer).expect("a disk that fits");
    let change = Change::Write { inode: InodeNumber(2), offset: 0, length: 600 << 10 };
    writer.append(Timestamp::default(), &change, &[1; 600 << 10]).expect("room");
    mirror.sync(&writer);
    let failure = loop {
        match mirror.poll(&mut writer) {
            Ok(_) => mirror.wait(Duration::from_secs(1)).expect("a disk that works"),
            Err(failure) => break failure,
        }
        assert!(!mirror.is_idle(), "the group is durable without its flush");
    };
    assert!(failure.to_string().contains("flush 0 bytes"), "{failure}");
    assert_eq!(mirror.persisted(), 0);
}

#[test]
fn a_sync_without_new_records_writes_nothing() {
    let media = media();
    let mut log = Small::new(media.open());
    log.settle().expect("a disk that works");
    assert_eq!(media.boundaries(), 0);
    log.append(1);
    log.settle().expect("a disk that works");
    let before = media.boundaries();
    log.settle().expect("a disk that works");
    assert_eq!(media.boundaries(), before);
}

#[test]
fn a_failed_write_stops_the_mirror_for_good() {
    let media = media();
    let mut log = Small::new(media.open());
    log.append(1);
    log.settle().expect("a disk that works");
    media.inject(1, Fault::Error(5));
    log.append(2);
    let failure = log.settle().expect_err("the write fails");
    assert!(failure.to_string().contains("write 4096 bytes at 4096"), "{failure}");
    let persisted = log.mirror.persisted();
    log.append(3);
    for _ in 0..3 {
        assert!(log.settle().is_err(), "the disk works again, but nothing can say what it has");
    }
    assert_eq!(log.mirror.persisted(), persisted);
    assert_eq!(load(&media), Ok(vec![1]));
}

#[test]
fn a_lost_or_misdirected_write_is_damage_once_a_later_record_proves_it() {
    for fault in [Fault::Lost, Fault::Misdirected(20_480)] {
        let media = media();
        let mut log = Small::new(media.open());
        log.append(1);
        log.settle().expect("a disk that works");
        media.inject(1, fault);
        log.append(2);
        log.settle().expect("the disk lies");
        log.append(3);
        log.settle().expect("a disk that works");
        match load(&media) {
            Err(LogDamage::Missing { sequence: 2, position: 4096, found: 3, found_at: 8192 }) => {}
            other => panic!("{fault:?}: {other:?}"),
        }
    }
}

#[test]
fn a_rotten_bit_never_changes_a_record() {
    for seed in 0..200 {
        let media = Media::new(Options::new(RING), Random::new(seed));
        let mut log = Small::new(media.open());
        for byte in 1..6 {
            log.append(byte);
            if byte == 3 {
                media.inject(1, Fault::BitRot);
            }
            log.settle().expect("a disk that works");
        }
        match load(&media) {
            Ok(found) => assert_eq!(found, [1, 2, 3, 4, 5], "the bit was in a pad"),
            Err(LogDamage::Missing { sequence, .. }) => assert!(sequence == 3 || sequence == 4),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn records_the_digest_has_are_not_written() {
    let media = media();
    let mut log = Small::new(media.open());
    for lap in 0..5 {
        for byte in 0..100 {
            log.append(byte + lap);
        }
        log.writer.reclaim(log.writer.next_position());
    }
    log.append(9);
    log.settle().expect("a disk that works");
    assert_eq!(media.boundaries(), 2);
}

#[test]
fn a_disk_that_does_not_fit_is_refused() {
    let sync = |block| LogWriter::new(empty(RING), IDENTITY, Durability::Sync { block }).expect("a ring");
    let operation = LogWriter::new(empty(RING), IDENTITY, Durability::Operation).expect("a ring");
    let disk = || MemoryQueue::new(RING);
    assert!(matches!(Mirror::new(disk(), &operation), Err(MirrorError::Misfit { .. })));
    assert!(matches!(Mirror::new(disk(), &sync(64)), Err(MirrorError::Misfit { .. })));
    assert!(matches!(Mirror::new(MemoryQueue::new(RING / 2), &sync(512)), Err(MirrorError::Misfit { .. })));
    assert!(Mirror::new(disk(), &sync(512)).is_ok());
    let odd = LogWriter::new(Memory::new(RING + 512), IDENTITY, Durability::Sync { block: 512 });
    let odd = Mirror::new(MemoryQueue::new(2 * RING), &odd.expect("a ring"));
    assert!(matches!(odd, Err(MirrorError::Misfit { .. })));
    let mut small = MemoryQueue::new(RING / 2);
    assert!(matches!(Mirror::load(&mut small, &mut empty(RING)), Err(MirrorError::Misfit { .. })));
    assert_eq!(empty(RING).len(), RING);
}

#[test]
fn a_group_is_durable_when_its_last_request_is() {
    let mut options = Options::new(LARGE);
    options.depth = 2;
    let media = Media::new(options, Random::new(1));
    let mut writer = LogWriter::new(empty(LARGE), IDENTITY, Durability::Sync { block: 512 }).expect("a ring");
    let mut mirror = Mirror::new(media.open(), &writer).expect("a disk that fits");
    // Around the end of the ring in the second lap.
    for lap in 1..=2 {
        let length = 600 << 10;
        let change = Change::Write { inode: InodeNumber(2), offset: 0, length };
        let first = (writer.next_position(), writer.next_sequence());
        for byte in 0..2 {
            writer.append(Timestamp::default(), &change, &vec![byte; length as usize]).expect("room");
        }
        let target = mirror.sync(&writer);
        while mirror.poll(&mut writer).expect("a disk that works") < target {
            mirror.wait(Duration::from_secs(1)).expect("a disk that works");
        }
        let now = media.fork(Random::new(2));
        now.crash(Crash::Nothing);
        let mut loaded = empty(LARGE);
        Mirror::load(&mut now.open(), &mut loaded).expect("a queue that works");
        let mut reader = LogReader::new(&loaded, IDENTITY, first.0, first.1).expect("a ring");
        for byte in 0..2 {
            let record = reader.next().expect("no damage").expect("a record");
            assert!(record.data.1.iter().all(|other| *other == byte), "lap {lap}");
        }
        writer.reclaim(writer.next_position());
    }
}

/// A disk that fails requests for some blocks, or flushes.
struct Failing {
    disk: SimDisk,
    blocks: Vec<u64>,
    flushes: bool,
    /// Requests that failed.
    failed: usize,
}

/// Marks the token of a request that is to fail.
const FAILS: u64 = 1 << 63;

impl DiskQueue for Failing {
    fn capacity(&self) -> u64 {
        self.disk.capacity()
    }

    fn block_size(&self) -> usize {
        self.disk.block_size()
    }

    fn depth(&self) -> usize {
        self.disk.depth()
    }

    fn submit_with(&mut self, token: u64, operation: Operation, with: Priority) -> Result<(), SubmitError> {
        let range = operation.offset()..operation.offset() + operation.bytes();
        let is_flush = matches!(operation, Operation::Flush);
        let fails = self.blocks.iter().any(|block| range.contains(block)) || (self.flushes && is_flush);
        let token = if fails { token | FAILS } else { token };
        self.failed += usize::from(fails);
        self.disk.submit_with(token, operation, with)
    }

    fn notify(&mut self) -> io::Result<()> {
        self.disk.notify()
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let count = self.disk.complete(out);
        for completion in out.iter_mut().filter(|completion| completion.token & FAILS != 0) {
            completion.token &= !FAILS;
            completion.result = Err(io::Error::from_raw_os_error(5));
            completion.buffer.iter_mut().for_each(|buffer| buffer.fill(0xee));
        }
        count
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.disk.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.disk.in_flight()
    }
}

#[test]
fn blocks_that_cannot_be_read_are_named_and_the_others_are_loaded() {
    let media = Media::new(Options::new(LARGE), Random::new(1));
    let memory = Mapped::anonymous(LARGE).expect("memory");
    let mut writer = LogWriter::new(memory, IDENTITY, Durability::Sync { block: 512 }).expect("a ring");
    let mut mirror = Mirror::new(media.open(), &writer).expect("a disk that fits");
    let change = Change::Write { inode: InodeNumber(2), offset: 0, length: 1 << 19 };
    for byte in 1..3 {
        writer.append(Timestamp::default(), &change, &[byte; 1 << 19]).expect("room");
    }
    let target = mirror.sync(&writer);
    while mirror.poll(&mut writer).expect("a disk that works") < target {
        mirror.wait(Duration::from_secs(1)).expect("a disk that works");
    }
    let blocks = vec![600 << 10, LARGE as u64 - 4096];
    let mut disk = Failing { disk: media.open(), blocks: blocks.clone(), flushes: false, failed: 0 };
    let mut loaded = empty(LARGE);
    assert_eq!(Mirror::load(&mut disk, &mut loaded).expect("a queue that works").unreadable, blocks);
    assert_eq!(disk.failed, 4, "each once in a long request and once alone");
    let mut reader = LogReader::new(&loaded, IDENTITY, 0, 1).expect("a ring");
    assert!(reader.next().expect("no damage").is_some());
    assert_eq!(reader.next(), Ok(None), "the second record has an unreadable block");
    let (mut found, mut expected) = (vec![0; LARGE], vec![0; LARGE]);
    loaded.load(0, &mut found);
    writer.medium().load(0, &mut expected);
    expected[600 << 10..604 << 10].fill(0);
    let end = writer.next_position() as usize;
    assert!(found[..end] == expected[..end]);
}
