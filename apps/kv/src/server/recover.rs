//! Recovery: replays the log of an area into the shards of a store, and formats an area that was
//! never used.
//!
//! 1. A single shard replays the log on this thread, while the next segments are read. Of several
//!    shards, each replays on a thread of its own. This thread reads the log meanwhile, checks it,
//!    and divides its effects among the shards by key ([`Router`]). The queue to each thread is
//!    bounded, so that reading does not run ahead by more than a few batches.
//! 2. The superblock says roughly how much there is to read ([`Expected`]). After its first batch a
//!    shard knows roughly how many keys will come, and prepares for them at once.
//! 3. A shard that meets a fault stops, and the reader stops with it. The other shards replay what
//!    they have. The first fault in the order of the log counts, as with one shard.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use sietch::disk::DiskQueue;
use sietch::persist::{self, Entry, FormatOptions, HEADER, Log, OpenError, RecoveryReport};

use super::Error;
use super::log_writer::LogWriter;
use crate::foundation::settings::Durability;
use crate::shard::{Batch, Gathered, Now, RecordFault, ReplayError, Router, Shard, rejected, replay_entries};

/// Writes of the log in flight together. Effects of that time are batched into the next write. With
/// 50 clients, two are faster than four and use a quarter less processor time a request, because
/// each write costs an interrupt and a kernel wake-up.
const WRITES_IN_FLIGHT: usize = 2;

/// Bytes of a record of a snapshot, but for the last ones.
const SNAPSHOT_RECORD: u64 = 64 << 10;

/// Batches that wait for a shard's thread: enough to keep it busy while others get theirs.
const BATCHES: usize = 4;

/// Opens the log on `disk`, replays it into `shard` on this thread, and returns it ready for
/// appends. `identity` marks the log if the area is new.
///
/// # Errors
/// The area is damaged, or holds something else. Its records stay as they are.
pub fn recover<D: DiskQueue>(
    name: &str,
    disk: D,
    shard: &mut Shard,
    durability: Durability,
    identity: u128,
    now: Now,
) -> Result<(LogWriter<D>, RecoveryReport), Error> {
    let area = || name.to_owned();
    let mut disk = format_unused(name, disk, identity)?;
    let expected = Expected::of(&mut disk).map_err(|cause| Error::Log { name: area(), cause })?;
    let (opened, fault) = replay_alone(disk, shard, options(durability), now, expected);
    if let Some(cause) = fault {
        return Err(Error::Replay { name: area(), cause });
    }
    let (log, report) = opened.map_err(|cause| Error::Log { name: area(), cause })?;
    shard.finish_recovery().map_err(|cause| Error::Replay { name: area(), cause })?;
    shard.enable_journal(true);
    let log_writer = writer(log, &report, durability);
    shard.limit_snapshot(log_writer.most_dumped());
    Ok((log_writer, report))
}

/// As [`recover`], into all shards of a store, in their order.
///
/// # Errors
/// As [`recover`].
pub(super) fn recover_shards<D: DiskQueue>(
    name: &str,
    disk: D,
    shards: &mut [Box<Shard>],
    durability: Durability,
    identity: u128,
    now: Now,
) -> Result<(LogWriter<D>, RecoveryReport), Error> {
    if let [shard] = shards {
        return recover(name, disk, shard, durability, identity, now);
    }
    let area = || name.to_owned();
    let mut disk = format_unused(name, disk, identity)?;
    let expected = Expected::of(&mut disk).map_err(|cause| Error::Log { name: area(), cause })?;
    let (opened, fault) = replay_in_parallel(disk, shards, options(durability), now, expected);
    if let Some(cause) = fault {
        return Err(Error::Replay { name: area(), cause });
    }
    let (log, report) = opened.map_err(|cause| Error::Log { name: area(), cause })?;
    let faults = shards.iter_mut().filter_map(|shard| shard.finish_recovery().err());
    if let Some(cause) = faults.min_by_key(ReplayError::sequence) {
        return Err(Error::Replay { name: area(), cause });
    }
    let log_writer = writer(log, &report, durability);
    for shard in shards {
        shard.enable_journal(true);
        shard.limit_snapshot(log_writer.most_dumped());
    }
    Ok((log_writer, report))
}

fn format_unused<D: DiskQueue>(name: &str, mut disk: D, identity: u128) -> Result<D, Error> {
    let area = || name.to_owned();
    match persist::is_formatted(&mut disk) {
        Ok(true) => {}
        Ok(false) => Log::format(&mut disk, FormatOptions::new(identity))
            .map_err(|cause| Error::Format { name: area(), cause })?,
        Err(cause) => return Err(Error::Log { name: area(), cause }),
    }
    Ok(disk)
}

fn options(durability: Durability) -> persist::Options {
    persist::Options {
        durability: match durability {
            Durability::Always => persist::Durability::Always,
            Durability::Interval | Durability::Never | Durability::None => persist::Durability::Deferred,
        },
        in_flight: WRITES_IN_FLIGHT,
    }
}

fn writer<D: DiskQueue>(mut log: Log<D>, report: &RecoveryReport, durability: Durability) -> LogWriter<D> {
    // The area may have been made larger since. If growing fails, the log fails at its first write.
    let _ = log.grow(report.area);
    LogWriter::new(log, durability)
}

/// What opening a log returns.
type Opened<D> = Result<(Log<D>, RecoveryReport), OpenError>;

