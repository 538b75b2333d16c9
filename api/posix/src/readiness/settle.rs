//! What an epoll set does before and after a thread sleeps in it.
//!
//! Before: every hot registration is armed and checked once more; what was not ready for some sleeps
//! cools ([`Body::settle`]). After: requests are taken back ([`Body::unsettle`]).

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

use sietch_ring::stream::End;

use crate::readiness::limits::{AS_MANY_SLEEPS, COLD, HOT};
use crate::readiness::set::registrations::Body;
use crate::readiness::set::shared::{What, bit};
use crate::readiness::{check, control, nested};

impl Body {
    /// There was no room for everything, and others sleep: one of them gets the rest.
    #[cold]
    pub(crate) fn pass_on(&mut self) {
        for position in 0..self.listed() {
            let number = self.at(position);
            if self.peek(number).0 != 0 {
                control::kick(self, number);
                return;
            }
        }
    }

    /// Arms everything on the list and looks at it once more; what is not ready and was not in the last `cold` sleeps cools. Whether anything is ready, and
    /// how long to sleep at most, which is asked before the look ([`End::held_for`]).
    pub(crate) fn settle(&mut self, cold: u32) -> (bool, Option<u64>) {
        let crowded = self.listed() > HOT;
        for position in 0..self.listed() {
            self.arm(self.at(position));
        }
        fence(SeqCst);
        let (mut ready, mut slice) = (false, None);
        let mut position = self.listed();
        while position != 0 {
            position -= 1;
            let number = self.at(position);
            if self.is_foreign(number) {
                continue;
            }
            if self.slot(number).state & bit::AMONG_MANY != 0
                && self.end(number).is_some_and(End::is_draining)
            {
                self.arm_after_drain(number);
            }
            let longest = self.slice_of(number);
            slice = check::sooner(slice, longest);
            if self.peek(number).0 != 0 {
                ready = true;
                continue;
            }
            let (shared, sleeps) = (self.shared.is_yes(), self.sleeps);
            let slot = self.slot(number);
            let old = sleeps.wrapping_sub(slot.ready_at) >= cold;
            let cools = old || crowded || shared || slot.state & bit::SPENT != 0;
            if cools && longest.is_none() && slot.what() == What::Stream {
                if slot.state & bit::AMONG_MANY != 0 {
                    // Who wakes does not look at it any more, so it is rung for itself.
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

    /// A sleep took so many nanoseconds: a long one counts as several.
    pub(crate) fn slept(&mut self, nanoseconds: u64) {
        let more = (nanoseconds / AS_MANY_SLEEPS).min(u64::from(COLD));
        self.sleeps = self.sleeps.wrapping_add(more as u32);
    }

    /// Takes back what [`Body::settle`] asked for, but for those that are not rung any more because this sleep was.
    pub(crate) fn unsettle(&mut self, numbered: bool) {
        if self.shared.is_yes() || self.sleepers != 0 {
            return;
        }
        for position in 0..self.listed() {
            let number = self.at(position);
            if numbered && self.slot(number).state & bit::AMONG_MANY != 0 {
                self.take_back(number, bit::ROOM);
            } else {
                self.disarm(number);
            }
        }
    }

    /// `missed` sleepers returned without the lock, and dropped the kernel's events. Any registration may have been
    /// notified meanwhile, so all of them are checked.
    pub(crate) fn make_up(&mut self, missed: u32) {
        if missed == 0 {
            return;
        }
        self.sleepers = self.sleepers.saturating_sub(missed);
        for number in self.numbers() {
            if matches!(self.slot(number).what(), What::Stream | What::Nested) && !self.is_foreign(number) {
                self.slot(number).state |= bit::RUNG | bit::KERNEL;
                self.put_on_list(number);
            }
        }
    }

    /// How long to sleep at most for what is on the list.
    pub(crate) fn slice(&mut self) -> Option<u64> {
        (0..self.listed()).fold(None, |slice, position| {
            let number = self.at(position);
            check::sooner(slice, self.slice_of(number))
        })
    }

    /// The same for one registration.
    fn slice_of(&mut self, number: u32) -> Option<u64> {
        if self.is_foreign(number) {
            return None;
        }
        let (slot, held) = self.slot_and_held(number);
        match (slot.what(), held) {
            (What::Nested, Some(held)) => nested::slice(&held.clone()),
            (_, held) => held.and_then(|held| held.end()).and_then(check::slice),
        }
    }

    /// Wakes one thread that still sleeps in this epoll, if bytes are held back somewhere: the returning caller may
    /// have been the only one that knew when they are due.
    pub(crate) fn leave_slices(&mut self) {
        if self.sleepers == 0 {
            return;
        }
        for position in 0..self.listed() {
            let number = self.at(position);
            if self.is_foreign(number) || self.slot(number).state & bit::SPENT != 0 {
                continue;
            }
            let held_back = self.end(number).is_some_and(|end| end.held_for().is_some());
            if held_back && control::kick(self, number) {
                return;
            }
        }
    }
}
