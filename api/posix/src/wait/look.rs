//! What a registered socket has to report, and asking to be rung for it.
//!
//! 1. [`readiness`] says what `tcp_poll` of Linux would say of a socket in the same state:
//!    * connecting: nothing; failed: everything, with ERR until the error was taken;
//!    * the peer's FIN or the own `shutdown(SHUT_RD)`: IN and RDHUP, data left or not; with the own
//!      FIN as well: HUP;
//!    * a reset: IN, OUT, RDHUP, HUP, and ERR until it was told;
//!    * OUT if there is room as `poll` means it, and always after the own FIN.
//! 2. **Edges.** The kernel puts an item on its ready list when the socket wakes those who poll it
//!    with one of the item's events, and a wait that finds it there reports it if it is ready and
//!    takes it off. What wakes is in shared memory, as numbers that change exactly then ([`Seen`]):
//!    * bytes that arrive: who asked for one of [`ARRIVAL`] (not RDHUP by itself);
//!    * room, once after somebody had found none ([`End::note_full`], Linux's `SOCK_NOSPACE`): who
//!      asked for OUT;
//!    * the set-up's end, the peer's FIN, a reset, the own `shutdown`: everybody. The close after a
//!      FIN, options, and an error that was taken: nobody.
//!
//!    So an edge-triggered registration is due if one of its numbers differs from what it was when
//!    it was last found ready *or not ready* ([`Body::peek`]), or if it was ready when it was
//!    registered or modified (`NEW`). A one-shot one is not due again until it is modified.
//! 3. [`Body::arm`] counts the registration as a waiter, so that the other side rings the
//!    placeholder, which the kernel's epoll watches. It is counted until it is disarmed, rung or
//!    not, so that no other waiter of the same end takes the last byte before the kernel has
//!    reported it. A request that was answered, or for which the kernel has reported the
//!    placeholder, is made again before the next sleep.
//! 4. A placeholder that hung up is what says that a peer is gone; the kernel's epoll reports it
//!    whatever is asked. Where shared memory hints at it ([`End::is_worth_asking`]), the kernel is
//!    asked at once.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

pub use sietch_ring::stream::arrivals::cycles;
use sietch_ring::stream::{Edge, End, Want, flag, state};

use super::interest::{Body, Slot, What, bit};
use super::{nested, spin};
use crate::sleep::ask_whether_gone;
use crate::table::{self, Held};
use crate::{bypass, doorbell};

/// Events of data: what an arrival wakes.
pub const INPUT: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32;
/// Events that an arrival wakes (`sock_def_readable`).
pub const ARRIVAL: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLPRI | libc::EPOLLRDBAND) as u32;
/// Events of room.
pub const OUTPUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// Events that are reported unasked.
pub const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// The edge-triggered bit.
pub const EDGE: u32 = libc::EPOLLET as u32;
/// The one-shot bit.
pub const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// Readable, as epoll and poll say it.
pub const READ: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const READ_END: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP) as u32;
const HANGUP: u32 = libc::EPOLLHUP as u32;
const ERROR: u32 = libc::EPOLLERR as u32;

/// Whether an end's placeholder carries no bytes to it any more: it has shut down reading, there as
/// well.
pub fn is_deaf(end: &End) -> bool {
    end.private().has(flag::SHUT_RD)
}

/// Doorbells of a connection with each of which the placeholder is looked at. A program that writes
/// both by the library and past it does so from the beginning; later a look is only worth its
/// system call if nothing else was found.
const EARLY: u32 = 32;

/// Nanoseconds of a sleep with a socket that has shut down reading: its placeholder brings it no
/// bytes.
const DEAF_SLICE: u64 = 2_000_000;

/// The longest sleep with this socket, if it has a limit: its placeholder receives no bytes, or as
/// [`End::longest_sleep`] says.
#[inline]
pub fn slice(end: &End) -> Option<u64> {
    if is_deaf(end) { Some(DEAF_SLICE) } else { end.longest_sleep() }
}

/// The shorter of two sleeps; none is for ever.
pub fn sooner(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.map_or(other, |one| Some(other.map_or(one, |other| one.min(other))))
}

/// What a registration was last found with: step 2 of the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Seen {
    /// [`sietch_ring::stream::Edge::arrived`]; of a nested epoll, its edges.
    pub arrived: u64,
    /// Of edge-triggered ones, how often there was room again; of level-triggered ones, what the
    /// peer has read. 0 where nobody asked for room: it is another cache line.
    room: u32,
    changes: u32,
}

