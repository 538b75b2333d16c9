//! Scanning the hot list of an epoll set, and sorting what the kernel has reported.
//!
//! 1. [`Registrations::scan`] checks every registration on the list, and reports the ready ones,
//!    longest ready first, as the kernel's ready list is ordered.
//! 2. Usually the program's array has room for the whole list. Then
//!    [`Registrations::report_listed`] reports each ready one when it finds it. What it has
//!    reported out of order it sorts afterwards, and puts the registrations on the list in the same
//!    order. Programs serve the same clients in the same order again and again, so the next scans
//!    find them in order.
//! 3. Otherwise [`Registrations::report_earliest`] finds all that are ready before it reports the
//!    earliest of them. It keeps up to [`ORDERED`] on the stack. If more are ready,
//!    [`Registrations::scan_many`] reports the earliest [`ORDERED`], then the remainder in the
//!    order of the list.
//! 4. [`Registrations::sort`] separates the kernel's events. A tagged event names a slot, which
//!    goes on the list; every other event is the program's and stays in its array.
//! 5. [`Registrations::is_due`] decides whether a call polls the kernel beside the scan.
//!
//! The lock of the set is held throughout. Nothing here sleeps or allocates.

use std::mem::MaybeUninit;

use sietch_ring::stream::Endpoint;
use sietch_ring::stream::arrivals::cycles;
use sietch_stream::limits::MAX_HOT;

use crate::descriptor::description::Held;
use crate::readiness::check::{ANY_EVENT, ONCE};
use crate::readiness::peek::{Found, Here, report_stream};
use crate::readiness::set::registrations::{Listed, Registrations};
use crate::readiness::set::shared::Slot;
use crate::readiness::tag;
use crate::system::originals;
use crate::wait::output::Output;

/// Cycles between two polls of the kernel while streams are busy: some 100 microseconds, of which a
/// poll takes half a percent.
pub(crate) const KERNEL_EVERY: u64 = 1 << 18;

/// Registrations that are ready at once and whose order is known: more than most programs take in
/// one call. Of more, the earliest.
const ORDERED: usize = 64;

/// Registrations on a list that is reported as it is found: all that are hot.
const WHOLE: usize = MAX_HOT as usize;

/// Bits of a position below [`WHOLE`].
const POSITION: u32 = WHOLE.ilog2();

const _: () = assert!(WHOLE.is_power_of_two() && ORDERED <= WHOLE);

/// A registration that was reported when it was found.
#[derive(Clone, Copy, Debug)]
struct Reported {
    since: u64,
    number: u32,
    /// On the list.
    position: u16,
    /// All that are ever reported are here.
    events: u16,
}

const _: () = assert!(size_of::<Reported>() == 16 && WHOLE <= 1 << 16 && ANY_EVENT < 1 << 16);

/// Sorts as `(since, position)` does, in one word, which takes a third of the instructions. No
/// `since` is later than `now`; those of more than `2^56` cycles ago count as equally old.
#[inline]
const fn order_key(since: u64, position: u64, now: u64) -> u64 {
    const OLDEST: u64 = u64::MAX >> POSITION;
    let age = now.saturating_sub(since);
    (OLDEST - if age < OLDEST { age } else { OLDEST }) << POSITION | position
}

/// Registrations up to which insertion is the fastest way to sort what is nearly in order.
const FEW: usize = 64;

/// Sorts keys of registrations that are mostly in order: the list has the order of the last time.
fn sort_nearly_sorted(keys: &mut [u64]) {
    if keys.len() > FEW {
        return keys.sort_unstable();
    }
    for sorted in 1..keys.len() {
        let key = keys[sorted];
        let mut place = sorted;
        while place != 0 && keys[place - 1] > key {
            keys[place] = keys[place - 1];
            place -= 1;
        }
        keys[place] = key;
    }
}

