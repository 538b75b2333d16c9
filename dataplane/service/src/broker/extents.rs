//! Where the bytes of an area are on its volume.
//!
//! Extents are in the order of the area's bytes. The control plane decides which they are. They are
//! validated all the same: a span outside the volume, or two that overlap, are refused.

/// A range of bytes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// The number of bytes.
    pub length: u64,
}

/// Why extents are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// There are none, one is empty, or one is not whole blocks.
    #[error("its extents are not whole blocks of 4096 bytes, or there are none")]
    Blocks,
    /// An extent reaches beyond the volume.
    #[error("an extent reaches beyond the {0} bytes of its volume")]
    Outside(u64),
    /// Two extents share bytes.
    #[error("two of its extents share bytes")]
    Overlap,
}

/// A translation from an area's bytes to its volume's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Map {
    /// Where each extent begins in the area, and where it is on the volume, in that order.
    spans: Vec<(u64, Span)>,
    capacity: u64,
}

impl Map {
    /// Makes the map of an area at `extents` of a volume of `volume` bytes.
    ///
    /// # Errors
    /// See [`MapError`].
    pub(super) fn new(extents: &[Span], volume: u64) -> Result<Self, MapError> {
        let block = sietch_disk::BLOCK as u64;
        let whole = |span: &Span| {
            span.length > 0 && span.length.is_multiple_of(block) && span.start.is_multiple_of(block)
        };
        if extents.is_empty() || !extents.iter().all(whole) {
            return Err(MapError::Blocks);
        }
        let inside = |span: &Span| span.start.checked_add(span.length).is_some_and(|end| end <= volume);
        if !extents.iter().all(inside) {
            return Err(MapError::Outside(volume));
        }
        let mut ordered: Vec<Span> = extents.to_vec();
        ordered.sort_by_key(|span| span.start);
        if ordered.windows(2).any(|pair| pair[0].start + pair[0].length > pair[1].start) {
            return Err(MapError::Overlap);
        }
        let (mut at, mut spans) = (0, Vec::with_capacity(extents.len()));
        for span in extents {
            spans.push((at, *span));
            // They are disjoint parts of the volume, so their sum does not overflow.
            at += span.length;
        }
        Ok(Self { spans, capacity: at })
    }

    /// Returns whether `length` bytes at `offset` are inside the area.
    pub(super) fn holds(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.capacity)
    }

    /// Returns where byte `offset` of the area is, and how many of the following `length` bytes
    /// are contiguous with it. Returns `None` outside the area.
    pub(super) fn locate(&self, offset: u64, length: u64) -> Option<Span> {
        let next = self.spans.partition_point(|(at, _)| *at <= offset);
        let (at, span) = self.spans.get(next.checked_sub(1)?)?;
        let into = offset - at;
        let left = span.length.checked_sub(into).filter(|left| *left > 0 && length > 0)?;
        Some(Span { start: span.start + into, length: left.min(length) })
    }

    /// Returns whether every byte of `other` is at the same place in this map.
    pub(super) fn begins_with(&self, other: &Self) -> bool {
        let mut at = 0;
        while at < other.capacity {
            let length = other.capacity - at;
            let (Some(here), Some(there)) = (self.locate(at, length), other.locate(at, length)) else {
                return false;
            };
            if here.start != there.start {
                return false;
            }
            at += here.length.min(there.length);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_extents_are_refused() {
        let span = |start, length| Span { start, length };
        let volume = 1 << 20;
        assert_eq!(Map::new(&[], volume), Err(MapError::Blocks));
        assert_eq!(Map::new(&[span(4096, 0)], volume), Err(MapError::Blocks));
        assert_eq!(Map::new(&[span(512, 4096)], volume), Err(MapError::Blocks));
        assert_eq!(Map::new(&[span(volume, 4096)], volume), Err(MapError::Outside(volume)));
        assert_eq!(Map::new(&[span(u64::MAX - 4095, 4096)], volume), Err(MapError::Outside(volume)));
        assert_eq!(Map::new(&[span(8192, 8192), span(4096, 8192)], volume), Err(MapError::Overlap));
    }

    proptest! {
        /// The map agrees with a linear walk through the extents, for every byte.
        #[test]
        fn a_range_lies_where_its_extents_say(
            lengths in prop::collection::vec((1_u64..9, 0_u64..9), 1..40),
            offset in 0_u64..400 * 4096,
            length in 1_u64..100 * 4096,
        ) {
            let mut at = 4096;
            let mut extents = Vec::new();
            for (blocks, gap) in lengths {
                extents.push(Span { start: at, length: blocks * 4096 });
                at += (blocks + gap) * 4096;
            }
            // Their order in the area differs from their order on the volume.
            extents.reverse();
            let map = Map::new(&extents, at).expect("disjoint and inside");
            let bytes: Vec<u64> = extents.iter().flat_map(|span| (0..span.length / 512).map(move |unit| span.start + unit * 512)).collect();
            let (mut from, mut left) = (offset / 512 * 512, length.next_multiple_of(512));
            prop_assert_eq!(map.holds(from, left), (from + left) / 512 <= bytes.len() as u64);
            while let Some(span) = map.locate(from, left) {
                for unit in 0..span.length / 512 {
                    prop_assert_eq!(Some(&(span.start + unit * 512)), bytes.get((from / 512 + unit) as usize));
                }
                from += span.length;
                left -= span.length;
            }
            prop_assert!(left == 0 || from >= map.capacity);
            let fewer = Map::new(&extents[..extents.len().div_ceil(2)], at).expect("disjoint and inside");
            prop_assert!(map.begins_with(&fewer));
            prop_assert_eq!(fewer.begins_with(&map), fewer.capacity == map.capacity);
        }
    }
}
