//! `sietch fs pin`: an attribute of a file in a mount, which the mover of that mount follows.
//!
//! Other file systems take the attribute too, where it means nothing: so a file must be on FUSE,
//! and its device in the mount table with the source of `sietch fs mount`.

use std::io;
use std::path::Path;

use rustix::fs::XattrFlags;
use sietch_service::fs;

use crate::arguments::fs::{FsPinArguments, PinClass};
use crate::error::Error;
use crate::output;

/// The type of FUSE in `statfs(2)` (`FUSE_SUPER_MAGIC`).
const FUSE: i64 = 0x6573_5546;

/// Sets or removes the attribute that the mover looks for.
///
/// # Errors
/// [`Error::file`].
pub(crate) fn pin(arguments: &FsPinArguments) -> Result<(), Error> {
    let file = &arguments.file;
    let class = match arguments.class {
        PinClass::Nvm => Some("nvm"),
        PinClass::Ssd => Some("ssd"),
        PinClass::Hdd => Some("hdd"),
        PinClass::None => None,
    };
    let mount = "name a file or directory below the directory of a `sietch fs mount`";
    let media =
        "its file system has no medium of this class; name another class, or add one: `sietch fs add`";
    if !is_on_mount(file).map_err(Error::file(file, mount))? {
        return Err(Error::file(file, mount)(io::Error::other("is on no mount of `sietch fs`")));
    }
    let done = match class {
        Some(class) => rustix::fs::setxattr(file, fs::PIN, class.as_bytes(), XattrFlags::empty()),
        None => match rustix::fs::removexattr(file, fs::PIN) {
            // It was not pinned.
            Err(rustix::io::Errno::NODATA) => Ok(()),
            removed => removed,
        },
    };
    done.map_err(|errno| {
        let fix = if errno == rustix::io::Errno::INVAL { media } else { mount };
        Error::file(file, fix)(errno.into())
    })?;
    let said = class.map_or("is not pinned".to_owned(), |class| format!("is pinned to {class}"));
    output::print(&format!("{} {said}\n", file.display()))
}

/// Whether a file is on a mount of `sietch fs mount`.
fn is_on_mount(file: &Path) -> io::Result<bool> {
    if rustix::fs::statfs(file)?.f_type != FUSE {
        return Ok(false);
    }
    let device = rustix::fs::stat(file)?.st_dev;
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(is_ours(&table, device, &sietch_fuse::Options::default().source))
}

/// Whether the mount table has this device as FUSE with this source (`proc_pid_mountinfo(5)`).
fn is_ours(table: &str, (major, minor): (u32, u32), source: &str) -> bool {
    let device = format!("{major}:{minor}");
    table.lines().any(|line| {
        let Some((mount, file_system)) = line.split_once(" - ") else { return false };
        let mut words = file_system.split(' ');
        mount.split(' ').nth(2) == Some(device.as_str())
            && words.next().is_some_and(|kind| kind == "fuse" || kind.starts_with("fuse."))
            && words.next() == Some(source)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mount_with_our_source_is_one() {
        let table = "21 1 0:19 / /mnt/a rw - fuse sietch-fs rw,user_id=0\n\
                     22 1 0:20 / /mnt/other rw - fuse sshfs rw\n\
                     23 1 0:1 / /mnt/over rw shared:1 - tmpfs sietch-fs rw\n";
        for (minor, ours) in [(19, true), (20, false), (1, false), (9, false)] {
            assert_eq!(is_ours(table, (0, minor), "sietch-fs"), ours, "{minor}");
        }
        assert!(!is_ours(table, (1, 19), "sietch-fs"));
    }

    #[test]
    fn a_file_elsewhere_gets_no_attribute() {
        let file = std::env::temp_dir().join(format!("sietch-pin-{}", std::process::id()));
        std::fs::write(&file, b"of a user").expect("room");
        for class in [PinClass::Ssd, PinClass::None] {
            let refused = pin(&FsPinArguments { file: file.clone(), class }).expect_err("it is no mount");
            assert!(refused.to_string().contains("is on no mount"), "{refused}");
        }
        let set = rustix::fs::getxattr(&file, fs::PIN, &mut [0_u8; 8]);
        std::fs::remove_file(&file).expect("it goes");
        assert!(set.is_err(), "{set:?}");
    }
}
