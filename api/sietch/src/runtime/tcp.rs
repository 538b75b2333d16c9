//! TCP for tasks.
//!
//! 1. Each connection has a state that its handles and the loop share: who waits to read, who to
//!    write, and how it ended. The engine's events find it by the number attached to the flow.
//! 2. Reading is zero-copy where wanted: [`TcpStream::readable`] waits, [`TcpStream::peek`] borrows
//!    what lies in the flow's receive ring, [`TcpStream::consume`] lets go of it.
//!    [`TcpStream::read`] copies. [`TcpStream::take`] hands over the very buffer in which bytes
//!    arrived, to be kept for as long as the application likes.
//! 3. Writing copies into the flow's send ring, where bytes stay until they are acknowledged. A
//!    full ring waits. [`TcpStream::lend`] shares the application's own bytes instead, which it
//!    gets back when they are acknowledged; both keep their order.
//! 4. Every future can be dropped at any time. `read`, `write`, `readable` and `accept` have then
//!    done nothing; `write_all` may have sent a part.
//! 5. A dropped stream is closed: what was written is still sent. Received bytes that nobody read
//!    make the engine reset the connection, as RFC 2525 section 2.17 wants it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use sietch_net::{
    CloseReason, ConnectError, Event, EventKind, FlowId, FlowInfo, ReceivedBuffer, SharedBytes, State, limits,
};

use super::Net;
use super::tasks::Waiting;

/// What is lent of a long body at a time: the next part is lent while the one before is on its way.
const LENT_PIECE: usize = limits::ZERO_COPY_BYTES / 8;

/// What the loop and the handles of a connection share.
#[derive(Debug)]
pub(super) struct Connection {
    flow: FlowId,
    reader: Waiting,
    writer: Waiting,
    connected: Cell<bool>,
    /// The peer sends nothing more.
    ended: Cell<bool>,
    over: Cell<Option<CloseReason>>,
}

impl Connection {
    fn new(flow: FlowId, connected: bool) -> Rc<Self> {
        Rc::new(Self {
            flow,
            reader: Waiting::default(),
            writer: Waiting::default(),
            connected: Cell::new(connected),
            ended: Cell::new(false),
            over: Cell::new(None),
        })
    }

    fn happened(&self, kind: EventKind) {
        match kind {
            EventKind::Readable => self.reader.wake(),
            EventKind::PeerClosed => {
                self.ended.set(true);
                self.reader.wake();
            }
            EventKind::Writable => self.writer.wake(),
            EventKind::Connected => {
                self.connected.set(true);
                self.writer.wake();
            }
            EventKind::Closed(reason) => {
                self.over.set(Some(reason));
                self.reader.wake();
                self.writer.wake();
            }
            _ => {}
        }
    }
}

/// All connections, by the number attached to their flows (less one: zero is none).
#[derive(Debug, Default)]
pub(super) struct Connections {
    all: Vec<Option<Rc<Connection>>>,
    free: Vec<usize>,
}

impl Connections {
    fn insert(&mut self, connection: &Rc<Connection>) -> u64 {
        let connection = Some(Rc::clone(connection));
        let index = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        self.all[index] = connection;
        index as u64 + 1
    }

    fn get(&self, user: u64) -> Option<&Rc<Connection>> {
        self.all.get(usize::try_from(user).ok()?.checked_sub(1)?)?.as_ref()
    }

    fn remove(&mut self, user: u64) {
        let index = usize::try_from(user).ok().and_then(|user| user.checked_sub(1));
        if let Some(index) = index
            && self.all.get_mut(index).and_then(Option::take).is_some()
        {
            self.free.push(index);
        }
    }
}

/// A listening port.
#[derive(Debug)]
pub(super) struct Port {
    port: u16,
    backlog: usize,
    waiting: RefCell<VecDeque<(TcpStream, SocketAddr)>>,
    acceptor: Waiting,
}

