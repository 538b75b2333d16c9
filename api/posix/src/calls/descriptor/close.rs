//! `close` and its variants.
//!
//! 1. The table follows the kernel. A word is removed from the table *before* the kernel closes the
//!    number; otherwise another thread could get that number and lose its word. In between the word
//!    is busy ([`Change`]), so no call takes the placeholder for a file of the kernel's.
//! 2. The thread that closes the last descriptor of an end in this process leaves the peer a hint
//!    ([`announce_close`]). The peer then checks with the kernel soon. The hang-up itself is the
//!    kernel's: other processes may hold the end.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

use crate::connection::peer::announce_close;
use crate::connection::{blocked, short_lived};
use crate::descriptor::change::Change;
use crate::descriptor::description::{Held, Kind};
use crate::descriptor::{in_flight, table};
use crate::listener::kernel_socket;
use crate::readiness::hooks;
use crate::system::cancellation::{self, Whole};
use crate::system::sys::{self, Outcome, signed};
use crate::system::{kernel, originals};

/// Removes a descriptor from the table; its description. Its word stays busy, and the calling
/// thread's [`Change`] settles it.
pub(crate) fn take(fd: c_int) -> Option<Held> {
    let held = table::withdraw(fd)?;
    if !blocked::leave_spare(fd, &held) && held.descriptors() == 0 {
        short_lived::closed(&held);
        announce_close(&held);
        if held.kind() == Kind::Listener {
            kernel_socket::close_socket(&held);
        }
    }
    hooks::closing(fd, &held);
    Some(held)
}

/// The last descriptor that was read from at an offset, so that it is a file; -1 for none.
static FILE: AtomicI32 = AtomicI32::new(-1);

/// A descriptor has turned out to be that of a file.
#[inline]
pub(crate) fn note_file(fd: c_int) {
    FILE.store(fd, Relaxed);
}

/// `close(2)`.
pub fn close(fd: c_int) -> c_int {
    if !table::is_ours(fd) {
        if in_flight::is_in_flight(fd) {
            return sys::to_c_int(Err(libc::EBADF));
        }
        // Closing a file makes no other descriptor ready, so it is not counted
        // (`originals::count`). Otherwise a web server, which closes a file with every request,
        // would poll the kernel's epoll as often. If the number names another file by now,
        // the kernel is polled a little later.
        if fd >= 0 && FILE.load(Relaxed) == fd {
            FILE.store(-1, Relaxed);
            return sys::to_c_int(kernel::close(fd));
        }
        // This library closes descriptors too, where it holds something.
        let _whole = cancellation::is_used().then(Whole::begin);
        // SAFETY: touches no memory.
        return unsafe { originals::close(fd) };
    }
    let (held, outcome) = close_ours(fd);
    if let Some(held) = held.as_ref().filter(|held| is_closed_listener(held)) {
        kernel_socket::wait_until_released(held);
    }
    drop(held);
    sys::to_c_int(outcome)
}

fn close_ours(fd: c_int) -> (Option<Held>, Outcome) {
    let _change = Change::begin();
    let held = take(fd);
    let outcome = kernel::close(fd);
    table::settle(fd);
    (held, outcome)
}

/// A listener whose last descriptor of this process was closed: its name is free when the caller
/// returns.
pub(crate) fn is_closed_listener(held: &Held) -> bool {
    held.kind() == Kind::Listener && held.descriptors() == 0
}

/// `close_range(2)`.
pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let arguments = [first as usize, last as usize, signed(flags), 0, 0, 0];
    // With another flag the kernel closes nothing.
    let closes = flags.cast_unsigned() & !libc::CLOSE_RANGE_UNSHARE == 0 && first <= last;
    let ours = || table::highest_below(last).rev().take_while(|fd| closes && fd.cast_unsigned() >= first);
    // A process may share its descriptors with another until this call: the other's stay open.
    let alone = flags & libc::CLOSE_RANGE_UNSHARE.cast_signed() == 0;
    for fd in ours() {
        if !table::is_ours(fd) {
            continue;
        }
        if !alone {
            let _change = Change::begin();
            drop(take(fd));
            table::settle(fd);
        } else if let (Some(held), _) = close_ours(fd)
            && is_closed_listener(&held)
        {
            kernel_socket::wait_until_released(&held);
        }
    }
    // SAFETY: touches no memory.
    sys::to_c_int(unsafe { sys::syscall(libc::SYS_close_range, arguments) })
}

/// `closefrom(3)`.
pub fn closefrom(first: c_int) {
    let before = sys::errno();
    close_range(first.max(0).cast_unsigned(), c_uint::MAX, 0);
    sys::set_errno(before);
}
