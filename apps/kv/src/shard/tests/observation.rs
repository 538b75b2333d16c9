//! Slow commands, latencies, events of keys, and monitors.
//!
//! The clock of the bench advances by a fixed step whenever it is read, so a timed command takes
//! exactly one step.

use super::*;
use crate::foundation::metrics::CommitTimes;

/// The reply of SLOWLOG GET with one entry for `client`'s command.
fn entry(id: u64, microseconds: u64, arguments: &[&str], name: &str) -> String {
    let words: String = arguments.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!(
        "*6\r\n:{id}\r\n:1700000000\r\n:{microseconds}\r\n*{}\r\n{words}$15\r\n127.0.0.1:40000\r\n${}\r\n{name}\r\n",
        arguments.len(),
        name.len()
    )
}

#[test]
fn slow_commands_are_logged_without_secrets() {
    let mut bench = Bench::timed(20_000_000);
    let client = bench.connect();
    bench.request(client, "CLIENT SETNAME me");
    bench.request(client, "CONFIG SET requirepass x");
    // Commands that are bounded by their arguments are not timed with this threshold.
    bench.request(client, "SET a b");
    bench.request(client, "KEYS *");
    let secret = entry(1, 20_000, &["CONFIG", "SET", "requirepass", "(redacted)"], "me");
    let keys = entry(2, 20_000, &["KEYS", "*"], "me");
    assert_eq!(bench.request(client, "SLOWLOG GET 2"), format!("*2\r\n{keys}{secret}"));
    assert_eq!(bench.request(client, "SLOWLOG LEN"), ":4\r\n");
    assert_eq!(bench.request(client, "SLOWLOG RESET"), "+OK\r\n");
    assert_eq!(bench.request(client, "CONFIG SET slowlog-log-slower-than 999"), "+OK\r\n");
    bench.request(client, "MULTI");
    bench.request(client, "SET a c");
    bench.request(client, "EXEC");
    let log = bench.request(client, "SLOWLOG GET -1");
    // MULTI and the command within; EXEC would only repeat it.
    assert!(log.contains(&entry(8, 20_000, &["SET", "a", "c"], "me")), "{log}");
    assert!(!log.contains("EXEC") && log.contains("MULTI"), "{log}");
    bench.request(client, "CONFIG SET slowlog-max-len 1");
    bench.request(client, "GET a");
    assert_eq!(bench.request(client, "SLOWLOG LEN"), ":1\r\n");
    bench.request(client, "CONFIG SET slowlog-log-slower-than -1");
    bench.request(client, "SLOWLOG RESET");
    bench.request(client, "KEYS *");
    assert_eq!(bench.request(client, "SLOWLOG LEN"), ":0\r\n");
}

#[test]
fn a_blocked_command_is_logged_when_it_is_served() {
    let mut bench = Bench::timed(20_000_000);
    let client = bench.connect();
    let other = bench.connect();
    assert_eq!(bench.request(client, "BLPOP list 0"), "");
    assert_eq!(bench.request(other, "SLOWLOG LEN"), ":0\r\n");
    bench.request(other, "SLOWLOG RESET");
    bench.request(other, "RPUSH list a");
    assert_eq!(bench.output(client), "*2\r\n$4\r\nlist\r\n$1\r\na\r\n");
    let log = bench.request(other, "SLOWLOG GET");
    assert!(log.contains("BLPOP") && !log.contains("RPUSH"), "{log}");
}

