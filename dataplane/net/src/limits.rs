//! Every bound of the engine, with its reason. Times are in nanoseconds.

/// Nanoseconds in a millisecond.
pub const MILLISECOND: u64 = 1_000_000;
/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000 * MILLISECOND;
/// A deadline that never comes.
pub const NEVER: u64 = u64::MAX;

/// Frames taken in one receive. That is enough to amortise the doorbell, and few enough that the
/// answers to the first leave while the peer still makes the last. Measured with 64 requests in
/// flight over shared memory. 16 at a time make 3 times as many a second as 64 at a time, because
/// both sides work at once. With 8, an AF_XDP socket loses a fifth of its throughput, because its
/// doorbell is a system call.
pub(crate) const RECEIVE_BATCH: usize = 16;
/// Bytes that one flow sends before the next flow may, so that a bulk flow cannot starve the
/// others. That is 66 full segments of an ordinary Ethernet, two of the largest.
pub const QUANTUM: usize = 128 << 10;
/// What a segment counts beside its payload: copying this many bytes takes about as long as sending
/// one segment.
pub(crate) const SEGMENT_COST: usize = 512;
/// How long the first deferred flow may stay without a buffer. After that, nothing else is sent
/// before it, because small frames could take all buffers for ever.
pub(crate) const DEFERRED_TIME: u64 = MILLISECOND;
/// Default bound on flows. Hot and cold state of all of them is about 24 MiB.
pub const FLOWS: usize = 65_536;
/// Default bound on the bytes in send and receive buffers of all flows together.
pub(crate) const BUFFER_MEMORY: usize = 512 << 20;
/// Default bound on one flow's receive buffer: twice what 1 Gbit/s holds at 16 ms, or 10 Gbit/s at
/// 1.6 ms. What a flow has is `tuning`'s.
pub const RECEIVE_BUFFER: usize = 4 << 20;
/// Default bound on one flow's send buffer.
pub const SEND_BUFFER: usize = 4 << 20;
/// The receive buffer with which a flow begins: the largest window that a SYN can announce, and
/// several initial windows of an ordinary Ethernet.
pub(crate) const FIRST_RECEIVE_BUFFER: usize = 64 << 10;
/// The same in segments, for large ones: an initial window and some.
pub(crate) const FIRST_RECEIVE_SEGMENTS: usize = 16;
/// The send buffer that a flow has before anything is known of its path.
pub(crate) const FIRST_SEND_BUFFER: usize = 512 << 10;
/// Bytes that one flow may have to send while some of them are shared with the application. The
/// memory is the application's, and the bound is far below the 2 GiB that sequence numbers can
/// order. A longer body is sent piece by piece.
pub const ZERO_COPY_BYTES: usize = 64 << 20;
/// Pieces, shared and copied, that one flow may have to send: 64 KiB of bookkeeping, and ten steps
/// to find one.
pub const ZERO_COPY_PIECES: usize = 1024;
/// Receive buffers that applications may hold at a time, all flows together; past them, bytes can
/// only be copied out. At 4 KiB, the smallest, that is 4 MiB pinned by a byte each.
pub const ZERO_COPY_BUFFERS: usize = 1024;
/// The smallest buffer: two full segments of an ordinary Ethernet and the commonest request sizes.
pub(crate) const SMALLEST_BUFFER: usize = 4096;
/// Bytes of free buffers that the pool keeps instead of giving them back to the allocator.
pub(crate) const POOLED_BYTES: usize = 16 << 20;
/// Out-of-order ranges that one flow keeps; a segment that would start one more is dropped (its
/// sender repeats it).
pub(crate) const REASSEMBLY_RANGES: usize = 64;
/// Runs of a flow's scoreboard (16 bytes each). A window is some 64 of them, and each range that
/// the peer reports beyond a gap adds two. Twice as many ranges as honest receivers keep fit; past
/// that, a peer's reports are stored more coarsely.
pub const RUNS: usize = 256;
/// Of the memory for buffers, the part that rings with bytes out of order may have: a fourth. With
/// the fourth that is kept for receiving, peers leave at least half for sending.
pub(crate) const OUT_OF_ORDER_SHARE: usize = 4;
/// The part of its ring by which a gap has to shrink to count as young. That is what an honest
/// sender fills at once, and more than an attacker would retransmit repeatedly.
pub(crate) const GAP_PROGRESS_SHARE: u32 = 16;
/// Of the free memory, the part that a new flow's first window may promise. On the largest MTU, new
/// windows begin to be smaller when an eighth of the default memory is left.
pub(crate) const FIRST_WINDOW_SHARE: usize = 64;
/// The window in an answer with a SYN cookie. It must hold however much memory is free later,
/// because the engine stores nothing of it; an initial window of an ordinary Ethernet fits (RFC
/// 6928).
pub(crate) const COOKIE_WINDOW: u16 = 16 << 10;
/// Listening ports.
pub const LISTENERS: usize = 1024;
/// Half-open passive connections of all listeners together, 96 bytes each: a SYN flood costs 1.5
/// MiB.
pub const HALF_OPEN: usize = 16_384;
/// Connections in TIME-WAIT, 64 bytes each; the oldest is forgotten for a new one.
pub(crate) const TIME_WAITS: usize = 32_768;
/// Stateless replies (RST, SYN-ACK, challenge ACK) queued between two flushes; more are dropped,
/// because their senders retransmit.
pub const REPLIES: usize = 1024;
/// Neighbours whose link address is remembered.
pub(crate) const NEIGHBOURS: usize = 1024;
/// Time for which a neighbour's link address is used without a new request.
pub const NEIGHBOUR_LIFETIME: u64 = 60 * SECOND;
/// Spacing of ARP requests for one address (RFC 1122 section 2.3.2.1: at most one a second).
pub(crate) const ARP_INTERVAL: u64 = SECOND;
/// ARP requests before an address counts as unreachable.
pub(crate) const ARP_TRIES: u8 = 3;
/// Announcements of our addresses, and nanoseconds between them (RFC 5227 section 1.1:
/// ANNOUNCE_NUM, ANNOUNCE_INTERVAL; within what RFC 4861 section 7.2.6 allows).
pub(crate) const ANNOUNCEMENTS: u8 = 2;
/// See [`ANNOUNCEMENTS`].
pub(crate) const ANNOUNCE_INTERVAL: u64 = 2 * SECOND;
/// Minimum time between two answers to a claim to our address (RFC 5227 section 1.1:
/// DEFEND_INTERVAL).
pub(crate) const DEFEND_INTERVAL: u64 = 10 * SECOND;
/// How long a neighbour that only announced itself is used before a request is sent (RFC 4861
/// section 10: DELAY_FIRST_PROBE_TIME).
pub(crate) const DELAY_FIRST_PROBE: u64 = 5 * SECOND;
/// Our own addresses of both families: one IPv4, one link-local, and a few more for prefixes in use
/// at once.
pub(crate) const LOCAL_ADDRESSES: usize = 8;
/// UDP ports bound.
pub(crate) const UDP_PORTS: usize = 1024;
/// Datagrams waiting in one UDP port for the application; more are dropped, as UDP may.
pub(crate) const UDP_RECEIVE_QUEUE: usize = 1024;
/// Bytes of them: 2.5 ms of full frames at 1 Gbit/s. The ring begins with 4 KiB and grows as it is
/// needed.
pub(crate) const UDP_RECEIVE_BYTES: usize = 512 << 10;
/// Packets of which fragments wait for the others; and those of one source. Honest ones complete in
/// milliseconds.
pub(crate) const FRAGMENTED_PACKETS: usize = 64;
/// See [`FRAGMENTED_PACKETS`].
pub(crate) const FRAGMENTED_PER_SOURCE: usize = 8;
/// Fragments of one packet: the largest packet in fragments of 1280 bytes has 53.
pub(crate) const FRAGMENTS_PER_PACKET: usize = 64;
/// Bytes of all fragments that wait: sixteen of the largest packets.
pub(crate) const FRAGMENT_MEMORY: usize = 1 << 20;
/// How long fragments wait for the others. RFC 8200 says 60 s; half of that holds a flood's memory
/// half as long, as in Linux.
pub(crate) const FRAGMENT_LIFETIME: u64 = 30 * SECOND;
/// Groups joined: a report of them all has 20 bytes each over IPv6 and fits 1280.
pub(crate) const GROUPS: usize = 48;
/// The time after which a full transmit queue is tried again. A fast queue needs as long to empty,
/// and a sleeping thread wakes that much late anyway.
pub(crate) const TRANSMIT_RETRY: u64 = 50_000;
/// Destinations whose shortest round trip is shared by flows with congestion control by delay,
/// about 64 bytes each.
pub(crate) const PATH_DELAYS: usize = 1024;
/// How long a shortest round trip counts: this window of time and the next. Paths change less
/// often. A queue that lasts longer counts as propagation delay, as it would for a flow that
/// measures by itself.
pub(crate) const PATH_DELAY_WINDOW: u64 = 300 * SECOND;
/// Destinations whose path takes less than the link, about 64 bytes each.
pub(crate) const PATH_MTUS: usize = 1024;
/// Timeouts in a row of full segments after which a path-MTU black hole is suspected, and again
/// after as many more. RFC 4821 section 7.7 leaves the number open.
pub(crate) const BLACK_HOLE_TIMEOUTS: u8 = 2;
/// Times that smaller segments must arrive where full ones did not, before the path counts as a
/// black hole. A peer that stalled for a moment has the same symptoms once.
pub(crate) const BLACK_HOLE_PROOFS: u8 = 2;
/// How long a path keeps its smaller MTU (RFC 1191 section 6.3, RFC 8201 section 4: ten minutes).
pub(crate) const PATH_MTU_AGE: u64 = 600 * SECOND;
/// Datagrams waiting to be sent, or for their neighbour's link address.
pub(crate) const UDP_SEND_QUEUE: usize = 1024;
/// ICMP echo replies a second: a ping flood is answered up to here.
pub(crate) const ECHO_RATE: u64 = 20_000;
/// Resets a second for segments that belong to no flow.
pub(crate) const RESET_RATE: u64 = 2_000;
/// ICMP error messages a second (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 f).
pub(crate) const UNREACHABLE_RATE: u64 = 100;
/// Spacing of challenge ACKs of one flow. Per flow, because a shared budget is a side channel
/// (CVE-2016-5696).
pub(crate) const CHALLENGE_INTERVAL: u64 = 500 * MILLISECOND;

