//! A socket's state.

use std::collections::VecDeque;
use std::net::SocketAddr;

use sietch_net::congestion::Kind as Congestion;
use sietch_net::{CloseReason, EventKind, FlowId};

/// An error number of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// The result of a call.
pub type Outcome = Result<i64, Errno>;

/// One entry of a `poll` call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollEntry {
    /// The socket.
    pub fd: i32,
    /// The requested events.
    pub events: i16,
    /// The ready events.
    pub revents: i16,
}

#[derive(Debug)]
pub(super) struct Socket {
    pub nonblocking: bool,
    pub chosen: Chosen,
    pub port: Option<u16>,
    pub kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Fresh,
    Listener { port: u16, queue: VecDeque<Stream> },
    Stream(Stream),
}

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub flow: FlowId,
    pub phase: Phase,
    pub remote: SocketAddr,
    pub error: Option<i32>,
    pub peer_closed: bool,
    pub reads: bool,
    pub writes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Connected,
    /// The engine has removed it.
    Over,
}

impl Stream {
    pub(super) const fn new(flow: FlowId, phase: Phase, remote: SocketAddr) -> Self {
        Self { flow, phase, remote, error: None, peer_closed: false, reads: true, writes: true }
    }

    pub(super) fn take_error(&mut self) -> Result<(), Errno> {
        self.error.take().map_or(Ok(()), |error| Err(Errno(error)))
    }

    pub(super) fn apply(&mut self, kind: EventKind) {
        match kind {
            EventKind::Connected => self.phase = Phase::Connected,
            EventKind::PeerClosed => self.peer_closed = true,
            EventKind::Closed(reason) => {
                self.phase = Phase::Over;
                self.peer_closed = true;
                self.error = match reason {
                    CloseReason::Normal => None,
                    // After both sides have closed, a reset could not break anything.
                    CloseReason::Reset => Some(libc::ECONNRESET),
                    CloseReason::TimedOut => Some(libc::ETIMEDOUT),
                    CloseReason::Refused => Some(libc::ECONNREFUSED),
                    CloseReason::Unreachable => Some(libc::EHOSTUNREACH),
                };
            }
            _ => {}
        }
    }
}

/// Options of a socket, as the application set them. The flow gets them once it exists.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub nodelay: bool,
    pub keepalive: bool,
    pub keepalive_idle: i32,
    /// Milliseconds of TCP_USER_TIMEOUT; zero if it is not set.
    pub user_timeout: i32,
    /// Seconds of SO_LINGER, if it is on.
    pub linger: Option<i32>,
    pub reuse_address: bool,
    pub congestion: Option<Congestion>,
}

impl Chosen {
    pub(super) const fn new(nagle: bool) -> Self {
        // Two hours, as RFC 1122 section 4.2.3.6 asks.
        Self {
            nodelay: !nagle,
            keepalive: false,
            keepalive_idle: 7200,
            user_timeout: 0,
            linger: None,
            reuse_address: false,
            congestion: None,
        }
    }
}
