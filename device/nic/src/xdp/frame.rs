//! The parts that the filter programs share: reading a frame, matching it against maps, counting
//! the verdict.
//!
//! Registers hold the same things in every program, from [`FrameProgram::begin`] on:
//!
//! | register | holds |
//! | --- | --- |
//! | R6 | length of the frame in bytes |
//! | R7, R8 | its first byte, and the byte after the last in its first buffer |
//! | R9 | the configuration row (VNIC programs) |
//! | R0-R5 | scratch, lost across calls |
//!
//! A drop is a jump to a label of its [`Reason`]. [`FrameProgram::finish`] emits one tail for
//! each reason that was used, because the verifier refuses unreachable code. All tails share one
//! counting routine.

use super::assembler::Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use super::assembler::{
    Alu, AssembleError, Assembler, Condition, Instruction, Label, MapReference, Operand, Register, Size,
    Width,
};
use super::counters::Reason;
use super::layout::Word;

mod ipv6;

/// `XDP_DROP`
pub(crate) const DROP: i32 = 1;
/// `XDP_PASS`
pub(crate) const PASS: i32 = 2;
/// `XDP_REDIRECT`
pub(super) const REDIRECT: i32 = 4;

const HELPER_MAP_LOOKUP: i32 = 1;
/// `bpf_ktime_get_ns`
pub(crate) const HELPER_CLOCK: i32 = 5;
const HELPER_REDIRECT_MAP: i32 = 51;
/// `bpf_xdp_get_buff_len`
const HELPER_BUFFER_LENGTH: i32 = 188;

/// Stack: a 32-bit key.
const KEY: i16 = -4;
/// Stack: where [`FrameProgram::begin`] leaves the receive queue's index.
pub(super) const QUEUE: i16 = -16;
/// Stack: free for the program.
pub(super) const TARGET: i16 = -24;
/// Stack: prefix length, then an address.
const PREFIX_KEY: i16 = -32;
/// Stack: which bit of a port word.
const PORT_BIT: i16 = -40;
/// Stack: prefix length, then an IPv6 address, which is aligned.
const PREFIX_KEY6: i16 = -76;
const ADDRESS6: i16 = PREFIX_KEY6 + 4;

const ETHERNET: i32 = 14;
/// The ethertype of IPv6 as a program loads it.
pub(super) const ETHERTYPE_IPV6: i32 = wire16(0x86dd);
const ETHERTYPE: i16 = 12;
const ARP_END: i32 = 42;
const IPV4_END: i32 = 34;
/// A transport header of which eight bytes are there shows its ports, or its ICMP type.
const TRANSPORT_MINIMUM: i32 = 8;
const TCP_MINIMUM: i32 = 20;
const BROADCAST: u64 = super::layout::mac_word([0xff; 6]);

/// Two bytes of a frame as the number that a load of them gives.
pub(crate) const fn wire16(value: u16) -> i32 {
    value.to_be() as i32
}

/// Ethertypes as loaded.
pub(crate) const ETHERTYPE_ARP: i32 = wire16(0x0806);
/// IPv4.
pub(crate) const ETHERTYPE_IPV4: i32 = wire16(0x0800);

/// Where the program's context keeps what a program needs of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    /// Size of a pointer as loaded: the verifier turns 32-bit loads from `struct xdp_md` into
    /// pointers.
    pub pointer: Size,
    /// First byte.
    pub data: i16,
    /// Byte after the last.
    pub data_end: i16,
    /// Receive queue.
    pub queue: i16,
    /// Frames may be in several buffers, of which the program sees the first: it requests the
    /// length of the whole.
    pub several: bool,
}

impl Context {
    /// `struct xdp_md`.
    pub(super) const KERNEL: Self =
        Self { pointer: Size::Word, data: 0, data_end: 4, queue: 16, several: false };

    /// The same, of frames in several buffers.
    pub(crate) const KERNEL_SEVERAL: Self = Self { several: true, ..Self::KERNEL };

