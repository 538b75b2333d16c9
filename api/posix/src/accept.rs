//! Accepting, and listeners that outlive the service.
//!
//! 1. A connection arrives as a message on the listener's placeholder, so that all sleeping, polling and sharing is the kernel's. What arrives is an end of
//!    a connection, or a kernel's socket (of a client that is not under Sietch), which is none of ours afterwards.
//! 2. The service's end of the placeholder closes if the service dies. Then the listener is made again ([`renew`]): the kernel's socket with the options and the
//!    name that it had, and its registration. Another process of the application may have been first: then the service is asked for a
//!    placeholder of this process's own.
//! 3. If there is no service any more, the kernel's listening socket itself takes the placeholder's place; each accept then tries, at most once a second,
//!    to give it to a service that has come back.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use libc::{sockaddr, socklen_t};
use sietch_protocol::socket_service::{self as protocol, Arrival, ArrivalKind, Descriptors, Incoming, Name};

use crate::end::flag;
use crate::service;
use crate::socket::{
    forget_stale, give_name, hand_over, kernel_nonblocking, listener_name, replace, replaced,
};
use crate::sys::{self, Errno, Outcome, address, signed};
use crate::table::{self, Held, Kind, facts};
use crate::{context, options, real};

/// Nanoseconds between two attempts to give a listener to a service that went away.
const PATIENCE: u64 = 1_000_000_000;

/// Attempts, a millisecond apart, to listen again on a name that was let go of just now.
const RETRIES: u32 = 100;

static LAST_ATTEMPT: AtomicU64 = AtomicU64::new(0);

/// `accept4(2)`.
///
/// # Safety
/// As `accept4(2)`.
pub unsafe fn accept4(fd: c_int, name: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    let found = table::find(fd);
    let Some(held) = found.as_ref().filter(|held| matches!(held.kind(), Kind::Listener | Kind::Stream))
    else {
        // SAFETY: the caller's.
        let new = unsafe { real::accept4(fd, name, length, flags) };
        forget_stale(new);
        return new;
    };
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 || held.kind() == Kind::Stream {
        return sys::give_int(Err(libc::EINVAL));
    }
    // SAFETY: the caller's.
    sys::give_int(unsafe { accept(fd, held, name, length, flags) })
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
    loop {
        let state = held.facts.flags.load(Acquire);
        if state & facts::STOPPED != 0 {
            return Err(libc::EINVAL);
        }
        if state & facts::FALLEN != 0 && !come_back(fd, held) {
            // SAFETY: the caller's.
            let new = unsafe { real::accept4(fd, name, length, flags) };
            forget_stale(new);
            return if new < 0 { Err(sys::errno()) } else { Ok(new.cast_unsigned() as usize) };
        }
        // SAFETY: the descriptor is open for the time of the call.
        let placeholder = unsafe { BorrowedFd::borrow_raw(fd) };
        let incoming = protocol::receive_arrival(placeholder, rustix::net::RecvFlags::empty(), &mut received)
            .map_err(|errno| errno.raw_os_error())?;
        match incoming {
            Incoming::Arrived(arrival) => {
                let new = settle(held, &arrival, &mut received, flags)?;
                if !name.is_null() {
                    // SAFETY: the caller's.
                    let named = unsafe { give_name(&arrival.peer, name, length) };
                    if let Err(errno) = named {
                        drop(table::remove(new));
                        let _ = sys::close(new);
                        return Err(errno);
                    }
                }
                return Ok(new.cast_unsigned() as usize);
            }
            Incoming::NoRoom => return Err(libc::EMFILE),
            Incoming::Damaged => {}
            Incoming::Closed if held.facts.flags.load(Acquire) & facts::STOPPED != 0 => {
                return Err(libc::EINVAL);
            }
            Incoming::Closed => renew(fd, held)?,
        }
    }
}

/// Makes a descriptor of what arrived.
fn settle(held: &Held, arrival: &Arrival, received: &mut Descriptors, flags: c_int) -> Result<c_int, Errno> {
    let new = match arrival.kind() {
        ArrivalKind::Kernel => {
            let new = received[0].take().ok_or(libc::ECONNABORTED)?.into_raw_fd();
            forget_stale(new);
            new
        }
        ArrivalKind::Stream => {
            let (new, end) = service::take_stream(received).map_err(|_| libc::ECONNABORTED)?;
            options::hand_on(held, &end);
            // Until now the end of this connection would have been a reset: nobody had accepted it.
            end.abort_on_close(options::of_end(&end, options::LINGER) == Some(1 << 32));
            if flags & libc::SOCK_NONBLOCK != 0 {
                end.private().set(flag::NONBLOCKING);
            }
            let Some(stream) = table::describe(Kind::Stream, Some(end)) else {
                let _ = sys::close(new);
                return Err(libc::ENOBUFS);
            };
            stream.facts.domain.store(held.facts.domain.load(Relaxed), Relaxed);
            table::put(new, &stream);
            new
        }
    };
    if flags & libc::SOCK_CLOEXEC == 0 {
        let _ = sys::fcntl(new, libc::F_SETFD, 0);
    }
    if flags & libc::SOCK_NONBLOCK != 0 {
        let _ = sys::fcntl(new, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize);
    }
    Ok(new)
}

