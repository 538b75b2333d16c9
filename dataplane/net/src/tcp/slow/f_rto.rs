//! Spurious timeouts towards peers that send neither SACK nor timestamps: basic F-RTO (RFC 5682
//! section 2.1).
//!
//! 1. The timer expired: the first segment is retransmitted, and nothing else (`timeout`).
//! 2. The first acknowledgement advances past it, but not past all data in flight: it may
//!    acknowledge either copy. Instead of the data that count as lost, two segments of new data
//!    leave. Without so much new data, or without room for them in the peer's window, there is no
//!    probe, and the lost data are retransmitted at once.
//! 3. The next acknowledgement decides. If it advances, it acknowledges data that were sent once:
//!    nothing was lost (`Undo`). If it is a duplicate, the data are lost indeed, and are
//!    retransmitted as after any timeout.
//!
//! A timeout during a recovery does not probe: retransmitted data could be taken for data that were
//! sent once.

use super::loss_recovery::AckSummary;
use crate::context::Context;
use crate::tcp::Tcp;
use crate::tcp::flow::flag;
use crate::tcp::flow::id::FlowIndex;
use crate::tcp::flow::recovery::LossRecovery;
use crate::tcp::flow::recovery::RecoveryState;

impl Tcp {
    /// Whether the acknowledgement shows that the timeout was spurious: step 3, it advanced and
    /// acknowledges no retransmission.
    pub(super) fn is_timeout_spurious(recovery: &LossRecovery, ack: &AckSummary) -> bool {
        let asked = recovery.undo.as_ref().is_some_and(|undo| undo.probed_at != 0);
        asked && ack.advanced && ack.delivered.original > 0 && !ack.delivered.retransmitted
    }

    /// Takes steps 2 and 3. Returns whether this acknowledgement needs nothing else.
    pub(super) fn probe_timeout(
        &mut self,
        cx: &Context,
        index: FlowIndex,
        recovery: &mut LossRecovery,
        ack: &AckSummary,
    ) -> bool {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let Some(undo) = recovery.undo.as_mut().filter(|_| recovery.phase == RecoveryState::Loss) else {
            return false;
        };
        let mss = u32::from(flow.mss);
        if undo.probed_at != 0 {
            if !ack.advanced && !ack.duplicate {
                // It does not decide.
                return true;
            }
            let probed_at = std::mem::take(&mut undo.probed_at);
            if flow.una.before(cold.recover) {
                // All data but the new, which left later.
                cold.scoreboard.mark_lost(probed_at - 1);
                flow.cwnd = 3 * mss;
            }
            return false;
        }
        let unsent = (flow.tx.len() as u32).saturating_sub(flow.outstanding());
        let asks = undo.first_only
            && undo.stamp.is_some()
            && !flow.has(flag::SACK)
            && ack.echo.is_none()
            && ack.advanced
            && !flow.una.before(undo.from.plus(undo.bytes))
            && flow.una.before(cold.recover)
            && unsent >= mss
            && ack.window >= flow.outstanding().saturating_add(mss);
        if asks {
            undo.first_only = false;
            undo.probed_at = cx.now.max(1);
            cold.scoreboard.clear_lost();
            flow.cwnd = flow.outstanding().saturating_add(2 * mss);
        }
        asks
    }
}
