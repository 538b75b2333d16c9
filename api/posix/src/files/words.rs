//! A word for each descriptor: the number of its [`File`](super::state::File) plus one, 0 for a
//! descriptor that is not of a mount, and [`HIDDEN`] for one of this library.

use std::ffi::c_int;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::descriptor::description::DESCRIPTORS;

/// A descriptor of a client in this process: the program has not opened it, and does not close it.
pub(crate) const HIDDEN: u32 = u32::MAX;

static WORDS: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];

/// One past the highest descriptor that ever had a word.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// The word of a descriptor.
#[inline]
pub(crate) fn get(fd: c_int) -> u32 {
    WORDS.get(fd.cast_unsigned() as usize).map_or(0, |word| word.load(Acquire))
}

/// Sets the word of a descriptor. `false`: the number is too high.
pub(crate) fn set(fd: c_int, word: u32) -> bool {
    let Some(slot) = WORDS.get(fd.cast_unsigned() as usize) else { return false };
    HIGHEST.fetch_max(fd.cast_unsigned() + 1, AcqRel);
    slot.store(word, Release);
    true
}

/// Removes the word of a descriptor, and returns it.
#[inline]
pub(crate) fn take(fd: c_int) -> u32 {
    match WORDS.get(fd.cast_unsigned() as usize) {
        // The usual descriptor costs no write.
        Some(word) if word.load(Relaxed) != 0 => word.swap(0, AcqRel),
        _ => 0,
    }
}

/// Descriptors from `first` to `last` that may have a word.
pub(crate) fn range(first: u32, last: u32) -> std::ops::Range<c_int> {
    let end = HIGHEST.load(Acquire).min(last.saturating_add(1));
    first.min(end).cast_signed()..end.cast_signed()
}
