//! What a log does when the disk misbehaves: errors stop it, damage is named, and nothing
//! acknowledged goes missing silently.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use sietch_disk::{Completion, DiskQueue, MemoryQueue, Operation, Priority, SubmitError};
use sietch_persist::{
    AppendError, Durability, Entry, FormatOptions, Log, OpenError, Options, SnapshotError, Waiter, check,
};
use sietch_structures::XorShift64;

const CAPACITY: usize = 16384 + 16 * 16384;
const DATA: u64 = 16384;

/// What to do to one request.
#[derive(Clone, Copy)]
enum Fault {
    /// It fails with this error number.
    Error(i32),
    /// A write reports success and does nothing.
    Lost,
    /// A write lands this many bytes away.
    Misdirected(i64),
}

/// Which request: the n-th write to the segments, or to the superblocks, or the n-th flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Data(usize),
    Superblock(usize),
    Flush(usize),
}

#[derive(Default)]
struct Plan {
    fault: Option<(Target, Fault)>,
    /// Reads that touch the block of 4096 bytes here fail.
    unreadable: Option<u64>,
    data: usize,
    superblocks: usize,
    flushes: usize,
    /// Offset and length of each write to the segments.
    writes: Vec<(u64, usize)>,
}

/// A memory area with one planned fault.
struct FaultyDisk {
    inner: MemoryQueue,
    plan: Rc<RefCell<Plan>>,
    broken: Vec<(u64, i32)>,
}

impl FaultyDisk {
    fn new(bytes: Vec<u8>) -> (Self, Rc<RefCell<Plan>>) {
        let plan = Rc::new(RefCell::new(Plan::default()));
        let inner = MemoryQueue::from_bytes(bytes);
        (Self { inner, plan: Rc::clone(&plan), broken: Vec::new() }, plan)
    }
}

impl DiskQueue for FaultyDisk {
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn block_size(&self) -> usize {
        self.inner.block_size()
    }

    fn physical_block_size(&self) -> usize {
        self.inner.physical_block_size()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn submit_with(
        &mut self,
        token: u64,
        mut operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        let mut plan = self.plan.borrow_mut();
        let target = match &operation {
            Operation::Read { .. } | Operation::ReadVectored { .. } | Operation::Discard { .. } => {
                let range = operation.offset()..operation.offset() + operation.bytes();
                if plan.unreadable.is_some_and(|block| block < range.end && range.start < block + 4096) {
                    self.broken.push((token, 5));
                }
                return self.inner.submit_with(token, operation, priority);
            }
            Operation::Write { offset, length, .. } if *offset >= DATA => {
                plan.writes.push((*offset, *length));
                plan.data += 1;
                Target::Data(plan.data - 1)
            }
            Operation::Write { .. } | Operation::WriteVectored { .. } => {
                plan.superblocks += 1;
                Target::Superblock(plan.superblocks - 1)
            }
            Operation::Flush => {
                plan.flushes += 1;
                Target::Flush(plan.flushes - 1)
            }
        };
        match plan.fault {
            Some((hit, fault)) if hit == target => match (fault, &mut operation) {
                (Fault::Error(code), _) => self.broken.push((token, code)),
                (Fault::Misdirected(by), Operation::Write { offset, .. }) => {
                    *offset = offset.checked_add_signed(by).expect("inside the area");
                }
                (_, Operation::Write { offset, length, buffer, .. }) => {
                    // Writes back what is there.
                    let start = *offset as usize;
                    buffer[..*length].copy_from_slice(&self.inner.bytes()[start..start + *length]);
                }
                _ => {}
            },
            _ => {}
        }
        self.inner.submit_with(token, operation, priority)
    }

    fn notify(&mut self) -> io::Result<()> {
        self.inner.notify()
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        let taken = self.inner.complete(out);
        for completion in &mut out[before..] {
            if let Some(index) = self.broken.iter().position(|(t, _)| *t == completion.token) {
                let (_, code) = self.broken.swap_remove(index);
                completion.result = Err(io::Error::from_raw_os_error(code));
            }
        }
        taken
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.inner.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

fn formatted() -> Vec<u8> {
    let mut disk = MemoryQueue::new(CAPACITY);
    Log::format(&mut disk, FormatOptions::new(7)).expect("large enough");
    disk.into_bytes()
}

/// Payloads that recovery delivered.
#[derive(PartialEq, Eq)]
struct Found(Vec<Vec<u8>>);

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} payloads", self.0.len())
    }
}

