//! Events of keys are those of Redis 7.0, in the same order.
//!
//! 1. Random programs of commands run on a redis-server and on a shard in this process, as in
//!    `compatibility.rs`. On both, a second client is subscribed to all events.
//! 2. After each command, a message to the same pattern marks its end, so that a difference is
//!    shown with its command.
//! 3. Programs have no command that chooses at random, since both sides would choose differently.
//!    Events of class `m` are not compared: the store looks some keys up more often. Nor is
//!    `expired`, whose time Redis does not define.

use sietch_kv_programs::connection::words;
use sietch_kv_programs::generate::program;
use sietch_kv_programs::oracle::Oracle;
use sietch_kv_programs::reply::Reply;

use crate::subject::Subject;

/// Programs in one run; each has about 300 commands.
const PROGRAMS: u64 = 20;

/// The channels of events, and of the marks.
const PATTERN: &str = "__key*__:*";

/// Whether this is the message of an expiry. Redis sends it at the next access of the key, or some
/// milliseconds later.
fn is_expiry(message: &Reply) -> bool {
    let text = message.to_string();
    text.contains("\"expired\"") || text.contains(":expired\"")
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
        subject.request(subject.client, &all);
        subject.request(subject.observer, &subscribe);
        for command in &commands {
            subject.request(subject.client, command);
            subject.expire();
            for message in
                subject.messages(subject.observer).into_iter().filter(|message| !is_expiry(message))
            {
                let expected = loop {
                    let expected = oracle.observer.receive().expect("as many messages");
                    if !is_expiry(&expected) {
                        break expected;
                    }
                };
                let shown: Vec<_> = command.iter().map(|word| String::from_utf8_lossy(word)).collect();
                assert_eq!(message, expected, "seed {seed}, {shown:?}");
                compared += 1;
            }
        }
    }
    assert!(compared > 1000, "{compared} messages");
    eprintln!("{compared} messages of {PROGRAMS} programs were alike");
}
