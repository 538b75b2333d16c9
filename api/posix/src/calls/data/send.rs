//! Writing to a connection: `write`, `send` and the calls like them.
//!
//! 1. As much as fits is copied into the ring and published, and sleepers at the other end are
//!    notified. A blocking call sleeps for room until everything is in; a nonblocking one returns
//!    how much was. With MSG_MORE or TCP_CORK the bytes are written and not published, provided
//!    that all of them fit. Sleepers are notified all the same, so that they sleep no longer than
//!    until the bytes are due. If the program's memory is not mapped, the whole piece with that
//!    byte is not sent: EFAULT, as on Linux.
//! 2. A write to a peer that has closed returns what Linux returns, with SIGPIPE beside EPIPE
//!    ([`sietch_stream::outcome`]).

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use libc::iovec;
use sietch_ring::stream::{CopyFault, Endpoint, Send, Want, flag};
use sietch_stream::outcome::{self, SendRefused};

use crate::calls::data::vectors::{self, Stopped, total};
use crate::connection::blocked::{self, BlockedCall, SleepOptions};
use crate::connection::placeholder::Number;
use crate::connection::status::is_nonblocking;
use crate::connection::{option_words, peer, short_lived};
use crate::descriptor::description::Held;
use crate::readiness::{hooks, polling};
use crate::signal::handlers::Section;
use crate::system::kernel;
use crate::system::sys::{Errno, Outcome};

/// Whether the bytes of a call wait for those of the next (MSG_MORE, TCP_CORK). On a VNIC the
/// engine does that itself.
#[inline]
pub(crate) fn holds(end: &Endpoint, flags: c_int) -> bool {
    let now = end.private().flags.load(Relaxed);
    now & flag::CORKED != 0 || flags & libc::MSG_MORE != 0 && now & flag::SERVED == 0
}

/// Copies what fits, beginning `done` bytes into the vectors, and publishes it unless it is to be
/// held back.
///
/// # Safety
/// The vectors are the program's.
#[inline(always)]
unsafe fn put(end: &Endpoint, vectors: &[iovec], done: usize, flags: c_int) -> Result<usize, Stopped> {
    // No handler jumps out of the copy and leaves the lock.
    let _section = Section::enter();
    let mut send = end.send().ok_or(Stopped::Reentered)?;
    let mark = send.staged();
    let urgent = flags & libc::MSG_OOB != 0;
    if let ([vector], 0) = (vectors, done | usize::from(urgent)) {
        // SAFETY: the caller upholds this function's contract.
        let copied = unsafe { send.copy_from(vector.iov_base.cast::<u8>().cast_const(), vector.iov_len) };
        let copied = copied.or_else(|cut| cut_off(&mut send, mark, cut))?;
        if copied == vector.iov_len && holds(end, flags) {
            send.cork();
        } else {
            send.finish();
        }
        return Ok(copied);
    }
    let (mut copied, mut before, mut whole) = (0, 0, true);
    for vector in vectors {
        let begin = (done + copied).saturating_sub(before).min(vector.iov_len);
        before += vector.iov_len;
        let length = vector.iov_len - begin;
        if length == 0 {
            continue;
        }
        // SAFETY: the caller upholds this function's contract: the vector has `iov_len` bytes.
        let now =
            unsafe { send.copy_from(vector.iov_base.cast::<u8>().cast_const().wrapping_add(begin), length) };
        let now = match now {
            Ok(now) => now,
            Err(cut) => return cut_off(&mut send, mark, cut),
        };
        copied += now;
        if now < length {
            whole = false;
            break;
        }
    }
    if urgent && copied != 0 {
        send.mark_urgent();
    } else if whole && holds(end, flags) {
        send.cork();
    }
    Ok(copied)
}

/// A copy has met a fault: nothing of the call counts that has not been published already. After a
/// hole in the ring the call continues, and finds a reset.
#[cold]
fn cut_off(send: &mut Send<'_>, mark: u64, cut: CopyFault) -> Result<usize, Stopped> {
    let kept = send.take_back(mark);
    match cut {
        CopyFault::Buffer => Err(Stopped::Fault(kept)),
        CopyFault::RefusedPage => Ok(kept),
    }
}

