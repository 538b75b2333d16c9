//! The records of a map: `docs/spec/map.md`.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::TypeError;
use crate::typed::{Record, TYPE_HEADER, check_type, read_record, type_of};

/// A key has a value now; the tail is the key and then the value.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Put {
    pub key_length: U32,
    pub reserved: U32,
}

/// A key is deleted; the tail is the key.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Deleted {}

impl Record for Put {
    const NAME: &'static str = "map entry";
    const TYPE: u32 = 1;
    const VERSION: u16 = 1;
}

impl Record for Deleted {
    const NAME: &'static str = "map deletion";
    const TYPE: u32 = 2;
    const VERSION: u16 = 1;
}

/// Where the key begins in the payload of a put record.
pub(super) const KEY_START: usize = TYPE_HEADER + size_of::<Put>();

/// The change that a record makes.
pub(super) enum Change<'a> {
    Put,
    Deleted(&'a [u8]),
}

/// Reads a record. A put record that passes can be given to [`key_of`] and [`value_of`].
pub(super) fn read(payload: &[u8]) -> Result<Change<'_>, TypeError> {
    if let Some((Deleted::TYPE, _)) = type_of(payload) {
        check_type::<Deleted>(payload)?;
        return Ok(Change::Deleted(&payload[TYPE_HEADER..]));
    }
    let (put, tail) = read_record::<Put>(payload)?;
    if put.key_length.get() as usize > tail.len() {
        return Err(TypeError::Short { name: Put::NAME, length: payload.len() });
    }
    Ok(Change::Put)
}

fn split(record: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, _) = record.get(TYPE_HEADER..)?.split_first_chunk::<4>()?;
    record.get(KEY_START..)?.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// The key of a put record.
pub(super) fn key_of(record: &[u8]) -> &[u8] {
    split(record).map_or(&[], |(key, _)| key)
}

/// The value of a put record.
pub(super) fn value_of(record: &[u8]) -> &[u8] {
    split(record).map_or(&[], |(_, value)| value)
}
