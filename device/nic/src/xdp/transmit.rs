//! The transmit filter and rate limit: XDP on the *peer's* end of a veth, where an AF_XDP socket's
//! frames come out.
//!
//! 1. A VNIC that is not enabled sends nothing.
//! 2. Only ARP and IP, from the VNIC's MAC. To the host's MAC, or with an uplink to any unicast
//!    MAC. ARP may also go by broadcast. IPv6 may also go to groups, and only if the VNIC has an
//!    address for it.
//! 3. ARP: Ethernet/IPv4 requests and replies whose sender is the VNIC's MAC and address.
//! 4. IPv4: a sound header, no options, no fragment, from the VNIC's address, to a peer in the list
//!    (if there is one). Never to a group. IPv6: no extension headers, from one of the VNIC's
//!    addresses, to a peer. Neighbour discovery may also come from the unspecified address, and go
//!    to groups and to any node. What it says of the VNIC must be true.
//! 5. TCP and UDP from a granted port; ICMP echo, and "unreachable" about packets that came to the
//!    VNIC.
//! 6. The token bucket, last, so that a frame which is dropped anyway costs no tokens.
//! 7. To the host's stack; with an uplink, all but what is addressed to the host's MAC leaves
//!    through the uplink.
//!
//! # The token bucket
//!
//! A bucket of `burst` bytes that fills at `rate` bytes a second is kept as one number: the time
//! `full` at which it will be full again. This is the generic cell rate algorithm; the two are
//! equivalent. With `now` the clock, `window = burst / rate` and `cost = length / rate`, all in
//! 2^-6 ns:
//!
//! 1. `ahead = full - now`, as a signed number; below zero it counts as zero: the bucket is full
//!    and stays full.
//! 2. `ahead > window` cannot follow from these steps. It means that the rules changed: `full = now
//!    + window`, an empty bucket, and the frame is dropped.
//! 3. `ahead + cost > window`: not enough tokens, the frame is dropped.
//! 4. `full = now + ahead + cost`, by compare-and-exchange. Losing it to another CPU drops the
//!    frame: the limit is never exceeded. (A VNIC has one queue, thus one CPU at a time; the
//!    exchange makes this safe, not just likely.)
//!
//! Nothing overflows: a frame has less than 2^17 bytes and `rate` is at least
//! [`super::vnic::MINIMUM_RATE`], so that `length * cost_per_byte < 2^60`. `window` is bounded by
//! [`super::vnic::MAXIMUM_WINDOW`].

use super::assembler::Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use super::assembler::{Alu, AssembleError, Atomic, Condition, Instruction, MapReference, Size, Width};
use super::counters::Reason;
use super::frame::{Context, Direction, FrameProgram, HELPER_CLOCK, PASS, REDIRECT, TARGET};
use super::layout::{COST_SHIFT, TIME_SHIFT, Word};

/// The program's name in the kernel.
pub(super) const NAME: &str = "sietch_tx";

const TO_HOST: i32 = 0;
const TO_UPLINK: i32 = 1;

/// The maps that the program names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransmitMaps {
    /// [`super::layout::CONFIG`]
    pub config: MapReference,
    /// [`super::layout::PORTS`]
    pub ports: MapReference,
    /// [`super::layout::PEERS`]
    pub peers: MapReference,
    /// [`super::layout::PEERS6`]
    pub peers6: MapReference,
    /// [`super::layout::BUCKET`]
    pub bucket: MapReference,
    /// [`super::layout::UPLINK`]
    pub uplink: MapReference,
    /// [`super::layout::TRANSMIT_COUNTERS`]
    pub counters: MapReference,
}

