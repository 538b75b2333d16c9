//! The ports that connections to one destination use, so that a free one is found without a search
//! of all connections.
//!
//! 1. Two connections may share a port if they differ in anything else. So there is a set of ports
//!    for each pair of a source address and a destination name.
//! 2. A set consists of words of 64 ports; empty words are not stored. A user with many
//!    destinations needs one word for each connection; all ephemeral ports of one destination are
//!    512 words.
//! 3. The search for a free port goes word by word from a cursor, once around.

use std::collections::{BTreeMap, HashMap};

use super::canonical_name::CanonicalName;

/// PortSets in a word.
const WORD: u16 = 64;

/// The namespace, the source (whose port is ignored), and the destination.
type PortsKey = (u64, CanonicalName, CanonicalName);

fn key(namespace: u64, from: CanonicalName, to: CanonicalName) -> PortsKey {
    (namespace, CanonicalName { port: 0, ..from }, to)
}

/// The sets of used ports.
#[derive(Debug, Default)]
pub(super) struct PortSets(HashMap<PortsKey, BTreeMap<u16, u64>>);

impl PortSets {
    /// Marks a port as used.
    pub(super) fn take(&mut self, namespace: u64, from: CanonicalName, to: CanonicalName) {
        let words = self.0.entry(key(namespace, from, to)).or_default();
        *words.entry(from.port / WORD).or_default() |= 1 << (from.port % WORD);
    }

    /// Marks a port as free.
    pub(super) fn free(&mut self, namespace: u64, from: CanonicalName, to: CanonicalName) {
        let key = key(namespace, from, to);
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

    /// Returns a free port of `range`: the next one from `start` on, if that is in the range.
    pub(super) fn find(
        &self,
        namespace: u64,
        from: CanonicalName,
        to: CanonicalName,
        range: (u16, u16),
        start: u16,
    ) -> Option<u16> {
        let (first, last) = range;
        let start = if (first..=last).contains(&start) { start } else { first };
        let words = self.0.get(&key(namespace, from, to));
        // A connection from a name to itself would be TCP's simultaneous open.
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
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn name(last: u8, port: u16) -> CanonicalName {
        CanonicalName { ip: std::net::Ipv4Addr::new(127, 0, 0, last).into(), scope: 0, port }
    }

    proptest! {
        #[test]
        fn the_next_free_port_is_the_one_that_a_linear_search_finds(
            taken in prop::collection::btree_set(prop_oneof![61_000..61_200_u16, 65_400..=65_535_u16], 0..300),
            given_back in prop::collection::btree_set(61_000..61_200_u16, 0..100),
            start in 60_900..=65_535_u16,
            range in prop_oneof![Just((61_000, 61_199)), Just((61_001, 65_535)), Just((61_150, 61_151))],
            to_itself in any::<bool>(),
        ) {
            let mut ports = PortSets::default();
            let to = if to_itself { name(1, 61_150) } else { name(2, 61_150) };
            taken.iter().for_each(|&port| ports.take(1, name(1, port), to));
            given_back.iter().for_each(|&port| ports.free(1, name(1, port), to));
            let used: BTreeSet<u16> = taken.difference(&given_back).copied().collect();
            let is_free = |port: &u16| !used.contains(port) && (!to_itself || *port != 61_150);
            let (first, last) = range;
            let begin = if (first..=last).contains(&start) { start } else { first };
            let oracle = (begin..=last).chain(first..begin).find(is_free);
            prop_assert_eq!(ports.find(1, name(1, 0), to, range, start), oracle);
            // In another namespace, and to another destination, all ports are free.
            let other = ports.find(2, name(1, 0), name(3, 80), range, start);
            prop_assert_eq!(other, Some(begin));
            used.iter().for_each(|&port| ports.free(1, name(1, port), to));
            prop_assert!(ports.is_empty());
        }
    }
}
