//! Connections: requests in pieces, limits, closing, reply modes.
//!
//! What one client sends must change nothing for the others, however it is cut into reads.

use super::*;
use crate::foundation::settings::{OutputLimit, OutputLimits};

#[test]
fn a_command_may_arrive_byte_by_byte() {
    let mut bench = Bench::new();
    let client = bench.connect();
    for byte in b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhello\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" {
        bench.shard.feed(client, &[*byte], bench.now);
    }
    assert_eq!(bench.output(client), "+OK\r\n$5\r\nhello\r\n");
}

#[test]
fn a_protocol_error_is_answered_and_closes() {
    let mut bench = Bench::new();
    let client = bench.connect();
    bench.shard.feed(client, b"PING\r\n*1\r\nbad\r\nPING\r\n", bench.now);
    assert!(!bench.shard.wants_close(client), "the answers come first");
    assert_eq!(bench.output(client), "+PONG\r\n-ERR Protocol error: expected '$', got 'b'\r\n");
    assert!(bench.shard.wants_close(client));
    bench.shard.disconnect(client);
    assert_eq!(bench.shard.clients(), 0);
}

#[test]
fn commands_sent_before_half_closing_are_answered() {
    let mut bench = Bench::new();
    let client = bench.connect();
    bench.shard.feed(client, b"PING\r\nPING\r\nGE", bench.now);
    bench.shard.end_of_input(client);
    assert_eq!(bench.output(client), "+PONG\r\n+PONG\r\n");
    assert!(bench.shard.wants_close(client));
}

#[test]
fn much_output_holds_commands_back_until_it_was_sent() {
    let settings = Settings { output_soft_limit: 1000, ..Settings::default() };
    let mut bench = Bench::with(settings);
    let client = bench.connect();
    bench.request(client, &format!("SET a {}", "x".repeat(600)));
    bench.shard.feed(client, "GET a\r\n".repeat(100).as_bytes(), bench.now);
    assert!(!bench.shard.accepts_input(client));
    bench.shard.end_of_input(client);
    let mut total = 0;
    while !bench.shard.wants_close(client) {
        let text = bench.output(client);
        assert!(text.len() < 3000, "{}", text.len());
        total += text.len();
        bench.pass(1);
    }
    assert_eq!(total, 100 * 608);
}

#[test]
fn a_client_over_its_limits_is_closed() {
    let hard = |hard| OutputLimit { hard, ..OutputLimit::default() };
    let settings = Settings {
        output_limits: OutputLimits { normal: hard(10_000), ..OutputLimits::default() },
        output_soft_limit: 100_000,
        client_query_buffer_limit: 5000,
        ..Settings::default()
    };
    let mut bench = Bench::with(settings);
    let client = bench.connect();
    bench.request(client, &format!("SET a {}", "x".repeat(3000)));
    bench.shard.feed(client, "GET a\r\n".repeat(10).as_bytes(), bench.now);
    assert!(bench.shard.wants_close(client));
    assert_eq!(bench.shard.metrics().output_limit_closed, 1);
    bench.shard.disconnect(client);
    // The replies of a transaction are not gathered beyond the limit.
    let client = bench.connect();
    let used = bench.shard.used_memory();
    bench.shard.feed(client, b"MULTI\r\n", bench.now);
    bench.output(client);
    (0..40).for_each(|_| assert_eq!(bench.request(client, "GET a"), "+QUEUED\r\n"));
    bench.request(client, "INCR ran");
    bench.shard.feed(client, b"EXEC\r\n", bench.now);
    assert!(bench.shard.wants_close(client));
    assert_eq!(bench.shard.metrics().output_limit_closed, 2);
    assert!(bench.shard.used_memory() < used + 50_000, "{} bytes more", bench.shard.used_memory() - used);
    bench.shard.disconnect(client);
    let client = bench.connect();
    assert_eq!(bench.request(client, "GET ran"), "$1\r\n1\r\n");
    bench.shard.feed(client, b"*1\r\n$6000\r\n", bench.now);
    bench.shard.feed(client, &[b'x'; 5500], bench.now);
    assert!(bench.shard.wants_close(client));
    assert_eq!(bench.shard.metrics().query_limit_closed, 1);
}

#[test]
fn too_many_clients_are_refused() {
    let mut bench = Bench::with(Settings { maxclients: 1, ..Settings::default() });
    let client = bench.connect();
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    assert_eq!(bench.shard.connect(address, address, bench.now), Err(Refused::TooManyClients(1)));
    bench.shard.disconnect(client);
    let other = bench.connect();
    assert_ne!(client, other, "a stale name must not reach a new client");
    bench.shard.feed(client, b"PING\r\n", bench.now);
    assert_eq!(bench.output(other), "");
}

#[test]
fn idle_clients_are_closed_after_the_timeout() {
    let mut bench = Bench::with(Settings { timeout: 10, ..Settings::default() });
    let (idle, busy) = (bench.connect(), bench.connect());
    bench.pass(9000);
    bench.request(busy, "PING");
    bench.pass(2000);
    assert!(bench.shard.wants_close(idle));
    assert!(!bench.shard.wants_close(busy));
}

