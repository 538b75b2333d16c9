//! Kernel sockets through epoll, for where io_uring is refused (many containers do).
//!
//! 1. Level-triggered: what is not read now is reported again.
//! 2. A readable connection is read once an iteration, up to one buffer: a fast peer cannot starve
//!    the others.
//! 3. A connection that has had enough is not polled for reading at all.
//! 4. Bytes are sent at once; what the kernel does not take stays with the owner, whose
//!    [`Handler::writable`] is called later.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags};

use sietch_structures::{Key, Slab};

use crate::accept_pause::AcceptPause;
use crate::address;
use crate::handler::{Appetite, ConnectionId, Handler, Verdict};
use crate::limits::RECEIVE_BYTES;

/// Events taken in one iteration.
const BATCH: usize = 256;

/// Connections accepted in one iteration: established ones must continue meanwhile.
const ACCEPTS: usize = 64;

const LISTENER: u64 = 1 << 62;
const WATCH: u64 = 1 << 63;

/// The word that the kernel returns with each event of a connection. The two highest bits
/// distinguish listeners and watches from connections, so two bits of the generation are left out.
const fn token(key: Key) -> u64 {
    key.to_word() & !(LISTENER | WATCH)
}

struct Connection {
    socket: OwnedFd,
    user: u64,
    reading: bool,
    writing: bool,
    ended: bool,
}

/// The epoll implementation of a socket queue.
pub struct Epoll {
    poll: OwnedFd,
    /// `None` once its listening was ended.
    listeners: Vec<Option<OwnedFd>>,
    watches: Vec<Option<(OwnedFd, u64)>>,
    connections: Slab<Connection>,
    pause: AcceptPause,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Epoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoll").finish_non_exhaustive()
    }
}

