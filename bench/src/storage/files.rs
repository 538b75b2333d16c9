//! Records in plain files, one thread for each writer.
//!
//! 1. *bare*: one direct, durable write (`O_DIRECT`, `RWF_DSYNC`) of whole sectors into a fully
//!    written file. It shows the limit of the device.
//! 2. *in place*: `pwrite` and `fdatasync` into such a file, through the page cache.
//! 3. *appended*: the same behind the end of the file. Each writer has its own file, and truncates
//!    it when it is large.
//! 4. *tmpfs*: in place, in memory.

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use sietch_disk::Buffer;

use super::subject::{BlockResult, Subject, Tally, WRITERS, Work, program};
use crate::error::{Error, system};

/// The bytes of each writer in a file that is written in place. An appended file is truncated after
/// as many.
const REGION: u64 = 1 << 20;

/// The alignment of a direct write.
const SECTOR: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Bare,
    InPlace,
    Appended,
}

/// Records in files, as the module's header describes.
#[derive(Debug)]
pub(super) struct Files {
    name: &'static str,
    way: Way,
    /// One for each writer.
    files: Vec<File>,
    /// The file to remove, where the folder does not belong to this program.
    own: Vec<PathBuf>,
    /// The next offset of each writer.
    places: Vec<u64>,
}

impl Files {
    /// Direct, durable writes.
    pub(super) fn bare(folder: &Path) -> Result<Self, Error> {
        Self::create("bare O_DIRECT|DSYNC write", Way::Bare, folder, "bare")
    }

    /// Write and `fdatasync` into written blocks.
    pub(super) fn in_place(folder: &Path) -> Result<Self, Error> {
        Self::create("write + fdatasync in place", Way::InPlace, folder, "in-place")
    }

    /// Write and `fdatasync` at the end.
    pub(super) fn appended(folder: &Path) -> Result<Self, Error> {
        Self::create("write + fdatasync appended", Way::Appended, folder, "appended")
    }

    /// In place, on tmpfs.
    pub(super) fn tmpfs() -> Result<Self, Error> {
        let stem = format!("sietch-bench-{}", std::process::id());
        let mut files =
            Self::create("write + fdatasync on tmpfs", Way::InPlace, Path::new("/dev/shm"), &stem)?;
        files.own = paths(Path::new("/dev/shm"), &stem);
        Ok(files)
    }

    fn create(name: &'static str, way: Way, folder: &Path, stem: &str) -> Result<Self, Error> {
        let mut files = Vec::new();
        for path in paths(folder, stem) {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true);
            let file = options.open(&path).map_err(system("making a file"))?;
            if way != Way::Appended {
                file.write_all_at(&vec![0; REGION as usize], 0).map_err(system("filling a file"))?;
                file.sync_all().map_err(system("flushing a file"))?;
            }
            let file = if way == Way::Bare {
                // Not every file system supports O_DIRECT: the error names it.
                options.truncate(false).custom_flags(OFlags::DIRECT.bits().cast_signed());
                options.open(&path).map_err(system("opening a file with O_DIRECT"))?
            } else {
                file
            };
            files.push(file);
        }
        let places = vec![0; files.len()];
        Ok(Self { name, way, files, own: Vec::new(), places })
    }
}

/// Bare writes alone, which other measurements are compared with.
#[derive(Debug)]
pub(crate) struct BareWrites(Files);

impl BareWrites {
    /// Writes to a file in `folder`.
    pub(crate) fn create(folder: &Path) -> Result<Self, Error> {
        Files::bare(folder).map(Self)
    }

    /// Writes one record of so many bytes after another for `duration`. Returns the median time of
    /// a write in nanoseconds.
    pub(crate) fn median(&mut self, bytes: usize, duration: Duration) -> Result<u64, Error> {
        let [median, ..] = self.0.block(Work { bytes, writers: 1, duration })?.latency;
        Ok(median)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.own {
            // A file that cannot be removed is recognisable by its process id.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn paths(folder: &Path, stem: &str) -> Vec<PathBuf> {
    let most = WRITERS.iter().copied().max().unwrap_or(1);
    (0..most).map(|writer| folder.join(format!("{stem}-{writer}"))).collect()
}

/// Appends one record of one writer; it is durable when this returns.
fn append(file: &File, way: Way, place: &mut u64, record: &[u8]) -> std::io::Result<()> {
    if *place + record.len() as u64 > REGION {
        *place = 0;
        if way == Way::Appended {
            file.set_len(0)?;
        }
    }
    match way {
        Way::Bare => {
            let written = rustix::io::pwritev2(file, &[IoSlice::new(record)], *place, ReadWriteFlags::DSYNC)?;
            if written != record.len() {
                return Err(std::io::ErrorKind::WriteZero.into());
            }
        }
        Way::InPlace | Way::Appended => {
            file.write_all_at(record, *place)?;
            file.sync_data()?;
        }
    }
    *place += record.len() as u64;
    Ok(())
}

impl Subject for Files {
    fn name(&self) -> &'static str {
        self.name
    }

    fn block(&mut self, work: Work) -> Result<BlockResult, Error> {
        let length = if self.way == Way::Bare { work.bytes.next_multiple_of(SECTOR) } else { work.bytes };
        let way = self.way;
        let writers = self.files.iter().zip(&mut self.places).take(work.writers);
        threads(work, writers, |(file, place), tally| {
            let mut buffer = Buffer::new(length);
            buffer.fill(0x5a);
            let end = Instant::now() + work.duration;
            let mut start = Instant::now();
            while start < end {
                append(file, way, place, &buffer[..length]).map_err(system("writing a record"))?;
                start = tally.done(start);
            }
            Ok(())
        })
    }
}

/// Runs `write` for each writer on a thread of its own, and adds up their results.
pub(super) fn threads<W: Send>(
    work: Work,
    writers: impl Iterator<Item = W>,
    write: impl Fn(W, &mut Tally) -> Result<(), Error> + Sync,
) -> Result<BlockResult, Error> {
    let mut all = Tally::new()?;
    let write = &write;
    let tallies: Vec<Result<Tally, Error>> = std::thread::scope(|scope| {
        let running: Vec<_> = writers
            .take(work.writers)
            .map(|writer| {
                scope.spawn(move || {
                    let mut tally = Tally::new()?;
                    write(writer, &mut tally)?;
                    Ok(tally)
                })
            })
            .collect();
        let failed = || program("a writer", "panicked".into());
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(failed()))).collect()
    });
    for tally in tallies {
        let tally = tally?;
        all.latency.add(&tally.latency).map_err(|cause| program("histogram", cause.to_string()))?;
        // No writer was served for this time: the shortest of the writers' longest silences.
        all.silence = if all.silence == 0 { tally.silence } else { all.silence.min(tally.silence) };
    }
    Ok(all.result())
}
