use proptest::prelude::*;

use super::tcp::{ACK, Fields, Options, PSH, SYN, Segment};
use super::*;
use crate::packet::sequence::Seq;

/// RFC 1071 by the letter: big-endian words, carries added back one at a time.
fn by_the_letter(bytes: &[u8]) -> u16 {
    bytes.chunks(2).fold(0u16, |sum, pair| {
        let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    })
}

fn address(bits: u128, v6: bool) -> Address {
    if v6 { Address::from_octets((bits | 1 << 125).to_be_bytes()) } else { Address::v4(bits as u32) }
}

proptest! {
    #[test]
    fn a_payload_in_two_pieces_is_as_one(
        bytes in proptest::collection::vec(any::<u8>(), 0..3000), cut in 0usize..3000, skip in 0usize..3000, take in 0usize..3000,
    ) {
        let (head, tail) = bytes.split_at(cut.min(bytes.len()));
        let payload = Payload { head, tail: sietch_nic::Untrusted::from_slice(tail) };
        prop_assert_eq!(checksum::fold(payload.sum()), checksum::fold(checksum::sum(&bytes)));
        let part = payload.skip(skip).take(take);
        let expected: Vec<u8> = bytes.iter().copied().skip(skip).take(take).collect();
        prop_assert_eq!((part.len(), part.is_empty()), (expected.len(), expected.is_empty()));
        prop_assert_eq!(part.to_vec(), expected);
    }

    #[test]
    fn an_echo_reply_has_a_right_checksum(bytes in proptest::collection::vec(any::<u8>(), 0..100), rest in any::<u32>()) {
        let mut message = vec![0; icmp::HEADER];
        message.extend_from_slice(&bytes);
        icmp::emit(&mut message, icmp::ECHO_REQUEST, 0, rest);
        echo::reply_in_place(&mut message);
        let turned = icmp::Message::parse(&message).expect("its checksum is right");
        prop_assert_eq!((turned.kind, turned.rest, turned.payload.to_vec()), (icmp::ECHO_REPLY, rest, bytes));
    }

    #[test]
    fn the_checksum_is_that_of_the_rfc(bytes in proptest::collection::vec(any::<u8>(), 0..3000), cut in 0usize..3000) {
        prop_assert_eq!(checksum::fold(checksum::sum(&bytes)).to_ne_bytes(), by_the_letter(&bytes).to_be_bytes());
        let mut copy = vec![0; bytes.len()];
        prop_assert_eq!(checksum::copy_and_sum(&mut copy, &bytes), checksum::sum(&bytes));
        prop_assert_eq!(&copy, &bytes);
        let (first, second) = bytes.split_at(cut.min(bytes.len()));
        let joined = checksum::join(checksum::sum(first), first.len(), checksum::sum(second));
        prop_assert_eq!(checksum::fold(joined), checksum::fold(checksum::sum(&bytes)));
    }

    #[test]
    fn a_segment_reads_as_it_was_written(
        seq in any::<u32>(), ack in any::<u32>(), window in any::<u16>(),
        payload in proptest::collection::vec(any::<u8>(), 0..1448), cut in 0usize..1448, kind in 0u8..4, flip in any::<u16>(),
        ends in any::<(u128, u128)>(), v6 in any::<bool>(),
    ) {
        let options = match kind {
            0 => Options::None,
            1 => Options::Timestamps(seq, ack),
            2 => Options::Syn { mss: window, shift: None, sack: true, timestamps: Some((ack, seq)) },
            _ => Options::Syn { mss: window, shift: Some(7), sack: true, timestamps: None },
        };
        let flags = if kind > 1 { SYN | ACK } else { ACK | PSH };
        let path = Path { mac: [2; 6], next_hop: [4; 6], local: address(ends.0, v6), remote: address(ends.1, v6), local_port: 7, remote_port: 9 };
        let template = Template::new(&path, ipv4::TCP);
        prop_assert_eq!(template.path(), path);
        let fields = Fields { seq: Seq(seq), ack: Seq(ack), flags, window, options };
        let mut frame = vec![0xee; tcp::frame_length(&template, &options, payload.len())];
        tcp::emit(&mut frame, &template, &fields, payload.split_at(cut.min(payload.len())), true);
        let (link, packet) = ethernet::Header::parse(&frame).expect("it is long enough");
        prop_assert_eq!((link.source, link.destination), ([2; 6], [4; 6]));
        let (source, destination, bytes) = if v6 {
            let (header, bytes) = ipv6::Header::parse(packet).expect("it is long enough");
            prop_assert_eq!(header.next_header, ipv4::TCP);
            (header.source, header.destination, bytes)
        } else {
            let (header, bytes) = ipv4::Header::parse(packet).expect("its checksum is right");
            prop_assert_eq!(header.protocol, ipv4::TCP);
            (Address::v4(header.source), Address::v4(header.destination), bytes)
        };
        prop_assert_eq!((source, destination), (path.local, path.remote));
        let segment = Segment::parse(bytes, &source, &destination, false).expect("its checksum is right");
        prop_assert_eq!((segment.seq.0, segment.ack.0, segment.flags, segment.window), (seq, ack, flags, window));
        prop_assert_eq!(segment.payload.to_vec(), payload.as_slice());
        // The same bytes, of which all but the headers are foreign.
        let segment_bytes = bytes.to_vec();
        let (head, tail) = segment_bytes.split_at(segment_bytes.len() - payload.len());
        let split = Payload { head, tail: sietch_nic::Untrusted::from_slice(tail) };
        let again = Segment::parse(split, &source, &destination, false).expect("its checksum is right");
        prop_assert_eq!(again.payload.to_vec(), payload.as_slice());
        let (mss, shift, timestamps) = match options {
            Options::None => (None, None, None),
            Options::Timestamps(value, echo) => (None, None, Some((value, echo))),
            Options::Syn { mss, shift, timestamps, .. } => (Some(mss), shift, timestamps),
            Options::Sack { .. } => unreachable!("none was written"),
        };
        prop_assert_eq!((segment.options.mss, segment.options.shift, segment.options.timestamps), (mss, shift, timestamps));
        // One wrong bit anywhere in the segment is noticed.
        let bit = usize::from(flip) % (segment_bytes.len() * 8);
        let mut wrong = segment_bytes.clone();
        wrong[bit / 8] ^= 1 << (bit % 8);
        let verdict = Segment::parse(&wrong, &source, &destination, false);
        prop_assert!(verdict.is_err());
        // A kernel on the same machine leaves the sum of the pseudo-header alone. Only
        // `Checks::Unfinished` accepts that.
        let pseudo = checksum::pseudo_header(&source, &destination, ipv4::TCP, segment_bytes.len() as u32);
        let mut unfinished = segment_bytes.clone();
        unfinished[16..18].copy_from_slice(&checksum::fold(pseudo).to_ne_bytes());
        let made = Segment::parse(&unfinished, &source, &destination, Checks::Unfinished).expect("it is a kernel's");
        prop_assert_eq!(made.payload.to_vec(), payload.as_slice());
        prop_assert!(Segment::parse(&segment_bytes, &source, &destination, Checks::Unfinished).is_ok());
        let whole = Segment::parse(&unfinished, &source, &destination, Checks::Verify).is_ok();
        prop_assert_eq!(whole, unfinished == segment_bytes);
        if wrong[16..18] != unfinished[16..18] {
            prop_assert!(Segment::parse(&wrong, &source, &destination, Checks::Unfinished).is_err());
        }
        // And without a checksum.
        tcp::emit(&mut frame, &template, &fields, payload.split_at(cut.min(payload.len())), false);
        let (_, bytes) = frame.split_at(template.network_end());
        prop_assert_eq!(&bytes[16..18], &[0, 0][..]);
        let unchecked = Segment::parse(bytes, &source, &destination, true).expect("it is not checked");
        prop_assert_eq!(unchecked.payload.to_vec(), payload.as_slice());
    }

    #[test]
    fn parsers_take_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = ethernet::Header::parse(&bytes);
        let _ = arp::Packet::parse(&bytes);
        let _ = ipv4::Header::parse(&bytes);
        let _ = ipv6::Header::parse(&bytes);
        let _ = Segment::parse(&bytes, &Address::v4(1), &Address::v4(2), false);
        let _ = udp::Datagram::parse(&bytes, &Address::v4(1), &Address::v4(2), false);
        let _ = icmp::Message::parse(&bytes);
        let _ = icmp::Quote::parse(&bytes);
        if let Some((first, rest)) = bytes.split_first() {
            let _ = ipv6::walk(*first % 64, Payload::from(rest));
        }
        let (source, target) = (Address::ALL_NODES, Address::ALL_ROUTERS);
        let _ = icmpv6::parse(&bytes, &source, &target);
        for kind in [icmpv6::NEIGHBOUR_SOLICITATION, icmpv6::NEIGHBOUR_ADVERTISEMENT] {
            let message = icmp::Message { kind, code: 0, rest: 0, payload: Payload::from(&bytes) };
            let _ = icmpv6::Neighbour::parse(&message);
        }
    }
}
