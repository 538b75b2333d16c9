//! The bytes of a file, with holes.
//!
//! Blocks that were written are in a map; what is not there is a hole and reads as zeros. A copy
//! shares blocks until one side writes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use sietch_fs::limits::BLOCK;

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Content of a file. The size is kept by the inode.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    blocks: BTreeMap<u64, Arc<[u8; BLOCK]>>,
}

/// The parts of `range`, each in one block: `(block, first byte in it, bytes)`.
fn pieces(range: Range<u64>) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let within = at % BLOCK_BYTES;
        let bytes = (BLOCK_BYTES - within).min(range.end - at);
        let piece = (at / BLOCK_BYTES, within as usize, bytes as usize);
        at += bytes;
        Some(piece)
    })
}

impl Data {
    /// Blocks that are no hole.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) {
        let mut rest = bytes;
        for (block, within, length) in pieces(offset..offset + rest.len() as u64) {
            let (piece, behind) = rest.split_at_mut(length);
            match self.blocks.get(&block) {
                Some(data) => piece.copy_from_slice(&data[within..within + length]),
                None => piece.fill(0),
            }
            rest = behind;
        }
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (block, within, length) in pieces(offset..offset + bytes.len() as u64) {
            let (piece, behind) = rest.split_at(length);
            let data = self.blocks.entry(block).or_insert_with(|| Arc::new([0; BLOCK]));
            Arc::make_mut(data)[within..within + length].copy_from_slice(piece);
            rest = behind;
        }
    }

    /// Makes a hole of `range`. Blocks that are partly in it keep their room, with zeros.
    pub(super) fn punch(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut whole = range.start.div_ceil(BLOCK_BYTES)..range.end / BLOCK_BYTES;
        if whole.start > whole.end {
            // Inside one block.
            whole.end = whole.start;
            self.zero(range);
        } else {
            self.zero(range.start..whole.start * BLOCK_BYTES);
            self.zero(whole.end * BLOCK_BYTES..range.end);
        }
        let freed: Vec<u64> = self.blocks.range(whole).map(|(block, _)| *block).collect();
        for block in freed {
            self.blocks.remove(&block);
        }
    }

    /// Zeros a range of at most a block, where there are data.
    fn zero(&mut self, range: Range<u64>) {
        for (block, within, length) in pieces(range) {
            if let Some(data) = self.blocks.get_mut(&block) {
                Arc::make_mut(data)[within..within + length].fill(0);
            }
        }
    }

    /// Drops everything from `size` on.
    pub(super) fn truncate(&mut self, size: u64) {
        self.zero(size..size.next_multiple_of(BLOCK_BYTES));
        self.blocks.split_off(&size.div_ceil(BLOCK_BYTES));
    }

    /// The first byte of data at or behind `offset`.
    pub(super) fn next_data(&self, offset: u64) -> Option<u64> {
        let block = self.blocks.range(offset / BLOCK_BYTES..).next()?.0;
        Some(offset.max(block * BLOCK_BYTES))
    }

    /// The first byte in a hole at or behind `offset`.
    pub(super) fn next_hole(&self, offset: u64) -> u64 {
        let mut block = offset / BLOCK_BYTES;
        while self.blocks.contains_key(&block) {
            block += 1;
        }
        offset.max(block * BLOCK_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(data: &Data, range: Range<u64>) -> Vec<u8> {
        let mut bytes = vec![9; (range.end - range.start) as usize];
        data.read(range.start, &mut bytes);
        bytes
    }

    #[test]
    fn a_punch_zeros_edges_and_frees_whole_blocks() {
        let mut data = Data::default();
        data.write(100, &[1; 3 * BLOCK]);
        data.punch(4000..8200);
        assert_eq!(bytes(&data, 3999..4001), [1, 0]);
        assert_eq!(bytes(&data, 8199..8201), [0, 1]);
        assert_eq!((data.next_data(4096), data.next_hole(100)), (Some(8192), 4096));
        data.punch(8300..8310);
        assert_eq!(bytes(&data, 8299..8311), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn nothing_cut_off_comes_back() {
        let mut data = Data::default();
        data.write(0, &[1; 2 * BLOCK]);
        data.truncate(10);
        assert_eq!(bytes(&data, 9..11), [1, 0]);
        assert_eq!((data.blocks(), data.next_data(4096)), (1, None));
    }

    #[test]
    fn a_copy_keeps_its_bytes() {
        let mut data = Data::default();
        data.write(16 << 40, b"old");
        let copy = data.clone();
        data.write(16 << 40, b"new");
        assert_eq!(bytes(&copy, 16 << 40..(16 << 40) + 3), b"old");
    }
}
