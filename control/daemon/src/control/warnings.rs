//! Warnings that Status shows.
//!
//! What must not happen: that a client fills the log by causing warnings. Those of a client count
//! against the bytes that its user may cause ([`log_budget`]). Status shows the newest in any case.

use std::collections::VecDeque;

use crate::log_budget;

/// Warnings kept for Status, the newest.
const MOST: usize = 32;

#[derive(Default)]
pub(super) struct Warnings(VecDeque<String>);

impl Warnings {
    /// Keeps a warning that `user` has caused (none: no client can). Returns whether it is to be
    /// written to the log.
    #[must_use]
    pub(super) fn add(&mut self, user: Option<u32>, warning: &str) -> bool {
        if self.0.back().is_none_or(|last| last != warning) {
            if self.0.len() == MOST {
                self.0.pop_front();
            }
            self.0.push_back(warning.to_owned());
        }
        user.is_none_or(|user| log_budget::admits(user, warning))
    }

    /// Those that are kept, oldest first.
    pub(super) fn kept(&self) -> impl Iterator<Item = String> {
        self.0.iter().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_causes_warnings_without_end_writes_few_lines_and_status_has_the_newest() {
        let mut warnings = Warnings::default();
        let written = (0..10_000).filter(|number| warnings.add(Some(4_000_001), &number.to_string())).count();
        assert!((1..1_000).contains(&written), "{written} lines");
        let own = (0..10_000).filter(|number| warnings.add(None, &number.to_string())).count();
        assert_eq!(own, 10_000, "the daemon's own are all written");
        let newest: Vec<String> = (10_000 - MOST..10_000).map(|number| number.to_string()).collect();
        assert_eq!(warnings.kept().collect::<Vec<_>>(), newest);
    }
}