impl Seen {
    /// Of what is registered now: what is unread came after it.
    pub fn at_registration(held: &Held) -> Self {
        Self { arrived: held.end().map_or(0, End::read), ..Self::default() }
    }

    /// Of an end now, for these events.
    #[inline]
    pub fn of(end: &End, events: u32) -> Self {
        Self::from(end, end.snapshot(), events)
    }

    #[inline]
    fn from(end: &End, edge: Edge, events: u32) -> Self {
        let room = match events & (OUTPUT | EDGE) {
            0 | EDGE => 0,
            events if events & EDGE != 0 => end.spaces(),
            _ => end.read_by_peer() as u32,
        };
        Self { arrived: edge.arrived, room, changes: edge.changes }
    }

    /// Whether something happened since `before` that wakes who asked for `events`.
    #[inline]
    pub const fn is_edge(self, before: Self, events: u32) -> bool {
        self.changes != before.changes
            || self.arrived != before.arrived && events & ARRIVAL != 0
            || self.room != before.room && events & OUTPUT != 0
    }
}

/// What `poll(2)` would say of a TCP socket in this state, everything asked for, room maybe: see
/// the module.
#[inline]
pub fn readiness(end: &End, room: bool) -> u32 {
    let private = end.private();
    let flags = private.flags.load(Acquire);
    let error = if private.error.load(Relaxed) == 0 { 0 } else { ERROR };
    let state = private.state.load(Acquire);
    if flags & flag::RESET != 0 || state != state::ESTABLISHED {
        return special(flags, state, error);
    }
    let gone = flags & flag::HUNG_UP != 0;
    let mut ready = error;
    if gone || flags & flag::SHUT_RD != 0 || end.finished_by_peer() {
        ready |= READ_END;
        if flags & flag::SHUT_WR != 0 {
            ready |= HANGUP;
        }
    } else if end.readable() != 0 {
        ready |= READ;
    }
    if room && (gone || flags & flag::SHUT_WR != 0 || is_writable(end)) {
        ready |= OUTPUT;
    }
    ready
}

/// Whether there is room as `poll` means it. Who finds none is told when there is some again.
#[inline]
fn is_writable(end: &End) -> bool {
    end.is_writable() || {
        end.note_full();
        // It may have come in between.
        end.is_writable()
    }
}

#[cold]
fn special(flags: u32, state: u32, error: u32) -> u32 {
    if flags & flag::RESET != 0 {
        let told = if flags & flag::RESET_TOLD == 0 { ERROR } else { error };
        return READ_END | OUTPUT | HANGUP | told;
    }
    match state {
        state::CONNECTING if flags & flag::HUNG_UP == 0 => 0,
        // Who was to set the connection up is gone: it never will be.
        state::CONNECTING => READ_END | OUTPUT | HANGUP | ERROR,
        _ => READ_END | OUTPUT | HANGUP | error,
    }
}

/// Asks the kernel whether the other end of a placeholder is gone, if shared memory hints at it.
#[inline]
pub fn ask_if_gone(fd: c_int, end: &End) {
    if end.is_worth_asking() {
        ask_whether_gone(fd, end);
    }
}

/// Whether nobody holds the other end any more, asking the kernel.
#[cold]
pub fn has_hung_up(fd: c_int, held: &Held, end: &End) -> bool {
    end.private().has(flag::HUNG_UP) || table::refers_to(fd, held) && ask_whether_gone(fd, end)
}

/// As [`ask_if_gone`], by any descriptor that is open still: the one that was registered may be
/// another socket now.
#[cold]
fn ask_through(fd: c_int, held: &Held, end: &End) {
    let mut open = table::refers_to(fd, held).then_some(fd);
    if open.is_none() {
        table::each_of(held, |other| open = Some(other));
    }
    if let Some(fd) = open {
        ask_if_gone(fd, end);
    }
}

/// A registration that was found ready.
#[derive(Debug)]
pub(super) struct Found {
    pub number: u32,
    /// To be reported.
    pub events: u32,
    /// The program's data.
    pub data: u64,
    /// See [`Body::report`].
    pub seen: Seen,
    /// Since when it has been so, see [`Body::find_ready`].
    pub since: u64,
    /// Where its peer was seen, if that is known.
    pub peer: Option<u32>,
}

