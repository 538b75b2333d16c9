//! The fault matrix of storage: every fault of a disk against every structure, each with the
//! outcome that `docs/spec/storage-faults.md` promises.
//!
//! 1. A structure stores numbers, one after another, each durable before the next. They are records
//!    of a log, entries of a queue, keys of a map, or areas of a volume. So the recovered numbers
//!    must be 0, 1, 2, ... up to some number, no smaller than the last acknowledged one.
//! 2. One request meets the fault: a write, a flush, or a read of the recovery. The fault is tried
//!    at many places, and at some of them the structure must report it.
//! 3. [`MATRIX`] has the outcome of each cell; the page must use the same words.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use sietch_disk::{Completion, DiskQueue, Operation, Priority, SubmitError};
use sietch_persist::{Entry, FormatOptions, Log, Map, Options, Queue, QueueOptions};
use sietch_sim::disk::{Fault as Lie, Options as DiskOptions, SimDisk};
use sietch_sim::{Crash, Media, Random};
use sietch_volume::Volume;

const CAPACITY: usize = 16384 + 24 * 16384;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Structure {
    Log,
    Queue,
    Map,
    Volume,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A write fails.
    Write(i32),
    /// A flush fails.
    Flush(i32),
    BitRot,
    Misdirected,
    Lost,
    Slow,
    /// A block cannot be read during a recovery.
    Read,
}

/// The outcome of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The request and every later one fail with the reason; everything acknowledged is found
    /// again.
    Stops,
    /// As before. But if zeros cannot be written or flushed, only that request is refused, and the
    /// volume continues.
    StopsOrRefuses,
    /// Opening names the missing data and their location, or everything is there.
    Named,
    /// Everything is done in the end.
    Waits,
    /// Opening fails and names the read, or did not need it; the next opening finds everything.
    OpensLater,
}

impl Outcome {
    /// As in the page.
    const fn words(self) -> &'static str {
        match self {
            Self::Stops => "stops",
            Self::StopsOrRefuses => "stops, or refuses",
            Self::Named => "named",
            Self::Waits => "waits",
            Self::OpensLater => "opens later",
        }
    }
}

const STRUCTURES: [Structure; 4] = [Structure::Log, Structure::Queue, Structure::Map, Structure::Volume];

/// The table of the page: the fault, its name there, and the outcome in each structure.
const MATRIX: [(Fault, &str, [Outcome; 4]); 9] = {
    use Outcome::{Named, OpensLater, Stops, StopsOrRefuses, Waits};
    [
        (Fault::Write(EIO), "a write fails (EIO)", [Stops, Stops, Stops, StopsOrRefuses]),
        (Fault::Write(ENOSPC), "a write fails (ENOSPC)", [Stops, Stops, Stops, StopsOrRefuses]),
        (Fault::Flush(EIO), "a flush fails (EIO)", [Stops, Stops, Stops, StopsOrRefuses]),
        (Fault::Flush(ENOSPC), "a flush fails (ENOSPC)", [Stops, Stops, Stops, StopsOrRefuses]),
        (Fault::BitRot, "bits rot", [Named, Named, Named, Named]),
        (Fault::Misdirected, "a write lands elsewhere", [Named, Named, Named, Named]),
        (Fault::Lost, "a write is lost", [Named, Named, Named, Named]),
        (Fault::Slow, "the disk is slow", [Waits, Waits, Waits, Waits]),
        (Fault::Read, "a read of the recovery fails (EIO)", [OpensLater, OpensLater, OpensLater, OpensLater]),
    ]
};

/// Which request of a kind fails, and the requests counted so far.
#[derive(Default)]
struct Plan {
    flush: Option<(u64, i32)>,
    read: Option<(u64, i32)>,
    /// A block that cannot be read: the first of the read that failed.
    unreadable: Option<(u64, i32)>,
    writes: u64,
    flushes: u64,
    reads: u64,
}

/// A disk on which one flush fails, or one block cannot be read.
struct Failing {
    disk: SimDisk,
    plan: Rc<RefCell<Plan>>,
    broken: Vec<(u64, i32)>,
}

impl Failing {
    fn new(disk: SimDisk, plan: &Rc<RefCell<Plan>>) -> Self {
        Self { disk, plan: Rc::clone(plan), broken: Vec::new() }
    }
}

impl DiskQueue for Failing {
    fn capacity(&self) -> u64 {
        self.disk.capacity()
    }

    fn block_size(&self) -> usize {
        self.disk.block_size()
    }

