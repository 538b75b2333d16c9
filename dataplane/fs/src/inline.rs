//! A service in the client's own thread: it digests when the client waits.
//!
//! It is for tests, and for tools that work on media which no other process uses. The client's base
//! is the pool itself, between two batches.

use std::ops::Range;

use rustix::io::Errno;
use sietch_disk::DiskQueue;
use sietch_disk::nvm::Medium;

use crate::client::Service;
use crate::digest::{Batch, Digest, DigestError};
use crate::digested::Digested;
use crate::error::Fault;
use crate::file_system::PendingSync;
use crate::log::{LogIdentity, LogWriter};
use crate::pool::Pool;

/// Inode numbers that a client gets at a time.
const NUMBERS: u64 = 1024;

/// The module's header describes it.
pub struct Inline<D: DiskQueue, M> {
    digest: Digest<D>,
    log: M,
    identity: LogIdentity,
    logged: u64,
    digested: u64,
    /// The log has no record before this position that is not digested.
    read: u64,
    /// What the client knows of it.
    reported: u64,
    faults: Vec<String>,
    totals: Batch,
}

impl<D: DiskQueue, M: Medium> Inline<D, M> {
    /// Digests the log in `log` into the pool of `digest`. `log` is the memory that the client's
    /// writer has.
    ///
    /// # Errors
    /// A medium failed.
    pub fn new(mut digest: Digest<D>, log: M, identity: LogIdentity) -> Result<Self, Fault> {
        let digested = digest.log_state(identity.log)?.position;
        digest.pool().readers_at(u64::MAX);
        let totals = Batch::default();
        Ok(Self {
            digest,
            log,
            identity,
            logged: digested,
            digested,
            read: digested,
            reported: digested,
            faults: Vec::new(),
            totals,
        })
    }

    /// Digests one batch.
    ///
    /// # Errors
    /// A medium failed, or the log is damaged.
    pub fn digest(&mut self) -> Result<Batch, DigestError> {
        let batch = self.digest.digest(&self.log, self.identity.log, self.identity.seed)?;
        (self.digested, self.read) = (batch.state.position, batch.read);
        while self.digest.reap()? {}
        self.totals.records += batch.records;
        self.totals.data += batch.data;
        self.totals.records_saved += batch.records_saved;
        self.totals.data_saved += batch.data_saved;
        self.totals.blocks_written += batch.blocks_written;
        self.faults.extend(batch.damage.iter().cloned());
        if let Some(invalid) = &batch.invalid {
            self.faults.push(format!("the log at {}: {}", invalid.position, invalid.cause));
        }
        Ok(batch)
    }

    /// Sets how many records a batch has at most.
    pub fn set_batch_records(&mut self, records: u64) {
        self.digest.set_batch_records(records);
    }

    /// The sums of all batches.
    pub fn totals(&self) -> &Batch {
        &self.totals
    }

    /// What went wrong so far.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// The digest, for the mover.
    pub fn owner(&mut self) -> &mut Digest<D> {
        &mut self.digest
    }

    /// Ends the service.
    pub fn into_parts(self) -> (Digest<D>, M) {
        (self.digest, self.log)
    }
}

impl<D: DiskQueue, M: Medium> Service<M> for Inline<D, M> {
    type Base = Digested<Pool<D>>;

    fn base(&mut self) -> &mut Self::Base {
        self.digest.base()
    }

    fn poll(&mut self) -> Option<u64> {
        let is_news = self.digested != self.reported;
        self.reported = self.digested;
        is_news.then_some(self.digested)
    }

    fn wait(&mut self) -> Result<Option<u64>, Errno> {
        if self.read >= self.logged {
            return Ok(None);
        }
        let before = self.digested;
        let done = self.digest().map_err(|error| {
            self.faults.push(error.to_string());
            if matches!(error, DigestError::Fault(Fault::Full { .. })) { Errno::NOSPC } else { Errno::IO }
        });
        done?;
        if self.digested == before { Err(Errno::IO) } else { Ok(Some(self.digested)) }
    }

    fn logged(&mut self, position: u64) {
        self.logged = position;
    }

    fn inode_numbers(&mut self) -> Result<Range<u64>, Errno> {
        self.digest.inode_numbers(NUMBERS).map_err(|error| {
            self.faults.push(error.to_string());
            Errno::IO
        })
    }

    fn sync(&mut self, _: &mut LogWriter<M>, _: u64) -> Result<Option<Box<dyn PendingSync>>, Errno> {
        Ok(None)
    }

    fn report(&mut self, fault: &Fault) {
        self.faults.push(fault.to_string());
    }
}
