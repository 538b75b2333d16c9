//! The engine: one queue, its addresses, all its flows. It never waits, reads no clock and owns no
//! thread.
//!
//! One turn of the loop that drives it:
//!
//! 1. [`Engine::receive`] takes the frames that have arrived, up to [`RECEIVE_BATCH`], and
//!    processes them all: what `fast` expects at a glance, the others through `dispatch` below,
//!    then `fast` or `slow` for TCP. Nothing is sent yet but echo and ARP replies, which reuse the
//!    frame that asked. Then timers that are due run (`slow/timeout.rs`).
//! 2. The application takes the events and answers: reads, consumes, sends. That fills buffers and
//!    marks flows.
//! 3. [`Engine::emit`] sends for every marked flow what its windows allow, acknowledgements riding
//!    on data, and rings the doorbell once.
//! 4. If nothing happened, the loop sleeps on the queue's doorbell until [`Engine::next_deadline`].
//!
//! [`Engine::poll`] is 1 and 3 in one call, for who has nothing to do in between.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;

use sietch_nic::{Frame, NicQueue, Untrusted};

use crate::addresses::{Addresses, Ipv6Config};
use crate::ahead::Ahead;
use crate::buffers::Pool;
use crate::congestion::Kind;
use crate::flow::{FlowId, event, flag, payload_size};
use crate::flow_table::{Directory, Entry, Flows, Name};
use crate::fragments::Fragments;
use crate::groups::Groups;
use crate::limits::{
    self, BUFFER_MEMORY, Bucket, FIRST_EPHEMERAL, FIRST_RECEIVE_BUFFER, FIRST_RECEIVE_SEGMENTS,
    FIRST_SEND_BUFFER, FLOWS, HALF_OPEN, LAST_EPHEMERAL, MILLISECOND, RECEIVE_BATCH, RECEIVE_BUFFER,
    SEND_BUFFER, TIME_WAITS,
};
use crate::listener::{HalfOpen, Listener, Slab};
use crate::local_ports::{PortSet, RecentPorts};
use crate::metrics::Metrics;
use crate::neighbour::{Neighbours, Question};
use crate::owned::HandedOver;
use crate::packet::{Address, Checks, Malformed, Path, Payload, arp, ethernet, icmp, ipv4, ipv6, tcp, udp};
use crate::path_delay::PathDelays;
use crate::path_mtu::PathMtus;
use crate::siphash::Key;
use crate::time_wait::TimeWait;
use crate::timers::Timers;
use crate::timing_wheel::TimingWheel;
use crate::transmit::Reply;
use errors::Report;

mod announce;
mod api;
mod datagrams;
mod errors;
mod inspect;
mod internet;
mod ipv6_input;
mod multicast;
mod options;
mod output;
mod parts;

pub use api::{ConnectError, ListenError};
pub use inspect::{FlowInfo, RecoveryState, SocketInfo, SocketKind};
pub use multicast::GroupError;

/// What an engine is told once.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our IPv4 address; `0.0.0.0` for none. The engine answers for no other.
    pub address: Ipv4Addr,
    /// Bits of the address that name the network on the link.
    pub prefix: u8,
    /// The router to everywhere else.
    pub gateway: Option<Ipv4Addr>,
    /// Our IPv6 addresses, if IPv6 is spoken; it is not on a link with an MTU below 1280 bytes.
    pub ipv6: Option<Ipv6Config>,
    /// Sixteen bytes from a source of true randomness, for sequence numbers and the flow table. A
    /// simulation passes its seed.
    pub secret: [u8; 16],
    /// Most flows.
    pub flows: usize,
    /// Most half-open passive connections.
    pub half_open: usize,
    /// Most connections in TIME-WAIT.
    pub time_waits: usize,
    /// Most bytes in buffers of all flows.
    pub buffer_memory: usize,
    /// Most bytes in one flow's receive buffer; a power of two from 4 KiB to 64 MiB, else rounded
    /// to one. A flow begins with a small one, which grows as it is seen to be of use.
    pub receive_buffer: usize,
    /// Most bytes in one flow's send buffer; likewise.
    pub send_buffer: usize,
    /// The ports from which outgoing connections pick theirs, first and last.
    pub source_ports: (u16, u16),
    /// Congestion control of new flows.
    pub congestion: Kind,
    /// Whether marks of congestion are agreed on with peers.
    pub ecn: Ecn,
    /// Spread what a window lets out over the round trip, instead of sending it at once: shorter
    /// queues in the network and fairer shares of it, for a timer now and then. (TIMELY, which
    /// works by rates, is always paced.)
    pub pacing: bool,
    /// Tell the link at the start whose our addresses are, and again when somebody else says that
    /// one is his: for VNICs whose peers may have known a former holder of the address.
    pub announce: bool,
}

