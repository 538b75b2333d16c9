//! `sendfile`.
//!
//! It reads the file straight into the ring's free space, piece by piece. A piece is published only
//! if its whole read succeeded, so an error costs nothing.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Acquire;

use libc::{off_t, size_t, ssize_t};
use sietch_ring::stream::{Endpoint, Want, flag};
use sietch_stream::PEER_SHUT_READ;

use crate::calls::data::vectors::{Found, MAX_BYTES, find};
use crate::calls::data::{send, splice};
use crate::calls::descriptor::close;
use crate::connection::blocked::{self, BlockedCall, SleepOptions};
use crate::connection::status::is_nonblocking;
use crate::connection::{option_words, peer};
use crate::descriptor::description::Held;
use crate::readiness::hooks;
use crate::signal::user_memory;
use crate::system::sys::{self, Errno, Outcome, signed};
use crate::system::{kernel, originals};

/// Most bytes that Linux reads from the file before it passes them to the socket: a pipe of 16
/// pages.
const PIECE: usize = 16 << 12;

/// `sendfile(2)`.
///
/// # Safety
/// As `sendfile(2)`.
pub unsafe fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    match find(from) {
        Found::Kernel => {}
        Found::Stream(held) if matches!(find(out), Found::Kernel) => {
            return sys::to_c(splice::send_stream(out, (from, &held), !offset.is_null(), count));
        }
        _ => return sys::to_c(Err(libc::EINVAL)),
    }
    match find(out) {
        // SAFETY: the caller upholds this function's contract.
        Found::Stream(held) => sys::to_c(
            held.end()
                .map_or(Err(libc::EBADF), |end| unsafe { send_file(out, &held, end, from, offset, count) }),
        ),
        // The file first, as Linux.
        Found::Listener(_) => {
            // SAFETY: the caller upholds this function's contract.
            sys::to_c(unsafe { position(offset) }.and_then(|at| send_to_listener(from, at, count)))
        }
        // SAFETY: the caller upholds this function's contract.
        Found::Kernel => unsafe { originals::sendfile(out, from, offset, count) },
    }
}

/// Where the file is to be read; none: where it was read last.
///
/// # Safety
/// The program has given the address for this.
unsafe fn position(offset: *const off_t) -> Result<Option<off_t>, Errno> {
    // SAFETY: the caller upholds this function's contract.
    if offset.is_null() { Ok(None) } else { unsafe { user_memory::read(offset) }.map(Some) }
}

fn send_to_listener(from: c_int, at: Option<off_t>, count: size_t) -> Outcome {
    readable_file(from)?;
    if at.is_some_and(|at| at < 0) {
        return Err(libc::EINVAL);
    }
    if count != 0 && has_bytes(from, at)? { Err(send::broken(0)) } else { Ok(0) }
}

/// # Safety
/// As `sendfile(2)`.
unsafe fn send_file(
    out: c_int,
    held: &Held,
    end: &Endpoint,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    let start = unsafe { position(offset) }?;
    if start.is_none() || count == 0 {
        readable_file(from)?;
    }
    if start.is_some_and(|start| start < 0) {
        return Err(libc::EINVAL);
    }
    let count = count.min(MAX_BYTES);
    let mut done = 0;
    let answer = loop {
        if done == count {
            break Ok(());
        }
        match step(out, held, end, from, start.map(|start| start + done as off_t), count - done) {
            Ok(0) => break Ok(()),
            Ok(bytes) => done += bytes,
            Err(errno) => break Err(errno),
        }
    };
    if !offset.is_null() {
        // SAFETY: the caller upholds this function's contract.
        unsafe { user_memory::write(offset, start.unwrap_or(0) + done as off_t) }?;
    }
    match answer {
        Err(errno) if done == 0 => Err(errno),
        _ => Ok(done),
    }
}

/// Linux reads only from files that can be seeked in. Sockets and pipes, on which a read could
/// wait, give EINVAL. With an offset the read itself returns that, which saves two system calls for
/// each file that a web server sends.
fn readable_file(fd: c_int) -> Result<(), Errno> {
    let mode = kernel::fcntl(fd, libc::F_GETFL, 0)? as c_int;
    if mode & libc::O_ACCMODE == libc::O_WRONLY {
        return Err(libc::EBADF);
    }
    file_position(fd).map(|_| ()).map_err(|errno| if errno == libc::ESPIPE { libc::EINVAL } else { errno })
}

