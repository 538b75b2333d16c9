//! A shard that holds the partitions of others answers as one that has all keys.

use std::process::Command;

use sietch_kv_programs::connection::encode;
use sietch_kv_programs::generate::{Step, program};
use sietch_kv_programs::reply::{Comparison, Reply};

use super::recovery::dump;
use super::*;
use crate::data::keyspace::Partition;

/// Random programs whose replies are compared.
const PROGRAMS: u64 = 40;

/// Two tests that take long and whose commands have one key each, and two that expect numbers of
/// the slow log, which depend on the number of shards.
const SKIPPED: [&str; 4] = [
    "limits::a_change_of_many_elements_by_any_command_is_replayed",
    "limits::pops_of_more_elements_than_an_effect_has_arguments_are_replayed",
    "observation::debug_sleeps_and_refuses_everything_else_by_name",
    "observation::slow_commands_are_logged_without_secrets",
];

/// The tests of this folder once more, each with its keys in three partitions.
#[test]
fn all_tests_hold_with_the_keys_in_three_partitions() {
    let program = std::env::current_exe().expect("the path of this program");
    let mut again = Command::new(program);
    again.env(PARTITIONS, "3").args(["shard::tests::", "--skip", "shard::tests::partitions::"]);
    again.args(SKIPPED.iter().flat_map(|name| ["--skip", name]));
    let output = again.output().expect("it starts");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}");
    assert!(!report.contains("running 0 tests"), "{report}");
}

fn reply(bench: &mut Bench, client: ClientId, words: &[Vec<u8>]) -> Option<Reply> {
    bench.shard.feed(client, &encode(words), bench.now);
    let mut output = drain(bench, client);
    if output.is_empty() {
        // It blocks, and no other client will wake it.
        bench.pass(1000);
        output = drain(bench, client);
    }
    Reply::parse(&output).map(|(reply, _)| reply)
}

fn drain(bench: &mut Bench, client: ClientId) -> Vec<u8> {
    bench.sequence += 1;
    bench.shard.seal(bench.sequence);
    bench.shard.durable(bench.sequence);
    let output = bench.shard.output(client).to_vec();
    bench.shard.consumed(client, output.len());
    output
}

/// Whether two replies are equal as far as they are defined. `queued` says how those of a
/// transaction are compared.
fn is_same(step: &Step, one: Option<Reply>, three: Option<Reply>, queued: &mut Vec<Comparison>) -> bool {
    let (Some(one), Some(three)) = (one, three) else { return false };
    if one == Reply::Simple(b"QUEUED".to_vec()) {
        queued.push(step.comparison);
        return one == three;
    }
    let modes = match step.words[0].to_ascii_lowercase().as_slice() {
        b"exec" | b"discard" | b"reset" => std::mem::take(queued),
        _ => Vec::new(),
    };
    match (one, three) {
        (Reply::Array(one), Reply::Array(three)) if !modes.is_empty() => {
            let pairs = modes.iter().zip(one.iter().cloned().zip(three.iter().cloned()));
            one.len() == three.len()
                && pairs.into_iter().all(|(mode, (a, b))| mode.normal(a) == mode.normal(b))
        }
        (one, three) => step.comparison.normal(one) == step.comparison.normal(three),
    }
}

/// The bytes that are counted are compared, too, until the shards have chosen elements at random. A
/// command that is refused changes nothing.
#[test]
fn random_programs_are_answered_alike_from_one_partition_and_from_three() {
    let mut compared = 0;
    for seed in 0..PROGRAMS {
        let mut benches = [1, 3].map(|partitions| Bench::spread(Settings::default(), partitions));
        let clients = benches.each_mut().map(Bench::connect);
        benches[0].shard.enable_journal(true);
        let (mut queued, mut random) = (Vec::new(), false);
        for step in program(seed) {
            let before = dump(&benches[0].shard);
            let [one, three] = [0, 1].map(|at| reply(&mut benches[at], clients[at], &step.words));
            let effects = benches[0].shard.journal().take();
            if let Some(Reply::Error(_)) = one {
                let what = format!("seed {seed}: {}: a refused command", show(&step.words));
                assert_eq!(dump(&benches[0].shard), before, "{what} has changed data");
                assert_eq!(effects, None, "{what} has recorded an effect");
            }
            let shown = format!("seed {seed}: {}: {one:?}, {three:?}", show(&step.words));
            random |= step.comparison == Comparison::Shape;
            assert!(is_same(&step, one, three, &mut queued), "{shown}");
            compared += 1;
            let [one, three] = benches.each_ref().map(|bench| bench.shard.store.weight());
            assert!(random || one.dumped == three.dumped, "{shown}");
        }
    }
    assert!(compared > PROGRAMS * 20, "{compared} replies were compared");
}

fn show(words: &[Vec<u8>]) -> String {
    words.iter().map(|word| format!("{} ", word.escape_ascii())).collect()
}

/// A bench of three partitions, each with some of `count` keys.
fn filled(count: usize) -> (Bench, ClientId) {
    let mut bench = Bench::spread(Settings::default(), 3);
    let client = bench.connect();
    for number in 0..count {
        bench.request(client, &format!("SET key{number} value"));
    }
    assert!(bench.shard.store.partitions().all(|partition| !partition.databases()[0].index().is_empty()));
    (bench, client)
}

