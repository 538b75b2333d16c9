//! The network engine beside the kernel's sockets.
//!
//! 1. A *cell* is a piece of work in a place. Its *sides* do the same work with the same shape of
//!    load: kernel sockets that block, kernel sockets that spin, and Sietch. Three columns always,
//!    because part of any gain over blocking sockets comes from spinning.
//! 2. Places: `app` is two processes on this host (kernel: loopback, for UDP also a veth pair;
//!    Sietch: a shared-memory link that the control plane grants), `veth` is a kernel client of
//!    this host and a server behind a veth pair (kernel: in a namespace; Sietch: on a VNIC over
//!    AF_XDP).
//! 3. A round runs one block of every side, in a rotating order; every block has fresh
//!    processes, the server on core 0 and the client on core 1. The client opens its window after a
//!    warm-up and reads the CPU time of the whole machine at both ends of it.
//! 4. A calibration loop on each core runs around a round. A round in which a core was slow, or
//!    much time was stolen, is dropped and counted.
//! 5. Reported are medians over rounds, the range, and the medians of the ratios round by round.

mod cells;
mod linux;
mod measure;
mod report;
mod results;
mod sietch;
mod work;
mod worker;

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use crate::error::{Error, system};
use crate::isolation::{self, interrupted};
use crate::machine::{self, SLOW, STOLEN};
use cells::{Cell, Environment};
use measure::Outcome;
use results::Measured;
pub(crate) use worker::{Arguments as WorkerArguments, run as work};

/// Options of `bench net`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Arguments {
    /// Rounds a cell
    #[arg(long, default_value_t = 7)]
    pairs: usize,
    /// Seconds a block
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Only cells whose name contains this (app, veth, udp, rpc, bulk, fair, ...)
    #[arg(long)]
    only: Option<String>,
    /// Name the cells and measure nothing
    #[arg(long)]
    list: bool,
    /// Where JSON and SVG go
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// Runs the whole comparison.
///
/// # Errors
/// A program is missing or failed, or the kernel refused something.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    if arguments.list {
        for cell in cells::all() {
            println!("{}", cell.name());
        }
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Program {
            program: "bench net".into(),
            what: "needs root for network namespaces, VNICs and the daemon".into(),
            fix: "run it as root",
        });
    }
    if isolation::enter()? {
        return Ok(());
    }
    std::fs::create_dir_all(&arguments.out).map_err(system("making the output folder"))?;
    println!("{}", machine::describe());
    println!("{}", machine::absences()?);
    println!("{}", machine::distance()?);
    println!(
        "{} rounds of blocks of {} s, servers on core 0, clients on core 1; the machine has to be idle",
        arguments.pairs, arguments.seconds
    );
    let best = machine::calibrate()?;
    let stop = interrupted()?;
    let environment = Environment::create(&arguments.out)?;
    let mut results = Vec::new();
    for cell in cells::all() {
        let name = cell.name();
        if arguments.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let mut result = Measured {
            name,
            unit: cell.work.unit(),
            sides: cell.sides.iter().map(|side| (*side, Vec::new())).collect(),
            dropped: 0,
        };
        for round in 0..arguments.pairs * 2 {
            if result.sides[0].1.len() == arguments.pairs {
                break;
            }
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Program {
                    program: "bench net".into(),
                    what: "interrupted".into(),
                    fix: "run it again",
                });
            }
            self::round(&environment, &cell, round, arguments.seconds, &best, &mut result)?;
        }
        report::progress(&result);
        results.push(result);
    }
    report::print(&results);
    report::write(&results, &arguments.out)
}

fn round(
    environment: &Environment,
    cell: &Cell,
    round: usize,
    seconds: f64,
    best: &[u64],
    result: &mut Measured,
) -> Result<(), Error> {
    let count = cell.sides.len();
    let before = machine::calibrate()?;
    let mut outcomes: Vec<Option<Outcome>> = vec![None; count];
    for position in 0..count {
        let side = (position + round) % count;
        outcomes[side] = Some(environment.block(cell.work, cell.sides[side], seconds)?);
    }
    let after = machine::calibrate()?;
    let slowness = machine::slowness(&before, &after, best);
    let cores = before.len().max(1) as f64;
    let stolen = outcomes
        .iter()
        .flatten()
        .map(|outcome| outcome.stolen as f64 / outcome.elapsed.max(1) as f64 / cores)
        .fold(0.0, f64::max);
    if slowness > SLOW || stolen > STOLEN {
        result.dropped += 1;
        return Ok(());
    }
    for (side, outcome) in result.sides.iter_mut().zip(outcomes) {
        side.1.extend(outcome);
    }
    Ok(())
}
