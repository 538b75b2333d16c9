//! Persistent structures on a storage area: a log, and over it a [`Queue`] and a [`Map`].
//!
//! An application appends payloads, learns up to where they are durable, and gets them back in
//! order after a crash. From time to time it writes a snapshot of its state, which takes the place
//! of the log before it, so that the area never fills.
//!
//! The log is sans-I/O: it drives any [`sietch_disk::DiskQueue`], has no thread and reads no clock.
//!
//! ```
//! use sietch_disk::MemoryQueue;
//! use sietch_persist::{Entry, FormatOptions, Log, Options};
//!
//! let mut disk = MemoryQueue::new(1 << 20);
//! Log::format(&mut disk, FormatOptions::new(42))?;
//! let (mut log, _) = Log::open(disk, Options::default(), &mut |_| Ok(()))?;
//! let sequence = log.append(b"spice")?;
//! log.submit()?;
//! while log.poll()? < sequence {}
//!
//! let mut seen = Vec::new();
//! Log::open(log.into_disk(), Options::default(), &mut |entry| {
//!     if let Entry::Record(_, payload) = entry {
//!         seen.push(payload.to_vec());
//!     }
//!     Ok(())
//! })?;
//! assert_eq!(seen, [b"spice"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The formats are described in `docs/spec/log.md`, `queue.md` and `map.md`.

#![forbid(unsafe_code)]

mod compaction;
mod disk_request;
mod error;
pub mod follower;
mod layout;
mod limits;
mod log;
pub mod map;
pub mod queue;
mod record_reader;
mod scan;
mod space;
mod stream;
mod superblocks;
pub mod typed;

pub use error::{
    AppendError, Failure, FollowError, FormatError, OpenError, QueueError, ReadError, ResizeError,
    SnapshotError, TruncateError, TypeError,
};
pub use follower::Follower;
pub use layout::{HEADER, VERSION};
pub use limits::{BATCH, MAX_RECORD, MIN_CAPACITY};
pub use log::{
    Cursor, Durability, FormatOptions, Log, LogMetrics, Options, Read, Sequence, Waiter, check,
    expected_records, is_formatted, verify,
};
pub use map::{Fetch, Fetched, Map, MapMetrics, StoredMap, StoredMapOptions, Value};
pub use queue::{Delivery, MAX_ENTRIES, Queue, QueueMetrics, QueueOptions, Receipt};
pub use scan::{Applied, Entry, RecoveryReport, TornTail};
pub use typed::{Record, TYPE_HEADER, read_record, type_of, typed};
