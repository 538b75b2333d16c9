//! Listeners that outlive the service.
//!
//! 1. The kernel's listening socket stays open in the program. The service's end of a listener's
//!    placeholder closes if the service ends. The program then passes the socket to the service
//!    that runs again ([`crate::service::listen`]), with its whole
//!    backlog ([`restore_backlog`]).
//! 2. Without a service, the kernel socket itself serves: the listener is *on the kernel*. It is
//!    offered again after each slice ([`Schedule`]): soon at first, because a supervisor restarts
//!    the service within a fifth of a second, later once a second.
//! 3. A service that refuses by its rules is not asked again ([`is_final`]).

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::io::Errno;
use rustix::net::sockopt::socket_acceptconn;

/// Nanoseconds between two attempts to return listeners to a service: a supervisor restarts it
/// within a fifth of a second.
const RETRY_SOON: u64 = 40_000_000;

/// The same after [`SOON_ATTEMPTS`] attempts: the service is not restarted, or is restarted by
/// hand.
const RETRY_LATER: u64 = 1_000_000_000;

/// Attempts at the shorter distance: some ten seconds.
const SOON_ATTEMPTS: u32 = 250;

/// When the listeners of a process are offered to the service again. Any thread may ask.
#[derive(Debug, Default)]
pub struct Schedule {
    last: AtomicU64,
    /// Attempts since one was successful.
    attempts: AtomicU32,
}

impl Schedule {
    /// Before the first attempt.
    pub const fn new() -> Self {
        Self { last: AtomicU64::new(0), attempts: AtomicU32::new(0) }
    }

    /// Nanoseconds between two attempts.
    pub fn slice(&self) -> u64 {
        if self.attempts.load(Relaxed) < SOON_ATTEMPTS { RETRY_SOON } else { RETRY_LATER }
    }

    /// Whether an attempt is due at `now`. Then it is the caller's.
    pub fn begin(&self, now: u64) -> bool {
        let last = self.last.load(Relaxed);
        now.saturating_sub(last) >= self.slice() / 2
            && self.last.compare_exchange(last, now, AcqRel, Relaxed).is_ok()
    }

    /// Notes how an attempt ended.
    pub fn note(&self, successful: bool) {
        if successful {
            self.attempts.store(0, Relaxed);
        } else {
            self.attempts.fetch_add(1, Relaxed);
        }
    }
}

/// Whether a kernel's socket listens. One that is revoked does not.
pub fn listens(kernel: BorrowedFd<'_>) -> bool {
    socket_acceptconn(kernel).unwrap_or(false)
}

/// Gives a listening socket its backlog again. A service leaves the kernel a smaller one, which
/// would be all until another service is there. One that was shut down stays so.
pub fn restore_backlog(kernel: BorrowedFd<'_>, backlog: u32) {
    if listens(kernel) {
        let _ = rustix::net::listen(kernel, backlog.cast_signed());
    }
}

/// Whether a listener that was refused with this error need not ask again: the service's rules
/// forbid it, or its application is revoked.
pub fn is_final(errno: Errno) -> bool {
    errno == Errno::ACCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_stays_away_is_asked_less_often() {
        let schedule = Schedule::new();
        let mut now = RETRY_LATER;
        for _ in 0..SOON_ATTEMPTS {
            assert_eq!(schedule.slice(), RETRY_SOON);
            assert!(schedule.begin(now), "an attempt is due");
            assert!(!schedule.begin(now), "it is the first caller's");
            schedule.note(false);
            now += RETRY_SOON;
        }
        assert_eq!(schedule.slice(), RETRY_LATER);
        assert!(!schedule.begin(now), "not so soon any more");
        assert!(schedule.begin(now + RETRY_LATER));
        schedule.note(true);
        assert_eq!(schedule.slice(), RETRY_SOON, "it was back");
    }
}
