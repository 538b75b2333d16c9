//! Explicit congestion notification (RFC 3168, updated by RFC 8311), and its exact echo for DCTCP
//! (RFC 8257).
//!
//! 1. *Negotiation.* A SYN with ECE and CWR requests ECN, a SYN-ACK with ECE alone accepts it. We
//!    request it with [`Ecn::On`], or if the flow's congestion control depends on it; we accept it
//!    unless [`Ecn::Off`]. A retransmitted SYN does not request it, because something on the path
//!    may drop SYNs that do.
//! 2. *Marking.* New data leave as ECT(0), so that routers may mark them instead of dropping them.
//!    Retransmissions, window probes and segments without data do not (section 6.1.4 to 6.1.6), and
//!    neither does anything of TIMELY, which works by delay.
//! 3. *Echo.* CE-marked data make every acknowledgement carry ECE until a segment with CWR arrives
//!    (section 6.1.3). With DCTCP the echo says for each acknowledged byte whether it was marked.
//!    When marks begin or end, earlier data are acknowledged separately (RFC 8257 section 3.2).
//!    While ECE is due, a flow is off the fast path.
//! 4. *Response.* An acknowledgement with ECE reduces the window, once for each window of data and
//!    not during loss recovery (section 6.1.2). The next new data carry CWR, as they do after a
//!    reduction for a loss.

use crate::config::Ecn;
use crate::context::Context;
use crate::limits::NEVER;
use crate::packet::tcp::{ACK, CWR, ECE, Fields, Options, SYN, Segment};
use crate::tcp::Tcp;
use crate::tcp::congestion::{CongestionControl, Kind};
use crate::tcp::flow::flag;
use crate::tcp::flow::id::FlowIndex;
use crate::tcp::transmit::segment::{Outbound, Reply};

impl Tcp {
    /// Whether our SYN requests ECN for a connection with this congestion control.
    pub(crate) fn requests_ecn(&self, kind: Kind) -> bool {
        match self.settings.ecn {
            Ecn::Off => false,
            Ecn::Passive => kind == Kind::Dctcp,
            Ecn::On => kind != Kind::Timely,
        }
    }

    /// Whether we accept the ECN request of a SYN. A SYN that is itself CE-marked comes over a path
    /// that breaks the rules.
    pub(super) fn accepts_ecn(&self, segment: &Segment<'_>, ce_marked: bool) -> bool {
        self.settings.ecn != Ecn::Off
            && !ce_marked
            && segment.flags & (SYN | ACK | ECE | CWR) == SYN | ECE | CWR
    }

    /// Takes the CE mark of acceptable data.
    pub(super) fn note_ce(
        &mut self,
        cx: &mut Context,
        index: FlowIndex,
        segment: &Segment<'_>,
        ce_marked: bool,
    ) {
        let (flow, cold) = (&mut self.flows.hot[index], &self.flows.cold[index]);
        if !flow.has(flag::ECN) || segment.payload.is_empty() {
            return;
        }
        cx.metrics.ce_marks_received += u64::from(ce_marked);
        let owed = flow.has(flag::ECE_DUE);
        if cold.congestion.kind() == Kind::Dctcp {
            if ce_marked != owed {
                if flow.unacknowledged > 0 {
                    self.acknowledge_earlier(cx, index);
                }
                self.flows.hot[index].flags ^= flag::ECE_DUE;
                self.acknowledge_now(index);
            }
            return;
        }
        if segment.has(CWR) {
            flow.flags &= !flag::ECE_DUE;
        }
        if ce_marked {
            flow.flags |= flag::ECE_DUE;
            if !owed {
                self.acknowledge_now(index);
            }
        }
    }

    /// Acknowledges the data before the present segment, ahead of everything else that the flow
    /// will send.
    fn acknowledge_earlier(&mut self, cx: &mut Context, index: FlowIndex) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let options = if flow.has(flag::TIMESTAMPS) {
            Options::Timestamps(cx.now_ms.wrapping_add(flow.ts_offset), flow.ts_recent)
        } else {
            Options::None
        };
        let flags = if flow.has(flag::ECE_DUE) { ACK | ECE } else { ACK };
        let seq = if flow.has(flag::PERSIST) { flow.nxt } else { flow.max };
        let window = flow.announce();
        let fields = Fields { seq, ack: flow.rcv_nxt, flags, window, options };
        flow.last_ack = flow.rcv_nxt;
        flow.unacknowledged = 0;
        flow.flags &= !flag::ACK_NOW;
        cold.ack_at = NEVER;
        cx.metrics.acks_sent += 1;
        let path = self.flows.path[index].path();
        self.reply(cx, Reply { path, fields });
    }

    /// The peer's acknowledgement echoes a CE mark.
    pub(super) fn take_ece(&mut self, cx: &mut Context, index: FlowIndex) {
        cx.metrics.ece_received += 1;
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        // Data in flight at the last reduction, the last byte included, were marked before it.
        if flow.has(flag::RECOVERY) || cold.reduced.since(flow.una) <= flow.outstanding() {
            return;
        }
        cold.congestion.ce_marked(flow.moment(cx.now));
        flow.cwnd = cold.congestion.window();
        cx.metrics.ecn_reductions += 1;
        self.note_reduction(index);
        if self.flows.hot[index].has(flag::PACED) {
            self.refresh_pace(cx, index);
        }
    }

    /// The window was reduced, for any reason: the next new data carry CWR, and echoes of data in
    /// flight do not reduce it again.
    pub(super) fn note_reduction(&mut self, index: FlowIndex) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if flow.has(flag::ECN) && cold.congestion.kind() != Kind::Timely {
            cold.reduced = flow.max;
            flow.flags |= flag::CWR_DUE;
        }
    }

    /// Sets the ECN flags of a segment. Returns whether its packet is sent as ECT(0).
    #[cold]
    pub(crate) fn set_ecn_flags(&self, index: FlowIndex, segment: &mut Outbound) -> bool {
        let (flow, cold) = (&self.flows.hot[index], &self.flows.cold[index]);
        if flow.has(flag::ECE_DUE) {
            segment.flags |= ECE;
        }
        let fresh = segment.length > 0 && segment.seq == flow.max && flow.wnd > 0;
        if fresh && flow.has(flag::CWR_DUE) {
            segment.flags |= CWR;
        }
        fresh && cold.congestion.kind() != Kind::Timely
    }
}