/// What recovery delivers, and whether the log was closed in order.
fn contents(bytes: &[u8]) -> Result<(Found, bool), OpenError> {
    let mut found = Vec::new();
    let disk = MemoryQueue::from_bytes(bytes.to_vec());
    let (_, report) = Log::open(disk, Options::default(), &mut |entry| {
        match entry {
            Entry::Snapshot(payload) | Entry::Record(_, payload) => found.push(payload.to_vec()),
        }
        Ok(())
    })?;
    Ok((Found(found), report.clean))
}

fn nothing(_: Entry<'_>) -> sietch_persist::Applied {
    Ok(())
}

fn record(n: usize) -> Vec<u8> {
    format!("record {n} {}", "x".repeat(n * 37 % 900)).into_bytes()
}

/// Appends records one by one, each acknowledged before the next.
fn serve(disk: FaultyDisk, count: usize) -> (Log<FaultyDisk>, usize) {
    let (mut log, _) = Log::open(disk, Options::default(), &mut nothing).expect("formatted");
    for n in 0..count {
        let Ok(sequence) = log.append(&record(n)) else { return (log, n) };
        if log.submit().is_err() {
            return (log, n);
        }
        loop {
            match log.poll() {
                Ok(durable) if durable >= sequence => break,
                Ok(_) => {}
                Err(_) => return (log, n),
            }
        }
    }
    (log, count)
}

fn records(count: usize) -> Found {
    Found((0..count).map(record).collect())
}

#[test]
fn a_failed_write_stops_the_log_for_good() {
    for code in [5, 28] {
        for hit in 0..20 {
            let (disk, plan) = FaultyDisk::new(formatted());
            plan.borrow_mut().fault = Some((Target::Data(hit), Fault::Error(code)));
            let (mut log, acknowledged) = serve(disk, 30);
            assert!(acknowledged <= hit);
            let first = log.poll().expect_err("failed").to_string();
            let (offset, _) = plan.borrow().writes[hit];
            assert!(first.contains(&format!("writing the log at offset {offset}")), "{first}");
            assert!(matches!(log.append(b"more"), Err(AppendError::Failed(f)) if f.to_string() == first));
            assert_eq!(log.submit().expect_err("failed").to_string(), first);
            assert_eq!(log.flush().expect_err("failed").to_string(), first);
            assert!(matches!(log.begin_snapshot(), Err(SnapshotError::Failed(_))));
            let (found, _) = contents(log.into_disk().inner.bytes()).expect("opens again");
            assert!(found.0.len() >= acknowledged);
            assert_eq!(found, records(found.0.len()));
        }
    }
}

#[test]
fn a_failed_request_of_a_snapshot_leaves_the_log_whole() {
    let targets =
        // The opening wrote the first four.
        (9..11).map(Target::Data).chain([Target::Flush(1), Target::Superblock(4), Target::Superblock(5)]);
    for target in targets {
        let (disk, plan) = FaultyDisk::new(formatted());
        plan.borrow_mut().fault = Some((target, Fault::Error(5)));
        let (mut log, acknowledged) = serve(disk, 9);
        assert_eq!(acknowledged, 9);
        log.begin_snapshot().expect("room");
        for record in records(9).0 {
            let padded = [record, vec![0; 2000]].concat();
            log.snapshot_append(&padded).expect("room");
        }
        let outcome = log.finish_snapshot().map_err(|e| e.to_string()).and_then(|()| {
            while log.is_snapshotting() {
                log.poll().map_err(|e| e.to_string())?;
            }
            Ok(())
        });
        let error = outcome.expect_err("the snapshot met the fault");
        assert!(error.contains("os error 5"), "{target:?}: {error}");
        let (found, _) = contents(log.into_disk().inner.bytes()).expect("opens again");
        assert_eq!(found.0.len(), 9, "{target:?}");
    }
}

/// A queue that breaks when it is notified.
struct Broken(MemoryQueue, Rc<RefCell<bool>>);

impl DiskQueue for Broken {
    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn block_size(&self) -> usize {
        self.0.block_size()
    }

    fn physical_block_size(&self) -> usize {
        self.0.physical_block_size()
    }

