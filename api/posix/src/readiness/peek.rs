//! The events of a registration now, and the order in which registrations became ready.
//!
//! [`Registrations::peek`] and [`Registrations::find_ready`] check one registration.
//! [`Registrations::report`] notes that it was reported, so that an edge-triggered registration is
//! not reported again before the next edge. [`Registrations::notice`] counts the edges that a
//! watcher of this epoll (another epoll, or `poll`) must see.

use sietch_ring::stream::arrivals::cycles;
use sietch_ring::stream::{Edge, Endpoint};

use crate::descriptor::description::Held;
use crate::readiness::check::{ALWAYS, EDGE, ONCE, OUTPUT, READ, Seen, check_through_any, readiness_at};
use crate::readiness::nested;
use crate::readiness::set::registrations::Registrations;
use crate::readiness::set::shared::{Slot, SlotKind, bit};
use crate::system::processor;

/// A registration that was found ready.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) number: u32,
    /// To be reported.
    pub(crate) events: u32,
    /// The program's data.
    pub(crate) data: u64,
    /// See [`Registrations::report`].
    pub(crate) seen: Seen,
    /// Since when it has been so, see [`Registrations::find_ready`].
    pub(crate) since: u64,
    /// Where its peer was seen, if that is known.
    pub(crate) peer: Option<u32>,
}

/// When, and on which processor, a thread checks what is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    /// Cycles.
    pub(crate) now: u64,
    pub(crate) processor: u32,
}

impl Here {
    #[inline]
    pub(crate) fn now() -> Self {
        Self { now: cycles(), processor: processor::processor() }
    }
}

/// The events that a registered stream would report now, and the state with which it would then
/// have been reported; none if it would report nothing. The caller then takes [`bit::IDLE`] back.
/// `edges` was taken before: what comes between the two is reported once more.
#[inline(always)]
fn peek_stream(slot: &mut Slot, held: &Held, end: &Endpoint, edges: Edge) -> Option<(u32, Seen)> {
    if edges.is_closing() { peek_closing(slot, held, end, edges) } else { peek_edges(slot, end, edges) }
}

/// As [`peek_stream`], where the kernel may know that no process holds the other end.
#[cold]
fn peek_closing(slot: &mut Slot, held: &Held, end: &Endpoint, mut edges: Edge) -> Option<(u32, Seen)> {
    if end.may_be_hung_up() {
        check_through_any(slot.fd, held, end);
        edges = end.snapshot();
    }
    peek_edges(slot, end, edges)
}

/// Whether a registration reports nothing before an edge.
#[inline(always)]
const fn waits_for_edge(slot: &Slot) -> bool {
    slot.events & EDGE != 0 && slot.state & bit::NEW == 0
}

/// Whether a registration reports nothing as long as it is as it was seen. Nothing that the program
/// does makes ready what was not: it reads and writes, which takes room or data away, or it changes
/// what is seen.
#[inline(always)]
const fn is_reported_on_change(slot: &Slot) -> bool {
    slot.state & bit::IDLE != 0 || waits_for_edge(slot)
}

/// As [`peek_stream`], where the kernel need not be queried.
#[inline(always)]
fn peek_edges(slot: &mut Slot, end: &Endpoint, edges: Edge) -> Option<(u32, Seen)> {
    let seen = Seen::from_edge(end, edges, slot.events);
    if seen == slot.seen && is_reported_on_change(slot) {
        return None;
    }
    let wanted = slot.events | ALWAYS;
    if waits_for_edge(slot) && !seen.is_edge(slot.seen, wanted) {
        return None;
    }
    let ready = readiness_at(end, edges, slot.events & OUTPUT != 0) & wanted;
    if ready == 0 {
        // Level-triggered: nothing is reported before something changes. Edge-triggered: the event
        // that woke the kernel's epoll was consumed, and so was its item.
        (slot.seen, slot.state) = (seen, (slot.state | bit::IDLE) & !(bit::NEW | bit::QUEUED));
        return None;
    }
    Some((ready, seen))
}

