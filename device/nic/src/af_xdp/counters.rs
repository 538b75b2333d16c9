//! What an AF_XDP queue counts.

/// What a queue has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Frames given to the engine.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames published to the kernel.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// `sendto` calls.
    pub kicks: u64,
    /// Flushes after which frames stayed in the ring because the kernel took no more.
    pub tx_backpressure: u64,
    /// Frames dropped at transmit because they were shorter than an Ethernet header.
    pub tx_runts: u64,
    /// Frames dropped because they came in several buffers, to a queue that was not made for such.
    pub rx_multi_buffer: u64,
    /// Frames dropped because they were longer than the MTU allows.
    pub rx_oversize: u64,
    /// Descriptors and completions dropped because they named no chunk that was the kernel's.
    pub invalid_descriptors: u64,
    /// Ring words that were impossible.
    pub ring_violations: u64,
}
