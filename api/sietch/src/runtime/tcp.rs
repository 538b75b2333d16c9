//! TCP for tasks.
//!
//! 1. Each connection has a state that its handles and the loop share ([`super::sockets`]): the
//!    tasks that wait to read and to write, and how the connection ended.
//! 2. Reading without a copy: [`TcpStream::readable`] waits, [`TcpStream::peek`] borrows the bytes
//!    in the flow's receive ring, [`TcpStream::consume`] releases them. [`TcpStream::read`] copies.
//!    [`TcpStream::read_zero_copy`] returns the buffer in which the bytes arrived, which the
//!    application may keep for as long as it likes.
//! 3. Writing copies into the flow's send ring, where bytes stay until they are acknowledged. A
//!    full ring waits. [`TcpStream::write_zero_copy`] shares the application's own bytes instead,
//!    and drops them when they are acknowledged. Both keep their order.
//! 4. Every future can be dropped at any time. `read`, `write`, `readable` and `accept` have then
//!    done nothing; `write_all` may have sent a part.
//! 5. A dropped stream is closed: what was written is still sent. ReceivedBuffer bytes that were
//!    not read make the engine reset the connection, as RFC 2525 section 2.17 wants it.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use sietch_net::{CloseReason, ConnectError, FlowId, FlowInfo, ReceivedBuffer, SharedBytes, State, limits};

use super::sockets::{Connection, ListeningPort, PendingConnection};
use super::state::Net;
use super::tasks::WakerCell;

/// Bytes of a long body that are shared with the engine at a time: the next piece is queued while
/// the one before is on its way.
const ZERO_COPY_PIECE: usize = limits::ZERO_COPY_BYTES / 8;

/// A listening port; see [`Net::listen`]. Dropped, it accepts no more.
#[derive(Debug)]
pub struct TcpListener {
    net: Net,
    port: Rc<ListeningPort>,
}

impl TcpListener {
    /// Waits for the next connection. Returns it and the address of its peer.
    ///
    /// # Errors
    /// None so far.
    pub async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        std::future::poll_fn(|context| self.poll_accept(context)).await
    }

    fn poll_accept(&mut self, context: &Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        if let Some(pending) = self.port.pending.borrow_mut().pop_front() {
            let remote = pending.remote;
            return Poll::Ready(Ok((TcpStream::accepted(&self.net, pending), remote)));
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
        self.net.0.listening.borrow_mut().retain(|port| port.port != self.port.port);
        // Connections that no task accepted are closed, with nothing borrowed.
        let pending = std::mem::take(&mut *self.port.pending.borrow_mut());
        for pending in pending {
            drop(TcpStream::accepted(&self.net, pending));
        }
    }
}

/// A connection, which is closed when the last of its handles is dropped.
#[derive(Debug)]
struct SharedStream {
    net: Net,
    connection: Rc<Connection>,
    /// Its number in the table of connections.
    number: u64,
}

impl Drop for SharedStream {
    fn drop(&mut self) {
        self.net.0.connections.borrow_mut().remove(self.number);
        if self.connection.closed.get().is_none() {
            self.net.0.engine.borrow_mut().close(self.connection.flow);
        }
    }
}

impl SharedStream {
    fn failure(&self) -> io::Error {
        let kind = match self.connection.closed.get() {
            Some(CloseReason::Reset) => io::ErrorKind::ConnectionReset,
            Some(CloseReason::TimedOut) => io::ErrorKind::TimedOut,
            Some(CloseReason::Refused) => io::ErrorKind::ConnectionRefused,
            Some(CloseReason::Unreachable) => io::ErrorKind::HostUnreachable,
            // Our side or both sides are closed: nothing can be written any more.
            _ => io::ErrorKind::BrokenPipe,
        };
        kind.into()
    }

