//! Two engines over a wire in one thread, timed. Not a test: `cargo test --release -p sietch-net
//! --test it throughput -- --ignored --nocapture`.

use std::net::{Ipv4Addr, SocketAddrV4};

use sietch_net::{Config, Engine, Event, EventKind, FlowId};
use sietch_nic::wire::{WireQueue, pair};

const MTU: usize = 1500;

/// Nanoseconds of processor time that this thread has used: what else runs on the machine matters
/// less.
fn processor_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

struct Side {
    engine: Engine,
    queue: WireQueue,
    events: Vec<Event>,
}

fn sides() -> (Side, Side) {
    let (a, b) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let (queue_a, queue_b) = pair(a, b, MTU, 1024);
    let side = |mac: [u8; 6], queue| Side {
        engine: Engine::new(&Config::new(Ipv4Addr::new(10, 0, 0, mac[5]), 24, [7; 16]), mac, MTU),
        queue,
        events: Vec::new(),
    };
    (side(a, queue_a), side(b, queue_b))
}

impl Side {
    fn receive(&mut self, now: u64) {
        self.engine.receive(&mut self.queue, now);
        self.engine.take_events(&mut self.events);
    }

    fn emit(&mut self, now: u64) {
        self.engine.emit(&mut self.queue, now).expect("a wire does not break");
    }
}

fn open(client: &mut Side, server: &mut Side, count: usize) -> Vec<FlowId> {
    server.engine.listen(7, 1000).expect("the port is free");
    let mut flows = Vec::new();
    for _ in 0..count {
        flows.push(
            client
                .engine
                .connect(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7), 1)
                .expect("there is a route"),
        );
        for now in 1..8 {
            for side in [&mut *client, &mut *server] {
                side.receive(now);
                side.emit(now);
            }
        }
    }
    client.events.clear();
    server.events.clear();
    flows
}

/// Each of `count` flows has one request of 64 bytes in flight, answered by 64 bytes.
fn request_response(count: usize, rounds: usize) {
    let (mut client, mut server) = sides();
    let flows = open(&mut client, &mut server, count);
    for &flow in &flows {
        client.engine.send(flow, &[1; 64]);
    }
    let start = processor_time();
    let (mut answered, mut now) = (0u64, 1000u64);
    for _ in 0..rounds {
        now += 1000;
        client.emit(now);
        server.receive(now);
        let mut events = std::mem::take(&mut server.events);
        for event in events.drain(..).filter(|event| event.kind == EventKind::Readable) {
            let length = server.engine.received(event.flow).0.len();
            server.engine.consume(event.flow, length);
            server.engine.send(event.flow, &[2; 64][..length.min(64)]);
        }
        server.events = events;
        server.emit(now);
        client.receive(now);
        let mut events = std::mem::take(&mut client.events);
        for event in events.drain(..).filter(|event| event.kind == EventKind::Readable) {
            let length = client.engine.received(event.flow).0.len();
            client.engine.consume(event.flow, length);
            client.engine.send(event.flow, &[1; 64]);
            answered += 1;
        }
        client.events = events;
    }
    let elapsed = processor_time() - start;
    let fast =
        server.engine.metrics().segments_fast as f64 / server.engine.metrics().segments_received as f64;
    println!(
        "{count} flows, 64 B request and response: {:.0} ns for both engines and the wire, {:.1} % fast",
        elapsed as f64 / answered as f64,
        fast * 100.0
    );
}

fn bulk(total: usize) {
    let (mut client, mut server) = sides();
    let flow = open(&mut client, &mut server, 1)[0];
    let (chunk, mut got, mut now) = (vec![9u8; 256 << 10], 0usize, 1000u64);
    let mut other = None;
    let start = processor_time();
    while got < total {
        now += 10_000;
        client.engine.send(flow, &chunk);
        client.emit(now);
        server.receive(now);
        other = other.or(server.events.drain(..).next().map(|event| event.flow));
        server.events.clear();
        if let Some(other) = other {
            let (first, second) = server.engine.received(other);
            let length = first.len() + second.len();
            got += length;
            server.engine.consume(other, length);
        }
        server.emit(now);
        client.receive(now);
        client.events.clear();
    }
    let seconds = (processor_time() - start) as f64 / 1e9;
    println!("bulk: {:.2} GB/s through both engines and the wire on one core", got as f64 / seconds / 1e9);
}

#[test]
#[ignore = "measures; run in release"]
fn throughput() {
    for count in [1, 50, 1000] {
        request_response(count, 2_000_000 / count);
    }
    bulk(4 << 30);
}
