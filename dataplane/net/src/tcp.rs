//! TCP: all flows of the engine, and what belongs to them.
//!
//! 1. A segment finds its connection (`connections`). The next segment of an established flow goes
//!    through `fast`; everything else through `slow`.
//! 2. The application reads, consumes and sends (`calls`), copied or not (`zero_copy`). What it
//!    does marks flows as *dirty*: they have something to send.
//! 3. `transmit` cuts segments for the dirty flows, as far as the windows and `pacing` allow.
//! 4. Timers run when they are due (`slow/timeout`).
//!
//! `Flow` and `Cold` (`flow`) are the state of one flow; the fields here are the state of all.

use std::collections::VecDeque;

use crate::config::{Config, Ecn};
use crate::context::Context;
use crate::events::CloseReason;
use crate::ip::origin::Origin;
use crate::limits::{
    self, FIRST_RECEIVE_BUFFER, FIRST_RECEIVE_SEGMENTS, FIRST_SEND_BUFFER, FIRST_WINDOW_SHARE,
    SMALLEST_BUFFER,
};
use crate::packet::tcp::{self, Segment};
use crate::packet::{Address, network_header};
use crate::reply_limit::ReplyLimit;
use crate::tables::aged::AgedTable;
use crate::tables::timers::Timers;
use crate::tables::timing_wheel::TimingWheel;

pub(crate) mod buffers;
mod calls;
pub mod congestion;
pub(crate) mod connections;
mod fast;
pub(crate) mod flow;
mod icmp;
pub(crate) mod info;
mod out_of_order;
mod pacing;
mod slow;
mod transmit;
mod window;
pub(crate) mod zero_copy;

use buffers::Pool;
use congestion::Kind;
use congestion::path_delay::PathDelays;
use connections::four_tuple::FourTuple;
use connections::half_open::{HalfOpen, HalfOpenIndex};
use connections::listener::Listeners;
use connections::source_ports::SourcePorts;
use connections::time_wait::{TimeWait, TimeWaitIndex};
use connections::{ConnectionTable, Entry};
use flow::id::{FlowId, FlowIndex};
use flow::table::Flows;
use flow::{event, flag};
use out_of_order::memory::OutOfOrderMemory;
use transmit::segment::Reply;
use zero_copy::received_buffer::ReceivedBuffers;

/// The configuration of flows.
#[derive(Debug)]
struct Settings {
    /// Largest receive buffer of a flow, and the one that it begins with.
    receive_buffer: usize,
    first_receive_buffer: usize,
    /// The send buffer that a flow begins with, and the largest.
    send_buffer: (usize, usize),
    /// Scale of the windows that we announce to peers that scale.
    own_shift: u8,
    congestion: Kind,
    ecn: Ecn,
    pacing: bool,
}

