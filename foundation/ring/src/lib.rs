//! Memory that two processes share, and how they alternate in it.
//!
//! - [`mapping`]: shared memory, unmapped when its owner is dropped.
//! - [`untrusted`]: bytes that another process may write at any time, and that can only be copied
//!   out.
//! - [`guarded`]: copies to and from memory that may not be mapped.
//! - [`spsc`]: a ring with one producer and one consumer, over any memory.
//! - [`mapped`]: such a ring in mapped memory, laid out as AF_XDP lays out its rings. The peer may
//!   be the kernel or another process.
//! - [`split_ownership`]: such a ring between two regions, each of which only its owner can write.
//! - [`tail_hint`]: the newest entry of such a ring, beside the word that its consumer polls.
//! - [`need_wakeup`]: how one side sleeps and the other wakes it, without a lost wake-up and
//!   without a system call while both are awake.
//! - [`thread_doorbell`]: a need-wakeup word with an eventfd, for a thread that others wake.
//! - [`channel`]: values that move from one thread of this process to another.
//! - [`socket_pair`]: pairs of sockets between processes that do not trust each other.
//! - [`spin`]: how long an idle loop polls before it sleeps.
//! - [`reserve()`]: space of a file, also where signals come all the time.
//! - `shared_memory`: sealed memory that several ends map; the seam for Miri and ThreadSanitizer.
//! - [`stream`]: a stream of bytes each way between two processes that share memory, as TCP has it.
//! - [`pool`]: the owner of each buffer of a queue.
//! - [`heap`]: memory that the allocator keeps after it was freed.
//! - [`owner`]: whether this process made an object, or got a copy of it by fork.
//!
//! The other side of a ring is never trusted. Whatever it writes into the shared words, no access
//! leaves the mapping, nothing panics, and no call does more work than the ring has slots.
//!
//! With `--cfg loom` the atomics come from loom, and only what makes no system call is built.
//!
//! ```
//! use std::sync::Arc;
//! use sietch_ring::{Consumer, MappedRing, Mapping, Producer, RingLayout};
//!
//! let memory = Arc::new(Mapping::anonymous(4096)?);
//! let layout = RingLayout { producer: 0, consumer: 128, flags: 256, slots: 512, capacity: 8 };
//! // SAFETY: one producer and one consumer are made, and nothing else uses the memory.
//! let (out, back) = unsafe {
//!     let out = MappedRing::<u32>::new(Arc::clone(&memory), layout)?;
//!     (out, MappedRing::<u32>::new(memory, layout)?)
//! };
//! let (mut producer, mut consumer) = (Producer::attach(out)?, Consumer::attach(back)?);
//! producer.push(7).expect("there is room");
//! assert_eq!(consumer.pop(), None, "it is not submitted yet");
//! producer.submit();
//! assert_eq!(consumer.pop(), Some(7));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod channel;
#[cfg(not(loom))]
pub mod guarded;
#[cfg(not(loom))]
pub mod heap;
#[cfg(not(loom))]
pub mod mapped;
#[cfg(not(loom))]
pub mod mapping;
pub mod need_wakeup;
#[cfg(not(loom))]
pub mod owner;
pub mod pool;
#[cfg(not(loom))]
mod reserve;
#[cfg(not(loom))]
mod shared_memory;
#[cfg(not(loom))]
pub mod socket_pair;
#[cfg(not(loom))]
pub mod spin;
#[cfg(not(loom))]
pub mod split_ownership;
pub mod spsc;
pub mod stream;
mod sync;
pub mod tail_hint;
pub mod thread_doorbell;
pub mod untrusted;

#[cfg(not(loom))]
pub use mapped::{Descriptor, MappedRing, RingLayout};
#[cfg(not(loom))]
pub use mapping::{Mapping, UntrustedMapping};
#[cfg(not(loom))]
pub use owner::OwnerProcess;
pub use pool::{BufferPool, Owner};
#[cfg(not(loom))]
pub use reserve::reserve;
#[cfg(not(loom))]
pub use split_ownership::{SplitOwnershipLayout, SplitOwnershipRing};
pub use spsc::{Consumer, Producer, RingMemory};
pub use untrusted::{MAX_PIECES, Piece, Pieces, Untrusted};
