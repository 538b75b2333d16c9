//! A test for each rule of several shards.

use sietch_kv::settings::Settings;
use sietch_kv::shard::Shard;

use super::harness::{Cluster, Handle, key_of, state, text};

/// Two shards with a client each, a key of each, and a schedule.
struct Two {
    cluster: Cluster,
    first: Handle,
    second: Handle,
    a: String,
    b: String,
}

fn two(seed: u64) -> Two {
    let mut cluster = Cluster::new(2, seed);
    let (first, second) = (cluster.connect(0), cluster.connect(1));
    Two { cluster, first, second, a: key_of(0, 2), b: key_of(1, 2) }
}

#[test]
fn a_key_is_the_same_from_every_shard() {
    let Two { mut cluster, first, second, a, b } = two(1);
    for key in [&a, &b] {
        assert_eq!(cluster.request(first, &format!("SET {key} 1")), "+OK\r\n");
        assert_eq!(cluster.request(second, &format!("INCR {key}")), ":2\r\n");
        assert_eq!(cluster.request(first, &format!("GET {key}")), "$1\r\n2\r\n");
    }
    assert_eq!(cluster.request(first, &format!("MGET {a} {b} none")), "*3\r\n$1\r\n2\r\n$1\r\n2\r\n$-1\r\n");
    assert_eq!(cluster.request(second, "DBSIZE"), ":2\r\n");
    assert_eq!(cluster.request(second, &format!("RENAME {a} {b}")), "+OK\r\n");
    assert_eq!(cluster.request(first, &format!("EXISTS {a} {b}")), ":1\r\n");
    assert_eq!(state(&mut cluster.recovered()), state(&mut cluster));
}

#[test]
fn replies_keep_the_order_of_the_commands() {
    for seed in 0..20 {
        let Two { mut cluster, first, a, b, .. } = two(seed);
        let mut expected = String::new();
        for number in 1..=30 {
            cluster.send_command(first, &format!("INCR {a}"));
            cluster.send_command(first, &format!("INCR {b}"));
            cluster.send_command(first, "NOSUCH");
            cluster.send_command(first, &format!("ECHO {number}"));
            cluster.step();
            let digits = number.to_string().len();
            expected += &format!(
                ":{number}\r\n:{number}\r\n-ERR unknown command 'NOSUCH', with args beginning with: \r\n${digits}\r\n{number}\r\n"
            );
        }
        cluster.settle();
        assert_eq!(text(cluster.take(first)), expected, "seed {seed}");
    }
}

#[test]
fn the_state_of_the_client_goes_with_a_forwarded_command() {
    let Two { mut cluster, first, second, b, .. } = two(3);
    cluster.send_command(first, &format!("SET {b} zero"));
    cluster.send_command(first, "SELECT 3");
    cluster.send_command(first, &format!("SET {b} three"));
    cluster.send_command(first, "HELLO 3");
    cluster.send_command(first, &format!("GET none{b}"));
    cluster.send_command(first, &format!("HSET h{{{b}}} f v"));
    cluster.send_command(first, &format!("HGETALL h{{{b}}}"));
    cluster.settle();
    assert!(text(cluster.take(first)).ends_with(":1\r\n%1\r\n$1\r\nf\r\n$1\r\nv\r\n"));
    assert_eq!(cluster.request(second, &format!("GET {b}")), "$4\r\nzero\r\n");
    cluster.request(second, "SELECT 3");
    assert_eq!(cluster.request(second, &format!("GET {b}")), "$5\r\nthree\r\n");
}

#[test]
fn suppressed_replies_are_suppressed_on_every_shard() {
    let Two { mut cluster, first, second, a, b } = two(4);
    for command in [
        "CLIENT REPLY SKIP".to_owned(),
        format!("INCR {b}"),
        format!("INCR {b}"),
        "CLIENT REPLY OFF".to_owned(),
        format!("INCR {a}"),
        format!("INCR {b}"),
        format!("HSET {b} f v"),
        "PING".to_owned(),
        "CLIENT REPLY ON".to_owned(),
        format!("INCR {b}"),
    ] {
        cluster.send_command(first, &command);
    }
    cluster.settle();
    assert_eq!(text(cluster.take(first)), ":2\r\n+OK\r\n:4\r\n");
    assert_eq!(cluster.request(second, &format!("GET {a}")), "$1\r\n1\r\n");
}

#[test]
fn a_blocked_client_is_served_from_any_shard() {
    let Two { mut cluster, first, second, a, b } = two(5);
    for (waits, pushes) in [(first, second), (second, first), (first, first)] {
        let pusher = if waits == pushes { cluster.connect(0) } else { pushes };
        for key in [&a, &b] {
            assert_eq!(cluster.request(waits, &format!("BLPOP {a} {b} 0")), "");
            assert_eq!(cluster.request(pusher, &format!("RPUSH {key} x")), ":1\r\n");
            assert_eq!(text(cluster.take(waits)), format!("*2\r\n$2\r\n{key}\r\n$1\r\nx\r\n"));
            assert_eq!(cluster.request(pusher, &format!("LLEN {key}")), ":0\r\n");
        }
        // Source and destination on different shards.
        assert_eq!(cluster.request(waits, &format!("BLMOVE {a} {b} LEFT RIGHT 0")), "");
        assert_eq!(cluster.request(pusher, &format!("LPUSH {a} y")), ":1\r\n");
        assert_eq!(text(cluster.take(waits)), "$1\r\ny\r\n");
        assert_eq!(cluster.request(pusher, &format!("LPOP {b}")), "$1\r\ny\r\n");
    }
}

