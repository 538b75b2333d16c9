//! The receive half of the fast path: the next segment of an established flow. It allocates nothing
//! but buffers from the pool, and searches no table but that of connections.
//!
//! 1. An expected frame is for us, unfragmented and not CE-marked. Its IPv4 header has no options,
//!    its TCP header none but timestamps. Its checksums are right, and its flow exists. Its fields
//!    are read in place, and nothing else is parsed (`receive_expected`). Other frames go through
//!    `Engine::dispatch` and may come back here, those of IPv6 among them.
//! 2. One test of the flags decides whether the flow is established, nothing is out of order and no
//!    loss recovery is active. The segment has only ACK (and PSH) set, starts with the next
//!    expected byte, and fits the window. By its timestamp it is not older than the last, and it
//!    acknowledges something that was sent. Anything else goes to `slow`.
//! 3. The acknowledgement frees send buffer, may give a round-trip sample, and restarts the
//!    retransmission timer.
//! 4. The payload goes to the receive ring. The second unacknowledged segment requests an ACK in
//!    the next emission, the first one only within [`DELAYED_ACK`]. Either rides on data if there
//!    is any.

use sietch_nic::Untrusted;

use crate::context::Context;
use crate::limits::{DELAYED_ACK, MILLISECOND, NEVER, TAIL_SLACK};
use crate::packet::sequence::Seq;
use crate::packet::tcp::{self, ACK, PSH, Plain};
use crate::packet::{checksum, ethernet, ipv4};
use crate::tcp::Tcp;
use crate::tcp::congestion::{Acknowledged, CongestionControl};
use crate::tcp::flow::id::FlowIndex;
use crate::tcp::flow::scoreboard::Delivered;
use crate::tcp::flow::{State, event, flag};

/// Parts of a round trip within which what is sent is one run of the scoreboard.
const GRAINS: u64 = 64;

/// Flags of a flow that the fast path does not handle.
const NOT_NOW: u32 = flag::SLOW | flag::PERSIST | flag::PEER_CLOSED | flag::DETACHED | flag::ECE_DUE;

/// Version 4 and a header of five words.
const NO_OPTIONS: u8 = 0x45;

/// The effect of an acknowledgement on the congestion window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CongestionSignal {
    /// No loss recovery is active, so congestion control sets the window.
    pub may_grow: bool,
    /// The acknowledgement echoes a CE mark.
    pub ece: bool,
}

impl Tcp {
    /// Takes a frame if it is the common case; otherwise changes nothing and returns false. It
    /// takes no frame that `dispatch` would not bring to `fast_receive` as well.
    #[inline(always)]
    pub(crate) fn receive_expected(&mut self, cx: &mut Context, head: &[u8], tail: Untrusted<'_>) -> bool {
        let Some((link, packet)) = head.split_first_chunk::<{ ethernet::HEADER }>() else { return false };
        let Some((network, segment)) = packet.split_first_chunk::<{ ipv4::HEADER }>() else { return false };
        let Some((header, rest)) = segment.split_first_chunk::<{ tcp::HEADER }>() else { return false };
        let length = packet.len() + tail.len();
        let [_, _, l0, l1, _, _, f0, f1, ..] = *network;
        if link[..6] != cx.mac
            || link[6] & 1 != 0
            || link[12..] != ethernet::IPV4.to_be_bytes()
            || network[0] != NO_OPTIONS
            || network[1] & 3 == ipv4::CONGESTION_EXPERIENCED
            || usize::from(u16::from_be_bytes([l0, l1])) != length
            || u16::from_be_bytes([f0, f1]) & ipv4::FRAGMENT != 0
            || network[9] != ipv4::TCP
            || network[16..] != *cx.addresses.v4_octets()
            || !checksum::is_valid(checksum::sum_header(network))
        {
            return false;
        }
        let Some(wire) = packet[12..].first_chunk() else { return false };
        if !cx.unchecked && !tcp::is_whole(network, segment, tail, cx.checks) {
            return false;
        }
        let Some(index) = self.connections.find_flow(wire) else { return false };
        let Some(plain) = Plain::read(header, rest, tail) else { return false };
        if !self.fast_receive(cx, index, &plain) {
            return false;
        }
        cx.metrics.segments_received += 1;
        cx.metrics.segments_fast += 1;
        true
    }

