//! A listener of a program that links Sietch.
//!
//! 1. It is a kernel's listening socket, whose name and backlog are the kernel's, and which the
//!    service takes over. Connections arrive as messages on a placeholder: through memory, or as
//!    the kernel's sockets of clients that are not under Sietch.
//! 2. If the service ends, the kernel's socket is offered to the one that runs again. While none
//!    does, that socket serves ([`crate::registration`]).
//! 3. If the service has shut the socket down, the application is revoked: the listener has ended.
//! 4. A message whose descriptors do not fit would be lost with its connection. So a message is
//!    taken only after the kernel has given its descriptors to this process
//!    ([`protocol::receive_sole_arrival`]). Without room for them the connection waits.
//! 5. That requires one receiver. A listener is of one thread, and of the process that made it: in
//!    a child of a fork [`Listener::try_accept`] refuses to take connections from the service.
//! 6. A placeholder that hangs up makes the kernel's socket serve at once. The service is asked
//!    again at the pace of [`Schedule`], also if it answers each time and then ends.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use sietch_protocol::socket_service::{self as protocol, Descriptors, Incoming, Name};
use sietch_ring::OwnerProcess;

use crate::connection::Connection;
use crate::registration::{self, Schedule};
use crate::service::{self, DirectService};

/// Damaged messages, or restarts of the service, in one call: more come from a hostile service.
const MAX_ATTEMPTS: usize = 16;

/// Where connections arrive.
#[derive(Clone, Debug)]
enum Source {
    /// From the service, over this placeholder.
    Service(Rc<OwnedFd>),
    /// At the kernel's socket. `retries`: the service is asked again.
    Kernel { retries: bool },
    /// Nowhere: the application was revoked.
    Ended,
}

/// See the module.
#[derive(Debug)]
pub struct Listener {
    service: Rc<DirectService>,
    kernel: Rc<OwnedFd>,
    name: Name,
    backlog: u32,
    source: RefCell<Source>,
    schedule: Schedule,
    owner: OwnerProcess,
    /// Whether something may have arrived, as far as is known.
    pub(crate) ready: Cell<bool>,
}

impl Listener {
    /// Listens on `address`, where the kernel lets this process listen. `backlog` connections and
    /// one more wait to be accepted.
    ///
    /// # Errors
    /// As `bind(2)` and `listen(2)`; `PermissionDenied`: a rule of the service forbids it. A
    /// service that is absent is no error: the kernel's socket serves until it is there.
    pub fn bind(service: &Rc<DirectService>, address: SocketAddr, backlog: u32) -> io::Result<Self> {
        let name = Some(Name::from(address)).filter(|_| address.port() != 0);
        let is_used = |errno: &Errno| *errno == Errno::ADDRINUSE;
        let open = || listening_socket(address, backlog);
        let kernel = service::retrying_bind(Some(&**service), name, is_used, open)?;
        let bound = rustix::net::getsockname(&kernel)?;
        let bound = SocketAddr::try_from(bound).map_err(|_| io::Error::from(Errno::AFNOSUPPORT))?;
        let listener = Self {
            service: Rc::clone(service),
            kernel: Rc::new(kernel),
            name: Name::from(bound),
            backlog,
            source: RefCell::new(Source::Kernel { retries: true }),
            schedule: Schedule::new(),
            owner: OwnerProcess::current(),
            ready: Cell::new(true),
        };
        if let Err(errno) = listener.register()
            && registration::is_final(errno)
        {
            return Err(errno.into());
        }
        Ok(listener)
    }

    /// The address, with the port that the kernel has chosen if none was given.
    pub fn address(&self) -> Option<SocketAddr> {
        self.name.address()
    }

    /// Whether the service passes connections on: programs under Sietch arrive through memory.
    pub fn is_registered(&self) -> bool {
        matches!(*self.source.borrow(), Source::Service(_))
    }

    /// The descriptor on which connections arrive.
    pub(crate) fn watched(&self) -> Option<Rc<OwnedFd>> {
        match &*self.source.borrow() {
            Source::Service(placeholder) => Some(Rc::clone(placeholder)),
            Source::Kernel { .. } => Some(Rc::clone(&self.kernel)),
            Source::Ended => None,
        }
    }

    /// When the service is to be asked again, in nanoseconds from an attempt; none: never.
    pub(crate) fn retry_slice(&self) -> Option<u64> {
        match *self.source.borrow() {
            Source::Kernel { retries: true } => Some(self.schedule.slice()),
            _ => None,
        }
    }

