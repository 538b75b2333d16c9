//! A Redis- and memcached-compatible store that owns its core, its log and its queues.
//!
//! The store itself is sans-I/O: [`shard::Shard`] takes bytes and the time and returns bytes,
//! effects to be logged and the next deadline. Everything that touches a socket or a disk is around
//! it.
//!
//! | module | what |
//! | --- | --- |
//! | [`shard`] | the store of one core: feeds bytes to commands, orders replies, recovery and snapshots |
//! | [`commands`] | the command table, a file a family |
//! | [`keyspace`] | databases, expiry, eviction, memory accounting |
//! | [`index`], [`value`] | the data structures |
//! | [`resp`], [`client`] | the protocol, and one client's state |
//! | [`journal`], [`check`] | effects as log records, and whether an area's can be read |
//! | [`number`], [`glob`] | numbers and patterns exactly as Redis reads and writes them |
//! | [`acl`] | users, their passwords and what they may do |
//! | [`settings`], [`metrics`], [`persistence`] | what can be set, what is counted, what is known of the log |
//! | [`server`] | the event loop: VNIC, kernel sockets and log around one shard |

#![forbid(unsafe_code)]

pub mod acl;
pub mod check;
pub mod client;
pub mod commands;
pub mod glob;
pub mod index;
pub mod journal;
pub mod keyspace;
pub mod metrics;
pub mod number;
pub mod persistence;
pub mod resp;
pub mod server;
pub mod settings;
pub mod shard;
pub mod value;

pub use check::check;
pub use server::{Error, NetChoice, Options, run};
