//! The server: threads that each own a shard and its clients, and run each batch to completion. The
//! first also owns the log and the VNIC; without others it is the whole store.
//!
//! One iteration ([`Reactor::iterate`]):
//!
//! 1. Read the clock, once.
//! 2. Take what other cores have sent (`cores/`).
//! 3. Take what has arrived on the VNIC and on kernel sockets (`transport/`); run every complete
//!    command.
//! 4. Append the effects of the whole batch to the log as one record, start the write, and seal all
//!    replies behind it ([`LogWriter`]). Records that have become durable release their replies.
//!    Other threads send their effects to the first.
//! 5. Send the released output, acknowledge, and notify each doorbell once.
//! 6. If the log has grown, advance its compaction by a slice.
//!
//! An iteration that found nothing to do is repeated while polling has paid lately (`run/idle.rs`).
//! Then the thread sleeps on all doorbells at once, until the nearest deadline of engine, shard and
//! log. The server never waits to fill a batch, never waits for the disk, and never makes the
//! control plane part of a request.
//!
//! Two rules are never broken. A reply leaves only once everything that it depends on is durable
//! (`--durability always`). Nothing is acknowledged after the log has failed.
//!
//! | layer, lowest first | what |
//! | --- | --- |
//! | `options`, `error` | what the server is started with, and why it stops |
//! | `transport/` | clients on the VNIC's engine and on kernel sockets |
//! | `log_writer`, `recover` | the log of all shards, and how they are rebuilt from it |
//! | `cores/` | what cores tell each other: effects, commands for other shards, whole shards |
//! | `latency`, `reactor` | one iteration over all devices |
//! | `key_view`, `metrics` | keys as files, counters |
//! | `run` | the server on real devices: start, idle policy, lost devices, shutdown |

mod cores;
mod error;
mod key_view;
mod latency;
mod log_writer;
mod metrics;
mod options;
mod reactor;
mod recover;
mod run;
mod transport;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use log_writer::LogWriter;
pub use options::{NetChoice, Options};
pub use reactor::{Iteration, Reactor};
pub use recover::recover;
pub use run::run;
pub use transport::VnicTransport;
