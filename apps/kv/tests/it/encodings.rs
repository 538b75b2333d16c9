//! Representations are those of redis-server at every border: their names, and the order of replies
//! that depends on them.
//!
//! Each script runs on a redis-server of its own and on a shard in this process. All replies must
//! be equal, byte for byte. Without redis-server 7.0 the test is skipped.

use std::net::SocketAddr;

use sietch_kv::settings::Settings;
use sietch_kv::shard::{Now, Shard};
use sietch_kv_programs::connection::encode;
use sietch_kv_programs::oracle::Oracle;
use sietch_kv_programs::reply::Reply;

type Script = Vec<Vec<Vec<u8>>>;

fn line(script: &mut Script, text: &str) {
    script.push(text.split(' ').map(|word| word.as_bytes().to_vec()).collect());
}

/// Fills a collection across a border of entries, with its encoding after each step near it.
fn by_entries(script: &mut Script, setting: &str, border: usize, add: impl Fn(usize) -> String) {
    line(script, "FLUSHALL");
    line(script, &format!("CONFIG SET {setting} {border}"));
    for number in 0..border + 3 {
        line(script, &add(number));
        if number + 3 > border {
            line(script, "OBJECT ENCODING key");
            line(script, &add(number));
            line(script, "OBJECT ENCODING key");
        }
    }
    line(script, &format!("CONFIG SET {setting} 100000"));
    line(script, "OBJECT ENCODING key");
}

/// Adds elements of lengths near a border.
fn by_length(script: &mut Script, setting: &str, border: usize, add: impl Fn(String) -> String) {
    line(script, &format!("CONFIG SET {setting} {border}"));
    for length in [1, border.saturating_sub(1).max(1), border.max(1), border + 1] {
        line(script, "FLUSHALL");
        line(script, &add("x".repeat(length)));
        line(script, "OBJECT ENCODING key");
        line(script, &add("x".to_owned()));
        line(script, "OBJECT ENCODING key");
    }
}

fn script() -> Script {
    let mut script = Script::new();
    for border in [0, 1, 2, 5, 128, 512] {
        by_entries(&mut script, "hash-max-listpack-entries", border, |n| format!("HSET key f{n} {n}"));
        by_entries(&mut script, "hash-max-ziplist-entries", border, |n| format!("HINCRBY key {n} {n}"));
        by_entries(&mut script, "zset-max-listpack-entries", border, |n| format!("ZADD key {n} m{n}"));
        by_entries(&mut script, "set-max-intset-entries", border, |n| format!("SADD key {}", n * 100));
    }
    for border in [0, 1, 10, 64, 100] {
        by_length(&mut script, "hash-max-listpack-value", border, |x| format!("HSET key {x} 1"));
        by_length(&mut script, "hash-max-ziplist-value", border, |x| format!("HSET key f {x}"));
        by_length(&mut script, "zset-max-listpack-value", border, |x| format!("ZADD key 1 {x}"));
    }
    for setting in
        ["hash-max-listpack-entries 512", "hash-max-listpack-value 64", "zset-max-ziplist-value 64"]
    {
        line(&mut script, &format!("CONFIG SET {setting}"));
    }
    for text in [
        "FLUSHALL",
        "HSET key b 1 a 2 c x 10 20",
        "HSET key a 22 -5 y",
        "HDEL key b",
        "HSET key b 9 0 0 00 00 -0 -0 9223372036854775807 9223372036854775808",
        "HGETALL key",
        "HKEYS key",
        "HVALS key",
        "HSCAN key 0 COUNT 1",
        "HINCRBY key 10 -1000",
        "HGET key 10",
        "HSTRLEN key 10",
        "HGETALL key",
        "SADD ints 5 -70000 1 3000000000 100 -1",
        "SMEMBERS ints",
        "SSCAN ints 0 COUNT 1",
        "SREM ints 3000000000 1",
        "SMEMBERS ints",
        "SADD ints 2.0",
        "OBJECT ENCODING ints",
        "ZADD zset 3 c 1 a 2.5 b -0 zero 1e300 huge -1.5 neg 7 7 1 0",
        "ZRANGE zset 0 -1 WITHSCORES",
        "ZREVRANGE zset 1 3 WITHSCORES",
        "ZSCAN zset 0 COUNT 1",
        "ZADD zset 0.5 c",
        "ZRANK zset c",
        "ZRANGEBYSCORE zset -2 2 WITHSCORES",
        "ZPOPMIN zset 2",
        "ZRANGE zset 0 -1 WITHSCORES",
        "OBJECT ENCODING zset",
        "RPUSH list a 1 -5 b",
        "OBJECT ENCODING list",
        "CONFIG SET list-max-listpack-size 2",
        "RPUSH list c d e f 7",
        "LINSERT list BEFORE c x",
        "LREM list 0 1",
        "LSET list 2 12345678901234567890",
        "LRANGE list 0 -1",
        "OBJECT ENCODING list",
        "SET string 12345",
        "OBJECT ENCODING string",
        "APPEND string 6",
        "OBJECT ENCODING string",
        "GETRANGE string 0 -1",
        "INCR string",
        "OBJECT ENCODING string",
    ] {
        line(&mut script, text);
    }
    for length in [1, 43, 44, 45] {
        line(&mut script, &format!("SET string {}", "s".repeat(length)));
        line(&mut script, "OBJECT ENCODING string");
    }
    script
}

#[test]
fn encodings_and_their_orders_are_those_of_redis() {
    let Some(mut oracle) = Oracle::start() else {
        eprintln!("skipped: there is no redis-server 7.0");
        return;
    };
    let script = script();
    let commands: Vec<&[Vec<u8>]> = script.iter().map(Vec::as_slice).collect();
    let expected = oracle.connection.request_all(&commands).expect("redis-server answers");
    let now = Now { monotonic_ns: 1_000_000_000, unix_ms: 1_700_000_000_000 };
    let mut shard = Shard::new(Settings::default(), 7);
    let address = SocketAddr::from(([127, 0, 0, 1], 40_000));
    let client = shard.connect(address, address, now).expect("the first client");
    for (number, (command, expected)) in script.iter().zip(expected).enumerate() {
        shard.feed(client, &encode(command), now);
        shard.seal(number as u64);
        shard.durable(number as u64);
        let output = shard.output(client).to_vec();
        shard.consumed(client, output.len());
        let got = Reply::parse(&output).map(|(reply, _)| reply);
        let before: Vec<String> = script[number.saturating_sub(4)..=number]
            .iter()
            .map(|command| String::from_utf8_lossy(&command.join(&b' ')).chars().take(100).collect())
            .collect();
        assert_eq!(got, Some(expected), "after {before:?}");
    }
}
