//! A volume that Sietch allocates itself: named areas as lists of extents on one file or block
//! device.
//!
//! 1. Two alternating generations of checksummed superblocks name a *half*. A half begins with a
//!    checkpoint of all areas, followed by a journal of later changes (`layout`,
//!    `docs/spec/volume.md`). Opening reads both halves, whose size does not depend on the
//!    capacity.
//! 2. A change is one journal record of one block, written durably before the call returns. When
//!    the journal is full, or the volume is opened, a checkpoint is written to the other half and
//!    flushed. Then the next superblock names that half.
//! 3. Blocks are zeroed, and the zeros flushed, *before* the record that gives them to an area. So
//!    after a crash at any point an area is without them, or they are zeros. The free blocks follow
//!    from the areas: nothing leaks.
//! 4. The first failed write of metadata stops the volume ([`Failure`]): its contents stay
//!    readable, and every further change is refused.
//!
//! There is no clock, no thread and no system call in here. The volume uses a
//! [`sietch_disk::DiskQueue`], so the simulator can cut the power at every write.
//!
//! ```
//! use sietch_disk::MemoryQueue;
//! use sietch_volume::{FormatOptions, Volume};
//!
//! let mut disk = MemoryQueue::new(16 << 20);
//! Volume::format(&mut disk, FormatOptions { identity: 7, half_bytes: None })?;
//! let mut volume = Volume::open(&mut disk)?;
//! volume.create(&mut disk, "log", 1000, 1 << 20)?;
//! assert_eq!(volume.find("log").map(|area| area.size()), Some(1 << 20));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The layers, lowest first: `limits`; `layout`; `error`, `space`; `transfer`; `volume`.
#![forbid(unsafe_code)]

mod error;
mod layout;
pub mod limits;
mod space;
mod transfer;
mod volume;

pub use error::{Failure, FormatError, OpenError, VolumeError};
pub use layout::{Area, Extent};
pub use transfer::zero;
pub use volume::{FormatOptions, Reservation, Volume, Zeroed};
