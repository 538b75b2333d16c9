//! The journal as it was released: records and snapshots of earlier versions load, and records that
//! no version knows are refused by name.
//!
//! With `SIETCH_WRITE_GOLDEN=1` the current code writes a missing golden file. An existing one is
//! never changed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use sietch_kv::journal::{self, EFFECTS, SNAPSHOT};
use sietch_kv::settings::Settings;
use sietch_kv::shard::ClientId;
use sietch_kv::shard::{Now, Shard};

const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
const NOW: Now = Now { monotonic_ns: 1_000_000_000, unix_ms: 1_800_000_000_000 };
/// Sequence of the first record behind the snapshot.
const FIRST: u64 = 11;

/// The data in the snapshot.
const BEFORE: [&str; 9] = [
    "SET text spice",
    "SET number 41",
    "SET short-lived x PXAT 1800000100000",
    "RPUSH list a b c",
    "SADD set one two",
    "HSET hash field value other 7",
    "ZADD scores 1.5 low 2.5 high",
    "SET gone soon",
    "SET renamed away",
];

/// The changes behind it: one record each.
const AFTER: [&str; 14] = [
    "INCRBYFLOAT number 1.5",
    "APPEND text !",
    "LPOP list",
    "LSET list 0 B",
    "SREM set one",
    "HDEL hash other",
    "ZINCRBY scores 2 low",
    "DEL gone",
    "RENAME renamed home",
    "SETBIT bits 9 1",
    "PEXPIREAT list 1800000200000",
    "MSET many 1 keys 2",
    "COPY text twin",
    "MOVE keys 3",
];

/// Requests, and the answers of every later version.
const ANSWERS: [(&str, &str); 16] = [
    ("GET text", "$6\r\nspice!\r\n"),
    ("GET twin", "$6\r\nspice!\r\n"),
    ("GET number", "$4\r\n42.5\r\n"),
    ("PEXPIRETIME short-lived", ":1800000100000\r\n"),
    ("LRANGE list 0 -1", "*2\r\n$1\r\nB\r\n$1\r\nc\r\n"),
    ("PEXPIRETIME list", ":1800000200000\r\n"),
    ("SMEMBERS set", "*1\r\n$3\r\ntwo\r\n"),
    ("HGETALL hash", "*2\r\n$5\r\nfield\r\n$5\r\nvalue\r\n"),
    ("ZSCORE scores low", "$3\r\n3.5\r\n"),
    ("ZRANGE scores 0 -1", "*2\r\n$4\r\nhigh\r\n$3\r\nlow\r\n"),
    ("EXISTS gone renamed keys", ":0\r\n"),
    ("GET home", "$4\r\naway\r\n"),
    ("BITCOUNT bits", ":1\r\n"),
    ("GET many", "$1\r\n1\r\n"),
    ("SELECT 3", "+OK\r\n"),
    ("GET keys", "$1\r\n2\r\n"),
];

/// Runs a command and returns its reply.
fn request(shard: &mut Shard, client: ClientId, command: &str, sequence: u64) -> String {
    shard.feed(client, format!("{command}\r\n").as_bytes(), NOW);
    shard.seal(sequence);
    let reply = String::from_utf8_lossy(shard.output(client)).into_owned();
    shard.consumed(client, reply.len());
    reply
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A snapshot and the records behind it, as `snapshot HEX` and `record HEX` lines.
fn write() -> String {
    let mut shard = Shard::new(Settings::default(), 1);
    shard.enable_journal(true);
    let client = shard.connect(NOWHERE, NOWHERE, NOW).expect("the first");
    for command in BEFORE {
        request(&mut shard, client, command, 0);
    }
    shard.journal().clear();
    let mut text = String::new();
    shard.begin_snapshot();
    let done = shard.snapshot_slice(FIRST - 1, usize::MAX / 2, &mut |record| {
        text.push_str(&format!("snapshot {}\n", hexadecimal(record)));
    });
    assert!(done && !shard.snapshot_aborted());
    for (command, sequence) in AFTER.iter().zip(FIRST..) {
        request(&mut shard, client, command, sequence);
        let record = shard.journal().take().unwrap_or_else(|| panic!("{command} changes nothing"));
        text.push_str(&format!("record {}\n", hexadecimal(&record)));
    }
    text
}

/// The lines of the golden file, in bytes.
fn golden() -> Vec<(String, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/journal-v1.txt");
    if !path.exists() && std::env::var_os("SIETCH_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, write()).expect("a writable tree");
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines()
        .map(|line| {
            let (kind, hex) = line.split_once(' ').expect("a line of the golden file");
            let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
            (kind.to_owned(), pairs.map(|pair| u8::from_str_radix(pair, 16).expect("a byte")).collect())
        })
        .collect()
}

#[test]
fn a_journal_of_version_1_loads() {
    let mut shard = Shard::new(Settings::default(), 99);
    let mut sequence = FIRST;
    for (kind, record) in golden() {
        if kind == "snapshot" {
            shard.replay_snapshot(&record).expect("every later version reads it");
        } else {
            shard.replay(sequence, &record, NOW).expect("every later version reads it");
            sequence += 1;
        }
    }
    assert_eq!(sequence, FIRST + AFTER.len() as u64);
    shard.finish_recovery().expect("nothing was refused");
    let client = shard.connect(NOWHERE, NOWHERE, NOW).expect("the first");
    for (question, answer) in ANSWERS {
        assert_eq!(request(&mut shard, client, question, 0), answer, "{question}");
    }
}

#[test]
fn records_that_no_version_knows_are_refused_by_name() {
    let mut shard = Shard::new(Settings::default(), 1);
    let (_, whole) = golden().pop().expect("the last record");
    let mut other = whole.clone();
    other[0] = 9;
    let error = shard.replay(7, &other, NOW).expect_err("an unknown kind").to_string();
    assert!(error.contains("record 7") && error.contains("kind 9"), "{error}");
    let error = shard.replay_snapshot(&whole).expect_err("no snapshot").to_string();
    assert!(error.contains(&format!("kind {EFFECTS}")), "{error}");
    let mut newer = vec![EFFECTS];
    journal::encode(&mut newer, 0, &[b"FOLDSPACE", b"key"]);
    let error = shard.replay(8, &newer, NOW).expect_err("an unknown effect").to_string();
    assert!(error.contains("record 8") && error.contains("FOLDSPACE") && error.contains("newer"), "{error}");
    let mut newer = vec![SNAPSHOT, 1];
    journal::encode(&mut newer, 0, &[b"GET", b"key"]);
    let error = shard.replay_snapshot(&newer).expect_err("nothing that writes").to_string();
    assert!(error.contains("GET"), "{error}");
}
