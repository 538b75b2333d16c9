//! One end of a stream.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;

use super::layout::{Common, Direction, HEADER, MAGIC, Names, PRIVATE, RegionSizes, moved, tail};
use super::memory::{AttachError, Mapped};
use super::private::{Private, flag};
use super::{Receive, Send, arrivals, lock, refused_pages, waiters};
use crate::sync::{AtomicU64, Ordering};

/// Times that an armed waiter waits for others to have taken bytes. Each takes a moment, so more
/// than a few in turn are those of a process that holds this end and means harm to it.
const DRAINS: u32 = 64;

/// Nanoseconds of a sleep while somebody drains the doorbell and does not come to an end.
const UNSURE: u64 = 20_000_000;

/// Milliseconds beside the same drainer after which it counts as dead.
const STUCK: u32 = 20_000;

/// Times that who closes tries to say so beside somebody who publishes: that takes a copy each
/// time.
const PUBLICATIONS: u32 = 64;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Something to read: bytes, or the end.
    Data,
    /// Room to write.
    Room,
}

/// What it meant that the other end is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// It had read everything and closed: FIN.
    Finished,
    /// It left something unread, wanted to abort, or was not to be believed: RST.
    Reset,
}

/// What an edge-triggered watcher compares: each changes when, and only when, Linux would wake
/// those who poll the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// Bytes that the other has published: more of them wake who waits for data.
    pub arrived: u64,
    /// What wakes everybody (`sk_state_change`): the set-up's end, the other's end, a reset, the
    /// own shutdowns.
    pub changes: u32,
    /// [`Endpoint::is_closing`], which is no edge.
    pub closing: bool,
}

/// What an end said about closing, as it was read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint(u64);

/// What a ringer owes to who waits at the other end.
#[derive(Clone, Copy, Debug)]
#[must_use = "who is not rung sleeps on"]
pub struct Notification {
    want: Want,
    request: Option<u64>,
    sleep: u64,
}

