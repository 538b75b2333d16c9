//! Listeners that outlive the service.
//!
//! 1. The kernel's listening socket stays open in the program ([`crate::listener::kernel_socket`]).
//! 2. The service's end of a placeholder closes if the service ends. The next accept finds that,
//!    and registers the socket with the restarted service ([`reregister`]).
//! 3. Without a service, the kernel socket itself takes the placeholder's place: the listener is
//!    *on the kernel*. From then on no `epoll_wait`, `poll`, `select` or `accept` of this program
//!    sleeps longer than a [`slice()`]. After each slice all such listeners are offered to the
//!    service ([`return_to_service`]), also those without a client, at the pace of
//!    [`sietch_stream::registration`].
//! 4. A listener on a VNIC has no kernel socket behind it. The library asks for it until a service
//!    has the VNIC; until then nothing accepts for it. Several processes of one application each
//!    get a listener of their own; connections are spread over them.
//! 5. A process that only forks its workers never accepts, and so would never find out. Its
//!    listeners are checked before a fork ([`before_fork`]), so that children share what is alive.
//!    A placeholder with connections that wait stays: closing it would reset them. The process that
//!    accepts the last of them registers the listener again.
//! 6. A program may have closed the kept socket, or put another file at its number; the socket's
//!    cookie shows that. Then a socket is made with the options and the name that the listener had.
//!    If another process of the application has done so already, the library requests a placeholder
//!    of this process's own.

use std::ffi::c_int;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use rustix::io::Errno as Error;
use sietch_protocol::socket_service::{self as protocol, Name};
use sietch_stream::registration::{self, Schedule};

use crate::address::kernel_name;
use crate::context::{self, Context};
use crate::descriptor::description::{Held, Kind, listener_name, set_listener_name, socket_flag};
use crate::descriptor::table;
use crate::listener::kernel_socket::{RETRIES, keep_socket, note_nonblocking, pause};
use crate::listener::register::{pass_to_service, publish_on_host};
use crate::options::inherit;
use crate::readiness::replace::{put_in_place, replace, replaced};
use crate::service::client::{self, PublishedSockets, borrowed};
use crate::service::publish;
use crate::system::kernel::{self, set_nonblocking};
use crate::system::seccomp;
use crate::system::sys::{self, Errno, Outcome};

/// Whether any listener of this process may be on the kernel.
static ANY_ON_KERNEL: AtomicBool = AtomicBool::new(false);

static SCHEDULE: Schedule = Schedule::new();

/// Re-creates a listener whose service has ended; one thread at a time.
///
/// # Errors
/// `ECONNABORTED`, which servers ignore: the next accept tries again. `EAGAIN` while another thread
/// does this.
pub(crate) fn reregister(fd: c_int, held: &Held) -> Result<(), Errno> {
    if held.socket.flags.fetch_or(socket_flag::REREGISTERING, AcqRel) & socket_flag::REREGISTERING != 0 {
        if kernel::is_nonblocking(fd) {
            return Err(libc::EAGAIN);
        }
        pause();
        return Ok(());
    }
    let mut outcome = reregister_now(fd, held);
    // The kernel closes the descriptors of a dead service one after the other: its listening socket
    // may be there still.
    for _ in 0..RETRIES {
        let of_vnic = context::get().is_some_and(|context| client::is_of_vnic(context, &listener_name(held)));
        let stopped = held.socket.flags.load(Acquire) & socket_flag::STOPPED != 0;
        if stopped || outcome.is_ok() || !(of_vnic || outcome == Err(libc::EADDRINUSE)) {
            break;
        }
        pause();
        outcome = reregister_now(fd, held);
    }
    held.socket.flags.fetch_and(!socket_flag::REREGISTERING, AcqRel);
    outcome.map_err(|_| libc::ECONNABORTED)
}

fn reregister_now(fd: c_int, held: &Held) -> Result<(), Errno> {
    let Some(context) = context::get() else { return Err(libc::EINVAL) };
    let (name, backlog) = (listener_name(held), held.socket.backlog.load(Relaxed));
    if client::is_of_vnic(context, &name) {
        return reregister_on_vnic(context, fd, held, name);
    }
    if let Some(kernel) = listening(held) {
        register(context, fd, held, kernel);
        return Ok(());
    }
    let domain = held.socket.domain.load(Relaxed).cast_signed();
    let kernel = kernel::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)? as c_int;
    let answer = match bind_and_listen(kernel, held, &name, backlog) {
        Ok(()) => {
            keep_socket(held, kernel);
            register(context, fd, held, kernel);
            Ok(())
        }
        Err(errno) => {
            let none = PublishedSockets::default();
            match client::listen(context, Some(kernel), name, backlog, protocol::REJOIN, &none) {
                Ok(placeholder) => {
                    replace(fd, held, placeholder);
                    inherit::set_accept_timeout(fd, held);
                    replaced(fd, held);
                    Ok(())
                }
                Err(_) => Err(errno),
            }
        }
    };
    let _ = kernel::close(kernel);
    answer
}

