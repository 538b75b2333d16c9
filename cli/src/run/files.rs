//! The mounts of `sietch run --fs`.

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use sietch_service::fs::shared;

use super::error::RunError;

/// Most bytes of the list.
const MAX_LIST: usize = 4000;

/// The list that the library reads; none without a folder.
///
/// # Errors
/// [`RunError::NotServed`].
pub(super) fn mounts(folders: &[PathBuf]) -> Result<Option<OsString>, RunError> {
    let mut list = OsString::new();
    for folder in folders {
        let fail = |cause: &str| RunError::NotServed { path: folder.clone(), cause: cause.to_owned() };
        let path = std::fs::canonicalize(folder).map_err(|cause| fail(&cause.to_string()))?;
        check(&path).map_err(|cause| fail(&cause))?;
        if path.as_os_str().as_bytes().contains(&b':') {
            return Err(fail("a path with a colon cannot be passed on"));
        }
        if !list.is_empty() {
            list.push(":");
        }
        list.push(&path);
        if list.len() > MAX_LIST {
            return Err(fail("the names of these folders are too long in all"));
        }
    }
    Ok((!list.is_empty()).then_some(list))
}

/// Whether the mount says where its service is.
fn check(path: &Path) -> Result<(), String> {
    let folder = std::fs::File::open(path).map_err(|cause| cause.to_string())?;
    match sietch_posix::files::ask(folder.as_fd()) {
        Ok(way) if shared::is_served(&way.folder) => Ok(()),
        Ok(way) => Err(format!("no service that this user may use answers in {}", way.folder.display())),
        Err(cause) if cause.raw_os_error() == Some(Errno::NOTTY.raw_os_error()) => {
            Err("it is not on a mount of a file system that is served".to_owned())
        }
        Err(cause) => Err(cause.to_string()),
    }
}
