//! The readiness of a connection, from shared memory alone: what Linux's `tcp_poll` would return
//! for a socket in the same state.
//!
//! * connecting: nothing; failed: everything, with ERR until the error was taken;
//! * the peer's FIN or the own `shutdown(SHUT_RD)`: IN and RDHUP, data left or not; with the own
//!   FIN as well: HUP;
//! * a reset: IN, OUT, RDHUP, HUP, and ERR until it was reported;
//! * PRI while the urgent byte was neither taken nor passed over; IN if more than that byte is
//!   there;
//! * OUT if there is room as `poll` defines it, and always after the own FIN.
//!
//! A placeholder that hung up proves that no process holds the peer's end; the kernel's epoll
//! reports it unasked. Where shared memory hints at it ([`Endpoint::is_worth_polling`]), the caller
//! asks the kernel at once ([`crate::peer::check_peer_closed`]).

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use sietch_ring::stream::{Edge, Endpoint, flag, option, state};

/// Readable, as epoll and poll say it.
pub const READ: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

/// Events of room.
pub const OUTPUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;

/// Both ends have shut down, or the connection is over.
pub const HANGUP: u32 = libc::EPOLLHUP as u32;

/// Readable, or the peer sends nothing more.
pub const READ_END: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP) as u32;

/// Urgent data are there.
pub const URGENT: u32 = libc::EPOLLPRI as u32;

/// An error is pending.
pub const ERROR: u32 = libc::EPOLLERR as u32;

/// Nanoseconds of a sleep with a socket that has shut down reading: its placeholder brings it no
/// bytes.
const SHUT_READ_SLICE: u64 = 2_000_000;

/// Nanoseconds of the shortest sleep for the sake of a user timeout that does not run.
const LEAST_TIMEOUT: u64 = 100_000_000;

/// Whether an end's placeholder carries no bytes to it any more: it has shut down reading, there as
/// well.
pub fn has_shut_read(end: &Endpoint) -> bool {
    end.private().has(flag::SHUT_RD)
}

/// The longest sleep with this socket, if it has a limit: its placeholder receives no bytes, or as
/// [`Endpoint::longest_sleep`] and [`Endpoint::user_timeout_left`] say.
#[inline]
pub fn sleep_limit(end: &Endpoint) -> Option<u64> {
    let limit = if has_shut_read(end) { Some(SHUT_READ_SLICE) } else { end.longest_sleep() };
    match end.user_timeout_left() {
        None => limit,
        left => shorter_sleep(limit, left),
    }
}

/// As [`sleep_limit`], for a thread that another cannot tell that the user timeout runs from now
/// on: it sleeps no longer than that time.
pub fn lone_sleep_limit(end: &Endpoint) -> Option<u64> {
    let limit = sleep_limit(end);
    if !end.private().has(flag::USER_TIMEOUT) {
        return limit;
    }
    let timeout = end.private().options[option::USER_TIMEOUT].load(Relaxed) & !option::SET;
    shorter_sleep(limit, Some(timeout.saturating_mul(1_000_000).max(LEAST_TIMEOUT)))
}

/// The shorter of two sleeps; none is without limit.
pub fn shorter_sleep(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.map_or(other, |one| Some(other.map_or(one, |other| one.min(other))))
}

/// The result of `poll(2)` for a TCP socket in this state with all events requested, room
/// optionally: see the module.
#[inline]
pub fn readiness(end: &Endpoint, room: bool) -> u32 {
    readiness_at(end, end.snapshot(), room)
}

/// As [`readiness`], of what the peer had published at a snapshot of this end. What it has
/// published since is another snapshot's.
#[inline]
pub fn readiness_at(end: &Endpoint, edge: Edge, room: bool) -> u32 {
    if !edge.is_open() {
        return readiness_after_change(end, edge, room);
    }
    let mut ready = if end.private().error.load(Relaxed) == 0 { 0 } else { ERROR };
    if end.read() < edge.arrived {
        ready |= READ;
    }
    if room && is_writable(end) {
        ready |= OUTPUT;
    }
    ready
}

/// Whether a stream is open and has nothing to report but room.
#[inline]
pub fn is_quiet(end: &Endpoint) -> bool {
    let edge = end.snapshot();
    edge.is_open() && readiness_at(end, edge, false) == 0
}

/// As [`readiness_at`], where a set-up, a shutdown, a close or a reset counts.
#[inline(never)]
fn readiness_after_change(end: &Endpoint, edge: Edge, room: bool) -> u32 {
    let private = end.private();
    let flags = private.flags.load(Acquire);
    let error = if private.error.load(Relaxed) == 0 { 0 } else { ERROR };
    let state = private.state.load(Acquire);
    if flags & flag::RESET != 0 || state != state::ESTABLISHED {
        return special(flags, state, error);
    }
    let hung_up = flags & flag::HUNG_UP != 0;
    let urgent = edge.is_marked() && end.has_urgent();
    let mut ready = if urgent { error | URGENT } else { error };
    if hung_up || flags & flag::SHUT_RD != 0 || edge.is_finished() {
        ready |= READ_END;
        if flags & flag::SHUT_WR != 0 {
            ready |= HANGUP;
        }
    } else if if edge.is_marked() { end.readable() } else { end.readable_of(edge.arrived) } != 0 {
        ready |= READ;
    }
    if room && (hung_up || flags & flag::SHUT_WR != 0 || is_writable(end)) {
        ready |= OUTPUT;
    }
    ready
}

/// Whether there is room as `poll` defines it. A caller that finds none is notified when there is
/// some again.
#[inline(never)]
fn is_writable(end: &Endpoint) -> bool {
    end.is_writable() || {
        end.note_full();
        // It may have come in between.
        end.is_writable()
    }
}

#[cold]
fn special(flags: u32, state: u32, error: u32) -> u32 {
    if flags & flag::RESET != 0 {
        let error = if flags & flag::RESET_REPORTED == 0 { ERROR } else { error };
        return READ_END | OUTPUT | HANGUP | error;
    }
    match state {
        state::CONNECTING if flags & flag::HUNG_UP == 0 => 0,
        // The process that was to set the connection up has ended, so it never will be set up.
        state::CONNECTING => READ_END | OUTPUT | HANGUP | ERROR,
        _ => READ_END | OUTPUT | HANGUP | error,
    }
}
