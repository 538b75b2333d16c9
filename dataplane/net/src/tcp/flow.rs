//! The state of a flow (a connection of TCP), split by how often it is used.
//!
//! 1. [`Flow`] is *hot*: two cache lines, which every segment touches. The first is for receiving,
//!    the second for sending. Its size and the offset of the second line are asserted.
//! 2. [`Cold`] has the rest: timers, congestion control, the scoreboard, options of the
//!    application. What only few flows need is behind a `Box`.
//! 3. The addresses and the prepared header are a third line, which only sending reads
//!    ([`crate::packet::Template`]).
//! 4. [`flag`] has the bits that decide in one test whether the fast path applies. [`event`] has
//!    the events that the application has not taken yet.
//!
//! The table (`table`) keeps the three parts in arrays of their own, under one [`id::FlowIndex`].

use crate::limits::{KEEPALIVE_PROBES, NEVER, SMALLEST_MSS};
use crate::packet::sequence::Seq;
use crate::packet::tcp;
use crate::tcp::buffers::Ring;
use crate::tcp::congestion::{Algorithm, Kind, Moment};
use crate::tcp::zero_copy::send_queue::SendQueue;

pub(crate) mod charge;
pub(crate) mod id;
pub(crate) mod reassembly;
pub(crate) mod recovery;
pub(crate) mod rtt;
pub(crate) mod scoreboard;
pub(crate) mod table;
pub(crate) mod tuning;

use charge::Charge;
use reassembly::Reassembly;
use recovery::LossRecovery;
use rtt::RttEstimator;
use scoreboard::Scoreboard;
use tuning::Tuning;

/// States of RFC 9293 section 3.3.2. LISTEN, passive SYN-RECEIVED and TIME-WAIT have smaller tables
/// of their own (`connections`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of the RFC")]
pub enum State {
    #[default]
    Closed,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

impl State {
    /// Whether both sides have synchronised (RFC 9293 section 3.5.1, group 3).
    #[inline]
    pub(crate) const fn is_synchronised(self) -> bool {
        !matches!(self, Self::Closed | Self::SynSent | Self::SynReceived)
    }

    /// Whether we may have data or a FIN to send.
    #[inline]
    pub const fn sends(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait | Self::FinWait1 | Self::Closing | Self::LastAck)
    }

    /// Whether our side is closed and the peer has not acknowledged it.
    #[inline]
    pub(crate) const fn owes_fin(self) -> bool {
        matches!(self, Self::FinWait1 | Self::Closing | Self::LastAck)
    }

    /// Whether the peer may still send data.
    #[inline]
    pub const fn receives(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }
}

