//! The TCP/IP engine: sans-I/O, for the addresses of one [`sietch_nic::NicQueue`].
//!
//! # The walk of a packet
//!
//! 1. `engine`: [`Engine::receive`] takes a batch of frames. Each is read in place (`packet`):
//!    link, network and transport headers, every checksum verified.
//! 2. `flow_table`: a keyed hash of the peer's address and port and of our own finds the flow.
//! 3. `fast`: if the segment is the next one of an established flow, its acknowledgement frees send
//!    buffer and its payload goes to the receive ring (`buffers`). The application hears of it once
//!    a batch (`events`).
//! 4. `slow`: everything else. Handshakes and strangers, recovery from loss, marks of congestion,
//!    bytes out of order (`reassembly`), closing, resets, timeouts (`timers`).
//! 5. The application reads, consumes and sends (`engine/api.rs`); or takes whole buffers and lends
//!    its own (`owned`).
//! 6. `transmit`: [`Engine::emit`] cuts what the windows allow into segments, acknowledgements
//!    riding along, and rings the doorbell once.
//!
//! No clock, no thread, no socket in here: time is an argument in nanoseconds, randomness a secret,
//! packets a trait.
//!
//! # For who drives it
//!
//! `receive`, take events, let the application work, `emit`; then sleep until
//! [`Engine::next_deadline`] or the queue's doorbell. `poll` does the two halves at once.
#![forbid(unsafe_code)]

mod addresses;
mod ahead;
pub mod buffers;
pub mod congestion;
mod engine;
mod events;
mod fast;
mod flow;
mod flow_table;
mod fragments;
mod groups;
pub mod limits;
mod listener;
mod local_ports;
mod metrics;
mod neighbour;
mod owned;
mod pacing;
pub mod packet;
mod path_delay;
mod path_mtu;
pub mod reassembly;
mod recovery;
mod round_trip;
mod scoreboard;
mod sequence;
mod siphash;
mod slow;
mod syn_cookie;
mod time_wait;
pub mod timers;
pub mod timing_wheel;
mod transmit;
mod tuning;
mod udp;

pub use addresses::Ipv6Config;
pub use engine::{
    Config, ConnectError, Ecn, Engine, FlowInfo, GroupError, ListenError, PollResult, RecoveryState,
    SocketInfo, SocketKind,
};
pub use events::{CloseReason, Event, EventKind};
pub use flow::{FlowId, State};
pub use metrics::Metrics;
pub use owned::{ReceivedBuffer, SharedBytes};
pub use sequence::Seq;
pub use udp::{Datagram, DatagramError, EcnCodepoint};
