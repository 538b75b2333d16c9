//! A channel of values from one thread to another of the same process, which never blocks its
//! sender and never loses a value.
//!
//! 1. Values move through a ring of slots with two indices ([`crate::spsc`]), each on cache lines
//!    of its own. A value is written into its slot, published by a release of the producer index,
//!    and moved out after an acquire of it. The slot is written again only after an acquire of the
//!    consumer index, which the receiver released.
//! 2. [`Sender::send`] puts a value that finds the ring full into a queue on the sender's side, and
//!    every later one behind it, so that the order holds. That queue is bounded by what the two
//!    threads agree to have outstanding, not here.
//! 3. Each of the two threads has a [`ThreadDoorbell`], one for all its channels. [`Sender::flush`]
//!    publishes everything that was sent, and then notifies the receiver's: once for many values.
//! 4. While values wait on the sender's side, the ring's own need-wakeup word is armed: the sender
//!    arms it, and tries once more before it relies on it. The receiver, when it returns slots,
//!    claims that word and then notifies the sender's doorbell. So both directions follow
//!    [`need_wakeup`]: of two sides that write one word each and then read the other's, one sees
//!    the other, and no wake-up is lost.
//! 5. The receiver returns slots when it finds the ring empty, and when half of them are its to
//!    return: one store for many values.
//! 6. A thread that wants to sleep arms its doorbell first. Then it asks each of its receivers
//!    [`Receiver::is_ready`] and each of its senders [`Sender::flush`], and sleeps if no value
//!    moved or can move.
//! 7. Values that were not received are dropped with the second of the two ends. A sender whose
//!    receiver is gone keeps what it sends until it is dropped itself.
//!
//! ```
//! use sietch_ring::channel::channel;
//! use sietch_ring::thread_doorbell::EventDoorbell;
//!
//! let (here, there) = (EventDoorbell::new()?, EventDoorbell::new()?);
//! let (mut sender, mut receiver) = channel(2, &here, &there);
//! for number in 0..5 {
//!     sender.send(number.to_string());
//! }
//! assert_eq!(receiver.receive(), None, "it is not flushed yet");
//! assert_eq!((sender.flush(), sender.waiting()), (2, 3));
//! assert_eq!(receiver.receive().as_deref(), Some("0"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::mem::MaybeUninit;

use crate::need_wakeup;
use crate::spsc::{Consumer, Producer, RingMemory};
use crate::sync::{Arc, AtomicU32, Ordering, UnsafeCell};
use crate::thread_doorbell::{ThreadDoorbell, Wake};

#[cfg(all(test, not(loom)))]
mod tests;

/// An index or a word on cache lines of its own: two, because processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Separate(AtomicU32);

impl Separate {
    fn zero() -> Self {
        Self(AtomicU32::new(0))
    }
}

/// The ring of a channel. Dropped with the second of its ends.
struct Shared<T> {
    producer: Separate,
    consumer: Separate,
    /// Armed while values wait on the sender's side.
    full: Separate,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a slot is accessed by one thread at a time: the sender's between an acquire of the
// consumer index and a release of the producer index, the receiver's the other way around
// (`Producer` and `Consumer`, one of each). A value in a slot moves from one thread to the other,
// which `Send` allows.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn slot(&self, index: u32) -> &UnsafeCell<MaybeUninit<T>> {
        // A power of two, so that the indices may wrap.
        &self.slots[index as usize & (self.slots.len() - 1)]
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (producer, mut consumer) =
            (self.producer.0.load(Ordering::Acquire), self.consumer.0.load(Ordering::Acquire));
        while consumer != producer {
            // SAFETY: both ends are gone, and published what they did: `producer` covers every
            // value that was written, `consumer` every value that was moved out. So this slot,
            // which is between the two, holds a value that nothing else drops.
            self.slot(consumer).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            consumer = consumer.wrapping_add(1);
        }
    }
}

/// The ring as either end has it. Private to this file: `read` moves a value out, so that only one
/// [`Consumer`] may call it, once for each index.
struct Ring<T>(Arc<Shared<T>>);

impl<T> RingMemory<T> for Ring<T> {
    #[inline]
    fn capacity(&self) -> u32 {
        self.0.slots.len() as u32
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        &self.0.producer.0
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        &self.0.consumer.0
    }

    #[inline]
    fn flags(&self) -> &AtomicU32 {
        &self.0.full.0
    }

    #[inline]
    fn read(&self, index: u32) -> T {
        // SAFETY: the ring's one consumer reads each index once, after an acquire of a producer
        // index above it: the slot holds a value, which from here on is the consumer's.
        self.0.slot(index).with(|slot| unsafe { (*slot).assume_init_read() })
    }

