//! Opens a file system: recovery, then service.

use std::path::{Path, PathBuf};

use rustix::time::{ClockId, clock_gettime};
use sietch_disk::nvm::{Mapped, Medium as _};
use sietch_disk::{AreaQueue, area, open_area};
use sietch_fs::inode::Timestamp;
use sietch_fs::log::{Durability as LogDurability, LogIdentity, LogReader, LogWriter, Mirror};
use sietch_fs::pool::{Pool, Reader};
use sietch_fs::{Client, Digest};

use super::description::{Description, LogDescription};
use super::digester::Digester;
use super::error::StoreError;
use super::local::Local;
use super::media::{self, Medium};
use super::syncs::Syncs;

/// The number of the log of the client in this process.
pub(super) const LOG: u32 = 1;
/// Bytes of the log that are searched at a time.
const VERIFIED: usize = 1 << 20;
/// Bytes that a disk writes in one piece, at most.
const DISK_BLOCK: usize = 4096;

/// A client in the process of the service.
pub type FileSystemClient = Client<Local, Mapped>;

/// A file system that is open.
pub struct Running {
    /// Its operations.
    pub client: FileSystemClient,
    /// The thread that digests. It must be ended after the client.
    pub digester: Digester,
    /// What it is made of.
    pub description: Description,
    /// Records that the log had from before.
    pub recovered: u64,
}

/// Opens the file system in `folder`.
///
/// # Errors
/// See [`StoreError`].
pub fn open(folder: &Path) -> Result<Running, StoreError> {
    let description = Description::read(folder)?;
    let media = description.media.iter().map(Medium::open).collect::<Result<Vec<_>, _>>()?;
    let members = || media.iter().map(Medium::member).collect::<Result<Vec<_>, _>>();
    let mut pool = Pool::open(members()?)?;
    pool.readers_at(u64::MAX);
    let mut digest = Digest::new(pool, now())?;
    let (mut memory, [reader_memory, sync_memory], disk) = open_log(&description.log)?;
    let recovered = recover(&mut digest, &mut memory, &description.log)?;
    let state = digest.begin_epoch(LOG)?;
    let identity = LogIdentity { log: LOG, epoch: state.epoch, seed: description.log.seed };
    let durability =
        if disk.is_some() { LogDurability::Sync { block: DISK_BLOCK } } else { LogDurability::Operation };
    let path = &description.log.memory;
    let mut writer = LogWriter::new(memory, identity, durability)
        .map_err(|source| StoreError::Ring { path: path.clone(), source })?;
    writer.continue_at(state.position, state.sequence + 1);
    let mirror = disk.map(|disk| Mirror::new(disk, &writer)).transpose();
    let mirror = mirror.map_err(|source| StoreError::Mirror { path: path.clone(), source })?;
    let root = digest.root();
    let reader = Reader::new(members()?, root)?;
    let (digester, shared) = Digester::start(digest, reader_memory, (LOG, description.log.seed))?;
    let syncs = mirror.map(|mirror| Syncs::new(mirror, sync_memory));
    let client = Client::new(Local::new(shared, reader, syncs), writer, LOG);
    Ok(Running { client, digester, description, recovered })
}

/// The memory of the log, three times, and its copy on disk. Memory that is gone is read back from
/// there.
fn open_log(log: &LogDescription) -> Result<(Mapped, [Mapped; 2], Option<AreaQueue>), StoreError> {
    let disk = match &log.disk {
        Some(path) => {
            let file = media::open_own(path, log.bytes)?;
            let queue = open_area(file, log.bytes)
                .map_err(|source| StoreError::Queue { path: path.clone(), source })?;
            Some(queue)
        }
        None => None,
    };
    let mut disk = disk;
    if let Some(disk) = &mut disk
        && log.memory.symlink_metadata().is_err()
    {
        load_memory(log, disk)?;
    }
    let file = media::open_own(&log.memory, log.bytes)?;
    let (memory, others) = media::log_memory(file, &log.memory, log.bytes)?;
    Ok((memory, others, disk))
}

/// Makes the memory of a log from its copy on disk. It gets its name when it is whole: memory that
/// has its name is believed, also after this process was killed here.
fn load_memory(log: &LogDescription, disk: &mut AreaQueue) -> Result<(), StoreError> {
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

/// Digests what the log has, and frees what no name leads to. Returns the records.
fn recover(
    digest: &mut Digest<AreaQueue>,
    memory: &mut Mapped,
    log: &LogDescription,
) -> Result<u64, StoreError> {
    debug_assert!(!memory.is_empty(), "a log has bytes");
    let mut records = 0;
    loop {
        let batch = digest.digest(memory, LOG, log.seed)?;
        records += batch.records;
        if let Some(invalid) = batch.invalid {
            let path = log.memory.clone();
            return Err(StoreError::Log { path, position: invalid.position, cause: invalid.cause });
        }
        if batch.records == 0 {
            break;
        }
    }
    verify_end(digest, memory, log)?;
    digest.free_orphans()?;
    Ok(records)
}

/// Refuses a log of which something is missing in front of records that are there. The next epoch
/// would make those worthless.
fn verify_end(
    digest: &mut Digest<AreaQueue>,
    memory: &Mapped,
    log: &LogDescription,
) -> Result<(), StoreError> {
    let state = digest.log_state(LOG)?;
    let identity = LogIdentity { log: LOG, epoch: state.epoch, seed: log.seed };
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

fn now() -> Timestamp {
    let now = clock_gettime(ClockId::Realtime);
    // The kernel's nanoseconds are below a second.
    Timestamp { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 }
}