#[test]
fn a_scan_visits_each_key_of_all_partitions_once() {
    for count in [1, 7, 100, 1000] {
        let (mut bench, client) = filled(500);
        let mut found: Vec<String> = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let reply = bench.request(client, &format!("SCAN {cursor} COUNT {count}"));
            let words: Vec<&str> = reply.split("\r\n").collect();
            cursor = words[2].to_owned();
            found.extend(words.iter().filter(|word| word.starts_with("key")).map(|&word| word.to_owned()));
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found.len(), 500, "COUNT {count}");
        found.sort();
        found.dedup();
        assert_eq!(found.len(), 500, "COUNT {count}");
    }
}

#[test]
fn a_cursor_that_no_scan_returned_ends_the_scan() {
    let (mut bench, client) = filled(50);
    for cursor in [u64::MAX, 3 << 48, (3 << 48) - 1] {
        let reply = bench.request(client, &format!("SCAN {cursor}"));
        assert_eq!(reply, "*2\r\n$1\r\n0\r\n*0\r\n", "{cursor}");
    }
}

#[test]
fn random_keys_come_from_partitions_in_proportion_to_their_keys() {
    let (mut bench, client) = filled(30);
    let placement = bench.shard.store.placement();
    let (mut chosen, mut there) = ([0; 3], [0; 3]);
    (0..30).for_each(|number| there[placement.shard_of(format!("key{number}").as_bytes())] += 1);
    for _ in 0..3000 {
        let reply = bench.request(client, "RANDOMKEY");
        chosen[placement.shard_of(reply.split("\r\n").nth(1).expect("a key").as_bytes())] += 1;
    }
    for (chosen, there) in chosen.iter().zip(there) {
        assert!((there * 75..there * 125).contains(chosen), "{chosen} of {there} keys in 3000 of 30");
    }
}

#[test]
fn a_partition_keeps_its_keys_and_their_bytes_when_it_moves() {
    let (mut bench, client) = filled(60);
    let (weight, keys) = (bench.shard.store.weight(), bench.shard.keys());
    bench.apart(|bench| {
        let shards = || [&bench.shard].into_iter().chain(&bench.others);
        assert_eq!(shards().map(Shard::keys).sum::<usize>(), keys);
        assert_eq!(shards().map(|shard| shard.store.weight().memory).sum::<usize>(), weight.memory);
        for shard in shards() {
            let placement = shard.store.placement();
            let entries = shard.store.own().databases()[0].index().iter();
            for entry in entries {
                assert!(placement.is_own(crate::data::index::Keyed::key(entry)));
            }
        }
    });
    assert_eq!(bench.shard.store.weight().memory, weight.memory);
    bench.request(client, "FLUSHALL");
    assert_eq!((bench.shard.store.weight().memory, bench.shard.keys()), (0, 0));
    assert!(bench.shard.store.partitions().all(Partition::has_pending_frees), "each frees its own keys");
    bench.apart(|bench| bench.others.iter_mut().for_each(|other| other.tick(bench.now)));
    bench.pass(1);
    assert!(!bench.shard.store.has_pending_frees());
}

#[test]
fn a_flush_aborts_the_snapshot_of_every_partition() {
    for command in ["FLUSHALL", "FLUSHDB", "SWAPDB 0 1"] {
        let (mut bench, client) = filled(50);
        bench.begin_snapshot();
        assert!(!bench.snapshot_aborted());
        bench.request(client, command);
        bench.apart(|bench| {
            assert!(bench.shard.snapshot_aborted(), "{command}");
            assert!(bench.others.iter().all(Shard::snapshot_aborted), "{command}");
        });
    }
}

/// A client may end its watches and its waiting while the partition of the key is elsewhere.
#[test]
fn a_client_that_leaves_is_forgotten_by_partitions_that_are_elsewhere() {
    let (mut bench, client) = filled(30);
    let leaving = bench.connect();
    let placement = bench.shard.store.placement();
    let foreign = (0..).map(|number| format!("list{number}"));
    let foreign = foreign.into_iter().find(|key| !placement.is_own(key.as_bytes())).expect("there are many");
    bench.request(leaving, &format!("WATCH {foreign}"));
    bench.request(leaving, &format!("BLPOP {foreign} 0"));
    let database_key = (0, foreign.as_bytes().into());
    assert_eq!(bench.shard.store.waiters(&database_key).len(), 1);
    bench.apart(|bench| bench.shard.disconnect(leaving));
    assert_eq!(bench.shard.store.waiters(&database_key), []);
    assert!(bench.shard.store.partitions().all(|partition| !partition.is_awaited()));
    assert_eq!(bench.request(client, &format!("RPUSH {foreign} element")), ":1\r\n");
    assert_eq!(bench.shard.next_deadline(), None, "no key is ready");
}

#[test]
fn waiting_clients_are_served_in_the_order_of_changes_in_all_partitions() {
    let (mut bench, client) = filled(30);
    for number in 0..9 {
        let waiting = bench.connect();
        bench.request(waiting, &format!("BLMOVE list{number} served LEFT RIGHT 0"));
    }
    bench.request(client, "MULTI");
    for number in [5, 0, 8, 3, 7, 1, 6, 2, 4] {
        bench.request(client, &format!("RPUSH list{number} {number}"));
    }
    bench.request(client, "EXEC");
    let reply = bench.request(client, "LRANGE served 0 -1");
    let served: Vec<&str> = reply.split("\r\n").skip(2).step_by(2).collect();
    assert_eq!(served, ["5", "0", "8", "3", "7", "1", "6", "2", "4"]);
}
