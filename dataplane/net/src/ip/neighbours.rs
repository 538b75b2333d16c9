//! From addresses on the link to link addresses: ARP (RFC 826 and 1122 section 2.3.2) and neighbour
//! discovery (RFC 4861).
//!
//! ```text
//! INCOMPLETE  no link address, requests are sent
//! REACHABLE   confirmed less than NEIGHBOUR_LIFETIME ago
//! STALE       not confirmed, or too long ago; used, and a request follows its next use (this is
//!             DELAY and PROBE in one)
//! ```
//!
//! 1. Entries are made only for hosts that requested our address and for next hops that we use.
//!    Unsolicited packets update an entry and create none.
//! 2. Over IPv6 only the answer to an open request confirms an entry. Any other advertisement, even
//!    one with the solicited flag, leaves the entry STALE. It changes the link address only with
//!    the override flag (RFC 4861 section 7.2.5).
//! 3. Requests for one address are a second apart, three in all. Then the address is unreachable
//!    until the next lookup.
//! 4. The cache is bounded, and the entry that was confirmed longest ago is evicted. IPv6 entries
//!    that were never confirmed go first, so a flood of solicitations evicts its own entries.

use hashbrown::HashMap;

use crate::limits::{ARP_INTERVAL, ARP_TRIES, DELAY_FIRST_PROBE, NEIGHBOUR_LIFETIME, NEIGHBOURS, NEVER};
use crate::packet::Address;

pub(crate) mod announce;
mod arp;

#[derive(Debug)]
struct Entry {
    mac: Option<[u8; 6]>,
    /// Zero: never.
    confirmed_at: u64,
    /// When to send the next request, while one is open.
    request_at: u64,
    requests: u8,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    Known([u8; 6]),
    Pending,
}

/// A request for a link address: to all nodes, or to the node that had the address last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NeighbourRequest {
    pub address: Address,
    pub mac: Option<[u8; 6]>,
}

/// An advertisement that arrived (RFC 4861 section 4.4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advertisement {
    pub mac: Option<[u8; 6]>,
    pub solicited: bool,
    pub replaces: bool,
}

/// The cache.
#[derive(Debug)]
pub(crate) struct Neighbours {
    entries: HashMap<Address, Entry, foldhash::fast::RandomState>,
    next: u64,
}

impl Neighbours {
    /// A cache without requests before `next`.
    pub(crate) fn new(next: u64) -> Self {
        Self { entries: HashMap::default(), next }
    }

    /// Makes the deadline no later than `at`.
    pub(crate) fn no_later(&mut self, at: u64) {
        self.next = self.next.min(at);
    }

    /// When the next request is due.
    pub(crate) fn deadline(&self) -> u64 {
        self.next
    }

    /// The link address of `address`, or the start of a request for it.
    pub(crate) fn resolve(&mut self, address: Address, now: u64) -> Resolution {
        if !self.entries.contains_key(&address) {
            self.make_room();
            self.entries
                .insert(address, Entry { mac: None, confirmed_at: now, request_at: now, requests: 0 });
        }
        let Some(entry) = self.entries.get_mut(&address) else { return Resolution::Pending };
        let never = entry.confirmed_at == 0 && !address.is_v4();
        let stale = never || now.saturating_sub(entry.confirmed_at) > NEIGHBOUR_LIFETIME;
        if (entry.mac.is_none() || stale) && entry.request_at == NEVER {
            // A host that announced itself gets our packets first: its entry may be right.
            entry.request_at = if entry.mac.is_some() && never { now + DELAY_FIRST_PROBE } else { now };
            entry.requests = 0;
        }
        self.next = self.next.min(entry.request_at);
        entry.mac.map_or(Resolution::Pending, Resolution::Known)
    }

    /// Learns from an ARP packet. `for_us` says that it was a request for our own address. Returns
    /// whether there is a new link address.
    pub(crate) fn learn(&mut self, address: Address, mac: [u8; 6], for_us: bool, now: u64) -> bool {
        if for_us && !self.entries.contains_key(&address) {
            self.make_room();
            self.entries
                .insert(address, Entry { mac: None, confirmed_at: now, request_at: NEVER, requests: 0 });
        }
        let Some(entry) = self.entries.get_mut(&address) else { return false };
        let changed = entry.mac != Some(mac);
        *entry = Entry { mac: Some(mac), confirmed_at: now, request_at: NEVER, requests: 0 };
        changed
    }

    /// Learns from a solicitation for our own address (RFC 4861 section 7.2.3). Returns whether
    /// there is a new link address.
    pub(crate) fn solicited_by(&mut self, address: Address, mac: [u8; 6]) -> bool {
        if !self.entries.contains_key(&address) {
            self.make_room();
        }
        let fresh = Entry { mac: None, confirmed_at: 0, request_at: NEVER, requests: 0 };
        let entry = self.entries.entry(address).or_insert(fresh);
        if entry.mac == Some(mac) {
            return false;
        }
        *entry = Entry { mac: Some(mac), confirmed_at: 0, request_at: NEVER, requests: 0 };
        true
    }

    /// Learns from an advertisement (RFC 4861 section 7.2.5). Returns whether there is a new link
    /// address.
    pub(crate) fn advertised(&mut self, address: Address, advertisement: &Advertisement, now: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&address) else { return false };
        // A request is open from its first transmission until it is answered or given up.
        let answers = advertisement.solicited && entry.request_at != NEVER && entry.requests > 0;
        let new = advertisement.mac.filter(|mac| entry.mac != Some(*mac));
        if entry.mac.is_none() && new.is_none() {
            return false;
        }
        if entry.mac.is_some() && new.is_some() && !advertisement.replaces {
            // Another host claims the address: the entry stays, and becomes STALE.
            entry.confirmed_at = 0;
            return false;
        }
        entry.mac = new.or(entry.mac);
        if answers {
            (entry.confirmed_at, entry.request_at) = (now.max(1), NEVER);
        } else if new.is_some() {
            (entry.confirmed_at, entry.request_at) = (0, NEVER);
        }
        new.is_some()
    }

    fn make_room(&mut self) {
        if self.entries.len() >= NEIGHBOURS {
            let oldest =
                self.entries.iter().min_by_key(|(_, entry)| entry.confirmed_at).map(|(address, _)| *address);
            if let Some(oldest) = oldest {
                self.entries.remove(&oldest);
            }
        }
    }

    /// Collects the requests that are due, and the addresses that did not answer.
    pub(crate) fn due(&mut self, now: u64, ask: &mut Vec<NeighbourRequest>, failed: &mut Vec<Address>) {
        if now < self.next {
            return;
        }
        self.next = NEVER;
        self.entries.retain(|address, entry| {
            if entry.request_at <= now {
                if entry.requests >= ARP_TRIES {
                    failed.push(*address);
                    return false;
                }
                entry.requests += 1;
                entry.request_at = now + ARP_INTERVAL;
                ask.push(NeighbourRequest { address: *address, mac: entry.mac });
            }
            self.next = self.next.min(entry.request_at);
            true
        });
    }
}

#[cfg(test)]
mod tests;
