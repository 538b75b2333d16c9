//! What all layers of the store use.
//!
//! ```text
//!  command              what is known of a command: its names, arguments, keys, subcommands
//!  observation          slow commands, latencies and events of keys, as recorded at run time
//!  settings             what can be configured
//!  protocol             RESP: requests, replies, errors
//!  metrics  text        counters; numbers and patterns as Redis reads and writes them
//!  client_id            the identity of a client
//!  client_path          the way on which a client reaches the store
//!  allocation           bytes that the allocator takes
//!  placement            which shard owns a key
//!  totals               what all shards have together
//! ```

pub(crate) mod allocation;
pub(crate) mod client_id;
pub(crate) mod client_path;
pub(crate) mod command;
pub(crate) mod metrics;
pub(crate) mod observation;
pub(crate) mod placement;
pub(crate) mod protocol;
pub mod settings;
pub(crate) mod text;
pub(crate) mod totals;