    /// What the tests pass to an interpreter that has no verifier to rewrite loads.
    #[cfg(test)]
    pub(crate) const INTERPRETER: Self =
        Self { pointer: Size::Double, data: 0, data_end: 8, queue: 16, several: false };
}

/// Which way a frame goes, seen from the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// To the application: its address is the destination.
    Receive,
    /// From the application: its address is the source.
    Transmit,
}

impl Direction {
    /// Offset of the VNIC's address in an IPv4 frame.
    const fn own_address(self) -> i16 {
        match self {
            Self::Receive => 30,
            Self::Transmit => 26,
        }
    }

    const fn peer_address(self) -> i16 {
        match self {
            Self::Receive => 26,
            Self::Transmit => 30,
        }
    }

    /// Offset of the VNIC's port in a TCP or UDP header.
    const fn own_port(self) -> i16 {
        match self {
            Self::Receive => 2,
            Self::Transmit => 0,
        }
    }
}

/// A filter under construction.
#[derive(Debug)]
pub(crate) struct FrameProgram {
    /// For what is particular to one program.
    pub code: Assembler,
    counters: MapReference,
    drops: Vec<(Reason, Label)>,
}

impl FrameProgram {
    /// Starts a program: loads what the other methods rely on, except R9.
    pub(super) fn begin(context: Context, counters: MapReference) -> Self {
        let mut code = Assembler::new();
        code.load(context.pointer, R7, R1, context.data);
        code.load(context.pointer, R8, R1, context.data_end);
        code.load(Size::Word, R2, R1, context.queue);
        code.store(Size::Double, R10, QUEUE, R2);
        if context.several {
            code.call(HELPER_BUFFER_LENGTH);
            code.set(R6, R0);
        } else {
            code.set(R6, R8);
            code.alu64(Alu::Subtract, R6, R7);
        }
        Self { code, counters, drops: Vec::new() }
    }

    /// Loads the VNIC's configuration into R9 and drops everything if it is not enabled.
    pub(crate) fn load_config(&mut self, config: MapReference) {
        self.code.store(Size::Word, R10, KEY, 0);
        self.look_up(config, KEY);
        self.drop_if(Condition::Equal, R0, 0, Reason::Disabled);
        self.code.set(R9, R0);
        self.code.load(Size::Double, R1, R9, Word::Enabled.offset());
        self.drop_if(Condition::Equal, R1, 0, Reason::Disabled);
    }

    fn drop_label(&mut self, reason: Reason) -> Label {
        if let Some((_, label)) = self.drops.iter().find(|(known, _)| *known == reason) {
            return *label;
        }
        let label = self.code.label();
        self.drops.push((reason, label));
        label
    }

    /// Drops the frame.
    pub(super) fn drop(&mut self, reason: Reason) {
        let label = self.drop_label(reason);
        self.code.jump(label);
    }

    /// Drops the frame if `left (condition) right`, in 64 bits.
    pub(crate) fn drop_if(
        &mut self,
        condition: Condition,
        left: Register,
        right: impl Into<Operand>,
        reason: Reason,
    ) {
        let label = self.drop_label(reason);
        self.code.jump_if(Width::Bits64, condition, left, right, label);
    }

    /// As [`FrameProgram::drop_if`], in the lower 32 bits: for 32-bit constants whose top bit is
    /// set.
    fn drop_unless_word(&mut self, left: Register, right: i32, reason: Reason) {
        let label = self.drop_label(reason);
        self.code.jump_if(Width::Bits32, Condition::NotEqual, left, right, label);
    }

    /// Jumps if `left (condition) right`, in 64 bits.
    pub(crate) fn jump_if(
        &mut self,
        condition: Condition,
        left: Register,
        right: impl Into<Operand>,
        label: Label,
    ) {
        self.code.jump_if(Width::Bits64, condition, left, right, label);
    }

