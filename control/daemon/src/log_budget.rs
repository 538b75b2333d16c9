//! How many lines clients may cause in the log of this process.
//!
//! 1. Every line that a client can cause is asked for here first ([`admits`]): by its user, and out
//!    of a budget of all users, because one person may have many.
//! 2. Lines that were left out are counted, and the next one that is written says how many.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

use crate::allowance::{Allowance, Rate, UserAllowances};

/// Of one user: a start of a hundred applications at once is logged whole.
const USER: Rate = Rate { per_second: 1.0, burst: 200.0 };
/// Of all users together: some 100 MB a day at most.
const ALL: Rate = Rate { per_second: 10.0, burst: 1000.0 };

struct Budget {
    users: UserAllowances,
    all: Allowance,
    omitted: u64,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self { users: UserAllowances::new(USER), all: Allowance::new(ALL, now), omitted: 0 }
    }

    /// `None`: the line is left out. Otherwise how many were before it.
    fn spend(&mut self, uid: u32, now: Instant) -> Option<u64> {
        if self.users.of(uid, now).take(now) && self.all.take(now) {
            return Some(std::mem::take(&mut self.omitted));
        }
        self.omitted += 1;
        None
    }
}

/// Whether a line that a process of `uid` causes is to be written.
pub(crate) fn admits(uid: u32) -> bool {
    static BUDGET: LazyLock<Mutex<Budget>> = LazyLock::new(|| Mutex::new(Budget::new(Instant::now())));
    let spent = BUDGET.lock().unwrap_or_else(PoisonError::into_inner).spend(uid, Instant::now());
    if let Some(omitted @ 1..) = spent {
        tracing::warn!(omitted, "lines were left out, of users that caused too many");
    }
    spent.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_causes_lines_without_end_writes_few_and_leaves_some_to_others() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        let written = (0..10_000).filter(|_| budget.spend(1, now).is_some()).count();
        assert_eq!(written, USER.burst as usize);
        assert_eq!(budget.spend(2, now), Some(10_000 - USER.burst as u64), "it says how many were left out");
        // As many users as there are.
        let all = (3..100_000).filter(|uid| budget.spend(*uid, now).is_some()).count();
        assert!(all < ALL.burst as usize, "{all}");
    }
}
