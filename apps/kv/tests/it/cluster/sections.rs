//! What runs in an exclusive section, and what waits for one.

use std::cell::Cell;

use sietch_kv::shard::TimeSource;

use super::harness::{Cluster, Handle, key_of, text};

#[test]
fn clients_of_one_shard_do_not_keep_those_of_another_out_of_sections() {
    let mut cluster = Cluster::new(2, 5);
    let many: Vec<Handle> = (0..260).map(|_| cluster.connect(0)).collect();
    let other = cluster.connect(1);
    let pipeline = "DBSIZE\r\n".repeat(64);
    cluster.send_command(other, "CLIENT LIST ID 1");
    for _ in 0..3 {
        for &client in &many {
            cluster.send(client, pipeline.as_bytes());
            cluster.take(client);
        }
        let before = cluster.sections;
        while cluster.sections == before && cluster.step() {}
    }
    assert!(!cluster.take(other).is_empty(), "not served in {} sections", cluster.sections);
}

#[test]
fn a_forwarded_command_runs_before_a_restriction_or_not_at_all() {
    let restrictions = [
        "CLIENT PAUSE 100000 WRITE",
        "CLIENT KILL ID 2",
        "ACL SETUSER me -set",
        "ACL DELUSER me",
        "CONFIG SET timeout 0 requirepass b",
    ];
    for (seed, restriction) in (0..80).flat_map(|seed| restrictions.map(|command| (seed, command))) {
        let mut cluster = Cluster::new(3, seed);
        let admin = cluster.connect(0);
        cluster.request(admin, "CONFIG SET requirepass a");
        let other = cluster.connect(1);
        if restriction.starts_with("CONFIG") {
            // It may run commands as long as there is no password.
            assert_eq!(cluster.request(admin, "CONFIG SET requirepass \"\""), "+OK\r\n");
        } else {
            cluster.request(admin, "ACL SETUSER me on >pw ~* +@all");
            assert_eq!(cluster.request(other, "AUTH me pw"), "+OK\r\n");
        }
        let send = |cluster: &mut Cluster, number: usize| {
            let key = key_of(2 * (number % 2), 3);
            cluster.send_command(other, &format!("SET {number}{{{key}}} x"));
        };
        (0..20).for_each(|number| send(&mut cluster, number));
        for _ in 0..seed % 8 {
            cluster.step();
        }
        cluster.send_command(admin, restriction);
        (20..25).for_each(|number| send(&mut cluster, number));
        let answer = loop {
            (0..3).for_each(|number| cluster.end_iteration(number));
            let answer = text(cluster.take(admin));
            if !answer.is_empty() {
                break answer;
            }
            assert!(cluster.step(), "seed {seed}: {restriction} has no answer");
        };
        assert!(["+OK\r\n", ":1\r\n"].contains(&answer.as_str()), "{restriction}: {answer}");
        let keys = |cluster: &Cluster| cluster.shards.iter().map(|shard| shard.keys()).sum::<usize>();
        let before = keys(&cluster);
        cluster.settle();
        assert_eq!(keys(&cluster), before, "seed {seed}: a command ran after {restriction}");
        if restriction.starts_with("CLIENT PAUSE") {
            cluster.pass(100_001);
            assert_eq!(keys(&cluster), 25, "seed {seed}");
            assert_eq!(text(cluster.take(other)), "+OK\r\n".repeat(25), "seed {seed}");
        }
    }
}

