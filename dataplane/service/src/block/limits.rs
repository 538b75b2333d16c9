//! Bounds of the storage broker, and why they are what they are.

use sietch_disk::broker::MAX_PIECE;

/// Most areas of one broker: what it holds for each (at most [`BYTES`] in buffers) stays within 64
/// MiB.
pub const AREAS: usize = 64;

/// Bytes that an area may have taken in a turn: its longest request, so every turn moves something;
/// little enough that all areas have their turns within what a disk needs for one.
pub const QUANTUM: i64 = MAX_PIECE as i64;

/// What a request costs beside its bytes: about what a device spends on one, in the time of moving
/// so many bytes.
pub const REQUEST_COST: i64 = 4096;

/// Bytes of a discard that a device is asked for at a time: as a device without a command for it
/// writes zeros, they count as bytes that are moved. What an area may have at a device.
pub const DISCARD_SLICE: u64 = BYTES;

/// Most requests taken from an area in a turn.
pub const BATCH: usize = 32;

/// Bytes of one area that a device has at a time: what a disk of 1 GB/s moves in a millisecond. So
/// long does another's small request wait behind it, whatever it asks for. One request of any
/// length goes alone.
pub const BYTES: u64 = 1 << 20;

/// Pieces of one area at a device whatever the number of areas: its request over many extents moves
/// on.
pub const LEAST_SHARE: usize = 4;

/// Requests that a volume's queue holds: enough to saturate an NVMe device from several areas.
pub const DEVICE_DEPTH: usize = 256;

/// Buffers of one size that are kept for the next request.
pub const SPARE_BUFFERS: usize = 64;

const _: () = assert!(BYTES as usize >= MAX_PIECE && AREAS * LEAST_SHARE <= DEVICE_DEPTH);
