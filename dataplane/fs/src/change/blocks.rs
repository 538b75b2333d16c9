//! Blocks that a change may need.
//!
//! Client and service count alike: the client promises so many before it logs the record, and the
//! service counts as many where it judges the record. So an honest client's records are never more
//! than its budget, and a pool has room for all that budgets allow.

use std::ops::Range;

use super::Change;
use crate::limits::BLOCK;

/// Blocks of metadata that a change may need, besides its data: leaves that split.
const CHANGE_BLOCKS: u64 = 1;
/// Blocks of the tree for a block of bytes that are items of it, where leaves are half full.
const LEAVES_PER_BLOCK: u64 = 2;

const BLOCK_BYTES: u64 = BLOCK as u64;

impl Change<'_> {
    /// Blocks that the record may need until it is digested, at most. `size` is that of the file
    /// before a [`Change::Truncate`]. What makes room, or takes none for good, needs none: it works
    /// on a full pool.
    pub(crate) fn blocks(&self, size: u64) -> u64 {
        let data = match *self {
            Change::Unlink { .. }
            | Change::Free { .. }
            | Change::SetAttributes { .. }
            | Change::RemoveXattr { .. } => return 0,
            Change::Truncate { size: new, .. } if new < size => return 0,
            // A size inside a block rewrites that block.
            Change::Truncate { size: new, .. } => u64::from(!new.is_multiple_of(BLOCK_BYTES)),
            Change::Link { .. } | Change::Rename { .. } => 0,
            Change::Create { target, .. } => leaves(target.len() as u64),
            Change::SetXattr { length, .. } => leaves(u64::from(length)),
            Change::Write { offset, length, .. } => covered(offset, u64::from(length)),
            Change::Reserve { offset, length, .. } => covered(offset, length),
            // The blocks that the ends cut are rewritten.
            Change::Punch { offset, length, .. } => {
                let Range { start, end } = range(offset, length);
                u64::from(!start.is_multiple_of(BLOCK_BYTES)) + u64::from(!end.is_multiple_of(BLOCK_BYTES))
            }
        };
        data + CHANGE_BLOCKS
    }
}

/// A record that is judged may name any numbers.
fn range(offset: u64, length: u64) -> Range<u64> {
    offset..offset.saturating_add(length)
}

/// Blocks of which a range has bytes.
pub(crate) fn covered(offset: u64, length: u64) -> u64 {
    let Range { start, end } = range(offset, length);
    end.div_ceil(BLOCK_BYTES) - start / BLOCK_BYTES
}

/// Leaves for so many bytes of items.
fn leaves(bytes: u64) -> u64 {
    LEAVES_PER_BLOCK * bytes.div_ceil(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::InodeNumber;

    const INODE: InodeNumber = InodeNumber(7);

    #[test]
    fn what_makes_room_needs_none() {
        assert_eq!(Change::Free { inode: INODE }.blocks(0), 0);
        assert_eq!(Change::Truncate { inode: INODE, size: 4095 }.blocks(4096), 0);
    }

    #[test]
    fn each_block_that_is_touched_counts() {
        let write = |offset, length| Change::Write { inode: INODE, offset, length }.blocks(0);
        assert_eq!((write(0, 4096), write(4095, 2), write(4096, 8192)), (2, 3, 3));
        let punch = |offset, length| Change::Punch { inode: INODE, offset, length }.blocks(0);
        assert_eq!((punch(0, 1 << 30), punch(1, 4095), punch(1, 100)), (1, 2, 3));
        assert_eq!(Change::Truncate { inode: INODE, size: 4097 }.blocks(4097), 2);
        assert_eq!(Change::Truncate { inode: INODE, size: 8192 }.blocks(1), 1);
        assert_eq!(Change::SetXattr { inode: INODE, name: b"user.a", length: 65536 }.blocks(0), 33);
    }

    #[test]
    fn numbers_that_no_file_has_do_not_overflow() {
        let reserve = Change::Reserve { inode: INODE, offset: 1, length: u64::MAX, size: 0, zero: true };
        assert_eq!(reserve.blocks(0), (1 << 52) + 1);
        assert_eq!(Change::Punch { inode: INODE, offset: u64::MAX, length: u64::MAX }.blocks(0), 3);
    }
}
