//! Views of areas: requests to their holders, and a short-lived cache of the replies.
//!
//! 1. The attributes of a view's paths are cached as long as the daemon's replies are, also those
//!    from listings: `ls -l` needs one request for all entries.
//! 2. An owner that has not answered in time gets no further request for [`QUIET`]: callers get
//!    ETIMEDOUT at once.
//! 3. A listing is read page by page, on the kernel's demand, so that it needs little memory
//!    however long it is. A listing of more than [`MOST_ENTRIES`] entries, or of [`MOST_EMPTY`]
//!    empty pages, is cut off: a hostile owner could invent entries for ever.
//! 4. The last piece read of an open file is cached, so that a read at the end of the file needs no
//!    request.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::Errno;
use sietch_protocol::message::MAX_PIECE;
use sietch_protocol::{
    ErrorKind, FileAttributes, FileKind, ViewEntry, ViewOperation, ViewPage, ViewReply, ViewRequest,
};

use super::areas::FRESH;
use super::error::{RequestError, errno};
use super::workers::ReconnectingClient;

/// How long an owner that did not answer gets no further request.
const QUIET: Duration = Duration::from_secs(1);
/// Paths that are kept; at more, all are forgotten.
const MOST_KEPT: usize = 65_536;
/// The most entries of a directory that are listed.
const MOST_ENTRIES: u64 = 4_000_000;
/// Pages in a row without an entry.
const MOST_EMPTY: usize = 64;
/// The offset of a directory's first entry: `.` and `..` come before.
const FIRST: u64 = 2;

/// A path of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Path {
    /// The area's path.
    pub area: String,
    /// Within its view; empty for the root.
    pub within: String,
}

impl Path {
    /// The entry `name` of this directory.
    pub(super) fn child(&self, name: &str) -> Self {
        let within = if self.within.is_empty() { name.to_owned() } else { format!("{}/{name}", self.within) };
        Self { area: self.area.clone(), within }
    }
}

/// The owners' recent replies.
#[derive(Default)]
pub(super) struct Views {
    kept: Mutex<HashMap<Path, (Instant, FileAttributes)>>,
    quiet: Mutex<HashMap<String, Instant>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Views {
    /// The attributes of `path`, if a recent reply has them.
    pub(super) fn fresh(&self, path: &Path) -> Option<FileAttributes> {
        if path.within.is_empty() {
            return Some(FileAttributes::DIRECTORY);
        }
        locked(&self.kept).get(path).filter(|(at, _)| at.elapsed() < FRESH).map(|(_, shown)| *shown)
    }

    fn keep(&self, path: Path, shown: FileAttributes) {
        let mut kept = locked(&self.kept);
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(path, (Instant::now(), shown));
    }

    fn request(
        &self,
        client: &mut ReconnectingClient,
        path: &Path,
        operation: ViewOperation,
    ) -> Result<(ViewReply, Vec<u8>), Errno> {
        if locked(&self.quiet).get(&path.area).is_some_and(|since| since.elapsed() < QUIET) {
            return Err(Errno::ETIMEDOUT);
        }
        let request = ViewRequest { path: path.within.clone(), operation };
        let reply = client.request(|connection| connection.view(&path.area, request.clone()));
        if let Err(RequestError::Refused(error)) = &reply
            && error.kind == ErrorKind::Silent
        {
            locked(&self.quiet).insert(path.area.clone(), Instant::now());
        }
        reply.map_err(|error| errno(&error))
    }

    /// The kind of `path`.
    ///
    /// # Errors
    /// The errno for the caller.
    pub(super) fn attributes(
        &self,
        client: &mut ReconnectingClient,
        path: &Path,
    ) -> Result<FileAttributes, Errno> {
        if let Some(shown) = self.fresh(path) {
            return Ok(shown);
        }
        match self.request(client, path, ViewOperation::Stat)? {
            (ViewReply::Stat(shown), _) => {
                self.keep(path.clone(), shown);
                Ok(shown)
            }
            _ => Err(Errno::EIO),
        }
    }

    fn page(&self, client: &mut ReconnectingClient, path: &Path, cursor: u64) -> Result<ViewPage, Errno> {
        match self.request(client, path, ViewOperation::List { cursor })? {
            (ViewReply::Page(page), _) => {
                for ViewEntry { name, attributes: shown } in &page.entries {
                    self.keep(path.child(name), *shown);
                }
                Ok(page)
            }
            _ => Err(Errno::EIO),
        }
    }
}

/// A file of a view that is open.
pub(super) struct OpenFile {
    path: Path,
    /// The piece that was read last: its first byte, and whether the file ends with it.
    last: Mutex<(u64, Vec<u8>, bool)>,
}

impl OpenFile {
    /// Opens `path`.
    pub(super) fn new(path: Path) -> Self {
        Self { path, last: Mutex::new((0, Vec::new(), false)) }
    }

