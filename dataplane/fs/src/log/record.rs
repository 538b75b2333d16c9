//! The format of a record.
//!
//! 1. All integers are little endian. A record is its *front* (a header line of 64 bytes, the
//!    fields of its kind, its names, zeros up to a whole line) and its *payload* (the data of a
//!    write, the value of an attribute, the target of a symbolic link; zeros up to a whole line).
//!    The front of a write is the header line alone, so whole lines of data cost nothing more.
//! 2. The checksum is a CRC32C over all lines of the record, zeros included. In place of the magic
//!    and the checksum it covers the log's seed XOR the record's position. So a record of another
//!    log or epoch, of another lap or place does not validate. It is computed in one pass.
//! 3. A change has one encoding: what a field does not say is 0, and the reader insists on it.
//! 4. [`check()`] decides what a record may say. The writer calls it before it writes and the
//!    reader after it has read: what was written can be read.
//! 5. A pad is a header line that says how many bytes behind it are nothing. It has the sequence of
//!    the record that follows, and consumes none.

mod check;
mod decode;
mod encode;
mod layout;

#[cfg(test)]
mod tests;

pub(crate) use check::check;
pub(crate) use decode::decode;
pub(crate) use encode::{encode_front, encode_pad, front_bytes};
pub(crate) use layout::{Header, MAX_FRONT, Stamp, UNKNOWN, finish};
pub use layout::{Invalid, LINE, LogIdentity, MAX_RECORD};
