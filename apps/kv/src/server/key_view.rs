//! The keys as files, for whoever may read the store's area: `keys/DATABASE/KEY`
//! (`docs/spec/namespace.md`).
//!
//! 1. A string is a file of its bytes. Of another value the file has a line for each element, in
//!    quotes and escaped: field and value of a hash, member and score of a sorted set. Its length
//!    is not known without making it, so it says 0.
//! 2. One question is answered in a turn, and none costs more than a slice of work: [`SCANNED`]
//!    keys of a listing, a value of [`MOST_ELEMENTS`] elements. A larger one is refused. Looking
//!    leaves no trace: it is no access that eviction would count.
//! 3. Nobody is told of a write that a crash can undo: as a reply does, what is seen waits until
//!    everything that it could show is durable.

use std::collections::VecDeque;

use sietch::view::{FileAttributes, Unavailable, View, ViewError, ViewPage, ViewTarget, escape, unescape};
use sietch::{Grant, Lease, PreparedReply};

use crate::index::Keyed as _;
use crate::keyspace::{Entry, Store};
use crate::shard::Now;
use crate::value::Value;

/// Keys looked at for one page.
const SCANNED: usize = 128;
/// Of these, as many as fit a page whatever their names are.
const CERTAIN: usize = sietch::protocol::view::MAX_NAME_BYTES / sietch::protocol::view::MAX_FILE_NAME;
/// Pieces of a listing without any key that has a file name, before an empty page is given.
const TRIES: usize = 8;
/// Elements of a value that is shown as text: with more it would hold up a turn.
const MOST_ELEMENTS: usize = 4096;
/// Bytes of it.
const MOST_TEXT: usize = 1 << 20;
/// The directory of databases.
const KEYS: &str = "keys";

/// The grant of the area, and what was seen and waits for the disk.
pub(super) struct KeyView {
    grant: Grant,
    seen: VecDeque<(u64, PreparedReply)>,
}

impl KeyView {
    /// Shows the store to whoever may read the area of `grant`.
    pub fn new(grant: Grant) -> Self {
        Self { grant, seen: VecDeque::new() }
    }

    /// Answers a question, if there is one and `sequence` says that all effects so far are in the
    /// log up to that record. Says whether another turn should come soon.
    pub fn look(&mut self, lease: &Lease, store: &Store, now: Now, sequence: Option<u64>) -> bool {
        if !lease.has_view_request() {
            return false;
        }
        let Some(sequence) = sequence else { return true };
        let (sighting, more) = lease.prepare_view_reply(&self.grant, &mut Keys { store, now });
        self.seen.extend(sighting.map(|sighting| (sequence, sighting)));
        more
    }

    /// Tells what waited for records up to `durable`.
    pub fn tell(&mut self, lease: &Lease, durable: u64) {
        while self.seen.front().is_some_and(|(sequence, _)| *sequence <= durable) {
            if let Some((_, sighting)) = self.seen.pop_front() {
                lease.send_view_reply(sighting);
            }
        }
    }
}

/// The tree.
struct Keys<'a> {
    store: &'a Store,
    now: Now,
}

/// A node of it.
enum Node<'a> {
    Root,
    Databases,
    Database(usize),
    Key(&'a Value),
}

impl<'a> Keys<'a> {
    fn is_alive(&self, entry: &Entry) -> bool {
        entry.expire_at() > self.now.unix_ms
    }

