//! Which clients have an inode open although they have no lease on it.
//!
//! That is what is open, and what a client removed while its kernel still uses it: millions, if
//! programs have as many files open.
//! Inodes that are made one after the other have numbers that follow each other, so a client has
//! sets of 64 numbers.

use std::collections::BTreeMap;

use super::{ClientNumber, MAX_REFERENCE_SETS};
use crate::inode::InodeNumber;

/// Numbers of a set.
const SET: u64 = 64;

/// What one client has open.
#[derive(Debug, Default)]
struct Opened {
    /// By the number of the set: a bit for each inode. No set is empty.
    sets: BTreeMap<u64, u64>,
    inodes: usize,
}

/// The set of an inode, and its bit there.
fn place(inode: InodeNumber) -> (u64, u64) {
    (inode.0 / SET, 1 << (inode.0 % SET))
}

/// Inodes by clients.
#[derive(Debug, Default)]
pub(super) struct References {
    clients: BTreeMap<ClientNumber, Opened>,
}

impl References {
    /// A client has the inode open; `false`: it has too many.
    pub(super) fn insert(&mut self, client: ClientNumber, inode: InodeNumber) -> bool {
        let opened = self.clients.entry(client).or_default();
        let (set, bit) = place(inode);
        let is_full = opened.sets.len() >= MAX_REFERENCE_SETS;
        if is_full && !opened.sets.contains_key(&set) {
            return false;
        }
        let bits = opened.sets.entry(set).or_default();
        opened.inodes += usize::from(*bits & bit == 0);
        *bits |= bit;
        true
    }

    /// A client does not have it open; whether it had.
    pub(super) fn remove(&mut self, client: ClientNumber, inode: InodeNumber) -> bool {
        let Some(opened) = self.clients.get_mut(&client) else { return false };
        let (set, bit) = place(inode);
        let Some(bits) = opened.sets.get_mut(&set).filter(|bits| **bits & bit != 0) else { return false };
        *bits &= !bit;
        opened.inodes -= 1;
        if *bits == 0 {
            opened.sets.remove(&set);
        }
        if opened.sets.is_empty() {
            self.clients.remove(&client);
        }
        true
    }

    /// A client is gone.
    pub(super) fn remove_client(&mut self, client: ClientNumber) {
        self.clients.remove(&client);
    }

    /// Whether a client other than this one has it open.
    pub(super) fn has_other(&self, client: ClientNumber, inode: InodeNumber) -> bool {
        let (set, bit) = place(inode);
        let has = |opened: &Opened| opened.sets.get(&set).is_some_and(|bits| bits & bit != 0);
        self.clients.iter().any(|(other, opened)| *other != client && has(opened))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.clients.values().map(|opened| opened.inodes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientNumber = ClientNumber(1);
    const B: ClientNumber = ClientNumber(2);

    #[test]
    fn each_client_has_its_own() {
        let mut references = References::default();
        assert!(references.insert(A, InodeNumber(63)) && references.insert(A, InodeNumber(64)));
        assert!(references.insert(A, InodeNumber(64)) && references.insert(B, InodeNumber(64)));
        assert_eq!(references.len(), 3);
        assert!(references.has_other(B, InodeNumber(63)) && !references.has_other(A, InodeNumber(63)));
        assert!(references.has_other(A, InodeNumber(64)) && !references.has_other(A, InodeNumber(65)));
        assert!(references.remove(A, InodeNumber(64)) && !references.remove(A, InodeNumber(64)));
        assert!(!references.has_other(B, InodeNumber(64)));
        references.remove_client(A);
        assert!(references.remove(B, InodeNumber(64)));
        assert_eq!((references.len(), references.clients.len()), (0, 0));
    }

    /// As many as programs may have open.
    #[test]
    fn millions_of_inodes_are_no_reason_to_end_a_client() {
        const INODES: u64 = 3 << 20;
        let mut references = References::default();
        assert!((1000..1000 + INODES).all(|inode| references.insert(A, InodeNumber(inode))));
        assert_eq!(references.len() as u64, INODES);
        assert!(references.clients[&A].sets.len() <= (INODES / SET) as usize + 1);
    }

    #[test]
    fn inodes_far_apart_are_bounded() {
        let mut references = References::default();
        for set in 0..MAX_REFERENCE_SETS as u64 {
            assert!(references.insert(A, InodeNumber(set * SET)));
        }
        assert!(!references.insert(A, InodeNumber(MAX_REFERENCE_SETS as u64 * SET)));
        assert!(references.insert(A, InodeNumber(1)), "of a set that is there");
        assert!(references.insert(B, InodeNumber(u64::MAX)));
        assert!(references.remove(A, InodeNumber(64)));
        assert!(references.insert(A, InodeNumber(MAX_REFERENCE_SETS as u64 * SET)));
    }
}
