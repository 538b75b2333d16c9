//! One end of a stream: its two mappings, and what can be read from them without a lock.
//!
//! 1. [`Endpoint::attach`] maps the private page and the common memory. It validates magic, sizes
//!    and the number of the end before it uses them.
//! 2. The end produces into one direction of the common memory (`outbound`) and consumes from the
//!    other (`inbound`).
//! 3. Each mapped end is in the list of [`refused_pages`]. It leaves the list before it is
//!    unmapped.
//!
//! The other files of this folder add the operations: `send`, `receive`, `notify`, `close`, `cork`.
//! What the other end writes is never trusted: an invalid value calls `distrust`, which resets the
//! connection.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use super::layout::{Common, Direction, HEADER, MAGIC, MARKED, Names, Notified, PRIVATE, RegionSizes, tail};
use super::memory::{AttachError, Mapped};
use super::private::{Private, flag};
use super::{arrivals, lock, refused_pages};
use crate::sync::Ordering;

/// What an edge-triggered watcher compares: each changes when, and only when, Linux would wake the
/// threads that poll the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// Bytes that the other has published: more of them wake waiters for data.
    pub arrived: u64,
    /// Changes that wake every waiter (`sk_state_change`): the end of the set-up, the end of the
    /// other end, a reset, this end's shutdowns.
    pub changes: u32,
    /// What the other end has said about its end: [`tail::FIN`], which is part of the changes, and
    /// [`tail::CLOSING`], which is no edge.
    pub(super) ending: u8,
}

impl Edge {
    /// Whether the connection is established, neither end has shut anything down, closed for good
    /// or reset it, and no urgent data were ever sent to this one.
    #[inline]
    pub const fn is_open(&self) -> bool {
        self.changes & (flag::WOKEN - 1) == 0
    }

    /// Of the changes: [`Endpoint::is_marked`].
    const MARKED: u32 = 1 << 12;

    /// Whether the other end has ever sent urgent data.
    #[inline]
    pub const fn is_marked(&self) -> bool {
        self.changes & Self::MARKED != 0
    }

    /// See [`Endpoint::is_closing`].
    #[inline]
    pub const fn is_closing(&self) -> bool {
        self.ending & tail::CLOSING as u8 != 0
    }

    /// See [`Endpoint::finished_by_peer`].
    #[inline]
    pub const fn is_finished(&self) -> bool {
        self.ending & tail::FIN as u8 != 0
    }
}

/// One end. All holders of it (threads, and processes after a fork) may use it at the same time.
#[derive(Debug)]
pub struct Endpoint {
    /// Taken off before the memory is unmapped.
    listed: refused_pages::Listed,
    common: Mapped,
    private: Mapped,
    /// In the common memory: found once, because each message needs them a dozen times.
    inbound: NonNull<Direction>,
    outbound: NonNull<Direction>,
    own_notified: NonNull<Notified>,
    peer_notified: NonNull<Notified>,
    index: usize,
    pub(super) region_sizes: RegionSizes,
    /// The drainer of the doorbell that this mapping's last waiter gave up on; above 32 bits the
    /// millisecond since when; 0 for none.
    pub(super) stuck: std::sync::atomic::AtomicU64,
}

// SAFETY: the two mappings are this value's own, and everything in them that is not bytes of a ring
// is accessed through atomics; the bytes are accessed under the locks of `Receive` and `Send`.
unsafe impl std::marker::Send for Endpoint {}
// SAFETY: as above.
unsafe impl Sync for Endpoint {}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if !self.listed.take_off() {
            self.common.stay();
            self.private.stay();
        }
    }
}

impl Endpoint {
    /// Maps the end whose private page is `private`, of the connection whose common memory is
    /// `common`.
    ///
    /// # Errors
    /// [`AttachError`]: memory that did not come from [`super::Memory::create`], or two memories of
    /// different region sizes.
    pub fn attach(common: BorrowedFd<'_>, private: BorrowedFd<'_>) -> Result<Self, AttachError> {
        let private = Mapped::of(private, PRIVATE)?;
        // SAFETY: the mapping is a page, which is as aligned as a `Private` and as long; all of it
        // is atomics but for the names, which are not written any more.
        let page = unsafe { private.address.cast::<Private>().as_ref() };
        let region_sizes = page.region_sizes();
        let index = page.end.load(Ordering::Relaxed) as usize;
        if page.magic.load(Ordering::Relaxed) != MAGIC || !region_sizes.is_valid() || index > 1 {
            return Err(AttachError::Version);
        }
        let common = Mapped::of(common, region_sizes.common())?;
        let listed = refused_pages::list((common.address, common.length), private.address)
            .ok_or_else(|| AttachError::Io(std::io::ErrorKind::OutOfMemory.into()))?;
        // SAFETY: at the start of a mapping that is longer (`RegionSizes::common`) and
        // page-aligned; all atomics.
        let start = unsafe { common.address.cast::<Common>().as_ref() };
        let (directions, notified) = (&start.directions, &start.notified);
        Ok(Self {
            inbound: NonNull::from(&directions[index ^ 1]),
            outbound: NonNull::from(&directions[index]),
            own_notified: NonNull::from(&notified[index]),
            peer_notified: NonNull::from(&notified[index ^ 1]),
            listed,
            common,
            private,
            index,
            region_sizes,
            stuck: std::sync::atomic::AtomicU64::new(0),
        })
    }

