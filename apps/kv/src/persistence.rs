//! What INFO persistence tells of the log: words that the event loop's ledger keeps, and the shard
//! only shows.
//!
//! 1. A *compaction* is what Redis calls a rewrite of its append-only file and a background save
//!    alike: a snapshot beside the running log, and then the log goes on from there. It is in
//!    progress from its first slice until it is durable, or was given up.
//! 2. A *commit* is the way of one record from its append to the moment when it is durable. One at
//!    a time is timed: the next sample begins when the last has ended, which costs two comparisons
//!    a turn.
//! 3. Times are monotonic nanoseconds of the loop's turns. Nothing here reads a clock.

use sietch::persist::{LogMetrics, RecoveryReport};

/// What was read back at the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Bytes of the records, of the snapshot and of the log behind it.
    pub bytes: u64,
    /// Records of the snapshot.
    pub snapshot_records: u64,
    /// Records of the log.
    pub records: u64,
    /// Nanoseconds from the first read to the last key.
    pub elapsed_ns: u64,
    /// Keys there when it was over.
    pub keys: u64,
    /// Whether the last append had been cut short, as a crash does.
    pub torn: bool,
}

impl Recovery {
    /// What `report` says, in so much time.
    pub fn new(report: &RecoveryReport, elapsed_ns: u64, keys: u64) -> Self {
        Self {
            bytes: report.bytes + report.snapshot_bytes,
            snapshot_records: report.snapshot_records,
            records: report.records,
            elapsed_ns,
            keys,
            torn: report.torn_tail.is_some(),
        }
    }

    /// Seconds that it took.
    pub fn seconds(&self) -> f64 {
        self.elapsed_ns as f64 / 1e9
    }

    /// Bytes of records a nanosecond: GB/s. 0 of nothing.
    pub fn gigabytes_per_second(&self) -> f64 {
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
            if self.torn { ", after a crash" } else { "" }
        )
    }
}

/// What the process takes of the machine, as the event loop last looked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of memory that are resident.
    pub resident: u64,
    /// Hundredths of a second of processor time in the kernel.
    pub system_ticks: u64,
    /// The same outside of it.
    pub user_ticks: u64,
}

impl Usage {
    /// What `/proc/self/stat` says, in pages of so many bytes; nothing of what it does not.
    pub fn parse(stat: &str, page: u64) -> Self {
        // The name of the program, in parentheses, may hold anything.
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_ascii_whitespace().collect())
            .unwrap_or_default();
        let number = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
        Self { resident: number(21).saturating_mul(page), system_ticks: number(12), user_ticks: number(11) }
    }
}

/// See the module's account.
#[derive(Debug, Clone, Default)]
pub struct Persistence {
    /// What the process takes.
    pub usage: Usage,
    /// What was read back at the start.
    pub recovery: Recovery,
    /// Effects recorded.
    pub changes: u64,
    /// Effects recorded when the last compaction that succeeded began.
    saved_changes: u64,
    /// Compactions that began.
    pub begun: u64,
    /// When the compaction in progress began, and the effects recorded by then.
    compacting: Option<(u64, u64)>,
    /// How long the last one took; `None`: there was none.
    pub last_compaction_ns: Option<u64>,
    /// Compactions that came to an end.
    pub compactions: u64,
    /// Compactions that were given up since the last that succeeded: the area has no room, or the
    /// log has failed.
    pub given_up: u64,
    /// Somebody asked for one that has not begun.
    pub compaction_wanted: bool,
    /// Bytes in use when the last one ended, or at the start.
    pub base_bytes: u64,
    /// The log's own counters.
    pub log: LogMetrics,
    /// Bytes of the area in use.
    pub used_bytes: u64,
    /// Bytes of it that may be.
    pub capacity_bytes: u64,
    /// Bytes appended that the device was not given yet.
    pub queued_bytes: u64,
    /// The last record.
    pub last_sequence: u64,
    /// The last one that is durable.
    pub durable_sequence: u64,
    /// The log has failed for good.
    pub failed: bool,
    /// The area is full: commands that need room are refused.
    pub full: bool,
    /// The record whose way is timed, and when it was appended.
    sample: Option<(u64, u64)>,
    /// Ways that were timed.
    pub commits_timed: u64,
    /// Nanoseconds that all of them took together.
    pub commits_ns: u64,
    /// The longest.
    pub longest_commit_ns: u64,
}

