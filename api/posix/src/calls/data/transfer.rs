//! The calls that move bytes, by their names in the C library.
//!
//! Each looks up its descriptor. A descriptor that is not a stream of ours goes to the original.
//! Pending sockets and listeners' placeholders are the kernel's to refuse, but a placeholder gets
//! the errno of a TCP socket that is not connected.

use std::ffi::{c_int, c_void};

use libc::{iovec, size_t, sockaddr, socklen_t, ssize_t};
use sietch_ring::stream::Endpoint;

use crate::calls::data::vectors::{Found, are_empty, find, find_for_call, vector, vectors};
use crate::calls::data::{fast_open, names, receive, send};
use crate::descriptor::description::Held;
use crate::descriptor::{kernel_calls, table};
use crate::system::originals;
use crate::system::sys::{self, Outcome};

#[inline]
fn with(held: &Held, act: impl FnOnce(&Endpoint) -> Outcome) -> ssize_t {
    sys::to_c(held.end().map_or(Err(libc::EBADF), act))
}

/// `read(2)`.
///
/// # Safety
/// As `read(2)`.
#[inline]
pub unsafe fn read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t {
    match find_for_call(fd) {
        Found::Stream(held) => {
            // SAFETY: the caller upholds this function's contract.
            with(&held, |end| unsafe { receive::read_piece(fd, &held, end, (to, length)) })
        }
        Found::Listener(_) => sys::to_c(if length == 0 { Ok(0) } else { Err(libc::ENOTCONN) }),
        // SAFETY: the caller upholds this function's contract.
        Found::Kernel => kernel_calls::end(unsafe { originals::read(fd, to, length) }),
    }
}

/// `write(2)`.
///
/// # Safety
/// As `write(2)`.
#[inline]
pub unsafe fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t {
    match find_for_call(fd) {
        Found::Stream(held) => {
            // SAFETY: the caller upholds this function's contract.
            with(&held, |end| unsafe { send::send_piece(fd, &held, end, (from, length), 0) })
        }
        Found::Listener(_) => sys::to_c(Err(send::broken(0))),
        // SAFETY: the caller upholds this function's contract.
        Found::Kernel => kernel_calls::end(unsafe { originals::write(fd, from, length) }),
    }
}

/// `readv(2)`.
///
/// # Safety
/// As `readv(2)`.
pub unsafe fn readv(fd: c_int, first: *const iovec, count: c_int) -> ssize_t {
    match find_for_call(fd) {
        Found::Stream(held) => with(&held, |end| {
            let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
            // SAFETY: the caller upholds this function's contract.
            unsafe { receive::read(fd, &held, end, vectors(first, count, libc::EINVAL)?) }
        }),
        // SAFETY: the caller upholds this function's contract.
        Found::Listener(_) => sys::to_c(
            unsafe { are_empty(first, count) }
                .and_then(|nothing| if nothing { Ok(0) } else { Err(libc::ENOTCONN) }),
        ),
        // SAFETY: the caller upholds this function's contract.
        Found::Kernel => kernel_calls::end(unsafe { originals::readv(fd, first, count) }),
    }
}

/// `writev(2)`.
///
/// # Safety
/// As `writev(2)`.
pub unsafe fn writev(fd: c_int, first: *const iovec, count: c_int) -> ssize_t {
    match find_for_call(fd) {
        Found::Stream(held) => with(&held, |end| {
            // For `write` and `send` of nothing Linux does check the socket.
            // SAFETY: the caller upholds this function's contract.
            if unsafe { are_empty(first, count) }? {
                return Ok(0);
            }
            // SAFETY: the caller upholds this function's contract.
            unsafe { send::send(fd, &held, end, vectors(first, count as usize, libc::EINVAL)?, 0) }
        }),
        // SAFETY: the caller upholds this function's contract.
        Found::Listener(_) => sys::to_c(
            unsafe { are_empty(first, count) }
                .and_then(|nothing| if nothing { Ok(0) } else { Err(send::broken(0)) }),
        ),
        // SAFETY: the caller upholds this function's contract.
        Found::Kernel => kernel_calls::end(unsafe { originals::writev(fd, first, count) }),
    }
}

/// Flags of `preadv2` and `pwritev2` that change nothing for a socket (`linux/fs.h`: RWF_HIPRI,
/// RWF_DSYNC, RWF_SYNC, RWF_APPEND, RWF_NOAPPEND), and RWF_NOWAIT.
const WITHOUT_EFFECT: c_int = 0x1 | 0x2 | 0x4 | 0x10 | 0x20;