impl Notification {
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

/// One end. All holders of it (threads, and processes after a fork) may use it at the same time.
#[derive(Debug)]
pub struct Endpoint {
    /// Taken off before the memory is unmapped.
    listed: refused_pages::Listed,
    common: Mapped,
    private: Mapped,
    index: usize,
    pub(super) geometry: RegionSizes,
    /// The drainer of the doorbell that this mapping's last waiter gave up on, and above 32 bits
    /// the millisecond since when; 0 for none.
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
    /// [`AttachError`]: memory that did not come from [`super::Memory::create`], or not both from the same one's geometry.
    pub fn attach(common: BorrowedFd<'_>, private: BorrowedFd<'_>) -> Result<Self, AttachError> {
        let private = Mapped::of(private, PRIVATE)?;
        // SAFETY: the mapping is a page, which is as aligned as a `Private` and as long; all of it
        // is atomics but for the names, which nobody writes any more.
        let page = unsafe { private.address.cast::<Private>().as_ref() };
        let geometry = page.geometry();
        let index = page.end.load(Ordering::Relaxed) as usize;
        if page.magic.load(Ordering::Relaxed) != MAGIC || !geometry.is_valid() || index > 1 {
            return Err(AttachError::Version);
        }
        let common = Mapped::of(common, geometry.common())?;
        let listed = refused_pages::list((common.address, common.length), private.address)
            .ok_or_else(|| AttachError::Io(std::io::ErrorKind::OutOfMemory.into()))?;
        Ok(Self { listed, common, private, index, geometry, stuck: std::sync::atomic::AtomicU64::new(0) })
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

    #[inline]
    pub(super) fn common(&self) -> &Common {
        // SAFETY: at the start of a mapping that is longer, page-aligned, and alive as long as
        // `self`; all atomics.
        unsafe { self.common.address.cast::<Common>().as_ref() }
    }

    /// The direction that this end consumes.
    #[inline]
    pub(super) fn inbound(&self) -> &Direction {
        &self.common().directions[self.index ^ 1]
    }

    /// The direction that this end produces.
    #[inline]
    pub(super) fn outbound(&self) -> &Direction {
        &self.common().directions[self.index]
    }

    /// The first byte of the region of `1 << log2` bytes of a direction; `log2` is one that the
    /// geometry has.
    #[inline]
    pub(super) fn region(&self, inbound: bool, log2: u8) -> *mut u8 {
        debug_assert!(self.geometry.has(log2));
        let direction = if inbound { self.index ^ 1 } else { self.index };
        // Inside the mapping: an area holds every region of the geometry.
        self.common.address.as_ptr().wrapping_add(HEADER + direction * self.geometry.area() + (1 << log2))
    }

    /// Whether the region of `1 << log2` bytes of the direction that this end produces can be
    /// written to.
    pub(super) fn reserve(&self, log2: u8) -> bool {
        self.common.reserve(HEADER + self.index * self.geometry.area() + (1 << log2), 1 << log2)
    }

    /// Bytes that can be read now.
    #[inline]
    pub fn readable(&self) -> usize {
        let head = self.private().receiving.head.load(Ordering::Acquire);
        let published = tail::position(self.inbound_tail());
        // At most what all regions hold; more is nonsense, which whoever reads finds out.
        let most = 2 << self.geometry.largest;
        published.saturating_sub(head).min(most) as usize
    }

    /// Whether the other will send nothing more (FIN, or it is gone) and everything is read.
    #[inline]
    pub fn ended(&self) -> bool {
        let word = self.inbound_tail();
        (word & tail::FIN != 0 || self.private().has(flag::HUNG_UP)) && self.readable() == 0
    }

    /// Whether the other has said that it will send nothing more, read or not.
    #[inline]
    pub fn finished_by_peer(&self) -> bool {
        self.inbound_tail() & tail::FIN != 0
    }

    /// Bytes that fit now.
    pub fn writable(&self) -> usize {
        let sending = &self.private().sending;
        let word = sending.region.load(Ordering::Acquire);
        let (since, log2) = (moved::at(word), moved::log2(word));
        if !self.geometry.has(log2) {
            return 0;
        }
        let head = self.outbound().consumer.head.load(Ordering::Acquire);
        let used = self.staged().saturating_sub(head.max(since));
        (1_u64 << log2).saturating_sub(used) as usize
    }

    /// Bytes of the largest region that this end may write into.
    pub fn most_sent(&self) -> usize {
        1 << Send::largest(self)
    }

    /// Whether `poll(2)` would call it writable: a quarter of the ring is free, or it may still
    /// grow without asking.
    pub fn is_writable(&self) -> bool {
        let log2 =
            moved::log2(self.private().sending.region.load(Ordering::Acquire)).min(self.geometry.largest);
        let size = 1_usize << log2;
        self.writable() >= size / 4 || Send::would_grow(self)
    }

    /// Begins to read; `None` if this very thread is at it already (a signal handler).
    #[inline]
    pub fn receive(&self) -> Option<Receive<'_>> {
        Some(Receive::new(self, lock::take(&self.private().receiving.lock)?))
    }

    /// Begins to write; `None` if this very thread is at it already (a signal handler).
    #[inline]
    pub fn send(&self) -> Option<Send<'_>> {
        Some(Send::new(self, lock::take(&self.private().sending.lock)?))
    }

    /// Publishes FIN: nothing more will be sent. The caller rings ([`Endpoint::data_notification`]).
    pub fn finish(&self) {
        self.private().set(flag::SHUT_WR);
        self.publish_flags(0);
    }

    /// Whether the other sees a reset when this end's last holder is gone (`SO_LINGER` with a time
    /// of zero).
    pub fn abort_on_close(&self, yes: bool) {
        let private = self.private();
        if yes {
            private.set(flag::ABORT_ON_CLOSE)
        } else {
            private.clear(flag::ABORT_ON_CLOSE)
        };
        self.publish_flags(0);
    }

    /// To be called by a process that closes its last descriptor of this end, before it closes it:
    /// the other asks the kernel soon whether it was the last of all. The caller rings
    /// ([`Endpoint::data_notification`]) only if it must not rely on the hang-up itself.
    pub fn closing(&self) {
        let unread = if self.readable() == 0 { 0 } else { tail::UNREAD };
        self.publish_flags(tail::CLOSING | unread);
    }

