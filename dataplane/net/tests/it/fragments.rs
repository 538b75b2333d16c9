//! Fragmented packets that an engine receives.

use std::net::{IpAddr, Ipv4Addr};

use crate::harness::{Host, SECOND, address6, speak_ipv6};
use sietch_net::packet::{Address, checksum};
use sietch_sim::segment::{Macs, packet};

const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn ends(six: bool) -> (IpAddr, IpAddr) {
    if six {
        (address6(1).into(), address6(2).into())
    } else {
        (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into())
    }
}

/// A datagram with a right checksum.
fn datagram(six: bool, payload: &[u8]) -> Vec<u8> {
    let (from, to) = ends(six);
    let length = (payload.len() + 8) as u16;
    let mut bytes = [&[0, 99, 0, 53][..], &length.to_be_bytes(), &[0, 0], payload].concat();
    let pseudo = checksum::pseudo_header(&Address::from(from), &Address::from(to), 17, u32::from(length));
    let check = checksum::finish(pseudo + checksum::sum(&bytes));
    bytes[6..8].copy_from_slice(&check);
    bytes
}

/// A frame with the fragment of `whole` from `offset` on.
fn part(six: bool, id: u8, whole: &[u8], offset: usize, length: usize) -> Vec<u8> {
    let (from, to) = ends(six);
    let macs = Macs { from: PEER_MAC, to: [2, 0, 0, 0, 0, 2] };
    let bytes = &whole[offset..whole.len().min(offset + length)];
    let more = offset + length < whole.len();
    if six {
        let [high, low] = (offset as u16 | u16::from(more)).to_be_bytes();
        let body = [&[17, 0, high, low, 0, 0, 0, id][..], bytes].concat();
        return packet(macs, from, to, 44, 0, &body);
    }
    let mut frame = packet(macs, from, to, 17, 0, bytes);
    let [high, low] = ((offset / 8) as u16 | u16::from(more) << 13).to_be_bytes();
    frame[18..22].copy_from_slice(&[0, id, high, low]);
    frame[24..26].fill(0);
    let check = checksum::finish(checksum::sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&check);
    frame
}

#[test]
fn the_sender_of_the_first_fragment_of_an_incomplete_packet_gets_an_error() {
    for six in [false, true] {
        let mut host = Host::new(2, speak_ipv6);
        let whole = datagram(six, &[7; 3000]);
        let first = part(six, 1, &whole, 0, 1400);
        // Another packet lacks its first fragment, and a third is void.
        for frame in [&first, &part(six, 2, &whole, 1400, 1400), &part(six, 3, &whole, 0, 1400)] {
            assert!(host.tap.deliver(frame));
        }
        assert!(host.tap.deliver(&part(six, 3, &whole, 1392, 1400)));
        host.poll(SECOND);
        assert!(host.tap.take_transmitted().is_none());
        host.poll(31 * SECOND);
        let frame = host.tap.take_transmitted().expect("an error");
        assert!(host.tap.take_transmitted().is_none());
        let (kind, quoted) = if six { (54, 62) } else { (34, 42) };
        assert_eq!((frame[kind], frame[kind + 1]), (if six { 3 } else { 11 }, 1));
        assert_eq!(frame[..6], PEER_MAC);
        assert_eq!(frame[quoted..], first[14..14 + frame.len() - quoted]);
        assert!(frame.len() <= 14 + 1280 && (six || frame.len() == 14 + 20 + 8 + 28));
        assert_eq!(host.engine.metrics().icmp_errors_sent, 1);
        // A flood of them is answered at the rate of errors.
        for id in 0..50 {
            for second in 0..8 {
                let mut other = part(six, id, &whole, 0, 1400);
                if six {
                    other[22 + 15] = second + 20;
                } else {
                    other[29] = second + 20;
                    other[24..26].fill(0);
                    let check = checksum::finish(checksum::sum(&other[14..34]));
                    other[24..26].copy_from_slice(&check);
                }
                host.tap.deliver(&other);
                host.poll(40 * SECOND);
            }
        }
        host.poll(80 * SECOND);
        let errors = std::iter::from_fn(|| host.tap.take_transmitted()).count();
        assert!((1..=100).contains(&errors), "{errors}");
    }
}

#[test]
fn a_fragmented_datagram_arrives_whole_or_not_at_all() {
    for six in [false, true] {
        let mut host = Host::new(2, speak_ipv6);
        host.engine.udp_bind(53).expect("free");
        let payload: Vec<u8> = (0..9000_u32).map(|at| (at * 3) as u8).collect();
        let whole = datagram(six, &payload);
        for offset in [5600, 1400, 0, 2800, 8400, 4200, 7000] {
            host.tap.deliver(&part(six, 1, &whole, offset, 1400));
        }
        host.poll(SECOND);
        assert_eq!(host.engine.udp_receive(53).expect("it is whole").payload, payload);
        // One fragment in two versions: neither counts.
        host.tap.deliver(&part(six, 2, &whole, 0, 1400));
        host.tap.deliver(&part(six, 2, &whole, 8, 1400));
        for offset in [1400, 2800, 4200, 5600, 7000, 8400] {
            host.tap.deliver(&part(six, 2, &whole, offset, 1400));
        }
        host.poll(SECOND);
        assert!(host.engine.udp_receive(53).is_none());
        // One fragment never arrives: nothing is kept for ever.
        host.tap.deliver(&part(six, 3, &whole, 0, 1400));
        host.poll(SECOND);
        while let Some(at) = host.engine.next_deadline() {
            host.poll(at);
        }
        let metrics = host.engine.metrics();
        assert_eq!((metrics.reassembled, metrics.fragments), (1, 16));
        assert_eq!(metrics.bad_checksum + metrics.malformed, 0);
    }
}
