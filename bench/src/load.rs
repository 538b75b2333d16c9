//! The store beside redis-server under one load generator: in memory, and with every write durable
//! before it is answered.
//!
//! 1. There are three sides: redis-server on kernel sockets over loopback, the store on the same,
//!    and the store on an end of a shared-memory link. Each is a process of its own, started as its
//!    users start it. Link and store come from `sietch up`; the generator acquires the other end by
//!    its name.
//!    - *Memory*: no side keeps data, with `--save "" --appendonly no` and `--durability none`.
//!    - *Durable*: all sides use the same disk, with `--appendonly yes --appendfsync always` and
//!      `--durability always`. Only one of them gets requests at a time.
//! 2. One generator drives all of them ([`generator`]). Only the transport of its bytes differs
//!    ([`transport`]).
//! 3. Servers run on core 0, the generator on core 1. A round has a block of every side, in a
//!    rotating order. A round in which a core was slow or much time was stolen is dropped. The
//!    report has medians over rounds, and the median of the ratios round by round.
//! 4. Durable servers also show what clients see while the log is rewritten ([`compaction`]) and
//!    how fast they recover their keys ([`recovery`]).
//! 5. CPU is that of the whole machine, including the generator. With `--rate` the loop is open, so
//!    that CPU and latency belong to the same amount of work.

mod compaction;
mod control;
mod generator;
mod limits;
mod pinned;
mod recovery;
mod servers;
mod timeline;
mod transport;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;
use serde::Serialize;
use sietch::clock;

use crate::error::{Error, system};
use crate::isolation::{self, Scratch, interrupted};
use crate::machine::{self, Cpu, SLOW, STOLEN};
use crate::options::Blocks;
use crate::table::{self, median, range};
use generator::{Generator, Shape};
use limits::{CONNECTIONS, KEYS, OWN_CORE};
use pinned::Pinned;
use servers::Servers;

/// The durability of the servers, and the loads: percent of SETs, connections, pipeline.
struct Setting {
    name: &'static str,
    durable: bool,
    loads: &'static [(u32, usize, usize)],
}

const SETTINGS: [Setting; 2] = [
    Setting {
        name: "memory",
        durable: false,
        loads: &[
            (100, 1, 1),
            (100, 1, 16),
            (100, CONNECTIONS, 1),
            (100, CONNECTIONS, 16),
            (0, 1, 1),
            (0, 1, 16),
            (0, CONNECTIONS, 1),
            (0, CONNECTIONS, 16),
        ],
    },
    Setting {
        name: "durable",
        durable: true,
        loads: &[(100, 1, 1), (100, CONNECTIONS, 1), (100, CONNECTIONS, 16), (10, CONNECTIONS, 1)],
    },
];

/// Options of `bench load`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    blocks: Blocks,
    /// Requests a second, in an open loop
    #[arg(long)]
    rate: Option<f64>,
    /// Only rows whose name contains this (`memory`, `durable`, `durable SET c50 P1`, `durable
    /// rewrite`, `durable recovery`)
    #[arg(long)]
    only: Option<String>,
    /// Where the durable servers keep their data: the disk to measure
    #[arg(long)]
    data: Option<PathBuf>,
}

/// The results of one block.
#[derive(Debug, Clone, Serialize)]
struct Sample {
    /// Replies a second.
    rate: f64,
    /// Busy time of the whole machine for each request, in microseconds.
    cpu_us: f64,
    #[serde(skip)]
    latencies: Histogram<u64>,
    #[serde(skip)]
    stolen: f64,
}

