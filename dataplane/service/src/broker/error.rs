//! Why an area is not attached to the broker.

use super::extents::MapError;
use super::id::AreaId;
use super::limits;

/// Why an area was not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The volume was not added before.
    #[error("area {0}: there is no volume {1} here; the control plane must pass it first")]
    Volume(AreaId, String),
    /// Its extents are invalid.
    #[error("area {0}: {1}")]
    Extents(AreaId, #[source] MapError),
    /// An area with its number is served already.
    #[error("area {0}: it is served already")]
    Taken(AreaId),
    /// There are too many areas.
    #[error("area {0}: {most} areas are served already; start another service core", most = limits::AREAS)]
    Full(AreaId),
    /// Its memory has another block size than the volume.
    #[error("area {0}: its memory is for blocks of {1} bytes, the volume has blocks of {2}")]
    Block(AreaId, u32, usize),
}
