//! Limits of the mover, with their reasons.

/// Blocks of a job, at most: 4 MiB, a large write of every disk, and a bound for memory and for the
/// time of a step.
pub const JOB_BLOCKS: u32 = 1024;
/// Extents of a job, at most: the flip changes about four items of each, some milliseconds in all.
pub(super) const JOB_EXTENTS: usize = 512;
/// Nanoseconds in which heat halves.
pub(super) const HALF_LIFE: u64 = 60_000_000_000;
/// Reads after which the mover looks for data to bring back.
pub(super) const READS: u64 = 256;
/// Runs of blocks that cannot be read, and are remembered: 48 MiB of memory, for 4 GiB of single
/// blocks at least.
pub(super) const REMEMBERED: usize = 1 << 20;
/// Extents of a medium that cannot be read, after which no more of them are named, and nothing is
/// taken from it unless it is leaving.
pub(super) const FAILURES: u32 = 64;
