//! A collection that is being changed.
//!
//! 1. A small collection shares an allocation with its key ([`Record`](super::record::Record)).
//!    While it is changed, this allocation belongs to the collection in [`Change`], and the entry
//!    has none: it can reallocate, and it can become a big collection.
//! 2. When the [`Change`] is dropped, the entry gets the allocation back, or holds the big
//!    collection from then on. Until then nothing else can see the entry, because it is borrowed.

use std::ops::{Deref, DerefMut};

use super::entry::{Attributes, Entry};
use crate::data::value::Collection;

/// A collection that is being changed; see the module documentation.
pub(crate) struct Change<'a, T: Collection> {
    entry: &'a mut Entry,
    key: &'a [u8],
    attributes: Attributes,
    collection: T,
}

impl<'a, T: Collection> Change<'a, T> {
    /// The collection of an entry with this key; `None` if it has another type.
    #[inline]
    pub(super) fn new(entry: &'a mut Entry, key: &'a [u8]) -> Option<Self> {
        let (collection, attributes) = entry.take_collection()?;
        Some(Self { entry, key, attributes, collection })
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
    }
}
