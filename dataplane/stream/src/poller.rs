//! What a loop of a program that links Sietch waits for: connections and listeners.
//!
//! 1. The program adds a source and says what it waits for ([`Poller::want`]). [`Poller::poll`]
//!    reports it once, when it is ready; then the program says again what it waits for.
//! 2. A connection through memory is *hot* (checked in each poll, armed for sleeps alone) or *cold*
//!    (armed, checked since, reported by the kernel). What the program waits for anew is hot. What
//!    was not ready for [`COOL_AFTER`] sleeps cools; many polls in vain count as one. Beyond
//!    [`MAX_HOT`] whatever is not ready cools at once.
//! 3. The kernel watches every placeholder, edge-triggered: bytes that are there already wake
//!    nothing. It is asked without waiting every [`KERNEL_EVERY`] nanoseconds, and after each
//!    sleep. What it reports is hot again.
//! 4. Several connections that are ready at once are reported in the order in which they became so
//!    ([`sietch_ring::stream::arrivals`]). A peer that lies about its time is served no earlier
//!    than if it had sent right after its last report.
//! 5. **Sleeping.** The loop calls [`Poller::prepare_sleep`]: it arms all that is hot, fences (in
//!    the arming), and checks once more. If nothing is ready, the loop sleeps on the poller's
//!    descriptor, which becomes readable when the kernel has something to report. One of loop and
//!    peer sees the other (`sietch_ring::stream::waiters`). A cold connection stays armed, so that
//!    a sleep costs nothing for it. The first poll after the sleep takes the requests of hot ones
//!    back: their peers need not notify a loop that is awake. A loop that watches the descriptor
//!    edge-triggered may take its report while it is awake: [`Poller::note_report`].
//! 6. A connection of which the peer holds bytes back, or whose doorbell another thread drains,
//!    bounds the sleep and stays hot.
//! 7. A kernel's socket is watched edge-triggered as well; what the kernel said counts until a call
//!    found otherwise. A listener whose placeholder hangs up is registered again here, in a later
//!    poll. If the kernel does not watch its new placeholder (`fs.epoll.max_user_watches`), each
//!    poll tries that again. Everything else is served meanwhile.
//! 8. **Fork.** A child shares the kernel's epoll instance and the words of the requests with its
//!    parent. So a poller that is dropped or loses a source there leaves both as they are. A child
//!    makes a poller of its own, and must not poll its parent's.
//!
//! A poll never waits. Another thread waits for the service when a listener is registered again.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use sietch_ring::OwnerProcess;
use sietch_ring::stream::arrivals::cycles;
use sietch_ring::stream::{Endpoint, Want};
use sietch_structures::{Key, Slab};

use crate::connection::{Connection, Transport};
use crate::foreign_bytes::{self, EXAMINED_DOORBELLS};
use crate::limits::{COOL_AFTER, MAX_HOT, POLLS_PER_SLEEP};
use crate::listener::Listener;
use crate::placeholder::Direct;
use crate::readiness::{ERROR, HANGUP, OUTPUT, READ_END, readiness, shorter_sleep, sleep_limit};
use crate::{doorbell, peer};

/// Nanoseconds between two questions to the kernel: each costs a system call, which a loop that
/// serves connections through memory does without.
const KERNEL_EVERY: u64 = 10_000;

/// Events that are taken from the kernel at once.
const BATCH: usize = 64;

/// Nanoseconds of a sleep with a listener that the kernel does not watch: nothing ends the sleep
/// once it would.
const UNWATCHED_SLICE: u64 = 40_000_000;

/// What a program waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Bytes, or the end of the stream; a connection at a listener.
    pub data: bool,
    /// Room to write, or the end of the set-up.
    pub room: bool,
}

impl Interest {
    /// Bytes, the end, or a connection.
    pub const DATA: Self = Self { data: true, room: false };
    /// Room, or the end of the set-up.
    pub const ROOM: Self = Self { data: false, room: true };

    /// Whether it is nothing.
    pub const fn is_none(self) -> bool {
        !self.data && !self.room
    }

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { data: self.data || other.data, room: self.room || other.room }
    }

    const fn without(self, other: Self) -> Self {
        Self { data: self.data && !other.data, room: self.room && !other.room }
    }
}

/// Names a source of a poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(Key);

