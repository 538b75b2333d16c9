//! The time of data loops: monotonic nanoseconds. A loop reads it once an iteration (no system
//! call: the kernel's vDSO) and passes it on.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // Both are positive on every running Linux.
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}