    /// Jumps to `short` unless the frame has its first `bytes`. After it the program may load them.
    pub(super) fn require(&mut self, bytes: i32, short: Label) {
        self.code.set(R1, R7);
        self.code.alu64(Alu::Add, R1, bytes);
        self.jump_if(Condition::Greater, R1, R8, short);
    }

    fn require_or_drop(&mut self, bytes: i32) {
        let short = self.drop_label(Reason::Short);
        self.require(bytes, short);
    }

    /// `R0 = ` the value in `map` under the key on the stack, or 0.
    pub(super) fn look_up(&mut self, map: MapReference, key: i16) {
        self.code.set_map(R1, map);
        self.code.set(R2, R10);
        self.code.alu64(Alu::Add, R2, i32::from(key));
        self.code.call(HELPER_MAP_LOOKUP);
    }

    /// `R0 = ` the value in `map` under the 32-bit key in `register`, or 0.
    /// [`FrameProgram::reload_key`] gets it back.
    pub(crate) fn look_up_key(&mut self, map: MapReference, register: impl Into<Operand>) {
        self.code.store(Size::Word, R10, KEY, register);
        self.look_up(map, KEY);
    }

    /// `R0 = ` the value in `map` under the 16 bytes of the frame from `offset` on, or 0.
    pub(crate) fn look_up_address6(&mut self, map: MapReference, offset: i16) {
        self.copy_address6(offset);
        self.look_up(map, ADDRESS6);
    }

    /// Puts 16 bytes of the frame on the stack.
    fn copy_address6(&mut self, offset: i16) {
        for half in [0, 8] {
            self.code.load(Size::Double, R1, R7, offset + half);
            self.code.store(Size::Double, R10, ADDRESS6 + half, R1);
        }
    }

    /// Makes `register` the key that [`FrameProgram::reload_key`] gets back.
    pub(crate) fn set_key(&mut self, register: Register) {
        self.code.store(Size::Word, R10, KEY, register);
    }

    /// The key of the last [`FrameProgram::look_up_key`].
    pub(crate) fn reload_key(&mut self, register: Register) {
        self.code.load(Size::Word, register, R10, KEY);
    }

    /// `destination = ` the MAC at `offset`, as [`super::layout::mac_word`] has it.
    pub(crate) fn load_mac(&mut self, destination: Register, scratch: Register, offset: i16) {
        self.code.load(Size::Word, destination, R7, offset);
        self.code.load(Size::Half, scratch, R7, offset + 4);
        if cfg!(target_endian = "little") {
            self.code.alu64(Alu::ShiftLeft, scratch, 32);
        } else {
            self.code.alu64(Alu::ShiftLeft, destination, 32);
            self.code.alu64(Alu::ShiftLeft, scratch, 16);
        }
        self.code.alu64(Alu::Or, destination, scratch);
    }

    /// Drops frames without an Ethernet header, and those that are neither ARP nor IP; IPv6 also if
    /// the VNIC has no address for it.
    pub(super) fn ethernet(&mut self) {
        self.require_or_drop(ETHERNET);
        let known = self.code.label();
        self.code.load(Size::Half, R3, R7, ETHERTYPE);
        self.jump_if(Condition::Equal, R3, ETHERTYPE_IPV4, known);
        self.jump_if(Condition::Equal, R3, ETHERTYPE_ARP, known);
        for vlan in [0x8100, 0x88a8] {
            self.drop_if(Condition::Equal, R3, wire16(vlan), Reason::Vlan);
        }
        self.drop_if(Condition::NotEqual, R3, ETHERTYPE_IPV6, Reason::EtherType);
        self.code.load(Size::Double, R3, R9, Word::Address6High.offset());
        self.drop_if(Condition::Equal, R3, 0, Reason::Ipv6);
        self.code.bind(known);
    }

