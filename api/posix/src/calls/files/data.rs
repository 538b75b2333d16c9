//! `read`, `write` and the calls like them.
//!
//! 1. A call takes the position from the kernel, and sets it when the bytes have moved. Both are
//!    done under the lock, so that calls of this process do not use one position twice.
//! 2. Bytes that the program cannot reach are for the kernel to refuse.
//! 3. A write of several pieces is gathered, so that it is one record.
//! 4. No call ends in part because another program takes the file from the client. The kernel does
//!    a read again, and writes what is left of a write ([`write_rest`]).

use std::ffi::{c_int, c_void};

use libc::{iovec, off_t, size_t, ssize_t};
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::WriteAt;
use sietch_fs::limits::MAX_RECORD_DATA;

use crate::calls::data;
use crate::calls::files::status::{self, Extent};
use crate::files::claim::{Access, Call, Done, Need, prepare_kernel, with_client};
use crate::files::position::{now, seek};
use crate::files::{mounts, words};
use crate::signal::user_memory;
use crate::system::originals;
use crate::system::sys::{self, Errno, Outcome};

/// Most bytes of a call (`MAX_RW_COUNT`).
const MAX_BYTES: usize = 0x7fff_f000;
/// Most pieces of a call (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

#[inline]
fn is_ours(fd: c_int) -> bool {
    words::get(fd) != 0
}

/// Where in the file.
#[derive(Clone, Copy)]
enum Place {
    Position(c_int),
    Offset(u64),
}

impl Place {
    /// Whether an offset has room for so many bytes; if not, the kernel refuses the call.
    fn has_room(self, bytes: usize) -> bool {
        match self {
            Self::Position(_) => true,
            Self::Offset(offset) => is_within(offset, bytes),
        }
    }

    fn need(self, access: Access) -> Need {
        Need { access, at_position: matches!(self, Self::Position(_)) }
    }

    fn get(self) -> Result<u64, Errno> {
        match self {
            Self::Position(fd) => seek(fd, 0, libc::SEEK_CUR).map(|position| position as u64),
            Self::Offset(offset) => Ok(offset),
        }
    }

    fn set(self, position: u64) -> Result<(), Errno> {
        match self {
            Self::Position(fd) => {
                let position = off_t::try_from(position).map_err(|_| libc::EOVERFLOW)?;
                seek(fd, position, libc::SEEK_SET).map(drop)
            }
            Self::Offset(_) => Ok(()),
        }
    }
}

/// Whether the last of so many bytes has an offset.
fn is_within(offset: u64, bytes: usize) -> bool {
    offset.checked_add(bytes as u64).is_some_and(|end| off_t::try_from(end).is_ok())
}

/// The bytes of the program that a call moves, if all of them can be reached.
struct Pieces {
    first: *const iovec,
    count: usize,
    bytes: usize,
}

impl Pieces {
    /// # Safety
    /// `first` is that of `count` vectors, or for the kernel to refuse.
    unsafe fn new(first: *const iovec, count: c_int, is_reachable: fn(&iovec) -> bool) -> Option<Self> {
        let count = usize::try_from(count).ok().filter(|count| *count <= MAX_PIECES)?;
        if !user_memory::is_readable(first, count * size_of::<iovec>()) {
            return None;
        }
        let mut bytes = 0_usize;
        for at in 0..count {
            // SAFETY: it was found to be readable.
            let piece = unsafe { first.add(at).read_unaligned() };
            bytes = bytes.checked_add(piece.iov_len).filter(|bytes| *bytes <= MAX_BYTES)?;
            if piece.iov_len != 0 && !is_reachable(&piece) {
                return None;
            }
        }
        Some(Self { first, count, bytes })
    }

    fn iter(&self) -> impl Iterator<Item = iovec> + '_ {
        // SAFETY: as in `new`.
        (0..self.count).map(|at| unsafe { self.first.add(at).read_unaligned() })
    }
}

fn can_be_read(piece: &iovec) -> bool {
    user_memory::is_readable(piece.iov_base, piece.iov_len)
}

fn can_be_written(piece: &iovec) -> bool {
    user_memory::is_writable(piece.iov_base, piece.iov_len)
}

/// Reads into a slice of the program.
fn read_at(call: &mut Call<'_>, offset: u64, to: &mut [u8]) -> Result<usize, Errno> {
    call.client.read(call.handle, offset, to).map_err(|errno| errno.raw_os_error())
}

/// What a client has written for a call.
struct Written {
    bytes: usize,
    /// Where the last byte is.
    end: u64,
    /// The rest is the kernel's to write.
    has_rest: bool,
    appends: bool,
    /// The bytes are to be durable.
    syncs: bool,
}

