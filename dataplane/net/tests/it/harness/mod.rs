//! Two engines on tapped queues, joined by a wire that the test controls, in virtual time.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod peer;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use sietch_net::{Config, Engine, Event, EventKind, FlowId, Ipv6Config};
use sietch_nic::NicQueue;
use sietch_nic::wire::{WireQueue, WireTap, tapped};

pub(crate) const SERVER_PORT: u16 = 7000;
pub(crate) const MTU: usize = 1500;
pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MILLISECOND;
/// One way, nanoseconds.
pub(crate) const DELAY: u64 = 50_000;
const BUFFERS: u32 = 512;

/// The IPv6 address of a host.
pub(crate) const fn address6(last: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last as u16)
}

/// Gives a host an IPv6 address on a link of 64 bits, and no router.
pub(crate) fn speak_ipv6(config: &mut Config) {
    let last = config.address.octets()[3];
    config.ipv6 = Some(Ipv6Config { addresses: vec![(address6(last), 64)], gateway: None });
}

/// One engine with its queue, the far end of that queue, and its events.
pub(crate) struct Host {
    pub engine: Engine,
    pub queue: WireQueue,
    pub tap: WireTap,
    pub events: Vec<Event>,
    pub address: Ipv4Addr,
    pub mac: [u8; 6],
    /// Leave the events in the engine.
    pub hold_events: bool,
}

impl Host {
    pub(crate) fn new(last: u8, change: impl FnOnce(&mut Config)) -> Self {
        let address = Ipv4Addr::new(10, 0, 0, last);
        let mac = [2, 0, 0, 0, 0, last];
        let (queue, tap) = tapped(mac, MTU, BUFFERS);
        let mut config = Config::new(address, 24, [last; 16]);
        change(&mut config);
        Self {
            engine: Engine::new(&config, mac, MTU),
            queue,
            tap,
            events: Vec::new(),
            address,
            mac,
            hold_events: false,
        }
    }

    pub(crate) fn poll(&mut self, now: u64) -> bool {
        let result = self.engine.poll(&mut self.queue, now).expect("a wire does not break");
        if !self.hold_events {
            self.engine.take_events(&mut self.events);
        }
        result.more
    }

    pub(crate) fn read_all(&mut self, flow: FlowId) -> Vec<u8> {
        let (first, second) = self.engine.received(flow);
        let bytes = [first, second].concat();
        self.engine.consume(flow, bytes.len());
        bytes
    }

    pub(crate) fn saw(&self, flow: FlowId, kind: EventKind) -> bool {
        self.events.iter().any(|event| event.flow == flow && event.kind == kind)
    }

    pub(crate) fn saw_any_close(&self) -> bool {
        self.events.iter().any(|event| matches!(event.kind, EventKind::Closed(_)))
    }

    pub(crate) fn accepted(&self) -> Vec<FlowId> {
        let accepted = |event: &&Event| matches!(event.kind, EventKind::Accepted { .. });
        self.events.iter().filter(accepted).map(|event| event.flow).collect()
    }
}

/// What the wire does with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    Drop,
    Duplicate,
    /// Let the next frame of the same direction overtake it.
    Swap,
}

/// Where a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Client,
    Server,
}

/// Decides the fate of the frame with this number.
pub(crate) type Decide = Box<dyn FnMut(usize, From, &[u8]) -> Fate>;

pub(crate) struct Network {
    pub client: Host,
    pub server: Host,
    pub now: u64,
    pub frames: usize,
    pub fate: Decide,
    /// (arrival, frame) in each direction.
    to_server: VecDeque<(u64, Vec<u8>)>,
    to_client: VecDeque<(u64, Vec<u8>)>,
    held: [Option<Vec<u8>>; 2],
}

impl Network {
    pub(crate) fn new() -> Self {
        Self::with(|_| {}, |_| {})
    }

    pub(crate) fn with(client: impl FnOnce(&mut Config), server: impl FnOnce(&mut Config)) -> Self {
        let mut network = Self {
            client: Host::new(1, client),
            server: Host::new(2, server),
            now: SECOND,
            frames: 0,
            fate: Box::new(|_, _, _| Fate::Pass),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            held: [None, None],
        };
        network.server.engine.listen(SERVER_PORT, 64).expect("the port is free");
        network
    }

