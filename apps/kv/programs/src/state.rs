//! All data of a server, in a form that can be compared: without encodings, and sorted where Redis
//! defines no order.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use crate::connection::{Connection, words};
use crate::reply::{Comparison, Reply};

/// Databases of a server.
const DATABASES: usize = 16;

/// Times to live that two clocks have set may differ by so many milliseconds.
const CLOCKS: i64 = 60_000;

/// One key.
#[derive(Debug)]
pub struct Entry {
    kind: Reply,
    /// Unix time in milliseconds, or -1.
    expires: i64,
    value: Reply,
}

/// All keys, by database and name.
pub type State = BTreeMap<(usize, Vec<u8>), Entry>;

fn keys<S: Read + Write>(server: &mut Connection<S>) -> io::Result<Vec<Vec<u8>>> {
    match server.request(&words("KEYS *"))? {
        Reply::Array(found) => Ok(found
            .into_iter()
            .filter_map(|key| if let Reply::Bulk(name) = key { Some(name) } else { None })
            .collect()),
        other => panic!("KEYS was answered {other}"),
    }
}

/// Reads everything. The connection is in its initial state afterwards: RESP2, and no transaction,
/// watch or other database.
///
/// # Errors
/// Those of the connection.
///
/// # Panics
/// If a reply is none that Redis gives.
pub fn read<S: Read + Write>(server: &mut Connection<S>) -> io::Result<State> {
    server.request(&words("RESET"))?;
    let mut state = State::new();
    for database in 0..DATABASES {
        server.request(&words(&format!("SELECT {database}")))?;
        for name in keys(server)? {
            let with = |command: &str, more: &str| {
                let mut command = words(command);
                command.push(name.clone());
                command.extend(words(more));
                command
            };
            let kind = server.request(&with("TYPE", ""))?;
            let Reply::Integer(expires) = server.request(&with("PEXPIRETIME", ""))? else {
                panic!("PEXPIRETIME gives an integer");
            };
            let Reply::Simple(text) = &kind else { panic!("TYPE gives a word") };
            let (command, comparison) = match &text[..] {
                b"string" => (with("GET", ""), Comparison::Exact),
                b"list" => (with("LRANGE", "0 -1"), Comparison::Exact),
                b"set" => (with("SMEMBERS", ""), Comparison::Unordered),
                b"hash" => (with("HGETALL", ""), Comparison::Pairs),
                b"zset" => (with("ZRANGE", "0 -1 WITHSCORES"), Comparison::Exact),
                other => panic!("a key of type {}", String::from_utf8_lossy(other)),
            };
            let value = comparison.normal(server.request(&command)?);
            state.insert((database, name), Entry { kind, expires, value });
        }
    }
    server.request(&words("RESET"))?;
    Ok(state)
}

/// Describes the first keys in which two servers differ; empty if they hold the same.
#[must_use]
pub fn differences(left: &State, right: &State) -> String {
    let mut all: Vec<_> = left.keys().chain(right.keys()).collect();
    all.sort();
    all.dedup();
    let alike = |name: &(usize, Vec<u8>)| match (left.get(name), right.get(name)) {
        (Some(left), Some(right)) => {
            let times = (left.expires, right.expires);
            left.kind == right.kind
                && left.value == right.value
                && (times.0 == times.1
                    || (times.0 >= 0 && times.1 >= 0 && times.0.abs_diff(times.1) < CLOCKS as u64))
        }
        _ => false,
    };
    let show = |entry: Option<&Entry>| {
        entry.map_or("nothing".into(), |entry| {
            let mut text = entry.value.to_string();
            let length = text.len();
            text = text.chars().take(200).collect();
            format!("{} until {}: {text} ({length} bytes shown in full)", entry.kind, entry.expires)
        })
    };
    all.into_iter()
        .filter(|name| !alike(name))
        .take(5)
        .map(|name| {
            let shown = (show(left.get(name)), show(right.get(name)));
            format!(
                "database {}, {:?}: {}\n  and {}\n",
                name.0,
                String::from_utf8_lossy(&name.1),
                shown.0,
                shown.1
            )
        })
        .collect()
}
