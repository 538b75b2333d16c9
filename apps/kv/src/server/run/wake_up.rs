//! How long the kernel lets the store's thread wait for a processor when it wakes up.
//!
//! The kernel counts for each thread the nanoseconds that it was ready to run and did not run
//! (`/proc/PID/task/TID/schedstat`, the second number). Before and after one sleep in
//! [`EVERY`], this module reads that count; the difference is the wake-up. Where the kernel does
//! not count (it was built without `CONFIG_SCHED_INFO`), nothing is measured.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// One sleep in so many is measured: each costs two system calls.
const EVERY: u32 = 16;

/// Measures the wake-ups of the thread that opened it.
pub(super) struct WakeUpMeter {
    schedstat: Option<File>,
    sleeps: u32,
}

impl WakeUpMeter {
    /// A meter for the calling thread.
    pub(super) fn open() -> Self {
        Self { schedstat: File::open("/proc/thread-self/schedstat").ok(), sleeps: 0 }
    }

    /// Must precede a sleep. Returns the count before it, if this one is measured.
    pub(super) fn begin(&mut self) -> Option<u64> {
        self.sleeps = self.sleeps.wrapping_add(1);
        self.sleeps.is_multiple_of(EVERY).then(|| self.waited()).flatten()
    }

    /// The nanoseconds of the wake-up from a sleep before which [`WakeUpMeter::begin`] returned
    /// `before`.
    pub(super) fn end(&self, before: u64) -> Option<u64> {
        Some(self.waited()?.saturating_sub(before))
    }

    fn waited(&self) -> Option<u64> {
        let mut bytes = [0; 64];
        let length = self.schedstat.as_ref()?.read_at(&mut bytes, 0).ok()?;
        parse(bytes.get(..length)?)
    }
}

fn parse(schedstat: &[u8]) -> Option<u64> {
    std::str::from_utf8(schedstat).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_the_kernel_is_read() {
        assert_eq!(parse(b"1234 567 8\n"), Some(567));
        assert_eq!(parse(b"1234"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn one_sleep_in_some_is_measured() {
        let mut meter = WakeUpMeter::open();
        let measured: Vec<Option<u64>> = (0..2 * EVERY).map(|_| meter.begin()).collect();
        // Without the kernel's count none is.
        let counted = meter.waited().is_some();
        assert_eq!(measured.iter().flatten().count(), if counted { 2 } else { 0 });
        if let Some(&before) = measured.iter().flatten().last() {
            assert!(meter.end(before).is_some());
        }
    }
}
