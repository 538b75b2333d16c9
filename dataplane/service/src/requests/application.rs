//! The identity of an application, and a connection between two of them.

use std::net::SocketAddr;

/// An application: its user, and the id that groups its processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Application {
    /// The user, from SO_PEERCRED.
    pub uid: u32,
    /// The id, from its requests: a program may claim any.
    pub id: [u8; 16],
}

/// A connection between two applications.
#[derive(Debug, Clone)]
pub struct Connection {
    /// The application that connected.
    pub client: Application,
    /// The application that listens.
    pub server: Application,
    /// The network namespace.
    pub namespace: u64,
    /// The names as the connecting side sees them.
    pub names: Names,
    /// The names as the accepting side sees them.
    pub accepted: Names,
}

/// The two names (socket addresses) of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// The name of this end.
    pub local: SocketAddr,
    /// The name of the other end.
    pub peer: SocketAddr,
}

/// The two names as they are in the private page of a connection's memory.
pub fn page_names(local: SocketAddr, peer: SocketAddr) -> sietch_ring::stream::Names {
    use sietch_protocol::socket_service::Name;
    let (local, peer) = (Name::from(local), Name::from(peer));
    sietch_ring::stream::Names {
        local: local.bytes,
        peer: peer.bytes,
        local_length: local.length,
        peer_length: peer.length,
    }
}
