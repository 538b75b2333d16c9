//! The software switch: ports, rules, and which port is served next. Sans-I/O: queues are a trait,
//! time is an argument.
//!
//! One iteration ([`Switch::poll`]):
//!
//! 1. Every port in rotation gets [`QUANTUM`] bytes of credit (deficit round robin). A frame costs
//!    its length and [`FRAME_COST`], so neither large nor many small frames buy a port more than
//!    its share. A port with nothing waiting saves no credit.
//! 2. The sender's transmit rules judge a frame, then the sender's rate. A frame beyond the rate
//!    waits in the sender's own memory, with all later frames of that port. So nothing is lost, and
//!    the sender finds its ring full.
//! 3. A frame that passes goes to the port that the control plane's table names for its
//!    destination MAC. The switch learns nothing from frames.
//! 4. A broadcast or multicast request (ARP, neighbour discovery) goes to the port that has the
//!    requested address, and to no other. Any other receiver could only answer falsely. What a port
//!    announces of itself goes to all others, because its rules have checked that it is true. Each
//!    copy counts as a frame of its own, for the sender's rate and for its share.
//! 5. The receiver's rules judge the frame, which is then copied into a frame of the receiver's
//!    queue. The copied head is the very bytes that were judged: the sender cannot change them in
//!    between.
//! 6. A port without room loses the frame, and a counter says so. Nothing waits for a slow
//!    receiver.
//! 7. Ports that received something are flushed once. A port whose queue fails is removed.
//!
//! One iteration takes at most [`BATCH`] frames from a port.

mod commands;
mod error;
mod id;
mod limits;
mod metrics;
mod rate;
mod run;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use sietch_nic::xdp::{Reason, VnicSpec, software};
use sietch_nic::{Frame, NicQueue};

use error::AddError;
use limits::{BATCH, FRAME_COST, PORTS, QUANTUM};
use rate::Rate;

pub use commands::Command;
pub use id::PortId;
pub use metrics::{PortCounters, PortReport};
pub use run::run;

/// Types of neighbour discovery (RFC 4861 section 4.3 and 4.4).
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

#[derive(Debug)]
struct Port<Q> {
    id: PortId,
    spec: VnicSpec,
    rate: Option<Rate>,
    queue: Q,
    /// Frames received and not yet judged.
    waiting: VecDeque<Frame>,
    /// When the first of them may pass, if it waits for the port's rate; else zero.
    held_until: u64,
    /// Negative after an announcement whose copies cost more than the port had.
    credit: i64,
    /// A frame was delivered to it since its last flush.
    needs_flush: bool,
    counters: PortCounters,
}

/// A switch over queues of one kind. One thread owns it.
#[derive(Debug)]
struct Switch<Q> {
    ports: Vec<Port<Q>>,
    by_mac: HashMap<[u8; 6], usize, RandomState>,
    by_address: HashMap<Ipv4Addr, usize, RandomState>,
    by_address6: HashMap<Ipv6Addr, usize, RandomState>,
    /// The number of ports with an IPv6 address.
    ipv6_ports: usize,
    /// The port that is served first in the next iteration.
    first: usize,
    batch: Vec<Frame>,
    dead: Vec<PortId>,
}

impl<Q: NicQueue> Default for Switch<Q> {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            by_mac: HashMap::default(),
            by_address: HashMap::default(),
            by_address6: HashMap::default(),
            ipv6_ports: 0,
            first: 0,
            batch: Vec::with_capacity(BATCH),
            dead: Vec::new(),
        }
    }
}

fn rate_of(spec: &VnicSpec) -> Option<Rate> {
    spec.rate.map(|rate| Rate::new(rate, spec.burst))
}

