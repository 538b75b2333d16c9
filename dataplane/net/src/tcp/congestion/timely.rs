//! TIMELY (Mittal et al., SIGCOMM 2015), with the correction of Zhu et al. (CoNEXT 2016): a rate
//! that follows the round trip.
//!
//! 1. Once a control interval (two round trips) the newest sample is compared with the shortest
//!    that any flow of this path has seen (`path_delay`). The difference is queueing.
//! 2. Little queueing: the rate grows by a step, by five steps after five such intervals. Before
//!    queueing was first seen it doubles.
//! 3. Much queueing: the rate is cut in proportion to the excess.
//! 4. In between, growth and a cut in proportion to the distance from the lower bound are blended
//!    by the gradient of the round trip. That is the correction: with the gradient alone there is
//!    no single equilibrium, and no fairness. The gradient is that of a round trip: a flow that is
//!    rarely acknowledged divides by the time that has passed.
//! 5. No cut takes more than an eighth of the rate. A step is a small part of a segment a round
//!    trip, so that many flows whose share is less than that settle too.
//! 6. `pacing` enforces the rate. The window only bounds what a stalled path can lose: twice what
//!    rate and delay make.
//!
//! Bounds are on the queueing delay, not on the round trip as in the paper. So they fit other paths
//! than those within one cluster. Fairness then depends on what is taken for the round trip without
//! queueing. Measured by each flow for itself (1 Gbit/s, 100 microseconds, `sim/tests/it/tcp.rs`),
//! a flow that started while others queued took their queue for propagation delay and tolerated
//! more of it. Of 64 callers with 4 KB requests, which never let the queue drain, the slowest got
//! 1.5 % of a fair share for good. Shared among flows, with small steps and small cuts, the slowest
//! of 2, 8 and 64 flows gets more than 80 %. Of 400 that begin within 40 ms the slowest had 12 %
//! after a quarter of a second. A flow with so small a share samples the queue once in several
//! round trips. Where flows are that many, use DCTCP or CUBIC.

use super::control::{Acknowledged, CongestionControl, Moment};
use super::window::Window;
use crate::limits::{INITIAL_WINDOW, LARGEST_WINDOW, MILLISECOND, NEVER, SECOND};

/// `T_low`: queueing up to here, or up to a quarter of the bare round trip, is no congestion.
const T_LOW: u64 = 50_000;
/// `T_high`: queueing from here, or from the bare round trip, is congestion for any gradient.
const T_HIGH: u64 = 500_000;
/// The step of growth: this part of a segment a round trip. (The paper has 10 Mbit/s, two thirds of
/// the share of 64 flows of a gigabit.)
const STEP: u64 = 24;
/// Intervals of little queueing after which the step is five times as large.
const HAI_INTERVALS: u8 = 5;
/// `beta`, in 1/1024.
const BETA: i64 = 819;
/// What a cut leaves at least, in 1/1024. Flows are cut at different moments of the same queue;
/// deep cuts would keep them unequal.
const LEAST_LEFT: i64 = 900;
/// The most of the lower bound's multiples by which the round trip counts as too long.
const MOST_ERROR: i64 = 8;
/// The lowest rate, in segments a second. Two of them take no longer than a receiver waits before
/// it acknowledges one (40 ms). At a lower rate that wait would count as queueing, and keep the
/// flow there.
const SLOWEST: u64 = 50;
/// The highest rate: 400 Gbit/s.
const FASTEST: u64 = 50_000_000_000;
/// A longer round trip counts as this one: such a path is not in a data center, and an invalid
/// value of a peer cannot overflow the arithmetic.
const LONGEST: u64 = SECOND;
/// A lone segment that is acknowledged so late was probably waited for.
const LATE: u64 = 20 * MILLISECOND;

/// The state of TIMELY.
#[derive(Clone, Copy, Debug)]
pub struct Timely {
    pub(super) window: Window,
    /// Bytes a second; zero before the first sample.
    rate: u64,
    /// The rate before the last reduction for a loss.
    before: u64,
    /// The shortest sample of the path; the newest of this interval, or [`NEVER`]; that of the last
    /// interval, or zero.
    min_rtt: u64,
    current: u64,
    previous: u64,
    /// Smoothed change of the round trip from one round trip to the next.
    gradient: i64,
    /// When the last interval ended, and when this one does.
    ended_at: u64,
    next_at: u64,
    calm: u8,
    /// Queueing was seen: the rate no longer doubles.
    settled: bool,
    /// The rate held the sender back in this interval.
    used: bool,
    /// An interval has ended whose round trip is not in the path's entry yet.
    unshared: bool,
}

impl Timely {
    /// Starts with the initial window, unpaced until the first sample.
    pub const fn new(mss: u32) -> Self {
        Self {
            window: Window::new(mss),
            rate: 0,
            before: 0,
            min_rtt: 0,
            current: NEVER,
            previous: 0,
            gradient: 0,
            ended_at: 0,
            next_at: 0,
            calm: 0,
            settled: false,
            used: false,
            unshared: false,
        }
    }

    /// Starts with the shortest round trip that other flows of the path have measured.
    pub(crate) fn seed_min_rtt(&mut self, min_rtt: u64) {
        self.min_rtt = min_rtt;
    }

