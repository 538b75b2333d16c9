//! Reading from a connection: `read`, `recv` and the calls like them.
//!
//! 1. Bytes in the ring are copied out at once, before the end of the connection is reported: a
//!    reset is reported only when everything was read.
//! 2. If there are none, the call returns the end (0), a pending error or EAGAIN, or sleeps, in the
//!    order of Linux's `tcp_recvmsg`.
//! 3. With SO_PEEK_OFF, a call with MSG_PEEK begins behind what the one before it has copied.
//! 4. The call returns when it has as many bytes as `SO_RCVLOWAT` requires (normally one), or all
//!    with MSG_WAITALL.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;

use libc::iovec;
use rustix::io::Errno as Error;
use sietch_ring::stream::{CopyFault, Endpoint, Want, flag};
use sietch_stream::outcome;

use crate::calls::data::vectors::{self, Stopped, total};
use crate::connection::blocked::{self, BlockedCall, SleepOptions};
use crate::connection::placeholder::Number;
use crate::connection::status::{self, is_nonblocking};
use crate::connection::{option_words, peer, short_lived};
use crate::descriptor::description::Held;
use crate::signal::handlers::Section;
use crate::signal::user_memory;
use crate::system::sys::{Errno, Outcome};

/// Bytes that a call with MSG_PEEK has copied or passed over, of those still in the ring.
#[derive(Clone, Copy, Debug, Default)]
struct Peeked {
    /// The position in the stream up to which it was read.
    from: u64,
    /// Bytes from there on that are copied or passed over.
    bytes: usize,
    /// Another reader has taken some of them.
    disturbed: bool,
}

impl Peeked {
    /// Before each check: bytes that another reader has taken meanwhile are not copied any more.
    /// Linux's `tcp_recvmsg` then begins with the bytes that are there, however much it has copied.
    fn restart_if_read(&mut self, position: u64) {
        if self.bytes != 0 && (self.disturbed || self.from != position) {
            (self.bytes, self.disturbed) = (0, true);
        }
        self.from = position;
    }
}

/// Takes what is there, up to `most` bytes beginning `done` bytes into the vectors. If a vector is
/// not mapped, nothing is taken.
///
/// # Safety
/// The vectors are the program's, or `flags` has MSG_TRUNC.
#[inline(always)]
unsafe fn take(
    end: &Endpoint,
    vectors: &[iovec],
    done: usize,
    most: usize,
    flags: c_int,
    peeked: &mut Peeked,
) -> Result<usize, Stopped> {
    // No handler jumps out of the copy and leaves the lock.
    let _section = Section::enter();
    let peek = flags & libc::MSG_PEEK != 0;
    let receive = if peek { end.peek() } else { end.receive() };
    let mut receive = receive.ok_or(Stopped::Reentered)?;
    if let ([vector], 0) = (vectors, done | (flags & (libc::MSG_PEEK | libc::MSG_TRUNC)) as usize) {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { receive.read_to(vector.iov_base.cast(), vector.iov_len.min(most)) }.or_else(cut_off);
    }
    // Under the lock of readers, as its change below.
    let peeks_after = if peek { option_words::peeks_after(end, receive.position()) } else { None };
    match peeks_after {
        Some(bytes) => (peeked.from, peeked.bytes) = (receive.position(), bytes),
        None if peek => peeked.restart_if_read(receive.position()),
        None => {}
    }
    if peek && peeked.bytes == 0 {
        peeked.bytes = receive.passes_over();
    }
    let skip = peeked.bytes;
    let there = receive.available().saturating_sub(skip).min(most);
    let mut copied = 0;
    if flags & libc::MSG_TRUNC != 0 {
        copied = there;
    } else if there != 0 {
        let mut before = 0;
        for vector in vectors {
            let begin = (done + copied).saturating_sub(before).min(vector.iov_len);
            before += vector.iov_len;
            let now = (vector.iov_len - begin).min(there - copied);
            if now == 0 {
                continue;
            }
            let to = vector.iov_base.cast::<u8>().wrapping_add(begin);
            // SAFETY: the caller upholds this function's contract: the vector has `iov_len` bytes,
            // `begin + now` of which are used.
            match unsafe { receive.copy_to(to, now, skip + copied) } {
                Ok(now) => copied += now,
                Err(cut) => return cut_off(cut),
            }
        }
    }
    if peek {
        peeked.bytes += copied;
        if peeks_after.is_some() {
            option_words::advance_peek(end, receive.position(), peeked.bytes);
        }
    } else {
        receive.consume(copied);
    }
    Ok(copied)
}

/// A copy has met a fault. After a hole in the ring the call continues, and finds a reset.
#[cold]
fn cut_off(cut: CopyFault) -> Result<usize, Stopped> {
    match cut {
        CopyFault::Buffer => Err(Stopped::Fault(0)),
        CopyFault::RefusedPage => Ok(0),
    }
}

