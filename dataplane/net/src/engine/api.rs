//! What applications call.

use std::net::{IpAddr, SocketAddr};

use sietch_nic::Untrusted;

use super::Engine;
use crate::congestion::{Algorithm, Kind};
use crate::events::{Event, EventKind};
use crate::flow::{FlowId, State, event, flag};
use crate::flow_table::{Entry, Name};
use crate::limits::{LISTENERS, NEVER, PORT_DRAWS, PORT_SEARCH, RECENT_PART};
use crate::listener::Listener;
use crate::neighbour::Resolution;
use crate::packet::{Address, Payload, Template, ipv4};
use crate::sequence::Seq;

/// Why a connection could not be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The peer is off the link and there is no gateway, or it is nobody's address, or a group's.
    #[error("no route to {0}: it is off the link and there is no gateway, or it is no host's address")]
    NoRoute(IpAddr),
    /// The peer is this engine itself. What it sends leaves on the link and never comes back, so it
    /// cannot be its own peer.
    #[error(
        "{0} is this end's own address: an engine has no loopback; use a kernel socket, or call within the program"
    )]
    Ourselves(SocketAddr),
    /// No source port is free towards this peer, or so few that none was found.
    #[error("no source port towards {0} was found free: close connections, or allow more ports")]
    NoPort(SocketAddr),
    /// All flows are in use.
    #[error("all flows are in use: close some, or raise the engine's limit")]
    NoFlow,
    /// There is a connection between that port and this peer already, or was a moment ago.
    #[error("port {0} has a connection to that peer, or had one within a minute: choose another, or none")]
    PortInUse(u16),
}

/// Why a port cannot be listened on or bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// Somebody does already.
    #[error("port {0} is in use: choose another, or release it first")]
    InUse(u16),
    /// Too many ports.
    #[error("all port entries are in use: release one first")]
    Full,
}

impl Engine {
    /// Accepts connections to `port`; at most `backlog` may wait for the application to take their
    /// events.
    ///
    /// # Errors
    /// The port is in use, or too many are.
    pub fn listen(&mut self, port: u16, backlog: u32) -> Result<(), ListenError> {
        if self.listening.contains(port) {
            return Err(ListenError::InUse(port));
        }
        if self.listeners.len() >= LISTENERS {
            return Err(ListenError::Full);
        }
        self.listening.insert(port);
        self.listeners.insert(port, Listener { backlog: backlog.max(1), waiting: 0 });
        Ok(())
    }

    /// Accepts no more connections to `port`. Those that exist go on.
    pub fn unlisten(&mut self, port: u16) {
        self.listening.remove(port);
        self.listeners.remove(&port);
    }

    /// Changes how many connections to `port` may wait for the application to take their events.
    /// With zero no handshake is completed: for who has a queue of accepted connections beside the
    /// engine's, and finds it full. Peers ask again, and are let in when there is room.
    pub fn set_backlog(&mut self, port: u16, backlog: u32) {
        if let Some(listener) = self.listeners.get_mut(&port) {
            listener.backlog = backlog;
        }
    }

    /// Begins a connection from a port that is chosen at random (RFC 6056).
    ///
    /// # Errors
    /// See [`ConnectError`]. Everything that happens later comes as an event.
    pub fn connect(&mut self, remote: impl Into<SocketAddr>, now: u64) -> Result<FlowId, ConnectError> {
        self.connect_from(None, remote, now)
    }

