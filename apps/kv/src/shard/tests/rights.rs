//! Rules that change while something of their user goes on: it waits for a key, has a transaction
//! open, or receives messages.
//!
//! Redis 7.0 serves such a client by its old rules; Redis 7.2 checks a command that has waited
//! again.

use super::*;

const RULES: &str = "reset on nopass ~own:* allchannels +@all";
const LOST_KEY: &str = "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";

/// The store, its administrator, and a client of the user `bob`.
struct Fixture {
    bench: Bench,
    admin: ClientId,
    client: ClientId,
}

impl Fixture {
    fn new() -> Self {
        let mut bench = Bench::new();
        let admin = bench.connect();
        assert_eq!(bench.request(admin, &format!("ACL SETUSER bob {RULES}")), "+OK\r\n");
        let client = log_in(&mut bench);
        Self { bench, admin, client }
    }

    fn admin(&mut self, command: &str) -> String {
        self.bench.request(self.admin, command)
    }

    fn client(&mut self, command: &str) -> String {
        self.bench.request(self.client, command)
    }
}

/// A client of the user `bob`.
fn log_in(bench: &mut Bench) -> ClientId {
    let client = bench.connect();
    assert_eq!(bench.request(client, "AUTH bob x"), "+OK\r\n");
    client
}

/// Each command that waits for the key `own:w`, and the command that makes it ready.
const WAITING: [(&str, &str); 8] = [
    ("BLPOP own:w 0", "RPUSH own:w x"),
    ("BRPOP own:w 0", "RPUSH own:w x"),
    ("BLMPOP 0 1 own:w LEFT", "RPUSH own:w x"),
    ("BLMOVE own:w own:to LEFT LEFT 0", "RPUSH own:w x"),
    ("BRPOPLPUSH own:w own:to 0", "RPUSH own:w x"),
    ("BZPOPMIN own:w 0", "ZADD own:w 1 x"),
    ("BZPOPMAX own:w 0", "ZADD own:w 1 x"),
    ("BZMPOP 0 1 own:w MIN", "ZADD own:w 1 x"),
];

#[test]
fn a_client_that_waits_for_a_key_does_not_get_it_once_its_user_lost_it() {
    for (waits, fills) in WAITING {
        let name = waits.split(' ').next().expect("a name").to_ascii_lowercase();
        let lost_command = format!("-NOPERM this user has no permissions to run the '{name}' command\r\n");
        for (change, error) in [
            ("resetkeys ~other".to_owned(), LOST_KEY),
            (format!("-{name}"), &lost_command),
            ("-@blocking".to_owned(), &lost_command),
            ("reset".to_owned(), &lost_command),
        ] {
            let mut all = Fixture::new();
            assert_eq!(all.client(waits), "", "{waits}");
            assert_eq!(all.admin(&format!("ACL SETUSER bob {change}")), "+OK\r\n");
            assert_eq!(all.admin(fills), ":1\r\n");
            assert_eq!(all.bench.output(all.client), error, "{waits}, {change}");
            assert_eq!(all.admin("EXISTS own:w own:to"), ":1\r\n", "{waits}, {change}: it took it");
            // It goes on, with what its rules allow.
            assert!(!all.bench.shard.wants_close(all.client));
            assert_eq!(all.admin("ACL SETUSER bob +ping"), "+OK\r\n");
            assert_eq!(all.client("PING"), "+PONG\r\n");
        }
    }
}

#[test]
fn the_next_client_in_the_queue_gets_what_one_without_permission_does_not() {
    for change in ["ACL SETUSER bob resetkeys", "ACL DELUSER bob"] {
        let mut all = Fixture::new();
        let next = all.bench.connect();
        for client in [all.client, next] {
            assert_eq!(all.bench.request(client, "BLPOP own:w 0"), "");
        }
        // In one transaction: the clients are served after both.
        for command in ["MULTI", change, "RPUSH own:w x", "EXEC"] {
            all.admin(command);
        }
        assert_eq!(all.bench.output(next), "*2\r\n$5\r\nown:w\r\n$1\r\nx\r\n", "{change}");
        let deleted = change.contains("DELUSER");
        assert_eq!(all.bench.output(all.client), if deleted { "" } else { LOST_KEY });
        assert_eq!(all.bench.shard.wants_close(all.client), deleted);
    }
}