/// `recvmsg` of a stream, without names.
///
/// # Safety
/// The vectors may be written, unless `flags` has MSG_TRUNC.
///
/// # Errors
/// As `recv(2)`.
pub(crate) unsafe fn receive(
    fd: c_int,
    held: &Held,
    end: &Endpoint,
    vectors: &[iovec],
    flags: c_int,
) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    unsafe { receive_in_line(fd, held, end, vectors, flags) }
}

/// As [`receive`], into one piece, compiled for that.
///
/// # Safety
/// The bytes may be written, unless `flags` has MSG_TRUNC.
///
/// # Errors
/// As `recv(2)`.
#[inline(always)]
pub(crate) unsafe fn receive_piece(
    fd: c_int,
    held: &Held,
    end: &Endpoint,
    (to, length): (*mut c_void, usize),
    flags: c_int,
) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    unsafe { receive_in_line(fd, held, end, &[vectors::vector(to, length)], flags) }
}

/// See [`receive`].
///
/// # Safety
/// The vectors may be written, unless `flags` has MSG_TRUNC.
#[inline(always)]
unsafe fn receive_in_line(
    fd: c_int,
    held: &Held,
    end: &Endpoint,
    vectors: &[iovec],
    flags: c_int,
) -> Outcome {
    if flags & libc::MSG_OOB != 0 {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { receive_urgent(fd, held, end, vectors, flags) };
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(libc::EAGAIN);
    }
    let length = total(vectors)?;
    if flags & libc::MSG_TRUNC == 0
        && let Some(good) = vectors::before_bad_address(vectors)
    {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { receive_past_bad_address(fd, held, end, good, flags) };
    }
    let target = if flags & libc::MSG_WAITALL != 0 {
        length
    } else {
        length.min(option_words::get(end, option_words::RECEIVE_LOW).map_or(1, |low| low as usize).max(1))
    };
    let mut progress = Progress::default();
    // SAFETY: the caller upholds this function's contract.
    if let Some(outcome) = unsafe { attempt(fd, held, end, (vectors, length, target), flags, &mut progress) }
    {
        return outcome;
    }
    // SAFETY: as above.
    unsafe { receive_waiting(fd, held, end, (vectors, length, target), flags, progress) }
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Bytes that it returns.
    done: usize,
    peeked: Peeked,
}

/// Takes what is there, up to `length` bytes. The result of the call if that is `target` bytes or
/// an error.
///
/// # Safety
/// As [`receive`].
#[inline(always)]
unsafe fn attempt(
    fd: c_int,
    held: &Held,
    end: &Endpoint,
    (vectors, length, target): (&[iovec], usize, usize),
    flags: c_int,
    progress: &mut Progress,
) -> Option<Outcome> {
    let Progress { done, peeked } = progress;
    // SAFETY: the caller upholds this function's contract.
    match unsafe { take(end, vectors, *done, length - *done, flags, peeked) } {
        Ok(0) => {}
        Ok(taken) => {
            *done += taken;
            if flags & libc::MSG_PEEK == 0 {
                peer::notify(fd, end, end.room_notification());
            }
        }
        Err(Stopped::Fault(_)) => return Some(if *done != 0 { Ok(*done) } else { Err(libc::EFAULT) }),
        Err(Stopped::Reentered) if is_nonblocking(end, flags) => return Some(Err(libc::EAGAIN)),
        Err(Stopped::Reentered) => return Some(Err(libc::EINTR)),
    }
    if *done >= target && (*done != 0 || end.readable() != 0) {
        short_lived::count_call(held);
        return Some(Ok(*done));
    }
    None
}

