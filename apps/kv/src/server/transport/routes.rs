//! The connection of each client of the shard.
//!
//! Devices carry a client as one opaque word ([`user_word`], [`client_of`]), so an event needs no
//! lookup. From a client to its connection, the client's slot is the index into a table.

use sietch::net::FlowId;
use sietch::stream::poller::Token;
use sietch_socket::ConnectionId;

use crate::foundation::client_id::ClientId;
use crate::foundation::client_path::ClientPath;

/// A connection of one of the transports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Connection {
    /// A flow of the VNIC's engine.
    Flow(FlowId),
    /// A kernel socket.
    Socket(ConnectionId),
    /// A stream through memory.
    Stream(Token),
}

impl Connection {
    /// The way that it is.
    pub(crate) const fn path(self) -> ClientPath {
        match self {
            Self::Flow(_) => ClientPath::Vnic,
            Self::Socket(_) => ClientPath::Kernel,
            Self::Stream(_) => ClientPath::Memory,
        }
    }
}

/// A client's connection and its state.
#[derive(Debug, Clone, Copy)]
pub(in crate::server) struct Route {
    client: ClientId,
    /// The connection.
    pub connection: Connection,
    /// Input waits unread because the client has too much output.
    pub stalled: bool,
    /// The peer sends no more; the shard is notified once all input is read.
    pub ended: bool,
}

/// The connections of all clients.
#[derive(Debug, Default)]
pub(in crate::server) struct Routes {
    entries: Vec<Option<Route>>,
    /// Clients by their path.
    counts: [u64; 3],
}

impl Routes {
    /// Adds the connection of `client`.
    pub(crate) fn insert(&mut self, client: ClientId, connection: Connection) {
        let slot = client.slot as usize;
        if self.entries.len() <= slot {
            self.entries.resize(slot + 1, None);
        }
        if let Some(old) = self.entries[slot].take() {
            self.counts[old.connection.path() as usize] -= 1;
        }
        self.counts[connection.path() as usize] += 1;
        self.entries[slot] = Some(Route { client, connection, stalled: false, ended: false });
    }

    /// The connection of `client`.
    pub(crate) fn get(&mut self, client: ClientId) -> Option<&mut Route> {
        self.entries.get_mut(client.slot as usize)?.as_mut().filter(|route| route.client == client)
    }

    /// Removes `client` and returns its connection.
    pub(crate) fn remove(&mut self, client: ClientId) -> Option<Connection> {
        let connection = self.get(client)?.connection;
        self.entries[client.slot as usize] = None;
        self.counts[connection.path() as usize] -= 1;
        Some(connection)
    }

    /// The number of clients that come on `path`.
    pub(crate) fn count(&self, path: ClientPath) -> u64 {
        self.counts[path as usize]
    }

    /// The number of all clients.
    pub(crate) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All clients whose connections `matching` chooses.
    pub(crate) fn clients(&self, matching: impl Fn(&Connection) -> bool) -> Vec<ClientId> {
        self.entries
            .iter()
            .flatten()
            .filter(|route| matching(&route.connection))
            .map(|route| route.client)
            .collect()
    }
}

/// The word for a client in a device's events. It is never 0, which means no client.
pub(in crate::server) fn user_word(client: ClientId) -> u64 {
    (u64::from(client.generation) << 32 | u64::from(client.slot)).wrapping_add(1)
}

/// The client of such a word.
pub(in crate::server) fn client_of(word: u64) -> Option<ClientId> {
    let word = word.checked_sub(1)?;
    Some(ClientId { slot: (word & u64::from(u32::MAX)) as u32, generation: (word >> 32) as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_clients_correspond() {
        for id in [ClientId { slot: 0, generation: 0 }, ClientId { slot: 7, generation: u32::MAX }] {
            assert_ne!(user_word(id), 0);
            assert_eq!(client_of(user_word(id)), Some(id));
        }
        assert_eq!(client_of(0), None);
    }

    #[test]
    fn a_route_of_an_earlier_client_is_not_found() {
        let mut routes = Routes::default();
        let (old, new) = (ClientId { slot: 3, generation: 1 }, ClientId { slot: 3, generation: 2 });
        routes.insert(old, Connection::Flow(FlowId::NONE));
        routes.insert(new, Connection::Flow(FlowId::NONE));
        assert!(routes.get(old).is_none() && routes.remove(old).is_none());
        assert_eq!(routes.clients(|_| true), [new]);
        assert_eq!(routes.count(ClientPath::Vnic), 1, "the old one was replaced");
        assert!(routes.remove(new).is_some() && routes.get(new).is_none());
        assert_eq!(routes.count(ClientPath::Vnic), 0);
    }
}
