//! UDP for tasks: a bound port whose datagrams a task awaits one by one.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use sietch_net::{Datagram, DatagramError};

use super::Net;
use super::tasks::Waiting;

/// A bound port, as the loop knows it.
#[derive(Debug)]
pub(super) struct Bound {
    port: u16,
    reader: Waiting,
    /// Who found the send queue full: it has room after every turn.
    pub(super) writer: Waiting,
}

/// Datagrams wait at `port`.
pub(super) fn arrived(net: &Net, port: u16) {
    let bound = net.0.bound.borrow().iter().find(|bound| bound.port == port).cloned();
    if let Some(bound) = bound {
        bound.reader.wake();
    }
}

/// A bound UDP port; see [`Net::bind`]. Dropped, it is released.
#[derive(Debug)]
pub struct UdpSocket {
    net: Net,
    bound: Rc<Bound>,
}

impl UdpSocket {
    /// The next datagram, waiting for it. Dropping the future loses none.
    ///
    /// # Errors
    /// None so far.
    pub async fn receive(&mut self) -> io::Result<Datagram> {
        std::future::poll_fn(|context| self.poll_receive(context)).await
    }

    fn poll_receive(&mut self, context: &Context<'_>) -> Poll<io::Result<Datagram>> {
        if let Some(datagram) = self.net.0.engine.borrow_mut().udp_receive(self.bound.port) {
            return Poll::Ready(Ok(datagram));
        }
        self.bound.reader.set(context);
        Poll::Pending
    }

    /// Copies the next datagram, or what of it fits `out`; returns how much that was and who sent it.
    ///
    /// # Errors
    /// As [`UdpSocket::receive`].
    pub async fn recv_from(&mut self, out: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let datagram = self.receive().await?;
        let length = datagram.payload.len().min(out.len());
        out[..length].copy_from_slice(&datagram.payload[..length]);
        Ok((length, datagram.remote))
    }

    /// Queues a datagram for `remote`, waiting while the queue is full. It leaves at the end of this turn, and may be lost on
    /// its way, as any.
    ///
    /// # Errors
    /// It is too long, or there is no way to `remote`.
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
        let bound = Rc::new(Bound { port, reader: Waiting::default(), writer: Waiting::default() });
        self.0.bound.borrow_mut().push(Rc::clone(&bound));
        Ok(UdpSocket { net: self.clone(), bound })
    }
}
