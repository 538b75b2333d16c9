//! What the loop does after a turn in which nothing happened: look again, give the core away, or
//! sleep.
//!
//! 1. With a VNIC it spins for as long as that has paid lately ([`Spin`]).
//! 2. While replies wait for the disk it spins for up to [`DISK_SPIN`]. A durable write is finished
//!    by a worker of the kernel, on the core that the disk interrupts. Where that is this core, a
//!    loop that never lets go of it holds up what it waits for until the next tick of the
//!    scheduler, 4 ms: so it gives the core away now and then, as [`Spin`] does.
//! 3. Where the machine has one core, spinning only keeps it from those who are waited for.

use sietch::{Idle, Spin, YIELD_EVERY};

/// Nanoseconds for which an idle loop looks at its rings while replies wait for the disk: longer
/// than a durable write takes on a good one (50 to 150 microseconds). Its completion runs in a
/// worker of the kernel, whose wake-up of a sleeper cost 70 microseconds a write here.
pub const DISK_SPIN: u64 = 150_000;

/// See the module's account.
#[derive(Debug)]
pub(super) struct IdlePolicy {
    spin: Spin,
    /// When something happened last.
    busy: u64,
    /// When the core was given away last, or something happened.
    yielded: u64,
    alone: bool,
}

impl IdlePolicy {
    /// `alone`: the machine has one core.
    pub fn new(alone: bool) -> Self {
        Self { spin: Spin::default(), busy: 0, yielded: 0, alone }
    }

    /// Something happened in the turn that began at `now`.
    #[inline]
    pub fn busy(&mut self, now: u64) {
        (self.busy, self.yielded) = (now, now);
        self.spin.busy(now);
    }

    /// Nothing happened in the turn that began at `now`. `disk`: replies wait for the disk. `vnic`:
    /// there are rings to look at, beside kernel sockets.
    #[inline]
    pub fn idle(&mut self, now: u64, disk: bool, vnic: bool) -> Idle {
        if disk && !self.alone && now.saturating_sub(self.busy) < DISK_SPIN {
            if now.saturating_sub(self.yielded) < YIELD_EVERY {
                return Idle::Poll;
            }
            self.yielded = now;
            return Idle::Yield;
        }
        if vnic { self.spin.idle(now) } else { Idle::Sleep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_the_disk_lets_its_workers_run_and_sleeps_in_the_end() {
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
        let mut alone = IdlePolicy::new(true);
        alone.busy(1_000_000);
        assert_eq!(alone.idle(1_000_100, true, false), Idle::Sleep);
    }
}
