//! Volumes, and the storage areas on them.
//!
//! 1. An area has a path in one namespace: `/VOLUME/NAME`. `NAME` alone is an area that
//!    `sietch.toml` names, or one of the volume `main`.
//! 2. [`split`] separates a path into names ([`is_name`]), which are safe as file names.

use serde::{Deserialize, Serialize};

use crate::limits::is_name;
use crate::types::{GrantStatus, Protection};

/// The shape of the memory between an application and the broker of its area
/// (`docs/spec/broker.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerShape {
    /// Entries of each ring.
    pub slots: u32,
    /// Bytes of the data region.
    pub data: u32,
    /// Alignment of requests, in bytes.
    pub block: u32,
}

/// Bytes of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AreaExtent {
    /// The first.
    pub start: u64,
    /// How many.
    pub length: u64,
}

/// An area that the service core is to serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AreaGrant {
    /// The grant of the area.
    pub grant: u64,
    /// Its generation.
    pub generation: u64,
    /// The area's name.
    pub name: String,
    /// The volume that stores it.
    pub volume: String,
    /// Where, in the order of the area's bytes.
    pub extents: Vec<AreaExtent>,
    /// Of the memory.
    pub shape: BrokerShape,
    /// The user of its holder. A daemon that does not name it has all holders count as one user.
    #[serde(default = "crate::types::unnamed_user")]
    pub uid: u32,
}

/// An area that the service core serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldArea {
    /// The grant of the area.
    pub grant: u64,
    /// Its generation.
    pub generation: u64,
    /// The area's name.
    pub name: String,
}

/// Volumes and areas that a service core has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldStorage {
    /// Volumes whose descriptor it has.
    pub volumes: Vec<String>,
    /// Areas, including those that are being detached. At most [`crate::limits::MAX_HELD`].
    pub areas: Vec<HeldArea>,
}

/// The volume that is always there: the directory `areas` in the daemon's data.
pub const MAIN_VOLUME: &str = "main";

/// The kind of storage of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeKind {
    /// A directory of a file system: every area is a file of its own.
    #[default]
    Directory,
    /// A file or a block device that Sietch allocates itself.
    Extents,
    /// Memory that stands in for non-volatile memory.
    Memory,
    /// A range of persistent memory, mapped directly.
    Dax,
}

impl std::fmt::Display for VolumeKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Directory => "directory",
            Self::Extents => "extents",
            Self::Memory => "memory",
            Self::Dax => "dax",
        })
    }
}

/// How much memory is slowed, to model non-volatile memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryModel {
    /// Nanoseconds that a read takes longer.
    pub read_ns: u64,
    /// Bytes a second that can be read and written, together; 0: as fast as the memory is.
    pub bytes_per_second: u64,
}

impl MemoryModel {
    /// Whether it slows memory at all.
    pub fn slows(&self) -> bool {
        self.read_ns > 0 || self.bytes_per_second > 0
    }
}

impl std::fmt::Display for MemoryModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "+{} ns a read, ", self.read_ns)?;
        match self.bytes_per_second {
            0 => f.write_str("bandwidth of DRAM"),
            bytes => write!(f, "{bytes} bytes/s"),
        }
    }
}

/// The quota of a user on a volume, and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaStatus {
    /// The user.
    pub uid: u32,
    /// Bytes allowed.
    pub bytes: u64,
    /// Bytes that its areas have.
    pub used: u64,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// Its kind of storage.
    pub kind: VolumeKind,
    /// The path where it is stored.
    pub path: String,
    /// Why it cannot be used, if so.
    pub broken: Option<String>,
    /// Bytes for areas in all.
    pub capacity: u64,
    /// Bytes that no area has.
    pub free: u64,
    /// Areas on it.
    pub areas: u32,
    /// How much memory is slowed; `None` for other kinds.
    pub model: Option<MemoryModel>,
    /// What happens to its data when the power fails.
    pub durability: String,
    /// Of each user that `sietch.toml` names.
    pub quotas: Vec<QuotaStatus>,
}

/// An area.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AreaStatus {
    /// `/VOLUME/NAME`.
    pub path: String,
    /// Its owner.
    pub uid: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes of the volume that it occupies. The number can exceed the size by bytes that were cut
    /// off and that a holder can still access.
    pub allocated: u64,
    /// Contiguous pieces, where the volume reports them.
    pub extents: Option<u32>,
    /// To the holder of an area in memory that has grown while it was held: as in
    /// [`crate::VsaGrant`].
    #[serde(default)]
    pub segments: Vec<u64>,
    /// Whether `sietch.toml` names it.
    pub configured: bool,
    /// What confines its holder to it.
    pub protection: Protection,
    /// Whether it was revoked and waits for Restore.
    pub revoked: bool,
    /// Its holder.
    pub holder: Option<GrantStatus>,
    /// When it was last written, in nanoseconds since 1970, where the volume reports it.
    #[serde(default)]
    pub modified: Option<u64>,
    /// Whether its holder serves a view of it.
    #[serde(default)]
    pub view: bool,
    /// What its holder says of its log in it.
    #[serde(default)]
    pub usage: Option<AreaUsage>,
}

/// How full the log in an area is, as its holder publishes it in its page of counters `log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AreaUsage {
    /// Bytes.
    pub used: u64,
    /// Whether writes are refused for want of room.
    pub full: bool,
}

/// Some areas, and whether there are more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AreaPage {
    /// In the order of their paths.
    pub areas: Vec<AreaStatus>,
    /// The cursor of the next page.
    pub next: Option<u32>,
}

/// Volume and name of `/VOLUME/NAME`; a bare name has no volume.
pub fn split(path: &str) -> Option<(Option<&str>, &str)> {
    let Some(rest) = path.strip_prefix('/') else {
        return is_name(path).then_some((None, path));
    };
    let (volume, name) = rest.split_once('/')?;
    (is_name(volume) && is_name(name)).then_some((Some(volume), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_one_volume_and_one_area_and_nothing_outside() {
        assert_eq!(split("/fast/kv"), Some((Some("fast"), "kv")));
        assert_eq!(split("kv"), Some((None, "kv")));
        for hostile in
            ["", "/", "/kv", "//kv", "/fast/", "/fast/../kv", "fast/kv", "/a/b/c", "/fast/kv\0", "../x"]
        {
            assert_eq!(split(hostile), None, "{hostile}");
        }
    }
}
