//! How many bytes clients may cause in the log of this process.
//!
//! 1. Every line that a client can cause is asked for here first ([`admits`]): by its user, and out
//!    of a budget of all users, because one person may have many. A line counts with its length.
//! 2. Lines that were left out are counted, and the next one that is written says how many.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

use crate::allowance::{Allowance, Rate, UserAllowances};

/// The bytes of a line beside its text: the time, the level, names and numbers.
const LINE: usize = 150;
/// Bytes of one user: a start of a hundred applications at once is logged whole.
const USER: Rate = Rate { per_second: 150.0, burst: 40_000.0 };
/// Bytes of all users together: some 100 MB a day at most.
const ALL: Rate = Rate { per_second: 1200.0, burst: 200_000.0 };

struct Budget {
    users: UserAllowances,
    all: Allowance,
    omitted: u64,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self { users: UserAllowances::new(USER), all: Allowance::new(ALL, now), omitted: 0 }
    }

    /// `None`: the line with `text` is left out. Otherwise how many were before it.
    fn spend(&mut self, uid: u32, text: &str, now: Instant) -> Option<u64> {
        let bytes = (LINE + text.len()) as f64;
        if self.users.of(uid, now).take(bytes, now) && self.all.take(bytes, now) {
            return Some(std::mem::take(&mut self.omitted));
        }
        self.omitted += 1;
        None
    }
}

/// Whether a line that a process of `uid` causes is to be written. `text`: what of it can be long.
pub(crate) fn admits(uid: u32, text: &str) -> bool {
    static BUDGET: LazyLock<Mutex<Budget>> = LazyLock::new(|| Mutex::new(Budget::new(Instant::now())));
    let spent = BUDGET.lock().unwrap_or_else(PoisonError::into_inner).spend(uid, text, Instant::now());
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
        let text = "x".repeat(50);
        let written = (0..10_000).filter(|_| budget.spend(1, &text, now).is_some()).count();
        assert_eq!(written, USER.burst as usize / (LINE + text.len()));
        let omitted = 10_000 - written as u64;
        assert_eq!(budget.spend(2, "", now), Some(omitted), "it says how many were left out");
        // As many users as there are.
        let all = (3..100_000).filter(|uid| budget.spend(*uid, "", now).is_some()).count();
        assert!(all < ALL.burst as usize / LINE, "{all}");
    }

    #[test]
    fn long_lines_take_as_many_bytes_of_the_log_as_short_ones() {
        let now = Instant::now();
        for length in [0, 1000, 20_000, 100_000] {
            let (mut budget, text) = (Budget::new(now), "x".repeat(length));
            let written = (0..10_000).filter(|_| budget.spend(1, &text, now).is_some()).count();
            assert!(written * (LINE + length) <= USER.burst as usize, "{written} lines of {length} bytes");
        }
    }
}
