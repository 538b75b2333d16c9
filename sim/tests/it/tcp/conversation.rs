//! Two hosts that exchange data by TCP over a simulated link, and the applications on them.
//!
//! 1. A [`World`] has two engines on tapped queues, joined by a link, and a list of [`Connection`]s
//!    that one of them opens at some time. Time jumps from deadline to deadline. When none is left
//!    the run is over, so a lost wake-up shows as a connection that never ends.
//! 2. An [`End`] is the application at one side of a connection. It works by events alone, as the
//!    engine's contract allows: it reads after `Readable`, sends after `Writable`, and polls
//!    nothing.
//! 3. Every byte of a stream is a function of the connection, the direction and its position. So a
//!    byte that is lost, repeated, moved or from another stream is detected when it is read.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sietch_net::{CloseReason, Config, Engine, Event, EventKind, FlowId, Ipv6Config, ReceivedBuffer, State};
use sietch_nic::NicQueue;
use sietch_nic::wire::{WireQueue, WireTap, tapped};
use sietch_sim::{InvariantChecker, Link, LinkConfig, Random};

use super::misbehaving_peer::{self, MisbehavingPeer};

mod script;

pub(super) use script::{Alternation, Finish, Script, piece};

/// The port that both hosts listen on.
pub(super) const PORT: u16 = 7000;
/// The port for connections without expectations: those of the misbehaving peer.
pub(super) const GUEST_PORT: u16 = 6666;
/// The port from and to which both hosts connect in a simultaneous open.
pub(super) const CROSSED_PORT: u16 = 6000;
/// Time without any byte or event at any application after which the world counts as stuck,
/// although the link delivers. It is longer than the longest retransmission timeout, and than
/// keepalive needs to notice a dead peer (135 s).
const STUCK: u64 = 300 * SECOND;
/// Iterations without work that an engine may request in one second.
const IDLE_ITERATIONS: u32 = 20_000;
/// The same for each flow: a paced one may request two for each segment.
const IDLE_ITERATIONS_PER_FLOW: u32 = 1_000;
pub(super) const MILLISECOND: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MILLISECOND;
/// Buffers of each host's queue.
pub(super) const BUFFERS: u32 = 512;
const MTU: usize = 1500;
/// Idle time after which a host probes its peer. A connection whose reset was lost ends by this.
pub(super) const KEEPALIVE: u64 = 60 * SECOND;
/// Iterations at one instant after which a host counts as spinning.
const SPINS: u32 = 1000;

/// The state of an application's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Requested, not established yet.
    Opening,
    /// Established.
    Open,
    /// The application has released it: no event may follow.
    Left,
    /// The engine reported its end.
    Closed(CloseReason),
}

/// The application at one side of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub connection: usize,
    pub flow: FlowId,
    pub phase: Phase,
    pub script: Script,
    /// The direction in which it sends.
    opener: bool,
    pub sent: u64,
    pub received: u64,
    pub peer_closed: bool,
    send_closed: bool,
    may_send: bool,
    may_read: bool,
    asleep_until: u64,
    /// A received buffer that it keeps while it sleeps.
    held: Option<ReceivedBuffer>,
}

/// A connection to open.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    pub opener: usize,
    pub at: u64,
    /// The scripts of the opener and of the other side.
    pub scripts: [Script; 2],
    /// Both sides open it, at the same time.
    pub crossed: bool,
}

pub(super) struct Host {
    pub engine: Engine,
    pub queue: WireQueue,
    /// Of IPv4 and of IPv6.
    pub addresses: [IpAddr; 2],
    pub ends: Vec<End>,
    by_flow: HashMap<FlowId, usize>,
    events: Vec<Event>,
    /// Flows on the port for guests.
    guests: Vec<FlowId>,
    /// Iterations without work in this second.
    idle_iterations: (u64, u32),
    /// Most bytes seen in buffers.
    pub most_bytes: usize,
    /// A host that is switched off does nothing.
    pub on: bool,
}

