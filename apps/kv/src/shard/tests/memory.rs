//! Expiry, eviction, accounting.
//!
//! The clock of the bench moves only by hand, so keys expire at known times. Memory is compared
//! with what the same data set took before, not with figures.

use super::*;
use crate::data::keyspace::Partition;
use crate::foundation::settings::Policy;

#[test]
fn keys_expire_when_read_and_by_themselves() {
    let mut bench = Bench::new();
    let client = bench.connect();
    bench.request(client, "SET a 1 PX 100");
    bench.request(client, "SET b 1 EX 1");
    assert_eq!(bench.request(client, "PTTL a"), ":100\r\n");
    assert_eq!(bench.shard.next_deadline(), Some(bench.now.monotonic_ns + 100_000_000));
    bench.now.unix_ms += 100;
    bench.now.monotonic_ns += 100_000_000;
    assert_eq!(bench.request(client, "GET a"), "$-1\r\n");
    assert_eq!(bench.shard.keys(), 1);
    bench.pass(900);
    assert_eq!(bench.shard.keys(), 0);
    assert_eq!(bench.shard.metrics().expired, 2);
    assert_eq!(bench.shard.next_deadline(), None);
}

#[test]
fn a_list_of_one_element_that_is_moved_to_itself_keeps_its_expiry() {
    for command in ["RPOPLPUSH list list", "LMOVE list list LEFT LEFT", "BLMOVE list list RIGHT LEFT 1"] {
        let mut bench = Bench::new();
        let client = bench.connect();
        bench.request(client, "RPUSH list one");
        bench.request(client, "PEXPIRE list 5000");
        assert_eq!(bench.request(client, command), "$3\r\none\r\n", "{command}");
        assert_eq!(bench.request(client, "PTTL list"), ":5000\r\n", "{command}");
        assert_eq!(bench.request(client, "LRANGE list 0 -1"), "*1\r\n$3\r\none\r\n", "{command}");
    }
}

#[test]
fn mass_expiry_is_done_in_slices() {
    let mut bench = Bench::new();
    let client = bench.connect();
    for number in 0..1000 {
        bench.request(client, &format!("SET k{number} v PX 10"));
    }
    bench.pass(20);
    let left = bench.shard.keys();
    assert!((1..1000).contains(&left), "{left}");
    assert_eq!(bench.shard.next_deadline(), Some(bench.now.monotonic_ns), "more is to be done");
    for _ in 0..10 {
        bench.pass(0);
    }
    assert_eq!(bench.shard.keys(), 0);
}

#[test]
fn memory_returns_to_where_it_was() {
    let mut bench = Bench::new();
    let client = bench.connect();
    bench.request(client, "PING");
    for number in 0..500 {
        bench.request(client, &format!("SET k{number} {} EX 100", "v".repeat(number)));
        bench.request(client, &format!("APPEND k{number} more"));
        bench.request(client, &format!("RENAME k{number} r{number}"));
    }
    assert!(bench.shard.store.weight().memory > 500 * 250);
    for number in 0..250 {
        bench.request(client, &format!("DEL r{number}"));
    }
    bench.request(client, "FLUSHDB");
    assert_eq!(bench.shard.store.weight().memory, 0);
    assert_eq!(bench.shard.next_deadline(), Some(bench.now.monotonic_ns), "graves are emptied");
    bench.pass(1);
    bench.pass(1);
    assert_eq!(bench.shard.next_deadline(), None);
}

fn full(policy: Policy) -> (Bench, ClientId) {
    let settings = Settings { maxmemory: 200_000, policy, ..Settings::default() };
    let mut bench = Bench::with(settings);
    let client = bench.connect();
    (bench, client)
}

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";

#[test]
fn much_memory_that_is_free_goes_back_to_the_system_once() {
    let mut bench = Bench::new();
    let client = bench.connect();
    bench.request(client, "SETRANGE big 80000000 x");
    bench.request(client, "SET small x");
    bench.pass(1);
    assert!(!bench.shard.takes_release(), "it is in use");
    bench.request(client, "FLUSHALL");
    assert!(bench.shard.next_deadline().is_some_and(|at| at <= bench.now.monotonic_ns));
    while bench.shard.store.has_pending_frees() {
        assert!(!bench.shard.takes_release(), "it is not free yet");
        bench.pass(1);
    }
    bench.pass(1);
    assert!(bench.shard.takes_release());
    bench.pass(1);
    assert!(!bench.shard.takes_release(), "once");
    assert_eq!(bench.shard.next_deadline(), None, "an idle store sleeps");
    // Neither again at once, nor for little.
    bench.request(client, "SETRANGE big 80000000 x");
    bench.request(client, "DEL big");
    bench.pass(5000);
    assert!(!bench.shard.takes_release());
    bench.pass(5000);
    assert!(bench.shard.takes_release());
    bench.request(client, "SETRANGE big 8000000 x");
    bench.request(client, "DEL big");
    bench.pass(20_000);
    assert!(!bench.shard.takes_release());
}

