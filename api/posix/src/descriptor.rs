//! Closing, duplicating and controlling descriptors.
//!
//! 1. The kernel does what is asked, with the placeholder; the table follows. A word is taken out
//!    of the table *before* the kernel closes the number, or another thread could get that number
//!    and lose its word.
//! 2. Who closes the last descriptor of an end in this process leaves the other a hint ([`hint`]),
//!    so that it asks the kernel soon. The hang-up itself is the kernel's: other processes may hold
//!    the end.

use std::ffi::{c_int, c_uint, c_ulong};
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::doorbell::Edges;
use crate::end::flag;
use crate::socket::forget_stale;
use crate::sys::{self, Outcome, signed};
use crate::table::{self, Held, Kind, facts};
use crate::{borrowed, context, faults, history, real, renewal, room, service, sleep, wait};

/// Tells the other end that this process is about to let go of it.
pub fn hint(held: &Held) {
    if let Some(end) = held.end() {
        // No handler jumps out of it and leaves a lock.
        let _section = wait::Section::enter();
        end.closing();
    }
}

/// Takes a descriptor out of the table; what stood behind it.
fn take(fd: c_int) -> Option<Held> {
    let held = table::remove(fd)?;
    if !sleep::outlive(fd, &held) && held.descriptors() == 0 {
        history::closed(&held);
        hint(&held);
        if held.kind() == Kind::Listener {
            renewal::let_go(&held);
        }
    }
    wait::closing(fd, &held);
    Some(held)
}

/// The last descriptor that was read from at an offset, so that it is a file; -1 for none.
static FILE: AtomicI32 = AtomicI32::new(-1);

/// A descriptor has turned out to be that of a file.
#[inline]
pub fn is_a_file(fd: c_int) {
    FILE.store(fd, Relaxed);
}

/// `close(2)`.
pub fn close(fd: c_int) -> c_int {
    if !table::is_ours(fd) {
        if borrowed::is_borrowed(fd) {
            return sys::give_int(Err(libc::EBADF));
        }
        // A file's close makes no other descriptor ready, so it is not counted (`real::count`): a
        // web server, which closes one with every request, would ask the kernel's epoll as often.
        // Should the number stand for something else by now, the kernel is asked a little later.
        if fd >= 0 && FILE.load(Relaxed) == fd {
            FILE.store(-1, Relaxed);
            return sys::give_int(sys::close(fd));
        }
        // SAFETY: touches no memory.
        return unsafe { real::close(fd) };
    }
    let held = take(fd);
    let outcome = sys::close(fd);
    if let Some(held) = held.as_ref().filter(|held| is_closed_listener(held)) {
        renewal::closed(held);
    }
    drop(held);
    sys::give_int(outcome)
}

/// A listener whose last descriptor of this process was closed: its name is free when the caller
/// returns.
fn is_closed_listener(held: &Held) -> bool {
    held.kind() == Kind::Listener && held.descriptors() == 0
}

/// `close_range(2)`.
pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let arguments = [first as usize, last as usize, signed(flags), 0, 0, 0];
    let closes = flags & libc::CLOSE_RANGE_CLOEXEC.cast_signed() == 0 && first <= last;
    let ours = || table::highest_below(last).rev().take_while(|fd| closes && fd.cast_unsigned() >= first);
    // A process may share its descriptors with another until this call: the other's stay open.
    let alone = flags & libc::CLOSE_RANGE_UNSHARE.cast_signed() == 0;
    for fd in ours() {
        if table::is_ours(fd)
            && let Some(held) = take(fd)
            && alone
            && is_closed_listener(&held)
        {
            // Closed by itself, for the service has to have seen that before the caller returns.
            let _ = sys::close(fd);
            renewal::closed(&held);
        }
    }
    // SAFETY: touches no memory.
    sys::give_int(unsafe { sys::ask(libc::SYS_close_range, arguments) })
}

/// `closefrom(3)`.
pub fn closefrom(first: c_int) {
    let before = sys::errno();
    close_range(first.max(0).cast_unsigned(), c_uint::MAX, 0);
    sys::set_errno(before);
}

/// A kernel's answer is a new descriptor for what `old` is.
fn follow(old: c_int, new: Outcome) -> Outcome {
    if let Ok(number) = new {
        let fd = number as c_int;
        match table::find(old) {
            Some(held) if table::put(fd, &held) => {}
            // Beyond the table it would be a placeholder that nobody knows.
            Some(_) => {
                let _ = sys::close(fd);
                return Err(libc::EMFILE);
            }
            None => forget_stale(fd),
        }
    }
    new
}

/// `dup(2)`.
pub fn dup(old: c_int) -> c_int {
    if borrowed::is_borrowed(old) {
        return sys::give_int(Err(libc::EBADF));
    }
    // SAFETY: touches no memory.
    sys::give_int(follow(old, unsafe { sys::ask(libc::SYS_dup, [signed(old), 0, 0, 0, 0, 0]) }))
}

/// `dup2(2)`.
pub fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        return sys::give_int(sys::fcntl(old, libc::F_GETFD, 0).map(|_| new.cast_unsigned() as usize));
    }
    dup3(old, new, 0)
}

