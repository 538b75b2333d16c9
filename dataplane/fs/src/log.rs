//! The operation log: a ring of self-checking records in byte-addressable memory. The page
//! `docs/spec/fs-log.md` shows the format as a picture.
//!
//! 1. A position counts bytes since the log was made, and never wraps. A position's place in the
//!    ring is the remainder of its division by the bytes of the ring.
//! 2. Records begin on lines of 64 bytes, one behind the other, and never cross the end of the
//!    ring: a pad fills what is left there.
//! 3. [`LogWriter`] appends a record with one fence. Space is used again once the digest has what
//!    is in it ([`LogWriter::reclaim`]).
//! 4. [`LogReader`] follows, in another process. The end of the log is the first place without a
//!    valid record of the next sequence. Nothing in the log says where the end is, so nothing can
//!    contradict it.
//! 5. [`Mirror`] is for machines whose memory does not survive a loss of power: it writes the ring
//!    to the same offsets of a disk area when a program asks for it.
//!
//! What it must never do: reuse space that the digest still needs; change a record that was
//! appended; acknowledge before the fence; take a record of another log, of an earlier epoch or of
//! an earlier lap for one of its own.

mod mirror;
mod reader;
mod record;
mod ring;
mod writer;

pub use mirror::{Group, Loaded, Mirror, MirrorError};
pub use reader::{LogDamage, LogReader};
pub use record::{Invalid, LINE, LogIdentity, MAX_RECORD};
pub use ring::{MIN_RING, RingError, reserve};
pub use writer::{AppendError, Appended, Durability, LogWriter, Overwritten};
