//! Scanning the hot list of an epoll set, and sorting what the kernel has reported.
//!
//! 1. [`Registrations::scan`] checks every registration on the list, and reports the ready ones,
//!    longest ready first, as the kernel's ready list is ordered. It keeps the order of up to
//!    [`ORDERED`] of them on the stack.
//! 2. If more are ready, [`Registrations::scan_many`] reports the earliest [`ORDERED`], then the
//!    remainder in the order of the list.
//! 3. [`Registrations::sort`] separates the kernel's events. A tagged event names a slot, which
//!    goes on the list; every other event is the program's and stays in its array.
//! 4. [`Registrations::is_due`] decides whether a call polls the kernel beside the scan.
//!
//! The lock of the set is held throughout. Nothing here sleeps or allocates.

use std::mem::MaybeUninit;

use sietch_ring::stream::arrivals::cycles;

use crate::readiness::peek::{Found, Here};
use crate::readiness::set::registrations::Registrations;

use crate::readiness::tag::{TAG, TAG_MASK};
use crate::system::originals;
use crate::wait::output::Output;

/// Cycles between two polls of the kernel while streams are busy: some 100 microseconds, of which a
/// poll takes half a percent.
pub(crate) const KERNEL_EVERY: u64 = 1 << 18;

/// Registrations that are ready at once and whose order is known: more than most programs take in
/// one call. Of more, the earliest.
const ORDERED: usize = 64;

/// Bits of a position below [`ORDERED`].
const POSITION: u32 = ORDERED.ilog2();

/// Sorts as `(since, position)` does, in one word, which takes a third of the instructions. No
/// `since` is later than `now`; those of more than `2^58` cycles ago count as equally old.
#[inline]
const fn order_key(since: u64, position: u64, now: u64) -> u64 {
    const OLDEST: u64 = u64::MAX >> POSITION;
    let age = now.saturating_sub(since);
    (OLDEST - if age < OLDEST { age } else { OLDEST }) << POSITION | position
}

impl Registrations {
    /// Reports what is ready on the list, as far as there is room, longest ready first. Never
    /// inlined: a caller that sleeps must not keep 4 KiB of the program's stack for it.
    ///
    /// A connection's memory is read once, here: each begins at a page, so the same lines of 50
    /// connections do not fit into the first cache beside each other.
    #[inline(never)]
    pub(crate) fn scan(&mut self, out: &mut Output) {
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
        if out.is_full() && self.sleepers != 0 {
            self.wake_another();
        }
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
            self.append_found(out, &found[*key as usize % ORDERED], at, here);
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
            if self.ordered_at(number) < here.now {
                at += u64::from(self.append_if_ready(out, number, at, here));
            }
        }
        if out.is_full() && self.sleepers != 0 {
            self.wake_another();
        }
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
            if event.u64 & TAG_MASK != TAG {
                let _ = out.push(event.events, event.u64);
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
    fn the_key_orders_by_time_then_by_position() {
        let now = 1 << 60;
        let by_key = |one: (u64, u64), other: (u64, u64)| {
            order_key(one.0, one.1, now).cmp(&order_key(other.0, other.1, now))
        };
        let most = ORDERED as u64 - 1;
        for pair @ [one, other] in [
            [(now - 5, 0), (now - 4, 0)],
            [(now - 5, most), (now - 4, 0)],
            [(now, 0), (now, most)],
            [(now - (1 << 57), most), (now, 0)],
            [(7, 3), (8, 4)],
        ] {
            assert!(by_key(one, other).is_lt(), "{pair:?}");
        }
        assert_eq!(order_key(now - 9, 33, now) as usize % ORDERED, 33);
        // Later than now: as now.
        assert_eq!(order_key(now + 1, 2, now), order_key(now, 2, now));
    }
}
