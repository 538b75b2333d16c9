//! Records with a type and a version.
//!
//! 1. A typed payload is `type u32, version u16, 0 u16`, then the bytes of a fixed part, then a
//!    tail of any length. Integers are little endian.
//! 2. The fixed part is the same in memory as on the medium: writing copies it, reading uses it in
//!    place. Types with alignment 1 (zerocopy's integers) can be anywhere.
//! 3. A type or a version that the reader does not know is refused, and named.
//!
//! ```
//! use sietch_persist::{Record, read_record, typed};
//! use zerocopy::little_endian::U64;
//! use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
//!
//! #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
//! #[repr(C)]
//! struct Deposit {
//!     account: U64,
//!     amount: U64,
//! }
//!
//! impl Record for Deposit {
//!     const NAME: &'static str = "deposit";
//!     const TYPE: u32 = 1;
//!     const VERSION: u16 = 1;
//! }
//!
//! let deposit = Deposit { account: 7.into(), amount: 100.into() };
//! // For a log: `log.append_record(&deposit, b"by hand")`.
//! let payload = [typed::<Deposit>().as_slice(), deposit.as_bytes(), b"by hand"].concat();
//! let (found, tail) = read_record::<Deposit>(&payload)?;
//! assert_eq!((found.account.get(), tail), (7, &b"by hand"[..]));
//! # Ok::<(), sietch_persist::TypeError>(())
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::TypeError;

/// Bytes before the fixed part of a typed record.
pub const TYPE_HEADER: usize = 8;

/// The fixed part of a typed record.
pub trait Record: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {
    /// What it is called in messages.
    const NAME: &'static str;
    /// Tells it from the other types of the same log.
    const TYPE: u32;
    /// Grows when its layout changes.
    const VERSION: u16;
}

/// The bytes before a record of this type.
pub fn typed<R: Record>() -> [u8; TYPE_HEADER] {
    let mut header = [0; TYPE_HEADER];
    header[..4].copy_from_slice(&R::TYPE.to_le_bytes());
    header[4..6].copy_from_slice(&R::VERSION.to_le_bytes());
    header
}

/// The type and version of a payload; `None`: it is too short to have one.
pub fn type_of(payload: &[u8]) -> Option<(u32, u16)> {
    let (kind, rest) = payload.split_first_chunk::<4>()?;
    let (version, rest) = rest.split_first_chunk::<2>()?;
    rest.starts_with(&[0, 0]).then(|| (u32::from_le_bytes(*kind), u16::from_le_bytes(*version)))
}

/// A payload as a record of type `R` and its tail, in place.
///
/// # Errors
/// See [`TypeError`].
pub fn read_record<R: Record>(payload: &[u8]) -> Result<(&R, &[u8]), TypeError> {
    check_type::<R>(payload)?;
    R::ref_from_prefix(&payload[TYPE_HEADER..])
        .map_err(|_| TypeError::Short { name: R::NAME, length: payload.len() })
}

/// Whether a payload is of type `R`, of the version that is known.
pub(crate) fn check_type<R: Record>(payload: &[u8]) -> Result<(), TypeError> {
    let Some((kind, version)) = type_of(payload) else {
        return Err(TypeError::Short { name: R::NAME, length: payload.len() });
    };
    if kind != R::TYPE {
        return Err(TypeError::Type { name: R::NAME, found: kind, known: R::TYPE });
    }
    if version != R::VERSION {
        return Err(TypeError::Version { name: R::NAME, found: version, known: R::VERSION });
    }
    Ok(())
}
