//! The clients in whose place the commands of other shards' clients run.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::messages::{ENVELOPE, Envelope, RequestHead, first_reply};
use crate::clients::{Client, ReplyMode};
use crate::foundation::client_id::ClientId;

/// Bytes of replies that wait for one other shard from which on none of its commands run.
const REPLY_BYTES: usize = 4 << 20;

/// Bytes of a reply from which on its client's next commands wait until there is room for theirs:
/// much more than what it costs to tell two cores, and 64 smaller ones, which are the most that are
/// on their way, take 4 MiB.
const HELD_FROM: usize = 64 << 10;

/// What becomes of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is sent. If it is large, the next commands of its client are held.
    Sent,
    /// It is sent, and no command may be held.
    SentAtOnce,
    /// It is lost, and its client is to be closed.
    Lost,
}

/// The client in whose place the commands of another shard's clients run.
pub(super) struct Proxy {
    pub(super) client: Box<Client>,
}

impl Proxy {
    /// For shard `shard`.
    pub(super) fn new(shard: usize) -> Self {
        // No client has this slot, so none is found by this identity.
        let id = ClientId { slot: u32::MAX, generation: shard as u32 };
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        Self { client: Box::new(Client::new(id, 0, nowhere, nowhere, 0)) }
    }

    /// Whether more commands may run: few bytes of replies wait for their shard.
    pub(super) fn has_room(&self) -> bool {
        self.client.output.pending() <= REPLY_BYTES
    }

    /// Takes on the state of the client whose command runs next, and begins its reply. Returns
    /// where the envelope is.
    pub(super) fn begin(&mut self, head: &RequestHead, fate: Fate) -> usize {
        let client = &mut self.client;
        client.database = head.database;
        client.resp3 = head.resp3;
        client.peer = head.peer;
        client.reply_mode = if head.quiet || fate == Fate::Lost { ReplyMode::Off } else { ReplyMode::On };
        let start = client.output.bytes.len();
        client.output.bytes.extend_from_slice(&[0; ENVELOPE]);
        start
    }

    /// Writes the envelope of the reply. Returns the bytes of the reply, and whether the next
    /// commands of the client are to be held.
    pub(super) fn end(&mut self, head: &RequestHead, start: usize, fate: Fate) -> (usize, bool) {
        let bytes = &mut self.client.output.bytes;
        let lost = fate == Fate::Lost;
        if lost {
            bytes.truncate(start + ENVELOPE);
        }
        let reply = bytes.len() - start - ENVELOPE;
        let holds = fate == Fate::Sent && reply >= HELD_FROM;
        let RequestHead { client, ticket, .. } = *head;
        let envelope = Envelope { client, ticket, lost, holds, length: reply as u64 };
        bytes[start..start + ENVELOPE].copy_from_slice(&envelope.encode());
        (reply, holds)
    }

    /// Replaces the replies that are held by notes that they are lost.
    pub(super) fn fail(&mut self) {
        let output = &mut self.client.output;
        let held = output.held().to_vec();
        output.drop_held();
        let mut rest = held.as_slice();
        while let Some((envelope, _, next)) = first_reply(rest) {
            output.append_durable(&Envelope { lost: true, length: 0, ..envelope }.encode());
            rest = next;
        }
    }
}
