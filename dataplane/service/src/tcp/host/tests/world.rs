//! Everything in one thread: the host with its applications, the link, the peer's engine.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use rustix::io::Errno;
use sietch_net::{CloseReason, Config, Engine, Event, EventKind, FlowId};
use sietch_nic::wire::{WireQueue, tapped};
use sietch_sim::{Link, LinkConfig, Random};
use sietch_structures::Key;

use super::pipe::{Pipe, ServiceEnd};
use crate::tcp::channel::WakeOn;
use crate::tcp::host::{Host, NewConnection};
use crate::tcp::ports::Ports;

pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub(super) const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(super) const PORT: u16 = 7000;
/// A port without a listener.
const CLOSED: u16 = 7001;
/// Iterations at one instant that count as a busy loop.
const SPINS: u32 = 20_000;

/// How the peer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Sends everything, then FIN; reads to the end.
    Polite,
    /// Sends everything, waits for that to arrive, then resets.
    Reset,
    /// Sends everything, and a reset right behind it.
    ResetBehind,
}

/// What is to happen on one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// Whether the application connects; else the peer does.
    pub opens: bool,
    /// Whose it is.
    pub owner: u8,
    /// Bytes that the application sends, and the peer.
    pub application: u64,
    pub peer: u64,
    pub peer_ends: Ending,
    /// The application dies when it has read this many bytes, or as soon as it has sent everything.
    pub dies_at: Option<u64>,
    pub dies_when_sent: bool,
    /// Most bytes in one of the application's calls.
    pub call: usize,
    pub to_closed_port: bool,
    /// Neither side sends or ends.
    pub silent: bool,
    pub hostile: bool,
    pub at: u64,
}

impl Plan {
    pub(super) fn polite(opens: bool) -> Self {
        Self {
            opens,
            owner: 1,
            application: 100,
            peer: 100,
            peer_ends: Ending::Polite,
            dies_at: None,
            dies_when_sent: false,
            call: 4096,
            to_closed_port: false,
            silent: false,
            hostile: false,
            at: 0,
        }
    }

    pub(super) fn draw_polite(random: &mut Random) -> Self {
        let most = *random.pick(&[0, 100, 20_000, 400_000]);
        Self {
            owner: 1 + random.index(3) as u8,
            application: random.between(0, most),
            peer: random.between(0, most),
            call: *random.pick(&[1500, 4096, 60_000]),
            at: random.below(3 * SECOND),
            ..Self::polite(random.chance(500))
        }
    }

    pub(super) fn draw(random: &mut Random) -> Self {
        let mut plan = Self::draw_polite(random);
        if random.chance(200) {
            plan.peer_ends = Ending::Reset;
        }
        if random.chance(200) {
            plan.dies_at = Some(random.between(0, plan.peer));
        }
        plan.dies_when_sent = random.chance(100);
        plan
    }

    fn is_polite(&self) -> bool {
        self.peer_ends == Ending::Polite
            && self.dies_at.is_none()
            && !self.dies_when_sent
            && !self.to_closed_port
            && !self.hostile
    }
}

/// The byte at a position of a stream.
fn byte(stream: usize, position: u64) -> u8 {
    (position.wrapping_mul(31) ^ (position >> 8) ^ (stream as u64).wrapping_mul(97)) as u8
}

#[derive(Debug, Default)]
struct Peer {
    flow: Option<FlowId>,
    sent: u64,
    received: u64,
    ended: bool,
    closed: Option<CloseReason>,
    left: bool,
}

#[derive(Debug)]
struct Case {
    plan: Plan,
    begun: bool,
    pipe: Rc<RefCell<Pipe>>,
    key: Option<Key>,
    sent: u64,
    read: u64,
    done: bool,
    peer: Peer,
}

pub(super) struct World {
    pub host: Host<ServiceEnd>,
    queue: WireQueue,
    peer: Engine,
    peer_queue: WireQueue,
    link: Link,
    cases: Vec<Case>,
    /// Cases by the peer's flow, and by the peer's port.
    by_flow: HashMap<FlowId, usize>,
    by_port: HashMap<u16, usize>,
    binding: Key,
    pub accepting: bool,
    /// Applications do nothing.
    pub asleep: bool,
    pub arrived: Vec<NewConnection>,
    pub iterations: u64,
    pub most_in_an_iteration: u64,
    pub now: u64,
}

fn engine(address: Ipv4Addr, secret: u8, queue: &WireQueue) -> Engine {
    use sietch_nic::NicQueue as _;
    Engine::new(&Config::new(address, 24, [secret; 16]), queue.mac(), queue.mtu())
}

