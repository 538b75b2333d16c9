//! A collection that changes while a snapshot dumps it is dumped in slices.
//!
//! Replay of the slices and of the effects in between must give the same collection again. Changes
//! are chosen around the position that the dump has reached.

use proptest::prelude::*;

use super::recovery::{Logged, dump};
use super::*;
use crate::data::keyspace::DumpedPart;
use crate::data::value::Progress;

/// A snapshot that was taken in slices.
struct Taken {
    records: Vec<Vec<u8>>,
    /// The log's last sequence when it began.
    start: u64,
    /// Bytes of the largest slice.
    most: usize,
    slices: usize,
}

/// Takes a snapshot, and runs what `between` says after each slice.
fn take(logged: &mut Logged, budget: usize, between: &mut dyn FnMut(usize) -> Vec<String>) -> Taken {
    let mut taken = Taken { records: Vec::new(), start: logged.sequence, most: 0, slices: 0 };
    logged.bench.begin_snapshot();
    loop {
        let (as_of, mut bytes) = (logged.sequence, 0);
        let done = logged.bench.snapshot_slice(as_of, budget, &mut |record| {
            bytes += record.len();
            taken.records.push(record.to_vec());
        });
        taken.slices += 1;
        taken.most = taken.most.max(bytes);
        if done {
            return taken;
        }
        assert!(taken.slices < 10_000, "the dump does not end");
        between(taken.slices).iter().for_each(|command| logged.run(command));
    }
}

/// What a store has that finds this snapshot, and the log up to `end`.
fn restored(taken: &Taken, logged: &Logged, end: u64) -> Vec<String> {
    let mut again = Bench::new();
    for record in &taken.records {
        again.shard.replay_snapshot(record).expect("its own record");
    }
    for (sequence, record) in &logged.log {
        if (taken.start + 1..=end).contains(sequence) {
            again.shard.replay(*sequence, record, logged.bench.now).expect("its own record");
        }
    }
    again.shard.finish_recovery().expect("nothing was refused");
    dump(&again.shard)
}

/// Fails with the first place where two data sets differ.
fn assert_same(got: &[String], expected: &[String]) {
    for (got, expected) in got.iter().zip(expected) {
        let same = got.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count();
        let around = |text: &str| {
            let bytes = text.as_bytes().get(same.saturating_sub(60)..).unwrap_or_default();
            format!("{} bytes, {}", text.len(), String::from_utf8_lossy(&bytes[..bytes.len().min(120)]))
        };
        assert!(got == expected, "{}: {}; not {}", &got[..got.len().min(20)], around(got), around(expected));
    }
    assert_eq!(got.len(), expected.len());
}

/// A hash, a list, a set and a sorted set of so many elements.
fn filled(count: usize) -> Logged {
    let mut logged = Logged::new();
    for number in 0..count {
        logged.run(&format!("HSET hash m{number} value{number}"));
        logged.run(&format!("RPUSH list m{number}"));
        logged.run(&format!("SADD set m{number}"));
        logged.run(&format!("ZADD sorted {} m{number}", number % 1000));
    }
    logged
}

#[test]
fn a_collection_that_changes_in_every_slice_is_never_dumped_at_once() {
    const COUNT: usize = 10_000;
    const BUDGET: usize = 4096;
    let mut logged = filled(COUNT);
    logged.bench.shard.large_value = 1000;
    let taken = take(&mut logged, BUDGET, &mut |slice| {
        let (some, other) = (slice * 37 % COUNT, slice * 61 % COUNT);
        vec![
            format!("HSET hash m{some} changed new{slice} x"),
            format!("HDEL hash m{other}"),
            format!("SADD set new{slice}"),
            format!("SREM set m{other}"),
            "SPOP set".to_owned(),
            format!("ZADD sorted {other} m{some} {slice} new{slice}"),
            format!("ZREM sorted m{other}"),
            format!("ZREMRANGEBYRANK sorted {slice} {}", slice + 1),
            format!("LPUSH list first{slice}"),
            format!("RPUSH list last{slice}"),
            format!("LSET list {} changed", slice % 100),
            format!("LINSERT list BEFORE m{} x", 100 + slice),
            format!("LREM list -1 m{other}"),
            "LTRIM list 1 -2".to_owned(),
        ]
    });
    // What changed is in the dump as well: 300 bytes a slice.
    assert!(taken.most < 2 * BUDGET, "{} bytes in one of {} slices", taken.most, taken.slices);
    assert!(taken.slices > 60, "{} slices", taken.slices);
    assert!(restored(&taken, &logged, u64::MAX) == dump(&logged.bench.shard), "another data set");
}