    fn depth(&self) -> usize {
        self.0.depth()
    }

    fn submit_with(
        &mut self,
        token: u64,
        operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        self.0.submit_with(token, operation, priority)
    }

    fn notify(&mut self) -> io::Result<()> {
        if *self.1.borrow() { Err(io::Error::other("broken")) } else { self.0.notify() }
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        self.0.complete(out)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.0.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
}

/// Each waiter for a record is notified of a failure, wherever it was met.
#[test]
fn a_failure_notifies_every_waiter() {
    let broken = Rc::new(RefCell::new(false));
    let disk = Broken(MemoryQueue::from_bytes(formatted()), Rc::clone(&broken));
    let (mut log, _) = Log::open(disk, Options::default(), &mut nothing).expect("formatted");
    let sequence = log.append(b"spice").expect("room");
    let results = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = || {
        let results = std::sync::Arc::clone(&results);
        Waiter::call(move |result| results.lock().expect("alone").push(result.is_err()))
    };
    log.when_durable(sequence, tell());
    *broken.borrow_mut() = true;
    log.submit().expect_err("the queue is broken");
    assert_eq!(*results.lock().expect("alone"), [true]);
    log.poll().expect_err("and stays so");
    log.when_durable(sequence, tell());
    assert_eq!(*results.lock().expect("alone"), [true, true]);
}

/// Whatever of a truncation fails, the log begins at its previous or at its requested place, with
/// everything behind it.
#[test]
fn a_failed_request_of_a_truncation_leaves_the_log_whole() {
    // The opening flushed once and wrote four superblocks.
    for (durability, target) in [
        (Durability::Always, Target::Superblock(4)),
        (Durability::Always, Target::Superblock(5)),
        (Durability::Deferred, Target::Flush(1)),
        (Durability::Deferred, Target::Superblock(5)),
        (Durability::Deferred, Target::Data(3)),
    ] {
        for code in [5, 28] {
            let (disk, plan) = FaultyDisk::new(formatted());
            plan.borrow_mut().fault = Some((target, Fault::Error(code)));
            let options = Options { durability, in_flight: 4 };
            let (mut log, _) = Log::open(disk, options, &mut nothing).expect("formatted");
            let mut last = 0;
            for n in 0..9 {
                last = log.append(&record(n)).expect("room");
                log.submit().expect("the fault comes later");
            }
            let outcome = log.truncate(last).map_err(|e| e.to_string()).and_then(|()| {
                while log.is_truncating() {
                    log.poll().map_err(|e| e.to_string())?;
                }
                Ok(())
            });
            let error = outcome.expect_err("the truncation met the fault");
            assert!(error.contains(&format!("os error {code}")), "{target:?}: {error}");
            assert!(log.truncate(last).is_err() && log.append(b"more").is_err(), "it failed for good");
            let (found, _) = contents(log.into_disk().inner.bytes()).expect("opens again");
            let whole = found == records(9) || found == Found(vec![record(8)]);
            // A write that failed may be missing, and what follows it.
            let cut = matches!(target, Target::Data(_)) && found == records(found.0.len());
            assert!(whole || cut, "{target:?}: {found:?}");
        }
    }
}

#[test]
fn rot_in_an_acknowledged_record_is_named_not_dropped() {
    let (disk, plan) = FaultyDisk::new(formatted());
    let (log, count) = serve(disk, 30);
    let bytes = log.into_disk().inner.into_bytes();
    assert_eq!(count, 30);
    let writes = plan.borrow().writes.clone();
    let last = writes.len() - 1;
    for (index, &(offset, _)) in writes.iter().enumerate() {
        for at in [0, 5, 8, 12, 20, 28, 36, 41] {
            let mut rotten = bytes.clone();
            rotten[offset as usize + at] ^= 0x40;
            let outcome = contents(&rotten);
            if index < last {
                let error = outcome.expect_err("an acknowledged record is lost");
                assert!(matches!(error, OpenError::Corrupt { offset: o, .. } if o == offset), "{error}");
                let checked = check(&mut MemoryQueue::from_bytes(rotten)).expect_err("likewise");
                assert_eq!(checked.to_string(), error.to_string());
            } else {
                // Nothing on the disk proves that the very last write was acknowledged.
                assert_eq!(outcome.expect("a torn tail").0, records(29));
            }
        }
    }
}

/// What a previous owner wrote last is missed as soon as its successor has begun where it ended.
#[test]
fn rot_in_the_last_record_of_a_former_owner_is_named() {
    let (disk, plan) = FaultyDisk::new(formatted());
    let (log, _) = serve(disk, 5);
    let &(offset, _) = plan.borrow().writes.last().expect("wrote");
    let (disk, _) = FaultyDisk::new(log.into_disk().inner.into_bytes());
    let (log, _) = serve(disk, 1);
    let mut rotten = log.into_disk().inner.into_bytes();
    rotten[offset as usize + 45] ^= 1;
    let error = contents(&rotten).expect_err("record 5 is lost");
    assert!(matches!(error, OpenError::Corrupt { offset: o, .. } if o == offset), "{error}");
    assert!(error.to_string().contains("goes on at"), "{error}");
}

/// Writes `value` at byte `at` of the record at `offset` and makes its checksum right, as a genuine
/// one would have it (docs/spec/log.md).
fn forge(bytes: &mut [u8], offset: u64, at: usize, value: u64) {
    use crc_fast::{CrcAlgorithm, Digest, checksum};
    let record = &mut bytes[offset as usize..];
    record[at..at + 8].copy_from_slice(&value.to_le_bytes());
    let length = u32::from_le_bytes(record[8..12].try_into().expect("four bytes")) as usize;
    let seed = checksum(CrcAlgorithm::Crc32Iscsi, &7u128.to_le_bytes());
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, seed ^ (offset >> 3));
    digest.update(&record[8..40 + length]);
    record[4..8].copy_from_slice(&(digest.finalize() as u32).to_le_bytes());
}