#[test]
fn an_empty_store_is_not_fragmented() {
    let mut bench = Bench::new();
    let client = bench.connect();
    let usage = |resident| Usage { resident, system_ticks: 0, user_ticks: 0 };
    bench.shard.note_usage(usage(20 << 20));
    let info = bench.request(client, "INFO memory");
    assert!(info.contains("mem_fragmentation_ratio:1.00\r\n"), "{info}");
    bench.request(client, "SETRANGE big 20000000 x");
    bench.shard.note_usage(usage((20 << 20) + 40_000_000));
    let info = bench.request(client, "INFO memory");
    assert!(info.contains("mem_fragmentation_ratio:1.4"), "{info}");
}

#[test]
fn a_lower_limit_evicts_in_slices_without_a_further_command() {
    let mut bench = Bench::new();
    let (client, listener) = (bench.connect(), bench.connect());
    bench.request(client, "CONFIG SET maxmemory-policy allkeys-lru notify-keyspace-events Ee");
    for number in 0..3000 {
        bench.request(client, &format!("SET key{number} x"));
    }
    bench.request(listener, "PSUBSCRIBE *");
    assert_eq!(bench.request(client, "CONFIG SET maxmemory 1"), "+OK\r\n");
    let mut ticks = 0;
    while bench.shard.next_deadline().is_some_and(|at| at <= bench.now.monotonic_ns) {
        bench.pass(0);
        ticks += 1;
    }
    assert!((3..100).contains(&ticks), "{ticks}");
    assert_eq!(bench.shard.keys(), 0);
    let events = bench.output(listener);
    assert_eq!(events.matches("__keyevent@0__:evicted").count(), 3000);
    bench.pass(1000);
    assert_eq!(bench.shard.next_deadline(), None, "an idle store sleeps");
}

#[test]
fn without_eviction_writes_are_refused_and_reads_are_not() {
    let (mut bench, client) = full(Policy::NoEviction);
    let mut number = 0;
    while bench.request(client, &format!("SET k{number} {}", "v".repeat(1000))) == "+OK\r\n" {
        number += 1;
    }
    assert!((100..200).contains(&number), "{number}");
    assert_eq!(bench.request(client, "INCR n"), OOM);
    assert_eq!(bench.request(client, "STRLEN k0"), ":1000\r\n");
    assert_eq!(bench.request(client, "DEL k0 k1 k2 k3"), ":4\r\n");
    assert_eq!(bench.request(client, "INCR n"), ":1\r\n");
}

#[test]
fn least_recently_used_keys_go_first() {
    let (mut bench, client) = full(Policy::AllKeysLru);
    for number in 0..100 {
        bench.request(client, &format!("SET k{number} {}", "v".repeat(1000)));
    }
    for round in 0..1000 {
        bench.pass(1000);
        for number in 0..10 {
            bench.request(client, &format!("GET k{number}"));
        }
        let reply = bench.request(client, &format!("SET new{round} {}", "v".repeat(1000)));
        assert_eq!(reply, "+OK\r\n");
    }
    assert!(bench.shard.used_memory() < 210_000);
    assert!(bench.shard.metrics().evicted > 800);
    let kept = (0..10).filter(|n| bench.request(client, &format!("EXISTS k{n}")) == ":1\r\n").count();
    assert!(kept >= 9, "{kept} of the 10 hot keys are left");
}

#[test]
fn a_change_of_a_collection_is_an_access() {
    let mut bench = Bench::new();
    let client = bench.connect();
    for (create, change) in [
        ("RPUSH list a b c", "LPUSH list d"),
        ("RPUSH list2 a b c", "LPOP list2"),
        ("HSET hash a 1", "HSET hash b 2"),
        ("SADD set a", "SADD set b"),
        ("ZADD zset 1 a", "ZADD zset 2 b"),
    ] {
        bench.request(client, create);
        // Accesses are known to 64 ms.
        bench.pass(64_000);
        let idle = format!("OBJECT IDLETIME {}", change.split(' ').nth(1).expect("a key"));
        assert_eq!(bench.request(client, &idle), ":64\r\n", "{create}");
        bench.request(client, change);
        assert_eq!(bench.request(client, &idle), ":0\r\n", "{change}");
    }
}

