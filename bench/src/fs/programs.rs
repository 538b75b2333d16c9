//! An unmodified program on each file system: LevelDB, built here from `leveldb.cc` and the
//! installed library.
//!
//! 1. The same program runs in a folder of each subject. Sietch is shown twice: through FUSE, and
//!    under `sietch run --fs`. Both use one served file system, as a user would have it.
//! 2. One run of the program is one sample of each of its phases. Runs alternate, in a rotating
//!    order.
//! 3. LevelDB checks what it reads, so a wrong byte ends the measurement.

use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};
use sietch_service::fs::ClassName;

use super::files::LATER;
use super::mounts::Loop;
use super::places::{IMAGE, MEDIUM, MEMORY, Removed, kind_of};
use super::results::{Cell, Coalesced, Sample, Subject};
use super::sietch::{AT_ONCE, Store};
use crate::error::{Error, system};
use crate::process::{self, Process, sietch_program};

/// The program's source.
const SOURCE: &str = include_str!("programs/leveldb.cc");
/// Records of a database, and those that are written with a sync each.
const RECORDS: &str = "300000";
const SYNCED: &str = "1000";
/// The program's phases, and whether each of their writes is synchronised.
const PHASES: [(&str, bool); 5] = [
    ("fill", false),
    ("random-fill", false),
    ("overwrite", false),
    ("random-read", false),
    ("sync-fill", true),
];

/// A file system that a process serves and another one mounts.
struct Served {
    point: PathBuf,
    /// Dropped in this order.
    _mount: Process,
    _service: Process,
    _store: Store,
}

impl Served {
    fn mount(store: Store, point: PathBuf) -> Result<Self, Error> {
        std::fs::create_dir_all(&point).map_err(system("making a mount point"))?;
        let program = sietch_program()?.display().to_string();
        let folder = store.folder().to_owned();
        let log = |what: &str| folder.join(format!("{what}.log"));
        let serve = ["fs".as_ref(), "serve".as_ref(), folder.as_os_str()];
        let mut service = Process::start(&program, &serve, &log("serve"))?;
        service.wait_for_file(&folder.join("socket"))?;
        let mount = ["fs".as_ref(), "mount".as_ref(), folder.as_os_str(), point.as_os_str()];
        let before = device_of(&point)?;
        let mut mount = Process::start(&program, &mount, &log("mount"))?;
        mount.wait_until("mounted nothing", || device_of(&point).is_ok_and(|now| now != before))?;
        Ok(Self { point, _mount: mount, _service: service, _store: store })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Where its process was killed; else there is nothing to unmount later.
        let _ = unmount(&self.point, UnmountFlags::DETACH);
    }
}

fn device_of(path: &Path) -> Result<u64, Error> {
    Ok(rustix::fs::stat(path).map_err(system("reading a mount point"))?.st_dev)
}

/// Where the program runs, and how it is started.
struct Place {
    name: &'static str,
    durable: &'static str,
    folder: PathBuf,
    prefix: Vec<String>,
}

impl Place {
    fn run(&self, program: &Path) -> Result<Vec<Sample>, Error> {
        let folder = self.folder.join("leveldb").display().to_string();
        let mut words = self.prefix.clone();
        words.extend([program.display().to_string(), folder, RECORDS.into(), SYNCED.into()]);
        let (first, rest) = words.split_first().ok_or_else(nothing)?;
        let printed = process::output(first, rest)?;
        PHASES.iter().map(|(phase, _)| sample(phase, &printed).ok_or_else(nothing)).collect()
    }
}

fn nothing() -> Error {
    Error::Program {
        program: "leveldb".into(),
        what: "did not print what it measured".into(),
        fix: "see bench/src/fs/programs/leveldb.cc",
    }
}

/// The line of a phase.
fn sample(phase: &str, printed: &str) -> Option<Sample> {
    let mut words = printed.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(phase)).then_some(words)
    })?;
    let mut number = || words.next()?.parse::<f64>().ok();
    let (operations, seconds) = (number()?, number()?);
    let [p50, p99, p999, longest] = [number()?, number()?, number()?, number()?];
    Some(Sample {
        rate: operations / seconds,
        p50: p50 / 1e3,
        p99: p99 / 1e3,
        p999: p999 / 1e3,
        longest: longest / 1e6,
        cpu: 0.0,
    })
}