    /// Drops the frame unless it is a broadcast ARP packet. R1 has its destination MAC.
    pub(crate) fn broadcast_arp_only(&mut self) {
        self.code.set_wide(R2, BROADCAST);
        self.drop_if(Condition::NotEqual, R1, R2, Reason::DestinationMac);
        self.code.load(Size::Half, R3, R7, ETHERTYPE);
        self.drop_if(Condition::NotEqual, R3, ETHERTYPE_ARP, Reason::DestinationMac);
    }

    /// Jumps to `label` if the frame is IPv4.
    pub(crate) fn if_ipv4(&mut self, label: Label) {
        self.code.load(Size::Half, R3, R7, ETHERTYPE);
        self.jump_if(Condition::Equal, R3, ETHERTYPE_IPV4, label);
    }

    /// Drops ARP packets that are not Ethernet/IPv4 requests or replies about the VNIC's own
    /// address. On the way to it, announcements of others' addresses pass (RFC 5227 section 3).
    pub(super) fn arp(&mut self, direction: Direction) {
        self.require_or_drop(ARP_END);
        self.code.load(Size::Word, R1, R7, 14);
        self.drop_unless_word(R1, i32::from_ne_bytes([0, 1, 8, 0]), Reason::Arp);
        self.code.load(Size::Half, R1, R7, 18);
        self.drop_if(Condition::NotEqual, R1, wire16(0x0604), Reason::Arp);
        let operation = self.code.label();
        self.code.load(Size::Half, R1, R7, 20);
        self.jump_if(Condition::Equal, R1, wire16(1), operation);
        self.drop_if(Condition::NotEqual, R1, wire16(2), Reason::Arp);
        self.code.bind(operation);
        self.code.load(Size::Double, R4, R9, Word::Address.offset());
        self.code.load(Size::Word, R5, R7, 28);
        match direction {
            Direction::Receive => {
                let ours = self.code.label();
                self.code.load(Size::Word, R3, R7, 38);
                self.jump_if(Condition::Equal, R3, R4, ours);
                self.drop_if(Condition::NotEqual, R3, R5, Reason::Arp);
                self.code.bind(ours);
            }
            Direction::Transmit => {
                self.drop_if(Condition::NotEqual, R5, R4, Reason::Arp);
                self.load_mac(R1, R2, 22);
                self.code.load(Size::Double, R2, R9, Word::Mac.offset());
                self.drop_if(Condition::NotEqual, R1, R2, Reason::Arp);
            }
        }
    }

    /// Drops IPv4 packets with a wrong header, fragments, and those of another address.
    pub(super) fn ipv4(&mut self, direction: Direction) {
        self.require_or_drop(IPV4_END);
        self.code.load(Size::Byte, R1, R7, 14);
        self.code.set(R2, R1);
        self.code.alu64(Alu::ShiftRight, R2, 4);
        self.drop_if(Condition::NotEqual, R2, 4, Reason::Header);
        self.code.alu64(Alu::And, R1, 15);
        self.drop_if(Condition::Less, R1, 5, Reason::Header);
        self.code.set(R3, R1);
        self.code.alu64(Alu::ShiftLeft, R1, 2);
        self.code.load(Size::Half, R2, R7, 16);
        self.code.big_endian(R2, 16);
        self.drop_if(Condition::Less, R2, R1, Reason::Header);
        self.code.alu64(Alu::Add, R2, ETHERNET);
        self.drop_if(Condition::Greater, R2, R6, Reason::Header);
        if direction == Direction::Transmit {
            self.drop_if(Condition::NotEqual, R3, 5, Reason::Options);
        }
        self.code.load(Size::Half, R2, R7, 20);
        self.drop_if(Condition::AnyBit, R2, wire16(0x3fff), Reason::Fragment);
        self.code.load(Size::Word, R3, R7, direction.own_address());
        self.code.load(Size::Double, R4, R9, Word::Address.offset());
        self.drop_if(Condition::NotEqual, R3, R4, Reason::Address);
    }

