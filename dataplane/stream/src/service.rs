//! Requests to the socket service, and the handling of its replies.
//!
//! 1. Each request is one connection to the service; nothing is kept open
//!    ([`SocketService::call`]).
//! 2. A request for a name of the host's own loopback is one for the host, whichever VNIC the
//!    program has.
//! 3. Every reply is an offer: if anything fails, the caller goes to the kernel. A reply of another
//!    kind than the request's is no offer.
//! 4. The memory of a connection is mapped here, which checks it.

use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect as connect_socket, socket_with};
use sietch_protocol::socket_service::{
    self as protocol, Descriptors, Name, Reply, ReplyKind, Request, RequestKind,
};
use sietch_ring::stream::{AttachError, Endpoint, RegionSizes, is_mappable};

/// The socket service as one program reaches it.
pub trait SocketService {
    /// Groups the processes of one application.
    fn application(&self) -> [u8; 16];

    /// The VNIC's name; none in host addressing.
    fn vnic(&self) -> Option<&str>;

    /// Sends a request and receives the reply.
    ///
    /// # Errors
    /// The service's absence, as [`protocol::call`]; `EMFILE`.
    fn call(
        &self,
        request: &Request,
        send: &[BorrowedFd<'_>],
        received: &mut Descriptors,
    ) -> Result<Reply, Errno>;

    /// Waits for a millisecond.
    fn pause(&self);

    /// Bytes of address space that must be left to the process beside a new connection.
    fn beside(&self) -> usize {
        0
    }
}

/// The service at a path, for a program that may make any system call. Host addressing.
#[derive(Clone, Debug)]
pub struct DirectService {
    path: Vec<u8>,
    application: [u8; 16],
}

impl DirectService {
    /// The service whose socket is at `path`, for an application of this number.
    pub fn new(path: impl Into<Vec<u8>>, application: [u8; 16]) -> Self {
        Self { path: path.into(), application }
    }
}

impl SocketService for DirectService {
    fn application(&self) -> [u8; 16] {
        self.application
    }

    fn vnic(&self) -> Option<&str> {
        None
    }

