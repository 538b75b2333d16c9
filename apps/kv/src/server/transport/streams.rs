//! Clients through memory: programs under `sietch run`, which reach the store's listening socket
//! through the socket service.
//!
//! 1. [`StreamTransport::open`] makes the listening socket and offers it to the service. The
//!    kernel's clients do not depend on the service: kernel sockets accept from the same socket
//!    ([`StreamTransport::kernel_listener`]). Without a service all clients are the kernel's, and
//!    the socket is offered again ([`sietch::stream::Listener`]).
//! 2. [`StreamTransport::poll`] accepts what has arrived, up to [`ACCEPTS`] connections. A client
//!    of the kernel that the service was faster to accept arrives as its socket, and is left for
//!    the kernel sockets ([`StreamTransport::take_kernel_clients`]).
//! 3. It takes up to [`READ_BYTES`] from each connection that has something, and feeds them to its
//!    client. The peer can change its memory at any time. So bytes are copied out once, and the
//!    copy is parsed. What is left is reported by the next poll, so no client waits for a long
//!    pipeline of another.
//! 4. While a client has too much output, its input stays in the ring, which fills.
//! 5. [`StreamTransport::send`] copies released replies into the ring. All of an iteration are
//!    published together, with one doorbell at most. Without room they stay with the client, and
//!    the poller reports room: no bytes are buffered here.
//! 6. Before the server sleeps, [`StreamTransport::prepare_sleep`] makes peers notify the poller's
//!    descriptor, and checks once more.
//! 7. A connection that fails, or whose memory is invalid, ends with its client. Nothing that a
//!    peer writes has any other effect here.
//!
//! A core that does not accept ([`StreamTransport::without_listener`]) gets its connections from
//! the one that does ([`StreamTransport::adopt`], [`super::spread`]).
//!
//! If the application is revoked, the service ends the listening socket and resets the connections.
//! The server then listens on a new socket of the kernel alone ([`StreamTransport::take_ended`]).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use sietch::stream::poller::{Event, Interest, Poller, SleepLimit, Token};
use sietch::stream::service::DirectService;
use sietch::stream::{Arrived, Connection as Stream, Listener};

use super::routes::{Connection, Routes};
use super::spread::{NewClient, Spread};
use crate::foundation::client_id::ClientId;
use crate::foundation::client_path::ClientPath;
use crate::shard::{Now, PROTECTED, Refused, Shard};

/// Connections that may wait to be accepted, as for kernel sockets.
const BACKLOG: u32 = sietch_socket::BACKLOG.cast_unsigned();

/// Connections accepted in one iteration: established ones must continue meanwhile.
const ACCEPTS: usize = 64;

/// Bytes taken from one connection in one iteration: few system calls of a peer that sends much,
/// and a copy that stays in the second-level cache until it is parsed.
const READ_BYTES: usize = 64 << 10;

/// Nanoseconds until the next connection is accepted after there was no descriptor for one.
const DESCRIPTOR_PAUSE: u64 = 100_000_000;

/// A connection of a client.
#[derive(Debug)]
struct Entry {
    token: Token,
    client: ClientId,
    stream: Rc<Stream>,
}

/// The connection has failed, and is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) struct Broken;

/// Connections through memory, and the listener on which they arrive.
#[derive(Debug)]
pub(in crate::server) struct StreamTransport {
    /// Where connections arrive; none on a core that does not accept.
    listener: Option<Rc<Listener>>,
    /// The listener in the poller; none once it has ended.
    accepting: Option<Token>,
    /// The application was revoked: the address on which the server has to listen again.
    ended: Option<SocketAddr>,
    poller: Poller,
    events: Vec<Event>,
    /// By the index of their token.
    entries: Vec<Option<Entry>>,
    clients: usize,
    /// What was read from a connection.
    buffer: Box<[u8]>,
    /// Sockets of the kernel's clients that the service accepted.
    kernel_clients: Vec<OwnedFd>,
    /// No descriptor was left: when the next connection is accepted, in monotonic nanoseconds.
    accept_after: Option<u64>,
}

impl StreamTransport {
    /// Listens on `address`, and offers the socket to `service`.
    ///
    /// # Errors
    /// As `bind(2)` and `listen(2)`; a rule of the service forbids it.
    pub(in crate::server) fn open(service: DirectService, address: SocketAddr) -> io::Result<Self> {
        let listener = Rc::new(Listener::bind(&Rc::new(service), address, BACKLOG)?);
        let mut poller = Poller::new()?;
        let token = poller.add_listener(&listener)?;
        poller.want(token, Interest::DATA, 0);
        let (listener, accepting) = (Some(listener), Some(token));
        Ok(Self { listener, accepting, ..Self::on(poller) })
    }

