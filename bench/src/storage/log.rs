//! The log of `dataplane/persist`, on a disk and in memory.
//!
//! One thread serves all writers. It appends a record for each writer without a pending one,
//! submits, and collects the records that have become durable. On a disk it sleeps when none has;
//! memory answers at once. When the log requests compaction, the thread writes a snapshot of one
//! small record, beside the running appends.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use sietch_disk::nvm::Mapped;
use sietch_disk::{AreaQueue, Buffer, DiskQueue, NvmQueue, Operation, area, open_area};
use sietch_persist::{FormatOptions, Log, Options, Sequence};

use super::read_rate;
use super::results::Recovery;
use super::subject::{BlockResult, Subject, Tally, Work, log_failed};
use crate::error::{Error, system};

/// Bytes of the area that the log uses.
const AREA: u64 = 256 << 20;

/// A log and the state of its writers.
struct Served<D: DiskQueue> {
    log: Log<D>,
    record: Vec<u8>,
}

/// The log over io_uring.
pub(super) struct OnDisk(Served<AreaQueue>);

/// The log over non-temporal stores.
pub(super) struct InMemory(Served<NvmQueue>);

impl OnDisk {
    /// A log in a new area below `folder`.
    pub(super) fn create(folder: &Path) -> Result<Self, Error> {
        Ok(Self(Served::format(area_at(folder, AREA)?)?))
    }
}

impl InMemory {
    /// A log in new memory.
    pub(super) fn create() -> Result<Self, Error> {
        Ok(Self(Served::format(memory(AREA)?)?))
    }
}

fn area_at(folder: &Path, size: u64) -> Result<AreaQueue, Error> {
    let path = folder.join(format!("area-{size}"));
    area::create(&path, size, &mut |_| {}).map_err(log_failed)?;
    let fd = area::open(&path, size).map_err(log_failed)?;
    open_area(fd, size).map_err(log_failed)
}

/// Memory with every page populated.
fn memory(size: u64) -> Result<NvmQueue, Error> {
    const CHUNK: usize = 1 << 20;
    let capacity = usize::try_from(size).map_err(log_failed)?;
    let mut queue = NvmQueue::over(Mapped::anonymous(capacity).map_err(log_failed)?, None);
    let mut completions = Vec::new();
    for offset in (0..size).step_by(CHUNK) {
        let write = Operation::Write { offset, length: CHUNK, buffer: Buffer::new(CHUNK), durable: true };
        queue.submit(0, write).map_err(|_| log_failed("its queue is full"))?;
        queue.notify().map_err(log_failed)?;
        queue.complete(&mut completions);
        completions.clear();
    }
    Ok(queue)
}

impl<D: DiskQueue> Served<D> {
    fn format(mut disk: D) -> Result<Self, Error> {
        Log::format(&mut disk, FormatOptions::new(u128::from(std::process::id()))).map_err(log_failed)?;
        let (log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).map_err(log_failed)?;
        Ok(Self { log, record: Vec::new() })
    }

    /// Compacts the log into one small record, when the log requests it.
    fn compact(&mut self) -> Result<(), Error> {
        if self.log.should_compact() {
            self.log.begin_snapshot().map_err(log_failed)?;
            self.log.snapshot_append(b"state").map_err(log_failed)?;
            self.log.finish_snapshot().map_err(log_failed)?;
        }
        Ok(())
    }

    fn block(&mut self, work: Work) -> Result<BlockResult, Error> {
        self.record.clear();
        self.record.resize(work.bytes, 0x5a);
        let mut tally = Tally::new()?;
        let end = tally.begin + work.duration;
        let mut waiting: VecDeque<(Sequence, Instant)> = VecDeque::with_capacity(work.writers);
        let mut now = tally.begin;
        while now < end || !waiting.is_empty() {
            while now < end && waiting.len() < work.writers {
                let sequence = self.log.append(&self.record).map_err(log_failed)?;
                waiting.push_back((sequence, now));
            }
            self.log.submit().map_err(log_failed)?;
            let before = waiting.len();
            let mut durable = self.log.poll().map_err(log_failed)?;
            if waiting.front().is_some_and(|(sequence, _)| *sequence > durable) {
                durable = self.log.wait(Duration::from_secs(1)).map_err(log_failed)?;
            }
            while let Some((sequence, start)) = waiting.front()
                && *sequence <= durable
            {
                now = tally.done(*start);
                waiting.pop_front();
            }
            if waiting.len() == before {
                now = Instant::now();
            }
            self.compact()?;
        }
        Ok(tally.result())
    }
}

impl Subject for OnDisk {
    fn name(&self) -> &'static str {
        "Sietch log"
    }

    fn block(&mut self, work: Work) -> Result<BlockResult, Error> {
        self.0.block(work)
    }
}

impl Subject for InMemory {
    fn name(&self) -> &'static str {
        "Sietch log"
    }

    fn block(&mut self, work: Work) -> Result<BlockResult, Error> {
        self.0.block(work)
    }
}

/// Times openings of logs that hold `bytes` of records of 1 KB.
pub(super) fn recover(folder: &Path, times: usize, bytes: u64) -> Result<Vec<Recovery>, Error> {
    // Half of an area may hold the log, and records have headers.
    let size = bytes * 5 / 2;
    let disk = rates("disk", area_at(folder, size)?, times, bytes)?;
    std::fs::remove_file(folder.join(format!("area-{size}"))).map_err(system("removing an area"))?;
    Ok(vec![disk, rates("memory", memory(size)?, times, bytes)?])
}

fn rates<D: DiskQueue>(medium: &'static str, disk: D, times: usize, bytes: u64) -> Result<Recovery, Error> {
    let Served { mut log, .. } = Served::format(disk)?;
    let record = [0x5a; 1024];
    for written in (0..bytes).step_by(record.len()) {
        log.append(&record).map_err(log_failed)?;
        if written.is_multiple_of(256 << 10) {
            log.submit().map_err(log_failed)?;
            while log.queued() > 1 << 20 {
                log.wait(Duration::from_secs(1)).map_err(log_failed)?;
            }
        }
    }
    let mut disk = log.close().map_err(log_failed)?;
    let (mut rates, mut read_rates) = (Vec::new(), Vec::new());
    for _ in 0..times {
        read_rates.push(read_rate::measure(&mut disk, bytes)?);
        let mut found = 0;
        let begin = Instant::now();
        let (log, _) = Log::open(disk, Options::default(), &mut |entry| {
            if let sietch_persist::Entry::Record(_, payload) = entry {
                found += payload.len() as u64;
            }
            Ok(())
        })
        .map_err(log_failed)?;
        rates.push(found as f64 / begin.elapsed().as_secs_f64());
        if found != bytes {
            return Err(log_failed(format!("recovery found {found} of {bytes} bytes")));
        }
        disk = log.close().map_err(log_failed)?;
    }
    Ok(Recovery { medium, rates, read_rates })
}
