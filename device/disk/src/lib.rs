//! Disk queues: the one way in which blocks reach stable storage.
//!
//! A log sees [`DiskQueue`] and nothing else. Behind it stand
//!
//! - `uring`: a file or block device through io_uring, O_DIRECT,
//! - `blocking`: the same through `pwritev2(2)`, where io_uring is refused (containers),
//! - `memory`: DRAM; for tests, and for stores that want no durability.
//!
//! The simulator (`sietch-sim`) has one more that tears writes and drops what was not flushed.

pub mod queue;

pub use queue::{BLOCK, Buffer, Completion, DiskQueue, Operation, SubmitError};
