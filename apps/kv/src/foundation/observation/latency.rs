//! Latency spikes by their cause: the event names of LATENCY.
//!
//! 1. An event is recorded when something took at least `latency-monitor-threshold` milliseconds.
//! 2. Each event keeps its last 160 samples, at most one for each second: the longest of it.
//! 3. The names are Redis' where the cause is the same (`command`, `fast-command`, `expire-cycle`,
//!    `eviction-cycle`). `log-commit` is ours: a record of the log took that long from its append
//!    until it was durable.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

/// Samples that an event keeps.
const SAMPLES: usize = 160;

/// Columns of a graph.
const COLUMNS: usize = 80;

/// Rows of a graph.
const ROWS: usize = 4;

/// The filling of a row of the graph, from low to high.
const FILLING: [u8; 3] = *b"_o#";

/// What took long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// A command that may visit many elements.
    Command,
    /// A command that Redis calls fast.
    FastCommand,
    /// The deletion of keys whose time was over.
    ExpireCycle,
    /// The deletion of keys because memory was full.
    EvictionCycle,
    /// A record of the log, until it was durable.
    LogCommit,
}

impl Cause {
    /// The name of its event.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::FastCommand => "fast-command",
            Self::ExpireCycle => "expire-cycle",
            Self::EvictionCycle => "eviction-cycle",
            Self::LogCommit => "log-commit",
        }
    }

    /// What helps against it.
    fn advice(self) -> &'static str {
        match self {
            Self::Command => {
                "Check your Slow Log to understand what are the commands you are running which are too slow to execute, and avoid commands that visit a whole collection (KEYS, SMEMBERS, SORT) on large ones: SCAN and its variants work in slices."
            }
            Self::FastCommand => {
                "A command with a small bound took long, so the thread did not have the processor, or a value has many megabytes. `sietch stat` shows whether iterations were preempted (long_iterations, own_long_iterations)."
            }
            Self::ExpireCycle => {
                "Many keys expire at the same moment. Spread their times to live. Each cycle is limited to 256 keys, so large values are the likely cause."
            }
            Self::EvictionCycle => {
                "Commands wait until keys are evicted. Raise maxmemory, or write less at once."
            }
            Self::LogCommit => {
                "The disk of the log is slow or busy. INFO persistence shows the commits (log_commit_average_usec, log_commit_longest_usec); with --durability always, every reply waits for one."
            }
        }
    }
}

/// A sample: unix seconds, and milliseconds.
type Sample = (u64, u64);

/// The samples of one event.
#[derive(Debug, Default)]
pub(crate) struct Series {
    samples: VecDeque<Sample>,
    greatest: u64,
}

impl Series {
    fn record(&mut self, second: u64, milliseconds: u64) {
        self.greatest = self.greatest.max(milliseconds);
        if let Some(last) = self.samples.back_mut()
            && last.0 == second
        {
            last.1 = last.1.max(milliseconds);
            return;
        }
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((second, milliseconds));
    }

    /// Adds the samples of another shard: the longest of each second, and the last of them.
    fn add(&mut self, other: &Self) {
        let greatest = self.greatest.max(other.greatest);
        let mut samples = BTreeMap::new();
        for &(second, milliseconds) in self.samples.iter().chain(&other.samples) {
            let longest = samples.entry(second).or_insert(milliseconds);
            *longest = milliseconds.max(*longest);
        }
        self.samples = samples.into_iter().collect();
        self.samples.drain(..self.samples.len().saturating_sub(SAMPLES));
        self.greatest = greatest;
    }

    /// The samples, oldest first.
    pub(crate) fn samples(&self) -> &VecDeque<Sample> {
        &self.samples
    }

    /// The last sample.
    pub(crate) fn last(&self) -> Sample {
        self.samples.back().copied().unwrap_or_default()
    }

    /// The longest of all, samples that are no longer kept included.
    pub(crate) fn greatest(&self) -> u64 {
        self.greatest
    }
}

/// The events recorded so far.
#[derive(Debug, Default)]
pub(crate) struct LatencyMonitor {
    series: BTreeMap<Cause, Series>,
}

