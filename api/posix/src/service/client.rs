//! Requests to the socket service, by descriptor number: those of [`sietch_stream::service`], with
//! room for the descriptors of the reply.
//!
//! Nothing of a request is kept open, and errno stays unchanged. Every reply is an offer: if
//! anything fails, the caller goes to the kernel.

use std::ffi::c_int;
use std::os::fd::{AsFd as _, BorrowedFd, IntoRawFd as _, OwnedFd};

use rustix::io::Errno as Error;
use sietch_protocol::socket_service::{
    self as protocol, Descriptors, MAX_PUBLISHED_PER_PORT, Name, Reply, Request,
};
use sietch_ring::stream::Endpoint;
use sietch_stream::service::{self, SocketService};

use crate::context::{self, Context};
use crate::descriptor::room;
use crate::readiness::set::EpollSet;
use crate::system::kernel;
use crate::system::sys::{Errno, errno, set_errno};

pub(crate) use sietch_stream::service::Adopted;

/// Listening sockets of the kernel, closed with this.
#[derive(Debug, Default)]
pub(crate) struct PublishedSockets(pub(crate) [Option<OwnedFd>; MAX_PUBLISHED_PER_PORT]);

impl PublishedSockets {
    /// The sockets.
    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> + Clone {
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

impl SocketService for Context {
    fn application(&self) -> [u8; 16] {
        self.application
    }

    fn vnic(&self) -> Option<&str> {
        Self::vnic(self)
    }

    fn call(
        &self,
        request: &Request,
        send: &[BorrowedFd<'_>],
        received: &mut Descriptors,
    ) -> Result<Reply, Error> {
        // A reply whose descriptors the kernel could not deliver would be lost; without room no
        // request is sent.
        let Some(_room) = room::check(room::REQUEST_DESCRIPTORS).or_else(room::raise) else {
            context::debug_line(
                "no free descriptor for a request to the socket service; raise the limit (ulimit -n)",
                libc::EMFILE,
            );
            return Err(Error::MFILE);
        };
        let before = errno();
        let answer = protocol::call(self.path(), request, send, received);
        set_errno(before);
        if let Err(errno) = answer {
            context::debug_line(
                "the socket service did not reply; the kernel serves this call",
                errno.raw_os_error(),
            );
        }
        answer.map_err(|errno| match errno {
            // After a program gave up rights its service may be out of its reach. That is no rule
            // of the service, whose refusal is a reply.
            Error::ACCESS | Error::PERM => Error::CONNREFUSED,
            other => other,
        })
    }

    /// The program may register the connection in an epoll, for which that is needed first.
    fn beside(&self) -> usize {
        EpollSet::length()
    }

    fn pause(&self) {
        kernel::pause();
    }
}

/// A descriptor of the caller's, open for the time of the call.
pub(crate) fn borrowed<'a>(fd: c_int) -> BorrowedFd<'a> {
    // SAFETY: no caller passes a number that it closes during the call.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Whether a name is one of the VNIC, and not of the host's own loopback, which is always the
/// host's.
pub(crate) fn is_of_vnic(context: &Context, name: &Name) -> bool {
    service::is_of_vnic(context, name)
}

/// Requests a name on the VNIC: the name, with its port, and the descriptor whose closing frees it.
///
/// # Errors
/// As `bind(2)`; the service's absence.
pub(crate) fn bind(context: &Context, local: Name, flags: u32) -> Result<(Name, c_int), Errno> {
    let bound = service::bind(context, local, flags);
    bound.map(|(name, held)| (name, held.into_raw_fd())).map_err(Error::raw_os_error)
}

/// Maps the memory of a stream; its placeholder stays where it is.
pub(crate) fn map_stream(received: &mut Descriptors) -> Result<Endpoint, Errno> {
    let context = context::get().ok_or(libc::ECONNABORTED)?;
    service::map_stream(context, received).map_err(Error::raw_os_error)
}

/// Has the service relay a connection that arrived at `listener` and cannot be served through
/// memory here. Its client continues, and a kernel's socket arrives in its place.
///
/// # Errors
/// `ECONNABORTED`: it is lost.
pub(crate) fn relay(listener: c_int, placeholder: &OwnedFd) -> Result<(), Errno> {
    let why = "no memory for a connection; its listener is on kernel TCP from now on";
    context::debug_line(why, libc::ENOMEM);
    let context = context::get().ok_or(libc::ECONNABORTED)?;
    service::relay(context, borrowed(listener), placeholder.as_fd()).map_err(|_| libc::ECONNABORTED)
}

/// Requests a connection to the listener at `remote`. `socket` is the program's kernel socket, or
/// the reservation of its name on a VNIC; `local` is that name, if it has one.
///
/// # Errors
/// The service's absence; the caller goes to the kernel, unless `remote` is beyond a VNIC.
pub(crate) fn connect(
    context: &Context,
    socket: Option<c_int>,
    local: Name,
    remote: Name,
) -> Result<Connected, Errno> {
    match service::connect(context, socket.map(borrowed), local, remote) {
        Ok(service::Connected::Made(service::Made { placeholder, end, connecting })) => {
            Ok(Connected::Made(Made { placeholder: placeholder.into_raw_fd(), end, connecting }))
        }
        Ok(service::Connected::Refused(errno)) => Ok(Connected::Refused(errno.raw_os_error())),
        Ok(service::Connected::NotOurs) => Ok(Connected::NotOurs),
        Err(errno) => Err(errno.raw_os_error()),
    }
}

/// Requests that the service release a name whose holder has ended. Returns whether the name may be
/// free soon, because the service is closing its sockets.
///
/// # Errors
/// The service's absence.
pub(crate) fn release_stale_name(context: &Context, name: Name) -> Result<bool, Errno> {
    service::release_stale_name(context, name).map_err(Error::raw_os_error)
}

/// Runs `take`, and repeats it while the name is in use by an ended listener or connection of ours.
///
/// # Errors
/// Those of `take`.
pub(crate) fn retrying_bind<T>(
    context: Option<&Context>,
    name: Option<Name>,
    take: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    service::retrying_bind(context, name, |errno| *errno == libc::EADDRINUSE, take)
}

/// Passes a listening socket to the service, with the ports of the host that lead there. On a VNIC
/// `socket` is the reservation of the name, if there is one. Returns the placeholder. `flags` as in
/// the protocol.
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
    let placeholder =
        service::listen(context, socket.map(borrowed), local, backlog, flags, published.sockets());
    placeholder.map(OwnedFd::into_raw_fd).map_err(Error::raw_os_error)
}

/// Requests the state of a connection of the VNIC: its `struct tcp_info`, and how many bytes are
/// unacknowledged.
pub(crate) fn information(fd: c_int) -> Option<([u8; protocol::INFORMATION_BYTES], u32)> {
    service::information(context::get()?, borrowed(fd))
}

/// Queries what an inherited or received Unix socket is.
///
/// # Errors
/// The service's absence.
pub(crate) fn adopt(context: &Context, fd: c_int) -> Result<Adopted, Errno> {
    service::adopt(context, borrowed(fd)).map_err(Error::raw_os_error)
}
