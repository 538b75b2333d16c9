//! Appending a record and knowing that it is durable: the log of `dataplane/persist` beside what
//! servers use today.
//!
//! 1. Two media, each compared with itself alone. *Disk*: a bare direct write, a write and
//!    `fdatasync` into a file that is all written, the same at the end of a growing file, SQLite
//!    (WAL, `synchronous=FULL`), redis-server (`appendfsync always`, over loopback), and the log
//!    over io_uring. *Memory*: libpmemlog in shared memory, a write and `fdatasync` on tmpfs, and
//!    the log over non-temporal stores. Memory stands in for NVM: it survives no power loss, on any
//!    side.
//! 2. A writer has one record on its way: the next follows when the last is durable. For the
//!    kernel's files, SQLite and libpmemlog a writer is a thread; the log has one thread that
//!    serves all its writers, as it does in a server.
//! 3. Blocks of all subjects alternate, in an order that turns; a round in which a core was slow or
//!    much time was stolen is dropped. Reported are medians over rounds and the median of the
//!    ratios round by round, Sietch over the subject.
//! 4. The log compacts as it fills, inside the blocks: the longest time without an acknowledgement
//!    is part of the report.
//! 5. Progress is what one writer sees while the log compacts and while its area grows and shrinks
//!    (`progress`).
//! 6. Recovery is the time that opening a log takes that holds [`RECOVERED`] bytes of records, read
//!    from the medium. Between the openings the area is read without looking at a byte: no recovery
//!    is faster than that.

mod ceiling;
mod files;
mod foreign;
mod log;
mod progress;
mod report;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::error::{Error, system};
use crate::isolation::{Scratch, interrupted};
use crate::machine::{self, Cpu, SLOW, STOLEN};

/// Bytes of a record.
const SIZES: [usize; 3] = [64, 1024, 4096];

/// Writers at once.
const WRITERS: [usize; 2] = [1, 64];

/// Payload bytes of the log whose recovery is timed.
const RECOVERED: u64 = 256 << 20;

/// Options of `bench storage`.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Rounds of blocks a cell
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds a block
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Only cells whose name contains this (disk, memory, recovery, progress, `64 B`)
    #[arg(long)]
    only: Option<String>,
    /// Where files are kept: the disk to measure
    #[arg(long)]
    data: Option<PathBuf>,
    /// Where JSON and SVG go
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// What one block is to do.
#[derive(Debug, Clone, Copy)]
struct Work {
    /// Bytes of a record.
    bytes: usize,
    writers: usize,
    duration: Duration,
}

/// Latencies of one block, in nanoseconds, and the longest silence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Told {
    appends: u64,
    elapsed: u64,
    /// 50th, 99th, 99.9th percentile.
    latency: [u64; 3],
    /// Longest time between two acknowledgements.
    silence: u64,
}

/// Collects a block's latencies.
#[derive(Debug)]
struct Tally {
    latency: Histogram<u64>,
    begin: Instant,
    last: Instant,
    silence: u64,
}

impl Tally {
    fn new() -> Result<Self, Error> {
        // One nanosecond to ten seconds, three digits: bounds that the histogram accepts.
        let latency = Histogram::new_with_bounds(1, 10_000_000_000, 3)
            .map_err(|cause| program("histogram", cause.to_string()))?;
        let now = Instant::now();
        Ok(Self { latency, begin: now, last: now, silence: 0 })
    }

    /// Notes an append that began at `start` and is durable now. Returns now.
    #[inline]
    fn done(&mut self, start: Instant) -> Instant {
        let now = Instant::now();
        self.latency.saturating_record(((now - start).as_nanos() as u64).max(1));
        self.silence = self.silence.max((now - self.last).as_nanos() as u64);
        self.last = now;
        now
    }

    fn told(&self) -> Told {
        let at = |part| if self.latency.is_empty() { 0 } else { self.latency.value_at_quantile(part) };
        Told {
            appends: self.latency.len(),
            elapsed: self.begin.elapsed().as_nanos() as u64,
            latency: [at(0.5), at(0.99), at(0.999)],
            silence: self.silence,
        }
    }
}

/// Something that makes records durable.
trait Subject {
    /// Shown in the report.
    fn name(&self) -> &'static str;

    /// Appends for the duration that `work` says.
    fn block(&mut self, work: Work) -> Result<Told, Error>;
}

/// What one block showed.
#[derive(Debug, Clone, Copy, Serialize)]
struct Sample {
    /// Appends a second.
    rate: f64,
    /// Microseconds.
    p50: f64,
    /// Microseconds.
    p99: f64,
    /// Microseconds.
    p999: f64,
    /// Longest time without an acknowledgement, in milliseconds.
    silence: f64,
    /// Busy time of the whole machine for each append, in microseconds.
    cpu_us: f64,
}