/// The same for a listener on a VNIC. Another process of the application may have been first, so
/// the port is a shared one.
fn reregister_on_vnic(context: &Context, fd: c_int, held: &Held, name: Name) -> Result<(), Errno> {
    let backlog = held.socket.backlog.load(Relaxed);
    let flags = protocol::SHARED_PORT | inherit::name_flags(held);
    let published = publish::open(context, held, flags, &name, backlog)?;
    let answer = client::listen(context, None, name, backlog, flags, &published);
    if answer.is_err_and(is_final) {
        // The application has lost the name for good.
        held.socket.flags.fetch_or(socket_flag::STOPPED, AcqRel);
    }
    let placeholder = answer?;
    replace(fd, held, placeholder);
    inherit::set_accept_timeout(fd, held);
    replaced(fd, held);
    Ok(())
}

/// See [`registration::is_final`].
fn is_final(errno: Errno) -> bool {
    registration::is_final(Error::from_raw_os_error(errno))
}

/// The kept socket, if it listens: a listener that is revoked loses that.
fn listening(held: &Held) -> Option<c_int> {
    let kernel = held.socket.listening_socket.get()?;
    registration::listens(borrowed(kernel)).then_some(kernel)
}

/// Passes a listening socket to the service; if that fails, the listener falls back to the kernel.
/// `kernel` stays open.
fn register(context: &Context, fd: c_int, held: &Held, kernel: c_int) {
    let backlog = held.socket.backlog.load(Relaxed);
    registration::restore_backlog(borrowed(kernel), backlog);
    let published = published(context, kernel, held);
    match client::listen(context, Some(kernel), listener_name(held), backlog, 0, &published) {
        Ok(placeholder) => {
            replace(fd, held, placeholder);
            inherit::set_accept_timeout(fd, held);
        }
        Err(errno) => {
            context::debug_line(
                "the socket service has ended; a listener is on kernel TCP until it restarts",
                errno,
            );
            fall_back(fd, held, kernel);
            // A listener that is refused need not ask again.
            ANY_ON_KERNEL.fetch_or(!is_final(errno), AcqRel);
        }
    }
    replaced(fd, held);
}

/// The ports of the host that lead to a listener. If another process of the application has them
/// already, the listener is registered without them.
fn published(context: &Context, kernel: c_int, held: &Held) -> PublishedSockets {
    let backlog = held.socket.backlog.load(Relaxed);
    publish_on_host(context, kernel, held, backlog).unwrap_or_default()
}

/// Puts the kernel socket in the place of a placeholder without a service.
fn fall_back(fd: c_int, held: &Held, kernel: c_int) {
    let Ok(other) = kernel::fcntl(kernel, libc::F_DUPFD_CLOEXEC, 0) else { return };
    // All processes share its flags, and a restarted service makes it nonblocking. So the library
    // does the blocking.
    note_nonblocking(held, kernel::is_nonblocking(fd));
    set_nonblocking(other as c_int);
    put_in_place(fd, held, other as c_int);
    held.socket.flags.fetch_or(socket_flag::ON_KERNEL, AcqRel);
}

/// `listen` on a listener that was shut down. A port that the kernel had chosen is free since then,
/// and it chooses another.
///
/// # Errors
/// As `listen(2)`.
pub(crate) fn listen_again(fd: c_int, held: &Held) -> Outcome {
    let context = context::get().ok_or(libc::EINVAL)?;
    let (mut name, backlog) = (listener_name(held), held.socket.backlog.load(Relaxed));
    let domain = held.socket.domain.load(Relaxed).cast_signed();
    if client::is_of_vnic(context, &name) {
        held.socket.flags.fetch_and(!socket_flag::STOPPED, AcqRel);
        let again = reregister_on_vnic(context, fd, held, name);
        if again.is_err() {
            held.socket.flags.fetch_or(socket_flag::STOPPED, AcqRel);
        }
        return again.map(|()| 0);
    }
    if held.socket.flags.load(Acquire) & socket_flag::BOUND == 0 {
        name.bytes[2..4].fill(0);
    }
    let mut tries = 0;
    loop {
        let kernel = kernel::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)? as c_int;
        let listening = bind_and_listen(kernel, held, &name, backlog);
        if listening == Ok(()) {
            if let Some(name) = kernel_name(kernel) {
                set_listener_name(held, &name);
            }
            keep_socket(held, kernel);
            held.socket.flags.fetch_and(!socket_flag::STOPPED, AcqRel);
            register(context, fd, held, kernel);
            let _ = kernel::close(kernel);
            return Ok(0);
        }
        let _ = kernel::close(kernel);
        tries += 1;
        // The service may not have released the name yet.
        if tries == RETRIES {
            return listening.map(|()| 0);
        }
        pause();
    }
}

