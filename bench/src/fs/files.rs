//! The operations of a measurement, and a directory of the kernel that has them.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, statat, syncfs, unlinkat};
use sietch_fs::file_system::Handle;
use sietch_service::fs::Totals;

use crate::error::{Error, system};

/// When changes are durable that no `fsync` asks for.
pub(super) const LATER: &str = "later";

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Writes go where they say.
    Anywhere,
    /// Writes go to the end.
    Append,
}

/// An open file.
#[derive(Debug)]
pub(super) enum Open {
    Kernel(File),
    Sietch(Handle),
}

/// One flat directory, that threads share.
pub(super) trait Files: Sync {
    /// The name in the report.
    fn name(&self) -> &'static str;
    /// When changes are durable that no `fsync` asks for, in the report.
    fn durable(&self) -> &'static str;
    fn create(&self, name: &str, usage: Use) -> io::Result<Open>;
    fn open(&self, name: &str, usage: Use) -> io::Result<Open>;
    fn close(&self, file: Open);
    fn append(&self, file: &Open, bytes: &[u8]) -> io::Result<()>;
    fn write_at(&self, file: &Open, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Returns the bytes that were read.
    fn read_at(&self, file: &Open, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;
    /// `fsync`.
    fn sync(&self, file: &Open) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn unlink(&self, name: &str) -> io::Result<()>;
    /// `stat`, the size.
    fn size(&self, name: &str) -> io::Result<u64>;
    /// Returns when no work of before is left for later.
    fn settle(&self) -> io::Result<()>;
    /// What was digested, where there is a digest.
    fn totals(&self) -> Option<Totals> {
        None
    }
}

/// A directory of the kernel, and what must be kept for it: a mount.
pub(super) struct Directory<K> {
    name: &'static str,
    durable: &'static str,
    /// Dropped before the mount, which would be busy.
    directory: OwnedFd,
    _kept: K,
}

impl<K> Directory<K> {
    /// Uses `path`, an empty directory.
    pub(super) fn open(
        name: &'static str,
        durable: &'static str,
        path: &Path,
        kept: K,
    ) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty()).map_err(system("opening a directory"))?;
        Ok(Self { name, durable, directory, _kept: kept })
    }

    fn open_with(&self, name: &str, usage: Use, flags: OFlags) -> io::Result<Open> {
        let append = if usage == Use::Append { OFlags::APPEND } else { OFlags::empty() };
        let flags = flags | append | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Open::Kernel(openat(&self.directory, name, flags, Mode::from_raw_mode(0o644))?.into()))
    }
}

fn kernel(file: &Open) -> io::Result<&File> {
    match file {
        Open::Kernel(file) => Ok(file),
        Open::Sietch(_) => Err(io::Error::other("a file of another subject")),
    }
}

impl<K: Sync> Files for Directory<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn durable(&self) -> &'static str {
        self.durable
    }

    fn create(&self, name: &str, usage: Use) -> io::Result<Open> {
        self.open_with(name, usage, OFlags::CREATE | OFlags::EXCL)
    }

    fn open(&self, name: &str, usage: Use) -> io::Result<Open> {
        self.open_with(name, usage, OFlags::empty())
    }

    fn close(&self, file: Open) {
        drop(file);
    }

    fn append(&self, file: &Open, bytes: &[u8]) -> io::Result<()> {
        let mut file = kernel(file)?;
        file.write_all(bytes)
    }

    fn write_at(&self, file: &Open, offset: u64, bytes: &[u8]) -> io::Result<()> {
        kernel(file)?.write_all_at(bytes, offset)
    }

    fn read_at(&self, file: &Open, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        kernel(file)?.read_at(bytes, offset)
    }

    fn sync(&self, file: &Open) -> io::Result<()> {
        kernel(file)?.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.directory, from, &self.directory, to)?)
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.directory, name, AtFlags::empty())?)
    }

    fn size(&self, name: &str) -> io::Result<u64> {
        Ok(statat(&self.directory, name, AtFlags::empty())?.st_size as u64)
    }

    fn settle(&self) -> io::Result<()> {
        Ok(syncfs(&self.directory)?)
    }
}
