//! Bounds of the software switch, with their reasons.

/// Bytes that a port may send in one iteration. The largest frame costs less, so every iteration
/// moves something; a hundred busy ports are all served within a millisecond.
pub(super) const QUANTUM: u32 = 72 << 10;
/// What a frame costs beside its bytes: forwarding takes about as long as copying this many bytes.
pub(super) const FRAME_COST: u32 = 512;
/// Most frames taken from a port at a time.
pub(super) const BATCH: usize = 64;
/// Most ports.
pub(super) const PORTS: usize = 256;
/// The longest that a frame waits, in nanoseconds, after its rate allows it, so that several leave
/// together: a loop that sleeps for them wakes 5,000 times a second at most. A burst holds at least
/// a millisecond's frames, so nothing of the rate is lost.
pub(super) const RATE_DELAY: u64 = 200_000;

const _: () = assert!(QUANTUM > 65_535 + 14 + FRAME_COST);
