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
fn first_entries<F: FileSystem>(
    state: &mut State<F>,
    directory: InodeNumber,
    offset: u64,
) -> impl Iterator<Item = (u64, &'static str, InodeNumber)> + use<F> {
    // A directory that was removed has no parent any more.
    let parent = if offset < PARENT { state.file_system.parent(directory).ok() } else { None };
    [(ITSELF, ".", directory), (PARENT, "..", parent.unwrap_or(directory))]
        .into_iter()
        .filter(move |(cookie, ..)| *cookie > offset)
}

/// Adds entries behind `offset` to a listing, a few in each turn.
pub(crate) fn in_turns(
    mut offset: u64,
    add: &mut dyn FnMut(u64) -> Result<Rest, fuser::Errno>,
) -> Result<(), fuser::Errno> {
    let mut has_entries = false;
    loop {
        match add(offset) {
            Ok(Rest::Behind { last, adds }) => {
                offset = last;
                has_entries |= adds;
            }
            // What was added counts. Nothing would mean the end of the directory.
            Err(error) if !has_entries => return Err(error),
            Ok(Rest::Nothing) | Err(_) => return Ok(()),
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
    for (cookie, name, inode) in first_entries(state, inode(directory), offset) {
        if reply.add(number(inode), cookie, FileType::Directory, name) {
            return Ok(Rest::Nothing);
        }
    }
    let (mut last, mut left) = (offset.max(PARENT), ENTRIES_AT_ONCE);
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
    let adds = offset < PARENT || left < ENTRIES_AT_ONCE;
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
    for (cookie, name, inode) in first_entries(state, inode(directory), offset) {
        let shown = file_attributes(&state.file_system.attributes(inode)?);
        if reply.add(number(inode), cookie, name, &keep, &shown, Generation(0)) {
            return Ok(Rest::Nothing);
        }
    }
    let after = Cookie(offset.max(PARENT));
    let mut entries = Vec::with_capacity(ENTRIES_AT_ONCE);
    let next = state.file_system.read_directory_step(Handle(handle.0), after, &mut |entry| {
        let room = entries.len() < ENTRIES_AT_ONCE;
        if room {
            entries.push(entry);
        }
        room
    })?;
    let last = entries.last().filter(|_| entries.len() == ENTRIES_AT_ONCE).map(|last| last.cookie);
    let next = last.or(next);
    let mut adds = offset < PARENT;
    for entry in entries {
        // Another client may have removed it since.
        let Ok(shown) = state.file_system.attributes(entry.inode) else { continue };
        let Ok(shown) = state.retain(shown) else { continue };
        let name = OsStr::from_bytes(&entry.name);
        let number = number(entry.inode);
        if reply.add(number, entry.cookie.0, name, &keep, &file_attributes(&shown), Generation(0)) {
            state.forget(entry.inode, 1);
            return Ok(Rest::Nothing);
        }
        adds = true;
    }
    Ok(next.map_or(Rest::Nothing, |next| Rest::Behind { last: next.0, adds }))
}
