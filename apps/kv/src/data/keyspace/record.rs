//! A key and its value in one allocation: a string that was set as a whole, or a packed collection.
//!
//! ```text
//!  access   flags   key length   expiry        key   value
//!  4        1       3            8 or none           to the end
//! ```
//!
//! 1. The value of a string is its bytes, or, with [`INTEGER`], the eight bytes of an integer. That
//!    of a collection is that of [`Value::into_packed`]; the flags name its [`Kind`].
//! 2. The expiry is there with [`EXPIRES`] only.
//! 3. The allocation is exactly as long as its bytes: a key of 16 bytes and a value of 64 take 88.
//!    Another length of the value, and an expiry that is set or removed, take a new allocation.
//! 4. A collection is changed as an owned one that keeps the bytes before it in its allocation; see
//!    [`Record::take_collection`] and [`Record::put_bytes`].
//! 5. Keys longer than [`LONGEST_KEY`], or [`LONGEST_COLLECTION_KEY`] with a collection, have no
//!    record. Nor have strings that are changed in place (APPEND, SETRANGE).
//!
//! The bytes come from this module alone: they are never read from a client, a disk or a peer.

use super::clock::NEVER;
use crate::data::value::{Kind, StringRef, Value, ValueRef};
use crate::foundation::allocation::allocation;
use crate::foundation::text::number;

/// The value is an integer.
const INTEGER: u8 = 1;
/// There is an expiry.
const EXPIRES: u8 = 2;
/// Bytes before the expiry or the key.
const HEADER: usize = 8;
/// Longest key of a record: its length has three bytes.
const LONGEST_KEY: usize = (1 << 24) - 1;

/// Longest key in one allocation with a collection: a change of the collection may copy it.
const LONGEST_COLLECTION_KEY: usize = 1 << 10;
/// Where the type of a collection is in the flags; 0 is a string.
const KIND_SHIFT: u8 = 2;

#[inline]
fn kind_flags(kind: Kind) -> u8 {
    let number = match kind {
        Kind::List => 1,
        Kind::Set => 2,
        Kind::Hash => 3,
        Kind::SortedSet => 4,
    };
    number << KIND_SHIFT
}

/// A key and its value.
pub(super) struct Record(Box<[u8]>);

impl Record {
    /// The record of a key without an expiry, if there may be one.
    #[inline]
    pub(super) fn new(key: &[u8], value: StringRef<'_>, access: u32) -> Option<Self> {
        match value {
            _ if key.len() > LONGEST_KEY => None,
            StringRef::Integer(integer) => {
                Some(Self::build([key, &integer.to_le_bytes()], INTEGER, access, NEVER))
            }
            StringRef::Fixed(bytes) => Some(Self::build([key, bytes], 0, access, NEVER)),
            StringRef::Grown(..) => None,
        }
    }

    /// The record of a key and a packed collection.
    ///
    /// # Errors
    /// There is no record of such a value, or of so long a key.
    pub(super) fn of_collection(
        key: &[u8],
        value: Value,
        access: u32,
        expire_at: u64,
    ) -> Result<Self, Value> {
        if key.len() > LONGEST_COLLECTION_KEY {
            return Err(value);
        }
        let (kind, allocated, front) = value.into_packed()?;
        Ok(Self::build([key, &allocated[front..]], kind_flags(kind), access, expire_at))
    }

    /// The allocation and how many bytes of it come before the collection, if it is one of this
    /// type. Nothing else may be called until [`Record::put_bytes`].
    #[inline]
    pub(super) fn take_collection(&mut self, kind: Kind) -> Option<(Box<[u8]>, usize)> {
        if self.word() as u8 & !EXPIRES != kind_flags(kind) {
            return None;
        }
        let (_, front) = self.key_range();
        Some((std::mem::take(&mut self.0), front))
    }

    /// Puts the allocation back. Of its bytes only those behind the key have changed.
    #[inline]
    pub(super) fn put_bytes(&mut self, bytes: Box<[u8]>) {
        self.0 = bytes;
    }