/// Tells connections and listeners what has happened.
pub(super) fn dispatch(net: &Net, events: &mut Vec<Event>) {
    // The flow's number is set when it is accepted; its other events of that very batch, which
    // follow, do not carry it yet.
    let mut newest: Option<Rc<Connection>> = None;
    for event in events.drain(..) {
        match event.kind {
            EventKind::Datagram { port } => super::udp::arrived(net, port),
            EventKind::Accepted { port, remote } => newest = accepted(net, event.flow, port, remote),
            kind => {
                let connections = net.0.connections.borrow();
                let known = connections.get(event.user).or(newest.as_ref());
                if let Some(connection) = known.filter(|connection| connection.flow == event.flow) {
                    connection.happened(kind);
                }
            }
        }
    }
}

fn accepted(net: &Net, flow: FlowId, port: u16, remote: SocketAddr) -> Option<Rc<Connection>> {
    let listening = net.0.ports.borrow().iter().find(|listening| listening.port == port).cloned();
    let listening = listening.filter(|listening| listening.waiting.borrow().len() < listening.backlog);
    let Some(listening) = listening else {
        net.0.engine.borrow_mut().abort(flow);
        return None;
    };
    let stream = TcpStream::adopt(net, flow, true);
    let connection = Rc::clone(&stream.half.connection);
    listening.waiting.borrow_mut().push_back((stream, remote));
    listening.acceptor.wake();
    Some(connection)
}

/// A listening port; see [`Net::listen`]. Dropped, it accepts no more.
#[derive(Debug)]
pub struct TcpListener {
    net: Net,
    port: Rc<Port>,
}

impl TcpListener {
    /// The next connection, and who made it.
    ///
    /// # Errors
    /// None so far.
    pub async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        std::future::poll_fn(|context| self.poll_accept(context)).await
    }

    fn poll_accept(&mut self, context: &Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        if let Some(accepted) = self.port.waiting.borrow_mut().pop_front() {
            return Poll::Ready(Ok(accepted));
        }
        self.port.acceptor.set(context);
        Poll::Pending
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port.port
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.net.0.engine.borrow_mut().unlisten(self.port.port);
        self.net.0.ports.borrow_mut().retain(|port| port.port != self.port.port);
        // Whoever was not accepted is closed, with nothing borrowed.
        let waiting = std::mem::take(&mut *self.port.waiting.borrow_mut());
        drop(waiting);
    }
}

/// One side of a stream's handles: the connection, closed with the last of them.
#[derive(Debug)]
struct Half {
    net: Net,
    connection: Rc<Connection>,
    user: u64,
}

impl Drop for Half {
    fn drop(&mut self) {
        self.net.0.connections.borrow_mut().remove(self.user);
        if self.connection.over.get().is_none() {
            self.net.0.engine.borrow_mut().close(self.connection.flow);
        }
    }
}

impl Half {
    fn failure(&self) -> io::Error {
        let kind = match self.connection.over.get() {
            Some(CloseReason::Reset) => io::ErrorKind::ConnectionReset,
            Some(CloseReason::TimedOut) => io::ErrorKind::TimedOut,
            Some(CloseReason::Refused) => io::ErrorKind::ConnectionRefused,
            Some(CloseReason::Unreachable) => io::ErrorKind::HostUnreachable,
            // Ours or both sides are closed: nothing can be written any more.
            _ => io::ErrorKind::BrokenPipe,
        };
        kind.into()
    }

    fn poll_connected(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        if self.connection.over.get().is_some() {
            return Poll::Ready(Err(self.failure()));
        }
        if self.connection.connected.get() {
            return Poll::Ready(Ok(()));
        }
        self.connection.writer.set(context);
        Poll::Pending
    }

    fn poll_readable(&self, context: &Context<'_>) -> Poll<io::Result<bool>> {
        let engine = self.net.0.engine.borrow();
        if !engine.received(self.connection.flow).0.is_empty() {
            return Poll::Ready(Ok(true));
        }
        if engine.at_end(self.connection.flow) {
            return Poll::Ready(Ok(false));
        }
        match self.connection.over.get() {
            Some(CloseReason::Normal) => Poll::Ready(Ok(false)),
            Some(_) => Poll::Ready(Err(self.failure())),
            None => {
                self.connection.reader.set(context);
                Poll::Pending
            }
        }
    }

