//! A listener of a program that links Sietch.
//!
//! 1. It is a kernel's listening socket, whose name and backlog are the kernel's, and which the
//!    service takes over. Connections arrive as messages on a placeholder: through memory, or as
//!    the kernel's sockets of clients that are not under Sietch.
//! 2. If the service ends, the kernel's socket is offered to the one that runs again. While none
//!    does, that socket serves ([`crate::registration`]). Another thread makes the offer, because a
//!    service that is stopped answers late: the program's loop must not wait for it.
//! 3. If the service has shut the socket down, the application is revoked: the listener has ended.
//! 4. A message whose descriptors do not fit would be lost with its connection. So a message is
//!    taken only after the kernel has given its descriptors to this process
//!    ([`protocol::receive_sole_arrival`]). Without room for them the connection waits.
//! 5. That requires one receiver. A listener is of one thread, and of the process that made it: in
//!    a child of a fork [`Listener::try_accept`] refuses to take connections from the service.
//! 6. A placeholder that hangs up makes the kernel's socket serve at once. The service is asked
//!    again at the pace of [`Schedule`], also if it answers each time and then ends.
//! 7. A program may accept the kernel's clients itself ([`Listener::split_kernel`]), with or
//!    without a service. Then the listener accepts what the service passes on, and nothing else.
//!    The service accepts from the same socket, so clients of the kernel arrive on both ways.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use sietch_protocol::socket_service::{self as protocol, Arrival, ArrivalKind, Descriptors, Incoming, Name};
use sietch_ring::OwnerProcess;

use crate::connection::Connection;
use crate::registration::{self, Schedule};
use crate::service::{self, DirectService};