#[test]
fn a_change_that_serves_no_waiting_client_takes_no_section() {
    let mut cluster = Cluster::new(2, 21);
    let (first, second) = (cluster.connect(0), cluster.connect(1));
    let (a, b) = (key_of(0, 2), key_of(1, 2));
    // One waits for a list of another shard, one for a sorted set of both, one for its own.
    assert_eq!(cluster.request(second, &format!("BLPOP {a} 0")), "");
    let (third, fourth) = (cluster.connect(0), cluster.connect(0));
    assert_eq!(cluster.request(third, &format!("BZPOPMIN {a} {b} 0")), "");
    assert_eq!(cluster.request(fourth, &format!("BLPOP {a} 0")), "");
    let before = cluster.sections;
    for change in [format!("SET {a} x"), format!("APPEND {a} x"), format!("DEL {a}"), format!("HSET {a} f x")]
    {
        for _ in 0..10 {
            assert!(!cluster.request(first, &change).starts_with('-'), "{change}");
        }
    }
    assert_eq!(cluster.sections, before, "a change of another type took a section");
    assert_eq!(cluster.request(first, &format!("DEL {a}")), ":1\r\n");
    assert_eq!(cluster.request(first, &format!("ZADD {a} 1 m")), ":1\r\n");
    assert_eq!(text(cluster.take(third)), format!("*3\r\n$2\r\n{a}\r\n$1\r\nm\r\n$1\r\n1\r\n"));
    for (client, element) in [(second, "one"), (fourth, "two")] {
        assert_eq!(cluster.request(first, &format!("RPUSH {a} {element}")), ":1\r\n");
        assert_eq!(text(cluster.take(client)), format!("*2\r\n$2\r\n{a}\r\n$3\r\n{element}\r\n"));
    }
    assert_eq!(cluster.request(first, "DBSIZE"), ":0\r\n");
}

#[test]
fn a_section_runs_a_bounded_number_of_commands() {
    let mut cluster = Cluster::new(2, 6);
    let many: Vec<Handle> = (0..200).map(|_| cluster.connect(0)).collect();
    let other = cluster.connect(1);
    let transaction = format!("MULTI\r\n{}EXEC\r\n", "DBSIZE\r\n".repeat(30));
    let ran = |cluster: &Cluster| cluster.shards.iter().map(|shard| shard.metrics().commands).sum::<u64>();
    for (number, &client) in many.iter().enumerate() {
        let pipeline = if number % 2 == 0 { "DBSIZE\r\n".repeat(64) } else { transaction.clone() };
        cluster.send(client, pipeline.as_bytes());
    }
    cluster.send_command(other, "DBSIZE");
    loop {
        (0..2).for_each(|number| cluster.end_iteration(number));
        let (sections, before) = (cluster.sections, ran(&cluster));
        if !cluster.step() {
            break;
        }
        if cluster.sections > sections {
            let more = ran(&cluster) - before;
            assert!(more < 1024 + 64, "{more} commands in a section");
            // The other shard has its share of the first section.
            assert_eq!(cluster.shards[1].metrics().commands, 1);
        }
    }
    assert_eq!(text(cluster.take(other)), ":0\r\n");
    assert!(cluster.sections > 5, "{} sections", cluster.sections);
    for (number, &client) in many.iter().enumerate() {
        let replies = text(cluster.take(client));
        assert_eq!(replies.matches(":0\r\n").count(), if number % 2 == 0 { 64 } else { 30 }, "{number}");
    }
}

/// Goes on until nothing is left to do. Calls `check` after each step with a section, with the
/// commands that ran in it.
fn each_section(cluster: &mut Cluster, mut check: impl FnMut(&Cluster, u64)) {
    let ran = |cluster: &Cluster| cluster.shards.iter().map(|shard| shard.metrics().commands).sum::<u64>();
    loop {
        (0..2).for_each(|number| cluster.end_iteration(number));
        let (sections, before) = (cluster.sections, ran(cluster));
        if !cluster.step() {
            break;
        }
        if cluster.sections != sections {
            check(cluster, ran(cluster) - before);
        }
    }
}

