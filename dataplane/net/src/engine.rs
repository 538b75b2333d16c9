//! The engine: one queue, its addresses, all its flows. It never waits, reads no clock and owns no
//! thread.
//!
//! One iteration of the loop that drives it:
//!
//! 1. [`Engine::receive`] takes the frames that have arrived, up to [`RECEIVE_BATCH`], and
//!    processes them all. The common case goes straight from the frame (`tcp/fast`), the others
//!    through IP (`dispatch`) to TCP or UDP. Only echo and ARP replies are sent already: they reuse
//!    the frame of the request. Then timers that are due run.
//! 2. The application takes the events and reacts: it reads, consumes and sends. That fills buffers
//!    and marks flows as dirty.
//! 3. [`Engine::emit`] sends for every dirty flow what its windows allow, acknowledgements riding
//!    on data, and rings the doorbell once.
//! 4. If nothing happened, the loop sleeps on the queue's doorbell until [`Engine::next_deadline`].
//!
//! [`Engine::poll`] is 1 and 3 in one call, for loops without an application in between.

use std::io;

use sietch_nic::{Frame, NicQueue};

use crate::config::Config;
use crate::context::{Context, Stalled};
use crate::ip::Ip;
use crate::limits::{NEVER, RECEIVE_BATCH, TRANSMIT_RETRY};
use crate::metrics::Metrics;
use crate::packet::{arp, ethernet};
use crate::tcp::Tcp;
use crate::udp::Udp;

mod dispatch;
mod sockets;
mod tcp_calls;
mod udp_calls;

pub use sockets::{SocketInfo, SocketKind};

/// What one iteration did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollResult {
    /// Frames taken.
    pub received: usize,
    /// Frames given to the device.
    pub sent: usize,
    /// Whether there is more to do at once: frames may be waiting, or not everything could be sent.
    pub more: bool,
}

/// What happens to a frame once it has been read.
enum Disposition {
    Release,
    /// Answer an ARP request in place.
    AnswerArp(arp::Packet),
    /// Answer an echo request in place.
    Echo {
        length: usize,
    },
}

/// A TCP/IP engine for the addresses of one queue.
#[derive(Debug)]
pub struct Engine {
    cx: Context,
    ip: Ip,
    udp: Udp,
    tcp: Tcp,
    batch: Vec<Frame>,
    /// Since when no emission could send anything because the queue was full; [`NEVER`] if the last
    /// one could.
    full_since: u64,
    /// The queue has been full for a while: emission is tried now and then only.
    blocked: bool,
}

impl Engine {
    /// An engine for a queue with this link address and MTU.
    pub fn new(config: &Config, mac: [u8; 6], mtu: usize) -> Self {
        let cx = Context::new(config, mac, mtu);
        Self {
            ip: Ip::new(config, &cx),
            udp: Udp::default(),
            tcp: Tcp::new(config, &cx, mtu),
            batch: Vec::with_capacity(RECEIVE_BATCH),
            full_since: NEVER,
            blocked: false,
            cx,
        }
    }

    /// One whole iteration without an application in between: receives, runs timers, sends. `now`
    /// is in nanoseconds and never goes back.
    ///
    /// # Errors
    /// The device was removed.
    pub fn poll<Q: NicQueue>(&mut self, queue: &mut Q, now: u64) -> io::Result<PollResult> {
        let (received, more) = self.receive(queue, now);
        let emitted = self.emit(queue, now)?;
        Ok(PollResult { received, sent: emitted.sent, more: more || emitted.more })
    }

    /// Takes a batch of frames, processes it, and runs the timers that are due. Returns how many
    /// frames it took and whether more may be waiting.
    #[inline]
    pub fn receive<Q: NicQueue>(&mut self, queue: &mut Q, now: u64) -> (usize, bool) {
        self.cx.set_time(now);
        self.cx.set_offloads(queue.offloads());
        let received = queue.receive(&mut self.batch, RECEIVE_BATCH);
        if received > 0 {
            self.take_frames(queue);
        }
        if self.earliest() <= self.cx.now {
            self.run_timers();
        }
        self.tcp.wake_starved();
        (received, received == RECEIVE_BATCH)
    }

