//! The state of loss recovery. A flow allocates a [`LossRecovery`] on its first SACK block,
//! duplicate acknowledgement or timeout; most flows never do.
//!
//! 1. [`Rack`] (RFC 8985) decides what is lost: data that were sent before something that has
//!    arrived, by more than a reordering window. The window is zero until reordering was seen, then
//!    a quarter of the minimum round trip. It grows with each round in which the peer reports a
//!    DSACK (RFC 2883), up to the smoothed round trip.
//! 2. [`Reduction`] is proportional rate reduction (RFC 6937, 9937): how much may leave in recovery
//!    for each byte that was delivered.
//! 3. [`Undo`] remembers what would prove a reduction spurious. That is one of: DSACKs for all
//!    retransmitted bytes; an acknowledgement of data sent before the first retransmission (RFC
//!    3522 by timestamps); after a timeout, the arrival of data sent once (RFC 5682). Then nothing
//!    was lost and the reduction is reverted.
//!
//! `slow/loss_recovery.rs` uses these; `scoreboard` has the bytes themselves.

use crate::limits::NEVER;
use crate::packet::sequence::Seq;
use crate::tcp::flow::scoreboard::{Delivered, sent_after};

/// Recoveries without a duplicate after which the reordering window is small again (RFC 8985
/// section 6.2 step 4).
const PERSIST: u8 = 16;

/// The state of loss recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryState {
    /// No loss is suspected.
    #[default]
    Open,
    /// Acknowledgements report data out of order; nothing counts as lost yet.
    Disorder,
    /// Lost data are retransmitted (RFC 6675, 6582).
    Recovery,
    /// The same after a retransmission timeout.
    Loss,
}

/// The state of RACK: the newest delivered segment, and the reordering that was seen.
#[derive(Debug, Default)]
pub(crate) struct Rack {
    /// `RACK.xmit_ts` and `RACK.end_seq`: when the newest delivered transmission was sent, and
    /// where it ends.
    pub latest: (u64, Seq),
    /// `RACK.rtt`: the RTT of that transmission.
    pub rtt: u64,
    /// The end of the highest delivered bytes.
    highest: Option<Seq>,
    /// `RACK.reo_wnd_mult` of RFC 8985, less one: the reordering window is that many quarters of
    /// the minimum RTT, and one more.
    reo_wnd_extra: u8,
    /// `RACK.reo_wnd_persist`: recoveries until the window is a quarter again.
    reo_wnd_persist: u8,
    /// `RACK.dsack_round`: the end of what was outstanding at the last DSACK. One DSACK a round
    /// trip counts.
    dsack_round: Option<Seq>,
    /// Times that reordering was seen.
    pub reordered: u32,
}

impl Rack {
    /// Data were delivered (RFC 8985 section 6.2 steps 2 and 3).
    pub(crate) fn update(&mut self, delivered: &Delivered, una: Seq, now: u64, min_rtt: u64) {
        let highest = self.highest.map_or(una, |highest| highest.max(una));
        if let Some(lowest) = delivered.lowest_original
            && self.highest.is_some_and(|highest| lowest.before(highest))
        {
            self.reordered = self.reordered.saturating_add(1);
        }
        self.highest = Some(highest);
        let Some((sent, end, retransmitted)) = delivered.latest else { return };
        self.highest = Some(highest.max(end));
        let rtt = now.saturating_sub(sent);
        // Too fast for a retransmission: the first copy has arrived.
        if retransmitted && rtt < min_rtt {
            return;
        }
        self.rtt = rtt;
        if sent_after((sent, end), self.latest) {
            self.latest = (sent, end);
        }
    }

    /// The peer sent a DSACK: the window was too small (step 4).
    pub(crate) fn widen(&mut self, una: Seq, max: Seq) {
        if self.dsack_round.is_none_or(|end| !una.before(end)) {
            self.dsack_round = Some(max);
            self.reo_wnd_extra = self.reo_wnd_extra.saturating_add(1);
            self.reo_wnd_persist = PERSIST;
        }
    }

    /// A recovery has ended.
    pub(crate) fn recovered(&mut self) {
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
        if self.reo_wnd_persist == 0 {
            self.reo_wnd_extra = 0;
        }
    }

