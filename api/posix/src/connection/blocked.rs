//! Sleeping on a connection, waking the other end, and finding out that it is gone.
//!
//! 1. [`until`]: look for a while (`crate::connection::spin`), arm, look once more, then sleep in the kernel on
//!    the placeholder. The sleep is a `recv` that blocks and takes nothing, so that signals
//!    interrupt it, or restart it, as they do for any socket. With a deadline it is `ppoll`; where
//!    a byte lies that others still need, it is an epoll of the library's own
//!    ([`crate::connection::doorbell`]).
//! 2. Bytes on the placeholder mean "look again" and nothing else. Before sleeping, what lies there
//!    is taken, if the other says that it wrote some ([`End::undrained`]) or the last sleep of this
//!    call ended with one, and nobody else waits at this end.
//! 3. That the placeholder is at its end, or refuses bytes, does not yet mean that the other is
//!    gone: it may have shut down reading. POLLHUP does ([`ask_whether_gone`]).
//! 4. [`ring`] writes the byte that wakes those who sleep at the other end.
//! 5. A call that sleeps is a [`Stay`]. Who closes its descriptor meanwhile leaves it another one
//!    of the same placeholder ([`outlive`]): the connection ends when the call does, as on Linux,
//!    where a system call holds its file.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::Ordering::SeqCst;

use sietch_ring::stream::{End, Want, flag};

use crate::connection::edges::Edges;
use crate::connection::peer::{self, ask_whether_gone};
use crate::connection::spin::Spun;
use crate::connection::{doorbell, foreign_bytes, pause};
use crate::descriptor::description::Held;
use crate::descriptor::{in_flight, table};
use crate::signal::handlers::{self, Section};
use crate::signal::longjmp;
use crate::system::sys::Errno;
use crate::system::{kernel, seccomp};

/// Longest sleep where a byte lies that others need, and no epoll is to be had that would sleep
/// beside it.
pub(crate) const SLICE: u64 = 20_000_000;

/// Longest sleep of a writer: another thread may shut down writing, which the placeholder does not
/// show.
const ROOM_SLICE: u64 = 50_000_000;

/// Longest sleep of a writer that has shut down reading: its placeholder carries no bytes to it any
/// more.
const DEAF_SLICE: u64 = 2_000_000;

/// How a call sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// What it waits for.
    pub(crate) want: Want,
    /// When it gives up, of the monotonic clock.
    pub(crate) deadline: Option<u64>,
    /// Whether a handler that was installed with SA_RESTART lets it go on. Linux does so for calls
    /// that have done nothing yet and have no time-out.
    pub(crate) restart: bool,
}

/// Sleeps until `ready`, or something that is worth another look (so the caller looks again).
///
/// # Errors
/// `EINTR`; `EAGAIN` at the deadline; `EBADF` if the descriptor was closed meanwhile.
pub(crate) fn until(
    stay: &mut Stay<'_>,
    end: &End,
    rest: Rest,
    mut ready: impl FnMut() -> bool,
) -> Result<(), Errno> {
    let Rest { want, deadline, restart } = rest;
    if !stay.written_down.replace(true) {
        longjmp::waits(stay);
    }
    let restart = restart && deadline.is_none();
    let (held, fd) = (stay.held, stay.fd());
    let handled = &mut stay.handled;
    let which = if want == Want::Data { pause::READER } else { pause::WRITER };
    let (spun, pause) = pause::pause(held, which, None, &mut ready);
    match spun {
        Spun::Ready => return Ok(()),
        Spun::Interrupted => return Err(libc::EINTR),
        Spun::Sleep if handled.interrupts(restart) => return Err(libc::EINTR),
        Spun::Sleep => {}
    }
    let woken = std::mem::take(&mut stay.woken);
    let quiet = !(woken || end.undrained() != 0) || doorbell::quieten(fd, end);
    if woken && !quiet {
        foreign_bytes::examine(fd, end);
    }
    let edges = if quiet { None } else { edges_of(fd, end) };
    let section = Section::enter();
    end.arm(want);
    let armed = Armed::new(end, want, &stay.armed);
    drop(section);
    // Read before the last check: another reader of this end may publish the bytes when they are
    // due, and sends no notification.
    let held_back = if want == Want::Data { end.longest_sleep() } else { None };
    if ready() {
        return Ok(());
    }
    let deaf = end.private().has(flag::SHUT_RD);
    // With a descriptor that its closer has left, a handler has to end the sleep, whatever it is
    // installed with: see below.
    let natively =
        want == Want::Data && restart && quiet && !deaf && held_back.is_none() && !stay.is_closed();
    let mut slept = match edges {
        _ if natively => sleep_in_receive(fd, end),
        Some(edges) if !deaf => sleep_beside(&edges, end, rest, held_back),
        _ => sleep_in_poll(fd, end, rest, (deaf, quiet, held_back)),
    };
    drop(armed);
    let closed = stay.is_closed();
    let handled = &mut stay.handled;
    let again = matches!(slept, Err(libc::EBADF | libc::EINTR)) && restart && handled.happened();
    if closed && again && handlers::breaking() == handled.breaking {
        // A handler has run after which Linux makes the call anew, with a number that nothing is
        // behind any more.
        slept = Err(libc::EBADF);
    } else if closed && slept == Err(libc::EBADF) && held.spare.load(SeqCst) != 0 {
        // Its closer has left another.
        slept = Ok(false);
    }
    match slept {
        Ok(woken) => stay.woken = woken,
        Err(libc::EINTR) if !natively && handled.happened() && !handled.interrupts(restart) => {}
        Err(errno) => return Err(errno),
    }
    if ready() {
        pause.ended();
    }
    Ok(())
}