/// Measures on a medium. `None`, and a line that says why: there is no LevelDB to build with.
///
/// # Errors
/// A program failed, or there is no room.
pub(super) fn run(medium: &str, folder: &Path, log: Option<u64>, rounds: usize) -> Result<Vec<Cell>, Error> {
    let program = match build(folder) {
        Ok(program) => program,
        Err(cause) => {
            println!("skipped leveldb (Debian: apt install g++ libleveldb-dev): {cause}");
            return Ok(Vec::new());
        }
    };
    let id = std::process::id();
    let memory = |what: &str| Path::new(MEMORY).join(format!("sietch-bench-{what}-{id}"));
    let is_memory = medium == "memory";
    let mut kept: Vec<Box<dyn std::any::Any>> = Vec::new();
    let mut places = Vec::new();
    let plain = |name, durable, folder| Place { name, durable, folder, prefix: Vec::new() };
    if is_memory {
        match Loop::mount(memory("program-ext4"), folder.join("program-ext4"), IMAGE) {
            Ok(mounted) => {
                places.push(plain("ext4 on a loop device", LATER, mounted.point().to_owned()));
                kept.push(Box::new(mounted));
            }
            Err(cause) => println!("skipped ext4 on a loop device: {cause}"),
        }
    }
    let beside = if is_memory { memory("program-tmpfs") } else { folder.join("program-plain") };
    let beside = Removed::create(beside)?;
    let (name, durable) = if is_memory { ("tmpfs", "never") } else { (kind_of(&beside.0)?, LATER) };
    places.push(plain(name, durable, beside.0.clone()));
    kept.push(Box::new(beside));
    let (class, file) = if is_memory {
        (ClassName::Nvm, memory("program"))
    } else {
        (ClassName::Ssd, folder.join("program-ssd"))
    };
    let durable = if is_memory { AT_ONCE } else { LATER };
    let store = Store::create(folder.join("program"), class, file, MEDIUM, log)?;
    let served = Served::mount(store, folder.join("program-mount"))?;
    places.push(plain("Sietch through FUSE", durable, served.point.clone()));
    let sietch = sietch_program()?.display().to_string();
    let point = served.point.display().to_string();
    let prefix = vec![sietch, "run".into(), "--fs".into(), point, "--".into()];
    places.push(Place { name: "Sietch", durable, folder: served.point.clone(), prefix });
    kept.push(Box::new(served));
    alternate(medium, &program, &places, rounds)
}

fn alternate(medium: &str, program: &Path, places: &[Place], rounds: usize) -> Result<Vec<Cell>, Error> {
    let subject = |place: &Place, is_synced: bool| Subject {
        name: place.name,
        durable: if is_synced && place.durable == LATER { "at sync" } else { place.durable },
        samples: Vec::new(),
    };
    let cell = |(phase, is_synced): &(&str, bool)| Cell {
        name: format!("{medium} leveldb {phase}"),
        subjects: places.iter().map(|place| subject(place, *is_synced)).collect(),
        dropped: 0,
        coalesced: Coalesced::default(),
    };
    let mut cells: Vec<Cell> = PHASES.iter().map(cell).collect();
    for round in 0..rounds {
        for position in 0..places.len() {
            let at = (position + round) % places.len();
            for (cell, sample) in cells.iter_mut().zip(places[at].run(program)?) {
                cell.subjects[at].samples.push(sample);
            }
        }
    }
    Ok(cells)
}

/// Builds the program in `folder`.
fn build(folder: &Path) -> Result<PathBuf, Error> {
    let (source, program) = (folder.join("leveldb.cc"), folder.join("leveldb"));
    std::fs::write(&source, SOURCE).map_err(system("writing a program"))?;
    let words =
        ["-O2".as_ref(), "-o".as_ref(), program.as_os_str(), source.as_os_str(), "-lleveldb".as_ref()];
    process::output("c++", &words)?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_program_is_a_sample() {
        let printed = "fill 300000 2.5 1000 2000 3000 4000000\noverwrite 10 1 1 1 1 1\n";
        let found = sample("fill", printed).expect("a line");
        assert_eq!((found.rate, found.p50, found.p999, found.longest), (120_000.0, 1.0, 3.0, 4.0));
        assert!(sample("sync-fill", printed).is_none());
        assert!(sample("fill", "fill 300000 2.5 1000 2000\n").is_none());
    }
}
