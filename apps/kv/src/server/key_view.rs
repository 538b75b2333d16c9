//! The key view: keys as files (`keys/DATABASE/KEY`), for applications that may read the store's
//! area (`docs/spec/namespace.md`).
//!
//! 1. A string is a file of its bytes. The file of another value has a line for each element,
//!    quoted and escaped: field and value of a hash, member and score of a sorted set. Its length
//!    is unknown until it is made, so it is shown as 0.
//! 2. One request is answered per iteration, and each costs at most a slice of work: [`SCANNED`]
//!    keys of a listing, or a value of [`MOST_ELEMENTS`] elements. A larger value is refused. Reads
//!    through the view do not count as accesses for eviction.
//! 3. No answer shows a write that a crash can undo: like a reply, it waits until everything that
//!    it could show is durable.
//! 4. With several cores, a request waits until the shards of all are gathered, as for an exclusive
//!    section. A listing goes through the shards in order, and its cursor has the number of the
//!    shard above the [`CURSOR_BITS`] of the position in it.

use std::collections::VecDeque;

use sietch::view::{FileAttributes, Unavailable, View, ViewError, ViewPage, ViewTarget, escape, unescape};
use sietch::{Grant, Lease, PreparedReply};

use crate::data::index::{CURSOR_BITS, Keyed as _};
use crate::data::keyspace::{Entry, Store};
use crate::data::value::ValueRef;
use crate::shard::{Now, Placement};

/// Keys scanned for one page.
const SCANNED: usize = 128;
/// Keys that fit a page whatever their names are.
const CERTAIN: usize = sietch::protocol::view::MAX_NAME_BYTES / sietch::protocol::view::MAX_FILE_NAME;
/// Scans that find no key with a valid file name, before an empty page is returned.
const TRIES: usize = 8;
/// Most elements of a value that is shown as text: a larger one would make an iteration long.
const MOST_ELEMENTS: usize = 4096;
/// Most bytes of such a value.
const MOST_TEXT: usize = 1 << 20;
/// The directory of databases.
const KEYS: &str = "keys";

/// The grant of the area, and the answers that wait for the disk.
pub(super) struct KeyView {
    grant: Grant,
    pending: VecDeque<(u64, PreparedReply)>,
}

impl KeyView {
    /// Shows the store to applications that may read the area of `grant`.
    pub(super) fn new(grant: Grant) -> Self {
        Self { grant, pending: VecDeque::new() }
    }

    /// Whether there is a request.
    pub(super) fn is_wanted(&self, lease: &Lease) -> bool {
        lease.has_view_request()
    }

    /// Answers a request from the data sets of all shards. All effects so far are in the log up to
    /// the record `sequence`. Returns whether another iteration should follow soon.
    pub(super) fn answer(&mut self, lease: &Lease, stores: &[&Store], now: Now, sequence: u64) -> bool {
        let (reply, more) = lease.prepare_view_reply(&self.grant, &mut Keys { stores, now });
        self.pending.extend(reply.map(|reply| (sequence, reply)));
        more
    }

    /// Sends the answers that waited for records up to `durable`.
    pub(super) fn send_answers(&mut self, lease: &Lease, durable: u64) {
        while self.pending.front().is_some_and(|(sequence, _)| *sequence <= durable) {
            if let Some((_, reply)) = self.pending.pop_front() {
                lease.send_view_reply(reply);
            }
        }
    }
}

/// The tree of directories and files.
struct Keys<'a> {
    /// Of each shard.
    stores: &'a [&'a Store],
    now: Now,
}

/// A node of the tree.
enum Node<'a> {
    Root,
    Databases,
    Database(usize),
    Key(ValueRef<'a>),
}

impl<'a> Keys<'a> {
    fn is_alive(&self, entry: &Entry) -> bool {
        entry.expire_at() > self.now.unix_ms
    }

    fn find(&self, at: &ViewTarget<'_>) -> Result<Node<'a>, Unavailable> {
        let missing = || Unavailable::Error(ViewError::Missing);
        match at.path {
            [] => Ok(Node::Root),
            [KEYS] => Ok(Node::Databases),
            [KEYS, number, rest @ ..] if rest.len() <= 1 => {
                let database = number.parse().ok().filter(|database: &usize| database.to_string() == *number);
                let database = database.filter(|&database| database < self.databases());
                let database = database.ok_or_else(missing)?;
                let [name] = rest else { return Ok(Node::Database(database)) };
                let key = unescape(name).ok_or_else(missing)?;
                let owner = Placement::new(0, self.stores.len()).shard_of(&key);
                let entry = self.stores[owner].find(database, &key);
                let entry = entry.filter(|entry| self.is_alive(entry)).ok_or_else(missing)?;
                Ok(Node::Key(entry.value()))
            }
            _ => Err(missing()),
        }
    }

    fn databases(&self) -> usize {
        self.stores.first().map_or(0, |store| store.database_count())
    }

    /// About `count` keys of `database` from `cursor` on, or `None` if they do not fit a page.
    fn scan(&self, database: usize, cursor: u64, count: usize) -> Option<(ViewPage, u64)> {
        let (mut page, mut fits) = (ViewPage::default(), true);
        let shard = cursor >> CURSOR_BITS;
        let Some(store) = self.stores.get(shard as usize) else { return Some((page, 0)) };
        let next = store.scan(database, cursor, count, &mut |entry: &Entry| {
            if let Some(name) = escape(entry.key()).filter(|_| self.is_alive(entry)) {
                fits &= page.push(&name, attributes(entry.value()));
            }
        });
        let last = shard as usize + 1 == self.stores.len();
        let next = match next {
            0 if last => 0,
            0 => (shard + 1) << CURSOR_BITS,
            next => next,
        };
        fits.then_some((page, next))
    }
}

fn attributes(value: ValueRef<'_>) -> FileAttributes {
    match value {
        ValueRef::String(string) => FileAttributes::file(string.len() as u64),
        _ => FileAttributes::file(0),
    }
}

impl View for Keys<'_> {
    fn stat(&mut self, at: &ViewTarget<'_>) -> Result<FileAttributes, Unavailable> {
        match self.find(at)? {
            Node::Key(value) => Ok(attributes(value)),
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
                for number in 0..self.databases() {
                    if number == 0 || self.stores.iter().any(|store| store.len(number) > 0) {
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
            ValueRef::String(string) => Ok(part(string.bytes(&mut Default::default()))),
            other => Ok(part(&text(other)?)),
        }
    }
}

/// A value other than a string, as text.
fn text(value: ValueRef<'_>) -> Result<Vec<u8>, Unavailable> {
    let (elements, bytes) = (value.len(), value.memory());
    if elements > MOST_ELEMENTS || bytes > MOST_TEXT {
        let why =
            format!("a {} of {elements} elements is too large to be shown; ask the store", value.type_name());
        return Err(ViewError::Failed(why).into());
    }
    let mut text = Vec::new();
    value.commands(b"", &mut |command: &[&[u8]]| {
        // The command, the key, and the elements.
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
