//! `splice` between a connection and a pipe, and `tee`.
//!
//! 1. The bytes are copied. From a connection they are taken out of the ring after the pipe has
//!    accepted them; from a pipe only as many are read as the ring has room for. So no byte is lost
//!    where a call ends early.
//! 2. As on Linux, a call moves what is there and does not wait for more (fs/splice.c,
//!    `tcp_splice_read`, `splice_to_socket`). O_NONBLOCK of the pipe, or SPLICE_F_NONBLOCK, decides
//!    whether it waits for the pipe; O_NONBLOCK of the connection whether it waits for that.
//! 3. The ring's lock is held while the pipe is read or written, so neither may sleep: RWF_NOWAIT,
//!    or a pipe with O_NONBLOCK.
//! 4. Kernels before 6.5 have no RWF_NOWAIT for pipes, and a restricted process does not use it.
//!    There the bytes of a pipe without O_NONBLOCK are moved a page at a time through a buffer, and
//!    the lock is not held meanwhile. The pipe was ready; if another thread uses it in between, the
//!    call waits. What was taken out is passed on in any case, also by a call that should not wait.
//!    Two threads that splice one connection at once may swap their pages there, and O_NONBLOCK
//!    that is cleared during a call makes that call sleep with the lock.
//! 5. All other pairs are for the kernel to refuse: EINVAL.

use std::ffi::{c_int, c_uint};

use libc::{iovec, size_t, ssize_t};
use sietch_ring::stream::{CopyFault, Endpoint, Want};

use crate::calls::data::vectors::{Found, MAX_BYTES, find, vector};
use crate::calls::data::{receive, send};
use crate::connection::blocked::{self, BlockedCall, SleepOptions};
use crate::connection::status::is_nonblocking;
use crate::connection::{option_words, peer};
use crate::descriptor::description::Held;
use crate::readiness::hooks;
use crate::signal::handlers::{self, Section};
use crate::system::sys::{self, Errno, Outcome, signed};
use crate::system::{kernel, originals, seccomp};

/// All flags (`SPLICE_F_ALL`).
const FLAGS: c_uint = 0xf;

/// Bytes that a pipe with a free place takes at once, whatever their alignment.
const PAGE: usize = 4096;

/// Bytes that are copied at once.
const CHUNK: usize = 4 * PAGE;

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
    let (source, target) = (find(from), find(to));
    if let (Found::Kernel, Found::Kernel) = (&source, &target) {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { originals::splice(from, from_offset, to, to_offset, length, flags) };
    }
    if length == 0 {
        return 0;
    }
    let no_offsets = from_offset.is_null() && to_offset.is_null();
    let length = length.min(MAX_BYTES);
    sys::to_c(match (source, target) {
        _ if flags & !FLAGS != 0 => Err(libc::EINVAL),
        (Found::Stream(held), Found::Kernel) => flags_of_pipe(to, libc::O_RDONLY).and_then(|now| {
            let waits = flags & libc::SPLICE_F_NONBLOCK == 0 && now & libc::O_NONBLOCK == 0;
            let pipe = Pipe { fd: to, sleeps: now & libc::O_NONBLOCK == 0 };
            match held.end() {
                _ if !to_offset.is_null() => Err(libc::ESPIPE),
                Some(end) if no_offsets => to_pipe((from, &held, end), pipe, length, waits),
                Some(_) => Err(libc::EINVAL),
                None => Err(libc::EBADF),
            }
        }),
        (Found::Kernel, Found::Stream(held)) => flags_of_pipe(from, libc::O_WRONLY).and_then(|now| {
            let waits = flags & libc::SPLICE_F_NONBLOCK == 0 && now & libc::O_NONBLOCK == 0;
            let pipe = Pipe { fd: from, sleeps: now & libc::O_NONBLOCK == 0 };
            match held.end() {
                _ if !from_offset.is_null() => Err(libc::ESPIPE),
                Some(end) if no_offsets => {
                    let more = if flags & libc::SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
                    from_pipe(pipe, (to, &held, end), length, (waits, more))
                }
                Some(_) => Err(libc::EINVAL),
                None => Err(libc::EBADF),
            }
        }),
        _ => Err(libc::EINVAL),
    })
}

