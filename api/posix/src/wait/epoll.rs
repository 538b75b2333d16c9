//! `epoll_wait` and its variants.
//!
//! 1. A registration is *hot* (on the list: checked in every scan, not armed) or *cold* (armed,
//!    checked since, reported by the kernel). What is registered, modified or notified becomes hot.
//!    What was not ready for [`COOL_AFTER`] sleeps of the
//!    thread cools. A long sleep counts as several; many polls in vain count as one
//!    ([`crate::readiness::polling`]). Beyond [`MAX_HOT`] entries whatever is not ready cools at
//!    once.
//! 2. A call scans the list and returns what it finds: no system call. If several are ready, the
//!    earliest come first, as on the kernel's ready list ([`crate::readiness::peek`]). So a
//!    server that was busy serves its clients in the order of their requests.
//! 3. The call polls the kernel without waiting before the scan, so that kernel descriptors and
//!    listeners are reported beside streams. This happens in three cases. The kernel had events the
//!    last time; this process has made a kernel call since, which may have made one ready; or the
//!    last poll is [`KERNEL_EVERY`](crate::wait::scan::KERNEL_EVERY) ago. So a call that reports
//!    streams can only miss what others did within those microseconds. If the kernel's events fill
//!    the array, the next call serves streams first. Reported placeholders go on the list; the
//!    other events are the program's.
//! 4. If nothing is ready, poll for a while ([`crate::connection::spin`]). Three calls do not poll:
//!    one with a mask, which has to apply from here on; one whose time is up; and one of a shared
//!    epoll.
//! 5. Then arm everything on the list, scan once more, and sleep in the kernel for the rest of the
//!    time. After the sleep, disarm and scan. Connections that service cores serve are armed with
//!    the number of this sleep, so that a core notifies once for all of them. They stay armed,
//!    because no notification is sent for each of them.
//! 6. An epoll is *shared* once a second thread waits in it, a child of fork uses it too, or
//!    another epoll or poll watches it. What is reported there is armed again at once, because the
//!    next waiter may be another thread. If several processes use it, all registrations are checked
//!    ten times a second: a report may have ended with its receiver
//!    ([`recheck`](crate::readiness::settle)).
//! 7. Ready streams win over a signal, as ready descriptors do in the kernel.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

use sietch_ring::stream::arrivals::cycles;

use crate::connection::spin::{LONGEST, Pause, Spun, learned};
use crate::descriptor::description::Held;
use crate::descriptor::table;
use sietch_stream::limits::{COOL_AFTER, MAX_HOT};

use crate::readiness::set::shared::Flag;
use crate::readiness::set::{EpollSet, Locked, with_streams};
use crate::signal::{handlers, longjmp, user_memory};
use crate::system::multiplexing::{Mask, Timeout};
use crate::system::sys::Outcome;
use crate::system::{kernel, originals};
use crate::wait::output::Output;

use crate::wait::sliced;

/// [`KERNEL_EVERY`](crate::wait::scan::KERNEL_EVERY) while nothing is found.
const KERNEL_EVERY_IDLE: u64 = 1 << 15;

/// Entries at most (fs/eventpoll.c, `EP_MAX_EVENTS`).
const MAX_EVENTS: usize = c_int::MAX as usize / size_of::<libc::epoll_event>();

/// One call.
struct Call {
    /// The epoll's description, for as long as the call takes.
    held: Held,
    /// Whether it is counted among the sleepers.
    counted: Cell<bool>,
    set: &'static EpollSet,
    epfd: c_int,
    out: Output,
    timeout: Timeout,
    mask: Mask,
    /// Handlers that had run when it began.
    seen: u32,
}

impl longjmp::Abandon for Call {
    unsafe fn abandon(this: *const Self) {
        // SAFETY: the jump abandons the frame that owns this value, so this is its only use and
        // drop.
        let Self { held, counted, set, .. } = unsafe { this.read() };
        if counted.get() {
            set.missed(true);
        }
        drop(held);
    }
}

impl Call {
    /// Waits in the kernel's epoll, and puts its events behind those that are in the array already.
    fn kernel(&mut self, timeout: Timeout, mask: Mask) -> Outcome {
        let left = self.out.room - self.out.filled;
        if left == 0 {
            return Ok(0);
        }
        // SAFETY: the rest of the program's array.
        unsafe {
            let to = self.out.to.add(self.out.filled);
            sliced::epoll_wait(self.epfd, to, c_int::try_from(left).unwrap_or(c_int::MAX), timeout, mask)
        }
    }

