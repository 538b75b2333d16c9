//! A table whose keys go stale: a key names a place and a generation, so that who holds an old one
//! finds nothing.

/// Values by key.
#[derive(Debug)]
pub struct Slots<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Puts a value in; its key is never zero.
    pub fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        // Zero is no generation, also after 2^32 of them.
        place.0 = place.0.wrapping_add(1).max(1);
        place.1 = Some(value);
        u64::from(place.0) << 32 | u64::from(index)
    }

    #[inline]
    fn place(key: u64) -> (usize, u32) {
        ((key & 0xffff_ffff) as usize, (key >> 32) as u32)
    }

    /// The value of `key`, if it is still there.
    #[inline]
    pub fn get(&self, key: u64) -> Option<&T> {
        let (index, generation) = Self::place(key);
        self.places.get(index).filter(|place| place.0 == generation)?.1.as_ref()
    }

    /// The same, to be changed.
    #[inline]
    pub fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let (index, generation) = Self::place(key);
        self.places.get_mut(index).filter(|place| place.0 == generation)?.1.as_mut()
    }

    /// Takes a value out.
    pub fn remove(&mut self, key: u64) -> Option<T> {
        let (index, generation) = Self::place(key);
        let value = self.places.get_mut(index).filter(|place| place.0 == generation)?.1.take()?;
        self.free.push(index as u32);
        Some(value)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them with their keys.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.places.iter().enumerate().filter_map(|(index, (generation, value))| {
            Some((u64::from(*generation) << 32 | index as u64, value.as_ref()?))
        })
    }

    /// Their keys.
    pub fn keys(&self) -> Vec<u64> {
        self.iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_a_value_that_is_gone_names_nothing() {
        let mut slots = Slots::default();
        let first = slots.insert(1);
        assert_eq!(slots.remove(first), Some(1));
        let second = slots.insert(2);
        assert_eq!((slots.get(first), slots.get(second)), (None, Some(&2)));
        assert_eq!(slots.remove(first), None);
        assert_eq!((slots.len(), slots.keys()), (1, vec![second]));
    }
}