/// Writes, in as few records as possible.
fn write_at(call: &mut Call<'_>, at: WriteAt, from: &[u8]) -> Result<Written, Errno> {
    let credentials = Credentials { uid: call.uid, ..Credentials::default() };
    let (mut done, mut end, mut has_rest) = (0, 0, false);
    for part in from.chunks(MAX_RECORD_DATA) {
        let at = match at {
            WriteAt::Offset(offset) => WriteAt::Offset(offset + done as u64),
            WriteAt::End => WriteAt::End,
        };
        let caller = Caller { credentials: &credentials, now: now() };
        match call.client.write(caller, call.handle, at, part) {
            Ok(start) => {
                done += part.len();
                end = start + part.len() as u64;
            }
            Err(errno) if done == 0 => return Err(errno.raw_os_error()),
            Err(errno) => {
                // Whether an append of a client that was ended has happened is not known.
                has_rest = call.has_lost_file(errno.raw_os_error())
                    && (at != WriteAt::End || call.client.is_going());
                break;
            }
        }
    }
    Ok(Written { bytes: done, end, has_rest, appends: call.appends, syncs: call.syncs })
}

fn read_pieces(call: &mut Call<'_>, place: Place, pieces: &Pieces) -> Outcome {
    let offset = place.get()?;
    if !is_within(offset, pieces.bytes) {
        return Err(libc::EINVAL);
    }
    let mut done = 0;
    for piece in pieces.iter() {
        if piece.iov_len == 0 {
            continue;
        }
        // SAFETY: the program has given these bytes for this, and they can be written.
        let to = unsafe { std::slice::from_raw_parts_mut(piece.iov_base.cast::<u8>(), piece.iov_len) };
        match read_at(call, offset + done as u64, to) {
            Ok(bytes) => {
                done += bytes;
                if bytes < piece.iov_len {
                    break;
                }
            }
            Err(errno) if done == 0 || call.has_lost_file(errno) => return Err(errno),
            Err(_) => break,
        }
    }
    place.set(offset + done as u64)?;
    Ok(done)
}

fn write_pieces(call: &mut Call<'_>, place: Place, pieces: &Pieces) -> Result<Written, Errno> {
    let at = if call.appends { WriteAt::End } else { WriteAt::Offset(place.get()?) };
    if let WriteAt::Offset(offset) = at
        && !is_within(offset, pieces.bytes)
    {
        return Err(libc::EINVAL);
    }
    if pieces.bytes == 0 {
        return Ok(Written { bytes: 0, end: 0, has_rest: false, appends: call.appends, syncs: call.syncs });
    }
    let mut filled = pieces.iter().filter(|piece| piece.iov_len != 0);
    // SAFETY: the program has given these bytes for this, and they can be read.
    let slice = |piece: &iovec| unsafe {
        std::slice::from_raw_parts(piece.iov_base.cast_const().cast::<u8>(), piece.iov_len)
    };
    let written = match (filled.next(), filled.next()) {
        (Some(one), None) => write_at(call, at, slice(&one))?,
        _ => {
            let mut gathered = Vec::new();
            // Without memory the kernel writes: EAGAIN ends the claim.
            gathered.try_reserve_exact(pieces.bytes).map_err(|_| libc::EAGAIN)?;
            pieces
                .iter()
                .filter(|piece| piece.iov_len != 0)
                .for_each(|piece| gathered.extend_from_slice(slice(&piece)));
            write_at(call, at, &gathered)?
        }
    };
    // Other threads write behind the rest.
    let rest = if written.has_rest && !call.appends { pieces.bytes - written.bytes } else { 0 };
    place.set(written.end + rest as u64)?;
    Ok(written)
}

/// Makes what a call has written durable, if its description says so.
fn written(fd: c_int, bytes: usize, syncs: bool) -> ssize_t {
    if syncs && status::fsync(fd, Extent::All) != 0 {
        return -1;
    }
    bytes.cast_signed()
}

/// # Safety
/// As `readv(2)`.
unsafe fn read_by_client(fd: c_int, place: Place, first: *const iovec, count: c_int) -> Done<usize> {
    // SAFETY: the caller upholds this function's contract.
    let pieces = unsafe { Pieces::new(first, count, can_be_written) };
    let Some(pieces) = pieces.filter(|pieces| place.has_room(pieces.bytes)) else {
        return Done::Kernel(None);
    };
    with_client(fd, place.need(Access::Read), |call| read_pieces(call, place, &pieces))
}

/// # Safety
/// As `writev(2)`.
unsafe fn write_by_client(fd: c_int, place: Place, first: *const iovec, count: c_int) -> Done<Written> {
    // SAFETY: the caller upholds this function's contract.
    let pieces = unsafe { Pieces::new(first, count, can_be_read) };
    let Some(pieces) = pieces.filter(|pieces| place.has_room(pieces.bytes)) else {
        prepare_kernel(fd);
        return Done::Kernel(None);
    };
    with_client(fd, place.need(Access::Write), |call| write_pieces(call, place, &pieces))
}

