//! The rules of IPv6. A VNIC has two addresses at most: the granted one, and the link-local one
//! that follows from its MAC.
//!
//! 1. The header is fixed; what comes after it must be TCP, UDP or ICMPv6. Extension headers could
//!    hide a port or a fragment.
//! 2. The VNIC's side is one of its addresses. A packet to a group, or from the unspecified
//!    address, is neighbour discovery or nothing; [`REST`] remembers that until the protocol is
//!    known. From the unspecified address a VNIC solicits its own addresses alone.
//! 3. The other side is in the peer list, if there is one. Neighbour discovery, as ARP, may be with
//!    any node: the router on the way may be no peer.
//! 4. Neighbour discovery keeps the hop limit that no router passes on (RFC 4861 section 11.2).
//!    What a VNIC says of itself in it is true: its own MAC, and its own addresses.

use super::super::assembler::Register::{R0, R1, R2, R3, R4, R5, R6, R7, R9, R10};
use super::super::assembler::{Alu, Condition, Label, MapReference, Size};
use super::super::counters::Reason;
use super::super::layout::{PORT_WORDS, Word, word_of};
use super::{
    Direction, ETHERTYPE, ETHERTYPE_IPV6, FrameProgram, PREFIX_KEY6, TCP_MINIMUM, TRANSPORT_MINIMUM, wire16,
};

