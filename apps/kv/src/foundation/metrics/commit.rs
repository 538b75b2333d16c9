//! The time of a record of the log from its append until it is durable, and where it went.
//!
//! 1. *Queue*: from the append until a write with the record is submitted to the device. The record
//!    waits there while as many writes as allowed are in flight.
//! 2. *Device*: from there until the store takes the completion, without the wake-up.
//! 3. *Wake-up*: how long the kernel let the store's thread wait for a processor after a sleep.
//!    Only some sleeps are measured, and only a commit during which one was has this part.
//!
//! One record at a time is timed: the next sample begins when the last one has ended, which costs a
//! few comparisons an iteration. Times are those of iterations; nothing here reads a clock.

/// The parts of one commit, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CommitTimes {
    /// Until its write was submitted to the device.
    pub queue: u64,
    /// Until the completion, without the wake-up.
    pub device: u64,
    /// The wake-up of the store's thread, if it was measured.
    pub wake_up: Option<u64>,
}

impl CommitTimes {
    /// From the append until the record was durable.
    pub(crate) fn total(self) -> u64 {
        self.queue + self.device + self.wake_up.unwrap_or_default()
    }
}

/// The record that is being timed.
#[derive(Debug, Clone, Copy)]
struct Sample {
    sequence: u64,
    appended: u64,
    submitted: Option<u64>,
    wake_up: Option<u64>,
}

/// Times one record after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct CommitTimer {
    sample: Option<Sample>,
    /// Commits that were timed.
    pub timed: u64,
    /// Their nanoseconds.
    pub total_ns: u64,
    /// Nanoseconds of the longest.
    pub longest_ns: u64,
    /// Their nanoseconds before the device.
    pub queue_ns: u64,
    /// Their nanoseconds at the device.
    pub device_ns: u64,
    /// Wake-ups that were timed.
    pub wake_ups: u64,
    /// Their nanoseconds.
    pub wake_up_ns: u64,
}

impl CommitTimer {
    /// Notes an appended record.
    #[inline]
    pub(crate) fn appended(&mut self, sequence: u64, now: u64) {
        if self.sample.is_none() {
            self.sample = Some(Sample { sequence, appended: now, submitted: None, wake_up: None });
        }
    }

    /// Notes that the device has writes of everything up to `sequence`.
    #[inline]
    pub(crate) fn submitted(&mut self, sequence: u64, now: u64) {
        if let Some(sample) = &mut self.sample
            && sample.submitted.is_none()
            && sample.sequence <= sequence
        {
            sample.submitted = Some(now);
        }
    }

    /// Notes that a sleep of the store's thread ended with a wait of so many nanoseconds for a
    /// processor.
    pub(crate) fn woken(&mut self, nanoseconds: u64) {
        if let Some(sample) = &mut self.sample {
            sample.wake_up = Some(sample.wake_up.unwrap_or_default().saturating_add(nanoseconds));
        }
    }

    /// Notes that everything up to `sequence` is durable. Returns the times of the sampled commit,
    /// if it is the one that has ended.
    #[inline]
    pub(crate) fn committed(&mut self, sequence: u64, now: u64) -> Option<CommitTimes> {
        let sample = self.sample.take_if(|sample| sample.sequence <= sequence)?;
        let total = now.saturating_sub(sample.appended);
        let queue = sample.submitted.unwrap_or(sample.appended).saturating_sub(sample.appended).min(total);
        let wake_up = sample.wake_up.map(|wake_up| wake_up.min(total - queue));
        let times = CommitTimes { queue, device: total - queue - wake_up.unwrap_or_default(), wake_up };
        self.timed += 1;
        self.total_ns += total;
        self.longest_ns = self.longest_ns.max(total);
        self.queue_ns += times.queue;
        self.device_ns += times.device;
        self.wake_ups += u64::from(wake_up.is_some());
        self.wake_up_ns += wake_up.unwrap_or_default();
        Some(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_commit_at_a_time_is_timed() {
        let mut timer = CommitTimer::default();
        timer.appended(1, 100);
        timer.appended(2, 150);
        assert_eq!(timer.committed(0, 170), None);
        let times = timer.committed(2, 200).expect("record 1 is durable");
        assert_eq!(timer.committed(2, 900), None);
        assert_eq!((times.total(), timer.timed, timer.total_ns, timer.longest_ns), (100, 1, 100, 100));
    }

    #[test]
    fn the_parts_of_a_commit_add_up() {
        let mut timer = CommitTimer::default();
        timer.appended(5, 1_000);
        timer.submitted(4, 1_100);
        timer.submitted(5, 1_300);
        timer.submitted(6, 1_900);
        timer.woken(20);
        timer.woken(50);
        let times = timer.committed(5, 2_000).expect("it is durable");
        assert_eq!(times, CommitTimes { queue: 300, device: 630, wake_up: Some(70) });
        assert_eq!(times.total(), 1_000);
        assert_eq!((timer.queue_ns, timer.device_ns, timer.wake_ups, timer.wake_up_ns), (300, 630, 1, 70));
    }

    #[test]
    fn a_wake_up_outside_a_commit_belongs_to_none() {
        let mut timer = CommitTimer::default();
        timer.woken(1_000);
        timer.appended(1, 0);
        timer.submitted(1, 0);
        let times = timer.committed(1, 80).expect("it is durable");
        assert_eq!(times, CommitTimes { queue: 0, device: 80, wake_up: None });
        timer.appended(2, 100);
        // More than the commit itself, because it had begun before.
        timer.woken(500);
        assert_eq!(timer.committed(2, 160).map(CommitTimes::total), Some(60));
    }
}