/// The blocks of one shape, side by side.
#[derive(Debug, Clone, Serialize)]
struct Cell {
    shape: String,
    sides: Vec<(&'static str, Vec<Sample>)>,
    dropped: usize,
}

/// All results, as written to JSON.
#[derive(Debug, Serialize)]
struct Results {
    cells: Vec<Cell>,
    rewrite: Vec<compaction::Impact>,
    recovery: Vec<recovery::Loaded>,
}

/// Runs the comparison.
///
/// # Errors
/// A program is missing or failed, or the kernel refused something.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    if rustix::process::geteuid().is_root() && isolation::enter()? {
        return Ok(());
    }
    let blocks = &arguments.blocks;
    std::fs::create_dir_all(&blocks.out).map_err(system("making the output folder"))?;
    println!("{}", machine::describe());
    let best = machine::calibrate()?;
    let scratch = Scratch::create(arguments.data.as_deref())?;
    let stop = interrupted()?;
    let mut cells = Vec::new();
    for setting in SETTINGS {
        cells.extend(compare(&setting, arguments, scratch.path(), &best, &stop)?);
    }
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let mut rewrites = Vec::new();
    if wanted("durable rewrite") {
        let servers = Servers::start("rewrite", true, &scratch.path().join("rewrite"), &blocks.out)?;
        let mut sides = servers.connect(CONNECTIONS)?;
        rewrites = compaction::measure(&mut sides, &servers.addresses(), blocks.value)?;
    }
    let mut loaded = Vec::new();
    if wanted("durable recovery") {
        loaded = recovery::measure(scratch.path(), &blocks.out, blocks.value)?;
    }
    print(&cells);
    compaction::print(&rewrites);
    recovery::print(&loaded);
    let all = Results { cells, rewrite: rewrites, recovery: loaded };
    let json = serde_json::to_vec_pretty(&all)
        .map_err(|cause| Error::System { action: "writing JSON", cause: cause.into() })?;
    let file = blocks.out.join("load.json");
    std::fs::write(&file, json).map_err(system("writing load.json"))?;
    println!("wrote {}", file.display());
    Ok(())
}

/// Measures the selected rows of one setting.
fn compare(
    setting: &Setting,
    arguments: &Arguments,
    scratch: &Path,
    best: &[u64],
    stop: &AtomicBool,
) -> Result<Vec<Cell>, Error> {
    let blocks = &arguments.blocks;
    let shape = |&(writes, connections, pipeline)| {
        let (value, rate) = (blocks.value, arguments.rate);
        Shape { writes, connections, pipeline, value, keys: KEYS, rate }
    };
    let wanted: Vec<(String, Shape)> = setting
        .loads
        .iter()
        .map(|load| (format!("{} {}", setting.name, name(shape(load))), shape(load)))
        .filter(|(name, _)| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str())))
        .collect();
    let mut cells = Vec::new();
    if wanted.is_empty() {
        return Ok(cells);
    }
    let servers = Servers::start(setting.name, setting.durable, scratch, &blocks.out)?;
    let mut sides = servers.connect(CONNECTIONS)?;
    for (name, shape) in wanted {
        if stop.load(Ordering::Relaxed) {
            let what = "interrupted".into();
            return Err(Error::Program { program: "bench load".into(), what, fix: "run it again" });
        }
        cells.push(measure(blocks, name, shape, &mut sides, best)?);
    }
    Ok(cells)
}

/// The name of a load in the report.
fn name(shape: Shape) -> String {
    let command = match shape.writes {
        100 => "SET".to_owned(),
        0 => "GET".to_owned(),
        percent => format!("GET and {percent} % SET"),
    };
    format!("{command} c{} P{}", shape.connections, shape.pipeline)
}

