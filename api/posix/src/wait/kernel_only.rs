//! A thread that waits in an epoll of kernel descriptors alone.
//!
//! It waits in the C library's call. Another thread may register a stream meanwhile: then the
//! sleeper is counted as one of ours, and what the kernel reports has to be sorted.

use std::ffi::c_int;

use std::sync::atomic::Ordering::SeqCst;

use crate::descriptor::description::{Held, Kind};
use crate::descriptor::table;
use crate::readiness::set::with_streams;
use crate::signal::longjmp::{self, Registered};
use crate::system::kernel;
use crate::system::multiplexing::{Mask, Timeout};
use crate::system::sys::Outcome;
use crate::wait::epoll::wait;
use crate::wait::output::Output;

/// A thread that waits in an epoll of kernel descriptors alone, in the C library's call. If another
/// thread registers a stream there meanwhile, the kernel's events have to be sorted, and the
/// sleeper is counted as one of ours
/// ([`count_kernel_only_waiters`](crate::readiness::set::count_kernel_only_waiters)).
#[derive(Debug)]
pub(crate) struct KernelOnlyWaiter {
    held: Held,
    epfd: c_int,
    until: Option<u64>,
}

impl KernelOnlyWaiter {
    /// Begins to wait. None: the library does not know the epoll, or there are streams in it by
    /// now.
    #[inline]
    pub(crate) fn begin(epfd: c_int, timeout: Timeout) -> Option<Self> {
        let held = table::find(epfd).filter(|held| held.kind() == Kind::Epoll)?;
        let until = timeout.filter(|time| *time != 0).map(|time| kernel::now().saturating_add(time));
        held.kernel_only_waiters.fetch_add(1, SeqCst);
        let waiter = Self { held, epfd, until };
        if with_streams(&waiter.held).is_some() {
            waiter.leave();
            return None;
        }
        Some(waiter)
    }

    /// Registers itself for handlers that jump out of the call. It must stay where it is as long as
    /// the result exists.
    pub(crate) fn registered(&self) -> Registered {
        longjmp::registered(std::ptr::from_ref(self))
    }

    /// Uncounts itself. True: `count_kernel_only_waiters` has counted it as a sleeper, as which the
    /// caller must uncount it.
    fn uncount(&self) -> bool {
        self.held.kernel_only_waiters.fetch_update(SeqCst, SeqCst, |count| count.checked_sub(1)).is_err()
    }

    /// It does not wait any more, and has no event of the kernel.
    fn leave(&self) {
        if self.uncount()
            && let Some(set) = with_streams(&self.held)
        {
            match set.lock() {
                Some(mut locked) => locked.sleepers = locked.sleepers.saturating_sub(1),
                None => set.missed(true),
            }
        }
    }

    /// The kernel has returned; none if its answer is final.
    ///
    /// # Safety
    /// As [`wait`]; `answer` is what `epoll_wait` wrote into `events`.
    pub(crate) unsafe fn ended(
        self,
        answer: c_int,
        events: *mut libc::epoll_event,
        most: c_int,
        timeout: Timeout,
        mask: Mask,
    ) -> Option<Outcome> {
        let Some(reported) = usize::try_from(answer).ok().filter(|reported| *reported != 0) else {
            self.leave();
            return None;
        };
        let counted = self.uncount();
        let set = with_streams(&self.held)?;
        let mut out = Output { to: events, room: usize::try_from(most).ok()?, filled: 0 };
        let Some(mut locked) = set.lock() else {
            set.missed(counted);
            out.keep_native(reported);
            return Some(out.answer().unwrap_or(Err(libc::EINTR)));
        };
        locked.sleepers = locked.sleepers.saturating_sub(u32::from(counted));
        locked.epfd = self.epfd;
        locked.sort(&mut out, reported);
        locked.scan(&mut out);
        drop(locked);
        if let Some(answer) = out.answer() {
            return Some(answer);
        }
        let left = self.until.map(|until| until.saturating_sub(kernel::now())).or(timeout);
        // SAFETY: the caller upholds this function's contract.
        Some(unsafe { wait(self.epfd, events, most, left, mask) })
    }
}

impl longjmp::Abandon for KernelOnlyWaiter {
    unsafe fn abandon(this: *const Self) {
        // SAFETY: the jump abandons the frame that owns this value, so this is its only use and
        // drop.
        let waiter = unsafe { this.read() };
        waiter.leave();
    }
}
