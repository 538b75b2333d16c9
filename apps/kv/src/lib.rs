//! A Redis-compatible store that owns its core, its log and its queues.
//!
//! The store itself is sans-I/O: [`shard::Shard`] takes bytes and the time, and returns replies,
//! effects for the log, and the next deadline. [`server`] runs a shard on sockets and a disk.
//!
//! Modules import downwards only:
//!
//! ```text
//!  server        one thread: VNIC, kernel sockets and log around one shard
//!  backup        the data of a store in one file
//!  check         whether the log of a storage area can be read
//!  shard         runs clients' commands, orders replies, recovers, takes snapshots
//!  commands      the handlers, a file for each family, and the command table
//!  clients       the state of each client: input, output, subscriptions
//!  data          databases and their keys, values, effects as log records
//!  acl           users, their passwords and permissions
//!  foundation    what is known of a command, settings, RESP, counters, numbers and patterns
//! ```

#![forbid(unsafe_code)]
#![allow(clippy::vec_box, reason = "shards move between cores, as one word each")]

mod acl;
pub mod backup;
pub mod check;
mod clients;
mod commands;
mod data;
mod foundation;
pub mod server;
pub mod shard;

pub use check::check;
pub use data::journal;
pub use foundation::settings;
pub use server::{Error, NetChoice, Options, run};
