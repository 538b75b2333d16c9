//! One daemon on one data directory.
//!
//! The lock is a `flock`. The kernel releases it however the daemon ends. The pid in the file is
//! for display.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::error::Error;

/// Held as long as the daemon runs.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes `daemon.lock` in `data`.
    pub(crate) fn take(data: &Path) -> Result<Self, Error> {
        let path = data.join("daemon.lock");
        let fail = |action| {
            let path = path.clone();
            move |source: std::io::Error| file_error(path, action, source)
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| fail("open the lock file")(error.into()))?;
        let mut file = File::from(fd);
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                // A pid that cannot be read is shown as such; the refusal remains.
                let read = (&mut file).take(32).read_to_string(&mut pid);
                let pid = pid.trim().to_owned();
                let pid = if read.is_err() || pid.is_empty() { "unknown".to_owned() } else { pid };
                return Err(Error::AlreadyRunning { path, pid });
            }
            Err(error) => return Err(fail("lock it")(error.into())),
        }
        file.set_len(0).map_err(fail("write the lock file"))?;
        file.rewind().map_err(fail("write the lock file"))?;
        writeln!(file, "{}", std::process::id()).map_err(fail("write the lock file"))?;
        Ok(Self { _file: file })
    }
}

fn file_error(path: PathBuf, action: &'static str, source: std::io::Error) -> Error {
    let fix = "see who owns the data directory, or choose another with `--data`";
    Error::File { path, action, source, fix }
}
