//! Requests to the socket service, and the handling of its replies.
//!
//! Each request is one connection to the service; nothing is kept open. Every reply is an offer: if
//! anything fails, the caller goes to the kernel.

use std::ffi::c_int;
use std::os::fd::{AsFd as _, BorrowedFd, IntoRawFd, OwnedFd};

use sietch_protocol::socket_service::{
    self as protocol, Descriptors, MAX_PUBLISHED_PER_PORT, Name, Reply, ReplyKind, Request, RequestKind,
};
use sietch_ring::stream::Endpoint;

use crate::context::{self, Context};
use crate::descriptor::room;
use crate::system::kernel;
use crate::system::sys::{Errno, errno, set_errno};

/// Listening sockets of the kernel, closed with this.
#[derive(Debug, Default)]
pub(crate) struct PublishedSockets(pub(crate) [Option<OwnedFd>; MAX_PUBLISHED_PER_PORT]);

impl PublishedSockets {
    /// The sockets.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().flatten().map(|socket| socket.as_fd())
    }
}

/// A connection that the service made.
#[derive(Debug)]
pub(crate) struct Made {
    /// The placeholder.
    pub(crate) placeholder: c_int,
    /// The end.
    pub(crate) end: Endpoint,
    /// Whether it is still being set up.
    pub(crate) connecting: bool,
}

/// The answer to a connect.
#[derive(Debug)]
pub(crate) enum Connected {
    /// No program under Sietch listens there.
    NotOurs,
    /// A connection.
    Made(Made),
    /// An errno for the program.
    Refused(Errno),
}

/// The service's answer about a descriptor.
#[derive(Debug)]
pub(crate) enum Adopted {
    /// An end of a connection.
    Stream(Endpoint),
    /// A listener with this name and this backlog, if the service says which, and the kernel's
    /// listening socket behind it.
    Listener(Name, Option<u32>, Option<OwnedFd>),
    /// None of ours.
    Unknown,
}

/// A request with the fields that every request has.
pub(crate) fn new_request(context: &Context, kind: RequestKind) -> Request {
    let mut request = Request::new(kind, context.application);
    if let Some(vnic) = context.vnic() {
        request.set_vnic(vnic);
    }
    request
}

/// Whether a name is one of the VNIC, and not of the host's own loopback, which is always the
/// host's.
pub(crate) fn is_of_vnic(context: &Context, name: &Name) -> bool {
    context.vnic().is_some() && !name.canonical().is_some_and(|(address, _)| address.is_loopback())
}

/// The same request, for the host itself if `name` is its loopback.
fn addressed(context: &Context, kind: RequestKind, name: &Name) -> Request {
    let mut request = new_request(context, kind);
    if !is_of_vnic(context, name) {
        request.set_vnic("");
    }
    request
}

/// Requests a name on the VNIC: the name, with its port, and the descriptor whose closing frees it.
///
/// # Errors
/// As `bind(2)`; the service's absence.
pub(crate) fn bind(context: &Context, local: Name, flags: u32) -> Result<(Name, c_int), Errno> {
    let mut request = new_request(context, RequestKind::Bind);
    (request.local, request.flags) = (local, flags);
    let mut received = Descriptors::default();
    let reply = send_request(context, &request, None, &mut received)?;
    match reply.kind() {
        ReplyKind::Bound => {
            let reservation = received[0].take().ok_or(libc::EPROTO)?;
            Ok((reply.local, reservation.into_raw_fd()))
        }
        ReplyKind::Refused => Err(reply.error().raw_os_error()),
        _ => Err(libc::EPROTO),
    }
}

/// Sends a request and receives the reply; errno stays unchanged.
pub(crate) fn send_request(
    context: &Context,
    request: &Request,
    send: Option<c_int>,
    received: &mut Descriptors,
) -> Result<Reply, Errno> {
    // SAFETY: the descriptor is the caller's, and open for the time of the call.
    let send = send.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    send_request_with(context, request, send.as_slice(), received)
}

