//! The software switch: ports, rules, and who is next. Sans-I/O: queues are a trait, time is an
//! argument.
//!
//! One turn:
//!
//! 1. Every port in rotation gets [`QUANTUM`] bytes of credit (deficit round robin). A frame costs
//!    its length and [`FRAME_COST`], so neither large nor many small frames buy a port more than
//!    its share. A port with nothing waiting saves nothing.
//! 2. A frame is judged by its sender's transmit rules, then by its sender's rate. One that exceeds
//!    the rate waits, and all of that port's behind it with it, in the sender's own memory: nothing
//!    is lost, and a sender whose ring is full knows that it must wait. What passes goes to the
//!    port that the control plane's table names for its destination MAC. A question to everybody or
//!    to a group, of ARP or of neighbour discovery, goes to the port that has the address in
//!    question, and to no other: who else would hear it could only answer falsely. Nothing is ever
//!    learnt from a frame. What a port announces of itself (its rules saw to it that it is true)
//!    goes to all others. Each copy counts as a frame of its own, for the sender's rate and for its
//!    share.
//! 3. There it is judged by that port's receive rules and copied into a frame of that port's queue.
//!    The head that is copied is the very bytes that were judged: the sender cannot change them in
//!    between.
//! 4. A port without room loses the frame (it is counted); nobody waits for it.
//! 5. Ports that were handed something are flushed, once. A port whose queue fails is taken out.
//!
//! No turn does more than [`BATCH`] frames a port.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use sietch_nic::xdp::{Reason, VnicSpec, XdpError, software};
use sietch_nic::{Frame, NicQueue};

use crate::counters::PortCounters;
use crate::rate::Bucket;

/// Bytes that a port may send in a turn before the next has its turn: more than the largest frame
/// costs, so every turn moves something; little enough that a hundred busy ports all have theirs
/// within a millisecond.
pub const QUANTUM: u32 = 72 << 10;
/// What a frame costs beside its bytes: about what forwarding one takes, in the time of copying so
/// many bytes.
pub const FRAME_COST: u32 = 512;
/// Most frames taken from a port at a time.
pub const BATCH: usize = 64;
/// Most ports.
pub const PORTS: usize = 256;

const _: () = assert!(QUANTUM > 65_535 + 14 + FRAME_COST);

/// Types of neighbour discovery (RFC 4861 section 4.3 and 4.4).
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// What the control plane calls a port: the number of its grant.
pub type PortId = u64;

/// Why a port was not added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// The rules cannot be enforced.
    #[error("port {0}: its rules cannot be enforced")]
    Rules(PortId, #[source] XdpError),
    /// Another port has its name, MAC or address.
    #[error("port {0}: port {1} has the same number, MAC or address; give each VNIC its own")]
    Taken(PortId, PortId),
    /// There are too many.
    #[error("port {0}: the switch has {PORTS} ports already; start another service core")]
    Full(PortId),
    /// The medium needs checksums that frames on the switch do not have.
    #[error("port {0}: its queue is not over memory; the switch joins shared-memory links only")]
    Medium(PortId),
}

#[derive(Debug)]
struct Port<Q> {
    id: PortId,
    spec: VnicSpec,
    bucket: Option<Bucket>,
    queue: Q,
    /// Frames received and not yet looked at.
    waiting: VecDeque<Frame>,
    /// Until when the first of them waits for its sender's rate; zero if it does not.
    held_until: u64,
    /// Below zero: what copies of an announcement cost more than there was.
    credit: i64,
    /// Something was handed to it since its last flush.
    touched: bool,
    counters: PortCounters,
}

/// A switch over queues of one kind. One thread owns it.
#[derive(Debug)]
pub struct Switch<Q> {
    ports: Vec<Port<Q>>,
    by_mac: HashMap<[u8; 6], usize, RandomState>,
    by_address: HashMap<Ipv4Addr, usize, RandomState>,
    by_address6: HashMap<Ipv6Addr, usize, RandomState>,
    /// Ports that speak IPv6.
    six: usize,
    /// Who is first in the next turn.
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
            six: 0,
            first: 0,
            batch: Vec::with_capacity(BATCH),
            dead: Vec::new(),
        }
    }
}