impl<Q: NicQueue> Switch<Q> {
    /// Adds a port. The queue's other end belongs to the holder of grant `id`, which `spec`
    /// confines.
    ///
    /// # Errors
    /// [`AddError`]; the queue is dropped, which ends its link.
    pub(crate) fn add(&mut self, id: PortId, spec: VnicSpec, queue: Q) -> Result<(), AddError> {
        spec.validate().map_err(|error| AddError::Rules(id, error))?;
        if !queue.offloads().checksums {
            return Err(AddError::Medium(id));
        }
        if self.ports.len() >= PORTS {
            return Err(AddError::Full(id));
        }
        self.check_free(id, &spec, None)?;
        self.ports.push(Port {
            id,
            rate: rate_of(&spec),
            spec,
            queue,
            waiting: VecDeque::with_capacity(BATCH),
            held_until: 0,
            credit: 0,
            needs_flush: false,
            counters: PortCounters::default(),
        });
        self.index();
        Ok(())
    }

    /// Gives a port other rules. Returns false if there is no such port.
    ///
    /// # Errors
    /// As [`Switch::add`]; the old rules stay.
    pub(crate) fn update(&mut self, id: PortId, spec: VnicSpec) -> Result<bool, AddError> {
        spec.validate().map_err(|error| AddError::Rules(id, error))?;
        let Some(at) = self.ports.iter().position(|port| port.id == id) else { return Ok(false) };
        self.check_free(id, &spec, Some(at))?;
        let port = &mut self.ports[at];
        port.rate = rate_of(&spec);
        port.held_until = 0;
        port.spec = spec;
        self.index();
        Ok(true)
    }

    /// Removes a port and returns its queue. What its holder writes from now on is not read.
    pub(crate) fn remove(&mut self, id: PortId) -> Option<Q> {
        let at = self.ports.iter().position(|port| port.id == id)?;
        let mut port = self.ports.remove(at);
        for frame in port.waiting.drain(..) {
            port.queue.release(frame);
        }
        self.index();
        Some(port.queue)
    }

    /// Returns the counters of a port.
    pub(crate) fn counters(&self, id: PortId) -> Option<PortCounters> {
        self.ports.iter().find(|port| port.id == id).map(|port| port.counters)
    }

