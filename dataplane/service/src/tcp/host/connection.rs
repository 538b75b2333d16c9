//! A connection of a host: its channel, its flow, and how far it has come.

use rustix::io::Errno;
use sietch_net::{CloseReason, FlowId};
use sietch_structures::Key;

use crate::tcp::channel::{Channel, WakeOn};
use crate::tcp::socket_options::SocketOptions;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The handshake has begun.
    Connecting,
    /// It is established.
    Open,
    /// The application has closed; the engine still takes what it sent.
    Flushing,
    /// The engine has closed it; the application has still to read what came before
    /// (`host/undelivered.rs`).
    Undelivered,
    /// The engine has closed it; the application still holds its end.
    Closed,
}

/// A connection between an application and a peer.
#[derive(Debug)]
pub(super) struct Connection<C> {
    pub channel: C,
    pub flow: FlowId,
    /// The key of its application.
    pub application: Key,
    pub phase: Phase,
    /// It is relayed in every iteration.
    pub active: bool,
    /// The conditions for which the channel is armed.
    pub armed: WakeOn,
    /// The engine took less than the application had sent; it reports when it takes more.
    pub blocked: bool,
    /// The application's ring was full.
    pub full: bool,
    /// The FIN of this end is queued.
    pub send_ended: bool,
    /// The application knows that the peer has sent its FIN.
    pub end_delivered: bool,
    /// When bytes last moved.
    pub moved_at: u64,
    /// The application's socket options, once it has set any.
    pub socket_options: Option<Box<SocketOptions>>,
    /// Bytes were written under a cork; a deadline for them is set.
    pub corked: bool,
    /// It came to a listener.
    pub accepted: bool,
    /// What the application has still to read, in [`Phase::Undelivered`].
    pub undelivered: Option<Box<Undelivered>>,
}

/// The bytes of a closed connection that were not yet delivered.
#[derive(Debug)]
pub(super) struct Undelivered {
    pub bytes: Vec<u8>,
    /// The number of bytes that the application was given.
    pub given: usize,
    /// The error that follows them.
    pub error: Errno,
    /// The key of the application whose budget they count against.
    pub application: Key,
}

/// Where undelivered bytes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UndeliveredAt {
    /// At a connection, by its key.
    Connection(Key),
    /// At a connection that was not yet accepted, by its flow.
    Arrival(FlowId),
}

/// Returns the error that an application gets when its connection ends for this reason.
pub(super) fn error_of(reason: CloseReason) -> Errno {
    match reason {
        CloseReason::Normal => Errno::CONNABORTED,
        CloseReason::Reset => Errno::CONNRESET,
        CloseReason::TimedOut => Errno::TIMEDOUT,
        CloseReason::Refused => Errno::CONNREFUSED,
        CloseReason::Unreachable => Errno::HOSTUNREACH,
    }
}

impl<C> Connection<C> {
    pub(super) fn new(channel: C, flow: FlowId, application: Key, phase: Phase, now: u64) -> Self {
        Self {
            channel,
            flow,
            application,
            phase,
            active: false,
            armed: WakeOn::default(),
            blocked: false,
            full: false,
            send_ended: false,
            end_delivered: false,
            moved_at: now,
            socket_options: None,
            corked: false,
            accepted: false,
            undelivered: None,
        }
    }
}

impl<C: Channel> Connection<C> {
    pub(super) fn disarm(&mut self) {
        let armed = std::mem::take(&mut self.armed);
        if armed != WakeOn::default() {
            self.channel.disarm(armed);
        }
    }

    /// Returns the actions of the application that this connection waits for.
    pub(super) fn wake_on(&self) -> WakeOn {
        WakeOn { data: !self.blocked && !self.send_ended, room: self.full }
    }

    /// Returns whether the application has done something that this connection waits for.
    pub(super) fn is_ready(&self) -> bool {
        let wake_on = self.wake_on();
        let channel = &self.channel;
        (wake_on.data && (channel.has_sent() || channel.has_ended() || channel.has_new_socket_options()))
            || (wake_on.room && channel.has_room())
    }
}
