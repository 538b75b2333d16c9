//! Calls that block on a connection.
//!
//! 1. [`sleep_until`]: poll for a while ([`crate::connection::pause`]), arm, check once more, then
//!    sleep in the kernel on the placeholder. The sleep is a `recv` that blocks and takes nothing,
//!    so signals interrupt or restart it as they do for any socket. With a deadline it is `ppoll`.
//!    Where a byte must stay for other waiters, it is an epoll of the library
//!    ([`crate::connection::edges`]).
//! 2. Bytes on the placeholder mean "check again" and nothing else. They are taken out before the
//!    sleep if no other thread waits at this end. A call does this if the peer wrote some
//!    ([`Endpoint::undrained`]), or if a byte ended its last sleep.
//! 3. A call that sleeps is a [`BlockedCall`]. A thread that closes its descriptor meanwhile leaves
//!    it another descriptor of the same placeholder ([`leave_spare`]). So the connection ends when
//!    the call does, as on Linux, where a system call holds its file.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::Ordering::SeqCst;

use sietch_ring::stream::{Endpoint, Want, flag};
use sietch_stream::foreign_bytes;
use sietch_stream::readiness::lone_sleep_limit;

use crate::connection::edges::Edges;
use crate::connection::peer::{self, check_peer_closed};
use crate::connection::placeholder::Number;
use crate::connection::spin::Spun;
use crate::connection::{doorbell, pause};
use crate::descriptor::description::Held;
use crate::descriptor::{in_flight, table};
use crate::signal::handlers::{self, Section};
use crate::signal::longjmp;
use crate::system::sys::Errno;
use crate::system::{kernel, seccomp};

/// Longest sleep where a byte is queued that other waiters need, and no epoll could be made that
/// would ignore it.
pub(crate) const SLICE: u64 = 20_000_000;

/// Longest sleep of a writer: another thread may shut down writing, which the placeholder does not
/// show.
const ROOM_SLICE: u64 = 50_000_000;

/// Longest sleep of a writer that has shut down reading: its placeholder carries no bytes to it any
/// more.
const SHUT_READ_SLICE: u64 = 2_000_000;

/// How a call sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SleepOptions {
    /// The awaited event.
    pub(crate) want: Want,
    /// When it gives up, of the monotonic clock.
    pub(crate) deadline: Option<u64>,
    /// Whether a handler that was installed with SA_RESTART lets the call continue. Linux does so
    /// for calls that have done nothing yet and have no time-out.
    pub(crate) restart: bool,
}

/// Sleeps until `ready`, or until something happens that is worth another check by the caller.
///
/// # Errors
/// `EINTR`; `EAGAIN` at the deadline; `EBADF` if the descriptor was closed meanwhile.
pub(crate) fn sleep_until(
    call: &mut BlockedCall<'_>,
    end: &Endpoint,
    how: SleepOptions,
    mut ready: impl FnMut() -> bool,
) -> Result<(), Errno> {
    let SleepOptions { want, deadline, restart } = how;
    if !call.registered.replace(true) {
        longjmp::register(call);
    }
    let restart = restart && deadline.is_none();
    let (held, fd) = (call.held, call.fd());
    let handled = &mut call.handled;
    let which = if want == Want::Data { pause::READER } else { pause::WRITER };
    let (spun, pause) = pause::pause(held, which, None, &mut ready);
    match spun {
        Spun::Ready => return Ok(()),
        Spun::Interrupted => return Err(libc::EINTR),
        Spun::Sleep if handled.interrupts(restart) => return Err(libc::EINTR),
        Spun::Sleep => {}
    }
    let woken = std::mem::take(&mut call.woken);
    let quiet = !(woken || end.undrained() != 0) || doorbell::quieten(fd, end);
    if woken && !quiet {
        doorbell::examine(fd, end);
    }
    let edges = if quiet { None } else { edges_of(fd, end) };
    let section = Section::enter();
    end.arm(want);
    let armed = Armed::new(end, want, &call.armed);
    drop(section);
    // Before the last check: another reader of this end may publish held bytes when they are due,
    // and sends no notification. The connection may have come to its end here.
    let limit = lone_sleep_limit(end);
    if ready() {
        return Ok(());
    }
    let shut_read = end.private().has(flag::SHUT_RD);
    // With a spare descriptor a handler has to end the sleep, whatever its flags: see below.
    let natively =
        want == Want::Data && restart && quiet && !shut_read && limit.is_none() && !call.is_closed();
    let mut slept = match edges {
        _ if natively => sleep_in_receive(fd, end),
        Some(edges) if !shut_read => sleep_beside(&edges, fd, end, how, limit),
        _ => sleep_in_poll(fd, end, how, (shut_read, quiet, limit)),
    };
    drop(armed);
    let closed = call.is_closed();
    let handled = &mut call.handled;
    let again = matches!(slept, Err(libc::EBADF | libc::EINTR)) && restart && handled.happened();
    if closed && again && handlers::interrupting() == handled.interrupting {
        // A handler has run after which Linux restarts the call, with a number that is closed now.
        slept = Err(libc::EBADF);
    } else if closed && slept == Err(libc::EBADF) && held.spare.load(SeqCst) != 0 {
        // Its closer has left another.
        slept = Ok(false);
    }
    match slept {
        Ok(woken) => call.woken = woken,
        Err(libc::EINTR) if !natively && handled.happened() && !handled.interrupts(restart) => {}
        Err(errno) => return Err(errno),
    }
    if ready() {
        pause.finished();
    }
    Ok(())
}

