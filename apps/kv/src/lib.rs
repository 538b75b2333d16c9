//! A Redis-compatible store that owns its core, its log and its queues.
//!
//! The store itself is sans-I/O: [`shard::Shard`] takes bytes and the time, and returns replies,
//! effects for the log, and the next deadline. [`server`] runs a shard on sockets and a disk.
//!
//! Modules import downwards only:
//!
//! ```text
//!  server                  one thread: VNIC, kernel sockets and log around one shard
//!  check                   whether the log of a storage area can be read
//!  shard                   runs clients' commands, orders replies, recovers, takes snapshots
//!  commands                the handlers, a file for each family, and the command table
//!  clients                 the state of each client: input, output, subscriptions
//!  keyspace                databases, expiry, eviction, memory accounting
//!  acl                     users, their passwords and permissions
//!  command    value        what is known of a command; strings, lists, sets, hashes, sorted sets
//!  settings   index        what can be set; the hash table of databases and collections
//!  protocol   journal      RESP; effects as log records
//!  metrics    text         counters; numbers and patterns as Redis reads and writes them
//! ```

#![forbid(unsafe_code)]

mod acl;
pub mod check;
mod client_id;
mod clients;
mod command;
mod commands;
mod index;
pub mod journal;
mod keyspace;
mod metrics;
mod protocol;
pub mod server;
pub mod settings;
pub mod shard;
mod text;
mod value;

pub use check::check;
pub use server::{Error, NetChoice, Options, run};
