//! Making sockets, naming them, and connecting them.
//!
//! 1. `socket` of TCP gives the kernel's socket, remembered as [`Kind::Pending`]: until `connect`
//!    or `listen` it is nothing else.
//! 2. `listen` listens in the kernel first, so that errors of names are the kernel's, then gives
//!    the listening socket to the service. The placeholder that comes back takes its place at every
//!    descriptor that it has. If the service does not want it, it stays the kernel's.
//! 3. `connect` asks the service if the destination is on this host. If somebody of ours listens
//!    there, the placeholder of the connection takes the kernel socket's place; otherwise the
//!    kernel connects, and the descriptor is none of ours any more.
//! 4. A connect that does not block answers EINPROGRESS as Linux does, even where it is done
//!    already.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use libc::{sockaddr, socklen_t};
use sietch_protocol::socket_service::{self as protocol, Name};

use crate::context::{self, Context};
use crate::end::{End, Want, flag, state};
use crate::publish::Opened;
use crate::service::{self, Connected};
use crate::sleep::{self, Rest, Stay};
use crate::sys::{self, Errno, Outcome, address, address_mut, signed};
use crate::table::{self, Held, Kind, facts};
use crate::{
    accept, faults, history, local, mapped, options, publish, real, receive, renewal, reservation, room,
    send, wait,
};

/// `socket(2)`.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let outcome = sys::socket(domain, kind, protocol);
    let tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if let (Ok(fd), true, true) = (outcome, tcp, context::get().is_some()) {
        remember(fd as c_int, domain);
    } else if let Ok(fd) = outcome {
        forget_stale(fd as c_int);
    }
    sys::give_int(outcome)
}

fn remember(fd: c_int, domain: c_int) {
    if let Some(held) = table::describe(Kind::Pending, None) {
        held.facts.domain.store(domain.cast_unsigned(), Relaxed);
        table::put(fd, &held);
    }
}

/// The same with a socket that another program made, and may have bound.
pub fn remember_inherited(fd: c_int, domain: c_int) {
    remember(fd, domain);
    if let Some(held) = table::find(fd) {
        options::inherit(fd, &held);
        note_name(fd, &held);
    }
}

/// The kernel gave out a number that the table thinks is ours: it was closed in a way that we did
/// not see.
pub fn forget_stale(fd: c_int) {
    if table::is_ours(fd) {
        drop(table::remove(fd));
    }
}

/// The name of a kernel's socket.
pub fn kernel_name(fd: c_int) -> Option<Name> {
    let mut name = Name { bytes: [0; 28], length: 28 };
    let (to, length) = (address_mut(name.bytes.as_mut_ptr()), address_mut(&raw mut name.length));
    // SAFETY: the kernel writes at most 28 bytes, and the length.
    unsafe { sys::ask(libc::SYS_getsockname, [signed(fd), to, length, 0, 0, 0]) }.ok()?;
    name.address().map(|_| name)
}

/// Writes a name as the kernel does: as much as there is room for, and its whole length.
///
/// # Safety
/// `length` may be read and written, `to` written for as many bytes as it says.
pub unsafe fn give_name(name: &Name, to: *mut sockaddr, length: *mut socklen_t) -> Outcome {
    if length.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's.
    let room = unsafe { faults::read(length) }?;
    if room.cast_signed() < 0 {
        return Err(libc::EINVAL);
    }
    let bytes = room.min(name.length).min(28) as usize;
    // SAFETY: the caller's: `bytes` is at most what `length` said.
    unsafe {
        faults::write_bytes(to.cast(), name.bytes.as_ptr(), bytes)?;
        faults::write(length, name.length)?;
    }
    Ok(0)
}

/// Finds out first whether the other end is gone, if there is a hint of that.
pub fn look_again(fd: c_int, held: &Held) {
    if let Some(end) = held.end().filter(|end| end.is_worth_asking()) {
        sleep::ask_whether_gone(fd, end);
    }
}

