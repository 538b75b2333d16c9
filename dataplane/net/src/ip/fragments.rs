//! Packets that arrive in fragments (RFC 791 section 3.2, RFC 8200 section 4.5).
//!
//! 1. Fragments are kept as they come, so their cost is what was sent. When they are contiguous
//!    from the first to the last, they are the packet.
//! 2. Fragments that overlap make the whole packet void, and so does any contradiction with earlier
//!    ones. RFC 5722 calls for that over IPv6; we do it for IPv4 too, because no honest sender
//!    overlaps and no receiver can decide which copy counts. An identical repetition is harmless.
//! 3. A void packet keeps its key until its time is over, so that its other fragments do not begin
//!    a new packet.
//! 4. Everything is bounded (RFC 8900 section 3.7): packets, packets of one source, fragments of a
//!    packet, bytes, time. The oldest packet is evicted first, and a packet of the same source
//!    before others, so a flood from one address evicts that address's own packets.
//! 5. The sender of the first fragment of a packet that did not complete in time gets an ICMP error
//!    (RFC 792, RFC 8200 section 4.5). The beginning of that fragment is kept for it. Nothing is
//!    sent about void or evicted packets.
//!
//! We send no fragments: our segments fit the path, and DF is set.

use super::origin::Origin;
use crate::limits::{
    FRAGMENT_LIFETIME, FRAGMENT_MEMORY, FRAGMENTED_PACKETS, FRAGMENTED_PER_SOURCE, FRAGMENTS_PER_PACKET,
    NEVER,
};
use crate::packet::{Address, Payload};

mod reassembly;

/// What the fragments of a packet have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub source: Address,
    pub destination: Address,
    pub identification: u32,
    /// Zero over IPv6, where the first fragment alone decides.
    pub protocol: u8,
}

/// A fragment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment<'a> {
    /// What follows the headers, if this is the first fragment.
    pub protocol: u8,
    pub offset: usize,
    pub more: bool,
    pub payload: Payload<'a>,
}

#[derive(Debug)]
struct Partial {
    key: Key,
    began: u64,
    /// By offset.
    fragments: Vec<(usize, Vec<u8>)>,
    total: Option<usize>,
    protocol: u8,
    void: bool,
    /// The origin of the first fragment, and how its packet begins.
    first: Option<(Origin, Vec<u8>)>,
}

/// Bytes beside the payload that a fragment is charged with.
const OVERHEAD: usize = 64;
/// Most bytes of a packet behind its header.
const LONGEST: usize = 65_535;

impl Partial {
    fn cost(&self) -> usize {
        self.fragments.iter().map(|fragment| fragment.1.len() + OVERHEAD).sum()
    }

    /// Stores a fragment. False if it makes the packet void.
    fn keep(&mut self, fragment: &Fragment<'_>) -> bool {
        let (start, end) = (fragment.offset, fragment.offset + fragment.payload.len());
        let place = self.fragments.partition_point(|(at, _)| *at < start);
        if self.fragments.get(place).is_some_and(|(at, bytes)| *at == start && at + bytes.len() == end) {
            return fragment.more || self.total == Some(end);
        }
        let before =
            place.checked_sub(1).map_or(0, |place| self.fragments[place].0 + self.fragments[place].1.len());
        let after = self.fragments.get(place).map_or(usize::MAX, |fragment| fragment.0);
        let last = self.fragments.last().map_or(0, |(at, bytes)| at + bytes.len());
        let total = if fragment.more { self.total } else { Some(end) };
        let agrees = (self.total.is_none() || total == self.total)
            && total.is_none_or(|total| end.max(last) <= total)
            && !(fragment.more && self.total == Some(end));
        if before > start || end > after || !agrees || self.fragments.len() >= FRAGMENTS_PER_PACKET {
            return false;
        }
        if start == 0 {
            self.protocol = fragment.protocol;
        }
        self.total = total;
        self.fragments.insert(place, (start, fragment.payload.to_vec()));
        true
    }

