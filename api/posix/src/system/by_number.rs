//! Calls that a program makes by number (`syscall(2)`).
//!
//! Allocators and other libraries implement functions of the C library by such calls: gperftools'
//! `mmap` is a `syscall(SYS_mmap)`. So such a call must end in the kernel. A function of the C
//! library's name, which may be that other library's, would call `syscall` again, without end.

use std::cell::Cell;

/// The call by number that a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByNumber {
    /// None.
    No,
    /// One that is no cancellation point.
    Whole,
    /// One of a thread with the asynchronous type of cancellation: it is cancelled where it sleeps.
    Cancellable,
}

thread_local! {
    static ACTIVE: Cell<ByNumber> = const { Cell::new(ByNumber::No) };
}

/// Whether the calling thread is in such a call: [`crate::system::originals`] then makes system
/// calls.
#[inline]
pub(crate) fn is_active() -> bool {
    ACTIVE.get() != ByNumber::No
}

/// The one that the calling thread is in.
#[inline]
pub(crate) fn active() -> ByNumber {
    ACTIVE.get()
}

/// Sets it; what it was before.
pub(crate) fn set_active(active: ByNumber) -> ByNumber {
    ACTIVE.replace(active)
}
