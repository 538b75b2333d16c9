//! Corked bytes: what `MSG_MORE` and `TCP_CORK` request.
//!
//! 1. A producer that corks bytes stages them and does not publish them. Its private page says how
//!    far they go, so the next writer, in any process, continues behind them and publishes them
//!    with its own. A shutdown, a close, a full ring and a full segment publish them as well.
//! 2. Linux holds bytes for [`LONGEST`] at most, by a timer. Here there is no timer, because a
//!    producer may be busy with something else for ever. Instead the producer writes beside its
//!    tail how far the bytes go and when they are due, and notifies. The consumer wakes, finds
//!    nothing, sleeps until then at most ([`Endpoint::corked_for`], read *before* its last poll),
//!    and publishes the bytes itself in the producer's place ([`Endpoint::whole_tail`]).
//! 3. That is one compare-and-exchange of the tail: the second of the two finds another word there,
//!    with these bytes in it or behind them. A producer takes no tail from the common memory. So in
//!    its own view it has not published bytes that its consumer may have read. It accepts a head up
//!    to the end of the bytes that it staged.
//! 4. The peer can write this word, like everything in the common memory. At worst it publishes
//!    bytes that are in the ring, which it could publish anyway, and wakes the consumer, as any
//!    byte of the doorbell does.

use super::clock::{MILLISECOND, now};
use super::endpoint::Endpoint;
use super::layout::{MARKED, tail};
use super::private::flag;
use super::send::Send;
use crate::sync::Ordering;

/// Milliseconds that bytes are held back at most (`TCP_RTO_MIN` of Linux, after which its timer
/// sends what is corked).
pub const LONGEST: u64 = 200;

/// Bits of a position in a word. The next bit is [`MARKED`], those above it are milliseconds.
const POSITION: u32 = 39;

const TIME: u32 = POSITION + 1;

const _: () = assert!(MARKED == 1 << POSITION);

/// A word that says that bytes before `position` are due at `at` milliseconds. Never 0.
const fn word(position: u64, at: u64) -> u64 {
    let word = at << TIME | position & ((1 << POSITION) - 1);
    if word == 0 { 1 << TIME } else { word }
}

/// Milliseconds that are left of a word at `now`: none if it is due, or if it exceeds the longest
/// time that may be set.
const fn left(word: u64, now: u64) -> Option<u64> {
    let left = (word >> TIME).wrapping_sub(now) & ((1 << (u64::BITS - TIME)) - 1);
    if left == 0 || left > LONGEST { None } else { Some(left) }
}

impl Endpoint {
    /// What the other has published, with what it held back for long enough, as far as it can be
    /// read at once, and how many bytes are passed over before ([`super::urgent`]).
    #[inline]
    pub(super) fn tail_of_reader(&self) -> (u64, u64) {
        let producer = &self.inbound().producer;
        if producer.held.load(Ordering::Acquire) != 0 {
            self.publish_due_corked();
        }
        let word = producer.tail.load(Ordering::Acquire);
        // After the tail: the mark is set before its byte is published.
        if producer.held.load(Ordering::Acquire) & MARKED == 0 {
            (word, 0)
        } else {
            self.to_mark_of_reader(word)
        }
    }

    /// The word that the other published last, with what it held back for long enough.
    #[inline]
    pub(super) fn whole_tail(&self) -> u64 {
        let producer = &self.inbound().producer;
        if producer.held.load(Ordering::Acquire) != 0 {
            self.publish_due_corked();
        }
        producer.tail.load(Ordering::Acquire)
    }

    #[cold]
    fn publish_due_corked(&self) {
        let producer = &self.inbound().producer;
        let held = producer.held.load(Ordering::Acquire);
        let word = held & !MARKED;
        let before = producer.tail.load(Ordering::Acquire);
        // An end that is dead, or sends nothing more, holds nothing back. If one of several holders
        // has closed, that is not known before the kernel was queried.
        let closing = before & tail::CLOSING != 0 && !self.is_vetted(before);
        let over = before & tail::FIN != 0 || closing || self.private().has(flag::HUNG_UP);
        if word == 0 || left(word, now()).is_some() && !over {
            return;
        }
        let position = tail::position(before);
        let more = word.wrapping_sub(position) & ((1 << POSITION) - 1);
        if more <= 2 << self.region_sizes.largest {
            let after = tail::word(position + more, before & 0xff);
            // Another word: the producer has published them, or another holder of this end.
            let _ = producer.tail.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed);
        }
        let _ = producer.held.compare_exchange(held, held & MARKED, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Nanoseconds after which there may be more to read without a notification: the other end
    /// holds bytes back until then. A caller reads this before the last poll ahead of a sleep.
    /// Another reader of this end may take the bytes when they are due, and notifies no waiter.
    #[inline]
    pub fn corked_for(&self) -> Option<u64> {
        match self.inbound().producer.held.load(Ordering::Acquire) & !MARKED {
            0 => None,
            // The clock is some milliseconds coarse.
            word => Some(left(word, now()).unwrap_or(1) * MILLISECOND),
        }
    }

    /// Publishes what this end holds back. The caller then notifies
    /// ([`Endpoint::data_notification`]).
    pub fn push(&self) {
        if let Some(mut send) = self.send() {
            send.publish();
        }
    }

    /// The end of the bytes that this end has staged, published or held back.
    #[inline]
    pub(super) fn staged(&self) -> u64 {
        let sending = &self.private().sending;
        sending.tail.load(Ordering::Acquire).max(sending.held.load(Ordering::Acquire))
    }

    /// Nothing is held back any more.
    #[cold]
    pub(super) fn clear_corked(&self) {
        self.private().sending.held.store(0, Ordering::Release);
        self.outbound().producer.held.fetch_and(MARKED, Ordering::Release);
    }
}

impl Send<'_> {
    /// Ends without publishing the staged bytes, but for full segments. The caller notifies all the
    /// same ([`Endpoint::data_notification`]): the consumer must learn until when they are held.
    pub fn cork(mut self) {
        self.publish_segments();
        if self.is_published() {
            return;
        }
        let (now, held) = (now(), &self.end().outbound().producer.held);
        // The time of the bytes held back first counts. If it is over, no reader has polled yet.
        let marked = held.load(Ordering::Relaxed) & MARKED;
        let at = match held.load(Ordering::Relaxed) & !MARKED {
            0 => LONGEST,
            before => left(before, now).unwrap_or(0),
        };
        if at == 0 {
            return;
        }
        let position = self.stage_only();
        held.store(word(position, now + at) | marked, Ordering::Release);
    }
}
