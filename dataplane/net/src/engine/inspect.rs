//! Seeing inside: what `sietch ss` shows, and what TCP_INFO is elsewhere.
//!
//! Everything here is computed when it is asked for; the counters behind it are words that the
//! engine keeps anyway.

use std::net::SocketAddr;

use super::Engine;
use crate::congestion::Kind;
use crate::flow::{FlowId, State, flag};
use crate::flow_table::Name;
use crate::recovery::Repair;

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

/// What there is to know about a flow. Times are in nanoseconds, windows and quantities in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct FlowInfo {
    pub state: State,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub local_port: u16,
    pub user: u64,
    /// Whether the application has let go of it.
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
    /// Round-trip time: smoothed, its variation, and the least in the last minutes. Zero before the
    /// first sample.
    pub srtt: u64,
    pub rttvar: u64,
    pub min_rtt: u64,
    pub retransmission_timeout: u64,
    /// Timeouts or probes in a row.
    pub backoff: u8,

    /// Sent and neither acknowledged, nor selectively acknowledged, nor taken for lost.
    pub in_flight: u32,
    pub sacked: u32,
    pub lost: u32,
    /// Runs of bytes in flight that are told apart.
    pub scoreboard_runs: usize,
    /// Segments sent again, and the bytes in them.
    pub retransmits: u64,
    pub retransmitted_bytes: u64,
    pub timeouts: u64,
    pub recoveries: u64,
    /// Reductions of the congestion window that were taken back, because nothing had been lost.
    pub reductions_undone: u64,
    /// Probes of the tail (RFC 8985 section 7).
    pub tail_probes: u64,
    /// Reports of the peer that bytes came twice.
    pub dsacks_received: u64,
    /// Times that segments were seen to overtake one another.
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
    /// How long ago the peer was heard, and data were sent.
    pub since_received: u64,
    pub since_sent: u64,
}

/// What kind of socket an entry of [`Engine::sockets`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// A port that connections are accepted on; so many wait for the application, of at most so
    /// many.
    Listener {
        /// Connections that the application has not taken.
        waiting: u32,
        /// Most of them.
        backlog: u32,
    },
    /// A half-open passive connection.
    HalfOpen,
    /// A connection.
    Flow(FlowId),
    /// A connection that is over, whose name is kept for a while.
    TimeWait,
    /// A bound UDP port.
    Udp {
        /// Datagrams that wait for the application.
        waiting: usize,
    },
}

/// One line of a listing of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketInfo {
    /// What it is.
    pub kind: SocketKind,
    /// Our end.
    pub local: SocketAddr,
    /// The other end, if it has one.
    pub remote: Option<SocketAddr>,
    /// All about a flow.
    pub flow: Option<FlowInfo>,
}

impl Engine {
    fn own_end(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.addresses.v4().into(), port)
    }

    fn ends(&self, name: &Name) -> (SocketAddr, SocketAddr) {
        let local = SocketAddr::new(self.addresses.get(name.local).into(), name.local_port);
        (local, SocketAddr::new(name.remote.into(), name.remote_port))
    }

    /// What there is to know about a flow, or `None` if the id is stale.
    pub fn flow_info(&self, flow: FlowId) -> Option<FlowInfo> {
        self.flows.index(flow).map(|index| self.describe(index))
    }

    fn describe(&self, index: usize) -> FlowInfo {
        let (flow, cold, path) = (&self.flows.hot[index], &self.flows.cold[index], &self.flows.path[index]);
        let untroubled = Repair::default();
        let repair = cold.repair.as_deref().unwrap_or(&untroubled);
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
            recovery: repair.phase,
            congestion: cold.congestion.kind(),
            congestion_window: flow.cwnd,
            slow_start_threshold: cold.congestion.threshold(),
            pacing_rate: if cold.rate == u64::MAX { 0 } else { cold.rate },
            peer_window: flow.wnd,
            receive_window: flow.rcv_edge.distance(flow.rcv_nxt).max(0).cast_unsigned(),
            srtt: cold.round_trip.smoothed(),
            rttvar: cold.round_trip.variation(),
            min_rtt: cold.round_trip.least(),
            retransmission_timeout: cold.round_trip.timeout(cold.backoff),
            backoff: cold.backoff,
            in_flight: flow.outstanding().saturating_sub(cold.left_network()),
            sacked: cold.board.sacked(),
            lost: cold.board.lost(),
            scoreboard_runs: cold.board.len(),
            retransmits: cold.retransmits,
            retransmitted_bytes: repair.retransmitted_bytes,
            timeouts: repair.timeouts.into(),
            recoveries: repair.recoveries.into(),
            reductions_undone: repair.undone.into(),
            tail_probes: repair.tail_probes.into(),
            dsacks_received: repair.duplicates.into(),
            reordered: repair.rack.reordered.into(),
            reordering_window: repair.rack.window(
                cold.round_trip.least(),
                cold.round_trip.smoothed(),
                repair.is_repairing(),
            ),
            acknowledged_bytes: cold.acknowledged,
            received_bytes: cold.received,
            unsent_or_unacknowledged: flow.tx.len(),
            unread: flow.rx.len(),
            send_buffer: flow.send_limit(self.send_buffer),
            receive_buffer: flow.rcv_limit as usize,
            out_of_order: waiting.iter().map(|range| range.1.since(range.0) as usize).sum(),
            since_received: self.now.saturating_sub(cold.heard_at),
            since_sent: self.now.saturating_sub(cold.sent_at),
        }
    }

    /// All flows, those included that the application has let go of, and how they are doing.
    pub fn flows(&self) -> impl Iterator<Item = (FlowId, FlowInfo)> + '_ {
        let live = |index: &usize| self.flows.hot[*index].has(flag::TAKEN);
        let indices = (0..self.flows.hot.len()).filter(live);
        indices.map(|index| (self.flows.id(index as u32), self.describe(index)))
    }

    /// Every socket there is: listeners, half-open connections, flows, connections in TIME-WAIT,
    /// UDP ports.
    pub fn sockets(&self) -> impl Iterator<Item = SocketInfo> + '_ {
        let listeners = self.listeners.iter().map(|(port, listener)| SocketInfo {
            kind: SocketKind::Listener { waiting: listener.waiting, backlog: listener.backlog },
            local: self.own_end(*port),
            remote: None,
            flow: None,
        });
        let named = |kind, name| {
            let (local, remote) = self.ends(name);
            SocketInfo { kind, local, remote: Some(remote), flow: None }
        };
        let half_open =
            self.half_open.iter().map(move |half_open| named(SocketKind::HalfOpen, &half_open.name));
        let flows = self.flows().map(|(id, info)| SocketInfo {
            kind: SocketKind::Flow(id),
            local: info.local,
            remote: Some(info.remote),
            flow: Some(info),
        });
        let waiting = self.time_waits.iter().map(move |waiting| named(SocketKind::TimeWait, &waiting.name));
        let ports = self.ports.iter().map(|port| SocketInfo {
            kind: SocketKind::Udp { waiting: port.inbox.len() },
            local: self.own_end(port.port),
            remote: None,
            flow: None,
        });
        listeners.chain(half_open).chain(flows).chain(waiting).chain(ports)
    }
}