/// What has arrived at a listener.
#[derive(Debug)]
pub enum Arrived {
    /// A connection through memory.
    Memory(Connection),
    /// The socket of a client that is not under Sietch.
    Kernel(OwnedFd),
}

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
    /// The answer to an offer of the socket, which another thread waits for.
    offer: RefCell<Option<Receiver<Result<OwnedFd, Errno>>>>,
    /// The program accepts the kernel's clients itself.
    split: Cell<bool>,
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
            offer: RefCell::default(),
            split: Cell::new(false),
            owner: OwnerProcess::current(),
            ready: Cell::new(true),
        };
        let (service, socket) = (&*listener.service, listener.kernel.as_fd());
        let answer = offer(service, socket, listener.name, listener.backlog);
        if let Err(errno) = listener.register(answer)
            && registration::is_final(errno)
        {
            return Err(errno.into());
        }
        Ok(listener)
    }

    /// From now on the program accepts the kernel's clients itself, from the listening socket that
    /// this returns. The service may accept them as well, and then they arrive here.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn split_kernel(&self) -> io::Result<OwnedFd> {
        let socket = self.kernel.try_clone()?;
        self.split.set(true);
        Ok(socket)
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
            Source::Kernel { .. } if !self.split.get() => Some(Rc::clone(&self.kernel)),
            Source::Kernel { .. } | Source::Ended => None,
        }
    }

    /// When the service is to be asked again, in nanoseconds from an attempt; none: never.
    pub(crate) fn retry_slice(&self) -> Option<u64> {
        match *self.source.borrow() {
            Source::Kernel { retries: true } => Some(self.schedule.slice()),
            _ => None,
        }
    }

    /// Takes the service's answer to an offer of the socket.
    fn register(&self, answer: Result<OwnedFd, Errno>) -> Result<(), Errno> {
        let (source, outcome) = match answer {
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

    /// Has another thread offer the socket to the service. [`Listener::retry`] takes the answer.
    fn begin_offer(&self) {
        let (sender, answer) = sync_channel(1);
        let (service, name, backlog) = (DirectService::clone(&self.service), self.name, self.backlog);
        let begun = self.kernel.try_clone().and_then(|socket| {
            std::thread::Builder::new().name("sietch-register".to_owned()).spawn(move || {
                // If the listener was dropped, the placeholder is, which ends the registration.
                let _ = sender.send(offer(&service, socket.as_fd(), name, backlog));
            })
        });
        // Without a thread or a descriptor the next attempt may succeed.
        *self.offer.borrow_mut() = begun.is_ok().then_some(answer);
    }

    /// Offers the socket to the service again if that is due at `now`: nanoseconds of a clock that
    /// only grows. Takes the answer to an earlier offer.
    pub(crate) fn retry(&self, now: u64) {
        if !matches!(*self.source.borrow(), Source::Kernel { retries: true }) {
            return;
        }
        let answer = self.offer.borrow().as_ref().map(Receiver::try_recv);
        let answer = match answer {
            Some(Err(TryRecvError::Empty)) => return,
            Some(Ok(answer)) => answer,
            // The thread has ended without an answer.
            Some(Err(TryRecvError::Disconnected)) => Err(Errno::AGAIN),
            None => {
                if self.schedule.begin(now) {
                    self.begin_offer();
                }
                return;
            }
        };
        *self.offer.borrow_mut() = None;
        self.schedule.note(self.register(answer).is_ok());
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
        Ok(match self.try_take()? {
            Arrived::Memory(connection) => connection,
            Arrived::Kernel(socket) => Connection::accepted_by_kernel(socket),
        })
    }

    /// The same, with the client of a kernel as its socket.
    ///
    /// # Errors
    /// As [`Listener::try_accept`].
    pub fn try_take(&self) -> io::Result<Arrived> {
        for _ in 0..MAX_ATTEMPTS {
            let source = self.source.borrow().clone();
            match source {
                Source::Ended => {
                    let what = "the application was revoked (`sietch revoke`); start it again";
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
                }
                Source::Kernel { .. } if self.split.get() => {
                    self.ready.set(false);
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Source::Kernel { .. } => match self.accept_from_kernel() {
                    // It listens no more, and never will again.
                    Err(Errno::INVAL) if !registration::listens(self.kernel.as_fd()) => {
                        *self.source.borrow_mut() = Source::Ended;
                    }
                    accepted => return Ok(Arrived::Kernel(accepted?)),
                },
                Source::Service(placeholder) => {
                    let mut received = Descriptors::default();
                    match self.receive(placeholder.as_fd(), &mut received)? {
                        Incoming::Arrived(arrival) => match arrived(&self.service, &arrival, &mut received) {
                            Err(Errno::NOMEM) => {
                                let unmapped = received[0].take().ok_or(Errno::CONNABORTED)?;
                                service::relay(&*self.service, placeholder.as_fd(), unmapped.as_fd())
                                    .map_err(|_| Errno::CONNABORTED)?;
                            }
                            arrived => return Ok(arrived?),
                        },
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
        match incoming {
            // The service has answered with something that is no placeholder.
            Err(Errno::NOTSOCK | Errno::NOTCONN | Errno::OPNOTSUPP) => return Ok(Incoming::Closed),
            Err(Errno::AGAIN) => self.ready.set(false),
            _ => {}
        }
        Ok(incoming?)
    }

    fn accept_from_kernel(&self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = rustix::net::accept_with(&*self.kernel, flags);
        if matches!(accepted, Err(Errno::AGAIN)) {
            self.ready.set(false);
        }
        accepted
    }
}

/// Offers a listening socket to the service. Returns the placeholder on which connections arrive.
fn offer(
    service: &DirectService,
    socket: BorrowedFd<'_>,
    name: Name,
    backlog: u32,
) -> Result<OwnedFd, Errno> {
    service::listen(service, Some(socket), name, backlog, 0, std::iter::empty())
}

/// What arrived with these descriptors.
///
/// # Errors
/// `ECONNABORTED`: they are not those of a connection. `ENOMEM`: it cannot be mapped; its
/// placeholder is left.
fn arrived(service: &DirectService, arrival: &Arrival, received: &mut Descriptors) -> Result<Arrived, Errno> {
    match arrival.kind() {
        ArrivalKind::Kernel => Ok(Arrived::Kernel(protocol::take_kernel_socket(arrival, received)?)),
        ArrivalKind::Stream => {
            let taken = service::take_stream(service, received);
            let (placeholder, end) =
                taken.map_err(|errno| if errno == Errno::NOMEM { errno } else { Errno::CONNABORTED })?;
            // Until now closing this end would have been a reset, because the connection was not
            // accepted.
            end.abort_on_close(false);
            Ok(Arrived::Memory(Connection::of_memory(placeholder, end)))
        }
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
