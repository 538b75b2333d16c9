//! The store answers as Redis 7.0 does.
//!
//! 1. Random programs of commands are generated from templates (`sietch_kv_programs::generate`) and
//!    a seed, over all families. Some have wrong types, wrong arguments or wrong numbers of
//!    arguments.
//! 2. Each program runs on a redis-server of its own on a Unix socket (`oracle`) and on a shard in
//!    this process, in RESP2 and in RESP3, from an empty store.
//! 3. The replies must be equal, byte for byte, except for what Redis does not define: the order of
//!    sets and hashes, random choices, remaining times (`reply`).
//!
//! The programs are the same each time, or fresh ones with `SIETCH_SIM_FRESH=1`. A failure prints
//! the seed; `KV_COMPATIBILITY_SEED=n` runs that seed again, and `KV_COMPATIBILITY_PROGRAMS=n` more
//! or fewer programs. Without redis-server 7.0 the test is skipped.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use sietch_kv::settings::Settings;
use sietch_kv::shard::Now;
use sietch_kv::shard::Shard;
use sietch_kv_programs::connection::encode;
use sietch_kv_programs::generate::{Step, is_key, program};
use sietch_kv_programs::oracle::Oracle;
use sietch_kv_programs::reply::{Comparison, Reply};

/// Programs in one run unless the environment says otherwise; a program is about 300 commands.
const PROGRAMS: u64 = 60;

/// Failures that are shown before a run stops.
const SHOWN: usize = 20;

/// Commands that are shown before a difference in a command without keys: a transaction with its
/// WATCH commands.
const SHOWN_WITHOUT_KEYS: usize = 40;

/// The side under test: a shard with one client.
struct Subject {
    shard: Shard,
    client: sietch_kv::shard::ClientId,
    now: Now,
    sequence: u64,
}

impl Subject {
    fn new(seed: u64) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let now = Now { monotonic_ns: 1_000_000_000, unix_ms: unix.as_millis() as u64 };
        let mut shard = Shard::new(Settings::default(), seed);
        let address = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let client = shard.connect(address, address, now).expect("the first client");
        Self { shard, client, now, sequence: 0 }
    }

    fn drain(&mut self) -> Vec<u8> {
        self.sequence += 1;
        self.shard.seal(self.sequence);
        self.shard.durable(self.sequence);
        let output = self.shard.output(self.client).to_vec();
        self.shard.consumed(self.client, output.len());
        output
    }

    fn request(&mut self, command: &[Vec<u8>]) -> Vec<u8> {
        self.shard.feed(self.client, &encode(command), self.now);
        let mut output = self.drain();
        if output.is_empty() {
            // It blocks, and no other client will wake it: let its timeout pass.
            self.now.monotonic_ns += 1_000_000_000;
            self.shard.tick(self.now);
            output = self.drain();
        }
        output
    }
}

fn show(command: &[Vec<u8>]) -> String {
    command.iter().map(|word| format!("{:?} ", String::from_utf8_lossy(word))).collect()
}