    /// Serves connections that another core accepts.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(in crate::server) fn without_listener() -> io::Result<Self> {
        Poller::new().map(Self::on)
    }

    fn on(poller: Poller) -> Self {
        Self {
            listener: None,
            accepting: None,
            ended: None,
            poller,
            events: Vec::new(),
            entries: Vec::new(),
            clients: 0,
            buffer: vec![0; READ_BYTES].into(),
            kernel_clients: Vec::new(),
            accept_after: None,
        }
    }

    /// The address that it listens on, with its port.
    pub(in crate::server) fn address(&self) -> Option<SocketAddr> {
        self.listener.as_ref()?.address()
    }

    /// The listening socket, from which kernel sockets accept from now on.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(in crate::server) fn kernel_listener(&self) -> io::Result<OwnedFd> {
        self.listener
            .as_ref()
            .map_or(Err(io::ErrorKind::NotConnected.into()), |listener| listener.split_kernel())
    }

    /// Whether the service passes connections on now.
    pub(in crate::server) fn is_registered(&self) -> bool {
        self.accepting.is_some() && self.listener.as_ref().is_some_and(|listener| listener.is_registered())
    }

    /// The address, once, if the listening socket was ended because the application was revoked.
    pub(in crate::server) fn take_ended(&mut self) -> Option<SocketAddr> {
        self.ended.take()
    }

    /// Whether there are rings to poll.
    pub(in crate::server) fn has_clients(&self) -> bool {
        self.clients > 0
    }

    /// Becomes readable when something has happened that [`StreamTransport::prepare_sleep`] has
    /// requested.
    pub(in crate::server) fn doorbell(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// The doorbell may have been notified. It is reported once: the next poll asks what for.
    pub(in crate::server) fn note_doorbell(&mut self) {
        self.poller.note_report();
    }

    /// Has peers notify the doorbell. Returns how long the server may sleep.
    pub(in crate::server) fn prepare_sleep(&mut self) -> SleepLimit {
        self.poller.prepare_sleep()
    }

    /// When connections are accepted again, if that is bounded, in monotonic nanoseconds.
    pub(in crate::server) fn next_deadline(&self) -> Option<u64> {
        self.accept_after
    }

    /// Takes the kernel's clients that have arrived.
    pub(in crate::server) fn take_kernel_clients(&mut self) -> impl Iterator<Item = OwnedFd> {
        self.kernel_clients.drain(..)
    }

    /// Accepts connections and feeds what has arrived to the clients. Returns whether anything
    /// happened. Clients that have room for output again are appended to `writable`. `ending`: the
    /// store ends, and nothing is accepted or read. `spread` passes connections on to other cores.
    pub(in crate::server) fn poll(
        &mut self,
        shard: &mut Shard,
        routes: &mut Routes,
        writable: &mut Vec<ClientId>,
        now: Now,
        ending: bool,
        mut spread: Option<&mut Spread>,
    ) -> bool {
        if self.accept_after.is_some_and(|due| due <= now.monotonic_ns) {
            self.accept_after = None;
            self.want_connections();
        }
        let mut events = std::mem::take(&mut self.events);
        // It fails if its descriptor is broken, which the next sleep reports.
        let _ = self.poller.poll(now.monotonic_ns, &mut events);
        let busy = !events.is_empty();
        for event in events.drain(..) {
            if Some(event.token) == self.accepting {
                if !ending {
                    self.accept(shard, routes, now, spread.as_deref_mut());
                }
                continue;
            }
            let Some(entry) = self.entry(event.token) else { continue };
            let id = entry.client;
            if event.ready.data && !ending {
                self.read(event.token, shard, routes, now);
            }
            if event.ready.room {
                writable.push(id);
            }
        }
        self.events = events;
        busy
    }

    fn want_connections(&mut self) {
        if let Some(token) = self.accepting {
            self.poller.want(token, Interest::DATA, 0);
        }
    }

    fn accept(&mut self, shard: &mut Shard, routes: &mut Routes, now: Now, mut spread: Option<&mut Spread>) {
        let Some(listener) = self.listener.clone() else { return };
        for _ in 0..ACCEPTS {
            match listener.try_take() {
                Ok(Arrived::Memory(stream)) => match spread.as_deref_mut().and_then(Spread::choose_other) {
                    Some(spread) => spread.pass(NewClient::Memory(stream)),
                    None => self.adopt(stream, shard, routes, now),
                },
                Ok(Arrived::Kernel(socket)) => self.kernel_clients.push(socket),
                Err(cause) => match cause.kind() {
                    io::ErrorKind::WouldBlock => break,
                    // That connection has ended while it waited.
                    io::ErrorKind::ConnectionAborted => {}
                    io::ErrorKind::PermissionDenied => {
                        if let Some(token) = self.accepting.take() {
                            self.poller.remove(token);
                            self.ended = listener.address();
                        }
                        return;
                    }
                    // No descriptor is left. The connection goes on waiting.
                    _ => {
                        self.accept_after = Some(now.monotonic_ns.saturating_add(DESCRIPTOR_PAUSE));
                        return;
                    }
                },
            }
        }
        self.want_connections();
    }

    /// Makes a connection a client, or sends it the reason why not.
    pub(in crate::server) fn adopt(
        &mut self,
        stream: Stream,
        shard: &mut Shard,
        routes: &mut Routes,
        now: Now,
    ) {
        let (Some(peer), Some(local)) = (stream.peer(), stream.local()) else { return };
        let admitted = if shard.refuses(peer.ip()) {
            Err(PROTECTED)
        } else {
            shard.connect(peer, local, now).map_err(Refused::reply)
        };
        let client = match admitted {
            Ok(client) => client,
            Err(last_words) => {
                // It has room in its empty ring, unless the peer is closed already.
                let _ = stream.try_write(last_words);
                return end(&stream);
            }
        };
        let stream = Rc::new(stream);
        let Ok(token) = self.poller.add_connection(&stream) else {
            // The user's limit of watches is reached.
            shard.disconnect(client);
            return;
        };
        shard.set_path(client, ClientPath::Memory);
        routes.insert(client, Connection::Stream(token));
        if self.entries.len() <= token.index() {
            self.entries.resize_with(token.index() + 1, || None);
        }
        self.entries[token.index()] = Some(Entry { token, client, stream });
        self.clients += 1;
        self.poller.want(token, Interest::DATA, 0);
    }

    fn entry(&self, token: Token) -> Option<&Entry> {
        self.entries.get(token.index())?.as_ref().filter(|entry| entry.token == token)
    }

    /// Feeds what a connection has received to its client, as far as the client accepts input.
    fn read(&mut self, token: Token, shard: &mut Shard, routes: &mut Routes, now: Now) {
        let Some(entry) = self.entries.get(token.index()).and_then(Option::as_ref) else { return };
        let id = entry.client;
        let Some(route) = routes.get(id) else { return };
        if !shard.accepts_input(id) {
            route.stalled = true;
            return;
        }
        match entry.stream.try_read(&mut self.buffer) {
            Ok(0) => {
                route.ended = true;
                return shard.end_of_input(id);
            }
            Ok(count) => {
                shard.feed(id, &self.buffer[..count], now);
                route.stalled = !shard.accepts_input(id);
                if route.stalled {
                    return;
                }
            }
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => {
                routes.remove(id);
                shard.disconnect(id);
                return self.forget(token);
            }
        }
        self.poller.want(token, Interest::DATA, 0);
    }

    /// Reads from a connection again whose client accepts input.
    pub(in crate::server) fn resume(&mut self, token: Token) {
        self.poller.want(token, Interest::DATA, 0);
    }

    /// Takes as many of `bytes` as the ring has room for, and returns how many. If that is not all,
    /// the client is reported as writable later.
    pub(in crate::server) fn send(&mut self, token: Token, bytes: &[u8]) -> Result<usize, Broken> {
        let Some(entry) = self.entry(token) else { return Err(Broken) };
        let sent = match entry.stream.try_write(bytes) {
            Ok(sent) => sent,
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => 0,
            Err(_) => return Err(Broken),
        };
        if sent < bytes.len() {
            self.poller.want(token, Interest::ROOM, 0);
        }
        Ok(sent)
    }

    /// Closes a connection. The peer can read what was sent.
    pub(in crate::server) fn close(&mut self, token: Token) {
        if let Some(entry) = self.entry(token) {
            end(&entry.stream);
        }
        self.forget(token);
    }

    fn forget(&mut self, token: Token) {
        self.poller.remove(token);
        if self.entry(token).is_some() {
            self.entries[token.index()] = None;
            self.clients -= 1;
        }
    }
}

/// Drops input, which would make the end of the connection a reset.
fn end(stream: &Stream) {
    let _ = stream.try_read_with(|pieces| pieces[0].len() + pieces[1].len());
}
