//! A log over an area that changes size while it runs.
//!
//! 1. The superblock says over how many segments the log is laid out. An area may be larger than
//!    that; the log does not use the rest.
//! 2. [`Log::grow`]: a superblock that names more segments is written, both copies, durably; only
//!    then are the new segments free. A crash finds the old count, with nothing beyond it in use,
//!    or the new one.
//! 3. [`Log::shrink_to`]: from now on no segment beyond the new end is given out, and the log goes
//!    on in one before it. What is beyond is given up by the next snapshot
//!    ([`Log::should_compact`] requests it) or by truncation. When nothing does any more, a
//!    superblock that names fewer segments is written, durably. Only then may the area be shortened
//!    ([`Log::is_resizing`] becomes false). A crash before leaves the log as large as it was.
//! 4. Shrinking is refused where log and snapshot would not fit, with room for the next snapshot
//!    beside them.
//! 5. One superblock is in the making at a time: switching waits for a truncation or a snapshot
//!    that is switching, and those wait for it. Appends wait for nothing.
//! 6. A disk queue has a size of its own. [`Log::replace_disk`] takes one over the same area as it
//!    is now. What is appended waits in memory until the requests in flight have come back, a few
//!    milliseconds.

use sietch_disk::{Buffer, DiskQueue, Operation};

use super::Log;
use super::state::requests::{CLASS_RESIZE_SUPERBLOCK, token};
use super::state::resize::{Phase, Resize};
use crate::error::{Failure, ResizeError};
use crate::layout::Superblock;
use crate::limits::{DATA_START, MIN_SEGMENTS, SUPERBLOCK};
use crate::space::Space;

impl<D: DiskQueue> Log<D> {
    /// Bytes of the area that the log is laid out over. See [`Log::capacity`] for how much of that
    /// its records may take.
    pub fn area_bytes(&self) -> u64 {
        self.superblock.capacity
    }

    /// Whether a change of size is on its way: the end of the area is not what it will be.
    pub fn is_resizing(&self) -> bool {
        self.resize.is_some() || self.replacement.is_some()
    }

    /// Whether another disk queue waits to take over.
    pub fn is_replacing(&self) -> bool {
        self.replacement.is_some()
    }

    /// Uses more of the area, up to its first `capacity` bytes, which its disk queue must reach. It
    /// takes effect asynchronously, without holding appends up: [`Log::is_resizing`] becomes false,
    /// and [`Log::area_bytes`] says the new size. Nothing happens where that is no whole segment
    /// more.
    ///
    /// # Errors
    /// See [`ResizeError`].
    pub fn grow(&mut self, capacity: u64) -> Result<(), ResizeError> {
        self.check()?;
        if self.resize.is_some() {
            return Err(ResizeError::InProgress);
        }
        let area = self.replacement.as_deref().unwrap_or(&self.disk).capacity();
        if capacity > area {
            return Err(ResizeError::Area { wanted: capacity, capacity: area });
        }
        let count = self.segments_in(capacity);
        if count <= self.superblock.segment_count {
            return Ok(());
        }
        self.begin_resize(capacity, count)
    }

    /// Moves what the log needs before byte `capacity` of the area and gives the rest up. It takes
    /// effect once a snapshot ([`Log::should_compact`] requests one) or truncations have given up
    /// the records beyond. Then [`Log::is_resizing`] becomes false; only then may the area be
    /// shortened. Nothing happens where the log is no larger.
    ///
    /// # Errors
    /// See [`ResizeError`]; the log is as it was.
    pub fn shrink_to(&mut self, capacity: u64) -> Result<(), ResizeError> {
        self.check()?;
        let busy = self.is_resizing() || !self.snapshot.is_idle() || self.truncation.is_some();
        if busy {
            return Err(ResizeError::InProgress);
        }
        let count = self.segments_in(capacity);
        if count >= self.superblock.segment_count {
            return Ok(());
        }
        if count < MIN_SEGMENTS {
            let minimum = DATA_START + self.segment_bytes(MIN_SEGMENTS);
            return Err(ResizeError::TooSmall { wanted: capacity, minimum });
        }
        // One more: the log continues in a fresh segment.
        let (live, budget) = (self.live_segments() + 1, Space::budget_of(count));
        let too_much = ResizeError::Live {
            wanted: capacity,
            used: self.used(),
            limit: self.segment_bytes(budget),
            least: DATA_START + self.segment_bytes(Space::count_for(live)),
        };
        if live > budget {
            return Err(too_much);
        }
        self.space.restrict(count);
        let durable = self.durable;
        let moved = self
            .take_a_head()
            .and_then(|()| self.stream.move_below(count, durable, &mut self.space, &mut self.pool));
        if moved.is_none() {
            self.space.lift_restriction();
            return Err(too_much);
        }
        self.submit_wanted |= self.stream.queued() > 0;
        self.begin_resize(capacity, count)
    }