/// A call that sleeps, from its first sleep to its end.
#[derive(Debug)]
pub(crate) struct Stay<'a> {
    held: &'a Held,
    fd: c_int,
    handled: Handled,
    /// A byte has ended its last sleep, and may lie there still.
    woken: bool,
    /// What it is counted for as a waiter.
    pub(crate) armed: Cell<Option<Want>>,
    /// A handler that jumps out of it knows of it ([`jump`]).
    pub(crate) written_down: Cell<bool>,
}

impl<'a> Stay<'a> {
    /// A call on `fd` that found `held` there.
    pub(crate) fn begin(fd: c_int, held: &'a Held) -> Self {
        held.sleepers.fetch_add(1, SeqCst);
        let (armed, written_down) = (Cell::new(None), Cell::new(false));
        Self { held, fd, handled: Handled::now(), woken: false, armed, written_down }
    }

    /// Whether the call's own descriptor was closed.
    fn is_closed(&self) -> bool {
        !table::refers_to(self.fd, self.held)
    }

    /// The descriptor of the placeholder: the call's own, or what its closer has left. -1: neither.
    pub(crate) fn fd(&self) -> c_int {
        if !self.is_closed() {
            return self.fd;
        }
        self.held.spare.load(SeqCst).cast_signed() - 1
    }
}

impl longjmp::Leave for Stay<'_> {
    unsafe fn leave(this: *const Self) {
        // SAFETY: the jump abandons the frame that owns this value, so nothing else drops it.
        let stay = unsafe { this.read() };
        // SAFETY: as above; the reference that the call had to its description goes with it.
        let held = unsafe { std::ptr::from_ref(stay.held).read() };
        if let (Some(want), Some(end)) = (stay.armed.take(), held.end()) {
            end.disarm(want);
        }
        stay.written_down.set(false);
        drop(stay);
        drop(held);
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        if self.written_down.get() {
            longjmp::ended();
        }
        // After a fork within a handler the child's count begins anew.
        let before = self.held.sleepers.fetch_update(SeqCst, SeqCst, |count| count.checked_sub(1));
        if before == Ok(1) {
            let spare = self.held.spare.swap(0, SeqCst);
            if spare != 0 {
                let_spare_go(self.held, spare);
            }
        }
    }
}

#[cold]
fn let_spare_go(held: &Held, spare: u32) {
    if held.descriptors() == 0 {
        peer::announce_close(held);
    }
    in_flight::close(spare.cast_signed() - 1);
}

/// To be called before `fd` is closed: leaves those who sleep on it another descriptor. True: they
/// have one, so the connection has not ended yet.
pub(crate) fn outlive(fd: c_int, held: &Held) -> bool {
    if held.sleepers.load(SeqCst) == 0 {
        return false;
    }
    if held.spare.load(SeqCst) == 0 {
        let Some(second) = in_flight::Borrowed::second(fd) else { return false };
        let number = second.fd().cast_unsigned() + 1;
        if held.spare.compare_exchange(0, number, SeqCst, SeqCst).is_ok() {
            second.into_number();
        }
    }
    if held.sleepers.load(SeqCst) != 0 {
        return true;
    }
    // The last of them has ended meanwhile, and may not have seen it.
    let spare = held.spare.swap(0, SeqCst);
    if spare != 0 {
        in_flight::close(spare.cast_signed() - 1);
    }
    false
}

/// How many handlers of the program had run in this thread.
#[derive(Debug)]
struct Handled {
    all: u32,
    breaking: u32,
}

impl Handled {
    fn now() -> Self {
        Self { all: handlers::count(), breaking: handlers::breaking() }
    }

