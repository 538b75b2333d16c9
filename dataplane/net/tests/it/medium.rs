//! Two engines on a medium like shared memory: checksums are not computed, and large frames have an
//! untrusted tail.

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

    fn poll(&mut self, now: u64) {
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
        for round in 0..2000_u64 {
            let now = round * 1_000_000;
            if offset == end {
                end += write.next().copied().unwrap_or(0);
            }
            offset += client.engine.send(flow, &sent[offset..end]);
            client.poll(now);
            server.poll(now);
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
fn a_long_echo_request_is_answered_with_its_tail() {
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
    // A broken one is not answered, though most of it is in the tail.
    let mut broken = frame.clone();
    broken[3000] ^= 1;
    assert!(tap.deliver(&broken) && tap.deliver(&frame));
    side.poll(1);
    let answer = tap.take_transmitted().expect("the whole request is answered");
    assert!(tap.take_transmitted().is_none());
    let (_, packet) = ethernet::Header::parse(&answer).expect("legal");
    let (_, body) = ipv4::Header::parse(packet).expect("legal");
    let message = icmp::Message::parse(body).expect("legal");
    assert_eq!((message.kind, message.payload.to_vec()), (icmp::ECHO_REPLY, payload));
    assert_eq!(side.engine.metrics().bad_checksum, 1);
}

/// A queue may stay full because a rate limit empties it. That must not keep the loop of its engine
/// busy.
#[test]
fn a_full_queue_is_tried_again_after_a_moment() {
    let (queue, tap) = tapped_with(MAC[0], 1500, 4, Medium::default());
    let mut side = Side::new(queue, MAC[0], 1500);
    tap.limit_transmitted(0);
    let mut now = 1;
    for host in 2..12 {
        let remote = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, host), 7);
        side.engine.connect(remote, now).expect("there is a route");
    }
    let first = side.engine.poll(&mut side.queue, now).expect("a wire does not break");
    assert_eq!((first.sent, first.more), (4, true), "four buffers, ten ARP requests");
    // A peer that reads would make room soon, so the engine tries again at once. This peer does not
    // read.
    let full = side.engine.poll(&mut side.queue, now).expect("a wire does not break");
    assert_eq!((full.sent, full.more, side.engine.next_deadline()), (0, true, Some(now)));
    now += 50_000;
    for _ in 0..3 {
        let stuck = side.engine.poll(&mut side.queue, now).expect("a wire does not break");
        assert_eq!((stuck.sent, stuck.more), (0, false));
        let next = side.engine.next_deadline().expect("it tries again");
        assert!(next > now && next <= now + 100_000, "{next} at {now}");
        now = next;
    }
    tap.limit_transmitted(100);
    let mut asked = 0;
    while asked < 10 {
        assert!(now < 1_000_000, "the rest leaves at the next tries");
        side.engine.poll(&mut side.queue, now).expect("a wire does not break");
        asked += std::iter::from_fn(|| tap.take_transmitted()).count();
        now = side.engine.next_deadline().expect("answers are missing");
    }
}

/// A queue with few buffers for large frames and enough for small ones: bulk transfers wait for
/// buffers, requests do not wait for bulk transfers. The quantum of a flow is counted in bytes, not
/// in segments: it is two or three of the largest.
#[test]
fn a_request_waits_for_three_of_the_largest_segments_and_not_for_more() {
    const MTU: usize = 65_000;
    let [mut client, mut server] = sides(MTU, Medium::default());
    server.engine.listen(7, 4).expect("the port is free");
    let remote = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7);
    let [bulk, request] = [(); 2].map(|()| client.engine.connect(remote, 1).expect("there is a route"));
    let mut now = 0;
    // Until the window is many segments.
    for _ in 0..300 {
        now += 100_000;
        client.engine.send(bulk, &[1; 100_000]);
        client.poll(now);
        server.poll(now);
        for (flow, _) in server.engine.flows().collect::<Vec<_>>() {
            server.engine.consume(flow, server.engine.received(flow).0.len());
        }
    }
    assert!(client.engine.send(bulk, &[1; 500_000]) > 6 * MTU);
    client.engine.send(request, b"request");
    client.engine.emit(&mut client.queue, now + 100_000).expect("a wire does not break");
    let mut frames = Vec::new();
    server.queue.receive(&mut frames, 64);
    let lengths: Vec<usize> = frames.iter().map(|frame| server.queue.bytes(frame).len()).collect();
    let before = lengths.iter().position(|length| *length < 1000).expect("the request is among them");
    assert!(before <= 3, "{lengths:?}");
    assert!(lengths.len() > 4, "{lengths:?}");
}

mod classes {
    use std::io;

    use sietch_net::FlowId;
    use sietch_nic::{Frame, Offloads, TransmitError, Untrusted};

    use super::*;

    const MTU: usize = 16_000;
    const SMALL: usize = 2048;
    const MICROSECOND: u64 = 1000;
    /// How often there is a buffer for one more large frame.
    const PERIOD: u64 = 400 * MICROSECOND;
    const BULK_FLOWS: usize = 8;

    struct Classes {
        queue: WireQueue,
        large: usize,
        /// Buffers of either kind, whichever is requested first.
        shared: bool,
        refused: u64,
    }