/// A listener that was shut down becomes an unconnected socket of the kernel, as on Linux. It keeps
/// its options and its name, without a port that the kernel had chosen.
///
/// # Errors
/// As `bind(2)`. `EISCONN`: it listens, is one of a VNIC, or has no kernel's socket because system
/// calls were given up before.
pub(crate) fn disconnect(fd: c_int, held: &Held) -> Result<(), Errno> {
    let context = context::get().ok_or(libc::EISCONN)?;
    let mut name = listener_name(held);
    let flags = held.socket.flags.load(Acquire);
    let of_kernel = kernel_name(fd).is_some();
    if flags & socket_flag::STOPPED == 0 || client::is_of_vnic(context, &name) || !of_kernel {
        return Err(libc::EISCONN);
    }
    inherit::restore(fd, held);
    if flags & socket_flag::BOUND == 0 {
        name.bytes[2..4].fill(0);
    }
    if name.address().is_some_and(|name| name.port() != 0 || !name.ip().is_unspecified()) {
        // The service may not have released the name yet.
        client::retrying_bind(Some(context), Some(name), || publish::bind(fd, &name))?;
    }
    if held.become_pending() {
        set_listener_name(held, &Name::NONE);
        held.socket.flags.fetch_and(!socket_flag::STOPPED, AcqRel);
    }
    Ok(())
}

fn bind_and_listen(kernel: c_int, held: &Held, name: &Name, backlog: u32) -> Result<(), Errno> {
    inherit::each_set(held, |level, name, value| {
        let _ = kernel::set_socket_option(kernel, level, name, value);
    });
    publish::listen_at(kernel, name, backlog)
}

/// Whether listeners of this process wait for a service.
#[inline]
pub(crate) fn any_on_kernel() -> bool {
    ANY_ON_KERNEL.load(Relaxed)
}

/// Nanoseconds that a wait may take while that is so.
pub(crate) fn slice() -> u64 {
    SCHEDULE.slice()
}

/// Waits at a listener on the kernel for a connection, a [`slice()`] at most.
///
/// # Errors
/// As `poll(2)`.
pub(crate) fn wait(fd: c_int) -> Result<(), Errno> {
    let time = libc::timespec { tv_sec: 0, tv_nsec: slice().min(999_999_999).cast_signed() };
    kernel::poll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], Some(time)).map(|_| ())
}

/// Offers all listeners of this process that are on the kernel to the service, unless that was done
/// just now.
pub(crate) fn return_to_service() {
    if !any_on_kernel() || !SCHEDULE.begin(kernel::now()) {
        return;
    }
    let Some(context) = context::get() else { return };
    ANY_ON_KERNEL.store(false, Release);
    let mut all = true;
    for fd in 0..table::highest() {
        if !table::is_ours(fd) {
            continue;
        }
        if let Some(held) = table::find(fd)
            && held.kind() == Kind::Listener
            && held.socket.flags.load(Acquire) & socket_flag::ON_KERNEL != 0
        {
            // If one is refused because there is no service, the next would be too.
            all = all && offer(context, fd, &held);
        }
    }
    SCHEDULE.note(all);
    if !all {
        ANY_ON_KERNEL.store(true, Release);
    }
}

/// Before a fork: listeners on which this process does not accept are the children's.
pub(crate) fn before_fork() {
    if seccomp::is_restricted() {
        return;
    }
    let errno = sys::errno();
    return_to_service();
    for fd in 0..table::highest() {
        if !table::is_ours(fd) {
            continue;
        }
        let Some(held) = table::find(fd).filter(|held| held.kind() == Kind::Listener) else { continue };
        if held.socket.flags.load(Acquire) & (socket_flag::ON_KERNEL | socket_flag::STOPPED) != 0 {
            continue;
        }
        let mut entry = [libc::pollfd { fd, events: 0, revents: 0 }];
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        if kernel::poll(&mut entry, Some(now)).is_err() || entry[0].revents & libc::POLLHUP == 0 {
            continue;
        }
        // Nothing arrives on it any more, so the answer stays true.
        let peek = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        if kernel::receive(fd, &mut [0], peek).is_ok_and(|length| length != 0) {
            // Clients of the kernel wait there meanwhile.
            if let Some(kernel) = listening(&held) {
                registration::restore_backlog(borrowed(kernel), held.socket.backlog.load(Relaxed));
            }
        } else {
            // The child finds it as it is, if this fails.
            let _ = reregister(fd, &held);
        }
    }
    sys::set_errno(errno);
}

/// Returns one listener to the service. True: done, refused, or another thread does it.
fn offer(context: &Context, fd: c_int, held: &Held) -> bool {
    if held.socket.flags.fetch_or(socket_flag::REREGISTERING, AcqRel) & socket_flag::REREGISTERING != 0 {
        return true;
    }
    let waits = held.socket.flags.load(Acquire) & socket_flag::BLOCKING != 0;
    let published = published(context, fd, held);
    let answer = pass_to_service(context, fd, held, held.socket.backlog.load(Relaxed), &published);
    if answer.is_ok() {
        if waits {
            let _ = kernel::fcntl(fd, libc::F_SETFL, libc::O_RDWR as usize);
        }
        held.socket.flags.fetch_and(!socket_flag::ON_KERNEL, AcqRel);
    }
    held.socket.flags.fetch_and(!socket_flag::REREGISTERING, AcqRel);
    answer.map_or_else(is_final, |()| true)
}
