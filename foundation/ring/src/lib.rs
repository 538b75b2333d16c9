//! Memory that two sides share, and how they take turns in it.
//!
//! - [`mapping`]: shared memory, unmapped when its owner goes.
//! - [`untrusted`]: bytes that the other side may write at any time, and that can only be copied out.
//! - [`guarded`]: copies to and from memory that may not be there.
//! - [`spsc`]: a ring with one producer and one consumer, over any memory.
//! - [`mapped`]: such a ring in mapped memory, laid out as AF_XDP lays out its rings. The peer may
//!   be the kernel or another process.
//! - [`split_ownership`]: such a ring between two regions, each of which only its owner can write.
//! - [`tail_hint`]: its newest entry, beside the word that is polled.
//! - [`need_wakeup`] and [`doorbell`]: how one side sleeps and the other wakes it, without a lost wake-up
//!   and without a system call that nobody asked for.
//! - [`stream`]: a stream of bytes each way between two processes that share memory, as TCP has it.
//! - [`pool`]: which buffer of a queue belongs to whom.
//!
//! The other side of a ring is never trusted: whatever it writes into the shared words, no access
//! leaves the mapping, nothing panics, and no call does more work than the ring has slots.
//!
//! With `--cfg loom` the atomics come from loom, and only what is free of system calls is built.

#[cfg(not(loom))]
pub mod guarded;
#[cfg(not(loom))]
pub mod mapped;
#[cfg(not(loom))]
pub mod mapping;
pub mod need_wakeup;
pub mod pool;
#[cfg(not(loom))]
pub mod spin;
#[cfg(not(loom))]
pub mod split_ownership;
pub mod spsc;
pub mod stream;
mod sync;
pub mod tail_hint;
pub mod untrusted;

#[cfg(not(loom))]
pub use mapped::{Descriptor, MappedRing, RingLayout};
#[cfg(not(loom))]
pub use mapping::{Mapping, UntrustedMapping};
pub use pool::{BufferPool, Owner};
#[cfg(not(loom))]
pub use split_ownership::{SplitOwnershipLayout, SplitOwnershipRing};
pub use spsc::{Consumer, Producer, RingMemory};
pub use untrusted::{MAX_PIECES, Piece, Pieces, Untrusted};