fn send_request_with(
    context: &Context,
    request: &Request,
    send: &[BorrowedFd<'_>],
    received: &mut Descriptors,
) -> Result<Reply, Errno> {
    // A reply whose descriptors the kernel could not deliver would be lost; without room no request
    // is sent.
    let Some(_room) = room::check(room::REQUEST_DESCRIPTORS).or_else(room::raise) else {
        context::debug_line(
            "no free descriptor for a request to the socket service; raise the limit (ulimit -n)",
            libc::EMFILE,
        );
        return Err(libc::EMFILE);
    };
    let before = errno();
    let answer = protocol::call(context.path(), request, send, received);
    set_errno(before);
    answer.map_err(|errno| {
        context::debug_line(
            "the socket service did not reply; the kernel serves this call",
            errno.raw_os_error(),
        );
        errno.raw_os_error()
    })
}

fn attach(common: Option<OwnedFd>, private: Option<OwnedFd>) -> Result<Endpoint, Errno> {
    let (Some(common), Some(private)) = (common, private) else { return Err(libc::EPROTO) };
    Endpoint::attach(common.as_fd(), private.as_fd()).map_err(|_| libc::ENOMEM)
}

/// Takes the three descriptors of a stream.
pub(crate) fn take_stream(received: &mut Descriptors) -> Result<(c_int, Endpoint), Errno> {
    let [placeholder, common, private, _] = received;
    let (placeholder, end) = (placeholder.take(), attach(common.take(), private.take())?);
    Ok((placeholder.ok_or(libc::EPROTO)?.into_raw_fd(), end))
}

/// Asks for a connection to the listener at `remote`. `socket` is the program's kernel socket, or
/// what holds its name on a VNIC; `local` is that name, if it has one.
///
/// # Errors
/// The service's absence; the caller goes to the kernel, unless `remote` is beyond a VNIC.
pub(crate) fn connect(
    context: &Context,
    socket: Option<c_int>,
    local: Name,
    remote: Name,
) -> Result<Connected, Errno> {
    let mut request = addressed(context, RequestKind::Connect, &remote);
    (request.remote, request.local) = (remote, local);
    let mut received = Descriptors::default();
    let reply = send_request(context, &request, socket, &mut received)?;
    match reply.kind() {
        kind @ (ReplyKind::Connected | ReplyKind::Connecting) => {
            let (placeholder, end) = take_stream(&mut received)?;
            Ok(Connected::Made(Made { placeholder, end, connecting: kind == ReplyKind::Connecting }))
        }
        ReplyKind::Refused => Ok(Connected::Refused(reply.error().raw_os_error())),
        _ => Ok(Connected::NotOurs),
    }
}

/// Asks the service to release a name whose holder has ended. Returns whether it may be free soon,
/// because the service is closing its sockets.
///
/// # Errors
/// The service's absence.
pub(crate) fn release_stale_name(context: &Context, name: Name) -> Result<bool, Errno> {
    let mut request = new_request(context, RequestKind::Hello);
    request.local = name;
    let reply = send_request(context, &request, None, &mut Descriptors::default())?;
    Ok(reply.errno == libc::EBUSY.cast_unsigned())
}

/// Attempts to get a name that the service is about to release, one each millisecond.
const BIND_RETRIES: u32 = 100;

/// Runs `take`, and repeats it while the name is in use. The name may belong to an ended listener
/// or connection of ours. The service also holds their kernel sockets, so it is asked to release
/// the name.
///
/// # Errors
/// Those of `take`.
pub(crate) fn retrying_bind<T>(
    context: Option<&Context>,
    name: Option<Name>,
    mut take: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let mut outcome = take();
    let Some((context, name)) = context.zip(name) else { return outcome };
    for _ in 0..BIND_RETRIES {
        if !matches!(outcome, Err(libc::EADDRINUSE)) {
            break;
        }
        let Ok(soon) = release_stale_name(context, name) else { break };
        outcome = take();
        if !soon {
            break;
        }
        let _ = kernel::poll(&mut [], Some(libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
    }
    outcome
}

/// Passes a listening socket to the service, or listens on a VNIC with what holds the name there,
/// if anything does; and passes the ports of the host that lead there. Returns the placeholder.
/// `flags` as in the protocol.
///
/// # Errors
/// The service's absence or refusal.
pub(crate) fn listen(
    context: &Context,
    socket: Option<c_int>,
    local: Name,
    backlog: u32,
    flags: u32,
    published: &PublishedSockets,
) -> Result<c_int, Errno> {
    let mut request = addressed(context, RequestKind::Listen, &local);
    (request.backlog, request.flags, request.local) = (backlog, flags, local);
    let mut received = Descriptors::default();
    // SAFETY: the descriptor is the caller's, and open for the time of the call.
    let own = socket.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    // Published ports follow the first descriptor; without one, any of them takes its place.
    let first = own.or_else(|| published.sockets().next());
    let mut places = [first; protocol::MAX_DESCRIPTORS];
    let mut count = usize::from(first.is_some());
    for (place, socket) in places.iter_mut().skip(1).zip(published.sockets()) {
        *place = Some(socket);
        count += 1;
    }
    let reply = match first {
        Some(first) => {
            let send = places.map(|place| place.unwrap_or(first));
            send_request_with(context, &request, send.get(..count).unwrap_or_default(), &mut received)?
        }
        None => send_request_with(context, &request, &[], &mut received)?,
    };
    match reply.kind() {
        ReplyKind::Listening => received[0].take().map(IntoRawFd::into_raw_fd).ok_or(libc::EPROTO),
        ReplyKind::Refused => Err(reply.error().raw_os_error()),
        _ => Err(libc::EPROTO),
    }
}

/// Requests the state of a connection of the VNIC: its `struct tcp_info`, and how many bytes are
/// unacknowledged.
pub(crate) fn information(fd: c_int) -> Option<([u8; protocol::INFORMATION_BYTES], u32)> {
    let context = context::get()?;
    let request = new_request(context, RequestKind::Information);
    let reply = send_request(context, &request, Some(fd), &mut Descriptors::default()).ok()?;
    let bytes = reply.spare.first_chunk()?;
    (reply.kind() == ReplyKind::Information).then_some((*bytes, reply.limit))
}

/// Asks what an inherited or received Unix socket is.
///
/// # Errors
/// The service's absence.
pub(crate) fn adopt(context: &Context, fd: c_int) -> Result<Adopted, Errno> {
    let mut received = Descriptors::default();
    let reply = send_request(context, &new_request(context, RequestKind::Adopt), Some(fd), &mut received)?;
    match reply.kind() {
        ReplyKind::Stream => {
            let [common, private, ..] = received;
            Ok(Adopted::Stream(attach(common, private)?))
        }
        // One more than the backlog: services that do not report it leave the field 0.
        ReplyKind::Listener => {
            Ok(Adopted::Listener(reply.local, reply.limit.checked_sub(1), received[0].take()))
        }
        _ => Ok(Adopted::Unknown),
    }
}