#[test]
fn a_section_runs_a_bounded_number_of_postponed_commands() {
    let mut cluster = Cluster::new(2, 25);
    let many: Vec<Handle> = (0..2000).map(|number| cluster.connect(number % 2)).collect();
    let admin = cluster.connect(0);
    assert_eq!(cluster.request(admin, "CLIENT PAUSE 100000 WRITE"), "+OK\r\n");
    for &client in &many {
        cluster.send_command(client, &format!("INCR {}", key_of(client.0, 2)));
    }
    cluster.settle();
    cluster.send_command(admin, "CLIENT UNPAUSE");
    each_section(&mut cluster, |_, more| assert!(more <= 1024, "{more} commands in a section"));
    assert_eq!(text(cluster.take(admin)), "+OK\r\n");
    for (number, &client) in many.iter().enumerate() {
        assert_eq!(text(cluster.take(client)), format!(":{}\r\n", number / 2 + 1));
    }
}

/// Two shards whose clock goes on by so many nanoseconds at each reading.
fn slow(seed: u64, step: u64) -> Cluster {
    thread_local!(static CLOCK: Cell<(u64, u64)> = const { Cell::new((0, 0)) });
    CLOCK.set((0, step));
    let mut cluster = Cluster::new(2, seed);
    for shard in &mut cluster.shards {
        let monotonic_ns = || {
            let (now, step) = CLOCK.get();
            CLOCK.replace((now + step, step)).0
        };
        shard.measure_with(TimeSource { monotonic_ns, sleep: |_| {} });
    }
    cluster
}

#[test]
fn a_section_begins_no_command_after_its_time() {
    // A command takes a millisecond at least.
    let mut cluster = slow(27, 500_000);
    let many: Vec<Handle> = (0..20).map(|_| cluster.connect(0)).collect();
    let other = cluster.connect(1);
    for &client in &many {
        cluster.send(client, "DBSIZE\r\n".repeat(20).as_bytes());
    }
    cluster.send(other, b"MULTI\r\nDBSIZE\r\nDBSIZE\r\nDBSIZE\r\nDBSIZE\r\nDBSIZE\r\nEXEC\r\n");
    each_section(&mut cluster, |cluster, more| {
        assert!((1..=6).contains(&more), "{more} commands in a section");
        if cluster.sections == 2 {
            // It begins with the other shard, and its transaction is one command.
            assert!(cluster.shards[1].metrics().commands >= 6, "the other shard has no turn");
        }
    });
    assert!(cluster.sections > 400 / 6, "{} sections", cluster.sections);
    assert!(text(cluster.take(other)).ends_with(&format!("*5\r\n{}", ":0\r\n".repeat(5))));
    assert!(many.iter().all(|&client| text(cluster.take(client)) == ":0\r\n".repeat(20)));
}

#[test]
fn long_commands_do_not_keep_a_pause_from_its_turn() {
    for seed in 0..20 {
        let mut cluster = slow(seed, 500_000);
        let (admin, other, key) = (cluster.connect(0), cluster.connect(1), key_of(0, 2));
        for _ in 0..20 {
            let client = cluster.connect(1);
            cluster.send(client, "DBSIZE\r\n".repeat(20).as_bytes());
        }
        cluster.send_command(admin, "CLIENT PAUSE 100000 WRITE");
        while cluster.take(admin).is_empty() {
            cluster.send_command(other, &format!("SET {key} x"));
            (0..2).for_each(|number| cluster.end_iteration(number));
            assert!(cluster.step() && cluster.sections < 40, "seed {seed}: no answer");
        }
    }
}

#[test]
fn each_section_runs_a_command_however_long_it_takes() {
    for step in [1_000_000, 1_500_000, 3_000_000] {
        let mut cluster = slow(28, step);
        let clients: Vec<Handle> = (0..10).map(|number| cluster.connect(number % 2)).collect();
        for &client in &clients {
            cluster.send(client, "DBSIZE\r\n".repeat(10).as_bytes());
        }
        cluster.settle();
        assert!(clients.iter().all(|&client| text(cluster.take(client)) == ":0\r\n".repeat(10)));
        assert!(cluster.sections <= 100, "{} sections for 100 commands", cluster.sections);
    }
}
