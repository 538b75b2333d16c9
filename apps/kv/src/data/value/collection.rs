//! What the four types of collections have in common, for an owner that keeps the bytes of a packed
//! one in an allocation with others.

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

/// One of the four types of collections.
pub(crate) trait Collection: Default {
    /// The collection, to be read.
    type View<'a>: Copy;
    /// Which type it is.
    const KIND: Kind;
    /// An empty one, as a command that creates a key makes it.
    fn empty() -> Self;
    /// The collection in a value that is read; `None` if it has another type.
    fn of(value: ValueRef<'_>) -> Option<Self::View<'_>>;
    /// The same, owned.
    fn of_value(value: Value) -> Option<Self>;
    /// As value.
    fn into_value(self) -> Value;
    /// The collection whose bytes are in `allocated` behind `front` bytes of an owner, which a
    /// change keeps.
    fn of_allocated(allocated: Box<[u8]>, front: usize) -> Self;
    /// The allocation of a packed collection, with the bytes of its owner.
    ///
    /// # Errors
    /// It is not packed.
    fn into_allocated(self) -> Result<Box<[u8]>, Value>;
}

macro_rules! collection {
    ($type:ident, $view:ident) => {
        impl Collection for $type {
            type View<'a> = $view<'a>;
            const KIND: Kind = Kind::$type;

            fn empty() -> Self {
                Self::new()
            }

            #[inline]
            fn of(value: ValueRef<'_>) -> Option<$view<'_>> {
                if let ValueRef::$type(found) = value { Some(found) } else { None }
            }

            #[inline]
            fn of_value(value: Value) -> Option<Self> {
                if let Value::$type(found) = value { Some(found) } else { None }
            }

            #[inline]
            fn into_value(self) -> Value {
                Value::$type(self)
            }

            #[inline]
            fn of_allocated(allocated: Box<[u8]>, front: usize) -> Self {
                Self::of_packed(Packed::behind(front, allocated))
            }

            #[inline]
            fn into_allocated(self) -> Result<Box<[u8]>, Value> {
                self.into_packed().map(|packed| packed.into_allocated().0).map_err(Value::$type)
            }
        }
    };
}

collection!(List, ListRef);
collection!(Set, SetRef);
collection!(Hash, HashRef);
collection!(SortedSet, SortedSetRef);

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

    /// The same value without bytes of an owner.
    pub(crate) fn apart(self) -> Self {
        match self.into_packed() {
            Ok((kind, allocated, front)) => Self::of_packed(kind, allocated[front..].into(), 0),
            Err(value) => value,
        }
    }
}
