//! Every limit of the file system, with its reason.

/// Bytes in a block of data: the page of the processor, and what disks write in one piece.
pub const BLOCK: usize = 4096;

/// Largest file, in bytes. Offsets in blocks then fit 32 bits, with room.
pub const MAX_FILE: u64 = 16 << 40;

/// Longest target of a symbolic link, in bytes (`PATH_MAX`, less its NUL).
pub const MAX_TARGET: usize = 4095;

/// Longest value of an extended attribute, in bytes (`XATTR_SIZE_MAX`).
pub const MAX_XATTR_VALUE: usize = 65536;

/// Longest name of an extended attribute, in bytes (`XATTR_NAME_MAX`).
pub const MAX_XATTR_NAME: usize = 255;

/// All names of an inode's extended attributes, each with a NUL, in bytes (`XATTR_LIST_MAX`).
pub const MAX_XATTR_NAMES: usize = 65536;

/// Names that an inode may have (`LINK_MAX` of ext4).
pub const MAX_LINKS: u32 = 65_000;

/// Data of one record of the log, in bytes. A longer write is several records, each atomic. A
/// record is judged and copied as a whole, so this bounds what the service holds of a client.
pub const MAX_RECORD_DATA: usize = 1 << 20;