#[test]
fn a_blocked_client_of_any_shard_is_refused_what_its_user_lost() {
    let refused = "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";
    for seed in 0..10 {
        let Two { mut cluster, first, second, a, b } = two(seed);
        for (waits, admin) in [(first, second), (second, first)] {
            for command in [format!("BLPOP {a} {b} 0"), format!("BLMOVE {a} {b} LEFT LEFT 0")] {
                for key in [&a, &b] {
                    let alone = [format!("BLPOP {key} 0"), command.clone()];
                    for waiting in alone.iter().filter(|command| !command.contains("MOVE") || *key == a) {
                        cluster.request(admin, "ACL SETUSER bob reset on nopass allkeys +@all");
                        assert_eq!(cluster.request(waits, "AUTH bob x"), "+OK\r\n");
                        assert_eq!(cluster.request(waits, waiting), "");
                        assert_eq!(cluster.request(admin, "ACL SETUSER bob resetkeys ~x"), "+OK\r\n");
                        assert_eq!(cluster.request(admin, &format!("RPUSH {key} x")), ":1\r\n");
                        assert_eq!(text(cluster.take(waits)), refused, "{waiting}, seed {seed}");
                        assert_eq!(cluster.request(admin, &format!("LPOP {key}")), "$1\r\nx\r\n");
                        assert_eq!(cluster.request(waits, "RESET"), "+RESET\r\n");
                    }
                }
            }
        }
    }
}

#[test]
fn a_blocked_client_times_out_and_can_be_unblocked() {
    let Two { mut cluster, first, second, a, b } = two(6);
    assert_eq!(cluster.request(first, &format!("BRPOPLPUSH {a} {b} 0.01")), "");
    cluster.pass(20);
    assert_eq!(text(cluster.take(first)), "*-1\r\n");
    let id = cluster.request(first, "CLIENT ID");
    let id = id.trim_matches([':', '\r', '\n']);
    for (word, reply) in
        [("TIMEOUT", "*-1\r\n"), ("ERROR", "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n")]
    {
        assert_eq!(cluster.request(first, &format!("BLPOP {a} {b} 0")), "");
        assert_eq!(cluster.request(second, &format!("CLIENT UNBLOCK {id} {word}")), ":1\r\n");
        assert_eq!(text(cluster.take(first)), reply);
    }
    assert_eq!(cluster.request(second, &format!("CLIENT UNBLOCK {id}")), ":0\r\n");
    // It waits no longer, and then waits again: what is pushed is not lost.
    assert_eq!(cluster.request(second, &format!("RPUSH {a} 1 2")), ":2\r\n");
    assert_eq!(
        cluster.request(first, &format!("BLPOP {b} {a} 0")),
        format!("*2\r\n$2\r\n{a}\r\n$1\r\n1\r\n")
    );
}