/// A whole record where the next one is expected counts only if it is the very next of this very
/// stream.
#[test]
fn a_record_of_another_stream_or_sequence_is_none_of_the_log() {
    let (disk, plan) = FaultyDisk::new(formatted());
    let (log, _) = serve(disk, 30);
    let bytes = log.into_disk().inner.into_bytes();
    let &(offset, _) = plan.borrow().writes.last().expect("wrote");
    let field = |at: usize| {
        let start = offset as usize + at;
        u64::from_le_bytes(bytes[start..start + 8].try_into().expect("eight bytes"))
    };
    let (stream, sequence) = (field(16), field(24));
    let mut same = bytes.clone();
    forge(&mut same, offset, 24, sequence);
    assert_eq!(contents(&same).expect("nothing was changed").0, records(30), "the forger cannot write");
    for (at, value) in [(16, stream | 5), (24, sequence + 1), (24, sequence - 1)] {
        let mut forged = bytes.clone();
        forge(&mut forged, offset, at, value);
        assert_eq!(contents(&forged).expect("a torn tail").0, records(29), "{value} at byte {at}");
    }
}

/// A snapshot that was never finished is no part of the log; but it was begun when the last record
/// was durable, and that gives its loss away.
#[test]
fn rot_in_the_last_record_is_given_away_by_an_unfinished_snapshot() {
    let (disk, plan) = FaultyDisk::new(formatted());
    let (mut log, _) = serve(disk, 9);
    let &(offset, _) = plan.borrow().writes.last().expect("wrote");
    log.begin_snapshot().expect("room");
    for _ in 0..4 {
        log.snapshot_append(&[7; 9000]).expect("room");
        log.poll().expect("a disk that works");
    }
    let mut rotten = log.into_disk().inner.into_bytes();
    assert_eq!(contents(&rotten).expect("whole").0, records(9));
    rotten[offset as usize + 45] ^= 1;
    let error = contents(&rotten).expect_err("record 9 is lost");
    assert!(matches!(error, OpenError::Corrupt { offset: o, .. } if o == offset), "{error}");
}

#[test]
fn after_closing_in_order_even_the_last_record_is_missed() {
    let (disk, plan) = FaultyDisk::new(formatted());
    let (log, _) = serve(disk, 5);
    let bytes = log.close().expect("a disk that works").inner.into_bytes();
    assert_eq!(contents(&bytes).expect("whole"), (records(5), true));
    let &(offset, _) = plan.borrow().writes.last().expect("wrote");
    let mut rotten = bytes;
    rotten[offset as usize + 45] ^= 1;
    let error = contents(&rotten).expect_err("the last record is lost").to_string();
    assert!(error.contains("closed in order"), "{error}");
}