/// Has `read` fill the free space of the ring, up to `most` bytes. None: there is no room. EFAULT:
/// the connection is reset.
pub(crate) fn fill(
    end: &Endpoint,
    most: usize,
    flags: c_int,
    read: impl FnOnce(&[iovec; 2]) -> Outcome,
) -> Option<Outcome> {
    // No handler jumps out of the read and leaves the lock.
    let _section = Section::enter();
    let Some(mut send) = end.send() else { return Some(Err(libc::EINTR)) };
    let mut left = most;
    let space = send.space();
    let room = space[0].1 + space[1].1;
    if room == 0 {
        return None;
    }
    let vectors = space.map(|(to, bytes)| {
        let now = bytes.min(left);
        left -= now;
        iovec { iov_base: to.cast(), iov_len: now }
    });
    let read = read(&vectors);
    match read {
        Err(libc::EFAULT) => end.page_refused(),
        Ok(bytes) => {
            send.stage(bytes);
            if bytes != 0 && bytes < room && holds(end, flags) {
                send.cork();
            }
        }
        Err(_) => {}
    }
    Some(read)
}

/// `EPIPE`, with its signal unless the call suppresses it.
pub(crate) fn broken(flags: c_int) -> Errno {
    if flags & libc::MSG_NOSIGNAL == 0 {
        kernel::raise_sigpipe();
    }
    libc::EPIPE
}

/// An error if nothing may be sent. If the peer has closed, the number of bytes that are taken and
/// dropped.
///
/// # Errors
/// As `send(2)`.
#[cold]
pub(crate) fn may_send(
    fd: c_int,
    end: &Endpoint,
    length: usize,
    flags: c_int,
) -> Result<Option<usize>, Errno> {
    outcome::may_send(Number(fd, end), end, length).map_err(|refused| match refused {
        SendRefused::Broken => broken(flags),
        SendRefused::Failed(errno) => errno.raw_os_error(),
    })
}

/// TCP_USER_TIMEOUT begins to run, or ends the connection. Threads that sleep in an epoll which
/// watches it have to know.
#[cold]
pub(crate) fn note_stall(held: &Held, end: &Endpoint) {
    let before = end.is_stalled();
    if end.user_timeout_left().is_some() && !before {
        hooks::wake_watchers(held);
    }
}

/// `sendmsg` of a stream.
///
/// # Safety
/// The vectors may be read.
///
/// # Errors
/// As `send(2)`.
pub(crate) unsafe fn send(
    fd: c_int,
    held: &Held,
    end: &Endpoint,
    vectors: &[iovec],
    flags: c_int,
) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    unsafe { send_in_line(fd, held, end, vectors, flags) }
}

/// As [`send`], of one piece, compiled for that.
///
/// # Safety
/// The bytes may be read.
///
/// # Errors
/// As `send(2)`.
#[inline(always)]
pub(crate) unsafe fn send_piece(
    fd: c_int,
    held: &Held,
    end: &Endpoint,
    (from, length): (*const c_void, usize),
    flags: c_int,
) -> Outcome {
    // SAFETY: the caller upholds this function's contract; the vector is only read.
    unsafe { send_in_line(fd, held, end, &[vectors::vector(from.cast_mut(), length)], flags) }
}

/// See [`send`].
///
/// # Safety
/// The vectors may be read.
#[inline(always)]
unsafe fn send_in_line(fd: c_int, held: &Held, end: &Endpoint, vectors: &[iovec], flags: c_int) -> Outcome {
    // An engine has no urgent data.
    if flags & libc::MSG_OOB != 0 && end.private().has(flag::SERVED) {
        return Err(libc::EOPNOTSUPP);
    }
    let length = total(vectors)?;
    if vectors::before_bad_address(vectors).is_some() {
        // Linux checks the connection before it checks the data, and takes nothing.
        may_send(fd, end, 0, flags)?;
        return Err(libc::EFAULT);
    }
    if length == 0 {
        if end.is_worth_polling() {
            peer::check_peer_closed(fd, end);
        }
        // No bytes, no segment that a reset would answer.
        if end.private().flags.load(Acquire) & (flag::SHUT_WR | flag::HUNG_UP | flag::RESET) == flag::HUNG_UP
        {
            return Ok(0);
        }
    }
    // SAFETY: the caller upholds this function's contract.
    match unsafe { attempt(fd, held, end, (vectors, length, 0), flags) } {
        Attempt::Ended(outcome) => outcome,
        // SAFETY: as above.
        Attempt::NoRoom(done) => unsafe { send_waiting(fd, held, end, (vectors, length, done), flags) },
    }
}

