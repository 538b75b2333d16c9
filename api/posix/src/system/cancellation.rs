//! Cancellation of threads (`pthread_cancel(3)`): not in the middle of a change.
//!
//! What the library does for a call may make system calls at which the C library cancels a thread.
//! It would unwind the thread past locks, which Rust does not allow.

use std::ffi::c_int;

/// `PTHREAD_CANCEL_DISABLE` of `<pthread.h>`.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

/// The thread is not cancelled while one of these exists. They nest.
#[derive(Debug)]
pub(crate) struct Whole(c_int);

impl Whole {
    /// Begins.
    #[inline]
    pub(crate) fn begin() -> Self {
        let mut before = 0;
        // SAFETY: writes the state before.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Whole {
    #[inline]
    fn drop(&mut self) {
        let mut before = 0;
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(self.0, &raw mut before) };
    }
}

/// Ends the thread if it was cancelled: where a call of the C library would.
///
/// # Safety
/// Nothing that must be dropped is in the frames of this library.
#[inline]
pub(crate) unsafe fn point() {
    // SAFETY: the caller upholds this function's contract.
    unsafe { pthread_testcancel() };
}