/// One cell: the blocks of every subject, Sietch the last.
#[derive(Debug, Clone, Serialize)]
struct Cell {
    name: String,
    subjects: Vec<(&'static str, Vec<Sample>)>,
    dropped: usize,
}

/// A log's recovery.
#[derive(Debug, Clone, Serialize)]
struct Recovery {
    medium: &'static str,
    /// Payload bytes a second, one opening each.
    rates: Vec<f64>,
    /// Bytes a second that the medium itself gives, read between the openings.
    ceiling: Vec<f64>,
}

/// Runs the comparison.
///
/// # Errors
/// The disk has too little room, a program failed, or the kernel refused something.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    std::fs::create_dir_all(&arguments.out).map_err(system("making the output folder"))?;
    println!("{}", machine::describe());
    println!(
        "{} rounds of {} s a cell; \"memory\" is DRAM standing in for NVM, without a model of slower memory",
        arguments.rounds, arguments.seconds
    );
    let best = machine::calibrate()?;
    let scratch = Scratch::create(arguments.data.as_deref())?;
    let stop = interrupted()?;
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let mut cells = Vec::new();
    for medium in ["disk", "memory"] {
        let names: Vec<_> = SIZES
            .iter()
            .flat_map(|&bytes| WRITERS.map(|writers| (bytes, writers)))
            .map(|(bytes, writers)| (format!("{medium} {bytes} B, {writers} writers"), bytes, writers))
            .filter(|(name, ..)| wanted(name))
            .collect();
        if names.is_empty() {
            continue;
        }
        let mut subjects = if medium == "disk" {
            on_disk(scratch.path(), &arguments.out)?
        } else {
            in_memory(scratch.path(), &arguments.out)?
        };
        for (name, bytes, writers) in names {
            let work = Work { bytes, writers, duration: Duration::from_secs_f64(arguments.seconds) };
            if stop.load(Ordering::Relaxed) {
                return Err(program("bench storage", "interrupted".into()));
            }
            let cell = measure(name, &mut subjects, work, arguments.rounds, &best)?;
            report::progress(&cell);
            cells.push(cell);
        }
    }
    let mut recoveries = Vec::new();
    if wanted("recovery") {
        recoveries = log::recover(scratch.path(), arguments.rounds.min(5), RECOVERED)?;
    }
    let progress = if wanted("progress") { progress::run(scratch.path())? } else { Vec::new() };
    report::print(&cells, &recoveries);
    report::print_progress(&progress);
    report::write(&cells, &recoveries, &progress, &arguments.out)
}

fn on_disk(folder: &std::path::Path, out: &std::path::Path) -> Result<Vec<Box<dyn Subject>>, Error> {
    Ok(vec![
        Box::new(files::Files::bare(folder)?),
        Box::new(files::Files::in_place(folder)?),
        Box::new(files::Files::appended(folder)?),
        Box::new(foreign::Sqlite::create(folder)?),
        Box::new(foreign::Redis::start(folder, out)?),
        Box::new(log::OnDisk::create(folder)?),
    ])
}

fn in_memory(folder: &std::path::Path, out: &std::path::Path) -> Result<Vec<Box<dyn Subject>>, Error> {
    let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
    match foreign::PmemLog::build(folder, out) {
        Ok(pmemlog) => subjects.push(Box::new(pmemlog)),
        Err(cause) => println!("skipped libpmemlog: {cause}"),
    }
    subjects.push(Box::new(files::Files::tmpfs()?));
    subjects.push(Box::new(log::InMemory::create()?));
    Ok(subjects)
}

fn measure(
    name: String,
    subjects: &mut [Box<dyn Subject>],
    work: Work,
    rounds: usize,
    best: &[u64],
) -> Result<Cell, Error> {
    let mut cell = Cell {
        name,
        subjects: subjects.iter().map(|subject| (subject.name(), Vec::new())).collect(),
        dropped: 0,
    };
    // Everything is warm and in place before anything counts.
    for subject in &mut *subjects {
        subject.block(Work { duration: work.duration / 3, ..work })?;
    }
    for round in 0..rounds * 2 {
        if cell.subjects[0].1.len() == rounds {
            break;
        }
        let before = machine::calibrate()?;
        let (begin, cpu) = (Instant::now(), Cpu::read()?);
        let mut samples: Vec<Option<Sample>> = vec![None; subjects.len()];
        for turn in 0..subjects.len() {
            let at = (turn + round) % subjects.len();
            samples[at] = Some(block(subjects[at].as_mut(), work)?);
        }
        let stolen = Cpu::read()?.since(cpu).stolen as f64 / begin.elapsed().as_nanos() as f64;
        let after = machine::calibrate()?;
        let slow = |(now, best): (&u64, &u64)| *now as f64 > *best as f64 * SLOW;
        if stolen > STOLEN || before.iter().zip(best).any(slow) || after.iter().zip(best).any(slow) {
            cell.dropped += 1;
            continue;
        }
        for (subject, sample) in cell.subjects.iter_mut().zip(samples) {
            subject.1.extend(sample);
        }
    }
    Ok(cell)
}

fn block(subject: &mut dyn Subject, work: Work) -> Result<Sample, Error> {
    let before = Cpu::read()?;
    let told = subject.block(work)?;
    let cpu = Cpu::read()?.since(before);
    if told.appends == 0 {
        return Err(program(subject.name(), "made nothing durable in a whole block".into()));
    }
    let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    Ok(Sample {
        rate: told.appends as f64 * 1e9 / told.elapsed.max(1) as f64,
        p50: microseconds(told.latency[0]),
        p99: microseconds(told.latency[1]),
        p999: microseconds(told.latency[2]),
        silence: told.silence as f64 / 1e6,
        cpu_us: cpu.busy as f64 / 1e3 / told.appends as f64,
    })
}

/// An error of a subject.
fn program(name: &str, what: String) -> Error {
    Error::Program { program: name.into(), what, mend: "see above, and run it again" }
}