impl Settings {
    fn new(config: &Config, mtu: usize) -> Self {
        let bound = |bytes: usize| bytes.clamp(SMALLEST_BUFFER, 64 << 20).next_power_of_two();
        let (receive_buffer, send_buffer) = (bound(config.receive_buffer), bound(config.send_buffer));
        let first = (FIRST_RECEIVE_SEGMENTS * mtu).next_power_of_two();
        Self {
            receive_buffer,
            first_receive_buffer: first.max(FIRST_RECEIVE_BUFFER).min(receive_buffer),
            send_buffer: (FIRST_SEND_BUFFER.min(send_buffer), send_buffer),
            own_shift: (0..14).find(|shift| receive_buffer >> shift <= 0xffff).unwrap_or(14),
            congestion: config.congestion,
            ecn: config.ecn,
            pacing: config.pacing,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Tcp {
    settings: Settings,

    connections: ConnectionTable,
    flows: Flows,
    half_open: AgedTable<HalfOpenIndex, HalfOpen>,
    time_waits: AgedTable<TimeWaitIndex, TimeWait>,
    listeners: Listeners,
    source_ports: SourcePorts,
    /// Until when acknowledgements may bring SYN cookies back.
    cookies_until: u64,
    reset_limit: ReplyLimit,

    /// Memory of send and receive buffers.
    pool: Pool,
    /// The share of it that bytes out of order take.
    out_of_order: OutOfOrderMemory,
    path_delays: PathDelays,

    flow_timers: Timers<FlowIndex>,
    /// Paced flows that wait for their time to send.
    paced: TimingWheel<FlowIndex>,
    /// Flows that wait for the link address of their next hop.
    unresolved: Vec<FlowIndex>,

    /// Flows with something to send.
    dirty: Vec<FlowIndex>,
    /// Flows that wait for a buffer for their next frame, flagged as such: the one that has waited
    /// longest first.
    deferred: VecDeque<FlowIndex>,
    /// When a deferred flow last found a buffer, or the first was deferred.
    deferred_since: u64,
    /// Bytes that the first of them has sent as the first.
    deferred_sent: usize,
    /// Segments that belong to no flow.
    replies: Vec<Reply>,

    /// Flows with events.
    ready: Vec<FlowIndex>,
    /// Flows that are over, whose last bytes can be read until events are taken again.
    closed_unread: Vec<FlowId>,
    /// Flows that could queue nothing for lack of memory.
    starved: Vec<FlowIndex>,

    /// Receive buffers that applications hold.
    received_buffers: ReceivedBuffers,
    /// Where a segment is assembled whose payload is in more than two pieces.
    scratch: Vec<u8>,
}

impl Tcp {
    pub(crate) fn new(config: &Config, cx: &Context, mtu: usize) -> Self {
        Self {
            settings: Settings::new(config, mtu),
            connections: ConnectionTable::new(cx.secret),
            flows: Flows::new(config.flows),
            half_open: AgedTable::new(config.half_open.max(1)),
            time_waits: AgedTable::new(config.time_waits.max(1)),
            listeners: Listeners::default(),
            source_ports: SourcePorts::new(config.source_ports),
            cookies_until: 0,
            reset_limit: ReplyLimit::new(limits::RESET_RATE, cx.secret),
            pool: Pool::new(config.buffer_memory),
            out_of_order: OutOfOrderMemory::default(),
            path_delays: PathDelays::default(),
            flow_timers: Timers::new(),
            paced: TimingWheel::new(),
            unresolved: Vec::new(),
            dirty: Vec::new(),
            deferred: VecDeque::new(),
            deferred_since: 0,
            deferred_sent: 0,
            replies: Vec::new(),
            ready: Vec::new(),
            closed_unread: Vec::new(),
            starved: Vec::new(),
            received_buffers: ReceivedBuffers::default(),
            scratch: Vec::new(),
        }
    }

    /// When the first of all timers is due, or [`limits::NEVER`].
    #[inline]
    pub(crate) fn earliest(&self) -> u64 {
        self.flow_timers
            .earliest()
            .min(self.half_open.earliest())
            .min(self.paced.earliest())
            .min(self.time_waits.earliest())
    }

    /// Whether the application has events to take, or starved flows will have once timers run.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.ready.is_empty()
            || !self.closed_unread.is_empty()
            || (!self.starved.is_empty() && self.pool.has_send_memory(1))
    }

    /// Whether something waits for the next emission.
    #[inline]
    pub(crate) fn has_output(&self) -> bool {
        !self.dirty.is_empty() || !self.deferred.is_empty() || !self.replies.is_empty()
    }

    /// Whether segments that belong to no flow wait for the next emission.
    #[inline]
    pub(crate) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Flows, half-open connections, connections in TIME-WAIT, and bytes in buffers.
    pub(crate) fn population(&self) -> (usize, usize, usize, usize) {
        (self.flows.len(), self.half_open.len(), self.time_waits.len(), self.pool.used())
    }

    /// Takes a segment that the fast path did not take from its frame.
    pub(crate) fn receive(&mut self, cx: &mut Context, origin: &Origin, segment: &Segment<'_>) {
        cx.metrics.segments_received += 1;
        match self.connections.find_cached(&FourTuple::of_segment(origin, segment)) {
            Some(Entry::Flow(index)) => {
                let fast = !origin.is_ce_marked()
                    && segment.plain().is_some_and(|plain| self.fast_receive(cx, index, &plain));
                if fast {
                    cx.metrics.segments_fast += 1;
                } else {
                    self.slow_receive(cx, index, segment, origin.is_ce_marked());
                }
            }
            Some(Entry::HalfOpen(index)) => self.receive_half_open(cx, index, origin, segment),
            Some(Entry::TimeWait(index)) => self.receive_time_wait(cx, index, origin, segment),
            None => self.receive_unmatched(cx, origin, segment),
        }
    }

    /// Puts a flow on the list of those with something to send.
    #[inline]
    fn mark_dirty(&mut self, index: FlowIndex) {
        let flow = &mut self.flows.hot[index];
        if !flow.has(flag::DIRTY) {
            flow.flags |= flag::DIRTY;
            self.dirty.push(index);
        }
    }

    /// Notes events for the application.
    #[inline]
    fn raise(&mut self, index: FlowIndex, events: u8) {
        let flow = &mut self.flows.hot[index];
        if flow.has(flag::DETACHED) {
            return;
        }
        flow.events |= events;
        if !flow.has(flag::READY) {
            flow.flags |= flag::READY;
            self.ready.push(index);
        }
    }

    /// Marks the flows that wait for memory, because there is some.
    #[inline]
    pub(crate) fn wake_starved(&mut self) {
        if !self.starved.is_empty() {
            self.wake_all_starved();
        }
    }

    #[cold]
    fn wake_all_starved(&mut self) {
        if !self.pool.has_send_memory(1) {
            return;
        }
        for index in std::mem::take(&mut self.starved) {
            let flow = &mut self.flows.hot[index];
            // A flow that is over lost its flag, and so did the next flow in its slot.
            if flow.has(flag::WANTS_MEMORY) {
                flow.flags &= !(flag::WANTS_MEMORY | flag::WANTS_ROOM);
                self.raise(index, event::WRITABLE);
            }
        }
    }

    /// The receive buffer with which a flow begins: a share of the free memory at most, because
    /// everything that it promises may come.
    fn first_window(&self) -> usize {
        let share = (self.pool.free() / FIRST_WINDOW_SHARE).max(SMALLEST_BUFFER);
        self.settings.first_receive_buffer.min(share)
    }

    /// Payload of our full segments to a peer.
    fn payload_size(cx: &Context, remote: &Address, peer_mss: Option<u16>, timestamps: bool) -> u16 {
        flow::payload_size(peer_mss, cx.path_mtu(remote), tcp::HEADER + network_header(remote), timestamps)
    }

    /// A next hop became known: flows that waited for it may send.
    pub(crate) fn resolved(&mut self, cx: &Context, hop: Address, mac: [u8; 6]) {
        for index in std::mem::take(&mut self.unresolved) {
            if !self.flows.hot[index].has(flag::UNRESOLVED) {
                continue;
            }
            let path = &mut self.flows.path[index];
            if cx.addresses.next_hop(&path.remote()) == Some(hop) {
                path.set_next_hop(mac);
                self.flows.hot[index].flags &= !flag::UNRESOLVED;
                self.mark_dirty(index);
            } else {
                self.unresolved.push(index);
            }
        }
    }

    /// A next hop did not answer: the flows that waited for it fail.
    pub(crate) fn hop_unreachable(&mut self, cx: &mut Context, hop: Address) {
        for index in std::mem::take(&mut self.unresolved) {
            let remote = self.flows.path[index].remote();
            if !self.flows.hot[index].has(flag::UNRESOLVED) {
                continue;
            }
            if cx.addresses.next_hop(&remote) == Some(hop) {
                cx.metrics.connections_failed += 1;
                self.finish(index, CloseReason::Unreachable);
            } else {
                self.unresolved.push(index);
            }
        }
    }
}