/// What a scan has reported so far.
struct Report {
    out: Output,
    /// [`Registrations::sleeps`].
    sleeps: u32,
    /// Known once something may be ready.
    here: Option<Here>,
    /// Since when the last has been ready.
    latest: u64,
    in_order: bool,
    /// [`ONCE`] if there are one-shot registrations among them.
    once: u32,
    count: usize,
    /// So many are written.
    reported: [MaybeUninit<Reported>; WHOLE],
}

impl Report {
    /// Adds a registration if it is ready.
    #[inline(always)]
    fn add(&mut self, listed: Listed, slot: &mut Slot, held: &Held) {
        let here = || *self.here.get_or_insert_with(Here::now);
        let push = |events, data| self.out.push_one_of(events, data);
        let found = report_stream(slot, held, self.sleeps, here, push);
        if let Some((since, events)) = found
            && let Some(entry) = self.reported.get_mut(self.count)
        {
            let Listed { position, number } = listed;
            entry.write(Reported { since, number, position: position as u16, events: events as u16 });
            self.count += 1;
            self.in_order &= since >= self.latest;
            (self.latest, self.once) = (since, self.once | slot.events & ONCE);
        }
    }

    /// Those that were reported, in the order of the list.
    fn reported(&self) -> &[Reported] {
        // SAFETY: so many were written by `add`.
        unsafe { std::slice::from_raw_parts(self.reported.as_ptr().cast::<Reported>(), self.count) }
    }
}

impl Registrations {
    /// Reports what is ready on the list, as far as there is room, longest ready first.
    #[inline]
    pub(crate) fn scan(&mut self, out: &mut Output) {
        let listed = self.listed() as usize;
        // Without epolls in it, and in one process.
        let is_plain = self.nested == 0 && !self.multi_process.is_yes();
        if is_plain && listed <= WHOLE && out.has_room_for(listed) {
            self.report_listed(out);
        } else {
            self.report_earliest(out);
        }
    }

    /// Reports what is ready on a list for all of which there is room. Never inlined: a caller that
    /// sleeps must not keep 4 KiB of the program's stack for it.
    ///
    /// A connection's memory is read once, here: each begins at a page, so the same lines of 50
    /// connections do not fit into the first cache beside each other.
    #[inline(never)]
    fn report_listed(&mut self, out: &mut Output) {
        if self.shared.is_yes() || self.sleepers != 0 {
            for position in 0..self.listed() {
                self.arm(self.at(position));
            }
        }
        let (first, sleeps, filling) = (out.filled, self.sleeps, Output { ..*out });
        let mut report = Report {
            out: filling,
            sleeps,
            here: None,
            latest: 0,
            in_order: true,
            once: 0,
            count: 0,
            reported: [const { MaybeUninit::uninit() }; WHOLE],
        };
        self.each_listed_stream(|place, slot, held| report.add(place, slot, held));
        *out = Output { ..report.out };
        let Some(here) = report.here else { return };
        // After each check: a reported registration goes behind all that were found.
        let at = cycles().max(here.now);
        let reported = report.reported();
        if report.in_order {
            for (at, reported) in (at..).zip(reported) {
                self.slot(reported.number).ordered_at = at;
            }
        } else {
            self.put_in_order(out, first, reported, at, here.now);
        }
        if report.once != 0 {
            self.fire_reported(reported);
        }
        if let Some(last) = reported.last()
            && let Some(peer) = self.end(last.number).and_then(Endpoint::peer_cpu)
        {
            self.peer = Some(peer);
        }
        self.pass_on(out);
    }

    /// Something was reported. What is still ready, level-triggered or for want of room, wakes
    /// another thread that sleeps here, as it does in the kernel (fs/eventpoll.c, `ep_done_scan`).
    pub(crate) fn pass_on(&mut self, out: &Output) {
        if self.sleepers != 0 && out.filled != 0 {
            self.wake_another();
        }
    }

    /// One-shot registrations are among those that were reported.
    #[cold]
    fn fire_reported(&mut self, reported: &[Reported]) {
        for Reported { number, .. } in reported {
            if self.slot(*number).events & ONCE != 0 {
                self.fire(*number);
            }
        }
    }

