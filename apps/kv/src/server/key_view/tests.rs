use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::*;
use crate::foundation::settings::Settings;
use crate::shard::Shard;

const NOW: Now = Now { monotonic_ns: 1_000_000_000, unix_ms: 1_700_000_000_000 };

/// A store in which `commands` were run.
fn store(commands: &str) -> Shard {
    let mut shard = Shard::new(Settings::default(), 42);
    let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
    let client = shard.connect(peer, peer, NOW).expect("room");
    for command in commands.lines() {
        shard.feed(client, format!("{}\r\n", command.trim()).as_bytes(), NOW);
        shard.seal(0);
        let reply = String::from_utf8_lossy(shard.output(client)).into_owned();
        assert!(!reply.starts_with('-'), "{command}: {reply}");
        shard.consumed(client, reply.len());
    }
    shard
}

fn read(shard: &Shard, path: &[&str]) -> Result<Vec<u8>, Unavailable> {
    Keys { stores: &[shard.store()], now: NOW }.read(&ViewTarget { path, uid: 0 }, 0, 1 << 20)
}

fn stat(shard: &Shard, path: &[&str], now: Now) -> Result<FileAttributes, Unavailable> {
    Keys { stores: &[shard.store()], now }.stat(&ViewTarget { path, uid: 0 })
}

/// All names of a directory, requested page by page.
fn names(shard: &Shard, path: &[&str]) -> Vec<String> {
    let (mut names, mut cursor) = (Vec::new(), 0);
    loop {
        let page = Keys { stores: &[shard.store()], now: NOW }
            .list(&ViewTarget { path, uid: 0 }, cursor)
            .expect("a page");
        names.extend(page.entries.into_iter().map(|entry| entry.name));
        match page.next {
            Some(next) => {
                assert!(next > cursor, "the daemon would refuse it");
                cursor = next;
            }
            None => {
                names.sort();
                return names;
            }
        }
    }
}

#[test]
fn keys_are_files_with_the_bytes_of_strings_and_lines_of_all_else() {
    let shard = store(
        "SET greeting hello\nSET number 42\nSET \"a/b\" slash\nRPUSH list one \"t w\\x00o\"\nHSET hash field value\n\
         ZADD scores 1.5 member\nSADD members one\nSELECT 3\nSET other x",
    );
    assert_eq!(names(&shard, &[]), ["keys"]);
    assert_eq!(names(&shard, &["keys"]), ["0", "3"]);
    let keys = ["a%2Fb", "greeting", "hash", "list", "members", "number", "scores"];
    assert_eq!(names(&shard, &["keys", "0"]), keys);
    assert_eq!(names(&shard, &["keys", "3"]), ["other"]);
    assert_eq!(names(&shard, &["keys", "7"]), [] as [&str; 0]);
    for (key, bytes) in [
        ("greeting", &b"hello"[..]),
        ("number", b"42"),
        ("a%2Fb", b"slash"),
        ("list", b"\"one\"\n\"t w\\x00o\"\n"),
        ("hash", b"\"field\" \"value\"\n"),
        ("scores", b"\"member\" 1.5\n"),
        ("members", b"\"one\"\n"),
    ] {
        assert_eq!(read(&shard, &["keys", "0", key]).as_deref(), Ok(bytes), "{key}");
    }
    assert_eq!(stat(&shard, &["keys", "0", "greeting"], NOW), Ok(FileAttributes::file(5)));
    for missing in
        [&["x"][..], &["keys", "16"], &["keys", "00"], &["keys", "0", "none"], &["keys", "0", "list", "0"]]
    {
        assert_eq!(stat(&shard, missing, NOW), Err(ViewError::Missing.into()), "{missing:?}");
    }
}

#[test]
fn every_key_of_any_length_is_listed_page_by_page_and_expired_ones_are_not() {
    let mut commands = String::new();
    for number in 0..3000 {
        commands.push_str(&format!("SET {}{number} x\n", "k".repeat(number % 250)));
    }
    commands.push_str(&format!("SET {} x\nSET gone x PX 10\n", "l".repeat(300)));
    let shard = store(&commands);
    assert_eq!(names(&shard, &["keys", "0"]).len(), 3001);
    let later = Now { unix_ms: NOW.unix_ms + 10, ..NOW };
    assert_eq!(stat(&shard, &["keys", "0", "gone"], later), Err(ViewError::Missing.into()));
}

#[test]
fn a_value_that_would_make_an_iteration_long_is_refused() {
    let mut commands = String::new();
    for number in 0..41 {
        let elements: Vec<String> = (0..100).map(|element| format!("e{number}-{element}")).collect();
        commands.push_str(&format!("RPUSH list {}\n", elements.join(" ")));
    }
    let shard = store(&commands);
    let refused = read(&shard, &["keys", "0", "list"]);
    assert!(matches!(refused, Err(Unavailable::Error(ViewError::Failed(_)))), "{refused:?}");
}

#[test]
fn a_listing_goes_through_all_shards_and_each_key_is_found_in_its_own() {
    let shards: Vec<Shard> = (0..3)
        .map(|own| {
            let placement = Placement::new(own, 3);
            let totals = std::sync::Arc::new(crate::shard::Totals::new(3));
            let mut shard = Shard::with_placement(Settings::default(), 42, placement, totals);
            let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
            let client = shard.connect(peer, peer, NOW).expect("room");
            for number in 0..1000 {
                let key = format!("key{number}");
                if placement.is_own(key.as_bytes()) {
                    shard.feed(client, format!("SET {key} {number}\r\n").as_bytes(), NOW);
                }
            }
            shard
        })
        .collect();
    let stores: Vec<&Store> = shards.iter().map(Shard::store).collect();
    let mut keys = Keys { stores: &stores, now: NOW };
    let (mut names, mut cursor) = (Vec::new(), 0);
    loop {
        let target = ViewTarget { path: &["keys", "0"], uid: 0 };
        let page = keys.list(&target, cursor).expect("a page");
        names.extend(page.entries.into_iter().map(|entry| entry.name));
        let Some(next) = page.next else { break };
        assert!(next > cursor, "the daemon would refuse it");
        cursor = next;
    }
    names.sort();
    let mut expected: Vec<String> = (0..1000).map(|number| format!("key{number}")).collect();
    expected.sort();
    assert!(names == expected, "{} names", names.len());
    for number in 0..1000 {
        let target = ViewTarget { path: &["keys", "0", &format!("key{number}")], uid: 0 };
        assert_eq!(keys.read(&target, 0, 100), Ok(number.to_string().into_bytes()));
    }
}
