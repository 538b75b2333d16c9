//! `accept` and `accept4`.
//!
//! 1. A connection arrives as a message on the listener's placeholder, so all sleeping, polling and
//!    sharing is the kernel's. It is an end of a connection, or a kernel socket (of a client that
//!    is not under Sietch), which is not ours afterwards.
//! 2. A message whose descriptors do not fit would be lost with its connection. So the call makes
//!    sure of room before it takes the message. Otherwise it returns EMFILE, and the connection
//!    continues to wait, as with the kernel. Where one number is free and no more are to be had,
//!    that is enough (`service::arrival`).
//! 3. A process that has no memory for a connection returns it to the service, and accepts a
//!    kernel's socket in its place ([`client::relay`]).
//! 4. The service's end of the placeholder closes if the service ends
//!    (`listener::reregister`).

use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, IntoRawFd as _};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use libc::{sockaddr, socklen_t};
use rustix::net::RecvFlags;
use sietch_protocol::socket_service::{self as protocol, Arrival, ArrivalKind, Descriptors, Incoming};
use sietch_ring::stream::{Endpoint, flag};

use crate::address::write_name;
use crate::connection::option_words;
use crate::descriptor::description::{self, Held, Kind, socket_flag};
use crate::descriptor::in_flight::InFlight;
use crate::descriptor::room::{self, Room};
use crate::descriptor::table::{self, forget_stale};
use crate::listener::reregister;
use crate::options::inherit;
use crate::service::arrival::{self, Received};
use crate::service::client;
use crate::signal::handlers::{self, Section};
use crate::signal::longjmp;
use crate::system::cancellation::{self, CANCELLED, Whole};
use crate::system::kernel;
use crate::system::sys::{self, Errno, Outcome, address_mut, signed};
use crate::system::{originals, seccomp};

/// `accept4(2)`.
///
/// # Safety
/// As `accept4(2)`.
pub unsafe fn accept4(fd: c_int, name: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    let found = table::find(fd);
    let Some(held) = found.as_ref().filter(|held| matches!(held.kind(), Kind::Listener | Kind::Stream))
    else {
        // SAFETY: the caller upholds this function's contract.
        let new = unsafe { originals::accept4(fd, name, length, flags) };
        forget_stale(new);
        return new;
    };
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 || held.kind() == Kind::Stream {
        return sys::to_c_int(Err(libc::EINVAL));
    }
    // SAFETY: the caller upholds this function's contract.
    sys::to_c_int(unsafe { accept(fd, held, name, length, flags) })
}

/// # Safety
/// As `accept4(2)`.
unsafe fn accept(
    fd: c_int,
    held: &Held,
    name: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> Outcome {
    let mut received = Descriptors::default();
    let waiting = Waiting { held, reserved: Cell::new(None) };
    let _registered = longjmp::registered(&raw const waiting);
    loop {
        let state = held.socket.flags.load(Acquire);
        if state & socket_flag::STOPPED != 0 {
            return Err(libc::EINVAL);
        }
        if state & socket_flag::ON_KERNEL != 0 {
            reregister::return_to_service();
            if held.socket.flags.load(Acquire) & socket_flag::ON_KERNEL == 0 {
                continue;
            }
            // It does not block.
            let whole = Whole::begin();
            // SAFETY: the caller upholds this function's contract.
            let new = unsafe { originals::accept4(fd, name, length, flags) };
            drop(whole);
            forget_stale(new);
            if new >= 0 {
                return Ok(new.cast_unsigned() as usize);
            }
            if sys::errno() == libc::EAGAIN && state & socket_flag::BLOCKING != 0 {
                reregister::wait(fd)?;
                continue;
            }
            return Err(sys::errno());
        }
        let mut section = None;
        let arrived = arrival(fd, &mut received, &waiting, &mut section);
        // Shut down meanwhile, it is another socket by now.
        let (taken, room) = arrived
            .map_err(|errno| if held.listens() || errno == CANCELLED { errno } else { libc::EINVAL })?;
        let (incoming, end) = match taken {
            Received::Stream(arrival, end) => (Incoming::Arrived(arrival), Some(end)),
            Received::Other(incoming) => (incoming, None),
            Received::Unmapped(placeholder) => {
                client::relay(fd, &placeholder)?;
                continue;
            }
        };
        match incoming {
            Incoming::Arrived(arrival) => {
                let new = match settle(held, &arrival, (&mut received, end), flags, &waiting) {
                    Err(libc::ENOMEM) => {
                        let placeholder = received[0].take().ok_or(libc::ECONNABORTED)?;
                        client::relay(fd, &placeholder)?;
                        continue;
                    }
                    settled => settled?,
                };
                // The program's memory may not be mapped, and its fault handler may jump.
                drop((room, section));
                if !name.is_null() {
                    // SAFETY: the caller upholds this function's contract.
                    let named = unsafe { write_name(&arrival.peer, name, length) };
                    if let Err(errno) = named {
                        drop(table::remove(new));
                        let _ = kernel::close(new);
                        return Err(errno);
                    }
                }
                return Ok(new.cast_unsigned() as usize);
            }
            Incoming::NoRoom => return Err(libc::EMFILE),
            Incoming::Damaged => {}
            Incoming::Closed if held.socket.flags.load(Acquire) & socket_flag::STOPPED != 0 => {
                return Err(libc::EINVAL);
            }
            Incoming::Closed => {
                drop((room, section));
                reregister::reregister(fd, held)?;
            }
        }
    }
}

/// A call that waits.
struct Waiting<'a> {
    held: &'a Held,
    /// The number that is reserved for the connection.
    reserved: Cell<Option<InFlight>>,
}