    fn physical_block_size(&self) -> usize {
        self.disk.physical_block_size()
    }

    fn depth(&self) -> usize {
        self.disk.depth()
    }

    fn submit_with(
        &mut self,
        token: u64,
        operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        let plan = &mut *self.plan.borrow_mut();
        let fails = match &operation {
            Operation::Flush => {
                plan.flushes += 1;
                plan.flush.filter(|(nth, _)| *nth == plan.flushes)
            }
            Operation::Read { .. } | Operation::ReadVectored { .. } => {
                plan.reads += 1;
                if let Some((_, errno)) = plan.read.filter(|(nth, _)| *nth == plan.reads) {
                    plan.unreadable = Some((operation.offset() / 4096 * 4096, errno));
                }
                let range = operation.offset()..operation.offset() + operation.bytes();
                plan.unreadable.filter(|(block, _)| *block < range.end && range.start < block + 4096)
            }
            _ => {
                plan.writes += 1;
                None
            }
        };
        self.disk.submit_with(token, operation, priority)?;
        self.broken.extend(fails.map(|(_, errno)| (token, errno)));
        Ok(())
    }

    fn notify(&mut self) -> io::Result<()> {
        self.disk.notify()
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        self.disk.complete(out);
        for completion in &mut out[before..] {
            if let Some(at) = self.broken.iter().position(|(token, _)| *token == completion.token) {
                completion.result = Err(io::Error::from_raw_os_error(self.broken.swap_remove(at).1));
            }
        }
        out.len() - before
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.disk.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.disk.in_flight()
    }
}

/// Every failure gives its reason, in words.
type Said<T> = Result<T, String>;

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// An open structure, and the numbers that were found in it.
enum Opened {
    Log(Box<Log<Failing>>),
    Queue(Box<Queue<Failing>>),
    Map(Box<Map<Failing>>),
    Volume(Box<(Volume, Failing)>),
}

fn number(bytes: &[u8]) -> Said<u64> {
    bytes
        .get(..8)
        .and_then(|bytes| bytes.try_into().ok())
        .map(u64::from_le_bytes)
        .ok_or("no number".to_owned())
}

fn payload(n: u64) -> Vec<u8> {
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.resize(8 + (n * 331 % 700) as usize, n as u8);
    bytes
}

fn format(structure: Structure, disk: &mut SimDisk) {
    let options = FormatOptions::new(77);
    match structure {
        Structure::Log => Log::format(disk, options).expect("large enough"),
        Structure::Queue => Queue::format(disk, options).expect("large enough"),
        Structure::Map => Map::format(disk, options).expect("large enough"),
        // A journal of a few records: checkpoints are frequent.
        Structure::Volume => {
            let options = sietch_volume::FormatOptions { identity: 77, half_bytes: Some(4 * 4096) };
            Volume::format(disk, options).expect("large enough");
        }
    }
}

impl Opened {
    fn open(structure: Structure, mut disk: Failing) -> Said<(Self, Vec<u64>)> {
        let mut found = Vec::new();
        let opened = match structure {
            Structure::Log => {
                let (log, _) = Log::open(disk, Options::default(), &mut |entry| {
                    let (Entry::Record(_, bytes) | Entry::Snapshot(bytes)) = entry;
                    let n = number(bytes)?;
                    found.push(n);
                    if bytes == payload(n) { Ok(()) } else { Err("an invented record".into()) }
                })
                .map_err(said)?;
                Self::Log(Box::new(log))
            }
            Structure::Queue => {
                let (queue, _) = Queue::open(disk, QueueOptions::default()).map_err(said)?;
                for (_, bytes, _) in queue.iter() {
                    found.push(number(bytes)?);
                    assert!(bytes == payload(number(bytes)?), "an invented entry");
                }
                Self::Queue(Box::new(queue))
            }
            Structure::Map => {
                let (map, _) = Map::open(disk, Options::default()).map_err(said)?;
                for (key, value) in map.iter() {
                    found.push(number(key)?);
                    assert!(value == payload(number(key)?), "an invented value");
                }
                Self::Map(Box::new(map))
            }
            Structure::Volume => {
                let volume = Volume::open(&mut disk).map_err(said)?;
                found.extend(volume.areas().filter_map(|area| area.name.parse::<u64>().ok()));
                Self::Volume(Box::new((volume, disk)))
            }
        };
        found.sort_unstable();
        Ok((opened, found))
    }

