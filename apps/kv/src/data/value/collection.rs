//! The type of a packed collection, for an owner that keeps its bytes in an allocation with others.

use super::packed::{Packed, PackedRef};
use super::{Hash, HashRef, List, ListRef, Set, SetRef, SortedSet, SortedSetRef, Value, ValueRef};

/// The type of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// See [`Value::List`].
    List,
    /// See [`Value::Set`].
    Set,
    /// See [`Value::Hash`].
    Hash,
    /// See [`Value::SortedSet`].
    SortedSet,
}

impl<'a> ValueRef<'a> {
    /// The collection of this type whose bytes came from [`Value::into_packed`].
    #[inline]
    pub(crate) fn of_packed(kind: Kind, bytes: &'a [u8]) -> Self {
        let packed = PackedRef::of(bytes);
        match kind {
            Kind::List => Self::List(ListRef::of_packed(packed)),
            Kind::Set => Self::Set(SetRef::of_packed(packed)),
            Kind::Hash => Self::Hash(HashRef::of_packed(packed)),
            Kind::SortedSet => Self::SortedSet(SortedSetRef::of_packed(packed)),
        }
    }
}

impl Value {
    /// The collection of this type whose bytes came from [`Value::into_packed`]. They are in
    /// `allocated` behind `front` bytes of an owner, which a change keeps.
    pub(crate) fn of_packed(kind: Kind, allocated: Box<[u8]>, front: usize) -> Self {
        let packed = Packed::behind(front, allocated);
        match kind {
            Kind::List => Self::List(List::of_packed(packed)),
            Kind::Set => Self::Set(Set::of_packed(packed)),
            Kind::Hash => Self::Hash(Hash::of_packed(packed)),
            Kind::SortedSet => Self::SortedSet(SortedSet::of_packed(packed)),
        }
    }

    /// The type and the allocation of a packed collection, and how many bytes of its owner are in
    /// front of it: what [`Value::of_packed`] was given, or none after a conversion.
    ///
    /// # Errors
    /// It is another value.
    pub(crate) fn into_packed(self) -> Result<(Kind, Box<[u8]>, usize), Self> {
        let (kind, packed) = match self {
            Self::String(_) => return Err(self),
            Self::List(list) => (Kind::List, list.into_packed().map_err(Self::List)?),
            Self::Set(set) => (Kind::Set, set.into_packed().map_err(Self::Set)?),
            Self::Hash(hash) => (Kind::Hash, hash.into_packed().map_err(Self::Hash)?),
            Self::SortedSet(sorted_set) => {
                (Kind::SortedSet, sorted_set.into_packed().map_err(Self::SortedSet)?)
            }
        };
        let (allocated, front) = packed.into_allocated();
        Ok((kind, allocated, front))
    }
}
