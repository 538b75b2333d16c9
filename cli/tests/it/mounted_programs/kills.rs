//! Processes of a served file system are killed at any moment: the service, a mount, a program.
//!
//! 1. Two threads change files, each in a folder of its own, on a mount of its own ([`Writer`]). A
//!    program under the library appends records meanwhile.
//! 2. After some milliseconds one process is killed, and the program too. What ended with it is
//!    started again.
//! 3. What was acknowledged is there, in the order in which it was done: the folder is as after the
//!    last call that returned, or as after the one that did not. A writer whose mount and service
//!    were not killed gets no error.
//!
//! `SIETCH_KILLS` sets the number of rounds.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use sietch_structures::Random;

use super::records::{RECORD, Records, acknowledged, missing};
use super::{Program, Served, Side};
use crate::file_system::Running;

/// Rounds in CI.
const ROUNDS: u64 = 12;
/// Milliseconds from the start of a round to its kill, at most.
const LONGEST: u64 = 60;
/// Files that a writer keeps, and bytes of an append at most.
const FILES: usize = 30;
const MOST: u64 = 20_000;

/// A call that changes a folder.
#[derive(Clone, Debug)]
enum Change {
    Create(String),
    Append(String, Vec<u8>),
    Rename(String, String),
    Remove(String),
}

type Folder = BTreeMap<String, Vec<u8>>;

impl Change {
    /// Makes the call; how many bytes it has written.
    fn perform(&self, folder: &Path) -> io::Result<usize> {
        match self {
            Self::Create(name) => File::create_new(folder.join(name)).map(|_| 0),
            Self::Append(name, bytes) => {
                OpenOptions::new().append(true).open(folder.join(name))?.write(bytes)
            }
            Self::Rename(from, to) => fs::rename(folder.join(from), folder.join(to)).map(|()| 0),
            Self::Remove(name) => fs::remove_file(folder.join(name)).map(|()| 0),
        }
    }

    fn apply(&self, folder: &mut Folder) {
        match self {
            Self::Create(name) => drop(folder.insert(name.clone(), Vec::new())),
            Self::Append(name, bytes) => folder.entry(name.clone()).or_default().extend(bytes),
            Self::Rename(from, to) => {
                let content = folder.remove(from).unwrap_or_default();
                folder.insert(to.clone(), content);
            }
            Self::Remove(name) => drop(folder.remove(name)),
        }
    }
}

/// What one thread has done.
struct Writer {
    mount: &'static str,
    path: PathBuf,
    folder: Folder,
    /// The call that has not returned, or returned an error.
    in_flight: Option<Change>,
    random: Random,
    made: u64,
}

impl Writer {
    fn new(served: &Served, mount: &'static str, name: &str) -> Self {
        let path = served.testbed.folder.join(mount).join(name);
        fs::create_dir(&path).expect("make a folder");
        let random = Random::new(name.len() as u64);
        Self { mount, path, folder: Folder::new(), in_flight: None, random, made: 0 }
    }

    fn draw(&mut self) -> Change {
        let names: Vec<_> = self.folder.keys().cloned().collect();
        let what = self.random.below(10);
        if names.is_empty() || (what < 2 && names.len() < FILES) {
            self.made += 1;
            return Change::Create(format!("f{}", self.made));
        }
        let name = names[self.random.index(names.len())].clone();
        match what {
            0 | 1 => Change::Remove(name),
            2 => {
                self.made += 1;
                Change::Rename(name, format!("f{}", self.made))
            }
            3 => Change::Rename(name, names[self.random.index(names.len())].clone()),
            4 => Change::Remove(name),
            _ => {
                let length = 1 + self.random.below(MOST);
                Change::Append(name, (0..length).map(|_| self.random.below(256) as u8).collect())
            }
        }
    }