/// `tee(2)`: of pipes alone.
///
/// # Safety
/// As `tee(2)`.
pub unsafe fn tee(from: c_int, to: c_int, length: size_t, flags: c_uint) -> ssize_t {
    if matches!(find(from), Found::Kernel) && matches!(find(to), Found::Kernel) {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { originals::tee(from, to, length, flags) };
    }
    sys::to_c(if length == 0 { Ok(0) } else { Err(libc::EINVAL) })
}

/// `sendfile(2)` of a connection, which may go to a pipe.
///
/// # Errors
/// `EINVAL`: anything else. `ESPIPE`: an offset.
pub(crate) fn send_stream(
    out: c_int,
    (from, held): (c_int, &Held),
    is_positioned: bool,
    length: usize,
) -> Outcome {
    let end = held.end().ok_or(libc::EBADF)?;
    if is_positioned {
        return Err(libc::ESPIPE);
    }
    let now = flags_of_pipe(out, libc::O_RDONLY)?;
    if length == 0 {
        return Ok(0);
    }
    let pipe = Pipe { fd: out, sleeps: now & libc::O_NONBLOCK == 0 };
    to_pipe((from, held, end), pipe, length.min(MAX_BYTES), pipe.sleeps)
}

/// The flags of a pipe, whose other end has the mode `other`.
///
/// # Errors
/// `EINVAL`: it is none. `EBADF`: it is the other end.
fn flags_of_pipe(fd: c_int, other: c_int) -> Result<c_int, Errno> {
    let flags = kernel::fcntl(fd, libc::F_GETFL, 0)? as c_int;
    if flags & libc::O_ACCMODE == other {
        return Err(libc::EBADF);
    }
    // SAFETY: zeros are a value of it.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    let arguments = [signed(fd), sys::address_mut(&raw mut found), 0, 0, 0, 0];
    // SAFETY: the kernel writes what it finds.
    unsafe { sys::syscall(libc::SYS_fstat, arguments) }?;
    if found.st_mode & libc::S_IFMT == libc::S_IFIFO { Ok(flags) } else { Err(libc::EINVAL) }
}

/// An end of a pipe.
#[derive(Clone, Copy, Debug)]
struct Pipe {
    fd: c_int,
    /// Whether plain calls wait for it: it has no O_NONBLOCK.
    sleeps: bool,
}

/// What the pipe is ready for of `wanted`, or a hang-up; waits for that if `waits`.
fn ready(pipe: Pipe, wanted: i16, waits: bool) -> Result<i16, Errno> {
    let mut entry = [libc::pollfd { fd: pipe.fd, events: wanted, revents: 0 }];
    let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let (all, interrupting) = (handlers::count(), handlers::interrupting());
    loop {
        return match kernel::poll(&mut entry, (!waits).then_some(none)) {
            Ok(0) => Err(libc::EAGAIN),
            Ok(_) => Ok(entry[0].revents),
            // Linux restarts a splice after these handlers, but no poll.
            Err(libc::EINTR) if handlers::count() != all && handlers::interrupting() == interrupting => {
                continue;
            }
            Err(errno) => Err(errno),
        };
    }
}

/// The calls that write a pipe, and those that read it: with flags, and plain.
const WRITE: (i64, i64) = (libc::SYS_pwritev2, libc::SYS_writev);
const READ: (i64, i64) = (libc::SYS_preadv2, libc::SYS_readv);

/// Reads from or writes to a pipe without sleeping, up to all bytes of the vectors.
///
/// # Errors
/// `EOPNOTSUPP`: only a call that may sleep can do it. Others as the calls.
fn move_at_once((with_flags, plain): (i64, i64), pipe: Pipe, vectors: &[iovec]) -> Outcome {
    if !seccomp::is_restricted() {
        let (first, count) = (sys::address(vectors.as_ptr()), vectors.len());
        let nowait = signed(libc::RWF_NOWAIT);
        // SAFETY: the vectors are the callers': bytes of the ring, whose lock they hold, or a copy.
        let moved =
            unsafe { sys::syscall(with_flags, [signed(pipe.fd), first, count, usize::MAX, 0, nowait]) };
        if moved != Err(libc::EOPNOTSUPP) {
            return moved;
        }
    }
    if pipe.sleeps { Err(libc::EOPNOTSUPP) } else { move_plainly(plain, pipe, vectors) }
}

