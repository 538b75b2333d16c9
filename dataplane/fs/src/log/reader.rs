//! Reads records, in order, while another process may write.
//!
//! 1. A record is copied to a buffer of the reader's once, and the copy is judged: its maker is
//!    another process, which may be hostile and may change the log meanwhile.
//! 2. The end is the first place without a valid record of the next sequence. What is there may be
//!    a record that is being written, the remains of one that a crash cut short, or an earlier lap.
//! 3. A valid record further on can prove that this is not the end: it says up to which record the
//!    log was durable when it was made. If that includes the record that is missing here, the log
//!    is damaged. On persistent memory every record proves all records before it.
//! 4. [`LogReader::next`] looks a small piece ahead each time it finds the end, so that damage in
//!    front of a live writer is noticed in time. [`LogReader::verify_end`] looks through the whole
//!    ring: for a log whose writer is gone.
//!
//! What it must never do: continue behind a record that is missing; use a length before it was
//! checked; do an unbounded amount of work in one call.

use sietch_disk::nvm::Medium;

use crate::change::Record;
use crate::log::record::{self, Header, Invalid, LINE, LogIdentity};
use crate::log::ring::{Ring, RingError};

#[cfg(test)]
mod tests;

/// Bytes that are searched at a time for records behind the end.
const SEARCHED: usize = 4096;

/// Pads that may follow each other: one to a whole block of a disk and one to the end of the ring,
/// and again after a restart.
const MAX_PADS: usize = 4;

/// A log that cannot be what its writer appended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogDamage {
    /// A record is missing although a later one proves that it was durable.
    #[error(
        "the log lost record {sequence} at position {position}: record {found} at position {found_at} was made after it was durable; only the records before it can be applied"
    )]
    Missing {
        /// Sequence of the missing record.
        sequence: u64,
        /// Where it should begin.
        position: u64,
        /// Sequence of the later one.
        found: u64,
        /// Where that begins.
        found_at: u64,
    },
    /// A record has its checksum but says what none may say: its writer is faulty or hostile.
    #[error(
        "record {sequence} of the log at position {position} is invalid: {cause}; its writer must be stopped"
    )]
    Invalid {
        /// Its sequence.
        sequence: u64,
        /// Where it begins.
        position: u64,
        /// What it says.
        cause: Invalid,
    },
    /// A record has its checksum but another sequence.
    #[error(
        "the log has record {found} at position {position}, where record {sequence} belongs; its writer must be stopped"
    )]
    Sequence {
        /// The expected sequence.
        sequence: u64,
        /// Where.
        position: u64,
        /// The record's own.
        found: u64,
    },
}

/// Reads a log from some record on.
#[derive(Debug)]
pub struct LogReader<'m, M: Medium> {
    medium: &'m M,
    ring: Ring,
    identity: LogIdentity,
    /// Where the next record begins, and its sequence.
    position: u64,
    sequence: u64,
    /// Bytes from there that were searched for later records.
    searched: u64,
    /// Bytes of records that were copied: the work of a search.
    copied: usize,
    /// The copy of a record. It grows to the longest record and no further.
    copy: Vec<u8>,
}

impl<'m, M: Medium> LogReader<'m, M> {
    /// Reads the log in `medium` from the record `sequence` on, which begins at `position` or
    /// behind a pad there.
    ///
    /// # Errors
    /// The memory is too small, or not whole lines.
    pub fn new(
        medium: &'m M,
        identity: LogIdentity,
        position: u64,
        sequence: u64,
    ) -> Result<Self, RingError> {
        let ring = Ring::new(medium.len(), LINE)?;
        if !position.is_multiple_of(LINE as u64) {
            return Err(RingError::NotWhole { bytes: position, block: LINE as u64 });
        }
        let copy = vec![0; SEARCHED];
        Ok(Self { medium, ring, identity, position, sequence, searched: LINE as u64, copied: 0, copy })
    }

