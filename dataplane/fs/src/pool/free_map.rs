//! Free runs of one medium, by their start and by their length. Adjacent runs are one.

use std::collections::{BTreeMap, BTreeSet};

use super::limits::MIN_CHUNK;

/// See the module's account.
#[derive(Debug, Default)]
pub(super) struct FreeMap {
    by_start: BTreeMap<u32, u32>,
    by_length: BTreeSet<(u32, u32)>,
    free: u64,
    /// Blocks in runs of at least [`MIN_CHUNK`].
    in_chunks: u64,
}

impl FreeMap {
    /// Blocks in all runs.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Blocks in runs of which a chunk of nodes can be made.
    pub(super) fn in_chunks(&self) -> u64 {
        self.in_chunks
    }

    /// Runs.
    pub(super) fn runs(&self) -> usize {
        self.by_start.len()
    }

    /// Where the runs begin.
    pub(super) fn starts(&self) -> impl Iterator<Item = u32> {
        self.by_start.keys().copied()
    }

    /// Length of the run that begins at `start`.
    pub(super) fn length(&self, start: u32) -> Option<u32> {
        self.by_start.get(&start).copied()
    }

    /// Whether a block of the range is free.
    pub(super) fn overlaps(&self, start: u32, blocks: u32) -> bool {
        let end = start.saturating_add(blocks);
        self.by_start.range(..end).next_back().is_some_and(|(first, length)| first + length > start)
    }

    /// The smallest run of at least so many blocks, or the longest: its start and its length.
    pub(super) fn best(&self, blocks: u32) -> Option<(u32, u32)> {
        let fits = self.by_length.range((blocks, 0)..).next().or_else(|| self.by_length.last());
        fits.map(|(length, start)| (*start, *length))
    }

    fn set(&mut self, start: u32, length: u32) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
        self.free += u64::from(length);
        if length >= MIN_CHUNK {
            self.in_chunks += u64::from(length);
        }
    }

    fn unset(&mut self, start: u32) -> Option<u32> {
        let length = self.by_start.remove(&start)?;
        self.by_length.remove(&(length, start));
        self.free -= u64::from(length);
        if length >= MIN_CHUNK {
            self.in_chunks -= u64::from(length);
        }
        Some(length)
    }

    /// Adds a range of which no block is free. `changed` gets the starts of the runs that changed.
    pub(super) fn add(&mut self, mut start: u32, blocks: u32, changed: &mut impl FnMut(u32)) {
        let mut end = start.saturating_add(blocks);
        if let Some((&before, &length)) = self.by_start.range(..start).next_back()
            && before + length == start
        {
            self.unset(before);
            start = before;
        }
        if let Some(length) = self.unset(end) {
            changed(end);
            end += length;
        }
        self.set(start, end - start);
        changed(start);
    }

    /// Removes a range that is inside one run. Returns whether it was.
    pub(super) fn remove(&mut self, start: u32, blocks: u32, changed: &mut impl FnMut(u32)) -> bool {
        let end = start.saturating_add(blocks);
        let Some((&first, &length)) = self.by_start.range(..=start).next_back() else { return false };
        let last = first + length;
        if end > last {
            return false;
        }
        self.unset(first);
        changed(first);
        if first < start {
            self.set(first, start - first);
        }
        if end < last {
            self.set(end, last - end);
            changed(end);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sietch_sim::Random;

    use super::FreeMap;

    /// Against a set of blocks; the changed starts suffice to follow it.
    #[test]
    fn runs_are_those_of_a_set_of_blocks() {
        let mut random = Random::new(1);
        let (mut map, mut blocks) = (FreeMap::default(), BTreeSet::new());
        let mut followed = std::collections::BTreeMap::new();
        for _ in 0..4000 {
            let (start, length) = (random.below(200) as u32, random.between(1, 12) as u32);
            let range = start..start + length;
            let mut changed = Vec::new();
            let free = range.clone().filter(|block| blocks.contains(block)).count() as u32;
            assert_eq!(map.overlaps(start, length), free > 0);
            if free == 0 {
                map.add(start, length, &mut |at| changed.push(at));
                blocks.extend(range);
            } else {
                assert_eq!(map.remove(start, length, &mut |at| changed.push(at)), free == length);
                if free == length {
                    blocks.retain(|block| !range.contains(block));
                }
            }
            for at in changed {
                match map.length(at) {
                    Some(length) => followed.insert(at, length),
                    None => followed.remove(&at),
                };
            }
            assert_eq!(followed, map.by_start);
            assert_eq!(map.free(), blocks.len() as u64);
            let long: u32 = map.by_start.values().filter(|length| **length >= 4).sum();
            assert_eq!(map.in_chunks(), u64::from(long));
            let listed: BTreeSet<u32> = map.by_start.iter().flat_map(|(at, n)| *at..at + n).collect();
            assert_eq!(listed, blocks);
            assert_eq!(map.by_length.len(), map.runs());
            let wanted = random.between(1, 20) as u32;
            let longest = map.by_start.values().max().copied().unwrap_or_default();
            let best = map.best(wanted).map_or(0, |(_, length)| length);
            assert!(best == longest || best >= wanted, "{best} of {longest} for {wanted}");
        }
    }
}