impl Token {
    /// A number below the largest number of sources that the poller had at once, for tables beside
    /// it. It is used again once its source is removed.
    pub const fn index(self) -> usize {
        self.0.index() as usize
    }
}

/// What has become ready of that for which the program waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Of which source.
    pub token: Token,
    /// What.
    pub ready: Interest,
}

/// How long a loop may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepLimit {
    /// Not at all: something is ready.
    None,
    /// So many nanoseconds at most.
    Nanoseconds(u64),
    /// Until something happens.
    Unlimited,
}

impl SleepLimit {
    /// The shorter of two.
    #[must_use]
    pub fn shorter(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, _) | (_, Self::None) => Self::None,
            (Self::Unlimited, limit) | (limit, Self::Unlimited) => limit,
            (Self::Nanoseconds(one), Self::Nanoseconds(other)) => Self::Nanoseconds(one.min(other)),
        }
    }
}

#[derive(Debug)]
enum Source {
    Connection(Rc<Connection>),
    Listener {
        listener: Rc<Listener>,
        /// The descriptor that the kernel watches.
        watched: Option<Rc<OwnedFd>>,
    },
}

#[derive(Debug)]
struct Slot {
    source: Source,
    interest: Interest,
    /// More bytes than these are data.
    seen: usize,
    /// The requests that the peer was made, by the lower half of their numbers.
    data_request: Option<u32>,
    room_request: Option<u32>,
    /// On the list.
    hot: bool,
    /// The bytes on its placeholder are to be examined before the next sleep.
    examine: bool,
    /// Polls in vain since it was ready or wanted; a sleep counts as [`POLLS_PER_SLEEP`].
    idle: u32,
    /// Cycles, when it was last reported or added.
    reported: u64,
}

impl Slot {
    fn new(source: Source) -> Self {
        Self {
            source,
            interest: Interest::default(),
            seen: 0,
            data_request: None,
            room_request: None,
            hot: false,
            examine: false,
            idle: 0,
            reported: cycles(),
        }
    }

    /// The memory of a connection, and its placeholder.
    fn memory(&self) -> Option<(Direct<'_>, &Endpoint)> {
        match &self.source {
            Source::Connection(connection) => match &connection.transport {
                Transport::Memory { placeholder, end } => Some((Direct(placeholder.as_fd()), end)),
                Transport::Kernel(_) => None,
            },
            Source::Listener { .. } => None,
        }
    }

    /// What is ready of that for which the program waits.
    #[inline]
    fn ready(&self) -> Interest {
        let (data, room) = match &self.source {
            Source::Connection(connection) => match &connection.transport {
                Transport::Memory { placeholder, end } => {
                    if end.may_be_hung_up() {
                        peer::check_peer_closed(Direct(placeholder.as_fd()), end);
                    }
                    let bits = readiness(end, self.interest.room);
                    let over = bits & (HANGUP | ERROR) != 0;
                    let data =
                        if self.seen == 0 { bits & READ_END != 0 } else { peer::data_ready(end, self.seen) };
                    (data || over, bits & OUTPUT != 0 || over)
                }
                Transport::Kernel(kernel) => {
                    (kernel.readable.get() || connection.available() > self.seen, kernel.writable.get())
                }
            },
            Source::Listener { listener, .. } => (listener.ready.get(), false),
        };
        Interest { data: data && self.interest.data, room: room && self.interest.room }
    }

    /// Asks the peer to notify of that for which the program waits. The caller checks once more.
    fn arm(&mut self) {
        let (interest, data, room) = (self.interest, self.data_request, self.room_request);
        let Some((placeholder, end)) = self.memory() else { return };
        let data = match data {
            Some(request) if end.is_answered(Want::Data, request) => Some(end.arm_again(Want::Data) as u32),
            None if interest.data => Some(end.arm(Want::Data) as u32),
            request => request,
        };
        let room = match room {
            Some(request) if end.is_answered(Want::Room, request) => Some(end.arm_again(Want::Room) as u32),
            None if interest.room && (end.is_short_of_room() || !end.is_writable()) => {
                Some(end.arm(Want::Room) as u32)
            }
            request => request,
        };
        if doorbell::is_crowded(placeholder, end) {
            doorbell::thin(placeholder, end);
        }
        if self.examine {
            foreign_bytes::examine(placeholder, end);
        }
        (self.data_request, self.room_request, self.examine) = (data, room, false);
    }

