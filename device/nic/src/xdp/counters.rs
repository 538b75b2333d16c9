//! What the XDP programs counted, by reason.
//!
//! 1. A program that drops a frame adds one to the row of its [`Reason`]. Rows are per CPU, so
//!    counting takes no lock.
//! 2. The control plane reads the map and adds up the rows of all CPUs.
//!
//! The order of [`Reason`] is the order of the rows in the maps, and part of their layout.

use super::error::XdpError;
use super::kernel::{Map, possible_cpus};
use super::layout::COUNTER_ROWS;

/// Why a frame was dropped. The order is the order of the rows in the counter maps and never
/// changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The VNIC is revoked.
    Disabled,
    /// The frame ends before its headers do.
    Short,
    /// Not sent from the VNIC's MAC.
    SourceMac,
    /// To a MAC that this direction does not serve.
    DestinationMac,
    /// A VLAN tag.
    Vlan,
    /// IPv6, for which the VNIC has no address.
    Ipv6,
    /// Neither ARP nor IP.
    EtherType,
    /// An ARP packet that is malformed, not about the VNIC's address, or claims another's.
    Arp,
    /// An IP header whose version or lengths are wrong, or a transport header that is cut off.
    Header,
    /// IPv4 options in a sent packet (a source route would evade the peer list).
    Options,
    /// A fragment, first or later: its ports cannot be trusted or are not there.
    Fragment,
    /// Received for, or sent from, another address.
    Address,
    /// The other side is not in the peer list, or is a group.
    Peer,
    /// Neither TCP, UDP nor ICMP.
    Protocol,
    /// A TCP or UDP port that was not granted.
    Port,
    /// An ICMP message that is neither an echo nor an error about the VNIC's own traffic.
    Icmp,
    /// Faster than the rate that was granted.
    Rate,
    /// Nothing takes the frame: no socket on the queue, or no uplink.
    Target,
}

impl Reason {
    /// All of them, in order.
    pub const ALL: [Self; 18] = [
        Self::Disabled,
        Self::Short,
        Self::SourceMac,
        Self::DestinationMac,
        Self::Vlan,
        Self::Ipv6,
        Self::EtherType,
        Self::Arp,
        Self::Header,
        Self::Options,
        Self::Fragment,
        Self::Address,
        Self::Peer,
        Self::Protocol,
        Self::Port,
        Self::Icmp,
        Self::Rate,
        Self::Target,
    ];

    /// Name in metrics and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Short => "short",
            Self::SourceMac => "source_mac",
            Self::DestinationMac => "destination_mac",
            Self::Vlan => "vlan",
            Self::Ipv6 => "ipv6",
            Self::EtherType => "ethertype",
            Self::Arp => "arp",
            Self::Header => "header",
            Self::Options => "options",
            Self::Fragment => "fragment",
            Self::Address => "address",
            Self::Peer => "peer",
            Self::Protocol => "protocol",
            Self::Port => "port",
            Self::Icmp => "icmp",
            Self::Rate => "rate",
            Self::Target => "target",
        }
    }

    /// The reason's row in a counter map. Row 0 counts what passed.
    pub(super) const fn row(self) -> i32 {
        self as i32 + 1
    }
}

const _: () = assert!(Reason::ALL.len() < COUNTER_ROWS as usize);

/// Frames and their bytes (Ethernet header included, checksum not).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One direction of a VNIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounters {
    /// What got through.
    pub passed: Tally,
    dropped: [Tally; Reason::ALL.len()],
}

impl DirectionCounters {
    /// What was dropped for `reason`.
    pub fn dropped(&self, reason: Reason) -> Tally {
        self.dropped[reason as usize]
    }

    pub(super) fn read(map: &Map) -> Result<Self, XdpError> {
        let mut rows = Rows::new(map)?;
        let mut counters = Self { passed: rows.read(0)?, ..Self::default() };
        for reason in Reason::ALL {
            counters.dropped[reason as usize] = rows.read(reason.row() as u32)?;
        }
        Ok(counters)
    }
}

/// Both directions of a VNIC, as the application sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnicCounters {
    /// Towards the application.
    pub received: DirectionCounters,
    /// From the application.
    pub transmitted: DirectionCounters,
}

/// Reads rows of a counter map, summed over CPUs.
pub(super) struct Rows<'a> {
    map: &'a Map,
    values: Vec<u8>,
}

impl<'a> Rows<'a> {
    pub(super) fn new(map: &'a Map) -> Result<Self, XdpError> {
        Ok(Self { map, values: vec![0; possible_cpus()? * 16] })
    }

    pub(super) fn read(&mut self, row: u32) -> Result<Tally, XdpError> {
        self.map.lookup(&row.to_ne_bytes(), &mut self.values)?;
        let mut sum = Tally::default();
        for value in self.values.as_chunks::<16>().0 {
            let (words, _) = value.as_chunks::<8>();
            sum.frames = sum.frames.wrapping_add(u64::from_ne_bytes(words[0]));
            sum.bytes = sum.bytes.wrapping_add(u64::from_ne_bytes(words[1]));
        }
        Ok(sum)
    }
}