/// `dup3(2)`.
pub fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if borrowed::is_borrowed(old) {
        return sys::give_int(Err(libc::EBADF));
    }
    if borrowed::is_borrowed(new) {
        // As Linux says of a number that another thread is about to fill.
        return sys::give_int(Err(libc::EBUSY));
    }
    // A failing dup3 must leave `new` alone: what can fail is judged before its word is taken.
    let fine = old != new && sys::fcntl(old, libc::F_GETFD, 0).is_ok();
    let before = if fine && table::is_ours(new) { take(new) } else { None };
    let outcome = sys::dup3(old, new, flags);
    if outcome.is_err()
        && let Some(held) = &before
    {
        table::put(new, held);
    }
    let answer = follow(old, outcome);
    if let Some(held) = before.as_ref().filter(|held| is_closed_listener(held)) {
        renewal::closed(held);
    }
    sys::give_int(answer)
}

/// `fcntl(2)`.
///
/// # Safety
/// As `fcntl(2)`.
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if borrowed::is_borrowed(fd) {
        return sys::give_int(Err(libc::EBADF));
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => sys::give_int(follow(fd, sys::fcntl(fd, command, argument))),
        libc::F_SETFL if table::is_ours(fd) => {
            let outcome = sys::fcntl(fd, command, argument);
            if outcome.is_ok() {
                note_nonblocking(fd, argument as c_int & libc::O_NONBLOCK != 0);
            }
            sys::give_int(outcome)
        }
        // SAFETY: the caller's.
        _ => unsafe { real::fcntl(fd, command, argument) },
    }
}

fn note_nonblocking(fd: c_int, yes: bool) {
    let held = table::find(fd);
    if let Some(end) = held.as_ref().and_then(|held| held.end()) {
        if yes {
            end.private().set(flag::NONBLOCKING)
        } else {
            end.private().clear(flag::NONBLOCKING)
        };
    }
    if let Some(listener) = held.filter(|held| held.kind() == Kind::Listener) {
        renewal::note_nonblocking(&listener, yes);
    }
}

/// `ioctl(2)`.
///
/// # Safety
/// As `ioctl(2)`.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    let held = match table::find(fd) {
        Some(held) if matches!(held.kind(), Kind::Stream | Kind::Listener) => held,
        // SAFETY: the caller's.
        _ => return unsafe { real::ioctl(fd, request, argument) },
    };
    let value = sys::pointer(argument).cast::<c_int>();
    let give = |number: usize| {
        // SAFETY: the caller's: these requests write an int there.
        unsafe { faults::write(value, c_int::try_from(number).unwrap_or(c_int::MAX)) }.map(|()| 0)
    };
    let outcome = match (request, held.end()) {
        (libc::FIONREAD, Some(end)) => give(end.readable()),
        // The other's kernel would have acknowledged everything at once.
        (libc::TIOCOUTQ, Some(end)) if end.private().has(flag::SERVED) => {
            let waiting = service::information(fd).map_or(0, |(_, waiting)| waiting as usize);
            give(waiting + end.unread_by_peer())
        }
        // What was sent to nobody was never acknowledged.
        (libc::TIOCOUTQ, Some(end)) => give(end.private().lost.load(Relaxed) as usize),
        (SIOCOUTQNSD | SIOCATMARK, Some(_)) => give(0),
        (libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD, None) => {
            // One that was shut down listens no more.
            if held.facts.flags.load(Acquire) & facts::STOPPED == 0 { Err(libc::EINVAL) } else { give(0) }
        }
        (libc::FIONBIO, _) => {
            // SAFETY: the caller's.
            let outcome =
                unsafe { sys::ask(libc::SYS_ioctl, [signed(fd), request as usize, argument, 0, 0, 0]) };
            if outcome.is_ok() {
                // SAFETY: the kernel has just read an int there.
                note_nonblocking(fd, unsafe { value.read_unaligned() } != 0);
            }
            outcome
        }
        // SAFETY: the caller's.
        _ => unsafe { sys::ask(libc::SYS_ioctl, [signed(fd), request as usize, argument, 0, 0, 0]) },
    };
    sys::give_int(outcome)
}

/// `SIOCOUTQNSD` of `linux/sockios.h`.
const SIOCOUTQNSD: c_ulong = 0x894B;
/// `SIOCATMARK` of `asm/sockios.h`.
const SIOCATMARK: c_ulong = 0x8905;

/// `sockatmark(3)`: there is never urgent data.
pub fn sockatmark(fd: c_int) -> c_int {
    let mut mark: c_int = 0;
    // SAFETY: an int to write to.
    let answer = unsafe { ioctl(fd, SIOCATMARK, sys::address_mut(&raw mut mark)) };
    if answer < 0 { answer } else { mark }
}

/// In the child of a fork: what other threads of the parent were at, nobody here goes on with.
pub fn after_fork() {
    borrowed::after_fork();
    Edges::forget_all();
    room::after_fork();
    for fd in 0..table::highest() {
        if table::is_ours(fd)
            && let Some(held) = table::find(fd)
        {
            held.facts.flags.fetch_and(!facts::RENEWING, AcqRel);
            held.sleepers.store(0, Relaxed);
            held.spare.store(0, Relaxed);
        }
    }
}

/// Before the process ends: leaves the hints that closing its descriptors would have left.
pub fn leave() {
    if context::get().is_none() {
        return;
    }
    for fd in 0..table::highest() {
        if table::is_ours(fd)
            && let Some(held) = table::find(fd)
        {
            hint(&held);
        }
    }
}