/// The name of the other side, if this is a connection that is one.
pub fn peer_of(held: &Held) -> Option<([u8; 28], u32)> {
    let end = held.end()?;
    let names = end.names();
    let peer = mapped::told(end, Name { bytes: names.peer, length: names.peer_length });
    (end.private().state.load(Acquire) == state::ESTABLISHED && !is_over(end))
        .then_some((peer.bytes, peer.length))
}

/// `getsockname(2)`.
///
/// # Safety
/// As `getsockname(2)`.
pub unsafe fn getsockname(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let Some(held) = table::find(fd) else {
        // SAFETY: the caller's.
        return unsafe { real::getsockname(fd, name, length) };
    };
    let own = match (held.kind(), held.end()) {
        (Kind::Stream, Some(_)) if listener_name(&held).length != 0 => listener_name(&held),
        (Kind::Stream, Some(end)) => {
            let names = end.names();
            mapped::told(end, Name { bytes: names.local, length: names.local_length })
        }
        (Kind::Listener, _) => listener_name(&held),
        (Kind::Pending, _) if listener_name(&held).length != 0 => listener_name(&held),
        // SAFETY: the caller's.
        _ => return unsafe { real::getsockname(fd, name, length) },
    };
    // SAFETY: the caller's.
    sys::give_int(unsafe { give_name(&own, name, length) })
}

/// `getpeername(2)`.
///
/// # Safety
/// As `getpeername(2)`.
pub unsafe fn getpeername(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let held = match table::find(fd) {
        Some(held) if matches!(held.kind(), Kind::Stream | Kind::Listener) => held,
        // SAFETY: the caller's.
        _ => return unsafe { real::getpeername(fd, name, length) },
    };
    look_again(fd, &held);
    let outcome = match peer_of(&held) {
        // SAFETY: the caller's.
        Some((bytes, peer_length)) => unsafe {
            give_name(&Name { bytes, length: peer_length }, name, length)
        },
        None => Err(libc::ENOTCONN),
    };
    sys::give_int(outcome)
}

/// The name that a listener was registered with.
pub fn listener_name(held: &Held) -> Name {
    let mut name = Name { bytes: [0; 28], length: held.facts.local_length.load(Acquire).min(28) };
    for (to, word) in name.bytes.chunks_exact_mut(4).zip(&held.facts.local) {
        to.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
    }
    name
}

/// Writes a listener's name down.
pub fn set_listener_name(held: &Held, name: &Name) {
    for (word, bytes) in held.facts.local.iter().zip(name.bytes.chunks_exact(4)) {
        word.store(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]), Relaxed);
    }
    held.facts.local_length.store(name.length, Release);
}

/// Puts another file at every descriptor of a description, with each one's close-on-exec flag; the
/// other's own number is closed. O_NONBLOCK is carried over.
pub fn replace(fd: c_int, held: &Held, with: c_int) {
    if kernel_nonblocking(fd) {
        set_nonblocking(with);
    }
    put_in_place(fd, held, with);
}

/// Sets O_NONBLOCK on a socket.
pub fn set_nonblocking(fd: c_int) {
    let _ = sys::fcntl(fd, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize);
}

/// As [`replace`], with whatever flags the other has.
pub fn put_in_place(fd: c_int, held: &Held, with: c_int) {
    let put = |fd: c_int| {
        wait::replacing(fd, held);
        let close_on_exec = sys::fcntl(fd, libc::F_GETFD, 0).unwrap_or(0) as c_int & libc::FD_CLOEXEC != 0;
        let _ = sys::dup3(with, fd, if close_on_exec { libc::O_CLOEXEC } else { 0 });
    };
    if held.descriptors() == 1 {
        put(fd)
    } else {
        table::each_of(held, put)
    }
    let _ = sys::close(with);
}

/// Tells those who wait that there is another file at the descriptors.
pub fn replaced(fd: c_int, held: &Held) {
    if held.descriptors() == 1 {
        wait::replaced(fd, held)
    } else {
        table::each_of(held, |fd| wait::replaced(fd, held))
    }
}

