//! The short way of `epoll_ctl`: changes of streams that an epoll knows.
//!
//! Programs change registrations with every request. `ae` of Redis removes and adds a stream, and
//! libevent modifies it. [`revise`] serves these changes without a system call, under two
//! conditions:
//!
//! 1. The stream has one registration under its descriptor. The kernel watches its placeholder
//!    already.
//! 2. No other thread, epoll or process has to learn of the change ([`Registrations::is_private`]).
//!
//! It changes nothing in every other case, which [`crate::readiness::control`] then serves, errors
//! included.

use std::ffi::c_int;

use crate::descriptor::description::Kind;
use crate::descriptor::table;
use crate::readiness::check::{EXCLUSIVE, WAKEUP};
#[cfg(doc)]
use crate::readiness::set::registrations::Registrations;
use crate::readiness::set::set_of;
use crate::readiness::set::shared::{SlotKind, bit};
use crate::signal::user_memory;
use crate::system::sys::Outcome;

/// `epoll_ctl(2)` of a known stream; none if it is another case.
///
/// # Safety
/// `event` is readable, null, or for the kernel to refuse.
#[inline]
pub(crate) unsafe fn revise(
    epfd: c_int,
    call: c_int,
    fd: c_int,
    event: *const libc::epoll_event,
) -> Option<Outcome> {
    let epoll = table::find(epfd).filter(|held| held.kind() == Kind::Epoll)?;
    let mut locked = set_of(&epoll)?.lock().filter(|locked| locked.is_private())?;
    let number = locked.only_stream(fd)?;
    let slot = locked.slot(number);
    let (events, state) = (slot.events, slot.state);
    let known = match (call, slot.kind()) {
        (libc::EPOLL_CTL_DEL, SlotKind::Stream) => {
            locked.epfd = epfd;
            locked.disarm(number);
            locked.make_dormant(number);
            return Some(Ok(0));
        }
        (libc::EPOLL_CTL_ADD, SlotKind::Dormant) => false,
        (libc::EPOLL_CTL_MOD, SlotKind::Stream) => true,
        _ => return None,
    };
    // SAFETY: the caller upholds this function's contract.
    let event = unsafe { user_memory::read_event(event) }.ok()?;
    if (events | event.events) & (EXCLUSIVE | WAKEUP) != 0 || state & bit::UNWATCHED != 0 {
        return None;
    }
    locked.epfd = epfd;
    if known {
        locked.disarm(number);
        locked.modify(number, event.events, event.u64);
        locked.put_on_list(number);
    } else {
        locked.revive(number, event.events, event.u64);
    }
    Some(Ok(0))
}
