//! The consumer's side of a stream: reading, and following the producer from region to region
//! (steps 2 and 3 of [`super`]).
//!
//! 1. [`Endpoint::receive`] takes the lock of the end's readers. [`Receive`] holds it until it is
//!    dropped.
//! 2. [`Receive`] reads the producer's tail once, and validates it. All later steps use that copy.
//! 3. The bytes are in the current region up to the tail, or up to the producer's next move. Behind
//!    the move, reading continues in the region that the move names.
//! 4. Bytes are read in place ([`Receive::pieces`]) or copied ([`Receive::copy_to`]).
//!    [`Receive::consume`] then publishes the head, which makes room for the producer.
//! 5. The caller then notifies the producer ([`Endpoint::room_notification`]).
//!
//! All words of the producer are untrusted. An invalid one gives no bytes and resets the
//! connection; it never leads a read out of the mapping.

use super::copy_fault::CopyFault;
use super::endpoint::Endpoint;
use super::layout::{REGIONS, moved, tail};
use super::lock::{self, Guard};
use super::private::DISTRUSTED;
use crate::guarded;
use crate::sync::Ordering;
use crate::untrusted::Untrusted;

/// A place in the stream: a position, the region that it is in, and since which position the
/// producer was in it.
#[derive(Clone, Copy, Debug)]
struct ReadPosition {
    position: u64,
    since: u64,
    log2: u8,
}

/// The right to read from an end, until it is dropped.
#[derive(Debug)]
pub struct Receive<'a> {
    end: &'a Endpoint,
    /// The head.
    at: ReadPosition,
    published: u64,
    /// Bytes at the head that are passed over ([`super::urgent`]).
    pub(super) passes: u64,
    _guard: Guard<'a>,
}

impl<'a> Receive<'a> {
    /// Reads what the producer has published, once, and validates it.
    #[inline]
    pub(super) fn new(end: &'a Endpoint, (word, passes): (u64, u64), guard: Guard<'a>) -> Self {
        let receiving = &end.private().receiving;
        let region = receiving.region.load(Ordering::Relaxed);
        // An invalid private word can only come from another holder of this end; it must not lead
        // out of the mapping.
        let log2 = moved::log2(region).clamp(end.region_sizes.smallest, end.region_sizes.largest);
        let position = receiving.head.load(Ordering::Relaxed);
        let at = ReadPosition { position, since: moved::at(region), log2 };
        let published = tail::position(word);
        let most = 2_u64 << end.region_sizes.largest;
        if published.checked_sub(position).is_none_or(|ready| ready > most) {
            end.distrust();
            return Self { end, at, published: position, passes: 0, _guard: guard };
        }
        Self { end, at, published, passes, _guard: guard }
    }

    /// How many bytes are in the region of `place` from there on, and the word of the move that
    /// ends them, if one does. An invalid word of the producer gives no bytes.
    #[inline]
    fn run(&self, place: ReadPosition) -> (u64, Option<u64>) {
        let left = self.end.inbound().moves.left[usize::from(place.log2) % REGIONS].load(Ordering::Acquire);
        // A move before `since` is one of an earlier visit; one beyond the published bytes matters
        // later.
        let ends = moved::at(left) > place.since && moved::at(left) <= self.published;
        let limit = if ends { moved::at(left) } else { self.published };
        match limit.checked_sub(place.position) {
            Some(length) if length <= 1 << place.log2 => (length, ends.then_some(left)),
            _ => {
                self.end.distrust();
                (0, None)
            }
        }
    }

    /// Where the region after a move begins.
    #[inline]
    fn enter(&self, word: u64) -> Option<ReadPosition> {
        let (position, log2) = (moved::at(word), moved::log2(word));
        if self.end.region_sizes.has(log2) {
            return Some(ReadPosition { position, since: position, log2 });
        }
        self.end.distrust();
        None
    }

    /// Bytes read so far.
    #[inline]
    pub fn position(&self) -> u64 {
        self.at.position
    }

    /// Bytes that can be read.
    #[inline]
    pub fn available(&self) -> usize {
        (self.published - self.at.position) as usize
    }

    /// The first bytes, in order, where they are: none only if nothing is available (or the
    /// producer published invalid values). After they are consumed there may be more.
    #[inline]
    pub fn pieces(&mut self) -> [Untrusted<'_>; 2] {
        self.consume(0);
        let (length, _) = self.run(self.at);
        self.pieces_of(self.at, length)
    }

    #[inline]
    fn pieces_of(&self, place: ReadPosition, length: u64) -> [Untrusted<'_>; 2] {
        // SAFETY: inside the mapping (`runs_of`), which outlives the borrow. This process writes
        // there in no way: it is the other's direction.
        self.runs_of(place, length).map(|(start, bytes)| unsafe { Untrusted::from_raw(start, bytes) })
    }

    /// Where `length` bytes from a place on are: at most [`Receive::run`] of them.
    #[inline]
    fn runs_of(&self, place: ReadPosition, length: u64) -> [(*const u8, usize); 2] {
        let size = 1_u64 << place.log2;
        let at = place.position & (size - 1);
        let first = length.min(size - at);
        // `log2` is one that the region sizes include (`new`, `enter`), so the region is inside the
        // mapping; at + first <= size, and length <= size (`run`).
        let start = self.end.region(true, place.log2).cast_const();
        [(start.wrapping_add(at as usize), first as usize), (start, (length - first) as usize)]
    }

