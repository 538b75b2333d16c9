//! What a data loop does when there is nothing to do.
//!
//! 1. It spins as long as [`Spin`] says, giving the core away now and then.
//! 2. Then it arms the queue's doorbell, looks whether anything came meanwhile, and sleeps in
//!    `poll(2)` on everything that may have news: the queue, storage, other threads, the control
//!    plane. A few descriptors, watched with no state in the kernel: one system call to sleep, none
//!    to set up.
//! 3. It wakes for the nearest deadline at the latest. With no deadline an idle loop costs nothing
//!    at all.
//! 4. A grant that was revoked ends the loop with an error that names it: one load a turn.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use sietch_net::Engine;
use sietch_ring::spin::{Idle, Spin};

use crate::doorbell::Doorbell;
use crate::grant::Grant;
use crate::lease::Lease;

/// How long a loop sleeps that must look at something without a doorbell.
const BLIND: Duration = Duration::from_millis(1);

/// What is held at the control plane while a loop runs.
#[derive(Debug)]
pub struct HeldGrants {
    /// The connection, kept by a thread of its own.
    pub lease: Lease,
    /// What must not be revoked.
    pub grants: Vec<Grant>,
}

impl HeldGrants {
    /// An error if something was taken back.
    fn check(&self) -> io::Result<()> {
        let gone = |what: String| io::Error::new(io::ErrorKind::ConnectionAborted, what);
        if let Some(grant) = self.grants.iter().find(|grant| grant.is_revoked()) {
            return Err(gone(format!("{} was revoked; ask the daemon for it again", grant.name())));
        }
        if self.lease.is_ending() {
            return Err(gone("the daemon shuts down and takes its devices along; start it again".into()));
        }
        Ok(())
    }
}

/// Spinning and sleeping of one loop. [`crate::Stack`] and [`crate::Runtime`] have their own; this
/// is for who drives a queue without an engine.
#[derive(Debug, Default)]
pub struct IdlePolicy {
    pub(crate) spin: Spin,
    pub(crate) held: Option<HeldGrants>,
}

impl IdlePolicy {
    /// Ends with an error when what is held is taken back.
    pub fn with_grants(held: HeldGrants) -> Self {
        Self { spin: Spin::default(), held: Some(held) }
    }

    /// To be called after each turn, which began at `now`. If it was not `busy`, spins for a
    /// moment, or sleeps until `queue` rings or `deadline` has come.
    ///
    /// # Errors
    /// The control plane took something back, or the doorbell cannot be slept on.
    pub fn after<Q: Doorbell>(
        &mut self,
        queue: &mut Q,
        now: u64,
        busy: bool,
        deadline: Option<u64>,
    ) -> io::Result<()> {
        self.check()?;
        if busy {
            self.spin.busy(now);
        } else if self.is_sleepy(now, deadline) {
            self.sleep(queue, now, deadline, &[])?;
        }
        Ok(())
    }

    /// Answers what somebody asks about what is held.
    #[inline]
    pub(crate) fn answer<Q: Doorbell>(&self, engine: &Engine, queue: &mut Q) {
        if let Some(held) = &self.held {
            held.lease.answer_diagnostics(&held.grants, engine, queue);
        }
    }

    /// An error if what the loop stands on was taken back.
    #[inline]
    pub(crate) fn check(&self) -> io::Result<()> {
        self.held.as_ref().map_or(Ok(()), HeldGrants::check)
    }

    /// Called after a turn at `now` in which nothing happened, the next one being due at
    /// `deadline`. Spins a little; returns whether it is time to sleep instead.
    #[inline]
    pub(crate) fn is_sleepy(&mut self, now: u64, deadline: Option<u64>) -> bool {
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

    /// Sleeps until `queue` or one of `others` rings, or `deadline`, unless frames wait already.
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
        let limit = if doorbell.is_some() { limit } else { Some(limit.unwrap_or(BLIND).min(BLIND)) };
        let lease = self.held.as_ref().map(|held| held.lease.doorbell());
        let mut watched: Vec<PollFd<'_>> = Vec::with_capacity(others.len() + 2);
        // The lease first: it is looked at below.
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

/// How a loop that has a `rest` is told of it.
macro_rules! resting {
    ($loop:ident) => {
        impl<Q: NicQueue> $loop<Q> {
            /// Ends with an error when what is held is taken back.
            #[must_use]
            pub fn with_grants(mut self, held: crate::rest::HeldGrants) -> Self {
                self.rest.held = Some(held);
                self
            }

            /// Spins as `spin` says before it sleeps.
            #[must_use]
            pub fn with_spin(mut self, spin: sietch_ring::spin::Spin) -> Self {
                self.rest.spin = spin;
                self
            }
        }
    };
}

pub(crate) use resting;
