//! `epoll_wait` and its like.
//!
//! 1. A registration is *hot* (on the list: looked at in every scan, not armed) or *cold* (armed, looked at since, found by the kernel). What
//!    is registered, modified or rung becomes hot. What was not ready for [`COLD`] sleeps of the thread cools, of which a long sleep is
//!    several and many polls in vain are one ([`super::polling`]); beyond [`HOT`] entries whatever is not ready cools at once.
//! 2. A call scans the list. If it finds something it returns that: no system call. If several are ready, those that became so first come
//!    first, as on the kernel's ready list ([`Body::find_ready`]): a server that was busy serves its clients in the order in which they asked.
//! 3. The kernel is asked without waiting before the scan, so that its descriptors and listeners are reported beside streams, if it had some the last time,
//!    if this process has made a call of the kernel's since (which may have made one ready), or if that was not done for [`KERNEL_EVERY`]. So what
//!    is left out of a call that reports streams can only be what somebody else did within those microseconds. If the kernel's
//!    fill the array, it is the streams' turn in the next call. What it reports of our own goes on the list; the rest is the program's.
//! 4. Nothing found: look on for a while ([`super::spin`]), unless a mask is given (it has to apply from here on), the time is up, or the epoll is shared.
//! 5. Then arm everything on the list, scan once more, and sleep in the kernel for what is left of the time. Awake, take the requests back, and scan. What
//!    service cores serve is armed with the number of this sleep, so that they ring once for all of it; that stays armed, since nobody rings for it.
//! 6. An epoll is *shared* from when a second thread waits in it, a child of fork uses it too, or somebody watches it from outside. What is
//!    reported there is armed again at once, because the next to come may not be this thread.
//! 7. Ready streams win over a signal, as ready descriptors do in the kernel.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, fence};

use sietch_ring::stream::End;

use super::hooks::interest_of;
use super::interest::{Body, Interest, Locked, TAG, TAG_MASK, What, bit};
use super::kernel::{Mask, Timeout};
use super::look::{Found, Here, cycles};
use super::shared::Flag;
use super::spin::{LONGEST, Pause, Spun};
use super::{control, kernel, look, nested, signals};
use crate::faults;
use crate::jump::{self, Written};
use crate::sys::Outcome;
use crate::table::{self, Held, Kind};
use crate::{real, sys};

/// Entries of the list beyond which whatever is not ready cools at once: a scan of so many takes about a microsecond.
pub const HOT: u32 = 256;
/// Sleeps of the thread in which an entry was not ready and after which it cools. Each costs some 100 nanoseconds for each entry, to arm it and look at it, and who sleeps has
/// to be rung anyway; what is hot saves its peer a system call of a microsecond or two if it speaks while the thread is awake.
pub const COLD: u32 = 8;
/// Nanoseconds of a sleep that count as one sleep more: a thread that is seldom awake saves its peers few system calls.
const AS_MANY_SLEEPS: u64 = 100_000;
/// Cycles between two questions to the kernel while streams are busy: some 100 microseconds, of which a question is a half percent.
pub const KERNEL_EVERY: u64 = 1 << 18;
/// The same while nothing is found.
const KERNEL_EVERY_IDLE: u64 = 1 << 15;
/// Registrations that are ready at once of which the order is known: more than most programs ask for in one call. Of more, the earliest.
const ORDERED: usize = 64;
/// Entries at most (fs/eventpoll.c, `EP_MAX_EVENTS`).
const MOST: usize = c_int::MAX as usize / size_of::<libc::epoll_event>();

thread_local! {
    /// What this thread has learnt about its waits.
    static LEARNT: AtomicU64 = const { AtomicU64::new(0) };
}

/// Runs `with` what the calling thread has learnt about its waits.
pub(super) fn learnt<R>(with: impl FnOnce(&AtomicU64) -> R) -> R {
    LEARNT.with(with)
}

/// The program's array, filled from the front.
#[derive(Debug)]
pub(super) struct Output {
    to: *mut libc::epoll_event,
    room: usize,
    filled: usize,
}

