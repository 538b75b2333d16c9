//! A file system in memory: simulated persistent memory for the log and the pool.

use sietch_disk::nvm::NvmQueue;
use sietch_fs::inode::Timestamp;
use sietch_fs::log::{Durability, LogIdentity, LogWriter};
use sietch_fs::name::NameKey;
use sietch_fs::pool::{Class, FormatOptions, Member, Pool, format};
use sietch_fs::{Client, Digest, Inline};
use sietch_sim::Memory;

/// The queue over simulated memory.
pub(crate) type Disk = NvmQueue<Memory>;
/// A client that digests in its own thread.
pub(crate) type FileSystem = Client<Inline<Disk, Memory>, Memory>;

/// The log of the tests.
pub(crate) const LOG: LogIdentity = LogIdentity { log: 1, epoch: 0, seed: 0x1234_5678 };

/// When the root directory is made.
pub(crate) const BIRTH: Timestamp = Timestamp { seconds: 1_000_000, nanoseconds: 500_000_000 };

/// What survives: the memory of the pool and of the log.
#[derive(Clone)]
pub(crate) struct Media {
    pub(crate) pool: Memory,
    pub(crate) log: Memory,
}

impl Media {
    /// Empty memory for both, in bytes.
    pub(crate) fn new(pool: usize, log: usize) -> Self {
        Self { pool: Memory::new(pool), log: Memory::new(log) }
    }

    fn members(&self) -> Vec<Member<Disk>> {
        let disk = NvmQueue::over(self.pool.clone(), None);
        vec![Member { name: "nvm".to_owned(), class: Class::Nvm, disk }]
    }

    /// Makes an empty pool.
    pub(crate) fn format(&self, name_key: NameKey) {
        format(&mut self.members(), &FormatOptions { identity: 7, name_key }).expect("a pool");
    }

    /// Opens the file system: digests what the log has, frees orphans, and returns a client whose
    /// log goes on behind it.
    pub(crate) fn open(&self) -> Result<FileSystem, String> {
        let mut pool = Pool::open(self.members()).map_err(|error| error.to_string())?;
        pool.readers_at(u64::MAX);
        let mut digest = Digest::new(pool, BIRTH).map_err(|error| error.to_string())?;
        loop {
            let batch = digest.digest(&self.log, LOG.log, LOG.seed).map_err(|error| error.to_string())?;
            if let Some(invalid) = batch.invalid {
                return Err(format!("the log is invalid at {}: {}", invalid.position, invalid.cause));
            }
            if batch.records == 0 {
                break;
            }
        }
        digest.free_orphans().map_err(|error| error.to_string())?;
        while digest.reap().map_err(|error| error.to_string())? {}
        let state = digest.begin_epoch(LOG.log).map_err(|error| error.to_string())?;
        // The log loses its power with the pool: what is done to it from here on did not happen.
        if self.pool.is_off() {
            return Err("the power is off".to_owned());
        }
        let identity = LogIdentity { epoch: state.epoch, ..LOG };
        let mut writer = LogWriter::new(self.log.clone(), identity, Durability::Operation)
            .map_err(|error| error.to_string())?;
        writer.continue_at(state.position, state.sequence + 1);
        let service = Inline::new(digest, self.log.clone(), identity).map_err(|error| error.to_string())?;
        Ok(Client::new(service, writer, LOG.log))
    }
}
