//! Replies over time, for the measurement of compaction.

use hdrhistogram::Histogram;
use sietch::clock;

/// Nanoseconds of a step.
pub(super) const STEP: u64 = 100_000_000;

/// Replies over time.
#[derive(Debug)]
pub(super) struct Timeline {
    begin: u64,
    last: u64,
    /// Replies in each step of [`STEP`], from the beginning.
    pub steps: Vec<u64>,
    /// Periods without a reply, of [`SILENCE`] and more: when each ended, from the beginning, and
    /// its length.
    pub silences: Vec<(u64, u64)>,
    /// Latencies, one histogram for each [`Timeline::note_latencies`], with its time from the
    /// beginning.
    latencies: Vec<(u64, Histogram<u64>)>,
}

/// The shortest period without a reply that is recorded, in nanoseconds.
const SILENCE: u64 = 100_000;

impl Timeline {
    /// Begins now.
    pub(super) fn begin() -> Self {
        let now = clock::now();
        Self { begin: now, last: now, steps: Vec::new(), silences: Vec::new(), latencies: Vec::new() }
    }

    /// Records latencies of requests that were answered until now.
    pub(super) fn note_latencies(&mut self, latencies: Histogram<u64>) {
        self.latencies.push((clock::now() - self.begin, latencies));
    }

    /// Milliseconds within which 99.9 % of the requests were answered, of those recorded between
    /// two times from the beginning.
    pub(super) fn tail(&self, from: u64, to: u64) -> f64 {
        let mut inside = self.latencies.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, of)| of);
        let Some(mut all) = inside.next().cloned() else { return 0.0 };
        // The histograms have the same bounds, so nothing is left out.
        inside.for_each(|latencies| _ = all.add(latencies));
        all.value_at_quantile(0.999) as f64 / 1e6
    }

    /// Records `replies` that arrived at `now`.
    pub(super) fn note(&mut self, now: u64, replies: u64) {
        if now.saturating_sub(self.last) >= SILENCE {
            self.silences.push((now - self.begin, now - self.last));
        }
        self.last = now;
        let step = (now.saturating_sub(self.begin) / STEP) as usize;
        if step >= self.steps.len() {
            self.steps.resize(step + 1, 0);
        }
        self.steps[step] += replies;
    }
}
