//! Where everything is in a region. The page is `docs/spec/shm-link.md`.
//!
//! Each word that one side writes while the other polls it has 128 bytes of its own: processors
//! fetch lines in pairs.

use sietch_ring::tail_hint;
use sietch_structures::crc32c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::queue::ETHERNET_HEADER;

/// First bytes of a region.
pub(super) const MAGIC: [u8; 8] = *b"SIETCHL1";
/// Version of the layout.
pub(super) const VERSION: u32 = 2;
/// The word that the control plane sets when it takes the link back.
pub(super) const REVOKED: usize = 0x80;
/// The owner's producer word, and its newest descriptor.
pub(super) const PRODUCER: usize = 0x100;
/// The owner's consumer word, for the peer's ring.
pub(super) const CONSUMER: usize = 0x180;
/// The owner's need-wakeup word.
pub(super) const NEED_WAKEUP_WORD: usize = 0x200;
/// The owner's ring.
pub(super) const RING: usize = 0x1000;
/// Frames start at multiples of this: a cache line.
pub(super) const ALIGNMENT: u32 = 64;

const PAGE: usize = 4096;
/// Few enough for a bounded call, as many as the deepest batch needs.
const MOST_SLOTS: u32 = 1 << 15;
const LEAST_DATA: u32 = 1 << 16;
const MOST_DATA: u32 = 1 << 30;

/// What a slot says of a frame: `offset / 64 | length << 24`, in 48 bits.
pub(super) const fn descriptor(offset: u32, length: u32) -> u64 {
    (offset / ALIGNMENT) as u64 | (length as u64) << LENGTH_AT
}

/// Offset and length in a descriptor, whatever it says.
pub(super) const fn frame_range(descriptor: u64) -> (u32, u32) {
    let (unit, length) = (descriptor as u32 & FIELD, (descriptor >> LENGTH_AT) as u32 & FIELD);
    // Below 2^30.
    (unit * ALIGNMENT, length)
}

const LENGTH_AT: u32 = 24;
const FIELD: u32 = (1 << LENGTH_AT) - 1;
const _: () = assert!(
    MOST_DATA / ALIGNMENT <= FIELD + 1
        && 2 * LENGTH_AT <= tail_hint::BITS
        && MOST_SLOTS <= tail_hint::MOST_SLOTS
);

/// The start of a region. Native byte order: a region never leaves its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    /// 0 or 1: which side of the link owns the region.
    pub side: u32,
    /// Generation of the grant: the regions of one link agree on it.
    pub generation: u64,
    pub slots: u32,
    pub data: u32,
    /// CRC32C of all the bytes before.
    pub checksum: u32,
    pub reserved: u32,
}

/// Bytes of a [`Header`].
pub(super) const HEADER: usize = size_of::<Header>();
const _: () = assert!(HEADER == 40 && HEADER <= REVOKED);
const _: () = assert!(std::mem::offset_of!(Header, generation) == 16);
const _: () = assert!(std::mem::offset_of!(Header, checksum) == 32);
const _: () = assert!(NEED_WAKEUP_WORD + 128 <= RING);

impl Header {
    pub(super) fn new(layout: LinkLayout, side: u32, generation: u64) -> Self {
        let mut header = Self {
            magic: MAGIC,
            version: VERSION,
            side,
            generation,
            slots: layout.slots,
            data: layout.data,
            checksum: 0,
            reserved: 0,
        };
        header.checksum = header.sum();
        header
    }

    pub(super) fn sum(&self) -> u32 {
        let end = std::mem::offset_of!(Self, checksum);
        crc32c(&self.as_bytes()[..end])
    }
}

/// The shape of both regions of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLayout {
    /// Frames in flight each way: a power of two, 16 to 32768.
    pub slots: u32,
    /// Bytes for frames in flight each way: a power of two, 64 KiB to 1 GiB.
    pub data: u32,
}

/// Why a layout cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkLayoutError {
    /// The number of slots.
    #[error("a link of {0} slots: the number must be a power of two from 16 to {MOST_SLOTS}")]
    Slots(u32),
    /// The bytes for frames.
    #[error("a link with {0} bytes for frames: the number must be a power of two from 65536 to 2^30")]
    Data(u32),
    /// The MTU.
    #[error(
        "MTU of {mtu} bytes: must be 576 to 65535, and four frames must fit the {data} bytes of the link"
    )]
    Mtu {
        /// The requested value.
        mtu: usize,
        /// Bytes for frames.
        data: u32,
    },
}

impl LinkLayout {
    /// A layout for frames of this MTU: 1024 frames of 1500 bytes, or 64 of the largest.
    pub const fn for_mtu(mtu: usize) -> Self {
        Self { slots: 1024, data: if mtu > 9000 { 4 << 20 } else { 2 << 20 } }
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// [`LinkLayoutError`] says which is broken.
    pub const fn validate(&self) -> Result<(), LinkLayoutError> {
        if !self.slots.is_power_of_two() || self.slots < 16 || self.slots > MOST_SLOTS {
            return Err(LinkLayoutError::Slots(self.slots));
        }
        if !self.data.is_power_of_two() || self.data < LEAST_DATA || self.data > MOST_DATA {
            return Err(LinkLayoutError::Data(self.data));
        }
        Ok(())
    }

    /// Whether frames of this MTU can be sent: four of them must fit.
    ///
    /// # Errors
    /// [`LinkLayoutError::Mtu`].
    pub const fn fits(&self, mtu: usize) -> Result<(), LinkLayoutError> {
        let frame = (mtu + ETHERNET_HEADER).next_multiple_of(ALIGNMENT as usize);
        if mtu < 576 || mtu > 65_535 || frame * 4 > self.data as usize {
            return Err(LinkLayoutError::Mtu { mtu, data: self.data });
        }
        Ok(())
    }

    pub(super) const fn data_start(&self) -> usize {
        (RING + self.slots as usize * 8).next_multiple_of(PAGE)
    }

    /// Bytes of one region.
    pub(crate) const fn region_bytes(&self) -> usize {
        self.data_start() + self.data as usize
    }
}
