//! The calls of applications on flows and listeners. [`Engine`](crate::Engine) documents and
//! exports them; this file has the work.
//!
//! 1. Opening: `listen` and `connect_from` check routes, ports and the limits of tables first. They
//!    send nothing: a new flow is marked as dirty, and the next emission sends its SYN.
//! 2. Events: `take_events` drains the list of flows with events. A flow whose Closed event is
//!    taken is released, or at the next call if it has unread bytes.
//! 3. Receiving: `read` and `consume` take bytes from the receive ring. A window update is
//!    announced only if it is worth a segment.
//! 4. Sending: `send` copies what fits into the send buffer. What does not fit is refused, and the
//!    flow gets a Writable event when there is room.
//! 5. Ending and settings: the other calls, each of which changes one flow.
//!
//! A call with a stale [`FlowId`] does nothing. No call emits a frame or blocks.

use std::net::SocketAddr;

use sietch_nic::Untrusted;

use crate::context::Context;
use crate::error::{ConnectError, ListenError};
use crate::events::{Event, EventKind};
use crate::ip::neighbours::Resolution;
use crate::limits::{LISTENERS, NEVER};
use crate::packet::{Address, Payload};
use crate::tcp::Tcp;
use crate::tcp::congestion::{Algorithm, Kind};
use crate::tcp::connections::Entry;
use crate::tcp::connections::four_tuple::FourTuple;
use crate::tcp::connections::listener::Listener;
use crate::tcp::flow::id::{FlowId, FlowIndex};
use crate::tcp::flow::{State, event, flag};

impl Tcp {
    /// See `Engine::listen`.
    pub(crate) fn listen(&mut self, port: u16, backlog: u32) -> Result<(), ListenError> {
        if self.listeners.contains(port) {
            return Err(ListenError::InUse(port));
        }
        if self.listeners.len() >= LISTENERS {
            return Err(ListenError::Full);
        }
        self.listeners.insert(port, Listener { backlog: backlog.max(1), waiting: 0 });
        Ok(())
    }

    /// See `Engine::unlisten`.
    pub(crate) fn unlisten(&mut self, port: u16) {
        self.listeners.remove(port);
    }

    /// See `Engine::set_backlog`.
    pub(crate) fn set_backlog(&mut self, port: u16, backlog: u32) {
        if let Some(listener) = self.listeners.get_mut(port) {
            listener.backlog = backlog;
        }
    }

    /// Begins a connection from `port`, or from one that is chosen at random.
    ///
    /// # Errors
    /// See [`ConnectError`]. Everything that happens later comes as an event.
    pub(crate) fn connect_from(
        &mut self,
        cx: &mut Context,
        port: Option<u16>,
        remote: SocketAddr,
    ) -> Result<FlowId, ConnectError> {
        let address = Address::from(remote.ip());
        if cx.addresses.index_of(&address).is_some() {
            return Err(ConnectError::Ourselves(remote));
        }
        let route = cx.addresses.next_hop(&address).zip(cx.addresses.source_for(&address));
        let route = route.filter(|_| cx.addresses.may_be_source(&address));
        let (hop, local) = route.ok_or(ConnectError::NoRoute(remote.ip()))?;
        if self.flows.is_full() {
            return Err(ConnectError::NoFlow);
        }
        let tuple = FourTuple { remote: address, remote_port: remote.port(), local_port: 0, local };
        let local_port = match port {
            Some(port) if self.connections.find(&FourTuple { local_port: port, ..tuple }).is_some() => {
                return Err(ConnectError::PortInUse(port));
            }
            Some(port) => port,
            None => {
                let listening = self.listeners.ports();
                let chosen = self.source_ports.choose(tuple, &cx.secret, &self.connections, listening);
                chosen.ok_or(ConnectError::NoPort(remote))?
            }
        };
        let tuple = FourTuple { local_port, ..tuple };
        let index = self.flows.allocate().ok_or(ConnectError::NoFlow)?;
        let (iss, ts_offset) = tuple.initial_sequence(cx);
        let asks = self.requests_ecn(self.settings.congestion);
        let first_window = self.first_window();
        self.flows.path[index] = tuple.template(cx, [0; 6]);
        let flow = &mut self.flows.hot[index];
        flow.state = State::SynSent;
        flow.ts_offset = ts_offset;
        flow.una = iss;
        flow.nxt = iss;
        flow.max = iss;
        flow.rcv_shift = self.settings.own_shift;
        flow.rcv_limit = first_window as u32;
        flow.flags |= flag::SYN_DUE;
        if asks {
            flow.flags |= flag::ECN;
        }
        let cold = &mut self.flows.cold[index];
        cold.iss = iss;
        cold.recover = iss;
        cold.congestion = Algorithm::new(self.settings.congestion, 0);
        cold.received_at = cx.now;
        match cx.resolve(hop) {
            Resolution::Known(mac) => self.flows.path[index].set_next_hop(mac),
            Resolution::Pending => {
                flow.flags |= flag::UNRESOLVED;
                self.unresolved.push(index);
            }
        }
        self.connections.insert(tuple, Entry::Flow(index));
        self.mark_dirty(index);
        Ok(self.flows.id(index))
    }

