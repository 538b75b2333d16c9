//! Areas as every kind of volume handles them: paths, sizes, descriptors, changes, and refusals.

use std::os::fd::OwnedFd;

use sietch_protocol::types::Size;
use sietch_protocol::{AreaExtent, ErrorKind, ErrorReply, MAIN_VOLUME};

/// The volume and the name of an area.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AreaPath {
    /// The volume's name.
    pub volume: String,
    /// The area's.
    pub name: String,
}

impl AreaPath {
    /// The name in grants, revocations and messages: `NAME` on `main`, else `/VOLUME/NAME`.
    pub(crate) fn label(&self) -> String {
        if self.volume == MAIN_VOLUME { self.name.clone() } else { self.full() }
    }

    /// `/VOLUME/NAME`.
    pub(crate) fn full(&self) -> String {
        format!("/{}/{}", self.volume, self.name)
    }

    /// The path that a label stands for.
    pub(crate) fn from_label(label: &str) -> Self {
        let (volume, name) =
            label.strip_prefix('/').and_then(|rest| rest.split_once('/')).unwrap_or((MAIN_VOLUME, label));
        Self { volume: volume.to_owned(), name: name.to_owned() }
    }
}

/// An area that exists.
#[derive(Debug, Clone)]
pub(crate) struct AreaInfo {
    /// Its name on the volume.
    pub name: String,
    /// Its owner, if that is known.
    pub uid: Option<u32>,
    /// Bytes.
    pub size: u64,
    /// Whether a request has chosen that size. Otherwise `sietch.toml` has.
    pub recorded: bool,
    /// Bytes of the volume that it occupies.
    pub allocated: u64,
    /// Bytes that count against volume and quota.
    pub charge: u64,
    /// Contiguous pieces, where known.
    pub extents: Option<u32>,
}

/// The descriptors of an area, and how many bytes of each belong to it.
pub(crate) struct AreaDescriptors {
    pub files: Vec<OwnedFd>,
    /// Empty if there is one descriptor and all of it belongs to the area.
    pub lengths: Vec<u64>,
    /// The layout of an area that is reached through the service core, and has no descriptor.
    pub layout: Option<AreaLayout>,
}

/// The extents of an area on its volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AreaLayout {
    /// In the order of its bytes.
    pub extents: Vec<AreaExtent>,
    /// The unit in bytes that the device writes atomically.
    pub block: u32,
}

impl AreaLayout {
    /// Bytes of the area.
    pub(crate) fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.length).sum()
    }

    /// The extents of its first `size` bytes.
    pub(crate) fn first(&self, size: u64) -> Vec<AreaExtent> {
        let mut left = size;
        let mut kept = Vec::new();
        for extent in &self.extents {
            let length = extent.length.min(left);
            left -= length;
            kept.extend((length > 0).then_some(AreaExtent { start: extent.start, length }));
        }
        kept
    }
}

impl AreaDescriptors {
    pub(super) fn one(file: OwnedFd) -> Self {
        Self { files: vec![file], lengths: Vec::new(), layout: None }
    }
}

/// A change of an area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AreaChange {
    Create { uid: u32, size: u64 },
    Resize { size: u64 },
    Trim { offset: u64, length: u64 },
    Delete,
}

/// The time of the last write, in nanoseconds since 1970.
pub(super) fn modified(stat: &rustix::fs::Stat) -> Option<u64> {
    let seconds = u64::try_from(stat.st_mtime).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(stat.st_mtime_nsec)
}

/// A refusal that concerns the area `name`.
pub(super) fn refuse(kind: ErrorKind, name: &str, cause: String, fix: &str) -> ErrorReply {
    ErrorReply { kind, what: format!("VSA {name}"), cause, fix: fix.to_owned() }
}

/// Checks that an area is the one that `sietch.toml` describes: that of `uid`, with `size` bytes.
/// `hand_over` says how its data can be given to another user, where that is possible. An area that
/// is acquired, and each reload, is checked here.
pub(super) fn check_fit(found: &AreaInfo, uid: u32, size: u64, hand_over: &str) -> Result<(), ErrorReply> {
    let name = &found.name;
    match found.uid {
        Some(owner) if owner != uid => {
            let cause = format!("its data belongs to uid {owner}, and sietch.toml gives it to uid {uid}");
            return Err(refuse(
                ErrorKind::Denied,
                name,
                cause,
                &format!("set uid = {owner} back{hand_over}"),
            ));
        }
        Some(_) => {}
        None => {
            let cause = "no file names the owner of its data".to_owned();
            let fix = hand_over.strip_prefix(", or ").unwrap_or(hand_over);
            return Err(refuse(ErrorKind::Denied, name, cause, fix));
        }
    }
    if found.size == size {
        return Ok(());
    }
    let (has, wanted) = (Size { bytes: found.size }, Size { bytes: size });
    let cause = format!("the area has {has}, and sietch.toml says {wanted}");
    let resize = match size > found.size {
        true => {
            format!(", or grow the area first, also while it is used: `sietch vsa resize {name} {wanted}`")
        }
        // Shortening cuts data off, so it is not offered.
        false => String::new(),
    };
    Err(refuse(ErrorKind::Invalid, name, cause, &format!("set size = \"{has}\" back{resize}")))
}

/// There is no such area any more.
pub(super) fn no_area(name: &str) -> ErrorReply {
    refuse(ErrorKind::Unknown, name, "it does not exist any more".to_owned(), "see `sietch vsa list`")
}

/// The volume has no room.
pub(super) fn full(volume: &str, requested: u64, free: u64) -> ErrorReply {
    ErrorReply {
        kind: ErrorKind::Full,
        what: format!("volume {volume}"),
        cause: format!("{requested} bytes were requested and {free} are free"),
        fix: "delete or shrink areas, or choose a smaller size or another volume".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_stands_for_one_path() {
        for (label, full) in [("kv", "/main/kv"), ("/fast/kv", "/fast/kv")] {
            let path = AreaPath::from_label(label);
            assert_eq!((path.label().as_str(), path.full().as_str()), (label, full));
        }
    }
}
