//! Waiting at one end, and notifying the waiters at the other: step 5 of [`super`]. The words and
//! their orderings are in [`waiters`]; this file applies them to the doorbell of an end.
//!
//! 1. A waiter *arms* ([`Endpoint::arm`]), polls once more, and sleeps on the end's descriptor. A
//!    waiter for many streams arms with the number of its sleep ([`Endpoint::arm_among_many`]).
//! 2. After publishing, the other end determines which notification is due
//!    ([`Endpoint::data_notification`], [`Endpoint::room_notification`]). If one is due, a byte is
//!    counted, written into the doorbell, and the request is answered ([`Endpoint::notify_with`]).
//! 3. A woken waiter takes the bytes from the doorbell ([`Endpoint::drain`]). One byte stays while
//!    other waiters are counted, so that they wake as well.
//! 4. A waiter that arms during a drain waits for its end and arms again. Otherwise the drain could
//!    take the byte that answers the waiter.
//!
//! Any process that holds the end can write these words. So every wait for a drain has a budget,
//! and a waiter whose budget is spent sleeps for at most 20 ms.

use std::sync::atomic::Ordering::Relaxed;

use super::endpoint::Endpoint;
use super::layout::moved;
use super::{clock, lock, waiters};
use crate::sync::{AtomicU64, Ordering};

/// How often an armed waiter waits for other threads to finish a drain. Each drain takes a moment.
/// More than a few in a row come from a hostile process that holds this end.
const DRAINS: u32 = 64;

/// Bytes at most that are counted and about to be written. Of a writer that was killed in between,
/// one stays counted.
const MAX_UNWRITTEN: i32 = 64;

/// Nanoseconds of a sleep while a drain of the doorbell does not end.
const UNSURE: u64 = 20_000_000;

/// Milliseconds beside the same drainer after which it counts as dead.
const STUCK: u32 = 20_000;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Something to read: bytes, or the end.
    Data,
    /// Room to write.
    Room,
}

/// What [`Endpoint::drain`] has taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Bytes that were taken.
    pub bytes: u32,
    /// Bytes that were found and left.
    pub left: u32,
}

/// What is due to a waiter at the other end: perhaps a byte in its doorbell.
#[derive(Clone, Copy, Debug)]
#[must_use = "a waiter that is not notified sleeps on"]
pub struct Notification {
    want: Want,
    request: Option<u64>,
    sleep: u64,
}

impl Notification {
    /// Nothing is due.
    pub const NONE: Self = Self::of(Want::Data, None);

    const fn of(want: Want, request: Option<u64>) -> Self {
        Self { want, request, sleep: 0 }
    }

    /// Whether a byte is to be written.
    #[inline]
    pub const fn is_needed(&self) -> bool {
        self.request.is_some()
    }

    /// The sleep for which the byte is, to be remembered once it is written; 0 for none.
    #[inline]
    pub const fn sleep(&self) -> u64 {
        self.sleep
    }
}

impl Endpoint {
    #[inline]
    fn waiters(&self, want: Want) -> &AtomicU64 {
        match want {
            Want::Data => &self.inbound().waiters.data,
            Want::Room => &self.outbound().waiters.room,
        }
    }

    /// The last request of this end that the other end has answered.
    #[inline]
    fn answered(&self, want: Want) -> &AtomicU64 {
        let notified = self.own_notified();
        if want == Want::Data { &notified.data } else { &notified.room }
    }

    /// Counts the caller as a waiter until it calls [`Endpoint::disarm`], once it has returned from
    /// its sleep. The caller must poll once more before it sleeps on its descriptor. Returns the
    /// number of its request.
    #[inline]
    pub fn arm(&self, want: Want) -> u64 {
        let word = self.waiters(want);
        let request = waiters::arm(word);
        if self.is_draining() { self.arm_after_drain(want) } else { request }
    }

    /// As [`Endpoint::arm`], for a caller that is counted and sleeps again.
    #[inline]
    pub fn arm_again(&self, want: Want) -> u64 {
        let request = waiters::arm_again(self.waiters(want));
        if self.is_draining() { self.arm_after_drain(want) } else { request }
    }

    /// Takes the caller off the count.
    #[inline]
    pub fn disarm(&self, want: Want) {
        waiters::disarm(self.waiters(want));
    }

    /// Makes a request for others at this end that sleep without being counted, until
    /// [`Endpoint::withdraw_request`].
    pub fn request_for_others(&self, want: Want) {
        waiters::request_uncounted(self.waiters(want));
        if self.is_draining() {
            self.arm_after_drain(want);
        }
    }

    /// They have been woken, or need not be.
    #[inline]
    pub fn withdraw_request(&self, want: Want) {
        waiters::withdraw_request(self.waiters(want));
    }

