//! What the UDP calls take and return.

use std::net::SocketAddr;

use crate::packet::EcnCodepoint;

/// A datagram that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Its sender.
    pub remote: SocketAddr,
    /// Its payload.
    pub payload: Vec<u8>,
    /// The ECN field with which it arrived.
    pub ecn: EcnCodepoint,
}

/// Why a datagram was not taken for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// It does not fit the MTU: the engine does not fragment.
    #[error("the datagram has more bytes than the largest that the link carries, {limit}: send smaller ones")]
    TooLong {
        /// The longest payload.
        limit: usize,
    },
    /// The queue is full.
    #[error("the send queue is full: emit and try again")]
    QueueFull,
    /// The source port is not bound.
    #[error("UDP port {0} is not bound: bind it before sending from it")]
    NotBound(u16),
    /// There is no way to the destination.
    #[error("no route to {0}: it is off the link and there is no gateway")]
    NoRoute(std::net::IpAddr),
}
