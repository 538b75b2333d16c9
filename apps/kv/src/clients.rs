//! The clients of a shard: the state of each, and all of them together.

mod client;
mod output;
mod publish;
mod table;

pub(crate) use client::{Blocked, Client, Closing, Pause, ReplyMode, TimeoutReply, Transaction, Watch};
pub(crate) use publish::write_message;
pub(crate) use table::Clients;