/// The rest of a call that has not found enough: sleeps until there is more, unless the call is
/// nonblocking.
///
/// # Safety
/// As [`receive`].
#[inline(never)]
unsafe fn receive_waiting(
    fd: c_int,
    held: &Held,
    end: &Endpoint,
    (vectors, length, target): (&[iovec], usize, usize),
    flags: c_int,
    mut progress: Progress,
) -> Outcome {
    let nonblocking = is_nonblocking(end, flags);
    let mut deadline = None;
    let mut call: Option<BlockedCall<'_>> = None;
    let mut fd = fd;
    loop {
        let Progress { done, peeked: Peeked { bytes: seen, .. } } = progress;
        let answer = if done == 0 && seen == 0 { nothing(fd, end) } else { result_after_some(end, seen) };
        if let Some(answer) = answer {
            return answer.map(|_| done);
        }
        // A call does not read past urgent data.
        if done != 0 && end.is_at_mark() {
            return Ok(done);
        }
        // A byte may have come since; an end cannot have been seen before it.
        let comes = end.readable() > seen
            || (end.is_worth_polling() || nonblocking && !just_emptied(held, end))
                && peer::check_peer_closed(fd, end);
        if !comes {
            if nonblocking {
                return if done == 0 { Err(libc::EAGAIN) } else { Ok(done) };
            }
            deadline = deadline.or_else(|| option_words::deadline(end, option_words::RECEIVE_TIMEOUT));
            let ready = || peer::data_ready(end, seen);
            let how = SleepOptions { want: Want::Data, deadline, restart: done == 0 && length != 0 };
            let call = call.get_or_insert_with(|| BlockedCall::begin(fd, held));
            match blocked::sleep_until(call, end, how, ready) {
                // Linux sleeps once for a receive of nothing, and any wake-up ends it.
                Ok(()) | Err(libc::EINTR | libc::EAGAIN) if length == 0 => return Ok(0),
                Ok(()) => fd = call.fd(),
                Err(_) if done != 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
        }
        // SAFETY: the caller upholds this function's contract.
        let outcome = unsafe { attempt(fd, held, end, (vectors, length, target), flags, &mut progress) };
        if let Some(outcome) = outcome {
            return outcome;
        }
    }
}

/// The urgent byte (Linux's `tcp_recv_urg`).
///
/// # Safety
/// As [`receive`].
#[cold]
unsafe fn receive_urgent(fd: c_int, held: &Held, end: &Endpoint, vectors: &[iovec], flags: c_int) -> Outcome {
    if !end.may_take_urgent() {
        return Err(libc::EINVAL);
    }
    status::refresh(fd, held);
    if end.private().has(flag::RESET) {
        return Err(libc::ENOTCONN);
    }
    let _section = Section::enter();
    let byte = end.take_urgent(flags & libc::MSG_PEEK != 0).ok_or(libc::EINVAL)?;
    let Some(vector) = vectors.iter().find(|vector| vector.iov_len != 0) else { return Ok(0) };
    if flags & libc::MSG_TRUNC == 0 {
        // SAFETY: the caller upholds this function's contract.
        unsafe { user_memory::write(vector.iov_base.cast(), byte) }?;
    }
    Ok(1)
}

/// A receive of which not all vectors can be addresses. It fills the `good` vectors before the
/// first bad one if that is enough; otherwise it returns `EFAULT` once there are bytes, which stay.
///
/// # Safety
/// The vectors may be written.
#[cold]
unsafe fn receive_past_bad_address(
    fd: c_int,
    held: &Held,
    end: &Endpoint,
    good: &[iovec],
    flags: c_int,
) -> Outcome {
    if (1..=total(good)?).contains(&end.readable()) {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { receive(fd, held, end, good, flags) };
    }
    let mut byte = 0_u8;
    let one = [iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
    // SAFETY: a byte.
    match unsafe { receive(fd, held, end, &one, flags | libc::MSG_PEEK) }? {
        0 => Ok(0),
        _ => Err(libc::EFAULT),
    }
}

/// Whether a nonblocking call finds nothing for the first time since the peer has published
/// something. Then the peer was there just now, and only the next call checks with the kernel.
/// Otherwise servers that read until there is nothing would check with every request. A peer that
/// closes or exits leaves a hint, and then the call checks at once. The kernel reports killed peers
/// to every wait.
fn just_emptied(held: &Held, end: &Endpoint) -> bool {
    let now = end.published();
    held.emptied.load(Relaxed) != now && held.emptied.swap(now, Relaxed) != now
}

/// The result of a call that could read nothing; none: bytes may come later.
pub(crate) fn nothing(fd: c_int, end: &Endpoint) -> Option<Outcome> {
    let found = outcome::nothing(Number(fd, end), end)?;
    Some(found.map(|()| 0).map_err(Error::raw_os_error))
}

/// The same when something was read already: an error stays for the next call.
fn result_after_some(end: &Endpoint, peeked: usize) -> Option<Outcome> {
    outcome::nothing_more(end, peeked).then_some(Ok(0))
}

/// `readv` of a stream.
///
/// # Safety
/// The vectors may be written.
///
/// # Errors
/// As `read(2)`.
pub(crate) unsafe fn read(fd: c_int, held: &Held, end: &Endpoint, vectors: &[iovec]) -> Outcome {
    // Linux returns 0 for a read of nothing without a check of the socket, but not for a recv of
    // nothing.
    if total(vectors)? == 0 {
        return Ok(0);
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { receive(fd, held, end, vectors, 0) }
}

/// `read` of a stream.
///
/// # Safety
/// The bytes may be written.
///
/// # Errors
/// As `read(2)`.
#[inline(always)]
pub(crate) unsafe fn read_piece(
    fd: c_int,
    held: &Held,
    end: &Endpoint,
    (to, length): (*mut c_void, usize),
) -> Outcome {
    // As in `readv`.
    if length == 0 {
        return Ok(0);
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { receive_piece(fd, held, end, (to, length), 0) }
}

/// Why nothing can be received from a socket that is not connected.
pub(crate) fn unconnected(flags: c_int) -> Errno {
    if flags & libc::MSG_ERRQUEUE != 0 { libc::EAGAIN } else { libc::ENOTCONN }
}
