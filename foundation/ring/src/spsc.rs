//! A ring with one producer and one consumer, either of which may be another process or the kernel.
//!
//! 1. Two running indices are in shared memory: the *producer* word (written by the producer alone)
//!    and the *consumer* word (written by the consumer alone). They wrap at 2^32; an entry's slot
//!    is its index modulo the capacity, a power of two. `producer - consumer` entries are in the
//!    ring.
//! 2. Each side works on a private copy of its own index and publishes it in one store. The
//!    producer does so with [`Producer::submit`] after any number of [`Producer::push`], the
//!    consumer with [`Consumer::release`] after any number of [`Consumer::pop`]. Neither reads its
//!    own word back, so scribbling over that word changes nothing here.
//! 3. Each side remembers the other's index as it last read it, and reads it again only when the
//!    remembered index is not enough. So a batch costs one access to the other side's cache line.
//! 4. A store of an index is a release, a load of the other's an acquire. So entries written before
//!    a submit are visible with the submit, and a slot is not written again before its reader has
//!    released it.
//! 5. The other side's word is validated when it is read. It may advance by at most what it could
//!    honestly have done. For the consumer that is what was submitted and not yet consumed, for the
//!    producer the slots that were free. Anything else (backwards, too far) is counted as a
//!    violation and ignored: the ring stays as it was before. So no entry is read that the rules do
//!    not allow, and one call never does more work than the ring has slots.
//!
//! What an entry *says* is not checked here: the consumer copies an entry once and validates the
//! copy.

use crate::need_wakeup;
use crate::sync::{AtomicU32, Ordering};

#[cfg(all(test, not(loom)))]
mod tests;

/// The memory of a ring.
pub trait RingMemory<T> {
    /// Slots: a power of two.
    fn capacity(&self) -> u32;
    /// The producer's published index.
    fn producer(&self) -> &AtomicU32;
    /// The consumer's published index.
    fn consumer(&self) -> &AtomicU32;
    /// The flags word; see [`need_wakeup`].
    fn flags(&self) -> &AtomicU32;
    /// Copies the entry with running index `index` out of its slot (`index` modulo the capacity).
    fn read(&self, index: u32) -> T;
    /// As [`RingMemory::read`], for the newest published entry.
    #[inline]
    fn read_newest(&self, index: u32) -> T {
        self.read(index)
    }
    /// Copies `entry` into the slot of running index `index`.
    fn write(&self, index: u32, entry: T);
    /// The entry of running index `index` is about to be published, and none behind it.
    #[inline]
    fn note_newest(&self, index: u32) {
        let _ = index;
    }
}

/// The words of a ring contradict each other, so it cannot be attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "ring of {capacity} slots is inconsistent: producer {producer}, consumer {consumer}; make a new ring"
)]
pub struct Inconsistent {
    /// The producer word.
    pub producer: u32,
    /// The consumer word.
    pub consumer: u32,
    /// Slots.
    pub capacity: u32,
}

/// A running index. Tests take a narrow one, for which they try every value.
pub(crate) trait Index: Copy + Ord + std::ops::Sub<Output = Self> {
    /// How far this one is ahead of `earlier`.
    fn distance_from(self, earlier: Self) -> Self;
}

impl Index for u32 {
    #[inline]
    fn distance_from(self, earlier: Self) -> Self {
        self.wrapping_sub(earlier)
    }
}

/// Slots that are free while the entries from `oldest` up to `newest` are in the ring.
#[inline]
fn room<I: Index>(capacity: I, newest: I, oldest: I) -> I {
    capacity - newest.distance_from(oldest)
}

/// The peer's index, if the peer can have come there honestly: at most `most` from where it was
/// `known` to be.
#[inline]
fn accepted<I: Index>(known: I, seen: I, most: I) -> Option<I> {
    (seen.distance_from(known) <= most).then_some(seen)
}

/// Reads both words for a side that attaches to a ring, fresh or left behind by a predecessor.
fn attach<T>(memory: &impl RingMemory<T>) -> Result<(u32, u32), Inconsistent> {
    let producer = memory.producer().load(Ordering::Acquire);
    let consumer = memory.consumer().load(Ordering::Acquire);
    let capacity = memory.capacity();
    if capacity.is_power_of_two() && producer.wrapping_sub(consumer) <= capacity {
        Ok((producer, consumer))
    } else {
        Err(Inconsistent { producer, consumer, capacity })
    }
}

/// The producing side. One thread owns it.
#[derive(Debug)]
pub struct Producer<T, M> {
    memory: M,
    /// Index of the next entry to write.
    head: u32,
    /// What the peer may see: entries below it are submitted.
    submitted: u32,
    /// The peer's index as last accepted.
    consumed: u32,
    violations: u64,
    entry: std::marker::PhantomData<fn(T)>,
}

impl<T, M: RingMemory<T>> Producer<T, M> {
    /// Attaches to the producing end, where a predecessor left it.
    ///
    /// # Errors
    /// [`Inconsistent`] if the words contradict each other.
    pub fn attach(memory: M) -> Result<Self, Inconsistent> {
        let (producer, consumer) = attach(&memory)?;
        Ok(Self {
            memory,
            head: producer,
            submitted: producer,
            consumed: consumer,
            violations: 0,
            entry: std::marker::PhantomData,
        })
    }

