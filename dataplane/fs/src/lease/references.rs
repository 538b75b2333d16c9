//! Which clients have an inode open although they have no lease on it.

use std::collections::{BTreeMap, BTreeSet};

use super::{ClientNumber, MAX_REFERENCES};
use crate::inode::InodeNumber;

/// Clients and inodes, in both orders.
#[derive(Debug, Default)]
pub(super) struct References {
    by_inode: BTreeSet<(InodeNumber, ClientNumber)>,
    by_client: BTreeMap<ClientNumber, BTreeSet<InodeNumber>>,
}

impl References {
    /// A client has the inode open; `false`: it has too many.
    pub(super) fn insert(&mut self, client: ClientNumber, inode: InodeNumber) -> bool {
        let inodes = self.by_client.entry(client).or_default();
        if inodes.len() >= MAX_REFERENCES && !inodes.contains(&inode) {
            return false;
        }
        inodes.insert(inode);
        self.by_inode.insert((inode, client));
        true
    }

    /// A client does not have it open; whether it had.
    pub(super) fn remove(&mut self, client: ClientNumber, inode: InodeNumber) -> bool {
        if !self.by_inode.remove(&(inode, client)) {
            return false;
        }
        if let Some(inodes) = self.by_client.get_mut(&client) {
            inodes.remove(&inode);
            if inodes.is_empty() {
                self.by_client.remove(&client);
            }
        }
        true
    }

    /// A client is gone; the inodes that it had open.
    pub(super) fn remove_client(&mut self, client: ClientNumber) -> Vec<InodeNumber> {
        let inodes = self.by_client.remove(&client).unwrap_or_default();
        for inode in &inodes {
            self.by_inode.remove(&(*inode, client));
        }
        inodes.into_iter().collect()
    }

    /// Whether a client other than this one has it open.
    pub(super) fn has_other(&self, client: ClientNumber, inode: InodeNumber) -> bool {
        let all = (inode, ClientNumber(0))..=(inode, ClientNumber(u32::MAX));
        self.by_inode.range(all).any(|(_, other)| *other != client)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_inode.len()
    }
}
