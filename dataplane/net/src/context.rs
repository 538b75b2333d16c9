//! What TCP, UDP and IP share: the time of the iteration, the link, where packets go, the packets
//! that wait to be sent, and the counters.
//!
//! The protocols are parts of the engine with their own state. Each method of theirs takes the
//! context as an argument, so that no part holds a reference to another.

use std::collections::VecDeque;

use sietch_nic::{Frame, NicQueue, Offloads};

use crate::config::Config;
use crate::ip::addresses::Addresses;
use crate::ip::neighbours::{NeighbourRequest, Neighbours, Resolution};
use crate::ip::outgoing::{NextHop, Outgoing};
use crate::ip::path_mtu::{PathMtus, believed};
use crate::limits::{MILLISECOND, NEVER};
use crate::metrics::Metrics;
use crate::packet::{Address, Checks, Malformed, ipv6, network_header, tcp};
use crate::siphash::Key;

/// Why a frame could not be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stalled {
    /// The queue has no buffer for a frame of this length. It may have one for a shorter frame.
    NoBuffer,
    /// The transmit ring is full.
    NoRoom,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Context {
    /// The time of this iteration, and the same in milliseconds for timestamps.
    pub now: u64,
    pub now_ms: u32,
    pub secret: Key,

    /// The link address and the MTU of the queue.
    pub mac: [u8; 6],
    pub mtu: usize,
    /// The medium makes checksums of TCP and UDP unnecessary.
    pub unchecked: bool,
    /// How the checksums of received segments and datagrams are checked.
    pub checks: Checks,

    pub addresses: Addresses,
    pub neighbours: Neighbours,
    pub path_mtus: PathMtus,

    /// Datagrams and ICMP messages that wait for the next emission.
    pub outgoing: VecDeque<Outgoing>,
    /// ARP and ND requests that wait for it.
    pub neighbour_requests: Vec<NeighbourRequest>,
    /// Buffers of datagrams that were sent, kept for the next ones.
    pub spare: Vec<Vec<u8>>,
    /// One of these lists may hold something for the next emission.
    pub pending: bool,

    pub metrics: Metrics,
}

impl Context {
    pub(crate) fn new(config: &Config, mac: [u8; 6], mtu: usize) -> Self {
        Self {
            now: 0,
            now_ms: 0,
            secret: Key::new(config.secret),
            mac,
            mtu: mtu.clamp(576, 65_535),
            unchecked: false,
            checks: Checks::Verify,
            addresses: Addresses::new(
                (config.address.into(), config.prefix),
                config.gateway.map(Address::from),
                config.ipv6.as_ref().filter(|_| mtu >= ipv6::MINIMUM_MTU),
                mac,
            ),
            // Announcements are due by the deadline of neighbour requests.
            neighbours: Neighbours::new(if config.announce { 0 } else { NEVER }),
            path_mtus: PathMtus::default(),
            outgoing: VecDeque::new(),
            neighbour_requests: Vec::new(),
            spare: Vec::new(),
            pending: false,
            metrics: Metrics::default(),
        }
    }

    #[inline]
    pub(crate) fn set_time(&mut self, now: u64) {
        self.now = self.now.max(now);
        // Wraps after 49 days, as timestamps do.
        self.now_ms = (self.now / MILLISECOND) as u32;
    }

    #[inline]
    pub(crate) fn set_offloads(&mut self, offloads: Offloads) {
        (self.unchecked, self.checks) = (offloads.checksums, Checks::of(offloads));
    }

    /// Largest segment that we take from `remote`.
    pub(crate) fn own_mss(&self, remote: &Address) -> u16 {
        u16::try_from(self.mtu - network_header(remote) - tcp::HEADER).unwrap_or(u16::MAX)
    }

    /// The MTU of the path to `remote`.
    pub(crate) fn path_mtu(&self, remote: &Address) -> usize {
        self.path_mtus.get(remote, self.now).map_or(self.mtu, |mtu| mtu.min(self.mtu))
    }

    /// An ICMP error says that a packet of `length` bytes to `remote` was too big for a link with
    /// this MTU. Stores the MTU if the error is plausible and makes the path smaller.
    pub(crate) fn path_shrinks(&mut self, remote: &Address, mtu: usize, length: usize) {
        if let Some(mtu) = believed(remote, mtu, length).filter(|mtu| *mtu < self.path_mtu(remote)) {
            self.metrics.icmp_errors += 1;
            self.path_mtus.set(*remote, mtu, self.now);
        }
    }

    /// Counts a packet that cannot be read.
    pub(crate) fn count_malformed(&mut self, reason: Malformed) {
        match reason {
            Malformed::Header => self.metrics.malformed += 1,
            Malformed::Checksum => self.metrics.bad_checksum += 1,
        }
    }

    /// Drops the packets that wait for a next hop which did not answer.
    pub(crate) fn drop_unresolved(&mut self, hop: Address) {
        let before = self.outgoing.len();
        self.outgoing
            .retain(|outgoing| !matches!(outgoing.next_hop, NextHop::Address(address) if address == hop));
        self.metrics.unresolved += (before - self.outgoing.len()) as u64;
    }

    /// The link address of a next hop, or the start of a request for it.
    #[inline]
    pub(crate) fn resolve(&mut self, hop: Address) -> Resolution {
        if hop.is_multicast() {
            return Resolution::Known(hop.group_mac());
        }
        self.neighbours.resolve(hop, self.now)
    }

    #[inline]
    pub(crate) fn allocate<Q: NicQueue>(&mut self, queue: &mut Q, length: usize) -> Result<Frame, Stalled> {
        queue.allocate(length).ok_or_else(|| {
            self.metrics.transmit_stalls += 1;
            Stalled::NoBuffer
        })
    }

    #[inline]
    pub(crate) fn queue_frame<Q: NicQueue>(&mut self, queue: &mut Q, frame: Frame) -> Result<(), Stalled> {
        let length = frame.len() as u64;
        match queue.transmit(frame) {
            Ok(()) => {
                self.metrics.frames_sent += 1;
                self.metrics.bytes_sent += length;
                Ok(())
            }
            Err(error) => {
                queue.release(error.into_frame());
                self.metrics.transmit_stalls += 1;
                Err(Stalled::NoRoom)
            }
        }
    }

    /// Sends a frame whose loss does no harm.
    pub(crate) fn send_frame<Q: NicQueue>(&mut self, queue: &mut Q, frame: Frame) {
        let _ = self.queue_frame(queue, frame);
    }
}
