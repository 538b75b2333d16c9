//! The items of the tree that belong to the pool: all of object 0, with kinds below
//! [`crate::tree::OWN_KINDS`].

use super::Run;
use crate::tree::Key;

/// A free run of blocks: its offset has the medium in the high half and the first block in the low
/// one; its value is the number of blocks, 4 bytes.
pub(super) const KIND_FREE: u8 = 1;

/// A chunk of node blocks: its offset is the first block; its value is the number of blocks, 4
/// bytes.
pub(super) const KIND_CHUNK: u8 = 2;

pub(super) fn free_item(medium: u8, start: u32) -> Key {
    Key::new(0, KIND_FREE, u64::from(medium) << 32 | u64::from(start))
}

pub(super) fn chunk_item(start: u32) -> Key {
    Key::new(0, KIND_CHUNK, u64::from(start))
}

/// What an item of the pool says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnItem {
    Free(Run),
    Chunk(Run),
}

impl OwnItem {
    /// Reads an item; `None` if it cannot be one. `blocks` has the size of each medium.
    pub(super) fn read(key: Key, value: &[u8], blocks: &[u32], first: u32) -> Option<Self> {
        let length = u32::from_le_bytes(value.try_into().ok()?);
        let medium = u8::try_from(key.offset >> 32).ok()?;
        // The low half.
        let run = Run { medium, start: key.offset as u32, blocks: length };
        let size = *blocks.get(usize::from(medium))?;
        let end = run.start.checked_add(length)?;
        if length == 0 || run.start < first || end > size {
            return None;
        }
        match key.kind {
            KIND_FREE => Some(Self::Free(run)),
            KIND_CHUNK if medium == 0 => Some(Self::Chunk(run)),
            _ => None,
        }
    }
}