    impl NicQueue for Classes {
        fn mac(&self) -> [u8; 6] {
            self.queue.mac()
        }
        fn mtu(&self) -> usize {
            self.queue.mtu()
        }
        fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
            self.queue.receive(out, limit)
        }
        fn bytes(&self, frame: &Frame) -> &[u8] {
            self.queue.bytes(frame)
        }
        fn tail(&self, frame: &Frame) -> Untrusted<'_> {
            self.queue.tail(frame)
        }
        fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
            self.queue.bytes_mut(frame)
        }
        fn allocate(&mut self, length: usize) -> Option<Frame> {
            let cost = length.div_ceil(SMALL);
            if cost > 1 || self.shared {
                if self.large < cost {
                    self.refused += 1;
                    return None;
                }
                self.large -= cost;
            }
            self.queue.allocate(length)
        }
        fn offloads(&self) -> Offloads {
            self.queue.offloads()
        }
        fn release(&mut self, frame: Frame) {
            self.queue.release(frame);
        }
        fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
            self.queue.transmit(frame)
        }
        fn flush(&mut self) -> io::Result<()> {
            self.queue.flush()
        }
        fn free_buffers(&self) -> usize {
            self.queue.free_buffers()
        }
    }

    struct World {
        client: Side,
        server: Engine,
        queue: Classes,
        events: Vec<Event>,
        now: u64,
    }

    impl World {
        /// A server with bulk transfers in flight, and one connection more, for requests.
        fn new(shared: bool) -> (Self, FlowId, FlowId) {
            let (a, b) = pair_with(MAC[0], MAC[1], MTU, 1024, Medium::SHARED_MEMORY);
            let (client, server) = (Side::new(a, MAC[0], MTU), Side::new(b, MAC[1], MTU));
            let queue = Classes { queue: server.queue, large: 1 << 20, shared, refused: 0 };
            let mut world = Self { client, server: server.engine, queue, events: Vec::new(), now: 1_000_000 };
            world.server.listen(7, 64).expect("the port is free");
            let remote = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7);
            for _ in 0..=BULK_FLOWS {
                world.client.engine.connect(remote, world.now).expect("there is a route");
                world.step(10 * MICROSECOND);
                world.step(10 * MICROSECOND);
            }
            let accepted: Vec<FlowId> = world
                .events
                .iter()
                .filter(|event| matches!(event.kind, EventKind::Accepted { .. }))
                .map(|event| event.flow)
                .collect();
            let near: Vec<FlowId> = world
                .client
                .events
                .iter()
                .filter(|event| event.kind == EventKind::Connected)
                .map(|event| event.flow)
                .collect();
            assert_eq!((accepted.len(), near.len()), (BULK_FLOWS + 1, BULK_FLOWS + 1));
            world.queue.large = 0;
            for flow in &accepted[..BULK_FLOWS] {
                world.server.send(*flow, &[1; 400_000]);
            }
            (world, near[BULK_FLOWS], accepted[BULK_FLOWS])
        }

        fn step(&mut self, time: u64) {
            self.now += time;
            self.client.poll(self.now);
            self.server.poll(&mut self.queue, self.now).expect("a wire does not break");
            self.server.take_events(&mut self.events);
            for (flow, _) in self.client.engine.flows().collect::<Vec<_>>() {
                let read = self.client.engine.received(flow);
                let bytes = read.0.len() + read.1.len();
                if bytes > 100 {
                    self.client.engine.consume(flow, bytes);
                }
            }
        }

        /// Bytes of the bulk transfers that have arrived: of all flows but this one.
        fn bulk(&self, but: FlowId) -> u64 {
            let others = self.server.flows().filter(|(flow, _)| *flow != but);
            others.map(|(_, info)| info.acknowledged_bytes).sum()
        }
    }

    #[test]
    fn requests_do_not_wait_for_bulk_transfers_without_buffers() {
        let (mut world, near, far) = World::new(false);
        let mut worst = 0;
        for request in 0..200_u64 {
            world.client.engine.send(near, b"request");
            let asked = world.now;
            let mut answered = false;
            while !answered && world.now < asked + 50 * PERIOD {
                if world.now.is_multiple_of(PERIOD) {
                    world.queue.large = (world.queue.large + MTU.div_ceil(SMALL)).min(MTU.div_ceil(SMALL));
                }
                world.step(20 * MICROSECOND);
                let mut bytes = [0; 100];
                if world.server.read(far, &mut bytes) > 0 {
                    world.server.send(far, b"answer");
                }
                answered = world.client.engine.read(near, &mut bytes) > 0;
            }
            assert!(answered, "request {request} has no answer");
            worst = worst.max(world.now - asked);
        }
        assert!(world.queue.refused > 100, "bulk transfers never waited");
        assert!(worst <= 100 * MICROSECOND, "a request took {worst} ns");
        let bulk = world.bulk(far);
        assert!(bulk > 100_000, "bulk transfers make no progress: {bulk}");
    }

    #[test]
    fn small_frames_do_not_take_all_room_for_ever() {
        let (mut world, near, far) = World::new(true);
        for _ in 0..20_000 {
            // Room for one small frame at a time, and always a flow with one to send.
            world.queue.large = (world.queue.large + 1).min(MTU.div_ceil(SMALL) + 1);
            world.client.engine.send(near, b"request");
            world.server.send(far, b"answer");
            world.step(20 * MICROSECOND);
            let mut bytes = [0; 4096];
            world.server.read(far, &mut bytes);
            world.client.engine.read(near, &mut bytes);
        }
        let bulk = world.bulk(far);
        assert!(bulk > 100_000, "bulk transfers make no progress: {bulk}");
    }
}
