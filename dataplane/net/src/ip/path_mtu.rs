//! The MTU of paths that take less than our own link (RFC 1191, RFC 8201).
//!
//! 1. An entry is made by a plausible "packet too big" error, or by a black hole that was detected
//!    (`tcp/slow/black_hole.rs`).
//! 2. It lasts for ten minutes; then the path is assumed to be as wide as the link again.
//! 3. The cache is bounded and the oldest entry is evicted. A forged error costs no more than
//!    smaller packets to one destination for that time.

use hashbrown::HashMap;

use crate::limits::{BLACK_HOLE_TIMEOUTS, PATH_MTU_AGE, PATH_MTUS};
use crate::packet::{Address, ipv6};

/// Smallest MTU over IPv4 that an error can set (RFC 879's 576 less slack, as Linux has it): a
/// forged error must not shrink our packets further.
const SMALLEST_V4: usize = 552;
/// Common MTUs, for routers that do not name theirs (RFC 1191 section 7.1).
const PLATEAUS: [usize; 6] = [17_914, 8166, 4352, 2002, 1492, 1006];

/// The cache.
#[derive(Debug, Default)]
pub(crate) struct PathMtus {
    entries: HashMap<Address, (u16, u64), foldhash::fast::RandomState>,
}

impl PathMtus {
    /// The MTU of the path to `remote`, if it is known to be less than the link's.
    #[inline]
    pub(crate) fn get(&self, remote: &Address, now: u64) -> Option<usize> {
        if self.entries.is_empty() {
            return None;
        }
        let (mtu, since) = self.entries.get(remote)?;
        (now.saturating_sub(*since) < PATH_MTU_AGE).then_some(usize::from(*mtu))
    }

    /// Notes it.
    pub(crate) fn set(&mut self, remote: Address, mtu: usize, now: u64) {
        if !self.entries.contains_key(&remote) && self.entries.len() >= PATH_MTUS {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.1).map(|(address, _)| *address);
            if let Some(oldest) = oldest {
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(remote, (u16::try_from(mtu).unwrap_or(u16::MAX), now));
    }
}

/// The MTU to use after an error that a packet of `length` bytes to `remote` is too big for a link
/// with this MTU; `None` if the error is implausible.
pub(crate) fn believed(remote: &Address, mtu: usize, length: usize) -> Option<usize> {
    if remote.is_v4() {
        let named = if mtu == 0 { next_smaller(length) } else { mtu };
        // An error about a packet that fits is forged.
        return (named < length).then_some(named.max(SMALLEST_V4));
    }
    // No link of IPv6 is smaller than that (RFC 8201 section 4).
    (mtu >= ipv6::MINIMUM_MTU && mtu < length).then_some(mtu)
}

/// The next smaller MTU in the table of RFC 1191.
fn next_smaller(length: usize) -> usize {
    PLATEAUS.into_iter().find(|mtu| *mtu < length).unwrap_or(SMALLEST_V4)
}

/// The packet size to try after packets of this size were dropped without an error this many times
/// in a row: first what nearly every path takes (RFC 8899 section 5.1.2), much later the smallest.
pub(crate) fn after_silence(remote: &Address, mtu: usize, timeouts: u8) -> Option<usize> {
    if mtu > ipv6::MINIMUM_MTU {
        return Some(ipv6::MINIMUM_MTU);
    }
    let patient = timeouts >= 2 * BLACK_HOLE_TIMEOUTS;
    (remote.is_v4() && mtu > SMALLEST_V4 && patient).then_some(SMALLEST_V4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SECOND;

    fn v6() -> Address {
        Address::ALL_NODES
    }

    #[test]
    fn plausible_mtus_are_believed() {
        let v4 = Address::v4(1);
        assert_eq!(believed(&v4, 1400, 1500), Some(1400));
        assert_eq!(believed(&v4, 68, 1500), Some(552));
        assert_eq!(believed(&v4, 0, 1500), Some(1492));
        assert_eq!(believed(&v4, 0, 900), Some(552));
        assert_eq!(believed(&v4, 1400, 1400), None);
        assert_eq!(believed(&v6(), 1280, 1500), Some(1280));
        assert_eq!(believed(&v6(), 1279, 1500), None);
        assert_eq!(believed(&v6(), 1500, 1500), None);
        assert_eq!(after_silence(&v4, 1500, 2), Some(1280));
        assert_eq!(after_silence(&v4, 1280, 2), None);
        assert_eq!(after_silence(&v4, 1280, 4), Some(552));
        assert_eq!(after_silence(&v6(), 1500, 2), Some(1280));
        assert_eq!(after_silence(&v6(), 1280, 4), None);
    }

    #[test]
    fn an_entry_expires_and_the_oldest_is_evicted() {
        let mut paths = PathMtus::default();
        paths.set(v6(), 1280, SECOND);
        assert_eq!(paths.get(&v6(), 600 * SECOND), Some(1280));
        assert_eq!(paths.get(&v6(), 601 * SECOND), None);
        for number in 0..2 * PATH_MTUS as u32 {
            paths.set(Address::v4(number), 552, 2 * SECOND + u64::from(number));
        }
        assert_eq!(paths.entries.len(), PATH_MTUS);
        assert_eq!(paths.get(&v6(), 3 * SECOND), None);
        assert_eq!(paths.get(&Address::v4(2 * PATH_MTUS as u32 - 1), 3 * SECOND), Some(552));
    }
}
