//! The engine's interface for TCP: what applications call on flows and listeners.
//!
//! 1. Each call is documented here and done in `tcp/calls.rs`, which has no access to neighbours or
//!    to the device.
//! 2. A call that may begin the resolution of a link address runs the neighbour table as well.
//! 3. A [`FlowId`] has a generation. A call with a stale one does nothing, or returns `None` or 0.
//!
//! No call emits a frame: the next [`Engine::emit`] does.

use std::net::SocketAddr;

use sietch_nic::Untrusted;

use super::Engine;
use crate::error::{ConnectError, ListenError};
use crate::events::Event;
use crate::tcp::congestion::Kind;
use crate::tcp::flow::id::FlowId;
use crate::tcp::info::FlowInfo;
use crate::tcp::zero_copy::received_buffer::ReceivedBuffer;
use crate::tcp::zero_copy::shared_bytes::SharedBytes;

impl Engine {
    /// Opens a connection from a port that is chosen at random (RFC 6056).
    ///
    /// # Errors
    /// See [`ConnectError`]. Everything that happens later comes as an event.
    pub fn connect(&mut self, remote: impl Into<SocketAddr>, now: u64) -> Result<FlowId, ConnectError> {
        self.connect_from(None, remote, now)
    }

    /// Opens a connection from `port`, or from one that is chosen at random.
    ///
    /// # Errors
    /// See [`ConnectError`]. Everything that happens later comes as an event.
    pub fn connect_from(
        &mut self,
        port: Option<u16>,
        remote: impl Into<SocketAddr>,
        now: u64,
    ) -> Result<FlowId, ConnectError> {
        self.cx.set_time(now);
        let flow = self.tcp.connect_from(&mut self.cx, port, remote.into())?;
        if self.tcp.awaits_next_hop(flow) {
            self.run_neighbours();
        }
        Ok(flow)
    }

    /// Appends what has happened since the last call to `out`.
    ///
    /// A flow whose Closed event is among it can be read until the next call, if anything is left
    /// to be read. What arrived before a reset is not lost with it.
    #[inline]
    pub fn take_events(&mut self, out: &mut Vec<Event>) {
        self.tcp.take_events(out);
        self.udp.take_events(out);
    }

    /// What there is to know about a flow, or `None` if the id is stale.
    pub fn flow_info(&self, flow: FlowId) -> Option<FlowInfo> {
        self.tcp.flow_info(&self.cx, flow)
    }