/// When and where a thread looks at what is ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here {
    /// Cycles.
    pub now: u64,
    pub processor: u32,
}

impl Here {
    #[inline]
    pub fn look() -> Self {
        Self { now: cycles(), processor: spin::processor() }
    }
}

/// What a registered stream would report now; 0 for nothing. And what it would then have been
/// reported with.
#[inline(always)]
fn peek_stream(slot: &mut Slot, held: &Held, end: &End) -> (u32, Seen) {
    let none = (0, slot.seen);
    let wanted = slot.events | ALWAYS;
    let edge = slot.events & EDGE != 0 && slot.state & bit::NEW == 0;
    // Before the look: what comes between the two is reported once more.
    let mut edges = end.snapshot();
    if edges.closing && end.may_be_gone() {
        ask_through(slot.fd, held, end);
        edges = end.snapshot();
    }
    let seen = Seen::from(end, edges, slot.events);
    // Nothing the program does by itself makes ready what was not: it reads and writes less room
    // away, or it changes these numbers.
    if seen == slot.seen && (edge || slot.state & bit::IDLE != 0) {
        return none;
    }
    if edge && !seen.is_edge(slot.seen, wanted) {
        return none;
    }
    let ready = readiness(end, slot.events & OUTPUT != 0) & wanted;
    if ready == 0 {
        // Level-triggered: nothing is reported before something changes. Edge-triggered: what woke
        // the kernel's is gone, and so is its item.
        (slot.seen, slot.state) = (seen, (slot.state | bit::IDLE) & !(bit::NEW | bit::QUEUED));
    } else {
        slot.state &= !bit::IDLE;
    }
    (ready, seen)
}

impl Body {
    /// What a registration would report now; 0 for nothing. And what it would then have been
    /// reported with.
    pub fn peek(&mut self, number: u32) -> (u32, Seen) {
        let (slot, held) = self.slot_and_held(number);
        let none = (0, slot.seen);
        let Some(held) = held.filter(|_| slot.state & bit::SPENT == 0) else { return none };
        if slot.what() == What::Nested {
            return self.peek_nested(number);
        }
        let Some(end) = held.end() else { return none };
        peek_stream(slot, held, end)
    }

    /// As [`Body::peek`], with what its report needs, if it is ready. `here` is asked for only
    /// where something may be.
    ///
    /// Since when it has been ready is what the kernel's ready list is ordered by. A
    /// level-triggered registration that was reported stands behind all that were ready then;
    /// another where its first arrival put it, as far as the peer is to be believed; one that
    /// nothing has arrived for, where it was registered, modified or reported. Of what has changed
    /// without an arrival only this look knows: that is kept, or it would stand behind all others
    /// in each look to come.
    ///
    /// The peer is told where this thread runs, unless another may be told of what is found.
    #[inline]
    pub(super) fn find_ready(&mut self, number: u32, here: impl FnOnce() -> Here) -> Option<Found> {
        let (last, shared) = (self.ordered_at(number), self.shared.is_yes());
        let (slot, held) = self.slot_and_held(number);
        let held = held.filter(|_| slot.state & bit::SPENT == 0)?;
        if slot.what() == What::Nested {
            return self.find_nested(number, here());
        }
        let end = held.end()?;
        let before = slot.seen;
        let (events, seen) = peek_stream(slot, held, end);
        if events == 0 {
            return None;
        }
        let Here { now, processor } = here();
        if !shared {
            end.set_cpu(processor);
        }
        let (last, peer) = (last.min(now), end.peer_cpu());
        let since = if slot.state & bit::QUEUED != 0
            || (seen.arrived, seen.changes) == (before.arrived, before.changes)
        {
            last
        } else {
            end.arrived_after(before.arrived, now).map_or(now, |arrived| arrived.clamp(last, now))
        };
        let data = slot.data;
        if since == now {
            slot.state |= bit::QUEUED;
            self.order(number, now);
        }
        Some(Found { number, events, data, seen, since, peer })
    }

    #[cold]
    fn find_nested(&mut self, number: u32, Here { now, .. }: Here) -> Option<Found> {
        let (events, seen) = self.peek_nested(number);
        if events == 0 {
            return None;
        }
        if self.slot(number).state & bit::QUEUED == 0 {
            self.slot(number).state |= bit::QUEUED;
            self.order(number, now);
        }
        let (since, data) = (self.ordered_at(number).min(now), self.slot(number).data);
        Some(Found { number, events, data, seen, since, peer: None })
    }

