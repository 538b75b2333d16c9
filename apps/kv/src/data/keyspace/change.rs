//! A collection that is being changed.
//!
//! 1. A small collection shares an allocation with its key ([`Record`](super::record::Record)).
//!    While it is changed, this allocation belongs to the collection in [`Change`], and the entry
//!    has none: it can reallocate, and it can become a big collection.
//! 2. When the [`Change`] is dropped, the entry gets the allocation back, or holds the big
//!    collection from then on. Until then nothing else can see the entry, because it is borrowed.
//! 3. Then the bytes of the entry are counted again, too. A collection that has become empty is
//!    only noted: its entry is removed when the change is reported
//!    ([`Data::changed`](super::data::Data::changed)).

use std::ops::{Deref, DerefMut};

use super::entry::{Attributes, Entry, Weight};
use crate::data::value::Collection;

/// A collection that is being changed; see the module documentation.
pub(crate) struct Change<'a, T: Collection> {
    entry: &'a mut Entry,
    key: &'a [u8],
    attributes: Attributes,
    collection: T,
    before: Weight,
    counted: Counted<'a>,
}

/// What a change of an entry is counted in.
pub(super) struct Counted<'a> {
    /// The bytes of the entries of the database.
    pub database: &'a mut Weight,
    /// The bytes of the entries of the partition.
    pub partition: &'a mut Weight,
    /// Whether the last change has left an empty collection.
    pub left_empty: &'a mut bool,
}

impl<'a, T: Collection> Change<'a, T> {
    /// The collection of an entry with this key; `None` if it has another type.
    #[inline]
    pub(super) fn new(entry: &'a mut Entry, key: &'a [u8], counted: Counted<'a>) -> Option<Self> {
        let before = entry.weight();
        let (collection, attributes) = entry.take_collection()?;
        Some(Self { entry, key, attributes, collection, before, counted })
    }
}

impl<T: Collection> Deref for Change<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.collection
    }
}

impl<T: Collection> DerefMut for Change<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.collection
    }
}

impl<T: Collection> Drop for Change<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let collection = std::mem::take(&mut self.collection);
        self.entry.put_collection(self.key, collection, self.attributes);
        let after = self.entry.weight();
        self.counted.database.exchange(self.before, after);
        self.counted.partition.exchange(self.before, after);
        // A change that empties a collection makes it smaller.
        *self.counted.left_empty = after.dumped < self.before.dumped && self.entry.value().is_empty();
    }
}
