//! Doorbell bytes on the placeholder of an end.
//!
//! The peer writes a byte for each request ([`sietch_ring::stream::waiters`]). A byte means "check
//! again" to every thread that sleeps at this end, in any call or process. So all bytes are
//! taken only where no other waiter is counted ([`empty`]). Otherwise one byte stays ([`thin`]),
//! and not many more than [`DRAIN_THRESHOLD`], because a full placeholder takes no more. A sleep
//! that such a byte would end at once uses an epoll instead ([`crate::connection::edges`]).

use std::ffi::c_int;

use sietch_ring::stream::Endpoint;

use crate::connection::foreign_bytes;

use crate::signal::handlers::Section;
use crate::system::{kernel, processor, seccomp, sys};

/// Bytes that may lie in a placeholder before they are taken out: between half and three halves of
/// this, depending on its number. A placeholder holds some two hundred bytes, and no notification
/// gets through when it is full. Taking one out costs the kernel some 200 nanoseconds, during which
/// a request waits. With one limit for all, hundreds of connections that are served in turn would
/// reach it in the same iteration.
const DRAIN_THRESHOLD: u32 = 16;

/// Yields to other waiters of this end: those that were woken with the caller have returned by
/// then.
const MAX_YIELDS: u32 = 4;

/// Takes all bytes out of a placeholder, if no thread waits at this end but `own` waiters of the
/// caller. False: others do, and a byte may lie there.
pub(crate) fn empty(fd: c_int, end: &Endpoint, own: u32) -> bool {
    let _section = Section::enter();
    end.drain(own, |leave| take(fd, end, leave))
}

/// As [`empty`], by a caller that is not counted and about to sleep: others that were woken by the
/// same byte may return first.
pub(crate) fn quieten(fd: c_int, end: &Endpoint) -> bool {
    for _ in 0..MAX_YIELDS {
        if end.waiting() == 0 {
            break;
        }
        processor::yield_now();
    }
    end.waiting() == 0 && empty(fd, end, 0)
}

/// Occasionally takes bytes out of a placeholder, all but one.
#[inline]
pub(crate) fn thin(fd: c_int, end: &Endpoint) {
    let spread = fd.cast_unsigned().wrapping_mul(0x9e37_79b9) >> 16;
    if end.undrained() > DRAIN_THRESHOLD / 2 + spread % DRAIN_THRESHOLD {
        thin_now(fd, end);
    }
}

#[cold]
fn thin_now(fd: c_int, end: &Endpoint) {
    let _section = Section::enter();
    end.drain(0, |_| take(fd, end, true));
}

/// Returns false if the process may not ask how many bytes are there. Then no byte is taken.
fn take(fd: c_int, end: &Endpoint, leave: bool) -> bool {
    if leave && seccomp::is_restricted() {
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
        let taken = kernel::receive(fd, &mut bytes[..wanted], libc::MSG_DONTWAIT);
        let got = bytes.get(..taken.unwrap_or(0)).unwrap_or_default();
        all = all.saturating_add(got.len());
        foreign_bytes::judge(fd, end, got, foreign_bytes::Found { all, drained });
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
    let asked =
        unsafe { sys::syscall(libc::SYS_ioctl, [sys::signed(fd), libc::FIONREAD as usize, to, 0, 0, 0]) };
    asked.ok().and_then(|_| usize::try_from(count).ok())
}