    /// Resets the connection, whoever else holds this end: the other has a reset from now on, and
    /// so have all holders here, who know of it. The caller rings ([`Endpoint::data_notification`]).
    pub fn reset(&self) {
        self.private().set(flag::HAS_RESET | flag::HUNG_UP | flag::RESET | flag::RESET_TOLD);
        self.publish_flags(0);
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
        arrivals::note(notes, next, position, &sending.noted_head, || {
            outbound.consumer.head.load(Ordering::Relaxed)
        });
    }

    /// When the other published what comes from `position` on, in cycles, as it says
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

    fn publish_flags(&self, more: u64) {
        let sending = &self.private().sending;
        // A process that closes goes on without the lock if it does not get it soon: the sender of
        // this end may have written the word.
        let closes = more & tail::CLOSING != 0;
        let guard = if closes { lock::take_soon(&sending.lock) } else { lock::take(&sending.lock) };
        let published = &self.outbound().producer.tail;
        // Read back from where the other could have changed it, which would lose it a hint of its
        // own peer's end.
        let mut before = published.load(Ordering::Relaxed);
        let flags = |before: u64| {
            let turn = if more & tail::CLOSING == 0 { before & tail::TURN } else { tail::next_turn(before) };
            self.tail_flags() | more | turn
        };
        // Only what makes the other side ready is an arrival.
        let news = |word: u64, before: u64| (word & !before) & (tail::FIN | tail::CLOSING | tail::RESET) != 0;
        if let Some(_guard) = guard {
            // What is held back is so no longer, and the other may have taken it already.
            let position = self.staged();
            sending.tail.store(position, Ordering::Release);
            let word = tail::word(position, flags(before));
            if news(word, before) {
                self.note_arrival(position);
            }
            published.store(word, Ordering::Release);
            if sending.held.load(Ordering::Relaxed) != 0 {
                Send::complete_begun_move(self);
                self.clear_corked();
            }
            return;
        }
        // Who has the lock may be publishing, and has the say about positions. With these flags the
        // other takes what is held back by itself.
        for _ in 0..PUBLICATIONS {
            let word = tail::word(tail::position(before), flags(before));
            match published.compare_exchange(before, word, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => before = other,
            }
        }
    }

    /// Whether the other left a hint that it may be gone, which was not looked into yet: ask the
    /// kernel (`POLLHUP` of the own descriptor), then call [`Endpoint::hung_up`] or
    /// [`Endpoint::still_there`].
    #[inline]
    pub fn may_be_gone(&self) -> bool {
        self.is_closing() && self.is_new(self.hint())
    }

    /// As [`Endpoint::may_be_gone`], and also, however often the kernel was asked, while nobody has
    /// accepted this connection: the end of a queue in which it waits leaves no hint. For who acts,
    /// not for who waits: asking changes nothing as long as it waits.
    #[inline]
    pub fn is_worth_asking(&self) -> bool {
        let word = self.inbound().producer.tail.load(Ordering::Acquire);
        word & tail::CLOSING != 0
            && (self.private().receiving.vetted.load(Ordering::Relaxed) != word || word == tail::UNACCEPTED)
    }

    /// Whether the other has reset the connection: it counts as gone, whatever the kernel says.
    pub fn is_reset_by_peer(&self) -> bool {
        let word = self.inbound().producer.tail.load(Ordering::Acquire);
        word & (tail::RESET | tail::CLOSING) == tail::RESET | tail::CLOSING
    }