/// Whether O_NONBLOCK is set on a descriptor.
pub fn kernel_nonblocking(fd: c_int) -> bool {
    sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags as c_int & libc::O_NONBLOCK != 0)
}

/// Flags of a request about a socket's own name on a VNIC.
fn name_flags(fd: c_int) -> u32 {
    let is_set = |level, name| sys::socket_option(fd, level, name).is_ok_and(|value| value != 0);
    let flag = |level, name, flag| if is_set(level, name) { flag } else { 0 };
    flag(libc::SOL_SOCKET, libc::SO_REUSEPORT, protocol::SHARED_PORT)
        | flag(libc::SOL_SOCKET, libc::SO_REUSEADDR, protocol::REUSED_ADDRESS)
        | flag(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, protocol::ONLY_IPV6)
}

/// Binds a socket to a name of the VNIC.
fn bind_on_vnic(context: &Context, fd: c_int, held: &Held, name: Name) -> Outcome {
    if listener_name(held).length != 0 || !family_fits(held, &name) {
        return Err(libc::EINVAL);
    }
    let (bound, reservation) = service::bind(context, name, name_flags(fd))?;
    reservation::keep(&held.facts, reservation);
    set_listener_name(held, &bound);
    Ok(0)
}

/// Whether a socket's own name is one of the VNIC: it is bound there, or nowhere.
fn lives_on_vnic(context: &Context, fd: c_int, held: &Held) -> bool {
    let of_kernel = || kernel_name(fd).and_then(|name| name.canonical()).is_some_and(|(_, port)| port != 0);
    context.vnic().is_some() && (listener_name(held).length != 0 || !of_kernel())
}

/// `listen(2)` on a VNIC.
fn listen_on_vnic(context: &Context, fd: c_int, held: &Held, backlog: u32) -> Outcome {
    if listener_name(held).length == 0 {
        let mut any = kernel_name(fd).ok_or(libc::ENOTSOCK)?;
        any.bytes[2..].fill(0);
        bind_on_vnic(context, fd, held, any)?;
    }
    let (reservation, name, flags) = (reservation::of(&held.facts), listener_name(held), name_flags(fd));
    let published = publish::open(context, held, flags, &name, backlog)?;
    let placeholder = service::listen(context, reservation, name, backlog, flags, &published)?;
    reservation::release(&held.facts);
    options::remember(fd, held);
    held.facts.backlog.store(backlog, Relaxed);
    replace(fd, held, placeholder);
    held.become_listener();
    replaced(fd, held);
    Ok(0)
}

