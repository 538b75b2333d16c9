//! Which descriptors are ours: a word for each descriptor that a process can have.
//!
//! A word is 0 (the descriptor is the kernel's) or the number and the generation of a
//! [`Description`](crate::descriptor::description::Description). A look-up of a kernel descriptor
//! is one load and one branch. A look-up of one of ours takes a counted reference; if another
//! thread closed the descriptor meanwhile, the look-up reads the word again.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::descriptor::description::{DESCRIPTORS, Held, hold};

/// The kernel returned a number that the table has as ours: it was closed in a way that the library
/// did not see.
pub(crate) fn forget_stale(fd: c_int) {
    if is_ours(fd) {
        drop(remove(fd));
    }
}

static TABLE: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];

/// One past the highest descriptor that ever was ours: how far scans go.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

fn entry(fd: c_int) -> Option<&'static AtomicU64> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Whether a descriptor is ours at this moment: one load and one branch.
#[inline]
pub fn is_ours(fd: c_int) -> bool {
    TABLE.get(fd.cast_unsigned() as usize).is_some_and(|entry| entry.load(Acquire) != 0)
}

/// The description of a descriptor, if it is ours.
#[inline]
pub fn find(fd: c_int) -> Option<Held> {
    let slot = TABLE.get(fd.cast_unsigned() as usize)?;
    loop {
        let entry = slot.load(Acquire);
        if entry == 0 {
            return None;
        }
        // Fails only if the word has changed since: another thread closed the descriptor.
        if let Some(held) = hold(entry) {
            return Some(held);
        }
    }
}

/// Makes a descriptor refer to a description. A reference that was there before is dropped: the
/// program closed the descriptor in a way that the library did not see. False: the number is too
/// high for the table.
pub fn put(fd: c_int, held: &Held) -> bool {
    let Some(slot) = entry(fd) else { return false };
    HIGHEST.fetch_max(fd.cast_unsigned() + 1, AcqRel);
    let before = slot.swap(held.clone().into_word(), AcqRel);
    drop(Held::of_word(before));
    true
}

/// Removes a descriptor's word; the reference that it was.
pub(crate) fn remove(fd: c_int) -> Option<Held> {
    Held::of_word(entry(fd)?.swap(0, AcqRel))
}

/// One past the highest descriptor that ever was ours.
pub(crate) fn highest() -> c_int {
    HIGHEST.load(Acquire).cast_signed()
}

/// Descriptors up to `last` that may be ours.
pub(crate) fn highest_below(last: u32) -> std::ops::Range<c_int> {
    0..highest().min(c_int::try_from(last).map_or(c_int::MAX, |last| last.saturating_add(1)))
}

/// Whether a descriptor refers to a description.
pub(crate) fn refers_to(fd: c_int, held: &Held) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Acquire) == held.identity())
}

/// Calls `each` for every descriptor that refers to a description.
pub(crate) fn each_of(held: &Held, mut each: impl FnMut(c_int)) {
    (0..highest()).filter(|fd| refers_to(*fd, held)).for_each(&mut each);
}

#[cfg(test)]
mod tests;
