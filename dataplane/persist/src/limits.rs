//! Sizes and bounds of the log, each with its reason.

/// Largest payload of one record, in bytes. It is held in memory once while it is appended and once
/// while it is recovered. A store's largest value (Redis: 512 MiB) and the rest of the same batch
/// decide it. In a smaller area the room is the limit.
pub const MAX_RECORD: usize = 1 << 30;

/// Bytes of one write at most: large enough for the bandwidth of a disk with a few in flight. It is
/// also small enough that a latency-critical append waits behind no more than a few hundred
/// microseconds of transfer.
pub const BATCH: usize = 256 << 10;

/// Bytes that may be appended and not yet passed to the device. Past it the caller must wait: the
/// device is slower than its clients.
pub(crate) const MAX_QUEUED: usize = 8 << 20;

/// Writes of the log in flight by default: more only help when they are not batched, and batching
/// costs less.
pub(crate) const DEFAULT_IN_FLIGHT: usize = 4;

/// Writes of a snapshot in flight: enough for bandwidth, few enough to leave the device to the log.
pub(crate) const SNAPSHOT_IN_FLIGHT: usize = 2;

/// Requests of the disk queue's depth that the log leaves to snapshots, flushes and superblocks.
pub(crate) const RESERVED_REQUESTS: usize = SNAPSHOT_IN_FLIGHT + 4;

/// Copies of the superblock: two for each of two generations.
pub(crate) const SUPERBLOCKS: usize = sietch_disk::superblock_copies::COPIES;

/// Bytes of a copy: one block of the largest kind.
pub(crate) const SUPERBLOCK: usize = sietch_disk::BLOCK;

/// Where the first segment starts, in bytes.
pub(crate) const DATA_START: u64 = (SUPERBLOCKS * SUPERBLOCK) as u64;

/// Runs (epochs that hold records) a superblock can name. Each restart that appends adds one, each
/// compaction leaves one.
pub(crate) const MAX_RUNS: usize = 160;

/// Runs after which compaction is requested.
pub(crate) const MANY_RUNS: usize = 80;

/// Fewest segments of an area: log, snapshot and next snapshot need room beside each other.
pub(crate) const MIN_SEGMENTS: u32 = 16;

/// Segments aimed at when an area is formatted: freeing is by whole segments, so each should be a
/// small part.
pub(crate) const AIMED_SEGMENTS: u64 = 256;

/// Bounds of the chosen segment size, in bytes: small enough for tests, large enough that links
/// cost nothing and no larger than a read-ahead buffer should be.
pub(crate) const SEGMENT_RANGE: (u64, u64) = (16 << 10, 8 << 20);

/// Bytes of a segment in an area of `capacity` bytes, unless its maker chooses otherwise.
pub(crate) fn usual_segment(capacity: u64) -> u64 {
    let (smallest, largest) = SEGMENT_RANGE;
    (capacity / AIMED_SEGMENTS).next_power_of_two().clamp(smallest, largest)
}

/// Bytes behind the superblocks that are searched for records before an area is called unused: the
/// first two of the largest segments. A log writes its segments in order, so a short one is here.
pub(crate) const SEARCHED_BYTES: u64 = 2 * SEGMENT_RANGE.1;

/// Heads of segments that are read besides: so many in order, and as many over the rest of the
/// area. All of them up to 16 GiB; more would take minutes on a disk that seeks.
pub(crate) const SEARCHED_HEADS: u64 = 2048;

/// Reads of that search in flight together: a few megabytes of buffers, and enough for any disk.
pub(crate) const SEARCH_IN_FLIGHT: usize = 16;

/// Smallest area, in bytes.
pub const MIN_CAPACITY: u64 = DATA_START + MIN_SEGMENTS as u64 * SEGMENT_RANGE.0;

/// Bytes of the log between two places that it remembers, to read from and to truncate at. Reading
/// one record by its sequence reads no more than this before it. A terabyte of log costs 400 MB of
/// memory.
pub(crate) const INDEX_BYTES: u32 = 64 << 10;

/// Bytes of segments that recovery fetches ahead of what it parses: the bandwidth of the fastest
/// disks (14 GB/s) for a millisecond, ten times what one of their reads takes. More only costs
/// memory that is touched for the first time.
pub(crate) const PREFETCH_BYTES: usize = 16 << 20;

/// Segments that it fetches ahead at most: more than this many requests at once only queue up in
/// the device.
pub(crate) const PREFETCH_SEGMENTS: usize = 16;

/// Nanoseconds without a further durable record after which a proof is written: long enough that a
/// busy log writes none for it, short enough that an idle area is soon proven whole.
pub(crate) const PROOF_QUIET: u64 = 100_000_000;

/// Nanoseconds after which a proof is written although the log is busy: two writes of 4 KiB a
/// second.
pub(crate) const PROOF_INTERVAL: u64 = 1_000_000_000;

/// Reads of cursors in flight together: each holds a buffer of a batch.
pub(crate) const MAX_READS: usize = 16;