    /// Begins a connection from `port`, or from one that is chosen at random.
    ///
    /// # Errors
    /// See [`ConnectError`]. Everything that happens later comes as an event.
    pub fn connect_from(
        &mut self,
        port: Option<u16>,
        remote: impl Into<SocketAddr>,
        now: u64,
    ) -> Result<FlowId, ConnectError> {
        self.set_time(now);
        let remote = remote.into();
        let address = Address::from(remote.ip());
        if self.addresses.index_of(&address).is_some() {
            return Err(ConnectError::Ourselves(remote));
        }
        let way = self.addresses.next_hop(&address).zip(self.addresses.source_for(&address));
        let way = way.filter(|_| self.addresses.may_be_source(&address));
        let (hop, local) = way.ok_or(ConnectError::NoRoute(remote.ip()))?;
        if self.flows.is_full() {
            return Err(ConnectError::NoFlow);
        }
        let name = Name { remote: address, remote_port: remote.port(), local_port: 0, local };
        let local_port = match port {
            Some(port) if self.directory.find(&Name { local_port: port, ..name }).is_some() => {
                return Err(ConnectError::PortInUse(port));
            }
            Some(port) => port,
            None => self.choose_port(name).ok_or(ConnectError::NoPort(remote))?,
        };
        let name = Name { local_port, ..name };
        let index = self.flows.allocate().ok_or(ConnectError::NoFlow)?;
        let (iss, ts_offset) = self.initial_sequence(&name);
        let asks = self.asks_for_marks(self.congestion);
        let first_window = self.first_window();
        self.flows.path[index as usize] = self.template(&name, [0; 6]);
        let flow = &mut self.flows.hot[index as usize];
        flow.state = State::SynSent;
        flow.ts_offset = ts_offset;
        flow.una = iss;
        flow.nxt = iss;
        flow.max = iss;
        flow.rcv_shift = self.own_shift;
        flow.rcv_limit = first_window as u32;
        flow.flags |= flag::SYN_DUE;
        if asks {
            flow.flags |= flag::ECN;
        }
        let cold = &mut self.flows.cold[index as usize];
        cold.iss = iss;
        cold.recover = iss;
        cold.congestion = Algorithm::new(self.congestion, 0);
        cold.heard_at = self.now;
        match self.neighbours.resolve(hop, self.now) {
            Resolution::Known(mac) => self.flows.path[index as usize].set_next_hop(mac),
            Resolution::Pending => {
                flow.flags |= flag::UNRESOLVED;
                self.unresolved.push(index);
                self.run_neighbours();
            }
        }
        self.directory.insert(name, Entry::Flow(index));
        self.touch(index as usize);
        Ok(self.flows.id(index))
    }

    /// The headers of a connection's frames.
    pub(crate) fn template(&self, name: &Name, next_hop: [u8; 6]) -> Template {
        let mut template = Template::new(&self.path(name, next_hop), ipv4::TCP);
        template.local_index = name.local;
        template
    }

    /// A port that makes `name` free, drawn at random: who has seen the ports of other connections
    /// cannot tell which comes next (RFC 6056 section 3.3.1), but for up to half of the range that
    /// does not, because it was drawn lately. Where most are taken, one that no connection has;
    /// where each has one, a bounded number of neighbours.
    fn choose_port(&mut self, name: Name) -> Option<u16> {
        let (first, last) = self.source_ports;
        let count = last.checked_sub(first)?.saturating_add(1);
        let is_free = |engine: &Self, port: &u16| {
            !engine.listening.contains(*port)
                && engine.directory.find(&Name { local_port: *port, ..name }).is_none()
        };
        let bits = name.remote.bits();
        let (high, low) = ((bits >> 64) as u64, bits as u64);
        let mut drawn = first;
        let chosen = (0..PORT_DRAWS).find_map(|_| {
            self.connects += 1;
            let random = self.secret.hash_words(&[high, low, name.remote_port.into(), self.connects]);
            drawn = first + (random % u64::from(count)) as u16;
            (!self.recent_ports.contains(drawn) && is_free(self, &drawn)).then_some(drawn)
        });
        let unused =
            || self.directory.ports.unused(&self.listening, &self.recent_ports, (first, last), drawn);
        let begin = u32::from(drawn - first);
        let neighbours = || {
            (0..count.min(PORT_SEARCH))
                .map(|step| first + ((begin + u32::from(step)) % u32::from(count)) as u16)
                .filter(|port| is_free(self, port))
        };
        let neighbour =
            || neighbours().find(|port| !self.recent_ports.contains(*port)).or_else(|| neighbours().next());
        let chosen = chosen.or_else(unused).or_else(neighbour)?;
        self.recent_ports.insert(chosen, count / RECENT_PART);
        Some(chosen)
    }

    /// The initial sequence number of a connection (RFC 6528) and the offset of its timestamps (RFC
    /// 7323 section 5.4): a keyed hash of its name, the former plus a clock of four microseconds.
    pub(crate) fn initial_sequence(&self, name: &Name) -> (Seq, u32) {
        let hash = self.secret.hash_words(&self.words(name));
        (Seq((hash as u32).wrapping_add((self.now >> 12) as u32)), (hash >> 32) as u32)
    }

