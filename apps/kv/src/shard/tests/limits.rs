//! Effects of commands on very many elements, and of very long keys, are read back.
//!
//! A record of the log is limited, and so is the number of arguments of an effect. Commands are
//! not: their effects are split, and replay must still give the same data set.

use super::recovery::dump;
use super::*;
use crate::data::journal::{self, EFFECTS, MOST_ARGUMENTS};

/// A command in RESP.
pub(super) fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// `count` elements of four bytes, sent to `key` by commands of a hundred thousand; for a sorted
/// set each with its score.
fn fill(bench: &mut Bench, client: ClientId, command: &str, key: &str, count: u32) {
    let numbers: Vec<u32> = (0..count).collect();
    for part in numbers.chunks(100_000) {
        let mut text = Vec::new();
        for number in part {
            if command == "ZADD" {
                text.push(number.to_string().into_bytes());
            }
            text.push(number.to_be_bytes().to_vec());
        }
        let mut words = vec![command.as_bytes(), key.as_bytes()];
        words.extend(text.iter().map(Vec::as_slice));
        bench.shard.feed(client, &encode(&words), bench.now);
        assert!(bench.output(client).starts_with(':'));
    }
}

/// Runs commands, and then replays what was recorded of them: how many keys are left.
fn survives(prepare: &[(&str, &str, u32)], commands: &[&str]) -> usize {
    let mut bench = Bench::new();
    bench.shard.enable_journal(true);
    let client = bench.connect();
    for &(command, key, count) in prepare {
        fill(&mut bench, client, command, key, count);
    }
    for command in commands {
        let reply = bench.request(client, command);
        assert!(!reply.starts_with('-') && !reply.is_empty(), "{command}: {reply}");
    }
    let record = bench.shard.journal().take().expect("there are effects");
    let mut again = Bench::new();
    again.shard.replay(1, &record, bench.now).expect("its own record");
    again.shard.finish_recovery().expect("nothing was refused");
    assert_eq!(again.shard.metrics().replay_skipped, 0);
    assert!(dump(&again.shard) == dump(&bench.shard), "{commands:?}: the log gives another data set");
    again.shard.keys()
}

#[test]
fn pops_of_more_elements_than_an_effect_has_arguments_are_replayed() {
    let count = MOST_ARGUMENTS as u32 + 70;
    let many = MOST_ARGUMENTS + 60;
    assert_eq!(survives(&[("SADD", "k", count)], &[&format!("SPOP k {many}")]), 1);
    let pops = [format!("ZPOPMIN k {many}"), format!("ZMPOP 1 l MAX COUNT {many}")];
    let sets = [("ZADD", "k", count), ("ZADD", "l", count)];
    assert_eq!(survives(&sets, &[&pops[0], &pops[1]]), 2);
    let pops = [format!("LPOP k {many}"), format!("LMPOP 1 l RIGHT COUNT {count}")];
    let lists = [("RPUSH", "k", count), ("RPUSH", "l", count)];
    assert_eq!(survives(&lists, &[&pops[0], &pops[1]]), 1);
}

/// Sends `words`, and replays what was recorded of that behind `prepare`: the same data set.
fn replays(prepare: &str, words: &[&[u8]]) {
    let mut bench = Bench::new();
    bench.shard.enable_journal(true);
    let client = bench.connect();
    bench.request(client, prepare);
    bench.shard.feed(client, &encode(words), bench.now);
    let reply = bench.output(client);
    assert!(!reply.starts_with('-') && !reply.is_empty(), "{}", &reply[..reply.len().min(100)]);
    let record = bench.shard.journal().take().expect("there are effects");
    let mut again = Bench::new();
    again.shard.replay(1, &record, bench.now).expect("its own record");
    again.shard.finish_recovery().expect("nothing was refused");
    assert!(dump(&again.shard) == dump(&bench.shard), "the log gives another data set");
}

#[test]
fn a_bitfield_of_more_arguments_than_an_effect_has_is_replayed() {
    // The string is longer than the command, which is recorded in its place otherwise.
    let mut words: Vec<&[u8]> = vec![b"BITFIELD", b"x"];
    for _ in 0..MOST_ARGUMENTS / 4 + 1 {
        words.extend([&b"SET"[..], b"u1", b"0", b"1"]);
    }
    words.extend([&b"SET"[..], b"u8", b"8", b"77"]);
    replays("SETRANGE x 4000000 y", &words);
    // Two operations behind 1,048,574 elements, of which the first sum is cut to the field.
    let mut words: Vec<&[u8]> = vec![b"BITFIELD", b"x", b"OVERFLOW", b"SAT"];
    for _ in 0..(MOST_ARGUMENTS - 4) / 4 {
        words.extend([&b"SET"[..], b"u1", b"0", b"1"]);
    }
    assert_eq!(words.len(), MOST_ARGUMENTS);
    words.extend([&b"INCRBY"[..], b"u8", b"16", b"200"]);
    words.extend([&b"INCRBY"[..], b"u8", b"16", b"100"]);
    replays("SETRANGE x 5000000 y", &words);
}

