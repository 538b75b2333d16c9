//! A generational slab: a key is an index and a generation, so an old key finds nothing.

/// Values by key.
#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Adds a value, and returns its key, which is never zero.
    pub(super) fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        // A generation is never zero, also after 2^32 of them.
        entry.0 = entry.0.wrapping_add(1).max(1);
        entry.1 = Some(value);
        u64::from(entry.0) << 32 | u64::from(index)
    }

    #[inline]
    fn split(key: u64) -> (usize, u32) {
        ((key & 0xffff_ffff) as usize, (key >> 32) as u32)
    }

    /// Returns the value of `key`, if it is still there.
    #[inline]
    pub(super) fn get(&self, key: u64) -> Option<&T> {
        let (index, generation) = Self::split(key);
        self.entries.get(index).filter(|entry| entry.0 == generation)?.1.as_ref()
    }

    /// Returns the value of `key` for changes, if it is still there.
    #[inline]
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let (index, generation) = Self::split(key);
        self.entries.get_mut(index).filter(|entry| entry.0 == generation)?.1.as_mut()
    }

    /// Removes a value.
    pub(super) fn remove(&mut self, key: u64) -> Option<T> {
        let (index, generation) = Self::split(key);
        let value = self.entries.get_mut(index).filter(|entry| entry.0 == generation)?.1.take()?;
        self.free.push(index as u32);
        Some(value)
    }

    /// Returns the number of values.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Iterates over all values with their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, (generation, value))| {
            Some((u64::from(*generation) << 32 | index as u64, value.as_ref()?))
        })
    }

    /// Returns the keys of all values.
    pub(super) fn keys(&self) -> Vec<u64> {
        self.iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_removed_value_finds_nothing() {
        let mut slots = Slab::default();
        let first = slots.insert(1);
        assert_eq!(slots.remove(first), Some(1));
        let second = slots.insert(2);
        assert_eq!((slots.get(first), slots.get(second)), (None, Some(&2)));
        assert_eq!(slots.remove(first), None);
        assert_eq!((slots.len(), slots.keys()), (1, vec![second]));
    }
}
