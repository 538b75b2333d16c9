//! Blocks of slow media that were read.
//!
//! 1. A block is found by its medium and its place. Nothing says when a place gets other data: who
//!    reads a block from here verifies its checksum, as if it came from the medium, and reads it
//!    from there if that differs.
//! 2. Which block leaves when there is no room is decided by the clock algorithm: one that was not
//!    used since the hand passed last.
//!
//! Memory is taken as blocks come.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::limits::BLOCK;

/// A block's medium and number there.
type Place = (u8, u32);

struct Slot {
    place: Place,
    was_used: bool,
    data: Box<[u8; BLOCK]>,
}

/// The module's header describes it.
pub(crate) struct BlockCache {
    slots: Vec<Slot>,
    places: HashMap<Place, usize, RandomState>,
    capacity: usize,
    hand: usize,
}

impl BlockCache {
    /// A cache of at most so many blocks.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { slots: Vec::new(), places: HashMap::default(), capacity, hand: 0 }
    }

    /// Whether a block is there.
    pub(crate) fn has(&self, place: Place) -> bool {
        self.places.contains_key(&place)
    }

    /// The block of a place, as it was read there.
    pub(crate) fn get(&mut self, place: Place) -> Option<&[u8; BLOCK]> {
        let slot = self.slots.get_mut(*self.places.get(&place)?)?;
        slot.was_used = true;
        Some(&slot.data)
    }

    /// Keeps a block that was read.
    pub(crate) fn put(&mut self, place: Place, data: &[u8; BLOCK]) {
        if let Some(at) = self.places.get(&place) {
            self.slots[*at].data.copy_from_slice(data);
            return;
        }
        if self.slots.len() < self.capacity {
            self.places.insert(place, self.slots.len());
            self.slots.push(Slot { place, was_used: false, data: Box::new(*data) });
            return;
        }
        let Some(at) = self.unused() else { return };
        let slot = &mut self.slots[at];
        self.places.remove(&slot.place);
        (slot.place, slot.was_used) = (place, false);
        slot.data.copy_from_slice(data);
        self.places.insert(place, at);
    }

    /// The next slot that was not used since the hand passed it.
    fn unused(&mut self) -> Option<usize> {
        // In the second round every slot is unused.
        for _ in 0..2 * self.slots.len() {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[at];
            if !std::mem::take(&mut slot.was_used) {
                return Some(at);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(byte: u8) -> [u8; BLOCK] {
        [byte; BLOCK]
    }

    #[test]
    fn a_block_is_as_it_was_put_last() {
        let mut cache = BlockCache::new(2);
        assert_eq!(cache.get((0, 7)), None);
        cache.put((0, 7), &block(1));
        cache.put((1, 7), &block(2));
        cache.put((0, 7), &block(3));
        assert_eq!(cache.get((0, 7)), Some(&block(3)));
        assert_eq!(cache.get((1, 7)), Some(&block(2)));
    }

    #[test]
    fn a_block_that_is_used_stays() {
        let mut cache = BlockCache::new(3);
        for number in 0..100 {
            cache.put((0, number), &block(1));
            cache.put((9, 9), &block(9));
            assert_eq!(cache.get((9, 9)), Some(&block(9)));
        }
        assert!(cache.has((0, 99)));
        assert_eq!(cache.places.len(), 3);
        assert!(cache.slots.iter().enumerate().all(|(at, slot)| cache.places.get(&slot.place) == Some(&at)));
    }

    #[test]
    fn a_cache_without_room_keeps_nothing() {
        let mut cache = BlockCache::new(0);
        cache.put((0, 1), &block(1));
        assert!(!cache.has((0, 1)));
    }
}
