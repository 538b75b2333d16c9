//! Instructions of the fast path, counted by callgrind: repeatable where time is not.
//!
//! Two engines on one wire exchange requests and replies of 64 bytes. Set-up (handshakes, first buffers) is not counted; the figure is that of
//! both engines, both queues and the wire for [`REQUESTS`] requests. The limits are what was measured plus 3 %: who makes the
//! fast path longer has to say so here.
#![allow(missing_docs, reason = "gungraun's macros make public items")]

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddrV4};

use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use sietch_net::{Config, Engine, Event, EventKind as What, FlowId};
use sietch_nic::wire::{WireQueue, pair};

/// Requests that a measurement counts.
const REQUESTS: usize = 1000;

struct Side {
    engine: Engine,
    queue: WireQueue,
    events: Vec<Event>,
}

impl Side {
    fn receive(&mut self, now: u64) {
        self.engine.receive(&mut self.queue, now);
        self.engine.take_events(&mut self.events);
    }

    fn emit(&mut self, now: u64) {
        self.engine.emit(&mut self.queue, now).expect("a wire does not break");
    }

    /// Consumes what arrived and answers it, 64 bytes for 64 bytes. Returns whole requests.
    fn answer(&mut self, byte: u8) -> usize {
        let mut events = std::mem::take(&mut self.events);
        let mut whole = 0;
        for event in events.drain(..).filter(|event| event.kind == What::Readable) {
            let (first, second) = self.engine.received(event.flow);
            let length = first.len() + second.len();
            whole += length / 64;
            self.engine.consume(event.flow, length);
            self.engine.send(event.flow, &[byte; 1024][..length.min(1024)]);
        }
        self.events = events;
        whole
    }
}

/// Both ends, with connections, and requests in flight on each.
struct Conversation {
    client: Side,
    server: Side,
    now: u64,
    requests: usize,
}

fn converse(flows: usize, pipeline: usize) -> Conversation {
    let (a, b) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let (queue_a, queue_b) = pair(a, b, 1500, 2048);
    let side = |mac: [u8; 6], queue| Side {
        engine: Engine::new(&Config::new(Ipv4Addr::new(10, 0, 0, mac[5]), 24, [7; 16]), mac, 1500),
        queue,
        events: Vec::new(),
    };
    let (mut client, mut server) = (side(a, queue_a), side(b, queue_b));
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
        client.engine.send(flow, &[1; 1024][..64 * pipeline]);
    }
    let mut ready = Conversation { client, server, now, requests: 1000 };
    // Buffers, tables and estimators settle.
    exchange(&mut ready);
    ready.requests = REQUESTS;
    ready
}

fn exchange(conversation: &mut Conversation) {
    let Conversation { client, server, now, requests } = conversation;
    let mut answered = 0;
    while answered < *requests {
        *now += 1000;
        client.emit(*now);
        server.receive(*now);
        server.answer(2);
        server.emit(*now);
        client.receive(*now);
        answered += client.answer(1);
    }
}

fn limit(instructions: u64) -> LibraryBenchmarkConfig {
    // Both engines and the wire, for all requests of a measurement.
    let limit = instructions * REQUESTS as u64 * 103 / 100;
    LibraryBenchmarkConfig::default().tool(Callgrind::default().hard_limits([(EventKind::Ir, limit)])).clone()
}

#[library_benchmark]
#[bench::one(args = (1, 1), setup = converse, config = limit(7480))]
#[bench::fifty(args = (50, 1), setup = converse, config = limit(6850))]
#[bench::pipelined(args = (1, 16), setup = converse, config = limit(674))]
fn rpc(mut conversation: Conversation) -> Conversation {
    exchange(black_box(&mut conversation));
    conversation
}

library_benchmark_group!(name = fast_path; benchmarks = rpc);
main!(library_benchmark_groups = fast_path);
