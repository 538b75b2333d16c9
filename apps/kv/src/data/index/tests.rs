//! An index behaves like a map, returns its memory, and a scan misses no element that stays.
//!
//! Random steps run on an index and on maps of the standard library. After each step, everything
//! that must hold between the directory, the segments and the counters is checked.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sietch_structures::SplitMix64;

use super::*;

#[derive(Debug, Clone, PartialEq)]
struct Pair {
    key: Vec<u8>,
    value: u64,
}

impl Keyed for Pair {
    fn key(&self) -> &[u8] {
        &self.key
    }
}

fn pair(key: u32, value: u64) -> Pair {
    Pair { key: format!("key:{key}").into_bytes(), value }
}

impl<T: Keyed> Index<T> {
    /// Everything that must hold between its parts.
    fn check(&self) {
        assert_eq!(self.directory.len(), 1 << self.depth);
        let mut named = vec![0; self.segments.len()];
        for (slot, &segment) in self.directory.iter().enumerate() {
            named[segment as usize] += 1;
            let (first, count) = self.segments[segment as usize].slots(self.depth);
            assert!((first..first + count).contains(&slot));
        }
        let mut len = 0;
        let mut bytes = 0;
        let mut depths = [0; DEPTH_LIMIT as usize + 1];
        for (segment, named) in self.segments.iter().zip(named) {
            assert_eq!(segment.slots(self.depth).1, named);
            for element in segment.elements() {
                let hash = hash_bytes(self.seed, element.key());
                assert!(segment.depth == 0 || hash >> (64 - segment.depth) == segment.prefix);
            }
            assert!(segment.len() <= SEGMENT_LIMIT);
            len += segment.len();
            bytes += segment.memory();
            depths[segment.depth as usize] += 1;
        }
        assert_eq!((len, bytes, depths), (self.len, self.segment_bytes, self.at_depth));
        assert!(self.depth == 0 || self.at_depth[self.depth as usize] > 0);
    }
}

fn generator(seed: u64) -> impl FnMut() -> u64 {
    let mut numbers = SplitMix64::new(seed);
    move || numbers.word()
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u32, u64),
    Remove(u32),
    /// Inserts or removes a whole range, to make segments split and merge.
    InsertMany(u32, u32),
    RemoveMany(u32, u32),
    Scan(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3000u32, any::<u64>()).prop_map(|(key, value)| Step::Insert(key, value)),
        4 => (0..3000u32).prop_map(Step::Remove),
        1 => (0..3000u32, 1..1500u32).prop_map(|(from, many)| Step::InsertMany(from, many)),
        1 => (0..3000u32, 1..2500u32).prop_map(|(from, many)| Step::RemoveMany(from, many)),
        6 => (1..600usize).prop_map(Step::Scan),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A map as oracle; and one scan runs through all of it, restarted when it ends.
    #[test]
    fn is_a_map_that_can_be_scanned_while_it_changes(seed in any::<u64>(), steps in prop::collection::vec(step(), 1..120)) {
        let mut index = Index::new(seed);
        let mut oracle = BTreeMap::new();
        let mut cursor = 0;
        let mut seen: BTreeSet<Vec<u8>> = BTreeSet::new();
        // Keys that were there during the whole of the running scan.
        let mut staying: BTreeSet<Vec<u8>> = BTreeSet::new();
        for step in steps {
            let (inserts, removals): (Vec<Pair>, Vec<u32>) = match step {
                Step::Insert(key, value) => (vec![pair(key, value)], vec![]),
                Step::Remove(key) => (vec![], vec![key]),
                Step::InsertMany(from, many) => ((from..from + many).map(|key| pair(key, 7)).collect(), vec![]),
                Step::RemoveMany(from, many) => (vec![], (from..from + many).collect()),
                Step::Scan(count) => {
                    if cursor == 0 {
                        seen.clear();
                        staying = oracle.keys().cloned().collect();
                    }
                    let mut found = |pair: &Pair| { seen.insert(pair.key.clone()); };
                    // Either way of scanning goes on where the other was.
                    cursor = if count % 2 == 0 {
                        index.scan(cursor, count, &mut found)
                    } else {
                        index.scan_segment(cursor, &mut found)
                    };
                    if cursor == 0 {
                        prop_assert!(staying.is_subset(&seen));
                    }
                    (vec![], vec![])
                }
            };
            for new in inserts {
                let old = index.insert(new.clone()).map(|pair| pair.value);
                prop_assert_eq!(old, oracle.insert(new.key, new.value));
            }
            for key in removals {
                let key = pair(key, 0).key;
                staying.remove(&key);
                prop_assert_eq!(index.remove(&key).map(|pair| pair.value), oracle.remove(&key));
            }
            index.check();
        }
        prop_assert_eq!(index.len(), oracle.len());
        for (key, value) in &oracle {
            prop_assert_eq!(index.get(key).map(|pair| pair.value), Some(*value));
        }
        let all: BTreeSet<_> = index.iter().map(|pair| pair.key.clone()).collect();
        prop_assert_eq!(all, oracle.into_keys().collect::<BTreeSet<_>>());
    }
}

#[test]
fn memory_returns_after_mass_deletion() {
    let mut index = Index::new(3);
    let empty = index.memory();
    for key in 0..100_000 {
        index.insert(pair(key, 1));
    }
    assert!(index.memory() > 100_000 * size_of::<Pair>());
    for key in 0..99_999 {
        assert!(index.remove(&pair(key, 0).key).is_some());
    }
    index.check();
    assert!(index.memory() < empty + 1024, "{} bytes for one element", index.memory());
}