    /// Entries that can be pushed now. Reads the peer's word only if fewer than `wanted` are
    /// known.
    #[inline]
    pub fn room(&mut self, wanted: u32) -> u32 {
        let known = self.known_room();
        if known >= wanted {
            return known;
        }
        self.refresh();
        self.known_room()
    }

    /// Writes one entry, which the peer does not see before [`Producer::submit`].
    ///
    /// # Errors
    /// The entry comes back if the ring is full.
    #[inline]
    pub fn push(&mut self, entry: T) -> Result<(), T> {
        if self.room(1) == 0 {
            return Err(entry);
        }
        self.memory.write(self.head, entry);
        self.head = self.head.wrapping_add(1);
        Ok(())
    }

    /// Lets the peer see everything pushed so far, and returns how many entries that added.
    #[inline]
    pub fn submit(&mut self) -> u32 {
        let added = self.head.wrapping_sub(self.submitted);
        if added != 0 {
            self.submitted = self.head;
            self.memory.note_newest(self.head.wrapping_sub(1));
            self.memory.producer().store(self.head, Ordering::Release);
        }
        added
    }

    /// Submitted entries that the peer has not consumed.
    #[inline]
    pub fn in_flight(&mut self) -> u32 {
        self.refresh();
        self.submitted.wrapping_sub(self.consumed)
    }

    /// Running index up to which the peer has consumed.
    #[inline]
    pub fn consumed(&mut self) -> u32 {
        self.refresh();
        self.consumed
    }

    /// Whether the peer requests a wake-up. Call it after [`Producer::submit`].
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        need_wakeup::is_armed(self.memory.flags())
    }

    /// Times the peer's word was impossible.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// The ring's memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    #[inline]
    fn known_room(&self) -> u32 {
        room(self.memory.capacity(), self.head, self.consumed)
    }

    #[inline]
    fn refresh(&mut self) {
        let seen = self.memory.consumer().load(Ordering::Acquire);
        match accepted(self.consumed, seen, self.submitted.distance_from(self.consumed)) {
            Some(index) => self.consumed = index,
            None => self.violations += 1,
        }
    }
}

/// The consuming side. One thread owns it.
#[derive(Debug)]
pub struct Consumer<T, M> {
    memory: M,
    /// Index of the next entry to read.
    tail: u32,
    /// What the peer may see: slots below it are free.
    released: u32,
    /// The peer's index as last accepted.
    produced: u32,
    violations: u64,
    entry: std::marker::PhantomData<fn() -> T>,
}

impl<T, M: RingMemory<T>> Consumer<T, M> {
    /// Attaches to the consuming end, where a predecessor left it.
    ///
    /// # Errors
    /// [`Inconsistent`] if the words contradict each other.
    pub fn attach(memory: M) -> Result<Self, Inconsistent> {
        let (producer, consumer) = attach(&memory)?;
        Ok(Self {
            memory,
            tail: consumer,
            released: consumer,
            produced: producer,
            violations: 0,
            entry: std::marker::PhantomData,
        })
    }

    /// Entries that can be popped now. Reads the peer's word only if fewer than `wanted` are
    /// known.
    #[inline]
    pub fn ready(&mut self, wanted: u32) -> u32 {
        let known = self.produced.wrapping_sub(self.tail);
        if known >= wanted {
            return known;
        }
        self.refresh();
        self.produced.wrapping_sub(self.tail)
    }

    /// Copies the oldest entry out. Its slot stays taken until [`Consumer::release`].
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let entry = match self.ready(1) {
            0 => return None,
            1 => self.memory.read_newest(self.tail),
            _ => self.memory.read(self.tail),
        };
        self.tail = self.tail.wrapping_add(1);
        Some(entry)
    }

    /// Returns the slots of everything popped so far to the producer, and returns how many.
    #[inline]
    pub fn release(&mut self) -> u32 {
        let freed = self.tail.wrapping_sub(self.released);
        if freed != 0 {
            self.released = self.tail;
            self.memory.consumer().store(self.tail, Ordering::Release);
        }
        freed
    }

    /// Gives only the oldest `slots` of what was popped back, or all if there are fewer.
    #[inline]
    pub fn release_oldest(&mut self, slots: u32) {
        let freed = slots.min(self.tail.wrapping_sub(self.released));
        if freed != 0 {
            self.released = self.released.wrapping_add(freed);
            self.memory.consumer().store(self.released, Ordering::Release);
        }
    }

    /// Times the peer's word was impossible.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// Slots.
    pub(crate) fn capacity(&self) -> u32 {
        self.memory.capacity()
    }

    /// The ring's memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    #[inline]
    fn refresh(&mut self) {
        let seen = self.memory.producer().load(Ordering::Acquire);
        let free = room(self.memory.capacity(), self.produced, self.released);
        match accepted(self.produced, seen, free) {
            Some(index) => self.produced = index,
            None => self.violations += 1,
        }
    }
}
