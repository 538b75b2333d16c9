//! Pacing: a flow with a rate sends a little at a time instead of a window at once.
//!
//! 1. The rate is the minimum of congestion control's (`CongestionControl::pacing_rate`) and of the
//!    application's limit (`Engine::set_max_pacing_rate`). With `Config::pacing`, a congestion
//!    control that works by windows has a rate as well. It is somewhat more than a window a round
//!    trip, or the window would never be filled. A flow with no rate has no flag and pays one test
//!    a segment.
//! 2. A flow has a time at which it may send next. Each segment advances it by the segment's
//!    duration at the rate.
//! 3. Until that time the flow waits in the timing wheel, which marks it dirty when the time has
//!    come.
//! 4. A flow that is late, because the thread slept or its queue was full, catches up by at most
//!    [`CREDIT`], so bursts stay small.

use crate::context::Context;
use crate::limits::SECOND;
use crate::tcp::Tcp;
use crate::tcp::congestion::{Algorithm, CongestionControl, Kind};
use crate::tcp::flow::flag;
use crate::tcp::flow::id::{FlowId, FlowIndex};

/// How much lateness is made up for: more than a sleeping thread oversleeps, less than a switch's
/// queue.
const CREDIT: u64 = 200_000;
/// How many hundredths of a window leave in a round trip, where the rate follows from the window
/// (Linux has the same).
const GAIN: u64 = 120;
/// The same while the window doubles in each.
const GAIN_SLOW_START: u64 = 200;
/// Shortest wait. A fast flow then sends some segments each time, and the thread need not wake for
/// each.
const SHORTEST_WAIT: u64 = 10_000;

impl Tcp {
    /// See `Engine::set_max_pacing_rate`.
    pub(crate) fn set_max_pacing_rate(&mut self, cx: &Context, flow: FlowId, rate: Option<u64>) {
        let Some(index) = self.flows.index(flow) else { return };
        self.flows.cold[index].most_rate = rate.map_or(u64::MAX, |rate| rate.max(1));
        self.flows.hot[index].flags |= flag::PACED;
        self.refresh_pace(cx, index);
        self.mark_dirty(index);
    }

    /// Works the rate out again: congestion control may have changed its mind.
    #[cold]
    pub(crate) fn refresh_pace(&mut self, cx: &Context, index: FlowIndex) {
        let cold = &mut self.flows.cold[index];
        if let Algorithm::Timely(timely) = &mut cold.congestion {
            let remote = self.flows.path[index].remote();
            timely.share_sample(|time| self.path_delays.note(remote, time, cx.now));
        }
        let rtt = cold.rtt.srtt();
        let own = match cold.congestion.pacing_rate() {
            None if self.settings.pacing && rtt > 0 => {
                let gain = if cold.congestion.in_slow_start() { GAIN_SLOW_START } else { GAIN };
                // At most 2^30 x 2^30 x 2: it fits.
                (u64::from(cold.congestion.window()) * SECOND / rtt).saturating_mul(gain) / 100
            }
            own => own.unwrap_or(u64::MAX),
        };
        cold.rate = own.min(cold.most_rate).max(1);
    }

    /// Whether a paced flow may send a segment now. If not, it is woken when it may.
    #[cold]
    pub(crate) fn may_send(&mut self, cx: &Context, index: FlowIndex) -> bool {
        let cold = &self.flows.cold[index];
        if cold.rate == u64::MAX || cold.release_at <= cx.now {
            return true;
        }
        let at = cold.release_at.max(cx.now + SHORTEST_WAIT);
        // If pacing holds the flow back, the rate of congestion control may grow. A window may not
        // grow when the limit is the application's.
        let own = cold.rate < cold.most_rate && cold.congestion.kind() == Kind::Timely;
        self.flows.hot[index].flags |= flag::PACE_WAIT | if own { flag::LIMITED } else { 0 };
        if self.paced.is_empty() {
            // The wheel was not polled while it was empty: this sets its time.
            let _ = self.paced.pop(cx.now);
        }
        self.paced.insert(index, at);
        false
    }

    /// A paced flow has sent `bytes`.
    #[cold]
    pub(crate) fn charge_pace(&mut self, cx: &Context, index: FlowIndex, bytes: usize) {
        let cold = &mut self.flows.cold[index];
        let earliest = cx.now.saturating_sub(CREDIT);
        // At most 65,535 bytes: the product fits.
        let takes = bytes as u64 * SECOND / cold.rate;
        cold.release_at = cold.release_at.max(earliest).saturating_add(takes);
    }

    /// Marks the flows whose time to send has come.
    pub(crate) fn wake_paced(&mut self, cx: &Context) {
        while let Some(index) = self.paced.pop(cx.now) {
            let flow = &mut self.flows.hot[index];
            // A flow that is over lost its flag; the next flow in its slot may be woken needlessly.
            if flow.has(flag::PACE_WAIT) {
                flow.flags &= !flag::PACE_WAIT;
                self.mark_dirty(index);
            }
        }
    }
}