/// A call that sleeps, from its first sleep to its end.
#[derive(Debug)]
pub(crate) struct BlockedCall<'a> {
    held: &'a Held,
    fd: c_int,
    handled: HandlerCount,
    /// A byte has ended its last sleep, and may still be queued there.
    woken: bool,
    /// The kind of waiter that it is counted as.
    pub(crate) armed: Cell<Option<Want>>,
    /// Registered for handlers that jump out of it ([`longjmp`]).
    pub(crate) registered: Cell<bool>,
}

impl<'a> BlockedCall<'a> {
    /// A call on `fd` that found `held` there.
    pub(crate) fn begin(fd: c_int, held: &'a Held) -> Self {
        held.sleepers.fetch_add(1, SeqCst);
        let (armed, registered) = (Cell::new(None), Cell::new(false));
        Self { held, fd, handled: HandlerCount::now(), woken: false, armed, registered }
    }

    /// Whether the call's own descriptor was closed.
    fn is_closed(&self) -> bool {
        !table::refers_to(self.fd, self.held)
    }

    /// The descriptor of the placeholder: the call's own, or the spare one. -1: neither.
    pub(crate) fn fd(&self) -> c_int {
        if !self.is_closed() {
            return self.fd;
        }
        self.held.spare.load(SeqCst).cast_signed() - 1
    }
}

impl longjmp::Abandon for BlockedCall<'_> {
    unsafe fn abandon(this: *const Self) {
        // SAFETY: the jump abandons the frame that owns this value, so nothing else drops it.
        let call = unsafe { this.read() };
        // SAFETY: as above; the reference that the call had to its description goes with it.
        let held = unsafe { std::ptr::from_ref(call.held).read() };
        if let (Some(want), Some(end)) = (call.armed.take(), held.end()) {
            end.disarm(want);
        }
        call.registered.set(false);
        drop(call);
        drop(held);
    }
}

impl Drop for BlockedCall<'_> {
    fn drop(&mut self) {
        if self.registered.get() {
            longjmp::unregister();
        }
        // After a fork within a handler the child's count begins anew.
        let before = self.held.sleepers.fetch_update(SeqCst, SeqCst, |count| count.checked_sub(1));
        if before == Ok(1) {
            let spare = self.held.spare.swap(0, SeqCst);
            if spare != 0 {
                close_spare(self.held, spare);
            }
        }
    }
}

#[cold]
fn close_spare(held: &Held, spare: u32) {
    if held.descriptors() == 0 {
        peer::announce_close(held);
    }
    in_flight::close(spare.cast_signed() - 1);
}

