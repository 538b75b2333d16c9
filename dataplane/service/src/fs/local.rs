//! The service as a client in the same process sees it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use sietch_disk::AreaQueue;
use sietch_disk::nvm::Mapped;
use sietch_fs::client::{DigestWait, Service};
use sietch_fs::file_system::{Pending, PendingSync};
use sietch_fs::heat::Heat;
use sietch_fs::log::LogWriter;
use sietch_fs::pool::{Reader, Root};
use sietch_fs::{Digested, Fault};

use super::digester::Shared;
use super::media::KEPT_BLOCKS;
use super::pacing::{PAUSE, Pacer};
use super::syncs::Syncs;

/// See the module's account.
pub struct Local {
    shared: Arc<Shared>,
    base: Digested<Reader<AreaQueue>>,
    /// The copy of the log on disk, where memory does not survive a loss of power.
    syncs: Option<Syncs>,
    pacer: Pacer,
    /// When the pacer's clock began.
    begun: Instant,
}

impl Local {
    /// `heat` counts what the client reads. The log has `log_bytes`.
    pub(super) fn new(
        shared: Arc<Shared>,
        reader: Reader<AreaQueue>,
        syncs: Option<Syncs>,
        (heat, log_bytes): (Arc<Heat>, u64),
    ) -> Self {
        let mut base = Digested::new(reader);
        base.count_in(heat);
        base.keep_blocks(KEPT_BLOCKS);
        Self { shared, base, syncs, pacer: Pacer::new(log_bytes), begun: Instant::now() }
    }

    /// The generation that it reads.
    fn generation(&mut self) -> u64 {
        self.base.store_mut().root().generation
    }

    fn advance(&mut self, (position, root): (u64, Root)) -> u64 {
        self.base.store_mut().advance(root);
        self.shared.reads(root.generation);
        position
    }

    /// Whether to wait a little, because the digest does not keep up.
    #[cold]
    fn pace(&mut self, logged: u64) -> Option<Pause> {
        let (digested, speed) = self.shared.pace();
        // Nanoseconds of 584 years.
        let now = self.begun.elapsed().as_nanos() as u64;
        let waits = self.pacer.step(now, logged, digested, speed);
        waits.then(|| Pause { shared: Arc::clone(&self.shared), digested })
    }
}

/// A pause of a client that is faster than the digest.
struct Pause {
    shared: Arc<Shared>,
    digested: u64,
}

impl Pending for Pause {
    fn wait(&mut self) {
        self.shared.pause(self.digested, PAUSE);
    }
}

/// Waits for the commit after a generation.
struct Commit {
    shared: Arc<Shared>,
    generation: u64,
}

impl Pending for Commit {
    fn wait(&mut self) {
        // The next try gets the error.
        let _ = self.shared.wait(self.generation);
    }
}

/// A client that is gone reads nothing, however it ended.
impl Drop for Local {
    fn drop(&mut self) {
        self.shared.reads(u64::MAX);
    }
}

impl Service<Mapped> for Local {
    type Base = Digested<Reader<AreaQueue>>;

    fn base(&mut self) -> &mut Self::Base {
        &mut self.base
    }

    fn poll(&mut self) -> Option<u64> {
        let generation = self.generation();
        let progress = self.shared.progress(generation)?;
        Some(self.advance(progress))
    }

    fn wait(&mut self) -> Result<Option<u64>, Errno> {
        let generation = self.generation();
        let progress = self.shared.wait(generation)?;
        Ok(progress.map(|progress| self.advance(progress)))
    }

    fn begin_wait(&mut self) -> Result<DigestWait, Errno> {
        if let Some(position) = self.poll() {
            return Ok(DigestWait::Digested(position));
        }
        if self.shared.is_complete()? {
            // A commit may have come in between.
            return Ok(self.poll().map_or(DigestWait::Complete, DigestWait::Digested));
        }
        let (shared, generation) = (Arc::clone(&self.shared), self.generation());
        Ok(DigestWait::Pending(Box::new(Commit { shared, generation })))
    }

    fn logged(&mut self, position: u64) {
        if let Some(mut pause) = self.logged_without_pause(position) {
            pause.wait();
        }
    }

    fn logged_without_pause(&mut self, position: u64) -> Option<Box<dyn Pending>> {
        self.shared.log(position);
        if !self.pacer.is_due(position) {
            return None;
        }
        self.pace(position).map(|pause| Box::new(pause) as Box<dyn Pending>)
    }

    fn inode_numbers(&mut self) -> Result<Range<u64>, Errno> {
        self.shared.numbers()
    }

    fn sync(
        &mut self,
        log: &mut LogWriter<Mapped>,
        position: u64,
    ) -> Result<Option<Box<dyn PendingSync>>, Errno> {
        self.syncs.as_mut().map_or(Ok(None), |syncs| syncs.begin(log, position))
    }

    fn report(&mut self, fault: &Fault) {
        tracing::error!("{fault}");
    }
}