#[test]
fn waiting_clients_of_all_shards_are_served_in_the_order_of_their_arrival() {
    for seed in 0..10 {
        let Two { mut cluster, first, second, b, .. } = two(seed);
        let (third, fourth) = (cluster.connect(0), cluster.connect(1));
        for client in [first, second, third] {
            assert_eq!(cluster.request(client, &format!("BLPOP {b} 0")), "");
        }
        // In one pipeline: the waiting clients are served before the next command runs.
        cluster.send_command(fourth, &format!("RPUSH {b} 1"));
        cluster.send_command(fourth, &format!("RPUSH {b} 2"));
        cluster.send_command(fourth, &format!("LLEN {b}"));
        cluster.send_command(fourth, &format!("RPUSH {b} 3 4"));
        cluster.send_command(fourth, &format!("LRANGE {b} 0 -1"));
        cluster.settle();
        assert_eq!(text(cluster.take(fourth)), ":1\r\n:1\r\n:0\r\n:2\r\n*1\r\n$1\r\n4\r\n", "seed {seed}");
        for (client, element) in [(first, 1), (second, 2), (third, 3)] {
            assert_eq!(
                text(cluster.take(client)),
                format!("*2\r\n$2\r\n{b}\r\n$1\r\n{element}\r\n"),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn a_client_that_leaves_while_it_waits_takes_nothing() {
    let Two { mut cluster, first, second, a, b } = two(7);
    let third = cluster.connect(0);
    assert_eq!(cluster.request(third, &format!("BLPOP {b} {a} 0")), "");
    cluster.disconnect(third);
    assert_eq!(cluster.request(second, &format!("RPUSH {b} x")), ":1\r\n");
    assert_eq!(cluster.request(second, &format!("LLEN {b}")), ":1\r\n");
    // With requests and replies on their way.
    for steps in 0..6 {
        let other = cluster.connect(0);
        cluster.send_command(other, &format!("INCR n{{{b}}}"));
        cluster.send_command(other, &format!("MGET {a} {b}"));
        for _ in 0..steps {
            cluster.step();
        }
        cluster.disconnect(other);
        let next = cluster.connect(0);
        cluster.settle();
        assert_eq!(text(cluster.take(next)), "", "the slot of another client");
        cluster.disconnect(next);
    }
    assert_eq!(cluster.request(first, &format!("GET n{{{b}}}")), "$1\r\n6\r\n");
}

#[test]
fn a_transaction_of_several_shards_is_one_record() {
    let Two { mut cluster, first, second, a, b } = two(8);
    let before = cluster.records.len();
    for command in ["MULTI".to_owned(), format!("SET {a} 1"), format!("SET {b} 2"), "EXEC".to_owned()] {
        cluster.send_command(second, &command);
    }
    cluster.settle();
    assert_eq!(text(cluster.take(second)), "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n");
    assert_eq!(cluster.records.len(), before + 1);
    assert_eq!(cluster.request(first, &format!("MGET {a} {b}")), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    assert_eq!(state(&mut cluster.recovered()), state(&mut cluster));
}

#[test]
fn a_watched_key_may_be_on_another_shard() {
    let Two { mut cluster, first, second, a, b } = two(9);
    for (key, change, changed) in [
        (&a, format!("SET {a} x"), true),
        (&b, format!("SET {b} x"), true),
        (&b, format!("SET {a} x"), false),
        (&b, format!("RENAME {a} {b}"), true),
        (&b, "FLUSHALL".to_owned(), true),
        (&b, "FLUSHALL".to_owned(), false),
    ] {
        assert_eq!(cluster.request(first, &format!("WATCH {key}")), "+OK\r\n");
        cluster.request(second, &change);
        cluster.request(first, "MULTI");
        cluster.request(first, "PING");
        let expected = if changed { "*-1\r\n" } else { "*1\r\n+PONG\r\n" };
        assert_eq!(cluster.request(first, "EXEC"), expected, "{change}");
    }
    // Its time is over.
    cluster.request(second, &format!("SET {b} x PX 50"));
    assert_eq!(cluster.request(first, &format!("WATCH {b}")), "+OK\r\n");
    cluster.pass(100);
    cluster.request(first, "MULTI");
    cluster.request(first, "PING");
    assert_eq!(cluster.request(first, "EXEC"), "*-1\r\n");
    // The watch of a client that has left, or has ended it, is no watch of a later one.
    assert_eq!(cluster.request(first, &format!("WATCH {b}")), "+OK\r\n");
    assert_eq!(cluster.request(first, "UNWATCH"), "+OK\r\n");
    let third = cluster.connect(0);
    assert_eq!(cluster.request(third, &format!("WATCH {b}")), "+OK\r\n");
    cluster.disconnect(third);
    cluster.request(second, &format!("SET {b} y"));
    assert_eq!(cluster.request(first, &format!("WATCH {b}")), "+OK\r\n");
    cluster.request(first, "MULTI");
    cluster.request(first, &format!("GET {b}"));
    assert_eq!(cluster.request(first, "EXEC"), "*1\r\n$1\r\ny\r\n");
}

#[test]
fn clients_of_all_shards_are_listed_and_killed() {
    let Two { mut cluster, first, second, a, b } = two(10);
    let list = cluster.request(first, "CLIENT LIST");
    assert!(list.contains("id=1 ") && list.contains("id=2 "), "{list}");
    assert!(cluster.request(first, "INFO clients").contains("connected_clients:2\r\n"));
    // While a reply is on its way.
    cluster.send_command(second, &format!("GET {a}"));
    assert_eq!(cluster.request(first, "CLIENT KILL ID 2"), ":1\r\n");
    assert_eq!(cluster.closed, [second]);
    let third = cluster.connect(1);
    assert_eq!(cluster.request(third, "CLIENT ID"), ":3\r\n", "the next one of all shards");
    assert_eq!(cluster.request(third, &format!("BLPOP {a} {b} 0")), "");
    assert!(cluster.request(first, "CLIENT LIST ID 3").contains("flags=b"));
    assert_eq!(cluster.request(first, "CLIENT KILL ID 3"), ":1\r\n");
    assert!(cluster.closed.contains(&third));
    assert_eq!(cluster.request(first, &format!("RPUSH {a} x")), ":1\r\n");
    assert_eq!(cluster.request(first, &format!("LLEN {a}")), ":1\r\n");
}

#[test]
fn a_pause_holds_on_every_shard() {
    let Two { mut cluster, first, second, a, b } = two(11);
    assert_eq!(cluster.request(first, "CLIENT PAUSE 100 WRITE"), "+OK\r\n");
    for key in [&a, &b] {
        cluster.send_command(second, &format!("INCR {key}"));
    }
    cluster.settle();
    assert_eq!(text(cluster.take(second)), "");
    assert_eq!(cluster.request(first, &format!("MGET {a} {b}")), "*2\r\n$-1\r\n$-1\r\n");
    cluster.pass(200);
    assert_eq!(text(cluster.take(second)), ":1\r\n:1\r\n");
    assert_eq!(cluster.request(first, "CLIENT PAUSE 100000"), "+OK\r\n");
    cluster.send_command(second, &format!("MGET {a} {b}"));
    cluster.settle();
    assert_eq!(text(cluster.take(second)), "");
    // Only a client that paused everything may not even end it: time does.
    cluster.pass(100_001);
    assert_eq!(text(cluster.take(second)), "*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
}

#[test]
fn a_blocked_client_of_another_shard_is_served_before_what_a_pause_postponed() {
    for seed in 0..10 {
        let Two { mut cluster, first, second, b, .. } = two(seed);
        let (third, fourth) = (cluster.connect(1), cluster.connect(0));
        assert_eq!(cluster.request(first, &format!("BLPOP {b} 0")), "");
        assert_eq!(cluster.request(fourth, "CLIENT PAUSE 100"), "+OK\r\n");
        assert_eq!(cluster.request(second, &format!("LPUSH {b} x")), "");
        assert_eq!(cluster.request(third, &format!("LPOP {b}")), "");
        cluster.pass(101);
        assert_eq!(text(cluster.take(first)), format!("*2\r\n$2\r\n{b}\r\n$1\r\nx\r\n"), "seed {seed}");
        assert_eq!(
            (text(cluster.take(second)), text(cluster.take(third))),
            (":1\r\n".into(), "$-1\r\n".into())
        );
    }
}

#[test]
fn settings_and_users_are_those_of_all_shards() {
    let Two { mut cluster, first, second, a, b } = two(12);
    assert_eq!(cluster.request(first, "CONFIG SET maxmemory-policy allkeys-lru"), "+OK\r\n");
    assert!(cluster.request(second, "CONFIG GET maxmemory-policy").contains("allkeys-lru"));
    assert_eq!(cluster.request(second, "ACL SETUSER me on >pw ~* +@all -set"), "+OK\r\n");
    let third = cluster.connect(0);
    assert_eq!(cluster.request(third, "AUTH me pw"), "+OK\r\n");
    for key in [&a, &b] {
        assert!(cluster.request(third, &format!("SET {key} x")).starts_with("-NOPERM"));
        assert_eq!(cluster.request(third, &format!("INCR {key}")), ":1\r\n");
    }
    assert_eq!(cluster.request(second, "ACL DELUSER me"), ":1\r\n");
    assert_eq!(cluster.closed, [third]);
    assert_eq!(cluster.request(first, "CONFIG SET requirepass pw"), "+OK\r\n");
    let fourth = cluster.connect(1);
    for command in [format!("GET {a}"), format!("GET {b}"), format!("MGET {a} {b}")] {
        assert_eq!(cluster.request(fourth, &command), "-NOAUTH Authentication required.\r\n");
    }
}

#[test]
fn messages_reach_the_subscribers_of_every_shard() {
    let Two { mut cluster, first, second, a, b } = two(13);
    cluster.request(first, "CONFIG SET notify-keyspace-events KEA");
    let (third, fourth) = (cluster.connect(0), cluster.connect(1));
    cluster.request(third, "SUBSCRIBE news");
    cluster.request(fourth, "PSUBSCRIBE n* __keyevent@0__:incrby");
    assert_eq!(cluster.request(first, "PUBLISH news x"), ":2\r\n");
    assert_eq!(text(cluster.take(third)), "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\nx\r\n");
    assert!(text(cluster.take(fourth)).ends_with("$4\r\nnews\r\n$1\r\nx\r\n"));
    assert_eq!(cluster.request(first, "PUBSUB NUMSUB news"), "*2\r\n$4\r\nnews\r\n:1\r\n");
    assert_eq!(cluster.request(second, "PUBSUB NUMPAT"), ":2\r\n");
    for key in [&a, &b] {
        cluster.request(first, &format!("INCR {key}"));
        assert!(text(cluster.take(fourth)).ends_with(&format!("$2\r\n{key}\r\n")));
    }
    cluster.request(second, &format!("MSET {a} 1 {b} 1"));
    assert_eq!(text(cluster.take(fourth)), "");
}

#[test]
fn a_monitor_sees_the_commands_of_every_shard() {
    let Two { mut cluster, first, second, a, b } = two(14);
    let third = cluster.connect(0);
    assert_eq!(cluster.request(third, "MONITOR"), "+OK\r\n");
    for (client, key) in [(first, &a), (first, &b), (second, &a), (second, &b)] {
        cluster.request(client, &format!("GET {key}"));
        let lines = text(cluster.take(third));
        assert!(lines.ends_with(&format!("\"GET\" \"{key}\"\r\n")), "{lines}");
        assert_eq!(lines.matches("GET").count(), 1);
    }
    cluster.request(second, &format!("MGET {a} {b}"));
    assert!(text(cluster.take(third)).contains("\"MGET\""));
    assert_eq!(cluster.request(third, "RESET"), "+RESET\r\n");
    cluster.request(second, &format!("GET {b}"));
    assert_eq!(text(cluster.take(third)), "");
    assert_eq!(cluster.request(third, "MONITOR"), "+OK\r\n");
    cluster.request(second, &format!("GET {b}"));
    assert!(text(cluster.take(third)).contains("GET"));
    cluster.disconnect(third);
    cluster.settle();
    cluster.request(second, &format!("GET {b}"));
}

#[test]
fn limits_are_those_of_all_shards_together() {
    let mut settings = Settings::default();
    settings.maxclients = 3;
    let mut cluster = Cluster::with(2, 15, &settings);
    let (first, second) = (cluster.connect(0), cluster.connect(1));
    let third = cluster.connect(0);
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    assert!(cluster.shards[1].connect(address, address, cluster.now).is_err());
    cluster.disconnect(third);
    assert!(cluster.shards[1].connect(address, address, cluster.now).is_ok());
    let (a, b) = (key_of(0, 2), key_of(1, 2));
    cluster.request(first, &format!("SETRANGE {a} 2000000 x"));
    cluster.request(first, "CONFIG SET maxmemory 1000000");
    for command in [format!("SET {b} x"), format!("SET {a} x"), format!("MSET {a} x {b} x")] {
        assert!(cluster.request(second, &command).starts_with("-OOM"), "{command}");
    }
    assert_eq!(cluster.request(second, &format!("DEL {a}")), ":1\r\n");
    assert_eq!(cluster.request(second, &format!("SET {b} x")), "+OK\r\n");
}

#[test]
fn the_room_in_the_log_is_that_of_all_shards() {
    for seed in 0..12 {
        let mut cluster = Cluster::new(3, seed);
        let clients: Vec<Handle> = (0..3).map(|shard| cluster.connect(shard)).collect();
        cluster.settle();
        let limit = 100_000;
        cluster.shards.iter_mut().for_each(|shard| shard.limit_snapshot(limit));
        let keys: Vec<String> = (0..3).map(|shard| key_of(shard, 3)).collect();
        // One value takes more than a third of the room; the size of the other is seen only when
        // the command runs.
        let value = "x".repeat(40_000);
        for client in &clients {
            for key in &keys {
                cluster.send_command(*client, "CLIENT REPLY ON");
                cluster.send_command(*client, &format!("SETNX {{{key}}}{} {value}", client.0));
                cluster.send_command(*client, &format!("SETRANGE {key} 15000 x"));
                cluster.step();
            }
        }
        cluster.settle();
        let (mut added, mut refused) = (0, 0);
        for &client in &clients {
            let replies = text(cluster.take(client));
            added += replies.matches(":1\r\n").count();
            refused += replies.matches("-MISCONF the storage area is full").count();
        }
        let replies = cluster.request(clients[0], "KEYS *");
        assert!((1..=2).contains(&added) && refused > 0, "seed {seed}: {added}, {refused}, {replies}");
        let dumped = cluster.records.iter().map(Vec::len).sum::<usize>() as u64;
        assert!(dumped <= limit + 10_000, "seed {seed}: {dumped}");
        // What is left can be used, and what is deleted, too.
        for key in &keys {
            cluster.request(clients[0], &format!("DEL {key} {{{key}}}0 {{{key}}}1 {{{key}}}2"));
        }
        assert_eq!(cluster.request(clients[1], &format!("SETRANGE {} 90000 x", keys[0])), ":90001\r\n");
        assert!(cluster.request(clients[1], &format!("SET {} {value}", keys[1])).starts_with("-MISCONF"));
        assert_eq!(state(&mut cluster.recovered()), state(&mut cluster), "seed {seed}");
    }
}

#[test]
fn a_client_that_waits_for_much_is_not_read() {
    let Two { mut cluster, first, b, .. } = two(16);
    let value = "x".repeat(100_000);
    let mut sent = 0;
    // Nothing is delivered meanwhile.
    while cluster.shards[0].accepts_input(first.1) {
        cluster.send_command(first, &format!("SET {b} {value}"));
        sent += 1;
        assert!(sent < 1000, "it never ends");
    }
    cluster.settle();
    assert_eq!(text(cluster.take(first)), "+OK\r\n".repeat(sent));
    assert!(cluster.shards[0].accepts_input(first.1));
}

#[test]
fn large_replies_are_made_only_as_fast_as_they_leave() {
    let Two { mut cluster, first, second, b, .. } = two(20);
    cluster.request(first, &format!("SETRANGE {b} 999999 x"));
    cluster.hold_durability = true;
    for _ in 0..30 {
        cluster.send_command(first, &format!("GET {b}"));
        // The replies wait for this record.
        cluster.send_command(second, &format!("INCR n{{{b}}}"));
    }
    cluster.settle();
    // Without a bound the buffers of the other shard would hold thirty of them.
    assert!(cluster.shards[1].metrics().commands < 60, "{}", cluster.shards[1].metrics().commands);
    cluster.hold_durability = false;
    cluster.settle();
    assert_eq!(cluster.take(first).len(), 30 * (1_000_000 + 12));
    assert_eq!(text(cluster.take(second)).matches(':').count(), 30);
}

#[test]
fn a_failed_log_closes_those_whose_replies_are_lost() {
    let Two { mut cluster, first, second, a, b } = two(17);
    cluster.request(first, &format!("SET {a} 0"));
    cluster.send_command(first, &format!("SET {b} 1"));
    // The command has run there, and is not durable.
    cluster.hold_durability = true;
    cluster.settle();
    assert_eq!(cluster.shards[1].keys(), 1);
    assert_eq!(text(cluster.take(first)), "");
    for shard in &mut cluster.shards {
        Shard::fail_writes(shard, "broken", true);
    }
    cluster.settle();
    assert_eq!((text(cluster.take(first)), &cluster.closed[..]), (String::new(), &[first][..]));
    for key in [&a, &b] {
        assert!(cluster.request(second, &format!("SET {key} 1")).starts_with("-MISCONF"));
    }
}

#[test]
fn an_end_of_input_does_not_drop_commands() {
    for steps in 0..5 {
        let Two { mut cluster, first, second, a, b } = two(18);
        cluster.send_command(first, &format!("INCR {b}"));
        cluster.send_command(first, &format!("MSET {a} 1 {b} 7"));
        cluster.send_command(first, &format!("INCR {b}"));
        cluster.send_command(first, &format!("MGET {a} {b}"));
        cluster.shards[0].end_of_input(first.1);
        for _ in 0..steps {
            cluster.step();
        }
        cluster.settle();
        assert_eq!(text(cluster.take(first)), ":1\r\n+OK\r\n:8\r\n*2\r\n$1\r\n1\r\n$1\r\n8\r\n");
        assert_eq!(cluster.closed, [first]);
        assert_eq!(cluster.request(second, &format!("GET {b}")), "$1\r\n8\r\n");
    }
}

#[test]
fn counters_are_those_of_all_shards() {
    let Two { mut cluster, first, second, a, b } = two(19);
    cluster.request(first, "CONFIG SET slowlog-log-slower-than 0");
    for key in [&a, &b] {
        cluster.request(first, "CLIENT SETNAME me");
        cluster.request(first, &format!("SET {key} x"));
    }
    let info = cluster.request(second, "INFO everything");
    assert!(info.contains("cmdstat_set:calls=2,"), "{info}");
    assert!(info.contains("db0:keys=2,"), "{info}");
    let log = cluster.request(second, "SLOWLOG GET -1");
    assert_eq!(log.matches("$3\r\nSET\r\n$2\r\nk").count(), 2, "{log}");
    assert!(log.matches("$2\r\nme\r\n").count() >= 2, "{log}");
    cluster.request(first, "SLOWLOG RESET");
    cluster.request(first, "CONFIG RESETSTAT");
    assert!(!cluster.request(second, "INFO commandstats").contains("cmdstat_set:"));
}

#[test]
fn the_slow_log_of_all_shards_is_in_the_order_of_execution() {
    let Two { mut cluster, first, second, a, b } = two(23);
    cluster.request(first, "CONFIG SET slowlog-log-slower-than 0");
    cluster.request(first, "SLOWLOG RESET");
    let keys = [&a, &b, &b, &a, &a, &b];
    for (number, key) in keys.iter().enumerate() {
        cluster.request([first, second][number % 2], &format!("SET {key} value{number}"));
    }
    let log = cluster.request(first, "SLOWLOG GET 6");
    let positions: Vec<_> = (0..keys.len()).map(|number| log.find(&format!("value{number}"))).collect();
    assert!(positions.iter().all(Option::is_some), "{log}");
    assert!(positions.is_sorted_by(|earlier, later| earlier > later), "newest first: {log}");
    let ids: Vec<u64> =
        log.split("*6\r\n:").skip(1).filter_map(|entry| entry.split('\r').next()?.parse().ok()).collect();
    assert!(ids.len() == 6 && ids.is_sorted_by(|newer, older| newer > older), "{ids:?}");
    // The limit is that of all shards together.
    cluster.request(first, "CONFIG SET slowlog-max-len 3");
    for key in [&a, &b, &a, &b, &a, &b] {
        cluster.request(first, &format!("GET {key}"));
    }
    assert_eq!(cluster.request(first, "SLOWLOG LEN"), ":3\r\n");
    assert!(cluster.request(first, "SLOWLOG GET -1").starts_with("*3\r\n"));
}

#[test]
fn a_lower_memory_limit_evicts_on_all_shards_without_a_further_command() {
    let Two { mut cluster, first, second, .. } = two(24);
    cluster.request(first, "CONFIG SET maxmemory-policy allkeys-lru notify-keyspace-events Ee");
    for number in 0..4000 {
        cluster.send_command(first, &format!("SET key{number} x"));
    }
    cluster.settle();
    cluster.take(first);
    cluster.request(second, "PSUBSCRIBE *");
    assert_eq!(cluster.request(first, "CONFIG SET maxmemory 1"), "+OK\r\n");
    cluster.pass(1);
    assert_eq!(text(cluster.take(second)).matches("key").count() / 2, 4000, "an event of each");
    assert_eq!(cluster.shards.iter().map(|shard| shard.keys()).sum::<usize>(), 0);
}

#[test]
fn a_lost_write_is_not_acknowledged_behind_a_reply_of_another_shard() {
    for seed in 0..20 {
        let Two { mut cluster, first, a, b, .. } = two(seed);
        cluster.hold_durability = true;
        cluster.send(first, format!("GET {b}\r\nSET {a} 1\r\n").as_bytes());
        cluster.end_iteration(0);
        for shard in &mut cluster.shards {
            Shard::fail_writes(shard, "broken", true);
        }
        cluster.settle();
        let replies = text(cluster.take(first));
        assert!(!replies.contains("+OK"), "seed {seed}: {replies}");
        assert_eq!(cluster.closed, [first], "seed {seed}");
    }
}

/// Bytes of a large value: its reply alone is more than a client may have outstanding.
const LARGE: usize = 2_000_000;

/// Three shards with a large value on each, and a client of the first that has sent many commands
/// for them and does not read.
fn stalled(seed: u64) -> (Cluster, Handle, Handle) {
    let mut cluster = Cluster::new(3, seed);
    let (client, other) = (cluster.connect(0), cluster.connect(0));
    let keys = [0, 1, 2].map(|shard| key_of(shard, 3));
    for key in &keys {
        cluster.request(other, &format!("SETRANGE {key} {} x", LARGE - 1));
    }
    cluster.stalled.push(client);
    for number in 0..60 {
        cluster.send_command(client, &format!("GET {}", keys[[1, 1, 2, 2, 0, 1][number % 6]]));
        cluster.send_command(client, &format!("APPEND n{{{}}} x", keys[1]));
        cluster.step();
    }
    cluster.settle();
    (cluster, client, other)
}

#[test]
fn a_client_that_does_not_read_has_one_large_reply_of_each_shard() {
    for seed in 0..10 {
        let (mut cluster, client, other) = stalled(seed);
        let used = used(&cluster) as usize;
        assert!(used < 3 * LARGE + 4 * LARGE, "seed {seed}: {used} bytes");
        // Others are served meanwhile, and no command waits for the one that does not read.
        let key = key_of(1, 3);
        assert_eq!(cluster.request(other, &format!("STRLEN {key}")), format!(":{LARGE}\r\n"));
        cluster.read_again(client);
        let replies = text(cluster.take(client));
        assert_eq!(replies.matches(&format!("${LARGE}\r\n")).count(), 60, "seed {seed}");
        let lengths = replies.split("\r\n").filter_map(|line| line.strip_prefix(':'));
        assert!(lengths.eq((1..=60).map(|length| length.to_string())), "seed {seed}: in order, each once");
    }
}

/// A client pipelines reads of `bytes` each, with a write behind each, and does not read; another
/// one pauses writes, which waits for all of that. Returns the first client, and how many of its
/// writes have run.
fn paused(seed: u64, bytes: usize, reads: usize) -> (Cluster, Handle, usize) {
    let mut cluster = Cluster::new(2, seed);
    let (client, other, key) = (cluster.connect(0), cluster.connect(0), key_of(1, 2));
    cluster.request(other, &format!("SETRANGE {key} {} x", bytes - 1));
    // Short replies: then many commands are on their way at once.
    (0..60).for_each(|_| drop(cluster.request(client, &format!("STRLEN {key}"))));
    cluster.stalled.push(client);
    for _ in 0..reads {
        cluster.send(client, format!("GET {key}\r\nAPPEND n{{{key}}} x\r\n").as_bytes());
    }
    cluster.settle();
    assert_eq!(cluster.request(other, "CLIENT PAUSE 100000 WRITE"), "+OK\r\n", "seed {seed}");
    let ran = cluster.request(other, &format!("STRLEN n{{{key}}}"));
    cluster.settle();
    (cluster, client, ran.trim_start_matches(':').trim_end().parse().expect("a length"))
}

#[test]
fn what_is_held_runs_before_a_restriction_and_fills_no_memory() {
    for seed in 0..10 {
        let (mut cluster, client, ran) = paused(seed, LARGE, 60);
        let used = used(&cluster) as usize;
        assert!(used < 6 * LARGE, "seed {seed}: {used} bytes");
        assert!(ran > 10, "seed {seed}: what was forwarded has run: {ran}");
        cluster.read_again(client);
        let replies = text(cluster.take(client));
        let read = format!("${LARGE}\r\n{}x\r\n", "\0".repeat(LARGE - 1));
        assert!(replies == format!("{read}:1\r\n{read}"), "seed {seed}: up to the first lost one");
        assert!(cluster.shards[0].wants_close(client.1), "seed {seed}");
        assert_eq!(cluster.shards[0].metrics().output_limit_closed, 1, "seed {seed}");
        // Replies within the soft limit are kept.
        let (mut cluster, client, ran) = paused(seed, 100_000, 8);
        assert_eq!(ran, 8, "seed {seed}");
        cluster.read_again(client);
        let replies = text(cluster.take(client));
        assert_eq!(replies.matches("$100000\r\n").count(), 8, "seed {seed}");
        assert!(replies.ends_with(":8\r\n"), "seed {seed}");
        assert!(!cluster.shards[0].wants_close(client.1), "seed {seed}");
    }
}

#[test]
fn what_is_held_for_a_client_runs_when_it_has_gone() {
    for seed in 0..10 {
        let (mut cluster, client, other) = stalled(seed);
        cluster.disconnect(client);
        cluster.settle();
        let sent = cluster.request(other, &format!("STRLEN n{{{}}}", key_of(1, 3)));
        let ran: usize = sent.trim_start_matches(':').trim_end().parse().expect("a length");
        assert!(ran > 0 && ran < 60, "seed {seed}: what was forwarded has run: {ran}");
        assert!(used(&cluster) < 4 * LARGE as u64, "seed {seed}: {} bytes", used(&cluster));
        let sections = cluster.sections;
        assert_eq!(cluster.request(other, "CLIENT KILL ID 1000"), ":0\r\n");
        assert!(cluster.sections <= sections + 2, "seed {seed}: it waits for no command");
    }
}

/// Two shards with a limit of memory and a policy, and a client of each.
fn limited(policy: &str, bytes: u64) -> (Cluster, Handle, Handle) {
    let mut cluster = Cluster::new(2, 22);
    let (first, second) = (cluster.connect(0), cluster.connect(1));
    cluster.request(first, &format!("CONFIG SET maxmemory-policy {policy}"));
    cluster.request(first, &format!("CONFIG SET maxmemory {bytes}"));
    (cluster, first, second)
}

fn used(cluster: &Cluster) -> u64 {
    cluster.shards.iter().map(|shard| shard.used_memory()).sum()
}

#[test]
fn all_shards_together_stay_below_the_limit_of_memory() {
    let limit = 2_000_000;
    let (a, b) = (key_of(0, 2), key_of(1, 2));
    let value = "x".repeat(5_000);
    for policy in ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-ttl", "volatile-random"] {
        let (mut cluster, first, second) = limited(policy, limit);
        // What there is to evict is on the first shard alone.
        for number in 0..500 {
            cluster.request(first, &format!("SET {number}{{{a}}} {value} EX 10000"));
        }
        let filled = used(&cluster);
        assert!(filled > limit / 2 && filled < limit + 25_000, "{policy}: {filled}");
        let sections = cluster.sections;
        for number in 0..500 {
            let client = if number % 2 == 0 { first } else { second };
            assert_eq!(
                cluster.request(client, &format!("SET {number}{{{b}}} {value}")),
                "+OK\r\n",
                "{policy}"
            );
            let sum = used(&cluster);
            assert!(sum < limit + 25_000, "{policy}: {sum} after {number} writes");
            if policy.starts_with("volatile") && number > 200 {
                // Its keys cannot be evicted.
                break;
            }
        }
        assert!(cluster.shards[1].keys() > 130, "{policy}: {} keys", cluster.shards[1].keys());
        let taken = cluster.sections - sections;
        assert!(taken > 0 && taken < 100, "{policy}: {taken} sections");
        // A lower limit holds at once.
        cluster.request(second, &format!("CONFIG SET maxmemory {}", limit * 3 / 4));
        assert!(used(&cluster) <= limit * 3 / 4, "{policy}");
    }
}

#[test]
fn a_write_is_refused_if_no_shard_has_a_key_to_evict() {
    let (mut cluster, first, second) = limited("volatile-lru", 1_000_000);
    let (a, b) = (key_of(0, 2), key_of(1, 2));
    assert_eq!(cluster.request(first, &format!("SETRANGE {a} 1100000 x")), ":1100001\r\n");
    for (client, key) in [(first, &a), (first, &b), (second, &a), (second, &b)] {
        let reply = cluster.request(client, &format!("SET {key} x EX 100"));
        assert!(reply.starts_with("-OOM"), "{key}: {reply}");
        assert!(!cluster.request(client, &format!("GET {key}")).starts_with('-'));
    }
    let sections = cluster.sections;
    for _ in 0..50 {
        assert!(cluster.request(second, &format!("SET {b} x")).starts_with("-OOM"));
    }
    assert!(cluster.sections < sections + 5, "each refusal took a section");
    // As soon as there is one, it is evicted.
    assert_eq!(cluster.request(first, &format!("EXPIRE {a} 100")), ":1\r\n");
    cluster.pass(1000);
    assert_eq!(cluster.request(second, &format!("SET {b} x")), "+OK\r\n");
    assert_eq!(cluster.request(second, "DBSIZE"), ":1\r\n");
}
