//! The kernel sockets' side of the loop: what happens on them, told to the shard.

use std::net::SocketAddr;

use sietch_socket::{Appetite, ConnectionId, Handler, Verdict};

use super::routes::{Place, Routes, client, word};
use crate::client::ClientId;
use crate::shard::{Now, PROTECTED, Shard};

/// What a batch of socket events needs from the loop.
pub(super) struct Listener<'a> {
    pub shard: &'a mut Shard,
    pub routes: &'a mut Routes,
    pub now: Now,
    /// Clients that can be sent to again.
    pub writable: &'a mut Vec<ClientId>,
    /// Doorbells that rang.
    pub doorbells: &'a mut Vec<u64>,
    /// The store ends: nobody is accepted or read any more.
    pub ending: bool,
}

impl Handler for Listener<'_> {
    fn accepted(&mut self, id: ConnectionId, peer: SocketAddr, local: SocketAddr) -> Verdict {
        if self.ending {
            return Verdict::Refuse(b"");
        }
        // A VNIC has filters of its own, for addresses and peers; kernel sockets have none.
        if self.shard.refuses(peer.ip()) {
            return Verdict::Refuse(PROTECTED);
        }
        match self.shard.connect(peer, local, self.now) {
            Ok(client) => {
                self.routes.insert(client, Place::Socket(id));
                Verdict::Accept(word(client))
            }
            Err(refused) => Verdict::Refuse(refused.reply()),
        }
    }

    fn received(&mut self, user: u64, bytes: &[u8]) -> Appetite {
        let Some(id) = client(user).filter(|_| !self.ending) else { return Appetite::Enough };
        self.shard.feed(id, bytes, self.now);
        let Some(route) = self.routes.get(id) else { return Appetite::Enough };
        route.stalled = !self.shard.accepts_input(id);
        if route.stalled { Appetite::Enough } else { Appetite::More }
    }

    fn ended(&mut self, user: u64) {
        if let Some(id) = client(user) {
            self.shard.end_of_input(id);
        }
    }

    fn broken(&mut self, user: u64) {
        if let Some(id) = client(user) {
            self.routes.remove(id);
            self.shard.disconnect(id);
        }
    }

    fn writable(&mut self, user: u64) {
        self.writable.extend(client(user));
    }

    fn doorbell(&mut self, token: u64) {
        self.doorbells.push(token);
    }
}