fn measure(
    blocks: &Blocks,
    name: String,
    shape: Shape,
    sides: &mut [(&'static str, Generator)],
    best: &[u64],
) -> Result<Cell, Error> {
    let duration = (blocks.seconds * 1e9) as u64;
    for (_, generator) in &mut *sides {
        // A GET finds a key that an earlier SET has written, and all caches are warm.
        let fill = Shape { writes: 100, connections: CONNECTIONS, pipeline: 16, rate: None, ..shape };
        block(generator, fill, duration / 2)?;
    }
    let mut cell =
        Cell { shape: name, sides: sides.iter().map(|(name, _)| (*name, Vec::new())).collect(), dropped: 0 };
    for round in 0..blocks.pairs * 2 {
        if cell.sides[0].1.len() == blocks.pairs {
            break;
        }
        let before = machine::calibrate()?;
        let mut samples: Vec<Option<Sample>> = vec![None; sides.len()];
        for position in 0..sides.len() {
            let side = (position + round) % sides.len();
            samples[side] = Some(block(&mut sides[side].1, shape, duration)?);
        }
        let after = machine::calibrate()?;
        let slow = |(now, best): (&u64, &u64)| *now as f64 > *best as f64 * SLOW;
        let slowed = before.iter().zip(best).any(slow) || after.iter().zip(best).any(slow);
        if slowed || samples.iter().flatten().any(|sample| sample.stolen > STOLEN) {
            cell.dropped += 1;
            continue;
        }
        for (side, sample) in cell.sides.iter_mut().zip(samples) {
            side.1.extend(sample);
        }
    }
    Ok(cell)
}

fn block(generator: &mut Generator, shape: Shape, duration: u64) -> Result<Sample, Error> {
    let _pinned = Pinned::to(OWN_CORE)?;
    let (cpu, begin) = (Cpu::read()?, clock::now());
    let client = |cause| Error::System { action: "the load generator", cause };
    let (replies, latencies) = generator.run(shape, duration).map_err(client)?;
    let elapsed = (clock::now() - begin) as f64;
    let cpu = Cpu::read()?.since(cpu);
    generator.settle().map_err(|cause| Error::System { action: "the load generator", cause })?;
    Ok(Sample {
        rate: replies as f64 * 1e9 / elapsed,
        cpu_us: cpu.busy as f64 / 1000.0 / replies.max(1) as f64,
        latencies,
        stolen: cpu.stolen as f64 / elapsed,
    })
}

/// All latencies of a side.
fn together(samples: &[Sample]) -> Option<Histogram<u64>> {
    let mut all = Histogram::<u64>::new(3).ok()?;
    for sample in samples {
        // The histogram resizes itself, so no latency is left out.
        let _ = all.add(&sample.latencies);
    }
    Some(all)
}

fn print(cells: &[Cell]) {
    if cells.is_empty() {
        return;
    }
    let mut rows = Vec::new();
    for cell in cells {
        let of = |samples: &[Sample], what: fn(&Sample) -> f64| samples.iter().map(what).collect::<Vec<_>>();
        let middle = |sample: &Sample| sample.latencies.value_at_quantile(0.5) as f64;
        let redis = (of(&cell.sides[0].1, |sample| sample.rate), of(&cell.sides[0].1, middle));
        for (name, samples) in &cell.sides {
            let rates = of(samples, |sample| sample.rate);
            let pairwise = |ours: &[f64], theirs: &[f64]| -> Vec<f64> {
                ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs.max(1.0)).collect()
            };
            let ratios = pairwise(&rates, &redis.0);
            let (low, high) = range(&ratios);
            let all = together(samples);
            let quantile = |part| all.as_ref().map_or(0.0, |all| all.value_at_quantile(part) as f64 / 1e3);
            rows.push(vec![
                format!("{} {name}", cell.shape),
                format!("{:.0}", median(&rates)),
                format!("{:.2}", median(&ratios)),
                format!("{low:.2}-{high:.2}"),
                format!("{:.2}", median(&of(samples, |sample| sample.cpu_us))),
                format!("{:.1}/{:.1}/{:.1}", quantile(0.5), quantile(0.99), quantile(0.999)),
                format!("{:.2}", median(&pairwise(&of(samples, middle), &redis.1))),
                format!("{} ({} dropped)", samples.len(), cell.dropped),
            ]);
        }
    }
    println!("\nmemory: redis-server with --save \"\" --appendonly no, Sietch with --durability none");
    println!(
        "durable: redis-server with --appendonly yes --appendfsync always, Sietch with --durability always"
    );
    println!("CPU is that of the whole machine, the generator's included; ratios are to redis-server");
    let heading = [
        "command, server",
        "req/s",
        "ratio",
        "range",
        "CPU us/req",
        "p50/p99/p99.9 us",
        "p50 ratio",
        "rounds",
    ];
    table::print(&heading, &rows);
}
