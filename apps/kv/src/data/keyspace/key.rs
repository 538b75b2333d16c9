//! The bytes of a key, within its entry if they are few: to compare them then costs no further
//! access to memory.

use crate::data::value::allocation;

/// Longest key that is kept within its entry, so that a [`Key`] is three words.
const SHORT: usize = 22;

/// A key of a numbered database.
pub(crate) type DatabaseKey = (usize, Box<[u8]>);

/// A key.
#[derive(Clone, Debug)]
pub(super) enum Key {
    /// So many bytes of these.
    Short(u8, [u8; SHORT]),
    /// Longer ones.
    Long(Box<[u8]>),
}

const _: () = assert!(size_of::<Key>() == 24);

impl Key {
    /// Bytes that it takes outside its entry.
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Short(..) => 0,
            Self::Long(bytes) => allocation(bytes.len()),
        }
    }

    /// Reads one byte of the key, so that the processor fetches its memory.
    #[inline]
    pub(super) fn prefetch(&self) -> u8 {
        match self {
            Self::Short(length, _) => *length,
            Self::Long(bytes) => bytes[0],
        }
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        if bytes.len() > SHORT {
            return Self::Long(bytes.into());
        }
        let mut short = [0; SHORT];
        short[..bytes.len()].copy_from_slice(bytes);
        Self::Short(bytes.len() as u8, short)
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(length, bytes) => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_length_are_what_they_were_made_of() {
        for length in 0..100 {
            let bytes: Vec<u8> = (0..length).collect();
            let key = Key::from(&bytes[..]);
            assert_eq!(*key, bytes[..]);
            assert_eq!(key.memory() > 0, bytes.len() > SHORT);
        }
    }
}
