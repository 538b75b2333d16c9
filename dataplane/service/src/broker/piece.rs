//! A piece of a request: as much as is in one extent, before and after it is submitted.

use sietch_disk::Priority;

/// The next piece of a request, not yet submitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextPiece {
    pub operation: u8,
    pub durable: bool,
    pub priority: Priority,
    /// The first byte on the volume, and the number of bytes.
    pub offset: u64,
    pub span: u64,
    /// Bytes that are moved, and where they are in the data region; of a discard those that it
    /// zeroes.
    pub length: u32,
    pub data: u32,
}

/// A piece that is at the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// The index of the area.
    pub area: usize,
    /// The number of the request.
    pub request: u32,
    /// Bytes that are moved, and where they are in the application's data region.
    pub length: u32,
    pub data: u32,
    /// The device's bytes are to be copied to the application.
    pub is_read: bool,
}
