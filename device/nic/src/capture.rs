//! The ring tap: a copy of every frame that passes a queue, for `sietch capture`.
//!
//! 1. The capturing process makes a ring in a sealed memfd ([`Reader::create`]) and passes it,
//!    through the control plane, to the process that drives the queue. That process maps it
//!    ([`Tap::open`]) and puts it beside its queue ([`Tapped`]). While nothing captures, this costs
//!    one branch a batch and one a frame.
//! 2. The ring is bytes: records of a header and the first bytes of a frame, each a whole number of
//!    words. The writer never waits: what does not fit is counted in the ring and dropped. A frame
//!    to be sent is staged before it is queued and becomes visible when it was.
//! 3. `producer` and `consumer` count bytes since the start, modulo 2^32. The writer publishes with
//!    one store (release); the reader polls at intervals, so no doorbell is needed.
//! 4. Both sides map all of it for reading and writing, and each is hostile to the other. Every
//!    access is a load or store of one word inside the mapping, so only values can race, and every
//!    number that is read is checked. A broken ring ends the capture and nothing else. The writer's
//!    records are not proof: it can leave frames out or make some up.
//!
//! ```text
//!  0x000  magic "SIETCHC1" | version u32 = 1 | data u32 | snap u32
//!  0x080  producer u32, dropped u32        (the writer's)
//!  0x100  consumer u32                     (the reader's)
//!  0x1000 data bytes: | stored u32 | original u32 | direction u32 | time low u32 | time high u32
//!                     | stored bytes | 0..3 | ...
//! ```

mod tapped;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use sietch_ring::Mapping;

pub use tapped::Tapped;

const MAGIC: [u32; 2] = [u32::from_ne_bytes(*b"SIET"), u32::from_ne_bytes(*b"CHC1")];
const VERSION: u32 = 1;
const PRODUCER: usize = 0x80;
const DROPPED: usize = 0x84;
const CONSUMER: usize = 0x100;
const DATA: usize = 0x1000;
/// Words before a record's bytes.
const RECORD: u32 = 20;
/// Bytes of a ring: a few frames at least; at most what a capture may cost a machine, and what the
/// control plane passes on.
const LEAST: u32 = 1 << 16;
const MOST: u32 = 1 << 25;
/// The longest frame: an Ethernet header and the longest IP packet.
pub const MAX_SNAP: u32 = 65_549;

/// Why a ring cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// A system call failed.
    #[error("capture ring: {step}: {source}")]
    Step {
        /// What was being done.
        step: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// It is no ring of this version.
    #[error("capture ring: a wrong {0}; use programs of one version")]
    Wrong(&'static str),
}

fn step<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> CaptureError {
    move |error| CaptureError::Step { step, source: error.into() }
}

/// Which way a frame went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the application.
    Received,
    /// From the application.
    Sent,
}

/// A frame that was captured; its bytes are in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Which way it went.
    pub direction: Direction,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// How long it was.
    pub original: u32,
}

/// The mapped ring, one word at a time.
#[derive(Debug)]
struct Ring {
    memory: Mapping,
    data: u32,
    snap: u32,
}

impl Ring {
    fn open(file: BorrowedFd<'_>) -> Result<Self, CaptureError> {
        let seals = fcntl_get_seals(file).map_err(step("reading its seals"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(CaptureError::Wrong("seal: it could be cut short"));
        }
        let size = fstat(file).map_err(step("reading its size"))?.st_size;
        let length = usize::try_from(size).ok().filter(|size| *size <= DATA + MOST as usize);
        let length =
            length.filter(|size| *size >= DATA + LEAST as usize).ok_or(CaptureError::Wrong("size"))?;
        let memory = Mapping::of_file(file, 0, length).map_err(step("mapping it"))?;
        let mut ring = Self { memory, data: 0, snap: 0 };
        let header = [0, 4, 8, 12, 16].map(|offset| ring.load(offset, Ordering::Relaxed));
        let [first, second, version, data, snap] = header;
        let checks = [
            ([first, second] == MAGIC, "magic"),
            (version == VERSION, "version"),
            (data.is_power_of_two() && length == DATA + data as usize, "size"),
            ((1..=MAX_SNAP).contains(&snap), "snap length"),
        ];
        if let Some((_, what)) = checks.iter().find(|(holds, _)| !holds) {
            return Err(CaptureError::Wrong(what));
        }
        (ring.data, ring.snap) = (data, snap);
        Ok(ring)
    }

    fn load(&self, offset: usize, ordering: Ordering) -> u32 {
        self.memory.word(offset).map_or(0, |word| word.load(ordering))
    }

    fn store(&self, offset: usize, value: u32, ordering: Ordering) {
        if let Some(word) = self.memory.word(offset) {
            word.store(value, ordering);
        }
    }

    /// Where the byte at `position` of the endless sequence is.
    fn place(&self, position: u32) -> usize {
        DATA + (position & (self.data - 1)) as usize
    }
}

/// Bytes that a record of `stored` bytes takes.
const fn record_bytes(stored: u32) -> u32 {
    RECORD + stored.next_multiple_of(4)
}

/// The writing side: beside a queue.
#[derive(Debug)]
pub struct Tap {
    ring: Ring,
    /// Everything before is visible to the reader.
    published: u32,
    /// Everything before is written.
    staged: u32,
    dropped: u32,
}

impl Tap {
    /// Maps the ring that a reader made. It may take a millisecond: not for a data loop.
    ///
    /// # Errors
    /// See [`CaptureError`].
    pub fn open(file: impl AsFd) -> Result<Self, CaptureError> {
        Ok(Self { ring: Ring::open(file.as_fd())?, published: 0, staged: 0, dropped: 0 })
    }