    fn poll_kernel(&mut self, locked: &mut Locked<'_>, now: u64, mask: Mask) -> Outcome {
        (locked.kernel_polled_at, locked.calls_at_kernel_poll) = (now, originals::calls());
        let reported = self.kernel(Some(0), mask)?;
        locked.sort(&mut self.out, reported);
        Ok(self.out.filled)
    }

    /// Polls the kernel after a scan. A stream that it reports is scanned if there is nothing else
    /// to report: no registration is reported twice in one call. Otherwise it wakes another thread,
    /// or waits for the next call.
    fn poll_kernel_behind_streams(&mut self, locked: &mut Locked<'_>, now: u64) -> Outcome {
        let polled = self.poll_kernel(locked, now, ptr::null());
        if self.out.filled == 0 {
            polled?;
            locked.scan(&mut self.out);
        } else {
            locked.pass_on(&self.out);
        }
        Ok(self.out.filled)
    }

    fn run(mut self) -> Outcome {
        let set = self.set;
        let Some(mut locked) = set.lock() else { return Err(libc::EINTR) };
        locked.epfd = self.epfd;
        if let Some(counted) = set.take_missed() {
            locked.recover_missed(counted);
        }
        locked.recheck();
        if locked.sleepers != 0 && !locked.shared.is_yes() {
            locked.share();
        }
        if locked.left_open != 0 {
            locked.sweep();
        }
        let now = cycles();
        let due = locked.is_due(now);
        let streams_first = std::mem::take(&mut locked.streams_first);
        if due && !streams_first {
            self.poll_kernel(&mut locked, now, ptr::null())?;
            if self.out.is_full() {
                locked.streams_first = true;
                locked.pass_on(&self.out);
                return self.out.answer_now();
            }
        }
        if locked.listed() > MAX_HOT {
            locked.prepare_sleep(0);
        }
        locked.scan(&mut self.out);
        if due && streams_first && !self.out.is_full() {
            self.poll_kernel_behind_streams(&mut locked, now)?;
        }
        if let Some(answer) = self.out.answer() {
            locked.wake_for_held_bytes();
            return answer;
        }
        if self.timeout == Some(0) {
            if !due || !self.mask.is_null() {
                self.poll_kernel(&mut locked, now, self.mask)?;
                locked.scan(&mut self.out);
            }
            if self.out.filled == 0 {
                locked.cool_polled();
            }
            locked.wake_for_held_bytes();
            return self.out.answer_now();
        }
        locked.polls = 0;
        let spins = self.mask.is_null() && !locked.shared.is_yes() && locked.listed() != 0;
        let (peer, sockets) = (locked.peer, locked.watched);
        let _registered = longjmp::registered(&raw const self);
        drop(locked);
        learned(|word| {
            let pause = Pause::begin_of(word, sockets);
            if spins {
                let most = self.timeout.unwrap_or(LONGEST);
                let seen = self.seen;
                match pause.poll(peer, most, seen, || self.check()) {
                    Spun::Ready => {
                        pause.finished();
                        return self.out.answer_now();
                    }
                    Spun::Interrupted => return Err(libc::EINTR),
                    Spun::Sleep => {}
                }
            }
            self.sleep(pause)
        })
    }

    /// One check while polling.
    #[inline]
    fn check(&mut self) -> bool {
        let set = self.set;
        let Some(mut locked) = set.lock() else { return false };
        let now = cycles();
        if now.wrapping_sub(locked.kernel_polled_at) > KERNEL_EVERY_IDLE {
            // The sleep would return an error again.
            let _ = self.poll_kernel(&mut locked, now, ptr::null());
        }
        locked.scan(&mut self.out);
        let is_clear = self.out.answer().is_some();
        if is_clear {
            locked.wake_for_held_bytes();
        }
        is_clear
    }

