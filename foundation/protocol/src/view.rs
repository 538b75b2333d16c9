//! Views: the contents of a storage area as files, served by its holder.
//!
//! 1. A view is a tree. Its root is the path without components. A directory is listed a page at a
//!    time, a file is read a piece at a time.
//! 2. A client sends a [`ViewRequest`] to the daemon, which passes it to the holder and the
//!    [`ViewReply`] back. Bytes of a file travel as sealed memory beside the reply
//!    ([`crate::sealed`]).
//! 3. A reply is the holder's claim about its own data. The daemon checks that it fits the request
//!    ([`ViewReply::check`]), that it is bounded, and that its names are file names.
//! 4. A listing goes forward: each page begins at a larger cursor than the one before. The client
//!    bounds the number of pages.
//! 5. [`escape`] writes any bytes as a file name: bytes that a file name cannot contain become `%`
//!    and two digits.

use serde::{Deserialize, Serialize};

use crate::limits::{MAX_PIECE, shown};

/// The longest name of a file, in bytes: Linux's.
pub const MAX_FILE_NAME: usize = 255;
/// The longest path within a view, in bytes.
pub(crate) const MAX_PATH: usize = 1024;
/// The most components of a path.
pub(crate) const MAX_DEPTH: usize = 16;
/// The most entries of a page.
pub(crate) const MAX_ENTRIES: usize = 256;
/// The most bytes of names of a page: with six bytes for each that JSON escapes, and numbers beside
/// each name, it fits a frame.
pub const MAX_NAME_BYTES: usize = 6 << 10;

/// A request to a holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewRequest {
    /// Components with `/` between them; empty for the root.
    pub path: String,
    /// The query about it.
    pub operation: ViewOperation,
}

/// What a request does with its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ViewOperation {
    /// Its attributes.
    Stat,
    /// Its entries.
    List {
        /// 0, or the position of the next page that the page before returned.
        cursor: u64,
    },
    /// Its bytes.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes, at most [`MAX_PIECE`].
        length: u32,
    },
}

/// Of a file of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// It has entries.
    Directory,
    /// It has bytes.
    File,
}

/// What a file of a view is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAttributes {
    /// File or directory.
    pub kind: FileKind,
    /// Bytes; 0 also where the size is unknown without reading the file.
    pub size: u64,
}

impl FileAttributes {
    /// A directory.
    pub const DIRECTORY: Self = Self { kind: FileKind::Directory, size: 0 };

    /// A file of `size` bytes.
    pub fn file(size: u64) -> Self {
        Self { kind: FileKind::File, size }
    }
}

/// A file in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewEntry {
    /// Its name.
    pub name: String,
    /// What it is.
    pub attributes: FileAttributes,
}

/// Some entries of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewPage {
    /// In any order.
    pub entries: Vec<ViewEntry>,
    /// Where the next page begins, larger than where this one did; nothing at the end.
    pub next: Option<u64>,
}

impl ViewPage {
    /// Adds an entry. Returns whether it had room. A name that no file can have is left out.
    pub fn push(&mut self, name: &str, attributes: FileAttributes) -> bool {
        if !is_file_name(name) {
            return true;
        }
        let bytes: usize = self.entries.iter().map(|entry| entry.name.len()).sum();
        let room = self.entries.len() < MAX_ENTRIES && bytes + name.len() <= MAX_NAME_BYTES;
        if room {
            self.entries.push(ViewEntry { name: name.to_owned(), attributes });
        }
        room
    }
}

/// A holder's reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ViewReply {
    /// To [`ViewOperation::Stat`].
    Stat(FileAttributes),
    /// To [`ViewOperation::List`].
    Page(ViewPage),
    /// To [`ViewOperation::Read`]. Descriptor: the bytes, sealed; fewer than requested only at the
    /// end of the file.
    Piece,
}

