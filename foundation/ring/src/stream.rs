//! A stream of bytes in each direction between two processes that do not trust one another: what a
//! TCP connection is on one host.
//!
//! 1. **Three memories.** The *common* one is mapped by both ends; each end has a *private* page
//!    that only those who hold that end map. Whatever an end relies on (its positions, which region
//!    it is in, locks, what became of the connection) is in its private page; in the common memory
//!    it only publishes. Whoever reads what the other published validates a copy of it, and takes
//!    nonsense for a reset.
//! 2. **Positions** count bytes from the beginning, so that there is one order of everything. The
//!    producer publishes its *tail* with what else the other has to know in the same word
//!    ([`layout::tail`]): one load tells the consumer all. The consumer publishes its *head*.
//! 3. **Regions.** For each power of two from [`RegionSizes::smallest`] to [`RegionSizes::largest`] a
//!    direction has a region of that size. The producer writes into one of them and may move to
//!    another, in which nothing unread is left, at any byte: beside the region that it leaves it
//!    publishes (position, next region), and the consumer follows once it has read everything
//!    before that position. So a connection of small messages stays in the cache, one with a slow
//!    reader takes what a kernel's socket would, and nothing is ever copied from one ring to
//!    another.
//! 4. **Growing.** A full region below [`EAGER_LOG2`] is left for the next size at once. Above it,
//!    only if the consumer has read nothing since the ring was last found full: who reads steadily
//!    is served best by a small ring, and who does not read at all must be able to leave as much
//!    lying there as programs are used to (a program that writes a megabyte before it reads would
//!    otherwise wait for itself). A larger one that is found full although the consumer reads is
//!    left for one of that size again.
//! 5. **Sleeping.** A waiter that finds nothing to do *arms* (counts itself, and makes a request),
//!    fences, looks once more, and sleeps on a descriptor that the other can make readable. A
//!    producer that has published fences, and if there is a request that it has not answered writes
//!    a byte. One of the two sees the other ([`waiters`], checked with loom). A waiter is counted
//!    until it has returned: as long as others are counted, nobody takes the last byte. Data and
//!    room have waiters of their own.
//! 6. **The end.** A producer that is done publishes FIN. An end that is gone is what the kernel
//!    says is gone (the other end of the descriptor hung up), never what memory says: any number of
//!    processes may hold an end, and any of them may be killed. A closing process leaves a hint in
//!    its tail, so that the other asks the kernel soon. What a hang-up means, a finish or a reset,
//!    follows from the positions, as RFC 9293 section 3.10.4 and RFC 2525 section 2.17 have it: who
//!    leaves data unread resets.
//! 7. **Holding back.** Bytes that a program wants to be sent together with later ones are written
//!    and not published, for 200 ms at most ([`cork`]).
//! 8. **Holes.** A peer can make the kernel refuse a page of the common memory. Where a handler
//!    answers faults that resets the connection ([`refused_pages`]).
//!
//! This module never allocates, never blocks in the kernel but for a lock whose holder sleeps, and
//! never panics: it runs inside `read` and `write` of programs that know nothing of it. No write of
//! the other end makes it leave the mapping or loop. The format is in `docs/spec/stream.md`.

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
pub use lock::{after_fork, holder, is_dead, lives, own as thread, restrict_system_calls};
#[cfg(not(loom))]
pub use memory::{AttachError, Memory, check_overcommit, set_served};
#[cfg(not(loom))]
pub use notify::{Notification, Want};
#[cfg(not(loom))]
pub use private::{OPTIONS_OFFSET, Private, STATE_OFFSET, flag, option, state};
#[cfg(not(loom))]
pub use receive::Receive;
#[cfg(not(loom))]
pub use send::{SEGMENT, Send};

/// Up to this size (256 KiB) a full ring is left for a larger one at once: the larger half of a
/// core's second-level cache stays free.
pub const EAGER_LOG2: u8 = 18;
