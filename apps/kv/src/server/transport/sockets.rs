//! Clients on kernel sockets: passes socket events to the shard.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use sietch_socket::{Appetite, ConnectionId, Handler, Verdict};

use super::routes::{Connection, Routes, client_of, user_word};
use super::spread::{NewClient, Spread};
use crate::foundation::client_id::ClientId;
use crate::shard::{Now, PROTECTED, Refused, Shard};

/// The handler of a batch of socket events, with the parts of the reactor that it needs.
pub(in crate::server) struct SocketEvents<'a> {
    pub shard: &'a mut Shard,
    pub routes: &'a mut Routes,
    pub now: Now,
    /// Clients that have room for output again.
    pub writable: &'a mut Vec<ClientId>,
    /// Doorbells that were notified.
    pub doorbells: &'a mut Vec<u64>,
    /// The store ends: no connection is accepted or read any more.
    pub ending: bool,
    /// Passes connections on to other cores, on the core that accepts.
    pub spread: Option<&'a mut Spread>,
}

impl SocketEvents<'_> {
    /// The client of a new connection, or the reply to a refused peer.
    fn admit(&mut self, peer: SocketAddr, local: SocketAddr) -> Result<ClientId, &'static [u8]> {
        if self.ending {
            return Err(b"");
        }
        // A VNIC has filters for addresses and peers; kernel sockets have none.
        if self.shard.refuses(peer.ip()) {
            return Err(PROTECTED);
        }
        self.shard.connect(peer, local, self.now).map_err(Refused::reply)
    }
}

impl Handler for SocketEvents<'_> {
    fn accepted(&mut self, id: ConnectionId, peer: SocketAddr, local: SocketAddr) -> Verdict {
        if !self.ending && self.spread.as_mut().is_some_and(|spread| spread.choose_other().is_some()) {
            return Verdict::Release;
        }
        match self.admit(peer, local) {
            Ok(client) => {
                self.routes.insert(client, Connection::Socket(id));
                Verdict::Accept(user_word(client))
            }
            Err(last_words) => Verdict::Refuse(last_words),
        }
    }

    fn released(&mut self, socket: OwnedFd) {
        if let Some(spread) = &mut self.spread {
            spread.pass(NewClient::Kernel(socket));
        }
    }

    fn received(&mut self, user: u64, bytes: &[u8]) -> Appetite {
        let Some(id) = client_of(user).filter(|_| !self.ending) else { return Appetite::Enough };
        self.shard.feed(id, bytes, self.now);
        let Some(route) = self.routes.get(id) else { return Appetite::Enough };
        route.stalled = !self.shard.accepts_input(id);
        if route.stalled { Appetite::Enough } else { Appetite::More }
    }

    fn ended(&mut self, user: u64) {
        if let Some(id) = client_of(user) {
            self.shard.end_of_input(id);
        }
    }

    fn broken(&mut self, user: u64) {
        if let Some(id) = client_of(user) {
            self.routes.remove(id);
            self.shard.disconnect(id);
        }
    }

    fn writable(&mut self, user: u64) {
        self.writable.extend(client_of(user));
    }

    fn doorbell(&mut self, token: u64) {
        self.doorbells.push(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foundation::settings::Settings;

    #[test]
    fn a_peer_of_another_host_is_refused_by_protected_mode_until_there_is_a_password() {
        let mut shard = Shard::new(Settings::default(), 42);
        let local = SocketAddr::from(([10, 0, 0, 1], 6379));
        let (here, there) = (SocketAddr::from(([127, 0, 0, 1], 9)), SocketAddr::from(([10, 0, 0, 7], 9)));
        let admit = |shard: &mut Shard, peer: SocketAddr, ending: bool| {
            let (mut routes, mut writable, mut doorbells) = (Routes::default(), Vec::new(), Vec::new());
            let now = Now { monotonic_ns: 1, unix_ms: 1 };
            SocketEvents {
                shard,
                routes: &mut routes,
                now,
                writable: &mut writable,
                doorbells: &mut doorbells,
                ending,
                spread: None,
            }
            .admit(peer, local)
        };
        assert!(admit(&mut shard, here, false).is_ok());
        assert_eq!(admit(&mut shard, there, false), Err(PROTECTED));
        shard.require_password(b"abc");
        assert!(admit(&mut shard, there, false).is_ok());
        assert_eq!(admit(&mut shard, here, true), Err(&b""[..]));
    }
}
