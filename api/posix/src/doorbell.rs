//! Bytes in the placeholder of an end, and sleeping beside bytes that may not be taken.
//!
//! 1. The other end writes a byte for each request ([`sietch_ring::stream::waiters`]). A byte means
//!    "look again" to everyone who sleeps at this end, in whatever call, thread or process. So all
//!    bytes are taken only where no other waiter is counted ([`empty`]); else one stays ([`thin`]),
//!    and not many more than [`MANY`], because a full placeholder takes no more.
//! 2. A sleep that the byte left for others would end at once is a sleep in an epoll that watches
//!    the placeholder edge-triggered ([`Edges`]): a byte that is written ends it, a byte that lies
//!    there does not. Such an epoll is one of this library's own descriptors, out of the program's
//!    way ([`Borrowed`]). Where none is to be had the caller sleeps in slices.

use std::ffi::c_int;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::borrowed::Borrowed;
use crate::end::End;
use crate::sys::{self, Errno};
use crate::wait::kernel::{self, Timeout};
use crate::wait::{Section, spin};
use crate::{bypass, confined};

/// Bytes that may lie in a placeholder before they are taken out, and half as many to three halves,
/// by its number. It holds some two hundred, and when it is full the other side's ring is not
/// heard. To take one out is some 200 nanoseconds for the kernel, which somebody's request waits
/// for; and were the number the same for all, hundreds of connections that are served in turn would
/// come to it in the same turn.
const MANY: u32 = 16;

/// Times that the processor is given away to other waiters of this end: who was woken with the
/// caller has returned by then.
const PATIENCE: u32 = 4;

/// Epolls that are kept for the next sleep: as many as have been seen to sleep so at one time in
/// programs with a reading and a writing thread.
const KEPT: usize = 4;

static IDLE: [AtomicI32; KEPT] = [const { AtomicI32::new(0) }; KEPT];

/// Takes all bytes out of a placeholder, if nobody waits at this end but `own` waiters of the
/// caller. False: others do, and a byte may lie there.
pub fn empty(fd: c_int, end: &End, own: u32) -> bool {
    let _section = Section::enter();
    end.drain(own, |leave| take(fd, end, leave))
}

/// As [`empty`], by a caller that is not counted and about to sleep: others that were woken by the
/// same byte may return first.
pub fn quieten(fd: c_int, end: &End) -> bool {
    for _ in 0..PATIENCE {
        if end.waiting() == 0 {
            break;
        }
        spin::give_way();
    }
    end.waiting() == 0 && empty(fd, end, 0)
}

/// Takes bytes out of a placeholder now and then, all but one.
#[inline]
pub fn thin(fd: c_int, end: &End) {
    let spread = fd.cast_unsigned().wrapping_mul(0x9e37_79b9) >> 16;
    if end.undrained() > MANY / 2 + spread % MANY {
        thin_now(fd, end);
    }
}

#[cold]
fn thin_now(fd: c_int, end: &End) {
    let _section = Section::enter();
    end.drain(0, |_| take(fd, end, true));
}

/// Returns false if the process may not ask how many bytes are there. No byte is taken then.
fn take(fd: c_int, end: &End, leave: bool) -> bool {
    if leave && confined::is_confined() {
        return false;
    }
    let drained = end.drained();
    let mut bytes = [0_u8; 256];
    let mut left = usize::MAX;
    if leave {
        let Some(lying) = lying(fd) else { return false };
        left = lying.saturating_sub(1);
    }
    let mut all = 0_usize;
    while left != 0 {
        let wanted = left.min(bytes.len());
        let taken = sys::receive(fd, &mut bytes[..wanted], libc::MSG_DONTWAIT);
        let got = bytes.get(..taken.unwrap_or(0)).unwrap_or_default();
        all = all.saturating_add(got.len());
        bypass::judge(fd, end, got, bypass::Found { all, drained });
        match taken {
            Ok(got) if got == wanted => left -= got,
            _ => break,
        }
    }
    true
}

/// Bytes that lie in a placeholder, if the program may ask.
fn lying(fd: c_int) -> Option<usize> {
    let mut count: c_int = 0;
    let to = sys::address_mut(&raw mut count);
    // SAFETY: the kernel writes a number there.
    let asked = unsafe { sys::ask(libc::SYS_ioctl, [sys::signed(fd), libc::FIONREAD as usize, to, 0, 0, 0]) };
    asked.ok().and_then(|_| usize::try_from(count).ok())
}

/// An epoll of the library that watches placeholders for new bytes and for hang-ups.
#[derive(Debug)]
pub struct Edges {
    /// Its number.
    fd: c_int,
    /// What was added last.
    last: c_int,
    added: u32,
}

impl Edges {
    /// One that watches nothing. None: there is none to be had.
    pub fn new() -> Option<Self> {
        if confined::is_confined() {
            return None;
        }
        let idle = IDLE.iter().map(|place| place.swap(0, AcqRel)).find(|fd| *fd != 0);
        let fd = match idle {
            Some(number) => number - 1,
            None => {
                let new = kernel::epoll_create(libc::EPOLL_CLOEXEC).ok()? as c_int;
                let high = Borrowed::second(new).map(Borrowed::into_number);
                let _ = sys::close(new);
                high?
            }
        };
        Some(Self { fd, last: -1, added: 0 })
    }

    /// In the child of a fork, which has closed them.
    pub fn forget_all() {
        IDLE.iter().for_each(|place| place.store(0, Relaxed));
    }

    /// Watches a placeholder, too. False: the kernel refuses.
    pub fn add(&mut self, fd: c_int) -> bool {
        let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
        let event = libc::epoll_event { events, u64: 0 };
        // SAFETY: the event outlives the call.
        match unsafe { kernel::epoll_ctl(self.fd, libc::EPOLL_CTL_ADD, fd, &raw const event) } {
            Ok(_) => {
                (self.last, self.added) = (fd, self.added + 1);
                true
            }
            Err(errno) => errno == libc::EEXIST,
        }
    }

    /// What becomes readable.
    pub const fn fd(&self) -> c_int {
        self.fd
    }

    /// Forgets what has been written so far: to be called before the caller arms.
    pub fn harvest(&self) {
        let _ = self.wait(Some(0));
    }

    /// Sleeps until a byte is written or an end hangs up. The events of one placeholder; none at
    /// the end of the time.
    ///
    /// # Errors
    /// `EINTR`.
    pub fn wait(&self, timeout: Timeout) -> Result<Option<u32>, Errno> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        let room = events.len() as c_int;
        // SAFETY: so many entries.
        let got =
            unsafe { kernel::epoll_wait_once(self.fd, events.as_mut_ptr(), room, timeout, std::ptr::null()) }?;
        Ok(events.get(..got).and_then(|events| events.first()).map(|event| event.events))
    }

    /// Whether it watches nothing any more.
    fn clear(&self) -> bool {
        // SAFETY: no event is read.
        let remove =
            || unsafe { kernel::epoll_ctl(self.fd, libc::EPOLL_CTL_DEL, self.last, std::ptr::null()) };
        self.added == 0 || self.added == 1 && remove().is_ok()
    }
}

impl Drop for Edges {
    fn drop(&mut self) {
        let number = self.fd + 1;
        let free = |place: &AtomicI32| place.compare_exchange(0, number, AcqRel, Relaxed).is_ok();
        if !(self.clear() && IDLE.iter().any(free)) {
            crate::borrowed::close(self.fd);
        }
    }
}
