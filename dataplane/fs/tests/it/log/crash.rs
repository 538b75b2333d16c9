//! A log in persistent memory keeps every record that was appended, wherever the power fails.
//!
//! 1. A run appends changes of all kinds over several laps of a small ring, while a digest reads
//!    and reclaims. It loses its power at *every* store and every fence. Each time, memory keeps a
//!    random subset of the words that no fence followed.
//! 2. The reader then finds all appended records that the digest does not have, perhaps the one
//!    that was being appended, and nothing else. It sees no damage.
//! 3. The log goes on behind them, under the same epoch, and the power fails again.
//! 4. The same on memory that ignores fences must lose something.

use std::cell::Cell;
use std::rc::Rc;

use sietch_disk::nvm::Medium;
use sietch_fs::Change;
use sietch_fs::inode::{InodeNumber, Timestamp};
use sietch_fs::log::{AppendError, Durability, LogDamage, LogReader, LogWriter, MIN_RING};
use sietch_sim::seeds::{self, Budget};
use sietch_sim::{Memory, Random};

use crate::log::changes::{IDENTITY, Kept, Owned};

/// What survives: the memory, and what a digest knows.
struct World {
    memory: Memory,
    /// Every record that was appended, or was found after a crash.
    records: Vec<Kept>,
    /// The record that was being appended when the power failed.
    in_flight: Option<Kept>,
    /// Position and sequence of the first record that the digest does not have.
    digested: (u64, u64),
    /// Where the next record belongs.
    end: (u64, u64),
}

impl World {
    fn new() -> Self {
        let memory = Memory::new(MIN_RING as usize);
        Self { memory, records: Vec::new(), in_flight: None, digested: (0, 1), end: (0, 1) }
    }

    /// Appends until the power fails, or `appends` times.
    fn run(&mut self, dice: &mut Random, appends: u64) -> Result<(), String> {
        let opened = LogWriter::new(self.memory.clone(), IDENTITY, Durability::Operation);
        let mut writer = opened.map_err(|e| e.to_string())?;
        writer.continue_undigested(self.digested.0, self.end.0, self.end.1);
        for _ in 0..appends {
            let owned = Owned::random(dice, 6000);
            let appended = match owned.append(&mut writer) {
                Ok(appended) => appended,
                Err(AppendError::Full) => {
                    let count = dice.between(1, 30);
                    self.digest(count)?;
                    writer.reclaim(self.digested.0);
                    continue;
                }
                Err(AppendError::Invalid(cause)) => return Err(cause.to_string()),
            };
            let kept = owned.kept(appended.sequence);
            if self.memory.is_off() {
                self.in_flight = Some(kept);
                return Ok(());
            }
            self.records.push(kept);
            self.end = (appended.position.end, appended.sequence + 1);
        }
        Ok(())
    }

    fn reader(&self) -> Result<LogReader<'_, Memory>, String> {
        LogReader::new(&self.memory, IDENTITY, self.digested.0, self.digested.1).map_err(|e| e.to_string())
    }

    fn digest(&mut self, count: u64) -> Result<(), String> {
        let mut reader = self.reader()?;
        for _ in 0..count {
            if reader.next().map_err(|e| e.to_string())?.is_none() {
                break;
            }
        }
        self.digested = (reader.position(), reader.sequence());
        Ok(())
    }

    /// What the reader finds after a crash must be what was promised.
    fn verdict(&mut self) -> Result<(), String> {
        let mut found = Vec::new();
        let mut reader = self.reader()?;
        while let Some(record) = reader.next().map_err(|e| e.to_string())? {
            found.push(Kept::of(&record));
        }
        while !reader.verify_end(4096).map_err(|e| e.to_string())? {}
        self.end = (reader.position(), reader.sequence());
        let in_flight = self.in_flight.take();
        let expected = &self.records[self.digested.1 as usize - 1..];
        let rest = found
            .strip_prefix(expected)
            .ok_or_else(|| format!("{} of {} acknowledged records are left", found.len(), expected.len()))?;
        match rest {
            [] => Ok(()),
            [last] if Some(last) == in_flight.as_ref() => {
                self.records.push(last.clone());
                Ok(())
            }
            others => Err(format!("{} records were never appended: {others:?}", others.len())),
        }
    }
}

/// The first error when the power fails at each boundary of one run, and then at random in two
/// more.
fn every_boundary(seed: u64, faithful: bool) -> Result<(), String> {
    let mut dice = Random::new(seed ^ 0x5eed);
    let life = |boundary: Option<u64>, dice: &mut Random| {
        let mut world = World::new();
        if !faithful {
            world.memory.ignore_fences();
        }
        if let Some(boundary) = boundary {
            world.memory.power_off_at(boundary);
        }
        world.run(&mut Random::new(seed), 60)?;
        let boundaries = world.memory.boundaries();
        if boundary.is_some() {
            world.memory.crash(dice);
            world.verdict()?;
            for _ in 0..2 {
                world.memory.power_off_at(world.memory.boundaries() + dice.between(1, 30));
                world.run(dice, 15)?;
                world.memory.crash(dice);
                world.verdict()?;
            }
        }
        Ok::<u64, String>(boundaries)
    };
    let last = life(None, &mut dice)?;
    assert!(last > 100, "only {last} boundaries: this run tests nothing");
    for boundary in 1..=last {
        life(Some(boundary), &mut dice)
            .map_err(|what| format!("power lost at boundary {boundary}: {what}"))?;
        seeds::explored(3);
    }
    Ok(())
}

