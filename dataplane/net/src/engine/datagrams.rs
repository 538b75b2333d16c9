//! What applications call for UDP, and datagrams as they arrive.
//!
//! 1. A bound port keeps what arrives in a ring of its own ([`crate::udp::Inbox`]). The application
//!    looks at the oldest in place ([`Engine::udp_peek`]) and lets go of it ([`Engine::udp_pop`]),
//!    or takes a copy ([`Engine::udp_receive`]).
//! 2. A datagram leaves in the frame into which the application's bytes are written
//!    ([`Engine::udp_transmit`]), if its way is known and nobody is before it; else it is queued
//!    ([`Engine::udp_send`]), in a buffer that is used again.
//! 3. A port may be connected: then it hears its peer alone, and of errors about what it sent to
//!    it.

use std::net::{IpAddr, SocketAddr};

use sietch_nic::NicQueue;

use super::errors::{Report, Trouble};
use super::{Engine, ListenError, Origin, network_header};
use crate::events::CloseReason;
use crate::limits::{UDP_PORTS, UDP_SEND_QUEUE};
use crate::neighbour::Resolution;
use crate::packet::{Address, Payload, ethernet, icmp, ipv4, udp as format};
use crate::udp::{Body, Datagram, DatagramError, EcnCodepoint, NextHop, Outgoing, Port};

/// The way of a datagram: from which of our addresses, where first, and with which ECN field.
struct Way {
    local: Address,
    remote: Address,
    hop: Address,
    ecn: EcnCodepoint,
}

impl Engine {
    /// Binds a UDP port.
    ///
    /// # Errors
    /// It is bound already, or too many are.
    pub fn udp_bind(&mut self, port: u16) -> Result<(), ListenError> {
        let Err(place) = self.port_place(port) else { return Err(ListenError::InUse(port)) };
        if self.ports.len() >= UDP_PORTS {
            return Err(ListenError::Full);
        }
        self.ports.insert(place, Port::new(port));
        Ok(())
    }

    /// Releases a UDP port and drops what waits in it.
    pub fn udp_unbind(&mut self, port: u16) {
        if let Ok(place) = self.port_place(port) {
            self.ports.remove(place);
        }
    }

    /// From now on a bound port takes datagrams of `remote` only, and hears of ICMP errors about
    /// its own; `None` ends that.
    ///
    /// # Errors
    /// The port is not bound, or there is no way to the peer.
    pub fn udp_connect(&mut self, port: u16, remote: Option<SocketAddr>) -> Result<(), DatagramError> {
        let place = self.port_place(port).map_err(|_| DatagramError::NotBound(port))?;
        if let Some(remote) = remote {
            self.way_to(remote.ip())?;
        }
        let bound = &mut self.ports[place];
        bound.connected = remote.map(|remote| (Address::from(remote.ip()), remote.port()));
        bound.error = None;
        Ok(())
    }

    /// What was last said of a connected port's datagrams, once: its peer refuses them, or cannot
    /// be reached. A [`crate::EventKind::Datagram`] tells that there is something.
    pub fn udp_take_error(&mut self, port: u16) -> Option<CloseReason> {
        let place = self.port_place(port).ok()?;
        self.ports[place].error.take()
    }

    /// Takes a copy of the oldest datagram that waits at a bound port.
    pub fn udp_receive(&mut self, port: u16) -> Option<Datagram> {
        let ecn = self.udp_peek_ecn(port)?;
        let (remote, payload) = self.udp_peek(port)?;
        let datagram = Datagram { remote, payload: payload.to_vec(), ecn };
        self.udp_pop(port);
        Some(datagram)
    }

    /// The oldest datagram that waits at a bound port: who sent it, and what it carries.
    #[inline]
    pub fn udp_peek(&self, port: u16) -> Option<(SocketAddr, &[u8])> {
        let place = self.port_place(port).ok()?;
        let (remote, payload) = self.ports[place].inbox.oldest()?;
        Some((SocketAddr::new(remote.0.into(), remote.1), payload))
    }

    /// The ECN field with which the oldest datagram that waits at a bound port arrived.
    #[inline]
    pub fn udp_peek_ecn(&self, port: u16) -> Option<EcnCodepoint> {
        let place = self.port_place(port).ok()?;
        self.ports[place].inbox.oldest_ecn()
    }

    /// Sets the ECN field of what is sent from a bound port from now on. Who says that it heeds
    /// marks must do so (RFC 8085 section 3.1.7).
    ///
    /// # Errors
    /// The port is not bound.
    pub fn udp_set_ecn(&mut self, port: u16, ecn: EcnCodepoint) -> Result<(), DatagramError> {
        let place = self.port_place(port).map_err(|_| DatagramError::NotBound(port))?;
        self.ports[place].ecn = ecn;
        Ok(())
    }

    /// Lets go of the oldest datagram.
    #[inline]
    pub fn udp_pop(&mut self, port: u16) {
        if let Ok(place) = self.port_place(port) {
            self.ports[place].inbox.pop();
        }
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
        let remote = remote.into();
        let way = self.check_datagram(source, remote, payload.len())?;
        self.queue_datagram(source, remote.port(), &way, payload)
    }