    /// Takes the segment if it is the common case; otherwise changes nothing and returns false.
    #[inline]
    pub(crate) fn fast_receive(&mut self, cx: &mut Context, index: FlowIndex, segment: &Plain<'_>) -> bool {
        let now = cx.now;
        let (Some(flow), Some(cold)) = (self.flows.hot.get_mut(index), self.flows.cold.get_mut(index)) else {
            return false;
        };
        let length = segment.payload.len();
        let advanced = segment.ack.since(flow.una);
        if flow.state != State::Established
            || flow.has(NOT_NOW)
            || segment.flags & !PSH != ACK
            || segment.seq != flow.rcv_nxt
            || advanced > flow.outstanding()
            || (advanced == 0 && length == 0)
            || length > flow.rcv_edge.distance(flow.rcv_nxt).max(0).cast_unsigned() as usize
        {
            return false;
        }
        let mut echo = None;
        if flow.has(flag::TIMESTAMPS) {
            match segment.timestamps {
                Some((value, reply)) if !Seq(value).before(Seq(flow.ts_recent)) => {
                    echo = Some(reply);
                    // RFC 7323 section 4.3: only a segment that answers our last acknowledgement
                    // sets the echo.
                    if !segment.seq.after(flow.last_ack) {
                        flow.ts_recent = value;
                        cold.ts_recent_at = now;
                    }
                }
                _ => return false,
            }
        }
        if length > 0 && !flow.rx.reserve(&mut self.pool, flow.rx.len() + length, flow.rcv_limit as usize) {
            return false;
        }
        cold.received_at = now;
        cold.keepalive_probes = 0;
        flow.wnd = u32::from(segment.window) << flow.snd_shift;
        flow.wl1 = segment.seq;
        flow.wl2 = segment.ack;
        cold.largest_window = cold.largest_window.max(flow.wnd);
        if length > 0 {
            flow.rx.append(segment.payload);
            flow.rcv_nxt = flow.rcv_nxt.plus(length as u32);
            cold.received += length as u64;
            cx.metrics.payload_received += length as u64;
            self.note_payload(cx, index);
        }
        if advanced > 0 {
            self.acknowledge(cx, index, advanced, echo, false);
        } else if self.flows.hot[index].tx.len() > self.flows.hot[index].outstanding() as usize {
            // The window may have opened.
            self.mark_dirty(index);
        }
        true
    }

    /// Payload arrived in order: raises the event, and arranges its acknowledgement. Inlined,
    /// because each segment with payload comes here.
    #[inline(always)]
    pub(crate) fn note_payload(&mut self, cx: &mut Context, index: FlowIndex) {
        let (flow, cold) = self.flows.both(index);
        flow.unacknowledged = flow.unacknowledged.saturating_add(1);
        if flow.unacknowledged >= 2 {
            flow.flags |= flag::ACK_NOW;
            self.mark_dirty(index);
            self.tune_window(cx, index);
        } else if cold.ack_at == NEVER {
            cold.ack_at = cx.now + DELAYED_ACK;
            self.flow_timers.no_later(index, cold.ack_at);
        }
        self.raise(index, event::READABLE);
    }

    /// `advanced` more bytes (or our FIN) are acknowledged, `ece` if the acknowledgement echoes
    /// a CE mark. Returns whether our FIN was among them.
    #[inline]
    pub(crate) fn acknowledge(
        &mut self,
        cx: &mut Context,
        index: FlowIndex,
        advanced: u32,
        echo: Option<u32>,
        ece: bool,
    ) -> bool {
        let una = self.flows.hot[index].una.plus(advanced);
        let delivered = self.flows.cold[index].scoreboard.acknowledge(una);
        self.account(cx, index, advanced, echo, CongestionSignal { may_grow: true, ece }, &delivered)
    }

