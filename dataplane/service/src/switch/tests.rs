use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use sietch_nic::NicQueue;
use sietch_nic::wire::{Medium, WireQueue, WireTap, tapped, tapped_with};
use sietch_nic::xdp::{Ipv4Prefix, Reason, VnicSpec};

use super::{AddError, Switch};

const MTU: usize = 9000;

fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}

fn spec(last: u8) -> VnicSpec {
    VnicSpec {
        mac: mac(last),
        address: Ipv4Addr::new(10, 0, 0, last),
        address6: None,
        tcp_ports: vec![0..=u16::MAX],
        udp_ports: vec![7000..=7999],
        peers: Vec::new(),
        peers6: Vec::new(),
        rate: None,
        burst: 0,
        uplink: None,
        host_mac: [2, 0, 0, 0, 0xff, last],
        generation: 1,
    }
}

/// A UDP datagram of `length` bytes in all.
fn datagram(from: u8, to: u8, length: usize) -> Vec<u8> {
    let mut frame = vec![from ^ 0x55; length];
    frame[..6].copy_from_slice(&mac(to));
    frame[6..12].copy_from_slice(&mac(from));
    frame[12..14].copy_from_slice(&[8, 0]);
    let total = ((length - 14) as u16).to_be_bytes();
    frame[14..24].copy_from_slice(&[0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 0, from, 10, 0, 0, to]);
    frame[34..38].copy_from_slice(&[0x1b, 0x58, 0x1b, 0x58]);
    frame
}

fn arp_request(from: u8, about: u8) -> Vec<u8> {
    let mut frame = vec![0; 42];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac(from));
    frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame[22..28].copy_from_slice(&mac(from));
    frame[28..32].copy_from_slice(&[10, 0, 0, from]);
    frame[38..42].copy_from_slice(&[10, 0, 0, about]);
    frame
}

fn switch(specs: impl IntoIterator<Item = VnicSpec>) -> (Switch<WireQueue>, Vec<WireTap>) {
    let (mut switch, mut taps) = (Switch::default(), Vec::new());
    for (id, spec) in specs.into_iter().enumerate() {
        let (queue, tap) = tapped_with(spec.host_mac, MTU, 512, Medium::SHARED_MEMORY);
        switch.add(id as u64 + 1, spec, queue).expect("its own MAC and address");
        taps.push(tap);
    }
    (switch, taps)
}

fn arrived(tap: &WireTap) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| tap.take_transmitted()).collect()
}

#[test]
fn a_frame_reaches_its_destination_whole_and_no_other_port() {
    let (mut switch, taps) = switch([spec(1), spec(2), spec(3)]);
    for length in [60, 300, 9014] {
        let frame = datagram(1, 2, length);
        assert!(taps[0].deliver(&frame) && switch.poll(0));
        assert_eq!((arrived(&taps[1]), arrived(&taps[2]).len()), (vec![frame], 0));
    }
    // An ARP request goes to the owner of the requested address.
    assert!(taps[0].deliver(&arp_request(1, 3)) && switch.poll(0));
    assert_eq!((arrived(&taps[1]).len(), arrived(&taps[2])), (0, vec![arp_request(1, 3)]));
    // To itself, and to an address that no port has.
    assert!(taps[0].deliver(&datagram(1, 1, 60)) && taps[0].deliver(&datagram(1, 9, 60)) && switch.poll(0));
    assert!(taps[0].deliver(&arp_request(1, 9)) && switch.poll(0) && !switch.poll(0));
    assert_eq!(taps.iter().map(|tap| arrived(tap).len()).sum::<usize>(), 0);
    let counters = switch.counters(1).expect("it is there");
    assert_eq!((counters.sent_frames, counters.send_drops[Reason::Target as usize]), (4, 3));
    assert!(switch.queues().all(|queue| queue.free_buffers() == 512));
}

fn six(last: u8) -> VnicSpec {
    VnicSpec { address6: Some(address6(last)), ..spec(last) }
}

fn address6(last: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into())
}