/// Has the kernel write what the client has left of a write; how much it wrote. Where the write
/// does not append, the position is behind the rest already ([`write_pieces`]).
///
/// # Safety
/// As `writev(2)`.
unsafe fn write_rest(fd: c_int, place: Place, all: (*const iovec, c_int), written: &Written) -> usize {
    // SAFETY: the client has read these vectors.
    let rest = unsafe { behind(all, written.bytes) };
    // The claim ends, so that the kernel knows how long the file is.
    let call = with_client(fd, place.need(Access::Write), |_| Err::<(), _>(libc::EAGAIN));
    let is_at_position = matches!(place, Place::Position(_));
    let at = if written.appends && is_at_position { -1 } else { written.end.cast_signed() };
    // SAFETY: the caller upholds this function's contract.
    let more = unsafe { data::pwritev2(fd, rest.as_ptr(), rest.len() as c_int, at, 0) };
    drop(call);
    let more = usize::try_from(more).unwrap_or(0);
    let is_short = more < rest.iter().map(|piece| piece.iov_len).sum();
    if is_short && !written.appends {
        // A position that was set before can be set.
        let _ = place.set(written.end + more as u64);
    }
    more
}

/// The pieces behind so many bytes.
///
/// # Safety
/// `first` may be read for `count` vectors.
unsafe fn behind((first, count): (*const iovec, c_int), bytes: usize) -> Vec<iovec> {
    let mut skipped = bytes;
    let mut rest = Vec::new();
    for at in 0..count.cast_unsigned() as usize {
        // SAFETY: the caller upholds this function's contract.
        let piece = unsafe { first.add(at).read_unaligned() };
        let skip = skipped.min(piece.iov_len);
        skipped -= skip;
        if skip < piece.iov_len {
            let base = piece.iov_base.cast::<u8>().wrapping_add(skip);
            rest.push(iovec { iov_base: base.cast(), iov_len: piece.iov_len - skip });
        }
    }
    rest
}

/// A call of one piece.
fn one(base: *mut c_void, length: usize) -> iovec {
    iovec { iov_base: base, iov_len: length.min(MAX_BYTES) }
}

/// Reads with the client, or has the kernel read.
///
/// # Safety
/// As `readv(2)`.
unsafe fn read_or(
    fd: c_int,
    place: Place,
    (first, count): (*const iovec, c_int),
    kernel: impl FnOnce() -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller upholds this function's contract.
    match unsafe { read_by_client(fd, place, first, count) } {
        Done::Here(outcome) => sys::to_c(outcome),
        Done::Kernel(_call) => kernel(),
    }
}

/// Writes with the client, or has the kernel write.
///
/// # Safety
/// As `writev(2)`.
unsafe fn write_or(
    fd: c_int,
    place: Place,
    (first, count): (*const iovec, c_int),
    kernel: impl FnOnce() -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller upholds this function's contract.
    match unsafe { write_by_client(fd, place, first, count) } {
        Done::Here(Ok(mut part)) => {
            if part.has_rest {
                // SAFETY: the caller upholds this function's contract.
                part.bytes += unsafe { write_rest(fd, place, (first, count), &part) };
            }
            written(fd, part.bytes, part.syncs)
        }
        Done::Here(Err(errno)) => sys::to_c(Err(errno)),
        Done::Kernel(_call) => kernel(),
    }
}

/// `read(2)`.
///
/// # Safety
/// As `read(2)`.
#[inline]
pub unsafe fn read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: the caller upholds this function's contract.
    let kernel = || unsafe { data::read(fd, to, length) };
    if !is_ours(fd) {
        return kernel();
    }
    // SAFETY: as above.
    unsafe { read_or(fd, Place::Position(fd), (&one(to, length), 1), kernel) }
}

/// `write(2)`.
///
/// # Safety
/// As `write(2)`.
#[inline]
pub unsafe fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: the caller upholds this function's contract.
    let kernel = || unsafe { data::write(fd, from, length) };
    if !is_ours(fd) {
        return kernel();
    }
    // SAFETY: as above.
    unsafe { write_or(fd, Place::Position(fd), (&one(from.cast_mut(), length), 1), kernel) }
}

/// `readv(2)`.
///
/// # Safety
/// As `readv(2)`.
pub unsafe fn readv(fd: c_int, first: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller upholds this function's contract.
    let kernel = || unsafe { data::readv(fd, first, count) };
    if !is_ours(fd) {
        return kernel();
    }
    // SAFETY: as above.
    unsafe { read_or(fd, Place::Position(fd), (first, count), kernel) }
}

