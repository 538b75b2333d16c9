//! Several clients: transactions, publish and subscribe, blocking.
//!
//! Each test states in which order clients are served and what each of them receives.

use super::limits::encode;
use super::*;

#[test]
fn a_watched_key_that_changes_fails_the_transaction() {
    let mut bench = Bench::new();
    let (client, other) = (bench.connect(), bench.connect());
    bench.request(client, "WATCH a b");
    bench.request(client, "MULTI");
    assert_eq!(bench.request(client, "SET x 1"), "+QUEUED\r\n");
    bench.request(other, "SET b 1");
    assert_eq!(bench.request(client, "EXEC"), "*-1\r\n");
    assert_eq!(bench.request(client, "GET x"), "$-1\r\n");
    bench.request(client, "WATCH a");
    bench.request(client, "UNWATCH");
    bench.request(other, "SET a 1");
    bench.request(client, "MULTI");
    bench.request(client, "INCR x");
    assert_eq!(bench.request(client, "EXEC"), "*1\r\n:1\r\n");
}

#[test]
fn a_watched_key_that_expires_fails_the_transaction() {
    let mut bench = Bench::new();
    let client = bench.connect();
    bench.request(client, "SET a 1 PX 50");
    bench.request(client, "WATCH a");
    bench.now.unix_ms += 100;
    bench.request(client, "MULTI");
    bench.request(client, "PING");
    assert_eq!(bench.request(client, "EXEC"), "*-1\r\n");
}

#[test]
fn a_watched_key_that_keeps_its_value_does_not_fail_the_transaction() {
    let mut bench = Bench::new();
    let (client, other) = (bench.connect(), bench.connect());
    bench.request(client, "SET bits abc");
    // The command, what it answers, and whether Redis 7.0 counts it as a change.
    let cases = [
        ("BITFIELD bits SET u8 0 97", "*1\r\n:97\r\n", false),
        ("BITFIELD bits INCRBY u3 5 8", "*1\r\n:1\r\n", false),
        ("BITFIELD bits OVERFLOW FAIL INCRBY u8 0 200", "*1\r\n$-1\r\n", false),
        ("BITFIELD bits OVERFLOW FAIL INCRBY u8 40 300", "*1\r\n$-1\r\n", false),
        ("STRLEN bits", ":6\r\n", false),
        ("BITFIELD bits SET u8 0 98", "*1\r\n:97\r\n", true),
        ("BITFIELD bits SET u8 48 0", "*1\r\n:0\r\n", true),
        ("SETBIT bits 1 1", ":1\r\n", false),
        ("SETBIT bits 0 1", ":0\r\n", true),
    ];
    for (command, reply, fails) in cases {
        bench.request(client, "WATCH bits");
        assert_eq!(bench.request(other, command), reply, "{command}");
        bench.request(client, "MULTI");
        assert_eq!(bench.request(client, "EXEC"), if fails { "*-1\r\n" } else { "*0\r\n" }, "{command}");
    }
}

#[test]
fn a_flush_touches_watched_keys_that_were_there() {
    let mut bench = Bench::new();
    let (client, other) = (bench.connect(), bench.connect());
    bench.request(client, "WATCH missing");
    bench.request(other, "FLUSHALL");
    bench.request(client, "MULTI");
    assert_eq!(bench.request(client, "EXEC"), "*0\r\n");
    bench.request(client, "SET a 1");
    bench.request(client, "WATCH a");
    bench.request(other, "FLUSHDB");
    bench.request(client, "MULTI");
    assert_eq!(bench.request(client, "EXEC"), "*-1\r\n");
}

#[test]
fn a_refused_command_aborts_its_transaction() {
    let mut bench = Bench::new();
    let client = bench.connect();
    bench.request(client, "MULTI");
    assert_eq!(bench.request(client, "GET"), "-ERR wrong number of arguments for 'get' command\r\n");
    assert_eq!(
        bench.request(client, "EXEC"),
        "-EXECABORT Transaction discarded because of previous errors.\r\n"
    );
    assert_eq!(bench.request(client, "EXEC"), "-ERR EXEC without MULTI\r\n");
    bench.request(client, "MULTI");
    bench.request(client, "SET a x");
    bench.request(client, "INCR a");
    bench.request(client, "GET a");
    assert_eq!(
        bench.request(client, "EXEC"),
        "*3\r\n+OK\r\n-ERR value is not an integer or out of range\r\n$1\r\nx\r\n"
    );
}