    fn peek_nested(&mut self, number: u32) -> (u32, Seen) {
        let (slot, held) = self.slot_and_held(number);
        let none = (0, slot.seen);
        let (told, fd) = (slot.state & bit::KERNEL != 0, slot.fd);
        let Some(held) = held.cloned() else { return none };
        let found = nested::look(fd, &held, told, false);
        let slot = self.slot(number);
        let seen = Seen { arrived: found.edges, ..Seen::default() };
        if !found.is_ready() {
            (slot.seen, slot.state) = (seen, slot.state & !(bit::KERNEL | bit::NEW | bit::QUEUED));
            return none;
        }
        let due = slot.events & EDGE == 0 || slot.state & bit::NEW != 0;
        if due || seen != slot.seen || found.kernel { (READ & slot.events, seen) } else { none }
    }

    /// Counts what would wake who watches this epoll from outside. Whether the registration is
    /// ready.
    pub fn notice(&mut self, number: u32) -> bool {
        if self.is_foreign(number) {
            return false;
        }
        let slot = self.slot(number);
        let (what, events) = (slot.what(), slot.events | ALWAYS);
        let before = *self.noticed(number);
        let (ready, seen) = self.peek(number);
        let woken = match what {
            What::Stream => {
                let (slot, held) = self.slot_and_held(number);
                let end = held.and_then(|held| held.end());
                // As an edge-triggered one: what the peer has read wakes nobody who did not find
                // the ring full.
                let now = end.map_or(before, |end| Seen::of(end, events | EDGE));
                let woken = slot.state & bit::SPENT == 0 && now.is_edge(before, events);
                *self.noticed(number) = now;
                woken
            }
            What::Nested => {
                *self.noticed(number) = seen;
                seen != before
            }
            What::Native | What::Dormant | What::Nothing => false,
        };
        if woken {
            self.edges = self.edges.wrapping_add(1);
        }
        ready != 0
    }

    /// A registration was made or changed: that wakes who watches from outside if it is ready.
    pub fn notice_change(&mut self, number: u32) {
        if self.outside.is_yes() {
            let before = self.edges;
            self.edges = if self.notice(number) { before.wrapping_add(1) } else { before };
        }
    }

    /// Notes that a registration was reported, at `at` cycles.
    #[inline]
    pub fn report(&mut self, number: u32, seen: Seen, at: u64) {
        self.order(number, at);
        let sleeps = self.sleeps;
        let slot = self.slot(number);
        slot.seen = seen;
        slot.ready_at = sleeps;
        let events = slot.events;
        slot.state = if events & EDGE != 0 {
            // The kernel will say so again; for a level-triggered one it will not, and has to be
            // asked.
            slot.state & !(bit::NEW | bit::KERNEL | bit::QUEUED)
        } else {
            slot.state & !bit::NEW | bit::QUEUED
        };
        if events & ONCE != 0 {
            self.spend(number);
        }
    }

    /// A one-shot registration was reported.
    #[cold]
    fn spend(&mut self, number: u32) {
        let slot = self.slot(number);
        slot.state |= bit::SPENT;
        if slot.what() == What::Nested {
            self.register_again(number);
        }
        self.disarm(number);
    }