    /// Changes files until it is to end, or a call fails.
    fn run(&mut self, is_ending: &AtomicBool) -> io::Result<()> {
        while !is_ending.load(Ordering::Relaxed) {
            let mut change = self.draw();
            self.in_flight = Some(change.clone());
            let written = change.perform(&self.path)?;
            // The kernel passes a write in two parts, and returns the first if the second fails.
            let rest = match &mut change {
                Change::Append(name, bytes) if written < bytes.len() => {
                    Some(Change::Append(name.clone(), bytes.split_off(written)))
                }
                _ => None,
            };
            change.apply(&mut self.folder);
            self.in_flight = rest;
            if self.in_flight.is_some() {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Compares the folder with what was done.
    fn verify(&mut self, round: u64) {
        let mut found = Folder::new();
        for entry in fs::read_dir(&self.path).expect("list the folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("a name");
            found.insert(name, fs::read(entry.path()).expect("read a file"));
        }
        let mut after = self.folder.clone();
        self.in_flight.iter().for_each(|change| change.apply(&mut after));
        // The kernel may pass a write in two parts.
        if let Some(Change::Append(name, _)) = &self.in_flight
            && let (Some(there), Some(whole)) = (found.get(name), after.get(name))
            && there.len() >= self.folder[name].len()
            && whole.starts_with(there)
        {
            after.insert(name.clone(), there.clone());
        }
        let sizes =
            |folder: &Folder| format!("{:?}", folder.iter().map(|(n, c)| (n, c.len())).collect::<Vec<_>>());
        assert!(
            found == self.folder || found == after,
            "round {round}, {}: {:?} was under way\nfound    {}\nexpected {}",
            self.path.display(),
            self.in_flight.take().map(|change| format!("{change:?}").chars().take(80).collect::<String>()),
            sizes(&found),
            sizes(&self.folder),
        );
        (self.folder, self.in_flight) = (found, None);
    }
}

/// Bytes of the kernel's pages.
const PAGE: usize = 4096;
/// The processes that can be killed.
const VICTIMS: [&str; 4] = ["the service", "mnt", "other", "the program"];

struct World {
    served: Served,
    other: Running,
}

impl World {
    fn start() -> Option<Self> {
        let served = Served::start("kills")?;
        fs::create_dir_all(served.testbed.folder.join("other")).expect("make a folder");
        let other = Running::start(&served.testbed, &["mount", "store", "other"]);
        Some(Self { served, other })
    }

    /// Kills a process, and starts again what has ended with it.
    fn kill(&mut self, victim: &str, program: &mut Program) {
        let testbed = &self.served.testbed;
        match victim {
            "the service" => {
                self.served.service.signal(Signal::KILL);
                assert!(!self.served.service.ended() && !self.served.mount.ended() && !self.other.ended());
                self.served.service = Running::start(testbed, &["serve", "store"]);
                self.served.mount = Running::start(testbed, &["mount", "store", "mnt"]);
                self.other = Running::start(testbed, &["mount", "store", "other"]);
            }
            "mnt" => {
                self.served.mount.signal(Signal::KILL);
                assert!(!self.served.mount.ended());
                self.served.mount = Running::start(testbed, &["mount", "store", "mnt"]);
            }
            "other" => {
                self.other.signal(Signal::KILL);
                assert!(!self.other.ended());
                self.other = Running::start(testbed, &["mount", "store", "other"]);
            }
            _ => {}
        }
        program.signal(Signal::KILL);
        program.ended();
    }
}

#[test]
fn no_acknowledged_change_is_lost_wherever_a_process_is_killed() {
    let Some(mut world) = World::start() else { return };
    let rounds = std::env::var("SIETCH_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    let mut random = Random::new(sietch_sim::seeds::first(1));
    let mut writers = [Writer::new(&world.served, "mnt", "a"), Writer::new(&world.served, "other", "bb")];
    for round in 0..rounds {
        let arguments = ["append", "records", "A", "100000000", "-v"];
        let mut program =
            Program::start(&world.served, "program", world.served.records(Side::Library, &arguments));
        let victim = VICTIMS[random.index(VICTIMS.len())];
        let is_ending = AtomicBool::new(false);
        let results = std::thread::scope(|scope| {
            let threads = writers.each_mut().map(|writer| scope.spawn(|| writer.run(&is_ending)));
            std::thread::sleep(Duration::from_millis(random.below(LONGEST)));
            world.kill(victim, &mut program);
            is_ending.store(true, Ordering::Relaxed);
            threads.map(|thread| thread.join().expect("a writer"))
        });
        for (writer, result) in writers.iter_mut().zip(results) {
            let may_fail = victim == "the service" || victim == writer.mount;
            assert!(may_fail || result.is_ok(), "round {round}, {}: {result:?}", writer.mount);
            writer.verify(round);
        }
        let file = world.served.testbed.file("records");
        if file.exists() {
            let mut bytes = fs::read(&file).expect("read the records");
            if bytes.len().is_multiple_of(PAGE) {
                // What the program writes through the kernel is passed in two parts there.
                bytes.truncate(bytes.len() / RECORD * RECORD);
            }
            let there = Records::of(&bytes);
            assert_eq!(missing(&there, &acknowledged(&program)), [], "round {round}, {victim}");
            assert!(there.numbers(b'A').is_sorted(), "in the order of the writes");
            fs::remove_file(&file).expect("remove the records");
        }
    }
    let World { served: Served { mut mount, mut service, testbed }, mut other } = world;
    for process in [&mut mount, &mut other, &mut service] {
        process.signal(Signal::TERM);
        assert!(process.ended(), "it ends in order");
    }
    let check = testbed.run(&["check", "store", "--data"]);
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}