    /// Iterates over the numbers of the ports.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PortId> + '_ {
        self.ports.iter().map(|port| port.id)
    }

    /// Iterates over the queues of the ports.
    pub(crate) fn queues_mut(&mut self) -> impl Iterator<Item = (PortId, &mut Q)> {
        self.ports.iter_mut().map(|port| (port.id, &mut port.queue))
    }

    /// Iterates over the queues that are polled in each iteration, for a caller that sleeps on
    /// their doorbells. Ports that wait for their rate are not among them.
    pub(crate) fn polled_queues_mut(&mut self) -> impl Iterator<Item = &mut Q> {
        self.ports.iter_mut().filter(|port| port.held_until == 0).map(|port| &mut port.queue)
    }

    /// Iterates over the queues of the ports.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &Q> {
        self.ports.iter().map(|port| &port.queue)
    }

    /// Returns the ports that were removed since the last call because their queue failed.
    pub(crate) fn take_dead(&mut self) -> Vec<PortId> {
        std::mem::take(&mut self.dead)
    }

    fn check_free(&self, id: PortId, spec: &VnicSpec, except: Option<usize>) -> Result<(), AddError> {
        let same = |(at, port): &(usize, &Port<Q>)| {
            Some(*at) != except
                && (port.id == id
                    || port.spec.mac == spec.mac
                    || port.spec.address == spec.address
                    || (spec.address6.is_some() && port.spec.address6 == spec.address6))
        };
        match self.ports.iter().enumerate().find(same) {
            Some((_, other)) => Err(AddError::Taken(id, other.id)),
            None => Ok(()),
        }
    }

    fn index(&mut self) {
        self.by_mac = self.ports.iter().enumerate().map(|(at, port)| (port.spec.mac, at)).collect();
        self.by_address = self.ports.iter().enumerate().map(|(at, port)| (port.spec.address, at)).collect();
        self.ipv6_ports = self.ports.iter().filter(|port| port.spec.address6.is_some()).count();
        // A port with a granted IPv6 address also has the link-local one that follows from its MAC.
        let six = |(at, port): (usize, &Port<Q>)| {
            port.spec.address6.map(|own| [(own, at), (port.spec.link_local(), at)])
        };
        self.by_address6 = self.ports.iter().enumerate().filter_map(six).flatten().collect();
    }

    /// Runs one iteration: forwards what has arrived, at most one batch a port. `now` is in
    /// nanoseconds and monotonic. Returns whether any port had something that did not wait for its
    /// rate.
    pub(crate) fn poll(&mut self, now: u64) -> bool {
        let count = self.ports.len();
        if count == 0 {
            return false;
        }
        self.first = (self.first + 1) % count;
        let mut busy = false;
        for step in 0..count {
            let from = (self.first + step) % count;
            busy |= self.serve(from, now);
        }
        self.flush();
        busy
    }

    /// Returns when the first port that waits for its rate may continue. [`Switch::poll`] has
    /// nothing to do for it before.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.ports.iter().map(|port| port.held_until).filter(|until| *until > 0).min()
    }

    fn serve(&mut self, from: usize, now: u64) -> bool {
        let port = &mut self.ports[from];
        if port.held_until > now {
            return false;
        }
        port.held_until = 0;
        if port.waiting.is_empty() {
            port.queue.receive(&mut self.batch, BATCH);
            port.waiting.extend(self.batch.drain(..));
        }
        if port.waiting.is_empty() {
            // An idle port still pays off its debt.
            port.credit = (port.credit + i64::from(QUANTUM)).min(0);
            return false;
        }
        port.credit = (port.credit + i64::from(QUANTUM)).min(2 * i64::from(QUANTUM));
        loop {
            let port = &mut self.ports[from];
            let Some(frame) = port.waiting.front() else {
                port.credit = port.credit.min(0);
                break;
            };
            // A frame is no longer than the largest MTU: it fits.
            let cost = frame.len() as i64 + i64::from(FRAME_COST);
            if port.credit < cost {
                break;
            }
            let Some(frame) = port.waiting.pop_front() else { break };
            match self.forward(from, frame, now) {
                Ok(copies) => self.ports[from].credit -= cost * copies.max(1),
                Err((frame, until)) => {
                    let port = &mut self.ports[from];
                    port.waiting.push_front(frame);
                    (port.held_until, port.credit) = (until, port.credit.min(0));
                    break;
                }
            }
        }
        true
    }

    /// Delivers a frame to the ports that it is for, or drops it. Returns the number of those
    /// ports.
    ///
    /// # Errors
    /// The frame exceeds its sender's rate: returns it, and when to try again.
    fn forward(&mut self, from: usize, frame: Frame, now: u64) -> Result<i64, (Frame, u64)> {
        let port = &mut self.ports[from];
        let (head, length) = (port.queue.bytes(&frame), frame.len());
        let judged = software::transmit(&port.spec, head, length);
        let is_allowed = judged.is_ok();
        let target = judged.and_then(|()| match group_request(head) {
            None => to_port(self.by_mac.get(&head[..6])),
            Some(Group::Request(address)) => to_port(self.by_address.get(&address)),
            Some(Group::Request6(address)) => to_port(self.by_address6.get(&address)),
            Some(Group::Announcement(family)) => Ok(Target::All(family)),
            Some(Group::Other) => Err(Reason::Target),
        });
        let copies = match target {
            Ok(Target::All(Family::Ipv6)) => self.ipv6_ports.saturating_sub(1),
            Ok(Target::All(Family::Ipv4)) => self.ports.len() - 1,
            _ => 1,
        };
        let port = &mut self.ports[from];
        if is_allowed
            && let Some(rate) = &mut port.rate
            && let Err(until) = rate.take(length * copies.max(1), now)
        {
            return Err((frame, until));
        }
        match target {
            Ok(Target::One(to)) if to != from => self.deliver(from, to, &frame),
            Ok(Target::One(_)) => port.counters.send_drops[Reason::Target as usize] += 1,
            Ok(Target::All(family)) => self.announce(from, &frame, family),
            Err(reason) => port.counters.send_drops[reason as usize] += 1,
        }
        self.ports[from].queue.release(frame);
        // At most as many as there are ports.
        Ok(copies as i64)
    }

    /// Delivers a frame to all other ports that have an address of its family.
    fn announce(&mut self, from: usize, frame: &Frame, family: Family) {
        for to in 0..self.ports.len() {
            if to != from && (family == Family::Ipv4 || self.ports[to].spec.address6.is_some()) {
                self.deliver(from, to, frame);
            }
        }
    }

    /// Checks a frame against the receiver's rules and copies it into the receiver's queue.
    fn deliver(&mut self, from: usize, to: usize, frame: &Frame) {
        let Ok([source, target]) = self.ports.get_disjoint_mut([from, to]) else { return };
        let (head, length) = (source.queue.bytes(frame), frame.len());
        if let Err(reason) = software::receive(&target.spec, head, length) {
            target.counters.receive_drops[reason as usize] += 1;
            return;
        }
        if length > target.queue.mtu() + 14 {
            target.counters.receive_oversize += 1;
            return;
        }
        let Some(mut copy) = target.queue.allocate(length) else {
            target.counters.receive_full += 1;
            return;
        };
        let (near, far) = target.queue.bytes_mut(&mut copy).split_at_mut(head.len());
        near.copy_from_slice(head);
        source.queue.tail(frame).copy_to(0, far);
        if let Err(full) = target.queue.transmit(copy) {
            target.queue.release(full.into_frame());
            target.counters.receive_full += 1;
            return;
        }
        target.needs_flush = true;
        target.counters.received_frames += 1;
        target.counters.received_bytes += length as u64;
        source.counters.sent_frames += 1;
        source.counters.sent_bytes += length as u64;
    }

    fn flush(&mut self) {
        let mut failed = Vec::new();
        for port in &mut self.ports {
            if std::mem::take(&mut port.needs_flush) && port.queue.flush().is_err() {
                failed.push(port.id);
            }
        }
        for id in failed {
            self.remove(id);
            self.dead.push(id);
        }
    }
}

