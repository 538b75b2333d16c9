//! The events of a registration now, and the order in which registrations became ready.
//!
//! [`Registrations::peek`] and [`Registrations::find_ready`] check one registration.
//! [`Registrations::report`] notes that it was reported, so that an edge-triggered registration is
//! not reported again before the next edge. [`Registrations::notice`] counts the edges that a
//! watcher of this epoll (another epoll, or `poll`) must see.

use sietch_ring::stream::Endpoint;
use sietch_ring::stream::arrivals::cycles;

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

/// The events that a registered stream would report now, 0 for none; and the state with which it
/// would then have been reported.
#[inline(always)]
fn peek_stream(slot: &mut Slot, held: &Held, end: &Endpoint) -> (u32, Seen) {
    let none = (0, slot.seen);
    let wanted = slot.events | ALWAYS;
    let edge = slot.events & EDGE != 0 && slot.state & bit::NEW == 0;
    // Before the check: what comes between the two is reported once more.
    let mut edges = end.snapshot();
    if edges.closing && end.may_be_hung_up() {
        check_through_any(slot.fd, held, end);
        edges = end.snapshot();
    }
    let seen = Seen::from_edge(end, edges, slot.events);
    // Nothing that the program does makes ready what was not: it reads and writes, which takes room
    // or data away, or it changes these numbers.
    if seen == slot.seen && (edge || slot.state & bit::IDLE != 0) {
        return none;
    }
    if edge && !seen.is_edge(slot.seen, wanted) {
        return none;
    }
    let ready = readiness_at(end, edges, slot.events & OUTPUT != 0) & wanted;
    if ready == 0 {
        // Level-triggered: nothing is reported before something changes. Edge-triggered: the event
        // that woke the kernel's epoll was consumed, and so was its item.
        (slot.seen, slot.state) = (seen, (slot.state | bit::IDLE) & !(bit::NEW | bit::QUEUED));
    } else {
        slot.state &= !bit::IDLE;
    }
    (ready, seen)
}

impl Registrations {
    /// The events that a registration would report now, 0 for none; and the state with which it
    /// would then have been reported.
    pub(crate) fn peek(&mut self, number: u32) -> (u32, Seen) {
        let (slot, held) = self.slot_and_held(number);
        let none = (0, slot.seen);
        let Some(held) = held.filter(|_| slot.state & bit::FIRED == 0) else { return none };
        if slot.kind() == SlotKind::Nested {
            return self.peek_nested(number);
        }
        let Some(end) = held.end() else { return none };
        peek_stream(slot, held, end)
    }

    /// As [`Registrations::peek`], with what its report needs, if it is ready. `here` is called
    /// only where something may be ready.
    ///
    /// The kernel's ready list is ordered by since when an item has been ready. A level-triggered
    /// registration that was reported goes behind all that were ready then. Another goes where its
    /// first arrival put it, as far as the peer's clock can be trusted. One without an arrival goes
    /// where it was registered, modified or reported. A change without an arrival is known from
    /// this check alone. It is recorded, or the registration would go behind all others in each
    /// check to come.
    ///
    /// The peer learns on which processor this thread runs, unless another thread may get what is
    /// found.
    #[inline]
    pub(crate) fn find_ready(&mut self, number: u32, here: impl FnOnce() -> Here) -> Option<Found> {
        let (last, shared) = (self.ordered_at(number), self.shared.is_yes());
        let (slot, held) = self.slot_and_held(number);
        let held = held.filter(|_| slot.state & bit::FIRED == 0)?;
        if slot.kind() == SlotKind::Nested {
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
        if self.is_foreign(number) {
            return false;
        }
        let slot = self.slot(number);
        let (what, events) = (slot.kind(), slot.events | ALWAYS);
        let before = *self.noticed(number);
        let (ready, seen) = self.peek(number);
        let woken = match what {
            SlotKind::Stream => {
                let (slot, held) = self.slot_and_held(number);
                let end = held.and_then(|held| held.end());
                // As an edge-triggered one: what the peer has read wakes only a writer that found
                // the ring full.
                let now = end.map_or(before, |end| Seen::of(end, events | EDGE));
                let woken = slot.state & bit::FIRED == 0 && now.is_edge(before, events);
                *self.noticed(number) = now;
                woken
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
        self.order(number, at);
        let sleeps = self.sleeps;
        let slot = self.slot(number);
        slot.seen = seen;
        slot.ready_at = sleeps;
        let events = slot.events;
        slot.state = if events & EDGE != 0 {
            // The kernel reports an edge-triggered one again. It does not report a level-triggered
            // one again, so that one has to be polled.
            slot.state & !(bit::NEW | bit::KERNEL_READY | bit::QUEUED)
        } else {
            slot.state & !bit::NEW | bit::QUEUED
        };
        if events & ONCE != 0 {
            self.fire(number);
        }
    }

    /// A one-shot registration was reported.
    #[cold]
    fn fire(&mut self, number: u32) {
        let slot = self.slot(number);
        slot.state |= bit::FIRED;
        if slot.kind() == SlotKind::Nested {
            self.register_again(number);
        }
        self.disarm(number);
    }
}
