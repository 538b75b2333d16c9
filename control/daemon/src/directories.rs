//! Making the directories of the daemon.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::error::Error;

/// Creates a directory with `mode` if it does not exist. Leaves an existing one as it is.
pub(crate) fn make_directory(path: &Path, mode: u32) -> Result<(), Error> {
    if path.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(path)
        .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)))
        .map_err(|source| file_error(path, "make the directory", source))
}

/// The error of a file or directory of the daemon.
pub(crate) fn file_error(path: &Path, action: &'static str, source: io::Error) -> Error {
    let fix = "see who owns it, or choose other places with `--data` and `--socket`";
    Error::File { path: path.into(), action, source, fix }
}
