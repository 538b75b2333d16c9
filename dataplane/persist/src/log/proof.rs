//! The proof: a superblock written only to prove how far the log was durable.
//!
//! 1. Each record says how far the log was durable when it was made, but nothing follows the last
//!    ones. The field `proven` of the superblock covers them: recovery that ends before it reports
//!    damage. The superblock is far from the end of the log, and has two copies, so damage to the
//!    last blocks does not reach it.
//! 2. Every superblock has that field. [`Log::write_due_proof`] writes one for its sake when the
//!    log was quiet for [`crate::limits::PROOF_QUIET`], and [`crate::limits::PROOF_INTERVAL`] after
//!    the first record that the last one does not cover. No record waits for it.
//! 3. Both copies of the next generation are written durably, as for a snapshot. One superblock is
//!    in the making at a time: a proof waits for the others, and they wait for it.

use sietch_disk::{Buffer, DiskQueue, Operation};

use super::Log;
use super::options::Sequence;
use super::state::proof::{ProofSchedule, ProofWrite};
use super::state::requests::{CLASS_PROOF_SUPERBLOCK, token};
use crate::error::Failure;
use crate::layout::Superblock;
use crate::limits::SUPERBLOCK;

impl<D: DiskQueue> Log<D> {
    /// The sequence up to which the superblock on the medium proves that everything was durable.
    /// Were one of these records damaged, the next opening would say so.
    pub fn proven(&self) -> Sequence {
        self.superblock.proven
    }

    /// Writes a proof if one is due. To be called with the time, in nanoseconds of any clock that
    /// does not run backwards, after [`Log::poll`] and at [`Log::next_deadline`]. Two comparisons
    /// where nothing is due.
    ///
    /// # Errors
    /// The log has failed.
    pub fn write_due_proof(&mut self, now: u64) -> Result<(), Failure> {
        if self.durable <= self.superblock.proven {
            self.proof_schedule = None;
            return Ok(());
        }
        let durable = self.durable;
        let schedule = self.proof_schedule.get_or_insert(ProofSchedule { since: now, durable, changed: now });
        if schedule.durable != durable {
            (schedule.durable, schedule.changed) = (durable, now);
        }
        if now < schedule.due() {
            return Ok(());
        }
        self.write_proof()
    }

    /// When [`Log::write_due_proof`] has something to do even if the disk has not; `None`: when the
    /// disk has.
    pub fn next_deadline(&self) -> Option<u64> {
        let waits = self.failure.is_some() || self.proof_write.is_some() || self.is_switching();
        self.proof_schedule.as_ref().filter(|_| !waits).map(ProofSchedule::due)
    }

    /// Writes a proof now, if records are durable that none covers and no other superblock is on
    /// its way. It takes effect asynchronously: [`Log::proven`] says how far.
    ///
    /// # Errors
    /// The log has failed.
    pub fn write_proof(&mut self) -> Result<(), Failure> {
        self.check()?;
        if self.durable > self.superblock.proven && self.proof_write.is_none() && !self.is_switching() {
            self.proof_schedule = None;
            self.proof_write = Some(Box::new(ProofWrite { next: self.successor(), unsent: 2, flying: 0 }));
            self.pump_proof()?;
        }
        self.notify()
    }

    /// Whether another superblock than a proof's is in the making.
    fn is_switching(&self) -> bool {
        self.truncation.is_some() || self.snapshot.is_switching() || self.is_switching_size()
    }

    /// The superblock of the next generation: as the one at hand, and with how far the log is
    /// durable now.
    pub(super) fn successor(&self) -> Superblock {
        Superblock {
            generation: self.superblock.generation + 1,
            proven: self.durable.max(self.superblock.proven),
            ..self.superblock.clone()
        }
    }

    /// Takes the next step of a proof.
    pub(super) fn pump_proof(&mut self) -> Result<(), Failure> {
        let Some(mut proof) = self.proof_write.take() else { return Ok(()) };
        let pumped = self.send_proof(&mut proof);
        if (proof.unsent, proof.flying) == (0, 0) {
            self.superblock = proof.next;
            self.metrics.proofs += 1;
        } else {
            self.proof_write = Some(proof);
        }
        pumped
    }

    fn send_proof(&mut self, proof: &mut ProofWrite) -> Result<(), Failure> {
        while proof.unsent > 0 {
            let offset = Superblock::copy_offset(proof.next.generation, proof.unsent - 1);
            let mut buffer = Buffer::new(SUPERBLOCK);
            proof.next.write(&mut buffer);
            let write = Operation::Write { offset, length: SUPERBLOCK, buffer, durable: true };
            if self.start(token(CLASS_PROOF_SUPERBLOCK, offset), write)?.is_some() {
                break;
            }
            proof.unsent -= 1;
            proof.flying += 1;
        }
        Ok(())
    }

    /// Takes a completion.
    pub(super) fn finish_proof_request(&mut self) {
        if let Some(proof) = &mut self.proof_write {
            proof.flying = proof.flying.saturating_sub(1);
        }
    }
}
