//! Changes of registrations when descriptors are closed or change their kind, and at a fork.
//!
//! 1. A description counts its registrations in this process, so that closing a descriptor that is
//!    registered nowhere costs one load.
//! 2. Closing the last descriptor of a description removes its registrations from every epoll, as
//!    the kernel does. It keeps them if another process may still have the file open
//!    ([`crate::readiness::set`], step 6). Closing one of several descriptors leaves them, as the
//!    kernel does: they continue to report, with their data.
//! 3. When a kernel socket becomes a stream or a listener, another file is put at its descriptor.
//!    The kernel drops the registrations with the old file. The library has remembered them
//!    ([`SlotKind::Native`]) and makes them again: with the program's data for a listener, as a
//!    placeholder for a stream. The same holds for a listener that is registered again after a
//!    restart of the service.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::Acquire;

use sietch_ring::stream::{Endpoint, Want};

use crate::descriptor::description::{self, Held, Kind};
use crate::descriptor::table;
use crate::readiness::control;
use crate::readiness::set::registrations::Registrations;
use crate::readiness::set::shared::{SlotKind, bit};
use crate::readiness::set::{self, sharing};
use crate::readiness::tag;
use crate::system::multiplexing;

/// Before a fork, in the parent.
pub(crate) fn before_fork() {
    sharing::before_fork();
    tag::before_fork();
}

/// In the child of a fork, before anything else runs there.
pub(crate) fn after_fork() {
    set::recognise_child();
    // Threads of the parent do not sleep here.
    for fd in 0..table::highest() {
        if let Some(held) = table::find(fd).filter(|held| held.kind() == description::Kind::Epoll) {
            held.kernel_only_waiters.store(0, std::sync::atomic::Ordering::SeqCst);
        }
    }
}

/// A writer found no room, so room is an edge from now on. A thread of this process or another may
/// sleep in an epoll without a request for room. The request is made here in its place.
#[cold]
pub(crate) fn note_no_room(held: &Held, end: &Endpoint) {
    if end.note_full() && !held.watchers.load(std::sync::atomic::Ordering::Acquire).is_null() {
        end.request_for_others(Want::Room);
        if end.is_writable() {
            // It came in between, and no notification was sent.
            end.withdraw_request(Want::Room);
            wake_watchers(held);
        }
    }
}

/// A descriptor of ours is about to be closed; its word has been taken from the table.
#[inline]
pub(crate) fn closing(fd: c_int, held: &Held) {
    if !held.watchers.load(Acquire).is_null() && held.descriptors() == 0 {
        forget(fd, held);
    }
}

#[cold]
fn forget(fd: c_int, held: &Held) {
    if sharing::any_relative_exists() {
        leave(held);
        return;
    }
    for set in set::each() {
        let Some(mut locked) = set.lock() else { continue };
        if let Some(number) = locked.find(fd, held) {
            locked.remove(number);
        }
    }
    if held.watchers.load(Acquire).is_null() {
        return;
    }
    // Registered by other descriptors, which were closed before.
    for set in set::each() {
        let Some(mut locked) = set.lock() else { continue };
        for number in locked.numbers() {
            if registers(&mut locked, number, held) {
                locked.remove(number);
            }
        }
        locked.forget_removed(held);
    }
}

/// Another process may have it open still, and then the kernel keeps the registrations.
fn leave(held: &Held) {
    for set in set::each() {
        let Some(mut locked) = set.lock() else { continue };
        for number in locked.numbers() {
            if registers(&mut locked, number, held) {
                locked.slot(number).state |= bit::LEFT_OPEN;
                locked.left_open = locked.left_open.saturating_add(1);
            }
        }
        locked.forget_removed(held);
    }
}

impl Registrations {
    /// Removes what was left here and has been closed elsewhere too.
    #[cold]
    pub(crate) fn sweep(&mut self) {
        for number in self.numbers() {
            let slot = self.slot(number);
            let (fd, state) = (slot.fd, slot.state);
            if slot.kind() == SlotKind::Nothing || state & bit::LEFT_OPEN == 0 {
                continue;
            }
            let open = self.numbers().filter(|other| self.is_registered(*other, fd)).count();
            let there = multiplexing::registrations(self.epfd, fd);
            if state & bit::UNWATCHED != 0 || there.is_none_or(|there| there <= open) {
                self.remove(number);
            }
        }
    }

    /// Whether the kernel has a slot's registration by a descriptor, as far as this process knows.
    fn is_registered(&mut self, number: u32, fd: c_int) -> bool {
        let slot = self.slot(number);
        slot.kind() != SlotKind::Nothing
            && slot.fd == fd
            && slot.state & (bit::LEFT_OPEN | bit::UNWATCHED) == 0
    }
}

fn registers(locked: &mut Registrations, number: u32, held: &Held) -> bool {
    let (slot, other) = locked.slot_and_held(number);
    slot.kind() != SlotKind::Nothing && other.is_some_and(|other| other.number() == held.number())
}

/// Has every epoll's sleepers check a description that is registered there.
#[cold]
pub(crate) fn wake_watchers(held: &Held) {
    for set in set::each() {
        let Some(mut locked) = set.lock() else { continue };
        for number in locked.numbers() {
            // Not what the program has removed.
            let watched = matches!(locked.slot(number).kind(), SlotKind::Stream | SlotKind::Nested);
            if watched && registers(&mut locked, number, held) {
                locked.put_on_list(number);
                control::announce(&mut locked, number);
            }
        }
    }
}

/// Another file is about to be put at a descriptor. The kernel would watch the old one as long as
/// another process has it. A worker would then be notified without end that the placeholder of its
/// master has hung up.
pub(crate) fn replacing(fd: c_int, held: &Held) {
    if held.watchers.load(Acquire).is_null() {
        return;
    }
    for set in set::each() {
        let Some(mut locked) = set.lock() else { continue };
        if locked.find(fd, held).is_some() {
            // SAFETY: no event is read for this call.
            let _ = unsafe { multiplexing::epoll_ctl(locked.epfd, libc::EPOLL_CTL_DEL, fd, ptr::null()) };
        }
    }
}

/// Another file was put at a descriptor: a pending socket became a stream or a listener, or a
/// listener was registered again.
pub(crate) fn replaced(fd: c_int, held: &Held) {
    if held.watchers.load(Acquire).is_null() {
        return;
    }
    for set in set::each() {
        let Some(mut locked) = set.lock() else { continue };
        let Some(number) = locked.find(fd, held) else { continue };
        if held.kind() == Kind::Stream && locked.slot(number).kind() == SlotKind::Native {
            locked.become_stream(number);
        }
        let _ = control::register(&locked.epoll_and_slot(number));
        control::announce(&mut locked, number);
    }
}
