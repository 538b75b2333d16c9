//! A stream of bytes in each direction between two processes that do not trust one another: what a
//! TCP connection is on one host.
//!
//! 1. **Three memories.** Both ends map the *common* memory. Each end has a *private* page that
//!    only its holders map. Everything an end relies on (its positions, its current region, locks,
//!    the state of the connection) is in its private page. In the common memory it only publishes.
//!    A reader of what the other end published validates a copy of it, and takes an invalid value
//!    for a reset.
//! 2. **Positions** count bytes from the beginning, so that everything has one order. The producer
//!    publishes its *tail* in one word with the flags that the other end needs ([`layout::tail`]).
//!    So the consumer reads all of it with one load. The consumer publishes its *head*.
//! 3. **Regions.** For each power of two from [`RegionSizes::smallest`] to [`RegionSizes::largest`]
//!    a direction has a region of that size. The producer writes into one of them. At any byte it
//!    may move to another that holds nothing unread. Beside the region that it leaves it publishes
//!    the position and the next region. The consumer follows once it has read everything before
//!    that position. So a connection of small messages stays in the cache, and one with a slow
//!    reader takes what a kernel's socket would. Nothing is ever copied from one ring to another.
//! 4. **Growing.** A full region below [`EAGER_LOG2`] is left for the next size at once. Above it,
//!    the producer grows only if the consumer has read nothing since the ring was last found full.
//!    A steady reader is served best by a small ring. A program that writes a megabyte before it
//!    reads needs a large one: it would otherwise wait for itself. A larger region that is found
//!    full although the consumer reads is left for one of [`EAGER_LOG2`] again.
//! 5. **Sleeping.** A waiter that finds nothing to do *arms* (counts itself, and makes a request),
//!    fences, and polls once more. It then sleeps on a descriptor that the other end can make
//!    readable. A producer that has published fences, and writes a byte if there is a request that
//!    it has not answered. One of the two sees the other ([`waiters`], checked with loom). A waiter
//!    is counted until it has returned: as long as others are counted, the last byte stays. Data
//!    and room have waiters of their own.
//! 6. **Closing.** A producer that is done publishes FIN. The kernel, never memory, decides whether
//!    the other end is dead: this end's descriptor hangs up. Any number of processes may hold an
//!    end, and any of them may be killed. A closing process leaves a hint in its tail, so that the
//!    other end queries the kernel soon. Whether a hang-up was a finish or a reset follows from the
//!    positions, as in RFC 9293 section 3.10.4 and RFC 2525 section 2.17. An end that leaves data
//!    unread resets.
//! 7. **Corking.** Bytes that a program sends together with later ones are written and not
//!    published, for 200 ms at most ([`cork`]).
//! 8. **Refused pages.** A peer can make the kernel refuse a page of the common memory. Where a
//!    handler answers faults, that resets the connection ([`refused_pages`]).
//!
//! This module never allocates and never panics: it runs inside `read` and `write` of unmodified
//! programs. It blocks in the kernel only for a lock whose holder sleeps. No write of the other end
//! makes it leave the mapping or loop. The format is in `docs/spec/stream.md`.

pub mod arrivals;
#[cfg(not(loom))]
mod clock;
#[cfg(not(loom))]
mod close;
#[cfg(not(loom))]
mod copy_fault;
#[cfg(not(loom))]
pub mod cork;
#[cfg(not(loom))]
mod endpoint;
pub mod layout;
#[cfg(not(loom))]
mod lock;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod notify;
#[cfg(not(loom))]
mod private;
#[cfg(not(loom))]
mod receive;
#[cfg(not(loom))]
pub mod refused_pages;
#[cfg(not(loom))]
mod send;
#[cfg(not(loom))]
mod urgent;
#[cfg(not(loom))]
mod user_timeout;
pub mod waiters;

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(not(loom))]
pub use close::{Hangup, Hint};
#[cfg(not(loom))]
pub use copy_fault::CopyFault;
#[cfg(not(loom))]
pub use endpoint::{Edge, Endpoint};
pub use layout::{MAGIC, Names, RegionSizes};
#[cfg(not(loom))]
pub use lock::{after_fork, holder, is_dead, is_running, own as thread, restrict_system_calls};
#[cfg(not(loom))]
pub use memory::{AttachError, Memory, check_overcommit, is_mappable, set_served};
#[cfg(not(loom))]
pub use notify::{Notification, Taken, Want};
#[cfg(not(loom))]
pub use private::{OPTIONS_OFFSET, Private, STATE_OFFSET, flag, option, state};
#[cfg(not(loom))]
pub use receive::Receive;
#[cfg(not(loom))]
pub use send::{SEGMENT, Send};

/// Up to this size (256 KiB) a full ring is left for a larger one at once. The larger half of a
/// core's second-level cache stays free.
pub(crate) const EAGER_LOG2: u8 = 18;
