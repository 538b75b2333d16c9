//! Listening ports.
//!
//! A connection that completes its handshake waits at its listener until the application takes the
//! Accepted event. When `backlog` connections wait, further handshakes are not completed: the
//! half-open connection stays, and its repeated SYN-ACK makes the peer try again.

use std::collections::BTreeMap;

use super::ports::PortSet;

/// A listening port.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Most connections that may wait.
    pub backlog: u32,
    /// Connections whose Accepted event was not taken.
    pub waiting: u32,
}

/// All listening ports.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    /// By port: each accepted connection finds its listener here, among up to
    /// [`crate::limits::LISTENERS`].
    by_port: BTreeMap<u16, Listener>,
    /// The same ports as a set: each SYN tests it.
    ports: PortSet,
}

impl Listeners {
    pub(crate) fn len(&self) -> usize {
        self.by_port.len()
    }

    #[inline]
    pub(crate) fn contains(&self, port: u16) -> bool {
        self.ports.contains(port)
    }

    pub(crate) fn ports(&self) -> &PortSet {
        &self.ports
    }

    pub(crate) fn insert(&mut self, port: u16, listener: Listener) {
        self.ports.insert(port);
        self.by_port.insert(port, listener);
    }

    pub(crate) fn remove(&mut self, port: u16) {
        self.ports.remove(port);
        self.by_port.remove(&port);
    }

    pub(crate) fn get_mut(&mut self, port: u16) -> Option<&mut Listener> {
        self.by_port.get_mut(&port)
    }

    /// Port and listener, by port.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &Listener)> {
        self.by_port.iter().map(|(port, listener)| (*port, listener))
    }
}
