//! The producer's side of a stream: writing, moving between regions, and growing (steps 2 to 4 of
//! [`super`]).
//!
//! 1. [`Endpoint::send`] takes the lock of the end's writers. [`Send`] holds it until it is
//!    dropped.
//! 2. A writer *stages* bytes behind the published tail: by a copy ([`Send::copy_from`]), or in
//!    place ([`Send::space`], then [`Send::stage`]). The consumer cannot see staged bytes.
//! 3. If the region is full, the writer reads the consumer's head once. If the region is full
//!    still, the writer may move to another region.
//! 4. [`Send::publish`], or the drop, stores the tail and flags with one release store. Corked
//!    bytes stay unpublished ([`super::cork`]).
//! 5. The caller then notifies the consumer ([`Endpoint::data_notification`]).
//!
//! A move is recorded before it takes effect. So the next writer completes the move of a writer
//! that was killed. The consumer's head is untrusted: a head outside of what was sent resets the
//! connection. No value of the consumer leads a write out of the mapping.

use std::mem::ManuallyDrop;
use std::ptr;

use super::EAGER_LOG2;
use super::copy_fault::CopyFault;
use super::endpoint::Endpoint;
use super::layout::{REGIONS, moved, tail};
use super::lock::{self, Guard};
use crate::guarded;
use crate::sync::{AtomicU64, Ordering};
use crate::untrusted::Untrusted;

/// Bytes of a segment of the kernel's loopback: so many are sent whatever options are set.
pub const SEGMENT: u64 = 65_483;

/// In `full_at`, a position that no stream reaches: a poll has reported room that the next region
/// is to give.
const PROMISED: u64 = u64::MAX - 1;

/// The right to write to an end, until it is dropped; what was staged is published then, unless it
/// is held back ([`super::cork`]).
#[derive(Debug)]
pub struct Send<'a> {
    end: &'a Endpoint,
    /// Published and staged.
    tail: u64,
    published: u64,
    /// How far the consumer may have read: what is published, and what was held back before and may
    /// have been due.
    readable: u64,
    head: u64,
    since: u64,
    log2: u8,
    /// The word of the held-back bytes is not 0.
    unusual: bool,
    guard: Guard<'a>,
}

impl<'a> Send<'a> {
    #[inline]
    pub(super) fn new(end: &'a Endpoint, guard: Guard<'a>) -> Self {
        let sending = &end.private().sending;
        let published = sending.tail.load(Ordering::Relaxed);
        let word = sending.region.load(Ordering::Relaxed);
        let head = sending.head.load(Ordering::Relaxed);
        // An invalid private word can only come from another holder of this end; it must not lead
        // out of the mapping.
        let log2 = moved::log2(word).clamp(end.region_sizes.smallest, end.region_sizes.largest);
        let held = sending.held.load(Ordering::Relaxed);
        let (tail, since, log2) = if held == 0 {
            (published, moved::at(word), log2)
        } else {
            let (since, log2) = Self::take_over(end, moved::at(word), log2);
            (published.max(held), since, log2)
        };
        Self { end, tail, published, readable: tail, head, since, log2, unusual: held != 0, guard }
    }

    /// Completes a move to another region that a killed writer began. To be called with the lock,
    /// before [`Endpoint::clear_corked`] forgets it.
    pub(super) fn complete_begun_move(end: &Endpoint) {
        let word = end.private().sending.region.load(Ordering::Relaxed);
        let log2 = moved::log2(word).clamp(end.region_sizes.smallest, end.region_sizes.largest);
        Self::take_over(end, moved::at(word), log2);
    }

    /// Bytes are held back, or a killed writer began to move to another region. Returns the current
    /// region and the position where it begins.
    #[cold]
    fn take_over(end: &Endpoint, since: u64, log2: u8) -> (u64, u8) {
        let left = end.private().sending.left[usize::from(log2) % REGIONS].load(Ordering::Relaxed);
        if moved::at(left) <= since || !end.region_sizes.has(moved::log2(left)) {
            return (since, log2);
        }
        Self::complete_move(end, log2, left);
        (moved::at(left), moved::log2(left))
    }

    #[inline]
    fn size(&self) -> u64 {
        1 << self.log2
    }

    #[inline]
    fn free(&self) -> u64 {
        self.size().saturating_sub(self.tail.saturating_sub(self.head.max(self.since)))
    }

