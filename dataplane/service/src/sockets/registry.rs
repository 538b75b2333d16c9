//! The memory of connections that there are, by the placeholders that stand for them.
//!
//! 1. A placeholder is known by its socket's cookie, a number that the kernel gives to no other
//!    socket. Whoever sends a placeholder has it, and so may have what belongs to it.
//! 2. A connection is gone when neither placeholder exists any more. The kernel tells of the end of
//!    each ([`Registry::bury`]). Where it could not be asked to, it is asked now and then for all
//!    Unix sockets (`sock_diag`), and what is missing twice in a row is taken out. Twice, because a
//!    list that is read while others change it may skip one.
//! 3. The descriptors here hold the memory of a connection; the memory goes with them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt};
use sietch_ring::stream::Memory;

use super::ends::{Ends, Watch};
use super::table::{ConnectionId, ListenerId};

/// What a placeholder stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placeholder {
    /// An end of a connection: 0 connected, 1 accepted.
    End(ConnectionId, usize),
    /// A listener.
    Listener(ListenerId),
}

/// A connection that there is.
#[derive(Debug)]
pub struct Entry {
    /// Its memory.
    pub memory: Memory,
    /// Its placeholders.
    pub cookies: [u64; 2],
    /// Their watches; `None` where there is none, or where it has told what it had to tell.
    pub watches: [Option<Watch>; 2],
    closed: [bool; 2],
    missed: u8,
    found: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Registry {
    entries: BTreeMap<ConnectionId, Entry>,
    cookies: HashMap<u64, Placeholder>,
    made: usize,
    ends: Ends,
    /// Connections of which the kernel does not tell.
    unwatched: usize,
}

/// The number that the kernel gives to this socket and to no other.
///
/// # Errors
/// `ENOTSOCK`.
pub fn cookie(socket: impl AsFd) -> rustix::io::Result<u64> {
    sockopt::socket_cookie(socket)
}

impl Registry {
    /// Has the placeholders of a connection watched that is about to be entered.
    pub fn watch(&self, placeholders: [&OwnedFd; 2]) -> [Option<Watch>; 2] {
        placeholders.map(|placeholder| self.ends.watch(placeholder))
    }

    /// Enters a connection.
    pub fn insert(
        &mut self,
        id: ConnectionId,
        memory: Memory,
        cookies: [u64; 2],
        watches: [Option<Watch>; 2],
    ) {
        for (end, cookie) in cookies.into_iter().enumerate() {
            self.cookies.insert(cookie, Placeholder::End(id, end));
        }
        for (end, watch) in watches.into_iter().enumerate() {
            watch.into_iter().for_each(|watch| self.ends.enter(watch, id, end));
        }
        self.unwatched += usize::from(watches.contains(&None));
        let entry = Entry { memory, cookies, watches, closed: [false; 2], missed: 0, found: false };
        self.entries.insert(id, entry);
        self.made += 1;
    }

    /// What becomes readable when there is something to [`Registry::bury`].
    pub fn ends(&self) -> Option<BorrowedFd<'_>> {
        self.ends.descriptor()
    }

    /// Goes on with the watches of a predecessor.
    pub fn inherit(&mut self, ends: OwnedFd) {
        self.ends.inherit(ends);
    }

    /// Connections of which the kernel does not tell: those are swept.
    pub fn unwatched(&self) -> usize {
        self.unwatched
    }

    /// Takes out the connections of which the kernel has told that nothing is left, and names them.
    pub fn bury(&mut self) -> Vec<ConnectionId> {
        let mut gone = Vec::new();
        let entries = &mut self.entries;
        let all = self.ends.hear(|id, end| {
            if let Some(entry) = entries.get_mut(&id) {
                entry.watches[end] = None;
                entry.closed[end] = true;
                if entry.closed == [true; 2] {
                    gone.push(id);
                }
            }
        });
        gone.iter().for_each(|&id| {
            self.remove(id);
        });
        if !all {
            tracing::warn!("the kernel told of too many ends at once: connections are looked for instead");
            for entry in self.entries.values_mut() {
                for watch in &mut entry.watches {
                    watch.take().into_iter().for_each(|watch| self.ends.forget(watch));
                }
                entry.closed = [false; 2];
            }
            self.unwatched = self.entries.len();
        }
        gone
    }

    /// Enters a listener's placeholder.
    pub fn insert_listener(&mut self, id: ListenerId, cookie: u64) {
        self.cookies.insert(cookie, Placeholder::Listener(id));
    }

    /// What a socket stands for.
    pub fn find(&self, socket: impl AsFd) -> Option<Placeholder> {
        self.cookies.get(&cookie(socket).ok()?).copied()
    }

