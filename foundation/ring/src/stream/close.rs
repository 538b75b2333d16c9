//! Closing an end, and what the death of the other end means: step 6 of [`super`].
//!
//! 1. Half-close ([`Endpoint::finish`]) publishes FIN in the tail.
//! 2. A process that closes its last descriptor publishes CLOSING ([`Endpoint::closing`]). That is
//!    only a *hint* to the other end: other processes may still hold this one.
//! 3. An end that finds a new hint ([`Endpoint::may_be_hung_up`]) polls the kernel for a hang-up of
//!    its own descriptor. It then calls [`Endpoint::hung_up`] or [`Endpoint::still_there`].
//! 4. On a hang-up, the positions decide between a finish and a reset ([`Hangup`]).
//! 5. [`Endpoint::reset`] resets the connection at once, for all holders of the end.
//!
//! Flags are published under the writers' lock. A closing process does not wait for a lock that
//! another process keeps: it adds its flags by compare-and-exchange, and leaves the position to the
//! holder. Memory never decides that an end is dead.

use super::endpoint::Endpoint;
use super::layout::tail;
use super::lock;
use super::private::flag;
use super::send::Send;
use crate::sync::Ordering;

/// How often a closing process tries to publish its flags beside a producer that publishes: each
/// attempt of the producer takes a copy.
const PUBLICATIONS: u32 = 64;

/// How the other end died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// It had read everything and closed: FIN.
    Finished,
    /// It left something unread, aborted, or published invalid values: RST.
    Reset,
}

/// What an end said about closing, as it was read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint(u64);

impl Endpoint {
    /// Publishes FIN: nothing more will be sent. The caller then notifies
    /// ([`Endpoint::data_notification`]).
    pub fn finish(&self) {
        self.private().set(flag::SHUT_WR);
        self.publish_flags(0);
    }

    /// Whether the other end sees a reset once this end's last holder has closed (`SO_LINGER` with
    /// a time of zero).
    pub fn abort_on_close(&self, yes: bool) {
        let private = self.private();
        if yes {
            private.set(flag::ABORT_ON_CLOSE)
        } else {
            private.clear(flag::ABORT_ON_CLOSE)
        };
        self.publish_flags(0);
    }

    /// A process that closes its last descriptor of this end calls this first. The other end then
    /// soon checks with the kernel whether that was the last descriptor of all. The caller notifies
    /// ([`Endpoint::data_notification`]) only if it must not rely on the hang-up itself.
    pub fn closing(&self) {
        let unread = self.readable() != 0 || self.urgent_position().is_some();
        let unread = if unread { tail::UNREAD } else { 0 };
        self.publish_flags(tail::CLOSING | unread);
    }

    /// Resets the connection, also for other holders of this end: from now on the other end has a
    /// reset, and all holders here see it. The caller then notifies
    /// ([`Endpoint::data_notification`]).
    pub fn reset(&self) {
        self.private().set(flag::HAS_RESET | flag::HUNG_UP | flag::RESET | flag::RESET_REPORTED);
        self.publish_flags(0);
    }

    fn publish_flags(&self, more: u64) {
        let sending = &self.private().sending;
        // A process that closes continues without the lock if it does not get it soon: the sender
        // of this end may have written the word.
        let closes = more & tail::CLOSING != 0;
        let guard = if closes { lock::take_soon(&sending.lock) } else { lock::take(&sending.lock) };
        let published = &self.outbound().producer.tail;
        // The word is read back from common memory. If the other end has changed it there, that end
        // only loses a hint that its own peer has closed.
        let mut before = published.load(Ordering::Relaxed);
        let flags = |before: u64| {
            let closings =
                if more & tail::CLOSING == 0 { before & tail::CLOSINGS } else { tail::next_closing(before) };
            self.tail_flags() | more | closings
        };
        // Only flags that make the other side ready are an arrival.
        let is_new =
            |word: u64, before: u64| (word & !before) & (tail::FIN | tail::CLOSING | tail::RESET) != 0;
        if let Some(_guard) = guard {
            // Held-back bytes are published too; the other end may have taken them already.
            let position = self.staged();
            sending.tail.store(position, Ordering::Release);
            let word = tail::word(position, flags(before));
            if is_new(word, before) {
                self.note_arrival(position);
            }
            published.store(word, Ordering::Release);
            if sending.held.load(Ordering::Relaxed) != 0 {
                Send::complete_begun_move(self);
                self.clear_corked();
            }
            return;
        }
        // The lock holder may be publishing, and decides about positions. With these flags the
        // other end takes corked bytes by itself.
        for _ in 0..PUBLICATIONS {
            let word = tail::word(tail::position(before), flags(before));
            match published.compare_exchange(before, word, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => before = other,
            }
        }
    }

