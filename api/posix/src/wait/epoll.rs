//! `epoll_wait` and its like.
//!
//! 1. A registration is *hot* (on the list: looked at in every scan, not armed) or *cold* (armed, looked at since, found by the kernel). SlotKind
//!    is registered, modified or rung becomes hot. SlotKind was not ready for [`COLD`] sleeps of the thread cools, of which a long sleep is
//!    several and many polls in vain are one ([`crate::readiness::polling`]); beyond [`HOT`] entries whatever is not ready cools at once.
//! 2. A call scans the list. If it finds something it returns that: no system call. If several are ready, those that became so first come
//!    first, as on the kernel's ready list ([`Registrations::find_ready`]): a server that was busy serves its clients in the order in which they asked.
//! 3. The kernel is asked without waiting before the scan, so that its descriptors and listeners are reported beside streams, if it had some the last time,
//!    if this process has made a call of the kernel's since (which may have made one ready), or if that was not done for [`KERNEL_EVERY`]. So what
//!    is left out of a call that reports streams can only be what somebody else did within those microseconds. If the kernel's
//!    fill the array, it is the streams' turn in the next call. SlotKind it reports of our own goes on the list; the rest is the program's.
//! 4. Nothing found: look on for a while ([`crate::connection::spin`]), unless a mask is given (it has to apply from here on), the time is up, or the epoll is shared.
//! 5. Then arm everything on the list, scan once more, and sleep in the kernel for what is left of the time. Awake, take the requests back, and scan. SlotKind
//!    service cores serve is armed with the number of this sleep, so that they ring once for all of it; that stays armed, since nobody rings for it.
//! 6. An epoll is *shared* from when a second thread waits in it, a child of fork uses it too, or somebody watches it from outside. SlotKind is
//!    reported there is armed again at once, because the next to come may not be this thread.
//! 7. Ready streams win over a signal, as ready descriptors do in the kernel.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

use sietch_ring::stream::arrivals::cycles;

use crate::connection::spin::{LONGEST, Pause, Spun, learned};
use crate::descriptor::description::Held;
use crate::descriptor::table;
use crate::readiness::limits::{COLD, HOT};

use crate::readiness::set::shared::Flag;
use crate::readiness::set::{EpollSet, Locked, with_streams};
use crate::signal::{handlers, longjmp, user_memory};
use crate::system::multiplexing::{Mask, Timeout};
use crate::system::sys::Outcome;
use crate::system::{kernel, originals};
use crate::wait::output::Output;

use crate::wait::sliced;

/// The same while nothing is found.
const KERNEL_EVERY_IDLE: u64 = 1 << 15;

