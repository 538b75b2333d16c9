//! A volume that Sietch allocates itself: named areas as lists of extents on one file or block
//! device.
//!
//! 1. Two alternating generations of checksummed superblocks name a *half*; a half begins with a
//!    checkpoint of all areas and goes on with a journal of what changed since ([`layout`],
//!    `docs/spec/volume.md`). Opening reads both halves, whose size does not depend on the
//!    capacity.
//! 2. A change is one journal record of one block, written durably, before anybody hears of it.
//!    When the journal is full, or the volume is opened, a checkpoint goes to the other half, is
//!    flushed, and then the next superblock names it.
//! 3. Blocks are zeroed, and the zeros flushed, *before* the record that gives them to an area. So
//!    a crash at any point leaves an area without them, or with zeros. What is free follows from
//!    what is not in any area: nothing leaks.
//! 4. The first failed write of metadata stops the volume ([`Failure`]): what it holds stays
//!    readable, nothing more is acknowledged.
//!
//! There is no clock, no thread and no system call in here: it speaks [`sietch_disk::DiskQueue`],
//! so the simulator can cut the power at every write.
#![forbid(unsafe_code)]

mod error;
pub mod layout;
pub mod limits;
mod space;
mod transfer;
mod volume;

pub use error::{Failure, FormatError, OpenError, VolumeError};
pub use layout::{Area, Extent};
pub use transfer::zero;
pub use volume::{FormatOptions, Reservation, Volume, Zeroed};