#[test]
fn a_subscriber_gets_the_full_name_of_a_refused_command() {
    let mut bench = Bench::new();
    let client = bench.connect();
    let only = "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context";
    bench.request(client, "SUBSCRIBE news");
    assert_eq!(
        bench.request(client, "PUBSUB NUMPAT"),
        format!("-ERR Can't execute 'pubsub|numpat': {only}\r\n")
    );
    assert_eq!(
        bench.request(client, "PUBSUB NOSUCH"),
        "-ERR unknown subcommand 'NOSUCH'. Try PUBSUB HELP.\r\n"
    );
    assert_eq!(
        bench.request(client, "EXEC"),
        format!("-EXECABORT Transaction discarded because of: Can't execute 'exec': {only}\r\n")
    );
}

#[test]
fn a_subcommand_that_cannot_run_breaks_its_transaction() {
    let mut bench = Bench::new();
    let client = bench.connect();
    let refused = [
        ("SLOWLOG NOSUCH", "-ERR unknown subcommand 'NOSUCH'. Try SLOWLOG HELP.\r\n"),
        ("COMMAND COUNT 1", "-ERR wrong number of arguments for 'command|count' command\r\n"),
        ("LATENCY GRAPH", "-ERR wrong number of arguments for 'latency|graph' command\r\n"),
    ];
    for (command, reply) in refused {
        bench.request(client, "MULTI");
        assert_eq!(bench.request(client, command), reply);
        assert_eq!(
            bench.request(client, "EXEC"),
            "-EXECABORT Transaction discarded because of previous errors.\r\n"
        );
    }
}

