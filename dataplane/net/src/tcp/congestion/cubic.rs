//! CUBIC (RFC 9438), in integers.
//!
//! 1. Below the threshold the window grows by HyStart++ (`hystart`).
//! 2. Above it the window follows a cubic curve of the time since the last reduction. It is fast
//!    towards where that happened (`W_max`), flat around it, then faster again (section 4.2). The
//!    curve depends on time and not on acknowledgements, so flows of different round trips grow
//!    alike.
//! 3. Where NewReno with the same reductions would have a larger window (short paths), that one is
//!    taken (section 4.3).
//! 4. A reduction leaves seven tenths (section 4.6). If the window had not reached the last
//!    `W_max`, the new one is set lower, to make room for newer flows (section 4.7).
//! 5. Time in which the application had too little to send does not count (section 5.8).
//!
//! Units: windows in bytes, the curve in segments and ticks of 2^-14 s (61 microseconds). With
//! times cut at 2^20 ticks (64 s) the cube fits 60 bits. The curve is computed once for each
//! sixteenth of a window acknowledged, the cube root once a reduction.

use super::control::{Acknowledged, CongestionControl, Moment};
use super::hystart::HyStart;
use super::window::Window;
use crate::limits::SECOND;

/// The share of the window that a reduction leaves, `beta`, in tenths.
const BETA_TENTHS: u64 = 7;
/// NewReno's additive increase that matches `beta`: 3 (1 - beta) / (1 + beta), in 1/1024.
const ALPHA: u64 = 542;
/// Ticks in a second, as a power of two.
const TICK_BITS: u32 = 14;
/// The largest time that is cubed, in ticks.
const MOST_TICKS: u64 = 1 << 20;
/// The window is recomputed after this part of it was acknowledged, as a power of two.
const STEP_BITS: u32 = 4;
/// Bits after the point of the window that NewReno would have: a step adds tens of bytes only.
const FRACTION_BITS: u32 = 8;

/// The state of CUBIC.
#[derive(Clone, Copy, Debug)]
pub struct Cubic {
    pub(super) window: Window,
    hystart: HyStart,
    /// `W_max`: the window at the last reduction.
    w_max: u32,
    /// `cwnd_prior`: the window before it.
    cwnd_prior: u32,
    /// `epoch_start`: when the present growth epoch_start, or zero.
    epoch_start: u64,
    /// Since when the application, not the window, limits the flow; zero if the window does.
    limited_since: u64,
    /// Smallest round trip seen; zero if none.
    min_rtt: u64,
    /// `K`: ticks from `epoch_start` to `W_max`.
    ticks: u32,
    /// Bytes acknowledged and not yet added to the window.
    counted: u32,
    /// `W_est`: the window that NewReno would have, with [`FRACTION_BITS`].
    w_est: u64,
}

impl Cubic {
    /// Starts with the initial window.
    pub const fn new(mss: u32) -> Self {
        Self {
            window: Window::new(mss),
            hystart: HyStart::new(),
            w_max: 0,
            cwnd_prior: 0,
            epoch_start: 0,
            limited_since: 0,
            min_rtt: 0,
            ticks: 0,
            counted: 0,
            w_est: 0,
        }
    }

    /// Congestion avoidance begins (section 4.2), or begins anew.
    fn begin(&mut self, now: u64, mss: u32) {
        self.epoch_start = now.max(1);
        self.limited_since = 0;
        self.counted = 0;
        self.w_est = u64::from(self.window.size) << FRACTION_BITS;
        self.w_max = self.w_max.max(self.window.size);
        // K = cbrt((W_max - cwnd) / C) seconds, C = 0.4 segments per cubic second.
        let below = u64::from(self.w_max - self.window.size) * 5 / (2 * u64::from(mss.max(1)));
        let cube = below.min(1 << (62 - 3 * TICK_BITS)) << (3 * TICK_BITS);
        self.ticks = cube_root(cube) as u32;
    }

    /// The curve at `elapsed` nanoseconds after `epoch_start`, in bytes (equation 1).
    fn curve(&self, elapsed: u64, mss: u32) -> u64 {
        let ticks = ticks(elapsed);
        let away = ticks.abs_diff(u64::from(self.ticks)).min(MOST_TICKS);
        // C d^3, with d^3 in 2^-42 cubic seconds: at most 2^40 after the first shift.
        let offset = (((away * away * away) >> 20) * u64::from(2 * mss) / 5) >> (3 * TICK_BITS - 20);
        if ticks < u64::from(self.ticks) {
            u64::from(self.w_max).saturating_sub(offset)
        } else {
            u64::from(self.w_max) + offset
        }
    }

    #[inline]
    fn avoid(&mut self, what: &Acknowledged) {
        if !what.grow {
            if self.limited_since == 0 {
                self.limited_since = what.now.max(1);
            }
            return;
        }
        self.counted = self.counted.saturating_add(what.bytes);
        if self.counted >= self.window.size >> STEP_BITS || self.epoch_start == 0 || self.limited_since != 0 {
            self.step(what);
        }
    }

