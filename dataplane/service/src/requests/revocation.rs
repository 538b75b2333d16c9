//! Applications whose requests are refused from now on.
//!
//! 1. An application is its user and its id. A program may claim any id, so the id alone does not
//!    identify it. Revoking another user's application with the same id must not affect this
//!    user's.
//! 2. Each user has [`limits::REVOKED`] entries, the latest ones. A user that revokes its own
//!    applications again and again displaces only its own entries.
//! 3. Users that revoked only applications of their own are at most [`limits::REVOKING_USERS`]
//!    together. What an administrator revoked is always remembered.

use std::collections::{BTreeMap, VecDeque};

use super::application::Application;
use super::limits;

/// The revoked applications, by user.
#[derive(Debug, Default)]
pub(crate) struct RevocationList(BTreeMap<u32, VecDeque<[u8; 16]>>);

/// The author of a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RevokedBy {
    Administrator,
    /// The user whose application it is.
    Owner,
}

impl RevocationList {
    /// Returns whether an application is revoked.
    pub(crate) fn contains(&self, application: Application) -> bool {
        self.0.get(&application.uid).is_some_and(|ids| ids.contains(&application.id))
    }

    /// Adds an application.
    pub(crate) fn insert(&mut self, application: Application, by: RevokedBy) {
        let is_new = !self.0.contains_key(&application.uid);
        if is_new && by == RevokedBy::Owner && self.0.len() >= limits::REVOKING_USERS {
            return;
        }
        let ids = self.0.entry(application.uid).or_default();
        if ids.contains(&application.id) {
            return;
        }
        ids.push_back(application.id);
        if ids.len() > limits::REVOKED {
            ids.pop_front();
        }
    }

    /// Iterates over all revoked applications.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Application> {
        self.0.iter().flat_map(|(&uid, ids)| ids.iter().map(move |&id| Application { uid, id }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn application(uid: u32, id: usize) -> Application {
        Application { uid, id: (id as u128).to_be_bytes() }
    }

    #[test]
    fn a_user_displaces_only_its_own_entries() {
        let mut revoked = RevocationList::default();
        revoked.insert(application(1, 7), RevokedBy::Administrator);
        assert!(!revoked.contains(application(2, 7)), "another user has the same id");
        for id in 0..limits::REVOKED + 10 {
            revoked.insert(application(2, id), RevokedBy::Owner);
        }
        assert!(revoked.contains(application(1, 7)));
        assert!(revoked.contains(application(2, limits::REVOKED + 9)));
        assert!(!revoked.contains(application(2, 9)), "the oldest entries were displaced");
        assert_eq!(revoked.iter().count(), limits::REVOKED + 1);
    }

    #[test]
    fn an_administrator_can_revoke_when_users_have_filled_the_list() {
        let mut revoked = RevocationList::default();
        for uid in 1..limits::REVOKING_USERS as u32 + 100 {
            revoked.insert(application(uid, 1), RevokedBy::Owner);
        }
        assert_eq!(revoked.iter().count(), limits::REVOKING_USERS);
        revoked.insert(application(900_000, 1), RevokedBy::Administrator);
        assert!(revoked.contains(application(900_000, 1)));
    }
}