    /// Drops IPv4 packets whose other side is not in the peer list, if there is one, and packets
    /// sent to groups.
    pub(super) fn peer(&mut self, direction: Direction, peers: MapReference) {
        if direction == Direction::Transmit {
            self.code.load(Size::Byte, R1, R7, 30);
            self.drop_if(Condition::GreaterOrEqual, R1, 224, Reason::Peer);
        }
        let any_peer = self.code.label();
        self.code.load(Size::Double, R1, R9, Word::PeersRestricted.offset());
        self.jump_if(Condition::Equal, R1, 0, any_peer);
        self.code.store(Size::Word, R10, PREFIX_KEY, 32);
        self.code.load(Size::Word, R1, R7, direction.peer_address());
        self.code.store(Size::Word, R10, PREFIX_KEY + 4, R1);
        self.look_up(peers, PREFIX_KEY);
        self.drop_if(Condition::Equal, R0, 0, Reason::Peer);
        self.code.bind(any_peer);
    }

    /// Drops IPv4 packets that are neither TCP nor UDP on a granted port, nor ICMP that a VNIC may
    /// see or send.
    pub(super) fn transport(&mut self, direction: Direction, ports: MapReference) {
        let tcp = self.code.label();
        let udp = self.code.label();
        let port = self.code.label();
        let done = self.code.label();
        self.code.load(Size::Byte, R1, R7, 14);
        self.code.alu64(Alu::And, R1, 15);
        self.code.alu64(Alu::ShiftLeft, R1, 2);
        self.code.load(Size::Half, R2, R7, 16);
        self.code.big_endian(R2, 16);
        self.code.alu64(Alu::Subtract, R2, R1); // Bytes after the header.
        self.code.set(R4, R7);
        self.code.alu64(Alu::Add, R4, ETHERNET);
        self.code.alu64(Alu::Add, R4, R1); // The transport header.
        self.code.load(Size::Byte, R3, R7, 23);
        self.jump_if(Condition::Equal, R3, libc::IPPROTO_TCP, tcp);
        self.jump_if(Condition::Equal, R3, libc::IPPROTO_UDP, udp);
        self.drop_if(Condition::NotEqual, R3, libc::IPPROTO_ICMP, Reason::Protocol);
        self.icmp(direction, done);
        self.code.bind(tcp);
        self.drop_if(Condition::Less, R2, TCP_MINIMUM, Reason::Header);
        self.code.set(R0, 0);
        self.code.jump(port);
        self.code.bind(udp);
        self.drop_if(Condition::Less, R2, TRANSPORT_MINIMUM, Reason::Header);
        self.code.set(R0, super::layout::PORT_WORDS as i32);
        self.code.bind(port);
        self.granted_port(direction, ports);
        self.code.bind(done);
    }

    /// Drops the packet unless its port is in the set that begins at word R0. R4 points to its
    /// transport header.
    fn granted_port(&mut self, direction: Direction, ports: MapReference) {
        self.require_transport(TRANSPORT_MINIMUM, Reason::Header);
        self.code.load(Size::Half, R1, R4, direction.own_port());
        self.code.big_endian(R1, 16);
        self.code.set(R2, R1);
        self.code.alu64(Alu::And, R2, 63);
        self.code.store(Size::Double, R10, PORT_BIT, R2);
        self.code.alu64(Alu::ShiftRight, R1, 6);
        self.code.alu64(Alu::Add, R1, R0);
        self.look_up_key(ports, R1);
        self.drop_if(Condition::Equal, R0, 0, Reason::Port);
        self.code.load(Size::Double, R1, R0, 0);
        self.code.load(Size::Double, R2, R10, PORT_BIT);
        self.code.alu64(Alu::ShiftRight, R1, R2);
        self.code.alu64(Alu::And, R1, 1);
        self.drop_if(Condition::Equal, R1, 0, Reason::Port);
    }

    /// Shows the verifier that `bytes` from R4 on are inside the frame. The lengths checked before
    /// say so already.
    fn require_transport(&mut self, bytes: i32, reason: Reason) {
        self.code.set(R5, R4);
        self.code.alu64(Alu::Add, R5, bytes);
        self.drop_if(Condition::Greater, R5, R8, reason);
    }