/// Where the header ends.
const IPV6_END: i32 = 54;
/// Where the payload's length is.
const PAYLOAD_LENGTH: i16 = 18;
/// Where the ICMPv6 type, an option of neighbour discovery, and the destination of a quoted packet
/// are.
const TYPE: i16 = 54;
const TARGET: i16 = 62;
const OPTION: i16 = 78;
const QUOTED: i16 = 86;
/// The first half of every link-local address.
const LINK_LOCAL: u64 = word_of([0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
/// Both halves of the group of all nodes.
const GROUP: u64 = word_of([0xff, 2, 0, 0, 0, 0, 0, 0]);
const ALL_NODES: u64 = word_of([0, 0, 0, 0, 0, 0, 0, 1]);
/// The first bytes of the MACs of groups (RFC 2464 section 7).
const GROUP_MAC: i32 = wire16(0x3333);

const FRAGMENT: i32 = 44;
const SOLICITATION: i32 = 135;
const ADVERTISEMENT: i32 = 136;

/// Stack: what may follow.
const REST: i16 = -48;
/// Stack: R3, during a map lookup.
const SAVED: i16 = -88;
/// Anything.
const ANYTHING: i32 = 0;
/// Neighbour discovery.
const DISCOVERY: i32 = 1;
/// A solicitation without a link address: a node tries out an address (RFC 4862 section 5.4.2).
const TRIAL: i32 = 2;

impl Direction {
    const fn own_address6(self) -> i16 {
        match self {
            Self::Receive => 38,
            Self::Transmit => 22,
        }
    }

    const fn peer_address6(self) -> i16 {
        match self {
            Self::Receive => 22,
            Self::Transmit => 38,
        }
    }

    /// Why a packet to a group is dropped that is not neighbour discovery.
    const fn group_reason(self) -> Reason {
        match self {
            Self::Receive => Reason::Address,
            Self::Transmit => Reason::Peer,
        }
    }
}

impl FrameProgram {
    /// Jumps to `label` if the frame is IPv6.
    pub(crate) fn if_ipv6(&mut self, label: Label) {
        self.code.load(Size::Half, R3, R7, ETHERTYPE);
        self.jump_if(Condition::Equal, R3, ETHERTYPE_IPV6, label);
    }

    /// Jumps to `label` if the frame is IPv6 to the MAC of a group.
    pub(crate) fn if_ipv6_group_mac(&mut self, label: Label) {
        let not = self.code.label();
        self.code.load(Size::Half, R3, R7, ETHERTYPE);
        self.jump_if(Condition::NotEqual, R3, ETHERTYPE_IPV6, not);
        self.code.load(Size::Half, R3, R7, 0);
        self.jump_if(Condition::Equal, R3, GROUP_MAC, label);
        self.code.bind(not);
    }

    /// Drops IPv6 packets that the VNIC may not receive or send. The MACs were judged before.
    pub(crate) fn ipv6(&mut self, direction: Direction, ports: MapReference, peers: MapReference) {
        self.require_or_drop(IPV6_END);
        self.code.load(Size::Byte, R1, R7, 14);
        self.code.alu64(Alu::ShiftRight, R1, 4);
        self.drop_if(Condition::NotEqual, R1, 6, Reason::Header);
        self.code.load(Size::Half, R2, R7, PAYLOAD_LENGTH);
        self.code.big_endian(R2, 16);
        self.code.set(R1, R2);
        self.code.alu64(Alu::Add, R1, IPV6_END);
        self.drop_if(Condition::Greater, R1, R6, Reason::Header);
        self.code.load(Size::Byte, R3, R7, 20);
        self.drop_if(Condition::Equal, R3, FRAGMENT, Reason::Fragment);
        self.code.store(Size::Double, R10, REST, ANYTHING);
        self.addresses6(direction);
        self.transport6(direction, ports, peers);
    }

    /// Jumps to `ours` if the address at `offset` is one of the VNIC's. R1 and R4 have its halves
    /// afterwards.
    fn if_own_address6(&mut self, offset: i16, ours: Label) {
        let not_granted = self.code.label();
        let not_local = self.code.label();
        self.code.load(Size::Double, R1, R7, offset);
        self.code.load(Size::Double, R4, R7, offset + 8);
        self.code.load(Size::Double, R5, R9, Word::Address6High.offset());
        self.jump_if(Condition::NotEqual, R1, R5, not_granted);
        self.code.load(Size::Double, R5, R9, Word::Address6Low.offset());
        self.jump_if(Condition::Equal, R4, R5, ours);
        self.code.bind(not_granted);
        self.code.set_wide(R5, LINK_LOCAL);
        self.jump_if(Condition::NotEqual, R1, R5, not_local);
        self.code.load(Size::Double, R5, R9, Word::LinkLocal.offset());
        self.jump_if(Condition::Equal, R4, R5, ours);
        self.code.bind(not_local);
    }

    /// Keeps R2 and R3.
    fn addresses6(&mut self, direction: Direction) {
        let ours = self.code.label();
        let done = self.code.label();
        self.if_own_address6(direction.own_address6(), ours);
        match direction {
            Direction::Receive => {
                let group = self.code.label();
                self.code.set_wide(R5, GROUP);
                self.drop_if(Condition::NotEqual, R1, R5, Reason::Address);
                self.code.set_wide(R5, ALL_NODES);
                self.jump_if(Condition::Equal, R4, R5, group);
                // Its second half is that of all nodes, and three bytes of the address that is
                // solicited (RFC 4291 section 2.7.1).
                self.code.load(Size::Double, R5, R9, Word::Solicited.offset());
                self.jump_if(Condition::Equal, R4, R5, group);
                self.code.load(Size::Double, R5, R9, Word::SolicitedLinkLocal.offset());
                self.drop_if(Condition::NotEqual, R4, R5, Reason::Address);
                self.code.bind(group);
                self.code.store(Size::Double, R10, REST, DISCOVERY);
                self.code.bind(ours);
            }
            Direction::Transmit => {
                self.code.alu64(Alu::Or, R1, R4);
                self.drop_if(Condition::NotEqual, R1, 0, Reason::Address);
                self.code.store(Size::Double, R10, REST, TRIAL);
                self.code.jump(done);
                self.code.bind(ours);
                self.code.load(Size::Byte, R1, R7, 38);
                self.jump_if(Condition::NotEqual, R1, 0xff, done);
                self.code.store(Size::Double, R10, REST, DISCOVERY);
            }
        }
        self.code.bind(done);
        if direction == Direction::Transmit {
            self.group_mac_means_group();
        }
    }

    /// Drops packets to one host in frames to a group: each host that listens would take them for
    /// its own to judge.
    fn group_mac_means_group(&mut self) {
        let done = self.code.label();
        self.code.load(Size::Byte, R1, R7, 0);
        self.code.alu64(Alu::And, R1, 1);
        self.jump_if(Condition::Equal, R1, 0, done);
        self.code.load(Size::Byte, R1, R7, 38);
        self.drop_if(Condition::NotEqual, R1, 0xff, Reason::DestinationMac);
        self.code.bind(done);
    }

    /// R2 has the bytes after the header, R3 the protocol.
    fn transport6(&mut self, direction: Direction, ports: MapReference, peers: MapReference) {
        let icmp = self.code.label();
        let tcp = self.code.label();
        let udp = self.code.label();
        let port = self.code.label();
        let done = self.code.label();
        self.jump_if(Condition::Equal, R3, libc::IPPROTO_ICMPV6, icmp);
        self.only_if_anything(direction, peers);
        self.jump_if(Condition::Equal, R3, libc::IPPROTO_TCP, tcp);
        self.jump_if(Condition::Equal, R3, libc::IPPROTO_UDP, udp);
        self.drop(Reason::Protocol);
        self.code.bind(tcp);
        self.drop_if(Condition::Less, R2, TCP_MINIMUM, Reason::Header);
        self.code.set(R0, 0);
        self.code.jump(port);
        self.code.bind(udp);
        self.drop_if(Condition::Less, R2, TRANSPORT_MINIMUM, Reason::Header);
        self.code.set(R0, PORT_WORDS as i32);
        self.code.bind(port);
        self.code.set(R4, R7);
        self.code.alu64(Alu::Add, R4, IPV6_END);
        self.granted_port(direction, ports);
        self.code.jump(done);
        self.code.bind(icmp);
        self.drop_if(Condition::Less, R2, TRANSPORT_MINIMUM, Reason::Header);
        self.require_or_drop(IPV6_END + TRANSPORT_MINIMUM);
        self.code.load(Size::Byte, R3, R7, TYPE);
        match direction {
            Direction::Receive => self.icmp6_received(peers, done),
            Direction::Transmit => self.icmp6_sent(peers, done),
        }
        self.code.bind(done);
    }

    /// For packets that are not neighbour discovery: drops packets to a group, from the unspecified
    /// address, or whose other side is no peer. Keeps R2 (the payload's length) and R3.
    fn only_if_anything(&mut self, direction: Direction, peers: MapReference) {
        self.code.load(Size::Double, R1, R10, REST);
        self.drop_if(Condition::Equal, R1, DISCOVERY, direction.group_reason());
        if direction == Direction::Transmit {
            self.drop_if(Condition::Equal, R1, TRIAL, Reason::Address);
        }
        let any_peer = self.code.label();
        self.code.load(Size::Double, R1, R9, Word::PeersRestricted6.offset());
        self.jump_if(Condition::Equal, R1, 0, any_peer);
        self.code.store(Size::Double, R10, SAVED, R3);
        self.code.store(Size::Word, R10, PREFIX_KEY6, 128);
        self.copy_address6(direction.peer_address6());
        self.look_up(peers, PREFIX_KEY6);
        self.drop_if(Condition::Equal, R0, 0, Reason::Peer);
        self.code.load(Size::Double, R3, R10, SAVED);
        self.code.load(Size::Half, R2, R7, PAYLOAD_LENGTH);
        self.code.big_endian(R2, 16);
        self.code.bind(any_peer);
    }

    /// R3 has the type.
    fn icmp6_received(&mut self, peers: MapReference, done: Label) {
        let discovery = self.code.label();
        self.jump_if(Condition::Equal, R3, SOLICITATION, discovery);
        self.jump_if(Condition::Equal, R3, ADVERTISEMENT, discovery);
        self.only_if_anything(Direction::Receive, peers);
        // Unreachable, too big, time exceeded, parameter problem, echo request and reply (RFC
        // 4443).
        for accepted in [1, 2, 3, 4, 128, 129] {
            self.jump_if(Condition::Equal, R3, accepted, done);
        }
        self.drop(Reason::Icmp);
        self.code.bind(discovery);
        self.hop_limit();
    }

    fn hop_limit(&mut self) {
        self.code.load(Size::Byte, R1, R7, 21);
        self.drop_if(Condition::NotEqual, R1, 255, Reason::Icmp);
    }

    /// R2 has the message's length, R3 its type.
    fn icmp6_sent(&mut self, peers: MapReference, done: Label) {
        let solicitation = self.code.label();
        let advertisement = self.code.label();
        let target = self.code.label();
        self.jump_if(Condition::Equal, R3, SOLICITATION, solicitation);
        self.code.load(Size::Double, R1, R10, REST);
        self.drop_if(Condition::Equal, R1, TRIAL, Reason::Address);
        self.jump_if(Condition::Equal, R3, ADVERTISEMENT, advertisement);
        self.only_if_anything(Direction::Transmit, peers);
        self.jump_if(Condition::Equal, R3, 128, done);
        self.jump_if(Condition::Equal, R3, 129, done);
        let error = self.code.label();
        self.jump_if(Condition::Equal, R3, 1, error);
        self.drop_if(Condition::NotEqual, R3, 4, Reason::Icmp);
        self.code.bind(error);
        // As over IPv4: only about packets that came to the VNIC.
        self.drop_if(Condition::Less, R2, 48, Reason::Icmp);
        self.require_or_drop(IPV6_END + 48);
        self.if_own_address6(QUOTED, done);
        self.drop(Reason::Icmp);
        self.code.bind(advertisement);
        self.hop_limit();
        self.drop_if(Condition::Less, R2, 24, Reason::Icmp);
        self.require_or_drop(IPV6_END + 24);
        self.if_own_address6(TARGET, target);
        self.drop(Reason::Icmp);
        self.code.bind(target);
        self.link_address_option(0x0201, done);
        self.code.bind(solicitation);
        self.hop_limit();
        let with_option = self.code.label();
        self.code.load(Size::Double, R1, R10, REST);
        self.jump_if(Condition::NotEqual, R1, TRIAL, with_option);
        self.drop_if(Condition::NotEqual, R2, 24, Reason::Icmp);
        // A node gives up its address when another node tries it out, so a VNIC may try out only
        // its own.
        self.require_or_drop(IPV6_END + 24);
        self.if_own_address6(TARGET, done);
        self.drop(Reason::Icmp);
        self.code.bind(with_option);
        self.link_address_option(0x0101, done);
    }

    /// Jumps to `done` if nothing follows the target, or one option of this type and length with
    /// the VNIC's MAC; drops all else. R2 has the message's length.
    fn link_address_option(&mut self, option: u16, done: Label) {
        self.jump_if(Condition::Equal, R2, 24, done);
        self.drop_if(Condition::NotEqual, R2, 32, Reason::Icmp);
        self.require_or_drop(IPV6_END + 32);
        self.code.load(Size::Half, R1, R7, OPTION);
        self.drop_if(Condition::NotEqual, R1, wire16(option), Reason::Icmp);
        self.load_mac(R1, R3, OPTION + 2);
        self.code.load(Size::Double, R3, R9, Word::Mac.offset());
        self.drop_if(Condition::NotEqual, R1, R3, Reason::Icmp);
        self.code.jump(done);
    }
}
