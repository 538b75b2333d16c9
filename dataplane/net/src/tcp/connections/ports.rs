//! Which of our ports are in use, one bit each.
//!
//! 1. There is a set of listening ports, and one of ports that any connection uses: a flow, a
//!    half-open connection, or one in TIME-WAIT.
//! 2. A port that no connection uses is free towards every peer. It is found by testing 64 ports at
//!    a time.
//! 3. Ports that were drawn lately are remembered, so that a random draw can skip them. The peer
//!    may keep a closed connection in TIME-WAIT. It then accepts a new one with the same four-tuple
//!    only once its clocks have moved on (RFC 6191). Chance alone would repeat one port of
//!    thousands within that time (RFC 6056 section 3.2).

/// Words of 64 bits for all ports.
const WORDS: usize = 1024;
/// Ports.
const ALL: usize = 65_536;

/// A set of ports.
#[derive(Debug)]
pub(crate) struct PortSet(Box<[u64; WORDS]>);

impl Default for PortSet {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

impl PortSet {
    const fn place(port: u16) -> (usize, u64) {
        (port as usize / 64, 1 << (port % 64))
    }

    #[inline]
    pub(crate) fn contains(&self, port: u16) -> bool {
        let (word, bit) = Self::place(port);
        self.0[word] & bit != 0
    }

    pub(crate) fn insert(&mut self, port: u16) {
        let (word, bit) = Self::place(port);
        self.0[word] |= bit;
    }

    pub(crate) fn remove(&mut self, port: u16) {
        let (word, bit) = Self::place(port);
        self.0[word] &= !bit;
    }

    fn clear(&mut self) {
        self.0.fill(0);
    }

    /// The first port from `first` to `last` that is neither in this set nor in one of the others.
    fn first_missing(&self, others: &[&Self], first: u16, last: u16) -> Option<u16> {
        let (begin, end) = (usize::from(first) / 64, usize::from(last) / 64);
        for word in begin..=end {
            let mut free = !others.iter().fold(self.0[word], |taken, other| taken | other.0[word]);
            if word == begin {
                free &= u64::MAX << (first % 64);
            }
            if word == end {
                free &= u64::MAX >> (63 - last % 64);
            }
            if free != 0 {
                // Below 65,536.
                return Some((word * 64) as u16 + free.trailing_zeros() as u16);
            }
        }
        None
    }
}

/// Ports drawn lately, in two halves: when the younger is full, it replaces the older one.
#[derive(Debug, Default)]
pub(crate) struct RecentPorts {
    younger: PortSet,
    older: PortSet,
    /// Ports drawn since it was empty.
    drawn: u16,
}

impl RecentPorts {
    #[inline]
    pub(crate) fn contains(&self, port: u16) -> bool {
        self.younger.contains(port) || self.older.contains(port)
    }

    /// Remembers a port until `half` others were drawn; it is forgotten before twice as many were.
    pub(crate) fn insert(&mut self, port: u16, half: u16) {
        if half == 0 {
            return;
        }
        if self.drawn >= half {
            std::mem::swap(&mut self.younger, &mut self.older);
            self.younger.clear();
            self.drawn = 0;
        }
        self.younger.insert(port);
        self.drawn += 1;
    }
}

/// The ports that connections have.
#[derive(Debug, Default)]
pub(crate) struct PortUse {
    used: PortSet,
    /// Connections of each port; nothing before the first.
    connections: Vec<u32>,
}

impl PortUse {
    /// One connection more.
    pub(crate) fn enter(&mut self, port: u16) {
        if self.connections.is_empty() {
            self.connections = vec![0; ALL];
        }
        self.connections[usize::from(port)] += 1;
        self.used.insert(port);
    }

    /// One connection less.
    pub(crate) fn leave(&mut self, port: u16) {
        let left = self.connections[usize::from(port)].saturating_sub(1);
        self.connections[usize::from(port)] = left;
        if left == 0 {
            self.used.remove(port);
        }
    }

    /// A port from `first` to `last` that no connection uses and that is not listened on: the next
    /// one from `begin` on, if possible one that was not drawn lately.
    pub(crate) fn unused(
        &self,
        listening: &PortSet,
        recent: &RecentPorts,
        (first, last): (u16, u16),
        begin: u16,
    ) -> Option<u16> {
        let next = |others: &[&PortSet]| {
            self.used
                .first_missing(others, begin, last)
                .or_else(|| self.used.first_missing(others, first, begin))
        };
        next(&[listening, &recent.younger, &recent.older]).or_else(|| next(&[listening]))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_next_unused_port_is_found(
            used in proptest::collection::vec(1000u16..1300, 0..600),
            listened in proptest::collection::vec(1000u16..1300, 0..20),
            drawn in proptest::collection::vec(1000u16..1300, 0..200),
            range in (1000u16..1300, 1000u16..1300),
            begin in 0u16..300,
        ) {
            let (first, last) = (range.0.min(range.1), range.0.max(range.1));
            let begin = first + begin % (last - first + 1);
            let (mut ports, mut listening) = (PortUse::default(), PortSet::default());
            used.iter().for_each(|port| ports.enter(*port));
            // Each comes and goes once more.
            used.iter().step_by(2).for_each(|port| { ports.enter(*port); ports.leave(*port); });
            listened.iter().for_each(|port| listening.insert(*port));
            let mut recent = RecentPorts::default();
            drawn.iter().for_each(|port| recent.insert(*port, 50));
            let is_free = |port: &u16| !used.contains(port) && !listened.contains(port);
            let is_fresh = |port: &u16| is_free(port) && !recent.contains(*port);
            let from_begin = || (begin..=last).chain(first..=begin);
            let expected = from_begin().find(is_fresh).or_else(|| from_begin().find(is_free));
            prop_assert_eq!(ports.unused(&listening, &recent, (first, last), begin), expected);
        }

        #[test]
        fn a_port_is_remembered_while_as_many_others_were_drawn(half in 0u16..40, ports in 1u16..200) {
            let mut recent = RecentPorts::default();
            let at = |step: usize| (step % usize::from(ports)) as u16;
            for step in 0..400 {
                recent.insert(at(step), half);
                for back in 0..usize::from(half).min(step) {
                    prop_assert!(recent.contains(at(step - back)), "{} back of {}", back, step);
                }
                let held = (0..ports).filter(|port| recent.contains(*port)).count();
                prop_assert!(held <= 2 * usize::from(half), "{} ports are held", held);
            }
        }
    }
}