    /// Frees the locks that hold the caller's number. For a caller that holds none of them: it has
    /// inherited this end over an exec, and a thread that the exec ended had the number.
    pub fn free_after_exec(&self) {
        let private = self.private();
        let words = [&private.receiving.lock, &private.sending.lock, &private.doorbell.draining];
        words.into_iter().for_each(lock::free_if_own);
    }

    /// What the holders of this end share.
    #[inline]
    pub fn private(&self) -> &Private {
        // SAFETY: as in `attach`; the mapping lives as long as `self`.
        unsafe { self.private.address.cast::<Private>().as_ref() }
    }

    /// The addresses of both ends.
    pub fn names(&self) -> Names {
        self.private().names
    }

    #[cfg(test)]
    pub(super) fn common(&self) -> &Common {
        // SAFETY: as in `attach`.
        unsafe { self.common.address.cast::<Common>().as_ref() }
    }

    /// How the other end has notified this one.
    #[inline]
    pub(super) fn own_notified(&self) -> &Notified {
        // SAFETY: in the common memory, which is mapped as long as `self` lives; all atomics.
        unsafe { self.own_notified.as_ref() }
    }

    /// How this end has notified the other one.
    #[inline]
    pub(super) fn peer_notified(&self) -> &Notified {
        // SAFETY: as in `own_notified`.
        unsafe { self.peer_notified.as_ref() }
    }

    /// The direction that this end consumes.
    #[inline]
    pub(super) fn inbound(&self) -> &Direction {
        // SAFETY: as in `own_notified`.
        unsafe { self.inbound.as_ref() }
    }

    /// The direction that this end produces.
    #[inline]
    pub(super) fn outbound(&self) -> &Direction {
        // SAFETY: as in `own_notified`.
        unsafe { self.outbound.as_ref() }
    }

    /// The first byte of the region of `1 << log2` bytes of a direction; `log2` is one that the
    /// region sizes include.
    #[inline]
    pub(super) fn region(&self, inbound: bool, log2: u8) -> *mut u8 {
        debug_assert!(self.region_sizes.has(log2));
        let direction = if inbound { self.index ^ 1 } else { self.index };
        // Inside the mapping: an area holds every region of the configured sizes.
        self.common.address.as_ptr().wrapping_add(HEADER + direction * self.region_sizes.area() + (1 << log2))
    }

    /// Whether the region of `1 << log2` bytes of the direction that this end produces can be
    /// written to.
    pub(super) fn reserve(&self, log2: u8) -> bool {
        self.common.reserve(HEADER + self.index * self.region_sizes.area() + (1 << log2), 1 << log2)
    }

    /// Bytes that can be read now.
    #[inline]
    pub fn readable(&self) -> usize {
        let published = tail::position(self.whole_tail());
        // After the tail: the mark is set before its byte is published.
        if self.is_marked() {
            return self.readable_to_mark();
        }
        self.readable_of(published)
    }

    /// Bytes that can be read now of those that the other had published at a snapshot
    /// ([`Edge::arrived`]).
    #[inline]
    pub fn readable_of(&self, published: u64) -> usize {
        let head = self.private().receiving.head.load(Ordering::Acquire);
        self.at_most_all(published.saturating_sub(head))
    }

    /// At most what all regions hold; more is invalid, which the next read detects.
    #[inline]
    pub(super) fn at_most_all(&self, bytes: u64) -> usize {
        bytes.min(2 << self.region_sizes.largest) as usize
    }

    /// Whether the other end will send nothing more (FIN, or it is dead) and everything is read.
    #[inline]
    pub fn ended(&self) -> bool {
        let word = self.whole_tail();
        (word & tail::FIN != 0 || self.private().has(flag::HUNG_UP)) && self.readable() == 0
    }