    /// Stores number `n` and waits until it is durable.
    fn take(&mut self, n: u64) -> Said<()> {
        match self {
            Self::Log(log) => {
                let sequence = log.append(&payload(n)).map_err(said)?;
                log.submit().map_err(said)?;
                while log.poll().map_err(said)? < sequence {}
            }
            Self::Queue(queue) => {
                let sequence = queue.send(&payload(n)).map_err(said)?;
                while queue.poll(0).map_err(said)? < sequence {}
            }
            Self::Map(map) => {
                let sequence = map.put(&n.to_le_bytes(), &payload(n)).map_err(said)?;
                while map.poll().map_err(said)? < sequence {}
            }
            Self::Volume(both) => {
                let (volume, disk) = &mut **both;
                volume.create(disk, &n.to_string(), 1, 4096).map_err(said)?;
            }
        }
        Ok(())
    }
}

/// Lets time pass until all durable data are proven.
fn rest(opened: &mut Opened) -> Said<()> {
    for now in [0, 10_000_000_000] {
        for _ in 0..20 {
            match opened {
                Opened::Log(log) => {
                    log.write_due_proof(now).and_then(|()| log.poll()).map(drop).map_err(said)?
                }
                Opened::Queue(queue) => queue.poll(now).map(drop).map_err(said)?,
                Opened::Map(map) => {
                    map.write_due_proof(now).and_then(|()| map.poll()).map(drop).map_err(said)?
                }
                Opened::Volume(_) => {}
            }
        }
    }
    Ok(())
}

/// The result of a run.
struct Run {
    media: Media,
    plan: Rc<RefCell<Plan>>,
    acknowledged: u64,
    /// The failure, and where it was reported.
    failures: Vec<(u64, String)>,
}

/// Stores `count` numbers, in two runs, on a disk with `fault` at the `nth` request of its kind.
fn run(structure: Structure, fault: Option<(Fault, u64)>, count: u64) -> Run {
    let patience = if matches!(fault, Some((Fault::Slow, _))) { 60 } else { 2 };
    let options = DiskOptions { patience, ..DiskOptions::new(CAPACITY) };
    let media = Media::new(options, Random::new(count));
    format(structure, &mut media.open());
    let plan = Rc::new(RefCell::new(Plan::default()));
    match fault {
        Some((Fault::Write(errno), nth)) => media.inject(nth, Lie::Error(errno)),
        Some((Fault::BitRot, nth)) => media.inject(nth, Lie::BitRot),
        Some((Fault::Misdirected, nth)) => media.inject(nth, Lie::Misdirected(20_480)),
        Some((Fault::Lost, nth)) => media.inject(nth, Lie::Lost),
        Some((Fault::Flush(errno), nth)) => plan.borrow_mut().flush = Some((nth, errno)),
        _ => {}
    }
    let mut run = Run { media, plan, acknowledged: 0, failures: Vec::new() };
    for life in 0..2 {
        let disk = Failing::new(run.media.open(), &run.plan);
        let mut opened = match Opened::open(structure, disk) {
            Ok((opened, found)) => {
                // Nothing proves that the last change of a volume was there: the one exception of
                // the page.
                if structure == Structure::Volume
                    && found.len() as u64 + 1 == run.acknowledged
                    && found.iter().copied().eq(0..run.acknowledged - 1)
                {
                    run.acknowledged -= 1;
                }
                opened
            }
            Err(error) => {
                run.failures.push((run.acknowledged, error));
                break;
            }
        };
        for n in run.acknowledged..count * (life + 1) / 2 {
            match opened.take(n) {
                Ok(()) if run.failures.is_empty() || structure == Structure::Volume => run.acknowledged += 1,
                Ok(()) => panic!("{structure:?}: {n} was acknowledged after {:?}", run.failures),
                Err(error) => {
                    run.failures.push((n, error));
                    // A volume may continue: the same number again.
                    if opened.take(n).is_ok() {
                        assert_eq!(structure, Structure::Volume);
                        run.acknowledged += 1;
                    }
                }
            }
        }
        if !run.failures.is_empty() {
            break;
        }
        if let Err(error) = rest(&mut opened) {
            run.failures.push((run.acknowledged, error));
            break;
        }
    }
    run
}

/// Whether the found numbers are 0, 1, 2, ... and include every acknowledged one.
fn holds(found: &[u64], acknowledged: u64) -> Result<(), String> {
    let whole = found.iter().copied().eq(0..found.len() as u64);
    if whole && found.len() as u64 >= acknowledged {
        return Ok(());
    }
    Err(format!("{acknowledged} were acknowledged, found {found:?}"))
}

