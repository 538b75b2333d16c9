//! Tokens of the disk requests: which part of the log a completion belongs to, and which of its
//! requests it is.

/// Which part of the log a completion belongs to: the high byte of its token.
pub(in crate::log) const CLASS_LOG: u64 = 1;
pub(in crate::log) const CLASS_SNAPSHOT: u64 = 2;
pub(in crate::log) const CLASS_FLUSH: u64 = 3;
pub(in crate::log) const CLASS_SNAPSHOT_FLUSH: u64 = 4;
pub(in crate::log) const CLASS_SUPERBLOCK: u64 = 5;
pub(in crate::log) const CLASS_TRUNCATE_FLUSH: u64 = 6;
pub(in crate::log) const CLASS_TRUNCATE_SUPERBLOCK: u64 = 7;
pub(in crate::log) const CLASS_READ: u64 = 8;
pub(in crate::log) const CLASS_RESIZE_SUPERBLOCK: u64 = 9;
pub(in crate::log) const CLASS_PROOF_SUPERBLOCK: u64 = 10;
pub(in crate::log) const CLASS_SHIFT: u32 = 56;

pub(in crate::log) const fn token(class: u64, ticket: u64) -> u64 {
    class << CLASS_SHIFT | ticket
}

/// The error of a log that runs out of segments although it had counted them.
pub(in crate::log) fn no_segment() -> std::io::Error {
    std::io::Error::other("no free segment")
}