    /// At most `size` bytes from `offset` on.
    ///
    /// # Errors
    /// The errno for the reader. If the file or its owner has disappeared since the opening, this
    /// is an input error.
    pub(super) fn read(
        &self,
        views: &Views,
        client: &mut ReconnectingClient,
        offset: u64,
        size: u32,
    ) -> Result<Vec<u8>, Errno> {
        let mut last = locked(&self.last);
        let (from, bytes, ends) = &*last;
        if let Some(skipped) = offset.checked_sub(*from).and_then(|skipped| usize::try_from(skipped).ok())
            && skipped <= bytes.len()
            && (*ends || bytes.len() - skipped >= size as usize)
        {
            let rest: Vec<u8> = bytes[skipped..].iter().take(size as usize).copied().collect();
            if rest.is_empty() {
                // A reader that reads the end once more checks whether the file has grown.
                last.2 = false;
            }
            return Ok(rest);
        }
        let length = size.min(MAX_PIECE);
        let reply = views.request(client, &self.path, ViewOperation::Read { offset, length });
        let (_, bytes) = reply.map_err(|errno| match errno {
            Errno::ENOENT => Errno::EIO,
            other => other,
        })?;
        let ends = bytes.len() < length as usize;
        *last = (offset, bytes.clone(), ends);
        Ok(bytes)
    }
}

/// A directory of a view that is being listed.
pub(super) struct OpenDirectory {
    /// Its path.
    pub path: Path,
    stream: Mutex<Stream>,
}

struct Stream {
    entries: Vec<ViewEntry>,
    /// The offset of the first of them.
    first: u64,
    /// The start of the next page; nothing after the last.
    next: Option<u64>,
}

impl Stream {
    fn new() -> Self {
        Self { entries: Vec::new(), first: FIRST, next: Some(0) }
    }
}

impl OpenDirectory {
    /// Opens `path`.
    pub(super) fn new(path: Path) -> Self {
        Self { path, stream: Mutex::new(Stream::new()) }
    }

    /// Entries from `offset` on, which is [`FIRST`] for the first; none at the end.
    ///
    /// # Errors
    /// The errno for the reader.
    pub(super) fn entries(
        &self,
        views: &Views,
        client: &mut ReconnectingClient,
        offset: u64,
    ) -> Result<Vec<ViewEntry>, Errno> {
        let mut stream = locked(&self.stream);
        if offset < stream.first {
            // Back to the start, or to the middle, which can be reached only from the start.
            *stream = Stream::new();
        }
        let mut empty = 0;
        loop {
            let end = stream.first + stream.entries.len() as u64;
            if offset < end {
                let passed = usize::try_from(offset - stream.first).map_err(|_| Errno::EIO)?;
                return Ok(stream.entries[passed..].to_vec());
            }
            let Some(cursor) = stream.next else { return Ok(Vec::new()) };
            let page = views.page(client, &self.path, cursor)?;
            empty = if page.entries.is_empty() { empty + 1 } else { 0 };
            if end > MOST_ENTRIES || empty > MOST_EMPTY {
                return Err(Errno::EIO);
            }
            *stream = Stream { entries: page.entries, first: end, next: page.next };
        }
    }
}

/// Whether it has entries.
pub(super) fn is_directory(shown: FileAttributes) -> bool {
    shown.kind == FileKind::Directory
}