/// What became of an attempt to send.
enum Attempt {
    /// The call has its result.
    Ended(Outcome),
    /// So many bytes are sent, and there is no room for the next.
    NoRoom(usize),
}

/// Sends what there is room for of `length` bytes, beginning `done` bytes into the vectors.
///
/// # Safety
/// The vectors may be read.
#[inline(always)]
unsafe fn attempt(
    fd: c_int,
    held: &Held,
    end: &Endpoint,
    (vectors, length, done): (&[iovec], usize, usize),
    flags: c_int,
) -> Attempt {
    let usual = outcome::may_send_at_once(end);
    if !usual {
        note_stall(held, end);
        let quietly = if done == 0 { flags } else { flags | libc::MSG_NOSIGNAL };
        match may_send(fd, end, length - done, quietly) {
            Ok(None) => {}
            Ok(Some(taken)) => return Attempt::Ended(Ok(done + taken)),
            Err(errno) if done != 0 => {
                // An error stays for the next call.
                if errno != libc::EPIPE {
                    end.private().error.store(errno.cast_unsigned(), Release);
                }
                return Attempt::Ended(Ok(done));
            }
            Err(errno) => return Attempt::Ended(Err(errno)),
        }
    }
    if !peer::is_set_up(end) {
        return Attempt::NoRoom(done);
    }
    // SAFETY: the caller upholds this function's contract.
    let done = match unsafe { put(end, vectors, done, flags) } {
        Ok(copied) => {
            // Also if nothing fitted: held bytes may have been published.
            peer::notify_data(fd, end);
            if flags & libc::MSG_OOB != 0 && copied != 0 {
                peer::signal_urgent(fd, end);
            }
            polling::note_write(fd, held, end);
            if !usual {
                note_stall(held, end);
            }
            done + copied
        }
        Err(Stopped::Fault(kept)) => {
            peer::notify_data(fd, end);
            let done = done + kept;
            return Attempt::Ended(if done == 0 { Err(libc::EFAULT) } else { Ok(done) });
        }
        Err(Stopped::Reentered) => {
            let errno = if is_nonblocking(end, flags) { libc::EAGAIN } else { libc::EINTR };
            return Attempt::Ended(Err(errno));
        }
    };
    if done == length {
        short_lived::count_call(held);
        return Attempt::Ended(Ok(done));
    }
    hooks::note_no_room(held, end);
    Attempt::NoRoom(done)
}

/// The rest of a call for which there was no room: sleeps until there is some, unless the call is
/// nonblocking.
///
/// # Safety
/// The vectors may be read.
#[inline(never)]
unsafe fn send_waiting(
    fd: c_int,
    held: &Held,
    end: &Endpoint,
    (vectors, length, mut done): (&[iovec], usize, usize),
    flags: c_int,
) -> Outcome {
    let nonblocking = is_nonblocking(end, flags);
    let mut deadline = None;
    let mut call: Option<BlockedCall<'_>> = None;
    let mut fd = fd;
    loop {
        if nonblocking {
            if done != 0 || !peer::check_peer_closed(fd, end) {
                return if done == 0 { Err(libc::EAGAIN) } else { Ok(done) };
            }
        } else {
            let connected = peer::is_set_up(end);
            deadline = deadline.or_else(|| option_words::deadline(end, option_words::SEND_TIMEOUT));
            let ready = || peer::is_set_up(end) && (!connected || peer::room_ready(end));
            let how = SleepOptions { want: Want::Room, deadline, restart: done == 0 };
            let call = call.get_or_insert_with(|| BlockedCall::begin(fd, held));
            match blocked::sleep_until(call, end, how, ready) {
                Ok(()) => fd = call.fd(),
                Err(_) if done != 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
        }
        // SAFETY: the caller upholds this function's contract.
        match unsafe { attempt(fd, held, end, (vectors, length, done), flags) } {
            Attempt::Ended(outcome) => return outcome,
            Attempt::NoRoom(now) => done = now,
        }
    }
}
