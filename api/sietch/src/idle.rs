//! The behaviour of a data loop while it is idle: spin, then sleep.
//!
//! 1. The loop spins for the time that [`Spin`] gives, and yields the core now and then.
//! 2. Then it arms the queue's doorbell, checks whether anything arrived meanwhile, and sleeps in
//!    `poll(2)` on every source of events: the queue, storage, other threads, the daemon. These are
//!    a few descriptors, watched with no state in the kernel: one system call to sleep, none to set
//!    up.
//! 3. The nearest deadline bounds the sleep. Without a deadline an idle loop costs nothing at all.
//! 4. A revoked grant ends the loop with an error that names it: one load an iteration.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use sietch_net::Engine;
use sietch_ring::spin::{Idle, Spin};

use crate::control::Lease;
use crate::device::{Doorbell, Grant};

/// How long a loop sleeps whose queue has no doorbell and must be polled.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The grants that a loop needs, and the lease that keeps them.
#[derive(Debug)]
pub struct HeldGrants {
    /// The connection to the daemon, kept by a thread of its own.
    pub lease: Lease,
    /// Grants whose revocation ends the loop.
    pub grants: Vec<Grant>,
}

impl HeldGrants {
    /// An error if a grant was revoked or the daemon shuts down.
    fn check(&self) -> io::Result<()> {
        let ended = |what: String| io::Error::new(io::ErrorKind::ConnectionAborted, what);
        if let Some(grant) = self.grants.iter().find(|grant| grant.is_revoked()) {
            return Err(ended(format!("{} was revoked; ask the daemon for it again", grant.name())));
        }
        if self.lease.is_ending() {
            return Err(ended("the daemon shuts down and removes its devices; start it again".into()));
        }
        Ok(())
    }
}

/// When one loop spins and when it sleeps. [`crate::Stack`] and [`crate::Runtime`] have their own;
/// this is for programs that drive a queue without an engine.
#[derive(Debug, Default)]
pub struct IdlePolicy {
    pub(crate) spin: Spin,
    pub(crate) held: Option<HeldGrants>,
}

impl IdlePolicy {
    /// Ends the loop with an error when something that is held is revoked.
    pub fn with_grants(held: HeldGrants) -> Self {
        Self { spin: Spin::default(), held: Some(held) }
    }

    /// Call this after each iteration, which began at `now` (nanoseconds of [`crate::clock::now`]).
    /// If the iteration was not `busy`, this spins for a moment, or sleeps until the doorbell of
    /// `queue` rings or `deadline` has passed.
    ///
    /// # Errors
    /// A grant was revoked, or `poll(2)` failed.
    pub fn after_iteration<Q: Doorbell>(
        &mut self,
        queue: &mut Q,
        now: u64,
        busy: bool,
        deadline: Option<u64>,
    ) -> io::Result<()> {
        self.check()?;
        if busy {
            self.spin.busy(now);
        } else if self.is_sleep_due(now, deadline) {
            self.sleep(queue, now, deadline, &[])?;
        }
        Ok(())
    }

    /// Answers the daemon's questions about what is held.
    #[inline]
    pub(crate) fn answer_diagnostics<Q: Doorbell>(&self, engine: &Engine, queue: &mut Q) {
        if let Some(held) = &self.held {
            held.lease.answer_diagnostics(&held.grants, engine, queue);
        }
    }

    /// An error if a grant that the loop needs was revoked.
    #[inline]
    pub(crate) fn check(&self) -> io::Result<()> {
        self.held.as_ref().map_or(Ok(()), HeldGrants::check)
    }

    /// Called after an iteration at `now` in which nothing happened; the next one is due at
    /// `deadline`. Spins a little. Returns whether it is time to sleep instead.
    #[inline]
    pub(crate) fn is_sleep_due(&mut self, now: u64, deadline: Option<u64>) -> bool {
        if deadline.is_some_and(|due| due <= now) {
            return false;
        }
        match self.spin.idle(now) {
            Idle::Poll => std::hint::spin_loop(),
            Idle::Yield => rustix::thread::sched_yield(),
            Idle::Sleep => return true,
        }
        false
    }

    /// Sleeps until `queue` or one of `others` is readable, or until `deadline`, unless frames wait
    /// already.
    pub(crate) fn sleep<Q: Doorbell>(
        &self,
        queue: &mut Q,
        now: u64,
        deadline: Option<u64>,
        others: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let limit = deadline.map(|due| Duration::from_nanos(due.saturating_sub(now)));
        let slept = if queue.arm() { self.wait(queue, limit, others) } else { Ok(()) };
        queue.disarm();
        slept
    }

    fn wait<Q: Doorbell>(
        &self,
        queue: &Q,
        limit: Option<Duration>,
        others: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let doorbell = queue.doorbell();
        let limit =
            if doorbell.is_some() { limit } else { Some(limit.unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL)) };
        let lease = self.held.as_ref().map(|held| held.lease.doorbell());
        let mut watched: Vec<PollFd<'_>> = Vec::with_capacity(others.len() + 2);
        // The lease is first, for the check below.
        let all = lease.iter().chain(doorbell.iter()).chain(others);
        watched.extend(all.map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut watched, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
        if let Some(held) = &self.held
            && !watched[0].revents().is_empty()
        {
            held.lease.clear_doorbell();
            held.check()?;
        }
        Ok(())
    }
}