/// One piece: bytes moved, 0 at the end of the file.
fn step(
    out: c_int,
    held: &Held,
    end: &Endpoint,
    from: c_int,
    at: Option<off_t>,
    most: usize,
) -> Result<usize, Errno> {
    let nonblocking = is_nonblocking(end, 0);
    let deadline = option_words::deadline(end, option_words::SEND_TIMEOUT);
    let mut call: Option<BlockedCall<'_>> = None;
    loop {
        let out = call.as_ref().map_or(out, BlockedCall::fd);
        if is_doubtful(end) && !has_bytes(from, at)? {
            return Ok(0);
        }
        send::note_stall(held, end);
        // Linux raises SIGPIPE here even if a piece before this one was sent.
        if let Some(taken) = send::may_send(out, end, most.min(PIECE), 0)? {
            return read_and_drop(from, at, taken);
        }
        if peer::is_set_up(end) {
            let moved = send::fill(end, most, 0, |vectors| read_into(from, vectors, at));
            // Also if the read failed: held bytes may have been published.
            peer::notify_data(out, end);
            match moved {
                // The next check finds the reset.
                Some(Err(libc::EFAULT)) => continue,
                Some(Err(libc::EINTR)) if nonblocking => return Err(libc::EAGAIN),
                Some(read) => return read,
                None => {}
            }
        }
        hooks::note_no_room(held, end);
        if nonblocking {
            return Err(libc::EAGAIN);
        }
        let how = SleepOptions { want: Want::Room, deadline, restart: true };
        let call = call.get_or_insert_with(|| BlockedCall::begin(out, held));
        blocked::sleep_until(call, end, how, || peer::is_set_up(end) && peer::room_ready(end))?;
    }
}

/// Whether something may be wrong with the connection. Then the file is checked first, as on Linux,
/// which has read it by then.
fn is_doubtful(end: &Endpoint) -> bool {
    let wrong = flag::SHUT_WR | flag::HUNG_UP | flag::RESET | PEER_SHUT_READ;
    end.private().flags.load(Acquire) & wrong != 0 || end.is_worth_polling()
}

/// Whether there is anything to read in the file.
fn has_bytes(from: c_int, at: Option<off_t>) -> Result<bool, Errno> {
    readable_file(from)?;
    let at = match at {
        Some(at) => at,
        None => file_position(from)?,
    };
    let mut byte = [0_u8];
    let vectors = [
        libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 },
        libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 0 },
    ];
    Ok(read_into(from, &vectors, Some(at))? != 0)
}

/// The peer has closed: the file is read all the same, and the bytes are dropped.
fn read_and_drop(from: c_int, at: Option<off_t>, most: usize) -> Result<usize, Errno> {
    let mut dropped = [0_u8; 4096];
    let to = dropped.as_mut_ptr();
    let mut done = 0;
    while done < most {
        let now = (most - done).min(dropped.len());
        let vectors = [now, 0].map(|bytes| libc::iovec { iov_base: to.cast(), iov_len: bytes });
        match read_into(from, &vectors, at.map(|at| at + done as off_t)) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Where a file is read next.
fn file_position(fd: c_int) -> Result<off_t, Errno> {
    // SAFETY: touches no memory.
    unsafe { sys::syscall(libc::SYS_lseek, [signed(fd), 0, signed(libc::SEEK_CUR), 0, 0, 0]) }
        .map(|position| position.cast_signed() as off_t)
}

/// Reads into two places. A directory gives what `sendfile` of Linux gives for it.
fn read_into(from: c_int, vectors: &[libc::iovec; 2], at: Option<off_t>) -> Outcome {
    read_file(from, vectors, at).map_err(|errno| if errno == libc::EISDIR { libc::EINVAL } else { errno })
}

fn read_file(from: c_int, vectors: &[libc::iovec; 2], at: Option<off_t>) -> Outcome {
    let first = sys::address(vectors.as_ptr());
    let [whole, rest] = vectors;
    match at {
        // Nearly always one piece, which costs the kernel less.
        Some(at) if rest.iov_len == 0 => {
            let to = sys::address(whole.iov_base);
            // SAFETY: as below.
            let read = unsafe {
                sys::syscall(libc::SYS_pread64, [signed(from), to, whole.iov_len, at as usize, 0, 0])
            };
            if read.is_ok() {
                close::note_file(from);
            }
            read
        }
        // SAFETY: the vectors are the caller's: free space of the ring, whose lock it holds, or a
        // buffer of its own.
        None => unsafe { sys::syscall(libc::SYS_readv, [signed(from), first, 2, 0, 0, 0]) },
        // SAFETY: as above.
        Some(at) => unsafe { sys::syscall(libc::SYS_preadv, [signed(from), first, 2, at as usize, 0, 0]) },
    }
}
