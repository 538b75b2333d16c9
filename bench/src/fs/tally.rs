//! What one block measured.

use std::io;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::error::{Error, system};
use crate::machine::Cpu;

/// Times of operations, and the time in which they were made.
#[derive(Debug)]
pub(super) struct Tally {
    pub times: Histogram<u64>,
    /// Time of the block that counts.
    pub elapsed: Duration,
    /// Nanoseconds of all cores in that time, whatever they did; 0: not measured.
    pub cpu: u64,
    begun: Cpu,
}

impl Tally {
    pub(super) fn new() -> Result<Self, Error> {
        // One nanosecond to a minute, three digits: bounds that the histogram accepts.
        let times = Histogram::new_with_bounds(1, 60_000_000_000, 3)
            .map_err(|cause| system("making a histogram")(std::io::Error::other(cause)))?;
        Ok(Self { times, elapsed: Duration::ZERO, cpu: 0, begun: Cpu::default() })
    }

    /// Starts the clock.
    pub(super) fn start(&mut self) -> io::Result<Instant> {
        self.begun = Cpu::read().map_err(io::Error::other)?;
        Ok(Instant::now())
    }

    /// Stops the clock that was started at `begun`.
    pub(super) fn stop(&mut self, begun: Instant) -> io::Result<()> {
        self.elapsed = begun.elapsed();
        self.cpu = Cpu::read().map_err(io::Error::other)?.since(self.begun).busy;
        Ok(())
    }

    /// Records an operation that began at `start`. Returns the time.
    #[inline]
    pub(super) fn done(&mut self, start: Instant) -> Instant {
        let now = Instant::now();
        self.times.saturating_record(((now - start).as_nanos() as u64).max(1));
        now
    }

    /// Adds what another thread measured.
    pub(super) fn add(&mut self, other: &Self) -> Result<(), Error> {
        self.elapsed = self.elapsed.max(other.elapsed);
        self.cpu = self.cpu.max(other.cpu);
        let added = self.times.add(&other.times);
        added.map_err(|cause| system("adding histograms")(std::io::Error::other(cause)))
    }
}