/// Bits of [`Flow::flags`].
pub(crate) mod flag {
    /// The peer sends timestamps, and so do we.
    pub(crate) const TIMESTAMPS: u32 = 1 << 0;
    /// A last, short segment waits until there is more, or the cork is removed.
    pub(crate) const CORKED: u32 = 1 << 22;
    /// In the list of flows with something to send.
    pub(crate) const DIRTY: u32 = 1 << 1;
    /// An acknowledgement must leave at the next emission.
    pub(crate) const ACK_NOW: u32 = 1 << 2;
    /// The fast path does not apply: data wait out of order, or loss recovery is active.
    pub(crate) const SLOW: u32 = 1 << 3;
    /// Loss recovery is active.
    pub(crate) const RECOVERY: u32 = 1 << 4;
    /// The first lost segment leaves at the next emission, even beyond the congestion window.
    pub(crate) const RESEND: u32 = 1 << 5;
    /// The retransmission deadline is that of a window probe.
    pub(crate) const PERSIST: u32 = 1 << 6;
    /// Send a window probe at the next emission.
    pub(crate) const PROBE: u32 = 1 << 7;
    /// Our SYN, or SYN and ACK, must leave at the next emission.
    pub(crate) const SYN_DUE: u32 = 1 << 8;
    /// The next hop's link address is not known yet.
    pub(crate) const UNRESOLVED: u32 = 1 << 9;
    /// The application has closed the flow.
    pub(crate) const DETACHED: u32 = 1 << 10;
    /// The application waits for room in the send buffer.
    pub(crate) const WANTS_ROOM: u32 = 1 << 11;
    /// Small segments wait for the acknowledgement of earlier ones (Nagle).
    pub(crate) const NAGLE: u32 = 1 << 12;
    /// The peer has sent its FIN and all before it has arrived.
    pub(crate) const PEER_CLOSED: u32 = 1 << 13;
    /// In the list of flows with events.
    pub(crate) const READY: u32 = 1 << 14;
    /// Send a keepalive probe at the next emission.
    pub(crate) const KEEPALIVE_DUE: u32 = 1 << 15;
    /// The application closed its side before the handshake was over.
    pub(crate) const FIN_QUEUED: u32 = 1 << 16;
    /// Nothing could be queued for lack of memory, and no acknowledgement will make room: in the
    /// list of starved flows.
    pub(crate) const WANTS_MEMORY: u32 = 1 << 17;
    /// ECN was negotiated; in SYN-SENT: requested.
    pub(crate) const ECN: u32 = 1 << 19;
    /// Acknowledgements carry ECE.
    pub(crate) const ECE_DUE: u32 = 1 << 20;
    /// The next new data carry CWR.
    pub(crate) const CWR_DUE: u32 = 1 << 21;
    /// The slot belongs to a flow.
    pub(crate) const TAKEN: u32 = 1 << 18;
    /// It is deferred: it waits for a buffer (`transmit/schedule`).
    pub(crate) const DEFERRED: u32 = 1 << 23;
    /// Both sides understand selective acknowledgements.
    pub(crate) const SACK: u32 = 1 << 24;
    /// Acknowledgements have ranges to report: bytes out of order, or a DSACK.
    pub(crate) const SACK_DUE: u32 = 1 << 25;
    /// Each acknowledgement goes through loss recovery: data are out of order, lost, or being
    /// probed for (`slow/loss_recovery`).
    pub(crate) const INSPECT_ACKS: u32 = 1 << 26;
    /// Send a tail loss probe at the next emission.
    pub(crate) const TAIL: u32 = 1 << 27;
    /// Some of its data to send are shared with the application (`zero_copy`).
    pub(crate) const ZERO_COPY: u32 = 1 << 28;
    /// The flow has a rate, or may have one (`pacing`).
    pub(crate) const PACED: u32 = 1 << 30;
    /// It waits for its time to send.
    pub(crate) const PACE_WAIT: u32 = 1 << 29;
    /// The congestion window, or the pace, is what holds the sender back.
    pub(crate) const LIMITED: u32 = 1 << 31;
}

/// Bits of [`Flow::events`].
pub(crate) mod event {
    pub(crate) const ACCEPTED: u8 = 1 << 0;
    pub(crate) const CONNECTED: u8 = 1 << 1;
    pub(crate) const READABLE: u8 = 1 << 2;
    pub(crate) const WRITABLE: u8 = 1 << 3;
    pub(crate) const PEER_CLOSED: u8 = 1 << 4;
    pub(crate) const CLOSED: u8 = 1 << 5;
}

