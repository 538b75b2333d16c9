//! The state of flows as `sietch ss` shows it: what TCP_INFO is on Linux.
//!
//! Everything here is computed on request; the counters behind it are fields that the engine keeps
//! anyway.

use std::net::SocketAddr;

use crate::context::Context;
use crate::tcp::Tcp;
use crate::tcp::congestion::Kind;
use crate::tcp::connections::four_tuple::FourTuple;
use crate::tcp::connections::listener::Listener;
use crate::tcp::flow::id::{FlowId, FlowIndex};
use crate::tcp::flow::recovery::{LossRecovery, RecoveryState};
use crate::tcp::flow::{State, flag};

/// The state of a flow. Times are in nanoseconds, windows and quantities in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct FlowInfo {
    pub state: State,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub local_port: u16,
    pub user: u64,
    /// Whether the application has closed it.
    pub orphaned: bool,

    /// Options in use.
    pub timestamps: bool,
    pub sack: bool,
    pub ecn: bool,
    pub send_scale: u8,
    pub receive_scale: u8,
    pub segment_size: u16,

    pub recovery: RecoveryState,
    pub congestion: Kind,
    pub congestion_window: u32,
    pub slow_start_threshold: u32,
    /// Bytes a second at which the flow is paced; zero if it is not.
    pub pacing_rate: u64,
    pub peer_window: u32,
    pub receive_window: u32,
    /// SRTT and RTTVAR (RFC 6298), and the minimum RTT of the last minutes. Zero before the first
    /// sample.
    pub srtt: u64,
    pub rttvar: u64,
    pub min_rtt: u64,
    pub retransmission_timeout: u64,
    /// Timeouts or probes in a row.
    pub backoff: u8,

    /// Sent and neither acknowledged, nor selectively acknowledged, nor lost.
    pub in_flight: u32,
    pub sacked: u32,
    pub lost: u32,
    /// Runs of the scoreboard.
    pub scoreboard_runs: usize,
    /// Segments retransmitted, and the bytes in them.
    pub retransmits: u64,
    pub retransmitted_bytes: u64,
    pub timeouts: u64,
    pub recoveries: u64,
    /// Reductions of the congestion window that were undone, because nothing had been lost.
    pub reductions_undone: u64,
    /// Tail loss probes (RFC 8985 section 7).
    pub tail_probes: u64,
    /// DSACKs received.
    pub dsacks_received: u64,
    /// Times that reordering was seen.
    pub reordered: u64,
    /// How long a segment may be overtaken before it counts as lost.
    pub reordering_window: u64,

    /// Bytes that the peer has acknowledged, and bytes received in order, since the connection
    /// began.
    pub acknowledged_bytes: u64,
    pub received_bytes: u64,
    pub unsent_or_unacknowledged: usize,
    pub unread: usize,
    /// Most bytes in either buffer, at present.
    pub send_buffer: usize,
    pub receive_buffer: usize,
    /// Bytes that wait for earlier ones.
    pub out_of_order: usize,
    /// How long ago a segment arrived, and data were sent.
    pub since_received: u64,
    pub since_sent: u64,
}

impl Tcp {
    pub(crate) fn flow_info(&self, cx: &Context, flow: FlowId) -> Option<FlowInfo> {
        self.flows.index(flow).map(|index| self.describe(cx, index))
    }

    /// All flows and their state, those included that the application has closed.
    pub(crate) fn flows<'a>(&'a self, cx: &'a Context) -> impl Iterator<Item = (FlowId, FlowInfo)> + 'a {
        let slots = (0..self.flows.hot.len()).map(|slot| FlowIndex(slot as u32));
        let taken = slots.filter(|index| self.flows.hot[*index].has(flag::TAKEN));
        taken.map(|index| (self.flows.id(index), self.describe(cx, index)))
    }

    /// Listening ports.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = (u16, &Listener)> {
        self.listeners.iter()
    }

    /// The four-tuples of half-open connections.
    pub(crate) fn half_open(&self) -> impl Iterator<Item = &FourTuple> {
        self.half_open.iter().map(|half_open| &half_open.tuple)
    }

    /// The four-tuples in TIME-WAIT.
    pub(crate) fn time_waits(&self) -> impl Iterator<Item = &FourTuple> {
        self.time_waits.iter().map(|waiting| &waiting.tuple)
    }

    fn describe(&self, cx: &Context, index: FlowIndex) -> FlowInfo {
        let (flow, cold, path) = (&self.flows.hot[index], &self.flows.cold[index], &self.flows.path[index]);
        let untroubled = LossRecovery::default();
        let recovery = cold.recovery.as_deref().unwrap_or(&untroubled);
        let waiting = cold.reassembly.as_deref().map_or(&[][..], |reassembly| reassembly.ranges());
        FlowInfo {
            state: flow.state,
            local: SocketAddr::new(path.local().into(), path.local_port()),
            remote: SocketAddr::new(path.remote().into(), path.remote_port()),
            local_port: path.local_port(),
            user: cold.user,
            orphaned: flow.has(flag::DETACHED),
            timestamps: flow.has(flag::TIMESTAMPS),
            sack: flow.has(flag::SACK),
            ecn: flow.has(flag::ECN),
            send_scale: flow.snd_shift,
            receive_scale: flow.rcv_shift,
            segment_size: flow.mss,
            recovery: recovery.phase,
            congestion: cold.congestion.kind(),
            congestion_window: flow.cwnd,
            slow_start_threshold: cold.congestion.threshold(),
            pacing_rate: if cold.rate == u64::MAX { 0 } else { cold.rate },
            peer_window: flow.wnd,
            receive_window: flow.rcv_edge.distance(flow.rcv_nxt).max(0).cast_unsigned(),
            srtt: cold.rtt.srtt(),
            rttvar: cold.rtt.rttvar(),
            min_rtt: cold.rtt.min_rtt(),
            retransmission_timeout: cold.rtt.timeout(cold.backoff),
            backoff: cold.backoff,
            in_flight: flow.outstanding().saturating_sub(cold.left_network()),
            sacked: cold.scoreboard.sacked(),
            lost: cold.scoreboard.lost(),
            scoreboard_runs: cold.scoreboard.len(),
            retransmits: cold.retransmits,
            retransmitted_bytes: recovery.retransmitted_bytes,
            timeouts: recovery.timeouts.into(),
            recoveries: recovery.recoveries.into(),
            reductions_undone: recovery.undone.into(),
            tail_probes: recovery.tail_probes.into(),
            dsacks_received: recovery.dsacks.into(),
            reordered: recovery.rack.reordered.into(),
            reordering_window: recovery.rack.window(
                cold.rtt.min_rtt(),
                cold.rtt.srtt(),
                recovery.is_active(),
            ),
            acknowledged_bytes: cold.acknowledged,
            received_bytes: cold.received,
            unsent_or_unacknowledged: flow.tx.len(),
            unread: flow.rx.len(),
            send_buffer: flow.send_limit(self.settings.send_buffer),
            receive_buffer: flow.rcv_limit as usize,
            out_of_order: waiting.iter().map(|range| range.1.since(range.0) as usize).sum(),
            since_received: cx.now.saturating_sub(cold.received_at),
            since_sent: cx.now.saturating_sub(cold.sent_at),
        }
    }
}