    /// Whether the other end left a hint that it may be dead, which was not checked yet. The caller
    /// queries the kernel (`POLLHUP` of its own descriptor), then calls [`Endpoint::hung_up`] or
    /// [`Endpoint::still_there`].
    #[inline]
    pub fn may_be_hung_up(&self) -> bool {
        self.is_closing() && self.is_new(self.hint())
    }

    /// As [`Endpoint::may_be_hung_up`]. Also true, however often the kernel was queried, while no
    /// process has accepted this connection. A queue that ends while the connection waits in it
    /// leaves no hint. For callers that act, not for callers that wait: asking changes nothing
    /// while the connection waits.
    #[inline]
    pub fn is_worth_polling(&self) -> bool {
        let word = self.inbound().producer.tail.load(Ordering::Acquire);
        word & tail::CLOSING != 0
            && (self.private().receiving.vetted.load(Ordering::Relaxed) != word || word == tail::UNACCEPTED)
    }

    /// Whether the other end has reset the connection: it counts as dead, whatever the kernel says.
    pub fn is_reset_by_peer(&self) -> bool {
        let word = self.inbound().producer.tail.load(Ordering::Acquire);
        word & (tail::RESET | tail::CLOSING) == tail::RESET | tail::CLOSING
    }

    /// Whether a process has closed the other end since anything was sent, checked or not.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.inbound().producer.tail.load(Ordering::Acquire) & tail::CLOSING != 0
    }

    /// The other end's current word about closing: to be read before the kernel is queried.
    pub fn hint(&self) -> Hint {
        Hint(self.inbound().producer.tail.load(Ordering::Acquire))
    }

    fn is_new(&self, hint: Hint) -> bool {
        !self.is_vetted(hint.0)
    }

    /// Whether this tail is known not to mean that the other end is dead.
    pub(super) fn is_vetted(&self, word: u64) -> bool {
        self.private().receiving.vetted.load(Ordering::Relaxed) == word
    }

    /// The hint was one of several holders that closed.
    pub fn still_there(&self, hint: Hint) {
        self.private().receiving.vetted.store(hint.0, Ordering::Relaxed);
    }

    /// The kernel says that no process holds the other end any more (`POLLHUP`, end of file or
    /// `EPIPE` of this end's descriptor). Returns what that meant, the same however often it is
    /// asked.
    pub fn hung_up(&self) -> Hangup {
        let private = self.private();
        let before = private.flags.load(Ordering::Acquire);
        if before & flag::HUNG_UP != 0 {
            return if before & flag::RESET == 0 { Hangup::Finished } else { Hangup::Reset };
        }
        let word = self.inbound().producer.tail.load(Ordering::Acquire);
        // In this order: bytes that another thread publishes meanwhile are not taken for held back.
        let held = private.sending.held.load(Ordering::Acquire);
        let sent = private.sending.tail.load(Ordering::Acquire);
        let head = self.outbound().consumer.head.load(Ordering::Acquire);
        // Bytes sent after the other end closed do not count. That is known if its last word says
        // that it closes, having read everything. A hint by another holder, which was not the last,
        // says nothing.
        let vetted = private.receiving.vetted.load(Ordering::Relaxed) == word;
        let read_all = word & (tail::CLOSING | tail::UNREAD) == tail::CLOSING && !vetted;
        // Where both have sent FIN nothing is left to be reset: Linux's tcp_close() finds
        // TCP_CLOSE.
        let over = word & tail::FIN != 0 && before & flag::SHUT_WR != 0;
        // Held-back bytes may have been read when they were due. Held-back bytes that were not read
        // count as unsent: Linux sends them when the other end closes and then receives a reset, of
        // which its reader is not notified either.
        let unread = !(sent..=held.max(sent)).contains(&head) || head < held;
        let aborted = (unread && !read_all) || word & tail::ABORT != 0;
        let reset = word & tail::RESET != 0 || aborted && !over;
        private.set(if reset { flag::HUNG_UP | flag::RESET } else { flag::HUNG_UP });
        if reset { Hangup::Reset } else { Hangup::Finished }
    }
}
