//! Many flows on one slow queue: whose turn it is.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use sietch_net::{Config, Engine, EventKind, FlowId};
use sietch_nic::NicQueue;
use sietch_nic::shm::{Endpoint, LinkLayout, Pair, create_pair};
use sietch_nic::wire::{Medium, tapped_with};

const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SERVER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const MTU: usize = 1500;
const PORT: u16 = 7;
const SINK: u16 = 8;
/// Bytes of a request: three segments.
const REQUEST: usize = 4096;
const REPLY: usize = 16;
/// Nanoseconds of a step, and the frames that leave the client in it: one in 12 microseconds, as
/// through 1 Gbit/s.
const STEP: u64 = 192_000;
const FRAMES: usize = 16;

fn engine(mac: [u8; 6]) -> Engine {
    Engine::new(&Config::new(Ipv4Addr::new(10, 0, 0, mac[5]), 24, [mac[5]; 16]), mac, MTU)
}

/// The far end of the client's link in the role of a switch that limits the client's rate.
fn take(port: &mut Endpoint, limit: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    port.receive(&mut frames, limit);
    let bytes = |port: &Endpoint, frame: &_| [port.bytes(frame).to_vec(), port.tail(frame).to_vec()].concat();
    frames
        .into_iter()
        .map(|frame| {
            let bytes = bytes(port, &frame);
            port.release(frame);
            bytes
        })
        .collect()
}

fn give(port: &mut Endpoint, bytes: &[u8]) {
    let mut frame = port.allocate(bytes.len()).expect("replies are small");
    port.bytes_mut(&mut frame).copy_from_slice(bytes);
    port.transmit(frame).expect("an allocated frame has a slot");
}

/// The answers to each flow, and how long they took in nanoseconds, in order.
struct Outcome {
    answered: Vec<u64>,
    waits: Vec<u64>,
}

/// Runs `flows` flows, each of which sends its next request when the last one was answered, and
/// perhaps one that always has more to send.
fn run(flows: u32, endless: bool) -> Outcome {
    let layout = LinkLayout { slots: 512, data: 1 << 20 };
    let Pair { near, far, revocation: _revocation } = create_pair(layout, 1).expect("memory for a link");
    let mut near = Endpoint::open(near, layout, CLIENT, MTU).expect("a fresh link");
    let mut port = Endpoint::open(far, layout, SERVER, MTU).expect("a fresh link");
    let (mut queue, tap) = tapped_with(SERVER, MTU, 1024, Medium::SHARED_MEMORY);
    let (mut client, mut server) = (engine(CLIENT), engine(SERVER));
    server.listen(PORT, flows + 1).expect("the port is free");
    server.listen(SINK, 1).expect("the port is free");

    let mut now = 1_000_000_000;
    let to = |port| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, SERVER[5]), port);
    let endless = endless.then(|| client.connect(to(SINK), now).expect("there is a route"));
    let mut open: HashMap<FlowId, (u64, u64)> =
        (0..flows).map(|_| (client.connect(to(PORT), now).expect("there is a route"), (0, 0))).collect();
    let (mut events, mut waits, mut sink) = (Vec::new(), Vec::new(), None);
    for step in 0..4_000 {
        now += STEP;
        client.poll(&mut near, now).expect("the link is whole");
        client.take_events(&mut events);
        for event in events.drain(..).filter(|event| Some(event.flow) != endless) {
            let (since, answered) = open.get_mut(&event.flow).expect("a flow of the test");
            match event.kind {
                EventKind::Connected => {}
                EventKind::Readable => {
                    client.consume(event.flow, REPLY);
                    if step > 1_000 {
                        waits.push(now - *since);
                        *answered += 1;
                    }
                }
                kind => panic!("{kind:?}"),
            }
            *since = now;
            assert_eq!(client.send(event.flow, &[1; REQUEST]), REQUEST);
        }
        if let Some(flow) = endless {
            while client.send(flow, &[3; REQUEST]) > 0 {}
        }
        client.poll(&mut near, now).expect("the link is whole");
        for frame in take(&mut port, FRAMES) {
            assert!(tap.deliver(&frame), "the server reads all");
        }
        while server.poll(&mut queue, now).expect("a wire does not break").more {}
        server.take_events(&mut events);
        for event in events.drain(..) {
            if matches!(event.kind, EventKind::Accepted { port: SINK, .. }) {
                sink = Some(event.flow);
            }
            let (first, second) = server.received(event.flow);
            let arrived = first.len() + second.len();
            if sink == Some(event.flow) {
                server.consume(event.flow, arrived);
                continue;
            }
            for _ in 0..arrived / REQUEST {
                server.consume(event.flow, REQUEST);
                assert_eq!(server.send(event.flow, &[2; REPLY]), REPLY);
            }
        }
        while server.poll(&mut queue, now).expect("a wire does not break").more {}
        while let Some(frame) = tap.take_transmitted() {
            give(&mut port, &frame);
        }
        port.flush().expect("the link is whole");
    }
    waits.sort_unstable();
    Outcome { answered: open.values().map(|(_, answered)| *answered).collect(), waits }
}

/// The requests of all flows do not fit the client's queue. Served in turn, each waits as long as
/// every other.
#[test]
fn flows_that_wait_for_room_in_the_queue_are_served_in_turn() {
    let Outcome { answered, waits } = run(400, false);
    let total = answered.iter().sum::<u64>();
    let share = (answered.iter().min().unwrap_or(&0) * answered.len() as u64) as f64 / total as f64;
    let (median, p99) = (waits[waits.len() / 2], waits[waits.len() * 99 / 100]);
    assert!(total > 10_000, "{total} answers");
    assert!(share > 0.93 && p99 < median * 3 / 2, "least share {share:.3}; median {median} ns, p99 {p99} ns");
}

/// Whatever buffers become free, one flow has frames for all of them.
#[test]
fn a_flow_that_always_has_more_to_send_leaves_the_others_their_turn() {
    let Outcome { answered, .. } = run(4, true);
    // A round is a quantum of the endless flow, 11 steps long, and a request of each other flow.
    assert!(answered.iter().all(|answered| *answered > 100), "{answered:?}");
}