    /// Reads the consumer's head, once, and validates it.
    #[inline]
    fn refresh_head(&mut self) {
        let head = self.end.outbound().consumer.head.load(Ordering::Acquire);
        if head < self.head || head > self.readable {
            self.end.distrust();
            return;
        }
        self.head = head;
        self.end.private().sending.head.store(head, Ordering::Relaxed);
    }

    /// The largest region that this end may use.
    pub(super) fn largest(end: &Endpoint) -> u8 {
        match end.private().send_limit.load(Ordering::Relaxed) {
            0 => end.region_sizes.largest,
            limit => {
                let limit = u8::try_from(limit).unwrap_or(u8::MAX);
                limit.clamp(end.region_sizes.smallest, end.region_sizes.largest)
            }
        }
    }

    /// Whether the consumer has read all that was ever put into a region.
    fn is_free(end: &Endpoint, log2: u8, head: u64) -> bool {
        let left = &end.private().sending.left;
        end.region_sizes.has(log2)
            && moved::at(left[usize::from(log2) % REGIONS].load(Ordering::Relaxed)) <= head
    }

    /// Whether a full ring would be left for a larger one, as far as can be said without the lock.
    pub(super) fn would_grow(end: &Endpoint) -> bool {
        let sending = &end.private().sending;
        let log2 = moved::log2(sending.region.load(Ordering::Acquire));
        let head = end.outbound().consumer.head.load(Ordering::Acquire);
        log2 < Self::largest(end)
            && Self::is_free(end, log2 + 1, head)
            && (log2 < EAGER_LOG2 || Self::promise_growth(&sending.full_at, head))
    }

    /// Whether a ring of [`EAGER_LOG2`] or more is left for a larger one when it is found full.
    /// What a poll reports has to hold for the write that follows, although the consumer may read
    /// on in a region that was left before, which makes no room in this one: so it is recorded.
    fn promise_growth(full_at: &AtomicU64, head: u64) -> bool {
        match full_at.compare_exchange(head, PROMISED, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(now) => now == PROMISED,
        }
    }

    /// Bytes that can be staged now, after reading the consumer's head again, and growing if that
    /// is due.
    #[inline]
    pub fn room(&mut self) -> usize {
        if self.free() == 0 {
            self.refresh_head();
            if self.free() == 0 {
                self.grow();
            }
        }
        self.free() as usize
    }

    /// Moves to another region if that is due: step 4 of [`super`].
    #[cold]
    fn grow(&mut self) {
        let sending = &self.end.private().sending;
        let larger = self.log2 < EAGER_LOG2 || {
            let full_at = sending.full_at.swap(self.head, Ordering::Relaxed);
            full_at == self.head || full_at == PROMISED
        };
        let log2 = if larger { self.log2 + 1 } else { EAGER_LOG2 };
        if log2 == self.log2 || log2 > Self::largest(self.end) || !Self::is_free(self.end, log2, self.head) {
            return;
        }
        if !self.end.reserve(log2) {
            // This region has to do from now on. A thread that polls must not be notified of room
            // that will not come.
            self.end.private().send_limit.store(u32::from(self.log2), Ordering::Relaxed);
            return;
        }
        self.publish();
        let word = moved::word(self.tail, log2);
        let old = usize::from(self.log2) % REGIONS;
        // From here on it is begun, and completed by the next to write if this one is killed.
        sending.held.store(self.tail, Ordering::Release);
        sending.left[old].store(word, Ordering::Release);
        Self::complete_move(self.end, self.log2, word);
        self.end.clear_corked();
        self.since = self.tail;
        self.log2 = log2;
    }

    /// Publishes where region `old` was left, then takes the next one as this end's own.
    fn complete_move(end: &Endpoint, old: u8, word: u64) {
        // Before the tail is published: a reader that sees a byte of the new region sees this too.
        end.outbound().moves.left[usize::from(old) % REGIONS].store(word, Ordering::Release);
        end.private().sending.region.store(word, Ordering::Release);
    }

    /// Where the next bytes go: at most [`Send::room`] in all. Valid until the next call of any
    /// method.
    #[inline]
    pub fn space(&mut self) -> [(*mut u8, usize); 2] {
        let room = self.room() as u64;
        let at = self.tail & (self.size() - 1);
        let first = room.min(self.size() - at);
        // Inside the region, which is inside the mapping: at + first <= size, room <= size.
        let start = self.end.region(false, self.log2);
        [(start.wrapping_add(at as usize), first as usize), (start, (room - first) as usize)]
    }

