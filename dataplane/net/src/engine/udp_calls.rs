//! What applications call for UDP and for groups.

use std::net::{IpAddr, SocketAddr};

use sietch_nic::NicQueue;

use super::Engine;
use crate::error::ListenError;
use crate::events::CloseReason;
use crate::ip::groups::multicast::GroupError;
use crate::packet::EcnCodepoint;
use crate::udp::datagram::{Datagram, DatagramError};

impl Engine {
    /// Binds a UDP port.
    ///
    /// # Errors
    /// It is bound already, or too many are.
    pub fn udp_bind(&mut self, port: u16) -> Result<(), ListenError> {
        self.udp.bind(port)
    }

    /// Releases a UDP port and drops what waits in it.
    pub fn udp_unbind(&mut self, port: u16) {
        self.udp.unbind(port)
    }

    /// Connects a bound port: it takes datagrams of `remote` only, and gets the ICMP errors about
    /// what it sent there. `None` ends that.
    ///
    /// # Errors
    /// The port is not bound, or there is no route to the peer.
    pub fn udp_connect(&mut self, port: u16, remote: Option<SocketAddr>) -> Result<(), DatagramError> {
        self.udp.connect(&self.cx, port, remote)
    }

    /// Takes the last ICMP error about a connected port's datagrams: its peer refuses them, or
    /// cannot be reached. A [`crate::EventKind::Datagram`] announces it.
    pub fn udp_take_error(&mut self, port: u16) -> Option<CloseReason> {
        self.udp.take_error(port)
    }

    /// Takes a copy of the oldest datagram that waits at a bound port.
    pub fn udp_receive(&mut self, port: u16) -> Option<Datagram> {
        self.udp.take(port)
    }

    /// The oldest datagram that waits at a bound port: its sender and its payload.
    #[inline]
    pub fn udp_peek(&self, port: u16) -> Option<(SocketAddr, &[u8])> {
        self.udp.peek(port)
    }

    /// The ECN field with which the oldest datagram that waits at a bound port arrived.
    #[inline]
    pub fn udp_peek_ecn(&self, port: u16) -> Option<EcnCodepoint> {
        self.udp.peek_ecn(port)
    }

    /// Sets the ECN field of datagrams sent from a bound port from now on. An application that
    /// sends ECT must respond to CE marks (RFC 8085 section 3.1.7).
    ///
    /// # Errors
    /// The port is not bound.
    pub fn udp_set_ecn(&mut self, port: u16, ecn: EcnCodepoint) -> Result<(), DatagramError> {
        self.udp.set_ecn(port, ecn)
    }

    /// Drops the oldest datagram.
    #[inline]
    pub fn udp_pop(&mut self, port: u16) {
        self.udp.pop(port)
    }

    /// Queues a datagram from a bound port.
    ///
    /// # Errors
    /// See [`DatagramError`].
    pub fn udp_send(
        &mut self,
        source: u16,
        remote: impl Into<SocketAddr>,
        payload: &[u8],
    ) -> Result<(), DatagramError> {
        self.udp.send(&mut self.cx, source, remote.into(), payload)
    }

    /// Sends a datagram from a bound port at once if its next hop is known and no packet waits
    /// before it; queues it otherwise. The next [`Engine::emit`] rings the doorbell.
    ///
    /// # Errors
    /// See [`DatagramError`].
    pub fn udp_transmit<Q: NicQueue>(
        &mut self,
        queue: &mut Q,
        source: u16,
        remote: impl Into<SocketAddr>,
        payload: &[u8],
    ) -> Result<(), DatagramError> {
        self.udp.transmit(&mut self.cx, queue, source, remote.into(), payload)
    }

    /// Takes datagrams to a group from now on, at every bound port. The join is reported to routers
    /// and switches. A group that was joined twice must be left twice.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn join(&mut self, group: IpAddr) -> Result<(), GroupError> {
        self.ip.join(&mut self.cx, group)
    }

    /// Takes no more datagrams to a group. False if it was not joined.
    pub fn leave(&mut self, group: IpAddr) -> bool {
        self.ip.leave(&mut self.cx, group)
    }
}