    /// Appends what has happened since the last call to `out`.
    ///
    /// A flow whose Closed event is among it can be read until the next call, if anything is left
    /// to be read: what arrived before a reset is not lost with it.
    #[inline]
    pub(crate) fn take_events(&mut self, out: &mut Vec<Event>) {
        if !self.closed_unread.is_empty() {
            self.release_remains();
        }
        // Taking an event adds no other.
        for at in 0..self.ready.len() {
            self.take_flow_events(self.ready[at], out);
        }
        self.ready.clear();
    }

    #[inline]
    fn take_flow_events(&mut self, index: FlowIndex, out: &mut Vec<Event>) {
        let (flow, cold) = self.flows.both(index);
        if !flow.has(flag::READY) {
            return;
        }
        flow.flags &= !flag::READY;
        let events = std::mem::take(&mut flow.events);
        if events == event::READABLE {
            let flow = FlowId { index, generation: flow.generation };
            out.push(Event { flow, user: cold.user, kind: EventKind::Readable });
        } else {
            self.take_rare_events(index, events, out);
        }
    }

    fn take_rare_events(&mut self, index: FlowIndex, events: u8, out: &mut Vec<Event>) {
        let cold = &self.flows.cold[index];
        let (user, reason) = (cold.user, cold.reason);
        let flow = self.flows.id(index);
        let mut push = |bit: u8, kind: EventKind| {
            if events & bit != 0 {
                out.push(Event { flow, user, kind });
            }
        };
        if events & event::ACCEPTED != 0 {
            let path = &self.flows.path[index];
            let remote = SocketAddr::new(path.remote().into(), path.remote_port());
            push(event::ACCEPTED, EventKind::Accepted { port: path.local_port(), remote });
        }
        push(event::CONNECTED, EventKind::Connected);
        push(event::READABLE, EventKind::Readable);
        push(event::WRITABLE, EventKind::Writable);
        push(event::PEER_CLOSED, EventKind::PeerClosed);
        push(event::CLOSED, EventKind::Closed(reason));
        if events & event::ACCEPTED != 0 {
            self.leave_accept_queue(index);
        }
        if events & event::CLOSED == 0 {
            return;
        }
        if self.flows.hot[index].rx.is_empty() {
            self.flows.release(index, &mut self.pool);
        } else {
            self.flows.cold[index].is_over = true;
            self.closed_unread.push(flow);
        }
    }

    /// Releases the flows whose Closed event the application has taken.
    #[cold]
    fn release_remains(&mut self) {
        for flow in std::mem::take(&mut self.closed_unread) {
            // The application has closed some of them: their index is stale.
            if let Some(index) = self.flows.index(flow) {
                self.flows.release(index, &mut self.pool);
            }
        }
    }

