//! `connect`.
//!
//! 1. If the destination is on this host or beyond the VNIC, the call sends a request to the
//!    service. If a program under Sietch listens there, the placeholder of the connection takes the
//!    kernel socket's place. Otherwise the kernel connects, and the descriptor is no longer ours.
//! 2. A connect that does not block returns EINPROGRESS as Linux does, even where it is done
//!    already.
//! 3. A connect to `AF_UNSPEC` resets the connection, and a fresh kernel socket takes its place.
//! 4. A listener that was shut down is an unconnected socket again ([`reregister::disconnect`]).

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use libc::{sockaddr, sockaddr_storage, socklen_t};
use sietch_protocol::socket_service::Name;
use sietch_ring::stream::{Endpoint, Want, flag, state};
use sietch_stream::service::is_local;

use crate::calls::socket::shutdown::stop_listening;
use crate::connection::blocked::{self, BlockedCall, SleepOptions};
use crate::connection::status::{self, is_over, refresh};
use crate::connection::{names, option_words, owner, peer, short_lived};
use crate::descriptor::description::{self, Held, Kind, listener_name, socket_flag};
use crate::descriptor::{room, table};
use crate::listener::register::family_fits;
use crate::listener::reregister;
use crate::options::inherit;
use crate::readiness::hooks;
use crate::readiness::replace::{replace_and, replaced};
use crate::service::client::{self, Connected};
use crate::service::reservation;
use crate::signal::user_memory;
use crate::system::kernel::{self, is_nonblocking, shutdown};
use crate::system::sys::{self, Errno, Outcome};
use crate::system::{cancellation, originals};
use crate::{address, context};

/// `connect(2)`.
///
/// # Safety
/// `to` may be read for `length` bytes.
pub unsafe fn connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    let kernel = || unsafe { originals::connect(fd, to, length) };
    // It makes a listener's placeholder readable, in this process maybe.
    originals::count();
    let found = table::find(fd);
    let Some((held, context)) = found.as_ref().zip(context::get()) else { return kernel() };
    match held.kind() {
        Kind::Pending => {}
        Kind::Stream => return sys::to_c_int(connect_again(fd, held, to, length)),
        Kind::Listener => {
            let as_socket = family(to, length).and_then(|family| match family {
                libc::AF_UNSPEC => {
                    stop_listening(fd, held);
                    Ok(false)
                }
                _ => reregister::disconnect(fd, held).map(|()| true),
            });
            match as_socket {
                Ok(true) => {}
                Ok(false) => return 0,
                Err(errno) => return sys::to_c_int(Err(errno)),
            }
        }
        _ => return kernel(),
    }
    // The reference is held meanwhile.
    // SAFETY: the C library's function may be unwound.
    let unwound = || unsafe { cancellation::catch(kernel) }.unwrap_or_else(|errno| sys::to_c_int(Err(errno)));
    let remote = address::parse_destination(to, length).filter(|remote| family_fits(held, remote));
    if let Some(remote) = remote {
        if context.vnic().is_none() && !is_local(&remote) {
            explain(&remote, "the address is not one of this host");
            return stays_with_kernel(fd, unwound());
        }
        let of_vnic = client::is_of_vnic(context, &remote);
        let key = short_lived::key(&remote);
        if !of_vnic && short_lived::prefers_kernel(key) {
            explain(
                &remote,
                "the last connections to it were short-lived (`sietch run --always` serves them)",
            );
            return stays_with_kernel(fd, unwound());
        }
        if !of_vnic && inherit::delays_acknowledgements(fd, held) {
            explain(
                &remote,
                "TCP_QUICKACK is off, and a reset in the place of the first ACK prevents an accept",
            );
            return stays_with_kernel(fd, unwound());
        }
        let sent = if of_vnic { reservation::of(&held.socket) } else { Some(fd) };
        match client::connect(context, sent, listener_name(held), remote) {
            Ok(Connected::Made(made)) => {
                held.destination.store(key, Relaxed);
                return sys::to_c_int(finish_connect(fd, held, made));
            }
            Ok(Connected::Refused(errno)) => return sys::to_c_int(Err(errno)),
            // It is reached through the VNIC only.
            Err(_) if of_vnic => return sys::to_c_int(Err(libc::ENETUNREACH)),
            Ok(Connected::NotOurs) => {
                explain(&remote, "no program under `sietch run` listens there, or the service left it out");
            }
            // The request has said why.
            Err(_) => {}
        }
    }
    stays_with_kernel(fd, unwound())
}

/// Says on standard error why a connect is the kernel's, if `SIETCH_DEBUG` is set.
fn explain(remote: &Name, why: &str) {
    if let Some(remote) = remote.address() {
        context::debug_line(format_args!("connect to {remote} stays on kernel TCP: {why}"), 0);
    }
}

