//! The receive filter: XDP on the application's end of a veth.
//!
//! 1. A VNIC that is not enabled gets nothing.
//! 2. Only ARP and IP, to the VNIC's MAC; ARP also by broadcast, IPv6 also to groups, and only if
//!    the VNIC has an address for it.
//! 3. ARP: Ethernet/IPv4 requests and replies whose target is the VNIC's address, or the sender's
//!    own: an announcement.
//! 4. IPv4: a sound header, no fragment, to the VNIC's address, from a peer in the list (if there
//!    is one). IPv6: no extension headers, to one of the VNIC's addresses, from a peer; neighbour
//!    discovery from any node, also to the groups of these addresses.
//! 5. TCP and UDP to a granted port; ICMP echo and errors.
//! 6. What is left goes to the AF_XDP socket on the queue where it came in. Everything else is
//!    dropped and counted.

use super::assembler::Register::{R1, R2, R7, R9, R10};
use super::assembler::{AssembleError, Condition, Instruction, MapReference, Size};
use super::counters::Reason;
use super::frame::{Context, Direction, FrameProgram, QUEUE, REDIRECT};
use super::layout::Word;

/// The program's name in the kernel.
pub(super) const NAME: &str = "sietch_rx";

/// The maps that the program names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveMaps {
    /// [`super::layout::CONFIG`]
    pub config: MapReference,
    /// [`super::layout::PORTS`]
    pub ports: MapReference,
    /// [`super::layout::PEERS`]
    pub peers: MapReference,
    /// [`super::layout::PEERS6`]
    pub peers6: MapReference,
    /// [`super::layout::QUEUES`]
    pub queues: MapReference,
    /// [`super::layout::RECEIVE_COUNTERS`]
    pub counters: MapReference,
}

/// Builds the program.
///
/// # Errors
/// A mistake in this module.
pub(crate) fn assemble(maps: ReceiveMaps, context: Context) -> Result<Vec<Instruction>, AssembleError> {
    let mut frame = FrameProgram::begin(context, maps.counters);
    let to_us = frame.code.label();
    let ipv4 = frame.code.label();
    let ipv6 = frame.code.label();
    let accept = frame.code.label();
    frame.load_config(maps.config);
    frame.ethernet();
    frame.load_mac(R1, R2, 0);
    frame.code.load(Size::Double, R2, R9, Word::Mac.offset());
    frame.jump_if(Condition::Equal, R1, R2, to_us);
    frame.if_ipv6_group_mac(to_us);
    frame.broadcast_arp_only();
    frame.code.bind(to_us);
    frame.if_ipv4(ipv4);
    frame.if_ipv6(ipv6);
    frame.arp(Direction::Receive);
    frame.code.jump(accept);
    frame.code.bind(ipv6);
    frame.ipv6(Direction::Receive, maps.ports, maps.peers6);
    frame.code.jump(accept);
    frame.code.bind(ipv4);
    frame.ipv4(Direction::Receive);
    frame.peer(Direction::Receive, maps.peers);
    frame.transport(Direction::Receive, maps.ports);
    frame.code.bind(accept);
    frame.code.load(Size::Double, R2, R10, QUEUE);
    frame.redirect(maps.queues);
    frame.drop_if(Condition::NotEqual, R7, REDIRECT, Reason::Target);
    frame.count_and_exit(0, REDIRECT);
    frame.finish()
}