fn reopen(structure: Structure, run: &Run) -> Said<Vec<u64>> {
    Opened::open(structure, Failing::new(run.media.open(), &run.plan)).map(|(_, found)| found)
}

/// One cell at one place. `true`: the fault was reported.
fn cell(structure: Structure, fault: Fault, outcome: Outcome, nth: u64, count: u64) -> Result<bool, String> {
    let run = run(structure, Some((fault, nth)), count);
    match outcome {
        Outcome::Stops | Outcome::StopsOrRefuses => {
            let (Fault::Write(errno) | Fault::Flush(errno)) = fault else { return Err("no error".into()) };
            run.media.crash(Crash::Random(Random::new(nth)));
            let Some((_, first)) = run.failures.first() else { return Ok(false) };
            if !first.contains(&format!("os error {errno}")) {
                return Err(format!("an unclear error: {first}"));
            }
            if outcome == Outcome::Stops && run.failures.iter().any(|(_, later)| later != first) {
                return Err(format!("it changed its mind: {:?}", run.failures));
            }
            holds(&reopen(structure, &run)?, run.acknowledged)?;
            Ok(true)
        }
        Outcome::Named => {
            run.media.crash(Crash::Nothing);
            if let Some((_, failure)) = run.failures.first() {
                // The second run met it.
                return if failure.contains("offset") { Ok(true) } else { Err(failure.clone()) };
            }
            match reopen(structure, &run) {
                Ok(found) => holds(&found, run.acknowledged).map(|()| false),
                Err(named) if named.contains("offset") => Ok(true),
                Err(other) => Err(other),
            }
        }
        Outcome::Waits => {
            run.media.crash(Crash::Nothing);
            if let Some(failure) = run.failures.first() {
                return Err(format!("{failure:?}"));
            }
            holds(&reopen(structure, &run)?, count).map(|()| true)
        }
        Outcome::OpensLater => {
            run.media.crash(Crash::Nothing);
            let reads = run.plan.borrow().reads;
            run.plan.borrow_mut().read = Some((reads + nth, EIO));
            let reported = match reopen(structure, &run) {
                Ok(found) => holds(&found, run.acknowledged).map(|()| false)?,
                Err(error) if error.contains("os error 5") && error.contains("read") => true,
                Err(error) => return Err(format!("an unclear error: {error}")),
            };
            (run.plan.borrow_mut().read, run.plan.borrow_mut().unreadable) = (None, None);
            holds(&reopen(structure, &run)?, run.acknowledged).map_err(|e| format!("later: {e}"))?;
            Ok(reported)
        }
    }
}

/// How many places of a fault are tried. Some writes must follow each tried write, or nothing would
/// prove that it was there.
fn places(structure: Structure, fault: Fault, count: u64) -> u64 {
    let whole = run(structure, None, count);
    let plan = whole.plan.borrow();
    match fault {
        Fault::Flush(_) => plan.flushes,
        Fault::Read => 12,
        Fault::Slow => 1,
        // The last record of a volume cannot be proven, and the write before it is of zeros.
        _ if structure == Structure::Volume => plan.writes - 2,
        _ => plan.writes,
    }
}

#[test]
fn every_fault_has_its_outcome_in_every_structure() {
    let mut wrong = Vec::new();
    for (fault, name, outcomes) in MATRIX {
        for (structure, outcome) in STRUCTURES.into_iter().zip(outcomes) {
            let count = 36;
            let (mut reported, places) = (0, places(structure, fault, count));
            for nth in 1..=places {
                match cell(structure, fault, outcome, nth, count) {
                    Ok(reports) => reported += u64::from(reports),
                    Err(error) => wrong.push(format!("{structure:?}, {name}, place {nth}: {error}")),
                }
            }
            if reported == 0 {
                wrong.push(format!("{structure:?}: {name} never reported at any of {places} places"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The page promises what is tested here, cell by cell.
#[test]
fn the_page_has_the_rows_of_the_tested_matrix() {
    let page = include_str!("../../../docs/spec/storage-faults.md");
    for (_, name, outcomes) in MATRIX {
        let cells: Vec<&str> = outcomes.iter().map(|outcome| outcome.words()).collect();
        let row = format!("| {name} | {} |", cells.join(" | "));
        assert!(page.lines().any(|line| line == row), "docs/spec/storage-faults.md lacks the row: {row}");
    }
}
