//! Whose fault a long turn was.
//!
//! 1. A turn is long from a millisecond on ([`crate::shard::LONG_ITERATION_NS`]). Only then, and where
//!    the loop reports its counters anyway, the kernel is asked how often it took the core away and
//!    how many pages it had to find for this thread.
//! 2. A long turn since whose last look the core was not taken away was the store's own work, a
//!    system call, or memory. The others may have been the work of whoever else had the core.

use std::fs;

/// What the kernel knows of this thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    /// Times that the core was taken away.
    taken: u64,
    /// Pages that were found without the disk.
    faults: u64,
}

/// Long turns, and what the kernel did meanwhile.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LatencyAttribution {
    seen: Seen,
    /// Long turns during which the core was not taken away.
    pub own: u64,
    /// Pages found for this thread in the time between looks that ended with a long turn.
    pub faults: u64,
}

impl LatencyAttribution {
    /// A long turn has just ended.
    pub fn long_iteration(&mut self) {
        let now = look();
        self.own += u64::from(now.taken == self.seen.taken);
        self.faults += now.faults.saturating_sub(self.seen.faults);
        self.seen = now;
    }

    /// Looks while nothing is wrong, so that a later look has something to be compared with.
    pub fn refresh(&mut self) {
        self.seen = look();
    }
}

/// Asks the kernel. Zeros where it does not say: then every long turn counts as the store's own.
fn look() -> Seen {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    parse(&read("/proc/thread-self/status"), &read("/proc/thread-self/stat"))
}

/// Reads `proc_pid_status(5)` and `proc_pid_stat(5)`.
fn parse(status: &str, stat: &str) -> Seen {
    let taken = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    // Behind the name in parentheses: state, six numbers, and the faults.
    let faults = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(7));
    let number = |text: Option<&str>| text.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    Seen { taken: number(taken), faults: number(faults) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read_whatever_the_thread_is_called() {
        let status = "Name:\tshard\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t17\n";
        let stat = "4711 (a ) b (c) S 1 2 3 4 5 6 1234 0 7 0 8 9\n";
        assert_eq!(parse(status, stat), Seen { taken: 17, faults: 1234 });
        assert_eq!(parse("", "4711 (x"), Seen::default());
        // This kernel has both files, and the line. What is in them is anybody's guess: a thread on
        // a used stack has found no page yet.
        let status = fs::read_to_string("/proc/thread-self/status").expect("a file of proc");
        assert!(status.contains("\nnonvoluntary_ctxt_switches:"));
        assert!(fs::read_to_string("/proc/thread-self/stat").is_ok());
    }
}
