//! An epoll of the library that reports new doorbell bytes, and ignores bytes that are already
//! queued there.
//!
//! It watches placeholders edge-triggered. A call sleeps on it where a byte must stay for another
//! waiter of the same end, and would end the sleep at once.

use std::ffi::c_int;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::descriptor::in_flight::{self, InFlight};
use crate::system::multiplexing::{self, Timeout};
use crate::system::sys::Errno;
use crate::system::{kernel, seccomp};

/// Epolls that are kept for the next sleep: as many as have been seen to sleep so at one time in
/// programs with a reading and a writing thread.
const KEPT: usize = 4;

static IDLE: [AtomicI32; KEPT] = [const { AtomicI32::new(0) }; KEPT];

/// An epoll of the library that watches placeholders for new bytes and for hang-ups.
#[derive(Debug)]
pub(crate) struct Edges {
    /// Its number.
    fd: c_int,
    /// The descriptor that was added last.
    last: c_int,
    added: u32,
}

impl Edges {
    /// One that watches nothing. None: none could be made.
    pub(crate) fn new() -> Option<Self> {
        if seccomp::is_restricted() {
            return None;
        }
        let idle = IDLE.iter().map(|place| place.swap(0, AcqRel)).find(|fd| *fd != 0);
        let fd = match idle {
            Some(number) => number - 1,
            None => {
                let new = multiplexing::epoll_create(libc::EPOLL_CLOEXEC).ok()? as c_int;
                let high = InFlight::high_duplicate(new).map(InFlight::into_number);
                let _ = kernel::close(new);
                high?
            }
        };
        Some(Self { fd, last: -1, added: 0 })
    }

    /// In the child of a fork, which has closed them.
    pub(crate) fn forget_all() {
        IDLE.iter().for_each(|place| place.store(0, Relaxed));
    }

    /// Watches a placeholder, too. False: the kernel refuses.
    pub(crate) fn add(&mut self, fd: c_int) -> bool {
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
        let event = libc::epoll_event { events, u64: 0 };
        // SAFETY: the event outlives the call.
        match unsafe { multiplexing::epoll_ctl(self.fd, libc::EPOLL_CTL_ADD, fd, &raw const event) } {
            Ok(_) => {
                (self.last, self.added) = (fd, self.added + 1);
                true
            }
            Err(errno) => errno == libc::EEXIST,
        }
    }

    /// The descriptor that becomes readable.
    pub(crate) const fn fd(&self) -> c_int {
        self.fd
    }

    /// Discards the events so far: to be called before the caller arms.
    pub(crate) fn discard_reported(&self) {
        let _ = self.wait(Some(0));
    }

    /// Sleeps until a byte is written, or an end hangs up or is shut down. The events of one
    /// placeholder; none at the end of the time.
    ///
    /// # Errors
    /// `EINTR`.
    pub(crate) fn wait(&self, timeout: Timeout) -> Result<Option<u32>, Errno> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        let room = events.len() as c_int;
        // SAFETY: so many entries.
        let got = unsafe {
            multiplexing::epoll_wait(self.fd, events.as_mut_ptr(), room, timeout, std::ptr::null())
        }?;
        Ok(events.get(..got).and_then(|events| events.first()).map(|event| event.events))
    }

    /// Whether it watches nothing any more.
    fn clear(&self) -> bool {
        // SAFETY: no event is read.
        let remove =
            || unsafe { multiplexing::epoll_ctl(self.fd, libc::EPOLL_CTL_DEL, self.last, std::ptr::null()) };
        self.added == 0 || self.added == 1 && remove().is_ok()
    }
}

impl Drop for Edges {
    fn drop(&mut self) {
        let number = self.fd + 1;
        let free = |place: &AtomicI32| place.compare_exchange(0, number, AcqRel, Relaxed).is_ok();
        if !(self.clear() && IDLE.iter().any(free)) {
            in_flight::close(self.fd);
        }
    }
}