    /// Sorts what was reported from event `first` on by the time since when it has been ready; at
    /// equal times, in the order of the list. The list then has the same order.
    #[inline(never)]
    fn put_in_order(&mut self, out: &mut Output, first: usize, reported: &[Reported], at: u64, now: u64) {
        let mut order = [const { MaybeUninit::<u64>::uninit() }; WHOLE];
        for (place, (reported, index)) in order.iter_mut().zip(reported.iter().zip(0..)) {
            place.write(order_key(reported.since, index, now));
        }
        // SAFETY: so many were written above: `reported` has at most `WHOLE`.
        let order = unsafe {
            std::slice::from_raw_parts_mut(order.as_mut_ptr().cast::<u64>(), reported.len().min(WHOLE))
        };
        sort_nearly_sorted(order);
        for (index, (key, place)) in order.iter().zip(reported).enumerate() {
            let Some(Reported { number, events, .. }) = reported.get(*key as usize % WHOLE) else { continue };
            let slot = self.slot(*number);
            slot.ordered_at = at + index as u64;
            out.replace(first + index, u32::from(*events), slot.data);
            self.put_at(u32::from(place.position), *number);
        }
    }

    /// As [`Registrations::scan`], whatever is on the list, and however much there is room for.
    #[inline(never)]
    pub(crate) fn report_earliest(&mut self, out: &mut Output) {
        let keep_armed = self.shared.is_yes() || self.sleepers != 0;
        let mut found = [const { MaybeUninit::<Found>::uninit() }; ORDERED];
        let (mut count, mut here) = (0, None);
        for position in 0..self.listed() {
            let number = self.at(position);
            if keep_armed {
                self.arm(number);
            }
            if let Some(ready) = self.find_ready(number, || *here.get_or_insert_with(Here::now)) {
                let Some(place) = found.get_mut(count) else {
                    return self.scan_many(out, keep_armed, position);
                };
                place.write(ready);
                count += 1;
            }
        }
        let Some(here) = here else { return };
        // SAFETY: so many were written above.
        let found = unsafe { std::slice::from_raw_parts(found.as_ptr().cast::<Found>(), count) };
        // After each check: a reported registration goes behind all that were found.
        let at = cycles().max(here.now);
        if found.is_sorted_by_key(|found| found.since) {
            (at..).zip(found).for_each(|(at, found)| self.append_found(out, found, at, here));
        } else {
            self.append_in_order(out, found, at, here);
        }
        self.pass_on(out);
    }

    /// Reports what was found ready, in the order in which it became so; at equal times, in the
    /// order of the list.
    #[inline]
    fn append_in_order(&mut self, out: &mut Output, found: &[Found], from: u64, here: Here) {
        let mut order = [const { MaybeUninit::<u64>::uninit() }; ORDERED];
        for (place, (found, position)) in order.iter_mut().zip(found.iter().zip(0..)) {
            place.write(order_key(found.since, position, here.now));
        }
        let written = found.len().min(ORDERED);
        // SAFETY: so many were written above.
        let order = unsafe { std::slice::from_raw_parts_mut(order.as_mut_ptr().cast::<u64>(), written) };
        order.sort_unstable();
        for (at, key) in (from..).zip(order.iter()) {
            self.append_found(out, &found[*key as usize % WHOLE], at, here);
        }
    }

    /// Reports a registration with what it was found with, if there is room.
    #[inline]
    fn append_found(&mut self, out: &mut Output, found: &Found, at: u64, here: Here) {
        if out.push(found.events, found.data) {
            self.report(found.number, found.seen, at);
            self.peer = found.peer.or(self.peer);
            if self.shared.is_yes()
                && let Some(end) = self.end(found.number)
            {
                end.set_cpu(here.processor);
            }
        }
    }

