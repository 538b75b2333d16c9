//! Disk queues: the one way in which blocks reach stable storage.
//!
//! A log sees [`DiskQueue`] and nothing else. Its implementations:
//!
//! - [`uring`]: a file or block device through io_uring, O_DIRECT.
//! - [`blocking`]: the same through `pwritev2(2)`, where io_uring is refused (containers).
//! - [`nvm`]: persistent memory by loads, stores and fences, or DRAM that stands in for it.
//! - [`broker`]: shared memory to a service core, where areas are on a volume that no application
//!   may open itself.
//! - [`memory`]: DRAM, for tests and for stores that need no durability.
//!
//! [`open_area`] chooses between the first three and says why; [`area`] makes the files they work
//! on. The simulator (`sietch-sim`) has one more, which tears writes and drops what was not
//! flushed.
//!
//! ```
//! use sietch_disk::{Buffer, DiskQueue, MemoryQueue, Operation};
//!
//! let mut disk = MemoryQueue::new(1 << 20);
//! let mut buffer = Buffer::new(4096);
//! buffer.fill(7);
//! disk.submit(1, Operation::Write { offset: 0, length: 4096, buffer, durable: true })
//!     .expect("room in the queue");
//! disk.notify()?;
//!
//! let mut completions = Vec::new();
//! while disk.complete(&mut completions) == 0 {}
//! assert_eq!(completions[0].token, 1);
//! completions.remove(0).result?;
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod area;
pub mod blocking;
pub mod broker;
#[cfg(feature = "conformance")]
pub mod conformance;
mod features;
mod file;
pub mod memory;
pub mod nvm;
pub mod queue;
mod select;
pub mod superblock_copies;
pub mod uring;

pub use blocking::BlockingQueue;
pub use features::Feature;
pub use memory::MemoryQueue;
pub use nvm::NvmQueue;
pub use queue::{BLOCK, Buffer, Completion, DiskQueue, MAX_PARTS, Operation, Part, Priority, SubmitError};
pub use select::{AreaQueue, open_area, open_memory, open_parts, open_without_ring};
pub use sietch_ring::reserve;
pub use uring::UringQueue;

/// Requests in flight by default: enough to saturate an NVMe device with 4 KiB writes, little
/// enough to bound what a hung device holds.
pub const DEFAULT_DEPTH: usize = 64;

/// Largest queue depth that a queue accepts: io_uring's own limit is 32768 entries, and more than
/// this many requests only add latency.
pub const MAX_DEPTH: usize = 4096;

/// Why a queue over an area could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// io_uring is refused on this machine (seccomp in a container, `kernel.io_uring_disabled`, an
    /// old kernel).
    #[error(
        "io_uring is not available here: {cause}; use the blocking queue, or allow io_uring (sysctl kernel.io_uring_disabled=0, container seccomp profile)"
    )]
    Unavailable {
        /// What was refused.
        cause: String,
    },
    /// The fd is neither a regular file nor a block device.
    #[error("an area must be a regular file or a block device, and the descriptor given is neither")]
    NotAnArea,
    /// The file is shorter than the area that was requested.
    #[error(
        "the area should have {wanted} bytes but its file has {found}; it was cut short, or the size in the configuration was raised; set that size back, or restore the file"
    )]
    TooShort {
        /// Bytes requested.
        wanted: u64,
        /// Bytes there.
        found: u64,
    },
    /// The capacity is zero or not a multiple of [`BLOCK`].
    #[error("the capacity of an area must be a multiple of {BLOCK} bytes and not zero, not {capacity}")]
    Capacity {
        /// Bytes requested.
        capacity: u64,
    },
    /// The device needs larger blocks than Sietch writes.
    #[error(
        "the device needs direct I/O aligned to {alignment} bytes, more than the {BLOCK} that Sietch supports"
    )]
    Alignment {
        /// Bytes it needs.
        alignment: usize,
    },
    /// The memory given as an area could be cut short while it is mapped.
    #[error("the area's memory is not sealed against shrinking (F_SEAL_SHRINK); its maker must seal it")]
    Unsealed,
    /// The shared memory of an area behind a broker is not what it should be.
    #[error("the shared memory of the area: {cause}; acquire the area anew")]
    Broker {
        /// What is wrong.
        cause: String,
    },
    /// The area is not on persistent memory, or this machine cannot write to it.
    #[error(
        "no direct access to persistent memory: {cause}; use a file system mounted with -o dax, or another kind of volume"
    )]
    NoDax {
        /// What was refused.
        cause: String,
    },
    /// A system call failed.
    #[error("{action}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}
