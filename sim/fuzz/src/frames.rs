//! Frames of a peer, for an engine with a listener, a UDP port and multicast groups.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sietch_net::{Config, Engine, Ipv6Config};
use sietch_nic::wire::tapped;
use sietch_sim::checksums::fix_checksums;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const MTU: usize = 1500;
const MILLISECOND: u64 = 1_000_000;
/// Iterations at one instant after which the engine counts as spinning.
const SPINS: u32 = 2000;

/// Frames one after the other: a byte of options, a length (two bytes, little-endian), the frame.
/// Of the options, bit 0 leaves the checksums as they are, the others let time pass.
pub(crate) fn frames(mut data: &[u8]) {
    let (mut queue, tap) = tapped(MAC, MTU, 64);
    let mut config = Config::new(Ipv4Addr::new(10, 0, 0, 2), 24, [2; 16]);
    (config.half_open, config.flows, config.time_waits) = (8, 16, 4);
    config.buffer_memory = 1 << 20;
    (config.receive_buffer, config.send_buffer) = (16 << 10, 16 << 10);
    let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    config.ipv6 = Some(Ipv6Config { addresses: vec![(address, 64)], gateway: None });
    let mut engine = Engine::new(&config, MAC, MTU);
    engine.listen(80, 16).expect("the port is free");
    engine.udp_bind(53).expect("the port is free");
    engine.join(IpAddr::from([224, 0, 0, 1])).expect("there is room");
    let mut now = 1000 * MILLISECOND;
    let mut events = Vec::new();
    while let [options, low, high, rest @ ..] = data {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()).min(MTU + 14);
        let mut frame = rest[..length].to_vec();
        data = &rest[length..];
        if options & 1 == 0 {
            fix_checksums(&mut frame);
        }
        tap.deliver(&frame);
        now += u64::from(options >> 1) * MILLISECOND;
        let mut iterations = 0;
        while engine.poll(&mut queue, now).expect("a wire does not break").more {
            while tap.take_transmitted().is_some() {}
            iterations += 1;
            assert!(iterations < SPINS, "the engine has more and more to do");
        }
        while tap.take_transmitted().is_some() {}
        while engine.udp_receive(53).is_some() {}
        engine.take_events(&mut events);
        events.clear();
    }
}