/// What every segment touches. First line: the receive side. Second line: the send side. What names
/// the flow and its next hop is a third line that only sending reads ([`crate::packet::Template`]).
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Flow {
    /// Bytes received in order and not consumed; behind them, out-of-order bytes at their place.
    pub rx: Ring,
    /// Next byte expected.
    pub rcv_nxt: Seq,
    /// Right edge of the window that we have announced. It never moves back.
    pub rcv_edge: Seq,
    /// The peer's latest timestamp (RFC 7323 TS.Recent).
    pub ts_recent: u32,
    /// The acknowledgement number that we sent last (RFC 7323 Last.ACK.sent).
    pub last_ack: Seq,
    pub flags: u32,
    pub state: State,
    pub events: u8,
    /// Payload bytes in a full segment.
    pub mss: u16,
    /// Scale of the windows that the peer announces.
    pub snd_shift: u8,
    /// Scale of the windows that we announce.
    pub rcv_shift: u8,
    /// Segments received and not acknowledged.
    pub unacknowledged: u8,
    /// Duplicate acknowledgements in a row.
    pub duplicates: u8,
    pub generation: u32,
    /// Bytes in receive buffers that the application holds (`zero_copy`).
    pub held: u32,
    /// Most bytes in the receive buffer: as many as `tuning` says.
    pub rcv_limit: u32,

    /// Bytes to send, the first of which is `una` (once our SYN is acknowledged).
    pub tx: Ring,
    /// First byte not acknowledged.
    pub una: Seq,
    /// Next byte to send: `max`, but for a closed window (`flag::PERSIST`), where it is `una`.
    pub nxt: Seq,
    /// Highest byte ever sent, plus one.
    pub max: Seq,
    /// The peer's window in bytes.
    pub wnd: u32,
    /// Sequence and acknowledgement numbers of the segment that last updated it.
    pub wl1: Seq,
    pub wl2: Seq,
    /// The congestion window: a copy of what `Cold::congestion` says.
    pub cwnd: u32,
    /// What is added to the clock for our timestamps.
    pub ts_offset: u32,
    /// Duplicate acknowledgements to send: one for each segment that came out of order.
    pub owed: u8,
}

const _: () = assert!(size_of::<Flow>() == 128);
const _: () = assert!(std::mem::offset_of!(Flow, tx) == 64);

/// What the common segment touches little of, or nothing.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Cold {
    /// When to retransmit, or to probe the window.
    pub retransmit_at: u64,
    /// When to acknowledge at the latest.
    pub ack_at: u64,
    /// When the last acceptable segment arrived.
    pub received_at: u64,
    /// When our SYN was sent, if it is to be timed; else zero.
    pub timed_at: u64,
    /// What is in flight.
    pub scoreboard: Scoreboard,
    /// Bytes that the peer has acknowledged since the connection began, and that were received in
    /// order.
    pub acknowledged: u64,
    pub received: u64,
    /// `retransmit_at` is the time of a tail loss probe.
    pub probing: bool,
    /// Retransmissions or probes in a row.
    pub backoff: u8,
    /// Keepalive probes in a row.
    pub keepalive_probes: u8,
    pub reason: crate::events::CloseReason,
    pub congestion: Algorithm,
    /// What there is to send, if some of it is shared with the application.
    pub send_queue: Option<Box<SendQueue>>,
    pub user: u64,
    /// Bytes a second at which the flow is paced, and the application's limit on that; the largest
    /// number if there is none.
    pub rate: u64,
    pub most_rate: u64,
    /// When a paced flow may send next.
    pub release_at: u64,

    pub rtt: RttEstimator,
    pub tuning: Tuning,
    /// When keepalive or FIN-WAIT-2 is due.
    pub idle_at: u64,
    /// Idle time before keepalive probes; zero means none.
    pub keepalive: u64,
    /// Time between keepalive probes, and how many; zero for the usual ones.
    pub keepalive_interval: u64,
    pub keepalive_most: u8,
    /// The application's limit on the receive buffer; the largest number if there is none.
    pub most_window: u32,
    pub challenged_at: u64,
    /// When `ts_recent` was last updated.
    pub ts_recent_at: u64,
    /// When data was last sent: for the idle restart.
    pub sent_at: u64,
    /// `max` when the last loss was found (RFC 6582).
    pub recover: Seq,
    /// `max` when the window was last reduced, if ECN is used.
    pub reduced: Seq,
    /// Sequence number of the peer's FIN, if it came out of order.
    pub peer_fin: Option<Seq>,
    /// The largest window that the peer has announced.
    pub largest_window: u32,
    /// Initial sequence number.
    pub iss: Seq,
    pub retransmits: u64,
    pub reassembly: Option<Box<Reassembly>>,
    /// Its memory charge while bytes wait out of order.
    pub charge: Charge,
    /// When an ICMP error last said that the peer cannot be reached; zero if none did.
    pub unreachable_at: u64,
    /// The size of full segments before a path-MTU black hole was suspected, or zero; and how often
    /// the suspicion was confirmed.
    pub full_mss: u16,
    pub black_holes: u8,
    /// The state of loss recovery, once there was something to recover from.
    pub recovery: Option<Box<LossRecovery>>,
    /// Bytes that arrived again, until a DSACK reports them (RFC 2883).
    pub dsack: Option<(Seq, Seq)>,
    /// Whether the application has taken the flow's Closed event.
    pub is_over: bool,
    /// Whether the application has taken the flow's Accepted event, if it had one.
    pub pending_accept: bool,
    /// The user timeout: for how long data may stay unacknowledged; zero for none.
    pub user_timeout: u64,
    /// Since when it does, while `backoff` is more than zero.
    pub stalled_at: u64,
}