/// To be called before `fd` is closed: leaves the calls that sleep on it another descriptor. True:
/// they have one, so the connection has not ended yet.
pub(crate) fn leave_spare(fd: c_int, held: &Held) -> bool {
    if held.sleepers.load(SeqCst) == 0 {
        return false;
    }
    if held.spare.load(SeqCst) == 0 {
        let Some(second) = in_flight::InFlight::high_duplicate(fd) else { return false };
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
struct HandlerCount {
    all: u32,
    interrupting: u32,
}

impl HandlerCount {
    fn now() -> Self {
        Self { all: handlers::count(), interrupting: handlers::interrupting() }
    }

    fn happened(&self) -> bool {
        handlers::count() != self.all
    }

    /// Whether one has run since that ends a call. A handler after which the call continues is
    /// forgotten.
    fn interrupts(&mut self, restart: bool) -> bool {
        if !restart {
            return self.happened();
        }
        self.all = handlers::count();
        handlers::interrupting() != self.interrupting
    }
}

/// A caller that is counted as a waiter until it has returned, however it does.
struct Armed<'a> {
    end: &'a Endpoint,
    want: Want,
    noted: &'a Cell<Option<Want>>,
}

impl<'a> Armed<'a> {
    fn new(end: &'a Endpoint, want: Want, noted: &'a Cell<Option<Want>>) -> Self {
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
fn sleep_in_receive(fd: c_int, end: &Endpoint) -> Result<bool, Errno> {
    let drained = end.drained();
    let mut bytes = [0; foreign_bytes::MAX_EXAMINED];
    // A restricted process takes what it reads: it must not take what other waiters need.
    let most = if seccomp::is_restricted() { 1 } else { bytes.len() };
    match kernel::receive(fd, &mut bytes[..most], libc::MSG_PEEK) {
        Ok(0) | Err(libc::ECONNRESET) => {
            check_peer_closed(fd, end);
            Ok(false)
        }
        Ok(all) => {
            let queued = bytes.get(..all).unwrap_or_default();
            foreign_bytes::check(Number(fd, end), end, queued, foreign_bytes::Found { all, drained });
            Ok(true)
        }
        // O_NONBLOCK was set in a way that the library did not see.
        Err(libc::EAGAIN) => {
            let how = SleepOptions { want: Want::Data, deadline: None, restart: true };
            sleep_in_poll(fd, end, how, (false, true, None))
        }
        Err(errno) => Err(errno),
    }
}

/// An epoll that ignores the bytes that are queued on a placeholder, and reports new ones.
#[cold]
fn edges_of(fd: c_int, end: &Endpoint) -> Option<Edges> {
    doorbell::thin(fd, end);
    let mut edges = Edges::new()?;
    if !edges.add(fd) {
        return None;
    }
    edges.discard_reported();
    Some(edges)
}

#[cold]
fn sleep_beside(
    edges: &Edges,
    fd: c_int,
    end: &Endpoint,
    how: SleepOptions,
    limit: Option<u64>,
) -> Result<bool, Errno> {
    let slice = longest(how, (false, true, limit))?;
    match edges.wait((slice != u64::MAX).then_some(slice))? {
        None => Ok(false),
        Some(events) => {
            if events & libc::EPOLLHUP as u32 != 0 {
                end.hung_up();
            } else if events & libc::EPOLLRDHUP as u32 != 0 {
                check_peer_closed(fd, end);
            }
            Ok(true)
        }
    }
}

/// Three facts about a sleep: the placeholder no longer receives bytes; it is empty; how long it
/// may be ([`lone_sleep_limit`]).
type Circumstances = (bool, bool, Option<u64>);

/// Nanoseconds of a sleep at most; `u64::MAX`: no limit.
///
/// # Errors
/// `EAGAIN` at the deadline.
fn longest(how: SleepOptions, (shut_read, quiet, limit): Circumstances) -> Result<u64, Errno> {
    let longest = match how.want {
        _ if shut_read => SHUT_READ_SLICE,
        _ if !quiet => SLICE,
        Want::Room => limit.unwrap_or(u64::MAX).min(ROOM_SLICE),
        Want::Data => limit.unwrap_or(u64::MAX),
    };
    let left = match how.deadline {
        None => u64::MAX,
        Some(deadline) => match deadline.saturating_sub(kernel::now()) {
            0 => return Err(libc::EAGAIN),
            left => left,
        },
    };
    Ok(left.min(longest))
}

fn sleep_in_poll(fd: c_int, end: &Endpoint, how: SleepOptions, at: Circumstances) -> Result<bool, Errno> {
    let (slice, (shut_read, quiet, _)) = (longest(how, at)?, at);
    let timeout = (slice != u64::MAX).then(|| libc::timespec {
        tv_sec: (slice / 1_000_000_000).cast_signed(),
        tv_nsec: (slice % 1_000_000_000).cast_signed(),
    });
    let events = match (shut_read, quiet) {
        (true, _) => 0,
        (false, true) => libc::POLLIN | libc::POLLRDHUP,
        (false, false) => libc::POLLRDHUP,
    };
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
    } else if seen & libc::POLLRDHUP != 0 {
        check_peer_closed(fd, end);
    }
    Ok(true)
}
