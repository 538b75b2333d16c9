//! Fuzzing: hostile bytes for each parser, and hostile sequences of operations. Both run from a
//! seed, for a few seconds in CI and for hours by `cargo xtask soak fuzz`. A failing seed is
//! printed and reproduces the failure.
//!
//! 1. *Frames* (`no_frame_does_harm`): legal frames of every protocol that the engine reads
//!    (Ethernet, ARP, IPv4 with fragments, IPv6 with extension headers and neighbour discovery,
//!    ICMP of both, UDP, TCP with every option) are mutated. Bits are flipped, bytes set to what
//!    parsers trip over, cut, lengthened, joined with others. In half of them the checksums are
//!    fixed, because otherwise no parser would read the fields behind them.
//! 2. *Histories* (`no_history_does_harm`): operations of peer and application in any order on an
//!    engine with listeners, half-open connections and established flows. These are segments near
//!    every number that matters, reads, writes, closes, leaps in time.
//!
//! After each operation: memory, flows and half-open connections are within their bounds, and the
//! receive window holds what was announced. The engine's next deadline does not make it iterate for
//! ever. In the end, when time passes without packets, all tables are empty.
//!
//! Coverage does not guide it: the mutations start from legal frames instead. `cargo xtask fuzz`
//! guides the same parsers by coverage.

use crate::harness;

use std::net::{IpAddr, SocketAddr};

use crate::harness::{Host, MILLISECOND, SECOND, SERVER_PORT};
use sietch_net::{Config, EventKind, FlowId};
use sietch_nic::NicQueue;
use sietch_sim::Random;
use sietch_sim::checksums::fix_checksums;
use sietch_sim::seeds::{self, Budget};
use sietch_sim::segment::{ACK, FIN, Macs, Options, PSH, RST, SYN, Segment, icmp_error, packet};

const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const HALF_OPEN: usize = 16;
const FLOWS: usize = 64;
const MEMORY: usize = 4 << 20;
const BUFFERS: usize = 512;
const UDP_PORT: u16 = 53;
/// Iterations at one instant after which the engine counts as spinning.
const SPINS: u32 = 2000;

fn host() -> Host {
    let mut host = Host::new(2, |config: &mut Config| {
        config.half_open = HALF_OPEN;
        config.flows = FLOWS;
        config.buffer_memory = MEMORY;
        config.receive_buffer = 16 << 10;
        config.send_buffer = 16 << 10;
        config.time_waits = 16;
        harness::speak_ipv6(config);
    });
    host.engine.listen(SERVER_PORT, 16).expect("the port is free");
    host.engine.udp_bind(UDP_PORT).expect("the port is free");
    for group in [IpAddr::from([224, 0, 0, 1]), IpAddr::from([0xff05, 0, 0, 0, 0, 0, 0, 1])] {
        host.engine.join(group).expect("there is room");
    }
    host
}

fn macs(host: &Host) -> Macs {
    Macs { from: PEER_MAC, to: host.mac }
}

/// Polls until there is nothing to do, and checks what must always hold.
fn poll(host: &mut Host, now: u64) {
    let mut iterations = 0;
    while host.poll(now) {
        while host.tap.take_transmitted().is_some() {}
        iterations += 1;
        assert!(iterations < SPINS, "the engine has more and more to do at {now}");
    }
    let (flows, half_open, _, bytes) = host.engine.population();
    assert!(
        flows <= FLOWS && half_open <= HALF_OPEN && bytes <= MEMORY,
        "{flows} flows, {half_open}, {bytes} bytes"
    );
}

/// Lets time pass to `until`, deadline by deadline.
fn pass(host: &mut Host, now: &mut u64, until: u64) {
    let mut spins = 0;
    while let Some(next) = host.engine.next_deadline().filter(|next| *next <= until) {
        spins = if next > *now { 0 } else { spins + 1 };
        assert!(spins < SPINS, "the engine spins at {now}");
        *now = (*now).max(next);
        poll(host, *now);
        while host.tap.take_transmitted().is_some() {}
    }
    *now = (*now).max(until);
}

/// The application closes everything and the peer sends nothing: all tables must become empty.
fn settle(mut host: Host, mut now: u64, flows: &[FlowId]) {
    for flow in flows {
        host.engine.abort(*flow);
    }
    while host.engine.udp_receive(UDP_PORT).is_some() {}
    let end = now + 2000 * SECOND;
    pass(&mut host, &mut now, end);
    let (flows, half_open, time_waits, bytes) = host.engine.population();
    assert_eq!((flows, half_open, time_waits, bytes), (0, 0, 0, 0), "something stays for ever");
    while host.tap.take_transmitted().is_some() {}
    poll(&mut host, now);
    assert_eq!(host.queue.free_buffers(), BUFFERS, "a frame leaked");
}

