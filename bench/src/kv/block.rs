//! One block of a measurement.

use super::client::Block;
use super::results::Sample;
use crate::error::Error;
use crate::machine::{self, Cpu};

/// The user has interrupted the measurement.
pub(super) fn interrupted_error() -> Error {
    Error::Program { program: "bench kv".into(), what: "interrupted".into(), fix: "run it again" }
}

/// Measures the machine around one block of so many requests.
pub(super) fn sample(
    run: impl FnOnce() -> Result<Block, Error>,
    requests: u64,
    best: &[u64],
) -> Result<Sample, Error> {
    let before = machine::calibrate()?;
    let started = (std::time::Instant::now(), Cpu::read()?);
    let block = run()?;
    let cpu = Cpu::read()?.since(started.1);
    let elapsed = started.0.elapsed().as_nanos() as f64;
    let after = machine::calibrate()?;
    let slowness = machine::slowness(&before, &after, best);
    Ok(Sample {
        cpu_us: cpu.busy as f64 / 1000.0 / requests as f64,
        stolen: cpu.stolen as f64 / elapsed / before.len().max(1) as f64,
        slowness,
        block,
    })
}
