//! What a commit waits for while the log is rewritten, in virtual time.
//!
//! 1. The disk has a volatile cache, as most have ([`CachedDisk`]). A plain write ends when the
//!    cache has it. A durable write ends when the medium has everything that was in the cache
//!    before, and the write itself. The cache is fast, the medium is not.
//! 2. A client sets keys, one after the other, while a snapshot of many keys is written. Each
//!    reply waits until its write is durable.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use sietch_disk::{Completion, DiskQueue, MemoryQueue, Operation, Priority, SubmitError};
use sietch_kv::server::recover;
use sietch_kv::settings::{Durability, Settings};
use sietch_kv::shard::{Now, Shard};

/// Bytes that the medium writes in a microsecond.
const MEDIUM: u64 = 100;
/// Bytes that the cache takes in a microsecond.
const CACHE: u64 = 4000;
/// Nanoseconds of an iteration of the store: it dumps 256 KiB in one, faster than the medium is.
const ITERATION: u64 = 500_000;
/// Keys that are there before, and the bytes of their values.
const KEYS: usize = 20_000;
const VALUE: usize = 600;
/// The most bytes that a commit may wait behind: two writes of a snapshot, and what the log itself
/// has in flight.
const BOUND: u64 = (2 * 256 + 32) << 10;

/// A disk with a volatile cache, which writes back nothing by itself.
struct CachedDisk {
    memory: MemoryQueue,
    now: Rc<Cell<u64>>,
    /// What has not ended: when it does, and how.
    running: Vec<(u64, Completion)>,
    /// Bytes that the cache has and the medium does not.
    dirty: u64,
    /// When the medium has done everything that it was sent.
    busy_until: u64,
    /// The most bytes that the medium had to write before those of a durable write.
    most_behind: Rc<Cell<u64>>,
}

impl DiskQueue for CachedDisk {
    fn capacity(&self) -> u64 {
        self.memory.capacity()
    }

    fn block_size(&self) -> usize {
        self.memory.block_size()
    }

    fn depth(&self) -> usize {
        self.memory.depth()
    }

    fn submit_with(
        &mut self,
        token: u64,
        operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        if self.running.len() >= self.depth() {
            return Err(SubmitError::Full(operation));
        }
        let (now, bytes) = (self.now.get(), operation.bytes());
        let is_durable = matches!(operation, Operation::Write { durable: true, .. });
        let ends = if is_durable || matches!(operation, Operation::Flush) {
            let begin = self.busy_until.max(now);
            if is_durable {
                let behind = self.dirty + (begin - now) * MEDIUM / 1000;
                self.most_behind.set(self.most_behind.get().max(behind));
            }
            self.busy_until = begin + (self.dirty + bytes) * 1000 / MEDIUM;
            self.dirty = 0;
            self.busy_until
        } else {
            self.dirty += if operation.changes() { bytes } else { 0 };
            now + bytes * 1000 / CACHE
        };
        self.memory.submit_with(token, operation, priority)?;
        self.memory.notify().expect("memory does not fail");
        let mut done = Vec::new();
        self.memory.complete(&mut done);
        self.running.extend(done.into_iter().map(|completion| (ends, completion)));
        Ok(())
    }

    fn notify(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let (before, now) = (out.len(), self.now.get());
        out.extend(self.running.extract_if(.., |(ends, _)| *ends <= now).map(|(_, completion)| completion));
        out.len() - before
    }

    fn wait(&mut self, _timeout: Duration) -> std::io::Result<()> {
        let next = self.running.iter().map(|(ends, _)| *ends).min();
        self.now.set(self.now.get().max(next.unwrap_or_default()));
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.running.len()
    }
}

fn set(key: usize) -> Vec<u8> {
    let (key, value) = (format!("key:{key:08}"), "v".repeat(VALUE));
    format!("*3\r\n$3\r\nSET\r\n$12\r\n{key}\r\n${VALUE}\r\n{value}\r\n").into_bytes()
}

#[test]
fn a_commit_waits_behind_few_bytes_of_a_rewrite() {
    let (clock, most_behind) = (Rc::new(Cell::new(1_000_000_000)), Rc::new(Cell::new(0)));
    let disk = CachedDisk {
        memory: MemoryQueue::new(128 << 20),
        now: Rc::clone(&clock),
        running: Vec::new(),
        dirty: 0,
        busy_until: 0,
        most_behind: Rc::clone(&most_behind),
    };
    let now = || Now { monotonic_ns: clock.get(), unix_ms: 1_800_000_000_000 + clock.get() / 1_000_000 };
    let mut shard = Shard::new(Settings::default(), 1);
    let (mut log_writer, _) =
        recover("kv", disk, &mut shard, Durability::Always, 7, now()).expect("the area is new");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let client = shard.connect(address, address, now()).expect("it is the only one");
    for keys in (0..KEYS).collect::<Vec<_>>().chunks(100) {
        keys.iter().for_each(|&key| shard.feed(client, &set(key), now()));
        loop {
            clock.set(clock.get() + ITERATION);
            log_writer.iterate(&mut shard, now());
            if log_writer.is_settled() {
                break;
            }
        }
        let replies = shard.output(client).len();
        shard.consumed(client, replies);
    }
    most_behind.set(0);
    shard.feed(client, b"BGREWRITEAOF\r\n", now());
    let (mut began, mut latencies) = (None, Vec::new());
    let mut rewritten = false;
    while !rewritten {
        let replies = shard.output(client).len();
        if replies > 0 {
            shard.consumed(client, replies);
            latencies.extend(began.take().map(|began| clock.get() - began));
        }
        if began.is_none() {
            began = Some(clock.get());
            shard.feed(client, &set(latencies.len() % KEYS), now());
        }
        let was_writing = log_writer.log().is_snapshotting();
        log_writer.iterate(&mut shard, now());
        rewritten = was_writing && !log_writer.log().is_snapshotting();
        clock.set(clock.get() + ITERATION);
    }
    assert!(most_behind.get() <= BOUND, "a commit waited behind {} bytes", most_behind.get());
    // An iteration in which the request comes, one in which its write has ended, and one for the
    // reply.
    let longest = latencies.iter().max().copied().unwrap_or_default();
    assert!(longest <= BOUND * 1000 / MEDIUM + 3 * ITERATION, "a commit took {} us", longest / 1000);
    assert!(latencies.len() > 10, "{} commits during the rewrite", latencies.len());
}
