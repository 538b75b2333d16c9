//! Bytes that never change their length: in place if they are few, else in an allocation.
//!
//! An element of a big collection is one of these in the collection's table. Three words hold up
//! to [`SHORT`] bytes, so a short element has no allocation, and to compare it costs no further
//! access to memory.

use crate::foundation::allocation::allocation;

/// Longest bytes that are kept in place, so that [`ShortBytes`] are three words.
pub(super) const SHORT: usize = 22;

/// Bytes of a fixed length.
#[derive(Clone, Debug)]
pub(crate) enum ShortBytes {
    /// So many bytes of these.
    Short(u8, [u8; SHORT]),
    /// Longer ones.
    Long(Box<[u8]>),
}

const _: () = assert!(size_of::<ShortBytes>() == 24);

impl ShortBytes {
    /// These parts, one after the other.
    pub(crate) fn of(parts: &[&[u8]]) -> Self {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length > SHORT {
            return Self::Long(parts.concat().into_boxed_slice());
        }
        let mut short = [0; SHORT];
        let mut at = 0;
        for part in parts {
            short[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Self::Short(length as u8, short)
    }

    /// Bytes outside of itself.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Short(..) => 0,
            Self::Long(bytes) => allocation(bytes.len()),
        }
    }
}

impl std::ops::Deref for ShortBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(length, bytes) => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }
}

impl crate::data::index::Keyed for ShortBytes {
    fn key(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_are_what_they_were_made_of() {
        for length in 0..100 {
            let bytes: Vec<u8> = (0..length).collect();
            let (left, right) = bytes.split_at(bytes.len() / 3);
            let short = ShortBytes::of(&[left, right]);
            assert_eq!(*short, bytes[..]);
            assert_eq!(short.memory() > 0, bytes.len() > SHORT);
        }
    }
}
