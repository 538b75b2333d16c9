//! SLOWLOG, LATENCY, MONITOR, CLIENT and DEBUG reply as Redis 7.0 does.
//!
//! The same commands run on a redis-server and on a shard in this process. Replies must be equal,
//! except for times, addresses and what the store does not have (its HELP texts are shorter).

use sietch_kv_programs::connection::words;
use sietch_kv_programs::oracle::Oracle;
use sietch_kv_programs::reply::Reply;

use crate::subject::Subject;

/// Commands whose replies must be equal, byte for byte.
const EQUAL: &[&str] = &[
    // On a busy machine any command may be slow.
    "CONFIG SET slowlog-log-slower-than -1",
    "SLOWLOG HELP",
    "SLOWLOG RESET",
    "SLOWLOG LEN",
    "SLOWLOG GET",
    "SLOWLOG GET 5",
    "SLOWLOG GET -2",
    "SLOWLOG GET x",
    "SLOWLOG GET 1 2",
    "SLOWLOG LEN 1",
    "SLOWLOG NOPE",
    "LATENCY HELP",
    "LATENCY LATEST",
    "LATENCY LATEST x",
    "LATENCY HISTORY command",
    "LATENCY HISTORY",
    "LATENCY GRAPH nothing",
    "LATENCY GRAPH",
    "LATENCY RESET",
    "LATENCY RESET nothing command",
    "LATENCY NOPE",
    "CONFIG GET slowlog-log-slower-than",
    "CONFIG GET slowlog-max-len",
    "CONFIG GET latency-monitor-threshold",
    "CONFIG GET latency-tracking-info-percentiles",
    "CONFIG SET slowlog-log-slower-than -2",
    "CONFIG SET slowlog-log-slower-than x",
    "CONFIG SET slowlog-max-len -1",
    "CONFIG SET latency-monitor-threshold -1",
    "CONFIG SET latency-tracking 2",
    "CONFIG SET notify-keyspace-events Kq",
    "CONFIG SET notify-keyspace-events g$lnE",
    "CONFIG GET notify-keyspace-events",
    "CONFIG SET notify-keyspace-events AKm",
    "CONFIG GET notify-keyspace-events",
    "CLIENT PAUSE",
    "CLIENT PAUSE x",
    "CLIENT PAUSE -1",
    "CLIENT PAUSE 1 SOME",
    "CLIENT PAUSE 1 ALL more",
    "CLIENT PAUSE 0",
    "CLIENT UNPAUSE",
    "CLIENT UNPAUSE x",
    "CLIENT NO-EVICT",
    "CLIENT NO-EVICT x",
    "CLIENT NO-EVICT on",
    "CLIENT NO-EVICT OFF",
    "WAIT 0",
    "WAIT x 0",
    "WAIT 0 x",
    "WAIT 0 -1",
    "WAIT 0 0",
    "WAIT -1 0",
    "WAIT 1 10",
    "SET counted value",
    "OBJECT FREQ",
    "OBJECT FREQ counted",
    "OBJECT FREQ nothing",
    "CONFIG SET maxmemory-policy allkeys-lfu",
    "SET counted again",
    "OBJECT FREQ nothing",
    "OBJECT IDLETIME counted",
    "CONFIG SET maxmemory-policy noeviction",
    "DEBUG SLEEP 0",
    "DEBUG SLEEP",
    "DEBUG NOPE",
    "DEBUG",
    "MONITOR x",
];

/// What a monitor is shown, in this order.
const WATCHED: &[&str] = &[
    "SET a b",
    "GET a",
    "SELECT 3",
    "PING",
    "CONFIG GET maxmemory",
    "SLOWLOG LEN",
    "AUTH foo",
    "AUTH default foo",
    "HELLO 2 AUTH default foo",
    "HELLO 2 SETNAME z",
    "MULTI",
    "SET q 1",
    "GET q",
    "EXEC",
    "DISCARD",
    "CLIENT LIST",
    "CLIENT SETNAME foo",
    "CLIENT ID",
    "SUBSCRIBE a",
    "UNSUBSCRIBE a",
    "PUBLISH a b",
    "DEBUG SLEEP 0",
    "BLPOP none 0.01",
    "NOPE x",
    "GET",
    "WATCH z",
    "INFO server",
    "DBSIZE",
    "LATENCY LATEST",
    "ACL WHOAMI",
    "ACL SETUSER bob on",
    "ACL DELUSER bob",
    "LASTSAVE",
    "ROLE",
    "TIME",
    "WAIT 0 0",
    "OBJECT HELP",
    "KEYS *",
    "RESET",
    "PING end",
];