    /// Writes a frame behind the published ones. `copy` fills words of the frame from an offset on.
    fn stage(&mut self, direction: Direction, time: u64, original: u32, mut word: impl FnMut(u32) -> u32) {
        let stored = original.min(self.ring.snap);
        let needed = record_bytes(stored);
        let used = self.staged.wrapping_sub(self.ring.load(CONSUMER, Ordering::Acquire));
        // A consumer with an impossible word has no room either.
        if used > self.ring.data || self.ring.data - used < needed {
            self.dropped = self.dropped.wrapping_add(1);
            self.ring.store(DROPPED, self.dropped, Ordering::Relaxed);
            return;
        }
        let direction = match direction {
            Direction::Received => 0,
            Direction::Sent => 1,
        };
        let mut position = self.staged;
        let mut put = |value: u32| {
            self.ring.store(self.ring.place(position), value, Ordering::Relaxed);
            position = position.wrapping_add(4);
        };
        // The two halves of the time.
        for value in [stored, original, direction, time as u32, (time >> 32) as u32] {
            put(value);
        }
        for offset in (0..stored).step_by(4) {
            put(word(offset));
        }
        self.staged = position;
    }

    /// Makes what was staged visible.
    fn publish(&mut self) {
        if self.published != self.staged {
            self.published = self.staged;
            self.ring.store(PRODUCER, self.published, Ordering::Release);
        }
    }

    /// Drops what was staged and not published.
    fn discard(&mut self) {
        self.staged = self.published;
    }
}

/// The reading side: `sietch capture`.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    file: OwnedFd,
    consumed: u32,
    dropped: u64,
}

impl Reader {
    /// Makes a ring with `data` bytes (a power of two from 64 KiB to 32 MiB) that takes the first
    /// `snap` bytes of each frame.
    ///
    /// # Errors
    /// See [`CaptureError`].
    pub fn create(data: u32, snap: u32) -> Result<Self, CaptureError> {
        if !data.is_power_of_two() || !(LEAST..=MOST).contains(&data) {
            return Err(CaptureError::Wrong("size"));
        }
        let flags = MemfdFlags::CLOEXEC.union(MemfdFlags::ALLOW_SEALING);
        let file = rustix::fs::memfd_create("sietch-capture", flags).map_err(step("making it"))?;
        ftruncate(&file, DATA as u64 + u64::from(data)).map_err(step("sizing it"))?;
        let mut header = Vec::new();
        for word in [MAGIC[0], MAGIC[1], VERSION, data, snap.clamp(1, MAX_SNAP)] {
            header.extend(word.to_ne_bytes());
        }
        rustix::io::pwrite(&file, &header, 0).map_err(step("writing its header"))?;
        let seals = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
        fcntl_add_seals(&file, seals).map_err(step("sealing it"))?;
        Ok(Self { ring: Ring::open(file.as_fd())?, file, consumed: 0, dropped: 0 })
    }

    /// The next frame, if there is one; `bytes` becomes what was stored of it.
    ///
    /// # Errors
    /// The writer has written an invalid record: nothing more can be read.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<Option<Captured>, CaptureError> {
        bytes.clear();
        let available = self.ring.load(PRODUCER, Ordering::Acquire).wrapping_sub(self.consumed);
        if available == 0 {
            return Ok(None);
        }
        let word = |index: u32| {
            self.ring.load(self.ring.place(self.consumed.wrapping_add(index * 4)), Ordering::Relaxed)
        };
        let (stored, original, direction) = (word(0), word(1), word(2));
        if available > self.ring.data || available < RECORD || !available.is_multiple_of(4) {
            return Err(CaptureError::Wrong("producer"));
        }
        if stored > self.ring.snap || stored > original || record_bytes(stored) > available {
            return Err(CaptureError::Wrong("length of a frame"));
        }
        let time = u64::from(word(3)) | u64::from(word(4)) << 32;
        for index in 0..stored.div_ceil(4) {
            bytes.extend(word(RECORD / 4 + index).to_ne_bytes());
        }
        bytes.truncate(stored as usize);
        self.consumed = self.consumed.wrapping_add(record_bytes(stored));
        self.ring.store(CONSUMER, self.consumed, Ordering::Release);
        let direction = if direction == 0 { Direction::Received } else { Direction::Sent };
        Ok(Some(Captured { direction, time, original }))
    }

    /// Frames that found no room so far.
    pub fn dropped(&mut self) -> u64 {
        // The lower half is the ring's; it is read often enough not to miss a wrap-around of it.
        let now = self.ring.load(DROPPED, Ordering::Relaxed);
        self.dropped += u64::from(now.wrapping_sub(self.dropped as u32));
        self.dropped
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
