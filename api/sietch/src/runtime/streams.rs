//! Streams for tasks: connections and listeners of the socket service.
//!
//! 1. [`Net::streams`] adds the service's [`Poller`] to the loop as a device. Its events wake the
//!    tasks that wait; the loop sleeps on its descriptor.
//! 2. A connection through memory and one through a kernel's socket are the same [`Stream`]. Which
//!    one a client gets depends on the client alone: [`Stream::path`].
//! 3. Without a copy: [`Stream::read_with`] shows received bytes where they are, and
//!    [`Stream::write_with`] puts bytes where they are sent from.
//! 4. Every future can be dropped at any time. `read`, `write`, `readable` and `accept` have then
//!    done nothing; `write_all`, `write_with` and `shutdown` may have sent a part.
//! 5. A dropped stream is closed; unread bytes make that a reset.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use sietch_ring::Untrusted;
use sietch_stream::poller::{Event, Interest, Poller, SleepLimit, Token};
use sietch_stream::service::DirectService;
use sietch_stream::{Connection, Listener, Path, Space};

use super::state::{Driver, Net};
use super::tasks::WakerCell;

/// Calls of one source in one iteration of the loop: some hundred microseconds.
const CALLS_PER_ITERATION: u32 = 64;

/// The tasks that wait for one source.
#[derive(Debug, Default)]
struct Waiting {
    reader: WakerCell,
    writer: WakerCell,
}

/// What the loop and all streams share.
#[derive(Debug)]
struct Sources {
    poller: RefCell<Poller>,
    /// By the index of their token.
    waiting: RefCell<Vec<Option<Rc<Waiting>>>>,
    events: RefCell<Vec<Event>>,
    /// Counts the iterations of the loop.
    iteration: Cell<u64>,
    /// A duplicate of the poller's descriptor, which is borrowed while the loop works.
    doorbell: Rc<OwnedFd>,
}

impl Driver for Sources {
    fn poll(&self, now: u64) -> io::Result<bool> {
        self.iteration.set(self.iteration.get() + 1);
        let mut events = self.events.borrow_mut();
        self.poller.borrow_mut().poll(now, &mut events)?;
        let busy = !events.is_empty();
        for event in events.drain(..) {
            let waiting = self.waiting.borrow().get(event.token.index()).cloned().flatten();
            let Some(waiting) = waiting else { continue };
            if event.ready.data {
                waiting.reader.wake();
            }
            if event.ready.room {
                waiting.writer.wake();
            }
        }
        Ok(busy)
    }

    fn must_poll(&self) -> bool {
        false
    }

    fn prepare_sleep(&self) -> SleepLimit {
        self.poller.borrow_mut().prepare_sleep()
    }

    fn doorbell(&self) -> Option<Rc<OwnedFd>> {
        Some(Rc::clone(&self.doorbell))
    }
}

impl Sources {
    fn add(&self, token: Token) -> Rc<Waiting> {
        let mut all = self.waiting.borrow_mut();
        if all.len() <= token.index() {
            all.resize_with(token.index() + 1, || None);
        }
        let waiting = Rc::new(Waiting::default());
        all[token.index()] = Some(Rc::clone(&waiting));
        waiting
    }
}

/// A source in the loop's poller, which forgets it when this is dropped.
#[derive(Debug)]
struct Registered {
    sources: Rc<Sources>,
    token: Token,
    waiting: Rc<Waiting>,
    /// The iteration of the last call, and the calls in it.
    calls: Cell<(u64, u32)>,
}

impl Registered {
    fn new(sources: &Rc<Sources>, token: Token) -> Self {
        Self { sources: Rc::clone(sources), token, waiting: sources.add(token), calls: Cell::new((0, 0)) }
    }

