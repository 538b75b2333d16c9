//! A value that is read: of an entry that holds one, or of a string that is stored in its key's
//! record.

use super::counted_tree::compare;
use super::hash::HashRef;
use super::list::ListRef;
use super::set::SetRef;
use super::size::{EFFECT_HEAD, argument};
use super::sorted_set::SortedSetRef;
use super::string::StringRef;
use crate::foundation::text::number::{Digits, format_double};

/// Elements in one command of [`ValueRef::commands`] at least. A command has as many bytes of
/// elements as the key has, too, so that a long key that is repeated in each of them at most
/// doubles what a value takes.
pub(super) const COMMAND_ELEMENTS: usize = 64;

/// A value that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ValueRef<'a> {
    /// Bytes.
    String(StringRef<'a>),
    /// A sequence.
    List(ListRef<'a>),
    /// Distinct members.
    Set(SetRef<'a>),
    /// Named fields.
    Hash(HashRef<'a>),
    /// Distinct members with scores.
    SortedSet(SortedSetRef<'a>),
}

impl ValueRef<'_> {
    /// The name that TYPE shows.
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Self::String(_) => "string",
            Self::List(_) => "list",
            Self::Set(_) => "set",
            Self::Hash(_) => "hash",
            Self::SortedSet(_) => "zset",
        }
    }

    /// The name that OBJECT ENCODING shows.
    pub(crate) fn encoding(self) -> &'static str {
        match self {
            Self::String(string) => string.encoding(),
            Self::List(_) => "quicklist",
            Self::Set(set) => set.encoding(),
            Self::Hash(hash) => hash.encoding(),
            Self::SortedSet(sorted_set) => sorted_set.encoding(),
        }
    }

    /// Elements; a string's bytes.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::String(string) => string.len(),
            Self::List(list) => list.len(),
            Self::Set(set) => set.len(),
            Self::Hash(hash) => hash.len(),
            Self::SortedSet(sorted_set) => sorted_set.len(),
        }
    }

    /// Whether this is a collection without elements, which no key may hold. A string never is.
    pub(crate) fn is_empty(self) -> bool {
        !matches!(self, Self::String(_)) && self.len() == 0
    }

    /// Bytes on the heap of a value of its own. Costs nothing.
    pub(crate) fn memory(self) -> usize {
        match self {
            Self::String(string) => string.memory(),
            Self::List(list) => list.memory(),
            Self::Set(set) => set.memory(),
            Self::Hash(hash) => hash.memory(),
            Self::SortedSet(zset) => zset.memory(),
        }
    }

    /// Bytes that [`ValueRef::commands`] takes at most in effects, under a key of `key` bytes.
    /// Costs nothing.
    pub(crate) fn dumped(self, key: usize) -> usize {
        let (elements, content) = match self {
            Self::String(string) => (1, argument(string.len())),
            Self::List(list) => (list.len(), list.content()),
            Self::Set(set) => (set.len(), set.content()),
            Self::Hash(hash) => (2 * hash.len(), hash.content()),
            Self::SortedSet(sorted_set) => (2 * sorted_set.len(), sorted_set.content()),
        };
        let commands = elements / COMMAND_ELEMENTS + 1;
        // A command but the last has as many bytes of elements as of key.
        let keys = (commands * argument(key)).min(content + 2 * argument(key));
        content + keys + commands * EFFECT_HEAD
    }

    /// Elements that dropping this value frees one by one, which decides whether it is freed in
    /// slices.
    pub(crate) fn free_effort(self) -> usize {
        match self {
            Self::String(_) => 1,
            _ => self.len(),
        }
    }

    /// Calls `emit` with commands that build this value under `key`, which must not exist before:
    /// SET, RPUSH, SADD, HSET or ZADD, with a bounded number of elements each.
    pub(crate) fn commands(self, key: &[u8], emit: &mut dyn FnMut(&[&[u8]])) {
        match self {
            Self::String(string) => {
                let mut digits = Digits::default();
                emit(&[b"SET", key, string.bytes(&mut digits)]);
            }
            Self::List(list) => {
                let mut batch = Batch::new(b"RPUSH", key, emit);
                list.iter().for_each(|element| batch.push(&[&element]));
                batch.finish();
            }
            Self::Set(set) => {
                let mut batch = Batch::new(b"SADD", key, emit);
                set.for_each(&mut |member| batch.push(&[member]));
                batch.finish();
            }
            Self::Hash(hash) => {
                let mut batch = Batch::new(b"HSET", key, emit);
                hash.iter().for_each(|field| batch.push(&[&field.name, &field.value]));
                batch.finish();
            }
            Self::SortedSet(sorted_set) => {
                let mut batch = Batch::new(b"ZADD", key, emit);
                for (name, score) in sorted_set.range(0, sorted_set.len(), false) {
                    batch.push(&[format_double(score).as_bytes(), &name]);
                }
                batch.finish();
            }
        }
    }
}

