//! What is kept for the requests of one user that wait.
//!
//! 1. A request that waits for room is kept in this process, with the data of a write. A user may
//!    have as many under way as it has threads and buffers, which may be gigabytes.
//! 2. Each one has a [`Share`] of what its user may have kept, until it is answered. One that finds
//!    no share is refused.
//!
//! What it must never do: count a request of one user at another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::turns::User;

/// Requests of one user that wait, at most.
const REQUESTS: usize = 4096;
/// Bytes that are kept for them, at most.
const BYTES: usize = 256 << 20;

#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    requests: usize,
    bytes: usize,
}

/// The module's header describes it.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// Users with requests that wait.
    users: Mutex<HashMap<User, Kept>>,
}

/// What one request keeps, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    user: User,
    bytes: usize,
}

impl Budget {
    fn users(&self) -> MutexGuard<'_, HashMap<User, Kept>> {
        // Nothing under this lock panics half-way.
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A share of so many bytes for a request of `user`; `None`: its requests have too much.
    pub(crate) fn take(budget: &Arc<Self>, user: User, bytes: usize) -> Option<Share> {
        let mut users = budget.users();
        let kept = users.get(&user).copied().unwrap_or_default();
        let after = Kept { requests: kept.requests + 1, bytes: kept.bytes + bytes };
        if after.requests > REQUESTS || after.bytes > BYTES {
            return None;
        }
        users.insert(user, after);
        Some(Share { budget: Arc::clone(budget), user, bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut users = self.budget.users();
        if let Some(kept) = users.get_mut(&self.user) {
            kept.requests -= 1;
            kept.bytes -= self.bytes;
            if kept.requests == 0 {
                users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_so_many_requests_and_bytes_and_others_have_theirs() {
        let budget = Arc::default();
        let (a, b) = (Some(1), Some(2));
        let large = Budget::take(&budget, a, BYTES - 1).expect("room");
        assert!(Budget::take(&budget, a, 2).is_none());
        let last = Budget::take(&budget, a, 1).expect("room");
        assert!(Budget::take(&budget, b, BYTES).is_some());
        drop((large, last));
        let all: Vec<_> = (0..REQUESTS).filter_map(|_| Budget::take(&budget, a, 0)).collect();
        assert_eq!(all.len(), REQUESTS);
        assert!(Budget::take(&budget, a, 0).is_none() && Budget::take(&budget, b, 0).is_some());
        drop(all);
        assert!(budget.users().is_empty());
    }
}