    /// As [`Endpoint::arm`] for data, for a caller that sleeps for many streams: a notifier that
    /// remembers the sleep notifies once for all of them. `None`: another waiter is counted here,
    /// so the caller must use [`Endpoint::arm`]. The caller fences once for all streams that it
    /// arms this way, asks each [`Endpoint::is_draining`], and then polls all of them.
    #[inline]
    #[must_use = "a waiter that is not counted is not notified"]
    pub fn arm_among_many(&self, sleep: u64) -> Option<u64> {
        let request = waiters::arm_among_many(self.waiters(Want::Data))?;
        self.number_sleep(sleep);
        Some(request)
    }

    /// As [`Endpoint::arm_among_many`], for a caller that is counted so and sleeps again.
    #[inline]
    pub fn arm_again_among_many(&self, sleep: u64) -> u64 {
        let request = waiters::arm_again_among_many(self.waiters(Want::Data));
        self.number_sleep(sleep);
        request
    }

    /// A counted waiter begins another sleep, or one that is for this end alone (0).
    /// Then as [`Endpoint::arm_among_many`].
    #[inline]
    pub fn number_sleep(&self, sleep: u64) {
        self.inbound().waiters.sleep.store(sleep, Ordering::Release);
    }

    /// Takes the caller off the count that was counted with [`Endpoint::arm_among_many`].
    #[inline]
    pub fn disarm_among_many(&self) {
        waiters::disarm_among_many(self.waiters(Want::Data));
    }

    /// How many waiters are counted at this end, for data and for room.
    #[inline]
    pub fn waiting(&self) -> u32 {
        waiters::count(self.waiters(Want::Data)) + waiters::count(self.waiters(Want::Room))
    }

    /// Whether a request of the caller has been answered: it is not notified again before it arms
    /// again. The lower half of its number is enough.
    #[inline]
    pub fn is_answered(&self, want: Want, request: u32) -> bool {
        waiters::is_answered(self.answered(want), request)
    }

    /// Whether a thread takes bytes from the doorbell: a caller that has armed waits for the end of
    /// that, and arms again.
    #[inline]
    pub fn is_draining(&self) -> bool {
        waiters::is_draining(&self.private().doorbell.draining) != 0
    }

    /// Waits until no thread drains the doorbell, and makes the request again: all of it within one
    /// budget, because any holder of this end can write that word. If the budget is spent the
    /// caller does not sleep for long ([`Endpoint::longest_sleep`]).
    #[cold]
    fn arm_after_drain(&self, want: Want) -> u64 {
        let word = &self.private().doorbell.draining;
        let before = self.stuck.load(Relaxed);
        let mut budget = if before == 0 { lock::Budget::new() } else { lock::Budget::spent() };
        for _ in 0..DRAINS {
            let free = lock::wait_for(word, &mut budget);
            let request = waiters::arm_again(self.waiters(want));
            let thread = waiters::is_draining(word);
            // A handler that interrupted its own thread must not wait for it: it sleeps too short
            // at worst.
            if thread == 0 || thread == lock::holder() {
                self.stuck.store(0, Relaxed);
                return request;
            }
            if !free {
                break;
            }
        }
        self.note_stuck(before);
        waiters::arm_again(self.waiters(want))
    }

    /// A thread is at the doorbell for longer than draining takes: it is stopped, dead in another
    /// PID namespace, or there is none. `before` is the last such note. A thread that stays for
    /// [`STUCK`] loses the word.
    fn note_stuck(&self, before: u64) {
        let word = &self.private().doorbell.draining;
        let thread = waiters::is_draining(word);
        let now = clock::now() as u32;
        let since = if before as u32 == thread { (before >> 32) as u32 } else { now };
        let mut noted = u64::from(since) << 32 | u64::from(thread);
        if now.wrapping_sub(since) > STUCK {
            let _ = word.compare_exchange(thread, 0, Ordering::AcqRel, Ordering::Relaxed);
            noted = 0;
        } else {
            lock::free_of_dead(word);
        }
        self.stuck.store(noted, Relaxed);
    }

    /// Nanoseconds that a caller which has armed may sleep at most, if there is a limit. There is
    /// one while the other end holds bytes back ([`Endpoint::corked_for`]). There is one as well
    /// while a thread drains the doorbell and may take the byte that answers the caller.
    #[inline]
    pub fn longest_sleep(&self) -> Option<u64> {
        let held = self.corked_for();
        if self.is_draining() { Some(held.unwrap_or(UNSURE).min(UNSURE)) } else { held }
    }

    /// Bytes of the doorbell that were taken so far, wrapping: for [`Endpoint::notified_since`].
    #[inline]
    pub fn drained(&self) -> u32 {
        self.private().doorbell.drained.load(Ordering::Acquire)
    }

    /// Bytes that the other end has counted since `drained` bytes were taken. Fewer than these are
    /// in the doorbell for a moment, or where a writer was killed before it wrote its byte.
    #[inline]
    pub fn notified_since(&self, drained: u32) -> u32 {
        let notified = self.own_notified().bytes.load(Ordering::Acquire);
        notified.wrapping_sub(drained).cast_signed().max(0).cast_unsigned()
    }