impl Persistence {
    /// A compaction begins.
    pub fn begin_compaction(&mut self, now: u64) {
        self.begun += 1;
        self.compacting = Some((now, self.changes));
        self.compaction_wanted = false;
    }

    /// The compaction in progress is durable, with so many bytes in use after it.
    pub fn finish_compaction(&mut self, now: u64, used_bytes: u64) {
        let Some((begin, changes)) = self.compacting.take() else { return };
        self.last_compaction_ns = Some(now.saturating_sub(begin));
        self.saved_changes = changes;
        self.compactions += 1;
        self.given_up = 0;
        self.base_bytes = used_bytes;
    }

    /// The compaction in progress ends without a result. `failed`: not because it begins again, but
    /// because it cannot succeed now.
    pub fn abandon_compaction(&mut self, failed: bool) {
        self.compacting = None;
        self.given_up += u64::from(failed);
    }

    /// Since when a compaction is in progress.
    pub fn compacting_since(&self) -> Option<u64> {
        self.compacting.map(|(begin, _)| begin)
    }

    /// Effects recorded that no snapshot holds.
    pub fn unsaved_changes(&self) -> u64 {
        self.changes.saturating_sub(self.saved_changes)
    }

    /// A record was appended.
    #[inline]
    pub fn appended(&mut self, sequence: u64, now: u64) {
        if self.sample.is_none() {
            self.sample = Some((sequence, now));
        }
    }

    /// Everything up to `sequence` is durable.
    #[inline]
    pub fn committed(&mut self, sequence: u64, now: u64) {
        if let Some((sampled, begin)) = self.sample
            && sampled <= sequence
        {
            self.sample = None;
            let took = now.saturating_sub(begin);
            self.commits_timed += 1;
            self.commits_ns += took;
            self.longest_commit_ns = self.longest_commit_ns.max(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_process_takes_is_read() {
        let stat =
            "42 (a) b) S 1 1 1 0 -1 4194304 10 0 0 0 123 45 0 0 20 0 3 0 99 1000000 77 18446744073709551615";
        assert_eq!(
            Usage::parse(stat, 4096),
            Usage { resident: 77 * 4096, system_ticks: 45, user_ticks: 123 }
        );
        assert_eq!(Usage::parse("nothing", 4096), Usage::default());
    }

    #[test]
    fn one_commit_at_a_time_is_timed() {
        let mut told = Persistence::default();
        told.appended(1, 100);
        told.appended(2, 150);
        told.committed(0, 170);
        assert_eq!(told.commits_timed, 0);
        told.committed(2, 200);
        told.committed(2, 900);
        assert_eq!((told.commits_timed, told.commits_ns, told.longest_commit_ns), (1, 100, 100));
    }

    #[test]
    fn what_changes_during_a_compaction_is_not_saved_by_it() {
        let mut told = Persistence { changes: 10, ..Persistence::default() };
        told.begin_compaction(1_000);
        told.changes += 3;
        assert_eq!(told.compacting_since(), Some(1_000));
        told.finish_compaction(5_000, 64);
        assert_eq!((told.unsaved_changes(), told.last_compaction_ns, told.compactions), (3, Some(4_000), 1));
        told.begin_compaction(6_000);
        told.abandon_compaction(true);
        assert_eq!((told.given_up, told.compactions, told.compacting_since()), (1, 1, None));
    }
}
