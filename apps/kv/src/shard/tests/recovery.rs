//! Replay of the log and fuzzy snapshots give the same data set again.
//!
//! Random commands run in a shard while a snapshot is taken. A second shard replays the records
//! that a crash would leave, and both data sets are compared.

use proptest::prelude::*;

use super::*;

/// Every key with its value and expiry as the commands that build it, in order.
pub(super) fn dump(shard: &Shard) -> Vec<String> {
    let mut all = Vec::new();
    let databases = shard.store.partitions().flat_map(|partition| partition.databases().iter().enumerate());
    for (number, database) in databases {
        for entry in database.index().iter() {
            let mut words: Vec<String> = Vec::new();
            let mut in_order = true;
            entry.rebuild(&mut |arguments| {
                let ordered = matches!(arguments[0], b"RPUSH" | b"SET" | b"PEXPIREAT");
                let pair = if arguments[0] == b"HSET" || arguments[0] == b"ZADD" { 2 } else { 1 };
                let mut parts: Vec<String> = arguments[2..]
                    .chunks(pair)
                    .map(|part| {
                        format!("{:?}", part.iter().map(|p| String::from_utf8_lossy(p)).collect::<Vec<_>>())
                    })
                    .collect();
                in_order &= ordered;
                let name = String::from_utf8_lossy(arguments[0]).into_owned();
                words.extend((words.first() != Some(&name)).then_some(name));
                words.append(&mut parts);
            });
            if !in_order {
                // In several commands the elements come in the order of a table.
                words[1..].sort();
            }
            let key = String::from_utf8_lossy(crate::data::index::Keyed::key(entry)).into_owned();
            all.push(format!("{number} {key} {words:?}"));
        }
    }
    all.sort();
    all
}

fn key() -> impl Strategy<Value = String> {
    (0..8u8).prop_map(|number| format!("k{number}"))
}

fn command() -> impl Strategy<Value = String> {
    let word = || "[a-c]{1,3}";
    let number = || -20..20i64;
    prop_oneof![
        (key(), word()).prop_map(|(k, v)| format!("SET {k} {v}")),
        (key(), number()).prop_map(|(k, n)| format!("SET {k} {n} PX {}", 50 + n)),
        (key(), word()).prop_map(|(k, v)| format!("SET {k} {v} KEEPTTL")),
        (key(), word()).prop_map(|(k, v)| format!("APPEND {k} {v}")),
        (key(), 0..40u8, 0..2u8).prop_map(|(k, at, bit)| format!("SETBIT {k} {at} {bit}")),
        (key(), 0..9u8, word()).prop_map(|(k, at, v)| format!("SETRANGE {k} {at} {v}")),
        (key(), number()).prop_map(|(k, n)| format!("INCRBY {k} {n}")),
        (key(), number()).prop_map(|(k, n)| format!("INCRBYFLOAT {k} {n}.25")),
        (key(), key()).prop_map(|(a, b)| format!("BITOP XOR {a} {a} {b}")),
        (key(), key()).prop_map(|(a, b)| format!("MSET {a} 1 {b} 2")),
        (key(), number()).prop_map(|(k, n)| format!("PEXPIRE {k} {}", n * 10)),
        key().prop_map(|k| format!("PERSIST {k}")),
        key().prop_map(|k| format!("GETDEL {k}")),
        (key(), key()).prop_map(|(a, b)| format!("DEL {a} {b}")),
        (key(), key()).prop_map(|(a, b)| format!("RENAME {a} {b}")),
        (key(), key()).prop_map(|(a, b)| format!("COPY {a} {b} REPLACE")),
        (key(), 0..3u8).prop_map(|(k, db)| format!("MOVE {k} {db}")),
        (0..3u8).prop_map(|db| format!("SELECT {db}")),
        (key(), word(), word()).prop_map(|(k, a, b)| format!("RPUSH {k} {a} {b}")),
        key().prop_map(|k| format!("LPOP {k}")),
        (key(), key()).prop_map(|(a, b)| format!("LMOVE {a} {b} LEFT RIGHT")),
        (key(), word(), number()).prop_map(|(k, a, n)| format!("SADD {k} {a} {n}")),
        key().prop_map(|k| format!("SPOP {k}")),
        (key(), key(), key()).prop_map(|(a, b, c)| format!("SUNIONSTORE {a} {b} {c}")),
        (key(), word(), word()).prop_map(|(k, f, v)| format!("HSET {k} {f} {v}")),
        (key(), word()).prop_map(|(k, f)| format!("HINCRBY {k} {f} 3")),
        (key(), number(), word()).prop_map(|(k, n, m)| format!("ZADD {k} {n} {m}")),
        (key(), word()).prop_map(|(k, m)| format!("ZINCRBY {k} 0.5 {m}")),
        key().prop_map(|k| format!("ZPOPMIN {k}")),
        (key(), number(), number()).prop_map(|(k, a, b)| format!("ZREMRANGEBYRANK {k} {a} {b}")),
        (key(), word()).prop_map(|(k, m)| format!("ZREM {k} {m}")),
        (key(), number(), number()).prop_map(|(k, a, b)| format!("LTRIM {k} {a} {b}")),
        (key(), word()).prop_map(|(k, a)| format!("LREM {k} 0 {a}")),
        (key(), word()).prop_map(|(k, a)| format!("LSET {k} 0 {a}")),
        (key(), key()).prop_map(|(a, b)| format!("SORT {a} ALPHA STORE {b}")),
        Just("TIME-PASSES".to_owned()),
    ]
}