/// The part of a collection that [`ValueRef::commands_from`] has emitted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Progress {
    /// Of a set or a hash: what its index has before this cursor.
    Cursor(u64),
    /// Of a list: so many elements from its front.
    Elements(usize),
    /// Of a sorted set: what does not come after this member.
    Member {
        /// Its score when it was emitted.
        score: f64,
        /// Its name.
        name: Box<[u8]>,
    },
}

impl ValueRef<'_> {
    /// As [`ValueRef::commands`], for the elements that are not in `done` (`None`: for all), until
    /// the commands hold `budget` bytes of elements. Returns what is done then, or `None` at the
    /// end. A string is emitted whole.
    pub(crate) fn commands_from(
        self,
        key: &[u8],
        done: Option<&Progress>,
        budget: usize,
        emit: &mut dyn FnMut(&[&[u8]]),
    ) -> Option<Progress> {
        let from = if let Some(Progress::Cursor(cursor)) = done { *cursor } else { 0 };
        let cursor = |next: u64| (next != 0).then_some(Progress::Cursor(next));
        match self {
            Self::String(_) => {
                self.commands(key, emit);
                None
            }
            Self::List(list) => {
                let mut end = if let Some(Progress::Elements(count)) = done { *count } else { 0 };
                let mut batch = Batch::new(b"RPUSH", key, emit);
                let elements = list.iter_from(end);
                end += elements.take_while(|element| batch.push_within(&[element], budget)).count();
                batch.finish();
                (end < list.len()).then_some(Progress::Elements(end))
            }
            Self::Set(set) => {
                let mut batch = Batch::new(b"SADD", key, emit);
                let next = set.scan_while(from, &mut |member| {
                    batch.push(&[member]);
                    batch.total < budget
                });
                batch.finish();
                cursor(next)
            }
            Self::Hash(hash) => {
                let mut batch = Batch::new(b"HSET", key, emit);
                let next = hash.scan_while(from, &mut |field| {
                    batch.push(&[&field.name, &field.value]);
                    batch.total < budget
                });
                batch.finish();
                cursor(next)
            }
            Self::SortedSet(set) => {
                let rank = match done {
                    Some(Progress::Member { score, name }) => set.partition_point(&|other, other_name| {
                        compare((other, other_name), (*score, name)).is_le()
                    }),
                    _ => 0,
                };
                let mut batch = Batch::new(b"ZADD", key, emit);
                let mut members = set.range(rank, set.len(), false);
                let last = members.by_ref().find(|(name, score)| {
                    batch.push(&[format_double(*score).as_bytes(), name]);
                    batch.total >= budget
                });
                batch.finish();
                members.next()?;
                last.map(|(name, score)| Progress::Member { score, name: (*name).into() })
            }
        }
    }
}

/// Gathers elements into commands of bounded length.
struct Batch<'a> {
    name: &'static [u8],
    key: &'a [u8],
    elements: Vec<Vec<u8>>,
    /// Bytes of the elements.
    bytes: usize,
    /// The same, with those of earlier commands.
    total: usize,
    emit: &'a mut dyn FnMut(&[&[u8]]),
}

impl<'a> Batch<'a> {
    fn new(name: &'static [u8], key: &'a [u8], emit: &'a mut dyn FnMut(&[&[u8]])) -> Self {
        Self { name, key, elements: Vec::new(), bytes: 0, total: 0, emit }
    }

    fn push(&mut self, parts: &[&[u8]]) {
        self.elements.extend(parts.iter().map(|part| part.to_vec()));
        let bytes = parts.iter().map(|part| part.len() + 1).sum::<usize>();
        self.bytes += bytes;
        self.total += bytes;
        if self.elements.len() >= COMMAND_ELEMENTS && self.bytes >= self.key.len() {
            self.finish();
        }
    }

    /// The same, unless `budget` bytes are reached already; whether the elements were added.
    fn push_within(&mut self, parts: &[&[u8]], budget: usize) -> bool {
        let within = self.total < budget;
        if within {
            self.push(parts);
        }
        within
    }

    fn finish(&mut self) {
        if self.elements.is_empty() {
            return;
        }
        let mut command: Vec<&[u8]> = vec![self.name, self.key];
        command.extend(self.elements.iter().map(Vec::as_slice));
        (self.emit)(&command);
        self.elements.clear();
        self.bytes = 0;
    }
}