/// What [`ready_stream`] finds.
struct ReadyStream {
    events: u32,
    seen: Seen,
    since: u64,
    /// For [`Slot::state`].
    state: u16,
}

/// As [`peek_stream`], with since when it has been ready; none if it is not.
///
/// The kernel's ready list is ordered by since when an item has been ready. A level-triggered
/// registration that was reported goes behind all that were ready then. Another goes where its
/// first arrival put it, as far as the peer's clock can be trusted. One without an arrival goes
/// where it was registered, modified or reported. A change without an arrival is known from this
/// check alone. It is recorded, or the registration would go behind all others in each check to
/// come.
#[inline(always)]
fn ready_stream(
    slot: &mut Slot,
    held: &Held,
    end: &Endpoint,
    edges: Edge,
    here: impl FnOnce() -> Here,
) -> Option<(ReadyStream, Here)> {
    let (events, seen) = peek_stream(slot, held, end, edges)?;
    let before = slot.seen;
    let mut state = slot.state & !bit::IDLE;
    let here = here();
    let (now, last) = (here.now, slot.ordered_at.min(here.now));
    let since =
        if state & bit::QUEUED != 0 || (seen.arrived, seen.changes) == (before.arrived, before.changes) {
            last
        } else {
            end.arrived_after(before.arrived, now).map_or(now, |arrived| arrived.clamp(last, now))
        };
    if since == now {
        state |= bit::QUEUED;
        slot.ordered_at = now;
    }
    Some((ReadyStream { events, seen, since, state }, here))
}

/// Notes that a registration in a state was reported.
#[inline]
fn note_report(slot: &mut Slot, state: u16, seen: Seen, sleeps: u32) {
    (slot.seen, slot.ready_at) = (seen, sleeps);
    slot.state = if slot.events & EDGE != 0 {
        // The kernel reports an edge-triggered one again. It does not report a level-triggered one
        // again, so that one has to be polled.
        state & !(bit::NEW | bit::KERNEL_READY | bit::QUEUED)
    } else {
        state & !bit::NEW | bit::QUEUED
    };
}

/// As [`Registrations::find_ready`], and reports it at once: `push` appends events and data to the
/// program's array. Returns since when it has been ready, and the events; none if it is not ready,
/// or `push` has no room. The caller then orders it ([`Slot::ordered_at`]), and calls
/// [`Registrations::fire`] if it is one-shot.
#[inline(always)]
pub(crate) fn report_stream(
    slot: &mut Slot,
    held: &Held,
    sleeps: u32,
    here: impl FnOnce() -> Here,
    push: impl FnOnce(u32, u64) -> bool,
) -> Option<(u64, u32)> {
    let end = held.end()?;
    let (ready, here) = ready_stream(slot, held, end, end.snapshot(), here)?;
    let ReadyStream { events, seen, since, state } = ready;
    if !push(events, slot.data) {
        slot.state = state;
        return None;
    }
    end.set_cpu(here.processor);
    note_report(slot, state, seen, sleeps);
    Some((since, events))
}

impl Registrations {
    /// The events that a registration would report now, 0 for none; and the state with which it
    /// would then have been reported.
    pub(crate) fn peek(&mut self, number: u32) -> (u32, Seen) {
        let (slot, held) = self.slot_and_held(number);
        let none = (0, slot.seen);
        let Some(held) = held.filter(|_| slot.state & bit::SILENT == 0) else { return none };
        if slot.kind() == SlotKind::Nested {
            return self.peek_nested(number);
        }
        let Some(found) = held.end().and_then(|end| peek_stream(slot, held, end, end.snapshot())) else {
            return (0, slot.seen);
        };
        slot.state &= !bit::IDLE;
        found
    }