/// Entries at most (fs/eventpoll.c, `EP_MAX_EVENTS`).
const MOST: usize = c_int::MAX as usize / size_of::<libc::epoll_event>();

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
        // SAFETY: the jump abandons the frame that owns this value, so this is its only use and drop.
        let Self { held, counted, set, .. } = unsafe { this.read() };
        if counted.get() {
            set.missed();
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
            sliced::epoll_wait(self.epfd, to, c_int::try_from(left).unwrap_or(c_int::MAX), timeout, mask)
        }
    }

    fn ask(&mut self, locked: &mut Locked<'_>, now: u64, mask: Mask) -> Outcome {
        (locked.asked, locked.asked_at_call) = (now, originals::calls());
        let reported = self.kernel(Some(0), mask)?;
        locked.sort(&mut self.out, reported);
        Ok(self.out.filled)
    }

    fn run(mut self) -> Outcome {
        let set = self.set;
        let Some(mut locked) = set.lock() else { return Err(libc::EINTR) };
        locked.epfd = self.epfd;
        locked.recover_missed(set.take_missed());
        if locked.sleepers != 0 && !locked.shared.is_yes() {
            locked.share();
        }
        if locked.left_open != 0 {
            locked.sweep();
        }
        let now = cycles();
        let due = locked.is_needed(now);
        let streams_first = std::mem::take(&mut locked.streams_first);
        if due && !streams_first {
            self.ask(&mut locked, now, ptr::null())?;
            if self.out.is_full() {
                locked.streams_first = true;
                return self.out.answer_now();
            }
        }
        if locked.listed() > HOT {
            locked.prepare_sleep(0);
        }
        locked.scan(&mut self.out);
        let asked = if due && streams_first && !self.out.is_full() {
            self.ask(&mut locked, now, ptr::null())
        } else {
            Ok(0)
        };
        if self.out.filled == 0 {
            asked?;
        }
        if let Some(answer) = self.out.answer() {
            locked.wake_for_held_bytes();
            return answer;
        }
        if self.timeout == Some(0) {
            if !due || !self.mask.is_null() {
                self.ask(&mut locked, now, self.mask)?;
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

    /// One look while spinning.
    #[inline]
    fn check(&mut self) -> bool {
        let set = self.set;
        let Some(mut locked) = set.lock() else { return false };
        let now = cycles();
        if now.wrapping_sub(locked.asked) > KERNEL_EVERY_IDLE {
            // An error will be met again by who sleeps.
            let _ = self.ask(&mut locked, now, ptr::null());
        }
        locked.scan(&mut self.out);
        let is_clear = self.out.answer().is_some();
        if is_clear {
            locked.wake_for_held_bytes();
        }
        is_clear
    }

    /// Arms, looks once more, sleeps, and looks again, until there is something or the time is up.
    fn sleep(&mut self, pause: Pause<'_>) -> Outcome {
        let set = self.set;
        let until = self.timeout.map(|timeout| pause.began().saturating_add(timeout));
        loop {
            let Some(mut locked) = set.lock() else { return Err(libc::EINTR) };
            if locked.sleepers != 0 && !locked.shared.is_yes() {
                locked.share();
            }
            let now = cycles();
            let numbered = !locked.shared.is_yes() && locked.listed() > 1;
            if numbered {
                // No two sleeps of this process have the same: it holds a lock, and the clock goes on.
                (locked.sleep, locked.numbered) =
                    (now << 16 | u64::from(sietch_ring::stream::thread()) & 0xffff, Flag::YES);
            }
            locked.sleeps = locked.sleeps.wrapping_add(1);
            let (ready, slice) = locked.prepare_sleep(COLD);
            locked.sleep = 0;
            if ready {
                locked.scan(&mut self.out);
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
                set.missed();
                self.out.keep_native(answer?);
                return self.out.answer().unwrap_or(Err(libc::EINTR));
            };
            self.counted.set(false);
            locked.sleepers = locked.sleepers.saturating_sub(1);
            locked.count_long_sleep(kernel::now().saturating_sub(slept_at));
            (locked.asked, locked.asked_at_call) = (cycles(), originals::calls());
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
/// `events` is writable for `most` entries, or for the kernel to refuse; `mask` is null or a signal set.
pub(crate) unsafe fn wait(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: Timeout,
    mask: Mask,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        wait_if_ours(epfd, events, most, timeout, mask)
            .unwrap_or_else(|| sliced::epoll_wait(epfd, events, most, timeout, mask))
    }
}

/// As [`wait`]; none if this is an epoll of kernel descriptors alone, or the kernel has to say what is wrong with the call.
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
    let room = usize::try_from(most).ok().filter(|room| (1..=MOST).contains(room))?;
    let held = table::find(epfd)?;
    let set = with_streams(&held)?;
    // The kernel judges such an address.
    if !user_memory::is_address(events, room * size_of::<libc::epoll_event>()) {
        return None;
    }
    if !user_memory::is_writable(events, size_of::<libc::epoll_event>()) {
        return Some(Err(libc::EFAULT));
    }
    // SAFETY: the caller's promise.
    Some(unsafe { wait_with(held, set, epfd, (events, room), timeout, mask) })
}

/// Waits. An array that is not there any more when there is something to say is a fault.
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
