//! `fcntl`, `ioctl` and `sockatmark`.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use libc::{size_t, ssize_t};
use sietch_ring::stream::flag;

use crate::calls::descriptor::duplicate::duplicate;
use crate::connection::owner;
use crate::descriptor::description::{Kind, socket_flag};
use crate::descriptor::{in_flight, room, table};
use crate::listener::kernel_socket;
use crate::service::client;
use crate::signal::user_memory;
use crate::system::sys::{self, address, address_mut, signed};
use crate::system::{kernel, originals};

/// `fcntl(2)`.
///
/// # Safety
/// As `fcntl(2)`.
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if in_flight::is_in_flight(fd) {
        return sys::to_c_int(Err(libc::EBADF));
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let flags = if command == libc::F_DUPFD { 0 } else { libc::O_CLOEXEC };
            // A number is an int.
            let lowest = argument as c_int;
            let lowest = usize::try_from(lowest).unwrap_or(usize::MAX);
            sys::to_c_int(duplicate(fd, lowest, flags, || kernel::fcntl(fd, command, argument)))
        }
        libc::F_SETFL if table::is_ours(fd) => {
            let outcome = kernel::fcntl(fd, command, argument);
            if outcome.is_ok() {
                note_nonblocking(fd, argument as c_int & libc::O_NONBLOCK != 0);
            }
            sys::to_c_int(outcome)
        }
        _ => {
            // SAFETY: the caller upholds this function's contract.
            let answer = unsafe { originals::fcntl(fd, command, argument) };
            if answer == 0 && owner::sets_owner(command) {
                note_owner(fd);
            }
            answer
        }
    }
}

fn note_owner(fd: c_int) {
    if let Some(held) = table::find(fd)
        && let Some(end) = held.end()
    {
        owner::note(fd, end);
    }
}

fn note_nonblocking(fd: c_int, yes: bool) {
    let held = table::find(fd);
    if let Some(end) = held.as_ref().and_then(|held| held.end()) {
        if yes {
            end.private().set(flag::NONBLOCKING)
        } else {
            end.private().clear(flag::NONBLOCKING)
        };
    }
    if let Some(listener) = held.filter(|held| held.kind() == Kind::Listener) {
        kernel_socket::note_nonblocking(&listener, yes);
    }
}

/// `ioctl(2)`.
///
/// # Safety
/// As `ioctl(2)`.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    let held = match table::find(fd) {
        Some(held) if matches!(held.kind(), Kind::Stream | Kind::Listener) => held,
        // SAFETY: the caller upholds this function's contract.
        _ => return unsafe { originals::ioctl(fd, request, argument) },
    };
    let value = sys::pointer(argument).cast::<c_int>();
    let give = |number: usize| {
        // SAFETY: the caller upholds this function's contract: these requests write an int there.
        unsafe { user_memory::write(value, c_int::try_from(number).unwrap_or(c_int::MAX)) }.map(|()| 0)
    };
    let outcome = match (request, held.end()) {
        (libc::FIONREAD, Some(end)) => give(end.waiting_bytes()),
        // The peer's kernel would have acknowledged everything at once.
        (libc::TIOCOUTQ, Some(end)) if end.private().has(flag::SERVED) => {
            let waiting = client::information(fd).map_or(0, |(_, waiting)| waiting as usize);
            give(waiting + end.unread_by_peer())
        }
        // Bytes sent to a vanished peer stay unacknowledged.
        (libc::TIOCOUTQ, Some(end)) => give(end.private().lost.load(Relaxed) as usize),
        (SIOCATMARK, Some(end)) => give(usize::from(end.is_at_mark())),
        (SIOCOUTQNSD, Some(_)) => give(0),
        (libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD, None) => {
            // One that was shut down listens no more.
            if held.socket.flags.load(Acquire) & socket_flag::STOPPED == 0 {
                Err(libc::EINVAL)
            } else {
                give(0)
            }
        }
        // What a TCP socket gives, of which the placeholder, a Unix socket, knows nothing.
        _ if OF_SOCKETS.contains(&(request & 0xFFFF)) => room::with_kernel_socket(&held, |kernel| {
            // SAFETY: the caller upholds this function's contract.
            unsafe { sys::syscall(libc::SYS_ioctl, [signed(kernel), request as usize, argument, 0, 0, 0]) }
        }),
        (libc::FIONBIO, _) => {
            // SAFETY: the caller upholds this function's contract.
            let outcome =
                unsafe { sys::syscall(libc::SYS_ioctl, [signed(fd), request as usize, argument, 0, 0, 0]) };
            if outcome.is_ok() {
                // SAFETY: the kernel has just read an int there.
                note_nonblocking(fd, unsafe { value.read_unaligned() } != 0);
            }
            outcome
        }
        _ => {
            let arguments = [signed(fd), request as usize, argument, 0, 0, 0];
            // SAFETY: the caller upholds this function's contract.
            let outcome = unsafe { sys::syscall(libc::SYS_ioctl, arguments) };
            if outcome.is_ok() && matches!(request, FIOSETOWN | SIOCSPGRP) {
                note_owner(fd);
            }
            outcome
        }
    };
    sys::to_c_int(outcome)
}

/// `SIOCOUTQNSD` of `linux/sockios.h`.
const SIOCOUTQNSD: c_ulong = 0x894B;

/// `FIOSETOWN` and `SIOCSPGRP` of `asm/sockios.h`.
const FIOSETOWN: c_ulong = 0x8901;
const SIOCSPGRP: c_ulong = 0x8902;

/// The requests that are for sockets alone, without the first, which concern the owner and are
/// answered by the placeholder.
const OF_SOCKETS: RangeInclusive<c_ulong> = SIOCATMARK..=0x89FF;

/// `SIOCATMARK` of `asm/sockios.h`.
const SIOCATMARK: c_ulong = 0x8905;

/// The attribute of a socket that has the name of its protocol.
const PROTOCOL_NAME: &CStr = c"system.sockprotoname";

/// `fgetxattr(2)`.
///
/// # Safety
/// As `fgetxattr(2)`.
pub unsafe fn fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t {
    match table::find(fd) {
        Some(held) if matches!(held.kind(), Kind::Stream | Kind::Listener) && is_protocol_name(name) => {
            // SAFETY: the caller upholds this function's contract.
            sys::to_c(room::with_kernel_socket(&held, |kernel| unsafe {
                let arguments = [signed(kernel), address(name), address_mut(value), size, 0, 0];
                sys::syscall(libc::SYS_fgetxattr, arguments)
            }))
        }
        // SAFETY: the caller upholds this function's contract.
        _ => unsafe { originals::fgetxattr(fd, name, value, size) },
    }
}

fn is_protocol_name(name: *const c_char) -> bool {
    let name = name.cast::<u8>();
    // SAFETY: the program has given the name for this.
    let is = |(at, byte): (usize, &u8)| unsafe { user_memory::read(name.wrapping_add(at)) } == Ok(*byte);
    PROTOCOL_NAME.to_bytes_with_nul().iter().enumerate().all(is)
}

/// `sockatmark(3)`.
pub fn sockatmark(fd: c_int) -> c_int {
    let mut mark: c_int = 0;
    // SAFETY: an int to write to.
    let answer = unsafe { ioctl(fd, SIOCATMARK, sys::address_mut(&raw mut mark)) };
    if answer < 0 { answer } else { mark }
}