impl Default for Cold {
    fn default() -> Self {
        Self {
            retransmit_at: NEVER,
            ack_at: NEVER,
            received_at: 0,
            timed_at: 0,
            scoreboard: Scoreboard::default(),
            acknowledged: 0,
            received: 0,
            probing: false,
            recovery: None,
            backoff: 0,
            keepalive_probes: 0,
            reason: crate::events::CloseReason::Normal,
            congestion: Algorithm::new(Kind::Cubic, 0),
            send_queue: None,
            user: 0,
            rate: u64::MAX,
            most_rate: u64::MAX,
            release_at: 0,
            rtt: RttEstimator::default(),
            tuning: Tuning::default(),
            idle_at: NEVER,
            keepalive: 0,
            keepalive_interval: 0,
            keepalive_most: 0,
            most_window: u32::MAX,
            challenged_at: 0,
            ts_recent_at: 0,
            sent_at: 0,
            recover: Seq(0),
            reduced: Seq(0),
            peer_fin: None,
            largest_window: 0,
            iss: Seq(0),
            retransmits: 0,
            reassembly: None,
            charge: Charge::default(),
            dsack: None,
            unreachable_at: 0,
            full_mss: 0,
            black_holes: 0,
            is_over: false,
            pending_accept: false,
            user_timeout: 0,
            stalled_at: 0,
        }
    }
}

impl Flow {
    #[inline]
    pub(crate) const fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }

    /// Notes whether the congestion window is what holds the flow back: only then may it grow.
    #[inline]
    pub(crate) const fn note_limit(&mut self, limited: bool) {
        self.flags = if limited { self.flags | flag::LIMITED } else { self.flags & !flag::LIMITED };
    }

    /// The state of the flow for congestion control.
    pub(crate) const fn moment(&self, now: u64) -> Moment {
        Moment { in_flight: self.outstanding(), mss: self.mss as u32, now }
    }

    /// Bytes between the oldest unacknowledged and the highest ever sent.
    #[inline]
    pub(crate) const fn outstanding(&self) -> u32 {
        self.max.since(self.una)
    }

    /// The window to announce now, in units of the scale, and moves the announced edge along. It
    /// opens by a full segment or half the buffer, or not at all (RFC 9293 section 3.8.6.2.2).
    ///
    /// Rounded down (RFC 7323 section 2.4): rounded up, each acknowledgement of a small segment
    /// would announce a little more, in the end more than the buffer takes. So the announced window
    /// may shrink by up to a unit. The engine still takes all bytes that it announced once:
    /// `rcv_edge` never moves back.
    #[inline]
    pub(crate) fn announce(&mut self) -> u16 {
        let limit = self.rcv_limit;
        let free = limit.saturating_sub(self.rx.len() as u32 + self.held);
        let current = self.rcv_edge.distance(self.rcv_nxt).max(0).cast_unsigned();
        let step = (limit / 2).min(u32::from(self.mss));
        let window = if free >= current.saturating_add(step) { free } else { current };
        let units = (window >> self.rcv_shift).min(0xffff);
        self.rcv_edge = self.rcv_edge.max(self.rcv_nxt.plus(units << self.rcv_shift));
        units as u16
    }

    /// Most bytes in the send buffer, between the two sizes that flows begin and end with.
    #[inline]
    pub(crate) fn send_limit(&self, sizes: (usize, usize)) -> usize {
        (2 * self.cwnd as usize).max(sizes.0).min(sizes.1)
    }

    /// How far the edge could be moved beyond what is announced.
    #[inline]
    pub(crate) fn window_gain(&self) -> usize {
        let free = (self.rcv_limit as usize).saturating_sub(self.rx.len() + self.held as usize);
        // The largest window that sixteen bits can announce in units of the scale. Without this
        // bound, a large buffer without scale would cause an update after every read.
        let free = (free >> self.rcv_shift).min(0xffff) << self.rcv_shift;
        free.saturating_sub(self.rcv_edge.distance(self.rcv_nxt).max(0).cast_unsigned() as usize)
    }
}