    fn poll_more_than(&self, bytes: usize, context: &Context<'_>) -> Poll<io::Result<bool>> {
        let engine = self.net.0.engine.borrow();
        let (first, second) = engine.received(self.connection.flow);
        if first.len() + second.len() > bytes {
            return Poll::Ready(Ok(true));
        }
        match self.connection.over.get() {
            Some(CloseReason::Normal) => Poll::Ready(Ok(false)),
            Some(_) => Poll::Ready(Err(self.failure())),
            None if self.connection.ended.get() => Poll::Ready(Ok(false)),
            None => {
                self.connection.reader.set(context);
                Poll::Pending
            }
        }
    }

    async fn readable(&self) -> io::Result<bool> {
        std::future::poll_fn(|context| self.poll_readable(context)).await
    }

    async fn read(&self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() || !self.readable().await? {
            return Ok(0);
        }
        Ok(self.net.0.engine.borrow_mut().read(self.connection.flow, out))
    }

    async fn read_exact(&self, out: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < out.len() {
            match self.read(&mut out[filled..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(())
    }

    fn peek<R>(&self, look: impl FnOnce(&[u8], &[u8]) -> R) -> R {
        let engine = self.net.0.engine.borrow();
        let (first, second) = engine.received(self.connection.flow);
        look(first, second)
    }

    fn consume(&self, bytes: usize) {
        self.net.0.engine.borrow_mut().consume(self.connection.flow, bytes);
    }

    fn poll_write(&self, bytes: &[u8], context: &Context<'_>) -> Poll<io::Result<usize>> {
        if self.connection.over.get().is_some() {
            return Poll::Ready(Err(self.failure()));
        }
        let mut engine = self.net.0.engine.borrow_mut();
        let taken = engine.send(self.connection.flow, bytes);
        if taken > 0 || bytes.is_empty() {
            return Poll::Ready(Ok(taken));
        }
        let open = engine.flow_info(self.connection.flow).is_some_and(|info| may_send(info.state));
        if !open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.connection.writer.set(context);
        Poll::Pending
    }

    fn poll_take(&self, context: &Context<'_>) -> Poll<io::Result<Option<ReceivedBuffer>>> {
        let taken = self.net.0.engine.borrow_mut().receive_zero_copy(self.connection.flow);
        if taken.is_some() {
            return Poll::Ready(Ok(taken));
        }
        match self.poll_readable(context) {
            Poll::Ready(Ok(true)) => {
                let held = "too many buffers are held, or memory is short: drop some, or copy";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::OutOfMemory, held)))
            }
            Poll::Ready(Ok(false)) => Poll::Ready(Ok(None)),
            Poll::Ready(Err(cause)) => Poll::Ready(Err(cause)),
            Poll::Pending => Poll::Pending,
        }
    }

    async fn take(&self) -> io::Result<Option<ReceivedBuffer>> {
        std::future::poll_fn(|context| self.poll_take(context)).await
    }

    fn poll_lend(&self, bytes: &SharedBytes, context: &Context<'_>) -> Poll<io::Result<()>> {
        if self.connection.over.get().is_some() {
            return Poll::Ready(Err(self.failure()));
        }
        let mut engine = self.net.0.engine.borrow_mut();
        if engine.send_zero_copy(self.connection.flow, bytes.clone()).is_ok() {
            return Poll::Ready(Ok(()));
        }
        let open = engine.flow_info(self.connection.flow).is_some_and(|info| may_send(info.state));
        if !open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.connection.writer.set(context);
        Poll::Pending
    }

    async fn lend(&self, bytes: SharedBytes) -> io::Result<()> {
        let mut begin = 0;
        while begin < bytes.len() {
            let piece = bytes.slice(begin, LENT_PIECE);
            std::future::poll_fn(|context| self.poll_lend(&piece, context)).await?;
            begin += piece.len();
        }
        Ok(())
    }

