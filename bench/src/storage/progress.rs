//! Appends while a log compacts, and while its area grows and shrinks: how long does the writer
//! wait?
//!
//! 1. One writer appends records of [`BYTES`] bytes, each after the last is durable. Meanwhile one
//!    event happens. For at least [`WINDOW`], acknowledgements are counted in slices of [`SLICE`],
//!    and the longest time without one is recorded.
//! 2. The events:
//!    - *Nothing*: for comparison.
//!    - *Compaction*: a snapshot of [`STATE`] bytes is written beside the appends.
//!    - *Growth*: another thread doubles the area (reserved, zeroed and durable, as the daemon does
//!      it); then the log uses the new half.
//!    - *Shrinking*: the log moves out of the second half, and the area is cut.
//! 3. Linux, for comparison: a file that is written in place with `fdatasync`. It is written alone,
//!    then while another thread reserves as much again (`fallocate`). Last, that thread also writes
//!    zeros there, so that no later write has to convert an extent.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use serde::Serialize;
use sietch_disk::{AreaQueue, area, open_area};
use sietch_persist::{FormatOptions, Log, Options, SnapshotError};

use super::subject::log_failed;
use crate::error::{Error, system};

/// Bytes of a record.
const BYTES: usize = 1024;

/// The length of one count.
const SLICE: Duration = Duration::from_millis(100);

/// The least time for which acknowledgements are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// Bytes of the state that a compaction writes.
const STATE: usize = 64 << 20;

/// Bytes of the area before it grows.
const AREA: u64 = 256 << 20;

/// One event, and the writer's measurements.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Progress {
    pub subject: &'static str,
    pub event: &'static str,
    /// How long it took, in milliseconds.
    pub took: f64,
    /// Durable appends in each slice of 100 ms.
    pub slices: Vec<u64>,
    /// Longest time without one, in milliseconds.
    pub silence: f64,
}

/// The acknowledgements of a writer so far.
struct Acknowledgements {
    begin: Instant,
    last: Instant,
    silence: Duration,
    slices: Vec<u64>,
}

impl Acknowledgements {
    fn new() -> Self {
        let now = Instant::now();
        Self { begin: now, last: now, silence: Duration::ZERO, slices: Vec::new() }
    }

    fn acknowledged(&mut self) {
        let now = Instant::now();
        self.silence = self.silence.max(now - self.last);
        self.last = now;
        // The conversion fails only after years.
        let slice = ((now - self.begin).as_nanos() / SLICE.as_nanos()) as usize;
        if self.slices.len() <= slice {
            self.slices.resize(slice + 1, 0);
        }
        self.slices[slice] += 1;
    }

    /// The results; the last slice is incomplete and does not count.
    fn finish(mut self, subject: &'static str, event: &'static str, took: Duration) -> Progress {
        self.slices.pop();
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let (took, silence) = (milliseconds(took), milliseconds(self.silence.max(self.last.elapsed())));
        Progress { subject, event, took, slices: self.slices, silence }
    }
}

/// A log, its area, and its writer.
struct Written {
    path: PathBuf,
    fd: OwnedFd,
    log: Log<AreaQueue>,
    waiting: VecDeque<u64>,
}

impl Written {
    fn create(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("area-progress");
        area::create(&path, AREA, &mut |_| {}).map_err(log_failed)?;
        let fd = area::open(&path, AREA).map_err(log_failed)?;
        let mut disk = queue(&fd, AREA)?;
        Log::format(&mut disk, FormatOptions::new(u128::from(std::process::id()))).map_err(log_failed)?;
        let (log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).map_err(log_failed)?;
        Ok(Self { path, fd, log, waiting: VecDeque::new() })
    }

    /// Appends while `event` runs. It gets the log in each iteration, and returns whether it is
    /// done.
    fn during(
        &mut self,
        name: &'static str,
        event: &mut dyn FnMut(&mut Log<AreaQueue>) -> Result<bool, Error>,
    ) -> Result<Progress, Error> {
        let record = [0x5a; BYTES];
        let mut seen = Acknowledgements::new();
        let mut took = None;
        while took.is_none() || seen.begin.elapsed() < WINDOW {
            if took.is_none() && event(&mut self.log)? {
                took = Some(seen.begin.elapsed());
            }
            if took.is_some() && self.log.should_compact() {
                begin(&mut self.log)?;
                self.log.finish_snapshot().map_err(log_failed)?;
            }
            if self.waiting.is_empty() {
                self.waiting.push_back(self.log.append(&record).map_err(log_failed)?);
            }
            self.log.submit().map_err(log_failed)?;
            let durable = self.log.wait(Duration::from_millis(1)).map_err(log_failed)?;
            while self.waiting.front().is_some_and(|sequence| *sequence <= durable) {
                self.waiting.pop_front();
                seen.acknowledged();
            }
        }
        Ok(seen.finish("Sietch log", name, took.unwrap_or_default()))
    }

    fn compaction(&mut self) -> Result<Progress, Error> {
        let piece = vec![0x77; 64 << 10];
        let mut left = Some(STATE);
        begin(&mut self.log)?;
        self.during("compaction", &mut |log| {
            // As in the store: one slice in each iteration.
            for _ in 0..4 {
                let Some(bytes) = left.filter(|bytes| *bytes > 0 && log.snapshot_room() > 0) else { break };
                log.snapshot_append(&piece).map_err(log_failed)?;
                left = Some(bytes.saturating_sub(piece.len()));
            }
            if left == Some(0) {
                log.finish_snapshot().map_err(log_failed)?;
                left = None;
            }
            Ok(left.is_none() && !log.is_snapshotting())
        })
    }

