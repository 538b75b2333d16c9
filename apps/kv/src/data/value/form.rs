//! What the four types of collections are made of: packed while they are small, and another form
//! from then on.

use super::packed::{Packed, PackedRef};
use crate::foundation::allocation::allocation;

/// A collection that is [`Packed`] while it is small, and an `L` from then on.
#[derive(Clone, Debug)]
pub(super) enum Form<L> {
    /// Small.
    Packed(Packed),
    /// Not small.
    Large(Box<L>),
}

/// A [`Form`] that is read.
#[derive(Debug)]
pub(super) enum View<'a, L> {
    /// Small.
    Packed(PackedRef<'a>),
    /// Not small.
    Large(&'a L),
}

/// The form of a collection that is not small.
pub(super) trait Large: Clone {
    /// Elements.
    fn len(&self) -> usize;
    /// Bytes on the heap, without this value.
    fn memory(&self) -> usize;
    /// Bytes of the elements in effects, at most.
    fn content(&self) -> usize;
    /// Drops about `budget` elements; whether nothing is left.
    fn release(&mut self, budget: usize) -> bool;
}

impl<L> Default for Form<L> {
    #[inline]
    fn default() -> Self {
        Self::Packed(Packed::default())
    }
}

impl<L: Large> Form<L> {
    /// The same, to be read.
    #[inline]
    pub(super) fn view(&self) -> View<'_, L> {
        match self {
            Self::Packed(packed) => View::Packed(packed.view()),
            Self::Large(large) => View::Large(large),
        }
    }

    /// The packed form.
    ///
    /// # Errors
    /// It is not packed.
    #[inline]
    pub(super) fn into_packed(self) -> Result<Packed, Self> {
        match self {
            Self::Packed(packed) => Ok(packed),
            Self::Large(_) => Err(self),
        }
    }

    /// Drops about `budget` elements of a large collection; whether the rest may be dropped at
    /// once.
    pub(super) fn release(&mut self, budget: usize) -> bool {
        match self {
            Self::Packed(_) => true,
            Self::Large(large) => large.release(budget),
        }
    }
}

impl<L> Clone for View<'_, L> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for View<'_, L> {}

impl<L: Large> View<'_, L> {
    /// A copy.
    pub(super) fn to_form(self) -> Form<L> {
        match self {
            Self::Packed(packed) => Form::Packed(packed.to_packed()),
            Self::Large(large) => Form::Large(Box::new(large.clone())),
        }
    }

    /// Elements.
    #[inline]
    pub(super) fn len(self) -> usize {
        match self {
            Self::Packed(packed) => packed.len(),
            Self::Large(large) => large.len(),
        }
    }

    /// Bytes on the heap.
    #[inline]
    pub(super) fn memory(self) -> usize {
        match self {
            Self::Packed(packed) => packed.memory(),
            Self::Large(large) => allocation(size_of::<L>()) + large.memory(),
        }
    }

    /// Bytes of the elements in effects, at most.
    #[inline]
    pub(super) fn content(self) -> usize {
        match self {
            Self::Packed(packed) => packed.content(),
            Self::Large(large) => large.content(),
        }
    }
}
