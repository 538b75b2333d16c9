//! Appends records.
//!
//! 1. A change is judged before anything is written. A record that would need space that is not
//!    reclaimed, or that is kept for removals, is refused.
//! 2. Data are read from the caller's slice once, into a piece of memory of the writer's, where the
//!    checksum is computed; from there they are stored. So data that change meanwhile are one
//!    version or a mix, but never contradict the checksum.
//! 3. The header line is stored last, then there is one fence. Until the fence is done the record
//!    is not acknowledged, and a loss of power leaves any part of it, which has no valid checksum.
//! 4. A record that does not fit in front of the end of the ring begins at its start. A pad says
//!    so; the fence of the record is its fence too.
//! 5. After a restart the header of such a remainder is removed before anything is appended.
//! 6. Where a mirror makes the log durable there is no fence, and every record says how many before
//!    it were not durable yet. No record may share a block of the disk with one that was
//!    acknowledged before: the mirror pads to whole blocks, for which there is always room.

use std::ops::Range;

use sietch_disk::nvm::Medium;
use sietch_structures::{Crc32c, crc32c};

use crate::change::Change;
use crate::inode::Timestamp;
use crate::limits::MAX_RECORD_DATA;
use crate::log::record::{self, Invalid, LINE, LogIdentity, Stamp};
use crate::log::ring::{Ring, RingError, reserve};

/// Bytes that are copied and summed at a time: a block of data with its header, and twice that
/// still fits the processor's first cache.
const PIECE: usize = 8 << 10;

const _: () = assert!(record::MAX_FRONT <= PIECE && PIECE.is_multiple_of(LINE));

/// When a record survives a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When [`LogWriter::append`] returns: the memory is persistent.
    Operation,
    /// When a [`crate::log::Mirror`] has written it to a disk.
    Sync {
        /// Bytes that the disk writes in one piece, a multiple of [`LINE`].
        block: usize,
    },
}

/// A record that was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Where it begins and where the next one may.
    pub position: Range<u64>,
    /// The position of the first byte of its data.
    pub data: u64,
    /// Its sequence.
    pub sequence: u64,
}

/// Why a record was not appended. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Its space is not reclaimed.
    #[error("the log is full; the digest must reclaim space first")]
    Full,
    /// No log takes it.
    #[error("no log takes this record: {0}")]
    Invalid(#[from] Invalid),
}

/// Data that are no longer in the log, or not yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log does not have the bytes from {} to {} in one piece; read the digested data", .0.start, .0.end)]
pub struct Overwritten(pub Range<u64>);

/// The one writer of a log.
#[derive(Debug)]
pub struct LogWriter<M: Medium> {
    medium: M,
    ring: Ring,
    identity: LogIdentity,
    durability: Durability,
    /// Position of the next record.
    end: u64,
    /// Its sequence.
    sequence: u64,
    /// Everything before is free to be written again.
    reclaimed: u64,
    /// Everything before is digested. The client may still read it here.
    digested: u64,
    /// Records up to this sequence are durable.
    durable: u64,
    /// Positions from which on a removal, and any other record, must not write.
    limits: Limits,
    piece: Box<[u8; PIECE]>,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    removals: u64,
    others: u64,
}

impl<M: Medium> LogWriter<M> {
    /// The writer of a new log, which fills `medium`: nothing is written.
    ///
    /// # Errors
    /// The memory is too small or not whole blocks.
    pub fn new(medium: M, identity: LogIdentity, durability: Durability) -> Result<Self, RingError> {
        let block = match durability {
            Durability::Operation => LINE,
            Durability::Sync { block } => block,
        };
        let ring = Ring::new(medium.len(), block)?;
        let mut writer = Self {
            medium,
            ring,
            identity,
            durability,
            end: 0,
            sequence: 1,
            reclaimed: 0,
            digested: 0,
            durable: 0,
            limits: Limits { removals: 0, others: 0 },
            piece: Box::new([0; PIECE]),
        };
        writer.set_limits();
        Ok(writer)
    }

    /// Goes on at `position`, a multiple of [`LINE`], with the record `sequence`, after a restart:
    /// where a [`crate::log::LogReader`] found the end. The digest has everything before. A log
    /// with a mirror goes on under a new epoch.
    ///
    /// # Panics
    /// If it is not a multiple, or the sequence is 0.
    pub fn continue_at(&mut self, position: u64, sequence: u64) {
        self.go_on(position, position, sequence);
    }

    /// As [`LogWriter::continue_at`], where the digest has only what is before `reclaimed`. Only
    /// persistent memory allows it: see [`crate::log::Mirror`].
    ///
    /// # Panics
    /// As there; if `reclaimed` is further than the ring before `position`, or behind it; with
    /// [`Durability::Sync`].
    pub fn continue_undigested(&mut self, reclaimed: u64, position: u64, sequence: u64) {
        assert_eq!(self.durability, Durability::Operation, "a mirrored log is digested first");
        self.go_on(reclaimed, position, sequence);
    }