    /// Whether the other has said that it will send nothing more, read or not.
    #[inline]
    pub fn finished_by_peer(&self) -> bool {
        self.whole_tail() & tail::FIN != 0
    }

    /// The flags that go with every tail of this end.
    #[inline]
    pub(super) fn tail_flags(&self) -> u64 {
        let flags = self.private().flags.load(Ordering::Relaxed);
        if flags & (flag::SHUT_WR | flag::ABORT_ON_CLOSE | flag::HAS_RESET) == 0 {
            return 0;
        }
        let fin = if flags & flag::SHUT_WR == 0 { 0 } else { tail::FIN };
        let abort = if flags & flag::ABORT_ON_CLOSE == 0 { 0 } else { tail::ABORT };
        let reset = if flags & flag::HAS_RESET == 0 { 0 } else { tail::RESET | tail::CLOSING };
        fin | abort | reset
    }

    /// Something is about to be published from `position` on.
    #[inline]
    pub(super) fn note_arrival(&self, position: u64) {
        let (sending, outbound) = (&self.private().sending, self.outbound());
        let (notes, next) = (&outbound.producer.arrivals, &sending.noted);
        let heads = [&self.inbound().producer.read, &outbound.consumer.head];
        arrivals::note(notes, next, position, &sending.noted_head, heads);
    }

    /// When the other end published the bytes from `position` on, in cycles, as it claims
    /// ([`arrivals`]); never later than `now`.
    #[inline]
    pub fn arrived_after(&self, position: u64, now: u64) -> Option<u64> {
        arrivals::after(&self.inbound().producer.arrivals, position, now)
    }

    /// Bytes that were read so far.
    #[inline]
    pub fn read(&self) -> u64 {
        self.private().receiving.head.load(Ordering::Acquire)
    }

    /// The word that the other published last: bytes, and what goes with them.
    #[inline]
    pub fn published(&self) -> u64 {
        self.inbound().producer.tail.load(Ordering::Acquire)
    }

    /// The other end has published an invalid value: from now on it counts as having reset the
    /// connection, and nothing can be read any more. (A reader in another thread may put its own
    /// position there again; the next reader finds the same invalid value.)
    #[cold]
    pub(super) fn distrust(&self) {
        self.private().distrust();
    }

    /// The kernel, writing or reading the common memory for this process, was refused a page. This
    /// end is reset as if the other end had proved untrustworthy.
    pub fn page_refused(&self) {
        self.distrust();
    }

    /// Whether an address is one of the common memory.
    pub(super) fn contains(&self, address: usize) -> bool {
        address.checked_sub(self.common.address.addr().get()).is_some_and(|at| at < self.common.length)
    }

    /// The processor that the other was last seen on, if it said so. A hint.
    #[inline]
    pub fn peer_cpu(&self) -> Option<u32> {
        self.inbound().producer.cpu.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Says on which processor this end runs. A hint; costs nothing while it stays the same.
    #[inline]
    pub fn set_cpu(&self, cpu: u32) {
        let word = &self.outbound().producer.cpu;
        let value = cpu.wrapping_add(1);
        if word.load(Ordering::Relaxed) != value {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Says that options on the private page have changed. The caller writes a byte to its own
    /// descriptor.
    pub fn announce(&self) {
        self.outbound().producer.option_changes.fetch_add(1, Ordering::Release);
    }

    /// How often the other has announced that, wrapping.
    #[inline]
    pub fn option_changes(&self) -> u32 {
        self.inbound().producer.option_changes.load(Ordering::Acquire)
    }

    /// See [`Edge`].
    #[inline]
    pub fn snapshot(&self) -> Edge {
        const OWN: u32 = flag::SHUT_RD | flag::SHUT_WR | flag::RESET | flag::WOKEN.wrapping_neg();
        const _: () = assert!(flag::WOKEN == 1 << 20 && flag::HUNG_UP == 4 && tail::FIN == 1);
        let word = self.whole_tail();
        // After the tail: the mark is set before its byte is published.
        let held = self.inbound().producer.held.load(Ordering::Acquire);
        let private = self.private();
        let flags = private.flags.load(Ordering::Acquire);
        // A FIN, and the close after it, are one end.
        let ended = (flags & flag::HUNG_UP) | ((word & tail::FIN) as u32) << 2;
        // Once, for good: what can be read is no longer known from the tail alone.
        let marked = ((held & MARKED) >> MARKED.ilog2()) as u32 * Edge::MARKED;
        let changes = (flags & OWN) | ended | marked | private.state.load(Ordering::Acquire) << 8;
        let ending = word as u8 & (tail::FIN | tail::CLOSING) as u8;
        Edge { arrived: tail::position(word), changes, ending }
    }
}