    /// Offers the socket to the service.
    fn register(&self) -> Result<(), Errno> {
        let listens = service::listen(
            &*self.service,
            Some(self.kernel.as_fd()),
            self.name,
            self.backlog,
            0,
            std::iter::empty(),
        );
        let (source, outcome) = match listens {
            Ok(placeholder) => (Source::Service(Rc::new(placeholder)), Ok(())),
            Err(errno) => (Source::Kernel { retries: !registration::is_final(errno) }, Err(errno)),
        };
        *self.source.borrow_mut() = source;
        // It may have something already.
        self.ready.set(true);
        outcome
    }

    /// The service has closed its end of the placeholder. It is asked again by
    /// [`Listener::retry`], because one that crashes in a loop must not be asked in a loop.
    fn lost(&self) {
        let source = if registration::listens(self.kernel.as_fd()) {
            registration::restore_backlog(self.kernel.as_fd(), self.backlog);
            Source::Kernel { retries: true }
        } else {
            Source::Ended
        };
        *self.source.borrow_mut() = source;
        self.ready.set(true);
    }

    /// Asks the service again if that is due at `now`: nanoseconds of a clock that only grows.
    pub(crate) fn retry(&self, now: u64) {
        let retries = matches!(*self.source.borrow(), Source::Kernel { retries: true });
        if retries && self.schedule.begin(now) {
            let registered = self.register();
            self.schedule.note(registered.is_ok());
        }
    }

    /// The kernel says that the placeholder has hung up. If nothing waits there, the kernel's
    /// socket takes its place, whether or not the program accepts. Otherwise
    /// [`Listener::try_accept`] does that behind the connections that wait: closing the placeholder
    /// would reset them.
    pub(crate) fn hung_up(&self) {
        let Source::Service(placeholder) = self.source.borrow().clone() else { return };
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        if rustix::net::recv(&*placeholder, &mut [0_u8; 1], flags).is_ok_and(|(length, _)| length != 0) {
            // Clients of the kernel wait there meanwhile.
            registration::restore_backlog(self.kernel.as_fd(), self.backlog);
            self.ready.set(true);
        } else {
            self.lost();
        }
    }

    /// Takes the next connection.
    ///
    /// # Errors
    /// `WouldBlock`: none waits. `EMFILE`: there are no descriptors for it, and it goes on waiting.
    /// `ConnectionAborted`: it has ended while it waited; the next call may succeed.
    /// `PermissionDenied`: the application was revoked, and nothing arrives any more.
    /// `Unsupported`: this process is a child of the one that made the listener.
    pub fn try_accept(&self) -> io::Result<Connection> {
        for _ in 0..MAX_ATTEMPTS {
            let source = self.source.borrow().clone();
            match source {
                Source::Ended => {
                    let what = "the application was revoked (`sietch revoke`); start it again";
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
                }
                Source::Kernel { .. } => match self.accept_from_kernel() {
                    // It listens no more, and never will again.
                    Err(Errno::INVAL) if !registration::listens(self.kernel.as_fd()) => {
                        *self.source.borrow_mut() = Source::Ended;
                    }
                    accepted => return Ok(accepted?),
                },
                Source::Service(placeholder) => {
                    let mut received = Descriptors::default();
                    match self.receive(placeholder.as_fd(), &mut received)? {
                        Incoming::Arrived(arrival) => {
                            return Ok(Connection::arrived(&arrival, &mut received)?);
                        }
                        Incoming::NoRoom => return Err(Errno::MFILE.into()),
                        Incoming::Damaged => {}
                        Incoming::Closed => self.lost(),
                    }
                }
            }
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    }

    fn receive(&self, placeholder: BorrowedFd<'_>, received: &mut Descriptors) -> io::Result<Incoming> {
        if !self.owner.is_current() {
            let what = "a child of a fork must not accept at its parent's listener; make another there";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let incoming = protocol::receive_sole_arrival(placeholder, received);
        if matches!(incoming, Err(Errno::AGAIN)) {
            self.ready.set(false);
        }
        Ok(incoming?)
    }

    fn accept_from_kernel(&self) -> Result<Connection, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = rustix::net::accept_with(&*self.kernel, flags);
        if matches!(accepted, Err(Errno::AGAIN)) {
            self.ready.set(false);
        }
        Ok(Connection::accepted_by_kernel(accepted?))
    }
}

fn listening_socket(address: SocketAddr, backlog: u32) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, backlog.try_into().unwrap_or(i32::MAX))?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
