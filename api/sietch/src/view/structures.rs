//! Views of the persistent structures.
//!
//! 1. A map is a directory with a file for each key, whose name is the key as [`super::escape`]
//!    writes it. A key that is too long for a file name is left out.
//! 2. A queue is a directory with a file for each entry that is not acknowledged. The name is the
//!    entry's number, padded to one length so that names sort.
//! 3. A log is one file, `log`, with a line for each record: its sequence, a space, and its bytes.
//!    Backslashes, control characters and invalid UTF-8 are escaped as in Rust. The length is
//!    unknown without reading the log, so the file reports 0, as files of `/proc` do.
//! 4. A log is read from its device, at most [`RECORDS`] records in one iteration; until the bytes
//!    are there the result is [`Unavailable::Pending`]. Clients read forward, so the positions of
//!    up to [`READERS`] of them are kept. A client that reads elsewhere starts from the head of the
//!    log.

use sietch_disk::DiskQueue;
use sietch_persist::{Cursor, Log, Map, Queue, Read, Sequence};

use super::{FileAttributes, Unavailable, View, ViewError, ViewPage, ViewTarget, escape, unescape};

/// Records of a log that are read in one iteration.
const RECORDS: usize = 256;
/// Readers of one log whose positions are kept: each holds a buffer of the log.
const READERS: usize = 4;
/// Keys that are visited for one page.
const KEYS: usize = 256;
/// Digits of the largest sequence.
const DIGITS: usize = 20;

fn directory(at: &ViewTarget<'_>) -> Result<(), Unavailable> {
    if at.path.is_empty() { Ok(()) } else { Err(ViewError::NotDirectory.into()) }
}

/// The name of a file in a view without directories.
fn file<'a>(at: &ViewTarget<'a>) -> Result<&'a str, Unavailable> {
    match at.path {
        [] => Err(ViewError::IsDirectory.into()),
        [name] => Ok(name),
        _ => Err(ViewError::Missing.into()),
    }
}

fn slice(bytes: &[u8], offset: u64, length: usize) -> Vec<u8> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    bytes[start..].iter().take(length).copied().collect()
}

/// A map as a directory.
pub struct MapView<'a, D: DiskQueue>(pub &'a Map<D>);

impl<D: DiskQueue> MapView<'_, D> {
    fn value(&self, at: &ViewTarget<'_>) -> Result<&[u8], Unavailable> {
        let key = unescape(file(at)?).ok_or(ViewError::Missing)?;
        Ok(self.0.get(&key).ok_or(ViewError::Missing)?)
    }
}

impl<D: DiskQueue> View for MapView<'_, D> {
    fn stat(&mut self, at: &ViewTarget<'_>) -> Result<FileAttributes, Unavailable> {
        if at.path.is_empty() {
            return Ok(FileAttributes::DIRECTORY);
        }
        Ok(FileAttributes::file(self.value(at)?.len() as u64))
    }

    fn list(&mut self, at: &ViewTarget<'_>, cursor: u64) -> Result<ViewPage, Unavailable> {
        directory(at)?;
        let passed = usize::try_from(cursor).unwrap_or(usize::MAX);
        let mut found = ViewPage::default();
        for (number, (key, value)) in self.0.iter().enumerate().skip(passed) {
            let late = number - passed >= KEYS;
            let shown = FileAttributes::file(value.len() as u64);
            if late || escape(key).is_some_and(|name| !found.push(&name, shown)) {
                // A page has an entry, or is the last.
                if !found.entries.is_empty() {
                    found.next = Some(number as u64);
                    break;
                }
            }
        }
        Ok(found)
    }

    fn read(&mut self, at: &ViewTarget<'_>, offset: u64, length: usize) -> Result<Vec<u8>, Unavailable> {
        Ok(slice(self.value(at)?, offset, length))
    }
}

/// A queue as a directory.
pub struct QueueView<'a, D: DiskQueue>(pub &'a Queue<D>);

impl<D: DiskQueue> QueueView<'_, D> {
    fn payload(&self, at: &ViewTarget<'_>) -> Result<&[u8], Unavailable> {
        let name = file(at)?;
        let number: Sequence = name.parse().map_err(|_| ViewError::Missing)?;
        let mut entries = self.0.iter();
        let found = entries.find(|(sequence, ..)| *sequence == number && number_name(number) == name);
        Ok(found.ok_or(ViewError::Missing)?.1)
    }
}

fn number_name(number: Sequence) -> String {
    format!("{number:0DIGITS$}")
}

