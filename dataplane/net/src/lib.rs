//! The TCP/IP engine: sans-I/O, for the addresses of one [`sietch_nic::NicQueue`].
//!
//! # Layers
//!
//! A file imports from its own line or from lines below, never upwards.
//!
//! ```text
//! engine                      one queue: receive, dispatch, emit; what applications call
//! tcp      udp      ip        the protocols, each with its own state and methods
//! context                     what they share: time, link, routes, packets to send, counters
//! ip/addresses  ip/neighbours  ip/path_mtu  ip/outgoing  config  error
//! tcp/flow  tcp/congestion    the state of a flow; algorithms that know no engine
//! events  tcp/buffers         events for applications; the memory of flows
//! packet                      wire formats and sequence numbers
//! tables                      indices, deadlines, bounded tables
//! reply_limit  siphash  metrics  limits
//! ```
//!
//! # The path of a packet
//!
//! 1. `engine`: [`Engine::receive`] takes a batch of frames. Each is read in place (`packet`):
//!    link, network and transport headers, every checksum verified.
//! 2. `tcp/connections`: a keyed hash of the peer's address and port and of our own finds the flow.
//! 3. `tcp/fast`: if the segment is the next one of an established flow, its acknowledgement frees
//!    send buffer and its payload goes to the receive ring (`tcp/buffers`). The application gets
//!    one event a batch (`events`).
//! 4. `tcp/slow`: everything else. Handshakes and unmatched segments, loss recovery, ECN, bytes out
//!    of order, closing, resets, timeouts.
//! 5. The application reads, consumes and sends (`engine/tcp_calls`), copied or not
//!    (`tcp/zero_copy`).
//! 6. `tcp/transmit`: [`Engine::emit`] cuts what the windows allow into segments, acknowledgements
//!    riding along, and rings the doorbell once.
//!
//! There is no clock, thread or socket in here. Time is an argument in nanoseconds, randomness is a
//! secret in the configuration, and packets go through a trait.
//!
//! # The loop around it
//!
//! Call `receive`, take events, let the application work, call `emit`; then sleep until
//! [`Engine::next_deadline`] or the queue's doorbell. `poll` does both halves at once.
//!
//! ```
//! use std::net::{Ipv4Addr, SocketAddr};
//!
//! use sietch_net::{Config, Engine, EventKind};
//!
//! // Two hosts, each with a queue at one end of a wire in memory.
//! let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
//! let (mut near, mut far) = sietch_nic::wire::pair(macs[0], macs[1], 1500, 64);
//! let host = |last| Config::new(Ipv4Addr::new(10, 0, 0, last), 24, [7; 16]);
//! let mut client = Engine::new(&host(1), macs[0], 1500);
//! let mut server = Engine::new(&host(2), macs[1], 1500);
//!
//! server.listen(7, 16)?;
//! let flow = client.connect(SocketAddr::from(([10, 0, 0, 2], 7)), 1)?;
//! for iteration in 1..10 {
//!     let now = iteration * 1000;
//!     client.poll(&mut near, now)?;
//!     server.poll(&mut far, now)?;
//! }
//! let mut events = Vec::new();
//! client.take_events(&mut events);
//! assert!(events.iter().any(|event| event.flow == flow && event.kind == EventKind::Connected));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod config;
mod context;
mod engine;
mod error;
mod events;
mod ip;
pub mod limits;
mod metrics;
pub mod packet;
mod reply_limit;
mod siphash;
mod tables;
mod tcp;
mod udp;

pub use config::{Config, Ecn};
pub use engine::{Engine, PollResult, SocketInfo, SocketKind};
pub use error::{ConnectError, ListenError};
pub use events::{CloseReason, Event, EventKind};
pub use ip::addresses::Ipv6Config;
pub use ip::groups::multicast::GroupError;
pub use metrics::Metrics;
pub use packet::EcnCodepoint;
pub use packet::sequence::Seq;

pub use tcp::congestion;
pub use tcp::flow::State;
pub use tcp::flow::id::FlowId;
pub use tcp::flow::recovery::RecoveryState;
pub use tcp::info::FlowInfo;
pub use tcp::zero_copy::received_buffer::ReceivedBuffer;
pub use tcp::zero_copy::shared_bytes::SharedBytes;
pub use udp::datagram::{Datagram, DatagramError};
