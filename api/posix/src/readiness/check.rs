//! The events of a socket: readiness and edges, from shared memory alone.
//!
//! 1. [`readiness`] returns what Linux's `tcp_poll` would return for a socket in the same state.
//! 2. **Edges.** The kernel puts an item on its ready list when the socket wakes its pollers with
//!    one of the item's events. A wait that finds it there reports it if it is ready, and takes it
//!    off. What wakes is in shared memory, as numbers that change exactly then ([`Seen`]):
//!    * bytes that arrive wake registrations with one of [`ARRIVAL`] (not RDHUP alone);
//!    * room, once after a writer had found none ([`Endpoint::note_full`], Linux's `SOCK_NOSPACE`),
//!      wakes registrations with OUT;
//!    * the end of the set-up, the peer's FIN, a reset and the own `shutdown` wake all. The close
//!      after a FIN, options, and an error that was taken wake none.
//! 3. A placeholder that hung up proves that no process holds the peer's end; the kernel's epoll
//!    always reports it. Where shared memory hints at it ([`Endpoint::is_worth_polling`]), the
//!    kernel is polled at once.

use std::ffi::c_int;

use sietch_ring::stream::{Edge, Endpoint, flag};

use crate::connection::peer::check_peer_closed;
use crate::descriptor::description::Held;
use crate::descriptor::table;

pub(crate) use sietch_stream::readiness::{
    ERROR, HANGUP, OUTPUT, READ, READ_END, URGENT, has_shut_read, is_quiet, lone_sleep_limit, readiness,
    readiness_at, shorter_sleep, sleep_limit,
};

/// Events of data: what an arrival wakes.
pub(crate) const INPUT: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32;

/// Events that an arrival wakes (`sock_def_readable`).
pub(crate) const ARRIVAL: u32 =
    (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLPRI | libc::EPOLLRDBAND) as u32;

/// Events that are reported unasked.
pub(crate) const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// All events that are ever reported.
pub(crate) const ANY_EVENT: u32 = READ_END | URGENT | OUTPUT | HANGUP | ERROR;

/// The edge-triggered bit.
pub(crate) const EDGE: u32 = libc::EPOLLET as u32;

/// The bit of a registration that wakes one of the threads that wait.
pub(crate) const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// The bit that keeps the machine from suspending.
pub(crate) const WAKEUP: u32 = libc::EPOLLWAKEUP as u32;

/// The one-shot bit.
pub(crate) const ONCE: u32 = libc::EPOLLONESHOT as u32;

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
        let room = if events & OUTPUT == 0 { 0 } else { Self::room(end, events) };
        Self { arrived: edge.arrived, room, changes: edge.changes }
    }

    /// See [`Seen::room`], where room is wanted. Not inlined: most registrations want none, and it
    /// would take the registers of those.
    #[inline(never)]
    fn room(end: &Endpoint, events: u32) -> u32 {
        if events & EDGE == 0 { end.read_by_peer() as u32 } else { end.spaces() }
    }

    /// Whether something happened since `before` that wakes a registration with `events`.
    #[inline]
    pub(crate) const fn is_edge(self, before: Self, events: u32) -> bool {
        self.changes != before.changes
            || self.arrived != before.arrived && events & ARRIVAL != 0
            || self.room != before.room && events & OUTPUT != 0
    }
}

/// Asks the kernel whether a process holds the peer's end, if shared memory hints at it.
#[inline]
pub(crate) fn check_hinted(fd: c_int, end: &Endpoint) {
    if end.is_worth_polling() {
        check_peer_closed(fd, end);
    }
}

/// A descriptor of a description that is open: `fd` if that is still one. The one that was
/// registered may be another socket now.
pub(crate) fn open_descriptor(fd: c_int, held: &Held) -> Option<c_int> {
    let mut open = table::refers_to(fd, held).then_some(fd);
    if open.is_none() {
        table::each_of(held, |other| open = Some(other));
    }
    open
}

/// Whether no process holds the other end any more, according to the kernel now. An earlier report
/// of the kernel does not prove it: another thread may have given the descriptor or the slot to
/// another connection since.
#[cold]
pub(crate) fn has_hung_up(fd: c_int, held: &Held, end: &Endpoint) -> bool {
    end.private().has(flag::HUNG_UP) || open_descriptor(fd, held).is_some_and(|fd| check_peer_closed(fd, end))
}

/// As [`check_hinted`], by any descriptor that is open still.
#[cold]
pub(crate) fn check_through_any(fd: c_int, held: &Held, end: &Endpoint) {
    if let Some(fd) = open_descriptor(fd, held) {
        check_hinted(fd, end);
    }
}