impl Epoll {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            poll: epoll::create(CreateFlags::CLOEXEC)?,
            listeners: Vec::new(),
            watches: Vec::new(),
            connections: Slab::new(),
            pause: AcceptPause::default(),
            events: Vec::with_capacity(BATCH),
            buffer: vec![0; RECEIVE_BYTES],
        })
    }

    pub(crate) fn listen(&mut self, socket: OwnedFd) -> io::Result<()> {
        let token = LISTENER | self.listeners.len() as u64;
        epoll::add(&self.poll, &socket, EventData::new_u64(token), EventFlags::IN)?;
        self.listeners.push(Some(socket));
        Ok(())
    }

    pub(crate) fn watch(&mut self, descriptor: OwnedFd, token: u64) -> io::Result<()> {
        let place = WATCH | self.watches.len() as u64;
        // Edge-triggered, as io_uring's polls are: a doorbell that its owner does not drain is
        // reported once, not for ever.
        epoll::add(&self.poll, &descriptor, EventData::new_u64(place), EventFlags::IN | EventFlags::ET)?;
        self.watches.push(Some((descriptor, token)));
        Ok(())
    }

    pub(crate) fn unwatch(&mut self, token: u64) {
        for watch in &mut self.watches {
            if let Some((descriptor, _)) = watch.take_if(|(_, known)| *known == token) {
                // It cannot fail for a descriptor that is in the set. Closing it alone would not
                // take it out while another process or queue holds the same file.
                let _ = epoll::delete(&self.poll, &descriptor);
            }
        }
    }

    pub(crate) fn set_keepalive(&self, seconds: u64) {
        for listener in self.listeners.iter().flatten() {
            address::set_keepalive(listener, seconds);
        }
    }

    pub(crate) fn poll(&mut self, handler: &mut impl Handler) -> io::Result<usize> {
        if self.pause.end_if_over() {
            self.poll_listeners(true);
        }
        if self.events.is_empty() {
            self.take(Some(Duration::ZERO))?;
        }
        let events = std::mem::take(&mut self.events);
        for event in &events {
            let place = event.data.u64();
            if place & WATCH != 0 {
                if let Some(Some((_, token))) = self.watches.get((place & !WATCH) as usize) {
                    handler.doorbell(*token);
                }
            } else if place & LISTENER != 0 {
                self.accept((place & !LISTENER) as usize, handler);
            } else {
                self.serve(place, event.flags, handler);
            }
        }
        let count = events.len();
        self.events = events;
        self.events.clear();
        Ok(count)
    }

    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.events.is_empty() { self.take(self.pause.limit(timeout)) } else { Ok(()) }
    }

    fn take(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let limit = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut raw = [const { MaybeUninit::<epoll::Event>::uninit() }; BATCH];
        match epoll::wait(&self.poll, &mut raw[..], limit.as_ref()) {
            Ok((events, _)) => {
                self.events.extend_from_slice(events);
                Ok(())
            }
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn adopt(&mut self, socket: OwnedFd, handler: &mut impl Handler) {
        if address::prepare(&socket).is_ok() {
            self.admit(socket, handler);
        }
    }

    fn accept(&mut self, place: usize, handler: &mut impl Handler) {
        for _ in 0..ACCEPTS {
            let Some(Some(listener)) = self.listeners.get(place) else {
                return;
            };
            match net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.admit(socket, handler),
                // Readable for ever, and nothing to be done about it before a connection has ended.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
                    if !self.connections.is_empty() =>
                {
                    self.pause.begin();
                    return self.poll_listeners(false);
                }
                // It was shut down, and would be reported for ever.
                Err(Errno::INVAL) => {
                    let _ = epoll::delete(&self.poll, listener);
                    self.listeners[place] = None;
                    return;
                }
                // A peer that has disconnected again, or nothing left: the listener stays readable
                // if there is more.
                Err(_) => return,
            }
        }
    }

    /// Polls the listeners, or does not while there is no descriptor for a new connection.
    fn poll_listeners(&mut self, on: bool) {
        let flags = if on { EventFlags::IN } else { EventFlags::empty() };
        for (number, listener) in self.listeners.iter().enumerate() {
            let Some(listener) = listener else { continue };
            // It cannot fail for a descriptor that is in the set, and every listener is.
            let _ = epoll::modify(&self.poll, listener, EventData::new_u64(LISTENER | number as u64), flags);
        }
    }

    /// Takes a connection out, and continues accepting if that had waited for its descriptor.
    fn remove(&mut self, index: u32) -> Option<Connection> {
        let connection = self.connections.remove_at(index);
        if self.pause.end() {
            self.poll_listeners(true);
        }
        connection
    }

    fn admit(&mut self, socket: OwnedFd, handler: &mut impl Handler) {
        let peer = address::peer(&socket);
        let Some(local) = address::local(&socket) else {
            return;
        };
        let connection = Connection { socket, user: 0, reading: true, writing: false, ended: false };
        let id = ConnectionId(self.connections.insert(connection));
        match handler.accepted(id, peer, local) {
            Verdict::Accept(user) => {
                let Some(connection) = self.connections.get_mut(id.0) else {
                    return;
                };
                connection.user = user;
                let data = EventData::new_u64(token(id.0));
                if epoll::add(&self.poll, &connection.socket, data, EventFlags::IN).is_err() {
                    self.remove(id.0.index());
                    handler.broken(user);
                }
            }
            Verdict::Refuse(words) => {
                if let Some(connection) = self.remove(id.0.index()) {
                    address::refuse(connection.socket, words);
                }
            }
            Verdict::Release => {
                // Its descriptor stays in use.
                if let Some(connection) = self.connections.remove_at(id.0.index()) {
                    handler.released(connection.socket);
                }
            }
        }
    }

    fn serve(&mut self, place: u64, flags: EventFlags, handler: &mut impl Handler) {
        let index = (place & u64::from(u32::MAX)) as u32;
        // A connection that ended earlier in this very batch may still have an event.
        if self.connections.key_at(index).is_none_or(|key| token(key) != place) {
            return;
        }
        let Some(connection) = self.connections.at_mut(index) else {
            return;
        };
        let user = connection.user;
        if flags.contains(EventFlags::OUT) {
            connection.writing = false;
            self.interest(index);
            handler.writable(user);
        }
        let Some(connection) = self.connections.at_mut(index) else {
            return;
        };
        if flags.contains(EventFlags::ERR) || (flags.contains(EventFlags::HUP) && connection.ended) {
            self.remove(index);
            handler.broken(user);
        } else if connection.reading
            && !connection.ended
            && flags.intersects(EventFlags::IN | EventFlags::HUP)
        {
            self.read(index, handler);
        } else if flags.contains(EventFlags::HUP) && !connection.reading {
            // Both directions are shut, and the owner does not read the rest.
            self.remove(index);
            handler.broken(user);
        }
    }

    fn read(&mut self, index: u32, handler: &mut impl Handler) {
        let Some(connection) = self.connections.at_mut(index) else {
            return;
        };
        let user = connection.user;
        match net::recv(&connection.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                connection.ended = true;
                self.interest(index);
                handler.ended(user);
            }
            Ok((count, _)) => {
                if handler.received(user, &self.buffer[..count]) == Appetite::Enough {
                    connection.reading = false;
                    self.interest(index);
                }
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => {
                self.remove(index);
                handler.broken(user);
            }
        }
    }

    /// Tells the kernel what to poll a connection for.
    fn interest(&mut self, index: u32) {
        let Some(key) = self.connections.key_at(index) else {
            return;
        };
        let Some(connection) = self.connections.at_mut(index) else {
            return;
        };
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, connection.reading && !connection.ended);
        flags.set(EventFlags::OUT, connection.writing);
        // It cannot fail for a descriptor that is in the set, and every connection's is.
        let _ = epoll::modify(&self.poll, &connection.socket, EventData::new_u64(token(key)), flags);
    }

    pub(crate) fn send(&mut self, id: ConnectionId, bytes: &[u8]) -> usize {
        let Some(connection) = self.connections.get_mut(id.0) else {
            return bytes.len();
        };
        let sent = match net::send(&connection.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => sent,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            // The peer is dead; polling reports it. The bytes have nowhere to go.
            Err(_) => bytes.len(),
        };
        if sent < bytes.len() && !connection.writing {
            connection.writing = true;
            self.interest(id.0.index());
        }
        sent
    }

    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "the same shape as the io_uring queue")]
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn resume(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(id.0)
            && !connection.reading
        {
            connection.reading = true;
            self.interest(id.0.index());
        }
    }

    pub(crate) fn close(&mut self, id: ConnectionId) {
        if self.connections.get(id.0).is_some()
            && let Some(connection) = self.remove(id.0.index())
        {
            address::bound_last_bytes(&connection.socket);
        }
    }
}