    /// Where the next record begins, or a pad before it.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The sequence of the next record.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The next record, or `None` at the end. There may be more later.
    ///
    /// # Errors
    /// See [`LogDamage`]. The position stays where it is.
    #[allow(clippy::should_implement_trait)] // The record borrows from the reader.
    pub fn next(&mut self) -> Result<Option<Record<'_>>, LogDamage> {
        let mut found = self.find()?;
        if found.is_none() {
            let ring = self.ring.bytes();
            if self.searched >= ring {
                self.searched = LINE as u64;
            }
            if self.search(SEARCHED)? {
                // A later record is there: was this one written while we searched?
                found = self.find()?;
            }
        }
        let Some(header) = found else { return Ok(None) };
        let (position, sequence) = (self.position, self.sequence);
        let end = position + header.length() as u64;
        let (change, payload) = record::decode(&header, &self.copy[..header.length()])
            .map_err(|cause| LogDamage::Invalid { sequence, position, cause })?;
        self.position = end;
        self.sequence += 1;
        self.searched = LINE as u64;
        let data = (position + header.front() as u64, payload);
        Ok(Some(Record { sequence, position: position..end, time: header.time(), change, data }))
    }

    /// The header of the next record, which is in the copy then. Passes pads.
    fn find(&mut self) -> Result<Option<Header>, LogDamage> {
        for _ in 0..=MAX_PADS {
            let Some(header) = self.load(self.position) else { return Ok(None) };
            let (position, sequence) = (self.position, self.sequence);
            if header.sequence() != sequence {
                return Err(LogDamage::Sequence { sequence, position, found: header.sequence() });
            }
            if !header.is_pad() {
                return Ok(Some(header));
            }
            header.check_pad().map_err(|cause| LogDamage::Invalid { sequence, position, cause })?;
            self.position += header.length() as u64;
            self.searched = LINE as u64;
        }
        let cause = Invalid("more pads than a writer makes");
        Err(LogDamage::Invalid { sequence: self.sequence, position: self.position, cause })
    }

    /// Copies the record at `position` and returns its header, if it is whole and one of this log.
    fn load(&mut self, position: u64) -> Option<Header> {
        let place = self.ring.place(position);
        self.medium.load(place, &mut self.copy[..LINE]);
        let header = Header::peek(&self.identity, &self.copy)?;
        if header.length() as u64 > self.ring.contiguous(position) {
            return None;
        }
        let length = header.checked_length();
        if self.copy.len() < length {
            self.copy.resize(length, 0);
        }
        self.medium.load(place + LINE, &mut self.copy[LINE..length]);
        self.copied += length;
        header.is_genuine(&self.identity, position, &mut self.copy[..length]).then_some(header)
    }

    /// Searches further for a record behind the end, as far as about `bytes` of work reach. Returns
    /// whether the record at the end has been written meanwhile.
    fn search(&mut self, mut bytes: usize) -> Result<bool, LogDamage> {
        while bytes > 0 && self.searched < self.ring.bytes() {
            let start = self.position + self.searched;
            let left = (self.ring.bytes() - self.searched).min(self.ring.contiguous(start));
            // No more than the copy has.
            let length = SEARCHED.min(usize::try_from(left).unwrap_or(SEARCHED));
            self.medium.load(self.ring.place(start), &mut self.copy[..length]);
            let mut lines = self.copy[..length].chunks_exact(LINE);
            let candidate = lines.position(|line| {
                let header = Header::peek(&self.identity, line);
                header.is_some_and(|header| self.proves(&header))
            });
            let Some(line) = candidate else {
                self.searched += length as u64;
                bytes = bytes.saturating_sub(length);
                continue;
            };
            let found_at = start + (line * LINE) as u64;
            self.copied = (line + 1) * LINE;
            let header = self.load(found_at);
            self.searched += ((line + 1) * LINE) as u64;
            bytes = bytes.saturating_sub(self.copied);
            if let Some(header) = header
                && self.proves(&header)
            {
                if self.load(self.position).is_some() {
                    return Ok(true);
                }
                let (sequence, position) = (self.sequence, self.position);
                return Err(LogDamage::Missing { sequence, position, found: header.sequence(), found_at });
            }
        }
        Ok(false)
    }

    /// Whether a record with this header was made when the next one here was durable.
    fn proves(&self, header: &Header) -> bool {
        // What a record proves is before it.
        header.proven() >= self.sequence
    }

    /// Searches the ring for a proof that [`LogReader::next`] did not find the end, as far as about
    /// `bytes` of work reach. Returns `true` when all of it was searched: this is the end, as far
    /// as the log can say. The writer must be gone.
    ///
    /// # Errors
    /// [`LogDamage::Missing`].
    pub fn verify_end(&mut self, bytes: usize) -> Result<bool, LogDamage> {
        self.search(bytes)?;
        Ok(self.searched >= self.ring.bytes())
    }
}
