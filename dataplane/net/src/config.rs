//! What an engine is configured with.

use std::net::Ipv4Addr;

use crate::ip::addresses::Ipv6Config;
use crate::limits::{
    BUFFER_MEMORY, FIRST_EPHEMERAL, FLOWS, HALF_OPEN, LAST_EPHEMERAL, RECEIVE_BUFFER, SEND_BUFFER, TIME_WAITS,
};
use crate::tcp::congestion::Kind;

/// What an engine is configured with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our IPv4 address; `0.0.0.0` for none. The engine answers for no other.
    pub address: Ipv4Addr,
    /// Bits of the address that name the network on the link.
    pub prefix: u8,
    /// The router to everywhere else.
    pub gateway: Option<Ipv4Addr>,
    /// Our IPv6 addresses, if IPv6 is spoken; it is not on a link with an MTU below 1280 bytes.
    pub ipv6: Option<Ipv6Config>,
    /// Sixteen bytes from a source of true randomness, for sequence numbers and the flow table. A
    /// simulation passes its seed.
    pub secret: [u8; 16],
    /// Most flows.
    pub flows: usize,
    /// Most half-open connections.
    pub half_open: usize,
    /// Most connections in TIME-WAIT.
    pub time_waits: usize,
    /// Most bytes in buffers of all flows.
    pub buffer_memory: usize,
    /// Most bytes in one flow's receive buffer; a power of two from 4 KiB to 64 MiB, else rounded
    /// to one. A flow begins with a small one, which grows when the flow can use more.
    pub receive_buffer: usize,
    /// Most bytes in one flow's send buffer; bounded and rounded in the same way.
    pub send_buffer: usize,
    /// The ports from which outgoing connections pick theirs, first and last.
    pub source_ports: (u16, u16),
    /// Congestion control of new flows.
    pub congestion: Kind,
    /// Whether ECN is negotiated with peers.
    pub ecn: Ecn,
    /// Spread the segments that a window allows over the round trip, instead of sending them at
    /// once. Queues in the network are shorter and its shares fairer, at the cost of a few timers.
    /// (TIMELY, which works by rates, is always paced.)
    pub pacing: bool,
    /// Announce our addresses on the link at the start, and again when another host claims one.
    /// This is for VNICs whose peers may have known a previous holder of the address.
    pub announce: bool,
}

/// When ECN (RFC 3168) is negotiated with a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Never.
    Off,
    /// If the peer requests it, and for connections of ours whose congestion control depends on it
    /// (DCTCP).
    #[default]
    Passive,
    /// Every connection of ours requests it, except those with congestion control by delay
    /// (TIMELY).
    On,
}

impl Config {
    /// The defaults of `limits` for an address on a link.
    pub const fn new(address: Ipv4Addr, prefix: u8, secret: [u8; 16]) -> Self {
        Self {
            address,
            prefix,
            gateway: None,
            ipv6: None,
            secret,
            flows: FLOWS,
            half_open: HALF_OPEN,
            time_waits: TIME_WAITS,
            buffer_memory: BUFFER_MEMORY,
            receive_buffer: RECEIVE_BUFFER,
            send_buffer: SEND_BUFFER,
            source_ports: (FIRST_EPHEMERAL, LAST_EPHEMERAL),
            congestion: Kind::Cubic,
            ecn: Ecn::Passive,
            pacing: false,
            announce: false,
        }
    }
}