/// A message of neighbour discovery from `from`, about `about`; from the unspecified address if it
/// is a trial (duplicate address detection).
fn discovery(kind: u8, from: u8, about: Ipv6Addr, trial: bool) -> Vec<u8> {
    let [.., a, b, c] = about.octets();
    let group = match kind {
        135 => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c])),
        _ => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
    };
    let [.., d, e, f, g] = group.octets();
    let source = if trial { Ipv6Addr::UNSPECIFIED } else { address6(from) };
    let mut frame = vec![0x33, 0x33, d, e, f, g];
    frame.extend_from_slice(&mac(from));
    let length = if trial { 24 } else { 32 };
    frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, length, 58, 255]);
    frame.extend_from_slice(&source.octets());
    frame.extend_from_slice(&group.octets());
    frame.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend_from_slice(&about.octets());
    if !trial {
        frame.extend_from_slice(&[kind - 134, 1]);
        frame.extend_from_slice(&mac(from));
    }
    frame
}

fn counts(taps: &[WireTap]) -> Vec<usize> {
    taps.iter().map(|tap| arrived(tap).len()).collect()
}

#[test]
fn a_neighbour_solicitation_reaches_the_owner_of_the_address_alone() {
    let (mut switch, taps) = switch([six(1), six(2), six(3), spec(4)]);
    // The last bytes of the link-local addresses differ as the MACs do.
    let local = six(3).link_local();
    for (frame, expected) in [
        (discovery(135, 1, address6(2), false), [0, 1, 0, 0]),
        (discovery(135, 1, local, false), [0, 0, 1, 0]),
        // A trial of another's address would make its owner stop using it (RFC 4862 section 5.4.3).
        (discovery(135, 1, address6(3), true), [0, 0, 0, 0]),
        // An unknown address, its own, and a forged source.
        (discovery(135, 1, address6(9), false), [0, 0, 0, 0]),
        (discovery(135, 1, address6(1), true), [0, 0, 0, 0]),
    ] {
        assert!(taps[0].deliver(&frame) && switch.poll(0));
        assert_eq!(counts(&taps), expected, "{frame:02x?}");
    }
    let counters = switch.counters(1).expect("it is there");
    assert_eq!((counters.sent_frames, counters.send_drops[Reason::Target as usize]), (2, 2));
    assert_eq!(counters.send_drops[Reason::Icmp as usize], 1);
    // An announcement of another's address, and a request in another's name, are dropped.
    let mut named = discovery(135, 1, address6(2), false);
    named[22..38].copy_from_slice(&address6(3).octets());
    for frame in [discovery(136, 1, address6(2), false), named] {
        assert!(taps[0].deliver(&frame) && switch.poll(0));
        assert_eq!(counts(&taps), [0, 0, 0, 0]);
    }
    let counters = switch.counters(1).expect("it is there");
    assert_eq!(
        (counters.send_drops[Reason::Icmp as usize], counters.send_drops[Reason::Address as usize]),
        (2, 1)
    );
}

#[test]
fn an_announcement_reaches_all_ports_and_each_copy_costs_its_sender() {
    let (mut switch, taps) = switch([six(1), six(2), six(3), spec(4)]);
    assert!(taps[0].deliver(&discovery(136, 1, address6(1), false)) && switch.poll(0));
    assert_eq!(counts(&taps), [0, 1, 1, 0]);
    assert!(taps[0].deliver(&arp_request(1, 1)) && switch.poll(0));
    assert_eq!(counts(&taps), [0, 1, 1, 1]);
    // It cannot announce the address of another port.
    let mut forged = arp_request(1, 1);
    (forged[31], forged[41]) = (2, 2);
    assert!(taps[0].deliver(&forged) && switch.poll(0));
    assert_eq!(counts(&taps), [0, 0, 0, 0]);
    // A flood of announcements does not buy more than a share: copies count, and debts are kept.
    let mut seen = 0;
    for now in 0..100 {
        while taps[0].deliver(&{
            let mut long = arp_request(1, 1);
            long.resize(9014, 0);
            long
        }) {}
        switch.poll(now);
        seen += arrived(&taps[1]).len();
        taps[2..].iter().for_each(|tap| drop(arrived(tap)));
    }
    let share = 100 * super::QUANTUM as usize / (3 * (9014 + super::FRAME_COST as usize));
    assert!(seen <= share + 4 && seen >= share - 8, "{seen} of {share}");
}

#[test]
fn each_copy_of_an_announcement_counts_for_its_senders_rate() {
    for (frame, copies) in [(arp_request(1, 1), 100), (discovery(136, 1, address6(1), false), 50)] {
        // A megabyte a second, and a burst of ten milliseconds of it.
        let limited = VnicSpec { rate: Some(1_000_000), burst: 10_000, ..six(1) };
        let others = (2..=101).map(|last| if last <= 51 { six(last) } else { spec(last) });
        let (mut switch, taps) = switch([limited].into_iter().chain(others));
        let mut copied = 0;
        for millisecond in 0..=1000_u64 {
            while taps[0].deliver(&frame) {}
            while switch.poll(millisecond * 1_000_000) {}
            copied += taps[1..].iter().map(|tap| arrived(tap).len()).sum::<usize>();
        }
        let granted = 1_010_000 / frame.len();
        assert!((granted / 2..=granted + copies).contains(&copied), "{copied} copies of {granted}");
    }
}

