//! Which ports connections to one destination have, so that a free one is found without a search.
//!
//! 1. Two connections may have one port if they differ in anything else, so there is a set of ports
//!    for each pair of an address to connect from and a name to connect to.
//! 2. A set is words of 64 ports, of which those exist that are not empty: a user with many
//!    destinations takes one for each connection, and one with all connections to one destination
//!    the 512 words of all ephemeral ports.
//! 3. A free port is looked for word by word, from a cursor on, and once around.

use std::collections::{BTreeMap, HashMap};

use super::Place;

/// Ports in a word.
const WORD: u16 = 64;

/// The namespace, where from (its port does not matter), and where to.
type Between = (u64, Place, Place);

fn between(namespace: u64, from: Place, to: Place) -> Between {
    (namespace, Place { port: 0, ..from }, to)
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ports(HashMap<Between, BTreeMap<u16, u64>>);

impl Ports {
    /// A connection has this port.
    pub fn take(&mut self, namespace: u64, from: Place, to: Place) {
        let words = self.0.entry(between(namespace, from, to)).or_default();
        *words.entry(from.port / WORD).or_default() |= 1 << (from.port % WORD);
    }

    /// It has it no longer.
    pub fn free(&mut self, namespace: u64, from: Place, to: Place) {
        let key = between(namespace, from, to);
        let Some(words) = self.0.get_mut(&key) else { return };
        let at = from.port / WORD;
        if let Some(word) = words.get_mut(&at) {
            *word &= !(1 << (from.port % WORD));
            if *word == 0 {
                words.remove(&at);
            }
        }
        if words.is_empty() {
            self.0.remove(&key);
        }
    }

    /// A free port between `first` and `last`, the next one from `start` on if that is one of them.
    pub fn find(&self, namespace: u64, from: Place, to: Place, range: (u16, u16), start: u16) -> Option<u16> {
        let (first, last) = range;
        let start = if (first..=last).contains(&start) { start } else { first };
        let words = self.0.get(&between(namespace, from, to));
        // A connection from a name to itself is TCP's simultaneous open, which nobody asked for
        // here.
        let own = ((from.ip, from.scope) == (to.ip, to.scope)).then_some(to.port);
        let search = |first: u16, last: u16| {
            (first / WORD..=last / WORD).find_map(|at| {
                let base = at * WORD;
                let mut free = !words.and_then(|words| words.get(&at)).copied().unwrap_or(0);
                if let Some(bit) = own.filter(|own| own / WORD == at).map(|own| own % WORD) {
                    free &= !(1 << bit);
                }
                free &= u64::MAX << first.saturating_sub(base).min(WORD - 1);
                free &= u64::MAX >> (WORD - 1 - last.saturating_sub(base).min(WORD - 1));
                (free != 0).then(|| base + free.trailing_zeros() as u16)
            })
        };
        search(start, last).or_else(|| if start > first { search(first, start - 1) } else { None })
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn place(last: u8, port: u16) -> Place {
        Place { ip: std::net::Ipv4Addr::new(127, 0, 0, last).into(), scope: 0, port }
    }

    proptest! {
        #[test]
        fn the_next_free_port_is_found_as_by_a_search_of_all(
            taken in prop::collection::btree_set(prop_oneof![61_000..61_200_u16, 65_400..=65_535_u16], 0..300),
            given_back in prop::collection::btree_set(61_000..61_200_u16, 0..100),
            start in 60_900..=65_535_u16,
            range in prop_oneof![Just((61_000, 61_199)), Just((61_001, 65_535)), Just((61_150, 61_151))],
            to_itself in any::<bool>(),
        ) {
            let mut ports = Ports::default();
            let to = if to_itself { place(1, 61_150) } else { place(2, 61_150) };
            taken.iter().for_each(|&port| ports.take(1, place(1, port), to));
            given_back.iter().for_each(|&port| ports.free(1, place(1, port), to));
            let used: BTreeSet<u16> = taken.difference(&given_back).copied().collect();
            let is_free = |port: &u16| !used.contains(port) && (!to_itself || *port != 61_150);
            let (first, last) = range;
            let begin = if (first..=last).contains(&start) { start } else { first };
            let oracle = (begin..=last).chain(first..begin).find(is_free);
            prop_assert_eq!(ports.find(1, place(1, 0), to, range, start), oracle);
            // Another namespace, and another destination, have all of theirs.
            let other = ports.find(2, place(1, 0), place(3, 80), range, start);
            prop_assert_eq!(other, Some(begin));
            used.iter().for_each(|&port| ports.free(1, place(1, port), to));
            prop_assert!(ports.is_empty());
        }
    }
}