#[test]
fn a_change_of_many_elements_by_any_command_is_replayed() {
    let numbers: Vec<Vec<u8>> =
        (0..MOST_ARGUMENTS as u32 + 8).map(|number| number.to_string().into_bytes()).collect();
    let effect = |head: &[&'static [u8]]| {
        let mut words = head.to_vec();
        words.extend(numbers.iter().map(Vec::as_slice));
        words
    };
    let prepare = "RPUSH l first";
    for name in [&b"RPUSH"[..], b"lpush", b"RPUSHX", b"LPUSHX"] {
        replays(prepare, &effect(&[name, b"l"]));
    }
    for name in [&b"SADD"[..], b"HSET", b"hmset", b"ZADD"] {
        replays(prepare, &effect(&[name, b"k"]));
    }
    replays("SADD k 1 7 x", &effect(&[b"SREM", b"k"]));
    replays("HSET k 1 a 7 b x c", &effect(&[b"HDEL", b"k"]));
    replays("ZADD k 1 7 2 9 3 x", &effect(&[b"ZREM", b"k"]));
    replays("ZADD k 1 7 2 9 3 x", &effect(&[b"ZADD", b"k", b"XX", b"CH"]));
}

#[test]
fn an_effect_with_more_arguments_than_are_written_is_read() {
    let numbers: Vec<[u8; 4]> = (0..MOST_ARGUMENTS as u32 + 10).map(u32::to_be_bytes).collect();
    let mut effect: Vec<&[u8]> = vec![b"SADD", b"k"];
    effect.extend(numbers.iter().map(<[u8; 4]>::as_slice));
    let mut record = vec![EFFECTS];
    journal::encode(&mut record, 0, &effect);
    effect[0] = b"SREM";
    effect.pop();
    journal::encode(&mut record, 0, &effect);
    let mut bench = Bench::new();
    bench.shard.replay(1, &record, bench.now).expect("all its bytes are there");
    bench.shard.finish_recovery().expect("nothing was refused");
    let client = bench.connect();
    assert_eq!(bench.request(client, "SCARD k"), ":1\r\n");
}

#[test]
fn a_payload_of_many_commands_is_recorded_as_the_value_that_it_builds() {
    let mut bench = Bench::new();
    bench.shard.enable_journal(true);
    let client = bench.connect();
    let mut payload = b"SIETCH1\x03".to_vec();
    for number in 0..1000u32 {
        journal::encode(&mut payload, 0, &[b"SADD", b"", &number.to_be_bytes()]);
    }
    let sum = payload.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    payload.extend_from_slice(&sum.to_le_bytes());
    let key = vec![b'k'; 10_000];
    bench.shard.feed(client, &encode(&[b"RESTORE", &key, b"0", &payload]), bench.now);
    assert_eq!(bench.output(client), "+OK\r\n");
    let recorded = bench.shard.journal().record().map_or(0, <[u8]>::len);
    assert!(recorded < 4 * key.len(), "{recorded} bytes for a value of {} bytes", payload.len());
    let record = bench.shard.journal().take().expect("a value was built");
    let mut again = Bench::new();
    again.shard.replay(1, &record, bench.now).expect("its own record");
    again.shard.finish_recovery().expect("nothing was refused");
    assert_eq!(dump(&again.shard), dump(&bench.shard));
}

#[test]
fn replay_has_no_limits_of_its_own() {
    let mut bench = Bench::with(Settings { proto_max_bulk_len: 100_000, ..Settings::default() });
    bench.shard.enable_journal(true);
    let client = bench.connect();
    for command in [
        "SETRANGE range 90000 tail",
        "SETBIT bit 640007 1",
        "BITFIELD field SET u8 #90000 1",
        "SETRANGE end 9000 x",
        "APPEND end yz",
    ] {
        assert!(!bench.request(client, command).starts_with('-'), "{command}");
    }
    let record = bench.shard.journal().take().expect("there are effects");
    let mut again = Bench::with(Settings { proto_max_bulk_len: 9001, ..Settings::default() });
    again.shard.replay(1, &record, bench.now).expect("it was acknowledged");
    again.shard.finish_recovery().expect("nothing was refused");
    assert!(dump(&again.shard) == dump(&bench.shard), "the log gives another data set");
    let client = again.connect();
    assert!(again.request(client, "APPEND range x").starts_with('-'), "clients have the limit");
}