    fn build([key, value]: [&[u8]; 2], flags: u8, access: u32, expire_at: u64) -> Self {
        let expiry = if expire_at == NEVER { 0 } else { 8 };
        let mut bytes = Vec::with_capacity(HEADER + expiry + key.len() + value.len());
        bytes.extend_from_slice(&access.to_le_bytes());
        let flags = if expiry > 0 { flags | EXPIRES } else { flags };
        bytes.extend_from_slice(&((key.len() as u32) << 8 | u32::from(flags)).to_le_bytes());
        bytes.extend_from_slice(&expire_at.to_le_bytes()[..expiry]);
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        Self(bytes.into_boxed_slice())
    }

    /// Flags and length of the key.
    #[inline]
    fn word(&self) -> u32 {
        self.0.get(4..HEADER).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word))
    }

    /// Where the key starts, and where it ends.
    #[inline]
    fn key_range(&self) -> (usize, usize) {
        let word = self.word();
        let start = if word as u8 & EXPIRES == 0 { HEADER } else { HEADER + 8 };
        (start, start + (word >> 8) as usize)
    }

    /// The key.
    #[inline]
    pub(super) fn key(&self) -> &[u8] {
        let (start, end) = self.key_range();
        &self.0[start..end]
    }

    /// The type of the collection; `None` for a string.
    #[inline]
    pub(super) fn kind(&self) -> Option<Kind> {
        kind_of(self.word() as u8)
    }

    /// The value.
    #[inline]
    pub(super) fn value(&self) -> ValueRef<'_> {
        let value = &self.0[self.key_range().1..];
        match self.word() as u8 & !EXPIRES {
            0 => ValueRef::String(StringRef::Fixed(value)),
            flags => other_value(flags, value),
        }
    }

    /// The value. A collection takes the allocation with it.
    pub(super) fn into_value(self) -> Value {
        match self.kind() {
            None => Value::String(self.string().to_value()),
            Some(kind) => {
                let (_, front) = self.key_range();
                Value::of_packed(kind, self.0, front)
            }
        }
    }

    /// The string that a record without a [`Record::kind`] has.
    #[inline]
    pub(super) fn string(&self) -> StringRef<'_> {
        let value = &self.0[self.key_range().1..];
        if self.word() as u8 & INTEGER == 0 {
            return StringRef::Fixed(value);
        }
        StringRef::Integer(integer(value))
    }

    /// Writes `bytes` over those of the string, if they have the same length, both or neither are
    /// integers, and there is no expiry: SET then takes no allocation, and the entry weighs what it
    /// did. Whether it could.
    #[inline]
    pub(super) fn overwrite(&mut self, bytes: &[u8]) -> bool {
        let flags = self.word() as u8;
        if flags & !INTEGER != 0 {
            return false;
        }
        let (_, end) = self.key_range();
        let is_integer = flags == INTEGER;
        let length = if is_integer { self.string().len() } else { self.0.len() - end };
        if length != bytes.len() {
            return false;
        }
        match number::parse_integer(bytes) {
            Some(integer) if is_integer => self.0[end..].copy_from_slice(&integer.to_le_bytes()),
            None if !is_integer => self.0[end..].copy_from_slice(bytes),
            _ => return false,
        }
        true
    }

    /// Replaces an integer by another one; false if the string is no integer.
    pub(super) fn overwrite_integer(&mut self, integer: i64) -> bool {
        let is_integer = self.word() as u8 & INTEGER != 0;
        if is_integer {
            let (_, end) = self.key_range();
            self.0[end..].copy_from_slice(&integer.to_le_bytes());
        }
        is_integer
    }

    /// See `Entry`.
    pub(super) fn access(&self) -> u32 {
        self.0.first_chunk().map_or(0, |access| u32::from_le_bytes(*access))
    }

    /// See `Entry`.
    #[inline]
    pub(super) fn set_access(&mut self, access: u32) {
        if let Some(place) = self.0.first_chunk_mut() {
            *place = access.to_le_bytes();
        }
    }

    /// The expiry, or [`NEVER`].
    #[inline]
    pub(super) fn expire_at(&self) -> u64 {
        if self.word() as u8 & EXPIRES == 0 {
            return NEVER;
        }
        self.0[HEADER..].first_chunk().map_or(NEVER, |expiry| u64::from_le_bytes(*expiry))
    }

    /// Sets the expiry, or with [`NEVER`] removes it.
    pub(super) fn set_expire_at(&mut self, expire_at: u64) {
        let had = self.expire_at() != NEVER;
        if had && expire_at != NEVER {
            self.0[HEADER..HEADER + 8].copy_from_slice(&expire_at.to_le_bytes());
        } else if had || expire_at != NEVER {
            let (start, end) = self.key_range();
            let parts = [&self.0[start..end], &self.0[end..]];
            *self = Self::build(parts, self.word() as u8 & !EXPIRES, self.access(), expire_at);
        }
    }

    /// Bytes on the heap.
    pub(super) fn memory(&self) -> usize {
        allocation(self.0.len())
    }

    /// Reads the first and the last byte, so that the processor fetches their memory.
    #[inline]
    pub(super) fn prefetch(&self) -> u8 {
        self.0.first().unwrap_or(&0) ^ self.0.last().unwrap_or(&0)
    }
}