    /// Counts `bytes` that were put where [`Send::space`] said. They are not published yet.
    #[inline]
    pub fn stage(&mut self, bytes: usize) {
        self.tail += (bytes as u64).min(self.free());
    }

    /// Copies up to `length` bytes from `from` and stages them. Returns how many.
    ///
    /// # Safety
    /// `from` is none of this connection's memory. It may be read for `length` bytes, or a handler
    /// answers faults ([`crate::guarded`]).
    ///
    /// # Errors
    /// [`CopyFault`]; bytes that were staged before it stay so until they are taken back
    /// ([`Send::take_back`]).
    #[inline(always)]
    pub unsafe fn copy_from(&mut self, from: *const u8, length: usize) -> Result<usize, CopyFault> {
        let at = self.tail & (self.size() - 1);
        // Nearly always: there was room for all of it when this end last read the head, in one
        // piece.
        if length != 0 && length as u64 <= self.free().min(self.size() - at) {
            let to = self.end.region(false, self.log2).wrapping_add(at as usize);
            // SAFETY: as below: at + length <= size.
            unsafe { guarded::copy(to, from, length) }.map_err(|fault| CopyFault::at(fault, self.end))?;
            self.tail += length as u64;
            return Ok(length);
        }
        // SAFETY: the caller's.
        unsafe { self.copy_from_slowly(from, length) }
    }

    /// As [`Send::copy_from`], whatever the room is.
    ///
    /// # Safety
    /// The same.
    #[inline(never)]
    unsafe fn copy_from_slowly(&mut self, from: *const u8, length: usize) -> Result<usize, CopyFault> {
        let mut copied = 0;
        while copied < length {
            // A region that is left as it is full gives a second space.
            if self.free() < (length - copied) as u64 {
                self.refresh_head();
            }
            let space = self.space();
            let before = copied;
            for (to, bytes) in space {
                let now = bytes.min(length - copied);
                // SAFETY: `to` is inside the mapping for `bytes` bytes, which belong to this
                // producer alone until they are published; the source is the caller's.
                unsafe { guarded::copy(to, from.wrapping_add(copied), now) }
                    .map_err(|fault| CopyFault::at(fault, self.end))?;
                copied += now;
            }
            self.stage(copied - before);
            if copied == before {
                break;
            }
        }
        Ok(copied)
    }

    /// Copies what fits of bytes that another process may be writing, from ring to ring without a
    /// copy between, and stages it. Returns how many bytes.
    pub fn copy_untrusted(&mut self, bytes: Untrusted<'_>) -> usize {
        let mark = self.staged();
        if let Some(start) = bytes.contiguous() {
            // SAFETY: `Untrusted::from_raw` demands that so many bytes stay readable as long as
            // `bytes` lives. They may change meanwhile: a routine of assembly copies them
            // (`guarded`), about whose reads the compiler assumes nothing, and any byte is a `u8`.
            // The copy is what this end sends.
            let copied = unsafe { self.copy_from(start, bytes.len()) };
            return copied.unwrap_or_else(|_| self.take_back(mark));
        }
        let (mut copied, mut buffer) = (0, [0_u8; 512]);
        while copied < bytes.len() {
            let now = buffer.len().min(bytes.len() - copied);
            bytes.copy_to(copied, &mut buffer[..now]);
            let mark = self.staged();
            // SAFETY: a slice of this function's own.
            let staged = unsafe { self.copy_from(buffer.as_ptr(), now) };
            let staged = staged.unwrap_or_else(|_| self.take_back(mark));
            copied += staged;
            if staged < now {
                break;
            }
        }
        copied
    }

    /// How far bytes are staged, for [`Send::take_back`].
    #[inline]
    pub const fn staged(&self) -> u64 {
        self.tail
    }

    /// Takes back what was staged since `mark` ([`Send::staged`]), but for what was published
    /// meanwhile because the ring grew. Returns how many bytes that is.
    #[cold]
    pub fn take_back(&mut self, mark: u64) -> usize {
        self.tail = self.published.max(mark);
        (self.tail - mark) as usize
    }

