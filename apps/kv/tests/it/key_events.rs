//! Events of keys are those of Redis 7.0, in the same order.
//!
//! 1. Random programs of commands run on a redis-server and on a shard in this process, as in
//!    `compatibility.rs`. On both, a second client is subscribed to all events.
//! 2. After each command, a message to the same pattern marks its end, so that a difference is
//!    shown with its command.
//! 3. Programs have no command that chooses at random, since both sides would choose differently.
//!    Events of class `m` are not compared: the store looks some keys up more often.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use sietch_kv::settings::Settings;
use sietch_kv::shard::{ClientId, Now, Shard};
use sietch_kv_programs::connection::{encode, words};
use sietch_kv_programs::generate::program;
use sietch_kv_programs::oracle::Oracle;
use sietch_kv_programs::reply::Reply;

/// Programs in one run; each has about 300 commands.
const PROGRAMS: u64 = 20;

/// The channels of events, and of the marks.
const PATTERN: &str = "__key*__:*";

/// The side under test: a shard with a client, and a subscriber.
struct Subject {
    shard: Shard,
    client: ClientId,
    subscriber: ClientId,
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
        let subscriber = shard.connect(address, address, now).expect("the second client");
        Self { shard, client, subscriber, now, sequence: 0 }
    }

    fn drain(&mut self, id: ClientId) -> Vec<u8> {
        self.sequence += 1;
        self.shard.seal(self.sequence);
        self.shard.durable(self.sequence);
        let output = self.shard.output(id).to_vec();
        self.shard.consumed(id, output.len());
        output
    }

    fn run(&mut self, id: ClientId, command: &[Vec<u8>]) {
        self.shard.feed(id, &encode(command), self.now);
        if self.drain(id).is_empty() {
            // It blocks, and no other client will wake it: let its timeout pass.
            self.now.monotonic_ns += 1_000_000_000;
            self.shard.tick(self.now);
            self.drain(id);
        }
    }

    /// The messages to the subscriber since the last call.
    fn messages(&mut self) -> Vec<String> {
        let output = self.drain(self.subscriber);
        let mut bytes = output.as_slice();
        let mut messages = Vec::new();
        while let Some((reply, rest)) = Reply::parse(bytes) {
            bytes = &bytes[bytes.len() - rest..];
            messages.push(reply.to_string());
        }
        messages
    }
}

/// Whether a command chooses elements at random.
fn is_random(command: &[Vec<u8>]) -> bool {
    command[0].eq_ignore_ascii_case(b"spop")
}

#[test]
fn events_are_those_of_redis() {
    let Some(mut oracle) = Oracle::start() else {
        eprintln!("SKIPPED events_are_those_of_redis: needs redis-server 7.0 in the path");
        return;
    };
    let first = sietch_sim::seeds::first(5000);
    let all = words("CONFIG SET notify-keyspace-events AKEn");
    let subscribe = words(&format!("PSUBSCRIBE {PATTERN}"));
    oracle.connection.request(&all).expect("redis-server answers");
    oracle.observer.request(&subscribe).expect("redis-server answers");
    let mut compared = 0;
    for seed in first..first + PROGRAMS {
        let mut commands = vec![words("RESET"), words("FLUSHALL")];
        for (number, step) in program(seed).into_iter().filter(|step| !is_random(&step.words)).enumerate() {
            commands.push(step.words);
            commands.push(words(&format!("PUBLISH __key__:mark {number}")));
        }
        // A transaction that is left open would hold back the last mark.
        commands.push(words("RESET"));
        commands.push(words("PUBLISH __key__:mark end"));
        let sent: Vec<&[Vec<u8>]> = commands.iter().map(Vec::as_slice).collect();
        oracle.connection.request_all(&sent).expect("redis-server answers");
        let mut subject = Subject::new(seed);
        subject.run(subject.client, &all);
        subject.run(subject.subscriber, &subscribe);
        for command in &commands {
            subject.run(subject.client, command);
            for message in subject.messages() {
                let expected = oracle.observer.receive().expect("as many messages").to_string();
                let shown: Vec<_> = command.iter().map(|word| String::from_utf8_lossy(word)).collect();
                assert_eq!(message, expected, "seed {seed}, {shown:?}");
                compared += 1;
            }
        }
    }
    assert!(compared > 1000, "{compared} messages");
    eprintln!("{compared} messages of {PROGRAMS} programs were alike");
}
