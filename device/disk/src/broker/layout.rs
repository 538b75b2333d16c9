//! The memory between an application and the broker of its area.
//!
//! ```text
//!  0x0000  | "SIETCHBR" | version u32 | slots u32 | data u32 | block u32 | generation u64 |
//!  0x0100  | submission producer u32 |      written by the application
//!  0x0180  | submission consumer u32 |      written by the broker
//!  0x0200  | completion producer u32 |      written by the broker
//!  0x0280  | completion consumer u32 |      written by the application
//!  0x0300  | ring the broker u32     |      armed by the broker, taken by the application
//!  0x0380  | ring the application u32|      armed by the application, taken by the broker
//!  0x1000  | submission 0 | ... | submission n-1 |      32 bytes each
//!  page    | completion 0 | ... | completion n-1 |      16 bytes each
//!  page    | data: pages of 4096 bytes           |
//! ```
//!
//! Words that one side polls while the other writes have 128 bytes between them. Native byte order:
//! the memory never leaves its machine.

use sietch_ring::Descriptor;

use crate::BLOCK;

/// What the memory starts with.
pub const MAGIC: [u8; 8] = *b"SIETCHBR";
/// The version of this layout.
pub const VERSION: u32 = 1;
/// Bytes of the header that mean something.
pub const HEADER: usize = 32;
/// See the diagram.
pub const SUBMISSION_PRODUCER: usize = 0x100;
/// See the diagram.
pub const SUBMISSION_CONSUMER: usize = 0x180;
/// See the diagram.
pub const COMPLETION_PRODUCER: usize = 0x200;
/// See the diagram.
pub const COMPLETION_CONSUMER: usize = 0x280;
/// The word with which the broker asks to be notified.
pub(crate) const BROKER_NEED_WAKEUP: usize = 0x300;
/// The word with which the application asks to be notified.
pub const APPLICATION_NEED_WAKEUP: usize = 0x380;
/// Where submissions begin.
pub const SUBMISSIONS: usize = BLOCK;

/// The most bytes that one submission moves. The data region of a usual grant holds sixteen of them
/// in flight, which keeps any disk busy. Another application waits for no more of them than a disk
/// moves in a few hundred microseconds.
pub const MAX_PIECE: usize = 256 << 10;

/// Fills data from the area.
pub const READ: u8 = 1;
/// Writes data to the area.
pub const WRITE: u8 = 2;
/// Makes what has completed durable.
pub const FLUSH: u8 = 3;
/// Says that a range is not needed any more.
pub const DISCARD: u8 = 4;

/// Complete a write only once it survives power loss.
pub const DURABLE: u8 = 1;

/// The bounds of a ring: one request at least, and no more than io_uring has.
const SLOTS: std::ops::RangeInclusive<u32> = 1..=4096;
/// The bounds of a data region: one piece, and what a grant may pin.
const DATA: std::ops::RangeInclusive<u32> = MAX_PIECE as u32..=256 << 20;

/// The shape of the memory of one grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerLayout {
    /// Entries of each ring: a power of two.
    pub slots: u32,
    /// Bytes of the data region: a multiple of [`BLOCK`].
    pub data: u32,
    /// Alignment of requests, in bytes: what the volume's device does not tear.
    pub block: u32,
}

impl BrokerLayout {
    /// Of an area whose device has blocks of `block` bytes: 64 requests, four megabytes in flight.
    pub const fn usual(block: u32) -> Self {
        Self { slots: crate::DEFAULT_DEPTH as u32, data: 4 << 20, block }
    }

    /// Whether the numbers make sense.
    pub fn is_valid(&self) -> bool {
        self.slots.is_power_of_two()
            && SLOTS.contains(&self.slots)
            && DATA.contains(&self.data)
            && self.data.is_multiple_of(BLOCK as u32)
            && (512..=BLOCK as u32).contains(&self.block)
            && self.block.is_power_of_two()
    }

    /// Where completions begin.
    pub const fn completions(&self) -> usize {
        SUBMISSIONS + (self.slots as usize * size_of::<Submission>()).next_multiple_of(BLOCK)
    }

    /// Where data begins.
    pub const fn data_start(&self) -> usize {
        self.completions() + (self.slots as usize * size_of::<Completed>()).next_multiple_of(BLOCK)
    }

    /// Bytes in all.
    pub const fn bytes(&self) -> usize {
        self.data_start() + self.data as usize
    }

    /// The header of memory of this shape.
    pub fn header(&self, generation: u64) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        for (index, word) in [VERSION, self.slots, self.data, self.block].into_iter().enumerate() {
            header[8 + 4 * index..12 + 4 * index].copy_from_slice(&word.to_ne_bytes());
        }
        header[24..].copy_from_slice(&generation.to_ne_bytes());
        header
    }
}

/// A request, as it is in its ring. Nothing of it can be believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Submission {
    /// Comes back in the completion.
    pub token: u64,
    /// First byte in the area.
    pub offset: u64,
    /// Bytes; of a discard in units of [`BLOCK`].
    pub length: u32,
    /// Where in the data region they come from or go.
    pub data: u32,
    /// [`READ`], [`WRITE`], [`FLUSH`] or [`DISCARD`].
    pub operation: u8,
    /// [`DURABLE`], or nothing.
    pub flags: u8,
    /// How much its owner hurries.
    pub priority: u8,
    /// Nothing.
    pub zero: [u8; 5],
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Completed {
    /// As submitted.
    pub token: u64,
    /// 0, or an error number made negative.
    pub status: i32,
    /// Nothing.
    pub zero: u32,
}

const _: () = assert!(size_of::<Submission>() == 32 && size_of::<Completed>() == 16);
const _: () = assert!(std::mem::offset_of!(Submission, operation) == 24);
const _: () = assert!(std::mem::offset_of!(Completed, status) == 8);

// SAFETY: integers without padding between them (the sizes are asserted above), any pattern of
// which is a value.
unsafe impl Descriptor for Submission {}
// SAFETY: as above.
unsafe impl Descriptor for Completed {}
