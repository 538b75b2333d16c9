//! `sendfile`, `splice` and `tee`.
//!
//! 1. `sendfile` to a stream reads the file straight into the ring's free space, piece by piece. What was read there is published only if the whole
//!    read succeeded, so an error costs nothing.
//! 2. `splice` and `tee` of a stream are EINVAL, which is what Linux answers for descriptors without these operations; programs then copy.

use std::ffi::{c_int, c_uint};

use libc::{off_t, size_t, ssize_t};

use crate::data::{Found, find};
use crate::end::{End, Want};
use crate::receive::is_nonblocking;
use crate::sleep::{self, Rest};
use crate::sys::{self, Errno, Outcome, signed};
use crate::table::Held;
use crate::{options, real, send};

/// Most bytes of a call (`MAX_RW_COUNT`).
const MOST: usize = 0x7fff_f000;

/// `sendfile(2)`.
///
/// # Safety
/// As `sendfile(2)`.
pub unsafe fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    if !matches!(find(from), Found::Kernel) {
        return sys::give(Err(libc::EINVAL));
    }
    match find(out) {
        // SAFETY: the caller's.
        Found::Stream(held) => sys::give(
            held.end()
                .map_or(Err(libc::EBADF), |end| unsafe { send_file(out, &held, end, from, offset, count) }),
        ),
        Found::Listener => sys::give(Err(send::broken(0))),
        // SAFETY: the caller's.
        Found::Kernel => unsafe { real::sendfile(out, from, offset, count) },
    }
}

/// # Safety
/// `offset` is null or may be read and written.
unsafe fn send_file(
    out: c_int,
    held: &Held,
    end: &End,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> Outcome {
    // SAFETY: the caller's.
    let start = if offset.is_null() { None } else { Some(unsafe { offset.read_unaligned() }) };
    if start.is_none() || count == 0 {
        readable_file(from)?;
    }
    if start.is_some_and(|start| start < 0) {
        return Err(libc::EINVAL);
    }
    let count = count.min(MOST);
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
        // SAFETY: the caller's.
        unsafe { offset.write_unaligned(start.unwrap_or(0) + done as off_t) };
    }
    match answer {
        Err(errno) if done == 0 => Err(errno),
        _ => Ok(done),
    }
}

/// Linux reads only from what can be mapped or seeked in; sockets and the like are EINVAL. Where there is an offset to read from, the read
/// itself says so, and two system calls for each file that a web server sends are saved.
fn readable_file(fd: c_int) -> Result<(), Errno> {
    let mode = sys::fcntl(fd, libc::F_GETFL, 0)? as c_int;
    if mode & libc::O_ACCMODE == libc::O_WRONLY {
        return Err(libc::EBADF);
    }
    if sys::socket_option(fd, libc::SOL_SOCKET, libc::SO_TYPE).is_ok() {
        return Err(libc::EINVAL);
    }
    Ok(())
}

/// One piece: bytes moved, 0 at the end of the file.
fn step(
    out: c_int,
    held: &Held,
    end: &End,
    from: c_int,
    at: Option<off_t>,
    most: usize,
) -> Result<usize, Errno> {
    let nonblocking = is_nonblocking(end, 0);
    let deadline = options::deadline(end, options::SEND_TIMEOUT);
    loop {
        if send::may_send(out, end, most, 0)? {
            return Ok(most);
        }
        if sleep::set_up(end) {
            let moved = match end.send() {
                None if nonblocking => return Err(libc::EAGAIN),
                None => return Err(libc::EINTR),
                Some(mut send) => {
                    let mut left = most;
                    let space = send.space();
                    let room = space[0].1 + space[1].1;
                    let vectors = space.map(|(to, bytes)| {
                        let now = bytes.min(left);
                        left -= now;
                        libc::iovec { iov_base: to.cast(), iov_len: now }
                    });
                    if room == 0 {
                        None
                    } else {
                        let bytes = read_into(from, &vectors, at)?;
                        send.stage(bytes);
                        Some(bytes)
                    }
                }
            };
            if let Some(bytes) = moved {
                sleep::ring(out, end, end.ring_for_data());
                return Ok(bytes);
            }
        }
        if nonblocking {
            return Err(libc::EAGAIN);
        }
        let rest = Rest { want: Want::Room, deadline, restart: true };
        sleep::until(out, held, end, rest, || sleep::set_up(end) && sleep::room_ready(end))?;
    }
}

fn read_into(from: c_int, vectors: &[libc::iovec; 2], at: Option<off_t>) -> Outcome {
    let first = sys::address(vectors.as_ptr());
    match at {
        // SAFETY: the vectors are free space of the ring, which is this thread's while it holds the lock.
        None => unsafe { sys::ask(libc::SYS_readv, [signed(from), first, 2, 0, 0, 0]) },
        // SAFETY: as above.
        Some(at) => unsafe { sys::ask(libc::SYS_preadv, [signed(from), first, 2, at as usize, 0, 0]) },
    }
}

/// `splice(2)`.
///
/// # Safety
/// As `splice(2)`.
pub unsafe fn splice(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    if matches!(find(from), Found::Kernel) && matches!(find(to), Found::Kernel) {
        // SAFETY: the caller's.
        return unsafe { real::splice(from, from_offset, to, to_offset, length, flags) };
    }
    sys::give(Err(libc::EINVAL))
}

/// `tee(2)`.
///
/// # Safety
/// As `tee(2)`.
pub unsafe fn tee(from: c_int, to: c_int, length: size_t, flags: c_uint) -> ssize_t {
    if matches!(find(from), Found::Kernel) && matches!(find(to), Found::Kernel) {
        // SAFETY: the caller's.
        return unsafe { real::tee(from, to, length, flags) };
    }
    sys::give(Err(libc::EINVAL))
}
