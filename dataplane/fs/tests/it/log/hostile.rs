//! A log whose writer is hostile, or whose medium is damaged.

use std::cell::RefCell;

use sietch_disk::nvm::Medium;
use sietch_fs::Change;
use sietch_fs::inode::{InodeNumber, Timestamp};
use sietch_fs::log::{Durability, LINE, LogDamage, LogReader, LogWriter, MIN_RING};
use sietch_sim::{Memory, Random};

use crate::log::changes::{IDENTITY, Kept, Owned};

/// Memory that another process changes between any two loads, and that counts what is loaded.
struct Restless {
    memory: Memory,
    dice: RefCell<Random>,
    loaded: RefCell<usize>,
    /// In a thousand loads, those that find a changed byte.
    changes: u32,
}

impl Restless {
    fn new(memory: Memory, seed: u64, changes: u32) -> Self {
        Self { memory, dice: RefCell::new(Random::new(seed)), loaded: RefCell::new(0), changes }
    }
}

impl Medium for Restless {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn load(&self, offset: usize, out: &mut [u8]) {
        self.memory.load(offset, out);
        let mut dice = self.dice.borrow_mut();
        if !out.is_empty() && dice.chance(self.changes) {
            let byte = dice.index(out.len().min(LINE));
            out[byte] = dice.word() as u8;
        }
        *self.loaded.borrow_mut() += out.len();
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.memory.store(offset, bytes);
    }

    fn fence(&mut self) {
        self.memory.fence();
    }

    fn description(&self) -> &'static str {
        "restless"
    }
}

/// A log that is full of records, and what they are.
fn full(dice: &mut Random) -> (Memory, Vec<(Kept, std::ops::Range<u64>)>) {
    let memory = Memory::new(MIN_RING as usize);
    let mut writer = LogWriter::new(memory.clone(), IDENTITY, Durability::Operation).expect("a ring");
    let mut records = Vec::new();
    loop {
        let owned = Owned::random(dice, 2000);
        let Ok(appended) = owned.append(&mut writer) else { return (memory, records) };
        records.push((owned.kept(appended.sequence), appended.position));
    }
}

#[test]
fn bytes_that_change_while_they_are_read_never_make_another_record() {
    let mut read = 0;
    for seed in 0..200 {
        let (memory, records) = full(&mut Random::new(seed));
        let restless = Restless::new(memory, seed, 100);
        let mut reader = LogReader::new(&restless, IDENTITY, 0, 1).expect("a ring");
        for _ in 0..200 {
            if let Ok(Some(record)) = reader.next() {
                assert_eq!(Kept::of(&record), records[record.sequence as usize - 1].0);
                read += 1;
            }
        }
    }
    assert!(read > 1000, "only {read} records were read");
}

#[test]
fn random_memory_is_no_log() {
    let header = {
        let memory = Memory::new(MIN_RING as usize);
        let mut writer = LogWriter::new(memory.clone(), IDENTITY, Durability::Operation).expect("a ring");
        let free = Change::Free { inode: InodeNumber(1) };
        writer.append(Timestamp::default(), &free, &[]).expect("room");
        let mut line = [0; LINE];
        memory.load(0, &mut line);
        line
    };
    for seed in 0..50 {
        let mut dice = Random::new(seed);
        let mut memory = Memory::new(MIN_RING as usize);
        let mut line = [0; LINE];
        for place in (0..memory.len()).step_by(LINE) {
            dice.fill(&mut line);
            if dice.chance(800) {
                // The fields that a header of this log must have, and plausible lengths.
                line[..4].copy_from_slice(&header[..4]);
                line[10..12].fill(0);
                line[14] %= 12;
                line[16..24].copy_from_slice(&header[16..24]);
                line[24..32].copy_from_slice(&dice.below(5).to_le_bytes());
                line[46..48].fill(0);
            }
            memory.store(place, &line);
        }
        let position = dice.below(1 << 20) * LINE as u64;
        let mut reader = LogReader::new(&memory, IDENTITY, position, 1).expect("a ring");
        for _ in 0..10 {
            assert_eq!(reader.next(), Ok(None));
        }
        while !reader.verify_end(1 << 16).expect("nothing has its checksum") {}
        assert_eq!(reader.position(), position);
    }
}

#[test]
fn a_search_does_a_bounded_amount_of_work() {
    // Every line claims to begin a record as long as the ring allows.
    let mut memory = Memory::new(1 << 20);
    let mut writer = LogWriter::new(memory.clone(), IDENTITY, Durability::Operation).expect("a ring");
    let write = Change::Write { inode: InodeNumber(1), offset: 0, length: 16_000 };
    writer.append(Timestamp::default(), &write, &[0; 16_000]).expect("room");
    let mut line = [0; LINE];
    memory.load(0, &mut line);
    line[24] = 2;
    for place in (0..memory.len()).step_by(LINE) {
        memory.store(place, &line);
    }
    let restless = Restless::new(memory, 1, 0);
    let mut reader = LogReader::new(&restless, IDENTITY, 0, 1).expect("a ring");
    // One piece is searched and one record is tried, beside the record that should be there.
    let most = 4096 + 3 * 17_000;
    for _ in 0..100 {
        *restless.loaded.borrow_mut() = 0;
        // The line at the position itself says sequence 2 and has no checksum.
        assert_eq!(reader.next(), Ok(None));
        assert!(*restless.loaded.borrow() <= most, "{} bytes in one call", restless.loaded.borrow());
    }
}

