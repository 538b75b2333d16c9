//! Several clients at a time: what no order of their commands may break.

use std::collections::BTreeMap;

use sietch_kv_programs::generate::{is_key, program};
use sietch_kv_programs::reply::{Comparison, Reply};

use super::harness::{Cluster, Handle, seeds, state};

/// Runs of each test.
const RUNS: u64 = 12;

/// Clients, spread over the shards.
fn clients(cluster: &mut Cluster, count: usize) -> Vec<Handle> {
    let shards = cluster.shards.len();
    (0..count).map(|number| cluster.connect(number % shards)).collect()
}

/// Parses everything that a client has received.
fn replies(cluster: &mut Cluster, client: Handle) -> Vec<Reply> {
    let received = cluster.take(client);
    let mut bytes = received.as_slice();
    let mut replies = Vec::new();
    while let Some((reply, rest)) = Reply::parse(bytes) {
        bytes = &bytes[bytes.len() - rest..];
        replies.push(reply);
    }
    assert!(bytes.is_empty(), "half a reply");
    replies
}

#[test]
fn transactions_over_shards_are_seen_whole() {
    for seed in seeds(RUNS) {
        let mut cluster = Cluster::new(2 + seed as usize % 3, seed);
        let clients = clients(&mut cluster, 5);
        let mut transactions = 0;
        for _ in 0..60 {
            let client = clients[cluster.random.index(clients.len())];
            // Both counters always grow together.
            match cluster.random.index(4) {
                0 => {
                    transactions += 1;
                    cluster.send(client, b"MULTI\r\nINCR left\r\nINCR right\r\nINCR middle\r\nEXEC\r\n");
                }
                1 => cluster.send(client, b"MGET left right middle\r\n"),
                2 => cluster.send(client, b"MULTI\r\nGET left\r\nGET right\r\nGET middle\r\nEXEC\r\n"),
                _ => cluster.send(client, b"INCR own1\r\nINCR own2\r\nINCR own3\r\n"),
            }
            for _ in 0..cluster.random.index(5) {
                cluster.step();
            }
        }
        cluster.settle();
        let mut seen = 0;
        for &client in &clients {
            for reply in replies(&mut cluster, client) {
                if let Reply::Array(elements) = reply {
                    seen += 1;
                    assert!(elements.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: {elements:?}");
                }
            }
        }
        assert!(seen > 0);
        let count = transactions.to_string();
        let whole = cluster.request(clients[0], "GET left");
        assert_eq!(whole, format!("${}\r\n{count}\r\n", count.len()), "seed {seed}");
        // A crash may end the log behind any record.
        while let Some(_record) = cluster.records.pop() {
            let mut recovered = cluster.recovered();
            let client = recovered.connect(0);
            let values = recovered.request(client, "MGET left right middle");
            let values: Vec<&str> =
                values.split("\r\n").filter(|line| !line.starts_with(['$', '*'])).collect();
            assert!(
                values.windows(2).all(|pair| pair[0] == pair[1] || pair[1].is_empty()),
                "seed {seed}: {values:?}"
            );
        }
    }
}

#[test]
fn watched_keys_guard_a_transaction_on_any_shard() {
    for seed in seeds(RUNS) {
        let mut cluster = Cluster::new(2 + seed as usize % 3, seed);
        let clients = clients(&mut cluster, 4);
        let setup = clients[0];
        cluster.request(setup, "MSET a 0 b 0 c 0");
        let mut done = 0;
        for _ in 0..40 {
            // Two clients read a counter and set it to the next number. Only one of them may win.
            let key = ["a", "b", "c"][cluster.random.index(3)];
            let (first, second) = (clients[cluster.random.index(2)], clients[2 + cluster.random.index(2)]);
            let mut next = Vec::new();
            for client in [first, second] {
                cluster.request(client, &format!("WATCH {key}"));
                let value = cluster.request(client, &format!("GET {key}"));
                let value: u64 =
                    value.split("\r\n").nth(1).and_then(|text| text.parse().ok()).expect("a number");
                next.push(value + 1);
            }
            for (client, next) in [first, second].into_iter().zip(&next) {
                cluster
                    .send(client, format!("MULTI\r\nSET {key} {next}\r\nINCR total\r\nEXEC\r\n").as_bytes());
            }
            cluster.settle();
            let won = [first, second]
                .into_iter()
                .filter(|&client| matches!(replies(&mut cluster, client).last(), Some(Reply::Array(_))));
            let won = won.count();
            assert_eq!(won, 1, "seed {seed}, {key}");
            done += 1;
        }
        assert_eq!(cluster.request(setup, "GET total"), format!("$2\r\n{done}\r\n"));
    }
}

#[test]
fn every_element_is_popped_once_and_in_order() {
    for seed in seeds(RUNS) {
        let mut cluster = Cluster::new(2 + seed as usize % 3, seed);
        let clients = clients(&mut cluster, 6);
        let (consumers, producers) = clients.split_at(4);
        let mut pushed: BTreeMap<String, u64> = BTreeMap::new();
        let mut popped: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut waits = 0;
        for _ in 0..80 {
            if cluster.random.index(2) == 0 {
                let client = consumers[cluster.random.index(consumers.len())];
                let keys =
                    [["q1", "q2", "q3"], ["q3", "q1", "q4"], ["q2", "q4", "q1"]][cluster.random.index(3)];
                let timeout = ["0", "0", "0.05"][cluster.random.index(3)];
                cluster.send_command(client, &format!("BLPOP {} {timeout}", keys.join(" ")));
                waits += 1;
            } else {
                let client = producers[cluster.random.index(producers.len())];
                let key = format!("q{}", 1 + cluster.random.index(4));
                let number = pushed.entry(key.clone()).or_default();
                *number += 1;
                cluster.send_command(client, &format!("RPUSH {key} {number}"));
                // The order of two producers is known only once the first is answered.
                cluster.settle();
            }
            for _ in 0..cluster.random.index(4) {
                cluster.step();
            }
            if cluster.random.index(20) == 0 {
                cluster.pass(60);
            }
        }
        cluster.pass(60);
        // Frees the clients that still wait.
        for number in 0..2 * waits {
            let key = format!("q{}", 1 + number % 4);
            let count = pushed.entry(key.clone()).or_default();
            *count += 1;
            cluster.request(producers[0], &format!("RPUSH {key} {count}"));
        }
        for &client in consumers {
            for reply in replies(&mut cluster, client) {
                let Reply::Array(parts) = reply else { continue };
                let [Reply::Bulk(key), Reply::Bulk(element)] = &parts[..] else {
                    panic!("a key and an element")
                };
                let number = String::from_utf8_lossy(element).parse().expect("a number");
                popped.entry(String::from_utf8_lossy(key).into_owned()).or_default().push(number);
            }
        }
        for (key, count) in pushed {
            let mut taken = popped.remove(&key).unwrap_or_default();
            taken.sort_unstable();
            let left = cluster.request(producers[0], &format!("LRANGE {key} 0 -1"));
            let left = left
                .split("\r\n")
                .filter(|line| !line.starts_with(['$', '*']))
                .filter_map(|line| line.parse::<u64>().ok());
            taken.extend(left);
            // Those that are left are the last ones, in order.
            assert_eq!(taken, (1..=count).collect::<Vec<u64>>(), "seed {seed}, {key}");
        }
        assert_eq!(state(&mut cluster.recovered()), state(&mut cluster), "seed {seed}");
    }
}

/// Commands that concern more than the keys of one database which they name, or later commands.
const GLOBAL: [&str; 18] = [
    "move",
    "copy",
    "keys",
    "scan",
    "dbsize",
    "randomkey",
    "flushdb",
    "flushall",
    "swapdb",
    "publish",
    "pubsub",
    "psubscribe",
    "subscribe",
    "slowlog",
    "multi",
    "exec",
    "select",
    "reset",
];

#[test]
fn clients_with_keys_of_their_own_do_not_disturb_each_other() {
    for seed in seeds(RUNS) {
        let mut cluster = Cluster::new(2 + seed as usize % 4, seed);
        let mut alone = Cluster::new(1, seed);
        alone.now = cluster.now;
        let handles = clients(&mut cluster, 4);
        let mut expected = Vec::new();
        let mut programs = Vec::new();
        for (number, &handle) in handles.iter().enumerate() {
            let mut steps = program(seed * 16 + number as u64);
            steps.retain(|step| {
                let name = String::from_utf8_lossy(&step.words[0]).to_ascii_lowercase();
                let blocks = name.starts_with('b') && !name.starts_with("bit");
                !blocks && !GLOBAL.contains(&&*name)
            });
            for word in steps.iter_mut().flat_map(|step| &mut step.words[1..]).filter(|word| is_key(word)) {
                word.splice(0..0, format!("c{number}").into_bytes());
            }
            // Some words that are keys have no prefix.
            let select = format!("SELECT {number}");
            cluster.request(handle, &select);
            let client = alone.connect(0);
            alone.request(client, &select);
            let commands: Vec<&[Vec<u8>]> = steps.iter().map(|step| step.words.as_slice()).collect();
            expected.push(alone.request_all(client, &commands));
            programs.push(steps);
        }
        let mut at = vec![0; handles.len()];
        while at.iter().zip(&programs).any(|(at, steps)| *at < steps.len()) {
            let number = cluster.random.index(handles.len());
            let end = (at[number] + 1 + cluster.random.index(8)).min(programs[number].len());
            for step in &programs[number][at[number]..end] {
                cluster.send(handles[number], &sietch_kv_programs::connection::encode(&step.words));
            }
            at[number] = end;
            for _ in 0..cluster.random.index(6) {
                cluster.step();
            }
        }
        cluster.settle();
        for (number, &client) in handles.iter().enumerate() {
            let got = replies(&mut cluster, client);
            assert_eq!(
                got.len(),
                expected[number].len(),
                "seed {seed}, client {number}: replies are missing"
            );
            for (step, (got, expected)) in programs[number].iter().zip(got.into_iter().zip(&expected[number]))
            {
                if step.comparison == Comparison::Shape {
                    continue;
                }
                let shown: Vec<_> = step.words.iter().map(|word| String::from_utf8_lossy(word)).collect();
                let (got, expected) = (step.comparison.normal(got), step.comparison.normal(expected.clone()));
                assert_eq!(got, expected, "seed {seed}, client {number}: {shown:?}");
            }
        }
        assert_eq!(state(&mut cluster.recovered()), state(&mut cluster), "seed {seed}");
    }
}
