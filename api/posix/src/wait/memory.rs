//! Memory for one call that waits, without the heap.

use std::ptr;

use crate::signal::longjmp;

/// Memory for one call, without the heap.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Its first byte: a page of zeroes begins there.
    pub(crate) start: *mut libc::c_void,
    length: usize,
}

impl Memory {
    /// So many bytes of zeroes.
    pub(crate) fn map(length: usize) -> Option<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping of its own.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
        (start != libc::MAP_FAILED).then(|| Self { start, length })
    }
}

impl longjmp::Abandon for Memory {
    unsafe fn abandon(this: *const Self) {
        // SAFETY: the jump abandons the frame that owns this value, so nothing else drops it.
        drop(unsafe { this.read() });
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made.
        unsafe { libc::munmap(self.start, self.length) };
    }
}
