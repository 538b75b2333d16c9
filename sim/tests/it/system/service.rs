//! A whole store behind a simulated link, and its clients on the other side of it.
//!
//! 1. The server is the loop's own [`Reactor`]: shard, log on a simulated disk, engine on a tapped
//!    queue. It can lose its power or its process, and come back.
//! 2. Clients are connections of one engine ([`client`]). Each knows the expected bytes of every
//!    reply. When a client loses its connection it reconnects later and reads its data. They must
//!    be the state after some of the commands that it had sent, all acknowledged ones among them.
//! 3. Time jumps to the next deadline of any part. While the log waits for the disk, time moves in
//!    small steps.

use std::net::{Ipv4Addr, SocketAddrV4};

use sietch_kv::server::{Reactor, VnicTransport, recover};
use sietch_kv::settings::{Durability, Settings};
use sietch_kv::shard::{Now, Shard};
use sietch_net::{Config, Engine, Event};
use sietch_nic::wire::{WireQueue, WireTap, tapped};
use sietch_sim::disk::Options;
use sietch_sim::{Crash, Link, LinkConfig, Media, Random, SimDisk};

pub(super) mod client;

use client::Client;

pub(super) const SECOND: u64 = 1_000_000_000;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 6379;
const MTU: usize = 1500;
const BUFFERS: u32 = 512;
/// How long an iteration waits for the disk.
const DISK_STEP: u64 = 20_000;
/// Iterations at one instant after which the server counts as spinning.
const SPINS: u32 = 1000;
/// Bytes that the server may use: its data are small, and a slow reader must not cost more than its
/// soft limit.
const MEMORY: u64 = 24 << 20;

type Machine = Reactor<WireQueue, SimDisk>;

pub(super) fn at(nanoseconds: u64) -> Now {
    Now { monotonic_ns: nanoseconds, unix_ms: 1_800_000_000_000 + nanoseconds / 1_000_000 }
}

pub(super) fn address() -> SocketAddrV4 {
    SocketAddrV4::new(SERVER, PORT)
}

/// How the server fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Down {
    /// The power fails.
    Power,
    /// The process dies.
    Killed,
}

pub(super) struct World {
    pub now: u64,
    pub random: Random,
    pub media: Media,
    pub server: Option<Machine>,
    pub link: Link,
    pub engine: Engine,
    queue: WireQueue,
    pub clients: Vec<Client>,
    events: Vec<Event>,
    starts: u8,
    /// The server's next iteration is due even if no client's is.
    due: Option<u64>,
    pub trace: u64,
}

impl World {
    pub(super) fn new(faults: LinkConfig, clients: Vec<Client>, mut random: Random) -> Self {
        let (queue, tap) = tapped([2, 0, 0, 0, 0, 1], MTU, BUFFERS);
        let (_, unused) = tapped([2, 0, 0, 0, 0, 2], MTU, 1);
        let config = Config::new(Ipv4Addr::new(10, 0, 0, 1), 24, [1; 16]);
        let mut world = Self {
            now: SECOND,
            media: Media::new(Options::new(2 << 20), random.fork()),
            server: None,
            link: Link::new(tap, unused, faults, random.fork()),
            engine: Engine::new(&config, [2, 0, 0, 0, 0, 1], MTU),
            queue,
            clients,
            events: Vec::new(),
            starts: 0,
            due: None,
            trace: 0,
            random,
        };
        world.start();
        world
    }

    /// The server recovers and serves.
    pub(super) fn start(&mut self) {
        let mut shard = Shard::new(Settings::default(), 1);
        let disk = self.media.open();
        let (log_writer, _) = recover("kv", disk, &mut shard, Durability::Always, 7, at(self.now))
            .unwrap_or_else(|refusal| panic!("the store does not start: {refusal}"));
        self.starts += 1;
        let mac = [2, 0, 0, 0, 0, 2];
        let (queue, tap): (WireQueue, WireTap) = tapped(mac, MTU, BUFFERS);
        // Another secret each time, so that sequence numbers do not continue where they were.
        let engine = Engine::new(&Config::new(SERVER, 24, [100 + self.starts; 16]), mac, MTU);
        let vnic = VnicTransport::open(queue, engine, SERVER, PORT).expect("the port is free");
        self.link.replace_second(tap);
        self.server = Some(Reactor::new(shard, Some(log_writer), Some(vnic), None));
        self.due = Some(self.now);
    }

    /// The server fails at once.
    pub(super) fn stop(&mut self, how: Down) {
        self.server = None;
        match how {
            Down::Power => {
                let fate = self.random.fork();
                self.media.crash(Crash::Random(fate));
            }
            Down::Killed => self.media.kill(),
        }
    }

    /// Advances to `until`, or until `done` returns true.
    pub(super) fn run(&mut self, until: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        let mut spins = 0;
        loop {
            self.iterate();
            if done(self) {
                return true;
            }
            let Some(next) = self.next_deadline() else {
                self.now = self.now.max(until);
                return false;
            };
            if next > until {
                self.now = self.now.max(until);
                return false;
            }
            spins = if next > self.now { 0 } else { spins + 1 };
            assert!(
                spins < SPINS,
                "a host spins at {}: server {:?}, client engine {:?}, link {:?}, clients {:#?}",
                self.now,
                self.due,
                self.engine.next_deadline(),
                self.link.next_deadline(),
                self.describe()
            );
            self.now = self.now.max(next);
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        let server = self.server.as_ref().and(self.due);
        let clients = self.clients.iter().filter_map(Client::next_deadline).min();
        [server, clients, self.engine.next_deadline(), self.link.next_deadline()].into_iter().flatten().min()
    }

    fn iterate(&mut self) {
        self.link.step(self.now);
        self.iterate_clients();
        self.link.step(self.now);
        if let Some(server) = &mut self.server {
            let iteration = server.iterate(at(self.now)).expect("there are no sockets to break");
            assert!(server.take_vnic_failure().is_none(), "the wire was not cut");
            let waits = iteration.disk.then_some(self.now + DISK_STEP);
            let soon = iteration.busy.then_some(self.now);
            self.due = [iteration.deadline, waits, soon].into_iter().flatten().min();
            let used = server.shard().map_or(0, |shard| shard.used_memory());
            assert!(used < MEMORY, "the server uses {used} bytes");
        }
        self.link.step(self.now);
    }

    fn iterate_clients(&mut self) {
        loop {
            let (_, more) = self.engine.receive(&mut self.queue, self.now);
            let mut events = std::mem::take(&mut self.events);
            self.engine.take_events(&mut events);
            for event in events.drain(..) {
                let owner = self.clients.iter_mut().find(|client| client.flow() == Some(event.flow));
                if let Some(client) = owner {
                    client.handle_event(&event, self.now);
                    self.trace = self
                        .trace
                        .wrapping_mul(0x0000_0100_0000_01b3)
                        .wrapping_add(self.now ^ client.number as u64);
                }
            }
            self.events = events;
            for client in &mut self.clients {
                client.work(&mut self.engine, self.now, &mut self.random);
            }
            let emitted = self.engine.emit(&mut self.queue, self.now).expect("the wire was not cut");
            if emitted.more {
                self.link.step(self.now);
            }
            if !more && !emitted.more {
                break;
            }
        }
    }

    /// The state of every client, for messages.
    pub(super) fn describe(&self) -> Vec<String> {
        self.clients.iter().filter(|client| !client.is_done()).map(Client::describe).collect()
    }
}