    /// A connection's entry.
    pub fn get(&self, id: ConnectionId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// Takes a connection out.
    pub fn remove(&mut self, id: ConnectionId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        for cookie in entry.cookies {
            self.cookies.remove(&cookie);
        }
        let told = |(watch, &closed): (&Option<Watch>, &bool)| watch.is_some() || closed;
        if !entry.watches.iter().zip(&entry.closed).all(told) {
            self.unwatched -= 1;
        }
        entry.watches.into_iter().flatten().for_each(|watch| self.ends.forget(watch));
        Some(entry)
    }

    /// Takes a listener's placeholder out.
    pub fn remove_listener(&mut self, cookie: u64) {
        self.cookies.remove(&cookie);
    }

    /// Connections.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All connections.
    pub fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Entry)> {
        self.entries.iter().map(|(&id, entry)| (id, entry))
    }

    /// How many were entered since the last sweep.
    pub fn made(&self) -> usize {
        self.made
    }

    /// Takes out the connections of which nothing is left, and names them.
    ///
    /// # Errors
    /// Those of netlink; nothing has changed then.
    pub fn sweep(&mut self) -> io::Result<Vec<ConnectionId>> {
        let Self { entries, cookies, .. } = self;
        entries.values_mut().for_each(|entry| entry.found = false);
        every_unix_socket(|cookie| {
            if let Some(Placeholder::End(id, _)) = cookies.get(&cookie)
                && let Some(entry) = entries.get_mut(id)
            {
                entry.found = true;
            }
        })?;
        self.made = 0;
        let mut gone = Vec::new();
        for (&id, entry) in &mut self.entries {
            entry.missed = if entry.found { 0 } else { entry.missed + 1 };
            if entry.missed >= 2 {
                gone.push(id);
            }
        }
        gone.iter().for_each(|&id| {
            self.remove(id);
        });
        Ok(gone)
    }
}

/// Bytes of a netlink header, of the request behind it, and of what comes for each socket.
const HEADER: usize = 16;
const REQUEST: usize = 24;
const SOCKET: usize = 16;
/// `SOCK_DIAG_BY_FAMILY`; `NLM_F_REQUEST | NLM_F_DUMP`; `NLMSG_ERROR`, `NLMSG_DONE`.
const BY_FAMILY: u16 = 20;
const DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// What the kernel puts into one message at most.
const ANSWER: usize = 32 * 1024;

/// Tells the cookie of every Unix socket of this network namespace (`sock_diag(7)`,
/// `unix_diag_req`).
fn every_unix_socket(mut tell: impl FnMut(u64)) -> io::Result<()> {
    let diag = Some(netlink::SOCK_DIAG);
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, diag)?;
    let mut request = [0_u8; HEADER + REQUEST];
    let mut put = |at: usize, bytes: &[u8]| request[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &40_u32.to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &DUMP.to_ne_bytes());
    // Family, and all states.
    put(HEADER, &[1]);
    put(HEADER + 4, &u32::MAX.to_ne_bytes());
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut answer = vec![0_u8; ANSWER];
    loop {
        let (length, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
        let mut rest = answer.get(..length).unwrap_or_default();
        if rest.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while rest.len() >= HEADER {
            let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            let kind = u16::from_ne_bytes([rest[4], rest[5]]);
            match kind {
                DONE => return Ok(()),
                ERROR => return Err(io::Error::other("sock_diag refuses to list Unix sockets")),
                _ => {}
            }
            if let Some(body) = rest.get(HEADER..HEADER + SOCKET) {
                let mut cookie = [0; 8];
                // Two words, the low one first, at the end.
                cookie.copy_from_slice(&body[8..16]);
                tell(u64::from_le_bytes(cookie));
            }
            let next = length.max(HEADER).next_multiple_of(4);
            rest = rest.get(next..).unwrap_or_default();
        }
    }
}

/// The two names as they lie in a private page.
pub(super) fn names(local: SocketAddr, peer: SocketAddr) -> sietch_ring::stream::Names {
    use sietch_protocol::socket_service::Name;
    let (local, peer) = (Name::from(local), Name::from(peer));
    sietch_ring::stream::Names {
        local: local.bytes,
        peer: peer.bytes,
        local_length: local.length,
        peer_length: peer.length,
    }
}

/// A pair of sockets whose ends are the placeholders of a connection, and their cookies.
pub(super) fn placeholders() -> io::Result<([OwnedFd; 2], [u64; 2])> {
    let (first, second) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let cookies = [cookie(&first)?, cookie(&second)?];
    Ok(([first, second], cookies))
}
