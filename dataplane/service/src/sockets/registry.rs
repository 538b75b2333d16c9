//! The memory of open connections, found by the placeholders that represent them.
//!
//! 1. A placeholder is identified by its socket's cookie, a number that the kernel gives to no
//!    other socket. A program that sends a placeholder has it, and so may have what belongs to it.
//! 2. A connection is closed when neither placeholder exists any more. The kernel reports the end
//!    of each ([`Registry::reap`]). Where it does not, the registry lists all Unix sockets now and
//!    then (`sock_diag`), and removes a connection that is missing twice in a row. Twice, because a
//!    list that is read while others change it may skip one.
//! 3. The descriptors here keep the memory of a connection; removing the connection frees it.

mod close_watcher;
pub(super) mod memory;
mod unix_sockets;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{SocketFlags, sockopt};
use sietch_ring::socket_pair;
use sietch_ring::stream::Memory;

use super::table::{ConnectionId, ListenerId};
use close_watcher::{CloseWatcher, Watch};

/// What a placeholder represents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placeholder {
    /// An end of a connection: end 0 connected, end 1 accepted.
    End(ConnectionId, usize),
    /// A listener.
    Listener(ListenerId),
}

/// An open connection.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its memory.
    pub memory: Memory,
    /// The cookies of its placeholders.
    pub cookies: [u64; 2],
    /// The watches of its placeholders; `None` where there is none, or where it has fired.
    pub watches: [Option<Watch>; 2],
    /// This service relays it in the place of the program that accepted it.
    pub relayed: bool,
    /// The kernel has reported the close of this end.
    pub closed: [bool; 2],
    /// The number of sweeps in a row that did not find it.
    missed: u8,
    /// The current sweep has found it.
    found: bool,
}

impl Entry {
    /// Whether the kernel reports the end of this connection.
    fn is_watched(&self) -> bool {
        self.watches.iter().zip(self.closed).all(|(watch, closed)| watch.is_some() || closed)
    }
}

/// The open connections, and what each placeholder represents.
#[derive(Debug, Default)]
pub(super) struct Registry {
    entries: BTreeMap<ConnectionId, Entry>,
    cookies: HashMap<u64, Placeholder>,
    /// The number of connections that were added since the last sweep.
    added: usize,
    watcher: CloseWatcher,
    /// The number of connections whose end the kernel does not report.
    unwatched: usize,
}

/// Returns the number that the kernel gives to this socket and to no other.
///
/// # Errors
/// `ENOTSOCK`.
pub(super) fn cookie_of(socket: impl AsFd) -> rustix::io::Result<u64> {
    sockopt::socket_cookie(socket)
}

impl Registry {
    /// Watches the placeholders of a connection that is about to be added.
    pub(super) fn watch(&self, placeholders: [&OwnedFd; 2]) -> [Option<Watch>; 2] {
        placeholders.map(|placeholder| self.watcher.watch(placeholder))
    }

    /// Adds a connection.
    pub(super) fn insert(
        &mut self,
        id: ConnectionId,
        memory: Memory,
        cookies: [u64; 2],
        watches: [Option<Watch>; 2],
    ) {
        self.restore(id, memory, cookies, watches, [false; 2]);
    }

    /// Adds a connection of a predecessor, of which these ends are closed.
    pub(super) fn restore(
        &mut self,
        id: ConnectionId,
        memory: Memory,
        cookies: [u64; 2],
        watches: [Option<Watch>; 2],
        closed: [bool; 2],
    ) {
        for (end, cookie) in cookies.into_iter().enumerate() {
            self.cookies.insert(cookie, Placeholder::End(id, end));
        }
        for (end, watch) in watches.into_iter().enumerate() {
            watch.into_iter().for_each(|watch| self.watcher.register(watch, id, end));
        }
        let entry = Entry { memory, cookies, watches, relayed: false, closed, missed: 0, found: false };
        self.unwatched += usize::from(!entry.is_watched());
        self.entries.insert(id, entry);
        self.added += 1;
    }

