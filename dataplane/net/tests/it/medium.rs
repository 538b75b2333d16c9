//! Two engines on a medium like shared memory: checksums are not made, and large frames come with a foreign tail.

use std::net::{Ipv4Addr, SocketAddrV4};

use proptest::prelude::*;
use sietch_net::packet::{ethernet, icmp, ipv4};
use sietch_net::{Config, Engine, Event, EventKind};
use sietch_nic::NicQueue;
use sietch_nic::wire::{Medium, WireQueue, pair_with, tapped_with};

const MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

struct Side {
    engine: Engine,
    queue: WireQueue,
    events: Vec<Event>,
}

impl Side {
    fn new(queue: WireQueue, mac: [u8; 6], mtu: usize) -> Self {
        let config = Config::new(Ipv4Addr::new(10, 0, 0, mac[5]), 24, [mac[5]; 16]);
        Self { engine: Engine::new(&config, mac, mtu), queue, events: Vec::new() }
    }

    fn turn(&mut self, now: u64) {
        while self.engine.poll(&mut self.queue, now).expect("a wire does not break").more {}
        self.engine.take_events(&mut self.events);
    }
}

fn sides(mtu: usize, medium: Medium) -> [Side; 2] {
    let (a, b) = pair_with(MAC[0], MAC[1], mtu, 256, medium);
    [Side::new(a, MAC[0], mtu), Side::new(b, MAC[1], mtu)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_stream_arrives_whole(
        mtu in 576usize..20_000,
        checksums in any::<bool>(),
        tails in any::<bool>(),
        writes in prop::collection::vec(1usize..40_000, 1..20),
    ) {
        let medium = if tails { Medium::SHARED_MEMORY } else { Medium::default() };
        let medium = Medium { offloads: sietch_nic::Offloads { checksums, unfinished: false }, ..medium };
        let [mut client, mut server] = sides(mtu, medium);
        server.engine.listen(7, 4).expect("the port is free");
        let remote = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7);
        let flow = client.engine.connect(remote, 1).expect("there is a route");
        let sent: Vec<u8> = (0..writes.iter().sum::<usize>()).map(|at| (at * 31 + at / 251) as u8).collect();
        let (mut offset, mut got, mut accepted) = (0, Vec::new(), None);
        let mut write = writes.iter();
        let mut end = 0;
        for turn in 0..2000_u64 {
            let now = turn * 1_000_000;
            if offset == end {
                end += write.next().copied().unwrap_or(0);
            }
            offset += client.engine.send(flow, &sent[offset..end]);
            client.turn(now);
            server.turn(now);
            for event in server.events.drain(..) {
                if let EventKind::Accepted { .. } = event.kind {
                    accepted = Some(event.flow);
                }
            }
            if let Some(flow) = accepted {
                let (first, second) = server.engine.received(flow);
                got.extend_from_slice(first);
                got.extend_from_slice(second);
                server.engine.consume(flow, first.len() + second.len());
            }
            if got.len() == sent.len() {
                break;
            }
        }
        prop_assert!(got == sent, "{} bytes of {} arrived whole", got.len(), sent.len());
        for side in [&client, &server] {
            prop_assert_eq!(side.engine.metrics().bad_checksum + side.engine.metrics().malformed, 0);
            prop_assert_eq!(side.queue.free_buffers(), 256);
        }
    }
}

#[test]
fn a_long_echo_request_is_turned_around_with_its_tail() {
    let (queue, tap) = tapped_with(MAC[1], 9000, 16, Medium::SHARED_MEMORY);
    let mut side = Side::new(queue, MAC[1], 9000);
    let payload: Vec<u8> = (0..5000_u32).map(|at| (at * 7) as u8).collect();
    let mut frame = vec![0; 42 + payload.len()];
    let header = ethernet::Header { destination: MAC[1], source: MAC[0], ethertype: ethernet::IPV4 };
    header.emit(frame.first_chunk_mut().expect("it is long enough"));
    let network = frame[14..].first_chunk_mut().expect("it is long enough");
    ipv4::emit(network, 0x0a00_0001, 0x0a00_0002, ipv4::ICMP, 8 + payload.len());
    frame[42..].copy_from_slice(&payload);
    icmp::emit(&mut frame[34..], icmp::ECHO_REQUEST, 0, 5);
    // A broken one is not answered, though most of it lies in the tail.
    let mut broken = frame.clone();
    broken[3000] ^= 1;
    assert!(tap.deliver(&broken) && tap.deliver(&frame));
    side.turn(1);
    let answer = tap.take_transmitted().expect("the whole request is answered");
    assert!(tap.take_transmitted().is_none());
    let (_, packet) = ethernet::Header::parse(&answer).expect("legal");
    let (_, body) = ipv4::Header::parse(packet).expect("legal");
    let message = icmp::Message::parse(body).expect("legal");
    assert_eq!((message.kind, message.payload.to_vec()), (icmp::ECHO_REPLY, payload));
    assert_eq!(side.engine.metrics().bad_checksum, 1);
}

/// Who drives an engine over a queue that stays full, because a rate limit empties it, must not be kept busy by it.
#[test]
fn a_full_queue_is_looked_at_again_in_a_moment_and_not_at_once() {
    let (queue, tap) = tapped_with(MAC[0], 1500, 4, Medium::default());
    let mut side = Side::new(queue, MAC[0], 1500);
    tap.limit_transmitted(0);
    let mut now = 1;
    for host in 2..12 {
        let remote = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, host), 7);
        side.engine.connect(remote, now).expect("there is a route");
    }
    let first = side.engine.poll(&mut side.queue, now).expect("a wire does not break");
    assert_eq!((first.sent, first.more), (4, true), "four buffers, ten questions");
    // A peer that reads would have made room by the next look, so there is one at once. This one does not read.
    let full = side.engine.poll(&mut side.queue, now).expect("a wire does not break");
    assert_eq!((full.sent, full.more, side.engine.next_deadline()), (0, true, Some(now)));
    now += 50_000;
    for _ in 0..3 {
        let stuck = side.engine.poll(&mut side.queue, now).expect("a wire does not break");
        assert_eq!((stuck.sent, stuck.more), (0, false));
        let next = side.engine.next_deadline().expect("it looks again");
        assert!(next > now && next <= now + 100_000, "{next} at {now}");
        now = next;
    }
    tap.limit_transmitted(100);
    let mut asked = 0;
    while asked < 10 {
        assert!(now < 1_000_000, "what is left goes at the next looks");
        side.engine.poll(&mut side.queue, now).expect("a wire does not break");
        asked += std::iter::from_fn(|| tap.take_transmitted()).count();
        now = side.engine.next_deadline().expect("answers are missing");
    }
}
