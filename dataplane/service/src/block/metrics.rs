//! What an area's broker counted.

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Refusal {
    /// There is no such operation, or no such flag.
    Operation,
    /// Offset or length are not whole blocks, or it is longer than a request may be.
    Alignment,
    /// Outside the area.
    Range,
    /// Its data lie outside the data region.
    Data,
}

impl Refusal {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Operation, Self::Alignment, Self::Range, Self::Data];

    /// For display and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operation => "operation",
            Self::Alignment => "alignment",
            Self::Range => "range",
            Self::Data => "data",
        }
    }

    /// What the application is told.
    pub fn error(self) -> i32 {
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
    /// Reads that were taken.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes that were taken.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Flushes that were taken.
    pub flushes: u64,
    /// Discards that were taken.
    pub discards: u64,
    /// Requests that the device failed.
    pub failed: u64,
    /// Requests that were given up because the area was taken away.
    pub cancelled: u64,
    /// Requests that were refused, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
    /// Times that the application was rung.
    pub rings: u64,
    /// Words of the application's that were impossible.
    pub violations: u64,
    /// Pieces at the device now.
    pub in_flight: u64,
}