    /// R2 has the bytes after the IPv4 header, R4 points there. Jumps to `done` if the message is
    /// acceptable.
    fn icmp(&mut self, direction: Direction, done: Label) {
        self.drop_if(Condition::Less, R2, TRANSPORT_MINIMUM, Reason::Header);
        self.require_transport(TRANSPORT_MINIMUM, Reason::Header);
        self.code.load(Size::Byte, R1, R4, 0);
        match direction {
            Direction::Receive => {
                // Echo reply, unreachable, echo, time exceeded, parameter problem (RFC 792).
                const ACCEPTED: i32 = 1 | 1 << 3 | 1 << 8 | 1 << 11 | 1 << 12;
                self.drop_if(Condition::Greater, R1, 12, Reason::Icmp);
                self.code.set(R3, ACCEPTED);
                self.code.alu64(Alu::ShiftRight, R3, R1);
                self.code.alu64(Alu::And, R3, 1);
                self.drop_if(Condition::Equal, R3, 0, Reason::Icmp);
            }
            Direction::Transmit => {
                self.jump_if(Condition::Equal, R1, 0, done);
                self.jump_if(Condition::Equal, R1, 8, done);
                // "Unreachable" cuts a connection or lowers its path MTU. It may only be about
                // packets that came to the VNIC, or one tenant could harm another's connections by
                // guessing ports.
                self.drop_if(Condition::NotEqual, R1, 3, Reason::Icmp);
                self.drop_if(Condition::Less, R2, 28, Reason::Icmp);
                self.require_transport(28, Reason::Icmp);
                self.code.load(Size::Word, R1, R4, 24);
                self.code.load(Size::Double, R2, R9, Word::Address.offset());
                self.drop_if(Condition::NotEqual, R1, R2, Reason::Icmp);
            }
        }
        self.code.jump(done);
    }

    /// Requests the kernel to redirect the frame to the entry of `map` that R2 names. R7 (no longer
    /// the frame) has its answer, [`REDIRECT`] or, if there is no such entry, [`DROP`].
    pub(super) fn redirect(&mut self, map: MapReference) {
        self.code.set_map(R1, map);
        self.code.set(R3, DROP);
        self.code.call(HELPER_REDIRECT_MAP);
        self.code.set(R7, R0);
    }

    /// Counts the frame in `row` and ends with `verdict`.
    pub(crate) fn count_and_exit(&mut self, row: i32, verdict: i32) {
        self.code.store(Size::Word, R10, KEY, row);
        self.count_key();
        self.code.set(R0, verdict);
        self.code.exit();
    }

    fn count_key(&mut self) {
        let uncounted = self.code.label();
        self.look_up(self.counters, KEY);
        self.jump_if(Condition::Equal, R0, 0, uncounted);
        self.code.load(Size::Double, R1, R0, 0);
        self.code.alu64(Alu::Add, R1, 1);
        self.code.store(Size::Double, R0, 0, R1);
        self.code.load(Size::Double, R1, R0, 8);
        self.code.alu64(Alu::Add, R1, R6);
        self.code.store(Size::Double, R0, 8, R1);
        self.code.bind(uncounted);
    }

    /// Lays down the drops and assembles.
    ///
    /// # Errors
    /// A mistake in the program's labels.
    pub(super) fn finish(mut self) -> Result<Vec<Instruction>, AssembleError> {
        let count = self.code.label();
        let drops = std::mem::take(&mut self.drops);
        for (reason, label) in &drops {
            self.code.bind(*label);
            self.code.store(Size::Word, R10, KEY, reason.row());
            self.code.jump(count);
        }
        if !drops.is_empty() {
            self.code.bind(count);
            self.count_key();
            self.code.set(R0, DROP);
            self.code.exit();
        }
        self.code.assemble()
    }
}