    fn poll_connected(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        if self.connection.closed.get().is_some() {
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
        match self.connection.closed.get() {
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
        match self.connection.closed.get() {
            Some(CloseReason::Normal) => Poll::Ready(Ok(false)),
            Some(_) => Poll::Ready(Err(self.failure())),
            None if self.connection.peer_closed.get() => Poll::Ready(Ok(false)),
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

    fn peek<R>(&self, access: impl FnOnce(&[u8], &[u8]) -> R) -> R {
        let engine = self.net.0.engine.borrow();
        let (first, second) = engine.received(self.connection.flow);
        access(first, second)
    }

    fn consume(&self, bytes: usize) {
        self.net.0.engine.borrow_mut().consume(self.connection.flow, bytes);
    }

    fn poll_write(&self, bytes: &[u8], context: &Context<'_>) -> Poll<io::Result<usize>> {
        if self.connection.closed.get().is_some() {
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

    fn poll_read_zero_copy(&self, context: &Context<'_>) -> Poll<io::Result<Option<ReceivedBuffer>>> {
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

    async fn read_zero_copy(&self) -> io::Result<Option<ReceivedBuffer>> {
        std::future::poll_fn(|context| self.poll_read_zero_copy(context)).await
    }

    fn poll_write_zero_copy(&self, bytes: &SharedBytes, context: &Context<'_>) -> Poll<io::Result<()>> {
        if self.connection.closed.get().is_some() {
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

    async fn write_zero_copy(&self, bytes: SharedBytes) -> io::Result<()> {
        let mut begin = 0;
        while begin < bytes.len() {
            let piece = bytes.slice(begin, ZERO_COPY_PIECE);
            std::future::poll_fn(|context| self.poll_write_zero_copy(&piece, context)).await?;
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
    shared: Rc<SharedStream>,
}

/// The reading half of a connection; see [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf {
    shared: Rc<SharedStream>,
}

/// The writing half of a connection; see [`TcpStream::split`]. Dropped, it closes that direction.
#[derive(Debug)]
pub struct WriteHalf {
    shared: Rc<SharedStream>,
}

macro_rules! reading {
    ($name:ident) => {
        impl $name {
            /// Waits until there is something to read: true; or the end of the stream: false.
            ///
            /// # Errors
            /// The connection was reset, or its peer stopped answering.
            pub async fn readable(&mut self) -> io::Result<bool> {
                self.shared.readable().await
            }

            /// Waits until more than `bytes` bytes wait to be consumed: true; or until no more will
            /// arrive: false. Request less than the receive buffer holds.
            ///
            /// # Errors
            /// As for `readable`.
            pub async fn more_than(&mut self, bytes: usize) -> io::Result<bool> {
                std::future::poll_fn(|context| self.shared.poll_more_than(bytes, context)).await
            }

            /// Calls `access` with the bytes that have arrived and were not consumed, in the
            /// receive ring itself: two pieces, the second empty unless the ring wraps.
            pub fn peek<R>(&self, access: impl FnOnce(&[u8], &[u8]) -> R) -> R {
                self.shared.peek(access)
            }

            /// Drops the first `bytes` of what has arrived; the peer may send as many again.
            pub fn consume(&mut self, bytes: usize) {
                self.shared.consume(bytes);
            }

            /// Copies what has arrived, waiting for the first byte; 0 is the end of the stream (or
            /// an empty `out`).
            ///
            /// # Errors
            /// As for `readable`.
            pub async fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                self.shared.read(out).await
            }

            /// Returns the received bytes in the buffer in which they arrived, waiting for the
            /// first byte; `None` at the end of the stream. Bytes that are held count as not read:
            /// the peer may send as many again when the buffer is dropped.
            ///
            /// # Errors
            /// As for `readable`; and `OutOfMemory` if too many buffers are held already, or memory
            /// is short.
            pub async fn read_zero_copy(&mut self) -> io::Result<Option<ReceivedBuffer>> {
                self.shared.read_zero_copy().await
            }

            /// Fills `out`.
            ///
            /// # Errors
            /// As for `readable`, and if the stream ends before.
            pub async fn read_exact(&mut self, out: &mut [u8]) -> io::Result<()> {
                self.shared.read_exact(out).await
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
            /// The connection has ended, or its sending side is closed.
            pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.shared.write(bytes).await
            }

            /// Queues all of `bytes`. If the future is dropped before the end, a part may have been
            /// queued.
            ///
            /// # Errors
            /// As for `write`.
            pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
                self.shared.write_all(bytes).await
            }

            /// Queues `bytes` behind earlier ones, without copying them. They are dropped when the
            /// peer has acknowledged them, or the connection has ended. Waits while too much is
            /// queued. If the future is dropped before the end, a part may have been queued. The
            /// owner of the bytes must not use the network when it is dropped.
            ///
            /// # Errors
            /// As for `write`.
            pub async fn write_zero_copy(&mut self, bytes: impl Into<SharedBytes>) -> io::Result<()> {
                self.shared.write_zero_copy(bytes.into()).await
            }

            /// Sends nothing more after what is queued: the peer sees the end of the stream.
            pub fn shutdown(&mut self) {
                self.shared.shutdown();
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
        self.shared.shutdown();
    }
}

impl TcpStream {
    /// The stream of a flow that begins to connect.
    fn connecting(net: &Net, flow: FlowId) -> Self {
        let connection = Connection::new(flow, false);
        let number = net.0.connections.borrow_mut().insert(&connection);
        net.0.engine.borrow_mut().set_user(flow, number);
        Self { shared: Rc::new(SharedStream { net: net.clone(), connection, number }) }
    }

    /// The stream of a connection that waited in its listener's queue.
    fn accepted(net: &Net, pending: PendingConnection) -> Self {
        let PendingConnection { connection, number, .. } = pending;
        Self { shared: Rc::new(SharedStream { net: net.clone(), connection, number }) }
    }

    /// Two handles for two tasks. The connection is closed when both are dropped.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        (ReadHalf { shared: Rc::clone(&self.shared) }, WriteHalf { shared: self.shared })
    }

    /// The state of the connection, or `None` if it has ended.
    pub fn info(&self) -> Option<FlowInfo> {
        self.shared.info()
    }

    /// The peer's address, as long as the connection lives.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.info().map(|info| info.remote)
    }

    /// Sends keepalive probes to a peer that has been silent for `idle`; `None` sends none.
    pub fn set_keepalive(&mut self, idle: Option<Duration>) {
        let idle = idle.map(|idle| u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX));
        self.shared.net.0.engine.borrow_mut().set_keepalive(self.shared.connection.flow, idle);
    }

    /// Ends the connection with an error of kind `TimedOut` once the peer has left sent data
    /// unacknowledged, or has kept its window closed, for `timeout`. `None`: once retransmissions
    /// are used up, which takes minutes.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        self.shared.net.0.engine.borrow_mut().set_user_timeout(self.shared.connection.flow, timeout);
    }

    /// Whether small segments wait for the acknowledgement of earlier ones (Nagle). By default they
    /// do not.
    pub fn set_nagle(&mut self, on: bool) {
        self.shared.net.0.engine.borrow_mut().set_nagle(self.shared.connection.flow, on);
    }

    /// Resets the connection: what is queued is not sent.
    pub fn abort(self) {
        self.shared.net.0.engine.borrow_mut().abort(self.shared.connection.flow);
    }
}

impl Net {
    /// Listens on `port` of the VNIC. Up to `backlog` connections wait to be accepted; further ones
    /// are reset.
    ///
    /// # Errors
    /// The port is in use, or too many are.
    pub fn listen(&self, port: u16, backlog: u32) -> io::Result<TcpListener> {
        self.0
            .engine
            .borrow_mut()
            .listen(port, backlog)
            .map_err(|cause| io::Error::new(io::ErrorKind::AddrInUse, cause))?;
        let listening = Rc::new(ListeningPort {
            port,
            backlog: backlog.max(1) as usize,
            pending: RefCell::default(),
            acceptor: WakerCell::default(),
        });
        self.0.listening.borrow_mut().push(Rc::clone(&listening));
        Ok(TcpListener { net: self.clone(), port: listening })
    }

    /// Connects to `remote`.
    ///
    /// # Errors
    /// There is no route, the peer refuses, or it does not answer. Bound the wait with
    /// [`Net::timeout`].
    pub async fn connect(&self, remote: impl Into<SocketAddr>) -> io::Result<TcpStream> {
        let flow = self.0.engine.borrow_mut().connect(remote, self.now()).map_err(refused)?;
        let stream = TcpStream::connecting(self, flow);
        std::future::poll_fn(|context| stream.shared.poll_connected(context)).await?;
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