/// Connected or connecting in the kernel: the socket is the kernel's from now on.
fn stays_with_kernel(fd: c_int, answer: c_int) -> c_int {
    if answer == 0 || sys::errno() == libc::EINPROGRESS {
        drop(table::remove(fd));
    }
    answer
}

fn finish_connect(fd: c_int, held: &Held, made: client::Made) -> Outcome {
    let nonblocking = is_nonblocking(fd);
    if nonblocking {
        made.end.private().set(flag::NONBLOCKING);
        held.socket.flags.fetch_or(socket_flag::CONNECTING, Relaxed);
    }
    inherit::remember(fd, held);
    inherit::pass_on_to(held, &made.end);
    reservation::release(&held.socket);
    owner::carry_over(fd, made.placeholder, &made.end);
    if replace_and(fd, held, made.placeholder, || held.become_stream(made.end)).is_err() {
        return Err(libc::EALREADY);
    }
    replaced(fd, held);
    let Some(end) = held.end() else { return Err(libc::EBADF) };
    inherit::announce_inherited(fd, end);
    if nonblocking {
        return Err(libc::EINPROGRESS);
    }
    if made.connecting { wait_for_connection(fd, held, end) } else { Ok(0) }
}

fn wait_for_connection(fd: c_int, held: &Held, end: &Endpoint) -> Outcome {
    let deadline = option_words::deadline(end, option_words::SEND_TIMEOUT);
    let mut call = BlockedCall::begin(fd, held);
    while !peer::is_set_up(end) {
        let how = SleepOptions { want: Want::Data, deadline, restart: true };
        match blocked::sleep_until(&mut call, end, how, || peer::is_set_up(end)) {
            Ok(()) => {}
            // A later connect of this descriptor returns the result.
            Err(errno) => {
                held.socket.flags.fetch_or(socket_flag::CONNECTING, Relaxed);
                return Err(if errno == libc::EAGAIN { libc::EINPROGRESS } else { errno });
            }
        }
        if end.private().has(flag::HUNG_UP) && !peer::is_set_up(end) {
            return Err(status::take_error(end).unwrap_or(libc::ECONNREFUSED));
        }
    }
    connected(end)
}

pub(crate) fn connected(end: &Endpoint) -> Outcome {
    match end.private().state.load(Acquire) {
        state::FAILED => Err(status::take_error(end).unwrap_or(libc::ECONNABORTED)),
        _ => Ok(0),
    }
}

/// The family of a name. All of the name is read, as by `move_addr_to_kernel` of Linux.
fn family(name: *const sockaddr, length: socklen_t) -> Result<c_int, Errno> {
    let mut bytes = [0; size_of::<sockaddr_storage>()];
    let bytes = bytes.get_mut(..length as usize).ok_or(libc::EINVAL)?;
    user_memory::copy_in(name.cast(), bytes)?;
    let family = bytes.first_chunk().ok_or(libc::EINVAL)?;
    Ok(c_int::from(u16::from_ne_bytes(*family)))
}

fn connect_again(fd: c_int, held: &Held, to: *const sockaddr, length: socklen_t) -> Outcome {
    let Some(end) = held.end() else { return Err(libc::EBADF) };
    if family(to, length)? == libc::AF_UNSPEC {
        return disconnect(fd, held, end);
    }
    if !peer::is_set_up(end) {
        if end.private().has(flag::NONBLOCKING) {
            return Err(libc::EALREADY);
        }
        return wait_for_connection(fd, held, end);
    }
    if held.socket.flags.fetch_and(!socket_flag::CONNECTING, Relaxed) & socket_flag::CONNECTING != 0 {
        refresh(fd, held);
        if is_over(end) {
            return Err(status::take_error(end).unwrap_or(libc::ECONNABORTED));
        }
        return connected(end);
    }
    Err(libc::EISCONN)
}

/// Connect to `AF_UNSPEC`: the connection is reset, and a fresh kernel socket takes its place.
fn disconnect(fd: c_int, held: &Held, end: &Endpoint) -> Outcome {
    names::follow(held);
    let domain = held.socket.domain.load(Relaxed).cast_signed();
    let mut kernel = kernel::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
    let room = if kernel == Err(libc::EMFILE) { room::raise() } else { None };
    if room.is_some() {
        kernel = kernel::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
    }
    let kernel = kernel? as c_int;
    let Some(fresh) = description::describe(Kind::Pending, None) else {
        let _ = kernel::close(kernel);
        return Err(libc::ENOBUFS);
    };
    fresh.socket.domain.store(domain.cast_unsigned(), Relaxed);
    end.reset();
    // Wakes all that sleep on the placeholder, at either end.
    let _ = shutdown(fd, libc::SHUT_RDWR);
    replace_and(fd, held, kernel, || {
        table::each_of(held, |fd| {
            drop(table::withdraw(fd));
            hooks::closing(fd, held);
            table::put(fd, &fresh);
        });
    });
    Ok(0)
}
