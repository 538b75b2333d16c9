//! The media beside the home, as the home's superblock names them.
//!
//! 1. A pool whose media are those that it was formatted with has no table: each medium says itself
//!    how large it is. The first change of the media ([`super::media_change`]) makes one.
//! 2. From then on the table alone says which media belong to the pool, and how large they are. It
//!    is in the home's superblock, so a commit changes it as a whole.
//! 3. A *slot* is the number of a medium, from 1: extents name it, so it stays while the medium is
//!    in the pool. The slot of a medium that left is empty, and may be used again.
//! 4. A medium that is added gets a *key*, a random number that the table and its superblock have.
//!    So a medium that left, or one whose addition was cut short, is never taken for the one that
//!    is in its slot.

use sietch_disk::superblock_copies::CopyDamage;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::limits::{FIRST_BLOCK, MAX_MEDIA};
use super::medium::Class;

/// The key of each medium that a pool was formatted with.
pub(super) const FORMATTED: u64 = 1;

/// Slots beside that of the home.
const OTHERS: usize = MAX_MEDIA - 1;

/// A slot of the table; all zeros: empty.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawListed {
    key: U64,
    blocks: U32,
    class: u8,
    reserved: [u8; 3],
}

/// The table in bytes.
pub(super) type RawTable = [RawListed; OTHERS];

const _: () = assert!(size_of::<RawTable>() == 112);

/// A medium beside the home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub key: u64,
    pub blocks: u32,
    pub class: Class,
}

/// See the module's account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MediaTable {
    others: [Option<Listed>; OTHERS],
}

impl MediaTable {
    /// The medium in a slot.
    pub(super) fn get(&self, slot: usize) -> Option<Listed> {
        self.others.get(slot.checked_sub(1)?).copied().flatten()
    }

    /// Fills or empties a slot beside that of the home, if it exists.
    pub(super) fn set(&mut self, slot: usize, listed: Option<Listed>) {
        if let Some(entry) = slot.checked_sub(1).and_then(|at| self.others.get_mut(at)) {
            *entry = listed;
        }
    }

    /// The slots that have a medium, in ascending order, without that of the home.
    pub(super) fn slots(&self) -> Vec<usize> {
        (1..MAX_MEDIA).filter(|slot| self.get(*slot).is_some()).collect()
    }

    /// The first slot that has none.
    pub(super) fn empty_slot(&self) -> Option<usize> {
        (1..MAX_MEDIA).find(|slot| self.get(*slot).is_none())
    }

    /// Media, with the home.
    pub(super) fn count(&self) -> u8 {
        // At most MAX_MEDIA.
        1 + self.others.iter().flatten().count() as u8
    }

    pub(super) fn write(&self) -> RawTable {
        self.others.map(|listed| match listed {
            Some(Listed { key, blocks, class }) => RawListed {
                key: U64::new(key),
                blocks: U32::new(blocks),
                class: class as u8,
                reserved: [0; 3],
            },
            None => RawListed { key: U64::new(0), blocks: U32::new(0), class: 0, reserved: [0; 3] },
        })
    }

    pub(super) fn read(raw: &RawTable) -> Result<Self, CopyDamage> {
        let mut table = Self::default();
        for (entry, raw) in table.others.iter_mut().zip(raw) {
            *entry = match raw.blocks.get() {
                0 => None,
                blocks if blocks <= FIRST_BLOCK => return Err(CopyDamage::Damaged),
                blocks => {
                    let class = Class::from_byte(raw.class).ok_or(CopyDamage::Damaged)?;
                    Some(Listed { key: raw.key.get(), blocks, class })
                }
            };
        }
        Ok(table)
    }
}
