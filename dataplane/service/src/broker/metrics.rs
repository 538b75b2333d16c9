//! Counters of an area of the storage broker.

use super::id::AreaId;

/// The counters of one area, as other threads see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaReport {
    /// The number of its grant.
    pub id: AreaId,
    /// Its counters.
    pub counters: AreaCounters,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Refusal {
    /// The operation or a flag is unknown.
    Operation,
    /// The offset or length is not whole blocks, or the length exceeds the maximum.
    Alignment,
    /// The range is outside the area.
    Range,
    /// The data is outside the data region.
    Data,
}

impl Refusal {
    /// All refusals, in order.
    pub const ALL: [Self; 4] = [Self::Operation, Self::Alignment, Self::Range, Self::Data];

    /// Returns the name for display and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operation => "operation",
            Self::Alignment => "alignment",
            Self::Range => "range",
            Self::Data => "data",
        }
    }

    /// Returns the error number that the application gets.
    pub(super) fn error(self) -> i32 {
        match self {
            Self::Operation => rustix::io::Errno::OPNOTSUPP.raw_os_error(),
            Self::Alignment => rustix::io::Errno::INVAL.raw_os_error(),
            Self::Range => rustix::io::Errno::RANGE.raw_os_error(),
            Self::Data => rustix::io::Errno::FAULT.raw_os_error(),
        }
    }
}

/// Requests and bytes of one area since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AreaCounters {
    /// Reads that were admitted.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes that were admitted.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Flushes that were admitted.
    pub flushes: u64,
    /// Discards that were admitted.
    pub discards: u64,
    /// Requests that the device failed.
    pub failed: u64,
    /// Requests that were cancelled because the area was detached.
    pub cancelled: u64,
    /// Requests that were refused, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
    /// Notifications of the application.
    pub notifications: u64,
    /// Invalid words that the application wrote into its rings.
    pub violations: u64,
    /// Pieces at the device now.
    pub in_flight: u64,
}