/// `bind(2)`: the kernel's. In host addressing the kernel gives out names, on a VNIC the service. A
/// name that is taken may be that of a listener of ours that was closed just now: the service,
/// which holds its kernel socket too, is given the time to see that.
///
/// # Safety
/// As `bind(2)`.
pub unsafe fn bind(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int {
    let found = table::find(fd);
    if let Some((held, context)) =
        found.as_ref().filter(|held| held.kind() == Kind::Pending).zip(context::get())
    {
        let name = local::given(name, length);
        if let Some(name) = name.filter(|name| service::is_of_vnic(context, name)) {
            return sys::give_int(bind_on_vnic(context, fd, held, name));
        }
    }
    let ours = found.as_ref().filter(|held| matches!(held.kind(), Kind::Stream | Kind::Listener));
    let outcome = match ours {
        None => {
            // SAFETY: the caller's.
            let outcome = unsafe { bind_patiently(fd, name, length) };
            if let (Ok(_), Some(held)) = (outcome, &found) {
                note_name(fd, held);
            }
            outcome
        }
        // It has a name already: EINVAL, unless the new one is wrong in itself, which a fresh
        // socket finds out.
        Some(held) => options::with_kernel_socket(held, |kernel| {
            let nameless = is_nameless(fd, held);
            // SAFETY: the caller's.
            match unsafe { kernel_bind(kernel, name, length) } {
                Ok(_) if nameless => kernel_name(kernel).map_or(Ok(0), |name| {
                    set_listener_name(held, &name);
                    Ok(0)
                }),
                Ok(_) | Err(libc::EADDRINUSE) if !nameless => Err(libc::EINVAL),
                other => other,
            }
        }),
    };
    sys::give_int(outcome)
}

/// A pending socket was bound: what of that outlives its becoming ours.
fn note_name(fd: c_int, held: &Held) {
    if held.kind() != Kind::Pending {
        return;
    }
    options::note_bound(held);
    if kernel_name(fd).and_then(|name| name.canonical()).is_some_and(|(_, port)| port != 0) {
        held.facts.flags.fetch_or(facts::BOUND, Relaxed);
    }
}

/// Whether Linux has taken a connection's port away: the connection is over, and the port was none
/// that the program had asked for. Such a socket may be bound once more (and do nothing with its
/// name).
fn is_nameless(fd: c_int, held: &Held) -> bool {
    let Some(end) = held.end() else { return false };
    look_again(fd, held);
    let unasked = held.facts.flags.load(Relaxed) & facts::BOUND == 0 && listener_name(held).length == 0;
    unasked
        && end.private().state.load(Acquire) == state::ESTABLISHED
        && is_over(end)
        // A FIN behind more than a window of bytes that are still to be read has not come yet.
        && (end.private().has(flag::RESET) || end.readable() < 1 << 16)
}

/// Whether the connection's state is Linux's TCP_CLOSE.
pub fn is_over(end: &End) -> bool {
    let private = end.private();
    private.has(flag::RESET)
        || private.has(flag::HUNG_UP | flag::SHUT_WR)
        || (private.has(flag::SHUT_WR) && end.finished_by_peer())
}

/// # Safety
/// As `bind(2)`.
unsafe fn bind_patiently(fd: c_int, name: *const sockaddr, length: socklen_t) -> Outcome {
    // SAFETY: the caller's.
    let ask = || unsafe { kernel_bind(fd, name, length) };
    service::patiently(context::get(), local::given(name, length), ask)
}

/// # Safety
/// As `bind(2)`.
unsafe fn kernel_bind(fd: c_int, name: *const sockaddr, length: socklen_t) -> Outcome {
    // SAFETY: the caller's.
    unsafe { sys::ask(libc::SYS_bind, [signed(fd), address(name), length as usize, 0, 0, 0]) }
}

/// `listen(2)`.
pub fn listen(fd: c_int, backlog: c_int) -> c_int {
    let found = table::find(fd);
    let Some((held, context)) = found.as_ref().zip(context::get()) else {
        // SAFETY: touches no memory.
        return unsafe { real::listen(fd, backlog) };
    };
    match held.kind() {
        Kind::Pending => {}
        Kind::Stream => return sys::give_int(Err(libc::EINVAL)),
        Kind::Listener => {
            held.facts.backlog.store(backlog.cast_unsigned(), Relaxed);
            if held.facts.flags.load(Acquire) & facts::STOPPED != 0 {
                return sys::give_int(renewal::start_again(fd, held));
            }
            // SAFETY: the descriptor is open for the time of the call.
            let _ = protocol::change_backlog(
                unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) },
                backlog.cast_unsigned(),
            );
            return 0;
        }
        // SAFETY: touches no memory.
        _ => return unsafe { real::listen(fd, backlog) },
    }
    if lives_on_vnic(context, fd, held) {
        return sys::give_int(listen_on_vnic(context, fd, held, backlog.cast_unsigned()));
    }
    let published = match publish_on_host(context, fd, held, backlog.cast_unsigned()) {
        Ok(published) => published,
        Err(errno) => return sys::give_int(Err(errno)),
    };
    // SAFETY: touches no memory.
    let listening = unsafe { sys::ask(libc::SYS_listen, [signed(fd), signed(backlog), 0, 0, 0, 0]) };
    if listening.is_ok()
        && let Err(errno) = hand_over(context, fd, held, backlog.cast_unsigned(), &published)
    {
        if errno == libc::EACCES {
            // Rules forbid it. What listens in the kernel by now is closed again; its name stays
            // bound.
            let _ = kernel_shutdown(fd, libc::SHUT_RDWR);
            return sys::give_int(Err(errno));
        }
        context::say("a listener stays with the kernel", errno);
        drop(table::remove(fd));
    }
    sys::give_int(listening)
}

