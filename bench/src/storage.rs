//! Durable appends: the log of `dataplane/persist` beside the systems that servers use today.
//!
//! 1. There are two media, each compared with itself alone.
//!    - *Disk*: a bare direct write; a write and `fdatasync` into a fully written file; the same at
//!      the end of a growing file; SQLite (WAL, `synchronous=FULL`); redis-server (`appendfsync
//!      always`, over loopback); and the log over io_uring.
//!    - *Memory*: libpmemlog in shared memory, a write and `fdatasync` on tmpfs, and the log over
//!      non-temporal stores. Memory stands in for NVM: on no side does it survive a power loss.
//! 2. A writer has one record in flight: it appends the next one when the last is durable. For the
//!    kernel's files, SQLite and libpmemlog a writer is a thread. The log has one thread that
//!    serves all its writers, as it does in a server.
//! 3. Blocks of all subjects alternate, in a rotating order; a round in which a core was slow or
//!    much time was stolen is dropped. Reported are medians over rounds and the median of the
//!    ratios round by round, Sietch over the subject.
//! 4. The log compacts as it fills, inside the blocks: the longest time without an acknowledgement
//!    is part of the report.
//! 5. Progress is what one writer sees while the log compacts and while its area grows and shrinks
//!    (`progress`).
//! 6. Recovery is the time that opening a log takes that holds [`RECOVERED`] bytes of records, read
//!    from the medium. Between the openings the area is read without examining its bytes: no
//!    recovery is faster than that.

mod files;
mod log;
mod other_systems;
mod progress;
mod read_rate;
mod report;
mod results;
mod subject;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::error::{Error, system};
use crate::isolation::{Scratch, interrupted};
use crate::machine::{self, Cpu, SLOW, STOLEN};
pub(crate) use files::BareWrites;
use results::{Cell, Sample};
use subject::{Subject, WRITERS, Work, program};

/// Bytes of a record.
const SIZES: [usize; 3] = [64, 1024, 4096];

/// Payload bytes of the log whose recovery is timed.
const RECOVERED: u64 = 256 << 20;

/// Options of `bench storage`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Arguments {
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

/// Runs the comparison.
///
/// # Errors
/// The disk has too little room, a program failed, or the kernel refused something.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
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
        Box::new(other_systems::Sqlite::create(folder)?),
        Box::new(other_systems::Redis::start(folder, out)?),
        Box::new(log::OnDisk::create(folder)?),
    ])
}

fn in_memory(folder: &std::path::Path, out: &std::path::Path) -> Result<Vec<Box<dyn Subject>>, Error> {
    let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
    match other_systems::PmemLog::build(folder, out) {
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
        for position in 0..subjects.len() {
            let at = (position + round) % subjects.len();
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
    let result = subject.block(work)?;
    let cpu = Cpu::read()?.since(before);
    if result.appends == 0 {
        return Err(program(subject.name(), "made nothing durable in a whole block".into()));
    }
    let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    Ok(Sample {
        rate: result.appends as f64 * 1e9 / result.elapsed.max(1) as f64,
        p50: microseconds(result.latency[0]),
        p99: microseconds(result.latency[1]),
        p999: microseconds(result.latency[2]),
        silence: result.silence as f64 / 1e6,
        cpu_us: cpu.busy as f64 / 1e3 / result.appends as f64,
    })
}