    /// Copies what fits of `bytes` and publishes it. Returns how many bytes. The caller calls
    /// [`Endpoint::data_notification`] when it is done.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        // SAFETY: a slice; the mapping is not reachable as one.
        let copied = unsafe { self.copy_from(bytes.as_ptr(), bytes.len()) };
        self.publish();
        copied.unwrap_or(0)
    }

    /// Publishes the staged bytes.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.tail != self.published {
            self.publish_to(self.tail);
            if self.unusual {
                self.end.clear_corked();
            }
        }
    }

    /// Publishes the staged bytes and ends: what a drop does, in line.
    #[inline(always)]
    pub fn finish(self) {
        let mut this = ManuallyDrop::new(self);
        this.publish();
        // SAFETY: the value is not used any more, nor dropped.
        drop(unsafe { ptr::read(&raw const this.guard) });
    }

    #[inline]
    fn publish_to(&mut self, position: u64) {
        self.end.note_arrival(self.published);
        self.published = position;
        self.readable = self.readable.max(position);
        self.end.private().sending.tail.store(position, Ordering::Release);
        let producer = &self.end.outbound().producer;
        let read = self.end.private().receiving.head.load(Ordering::Relaxed);
        producer.read.store(read, Ordering::Relaxed);
        let word = tail::word(position, self.end.tail_flags());
        producer.tail.store(word, Ordering::Release);
    }

    /// Publishes as many whole segments as were staged.
    pub(super) fn publish_segments(&mut self) {
        let whole = (self.tail - self.published) / SEGMENT * SEGMENT;
        if whole != 0 {
            self.publish_to(self.published + whole);
            self.end.clear_corked();
        }
    }

    /// Whether nothing is staged.
    pub(super) const fn is_published(&self) -> bool {
        self.tail == self.published
    }

    /// The end that is written to.
    pub(super) const fn end(&self) -> &'a Endpoint {
        self.end
    }

    /// Leaves what was staged unpublished when this is dropped: where it ends.
    pub(super) fn stage_only(&mut self) -> u64 {
        self.end.private().sending.held.store(self.tail, Ordering::Release);
        self.published = self.tail;
        self.tail
    }
}

impl Drop for Send<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.publish();
    }
}

impl Endpoint {
    /// Begins to write; `None` if this very thread is writing already (a signal handler).
    #[inline(always)]
    pub fn send(&self) -> Option<Send<'_>> {
        Some(Send::new(self, lock::take(&self.private().sending.lock)?))
    }

    /// Bytes that fit now.
    pub fn writable(&self) -> usize {
        let sending = &self.private().sending;
        let word = sending.region.load(Ordering::Acquire);
        let (since, log2) = (moved::at(word), moved::log2(word));
        if !self.region_sizes.has(log2) {
            return 0;
        }
        let head = self.outbound().consumer.head.load(Ordering::Acquire);
        let used = self.staged().saturating_sub(head.max(since));
        (1_u64 << log2).saturating_sub(used) as usize
    }

    /// Bytes of the largest region that this end may write into.
    pub fn most_sent(&self) -> usize {
        1 << Send::largest(self)
    }

    /// Whether `poll(2)` would call it writable: a quarter of the ring is free, or it may still
    /// grow without asking.
    pub fn is_writable(&self) -> bool {
        let log2 =
            moved::log2(self.private().sending.region.load(Ordering::Acquire)).min(self.region_sizes.largest);
        let size = 1_usize << log2;
        self.writable() >= size / 4 || Send::would_grow(self)
    }

    /// Records that a writer found no room. Returns whether it was not recorded yet.
    #[cold]
    pub fn note_full(&self) -> bool {
        self.private().sending.space.fetch_or(1, Ordering::AcqRel) & 1 == 0
    }

    /// Whether a writer found no room, and none has found some since.
    #[inline]
    pub fn is_short_of_room(&self) -> bool {
        self.private().sending.space.load(Ordering::Acquire) & 1 != 0
    }

    /// How often there was room again after a caller had found none (wrapping): it wakes the
    /// threads that wait for room.
    #[inline]
    pub fn spaces(&self) -> u32 {
        let word = &self.private().sending.space;
        let now = word.load(Ordering::Acquire);
        if now & 1 == 0 || !self.is_writable() {
            return now >> 1;
        }
        // The bit is taken back and one more is counted in one step.
        match word.compare_exchange(now, now.wrapping_add(1), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => now.wrapping_add(1) >> 1,
            Err(other) => other >> 1,
        }
    }

    /// Bytes sent that the other has not read.
    pub fn unread_by_peer(&self) -> usize {
        let head = self.outbound().consumer.head.load(Ordering::Acquire);
        self.staged().saturating_sub(head).min(2 << self.region_sizes.largest) as usize
    }

    /// What the other has read, as it says.
    #[inline]
    pub fn read_by_peer(&self) -> u64 {
        self.outbound().consumer.head.load(Ordering::Acquire)
    }
}