/// The ports that a frame is for.
#[derive(Clone, Copy)]
enum Target {
    One(usize),
    /// All others that have an address of the family; every port has one of IPv4.
    All(Family),
}

/// An address family.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Ipv4,
    Ipv6,
}

#[inline]
fn to_port(port: Option<&usize>) -> Result<Target, Reason> {
    port.copied().map(Target::One).ok_or(Reason::Target)
}

/// What a broadcast or multicast frame is.
enum Group {
    /// A request for this address.
    Request(Ipv4Addr),
    /// The same of IPv6.
    Request6(Ipv6Addr),
    /// The sender announces its own address.
    Announcement(Family),
    Other,
}

/// Classifies a frame that passed its sender's rules. Only ARP (42 bytes) is broadcast, and only
/// neighbour discovery without extension headers is multicast. `None`: a unicast frame.
#[inline]
fn group_request(head: &[u8]) -> Option<Group> {
    if head[0] & 1 == 0 {
        return None;
    }
    let bytes = |at: usize| head.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied();
    if head[0] == 0xff {
        let (sender, target) = (bytes(28)?, bytes(38)?);
        return Some(if sender == target {
            Group::Announcement(Family::Ipv4)
        } else {
            Group::Request(target.into())
        });
    }
    match head.get(54) {
        Some(&SOLICITATION) => {
            let target = head.get(62..).and_then(|rest| rest.first_chunk::<16>());
            Some(target.map_or(Group::Other, |target| Group::Request6(Ipv6Addr::from(*target))))
        }
        Some(&ADVERTISEMENT) => Some(Group::Announcement(Family::Ipv6)),
        _ => Some(Group::Other),
    }
}

#[cfg(test)]
mod tests;