impl LatencyMonitor {
    /// Records an event if it took at least `threshold` milliseconds (0: nothing is recorded).
    pub(crate) fn record(&mut self, cause: Cause, nanoseconds: u64, threshold: u64, unix_ms: u64) {
        let milliseconds = nanoseconds / 1_000_000;
        if threshold > 0 && milliseconds >= threshold {
            self.series.entry(cause).or_default().record(unix_ms / 1000, milliseconds);
        }
    }

    /// Adds the events of another shard.
    pub(crate) fn add(&mut self, other: &Self) {
        other.series.iter().for_each(|(cause, series)| self.series.entry(*cause).or_default().add(series));
    }

    /// All events with their samples.
    pub(crate) fn all(&self) -> impl ExactSizeIterator<Item = (Cause, &Series)> {
        self.series.iter().map(|(cause, series)| (*cause, series))
    }

    /// The samples of an event.
    pub(crate) fn find(&self, name: &[u8]) -> Option<(Cause, &Series)> {
        self.all().find(|(cause, _)| cause.name().as_bytes() == name)
    }

    /// Removes the samples of an event, or of all (`None`); how many events had some.
    pub(crate) fn reset(&mut self, name: Option<&[u8]>) -> usize {
        let before = self.series.len();
        self.series.retain(|cause, _| name.is_some_and(|name| cause.name().as_bytes() != name));
        before - self.series.len()
    }

    /// The report of LATENCY DOCTOR.
    pub(crate) fn report(&self, threshold: u64, now: u64) -> String {
        if self.series.is_empty() {
            return if threshold == 0 { DISABLED } else { NOTHING_SEEN }.to_owned();
        }
        let mut text = "Dave, I have observed latency spikes in this Sietch instance. You don't mind talking about it, do you Dave?\n\n".to_owned();
        for (number, (cause, series)) in self.all().enumerate() {
            let values: Vec<f64> = series.samples.iter().map(|sample| sample.1 as f64).collect();
            let average = values.iter().sum::<f64>() / values.len() as f64;
            let deviation =
                values.iter().map(|value| (value - average).abs()).sum::<f64>() / values.len() as f64;
            let since = series.samples.front().map_or(0, |first| now.saturating_sub(first.0));
            let period = since as f64 / values.len() as f64;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{}. {}: {} latency spikes (average {}ms, mean deviation {}ms, period {period:.2} sec). Worst all time event {}ms.",
                number + 1,
                cause.name(),
                values.len(),
                average as u64,
                deviation as u64,
                series.greatest,
            );
        }
        text.push_str("\nI have a few advices for you:\n\n");
        for (cause, _) in self.all() {
            let _ = writeln!(text, "- {}", cause.advice());
        }
        text
    }
}

/// The report while nothing is recorded.
const DISABLED: &str = "I'm sorry, Dave, I can't do that. Latency monitoring is disabled in this Sietch instance. You may use \"CONFIG SET latency-monitor-threshold <milliseconds>.\" in order to enable it.\n";

/// The report when nothing has taken long.
const NOTHING_SEEN: &str = "Dave, no latency spike was observed during the lifetime of this Sietch instance, not in the slightest bit. I honestly think you ought to sit down calmly, take a stress pill, and think things over.\n";

/// A time span as the label of a sample.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The graph of LATENCY GRAPH, as Redis draws it: columns of samples, with the age below each.
pub(crate) fn graph(cause: Cause, series: &Series, now: u64) -> String {
    let values = || series.samples.iter().map(|sample| sample.1);
    let (high, low) = (values().max().unwrap_or(0), values().min().unwrap_or(0));
    let mut text = format!(
        "{} - high {high} ms, low {low} ms (all time high {} ms)\n{}\n",
        cause.name(),
        series.greatest,
        "-".repeat(COLUMNS)
    );
    let samples: Vec<(u64, String)> =
        series.samples.iter().map(|&(second, value)| (value, age(now.saturating_sub(second)))).collect();
    for (number, part) in samples.chunks(COLUMNS).enumerate() {
        if number > 0 {
            text.push('\n');
        }
        draw(&mut text, part, low, high);
    }
    text
}