pub(super) struct World {
    pub now: u64,
    pub hosts: [Host; 2],
    pub link: Link,
    pub connections: Vec<Connection>,
    opened: usize,
    /// The connection for each host and port.
    ports: HashMap<(usize, u16), usize>,
    accepted: Vec<bool>,
    /// Flows that were aborted in this batch.
    ghosts: Vec<FlowId>,
    random: Random,
    /// The address family of the connections: 0 IPv4, 1 IPv6.
    pub family: usize,
    pub misbehaving: Option<MisbehavingPeer>,
    /// When an application last had an event or a byte.
    progress_at: u64,
    /// The time from which the world must not be stuck: its link is healthy then.
    healthy_from: u64,
    /// A hash of everything that applications received.
    pub trace: u64,
}

fn addresses(number: u8) -> [IpAddr; 2] {
    [Ipv4Addr::new(10, 0, 0, number).into(), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()).into()]
}

fn config(number: u8, secret: [u8; 16]) -> Config {
    let [IpAddr::V4(four), IpAddr::V6(six)] = addresses(number) else { unreachable!("one of each") };
    let mut config = Config::new(four, 24, secret);
    config.ipv6 = Some(Ipv6Config { addresses: vec![(six, 64)], gateway: None });
    config
}

impl Host {
    fn new(number: u8, change: &mut dyn FnMut(&mut Config)) -> (Self, WireTap) {
        let mac = [2, 0, 0, 0, 0, number];
        let (queue, tap) = tapped(mac, MTU, BUFFERS);
        let mut config = config(number, [number; 16]);
        change(&mut config);
        let mut engine = Engine::new(&config, mac, MTU);
        engine.listen(PORT, 64).expect("the port is free");
        engine.listen(GUEST_PORT, 16).expect("the port is free");
        let host = Self {
            engine,
            queue,
            addresses: addresses(number),
            ends: Vec::new(),
            by_flow: HashMap::new(),
            events: Vec::new(),
            guests: Vec::new(),
            idle_iterations: (0, 0),
            most_bytes: 0,
            on: true,
        };
        (host, tap)
    }

    /// The machine is switched off and on again: it forgets all connections.
    pub(super) fn reboot(&mut self, secret: u8) {
        let mac = self.queue.mac();
        self.engine = Engine::new(&config(mac[5], [secret; 16]), mac, MTU);
        self.engine.listen(PORT, 64).expect("the port is free");
        self.by_flow.clear();
        for end in &mut self.ends {
            end.phase = Phase::Left;
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        let waiting = |end: &&End| end.phase == Phase::Open && end.may_read && end.asleep_until > 0;
        let woken = self.ends.iter().filter(waiting).map(|end| end.asleep_until).min();
        self.engine.next_deadline().into_iter().chain(woken).min()
    }
}

impl World {
    /// Two hosts; `change` adapts the configuration of each.
    pub(super) fn new(
        mut faults: LinkConfig,
        connections: Vec<Connection>,
        mut random: Random,
        change: &mut dyn FnMut(&mut Config),
    ) -> Self {
        let unchecked = vec![misbehaving_peer::MAC];
        let (first, tap_a) = Host::new(1, change);
        let (second, tap_b) = Host::new(2, change);
        let family = usize::from(random.chance(400));
        if family == 1 {
            // The least MTU of IPv6 (RFC 8200 section 5).
            for mtu in [&mut faults.there.mtu, &mut faults.back.mtu].into_iter().flatten() {
                mtu.bytes = mtu.bytes.max(1280);
            }
        }
        let mut link = Link::new(tap_a, tap_b, faults, random.fork());
        link.watch(Box::new(InvariantChecker::ignoring(unchecked)));
        let accepted = vec![false; connections.len()];
        Self {
            family,
            now: SECOND,
            hosts: [first, second],
            link,
            connections,
            opened: 0,
            ports: HashMap::new(),
            accepted,
            ghosts: Vec::new(),
            random,
            misbehaving: None,
            progress_at: 0,
            healthy_from: u64::MAX,
            trace: 0xcbf2_9ce4_8422_2325,
        }
    }

