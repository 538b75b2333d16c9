//! How often something may be done: a rate on average, and a burst at once; also for each user.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Users whose allowances are remembered, at least, before those of whom none is spent are
/// forgotten.
const REMEMBERED: usize = 1024;

/// A rate on average, and a burst at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rate {
    /// In a second.
    pub per_second: f64,
    /// At once.
    pub burst: f64,
}

/// How much of a rate is left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    rate: Rate,
    left: f64,
    at: Instant,
}

impl Allowance {
    pub(crate) const fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, left: rate.burst, at: now }
    }

    fn earn(&mut self, now: Instant) {
        let earned = now.duration_since(self.at).as_secs_f64() * self.rate.per_second;
        self.left = (self.left + earned).min(self.rate.burst);
        self.at = now;
    }

    /// Counts one. Returns the time to wait until it is earned.
    pub(crate) fn spend(&mut self, now: Instant) -> Duration {
        self.charge(1.0, now);
        self.debt(now)
    }

    /// Counts `amount`, which was not known before. The next has to be waited for.
    pub(crate) fn charge(&mut self, amount: f64, now: Instant) {
        self.earn(now);
        self.left -= amount;
    }

    /// The time until what was charged is earned.
    pub(crate) fn debt(&mut self, now: Instant) -> Duration {
        self.earn(now);
        Duration::from_secs_f64((-self.left / self.rate.per_second).max(0.0))
    }

    /// Counts `amount` if it is earned. Returns whether it is.
    pub(crate) fn take(&mut self, amount: f64, now: Instant) -> bool {
        self.earn(now);
        let earned = self.left >= amount;
        if earned {
            self.left -= amount;
        }
        earned
    }
}

/// An allowance for each user.
#[derive(Debug)]
pub(crate) struct UserAllowances {
    rate: Rate,
    users: HashMap<u32, Allowance>,
    /// Users with which the unspent ones are forgotten: twice as many as were left last time, so
    /// that a new user costs the same however many there are.
    forget_at: usize,
}

impl UserAllowances {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, users: HashMap::new(), forget_at: REMEMBERED }
    }

    /// The allowance of `uid`.
    pub(crate) fn of(&mut self, uid: u32, now: Instant) -> &mut Allowance {
        if self.users.len() >= self.forget_at && !self.users.contains_key(&uid) {
            self.users.retain(|_, allowance| {
                allowance.earn(now);
                allowance.left < allowance.rate.burst
            });
            self.forget_at = (2 * self.users.len()).max(REMEMBERED);
        }
        self.users.entry(uid).or_insert_with(|| Allowance::new(self.rate, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { per_second: 200.0, burst: 400.0 };

    #[test]
    fn what_is_done_without_end_is_limited_to_the_rate() {
        let mut now = Instant::now();
        let (begin, mut accepted) = (now, 0);
        let mut allowance = Allowance::new(RATE, now);
        while now < begin + Duration::from_secs(60) {
            now += allowance.spend(now);
            accepted += 1;
            assert!(accepted > 400 || now == begin, "the burst passes at once");
        }
        let most = 400 + 60 * 200;
        assert!((most - 1..=most + 1).contains(&accepted), "{accepted} of {most}");
        // After an idle time there is a burst of that size again, and no more.
        now += Duration::from_secs(3600);
        let at_once = (0..800).filter(|_| allowance.spend(now).is_zero()).count();
        assert_eq!(at_once, 400);
    }

    #[test]
    fn what_is_not_earned_is_not_taken() {
        let now = Instant::now();
        let mut allowance = Allowance::new(RATE, now);
        assert_eq!((0..800).filter(|_| allowance.take(1.0, now)).count(), 400);
        let later = now + Duration::from_secs(1);
        assert_eq!((0..800).filter(|_| allowance.take(1.0, later)).count(), 200);
    }

    #[test]
    fn what_took_longer_than_was_left_is_waited_for() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut allowance = Allowance::new(Rate { per_second: 0.1, burst: 3.0 }, now);
        allowance.charge(2.0, now);
        assert_eq!(allowance.debt(now), Duration::ZERO);
        allowance.charge(2.0, now);
        assert!(allowance.debt(now) > 9 * second && allowance.debt(now) <= 11 * second);
        assert_eq!(allowance.debt(now + 11 * second), Duration::ZERO);
    }

    #[test]
    fn users_have_an_allowance_each_and_idle_ones_are_forgotten() {
        let now = Instant::now();
        let mut users = UserAllowances::new(RATE);
        while users.of(1, now).take(1.0, now) {}
        assert!(users.of(2, now).take(1.0, now));
        for uid in 3..4 * REMEMBERED as u32 {
            users.of(uid, now);
        }
        assert!(users.users.len() <= REMEMBERED + 1, "{}", users.users.len());
        assert!(!users.of(1, now).take(1.0, now), "it is remembered while it has spent some");
    }
}