/// The same, where it may sleep. The caller holds no lock.
fn move_plainly(plain: i64, pipe: Pipe, vectors: &[iovec]) -> Outcome {
    let (first, count) = (sys::address(vectors.as_ptr()), vectors.len());
    // SAFETY: as above.
    unsafe { sys::syscall(plain, [signed(pipe.fd), first, count, 0, 0, 0]) }
}

/// From a connection.
fn to_pipe((fd, held, end): (c_int, &Held, &Endpoint), pipe: Pipe, length: usize, waits: bool) -> Outcome {
    loop {
        // The pipe first, as Linux.
        if ready(pipe, libc::POLLOUT, waits)? & libc::POLLERR != 0 {
            return Err(send::broken(0));
        }
        let mut byte = 0_u8;
        let one = [vector((&raw mut byte).cast(), 1)];
        // SAFETY: a byte.
        if unsafe { receive::receive(fd, held, end, &one, libc::MSG_PEEK) }? == 0 {
            return Ok(0);
        }
        let moved = match drain(end, pipe, length) {
            Err(libc::EOPNOTSUPP) => take_and_write(end, pipe, length),
            moved => moved,
        };
        peer::notify(fd, end, end.room_notification());
        match moved {
            // Another thread has taken the bytes, or filled the pipe.
            Ok(0) => {}
            Err(libc::EAGAIN) if waits => {}
            moved => return moved,
        }
    }
}

