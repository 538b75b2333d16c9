//! The figures that a client measures in its window.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::error::{Error, system};
use crate::machine::Cpu;

/// How long the load runs before operations count: connections, buffers and clocks settle.
const WARM_UP: Duration = Duration::from_millis(150);

/// The longest latency that is distinguished from longer ones, in nanoseconds.
const LONGEST: u64 = 10_000_000_000;

/// How evenly flows were served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shares {
    /// Operations of the least and of the most served flow.
    pub least: u64,
    pub most: u64,
    /// Operations of the least served flow, relative to an equal share of all operations.
    pub least_share: f64,
    /// Jain's index: 1 if all flows got the same, 1/n if one of n flows got all.
    pub fairness: f64,
}

impl Shares {
    /// From the operations of each flow; `None` of no flows.
    pub(super) fn of(operations: impl Iterator<Item = u64> + Clone) -> Option<Self> {
        let (least, most) = operations.clone().min().zip(operations.clone().max())?;
        let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for each in operations {
            count += 1.0;
            sum += each as f64;
            squares += each as f64 * each as f64;
        }
        let (least_share, fairness) =
            if sum > 0.0 { (least as f64 * count / sum, sum * sum / (count * squares)) } else { (0.0, 0.0) };
        Some(Self { least, most, least_share, fairness })
    }
}

/// The results of one block.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Operations (echoes, requests, connections; for bulk, bytes).
    pub operations: u64,
    /// Nanoseconds of the window.
    pub elapsed: u64,
    /// Busy nanoseconds of all cores in the window.
    pub busy: u64,
    /// Nanoseconds that the host took (steal time).
    pub stolen: u64,
    /// Latency percentiles in nanoseconds: 50, 99, 99.9. Zero where none was taken.
    pub latency: [u64; 3],
    /// How evenly flows were served, where that is compared.
    pub flows: Option<Shares>,
    /// Bytes of memory for each connection, where the work measures that.
    pub bytes: Option<u64>,
    /// Processor time of both processes together while the connections were silent, in cores.
    pub idle: Option<f64>,
}

impl Outcome {
    /// Operations a second.
    pub(super) fn rate(&self) -> f64 {
        self.operations as f64 * 1e9 / self.elapsed.max(1) as f64
    }

    /// Busy microseconds of the whole machine for each operation.
    pub(super) fn cpu_us(&self) -> f64 {
        self.busy as f64 / 1000.0 / self.operations.max(1) as f64
    }
}

/// Opens a window after the warm-up, counts in it, and closes it.
#[derive(Debug)]
pub(super) struct Meter {
    opens: Instant,
    closes: Instant,
    opened: Option<(Instant, Cpu)>,
    operations: u64,
    latency: Histogram<u64>,
}

impl Meter {
    /// A window of `seconds`, after the warm-up.
    pub(super) fn new(seconds: f64) -> Result<Self, Error> {
        let opens = Instant::now() + WARM_UP;
        let latency = Histogram::new_with_bounds(1, LONGEST, 3).map_err(|cause| Error::Program {
            program: "histogram".into(),
            what: cause.to_string(),
            fix: "report it: this is a fault of the program",
        })?;
        let closes = opens + Duration::from_secs_f64(seconds);
        Ok(Self { opens, closes, opened: None, operations: 0, latency })
    }

    /// Opens the window when its time has come; returns whether it is over. Called in every
    /// iteration.
    #[inline]
    pub(super) fn is_over(&mut self, now: Instant) -> Result<bool, Error> {
        if self.opened.is_none() && now >= self.opens {
            self.opened = Some((now, Cpu::read()?));
        }
        Ok(now >= self.closes)
    }

    /// Whether operations count now.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.opened.is_some()
    }

    /// Counts operations without their latency.
    #[inline]
    pub(super) fn count(&mut self, operations: u64) {
        if self.opened.is_some() {
            self.operations += operations;
        }
    }

    /// Counts an operation that took `nanoseconds`.
    #[inline]
    pub(super) fn record(&mut self, nanoseconds: u64) {
        if self.opened.is_some() {
            self.operations += 1;
            self.latency.saturating_record(nanoseconds.max(1));
        }
    }

    /// Opens the window now, for a caller that has its own warm-up.
    pub(super) fn open(&mut self) -> Result<(), Error> {
        self.opened = Some((Instant::now(), Cpu::read()?));
        Ok(())
    }

    /// Closes the window.
    pub(super) fn finish(self) -> Result<Outcome, Error> {
        let closed = Instant::now();
        let (opened, before) = self.opened.ok_or_else(|| {
            system("measuring")(std::io::Error::other("the window never opened: nothing moved"))
        })?;
        let cpu = Cpu::read()?.since(before);
        let at =
            |quantile| if self.latency.is_empty() { 0 } else { self.latency.value_at_quantile(quantile) };
        Ok(Outcome {
            operations: self.operations,
            elapsed: (closed - opened).as_nanos() as u64,
            busy: cpu.busy,
            stolen: cpu.stolen,
            latency: [at(0.5), at(0.99), at(0.999)],
            flows: None,
            bytes: None,
            idle: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_measure_fairness() {
        let even = Shares::of([5, 5, 5, 5].into_iter()).expect("there are flows");
        assert!((even.least_share - 1.0).abs() < 1e-9 && (even.fairness - 1.0).abs() < 1e-9);
        let starved = Shares::of([0, 8].into_iter()).expect("there are flows");
        assert_eq!((starved.least, starved.most), (0, 8));
        assert!(starved.least_share < 1e-9 && (starved.fairness - 0.5).abs() < 1e-9);
        assert_eq!(Shares::of([0, 0].into_iter()), Some(Shares::default()));
        assert_eq!(Shares::of(std::iter::empty()), None);
    }
}