    /// Makes a call, and waits if it would block, or if the source has had its share of this
    /// iteration: a peer that never stops sending must not keep other tasks waiting.
    fn attempt<T>(
        &self,
        interest: Interest,
        seen: usize,
        context: &Context<'_>,
        call: impl FnOnce() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let (iteration, calls) = self.calls.get();
        let calls = if iteration == self.sources.iteration.get() { calls + 1 } else { 1 };
        self.calls.set((self.sources.iteration.get(), calls));
        if calls <= CALLS_PER_ITERATION {
            match call() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
        let cell = if interest.data { &self.waiting.reader } else { &self.waiting.writer };
        cell.set(context);
        self.sources.poller.borrow_mut().want(self.token, interest, seen);
        Poll::Pending
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.sources.poller.borrow_mut().remove(self.token);
        if let Some(place) = self.sources.waiting.borrow_mut().get_mut(self.token.index()) {
            *place = None;
        }
    }
}

/// The socket service in a runtime; see [`Net::streams`]. Clones share it.
#[derive(Clone, Debug)]
pub struct Streams {
    service: Rc<DirectService>,
    sources: Rc<Sources>,
}

/// A listener; see [`Streams::listen`]. Dropped, it accepts no more, and connections that wait are
/// reset.
#[derive(Debug)]
pub struct StreamListener {
    // Before the listener: the poller watches its descriptor.
    registered: Registered,
    listener: Rc<Listener>,
}

/// A connection; see [`Streams::connect`] and [`StreamListener::accept`].
#[derive(Debug)]
pub struct Stream {
    // Before the connection: the poller watches its descriptor.
    registered: Registered,
    connection: Rc<Connection>,
}

impl Net {
    /// Adds the connections of a socket service to this loop.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn streams(&self, service: DirectService) -> io::Result<Streams> {
        let poller = Poller::new()?;
        let doorbell = Rc::new(poller.as_fd().try_clone_to_owned()?);
        let sources = Rc::new(Sources {
            poller: RefCell::new(poller),
            waiting: RefCell::default(),
            events: RefCell::default(),
            iteration: Cell::new(1),
            doorbell,
        });
        self.0.drivers.borrow_mut().push(Rc::clone(&sources) as Rc<dyn Driver>);
        Ok(Streams { service: Rc::new(service), sources })
    }
}

impl Streams {
    /// Listens on `address`. `backlog` connections and one more wait to be accepted.
    ///
    /// Programs under Sietch reach it through memory, all others through the kernel. While no
    /// socket service runs, all come through the kernel.
    ///
    /// # Errors
    /// As `bind(2)` and `listen(2)`; `PermissionDenied`: a rule of the service forbids it.
    pub fn listen(&self, address: impl Into<SocketAddr>, backlog: u32) -> io::Result<StreamListener> {
        let listener = Rc::new(Listener::bind(&self.service, address.into(), backlog)?);
        let token = self.sources.poller.borrow_mut().add_listener(&listener)?;
        Ok(StreamListener { registered: Registered::new(&self.sources, token), listener })
    }

    /// Connects to `remote`: through memory if a program under Sietch listens there.
    ///
    /// # Errors
    /// As `connect(2)`.
    pub async fn connect(&self, remote: impl Into<SocketAddr>) -> io::Result<Stream> {
        let stream = self.stream(Connection::connect(&*self.service, remote.into())?)?;
        poll_fn(|context| {
            stream.registered.attempt(Interest::ROOM, 0, context, || stream.connection.try_connected())
        })
        .await?;
        Ok(stream)
    }

    fn stream(&self, connection: Connection) -> io::Result<Stream> {
        Stream::new(&self.sources, connection)
    }
}

impl StreamListener {
    /// Waits for the next connection. Returns it and the address of its peer.
    ///
    /// # Errors
    /// No descriptor is left: the connection goes on waiting. `PermissionDenied`: the application
    /// was revoked.
    pub async fn accept(&mut self) -> io::Result<(Stream, Option<SocketAddr>)> {
        let connection = poll_fn(|context| {
            loop {
                match self.registered.attempt(Interest::DATA, 0, context, || self.listener.try_accept()) {
                    // That connection has ended while it waited.
                    Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    accepted => return accepted,
                }
            }
        })
        .await?;
        let peer = connection.peer();
        Ok((Stream::new(&self.registered.sources, connection)?, peer))
    }

    /// The address, with the port that the kernel has chosen if none was given.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.address()
    }

    /// Whether a socket service passes connections on now.
    pub fn is_registered(&self) -> bool {
        self.listener.is_registered()
    }
}

