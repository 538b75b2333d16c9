//! The file system beside the kernel's: operations, filebench's flows, coalescing and recovery.
//!
//! 1. There are two media, each compared with itself alone.
//!    - *Memory* stands in for NVM: ext4 on a loop device over a file in `/dev/shm`, tmpfs,
//!      Sietch through FUSE, and Sietch's client called directly. Without `sync` in a cell's name,
//!      the kernel's file systems acknowledge from their page cache, and Sietch from its log: only
//!      there is it durable, as far as memory is.
//!    - *Disk*: a folder of the machine's disk (ext4 with its journal, as a rule), and Sietch with
//!      a file in the same folder as its SSD, through FUSE and directly. Each write is followed by
//!      `fsync`.
//! 2. Blocks of all subjects alternate, in a rotating order, and each ends when the subject has
//!    nothing left to do: digested, or written back. A round in which a core was slow or much
//!    time was stolen is dropped. Reported are medians over rounds, the longest operation of all
//!    rounds, and the median of the ratios round by round, Sietch's client over the subject.
//! 3. Coalescing is what the digest reports of the flows' blocks, without the making of their
//!    files.
//! 4. Data that move between media, beside what goes on, are measured in runs over time.
//! 5. What a block does is in `operations` and `personality`, recovery in `recovery`, moves in
//!    `migration`, an unmodified program in `programs`.

mod files;
mod migration;
mod mounts;
mod operations;
mod personality;
mod places;
mod programs;
mod random;
mod recovery;
mod report;
mod results;
mod sietch;
mod tally;

use std::cell::Cell as Flag;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sietch_service::fs::ClassName;

use crate::error::{Error, system};
use crate::isolation::{Scratch, interrupted};
use crate::machine::{self, Cpu, SLOW, STOLEN};
use files::{Directory, Files, LATER};
use mounts::{Fuse, Loop};
use operations::{Age, Block, Operation};
use personality::{FileSet, Personality};
use places::{IMAGE, MEDIUM, MEMORY, Removed, kind_of};
pub(crate) use recovery::{WriterArguments, write};
use results::{Cell, Coalesced, Sample, Subject};
use sietch::{AT_ONCE, Native, Store};
use tally::Tally;

/// Rounds of a program at most: one takes minutes.
const PROGRAM_ROUNDS: usize = 3;
/// Threads of a flow, and the more of a cell on disk.
const THREADS: usize = 16;