    /// Passes the round trip of an interval that has just ended to `path`, once; `path` returns the
    /// shortest of the path.
    pub(crate) fn share_sample(&mut self, path: impl FnOnce(u64) -> u64) {
        if std::mem::take(&mut self.unshared) {
            self.min_rtt = path(self.previous);
        }
    }

    /// Up to which round trip there is no congestion.
    fn low(&self) -> u64 {
        self.min_rtt + T_LOW.max(self.min_rtt / 4)
    }

    /// The first interval: the rate is what left at once, unless other flows queue.
    fn begin(&mut self, time: u64, mss: u32) {
        let segment = u64::from(mss) * SECOND / time;
        if time > self.low() {
            self.settled = true;
            self.rate = 2 * segment;
            self.bound(mss, time);
        } else {
            self.rate = u64::from(self.window.size) * SECOND / time;
        }
    }

    fn end_interval(&mut self, now: u64, mss: u32) {
        let time = std::mem::replace(&mut self.current, NEVER);
        self.next_at = now + 2 * time;
        self.unshared = true;
        let passed = now - std::mem::replace(&mut self.ended_at, now);
        let change = time.cast_signed() - std::mem::replace(&mut self.previous, time).cast_signed();
        if self.rate == 0 {
            return self.begin(time, mss);
        }
        self.gradient =
            (self.gradient + change * (2 * time).cast_signed() / passed.max(2 * time).cast_signed()) / 2;
        let low = self.low();
        let high = self.min_rtt + T_HIGH.max(self.min_rtt);
        let used = std::mem::take(&mut self.used);
        let step = u64::from(mss) * SECOND / time / STEP;
        if time < low {
            self.calm = self.calm.saturating_add(1);
            if used {
                self.rate = match (self.settled, self.calm > HAI_INTERVALS) {
                    (false, _) => self.rate.saturating_mul(2),
                    (true, false) => self.rate + step,
                    (true, true) => self.rate + u64::from(HAI_INTERVALS) * step,
                };
            }
        } else {
            self.calm = 0;
            self.settled = true;
            if time > high {
                let excess = 1024 - (high * 1024 / time).cast_signed();
                self.scale(1024 - BETA * excess / 1024);
            } else {
                // The blend: 0 while the queue drains, 1 while it grows by a quarter of the bare
                // round trip in one.
                let slope = self.gradient * 1024 / self.min_rtt.max(1).cast_signed();
                let blend = (2 * slope + 512).clamp(0, 1024);
                let error = ((time - low) * 1024 / low).cast_signed().min(MOST_ERROR * 1024);
                self.scale(1024 - (BETA * blend / 1024) * error / 1024);
                if used {
                    self.rate += step * (1024 - blend).cast_unsigned() / 1024;
                }
            }
        }
        self.bound(mss, time);
    }

    /// Multiplies the rate by `factor` / 1024, within what a cut may take.
    fn scale(&mut self, factor: i64) {
        self.rate = self.rate / 1024 * factor.clamp(LEAST_LEFT, 1024).cast_unsigned();
    }

    fn bound(&mut self, mss: u32, time: u64) {
        self.rate = self.rate.clamp(SLOWEST * u64::from(mss), FASTEST);
        let flight = u128::from(self.rate) * u128::from(2 * time) / u128::from(SECOND);
        let minimum = 4 * mss;
        self.window.size = u32::try_from(flight).unwrap_or(LARGEST_WINDOW).clamp(minimum, LARGEST_WINDOW);
        self.window.threshold = self.window.size;
    }

    /// A loss halves the rate.
    fn halve(&mut self, at: Moment) {
        self.before = self.rate;
        self.settled = true;
        self.calm = 0;
        if self.rate > 0 {
            self.rate = (self.rate / 2).max(SLOWEST * u64::from(at.mss));
        }
    }
}

impl CongestionControl for Timely {
    #[inline]
    fn pacing_rate(&self) -> Option<u64> {
        (self.rate > 0).then_some(self.rate)
    }

    #[inline]
    fn acknowledged(&mut self, what: &Acknowledged) {
        self.used |= what.grow;
        let rtt = what.rtt.min(LONGEST);
        let waited = what.in_flight <= what.mss && self.min_rtt > 0 && rtt > self.min_rtt + LATE;
        if rtt > 0 && !waited {
            self.current = rtt;
            if rtt < self.min_rtt || self.min_rtt == 0 {
                self.min_rtt = rtt;
            }
        }
        if what.now >= self.next_at && self.current != NEVER {
            self.end_interval(what.now, what.mss);
        }
    }

    fn enter_recovery(&mut self, at: Moment) {
        self.window.reduce(at.in_flight / 2, at.mss);
        self.halve(at);
        if self.rate > 0 {
            self.bound(at.mss, self.previous);
        }
    }

    fn exit_recovery(&mut self) {
        if self.rate == 0 {
            self.window.leave_recovery();
        }
    }

    fn ce_marked(&mut self, at: Moment) {
        self.enter_recovery(at);
    }

    fn timed_out(&mut self, at: Moment) {
        self.window.collapse(at.in_flight / 2, at.mss);
        self.halve(at);
    }

    fn undo(&mut self) {
        self.window.undo();
        self.rate = self.rate.max(self.before);
    }

    fn restart(&mut self, at: Moment) {
        self.window.size = self.window.size.min(at.mss * INITIAL_WINDOW);
        self.window.threshold = self.window.size;
        self.current = NEVER;
        self.gradient = 0;
    }
}
