//! The events of a socket: readiness and edges, from shared memory alone.
//!
//! 1. [`readiness`] returns what Linux's `tcp_poll` would return for a socket in the same state:
//!    * connecting: nothing; failed: everything, with ERR until the error was taken;
//!    * the peer's FIN or the own `shutdown(SHUT_RD)`: IN and RDHUP, data left or not; with the own
//!      FIN as well: HUP;
//!    * a reset: IN, OUT, RDHUP, HUP, and ERR until it was reported;
//!    * OUT if there is room as `poll` defines it, and always after the own FIN.
//! 2. **Edges.** The kernel puts an item on its ready list when the socket wakes its pollers with
//!    one of the item's events. A wait that finds it there reports it if it is ready, and takes it
//!    off. What wakes is in shared memory, as numbers that change exactly then ([`Seen`]):
//!    * bytes that arrive wake registrations with one of [`ARRIVAL`] (not RDHUP alone);
//!    * room, once after a writer had found none ([`Endpoint::note_full`], Linux's `SOCK_NOSPACE`),
//!      wakes registrations with OUT;
//!    * the end of the set-up, the peer's FIN, a reset and the own `shutdown` wake all. The close
//!      after a FIN, options, and an error that was taken wake none.
//! 3. A placeholder that hung up proves that no process holds the peer's end; the kernel's epoll
//!    reports it unasked. Where shared memory hints at it ([`Endpoint::is_worth_asking`]), the
//!    kernel is asked at once.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use sietch_ring::stream::{Edge, Endpoint, flag, state};

use crate::connection::peer::check_peer_gone;
use crate::descriptor::description::Held;
use crate::descriptor::table;

/// Events of data: what an arrival wakes.
pub(crate) const INPUT: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32;

/// Events that an arrival wakes (`sock_def_readable`).
pub(crate) const ARRIVAL: u32 =
    (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLPRI | libc::EPOLLRDBAND) as u32;

/// Events of room.
pub(crate) const OUTPUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;

/// Events that are reported unasked.
pub(crate) const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// The edge-triggered bit.
pub(crate) const EDGE: u32 = libc::EPOLLET as u32;

/// The one-shot bit.
pub(crate) const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// Readable, as epoll and poll say it.
pub(crate) const READ: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

const READ_END: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP) as u32;

pub(crate) const HANGUP: u32 = libc::EPOLLHUP as u32;

const ERROR: u32 = libc::EPOLLERR as u32;

/// Whether an end's placeholder carries no bytes to it any more: it has shut down reading, there as
/// well.
pub(crate) fn has_shut_read(end: &Endpoint) -> bool {
    end.private().has(flag::SHUT_RD)
}

/// Nanoseconds of a sleep with a socket that has shut down reading: its placeholder brings it no
/// bytes.
const SHUT_READ_SLICE: u64 = 2_000_000;

/// The longest sleep with this socket, if it has a limit: its placeholder receives no bytes, or as
/// [`Endpoint::longest_sleep`] says.
#[inline]
pub(crate) fn sleep_limit(end: &Endpoint) -> Option<u64> {
    if has_shut_read(end) { Some(SHUT_READ_SLICE) } else { end.longest_sleep() }
}

/// The shorter of two sleeps; none is without limit.
pub(crate) fn shorter_sleep(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.map_or(other, |one| Some(other.map_or(one, |other| one.min(other))))
}

/// The state in which a registration was last found: step 2 of the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Seen {
    /// [`sietch_ring::stream::Edge::arrived`]; of a nested epoll, its edges.
    pub(crate) arrived: u64,
    /// Of edge-triggered ones, how often there was room again; of level-triggered ones, what the
    /// peer has read. 0 where room is not wanted: it is another cache line.
    room: u32,
    pub(crate) changes: u32,
}

impl Seen {
    /// Of what is registered now: what is unread came after it.
    pub(crate) fn at_registration(held: &Held) -> Self {
        Self { arrived: held.end().map_or(0, Endpoint::read), ..Self::default() }
    }

    /// Of a nested epoll that has seen so many edges.
    pub(crate) fn of_nested(edges: u64) -> Self {
        Self { arrived: edges, ..Self::default() }
    }

    /// Of an end now, for these events.
    #[inline]
    pub(crate) fn of(end: &Endpoint, events: u32) -> Self {
        Self::from_edge(end, end.snapshot(), events)
    }

    #[inline]
    pub(crate) fn from_edge(end: &Endpoint, edge: Edge, events: u32) -> Self {
        let room = match events & (OUTPUT | EDGE) {
            0 | EDGE => 0,
            events if events & EDGE != 0 => end.spaces(),
            _ => end.read_by_peer() as u32,
        };
        Self { arrived: edge.arrived, room, changes: edge.changes }
    }

    /// Whether something happened since `before` that wakes a registration with `events`.
    #[inline]
    pub(crate) const fn is_edge(self, before: Self, events: u32) -> bool {
        self.changes != before.changes
            || self.arrived != before.arrived && events & ARRIVAL != 0
            || self.room != before.room && events & OUTPUT != 0
    }
}

/// The result of `poll(2)` for a TCP socket in this state with all events requested, room
/// optionally: see the module.
#[inline]
pub(crate) fn readiness(end: &Endpoint, room: bool) -> u32 {
    readiness_at(end, end.snapshot(), room)
}

/// As [`readiness`], of what the peer had published at a snapshot of this end. What it has
/// published since is another snapshot's.
#[inline]
pub(crate) fn readiness_at(end: &Endpoint, edge: Edge, room: bool) -> u32 {
    let private = end.private();
    let flags = private.flags.load(Acquire);
    let error = if private.error.load(Relaxed) == 0 { 0 } else { ERROR };
    let state = private.state.load(Acquire);
    if flags & flag::RESET != 0 || state != state::ESTABLISHED {
        return special(flags, state, error);
    }
    let gone = flags & flag::HUNG_UP != 0;
    let mut ready = error;
    if gone || flags & flag::SHUT_RD != 0 || edge.finished {
        ready |= READ_END;
        if flags & flag::SHUT_WR != 0 {
            ready |= HANGUP;
        }
    } else if end.readable_of(edge.arrived) != 0 {
        ready |= READ;
    }
    if room && (gone || flags & flag::SHUT_WR != 0 || is_writable(end)) {
        ready |= OUTPUT;
    }
    ready
}

/// Whether there is room as `poll` defines it. A caller that finds none is notified when there is
/// some again.
#[inline]
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

/// Asks the kernel whether a process holds the peer's end, if shared memory hints at it.
#[inline]
pub(crate) fn check_hinted(fd: c_int, end: &Endpoint) {
    if end.is_worth_asking() {
        check_peer_gone(fd, end);
    }
}

/// Whether no process holds the other end any more, asking the kernel.
#[cold]
pub(crate) fn has_hung_up(fd: c_int, held: &Held, end: &Endpoint) -> bool {
    end.private().has(flag::HUNG_UP) || table::refers_to(fd, held) && check_peer_gone(fd, end)
}

/// As [`check_hinted`], by any descriptor that is open still: the one that was registered may be
/// another socket now.
#[cold]
pub(crate) fn check_through_any(fd: c_int, held: &Held, end: &Endpoint) {
    let mut open = table::refers_to(fd, held).then_some(fd);
    if open.is_none() {
        table::each_of(held, |other| open = Some(other));
    }
    if let Some(fd) = open {
        check_hinted(fd, end);
    }
}
