//! Operations that wait for leases while others use the file system.
//!
//! 1. An operation within a try ([`super::tries`]) that lacks a lease asks for it and ends. What it
//!    needs stays at its *place*, from which its next try goes on. Until then it keeps its leases
//!    as one that waits within does: those before the lease that it waits for, in the order of
//!    inode numbers. So operations of one client, too, never wait in a circle. One that has logged
//!    something waits within, and those at places cannot go on meanwhile: where another client
//!    waits for what they keep, an urgent revocation ends that.
//! 2. The front end has the place with [`Waited`](crate::file_system::Waited). When that is
//!    dropped, the place is left: nothing is kept for it any more.
//! 3. Places are few ([`MOST`]), because the service lets a client wait for few leases. An
//!    operation that finds no place asks for nothing and keeps nothing, and looks again shortly
//!    afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use rustix::io::Errno;

use crate::inode::InodeNumber;
use crate::lease::{MAX_WAITING, Mode};

/// Operations of a client that wait for leases at places, at most. One more may wait within.
const MOST: usize = MAX_WAITING / 2;

/// What an operation needs, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Needs {
    pub modes: BTreeMap<InodeNumber, Mode>,
    /// The need that is waited for.
    pub waiting: Option<InodeNumber>,
    /// Why it does not come.
    pub refused: Option<Errno>,
}

impl Needs {
    /// The lease that the operation keeps on an inode, if it has it.
    pub(super) fn keeps(&self, inode: InodeNumber) -> Option<Mode> {
        if self.waiting.is_some_and(|waiting| inode <= waiting) {
            self.modes.get(&inode).copied()
        } else {
            None
        }
    }

    /// The operation does not get the lease on an inode.
    pub(super) fn refuse(&mut self, inode: InodeNumber, errno: Errno) {
        if self.waiting == Some(inode) {
            self.refused = Some(errno);
        }
    }
}

/// The place of an operation, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Place(Arc<()>);

/// The places that are taken, and what the operations at them need.
#[derive(Debug, Default)]
pub(super) struct Places(Vec<(Weak<()>, Needs)>);

impl Places {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether another operation can wait.
    pub(super) fn has_room(&self) -> bool {
        self.0.len() < MOST
    }

    /// An operation waits at a place.
    pub(super) fn put(&mut self, place: &Place, needs: Needs) {
        self.0.push((Arc::downgrade(&place.0), needs));
    }

    /// The operation at a place goes on.
    pub(super) fn take(&mut self, place: &Place) -> Option<Needs> {
        let own = Arc::as_ptr(&place.0);
        let index = self.0.iter().position(|(taken, _)| Weak::as_ptr(taken) == own)?;
        Some(self.0.swap_remove(index).1)
    }

    /// Removes places that were left; whether there were some.
    pub(super) fn clear_left(&mut self) -> bool {
        let before = self.0.len();
        self.0.retain(|(taken, _)| taken.strong_count() > 0);
        self.0.len() < before
    }

    /// What the operations need.
    pub(super) fn needs(&self) -> impl Iterator<Item = &Needs> {
        self.0.iter().map(|(_, needs)| needs)
    }

    /// No operation gets a lease that is waited for.
    pub(super) fn refuse(&mut self, inode: InodeNumber, errno: Errno) {
        self.0.iter_mut().for_each(|(_, needs)| needs.refuse(inode, errno));
    }
}