/// The same as a flag of `recv` and `send`.
///
/// # Errors
/// `EOPNOTSUPP`: another flag.
fn message_flags(flags: c_int) -> Result<c_int, c_int> {
    match flags & !WITHOUT_EFFECT {
        0 => Ok(0),
        libc::RWF_NOWAIT => Ok(libc::MSG_DONTWAIT),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// `preadv2(2)` and `pwritev2(2)` with an offset of -1 are `readv` and `writev`; with another, a
/// socket cannot seek.
///
/// # Safety
/// As `preadv2(2)`.
pub unsafe fn preadv2(fd: c_int, first: *const iovec, count: c_int, offset: i64, flags: c_int) -> ssize_t {
    match if offset == -1 { find(fd) } else { Found::Kernel } {
        // SAFETY: the caller upholds this function's contract.
        Found::Stream(_) if flags == 0 => unsafe { readv(fd, first, count) },
        Found::Stream(held) => with(&held, |end| {
            // SAFETY: the caller upholds this function's contract.
            if unsafe { are_empty(first, count) }? {
                return Ok(0);
            }
            let flags = message_flags(flags)?;
            // SAFETY: the caller upholds this function's contract.
            unsafe { receive::receive(fd, &held, end, vectors(first, count as usize, libc::EINVAL)?, flags) }
        }),
        _ => {
            let arguments = with_offset(fd, first, count, offset, flags);
            // SAFETY: the caller upholds this function's contract.
            sys::to_c(unsafe { sys::syscall(libc::SYS_preadv2, arguments) })
        }
    }
}

/// See [`preadv2`].
///
/// # Safety
/// As `pwritev2(2)`.
pub unsafe fn pwritev2(fd: c_int, first: *const iovec, count: c_int, offset: i64, flags: c_int) -> ssize_t {
    match if offset == -1 { find(fd) } else { Found::Kernel } {
        // SAFETY: the caller upholds this function's contract.
        Found::Stream(_) if flags == 0 => unsafe { writev(fd, first, count) },
        Found::Stream(held) => with(&held, |end| {
            // SAFETY: the caller upholds this function's contract.
            if unsafe { are_empty(first, count) }? {
                return Ok(0);
            }
            let flags = message_flags(flags)?;
            // SAFETY: the caller upholds this function's contract.
            unsafe { send::send(fd, &held, end, vectors(first, count as usize, libc::EINVAL)?, flags) }
        }),
        _ => {
            let arguments = with_offset(fd, first, count, offset, flags);
            // SAFETY: the caller upholds this function's contract.
            sys::to_c(unsafe { sys::syscall(libc::SYS_pwritev2, arguments) })
        }
    }
}

fn with_offset(fd: c_int, first: *const iovec, count: c_int, offset: i64, flags: c_int) -> [usize; 6] {
    // Where registers have 64 bits the fifth argument, the upper half of the offset, means nothing.
    [sys::signed(fd), sys::address(first), sys::signed(count), offset as usize, 0, sys::signed(flags)]
}

/// `recvfrom(2)`, and `recv(2)` without a name. TCP gives no names.
///
/// # Safety
/// As `recvfrom(2)`.
#[inline]
pub unsafe fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    flags: c_int,
    name: *mut sockaddr,
    name_length: *mut socklen_t,
) -> ssize_t {
    match find_for_call(fd) {
        Found::Stream(held) => {
            // SAFETY: the caller upholds this function's contract.
            let answer =
                with(&held, |end| unsafe { receive::receive_piece(fd, &held, end, (to, length), flags) });
            // SAFETY: the caller upholds this function's contract.
            match if answer >= 0 { unsafe { names::put_none(name, name_length) } } else { Ok(()) } {
                Ok(()) => answer,
                Err(errno) => sys::to_c(Err(errno)),
            }
        }
        Found::Listener(_) => sys::to_c(Err(receive::unconnected(flags))),
        Found::Kernel => {
            // SAFETY: the caller upholds this function's contract.
            kernel_calls::end(unsafe { originals::recvfrom(fd, to, length, flags, name, name_length) })
        }
    }
}

/// `sendto(2)`, and `send(2)` without a name. A connected TCP socket ignores the name.
///
/// # Safety
/// As `sendto(2)`.
#[inline]
pub unsafe fn sendto(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
    name: *const sockaddr,
    name_length: socklen_t,
) -> ssize_t {
    match find_for_call(fd) {
        Found::Stream(held) => {
            with(&held, |end| {
                names::check_sent(name, name_length)?;
                // SAFETY: the caller upholds this function's contract.
                unsafe { send::send_piece(fd, &held, end, (from, length), flags) }
            })
        }
        Found::Listener(_) => {
            sys::to_c(names::check_sent(name, name_length).and_then(|()| Err(send::broken(flags))))
        }
        Found::Kernel if flags & libc::MSG_FASTOPEN != 0 && !name.is_null() && table::is_ours(fd) => {
            kernel_calls::end(());
            // SAFETY: the caller upholds this function's contract.
            unsafe { fast_open::send_fast(fd, &[vector(from.cast_mut(), length)], flags, name, name_length) }
        }
        Found::Kernel => {
            // SAFETY: the caller upholds this function's contract.
            kernel_calls::end(unsafe { originals::sendto(fd, from, length, flags, name, name_length) })
        }
    }
}
