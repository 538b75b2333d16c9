//! `[[volume]]`: where storage areas are stored, and how many bytes each user may have there.
//!
//! 1. The volume `main` always exists: the directory `areas` in the daemon's data. A `[[volume]]`
//!    of that name adds quotas to it.
//! 2. A missing key that the kind needs is an error. So is a key that the kind does not use: a key
//!    without effect misleads.

use std::path::PathBuf;

use serde::Deserialize;
use sietch_protocol::types::Size;
use sietch_protocol::{MAIN_VOLUME, MemoryModel, VolumeKind};
use toml::Spanned;

use super::error::ConfigurationError;
use super::rules::{Rules, User};

/// The most volumes: an answer that shows all of them with their quotas fits a frame.
const MAX_VOLUMES: usize = 16;
/// The most quotas of one volume, for the same reason.
const MAX_QUOTAS: usize = 32;

/// Where areas are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its kind of storage.
    pub kind: VolumeKind,
    /// Directory, file or device; the volume `main` needs none.
    pub path: Option<PathBuf>,
    /// Bytes for areas in all, where they are bounded.
    pub size: Option<u64>,
    /// How slow memory pretends to be.
    pub model: MemoryModel,
    /// In the order of their users.
    pub quotas: Vec<Quota>,
}

/// What one user may have of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// The user.
    pub uid: u32,
    /// Bytes.
    pub bytes: u64,
}

impl Volume {
    /// The volume that is there without being named.
    pub(crate) fn main() -> Self {
        Self {
            name: MAIN_VOLUME.to_owned(),
            kind: VolumeKind::Directory,
            path: None,
            size: None,
            model: MemoryModel::default(),
            quotas: Vec::new(),
        }
    }

    /// The quota of `uid`, if the file sets one.
    pub fn quota(&self, uid: u32) -> Option<u64> {
        self.quotas.iter().find(|quota| quota.uid == uid).map(|quota| quota.bytes)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VolumeText {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    kind: VolumeKind,
    path: Option<PathBuf>,
    size: Option<Spanned<Size>>,
    read_ns: Option<u64>,
    bytes_per_second: Option<Size>,
    #[serde(default)]
    quota: Vec<QuotaText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QuotaText {
    uid: Spanned<User>,
    size: Spanned<Size>,
}

impl Rules<'_> {
    pub(super) fn volume(&self, text: VolumeText, others: &[Volume]) -> Result<Volume, ConfigurationError> {
        let taken = others.iter().any(|other| other.name == *text.name.get_ref());
        let name = self.name("volume", &text.name, taken)?;
        let (what, at, kind) = (format!("volume {name}"), text.name.span().start, text.kind);
        let refuse = |cause: &str, fix: &str| Err(self.refuse(at, what.clone(), cause, fix));
        if others.len() >= MAX_VOLUMES || text.quota.len() > MAX_QUOTAS {
            let cause = format!("more than {MAX_VOLUMES} volumes, or {MAX_QUOTAS} quotas of one");
            return refuse(&cause, "remove some");
        }
        if name == MAIN_VOLUME && (kind != VolumeKind::Directory || text.path.is_some()) {
            return refuse("it is the directory `areas` in the daemon's data", "leave kind and path out");
        }
        match (kind, &text.path) {
            (VolumeKind::Memory, Some(_)) => return refuse("memory has no path", "leave path out"),
            (VolumeKind::Memory, None) => {}
            (_, None) if name != MAIN_VOLUME => {
                return refuse("it has no path", "set `path` to its directory or device");
            }
            (_, Some(path)) if !path.is_absolute() => {
                return refuse(
                    "its path is relative, and the daemon works in no directory",
                    "begin it with `/`",
                );
            }
            _ => {}
        }
        if kind == VolumeKind::Memory && text.size.is_none() {
            return refuse("memory has no size of its own", "write how much it may use, `size = \"1GiB\"`");
        }
        if kind != VolumeKind::Memory && (text.read_ns.is_some() || text.bytes_per_second.is_some()) {
            return refuse("read_ns and bytes_per_second are for memory", "leave them out");
        }
        let size = text.size.as_ref().map(|size| self.whole(&what, size)).transpose()?;
        let mut quotas: Vec<Quota> = Vec::new();
        for quota in &text.quota {
            let uid = self.uid(&what, &quota.uid)?;
            if quotas.iter().any(|other| other.uid == uid) {
                let cause = format!("two quotas for uid {uid}");
                return Err(self.refuse(quota.uid.span().start, what, cause, "leave one of them"));
            }
            quotas.push(Quota { uid, bytes: self.whole(&what, &quota.size)? });
        }
        quotas.sort_by_key(|quota| quota.uid);
        let model = MemoryModel {
            read_ns: text.read_ns.unwrap_or(0),
            bytes_per_second: text.bytes_per_second.map_or(0, |size| size.bytes),
        };
        Ok(Volume { name, kind, path: text.path, size, model, quotas })
    }
}
