//! redis-server with redis-cli and redis-benchmark: one thread, epoll, small messages; a large
//! value, a replica, a client that is killed.

use rustix::process::Signal;

use crate::combinations;
use crate::place::{Place, Sides, pattern};

combinations!(load, needs ["redis-server", "redis-cli", "redis-benchmark"], in CI [Sides::BOTH, Sides::SERVER, Sides::CLIENT]);

const PORT: &str = "6379";

fn cli(place: &Place, words: &[&str]) -> String {
    place.ask("redis-cli", &[&["-p", PORT], words].concat()).trim_end().to_owned()
}

fn serve(place: &Place, port: u16, more: &[&str]) -> crate::process::Process {
    let (port_text, folder) = (port.to_string(), place.path(""));
    let fixed = ["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--dir", &folder];
    place.serve("redis-server", &[&fixed, more].concat(), port)
}

fn load(place: &Place) {
    let server = serve(place, 6379, &["--repl-diskless-sync-delay", "0"]);
    assert_eq!(cli(place, &["set", "key", "value"]), "OK");
    assert_eq!(cli(place, &["get", "key"]), "value");
    let most = "ping_mbulk,set,get,incr,lpush,lpop,sadd,hset,zadd,mset";
    benchmark(place, most, &["-c", "50"]);
    benchmark(place, most, &["-c", "50", "-P", "16"]);
    benchmark(place, "set,get", &["-c", "1"]);
    benchmark(place, "set,get", &["-c", "20", "--threads", "2", "-d", "10000"]);
    pipe(place);
    large_value(place);
    blocked_and_killed(place);
    replica(place);
    // Redis ends before it can answer.
    let _ = place
        .start(place.client_command("redis-cli", &["-p", PORT, "shutdown", "nosave"]), "shutdown")
        .finish();
    server.succeed();
}

fn benchmark(place: &Place, tests: &str, more: &[&str]) {
    let requests = place.size("2000", "100000");
    let fixed = ["-p", PORT, "-n", requests, "-t", tests, "--csv"];
    let finished = place.client("redis-benchmark", &[&fixed, more].concat());
    let rows = finished.text().lines().filter(|line| line.starts_with('"')).count();
    // A head, then one row a test.
    assert_eq!(rows, 1 + tests.split(',').count(), "{finished:?}");
    assert!(!finished.complaints.contains("rror"), "{finished:?}");
}

/// Many commands in one stream, each of which is answered.
fn pipe(place: &Place) {
    let count = place.size(20_000, 500_000);
    let commands: String = (0..count).map(|i| format!("SET pipe:{i} {i}\r\n")).collect();
    let file = place.write("commands", commands);
    let said = place.feed("redis-cli", &["-p", PORT, "--pipe"], file.as_ref()).text();
    assert!(said.contains(&format!("errors: 0, replies: {count}")), "{said}");
    assert_eq!(cli(place, &["get", &format!("pipe:{}", count - 1)]), (count - 1).to_string());
}

fn large_value(place: &Place) {
    let value: Vec<u8> = pattern(place.size(8 << 20, 64 << 20)).iter().map(|byte| b'a' + byte % 26).collect();
    let file = place.write("large", &value);
    let stored = place.feed("redis-cli", &["-p", PORT, "-x", "set", "large"], file.as_ref());
    assert_eq!(stored.text().trim_end(), "OK");
    let back = place.client("redis-cli", &["-p", PORT, "--raw", "get", "large"]).output;
    assert!(
        back.strip_suffix(b"\n") == Some(&value[..]),
        "{} of {} bytes came back",
        back.len(),
        value.len()
    );
}

/// A client that waits gets what comes; one that is killed is noticed at once.
fn blocked_and_killed(place: &Place) {
    let shows = |word: &str| cli(place, &["client", "list"]).contains(word);
    let waiting =
        place.start(place.client_command("redis-cli", &["-p", PORT, "blpop", "list", "0"]), "blpop");
    place.wait_for("a blocked client", || shows("cmd=blpop").then_some(()));
    assert_eq!(cli(place, &["rpush", "list", "at last"]), "1");
    assert!(waiting.succeed().text().contains("at last"));

    let subscribed =
        place.start(place.client_command("redis-cli", &["-p", PORT, "subscribe", "news"]), "subscribe");
    place.wait_for("a subscriber", || shows("cmd=subscribe").then_some(()));
    assert_eq!(cli(place, &["publish", "news", "something"]), "1");
    place.wait_for("the news", || subscribed.printed().contains("something").then_some(()));
    subscribed.signal(Signal::KILL);
    place.wait_for("the subscriber's end", || (!shows("cmd=subscribe")).then_some(()));
}

/// A server that is another's client.
fn replica(place: &Place) {
    let second = serve(place, 6380, &["--replicaof", "127.0.0.1", PORT]);
    let info = |word: &str| place.ask("redis-cli", &["-p", "6380", "info", "replication"]).contains(word);
    place.wait_for("the replica", || info("master_link_status:up").then_some(()));
    assert_eq!(cli(place, &["set", "after", "that"]), "OK");
    assert_eq!(cli(place, &["wait", "1", "0"]), "1");
    assert_eq!(place.ask("redis-cli", &["-p", "6380", "get", "after"]).trim_end(), "that");
    assert_eq!(place.ask("redis-cli", &["-p", "6380", "dbsize"]).trim_end(), cli(place, &["dbsize"]));
    drop(second);
    place.wait_for("the replica's end", || {
        cli(place, &["info", "replication"]).contains("connected_slaves:0").then_some(())
    });
}
