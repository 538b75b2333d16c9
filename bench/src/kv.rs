//! redis-server and Sietch kv under the same redis-benchmark, in alternating blocks of about a
//! second.
//!
//! 1. Three settings: behind a veth pair in memory, behind a veth pair with every write durable,
//!    and on loopback with kernel sockets, both ways. Redis' end of the veth pair is a kernel
//!    interface, Sietch's is a VNIC.
//! 2. Servers run on core 0, the client on core 1. The kernel's work for the client may run on any
//!    core, so the report has the CPU time of the whole machine.
//! 3. A client under `sietch run` is measured against three servers, of which the store has one
//!    shard or two ([`under_run`]).
//! 4. One connection's durable SET is measured against a bare write of its record ([`commit`]).
//! 5. A cell is a command, a number of connections and a pipeline depth. Each pair of blocks gives
//!    a ratio.
//!
//! As root, the program first moves into a network namespace of its own. As an ordinary user it
//! measures the loopback settings alone.

mod block;
pub(crate) mod client;
mod commit;
mod report;
mod results;
pub(crate) mod servers;
mod under_run;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, system};
use crate::isolation::{self, Scratch, interrupted};
use crate::machine::{self, SLOW, STOLEN};
use crate::options::Blocks;
use block::{interrupted_error, sample};
use results::{Cell, Sample};
use servers::{Pair, Setting};

/// Options of `bench kv`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    blocks: Blocks,
    /// Only settings whose name contains this (veth, loopback, run, memory, durable, shards,
    /// commit)
    #[arg(long)]
    only: Option<String>,
    /// Where the durable servers keep their data: the disk to measure
    #[arg(long)]
    data: Option<PathBuf>,
}

/// Runs the whole comparison.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let root = rustix::process::geteuid().is_root();
    if root && isolation::enter()? {
        return Ok(());
    }
    std::fs::create_dir_all(&arguments.blocks.out).map_err(system("making the output folder"))?;
    println!("{}", machine::describe());
    println!(
        "{} pairs of {} s a cell, values of {} bytes, servers on core 0, client on core 1",
        arguments.blocks.pairs, arguments.blocks.seconds, arguments.blocks.value
    );
    let best = machine::calibrate()?;
    let scratch = Scratch::create(arguments.data.as_deref())?;
    let stop = interrupted()?;
    let mut cells = Vec::new();
    for setting in servers::SETTINGS {
        let wanted = is_chosen(arguments, setting);
        if !wanted || (setting.veth && !root) {
            println!("skipped {}: {}", setting.name, if wanted { "needs root" } else { "not chosen" });
            continue;
        }
        measure(setting, arguments, scratch.path(), &best, &stop, &mut cells)?;
    }
    let mut run_cells = Vec::new();
    for setting in under_run::SETTINGS {
        if !is_chosen(arguments, setting) {
            println!("skipped {}: not chosen", setting.name);
            continue;
        }
        under_run::measure(setting, &arguments.blocks, scratch.path(), &best, &stop, &mut run_cells)?;
    }
    let mut commits = Vec::new();
    if is_chosen(arguments, commit::SETTING) {
        commits = commit::measure(&arguments.blocks, scratch.path(), &best, &stop)?;
    } else {
        println!("skipped {}: not chosen", commit::SETTING.name);
    }
    if !cells.is_empty() {
        report::print(&cells);
        report::write(&cells, &arguments.blocks.out)?;
    }
    under_run::print(&run_cells);
    under_run::write(&run_cells, &arguments.blocks.out)?;
    commit::print(&commits);
    commit::write(&commits, &arguments.blocks.out)
}

fn is_chosen(arguments: &Arguments, setting: Setting) -> bool {
    arguments.only.as_ref().is_none_or(|only| setting.name.contains(only.as_str()))
}

fn measure(
    setting: Setting,
    arguments: &Arguments,
    scratch: &Path,
    best: &[u64],
    stop: &AtomicBool,
    cells: &mut Vec<Cell>,
) -> Result<(), Error> {
    let pair = Pair::start(setting, scratch, &arguments.blocks.out)?;
    for load in servers::loads(setting, arguments.blocks.value) {
        let sides = [pair.redis, pair.sietch];
        let mut sizes = [0; 2];
        for (size, address) in sizes.iter_mut().zip(sides) {
            *size = client::calibrate(load, arguments.blocks.seconds, |requests| {
                client::run(address, load, requests)
            })?;
        }
        let mut cell = Cell { setting: setting.name.into(), load, redis: vec![], sietch: vec![], dropped: 0 };
        // A few more pairs than requested may replace dropped ones.
        for round in 0..arguments.blocks.pairs * 2 {
            if cell.redis.len() == arguments.blocks.pairs {
                break;
            }
            if stop.load(Ordering::Relaxed) {
                return Err(interrupted_error());
            }
            // The side that runs first alternates too.
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            let mut samples: [Option<Sample>; 2] = [None, None];
            for side in order {
                let run = || client::run(sides[side], load, sizes[side]);
                samples[side] = Some(sample(run, sizes[side], best)?);
            }
            let [Some(redis), Some(sietch)] = samples else { continue };
            if [&redis, &sietch].iter().any(|sample| sample.slowness > SLOW || sample.stolen > STOLEN) {
                cell.dropped += 1;
                continue;
            }
            cell.redis.push(redis);
            cell.sietch.push(sietch);
        }
        report::progress(&cell);
        cells.push(cell);
    }
    Ok(())
}
