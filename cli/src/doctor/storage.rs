//! The data directory and io_uring.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open, statvfs, unlink};

use super::check::{Check, Verdict};
use super::machine::read;
use crate::style;

/// Room for the default storage area and its compaction.
const WANTED_SPACE: u64 = 1 << 30;

/// The checks of storage below `data`, which need not exist yet.
pub(super) fn checks(data: &Path) -> Vec<Check> {
    let folder = existing(data);
    vec![io_uring(), writable(data, &folder), direct(&folder), queue(&folder), space(&folder)]
}

/// The nearest folder above `path`, or itself, that exists.
fn existing(path: &Path) -> PathBuf {
    path.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

fn io_uring() -> Check {
    let name = "io_uring";
    let Err(cause) = io_uring::IoUring::new(2) else {
        return Check::ok(name, "works");
    };
    let switch = read("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let fix = match switch.as_str() {
        "2" | "1" => format!("`sysctl kernel.io_uring_disabled=0` (it is {switch})"),
        _ => "allow io_uring in the container's seccomp profile".to_owned(),
    };
    Check::not(Verdict::Limited, name, format!("refused ({cause}); epoll and pwritev2 take its place"), fix)
}

fn writable(data: &Path, folder: &Path) -> Check {
    let name = "data directory";
    let probe = folder.join(format!(".sietch-doctor-{}", std::process::id()));
    match std::fs::OpenOptions::new().write(true).create_new(true).open(&probe) {
        Ok(_) => {
            // A file left behind would only be an empty one.
            let _ = std::fs::remove_file(&probe);
            let state = if folder == data { "writable" } else { "can be made" };
            Check::ok(name, format!("{} {state}", data.display()))
        }
        Err(cause) => Check::not(
            Verdict::Broken,
            name,
            format!("cannot write in {}: {cause}", folder.display()),
            "name a folder of your own with `--data DIR`",
        ),
    }
}

fn direct(folder: &Path) -> Check {
    let name = "O_DIRECT";
    let probe = folder.join(format!(".sietch-doctor-direct-{}", std::process::id()));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let result = open(&probe, flags, Mode::RUSR | Mode::WUSR);
    // Some file systems create the file before they refuse the flag.
    let _ = unlink(&probe);
    match result {
        Ok(_) => Check::ok(name, format!("works in {}", folder.display())),
        Err(cause) => Check::not(
            Verdict::Limited,
            name,
            format!("refused in {} ({cause}): writes pass through the page cache", folder.display()),
            "put the data on ext4, xfs or btrfs",
        ),
    }
}

/// The features that a disk queue over a file there would use, and those that it would not.
fn queue(folder: &Path) -> Check {
    /// The size of the probe file.
    const BYTES: u64 = 4096;
    let name = "disk queue";
    let probe = folder.join(format!(".sietch-doctor-queue-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&probe);
    let opened = file.and_then(|file| {
        let sized = file.set_len(BYTES);
        // The descriptor keeps it for as long as it is needed.
        let _ = std::fs::remove_file(&probe);
        sized.and_then(|()| sietch::disk::open_area(file.into(), BYTES).map_err(std::io::Error::other))
    });
    match opened {
        Ok(queue) => {
            let features: Vec<String> = queue.features().iter().map(ToString::to_string).collect();
            Check::ok(name, format!("{}: {}", queue.description(), features.join("; ")))
        }
        Err(cause) => Check::not(
            Verdict::Limited,
            name,
            format!("cannot be opened over a file in {}: {cause}", folder.display()),
            "name a folder on a local disk with `--data DIR`",
        ),
    }
}

fn space(folder: &Path) -> Check {
    let name = "disk space";
    let Ok(stat) = statvfs(folder) else {
        return Check::ok(name, "unknown");
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free >= WANTED_SPACE {
        return Check::ok(name, format!("{} free", style::bytes(free)));
    }
    Check::not(
        Verdict::Limited,
        name,
        format!("{} free", style::bytes(free)),
        "make room, or give the storage area a smaller size in sietch.toml",
    )
}