    /// Takes the requests back.
    fn disarm(&mut self) {
        let (data, room) = (self.data_request.take(), self.room_request.take());
        if let Some((_, end)) = self.memory() {
            if data.is_some() {
                end.disarm(Want::Data);
            }
            if room.is_some() {
                end.disarm(Want::Room);
            }
        }
    }

    /// Since when it has been ready, in cycles.
    fn ready_since(&self, ready: Interest, now: u64, processor: u32) -> u64 {
        let Some((_, end)) = self.memory() else { return now };
        end.set_cpu(processor);
        let arrived = if ready.data { end.arrived_after(end.read(), now) } else { None };
        arrived.map_or(now, |arrived| arrived.clamp(self.reported.min(now), now))
    }

    /// The kernel reports something of it.
    fn reported_by_kernel(&mut self, events: EventFlags) {
        let ended = events.intersects(EventFlags::HUP | EventFlags::ERR);
        let arrived = events.intersects(EventFlags::IN | EventFlags::RDHUP);
        match &self.source {
            Source::Listener { listener, .. } => {
                if ended {
                    listener.hung_up();
                }
                listener.ready.set(true);
            }
            Source::Connection(connection) => match &connection.transport {
                Transport::Kernel(kernel) => {
                    kernel.readable.set(kernel.readable.get() || arrived || ended);
                    kernel.writable.set(kernel.writable.get() || ended || events.contains(EventFlags::OUT));
                }
                Transport::Memory { placeholder, end } => {
                    let placeholder = Direct(placeholder.as_fd());
                    if events.intersects(EventFlags::HUP | EventFlags::RDHUP) {
                        peer::check_peer_closed(placeholder, end);
                    }
                    if doorbell::is_crowded(placeholder, end) {
                        doorbell::thin(placeholder, end);
                    }
                    // The bytes that woke the loop may be no doorbells, or are beside one. If there
                    // is something to serve as well, that comes first.
                    if events.contains(EventFlags::IN) {
                        if self.ready().is_none() {
                            foreign_bytes::examine(placeholder, end);
                        } else if end.notified_since(0) < EXAMINED_DOORBELLS {
                            self.examine = true;
                        }
                    }
                    self.disarm();
                }
            },
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    owner: OwnerProcess,
    slots: Slab<Slot>,
    hot: Vec<Key>,
    listeners: Vec<Key>,
    /// When the kernel was asked last, in the caller's nanoseconds; none: it is asked at once.
    asked: Option<u64>,
    /// The kernel may have more reports than were taken.
    more: bool,
    /// A sleep was prepared since the last poll.
    slept: bool,
    /// What one poll has found, and since when it has been ready.
    found: Vec<(u64, Event)>,
}

impl AsFd for Poller {
    /// Readable when the kernel has something to report: what a loop sleeps on after
    /// [`Poller::prepare_sleep`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Poller {
    /// One without sources.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            owner: OwnerProcess::current(),
            slots: Slab::new(),
            hot: Vec::new(),
            listeners: Vec::new(),
            asked: None,
            more: false,
            slept: false,
            found: Vec::new(),
        })
    }

    fn watch(&self, descriptor: impl AsFd, key: Key, room: bool) -> Result<(), Errno> {
        let mut events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        if room {
            events |= EventFlags::OUT;
        }
        epoll::add(&self.epoll, descriptor, EventData::new_u64(key.to_word()), events)
    }

    /// Adds a connection, for which nothing is waited yet.
    ///
    /// # Errors
    /// The kernel watches no more descriptors (`fs.epoll.max_user_watches`).
    pub fn add_connection(&mut self, connection: &Rc<Connection>) -> io::Result<Token> {
        let key = self.slots.insert(Slot::new(Source::Connection(Rc::clone(connection))));
        let watched = match &connection.transport {
            Transport::Memory { placeholder, .. } => self.watch(placeholder, key, false),
            Transport::Kernel(kernel) => self.watch(&kernel.socket, key, true),
        };
        if let Err(errno) = watched {
            self.slots.remove(key);
            return Err(errno.into());
        }
        Ok(Token(key))
    }

    /// Adds a listener.
    ///
    /// # Errors
    /// As [`Poller::add_connection`].
    pub fn add_listener(&mut self, listener: &Rc<Listener>) -> io::Result<Token> {
        let source = Source::Listener { listener: Rc::clone(listener), watched: None };
        let key = self.slots.insert(Slot::new(source));
        if let Err(error) = self.watch_listener(key) {
            self.slots.remove(key);
            return Err(error);
        }
        self.listeners.push(key);
        Ok(Token(key))
    }

    /// Forgets a source.
    pub fn remove(&mut self, token: Token) {
        let Some(mut slot) = self.slots.remove(token.0) else { return };
        self.listeners.retain(|key| *key != token.0);
        if !self.owner.is_current() {
            return;
        }
        slot.disarm();
        // It cannot fail for a descriptor that is in the set.
        let _ = match &slot.source {
            Source::Connection(connection) => match &connection.transport {
                Transport::Memory { placeholder, .. } => epoll::delete(&self.epoll, placeholder),
                Transport::Kernel(kernel) => epoll::delete(&self.epoll, &kernel.socket),
            },
            Source::Listener { watched, .. } => {
                watched.as_ref().map_or(Ok(()), |watched| epoll::delete(&self.epoll, &**watched))
            }
        };
    }

    /// Waits for `interest` as well, once. More than `seen` bytes are data.
    pub fn want(&mut self, token: Token, interest: Interest, seen: usize) {
        let Some(slot) = self.slots.get_mut(token.0) else { return };
        if interest.data {
            slot.seen = seen;
        }
        slot.interest = slot.interest.and(interest);
        slot.idle = 0;
        heat(&mut self.hot, token.0, slot);
    }

    /// Appends to `events` what is ready, the earliest first. `now`: nanoseconds of a clock that
    /// only grows.
    ///
    /// # Errors
    /// The poller's descriptor is broken.
    pub fn poll(&mut self, now: u64, events: &mut Vec<Event>) -> io::Result<()> {
        if std::mem::take(&mut self.slept) {
            for key in &self.hot {
                if let Some(slot) = self.slots.get_mut(*key) {
                    slot.disarm();
                }
            }
        }
        for position in 0..self.listeners.len() {
            let key = self.listeners[position];
            if let Some(Slot { source: Source::Listener { listener, .. }, .. }) = self.slots.get(key) {
                listener.retry(now);
            }
            // If that fails, the next poll tries it again.
            let _ = self.watch_listener(key);
        }
        if self.asked.is_none_or(|asked| now.saturating_sub(asked) >= KERNEL_EVERY) {
            self.asked = Some(now);
            self.ask_kernel()?;
        }
        self.check_hot();
        // Nearly always there is one.
        self.found.sort_by_key(|(since, _)| *since);
        events.extend(self.found.drain(..).map(|(_, event)| event));
        Ok(())
    }

    /// Has the kernel watch the descriptor on which connections of a listener arrive now.
    fn watch_listener(&mut self, key: Key) -> io::Result<()> {
        let Some(Slot { source: Source::Listener { listener, watched }, .. }) = self.slots.get_mut(key)
        else {
            return Ok(());
        };
        let now = listener.watched();
        if same(watched.as_ref(), now.as_ref()) {
            return Ok(());
        }
        if let Some(before) = watched.take() {
            let _ = epoll::delete(&self.epoll, &*before);
        }
        let outcome = now.as_ref().map_or(Ok(()), |now| self.watch(&**now, key, false));
        // It may have changed because something arrived.
        if let Some(slot) = self.slots.get_mut(key) {
            if let Source::Listener { watched, .. } = &mut slot.source {
                *watched = now.filter(|_| outcome.is_ok());
            }
            heat(&mut self.hot, key, slot);
        }
        Ok(outcome?)
    }

    /// Whether so much is hot that a check of each would cost more than the kernel's reports.
    fn is_crowded(&self) -> bool {
        self.hot.len() > MAX_HOT as usize
    }

    fn ask_kernel(&mut self) -> io::Result<()> {
        let mut raw = [const { MaybeUninit::<epoll::Event>::uninit() }; BATCH];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (reported, _) = match epoll::wait(&self.epoll, &mut raw[..], Some(&now)) {
            Ok(reported) => reported,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        self.more = reported.len() == BATCH;
        if self.more {
            self.asked = None;
        }
        for event in reported.iter() {
            let (data, flags) = (event.data, event.flags);
            let Some(key) = Key::from_word(data.u64()) else { continue };
            let Some(slot) = self.slots.get_mut(key) else { continue };
            slot.reported_by_kernel(flags);
            slot.idle = 0;
            heat(&mut self.hot, key, slot);
            // The rest of the reports must not be lost: they come once. The next poll tries it
            // again.
            let _ = self.watch_listener(key);
        }
        Ok(())
    }

    /// Checks all that is hot, and cools what was idle for long.
    fn check_hot(&mut self) {
        let crowded = self.is_crowded();
        let (slots, found) = (&mut self.slots, &mut self.found);
        let mut here = None;
        self.hot.retain(|key| {
            let Some(slot) = slots.get_mut(*key) else { return false };
            let mut ready = slot.ready();
            if ready.is_none() {
                slot.idle = slot.idle.saturating_add(1);
                if !slot.interest.is_none() && slot.idle < COOL_AFTER * POLLS_PER_SLEEP && !crowded {
                    return true;
                }
                if !slot.interest.is_none() {
                    slot.arm();
                    ready = slot.ready();
                }
                if ready.is_none() {
                    slot.hot = slot.limit().is_some();
                    return slot.hot;
                }
            }
            let (now, processor) =
                *here.get_or_insert_with(|| (cycles(), rustix::thread::sched_getcpu() as u32));
            found.push((slot.ready_since(ready, now, processor), Event { token: Token(*key), ready }));
            slot.disarm();
            slot.reported = now;
            slot.interest = slot.interest.without(ready);
            slot.hot = !slot.interest.is_none();
            slot.idle = 0;
            slot.hot
        });
    }

    /// The poller's descriptor was reported readable: the next poll asks the kernel. To be called
    /// by a loop that watches the descriptor edge-triggered. Such a report comes once, so a sleep
    /// before the kernel is asked would have no end.
    pub fn note_report(&mut self) {
        self.asked = None;
    }

    /// Has the kernel report whatever becomes ready. To be called before a sleep on the poller's
    /// descriptor, and followed by [`Poller::poll`] after it.
    pub fn prepare_sleep(&mut self) -> SleepLimit {
        self.asked = None;
        for key in &self.hot {
            if let Some(slot) = self.slots.get_mut(*key) {
                slot.arm();
            }
        }
        self.slept = true;
        let crowded = self.is_crowded();
        let slots = &mut self.slots;
        // Reports that are there already need not wake an edge-triggered sleep.
        let (mut is_ready, mut limit) = (self.more, None);
        self.hot.retain(|key| {
            let Some(slot) = slots.get_mut(*key) else { return false };
            // Before the check: another reader may take the bytes when they are due.
            let longest = slot.limit();
            limit = shorter_sleep(limit, longest);
            let ready = !slot.ready().is_none();
            is_ready |= ready;
            slot.idle = slot.idle.saturating_add(POLLS_PER_SLEEP);
            let waits = slot.memory().is_some() && !slot.interest.is_none();
            let cools = crowded || slot.idle >= COOL_AFTER * POLLS_PER_SLEEP;
            slot.hot = ready || longest.is_some() || waits && !cools;
            slot.hot
        });
        for key in &self.listeners {
            if let Some(Slot { source: Source::Listener { listener, watched }, .. }) = self.slots.get(*key) {
                let is_watched = same(watched.as_ref(), listener.watched().as_ref());
                let unwatched = (!is_watched).then_some(UNWATCHED_SLICE);
                limit = shorter_sleep(shorter_sleep(limit, listener.retry_slice()), unwatched);
            }
        }
        match limit {
            _ if is_ready => SleepLimit::None,
            Some(limit) => SleepLimit::Nanoseconds(limit),
            None => SleepLimit::Unlimited,
        }
    }
}

impl Slot {
    /// Nanoseconds of a sleep with it, if there is a limit.
    fn limit(&self) -> Option<u64> {
        let (_, end) = self.memory().filter(|_| self.interest.data)?;
        sleep_limit(end)
    }
}

/// Puts a source on the list.
fn heat(hot: &mut Vec<Key>, key: Key, slot: &mut Slot) {
    if !slot.hot {
        slot.hot = true;
        hot.push(key);
    }
}

fn same(one: Option<&Rc<OwnedFd>>, other: Option<&Rc<OwnedFd>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Rc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}
