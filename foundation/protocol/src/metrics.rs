//! A page of counters that an application shares with the daemon.
//!
//! ```text
//!    0        8        12       16         24                    64
//!    +--------+--------+--------+----------+---------------------+
//!    | magic  | version| count  | sequence | reserved, zero      |     header
//!    +--------+--------+--------+----------+---------------------+
//!    | name, 48 bytes, ASCII, NUL padded | kind u32 | 0 u32 | value u64 |     entry, 64 bytes
//!    +-----------------------------------+----------+-------+-----------+
//! ```
//! All integers little-endian.
//!
//! 1. The page is a memfd sealed against growing and shrinking, so that the daemon can never be
//!    made to wait or to fault on it. The daemon reads it with `pread` and maps nothing of a
//!    foreign file.
//! 2. The writer fills its own copy (no system call for an update) and publishes the whole page at
//!    intervals. It makes `sequence` odd, writes the entries, and makes it even again.
//! 3. The reader takes the entries between two equal, even sequences. It tries `MAX_TRIES` times:
//!    a hostile writer costs it that and gets no counters shown.
//! 4. Names are `a-z 0-9 _ .`; anything else is refused, because they end on a terminal.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub use crate::types::{Kind, Metric};
use rustix::fs::{MemfdFlags, SealFlags};

/// First bytes of a page.
pub(crate) const MAGIC: [u8; 8] = *b"SIETCHMP";
/// The layout above.
pub(crate) const VERSION: u32 = 1;
/// The most entries: their JSON form fits a frame.
pub(crate) const MAX_ENTRIES: usize = 512;
/// The longest name, in bytes.
pub(crate) const MAX_METRIC_NAME: usize = 48;
/// How often the reader tries before it reports the page as unstable. A publish takes microseconds.
pub(crate) const MAX_TRIES: usize = 8;

const HEADER: usize = 64;
const ENTRY: usize = 64;

