//! How long requests wait for which the kernel has locked a directory.
//!
//! 1. Such a request keeps all others from the directory. It waits for its user's limit, or for
//!    room in the pool, for [`LONGEST`]. Then it is refused.
//! 2. A user may have many of them, one behind the other at the lock. For [`REST`] after one was
//!    refused, the others of that user are refused without a wait.
//!
//! What it must never do: refuse a request of a user because of another user.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::turns::User;

/// How long one request waits.
const LONGEST: Duration = Duration::from_secs(1);
/// How long the next ones of its user do not wait.
const REST: Duration = Duration::from_secs(4);

/// The module's header describes it.
#[derive(Debug, Default)]
pub(crate) struct LockWaits {
    /// Users of whom a request was refused after a wait, and when.
    refused: Mutex<HashMap<User, Instant>>,
}

impl LockWaits {
    /// Whether a request of `user` that came at `since` must not wait any longer.
    pub(crate) fn is_over(&self, user: User, since: Instant) -> bool {
        let now = Instant::now();
        // Nothing under this lock panics half-way.
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.retain(|_, at| now.duration_since(*at) < REST);
        if refused.contains_key(&user) {
            return true;
        }
        let is_over = now.duration_since(since) >= LONGEST;
        if is_over {
            refused.insert(user, now);
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_waits_once_and_then_not_for_a_while() {
        let waits = LockWaits::default();
        let (now, early) = (Instant::now(), Instant::now().checked_sub(LONGEST).expect("a time"));
        assert!(!waits.is_over(Some(1), now));
        assert!(waits.is_over(Some(1), early));
        assert!(waits.is_over(Some(1), now), "the next one");
        assert!(!waits.is_over(Some(2), now), "of another user");
        let rested = Instant::now().checked_sub(REST).expect("a time");
        waits.refused.lock().expect("no panic").insert(Some(1), rested);
        assert!(!waits.is_over(Some(1), now));
    }
}
