//! Urgent data (`MSG_OOB`), with the rules of Linux's TCP.
//!
//! 1. A producer that sends urgent bytes writes beside its tail the position behind the last of
//!    them, the *mark*, before it publishes them. The last of these bytes is the urgent one. A
//!    later mark replaces an earlier one. The byte of that is then one like the others, unless it
//!    would have been read next: then it is passed over.
//! 2. It also sets [`MARKED`] in the word of the held-back bytes, for good. So a consumer of a
//!    connection without urgent data looks at no further word.
//! 3. A read that begins before the urgent byte ends there: the tail that it sees is no further
//!    ([`Endpoint::to_mark_of_reader`]). A read that begins at the urgent byte passes over it, and
//!    the byte can no longer be taken by itself. With `SO_OOBINLINE` it is read like the others.
//! 4. Until then the byte can be taken by itself, once ([`Endpoint::take_urgent`]).
//! 5. The mark is untrusted: one that is not between what was read and what was published is none.

use super::endpoint::Endpoint;
use super::layout::{MARKED, tail};
use super::private::option;
use super::receive::Receive;
use super::send::Send;
use crate::sync::Ordering;

impl Endpoint {
    /// Whether the other end has ever sent urgent data.
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.inbound().producer.held.load(Ordering::Acquire) & MARKED != 0
    }

    /// The position of the urgent byte, if it is published and was neither read nor passed over.
    pub fn urgent_position(&self) -> Option<u64> {
        if self.is_marked() { self.urgent_before(tail::position(self.published())) } else { None }
    }

    #[cold]
    fn urgent_before(&self, published: u64) -> Option<u64> {
        let mark = self.inbound().producer.urgent.load(Ordering::Acquire);
        let position = mark.checked_sub(1)?;
        (self.next_before(published)..published).contains(&position).then_some(position)
    }

    /// The position of the next byte that is read: beyond what is passed over.
    fn next_before(&self, published: u64) -> u64 {
        let head = self.read();
        let [from, to] =
            [0, 1].map(|at: usize| self.inbound().producer.urgent_passed[at].load(Ordering::Acquire));
        if (from..to).contains(&head) && to <= published && !self.is_inline() { to } else { head }
    }

    /// Whether the urgent byte is read like the others.
    fn is_inline(&self) -> bool {
        self.private().options[option::OOB_INLINE].load(Ordering::Relaxed) & !option::SET != 0
    }

    /// Whether everything before the urgent byte is read (`SIOCATMARK`).
    pub fn is_at_mark(&self) -> bool {
        let published = tail::position(self.published());
        self.urgent_position().is_some_and(|position| position == self.next_before(published))
    }

    /// What `FIONREAD` returns (Linux's `tcp_inq`): bytes before the urgent byte, or all of them if
    /// that is one like the others.
    pub fn waiting_bytes(&self) -> usize {
        if !self.is_marked() {
            return self.readable();
        }
        let published = tail::position(self.whole_tail());
        let end = self.urgent_before(published).filter(|_| !self.is_inline()).unwrap_or(published);
        self.at_most_all(end.saturating_sub(self.next_before(published)))
    }

    /// Whether the urgent byte is there, and was not taken by itself.
    pub fn has_urgent(&self) -> bool {
        let taken = self.private().urgent_taken.load(Ordering::Acquire);
        self.urgent_position().is_some_and(|position| position + 1 != taken)
    }

    /// [`Endpoint::readable`] where there has been a mark: 0 if all that is there is passed over.
    #[cold]
    pub(super) fn readable_to_mark(&self) -> usize {
        let published = tail::position(self.whole_tail());
        let next = self.next_before(published);
        let (first, end) = match self.urgent_before(published) {
            Some(position) if position != next => (next, position),
            Some(_) if !self.is_inline() => (next + 1, published),
            _ => (next, published),
        };
        if end <= first { 0 } else { self.at_most_all(end.saturating_sub(self.read())) }
    }

    /// The tail as a reader sees it, and how many bytes it passes over first.
    #[cold]
    pub(super) fn to_mark_of_reader(&self, word: u64) -> (u64, u64) {
        let published = tail::position(word);
        let next = self.next_before(published);
        let passed = next.saturating_sub(self.read());
        match self.urgent_before(published) {
            Some(position) if position == next => (word, passed + u64::from(!self.is_inline())),
            Some(position) => (tail::word(position, word & 0xff), passed),
            None => (word, passed),
        }
    }

    /// Whether the urgent byte can be taken by itself.
    pub fn may_take_urgent(&self) -> bool {
        !self.is_inline() && self.has_urgent()
    }

    /// A process is to get SIGURG when urgent data arrive here.
    pub fn want_urgent_signals(&self) {
        self.outbound().producer.urgent_signals.store(1, Ordering::Release);
    }

    /// Whether the other end has such a process.
    pub fn peer_wants_urgent_signals(&self) -> bool {
        self.inbound().producer.urgent_signals.load(Ordering::Acquire) != 0
    }

    /// Takes the urgent byte by itself; with `keep` it can be taken again. None: there is none, or
    /// it is one like the others, or was taken.
    pub fn take_urgent(&self, keep: bool) -> Option<u8> {
        if !self.may_take_urgent() {
            return None;
        }
        let receive = self.receive_all()?;
        // Another reader may have taken it, or passed over it.
        if !self.may_take_urgent() {
            return None;
        }
        let position = self.urgent_position()?;
        let mut byte = 0;
        let skip = position.checked_sub(receive.position())?;
        // SAFETY: a byte of this function's own.
        let copied = unsafe { receive.copy_to(&raw mut byte, 1, skip as usize) };
        if copied != Ok(1) {
            return None;
        }
        if !keep {
            self.private().urgent_taken.store(position + 1, Ordering::Release);
        }
        Some(byte)
    }
}

impl Receive<'_> {
    /// How many bytes at the head a peek passes over.
    pub const fn passes_over(&self) -> usize {
        self.passes as usize
    }
}

impl Send<'_> {
    /// The last of the staged bytes is urgent. An earlier urgent byte that the consumer would read
    /// next is passed over, as by Linux's `tcp_check_urg`.
    #[cold]
    pub fn mark_urgent(&self) {
        let producer = &self.end().outbound().producer;
        let head = self.end().read_by_peer();
        let [from, to] = &producer.urgent_passed;
        let (first, last) = (from.load(Ordering::Relaxed), to.load(Ordering::Relaxed));
        let next = if (first..last).contains(&head) { last } else { head };
        let before = producer.urgent.load(Ordering::Relaxed);
        if before == next + 1 {
            from.store(head, Ordering::Release);
            to.store(before, Ordering::Release);
        }
        producer.urgent.store(self.staged(), Ordering::Release);
        producer.held.fetch_or(MARKED, Ordering::Release);
    }
}