/// Draws at most [`COLUMNS`] samples: rows from the top, an empty row, and the labels downwards.
fn draw(text: &mut String, samples: &[(u64, String)], low: u64, high: u64) {
    let range = (high - low).max(1);
    let steps = ROWS * FILLING.len();
    let step = |value: u64| (((value - low) * steps as u64 / range) as usize).min(steps - 1);
    for row in 0..ROWS {
        let below = (ROWS - row - 1) * FILLING.len();
        text.extend(samples.iter().map(|(value, _)| match step(*value).checked_sub(below) {
            None => ' ',
            Some(height) => FILLING.get(height).map_or('|', |&byte| char::from(byte)),
        }));
        text.push('\n');
    }
    let longest = samples.iter().map(|(_, label)| label.len()).max().unwrap_or(0);
    text.push_str(&" ".repeat(samples.len()));
    text.push('\n');
    for position in 0..longest {
        text.extend(
            samples
                .iter()
                .map(|(_, label)| label.as_bytes().get(position).map_or(' ', |&byte| char::from(byte))),
        );
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_one_sample_and_an_event_a_limited_number() {
        let mut monitor = LatencyMonitor::default();
        let mut record = |ms: u64, at: u64| monitor.record(Cause::Command, ms * 1_000_000, 10, at);
        record(9, 1000);
        record(12, 1000);
        record(30, 1500);
        record(20, 1999);
        for second in 2..200 {
            record(11, second * 1000);
        }
        let (_, series) = monitor.find(b"command").expect("it was recorded");
        assert_eq!((series.samples().len(), series.last(), series.greatest()), (SAMPLES, (199, 11), 30));
        assert_eq!(monitor.reset(Some(b"fast-command")), 0);
        assert_eq!(monitor.reset(Some(b"command")), 1);
        monitor.record(Cause::LogCommit, 5_000_000, 0, 1);
        assert_eq!(monitor.all().len(), 0);
    }

    #[test]
    fn the_events_of_shards_are_put_together() {
        let mut first = LatencyMonitor::default();
        let mut second = LatencyMonitor::default();
        for (at, ms) in [(1, 20), (3, 50)] {
            first.record(Cause::Command, ms * 1_000_000, 10, at * 1000);
        }
        for (at, ms) in [(2, 70), (3, 40), (4, 30)] {
            second.record(Cause::Command, ms * 1_000_000, 10, at * 1000);
        }
        second.record(Cause::LogCommit, 11_000_000, 10, 1000);
        first.add(&second);
        let (_, series) = first.find(b"command").expect("it was recorded");
        assert_eq!(series.samples(), &[(1, 20), (2, 70), (3, 50), (4, 30)]);
        assert_eq!((series.greatest(), first.all().len()), (70, 2));
    }

    #[test]
    fn a_graph_is_drawn_as_redis_draws_it() {
        let mut series = Series::default();
        for (second, value) in [(10, 100), (20, 400), (30, 250)] {
            series.record(second, value);
        }
        let dashes = "-".repeat(80);
        let header = "command - high 400 ms, low 100 ms (all time high 400 ms)";
        let expected = [header, &dashes, " # ", " |_", " ||", "_||", "   ", "215", "55s", "ss "];
        assert_eq!(graph(Cause::Command, &series, 35).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_report_names_causes_and_advice() {
        let mut monitor = LatencyMonitor::default();
        assert!(monitor.report(0, 1).contains("is disabled"));
        assert!(monitor.report(1, 1).contains("no latency spike"));
        monitor.record(Cause::LogCommit, 20_000_000, 1, 1000);
        monitor.record(Cause::LogCommit, 40_000_000, 1, 3000);
        let report = monitor.report(1, 5);
        assert!(
            report.contains(
                "1. log-commit: 2 latency spikes (average 30ms, mean deviation 10ms, period 2.00 sec). Worst all time event 40ms."
            ),
            "{report}"
        );
        assert!(report.contains("- The disk of the log"), "{report}");
    }
}