#[test]
fn every_policy_makes_room() {
    let policies = [
        Policy::AllKeysLru,
        Policy::AllKeysLfu,
        Policy::AllKeysRandom,
        Policy::VolatileLru,
        Policy::VolatileLfu,
        Policy::VolatileRandom,
        Policy::VolatileTtl,
    ];
    for policy in policies {
        let (mut bench, client) = full(policy);
        bench.request(client, "SET keep forever");
        for number in 0..500 {
            let command = format!("SET k{number} {} EX {}", "v".repeat(1000), 1000 + number);
            assert_eq!(bench.request(client, &command), "+OK\r\n", "{}", policy.name());
        }
        assert!(bench.shard.metrics().evicted > 300, "{}", policy.name());
        if policy.volatile() {
            assert_eq!(bench.request(client, "GET keep"), "$7\r\nforever\r\n");
        }
        if policy == Policy::VolatileTtl {
            assert_eq!(bench.request(client, "EXISTS k0 k499"), ":1\r\n");
        }
    }
}

#[test]
fn volatile_policies_do_not_touch_other_keys() {
    let (mut bench, client) = full(Policy::VolatileLru);
    let mut refused = false;
    for number in 0..300 {
        refused |= bench.request(client, &format!("SET k{number} {}", "v".repeat(1000))) == OOM;
    }
    assert!(refused);
    assert_eq!(bench.shard.metrics().evicted, 0);
}

/// The bytes that are counted are those of the entries that are there, whatever was done to them.
#[test]
fn the_count_of_memory_is_the_sum_of_its_parts() {
    for seed in 0..8 {
        let mut bench = Bench::new();
        let client = bench.connect();
        for step in sietch_kv_programs::generate::program(seed) {
            if step.words.first().is_some_and(|name| name.to_ascii_lowercase().starts_with(b"b")) {
                // It could block, and no other client is there.
                continue;
            }
            bench.shard.feed(client, &sietch_kv_programs::connection::encode(&step.words), bench.now);
            bench.output(client);
            for database in bench.shard.store().partitions().flat_map(Partition::databases) {
                let (mut memory, mut dumped) = (database.index().growth(), 0);
                for entry in database.index().iter() {
                    memory += entry.weight().memory;
                    dumped += entry.weight().dumped;
                }
                let counted = database.weight();
                let command = String::from_utf8_lossy(&step.words.concat()).into_owned();
                assert_eq!((counted.memory, counted.dumped), (memory, dumped), "seed {seed}, {command}");
            }
        }
    }
}

/// Thresholds can be set at run time, and a collection changes with its next insertion.
#[test]
fn thresholds_of_representations_are_settings() {
    let mut bench = Bench::new();
    let client = bench.connect();
    let ok = |bench: &mut Bench, command: &str| {
        assert!(!bench.request(client, command).starts_with('-'), "{command}");
    };
    for command in ["HSET h a 1 b 2 c 3", "SADD s 1 2 3", "ZADD z 1 a 2 b 3 c"] {
        ok(&mut bench, command);
    }
    for setting in ["hash-max-ziplist-entries 3", "set-max-intset-entries 3", "zset-max-listpack-entries 3"] {
        ok(&mut bench, &format!("CONFIG SET {setting}"));
    }
    for command in ["HSET h c 4", "SADD s 3", "ZADD z 9 c"] {
        ok(&mut bench, command);
    }
    assert_eq!(bench.request(client, "OBJECT ENCODING h"), "$8\r\nlistpack\r\n");
    assert_eq!(bench.request(client, "OBJECT ENCODING s"), "$6\r\nintset\r\n");
    assert_eq!(bench.request(client, "OBJECT ENCODING z"), "$8\r\nlistpack\r\n");
    for command in ["HSET h d 4", "SADD s 4", "ZADD z 4 d"] {
        ok(&mut bench, command);
    }
    assert_eq!(bench.request(client, "OBJECT ENCODING h"), "$9\r\nhashtable\r\n");
    assert_eq!(bench.request(client, "OBJECT ENCODING s"), "$9\r\nhashtable\r\n");
    assert_eq!(bench.request(client, "OBJECT ENCODING z"), "$8\r\nskiplist\r\n");
    let shown = bench.request(client, "CONFIG GET hash-max-listpack-entries");
    assert_eq!(shown, "*2\r\n$25\r\nhash-max-listpack-entries\r\n$1\r\n3\r\n");
}
