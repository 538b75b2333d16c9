//! The leases on one inode: the clients that have them, and those that wait.

use std::collections::VecDeque;

use super::{ClientNumber, Mode};

/// The state of a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revoking {
    /// Nothing waits for it.
    No,
    /// It is sent at this time: the holder has not had the lease for long.
    At(u64),
    /// It was sent, and is sent again as an urgent one at this time.
    Sent(u64),
    /// It must be answered until this time.
    Urgent(u64),
}

/// A client that has a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub client: ClientNumber,
    pub mode: Mode,
    pub serial: u64,
    /// The holder knows that no other client has the inode open.
    pub is_sole: bool,
    /// When it got the lease.
    pub since: u64,
    pub revoking: Revoking,
    /// A shared lease may be kept: of a revocation.
    pub may_share: bool,
}

impl Holder {
    /// The time at which something is to be done.
    pub(super) fn timer(&self) -> Option<u64> {
        match self.revoking {
            Revoking::No => None,
            Revoking::At(time) | Revoking::Sent(time) | Revoking::Urgent(time) => Some(time),
        }
    }
}

/// The leases on one inode.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// At most one for each client; one alone, if it is exclusive.
    pub holders: Vec<Holder>,
    /// The last exclusive holder released it at this position of its log, which is not digested.
    pub draining: Option<(ClientNumber, u64)>,
    /// Requests, the oldest first; one for each client.
    pub queue: VecDeque<(ClientNumber, Mode)>,
}

impl Entry {
    pub(super) fn holder(&self, client: ClientNumber) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.client == client)
    }

    pub(super) fn holder_mut(&mut self, client: ClientNumber) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.client == client)
    }

    /// Whether a holder is in the way of a request.
    pub(super) fn conflicts(holder: &Holder, (client, mode): (ClientNumber, Mode)) -> bool {
        holder.client != client && (mode == Mode::Exclusive || holder.mode == Mode::Exclusive)
    }

    /// Whether a request can be granted now. Who released the lease last need not wait for the
    /// digest of its own log.
    pub(super) fn admits(&self, request: (ClientNumber, Mode)) -> bool {
        let is_drained = self.draining.is_none_or(|(client, _)| client == request.0);
        is_drained && !self.holders.iter().any(|holder| Self::conflicts(holder, request))
    }

    /// Whether it says nothing any more.
    pub(super) fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.draining.is_none() && self.queue.is_empty()
    }
}
