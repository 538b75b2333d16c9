//! Features of the kernel and the device that a queue uses or cannot use, found when it was opened.
//! `sietch doctor` shows them.

use std::fmt;
use std::os::fd::BorrowedFd;

use rustix::fs::FileType;

/// A feature that a queue could use, whether it does, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// Its usual name.
    pub what: &'static str,
    /// Whether the queue uses it.
    pub used: bool,
    /// Why not, or what for; may be empty.
    pub why: String,
}

impl Feature {
    pub(crate) fn used(what: &'static str, why: impl Into<String>) -> Self {
        Self { what, used: true, why: why.into() }
    }

    pub(crate) fn unused(what: &'static str, why: impl Into<String>) -> Self {
        Self { what, used: false, why: why.into() }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let no = if self.used { "" } else { "no " };
        match self.why.as_str() {
            "" => write!(f, "{no}{}", self.what),
            why => write!(f, "{no}{} ({why})", self.what),
        }
    }
}

/// The block device that a descriptor names, or that is beneath it.
pub(crate) struct Device {
    major: u32,
    minor: u32,
}

impl Device {
    /// A file on a file system without a block device of its own (tmpfs, overlay, btrfs) has none.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        let stat = rustix::fs::fstat(fd).ok()?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        let number = if is_device { stat.st_rdev } else { stat.st_dev };
        let device = Self { major: rustix::fs::major(number), minor: rustix::fs::minor(number) };
        std::path::Path::new(&device.path()).exists().then_some(device)
    }

    fn path(&self) -> String {
        format!("/sys/dev/block/{}:{}", self.major, self.minor)
    }

    /// An attribute of the device's request queue. A partition's are its disk's.
    pub(crate) fn queue(&self, attribute: &str) -> Option<String> {
        ["queue", "../queue"].iter().find_map(|queue| {
            let text = std::fs::read_to_string(format!("{}/{queue}/{attribute}", self.path())).ok()?;
            Some(text.trim().to_owned())
        })
    }

    /// The I/O scheduler in use; `none` where requests go to the device as they come.
    pub(crate) fn scheduler(&self) -> String {
        let schedulers = self.queue("scheduler").unwrap_or_default();
        let chosen = schedulers.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        chosen.map_or("none", |(name, _)| name).to_owned()
    }

    /// Whether it is a namespace of an NVMe controller.
    pub(crate) fn is_nvme(&self) -> bool {
        std::fs::read_link(self.path())
            .is_ok_and(|link| link.components().any(|part| part.as_os_str() == "nvme"))
    }
}
