//! The processor that a thread runs on, the number of processors, and yielding.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::system::{seccomp, sys};

/// Yields the processor to another runnable thread.
pub(crate) fn yield_now() {
    if seccomp::is_restricted() {
        return std::hint::spin_loop();
    }
    // SAFETY: touches no memory.
    unsafe { sys::raw_syscall(libc::SYS_sched_yield, [0; 6]) };
}

/// The processor that the caller runs on. Some nanoseconds: the C library reads it from the
/// thread's restartable-sequence area.
#[inline]
pub(crate) fn processor() -> u32 {
    // SAFETY: touches no memory.
    unsafe { libc::sched_getcpu() }.cast_unsigned()
}

/// Processors of the machine. A thread that is pinned to one of several polls too.
pub(crate) fn processors() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    match COUNT.load(Relaxed) {
        0 => {
            // Read once; the C library opens a file of /sys for it and allocates nothing.
            // SAFETY: touches no memory.
            let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u32;
            COUNT.store(count, Relaxed);
            count
        }
        count => count,
    }
}