    #[inline]
    fn write(&self, index: u32, entry: T) {
        // SAFETY: the ring's one producer writes, after an acquire of a consumer index that freed
        // the slot: nothing else accesses it, and the value that it held was moved out.
        self.0.slot(index).with_mut(|slot| unsafe {
            (*slot).write(entry);
        });
    }
}

/// The sending end. One thread owns it.
pub struct Sender<T, W: Wake> {
    producer: Producer<T, Ring<T>>,
    /// What the ring had no room for, in order.
    waiting: VecDeque<T>,
    /// The ring's word was armed, and was not disarmed here since.
    armed: bool,
    receiver: ThreadDoorbell<W>,
}

/// The receiving end. One thread owns it.
pub struct Receiver<T, W: Wake> {
    consumer: Consumer<T, Ring<T>>,
    /// Slots to be returned.
    taken: u32,
    sender: ThreadDoorbell<W>,
}

/// A channel from the thread with the doorbell `from` to the one with the doorbell `to`, with so
/// many slots, rounded up to a power of two.
pub fn channel<T: Send, W: Wake>(
    slots: u16,
    from: &ThreadDoorbell<W>,
    to: &ThreadDoorbell<W>,
) -> (Sender<T, W>, Receiver<T, W>) {
    let slots = usize::from(slots).next_power_of_two();
    let shared = Arc::new(Shared {
        producer: Separate::zero(),
        consumer: Separate::zero(),
        full: Separate::zero(),
        slots: (0..slots).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
    });
    let producer = Producer::attach(Ring(Arc::clone(&shared))).expect("both indices are zero");
    let consumer = Consumer::attach(Ring(shared)).expect("both indices are zero");
    let sender = Sender { producer, waiting: VecDeque::new(), armed: false, receiver: to.clone() };
    (sender, Receiver { consumer, taken: 0, sender: from.clone() })
}

impl<T, W: Wake> Sender<T, W> {
    /// Takes a value, which the receiver gets after the next [`Sender::flush`]. Never waits.
    #[inline]
    pub fn send(&mut self, value: T) {
        if !self.waiting.is_empty() {
            self.waiting.push_back(value);
        } else if let Err(value) = self.producer.push(value) {
            self.waiting.push_back(value);
        }
    }

    /// Lets the receiver have what was sent, as far as there is room, and wakes it if it sleeps.
    /// Returns how many values it got. If none and [`Sender::waiting`] is not zero, the receiver
    /// notifies this side once it has returned slots.
    #[inline]
    pub fn flush(&mut self) -> usize {
        let mut passed = self.fill();
        if !self.waiting.is_empty() || self.armed {
            passed += self.wait_for_room();
        }
        passed
    }

    /// Values that wait on this side for room in the ring.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    #[cold]
    fn wait_for_room(&mut self) -> usize {
        let mut passed = 0;
        if !self.waiting.is_empty() {
            need_wakeup::arm(self.producer.memory().flags());
            self.armed = true;
            // Slots that were returned before the receiver could see the word.
            passed = self.fill();
        }
        if self.waiting.is_empty() {
            need_wakeup::disarm(self.producer.memory().flags());
            self.armed = false;
        }
        passed
    }

    #[inline]
    fn fill(&mut self) -> usize {
        while let Some(value) = self.waiting.pop_front() {
            if let Err(value) = self.producer.push(value) {
                self.waiting.push_front(value);
                break;
            }
        }
        let passed = self.producer.submit();
        if passed != 0 {
            self.receiver.notify();
        }
        passed as usize
    }
}

impl<T, W: Wake> Drop for Sender<T, W> {
    fn drop(&mut self) {
        // A value in a slot belongs to the receiver, or is dropped with the ring.
        self.producer.submit();
        self.receiver.notify();
    }
}

impl<T, W: Wake> Receiver<T, W> {
    /// The oldest value, or `None` if there is none. Never waits.
    #[inline]
    pub fn receive(&mut self) -> Option<T> {
        let value = self.consumer.pop();
        if value.is_some() {
            self.taken += 1;
        }
        if self.taken != 0 && (value.is_none() || self.taken * 2 > self.consumer.capacity()) {
            self.give_back();
        }
        value
    }

    /// Whether [`Receiver::receive`] would return a value.
    pub fn is_ready(&mut self) -> bool {
        self.consumer.ready(1) > 0
    }

    /// Returns the slots of received values, and wakes the sender if values wait there.
    fn give_back(&mut self) {
        self.taken = 0;
        self.consumer.release();
        if need_wakeup::claim(self.consumer.memory().flags()) {
            self.sender.notify();
        }
    }
}

impl<T, W: Wake> Drop for Receiver<T, W> {
    fn drop(&mut self) {
        // What was moved out is not dropped again with the ring.
        self.consumer.release();
    }
}

impl<T, W: Wake> fmt::Debug for Sender<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

impl<T, W: Wake> fmt::Debug for Receiver<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("taken", &self.taken).finish_non_exhaustive()
    }
}