    async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_write(bytes, context)).await
    }

    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = self.write(bytes).await?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    fn shutdown(&self) {
        self.net.0.engine.borrow_mut().shutdown_send(self.connection.flow);
    }

    fn info(&self) -> Option<FlowInfo> {
        self.net.0.engine.borrow().flow_info(self.connection.flow)
    }
}

fn may_send(state: State) -> bool {
    matches!(state, State::SynSent | State::SynReceived | State::Established | State::CloseWait)
}

/// A connection; see [`Net::connect`] and [`TcpListener::accept`].
#[derive(Debug)]
pub struct TcpStream {
    half: Rc<Half>,
}

/// What can be read of a connection; see [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf {
    half: Rc<Half>,
}

/// What can be written to a connection; see [`TcpStream::split`]. Dropped, it closes that
/// direction.
#[derive(Debug)]
pub struct WriteHalf {
    half: Rc<Half>,
}

macro_rules! reading {
    ($name:ident) => {
        impl $name {
            /// Waits until there is something to read: true; or the end of the stream: false.
            ///
            /// # Errors
            /// The connection was reset, or its peer fell silent.
            pub async fn readable(&mut self) -> io::Result<bool> {
                self.half.readable().await
            }

            /// Waits until more than `bytes` bytes wait to be consumed: true; or until no more will
            /// come: false. Ask for less than the receive buffer holds.
            ///
            /// # Errors
            /// As for `readable`.
            pub async fn more_than(&mut self, bytes: usize) -> io::Result<bool> {
                std::future::poll_fn(|context| self.half.poll_more_than(bytes, context)).await
            }

            /// Lets `look` see what has arrived and was not consumed, where it lies: in two pieces,
            /// the second empty unless the ring wraps.
            pub fn peek<R>(&self, look: impl FnOnce(&[u8], &[u8]) -> R) -> R {
                self.half.peek(look)
            }

            /// Drops the first `bytes` of what has arrived; the peer may send as many again.
            pub fn consume(&mut self, bytes: usize) {
                self.half.consume(bytes);
            }

            /// Copies what has arrived, waiting for the first byte; 0 is the end of the stream (or
            /// an empty `out`).
            ///
            /// # Errors
            /// As for `readable`.
            pub async fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                self.half.read(out).await
            }

            /// Hands over what has arrived, waiting for the first byte, in the buffer in which it
            /// lies; `None` at the end of the stream. Held bytes count as not read: the peer may
            /// send as many again when the buffer is dropped.
            ///
            /// # Errors
            /// As for `readable`; and if too many buffers are held already, or memory is short.
            pub async fn take(&mut self) -> io::Result<Option<ReceivedBuffer>> {
                self.half.take().await
            }

            /// Fills `out`.
            ///
            /// # Errors
            /// As for `readable`, and if the stream ends before.
            pub async fn read_exact(&mut self, out: &mut [u8]) -> io::Result<()> {
                self.half.read_exact(out).await
            }
        }
    };
}

macro_rules! writing {
    ($name:ident) => {
        impl $name {
            /// Queues as many of `bytes` as there is room for, waiting for room for one; returns
            /// how many.
            ///
            /// # Errors
            /// The connection is over, or its sending side is closed.
            pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.half.write(bytes).await
            }

            /// Queues all of `bytes`. If it is dropped before the end, a part may have been queued.
            ///
            /// # Errors
            /// As for `write`.
            pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
                self.half.write_all(bytes).await
            }

            /// Queues `bytes` behind what was queued before, without copying them: they are let go
            /// of when the peer has acknowledged them, or the connection is over. Waits while too
            /// much is queued. If it is dropped before the end, a part may have been queued. What
            /// owns the bytes must not use the network when it is dropped.
            ///
            /// # Errors
            /// As for `write`.
            pub async fn lend(&mut self, bytes: impl Into<SharedBytes>) -> io::Result<()> {
                self.half.lend(bytes.into()).await
            }

            /// Sends nothing more after what is queued: the peer sees the end of the stream.
            pub fn shutdown(&mut self) {
                self.half.shutdown();
            }
        }
    };
}

