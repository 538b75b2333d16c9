//! Bytes of a packet in two pieces: those in private memory, and those that the sender may still
//! write.
//!
//! 1. Headers are in the first piece ([`sietch_nic::queue::LEAST_HEAD`] says how much of a frame is
//!    there at least) and are read in place. The second piece is only ever copied out.
//! 2. [`Payload::skip`] and [`Payload::take`] narrow both pieces at once, so a payload is what is
//!    left of its packet.

use std::fmt;

use sietch_nic::Untrusted;

use super::checksum;

/// Bytes that [`Payload::sum`] copies at a time: small beside the stack, large beside the cost of a
/// step, and even.
const SUM_STEP: usize = 1024;

/// Consecutive bytes of a packet, of which the last may be foreign.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    /// The bytes that cannot change.
    pub head: &'a [u8],
    /// What follows them.
    pub tail: Untrusted<'a>,
}

impl<'a> Payload<'a> {
    /// No bytes.
    pub const EMPTY: Self = Self { head: &[], tail: Untrusted::EMPTY };

    /// How many bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.head.is_empty() && self.tail.is_empty()
    }

    /// All but the first `bytes`.
    #[inline]
    pub fn skip(self, bytes: usize) -> Self {
        match self.head.get(bytes..) {
            Some(head) => Self { head, tail: self.tail },
            None => Self { head: &[], tail: self.tail.skip(bytes - self.head.len()) },
        }
    }

    /// The first `bytes`, or all if there are fewer.
    #[inline]
    pub fn take(self, bytes: usize) -> Self {
        match self.head.get(..bytes) {
            Some(head) => Self { head, tail: Untrusted::EMPTY },
            None => Self { head: self.head, tail: self.tail.take(bytes - self.head.len()) },
        }
    }

    /// Copies the bytes from `offset` on into `out`, all of it.
    ///
    /// # Panics
    /// If there are fewer bytes.
    #[inline]
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) {
        let rest = self.head.get(offset..).unwrap_or_default();
        let first = rest.len().min(out.len());
        let (near, far) = out.split_at_mut(first);
        near.copy_from_slice(&rest[..first]);
        if !far.is_empty() {
            self.tail.copy_to((offset + first) - self.head.len(), far);
        }
    }

    /// A copy of all bytes. Allocates.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.len()];
        self.copy_to(0, &mut copy);
        copy
    }

    /// Their [`checksum::sum`], as they are now.
    #[inline]
    pub fn sum(&self) -> u64 {
        let head = checksum::sum(self.head);
        if self.tail.is_empty() { head } else { checksum::join(head, self.head.len(), sum_tail(self.tail)) }
    }
}

#[cold]
fn sum_tail(mut tail: Untrusted<'_>) -> u64 {
    let (mut total, mut step) = (0, [0; SUM_STEP]);
    while !tail.is_empty() {
        let part = &mut step[..tail.len().min(SUM_STEP)];
        tail.copy_to(0, part);
        total += checksum::sum(part);
        tail = tail.skip(part.len());
    }
    total
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(head: &'a [u8]) -> Self {
        Self { head, tail: Untrusted::EMPTY }
    }
}

impl<'a> From<&'a Vec<u8>> for Payload<'a> {
    fn from(head: &'a Vec<u8>) -> Self {
        Self::from(head.as_slice())
    }
}

impl<'a, const LENGTH: usize> From<&'a [u8; LENGTH]> for Payload<'a> {
    fn from(head: &'a [u8; LENGTH]) -> Self {
        Self::from(head.as_slice())
    }
}

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Payload({} + {} bytes)", self.head.len(), self.tail.len())
    }
}
