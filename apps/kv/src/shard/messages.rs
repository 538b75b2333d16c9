//! What shards send to each other: commands, replies, announcements. Plain data.
//!
//! 1. Each batch is packed into a few vectors, so that it costs a few allocations however many
//!    commands it has.
//! 2. A batch is for one shard. Batches from one shard to another arrive in the order in which they
//!    were sent.

use std::net::SocketAddr;

use crate::data::keyspace::DatabaseKey;
use crate::foundation::client_id::ClientId;

/// A command that its key's owner is to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestHead {
    /// The client, at the sender.
    pub(super) client: ClientId,
    /// Its address, for the slow log.
    pub(super) peer: SocketAddr,
    pub(super) database: u32,
    pub(super) arguments: u32,
    pub(super) resp3: bool,
    /// The client's replies are turned off.
    pub(super) quiet: bool,
}

/// Commands for the owner of their keys.
#[derive(Debug, Default)]
pub struct Requests {
    heads: Vec<RequestHead>,
    lengths: Vec<usize>,
    bytes: Vec<u8>,
}

impl Requests {
    /// Adds a command.
    pub(super) fn push(&mut self, mut head: RequestHead, arguments: &[&[u8]]) {
        head.arguments = arguments.len() as u32;
        self.heads.push(head);
        for argument in arguments {
            self.lengths.push(argument.len());
            self.bytes.extend_from_slice(argument);
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// How many commands.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// The commands with their arguments, from the first on.
    pub(super) fn iter(&self) -> RequestReader<'_> {
        RequestReader { requests: self, head: 0, length: 0, byte: 0 }
    }
}

/// Reads the commands of a batch.
#[derive(Debug)]
pub(super) struct RequestReader<'a> {
    requests: &'a Requests,
    head: usize,
    length: usize,
    byte: usize,
}

impl<'a> RequestReader<'a> {
    /// The next command; its arguments replace what is in `arguments`.
    pub(super) fn next(&mut self, arguments: &mut Vec<&'a [u8]>) -> Option<RequestHead> {
        let head = *self.requests.heads.get(self.head)?;
        self.head += 1;
        arguments.clear();
        for &length in &self.requests.lengths[self.length..self.length + head.arguments as usize] {
            arguments.push(&self.requests.bytes[self.byte..self.byte + length]);
            self.byte += length;
        }
        self.length += head.arguments as usize;
        Some(head)
    }
}

/// Replies to the commands of another shard's clients, each behind an envelope.
#[derive(Debug, Default)]
pub struct Replies {
    pub(super) bytes: Vec<u8>,
}

/// What other shards must know, and does not answer.
#[derive(Debug)]
pub(super) enum Announcement {
    /// A message to a channel, for subscribers.
    Published { channel: Box<[u8]>, message: Box<[u8]> },
    /// A line for monitors.
    MonitorLine(Box<[u8]>),
    /// The sender has monitors, or none any more.
    Monitors(bool),
    /// A client no longer watches this key of the receiver.
    Unwatched(DatabaseKey),
    /// A client no longer waits for this key of the receiver.
    Unwaited { key: DatabaseKey, serial: u64 },
}

/// What other shards must know.
#[derive(Debug, Default)]
pub struct Announcements {
    pub(super) list: Vec<Announcement>,
}