#[test]
fn an_effect_that_cannot_be_applied_is_damage_unless_its_key_is_deleted_later() {
    let mut record = vec![EFFECTS];
    journal::encode(&mut record, 0, &[b"SET", b"key", b"text"]);
    journal::encode(&mut record, 0, &[b"RPUSH", b"key", b"element"]);
    let mut bench = Bench::new();
    bench.shard.replay(3, &record, bench.now).expect("what follows may explain it");
    let error = bench.shard.finish_recovery().expect_err("nothing does").to_string();
    assert!(error.contains("record 3") && error.contains("RPUSH") && error.contains("'key'"), "{error}");
    for last in [&[&b"DEL"[..], b"key"][..], &[b"SET", b"key", b"new"]] {
        let mut bench = Bench::new();
        bench.shard.replay(3, &record, bench.now).expect("what follows may explain it");
        let mut more = vec![EFFECTS];
        journal::encode(&mut more, 0, last);
        bench.shard.replay(4, &more, bench.now).expect("it can be applied");
        bench.shard.finish_recovery().expect("it does not matter any more");
        assert_eq!(bench.shard.metrics().replay_skipped, 1);
    }
    // A key that the snapshot has is as it was.
    let mut snapshot = vec![journal::SNAPSHOT, 2];
    journal::encode(&mut snapshot, 0, &[b"SET", b"key", b"text"]);
    let mut bench = Bench::new();
    bench.shard.replay_snapshot(&snapshot).expect("it can be applied");
    assert!(bench.shard.replay(3, &record, bench.now).is_err());
}

#[test]
fn an_effect_that_fails_although_nothing_is_missing_is_damage_at_once() {
    let effects = |effects: &[&[&[u8]]]| {
        let mut record = vec![EFFECTS];
        effects.iter().for_each(|effect| journal::encode(&mut record, 0, effect));
        record
    };
    let fails = effects(&[&[b"LSET", b"new", b"7", b"x"]]);
    // The log is there from its first record on, and no snapshot lacks a key.
    assert!(Bench::new().shard.replay(1, &fails, Now::default()).is_err());
    let mut bench = Bench::new();
    bench.shard.replay(1, &effects(&[&[b"SET", b"key", b"text"]]), bench.now).expect("it can be applied");
    let error = bench.shard.replay(2, &fails, bench.now).expect_err("it was acknowledged").to_string();
    assert!(error.contains("record 2") && error.contains("LSET") && error.contains("'new'"), "{error}");
    // A snapshot explains what came before its walk had ended, of any key, and nothing that came
    // later.
    let mut walked = Bench::new();
    walked.begin_snapshot();
    let mut snapshot = Vec::new();
    assert!(walked.snapshot_slice(5, 1000, &mut |record| snapshot.push(record.to_vec())));
    for (sequence, harmless) in [(5, true), (6, false)] {
        let mut bench = Bench::new();
        for record in &snapshot {
            bench.shard.replay_snapshot(record).expect("its own record");
        }
        assert_eq!(bench.shard.replay(sequence, &fails, bench.now).is_ok(), harmless, "record {sequence}");
        assert_eq!(bench.shard.finish_recovery(), Ok(()));
    }
}

#[test]
fn an_effect_that_no_record_has_room_for_is_dumped_in_parts() {
    let mut bench = Bench::new();
    bench.shard.largest_record = 1000;
    let client = bench.connect();
    bench.request(client, &format!("SET long {}", "x".repeat(9000)));
    bench.request(client, &format!("HSET {} f v", "k".repeat(5000)));
    bench.request(client, "SET short x");
    let (mut again, mut records) = (Bench::new(), 0);
    bench.begin_snapshot();
    bench.snapshot_slice(1, usize::MAX / 2, &mut |record| {
        assert!(record.len() <= 1000, "{} bytes", record.len());
        records += 1;
        again.shard.replay_snapshot(record).expect("its own record");
    });
    assert!(records > 14, "{records} records");
    again.shard.finish_recovery().expect("nothing was refused");
    assert_eq!(dump(&again.shard), dump(&bench.shard));
    let mut cut = Bench::new();
    cut.shard.replay_snapshot(&[journal::PART, journal::SNAPSHOT]).expect("more follows");
    assert!(cut.shard.finish_recovery().is_err(), "the last part is missing");
}

/// Seconds of the processor that a command takes at best, in three runs.
fn seconds(bench: &mut Bench, client: ClientId, command: &str) -> f64 {
    let now = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let run = |_| {
        let begin = now();
        assert!(bench.request(client, command).starts_with('*'));
        now() - begin
    };
    (0..3).map(run).fold(f64::MAX, f64::min)
}

#[test]
fn a_random_element_costs_the_same_in_any_packed_collection() {
    let mut bench = Bench::new();
    let client = bench.connect();
    for (long, name) in [(4, "few"), (128, "many"), (512, "many")] {
        let all: String = (0..long).map(|number| format!(" {number} m{number}")).collect();
        bench.request(client, &format!("HSET hash:{name}{all}"));
        if long <= 128 {
            let all: String = (0..long).map(|number| format!(" m{number}")).collect();
            bench.request(client, &format!("SADD set:{name}{all}"));
            let all: String = (0..long).map(|number| format!(" {number} m{number}")).collect();
            bench.request(client, &format!("ZADD sorted:{name}{all}"));
        }
    }
    for (command, key) in [("HRANDFIELD", "hash"), ("SRANDMEMBER", "set"), ("ZRANDMEMBER", "sorted")] {
        let few = seconds(&mut bench, client, &format!("{command} {key}:few -20000"));
        let many = seconds(&mut bench, client, &format!("{command} {key}:many -20000"));
        assert!(many < 6.0 * few, "{command}: {few} s of few elements, {many} s of many");
    }
}
