//! Which processes use a mount that cannot be unmounted.
//!
//! 1. `/proc` has links to what each process has open, and the device of what it maps. Those of
//!    another user's processes only root can read.
//! 2. A link is followed only if its path is below the mount. The device is then asked of the
//!    kernel, which does not ask the file system for it.

use std::fmt::Write as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::style::escaped;

/// Processes that are named, at most.
const NAMED: usize = 8;

/// A process: its number and name.
type Holder = (u32, String);

/// The processes that use what is mounted on `directory`, as far as this user can see them.
pub(crate) fn of(directory: &Path) -> Vec<Holder> {
    let (Ok(directory), Ok(processes)) = (directory.canonicalize(), std::fs::read_dir("/proc")) else {
        return Vec::new();
    };
    let Some(device) = device(&directory) else { return Vec::new() };
    let mut holders: Vec<Holder> = processes
        .filter_map(|process| {
            let number = process.ok()?.file_name().to_str()?.parse().ok()?;
            let folder = Path::new("/proc").join(format!("{number}"));
            let is_other = number != std::process::id();
            (is_other && holds(&folder, &directory, device)).then(|| {
                let name = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
                (number, name.trim_end().to_owned())
            })
        })
        .collect();
    holders.sort_unstable();
    holders
}

/// Whether a process has something of this device open, or maps it.
fn holds(process: &Path, directory: &Path, device_of_mount: (u32, u32)) -> bool {
    let is_there = |link: &Path| {
        std::fs::read_link(link).is_ok_and(|target| target.starts_with(directory))
            && device(link) == Some(device_of_mount)
    };
    let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    if ["cwd", "root", "exe"].iter().any(|link| is_there(&process.join(link)))
        || open.into_iter().any(|link| is_there(&link.path()))
    {
        return true;
    }
    let (major, minor) = device_of_mount;
    let mapped = format!("{major:02x}:{minor:02x}");
    let maps = std::fs::read_to_string(process.join("maps")).unwrap_or_default();
    maps.lines().any(|line| line.split(' ').nth(3) == Some(mapped.as_str()))
}

/// The device of a file, without a request to its file system.
fn device(path: &Path) -> Option<(u32, u32)> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor))
}

/// What is said of a mount that was detached.
pub(crate) fn said(directory: &Path, holders: &[Holder]) -> String {
    let mut text = format!("{} is detached, and still in use ", directory.display());
    if holders.is_empty() {
        text += "by a process of another user, or by a mount below it: as root, `lsof` lists open files";
    }
    for (at, (number, name)) in holders.iter().take(NAMED).enumerate() {
        let between = if at == 0 { "by process" } else { "," };
        // A String takes everything.
        let _ = write!(text, "{between} {number} ({})", escaped(name));
    }
    if holders.len() > NAMED {
        let _ = write!(text, " and {} more", holders.len() - NAMED);
    }
    text + "; this command ends when the last one has left it\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processes_are_named_and_the_others_counted() {
        let holders: Vec<_> = (1..=10).map(|number| (number, "vi".to_owned())).collect();
        let text = said(Path::new("/mnt"), &holders);
        assert!(text.starts_with("/mnt is detached, and still in use by process 1 (vi), 2 (vi),"), "{text}");
        assert!(text.contains("8 (vi) and 2 more; this command ends"), "{text}");
        assert!(said(Path::new("/mnt"), &[]).contains("another user"), "{text}");
    }

    /// A program chooses its name, and this text reaches the terminal of root.
    #[test]
    fn the_name_of_a_process_has_no_effect_on_a_terminal() {
        let text = said(Path::new("/mnt"), &[(7, "\x1b]0;title\x07\n\u{202e}".to_owned())]);
        assert!(text.contains("process 7 (\\u{1b}]0;title\\u{7}\\n\\u{202e});"), "{text:?}");
    }
}