/// Ports of the host that lead to the port of a listener of the host. With a VNIC they lead to its
/// ports alone.
///
/// # Errors
/// As [`publish::open`].
pub fn publish_on_host(context: &Context, fd: c_int, held: &Held, backlog: u32) -> Result<Opened, Errno> {
    match kernel_name(fd) {
        Some(name) if context.vnic().is_none() => {
            publish::open(context, held, name_flags(fd), &name, backlog)
        }
        _ => Ok(Opened::default()),
    }
}

/// Gives a kernel's listening socket to the service, and puts the placeholder in its place.
pub fn hand_over(
    context: &Context,
    fd: c_int,
    held: &Held,
    backlog: u32,
    published: &Opened,
) -> Result<(), Errno> {
    let name = kernel_name(fd).ok_or(libc::ENOTSOCK)?;
    let placeholder = service::listen(context, Some(fd), name, backlog, 0, published)?;
    options::remember(fd, held);
    set_listener_name(held, &name);
    held.facts.backlog.store(backlog, Relaxed);
    renewal::keep(held, fd);
    renewal::own(held);
    replace(fd, held, placeholder);
    options::set_accept_timeout(fd, held);
    held.become_listener();
    replaced(fd, held);
    Ok(())
}

/// `connect(2)`.
///
/// # Safety
/// `to` may be read for `length` bytes.
pub unsafe fn connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the caller's.
    let kernel = || unsafe { real::connect(fd, to, length) };
    // A listener's placeholder becomes readable by it, in this process maybe.
    real::count();
    let found = table::find(fd);
    let Some((held, context)) = found.as_ref().zip(context::get()) else { return kernel() };
    match held.kind() {
        Kind::Pending => {}
        Kind::Stream => return sys::give_int(connect_again(fd, held, to, length)),
        Kind::Listener => {
            let mut given = [0; 2];
            let readable =
                local::copy_in(to.cast(), given.get_mut(..(length as usize).min(2)).unwrap_or_default());
            return sys::give_int(readable.and(Err(libc::EISCONN)));
        }
        _ => return kernel(),
    }
    let remote = local::name(to, length);
    if let Some(remote) = remote
        && family_fits(held, &remote)
        && (context.vnic().is_some() || local::is_local(&remote))
    {
        let of_vnic = service::is_of_vnic(context, &remote);
        let key = history::key(&remote);
        if !of_vnic && history::prefers_kernel(key) {
            return left_to_kernel(fd, kernel());
        }
        let sent = if of_vnic { reservation::of(&held.facts) } else { Some(fd) };
        match service::connect(context, sent, listener_name(held), remote) {
            Ok(Connected::Made(made)) => {
                held.destination.store(key, Relaxed);
                return sys::give_int(finish_connect(fd, held, made));
            }
            Ok(Connected::Refused(errno)) => return sys::give_int(Err(errno)),
            // The way to it is the VNIC's and no other.
            Err(_) if of_vnic => return sys::give_int(Err(libc::ENETUNREACH)),
            Ok(Connected::NotOurs) | Err(_) => {}
        }
    }
    left_to_kernel(fd, kernel())
}

/// Connected (or at it) in the kernel: it is the kernel's from now on.
fn left_to_kernel(fd: c_int, answer: c_int) -> c_int {
    if answer == 0 || sys::errno() == libc::EINPROGRESS {
        drop(table::remove(fd));
    }
    answer
}

