//! Closed listeners whose kernel socket this service still has open.
//!
//! 1. A listener ends with the last close of its placeholder. The service has a copy of the
//!    kernel's listening socket, which another thread closes: that close may hang.
//! 2. In between, the kernel still takes connections at that name, and resets them with that close.
//!    A program that connects after the last close would see a connection where Linux refuses it.
//! 3. So each such socket has a *mark*, which is dropped once the socket is closed. While a mark
//!    exists, the service answers that the name is busy, and the program asks again.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use crate::sockets::table::Listener;

/// Closed listeners, each with the mark of its kernel socket.
#[derive(Debug, Default)]
pub(in crate::sockets) struct ClosingListeners(Vec<(Listener, Weak<()>)>);

impl ClosingListeners {
    /// Adds a listener that was closed. Returns the mark of its kernel socket.
    pub(super) fn add(&mut self, listener: Listener) -> Arc<()> {
        self.forget_closed();
        let mark = Arc::new(());
        self.0.push((listener, Arc::downgrade(&mark)));
        mark
    }

    /// Returns whether the kernel might still connect to the socket of a closed listener.
    pub(in crate::sockets) fn has(&mut self, namespace: u64, remote: SocketAddr) -> bool {
        self.forget_closed();
        self.0.iter().any(|(listener, _)| listener.is_reached_at(namespace, remote))
    }

    fn forget_closed(&mut self) {
        self.0.retain(|(_, mark)| mark.strong_count() > 0);
    }
}
