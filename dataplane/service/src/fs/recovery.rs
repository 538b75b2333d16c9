//! Recovery: what the logs of a file system have is digested, before anything else happens.
//!
//! 1. The pool says which logs there are: a log has an item there from its first epoch on. Memory
//!    of a log that is gone is read back from its copy on disk.
//! 2. Each log is digested to its end, one after the other. The order does not matter, because no
//!    two logs changed the same inode since they were digested last; that is checked
//!    ([`sietch_fs::lease`]).
//! 3. A log for which the pool has no room waits for the others, which may make some. A log that
//!    exceeded its client's budget can take the room of others; budgets are not stored. What
//!    then has no room stays in its log, and is named.
//! 4. Epochs that are begun later have numbers of the clock. So a medium that was restored from a
//!    copy begins none that a log has records of.
//! 5. Inodes to which no name leads are freed: the processes that had them open are gone.

use std::path::PathBuf;

use rustix::process::{getegid, geteuid};
use rustix::time::{ClockId, clock_gettime};
use sietch_disk::nvm::{Mapped, Medium as _};
use sietch_disk::{AreaQueue, area, open_without_ring};
use sietch_fs::digest::DigestError;
use sietch_fs::inode::Timestamp;
use sietch_fs::lease::{ClientNumber, Replay};
use sietch_fs::log::{LogIdentity, LogReader, Mirror};
use sietch_fs::pool::{Member, Pool};
use sietch_fs::{Digest, Fault};

use super::description::{Change, Description, LogDescription};
use super::error::StoreError;
use super::logs::{LOG, judge_folder, make_folder, numbered};
use super::media;

/// Bytes of the log that are searched at a time.
const VERIFIED: usize = 1 << 20;

/// The memory of a log, three times, and its copy on disk.
pub(super) type OpenLog = (Mapped, Mapped, Option<AreaQueue>);

/// Opens the pool and digests all logs. Returns the digest, log 1, and how many records there were.
pub(super) fn recover(
    members: Vec<Member<AreaQueue>>,
    description: &Description,
) -> Result<(Digest<AreaQueue>, OpenLog, u64), StoreError> {
    let mut pool = Pool::open(members)?;
    pool.readers_at(u64::MAX);
    let marks = description.migration.unwrap_or_default().watermarks().unwrap_or_default();
    for slot in pool.slots() {
        pool.set_watermarks(slot, marks);
    }
    // What was begun goes on: new data go elsewhere, and the mover takes the others away.
    if let Some(Change::Drain { path }) = &description.change
        && let Some(place) = description.place(path)
        && let Some(slot) = pool.slots().get(place).copied()
    {
        pool.set_leaving(slot);
    }
    // Where an ordinary user made the file system, it is theirs to write to.
    let owner = (geteuid().as_raw(), getegid().as_raw());
    let mut digest = Digest::with_owner(pool, now(), owner)?;
    if let Some(cause) = digest.uncounted() {
        tracing::error!("users are not counted, and limits are not enforced: {cause}");
    }
    // Seconds have 32 bits until 2106.
    digest.set_least_epoch(u32::try_from(now().seconds).unwrap_or(u32::MAX / 2));
    let mut others = Vec::new();
    for number in digest.logs()?.into_iter().filter(|number| *number != LOG) {
        let log = numbered(&description.log, number);
        let (memory, _, _) = open_log(&log)?;
        others.push((number, log, memory));
    }
    let first = open_log(&description.log)?;
    let mut logs: Vec<_> = others.iter().map(|(number, log, memory)| (*number, log, memory)).collect();
    logs.push((LOG, &description.log, &first.0));
    let records = recover_logs(&mut digest, logs)?;
    digest.free_orphans()?;
    Ok((digest, first, records))
}

/// The memory of the log, twice, and its copy on disk. Memory that is gone is read back from
/// there.
fn open_log(log: &LogDescription) -> Result<OpenLog, StoreError> {
    let mut disk = match &log.disk {
        Some(path) => {
            let file = media::open_own(path, log.bytes)?;
            let queue = open_without_ring(file, log.bytes)
                .map_err(|source| StoreError::Queue { path: path.clone(), source })?;
            Some(queue)
        }
        None => None,
    };
    judge_folder(log)?;
    if let Some(disk) = &mut disk
        && log.memory.symlink_metadata().is_err()
    {
        load_memory(log, disk)?;
    }
    let file = media::open_own(&log.memory, log.bytes)?;
    let (memory, reader) = media::log_memory(file, &log.memory, log.bytes)?;
    Ok((memory, reader, disk))
}

