//! The log of a process that `sietch up` started: a file that does not grow without end.
//!
//! 1. `up` opens the file for reading and appending ([`open`]) and passes it on as standard error.
//! 2. Before each line the process that writes it checks the size ([`bound`]). At [`MOST`] bytes it
//!    keeps the last [`KEPT`]. It needs no right to the folder, and no timer.
//! 3. Any other standard error is left alone: a terminal, a pipe, a file of the caller's, which
//!    shells do not open for reading.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, ftruncate};

/// The longest log, in bytes. Each process has one beside the areas.
const MOST: u64 = 16 << 20;
/// What is kept then: the newest lines.
const KEPT: u64 = 4 << 20;

/// Opens the log at `path`, and makes it if there is none.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).open(path)
}

/// Drops the older lines of a log that is too long.
pub(crate) fn bound(log: impl AsFd) -> io::Result<()> {
    bound_to(log, MOST, KEPT)
}

fn bound_to(log: impl AsFd, most: u64, kept: u64) -> io::Result<()> {
    let found = fstat(&log)?;
    let size = u64::try_from(found.st_size).unwrap_or(0);
    let is_ours = || Ok::<_, io::Error>(fcntl_getfl(&log)?.contains(OFlags::RDWR | OFlags::APPEND));
    if !FileType::from_raw_mode(found.st_mode).is_file() || size < most || !is_ours()? {
        return Ok(());
    }
    let mut bytes = vec![0; usize::try_from(kept).unwrap_or(0)];
    let read = rustix::io::pread(&log, &mut bytes[..], size.saturating_sub(kept))?;
    let bytes = bytes.get(..read).unwrap_or_default();
    let line = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    ftruncate(&log, 0)?;
    let mut left = bytes.get(line..).unwrap_or_default();
    while !left.is_empty() {
        let written = rustix::io::write(&log, left)?;
        left = left.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Standard error, bounded if it is such a log.
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        /// One thread at a time shortens the file.
        static WRITING: Mutex<()> = Mutex::new(());
        let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut log = io::stderr();
        // A line that is too much is better than none.
        let _ = bound(&log);
        log.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_its_last_lines_and_another_file_all() {
        let path = std::env::temp_dir().join(format!("sietch-log-file-{}", std::process::id()));
        let mut log = open(&path).expect("a folder");
        for line in 0..1000 {
            bound_to(&log, 1000, 300).expect("a file");
            writeln!(log, "line {line}").expect("room");
            assert!(std::fs::metadata(&path).expect("it is there").len() <= 1010);
        }
        let text = std::fs::read_to_string(&path).expect("text");
        assert!(text.ends_with("line 998\nline 999\n") && text.starts_with("line "), "{text}");
        // As a shell opens it.
        let other = OpenOptions::new().append(true).open(&path).expect("it is there");
        bound_to(&other, 1, 0).expect("a file");
        assert_eq!(std::fs::read_to_string(&path).expect("text"), text);
        std::fs::remove_file(&path).expect("it is there");
    }
}
