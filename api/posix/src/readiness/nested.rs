//! An epoll that is watched by another epoll or by poll.
//!
//! 1. The kernel knows whether its part of the inner epoll is readable: its own descriptors, and
//!    placeholders that were notified. The watcher polls the inner epoll's descriptor like any
//!    other.
//! 2. What is ready in shared memory and was notified before is on the inner epoll's list. So it is
//!    enough to check the list, and to arm all of it before sleeping. From then on the inner epoll
//!    is shared: everything in it stays armed.
//! 3. A placeholder with old doorbell bytes keeps the inner epoll readable for the kernel. If the
//!    kernel reports it as readable, the bytes of what is not ready are taken out. Those of what is
//!    ready stay: other watchers were woken by them and ask the kernel once more before they
//!    return. Registrations that were notified or hung up go on the list and are checked, and the
//!    kernel is polled again. The inner epoll's own waiter is still notified. A placeholder that
//!    has hung up, or no longer reads, would stay readable without bringing anything: the kernel
//!    stops watching it. One that was forced is watched for data alone again. Epolls within the
//!    inner epoll are treated in the same way. A nested one-shot epoll that was reported is watched
//!    for nothing until it is modified ([`Registrations::report`]).
//! 4. **Edges.** In the kernel, whatever wakes an item of the inner epoll wakes its watcher, ready
//!    before or not. So the inner epoll counts what wakes its streams ([`Registrations::notice`],
//!    against numbers of its own, not those of its waiters). An edge-triggered watcher is due when
//!    the count has changed, or when the kernel has reported a descriptor of its own as readable.

use std::ffi::c_int;

use crate::connection::doorbell;
use crate::descriptor::description::Held;
use crate::descriptor::table;
use crate::readiness::check;
use crate::readiness::set::registrations::Registrations;
use crate::readiness::set::shared::{Flag, SlotKind, bit};
use crate::readiness::set::{EpollSet, set_of};
use crate::system::kernel;

/// The events found in an epoll.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    /// A stream, or an epoll within, is ready.
    pub(crate) memory: bool,
    /// The kernel reported it as readable, and not for a doorbell alone.
    pub(crate) kernel: bool,
    /// The number of wake-ups of its watchers so far.
    pub(crate) edges: u64,
}

impl Found {
    /// Whether the epoll has something to report.
    pub(crate) const fn is_ready(self) -> bool {
        self.memory || self.kernel
    }
}

/// How long a watcher of an epoll may sleep at most for what is in it ([`check::sleep_limit`]).
pub(crate) fn sleep_limit(held: &Held) -> Option<u64> {
    set_of(held).and_then(EpollSet::lock).and_then(|mut locked| locked.sleep_limit())
}

/// Checks an epoll. `reported`: the kernel has said that it is readable, which is verified. `arm`:
/// the caller is about to sleep.
pub(crate) fn check(fd: c_int, held: &Held, reported: bool, arm: bool) -> Found {
    let mut found = Found::default();
    if let Some(set) = set_of(held)
        && let Some(mut locked) = set.lock()
    {
        if locked.left_open != 0 {
            locked.sweep();
        }
        locked.begin_to_notice();
        locked.recheck();
        if reported {
            locked.take_stale_doorbells();
        }
        if arm {
            locked.prepare_sleep(0);
        }
        found.memory = locked.notice_all();
        found.edges = locked.edges;
    }
    found.kernel = reported && is_readable(fd, held);
    found
}

/// Whether the kernel has something to report of an epoll: through `fd`, by which it was
/// registered, or another of its descriptors if that is closed or another file by now.
pub(crate) fn is_readable(fd: c_int, held: &Held) -> bool {
    let Some(fd) = check::open_descriptor(fd, held) else { return false };
    let mut one = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    kernel::poll(&mut one, Some(libc::timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready != 0)
}

impl Registrations {
    /// The epoll has a watcher from now on: what happened before is no edge.
    fn begin_to_notice(&mut self) {
        self.share();
        if self.has_watchers.is_yes() {
            return;
        }
        self.has_watchers = Flag::YES;
        let before = self.edges;
        for number in self.numbers() {
            self.notice(number);
        }
        self.edges = before;
    }

    /// Counts what has woken registrations on the list. Whether any is ready.
    fn notice_all(&mut self) -> bool {
        let mut ready = false;
        for position in 0..self.listed() {
            let number = self.at(position);
            ready |= self.notice(number);
        }
        ready
    }

    /// Puts every registration that was notified since it was armed on the list, and takes the
    /// bytes out of its placeholder if it is not ready.
    fn take_stale_doorbells(&mut self) {
        for number in self.numbers() {
            let (slot, held) = self.slot_and_held(number);
            let (what, fd) = (slot.kind(), slot.fd);
            if !matches!(what, SlotKind::Stream | SlotKind::Nested) {
                continue;
            }
            let Some(held) = held.cloned() else { continue };
            if what == SlotKind::Nested {
                // The kernel reports the outer one as readable as long as it does so for this one.
                if let Some(mut inner) = set_of(&held).and_then(EpollSet::lock) {
                    inner.take_stale_doorbells();
                }
                continue;
            }
            let Some(end) = held.end() else { continue };
            // One that has shut down reading would stay readable as well.
            if check::has_shut_read(end) || check::has_hung_up(fd, &held, end) {
                self.stop_watching(number);
                self.put_on_list(number);
                continue;
            }
            self.quieten(number);
            if end.undrained() == 0 {
                continue;
            }
            // A thread that sleeps in this epoll has not seen the byte yet, and gets what is due to
            // it.
            let counted = if self.sleepers == 0 { self.counted(number) } else { 0 };
            let is_ready = self.peek(number).0 != 0;
            let slot = self.slot(number);
            slot.state |= bit::NOTIFIED;
            if !is_ready && table::refers_to(slot.fd, &held) {
                doorbell::empty(slot.fd, end, counted);
            }
            self.put_on_list(number);
        }
    }
}