#[test]
fn latencies_are_recorded_by_their_cause() {
    let mut bench = Bench::timed(15_000_000);
    let client = bench.connect();
    assert_eq!(bench.request(client, "LATENCY LATEST"), "*0\r\n");
    assert!(bench.request(client, "LATENCY DOCTOR").contains("is disabled"));
    assert_eq!(bench.request(client, "CONFIG SET latency-monitor-threshold 10"), "+OK\r\n");
    bench.request(client, "SET a b PX 5");
    bench.request(client, "GET a");
    bench.pass(1000);
    bench.shard.note_commit(CommitTimes { queue: 9_000_000, device: 20_000_000, wake_up: Some(1_000_000) });
    let sample = |name: &str, second: u64, milliseconds: u64| {
        format!("*4\r\n${}\r\n{name}\r\n:{second}\r\n:{milliseconds}\r\n:{milliseconds}\r\n", name.len())
    };
    let latest = bench.request(client, "LATENCY LATEST");
    for expected in [
        sample("command", 1_700_000_000, 15),
        sample("fast-command", 1_700_000_000, 15),
        sample("expire-cycle", 1_700_000_001, 15),
        sample("log-commit", 1_700_000_001, 30),
    ] {
        assert!(latest.contains(&expected), "{latest}");
    }
    assert_eq!(bench.request(client, "LATENCY HISTORY fast-command"), "*1\r\n*2\r\n:1700000000\r\n:15\r\n");
    assert_eq!(bench.request(client, "LATENCY HISTORY nothing"), "*0\r\n");
    let parts = bench.request(client, "LATENCY HISTOGRAM log-commit");
    for part in ["queue", "device", "wake-up"] {
        assert!(parts.contains(&format!("log-commit|{part}\r\n*4\r\n$5\r\ncalls\r\n:1\r\n")), "{parts}");
    }
    assert!(bench.request(client, "LATENCY HISTOGRAM log-commit|device").starts_with("*2\r\n"));
    assert_eq!(bench.request(client, "LATENCY HISTOGRAM log"), "*0\r\n");
    assert!(bench.request(client, "LATENCY GRAPH log-commit").contains("high 30 ms, low 30 ms"));
    assert!(bench.request(client, "LATENCY GRAPH nothing").starts_with("-ERR No samples available"));
    assert!(bench.request(client, "LATENCY DOCTOR").contains("log-commit: 1 latency spikes"));
    assert_eq!(bench.request(client, "LATENCY RESET log-commit nothing"), ":1\r\n");
    bench.request(client, "CONFIG SET maxmemory 1 maxmemory-policy allkeys-lru");
    bench.request(client, "GET a");
    assert!(bench.request(client, "LATENCY HISTORY eviction-cycle").starts_with("*1\r\n"));
}

#[test]
fn histograms_are_of_timed_commands() {
    let mut bench = Bench::timed(3_000);
    let client = bench.connect();
    bench.request(client, "SET a b");
    assert_eq!(bench.request(client, "LATENCY HISTOGRAM"), "*0\r\n");
    bench.request(client, "CONFIG SET latency-tracking yes");
    bench.request(client, "SET a b");
    bench.request(client, "SET a b");
    bench.request(client, "CONFIG GET port");
    let set = "$3\r\nset\r\n*4\r\n$5\r\ncalls\r\n:2\r\n$14\r\nhistogram_usec\r\n*2\r\n:4\r\n:2\r\n";
    assert_eq!(bench.request(client, "LATENCY HISTOGRAM set nothing"), format!("*2\r\n{set}"));
    assert!(bench.request(client, "LATENCY HISTOGRAM config").contains("\r\nconfig|get\r\n"));
    let info = bench.request(client, "INFO latencystats");
    assert!(info.contains("latency_percentiles_usec_set:p50=3.007,p99=3.007,p99.9=3.007\r\n"), "{info}");
    let info = bench.request(client, "INFO commandstats");
    assert!(info.contains("cmdstat_set:calls=3,usec=6,usec_per_call=3.00,"), "{info}");
    bench.request(client, "CONFIG RESETSTAT");
    assert!(!bench.request(client, "LATENCY HISTOGRAM").contains("\r\nset\r\n"));
    for (name, value) in
        [("slowlog-log-slower-than", "-2"), ("slowlog-max-len", "-1"), ("latency-tracking", "2")]
    {
        let reply = bench.request(client, &format!("CONFIG SET {name} {value}"));
        assert!(reply.starts_with("-ERR CONFIG SET failed"), "{reply}");
    }
}

/// A message of an event to a subscriber of `pattern`.
fn message(pattern: &str, channel: &str, text: &str) -> String {
    let words = ["pmessage", pattern, channel, text];
    let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*4\r\n{words}")
}

