//! The rules in plain Rust, as the switch applies them, against the same oracle as the programs.

use proptest::prelude::*;

use super::{frames, oracle};
use crate::queue::LEAST_HEAD;
use crate::xdp::frame::Direction;
use crate::xdp::{VnicSpec, software};

fn agree(spec: &VnicSpec, direction: Direction, frame: &[u8]) {
    let head = &frame[..frame.len().min(LEAST_HEAD)];
    let (verdict, expected) = match direction {
        Direction::Receive => (software::receive(spec, head, frame.len()), oracle::receive(spec, frame)),
        Direction::Transmit => (software::transmit(spec, head, frame.len()), oracle::transmit(spec, frame)),
    };
    assert_eq!(verdict, expected.map(|_| ()), "{frame:02x?}");
}

#[test]
fn known_frames_are_judged_as_by_the_programs() {
    for spec in frames::rules(5).map(|spec| VnicSpec { uplink: Some(5), ..spec }) {
        for direction in [Direction::Receive, Direction::Transmit] {
            let hostile = frames::hostile(direction).into_iter().chain(frames::ipv6::hostile(direction));
            let legal = frames::legal(direction).into_iter().chain(frames::ipv6::legal(direction));
            for frame in legal.chain(hostile.map(|(_, frame, _)| frame)) {
                agree(&spec, direction, &frame);
                (0..frame.len()).for_each(|length| agree(&spec, direction, &frame[..length]));
            }
        }
    }
}

#[test]
fn a_list_of_all_ipv4_addresses_covers_ipv6_too() {
    let all = vec![crate::xdp::Ipv4Prefix::new(std::net::Ipv4Addr::UNSPECIFIED, 0).unwrap()];
    let spec = VnicSpec { peers: all, uplink: Some(5), ..frames::ipv6::spec6() };
    for frame in frames::ipv6::legal(Direction::Receive) {
        assert_eq!(software::receive(&spec, &frame, frame.len()), Ok(()));
    }
    for frame in frames::ipv6::legal(Direction::Transmit) {
        assert_eq!(software::transmit(&spec, &frame, frame.len()), Ok(()));
    }
    let listed = VnicSpec { peers: frames::prefixes(), ..spec };
    let frame = &frames::ipv6::legal(Direction::Receive)[0];
    assert_eq!(software::receive(&listed, frame, frame.len()), Err(crate::xdp::Reason::Peer));
}

#[test]
fn each_family_has_its_list_and_every_neighbour_may_be_resolved() {
    use frames::ipv6::{NON_PEER, legal, prefixes6, spec6, talk};
    for direction in [Direction::Receive, Direction::Transmit] {
        let judge = |spec: &VnicSpec, frame: &[u8]| match direction {
            Direction::Receive => software::receive(spec, frame, frame.len()),
            Direction::Transmit => software::transmit(spec, frame, frame.len()),
        };
        let listed = VnicSpec { peers6: prefixes6(), uplink: Some(5), ..spec6() };
        let tcp = talk(direction, 6, 6379);
        assert_eq!(judge(&listed, &tcp), Ok(()));
        let mut non_peer = tcp.clone();
        let at = if direction == Direction::Receive { 22 } else { 38 };
        non_peer[at..at + 16].copy_from_slice(&NON_PEER.octets());
        assert_eq!(judge(&listed, &non_peer), Err(crate::xdp::Reason::Peer));
        // A list of IPv6 alone names no peer of IPv4, and the other way round.
        let four = frames::talk(direction, 6, 6379, 0);
        assert_eq!(judge(&listed, &four), Err(crate::xdp::Reason::Peer));
        let other = VnicSpec { peers: frames::prefixes(), peers6: Vec::new(), ..listed.clone() };
        assert_eq!(judge(&other, &four), Ok(()));
        assert_eq!(judge(&other, &tcp), Err(crate::xdp::Reason::Peer));
        for frame in legal(direction).iter().filter(|frame| frame[20] == 58 && frame[54] >= 135) {
            assert_eq!((judge(&listed, frame), judge(&other, frame)), (Ok(()), Ok(())));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_frames_are_judged_as_by_the_programs(
        which in 0..9_usize, received in frames::damaged(Direction::Receive), sent in frames::damaged(Direction::Transmit),
    ) {
        let spec = VnicSpec { uplink: Some(5), ..frames::rules(5)[which].clone() };
        agree(&spec, Direction::Receive, &received);
        agree(&spec, Direction::Transmit, &sent);
    }
}
