//! The clock of this module: coarse, and cheap to read.

/// Nanoseconds.
pub(super) const MILLISECOND: u64 = 1_000_000;

/// Milliseconds of the monotonic clock, some behind; two processes agree unless they are in
/// different time namespaces, and then what is held is due.
pub(super) fn now() -> u64 {
    if cfg!(miri) {
        return 0;
    }
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    time.tv_sec.cast_unsigned() * 1000 + time.tv_nsec.cast_unsigned() / MILLISECOND
}
