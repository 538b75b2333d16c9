//! The datagrams that wait at a bound port.

use std::collections::VecDeque;

use crate::limits::{SMALLEST_BUFFER, UDP_RECEIVE_BYTES, UDP_RECEIVE_QUEUE};
use crate::packet::{Address, EcnCodepoint, Payload};

/// Where a datagram is in the ring of its port.
#[derive(Clone, Copy, Debug)]
struct Queued {
    remote: (Address, u16),
    ecn: EcnCodepoint,
    at: usize,
    length: usize,
}

impl Queued {
    /// Behind its last byte, in whole words: no datagram takes nothing, so an empty ring is not
    /// mistaken for a full one.
    const fn end(&self) -> usize {
        self.at + span(self.length)
    }
}

const fn span(length: usize) -> usize {
    (length + 8) & !7
}

/// The datagrams that wait at a port, each in one piece in a ring of bytes.
///
/// 1. The next one goes behind the last, or to the start of the ring where it does not fit before
///    its end.
/// 2. The ring begins small and doubles up to [`UDP_RECEIVE_BYTES`]; then a datagram without room
///    is dropped.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    bytes: Vec<u8>,
    queued: VecDeque<Queued>,
}

impl ReceiveQueue {
    /// Datagrams that wait.
    pub(super) fn len(&self) -> usize {
        self.queued.len()
    }

    /// The oldest: its sender and its bytes.
    #[inline]
    pub(super) fn oldest(&self) -> Option<((Address, u16), &[u8])> {
        let datagram = self.queued.front()?;
        Some((datagram.remote, &self.bytes[datagram.at..datagram.at + datagram.length]))
    }

    /// The ECN field of the oldest.
    #[inline]
    pub(super) fn oldest_ecn(&self) -> Option<EcnCodepoint> {
        self.queued.front().map(|datagram| datagram.ecn)
    }

    /// Drops the oldest.
    #[inline]
    pub(super) fn pop(&mut self) {
        self.queued.pop_front();
    }

    /// Keeps a datagram. False if there is no room.
    #[inline]
    pub(super) fn push(&mut self, remote: (Address, u16), ecn: EcnCodepoint, payload: Payload<'_>) -> bool {
        if self.queued.len() >= UDP_RECEIVE_QUEUE {
            return false;
        }
        let length = payload.len();
        let at = match self.room(span(length)) {
            Some(at) => at,
            None => match self.grow(span(length)) {
                Some(at) => at,
                None => return false,
            },
        };
        payload.copy_to(0, &mut self.bytes[at..at + length]);
        self.queued.push_back(Queued { remote, ecn, at, length });
        true
    }

    #[inline]
    fn room(&self, wanted: usize) -> Option<usize> {
        let (Some(first), Some(last)) = (self.queued.front(), self.queued.back()) else {
            return (wanted <= self.bytes.len()).then_some(0);
        };
        let (start, end) = (first.at, last.end());
        if end > start {
            if wanted <= self.bytes.len() - end {
                return Some(end);
            }
            return (wanted < start).then_some(0);
        }
        (end + wanted < start).then_some(end)
    }

    #[cold]
    fn grow(&mut self, wanted: usize) -> Option<usize> {
        let used: usize = self.queued.iter().map(|datagram| span(datagram.length)).sum();
        let size = (used + wanted).max(2 * self.bytes.len()).max(SMALLEST_BUFFER).next_power_of_two();
        if size > UDP_RECEIVE_BYTES {
            return None;
        }
        let mut larger = vec![0; size];
        let mut at = 0;
        for datagram in &mut self.queued {
            larger[at..at + datagram.length]
                .copy_from_slice(&self.bytes[datagram.at..datagram.at + datagram.length]);
            datagram.at = at;
            at = datagram.end();
        }
        self.bytes = larger;
        Some(at)
    }
}

#[cfg(test)]
mod tests;