#[test]
fn rules_of_sender_and_receiver_hold_and_can_change() {
    let third = Ipv4Prefix::new(Ipv4Addr::new(10, 0, 0, 3), 32).expect("32 bits");
    let picky = VnicSpec { peers: vec![third], ..spec(2) };
    let (mut switch, taps) = switch([spec(1), picky, spec(3)]);
    let mut forged = datagram(1, 3, 60);
    forged[11] = 2;
    let mut address = datagram(1, 3, 60);
    address[29] = 2;
    let mut port = datagram(1, 3, 60);
    port[34] = 0;
    for frame in [&forged, &address, &port, &datagram(1, 2, 60)] {
        assert!(taps[0].deliver(frame));
    }
    assert!(switch.poll(0));
    assert_eq!(taps.iter().map(|tap| arrived(tap).len()).sum::<usize>(), 0);
    let sender = switch.counters(1).expect("it is there");
    for reason in [Reason::SourceMac, Reason::Address, Reason::Port] {
        assert_eq!(sender.send_drops[reason as usize], 1, "{reason:?}");
    }
    assert_eq!(switch.counters(2).expect("it is there").receive_drops[Reason::Peer as usize], 1);
    assert!(switch.update(2, spec(2)).expect("its own still"));
    assert!(taps[0].deliver(&datagram(1, 2, 60)) && switch.poll(0));
    assert_eq!(arrived(&taps[1]).len(), 1);
}

#[test]
fn numbers_and_addresses_are_unique_and_the_medium_is_memory() {
    let (mut switch, _taps) = switch([spec(1)]);
    let queue = || tapped_with(mac(9), MTU, 8, Medium::SHARED_MEMORY).0;
    assert!(matches!(switch.add(1, spec(2), queue()), Err(AddError::Taken(1, 1))));
    assert!(matches!(switch.add(2, spec(1), queue()), Err(AddError::Taken(2, 1))));
    switch.add(7, six(7), queue()).expect("its own addresses");
    let same = VnicSpec { address6: six(7).address6, ..spec(8) };
    assert!(matches!(switch.add(8, same, queue()), Err(AddError::Taken(8, 7))));
    assert!(matches!(switch.add(2, spec(2), tapped(mac(9), MTU, 8).0), Err(AddError::Medium(2))));
    assert!(matches!(switch.add(2, VnicSpec { mac: [1; 6], ..spec(2) }, queue()), Err(AddError::Rules(..))));
    assert!(!switch.update(5, spec(5)).expect("sound rules"));
}

#[test]
fn a_rate_is_kept_over_time_and_a_burst_at_once() {
    let limited = VnicSpec { rate: Some(1_000_000), burst: 10_000, ..spec(1) };
    let (mut switch, taps) = switch([limited, spec(2), spec(3)]);
    let mut frames = [0; 2];
    // A second in steps of a millisecond, with as much as there is room for.
    for step in 0..1000_u64 {
        while taps[0].deliver(&datagram(1, 2, 1000)) {}
        assert!(taps[2].deliver(&datagram(3, 2, 1000)));
        switch.poll(step * 1_000_000);
        // Unless the last of a batch has just passed.
        if let Some(until) = switch.next_deadline() {
            assert!(until > step * 1_000_000 && until <= (step + 3) * 1_000_000, "{until} at step {step}");
        }
        for frame in arrived(&taps[1]) {
            frames[usize::from(frame[11] == 3)] += 1;
        }
        if step == 0 {
            assert_eq!(frames, [10, 1]);
        }
    }
    // The rate is kept, others are not held up by it, and nothing is lost: what exceeds the rate
    // waits in its sender's memory.
    assert!((1000..=1012).contains(&frames[0]), "{frames:?} frames of 1000 bytes in a second");
    assert_eq!(frames[1], 1000);
    let counters = switch.counters(1).expect("it is there");
    assert_eq!((counters.sent_frames, counters.send_drops.iter().sum::<u64>()), (frames[0], 0));
    // Without a limit all waiting frames may pass at once, a batch an iteration.
    assert!(switch.update(1, spec(1)).expect("its own still"));
    while switch.poll(1_000_000_000) {}
    assert_eq!((arrived(&taps[1]).len(), switch.next_deadline()), (512, None));
}