fn family_fits(held: &Held, name: &Name) -> bool {
    let family = u32::from(u16::from_ne_bytes([name.bytes[0], name.bytes[1]]));
    family == held.facts.domain.load(Relaxed)
}

fn finish_connect(fd: c_int, held: &Held, made: service::Made) -> Outcome {
    let nonblocking = kernel_nonblocking(fd);
    if nonblocking {
        made.end.private().set(flag::NONBLOCKING);
        held.facts.flags.fetch_or(facts::CONNECTING, Relaxed);
    }
    options::remember(fd, held);
    options::hand_on(held, &made.end);
    reservation::release(&held.facts);
    replace(fd, held, made.placeholder);
    if held.become_stream(made.end).is_err() {
        return Err(libc::EALREADY);
    }
    replaced(fd, held);
    let Some(end) = held.end() else { return Err(libc::EBADF) };
    options::announce_inherited(fd, end);
    if nonblocking {
        return Err(libc::EINPROGRESS);
    }
    if made.connecting { wait_for_connection(fd, held, end) } else { Ok(0) }
}

fn wait_for_connection(fd: c_int, held: &Held, end: &End) -> Outcome {
    let deadline = options::deadline(end, options::SEND_TIMEOUT);
    let mut stay = Stay::begin(fd, held);
    while !sleep::set_up(end) {
        let rest = Rest { want: Want::Data, deadline, restart: true };
        match sleep::until(&mut stay, end, rest, || sleep::set_up(end)) {
            Ok(()) => {}
            // A later connect of this descriptor hears how it went.
            Err(errno) => {
                held.facts.flags.fetch_or(facts::CONNECTING, Relaxed);
                return Err(if errno == libc::EAGAIN { libc::EINPROGRESS } else { errno });
            }
        }
        if end.private().has(flag::HUNG_UP) && !sleep::set_up(end) {
            return Err(receive::take_error(end).unwrap_or(libc::ECONNREFUSED));
        }
    }
    connected(end)
}

fn connected(end: &End) -> Outcome {
    match end.private().state.load(Acquire) {
        state::FAILED => Err(receive::take_error(end).unwrap_or(libc::ECONNABORTED)),
        _ => Ok(0),
    }
}

fn connect_again(fd: c_int, held: &Held, to: *const sockaddr, length: socklen_t) -> Outcome {
    let Some(end) = held.end() else { return Err(libc::EBADF) };
    let mut family = [0; 2];
    if (length as usize) < family.len() {
        return Err(libc::EINVAL);
    }
    local::copy_in(to.cast(), &mut family)?;
    if c_int::from(u16::from_ne_bytes(family)) == libc::AF_UNSPEC {
        return dissolve(fd, held, end);
    }
    if !sleep::set_up(end) {
        if end.private().has(flag::NONBLOCKING) {
            return Err(libc::EALREADY);
        }
        return wait_for_connection(fd, held, end);
    }
    if held.facts.flags.fetch_and(!facts::CONNECTING, Relaxed) & facts::CONNECTING != 0 {
        look_again(fd, held);
        if is_over(end) {
            return Err(receive::take_error(end).unwrap_or(libc::ECONNABORTED));
        }
        return connected(end);
    }
    Err(libc::EISCONN)
}

/// Connects to nobody: the connection is reset, and a fresh kernel's socket takes its place.
fn dissolve(fd: c_int, held: &Held, end: &End) -> Outcome {
    mapped::follow(held);
    let domain = held.facts.domain.load(Relaxed).cast_signed();
    let mut kernel = sys::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
    let room = if kernel == Err(libc::EMFILE) { room::raise() } else { None };
    if room.is_some() {
        kernel = sys::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
    }
    let kernel = kernel? as c_int;
    let Some(fresh) = table::describe(Kind::Pending, None) else {
        let _ = sys::close(kernel);
        return Err(libc::ENOBUFS);
    };
    fresh.facts.domain.store(domain.cast_unsigned(), Relaxed);
    end.reset();
    // Wakes whoever sleeps on the placeholder, at either end.
    let _ = kernel_shutdown(fd, libc::SHUT_RDWR);
    replace(fd, held, kernel);
    for fd in 0..table::highest() {
        if table::refers_to(fd, held) {
            drop(table::remove(fd));
            wait::closing(fd, held);
            table::put(fd, &fresh);
        }
    }
    Ok(0)
}