    /// All flows and their state, those included that the application has closed.
    pub fn flows(&self) -> impl Iterator<Item = (FlowId, FlowInfo)> + '_ {
        self.tcp.flows(&self.cx)
    }

    /// `(flows, half-open passive connections, connections in TIME-WAIT, bytes in buffers)` right
    /// now.
    pub fn population(&self) -> (usize, usize, usize, usize) {
        self.tcp.population()
    }

    /// Accepts connections to `port`; at most `backlog` may wait for the application to take their
    /// events.
    ///
    /// # Errors
    /// The port is in use, or too many are.
    #[inline]
    pub fn listen(&mut self, port: u16, backlog: u32) -> Result<(), ListenError> {
        self.tcp.listen(port, backlog)
    }

    /// Accepts no more connections to `port`. Those that exist continue.
    #[inline]
    pub fn unlisten(&mut self, port: u16) {
        self.tcp.unlisten(port)
    }

    /// Changes how many connections to `port` may wait for the application to take their events.
    /// With zero no handshake is completed; that is for an application whose own queue of accepted
    /// connections is full. Peers try again, and are accepted when there is room.
    #[inline]
    pub fn set_backlog(&mut self, port: u16, backlog: u32) {
        self.tcp.set_backlog(port, backlog)
    }

    /// Whether the flow is over, and its Closed event was taken: no event of it follows.
    #[inline]
    pub fn is_over(&self, flow: FlowId) -> bool {
        self.tcp.is_over(flow)
    }

    /// Attaches a number to a flow; every event of the flow carries it.
    #[inline]
    pub fn set_user(&mut self, flow: FlowId, user: u64) {
        self.tcp.set_user(flow, user)
    }

    /// The bytes that have arrived in order and were not consumed, in two pieces (the second is
    /// empty unless the ring wraps).
    #[inline]
    pub fn received(&self, flow: FlowId) -> (&[u8], &[u8]) {
        self.tcp.received(flow)
    }

    /// Copies received bytes into `out`, consumes them, and returns how many there were.
    #[inline]
    pub fn read(&mut self, flow: FlowId, out: &mut [u8]) -> usize {
        self.tcp.read(&mut self.cx, flow, out)
    }

    /// Drops the first `bytes` of what was received; the window opens accordingly.
    #[inline]
    pub fn consume(&mut self, flow: FlowId, bytes: usize) {
        self.tcp.consume(&mut self.cx, flow, bytes)
    }

    /// Queues bytes for sending and returns how many were taken. If fewer than given,
    /// [`crate::EventKind::Writable`] follows when there is room again.
    #[inline]
    pub fn send(&mut self, flow: FlowId, data: &[u8]) -> usize {
        self.tcp.send(flow, data)
    }

    /// As [`Engine::send`], for bytes that another process may still write: they are read once.
    #[inline]
    pub fn send_untrusted(&mut self, flow: FlowId, data: Untrusted<'_>) -> usize {
        self.tcp.send_untrusted(flow, data)
    }

    /// Bytes that [`Engine::send`] would take now, memory permitting.
    #[inline]
    pub fn send_space(&self, flow: FlowId) -> usize {
        self.tcp.send_space(flow)
    }

    /// Bytes queued for sending that the peer has not acknowledged.
    #[inline]
    pub fn unacknowledged(&self, flow: FlowId) -> usize {
        self.tcp.unacknowledged(flow)
    }

    /// Whether the peer has closed its side and everything it sent was consumed: the end of the
    /// stream.
    #[inline]
    pub fn at_end(&self, flow: FlowId) -> bool {
        self.tcp.at_end(flow)
    }

    /// Sends nothing more after what is queued: half-close.
    #[inline]
    pub fn shutdown_send(&mut self, flow: FlowId) {
        self.tcp.shutdown_send(flow)
    }

    /// Closes the flow: what is queued is still sent. The id is stale at once and no event follows.
    /// If received data were not consumed, the peer gets a reset, because they will never be read
    /// (RFC 2525 section 2.17).
    #[inline]
    pub fn close(&mut self, flow: FlowId) {
        self.tcp.close(&mut self.cx, flow)
    }

    /// Resets the connection and releases it.
    #[inline]
    pub fn abort(&mut self, flow: FlowId) {
        self.tcp.abort(&mut self.cx, flow)
    }

    /// Probes the peer after `idle` nanoseconds without a segment, and ends the flow after some
    /// unanswered probes; `None` stops that.
    #[inline]
    pub fn set_keepalive(&mut self, flow: FlowId, idle: Option<u64>) {
        self.tcp.set_keepalive(&self.cx, flow, idle)
    }

    /// Ends the flow when sent data have stayed unacknowledged, or the peer's window closed, for
    /// `patience` nanoseconds. `None`: when retransmissions are used up, which takes minutes (RFC
    /// 9293 section 3.9.1 and RFC 1122 section 4.2.3.5, R2; TCP_USER_TIMEOUT on Linux). With
    /// keepalive it replaces the number of probes. It is checked when a timer expires, so the
    /// effective minimum is the retransmission timeout.
    #[inline]
    pub fn set_user_timeout(&mut self, flow: FlowId, patience: Option<u64>) {
        self.tcp.set_user_timeout(&self.cx, flow, patience)
    }

    /// Whether small segments wait for the acknowledgement of earlier ones (Nagle). Off by default.
    #[inline]
    pub fn set_nagle(&mut self, flow: FlowId, on: bool) {
        self.tcp.set_nagle(flow, on)
    }

    /// Changes a flow's congestion control, which continues from the present window.
    #[inline]
    pub fn set_congestion(&mut self, flow: FlowId, kind: Kind) {
        self.tcp.set_congestion(&self.cx, flow, kind)
    }

    /// Nanoseconds between keepalive probes once the idle time has passed, and how many go
    /// unanswered before the flow ends (TCP_KEEPINTVL and TCP_KEEPCNT on Linux). Zero stands for
    /// the usual values.
    #[inline]
    pub fn set_keepalive_probes(&mut self, flow: FlowId, interval: u64, most: u8) {
        self.tcp.set_keepalive_probes(flow, interval, most)
    }

    /// While corked, a flow sends full segments only, and the rest when the cork is removed or
    /// the sending side is shut down (TCP_CORK on Linux). There is no time limit.
    #[inline]
    pub fn set_corked(&mut self, flow: FlowId, on: bool) {
        self.tcp.set_corked(flow, on)
    }

    /// The DSCP of packets that are sent from now on: the upper six bits of `class` (RFC 2474;
    /// IP_TOS and IPV6_TCLASS elsewhere). The lower two are TCP's own (RFC 3168).
    #[inline]
    pub fn set_traffic_class(&mut self, flow: FlowId, class: u8) {
        self.tcp.set_traffic_class(flow, class)
    }

    /// The hop limit, or time to live, of packets that are sent from now on.
    #[inline]
    pub fn set_hop_limit(&mut self, flow: FlowId, hops: u8) {
        self.tcp.set_hop_limit(flow, hops)
    }

    /// How far a flow's receive buffer may grow, in bytes (SO_RCVBUF on Linux). What was announced
    /// to the peer is not revoked.
    #[inline]
    pub fn set_receive_limit(&mut self, flow: FlowId, bytes: usize) {
        self.tcp.set_receive_limit(flow, bytes)
    }

    /// Lets a flow send at most `rate` bytes of payload a second; `None` lifts the limit.
    #[inline]
    pub fn set_max_pacing_rate(&mut self, flow: FlowId, rate: Option<u64>) {
        self.tcp.set_max_pacing_rate(&self.cx, flow, rate)
    }

    /// Queues bytes for sending behind those queued before, without copying them. The engine drops
    /// its share when the peer has acknowledged them, or the flow is over.
    ///
    /// # Errors
    /// Returns all of the bytes if the flow does not send, or if
    /// [`limits::ZERO_COPY_BYTES`](crate::limits::ZERO_COPY_BYTES) or
    /// [`limits::ZERO_COPY_PIECES`](crate::limits::ZERO_COPY_PIECES) would be exceeded. In the
    /// latter case [`crate::EventKind::Writable`] announces room.
    #[inline]
    pub fn send_zero_copy(&mut self, flow: FlowId, bytes: SharedBytes) -> Result<(), SharedBytes> {
        self.tcp.send_zero_copy(&mut self.cx, flow, bytes)
    }

    /// Takes what has arrived in order and was not consumed, in the buffer in which it is. `None`
    /// if there is nothing, if [`limits::ZERO_COPY_BUFFERS`](crate::limits::ZERO_COPY_BUFFERS)
    /// buffers are out, or if memory is short; then [`Engine::received`] still shows it.
    #[inline]
    pub fn receive_zero_copy(&mut self, id: FlowId) -> Option<ReceivedBuffer> {
        self.tcp.receive_zero_copy(&mut self.cx, id)
    }

    /// Bytes of a flow that the application holds in receive buffers.
    #[inline]
    pub fn held(&self, flow: FlowId) -> usize {
        self.tcp.held(flow)
    }
}
