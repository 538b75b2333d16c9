//! What a port of the switch counted.

use sietch_nic::xdp::Reason;

/// Frames and bytes of one port, since it was added. Bytes include Ethernet headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames of the port that another one was handed.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that the port was handed.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames that the port sent and that were dropped, by reason of the transmit rules, in the
    /// order of [`Reason::ALL`].
    pub send_drops: [u64; Reason::ALL.len()],
    /// Frames for the port that were dropped, by reason of the receive rules.
    pub receive_drops: [u64; Reason::ALL.len()],
    /// Frames for the port that were dropped because it takes none: its ring is full.
    pub receive_full: u64,
    /// Frames for the port that were dropped because they exceed its MTU.
    pub receive_oversize: u64,
}

impl PortCounters {
    /// Frames that the port sent and that were dropped for `reason`.
    pub fn send_drop(&self, reason: Reason) -> u64 {
        self.send_drops[reason as usize]
    }

    /// Frames for the port that were dropped for `reason`.
    pub fn receive_drop(&self, reason: Reason) -> u64 {
        self.receive_drops[reason as usize]
    }
}