#[test]
fn every_acknowledged_record_is_found_wherever_the_power_fails() {
    let budget = Budget { seeds: 40, seconds: 5 };
    seeds::run("it log::crash::every_acknowledged", &[], budget, |seed| {
        if let Err(what) = every_boundary(seed, true) {
            panic!("{what}");
        }
    });
}

#[test]
fn memory_that_ignores_fences_is_caught() {
    let caught = (0..4).filter(|&seed| every_boundary(seed, false).is_err()).count();
    assert_eq!(caught, 4, "only {caught} of 4 runs noticed that no fence worked");
}

/// Memory whose fences do nothing while `ignores` is set.
struct Careless {
    memory: Memory,
    ignores: Rc<Cell<bool>>,
}

impl Medium for Careless {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn load(&self, offset: usize, out: &mut [u8]) {
        self.memory.load(offset, out);
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.memory.store(offset, bytes);
    }

    fn fence(&mut self) {
        if !self.ignores.get() {
            self.memory.fence();
        }
    }

    fn description(&self) -> &'static str {
        "careless"
    }
}

/// What a log begins with, at a place, and how the power fails behind it.
#[derive(Clone, Copy)]
struct Lives {
    start: u64,
    /// The second record is durable, not cut short.
    second_is_durable: bool,
    /// The fence of a restart works.
    restart_is_fenced: bool,
}

impl Lives {
    /// Cuts an append short in front of its fence, restarts and appends another record. Returns the
    /// inodes that the reader finds at last, or nothing if it found the first record in between.
    fn run(self, dice: &mut Random) -> Option<Result<Vec<u64>, LogDamage>> {
        let memory = Memory::new(MIN_RING as usize);
        let ignores = Rc::new(Cell::new(true));
        let life = || {
            let careless = Careless { memory: memory.clone(), ignores: Rc::clone(&ignores) };
            let mut writer = LogWriter::new(careless, IDENTITY, Durability::Operation).expect("a ring");
            writer.continue_undigested(self.start, self.start, 1);
            writer
        };
        let inodes = || {
            let mut reader = LogReader::new(&memory, IDENTITY, self.start, 1).expect("a ring");
            let mut inodes = Vec::new();
            while let Some(record) = reader.next()? {
                match record.change {
                    Change::Write { inode, .. } | Change::Free { inode } => inodes.push(inode.0),
                    other => panic!("{other:?}"),
                }
            }
            Ok(inodes)
        };
        let write = Change::Write { inode: InodeNumber(1), offset: 0, length: 10 };
        life().append(Timestamp::default(), &write, &[7; 10]).expect("room");
        memory.crash(dice);
        if inodes() != Ok(Vec::new()) {
            return None;
        }
        ignores.set(!self.restart_is_fenced);
        let mut writer = life();
        ignores.set(!self.second_is_durable);
        let other = Change::Write { inode: InodeNumber(2), offset: 0, length: 10 };
        let free = Change::Free { inode: InodeNumber(2) };
        let (change, data) = if self.second_is_durable { (free, &[][..]) } else { (other, &[7; 10][..]) };
        writer.append(Timestamp::default(), &change, data).expect("room");
        memory.crash(dice);
        Some(inodes())
    }
}

#[test]
fn the_remains_of_a_record_never_become_whole_after_a_restart() {
    let mut dice = Random::new(1);
    let torn = Lives { start: 0, second_is_durable: false, restart_is_fenced: true };
    for _ in 0..20_000 {
        if let Some(found) = torn.run(&mut dice) {
            assert!(found == Ok(Vec::new()) || found == Ok(vec![2]), "{found:?}");
        }
    }
    // A record at the start of the ring whose pad was lost.
    let wrapped = Lives { start: MIN_RING - 64, second_is_durable: true, restart_is_fenced: true };
    for _ in 0..20_000 {
        if let Some(found) = wrapped.run(&mut dice) {
            assert_eq!(found, Ok(vec![2]));
        }
    }
}

#[test]
fn a_restart_without_its_fence_is_caught() {
    let mut dice = Random::new(1);
    let careless = Lives { start: 0, second_is_durable: false, restart_is_fenced: false };
    let caught = (0..20_000).any(|_| careless.run(&mut dice) == Some(Ok(vec![1])));
    assert!(caught, "the remains never became whole");
}

/// The tests above remove the fence of an append, and that of a restart. The mirror has one behind
/// what it loads, where persistent memory is not needed. Another one would need a test of its own.
#[test]
fn every_fence_is_taken_away_somewhere() {
    let source = include_str!("../../../src/log/writer.rs");
    let fences: Vec<&str> = source.lines().filter(|line| line.contains(".fence()")).map(str::trim).collect();
    assert_eq!(fences, ["self.medium.fence();"; 2]);
}
