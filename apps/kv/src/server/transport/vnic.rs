//! Clients on the VNIC: a TCP engine on a NIC queue.
//!
//! 1. [`VnicTransport::poll`] lets the engine take a batch, then feeds each flow's bytes to its
//!    client straight from the engine's receive buffer.
//! 2. While a client has too much output, its input stays in the receive buffer, and the peer's
//!    window closes.
//! 3. [`VnicTransport::send`] copies replies into the flow's send buffer; [`VnicTransport::emit`]
//!    sends for all flows and notifies the doorbell once.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use sietch::net::{Engine, Event, EventKind, FlowId};
use sietch::nic::NicQueue;

use super::routes::{Connection, Routes, client_of, user_word};
use crate::foundation::client_id::ClientId;
use crate::foundation::client_path::ClientPath;
use crate::shard::{Now, Shard};

/// Established connections that wait to be accepted. Each iteration accepts all of them.
const BACKLOG: u32 = 4096;

/// An engine on a queue, serving one port.
#[derive(Debug)]
pub struct VnicTransport<Q: NicQueue> {
    queue: Q,
    engine: Engine,
    address: SocketAddr,
    events: Vec<Event>,
    /// Whether the last batch left frames behind.
    more: bool,
    /// No connection is accepted or read any more.
    stopped: bool,
}

impl<Q: NicQueue> VnicTransport<Q> {
    /// Serves `port` of `address` with `engine`.
    ///
    /// # Errors
    /// The engine cannot listen on that port.
    pub fn open(
        queue: Q,
        mut engine: Engine,
        address: Ipv4Addr,
        port: u16,
    ) -> Result<Self, sietch::net::ListenError> {
        engine.listen(port, BACKLOG)?;
        let address = SocketAddr::from((address, port));
        Ok(Self { queue, engine, address, events: Vec::new(), more: false, stopped: false })
    }

    /// The address that it serves.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The engine, for its counters.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Answers an inquiry about the VNIC: its sockets, or a copy of its frames.
    pub(crate) fn answer(&mut self, lease: &sietch::Lease, vnic: &sietch::Grant)
    where
        Q: sietch::Doorbell,
    {
        lease.answer_diagnostics(std::slice::from_ref(vnic), &self.engine, &mut self.queue);
    }

    /// The queue.
    pub(crate) fn queue(&self) -> &Q {
        &self.queue
    }

    pub(in crate::server) fn queue_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// When the engine must be polled next, in monotonic nanoseconds.
    pub(in crate::server) fn next_deadline(&self) -> Option<u64> {
        self.engine.next_deadline()
    }

    /// Stops accepting and reading. Output of the flows is still sent.
    pub(in crate::server) fn stop(&mut self) {
        self.stopped = true;
        self.engine.unlisten(self.address.port());
    }

    /// Receives a batch of frames and feeds their payload to the clients. Returns whether anything
    /// happened. Clients that have room for output again are appended to `writable`.
    pub(in crate::server) fn poll(
        &mut self,
        shard: &mut Shard,
        routes: &mut Routes,
        writable: &mut Vec<ClientId>,
        now: Now,
    ) -> bool {
        let (received, more) = self.engine.receive(&mut self.queue, now.monotonic_ns);
        self.more = more;
        let mut events = std::mem::take(&mut self.events);
        self.engine.take_events(&mut events);
        let busy = received > 0 || !events.is_empty();
        let mut newest = None;
        for event in events.drain(..) {
            // The user word is set when the flow is accepted. If that happened in this batch, the
            // flow's other events, which follow directly, do not carry the word yet.
            let known =
                client_of(event.user).or(newest.filter(|(flow, _)| *flow == event.flow).map(|(_, id)| id));
            if let Some(id) = self.handle(event, known, shard, routes, writable, now) {
                newest = Some((event.flow, id));
            }
        }
        self.events = events;
        busy
    }

    /// Handles one event of the flow of client `known`; returns the client if it is a new one.
    fn handle(
        &mut self,
        event: Event,
        known: Option<ClientId>,
        shard: &mut Shard,
        routes: &mut Routes,
        writable: &mut Vec<ClientId>,
        now: Now,
    ) -> Option<ClientId> {
        match (event.kind, known) {
            (EventKind::Accepted { .. }, _) if self.stopped => self.engine.abort(event.flow),
            (EventKind::Accepted { remote, .. }, _) => {
                match shard.connect(remote, self.local(event.flow), now) {
                    Ok(id) => {
                        shard.set_path(id, ClientPath::Vnic);
                        self.engine.set_user(event.flow, user_word(id));
                        routes.insert(id, Connection::Flow(event.flow));
                        let seconds = shard.settings().tcp_keepalive;
                        let idle = (seconds > 0).then(|| seconds.saturating_mul(1_000_000_000));
                        self.engine.set_keepalive(event.flow, idle);
                        return Some(id);
                    }
                    Err(refused) => {
                        self.engine.send(event.flow, refused.reply());
                        self.close(event.flow);
                    }
                }
            }
            (EventKind::Readable, Some(id)) => self.read(event.flow, id, shard, routes, now),
            (EventKind::Writable, Some(id)) => writable.push(id),
            (EventKind::PeerClosed, Some(id)) => {
                if let Some(route) = routes.get(id) {
                    route.ended = true;
                }
                self.read(event.flow, id, shard, routes, now);
            }
            (EventKind::Closed(_), Some(id)) => {
                // Input before the end was fed with its own event; no peer is left for replies.
                routes.remove(id);
                shard.disconnect(id);
            }
            _ => {}
        }
        None
    }

    /// The local address that a flow's peer has connected to.
    fn local(&self, flow: FlowId) -> SocketAddr {
        self.engine.flow_info(flow).map_or(self.address, |info| info.local)
    }

    /// Feeds the received bytes of a flow to its client, as far as the client accepts input.
    pub(in crate::server) fn read(
        &mut self,
        flow: FlowId,
        id: ClientId,
        shard: &mut Shard,
        routes: &mut Routes,
        now: Now,
    ) {
        let Some(route) = routes.get(id).filter(|_| !self.stopped) else { return };
        loop {
            // The ring's second piece is handled in the next pass, when it has become the first.
            let (bytes, _) = self.engine.received(flow);
            let length = bytes.len();
            route.stalled = length > 0 && !shard.accepts_input(id);
            if length == 0 || route.stalled {
                break;
            }
            shard.feed(id, bytes, now);
            self.engine.consume(flow, length);
        }
        if route.ended && !route.stalled {
            shard.end_of_input(id);
        }
    }

    /// Takes as many of `bytes` as the flow's send buffer has room for, and returns how many.
    pub(in crate::server) fn send(&mut self, flow: FlowId, bytes: &[u8]) -> usize {
        self.engine.send(flow, bytes)
    }

    /// Closes a flow after the bytes that were taken for it.
    pub(in crate::server) fn close(&mut self, flow: FlowId) {
        // Bytes left unread would make the engine reset the flow, and the last reply would be lost
        // with it.
        loop {
            let length = self.engine.received(flow).0.len();
            if length == 0 {
                break;
            }
            self.engine.consume(flow, length);
        }
        self.engine.close(flow);
    }

    /// Sends the output of all flows. Returns whether work is left that cannot wait for a doorbell.
    ///
    /// # Errors
    /// The device has failed.
    pub(in crate::server) fn emit(&mut self, now: Now) -> io::Result<bool> {
        let result = self.engine.emit(&mut self.queue, now.monotonic_ns)?;
        Ok(result.more || self.more)
    }
}
