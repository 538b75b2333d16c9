//! `sendmsg`, `recvmsg` and their plural forms; descriptors that arrive over Unix sockets.
//!
//! 1. A stream has no use for control data that are sent ([`control_data`] checks them). It returns
//!    those of TCP_INQ alone.
//! 2. Descriptors of ours can be sent over any Unix socket, because they are the kernel's. When
//!    descriptors arrive, the library queries the service about each Unix socket among them
//!    (`calls::descriptor::adopt`).

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering::Release;

use libc::{iovec, mmsghdr, msghdr, socklen_t, ssize_t, timespec};
use sietch_ring::stream::{Endpoint, flag};

use crate::calls::data::control_data::Refused;
use crate::calls::data::vectors::{self, Found, find, find_for_call, vectors};
use crate::calls::data::{control_data, names, receive, send};
use crate::calls::descriptor::adopt;
use crate::connection::option_words::{self, UNREAD_MESSAGE};
use crate::connection::status;
use crate::context;
use crate::descriptor::description::Held;
use crate::descriptor::kernel_calls;
use crate::signal::user_memory;
use crate::system::sys::{self, Errno, Outcome};
use crate::system::{kernel, originals};

/// `sendmsg(2)`.
///
/// # Safety
/// As `sendmsg(2)`.
pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    match find_for_call(fd) {
        // SAFETY: the caller upholds this function's contract.
        Found::Stream(held) => sys::to_c(held.end().map_or(Err(libc::EBADF), |end| unsafe {
            match check_sent(&held, message) {
                Ok(vectors) => send::send(fd, &held, end, vectors, flags),
                Err(Refused::BeforeState(errno)) => Err(errno),
                // Nothing is sent, and bytes that are held back stay so.
                Err(Refused::AfterState(errno)) => {
                    send::send(fd, &held, end, &[], flags & !libc::MSG_OOB | libc::MSG_MORE).and(Err(errno))
                }
            }
        })),
        // SAFETY: the caller upholds this function's contract.
        Found::Listener(held) => sys::to_c(Err(match unsafe { check_sent(&held, message) } {
            Err(Refused::BeforeState(errno)) => errno,
            _ => send::broken(flags),
        })),
        // SAFETY: the caller upholds this function's contract.
        Found::Kernel => kernel_calls::end(unsafe { originals::sendmsg(fd, message, flags) }),
    }
}

/// Checks a message that is sent, in the order of Linux. Returns its vectors.
///
/// # Safety
/// As `sendmsg(2)`.
unsafe fn check_sent<'a>(held: &Held, message: *const msghdr) -> Result<&'a [iovec], Refused> {
    // SAFETY: the caller upholds this function's contract.
    let (message, vectors) =
        unsafe { read(message, names::check_sent_message) }.map_err(Refused::BeforeState)?;
    if message.msg_controllen != 0 {
        // SAFETY: as above.
        unsafe { control_data::check(held, &message) }?;
    }
    Ok(vectors)
}

/// A message of the program and its vectors (`copy_msghdr_from_user` of Linux).
///
/// # Safety
/// As `sendmsg(2)` or `recvmsg(2)`.
unsafe fn read<'a>(
    message: *const msghdr,
    check_name: impl FnOnce(*const c_void, socklen_t) -> Result<(), Errno>,
) -> Result<(msghdr, &'a [iovec]), Errno> {
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        let message = user_memory::read(message)?;
        check_name(message.msg_name, message.msg_namelen)?;
        let vectors = vectors(message.msg_iov, message.msg_iovlen, libc::EMSGSIZE)?;
        vectors::total(vectors)?;
        Ok((message, vectors))
    }
}

