//! The idle policy: after an iteration in which nothing happened, the server polls again, yields
//! the core, or sleeps.
//!
//! 1. With a VNIC, or clients through memory, it polls for as long as that has paid lately
//!    ([`Spin`]).
//! 2. While replies wait for the disk it polls for up to [`DISK_SPIN`]. A kernel worker completes a
//!    durable write, on the core that the disk interrupts. If that is this core, a loop that never
//!    yields delays the completion until the next tick of the scheduler, 4 ms. So the loop yields
//!    the core now and then, as [`Spin`] does.
//! 3. On a machine with one core, or with fewer cores than there are shards, it does not poll for
//!    the disk: that would only delay the work that it waits for.

use sietch::{Idle, Spin, YIELD_EVERY};

/// Nanoseconds for which an idle loop polls while replies wait for the disk: longer than a durable
/// write takes on a fast disk (50 to 150 microseconds). To be woken by the completing kernel worker
/// costs about 70 microseconds a write.
pub(super) const DISK_SPIN: u64 = 150_000;

/// Decides between polling, yielding and sleeping; see the module documentation.
#[derive(Debug)]
pub(super) struct IdlePolicy {
    spin: Spin,
    /// When something last happened.
    busy: u64,
    /// When the core was last yielded, or something last happened.
    yielded: u64,
    crowded: bool,
}

impl IdlePolicy {
    /// `crowded`: the work that is waited for needs the core of this loop.
    pub(super) fn new(crowded: bool) -> Self {
        Self { spin: Spin::default(), busy: 0, yielded: 0, crowded }
    }

    /// Notes that something happened in the iteration that began at `now`.
    #[inline]
    pub(super) fn busy(&mut self, now: u64) {
        (self.busy, self.yielded) = (now, now);
        self.spin.busy(now);
    }

    /// What to do after an iteration that began at `now` and found nothing. `disk`: replies wait
    /// for the disk. `rings`: there are rings to poll beside kernel sockets.
    #[inline]
    pub(super) fn idle(&mut self, now: u64, disk: bool, rings: bool) -> Idle {
        if disk && !self.crowded && now.saturating_sub(self.busy) < DISK_SPIN {
            if now.saturating_sub(self.yielded) < YIELD_EVERY {
                return Idle::Poll;
            }
            self.yielded = now;
            return Idle::Yield;
        }
        if rings { self.spin.idle(now) } else { Idle::Sleep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_the_disk_yields_to_its_workers_and_sleeps_in_the_end() {
        let mut idle_policy = IdlePolicy::new(false);
        idle_policy.busy(1_000_000);
        let mut yields = 0;
        let mut now = 1_000_100;
        loop {
            match idle_policy.idle(now, true, false) {
                Idle::Poll => {}
                Idle::Yield => yields += 1,
                Idle::Sleep => break,
            }
            now += 100;
        }
        assert_eq!(now, 1_000_000 + DISK_SPIN);
        assert!(yields >= DISK_SPIN / YIELD_EVERY / 2, "{yields} yields");
        let mut crowded = IdlePolicy::new(true);
        crowded.busy(1_000_000);
        assert_eq!(crowded.idle(1_000_100, true, false), Idle::Sleep);
    }
}