    /// As [`Registrations::peek`], with what its report needs, if it is ready. `here` is called
    /// only where something may be ready.
    ///
    /// The peer learns on which processor this thread runs, unless another thread may get what is
    /// found.
    #[inline]
    pub(crate) fn find_ready(&mut self, number: u32, here: impl FnOnce() -> Here) -> Option<Found> {
        let shared = self.shared.is_yes();
        let (slot, held) = self.slot_and_held(number);
        let held = held.filter(|_| slot.state & bit::SILENT == 0)?;
        if slot.kind() == SlotKind::Nested {
            return self.find_nested(number, here());
        }
        let end = held.end()?;
        let (ready, here) = ready_stream(slot, held, end, end.snapshot(), here)?;
        if !shared {
            end.set_cpu(here.processor);
        }
        let ReadyStream { events, seen, since, state } = ready;
        slot.state = state;
        Some(Found { number, events, data: slot.data, seen, since, peer: end.peer_cpu() })
    }

    #[cold]
    fn find_nested(&mut self, number: u32, Here { now, .. }: Here) -> Option<Found> {
        let (events, seen) = self.peek_nested(number);
        if events == 0 {
            return None;
        }
        let slot = self.slot(number);
        if slot.state & bit::QUEUED == 0 {
            slot.state |= bit::QUEUED;
            slot.ordered_at = now;
        }
        let (since, data) = (slot.ordered_at.min(now), slot.data);
        Some(Found { number, events, data, seen, since, peer: None })
    }

    fn peek_nested(&mut self, number: u32) -> (u32, Seen) {
        let (slot, held) = self.slot_and_held(number);
        let none = (0, slot.seen);
        let (reported, fd) = (slot.state & bit::KERNEL_READY != 0, slot.fd);
        let Some(held) = held.cloned() else { return none };
        let found = nested::check(fd, &held, reported, false);
        let slot = self.slot(number);
        let seen = Seen::of_nested(found.edges);
        if !found.is_ready() {
            (slot.seen, slot.state) = (seen, slot.state & !(bit::KERNEL_READY | bit::NEW | bit::QUEUED));
            return none;
        }
        let due = slot.events & EDGE == 0 || slot.state & bit::NEW != 0;
        if due || seen != slot.seen || found.kernel { (READ & slot.events, seen) } else { none }
    }

    /// Counts what would wake a watcher of this epoll. Returns whether the registration is ready.
    pub(crate) fn notice(&mut self, number: u32) -> bool {
        if self.is_unknown(number) {
            return false;
        }
        let before = *self.noticed(number);
        let (slot, held) = self.slot_and_held(number);
        let (what, events, silent) = (slot.kind(), slot.events | ALWAYS, slot.state & bit::SILENT != 0);
        // As an edge-triggered one: what the peer has read wakes only a writer that found the ring
        // full. Before the check: an edge is counted only if what it brought is found as well.
        let end = held.and_then(|held| held.end());
        let now = end.map_or(before, |end| Seen::of(end, events | EDGE));
        let (ready, seen) = self.peek(number);
        let woken = match what {
            SlotKind::Stream => {
                *self.noticed(number) = now;
                !silent && now.is_edge(before, events)
            }
            SlotKind::Nested => {
                *self.noticed(number) = seen;
                seen != before
            }
            SlotKind::Native | SlotKind::Dormant | SlotKind::Nothing => false,
        };
        if woken {
            self.edges = self.edges.wrapping_add(1);
        }
        ready != 0
    }

    /// A registration was made or changed: that wakes a watcher if the registration is ready.
    pub(crate) fn notice_change(&mut self, number: u32) {
        if self.has_watchers.is_yes() {
            let before = self.edges;
            self.edges = if self.notice(number) { before.wrapping_add(1) } else { before };
        }
    }

    /// Notes that a registration was reported, at `at` cycles.
    #[inline]
    pub(crate) fn report(&mut self, number: u32, seen: Seen, at: u64) {
        let sleeps = self.sleeps;
        let slot = self.slot(number);
        slot.ordered_at = at;
        note_report(slot, slot.state, seen, sleeps);
        if slot.events & ONCE != 0 {
            self.fire(number);
        }
    }

    /// A one-shot registration was reported.
    #[cold]
    pub(crate) fn fire(&mut self, number: u32) {
        let slot = self.slot(number);
        slot.state |= bit::SILENT;
        if slot.kind() == SlotKind::Nested {
            self.register_again(number);
        }
        self.disarm(number);
    }
}