    /// A name as words to be hashed.
    pub(crate) fn words(&self, name: &Name) -> [u64; 5] {
        let (remote, local) = (name.remote.bits(), self.addresses.get(name.local).bits());
        let ports = u64::from(name.remote_port) << 16 | u64::from(name.local_port);
        let half = |bits: u128| [(bits >> 64) as u64, bits as u64];
        let ([a, b], [c, d]) = (half(remote), half(local));
        [a, b, c, d, ports]
    }

    /// Appends what has happened since the last call to `out`.
    ///
    /// A flow whose Closed event is among it can be read until the next call, if anything is left
    /// to be read: what arrived before a reset is not lost with it.
    #[inline]
    pub fn take_events(&mut self, out: &mut Vec<Event>) {
        if !self.remains.is_empty() {
            self.release_remains();
        }
        // Taking an event raises none.
        for at in 0..self.ready.len() {
            self.take_flow_events(self.ready[at], out);
        }
        self.ready.clear();
        for port in &mut self.ports {
            if std::mem::take(&mut port.ready) {
                out.push(Event {
                    flow: FlowId::NONE,
                    user: 0,
                    kind: EventKind::Datagram { port: port.port },
                });
            }
        }
    }

    #[inline]
    fn take_flow_events(&mut self, index: u32, out: &mut Vec<Event>) {
        let (flow, cold) = self.flows.both(index as usize);
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

    fn take_rare_events(&mut self, index: u32, events: u8, out: &mut Vec<Event>) {
        let cold = &self.flows.cold[index as usize];
        let (user, reason) = (cold.user, cold.reason);
        let flow = self.flows.id(index);
        let mut push = |bit: u8, kind: EventKind| {
            if events & bit != 0 {
                out.push(Event { flow, user, kind });
            }
        };
        if events & event::ACCEPTED != 0 {
            let path = &self.flows.path[index as usize];
            let remote = SocketAddr::new(path.remote().into(), path.remote_port());
            push(event::ACCEPTED, EventKind::Accepted { port: path.local_port(), remote });
        }
        push(event::CONNECTED, EventKind::Connected);
        push(event::READABLE, EventKind::Readable);
        push(event::WRITABLE, EventKind::Writable);
        push(event::PEER_CLOSED, EventKind::PeerClosed);
        push(event::CLOSED, EventKind::Closed(reason));
        if events & event::ACCEPTED != 0 {
            self.settle_accept(index as usize);
        }
        if events & event::CLOSED == 0 {
            return;
        }
        if self.flows.hot[index as usize].rx.is_empty() {
            self.flows.release(index, &mut self.pool);
        } else {
            self.flows.cold[index as usize].is_over = true;
            self.remains.push(flow);
        }
    }

    /// Lets go of the flows whose end the application has heard of.
    #[cold]
    fn release_remains(&mut self) {
        for flow in std::mem::take(&mut self.remains) {
            // Those that the application has closed are gone.
            if let Some(index) = self.flows.index(flow) {
                self.flows.release(index as u32, &mut self.pool);
            }
        }
    }

    /// Whether the flow is over, and its Closed event was taken: no event of it follows.
    pub fn is_over(&self, flow: FlowId) -> bool {
        self.flows.index(flow).is_none_or(|index| self.flows.cold[index].is_over)
    }

    /// A connection no longer waits to be taken by the application.
    pub(crate) fn settle_accept(&mut self, index: usize) {
        if std::mem::take(&mut self.flows.cold[index].pending_accept) {
            let port = self.flows.path[index].local_port();
            if let Some(listener) = self.listeners.get_mut(&port) {
                listener.waiting = listener.waiting.saturating_sub(1);
            }
        }
    }

    /// Attaches a number to a flow; every event of the flow carries it.
    pub fn set_user(&mut self, flow: FlowId, user: u64) {
        if let Some(index) = self.flows.index(flow) {
            self.flows.cold[index].user = user;
        }
    }

    /// The bytes that have arrived in order and were not consumed, in two pieces (the second is
    /// empty unless the ring wraps).
    #[inline]
    pub fn received(&self, flow: FlowId) -> (&[u8], &[u8]) {
        self.flows.index(flow).map_or((&[], &[]), |index| self.flows.hot[index].rx.slices())
    }

    /// Copies received bytes into `out`, consumes them, and returns how many there were.
    pub fn read(&mut self, flow: FlowId, out: &mut [u8]) -> usize {
        let (first, second) = self.received(flow);
        let one = first.len().min(out.len());
        let two = second.len().min(out.len() - one);
        out[..one].copy_from_slice(&first[..one]);
        out[one..one + two].copy_from_slice(&second[..two]);
        self.consume(flow, one + two);
        one + two
    }

    /// Drops the first `bytes` of what was received; the window opens accordingly.
    #[inline]
    pub fn consume(&mut self, flow: FlowId, bytes: usize) {
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
        self.reopen_window(index);
    }

    /// A flow that is over but for what was left to read is over when that is read.
    pub(crate) fn finish_if_read(&mut self, index: usize) {
        let flow = &self.flows.hot[index];
        if flow.rx.is_empty() && flow.events & event::CLOSED == 0 && !self.flows.cold[index].is_over {
            let reason = self.flows.cold[index].reason;
            self.finish(index, reason);
        }
    }

    /// Tells the peer of room that it does not know of, if it is worth telling.
    #[inline]
    pub(crate) fn reopen_window(&mut self, index: usize) {
        let flow = &mut self.flows.hot[index];
        let announced = flow.rcv_edge.distance(flow.rcv_nxt).max(0).cast_unsigned() as usize;
        let gain = flow.window_gain();
        // Most reads free less than a segment: nothing below is worth telling then.
        if gain < usize::from(flow.mss).min(flow.rcv_limit as usize / 2) {
            return;
        }
        let half = flow.rcv_limit as usize / 2;
        let mss = usize::from(flow.mss);
        let starved = announced < 2 * mss && gain >= mss.min(half);
        if flow.state.receives() && (starved || gain >= half) {
            flow.flags |= flag::ACK_NOW;
            if gain >= half {
                self.tune_emptied_window(index);
            }
            self.touch(index);
        }
    }

    /// Queues bytes for sending and returns how many were taken. If that is fewer than given,
    /// [`EventKind::Writable`] tells when there is room again.
    #[inline]
    pub fn send(&mut self, flow: FlowId, data: &[u8]) -> usize {
        self.send_payload(flow, Payload::from(data))
    }

    /// As [`Engine::send`], for bytes that somebody else may still write: they are copied out once.
    #[inline]
    pub fn send_untrusted(&mut self, flow: FlowId, data: Untrusted<'_>) -> usize {
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
        if queued + taken > self.send_buffer.0 {
            taken = taken.min(flow.send_limit(self.send_buffer).saturating_sub(queued));
        }
        if queued + taken > flow.tx.capacity() {
            if flow.has(flag::ZERO_COPY) {
                return match data.tail.is_empty() {
                    true => self.send_behind_lent(index, data.head),
                    false => self.send_behind_lent(index, &data.to_vec()),
                };
            }
            if !flow.tx.fetch_small(&mut self.pool, taken) {
                let limit = flow.send_limit(self.send_buffer);
                taken = taken.min(flow.tx.make_room(&mut self.pool, taken, limit));
            }
        }
        if taken < data.len() {
            self.note_refused(index, taken == 0);
        }
        if taken > 0 {
            self.flows.hot[index].tx.append(data.take(taken));
            self.touch(index);
        }
        taken
    }

    /// Some bytes, or `all`, found no room in the send buffer.
    #[cold]
    fn note_refused(&mut self, index: usize, all: bool) {
        let flow = &mut self.flows.hot[index];
        flow.flags |= flag::WANTS_ROOM;
        if all && flow.tx.is_empty() && !flow.has(flag::WANTS_MEMORY) {
            flow.flags |= flag::WANTS_MEMORY;
            self.starved.push(index as u32);
        }
    }

    /// Bytes that [`Engine::send`] would take now, memory permitting.
    pub fn send_space(&self, flow: FlowId) -> usize {
        self.flows.index(flow).map_or(0, |index| {
            let flow = &self.flows.hot[index];
            let open = matches!(
                flow.state,
                State::SynSent | State::SynReceived | State::Established | State::CloseWait
            );
            if open { flow.send_limit(self.send_buffer).saturating_sub(flow.tx.len()) } else { 0 }
        })
    }

    /// Bytes queued for sending that the peer has not acknowledged.
    pub fn unacknowledged(&self, flow: FlowId) -> usize {
        self.flows.index(flow).map_or(0, |index| self.flows.hot[index].tx.len())
    }

    /// Whether the peer has closed its side and everything it sent was consumed: the end of the
    /// stream.
    pub fn at_end(&self, flow: FlowId) -> bool {
        self.flows.index(flow).is_some_and(|index| {
            let flow = &self.flows.hot[index];
            flow.rx.is_empty() && flow.has(flag::PEER_CLOSED)
        })
    }

    /// Sends nothing more after what is queued: half-close.
    pub fn shutdown_send(&mut self, flow: FlowId) {
        if let Some(index) = self.flows.index(flow) {
            self.close_send(index);
        }
    }

    /// Lets go of the flow: what is queued is still sent, then it is closed. The id is stale at
    /// once and no event follows. If there is received data that was not consumed, the peer gets a
    /// reset, for it will never be read (RFC 2525 section 2.17).
    pub fn close(&mut self, flow: FlowId) {
        if let Some(index) = self.flows.index(flow) {
            self.detach(index);
        }
    }

    /// Resets the connection and lets go of it.
    pub fn abort(&mut self, flow: FlowId) {
        if let Some(index) = self.flows.index(flow) {
            self.abort_flow(index);
        }
    }

    /// Probes the peer after `idle` nanoseconds of silence, and gives it up after some probes;
    /// `None` stops that.
    pub fn set_keepalive(&mut self, flow: FlowId, idle: Option<u64>) {
        let Some(index) = self.flows.index(flow) else { return };
        let cold = &mut self.flows.cold[index];
        cold.keepalive = idle.unwrap_or(0);
        cold.idle_at = idle.map_or(NEVER, |idle| self.now.saturating_add(idle));
        if cold.idle_at != NEVER {
            self.flow_timers.no_later(index as u32, cold.idle_at);
        }
    }

    /// Gives the peer up once it has left unacknowledged for `patience` nanoseconds what was sent
    /// to it, or kept its window closed for so long; `None`: when retransmissions are used up,
    /// which takes minutes (RFC 9293 section 3.9.1 and RFC 1122 section 4.2.3.5, R2;
    /// TCP_USER_TIMEOUT elsewhere). With keepalive it takes the place of the number of probes. It
    /// is looked at when a timer runs out: what is shorter than the retransmission timeout is as
    /// long as that.
    pub fn set_user_timeout(&mut self, flow: FlowId, patience: Option<u64>) {
        let Some(index) = self.flows.index(flow) else { return };
        let cold = &mut self.flows.cold[index];
        cold.user_timeout = patience.map_or(0, |patience| patience.max(1));
        if cold.backoff > 0 && cold.retransmit_at != NEVER {
            cold.retransmit_at = cold.retransmit_at.min(cold.again_at(self.now));
            self.flow_timers.no_later(index as u32, cold.retransmit_at);
        }
    }

    /// Whether small segments wait for the acknowledgement of earlier ones (Nagle). They do not
    /// unless asked to.
    pub fn set_nagle(&mut self, flow: FlowId, on: bool) {
        if let Some(index) = self.flows.index(flow) {
            let flow = &mut self.flows.hot[index];
            flow.flags = if on { flow.flags | flag::NAGLE } else { flow.flags & !flag::NAGLE };
            self.touch(index);
        }
    }

    /// Gives a flow another congestion control, which goes on from the present window.
    pub fn set_congestion(&mut self, flow: FlowId, kind: Kind) {
        let Some(index) = self.flows.index(flow) else { return };
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.congestion = cold.congestion.changed_to(kind, u32::from(flow.mss));
        if !flow.has(flag::RECOVERY) {
            flow.cwnd = cold.congestion.window();
        }
        if kind == Kind::Timely {
            flow.flags |= flag::PACED;
        }
        self.refresh_pace(index);
    }

    /// `(flows, half-open passive connections, connections in TIME-WAIT, bytes in buffers)` right
    /// now.
    pub fn population(&self) -> (usize, usize, usize, usize) {
        (self.flows.len(), self.half_open.len(), self.time_waits.len(), self.pool.used())
    }
}