    /// Returns the descriptor that becomes readable when [`Registry::reap`] has something to do.
    pub(super) fn close_events(&self) -> Option<BorrowedFd<'_>> {
        self.watcher.descriptor()
    }

    /// Continues with the watches of a predecessor.
    pub(super) fn inherit(&mut self, close_events: OwnedFd) {
        self.watcher.inherit(close_events);
    }

    /// Returns the number of connections whose end the kernel does not report, so that sweeps find
    /// it.
    pub(super) fn unwatched(&self) -> usize {
        self.unwatched
    }

    /// Removes the connections whose end the kernel has reported, and returns them.
    pub(super) fn reap(&mut self) -> Vec<ConnectionId> {
        let mut closed = Vec::new();
        let entries = &mut self.entries;
        let all = self.watcher.read_closed(|id, end| {
            if let Some(entry) = entries.get_mut(&id) {
                entry.watches[end] = None;
                entry.closed[end] = true;
                if entry.closed == [true; 2] {
                    closed.push(id);
                }
            }
        });
        closed.iter().for_each(|&id| {
            self.remove(id);
        });
        if !all {
            tracing::warn!("the kernel lost reports of closed connections: sweeps find them instead");
            for entry in self.entries.values_mut() {
                for watch in &mut entry.watches {
                    watch.take().into_iter().for_each(|watch| self.watcher.forget(watch));
                }
                entry.closed = [false; 2];
            }
            self.unwatched = self.entries.len();
        }
        closed
    }

    /// Adds a listener's placeholder.
    pub(super) fn insert_listener(&mut self, id: ListenerId, cookie: u64) {
        self.cookies.insert(cookie, Placeholder::Listener(id));
    }

    /// Returns what a socket represents.
    pub(super) fn find(&self, socket: impl AsFd) -> Option<Placeholder> {
        self.cookies.get(&cookie_of(socket).ok()?).copied()
    }

    /// Returns a connection.
    pub(super) fn get(&self, id: ConnectionId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// Notes that this service relays a connection.
    pub(super) fn note_relayed(&mut self, id: ConnectionId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.relayed = true;
        }
    }

    /// Removes a connection.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        for cookie in entry.cookies {
            self.cookies.remove(&cookie);
        }
        self.unwatched -= usize::from(!entry.is_watched());
        entry.watches.into_iter().flatten().for_each(|watch| self.watcher.forget(watch));
        Some(entry)
    }

    /// Removes a listener's placeholder.
    pub(super) fn remove_listener(&mut self, cookie: u64) {
        self.cookies.remove(&cookie);
    }

    /// Returns the number of connections.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of connections that were added since the last sweep.
    pub(super) fn added(&self) -> usize {
        self.added
    }

    /// Removes the connections of which no placeholder is left, and returns them.
    ///
    /// # Errors
    /// Those of netlink; nothing has changed then.
    pub(super) fn sweep(&mut self) -> io::Result<Vec<ConnectionId>> {
        let Self { entries, cookies, .. } = self;
        entries.values_mut().for_each(|entry| entry.found = false);
        unix_sockets::visit_all(|cookie| {
            if let Some(Placeholder::End(id, _)) = cookies.get(&cookie)
                && let Some(entry) = entries.get_mut(id)
            {
                entry.found = true;
            }
        })?;
        self.added = 0;
        let mut closed = Vec::new();
        for (&id, entry) in &mut self.entries {
            entry.missed = if entry.found { 0 } else { entry.missed + 1 };
            if entry.missed >= 2 {
                closed.push(id);
            }
        }
        closed.iter().for_each(|&id| {
            self.remove(id);
        });
        Ok(closed)
    }
}

/// Makes the placeholders of a connection, and returns them with their cookies.
pub(super) fn placeholders() -> io::Result<([OwnedFd; 2], [u64; 2])> {
    let (first, second) = socket_pair::pair(SocketFlags::empty())?;
    let cookies = [cookie_of(&first)?, cookie_of(&second)?];
    Ok(([first, second], cookies))
}