#[test]
fn a_destination_that_its_user_lost_is_not_written_by_a_client_that_waited() {
    let mut all = Fixture::new();
    assert_eq!(all.client("BLMOVE own:w own:to LEFT LEFT 0"), "");
    all.admin("ACL SETUSER bob resetkeys ~own:w");
    all.admin("RPUSH own:w x");
    assert_eq!(all.bench.output(all.client), LOST_KEY);
    assert_eq!(all.admin("LRANGE own:w 0 -1"), "*1\r\n$1\r\nx\r\n");
}

#[test]
fn a_client_that_keeps_its_rights_is_served_although_other_rules_changed() {
    let mut all = Fixture::new();
    assert_eq!(all.client("BLPOP own:w 0"), "");
    // As in Redis, `off` concerns only clients that authenticate later.
    for rules in ["resetkeys ~own:w", "-@all +blpop", "off"] {
        assert_eq!(all.admin(&format!("ACL SETUSER bob {rules}")), "+OK\r\n");
    }
    all.admin("RPUSH own:w x");
    assert_eq!(all.bench.output(all.client), "*2\r\n$5\r\nown:w\r\n$1\r\nx\r\n");
}

#[test]
fn a_command_that_a_pause_has_postponed_is_refused_if_its_user_lost_the_key() {
    let mut all = Fixture::new();
    all.admin("CLIENT PAUSE 100 WRITE");
    assert_eq!(all.client("SET own:a 1"), "");
    all.admin("ACL SETUSER bob resetkeys");
    all.bench.pass(200);
    assert_eq!(all.bench.output(all.client), LOST_KEY);
    assert_eq!(all.admin("EXISTS own:a"), ":0\r\n");
}

#[test]
fn a_queued_command_is_refused_if_its_user_lost_the_key() {
    let mut all = Fixture::new();
    for command in ["MULTI", "GET own:a", "BLPOP own:w 0", "PING"] {
        all.client(command);
    }
    all.admin("ACL SETUSER bob resetkeys -ping");
    let refused = "-NOPERM this user has no permissions to run the 'ping' command\r\n";
    assert_eq!(all.client("EXEC"), format!("*3\r\n{LOST_KEY}{LOST_KEY}{refused}"));
}

#[test]
fn exec_does_not_tell_whether_a_key_changed_that_its_user_lost() {
    let mut all = Fixture::new();
    for changes in [false, true] {
        all.admin(&format!("ACL SETUSER bob {RULES}"));
        assert_eq!(all.client("WATCH own:a"), "+OK\r\n");
        all.client("MULTI");
        all.client("PING");
        all.admin("ACL SETUSER bob resetkeys");
        if changes {
            all.admin("INCR own:a");
        }
        assert_eq!(all.client("EXEC"), "*-1\r\n", "changes: {changes}");
    }
}

#[test]
fn a_transaction_that_deletes_its_user_gets_nothing_from_a_default_one_with_a_password() {
    let mut all = Fixture::new();
    all.admin("SET secret 1");
    all.admin("SET own:a 2");
    all.admin("CONFIG SET requirepass abc");
    for command in ["MULTI", "GET own:a", "ACL DELUSER bob", "GET own:a"] {
        all.client(command);
    }
    assert_eq!(all.client("EXEC"), "*3\r\n$1\r\n2\r\n:1\r\n-NOAUTH Authentication required.\r\n");
    assert!(all.bench.shard.wants_close(all.client));
}

#[test]
fn a_client_that_receives_by_a_command_that_its_user_lost_is_closed() {
    for (command, other) in [
        ("MONITOR", "-subscribe -psubscribe"),
        ("SUBSCRIBE news", "-monitor -psubscribe"),
        ("PSUBSCRIBE n*", "-monitor -subscribe"),
    ] {
        let name = command.split(' ').next().expect("a name").to_ascii_lowercase();
        let changes = [format!("ACL SETUSER bob -{name}"), "ACL DELUSER bob".to_owned()];
        for change in changes {
            let mut all = Fixture::new();
            let idle = log_in(&mut all.bench);
            assert!(all.client(command).starts_with(['+', '*']), "{command}");
            assert_eq!(all.admin(&format!("ACL SETUSER bob {other}")), "+OK\r\n");
            assert!(!all.bench.shard.wants_close(all.client), "{command} is allowed");
            all.bench.output(all.client);
            assert!(!all.admin(&change).starts_with('-'), "{change}");
            assert!(all.bench.shard.wants_close(all.client), "{command}, {change}");
            assert_eq!(all.bench.shard.wants_close(idle), change.contains("DELUSER"));
            all.admin("PUBLISH news x");
            assert_eq!(all.bench.output(all.client), "", "{command}, {change}");
        }
    }
}