    /// Copies up to `length` bytes to `to`, beginning `skip` bytes after the first; consumes
    /// nothing. Returns how many.
    ///
    /// # Safety
    /// `to` may be written for `length` bytes, or a handler answers faults ([`crate::guarded`]).
    ///
    /// # Errors
    /// [`CopyFault`].
    #[inline]
    pub unsafe fn copy_to(&self, to: *mut u8, length: usize, skip: usize) -> Result<usize, CopyFault> {
        let (mut copied, mut skip, mut place) = (0, skip as u64, self.at);
        // Each iteration but the last leaves a region for good, so there are no more iterations
        // than regions, whatever the producer does.
        for _ in 0..=REGIONS {
            let (run, end) = self.run(place);
            let passed = skip.min(run);
            skip -= passed;
            place.position += passed;
            for (piece, bytes) in self.runs_of(place, run - passed) {
                let now = bytes.min(length - copied);
                if now != 0 {
                    // SAFETY: the caller's: `copied + now <= length`; the piece is as in
                    // `pieces_of`.
                    unsafe { guarded::copy(to.wrapping_add(copied), piece, now) }
                        .map_err(|fault| CopyFault::at(fault, self.end))?;
                    copied += now;
                }
            }
            match end.and_then(|word| self.enter(word)) {
                Some(next) if copied < length => place = next,
                _ => break,
            }
        }
        Ok(copied)
    }

    /// Returns `bytes` to the producer, at most what is available. The caller calls
    /// [`Endpoint::room_notification`] when it is done.
    #[inline]
    pub fn consume(&mut self, bytes: usize) {
        let mut left = (bytes as u64).min(self.published - self.at.position);
        let before = self.at;
        for _ in 0..=REGIONS {
            let (run, end) = self.run(self.at);
            let now = left.min(run);
            self.at.position += now;
            left -= now;
            // Followed as soon as the region is read out, so that its producer may use it again.
            if now != run {
                break;
            }
            let Some(next) = end.and_then(|word| self.enter(word)) else { break };
            self.at = next;
            // In this order: a process that is killed in between has read the old region to its
            // end.
            let receiving = &self.end.private().receiving;
            receiving.head.store(next.position, Ordering::Release);
            receiving.region.store(moved::word(next.since, next.log2), Ordering::Release);
        }
        if self.at.position != before.position {
            self.publish();
        }
    }

    /// Whether the kernel has refused a page of the connection meanwhile: bytes that were read in
    /// place may be none of the peer's, and are not to be consumed. The connection is reset.
    #[inline]
    pub fn is_refused(&self) -> bool {
        self.end.private().receiving.head.load(Ordering::Relaxed) == DISTRUSTED
    }

    /// Reads into `out`; how many bytes.
    #[inline]
    pub fn read(&mut self, out: &mut [u8]) -> usize {
        // SAFETY: an exclusive slice.
        unsafe { self.read_to(out.as_mut_ptr(), out.len()) }.unwrap_or(0)
    }

    /// Reads up to `length` bytes to `to`; how many.
    ///
    /// # Safety
    /// As [`Receive::copy_to`].
    ///
    /// # Errors
    /// [`CopyFault`]; nothing was read then.
    #[inline(always)]
    pub unsafe fn read_to(&mut self, to: *mut u8, length: usize) -> Result<usize, CopyFault> {
        let (run, end) = self.run(self.at);
        let now = run.min(length as u64);
        let size = 1_u64 << self.at.log2;
        let at = self.at.position & (size - 1);
        // Nearly always: in one piece, and the producer stays in this region.
        if end.is_none() && now <= size - at {
            if now != 0 {
                let from = self.end.region(true, self.at.log2).wrapping_add(at as usize);
                // SAFETY: inside the region, as in `runs_of`: at + now <= size; the rest is the
                // caller's: now <= length.
                unsafe { guarded::copy(to, from, now as usize) }
                    .map_err(|fault| CopyFault::at(fault, self.end))?;
                self.at.position += now;
                self.publish();
            }
            return Ok(now as usize);
        }
        // SAFETY: the caller's.
        let copied = unsafe { self.copy_to(to, length, 0) }?;
        self.consume(copied);
        Ok(copied)
    }

    /// Says how far this end has read.
    #[inline]
    fn publish(&self) {
        self.end.private().receiving.head.store(self.at.position, Ordering::Release);
        self.end.inbound().consumer.head.store(self.at.position, Ordering::Release);
    }
}

impl Endpoint {
    /// Begins to read; `None` if this very thread is reading already (a signal handler). Urgent
    /// bytes at the head are passed over.
    #[inline(always)]
    pub fn receive(&self) -> Option<Receive<'_>> {
        let mut receive = self.peek()?;
        if receive.passes != 0 {
            receive.consume(receive.passes as usize);
            receive.passes = 0;
        }
        Some(receive)
    }

    /// As [`Endpoint::receive`], to read without consuming: see [`Receive::passes_over`].
    #[inline(always)]
    pub fn peek(&self) -> Option<Receive<'_>> {
        let guard = lock::take(&self.private().receiving.lock)?;
        Some(Receive::new(self, self.tail_of_reader(), guard))
    }

    /// The same for all that was published, urgent or not.
    pub(super) fn receive_all(&self) -> Option<Receive<'_>> {
        let guard = lock::take(&self.private().receiving.lock)?;
        Some(Receive::new(self, (self.whole_tail(), 0), guard))
    }
}
