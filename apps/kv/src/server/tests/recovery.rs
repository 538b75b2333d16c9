//! Recovery with a thread for each shard, compared with that of one shard.

use std::collections::BTreeMap;
use std::sync::Arc;

use sietch::disk::MemoryQueue;
use sietch::persist::{FormatOptions, Log, Options, RecoveryReport};
use sietch_structures::Random;

use crate::data::index::Keyed as _;
use crate::foundation::metrics::Recovery;
use crate::foundation::settings::{Durability, Settings};
use crate::journal::{self, EFFECTS, LAST_PART, PART, SNAPSHOT};
use crate::server::recover::recover_shards;
use crate::shard::{Now, Placement, Shard, Totals};

const NOW: Now = Now { monotonic_ns: 1, unix_ms: 1_700_000_000_000 };

type DataSet = BTreeMap<(usize, Vec<u8>), Vec<Vec<u8>>>;

/// A log with a snapshot, if there are `dumped` records, and with these records behind it.
fn area(dumped: &[Vec<u8>], records: &[Vec<u8>]) -> MemoryQueue {
    let mut disk = MemoryQueue::new(16 << 20);
    Log::format(&mut disk, FormatOptions::new(7)).expect("large enough");
    let (mut log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).expect("just formatted");
    if !dumped.is_empty() {
        // It stands for a record that it replaces.
        log.append(b"replaced").expect("there is room");
        log.begin_snapshot().expect("there is room");
        dumped.iter().for_each(|record| log.snapshot_append(record).expect("there is room"));
        log.finish_snapshot().expect("it has begun");
    }
    records.iter().for_each(|record| _ = log.append(record).expect("there is room"));
    log.submit().expect("the disk works");
    while !log.is_idle() {
        log.poll().expect("the disk works");
    }
    log.into_disk()
}

/// What so many shards recover: all keys, or the error.
fn recovered(disk: &MemoryQueue, count: usize) -> Result<DataSet, String> {
    let totals = Arc::new(Totals::new(count));
    let shard = |own| {
        let placement = Placement::new(own, count);
        Box::new(Shard::with_placement(Settings::default(), own as u64, placement, Arc::clone(&totals)))
    };
    let mut shards: Vec<_> = (0..count).map(shard).collect();
    let disk = MemoryQueue::from_bytes(disk.bytes().to_vec());
    recover_shards("kv", disk, &mut shards, Durability::Always, 7, NOW).map_err(|cause| cause.to_string())?;
    let mut all = BTreeMap::new();
    for partition in shards.iter().flat_map(|shard| shard.store().partitions()) {
        for (number, database) in partition.databases().iter().enumerate() {
            for entry in database.index().iter() {
                let mut parts: Vec<Vec<u8>> = Vec::new();
                entry.rebuild(&mut |command| parts.extend(command[2..].iter().map(|part| part.to_vec())));
                if entry.value().type_name() != "list" {
                    parts.sort();
                }
                let before = all.insert((number, entry.key().to_vec()), parts);
                assert!(before.is_none(), "two shards have the same key");
            }
        }
    }
    Ok(all)
}

fn encoded(mut head: Vec<u8>, effects: &[(usize, String)]) -> Vec<u8> {
    for (database, effect) in effects {
        let arguments: Vec<&[u8]> = effect.split(' ').map(str::as_bytes).collect();
        journal::encode(&mut head, *database, &arguments);
    }
    head
}

/// An effect, which may fail where a key has another type, or none.
fn effect(random: &mut Random) -> (usize, String) {
    let (key, number) = (random.below(12), random.below(100));
    let text = match random.below(24) {
        0 => "FLUSHALL".to_owned(),
        1 => "FLUSHDB".to_owned(),
        2 => "SWAPDB 0 1".to_owned(),
        3..8 => format!("RPUSH l{key} {number} x"),
        8 | 9 => format!("LSET l{key} 0 {number}"),
        10..12 => format!("HSET h{key} f{number} v"),
        12..15 => format!("DEL l{key}"),
        15 => format!("RPUSH k{} {number}", 5 * number),
        _ => format!("SET k{key} {number}"),
    };
    (random.index(3), text)
}