/// Makes a listener again whose service is gone; one thread at a time.
fn renew(fd: c_int, held: &Held) -> Result<(), Errno> {
    if held.facts.flags.fetch_or(facts::RENEWING, AcqRel) & facts::RENEWING != 0 {
        // Another thread is at it.
        if kernel_nonblocking(fd) {
            return Err(libc::EAGAIN);
        }
        pause();
        return Ok(());
    }
    let mut renewed = renew_now(fd, held);
    // The kernel closes the descriptors of a dead service one after the other: its listening socket may be there still.
    for _ in 0..RETRIES {
        if renewed != Err(libc::EADDRINUSE) {
            break;
        }
        pause();
        renewed = renew_now(fd, held);
    }
    // An error that servers know to pass over: the next accept tries again.
    let renewed = renewed.map_err(|_| libc::ECONNABORTED);
    held.facts.flags.fetch_and(!facts::RENEWING, AcqRel);
    renewed
}

fn renew_now(fd: c_int, held: &Held) -> Result<(), Errno> {
    let Some(context) = context::get() else { return Err(libc::EINVAL) };
    let name = listener_name(held);
    let backlog = held.facts.backlog.load(Relaxed);
    let domain = held.facts.domain.load(Relaxed).cast_signed();
    let kernel = sys::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)? as c_int;
    let listening = listen_again(kernel, held, &name, backlog);
    let answer = match listening {
        Ok(()) => service::listen(context, kernel, name, backlog, 0),
        Err(_) => service::listen(context, kernel, name, backlog, protocol::REJOIN),
    };
    match (answer, listening) {
        (Ok(placeholder), _) => {
            let _ = sys::close(kernel);
            replace(fd, held, placeholder);
            options::set_accept_timeout(fd, held);
        }
        (Err(errno), Ok(())) => {
            context::say("a listener goes to the kernel until the socket service is back", errno);
            held.facts.flags.fetch_or(facts::FALLEN, AcqRel);
            replace(fd, held, kernel);
        }
        (Err(_), Err(errno)) => {
            let _ = sys::close(kernel);
            return Err(errno);
        }
    }
    replaced(fd, held);
    Ok(())
}

/// Lets go of what waits to be accepted: those connections are reset.
pub fn refuse_all(fd: c_int) {
    let mut received = Descriptors::default();
    // SAFETY: the descriptor is open for the time of the call.
    let placeholder = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = rustix::net::RecvFlags::DONTWAIT;
    while let Ok(Incoming::Arrived(_) | Incoming::Damaged | Incoming::NoRoom) =
        protocol::receive_arrival(placeholder, flags, &mut received)
    {}
}

/// `listen` on a listener that was shut down.
pub fn start_again(fd: c_int, held: &Held) -> Outcome {
    let context = context::get().ok_or(libc::EINVAL)?;
    let (name, backlog) = (listener_name(held), held.facts.backlog.load(Relaxed));
    let domain = held.facts.domain.load(Relaxed).cast_signed();
    let mut tries = 0;
    loop {
        let kernel = sys::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)? as c_int;
        let listening = listen_again(kernel, held, &name, backlog);
        if listening == Ok(()) {
            match service::listen(context, kernel, name, backlog, 0) {
                Ok(placeholder) => {
                    let _ = sys::close(kernel);
                    replace(fd, held, placeholder);
                    options::set_accept_timeout(fd, held);
                }
                Err(_) => {
                    held.facts.flags.fetch_or(facts::FALLEN, AcqRel);
                    replace(fd, held, kernel);
                }
            }
            held.facts.flags.fetch_and(!facts::STOPPED, AcqRel);
            replaced(fd, held);
            return Ok(0);
        }
        let _ = sys::close(kernel);
        tries += 1;
        // The service may not have let go of the name yet.
        if tries == RETRIES {
            return listening.map(|()| 0);
        }
        pause();
    }
}

/// A millisecond.
fn pause() {
    let _ = sys::poll(&mut [], Some(libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
}

fn listen_again(kernel: c_int, held: &Held, name: &Name, backlog: u32) -> Result<(), Errno> {
    options::each_set(held, |level, name, value| {
        let _ = sys::set_socket_option(kernel, level, name, value);
    });
    // Connections of before may still be closing.
    sys::set_socket_option(kernel, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    let arguments = [signed(kernel), address(name.bytes.as_ptr()), name.length as usize, 0, 0, 0];
    // SAFETY: the kernel reads the name.
    unsafe { sys::ask(libc::SYS_bind, arguments) }?;
    // SAFETY: touches no memory.
    unsafe { sys::ask(libc::SYS_listen, [signed(kernel), backlog as usize, 0, 0, 0, 0]) }?;
    Ok(())
}

/// Tries to give a listener that fell back to the kernel to a service again. True: done.
fn come_back(fd: c_int, held: &Held) -> bool {
    let now = sys::now();
    let last = LAST_ATTEMPT.load(Relaxed);
    if now.saturating_sub(last) < PATIENCE
        || LAST_ATTEMPT.compare_exchange(last, now, AcqRel, Relaxed).is_err()
    {
        return false;
    }
    let Some(context) = context::get() else { return false };
    let back = hand_over(context, fd, held, held.facts.backlog.load(Relaxed), 0).is_ok();
    if back {
        held.facts.flags.fetch_and(!facts::FALLEN, AcqRel);
    }
    back
}
