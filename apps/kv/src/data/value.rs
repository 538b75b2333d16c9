//! The value of a key: one of five types, each in the representation that suits its size.
//!
//! 1. A small collection is one allocation of packed entries ([`packed`]), in order of insertion
//!    (hashes, lists, sets) or sorted (sets of integers, sorted sets). Past Redis' thresholds
//!    ([`Rules`]) it turns into an [`Index`](crate::data::index::Index) or, a list, into a chain of
//!    packed nodes, and never back. OBJECT ENCODING shows the names that Redis 7.0 shows.
//!    The owner of a packed collection may keep bytes of its own in the same allocation.
//! 2. Every type keeps the bytes that the allocator has given it, so that asking for them costs
//!    nothing.
//! 3. No type knows keys, expiry or clients.
//!
//! | type | small | big | bytes of an element of 8 bytes |
//! | --- | --- | --- | --- |
//! | list | [`Packed`](packed::Packed) | packed nodes of 8 KiB | 10; 10 |
//! | set | integers of 2 to 8 bytes, or packed | index of 24-byte elements | 2 to 10; 33 |
//! | hash (name and value of 8) | packed | index of 24-byte fields | 20; 33 |
//! | sorted set | packed | index and counted tree | 12 to 20; 100 |

mod collection;
mod counted_tree;
mod form;
mod hash;
mod limits;
mod list;
mod packed;
mod rules;
mod set;
mod short;
mod size;
mod sorted_set;
mod string;
mod view;

pub(crate) use collection::{Collection, Kind};
pub(crate) use counted_tree::compare;
pub(crate) use hash::{Field, Hash, HashRef};
pub(crate) use list::{List, ListRef};
pub(crate) use packed::Text;
pub(crate) use rules::Rules;
pub(crate) use set::{Set, SetRef};
pub(crate) use short::ShortBytes;
pub(crate) use size::{EFFECT_HEAD, argument};
pub(crate) use sorted_set::{SortedSet, SortedSetRef};
pub(crate) use string::{StringRef, StringValue};
pub(crate) use view::{Progress, ValueRef};

/// The value of a key.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Bytes.
    String(StringValue),
    /// A sequence.
    List(List),
    /// Distinct members.
    Set(Set),
    /// Named fields.
    Hash(Hash),
    /// Distinct members with scores.
    SortedSet(SortedSet),
}

impl Value {
    /// The value, to be read.
    #[inline]
    pub(crate) fn view(&self) -> ValueRef<'_> {
        match self {
            Self::String(string) => ValueRef::String(string.view()),
            Self::List(list) => ValueRef::List(list.view()),
            Self::Set(set) => ValueRef::Set(set.view()),
            Self::Hash(hash) => ValueRef::Hash(hash.view()),
            Self::SortedSet(sorted_set) => ValueRef::SortedSet(sorted_set.view()),
        }
    }

    /// Drops about `budget` elements and returns whether nothing is left; for freeing a huge value
    /// in slices after it was removed.
    pub(crate) fn release(&mut self, budget: usize) -> bool {
        match self {
            Self::String(_) => true,
            Self::List(list) => list.release(budget),
            Self::Set(set) => set.release(budget),
            Self::Hash(hash) => hash.release(budget),
            Self::SortedSet(sorted_set) => sorted_set.release(budget),
        }
    }
}

impl ValueRef<'_> {
    /// A copy.
    pub(crate) fn to_value(self) -> Value {
        match self {
            Self::String(string) => Value::String(string.to_value()),
            Self::List(list) => Value::List(list.to_list()),
            Self::Set(set) => Value::Set(set.to_set()),
            Self::Hash(hash) => Value::Hash(hash.to_hash()),
            Self::SortedSet(sorted_set) => Value::SortedSet(sorted_set.to_sorted_set()),
        }
    }
}

#[cfg(test)]
mod tests;
