//! UDP ports: bounded queues of datagrams in both directions.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::events::CloseReason;
use crate::limits::{SMALLEST_BUFFER, UDP_RECEIVE_BYTES, UDP_RECEIVE_QUEUE};
use crate::packet::{Address, Payload};

/// A datagram that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Who sent it.
    pub remote: SocketAddr,
    /// What it carries.
    pub payload: Vec<u8>,
    /// The ECN field with which it arrived.
    pub ecn: EcnCodepoint,
}

/// Why a datagram was not taken for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// It does not fit the MTU: the engine does not fragment.
    #[error("the datagram has more bytes than the largest that the link carries, {limit}: send smaller ones")]
    TooLong {
        /// The longest payload.
        limit: usize,
    },
    /// The queue is full.
    #[error("the send queue is full: emit and try again")]
    QueueFull,
    /// The source port is not bound.
    #[error("UDP port {0} is not bound: bind it before sending from it")]
    NotBound(u16),
    /// There is no way to the destination.
    #[error("no route to {0}: it is off the link and there is no gateway")]
    NoRoute(std::net::IpAddr),
}

/// A bound port.
#[derive(Debug)]
pub(crate) struct Port {
    pub port: u16,
    pub inbox: Inbox,
    /// There is something that the application was not told of.
    pub ready: bool,
    /// The only peer whose datagrams are taken, if there is one.
    pub connected: Option<(Address, u16)>,
    /// What its datagrams say of their sender.
    pub ecn: EcnCodepoint,
    pub error: Option<CloseReason>,
}

impl Port {
    pub fn new(port: u16) -> Self {
        Self {
            port,
            inbox: Inbox::default(),
            ready: false,
            connected: None,
            ecn: EcnCodepoint::NotEct,
            error: None,
        }
    }
}

/// The ECN field of a packet (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum EcnCodepoint {
    /// Its sender does not heed marks.
    #[default]
    NotEct = 0,
    /// Its sender heeds marks, in the way of L4S (RFC 9331).
    Ect1 = 1,
    /// Its sender heeds marks.
    Ect0 = 2,
    /// It met congestion.
    Ce = 3,
}

impl EcnCodepoint {
    /// What two bits mean.
    #[inline]
    pub const fn of(bits: u8) -> Self {
        match bits & 3 {
            1 => Self::Ect1,
            2 => Self::Ect0,
            3 => Self::Ce,
            _ => Self::NotEct,
        }
    }
}

/// Where a datagram lies in the ring of its port.
#[derive(Clone, Copy, Debug)]
struct Place {
    remote: (Address, u16),
    ecn: EcnCodepoint,
    at: usize,
    length: usize,
}

impl Place {
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
/// 2. The ring begins small and doubles up to [`UDP_RECEIVE_BYTES`]; then what finds no room is
///    dropped.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    places: VecDeque<Place>,
}

impl Inbox {
    /// Datagrams that wait.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The oldest: from whom, and what.
    #[inline]
    pub fn oldest(&self) -> Option<((Address, u16), &[u8])> {
        let place = self.places.front()?;
        Some((place.remote, &self.bytes[place.at..place.at + place.length]))
    }

    /// The ECN field of the oldest.
    #[inline]
    pub fn oldest_ecn(&self) -> Option<EcnCodepoint> {
        self.places.front().map(|place| place.ecn)
    }

    /// Drops the oldest.
    #[inline]
    pub fn pop(&mut self) {
        self.places.pop_front();
    }

    /// Keeps a datagram. False if there is no room.
    #[inline]
    pub fn push(&mut self, remote: (Address, u16), ecn: EcnCodepoint, payload: Payload<'_>) -> bool {
        if self.places.len() >= UDP_RECEIVE_QUEUE {
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
        self.places.push_back(Place { remote, ecn, at, length });
        true
    }

    #[inline]
    fn room(&self, wanted: usize) -> Option<usize> {
        let (Some(first), Some(last)) = (self.places.front(), self.places.back()) else {
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
        let used: usize = self.places.iter().map(|place| span(place.length)).sum();
        let size = (used + wanted).max(2 * self.bytes.len()).max(SMALLEST_BUFFER).next_power_of_two();
        if size > UDP_RECEIVE_BYTES {
            return None;
        }
        let mut larger = vec![0; size];
        let mut at = 0;
        for place in &mut self.places {
            larger[at..at + place.length].copy_from_slice(&self.bytes[place.at..place.at + place.length]);
            place.at = at;
            at = place.end();
        }
        self.bytes = larger;
        Some(at)
    }
}

/// A datagram or an ICMP message on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub local: Address,
    pub remote: Address,
    pub next_hop: NextHop,
    pub body: Body,
}

/// Where it goes first.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NextHop {
    Link([u8; 6]),
    Address(Address),
}

/// What it is.
#[derive(Debug)]
pub(crate) enum Body {
    Datagram {
        source: u16,
        destination: u16,
        ecn: EcnCodepoint,
        payload: Vec<u8>,
    },
    /// A report of groups.
    Report {
        message: Vec<u8>,
    },
    /// A message of the family's ICMP, without its header.
    Icmp {
        kind: u8,
        code: u8,
        rest: u32,
        hop_limit: u8,
        payload: Vec<u8>,
    },
}

#[cfg(test)]
mod tests;
