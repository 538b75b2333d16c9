//! UDP ports: bounded queues of datagrams in both directions.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::packet::Address;

/// A datagram that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Who sent it.
    pub remote: SocketAddr,
    /// What it carries.
    pub payload: Vec<u8>,
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

/// A bound port.
#[derive(Debug)]
pub(crate) struct Port {
    pub port: u16,
    pub received: VecDeque<Datagram>,
    pub ready: bool,
}

/// A datagram or an ICMP message on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub local: Address,
    pub remote: Address,
    pub next_hop: NextHop,
    pub body: Body,
}

/// Where it goes first.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NextHop {
    Link([u8; 6]),
    Address(Address),
}

/// What it is.
#[derive(Debug)]
pub(crate) enum Body {
    Datagram {
        source: u16,
        destination: u16,
        payload: Vec<u8>,
    },
    /// A message of the family's ICMP, without its header.
    Icmp {
        kind: u8,
        code: u8,
        rest: u32,
        hop_limit: u8,
        payload: Vec<u8>,
    },
}