    /// Bytes that should be in the doorbell: a hint.
    #[inline]
    pub fn undrained(&self) -> u32 {
        let notified = self.own_notified().bytes.load(Ordering::Acquire);
        let left = notified.wrapping_sub(self.private().doorbell.drained.load(Ordering::Relaxed));
        // The service that sets a connection up may notify the connecting end without counting it.
        if left.cast_signed() < 0 { 0 } else { left }
    }

    /// Takes bytes from the doorbell by calling `take(leave)`, which returns how many it took; none
    /// if it could not see how many there are. With `leave` it takes all bytes but one. Without it
    /// takes all, because no waiter is counted at this end but `own`. Returns whether no byte had
    /// to stay; false also if another thread is taking some.
    ///
    /// What is counted and was not there is about to be written, and stays counted: up to
    /// [`MAX_UNWRITTEN`] bytes.
    pub fn drain(&self, own: u32, take: impl FnOnce(bool) -> Option<Taken>) -> bool {
        let doorbell = &self.private().doorbell;
        let Some(drain) = waiters::Drain::begin(&doorbell.draining, lock::holder()) else {
            lock::free_of_dead(&doorbell.draining);
            return false;
        };
        let notified = self.own_notified().bytes.load(Ordering::Acquire);
        let leave = self.waiting() > own;
        if let Some(Taken { bytes, left }) = take(leave) {
            let before = doorbell.drained.load(Ordering::Relaxed).wrapping_add(bytes);
            let unwritten = notified.wrapping_sub(before).wrapping_sub(left).cast_signed();
            let is_exact = (0..=MAX_UNWRITTEN).contains(&unwritten);
            let now = if is_exact { before } else { notified.wrapping_sub(left) };
            doorbell.drained.store(now, Ordering::Release);
        }
        drop(drain);
        !leave
    }

    /// After sending, finishing or closing: what is due to a waiter for data at the other end. If a
    /// byte is, the caller writes it to its own descriptor within [`Endpoint::notify_with`].
    #[inline]
    pub fn data_notification(&self) -> Notification {
        let notified = self.peer_notified();
        Notification::of(Want::Data, waiters::due(&self.outbound().waiters.data, &notified.data))
    }

    /// As [`Endpoint::data_notification`], for a caller that remembers for which sleeps it has
    /// notified ([`Notification::sleep`]): nothing is due if the consumer is in one of them.
    #[inline]
    pub fn data_notification_unless(&self, is_notified: impl FnOnce(u64) -> bool) -> Notification {
        let (waiters, notified) = (&self.outbound().waiters, self.peer_notified());
        match waiters::due_unless(&waiters.data, &notified.data, &waiters.sleep, is_notified) {
            None => Notification::of(Want::Data, None),
            Some((request, sleep)) => Notification { sleep, ..Notification::of(Want::Data, Some(request)) },
        }
    }

    /// After receiving: as [`Endpoint::data_notification`], for a producer that waits for room. A
    /// producer is notified when a quarter of its ring is free.
    #[inline(always)]
    pub fn room_notification(&self) -> Notification {
        let notified = self.peer_notified();
        let due = Notification::of(Want::Room, waiters::due(&self.inbound().waiters.room, &notified.room));
        if due.is_needed() && !self.is_room_worth_a_ring() { Notification::of(Want::Room, None) } else { due }
    }

    #[cold]
    fn is_room_worth_a_ring(&self) -> bool {
        let mine = self.private().receiving.region.load(Ordering::Relaxed);
        let log2 = moved::log2(mine).min(self.region_sizes.largest);
        let left = self.inbound().moves.left[usize::from(log2)].load(Ordering::Acquire);
        // Room is counted in the region that the producer is in, so there is none before the
        // consumer has come there.
        moved::at(left) <= moved::at(mine) && self.readable() <= (1 << log2) / 4 * 3
    }

    /// Counts the byte that `write` writes into the other end's doorbell. Returns whether it did.
    pub fn write_counted(&self, write: impl FnOnce() -> bool) -> bool {
        let bytes = &self.peer_notified().bytes;
        bytes.fetch_add(1, Ordering::Release);
        let written = write();
        if !written {
            bytes.fetch_sub(1, Ordering::Release);
        }
        written
    }

    /// Notifies of what is due, by one byte that `write` writes into the other end's doorbell.
    /// Returns whether it did: false also if nothing is due.
    ///
    /// A byte is counted before it can be found: a waiter takes bytes only where some are counted.
    /// A request is answered after the byte was written: a notifier that is killed in between
    /// leaves it to the next message.
    pub fn notify_with<const N: usize>(&self, due: [Notification; N], write: impl FnOnce() -> bool) -> bool {
        if !due.iter().any(|due| due.is_needed()) {
            return false;
        }
        if !self.write_counted(write) {
            return false;
        }
        let notified = self.peer_notified();
        for due in due {
            if let Some(request) = due.request {
                let word = if due.want == Want::Data { &notified.data } else { &notified.room };
                waiters::answer(word, request);
            }
        }
        true
    }
}