/// Moves what is in the ring, and fits.
fn drain(end: &Endpoint, pipe: Pipe, length: usize) -> Outcome {
    // No handler jumps out of the copy and leaves the lock.
    let _section = Section::enter();
    let mut receive = end.receive().ok_or(libc::EINTR)?;
    let mut chunk = [0_u8; CHUNK];
    let to = chunk.as_mut_ptr();
    let mut done = 0;
    while done < length {
        // SAFETY: so many bytes are there.
        let copied = match unsafe { receive.copy_to(to, CHUNK.min(length - done), 0) } {
            Ok(0) | Err(CopyFault::RefusedPage) => break,
            Ok(copied) => copied,
            Err(CopyFault::Buffer) => return Err(libc::EFAULT),
        };
        let piece = [vector(to.cast(), copied)];
        match move_at_once(WRITE, pipe, &piece) {
            Ok(written) => {
                receive.consume(written);
                done += written;
                if written < copied {
                    break;
                }
            }
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// The same of a page, which leaves the ring before the pipe has it.
fn take_and_write(end: &Endpoint, pipe: Pipe, length: usize) -> Outcome {
    let mut page = [0_u8; PAGE];
    let section = Section::enter();
    let mut receive = end.receive().ok_or(libc::EINTR)?;
    // SAFETY: so many bytes are there.
    let taken = match unsafe { receive.copy_to(page.as_mut_ptr(), PAGE.min(length), 0) } {
        Ok(taken) => taken,
        Err(CopyFault::RefusedPage) => 0,
        Err(CopyFault::Buffer) => return Err(libc::EFAULT),
    };
    receive.consume(taken);
    drop(receive);
    drop(section);
    loop {
        // All or nothing, for a page (PIPE_BUF).
        match move_plainly(WRITE.1, pipe, &[vector(page.as_mut_ptr().cast(), taken)]) {
            Err(libc::EINTR) => {}
            // Another thread has set O_NONBLOCK, and filled the pipe.
            Err(libc::EAGAIN) => drop(ready(pipe, libc::POLLOUT, true)),
            written => return written,
        }
    }
}

/// To a connection.
fn from_pipe(
    pipe: Pipe,
    (fd, held, end): (c_int, &Held, &Endpoint),
    length: usize,
    (waits, more): (bool, c_int),
) -> Outcome {
    let nonblocking = is_nonblocking(end, 0);
    let deadline = option_words::deadline(end, option_words::SEND_TIMEOUT);
    let mut call: Option<BlockedCall<'_>> = None;
    let mut done = 0;
    let answer = loop {
        if done == length {
            break Ok(());
        }
        let fd = call.as_ref().map_or(fd, BlockedCall::fd);
        match ready(pipe, libc::POLLIN, waits && done == 0) {
            Ok(events) if events & libc::POLLIN != 0 => {}
            // No writer is left.
            Ok(_) => break Ok(()),
            Err(errno) => break Err(errno),
        }
        let moved = match send::may_send(fd, end, length - done, 0) {
            Err(errno) => break Err(errno),
            // The peer has closed: the bytes are read all the same, and dropped.
            Ok(Some(taken)) => Some(read_and_drop(pipe, taken)),
            Ok(None) if !peer::is_set_up(end) => None,
            Ok(None) => {
                let mut room = 0;
                let moved = send::fill(end, length - done, more, |vectors| {
                    room = vectors.iter().map(|vector| vector.iov_len).sum();
                    move_at_once(READ, pipe, vectors)
                });
                peer::notify_data(fd, end);
                match moved {
                    Some(Err(libc::EOPNOTSUPP)) => {
                        Some(read_and_send(pipe, (fd, held, end), room.min(PAGE), more, &mut call))
                    }
                    moved => moved,
                }
            }
        };
        match moved {
            Some(Ok(0)) => break Ok(()),
            Some(Ok(bytes)) => done += bytes,
            // Another thread has read the pipe, or the next check finds a reset.
            Some(Err(libc::EAGAIN | libc::EFAULT)) => {}
            Some(Err(errno)) => break Err(errno),
            None => {
                hooks::note_no_room(held, end);
                if nonblocking {
                    break Err(libc::EAGAIN);
                }
                let how = SleepOptions { want: Want::Room, deadline, restart: done == 0 };
                let call = call.get_or_insert_with(|| BlockedCall::begin(fd, held));
                let room = || peer::is_set_up(end) && peer::room_ready(end);
                if let Err(errno) = blocked::sleep_until(call, end, how, room) {
                    break Err(errno);
                }
            }
        }
    };
    if done == 0 { answer.map(|()| 0) } else { Ok(done) }
}

/// Sends what a pipe has, up to `most` bytes, for which there was room. It sleeps as a part of
/// `call`: a second registration of one descriptor would give its reference back twice after a jump
/// ([`longjmp`]).
///
/// [`longjmp`]: crate::signal::longjmp
fn read_and_send<'a>(
    pipe: Pipe,
    (fd, held, end): (c_int, &'a Held, &Endpoint),
    most: usize,
    more: c_int,
    call: &mut Option<BlockedCall<'a>>,
) -> Outcome {
    let mut page = [0_u8; PAGE];
    let bytes = move_plainly(READ.1, pipe, &[vector(page.as_mut_ptr().cast(), most)])?;
    let mut sent = 0;
    while let Some(rest) = page.get_mut(sent..bytes).filter(|rest| !rest.is_empty()) {
        let piece = [vector(rest.as_mut_ptr().cast(), rest.len())];
        // SAFETY: so many bytes are there.
        let outcome = match unsafe { send::send(fd, held, end, &piece, more | libc::MSG_DONTWAIT) } {
            Ok(now) => {
                sent += now;
                Ok(())
            }
            // Another thread has sent.
            Err(libc::EAGAIN) => {
                let how = SleepOptions { want: Want::Room, deadline: None, restart: true };
                let call = call.get_or_insert_with(|| BlockedCall::begin(fd, held));
                blocked::sleep_until(call, end, how, || peer::room_ready(end))
            }
            Err(errno) => Err(errno),
        };
        match outcome {
            Ok(()) | Err(libc::EINTR) => {}
            Err(errno) if sent == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(sent)
}

fn read_and_drop(pipe: Pipe, most: usize) -> Outcome {
    let mut dropped = [0_u8; PAGE];
    let piece = [vector(dropped.as_mut_ptr().cast(), most.min(PAGE))];
    match move_at_once(READ, pipe, &piece) {
        Err(libc::EOPNOTSUPP) => move_plainly(READ.1, pipe, &piece),
        moved => moved,
    }
}
