//! What can go wrong with a volume, and what to do about it.

use std::io;
use std::sync::Arc;

/// The first request that failed. The volume accepts no further change. What the device holds
/// beyond this point is unknown, and a failed write must never be treated as if it had not
/// happened.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{action} at offset {offset}: {source}; nothing is changed any more: check the disk and restart")]
pub struct Failure {
    /// What was being done.
    pub action: &'static str,
    /// Where on the volume, in bytes.
    pub offset: u64,
    /// Why it failed.
    pub source: Arc<io::Error>,
}

/// Why a volume could not be formatted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FormatError {
    /// The device failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Too small for its metadata, or a half of a size that is not allowed.
    #[error(
        "{capacity} bytes are too few for metadata of {metadata} bytes and an area; take at least {least}"
    )]
    TooSmall {
        /// Bytes there.
        capacity: u64,
        /// Bytes that the metadata occupies.
        metadata: u64,
        /// Bytes needed.
        least: u64,
    },
}

/// Why a volume could not be opened. Nothing on it was changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// The device failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// There is no volume.
    #[error("there is no volume on it; format it, if it holds nothing else")]
    NotFormatted,
    /// It was formatted by a later Sietch.
    #[error(
        "its format is version {found}, this program reads version {known}; use the program that wrote it, or a later one"
    )]
    Version {
        /// The volume's.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// Metadata that was acknowledged is missing or wrong.
    #[error(
        "damaged at offset {offset}: {cause}; restore it from a copy, or format it again and lose what it holds"
    )]
    Damaged {
        /// What was found.
        cause: &'static str,
        /// Where, in bytes.
        offset: u64,
    },
    /// It is larger than its file or device.
    #[error("it has {wanted} bytes and its file or device {found}; it was cut short: restore it")]
    TooShort {
        /// Bytes the superblock names.
        wanted: u64,
        /// Bytes there.
        found: u64,
    },
}

/// Why a change was refused. Nothing was changed, unless the device failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VolumeError {
    /// The device failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// No room.
    #[error("{requested} bytes were requested and {free} are free; delete or shrink areas, or request less")]
    Full {
        /// Bytes requested.
        requested: u64,
        /// Bytes free.
        free: u64,
    },
    /// The free room is in too many pieces.
    #[error("{requested} bytes would take more than {most} pieces of the volume; delete areas between others, or request less", most = crate::limits::MAX_EXTENTS)]
    Fragmented {
        /// Bytes requested.
        requested: u64,
    },
    /// The metadata has no room for another area or another piece of one.
    #[error("its metadata is full, with {areas} areas; delete some, or use another volume")]
    MetadataFull {
        /// Areas there.
        areas: usize,
    },
    /// There is an area of that name.
    #[error("there is an area of that name; choose another, or delete it first")]
    Exists,
    /// There is none.
    #[error("there is no area of that name; see which there are")]
    Unknown,
    /// Not a name, not whole blocks, or outside the area.
    #[error("{cause}; {fix}")]
    Invalid {
        /// What is wrong.
        cause: &'static str,
        /// What to do.
        fix: &'static str,
    },
}