/// When marks of congestion (RFC 3168) are agreed on with a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Never.
    Off,
    /// If the peer asks, and for connections of ours whose congestion control lives on them
    /// (DCTCP).
    #[default]
    Passive,
    /// Every connection of ours asks for them, but for those that go by delay alone (TIMELY).
    On,
}

impl Config {
    /// The defaults of `limits` for an address on a link.
    pub const fn new(address: Ipv4Addr, prefix: u8, secret: [u8; 16]) -> Self {
        Self {
            address,
            prefix,
            gateway: None,
            ipv6: None,
            secret,
            flows: FLOWS,
            half_open: HALF_OPEN,
            time_waits: TIME_WAITS,
            buffer_memory: BUFFER_MEMORY,
            receive_buffer: RECEIVE_BUFFER,
            send_buffer: SEND_BUFFER,
            source_ports: (FIRST_EPHEMERAL, LAST_EPHEMERAL),
            congestion: Kind::Cubic,
            ecn: Ecn::Passive,
            pacing: false,
            announce: false,
        }
    }
}

/// Bytes of the network header of packets to `remote`.
pub(crate) const fn network_header(remote: &Address) -> usize {
    if remote.is_v4() { ipv4::HEADER } else { ipv6::HEADER }
}

/// What one turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollResult {
    /// Frames taken.
    pub received: usize,
    /// Frames handed to the device.
    pub sent: usize,
    /// Whether there is more to do at once: frames may be waiting, or not everything could be sent.
    pub more: bool,
}

/// What is to become of a frame once it has been read.
enum Disposition {
    Release,
    /// Answer an ARP request in place.
    AnswerArp(arp::Packet),
    /// Answer an echo request in place.
    Echo {
        length: usize,
    },
}

/// Where a packet comes from, and to which of our addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// The link address from which it came.
    pub mac: [u8; 6],
    pub remote: Address,
    /// The place of its destination among our addresses.
    pub local: u8,
    /// The ECN field of its header.
    pub ecn: u8,
}

impl Origin {
    /// Whether the packet met congestion on its way.
    #[inline]
    pub const fn is_marked(&self) -> bool {
        self.ecn == ipv4::CONGESTION_EXPERIENCED
    }

    /// The name of the connection to which a segment belongs.
    #[inline]
    pub fn name(&self, segment: &tcp::Segment<'_>) -> Name {
        Name {
            remote: self.remote,
            remote_port: segment.source,
            local_port: segment.destination,
            local: self.local,
        }
    }
}

/// A TCP/IP engine for the addresses of one queue.
#[derive(Debug)]
pub struct Engine {
    pub(crate) addresses: Addresses,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: usize,
    pub(crate) secret: Key,
    pub(crate) receive_buffer: usize,
    /// What send buffers begin and end with.
    pub(crate) send_buffer: (usize, usize),
    pub(crate) first_receive_buffer: usize,
    /// Scale of the windows that we announce to peers that scale.
    pub(crate) own_shift: u8,
    pub(crate) source_ports: (u16, u16),
    /// Those drawn lately for outgoing connections.
    pub(crate) recent_ports: RecentPorts,
    pub(crate) congestion: Kind,
    pub(crate) ecn: Ecn,
    pub(crate) pacing: bool,

    /// The medium makes checksums of TCP and UDP unnecessary.
    pub(crate) unchecked: bool,
    /// What of those that arrive.
    pub(crate) checks: Checks,
    /// The time of this turn, and the same in milliseconds for timestamps.
    pub(crate) now: u64,
    pub(crate) now_ms: u32,

