//! From addresses on the link to link addresses (ARP, RFC 826 and 1122 section 2.3.2).
//!
//! 1. Only who matters is remembered: who asked for us, and whom we asked. Replies that nobody asked for change an entry
//!    that exists and make none.
//! 2. Requests for one address are a second apart, three in all; then it is unreachable until somebody asks again.
//! 3. The cache is bounded; the entry that was confirmed longest ago makes place.

use hashbrown::HashMap;

use crate::limits::{ARP_INTERVAL, ARP_TRIES, NEIGHBOUR_LIFETIME, NEIGHBOURS, NEVER};
use crate::packet::Address;

#[derive(Debug)]
struct Entry {
    mac: Option<[u8; 6]>,
    confirmed_at: u64,
    /// When to ask (again), while a question is open.
    ask_at: u64,
    asked: u8,
}

/// What came of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    Known([u8; 6]),
    Pending,
}

/// The cache.
#[derive(Debug)]
pub(crate) struct Neighbours {
    entries: HashMap<Address, Entry, foldhash::fast::RandomState>,
    next: u64,
}

impl Neighbours {
    pub fn new() -> Self {
        Self { entries: HashMap::default(), next: NEVER }
    }

    /// When something is to be asked next.
    pub fn deadline(&self) -> u64 {
        self.next
    }

    /// The link address of `address`, or the start of a question for it.
    pub fn resolve(&mut self, address: Address, now: u64) -> Resolution {
        if !self.entries.contains_key(&address) {
            self.make_room();
            self.entries.insert(address, Entry { mac: None, confirmed_at: now, ask_at: now, asked: 0 });
        }
        let Some(entry) = self.entries.get_mut(&address) else { return Resolution::Pending };
        let stale = now.saturating_sub(entry.confirmed_at) > NEIGHBOUR_LIFETIME;
        if (entry.mac.is_none() || stale) && entry.ask_at == NEVER {
            entry.ask_at = now;
            entry.asked = 0;
        }
        self.next = self.next.min(entry.ask_at);
        entry.mac.map_or(Resolution::Pending, Resolution::Known)
    }

    /// Learns from an ARP packet. `asked_us` says that it was a request for our own address. Returns whether an open question was answered.
    pub fn learn(&mut self, address: Address, mac: [u8; 6], asked_us: bool, now: u64) -> bool {
        if asked_us && !self.entries.contains_key(&address) {
            self.make_room();
            self.entries.insert(address, Entry { mac: None, confirmed_at: now, ask_at: NEVER, asked: 0 });
        }
        let Some(entry) = self.entries.get_mut(&address) else { return false };
        let changed = entry.mac != Some(mac);
        *entry = Entry { mac: Some(mac), confirmed_at: now, ask_at: NEVER, asked: 0 };
        changed
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

    /// Collects the addresses to ask for now, and those that have not answered.
    pub fn due(&mut self, now: u64, ask: &mut Vec<Address>, failed: &mut Vec<Address>) {
        if now < self.next {
            return;
        }
        self.next = NEVER;
        self.entries.retain(|address, entry| {
            if entry.ask_at <= now {
                if entry.asked >= ARP_TRIES {
                    failed.push(*address);
                    return false;
                }
                entry.asked += 1;
                entry.ask_at = now + ARP_INTERVAL;
                ask.push(*address);
            }
            self.next = self.next.min(entry.ask_at);
            true
        });
    }
}