/// Why a page is refused.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// A system call failed.
    #[error("metrics page: {0}; check that this is a memfd and that memory is free")]
    Io(#[source] io::Error),
    /// Without the seals its owner could cut it short.
    #[error("metrics page: not a memfd sealed against growing and shrinking; make it with metrics::Page")]
    NotSealed,
    /// The layout is not this one.
    #[error("metrics page: {0}; make it with metrics::Page of the same version")]
    Malformed(&'static str),
    /// It changed during every attempt to read it.
    #[error("metrics page: changed during each of {MAX_TRIES} reads; publish at most ten times a second")]
    Unstable,
    /// A name that could not be shown.
    #[error("metrics page: `{0}` is no name of a metric; use 1 to {MAX_METRIC_NAME} of a-z 0-9 _ .")]
    Name(String),
    /// Over `MAX_ENTRIES`.
    #[error("metrics page: {0} entries are over the limit of {MAX_ENTRIES}; publish fewer")]
    TooMany(usize),
}

fn is_metric_name(name: &[u8]) -> bool {
    let plain = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.');
    (1..=MAX_METRIC_NAME).contains(&name.len()) && name.iter().all(plain)
}

/// The owner's side of a page.
#[derive(Debug)]
pub struct Page {
    file: OwnedFd,
    bytes: Vec<u8>,
    sequence: u64,
}

impl Page {
    /// A sealed memfd with one zero entry for each name.
    ///
    /// # Errors
    /// See [`MetricsError`].
    pub fn create(entries: &[(&str, Kind)]) -> Result<Self, MetricsError> {
        if entries.len() > MAX_ENTRIES {
            return Err(MetricsError::TooMany(entries.len()));
        }
        let mut bytes = vec![0; HEADER + ENTRY * entries.len()];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let count = u32::try_from(entries.len()).map_err(|_| MetricsError::TooMany(entries.len()))?;
        bytes[12..16].copy_from_slice(&count.to_le_bytes());
        for (entry, (name, kind)) in bytes[HEADER..].chunks_exact_mut(ENTRY).zip(entries) {
            if !is_metric_name(name.as_bytes()) {
                return Err(MetricsError::Name(name.chars().take(MAX_METRIC_NAME).collect()));
            }
            entry[..name.len()].copy_from_slice(name.as_bytes());
            entry[48..52].copy_from_slice(&u32::from(*kind == Kind::Gauge).to_le_bytes());
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("sietch-metrics", flags).map_err(into_error)?;
        let length = u64::try_from(bytes.len()).map_err(|_| MetricsError::TooMany(entries.len()))?;
        rustix::fs::ftruncate(&file, length).map_err(into_error)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(into_error)?;
        let mut page = Self { file, bytes, sequence: 0 };
        page.publish()?;
        Ok(page)
    }

    /// Entries in the page.
    pub fn len(&self) -> usize {
        (self.bytes.len() - HEADER) / ENTRY
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets entry `index` in the owner's copy. An index past the end does nothing.
    pub fn set(&mut self, index: usize, value: u64) {
        if let Some(entry) = self.bytes[HEADER..].chunks_exact_mut(ENTRY).nth(index) {
            entry[56..].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Makes the values visible to readers. It costs three system calls: publish at most ten times
    /// a second.
    ///
    /// # Errors
    /// [`MetricsError::Io`].
    pub fn publish(&mut self) -> Result<(), MetricsError> {
        self.sequence += 1;
        self.bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        write_all(&self.file, &self.bytes[..HEADER], 0)?;
        write_all(&self.file, &self.bytes[HEADER..], HEADER)?;
        self.sequence += 1;
        self.bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        write_all(&self.file, &self.bytes[..HEADER], 0)
    }
}

impl AsFd for Page {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn into_error(error: rustix::io::Errno) -> MetricsError {
    MetricsError::Io(error.into())
}

fn write_all(file: &OwnedFd, bytes: &[u8], at: usize) -> Result<(), MetricsError> {
    let mut done = 0;
    while done < bytes.len() {
        // usize is at most 64 bits wide, and the page is small.
        let count = rustix::io::pwrite(file, &bytes[done..], (at + done) as u64).map_err(into_error)?;
        if count == 0 {
            return Err(MetricsError::Io(io::ErrorKind::WriteZero.into()));
        }
        done += count;
    }
    Ok(())
}

fn read_all(file: BorrowedFd<'_>, bytes: &mut [u8], at: usize) -> Result<(), MetricsError> {
    let mut done = 0;
    while done < bytes.len() {
        let count = rustix::io::pread(file, &mut bytes[done..], (at + done) as u64).map_err(into_error)?;
        if count == 0 {
            return Err(MetricsError::Malformed("shorter than its header says"));
        }
        done += count;
    }
    Ok(())
}

/// Whether `file` can be read without trusting its owner: a memfd that cannot change its size.
///
/// # Errors
/// [`MetricsError::NotSealed`].
pub fn check_sealed<F: AsFd>(file: F) -> Result<(), MetricsError> {
    // Only memfds (and hugetlbfs) answer F_GET_SEALS at all: a pipe, a FUSE file or a device does
    // not get past here.
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| MetricsError::NotSealed)?;
    if seals.contains(SealFlags::SHRINK | SealFlags::GROW) { Ok(()) } else { Err(MetricsError::NotSealed) }
}

/// Reads a page of another process.
///
/// # Errors
/// See [`MetricsError`].
pub fn read<F: AsFd>(file: F) -> Result<Vec<Metric>, MetricsError> {
    let file = file.as_fd();
    check_sealed(file)?;
    for _ in 0..MAX_TRIES {
        let mut header = [0; HEADER];
        read_all(file, &mut header, 0)?;
        let (sequence, count) = parse_header(&header)?;
        if !sequence.is_multiple_of(2) {
            continue;
        }
        let mut entries = vec![0; count * ENTRY];
        read_all(file, &mut entries, HEADER)?;
        let mut again = [0; HEADER];
        read_all(file, &mut again, 0)?;
        if again == header {
            return entries.chunks_exact(ENTRY).map(parse_entry).collect();
        }
    }
    Err(MetricsError::Unstable)
}

fn parse_header(header: &[u8; HEADER]) -> Result<(u64, usize), MetricsError> {
    if header[..8] != MAGIC {
        return Err(MetricsError::Malformed("does not start with SIETCHMP"));
    }
    if little_endian(&header[8..12]) != u64::from(VERSION) {
        return Err(MetricsError::Malformed("has another version"));
    }
    let count = usize::try_from(little_endian(&header[12..16])).unwrap_or(usize::MAX);
    if count > MAX_ENTRIES {
        return Err(MetricsError::TooMany(count));
    }
    Ok((little_endian(&header[16..24]), count))
}

fn parse_entry(entry: &[u8]) -> Result<Metric, MetricsError> {
    let name = &entry[..MAX_METRIC_NAME];
    let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    if !is_metric_name(&name[..length]) || name[length..].iter().any(|&byte| byte != 0) {
        return Err(MetricsError::Malformed("has a name that cannot be shown"));
    }
    let name = String::from_utf8_lossy(&name[..length]).into_owned();
    let kind = match little_endian(&entry[48..52]) {
        0 => Kind::Counter,
        1 => Kind::Gauge,
        _ => return Err(MetricsError::Malformed("has an entry of unknown kind")),
    };
    Ok(Metric { name, kind, value: little_endian(&entry[56..64]) })
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests;
