//! What the engine reports to the application.

use std::net::SocketAddr;

use crate::tcp::flow::id::FlowId;

/// Something happened to a flow, or to a UDP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The flow, or [`FlowId::NONE`] for [`EventKind::Datagram`].
    pub flow: FlowId,
    /// What the application attached to the flow with `set_user`; zero until then.
    pub user: u64,
    /// What happened.
    pub kind: EventKind,
}

/// What happened. Events are edges, and coalesced: however many segments came, a flow has each kind
/// at most once in a batch, in the order of this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A peer connected to a listening port.
    Accepted {
        /// The listening port.
        port: u16,
        /// The peer.
        remote: SocketAddr,
    },
    /// An outgoing connection is established.
    Connected,
    /// More bytes have arrived.
    Readable,
    /// There is room again in a send buffer that was too full.
    Writable,
    /// The peer will send no more; what it sent can still be read, and sending continues.
    PeerClosed,
    /// The flow is over and its id is stale: the last event of a flow. It does not come for a flow
    /// that the application closed.
    Closed(CloseReason),
    /// Datagrams wait at a bound port.
    Datagram {
        /// The port.
        port: u16,
    },
}

/// Why a flow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Both sides closed.
    Normal,
    /// The peer reset the connection.
    Reset,
    /// The peer no longer answers.
    TimedOut,
    /// The peer refused the connection.
    Refused,
    /// The peer cannot be reached.
    Unreachable,
}