    /// As [`Registrations::scan`], where more than [`ORDERED`] are ready. Those on the list behind
    /// `unarmed` are not armed yet.
    #[inline(never)]
    fn scan_many(&mut self, out: &mut Output, keep_armed: bool, unarmed: u32) {
        let here = Here::now();
        let mut earliest = [(0_u64, 0_u32, 0_u32); ORDERED];
        let mut found = 0;
        for position in 0..self.listed() {
            let number = self.at(position);
            if keep_armed && position > unarmed {
                self.arm(number);
            }
            let Some(Found { since, .. }) = self.find_ready(number, || here) else { continue };
            let ready = (since, position, number);
            if found < ORDERED {
                earliest[found] = ready;
                found += 1;
                if found == ORDERED {
                    earliest.sort_unstable();
                }
            } else if ready < earliest[ORDERED - 1] {
                earliest[ORDERED - 1] = ready;
                earliest.sort_unstable();
            }
        }
        earliest[..found].sort_unstable();
        let mut at = cycles().max(here.now);
        for (_, _, number) in earliest[..found].iter().copied() {
            at += u64::from(self.append_if_ready(out, number, at, here));
        }
        // Beyond those whose order is known, what is left in the order of the list.
        for position in 0..if found == ORDERED { self.listed() } else { 0 } {
            let number = self.at(position);
            if self.slot(number).ordered_at < here.now {
                at += u64::from(self.append_if_ready(out, number, at, here));
            }
        }
        self.pass_on(out);
    }

    /// Reports a registration if there is room and it is ready.
    fn append_if_ready(&mut self, out: &mut Output, number: u32, at: u64, here: Here) -> bool {
        if out.is_full() {
            return false;
        }
        let found = self.find_ready(number, || here);
        if let Some(found) = &found {
            self.append_found(out, found, at, here);
        }
        found.is_some()
    }

    /// Sorts what the kernel has put behind `out`: ours go on the list, the other events stay.
    pub(crate) fn sort(&mut self, out: &mut Output, reported: usize) {
        let first = out.filled;
        for index in first..first + reported {
            let Some(event) = out.reported(index) else { break };
            if let Some(own) = tag::own_data(event.u64) {
                let _ = out.push(event.events, own);
            } else if let Some(number) = self.named(event.u64) {
                self.note_kernel_event(number, event.events);
            }
        }
        self.had_kernel_events = out.filled != first;
    }

    /// Whether the kernel may have an event of its own, or the next poll of it is due.
    #[inline]
    pub(crate) fn is_due(&self, now: u64) -> bool {
        // Without streams the sleep alone polls the kernel.
        self.watched != 0
            && (self.had_kernel_events
                || self.calls_at_kernel_poll != originals::calls()
                || now.wrapping_sub(self.kernel_polled_at) > KERNEL_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_however_many_and_however_disordered() {
        for count in [0, 1, 2, FEW, FEW + 1, WHOLE] {
            let mut keys: Vec<u64> =
                (0..count as u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            let mut expected = keys.clone();
            expected.sort_unstable();
            sort_nearly_sorted(&mut keys);
            assert_eq!(keys, expected);
            sort_nearly_sorted(&mut keys);
            assert_eq!(keys, expected);
        }
    }

    #[test]
    fn the_key_orders_by_time_then_by_position() {
        let now = 1 << 60;
        let by_key = |one: (u64, u64), other: (u64, u64)| {
            order_key(one.0, one.1, now).cmp(&order_key(other.0, other.1, now))
        };
        let most = WHOLE as u64 - 1;
        for pair @ [one, other] in [
            [(now - 5, 0), (now - 4, 0)],
            [(now - 5, most), (now - 4, 0)],
            [(now, 0), (now, most)],
            [(now - (1 << 55), most), (now, 0)],
            [(7, 3), (8, 4)],
        ] {
            assert!(by_key(one, other).is_lt(), "{pair:?}");
        }
        assert_eq!(order_key(now - 9, 33, now) as usize % WHOLE, 33);
        // Later than now: as now.
        assert_eq!(order_key(now + 1, 2, now), order_key(now, 2, now));
    }
}