    /// Sends a datagram from a bound port at once, if its way is known and none waits before it;
    /// queues it otherwise. The doorbell rings with the next [`Engine::emit`].
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
        let remote = remote.into();
        let way = self.check_datagram(source, remote, payload.len())?;
        if self.outgoing.is_empty()
            && let Resolution::Known(mac) = self.resolve_hop(way.hop)
        {
            self.unchecked = queue.offloads().checksums;
            let ports = (source, remote.port(), way.ecn);
            if self.emit_payload(queue, mac, (&way.local, &way.remote), ports, payload).is_ok() {
                self.pending = true;
                return Ok(());
            }
        }
        self.queue_datagram(source, remote.port(), &way, payload)
    }

    #[inline]
    fn port_place(&self, port: u16) -> Result<usize, usize> {
        self.ports.binary_search_by_key(&port, |bound| bound.port)
    }

    fn way_to(&self, remote: IpAddr) -> Result<Way, DatagramError> {
        let address = Address::from(remote);
        if address.is_multicast() {
            let place = self.addresses.source_for(&address).ok_or(DatagramError::NoRoute(remote))?;
            return Ok(Way {
                local: self.addresses.get(place),
                remote: address,
                hop: address,
                ecn: EcnCodepoint::NotEct,
            });
        }
        let way = self.addresses.next_hop(&address).zip(self.addresses.source_for(&address));
        let way = way.filter(|_| self.addresses.may_be_source(&address));
        let (hop, place) = way.ok_or(DatagramError::NoRoute(remote))?;
        Ok(Way { local: self.addresses.get(place), remote: address, hop, ecn: EcnCodepoint::NotEct })
    }

    #[inline]
    fn check_datagram(&self, source: u16, remote: SocketAddr, length: usize) -> Result<Way, DatagramError> {
        let bound = self.port_place(source).map_err(|_| DatagramError::NotBound(source))?;
        let mut way = self.way_to(remote.ip())?;
        way.ecn = self.ports[bound].ecn;
        let limit = self.path_mtu(&way.remote) - network_header(&way.remote) - format::HEADER;
        if length > limit {
            return Err(DatagramError::TooLong { limit });
        }
        Ok(way)
    }

    #[inline]
    fn resolve_hop(&mut self, hop: Address) -> Resolution {
        if hop.is_multicast() {
            return Resolution::Known(hop.group_mac());
        }
        self.neighbours.resolve(hop, self.now)
    }

    fn queue_datagram(
        &mut self,
        source: u16,
        destination: u16,
        way: &Way,
        bytes: &[u8],
    ) -> Result<(), DatagramError> {
        if self.outgoing.len() >= UDP_SEND_QUEUE {
            return Err(DatagramError::QueueFull);
        }
        let mut payload = self.spare.pop().unwrap_or_default();
        payload.clear();
        payload.extend_from_slice(bytes);
        let body = Body::Datagram { source, destination, ecn: way.ecn, payload };
        let group = way.hop.is_multicast();
        let next_hop = if group { NextHop::Link(way.hop.group_mac()) } else { NextHop::Address(way.hop) };
        self.outgoing.push_back(Outgoing { local: way.local, remote: way.remote, next_hop, body });
        self.pending = true;
        Ok(())
    }

    pub(super) fn receive_datagram(
        &mut self,
        origin: &Origin,
        datagram: &format::Datagram<'_>,
        packet: Payload<'_>,
    ) {
        let Ok(place) = self.port_place(datagram.destination) else {
            self.report(origin, Report::port_unreachable(&origin.remote), packet);
            return;
        };
        let port = &mut self.ports[place];
        let from = (origin.remote, datagram.source);
        if port.connected.is_some_and(|peer| peer != from) {
            // Nobody listens for that sender (RFC 1122 section 4.1.3.5).
            self.report(origin, Report::port_unreachable(&origin.remote), packet);
            return;
        }
        if !port.inbox.push(from, EcnCodepoint::of(origin.ecn), datagram.payload) {
            self.metrics.datagrams_dropped += 1;
            return;
        }
        self.metrics.datagrams_received += 1;
        port.ready = true;
    }

    /// A datagram to a group that was joined. Nobody is told if nobody wants it.
    pub(super) fn receive_group_datagram(&mut self, origin: &Origin, datagram: &format::Datagram<'_>) {
        let place = self.port_place(datagram.destination).ok();
        let Some(port) = place.map(|place| &mut self.ports[place]) else { return };
        let from = (origin.remote, datagram.source);
        if port.connected.is_some_and(|peer| peer != from) {
            return;
        }
        if port.inbox.push(from, EcnCodepoint::of(origin.ecn), datagram.payload) {
            self.metrics.datagrams_received += 1;
            port.ready = true;
        } else {
            self.metrics.datagrams_dropped += 1;
        }
    }

    /// Somebody says something of a datagram of ours. Ports that are not connected hear nothing: it
    /// may be about any of their peers.
    pub(super) fn datagram_in_trouble(&mut self, trouble: Trouble, quote: &icmp::Quote) {
        let Ok(place) = self.port_place(quote.ports.0) else { return };
        let port = &mut self.ports[place];
        if let Trouble::TooBig(mtu) = trouble {
            self.path_shrinks(&quote.destination, mtu, quote.length);
            return;
        }
        if port.connected != Some((quote.destination, quote.ports.1)) {
            return;
        }
        port.error = match trouble {
            Trouble::Refused => Some(CloseReason::Refused),
            Trouble::Unreachable => Some(CloseReason::Unreachable),
            Trouble::TooBig(_) | Trouble::Passing => return,
        };
        port.ready = true;
        self.metrics.icmp_errors += 1;
    }

    /// Bytes of headers before the payload of a UDP datagram over IPv4 in a frame.
    pub const UDP_OVERHEAD: usize = ethernet::HEADER + ipv4::HEADER + format::HEADER;
}