    /// See `Engine::is_over`.
    pub(crate) fn is_over(&self, flow: FlowId) -> bool {
        self.flows.index(flow).is_none_or(|index| self.flows.cold[index].is_over)
    }

    /// Whether the flow waits for the link address of its next hop.
    pub(crate) fn awaits_next_hop(&self, flow: FlowId) -> bool {
        self.flows.index(flow).is_some_and(|index| self.flows.hot[index].has(flag::UNRESOLVED))
    }

    /// The application has taken the connection, or never will.
    pub(crate) fn leave_accept_queue(&mut self, index: FlowIndex) {
        if std::mem::take(&mut self.flows.cold[index].pending_accept) {
            let port = self.flows.path[index].local_port();
            if let Some(listener) = self.listeners.get_mut(port) {
                listener.waiting = listener.waiting.saturating_sub(1);
            }
        }
    }

    /// See `Engine::set_user`.
    pub(crate) fn set_user(&mut self, flow: FlowId, user: u64) {
        if let Some(index) = self.flows.index(flow) {
            self.flows.cold[index].user = user;
        }
    }

    /// See `Engine::received`.
    #[inline]
    pub(crate) fn received(&self, flow: FlowId) -> (&[u8], &[u8]) {
        self.flows.index(flow).map_or((&[], &[]), |index| self.flows.hot[index].rx.slices())
    }

    /// See `Engine::read`.
    pub(crate) fn read(&mut self, cx: &mut Context, flow: FlowId, out: &mut [u8]) -> usize {
        let (first, second) = self.received(flow);
        let one = first.len().min(out.len());
        let two = second.len().min(out.len() - one);
        out[..one].copy_from_slice(&first[..one]);
        out[one..one + two].copy_from_slice(&second[..two]);
        self.consume(cx, flow, one + two);
        one + two
    }

    /// See `Engine::consume`.
    #[inline]
    pub(crate) fn consume(&mut self, cx: &mut Context, flow: FlowId, bytes: usize) {
        let Some(index) = self.flows.index(flow) else { return };
        let flow = &mut self.flows.hot[index];
        flow.rx.consume(bytes);
        // Out-of-order bytes keep a flow off the fast path.
        if flow.rx.is_empty() && (!flow.has(flag::SLOW) || self.flows.cold[index].reassembly.is_none()) {
            flow.rx.release(&mut self.pool);
        }
        let flow = &self.flows.hot[index];
        if flow.state == State::Closed || flow.state == State::TimeWait {
            self.finish_if_read(index);
            return;
        }
        self.reopen_window(cx, index);
    }

    /// A flow that was kept for its unread bytes is finished once they are read.
    pub(crate) fn finish_if_read(&mut self, index: FlowIndex) {
        let flow = &self.flows.hot[index];
        if flow.rx.is_empty() && flow.events & event::CLOSED == 0 && !self.flows.cold[index].is_over {
            let reason = self.flows.cold[index].reason;
            self.finish(index, reason);
        }
    }

    /// Announces a larger window, if the gain is worth a segment.
    #[inline]
    pub(crate) fn reopen_window(&mut self, cx: &mut Context, index: FlowIndex) {
        let flow = &mut self.flows.hot[index];
        let announced = flow.rcv_edge.distance(flow.rcv_nxt).max(0).cast_unsigned() as usize;
        let gain = flow.window_gain();
        // Most reads free less than a segment: no update is worth sending then.
        if gain < usize::from(flow.mss).min(flow.rcv_limit as usize / 2) {
            return;
        }
        let half = flow.rcv_limit as usize / 2;
        let mss = usize::from(flow.mss);
        let starved = announced < 2 * mss && gain >= mss.min(half);
        if flow.state.receives() && (starved || gain >= half) {
            flow.flags |= flag::ACK_NOW;
            if gain >= half {
                self.tune_emptied_window(cx, index);
            }
            self.mark_dirty(index);
        }
    }