fn rare_command() -> impl Strategy<Value = String> {
    prop_oneof![
        60 => command(),
        1 => Just("FLUSHDB".to_owned()),
        1 => Just("FLUSHALL".to_owned()),
        1 => Just("SWAPDB 0 1".to_owned()),
    ]
}

/// Runs commands, one record each; (sequence, record) of those with effects.
pub(super) struct Logged {
    pub(super) bench: Bench,
    client: ClientId,
    pub(super) log: Vec<(u64, Vec<u8>)>,
    pub(super) sequence: u64,
}

impl Logged {
    pub(super) fn new() -> Self {
        let mut bench = Bench::new();
        bench.shard.enable_journal(true);
        let client = bench.connect();
        Self { bench, client, log: Vec::new(), sequence: 0 }
    }

    pub(super) fn run(&mut self, command: &str) {
        if command == "TIME-PASSES" {
            self.bench.pass(30);
        } else {
            let reply = self.bench.request(self.client, command);
            assert!(!reply.starts_with("-ERR unknown"), "{reply}");
        }
        if let Some(record) = self.bench.shard.journal().take() {
            self.sequence += 1;
            self.log.push((self.sequence, record));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_log_gives_the_data_set_again(
        commands in prop::collection::vec(rare_command(), 1..120),
    ) {
        let mut logged = Logged::new();
        commands.iter().for_each(|command| logged.run(command));
        let mut again = Bench::new();
        for (sequence, record) in &logged.log {
            again.shard.replay(*sequence, record, logged.bench.now).expect("its own record");
        }
        again.shard.finish_recovery().expect("nothing was refused");
        prop_assert_eq!(again.shard.metrics().replay_skipped, 0);
        prop_assert_eq!(dump(&again.shard), dump(&logged.bench.shard));
        prop_assert_eq!(again.shard.store.weight().memory > 0, !dump(&again.shard).is_empty());
    }

    #[test]
    fn a_snapshot_taken_while_commands_run_and_the_log_give_the_data_set_again(
        before in prop::collection::vec(command(), 0..60),
        during in prop::collection::vec((rare_command(), any::<bool>()), 0..60),
        fill in 0..300usize,
        after in prop::collection::vec(command(), 0..30),
        large in any::<bool>(),
    ) {
        let mut logged = Logged::new();
        if large {
            // Every collection is dumped element by element.
            logged.bench.shard.large_value = 0;
        }
        for number in 0..fill {
            logged.run(&format!("SET fill{number} x"));
        }
        before.iter().for_each(|command| logged.run(command));
        let mut start = logged.sequence;
        let mut snapshot: Vec<Vec<u8>> = Vec::new();
        logged.bench.begin_snapshot();
        let mut done = false;
        for (command, slice) in during {
            logged.run(&command);
            if slice && !done {
                let as_of = logged.sequence;
                let keep = &mut |record: &[u8]| snapshot.push(record.to_vec());
                done = logged.bench.snapshot_slice(as_of, 1, keep);
            }
            if logged.bench.snapshot_aborted() {
                snapshot.clear();
                start = logged.sequence;
                logged.bench.begin_snapshot();
                done = false;
            }
        }
        while !done {
            let as_of = logged.sequence;
            let keep = &mut |record: &[u8]| snapshot.push(record.to_vec());
            done = logged.bench.snapshot_slice(as_of, 1000, keep);
        }
        prop_assert!(!logged.bench.snapshot_aborted());
        after.iter().for_each(|command| logged.run(command));

        let mut again = Bench::new();
        for record in &snapshot {
            again.shard.replay_snapshot(record).expect("its own record");
        }
        for (sequence, record) in logged.log.iter().filter(|(sequence, _)| *sequence > start) {
            again.shard.replay(*sequence, record, logged.bench.now).expect("its own record");
        }
        again.shard.finish_recovery().expect("nothing was refused");
        prop_assert_eq!(dump(&again.shard), dump(&logged.bench.shard));
    }
}

#[test]
fn a_key_that_was_emptied_ahead_of_the_walk_stays_deleted() {
    let mut logged = Logged::new();
    logged.run("ZADD z 1 a 2 b");
    logged.run("RPUSH l a");
    let start = logged.sequence;
    logged.bench.begin_snapshot();
    // Each of these leaves nothing of what was there before, and something of what comes now if
    // that is all there is.
    for command in ["ZADD z 3 c", "ZREMRANGEBYRANK z 1 2", "ZREM z a"] {
        logged.run(command);
    }
    for command in ["RPUSH l b", "LTRIM l 0 0", "LREM l 0 a"] {
        logged.run(command);
    }
    assert_eq!(logged.bench.shard.keys(), 0);
    let mut again = Bench::new();
    let as_of = logged.sequence;
    logged.bench.snapshot_slice(as_of, usize::MAX / 2, &mut |record| {
        again.shard.replay_snapshot(record).expect("its own record");
    });
    for (sequence, record) in logged.log.iter().filter(|(sequence, _)| *sequence > start) {
        again.shard.replay(*sequence, record, logged.bench.now).expect("its own record");
    }
    again.shard.finish_recovery().expect("nothing was refused");
    assert_eq!(dump(&again.shard), [""; 0]);
}

/// Between names of different scores is whatever the tree by score finds, and a tree that
/// was loaded is another than one that has grown.
#[test]
fn elements_removed_by_a_range_of_names_are_removed_at_replay() {
    let mut logged = Logged::new();
    for number in 0..2000u32 {
        let scattered = number.wrapping_mul(2_654_435_761);
        logged.run(&format!("ZADD z {} m{number:04}", scattered % 10_000));
    }
    for number in (0..2000).step_by(3) {
        logged.run(&format!("ZREM z m{number:04}"));
    }
    let mut again = Bench::new();
    let as_of = logged.sequence;
    logged.bench.begin_snapshot();
    logged.bench.snapshot_slice(as_of, usize::MAX / 2, &mut |record| {
        again.shard.replay_snapshot(record).expect("its own record");
    });
    for low in [100, 400, 700, 1000, 1300] {
        logged.run(&format!("ZREMRANGEBYLEX z [m{low:04} [m{:04}", low + 50));
    }
    assert!(logged.sequence > as_of, "nothing was removed");
    for (sequence, record) in logged.log.iter().filter(|(sequence, _)| *sequence > as_of) {
        again.shard.replay(*sequence, record, logged.bench.now).expect("its own record");
    }
    again.shard.finish_recovery().expect("nothing was refused");
    assert!(dump(&again.shard) == dump(&logged.bench.shard), "others were removed");
}

#[test]
fn a_large_value_is_dumped_in_slices_also_if_it_changes_meanwhile() {
    let mut logged = Logged::new();
    logged.bench.shard.large_value = 1000;
    for number in 0..3000 {
        logged.run(&format!("SADD set member{number}"));
        logged.run(&format!("HSET hash field{number} {number}"));
        logged.run(&format!("ZADD sorted {number} member{number}"));
        logged.run(&format!("RPUSH list element{number}"));
    }
    logged.run("PEXPIREAT set 1800000000000");
    let start = logged.sequence;
    let mut snapshot: Vec<Vec<u8>> = Vec::new();
    logged.bench.begin_snapshot();
    let mut slices = 0;
    loop {
        let (as_of, mut bytes) = (logged.sequence, 0);
        let done = logged.bench.snapshot_slice(as_of, 4096, &mut |record| {
            bytes += record.len();
            snapshot.push(record.to_vec());
        });
        assert!(bytes < 5 * 4096, "{bytes} bytes in one slice");
        slices += 1;
        if done {
            break;
        }
        match slices {
            3 => ["LPOP list", "SREM set member7", "HSET hash field7 x", "ZINCRBY sorted 5000 member7"]
                .iter()
                .for_each(|command| logged.run(command)),
            20 => ["DEL list", "DEL set", "DEL hash", "DEL sorted"][as_of as usize % 4..]
                .iter()
                .take(1)
                .for_each(|command| logged.run(command)),
            _ => {}
        }
    }
    assert!(slices > 20, "{slices} slices");
    let mut again = Bench::new();
    for record in &snapshot {
        again.shard.replay_snapshot(record).expect("its own record");
    }
    for (sequence, record) in logged.log.iter().filter(|(sequence, _)| *sequence > start) {
        again.shard.replay(*sequence, record, logged.bench.now).expect("its own record");
    }
    again.shard.finish_recovery().expect("nothing was refused");
    assert!(dump(&again.shard) == dump(&logged.bench.shard), "the snapshot gives another data set");
}

/// Takes a snapshot in slices and runs what `between` says after each; then what snapshot and log
/// give is what is there. The bytes of the largest slice, and the slices.
fn sliced(
    logged: &mut Logged,
    budget: usize,
    between: &mut dyn FnMut(usize) -> Vec<String>,
) -> (usize, usize) {
    let start = logged.sequence;
    let mut snapshot: Vec<Vec<u8>> = Vec::new();
    logged.bench.begin_snapshot();
    let (mut slices, mut most) = (0, 0);
    loop {
        let (as_of, mut bytes) = (logged.sequence, 0);
        let done = logged.bench.snapshot_slice(as_of, budget, &mut |record| {
            bytes += record.len();
            snapshot.push(record.to_vec());
        });
        (slices, most) = (slices + 1, most.max(bytes));
        if done {
            break;
        }
        between(slices).iter().for_each(|command| logged.run(command));
    }
    let mut again = Bench::new();
    for record in &snapshot {
        again.shard.replay_snapshot(record).expect("its own record");
    }
    for (sequence, record) in logged.log.iter().filter(|(sequence, _)| *sequence > start) {
        again.shard.replay(*sequence, record, logged.bench.now).expect("its own record");
    }
    again.shard.finish_recovery().expect("nothing was refused");
    assert!(dump(&again.shard) == dump(&logged.bench.shard), "the snapshot gives another data set");
    (most, slices)
}

#[test]
fn a_huge_string_that_changes_is_dumped_in_slices() {
    let mut logged = Logged::new();
    logged.run("SETRANGE text 100000000 end");
    logged.run("PEXPIREAT text 1800000000000");
    let budget = 256 << 10;
    let (most, slices) = sliced(&mut logged, budget, &mut |_| Vec::new());
    assert!(most < budget + 1000 && slices > 380, "{most} bytes in one of {slices} slices");
    let (most, slices) = sliced(&mut logged, budget, &mut |slice| {
        let here = slice * budget - 4;
        vec![
            format!("SETRANGE text {here} changed{slice}"),
            format!("SETBIT text {} 1", 800_000_000 - slice * 1_000_000),
            format!("BITFIELD text INCRBY u32 {} 77777777 INCRBY u16 {} -3", here * 8, here * 8 + 20),
            format!("APPEND text more{slice}"),
        ]
    });
    assert!(most < budget + 2000 && slices > 380, "{most} bytes in one of {slices} slices");
}

fn change_of_a_string() -> impl Strategy<Value = String> {
    let at = || 0..1200u32;
    prop_oneof![
        (at(), "[a-z]{1,40}").prop_map(|(at, text)| format!("SETRANGE s {at} {text}")),
        "[a-z]{1,40}".prop_map(|text| format!("APPEND s {text}")),
        (0..9600u32, 0..2u8).prop_map(|(at, bit)| format!("SETBIT s {at} {bit}")),
        (prop::collection::vec((1..64u8, 0..9600u32, any::<i32>()), 1..6), 0..3usize).prop_map(
            |(fields, overflow)| {
                let fields = fields.iter().map(|(width, at, by)| format!(" INCRBY u{width} {at} {by}"));
                let overflow = ["WRAP", "SAT", "FAIL"][overflow];
                format!("BITFIELD s OVERFLOW {overflow}{}", fields.collect::<String>())
            }
        ),
        (1..64u8, 0..9600u32, any::<u32>())
            .prop_map(|(width, at, to)| format!("BITFIELD s SET i{width} {at} {to}")),
        Just("PEXPIREAT s 1800000000000".to_owned()),
        Just("PERSIST s".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_string_that_changes_while_it_is_dumped_is_the_same_again(
        changes in prop::collection::vec(prop::collection::vec(
            prop_oneof![
                30 => change_of_a_string(),
                1 => "[a-z]{300,600}".prop_map(|text| format!("SET s {text}")),
                1 => "[a-z]{300,600}".prop_map(|text| format!("SET s {text} KEEPTTL")),
                1 => Just("DEL s".to_owned()),
                1 => Just("RENAME other s".to_owned()),
                1 => Just("RPUSH other element".to_owned()),
            ], 0..5), 0..60),
    ) {
        let mut logged = Logged::new();
        logged.bench.shard.large_value = 100;
        logged.run(&format!("SET s {}", "0123456789".repeat(100)));
        logged.run(&format!("SET other {}", "abcdefghij".repeat(70)));
        sliced(&mut logged, 40, &mut |slice| changes.get(slice).cloned().unwrap_or_default());
    }
}