    pub(crate) fn server_address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.server.address, SERVER_PORT)
    }

    /// Two hosts that speak both families.
    pub(crate) fn dual() -> Self {
        Self::with(speak_ipv6, speak_ipv6)
    }

    /// Opens a connection and returns both ends.
    pub(crate) fn open(&mut self) -> (FlowId, FlowId) {
        self.open_to(self.server_address().into())
    }

    /// Opens a connection to the server by one of its addresses.
    pub(crate) fn open_to(&mut self, server: SocketAddr) -> (FlowId, FlowId) {
        let before = self.server.accepted().len();
        let client = self.client.engine.connect(server, self.now).expect("there is a route");
        self.run();
        assert!(self.client.saw(client, EventKind::Connected), "{:?}", self.client.events);
        (client, self.server.accepted()[before])
    }

    fn carry(&mut self) {
        for (from, side) in [(From::Client, 0), (From::Server, 1)] {
            let tap = if from == From::Client { &self.client.tap } else { &self.server.tap };
            let mut arriving = Vec::new();
            while let Some(frame) = tap.take_transmitted() {
                let fate = (self.fate)(self.frames, from, &frame);
                self.frames += 1;
                let held = self.held[side].take();
                match fate {
                    Fate::Pass => arriving.push(frame),
                    Fate::Drop => {}
                    Fate::Duplicate => arriving.extend([frame.clone(), frame]),
                    Fate::Swap => self.held[side] = Some(frame),
                }
                arriving.extend(held);
            }
            let at = self.now + DELAY;
            let queue = if from == From::Client { &mut self.to_server } else { &mut self.to_client };
            queue.extend(arriving.into_iter().map(|frame| (at, frame)));
        }
    }

    fn deliver(&mut self) {
        for (queue, host) in
            [(&mut self.to_server, &mut self.server), (&mut self.to_client, &mut self.client)]
        {
            while queue.front().is_some_and(|entry| entry.0 <= self.now) {
                if let Some((_, frame)) = queue.pop_front() {
                    host.tap.deliver(&frame);
                }
            }
        }
    }

    /// One step at the present time: both engines work and the wire takes what they sent.
    pub(crate) fn step(&mut self) {
        self.deliver();
        while self.client.poll(self.now) {
            self.carry();
        }
        while self.server.poll(self.now) {
            self.carry();
        }
        self.carry();
    }

    fn next_arrival(&self) -> Option<u64> {
        self.to_server.front().into_iter().chain(self.to_client.front()).map(|entry| entry.0).min()
    }

    fn next_deadline(&self) -> Option<u64> {
        self.client.engine.next_deadline().into_iter().chain(self.server.engine.next_deadline()).min()
    }

    /// Moves on until no frame is on its way; timers that come due later stay pending.
    pub(crate) fn run(&mut self) {
        self.step();
        while let Some(at) = self.next_arrival() {
            self.now = self.now.max(at);
            self.step();
        }
    }

    /// Moves on to `until`, frames and timers included.
    pub(crate) fn run_until(&mut self, until: u64) {
        self.step();
        loop {
            let next = self.next_arrival().into_iter().chain(self.next_deadline()).min();
            match next {
                Some(at) if at <= until => self.now = self.now.max(at),
                _ => break,
            }
            self.step();
        }
        self.now = self.now.max(until);
        self.step();
    }

    /// Moves to the next frame or timer. False if there is none.
    pub(crate) fn advance(&mut self) -> bool {
        let next = self.next_arrival().into_iter().chain(self.next_deadline()).min();
        let Some(at) = next else { return false };
        self.now = self.now.max(at);
        self.step();
        true
    }

    /// Lets all timers run out and checks that nothing is left: no frame buffer, no memory, no
    /// timer.
    pub(crate) fn settle(&mut self) {
        self.run_until(self.now + 400 * SECOND);
        for host in [&mut self.client, &mut self.server] {
            assert_eq!(host.queue.free_buffers(), BUFFERS as usize, "a frame leaked");
            let (flows, half_open, time_waits, bytes) = host.engine.population();
            assert_eq!((flows, half_open, time_waits, bytes), (0, 0, 0, 0));
        }
        assert_eq!(self.next_deadline(), None, "idle engines have no deadlines");
    }
}