/// Options of `bench fs`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Arguments {
    /// Rounds of blocks a cell
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds a block; data are read in the log only in the first half second
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Only cells whose name contains this (memory, disk, append, varmail, leveldb, recovery,
    /// migration)
    #[arg(long)]
    only: Option<String>,
    /// MiB of Sietch's log [default: what `sietch fs create` chooses]
    #[arg(long)]
    log: Option<u64>,
    /// Where files are kept: the disk to measure
    #[arg(long)]
    data: Option<PathBuf>,
    /// Where JSON and SVG go
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// What a cell does.
#[derive(Debug, Clone, Copy)]
enum Work {
    One(Operation),
    Flow(Personality),
}

impl Work {
    /// When its changes are durable, if a medium keeps them and `without_sync` is when they are
    /// without `fsync`.
    fn durable(self, without_sync: &'static str) -> &'static str {
        use Operation::{Append, Overwrite, Read};
        match self {
            Self::One(Read { .. }) => "-",
            Self::One(Append { sync: true, .. } | Overwrite { sync: true, .. })
            | Self::Flow(Personality::Varmail)
                if without_sync == LATER =>
            {
                "at fsync"
            }
            _ => without_sync,
        }
    }
}

impl Subject {
    fn of(files: &dyn Files, work: Work) -> Self {
        Self { name: files.name(), durable: work.durable(files.durable()), samples: Vec::new() }
    }
}

/// Runs the comparison.
///
/// # Errors
/// The disk or memory has too little room, a program failed, or the kernel refused something.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    std::fs::create_dir_all(&arguments.out).map_err(system("making the output folder"))?;
    println!("{}", machine::describe());
    println!("{}", machine::absences()?);
    println!(
        "{} rounds of {} s a cell; \"memory\" is DRAM standing in for NVM, without a model of slower memory",
        arguments.rounds, arguments.seconds
    );
    let best = machine::calibrate()?;
    let scratch = Scratch::create(arguments.data.as_deref())?;
    let stop = interrupted()?;
    let log = arguments.log.map(|mib| mib << 20);
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let mut cells = Vec::new();
    for (medium, works) in [("memory", in_memory()), ("disk", on_disk())] {
        let works: Vec<_> = works
            .into_iter()
            .map(|(name, work, threads)| (format!("{medium} {name}"), work, threads))
            .filter(|(name, ..)| wanted(name))
            .collect();
        if works.is_empty() {
            continue;
        }
        let subjects = if medium == "memory" {
            memory_subjects(scratch.path(), log)?
        } else {
            disk_subjects(scratch.path(), log)?
        };
        for (name, work, threads) in works {
            if stop.load(Ordering::Relaxed) {
                return Err(interruption());
            }
            let block = Plan { work, threads, duration: Duration::from_secs_f64(arguments.seconds) };
            let cell = measure(name, &subjects, block, arguments.rounds, &best)?;
            report::progress(&cell);
            cells.push(cell);
        }
    }
    for medium in ["memory", "disk"] {
        if wanted(&format!("{medium} leveldb")) {
            let rounds = arguments.rounds.min(PROGRAM_ROUNDS);
            let found = programs::run(medium, scratch.path(), log, rounds)?;
            found.iter().for_each(report::progress);
            cells.extend(found);
        }
    }
    let recovery = if wanted("recovery") {
        Some(recovery::run(scratch.path(), Path::new(MEMORY), arguments.rounds.min(5))?)
    } else {
        None
    };
    let moving = if wanted("migration") {
        migration::run(scratch.path(), Path::new(MEMORY), arguments.rounds, &arguments.out)?
    } else {
        Vec::new()
    };
    let rest = report::Rest { recovery: recovery.as_ref(), migration: &moving };
    report::print(&cells, rest);
    report::write(&cells, rest, &arguments.out)
}

fn interruption() -> Error {
    Error::Program { program: "bench fs".into(), what: "interrupted".into(), fix: "run it again" }
}

/// Cells: a name, what is done, threads.
type Cells = Vec<(String, Work, usize)>;

fn in_memory() -> Cells {
    use Operation::{Append, Burst, Create, Overwrite, Read, Rename, Unlink};
    let mut works: Vec<(String, Operation)> = Vec::new();
    for (bytes, size) in [(64, "64 B"), (4096, "4 KiB")] {
        works.push((format!("append {size}"), Append { bytes, sync: false }));
        works.push((format!("append {size} in bursts"), Burst { bytes }));
    }
    works.push(("append 4 KiB, sync".into(), Append { bytes: 4096, sync: true }));
    works.push(("overwrite 4 KiB".into(), Overwrite { bytes: 4096, sync: false }));
    for (bytes, size) in [(64, "64 B"), (4096, "4 KiB"), (65_536, "64 KiB")] {
        works.push((format!("read {size}, just written"), Read { bytes, age: Age::New }));
        works.push((format!("read {size}, digested"), Read { bytes, age: Age::Old }));
    }
    works.extend([("create".into(), Create), ("rename".into(), Rename), ("unlink".into(), Unlink)]);
    let mut cells: Cells = works.into_iter().map(|(name, one)| (name, Work::One(one), 1)).collect();
    cells.extend(flows());
    cells
}

fn flows() -> Cells {
    use Personality::{Fileserver, Varmail, Webserver};
    let flow = |name: &str, flow| (format!("{name}, {THREADS} threads"), Work::Flow(flow), THREADS);
    vec![flow("varmail", Varmail), flow("fileserver", Fileserver), flow("webserver", Webserver)]
}

fn on_disk() -> Cells {
    let append = Operation::Append { bytes: 4096, sync: true };
    let overwrite = Operation::Overwrite { bytes: 4096, sync: true };
    let mut cells = Cells::new();
    for threads in [1, THREADS] {
        cells.push((format!("append 4 KiB, sync, {threads} threads"), Work::One(append), threads));
        cells.push((format!("overwrite 4 KiB, sync, {threads} threads"), Work::One(overwrite), threads));
    }
    cells.extend(flows().into_iter().take(1));
    cells
}

/// Of so many bytes a log; the last one is the client.
fn memory_subjects(folder: &Path, log: Option<u64>) -> Result<Vec<Box<dyn Files>>, Error> {
    let id = std::process::id();
    let memory = |what: &str| Path::new(MEMORY).join(format!("sietch-bench-{what}-{id}"));
    let mut subjects: Vec<Box<dyn Files>> = Vec::new();
    match Loop::mount(memory("ext4"), folder.join("ext4-mount"), IMAGE) {
        Ok(mounted) => {
            let point = mounted.point().to_owned();
            subjects.push(Box::new(Directory::open("ext4 on a loop device", LATER, &point, mounted)?));
        }
        Err(cause) => println!("skipped ext4 on a loop device: {cause}"),
    }
    let tmpfs = Removed::create(memory("tmpfs"))?;
    let point = tmpfs.0.clone();
    subjects.push(Box::new(Directory::open("tmpfs", "never", &point, tmpfs)?));
    let store = |what: &str| Store::create(folder.join(what), ClassName::Nvm, memory(what), MEDIUM, log);
    add_sietch(&mut subjects, folder, AT_ONCE, store)?;
    Ok(subjects)
}

fn disk_subjects(folder: &Path, log: Option<u64>) -> Result<Vec<Box<dyn Files>>, Error> {
    let ext4 = Removed::create(folder.join("plain"))?;
    let point = ext4.0.clone();
    let mut subjects: Vec<Box<dyn Files>> =
        vec![Box::new(Directory::open(kind_of(&point)?, LATER, &point, ext4)?)];
    let store = |what: &str| {
        let medium = folder.join(format!("{what}-ssd"));
        Store::create(folder.join(what), ClassName::Ssd, medium, MEDIUM, log)
    };
    add_sietch(&mut subjects, folder, LATER, store)?;
    Ok(subjects)
}

fn add_sietch(
    subjects: &mut Vec<Box<dyn Files>>,
    folder: &Path,
    durable: &'static str,
    store: impl Fn(&str) -> Result<Store, Error>,
) -> Result<(), Error> {
    match Fuse::mount(store("fuse")?, folder.join("fuse-mount")) {
        Ok(mounted) => {
            let point = mounted.point().to_owned();
            subjects.push(Box::new(Directory::open("Sietch through FUSE", durable, &point, mounted)?));
        }
        Err(cause) => println!("skipped Sietch through FUSE: {cause}"),
    }
    let store = store("client")?;
    println!("Sietch's log has {} MiB", store.log_bytes() >> 20);
    subjects.push(Box::new(Native::open("Sietch", durable, store)?));
    Ok(())
}

/// A block of a cell.
#[derive(Debug, Clone, Copy)]
struct Plan {
    work: Work,
    threads: usize,
    duration: Duration,
}

fn measure(
    name: String,
    subjects: &[Box<dyn Files>],
    plan: Plan,
    rounds: usize,
    best: &[u64],
) -> Result<Cell, Error> {
    let mut cell = Cell {
        name,
        subjects: subjects.iter().map(|subject| Subject::of(subject.as_ref(), plan.work)).collect(),
        dropped: 0,
        coalesced: Coalesced::default(),
    };
    // Everything is warm and in place before anything counts.
    for subject in subjects {
        block(subject.as_ref(), Plan { duration: plan.duration / 3, ..plan }, &mut Coalesced::default())?;
    }
    for round in 0..rounds * 2 {
        if cell.subjects[0].samples.len() == rounds {
            break;
        }
        let before = machine::calibrate()?;
        let (begin, cpu) = (Instant::now(), Cpu::read()?);
        let mut samples: Vec<Option<Sample>> = vec![None; subjects.len()];
        for position in 0..subjects.len() {
            let at = (position + round) % subjects.len();
            samples[at] = Some(block(subjects[at].as_ref(), plan, &mut cell.coalesced)?);
        }
        let stolen = Cpu::read()?.since(cpu).stolen as f64 / begin.elapsed().as_nanos() as f64;
        let after = machine::calibrate()?;
        if stolen > STOLEN || machine::slowness(&before, &after, best) > SLOW {
            cell.dropped += 1;
            continue;
        }
        for (subject, sample) in cell.subjects.iter_mut().zip(samples) {
            subject.samples.extend(sample);
        }
    }
    Ok(cell)
}

fn block(files: &dyn Files, plan: Plan, coalesced: &mut Coalesced) -> Result<Sample, Error> {
    let failed = |cause: io::Error| Error::Program {
        program: files.name().into(),
        what: cause.to_string(),
        fix: "see above, and run it again",
    };
    let tally = match plan.work {
        Work::One(operation) => {
            threads(files, plan, |block, ready, tally| operation.run(block, ready, tally))?
        }
        Work::Flow(personality) => {
            let set = FileSet::create(files, personality).map_err(failed)?;
            let before = files.totals();
            let tally = threads(files, plan, |block, ready, tally| set.run(block, ready, tally))?;
            files.settle().map_err(failed)?;
            if let (Some(before), Some(after)) = (before, files.totals()) {
                coalesced.records += after.records - before.records;
                coalesced.records_saved += after.records_saved - before.records_saved;
                coalesced.data += after.data - before.data;
                coalesced.data_saved += after.data_saved - before.data_saved;
            }
            set.remove(files).map_err(failed)?;
            tally
        }
    };
    files.settle().map_err(failed)?;
    if tally.times.is_empty() {
        return Err(failed(io::Error::other("did nothing in a whole block")));
    }
    let at = |part| tally.times.value_at_quantile(part) as f64 / 1e3;
    Ok(Sample {
        rate: tally.times.len() as f64 / tally.elapsed.as_secs_f64(),
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        longest: tally.times.max() as f64 / 1e6,
        cpu: tally.cpu as f64 / 1e3 / tally.times.len() as f64,
    })
}

/// Runs `act` on each thread of a plan. Their clocks start together.
fn threads(
    files: &dyn Files,
    plan: Plan,
    act: impl Fn(&Block<'_>, &dyn Fn(), &mut Tally) -> io::Result<()> + Sync,
) -> Result<Tally, Error> {
    let (act, barrier) = (&act, &Barrier::new(plan.threads));
    let failed = |what: String| Error::Program { program: files.name().into(), what, fix: "see above" };
    let results: Vec<_> = std::thread::scope(|scope| {
        let spawn = |thread| {
            scope.spawn(move || {
                let mut tally = Tally::new()?;
                let is_ready = Flag::new(false);
                let ready = || {
                    is_ready.set(true);
                    barrier.wait();
                };
                let block = Block { files, thread, duration: plan.duration };
                let result = act(&block, &ready, &mut tally);
                // The others wait for one that failed early, too.
                if !is_ready.get() {
                    ready();
                }
                result.map(|()| tally).map_err(|cause| failed(cause.to_string()))
            })
        };
        let running: Vec<_> = (0..plan.threads).map(spawn).collect();
        running.into_iter().map(|thread| thread.join()).collect()
    });
    let mut all = Tally::new()?;
    for result in results {
        all.add(&result.map_err(|_| failed("a thread panicked".into()))??)?;
    }
    Ok(all)
}