#[test]
fn every_damaged_record_but_the_last_is_reported() {
    for seed in 0..30 {
        let mut dice = Random::new(seed);
        let (mut memory, records) = full(&mut dice);
        let damaged = dice.index(records.len());
        let range = &records[damaged].1;
        let place = (range.start + dice.below((range.end - range.start) / 64) * 64) as usize;
        let mut line = [0; LINE];
        memory.load(place, &mut line);
        line[dice.index(LINE)] ^= 1 << dice.below(8);
        memory.store(place, &line);
        let mut reader = LogReader::new(&memory, IDENTITY, 0, 1).expect("a ring");
        let mut read = 0;
        let outcome = loop {
            match reader.next() {
                Ok(Some(_)) => read += 1,
                Ok(None) => match reader.verify_end(usize::MAX) {
                    Ok(done) => {
                        assert!(done);
                        break Ok(());
                    }
                    Err(damage) => break Err(damage),
                },
                Err(damage) => break Err(damage),
            }
        };
        assert_eq!(read, damaged, "the records before it are read, and none behind it");
        if damaged + 1 == records.len() {
            assert_eq!(outcome, Ok(()));
            continue;
        }
        let next = &records[damaged + 1];
        let missing = LogDamage::Missing {
            sequence: damaged as u64 + 1,
            position: range.start,
            found: next.0.sequence,
            found_at: next.1.start,
        };
        assert_eq!(outcome, Err(missing));
        assert_eq!(reader.position(), range.start, "it never skips");
    }
}

#[test]
fn damage_in_front_of_a_live_writer_is_noticed_by_following() {
    let memory = Memory::new(MIN_RING as usize);
    let mut writer = LogWriter::new(memory.clone(), IDENTITY, Durability::Operation).expect("a ring");
    let mut reader = LogReader::new(&memory, IDENTITY, 0, 1).expect("a ring");
    let pass = memory.len() / 4096 + 1;
    for _ in 0..pass + 1 {
        assert_eq!(reader.next(), Ok(None));
    }
    for inode in 1..4 {
        let free = Change::Free { inode: InodeNumber(inode) };
        writer.append(Timestamp::default(), &free, &[]).expect("room");
    }
    memory.clone().store(0, &[0; LINE]);
    assert!((0..pass).any(|_| reader.next().is_err()), "the reader waits for ever");
}

/// Memory in which a log appears between the first load and the second.
struct Late {
    memory: Memory,
    log: RefCell<Option<Vec<u8>>>,
}

impl Medium for Late {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn load(&self, offset: usize, out: &mut [u8]) {
        self.memory.load(offset, out);
        if let Some(log) = self.log.take() {
            self.memory.clone().store(0, &log);
        }
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.memory.store(offset, bytes);
    }

    fn fence(&mut self) {}

    fn description(&self) -> &'static str {
        "late"
    }
}

#[test]
fn records_that_are_written_during_a_search_are_no_damage() {
    let (memory, records) = full(&mut Random::new(1));
    let mut log = vec![0; memory.len()];
    memory.load(0, &mut log);
    let late = Late { memory: Memory::new(memory.len()), log: RefCell::new(Some(log)) };
    let mut reader = LogReader::new(&late, IDENTITY, 0, 1).expect("a ring");
    for (kept, _) in &records {
        let record = reader.next().expect("no damage").expect("a record");
        assert_eq!(&Kept::of(&record), kept);
    }
}

#[test]
fn a_record_that_is_written_late_is_read() {
    let memory = Memory::new(MIN_RING as usize);
    let mut writer = LogWriter::new(memory.clone(), IDENTITY, Durability::Operation).expect("a ring");
    let mut reader = LogReader::new(&memory, IDENTITY, 0, 1).expect("a ring");
    for number in 1..50 {
        for _ in 0..number % 5 {
            assert_eq!(reader.next(), Ok(None));
        }
        let free = Change::Free { inode: InodeNumber(number) };
        writer.append(Timestamp::default(), &free, &[]).expect("room");
        let record = reader.next().expect("no damage").expect("a record");
        assert_eq!((record.sequence, record.change), (number, free));
    }
}

#[test]
fn a_record_with_another_sequence_is_no_end() {
    let memory = Memory::new(MIN_RING as usize);
    let mut writer = LogWriter::new(memory.clone(), IDENTITY, Durability::Operation).expect("a ring");
    writer.continue_at(128, 9);
    let free = Change::Free { inode: InodeNumber(1) };
    writer.append(Timestamp::default(), &free, &[]).expect("room");
    let mut reader = LogReader::new(&memory, IDENTITY, 128, 8).expect("a ring");
    assert_eq!(reader.next(), Err(LogDamage::Sequence { sequence: 8, position: 128, found: 9 }));
}
