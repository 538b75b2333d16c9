//! Bytes that travel as a descriptor: a memfd that is sealed against every change.
//!
//! 1. The sender writes the memfd, and then seals it with `F_SEAL_SHRINK|GROW|WRITE|SEAL`.
//! 2. The receiver checks seals and size before it reads. From then on neither can change, and
//!    reading cannot block on anything that the sender controls.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

/// The seals that forbid every change.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// Why a descriptor is refused.
#[derive(Debug, thiserror::Error)]
pub enum SealedError {
    /// A system call failed.
    #[error("sealed bytes: {0}; see whether memory or descriptors are short")]
    Io(#[source] io::Error),
    /// Its sender could still change it.
    #[error("sealed bytes: not a memfd that is sealed against every change; make it with sealed::make")]
    NotSealed,
    /// It is longer than allowed.
    #[error("sealed bytes: {found} of them, and {most} were allowed; send no more than was requested")]
    TooLong {
        /// Bytes in it.
        found: u64,
        /// Bytes allowed.
        most: u64,
    },
}

fn io(error: rustix::io::Errno) -> SealedError {
    SealedError::Io(error.into())
}

/// Puts `bytes` into a sealed memfd; `name` is for display in `/proc`.
///
/// # Errors
/// [`SealedError::Io`].
pub fn make(name: &str, bytes: &[u8]) -> Result<OwnedFd, SealedError> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(io)?;
    let mut at = 0;
    while at < bytes.len() {
        match rustix::io::write(&file, &bytes[at..]) {
            Ok(0) => return Err(SealedError::Io(io::ErrorKind::WriteZero.into())),
            Ok(count) => at += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io(error)),
        }
    }
    rustix::fs::fcntl_add_seals(&file, SEALS).map_err(io)?;
    Ok(file)
}

/// The number of bytes in `file`, if it is sealed and there are at most `most`.
///
/// # Errors
/// See [`SealedError`].
pub fn check(file: impl AsFd, most: u64) -> Result<u64, SealedError> {
    let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| SealedError::NotSealed)?;
    if !seals.contains(SEALS) {
        return Err(SealedError::NotSealed);
    }
    let found = u64::try_from(rustix::fs::fstat(&file).map_err(io)?.st_size).unwrap_or(u64::MAX);
    if found > most { Err(SealedError::TooLong { found, most }) } else { Ok(found) }
}

/// The bytes of `file`, as [`check`] allows them.
///
/// # Errors
/// See [`SealedError`].
pub fn read(file: impl AsFd, most: u64) -> Result<Vec<u8>, SealedError> {
    let size = check(&file, most)?;
    let size = usize::try_from(size).map_err(|_| SealedError::TooLong { found: size, most })?;
    let mut bytes = vec![0; size];
    let mut at = 0;
    while at < bytes.len() {
        match rustix::io::pread(&file, &mut bytes[at..], at as u64) {
            Ok(0) => return Err(SealedError::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => at += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io(error)),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_bytes_are_read_back_and_cannot_be_changed() {
        for bytes in [&b""[..], b"abc", &[7; 100_000]] {
            let file = make("test", bytes).unwrap();
            assert_eq!(read(&file, bytes.len() as u64).unwrap(), bytes);
            assert!(rustix::io::pwrite(&file, b"x", 0).is_err());
        }
    }

    #[test]
    fn bytes_that_are_not_sealed_or_too_long_are_refused() {
        let open = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(matches!(read(&open, 10), Err(SealedError::NotSealed)));
        rustix::fs::fcntl_add_seals(&open, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(matches!(check(&open, 10), Err(SealedError::NotSealed)));
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        assert!(matches!(check(&pipe, 10), Err(SealedError::NotSealed)));
        let long = make("test", &[1; 11]).unwrap();
        assert!(matches!(read(&long, 10), Err(SealedError::TooLong { found: 11, most: 10 })));
    }
}
