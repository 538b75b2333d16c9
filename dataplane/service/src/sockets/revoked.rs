//! Applications that get nothing any more.
//!
//! 1. An application is its user and its id. The id alone is what a program says of itself: another
//!    user's listener under the same id, revoked, must not take this user's away.
//! 2. Each user has [`limits::REVOKED`] of them, the latest ones. Who revokes its own again and
//!    again forgets its own, and nobody else's.
//! 3. Users that only revoked something of their own have no more than [`limits::REVOKING_USERS`]
//!    places together; what an administrator revoked is always remembered.

use std::collections::{BTreeMap, VecDeque};

use super::limits;
use super::table::Application;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Revoked(BTreeMap<u32, VecDeque<[u8; 16]>>);

/// Who revokes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Administrator,
    ItsUser,
}

impl Revoked {
    /// Whether it gets nothing any more.
    pub fn contains(&self, application: Application) -> bool {
        self.0.get(&application.uid).is_some_and(|ids| ids.contains(&application.id))
    }

    /// Remembers one.
    pub fn insert(&mut self, application: Application, by: By) {
        let is_new = !self.0.contains_key(&application.uid);
        if is_new && by == By::ItsUser && self.0.len() >= limits::REVOKING_USERS {
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

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Application> {
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
    fn a_user_pushes_out_its_own_and_takes_nothing_from_another_of_the_same_id() {
        let mut revoked = Revoked::default();
        revoked.insert(application(1, 7), By::Administrator);
        assert!(!revoked.contains(application(2, 7)), "it is another user's");
        for id in 0..limits::REVOKED + 10 {
            revoked.insert(application(2, id), By::ItsUser);
        }
        assert!(revoked.contains(application(1, 7)));
        assert!(revoked.contains(application(2, limits::REVOKED + 9)));
        assert!(!revoked.contains(application(2, 9)), "the eldest have gone");
        assert_eq!(revoked.iter().count(), limits::REVOKED + 1);
    }

    #[test]
    fn users_fill_their_places_and_an_administrator_is_heard_all_the_same() {
        let mut revoked = Revoked::default();
        for uid in 1..limits::REVOKING_USERS as u32 + 100 {
            revoked.insert(application(uid, 1), By::ItsUser);
        }
        assert_eq!(revoked.iter().count(), limits::REVOKING_USERS);
        revoked.insert(application(900_000, 1), By::Administrator);
        assert!(revoked.contains(application(900_000, 1)));
    }
}
