//! Programs that poll: `epoll_wait` with a time-out of 0, again and again, instead of a sleep.
//!
//! 1. A thread that sleeps cools what was not ready for some sleeps
//!    ([`COOL_AFTER`](sietch_stream::limits::COOL_AFTER)). A program that polls never sleeps:
//!    its list would grow to [`MAX_HOT`](sietch_stream::limits::MAX_HOT) entries, and each poll
//!    would check all of them. Hence [`POLLS_PER_SLEEP`] polls that found nothing count as one
//!    sleep. What was not ready in the last sleeps is armed and checked once more; from then on the
//!    kernel reports it ([`Registrations::cool_polled`]).
//! 2. The peer makes a system call for each armed connection that it answers. A program that has
//!    just written to a connection polls for the answer. So the connection goes back on the list,
//!    and the peer need not notify ([`note_write`]). This holds only for a program that polls:
//!    where a thread sleeps, the request stays.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, fence};

use sietch_ring::stream::Endpoint;

use crate::descriptor::description::Held;
use crate::readiness::set::registrations::Registrations;
use crate::readiness::set::shared::{SlotKind, bit};
use crate::readiness::{check, set};
use sietch_stream::limits::{self, POLLS_PER_SLEEP};

/// Whether this process has ever cooled a connection by polling: other processes need not search
/// for one at each write.
static POLLS: AtomicBool = AtomicBool::new(false);

impl Registrations {
    /// A poll has found nothing: takes off the list what has long not been ready.
    #[inline]
    pub(crate) fn cool_polled(&mut self) {
        self.polls = self.polls.saturating_add(1);
        if self.polls >= POLLS_PER_SLEEP {
            self.cool();
        }
    }

    #[cold]
    fn cool(&mut self) {
        (self.polls, self.sleeps) = (1, self.sleeps.wrapping_add(1));
        if self.shared.is_yes() || self.sleepers != 0 {
            return;
        }
        let mut position = self.listed();
        while position != 0 {
            position -= 1;
            let number = self.at(position);
            let sleeps = self.sleeps;
            let slot = self.slot(number);
            if slot.kind() == SlotKind::Dormant {
                self.take_off_list(number);
                continue;
            }
            // One that a service core notifies once for all cools in the next sleep.
            let stays_armed = slot.kind() != SlotKind::Stream || slot.state & bit::AMONG_MANY != 0;
            if stays_armed || sleeps.wrapping_sub(slot.ready_at) < limits::COOL_AFTER {
                continue;
            }
            if self.is_unknown(number) || self.peek(number).0 != 0 {
                continue;
            }
            self.arm(number);
            fence(SeqCst);
            // A registration that must be checked again after a time stays.
            let stays = self.end(number).and_then(check::sleep_limit).is_some() || self.peek(number).0 != 0;
            if stays {
                self.disarm(number);
            } else {
                POLLS.store(true, Relaxed);
                self.take_off_list(number);
            }
        }
    }

    /// The program has written to what it polls for.
    fn expect_answer(&mut self, fd: c_int, held: &Held) {
        if self.polls == 0 || self.shared.is_yes() || self.sleepers != 0 {
            return;
        }
        let Some(number) = self.find(fd, held) else { return };
        let sleeps = self.sleeps;
        let slot = self.slot(number);
        if slot.kind() == SlotKind::Stream && slot.state & (bit::LISTED | bit::SILENT | bit::AMONG_MANY) == 0
        {
            slot.ready_at = sleeps;
            self.disarm(number);
            self.put_on_list(number);
        }
    }
}

/// Bytes were written to a connection.
#[inline]
pub(crate) fn note_write(fd: c_int, held: &Held, end: &Endpoint) {
    if POLLS.load(Relaxed) && !held.watchers.load(Acquire).is_null() && end.waiting() != 0 {
        expect_answer(fd, held);
    }
}

fn expect_answer(fd: c_int, held: &Held) {
    for set in set::each() {
        if let Some(mut locked) = set.lock() {
            locked.expect_answer(fd, held);
        }
    }
}
