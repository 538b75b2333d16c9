//! The subject of a measurement: a way to make records durable, and the work that it does in one
//! block.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::error::Error;

/// Numbers of concurrent writers.
pub(super) const WRITERS: [usize; 2] = [1, 64];

/// The work of one block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    /// Bytes of a record.
    pub bytes: usize,
    pub writers: usize,
    pub duration: Duration,
}

/// The result of one block: latencies in nanoseconds, and the longest silence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BlockResult {
    pub appends: u64,
    pub elapsed: u64,
    /// 50th, 99th, 99.9th percentile.
    pub latency: [u64; 3],
    /// Longest time between two acknowledgements.
    pub silence: u64,
}

/// Collects a block's latencies.
#[derive(Debug)]
pub(super) struct Tally {
    pub latency: Histogram<u64>,
    pub begin: Instant,
    pub last: Instant,
    pub silence: u64,
}

impl Tally {
    pub(super) fn new() -> Result<Self, Error> {
        // One nanosecond to ten seconds, three digits: bounds that the histogram accepts.
        let latency = Histogram::new_with_bounds(1, 10_000_000_000, 3)
            .map_err(|cause| program("histogram", cause.to_string()))?;
        let now = Instant::now();
        Ok(Self { latency, begin: now, last: now, silence: 0 })
    }

    /// Records an append that began at `start` and is durable now. Returns the time.
    #[inline]
    pub(super) fn done(&mut self, start: Instant) -> Instant {
        let now = Instant::now();
        self.latency.saturating_record(((now - start).as_nanos() as u64).max(1));
        self.silence = self.silence.max((now - self.last).as_nanos() as u64);
        self.last = now;
        now
    }

    pub(super) fn result(&self) -> BlockResult {
        let at = |part| if self.latency.is_empty() { 0 } else { self.latency.value_at_quantile(part) };
        BlockResult {
            appends: self.latency.len(),
            elapsed: self.begin.elapsed().as_nanos() as u64,
            latency: [at(0.5), at(0.99), at(0.999)],
            silence: self.silence,
        }
    }
}

/// A way to make records durable.
pub(super) trait Subject {
    /// The name in the report.
    fn name(&self) -> &'static str;

    /// Appends records for the duration of `work`.
    fn block(&mut self, work: Work) -> Result<BlockResult, Error>;
}

/// An error of a subject.
pub(super) fn program(name: &str, what: String) -> Error {
    Error::Program { program: name.into(), what, fix: "see above, and run it again" }
}

/// An error of Sietch's log.
pub(super) fn log_failed(cause: impl std::fmt::Display) -> Error {
    program("the log", cause.to_string())
}
