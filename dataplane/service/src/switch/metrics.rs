//! Counters of a port of the switch.

use sietch_nic::xdp::Reason;

use super::id::PortId;

/// The counters of one port, as other threads see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// The number of its grant.
    pub id: PortId,
    /// Its counters.
    pub counters: PortCounters,
}

/// Frames and bytes of one port, since it was added. Bytes include Ethernet headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames from the port that were delivered to another one.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that were delivered to the port.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames from the port that were dropped, by reason of the transmit rules, in the order of
    /// [`Reason::ALL`].
    pub send_drops: [u64; Reason::ALL.len()],
    /// Frames for the port that were dropped, by reason of the receive rules.
    pub receive_drops: [u64; Reason::ALL.len()],
    /// Frames for the port that were dropped because its ring is full.
    pub receive_full: u64,
    /// Frames for the port that were dropped because they exceed its MTU.
    pub receive_oversize: u64,
}
