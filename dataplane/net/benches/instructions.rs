//! Instructions of the fast path, counted by callgrind: repeatable where time is not.
//!
//! Two engines exchange requests and replies of 64 bytes. They do so on a wire in memory, which
//! needs checksums and stands for a real network, and over a link of shared memory, which needs
//! none. Set-up (handshakes, first buffers) is not counted. The figure covers both engines, both
//! queues and the applications' calls for [`REQUESTS`] requests. `idle` are iterations without a
//! frame: a loop that spins notices its next request half an iteration late on average. The limits
//! are the measured figures plus 3 %: a change that makes the fast path longer must raise them
//! here.
#![allow(missing_docs, reason = "gungraun's macros make public items")]

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddrV4};

use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use sietch_net::{Config, Engine, Event, EventKind as What, FlowId};
use sietch_nic::NicQueue;
use sietch_nic::shm::{Endpoint, LinkLayout, create_pair};
use sietch_nic::wire::{WireQueue, pair};

/// Requests that a measurement counts.
const REQUESTS: usize = 1000;
/// What is sent.
const BYTES: [u8; 1024] = [1; 1024];
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

struct Side<Q> {
    engine: Engine,
    queue: Q,
    events: Vec<Event>,
}

impl<Q: NicQueue> Side<Q> {
    fn new(queue: Q) -> Self {
        let mac = queue.mac();
        let config = Config::new(Ipv4Addr::new(10, 0, 0, mac[5]), 24, [7; 16]);
        Self { engine: Engine::new(&config, mac, queue.mtu()), queue, events: Vec::new() }
    }

    fn receive(&mut self, now: u64) -> usize {
        let (frames, _) = self.engine.receive(&mut self.queue, now);
        self.engine.take_events(&mut self.events);
        frames
    }

    fn emit(&mut self, now: u64) -> usize {
        self.engine.emit(&mut self.queue, now).expect("memory does not break").sent
    }

    /// Consumes what arrived and answers it, 64 bytes for 64 bytes. Returns whole requests.
    fn answer(&mut self) -> usize {
        let mut whole = 0;
        for event in self.events.drain(..).filter(|event| event.kind == What::Readable) {
            let (first, second) = self.engine.received(event.flow);
            let length = first.len() + second.len();
            whole += length / 64;
            self.engine.consume(event.flow, length);
            self.engine.send(event.flow, &BYTES[..length.min(1024)]);
        }
        whole
    }
}

/// Both ends, with connections, and requests in flight on each.
struct Conversation<Q> {
    client: Side<Q>,
    server: Side<Q>,
    now: u64,
    requests: usize,
}

fn on_wire(flows: usize, pipeline: usize) -> Conversation<WireQueue> {
    converse(pair(MACS[0], MACS[1], 1500, 2048), flows, pipeline)
}

fn on_link(flows: usize, pipeline: usize) -> Conversation<Endpoint> {
    let layout = LinkLayout::for_mtu(1500);
    let pair = create_pair(layout, 1).expect("memory and descriptors are left");
    let open = |fds, mac| Endpoint::open(fds, layout, mac, 1500).expect("it is new");
    converse((open(pair.near, MACS[0]), open(pair.far, MACS[1])), flows, pipeline)
}

fn converse<Q: NicQueue>(queues: (Q, Q), flows: usize, pipeline: usize) -> Conversation<Q> {
    let (mut client, mut server) = (Side::new(queues.0), Side::new(queues.1));
    server.engine.listen(7, 1000).expect("the port is free");
    let mut now = 1;
    let mut open: Vec<FlowId> = Vec::new();
    for _ in 0..flows {
        let remote = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7);
        open.push(client.engine.connect(remote, now).expect("there is a route"));
        for _ in 0..6 {
            now += 1000;
            for side in [&mut client, &mut server] {
                side.receive(now);
                side.emit(now);
            }
        }
    }
    client.events.clear();
    server.events.clear();
    for flow in open {
        client.engine.send(flow, &BYTES[..64 * pipeline]);
    }
    let mut ready = Conversation { client, server, now, requests: 1000 };
    // Buffers, tables and estimators settle.
    exchange(&mut ready);
    ready.requests = REQUESTS;
    ready
}

fn exchange<Q: NicQueue>(conversation: &mut Conversation<Q>) {
    let Conversation { client, server, now, requests } = conversation;
    let mut answered = 0;
    while answered < *requests {
        *now += 1000;
        client.emit(*now);
        server.receive(*now);
        server.answer();
        server.emit(*now);
        client.receive(*now);
        answered += client.answer();
    }
}

fn limit(instructions: u64) -> LibraryBenchmarkConfig {
    // Both engines and what is between them, for all requests of a measurement.
    let limit = instructions * REQUESTS as u64 * 103 / 100;
    LibraryBenchmarkConfig::default().tool(Callgrind::default().hard_limits([(EventKind::Ir, limit)])).clone()
}

#[library_benchmark]
#[bench::one(args = (1, 1), setup = on_wire, config = limit(5724))]
#[bench::fifty(args = (50, 1), setup = on_wire, config = limit(5453))]
#[bench::pipelined(args = (1, 16), setup = on_wire, config = limit(546))]
fn rpc(mut conversation: Conversation<WireQueue>) -> Conversation<WireQueue> {
    exchange(black_box(&mut conversation));
    conversation
}

#[library_benchmark]
#[bench::one(args = (1, 1), setup = on_link, config = limit(5382))]
#[bench::fifty(args = (50, 1), setup = on_link, config = limit(5075))]
#[bench::pipelined(args = (1, 16), setup = on_link, config = limit(397))]
fn rpc_link(mut conversation: Conversation<Endpoint>) -> Conversation<Endpoint> {
    exchange(black_box(&mut conversation));
    conversation
}

#[library_benchmark]
#[bench::link(args = (1, 1), setup = on_link, config = limit(254))]
fn idle(mut conversation: Conversation<Endpoint>) -> Conversation<Endpoint> {
    let Conversation { server, now, .. } = black_box(&mut conversation);
    for _ in 0..REQUESTS {
        *now += 10;
        assert_eq!((server.emit(*now), server.receive(*now)), (0, 0));
        assert!(server.engine.next_deadline() > Some(*now));
    }
    conversation
}

library_benchmark_group!(name = fast_path; benchmarks = rpc, rpc_link, idle);
main!(library_benchmark_groups = fast_path);