    #[inline]
    fn take_frames<Q: NicQueue>(&mut self, queue: &mut Q) {
        let mut batch = std::mem::take(&mut self.batch);
        for mut frame in batch.drain(..) {
            self.cx.metrics.frames_received += 1;
            self.cx.metrics.bytes_received += frame.len() as u64;
            if frame.len() > self.cx.mtu + ethernet::HEADER {
                self.cx.metrics.malformed += 1;
                queue.release(frame);
                continue;
            }
            let (head, tail) = (queue.bytes(&frame), queue.tail(&frame));
            if self.tcp.receive_expected(&mut self.cx, head, tail) {
                queue.release(frame);
                continue;
            }
            match self.dispatch(head, tail) {
                Disposition::Release => queue.release(frame),
                Disposition::AnswerArp(request) => {
                    frame.truncate(ethernet::HEADER + arp::LENGTH);
                    Ip::answer_arp(&mut self.cx, queue.bytes_mut(&mut frame), &request);
                    self.cx.send_frame(queue, frame);
                }
                Disposition::Echo { length } => {
                    frame.truncate(length);
                    Ip::answer_echo(&mut self.cx, queue.bytes_mut(&mut frame), length);
                    self.cx.send_frame(queue, frame);
                }
            }
        }
        self.batch = batch;
    }

    /// Sends what is due, and what the application queued since [`Engine::receive`], then rings the
    /// doorbell once.
    ///
    /// # Errors
    /// The device was removed.
    #[inline]
    pub fn emit<Q: NicQueue>(&mut self, queue: &mut Q, now: u64) -> io::Result<PollResult> {
        self.cx.set_time(now);
        self.cx.unchecked = queue.offloads().checksums;
        self.tcp.reclaim_buffers(&mut self.cx);
        let before = self.cx.metrics.frames_sent;
        let full = self.emit_all(queue).is_err();
        queue.flush()?;
        let flush_again = queue.must_flush_again();
        let sent = (self.cx.metrics.frames_sent - before) as usize;
        // A full queue does not notify when it has room. A peer that reads makes room at once.
        // Otherwise a rate limit may empty the queue, and the next try can wait a moment.
        let nothing = full && sent == 0 && !flush_again;
        self.full_since = if nothing { self.full_since.min(self.cx.now) } else { NEVER };
        self.blocked = nothing && self.cx.now - self.full_since >= TRANSMIT_RETRY;
        self.cx.pending = full || flush_again;
        let more = self.cx.pending || self.tcp.has_output();
        Ok(PollResult { received: 0, sent, more: more && !self.blocked })
    }

    #[inline]
    fn emit_all<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        let mut others = Ok(());
        if self.cx.pending || self.tcp.has_replies() || !self.cx.outgoing.is_empty() {
            others = self.emit_others(queue);
            if others == Err(Stalled::NoRoom) {
                return others;
            }
        }
        self.tcp.emit(&mut self.cx, queue).and(others)
    }

    /// Sends what belongs to no flow.
    #[inline(never)]
    fn emit_others<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        self.ip.run_groups(&mut self.cx);
        self.tcp.emit_replies(&mut self.cx, queue)?;
        self.cx.emit_datagrams(queue)?;
        // Requests for the next hops of those datagrams leave at once.
        self.run_neighbours();
        self.cx.emit_neighbour_requests(queue)
    }

    fn run_timers(&mut self) {
        self.tcp.run_timers(&mut self.cx);
        self.run_neighbours();
        self.ip.run_timers(&mut self.cx);
    }

    /// Queues requests for link addresses that are due, and fails what waits for a next hop that
    /// did not answer.
    fn run_neighbours(&mut self) {
        for hop in self.ip.run_neighbours(&mut self.cx) {
            self.tcp.hop_unreachable(&mut self.cx, hop);
            self.cx.drop_unresolved(hop);
        }
    }

    /// When the first of all timers is due, or [`NEVER`].
    #[inline]
    fn earliest(&self) -> u64 {
        self.tcp.earliest().min(self.cx.neighbours.deadline()).min(self.ip.earliest())
    }

    /// The time at which [`Engine::poll`] must be called again even if nothing arrives, or `None`.
    /// It may be earlier than necessary; the call then does nothing.
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        // After a read or a close there may be new events and free memory. Without a deadline,
        // nothing would cause the next call.
        let sends = self.cx.pending || self.tcp.has_output();
        if self.tcp.has_events() || self.tcp.has_returned_buffers() || (sends && !self.blocked) {
            return Some(self.cx.now);
        }
        let retry = if self.blocked { self.cx.now + TRANSMIT_RETRY } else { NEVER };
        let earliest = self.earliest().min(retry);
        (earliest != NEVER).then_some(earliest)
    }

    /// Counters since the engine was made.
    pub fn metrics(&self) -> &Metrics {
        &self.cx.metrics
    }
}
