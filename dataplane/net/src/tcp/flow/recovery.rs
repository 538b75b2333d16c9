//! What recovery from loss knows of a flow. A flow has a [`LossRecovery`] from the first time on that an
//! acknowledgement said of something that it came out of turn, or a timer ran out; most flows never
//! have one.
//!
//! 1. [`Rack`] (RFC 8985) says what is lost: what was sent before something that has arrived, and
//!    by more than a reordering window. The window is nothing until reordering was seen, then a
//!    quarter of the least round trip, and grows with each round in which the peer reports that
//!    something came twice (RFC 2883), up to the smoothed round trip.
//! 2. [`Reduction`] is proportional rate reduction (RFC 6937, 9937): how much may leave in recovery
//!    for each byte that was delivered.
//! 3. [`Undo`] remembers what a reduction was for: if all that was sent again proves to have come
//!    twice (DSACK), or an acknowledgement answers what was sent before the first retransmission
//!    (RFC 3522 by timestamps), or after a timeout data arrive that were sent once (RFC 5682), then
//!    nothing was lost and the reduction is taken back.
//!
//! What is done with all that is in `slow/repair.rs`; the bytes themselves are in `scoreboard`.

use crate::limits::NEVER;
use crate::sequence::Seq;
use crate::tcp::flow::scoreboard::{Delivered, sent_after};

/// Recoveries without a duplicate after which the reordering window is small again (RFC 8985
/// section 6.2 step 4).
const PERSIST: u8 = 16;

/// What recovery is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryState {
    /// Nothing is amiss.
    #[default]
    Open,
    /// Acknowledgements say that something came out of turn; nothing counts as lost yet.
    Disorder,
    /// Losses are being repaired (RFC 6675, 6582).
    Recovery,
    /// A retransmission timeout is being repaired.
    Loss,
}

/// What is known of segments that overtake others.
#[derive(Debug, Default)]
pub(crate) struct Rack {
    /// When what was delivered and sent last was sent, and where it ends.
    pub latest: (u64, Seq),
    pub round_trip: u64,
    /// The end of the highest delivered bytes.
    highest: Option<Seq>,
    /// Quarters of the least round trip in the reordering window, less one.
    extra: u8,
    persist: u8,
    /// What was outstanding when a duplicate was last reported: one a round counts.
    round: Option<Seq>,
    /// Times that reordering was seen.
    pub reordered: u32,
}

impl Rack {
    /// Something was delivered (RFC 8985 section 6.2 steps 2 and 3).
    pub(crate) fn update(&mut self, delivered: &Delivered, una: Seq, now: u64, least: u64) {
        let highest = self.highest.map_or(una, |highest| highest.max(una));
        if let Some(lowest) = delivered.lowest_original
            && self.highest.is_some_and(|highest| lowest.before(highest))
        {
            self.reordered = self.reordered.saturating_add(1);
        }
        self.highest = Some(highest);
        let Some((sent, end, again)) = delivered.latest else { return };
        self.highest = Some(highest.max(end));
        let round_trip = now.saturating_sub(sent);
        // Too fast for what was sent again: it is the first copy that has arrived.
        if again && round_trip < least {
            return;
        }
        self.round_trip = round_trip;
        if sent_after((sent, end), self.latest) {
            self.latest = (sent, end);
        }
    }

    /// The peer reports that bytes came twice: the window was too small (step 4).
    pub(crate) fn widen(&mut self, una: Seq, max: Seq) {
        if self.round.is_none_or(|round| !una.before(round)) {
            self.round = Some(max);
            self.extra = self.extra.saturating_add(1);
            self.persist = PERSIST;
        }
    }

    /// A recovery has ended.
    pub(crate) fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.extra = 0;
        }
    }

    /// How long a segment may be overtaken before it counts as lost. `certain`: losses are being
    /// repaired, or enough arrived beyond the gap.
    pub(crate) fn window(&self, least: u64, smoothed: u64, certain: bool) -> u64 {
        if certain && self.reordered == 0 {
            0
        } else {
            (least / 4 * (u64::from(self.extra) + 1)).min(smoothed)
        }
    }
}