/// `recvmsg(2)`.
///
/// # Safety
/// As `recvmsg(2)`.
pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    match find_for_call(fd) {
        // SAFETY: the caller upholds this function's contract.
        Found::Stream(held) => sys::to_c(held.end().map_or(Err(libc::EBADF), |end| unsafe {
            let to = message;
            let (mut message, vectors) = read(to, names::check_received_message)?;
            let count = receive::receive(fd, &held, end, vectors, flags)?;
            message.msg_namelen = 0;
            // MSG_TRUNC on a stream drops bytes, and reports nothing.
            message.msg_flags = flags & (libc::MSG_CMSG_CLOEXEC | libc::MSG_OOB);
            if flags & libc::MSG_OOB != 0 && count == 0 {
                message.msg_flags |= libc::MSG_TRUNC;
            }
            let unread = option_words::get(end, UNREAD_MESSAGE) == Some(1);
            message.msg_controllen = if unread { put_unread(end, &mut message) } else { 0 };
            user_memory::write(&raw mut (*to).msg_namelen, message.msg_namelen)?;
            user_memory::write(&raw mut (*to).msg_controllen, message.msg_controllen)?;
            user_memory::write(&raw mut (*to).msg_flags, message.msg_flags)?;
            Ok(count)
        })),
        // SAFETY: the caller upholds this function's contract.
        Found::Listener(_) => sys::to_c(
            unsafe { read(message, names::check_received_message) }
                .and_then(|_| Err(receive::unconnected(flags))),
        ),
        Found::Kernel => {
            // SAFETY: the caller upholds this function's contract.
            let answer = kernel_calls::end(unsafe { originals::recvmsg(fd, message, flags) });
            if answer >= 0 && context::get().is_some() {
                // SAFETY: the kernel has just filled the message in.
                unsafe { adopt::adopt_received(&*message) };
            }
            answer
        }
    }
}

/// The control message of TCP_INQ: how many bytes are left to read, and one more for the peer's FIN
/// (Linux's `tcp_inq_hint`). Returns the bytes of control data, as Linux's `put_cmsg` does. What
/// does not fit is cut off, and MSG_CTRUNC set.
///
/// # Safety
/// The control data may be written for as many bytes as the message says.
unsafe fn put_unread(end: &Endpoint, message: &mut msghdr) -> usize {
    const DATA: usize = size_of::<c_int>();
    let room = message.msg_controllen;
    // SAFETY: arithmetic.
    let (head, all, space) =
        unsafe { (libc::CMSG_LEN(0), libc::CMSG_LEN(DATA as c_uint), libc::CMSG_SPACE(DATA as c_uint)) };
    if room < all as usize {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
    if message.msg_control.is_null() || room < head as usize {
        message.msg_flags |= libc::MSG_CTRUNC;
        return 0;
    }
    let ended = end.finished_by_peer() || end.private().has(flag::HUNG_UP);
    let left = c_int::try_from(end.readable() + usize::from(ended)).unwrap_or(c_int::MAX);
    let length = room.min(all as usize);
    let header = libc::cmsghdr { cmsg_len: length, cmsg_level: libc::IPPROTO_TCP, cmsg_type: libc::TCP_INQ };
    let to = message.msg_control.cast::<u8>();
    // SAFETY: the caller upholds this function's contract. Linux ignores a fault here.
    let _ = unsafe {
        user_memory::write(to.cast(), header).and_then(|()| {
            let data = to.wrapping_add(head as usize);
            user_memory::write_bytes(data, (&raw const left).cast(), length - head as usize)
        })
    };
    room.min(space as usize)
}

/// `sendmmsg(2)`.
///
/// # Safety
/// As `sendmmsg(2)`.
pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if matches!(find(fd), Found::Kernel) {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { originals::sendmmsg(fd, messages, count, flags) };
    }
    let send = |index: usize| {
        let to = messages.wrapping_add(index);
        // SAFETY: the caller upholds this function's contract: `count` messages, or a fault is
        // answered.
        let message = unsafe { user_memory::read(to) }?;
        // SAFETY: the caller upholds this function's contract.
        let sent = sys::from_c(unsafe { sendmsg(fd, &raw const message.msg_hdr, flags) })?;
        // SAFETY: as above.
        unsafe { user_memory::write(&raw mut (*to).msg_len, sent as c_uint) }?;
        // SAFETY: the caller upholds this function's contract: `sendmsg` has read the same vectors.
        let vectors = unsafe { vectors(message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen, libc::EMSGSIZE) };
        // Behind a message that was sent in part the next one would leave a gap.
        Ok(sent < vectors.and_then(vectors::total)?)
    };
    sys::to_c_int(each(count, send).0)
}

