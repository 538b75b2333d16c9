//! Exclusive sections of several cores, without a log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use sietch::nic::wire::WireQueue;
use sietch_sim::disk::SimDisk;
use sietch_structures::Random;

use super::{SlowLinks, Wires, ask, connect, received, shards};
use crate::foundation::client_id::ClientId;
use crate::foundation::settings::Durability;
use crate::server::Reactor;
use crate::server::tests::SECOND;
use crate::shard::{Now, Placement};

/// Cores of one store, with a client each.
struct Group {
    reactors: Vec<Reactor<WireQueue, SimDisk>>,
    clients: Vec<ClientId>,
    /// A key of each core.
    keys: Vec<String>,
    random: Random,
    now: Now,
}

impl Group {
    fn new(cores: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let now = Now { monotonic_ns: SECOND, unix_ms: 1_700_000_000_000 };
        let wires: Wires = Arc::new(Mutex::new((0..cores * cores).map(|_| VecDeque::new()).collect()));
        let placement = Placement::new(0, cores);
        let key = |core| {
            let mut names = (0..).map(|number| format!("k{number}"));
            names.find(|name| placement.shard_of(name.as_bytes()) == core).expect("one")
        };
        let mut group = Self {
            reactors: Vec::new(),
            clients: Vec::new(),
            keys: (0..cores).map(key).collect(),
            random: random.fork(),
            now,
        };
        for (own, mut shard) in shards(cores, Durability::None, seed).into_iter().enumerate() {
            group.clients.push(connect(&mut shard, now));
            let mut reactor = Reactor::new(shard, None, None, None);
            let links =
                SlowLinks { own, cores, wires: Arc::clone(&wires), random: random.fork(), delay: 400 };
            reactor.join(Placement::new(own, cores), Box::new(links));
            group.reactors.push(reactor);
        }
        group
    }

    /// Has all cores send events of keys, and a client on each core of `listening` receive them.
    fn subscribe(&mut self, listening: std::ops::Range<usize>) -> Vec<ClientId> {
        assert!(self.send(0, "CONFIG SET notify-keyspace-events E$"));
        while !self.received(0).ends_with("+OK\r\n") {
            self.iterate();
        }
        let subscribe = |core: usize| {
            while self.reactors[core].shard.is_none() {
                self.iterate();
            }
            let (now, shard) = (self.now, self.reactors[core].shard.as_mut().expect("it is here"));
            let client = connect(shard, now);
            ask(shard, client, b"PSUBSCRIBE *\r\n", now);
            client
        };
        listening.map(subscribe).collect()
    }

    /// A write to a key of a core. Its event has ten kilobytes.
    fn write(&self, core: usize) -> String {
        format!("SET {{{}}}{} 1", self.keys[core], "x".repeat(10_000))
    }

    /// Has a core announce more at once than may be undelivered.
    fn overwhelm(&mut self, core: usize) {
        let write = self.write(core);
        (0..1000).for_each(|_| assert!(self.send(core, &write)));
        self.reactors[core].iterate(self.now).expect("no device fails here");
        assert!(self.reactors[core].is_held(), "no other core has delivered anything");
    }

    /// Sends a command to the core of a client, if its shard is there.
    fn send(&mut self, core: usize, command: &str) -> bool {
        let Some(shard) = &mut self.reactors[core].shard else { return false };
        shard.feed(self.clients[core], format!("{command}\r\n").as_bytes(), self.now);
        true
    }

    fn iterate(&mut self) {
        self.now.monotonic_ns += 1000;
        let core = self.random.index(self.reactors.len());
        self.reactors[core].iterate(self.now).expect("no device fails here");
    }

    fn received(&mut self, core: usize) -> String {
        let client = self.clients[core];
        let shard = self.reactors[core].shard.as_mut();
        shard.map(|shard| received(shard, client, &mut Vec::new())).unwrap_or_default()
    }

    /// The value of each core's key, once its shard is there.
    fn values(&mut self) -> Vec<String> {
        let mut values = Vec::new();
        for core in 0..self.reactors.len() {
            while self.reactors[core].shard.is_none() {
                self.iterate();
            }
            let (now, key) = (self.now, format!("GET {}\r\n", self.keys[core]));
            let shard = self.reactors[core].shard.as_mut().expect("it is here");
            let client = connect(shard, now);
            values.push(ask(shard, client, key.as_bytes(), now));
            shard.disconnect(client);
        }
        values
    }
}

