//! The filters under rbpf, with maps in memory: no privilege needed, and frames of any length. The
//! interpreter checks every access against the frame's bounds, independently of the kernel's
//! verifier.

use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::{frames, oracle};
use crate::xdp::assembler::{Instruction, MapReference};
use crate::xdp::frame::{Context, DROP, Direction, REDIRECT};
use crate::xdp::layout::{CONFIG_WORDS, COUNTER_ROWS, PORT_WORDS, Word, address_word, mac_word, words6};
use crate::xdp::receive::{self, ReceiveMaps};
use crate::xdp::transmit::{self, TransmitMaps};
use crate::xdp::uplink::{self, UplinkMaps};
use crate::xdp::{Reason, VnicSpec};

const CONFIG: i32 = 11;
const PORTS: i32 = 12;
const PEERS: i32 = 13;
const COUNTERS: i32 = 14;
const TARGETS: i32 = 15;
const BUCKET: i32 = 16;
const VNICS: i32 = 17;
const PEERS6: i32 = 18;
const VNICS6: i32 = 19;

struct World {
    spec: VnicSpec,
    config: Vec<u64>,
    ports: Vec<u64>,
    counters: Vec<[u64; 2]>,
    vnic_mac: u64,
    /// MAC, and the address by which the device is found.
    vnic6: [u64; 2],
    clock: u64,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

impl World {
    fn of(spec: &VnicSpec) -> Self {
        let mut config = vec![0; CONFIG_WORDS];
        for (word, value) in [
            (Word::Enabled, 1),
            (Word::Mac, mac_word(spec.mac)),
            (Word::Address, address_word(spec.address)),
            (Word::HostMac, mac_word(spec.host_mac)),
            (Word::PeersRestricted, u64::from(spec.is_restricted())),
            (Word::PeersRestricted6, u64::from(spec.is_restricted6())),
            (Word::Uplink, u64::from(spec.uplink.unwrap_or(0))),
        ] {
            config[word as usize] = value;
        }
        for (word, value) in words6(spec.address6, spec.link_local()) {
            config[word as usize] = value;
        }
        let mut ports = vec![0_u64; 2 * PORT_WORDS];
        for (base, ranges) in [(0, &spec.tcp_ports), (65_536, &spec.udp_ports)] {
            for port in ranges.iter().cloned().flatten() {
                let bit = base + usize::from(port);
                ports[bit / 64] |= 1 << (bit % 64);
            }
        }
        Self {
            spec: spec.clone(),
            config,
            ports,
            counters: vec![[0; 2]; COUNTER_ROWS as usize],
            vnic_mac: mac_word(spec.mac),
            vnic6: [mac_word(spec.mac), address_word(spec.address)],
            clock: 0,
        }
    }
}

fn look_up(map: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the programs' keys are four bytes or more on the interpreter's stack.
    let read = |at: u64| unsafe { ((key + at) as *const u32).read_unaligned() };
    WORLD.with_borrow(|world| {
        let world = world.as_ref().unwrap();
        let index = read(0) as usize;
        match map as i32 {
            CONFIG => world.config.as_ptr() as u64,
            PORTS => &raw const world.ports[index] as u64,
            COUNTERS => &raw const world.counters[index] as u64,
            PEERS => {
                assert_eq!(index, 32, "a full prefix is looked up");
                let address = Ipv4Addr::from(read(4).to_ne_bytes());
                let found = world.spec.peers.iter().any(|peer| peer.contains(address));
                if found { world.config.as_ptr() as u64 } else { 0 }
            }
            PEERS6 => {
                assert_eq!(index, 128, "a full prefix is looked up");
                let found = world.spec.peers6.iter().any(|peer| peer.contains(address6(key + 4)));
                if found { world.config.as_ptr() as u64 } else { 0 }
            }
            VNICS6 if world.spec.address6 == Some(address6(key)) => &raw const world.vnic6 as u64,
            VNICS6 => 0,
            VNICS if u64::from(read(0)) == address_word(world.spec.address) => {
                &raw const world.vnic_mac as u64
            }
            VNICS => 0,
            BUCKET => &raw const world.clock as u64,
            other => panic!("map {other} is not looked up"),
        }
    })
}

fn address6(at: u64) -> Ipv6Addr {
    // SAFETY: keys with an IPv6 address have its 16 bytes on the interpreter's stack.
    Ipv6Addr::from(unsafe { (at as *const [u8; 16]).read_unaligned() })
}

fn redirect(map: u64, _: u64, otherwise: u64, _: u64, _: u64) -> u64 {
    assert_eq!((map as i32, otherwise), (TARGETS, DROP as u64));
    REDIRECT as u64
}

fn code(program: Vec<Instruction>) -> Vec<u8> {
    program.into_iter().flatten().collect()
}

fn pretend(number: i32) -> MapReference {
    MapReference::pretend(number)
}

pub(super) fn receive_program() -> Vec<u8> {
    let maps = ReceiveMaps {
        config: pretend(CONFIG),
        ports: pretend(PORTS),
        peers: pretend(PEERS),
        peers6: pretend(PEERS6),
        queues: pretend(TARGETS),
        counters: pretend(COUNTERS),
    };
    code(receive::assemble(maps, Context::INTERPRETER).unwrap())
}

pub(super) fn transmit_program() -> Vec<u8> {
    let maps = TransmitMaps {
        config: pretend(CONFIG),
        ports: pretend(PORTS),
        peers: pretend(PEERS),
        peers6: pretend(PEERS6),
        bucket: pretend(BUCKET),
        uplink: pretend(TARGETS),
        counters: pretend(COUNTERS),
    };
    code(transmit::assemble(maps, Context::INTERPRETER).unwrap())
}

pub(super) fn uplink_program() -> Vec<u8> {
    let maps = UplinkMaps {
        config: pretend(CONFIG),
        vnics: pretend(VNICS),
        vnics6: pretend(VNICS6),
        devices: pretend(TARGETS),
        counters: pretend(COUNTERS),
    };
    code(uplink::assemble(maps, Context::INTERPRETER).unwrap())
}

/// Runs the program over the frame in `world`; its verdict and the row it counted in.
fn run(program: &[u8], world: World, frame: &[u8]) -> (i32, usize) {
    let range = |start: usize, bytes: usize| start as u64..(start + bytes) as u64;
    let mut machine = rbpf::EbpfVmMbuff::new(None).unwrap();
    // rbpf's verifier does not know atomics, which programs may contain and these runs do not
    // reach.
    machine.set_verifier(|_| Ok(())).unwrap();
    machine.set_program(program).unwrap();
    machine.register_helper(1, look_up).unwrap();
    machine.register_helper(51, redirect).unwrap();
    WORLD.set(Some(world));
    WORLD.with_borrow(|world| {
        let world = world.as_ref().unwrap();
        for (start, bytes) in [
            (world.config.as_ptr() as usize, 8 * CONFIG_WORDS),
            (world.ports.as_ptr() as usize, 16 * PORT_WORDS),
            (world.counters.as_ptr() as usize, 16 * COUNTER_ROWS as usize),
            (&raw const world.vnic_mac as usize, 8),
            (&raw const world.vnic6 as usize, 16),
        ] {
            machine.register_allowed_memory(range(start, bytes));
        }
    });
    let data = frame.as_ptr() as u64;
    let mut context = Vec::new();
    context.extend_from_slice(&data.to_ne_bytes());
    context.extend_from_slice(&(data + frame.len() as u64).to_ne_bytes());
    context.extend_from_slice(&0_u64.to_ne_bytes());
    let verdict = machine.execute_program(frame, &context).unwrap();
    WORLD.with_borrow(|world| {
        let counters = &world.as_ref().unwrap().counters;
        let rows: Vec<_> = (0..counters.len()).filter(|&row| counters[row][0] != 0).collect();
        assert_eq!(rows.len(), 1, "each frame is counted once");
        assert_eq!(counters[rows[0]], [1, frame.len() as u64]);
        (verdict as i32, rows[0])
    })
}

fn expected(verdict: Result<i32, Reason>) -> (i32, usize) {
    match verdict {
        Ok(verdict) => (verdict, 0),
        Err(reason) => (DROP, reason.row() as usize),
    }
}

fn check(spec: &VnicSpec, direction: Direction, program: &[u8], frame: &[u8]) {
    let oracle = match direction {
        Direction::Receive => oracle::receive(spec, frame),
        Direction::Transmit => oracle::transmit(spec, frame),
    };
    let result = run(program, World::of(spec), frame);
    assert_eq!(result, expected(oracle), "{direction:?} {frame:02x?} under {spec:?}");
}

fn both() -> [(Direction, Vec<u8>); 2] {
    [(Direction::Receive, receive_program()), (Direction::Transmit, transmit_program())]
}

#[test]
fn legal_frames_pass_and_hostile_ones_are_dropped_for_their_reason() {
    for (direction, program) in both() {
        for frame in frames::legal(direction) {
            let (verdict, row) = run(&program, World::of(&frames::spec()), &frame);
            assert_eq!(row, 0, "{direction:?} {frame:02x?}");
            assert_ne!(verdict, DROP);
        }
        for (what, frame, reason) in frames::hostile(direction) {
            let result = run(&program, World::of(&frames::spec()), &frame);
            assert_eq!(result, expected(Err(reason)), "{direction:?}: {what}");
        }
    }
}

#[test]
fn ipv6_passes_with_an_address_and_its_attacks_are_dropped_for_their_reason() {
    let spec = frames::ipv6::spec6();
    for (direction, program) in both() {
        for frame in frames::ipv6::legal(direction) {
            let (verdict, row) = run(&program, World::of(&spec), &frame);
            assert_eq!(row, 0, "{direction:?} {frame:02x?}");
            assert_ne!(verdict, DROP);
            let without = run(&program, World::of(&frames::spec()), &frame);
            assert_eq!(without, expected(Err(Reason::Ipv6)));
            for length in 0..=128 {
                let mut cut = frame.clone();
                cut.resize(length, 0);
                check(&spec, direction, &program, &cut);
            }
        }
        for (what, frame, reason) in frames::ipv6::hostile(direction) {
            let result = run(&program, World::of(&spec), &frame);
            assert_eq!(result, expected(Err(reason)), "{direction:?}: {what}");
        }
    }
}

#[test]
fn frames_of_every_length_are_judged_inside_their_bounds() {
    for (direction, program) in both() {
        for legal in frames::legal(direction) {
            for length in 0..=128 {
                let mut frame = legal.clone();
                frame.resize(length, 0);
                check(&frames::spec(), direction, &program, &frame);
            }
        }
    }
}

#[test]
fn a_revoked_vnic_neither_sends_nor_receives() {
    for (direction, program) in both() {
        for frame in frames::legal(direction) {
            let mut world = World::of(&frames::spec());
            world.config[Word::Enabled as usize] = 0;
            let result = run(&program, world, &frame);
            assert_eq!(result, expected(Err(Reason::Disabled)));
        }
    }
}

#[test]
fn the_uplink_takes_the_vnics_frames_and_leaves_the_rest() {
    let program = uplink_program();
    for length in 0..=128 {
        for frame in frames::legal(Direction::Receive) {
            let mut cut = frame.clone();
            cut.resize(length, 0);
            let whole = if frame[12..14] == [8, 6] { 42 } else { 34 };
            let result = run(&program, World::of(&frames::spec()), &cut);
            // Broadcast announcements of others are the host's.
            let taken = length >= whole && (whole == 34 || frame[38..42] == frames::ADDRESS.octets());
            assert_eq!(result, if taken { (4, 0) } else { (2, 1) }, "{cut:02x?}");
        }
    }
    for (what, frame, reason) in frames::hostile(Direction::Receive) {
        // The uplink sorts; the VNIC's own filter judges.
        let sorted_out =
            matches!(reason, Reason::DestinationMac | Reason::Vlan | Reason::Ipv6 | Reason::EtherType)
                || matches!(reason, Reason::Address | Reason::Arp);
        let result = run(&program, World::of(&frames::spec()), &frame);
        assert_eq!(result, if sorted_out { (2, 1) } else { (4, 0) }, "{what}");
    }
}

#[test]
fn the_uplink_takes_ipv6_to_the_granted_address_and_questions_about_it() {
    let program = uplink_program();
    let spec = frames::ipv6::spec6();
    let granted = frames::ipv6::ADDRESS.octets();
    for frame in frames::ipv6::legal(Direction::Receive) {
        let asked = frame[20] == 58 && frame[54] == 135;
        let ours =
            if frame[0] == 0x33 { asked && frame[62..78] == granted } else { frame[38..54] == granted };
        for length in 14..=frame.len() {
            let whole = if frame[0] == 0x33 { 78 } else { 54 };
            let expected = if ours && length >= whole { (4, 0) } else { (2, 1) };
            assert_eq!(run(&program, World::of(&spec), &frame[..length]), expected, "{frame:02x?}");
        }
        // Of a VNIC without IPv6 it is the host's.
        assert_eq!(run(&program, World::of(&frames::spec()), &frame), (2, 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn damaged_frames_meet_the_oracles_verdict(
        received in frames::damaged(Direction::Receive),
        sent in frames::damaged(Direction::Transmit),
        rules in 0_usize..9,
    ) {
        let spec = &frames::rules(3)[rules];
        check(spec, Direction::Receive, &receive_program(), &received);
        check(spec, Direction::Transmit, &transmit_program(), &sent);
    }
}