#[test]
fn lost_and_misdirected_writes_are_noticed() {
    let (_, plan) = {
        let (disk, plan) = FaultyDisk::new(formatted());
        (serve(disk, 30), plan)
    };
    let writes = plan.borrow().writes.clone();
    for hit in 0..writes.len() - 1 {
        let back = writes[0].0 as i64 - writes[hit].0 as i64;
        for fault in [Fault::Lost, Fault::Misdirected(back), Fault::Misdirected(5 * 16384)] {
            let (disk, plan) = FaultyDisk::new(formatted());
            if matches!(fault, Fault::Misdirected(0)) {
                continue;
            }
            plan.borrow_mut().fault = Some((Target::Data(hit), fault));
            let (log, count) = serve(disk, 30);
            assert_eq!(count, 30, "the disk said that all is well");
            let error = contents(log.into_disk().inner.bytes()).expect_err("records are lost");
            assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
        }
    }
}

#[test]
fn rot_in_superblocks_is_survived_or_named() {
    let (disk, _) = FaultyDisk::new(formatted());
    let (log, _) = serve(disk, 20);
    let bytes = log.into_disk().inner.into_bytes();
    for copy in 0..4 {
        let mut rotten = bytes.clone();
        rotten[copy * 4096 + 100] ^= 1;
        assert_eq!(contents(&rotten).expect("there are others").0, records(20));
        let report = check(&mut MemoryQueue::from_bytes(rotten)).expect("there are others");
        assert_eq!(report.damaged_superblocks, [copy as u64 * 4096]);
    }
    // The opening wrote all four: those of a dead owner's last generation may land late and spoil
    // two.
    let mut rotten = bytes.clone();
    for place in [0, 8192] {
        let mut spoilt = bytes.clone();
        spoilt[place..place + 8192].copy_from_slice(&formatted()[place..place + 8192]);
        assert_eq!(contents(&spoilt).expect("there are others").0, records(20));
    }
    rotten[..16384].copy_from_slice(&formatted()[..16384]);
    let error = contents(&rotten).expect_err("all that the opening wrote are lost");
    assert!(matches!(error, OpenError::SuperblockOutdated { epoch: 0, found: 1, .. }), "{error}");
    for copy in 0..4 {
        rotten[copy * 4096 + 100] ^= 1;
    }
    let error = contents(&rotten).expect_err("all generations are lost");
    assert!(matches!(error, OpenError::Superblocks), "{error}");
    assert!(error.to_string().contains("4096"));
    let fresh = contents(&vec![0; CAPACITY]).expect_err("zeros are no log");
    assert!(matches!(fresh, OpenError::NotFormatted));
}

#[test]
fn rot_in_a_snapshot_is_named() {
    let (disk, plan) = FaultyDisk::new(formatted());
    let (mut log, _) = serve(disk, 5);
    log.begin_snapshot().expect("room");
    let from = plan.borrow().writes.len();
    for n in 0..3 {
        log.snapshot_append(&record(n)).expect("room");
    }
    log.finish_snapshot().expect("a disk that works");
    while log.is_snapshotting() {
        log.poll().expect("a disk that works");
    }
    let mut bytes = log.into_disk().inner.into_bytes();
    assert_eq!(contents(&bytes).expect("whole").0, records(3));
    let &(offset, _) = plan.borrow().writes[from..]
        .iter()
        .find(|(offset, _)| bytes[*offset as usize + 12] == 2)
        .expect("a write of the snapshot");
    bytes[offset as usize + 41] ^= 1;
    let error = contents(&bytes).expect_err("the snapshot is damaged");
    assert!(matches!(error, OpenError::Corrupt { what: "snapshot record", .. }), "{error}");
}

#[test]
fn hostile_superblocks_and_garbage_never_panic() {
    let mut numbers = XorShift64::new(1);
    let mut random = move || numbers.word();
    let (disk, _) = FaultyDisk::new(formatted());
    let (log, _) = serve(disk, 40);
    let bytes = log.into_disk().inner.into_bytes();
    for _ in 0..300 {
        let mut garbage = bytes.clone();
        for _ in 0..1 + random() % 40 {
            let at = random() as usize % 60000;
            garbage[at] = random() as u8;
        }
        if let Ok((found, _)) = contents(&garbage) {
            assert!(found.0.len() >= 39, "{} of 40 without a word", found.0.len());
        }
    }
    let noise: Vec<u8> = (0..CAPACITY).map(|_| random() as u8).collect();
    assert!(matches!(contents(&noise), Err(OpenError::Superblocks)));
}