fn bucket(spec: &VnicSpec) -> Option<Bucket> {
    spec.rate.map(|rate| Bucket::new(rate, spec.burst))
}

impl<Q: NicQueue> Switch<Q> {
    /// Adds a port: the queue's other end belongs to the holder of grant `id`, whom `spec`
    /// confines.
    ///
    /// # Errors
    /// [`AddError`] says why not; the queue is dropped, which ends its link.
    pub fn add(&mut self, id: PortId, spec: VnicSpec, queue: Q) -> Result<(), AddError> {
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
            bucket: bucket(&spec),
            spec,
            queue,
            waiting: VecDeque::with_capacity(BATCH),
            held_until: 0,
            credit: 0,
            touched: false,
            counters: PortCounters::default(),
        });
        self.index();
        Ok(())
    }

    /// Gives a port other rules. False if there is no such port.
    ///
    /// # Errors
    /// As [`Switch::add`]; the old rules stay.
    pub fn update(&mut self, id: PortId, spec: VnicSpec) -> Result<bool, AddError> {
        spec.validate().map_err(|error| AddError::Rules(id, error))?;
        let Some(at) = self.ports.iter().position(|port| port.id == id) else { return Ok(false) };
        self.check_free(id, &spec, Some(at))?;
        let port = &mut self.ports[at];
        port.bucket = bucket(&spec);
        port.held_until = 0;
        port.spec = spec;
        self.index();
        Ok(true)
    }

    /// Takes a port out and returns its queue: what its holder writes from now on nobody reads.
    pub fn remove(&mut self, id: PortId) -> Option<Q> {
        let at = self.ports.iter().position(|port| port.id == id)?;
        let mut port = self.ports.remove(at);
        for frame in port.waiting.drain(..) {
            port.queue.release(frame);
        }
        self.index();
        Some(port.queue)
    }

    /// What a port counted.
    pub fn counters(&self, id: PortId) -> Option<PortCounters> {
        self.ports.iter().find(|port| port.id == id).map(|port| port.counters)
    }

    /// The ports' numbers.
    pub fn ids(&self) -> impl Iterator<Item = PortId> + '_ {
        self.ports.iter().map(|port| port.id)
    }

    /// The ports' queues.
    pub fn queues_mut(&mut self) -> impl Iterator<Item = (PortId, &mut Q)> {
        self.ports.iter_mut().map(|port| (port.id, &mut port.queue))
    }

    /// The queues that are looked at in each turn, for who sleeps on their doorbells: not those of
    /// ports that wait for their rate.
    pub fn watched_queues_mut(&mut self) -> impl Iterator<Item = &mut Q> {
        self.ports.iter_mut().filter(|port| port.held_until == 0).map(|port| &mut port.queue)
    }

    /// The ports' queues.
    pub fn queues(&self) -> impl Iterator<Item = &Q> {
        self.ports.iter().map(|port| &port.queue)
    }

    /// Ports that were taken out since the last call because their queue failed.
    pub fn take_dead(&mut self) -> Vec<PortId> {
        std::mem::take(&mut self.dead)
    }

    fn check_free(&self, id: PortId, spec: &VnicSpec, but: Option<usize>) -> Result<(), AddError> {
        let same = |(at, port): &(usize, &Port<Q>)| {
            Some(*at) != but
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
        self.six = self.ports.iter().filter(|port| port.spec.address6.is_some()).count();
        // With a granted address comes the one that follows from the MAC.
        let six = |(at, port): (usize, &Port<Q>)| {
            port.spec.address6.map(|own| [(own, at), (port.spec.link_local(), at)])
        };
        self.by_address6 = self.ports.iter().enumerate().filter_map(six).flatten().collect();
    }

    /// Moves what has arrived, at most one batch a port. `now` is in nanoseconds and never goes
    /// back. Returns whether there was anything to do but wait.
    pub fn turn(&mut self, now: u64) -> bool {
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

    /// When a port that waits for its rate may go on, if one does: [`Switch::turn`] has nothing to
    /// do for it before.
    pub fn held_until(&self) -> Option<u64> {
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
            // A debt is paid off even if nothing more is asked for.
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

    /// Hands a frame to whom it is for, or drops it. Returns how many ports it was for.
    ///
    /// # Errors
    /// Its sender's rate: the frame, and when to come again.
    fn forward(&mut self, from: usize, frame: Frame, now: u64) -> Result<i64, (Frame, u64)> {
        let port = &mut self.ports[from];
        let (head, length) = (port.queue.bytes(&frame), frame.len());
        let judged = software::transmit(&port.spec, head, length);
        let is_allowed = judged.is_ok();
        let way = judged.and_then(|()| match to_group(head) {
            None => found(self.by_mac.get(&head[..6])),
            Some(Group::Asks(address)) => found(self.by_address.get(&address)),
            Some(Group::Asks6(address)) => found(self.by_address6.get(&address)),
            Some(Group::Tells { six }) => Ok(Way::All { six }),
            Some(Group::Other) => Err(Reason::Target),
        });
        let copies = match way {
            Ok(Way::All { six: true }) => self.six.saturating_sub(1),
            Ok(Way::All { six: false }) => self.ports.len() - 1,
            _ => 1,
        };
        let port = &mut self.ports[from];
        if is_allowed
            && let Some(bucket) = &mut port.bucket
            && let Err(until) = bucket.take(length * copies.max(1), now)
        {
            return Err((frame, until));
        }
        match way {
            Ok(Way::One(to)) if to != from => self.hand_over(from, to, &frame),
            Ok(Way::One(_)) => port.counters.send_drops[Reason::Target as usize] += 1,
            Ok(Way::All { six }) => self.announce(from, &frame, six),
            Err(reason) => port.counters.send_drops[reason as usize] += 1,
        }
        self.ports[from].queue.release(frame);
        // At most as many as there are ports.
        Ok(copies as i64)
    }

    /// Hands a frame to all others that speak its family.
    fn announce(&mut self, from: usize, frame: &Frame, six: bool) {
        for to in 0..self.ports.len() {
            if to != from && (!six || self.ports[to].spec.address6.is_some()) {
                self.hand_over(from, to, frame);
            }
        }
    }

    fn hand_over(&mut self, from: usize, to: usize, frame: &Frame) {
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
        target.touched = true;
        target.counters.received_frames += 1;
        target.counters.received_bytes += length as u64;
        source.counters.sent_frames += 1;
        source.counters.sent_bytes += length as u64;
    }

    fn flush(&mut self) {
        let mut failed = Vec::new();
        for port in &mut self.ports {
            if std::mem::take(&mut port.touched) && port.queue.flush().is_err() {
                failed.push(port.id);
            }
        }
        for id in failed {
            self.remove(id);
            self.dead.push(id);
        }
    }
}

/// Where a frame goes.
#[derive(Clone, Copy)]
enum Way {
    One(usize),
    /// To all others; of those with IPv6 alone.
    All {
        six: bool,
    },
}

#[inline]
fn found(port: Option<&usize>) -> Result<Way, Reason> {
    port.copied().map(Way::One).ok_or(Reason::Target)
}

/// What a frame to everybody or to a group wants.
enum Group {
    Asks(Ipv4Addr),
    Asks6(Ipv6Addr),
    /// It says where its sender's address is.
    Tells {
        six: bool,
    },
    Other,
}

/// Reads a frame that passed its sender's rules: to everybody goes ARP alone, which has 42 bytes,
/// and to groups neighbour discovery without extension headers. `None`: it goes to one station.
#[inline]
fn to_group(head: &[u8]) -> Option<Group> {
    if head[0] & 1 == 0 {
        return None;
    }
    let bytes = |at: usize| head.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied();
    if head[0] == 0xff {
        let (sender, target) = (bytes(28)?, bytes(38)?);
        return Some(if sender == target { Group::Tells { six: false } } else { Group::Asks(target.into()) });
    }
    match head.get(54) {
        Some(&SOLICITATION) => {
            let target = head.get(62..).and_then(|rest| rest.first_chunk::<16>());
            Some(target.map_or(Group::Other, |target| Group::Asks6(Ipv6Addr::from(*target))))
        }
        Some(&ADVERTISEMENT) => Some(Group::Tells { six: true }),
        _ => Some(Group::Other),
    }
}

#[cfg(test)]
mod tests;