impl Waiting<'_> {
    /// Reserves a number, if none is reserved.
    fn reserve(&self) -> Result<(), Errno> {
        let before = self.reserved.take();
        self.reserved.set(if before.is_some() { before } else { InFlight::lowest()? });
        Ok(())
    }
}

impl longjmp::Abandon for Waiting<'_> {
    unsafe fn abandon(this: *const Self) {
        // SAFETY: the jump abandons the frame that owns this value, so this is its only use and
        // drop.
        let waiting = unsafe { this.read() };
        // SAFETY: as above; the reference that the call had goes with it.
        drop(unsafe { std::ptr::from_ref(waiting.held).read() });
    }
}

/// The next arrival, and the room that it needed. A call that sleeps for it has reserved the lowest
/// free number before, as on Linux. In `section` no handler jumps away from what was taken; the
/// section ends when the caller has used it.
fn arrival(
    fd: c_int,
    received: &mut Descriptors,
    waiting: &Waiting<'_>,
    section: &mut Option<Section>,
) -> Result<(Received, Option<Room>), Errno> {
    let interrupting = handlers::interrupting();
    // SAFETY: the descriptor is open for the time of the call.
    let placeholder = unsafe { BorrowedFd::borrow_raw(fd) };
    loop {
        *section = Some(Section::enter());
        let room = match room::check(room::CONNECTION_DESCRIPTORS) {
            Some(room) => Some(room),
            None => {
                // One number is what the program has to have, as on Linux; the others are beyond
                // its limit.
                waiting.reserve()?;
                room::raise()
            }
        };
        let taken = if room.is_some() {
            let incoming = protocol::receive_arrival(placeholder, RecvFlags::DONTWAIT, received);
            incoming.map(Received::Other).map_err(|errno| errno.raw_os_error())
        } else {
            // The reserved number is the one that is left.
            drop(waiting.reserved.take());
            arrival::take_with_one_descriptor(placeholder, received)
        };
        match taken {
            Ok(taken) => return Ok((taken, room)),
            Err(libc::EAGAIN) if !kernel::is_nonblocking(fd) => {}
            Err(errno) => return Err(errno),
        }
        waiting.reserve()?;
        if seccomp::is_restricted() {
            *section = None;
            let incoming = protocol::receive_arrival(placeholder, RecvFlags::empty(), received);
            return incoming
                .map(|incoming| (Received::Other(incoming), room))
                .map_err(|errno| errno.raw_os_error());
        }
        drop(room);
        *section = None;
        if handlers::interrupting() != interrupting {
            // It was deferred for the time of the section.
            return Err(libc::EINTR);
        }
        sleep(fd)?;
    }
}

/// Sleeps until something arrives, without taking it: there may be no room for it any more.
fn sleep(fd: c_int) -> Result<(), Errno> {
    let mut byte = [0_u8; 1];
    let arguments = [signed(fd), address_mut(byte.as_mut_ptr()), 1, signed(libc::MSG_PEEK), 0, 0];
    // SAFETY: the kernel writes at most one byte there.
    unsafe { cancellation::syscall(libc::SYS_recvfrom, arguments) }.map(|_| ())
}

/// Makes a descriptor of what arrived, with the number that was reserved. An end that is mapped
/// already comes with its placeholder alone.
///
/// # Errors
/// `ENOMEM`: there is no memory for a connection, whose placeholder is left in `received`.
/// `ECONNABORTED`, `EMFILE`.
fn settle(
    held: &Held,
    arrival: &Arrival,
    (received, mapped): (&mut Descriptors, Option<Endpoint>),
    flags: c_int,
    waiting: &Waiting<'_>,
) -> Result<c_int, Errno> {
    let place = |new: c_int| waiting.reserved.take().map_or(new, |reserved| reserved.give_to_program(new));
    let new = match arrival.kind() {
        ArrivalKind::Kernel => {
            let taken = protocol::take_kernel_socket(arrival, received);
            let new = place(taken.map_err(|errno| errno.raw_os_error())?.into_raw_fd());
            forget_stale(new);
            new
        }
        ArrivalKind::Stream => {
            let mapped = mapped.map_or_else(|| client::map_stream(received), Ok);
            let end =
                mapped.map_err(|errno| if errno == libc::ENOMEM { errno } else { libc::ECONNABORTED })?;
            let Some(stream) = description::describe(Kind::Stream, Some(end)) else {
                return Err(libc::ENOMEM);
            };
            let (Some(placeholder), Some(end)) = (received[0].take(), stream.end()) else {
                return Err(libc::ECONNABORTED);
            };
            inherit::pass_on_to(held, end);
            // Until now closing this end would have been a reset, because the connection was not
            // accepted.
            end.abort_on_close(option_words::get(end, option_words::LINGER) == Some(1 << 32));
            if flags & libc::SOCK_NONBLOCK != 0 {
                end.private().set(flag::NONBLOCKING);
            }
            let new = place(placeholder.into_raw_fd());
            stream.socket.domain.store(held.socket.domain.load(Relaxed), Relaxed);
            if !table::put(new, &stream) {
                let _ = kernel::close(new);
                return Err(libc::EMFILE);
            }
            if let Some(end) = stream.end() {
                inherit::announce_inherited(new, end);
            }
            new
        }
    };
    if flags & libc::SOCK_CLOEXEC == 0 {
        let _ = kernel::fcntl(new, libc::F_SETFD, 0);
    }
    if flags & libc::SOCK_NONBLOCK != 0 {
        let _ = kernel::fcntl(new, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize);
    }
    Ok(new)
}