#[test]
fn a_device_that_shrank_is_refused() {
    let (disk, _) = FaultyDisk::new(formatted());
    let (log, _) = serve(disk, 1);
    let mut bytes = log.into_disk().inner.into_bytes();
    bytes.truncate(CAPACITY - 4096);
    assert!(matches!(contents(&bytes), Err(OpenError::AreaTooSmall { .. })));
}

#[test]
fn deferred_records_are_durable_only_after_a_flush() {
    let options = Options { durability: Durability::Deferred, in_flight: 4 };
    let disk = MemoryQueue::from_bytes(formatted());
    let (mut log, _) = Log::open(disk, options, &mut nothing).expect("formatted");
    let sequence = log.append(b"spice").expect("room");
    log.submit().expect("a disk that works");
    log.poll().expect("a disk that works");
    assert_eq!(log.written(), sequence);
    assert!(log.durable() < sequence);
    log.flush().expect("a disk that works");
    while log.poll().expect("a disk that works") < sequence {}
    assert!(log.is_idle());
}

/// Says that time passes: the log is quiet for long enough to prove how far it is durable.
fn rest<D: DiskQueue>(log: &mut Log<D>) {
    for now in [0, 10_000_000_000] {
        log.write_due_proof(now).expect("a disk that works");
        while !log.is_idle() {
            log.poll().expect("a disk that works");
        }
    }
    assert_eq!(log.proven(), log.last());
}

/// Damage to any block of an idle area, or to its last few blocks together, is named, or costs
/// nothing.
#[test]
fn an_idle_log_misses_every_block_that_it_loses() {
    let (disk, plan) = FaultyDisk::new(formatted());
    let (mut log, count) = serve(disk, 12);
    rest(&mut log);
    let bytes = log.into_disk().inner.into_bytes();
    let (block, mut named) = (512, 0);
    for at in (0..bytes.len()).step_by(block) {
        for rot in [&[0; 512][..], &[0xa5; 512][..]] {
            let mut rotten = bytes.clone();
            rotten[at..at + block].copy_from_slice(rot);
            match contents(&rotten) {
                Ok((found, _)) => assert_eq!(found, records(count), "block at {at}"),
                Err(OpenError::Corrupt { .. }) => named += 1,
                Err(other) => panic!("block at {at}: {other}"),
            }
        }
    }
    assert!(named >= 2 * count, "only {named} blocks hold a record");
    let writes = plan.borrow().writes.clone();
    for last in 1..=count {
        let mut rotten = bytes.clone();
        for &(offset, length) in &writes[count - last..count] {
            rotten[offset as usize..offset as usize + length].fill(0);
        }
        let error = contents(&rotten).expect_err("acknowledged records are lost").to_string();
        assert!(error.contains("the superblock says"), "{error}");
    }
}

/// A log that is always busy proves itself at intervals, and one that was quiet does so once.
#[test]
fn a_mark_is_due_when_it_is_quiet_and_at_intervals() {
    let (disk, plan) = FaultyDisk::new(formatted());
    let (mut log, _) = serve(disk, 0);
    let millisecond = 1_000_000;
    for now in (0..2500).step_by(50) {
        let sequence = log.append(b"spice").expect("room");
        log.submit().expect("a disk that works");
        while log.poll().expect("a disk that works") < sequence {}
        log.write_due_proof(now * millisecond).expect("a disk that works");
    }
    assert_eq!(log.metrics().proofs, 2);
    assert!(log.next_deadline().is_some());
    log.write_due_proof(2700 * millisecond).expect("a disk that works");
    while !log.is_idle() {
        log.poll().expect("a disk that works");
    }
    let superblocks = plan.borrow().superblocks;
    for now in 2700..9000 {
        log.write_due_proof(now * millisecond).expect("a disk that works");
        log.poll().expect("a disk that works");
    }
    assert_eq!((log.metrics().proofs, log.proven(), log.next_deadline()), (3, log.last(), None));
    assert_eq!(plan.borrow().superblocks, superblocks, "it is proven already");
}