    /// Whether a process has closed the other end since anything was sent, looked into or not.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.inbound().producer.tail.load(Ordering::Acquire) & tail::CLOSING != 0
    }

    /// The word that the other published last: bytes, and what goes with them.
    #[inline]
    pub fn published(&self) -> u64 {
        self.inbound().producer.tail.load(Ordering::Acquire)
    }

    /// What the other says about closing now: to be read before the kernel is asked.
    pub fn hint(&self) -> Hint {
        Hint(self.inbound().producer.tail.load(Ordering::Acquire))
    }

    fn is_new(&self, hint: Hint) -> bool {
        !self.is_vetted(hint.0)
    }

    /// Whether it is known that this tail does not mean that the other is gone.
    pub(super) fn is_vetted(&self, word: u64) -> bool {
        self.private().receiving.vetted.load(Ordering::Relaxed) == word
    }

    /// The hint was one of several holders that closed.
    pub fn still_there(&self, hint: Hint) {
        self.private().receiving.vetted.store(hint.0, Ordering::Relaxed);
    }

    /// The kernel says that nobody holds the other end any more (`POLLHUP`, end of file or `EPIPE`
    /// of this end's descriptor). What that meant; the same however often it is asked.
    pub fn hung_up(&self) -> Hangup {
        let private = self.private();
        let before = private.flags.load(Ordering::Acquire);
        if before & flag::HUNG_UP != 0 {
            return if before & flag::RESET == 0 { Hangup::Finished } else { Hangup::Reset };
        }
        let word = self.inbound().producer.tail.load(Ordering::Acquire);
        // In this order: what another thread publishes meanwhile is not taken for held back.
        let held = private.sending.held.load(Ordering::Acquire);
        let sent = private.sending.tail.load(Ordering::Acquire);
        let head = self.outbound().consumer.head.load(Ordering::Acquire);
        // What was sent after it closed does not count; that is known if the last that it said is
        // that it closes, having read everything. The hint of another holder, who was not the last,
        // says nothing.
        let vetted = private.receiving.vetted.load(Ordering::Relaxed) == word;
        let read_all = word & (tail::CLOSING | tail::UNREAD) == tail::CLOSING && !vetted;
        // Where both have sent FIN nothing is left to be reset: Linux's tcp_close() finds
        // TCP_CLOSE.
        let over = word & tail::FIN != 0 && before & flag::SHUT_WR != 0;
        // What is held back may have been read when it was due. What was not counts as unsent:
        // Linux sends it when the other closes, and hears of a reset which its reader is not told
        // of either.
        let unread = !(sent..=held.max(sent)).contains(&head) || head < held;
        let aborted = (unread && !read_all) || word & tail::ABORT != 0;
        let reset = word & tail::RESET != 0 || aborted && !over;
        private.set(if reset { flag::HUNG_UP | flag::RESET } else { flag::HUNG_UP });
        if reset { Hangup::Reset } else { Hangup::Finished }
    }

    /// The other has published what cannot be: from now on it counts as having reset the
    /// connection, and nothing can be read any more. (A reader that is at it in another thread may
    /// put its own position there again; the next one finds the same nonsense.)
    #[cold]
    pub(super) fn distrust(&self) {
        self.private().distrust();
    }

    /// A page of the common memory was refused to somebody who writes or reads it for this process,
    /// as the kernel: as if the other were not to be believed.
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

    #[inline]
    fn waiters(&self, want: Want) -> &AtomicU64 {
        match want {
            Want::Data => &self.inbound().waiters.data,
            Want::Room => &self.outbound().waiters.room,
        }
    }

    /// What the other answered last of the requests of this end.
    #[inline]
    fn answered(&self, want: Want) -> &AtomicU64 {
        let rung = &self.common().notified[self.index];
        if want == Want::Data { &rung.data } else { &rung.room }
    }

    /// Counts the caller as a waiter until it calls [`Endpoint::disarm`], once it has returned from its
    /// sleep. It must look once more before it sleeps on its descriptor. The number of its request.
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

    /// Asks to be rung in the place of others at this end who sleep without being counted, until
    /// [`Endpoint::asked_no_more`].
    pub fn ask_for_others(&self, want: Want) {
        waiters::ask(self.waiters(want));
        if self.is_draining() {
            self.arm_after_drain(want);
        }
    }

    /// They have been woken, or need not be.
    #[inline]
    pub fn asked_no_more(&self, want: Want) {
        waiters::asked_no_more(self.waiters(want));
    }

    /// As [`Endpoint::arm`] for data, of who sleeps for many: a ringer that knows of it rings once for
    /// all of them. None: somebody else waits here as well, so it has to be [`Endpoint::arm`]. The
    /// caller fences once for all that it arms so, asks each [`Endpoint::is_draining`], and then looks
    /// at all.
    #[inline]
    #[must_use = "who is not counted is not rung"]
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

    /// Who is counted still has come to another sleep, or to one that is for this end alone (0).
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

    /// How many wait at this end, for data and for room.
    #[inline]
    pub fn waiting(&self) -> u32 {
        waiters::count(self.waiters(Want::Data)) + waiters::count(self.waiters(Want::Room))
    }

    /// Whether a request of the caller has been answered: it is rung for no more before it arms
    /// again. The lower half of its number is enough.
    #[inline]
    pub fn is_answered(&self, want: Want, request: u32) -> bool {
        waiters::is_answered(self.answered(want), request)
    }

    /// Whether somebody takes bytes from the doorbell: who has armed waits for the end of it, and
    /// arms again.
    #[inline]
    pub fn is_draining(&self) -> bool {
        waiters::is_draining(&self.private().doorbell.draining) != 0
    }

    /// Waits until nobody drains the doorbell, and makes the request again: all of it within one
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
    /// PID namespace, or there is none. `before` is what was noted last. From one that is there for
    /// [`STUCK`] the word is taken.
    fn note_stuck(&self, before: u64) {
        let word = &self.private().doorbell.draining;
        let thread = waiters::is_draining(word);
        let now = super::cork::now() as u32;
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

    /// Nanoseconds that a caller which has armed may sleep at most, if there is a limit: the other
    /// holds bytes back ([`Endpoint::corked_for`]), or somebody drains the doorbell, who may take the byte
    /// that answers the caller.
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

    /// Bytes that the other end has counted as written since `drained` bytes were taken. More than
    /// these lie in the doorbell only for a moment, or where a writer was killed before it counted
    /// its byte.
    #[inline]
    pub fn notified_since(&self, drained: u32) -> u32 {
        let rung = self.common().notified[self.index].bytes.load(Ordering::Acquire);
        rung.wrapping_sub(drained).cast_signed().max(0).cast_unsigned()
    }

    /// Bytes that should lie in the doorbell: a hint.
    #[inline]
    pub fn undrained(&self) -> u32 {
        let rung = self.common().notified[self.index].bytes.load(Ordering::Acquire);
        let left = rung.wrapping_sub(self.private().doorbell.drained.load(Ordering::Relaxed));
        // Who connected may have been rung by whoever set the connection up, which nobody counts.
        if left.cast_signed() < 0 { 0 } else { left }
    }

    /// Takes bytes from the doorbell: `take(leave)` takes all but one, or all (`leave` is false) if
    /// nobody is counted as a waiter at this end but `own`; it returns whether it did. Says whether
    /// none was to be left; false also if another thread is taking some.
    pub fn drain(&self, own: u32, take: impl FnOnce(bool) -> bool) -> bool {
        let doorbell = &self.private().doorbell;
        let Some(drain) = waiters::Drain::begin(&doorbell.draining, lock::holder()) else {
            lock::free_of_dead(&doorbell.draining);
            return false;
        };
        let rung = self.common().notified[self.index].bytes.load(Ordering::Acquire);
        let leave = self.waiting() > own;
        if take(leave) {
            doorbell.drained.store(rung.wrapping_sub(u32::from(leave)), Ordering::Release);
        }
        drop(drain);
        !leave
    }

    /// After sending, finishing or closing: what is due to who waits for data at the other end: if
    /// anything, a byte written to the own descriptor, and then [`Endpoint::mark_notified`].
    #[inline]
    pub fn data_notification(&self) -> Notification {
        let rung = &self.common().notified[self.index ^ 1];
        Notification::of(Want::Data, waiters::due(&self.outbound().waiters.data, &rung.data))
    }

    /// As [`Endpoint::data_notification`], by who remembers for which sleeps it has rung ([`Notification::sleep`]):
    /// nothing is due if the consumer is in one of them.
    #[inline]
    pub fn data_notification_unless(&self, is_rung: impl FnOnce(u64) -> bool) -> Notification {
        let (waiters, rung) = (&self.outbound().waiters, &self.common().notified[self.index ^ 1]);
        match waiters::due_unless(&waiters.data, &rung.data, &waiters.sleep, is_rung) {
            None => Notification::of(Want::Data, None),
            Some((request, sleep)) => Notification { sleep, ..Notification::of(Want::Data, Some(request)) },
        }
    }

    /// After receiving: as [`Endpoint::data_notification`], for a producer that waits for room. A producer
    /// is rung when a quarter of its ring is free.
    #[inline]
    pub fn room_notification(&self) -> Notification {
        let rung = &self.common().notified[self.index ^ 1];
        let due = Notification::of(Want::Room, waiters::due(&self.inbound().waiters.room, &rung.room));
        if due.is_needed() && !self.is_room_worth_a_ring() { Notification::of(Want::Room, None) } else { due }
    }

    #[cold]
    fn is_room_worth_a_ring(&self) -> bool {
        let mine = self.private().receiving.region.load(Ordering::Relaxed);
        let log2 = moved::log2(mine).min(self.geometry.largest);
        let left = self.inbound().moves.left[usize::from(log2)].load(Ordering::Acquire);
        // Room is counted in the region that the producer is in, so there is none before the
        // consumer has come there.
        moved::at(left) <= moved::at(mine) && self.readable() <= (1 << log2) / 4 * 3
    }

    /// What was due has been done: a byte lies in the other's doorbell.
    #[inline]
    pub fn mark_notified(&self, due: Notification) {
        if let Some(request) = due.request {
            let rung = &self.common().notified[self.index ^ 1];
            waiters::answer(if due.want == Want::Data { &rung.data } else { &rung.room }, request);
            rung.bytes.fetch_add(1, Ordering::Release);
        }
    }

    /// Says that options on the private page are others now. The caller writes a byte to the own
    /// descriptor.
    pub fn announce(&self) {
        self.outbound().producer.news.fetch_add(1, Ordering::Release);
    }

    /// How often the other has announced that, wrapping.
    #[inline]
    pub fn option_changes(&self) -> u32 {
        self.inbound().producer.news.load(Ordering::Acquire)
    }

    /// Bytes sent that the other has not read.
    pub fn unread_by_peer(&self) -> usize {
        let head = self.outbound().consumer.head.load(Ordering::Acquire);
        self.staged().saturating_sub(head).min(2 << self.geometry.largest) as usize
    }

    /// See [`Edge`].
    #[inline]
    pub fn snapshot(&self) -> Edge {
        const OWN: u32 = flag::SHUT_RD | flag::SHUT_WR | flag::RESET | flag::WOKEN.wrapping_neg();
        const _: () = assert!(flag::WOKEN == 1 << 20 && flag::HUNG_UP == 4 && tail::FIN == 1);
        let word = self.inbound_tail();
        let private = self.private();
        let flags = private.flags.load(Ordering::Acquire);
        // A FIN, and the close after it, are one end.
        let ended = (flags & flag::HUNG_UP) | ((word & tail::FIN) as u32) << 2;
        let changes = (flags & OWN) | ended | private.state.load(Ordering::Acquire) << 8;
        let closing = word & tail::CLOSING != 0;
        Edge { arrived: tail::position(word), changes, closing }
    }

    /// What the other has read, as it says.
    #[inline]
    pub fn read_by_peer(&self) -> u64 {
        self.outbound().consumer.head.load(Ordering::Acquire)
    }

    /// Somebody found no room. Whether that is news.
    #[cold]
    pub fn note_full(&self) -> bool {
        self.private().sending.space.fetch_or(1, Ordering::AcqRel) & 1 == 0
    }

    /// Whether somebody found no room, and nobody has found some since.
    #[inline]
    pub fn is_short_of_room(&self) -> bool {
        self.private().sending.space.load(Ordering::Acquire) & 1 != 0
    }

    /// How often there was room again after somebody had found none (wrapping): what wakes those
    /// who wait for room.
    #[inline]
    pub fn spaces(&self) -> u32 {
        let word = &self.private().sending.space;
        let now = word.load(Ordering::Acquire);
        if now & 1 == 0 || !self.is_writable() {
            return now >> 1;
        }
        // The bit is taken back and one more is counted in one step.
        match word.compare_exchange(now, now.wrapping_add(1), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => now.wrapping_add(1) >> 1,
            Err(other) => other >> 1,
        }
    }
}
