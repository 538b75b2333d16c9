//! Selective acknowledgements as a receiver: what the engine reports of bytes that arrived out of
//! order, or again.

use crate::harness::peer::{PEER_ISS, Peer};
use crate::harness::{MILLISECOND, SECOND};
use sietch_net::packet::tcp::{ACK, Options, SYN};
use sietch_net::{Seq, SocketKind, State};

fn selective() -> Peer {
    let mut peer = Peer::new(|_| {});
    peer.handshake(Options::Syn { mss: 1000, shift: None, sack: true, timestamps: None });
    peer
}

/// Ranges as offsets into our stream.
fn offsets(sack: &[(Seq, Seq)]) -> Vec<(u32, u32)> {
    sack.iter().map(|range| (range.0.since(PEER_ISS.plus(1)), range.1.since(PEER_ISS.plus(1)))).collect()
}

fn ten(peer: &mut Peer, offset: u32) -> (u32, Vec<(u32, u32)>) {
    peer.say(offset, 0, ACK, b"0123456789");
    let got = peer.one();
    (got.ack.since(PEER_ISS.plus(1)), offsets(&got.sack))
}

#[test]
fn selective_acknowledgements_are_agreed_on_or_not_used() {
    let mut peer = Peer::new(|_| {});
    peer.put(
        PEER_ISS,
        Seq(0),
        SYN,
        Options::Syn { mss: 1000, shift: None, sack: true, timestamps: None },
        b"",
    );
    assert!(peer.one().options.sack_permitted);
    let mut peer = selective();
    assert!(peer.host.engine.flow_info(peer.flow).expect("it is open").sack);
    assert_eq!(ten(&mut peer, 10), (0, vec![(10, 20)]));
    let mut plain = Peer::connected(|_| {});
    assert!(!plain.host.engine.flow_info(plain.flow).expect("it is open").sack);
    assert_eq!(ten(&mut plain, 10), (0, vec![]));
    let mut peer = Peer::new(|_| {});
    peer.put(
        PEER_ISS,
        Seq(0),
        SYN,
        Options::Syn { mss: 1000, shift: None, sack: false, timestamps: None },
        b"",
    );
    assert!(!peer.one().options.sack_permitted);
}

#[test]
fn the_latest_range_comes_first_and_four_fit_without_timestamps() {
    let mut peer = selective();
    for start in [20, 40, 60, 80] {
        ten(&mut peer, start);
    }
    assert_eq!(ten(&mut peer, 100).1, [(100, 110), (80, 90), (60, 70), (40, 50)]);
    assert_eq!(ten(&mut peer, 30).1, [(20, 50), (100, 110), (80, 90), (60, 70)]);
    peer.say(0, 0, ACK, &[7; 20]);
    let got = peer.one();
    assert_eq!(got.ack, PEER_ISS.plus(51));
    assert_eq!(offsets(&got.sack), [(100, 110), (80, 90), (60, 70)]);
}

#[test]
fn three_fit_with_timestamps() {
    let mut peer = Peer::new(|_| {});
    peer.handshake(Options::Syn { mss: 1460, shift: Some(7), sack: true, timestamps: Some((5000, 0)) });
    let ack = peer.irs.plus(1);
    let mut last = Vec::new();
    for (step, start) in [20u32, 40, 60, 80].into_iter().enumerate() {
        let stamps = Options::Timestamps(5001 + step as u32, 0);
        peer.put(PEER_ISS.plus(1 + start), ack, ACK, stamps, b"0123456789");
        let got = peer.one();
        assert!(got.options.timestamps.is_some());
        last = offsets(&got.sack);
    }
    assert_eq!(last, [(80, 90), (60, 70), (40, 50)]);
}

#[test]
fn bytes_that_arrive_again_are_reported_in_one_dsack() {
    let mut peer = selective();
    peer.say(0, 0, ACK, &[1; 100]);
    peer.until(peer.now + 100 * MILLISECOND);
    // Wholly old.
    peer.say(40, 0, ACK, &[1; 20]);
    assert_eq!(offsets(&peer.one().sack), [(40, 60)]);
    // Half old: the new half counts.
    peer.say(90, 0, ACK, &[1; 20]);
    let got = peer.until(peer.now + 100 * MILLISECOND).remove(0);
    assert_eq!((got.ack, offsets(&got.sack)), (PEER_ISS.plus(111), vec![(90, 100)]));
    // Again beyond a gap: the DSACK, then the range around it (RFC 2883 section 4.2).
    ten(&mut peer, 200);
    ten(&mut peer, 210);
    assert_eq!(ten(&mut peer, 205).1, [(205, 215), (200, 220)]);
    assert_eq!(ten(&mut peer, 220).1, [(200, 230)]);
    assert_eq!(peer.host.engine.metrics().dsacks_sent, 3);
}

#[test]
fn data_carry_ranges_where_there_is_room() {
    let mut peer = selective();
    ten(&mut peer, 50);
    peer.host.engine.send(peer.flow, &[3; 100]);
    peer.host.engine.send(peer.flow, &[4; 2000]);
    peer.poll();
    let sent = peer.take();
    let lengths: Vec<_> = sent.iter().map(|got| (got.payload.len(), got.sack.len())).collect();
    assert_eq!(lengths, [(1000, 0), (1000, 0), (100, 1)]);
    assert_eq!(offsets(&sent[2].sack), [(50, 60)]);
}

#[test]
fn every_socket_is_listed() {
    let mut peer = selective();
    peer.port += 1;
    peer.put(PEER_ISS, Seq(0), SYN, Options::None, b"");
    peer.host.engine.udp_bind(53).expect("it is free");
    let sockets: Vec<_> = peer.host.engine.sockets().collect();
    let kinds: Vec<_> = sockets.iter().map(|socket| socket.kind).collect();
    assert!(matches!(kinds[0], SocketKind::Listener { waiting: 0, backlog: 64 }));
    assert_eq!(kinds[1], SocketKind::HalfOpen);
    assert_eq!(kinds[2], SocketKind::Flow(peer.flow));
    assert_eq!(kinds[3], SocketKind::Udp { waiting: 0 });
    let info = sockets[2].flow.expect("a flow says all");
    assert_eq!((info.state, info.remote.port()), (State::Established, peer.port - 1));
    peer.until(peer.now + 200 * SECOND);
    assert_eq!(peer.host.engine.sockets().count(), 3, "the half-open connection was removed");
}