#[test]
fn a_scan_without_changes_returns_each_element_once() {
    let mut index = Index::new(5);
    for key in 0..10_000 {
        index.insert(pair(key, 1));
    }
    for count in [1, 10, 100, 5000, 20_000] {
        let mut seen = 0;
        let mut calls = 0;
        let mut cursor = 0;
        loop {
            let before = seen;
            cursor = index.scan(cursor, count, &mut |_| seen += 1);
            calls += 1;
            assert!(seen - before >= count.min(10_000 - before).min(1) && seen - before <= count + 1);
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(seen, 10_000);
        assert!(calls <= 10_000 / count + 2);
    }
    assert_eq!(index.scan(u64::MAX, 10, &mut |_| panic!("past the end")), 0);
    let (mut cursor, mut seen) = (0, 0);
    loop {
        let before = seen;
        cursor = index.scan_segment(cursor, &mut |_| seen += 1);
        assert!(seen - before <= SEGMENT_LIMIT);
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(seen, 10_000);
}

#[test]
fn random_elements_are_about_equally_probable() {
    let mut index = Index::new(9);
    for key in 0..1000 {
        index.insert(pair(key, u64::from(key)));
    }
    let mut next = generator(1);
    let mut hits = vec![0u32; 1000];
    for _ in 0..100_000 {
        hits[index.random(&mut next).unwrap().value as usize] += 1;
    }
    assert!(hits.iter().all(|&hits| (40..200).contains(&hits)), "{hits:?}");
    let mut empty: Index<Pair> = Index::new(9);
    assert_eq!(empty.random(&mut next), None);
    empty.insert(pair(1, 1));
    assert_eq!(empty.random(&mut next), Some(&pair(1, 1)));
}

#[test]
fn remains_are_freed_in_slices() {
    let mut index = Index::new(1);
    for key in 0..5000 {
        index.insert(pair(key, 1));
    }
    let mut slices = 1;
    while !index.release(500) {
        slices += 1;
    }
    assert!(slices > 5);
}

/// Keys that all had the hash 0 in a store that mixed them with constants which everybody knows.
fn aimed(number: u64) -> Box<[u8]> {
    [number.to_le_bytes(), [0x17, 0x09, 0x47, 0xb5, 0xb5, 0xd5, 0x84, 0x3f]].concat().into()
}

#[test]
fn keys_chosen_to_collide_cost_no_more_than_others() {
    let fill = |key: &dyn Fn(u64) -> Box<[u8]>| {
        let mut index = Index::new(Seeds::new(1).next());
        (0..10_000).for_each(|number| drop(index.insert(key(number))));
        let longest = index.segments.iter().map(|segment| segment.len()).max();
        assert!(longest <= Some(SEGMENT_LIMIT), "{longest:?} elements in one segment");
        (index.directory.len(), index.memory())
    };
    let (slots, bytes) = fill(&aimed);
    let (others, other_bytes) = fill(&|number| format!("key:{number:012}").into_bytes().into());
    assert!(
        slots <= 4 * others && bytes <= 2 * other_bytes,
        "{slots} slots, {bytes} bytes; {others}, {other_bytes}"
    );
}

#[test]
fn elements_that_cannot_be_separated_make_no_directory() {
    let mut index: Index<Box<[u8]>> = Index::new(COLLIDING);
    for number in 0..2_000u64 {
        index.insert(number.to_be_bytes().to_vec().into());
        assert!(index.directory.len() <= 1 + index.len() / ELEMENTS_A_SLOT);
    }
    assert_eq!((index.segments.len(), index.directory.len()), (1, 1));
    for number in 0..2_000u64 {
        assert!(index.remove(&number.to_be_bytes()).is_some());
    }
    assert!(index.is_empty());
}

#[test]
fn seeds_differ() {
    let mut seeds = Seeds::new(7);
    let all: std::collections::BTreeSet<u64> = (0..1000).map(|_| seeds.next()).collect();
    assert_eq!(all.len(), 1000);
}

#[test]
fn an_index_that_expects_many_elements_splits_no_more_than_a_few() {
    for (first, expected, added) in
        [(0, 0, 100), (700, 20_000, 20_000), (700, 20_000, 300), (50, 1000, 30_000)]
    {
        let mut index: Index<Box<[u8]>> = Index::new(7);
        let key = |number: usize| format!("key{number}").into_bytes().into_boxed_slice();
        (0..first).for_each(|number| drop(index.insert(key(number))));
        index.expect(expected);
        let before = index.segments.len();
        (first..added.max(first)).for_each(|number| drop(index.insert(key(number))));
        index.end_expecting();
        let all = added.max(first);
        assert_eq!(index.len(), all);
        assert!((0..all).all(|number| index.contains(&key(number))), "{expected} expected");
        assert_eq!(index.iter().count(), all);
        index.check();
        if added == expected && expected > 0 {
            assert!(index.segments.len() < before + before / 10, "{before}, {}", index.segments.len());
        }
        // It shrinks as any other one.
        (0..all).for_each(|number| assert!(index.remove(&key(number)).is_some()));
        assert!(index.is_empty() && index.memory() < 4096, "{}", index.memory());
    }
}