/// Why a holder has no reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum ViewError {
    /// There is nothing at that path.
    #[error("there is no such file")]
    Missing,
    /// It is a file, and the query was for entries.
    #[error("it is no directory")]
    NotDirectory,
    /// It is a directory, and the query was for bytes.
    #[error("it is a directory")]
    IsDirectory,
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl ViewError {
    /// The reason with control characters escaped, cut to a bounded length.
    pub fn shown(&self) -> String {
        shown(&self.to_string())
    }
}

/// Whether a file can have the name `name`: 1 to [`MAX_FILE_NAME`] bytes without `/` and control
/// characters, and neither `.` nor `..`.
pub fn is_file_name(name: &str) -> bool {
    let plain = |c: char| c != '/' && !c.is_control();
    (1..=MAX_FILE_NAME).contains(&name.len()) && name != "." && name != ".." && name.chars().all(plain)
}

impl ViewRequest {
    /// The components of the path, if it is a path within a view.
    pub fn components(&self) -> Option<Vec<&str>> {
        if self.path.is_empty() {
            return Some(Vec::new());
        }
        let components: Vec<&str> = self.path.split('/').collect();
        let fits = self.path.len() <= MAX_PATH && components.len() <= MAX_DEPTH;
        (fits && components.iter().all(|name| is_file_name(name))).then_some(components)
    }

    /// Whether the request may be sent.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), &'static str> {
        match self.operation {
            _ if self.components().is_none() => Err("that is no path within a view"),
            ViewOperation::Read { length, .. } if length > MAX_PIECE => {
                Err("that is more than 1 MiB at once")
            }
            _ => Ok(()),
        }
    }
}

impl ViewReply {
    /// Whether this can be the reply to `operation`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, operation: ViewOperation) -> Result<(), &'static str> {
        match (self, operation) {
            (Self::Stat(_), ViewOperation::Stat) | (Self::Piece, ViewOperation::Read { .. }) => Ok(()),
            (Self::Page(page), ViewOperation::List { cursor }) => {
                let bytes: usize = page.entries.iter().map(|entry| entry.name.len()).sum();
                if page.entries.len() > MAX_ENTRIES || bytes > MAX_NAME_BYTES {
                    Err("a page of too many entries")
                } else if !page.entries.iter().all(|entry| is_file_name(&entry.name)) {
                    Err("an entry whose name no file can have")
                } else if page.next.is_some_and(|next| next <= cursor) {
                    Err("a listing that does not go forward")
                } else {
                    Ok(())
                }
            }
            _ => Err("an answer to another question"),
        }
    }
}

/// The file name that stands for `bytes`. Bytes that a file name or UTF-8 cannot contain, and `%`
/// itself, become `%` and two hexadecimal digits; no bytes at all become `%`. `None` if the name
/// would be too long.
pub fn escape(bytes: &[u8]) -> Option<String> {
    let mut name = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '%' || c == '/' || c.is_control() {
                let mut utf8 = [0; 4];
                c.encode_utf8(&mut utf8).bytes().for_each(|byte| hexadecimal(&mut name, byte));
            } else {
                name.push(c);
            }
        }
        chunk.invalid().iter().for_each(|&byte| hexadecimal(&mut name, byte));
        if name.len() > MAX_FILE_NAME {
            return None;
        }
    }
    match name.as_str() {
        "" => name.push('%'),
        "." | ".." => name = name.replace('.', "%2E"),
        _ => {}
    }
    Some(name)
}

fn hexadecimal(name: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    name.push('%');
    name.push(char::from(DIGITS[usize::from(byte >> 4)]));
    name.push(char::from(DIGITS[usize::from(byte & 15)]));
}

/// The bytes that the file name `name` stands for, if [`escape`] makes such names.
pub fn unescape(name: &str) -> Option<Vec<u8>> {
    if name == "%" {
        return Some(Vec::new());
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let digit = |byte: u8| char::from(byte).to_digit(16);
            // At most 255.
            bytes.push((digit(digits[0])? * 16 + digit(digits[1])?) as u8);
        } else {
            bytes.push(byte);
        }
    }
    // One name for one thing.
    (escape(&bytes)? == name).then_some(bytes)
}

#[cfg(test)]
mod tests;
