//! A generational slab: values with stable indices and keys that go stale.
//!
//! 1. A [`Key`] names an index and the generation of the entry there. Each removal begins another
//!    generation, so a key of a removed value finds nothing, whatever is at its index now.
//! 2. Generations are 32 bits and never zero. A key that was kept while its index was reused 2^32
//!    times is taken for the current one.
//! 3. Freed indices are used again, the last freed first: memory stays at the largest number of
//!    values that were held at once.
//!
//! Insertion, look-up and removal take constant time (insertion amortised: the table doubles).
//! Iteration takes time in proportion to the largest number of values that were held at once.

use std::num::NonZeroU32;

/// Names a value of a [`Slab`], until the value is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    generation: NonZeroU32,
    index: u32,
}

impl Key {
    /// The index of the value: below the largest number of values that were held at once.
    #[inline]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// The generation of the entry; never zero.
    #[inline]
    pub const fn generation(self) -> u32 {
        self.generation.get()
    }

    /// The key as a word: the generation in the upper half, which is not zero, and the index in the
    /// lower.
    #[inline]
    pub const fn to_word(self) -> u64 {
        (self.generation.get() as u64) << 32 | self.index as u64
    }

    /// The key that [`Key::to_word`] writes as `word`; `None` where the generation is zero. A word
    /// from elsewhere is safe: it finds the value of that very index and generation, or nothing.
    #[inline]
    pub const fn from_word(word: u64) -> Option<Self> {
        match NonZeroU32::new((word >> 32) as u32) {
            Some(generation) => Some(Self { generation, index: word as u32 }),
            None => None,
        }
    }
}

/// Values by [`Key`] and by index.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    entries: Vec<Entry<T>>,
    /// Indices of vacant entries.
    vacant: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    generation: NonZeroU32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slab<T> {
    /// A slab of no values; allocates nothing.
    pub const fn new() -> Self {
        Self { entries: Vec::new(), vacant: Vec::new() }
    }

    /// How many values there are.
    #[inline]
    pub const fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stores `value` and returns its key.
    ///
    /// # Panics
    /// If 2^32 values are held. That many take at least 32 GiB.
    pub fn insert(&mut self, value: T) -> Key {
        let index = self.vacant.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.entries.len()).expect("a slab holds at most 2^32 values");
            self.entries.push(Entry { generation: NonZeroU32::MIN, value: None });
            index
        });
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        Key { generation: entry.generation, index }
    }

    /// The value of `key`; `None` if it was removed.
    #[inline]
    pub fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.index() as usize)?;
        if entry.generation == key.generation { entry.value.as_ref() } else { None }
    }

    /// The value of `key`, to be changed; `None` if it was removed.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index() as usize)?;
        if entry.generation == key.generation { entry.value.as_mut() } else { None }
    }

    /// Removes the value of `key` and makes the key stale; `None` if it was already.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get(key.index() as usize)?;
        if entry.generation == key.generation { self.remove_at(key.index()) } else { None }
    }

    /// The value at `index`, of whichever generation. For an owner of indices that it knows to be
    /// in use, and only for it.
    #[inline]
    pub fn at(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.value.as_ref()
    }

    /// As [`Slab::at`], to be changed.
    #[inline]
    pub fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.value.as_mut()
    }

    /// Removes the value at `index`, of whichever generation, and makes its key stale.
    pub fn remove_at(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        self.vacant.push(index);
        Some(value)
    }

    /// The key of the value at `index`; `None` if there is no value.
    #[inline]
    pub fn key_at(&self, index: u32) -> Option<Key> {
        let entry = self.entries.get(index as usize)?;
        entry.value.as_ref().map(|_| Key { generation: entry.generation, index })
    }

    /// All values with their keys, in order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        (0..).zip(&self.entries).filter_map(|(index, entry)| {
            let key = Key { generation: entry.generation, index };
            Some((key, entry.value.as_ref()?))
        })
    }

    /// All keys, in order of their indices.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.iter().map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests;
