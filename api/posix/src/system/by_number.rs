//! Calls that a program makes by number (`syscall(2)`).
//!
//! Allocators and other libraries implement functions of the C library by such calls: gperftools'
//! `mmap` is a `syscall(SYS_mmap)`. So such a call must end in the kernel. A function of the C
//! library's name, which may be that other library's, would call `syscall` again, without end.

use std::cell::Cell;

thread_local! {
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is in such a call: [`crate::system::originals`] then makes system
/// calls.
#[inline]
pub(crate) fn is_active() -> bool {
    ACTIVE.get()
}

/// Sets whether it is; what it was before.
pub(crate) fn set_active(active: bool) -> bool {
    ACTIVE.replace(active)
}