impl Output {
    /// Appends an event. False: the program's array ends before it says; then nothing more is appended.
    #[inline]
    fn push(&mut self, events: u32, data: u64) -> bool {
        if self.is_full() {
            return false;
        }
        // SAFETY: the program's array has `room` entries, or a fault is answered.
        if unsafe { faults::write_event(self.to.wrapping_add(self.filled), events, data) }.is_err() {
            self.room = self.filled;
            return false;
        }
        self.filled += 1;
        true
    }

    #[inline]
    const fn is_full(&self) -> bool {
        self.filled == self.room
    }

    /// An entry that the kernel has just written; nothing overtakes it. None: the array has gone since.
    fn reported(&mut self, index: usize) -> Option<libc::epoll_event> {
        // SAFETY: the program's array, and a fault is answered.
        let event = unsafe { faults::read_event(self.to.wrapping_add(index)) }.ok();
        if event.is_none() {
            self.room = self.filled;
        }
        event
    }

    /// What the call answers, if that is clear: how many events there are, or that the program's array is not there any more.
    #[inline]
    const fn answer(&self) -> Option<Outcome> {
        match (self.filled, self.room) {
            (0, 0) => Some(Err(libc::EFAULT)),
            (0, _) => None,
            (filled, _) => Some(Ok(filled)),
        }
    }

    /// The same of a call that does not wait.
    const fn answer_now(&self) -> Outcome {
        match self.answer() {
            Some(answer) => answer,
            None => Ok(0),
        }
    }

    /// Keeps only the program's own events of those that the kernel has just appended. For a caller that cannot
    /// get the lock, and so cannot interpret the library's.
    #[cold]
    fn natives(&mut self, reported: usize) {
        let first = self.filled;
        for index in first..first + reported {
            let Some(event) = self.reported(index) else { return };
            if event.u64 & TAG_MASK != TAG {
                let _ = self.push(event.events, event.u64);
            }
        }
    }
}

