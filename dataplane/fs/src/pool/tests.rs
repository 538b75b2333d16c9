//! Random changes of a pool, against ordinary maps.

mod hostile;
mod media;

use std::collections::BTreeMap;

use sietch_disk::{Buffer, MemoryQueue};
use sietch_sim::Random;
use sietch_sim::disk::{Media, Options};
use sietch_sim::seeds::{self, Budget};

use super::limits::MIN_HOME;
use super::{Class, Counters, FormatOptions, Member, Pool, Reader, Run, check, format};
use crate::error::Fault;
use crate::limits::BLOCK;
use crate::name::NameKey;
use crate::tree::{Key, MAX_VALUE};

const OPTIONS: FormatOptions = FormatOptions { identity: 0x5157, name_key: NameKey([7; 16]) };

/// Items of this kind name a run, those of others do not.
const KIND_RUN: u8 = 200;

fn members(blocks: &[usize]) -> Vec<Member<MemoryQueue>> {
    let classes = [Class::Nvm, Class::Ssd, Class::Hdd];
    let member = |(at, blocks): (usize, &usize)| Member {
        name: format!("medium {at}"),
        class: classes[at % 3],
        disk: MemoryQueue::new(blocks * BLOCK),
    };
    blocks.iter().enumerate().map(member).collect()
}

fn new_pool(blocks: &[usize], nodes: usize) -> Pool<MemoryQueue> {
    let mut members = members(blocks);
    format(&mut members, &OPTIONS).expect("large enough");
    let mut pool = Pool::open_with(members, nodes).expect("formatted");
    pool.readers_at(u64::MAX);
    pool
}

fn reopen(pool: Pool<MemoryQueue>, nodes: usize) -> Pool<MemoryQueue> {
    let mut pool = Pool::open_with(pool.into_members(), nodes).expect("committed");
    pool.readers_at(u64::MAX);
    pool
}