    /// See `Engine::send`.
    #[inline]
    pub(crate) fn send(&mut self, flow: FlowId, data: &[u8]) -> usize {
        self.send_payload(flow, Payload::from(data))
    }

    /// See `Engine::send_untrusted`.
    #[inline]
    pub(crate) fn send_untrusted(&mut self, flow: FlowId, data: Untrusted<'_>) -> usize {
        self.send_payload(flow, Payload { head: &[], tail: data })
    }

    #[inline]
    fn send_payload(&mut self, flow: FlowId, data: Payload<'_>) -> usize {
        let Some(index) = self.flows.index(flow) else { return 0 };
        let flow = &mut self.flows.hot[index];
        let open =
            matches!(flow.state, State::SynSent | State::SynReceived | State::Established | State::CloseWait);
        if !open || data.is_empty() {
            return 0;
        }
        let queued = flow.tx.len();
        let mut taken = data.len();
        if queued + taken > self.settings.send_buffer.0 {
            taken = taken.min(flow.send_limit(self.settings.send_buffer).saturating_sub(queued));
        }
        if queued + taken > flow.tx.capacity() {
            if flow.has(flag::ZERO_COPY) {
                return match data.tail.is_empty() {
                    true => self.send_queued(index, data.head),
                    false => self.send_queued(index, &data.to_vec()),
                };
            }
            if !flow.tx.fetch_small(&mut self.pool, taken) {
                let limit = flow.send_limit(self.settings.send_buffer);
                taken = taken.min(flow.tx.make_room(&mut self.pool, taken, limit));
            }
        }
        if taken < data.len() {
            self.note_refused(index, taken == 0);
        }
        if taken > 0 {
            self.flows.hot[index].tx.append(data.take(taken));
            self.mark_dirty(index);
        }
        taken
    }

    /// Some bytes, or `all`, found no room in the send buffer.
    #[cold]
    fn note_refused(&mut self, index: FlowIndex, all: bool) {
        let flow = &mut self.flows.hot[index];
        flow.flags |= flag::WANTS_ROOM;
        if all && flow.tx.is_empty() && !flow.has(flag::WANTS_MEMORY) {
            flow.flags |= flag::WANTS_MEMORY;
            self.starved.push(index);
        }
    }

    /// See `Engine::send_space`.
    pub(crate) fn send_space(&self, flow: FlowId) -> usize {
        self.flows.index(flow).map_or(0, |index| {
            let flow = &self.flows.hot[index];
            let open = matches!(
                flow.state,
                State::SynSent | State::SynReceived | State::Established | State::CloseWait
            );
            if open { flow.send_limit(self.settings.send_buffer).saturating_sub(flow.tx.len()) } else { 0 }
        })
    }

    /// See `Engine::unacknowledged`.
    pub(crate) fn unacknowledged(&self, flow: FlowId) -> usize {
        self.flows.index(flow).map_or(0, |index| self.flows.hot[index].tx.len())
    }

    /// See `Engine::at_end`.
    pub(crate) fn at_end(&self, flow: FlowId) -> bool {
        self.flows.index(flow).is_some_and(|index| {
            let flow = &self.flows.hot[index];
            flow.rx.is_empty() && flow.has(flag::PEER_CLOSED)
        })
    }

    /// See `Engine::shutdown_send`.
    pub(crate) fn shutdown_send(&mut self, flow: FlowId) {
        if let Some(index) = self.flows.index(flow) {
            self.close_send(index);
        }
    }

    /// See `Engine::close`.
    pub(crate) fn close(&mut self, cx: &mut Context, flow: FlowId) {
        if let Some(index) = self.flows.index(flow) {
            self.detach(cx, index);
        }
    }

