//! The state of the log as INFO persistence shows it. The log writer updates it; the shard only
//! shows it.
//!
//! 1. A *compaction* stands for Redis' rewrite of its append-only file, and the fields of
//!    background saves show it, too. It takes a snapshot beside the running log, and the log
//!    continues from there. It is in progress from its first slice until it is durable or
//!    abandoned.
//! 2. A *commit* is the time of one record from its append until it is durable ([`CommitTimer`]).
//! 3. Times are the monotonic nanoseconds of iterations. Nothing here reads a clock.

use sietch::persist::{LogMetrics, RecoveryReport};

use super::commit::CommitTimer;

/// What recovery read at the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// Bytes of the records, of the snapshot and of the log behind it.
    pub bytes: u64,
    /// Records of the snapshot.
    pub snapshot_records: u64,
    /// Records of the log.
    pub records: u64,
    /// Nanoseconds from the first read to the last key.
    pub elapsed_ns: u64,
    /// Keys after recovery.
    pub keys: u64,
    /// Whether the log was in use, and not closed in order.
    pub after_crash: bool,
}

impl Recovery {
    /// The figures of `report`, for a recovery of this duration.
    pub(crate) fn new(report: &RecoveryReport, elapsed_ns: u64, keys: u64) -> Self {
        Self {
            bytes: report.bytes + report.snapshot_bytes,
            snapshot_records: report.snapshot_records,
            records: report.records,
            elapsed_ns,
            keys,
            // The first epoch is that of an area that was never used.
            after_crash: !report.clean && report.epoch > 1,
        }
    }

    /// Its duration in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.elapsed_ns as f64 / 1e9
    }

    /// Bytes of records per nanosecond, which is GB/s.
    pub(crate) fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed_ns.max(1) as f64
    }
}

impl std::fmt::Display for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "recovered {} keys in {:.3} s: {} bytes, {:.2} GB/s, {} log records and {} snapshot records{}",
            self.keys,
            self.seconds(),
            self.bytes,
            self.gigabytes_per_second(),
            self.records,
            self.snapshot_records,
            if self.after_crash { ", after a crash" } else { "" }
        )
    }
}

/// The resources that the process uses, as last sampled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Bytes of memory that are resident.
    pub resident: u64,
    /// Hundredths of a second of processor time in the kernel.
    pub system_ticks: u64,
    /// The same in user space.
    pub user_ticks: u64,
}

impl Usage {
    /// Reads `/proc/self/stat`, with pages of so many bytes; missing fields are 0.
    pub(crate) fn parse(stat: &str, page: u64) -> Self {
        // The name of the program, in parentheses, may hold anything.
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_ascii_whitespace().collect())
            .unwrap_or_default();
        let number = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
        Self { resident: number(21).saturating_mul(page), system_ticks: number(12), user_ticks: number(11) }
    }
}

/// The state of the log; see the module documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Persistence {
    /// The resources that the process uses.
    pub usage: Usage,
    /// Resident bytes beside what the store counts, the least of all samples: code, stacks, rings,
    /// buffers of the log.
    pub startup: Option<u64>,
    /// The figures of the recovery at the start.
    pub recovery: Recovery,
    /// Effects recorded.
    pub changes: u64,
    /// Effects recorded when the last compaction that succeeded began.
    saved_changes: u64,
    /// When the compaction in progress began, and the effects recorded by then.
    compacting: Option<(u64, u64)>,
    /// Duration of the last compaction, if there was one.
    pub last_compaction_ns: Option<u64>,
    /// Compactions that succeeded.
    pub compactions: u64,
    /// Compactions abandoned since the last that succeeded, because the area had no room or the log
    /// had failed.
    pub given_up: u64,
    /// A compaction was requested and has not begun.
    pub compaction_wanted: bool,
    /// Bytes in use when the last compaction ended, or at the start.
    pub base_bytes: u64,
    /// The log's own counters.
    pub log: LogMetrics,
    /// Bytes of the area in use.
    pub used_bytes: u64,
    /// Bytes of the area.
    pub capacity_bytes: u64,
    /// Bytes appended that are not submitted to the device yet.
    pub queued_bytes: u64,
    /// Sequence of the last record.
    pub last_sequence: u64,
    /// Sequence of the last durable record.
    pub durable_sequence: u64,
    /// The log has failed for good.
    pub failed: bool,
    /// The area is full: commands that need room are refused.
    pub full: bool,
    /// The times of commits.
    pub commits: CommitTimer,
}

impl Persistence {
    /// Notes that a compaction begins.
    pub(crate) fn begin_compaction(&mut self, now: u64) {
        self.compacting = Some((now, self.changes));
        self.compaction_wanted = false;
    }

    /// Notes that the compaction in progress is durable, with so many bytes in use after it.
    pub(crate) fn finish_compaction(&mut self, now: u64, used_bytes: u64) {
        let Some((begin, changes)) = self.compacting.take() else { return };
        self.last_compaction_ns = Some(now.saturating_sub(begin));
        self.saved_changes = changes;
        self.compactions += 1;
        self.given_up = 0;
        self.base_bytes = used_bytes;
    }

    /// Notes that the compaction in progress ends without a result. `failed`: it cannot succeed
    /// now; otherwise it begins again.
    pub(crate) fn abandon_compaction(&mut self, failed: bool) {
        self.compacting = None;
        self.given_up += u64::from(failed);
    }

    /// When the compaction in progress began.
    pub(crate) fn compacting_since(&self) -> Option<u64> {
        self.compacting.map(|(begin, _)| begin)
    }

    /// Effects recorded that no snapshot holds.
    pub(crate) fn unsaved_changes(&self) -> u64 {
        self.changes.saturating_sub(self.saved_changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_usage_of_the_process_is_read() {
        let stat =
            "42 (a) b) S 1 1 1 0 -1 4194304 10 0 0 0 123 45 0 0 20 0 3 0 99 1000000 77 18446744073709551615";
        assert_eq!(
            Usage::parse(stat, 4096),
            Usage { resident: 77 * 4096, system_ticks: 45, user_ticks: 123 }
        );
        assert_eq!(Usage::parse("nothing", 4096), Usage::default());
    }

    #[test]
    fn changes_during_a_compaction_are_not_counted_as_saved() {
        let mut status = Persistence { changes: 10, ..Persistence::default() };
        status.begin_compaction(1_000);
        status.changes += 3;
        assert_eq!(status.compacting_since(), Some(1_000));
        status.finish_compaction(5_000, 64);
        assert_eq!(
            (status.unsaved_changes(), status.last_compaction_ns, status.compactions),
            (3, Some(4_000), 1)
        );
        status.begin_compaction(6_000);
        status.abandon_compaction(true);
        assert_eq!((status.given_up, status.compactions, status.compacting_since()), (1, 1, None));
    }
}
