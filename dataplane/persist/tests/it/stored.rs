//! Maps whose values stay in the area: they are what a map in memory would be, whatever is read
//! when, and whatever a crash cuts short.
//!
//! 1. One set of operations, and the oracle of the other structures (`history`). Every value is
//!    read back through the area.
//! 2. Every write, completion and flush is a crash point, also those of compaction, which reads the
//!    values that it copies.

mod queue;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sietch_disk::{Completion, DiskQueue, MemoryQueue, Operation, Priority, SubmitError};
use sietch_persist::{
    AppendError, Durability, Fetched, FormatOptions, Map, OpenError, Options, ReadError, StoredMap,
    StoredMapOptions, Value,
};
use sietch_sim::seeds::{self, Budget};

use crate::disk::{CrashDisk, Media, Random};
use crate::history::{Change, History, State, Verdict};

const CAPACITY: usize = 16384 + 24 * 16384;

fn options(durability: Durability) -> StoredMapOptions {
    StoredMapOptions { log: Options { durability, in_flight: 3 }, inline: 100 }
}

/// The value of a key, through the area if it is there. `Ok(None)`: there is none.
fn value<D: DiskQueue>(map: &mut StoredMap<D>, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
    let mut fetch = match map.get(key) {
        None => return Ok(None),
        Some(Value::Here(value)) => return Ok(Some(value.to_vec())),
        Some(Value::Stored(fetch)) => fetch,
    };
    for _ in 0..10_000 {
        match map.fetch(&mut fetch)? {
            Fetched::Waiting => {}
            Fetched::Value(value) => return Ok(Some(value.to_vec())),
            Fetched::Deleted => return Ok(None),
        }
        map.poll()?;
    }
    panic!("it never comes");
}

fn state<D: DiskQueue>(map: &mut StoredMap<D>) -> Result<State, ReadError> {
    let keys: Vec<Vec<u8>> = map.keys().map(<[u8]>::to_vec).collect();
    let mut state = State::new();
    for key in keys {
        if let Some(found) = value(map, &key)? {
            state.insert(key, found);
        }
    }
    Ok(state)
}

/// Does something; an error: the disk died.
fn step<D: DiskQueue>(
    map: &mut StoredMap<D>,
    history: &mut History,
    random: &mut Random,
    count: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    let key = format!("key {}", random.below(24)).into_bytes();
    let full = |error| match error {
        AppendError::Full { .. } | AppendError::Busy { .. } => Ok(()),
        other => Err(other),
    };
    match random.below(20) {
        0..=7 => {
            let mut bytes = count.to_le_bytes().to_vec();
            let length = [20, 300, 1500, 4000, 9000][random.below(5) as usize];
            bytes.resize(8 + random.below(length) as usize, count as u8);
            match map.put(&key, &bytes) {
                Ok(sequence) => history.note(sequence, vec![Change::Put(key, bytes)]),
                Err(error) => full(error)?,
            }
        }
        8..=10 => match map.delete(&key) {
            Ok(Some(sequence)) => history.note(sequence, vec![Change::Delete(key)]),
            Ok(None) => assert!(!history.state().contains_key(&key)),
            Err(error) => full(error)?,
        },
        11 => map.flush()?,
        12..=14 => {
            let found = value(map, &key)?;
            assert_eq!(found.as_ref(), history.state().get(&key));
        }
        _ => {
            let durable = map.poll()?;
            history.advance(durable);
        }
    }
    Ok(())
}

/// Judges one image that a crash could have left.
fn judge(image: Vec<u8>, history: &History) -> Verdict {
    seeds::explored(1);
    let open = |disk| StoredMap::open(disk, options(Durability::Always)).map(|(map, _)| map);
    let mut map = match open(MemoryQueue::from_bytes(image)) {
        Ok(map) => map,
        Err(OpenError::NotFormatted) if !history.formatted => return Ok(()),
        Err(other) => return Err(format!("does not open: {other}")),
    };
    let found = state(&mut map).map_err(|e| e.to_string())?;
    history.judge(&found)?;
    for _ in 0..200 {
        map.poll().map_err(|e| e.to_string())?;
    }
    let disk = map.into_disk();
    // The map in memory makes the same of it.
    let (other, _) = Map::open(disk, Options::default()).map_err(|e| format!("as a map: {e}"))?;
    let same: State = other.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    if same == found { Ok(()) } else { Err("the map in memory finds something else".into()) }
}

