//! Bounds of a hot list: of an epoll set of an unmodified program, and of a poller.

/// Polls in vain that count as one sleep. [`COOL_AFTER`] such sleeps take some hundred
/// microseconds: longer than the answer of a server that has to be woken, and shorter than one
/// iteration over many connections.
pub const POLLS_PER_SLEEP: u32 = 64;

/// Entries of the list beyond which whatever is not ready cools at once: a scan of so many takes
/// about a microsecond.
pub const MAX_HOT: u32 = 256;

/// Sleeps of the thread in which an entry was not ready and after which it cools. Each costs some
/// 100 nanoseconds for each entry, to arm and check it, and a sleeper has to be notified anyway. A
/// hot entry saves its peer a system call of a microsecond or two if the peer sends while the
/// thread is awake.
pub const COOL_AFTER: u32 = 8;

/// Nanoseconds of a sleep that count as one sleep more: a thread that is seldom awake saves its
/// peers few system calls.
pub const AS_MANY_SLEEPS: u64 = 100_000;
