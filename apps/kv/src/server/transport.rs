//! How clients reach the shard: flows of the VNIC's engine, and kernel sockets.
//!
//! `routes.rs` maps a client to its connection and back; the two transports feed what arrives to
//! the shard and send what it releases.

pub(super) mod routes;
pub(super) mod sockets;
pub(super) mod vnic;

pub use vnic::VnicTransport;