fn judge_all(media: &Media, history: &History, random: &mut Random) -> Verdict {
    let unit = [8, 64, 512][random.below(3) as usize];
    judge(media.after_power_loss(unit, || false), history)?;
    judge(media.after_power_loss(unit, || true), history)?;
    for percent in [50, 3, 97] {
        judge(media.after_power_loss(unit, || random.chance(percent)), history)?;
    }
    Ok(())
}

/// Formats and lives three times, until event `budget`.
fn live(seed: u64, budget: usize) -> (Rc<RefCell<Media>>, History, u64, bool) {
    let block = if seed.is_multiple_of(2) { 512 } else { 4096 };
    let media = Media::new(vec![0; CAPACITY], block, seed);
    media.borrow_mut().budget = budget;
    let (mut history, mut random, mut snapshots) = (History::default(), Random::new(seed), 0);
    let durability = if seed.is_multiple_of(3) { Durability::Deferred } else { Durability::Always };
    let mut done = || -> Result<(), Box<dyn std::error::Error>> {
        StoredMap::format(&mut CrashDisk::new(&media), FormatOptions::new(9))?;
        history.formatted = true;
        for life in 0..3_u64 {
            let (mut map, _) = match StoredMap::open(CrashDisk::new(&media), options(durability)) {
                Err(OpenError::Failed(failure)) => return Err(failure.into()),
                opened => opened.expect("a disk that works"),
            };
            let found = state(&mut map)?;
            history.judge(&found).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
            history.restart(&found);
            for count in 0..250 {
                step(&mut map, &mut history, &mut random, life * 1000 + count)?;
            }
            snapshots += map.log().metrics().snapshots;
            drop(map);
            let left = media.borrow().budget;
            media.borrow_mut().kill();
            media.borrow_mut().budget = left;
        }
        Ok(())
    };
    let done = done().is_ok();
    (media, history, snapshots, done)
}

#[test]
fn power_loss_in_the_life_of_a_map_with_values_in_the_area() {
    let snapshots: u64 = (1..=6).map(|seed| live(seed, usize::MAX).2).sum();
    assert!(snapshots > 6, "it hardly compacts: {snapshots}");
    let budget = Budget { seeds: 8, seconds: 3 };
    seeds::run("it stored::power_loss_in_the_life", &[1, 2, 3], budget, |seed| {
        let mut random = Random::new(seed ^ 0xc0ffee);
        let mut budget = 1;
        loop {
            let (media, history, _, survived) = live(seed, budget);
            judge_all(&media.borrow(), &history, &mut random)
                .unwrap_or_else(|wrong| panic!("event {budget}: {wrong}"));
            if survived {
                return;
            }
            budget += 1 + random.below(9) as usize;
        }
    });
}

fn formatted(capacity: usize) -> StoredMap<MemoryQueue> {
    let mut disk = MemoryQueue::new(capacity);
    StoredMap::format(&mut disk, FormatOptions::new(1)).expect("large enough");
    StoredMap::open(disk, options(Durability::Always)).expect("it was formatted").0
}

fn settle(map: &mut StoredMap<MemoryQueue>) {
    for _ in 0..500 {
        map.poll().expect("a disk that works");
    }
}

#[test]
fn memory_holds_keys_and_not_values() {
    let mut map = formatted(64 << 20);
    for n in 0..2000_u32 {
        map.put(&n.to_le_bytes(), &[n as u8; 8000]).expect("room");
        map.poll().expect("a disk that works");
    }
    settle(&mut map);
    assert!(map.bytes() > 2000 * 8000);
    let each = map.memory() / map.len();
    assert!(each < 160, "{each} bytes a key");
    // It is so after an opening too.
    let (mut map, _) =
        StoredMap::open(map.into_disk(), options(Durability::Always)).expect("nothing is wrong");
    assert!(map.memory() / map.len() < 160);
    assert_eq!(value(&mut map, &7_u32.to_le_bytes()).expect("it is there"), Some(vec![7; 8000]));
}

