//! Reading records back while the log continues.
//!
//! 1. A [`Cursor`] is before a record. [`Log::read`] returns the next payload, or says that the
//!    end of the written records is reached. It may also say that bytes of the area are on their
//!    way: then [`Log::poll`] takes them, and the caller calls again.
//! 2. It starts at the last remembered place at or before the requested record and walks on from
//!    there (`record_reader`).
//! 3. A read belongs to a slot that the cursor names. A cursor that is dropped leaves its slot to
//!    the next cursor that needs one.
//! 4. A record that was written and is not found is damage, and is named; the log itself continues.

use std::io;
use std::sync::Arc;

use sietch_disk::{Buffer, DiskQueue, Operation};

use super::Log;
use super::options::Sequence;
use super::state::requests::{CLASS_READ, token};
use crate::error::ReadError;
use crate::layout::{RecordLocation, Run};
use crate::record_reader::{PayloadSource, RecordReader, Step};

/// A place in the log to read from. See [`Log::cursor`].
pub struct Cursor {
    walker: RecordReader,
    /// Payloads before this one are passed over.
    from: Sequence,
    /// What is in flight for this cursor.
    fetching: Option<Fetching>,
    /// The log was written up to here when the bytes at hand were requested.
    fresh: Sequence,
    /// The payload that a place was read for.
    found: Option<PayloadSource>,
    /// Alive as long as the cursor is.
    life: Arc<()>,
}

struct Fetching {
    slot: usize,
    offset: u64,
    length: usize,
    written: Sequence,
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor").field("next", &self.next()).finish_non_exhaustive()
    }
}

impl Cursor {
    /// The sequence from which it reads on.
    pub fn next(&self) -> Sequence {
        self.walker.expected().max(self.from)
    }

    /// What [`Log::read_at`] has read.
    pub(crate) fn payload(&self) -> &[u8] {
        self.found.as_ref().map_or(&[], |place| self.walker.payload(place))
    }
}

/// What reading has come to.
#[derive(Debug)]
pub enum Read<'a> {
    /// A payload, with the sequence that its append returned.
    Record(Sequence, &'a [u8]),
    /// Bytes are on their way: poll the log, and call again.
    Waiting,
    /// Nothing more has been written yet.
    End,
}

impl<D: DiskQueue> Log<D> {
    /// A cursor before the record `from`, or before the first one after it.
    ///
    /// ```
    /// use sietch_disk::MemoryQueue;
    /// use sietch_persist::{FormatOptions, Log, Options, Read};
    ///
    /// let mut disk = MemoryQueue::new(1 << 20);
    /// Log::format(&mut disk, FormatOptions::new(42))?;
    /// let (mut log, _) = Log::open(disk, Options::default(), &mut |_| Ok(()))?;
    /// let first = log.append(b"one")?;
    /// let second = log.append(b"two")?;
    /// log.submit()?;
    /// while log.poll()? < second {}
    ///
    /// let mut cursor = log.cursor(first)?;
    /// let mut found = Vec::new();
    /// loop {
    ///     match log.read(&mut cursor)? {
    ///         Read::Record(sequence, payload) => found.push((sequence, payload.to_vec())),
    ///         Read::Waiting => drop(log.poll()?),
    ///         Read::End => break,
    ///     }
    /// }
    /// assert_eq!(found, [(first, b"one".to_vec()), (second, b"two".to_vec())]);
    ///
    /// // The first is not needed any more.
    /// log.truncate(second)?;
    /// while log.is_truncating() {
    ///     log.poll()?;
    /// }
    /// assert!(log.cursor(first).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ReadError::GivenUp`]: the log begins later.
    pub fn cursor(&self, from: Sequence) -> Result<Cursor, ReadError> {
        let run = self.place_before(from)?;
        Ok(Cursor {
            walker: RecordReader::new(&self.superblock, run),
            from,
            fetching: None,
            fresh: 0,
            found: None,
            life: Arc::new(()),
        })
    }

    /// The last place at or before `from` at which reading can start.
    fn place_before(&self, from: Sequence) -> Result<Run, ReadError> {
        let head = self.head();
        if from < head {
            return Err(ReadError::GivenUp { sequence: from, head });
        }
        let index = self.stream.sparse_index();
        let runs = &self.superblock.runs;
        let entry = index.get(index.partition_point(|entry| entry.first <= from).wrapping_sub(1));
        let run = runs.get(runs.partition_point(|run| run.first <= from).wrapping_sub(1));
        // Later in the log is nearer; of two runs that begin with the same sequence the later one
        // holds it.
        let place = entry.into_iter().chain(run).max_by_key(|place| (place.epoch, place.first));
        place.copied().ok_or(ReadError::GivenUp { sequence: from, head: self.last() + 1 })
    }