    /// Arms, checks once more, sleeps, and checks again, until something is ready or the time is
    /// up.
    fn sleep(&mut self, pause: Pause<'_>) -> Outcome {
        let set = self.set;
        let until = self.timeout.map(|timeout| pause.began().saturating_add(timeout));
        loop {
            let Some(mut locked) = set.lock() else { return Err(libc::EINTR) };
            locked.recheck();
            if locked.sleepers != 0 && !locked.shared.is_yes() {
                locked.share();
            }
            let now = cycles();
            let numbered = !locked.shared.is_yes() && locked.listed() > 1;
            if numbered {
                // No two sleeps of this process have the same: the thread holds a lock, and the
                // clock advances.
                (locked.sleep, locked.numbered) =
                    (now << 16 | u64::from(sietch_ring::stream::thread()) & 0xffff, Flag::YES);
            }
            locked.sleeps = locked.sleeps.wrapping_add(1);
            let (ready, slice) = locked.prepare_sleep(COOL_AFTER);
            locked.sleep = 0;
            if ready {
                locked.scan(&mut self.out);
                if self.out.filled == 0 {
                    // A registration that a relative has changed may be ready. It would keep this
                    // thread awake.
                    locked.report_earliest(&mut self.out);
                }
                locked.finish_sleep(numbered);
                if let Some(answer) = self.out.answer() {
                    locked.wake_for_held_bytes();
                    pause.finished();
                    return answer;
                }
                // Another thread has taken it. Nothing is armed any more.
                continue;
            }
            locked.sleepers = locked.sleepers.saturating_add(1);
            self.counted.set(true);
            drop(locked);

            let slept_at = kernel::now();
            let left = until.map(|until| until.saturating_sub(slept_at));
            let sliced = slice.is_some_and(|slice| left.is_none_or(|left| left > slice));
            let answer = self.kernel(if sliced { slice } else { left }, self.mask);

            let Some(mut locked) = set.lock() else {
                self.counted.set(false);
                set.missed(true);
                self.out.keep_native(answer?);
                return self.out.answer().unwrap_or(Err(libc::EINTR));
            };
            self.counted.set(false);
            locked.sleepers = locked.sleepers.saturating_sub(1);
            locked.count_long_sleep(kernel::now().saturating_sub(slept_at));
            (locked.kernel_polled_at, locked.calls_at_kernel_poll) = (cycles(), originals::calls());
            locked.finish_sleep(numbered);
            locked.sort(&mut self.out, answer.unwrap_or(0));
            locked.scan(&mut self.out);
            let outcome = self.out.answer().or(match answer {
                Err(errno) => Some(Err(errno)),
                Ok(0) if !sliced => Some(Ok(0)),
                Ok(_) if left == Some(0) => Some(Ok(0)),
                // Between two sleeps of one call: it would have ended the kernel's.
                Ok(_) if handlers::count() != self.seen => Some(Err(libc::EINTR)),
                Ok(_) => None,
            });
            if let Some(outcome) = outcome {
                locked.wake_for_held_bytes();
                drop(locked);
                if self.out.filled != 0 {
                    pause.finished();
                }
                return outcome;
            }
        }
    }
}

/// `epoll_wait(2)`, `epoll_pwait(2)`, `epoll_pwait2(2)`.
///
/// # Safety
/// `events` is writable for `most` entries, or for the kernel to refuse; `mask` is null or a signal
/// set.
pub(crate) unsafe fn wait(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: Timeout,
    mask: Mask,
) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        wait_if_ours(epfd, events, most, timeout, mask).unwrap_or_else(|| {
            let reported = sliced::epoll_wait(epfd, events, most, timeout, mask)?;
            Output::restore_data(events, reported);
            Ok(reported)
        })
    }
}

/// As [`wait`]; none if this is an epoll of kernel descriptors alone, or if the kernel has to
/// report an error of the call.
///
/// # Safety
/// As [`wait`].
#[inline]
pub(crate) unsafe fn wait_if_ours(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: Timeout,
    mask: Mask,
) -> Option<Outcome> {
    let room = usize::try_from(most).ok().filter(|room| (1..=MAX_EVENTS).contains(room))?;
    let held = table::find(epfd)?;
    let set = with_streams(&held)?;
    // The kernel would not notice: it has no event to write there.
    if !user_memory::is_address(events, room * size_of::<libc::epoll_event>())
        || !user_memory::is_writable(events, size_of::<libc::epoll_event>())
    {
        return Some(Err(libc::EFAULT));
    }
    // SAFETY: the caller upholds this function's contract.
    Some(unsafe { wait_with(held, set, epfd, (events, room), timeout, mask) })
}

/// Waits. If the array is no longer mapped when there is something to report, that is a fault.
///
/// # Safety
/// As [`wait`], of an array with so many entries.
#[inline]
pub(crate) unsafe fn wait_with(
    held: Held,
    set: &'static EpollSet,
    epfd: c_int,
    (to, room): (*mut libc::epoll_event, usize),
    timeout: Timeout,
    mask: Mask,
) -> Outcome {
    let (out, counted) = (Output { to, room, filled: 0 }, Cell::new(false));
    Call { held, counted, set, epfd, out, timeout, mask, seen: handlers::count() }.run()
}
