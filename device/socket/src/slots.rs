//! Connections by index, with a generation that makes a stale [`ConnectionId`] harmless.

use crate::ConnectionId;

/// A growing table of values with stable indices.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    /// Stores `value`; `None` when there are as many as an index can name.
    pub(crate) fn insert(&mut self, value: T) -> Option<ConnectionId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.entries.len()).ok()?;
                self.entries.push(Entry { generation: 0, value: None });
                index
            }
        };
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        Some(ConnectionId { index, generation: entry.generation })
    }

    /// The value of an index, whatever its generation: for completions, which keep their slot
    /// occupied.
    pub(crate) fn at(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.value.as_mut()
    }

    /// The value of an id, if it is not stale.
    pub(crate) fn get(&mut self, id: ConnectionId) -> Option<&mut T> {
        let entry = self.entries.get_mut(id.index as usize)?;
        if entry.generation == id.generation { entry.value.as_mut() } else { None }
    }

    /// Takes the value out and makes every id of it stale.
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index);
        Some(value)
    }

    /// The id that index `index` has now, if it is in use.
    pub(crate) fn id(&self, index: u32) -> Option<ConnectionId> {
        let entry = self.entries.get(index as usize)?;
        entry.value.as_ref().map(|_| ConnectionId { index, generation: entry.generation })
    }

    /// Indices in use.
    pub(crate) fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.entries).filter(|(_, entry)| entry.value.is_some()).map(|(index, _)| index)
    }
}

impl ConnectionId {
    /// The place in the table.
    pub(crate) const fn index(self) -> u32 {
        self.index
    }

    /// A word of 62 bits that names this id: the kernel gives it back with an event.
    pub(crate) const fn word(self) -> u64 {
        ((self.generation & 0x3fff_ffff) as u64) << 32 | self.index as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_id_finds_nothing() {
        let mut slots = Slots::new();
        let first = slots.insert('a').unwrap();
        assert_eq!(slots.remove(first.index()), Some('a'));
        let second = slots.insert('b').unwrap();
        assert_eq!(second.index(), first.index());
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.get(second), Some(&mut 'b'));
        assert_eq!(slots.indices().collect::<Vec<_>>(), [second.index()]);
    }
}
