//! Opens a file system for this process alone: recovery, then service.

use std::path::Path;
use std::sync::Arc;

use sietch_disk::nvm::Mapped;
use sietch_fs::Client;
use sietch_fs::heat::Heat;
use sietch_fs::log::{Durability as LogDurability, LogIdentity, LogWriter, Mirror};
use sietch_fs::pool::Reader;

use super::create;
use super::description::Description;
use super::digester::Digester;
use super::error::StoreError;
use super::local::Local;
use super::logs::{self, DISK_BLOCK, LOG};
use super::media::{self, Medium};
use super::mover;
use super::recovery::recover;
use super::requests::Digesting;
use super::syncs::Syncs;

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
    let mut description = Description::read(folder)?;
    let media = media::open_all(folder, &mut description)?;
    logs::leave_taken_folder(folder, &mut description)?;
    let members = || media.iter().map(Medium::member).collect::<Result<Vec<_>, _>>();
    let (mut digest, logs, recovered) = recover(members()?, &description)?;
    let (memory, reader_memory, disk) = logs;
    let reader_memory = Arc::new(reader_memory);
    let state = digest.begin_epoch(LOG, description.log.seed)?;
    let identity = LogIdentity { log: LOG, epoch: state.epoch, seed: description.log.seed };
    let durability =
        if disk.is_some() { LogDurability::Sync { block: DISK_BLOCK } } else { LogDurability::Operation };
    create::forget(folder);
    let noted = logs::note(folder, &description);
    logs::collect(&description);
    let path = &description.log.memory;
    let mut writer = LogWriter::new(memory, identity, durability)
        .map_err(|source| StoreError::Ring { path: path.clone(), source })?;
    writer.continue_at(state.position, state.sequence + 1);
    let mirror = disk.map(|disk| Mirror::new(disk, &writer)).transpose();
    let mirror = mirror.map_err(|source| StoreError::Mirror { path: path.clone(), source })?;
    let root = digest.root();
    let reader = Reader::new(members()?, root)?;
    let syncs = mirror.map(|mirror| Syncs::new(mirror, Arc::clone(&reader_memory)));
    let (mut digester, shared) = Digester::start(digest, reader_memory, (LOG, description.log.seed))?;
    digester.note_end(noted);
    let heat = Arc::new(Heat::default());
    let digesting: Arc<dyn Digesting> = shared.clone();
    mover::start(&digesting, &media, root, &description, Arc::clone(&heat))?;
    let client = Client::new(Local::new(shared, reader, syncs, (heat, description.log.bytes)), writer, LOG);
    Ok(Running { client, digester, description, recovered })
}
