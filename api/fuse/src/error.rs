//! Why a file system is not mounted, or not any more.

use std::io;
use std::path::PathBuf;

/// See the variants.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The directory cannot be used.
    #[error("{}: {source}; name a directory that is there", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// Something is mounted there.
    #[error("{}: {cause}", directory.display())]
    Taken {
        /// The directory.
        directory: PathBuf,
        /// What is there, and what to do about it.
        cause: &'static str,
    },
    /// The kernel, or its helper, did not mount.
    #[error("cannot mount on {}: {source}; {fix}", directory.display())]
    Refused {
        /// The directory.
        directory: PathBuf,
        /// What the kernel says.
        source: io::Error,
        /// What to do about it.
        fix: &'static str,
    },
    /// It cannot be unmounted.
    #[error("cannot unmount {}: {source}; end the programs that use it, or detach it", directory.display())]
    Unmount {
        /// The directory.
        directory: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The connection with the kernel broke.
    #[error("{}: the connection with the kernel broke: {source}; mount it again", directory.display())]
    Broken {
        /// The directory.
        directory: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The file system panicked.
    #[error("{}: the file system panicked, and returned EIO since; mount it again", directory.display())]
    Panicked {
        /// The directory.
        directory: PathBuf,
    },
}
