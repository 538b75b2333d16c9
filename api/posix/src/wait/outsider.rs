//! A thread that waits in an epoll of kernel descriptors alone.
//!
//! It waits in the C library's call. Another thread may register a stream meanwhile: then the
//! sleeper is counted as one of ours, and what the kernel reports has to be sorted.

use std::ffi::c_int;

use std::sync::atomic::Ordering::SeqCst;

use crate::descriptor::description::{Held, Kind};
use crate::descriptor::table;
use crate::readiness::set::with_streams;
use crate::signal::longjmp::{self, Written};
use crate::system::kernel;
use crate::system::multiplexing::{Mask, Timeout};
use crate::system::sys::Outcome;
use crate::wait::epoll::wait;
use crate::wait::output::Output;

/// A thread that waits in an epoll of kernel descriptors alone, in the C library's call. If another registers a stream there meanwhile, what the
/// kernel reports has to be sorted, and the sleeper is counted as one of ours ([`register_outsiders`]).
#[derive(Debug)]
pub(crate) struct Outsider {
    held: Held,
    epfd: c_int,
    until: Option<u64>,
}

impl Outsider {
    /// Begins to wait. None: it is no epoll that the library knows, or there are streams in it by now.
    #[inline]
    pub(crate) fn begin(epfd: c_int, timeout: Timeout) -> Option<Self> {
        let held = table::find(epfd).filter(|held| held.kind() == Kind::Epoll)?;
        let until = timeout.filter(|time| *time != 0).map(|time| kernel::now().saturating_add(time));
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
        longjmp::written(std::ptr::from_ref(self))
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
    pub(crate) unsafe fn ended(
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
        let left = self.until.map(|until| until.saturating_sub(kernel::now())).or(timeout);
        // SAFETY: the caller's promise.
        Some(unsafe { wait(self.epfd, events, most, left, mask) })
    }
}

impl longjmp::Leave for Outsider {
    unsafe fn leave(this: *const Self) {
        // SAFETY: the jump abandons the frame that owns this value, so this is its only use and drop.
        let outsider = unsafe { this.read() };
        outsider.leave();
    }
}