/// Makes the memory of a log from its copy on disk. It gets its name when it is whole: memory that
/// has its name is believed, also after this process was killed here.
fn load_memory(log: &LogDescription, disk: &mut AreaQueue) -> Result<(), StoreError> {
    make_folder(log)?;
    let mut name = log.memory.as_os_str().to_owned();
    name.push(".loading");
    let loading = PathBuf::from(name);
    // What such a process left.
    drop(std::fs::remove_file(&loading));
    area::create(&loading, log.bytes, &mut |_| {})?;
    let file = media::open_own(&loading, log.bytes)?;
    let (mut memory, _) = media::log_memory(file, &loading, log.bytes)?;
    let loaded = Mirror::load(disk, &mut memory);
    let loaded = loaded.map_err(|source| StoreError::Mirror { path: log.memory.clone(), source })?;
    if !loaded.unreadable.is_empty() {
        tracing::warn!("blocks of the log cannot be read: {:?}", loaded.unreadable);
    }
    std::fs::rename(&loading, &log.memory).map_err(|source| StoreError::Io {
        path: log.memory.clone(),
        action: "give it its name",
        source,
    })
}

/// Digests what all logs have. Returns the records.
fn recover_logs(
    digest: &mut Digest<AreaQueue>,
    mut logs: Vec<(u32, &LogDescription, &Mapped)>,
) -> Result<u64, StoreError> {
    let (mut replay, mut records) = (Replay::default(), 0);
    loop {
        let (before, mut waiting, mut cause) = (records, Vec::new(), None);
        for (number, log, memory) in logs {
            match recover_log(digest, memory, log, number, (&mut replay, &mut records)) {
                Ok(()) => {}
                Err(error @ StoreError::NoRoom { .. }) => {
                    waiting.push((number, log, memory));
                    cause.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        let Some(cause) = cause else { return Ok(records) };
        let mut has_freed = false;
        while digest.reap()? {
            has_freed = true;
        }
        if records == before && !has_freed {
            return Err(cause);
        }
        logs = waiting;
    }
}

/// Digests what a log has, and counts the records.
fn recover_log(
    digest: &mut Digest<AreaQueue>,
    memory: &Mapped,
    log: &LogDescription,
    number: u32,
    (replay, records): (&mut Replay, &mut u64),
) -> Result<(), StoreError> {
    debug_assert!(!memory.is_empty(), "a log has bytes");
    if !digest.log_state(number)?.is_of(log.seed) {
        return Err(StoreError::Seed { path: log.memory.clone() });
    }
    loop {
        let mut judge = replay.of(ClientNumber(number));
        let batch = match digest.digest_judged(memory, number, log.seed, &mut judge) {
            Err(DigestError::Fault(Fault::Full { wanted, .. })) => {
                return Err(StoreError::NoRoom { path: log.memory.clone(), wanted });
            }
            other => other?,
        };
        *records += batch.records;
        if let Some(invalid) = batch.invalid {
            let path = log.memory.clone();
            return Err(StoreError::Log { path, position: invalid.position, cause: invalid.cause });
        }
        if batch.records == 0 {
            break;
        }
    }
    verify_end(digest, memory, log, number)
}

/// Refuses a log of which something is missing in front of records that are there. The next epoch
/// would make those worthless.
fn verify_end(
    digest: &mut Digest<AreaQueue>,
    memory: &Mapped,
    log: &LogDescription,
    number: u32,
) -> Result<(), StoreError> {
    let state = digest.log_state(number)?;
    let identity = LogIdentity { log: number, epoch: state.epoch, seed: log.seed };
    let path = || log.memory.clone();
    let mut reader = LogReader::new(memory, identity, state.position, state.sequence + 1)
        .map_err(|source| StoreError::Ring { path: path(), source })?;
    loop {
        match reader.verify_end(VERIFIED) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(damage) => {
                let (position, cause) = (reader.position(), damage.to_string());
                return Err(StoreError::Log { path: path(), position, cause });
            }
        }
    }
}

pub(super) fn now() -> Timestamp {
    let now = clock_gettime(ClockId::Realtime);
    // The kernel's nanoseconds are below a second.
    Timestamp { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 }
}

#[cfg(test)]
mod tests;
