//! Latency attribution: whether a long iteration was the store's own work or the kernel's
//! preemption.
//!
//! 1. An iteration is long from a millisecond on ([`crate::shard::LONG_ITERATION_NS`]). Only then,
//!    and when the server publishes its counters anyway, this module reads from the kernel how
//!    often it preempted this thread and how many page faults the thread had.
//! 2. A long iteration without a preemption since the last sample was the store's own work, a
//!    system call, or memory. Other long iterations may have been caused by another thread on the
//!    core.

use std::fs;

/// The kernel's counters of this thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sample {
    /// Involuntary context switches.
    preemptions: u64,
    /// Minor page faults.
    faults: u64,
}

/// Long iterations and their causes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LatencyAttribution {
    last: Sample,
    /// Long iterations during which the thread was not preempted.
    pub own: u64,
    /// Page faults between samples that ended with a long iteration.
    pub faults: u64,
}

impl LatencyAttribution {
    /// Attributes a long iteration that has just ended.
    pub(super) fn long_iteration(&mut self) {
        let now = sample();
        self.own += u64::from(now.preemptions == self.last.preemptions);
        self.faults += now.faults.saturating_sub(self.last.faults);
        self.last = now;
    }

    /// Takes a sample in normal operation, for later samples to be compared with.
    pub(super) fn refresh(&mut self) {
        self.last = sample();
    }
}

/// Reads the kernel's counters. Missing ones are 0, and then every long iteration counts as the
/// store's own.
fn sample() -> Sample {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    parse(&read("/proc/thread-self/status"), &read("/proc/thread-self/stat"))
}

/// Reads `proc_pid_status(5)` and `proc_pid_stat(5)`.
fn parse(status: &str, stat: &str) -> Sample {
    let preemptions = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    // After the name in parentheses: state, six numbers, and the faults.
    let faults = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(7));
    let number = |text: Option<&str>| text.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    Sample { preemptions: number(preemptions), faults: number(faults) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_the_kernel_are_read_for_any_thread_name() {
        let status = "Name:\tshard\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t17\n";
        let stat = "4711 (a ) b (c) S 1 2 3 4 5 6 1234 0 7 0 8 9\n";
        assert_eq!(parse(status, stat), Sample { preemptions: 17, faults: 1234 });
        assert_eq!(parse("", "4711 (x"), Sample::default());
        // This kernel has both files, and the line. Their values are arbitrary: a thread on a used
        // stack may have had no page fault yet.
        let status = fs::read_to_string("/proc/thread-self/status").expect("a file of proc");
        assert!(status.contains("\nnonvoluntary_ctxt_switches:"));
        assert!(fs::read_to_string("/proc/thread-self/stat").is_ok());
    }
}
