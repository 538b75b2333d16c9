//! Reading a log while another process writes it.
//!
//! 1. [`Follower::open`] reads the newest superblock, as opening does, and never writes. Any queue
//!    over the area will do; a file that was opened for reading alone is best.
//! 2. [`Follower::poll`] delivers the snapshot, then each record that is whole, in order, and stops
//!    where the log ends for now. It waits for its reads.
//! 3. Where no further record is found the superblock is read again. It names the run in which the
//!    log continues after its owner was replaced. It may also name a head that has moved past the
//!    follower, which must then begin anew.
//! 4. A record is genuine by its checksum, whatever its owner does meanwhile. Bytes that are half
//!    written, or that belong to a later lap, do not validate. Records up to [`Follower::proven`]
//!    are known to survive a loss of power. A follower that acts outside of the machine on what it
//!    reads waits for that.
//!
//! ```
//! use sietch_disk::MemoryQueue;
//! use sietch_persist::{Entry, Follower, FormatOptions, Log, Options};
//!
//! # let mut disk = MemoryQueue::new(1 << 20);
//! # Log::format(&mut disk, FormatOptions::new(42))?;
//! # let (mut log, _) = Log::open(disk, Options::default(), &mut |_| Ok(()))?;
//! # let sequence = log.append(b"spice")?;
//! # log.submit()?;
//! # while log.poll()? < sequence {}
//! # let same_area = log.into_disk();
//! // A queue of its own over the area that another process writes.
//! let mut follower = Follower::open(same_area)?;
//! let mut seen = Vec::new();
//! let count = follower.poll(&mut |entry| {
//!     if let Entry::Record(_, payload) = entry {
//!         seen.push(payload.to_vec());
//!     }
//!     Ok(())
//! })?;
//! assert_eq!((count, seen), (1, vec![b"spice".to_vec()]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use sietch_disk::{Buffer, DiskQueue, Operation};

use crate::disk_request::execute;
use crate::error::{FollowError, OpenError};
use crate::layout::Superblock;
use crate::record_reader::{RecordReader, Step};
use crate::scan::{Applied, Entry, Scan};
use crate::superblocks::{self, Found};

/// Reads a log beside its owner. See the module's account.
pub struct Follower<D: DiskQueue> {
    disk: D,
    superblock: Superblock,
    walker: Option<RecordReader>,
    /// Records from here on are delivered.
    from: u64,
    delivered: u64,
    buffer: Option<Buffer>,
}

impl<D: DiskQueue> Follower<D> {
    /// Opens the log of an area for reading, at its beginning.
    ///
    /// # Errors
    /// See [`FollowError`].
    pub fn open(mut disk: D) -> Result<Self, FollowError> {
        let superblock = newest(&mut disk)?;
        Ok(Self { disk, superblock, walker: None, from: 0, delivered: 0, buffer: None })
    }

    /// The last record delivered.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Records up to here are known to be durable: later ones say so.
    pub fn proven(&self) -> u64 {
        self.walker.as_ref().map_or(0, RecordReader::proven)
    }

    /// Returns the disk queue.
    pub fn into_disk(self) -> D {
        self.disk
    }

    /// Delivers what has been written since the last call, the snapshot first. Returns how many
    /// entries that were.
    ///
    /// # Errors
    /// [`FollowError::Behind`]: the owner gave up records that were not delivered yet; open anew.
    /// [`FollowError::Grown`]: the log has grown past the follower's queue; open anew over all of
    /// it. Others are final.
    pub fn poll(&mut self, apply: &mut dyn FnMut(Entry<'_>) -> Applied) -> Result<u64, FollowError> {
        let mut count = 0;
        if self.walker.is_none() {
            count += self.begin(apply)?;
        }
        loop {
            let Some(walker) = &mut self.walker else { return Ok(count) };
            if !walker.is_inside() {
                walker.enter_next_run(&self.superblock);
            }
            match walker.step() {
                Step::Payload { sequence, place } => {
                    if sequence >= self.from {
                        let payload = walker.payload(&place);
                        apply(Entry::Record(sequence, payload))
                            .map_err(|source| FollowError::Rejected { sequence, source })?;
                        self.delivered = sequence;
                        count += 1;
                    }
                }
                Step::Fetch { offset, length } => {
                    let spare = walker.forget().or(self.buffer.take());
                    let buffer = spare.filter(|b| b.len() >= length).unwrap_or_else(|| Buffer::new(length));
                    let read = Operation::Read { offset, length, buffer };
                    if let Some(bytes) = execute(&mut self.disk, "reading the log", offset, read)? {
                        walker.feed(offset, length, bytes);
                    }
                }
                Step::Missing => {
                    self.buffer = walker.forget().or(self.buffer.take());
                    if !self.reload_superblock()? {
                        return Ok(count);
                    }
                }
            }
        }
    }

    /// Delivers the snapshot, then is before the first record.
    fn begin(&mut self, apply: &mut dyn FnMut(Entry<'_>) -> Applied) -> Result<u64, FollowError> {
        self.superblock = newest(&mut self.disk)?;
        let mut count = 0;
        let read = Scan::new(&mut self.disk, &self.superblock).snapshot(&mut |entry, _| {
            count += 1;
            apply(entry)
        });
        if let Err(error) = read {
            // The log may have reused its segments while they were read.
            let now = newest(&mut self.disk)?;
            let head = now.runs.first().map_or(1, |run| run.first);
            let moved = now.snapshot != self.superblock.snapshot;
            return Err(if moved { FollowError::Behind { next: 0, head } } else { error.into() });
        }
        self.from = self.superblock.head;
        self.walker = self.superblock.runs.first().map(|run| RecordReader::new(&self.superblock, *run));
        Ok(count)
    }

    /// Reads the superblock for how the log continues where it ended; `false`: it does not, for
    /// now.
    fn reload_superblock(&mut self) -> Result<bool, FollowError> {
        let newer = newest(&mut self.disk)?;
        if newer.identity != self.superblock.identity {
            return Err(FollowError::Replaced);
        }
        if newer.generation == self.superblock.generation {
            return Ok(false);
        }
        let Some(walker) = &mut self.walker else { return Ok(false) };
        walker.fit(&newer);
        let (next, epoch) = (walker.settled(), walker.epoch());
        let head = newer.runs.first().map_or(next, |run| run.first).max(newer.head);
        if head > next {
            return Err(FollowError::Behind { next, head });
        }
        let entered = walker.enter_next_run(&newer);
        let lost = newer.runs.iter().find(|run| run.epoch > epoch && run.first < next);
        if let Some(run) = lost
            && !entered
        {
            return Err(FollowError::Diverged { next, first: run.first });
        }
        // If it is the same run, perhaps its record was written since.
        self.superblock = newer;
        Ok(true)
    }
}

/// The newest superblock of an area, if `disk` reaches all of the log.
fn newest<D: DiskQueue>(disk: &mut D) -> Result<Superblock, FollowError> {
    match superblocks::newest(disk) {
        Ok(found) if found.formatted <= disk.capacity() => Ok(found.superblock),
        Ok(Found { formatted, .. }) | Err(OpenError::AreaTooSmall { formatted, .. }) => {
            Err(FollowError::Grown { formatted, capacity: disk.capacity() })
        }
        Err(other) => Err(other.into()),
    }
}