impl World {
    pub(super) fn new(faults: LinkConfig, plans: Vec<Plan>, mut random: Random) -> Self {
        let (queue, tap) = tapped([2, 0, 0, 0, 0, 2], 1500, 512);
        let (peer_queue, peer_tap) = tapped([2, 0, 0, 0, 0, 1], 1500, 512);
        let ports = Ports::new(vec![SERVICE.into()], vec![1..=u16::MAX]);
        let mut host = Host::new(engine(SERVICE, 3, &queue), ports);
        let mut peer = engine(PEER, 9, &peer_queue);
        peer.listen(PORT, 1000).expect("no other listener");
        let owner = host.application([0; 16], 1000);
        let binding = host.bind(super::name(PORT, owner)).expect("the name is free");
        host.listen(binding, 128).expect("no other listener");
        let case = |plan: Plan| Case {
            plan,
            begun: false,
            pipe: Rc::new(RefCell::new(Pipe::new(plan.hostile))),
            key: None,
            sent: 0,
            read: 0,
            done: false,
            peer: Peer::default(),
        };
        Self {
            host,
            queue,
            peer,
            peer_queue,
            link: Link::new(tap, peer_tap, faults, random.fork()),
            cases: plans.into_iter().map(case).collect(),
            by_flow: HashMap::new(),
            by_port: HashMap::new(),
            binding,
            accepting: true,
            asleep: false,
            arrived: Vec::new(),
            iterations: 0,
            most_in_an_iteration: 0,
            now: SECOND,
        }
    }

    pub(super) fn backlog(&mut self, backlog: u32) {
        self.host.listen(self.binding, backlog).expect("it is ours");
    }

    /// This application does nothing any more, and the world does not wait for it.
    pub(super) fn stop(&mut self, case: usize) {
        self.cases[case].done = true;
    }

    pub(super) fn heal(&mut self) {
        self.link.heal();
    }