/// Runs one program on both sides. Returns the number of equal replies, and the differences, in
/// words, by command. The program ends after a difference that may have changed the data.
fn compare(oracle: &mut Oracle, seed: u64, failures: &mut BTreeMap<String, String>) -> usize {
    let steps = program(seed);
    let mut prologue: Vec<Vec<Vec<u8>>> = vec![vec![b"RESET".to_vec()], vec![b"FLUSHALL".to_vec()]];
    let resp3 = seed % 2 == 1;
    prologue.push(vec![b"HELLO".to_vec(), if resp3 { b"3".to_vec() } else { b"2".to_vec() }]);
    let commands: Vec<&[Vec<u8>]> =
        prologue.iter().map(Vec::as_slice).chain(steps.iter().map(|step| step.words.as_slice())).collect();
    let expected = oracle.connection.request_all(&commands).expect("redis-server answers");
    let mut subject = Subject::new(seed);
    for command in &prologue {
        subject.request(command);
    }
    // How to compare the replies of commands between MULTI and EXEC.
    let mut queued: Vec<Comparison> = Vec::new();
    let mut history: Vec<String> = Vec::new();
    for (step, expected) in steps.iter().zip(&expected[prologue.len()..]) {
        history.push(show(&step.words));
        let got = subject.request(&step.words);
        let same = match Reply::parse(&got) {
            Some((got, rest)) => rest == 0 && same_reply(step, expected.clone(), got, &mut queued),
            None => false,
        };
        if !same {
            let got = Reply::parse(&got).map(|(reply, _)| reply);
            let about = before(&history, &step.words);
            let both_refuse = matches!((expected, &got), (Reply::Error(_), Some(Reply::Error(_))));
            let text = format!(
                "seed {seed}, RESP{}: {}\n  redis: {expected}\n  here:  {}\n  before, with this key:\n    {about}",
                if resp3 { 3 } else { 2 },
                show(&step.words),
                got.map_or_else(|| "no whole reply".into(), |reply| reply.to_string()),
            );
            failures.entry(name_of(step)).or_insert(text);
            // A refused EXEC may or may not have ended the transaction.
            if !both_refuse || name_of(step) == "exec" {
                return 0;
            }
        }
    }
    steps.len()
}

fn name_of(step: &Step) -> String {
    String::from_utf8_lossy(&step.words[0]).to_ascii_lowercase()
}

/// The last commands with the same keys; for a command without keys, the last commands.
fn before(history: &[String], words: &[Vec<u8>]) -> String {
    let keys: Vec<String> = words
        .iter()
        .filter(|word| is_key(word))
        .map(|word| format!("{:?}", String::from_utf8_lossy(word)))
        .collect();
    let about: Vec<&str> =
        history.iter().filter(|line| keys.iter().any(|key| line.contains(key))).map(String::as_str).collect();
    if keys.is_empty() {
        return history[history.len().saturating_sub(SHOWN_WITHOUT_KEYS)..].join("\n    ");
    }
    about[about.len().saturating_sub(12)..].join("\n    ")
}

/// Whether two stores have answered a step alike. `queued` keeps how to compare the steps of a
/// transaction that is open.
pub(super) fn same_reply(step: &Step, expected: Reply, got: Reply, queued: &mut Vec<Comparison>) -> bool {
    if expected == Reply::Simple(b"QUEUED".to_vec()) {
        queued.push(step.comparison);
        return got == expected;
    }
    let name = name_of(step);
    if name == "exec" {
        let modes = std::mem::take(queued);
        if let (Reply::Array(expected), Reply::Array(got)) = (&expected, &got) {
            return expected.len() == got.len()
                && modes.len() == got.len()
                && modes
                    .iter()
                    .zip(expected.iter().cloned().zip(got.iter().cloned()))
                    .all(|(mode, (expected, got))| mode.normal(expected) == mode.normal(got));
        }
    }
    if name == "discard" || name == "reset" {
        queued.clear();
    }
    step.comparison.normal(expected) == step.comparison.normal(got)
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn replies_are_those_of_redis() {
    let Some(mut oracle) = Oracle::start() else {
        eprintln!("SKIPPED replies_are_those_of_redis: needs redis-server 7.0 in the path");
        return;
    };
    let fixed = from_environment("KV_COMPATIBILITY_SEED");
    let first = fixed.unwrap_or_else(|| sietch_sim::seeds::first(1000));
    let programs = from_environment("KV_COMPATIBILITY_PROGRAMS").unwrap_or(PROGRAMS);
    let count = if fixed.is_some() { 1 } else { programs };
    let mut commands = 0;
    let mut failures = BTreeMap::new();
    for seed in first..first + count {
        commands += compare(&mut oracle, seed, &mut failures);
        if failures.len() >= SHOWN {
            break;
        }
    }
    let texts: Vec<String> = failures.into_values().collect();
    assert!(texts.is_empty(), "{}\n\nrepeat one with KV_COMPATIBILITY_SEED=<its seed>", texts.join("\n\n"));
    eprintln!("{commands} commands of {count} programs were answered alike");
}
