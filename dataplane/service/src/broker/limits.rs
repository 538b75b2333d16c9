//! Bounds of the storage broker, with their reasons.

use sietch_disk::broker::MAX_PIECE;

/// Most areas of one broker: their buffers (at most [`BYTES`] each) stay within 64 MiB.
pub(super) const AREAS: usize = 64;

/// Bytes that an area may submit in one iteration: its longest request, so every iteration moves
/// something. All areas are served within the time that a disk needs for one request.
pub(super) const QUANTUM: i64 = MAX_PIECE as i64;

/// What a request costs beside its bytes: a device spends about as long on one as on moving this
/// many bytes.
pub(super) const REQUEST_COST: i64 = 4096;

/// Bytes of a discard that are submitted at a time: as much as an area may have at a device. They
/// count as bytes moved, because a device without a discard command writes zeros.
pub(super) const DISCARD_SLICE: u64 = BYTES;

/// Most requests taken from an area in one iteration.
pub(super) const BATCH: usize = 32;

/// Bytes of one area that a device has at a time: what a disk of 1 GB/s moves in a millisecond. A
/// small request of another area waits behind it no longer than that. One request of any length may
/// go alone.
pub(super) const BYTES: u64 = 1 << 20;

/// Pieces that one area may have at a device however many areas there are, so that a request over
/// many extents makes progress.
pub(super) const LEAST_SHARE: usize = 4;

/// Requests that a volume's queue holds: enough to saturate an NVMe device from several areas.
pub(super) const DEVICE_DEPTH: usize = 256;

/// Buffers of one size that are kept for the next request.
pub(super) const SPARE_BUFFERS: usize = 64;

const _: () = assert!(BYTES as usize >= MAX_PIECE && AREAS * LEAST_SHARE <= DEVICE_DEPTH);
