//! UDP for tasks: a bound port whose datagrams a task awaits one by one, copied or in place.
//! A connected socket receives from one peer alone.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use sietch_net::{CloseReason, Datagram, DatagramError, EcnCodepoint};

use super::sockets::BoundPort;
use super::state::Net;
use super::tasks::WakerCell;

/// A bound UDP port; see [`Net::bind`]. Dropped, it is released.
#[derive(Debug)]
pub struct UdpSocket {
    net: Net,
    bound: Rc<BoundPort>,
    /// The peer to which it is connected.
    peer: Option<SocketAddr>,
}

impl UdpSocket {
    /// The next datagram, waiting for it. Dropping the future loses none.
    ///
    /// # Errors
    /// The peer to which the socket is connected refuses its datagrams, or cannot be reached.
    pub async fn receive(&mut self) -> io::Result<Datagram> {
        std::future::poll_fn(|context| self.poll_arrived(context)).await?;
        // A datagram is there: only this socket receives datagrams of the port.
        let arrived = self.net.0.engine.borrow_mut().udp_receive(self.bound.port);
        arrived.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Sets the ECN field of what is sent from now on. The field of what arrives is in
    /// [`Datagram::ecn`]; before [`UdpSocket::receive_with`], [`UdpSocket::next_ecn`] returns it.
    pub fn set_ecn(&mut self, ecn: EcnCodepoint) {
        // The port is bound for as long as this socket lives.
        let _ = self.net.0.engine.borrow_mut().udp_set_ecn(self.bound.port, ecn);
    }

    /// The ECN field of the next datagram, if it has arrived.
    pub fn next_ecn(&self) -> Option<EcnCodepoint> {
        self.net.0.engine.borrow().udp_peek_ecn(self.bound.port)
    }

    /// Waits for the next datagram, calls `access` with its sender and its payload in the receive
    /// buffer itself, and drops it.
    ///
    /// # Errors
    /// As [`UdpSocket::receive`].
    ///
    /// # Panics
    /// `access` must not use the network: the engine is borrowed.
    pub async fn receive_with<R>(&mut self, access: impl FnOnce(SocketAddr, &[u8]) -> R) -> io::Result<R> {
        std::future::poll_fn(|context| self.poll_arrived(context)).await?;
        let mut engine = self.net.0.engine.borrow_mut();
        // A datagram is there: only this socket receives datagrams of the port.
        let (remote, payload) = engine.udp_peek(self.bound.port).ok_or(io::ErrorKind::WouldBlock)?;
        let result = access(remote, payload);
        engine.udp_pop(self.bound.port);
        Ok(result)
    }

    fn poll_arrived(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut engine = self.net.0.engine.borrow_mut();
        if engine.udp_peek(self.bound.port).is_some() {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = engine.udp_take_error(self.bound.port) {
            let kind = match reason {
                CloseReason::Refused => io::ErrorKind::ConnectionRefused,
                _ => io::ErrorKind::HostUnreachable,
            };
            return Poll::Ready(Err(kind.into()));
        }
        self.bound.reader.set(context);
        Poll::Pending
    }

    /// Copies the next datagram, or the part of it that fits `out`. Returns the number of bytes and
    /// the sender.
    ///
    /// # Errors
    /// As [`UdpSocket::receive`].
    pub async fn recv_from(&mut self, out: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let copy = |remote, payload: &[u8]| {
            let length = payload.len().min(out.len());
            out[..length].copy_from_slice(&payload[..length]);
            (length, remote)
        };
        self.receive_with(copy).await
    }

    /// Connects the socket: from now on it receives only datagrams of `remote`, and errors about
    /// datagrams sent to it.
    ///
    /// # Errors
    /// There is no route to it.
    pub fn connect(&mut self, remote: impl Into<SocketAddr>) -> io::Result<()> {
        let remote = remote.into();
        let no_route = |cause| io::Error::new(io::ErrorKind::NetworkUnreachable, cause);
        self.net.0.engine.borrow_mut().udp_connect(self.bound.port, Some(remote)).map_err(no_route)?;
        self.peer = Some(remote);
        Ok(())
    }

    /// Queues a datagram for the peer to which the socket is connected, as [`UdpSocket::send_to`].
    ///
    /// # Errors
    /// `NotConnected`; or as [`UdpSocket::send_to`].
    pub async fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let remote = self.peer.ok_or(io::ErrorKind::NotConnected)?;
        self.send_to(payload, remote).await
    }

    /// Queues a datagram for `remote`, waiting while the queue is full. It leaves at the end of
    /// this iteration, and may be lost as any datagram.
    ///
    /// # Errors
    /// It is too long, or there is no route to `remote`.
    pub async fn send_to(&mut self, payload: &[u8], remote: impl Into<SocketAddr>) -> io::Result<()> {
        let remote = remote.into();
        std::future::poll_fn(|context| self.poll_send(payload, remote, context)).await
    }

    fn poll_send(
        &mut self,
        payload: &[u8],
        remote: SocketAddr,
        context: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        match self.net.0.engine.borrow_mut().udp_send(self.bound.port, remote, payload) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(DatagramError::QueueFull) => {
                self.bound.writer.set(context);
                Poll::Pending
            }
            Err(cause) => Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidInput, cause))),
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.bound.port
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        self.net.0.engine.borrow_mut().udp_unbind(self.bound.port);
        self.net.0.bound.borrow_mut().retain(|bound| bound.port != self.bound.port);
    }
}

impl Net {
    /// Binds a UDP port of the VNIC.
    ///
    /// # Errors
    /// It is in use, or too many are.
    pub fn bind(&self, port: u16) -> io::Result<UdpSocket> {
        let in_use = |cause| io::Error::new(io::ErrorKind::AddrInUse, cause);
        self.0.engine.borrow_mut().udp_bind(port).map_err(in_use)?;
        let bound = Rc::new(BoundPort { port, reader: WakerCell::default(), writer: WakerCell::default() });
        self.0.bound.borrow_mut().push(Rc::clone(&bound));
        Ok(UdpSocket { net: self.clone(), bound, peer: None })
    }
}