    fn step(&mut self, what: &Acknowledged) {
        if self.epoch_start == 0 {
            self.begin(what.now, what.mss);
        }
        if self.limited_since != 0 {
            self.epoch_start += what.now.saturating_sub(self.limited_since);
            self.limited_since = 0;
        }
        let size = u64::from(self.window.size.max(1));
        let bytes = u64::from(std::mem::take(&mut self.counted)).min(size);
        // Section 4.3: once it is past the old cwnd_prior, NewReno's full increase.
        let alpha = if self.w_est >> FRACTION_BITS >= u64::from(self.cwnd_prior) { 1024 } else { ALPHA };
        self.w_est += ((u64::from(what.mss) * bytes * alpha) >> (10 - FRACTION_BITS)) / size;
        let elapsed = what.now.saturating_sub(self.epoch_start) + self.min_rtt;
        // Section 4.2: towards where the curve will be a round trip from now, at most half as much
        // again in one.
        let target = self.curve(elapsed, what.mss).clamp(size, size + size / 2);
        let grown = size + (target - size) * bytes / size;
        let grown = grown.max(self.w_est >> FRACTION_BITS);
        self.window.grow((grown - size).min(u64::from(u32::MAX)) as u32);
    }

    fn reduction(&mut self) -> u32 {
        let size = u64::from(self.window.size);
        self.cwnd_prior = self.window.size;
        self.w_max = if self.window.size < self.w_max {
            (size * (10 + BETA_TENTHS) / 20) as u32
        } else {
            self.window.size
        };
        self.epoch_start = 0;
        (size * BETA_TENTHS / 10) as u32
    }
}

fn ticks(time: u64) -> u64 {
    let time = time.min(128 * SECOND);
    (time << TICK_BITS) / SECOND
}

/// The largest number whose cube is at most `value`.
fn cube_root(value: u64) -> u64 {
    let mut root = 0_u64;
    for bit in (0..22).rev() {
        let next = root | 1 << bit;
        // 2^22 cubed does not fit, and is more than any value.
        if next.checked_pow(3).is_some_and(|cube| cube <= value) {
            root = next;
        }
    }
    root
}

impl CongestionControl for Cubic {
    #[inline]
    fn acknowledged(&mut self, what: &Acknowledged) {
        if what.rtt > 0 && (what.rtt < self.min_rtt || self.min_rtt == 0) {
            self.min_rtt = what.rtt;
        }
        if self.window.in_slow_start() {
            self.hystart.acknowledged(&mut self.window, what);
        } else {
            self.avoid(what);
        }
    }

    fn enter_recovery(&mut self, at: Moment) {
        let size = self.reduction();
        self.window.reduce(size, at.mss);
    }

    fn exit_recovery(&mut self) {
        self.window.leave_recovery();
    }

    fn ce_marked(&mut self, at: Moment) {
        self.enter_recovery(at);
    }

    fn timed_out(&mut self, at: Moment) {
        let size = self.reduction();
        self.window.collapse(size, at.mss);
        self.hystart = HyStart::new();
    }

    fn undo(&mut self) {
        if self.window.undo() {
            self.w_max = self.w_max.max(self.cwnd_prior);
            self.epoch_start = 0;
        }
    }

    fn restart(&mut self, at: Moment) {
        self.window.restart(at.mss);
        self.epoch_start = 0;
        self.hystart = HyStart::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots_are_exact() {
        for root in [0_u64, 1, 2, 3, 99, 1 << 14, (1 << 20) + 7, 2_642_245] {
            let cube = root.checked_pow(3).filter(|_| root < 1 << 22).expect("small enough");
            assert_eq!(cube_root(cube), root);
            assert_eq!(cube_root(cube.saturating_add(1)), root.max(u64::from(cube == 0)));
            if root > 1 {
                assert_eq!(cube_root(cube - 1), root - 1);
            }
        }
    }

    /// The curve of a flow that was reduced at 1000 segments, against the formula in floating
    /// point.
    #[test]
    fn follows_the_formula_of_the_rfc() {
        const MSS: u32 = 1000;
        let mut cubic = Cubic::new(MSS);
        cubic.window.resume(1_000_000, 1_000_000);
        cubic.enter_recovery(Moment { in_flight: 1_000_000, mss: MSS, now: SECOND });
        assert_eq!(cubic.window.size, 700_000);
        cubic.begin(SECOND, MSS);
        let rise = (300.0_f64 / 0.4).cbrt();
        for tenth in 0..200_u64 {
            let time = tenth as f64 / 10.0;
            let expected = (0.4 * (time - rise).powi(3) + 1000.0) * f64::from(MSS);
            let found = cubic.curve(tenth * SECOND / 10, MSS) as f64;
            assert!((found - expected).abs() < 2000.0, "at {time} s: {found} for {expected}");
        }
    }
}