impl<D: DiskQueue> View for QueueView<'_, D> {
    fn stat(&mut self, at: &ViewTarget<'_>) -> Result<FileAttributes, Unavailable> {
        if at.path.is_empty() {
            return Ok(FileAttributes::DIRECTORY);
        }
        Ok(FileAttributes::file(self.payload(at)?.len() as u64))
    }

    fn list(&mut self, at: &ViewTarget<'_>, cursor: u64) -> Result<ViewPage, Unavailable> {
        directory(at)?;
        // Entries go away meanwhile: the next page begins with a number, not with a count.
        let entries = self.0.iter().filter(|(sequence, ..)| *sequence >= cursor);
        let mut page = ViewPage::default();
        for (sequence, payload, _) in entries {
            if !page.push(&number_name(sequence), FileAttributes::file(payload.len() as u64)) {
                page.next = Some(sequence);
                break;
            }
        }
        Ok(page)
    }

    fn read(&mut self, at: &ViewTarget<'_>, offset: u64, length: usize) -> Result<Vec<u8>, Unavailable> {
        Ok(slice(self.payload(at)?, offset, length))
    }
}

/// A reader of a log: its position in the text.
struct TextReader {
    cursor: Cursor,
    /// The byte of the text at which `lines` begins.
    at: u64,
    /// Text that was made and not yet read.
    lines: Vec<u8>,
    ended: bool,
}

/// The readers of a log, to be kept from one request to the next; [`LogView::over`] joins them with
/// the log.
#[derive(Default)]
pub struct LogView {
    readers: Vec<TextReader>,
}

impl std::fmt::Debug for LogView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogView").field("readers", &self.readers.len()).finish()
    }
}

/// The name of the file.
const LOG: &str = "log";

impl LogView {
    /// The view of `log`. The owner of the log continues to poll it.
    pub fn over<'a, D: DiskQueue>(&'a mut self, log: &'a mut Log<D>) -> impl View + 'a {
        Lines { view: self, log }
    }
}

struct Lines<'a, D: DiskQueue> {
    view: &'a mut LogView,
    log: &'a mut Log<D>,
}

fn failed(cause: impl std::fmt::Display) -> Unavailable {
    Unavailable::Error(ViewError::Failed(cause.to_string()))
}

/// `SEQUENCE BYTES`, escaped, and the end of the line.
fn line(sequence: Sequence, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{sequence} ").as_bytes());
    for chunk in payload.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' || c.is_control() {
                out.extend(c.escape_default().map(|c| c as u8));
            } else {
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        chunk.invalid().iter().for_each(|byte| out.extend(byte.escape_ascii()));
    }
    out.push(b'\n');
}

impl<D: DiskQueue> Lines<'_, D> {
    /// The index of the reader from which `offset` is reached soonest, the newest last; a fresh
    /// reader at the head if there is none.
    fn reader(&mut self, offset: u64) -> Result<usize, Unavailable> {
        let readers = &mut self.view.readers;
        let near = readers.iter().enumerate().filter(|(_, reader)| reader.at <= offset);
        if let Some((index, _)) = near.max_by_key(|(_, reader)| reader.at) {
            let reader = readers.remove(index);
            readers.push(reader);
        } else {
            if readers.len() == READERS {
                readers.remove(0);
            }
            let cursor = self.log.cursor(self.log.head()).map_err(failed)?;
            readers.push(TextReader { cursor, at: 0, lines: Vec::new(), ended: false });
        }
        Ok(readers.len() - 1)
    }
}

impl<D: DiskQueue> View for Lines<'_, D> {
    fn stat(&mut self, at: &ViewTarget<'_>) -> Result<FileAttributes, Unavailable> {
        match at.path {
            [] => Ok(FileAttributes::DIRECTORY),
            [LOG] => Ok(FileAttributes::file(0)),
            _ => Err(ViewError::Missing.into()),
        }
    }

    fn list(&mut self, at: &ViewTarget<'_>, _cursor: u64) -> Result<ViewPage, Unavailable> {
        directory(at)?;
        let mut page = ViewPage::default();
        page.push(LOG, FileAttributes::file(0));
        Ok(page)
    }

    fn read(&mut self, at: &ViewTarget<'_>, offset: u64, length: usize) -> Result<Vec<u8>, Unavailable> {
        if file(at)? != LOG {
            return Err(ViewError::Missing.into());
        }
        let index = self.reader(offset)?;
        let reader = &mut self.view.readers[index];
        for _ in 0..RECORDS {
            // Text before `offset` is not needed any more.
            let passed = usize::try_from(offset - reader.at).unwrap_or(usize::MAX).min(reader.lines.len());
            reader.lines.drain(..passed);
            reader.at += passed as u64;
            if (reader.at == offset && reader.lines.len() >= length) || reader.ended {
                let bytes = slice(&reader.lines, offset - reader.at, length);
                if reader.ended {
                    // The log may have grown when the end is read again.
                    reader.ended = false;
                }
                return Ok(bytes);
            }
            match self.log.read(&mut reader.cursor) {
                Ok(Read::Record(sequence, payload)) => line(sequence, payload, &mut reader.lines),
                Ok(Read::Waiting) => return Err(Unavailable::Pending),
                Ok(Read::End) => reader.ended = true,
                Err(error) => {
                    self.view.readers.remove(index);
                    return Err(failed(error));
                }
            }
        }
        Err(Unavailable::Pending)
    }
}