#[test]
fn subscribers_receive_the_events_of_keys() {
    let mut bench = Bench::new();
    let client = bench.connect();
    let subscriber = bench.connect();
    bench.request(subscriber, "PSUBSCRIBE __key*__:*");
    bench.request(client, "SET a b");
    assert_eq!(bench.output(subscriber), "", "all classes are off");
    let refused = bench.request(client, "CONFIG SET notify-keyspace-events Kq");
    assert!(refused.contains("Invalid event class character. Use 'Ag$lshzxeKEtmdn'."), "{refused}");
    bench.request(client, "CONFIG SET notify-keyspace-events K$gxm");
    bench.request(client, "SET a b PX 5");
    let event = |key: &str, name: &str| message("__key*__:*", &format!("__keyspace@0__:{key}"), name);
    assert_eq!(bench.output(subscriber), event("a", "set") + &event("a", "expire"));
    bench.request(client, "RPUSH list x");
    assert_eq!(bench.output(subscriber), "", "lists are off");
    bench.pass(10);
    assert_eq!(bench.output(subscriber), event("a", "expired"));
    bench.request(client, "SUNION none none");
    assert_eq!(bench.output(subscriber), event("none", "keymiss"));
    bench.request(client, "CONFIG SET notify-keyspace-events Elge");
    bench.request(client, "LPOP list");
    let popped = message("__key*__:*", "__keyevent@0__:lpop", "list");
    let deleted = message("__key*__:*", "__keyevent@0__:del", "list");
    assert_eq!(bench.output(subscriber), popped + &deleted);
    bench.request(client, "MULTI");
    bench.request(client, "RPUSH list x");
    bench.request(client, "EXEC");
    assert_eq!(bench.output(subscriber), message("__key*__:*", "__keyevent@0__:rpush", "list"));
    bench.request(client, "CONFIG SET maxmemory 1 maxmemory-policy allkeys-random");
    bench.request(client, "GET a");
    assert_eq!(bench.output(subscriber), message("__key*__:*", "__keyevent@0__:evicted", "list"));
}

#[test]
fn events_reach_their_own_client_before_the_reply() {
    let mut bench = Bench::new();
    let client = bench.connect();
    bench.request(client, "HELLO 3");
    bench.request(client, "CONFIG SET notify-keyspace-events E$");
    bench.request(client, "SUBSCRIBE __keyevent@0__:set");
    let push = ">3\r\n$7\r\nmessage\r\n$18\r\n__keyevent@0__:set\r\n$1\r\na\r\n";
    assert_eq!(bench.request(client, "SET a b"), format!("{push}+OK\r\n"));
    assert_eq!(bench.request(client, "CLIENT REPLY OFF"), "");
    assert_eq!(bench.request(client, "SET a b"), push);
}