#[test]
fn messages_reach_subscribers_of_channels_and_patterns() {
    let mut bench = Bench::new();
    let (plain, modern, publisher) = (bench.connect(), bench.connect(), bench.connect());
    assert_eq!(bench.request(plain, "SUBSCRIBE news"), "*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    bench.request(modern, "HELLO 3");
    bench.request(modern, "PSUBSCRIBE n*");
    assert_eq!(bench.request(publisher, "PUBLISH news hi"), ":2\r\n");
    assert_eq!(bench.output(plain), "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$2\r\nhi\r\n");
    assert_eq!(bench.output(modern), ">4\r\n$8\r\npmessage\r\n$2\r\nn*\r\n$4\r\nnews\r\n$2\r\nhi\r\n");
    assert!(bench.request(plain, "GET a").starts_with("-ERR Can't execute 'get': only (P|S)SUBSCRIBE"));
    assert_eq!(bench.request(plain, "PING"), "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    assert_eq!(bench.request(modern, "GET a"), "_\r\n");
    assert_eq!(bench.request(publisher, "PUBSUB NUMPAT"), ":1\r\n");
    bench.shard.disconnect(plain);
    bench.shard.disconnect(modern);
    assert_eq!(bench.request(publisher, "PUBLISH news hi"), ":0\r\n");
    assert_eq!(bench.request(publisher, "PUBSUB CHANNELS"), "*0\r\n");
}

#[test]
fn a_subscriber_that_does_not_read_is_cut_off() {
    let mut bench = Bench::new();
    let (subscriber, publisher) = (bench.connect(), bench.connect());
    bench.request(publisher, "CONFIG SET client-output-buffer-limit \"pubsub 1000 0 0\"");
    bench.shard.feed(subscriber, b"SUBSCRIBE a\r\n", bench.now);
    for _ in 0..20 {
        bench.request(publisher, &format!("PUBLISH a {}", "x".repeat(100)));
    }
    assert!(bench.shard.wants_close(subscriber));
    assert_eq!(bench.shard.metrics().output_limit_closed, 1);
}

/// A subscriber, and a publisher that has sent it about so many bytes.
fn slow_subscriber(bench: &mut Bench, limit: &str, bytes: usize) -> (ClientId, ClientId) {
    let (subscriber, publisher) = (bench.connect(), bench.connect());
    let set = format!("CONFIG SET client-output-buffer-limit \"pubsub {limit}\"");
    assert_eq!(bench.request(publisher, &set), "+OK\r\n");
    bench.request(subscriber, "SUBSCRIBE a");
    for _ in 0..bytes / 100 {
        bench.request(publisher, &format!("PUBLISH a {}", "x".repeat(100)));
    }
    (subscriber, publisher)
}

/// Lets time pass until the shard's next deadline, `most` milliseconds at most.
fn pass_to_deadline(bench: &mut Bench, most: u64) -> u64 {
    let wait = bench
        .shard
        .next_deadline()
        .map_or(most, |at| at.saturating_sub(bench.now.monotonic_ns).div_ceil(1_000_000).min(most));
    bench.pass(wait);
    wait
}

#[test]
fn a_subscriber_over_the_soft_limit_is_cut_off_in_time_without_traffic() {
    let mut bench = Bench::new();
    let (subscriber, publisher) = slow_subscriber(&mut bench, "0 1000 3", 2000);
    let mut passed = 0;
    while !bench.shard.wants_close(subscriber) && passed < 10_000 {
        passed += pass_to_deadline(&mut bench, 10_000);
    }
    assert!((3000..=4000).contains(&passed), "{passed} ms");
    assert_eq!(bench.shard.metrics().output_limit_closed, 1);
    bench.shard.disconnect(subscriber);
    bench.pass(100);
    assert_eq!(bench.shard.next_deadline(), None, "an idle store sleeps");
    assert_eq!(bench.request(publisher, "PUBLISH a x"), ":0\r\n");
}

#[test]
fn a_subscriber_that_reads_again_has_the_whole_time_of_the_soft_limit_again() {
    let mut bench = Bench::new();
    let (subscriber, publisher) = slow_subscriber(&mut bench, "0 1000 3", 2000);
    bench.pass(2500);
    assert!(bench.output(subscriber).len() > 2000);
    bench.pass(10);
    for _ in 0..20 {
        bench.request(publisher, &format!("PUBLISH a {}", "x".repeat(100)));
    }
    bench.pass(2000);
    assert!(!bench.shard.wants_close(subscriber), "it was below the limit meanwhile");
    bench.pass(1200);
    assert!(bench.shard.wants_close(subscriber));
}

#[test]
fn a_lower_limit_concerns_output_that_waits_already() {
    let mut bench = Bench::new();
    let (subscriber, publisher) = slow_subscriber(&mut bench, "0 0 0", 2000);
    bench.pass(100_000);
    assert!(!bench.shard.wants_close(subscriber));
    bench.request(publisher, "CONFIG SET client-output-buffer-limit \"pubsub 0 1000 1\"");
    bench.pass(1200);
    assert!(bench.shard.wants_close(subscriber));
    bench.shard.disconnect(subscriber);
    let (subscriber, publisher) = slow_subscriber(&mut bench, "0 0 0", 2000);
    bench.request(publisher, "CONFIG SET client-output-buffer-limit \"pubsub 1000 0 0\"");
    assert!(bench.shard.wants_close(subscriber));
}

#[test]
fn blocked_clients_are_served_oldest_first() {
    let mut bench = Bench::new();
    let clients = [bench.connect(), bench.connect(), bench.connect()];
    for client in clients {
        assert_eq!(bench.request(client, "BLPOP none list 0"), "");
    }
    let pusher = bench.connect();
    assert_eq!(bench.request(pusher, "RPUSH list a b"), ":2\r\n");
    assert_eq!(bench.output(clients[0]), "*2\r\n$4\r\nlist\r\n$1\r\na\r\n");
    assert_eq!(bench.output(clients[1]), "*2\r\n$4\r\nlist\r\n$1\r\nb\r\n");
    assert_eq!(bench.output(clients[2]), "");
    // A transaction is served when it is over, and one that blocks inside it does not.
    bench.request(pusher, "MULTI");
    bench.request(pusher, "RPUSH list c");
    bench.request(pusher, "LPOP list");
    bench.request(pusher, "BLPOP list 0");
    assert_eq!(bench.request(pusher, "EXEC"), "*3\r\n:1\r\n$1\r\nc\r\n*-1\r\n");
    assert_eq!(bench.output(clients[2]), "");
    bench.shard.disconnect(clients[2]);
    assert_eq!(bench.request(pusher, "RPUSH list d"), ":1\r\n");
    assert_eq!(bench.request(pusher, "LLEN list"), ":1\r\n");
}

#[test]
fn many_keys_are_awaited_watched_and_served_in_linear_time() {
    const KEYS: usize = 100_000;
    let mut bench = Bench::new();
    let (waiting, other) = (bench.connect(), bench.connect());
    let processor = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
    let started = processor();
    let keys: String = (0..KEYS).map(|key| format!(" k{key}")).collect();
    let send = |bench: &mut Bench, client, command: &str| {
        bench.shard.feed(client, format!("{command}\r\n").as_bytes(), bench.now);
        bench.output(client)
    };
    assert_eq!(send(&mut bench, other, &format!("WATCH{keys}{keys}")), "+OK\r\n");
    assert_eq!(send(&mut bench, waiting, &format!("BLPOP{keys}{keys} 0")), "");
    let pairs: String = (0..KEYS).map(|key| format!(" k{key} 1")).collect();
    assert_eq!(send(&mut bench, other, &format!("MSET{pairs}")), "+OK\r\n");
    // A command that compares each key with all others takes a minute.
    let taken = processor() - started;
    assert!(taken < 10, "{taken} seconds");
    bench.shard.disconnect(waiting);
}

#[test]
fn a_blocked_client_times_out_and_goes_on() {
    let mut bench = Bench::new();
    let client = bench.connect();
    bench.shard.feed(client, b"BLPOP list 0.5\r\nPING\r\n", bench.now);
    assert_eq!(bench.output(client), "");
    assert_eq!(bench.shard.next_deadline(), Some(bench.now.monotonic_ns + 500_000_000));
    bench.pass(499);
    assert_eq!(bench.output(client), "");
    bench.pass(1);
    bench.pass(0);
    assert_eq!(bench.output(client), "*-1\r\n+PONG\r\n");
    assert_eq!(bench.shard.next_deadline(), None);
}

#[test]
fn a_blocked_client_can_be_unblocked_by_another() {
    let mut bench = Bench::new();
    let (client, other) = (bench.connect(), bench.connect());
    bench.request(client, "BLPOP list 0");
    assert_eq!(bench.request(other, "CLIENT UNBLOCK 1 ERROR"), ":1\r\n");
    assert_eq!(bench.output(client), "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    assert_eq!(bench.request(other, "CLIENT UNBLOCK 1"), ":0\r\n");
}

#[test]
fn a_pause_postpones_commands_until_its_end() {
    let mut bench = Bench::new();
    let client = bench.connect();
    let writer = bench.connect();
    let third = bench.connect();
    for (words, fault) in [
        ("x", "timeout is not an integer or out of range"),
        ("-1", "timeout is negative"),
        ("5 SOME", "CLIENT PAUSE mode must be WRITE or ALL"),
    ] {
        assert_eq!(bench.request(client, &format!("CLIENT PAUSE {words}")), format!("-ERR {fault}\r\n"));
    }
    assert_eq!(bench.request(client, "CLIENT PAUSE 100 WRITE"), "+OK\r\n");
    assert_eq!(bench.request(client, "GET a"), "$-1\r\n");
    assert_eq!(bench.request(third, "APPEND a 2"), "");
    assert_eq!(bench.request(writer, "APPEND a 1"), "");
    assert_eq!(bench.request(writer, "GET a"), "", "later input waits");
    // As in Redis 7.0, they count as blocked.
    assert_eq!(bench.request(client, "CLIENT LIST").matches(" flags=b ").count(), 2);
    let clients = bench.request(client, "INFO clients");
    assert!(clients.contains("blocked_clients:2\r\n"), "{clients}");
    assert!(clients.contains("clients_in_timeout_table:0\r\n"), "{clients}");
    for command in ["MULTI", "GET a", "PUBLISH a b"] {
        bench.request(client, command);
    }
    bench.pass(99);
    assert_eq!(bench.output(writer), "");
    bench.pass(1);
    // They run in the order of their arrival.
    assert_eq!((bench.output(third), bench.output(writer)), (":1\r\n".into(), ":2\r\n".into()));
    bench.pass(1);
    assert_eq!(bench.output(writer), "$2\r\n21\r\n");
    assert_eq!(bench.output(client), "+QUEUED\r\n");
    assert_eq!(bench.request(client, "EXEC"), "*2\r\n$2\r\n21\r\n:0\r\n");
    bench.request(client, "CLIENT PAUSE 100 WRITE");
    bench.request(client, "CLIENT PAUSE 50 ALL");
    assert_eq!(bench.request(writer, "GET a"), "", "the pause is not weakened");
    bench.pass(60);
    assert_eq!(bench.output(writer), "", "nor shortened");
    bench.pass(60);
    assert_eq!(bench.output(writer), "$2\r\n21\r\n");
    bench.request(client, "CLIENT PAUSE 10000 WRITE");
    assert_eq!(bench.request(writer, "SET a 3"), "");
    assert_eq!(bench.request(third, "SET a 4"), "");
    bench.shard.disconnect(third);
    assert_eq!(bench.request(client, "CLIENT UNPAUSE"), "+OK\r\n");
    assert_eq!(bench.output(writer), "+OK\r\n");
    assert_eq!(bench.request(client, "GET a"), "$1\r\n3\r\n");
}

#[test]
fn a_postponed_command_unblocks_another_client_without_further_input() {
    let mut bench = Bench::new();
    let (waiter, other) = (bench.connect(), bench.connect());
    assert_eq!(bench.request(waiter, "BLPOP list 0"), "");
    bench.request(other, "CLIENT PAUSE 100 ALL");
    assert_eq!(bench.request(other, "CLIENT UNBLOCK 1"), "");
    bench.pass(100);
    assert_eq!(bench.output(other), ":1\r\n");
    assert_eq!(bench.output(waiter), "*-1\r\n");
}

#[test]
fn the_command_of_a_blocked_client_counts_as_memory() {
    let mut bench = Bench::new();
    let (admin, writer, waiter) = (bench.connect(), bench.connect(), bench.connect());
    bench.request(writer, "GET a");
    bench.request(admin, "CLIENT PAUSE 100 WRITE");
    let before = bench.shard.used_memory();
    let large = vec![b'x'; 100_000];
    bench.shard.feed(writer, &encode(&[b"SET", b"a", &large]), bench.now);
    assert!(bench.shard.used_memory() > before + 100_000);
    bench.pass(100);
    assert_eq!(bench.output(writer), "+OK\r\n");
    bench.request(writer, "DEL a");
    assert!(bench.shard.used_memory() < before + 20_000);
    bench.shard.feed(waiter, &encode(&[b"BLPOP", &large, b"0"]), bench.now);
    assert!(bench.shard.used_memory() > before + 100_000);
    bench.shard.disconnect(waiter);
    assert!(bench.shard.used_memory() < before + 20_000);
}

#[test]
fn a_client_whose_replies_are_off_receives_no_timeout() {
    let mut bench = Bench::new();
    let client = bench.connect();
    bench.request(client, "CLIENT REPLY OFF");
    bench.request(client, "BLPOP list 0.1");
    bench.pass(100);
    assert_eq!(bench.output(client), "");
    assert_eq!(bench.request(client, "CLIENT REPLY ON"), "+OK\r\n");
}

#[test]
fn a_blocked_client_is_served_before_what_a_pause_has_postponed() {
    for (ending, reply) in [(None, ""), (Some("CLIENT UNPAUSE"), "+OK\r\n")] {
        let mut bench = Bench::new();
        let [blocked, pauser, pushes, pops] = std::array::from_fn(|_| bench.connect());
        assert_eq!(bench.request(blocked, "BLPOP list 0"), "");
        assert_eq!(bench.request(pauser, "CLIENT PAUSE 100 WRITE"), "+OK\r\n");
        assert_eq!(bench.request(pushes, "LPUSH list x"), "");
        assert_eq!(bench.request(pops, "LPOP list"), "");
        match ending {
            Some(command) => assert_eq!(bench.request(pauser, command), reply),
            None => bench.pass(101),
        }
        assert_eq!(bench.output(blocked), "*2\r\n$4\r\nlist\r\n$1\r\nx\r\n");
        assert_eq!((bench.output(pushes), bench.output(pops)), (":1\r\n".into(), "$-1\r\n".into()));
    }
}