/// What an opening delivered is proven by its superblock.
#[test]
fn a_reopened_log_misses_records_that_it_once_delivered() {
    let (disk, plan) = FaultyDisk::new(formatted());
    let (log, _) = serve(disk, 5);
    let (log, _) = Log::open(log.into_disk(), Options::default(), &mut nothing).expect("whole");
    let mut rotten = log.into_disk().inner.into_bytes();
    let &(offset, _) = plan.borrow().writes.last().expect("wrote");
    rotten[offset as usize + 45] ^= 1;
    assert!(matches!(contents(&rotten), Err(OpenError::Corrupt { .. })));
}

/// Whichever block cannot be read: the log opens with all that it holds, or names the read. An
/// opening writes the superblocks anew.
#[test]
fn an_unreadable_block_costs_only_its_own_records() {
    let (disk, _) = FaultyDisk::new(formatted());
    let (mut log, count) = serve(disk, 12);
    rest(&mut log);
    let bytes = log.into_disk().inner.into_bytes();
    let (mut opened, mut named) = (0, 0);
    for block in (0..bytes.len() as u64).step_by(4096) {
        let (disk, plan) = FaultyDisk::new(bytes.clone());
        plan.borrow_mut().unreadable = Some(block);
        let mut found = Vec::new();
        let result = Log::open(disk, Options::default(), &mut |entry| {
            if let Entry::Record(_, payload) = entry {
                found.push(payload.to_vec());
            }
            Ok(())
        });
        match result {
            Ok((_, report)) => {
                assert_eq!(Found(found), records(count), "block {block}");
                assert_eq!(report.damaged_superblocks.contains(&block), block < DATA, "block {block}");
                // All four copies.
                assert_eq!(plan.borrow().superblocks, 4);
                opened += 1;
            }
            Err(OpenError::Failed(failure)) => {
                assert!(block >= DATA, "the others count");
                assert_eq!(failure.offset, block);
                named += 1;
            }
            Err(other) => panic!("block {block}: {other}"),
        }
    }
    // The records are in a few blocks.
    assert!(named > 0 && named < 5 && opened > 50, "{opened} opened, {named} named");
}

/// An area that cannot be read is not taken for one that was never used.
#[test]
fn an_area_that_cannot_be_read_is_not_called_unused() {
    let (disk, plan) = FaultyDisk::new(vec![0; CAPACITY]);
    plan.borrow_mut().unreadable = Some(4096);
    let mut disk = disk;
    assert!(matches!(sietch_persist::is_formatted(&mut disk), Err(OpenError::Failed(_))));
    plan.borrow_mut().unreadable = None;
    assert!(matches!(sietch_persist::is_formatted(&mut disk), Ok(false)));
}

/// A log whose beginning was erased is no area that was never used: formatting it would lose the
/// rest.
#[test]
fn an_area_with_an_erased_beginning_is_not_called_unused() {
    let image = |capacity: usize, count| {
        let mut disk = MemoryQueue::new(capacity);
        Log::format(&mut disk, FormatOptions::new(7)).expect("large enough");
        let (disk, _) = FaultyDisk::new(disk.into_bytes());
        let (log, served) = serve(disk, count);
        assert_eq!(served, count);
        log.into_disk().inner.into_bytes()
    };
    let judged = |bytes: &[u8]| sietch_persist::is_formatted(&mut MemoryQueue::from_bytes(bytes.to_vec()));
    // Many small segments, and one that is larger than all of the log.
    for (capacity, count) in [(CAPACITY, 40), (64 << 20, 40)] {
        let mut erased = image(capacity, count);
        for bytes in [16 << 10, 20 << 10] {
            erased[..bytes].fill(0);
            assert!(matches!(judged(&erased), Err(OpenError::Superblocks)), "{bytes} of {capacity} bytes");
        }
        erased.fill(0);
        assert!(matches!(judged(&erased), Ok(false)));
    }
    // Of segments that are farther off the heads are enough.
    let mut erased = image(64 << 20, 40);
    let record = erased[16 << 10..24 << 10].to_vec();
    let far = (16 << 10) + 200 * (256 << 10);
    erased[..1 << 20].fill(0);
    assert!(matches!(judged(&erased), Ok(false)));
    erased[far..far + record.len()].copy_from_slice(&record);
    assert!(matches!(judged(&erased), Err(OpenError::Superblocks)));
}