/// Replays the log on `disk` into the only shard. Returns the log and the first fault.
fn replay_alone<D: DiskQueue>(
    disk: D,
    shard: &mut Shard,
    options: persist::Options,
    now: Now,
    expected: Expected,
) -> (Opened<D>, Option<ReplayError>) {
    let (mut gathered, mut expected) = (Gathered::default(), Some(expected));
    shard.begin_replay(now);
    let (opened, fault) = replay_entries(
        |entry| {
            let replayed = shard.gather(entry, &mut gathered)?;
            if let Some(expected) = expected.take_if(|_| replayed) {
                shard.expect_keys(expected.times(gathered.log_records, gathered.bytes) as usize);
            }
            Ok(())
        },
        |apply| Log::open(disk, options, apply),
    );
    let fault = fault.or_else(|| shard.replay_gathered(&mut gathered).err());
    (opened, fault)
}

/// Replays the log on `disk` with a thread for each shard. Returns the log and the first fault.
fn replay_in_parallel<D: DiskQueue>(
    disk: D,
    shards: &mut [Box<Shard>],
    options: persist::Options,
    now: Now,
    expected: Expected,
) -> (Opened<D>, Option<ReplayError>) {
    std::thread::scope(|scope| {
        let mut router = Router::new(shards.len());
        let expected = Expected { snapshot_bytes: expected.snapshot_bytes / shards.len() as u64, ..expected };
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        for shard in shards {
            let (queue, batches) = sync_channel(BATCHES);
            let (back, emptied) = channel();
            queues.push(Queue { queue, emptied });
            threads.push(scope.spawn(move || replay_batches(shard, &batches, &back, now, expected)));
        }
        let mut fault = None;
        let opened = Log::open(disk, options, &mut |entry| {
            let divided = match entry {
                Entry::Snapshot(payload) => router.snapshot(payload),
                Entry::Record(sequence, payload) => router.record(sequence, payload),
            };
            rejected(divided, &mut fault)?;
            if pass_on(&mut router, &queues) { Ok(()) } else { Err("a shard has met a fault".into()) }
        });
        let mut first: Option<RecordFault> = fault.map(|cause| (router.records(), cause));
        let records = router.records();
        let (rest, whole) = router.finish();
        for (queue, batch) in std::iter::zip(&queues, rest) {
            // A thread that has ended has met a fault.
            let _ = queue.queue.send(batch);
        }
        drop(queues);
        let ended = whole.err().filter(|_| opened.is_ok()).map(|cause| (records + 1, cause));
        let of_threads = threads.into_iter().filter_map(|thread| match thread.join() {
            Ok(fault) => fault,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        first = first.into_iter().chain(ended).chain(of_threads).min_by_key(|(record, _)| *record);
        (opened, first.map(|(_, cause)| cause))
    })
}

/// Gives full batches to the threads; false if one of them has ended.
fn pass_on(router: &mut Router, queues: &[Queue]) -> bool {
    queues.iter().enumerate().all(|(shard, Queue { queue, emptied })| {
        if !router.is_full(shard) {
            return true;
        }
        let spare = emptied.try_recv().unwrap_or_default();
        queue.send(router.exchange(shard, spare)).is_ok()
    })
}

/// The way to the thread of a shard.
struct Queue {
    queue: SyncSender<Batch>,
    /// Batches that come back without shares, so that their memory is used again.
    emptied: Receiver<Batch>,
}

/// What the superblock says of a log that is to be replayed. It may be wrong, and is only used to
/// prepare for it.
#[derive(Debug, Clone, Copy)]
struct Expected {
    /// Bytes of the snapshot.
    snapshot_bytes: u64,
    /// Records of the log.
    records: u64,
    /// Bytes of the area.
    capacity: u64,
}

impl Expected {
    fn of<D: DiskQueue>(disk: &mut D) -> Result<Self, OpenError> {
        let (snapshot, records) = persist::expected_records(disk)?;
        // No more than the area has room for.
        let capacity = disk.capacity();
        let snapshot_bytes = snapshot.saturating_mul(SNAPSHOT_RECORD).min(capacity);
        Ok(Self { snapshot_bytes, records: records.min(capacity / HEADER as u64), capacity })
    }

    /// How many times as much will come as has come, that included: so many records of the log,
    /// or a part of the snapshot, and so many bytes. The area has no room for more.
    fn times(&self, log_records: u64, bytes: u64) -> u64 {
        let times = match log_records {
            0 => self.snapshot_bytes / bytes.max(1),
            records => self.records / records,
        };
        times.min(self.capacity / bytes.max(1))
    }
}

/// Replays batches until there are no more; returns the first fault.
fn replay_batches(
    shard: &mut Shard,
    batches: &Receiver<Batch>,
    back: &Sender<Batch>,
    now: Now,
    expected: Expected,
) -> Option<RecordFault> {
    let mut expected = Some(expected);
    for mut batch in batches {
        if let Err(fault) = shard.replay_batch(&batch, now) {
            return Some(fault);
        }
        if let Some(expected) = expected.take() {
            let times = expected.times(batch.log_records().unwrap_or(0), batch.bytes() as u64);
            shard.expect_keys(times as usize);
        }
        batch.clear();
        // The reader drops its end once it has read everything.
        let _ = back.send(batch);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::Expected;

    #[test]
    fn no_more_keys_are_expected_than_the_area_has_room_for() {
        let expected = Expected { snapshot_bytes: 1 << 20, records: 900, capacity: 1 << 30 };
        assert_eq!((expected.times(0, 1 << 16), expected.times(3, 1 << 16)), (16, 300));
        let forged = Expected { snapshot_bytes: u64::MAX, records: u64::MAX, capacity: 1 << 30 };
        assert_eq!((forged.times(0, 1 << 16), forged.times(3, 1 << 16)), (1 << 14, 1 << 14));
    }
}