#[test]
fn a_monitor_receives_the_commands_of_all_clients() {
    let mut bench = Bench::new();
    let client = bench.connect();
    let monitor = bench.connect();
    assert_eq!(bench.request(monitor, "MONITOR"), "+OK\r\n");
    assert_eq!(bench.request(monitor, "MONITOR"), "");
    let line = |database: u8, words: &[&str]| {
        let words: String = words.iter().map(|word| format!(" \"{word}\"")).collect();
        format!("+1700000000.000000 [{database} 127.0.0.1:40000]{words}\r\n")
    };
    bench.request(client, "SET a b");
    assert_eq!(bench.output(monitor), line(0, &["SET", "a", "b"]));
    // Administrative commands and those that are refused are not shown, and no password is.
    for command in ["CONFIG GET port", "CLIENT LIST", "SLOWLOG LEN", "ACL SETUSER bob on", "NOPE", "GET"] {
        bench.request(client, command);
    }
    assert_eq!(bench.output(monitor), "");
    for command in ["AUTH default secret", "CLIENT ID", "ACL WHOAMI", "SELECT 3", "BLPOP none 1"] {
        bench.request(client, command);
    }
    let shown = line(0, &["AUTH", "(redacted)", "(redacted)"])
        + &line(0, &["CLIENT", "ID"])
        + &line(0, &["ACL", "WHOAMI"])
        + &line(3, &["SELECT", "3"])
        + &line(3, &["BLPOP", "none", "1"]);
    assert_eq!(bench.output(monitor), shown);
    bench.pass(2000);
    assert_eq!(bench.output(monitor), "", "the end of a wait is no command");
    let other = bench.connect();
    for command in ["MULTI", "PING", "EXEC"] {
        bench.request(other, command);
    }
    let shown = line(0, &["MULTI"]) + &line(0, &["PING"]) + &line(0, &["EXEC"]);
    assert_eq!(bench.output(monitor).replace("1700000002", "1700000000"), shown);
    bench.now.unix_ms = 1_700_000_000_000;
    bench.now.monotonic_ns = 3_000_000_000;
    assert_eq!(bench.request(monitor, "PING"), format!("+PONG\r\n{}", line(0, &["PING"])));
    let refused = "-ERR Replica can't interact with the keyspace\r\n";
    assert_eq!(bench.request(monitor, "GET a"), refused);
    assert!(bench.request(client, "CLIENT LIST").contains(" flags=O "));
    bench.request(monitor, "RESET");
    bench.output(monitor);
    bench.request(client, "PING");
    assert_eq!(bench.output(monitor), "");
    assert_eq!(bench.request(monitor, "GET a"), "$1\r\nb\r\n");
    for command in ["MULTI", "MONITOR"] {
        bench.request(client, command);
    }
    assert_eq!(
        bench.request(client, "EXEC"),
        "*1\r\n-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n"
    );
}

#[test]
fn a_monitor_that_does_not_read_is_closed() {
    let mut bench = Bench::new();
    let client = bench.connect();
    let monitor = bench.connect();
    bench.request(monitor, "MONITOR");
    bench.request(client, "CONFIG SET client-output-buffer-limit \"pubsub 4096 0 0\"");
    for _ in 0..40 {
        assert_eq!(bench.request(client, &format!("SET a {}", "x".repeat(100))), "+OK\r\n");
    }
    assert!(bench.shard.wants_close(monitor));
    bench.shard.disconnect(monitor);
    assert_eq!(bench.request(client, "GET a").len(), 108);
    assert_eq!(bench.shard.metrics().output_limit_closed, 1);
}

#[test]
fn debug_sleeps_and_refuses_everything_else_by_name() {
    let mut bench = Bench::timed(1000);
    let client = bench.connect();
    assert_eq!(bench.request(client, "DEBUG SLEEP 0.05"), "+OK\r\n");
    let slow = entry(0, 50_001, &["DEBUG", "SLEEP", "0.05"], "");
    assert_eq!(bench.request(client, "SLOWLOG GET"), format!("*1\r\n{slow}"));
    assert_eq!(bench.request(client, "DEBUG SLEEP x"), "-ERR value is not a valid float\r\n");
    for seconds in ["-1", "1e9", "inf"] {
        let reply = bench.request(client, &format!("DEBUG SLEEP {seconds}"));
        assert!(reply.starts_with("-ERR DEBUG SLEEP takes between 0 and 3600"), "{reply}");
    }
    assert_eq!(bench.request(client, "debug segfault"), "-ERR DEBUG SEGFAULT is not supported by Sietch\r\n");
    assert_eq!(
        bench.request(client, "DEBUG NOPE"),
        "-ERR unknown subcommand or wrong number of arguments for 'NOPE'. Try DEBUG HELP.\r\n"
    );
    let address = SocketAddr::from(([192, 0, 2, 1], 40_000));
    let other = bench.shard.connect(address, address, bench.now).expect("fewer than maxclients");
    assert!(bench.request(other, "DEBUG SLEEP 0").starts_with("-ERR DEBUG command not allowed."));
}

#[test]
fn a_long_name_of_a_client_is_shortened_in_the_slow_log() {
    let mut bench = Bench::timed(20_000_000);
    let client = bench.connect();
    bench.request(client, &format!("CLIENT SETNAME {}", "n".repeat(100_000)));
    bench.request(client, "KEYS *");
    let log = bench.request(client, "SLOWLOG GET 1");
    assert!(log.len() < 1000 && log.contains("nnn... (99872 more bytes)"), "{}", log.len());
}