    /// Gives up a change of size, unless its superblock is on its way: then it takes effect.
    /// Returns whether there is none any more.
    pub fn keep_size(&mut self) -> bool {
        if self.resize.as_ref().is_some_and(|resize| !resize.is_switching()) {
            self.resize = None;
            self.space.lift_restriction();
        }
        self.resize.is_none()
    }

    /// Continues through `disk`, a queue over the same area, once the requests in flight have come
    /// back. The previous queue is dropped then, and [`Log::is_resizing`] becomes false. Until then
    /// nothing is written: what is appended waits in memory.
    ///
    /// # Errors
    /// See [`ResizeError`]; `disk` is dropped, and the log continues as before.
    pub fn replace_disk(&mut self, disk: D) -> Result<(), ResizeError> {
        self.check()?;
        if self.replacement.is_some() {
            return Err(ResizeError::InProgress);
        }
        let (block, formatted) = (disk.block_size(), self.superblock.block);
        if !(formatted as usize).is_multiple_of(block) {
            return Err(ResizeError::Block { block, formatted });
        }
        let wanted = self.resize.as_ref().map_or(0, |resize| resize.capacity).max(self.superblock.capacity);
        if disk.capacity() < wanted {
            return Err(ResizeError::Area { wanted, capacity: disk.capacity() });
        }
        self.replacement = Some(Box::new(disk));
        self.exchange();
        self.pump()?;
        Ok(self.notify()?)
    }

    /// Takes the new disk queue, if there is one and the old one has nothing in flight.
    pub(super) fn exchange(&mut self) {
        if self.disk.in_flight() == 0
            && let Some(disk) = self.replacement.take()
        {
            self.disk = *disk;
            self.in_flight = self.in_flight.min(super::open::most_in_flight(&self.disk));
        }
    }

    /// Whole segments in the first `capacity` bytes of the area.
    fn segments_in(&self, capacity: u64) -> u32 {
        let segments = capacity.saturating_sub(DATA_START) / u64::from(self.superblock.segment_bytes);
        u32::try_from(segments).unwrap_or(u32::MAX)
    }

    fn begin_resize(&mut self, capacity: u64, count: u32) -> Result<(), ResizeError> {
        self.resize = Some(Box::new(Resize { capacity, count, phase: Phase::Waiting, next: None }));
        self.pump()?;
        Ok(self.notify()?)
    }

    /// Whether the log has to leave segments before the area may shrink.
    pub(super) fn must_move(&self) -> bool {
        let count = self.space.count();
        let beyond = |segment: &u32| *segment >= count;
        // Only while they are not given out any more is there such a segment.
        self.stream.segments().iter().any(beyond) || self.snapshot_segments.iter().any(beyond)
    }

    /// Whether the superblock of a new size is being written: no other may be made meanwhile.
    pub(super) fn is_switching_size(&self) -> bool {
        self.resize.as_ref().is_some_and(|resize| resize.is_switching())
    }

    /// Takes the next step of a change of size.
    pub(super) fn pump_resize(&mut self) -> Result<(), Failure> {
        let Some(mut resize) = self.resize.take() else { return Ok(()) };
        let other = self.truncation.is_some() || self.snapshot.is_switching() || self.proof_write.is_some();
        if resize.phase == Phase::Waiting && !other && !self.must_move() {
            resize.phase = Phase::Switching { unsent: 2, flying: 0 };
            resize.next = Some(Superblock {
                capacity: resize.capacity,
                segment_count: resize.count,
                ..self.successor()
            });
        }
        let pumped = self.write_size(&mut resize);
        if resize.phase == (Phase::Switching { unsent: 0, flying: 0 }) {
            self.finish_resize(*resize);
        } else {
            self.resize = Some(resize);
        }
        pumped
    }

    fn write_size(&mut self, resize: &mut Resize) -> Result<(), Failure> {
        let Some(next) = &resize.next else { return Ok(()) };
        while let Phase::Switching { unsent, flying } = resize.phase
            && unsent > 0
        {
            let offset = Superblock::copy_offset(next.generation, unsent - 1);
            let mut buffer = Buffer::new(SUPERBLOCK);
            next.write(&mut buffer);
            let write = Operation::Write { offset, length: SUPERBLOCK, buffer, durable: true };
            if self.start(token(CLASS_RESIZE_SUPERBLOCK, offset), write)?.is_some() {
                break;
            }
            resize.phase = Phase::Switching { unsent: unsent - 1, flying: flying + 1 };
        }
        Ok(())
    }

    /// Takes a completion.
    pub(super) fn finish_resize_request(&mut self) {
        if let Some(resize) = &mut self.resize
            && let Phase::Switching { unsent, flying } = resize.phase
        {
            resize.phase = Phase::Switching { unsent, flying: flying.saturating_sub(1) };
        }
    }

    /// The new superblock is durable: the new segments are free, or the log no longer uses those
    /// beyond the new end.
    fn finish_resize(&mut self, resize: Resize) {
        if let Some(next) = resize.next {
            self.superblock = next;
        }
        self.space.resize(resize.count);
        self.metrics.resizes += 1;
    }
}
