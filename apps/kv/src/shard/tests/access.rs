//! Passwords, users and their rules; replies in rare modes and settings.
//!
//! Random programs do not reach these cases, because they run as one user in one mode. The expected
//! replies are those of redis-server 7.0.15.

use super::limits::encode;
use super::*;

#[test]
fn a_password_is_required_once_there_is_one() {
    let mut bench = Bench::new();
    let client = bench.connect();
    assert!(
        bench.request(client, "AUTH abc").starts_with("-ERR AUTH <password> called without any password")
    );
    assert_eq!(bench.request(client, "CONFIG SET requirepass abc"), "+OK\r\n");
    assert!(bench.request(client, "CONFIG GET requirepass").contains("abc"));
    assert_eq!(bench.request(client, "PING"), "+PONG\r\n", "it was let in already");
    let late = bench.connect();
    assert_eq!(bench.request(late, "GET a"), "-NOAUTH Authentication required.\r\n");
    assert!(bench.request(late, "HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    assert_eq!(
        bench.request(late, "AUTH no"),
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n"
    );
    assert!(bench.request(late, "HELLO 2 AUTH default no").starts_with("-WRONGPASS"));
    assert!(bench.request(late, "GET a").starts_with("-NOAUTH"));
    assert!(bench.request(late, "HELLO 2 AUTH default abc").contains("redis"));
    assert_eq!(bench.request(late, "GET a"), "$-1\r\n");
    bench.request(late, "RESET");
    assert!(bench.request(late, "GET a").starts_with("-NOAUTH"));
    assert_eq!(bench.request(late, "AUTH abc"), "+OK\r\n");
    assert_eq!(bench.request(late, "CONFIG SET requirepass \"\""), "+OK\r\n");
    let last = bench.connect();
    assert_eq!(bench.request(last, "PING"), "+PONG\r\n");
}

#[test]
fn an_unauthenticated_client_may_send_little() {
    let mut bench = Bench::new();
    bench.shard.require_password(b"abc");
    for (sent, reply) in [
        ("*11\r\n", "-ERR Protocol error: unauthenticated multibulk length\r\n"),
        ("*1\r\n$16385\r\n", "-ERR Protocol error: unauthenticated bulk length\r\n"),
    ] {
        let client = bench.connect();
        bench.shard.feed(client, sent.as_bytes(), bench.now);
        assert_eq!(bench.output(client), reply);
        assert!(bench.shard.wants_close(client));
        let client = bench.connect();
        bench.request(client, "AUTH abc");
        bench.shard.feed(client, sent.as_bytes(), bench.now);
        assert_eq!(bench.output(client), "");
    }
}

#[test]
fn a_large_command_may_follow_auth_in_one_read() {
    let mut bench = Bench::new();
    bench.shard.require_password(b"abc");
    let long = "x".repeat(20_000);
    let many: Vec<&[u8]> = [&b"MSET"[..], b"a", b"1"].into_iter().chain([&b"b"[..]; 20]).collect();
    for large in [encode(&[b"SET", b"k", long.as_bytes()]), encode(&many)] {
        let client = bench.connect();
        let sent = [encode(&[b"AUTH", b"abc"]), large.clone()].concat();
        bench.shard.feed(client, &sent, bench.now);
        let reply = bench.output(client);
        assert!(reply.starts_with("+OK\r\n") && !reply.contains("Protocol"), "{reply}");
        assert!(!bench.shard.wants_close(client));
        // RESET takes the authentication back, and with it the larger limit.
        let sent = [encode(&[b"RESET"]), large].concat();
        bench.shard.feed(client, &sent, bench.now);
        assert!(bench.output(client).contains("unauthenticated"));
        assert!(bench.shard.wants_close(client));
    }
}

#[test]
fn users_may_run_the_commands_their_rules_allow() {
    let mut bench = Bench::new();
    let (admin, client) = (bench.connect(), bench.connect());
    let rules =
        "ACL SETUSER bob on >pw ~a* +get +@set -sadd +acl|whoami +config|get +exec +multi +subscribe &ch*";
    assert_eq!(bench.request(admin, rules), "+OK\r\n");
    assert!(bench.request(client, "AUTH bob no").starts_with("-WRONGPASS"));
    assert_eq!(bench.request(client, "AUTH bob pw"), "+OK\r\n");
    assert_eq!(bench.request(client, "ACL WHOAMI"), "$3\r\nbob\r\n");
    assert_eq!(bench.request(client, "GET a1"), "$-1\r\n");
    let keys = "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";
    assert_eq!(bench.request(client, "GET b"), keys);
    assert_eq!(bench.request(client, "SUNION a b"), keys);
    let command =
        |name: &str| format!("-NOPERM this user has no permissions to run the '{name}' command\r\n");
    assert_eq!(bench.request(client, "SET a 1"), command("set"));
    assert_eq!(bench.request(client, "SADD a 1"), command("sadd"));
    assert_eq!(bench.request(client, "CONFIG SET maxmemory 0"), command("config|set"));
    assert_eq!(bench.request(client, "ACL SETUSER bob +@all"), command("acl|setuser"));
    assert!(bench.request(client, "CONFIG GET port").contains("port"));
    assert!(bench.request(client, "SUBSCRIBE other").contains("channels used as arguments"));
    // What was queued is checked again.
    bench.request(client, "MULTI");
    assert_eq!(bench.request(client, "GET a"), "+QUEUED\r\n");
    bench.request(admin, "ACL SETUSER bob -get");
    assert_eq!(bench.request(client, "EXEC"), format!("*1\r\n{}", command("get")));
    let listed = bench.request(admin, "ACL LIST");
    let hash = "30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4";
    assert!(
        listed.contains(&format!("user bob on #{hash} ~a* resetchannels &ch* -@all +@set -sadd")),
        "{listed}"
    );
    assert!(listed.contains("user default on nopass ~* &* +@all"), "{listed}");
    assert!(bench.request(admin, "ACL GETUSER bob").contains(hash));
    assert_eq!(bench.request(admin, "ACL GETUSER absent"), "$-1\r\n");
    assert_eq!(bench.request(admin, "ACL USERS"), "*2\r\n$3\r\nbob\r\n$7\r\ndefault\r\n");
    assert_eq!(bench.request(admin, "ACL DELUSER bob absent"), ":1\r\n");
    assert!(bench.shard.wants_close(client));
    assert!(
        bench.request(admin, "ACL DELUSER default").starts_with("-ERR The 'default' user cannot be removed")
    );
}

#[test]
fn a_category_holds_the_subcommands_that_redis_sorts_into_it() {
    let mut bench = Bench::new();
    let admin = bench.connect();
    let denied = |bench: &mut Bench, rules: &str, command: &str| {
        assert_eq!(
            bench.request(admin, &format!("ACL SETUSER bob reset on nopass allkeys allchannels {rules}")),
            "+OK\r\n"
        );
        let client = bench.connect();
        assert_eq!(bench.request(client, "AUTH bob x"), "+OK\r\n");
        let reply = bench.request(client, command);
        bench.shard.disconnect(client);
        reply.starts_with("-NOPERM")
    };
    for command in ["KILL TYPE pubsub", "LIST", "NO-EVICT on", "PAUSE 0", "UNPAUSE", "UNBLOCK 1"] {
        let command = format!("CLIENT {command}");
        for rules in ["+@all -@dangerous", "+@all -@admin", "-@all +@read", "+@all -@connection"] {
            assert!(denied(&mut bench, rules, &command), "{rules}: {command}");
        }
        for rules in ["+@all", "-@all +@admin", "+@all -@admin +@dangerous", "+@all -@dangerous +client"] {
            assert!(!denied(&mut bench, rules, &command), "{rules}: {command}");
        }
    }
    for command in ["CLIENT ID", "ACL WHOAMI", "ACL CAT", "CONFIG HELP", "MEMORY DOCTOR", "PUBSUB HELP"] {
        assert!(!denied(&mut bench, "+@all -@dangerous -@read -@admin", command), "{command}");
        assert!(denied(&mut bench, "-@all +@dangerous +@read", command), "{command}");
    }
    assert!(denied(&mut bench, "+@all -@read", "MEMORY USAGE k"));
    assert!(denied(&mut bench, "+@all -@dangerous", "ACL SETUSER bob on"));
    // A later word wins, and what all may do is open again.
    assert!(!denied(&mut bench, "+@all -@dangerous +client|list", "CLIENT LIST"));
    assert!(denied(&mut bench, "+@all +client|list -@dangerous", "CLIENT LIST"));
    let listed = bench.request(admin, "ACL LIST");
    assert!(listed.contains("+@all -@dangerous\r\n"), "{listed}");
    let named = bench.request(admin, "ACL CAT dangerous");
    assert!(named.contains("\r\nclient|kill\r\n") && !named.contains("acl|whoami"), "{named}");
    assert_eq!(bench.request(admin, "COMMAND LIST FILTERBY ACLCAT dangerous"), named);
}

#[test]
fn a_subscriber_without_permission_is_closed() {
    let mut bench = Bench::new();
    let admin = bench.connect();
    bench.request(admin, "ACL SETUSER bob on nopass +@all allchannels");
    let listeners: Vec<ClientId> = ["SUBSCRIBE news", "PSUBSCRIBE n*", "SUBSCRIBE weather", "PING"]
        .iter()
        .map(|command| {
            let client = bench.connect();
            bench.request(client, "AUTH bob x");
            bench.request(client, command);
            client
        })
        .collect();
    let other = bench.connect();
    bench.request(other, "SUBSCRIBE news");
    let closed = |bench: &Bench| listeners.iter().map(|&id| bench.shard.wants_close(id)).collect::<Vec<_>>();
    bench.request(admin, "ACL SETUSER bob resetchannels &n* &weather");
    assert_eq!(closed(&bench), [false; 4], "what they do is allowed");
    bench.request(admin, "ACL SETUSER bob resetchannels &news");
    assert_eq!(closed(&bench), [false, true, true, false]);
    bench.request(admin, "ACL SETUSER bob resetchannels");
    assert_eq!(closed(&bench), [true, true, true, false]);
    assert!(!bench.shard.wants_close(other));
}

/// Keeps what is written to the log.
#[derive(Clone, Default)]
struct Written(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::Subscriber for Written {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = String::new();
        event.record(&mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            text = format!("{value:?}");
        });
        self.0.lock().expect("one thread").push(text);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_password_that_a_restart_forgets_is_warned_of() {
    let written = Written::default();
    tracing::subscriber::with_default(written.clone(), || {
        let mut bench = Bench::new();
        let client = bench.connect();
        for command in ["CONFIG SET maxmemory 0", "CONFIG SET requirepass abc", "ACL SETUSER bob on >pw"] {
            assert_eq!(bench.request(client, command), "+OK\r\n");
        }
    });
    let lines = written.0.lock().expect("one thread").clone();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, command) in lines.iter().zip(["CONFIG SET requirepass", "ACL SETUSER"]) {
        assert!(line.contains(command) && line.contains("SIETCH_KV_PASSWORD_FILE"), "{line}");
        assert!(!line.contains("abc") && !line.contains("pw"), "{line}");
    }
}

#[test]
fn info_shows_resource_usage() {
    let mut bench = Bench::new();
    let client = bench.connect();
    let usage =
        crate::foundation::metrics::Usage { resident: 987_654_321, system_ticks: 123, user_ticks: 4567 };
    bench.shard.persistence_mut().usage = usage;
    let reply = bench.request(client, "INFO cpu");
    assert!(reply.contains("used_cpu_sys:1.230000\r\nused_cpu_user:45.670000\r\n"), "{reply}");
    let reply = bench.request(client, "INFO memory");
    assert!(reply.contains("used_memory_rss:987654321\r\n"), "{reply}");
}

#[test]
fn rules_that_make_no_sense_change_nothing() {
    let mut bench = Bench::new();
    let admin = bench.connect();
    for (rule, reason) in [
        ("nope", "Syntax error"),
        ("+nosuch", "Unknown command or category name in ACL"),
        ("+@nosuch", "Unknown command or category name in ACL"),
        ("+get|nosuch", "Unknown command or category name in ACL"),
        ("<never", "The password you are trying to remove from the user does not exist"),
    ] {
        let reply = bench.request(admin, &format!("ACL SETUSER bob on {rule}"));
        assert_eq!(reply, format!("-ERR Error in ACL SETUSER modifier '{rule}': {reason}\r\n"));
    }
    assert_eq!(bench.request(admin, "ACL USERS"), "*1\r\n$7\r\ndefault\r\n");
    assert!(bench.request(admin, "ACL CAT transaction").contains("exec"));
    assert_eq!(bench.request(admin, "ACL CAT nosuch"), "-ERR Unknown category 'nosuch'\r\n");
}

#[test]
fn clients_of_other_hosts_are_refused_without_a_password() {
    let mut bench = Bench::new();
    let client = bench.connect();
    let (here, mapped, there) = ("127.0.0.1", "::ffff:127.0.0.1", "10.0.0.7");
    let refuses = |bench: &Bench, peer: &str| bench.shard.refuses(peer.parse().expect("an address"));
    assert!(!refuses(&bench, here) && !refuses(&bench, mapped) && !refuses(&bench, "::1"));
    assert!(refuses(&bench, there));
    bench.request(client, "CONFIG SET protected-mode no");
    assert!(!refuses(&bench, there));
    bench.request(client, "CONFIG SET protected-mode yes requirepass abc");
    assert!(!refuses(&bench, there));
}

#[test]
fn requests_of_a_browser_are_not_run() {
    for line in ["POST / HTTP/1.1", "Host: localhost", "post x", "hOsT: x"] {
        let mut bench = Bench::new();
        let client = bench.connect();
        bench.shard.feed(client, format!("{line}\r\nSET a 1\r\n").as_bytes(), bench.now);
        assert_eq!(bench.output(client), "", "{line}");
        assert!(bench.shard.wants_close(client), "{line}");
        assert_eq!(bench.shard.keys(), 0, "{line}");
    }
}

#[test]
fn subscriptions_are_confirmed_although_replies_are_off() {
    let mut bench = Bench::new();
    let client = bench.connect();
    assert_eq!(bench.request(client, "CLIENT REPLY OFF"), "");
    assert_eq!(bench.request(client, "SUBSCRIBE a"), "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    assert_eq!(bench.request(client, "PUNSUBSCRIBE"), "*3\r\n$12\r\npunsubscribe\r\n$-1\r\n:1\r\n");
    assert_eq!(bench.request(client, "PING"), "");
    // In a transaction, too, whose other replies are dropped; and for a message that it sends to
    // itself.
    for command in ["UNSUBSCRIBE", "MULTI", "SUBSCRIBE b", "PSUBSCRIBE c*", "PING"] {
        bench.request(client, command);
    }
    let confirmed = "*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:1\r\n*3\r\n$10\r\npsubscribe\r\n$2\r\nc*\r\n:2\r\n";
    assert_eq!(bench.request(client, "EXEC"), confirmed);
    let client = bench.connect();
    bench.request(client, "HELLO 3");
    bench.request(client, "SUBSCRIBE a");
    assert_eq!(bench.request(client, "CLIENT REPLY OFF"), "");
    assert_eq!(bench.request(client, "PUBLISH a x"), ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n");
    assert_eq!(bench.request(client, "PUBLISH other x"), "");
}

#[test]
fn idle_times_and_frequencies_are_as_in_redis() {
    let mut bench = Bench::new();
    let client = bench.connect();
    bench.request(client, "SET a 1");
    bench.pass(20_000);
    let idle = |bench: &mut Bench, key: &str| {
        let reply = bench.request(client, &format!("OBJECT IDLETIME {key}"));
        reply.trim_start_matches(':').trim_end().parse::<u64>().expect("a number")
    };
    assert_eq!(bench.request(client, "EXISTS a"), ":1\r\n");
    assert!(idle(&mut bench, "a") >= 19, "EXISTS is no access");
    bench.shard.feed(client, b"DUMP a\r\n", bench.now);
    bench.sequence += 1;
    bench.shard.seal(bench.sequence);
    bench.shard.durable(bench.sequence);
    let reply = bench.shard.output(client).to_vec();
    bench.shard.consumed(client, reply.len());
    assert!(idle(&mut bench, "a") <= 1, "DUMP is one");
    let start = reply.iter().position(|&byte| byte == b'\n').expect("a header") + 1;
    let payload = &reply[start..reply.len() - 2];
    for (key, option, value) in [(&b"b"[..], &b"IDLETIME"[..], &b"1000"[..]), (b"c", b"FREQ", b"100")] {
        bench.shard.feed(client, &encode(&[b"RESTORE", key, b"0", payload, option, value]), bench.now);
        assert_eq!(bench.output(client), "+OK\r\n");
    }
    assert!((999..=1001).contains(&idle(&mut bench, "b")));
    bench.request(client, "CONFIG SET maxmemory-policy allkeys-lfu");
    bench.shard.feed(client, &encode(&[b"RESTORE", b"d", b"0", payload, b"FREQ", b"100"]), bench.now);
    assert_eq!(bench.output(client), "+OK\r\n");
    assert_eq!(bench.request(client, "OBJECT FREQ d"), ":100\r\n");
}

/// A payload of these commands, with the right checksum.
fn payload(commands: &[&str]) -> Vec<u8> {
    let mut payload = b"SIETCH1\x03".to_vec();
    for command in commands {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        crate::data::journal::encode(&mut payload, 0, &words);
    }
    let sum = payload.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    payload.extend_from_slice(&sum.to_le_bytes());
    payload
}

#[test]
fn a_refused_payload_leaves_the_key_that_it_would_replace() {
    let mut bench = Bench::new();
    bench.shard.enable_journal(true);
    let client = bench.connect();
    bench.request(client, "SET k old");
    let effects = bench.shard.journal().take();
    assert!(effects.is_some());
    for commands in [
        &["HSET k f"][..],
        &["HSET k f v", "HSET k f v g"],
        &["ZADD k 1 a x b"],
        &["ZADD k NX 1 a"],
        &["ZADD k 1"],
        &["RPUSH k"],
        &["SADD"],
        &["SET k v EX 10"],
        &["SET k v", "SET k w"],
        &["RPUSH k a", "SADD k a"],
        &["DEL k"],
        &[],
    ] {
        let words: [&[u8]; 5] = [b"RESTORE", b"k", b"0", &payload(commands), b"REPLACE"];
        bench.shard.feed(client, &encode(&words), bench.now);
        assert_eq!(bench.output(client), "-ERR Bad data format\r\n", "{commands:?}");
        assert_eq!(bench.request(client, "GET k"), "$3\r\nold\r\n", "{commands:?}");
        assert_eq!(bench.shard.journal().take(), None, "{commands:?}");
    }
    let words: [&[u8]; 5] = [b"RESTORE", b"k", b"0", &payload(&["HSET k f v", "HSET k g w"]), b"REPLACE"];
    bench.shard.feed(client, &encode(&words), bench.now);
    assert_eq!(bench.output(client), "+OK\r\n");
    assert_eq!(bench.request(client, "HLEN k"), ":2\r\n");
}

#[test]
fn a_rule_of_a_command_that_changes_nothing_is_not_listed() {
    let mut bench = Bench::new();
    let client = bench.connect();
    for (rules, listed) in [
        ("+@all +client|id", "+@all"),
        ("-@all +client|id", "-@all +client|id"),
        ("+client +client|id", "-@all +client"),
        ("+@all -client|id +client|id", "+@all"),
        ("+@all -client|id +client", "+@all"),
        ("+@all -client +client|id", "+@all -client +client|id"),
        ("-client|id", "-@all"),
        ("+@all -@dangerous +client|list", "+@all -@dangerous +client|list"),
        ("+@all +get", "+@all"),
    ] {
        bench.request(client, &format!("ACL SETUSER bob reset {rules}"));
        let list = bench.request(client, "ACL LIST");
        assert!(list.contains(&format!("user bob off resetchannels {listed}\r\n")), "{rules}: {list}");
    }
    assert_eq!(bench.request(client, "ACL CAT FoO"), "-ERR Unknown category 'FoO'\r\n");
}

#[test]
fn settings_without_an_effect_are_refused() {
    let mut bench = Bench::new();
    let client = bench.connect();
    assert_eq!(
        bench.request(client, "CONFIG SET maxmemory 1 maxmemory 2"),
        "-ERR CONFIG SET failed (possibly related to argument 'maxmemory') - duplicate parameter\r\n"
    );
    for name in ["stream-node-max-bytes", "latency-tracking-info-percentiles"] {
        assert!(
            bench.request(client, &format!("CONFIG SET {name} 7")).contains("no effect in Sietch"),
            "{name}"
        );
    }
    assert_eq!(bench.request(client, "CONFIG SET stream-node-max-bytes 4096"), "+OK\r\n");
    assert!(bench.request(client, "CONFIG SET no-such-max-thing 1").starts_with("-ERR Unknown option"));
}

#[test]
fn commands_are_listed_with_their_subcommands() {
    let mut bench = Bench::new();
    let client = bench.connect();
    bench.shard.feed(client, &encode(&[b"CLIENT", b"LIST"]), bench.now);
    let listed = bench.output(client);
    assert!(listed.contains(" qbuf=26 ") && listed.contains(" cmd=client|list "), "{listed}");
    assert!(bench.request(client, "COMMAND LIST").contains("\r\nconfig|set\r\n"));
    let keys = bench.request(client, "COMMAND GETKEYS SORT abc BY x GET y STORE def STORE ghi LIMIT 0 1");
    assert_eq!(keys, "*2\r\n$3\r\nabc\r\n$3\r\nghi\r\n");
    let info = bench.request(client, "INFO cpu");
    assert!(info.contains("used_cpu_sys:"), "{info}");
}

#[test]
fn a_command_may_have_more_than_a_million_arguments() {
    let mut bench = Bench::new();
    bench.shard.enable_journal(true);
    let client = bench.connect();
    let mut words: Vec<&[u8]> = vec![b"RPUSH", b"k"];
    words.resize(1_048_579, b"x");
    bench.shard.feed(client, &encode(&words), bench.now);
    assert_eq!(bench.output(client), ":1048577\r\n");
    let record = bench.shard.journal().take().expect("an effect");
    let mut again = Bench::new();
    again.shard.replay(1, &record, bench.now).expect("its own record");
    again.shard.finish_recovery().expect("nothing was refused");
    let client = again.connect();
    assert_eq!(again.request(client, "LLEN k"), ":1048577\r\n");
}

#[test]
fn a_transaction_that_deletes_its_user_goes_on_with_the_rules_of_the_default_one() {
    let mut bench = Bench::new();
    let client = bench.connect();
    assert_eq!(bench.request(client, "ACL SETUSER bob on >abc ~* &* +@all"), "+OK\r\n");
    assert_eq!(bench.request(client, "AUTH bob abc"), "+OK\r\n");
    assert_eq!(bench.request(client, "ACL SETUSER default -set"), "+OK\r\n");
    for command in ["MULTI", "ACL DELUSER bob", "SET a 1", "GET a"] {
        bench.request(client, command);
    }
    let replies = bench.request(client, "EXEC");
    assert!(replies.starts_with("*3\r\n:1\r\n-NOPERM"), "{replies}");
    assert!(replies.ends_with("$-1\r\n"), "{replies}");
}