    pub(crate) directory: Directory,
    pub(crate) flows: Flows,
    pub(crate) pool: Pool,
    pub(crate) ahead: Ahead,
    pub(crate) half_open: Slab<HalfOpen>,
    pub(crate) time_waits: Slab<TimeWait>,
    /// By port: each connection that is accepted looks for its own, among up to
    /// [`limits::LISTENERS`].
    pub(crate) listeners: BTreeMap<u16, Listener>,
    /// Their ports.
    pub(crate) listening: PortSet,
    pub(crate) flow_timers: Timers,
    pub(crate) half_open_timers: Timers,
    /// Paced flows that wait for their time to send.
    pub(crate) paced: TimingWheel,
    pub(crate) time_wait_timers: Timers,
    pub(crate) neighbours: Neighbours,
    /// Flows whose next hop is being asked for.
    pub(crate) unresolved: Vec<u32>,
    /// Bound ports, by number.
    pub(crate) ports: Vec<crate::udp::Port>,
    pub(crate) outgoing: std::collections::VecDeque<crate::udp::Outgoing>,
    /// Buffers of datagrams that were sent, for the next ones.
    pub(crate) spare: Vec<Vec<u8>>,
    pub(crate) path_delays: PathDelays,
    pub(crate) path_mtus: PathMtus,
    pub(crate) fragments: Fragments,
    pub(crate) groups: Groups,
    pub(crate) announcer: announce::Announcer,

    /// Flows with something to send.
    pub(crate) dirty: Vec<u32>,
    /// Flows for whose next frame there was no buffer in the present emission; they are marked.
    pub(crate) passed_over: Vec<u32>,
    /// The first flow that was passed over since one of them has found a buffer, and when that was.
    pub(crate) patient: Option<(u32, u64)>,
    /// Flows that are over, with bytes to be read until events are taken again.
    pub(crate) remains: Vec<FlowId>,
    /// Flows with events.
    pub(crate) ready: Vec<u32>,
    /// Flows that could send nothing for want of memory.
    pub(crate) starved: Vec<u32>,
    /// Segments that belong to no flow.
    pub(crate) replies: Vec<Reply>,
    pub(crate) questions: Vec<Question>,
    pub(crate) echo_bucket: Bucket,
    pub(crate) reset_bucket: Bucket,
    pub(crate) unreachable_bucket: Bucket,
    pub(crate) connects: u64,
    /// Until when acknowledgements may bring SYN cookies back.
    pub(crate) cookies_until: u64,
    /// Something beside `dirty` and `replies` waits for the next emission.
    pub(crate) pending: bool,
    /// Since when no emission could send anything, for the queue was full; [`limits::NEVER`] if the
    /// last one could.
    pub(crate) full_since: u64,
    /// That has been so for a while: the queue is looked at now and then.
    pub(crate) stuck: bool,

    /// Buffers that applications were handed and hold.
    pub(crate) handed_over: HandedOver,
    /// Where a segment is put together whose payload lies in more than one piece.
    pub(crate) scratch: Vec<u8>,
    batch: Vec<Frame>,
    pub(crate) metrics: Metrics,
}

