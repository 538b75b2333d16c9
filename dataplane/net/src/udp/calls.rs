//! The calls of applications for UDP, and the delivery of arrived datagrams.
//!
//! 1. A bound port has a bounded queue of received datagrams. A datagram that finds it full is
//!    dropped and counted.
//! 2. `send` checks port, route and size, then queues the datagram, which the next emission sends.
//!    While the link address of the next hop is unknown, the datagram stays queued.
//! 3. A connected port takes datagrams of one peer alone. It reports ICMP errors about its own
//!    datagrams; a port that is not connected reports none.
//!
//! [`Engine`](crate::Engine) documents and exports the calls.

use std::net::{IpAddr, SocketAddr};

use sietch_nic::NicQueue;

use super::Udp;
use super::binding::Binding;
use super::datagram::{Datagram, DatagramError};
use crate::context::Context;
use crate::error::ListenError;
use crate::events::{CloseReason, Event, EventKind};
use crate::ip::icmp_error::IcmpError;
use crate::ip::neighbours::Resolution;
use crate::ip::origin::Origin;
use crate::ip::outgoing::{Body, NextHop, Outgoing};
use crate::limits::{UDP_PORTS, UDP_SEND_QUEUE};
use crate::packet::{Address, EcnCodepoint, icmp, network_header, udp as format};
use crate::tcp::flow::id::FlowId;

/// The route of a datagram: from which of our addresses, where first, and with which ECN field.
struct Route {
    local: Address,
    remote: Address,
    hop: Address,
    ecn: EcnCodepoint,
}

impl Udp {
    /// Appends an event for each port that has something new.
    #[inline]
    pub(crate) fn take_events(&mut self, out: &mut Vec<Event>) {
        for binding in &mut self.bindings {
            if std::mem::take(&mut binding.ready) {
                out.push(Event {
                    flow: FlowId::NONE,
                    user: 0,
                    kind: EventKind::Datagram { port: binding.port },
                });
            }
        }
    }