    /// Reads the next payload.
    ///
    /// # Errors
    /// See [`ReadError`]. The cursor stays where it is.
    pub fn read<'c>(&mut self, cursor: &'c mut Cursor) -> Result<Read<'c>, ReadError> {
        self.check()?;
        let head = self.head();
        if cursor.next() < head {
            return Err(ReadError::GivenUp { sequence: cursor.next(), head });
        }
        cursor.walker.fit(&self.superblock);
        loop {
            if !self.collect(cursor)? {
                return Ok(Read::Waiting);
            }
            if !cursor.walker.is_inside() {
                cursor.walker.enter_next_run(&self.superblock);
            }
            if cursor.next() > self.stream.written() {
                return Ok(Read::End);
            }
            match cursor.walker.step() {
                Step::Payload { sequence, place } if sequence >= cursor.from => {
                    return Ok(Read::Record(sequence, cursor.walker.payload(&place)));
                }
                Step::Payload { .. } => {}
                Step::Fetch { offset, length } => {
                    if !self.fetch(cursor, offset, length)? {
                        return Ok(Read::Waiting);
                    }
                }
                Step::Missing => self.missing(cursor)?,
            }
        }
    }

    /// Takes what was in flight for a cursor; `false`: it still is.
    fn collect(&mut self, cursor: &mut Cursor) -> Result<bool, ReadError> {
        let Some(fetching) = &cursor.fetching else { return Ok(true) };
        let Some((result, buffer)) = self.reads.collect(fetching.slot) else { return Ok(false) };
        let (offset, length) = (fetching.offset, fetching.length);
        cursor.fresh = fetching.written;
        cursor.fetching = None;
        if let Err(source) = result {
            let sequence = cursor.walker.expected();
            return Err(ReadError::Damaged { sequence, offset, source: Arc::new(source) });
        }
        cursor.walker.feed(offset, length, buffer);
        Ok(true)
    }

    /// A cursor for the payload of `length` bytes that begins at `spot` and was written.
    pub(crate) fn cursor_at(&self, spot: RecordLocation, length: usize) -> Cursor {
        Cursor {
            walker: RecordReader::at(&self.superblock, spot, length),
            from: 0,
            fetching: None,
            fresh: 0,
            found: None,
            life: Arc::new(()),
        }
    }

    /// Reads the payload that `cursor_at` was given; `true`: [`Cursor::payload`] has it. It may
    /// have been given up meanwhile: then it is damaged.
    pub(crate) fn read_at(&mut self, cursor: &mut Cursor) -> Result<bool, ReadError> {
        self.check()?;
        while cursor.found.is_none() {
            if !self.collect(cursor)? {
                return Ok(false);
            }
            match cursor.walker.step() {
                Step::Payload { place, .. } => cursor.found = Some(place),
                Step::Fetch { offset, length } => {
                    if !self.fetch(cursor, offset, length)? {
                        return Ok(false);
                    }
                }
                Step::Missing => {
                    let source = Arc::new(io::Error::other("what is there is not the record"));
                    let (sequence, offset) = (cursor.walker.expected(), cursor.walker.offset());
                    return Err(ReadError::Damaged { sequence, offset, source });
                }
            }
        }
        Ok(true)
    }

    /// Where the payload begins that was appended last.
    pub(crate) fn placed(&self) -> RecordLocation {
        self.stream.placed()
    }

    /// Requests bytes; `false`: as many reads as allowed are in flight.
    fn fetch(&mut self, cursor: &mut Cursor, offset: u64, length: usize) -> Result<bool, ReadError> {
        let Some(slot) = self.reads.take(&cursor.life) else { return Ok(false) };
        let buffer =
            cursor.walker.forget().filter(|b| b.len() >= length).unwrap_or_else(|| Buffer::new(length));
        let read = Operation::Read { offset, length, buffer };
        if self.start(token(CLASS_READ, slot as u64), read)?.is_some() {
            self.reads.free(slot);
            return Ok(false);
        }
        self.notify()?;
        cursor.fetching = Some(Fetching { slot, offset, length, written: self.stream.written() });
        Ok(true)
    }

    /// The bytes at hand do not hold the next record, which was written: they are old, or a run
    /// ends here.
    fn missing(&self, cursor: &mut Cursor) -> Result<(), ReadError> {
        let walker = &mut cursor.walker;
        let sequence = walker.expected();
        if cursor.fresh < sequence {
            walker.forget();
        } else if !walker.enter_next_run(&self.superblock) {
            let source = io::Error::other("what is there is not the record");
            let offset = walker.offset();
            return Err(ReadError::Damaged { sequence, offset, source: Arc::new(source) });
        }
        Ok(())
    }
}