#[test]
fn the_dump_of_a_collection_that_grows_faster_than_it_is_dumped_ends() {
    const BUDGET: usize = 1024;
    let changes: [fn(usize) -> String; 6] = [
        |slice| format!("RPUSH list {}", words(slice, "")),
        |slice| format!("LPUSH list {}", words(slice, "")),
        |slice| format!("HSET hash {}", words(slice, " v")),
        |slice| format!("SADD set {}", words(slice, "")),
        |slice| format!("ZADD sorted {}", scored(slice)),
        // As long as it was: what is dumped goes, and as much comes.
        |slice| format!("RPUSH list {}\r\nLPOP list 600", words(slice, "")),
    ];
    for change in changes {
        let mut logged = filled(2000);
        logged.bench.shard.large_value = 1000;
        let taken = take(&mut logged, BUDGET, &mut |slice| vec![change(slice)]);
        // A collection that is dumped last has grown in all slices before, by nine kilobytes each.
        assert!(taken.slices < 1000, "{} slices: {:.20}", taken.slices, change(0));
        assert_same(&restored(&taken, &logged, u64::MAX), &dump(&logged.bench.shard));
    }
}

/// The last slice has nothing to say of the list, but as of when that is so: what shortened it must
/// not be done again.
#[test]
fn a_list_that_shrinks_to_its_dumped_part_is_not_shortened_twice() {
    let mut logged = filled(1000);
    logged.bench.shard.large_value = 1000;
    for key in ["hash", "set", "sorted"] {
        logged.run(&format!("DEL {key}"));
    }
    let mut taken = Taken { records: Vec::new(), start: logged.sequence, most: 0, slices: 0 };
    logged.bench.begin_snapshot();
    for last in [false, true] {
        let as_of = logged.sequence;
        let keep = &mut |record: &[u8]| taken.records.push(record.to_vec());
        assert_eq!(logged.bench.snapshot_slice(as_of, 2048, keep), last);
        let dumped = logged
            .bench
            .shard
            .store
            .partitions()
            .find_map(|partition| partition.partial_dump.as_ref())
            .map(|dump| &dump.part);
        if let Some(DumpedPart::Collection(Progress::Elements(dumped))) = dumped {
            let left = 1000 - dumped;
            assert!(left > 0, "all was dumped");
            logged.run(&format!("RPOP list {left}"));
        }
    }
    assert!(restored(&taken, &logged, u64::MAX) == dump(&logged.bench.shard), "another list");
}

/// 600 new names, each followed by `after`.
fn words(slice: usize, after: &str) -> String {
    (0..600).map(|number| format!("n{slice}x{number}{after} ")).collect()
}

/// 600 new members, which come after all others.
fn scored(slice: usize) -> String {
    (0..600).map(|number| format!("{slice}{number:03} n{slice}x{number} ")).collect()
}

/// Names of which about half are in a collection of [`filled`].
fn name() -> impl Strategy<Value = String> {
    (0..800u32).prop_map(|number| format!("m{number}"))
}

/// A change of a list of about `len` elements.
fn change_of_a_list(len: i32) -> impl Strategy<Value = String> {
    let name = move || (0..2 * len).prop_map(|number| format!("m{number}"));
    let place = move || -len..len;
    let few = move || 0..len / 20 + 2;
    prop_oneof![
        (name(), name()).prop_map(|(a, b)| format!("RPUSH list {a} {b}")),
        (name(), name()).prop_map(|(a, b)| format!("LPUSH list {a} {b}")),
        (name(), name()).prop_map(|(a, b)| format!("LPUSHX list {a} {b}")),
        name().prop_map(|a| format!("RPUSHX list {a}")),
        few().prop_map(|many| format!("LPOP list {many}")),
        few().prop_map(|many| format!("RPOP list {many}")),
        (place(), name()).prop_map(|(at, a)| format!("LSET list {at} {a}")),
        (name(), name()).prop_map(|(a, b)| format!("LINSERT list BEFORE {a} {b}")),
        (name(), name()).prop_map(|(a, b)| format!("LINSERT list AFTER {a} {b}")),
        (-3..3i32, name()).prop_map(|(many, a)| format!("LREM list {many} {a}")),
        (few(), few()).prop_map(|(first, last)| format!("LTRIM list {first} {}", -1 - last)),
        (len / 2..len).prop_map(|first| format!("LTRIM list {first} -1")),
        Just("LMOVE list list LEFT RIGHT".to_owned()),
        Just("LMOVE list list RIGHT LEFT".to_owned()),
        Just("LMOVE list other RIGHT LEFT".to_owned()),
        Just("LMOVE other list RIGHT LEFT".to_owned()),
    ]
}