impl Body {
    /// Reports what is ready of the list, as far as there is room: what has been so longest first. Never inlined: a caller that sleeps is not
    /// to keep 4 KiB of the program's stack for it.
    ///
    /// What lies in a connection's memory is looked at once, here: that of each begins at a page, so the same lines of 50 connections do not find room
    /// beside each other in the first cache.
    #[inline(never)]
    fn scan(&mut self, out: &mut Output) {
        let keep_armed = self.shared.is_yes() || self.sleepers != 0;
        let mut found = [const { MaybeUninit::<Found>::uninit() }; ORDERED];
        let (mut count, mut here) = (0, None);
        for position in 0..self.listed() {
            let number = self.at(position);
            if keep_armed {
                self.arm(number);
            }
            if let Some(ready) = self.find_ready(number, || *here.get_or_insert_with(Here::look)) {
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
        // After each look: who is reported stands behind all that were found.
        let at = cycles().max(here.now);
        if found.is_sorted_by_key(|found| found.since) {
            (at..).zip(found).for_each(|(at, found)| self.tell_found(out, found, at, here));
        } else {
            self.tell_in_order(out, found, at, here);
        }
        if out.is_full() && self.sleepers != 0 {
            self.pass_on();
        }
    }

    /// Reports what was found ready, in the order in which it became so; what became so at once, in the order of the list.
    #[inline]
    fn tell_in_order(&mut self, out: &mut Output, found: &[Found], from: u64, here: Here) {
        let mut order = [const { MaybeUninit::<(u64, u32)>::uninit() }; ORDERED];
        for (place, (found, position)) in order.iter_mut().zip(found.iter().zip(0..)) {
            place.write((found.since, position));
        }
        let written = found.len().min(ORDERED);
        // SAFETY: so many were written above.
        let order =
            unsafe { std::slice::from_raw_parts_mut(order.as_mut_ptr().cast::<(u64, u32)>(), written) };
        order.sort_unstable();
        for (at, (_, position)) in (from..).zip(order.iter()) {
            self.tell_found(out, &found[*position as usize], at, here);
        }
    }

    /// Reports a registration with what it was found with, if there is room.
    #[inline]
    fn tell_found(&mut self, out: &mut Output, found: &Found, at: u64, here: Here) {
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

    /// As [`Body::scan`], where more than [`ORDERED`] are ready. Those on the list behind `unarmed` are not armed yet.
    #[inline(never)]
    fn scan_many(&mut self, out: &mut Output, keep_armed: bool, unarmed: u32) {
        let here = Here::look();
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
            at += u64::from(self.tell(out, number, at, here));
        }
        // Beyond those whose order is known, what is left in the order of the list.
        for position in 0..if found == ORDERED { self.listed() } else { 0 } {
            let number = self.at(position);
            if self.ordered_at(number) < here.now {
                at += u64::from(self.tell(out, number, at, here));
            }
        }
        if out.is_full() && self.sleepers != 0 {
            self.pass_on();
        }
    }

    /// Reports a registration if there is room and it is ready.
    fn tell(&mut self, out: &mut Output, number: u32, at: u64, here: Here) -> bool {
        if out.is_full() {
            return false;
        }
        let found = self.find_ready(number, || here);
        if let Some(found) = &found {
            self.tell_found(out, found, at, here);
        }
        found.is_some()
    }

    /// There was no room for everything, and others sleep: one of them gets the rest.
    #[cold]
    pub(super) fn pass_on(&mut self) {
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
    pub(super) fn settle(&mut self, cold: u32) -> (bool, Option<u64>) {
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
            slice = look::sooner(slice, longest);
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
    fn slept(&mut self, nanoseconds: u64) {
        let more = (nanoseconds / AS_MANY_SLEEPS).min(u64::from(COLD));
        self.sleeps = self.sleeps.wrapping_add(more as u32);
    }

    /// Takes back what [`Body::settle`] asked for, but for those that are not rung any more because this sleep was.
    fn unsettle(&mut self, numbered: bool) {
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
    fn make_up(&mut self, missed: u32) {
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
    pub(super) fn slice(&mut self) -> Option<u64> {
        (0..self.listed()).fold(None, |slice, position| {
            let number = self.at(position);
            look::sooner(slice, self.slice_of(number))
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
            (_, held) => held.and_then(|held| held.end()).and_then(look::slice),
        }
    }

    /// Wakes one thread that still sleeps in this epoll, if bytes are held back somewhere: the returning caller may
    /// have been the only one that knew when they are due.
    fn leave_slices(&mut self) {
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

    /// Sorts what the kernel has put behind `out`: ours on the list, the rest stays.
    fn sort(&mut self, out: &mut Output, reported: usize) {
        let first = out.filled;
        for index in first..first + reported {
            let Some(event) = out.reported(index) else { break };
            if event.u64 & TAG_MASK != TAG {
                let _ = out.push(event.events, event.u64);
            } else if let Some(number) = self.named(event.u64) {
                self.kernel_says(number, event.events);
            }
        }
        self.natives = out.filled != first;
    }

    /// Whether the kernel may have something of its own, or it is time to ask again.
    #[inline]
    fn is_due(&self, now: u64) -> bool {
        // Without streams the kernel is asked once, by who sleeps.
        self.watched != 0
            && (self.natives
                || self.asked_at_call != real::calls()
                || now.wrapping_sub(self.asked) > KERNEL_EVERY)
    }
}

/// One call.
struct Call {
    /// The epoll's description, for as long as the call takes.
    held: Held,
    /// Whether it is counted among the sleepers.
    counted: Cell<bool>,
    interest: &'static Interest,
    epfd: c_int,
    out: Output,
    timeout: Timeout,
    mask: Mask,
    /// Handlers that had run when it began.
    seen: u32,
}

impl jump::Leave for Call {
    unsafe fn leave(this: *const Self) {
        // SAFETY: the jump abandons the frame that owns this value, so this is its only use and drop.
        let Self { held, counted, interest, .. } = unsafe { this.read() };
        if counted.get() {
            interest.missed();
        }
        drop(held);
    }
}

impl Call {
    /// The kernel's epoll: what it has goes behind what there is.
    fn kernel(&mut self, timeout: Timeout, mask: Mask) -> Outcome {
        let left = self.out.room - self.out.filled;
        if left == 0 {
            return Ok(0);
        }
        // SAFETY: the rest of the program's array.
        unsafe {
            let to = self.out.to.add(self.out.filled);
            kernel::epoll_wait(self.epfd, to, c_int::try_from(left).unwrap_or(c_int::MAX), timeout, mask)
        }
    }

    fn ask(&mut self, body: &mut Locked<'_>, now: u64, mask: Mask) -> Outcome {
        (body.asked, body.asked_at_call) = (now, real::calls());
        let reported = self.kernel(Some(0), mask)?;
        body.sort(&mut self.out, reported);
        Ok(self.out.filled)
    }

    fn run(mut self) -> Outcome {
        let interest = self.interest;
        let Some(mut body) = interest.lock() else { return Err(libc::EINTR) };
        body.epfd = self.epfd;
        body.make_up(interest.take_missed());
        if body.sleepers != 0 && !body.shared.is_yes() {
            body.share();
        }
        if body.left != 0 {
            body.sweep();
        }
        let now = cycles();
        let due = body.is_due(now);
        let streams_first = std::mem::take(&mut body.streams_first);
        if due && !streams_first {
            self.ask(&mut body, now, ptr::null())?;
            if self.out.is_full() {
                body.streams_first = true;
                return self.out.answer_now();
            }
        }
        if body.listed() > HOT {
            body.settle(0);
        }
        body.scan(&mut self.out);
        let asked = if due && streams_first && !self.out.is_full() {
            self.ask(&mut body, now, ptr::null())
        } else {
            Ok(0)
        };
        if self.out.filled == 0 {
            asked?;
        }
        if let Some(answer) = self.out.answer() {
            body.leave_slices();
            return answer;
        }
        if self.timeout == Some(0) {
            if !due || !self.mask.is_null() {
                self.ask(&mut body, now, self.mask)?;
                body.scan(&mut self.out);
            }
            if self.out.filled == 0 {
                body.cool_polled();
            }
            body.leave_slices();
            return self.out.answer_now();
        }
        body.polls = 0;
        let spins = self.mask.is_null() && !body.shared.is_yes() && body.listed() != 0;
        let (peer, sockets) = (body.peer, body.watched);
        let _written = jump::written(&raw const self);
        drop(body);
        learnt(|word| {
            let pause = Pause::begin_of(word, sockets);
            if spins {
                let most = self.timeout.unwrap_or(LONGEST);
                let seen = self.seen;
                match pause.look(peer, most, seen, || self.look()) {
                    Spun::Ready => {
                        pause.ended();
                        return self.out.answer_now();
                    }
                    Spun::Interrupted => return Err(libc::EINTR),
                    Spun::Sleep => {}
                }
            }
            self.sleep(pause)
        })
    }

    /// One look while spinning.
    #[inline]
    fn look(&mut self) -> bool {
        let interest = self.interest;
        let Some(mut body) = interest.lock() else { return false };
        let now = cycles();
        if now.wrapping_sub(body.asked) > KERNEL_EVERY_IDLE {
            // An error will be met again by who sleeps.
            let _ = self.ask(&mut body, now, ptr::null());
        }
        body.scan(&mut self.out);
        let is_clear = self.out.answer().is_some();
        if is_clear {
            body.leave_slices();
        }
        is_clear
    }

    /// Arms, looks once more, sleeps, and looks again, until there is something or the time is up.
    fn sleep(&mut self, pause: Pause<'_>) -> Outcome {
        let interest = self.interest;
        let until = self.timeout.map(|timeout| pause.began().saturating_add(timeout));
        loop {
            let Some(mut body) = interest.lock() else { return Err(libc::EINTR) };
            if body.sleepers != 0 && !body.shared.is_yes() {
                body.share();
            }
            let now = cycles();
            let numbered = !body.shared.is_yes() && body.listed() > 1;
            if numbered {
                // No two sleeps of this process have the same: it holds a lock, and the clock goes on.
                (body.sleep, body.numbered) =
                    (now << 16 | u64::from(sietch_ring::stream::thread()) & 0xffff, Flag::YES);
            }
            body.sleeps = body.sleeps.wrapping_add(1);
            let (ready, slice) = body.settle(COLD);
            body.sleep = 0;
            if ready {
                body.scan(&mut self.out);
                body.unsettle(numbered);
                if let Some(answer) = self.out.answer() {
                    body.leave_slices();
                    pause.ended();
                    return answer;
                }
                // Another thread has taken it. Nothing is armed any more.
                continue;
            }
            body.sleepers = body.sleepers.saturating_add(1);
            self.counted.set(true);
            drop(body);

            let slept_at = sys::now();
            let left = until.map(|until| until.saturating_sub(slept_at));
            let sliced = slice.is_some_and(|slice| left.is_none_or(|left| left > slice));
            let answer = self.kernel(if sliced { slice } else { left }, self.mask);

            let Some(mut body) = interest.lock() else {
                self.counted.set(false);
                interest.missed();
                self.out.natives(answer?);
                return self.out.answer().unwrap_or(Err(libc::EINTR));
            };
            self.counted.set(false);
            body.sleepers = body.sleepers.saturating_sub(1);
            body.slept(sys::now().saturating_sub(slept_at));
            (body.asked, body.asked_at_call) = (cycles(), real::calls());
            body.unsettle(numbered);
            body.sort(&mut self.out, answer.unwrap_or(0));
            body.scan(&mut self.out);
            let outcome = self.out.answer().or(match answer {
                Err(errno) => Some(Err(errno)),
                Ok(0) if !sliced => Some(Ok(0)),
                Ok(_) if left == Some(0) => Some(Ok(0)),
                // Between two sleeps of one call: it would have ended the kernel's.
                Ok(_) if signals::count() != self.seen => Some(Err(libc::EINTR)),
                Ok(_) => None,
            });
            if let Some(outcome) = outcome {
                body.leave_slices();
                drop(body);
                if self.out.filled != 0 {
                    pause.ended();
                }
                return outcome;
            }
        }
    }
}

/// `epoll_wait(2)`, `epoll_pwait(2)`, `epoll_pwait2(2)`.
///
/// # Safety
/// `events` is writable for `most` entries, or for the kernel to refuse; `mask` is null or a signal set.
pub unsafe fn wait(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: Timeout,
    mask: Mask,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        wait_if_ours(epfd, events, most, timeout, mask)
            .unwrap_or_else(|| kernel::epoll_wait(epfd, events, most, timeout, mask))
    }
}

/// As [`wait`]; none if this is an epoll of kernel descriptors alone, or the kernel has to say what is wrong with the call.
///
/// # Safety
/// As [`wait`].
#[inline]
pub unsafe fn wait_if_ours(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: Timeout,
    mask: Mask,
) -> Option<Outcome> {
    let room = usize::try_from(most).ok().filter(|room| (1..=MOST).contains(room))?;
    let held = table::find(epfd)?;
    let interest = with_streams(&held)?;
    // The kernel judges such an address.
    if !sys::is_address(events, room * size_of::<libc::epoll_event>()) {
        return None;
    }
    if !faults::is_writable(events, size_of::<libc::epoll_event>()) {
        return Some(Err(libc::EFAULT));
    }
    // SAFETY: the caller's promise.
    Some(unsafe { wait_with(held, interest, epfd, (events, room), timeout, mask) })
}

/// Waits. An array that is not there any more when there is something to say is a fault.
///
/// # Safety
/// As [`wait`], of an array with so many entries.
#[inline]
pub(super) unsafe fn wait_with(
    held: Held,
    interest: &'static Interest,
    epfd: c_int,
    (to, room): (*mut libc::epoll_event, usize),
    timeout: Timeout,
    mask: Mask,
) -> Outcome {
    let (out, counted) = (Output { to, room, filled: 0 }, Cell::new(false));
    Call { held, counted, interest, epfd, out, timeout, mask, seen: signals::count() }.run()
}

/// A thread that waits in an epoll of kernel descriptors alone, in the C library's call. If another registers a stream there meanwhile, what the
/// kernel reports has to be sorted, and the sleeper is counted as one of ours ([`register_outsiders`]).
#[derive(Debug)]
pub struct Outsider {
    held: Held,
    epfd: c_int,
    until: Option<u64>,
}

impl Outsider {
    /// Begins to wait. None: it is no epoll that the library knows, or there are streams in it by now.
    #[inline]
    pub fn begin(epfd: c_int, timeout: Timeout) -> Option<Self> {
        let held = table::find(epfd).filter(|held| held.kind() == Kind::Epoll)?;
        let until = timeout.filter(|time| *time != 0).map(|time| sys::now().saturating_add(time));
        held.outside.fetch_add(1, SeqCst);
        let outsider = Self { held, epfd, until };
        if with_streams(&outsider.held).is_some() {
            outsider.leave();
            return None;
        }
        Some(outsider)
    }

    /// Has itself ended by a handler that jumps out of the call. It stays where it is as long as the answer lives.
    pub(crate) fn written(&self) -> Written {
        jump::written(std::ptr::from_ref(self))
    }

    /// Takes itself back, here or where [`register_outsiders`] has counted it.
    fn leave(&self) {
        let counted = self.held.outside.fetch_update(SeqCst, SeqCst, |count| count.checked_sub(1));
        if counted.is_err()
            && let Some(interest) = with_streams(&self.held)
            && let Some(mut body) = interest.lock()
        {
            body.sleepers = body.sleepers.saturating_sub(1);
        }
    }

    /// The kernel has answered; none if that stands.
    ///
    /// # Safety
    /// As [`wait`]; `answer` is what `epoll_wait` wrote into `events`.
    pub unsafe fn ended(
        self,
        answer: c_int,
        events: *mut libc::epoll_event,
        most: c_int,
        timeout: Timeout,
        mask: Mask,
    ) -> Option<Outcome> {
        self.leave();
        let interest = with_streams(&self.held)?;
        let reported = usize::try_from(answer).ok().filter(|reported| *reported != 0)?;
        let mut out = Output { to: events, room: usize::try_from(most).ok()?, filled: 0 };
        let Some(mut body) = interest.lock() else {
            interest.missed();
            out.natives(reported);
            return Some(out.answer().unwrap_or(Err(libc::EINTR)));
        };
        body.epfd = self.epfd;
        body.sort(&mut out, reported);
        body.scan(&mut out);
        drop(body);
        if let Some(answer) = out.answer() {
            return Some(answer);
        }
        let left = self.until.map(|until| until.saturating_sub(sys::now())).or(timeout);
        // SAFETY: the caller's promise.
        Some(unsafe { wait(self.epfd, events, most, left, mask) })
    }
}

impl jump::Leave for Outsider {
    unsafe fn leave(this: *const Self) {
        // SAFETY: the jump abandons the frame that owns this value, so this is its only use and drop.
        let outsider = unsafe { this.read() };
        outsider.leave();
    }
}

/// The first stream is about to be registered: who sleeps in the epoll already counts from now on.
pub(super) fn register_outsiders(held: &Held) {
    let count = held.outside.swap(0, SeqCst);
    if count != 0
        && let Some(interest) = with_streams(held)
        && let Some(mut body) = interest.lock()
    {
        body.sleepers = body.sleepers.saturating_add(count);
    }
}

/// The interest of an epoll in which some of ours were registered.
pub(super) fn with_streams(held: &Held) -> Option<&'static Interest> {
    if held.kind() == Kind::Epoll { interest_of(held) } else { None }
}