/// Smallest retransmission timeout. RFC 6298 says one second; Linux and most others wait 200 ms.
pub(crate) const RTO_MIN: u64 = 200 * MILLISECOND;
/// For how long the minimum round trip counts: paths change.
pub(crate) const MIN_RTT_WINDOW: u64 = 300 * SECOND;
/// What a tail loss probe waits beyond two round trips: a peer that is not scheduled at once has
/// not lost anything.
pub const TAIL_SLACK: u64 = 2 * MILLISECOND;
/// Minimum time from the first sign of reneging until it is believed.
pub(crate) const RENEGE_PATIENCE: u64 = 10 * MILLISECOND;
/// Largest retransmission timeout (RFC 6298 section 2.4: at least 60 s).
pub(crate) const RTO_MAX: u64 = 60 * SECOND;
/// Retransmission timeout before a round trip was measured (RFC 6298 section 2.1).
pub(crate) const RTO_INITIAL: u64 = SECOND;
/// Retransmissions of data before the connection is given up: over 400 s, past R2 of RFC 1122 (100
/// s).
pub const RETRANSMITS: u8 = 15;
/// Retransmissions of a SYN: 127 s with the initial timeout of a second.
pub(crate) const SYN_RETRANSMITS: u8 = 6;
/// Retransmissions of a SYN-ACK: 63 s.
pub(crate) const SYN_ACK_RETRANSMITS: u8 = 5;
/// Unanswered probes (or probes of a flow without an application) before the connection is given
/// up.
pub(crate) const ORPHAN_PROBES: u8 = 8;
/// How long an ACK may wait for data or another segment (RFC 1122 section 4.2.3.2: under 500 ms;
/// senders' RTO_MIN is 200 ms).
pub const DELAYED_ACK: u64 = 40 * MILLISECOND;
/// TIME-WAIT: twice a maximum segment lifetime of 30 s, as Linux has it.
pub(crate) const TIME_WAIT: u64 = 60 * SECOND;
/// FIN-WAIT-2 without an application: a peer that never closes cannot hold memory.
pub const FIN_WAIT_2: u64 = 60 * SECOND;
/// Spacing of keepalive probes once the idle time has passed.
pub(crate) const KEEPALIVE_INTERVAL: u64 = 15 * SECOND;
/// Keepalive probes without an answer before the connection is given up.
pub const KEEPALIVE_PROBES: u8 = 5;
/// Age at which a timestamp no longer guards against old segments (RFC 7323 section 5.5: 24 days).
pub(crate) const TIMESTAMP_AGE: u64 = 24 * 24 * 3600 * SECOND;
/// Segment size of a peer that names none (RFC 9293 section 3.7.1).
pub const DEFAULT_MSS: u16 = 536;
/// Smallest segment size that a peer or an ICMP message may force on us: below it, packets would be
/// all headers.
pub const SMALLEST_MSS: u16 = 88;
/// Initial congestion window in segments (RFC 6928).
pub(crate) const INITIAL_WINDOW: u32 = 10;
/// Largest congestion window: what the largest scaled window of a peer can take (RFC 7323 section
/// 2.3).
pub(crate) const LARGEST_WINDOW: u32 = 1 << 30;
/// Ports drawn at random for an outgoing connection before the engine searches for a free one. With
/// half of the range drawn lately and nine tenths of the rest taken, four of five find one.
pub(crate) const PORT_DRAWS: u32 = 32;
/// The part of the range that is drawn before a port is drawn again, while other ports are free: a
/// fourth. Of the dynamic range that is 8,192 ports, some 20 ms at 400,000 connections a second,
/// where a peer's timestamps move on each millisecond. Up to twice as many are skipped. A range of
/// fewer than four ports has none to spare.
pub(crate) const RECENT_PART: u16 = 4;
/// Ports tested one by one when each of the range has a connection to some peer: some tens of
/// microseconds.
pub(crate) const PORT_SEARCH: u16 = 1024;
/// First port of the dynamic range from which outgoing connections pick (RFC 6056 section 3.2
/// allows 1024 up).
pub const FIRST_EPHEMERAL: u16 = 32_768;
/// Last port of that range.
pub(crate) const LAST_EPHEMERAL: u16 = 65_535;