/// `recvmmsg(2)`. The time-out is checked after each message, as in the kernel.
///
/// # Safety
/// As `recvmmsg(2)`.
pub unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if matches!(find(fd), Found::Kernel) {
        // SAFETY: the caller upholds this function's contract.
        let answer = unsafe { originals::recvmmsg(fd, messages, count, flags, timeout) };
        if answer > 0 && context::get().is_some() {
            for index in 0..answer.cast_unsigned() as usize {
                // SAFETY: the kernel has just filled that many in.
                unsafe { adopt::adopt_received(&(*messages.add(index)).msg_hdr) };
            }
        }
        return answer;
    }
    // Linux's do_recvmmsg() returns a pending error before it checks for data.
    if flags & libc::MSG_ERRQUEUE == 0
        && let Found::Stream(held) = find(fd)
        && let () = status::refresh(fd, &held)
        && let Some(errno) = held.end().and_then(status::take_error)
    {
        return sys::to_c_int(Err(errno));
    }
    // SAFETY: the caller upholds this function's contract.
    let time = (!timeout.is_null()).then(|| unsafe { user_memory::read(timeout) });
    let until = match time {
        None => None,
        Some(Err(errno)) => return sys::to_c_int(Err(errno)),
        Some(Ok(time)) if time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec) => {
            let seconds = time.tv_sec.cast_unsigned().saturating_mul(1_000_000_000);
            Some(kernel::now().saturating_add(seconds).saturating_add(time.tv_nsec.cast_unsigned()))
        }
        Some(_) => return sys::to_c_int(Err(libc::EINVAL)),
    };
    let receive = |index: usize| {
        let to = messages.wrapping_add(index);
        if !user_memory::is_readable(to, size_of::<mmsghdr>()) {
            return Err(libc::EFAULT);
        }
        let waiting = flags & !libc::MSG_WAITFORONE;
        let later = if flags & libc::MSG_WAITFORONE != 0 && index != 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the caller upholds this function's contract.
        let got = sys::from_c(unsafe { recvmsg(fd, &raw mut (*to).msg_hdr, waiting | later) })?;
        // SAFETY: as above.
        unsafe { user_memory::write(&raw mut (*to).msg_len, got as c_uint) }?;
        Ok(until.is_some_and(|until| kernel::now() >= until))
    };
    let (answer, ended) = each(count, receive);
    // Linux's do_recvmmsg() keeps an error that follows some messages for the next call.
    if let (Some(errno), Found::Stream(held)) = (ended.filter(|errno| *errno != libc::EAGAIN), find(fd))
        && let Some(end) = held.end()
    {
        end.private().error.store(errno.cast_unsigned(), Release);
    }
    if let (Ok(1..), Some(until)) = (answer, until) {
        let left = until.saturating_sub(kernel::now());
        let (seconds, rest) = (left / 1_000_000_000, left % 1_000_000_000);
        let left = timespec { tv_sec: seconds.cast_signed(), tv_nsec: rest.cast_signed() };
        // SAFETY: the caller upholds this function's contract: there is a time.
        if let Err(errno) = unsafe { user_memory::write(timeout, left) } {
            return sys::to_c_int(Err(errno));
        }
    }
    sys::to_c_int(answer)
}

/// Handles messages until `act` returns true or one fails. Returns how many were done, or the error
/// of the first; and the error of a later one.
fn each(count: c_uint, mut act: impl FnMut(usize) -> Result<bool, Errno>) -> (Outcome, Option<Errno>) {
    let before = sys::errno();
    let mut done = 0;
    while done < (count as usize).min(vectors::MAX_VECTORS) {
        match act(done) {
            Ok(enough) => {
                done += 1;
                if enough {
                    break;
                }
            }
            Err(errno) if done == 0 => return (Err(errno), None),
            Err(errno) => {
                sys::set_errno(before);
                return (Ok(done), Some(errno));
            }
        }
    }
    (Ok(done), None)
}