    /// See `Engine::abort`.
    pub(crate) fn abort(&mut self, cx: &mut Context, flow: FlowId) {
        if let Some(index) = self.flows.index(flow) {
            self.abort_flow(cx, index);
        }
    }

    /// See `Engine::set_keepalive`.
    pub(crate) fn set_keepalive(&mut self, cx: &Context, flow: FlowId, idle: Option<u64>) {
        let Some(index) = self.flows.index(flow) else { return };
        let cold = &mut self.flows.cold[index];
        cold.keepalive = idle.unwrap_or(0);
        cold.idle_at = idle.map_or(NEVER, |idle| cx.now.saturating_add(idle));
        if cold.idle_at != NEVER {
            self.flow_timers.no_later(index, cold.idle_at);
        }
    }

    /// See `Engine::set_user_timeout`.
    pub(crate) fn set_user_timeout(&mut self, cx: &Context, flow: FlowId, patience: Option<u64>) {
        let Some(index) = self.flows.index(flow) else { return };
        let cold = &mut self.flows.cold[index];
        cold.user_timeout = patience.map_or(0, |patience| patience.max(1));
        if cold.backoff > 0 && cold.retransmit_at != NEVER {
            cold.retransmit_at = cold.retransmit_at.min(cold.retransmit_deadline(cx.now));
            self.flow_timers.no_later(index, cold.retransmit_at);
        }
    }

    /// See `Engine::set_nagle`.
    pub(crate) fn set_nagle(&mut self, flow: FlowId, on: bool) {
        if let Some(index) = self.flows.index(flow) {
            let flow = &mut self.flows.hot[index];
            flow.flags = if on { flow.flags | flag::NAGLE } else { flow.flags & !flag::NAGLE };
            self.mark_dirty(index);
        }
    }

    /// See `Engine::set_congestion`.
    pub(crate) fn set_congestion(&mut self, cx: &Context, flow: FlowId, kind: Kind) {
        let Some(index) = self.flows.index(flow) else { return };
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.congestion = cold.congestion.changed_to(kind, u32::from(flow.mss));
        if !flow.has(flag::RECOVERY) {
            flow.cwnd = cold.congestion.window();
        }
        if kind == Kind::Timely {
            flow.flags |= flag::PACED;
        }
        self.refresh_pace(cx, index);
    }

    /// See `Engine::set_keepalive_probes`.
    pub(crate) fn set_keepalive_probes(&mut self, flow: FlowId, interval: u64, most: u8) {
        let Some(index) = self.flows.index(flow) else { return };
        let cold = &mut self.flows.cold[index];
        (cold.keepalive_interval, cold.keepalive_most) = (interval, most);
    }

    /// See `Engine::set_corked`.
    pub(crate) fn set_corked(&mut self, flow: FlowId, on: bool) {
        if let Some(index) = self.flows.index(flow) {
            let flow = &mut self.flows.hot[index];
            flow.flags = if on { flow.flags | flag::CORKED } else { flow.flags & !flag::CORKED };
            self.mark_dirty(index);
        }
    }

    /// See `Engine::set_traffic_class`.
    pub(crate) fn set_traffic_class(&mut self, flow: FlowId, class: u8) {
        if let Some(index) = self.flows.index(flow) {
            self.flows.path[index].set_traffic_class(class & !3);
        }
    }

    /// See `Engine::set_hop_limit`.
    pub(crate) fn set_hop_limit(&mut self, flow: FlowId, hops: u8) {
        if let Some(index) = self.flows.index(flow) {
            self.flows.path[index].set_hop_limit(hops.max(1));
        }
    }

    /// See `Engine::set_receive_limit`.
    pub(crate) fn set_receive_limit(&mut self, flow: FlowId, bytes: usize) {
        if let Some(index) = self.flows.index(flow) {
            self.flows.cold[index].most_window = u32::try_from(bytes).unwrap_or(u32::MAX);
        }
    }
}