    fn note(&mut self, word: u64) {
        self.trace = (self.trace ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    /// Advances from deadline to deadline until none is left or `until` has come. Returns whether
    /// the run is over.
    pub(super) fn run(&mut self, until: u64) -> bool {
        let mut spins = 0;
        loop {
            self.iterate();
            let Some(next) = self.next_deadline() else { return true };
            if next > until {
                self.now = self.now.max(until);
                return false;
            }
            let sleeping =
                || self.hosts.iter().any(|host| host.ends.iter().any(|end| end.asleep_until > self.now));
            let since = self.progress_at.max(self.healthy_from);
            let stuck = self.now.saturating_sub(since) > STUCK && !sleeping() && !self.describe().is_empty();
            assert!(!stuck, "stuck since {since} at {}: {:#?}", self.now, self.describe());
            spins = if next > self.now { 0 } else { spins + 1 };
            assert!(spins < SPINS, "a host spins at {}: {:?}", self.now, self.describe());
            self.now = self.now.max(next);
        }
    }

    /// Ends all faults of the link. From now on some application must make progress occasionally.
    pub(super) fn heal(&mut self) {
        self.link.heal();
        self.healthy_from = self.now;
    }

    fn next_deadline(&self) -> Option<u64> {
        let misbehaving =
            self.misbehaving.iter().map(|misbehaving| misbehaving.next).filter(|next| *next < u64::MAX);
        let hosts = self.hosts.iter().filter(|host| host.on).filter_map(Host::next_deadline);
        let opening = self.connections.get(self.opened).map(|connection| connection.at);
        hosts.chain(self.link.next_deadline()).chain(opening).chain(misbehaving).min()
    }

    fn iterate(&mut self) {
        self.link.step(self.now);
        while let Some(connection) = self.connections.get(self.opened)
            && connection.at <= self.now
        {
            self.open(self.opened);
            self.opened += 1;
        }
        if let Some(misbehaving) = &mut self.misbehaving {
            misbehaving.act(&mut self.link, self.now);
        }
        for side in 0..2 {
            if self.hosts[side].on {
                self.iterate_host(side);
            }
        }
        self.link.step(self.now);
    }

    fn open(&mut self, number: usize) {
        let Connection { opener, ref scripts, crossed, .. } = self.connections[number];
        let script = scripts[0].clone();
        if crossed {
            let other = scripts[1].clone();
            self.open_crossed(number, [(opener, script, true), (1 - opener, other, false)]);
            return;
        }
        let remote = SocketAddr::new(self.hosts[1 - opener].addresses[self.family], PORT);
        let host = &mut self.hosts[opener];
        if !host.on {
            return;
        }
        let flow = host.engine.connect(remote, self.now).expect("there is a route, a port and a flow");
        host.engine.set_keepalive(flow, Some(KEEPALIVE));
        let port = host.engine.flow_info(flow).expect("it was just made").local.port();
        self.ports.insert((opener, port), number);
        self.add(opener, number, flow, script, true);
    }

    fn open_crossed(&mut self, number: usize, sides: [(usize, Script, bool); 2]) {
        for (side, script, opener) in sides {
            let remote = SocketAddr::new(self.hosts[1 - side].addresses[self.family], CROSSED_PORT);
            let engine = &mut self.hosts[side].engine;
            let flow = engine.connect(remote, self.now).expect("there is a route, a port and a flow");
            engine.set_keepalive(flow, Some(KEEPALIVE));
            self.add(side, number, flow, script, opener);
        }
    }

    /// The port for guests: every connection is accepted, and gets random data and resets.
    fn handle_guest_event(&mut self, side: usize, event: &Event) -> bool {
        let host = &mut self.hosts[side];
        if matches!(event.kind, EventKind::Accepted { port: GUEST_PORT, .. }) {
            host.engine.set_keepalive(event.flow, Some(KEEPALIVE));
            host.guests.push(event.flow);
            return true;
        }
        let Some(place) = host.guests.iter().position(|guest| *guest == event.flow) else { return false };
        if matches!(event.kind, EventKind::Closed(_)) {
            host.guests.swap_remove(place);
        }
        true
    }

    fn serve_guests(&mut self, side: usize) {
        let host = &mut self.hosts[side];
        let random = &mut self.random;
        let engine = &mut host.engine;
        host.guests.retain(|guest| {
            let mut bytes = [0; 2048];
            while engine.read(*guest, &mut bytes) == bytes.len() {}
            engine.send(*guest, &bytes[..random.index(bytes.len())]);
            // Some are reset.
            match random.below(200) {
                0 => engine.close(*guest),
                1 => engine.abort(*guest),
                2 => engine.shutdown_send(*guest),
                _ => {}
            }
            let ends = engine.at_end(*guest);
            if ends {
                engine.close(*guest);
            }
            !ends && engine.flow_info(*guest).is_some()
        });
    }

    fn add(&mut self, side: usize, connection: usize, flow: FlowId, script: Script, opener: bool) {
        let host = &mut self.hosts[side];
        let stale = host.by_flow.insert(flow, host.ends.len());
        assert_eq!(stale, None, "{flow:?} was given out twice");
        host.ends.push(End {
            connection,
            flow,
            phase: Phase::Opening,
            script,
            opener,
            sent: 0,
            received: 0,
            peer_closed: false,
            send_closed: false,
            may_send: false,
            may_read: false,
            asleep_until: 0,
            held: None,
        });
    }

    fn iterate_host(&mut self, side: usize) {
        loop {
            let host = &mut self.hosts[side];
            let asked = host.engine.next_deadline().is_some_and(|at| at <= self.now);
            let (received, more) = host.engine.receive(&mut host.queue, self.now);
            let mut events = std::mem::take(&mut host.events);
            host.engine.take_events(&mut events);
            assert_order(&events);
            let quiet = events.is_empty() && received == 0;
            if !events.is_empty() {
                self.progress_at = self.now;
            }
            for event in events.drain(..) {
                if !self.handle_guest_event(side, &event) {
                    self.handle_event(side, event);
                }
            }
            if !self.hosts[side].guests.is_empty() {
                self.serve_guests(side);
            }
            self.hosts[side].events = events;
            self.ghosts.clear();
            self.work(side);
            let host = &mut self.hosts[side];
            host.most_bytes = host.most_bytes.max(host.engine.population().3);
            let emitted = host.engine.emit(&mut host.queue, self.now).expect("the wire is not cut");
            if asked && quiet && emitted.sent == 0 {
                let second = self.now / SECOND;
                let iterations =
                    if host.idle_iterations.0 == second { host.idle_iterations.1 + 1 } else { 1 };
                host.idle_iterations = (second, iterations);
                assert!(
                    iterations < IDLE_ITERATIONS + IDLE_ITERATIONS_PER_FLOW * host.ends.len() as u32,
                    "host {side} iterates {iterations} times a second without work at {}",
                    self.now
                );
            }
            if emitted.more {
                // Sent frames must be taken before the next poll.
                self.link.step(self.now);
            }
            if !more && !emitted.more {
                break;
            }
        }
    }

    fn handle_event(&mut self, side: usize, event: Event) {
        if let EventKind::Accepted { port, remote } = event.kind {
            assert_eq!(port, PORT);
            let number = *self
                .ports
                .get(&(1 - side, remote.port()))
                .unwrap_or_else(|| panic!("a connection from {remote} that no host opened"));
            if std::mem::replace(&mut self.accepted[number], true) {
                // Either a late copy of the SYN reached a host that had forgotten the connection,
                // and its opener acknowledged the new number by chance. Or the segment that once
                // answered a cookie came again after the end, before the application had polled.
                // Two live flows of one connection are never right.
                let first = self.end(number, 1).map(|end| (end.phase, end.flow));
                let ended = first.is_some_and(|(phase, flow)| {
                    matches!(phase, Phase::Left | Phase::Closed(_))
                        || self.hosts[side]
                            .engine
                            .flow_info(flow)
                            .is_none_or(|info| info.state == State::Closed)
                });
                assert!(ended, "accepted twice: {number}, {first:?}");
                self.hosts[side].engine.abort(event.flow);
                self.ghosts.push(event.flow);
                return;
            }
            let script = self.connections[number].scripts[1].clone();
            self.hosts[side].engine.set_keepalive(event.flow, Some(KEEPALIVE));
            self.add(side, number, event.flow, script, false);
        }
        if self.ghosts.contains(&event.flow) {
            return;
        }
        let host = &mut self.hosts[side];
        let known = host.by_flow.get(&event.flow).copied();
        let place = known.unwrap_or_else(|| panic!("{event:?} of an unknown flow"));
        let end = &mut host.ends[place];
        assert!(matches!(end.phase, Phase::Opening | Phase::Open), "{event:?} after the end: {end:?}");
        let begins = matches!(event.kind, EventKind::Accepted { .. } | EventKind::Connected);
        let ends = matches!(event.kind, EventKind::Closed(_));
        assert_eq!(begins, end.phase == Phase::Opening && !ends, "{event:?} out of order: {end:?}");
        match event.kind {
            EventKind::Accepted { .. } | EventKind::Connected => {
                end.phase = Phase::Open;
                end.may_send = true;
            }
            EventKind::Readable => end.may_read = true,
            EventKind::Writable => end.may_send = true,
            EventKind::PeerClosed => {
                assert!(!end.peer_closed, "the peer closed twice: {end:?}");
                end.peer_closed = true;
                end.may_read = true;
            }
            EventKind::Closed(reason) => {
                end.phase = Phase::Closed(reason);
                end.held = None;
                host.by_flow.remove(&event.flow);
            }
            EventKind::Datagram { .. } => panic!("no host sends datagrams"),
        }
        let connection = end.connection as u64;
        self.note(self.now ^ connection << 40 ^ (side as u64) << 60);
        self.note(rank(&event));
    }

    /// Every application runs as far as it can.
    fn work(&mut self, side: usize) {
        let now = self.now;
        let mut bytes = 0;
        let Host { engine, ends, by_flow, .. } = &mut self.hosts[side];
        for end in ends.iter_mut().filter(|end| end.phase == Phase::Open) {
            let before = end.received + end.sent;
            end.work(engine, now, &mut self.random);
            bytes += end.received + end.sent - before;
            if end.phase == Phase::Left {
                by_flow.remove(&end.flow);
            }
        }
        if bytes > 0 {
            self.progress_at = now;
            self.note(bytes ^ now);
        }
    }

    /// The first few unfinished connections, for messages.
    pub(super) fn describe(&self) -> Vec<String> {
        let open = |side: usize| {
            let host = &self.hosts[side];
            let live = host.ends.iter().filter(|end| matches!(end.phase, Phase::Opening | Phase::Open));
            live.map(move |end| format!("host {side}: {end:?} {:?}", host.engine.flow_info(end.flow)))
        };
        open(0).chain(open(1)).take(4).collect()
    }

    /// Asserts that nothing of any connection remains: no flow, no buffer, no frame.
    pub(super) fn assert_clean(&self) {
        assert!(self.describe().is_empty(), "never ended: {:#?}", self.describe());
        for (side, host) in self.hosts.iter().enumerate().filter(|(_, host)| host.on) {
            assert_eq!(host.engine.population(), (0, 0, 0, 0), "host {side} keeps flows or memory");
            assert_eq!(host.queue.free_buffers(), BUFFERS as usize, "host {side} leaks frames");
        }
    }

    /// The end of connection `number` at its opener (0) or the other side (1), if there ever was
    /// one.
    pub(super) fn end(&self, number: usize, role: usize) -> Option<&End> {
        let side = self.connections[number].opener ^ role;
        self.hosts[side].ends.iter().find(|end| end.connection == number)
    }
}

/// The events of a flow in one batch are adjacent, each at most once, in the order of the list.
fn assert_order(events: &[Event]) {
    let mut finished = Vec::new();
    for pair in events.windows(2) {
        if pair[0].flow == pair[1].flow {
            assert!(rank(&pair[0]) < rank(&pair[1]), "{pair:?}");
        } else {
            finished.push(pair[0].flow);
            assert!(!finished.contains(&pair[1].flow), "events of one flow are scattered: {events:?}");
        }
    }
}

impl End {
    fn work(&mut self, engine: &mut Engine, now: u64, random: &mut Random) {
        self.read(engine, now, random);
        if self.phase == Phase::Open {
            self.write(engine);
        }
        if self.phase == Phase::Open {
            self.finish(engine);
        }
    }

    fn read(&mut self, engine: &mut Engine, now: u64, random: &mut Random) {
        if !self.may_read || now < self.asleep_until {
            return;
        }
        self.asleep_until = 0;
        self.held = None;
        if random.chance(self.script.sleep_permille) {
            self.asleep_until = now + random.between(1, self.script.longest_sleep);
            return;
        }
        if self.script.receives_zero_copy
            && let Some(buffer) = engine.receive_zero_copy(self.flow)
        {
            let (first, second) = buffer.slices();
            let expected = piece(self.connection, !self.opener, self.received, buffer.len());
            assert!([first, second].concat() == expected, "wrong bytes after {}: {self:?}", self.received);
            self.received += buffer.len() as u64;
            if self.script.sleep_permille > 0 {
                self.held = Some(buffer);
                self.asleep_until = now + random.between(1, self.script.longest_sleep);
                return;
            }
        }
        let mut bytes = vec![0; self.script.read_size];
        loop {
            let length = engine.read(self.flow, &mut bytes);
            let expected = piece(self.connection, !self.opener, self.received, length);
            assert!(bytes[..length] == *expected, "wrong bytes after {}: {self:?}", self.received);
            self.received += length as u64;
            if length < bytes.len() {
                self.may_read = false;
                break;
            }
            if self.script.sleep_permille > 0 {
                // A slow reader reads a piece at a time, and returns by itself: no event announces
                // old bytes.
                self.asleep_until = now + random.between(1, self.script.longest_sleep);
                break;
            }
        }
    }

    fn write(&mut self, engine: &mut Engine) {
        loop {
            let due = self.script.due(self.received);
            if !self.may_send || self.send_closed || self.sent >= due {
                break;
            }
            let length = (due - self.sent).min(self.script.write_size as u64) as usize;
            let bytes = piece(self.connection, self.opener, self.sent, length);
            // Every other piece is sent without a copy.
            if self.script.sends_zero_copy && (self.sent / self.script.write_size as u64).is_multiple_of(2) {
                self.may_send = engine.send_zero_copy(self.flow, bytes.into()).is_ok();
                self.sent += if self.may_send { length as u64 } else { 0 };
                continue;
            }
            let taken = engine.send(self.flow, &bytes);
            self.sent += taken as u64;
            self.may_send = taken == length;
        }
    }

    fn finish(&mut self, engine: &mut Engine) {
        let all_sent = self.sent == self.script.total;
        let at_end = engine.at_end(self.flow);
        let leaves = match self.script.finish {
            Finish::HalfClose => false,
            Finish::CloseAtEnd => all_sent && at_end,
            Finish::CloseAfter(bytes) => all_sent && (at_end || self.received >= bytes),
            Finish::AbortAfter(bytes) => at_end || self.received + self.sent >= bytes,
        };
        if leaves {
            if matches!(self.script.finish, Finish::AbortAfter(_)) {
                engine.abort(self.flow);
            } else {
                engine.close(self.flow);
            }
            self.phase = Phase::Left;
            self.held = None;
        } else if all_sent && !self.send_closed && self.script.finish != Finish::CloseAtEnd {
            engine.shutdown_send(self.flow);
            self.send_closed = true;
        }
    }
}

/// The position of an event's kind in the engine's list.
fn rank(event: &Event) -> u64 {
    match event.kind {
        EventKind::Accepted { .. } => 0,
        EventKind::Connected => 1,
        EventKind::Readable => 2,
        EventKind::Writable => 3,
        EventKind::PeerClosed => 4,
        EventKind::Closed(_) => 5,
        EventKind::Datagram { .. } => 6,
    }
}