    pub(super) fn pipe(&self, case: usize) -> std::cell::Ref<'_, Pipe> {
        self.cases[case].pipe.borrow()
    }

    pub(super) fn peer_was_reset(&self, case: usize) -> bool {
        self.cases[case].peer.closed == Some(CloseReason::Reset)
    }

    pub(super) fn peer_received(&self, case: usize) -> u64 {
        self.cases[case].peer.received
    }

    /// Connections that were established at the service.
    pub(super) fn established(&self) -> usize {
        self.host.engine().flows().count()
    }

    /// Continues until everything is over (`true`), nothing is due any more, or `until` has come.
    pub(super) fn run(&mut self, until: u64) -> bool {
        let mut spins = 0;
        loop {
            self.begin();
            self.link.step(self.now);
            let mut busy = self.serve();
            busy |= self.run_applications();
            busy |= self.run_peer();
            self.link.step(self.now);
            if self.is_over() {
                self.host.prepare_sleep();
                return true;
            }
            if busy {
                spins += 1;
                assert!(spins < SPINS, "the world spins at {}: {:#?}", self.now, self.describe());
                continue;
            }
            spins = 0;
            if !self.host.prepare_sleep() {
                self.host.wake();
                continue;
            }
            let begins = self.cases.iter().filter(|case| !case.begun).map(|case| case.plan.at);
            let due = [self.host.next_deadline(), self.peer.next_deadline(), self.link.next_deadline()];
            let Some(next) = due.into_iter().flatten().chain(begins).min() else {
                // A peer whose reset was lost, and which has nothing to send, is never noticed
                // again.
                return self.host.counters().connections == 0
                    && self.cases.iter().all(|case| case.done || case.key.is_none());
            };
            if next > until {
                self.now = until;
                return false;
            }
            self.now = self.now.max(next);
            self.host.wake();
        }
    }

    fn is_over(&self) -> bool {
        let over = |case: &Case| {
            let pipe = case.pipe.borrow();
            let never = pipe.failed.is_some() || pipe.broken.is_some();
            let peer = case.peer.left || case.peer.closed.is_some() || (case.peer.flow.is_none() && never);
            // A peer that closed at once was perhaps never accepted.
            case.begun && peer && (case.done || case.key.is_none())
        };
        self.accepting && self.cases.iter().all(over) && self.host.counters().connections == 0
    }

    fn begin(&mut self) {
        for index in 0..self.cases.len() {
            let (plan, now) = (self.cases[index].plan, self.now);
            if self.cases[index].begun || plan.at > now {
                continue;
            }
            self.cases[index].begun = true;
            if plan.opens {
                let application = self.host.application([plan.owner; 16], 1000);
                let port = if plan.to_closed_port { CLOSED } else { PORT };
                let begun = self.host.begin(application, None, SocketAddr::from((PEER, port)), now);
                let begun = begun.expect("there is room");
                self.by_port.insert(begun.local.port(), index);
                let end = ServiceEnd(Rc::clone(&self.cases[index].pipe));
                self.cases[index].key = self.host.attach(begun.flow, application, end).ok();
                self.host.engine.set_keepalive(begun.flow, (!plan.silent).then_some(60 * SECOND));
            } else {
                let flow = self.peer.connect((SERVICE, PORT), now).expect("there is room");
                let port = self.peer.flow_info(flow).expect("it is there").local_port;
                self.by_port.insert(port, index);
                self.by_flow.insert(flow, index);
                self.cases[index].peer.flow = Some(flow);
            }
        }
    }

    /// The service: an iteration, arrivals, doorbells.
    fn serve(&mut self) -> bool {
        let before: HashMap<[u8; 16], u64> =
            self.host.usages().map(|(_, share)| (share.id, share.sent)).collect();
        let mut busy = self.host.poll(&mut self.queue, self.now).expect("the wire is whole");
        self.iterations += 1;
        for (_, share) in self.host.usages() {
            let moved = share.sent - before.get(&share.id).copied().unwrap_or(share.sent);
            self.most_in_an_iteration = self.most_in_an_iteration.max(moved);
        }
        while self.accepting
            && let Some(arrival) = self.host.next_arrival(self.binding)
        {
            busy = true;
            self.arrived.push(arrival);
            let index = self.by_port[&arrival.remote.port()];
            let owner = self.cases[index].plan.owner;
            let application = self.host.application([owner; 16], 1000);
            let end = ServiceEnd(Rc::clone(&self.cases[index].pipe));
            end.0.borrow_mut().established = true;
            end.0.borrow_mut().application_notified = true;
            self.cases[index].key = self.host.attach(arrival.flow, application, end).ok();
            // A peer's reset that was lost would otherwise never be noticed.
            self.host.engine.set_keepalive(arrival.flow, Some(60 * SECOND));
            self.host.dequeued(self.binding);
        }
        for index in 0..self.cases.len() {
            let Some(key) = self.cases[index].key else { continue };
            if self.cases[index].pipe.borrow().service_notified {
                busy = true;
                self.host.notified(key);
            }
        }
        busy
    }

    /// Applications that were notified do what they can, then sleep.
    fn run_applications(&mut self) -> bool {
        let mut busy = false;
        for index in 0..self.cases.len() {
            let case = &mut self.cases[index];
            if self.asleep || case.done || !std::mem::take(&mut case.pipe.borrow_mut().application_notified) {
                continue;
            }
            busy = true;
            case.pipe.borrow_mut().application = WakeOn::default();
            if step(index, case)
                && let Some(key) = case.key
            {
                case.done = true;
                case.pipe.borrow_mut().closed = true;
                self.host.hung_up(key);
            }
        }
        busy
    }

    fn run_peer(&mut self) -> bool {
        let (received, more) = self.peer.receive(&mut self.peer_queue, self.now);
        let mut events: Vec<Event> = Vec::new();
        self.peer.take_events(&mut events);
        let mut busy = received > 0 || more || !events.is_empty();
        for event in events {
            self.peer_event(event);
        }
        for index in 0..self.cases.len() {
            self.peer_step(index);
        }
        let emitted = self.peer.emit(&mut self.peer_queue, self.now).expect("the wire is whole");
        busy |= emitted.sent > 0 || emitted.more;
        busy
    }

    fn peer_event(&mut self, event: Event) {
        match event.kind {
            EventKind::Accepted { remote, .. } => {
                assert_eq!(remote.ip(), IpAddr::from(SERVICE));
                let index = self.by_port[&remote.port()];
                self.by_flow.insert(event.flow, index);
                self.cases[index].peer.flow = Some(event.flow);
            }
            EventKind::Closed(reason) => {
                let index = self.by_flow[&event.flow];
                self.cases[index].peer.closed = Some(reason);
            }
            _ => {}
        }
    }

    fn peer_step(&mut self, index: usize) {
        let case = &mut self.cases[index];
        let (plan, peer, engine) = (case.plan, &mut case.peer, &mut self.peer);
        let Some(flow) = peer.flow.filter(|_| peer.closed.is_none() && !peer.left && !plan.silent) else {
            return;
        };
        loop {
            let (bytes, _) = engine.received(flow);
            if bytes.is_empty() {
                break;
            }
            let count = bytes.len();
            let honest = !plan.hostile;
            for (at, &got) in bytes.iter().enumerate() {
                assert!(
                    !honest || got == byte(2 * index, peer.received + at as u64),
                    "case {index}: a foreign byte"
                );
            }
            peer.received += count as u64;
            engine.consume(flow, count);
        }
        while peer.sent < plan.peer {
            let count = (plan.peer - peer.sent).min(8192) as usize;
            let bytes: Vec<u8> = (peer.sent..).take(count).map(|at| byte(2 * index + 1, at)).collect();
            let taken = engine.send(flow, &bytes);
            peer.sent += taken as u64;
            if taken < count {
                break;
            }
        }
        let all_sent = peer.sent == plan.peer;
        match plan.peer_ends {
            Ending::Polite if all_sent && !peer.ended => {
                peer.ended = true;
                engine.shutdown_send(flow);
            }
            // Our own application has read what there is to read when nothing is unacknowledged.
            Ending::Reset if all_sent && engine.unacknowledged(flow) == 0 && case.read >= plan.peer => {
                peer.left = true;
                engine.abort(flow);
            }
            Ending::ResetBehind
                if all_sent
                    && engine.flow_info(flow).is_some_and(|info| {
                        info.in_flight as usize == info.unsent_or_unacknowledged && info.in_flight > 0
                    }) =>
            {
                peer.left = true;
                engine.abort(flow);
            }
            _ => {}
        }
        if peer.ended && engine.at_end(flow) {
            peer.left = true;
            engine.close(flow);
        }
    }

    /// Honest and polite connections have delivered everything; nothing is left of any.
    pub(super) fn check(&self) {
        for (index, case) in self.cases.iter().enumerate() {
            let pipe = case.pipe.borrow();
            if !case.plan.is_polite() {
                assert!(pipe.received <= case.plan.peer);
                assert!(case.plan.hostile || case.peer.received <= case.plan.application);
                continue;
            }
            let lost = matches!(case.peer.closed, Some(CloseReason::Unreachable | CloseReason::TimedOut));
            if lost
                || pipe.failed.is_some()
                || matches!(pipe.broken, Some(Errno::TIMEDOUT | Errno::HOSTUNREACH))
            {
                // The link was down for as long as a peer is waited for.
                continue;
            }
            assert_eq!(pipe.received, case.plan.peer, "case {index}: {case:?}");
            assert_eq!(case.peer.received, case.plan.application, "case {index}: {case:?}");
        }
        let counters = self.host.counters();
        assert_eq!((counters.connections, counters.active), (0, 0));
        let live = self.host.engine().flows().filter(|(_, info)| !info.orphaned).count();
        assert_eq!(live, 0, "some flows have an owner that has ended");
        assert_eq!(self.host.usages().count(), 1, "an application without anything is remembered");
    }

    pub(super) fn describe(&self) -> impl std::fmt::Debug {
        let all = self.cases.iter();
        let flows: Vec<_> = self.host.engine().flows().map(|(_, info)| (info.state, info.remote)).collect();
        (self.now, self.host.counters(), flows, format!("{:?}", all.collect::<Vec<_>>()))
    }
}