/// `writev(2)`.
///
/// # Safety
/// As `writev(2)`.
pub unsafe fn writev(fd: c_int, first: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller upholds this function's contract.
    let kernel = || unsafe { data::writev(fd, first, count) };
    if !is_ours(fd) {
        return kernel();
    }
    // SAFETY: as above.
    unsafe { write_or(fd, Place::Position(fd), (first, count), kernel) }
}

/// The place of a call with an offset; `None`: the kernel refuses it.
fn place_of(offset: off_t) -> Option<Place> {
    u64::try_from(offset).ok().map(Place::Offset)
}

/// `pread(2)`.
///
/// # Safety
/// As `pread(2)`.
pub unsafe fn pread(fd: c_int, to: *mut c_void, length: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the caller upholds this function's contract.
    let kernel = || unsafe { originals::pread(fd, to, length, offset) };
    let Some(place) = place_of(offset).filter(|_| is_ours(fd)) else { return kernel() };
    // SAFETY: as above.
    unsafe { read_or(fd, place, (&one(to, length), 1), kernel) }
}

/// `pwrite(2)`.
///
/// # Safety
/// As `pwrite(2)`.
pub unsafe fn pwrite(fd: c_int, from: *const c_void, length: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the caller upholds this function's contract.
    let kernel = || unsafe { originals::pwrite(fd, from, length, offset) };
    let Some(place) = place_of(offset).filter(|_| is_ours(fd)) else { return kernel() };
    // SAFETY: as above.
    unsafe { write_or(fd, place, (&one(from.cast_mut(), length), 1), kernel) }
}

/// `preadv2(2)`, and with no flags `preadv(2)`.
///
/// # Safety
/// As `preadv2(2)`.
pub unsafe fn preadv2(fd: c_int, first: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller upholds this function's contract.
    let kernel = || unsafe { data::preadv2(fd, first, count, offset, flags) };
    let place = if offset == -1 { Some(Place::Position(fd)) } else { place_of(offset) };
    let Some(place) = place.filter(|_| is_ours(fd) && flags == 0) else { return kernel() };
    // SAFETY: as above.
    unsafe { read_or(fd, place, (first, count), kernel) }
}

/// `pwritev2(2)`, and with no flags `pwritev(2)`.
///
/// # Safety
/// As `pwritev2(2)`.
pub unsafe fn pwritev2(fd: c_int, first: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller upholds this function's contract.
    let kernel = || unsafe { data::pwritev2(fd, first, count, offset, flags) };
    if flags & libc::RWF_APPEND != 0 && mounts::identify(fd).is_some() {
        // The kernel says to the mount where the end is.
        mounts::refresh(fd);
    }
    let place = if offset == -1 { Some(Place::Position(fd)) } else { place_of(offset) };
    let Some(place) = place.filter(|_| is_ours(fd) && flags == 0) else { return kernel() };
    // SAFETY: as above.
    unsafe { write_or(fd, place, (first, count), kernel) }
}

/// `preadv(2)`.
///
/// # Safety
/// As `preadv(2)`.
pub unsafe fn preadv(fd: c_int, first: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    if offset < 0 {
        return sys::to_c(Err(libc::EINVAL));
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { preadv2(fd, first, count, offset, 0) }
}

/// `pwritev(2)`.
///
/// # Safety
/// As `pwritev(2)`.
pub unsafe fn pwritev(fd: c_int, first: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    if offset < 0 {
        return sys::to_c(Err(libc::EINVAL));
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { pwritev2(fd, first, count, offset, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_behind_some_bytes_begin_where_these_end() {
        let mut memory = [[0_u8; 10]; 3];
        let start = memory.as_mut_ptr().cast::<u8>();
        let piece = |at: usize, length| iovec { iov_base: start.wrapping_add(at).cast(), iov_len: length };
        let all = [piece(0, 10), piece(10, 0), piece(12, 5), piece(20, 10)];
        for (bytes, expected) in [
            (0, &[(0, 10), (12, 5), (20, 10)][..]),
            (9, &[(9, 1), (12, 5), (20, 10)]),
            (10, &[(12, 5), (20, 10)]),
            (14, &[(16, 1), (20, 10)]),
            (24, &[(29, 1)]),
            (25, &[]),
        ] {
            // SAFETY: the vectors are an array.
            let rest = unsafe { behind((all.as_ptr(), 4), bytes) };
            let place = |piece: &iovec| (piece.iov_base as usize - start as usize, piece.iov_len);
            assert_eq!(rest.iter().map(place).collect::<Vec<_>>(), expected, "{bytes}");
        }
    }
}
