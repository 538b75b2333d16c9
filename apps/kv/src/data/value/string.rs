//! A string: bytes, or an integer when the bytes are exactly how that integer is written.

use super::limits::EMBEDDED_LIMIT;
use crate::foundation::allocation::allocation;
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

/// A string that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StringRef<'a> {
    /// See [`StringValue::Integer`].
    Integer(i64),
    /// See [`StringValue::Fixed`].
    Fixed(&'a [u8]),
    /// See [`StringValue::Grown`], with its capacity.
    Grown(&'a [u8], usize),
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

    /// The string, to be read.
    #[inline]
    pub(crate) fn view(&self) -> StringRef<'_> {
        match self {
            Self::Integer(integer) => StringRef::Integer(*integer),
            Self::Fixed(bytes) => StringRef::Fixed(bytes),
            Self::Grown(bytes) => StringRef::Grown(bytes, bytes.capacity()),
        }
    }

    /// The bytes to be changed in place; from now on the encoding is raw.
    pub(crate) fn grow(&mut self) -> &mut Vec<u8> {
        if !matches!(self, Self::Grown(_)) {
            let bytes = match std::mem::replace(self, Self::Integer(0)) {
                Self::Fixed(bytes) => bytes.into_vec(),
                other => other.view().to_vec(),
            };
            *self = Self::Grown(bytes);
        }
        match self {
            Self::Grown(bytes) => bytes,
            // Made so just above.
            _ => unreachable!("a grown string"),
        }
    }
}

impl<'a> StringRef<'a> {
    /// The string that SET makes: an integer if the bytes are one.
    #[inline]
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        number::parse_integer(bytes).map_or(Self::Fixed(bytes), Self::Integer)
    }

    /// The bytes; an integer's are written to `digits`.
    #[inline]
    pub(crate) fn bytes<'b>(self, digits: &'b mut Digits) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            Self::Integer(integer) => digits.write(integer),
            Self::Fixed(bytes) | Self::Grown(bytes, _) => bytes,
        }
    }

    /// A copy of the bytes.
    pub(crate) fn to_vec(self) -> Vec<u8> {
        self.bytes(&mut Digits::default()).to_vec()
    }

    /// A copy.
    pub(crate) fn to_value(self) -> StringValue {
        match self {
            Self::Integer(integer) => StringValue::Integer(integer),
            Self::Fixed(bytes) => StringValue::Fixed(bytes.into()),
            Self::Grown(bytes, _) => StringValue::Grown(bytes.to_vec()),
        }
    }

    /// The integer that the bytes are, if they are one exactly.
    pub(crate) fn integer(self) -> Option<i64> {
        match self {
            Self::Integer(integer) => Some(integer),
            Self::Fixed(bytes) | Self::Grown(bytes, _) => number::parse_integer(bytes),
        }
    }

    /// Bytes in the string.
    #[inline]
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Integer(integer) => Digits::default().write(integer).len(),
            Self::Fixed(bytes) | Self::Grown(bytes, _) => bytes.len(),
        }
    }

    /// What OBJECT ENCODING says.
    pub(crate) fn encoding(self) -> &'static str {
        match self {
            Self::Integer(_) => "int",
            Self::Fixed(bytes) if bytes.len() <= EMBEDDED_LIMIT => "embstr",
            _ => "raw",
        }
    }

    /// Bytes on the heap of a value of its own.
    pub(crate) fn memory(self) -> usize {
        match self {
            Self::Integer(_) => 0,
            Self::Fixed(bytes) => allocation(bytes.len()),
            Self::Grown(_, capacity) => allocation(capacity),
        }
    }
}
