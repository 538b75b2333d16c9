//! Leases of a user's limits, so that several clients together stay within them.
//!
//! 1. A limit of a user has [`SLOTS`] leases, which have numbers that no inode has. A client adds
//!    to the user's usage under the lease of its own slot, or under those of all slots.
//! 2. Under the lease of its slot alone, what a client has logged and what is not digested is at
//!    most a *share* of the limit, and the digested usage leaves room for the shares of all slots.
//!    So whatever the clients have logged together fits.
//! 3. Under the leases of all slots no other client adds anything. A lease passes by log position,
//!    so the digested usage has all that the others added. Then the client alone decides.
//! 4. A client that makes a user's usage less does so under the lease of its slot, too: what it
//!    frees is there for the client that has all of them.
//!
//! A client that knows an older usage, as the digest goes on, adds no more than its share before it
//! reads a newer one. So rule 2 holds for it as well.

use std::ops::Range;

use crate::inode::InodeNumber;

/// Leases of each limit: as many as a file system has clients. More clients than these share them.
pub(crate) const SLOTS: u32 = 16;
/// The part of a limit that a client may add under the lease of its slot alone. Under the leases of
/// all slots, the last eighth of a limit is added.
pub(crate) const SHARE_PART: u64 = 8 * SLOTS as u64;

/// From here on, numbers are of no inode: a pool would have to create one each nanosecond for three
/// hundred years.
const FIRST: u64 = 1 << 63;
/// Bits for a slot, and for what is limited.
const SLOT_BITS: u32 = SLOTS.ilog2();

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limited {
    Blocks,
    Inodes,
}

/// The numbers of the leases of all slots.
pub(crate) fn slots(uid: u32, limited: Limited) -> Range<u64> {
    let first = FIRST | u64::from(uid) << (SLOT_BITS + 1) | (limited as u64) << SLOT_BITS;
    first..first + u64::from(SLOTS)
}

/// The lease of a client's slot. Logs are numbered from 1 on.
pub(crate) fn slot(uid: u32, limited: Limited, log: u32) -> InodeNumber {
    InodeNumber(slots(uid, limited).start + u64::from(log.wrapping_sub(1) % SLOTS))
}

/// Whether it is the lease of a limit.
pub(crate) fn is_of_a_limit(inode: InodeNumber) -> bool {
    inode.0 >= FIRST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_of_each_limit_has_a_number() {
        let all: Vec<_> = [0, 1, 1000, u32::MAX]
            .into_iter()
            .flat_map(|uid| [(uid, Limited::Blocks), (uid, Limited::Inodes)])
            .flat_map(|(uid, limited)| slots(uid, limited))
            .collect();
        assert!(all.is_sorted_by(|one, next| one < next), "{all:?}");
        assert!(all.iter().all(|number| is_of_a_limit(InodeNumber(*number))));
        assert!(!is_of_a_limit(InodeNumber(u64::MAX >> 1)));
        let of_logs: Vec<_> = (1..=SLOTS).map(|log| slot(7, Limited::Inodes, log).0).collect();
        assert_eq!(of_logs, slots(7, Limited::Inodes).collect::<Vec<_>>());
        assert_eq!(slot(7, Limited::Blocks, 17), slot(7, Limited::Blocks, 1));
        assert!(slots(7, Limited::Blocks).contains(&slot(7, Limited::Blocks, 0).0));
    }
}