    fn happened(&self) -> bool {
        handlers::count() != self.all
    }

    /// Whether one has run since that ends a call. One after which it goes on is forgotten.
    fn interrupts(&mut self, restart: bool) -> bool {
        if !restart {
            return self.happened();
        }
        self.all = handlers::count();
        handlers::breaking() != self.breaking
    }
}

/// A caller that is counted as a waiter until it has returned, however it does.
struct Armed<'a> {
    end: &'a End,
    want: Want,
    noted: &'a Cell<Option<Want>>,
}

impl<'a> Armed<'a> {
    fn new(end: &'a End, want: Want, noted: &'a Cell<Option<Want>>) -> Self {
        noted.set(Some(want));
        Self { end, want, noted }
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        let _section = Section::enter();
        self.noted.set(None);
        self.end.disarm(self.want);
    }
}

/// True: a byte ended it.
fn sleep_in_receive(fd: c_int, end: &End) -> Result<bool, Errno> {
    let drained = end.drained();
    let mut bytes = [0; foreign_bytes::LOOKED_AT];
    // A process that gave up system calls takes what it looks at: not what others need.
    let most = if seccomp::is_confined() { 1 } else { bytes.len() };
    match kernel::receive(fd, &mut bytes[..most], libc::MSG_PEEK) {
        Ok(0) | Err(libc::ECONNRESET) => {
            ask_whether_gone(fd, end);
            Ok(false)
        }
        Ok(all) => {
            let lying = bytes.get(..all).unwrap_or_default();
            foreign_bytes::judge(fd, end, lying, foreign_bytes::Found { all, drained });
            Ok(true)
        }
        // Somebody has set O_NONBLOCK by a way that we did not see.
        Err(libc::EAGAIN) => {
            let rest = Rest { want: Want::Data, deadline: None, restart: true };
            sleep_in_poll(fd, end, rest, (false, true, None))
        }
        Err(errno) => Err(errno),
    }
}

/// What sleeps beside the bytes that lie on a placeholder, for new ones.
#[cold]
fn edges_of(fd: c_int, end: &End) -> Option<Edges> {
    doorbell::thin(fd, end);
    let mut edges = Edges::new()?;
    if !edges.add(fd) {
        return None;
    }
    edges.harvest();
    Some(edges)
}

#[cold]
fn sleep_beside(edges: &Edges, end: &End, rest: Rest, held_back: Option<u64>) -> Result<bool, Errno> {
    let slice = longest(rest, (false, true, held_back))?;
    match edges.wait((slice != u64::MAX).then_some(slice))? {
        None => Ok(false),
        Some(events) => {
            if events & libc::EPOLLHUP as u32 != 0 {
                end.hung_up();
            }
            Ok(true)
        }
    }
}

/// Three facts about a sleep: the placeholder no longer receives bytes; it is empty; how long the
/// peer holds bytes back.
type Circumstances = (bool, bool, Option<u64>);

/// Nanoseconds of a sleep at most; `u64::MAX`: for ever.
///
/// # Errors
/// `EAGAIN` at the deadline.
fn longest(rest: Rest, (deaf, quiet, held_back): Circumstances) -> Result<u64, Errno> {
    let longest = match rest.want {
        _ if deaf => DEAF_SLICE,
        _ if !quiet => SLICE,
        Want::Room => ROOM_SLICE,
        Want::Data => held_back.unwrap_or(u64::MAX),
    };
    let left = match rest.deadline {
        None => u64::MAX,
        Some(deadline) => match deadline.saturating_sub(kernel::now()) {
            0 => return Err(libc::EAGAIN),
            left => left,
        },
    };
    Ok(left.min(longest))
}

fn sleep_in_poll(fd: c_int, end: &End, rest: Rest, how: Circumstances) -> Result<bool, Errno> {
    let (slice, (deaf, quiet, _)) = (longest(rest, how)?, how);
    let timeout = (slice != u64::MAX).then(|| libc::timespec {
        tv_sec: (slice / 1_000_000_000).cast_signed(),
        tv_nsec: (slice % 1_000_000_000).cast_signed(),
    });
    let events = if deaf || !quiet { 0 } else { libc::POLLIN };
    let mut entry = [libc::pollfd { fd, events, revents: 0 }];
    if kernel::poll(&mut entry, timeout)? == 0 {
        return Ok(false);
    }
    let seen = entry[0].revents;
    if seen & libc::POLLNVAL != 0 {
        return Err(libc::EBADF);
    }
    if seen & libc::POLLHUP != 0 {
        end.hung_up();
    }
    Ok(true)
}
