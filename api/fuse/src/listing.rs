//! Listing directories.
//!
//! 1. `.` has cookie 1 and `..` has cookie 2. The cookies of the file system's entries are larger
//!    ([`FIRST_COOKIE`]), so an offset says which of the two lists goes on behind it.
//! 2. Entries are added until the kernel's buffer is full. The file system continues behind a
//!    cookie whatever was added or removed meanwhile.
//! 3. A listing with attributes (`READDIRPLUS`) counts as a lookup of each entry in it, except `.`
//!    and `..`.
//! 4. A listing has a few entries at a time ([`ENTRIES_AT_ONCE`]), and passes some removed names.
//!    Between these steps other requests have their turn.
//! 5. A step that lacks a lease adds what is before it, if there is something. Otherwise it ends
//!    with `EAGAIN`, and is done again. So nothing is added twice.

use fuser::{FileHandle, FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::file_system::{DirectoryEntry, Handle};
use sietch_fs::inode::InodeNumber;
use sietch_fs::name::{Cookie, FIRST_COOKIE};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use crate::attributes::{file_attributes, file_type, inode, number};
use crate::state::State;

/// Entries that are added in one turn: some ten microseconds.
const ENTRIES_AT_ONCE: usize = 32;

/// Cookies of the two entries that every directory has.
const ITSELF: u64 = 1;
const PARENT: u64 = 2;
const _: () = assert!(PARENT < FIRST_COOKIE.0);

/// `.` and `..`, as far as they are behind `offset`.
///
/// # Errors
/// `EAGAIN`.
fn first_entries<F: FileSystem>(
    state: &mut State<F>,
    directory: InodeNumber,
    offset: u64,
) -> Result<impl Iterator<Item = (u64, &'static str, InodeNumber)> + use<F>, Errno> {
    let parent = match state.file_system.parent(directory) {
        Err(Errno::AGAIN) => return Err(Errno::AGAIN),
        // A directory that was removed has no parent any more.
        found => found.unwrap_or(directory),
    };
    let entries = [(ITSELF, ".", directory), (PARENT, "..", parent)];
    Ok(entries.into_iter().filter(move |(cookie, ..)| *cookie > offset))
}

/// All that there is room for was listed.
pub(crate) struct Listed;

/// A listing in steps.
pub(crate) struct InTurns {
    offset: u64,
    has_entries: bool,
}

impl InTurns {
    /// It begins behind `offset`.
    pub(crate) fn from(offset: u64) -> Self {
        Self { offset, has_entries: false }
    }

    /// Adds entries behind an offset; `None`: there may be more.
    pub(crate) fn step(
        &mut self,
        add: impl FnOnce(u64) -> Result<Rest, Errno>,
    ) -> Result<Option<Listed>, Errno> {
        match add(self.offset) {
            Ok(Rest::Behind { last, adds }) => {
                self.offset = last;
                self.has_entries |= adds;
                Ok(None)
            }
            // What was added counts. Nothing would mean the end of the directory.
            Err(error) if !self.has_entries => Err(error),
            Ok(Rest::Nothing) | Err(_) => Ok(Some(Listed)),
        }
    }
}

/// What is behind these entries.
pub(crate) enum Rest {
    /// Nothing, or nothing that there is room for.
    Nothing,
    /// Perhaps more, behind this offset; whether anything was added before it.
    Behind { last: u64, adds: bool },
}

/// Adds some entries behind `offset`.
pub(crate) fn list<F: FileSystem>(
    state: &mut State<F>,
    directory: INodeNo,
    handle: FileHandle,
    offset: u64,
    reply: &mut ReplyDirectory,
) -> Result<Rest, Errno> {
    if offset < PARENT {
        for (cookie, name, inode) in first_entries(state, inode(directory), offset)? {
            if reply.add(number(inode), cookie, FileType::Directory, name) {
                return Ok(Rest::Nothing);
            }
        }
        return Ok(Rest::Behind { last: PARENT, adds: true });
    }
    let (mut last, mut left) = (offset, ENTRIES_AT_ONCE);
    let next = state.file_system.read_directory_step(Handle(handle.0), Cookie(last), &mut |entry| {
        let DirectoryEntry { cookie, name, inode, kind } = entry;
        let takes =
            left > 0 && !reply.add(number(inode), cookie.0, file_type(kind), OsStr::from_bytes(&name));
        if takes {
            (last, left) = (cookie.0, left - 1);
        }
        takes
    })?;
    let next = if left == 0 { Some(last) } else { next.map(|next| next.0) };
    let adds = left < ENTRIES_AT_ONCE;
    Ok(next.map_or(Rest::Nothing, |last| Rest::Behind { last, adds }))
}

/// Adds some entries behind `offset`, with their attributes, which the kernel may keep for `keep`.
pub(crate) fn list_with_attributes<F: FileSystem>(
    state: &mut State<F>,
    directory: INodeNo,
    handle: FileHandle,
    offset: u64,
    keep: Duration,
    reply: &mut ReplyDirectoryPlus,
) -> Result<Rest, Errno> {
    if offset < PARENT {
        let mut last = offset;
        for (cookie, name, inode) in first_entries(state, inode(directory), offset)? {
            let shown = match state.file_system.attributes(inode) {
                Ok(shown) => file_attributes(&shown),
                Err(Errno::AGAIN) if last > offset => break,
                Err(error) => return Err(error),
            };
            if reply.add(number(inode), cookie, name, &keep, &shown, Generation(0)) {
                return Ok(Rest::Nothing);
            }
            last = cookie;
        }
        return Ok(Rest::Behind { last, adds: true });
    }
    let after = Cookie(offset);
    let mut entries = Vec::with_capacity(ENTRIES_AT_ONCE);
    let next = state.file_system.read_directory_step(Handle(handle.0), after, &mut |entry| {
        let room = entries.len() < ENTRIES_AT_ONCE;
        if room {
            entries.push(entry);
        }
        room
    })?;
    let end = entries.last().filter(|_| entries.len() == ENTRIES_AT_ONCE).map(|last| last.cookie);
    let next = end.or(next);
    let (mut last, mut adds) = (after, false);
    for entry in entries {
        let shown = state.file_system.attributes(entry.inode).and_then(|shown| state.retain(shown));
        let shown = match shown {
            Ok(shown) => shown,
            Err(Errno::AGAIN) if last == after => return Err(Errno::AGAIN),
            Err(Errno::AGAIN) => return Ok(Rest::Behind { last: last.0, adds }),
            // Another client may have removed it since.
            Err(_) => {
                last = entry.cookie;
                continue;
            }
        };
        let name = OsStr::from_bytes(&entry.name);
        let number = number(entry.inode);
        if reply.add(number, entry.cookie.0, name, &keep, &file_attributes(&shown), Generation(0)) {
            state.forget(entry.inode, 1);
            return Ok(Rest::Nothing);
        }
        (last, adds) = (entry.cookie, true);
    }
    Ok(next.map_or(Rest::Nothing, |next| Rest::Behind { last: next.0, adds }))
}
