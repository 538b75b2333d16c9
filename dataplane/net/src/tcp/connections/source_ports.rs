//! The source port of an outgoing connection.

use super::ConnectionTable;
use super::four_tuple::FourTuple;
use super::ports::{PortSet, RecentPorts};
use crate::limits::{PORT_DRAWS, PORT_SEARCH, RECENT_PART};
use crate::siphash::Key;

/// The ports from which outgoing connections pick theirs.
#[derive(Debug)]
pub(crate) struct SourcePorts {
    /// First and last.
    range: (u16, u16),
    /// Those drawn lately.
    recent: RecentPorts,
    /// Draws so far: each is another input of the keyed hash.
    draws: u64,
}

impl SourcePorts {
    pub(crate) fn new(range: (u16, u16)) -> Self {
        Self { range, recent: RecentPorts::default(), draws: 0 }
    }

    /// Draws a port of ours at random that makes `tuple` free. The ports of other connections do
    /// not predict the next one (RFC 6056 section 3.3.1). Only ports drawn lately, up to half of
    /// the range, are left out. If most ports are taken, this returns one that no connection uses;
    /// if every port is used, it tests a bounded number of neighbours.
    pub(crate) fn choose(
        &mut self,
        tuple: FourTuple,
        secret: &Key,
        connections: &ConnectionTable,
        listening: &PortSet,
    ) -> Option<u16> {
        let (first, last) = self.range;
        let count = last.checked_sub(first)?.saturating_add(1);
        let is_free = |port: &u16| {
            !listening.contains(*port)
                && connections.find(&FourTuple { local_port: *port, ..tuple }).is_none()
        };
        let bits = tuple.remote.bits();
        let (high, low) = ((bits >> 64) as u64, bits as u64);
        let mut drawn = first;
        let chosen = (0..PORT_DRAWS).find_map(|_| {
            self.draws += 1;
            let random = secret.hash_words(&[high, low, tuple.remote_port.into(), self.draws]);
            drawn = first + (random % u64::from(count)) as u16;
            (!self.recent.contains(drawn) && is_free(&drawn)).then_some(drawn)
        });
        let unused = || connections.ports.unused(listening, &self.recent, (first, last), drawn);
        let begin = u32::from(drawn - first);
        let neighbours = || {
            (0..count.min(PORT_SEARCH))
                .map(|step| first + ((begin + u32::from(step)) % u32::from(count)) as u16)
                .filter(|port| is_free(port))
        };
        let neighbour =
            || neighbours().find(|port| !self.recent.contains(*port)).or_else(|| neighbours().next());
        let chosen = chosen.or_else(unused).or_else(neighbour)?;
        self.recent.insert(chosen, count / RECENT_PART);
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Address, AddressIndex};
    use crate::tcp::connections::Entry;
    use crate::tcp::flow::id::FlowIndex;

    #[test]
    fn in_a_full_range_a_bounded_number_of_ports_is_tested() {
        let (first, last) = (20_000, 40_000);
        let remote = Address::v4(0x0a00_0001);
        let tuple = FourTuple { remote, remote_port: 80, local_port: 0, local: AddressIndex::V4 };
        let secret = Key::new([7; 16]);
        let mut connections = ConnectionTable::new(secret);
        for local_port in first..=last {
            connections.insert(FourTuple { local_port, ..tuple }, Entry::Flow(FlowIndex(local_port.into())));
        }
        let mut ports = SourcePorts::new((first, last));
        let before = connections.lookups.get();
        assert_eq!(ports.choose(tuple, &secret, &connections, &PortSet::default()), None);
        let tested = connections.lookups.get() - before;
        // The neighbours once without ports drawn lately, and once with them.
        let most = PORT_DRAWS as usize + 2 * usize::from(PORT_SEARCH);
        assert!((1..=most).contains(&tested), "{tested} of {} ports", last - first + 1);
    }
}