reading!(TcpStream);
reading!(ReadHalf);
writing!(TcpStream);
writing!(WriteHalf);

impl Drop for WriteHalf {
    fn drop(&mut self) {
        self.half.shutdown();
    }
}

impl TcpStream {
    fn adopt(net: &Net, flow: FlowId, connected: bool) -> Self {
        let connection = Connection::new(flow, connected);
        let user = net.0.connections.borrow_mut().insert(&connection);
        net.0.engine.borrow_mut().set_user(flow, user);
        Self { half: Rc::new(Half { net: net.clone(), connection, user }) }
    }

    /// Two handles for two tasks. The connection is closed when both are dropped.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        (ReadHalf { half: Rc::clone(&self.half) }, WriteHalf { half: self.half })
    }

    /// What there is to know about the connection, or `None` if it is over.
    pub fn info(&self) -> Option<FlowInfo> {
        self.half.info()
    }

    /// The peer's address, as long as the connection lives.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.info().map(|info| info.remote)
    }

    /// Probes a peer that has been silent for `idle`; `None` stops that.
    pub fn set_keepalive(&mut self, idle: Option<Duration>) {
        let idle = idle.map(|idle| u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX));
        self.half.net.0.engine.borrow_mut().set_keepalive(self.half.connection.flow, idle);
    }

    /// Ends the connection, with an error of kind `TimedOut`, once the peer has left unacknowledged
    /// for so long what was sent, or has kept its window closed; `None`: when retransmissions are
    /// used up, which takes minutes.
    pub fn set_user_timeout(&mut self, patience: Option<Duration>) {
        let patience = patience.map(|patience| u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        self.half.net.0.engine.borrow_mut().set_user_timeout(self.half.connection.flow, patience);
    }

    /// Whether small segments wait for the acknowledgement of earlier ones (Nagle). They do not
    /// unless asked to.
    pub fn set_nagle(&mut self, on: bool) {
        self.half.net.0.engine.borrow_mut().set_nagle(self.half.connection.flow, on);
    }

    /// Resets the connection: what is queued is not sent.
    pub fn abort(self) {
        self.half.net.0.engine.borrow_mut().abort(self.half.connection.flow);
    }
}

impl Net {
    /// Accepts connections to `port` of the VNIC. As many as `backlog` may wait to be accepted;
    /// more are reset.
    ///
    /// # Errors
    /// The port is in use, or too many are.
    pub fn listen(&self, port: u16, backlog: u32) -> io::Result<TcpListener> {
        self.0
            .engine
            .borrow_mut()
            .listen(port, backlog)
            .map_err(|cause| io::Error::new(io::ErrorKind::AddrInUse, cause))?;
        let listening = Rc::new(Port {
            port,
            backlog: backlog.max(1) as usize,
            waiting: RefCell::default(),
            acceptor: Waiting::default(),
        });
        self.0.ports.borrow_mut().push(Rc::clone(&listening));
        Ok(TcpListener { net: self.clone(), port: listening })
    }

    /// Connects to `remote`.
    ///
    /// # Errors
    /// There is no way to it, it refuses, or it does not answer. Bound the wait with
    /// [`Net::timeout`].
    pub async fn connect(&self, remote: impl Into<SocketAddr>) -> io::Result<TcpStream> {
        let flow = self.0.engine.borrow_mut().connect(remote, self.now()).map_err(refused)?;
        let stream = TcpStream::adopt(self, flow, false);
        std::future::poll_fn(|context| stream.half.poll_connected(context)).await?;
        Ok(stream)
    }
}

fn refused(cause: ConnectError) -> io::Error {
    let kind = match cause {
        ConnectError::NoRoute(_) | ConnectError::Ourselves(_) => io::ErrorKind::NetworkUnreachable,
        ConnectError::NoPort(_) => io::ErrorKind::AddrNotAvailable,
        ConnectError::PortInUse(_) => io::ErrorKind::AddrInUse,
        ConnectError::NoFlow => io::ErrorKind::QuotaExceeded,
    };
    io::Error::new(kind, cause)
}
