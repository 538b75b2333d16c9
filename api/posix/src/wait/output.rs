//! The event array of an `epoll_wait` call.

use sietch_ring::guarded;

use crate::readiness::tag;
use crate::signal::user_memory;
use crate::system::sys::Outcome;

/// Bytes of the smallest page of any machine: either all of a page is mapped or nothing.
const SMALLEST_PAGE: usize = 4096;

/// The program's array, filled from the front.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) to: *mut libc::epoll_event,
    pub(crate) room: usize,
    pub(crate) filled: usize,
}

impl Output {
    /// Appends an event. False: the program's array ends before it says; then nothing more is
    /// appended.
    #[inline]
    pub(crate) fn push(&mut self, events: u32, data: u64) -> bool {
        if self.is_full() {
            return false;
        }
        // SAFETY: the program's array has `room` entries, or a fault is answered.
        if unsafe { user_memory::write_event(self.to.wrapping_add(self.filled), events, data) }.is_err() {
            self.room = self.filled;
            return false;
        }
        self.filled += 1;
        true
    }

    /// As [`Output::push`], of an event for which [`Output::has_room_for`] has found room.
    #[inline]
    pub(crate) fn push_one_of(&mut self, events: u32, data: u64) -> bool {
        if self.is_full() {
            return false;
        }
        // SAFETY: within the program's array, of which all can be addresses; a fault is answered.
        if unsafe { guarded::store_event(self.to.wrapping_add(self.filled), events, data) }.is_err() {
            self.room = self.filled;
            return false;
        }
        self.filled += 1;
        true
    }

    /// Whether so many more events fit, as far as the array is mapped now. Its first entry is.
    #[inline]
    pub(crate) fn has_room_for(&self, events: usize) -> bool {
        let (next, more) = (self.to.wrapping_add(self.filled), events * size_of::<libc::epoll_event>());
        let last = next.addr().wrapping_add(more).wrapping_sub(1);
        let is_same_page = (self.to.addr() ^ last) < SMALLEST_PAGE;
        self.room - self.filled >= events && (is_same_page || user_memory::is_writable(next, more))
    }

    /// Replaces an event that was appended. If the array is no longer mapped, nothing reads it.
    pub(crate) fn replace(&mut self, index: usize, events: u32, data: u64) {
        if index < self.filled {
            // SAFETY: as in `push`.
            let _ = unsafe { user_memory::write_event(self.to.wrapping_add(index), events, data) };
        }
    }

    #[inline]
    pub(crate) const fn is_full(&self) -> bool {
        self.filled == self.room
    }

    /// An entry that the kernel has just written and that nothing overwrites. None: the array is no
    /// longer mapped.
    pub(crate) fn reported(&mut self, index: usize) -> Option<libc::epoll_event> {
        // SAFETY: the program's array, and a fault is answered.
        let event = unsafe { user_memory::read_event(self.to.wrapping_add(index)) }.ok();
        if event.is_none() {
            self.room = self.filled;
        }
        event
    }

    /// The result of the call, if it is known: the number of events, or that the program's array is
    /// not mapped any more.
    #[inline]
    pub(crate) const fn answer(&self) -> Option<Outcome> {
        match (self.filled, self.room) {
            (0, 0) => Some(Err(libc::EFAULT)),
            (0, _) => None,
            (filled, _) => Some(Ok(filled)),
        }
    }

    /// The same for a call that does not wait.
    pub(crate) const fn answer_now(&self) -> Outcome {
        match self.answer() {
            Some(answer) => answer,
            None => Ok(0),
        }
    }

    /// Keeps only the program's own events of those that the kernel has just appended. For a caller
    /// that cannot get the lock, and so cannot interpret the library's.
    #[cold]
    pub(crate) fn keep_native(&mut self, reported: usize) {
        let first = self.filled;
        for index in first..first + reported {
            let Some(event) = self.reported(index) else { return };
            if let Some(own) = tag::own_data(event.u64) {
                let _ = self.push(event.events, own);
            }
        }
    }

    /// Gives the program its own data in all events that the kernel has put into the array, of an
    /// epoll in which none of ours are registered.
    ///
    /// # Safety
    /// The kernel has just written so many events there.
    #[inline]
    pub(crate) unsafe fn restore_data(events: *mut libc::epoll_event, reported: usize) {
        if tag::any_replaced() {
            let mut out = Self { to: events, room: reported, filled: reported };
            for index in 0..reported {
                if let Some(event) = out.reported(index)
                    && let Some(own) = tag::own_data(event.u64)
                {
                    out.replace(index, event.events, own);
                }
            }
        }
    }
}
