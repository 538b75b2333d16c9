//! The steps of an epoll set before and after a thread sleeps in it.
//!
//! Before: every hot registration is armed and checked once more; what was not ready for some
//! sleeps cools ([`Registrations::prepare_sleep`]). After: requests are cancelled
//! ([`Registrations::finish_sleep`]).
//!
//! Where several processes use the epoll, one of them can be killed or stopped between the kernel's
//! report and the lock. The kernel reports the placeholder to no other then. So every registration
//! is checked again from time to time ([`Registrations::recheck`]), and no sleep is longer.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

use sietch_ring::stream::Endpoint;

use crate::readiness::set::registrations::Registrations;
use crate::readiness::set::shared::{SlotKind, bit};
use crate::readiness::set::sharing;
use crate::readiness::{check, nested};
use crate::system::kernel;
use sietch_stream::limits::{AS_MANY_SLEEPS, COOL_AFTER, MAX_HOT};

/// Nanoseconds between two checks of all registrations ([`Registrations::recheck`]), at least.
const RECHECK_EVERY: u64 = 100_000_000;

/// The same for each registration: a check takes some 200 ns, of which this makes one percent.
const RECHECK_EVERY_PER_SLOT: u64 = 20_000;

impl Registrations {
    /// Nanoseconds between two calls of [`Registrations::recheck`] that check, and of the longest
    /// sleep; none if no other process can use the epoll. A child of fork may begin to use it while
    /// a thread sleeps here.
    fn recheck_every(&self) -> Option<u64> {
        let slots = self.numbers().end;
        let every = RECHECK_EVERY.max(u64::from(slots) * RECHECK_EVERY_PER_SLOT);
        (self.multi_process.is_yes() || self.forks != sharing::forks()).then_some(every)
    }

    /// Puts all registrations on the list if several processes use the epoll and it is time: a
    /// report of the kernel may have been lost with the process that received it. The next scan
    /// checks and arms them.
    #[inline]
    pub(crate) fn recheck(&mut self) {
        if self.multi_process.is_yes() {
            self.recheck_if_due(kernel::now());
        }
    }

    #[cold]
    fn recheck_if_due(&mut self, now: u64) {
        let Some(every) = self.recheck_every() else { return };
        if now.saturating_sub(self.rechecked_at) < every {
            return;
        }
        self.rechecked_at = now;
        for number in self.numbers() {
            // An edge that was reported to another process is lost, as with the kernel.
            let is_edge = self.slot(number).events & check::EDGE != 0;
            self.list_as_reported(number, if is_edge { 0 } else { bit::KERNEL_READY });
        }
    }

    /// Puts a registration on the list as if the kernel had reported it, with `bits`.
    fn list_as_reported(&mut self, number: u32, bits: u16) {
        let is_watched = matches!(self.slot(number).kind(), SlotKind::Stream | SlotKind::Nested);
        if is_watched && !self.is_unknown(number) {
            self.slot(number).state |= bits;
            self.put_on_list(number);
        }
    }

    /// Arms everything on the list and checks it once more; what is not ready and was not in the
    /// last `cold` sleeps cools. Returns whether anything is ready, and the longest sleep, which is
    /// read before the check ([`Endpoint::corked_for`]).
    pub(crate) fn prepare_sleep(&mut self, cold: u32) -> (bool, Option<u64>) {
        let crowded = self.listed() > MAX_HOT;
        for position in 0..self.listed() {
            self.arm(self.at(position));
        }
        fence(SeqCst);
        let (mut ready, mut slice) = (false, self.recheck_every());
        let mut position = self.listed();
        while position != 0 {
            position -= 1;
            let number = self.at(position);
            if self.is_unknown(number) {
                continue;
            }
            if self.slot(number).state & bit::AMONG_MANY != 0
                && self.end(number).is_some_and(Endpoint::is_draining)
            {
                self.arm_after_drain(number);
            }
            let longest = self.sleep_limit_of(number);
            slice = check::shorter_sleep(slice, longest);
            if self.peek(number).0 != 0 {
                ready = true;
                continue;
            }
            let (shared, sleeps) = (self.shared.is_yes(), self.sleeps);
            let slot = self.slot(number);
            let old = sleeps.wrapping_sub(slot.ready_at) >= cold;
            let cools = old || crowded || shared || slot.state & bit::SILENT != 0;
            if cools && longest.is_none() && matches!(slot.kind(), SlotKind::Stream | SlotKind::Dormant) {
                if slot.state & bit::AMONG_MANY != 0 {
                    // The thread that wakes does not check it any more, so it is notified for
                    // itself.
                    if let Some(end) = self.end(number) {
                        end.number_sleep(0);
                    }
                    fence(SeqCst);
                    if self.peek(number).0 != 0 {
                        ready = true;
                        continue;
                    }
                }
                self.take_off_list(number);
            }
        }
        (ready, slice)
    }

    /// Counts a sleep of so many nanoseconds: a long one counts as several.
    pub(crate) fn count_long_sleep(&mut self, nanoseconds: u64) {
        let more = (nanoseconds / AS_MANY_SLEEPS).min(u64::from(COOL_AFTER));
        self.sleeps = self.sleeps.wrapping_add(more as u32);
    }

    /// Cancels the requests of [`Registrations::prepare_sleep`], except for registrations that the
    /// peer no longer notifies because it has notified this sleep.
    pub(crate) fn finish_sleep(&mut self, numbered: bool) {
        if self.shared.is_yes() || self.sleepers != 0 {
            return;
        }
        for position in 0..self.listed() {
            let number = self.at(position);
            if numbered && self.slot(number).state & bit::AMONG_MANY != 0 {
                self.disarm_some(number, bit::ROOM);
            } else {
                self.disarm(number);
            }
        }
    }

    /// Threads returned without the lock, `counted` sleepers among them, and dropped the kernel's
    /// events. Any registration may have been notified meanwhile, so all of them are checked.
    #[cold]
    pub(crate) fn recover_missed(&mut self, counted: u32) {
        self.sleepers = self.sleepers.saturating_sub(counted);
        for number in self.numbers() {
            self.slot(number).state &= !bit::PENDING;
            self.list_as_reported(number, bit::NOTIFIED | bit::KERNEL_READY);
        }
    }

    /// How long to sleep at most for what is on the list.
    pub(crate) fn sleep_limit(&mut self) -> Option<u64> {
        (0..self.listed()).fold(self.recheck_every(), |slice, position| {
            let number = self.at(position);
            check::shorter_sleep(slice, self.sleep_limit_of(number))
        })
    }

    /// The same for one registration.
    fn sleep_limit_of(&mut self, number: u32) -> Option<u64> {
        if self.is_unknown(number) {
            return None;
        }
        let (slot, held) = self.slot_and_held(number);
        match (slot.kind(), held) {
            (SlotKind::Dormant, _) => None,
            (SlotKind::Nested, Some(held)) => nested::sleep_limit(&held.clone()),
            (_, held) => held.and_then(|held| held.end()).and_then(check::sleep_limit),
        }
    }

    /// Wakes one thread that still sleeps in this epoll, if bytes are held back somewhere: the
    /// returning caller may have been the only one that knew when they are due.
    pub(crate) fn wake_for_held_bytes(&mut self) {
        if self.sleepers == 0 {
            return;
        }
        for position in 0..self.listed() {
            let number = self.at(position);
            if self.is_unknown(number) || self.slot(number).state & bit::SILENT != 0 {
                continue;
            }
            let held_back = self.end(number).is_some_and(|end| end.corked_for().is_some());
            if held_back && self.force_once(number) {
                return;
            }
        }
    }
}