/// Proportional rate reduction. Bytes.
#[derive(Debug, Default)]
pub(crate) struct Reduction {
    delivered: u32,
    out: u32,
    flight: u32,
    target: u32,
}

impl Reduction {
    /// Recovery begins with `flight` bytes in flight, and is to end with a window of `target`.
    pub(crate) const fn new(flight: u32, target: u32) -> Self {
        Self { delivered: 0, out: 0, flight: if flight == 0 { 1 } else { flight }, target }
    }

    /// `bytes` left.
    pub(crate) const fn sent(&mut self, bytes: u32) {
        self.out = self.out.saturating_add(bytes);
    }

    /// An acknowledgement delivered `bytes` and left `pipe` in flight; `safe` says that it brought
    /// no new loss to light and moved on. Returns the window.
    pub(crate) fn window(&mut self, bytes: u32, pipe: u32, safe: bool, mss: u32) -> u32 {
        self.delivered = self.delivered.saturating_add(bytes);
        let allowed = if pipe > self.target {
            let share = u64::from(self.delivered) * u64::from(self.target);
            let share = share.div_ceil(u64::from(self.flight)).min(u64::from(u32::MAX)) as u32;
            share.saturating_sub(self.out)
        } else {
            let owed = self.delivered.saturating_sub(self.out).max(bytes);
            (owed + if safe { mss } else { 0 }).min(self.target - pipe)
        };
        // The first retransmission leaves whatever the sums say.
        pipe.saturating_add(if self.out == 0 { allowed.max(mss) } else { allowed })
    }
}

/// What would show that a reduction was for nothing.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    /// The first unacknowledged byte when it happened.
    pub from: Seq,
    /// Bytes sent again since that were not reported to have come twice.
    pub bytes: u32,
    /// Our timestamp in the first of what was sent again.
    pub stamp: Option<u32>,
    /// After a timeout nothing but the first segment was sent again (RFC 5682).
    pub first_only: bool,
    /// When new data were sent to learn whether the timeout was for nothing (`slow/spurious`),
    /// until that is known; else zero.
    pub probed_at: u64,
}

/// A probe of the tail that has no answer yet (RFC 8985 section 7).
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailProbe {
    pub end: Seq,
    /// It was the last segment again, not new data.
    pub again: bool,
}

/// All that recovery remembers of a flow.
#[derive(Debug)]
pub(crate) struct LossRecovery {
    pub phase: RecoveryState,
    pub rack: Rack,
    pub reduction: Reduction,
    pub undo: Option<Undo>,
    pub probe: Option<TailProbe>,
    /// Bytes that duplicate acknowledgements without ranges say have left the network.
    pub duplicated: u32,
    /// When what was overtaken counts as lost.
    pub reorder_at: u64,
    pub retransmitted_bytes: u64,
    pub timeouts: u32,
    pub recoveries: u32,
    pub undone: u32,
    pub tail_probes: u32,
    pub duplicates: u32,
}

impl Default for LossRecovery {
    fn default() -> Self {
        Self {
            phase: RecoveryState::Open,
            rack: Rack::default(),
            reduction: Reduction::default(),
            undo: None,
            probe: None,
            duplicated: 0,
            reorder_at: NEVER,
            retransmitted_bytes: 0,
            timeouts: 0,
            recoveries: 0,
            undone: 0,
            tail_probes: 0,
            duplicates: 0,
        }
    }
}

impl LossRecovery {
    /// Whether losses are being repaired.
    pub(crate) const fn is_active(&self) -> bool {
        matches!(self.phase, RecoveryState::Recovery | RecoveryState::Loss)
    }
}

#[cfg(test)]
mod tests;