#[test]
fn a_fetch_goes_on_while_its_value_moves() {
    let mut map = formatted(2 << 20);
    map.put(b"moves", &[1; 3000]).expect("room");
    map.put(b"goes", &[2; 3000]).expect("room");
    map.put(b"changes", &[3; 3000]).expect("room");
    settle(&mut map);
    let mut fetches: Vec<_> = [&b"moves"[..], b"goes", b"changes"]
        .iter()
        .map(|key| match map.get(key) {
            Some(Value::Stored(fetch)) => fetch,
            other => panic!("{other:?}"),
        })
        .collect();
    map.delete(b"goes").expect("room");
    map.put(b"changes", &[4; 20]).expect("room");
    let before = map.log().metrics().snapshots;
    // So much that the segments of the beginning are written again.
    for n in 0..4000_u32 {
        map.put(b"filler", &[n as u8; 3000]).expect("it compacts");
        map.poll().expect("a disk that works");
    }
    assert!(map.log().metrics().snapshots > before + 4);
    let mut found = Vec::new();
    for fetch in &mut fetches {
        loop {
            match map.fetch(fetch).expect("nothing is damaged") {
                Fetched::Waiting => {}
                Fetched::Value(value) => break found.push(value.to_vec()),
                Fetched::Deleted => break found.push(Vec::new()),
            }
            map.poll().expect("a disk that works");
        }
    }
    assert_eq!(found, [vec![1; 3000], Vec::new(), vec![4; 20]]);
}

#[test]
fn values_of_many_fragments_come_back() {
    let mut map = formatted(64 << 20);
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    map.put(b"large", &large).expect("room");
    settle(&mut map);
    assert!(matches!(map.get(b"large"), Some(Value::Stored(_))));
    assert!(value(&mut map, b"large").expect("it is there") == Some(large.clone()));
    let (mut map, _) =
        StoredMap::open(map.into_disk(), options(Durability::Always)).expect("nothing is wrong");
    assert!(value(&mut map, b"large").expect("it is there") == Some(large));
}

/// Memory in which one byte is read wrong, once a test sets which.
struct Rotten {
    inner: MemoryQueue,
    at: Rc<Cell<Option<u64>>>,
    wrong: Vec<(u64, usize)>,
}

impl DiskQueue for Rotten {
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn block_size(&self) -> usize {
        self.inner.block_size()
    }

    fn physical_block_size(&self) -> usize {
        self.inner.physical_block_size()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn submit_with(
        &mut self,
        token: u64,
        operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        if let (Operation::Read { offset, length, .. }, Some(at)) = (&operation, self.at.get())
            && (*offset..*offset + *length as u64).contains(&at)
        {
            self.wrong.push((token, (at - offset) as usize));
        }
        self.inner.submit_with(token, operation, priority)
    }

    fn notify(&mut self) -> std::io::Result<()> {
        self.inner.notify()
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let count = self.inner.complete(out);
        let begin = out.len() - count;
        for completion in &mut out[begin..] {
            if let Some(wrong) = self.wrong.iter().position(|(token, _)| *token == completion.token)
                && let Some(buffer) = &mut completion.buffer
            {
                buffer[self.wrong.swap_remove(wrong).1] ^= 1;
            }
        }
        count
    }

    fn wait(&mut self, timeout: std::time::Duration) -> std::io::Result<()> {
        self.inner.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

#[test]
fn a_value_that_rots_is_named_and_the_map_goes_on() {
    let at = Rc::new(Cell::new(None));
    let mut inner = MemoryQueue::new(2 << 20);
    StoredMap::format(&mut inner, FormatOptions::new(1)).expect("large enough");
    let disk = Rotten { inner, at: Rc::clone(&at), wrong: Vec::new() };
    let (mut map, _) = StoredMap::open(disk, options(Durability::Always)).expect("it was formatted");
    map.put(b"rots", &[0xab; 3000]).expect("room");
    map.put(b"stays", &[0xcd; 3000]).expect("room");
    while !map.log().is_idle() || map.log().queued() > 0 {
        map.poll().expect("a disk that works");
    }
    let bytes = map.log().disk().inner.bytes();
    let place = bytes.windows(64).position(|window| window == [0xab; 64]).expect("it was written");
    at.set(Some(place as u64));
    let error = value(&mut map, b"rots").map(drop);
    assert!(matches!(error, Err(ReadError::Damaged { .. })), "{error:?}");
    assert_eq!(value(&mut map, b"stays").expect("it is whole"), Some(vec![0xcd; 3000]));
    // No snapshot is made without it, so that nothing is lost silently: in the end the area is
    // full, and what is damaged can be deleted.
    let full = (0..4000_u32).any(|n| {
        map.poll().expect("a disk that works");
        map.put(b"filler", &[n as u8; 3000]).is_err()
    });
    assert!(full && map.metrics().damaged > 0 && map.log().metrics().snapshots == 0);
    map.delete(b"rots").expect("deleting has room");
    // Other records are there soon.
    at.set(None);
    for n in 0..2000_u32 {
        let room = map.put(b"filler", &[n as u8; 3000]);
        assert!(n < 100 || room.is_ok(), "{n}: {room:?}");
        map.poll().expect("a disk that works");
    }
    assert!(map.log().metrics().snapshots > 0);
}
