//! The event loop: one thread that owns a shard, its log, its VNIC and its kernel sockets, and runs
//! each batch to completion.
//!
//! One turn ([`plane::Plane::turn`]):
//!
//! 1. Read the clock, once.
//! 2. Take what has arrived on the VNIC ([`vnic`]) and on kernel sockets ([`kernel`]); run every
//!    complete command.
//! 3. Append the effects of the whole batch to the log as one record, start the write, and seal all
//!    replies behind it ([`ledger`]). Take what has become durable; that releases replies.
//! 4. Send what is released, acknowledge, ring each doorbell once.
//! 5. If the log has grown, move its compaction on by a slice.
//!
//! A turn with nothing to do is repeated for as long as that has paid lately ([`sietch::Spin`];
//! [`DISK_SPIN`] while replies wait for the disk) and then the thread sleeps on all doorbells at
//! once, until the nearest deadline of engine, shard and log, or for ever. It never waits to fill a
//! batch, never waits for the disk, and never makes the control plane part of a request.
//!
//! What it must never do: release a reply before what it depends on is durable (`--durability
//! always`), or acknowledge anything after the log has failed.

mod error;
mod kernel;
mod ledger;
mod options;
mod pace;
mod plane;
mod recover;
mod reopen;
mod report;
mod routes;
mod run;
mod stall;
mod vnic;
mod window;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use ledger::Ledger;
pub use options::{NetChoice, Options};
pub use pace::DISK_SPIN;
pub use plane::{Plane, Turn};
pub use recover::recover;
pub use run::run;
pub use vnic::Door;