/// `shutdown(2)`.
pub fn shutdown(fd: c_int, how: c_int) -> c_int {
    let held = match table::find(fd) {
        Some(held) if matches!(held.kind(), Kind::Stream | Kind::Listener) => held,
        // SAFETY: touches no memory.
        _ => return unsafe { real::shutdown(fd, how) },
    };
    if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
        return sys::give_int(Err(libc::EINVAL));
    }
    match held.end() {
        Some(end) => {
            let outcome = shut(fd, end, how);
            if outcome.is_ok() {
                // Nor does a connect that did not wait hear any more how it went.
                held.facts.flags.fetch_and(!facts::CONNECTING, Relaxed);
            }
            sys::give_int(outcome)
        }
        None => {
            if held.facts.flags.load(Acquire) & facts::STOPPED != 0 {
                return sys::give_int(Err(libc::ENOTCONN));
            }
            if how != libc::SHUT_WR {
                // Linux stops listening; who sleeps in accept hears EINVAL.
                held.facts.flags.fetch_or(facts::STOPPED, Release);
                let _ = kernel_shutdown(fd, libc::SHUT_RDWR);
                renewal::stop(&held);
                accept::refuse_all(fd);
            }
            0
        }
    }
}

fn kernel_shutdown(fd: c_int, how: c_int) -> Outcome {
    // SAFETY: touches no memory.
    unsafe { sys::ask(libc::SYS_shutdown, [signed(fd), signed(how), 0, 0, 0, 0]) }
}

fn shut(fd: c_int, end: &End, how: c_int) -> Outcome {
    let private = end.private();
    if end.is_worth_asking() {
        sleep::ask_whether_gone(fd, end);
    }
    if private.state.load(Acquire) == state::FAILED || is_over(end) {
        return Err(libc::ENOTCONN);
    }
    if how != libc::SHUT_RD {
        // No handler jumps out of it and leaves a lock.
        let section = wait::Section::enter();
        end.finish();
        drop(section);
        sleep::ring(fd, end, end.ring_for_data());
    }
    if how != libc::SHUT_WR {
        private.set(flag::SHUT_RD);
        // Wakes whoever sleeps on the placeholder here. The other end sees that bytes are refused,
        // asks whether we are gone, and hears that we are not.
        let _ = kernel_shutdown(fd, libc::SHUT_RD);
    }
    // Linux wakes whoever polls the socket, whether or not this changed anything.
    private.wake_watchers();
    if private.has(flag::SHUT_RD | flag::SHUT_WR) {
        // The other asks the kernel, and finds that bytes are refused here.
        let _section = wait::Section::enter();
        end.closing();
    }
    Ok(0)
}

/// `sendto` with a name on a socket that is not connected, with MSG_FASTOPEN: connect, then send.
///
/// # Safety
/// As `sendto(2)`.
pub unsafe fn send_fast(
    fd: c_int,
    vectors: &[libc::iovec],
    flags: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> isize {
    // SAFETY: the caller's.
    if unsafe { connect(fd, to, length) } != 0 {
        return -1;
    }
    let held = table::find(fd);
    if let Some((held, end)) = held.as_ref().and_then(|held| held.end().map(|end| (held, end))) {
        // SAFETY: the caller's.
        return sys::give(unsafe { send::send(fd, held, end, vectors, flags & !libc::MSG_FASTOPEN) });
    }
    let message = libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: vectors.as_ptr().cast_mut(),
        msg_iovlen: vectors.len(),
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    };
    // SAFETY: the caller's.
    unsafe {
        real::sendmsg(fd, address(&raw const message) as *const libc::msghdr, flags & !libc::MSG_FASTOPEN)
    }
}