    /// Bound ports, each with the number of its datagrams that wait.
    pub(crate) fn bound(&self) -> impl Iterator<Item = (u16, usize)> + '_ {
        self.bindings.iter().map(|binding| (binding.port, binding.received.len()))
    }

    /// See `Engine::udp_bind`.
    pub(crate) fn bind(&mut self, port: u16) -> Result<(), ListenError> {
        let Err(index) = self.position(port) else { return Err(ListenError::InUse(port)) };
        if self.bindings.len() >= UDP_PORTS {
            return Err(ListenError::Full);
        }
        self.bindings.insert(index, Binding::new(port));
        Ok(())
    }

    /// See `Engine::udp_unbind`.
    pub(crate) fn unbind(&mut self, port: u16) {
        if let Ok(index) = self.position(port) {
            self.bindings.remove(index);
        }
    }

    /// See `Engine::udp_connect`.
    pub(crate) fn connect(
        &mut self,
        cx: &Context,
        port: u16,
        remote: Option<SocketAddr>,
    ) -> Result<(), DatagramError> {
        let index = self.position(port).map_err(|_| DatagramError::NotBound(port))?;
        if let Some(remote) = remote {
            self.route_to(cx, remote.ip())?;
        }
        let bound = &mut self.bindings[index];
        bound.connected = remote.map(|remote| (Address::from(remote.ip()), remote.port()));
        bound.error = None;
        Ok(())
    }

    /// See `Engine::udp_take_error`.
    pub(crate) fn take_error(&mut self, port: u16) -> Option<CloseReason> {
        let index = self.position(port).ok()?;
        self.bindings[index].error.take()
    }

    /// See `Engine::udp_receive`.
    pub(crate) fn take(&mut self, port: u16) -> Option<Datagram> {
        let ecn = self.peek_ecn(port)?;
        let (remote, payload) = self.peek(port)?;
        let datagram = Datagram { remote, payload: payload.to_vec(), ecn };
        self.pop(port);
        Some(datagram)
    }

    /// See `Engine::udp_peek`.
    #[inline]
    pub(crate) fn peek(&self, port: u16) -> Option<(SocketAddr, &[u8])> {
        let index = self.position(port).ok()?;
        let (remote, payload) = self.bindings[index].received.oldest()?;
        Some((SocketAddr::new(remote.0.into(), remote.1), payload))
    }

    /// See `Engine::udp_peek_ecn`.
    #[inline]
    pub(crate) fn peek_ecn(&self, port: u16) -> Option<EcnCodepoint> {
        let index = self.position(port).ok()?;
        self.bindings[index].received.oldest_ecn()
    }

    /// See `Engine::udp_set_ecn`.
    pub(crate) fn set_ecn(&mut self, port: u16, ecn: EcnCodepoint) -> Result<(), DatagramError> {
        let index = self.position(port).map_err(|_| DatagramError::NotBound(port))?;
        self.bindings[index].ecn = ecn;
        Ok(())
    }

    /// See `Engine::udp_pop`.
    #[inline]
    pub(crate) fn pop(&mut self, port: u16) {
        if let Ok(index) = self.position(port) {
            self.bindings[index].received.pop();
        }
    }

    /// See `Engine::udp_send`.
    pub(crate) fn send(
        &mut self,
        cx: &mut Context,
        source: u16,
        remote: SocketAddr,
        payload: &[u8],
    ) -> Result<(), DatagramError> {
        let route = self.check_datagram(cx, source, remote, payload.len())?;
        self.queue_datagram(cx, source, remote.port(), &route, payload)
    }

    /// See `Engine::udp_transmit`.
    pub(crate) fn transmit<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        source: u16,
        remote: SocketAddr,
        payload: &[u8],
    ) -> Result<(), DatagramError> {
        let route = self.check_datagram(cx, source, remote, payload.len())?;
        if cx.outgoing.is_empty()
            && let Resolution::Known(mac) = cx.resolve(route.hop)
        {
            cx.unchecked = queue.offloads().checksums;
            let ports = (source, remote.port(), route.ecn);
            if cx.emit_payload(queue, mac, (&route.local, &route.remote), ports, payload).is_ok() {
                cx.pending = true;
                return Ok(());
            }
        }
        self.queue_datagram(cx, source, remote.port(), &route, payload)
    }

    #[inline]
    fn position(&self, port: u16) -> Result<usize, usize> {
        self.bindings.binary_search_by_key(&port, |bound| bound.port)
    }

    fn route_to(&self, cx: &Context, remote: IpAddr) -> Result<Route, DatagramError> {
        let address = Address::from(remote);
        if address.is_multicast() {
            let index = cx.addresses.source_for(&address).ok_or(DatagramError::NoRoute(remote))?;
            return Ok(Route {
                local: cx.addresses.get(index),
                remote: address,
                hop: address,
                ecn: EcnCodepoint::NotEct,
            });
        }
        let route = cx.addresses.next_hop(&address).zip(cx.addresses.source_for(&address));
        let route = route.filter(|_| cx.addresses.may_be_source(&address));
        let (hop, index) = route.ok_or(DatagramError::NoRoute(remote))?;
        Ok(Route { local: cx.addresses.get(index), remote: address, hop, ecn: EcnCodepoint::NotEct })
    }

    #[inline]
    fn check_datagram(
        &self,
        cx: &Context,
        source: u16,
        remote: SocketAddr,
        length: usize,
    ) -> Result<Route, DatagramError> {
        let bound = self.position(source).map_err(|_| DatagramError::NotBound(source))?;
        let mut route = self.route_to(cx, remote.ip())?;
        route.ecn = self.bindings[bound].ecn;
        let limit = cx.path_mtu(&route.remote) - network_header(&route.remote) - format::HEADER;
        if length > limit {
            return Err(DatagramError::TooLong { limit });
        }
        Ok(route)
    }

    fn queue_datagram(
        &mut self,
        cx: &mut Context,
        source: u16,
        destination: u16,
        route: &Route,
        bytes: &[u8],
    ) -> Result<(), DatagramError> {
        if cx.outgoing.len() >= UDP_SEND_QUEUE {
            return Err(DatagramError::QueueFull);
        }
        let mut payload = cx.spare.pop().unwrap_or_default();
        payload.clear();
        payload.extend_from_slice(bytes);
        let body = Body::Datagram { source, destination, ecn: route.ecn, payload };
        let group = route.hop.is_multicast();
        let next_hop = if group { NextHop::Link(route.hop.group_mac()) } else { NextHop::Address(route.hop) };
        cx.outgoing.push_back(Outgoing { local: route.local, remote: route.remote, next_hop, body });
        cx.pending = true;
        Ok(())
    }

    /// Takes a datagram to one of our addresses. False if no binding takes datagrams of its sender.
    pub(crate) fn receive(
        &mut self,
        cx: &mut Context,
        origin: &Origin,
        datagram: &format::Datagram<'_>,
    ) -> bool {
        let Ok(index) = self.position(datagram.destination) else { return false };
        let binding = &mut self.bindings[index];
        let from = (origin.remote, datagram.source);
        // A connected port takes no other sender's datagrams (RFC 1122 section 4.1.3.5).
        if binding.connected.is_some_and(|peer| peer != from) {
            return false;
        }
        if binding.received.push(from, EcnCodepoint::of(origin.ecn), datagram.payload) {
            cx.metrics.datagrams_received += 1;
            binding.ready = true;
        } else {
            cx.metrics.datagrams_dropped += 1;
        }
        true
    }

    /// Takes an ICMP error about a datagram that we sent. Ports that are not connected get none: it
    /// may be about any of their peers.
    pub(crate) fn icmp_error(&mut self, cx: &mut Context, error: IcmpError, quote: &icmp::Quote) {
        let Ok(index) = self.position(quote.ports.0) else { return };
        let port = &mut self.bindings[index];
        if let IcmpError::TooBig(mtu) = error {
            cx.path_shrinks(&quote.destination, mtu, quote.length);
            return;
        }
        if port.connected != Some((quote.destination, quote.ports.1)) {
            return;
        }
        port.error = match error {
            IcmpError::Refused => Some(CloseReason::Refused),
            IcmpError::Unreachable => Some(CloseReason::Unreachable),
            IcmpError::TooBig(_) | IcmpError::Transient => return,
        };
        port.ready = true;
        cx.metrics.icmp_errors += 1;
    }
}
