//! TIMELY (Mittal et al., SIGCOMM 2015), as mended by Zhu et al. (CoNEXT 2016): a rate that follows the round trip.
//!
//! 1. Once a control interval (two round trips) the smallest sample of the interval is compared with the smallest ever: the
//!    difference is queueing. It may be a late sample: delayed acknowledgements only ever add.
//! 2. Little queueing: the rate grows by a step, by five steps after five such intervals. Before queueing was first seen it doubles.
//! 3. Much queueing: the rate is cut in proportion to the excess.
//! 4. In between, growth and a cut in proportion to the distance from the lower bound are blended by the gradient of the round trip
//!    (the mending: with the gradient alone there is no single point of rest, and no fairness).
//! 5. `pacing` enforces the rate. The window only bounds what a stalled path can swallow: twice what rate and delay make.
//!
//! Bounds are on the queueing delay and not on the round trip as in the paper, so that they fit other paths than
//! those within one cluster. The price was measured in the simulator (1 Gbit/s, 100 microseconds, `sim/tests/tcp.rs`): a flow that comes while
//! others queue takes their queue for the bare round trip, bears more of it than they do, and keeps more than its share until the
//! queue drains. Two bulk flows share alike; of 64 that began within 6 ms the least had 2 % of a fair share after 250 ms, and 89 %
//! after half a second; of 64 callers with 4 KB requests, which never let the queue drain, 1.5 % for good. DCTCP and CUBIC
//! give all of them more than 90 % from the start. Where flows are many and short, use those.

use super::window::Window;
use super::{Acknowledged, CongestionControl, Moment};
use crate::limits::{INITIAL_WINDOW, LARGEST_WINDOW, NEVER, SECOND};

/// `T_low`: queueing up to here, or up to a quarter of the bare round trip, is no congestion.
const LITTLE: u64 = 50_000;
/// `T_high`: queueing from here, or from the bare round trip, is congestion whatever the gradient.
const MUCH: u64 = 500_000;
/// The step of growth in bytes a second (the paper's 10 Mbit/s), unless a segment a round trip is less.
const STEP: u64 = 1_250_000;
/// Intervals of little queueing after which the step is five times as large.
const PATIENCE: u8 = 5;
/// `beta`, in 1/1024.
const BETA: i64 = 819;
/// The lowest rate, in segments a second: 400 of them are a few per cent of a gigabit.
const SLOWEST: u64 = 20;
/// The highest rate: 400 Gbit/s.
const FASTEST: u64 = 50_000_000_000;

/// The state of TIMELY.
#[derive(Clone, Copy, Debug)]
pub struct Timely {
    pub(super) window: Window,
    /// Bytes a second; zero before the first sample.
    rate: u64,
    /// The rate before the last reduction for a loss.
    before: u64,
    /// The smallest sample ever; the smallest of this interval, or [`NEVER`]; that of the last interval, or zero.
    shortest: u64,
    current: u64,
    previous: u64,
    /// Smoothed change of the round trip from one interval to the next.
    gradient: i64,
    /// When the interval ends.
    next_at: u64,
    calm: u8,
    /// Queueing was seen: the rate no longer doubles.
    settled: bool,
    /// The rate held the sender back in this interval.
    used: bool,
}

impl Timely {
    /// Starts with the initial window, unpaced until the first sample.
    pub const fn new(mss: u32) -> Self {
        Self {
            window: Window::new(mss),
            rate: 0,
            before: 0,
            shortest: 0,
            current: NEVER,
            previous: 0,
            gradient: 0,
            next_at: 0,
            calm: 0,
            settled: false,
            used: false,
        }
    }

    fn end_interval(&mut self, now: u64, mss: u32) {
        let time = std::mem::replace(&mut self.current, NEVER);
        self.next_at = now + 2 * time;
        if self.rate == 0 {
            self.rate = u64::from(self.window.size) * SECOND / time;
            self.previous = time;
            return;
        }
        let change = time.cast_signed() - self.previous.cast_signed();
        self.previous = time;
        self.gradient = (self.gradient + change) / 2;
        let low = self.shortest + LITTLE.max(self.shortest / 4);
        let high = self.shortest + MUCH.max(self.shortest);
        let used = std::mem::take(&mut self.used);
        let step = STEP.min(u64::from(mss) * SECOND / self.shortest);
        if time < low {
            self.calm = self.calm.saturating_add(1);
            if used {
                self.rate = match (self.settled, self.calm > PATIENCE) {
                    (false, _) => self.rate.saturating_mul(2),
                    (true, false) => self.rate + step,
                    (true, true) => self.rate + u64::from(PATIENCE) * step,
                };
            }
        } else {
            self.calm = 0;
            self.settled = true;
            if time > high {
                let excess = 1024 - (high * 1024 / time).cast_signed();
                self.scale(1024 - BETA * excess / 1024);
            } else {
                // The blend: 0 while the queue drains, 1 while it grows by a quarter of the round trip an interval.
                let slope = self.gradient * 1024 / self.shortest.cast_signed();
                let blend = (2 * slope + 512).clamp(0, 1024);
                let error = ((time - low) * 1024 / low).cast_signed().min(1024);
                self.scale(1024 - (BETA * blend / 1024) * error / 1024);
                if used {
                    self.rate += step * (1024 - blend).cast_unsigned() / 1024;
                }
            }
        }
        self.bound(mss, time);
    }

    /// Multiplies the rate by `factor` / 1024, at least by a half.
    fn scale(&mut self, factor: i64) {
        self.rate = self.rate / 1024 * factor.clamp(512, 1024).cast_unsigned();
    }

    fn bound(&mut self, mss: u32, time: u64) {
        self.rate = self.rate.clamp(SLOWEST * u64::from(mss), FASTEST);
        let flight = u128::from(self.rate) * u128::from(2 * time) / u128::from(SECOND);
        let least = 4 * mss;
        self.window.size = u32::try_from(flight).unwrap_or(LARGEST_WINDOW).clamp(least, LARGEST_WINDOW);
        self.window.threshold = self.window.size;
    }

    fn reduce(&mut self, at: Moment) {
        self.before = self.rate;
        self.settled = true;
        self.calm = 0;
        if self.rate > 0 {
            self.scale(512);
            self.bound(at.mss, self.previous);
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
        if what.round_trip > 0 {
            self.current = self.current.min(what.round_trip);
            if what.round_trip < self.shortest || self.shortest == 0 {
                self.shortest = what.round_trip;
            }
        }
        if what.now >= self.next_at && self.current != NEVER {
            self.end_interval(what.now, what.mss);
        }
    }

    fn enter_recovery(&mut self, at: Moment) {
        self.window.reduce(at.in_flight / 2, at.mss);
        self.reduce(at);
    }

    fn exit_recovery(&mut self, at: Moment) {
        if self.rate == 0 {
            self.window.leave_recovery(at);
        }
    }

    fn marked(&mut self, at: Moment) {
        self.enter_recovery(at);
    }

    fn timed_out(&mut self, at: Moment) {
        self.window.collapse(at.in_flight / 2, at.mss);
        self.before = self.rate;
        self.settled = true;
        if self.rate > 0 {
            self.scale(512);
            self.rate = self.rate.max(SLOWEST * u64::from(at.mss));
        }
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
