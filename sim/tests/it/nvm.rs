//! A log in persistent memory keeps everything that it has acknowledged, wherever the power fails.
//!
//! 1. A short run (appends of all sizes, a snapshot in the middle, both kinds of durability) loses
//!    its power at *every* store and every fence. Each time, memory keeps a random subset of the
//!    words that no fence followed. Sometimes the power fails again during recovery.
//! 2. The next opening finds a prefix of the appended records, which contains all acknowledged
//!    ones.
//! 3. The same run on memory that ignores fences must lose something.

use sietch_disk::NvmQueue;
use sietch_disk::nvm::Medium as _;
use sietch_persist::{Durability, Entry, FormatOptions, Log, Options};
use sietch_sim::seeds::{self, Budget};
use sietch_sim::{Memory, Random};

/// Bytes of the memory: room for all that a run appends, twice over for its snapshot.
const CAPACITY: usize = 640 << 10;

/// Appends, in groups; each payload is unique.
struct Run {
    memory: Memory,
    appended: Vec<Vec<u8>>,
    acknowledged: usize,
}

type NvmLog = Log<NvmQueue<Memory>>;

fn payload(index: usize, dice: &mut Random) -> Vec<u8> {
    let length = match dice.below(10) {
        0 => dice.between(2000, 20_000) as usize,
        1..4 => dice.between(8, 25) as usize,
        _ => dice.between(8, 400) as usize,
    };
    let mut bytes = vec![0; length];
    dice.fill(&mut bytes);
    bytes[..8].copy_from_slice(&(index as u64).to_le_bytes());
    bytes
}

/// Opens the log and returns what it holds.
fn open(memory: &Memory, durability: Durability) -> Result<(NvmLog, Vec<Vec<u8>>), String> {
    let mut found = Vec::new();
    let options = Options { durability, ..Options::default() };
    let queue = NvmQueue::over(memory.clone(), None);
    let opened = Log::open(queue, options, &mut |entry| {
        let (Entry::Snapshot(bytes) | Entry::Record(_, bytes)) = entry;
        found.push(bytes.to_vec());
        Ok(())
    });
    opened.map(|(log, _)| (log, found)).map_err(|e| e.to_string())
}

impl Run {
    /// Runs until the end or until the power fails at boundary `off`.
    fn new(seed: u64, off: Option<u64>, faithful: bool) -> Result<Self, String> {
        let mut dice = Random::new(seed);
        let memory = Memory::new(CAPACITY);
        let durability = if dice.chance(500) { Durability::Always } else { Durability::Deferred };
        let mut formatted = NvmQueue::over(memory.clone(), None);
        Log::format(&mut formatted, FormatOptions::new(u128::from(seed) + 1)).map_err(|e| e.to_string())?;
        if !faithful {
            memory.ignore_fences();
        }
        let mut run = Self { memory, appended: Vec::new(), acknowledged: 0 };
        let (mut log, _) = open(&run.memory, durability)?;
        if let Some(boundary) = off {
            run.memory.power_off_at(boundary);
        }
        let mut sequences = Vec::new();
        for round in 0..8 {
            if round == 4 {
                run.snapshot(&mut log)?;
            }
            for _ in 0..dice.between(1, 4) {
                let bytes = payload(run.appended.len(), &mut dice);
                sequences.push(log.append(&bytes).map_err(|e| e.to_string())?);
                run.appended.push(bytes);
            }
            log.submit().map_err(|e| e.to_string())?;
            if durability == Durability::Deferred && dice.chance(700) {
                log.flush().map_err(|e| e.to_string())?;
            }
            let durable = log.poll().map_err(|e| e.to_string())?;
            if run.memory.is_off() {
                return Ok(run);
            }
            run.acknowledged = sequences.partition_point(|&sequence| sequence <= durable);
        }
        Ok(run)
    }

    fn snapshot(&self, log: &mut NvmLog) -> Result<(), String> {
        log.begin_snapshot().map_err(|e| e.to_string())?;
        for bytes in &self.appended {
            log.snapshot_append(bytes).map_err(|e| e.to_string())?;
        }
        log.finish_snapshot().map_err(|e| e.to_string())?;
        while log.is_snapshotting() && !self.memory.is_off() {
            log.poll().map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Restores the power, perhaps with another failure during recovery; then the log must hold
    /// what was promised.
    fn verdict(self, dice: &mut Random) -> Result<(), String> {
        self.memory.crash(dice);
        if dice.chance(300) {
            self.memory.power_off_at(self.memory.boundaries() + dice.between(1, 6));
            drop(open(&self.memory, Durability::Always)?);
            self.memory.crash(dice);
        }
        let (_, found) = open(&self.memory, Durability::Always)?;
        if found.len() < self.acknowledged {
            return Err(format!("{} of {} acknowledged payloads are left", found.len(), self.acknowledged));
        }
        if !self.appended.starts_with(&found) {
            return Err(format!("{} payloads are no prefix of what was appended", found.len()));
        }
        Ok(())
    }
}

/// The first error when the power fails at each boundary of one run.
fn every_boundary(seed: u64, faithful: bool) -> Result<(), String> {
    let mut dice = Random::new(seed ^ 0x5eed);
    let first = Run::new(seed, Some(0), faithful)?.memory.boundaries().saturating_sub(1);
    let last = Run::new(seed, None, faithful)?.memory.boundaries();
    assert!(last > 20, "only {last} boundaries: this run tests nothing");
    for boundary in first.min(last)..=last {
        for _ in 0..3 {
            let run = Run::new(seed, Some(boundary), faithful)?;
            seeds::explored(1);
            run.verdict(&mut dice).map_err(|what| format!("power lost at boundary {boundary}: {what}"))?;
        }
    }
    Ok(())
}

#[test]
fn nothing_acknowledged_is_lost_wherever_the_power_fails() {
    seeds::run("it nvm::nothing_acknowledged", &[], Budget { seeds: 40, seconds: 8 }, |seed| {
        if let Err(what) = every_boundary(seed, true) {
            panic!("{what}");
        }
    });
}

#[test]
fn memory_that_ignores_fences_is_caught() {
    let caught = (0..4).filter(|&seed| every_boundary(seed, false).is_err()).count();
    assert!(caught >= 3, "only {caught} of 4 runs noticed that no fence worked");
}

/// The queue over persistent memory has one fence, which the test above removes. A second fence
/// would need a mutation of its own.
#[test]
fn every_fence_of_the_queue_is_taken_away_somewhere() {
    let source = include_str!("../../../device/disk/src/nvm.rs");
    let fences: Vec<&str> = source.lines().filter(|line| line.contains(".fence()")).map(str::trim).collect();
    assert_eq!(fences, ["self.medium.fence();"]);
}

/// What is joined loses its power at one boundary, and gets it back.
#[test]
fn joined_memories_lose_their_power_together() {
    let first = Memory::new(64);
    let mut second = Memory::new(64).joined(&first);
    let mut writer = first.clone();
    first.power_off_at(1);
    second.store(0, &[1; 8]);
    second.fence();
    writer.store(0, &[1; 8]);
    assert!(first.is_off() && second.is_off());
    second.store(0, &[2; 8]);
    second.fence();
    let mut dice = Random::new(1);
    first.crash(&mut dice);
    second.crash(&mut dice);
    let mut found = [[0; 8]; 2];
    first.load(0, &mut found[0]);
    second.load(0, &mut found[1]);
    assert_eq!((found, first.is_off()), ([[0; 8], [1; 8]], false));
}
