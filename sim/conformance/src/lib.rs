//! Conformance: the TCP/IP engine behind a socket interface in virtual time, driven by scripts. For
//! tests alone.
//!
//! # The walk of a script
//!
//! 1. `script` reads a file in packetdrill's language: at this time this call, this packet in, that
//!    packet out.
//! 2. `runner` moves the virtual clock from one event to the next. Calls go to the `host`, packets
//!    are built and read by `packet`, which shares no code with the engine.
//! 3. `host` is a machine of one engine: sockets by number, errors by `errno`, a wire whose other
//!    end is the script, and a clock that only moves when told. It answers ARP and neighbour
//!    discovery for the script's side.
//!
//! Scripts are exact: what the engine sends at any other time than the script says, or beside what
//! it says, is a failure.
#![forbid(unsafe_code)]

pub mod host;
pub mod packet;
pub mod runner;
pub mod script;
