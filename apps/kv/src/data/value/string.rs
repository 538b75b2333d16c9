//! A string: bytes, or an integer when the bytes are exactly how that integer is written.

use super::limits::EMBEDDED_LIMIT;
use super::size::allocation;
use crate::foundation::text::number::{self, Digits};

/// A string value.
#[derive(Clone, Debug)]
pub(crate) enum StringValue {
    /// The decimal digits of an integer.
    Integer(i64),
    /// Bytes as they were set.
    Fixed(Box<[u8]>),
    /// Bytes that were changed in place at least once (APPEND, SETRANGE, SETBIT): called raw at any
    /// length.
    Grown(Vec<u8>),
}

impl StringValue {
    /// A value as SET makes it: an integer if the bytes are one.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        match number::parse_integer(bytes) {
            Some(integer) => Self::Integer(integer),
            None => Self::Fixed(bytes.into()),
        }
    }

    /// A value that is kept as bytes even if they are digits (what INCRBYFLOAT makes).
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self::Fixed(bytes.into())
    }

    /// Writes `bytes` over those of a value that SET has made, if they have the same length and are
    /// no integer either: what [`StringValue::new`] makes of them then takes no allocation. Whether
    /// it could.
    #[inline]
    pub(crate) fn overwrite(&mut self, bytes: &[u8]) -> bool {
        match self {
            Self::Fixed(old) if old.len() == bytes.len() && number::parse_integer(bytes).is_none() => {
                old.copy_from_slice(bytes);
                true
            }
            _ => false,
        }
    }

    /// Reads the first and the last byte, so that the processor fetches their memory.
    #[inline]
    pub(crate) fn prefetch(&self) -> u8 {
        match self {
            Self::Fixed(bytes) => bytes.first().unwrap_or(&0) ^ bytes.last().unwrap_or(&0),
            _ => 0,
        }
    }

    /// The bytes; an integer's are written to `digits`.
    pub(crate) fn bytes<'a>(&'a self, digits: &'a mut Digits) -> &'a [u8] {
        match self {
            Self::Integer(integer) => digits.write(*integer),
            Self::Fixed(bytes) => bytes,
            Self::Grown(bytes) => bytes,
        }
    }

    /// A copy of the bytes.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.bytes(&mut Digits::default()).to_vec()
    }

    /// The bytes to be changed in place; from now on the encoding is raw.
    pub(crate) fn grow(&mut self) -> &mut Vec<u8> {
        if !matches!(self, Self::Grown(_)) {
            let bytes = match std::mem::replace(self, Self::Integer(0)) {
                Self::Fixed(bytes) => bytes.into_vec(),
                other => other.to_vec(),
            };
            *self = Self::Grown(bytes);
        }
        match self {
            Self::Grown(bytes) => bytes,
            // Made so just above.
            _ => unreachable!("a grown string"),
        }
    }

    /// The integer that the bytes are, if they are one exactly.
    pub(crate) fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(integer) => Some(*integer),
            Self::Fixed(bytes) => number::parse_integer(bytes),
            Self::Grown(bytes) => number::parse_integer(bytes),
        }
    }

    /// Bytes in the string.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Integer(integer) => Digits::default().write(*integer).len(),
            Self::Fixed(bytes) => bytes.len(),
            Self::Grown(bytes) => bytes.len(),
        }
    }

    /// What OBJECT ENCODING says.
    pub(crate) fn encoding(&self) -> &'static str {
        match self {
            Self::Integer(_) => "int",
            Self::Fixed(bytes) if bytes.len() <= EMBEDDED_LIMIT => "embstr",
            _ => "raw",
        }
    }

    /// Estimated bytes on the heap.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Integer(_) => 0,
            Self::Fixed(bytes) => allocation(bytes.len()),
            Self::Grown(bytes) => allocation(bytes.capacity()),
        }
    }
}