    fn is_whole(&self) -> bool {
        let mut next = 0;
        for (at, bytes) in &self.fragments {
            if *at != next {
                return false;
            }
            next += bytes.len();
        }
        self.total == Some(next)
    }
}

/// All packets of which fragments have arrived.
#[derive(Debug)]
pub(crate) struct Fragments {
    /// In the order of their beginning.
    packets: Vec<Partial>,
    bytes: usize,
}

/// What became of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Others are missing.
    Waiting,
    /// It is not taken.
    Refused,
    /// The packet's protocol and payload.
    Whole(u8, Vec<u8>),
}

impl Fragments {
    pub(super) const fn new() -> Self {
        Self { packets: Vec::new(), bytes: 0 }
    }

    /// When the oldest packet expires.
    #[inline]
    pub(super) fn deadline(&self) -> u64 {
        self.packets.first().map_or(NEVER, |packet| packet.began + FRAGMENT_LIFETIME)
    }

    /// Drops the oldest packet if its time is over. Returns the origin and the beginning of its
    /// first fragment, if an ICMP error is due.
    pub(super) fn expire(&mut self, now: u64) -> Option<Option<(Origin, Vec<u8>)>> {
        (self.deadline() <= now).then(|| {
            let first = self.packets[0].first.take().filter(|_| !self.packets[0].void);
            self.forget(0);
            first
        })
    }

    /// Stores how the packet begins whose first fragment was just taken.
    pub(super) fn note_first(&mut self, key: &Key, origin: &Origin, begin: &[u8]) {
        if let Some(packet) = self.packets.iter_mut().find(|packet| packet.key == *key) {
            packet.first.get_or_insert_with(|| (*origin, begin.to_vec()));
        }
    }

    /// Takes a fragment.
    pub(super) fn take(&mut self, key: Key, fragment: &Fragment<'_>, now: u64) -> Outcome {
        let length = fragment.payload.len();
        // All but the last are whole in eights, none is empty, and their sum is a packet.
        if length == 0 || (fragment.more && !length.is_multiple_of(8)) || fragment.offset + length > LONGEST {
            return Outcome::Refused;
        }
        let found = self.packets.iter().position(|packet| packet.key == key);
        let index = found.unwrap_or_else(|| self.begin(key, now));
        let packet = &mut self.packets[index];
        if packet.void {
            return Outcome::Refused;
        }
        let before = packet.cost();
        if !packet.keep(fragment) {
            packet.void = true;
            packet.fragments = Vec::new();
            self.bytes -= before;
            return Outcome::Refused;
        }
        self.bytes += packet.cost() - before;
        if packet.is_whole() {
            let (protocol, bytes) = (
                packet.protocol,
                packet.fragments.iter().flat_map(|fragment| &fragment.1).copied().collect(),
            );
            self.forget(index);
            return Outcome::Whole(protocol, bytes);
        }
        while self.bytes > FRAGMENT_MEMORY {
            self.forget(0);
        }
        Outcome::Waiting
    }

    fn begin(&mut self, key: Key, now: u64) -> usize {
        let mut own = self.packets.iter().enumerate().filter(|(_, packet)| packet.key.source == key.source);
        let first = own.next().map(|(index, _)| index);
        let oldest = first.filter(|_| own.count() + 1 >= FRAGMENTED_PER_SOURCE);
        if let Some(oldest) = oldest {
            self.forget(oldest);
        } else if self.packets.len() >= FRAGMENTED_PACKETS {
            self.forget(0);
        }
        self.packets.push(Partial {
            key,
            began: now,
            fragments: Vec::new(),
            total: None,
            protocol: 0,
            void: false,
            first: None,
        });
        self.packets.len() - 1
    }

    fn forget(&mut self, index: usize) {
        let packet = self.packets.remove(index);
        self.bytes -= packet.cost();
    }
}

#[cfg(test)]
mod tests;
