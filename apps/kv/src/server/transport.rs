//! How clients reach the shard: flows of the VNIC's engine, kernel sockets, and streams through
//! memory.
//!
//! `routes.rs` maps a client to its connection and back; the transports feed what arrives to
//! the shard and send what it releases. With several cores, `spread.rs` chooses which of them
//! serves a new connection.

pub(super) mod routes;
pub(super) mod sockets;
pub(super) mod spread;
pub(super) mod streams;
pub(super) mod vnic;

pub use vnic::VnicTransport;