impl Stream {
    fn new(sources: &Rc<Sources>, connection: Connection) -> io::Result<Self> {
        let connection = Rc::new(connection);
        let token = sources.poller.borrow_mut().add_connection(&connection)?;
        Ok(Self { registered: Registered::new(sources, token), connection })
    }

    /// Through memory, or through the kernel.
    pub fn path(&self) -> Path {
        self.connection.path()
    }

    /// The own address.
    pub fn local(&self) -> Option<SocketAddr> {
        self.connection.local()
    }

    /// The peer's address.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.connection.peer()
    }

    /// Bytes that have arrived, as far as they are known without a system call.
    pub fn available(&self) -> usize {
        self.connection.available()
    }

    /// Copies what has arrived, waiting for the first byte; 0 is the end of the stream (or an empty
    /// `out`).
    ///
    /// # Errors
    /// The connection was reset, or revoked.
    pub async fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| {
            self.registered.attempt(Interest::DATA, 0, context, || self.connection.try_read(out))
        })
        .await
    }

    /// Fills `out`.
    ///
    /// # Errors
    /// As for `read`, and if the stream ends before.
    pub async fn read_exact(&mut self, out: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < out.len() {
            match self.read(&mut out[filled..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Shows what has arrived, where it is, waiting for the first byte. `take` gets two pieces,
    /// the second empty unless the ring wraps, and returns how many bytes it has used. Returns that
    /// number, or `None` at the end of the stream.
    ///
    /// # Errors
    /// As for `read`.
    pub async fn read_with(
        &mut self,
        mut take: impl FnMut([Untrusted<'_>; 2]) -> usize,
    ) -> io::Result<Option<usize>> {
        poll_fn(|context| {
            let call = || self.connection.try_read_with(&mut take);
            self.registered.attempt(Interest::DATA, 0, context, call)
        })
        .await
    }

    /// Waits until more than `bytes` bytes wait to be read: true; or until no more will come:
    /// false.
    ///
    /// # Errors
    /// `InvalidInput`: so many cannot be waited for ([`sietch_stream::MOST_WAITING`]).
    pub async fn more_than(&mut self, bytes: usize) -> io::Result<bool> {
        poll_fn(|context| {
            let call = || self.connection.try_more_than(bytes);
            self.registered.attempt(Interest::DATA, bytes, context, call)
        })
        .await
    }

    /// Queues as many of `bytes` as there is room for, waiting for room for one. Returns how many.
    ///
    /// # Errors
    /// The peer has closed, or the connection was reset or revoked.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| {
            self.registered.attempt(Interest::ROOM, 0, context, || self.connection.try_write(bytes))
        })
        .await
    }

    /// Queues all of `bytes`. If the future is dropped before the end, a part may have been queued.
    ///
    /// # Errors
    /// As for `write`.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = self.write(bytes).await?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Has `fill` put bytes where they are sent from, once there is room for one; the peer sees
    /// them together. Returns how many. Through the kernel it returns when the kernel has taken
    /// them.
    ///
    /// # Errors
    /// As for `write`.
    pub async fn write_with(&mut self, fill: impl FnOnce(&mut Space<'_>)) -> io::Result<usize> {
        let mut fill = Some(fill);
        let put = poll_fn(|context| {
            let call = || {
                self.connection.try_write_with(|space| {
                    if let Some(fill) = fill.take() {
                        fill(space);
                    }
                })
            };
            self.registered.attempt(Interest::ROOM, 0, context, call)
        })
        .await?;
        self.flush().await?;
        Ok(put)
    }

    async fn flush(&self) -> io::Result<()> {
        if self.path() == Path::Memory {
            return Ok(());
        }
        poll_fn(|context| self.registered.attempt(Interest::ROOM, 0, context, || self.connection.try_flush()))
            .await
    }

    /// Sends nothing more after what is queued: the peer sees the end of the stream.
    ///
    /// # Errors
    /// The connection is over.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.connection.try_shutdown()
    }

    /// Resets the connection: what the peer has not read is lost.
    pub fn abort(self) {
        self.connection.abort_on_close();
    }
}

#[cfg(test)]
mod tests;