    /// What [`Tcp::acknowledge`] does once the scoreboard is updated.
    #[inline]
    pub(crate) fn account(
        &mut self,
        cx: &mut Context,
        index: FlowIndex,
        advanced: u32,
        echo: Option<u32>,
        CongestionSignal { may_grow, ece }: CongestionSignal,
        delivered: &Delivered,
    ) -> bool {
        let (flow, cold) = self.flows.both(index);
        let in_flight = flow.outstanding();
        let data = (advanced as usize).min(flow.tx.len());
        flow.tx.consume(data);
        flow.una = flow.una.plus(advanced);
        flow.nxt = flow.nxt.max(flow.una);
        flow.duplicates = 0;
        cx.metrics.payload_acknowledged += data as u64;
        let mut rtt = 0;
        cold.acknowledged += data as u64;
        if delivered.newest != 0 {
            rtt = cx.now - delivered.newest;
            cold.rtt.sample(cx.now - delivered.oldest);
            cold.rtt.note_min_rtt(rtt, cx.now);
            cold.scoreboard.set_grain(cold.rtt.srtt() / GRAINS);
        } else if cold.backoff > 0
            && let Some(echo) = echo
        {
            // Retransmitted data cannot be timed by themselves, but each copy has its own timestamp
            // (RFC 7323 section 4.1).
            let elapsed = cx.now_ms.wrapping_add(flow.ts_offset).wrapping_sub(echo);
            if elapsed < 600_000 {
                cold.rtt.sample(u64::from(elapsed) * MILLISECOND);
            }
        }
        // That a peer takes the byte of a window probe ends no stall: its window may stay closed.
        if advanced != 1 || !flow.has(flag::PERSIST) || flow.tx.is_empty() {
            cold.backoff = 0;
        }
        // In slow start half a window in use is enough: each acknowledged byte allows two new ones
        // (RFC 9438 section 4.10's first rule).
        let used = flow.has(flag::LIMITED)
            || (in_flight.saturating_mul(2) >= flow.cwnd && cold.congestion.in_slow_start());
        let bytes = delivered.bytes.min(advanced.max(data as u32));
        cold.congestion.acknowledged(&Acknowledged {
            bytes,
            ce_marked: if ece { bytes } else { 0 },
            rtt,
            in_flight,
            mss: u32::from(flow.mss),
            now: cx.now,
            // RFC 3168 section 6.1.2: the window does not grow by an acknowledgement with an echo.
            grow: may_grow && used && !ece,
        });
        if may_grow {
            flow.cwnd = cold.congestion.window();
        }
        if flow.has(flag::PACED | flag::ZERO_COPY) {
            self.note_acknowledged(cx, index, data);
        }
        let (flow, cold) = self.flows.both(index);
        if flow.una == flow.max {
            cold.retransmit_at = NEVER;
            cold.probing = false;
            flow.flags &= !(flag::PERSIST | flag::TAIL);
        } else {
            self.arm(cx, index);
        }
        let flow = &mut self.flows.hot[index];
        let room =
            flow.has(flag::WANTS_ROOM) && flow.tx.len() <= flow.send_limit(self.settings.send_buffer) / 2;
        if flow.tx.is_empty() {
            flow.tx.release(&mut self.pool);
            if data == advanced as usize && flow.una == flow.max && flow.state.owes_fin() {
                self.mark_dirty(index);
            }
        } else if flow.tx.len() > flow.nxt.since(flow.una) as usize {
            self.mark_dirty(index);
        }
        if room {
            self.flows.hot[index].flags &= !flag::WANTS_ROOM;
            self.raise(index, event::WRITABLE);
        }
        data < advanced as usize
    }

    /// For flows with pacing or a send queue: `data` bytes are acknowledged.
    #[inline(never)]
    fn note_acknowledged(&mut self, cx: &Context, index: FlowIndex, data: usize) {
        if self.flows.hot[index].has(flag::PACED) {
            self.refresh_pace(cx, index);
        }
        if self.flows.hot[index].has(flag::ZERO_COPY) {
            self.release_acknowledged(index, data);
        }
    }

    /// Sets the retransmission timer; or the earlier one of a tail loss probe, if more than a
    /// segment is in flight and no loss is suspected. Inlined, because most acknowledgements come
    /// here.
    #[inline(always)]
    pub(crate) fn arm(&mut self, cx: &Context, index: FlowIndex) {
        let (flow, cold) = self.flows.both(index);
        let mut at = cx.now + cold.rtt.timeout(cold.backoff);
        cold.probing = false;
        if flow.flags & (flag::SACK | flag::INSPECT_ACKS | flag::PERSIST) == flag::SACK
            && flow.outstanding() > u32::from(flow.mss)
            && cold.backoff == 0
            && cold.rtt.srtt() > 0
        {
            let tail = cx.now + 2 * cold.rtt.srtt() + TAIL_SLACK;
            cold.probing = tail < at;
            at = at.min(tail);
        }
        cold.retransmit_at = at;
        self.flow_timers.no_later(index, at);
    }
}
