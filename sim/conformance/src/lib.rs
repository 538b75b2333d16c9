//! Conformance: the TCP/IP engine behind a socket interface in virtual time, driven by scripts.
//! Only tests use it.
//!
//! # How a script runs
//!
//! 1. `script` reads a file in packetdrill's language: at this time this call, this packet in, that
//!    packet out.
//! 2. `runner` moves the virtual clock from one event to the next. Calls go to the `host`, packets
//!    are built and read by `packet`, which shares no code with the engine.
//! 3. `host` is a machine of one engine. It has sockets by number, errors by `errno`, a wire whose
//!    other end is the script, and a clock that moves only when the script moves it. It answers ARP
//!    and neighbour discovery for the script's side.
//!
//! Scripts are exact: a packet that the engine sends at another time than the script says, or in
//! addition to it, is a failure.
#![forbid(unsafe_code)]

pub mod host;
pub mod packet;
pub mod runner;
pub mod script;