fn run_bytes(run: Run) -> Vec<u8> {
    [u32::from(run.medium), run.start, run.blocks].iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn bytes_run(value: &[u8]) -> Run {
    let word = |at: usize| u32::from_le_bytes(value[4 * at..][..4].try_into().expect("four bytes"));
    Run { medium: word(0) as u8, start: word(1), blocks: word(2) }
}

fn assert_whole(pool: &mut Pool<MemoryQueue>) {
    let found = check(pool, &mut |key, value, runs| {
        if key.kind == KIND_RUN {
            runs.push(bytes_run(value));
        }
        Ok(())
    })
    .expect("no changes");
    assert!(found.findings.is_empty(), "{:#?}", found.findings);
    let (free, total) = pool.free_blocks();
    assert_eq!(found.free, free);
    assert_eq!(found.free + found.used + found.chunks, total);
}

fn random_key(random: &mut Random) -> Key {
    let object = random.between(1, 12);
    Key::new(object, random.below(4) as u8, random.below(200))
}

fn random_value(random: &mut Random) -> Vec<u8> {
    let most = *random.pick(&[0, 8, 40, 200, MAX_VALUE as u64]);
    let mut value = vec![0; random.between(0, most) as usize];
    random.fill(&mut value);
    value
}

/// Every lookup of the pool gives what the map gives.
fn assert_equal(pool: &mut Pool<MemoryQueue>, map: &BTreeMap<Key, Vec<u8>>, random: &mut Random) {
    for _ in 0..40 {
        let key = random_key(random);
        assert_eq!(pool.get(key).expect("memory"), map.get(&key).cloned(), "{key}");
        let next = map.range(key..).next().map(|(key, value)| (*key, value.clone()));
        assert_eq!(pool.next(key).expect("memory"), next, "from {key}");
        let before = map.range(..=key).next_back().map(|(key, value)| (*key, value.clone()));
        let found = pool.previous(key).expect("memory").filter(|(key, _)| key.object > 0);
        assert_eq!(found, before, "to {key}");
    }
}

fn assert_all_equal(pool: &mut Pool<MemoryQueue>, map: &BTreeMap<Key, Vec<u8>>) {
    let mut from = Key::new(1, 0, 0);
    for (key, value) in map {
        assert_eq!(pool.next(from).expect("memory").as_ref(), Some(&(*key, value.clone())));
        from = Key { offset: key.offset + 1, ..*key };
    }
    assert_eq!(pool.next(from).expect("memory"), None);
}

fn live_against_a_map(seed: u64) {
    let mut random = Random::new(seed);
    let nodes = *random.pick(&[2, 5, 20, 10_000]);
    let mut pool = new_pool(&[2048, 64, 64], nodes);
    let mut map: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    let mut committed = map.clone();
    for step in 0..1500 {
        // Growth, then shrinkage.
        let inserts = if step % 600 < 350 { 75 } else { 25 };
        match random.below(1000) {
            0..=5 => {
                let root = pool.commit(Counters { inodes: step, next_inode: step + 1 }).expect("memory");
                assert_eq!(root.counters.inodes, step);
                committed = map.clone();
                assert_whole(&mut pool);
            }
            6..=9 => {
                pool = reopen(pool, nodes);
                map = committed.clone();
                assert_all_equal(&mut pool, &map);
                assert_whole(&mut pool);
            }
            10..=20 => assert_equal(&mut pool, &map, &mut random),
            roll => {
                let key = random_key(&mut random);
                if roll % 100 < inserts {
                    let value = random_value(&mut random);
                    pool.insert(key, &value).expect("room");
                    map.insert(key, value);
                } else {
                    assert_eq!(pool.remove(key).expect("memory"), map.remove(&key).is_some(), "{key}");
                }
            }
        }
    }
    assert_all_equal(&mut pool, &map);
    for key in map.into_keys() {
        assert!(pool.remove(key).expect("memory"));
    }
    assert_eq!(pool.next(Key::new(1, 0, 0)).expect("memory"), None);
    pool.commit(Counters::default()).expect("memory");
    assert_whole(&mut pool);
}

#[test]
fn a_pool_is_a_map_that_commits() {
    let budget = Budget { seeds: 200, seconds: 6 };
    seeds::run("lib pool::tests::a_pool_is_a_map", &[1, 2, 3], budget, live_against_a_map);
}

/// Blocks filled with a number.
fn filled(blocks: u32, number: u64) -> Buffer {
    let mut buffer = Buffer::new(blocks as usize * BLOCK);
    for word in buffer.chunks_exact_mut(8) {
        word.copy_from_slice(&number.to_le_bytes());
    }
    buffer
}

/// Files of one run each, until the pool is full; then all are removed. Data read back are those
/// written, blocks are never in two runs, and nothing is lost.
fn fill_and_empty(seed: u64) {
    let mut random = Random::new(seed);
    let homes = [MIN_HOME as usize, 1024, 4096];
    let mut pool = new_pool(&[*random.pick(&homes), 200, 300], 1000);
    let before = pool.free_blocks();
    let classes = [Class::Nvm, Class::Ssd, Class::Hdd];
    for round in 0..3 {
        let mut files: Vec<(Key, Run, u64)> = Vec::new();
        loop {
            let number = files.len() as u64 * 8 + round;
            let key = Key::new(random.between(1, 5), KIND_RUN, number);
            let run = match pool.allocate(*random.pick(&classes), random.between(1, 9) as u32) {
                Ok(run) => run,
                Err(Fault::Full { .. }) => break,
                Err(fault) => panic!("{fault}"),
            };
            pool.write(run, filled(run.blocks, number)).expect("memory");
            match pool.insert(key, &run_bytes(run)) {
                Ok(()) => files.push((key, run, number)),
                Err(Fault::Full { .. }) => {
                    pool.free(run).expect("allocated");
                    break;
                }
                Err(fault) => panic!("{fault}"),
            }
            // What is not a run of data takes room too.
            if random.chance(200) {
                let value = random_value(&mut random);
                if pool.insert(Key::new(6, 1, number), &value).is_err() {
                    break;
                }
            }
            if random.chance(30) {
                pool.commit(Counters::default()).expect("memory");
            }
            if random.chance(100) {
                let (_, run, number) = *random.pick(&files);
                assert!(pool.read(run).expect("memory")[..] == filled(run.blocks, number)[..]);
            }
        }
        pool.commit(Counters::default()).expect("memory");
        assert_whole(&mut pool);
        pool = reopen(pool, 1000);
        for (_, run, number) in &files {
            assert!(pool.read(*run).expect("memory")[..] == filled(run.blocks, *number)[..]);
        }
        let mut keys: Vec<Key> = files.iter().map(|(key, ..)| *key).collect();
        while let Some((key, _)) = pool.next(Key::new(6, 1, 0)).expect("memory") {
            remove_in_any_case(&mut pool, key);
        }
        while !keys.is_empty() {
            let key = keys.swap_remove(random.index(keys.len()));
            let run = bytes_run(&pool.get(key).expect("memory").expect("a file"));
            remove_in_any_case(&mut pool, key);
            match pool.free(run) {
                Ok(()) => {}
                Err(Fault::Full { .. }) => {
                    pool.commit(Counters::default()).expect("memory");
                    pool.free(run).expect("room after a commit");
                }
                Err(fault) => panic!("{fault}"),
            }
            assert!(pool.free(run).is_err(), "freed twice");
        }
        for _ in 0..3 {
            // Chunks go back to the data space one commit after they are empty.
            pool.commit(Counters { inodes: round, next_inode: pool.root().generation }).expect("memory");
        }
        assert_whole(&mut pool);
        let (free, total) = pool.free_blocks();
        assert!(free + 700 >= before.0 && total == before.1, "{free} of {before:?} are free");
    }
}

/// A removal on a full pool works, if need be after a commit.
fn remove_in_any_case(pool: &mut Pool<MemoryQueue>, key: Key) {
    match pool.remove(key) {
        Ok(existed) => assert!(existed),
        Err(Fault::Full { .. }) => {
            pool.commit(Counters::default()).expect("memory");
            assert!(pool.remove(key).expect("room after a commit"));
        }
        Err(fault) => panic!("{fault}"),
    }
}

/// A disk needs as long for one block as for many: a digest of random changes writes one after the
/// other where free space is in one piece.
#[test]
fn adjacent_writes_of_a_disk_are_one_request() {
    let media = Media::new(Options::new(4 * MIN_HOME as usize * BLOCK), Random::new(1));
    let member = || Member { name: "disk".to_owned(), class: Class::Ssd, disk: media.open() };
    format(&mut [member()], &OPTIONS).expect("large enough");
    let mut pool = Pool::open_with(vec![member()], 20).expect("formatted");
    pool.readers_at(u64::MAX);
    let before = media.boundaries();
    let runs: Vec<_> = (0..40).map(|_| pool.allocate(Class::Ssd, 1).expect("room")).collect();
    for (run, number) in runs.iter().zip(0..) {
        pool.write(*run, filled(1, number)).expect("queued");
    }
    for (run, number) in runs.iter().zip(0..) {
        assert!(pool.read(*run).expect("it works")[..] == filled(1, number)[..], "block {number}");
    }
    assert_eq!(media.boundaries() - before, 2, "the submission and the completion of one write");
    // What is not adjacent is a request of its own.
    for run in [runs[7], runs[3], runs[4]] {
        pool.write(run, filled(1, 99)).expect("queued");
    }
    pool.commit(Counters { inodes: 1, next_inode: 1 }).expect("it works");
    for (run, number) in runs.iter().zip(0..) {
        let number = if [3, 4, 7].contains(&number) { 99 } else { number };
        assert!(pool.read(*run).expect("it works")[..] == filled(1, number)[..], "block {number}");
    }
}

#[test]
fn a_full_pool_can_be_emptied_and_loses_no_block() {
    let budget = Budget { seeds: 100, seconds: 6 };
    seeds::run("lib pool::tests::a_full_pool", &[1, 2, 3], budget, fill_and_empty);
}

/// What a commit replaced stays while a reader needs it.
#[test]
fn a_reader_sees_its_generation_until_it_is_advanced() {
    let mut pool = new_pool(&[1024], 50);
    let keys = || (0..300).map(|n| Key::new(1, 1, n));
    for key in keys() {
        pool.insert(key, b"old").expect("room");
    }
    let old = pool.commit(Counters::default()).expect("memory");
    pool.readers_at(old.generation);
    let mut roots = vec![(old, b"old".to_vec())];
    for round in 0..4u8 {
        for key in keys() {
            pool.insert(key, &[round]).expect("room");
        }
        roots.push((pool.commit(Counters::default()).expect("memory"), vec![round]));
    }
    let image = |pool: Pool<MemoryQueue>| {
        let members = pool.into_members();
        let bytes = members[0].disk.bytes().to_vec();
        (members, bytes)
    };
    let (_, bytes) = image(pool);
    let member = |bytes: &[u8]| Member {
        name: "home".into(),
        class: Class::Nvm,
        disk: MemoryQueue::from_bytes(bytes.to_vec()),
    };
    let mut reader = Reader::with_nodes(vec![member(&bytes)], old, 20).expect("a pool");
    for (root, value) in roots {
        reader.advance(root);
        for key in keys() {
            assert_eq!(reader.get(key).expect("memory").as_ref(), Some(&value));
        }
    }
}

/// All free space of the home is in pieces of four blocks: the tree grows nevertheless.
#[test]
fn the_tree_grows_where_free_space_is_in_pieces() {
    let mut pool = new_pool(&[4096], 1000);
    let mut runs = Vec::new();
    assert!(pool.has_room(100, 3000) && !pool.has_room(100, 4096) && !pool.has_room(5000, 0));
    while let Ok(run) = pool.allocate(Class::Nvm, 4) {
        pool.insert(Key::new(1, KIND_RUN, runs.len() as u64), &run_bytes(run)).expect("room");
        runs.push(run);
    }
    pool.commit(Counters::default()).expect("memory");
    for (number, run) in runs.iter().enumerate().step_by(2) {
        assert!(pool.remove(Key::new(1, KIND_RUN, number as u64)).expect("memory"));
        pool.free(*run).expect("allocated");
        if number % 40 == 0 {
            pool.commit(Counters::default()).expect("memory");
        }
    }
    pool.commit(Counters::default()).expect("memory");
    assert_whole(&mut pool);
    let mut items = 0;
    while pool.insert(Key::new(2, 1, items), &[9; MAX_VALUE]).is_ok() {
        items += 1;
        if items % 50 == 0 {
            pool.commit(Counters::default()).expect("memory");
        }
    }
    let count = items;
    assert!(!pool.has_room(20, 0) && !pool.has_room(1, 100), "it is full");
    assert!(count > 3000, "only {count} items fit");
    pool.commit(Counters::default()).expect("memory");
    assert_whole(&mut pool);
}

/// Runs of a batch, at most.
const RUNS: u64 = 8;

/// Changes and runs that surely fit, in a pool that is full, also where freed blocks are held for
/// readers.
fn what_has_room_fits(seed: u64) {
    let mut random = Random::new(seed);
    let mut pool = new_pool(&[1200 + random.below(1800) as usize], 4096);
    let (mut runs, mut batches) = (Vec::new(), 0);
    let mut number = 0;
    for _ in 0..1500 {
        if random.chance(300) {
            pool.readers_at(pool.root().generation);
        }
        let (inserts, blocks) = (random.below(12), random.below(40));
        pool.use_reserve(random.chance(300));
        // Each run has an item.
        if !pool.has_room(inserts + RUNS, blocks) {
            pool.readers_at(pool.root().generation);
            pool.use_reserve(true);
            for _ in 0..random.below(3).min(runs.len() as u64) {
                let (key, run) = runs.swap_remove(random.index(runs.len()));
                pool.remove(key).and_then(|_| pool.free(run)).expect("removing needs no room");
            }
            pool.commit(Counters::default()).expect("so does the commit");
            continue;
        }
        batches += 1;
        pool.set_demand(blocks);
        let (mut inserted, mut left, mut pieces) = (0, blocks, 0);
        while inserted < inserts || (left > 0 && pieces < RUNS) {
            number += 1;
            if inserted < inserts && (left == 0 || pieces == RUNS || random.chance(500)) {
                let key = Key { object: 2 + random.below(1 << 20), kind: 7, offset: number };
                pool.insert(key, &[7; 60]).expect("a change fits");
                inserted += 1;
                continue;
            }
            let run = pool.allocate(Class::Nvm, left as u32).expect("a run fits");
            let key = Key { object: 1, kind: KIND_RUN, offset: number };
            pool.insert(key, &run_bytes(run)).expect("its item fits");
            left -= u64::from(run.blocks);
            pool.set_demand(left);
            pieces += 1;
            runs.push((key, run));
        }
        pool.set_demand(0);
        pool.commit(Counters::default()).expect("the commit fits");
    }
    assert!(batches > 20, "{batches} batches");
    assert_whole(&mut pool);
}

#[test]
fn what_has_room_fits_in_a_full_pool() {
    let name = "pool::tests::what_has_room_fits_in_a_full_pool";
    seeds::run(name, &[], Budget { seeds: 60, seconds: 5 }, what_has_room_fits);
}

/// A tree of three levels. Ranges of it are emptied, so that first children of nodes go, and filled
/// again with more than was there, so that what covers the range then splits.
#[test]
fn ranges_that_were_emptied_are_filled_again() {
    let mut pool = new_pool(&[8192], 10_000);
    let mut random = Random::new(5);
    let mut map = BTreeMap::new();
    let key = |number: u64| Key::new(1 + number / 5000, 1, number % 5000 * 64);
    for number in 0..10_000 {
        pool.insert(key(number), &[1; 300]).expect("room");
        map.insert(key(number), vec![1; 300]);
    }
    pool.commit(Counters::default()).expect("memory");
    for round in 0..150 {
        let start = random.below(9_800);
        let emptied = start..start + random.between(10, 150);
        for number in emptied.clone() {
            assert!(pool.remove(key(number)).expect("memory"));
            map.remove(&key(number));
        }
        if random.chance(500) {
            pool.commit(Counters::default()).expect("memory");
        }
        for number in emptied.clone().rev() {
            for step in (0..2).rev() {
                let key = Key { offset: key(number).offset + step, ..key(number) };
                let value = vec![round; 150];
                pool.insert(key, &value).expect("room");
                map.insert(key, value);
            }
        }
        pool.commit(Counters::default()).expect("memory");
        for number in emptied {
            assert_eq!(pool.get(key(number)).expect("memory").as_ref(), map.get(&key(number)), "{number}");
            assert!(pool.remove(Key { offset: key(number).offset + 1, ..key(number) }).expect("memory"));
            map.remove(&Key { offset: key(number).offset + 1, ..key(number) });
        }
    }
    pool.commit(Counters::default()).expect("memory");
    assert_whole(&mut pool);
    let mut pool = reopen(pool, 50);
    assert_all_equal(&mut pool, &map);
}
