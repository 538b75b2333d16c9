//! What a shard keeps for its dealings with the others.

use std::collections::{BTreeMap, VecDeque};

use super::class::Class;
use super::messages::Requests;
use super::proxy::{Fate, Proxy};
use crate::clients::Client;
use crate::commands::Table;
use crate::foundation::client_id::ClientId;
use crate::foundation::placement::Placement;

/// Why a shard runs no command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Halt {
    /// It runs commands.
    #[default]
    No,
    /// A client of another shard, or one that waits for keys of other shards, waits for a key that
    /// was changed. It is served before any other command runs.
    Ready,
    /// Keys of other shards must be evicted before a command may run.
    Memory,
    /// The client in the section has run as many commands as a section may.
    Bound,
}

/// What a shard keeps for its dealings with the others. In a store of one shard it is empty.
#[derive(Default)]
pub(super) struct Peers {
    /// There are other shards.
    pub(super) any: bool,
    /// By the number of the command: what decides where it runs.
    pub(super) classes: Vec<Class>,
    /// By shard: the commands that it is to run.
    pub(super) requests: Vec<Requests>,
    /// By shard: the client in whose place its commands run here.
    pub(super) proxies: Vec<Proxy>,
    /// Commands of other shards that have not run yet.
    pub(super) inbox: VecDeque<(usize, Requests)>,
    /// Commands that may not run before their client, by its shard and its identity there, has room
    /// for their replies.
    pub(super) held: BTreeMap<(usize, ClientId), Requests>,
    /// Clients that wait for an exclusive section, in the order of their arrival.
    pub(super) section: VecDeque<ClientId>,
    /// Clients with input that could not run while the shard was halted.
    pub(super) halted: Vec<ClientId>,
    pub(super) halt: Halt,
    /// Commands that may still run in this section for the client that is being served.
    pub(super) left: usize,
    /// Commands that may still run in this section for clients of this shard.
    pub(super) share: usize,
    /// When the last command of this section may begin, in nanoseconds of the clock that measures
    /// commands.
    pub(super) until: u64,
    /// In the first shard: the shard that the next section begins with.
    pub(super) next_first: usize,
    /// No shard had a key to evict. Until then, in monotonic nanoseconds, commands that need memory
    /// are refused without another attempt.
    pub(super) full_until: u64,
    /// By shard: the commands that it was to run.
    pub(super) sent: Vec<u64>,
    /// By shard: its commands that have run here.
    pub(super) ran: Vec<u64>,
    /// In this section no forwarded command waits anywhere.
    pub(super) drained: bool,
    /// A command of this shard's clients waits in a section until no forwarded command does.
    pub(super) awaits_drain: bool,
    /// The same for any shard: nothing is forwarded.
    pub(super) draining: bool,
    /// Meanwhile, by client: bytes of the replies that were made here.
    drained_bytes: BTreeMap<(usize, ClientId), usize>,
}

impl Peers {
    pub(super) fn new(placement: Placement, table: &Table) -> Self {
        let count = placement.count();
        if count == 1 {
            return Self::default();
        }
        Self {
            any: true,
            classes: table.commands().iter().map(|command| Class::of(&command.spec)).collect(),
            requests: (0..count).map(|_| Requests::default()).collect(),
            proxies: (0..count).map(Proxy::new).collect(),
            sent: vec![0; count],
            ran: vec![0; count],
            ..Self::default()
        }
    }

    /// Tells a shard that the commands of a client which it holds may run.
    pub(super) fn resume(&mut self, owner: usize, client: ClientId, has_gone: bool) {
        if let Some(requests) = self.requests.get_mut(owner) {
            requests.push_resume(client, has_gone);
        }
    }

    /// Tells the owner of the first reply that is owed, if it holds commands of the client; if no
    /// reply is owed, all that do.
    pub(super) fn resume_owner(&mut self, client: &mut Client) {
        while let Some(owner) = client.pending.take_resumable() {
            self.resume(owner, client.id, false);
        }
    }

    /// Lets all commands run that are held here, if a command waits until they have.
    pub(super) fn drain(&mut self, draining: bool) {
        self.draining = draining;
        if !draining {
            self.drained_bytes.clear();
            return;
        }
        for ((from, _), requests) in std::mem::take(&mut self.held) {
            if !requests.is_empty() {
                self.inbox.push_front((from, requests));
            }
        }
    }

    /// What becomes of the reply to the next command of a client. While no command may be held, the
    /// client has `limit` bytes of replies.
    #[inline]
    pub(super) fn fate(&self, from: usize, client: ClientId, limit: usize) -> Fate {
        if !self.draining {
            return Fate::Sent;
        }
        let bytes = self.drained_bytes.get(&(from, client));
        if bytes.is_some_and(|&bytes| bytes > limit) { Fate::Lost } else { Fate::SentAtOnce }
    }

    /// Counts a reply of so many bytes.
    #[inline]
    pub(super) fn note_reply(&mut self, from: usize, client: ClientId, bytes: usize) {
        if self.draining {
            *self.drained_bytes.entry((from, client)).or_default() += bytes;
        }
    }
}