impl Engine {
    /// An engine for a queue with this link address and MTU.
    pub fn new(config: &Config, mac: [u8; 6], mtu: usize) -> Self {
        let bound = |bytes: usize| bytes.clamp(limits::SMALLEST_BUFFER, 64 << 20).next_power_of_two();
        let (receive_buffer, send_buffer) = (bound(config.receive_buffer), bound(config.send_buffer));
        let first = (FIRST_RECEIVE_SEGMENTS * mtu).next_power_of_two();
        let own_shift = (0..14).find(|shift| receive_buffer >> shift <= 0xffff).unwrap_or(14);
        let secret = Key::new(config.secret);
        Self {
            addresses: Addresses::new(
                (config.address.into(), config.prefix),
                config.gateway.map(Address::from),
                config.ipv6.as_ref().filter(|_| mtu >= ipv6::MINIMUM_MTU),
                mac,
            ),
            mac,
            mtu: mtu.clamp(576, 65_535),
            secret,
            receive_buffer,
            send_buffer: (FIRST_SEND_BUFFER.min(send_buffer), send_buffer),
            first_receive_buffer: first.max(FIRST_RECEIVE_BUFFER).min(receive_buffer),
            own_shift,
            source_ports: config.source_ports,
            recent_ports: RecentPorts::default(),
            congestion: config.congestion,
            ecn: config.ecn,
            pacing: config.pacing,
            unchecked: false,
            checks: Checks::Verify,
            now: 0,
            now_ms: 0,
            directory: Directory::new(secret),
            flows: Flows::new(config.flows),
            pool: Pool::new(config.buffer_memory),
            ahead: Ahead::default(),
            half_open: Slab::new(config.half_open.max(1)),
            time_waits: Slab::new(config.time_waits.max(1)),
            listeners: BTreeMap::new(),
            listening: PortSet::default(),
            flow_timers: Timers::default(),
            half_open_timers: Timers::default(),
            paced: TimingWheel::default(),
            time_wait_timers: Timers::default(),
            // Announcements are due by the clock of questions.
            neighbours: Neighbours::new(if config.announce { 0 } else { limits::NEVER }),
            unresolved: Vec::new(),
            ports: Vec::new(),
            outgoing: std::collections::VecDeque::new(),
            spare: Vec::new(),
            path_delays: PathDelays::default(),
            path_mtus: PathMtus::default(),
            fragments: Fragments::new(),
            groups: Groups::default(),
            announcer: announce::Announcer::new(config.announce),
            dirty: Vec::new(),
            passed_over: Vec::new(),
            remains: Vec::new(),
            patient: None,
            ready: Vec::new(),
            starved: Vec::new(),
            replies: Vec::new(),
            questions: Vec::new(),
            echo_bucket: Bucket::new(limits::ECHO_RATE, secret),
            reset_bucket: Bucket::new(limits::RESET_RATE, secret),
            unreachable_bucket: Bucket::new(limits::UNREACHABLE_RATE, secret),
            connects: 0,
            cookies_until: 0,
            pending: false,
            full_since: limits::NEVER,
            stuck: false,
            handed_over: HandedOver::default(),
            scratch: Vec::new(),
            batch: Vec::with_capacity(RECEIVE_BATCH),
            metrics: Metrics::default(),
        }
    }

    /// One whole turn without an application in between: receives, runs timers, sends. `now` is in
    /// nanoseconds and never goes back.
    ///
    /// # Errors
    /// The device is gone.
    pub fn poll<Q: NicQueue>(&mut self, queue: &mut Q, now: u64) -> io::Result<PollResult> {
        let (received, more) = self.receive(queue, now);
        let emitted = self.emit(queue, now)?;
        Ok(PollResult { received, sent: emitted.sent, more: more || emitted.more })
    }

    /// Takes a batch of frames, processes it, and runs the timers that are due. Returns how many
    /// frames it took and whether more may be waiting.
    #[inline]
    pub fn receive<Q: NicQueue>(&mut self, queue: &mut Q, now: u64) -> (usize, bool) {
        self.set_time(now);
        let offloads = queue.offloads();
        (self.unchecked, self.checks) = (offloads.checksums, Checks::of(offloads));
        let received = queue.receive(&mut self.batch, RECEIVE_BATCH);
        if received > 0 {
            self.take_frames(queue);
        }
        if self.earliest() <= self.now {
            self.run_timers();
        }
        if !self.starved.is_empty() {
            self.wake_starved();
        }
        (received, received == RECEIVE_BATCH)
    }

    #[inline]
    fn take_frames<Q: NicQueue>(&mut self, queue: &mut Q) {
        let mut batch = std::mem::take(&mut self.batch);
        for mut frame in batch.drain(..) {
            self.metrics.frames_received += 1;
            self.metrics.bytes_received += frame.len() as u64;
            if frame.len() > self.mtu + ethernet::HEADER {
                self.metrics.malformed += 1;
                queue.release(frame);
                continue;
            }
            let (head, tail) = (queue.bytes(&frame), queue.tail(&frame));
            if self.take_expected(head, tail) {
                queue.release(frame);
                continue;
            }
            match self.dispatch(head, tail) {
                Disposition::Release => queue.release(frame),
                Disposition::AnswerArp(question) => {
                    frame.truncate(ethernet::HEADER + arp::LENGTH);
                    self.answer_arp(queue.bytes_mut(&mut frame), &question);
                    self.send_frame(queue, frame);
                }
                Disposition::Echo { length } => {
                    frame.truncate(length);
                    self.answer_echo(queue.bytes_mut(&mut frame), length);
                    self.send_frame(queue, frame);
                }
            }
        }
        self.batch = batch;
    }