fn start() -> Option<Oracle> {
    let oracle = Oracle::start();
    if oracle.is_none() {
        eprintln!("SKIPPED: needs redis-server 7.0 in the path");
    }
    oracle
}

fn parse(bytes: &[u8]) -> Reply {
    Reply::parse(bytes).expect("a whole reply").0
}

#[test]
fn replies_are_those_of_redis() {
    let Some(mut oracle) = start() else { return };
    let mut subject = Subject::new(1);
    for line in EQUAL {
        let command = words(line);
        let expected = oracle.connection.request(&command).expect("redis-server answers");
        let got = parse(&subject.request(subject.client, &command));
        assert_eq!(got.to_string(), expected.to_string(), "{line}");
    }
}

/// A line without its time and the address of the client.
fn line(reply: &Reply) -> String {
    let text = reply.to_string();
    let database = text.split('[').nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    format!("[{database}] {}", text.split_once(']').map_or("", |(_, command)| command))
}

#[test]
fn monitors_receive_what_those_of_redis_do() {
    let Some(mut oracle) = start() else { return };
    let mut subject = Subject::new(1);
    oracle.observer.request(&words("MONITOR")).expect("redis-server answers");
    subject.request(subject.observer, &words("MONITOR"));
    let mut lines = Vec::new();
    for command in WATCHED.iter().map(|command| words(command)) {
        oracle.connection.request(&command).expect("redis-server answers");
        subject.request(subject.client, &command);
        lines.extend(subject.messages(subject.observer));
    }
    for got in &lines {
        let expected = oracle.observer.receive().expect("as many lines");
        assert_eq!(line(got), line(&expected), "{got} {expected}");
    }
    assert!(line(lines.last().expect("many lines")).contains("\"end\""));
}

#[test]
fn entries_of_the_slow_log_have_the_shape_of_redis() {
    let Some(mut oracle) = start() else { return };
    let mut subject = Subject::new(1);
    let long = "x".repeat(200);
    let many = format!("DEL {}", "key ".repeat(40));
    let commands = [
        "CONFIG SET slowlog-log-slower-than 0".to_owned(),
        "SLOWLOG RESET".to_owned(),
        "CLIENT SETNAME me".to_owned(),
        format!("SET a {long}"),
        many,
        "AUTH default secret".to_owned(),
        "HELLO 2 AUTH default secret".to_owned(),
        "ACL SETUSER bob >secret".to_owned(),
        "ACL DELUSER bob".to_owned(),
        "CONFIG SET masterauth secret".to_owned(),
        "MULTI".to_owned(),
        "GET a".to_owned(),
        "EXEC".to_owned(),
        "BLPOP none 0.01".to_owned(),
        "NOPE".to_owned(),
        "SLOWLOG LEN".to_owned(),
    ];
    for command in commands.iter().map(|command| words(command)) {
        oracle.connection.request(&command).expect("redis-server answers");
        subject.request(subject.client, &command);
    }
    let get = words("SLOWLOG GET -1");
    let expected = entries(oracle.connection.request(&get).expect("redis-server answers"));
    let got = entries(parse(&subject.request(subject.client, &get)));
    assert_eq!(got, expected);
    assert!(expected.len() >= 12, "{expected:?}");
}

/// The arguments and the names of the entries, and how many fields each has.
fn entries(reply: Reply) -> Vec<(usize, String, String)> {
    let Reply::Array(entries) = reply else { panic!("{reply}") };
    let fields = |entry| {
        let Reply::Array(fields) = entry else { panic!("an entry is an array") };
        (fields.len(), fields[3].to_string(), fields[5].to_string())
    };
    entries.into_iter().map(fields).collect()
}
