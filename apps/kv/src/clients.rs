//! The clients of a shard: the state of each, and all of them together.

mod announcement;
mod client;
mod output;
mod overflow;
mod pending;
mod publish;
mod table;

pub(crate) use announcement::Announcement;
pub(crate) use client::{
    Blocked, Client, Closing, Pause, ReplyMode, TimeoutReply, Transaction, WaitsFor, Watch,
};
pub(crate) use publish::write_message;
pub(crate) use table::Clients;