    /// When the first of all timers is due, or [`limits::NEVER`].
    #[inline]
    fn earliest(&self) -> u64 {
        self.flow_timers
            .earliest()
            .min(self.half_open_timers.earliest())
            .min(self.paced.earliest())
            .min(self.time_wait_timers.earliest())
            .min(self.neighbours.deadline())
            .min(self.fragments.deadline())
            .min(self.groups.deadline())
    }

    /// The time at which [`Engine::poll`] must be called again even if nothing arrives, or `None`.
    /// It may be earlier than necessary; the call then does nothing.
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        // Reading and letting go make events and free memory: nothing else would call us for those.
        let events = !self.ready.is_empty()
            || !self.remains.is_empty()
            || (!self.starved.is_empty() && self.pool.may_lend_to_sender(1));
        let sends = self.pending || !self.dirty.is_empty() || !self.replies.is_empty();
        if events || self.handed_over.has_returned() || (sends && !self.stuck) {
            return Some(self.now);
        }
        let room = if self.stuck { self.now + limits::LOOK_FOR_ROOM } else { limits::NEVER };
        let earliest = self.earliest().min(room);
        (earliest != limits::NEVER).then_some(earliest)
    }

    /// Counters since the engine was made.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    #[inline]
    pub(crate) fn set_time(&mut self, now: u64) {
        self.now = self.now.max(now);
        // Wraps after 49 days, as timestamps do.
        self.now_ms = (self.now / MILLISECOND) as u32;
    }

    /// Puts a flow on the list of those with something to send.
    #[inline]
    pub(crate) fn touch(&mut self, index: usize) {
        let flow = &mut self.flows.hot[index];
        if !flow.has(flag::DIRTY) {
            flow.flags |= flag::DIRTY;
            self.dirty.push(index as u32);
        }
    }

    /// Notes events for the application.
    #[inline]
    pub(crate) fn raise(&mut self, index: usize, events: u8) {
        let flow = &mut self.flows.hot[index];
        if flow.has(flag::DETACHED) {
            return;
        }
        flow.events |= events;
        if !flow.has(flag::READY) {
            flow.flags |= flag::READY;
            self.ready.push(index as u32);
        }
    }

    fn dispatch(&mut self, head: &[u8], tail: Untrusted<'_>) -> Disposition {
        let Some((link, payload)) = ethernet::Header::parse(head) else {
            self.metrics.malformed += 1;
            return Disposition::Release;
        };
        // A group address cannot be a source: answering it would flood the link.
        if link.source[0] & 1 != 0 {
            self.metrics.wrong_address += 1;
            return Disposition::Release;
        }
        let for_us = link.destination == self.mac;
        match link.ethertype {
            ethernet::IPV4 if for_us => self.dispatch_ipv4(&link, Payload { head: payload, tail }),
            ethernet::IPV4 if link.destination[..3] == [1, 0, 0x5e] && !self.groups.is_empty() => {
                self.dispatch_group_v4(&link, Payload { head: payload, tail })
            }
            ethernet::IPV6 if for_us || link.destination[..2] == [0x33, 0x33] => {
                self.dispatch_ipv6(&link, Payload { head: payload, tail })
            }
            ethernet::ARP if for_us || link.destination == ethernet::BROADCAST => self.dispatch_arp(payload),
            _ => {
                self.metrics.frames_ignored += 1;
                Disposition::Release
            }
        }
    }

    #[inline]
    fn dispatch_ipv4(&mut self, link: &ethernet::Header, packet: Payload<'_>) -> Disposition {
        let (header, payload) = match ipv4::Header::parse(packet) {
            Ok(parsed) => parsed,
            Err(reason) => return self.malformed(reason),
        };
        let (remote, local) = (Address::v4(header.source), Address::v4(header.destination));
        if local != self.addresses.v4() || !self.addresses.may_be_source(&remote) {
            self.metrics.wrong_address += 1;
            return Disposition::Release;
        }
        let origin = Origin { mac: link.source, remote, local: 0, ecn: header.ecn };
        if header.fragment {
            return self.receive_part_v4(&origin, &header, payload, packet);
        }
        match header.protocol {
            ipv4::TCP => match tcp::Segment::parse(payload, &remote, &local, self.checks) {
                Ok(segment) => self.dispatch_segment(&origin, &segment),
                Err(reason) => return self.malformed(reason),
            },
            ipv4::UDP => match udp::Datagram::parse(payload, &remote, &local, self.checks) {
                Ok(datagram) => self.receive_datagram(&origin, &datagram, packet),
                Err(reason) => return self.malformed(reason),
            },
            ipv4::ICMP => match icmp::Message::parse(payload) {
                Ok(message) => {
                    return self.receive_icmp(
                        &header,
                        &message,
                        ethernet::HEADER + ipv4::HEADER + payload.len(),
                    );
                }
                Err(reason) => return self.malformed(reason),
            },
            _ => {
                self.metrics.frames_ignored += 1;
                self.report(
                    &origin,
                    Report { kind: icmp::UNREACHABLE, code: icmp::PROTOCOL_UNREACHABLE, rest: 0 },
                    packet,
                );
            }
        }
        Disposition::Release
    }

    fn dispatch_segment(&mut self, origin: &Origin, segment: &tcp::Segment<'_>) {
        self.metrics.segments_received += 1;
        match self.directory.find_next(&origin.name(segment)) {
            Some(Entry::Flow(index)) => {
                let index = index as usize;
                let fast = !origin.is_marked()
                    && segment.plain().is_some_and(|plain| self.fast_receive(index, &plain));
                if fast {
                    self.metrics.segments_fast += 1;
                } else {
                    self.slow_receive(index, segment, origin.is_marked());
                }
            }
            Some(Entry::HalfOpen(index)) => self.receive_half_open(index, origin, segment),
            Some(Entry::TimeWait(index)) => self.time_wait_receive(index, origin, segment),
            None => self.receive_unmatched(origin, segment),
        }
    }

    /// Tells the flows that wait for memory that there is some.
    #[cold]
    fn wake_starved(&mut self) {
        if !self.pool.may_lend_to_sender(1) {
            return;
        }
        for index in std::mem::take(&mut self.starved) {
            let flow = &mut self.flows.hot[index as usize];
            // A flow that is over lost its mark, and so did its place's next owner.
            if flow.has(flag::WANTS_MEMORY) {
                flow.flags &= !(flag::WANTS_MEMORY | flag::WANTS_ROOM);
                self.raise(index as usize, event::WRITABLE);
            }
        }
    }

    fn malformed(&mut self, reason: Malformed) -> Disposition {
        match reason {
            Malformed::Header => self.metrics.malformed += 1,
            Malformed::Checksum => self.metrics.bad_checksum += 1,
        }
        Disposition::Release
    }

    /// The receive buffer with which a flow begins: a part of the free memory at most, for all that
    /// it promises may come.
    pub(crate) fn first_window(&self) -> usize {
        let share = (self.pool.free() / limits::FIRST_WINDOW_SHARE).max(limits::SMALLEST_BUFFER);
        self.first_receive_buffer.min(share)
    }

    /// Bytes of network and transport headers without options in packets to `remote`.
    fn headers(remote: &Address) -> usize {
        tcp::HEADER + network_header(remote)
    }

    /// Largest segment that we take from `remote`.
    pub(crate) fn own_mss(&self, remote: &Address) -> u16 {
        u16::try_from(self.mtu - Self::headers(remote)).unwrap_or(u16::MAX)
    }

    /// Payload of our full segments to a peer.
    pub(crate) fn payload_size(&self, remote: &Address, peer_mss: Option<u16>, timestamps: bool) -> u16 {
        payload_size(peer_mss, self.path_mtu(remote), Self::headers(remote), timestamps)
    }

    /// The way of frames of a connection whose next hop has this link address.
    pub(crate) fn path(&self, name: &Name, next_hop: [u8; 6]) -> Path {
        Path {
            mac: self.mac,
            next_hop,
            local: self.addresses.get(name.local),
            remote: name.remote,
            local_port: name.local_port,
            remote_port: name.remote_port,
        }
    }
}