    /// How long a segment may be overtaken before it counts as lost. `certain`: recovery is active,
    /// or enough arrived beyond the gap.
    pub(crate) fn window(&self, min_rtt: u64, srtt: u64, certain: bool) -> u64 {
        if certain && self.reordered == 0 {
            0
        } else {
            (min_rtt / 4 * (u64::from(self.reo_wnd_extra) + 1)).min(srtt)
        }
    }
}

/// Proportional rate reduction, with the names of RFC 9937, in bytes.
#[derive(Debug, Default)]
pub(crate) struct Reduction {
    /// Bytes delivered since recovery began.
    prr_delivered: u32,
    /// Bytes sent since recovery began.
    prr_out: u32,
    /// `RecoverFS`: bytes in flight when recovery began.
    recover_fs: u32,
    /// The congestion window when recovery ends.
    ssthresh: u32,
}

impl Reduction {
    /// Recovery begins with `flight` bytes in flight, and is to end with a window of `ssthresh`.
    pub(crate) const fn new(flight: u32, ssthresh: u32) -> Self {
        let recover_fs = if flight == 0 { 1 } else { flight };
        Self { prr_delivered: 0, prr_out: 0, recover_fs, ssthresh }
    }

    /// `bytes` left.
    pub(crate) const fn sent(&mut self, bytes: u32) {
        self.prr_out = self.prr_out.saturating_add(bytes);
    }

    /// An acknowledgement delivered `bytes` and left `pipe` in flight; `safe_ack` says that it
    /// advanced and revealed no new loss. Returns the window.
    pub(crate) fn window(&mut self, bytes: u32, pipe: u32, safe_ack: bool, mss: u32) -> u32 {
        self.prr_delivered = self.prr_delivered.saturating_add(bytes);
        let allowed = if pipe > self.ssthresh {
            let share = u64::from(self.prr_delivered) * u64::from(self.ssthresh);
            let share = share.div_ceil(u64::from(self.recover_fs)).min(u64::from(u32::MAX)) as u32;
            share.saturating_sub(self.prr_out)
        } else {
            let owed = self.prr_delivered.saturating_sub(self.prr_out).max(bytes);
            (owed + if safe_ack { mss } else { 0 }).min(self.ssthresh - pipe)
        };
        // The first retransmission always leaves.
        pipe.saturating_add(if self.prr_out == 0 { allowed.max(mss) } else { allowed })
    }
}

/// What would show that a reduction was spurious.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    /// The first unacknowledged byte when it happened.
    pub from: Seq,
    /// Bytes retransmitted since that no DSACK covers.
    pub bytes: u32,
    /// Our timestamp in the first retransmission.
    pub stamp: Option<u32>,
    /// After a timeout only the first segment was retransmitted (RFC 5682).
    pub first_only: bool,
    /// When new data were sent to learn whether the timeout was spurious (`slow/f_rto`); zero if
    /// that is not pending.
    pub probed_at: u64,
}

/// A probe of the tail that has no answer yet (RFC 8985 section 7).
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailProbe {
    pub end: Seq,
    /// It was a retransmission of the last segment, not new data.
    pub retransmission: bool,
}

/// The state of loss recovery of one flow.
#[derive(Debug)]
pub(crate) struct LossRecovery {
    pub phase: RecoveryState,
    pub rack: Rack,
    pub reduction: Reduction,
    pub undo: Option<Undo>,
    pub probe: Option<TailProbe>,
    /// Bytes that have left the network according to duplicate acknowledgements without SACK.
    pub duplicated: u32,
    /// When data that were overtaken count as lost.
    pub reorder_at: u64,
    pub retransmitted_bytes: u64,
    pub timeouts: u32,
    pub recoveries: u32,
    pub undone: u32,
    pub tail_probes: u32,
    pub dsacks: u32,
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
            dsacks: 0,
        }
    }
}

impl LossRecovery {
    /// Whether lost data are being retransmitted.
    pub(crate) const fn is_active(&self) -> bool {
        matches!(self.phase, RecoveryState::Recovery | RecoveryState::Loss)
    }
}

#[cfg(test)]
mod tests;