#[test]
fn any_number_of_shards_recovers_what_one_does_or_meets_the_same_fault() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let count = 1 + random.below(40);
        let mut records: Vec<Vec<u8>> = Vec::new();
        for _ in 0..count {
            // Two faults in one record may be met in another order.
            records.push(encoded(vec![EFFECTS], &[effect(&mut random)]));
            let sets: Vec<_> =
                (0..random.below(5)).map(|n| (0, format!("SET s{n} {}", random.word()))).collect();
            records.push(encoded(vec![EFFECTS], &sets));
        }
        if random.chance(150) {
            let damaged = random.index(records.len());
            match random.below(3) {
                0 => _ = records[damaged].pop(),
                1 => records[damaged] = encoded(vec![EFFECTS], &[(0, "NOSUCH k1 x".to_owned())]),
                _ => records[damaged] = encoded(vec![EFFECTS], &[(99, "SET k1 x".to_owned())]),
            }
        }
        let mut dumped = Vec::new();
        if random.chance(500) {
            let as_of = 2 + random.below(count);
            let mut head = vec![SNAPSHOT];
            journal::number(&mut head, as_of);
            let lists: Vec<_> = (0..6).map(|key| (0, format!("RPUSH l{key} 1 2 3"))).collect();
            let whole = encoded(head.clone(), &lists);
            if random.chance(500) {
                let (begin, end) = whole.split_at(whole.len() / 2);
                dumped.push([&[PART], begin].concat());
                dumped.push([&[LAST_PART], end].concat());
            } else {
                dumped.push(whole);
            }
            if random.chance(800) {
                dumped.push(head);
            }
            if random.chance(50) {
                dumped.push([&[PART], &b"cut off"[..]].concat());
            }
        }
        let disk = area(&dumped, &records);
        let one = recovered(&disk, 1);
        good += usize::from(one.is_ok());
        bad += usize::from(one.is_err());
        for shards in [2, 3, 7] {
            assert_eq!(recovered(&disk, shards), one, "seed {seed}, {shards} shards");
        }
    }
    assert!(good > 100 && bad > 40, "{good} were recovered, {bad} were not");
}

#[test]
fn a_log_of_many_batches_is_recovered_by_all_shards() {
    let mut records = Vec::new();
    for number in 0..4000 {
        let sets: Vec<_> =
            (0..4).map(|n| (n, format!("SET key{} {}", number * 4 + n, "v".repeat(100)))).collect();
        records.push(encoded(vec![EFFECTS], &sets));
    }
    // The fault is far ahead of the end: the reader must not wait for a thread that has ended.
    let disk = area(&[], &records);
    let one = recovered(&disk, 1);
    assert_eq!(one.as_ref().map(BTreeMap::len), Ok(16_000));
    assert!(recovered(&disk, 3) == one);
    records[100] = encoded(vec![EFFECTS], &[(3, "RPUSH key7 x".to_owned())]);
    let disk = area(&[], &records);
    let one = recovered(&disk, 1);
    assert!(one.as_ref().is_err_and(|text| text.contains("record 101")));
    assert!(recovered(&disk, 3) == one);
}

#[test]
fn a_recovery_says_whether_the_log_was_closed_in_order() {
    let open = |disk: MemoryQueue| Log::open(disk, Options::default(), &mut |_| Ok(())).expect("a log");
    let after_crash = |report: &RecoveryReport| Recovery::new(report, 1, 0).after_crash;
    let mut disk = MemoryQueue::new(16 << 20);
    Log::format(&mut disk, FormatOptions::new(7)).expect("large enough");
    let (log, report) = open(disk);
    assert!(!after_crash(&report), "it was never used");
    let (log, report) = open(log.into_disk());
    assert!(after_crash(&report));
    let (_, report) = open(log.close().expect("memory does not fail"));
    assert!(!after_crash(&report));
}