    fn growth(&mut self) -> Result<Progress, Error> {
        let path = self.path.clone();
        let mut daemon = Some(std::thread::spawn(move || area::extend(&path, AREA, 2 * AREA)));
        let fd = self.fd.try_clone().map_err(system("duplicating a descriptor"))?;
        self.during("growth to twice the size", &mut |log| {
            if daemon.as_ref().is_some_and(std::thread::JoinHandle::is_finished)
                && let Some(done) = daemon.take()
            {
                done.join()
                    .map_err(|_| log_failed("the thread that extends the area"))?
                    .map_err(log_failed)?;
                log.replace_disk(queue(&fd, 2 * AREA)?).map_err(log_failed)?;
                log.grow(2 * AREA).map_err(log_failed)?;
            }
            Ok(daemon.is_none() && !log.is_resizing())
        })
    }

    fn shrinking(&mut self) -> Result<Progress, Error> {
        let path = self.path.clone();
        let fd = self.fd.try_clone().map_err(system("duplicating a descriptor"))?;
        let (mut begun, mut daemon) = (false, None);
        self.during("shrinking to half", &mut |log| {
            if !begun {
                begun = true;
                log.shrink_to(AREA).map_err(log_failed)?;
            }
            if log.is_resizing() && log.should_compact() {
                begin(log)?;
                log.finish_snapshot().map_err(log_failed)?;
            }
            if log.is_resizing() || log.is_snapshotting() {
                return Ok(false);
            }
            // The daemon cuts the area; the file system may delay writes meanwhile.
            let path = path.clone();
            let cutting =
                daemon.get_or_insert_with(|| Some(std::thread::spawn(move || area::cut(&path, AREA))));
            let Some(done) = cutting.take_if(|cutting| cutting.is_finished()) else { return Ok(false) };
            done.join().map_err(|_| log_failed("the thread that cuts the area"))?.map_err(log_failed)?;
            log.replace_disk(queue(&fd, AREA)?).map_err(log_failed)?;
            Ok(true)
        })
    }
}

fn queue(fd: &OwnedFd, size: u64) -> Result<AreaQueue, Error> {
    open_area(fd.try_clone().map_err(system("duplicating a descriptor"))?, size).map_err(log_failed)
}

/// Begins a snapshot of one small record.
fn begin(log: &mut Log<AreaQueue>) -> Result<(), Error> {
    let begun = log.begin_snapshot().and_then(|_| log.snapshot_append(b"state"));
    begun.map_err(|error: SnapshotError| log_failed(error))
}

/// Appends in place with `fdatasync`, while `event` runs in another thread.
fn linux(
    file: &File,
    name: &'static str,
    event: impl FnOnce() -> std::io::Result<()> + Send,
) -> Result<Progress, Error> {
    let record = [0x5a; BYTES];
    let mut seen = Acknowledgements::new();
    let mut took = None;
    std::thread::scope(|scope| {
        let mut other = Some(scope.spawn(event));
        let mut place = 0;
        while took.is_none() || seen.begin.elapsed() < WINDOW {
            if other.as_ref().is_some_and(std::thread::ScopedJoinHandle::is_finished)
                && let Some(done) = other.take()
            {
                let failed = |_| std::io::Error::other("the thread that extends the file panicked");
                done.join().map_err(failed).flatten().map_err(system("extending a file"))?;
                took = Some(seen.begin.elapsed());
            }
            file.write_all_at(&record, place).map_err(system("writing a record"))?;
            file.sync_data().map_err(system("flushing a file"))?;
            place = (place + BYTES as u64) % AREA;
            seen.acknowledged();
        }
        Ok(())
    })?;
    Ok(seen.finish("Linux file + fdatasync", name, took.unwrap_or_default()))
}

/// Doubles the file; writes the new half if `zeros`.
fn extend(file: &File, zeros: bool) -> std::io::Result<()> {
    rustix::fs::fallocate(file, FallocateFlags::empty(), AREA, AREA)?;
    if zeros {
        let piece = vec![0; 1 << 20];
        for offset in (AREA..2 * AREA).step_by(piece.len()) {
            file.write_all_at(&piece, offset)?;
        }
    }
    file.sync_all()
}

/// Runs all events in `folder`.
pub(super) fn run(folder: &Path) -> Result<Vec<Progress>, Error> {
    let mut results = Vec::new();
    let path = folder.join("progress");
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.map_err(system("making a file"))?;
    let piece = vec![0; 1 << 20];
    for offset in (0..AREA).step_by(piece.len()) {
        file.write_all_at(&piece, offset).map_err(system("filling a file"))?;
    }
    file.sync_all().map_err(system("flushing a file"))?;
    results.push(linux(&file, "nothing", || Ok(()))?);
    results.push(linux(&file, "fallocate to twice the size", || extend(&file, false))?);
    file.set_len(AREA).map_err(system("cutting a file"))?;
    results.push(linux(&file, "growth to twice the size", || extend(&file, true))?);
    results.push(linux(&file, "shrinking to half", || file.set_len(AREA).and_then(|()| file.sync_all()))?);
    drop(file);
    std::fs::remove_file(&path).map_err(system("removing a file"))?;

    let mut written = Written::create(folder)?;
    results.push(written.during("nothing", &mut |_| Ok(true))?);
    results.push(written.compaction()?);
    results.push(written.growth()?);
    results.push(written.shrinking()?);
    let path = written.path.clone();
    drop(written);
    std::fs::remove_file(path).map_err(system("removing an area"))?;
    Ok(results)
}
