//! Explicit congestion notification (RFC 3168, as RFC 8311 has it), and its exact echo for DCTCP
//! (RFC 8257).
//!
//! 1. *Agreement.* A SYN with ECE and CWR asks, a SYN-ACK with ECE alone agrees. We ask if
//!    [`Ecn::On`], or if the flow's congestion control lives on marks; we agree unless
//!    [`Ecn::Off`]. A SYN that is sent again does not ask: something on the path may drop those
//!    that do.
//! 2. *Marks.* New data leave as ECT(0), so that routers may mark them instead of dropping them.
//!    What is sent again, window probes, and segments without data do not (section 6.1.4 to 6.1.6),
//!    and nothing of TIMELY does, which goes by delay.
//! 3. *Echo.* Marked data make every acknowledgement carry ECE until a segment with CWR comes
//!    (section 6.1.3). With DCTCP the echo says of each acknowledged byte whether it was marked:
//!    when marks begin or end, what came before is acknowledged apart (RFC 8257 section 3.2). While
//!    ECE is due, a flow is off the fast path.
//! 4. *Answer.* An acknowledgement with ECE reduces the window, once for each window of data and
//!    not while losses are repaired (section 6.1.2). The next new data carry CWR. So they do after
//!    a reduction for a loss.

use crate::config::Ecn;
use crate::context::Context;
use crate::limits::NEVER;
use crate::packet::tcp::{ACK, CWR, ECE, Fields, Options, SYN, Segment};
use crate::tcp::Tcp;
use crate::tcp::congestion::{CongestionControl, Kind};
use crate::tcp::flow::flag;
use crate::tcp::flow::id::FlowIndex;
use crate::tcp::segment::{Outbound, Reply};

impl Tcp {
    /// Whether our SYN of a connection with this congestion control asks for marks.
    pub(crate) fn requests_ecn(&self, kind: Kind) -> bool {
        match self.settings.ecn {
            Ecn::Off => false,
            Ecn::Passive => kind == Kind::Dctcp,
            Ecn::On => kind != Kind::Timely,
        }
    }

    /// Whether we agree to what a SYN asks for. One that has itself been marked comes over a path
    /// that does not keep the rules.
    pub(super) fn accepts_ecn(&self, segment: &Segment<'_>, marked: bool) -> bool {
        self.settings.ecn != Ecn::Off && !marked && segment.flags & (SYN | ACK | ECE | CWR) == SYN | ECE | CWR
    }

    /// What acceptable data say of the path to us.
    pub(super) fn note_ce(
        &mut self,
        cx: &mut Context,
        index: FlowIndex,
        segment: &Segment<'_>,
        marked: bool,
    ) {
        let (flow, cold) = (&mut self.flows.hot[index], &self.flows.cold[index]);
        if !flow.has(flag::ECN) || segment.payload.is_empty() {
            return;
        }
        cx.metrics.ce_marks_received += u64::from(marked);
        let owed = flow.has(flag::ECE_DUE);
        if cold.congestion.kind() == Kind::Dctcp {
            if marked != owed {
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
        if marked {
            flow.flags |= flag::ECE_DUE;
            if !owed {
                self.acknowledge_now(index);
            }
        }
    }

    /// Acknowledges what came before the segment at hand, ahead of everything else that the flow
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

    /// The peer's acknowledgement says that data met congestion.
    pub(super) fn take_ece(&mut self, cx: &mut Context, index: FlowIndex) {
        cx.metrics.ece_received += 1;
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        // What was in flight at the last reduction, its last byte included, was marked before it.
        if flow.has(flag::RECOVERY) || cold.reduced.since(flow.una) <= flow.outstanding() {
            return;
        }
        cold.congestion.marked(flow.moment(cx.now));
        flow.cwnd = cold.congestion.window();
        cx.metrics.ecn_reductions += 1;
        self.note_reduction(index);
        if self.flows.hot[index].has(flag::PACED) {
            self.refresh_pace(cx, index);
        }
    }

    /// The window was reduced, for whatever reason: the peer is told, and echoes of what is in
    /// flight reduce it no more.
    pub(super) fn note_reduction(&mut self, index: FlowIndex) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if flow.has(flag::ECN) && cold.congestion.kind() != Kind::Timely {
            cold.reduced = flow.max;
            flow.flags |= flag::CWR_DUE;
        }
    }

    /// Gives a segment of a flow with marks the flags that it must have. Says whether its packet
    /// may be marked.
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