    fn find(&self, at: &ViewTarget<'_>) -> Result<Node<'a>, Unavailable> {
        let missing = || Unavailable::Refused(ViewError::Missing);
        match at.path {
            [] => Ok(Node::Root),
            [KEYS] => Ok(Node::Databases),
            [KEYS, number, rest @ ..] if rest.len() <= 1 => {
                let database = number.parse().ok().filter(|database: &usize| database.to_string() == *number);
                let database = database.filter(|&database| database < self.store.databases().len());
                let database = database.ok_or_else(missing)?;
                let [name] = rest else { return Ok(Node::Database(database)) };
                let key = unescape(name).ok_or_else(missing)?;
                let entry = self.store.databases()[database].index().get(&key);
                let entry = entry.filter(|entry| self.is_alive(entry)).ok_or_else(missing)?;
                Ok(Node::Key(&entry.value))
            }
            _ => Err(missing()),
        }
    }

    /// Keys of `database` from `cursor` on, about `count` of them; nothing if they do not fit.
    fn scan(&self, database: usize, cursor: u64, count: usize) -> Option<(ViewPage, u64)> {
        let (mut page, mut fits) = (ViewPage::default(), true);
        let next = self.store.databases()[database].index().scan(cursor, count, &mut |entry: &Entry| {
            if let Some(name) = escape(entry.key()).filter(|_| self.is_alive(entry)) {
                fits &= page.push(&name, shown(&entry.value));
            }
        });
        fits.then_some((page, next))
    }
}

fn shown(value: &Value) -> FileAttributes {
    match value {
        Value::String(string) => FileAttributes::file(string.len() as u64),
        _ => FileAttributes::file(0),
    }
}

impl View for Keys<'_> {
    fn stat(&mut self, at: &ViewTarget<'_>) -> Result<FileAttributes, Unavailable> {
        match self.find(at)? {
            Node::Key(value) => Ok(shown(value)),
            _ => Ok(FileAttributes::DIRECTORY),
        }
    }

    fn list(&mut self, at: &ViewTarget<'_>, mut cursor: u64) -> Result<ViewPage, Unavailable> {
        let mut page = ViewPage::default();
        match self.find(at)? {
            Node::Root => {
                page.push(KEYS, FileAttributes::DIRECTORY);
            }
            Node::Databases => {
                for (number, database) in self.store.databases().iter().enumerate() {
                    if number == 0 || !database.index().is_empty() {
                        page.push(&number.to_string(), FileAttributes::DIRECTORY);
                    }
                }
            }
            Node::Database(database) => {
                for _ in 0..TRIES {
                    let found = self.scan(database, cursor, SCANNED);
                    let found = found.or_else(|| self.scan(database, cursor, CERTAIN));
                    let (some, next) = found.ok_or(ViewError::Failed("its names are too long".to_owned()))?;
                    page = some;
                    page.next = (next != 0).then_some(next);
                    cursor = next;
                    if next == 0 || !page.entries.is_empty() {
                        break;
                    }
                }
            }
            Node::Key(_) => return Err(ViewError::NotDirectory.into()),
        }
        Ok(page)
    }

    fn read(&mut self, at: &ViewTarget<'_>, offset: u64, length: usize) -> Result<Vec<u8>, Unavailable> {
        let Node::Key(value) = self.find(at)? else { return Err(ViewError::IsDirectory.into()) };
        let part = |bytes: &[u8]| {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
            bytes[start..].iter().take(length).copied().collect()
        };
        match value {
            Value::String(string) => Ok(part(string.bytes(&mut Default::default()))),
            other => Ok(part(&text(other)?)),
        }
    }
}

/// A value that is no string, as text.
fn text(value: &Value) -> Result<Vec<u8>, Unavailable> {
    let (elements, bytes) = (value.len(), value.memory());
    if elements > MOST_ELEMENTS || bytes > MOST_TEXT {
        let why =
            format!("a {} of {elements} elements is too large to be shown; ask the store", value.type_name());
        return Err(ViewError::Failed(why).into());
    }
    let mut text = Vec::new();
    value.commands(b"", &mut |command: &[&[u8]]| {
        // The command, the key, and what it is made of.
        let (parts, score) = match command[0] {
            b"HSET" => (2, false),
            b"ZADD" => (2, true),
            _ => (1, false),
        };
        for element in command.get(2..).unwrap_or_default().chunks(parts) {
            match *element {
                [number, member] if score => {
                    quoted(member, &mut text);
                    text.push(b' ');
                    text.extend_from_slice(number);
                }
                [field, value] => {
                    quoted(field, &mut text);
                    text.push(b' ');
                    quoted(value, &mut text);
                }
                _ => element.iter().for_each(|element| quoted(element, &mut text)),
            }
            text.push(b'\n');
        }
    });
    Ok(text)
}

fn quoted(bytes: &[u8], text: &mut Vec<u8>) {
    text.push(b'"');
    text.extend(bytes.escape_ascii());
    text.push(b'"');
}

#[cfg(test)]
mod tests;
