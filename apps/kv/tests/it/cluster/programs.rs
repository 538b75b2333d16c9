//! Random programs: every reply of several shards is that of one, and the log has the same data.

use sietch_kv_programs::generate::{Step, program};
use sietch_kv_programs::oracle::Oracle;
use sietch_kv_programs::reply::Reply;

use super::harness::{Cluster, seeds, state};
use crate::compatibility::same_reply;

/// Programs in one run; a program is about 300 commands.
const PROGRAMS: u64 = 24;
/// Programs that redis-server runs beside.
const WITH_REDIS: u64 = 12;

fn show(step: &Step) -> String {
    step.words.iter().map(|word| format!("{:?} ", String::from_utf8_lossy(word))).collect()
}

/// Runs a program on one shard and on `count`. Returns how many sections there were.
fn compare(count: usize, seed: u64) -> usize {
    let steps = program(seed);
    let (mut one, mut many) = (Cluster::new(1, seed), Cluster::new(count, seed));
    many.now = one.now;
    let home = seed as usize % count;
    let (alone, client) = (one.connect(0), many.connect(home));
    if seed.is_multiple_of(2) {
        for (cluster, client) in [(&mut one, alone), (&mut many, client)] {
            cluster.request(client, "HELLO 3");
        }
    }
    let (mut queued, mut at, mut history) = (Vec::new(), 0, Vec::new());
    while at < steps.len() {
        let together = (1 + many.random.index(20)).min(steps.len() - at);
        let part = &steps[at..at + together];
        at += together;
        let commands: Vec<&[Vec<u8>]> = part.iter().map(|step| step.words.as_slice()).collect();
        let expected: Vec<Reply> = one.request_all(alone, &commands);
        let got = many.request_all(client, &commands);
        // Time passes where a command blocks.
        let latest = if one.now.monotonic_ns > many.now.monotonic_ns { one.now } else { many.now };
        (one.now, many.now) = (latest, latest);
        history.extend(part.iter().map(show));
        let before = || history[history.len().saturating_sub(30 + together)..].join("\n    ");
        assert_eq!(
            expected.len(),
            got.len(),
            "seed {seed}, {count} shards: replies are missing\n    {}\n  received: {:?}",
            before(),
            got.iter().map(Reply::to_string).collect::<Vec<_>>()
        );
        for (step, (expected, got)) in part.iter().zip(expected.into_iter().zip(got)) {
            let text = format!("{expected}\n  of several: {got}");
            assert!(
                same_reply(step, expected, got, &mut queued),
                "seed {seed}, {count} shards: {}\n  of one shard: {text}\n  commands before and after:\n    {}",
                show(step),
                before()
            );
        }
    }
    many.request(client, "DISCARD");
    let whole = state(&mut many);
    assert_eq!(state(&mut many.recovered()), whole, "seed {seed}, {count} shards: the log has other data");
    many.sections
}

#[test]
fn several_shards_answer_as_one_does() {
    let mut sections = 0;
    for seed in seeds(PROGRAMS) {
        for count in [2, 3, 5] {
            sections += compare(count, seed);
        }
    }
    assert!(sections > 0, "some commands need a section");
}

#[test]
fn several_shards_answer_as_redis_does() {
    let Some(mut oracle) = Oracle::start() else {
        eprintln!("SKIPPED several_shards_answer_as_redis_does: needs redis-server 7.0 in the path");
        return;
    };
    for seed in seeds(WITH_REDIS) {
        let steps = program(seed);
        let prologue: [&[Vec<u8>]; 3] = [
            &[b"RESET".to_vec()],
            &[b"FLUSHALL".to_vec()],
            &[b"HELLO".to_vec(), if seed.is_multiple_of(2) { b"3".to_vec() } else { b"2".to_vec() }],
        ];
        let commands: Vec<&[Vec<u8>]> =
            prologue.into_iter().chain(steps.iter().map(|step| step.words.as_slice())).collect();
        let expected = oracle.connection.request_all(&commands).expect("redis-server answers");
        let mut cluster = Cluster::new(2 + seed as usize % 3, seed);
        let client = cluster.connect(1);
        let got = commands.iter().flat_map(|command| cluster.request_all(client, &[command]));
        let got: Vec<Reply> = got.collect();
        assert_eq!(got.len(), expected.len(), "seed {seed}: replies are missing");
        let (mut queued, mut rest) = (Vec::new(), expected.into_iter().zip(got).skip(prologue.len()));
        for step in &steps {
            let Some((expected, got)) = rest.next() else { break };
            let text = format!("{expected}\n  of the shards: {got}");
            assert!(
                same_reply(step, expected, got, &mut queued),
                "seed {seed}: {}\n  of redis-server: {text}",
                show(step)
            );
        }
    }
}