#[test]
fn options_of_subcommands_are_refused_as_redis_does() {
    let mut bench = Bench::new();
    let client = bench.connect();
    let cases = [
        ("MEMORY USAGE never nx", "-ERR syntax error\r\n"),
        ("MEMORY USAGE never SAMPLES -1", "-ERR syntax error\r\n"),
        ("MEMORY USAGE never SAMPLES x", "-ERR value is not an integer or out of range\r\n"),
        ("MEMORY USAGE never SAMPLES 5 SAMPLES 0", "$-1\r\n"),
        (
            "PUBSUB CHANNELS a b",
            "-ERR unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP.\r\n",
        ),
        ("SLOWLOG GET x", "-ERR count should be greater than or equal to -1\r\n"),
        ("CLIENT HELP a", "-ERR wrong number of arguments for 'client|help' command\r\n"),
        ("CONFIG SET a b c", "-ERR syntax error\r\n"),
        ("PUBSUB HELP a", "-ERR wrong number of arguments for 'pubsub|help' command\r\n"),
        (
            "SLOWLOG GET 1 2",
            "-ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP.\r\n",
        ),
    ];
    for (command, reply) in cases {
        assert_eq!(bench.request(client, command), reply, "{command}");
    }
}

#[test]
fn replies_can_be_turned_off() {
    let mut bench = Bench::new();
    let client = bench.connect();
    assert_eq!(bench.request(client, "CLIENT REPLY OFF"), "");
    assert_eq!(bench.request(client, "PING"), "");
    assert_eq!(bench.request(client, "NOSUCH"), "");
    assert_eq!(bench.request(client, "CLIENT REPLY ON"), "+OK\r\n");
    assert_eq!(bench.request(client, "CLIENT REPLY SKIP"), "");
    assert_eq!(bench.request(client, "PING"), "");
    assert_eq!(bench.request(client, "PING"), "+PONG\r\n");
}

#[test]
fn hello_changes_the_protocol() {
    let mut bench = Bench::new();
    let client = bench.connect();
    assert!(bench.request(client, "HELLO 3 SETNAME me").starts_with("%7\r\n$6\r\nserver\r\n"));
    assert_eq!(bench.request(client, "GET none"), "_\r\n");
    assert_eq!(bench.request(client, "CLIENT GETNAME"), "$2\r\nme\r\n");
    assert_eq!(bench.request(client, "HELLO 4"), "-NOPROTO unsupported protocol version\r\n");
    assert_eq!(bench.request(client, "RESET"), "+RESET\r\n");
    assert_eq!(bench.request(client, "GET none"), "$-1\r\n");
}

#[test]
fn clients_can_be_killed() {
    let mut bench = Bench::new();
    let (killer, victim) = (bench.connect(), bench.connect());
    assert_eq!(bench.request(killer, "CLIENT KILL ID 2"), ":1\r\n");
    assert!(bench.shard.wants_close(victim));
    assert_eq!(bench.request(killer, "CLIENT KILL 1.2.3.4:5"), "-ERR No such client\r\n");
    assert_eq!(bench.request(killer, "CLIENT KILL ID 1 SKIPME no"), ":1\r\n");
    assert!(bench.shard.wants_close(killer));
}

/// Whatever a command in the middle does to its client, a pipeline is answered as the same commands
/// one by one.
#[test]
fn a_pipeline_is_answered_as_its_commands_one_by_one() {
    let words = [
        "SET a 1",
        "GET a",
        "APPEND a xyz",
        "GET a",
        "MULTI",
        "INCR n",
        "GET n",
        "EXEC",
        "SELECT 1",
        "GET a",
        "SET a 2",
        "SELECT 0",
        "NOPE",
        "GET",
        "CLIENT REPLY SKIP",
        "GET a",
        "GET a",
        "LPUSH list 1 2 3",
        "BLPOP list 0",
        "SWAPDB 0 1",
        "GET a",
        "SUBSCRIBE news",
        "GET a",
        "PING",
        "UNSUBSCRIBE news",
        "HELLO 3",
        "GET none",
        "RESET",
        "SET a 300000",
        "GET a",
        "FLUSHALL",
        "GET a",
        "SET b 2 EX 100",
        "SET b 3",
        "TTL b",
        "BLPOP none 0",
        "GET b",
        "QUIT",
    ];
    let encoded: Vec<Vec<u8>> = words
        .iter()
        .map(|command| {
            let words: Vec<&str> = command.split(' ').collect();
            let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
            let words: String =
                std::iter::once(format!("*{}\r\n", words.len())).chain(words.iter().map(word)).collect();
            words.into_bytes()
        })
        .collect();
    let answers = |cuts: usize| {
        let mut bench = Bench::new();
        let (client, other) = (bench.connect(), bench.connect());
        let mut reply = String::new();
        let pieces: Vec<Vec<u8>> = if cuts == 0 {
            encoded.clone()
        } else {
            encoded.concat().chunks(cuts).map(<[u8]>::to_vec).collect()
        };
        for piece in pieces {
            bench.shard.feed(client, &piece, bench.now);
            reply += &bench.output(client);
        }
        // It waits for a list, with more behind it.
        assert!(!reply.contains("+OK\r\n$1\r\n3"), "{reply}");
        bench.request(other, "RPUSH none 1");
        bench.pass(1);
        reply + &bench.output(client)
    };
    let one_by_one = answers(0);
    assert!(one_by_one.ends_with("$4\r\nnone\r\n$1\r\n1\r\n$1\r\n3\r\n+OK\r\n"), "{one_by_one}");
    for cuts in [100_000, 1000, 333, 64, 7, 1] {
        assert_eq!(answers(cuts), one_by_one, "in pieces of {cuts} bytes");
    }
}