#[test]
fn no_forwarded_command_of_any_core_runs_after_a_pause() {
    let mut late = 0;
    for seed in 0..80 {
        let cores = 2 + seed as usize % 3;
        let mut group = Group::new(cores, seed);
        let pauser = group.random.index(cores);
        let mut sent = false;
        loop {
            let core = group.random.index(cores);
            if core != pauser {
                let key = group.keys[group.random.index(cores)].clone();
                late += u64::from(sent && group.send(core, &format!("INCR {key}")));
            } else if !sent && group.random.chance(100) {
                sent = group.send(core, "CLIENT PAUSE 1000000 WRITE");
            }
            group.iterate();
            if group.received(pauser) == "+OK\r\n" {
                break;
            }
        }
        let values = group.values();
        (0..2000).for_each(|_| group.iterate());
        assert_eq!(group.values(), values, "seed {seed}, {cores} cores");
    }
    assert!(late > 100, "{late} commands were sent after the pause");
}

#[test]
fn a_client_that_waits_for_lists_does_not_notice_a_string_that_a_section_writes() {
    let mut group = Group::new(2, 5);
    let keys = group.keys.join(" ");
    assert!(group.send(1, &format!("BLPOP {keys} 0")));
    (0..2000).for_each(|_| group.iterate());
    let [first, second] = [0, 1].map(|core| group.keys[core].clone());
    assert!(group.send(0, &format!("MSET {first} 1 {second} 2")));
    (0..2000).for_each(|_| group.iterate());
    assert_eq!((group.received(0).as_str(), group.received(1).as_str()), ("+OK\r\n", ""));
    // It waits still, and is served once.
    assert!(group.send(0, &format!("DEL {keys}")));
    (0..2000).for_each(|_| group.iterate());
    assert!(group.send(0, &format!("RPUSH {second} element")));
    (0..2000).for_each(|_| group.iterate());
    assert_eq!(group.received(1), format!("*2\r\n$2\r\n{second}\r\n$7\r\nelement\r\n"));
}

#[test]
fn a_core_that_does_not_deliver_holds_back_those_that_announce() {
    const EVENTS: usize = 3000;
    // With some seeds, both cores are held before either has delivered anything.
    let (mut group, subscribers) = (0..20)
        .find_map(|seed| {
            let mut group = Group::new(2, seed);
            let subscribers = group.subscribe(0..2);
            (0..2).for_each(|core| group.overwhelm(core));
            let shard = group.reactors[1].shard.as_ref().expect("nothing needs a section");
            let event = format!("{{{}}}", group.keys[0]);
            let has_received = String::from_utf8_lossy(shard.output(subscribers[1])).contains(&event);
            (!has_received && group.reactors[0].is_held()).then_some((group, subscribers))
        })
        .expect("messages take a while");
    let (mut sent, mut delivered, mut held) = ([1000; 2], [0; 2], 0);
    let writes = [group.write(0), group.write(1)];
    for _ in 0..1_000_000 {
        let core = group.random.index(2);
        if group.reactors[core].is_held() {
            held += 1;
        } else if sent[core] < EVENTS && group.send(core, &writes[core]) {
            sent[core] += 1;
        }
        group.iterate();
        group.received(core);
        for core in 0..2 {
            let Some(shard) = &mut group.reactors[core].shard else { continue };
            let text = received(shard, subscribers[core], &mut Vec::new());
            delivered[core] += text.matches(&format!("{{{}}}", group.keys[1 - core])).count();
        }
        if delivered == [EVENTS; 2] {
            break;
        }
    }
    assert_eq!(delivered, [EVENTS; 2], "lost, or held for ever");
    assert!(held > 0);
}

#[test]
fn a_section_runs_although_the_coordinator_waits_for_deliveries() {
    let mut group = Group::new(3, 8);
    group.subscribe(1..2);
    (0..2000).for_each(|_| group.iterate());
    let iterate = |group: &mut Group, core: usize| {
        group.reactors[core].iterate(group.now).expect("no device fails here");
    };
    assert!(group.send(1, "DBSIZE"));
    // Two shards go to the coordinator. Meanwhile it announces much, which they cannot deliver.
    while group.reactors[1].shard.is_some() {
        (0..2).for_each(|core| iterate(&mut group, core));
    }
    group.overwhelm(0);
    while group.reactors[2].shard.is_some() {
        iterate(&mut group, 2);
    }
    while group.reactors[1].shard.is_none() {
        (0..2).for_each(|core| iterate(&mut group, core));
    }
    iterate(&mut group, 1);
    assert_eq!(group.received(1), ":1\r\n", "the section has not run");
    while group.reactors[0].is_held() {
        group.iterate();
    }
}