/// What an application does when it is awake. Returns whether it has ended.
fn step(index: usize, case: &mut Case) -> bool {
    let (plan, mut pipe) = (case.plan, case.pipe.borrow_mut());
    if pipe.failed.is_some() {
        return true;
    }
    if plan.silent || !pipe.established {
        pipe.application = WakeOn { data: true, room: true };
        return pipe.broken.is_some();
    }
    loop {
        let mut moved = false;
        if case.sent < plan.application && pipe.broken.is_none() {
            let count = (plan.application - case.sent).min(plan.call as u64) as usize;
            let taken = pipe.write(|at| byte(2 * index, at), case.sent, count);
            case.sent += taken as u64;
            moved |= taken > 0;
        }
        let all_sent = case.sent == plan.application;
        if all_sent && plan.dies_when_sent && pipe.into.is_empty() {
            return true;
        }
        if all_sent && !pipe.out_ended {
            pipe.end();
            moved = true;
        }
        let bytes = pipe.read(plan.call);
        for (at, &got) in bytes.iter().enumerate() {
            assert_eq!(got, byte(2 * index + 1, case.read + at as u64), "case {index}: a foreign byte");
        }
        case.read += bytes.len() as u64;
        moved |= !bytes.is_empty();
        if plan.dies_at.is_some_and(|at| case.read >= at) {
            return true;
        }
        if pipe.into.is_empty() && (pipe.broken.is_some() || (pipe.into_ended && all_sent)) {
            return true;
        }
        if !moved {
            pipe.application = WakeOn { data: true, room: case.sent < plan.application };
            return false;
        }
    }
}
