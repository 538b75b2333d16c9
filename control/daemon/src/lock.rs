//! One daemon on one data directory.
//!
//! The lock is a `flock`. The kernel releases it however the daemon ends. The file has two lines,
//! the pid and the socket: a command that looks at another socket can name the daemon's.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::error::Error;

/// The longest content that is read: a pid and a path.
const MAX_TEXT: u64 = 4096;

const NAME: &str = "daemon.lock";

/// Held as long as the daemon runs.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes `daemon.lock` in `data`, for a daemon that will listen at `socket`.
    pub(crate) fn take(data: &Path, socket: &Path) -> Result<Self, Error> {
        let path = data.join(NAME);
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
                // A pid that cannot be read is shown as such; the refusal remains.
                let (pid, socket) = read(file).unwrap_or_else(|| ("unknown".to_owned(), PathBuf::new()));
                return Err(Error::AlreadyRunning { path, pid, socket });
            }
            Err(error) => return Err(fail("lock it")(error.into())),
        }
        file.set_len(0).map_err(fail("write the lock file"))?;
        file.rewind().map_err(fail("write the lock file"))?;
        // A relative path means something in this process's folder alone.
        let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
        writeln!(file, "{}", std::process::id())
            .and_then(|()| file.write_all(socket.as_os_str().as_bytes()))
            .and_then(|()| file.write_all(b"\n"))
            .map_err(fail("write the lock file"))?;
        Ok(Self { _file: file })
    }
}

/// The socket of the daemon that last worked on the data directory `data`. The daemon may have
/// ended since then.
pub fn last_socket(data: &Path) -> Option<PathBuf> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(data.join(NAME), flags, Mode::empty()).ok()?;
    Some(read(File::from(file))?.1)
}

/// The pid and the socket in a lock file.
fn read(file: File) -> Option<(String, PathBuf)> {
    let mut text = Vec::new();
    file.take(MAX_TEXT).read_to_end(&mut text).ok()?;
    let mut lines = text.split(|byte| *byte == b'\n');
    let pid = String::from_utf8(lines.next()?.to_vec()).ok()?;
    let socket = PathBuf::from(OsStr::from_bytes(lines.next()?));
    (!pid.is_empty()).then_some((pid, socket))
}

fn file_error(path: PathBuf, action: &'static str, source: std::io::Error) -> Error {
    let fix = "see who owns the data directory, or choose another with `--data`";
    Error::File { path, action, source, fix }
}