    fn call(
        &self,
        request: &Request,
        send: &[BorrowedFd<'_>],
        received: &mut Descriptors,
    ) -> Result<Reply, Errno> {
        protocol::call(&self.path, request, send, received)
    }

    fn pause(&self) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A connection that the service made.
#[derive(Debug)]
pub struct Made {
    /// The placeholder.
    pub placeholder: OwnedFd,
    /// The end.
    pub end: Endpoint,
    /// Whether it is still being set up.
    pub connecting: bool,
}

/// The answer to a connect.
#[derive(Debug)]
pub enum Connected {
    /// No program under Sietch listens there.
    NotOurs,
    /// A connection.
    Made(Made),
    /// An error for the program.
    Refused(Errno),
}

/// The service's answer about a descriptor.
#[derive(Debug)]
pub enum Adopted {
    /// An end of a connection.
    Stream(Endpoint),
    /// A listener with this name and this backlog, if the service says which, and the kernel's
    /// listening socket behind it.
    Listener(Name, Option<u32>, Option<OwnedFd>),
    /// None of ours.
    Unknown,
}

/// A request with the fields that every request has.
fn new_request(service: &impl SocketService, kind: RequestKind) -> Request {
    let mut request = Request::new(kind, service.application());
    if let Some(vnic) = service.vnic() {
        request.set_vnic(vnic);
    }
    request
}

/// Whether a name is one of the VNIC, and not of the host's own loopback, which is always the
/// host's.
pub fn is_of_vnic(service: &impl SocketService, name: &Name) -> bool {
    service.vnic().is_some() && !name.canonical().is_some_and(|(address, _)| address.is_loopback())
}

/// The same request, for the host itself if `name` is its loopback.
fn addressed(service: &impl SocketService, kind: RequestKind, name: &Name) -> Request {
    let mut request = new_request(service, kind);
    if !is_of_vnic(service, name) {
        request.set_vnic("");
    }
    request
}

/// Whether packets to this name stay on this host: only such a destination is worth a request to
/// the service.
///
/// 1. Loopback addresses are local, and so is the unspecified address, which Linux takes for
///    loopback.
/// 2. For other addresses the kernel's routing decides. A UDP socket is connected to the address,
///    which sends no packet. If the address is local, the socket's own name becomes that address.
pub fn is_local(name: &Name) -> bool {
    let Some(address) = name.address() else { return false };
    let ip = address.ip().to_canonical();
    if ip.is_loopback() || ip.is_unspecified() {
        return true;
    }
    if ip.is_multicast() || matches!(ip, IpAddr::V4(ip) if ip.is_broadcast()) {
        return false;
    }
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let own = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).and_then(|socket| {
        connect_socket(&socket, &address)?;
        rustix::net::getsockname(&socket)
    });
    own.ok()
        .and_then(|own| std::net::SocketAddr::try_from(own).ok())
        .is_some_and(|own| own.ip() == address.ip())
}

/// Requests a name on the VNIC: the name, with its port, and the descriptor whose closing frees it.
///
/// # Errors
/// As `bind(2)`; the service's absence.
pub fn bind(service: &impl SocketService, local: Name, flags: u32) -> Result<(Name, OwnedFd), Errno> {
    let mut request = new_request(service, RequestKind::Bind);
    (request.local, request.flags) = (local, flags);
    let mut received = Descriptors::default();
    let reply = service.call(&request, &[], &mut received)?;
    match reply.kind() {
        ReplyKind::Bound => Ok((reply.local, received[0].take().ok_or(Errno::PROTO)?)),
        ReplyKind::Refused => Err(reply.error()),
        _ => Err(Errno::PROTO),
    }
}

fn attach(common: Option<OwnedFd>, private: Option<OwnedFd>) -> Result<Endpoint, Errno> {
    let (Some(common), Some(private)) = (common, private) else { return Err(Errno::PROTO) };
    Endpoint::attach(common.as_fd(), private.as_fd()).map_err(|error| match error {
        AttachError::Io(_) => Errno::NOMEM,
        AttachError::NotSealed | AttachError::Version => Errno::PROTO,
    })
}

/// Maps the memory of the stream whose three descriptors were received. The placeholder stays
/// there.
///
/// # Errors
/// `EPROTO`: there are fewer descriptors, or they are none of a stream. `ENOMEM`: the memory cannot
/// be mapped ([`relay`]).
pub fn map_stream(service: &impl SocketService, received: &mut Descriptors) -> Result<Endpoint, Errno> {
    if service.beside() != 0 && !is_mappable(RegionSizes::default(), service.beside()) {
        return Err(Errno::NOMEM);
    }
    let [_, common, private, _] = received;
    attach(common.take(), private.take())
}

/// Takes the three descriptors of a stream.
///
/// # Errors
/// As [`map_stream`].
pub fn take_stream(
    service: &impl SocketService,
    received: &mut Descriptors,
) -> Result<(OwnedFd, Endpoint), Errno> {
    let end = map_stream(service, received)?;
    Ok((received[0].take().ok_or(Errno::PROTO)?, end))
}

/// This process cannot map a connection that arrived at `listener`. Has the service relay it
/// through a kernel's socket, which arrives there in its place, and leave later clients of the
/// listener to the kernel.
///
/// # Errors
/// The service's absence or refusal: the connection is lost.
pub fn relay(
    service: &impl SocketService,
    listener: BorrowedFd<'_>,
    placeholder: BorrowedFd<'_>,
) -> Result<(), Errno> {
    // Those of a VNIC have no kernel's socket.
    let request = Request::new(RequestKind::Relay, service.application());
    let reply = service.call(&request, &[placeholder, listener], &mut Descriptors::default())?;
    match reply.kind() {
        ReplyKind::Done => Ok(()),
        ReplyKind::Refused => Err(reply.error()),
        _ => Err(Errno::PROTO),
    }
}

/// Asks for a connection to the listener at `remote`. Asks again while the service is closing the
/// socket of a listener that has ended: the kernel would connect to it, and then reset that.
/// `socket` is the program's kernel socket, or what holds its name on a VNIC; `local` is that name,
/// if it has one.
///
/// # Errors
/// The service's absence; `ENOMEM`: this process cannot map a connection. The caller goes to the
/// kernel, unless `remote` is beyond a VNIC.
pub fn connect(
    service: &impl SocketService,
    socket: Option<BorrowedFd<'_>>,
    local: Name,
    remote: Name,
) -> Result<Connected, Errno> {
    // Before the request: a connection that is made waits at its listener, and has no client if it
    // cannot be mapped here.
    if !is_mappable(RegionSizes::default(), service.beside()) {
        return Err(Errno::NOMEM);
    }
    let mut request = addressed(service, RequestKind::Connect, &remote);
    (request.remote, request.local) = (remote, local);
    let mut received = Descriptors::default();
    let mut reply = service.call(&request, socket.as_slice(), &mut received)?;
    for _ in 0..CONNECT_RETRIES {
        if reply.kind() != ReplyKind::UseKernel || !is_busy(&reply) {
            break;
        }
        service.pause();
        reply = service.call(&request, socket.as_slice(), &mut received)?;
    }
    match reply.kind() {
        kind @ (ReplyKind::Connected | ReplyKind::Connecting) => {
            let (placeholder, end) = take_stream(service, &mut received)?;
            Ok(Connected::Made(Made { placeholder, end, connecting: kind == ReplyKind::Connecting }))
        }
        ReplyKind::Refused => Ok(Connected::Refused(reply.error())),
        _ => Ok(Connected::NotOurs),
    }
}

/// Asks the service to release a name whose holder has ended. Returns whether it may be free soon,
/// because the service is closing its sockets.
///
/// # Errors
/// The service's absence.
pub fn release_stale_name(service: &impl SocketService, name: Name) -> Result<bool, Errno> {
    let mut request = new_request(service, RequestKind::Hello);
    request.local = name;
    let reply = service.call(&request, &[], &mut Descriptors::default())?;
    Ok(is_busy(&reply))
}

/// Whether the service is still closing a socket of the name.
fn is_busy(reply: &Reply) -> bool {
    reply.errno == Errno::BUSY.raw_os_error().cast_unsigned()
}

/// Requests for a connection to a name of which the service is closing a listening socket, one each
/// millisecond. A close that hangs is the listening program's doing; then the kernel decides.
const CONNECT_RETRIES: u32 = 100;

/// Attempts to get a name that the service is about to release, one each millisecond.
const BIND_RETRIES: u32 = 100;

/// Runs `take`, and repeats it while the name is in use (`is_used` of its error). The name may
/// belong to an ended listener or connection of ours. The service also holds their kernel sockets,
/// so it is asked to release the name.
///
/// # Errors
/// Those of `take`.
pub fn retrying_bind<T, E>(
    service: Option<&impl SocketService>,
    name: Option<Name>,
    is_used: impl Fn(&E) -> bool,
    mut take: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut outcome = take();
    let Some((service, name)) = service.zip(name) else { return outcome };
    for _ in 0..BIND_RETRIES {
        if !outcome.as_ref().is_err_and(&is_used) {
            break;
        }
        let Ok(soon) = release_stale_name(service, name) else { break };
        outcome = take();
        if !soon {
            break;
        }
        service.pause();
    }
    outcome
}

/// Passes a listening socket to the service, or listens on a VNIC with what holds the name there,
/// if anything does; and passes the ports of the host that lead there. Returns the placeholder.
/// `flags` as in the protocol.
///
/// # Errors
/// The service's absence or refusal.
pub fn listen<'a>(
    service: &impl SocketService,
    socket: Option<BorrowedFd<'a>>,
    local: Name,
    backlog: u32,
    flags: u32,
    mut published: impl Iterator<Item = BorrowedFd<'a>> + Clone,
) -> Result<OwnedFd, Errno> {
    let mut request = addressed(service, RequestKind::Listen, &local);
    (request.backlog, request.flags, request.local) = (backlog, flags, local);
    let mut received = Descriptors::default();
    // Published ports follow the first descriptor; without one, any of them takes its place.
    let reply = match socket.or_else(|| published.clone().next()) {
        Some(first) => {
            let mut send = [first; protocol::MAX_DESCRIPTORS];
            let mut count = 1;
            for (place, socket) in send.iter_mut().skip(1).zip(&mut published) {
                *place = socket;
                count += 1;
            }
            service.call(&request, send.get(..count).unwrap_or_default(), &mut received)?
        }
        None => service.call(&request, &[], &mut received)?,
    };
    match reply.kind() {
        ReplyKind::Listening => received[0].take().ok_or(Errno::PROTO),
        ReplyKind::Refused => Err(reply.error()),
        _ => Err(Errno::PROTO),
    }
}

/// Requests the state of a connection of the VNIC: its `struct tcp_info`, and how many bytes are
/// unacknowledged.
pub fn information(
    service: &impl SocketService,
    placeholder: BorrowedFd<'_>,
) -> Option<([u8; protocol::INFORMATION_BYTES], u32)> {
    let request = new_request(service, RequestKind::Information);
    let reply = service.call(&request, &[placeholder], &mut Descriptors::default()).ok()?;
    let bytes = reply.spare.first_chunk()?;
    (reply.kind() == ReplyKind::Information).then_some((*bytes, reply.limit))
}

/// Asks what an inherited or received Unix socket is.
///
/// # Errors
/// The service's absence.
pub fn adopt(service: &impl SocketService, socket: BorrowedFd<'_>) -> Result<Adopted, Errno> {
    let mut received = Descriptors::default();
    let reply = service.call(&new_request(service, RequestKind::Adopt), &[socket], &mut received)?;
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
