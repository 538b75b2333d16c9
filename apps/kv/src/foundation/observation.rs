//! What a store records of itself at run time: slow commands, latencies, and events of keys.
//!
//! | file | what |
//! | --- | --- |
//! | `slow_log` | commands that took long: SLOWLOG |
//! | `latency` | spikes by their cause: LATENCY LATEST, HISTORY, GRAPH, DOCTOR |
//! | `histogram` | durations of timed commands, and of the parts of commits: LATENCY HISTOGRAM |
//! | `key_events` | events of keys for subscribers: `notify-keyspace-events` |
//! | `monitor` | the lines of MONITOR |
//! | `redaction` | arguments that no record may show |
//! | `time` | the clock that measures a command |
//!
//! All of it is off the fast path. The shard has a byte for each row of the command table; the byte
//! says whether the command takes the longer way through
//! [`Context::run_observed`](crate::commands::Context::run_observed). Commands whose work is
//! bounded by their arguments take it only while something observes them.

pub(crate) mod histogram;
pub(crate) mod key_events;
pub(crate) mod latency;
pub(crate) mod monitor;
pub(crate) mod redaction;
pub(crate) mod slow_log;
pub(crate) mod time;

use std::collections::BTreeMap;

use histogram::Histogram;
use key_events::KeyEvents;
use latency::LatencyMonitor;
use slow_log::SlowLog;
use time::TimeSource;

use super::metrics::CommitTimes;
use super::settings::Settings;

/// With a `slowlog-log-slower-than` below this, in microseconds, every command is timed. Above it,
/// commands whose work is bounded by their arguments and their reply are not: they cannot take so
/// long, unless a value has tens of megabytes.
const ALL_TIMED_BELOW: i64 = 1000;

/// What a store has recorded of itself.
#[derive(Debug, Default)]
pub(crate) struct Observation {
    /// The clock that measures commands.
    pub time: TimeSource,
    /// Commands that took long.
    pub slow_log: SlowLog,
    /// Latency spikes.
    pub latency: LatencyMonitor,
    /// Durations by command and subcommand (empty: it has none).
    pub histograms: BTreeMap<(u16, &'static str), Histogram>,
    /// Durations of the parts of the log's commits, by their names in LATENCY HISTOGRAM.
    pub commits: BTreeMap<&'static str, Histogram>,
    /// Events of keys that are to be sent.
    pub events: KeyEvents,
    /// Settings or clients have changed, so other commands may be observed than before. The shard
    /// resets it.
    pub changed: bool,
}

impl Observation {
    /// Records the parts of a commit.
    pub(crate) fn note_commit(&mut self, times: CommitTimes) {
        let CommitTimes { queue, device, wake_up } = times;
        let parts = [
            ("log-commit|queue", Some(queue)),
            ("log-commit|device", Some(device)),
            ("log-commit|wake-up", wake_up),
        ];
        for (name, nanoseconds) in parts {
            if let Some(nanoseconds) = nanoseconds {
                self.commits.entry(name).or_default().record(nanoseconds);
            }
        }
    }
}

/// Which commands are timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timed {
    /// None.
    None,
    /// Those that may visit any number of elements.
    Unbounded,
    /// All.
    All,
}

impl Timed {
    /// What these settings need.
    pub(crate) fn by(settings: &Settings) -> Self {
        let slower = settings.slowlog_log_slower_than;
        if settings.latency_tracking
            || settings.latency_monitor_threshold > 0
            || (0..ALL_TIMED_BELOW).contains(&slower)
        {
            Self::All
        } else if slower >= 0 {
            Self::Unbounded
        } else {
            Self::None
        }
    }
}