fn change_by_name() -> impl Strategy<Value = String> {
    let score = || -50..1050i32;
    prop_oneof![
        (name(), name()).prop_map(|(a, b)| format!("HSET hash {a} x {b} y")),
        (name(), name()).prop_map(|(a, b)| format!("HDEL hash {a} {b}")),
        name().prop_map(|a| format!("HSETNX hash {a} z")),
        name().prop_map(|a| format!("HINCRBY hash number{a} 3")),
        (name(), name()).prop_map(|(a, b)| format!("SADD set {a} {b}")),
        (name(), name()).prop_map(|(a, b)| format!("SREM set {a} {b}")),
        (0..20u32).prop_map(|many| format!("SPOP set {many}")),
        name().prop_map(|a| format!("SMOVE set others {a}")),
        (name(), score(), name(), score()).prop_map(|(a, x, b, y)| format!("ZADD sorted {x} {a} {y} {b}")),
        (name(), score()).prop_map(|(a, by)| format!("ZINCRBY sorted {by} {a}")),
        (name(), name()).prop_map(|(a, b)| format!("ZREM sorted {a} {b}")),
        (0..20u32).prop_map(|many| format!("ZPOPMIN sorted {many}")),
        (0..20u32).prop_map(|many| format!("ZPOPMAX sorted {many}")),
        (0..400i32, 0..20i32)
            .prop_map(|(first, many)| format!("ZREMRANGEBYRANK sorted {first} {}", first + many)),
        (score(), 0..20i32).prop_map(|(low, by)| format!("ZREMRANGEBYSCORE sorted {low} {}", low + by)),
    ]
}

/// Replaces, empties, or gives a time to live.
fn change_as_a_whole() -> impl Strategy<Value = String> {
    let key = || prop::sample::select(vec!["hash", "list", "set", "sorted"]);
    prop_oneof![
        key().prop_map(|key| format!("PEXPIREAT {key} 1800000000000")),
        key().prop_map(|key| format!("PERSIST {key}")),
        key().prop_map(|key| format!("PEXPIRE {key} 40")),
        Just("TIME-PASSES".to_owned()),
        key().prop_map(|key| format!("DEL {key}")),
        (key(), key()).prop_map(|(from, to)| format!("RENAME {from} {to}")),
        (key(), key()).prop_map(|(from, to)| format!("COPY {from} {to} REPLACE")),
        key().prop_map(|key| format!("SET {key} text")),
        Just("SORT list ALPHA STORE list".to_owned()),
        Just("SUNIONSTORE set set others".to_owned()),
        Just("ZUNIONSTORE sorted 2 sorted set".to_owned()),
        Just("LTRIM list 1 0".to_owned()),
        Just("ZREMRANGEBYRANK sorted 0 -1".to_owned()),
        Just("SPOP set 10000".to_owned()),
    ]
}

fn changes() -> impl Strategy<Value = Vec<Vec<String>>> {
    let change = prop_oneof![20 => change_of_a_list(400), 20 => change_by_name(), 1 => change_as_a_whole()];
    prop::collection::vec(prop::collection::vec(change, 0..8), 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn values_that_change_while_they_are_dumped_survive_a_crash_at_any_time(
        during in changes(),
        after in changes(),
        budget in 20..400usize,
    ) {
        let mut logged = filled(400);
        logged.bench.shard.large_value = 100;
        let taken = take(&mut logged, budget, &mut |slice| during.get(slice).cloned().unwrap_or_default());
        // The snapshot counts from here on. A crash finds it, and the log up to some record.
        prop_assert_eq!(restored(&taken, &logged, logged.sequence), dump(&logged.bench.shard));
        for commands in after.iter().take(8) {
            commands.iter().for_each(|command| logged.run(command));
            prop_assert_eq!(restored(&taken, &logged, logged.sequence), dump(&logged.bench.shard));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// With a short key, and so with short pieces: changes meet the end of what is dumped.
    #[test]
    fn a_short_list_that_changes_while_it_is_dumped_is_the_same(
        during in prop::collection::vec(prop::collection::vec(change_of_a_list(40), 0..8), 0..20),
    ) {
        let mut logged = Logged::new();
        (0..40).for_each(|number| logged.run(&format!("RPUSH l m{number}")));
        logged.bench.shard.large_value = 10;
        let taken = take(&mut logged, 1, &mut |slice| {
            let commands = during.get(slice).into_iter().flatten();
            commands.map(|command| command.replace("list", "l")).collect()
        });
        prop_assert_eq!(restored(&taken, &logged, logged.sequence), dump(&logged.bench.shard));
    }
}

#[test]
fn a_score_of_negative_zero_is_kept() {
    let mut logged = Logged::new();
    // A small set does not know it, one that is large does, and goes on with it when it has become
    // smaller.
    logged.run("ZADD small -0 a");
    for number in 0..200 {
        logged.run(&format!("ZADD large {number} m{number}"));
    }
    logged.run("ZADD large -0 first");
    logged.run("ZADD cut -0 before");
    logged.run("ZUNIONSTORE cut 1 large WEIGHTS -1");
    logged.run("ZREMRANGEBYRANK cut 0 -3");
    let had = dump(&logged.bench.shard);
    assert!(had.iter().any(|line| line.contains("-0")), "{had:?}");
    let nothing = Taken { records: Vec::new(), start: 0, most: 0, slices: 0 };
    assert_eq!(restored(&nothing, &logged, u64::MAX), had, "from the log");
    let taken = take(&mut logged, 100, &mut |_| Vec::new());
    assert_eq!(restored(&taken, &logged, u64::MAX), had, "from a snapshot");
}
