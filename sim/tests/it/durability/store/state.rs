//! The whole state of a shard in a form that can be compared.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use sietch_kv::journal::{Reader, SNAPSHOT};
use sietch_kv::shard::Shard;

/// The value of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Value {
    /// The command that builds it names its type.
    kind: String,
    elements: usize,
    /// Hash of the elements in the order of a list, else of the sorted ones.
    digest: u64,
    /// Milliseconds since 1970.
    expires: Option<u64>,
}

/// All keys of all databases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    values: BTreeMap<(u64, String), Value>,
}

impl State {
    /// The state at `unix_ms`, without keys that have expired.
    pub(crate) fn at(&self, unix_ms: u64) -> Self {
        let lives = |value: &Value| value.expires.is_none_or(|at| at > unix_ms);
        let left = self.values.iter().filter(|(_, value)| lives(value));
        Self { values: left.map(|(key, value)| (key.clone(), value.clone())).collect() }
    }

    /// The keys that differ, for messages.
    pub(crate) fn difference(&self, other: &Self) -> Vec<String> {
        let mut names: Vec<_> = self.values.keys().chain(other.values.keys()).collect();
        names.sort();
        names.dedup();
        let differs = names.into_iter().filter(|name| self.values.get(name) != other.values.get(name));
        differs
            .map(|name| format!("{name:?}: {:?} not {:?}", self.values.get(name), other.values.get(name)))
            .collect()
    }
}

/// The commands that build a key.
#[derive(Default)]
struct Gathered {
    kind: String,
    parts: Vec<Vec<u8>>,
    expires: Option<u64>,
}

/// The state of a shard, read as a snapshot would read it. No snapshot may be running.
pub(crate) fn state(shard: &mut Shard) -> State {
    let mut gathered: BTreeMap<(u64, String), Gathered> = BTreeMap::new();
    shard.begin_snapshot();
    while !shard.snapshot_slice(0, usize::MAX, &mut |record| {
        let mut reader = Reader::new(record, SNAPSHOT, 0).expect("a snapshot record");
        reader.number().expect("its sequence");
        let mut arguments = Vec::new();
        while let Some(database) = reader.effect(&mut arguments).expect("a whole effect") {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let entry = gathered.entry((database, text(arguments[1]))).or_default();
            if arguments[0] == b"PEXPIREAT" {
                entry.expires = text(arguments[2]).parse().ok();
            } else {
                entry.kind = text(arguments[0]);
                entry.parts.extend(arguments[2..].iter().map(|part| part.to_vec()));
            }
        }
    }) {}
    let values = gathered.into_iter().map(|(name, Gathered { kind, parts, expires })| {
        let width = if matches!(kind.as_str(), "HSET" | "ZADD") { 2 } else { 1 };
        let mut elements: Vec<&[Vec<u8>]> = parts.chunks(width).collect();
        if kind != "RPUSH" {
            elements.sort();
        }
        let mut hasher = DefaultHasher::new();
        elements.hash(&mut hasher);
        (name, Value { kind, elements: elements.len(), digest: hasher.finish(), expires })
    });
    State { values: values.collect() }
}
