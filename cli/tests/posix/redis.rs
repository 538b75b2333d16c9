//! redis-server with redis-cli and redis-benchmark: one thread, epoll, small messages; a large
//! value, a replica, a client that is killed.

use rustix::process::Signal;

use crate::combinations;
use crate::testbed::{Sides, Testbed, pattern};

combinations!(load, needs ["redis-server", "redis-cli", "redis-benchmark"], in CI [Sides::BOTH, Sides::SERVER, Sides::CLIENT]);

const PORT: &str = "6379";

fn cli(testbed: &Testbed, words: &[&str]) -> String {
    testbed.client_output("redis-cli", &[&["-p", PORT], words].concat()).trim_end().to_owned()
}

fn serve(testbed: &Testbed, port: u16, more: &[&str]) -> crate::process::Process {
    let (port_text, folder) = (port.to_string(), testbed.path(""));
    let fixed = ["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--dir", &folder];
    testbed.serve("redis-server", &[&fixed, more].concat(), port)
}

fn load(testbed: &Testbed) {
    let server = serve(testbed, 6379, &["--repl-diskless-sync-delay", "0"]);
    assert_eq!(cli(testbed, &["set", "key", "value"]), "OK");
    assert_eq!(cli(testbed, &["get", "key"]), "value");
    let most = "ping_mbulk,set,get,incr,lpush,lpop,sadd,hset,zadd,mset";
    benchmark(testbed, most, &["-c", "50"]);
    benchmark(testbed, most, &["-c", "50", "-P", "16"]);
    benchmark(testbed, "set,get", &["-c", "1"]);
    benchmark(testbed, "set,get", &["-c", "20", "--threads", "2", "-d", "10000"]);
    pipe(testbed);
    large_value(testbed);
    blocked_and_killed(testbed);
    replica(testbed);
    // Redis ends before it can answer.
    let _ = testbed
        .start(testbed.client_command("redis-cli", &["-p", PORT, "shutdown", "nosave"]), "shutdown")
        .finish();
    server.succeed();
}

fn benchmark(testbed: &Testbed, tests: &str, more: &[&str]) {
    let requests = testbed.size("2000", "100000");
    let fixed = ["-p", PORT, "-n", requests, "-t", tests, "--csv"];
    let finished = testbed.client("redis-benchmark", &[&fixed, more].concat());
    let rows = finished.text().lines().filter(|line| line.starts_with('"')).count();
    // A head, then one row a test.
    assert_eq!(rows, 1 + tests.split(',').count(), "{finished:?}");
    assert!(!finished.errors.contains("rror"), "{finished:?}");
}

/// Many commands in one stream, each of which is answered.
fn pipe(testbed: &Testbed) {
    let count = testbed.size(20_000, 500_000);
    let commands: String = (0..count).map(|i| format!("SET pipe:{i} {i}\r\n")).collect();
    let file = testbed.write("commands", commands);
    let printed = testbed.client_reading("redis-cli", &["-p", PORT, "--pipe"], file.as_ref()).text();
    assert!(printed.contains(&format!("errors: 0, replies: {count}")), "{printed}");
    assert_eq!(cli(testbed, &["get", &format!("pipe:{}", count - 1)]), (count - 1).to_string());
}

fn large_value(testbed: &Testbed) {
    let value: Vec<u8> =
        pattern(testbed.size(8 << 20, 64 << 20)).iter().map(|byte| b'a' + byte % 26).collect();
    let file = testbed.write("large", &value);
    let stored = testbed.client_reading("redis-cli", &["-p", PORT, "-x", "set", "large"], file.as_ref());
    assert_eq!(stored.text().trim_end(), "OK");
    let back = testbed.client("redis-cli", &["-p", PORT, "--raw", "get", "large"]).output;
    assert!(
        back.strip_suffix(b"\n") == Some(&value[..]),
        "{} of {} bytes came back",
        back.len(),
        value.len()
    );
}

/// A blocked client gets its data; a killed client is disconnected at once.
fn blocked_and_killed(testbed: &Testbed) {
    let shows = |word: &str| cli(testbed, &["client", "list"]).contains(word);
    let waiting =
        testbed.start(testbed.client_command("redis-cli", &["-p", PORT, "blpop", "list", "0"]), "blpop");
    testbed.wait_for("a blocked client", || shows("cmd=blpop").then_some(()));
    assert_eq!(cli(testbed, &["rpush", "list", "at last"]), "1");
    assert!(waiting.succeed().text().contains("at last"));

    let subscribed =
        testbed.start(testbed.client_command("redis-cli", &["-p", PORT, "subscribe", "news"]), "subscribe");
    testbed.wait_for("a subscriber", || shows("cmd=subscribe").then_some(()));
    assert_eq!(cli(testbed, &["publish", "news", "something"]), "1");
    testbed.wait_for("the news", || subscribed.printed().contains("something").then_some(()));
    subscribed.signal(Signal::KILL);
    testbed.wait_for("the subscriber's end", || (!shows("cmd=subscribe")).then_some(()));
}

/// A server that is a client of another.
fn replica(testbed: &Testbed) {
    let second = serve(testbed, 6380, &["--replicaof", "127.0.0.1", PORT]);
    let info = |word: &str| {
        testbed.client_output("redis-cli", &["-p", "6380", "info", "replication"]).contains(word)
    };
    testbed.wait_for("the replica", || info("master_link_status:up").then_some(()));
    assert_eq!(cli(testbed, &["set", "after", "that"]), "OK");
    assert_eq!(cli(testbed, &["wait", "1", "0"]), "1");
    assert_eq!(testbed.client_output("redis-cli", &["-p", "6380", "get", "after"]).trim_end(), "that");
    assert_eq!(
        testbed.client_output("redis-cli", &["-p", "6380", "dbsize"]).trim_end(),
        cli(testbed, &["dbsize"])
    );
    drop(second);
    testbed.wait_for("the replica's end", || {
        cli(testbed, &["info", "replication"]).contains("connected_slaves:0").then_some(())
    });
}