impl Cold {
    /// The earliest of the flow's deadlines.
    #[inline]
    pub(crate) fn deadline(&self) -> u64 {
        let reordering = self.recovery.as_ref().map_or(NEVER, |recovery| recovery.reorder_at);
        self.retransmit_at.min(self.ack_at).min(self.idle_at).min(reordering)
    }

    /// The timer ran out. The first time, the wait began when it was set.
    pub(crate) fn note_stall(&mut self, now: u64) {
        if self.backoff == 0 {
            self.stalled_at = now.saturating_sub(self.rtt.timeout(0));
        }
    }

    /// Whether the user timeout is over (RFC 9293 section 3.9.1).
    pub(crate) fn is_user_timeout_over(&self, now: u64) -> bool {
        self.user_timeout != 0 && now.saturating_sub(self.stalled_at) >= self.user_timeout
    }

    /// The next deadline of data that were just retransmitted, or of a probe: after the timeout, or
    /// when the user timeout ends.
    pub(crate) fn retransmit_deadline(&self, now: u64) -> u64 {
        let at = now + self.rtt.timeout(self.backoff);
        if self.user_timeout == 0 || self.backoff == 0 {
            return at;
        }
        at.min(self.stalled_at.saturating_add(self.user_timeout).max(now))
    }

    /// Whether a peer that has been silent for so long has had its keepalive probes. A user timeout
    /// replaces their number.
    pub(crate) const fn is_probed_enough(&self, silence: u64) -> bool {
        if self.user_timeout == 0 {
            let most = if self.keepalive_most == 0 { KEEPALIVE_PROBES } else { self.keepalive_most };
            self.keepalive_probes >= most
        } else {
            self.keepalive_probes > 0 && silence >= self.user_timeout
        }
    }

    /// Bytes between the oldest unacknowledged and the highest sent that are not in the network:
    /// they have arrived, or are lost.
    pub(crate) fn left_network(&self) -> u32 {
        let duplicated = self.recovery.as_ref().map_or(0, |recovery| recovery.duplicated);
        self.scoreboard.sacked() + self.scoreboard.lost() + duplicated
    }

    /// Starts congestion control for segments of `mss` bytes and returns the window.
    pub(crate) fn start_congestion(&mut self, mss: u16) -> u32 {
        self.congestion = Algorithm::new(self.congestion.kind(), u32::from(mss));
        self.congestion.window()
    }
}

/// The payload of our full segments to a peer that takes segments of `mss` bytes, over packets of
/// at most `mtu` bytes of which `headers` are not TCP's payload or options.
pub(crate) fn payload_size(peer_mss: Option<u16>, mtu: usize, headers: usize, timestamps: bool) -> u16 {
    let own = u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
    let size = peer_mss.unwrap_or(crate::limits::DEFAULT_MSS).clamp(SMALLEST_MSS, own.max(SMALLEST_MSS));
    if timestamps { size - tcp::TIMESTAMP_OPTION as u16 } else { size }
}