    fn go_on(&mut self, reclaimed: u64, position: u64, sequence: u64) {
        assert!(position.is_multiple_of(LINE as u64) && sequence > 0, "no record is at {position}");
        let kept = position.checked_sub(reclaimed);
        assert!(kept.is_some_and(|kept| kept <= self.ring.bytes()), "{reclaimed} is not in the ring");
        (self.reclaimed, self.digested, self.end) = (reclaimed, reclaimed, position);
        (self.sequence, self.durable) = (sequence, sequence - 1);
        self.set_limits();
        self.discard_unfinished();
    }

    /// Removes the header of a record that was being appended when the power failed. It is at the
    /// end, or at the start of the ring, where its pad is missing. The next record has its
    /// sequence: after another loss of power the remains of both could be the old one, whole.
    fn discard_unfinished(&mut self) {
        let start = self.end + self.ring.pad_before(self.end, u64::MAX);
        for position in [self.end, start] {
            if position < self.limits.removals {
                self.medium.store(self.ring.place(position), &[0; LINE]);
            }
        }
        self.medium.fence();
    }

    /// Appends one record. `data` are those of a [`Change::Write`] or the value of a
    /// [`Change::SetXattr`], as long as the change says, and empty for all others. On return the
    /// record is durable as [`Durability`] says.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append(
        &mut self,
        time: Timestamp,
        change: &Change<'_>,
        data: &[u8],
    ) -> Result<Appended, AppendError> {
        let payload = match change {
            Change::Create { target, .. } if data.is_empty() => target,
            _ => data,
        };
        record::check(time, change, payload.len())?;
        let front = record::front_bytes(change);
        let length = front + payload.len().next_multiple_of(LINE);
        let limit = if is_removal(change) { self.limits.removals } else { self.limits.others };
        let pad = self.ring.pad_before(self.end, length as u64);
        if self.end + pad + length as u64 > limit {
            return Err(AppendError::Full);
        }
        if pad > 0 {
            self.store_pad(pad);
        }
        let start = self.end;
        let stamp = Stamp { sequence: self.sequence, unproven: self.unproven(), time };
        let (identity, piece) = (&self.identity, &mut self.piece[..]);
        record::encode_front(identity, start, stamp, change, payload.len(), &mut piece[..front]);
        if length <= PIECE {
            self.store_whole(start, front, payload, length);
        } else {
            self.store_pieces(start, front, payload);
        }
        if self.durability == Durability::Operation {
            self.medium.fence();
            self.durable = self.sequence;
        }
        self.sequence += 1;
        self.end = start + length as u64;
        Ok(Appended { position: start..self.end, data: start + front as u64, sequence: stamp.sequence })
    }

    /// Stores a record that fits the piece, in which its front is.
    fn store_whole(&mut self, start: u64, front: usize, payload: &[u8], length: usize) {
        let place = self.ring.place(start);
        let end = front + payload.len();
        self.piece[front..end].copy_from_slice(payload);
        self.piece[end..length].fill(0);
        let checksum = crc32c(&self.piece[..length]);
        record::finish(&mut self.piece[..LINE], checksum);
        if length > LINE {
            self.medium.store(place + LINE, &self.piece[LINE..length]);
        }
        self.medium.store(place, &self.piece[..LINE]);
    }

    /// Stores a longer one piece by piece.
    fn store_pieces(&mut self, start: u64, front: usize, payload: &[u8]) {
        let mut checksum = Crc32c::default();
        checksum.update(&self.piece[..front]);
        let mut place = self.ring.place(start);
        let header_place = place;
        let mut header = [0; LINE];
        header.copy_from_slice(&self.piece[..LINE]);
        if front > LINE {
            self.medium.store(place + LINE, &self.piece[LINE..front]);
        }
        place += front;
        for data in payload.chunks(PIECE) {
            let length = data.len().next_multiple_of(LINE);
            let piece = &mut self.piece[..length];
            piece[..data.len()].copy_from_slice(data);
            piece[data.len()..].fill(0);
            checksum.update(piece);
            self.medium.store(place, piece);
            place += length;
        }
        record::finish(&mut header, checksum.finish());
        self.medium.store(header_place, &header);
    }

    /// Makes the next `length` bytes nothing; they are whole lines, at least one, in one piece.
    fn store_pad(&mut self, length: u64) {
        let stamp = Stamp { sequence: self.sequence, unproven: self.unproven(), time: Timestamp::default() };
        // No longer than a record or a block.
        let skipped = (length - LINE as u64) as u32;
        let mut line = record::encode_pad(&self.identity, self.end, stamp, skipped);
        let checksum = crc32c(&line);
        record::finish(&mut line, checksum);
        self.medium.store(self.ring.place(self.end), &line);
        self.end += length;
    }

    /// Pads to a whole block of the mirror's disk and returns the end. There is always room: see
    /// `set_limits`.
    pub(crate) fn pad_to_block(&mut self) -> u64 {
        if let Durability::Sync { block } = self.durability {
            let pad = self.end.next_multiple_of(block as u64) - self.end;
            if pad > 0 {
                self.store_pad(pad);
            }
        }
        self.end
    }

    /// The digest has everything before `position`, durably: its space is free. An earlier position
    /// than before changes nothing.
    ///
    /// # Panics
    /// If nothing was written there yet.
    pub fn reclaim(&mut self, position: u64) {
        assert!(position <= self.end, "{position} was not written: the log ends at {}", self.end);
        self.digested = self.digested.max(position);
        if position > self.reclaimed {
            self.reclaimed = position;
            self.set_limits();
        }
    }

    /// The digest has everything before `position`, durably, but its space is not free yet.
    ///
    /// # Panics
    /// If nothing was written there yet.
    pub fn note_digested(&mut self, position: u64) {
        assert!(position <= self.end, "{position} was not written: the log ends at {}", self.end);
        self.digested = self.digested.max(position);
    }

    fn set_limits(&mut self) {
        let mut removals = self.reclaimed + self.ring.bytes();
        if let Durability::Sync { block } = self.durability {
            // The block in which undigested records begin is never written again before they are
            // digested. Up to its start there are whole blocks, so a pad to one always fits.
            removals = removals / block as u64 * block as u64;
        }
        self.limits = Limits { removals, others: removals.saturating_sub(reserve(self.ring.bytes())) };
    }

    fn unproven(&self) -> u16 {
        let unproven = self.sequence - 1 - self.durable;
        u16::try_from(unproven).unwrap_or(record::UNKNOWN)
    }

    /// Records up to `sequence` are durable: a mirror says so.
    pub(crate) fn proven(&mut self, sequence: u64) {
        self.durable = self.durable.max(sequence.min(self.sequence - 1));
    }

    /// Copies data of earlier records, that begin at `position`.
    ///
    /// # Errors
    /// They are not there in one piece.
    pub fn read(&self, position: u64, out: &mut [u8]) -> Result<(), Overwritten> {
        let length = out.len() as u64;
        let end = position.saturating_add(length);
        let oldest = self.limits.removals.saturating_sub(self.ring.bytes()).min(self.reclaimed);
        if position < oldest || end > self.end || length > self.ring.contiguous(position) {
            return Err(Overwritten(position..end));
        }
        self.medium.load(self.ring.place(position), out);
        Ok(())
    }

    /// Bytes that records other than removals may still take, with their pads.
    pub fn room(&self) -> u64 {
        self.limits.others.saturating_sub(self.end)
    }

    /// The most data that one record of this log can ever carry: it fits an empty log wherever that
    /// begins.
    pub fn max_data(&self) -> usize {
        let block = match self.durability {
            Durability::Operation => 0,
            Durability::Sync { block } => block as u64,
        };
        let free = self.ring.bytes().saturating_sub(reserve(self.ring.bytes()) + block);
        // Half may be the pad; smaller than the memory.
        let data = (free / 2 / LINE as u64 * LINE as u64).saturating_sub(record::MAX_FRONT as u64) as usize;
        data.min(MAX_RECORD_DATA)
    }

    /// Where the next record begins, unless a pad comes first.
    pub fn next_position(&self) -> u64 {
        self.end
    }

    /// The sequence of the next record.
    pub fn next_sequence(&self) -> u64 {
        self.sequence
    }

    /// Everything before this position is digested, and its space is free.
    pub fn reclaimed(&self) -> u64 {
        self.reclaimed
    }

    /// Everything before this position is digested.
    pub fn digested(&self) -> u64 {
        self.digested
    }

    pub(crate) fn durability(&self) -> Durability {
        self.durability
    }

    pub(crate) fn ring(&self) -> Ring {
        self.ring
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> u64 {
        self.ring.bytes()
    }

    /// Whose records they are.
    pub fn identity(&self) -> LogIdentity {
        self.identity
    }

    /// The memory.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Gives the memory back.
    pub fn into_medium(self) -> M {
        self.medium
    }
}

/// Whether the change makes room in the pool, so that it may use the reserve.
fn is_removal(change: &Change<'_>) -> bool {
    matches!(
        change,
        Change::Unlink { .. } | Change::Free { .. } | Change::Truncate { .. } | Change::RemoveXattr { .. }
    )
}