fn endpoint(last: u8, port: u16, six: bool) -> SocketAddr {
    if six {
        let mut octets = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        octets[15] = last;
        SocketAddr::from((octets, port))
    } else {
        SocketAddr::from(([10, 0, 0, last], port))
    }
}

/// A legal frame of some protocol.
fn legal(random: &mut Random, macs: Macs) -> Vec<u8> {
    let six = random.chance(400);
    let (from, to) = (endpoint(1, 5555, six), endpoint(2, SERVER_PORT, six));
    let mut body = vec![0; random.below(300) as usize];
    random.fill(&mut body);
    let segment = |random: &mut Random, flags: u8| {
        let options = Options {
            mss: random.chance(500).then_some(1460),
            shift: random.chance(500).then_some(7),
            sack_permitted: random.chance(300),
            timestamps: random.chance(300).then_some((7, 0)),
            ..Options::default()
        };
        let bytes = options.bytes();
        let bare = Segment::bare(from, to, flags, random.word() as u32, random.word() as u32);
        Segment { window: 4000, options: &bytes, payload: &body, ..bare }.encode(macs)
    };
    let (source, target): (IpAddr, IpAddr) = (from.ip(), to.ip());
    match random.below(9) {
        0 | 1 => segment(random, SYN),
        2 => segment(random, ACK | PSH),
        3 => {
            // A datagram, without a checksum over IPv4.
            let length = ((body.len() + 8) as u16).to_be_bytes();
            let mut datagram =
                [&[0x15, 0xb3, 0, UDP_PORT as u8, length[0], length[1], 0, 0], &body[..]].concat();
            datagram[1] = random.word() as u8;
            packet(macs, source, target, 17, 0, &datagram)
        }
        4 => {
            let kind = if six { 128 } else { 8 };
            packet(macs, source, target, if six { 58 } else { 1 }, 0, &[&[kind, 0, 0, 0][..], &body].concat())
        }
        5 => {
            let cause = Segment::bare(to, from, ACK, 1, 1).encode(Macs { from: macs.to, to: macs.from });
            let (kind, code) =
                if six { (*random.pick(&[1, 2, 3, 4]), 0) } else { (3, random.below(16) as u8) };
            let rest = *random.pick(&[0, 68, 1280, 65_535]);
            icmp_error(macs, source, kind, code, rest, &cause).unwrap_or_default()
        }
        6 => {
            let mut arp = [&[0xff; 6][..], &macs.from, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &macs.from].concat();
            arp.extend_from_slice(&[10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
            arp
        }
        7 if six => {
            // Extension headers before what they extend: hop-by-hop, routing, fragment, destination
            // options.
            let chain = [0u8, 43, 44, 60];
            let mut extended = Vec::new();
            let count = random.between(1, 6);
            let first = *random.pick(&chain);
            for step in 0..count {
                let next = if step + 1 == count { 17 } else { *random.pick(&chain) };
                extended.extend_from_slice(&[
                    next,
                    0,
                    random.below(3) as u8,
                    random.below(9) as u8,
                    0,
                    0,
                    0,
                    9,
                ]);
            }
            extended.extend_from_slice(&body);
            packet(macs, source, target, first, 0, &extended)
        }
        7 => {
            // A fragment: any offset, more to come or not, an identification that others share.
            let mut frame = packet(macs, source, target, *random.pick(&[6, 17, 1]), 0, &body);
            frame[19] = random.below(3) as u8;
            frame[20] = *random.pick(&[0, 0, 0x20, 0x20, 0x21, 0x3f, 0x1f]);
            frame[21] = random.below(200) as u8;
            frame
        }
        _ => discovery(random, macs, &body),
    }
}

/// Neighbour discovery (RFC 4861): solicitations, advertisements, router advertisements with
/// options.
fn discovery(random: &mut Random, macs: Macs, body: &[u8]) -> Vec<u8> {
    if random.chance(250) {
        // Queries for groups, and datagrams to one (RFC 3376, RFC 3810).
        let to_all = Macs { from: macs.from, to: [1, 0, 0x5e, 0, 0, 1] };
        let query = [&[*random.pick(&[0x11, 0x22, 0x16]), random.word() as u8, 0, 0][..], body].concat();
        let all = IpAddr::from([224, 0, 0, 1]);
        return packet(to_all, endpoint(1, 0, false).ip(), all, *random.pick(&[2, 17]), 0, &query);
    }
    let kind = *random.pick(&[130, 133, 134, 135, 136, 137]);
    let flags = *random.pick(&[0, 0x20, 0x40, 0x60]);
    let about = endpoint(*random.pick(&[1, 2, 9]), 0, true).ip();
    let target = match about {
        IpAddr::V6(address) if random.chance(800) => address.octets().to_vec(),
        _ => body[..body.len().min(16)].to_vec(),
    };
    let mut message = [&[kind, 0, 0, 0, flags, 0, 0, 0][..], &target].concat();
    message.extend_from_slice(&[1, random.below(3) as u8, 2, 0, 0, 0, 0, 1]);
    let mut frame = packet(macs, endpoint(1, 0, true).ip(), endpoint(2, 0, true).ip(), 58, 0, &message);
    frame[21] = if kind == 130 { 1 } else { 255 };
    frame
}

/// Bytes that parsers trip over.
const TRIPS: [u8; 10] = [0, 1, 2, 4, 5, 8, 0x45, 0x7f, 0x80, 0xff];

fn mutate(random: &mut Random, frame: &mut Vec<u8>) {
    for _ in 0..random.below(6) {
        if frame.is_empty() {
            return;
        }
        // Headers are where parsers decide.
        let reach = if random.chance(800) { frame.len().min(80) } else { frame.len() };
        let at = random.index(reach);
        match random.below(6) {
            0 => frame[at] ^= 1 << random.below(8),
            1 => frame[at] = *random.pick(&TRIPS),
            2 => frame[at] = random.word() as u8,
            3 => frame.truncate(at),
            4 => frame.extend(std::iter::repeat_n(random.word() as u8, random.below(100) as usize)),
            _ => {
                let from = random.index(frame.len());
                let piece = frame[from..].to_vec();
                frame.truncate(at);
                frame.extend_from_slice(&piece);
            }
        }
    }
    frame.truncate(1514);
}

fn frames(seed: u64) {
    let mut random = Random::new(seed);
    let (mut host, mut now) = (host(), SECOND);
    let macs = macs(&host);
    let mut last = Vec::new();
    for _ in 0..200 {
        let mut frame = legal(&mut random, macs);
        if random.chance(100) {
            let keep = random.index(frame.len() + 1);
            frame = [&frame[..keep], &last[..]].concat();
        }
        last.clone_from(&frame);
        mutate(&mut random, &mut frame);
        if random.chance(500) {
            fix_checksums(&mut frame);
        }
        host.tap.deliver(&frame);
        poll(&mut host, now);
        while host.tap.take_transmitted().is_some() {}
        if random.chance(50) {
            let until = now + random.below(3 * SECOND);
            pass(&mut host, &mut now, until);
        }
        while host.engine.udp_receive(UDP_PORT).is_some() {}
    }
    let flows = host.accepted();
    settle(host, now, &flows);
}

#[test]
fn no_frame_does_harm() {
    seeds::run("it fuzz::no_frame", &[], Budget { seeds: 100_000, seconds: 3 }, frames);
}

/// One connection between the fuzzer and the engine.
#[derive(Debug)]
struct Line {
    port: u16,
    iss: u32,
    irs: u32,
    /// Behind the last byte that came from the engine, and its last acknowledgement and window.
    end: u32,
    acknowledged: u32,
    window: u16,
}

/// Updates the lines with what the engine has sent.
fn listen(host: &Host, lines: &mut [Line]) {
    while let Some(frame) = host.tap.take_transmitted() {
        let Some(segment) = Segment::decode(&frame) else { continue };
        let Some(line) = lines.iter_mut().find(|line| line.port == segment.to.port()) else { continue };
        if segment.has(SYN) {
            line.irs = segment.seq;
            line.end = segment.end();
        }
        if segment.has(RST) {
            continue;
        }
        if segment.end().wrapping_sub(line.end).cast_signed() > 0 {
            line.end = segment.end();
        }
        line.acknowledged = segment.ack;
        line.window = segment.window;
    }
}

/// A number near one that matters.
fn near(random: &mut Random, numbers: &[u32]) -> u32 {
    let base = *random.pick(numbers);
    match random.below(6) {
        0..3 => base,
        3 => base.wrapping_add(random.below(3) as u32).wrapping_sub(1),
        4 => base.wrapping_add(random.below(70_000) as u32).wrapping_sub(35_000),
        _ => random.word() as u32,
    }
}

fn segment_on(random: &mut Random, host: &Host, line: &Line) -> Vec<u8> {
    let flags = match random.below(10) {
        0..5 => ACK,
        5 => ACK | PSH,
        6 => *random.pick(&[SYN, SYN | ACK, FIN | ACK, RST, RST | ACK]),
        7 => FIN | ACK,
        _ => random.word() as u8,
    };
    let edge = line.acknowledged.wrapping_add(u32::from(line.window));
    let seq = near(random, &[line.acknowledged, line.acknowledged, line.acknowledged, edge, line.iss]);
    let ack = near(random, &[line.end, line.end, line.irs.wrapping_add(1), line.irs]);
    let mut options = Options::default();
    match random.below(8) {
        0 => options.timestamps = Some((near(random, &[1, 1000]), near(random, &[0, 1000]))),
        1 => {
            options.blocks = random.between(1, 4) as usize;
            for block in &mut options.sack {
                *block = (near(random, &[line.end, line.irs]), near(random, &[line.end, line.irs]));
            }
        }
        _ => {}
    }
    let mut bytes = options.bytes();
    if random.chance(50) {
        bytes = vec![0; random.index(40)];
        random.fill(&mut bytes);
    }
    let payload = vec![7; if random.chance(600) { random.index(1400) } else { 0 }];
    let (from, to) = (endpoint(1, line.port, false), endpoint(2, SERVER_PORT, false));
    let window = *random.pick(&[0, 1, 500, 8000, 65_535]);
    let bare = Segment::bare(from, to, flags, seq, ack);
    Segment { window, options: &bytes, payload: &payload, ecn: random.below(4) as u8, ..bare }
        .encode(macs(host))
}

fn open(random: &mut Random, host: &mut Host, lines: &mut Vec<Line>, now: u64) {
    let iss = random.word() as u32;
    let port = 1000 + lines.len() as u16;
    let options = Options {
        mss: random.chance(800).then(|| *random.pick(&[0, 88, 536, 1460, 65_535])),
        shift: random.chance(500).then(|| random.below(16) as u8),
        sack_permitted: random.chance(500),
        timestamps: random.chance(500).then_some((1, 0)),
        ..Options::default()
    };
    let (from, to) = (endpoint(1, port, false), endpoint(2, SERVER_PORT, false));
    let bytes = options.bytes();
    let syn = Segment { window: 8000, options: &bytes, ..Segment::bare(from, to, SYN, iss, 0) };
    host.tap.deliver(&syn.encode(macs(host)));
    lines.push(Line { port, iss, irs: 0, end: 0, acknowledged: iss.wrapping_add(1), window: 0 });
    poll(host, now);
    listen(host, lines);
    let Some(line) = lines.last().filter(|_| random.chance(900)) else { return };
    let stamps = options.timestamps.map(|_| (2, 0));
    let bytes = Options { timestamps: stamps, ..Options::default() }.bytes();
    let ack = Segment::bare(from, to, ACK, iss.wrapping_add(1), line.end);
    host.tap.deliver(&Segment { window: 8000, options: &bytes, ..ack }.encode(macs(host)));
    poll(host, now);
    listen(host, lines);
}

fn history(seed: u64) {
    let mut random = Random::new(seed);
    let (mut host, mut now) = (host(), SECOND);
    let (mut lines, mut flows, mut held) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..random.between(50, 400) {
        let flow = if flows.is_empty() { FlowId::NONE } else { *random.pick(&flows) };
        match random.below(20) {
            0 if lines.len() < 20 => open(&mut random, &mut host, &mut lines, now),
            1 => drop(host.read_all(flow)),
            2 if random.chance(500) => {
                held.extend(host.engine.receive_zero_copy(flow));
                held.truncate(random.index(20));
            }
            2 => host.engine.consume(flow, random.index(2000)),
            3 if random.chance(500) => {
                drop(host.engine.send_zero_copy(flow, vec![2; random.index(9000)].into()));
            }
            3 => drop(host.engine.send(flow, &vec![1; random.index(9000)])),
            4 if random.chance(100) => host.engine.shutdown_send(flow),
            5 if random.chance(50) => host.engine.close(flow),
            6 if random.chance(50) => host.engine.abort(flow),
            7 => host.engine.set_keepalive(flow, random.chance(500).then_some(SECOND)),
            8 => host.engine.set_nagle(flow, random.chance(500)),
            9 => {
                let leap = *random.pick(&[MILLISECOND, 40 * MILLISECOND, SECOND, 70 * SECOND]);
                let until = now + random.below(leap);
                pass(&mut host, &mut now, until);
            }
            10 => {
                let to = endpoint(1, 80, false);
                if let SocketAddr::V4(to) = to
                    && flows.len() < FLOWS
                    && random.chance(100)
                {
                    flows.extend(host.engine.connect(to, now).ok());
                }
            }
            _ if lines.is_empty() => open(&mut random, &mut host, &mut lines, now),
            _ => {
                let line = random.index(lines.len());
                let frame = segment_on(&mut random, &host, &lines[line]);
                host.tap.deliver(&frame);
            }
        }
        poll(&mut host, now);
        listen(&host, &mut lines);
        for event in host.events.drain(..) {
            if matches!(event.kind, EventKind::Accepted { .. }) {
                flows.push(event.flow);
            }
        }
    }
    drop(held);
    settle(host, now, &flows);
}

#[test]
fn no_history_does_harm() {
    seeds::run("it fuzz::no_history", &[], Budget { seeds: 100_000, seconds: 3 }, history);
}