#[inline]
fn kind_of(flags: u8) -> Option<Kind> {
    match flags >> KIND_SHIFT {
        0 => None,
        1 => Some(Kind::List),
        2 => Some(Kind::Set),
        3 => Some(Kind::Hash),
        _ => Some(Kind::SortedSet),
    }
}

fn integer(value: &[u8]) -> i64 {
    value.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

/// The value that is no string of bytes. It is not inlined, so that GET has little code.
#[inline(never)]
fn other_value(flags: u8, value: &[u8]) -> ValueRef<'_> {
    match kind_of(flags) {
        None => ValueRef::String(StringRef::Integer(integer(value))),
        Some(kind) => ValueRef::of_packed(kind, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foundation::text::number::Digits;

    fn text(record: &Record) -> Vec<u8> {
        record.string().bytes(&mut Digits::default()).to_vec()
    }

    #[test]
    fn a_record_keeps_key_string_expiry_and_access() {
        for key in [0usize, 1, 22, 300, 70_000] {
            let key = vec![b'k'; key];
            for value in [StringRef::Fixed(b""), StringRef::Fixed(&[b'v'; 64]), StringRef::Integer(-7)] {
                let mut record = Record::new(&key, value, 9).expect("a short key");
                let bytes = text(&record);
                for expire_at in [NEVER, 5, 6, NEVER, NEVER, 7] {
                    record.set_expire_at(expire_at);
                    record.set_access(record.access() + 1);
                    assert_eq!((record.key(), text(&record)), (&key[..], bytes.clone()));
                    assert_eq!(record.expire_at(), expire_at);
                    assert_eq!(
                        matches!(record.string(), StringRef::Integer(-7)),
                        matches!(value, StringRef::Integer(_))
                    );
                }
                assert_eq!(record.access(), 15);
            }
        }
        assert!(Record::new(b"k", StringRef::Grown(b"v", 1), 0).is_none());
        assert!(Record::new(&vec![b'k'; LONGEST_KEY + 1], StringRef::Integer(1), 0).is_none());
    }

    #[test]
    fn only_bytes_of_the_same_length_are_overwritten() {
        let mut record = Record::new(b"key", StringRef::Fixed(b"abc"), 0).expect("a short key");
        assert!(!record.overwrite(b"abcd") && !record.overwrite(b"123") && !record.overwrite_integer(1));
        assert!(record.overwrite(b"xyz"));
        assert_eq!(text(&record), b"xyz");
        let mut record = Record::new(b"key", StringRef::Integer(5), 0).expect("a short key");
        assert!(!record.overwrite(b"abcdefgh") && record.overwrite_integer(-1));
        assert_eq!(text(&record), b"-1");
        assert!(!record.overwrite(b"-123456789") && record.overwrite(b"42"));
        assert_eq!(text(&record), b"42");
        record.set_expire_at(9);
        assert!(!record.overwrite(b"5"));
        assert!(record.overwrite_integer(12));
        assert_eq!((text(&record), record.expire_at()), (b"12".to_vec(), 9));
    }

    #[test]
    fn a_key_of_16_and_a_value_of_64_bytes_take_96() {
        let record = Record::new(&[b'k'; 16], StringRef::Fixed(&[b'v'; 64]), 0).expect("a short key");
        assert_eq!(record.memory(), 96);
    }
}
