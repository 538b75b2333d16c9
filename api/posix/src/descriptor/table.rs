//! Which descriptors are ours: a word for each descriptor that a process can have.
//!
//! A word is 0 (the descriptor is the kernel's) or the number and the generation of a
//! [`Description`](crate::descriptor::description::Description). A look-up of a kernel descriptor
//! is one load and one branch. A look-up of one of ours takes a counted reference; if another
//! thread closed the descriptor meanwhile, the look-up reads the word again.
//!
//! While a thread changes what a number is ([`Change`]), the word is busy ([`BUSY`]): alone where
//! the number gets another description or none, beside the description where that stays and gets
//! another file. No such word names a description, so a look-up fails as for a closed descriptor;
//! it then waits for the change.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use sietch_ring::stream::Endpoint;

use crate::descriptor::change::Change;
use crate::descriptor::description::{DESCRIPTORS, Held, description, hold};

/// The bit of a busy word. Numbers of descriptions are smaller.
const BUSY: u64 = 1 << 31;

const _: () = assert!(DESCRIPTORS < BUSY as usize);

/// Words that became busy, for [`changes`].
static CHANGES: AtomicU64 = AtomicU64::new(0);

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
        if entry & BUSY != 0 && !wait_for_change(slot) {
            return hold(entry & !BUSY);
        }
    }
}

/// As [`find`], without a wait. `None`: the word is busy, or was another one a moment ago.
#[inline]
pub(crate) fn find_now(fd: c_int) -> Option<Option<Held>> {
    match word(fd) {
        0 => Some(None),
        word => hold(word).map(Some),
    }
}

/// Waits until a busy word is none. False: the calling thread has made it busy.
#[cold]
fn wait_for_change(slot: &AtomicU64) -> bool {
    let change = Change::begin();
    if change.is_nested() {
        return false;
    }
    // Words are busy under the lock alone. This one was when a fork without handlers made this
    // process, in which the thread that would have finished does not exist.
    let entry = slot.load(Acquire);
    if entry & BUSY != 0 {
        let _ = slot.compare_exchange(entry, entry & !BUSY, AcqRel, Relaxed);
    }
    true
}

/// The word of a number, to be compared with a later one; for a thread in a [`Change`].
pub(crate) fn word(fd: c_int) -> u64 {
    entry(fd).map_or(0, |entry| entry.load(Acquire))
}

/// Removes a descriptor's word, and makes it busy; the reference that it was. For a thread in a
/// [`Change`], which then calls [`put`] or [`settle`].
pub(crate) fn withdraw(fd: c_int) -> Option<Held> {
    let slot = entry(fd)?;
    HIGHEST.fetch_max(fd.cast_unsigned() + 1, AcqRel);
    CHANGES.fetch_add(1, AcqRel);
    Held::of_word(slot.swap(BUSY, AcqRel))
}

/// The number of a withdrawn word is the kernel's now, or another thread's that has got it.
pub(crate) fn settle(fd: c_int) {
    if let Some(slot) = entry(fd) {
        let _ = slot.compare_exchange(BUSY, 0, AcqRel, Relaxed);
    }
}

/// Makes a descriptor's word busy beside its description. False: it is of another one. For a
/// thread in a [`Change`], which then calls [`keep`].
pub(crate) fn hold_back(fd: c_int, held: &Held) -> bool {
    CHANGES.fetch_add(1, AcqRel);
    let word = held.identity();
    entry(fd).is_some_and(|slot| slot.compare_exchange(word, word | BUSY, AcqRel, Relaxed).is_ok())
}

/// Ends [`hold_back`], unless the word is another by now.
pub(crate) fn keep(fd: c_int, held: &Held) {
    let word = held.identity();
    if let Some(slot) = entry(fd) {
        let _ = slot.compare_exchange(word | BUSY, word, AcqRel, Relaxed);
    }
}

/// How many words were busy so far (wrapping): what a number is between two equal answers, it was
/// all the time.
pub(crate) fn changes() -> u64 {
    CHANGES.load(Acquire)
}

/// Whether a descriptor refers to the description whose end this is.
pub(crate) fn is_of(fd: c_int, end: &Endpoint) -> bool {
    let word = word(fd) & !BUSY;
    description((word as u32).wrapping_sub(1))
        .is_some_and(|found| found.is_end(end) && found.identity() == word)
}

/// A descriptor that refers to the description whose end this is.
pub(crate) fn any_of(end: &Endpoint) -> Option<c_int> {
    (0..highest()).find(|fd| is_of(*fd, end))
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
    word(fd) & !BUSY == held.identity()
}

/// Calls `each` for every descriptor that refers to a description.
pub(crate) fn each_of(held: &Held, mut each: impl FnMut(c_int)) {
    (0..highest()).filter(|fd| refers_to(*fd, held)).for_each(&mut each);
}

#[cfg(test)]
mod tests;
