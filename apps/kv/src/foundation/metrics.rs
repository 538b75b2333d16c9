//! Counters of a shard: plain integers that its one thread increments and the event loop publishes.

mod commit;
mod persistence;

pub(crate) use commit::CommitTimes;
pub(crate) use persistence::{Persistence, Recovery, Usage};

use std::collections::BTreeMap;

/// Calls of one command. Not every call is timed; see [`super::observation`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CommandCount {
    /// Executions, failed ones too.
    pub calls: u64,
    /// Refused before execution.
    pub rejected: u64,
    /// Executions that ended in an error.
    pub failed: u64,
    /// Executions that were timed.
    pub timed: u64,
    /// Total nanoseconds of timed executions.
    pub nanoseconds: u64,
}

/// Counters of a shard since it started, or since CONFIG RESETSTAT.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Commands executed.
    pub commands: u64,
    /// Clients accepted.
    pub connections: u64,
    /// Clients refused because of `maxclients`.
    pub refused: u64,
    /// Commands sent to the shards that own their keys.
    pub forwarded: u64,
    /// Exclusive sections, counted by the first shard.
    pub exclusive_sections: u64,
    /// Bytes of requests.
    pub input_bytes: u64,
    /// Bytes of replies sent.
    pub output_bytes: u64,
    /// Lookups that found a key.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Keys deleted because their time was over.
    pub expired: u64,
    /// Keys deleted because memory was full.
    pub evicted: u64,
    /// Effects recorded for the log.
    pub effects: u64,
    /// Error replies.
    pub errors: u64,
    /// Clients closed for malformed requests.
    pub protocol_errors: u64,
    /// Clients closed because their input was over the limit.
    pub query_limit_closed: u64,
    /// Clients closed because their output was over the limit.
    pub output_limit_closed: u64,
    /// Clients closed because they were idle too long.
    pub idle_closed: u64,
    /// Clients closed because their input begins like HTTP.
    pub http_closed: u64,
    /// Effects that recovery read.
    pub replayed: u64,
    /// Keys with a fault at replay that a later deletion resolved.
    pub replay_skipped: u64,
    /// The longest iteration of the event loop, in nanoseconds.
    pub longest_iteration_ns: u64,
    /// Iterations of a millisecond and more.
    pub long_iterations: u64,
    /// Long iterations during which the kernel did not preempt the thread.
    pub own_long_iterations: u64,
    /// Page faults around long iterations.
    pub long_iteration_faults: u64,
    /// Snapshots finished.
    pub snapshots: u64,
    /// Greatest memory use seen, in bytes.
    pub peak_memory: u64,
    /// By the number of the command.
    pub(crate) by_command: Vec<CommandCount>,
    /// Error replies by their first word.
    pub by_error: BTreeMap<Vec<u8>, u64>,
}

/// Different error codes that are counted one by one; clients can provoke only the fixed ones.
const ERROR_CODES: usize = 128;

impl Metrics {
    /// Counters for so many commands.
    pub(crate) fn new(commands: usize) -> Self {
        Self { by_command: vec![CommandCount::default(); commands], ..Self::default() }
    }

    /// Counts an error reply.
    pub(crate) fn count_error(&mut self, code: &[u8]) {
        self.errors += 1;
        if let Some(count) = self.by_error.get_mut(code) {
            *count += 1;
        } else if self.by_error.len() < ERROR_CODES {
            self.by_error.insert(code.to_vec(), 1);
        }
    }

    /// Adds the counters of another shard.
    pub(crate) fn add(&mut self, other: &Self) {
        self.commands += other.commands;
        self.connections += other.connections;
        self.refused += other.refused;
        self.forwarded += other.forwarded;
        self.exclusive_sections += other.exclusive_sections;
        self.input_bytes += other.input_bytes;
        self.output_bytes += other.output_bytes;
        self.hits += other.hits;
        self.misses += other.misses;
        self.expired += other.expired;
        self.evicted += other.evicted;
        self.effects += other.effects;
        self.errors += other.errors;
        self.protocol_errors += other.protocol_errors;
        self.query_limit_closed += other.query_limit_closed;
        self.output_limit_closed += other.output_limit_closed;
        self.idle_closed += other.idle_closed;
        self.http_closed += other.http_closed;
        self.replayed += other.replayed;
        self.replay_skipped += other.replay_skipped;
        self.longest_iteration_ns = self.longest_iteration_ns.max(other.longest_iteration_ns);
        self.long_iterations += other.long_iterations;
        self.own_long_iterations += other.own_long_iterations;
        self.long_iteration_faults += other.long_iteration_faults;
        self.snapshots = self.snapshots.max(other.snapshots);
        self.peak_memory += other.peak_memory;
        for (count, more) in self.by_command.iter_mut().zip(&other.by_command) {
            count.calls += more.calls;
            count.rejected += more.rejected;
            count.failed += more.failed;
            count.timed += more.timed;
            count.nanoseconds += more.nanoseconds;
        }
        for (code, count) in &other.by_error {
            *self.by_error.entry(code.clone()).or_default() += count;
        }
    }

    /// Resets all counters.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.by_command.len());
    }
}