    /// Asks to be rung for whatever a registration wants and has not. The caller looks once more
    /// before it sleeps.
    #[inline]
    pub fn arm(&mut self, number: u32) {
        let sleep = self.sleep;
        let (slot, held) = self.slot_and_held(number);
        let Some(held) = held.filter(|_| slot.state & bit::SPENT == 0) else { return };
        if slot.what() == What::Nested {
            nested::look(slot.fd, &held.clone(), false, true);
            return;
        }
        let Some(end) = held.end() else { return };
        let rung = slot.state & bit::RUNG != 0;
        slot.state &= !bit::RUNG;
        let again = |want, request| rung || end.is_answered(want, request);
        // After the own FIN the peer's is a hang-up, which is reported unasked; and the peer's FIN
        // is an edge for everybody.
        let data = slot.events & (INPUT | EDGE) != 0 || end.private().has(flag::SHUT_WR);
        if slot.state & bit::DATA != 0 {
            let answered = again(Want::Data, slot.data_request);
            if slot.state & bit::AMONG_MANY != 0 && answered {
                slot.data_request = end.arm_again_among_many(sleep) as u32;
            } else if slot.state & bit::AMONG_MANY != 0 {
                end.number_sleep(sleep);
            } else if answered {
                slot.data_request = end.arm_again(Want::Data) as u32;
            }
        } else if data {
            // Only a service core knows of it, and who reads no more is rung by nobody.
            let among_many = sleep != 0 && end.private().has(flag::SERVED) && !is_deaf(end);
            let request = if among_many { end.arm_among_many(sleep) } else { None };
            slot.state |= bit::DATA | if request.is_some() { bit::AMONG_MANY } else { 0 };
            slot.data_request = request.unwrap_or_else(|| end.arm(Want::Data)) as u32;
        }
        if slot.state & bit::ROOM != 0 {
            if again(Want::Room, slot.room_request) {
                slot.room_request = end.arm_again(Want::Room) as u32;
            }
        } else if slot.events & OUTPUT != 0 && (end.is_short_of_room() || !end.is_writable()) {
            slot.room_request = end.arm(Want::Room) as u32;
            slot.state |= bit::ROOM;
        }
        if table::refers_to(slot.fd, held) {
            doorbell::thin(slot.fd, end);
            if slot.state & bit::EXAMINE != 0 {
                slot.state &= !bit::EXAMINE;
                bypass::examine(slot.fd, end);
            }
        }
    }

    /// Requests of a registration that are counted.
    pub fn counted(&mut self, number: u32) -> u32 {
        (self.slot(number).state & (bit::DATA | bit::ROOM)).count_ones()
    }

    /// Somebody was taking bytes from the doorbell while a registration was armed: what answered
    /// its request may have been among them.
    #[cold]
    pub fn arm_after_drain(&mut self, number: u32) {
        let (slot, held) = self.slot_and_held(number);
        if let Some(end) = held.and_then(|held| held.end()) {
            slot.data_request = end.arm_again(Want::Data) as u32;
        }
    }

    /// Takes the requests back.
    #[inline]
    pub fn disarm(&mut self, number: u32) {
        self.take_back(number, bit::DATA | bit::AMONG_MANY | bit::ROOM);
    }

    /// The same for one thing or both.
    #[inline]
    pub fn take_back(&mut self, number: u32, bits: u16) {
        let (slot, held) = self.slot_and_held(number);
        let Some(held) = held else { return };
        let armed = slot.state & bits;
        if armed & (bit::DATA | bit::ROOM) == 0 {
            return;
        }
        let among_many = slot.state & bit::AMONG_MANY != 0;
        slot.state &= !bits;
        let Some(end) = held.end() else { return };
        if armed & bit::DATA != 0 {
            if among_many { end.disarm_among_many() } else { end.disarm(Want::Data) }
        }
        if armed & bit::ROOM != 0 {
            end.disarm(Want::Room);
        }
    }

    /// The kernel reports something of a registration: `events` of its placeholder or nested epoll.
    pub fn kernel_says(&mut self, number: u32, events: u32) {
        let (slot, held) = self.slot_and_held(number);
        let Some(held) = held else { return };
        match slot.what() {
            What::Stream | What::Dormant => {
                if let Some(end) = held.end() {
                    if events & HANGUP != 0 {
                        end.hung_up();
                    }
                    end.asked_no_more(Want::Room);
                    slot.state |= bit::RUNG;
                    if table::refers_to(slot.fd, held) {
                        doorbell::thin(slot.fd, end);
                        let nothing =
                            || readiness(end, slot.events & OUTPUT != 0) & (slot.events | ALWAYS) == 0;
                        // What woke may be no doorbell, or lie beside one. Where there is something
                        // to serve as well, that comes first.
                        if events & libc::EPOLLIN as u32 != 0 {
                            if nothing() {
                                bypass::examine(slot.fd, end);
                            } else if end.rung_since(0) < EARLY {
                                slot.state |= bit::EXAMINE;
                            }
                        }
                    }
                }
                if slot.what() == What::Dormant {
                    return;
                }
            }
            What::Nested => slot.state |= bit::KERNEL,
            What::Native | What::Nothing => return,
        }
        self.put_on_list(number);
    }
}
