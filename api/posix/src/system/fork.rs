//! A page that the kernel wipes in a child of fork (`MADV_WIPEONFORK`).
//!
//! Its first word distinguishes a child from its parent, and so does its third. Its second word and
//! its fourth are locks that are free in the child, because the thread that held one exists in the
//! parent alone.

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicPtr, AtomicU32};

use crate::system::memory;

/// Words of a page that the kernel wipes in a child of fork.
static WIPED: AtomicPtr<[AtomicU32; 4]> = AtomicPtr::new(ptr::null_mut());

/// A word that is 0 in a child of fork until the child is recognised, and 1 otherwise. `None`: no
/// memory.
#[inline]
pub(crate) fn own_word() -> Option<&'static AtomicU32> {
    own_words().map(|[own, ..]| own)
}

/// A word for a lock among the threads of this process: free in a child of fork, in which the
/// parent's holder does not exist. `None`: no memory.
pub(crate) fn forgotten_by_fork() -> Option<&'static AtomicU32> {
    own_words().map(|[_, lock, ..]| lock)
}

/// As [`forgotten_by_fork`], for changes of descriptors.
#[inline]
pub(crate) fn changing_descriptors() -> Option<&'static AtomicU32> {
    own_words().map(|[.., lock]| lock)
}

/// As [`own_word`], for the files of mounts.
#[inline]
pub(crate) fn own_word_of_files() -> Option<&'static AtomicU32> {
    own_words().map(|[_, _, own, _]| own)
}

#[inline]
fn own_words() -> Option<&'static [AtomicU32; 4]> {
    // SAFETY: null, or the start of a page of such words, which is never unmapped.
    unsafe { WIPED.load(Acquire).as_ref() }.or_else(make_own_words)
}

#[cold]
fn make_own_words() -> Option<&'static [AtomicU32; 4]> {
    const PAGE: usize = 4096;
    let page = memory::map(ptr::null_mut(), PAGE, libc::MAP_PRIVATE)?;
    let new = page.cast::<[AtomicU32; 4]>();
    // SAFETY: a page of zeros that is this function's until it is published.
    unsafe {
        libc::madvise(page.as_ptr().cast(), PAGE, libc::MADV_WIPEONFORK);
        new.as_ref()[0].store(1, Relaxed);
        new.as_ref()[2].store(1, Relaxed);
    }
    match WIPED.compare_exchange(ptr::null_mut(), new.as_ptr(), AcqRel, Acquire) {
        // SAFETY: never unmapped from here on.
        Ok(_) => Some(unsafe { new.as_ref() }),
        Err(other) => {
            // SAFETY: another thread was first; nothing refers to this page.
            unsafe { libc::munmap(page.as_ptr().cast(), PAGE) };
            // SAFETY: as in `own_words`.
            unsafe { other.as_ref() }
        }
    }
}