/// Builds the program.
///
/// # Errors
/// A mistake in this module.
pub(crate) fn assemble(maps: TransmitMaps, context: Context) -> Result<Vec<Instruction>, AssembleError> {
    let mut frame = FrameProgram::begin(context, maps.counters);
    let ipv4 = frame.code.label();
    let ipv6 = frame.code.label();
    let accept = frame.code.label();
    frame.load_config(maps.config);
    frame.ethernet();
    frame.load_mac(R1, R2, 6);
    frame.code.load(Size::Double, R2, R9, Word::Mac.offset());
    frame.drop_if(Condition::NotEqual, R1, R2, Reason::SourceMac);
    destination(&mut frame);
    frame.if_ipv4(ipv4);
    frame.if_ipv6(ipv6);
    frame.arp(Direction::Transmit);
    frame.code.jump(accept);
    frame.code.bind(ipv6);
    frame.ipv6(Direction::Transmit, maps.ports, maps.peers6);
    frame.code.jump(accept);
    frame.code.bind(ipv4);
    frame.ipv4(Direction::Transmit);
    frame.peer(Direction::Transmit, maps.peers);
    frame.transport(Direction::Transmit, maps.ports);
    frame.code.bind(accept);
    rate_limit(&mut frame, maps.bucket);
    let uplink = frame.code.label();
    frame.code.load(Size::Double, R1, R10, TARGET);
    frame.jump_if(Condition::NotEqual, R1, TO_HOST, uplink);
    frame.count_and_exit(0, PASS);
    frame.code.bind(uplink);
    frame.code.set(R2, 0);
    frame.redirect(maps.uplink);
    frame.drop_if(Condition::NotEqual, R7, REDIRECT, Reason::Target);
    frame.count_and_exit(0, REDIRECT);
    frame.finish()
}

/// Decides by the destination MAC where the frame goes, and drops what may go nowhere.
fn destination(frame: &mut FrameProgram) {
    let local = frame.code.label();
    let group = frame.code.label();
    let done = frame.code.label();
    frame.load_mac(R1, R2, 0);
    frame.code.load(Size::Double, R2, R9, Word::HostMac.offset());
    frame.code.store(Size::Double, R10, TARGET, TO_HOST);
    frame.jump_if(Condition::Equal, R1, R2, done);
    frame.code.load(Size::Double, R5, R9, Word::Uplink.offset());
    frame.jump_if(Condition::Equal, R5, 0, local);
    frame.code.store(Size::Double, R10, TARGET, TO_UPLINK);
    // The first byte of a MAC has the group bit.
    frame.code.load(Size::Byte, R3, R7, 0);
    frame.jump_if(Condition::AnyBit, R3, 1, group);
    frame.code.jump(done);
    frame.code.bind(local);
    frame.code.bind(group);
    frame.if_ipv6_group_mac(done);
    frame.broadcast_arp_only();
    frame.code.bind(done);
}

/// The bucket. From here on R7 and R8 no longer hold the frame.
fn rate_limit(frame: &mut FrameProgram, bucket: MapReference) {
    let unlimited = frame.code.label();
    let ahead = frame.code.label();
    let sound = frame.code.label();
    frame.code.load(Size::Double, R1, R9, Word::CostPerByte.offset());
    frame.jump_if(Condition::Equal, R1, 0, unlimited);
    frame.look_up_key(bucket, 0);
    frame.drop_if(Condition::Equal, R0, 0, Reason::Rate);
    frame.code.set(R7, R0);
    frame.code.call(HELPER_CLOCK);
    frame.code.set(R8, R0);
    frame.code.alu64(Alu::ShiftLeft, R8, TIME_SHIFT);
    frame.code.load(Size::Double, R4, R9, Word::CostPerByte.offset());
    frame.code.alu64(Alu::Multiply, R4, R6);
    frame.code.alu64(Alu::ShiftRight, R4, COST_SHIFT);
    frame.code.load(Size::Double, R3, R9, Word::Window.offset());
    frame.code.load(Size::Double, R1, R7, 0);
    frame.code.set(R2, R1);
    frame.code.alu64(Alu::Subtract, R2, R8);
    frame.jump_if(Condition::SignedGreater, R2, 0, ahead);
    frame.code.set(R2, 0);
    frame.code.bind(ahead);
    frame.jump_if(Condition::LessOrEqual, R2, R3, sound);
    frame.code.alu64(Alu::Add, R8, R3);
    frame.code.store(Size::Double, R7, 0, R8);
    frame.drop(Reason::Rate);
    frame.code.bind(sound);
    frame.code.alu64(Alu::Add, R2, R4);
    frame.drop_if(Condition::Greater, R2, R3, Reason::Rate);
    frame.code.alu64(Alu::Add, R2, R8);
    frame.code.set(R0, R1);
    frame.code.atomic(Width::Bits64, Atomic::CompareExchange, R7, 0, R2);
    frame.drop_if(Condition::NotEqual, R0, R1, Reason::Rate);
    frame.code.bind(unlimited);
}