#[test]
fn a_frame_beyond_the_burst_waits_and_passes() {
    let limited = VnicSpec { rate: Some(1_000_000), burst: 4096, ..spec(1) };
    let (mut switch, taps) = switch([limited, spec(2)]);
    for length in [5000, 5000, 60] {
        assert!(taps[0].deliver(&datagram(1, 2, length)));
    }
    let (mut now, mut lengths) = (0, Vec::new());
    for _ in 0..10 {
        switch.poll(now);
        lengths.extend(arrived(&taps[1]).iter().map(|frame| (now, frame.len())));
        now = switch.next_deadline().unwrap_or(now + 1);
    }
    assert_eq!(lengths.iter().map(|(_, length)| *length).collect::<Vec<_>>(), [5000, 5000, 60]);
    // The frames before it are paid for by then.
    assert!((5_000_000..6_200_000).contains(&lengths[1].0), "{lengths:?}");
}

#[test]
fn a_flooding_port_gets_no_more_than_its_share() {
    let (mut switch, taps) = switch([spec(1), spec(2), spec(3)]);
    let mut bytes = [0_usize; 4];
    for now in 0..200 {
        // One sends large frames, one small ones, both more than can be served.
        while taps[0].deliver(&datagram(1, 3, 9014)) {}
        while taps[1].deliver(&datagram(2, 3, 60)) {}
        assert!(switch.poll(now));
        for frame in arrived(&taps[2]) {
            bytes[usize::from(frame[11])] += frame.len() + super::FRAME_COST as usize;
        }
    }
    // Small frames reach the batch bound first: 64 an iteration. Neither is starved, and the large
    // ones get no more than a quantum.
    assert!(bytes[1] <= 200 * super::QUANTUM as usize + 9526 && bytes[1] >= 190 * 60_000, "{bytes:?}");
    assert!(bytes[2] >= 200 * 60 * (60 + super::FRAME_COST as usize), "{bytes:?}");
}

#[test]
fn a_full_or_dead_port_costs_only_itself() {
    let (mut switch, taps) = switch([spec(1), spec(2), spec(3)]);
    taps[1].limit_transmitted(0);
    for now in 0..50 {
        for _ in 0..32 {
            assert!(taps[0].deliver(&datagram(1, 2, 60)));
            assert!(taps[0].deliver(&datagram(1, 3, 60)));
        }
        switch.poll(now);
        assert_eq!(arrived(&taps[2]).len(), 32);
    }
    assert!(switch.counters(2).expect("it is there").receive_full > 0);
    taps[1].cut();
    assert!(taps[0].deliver(&datagram(1, 2, 60)) && taps[0].deliver(&datagram(1, 3, 60)));
    // What waited for the full port has filled it; a question of its own makes it be flushed.
    switch.poll(50);
    assert_eq!(arrived(&taps[2]).len(), 1);
    assert!(switch.remove(2).is_some() || switch.take_dead() == [2]);
    assert!(taps[0].deliver(&datagram(1, 2, 60)) && switch.poll(51));
    assert_eq!(switch.counters(1).expect("it is there").send_drops[Reason::Target as usize], 1);
}

#[test]
fn a_port_whose_queue_fails_is_removed_and_reported() {
    let (mut switch, taps) = switch([spec(1), spec(2)]);
    taps[1].cut();
    assert!(taps[0].deliver(&datagram(1, 2, 60)) && switch.poll(0));
    assert_eq!((switch.take_dead(), switch.ids().collect::<Vec<_>>()), (vec![2], vec![1]));
}

proptest! {
    #[test]
    fn any_bytes_are_judged_and_no_buffer_is_lost(
        frames in prop::collection::vec((0..3_usize, prop::collection::vec(any::<u8>(), 0..200), 0..60_usize), 1..100),
    ) {
        let (mut switch, taps) = switch([spec(1), spec(2), spec(3)]);
        for (port, noise, keep) in frames {
            let mut frame = datagram(port as u8 + 1, (port as u8 + 1) % 3 + 1, 60);
            frame.truncate(keep);
            frame.extend_from_slice(&noise);
            taps[port].deliver(&frame);
            switch.poll(0);
            taps.iter().for_each(|tap| drop(arrived(tap)));
        }
        prop_assert!(switch.queues().all(|queue| queue.free_buffers() == 512));
    }
}
