//! What happens to registrations when descriptors are closed, or become what they were not.
//!
//! 1. A description counts its registrations in this process ([`count_watch`]), so that the close
//!    of what is registered nowhere costs one load.
//! 2. The close of the last descriptor of a description takes its registrations out of every epoll,
//!    as the kernel does, unless another process may have it open still (`interest`, step 6). The
//!    close of one of several leaves them, as the kernel does: they go on reporting with the data
//!    that they were given.
//! 3. A kernel's socket that becomes a stream or a listener has another file put at its descriptor:
//!    the kernel drops its registrations with the old file. They were remembered ([`What::Native`])
//!    and are made again here, with the program's data for a listener and as a placeholder for a
//!    stream. The same goes for a listener that is registered again after the service's death.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use super::interest::{self, Body, Interest, What, bit};
use super::{control, family, kernel};
use crate::table::{Attached, Held, Kind};

/// Counts a registration of a description, or one less.
pub(super) fn count_watch(held: &Held, more: bool) {
    let _ = held.watchers.fetch_update(AcqRel, Acquire, |now| {
        let count = if more { now.addr() + 1 } else { now.addr().saturating_sub(1) };
        Some(ptr::without_provenance_mut(count))
    });
}

/// The interest of an epoll, if it has one.
#[inline]
pub(super) fn interest_of(held: &Held) -> Option<&'static Interest> {
    // SAFETY: null, or an interest, which is never unmapped.
    let interest = unsafe { held.epoll.load(Acquire).cast::<Interest>().as_ref() }?;
    if interest.is_inherited() {
        interest.come_in();
    }
    Some(interest)
}

/// The last reference to an epoll's description went.
///
/// # Safety
/// `attached` is a pointer to an interest.
pub unsafe fn release(attached: *mut Attached) {
    // SAFETY: the caller's; an interest begins with its `Attached`, and is never unmapped.
    unsafe { &*attached.cast::<Interest>() }.give_back();
}

/// A descriptor of ours is about to be closed; its word has been taken from the table.
#[inline]
pub fn closing(fd: c_int, held: &Held) {
    if !held.watchers.load(Acquire).is_null() && held.descriptors() == 0 {
        forget(fd, held);
    }
}

#[cold]
fn forget(fd: c_int, held: &Held) {
    if family::any_lives() {
        leave(held);
        return;
    }
    for interest in interest::each() {
        let Some(mut body) = interest.lock() else { continue };
        if let Some(number) = body.find(fd, held) {
            body.remove(number);
        }
    }
    if held.watchers.load(Acquire).is_null() {
        return;
    }
    // Registered by other descriptors, which were closed before.
    for interest in interest::each() {
        let Some(mut body) = interest.lock() else { continue };
        for number in body.numbers() {
            if registers(&mut body, number, held) {
                body.remove(number);
            }
        }
        body.forget_removed(held);
    }
}

/// Another process may have it open still, and then the kernel keeps the registrations.
fn leave(held: &Held) {
    for interest in interest::each() {
        let Some(mut body) = interest.lock() else { continue };
        for number in body.numbers() {
            if registers(&mut body, number, held) {
                body.slot(number).state |= bit::LEFT;
                body.left = body.left.saturating_add(1);
            }
        }
        body.forget_removed(held);
    }
}

impl Body {
    /// Takes out what was left here and has been closed elsewhere too.
    #[cold]
    pub(super) fn sweep(&mut self) {
        for number in self.numbers() {
            let slot = self.slot(number);
            let (fd, state) = (slot.fd, slot.state);
            if slot.what() == What::Nothing || state & bit::LEFT == 0 {
                continue;
            }
            let open = self.numbers().filter(|other| self.is_registered(*other, fd)).count();
            let there = kernel::registrations(self.epfd, fd);
            if state & bit::GONE != 0 || there.is_none_or(|there| there <= open) {
                self.remove(number);
            }
        }
    }

    /// Whether the kernel has a slot's registration by a descriptor, as far as this process can
    /// tell.
    fn is_registered(&mut self, number: u32, fd: c_int) -> bool {
        let slot = self.slot(number);
        slot.what() != What::Nothing && slot.fd == fd && slot.state & (bit::LEFT | bit::GONE) == 0
    }
}

fn registers(body: &mut Body, number: u32, held: &Held) -> bool {
    let (slot, other) = body.slot_and_held(number);
    slot.what() != What::Nothing && other.is_some_and(|other| other.number() == held.number())
}

/// Lets whoever sleeps in an epoll look at a description that is registered there.
#[cold]
pub fn wake_watchers(held: &Held) {
    for interest in interest::each() {
        let Some(mut body) = interest.lock() else { continue };
        for number in body.numbers() {
            // Not what the program has taken out.
            let watched = matches!(body.slot(number).what(), What::Stream | What::Nested);
            if watched && registers(&mut body, number, held) {
                body.put_on_list(number);
                control::announce(&mut body, number);
            }
        }
    }
}

/// Another file is about to be put at a descriptor. The kernel would watch the one that was there
/// as long as another process has it: a worker would hear for ever that the placeholder of its
/// master has hung up.
pub fn replacing(fd: c_int, held: &Held) {
    if held.watchers.load(Acquire).is_null() {
        return;
    }
    for interest in interest::each() {
        let Some(mut body) = interest.lock() else { continue };
        if body.find(fd, held).is_some() {
            // SAFETY: no event is read for this call.
            let _ = unsafe { kernel::epoll_ctl(body.epfd, libc::EPOLL_CTL_DEL, fd, ptr::null()) };
        }
    }
}

/// Another file was put at a descriptor: a pending socket became a stream or a listener, or a
/// listener was registered again.
pub fn replaced(fd: c_int, held: &Held) {
    if held.watchers.load(Acquire).is_null() {
        return;
    }
    for interest in interest::each() {
        let Some(mut body) = interest.lock() else { continue };
        let Some(number) = body.find(fd, held) else { continue };
        if held.kind() == Kind::Stream && body.slot(number).what() == What::Native {
            body.becomes(number, What::Stream);
        }
        let _ = control::register(&body.epoll_and_slot(number));
        control::announce(&mut body, number);
    }
}
