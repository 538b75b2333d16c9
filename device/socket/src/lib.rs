//! Kernel TCP sockets as a device. They are the fallback where no VNIC can be granted, the loopback
//! listener beside one, and the baseline of measurements (same program, other data path).
//!
//! It is also where a data plane sleeps: [`SocketQueue::wait`] returns when a socket, or any
//! doorbell given to [`SocketQueue::watch`], has something to say.
//!
//! 1. [`SocketQueue::poll`] takes what has happened, never waits, and calls a [`Handler`] for it.
//! 2. A handler answers received bytes with its [`Appetite`]: after [`Appetite::Enough`] nothing
//!    more is read from that connection until [`SocketQueue::resume`]. To the peer that is a closed
//!    TCP window.
//! 3. [`SocketQueue::send`] takes as many bytes as it has room for; [`Handler::writable`] follows
//!    when there is room again. [`SocketQueue::flush`] submits everything queued to the kernel with
//!    one system call.
//! 4. [`SocketQueue::close`] sends what was taken, then closes.
//! 5. [`SocketQueue::adopt`] takes a connection that was accepted elsewhere: by another process, or
//!    by another queue, whose handler had it released ([`Verdict::Release`]).
//!    [`SocketQueue::listen_on`] takes a listening socket that another process may shut down.
//! 6. A peer can cost its own connection and nothing else: every per-connection memory is bounded,
//!    and running out of file descriptors pauses accepting.
//!
//! Two implementations: io_uring (multishot accept and receive, buffers shared by all connections,
//! one system call a batch), and epoll for where io_uring is refused.
//!
//! ```
//! use sietch_socket::{Choice, SocketQueue};
//!
//! let mut queue = SocketQueue::open(Choice::Automatic)?;
//! let address = queue.listen("127.0.0.1:0".parse().expect("an address"))?;
//! assert_ne!(address.port(), 0, "the kernel has chosen a port");
//! # Ok::<(), sietch_socket::Error>(())
//! ```

mod accept_pause;
mod address;
mod epoll;
mod handler;
pub mod kernel;
mod limits;
pub mod patience;
mod uring;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

pub use handler::{Appetite, ConnectionId, Handler, Verdict};
pub use limits::{BACKLOG, RECEIVE_BYTES};

/// Why a queue could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither io_uring nor epoll works.
    #[error("kernel sockets: no queue could be made; raise the limit of open files (ulimit -n)")]
    Open(#[source] io::Error),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}; end what listens there, or choose another address or port")]
    Listen {
        /// The address that was requested.
        address: SocketAddr,
        /// What the kernel said.
        #[source]
        cause: io::Error,
    },
}

/// Which implementation to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// io_uring, or epoll where that is refused.
    Automatic,
    /// epoll.
    Epoll,
}

/// Kernel sockets behind one of the two implementations.
#[derive(Debug)]
pub enum SocketQueue {
    /// Through io_uring.
    Uring(Box<uring::Uring>),
    /// Through epoll.
    Epoll(Box<epoll::Epoll>),
}

macro_rules! either {
    ($self:ident, $queue:ident => $action:expr) => {
        match $self {
            Self::Uring($queue) => $action,
            Self::Epoll($queue) => $action,
        }
    };
}

impl SocketQueue {
    /// Makes a queue with no listener.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel refuses both ways.
    pub fn open(choice: Choice) -> Result<Self, Error> {
        if choice == Choice::Automatic
            && let Ok(queue) = uring::Uring::open()
        {
            return Ok(Self::Uring(Box::new(queue)));
        }
        epoll::Epoll::open().map(|queue| Self::Epoll(Box::new(queue))).map_err(Error::Open)
    }

    /// The name of the implementation: `io_uring` or `epoll`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Uring(_) => "io_uring",
            Self::Epoll(_) => "epoll",
        }
    }

    /// Listens on `address` and returns the address in use (the port is chosen if it was 0).
    ///
    /// # Errors
    /// [`Error::Listen`], for example when the port is taken.
    pub fn listen(&mut self, address: SocketAddr) -> Result<SocketAddr, Error> {
        let (socket, bound) = address::listener(address).map_err(|cause| Error::Listen { address, cause })?;
        either!(self, queue => queue.listen(socket)).map_err(|cause| Error::Listen { address, cause })?;
        Ok(bound)
    }

    /// Accepts from a socket that listens. If its listening is ended, by any process that holds it,
    /// it is closed here.
    ///
    /// # Errors
    /// The queue is broken, or the socket cannot be polled.
    pub fn listen_on(&mut self, socket: OwnedFd) -> io::Result<()> {
        address::prepare(&socket)?;
        either!(self, queue => queue.listen(socket))
    }

    /// Serves a connection that was accepted elsewhere, as if it had been accepted here: calls
    /// [`Handler::accepted`].
    pub fn adopt(&mut self, socket: OwnedFd, handler: &mut impl Handler) {
        either!(self, queue => queue.adopt(socket, handler));
    }

    /// Wakes [`SocketQueue::wait`] and calls [`Handler::doorbell`] with `token` whenever
    /// `descriptor` is readable.
    ///
    /// # Errors
    /// The kernel cannot poll that descriptor.
    pub fn watch(&mut self, descriptor: OwnedFd, token: u64) -> io::Result<()> {
        either!(self, queue => queue.watch(descriptor, token))
    }

    /// Forgets everything that is watched under `token`, and closes the descriptors.
    pub fn unwatch(&mut self, token: u64) {
        either!(self, queue => queue.unwatch(token));
    }

    /// Has the kernel probe peers of connections accepted from now on after `seconds` of silence
    /// (0: never). Three probes follow, a third of that time between two. If all stay unanswered,
    /// the kernel ends the connection.
    pub fn set_keepalive(&mut self, seconds: u64) {
        either!(self, queue => queue.set_keepalive(seconds));
    }

    /// Takes what has happened and calls `handler` for it; never waits. Returns how many things
    /// happened.
    ///
    /// # Errors
    /// The queue itself is broken.
    pub fn poll(&mut self, handler: &mut impl Handler) -> io::Result<usize> {
        either!(self, queue => queue.poll(handler))
    }

    /// Sleeps until something has happened or `timeout` has passed (`None`: until something
    /// happens). A signal ends it as well.
    ///
    /// # Errors
    /// The queue itself is broken.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        either!(self, queue => queue.wait(timeout))
    }

    /// Takes as many of `bytes` as there is room for and returns how many.
    pub fn send(&mut self, id: ConnectionId, bytes: &[u8]) -> usize {
        either!(self, queue => queue.send(id, bytes))
    }

    /// Submits everything queued to the kernel.
    ///
    /// # Errors
    /// The queue itself is broken.
    pub fn flush(&mut self) -> io::Result<()> {
        either!(self, queue => queue.flush())
    }

    /// Reads from a connection again that had [`Appetite::Enough`].
    pub fn resume(&mut self, id: ConnectionId) {
        either!(self, queue => queue.resume(id));
    }

    /// Closes a connection after the bytes taken from the owner have been sent. The handler is not
    /// called for it any more.
    pub fn close(&mut self, id: ConnectionId) {
        either!(self, queue => queue.close(id));
    }
}
