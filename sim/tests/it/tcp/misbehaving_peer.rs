//! A third host on the link that breaks every rule of TCP, on connections of its own and, blindly,
//! on those of others.
//!
//! 1. It opens connections normally, and then sends random segments. These have numbers inside and
//!    outside the window; overlapping and contradicting data; acknowledgements that are tiny, too
//!    many, too far, withheld or withdrawn; selective acknowledgements of nothing; windows that
//!    shrink; malformed options; random flags.
//! 2. It floods with SYNs from addresses that do not exist, and sends noise.
//! 3. It knows the endpoints of other connections and spoofs the honest peer, but cannot see their
//!    sequence numbers (RFC 5961).
//! 4. Some of its ICMP errors quote real packets, like a lying router on the path. They may slow a
//!    connection down, never end it.
//!
//! At some time it falls silent, like a host that was switched off, and the engine must remove its
//! state.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use sietch_sim::link::Observer;
use sietch_sim::segment::{
    ACK, FIN, Macs, Options, PSH, RST, SYN, Segment, URG, icmp_error, neighbour_answer, packet,
};
use sietch_sim::{Link, Random};

use super::conversation::{GUEST_PORT, MILLISECOND};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
pub(super) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 3];
/// The side of the link that it attacks, and that host.
const VICTIM_SIDE: usize = 1;
const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const VICTIM_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Most connections of its own.
const CONNECTIONS: usize = 24;
/// Frames to others that it remembers, to quote them.
const MOST_OBSERVED: usize = 16;

/// The frames of the victim that the misbehaving peer sees.
#[derive(Debug, Default)]
struct ObservedFrames {
    /// Frames to its own address, or to all.
    own: Vec<Vec<u8>>,
    /// Segments to the honest peer.
    others: Vec<Vec<u8>>,
    /// Segments to it without data.
    bare: u64,
}

#[derive(Debug)]
struct FrameObserver(Rc<RefCell<ObservedFrames>>);

impl Observer for FrameObserver {
    fn sent(&mut self, side: usize, frame: &[u8], _: u64) {
        if side != VICTIM_SIDE || frame.len() < 14 {
            return;
        }
        let mut observed = self.0.borrow_mut();
        if frame[..6] == MAC || frame[0] & 1 == 1 {
            let bare = || Segment::decode(frame).is_some_and(|segment| segment.payload.is_empty());
            observed.bare += u64::from(frame[..6] == MAC && bare());
            observed.own.push(frame.to_vec());
        } else {
            if observed.others.len() >= MOST_OBSERVED {
                observed.others.remove(0);
            }
            observed.others.push(frame.to_vec());
        }
    }

    fn delivered(&mut self, _: usize, _: &[u8], _: u64) {}
}

/// A connection of the misbehaving peer's own.
#[derive(Debug)]
struct Own {
    port: u16,
    iss: u32,
    /// The victim's initial sequence number, once it was seen.
    irs: Option<u32>,
    /// The bytes that it has sent in order.
    sent: u32,
    /// The highest number that came from the victim.
    end: u32,
    window: u16,
    stamp: Option<u32>,
}

/// The misbehaving peer.
#[derive(Debug)]
pub(super) struct MisbehavingPeer {
    random: Random,
    observed: Rc<RefCell<ObservedFrames>>,
    connections: Vec<Own>,
    pub next: u64,
    until: u64,
    pace: u64,
    pub injected: u64,
    ports: u16,
}

impl MisbehavingPeer {
    /// Joins the link; acts from `from` until `until`.
    pub(super) fn join(link: &mut Link, mut random: Random, from: u64, until: u64) -> Self {
        let observed = Rc::new(RefCell::new(ObservedFrames::default()));
        link.watch(Box::new(FrameObserver(Rc::clone(&observed))));
        let pace = *random.pick(&[10 * MILLISECOND, 50 * MILLISECOND, 200 * MILLISECOND]);
        Self { random, observed, connections: Vec::new(), next: from, until, pace, injected: 0, ports: 1000 }
    }

    /// Bare segments that the victim has sent to it: its cost to the victim in frames.
    pub(super) fn answers(&self) -> u64 {
        self.observed.borrow().bare
    }

    /// Acts if it is due.
    pub(super) fn act(&mut self, link: &mut Link, now: u64) {
        let own = std::mem::take(&mut self.observed.borrow_mut().own);
        for frame in own {
            self.receive(&frame, link, now);
        }
        if now < self.next {
            return;
        }
        self.next = now + self.random.between(1, self.pace * 2);
        if self.next > self.until {
            self.next = u64::MAX;
        }
        for _ in 0..self.random.between(1, 3) {
            for frame in self.invent() {
                self.injected += 1;
                link.inject(VICTIM_SIDE, frame, now);
            }
        }
    }

    fn receive(&mut self, frame: &[u8], link: &mut Link, now: u64) {
        if now > self.until {
            return;
        }
        if let Some(answer) = neighbour_answer(frame, ADDRESS.into(), MAC) {
            link.inject(VICTIM_SIDE, answer, now);
            return;
        }
        let Some(segment) = Segment::decode(frame) else { return };
        let known = self.connections.iter_mut().find(|own| own.port == segment.to.port());
        let Some(own) = known else { return };
        if segment.has(RST) {
            let port = own.port;
            self.connections.retain(|own| own.port != port);
            return;
        }
        if segment.has(SYN) && own.irs.is_none() {
            own.irs = Some(segment.seq);
            own.end = segment.end();
        }
        if segment.end().wrapping_sub(own.end).cast_signed() > 0 {
            own.end = segment.end();
        }
        own.stamp = segment.read_options().timestamps.map(|stamps| stamps.0);
    }

    fn invent(&mut self) -> Vec<Vec<u8>> {
        match self.random.below(100) {
            0..12 if self.connections.len() < CONNECTIONS => vec![self.open()],
            0..20 => self.flood(),
            20..35 => self.pretend().into_iter().collect(),
            35..40 => self.lie().into_iter().collect(),
            40..44 => vec![self.noise()],
            _ if self.connections.is_empty() => vec![self.open()],
            _ => {
                let index = self.random.index(self.connections.len());
                self.violate(index)
            }
        }
    }

    fn endpoint(port: u16) -> SocketAddr {
        SocketAddr::from((VICTIM, port))
    }

    /// Random bytes that look like options, or do not.
    fn babble(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; self.random.between(1, 40) as usize];
        self.random.fill(&mut bytes);
        if self.random.chance(500) {
            bytes[0] = *self.random.pick(&[1, 2, 3, 4, 5, 8, 34]);
            if let Some(length) = bytes.get_mut(1) {
                *length = *self.random.pick(&[0, 1, 2, 3, 4, 10, 18, 34, 255]);
            }
        }
        bytes
    }

    fn open(&mut self) -> Vec<u8> {
        self.ports += 1;
        let iss = self.random.word() as u32;
        let random = &mut self.random;
        let options = Options {
            mss: random.chance(800).then(|| *random.pick(&[0, 1, 64, 88, 536, 1460, 65_535])),
            shift: random.chance(500).then(|| *random.pick(&[0, 2, 14, 15, 255])),
            sack_permitted: random.chance(500),
            timestamps: random.chance(500).then(|| (random.word() as u32, 0)),
            ..Options::default()
        };
        let window = *random.pick(&[0, 1, 1000, 65_535]);
        let bytes = if random.chance(200) { self.babble() } else { options.bytes() };
        let own = Own { port: self.ports, iss, irs: None, sent: 0, end: 0, window, stamp: None };
        let from = SocketAddr::from((ADDRESS, own.port));
        let bare = Segment::bare(from, Self::endpoint(GUEST_PORT), SYN, iss, 0);
        let frame = Segment { window, options: &bytes, ..bare }.encode(Macs { from: MAC, to: VICTIM_MAC });
        self.connections.push(own);
        frame
    }

    fn flood(&mut self) -> Vec<Vec<u8>> {
        (0..self.random.between(1, 30))
            .map(|_| {
                let source = Ipv4Addr::new(10, 0, 0, self.random.between(100, 250) as u8);
                let from = SocketAddr::from((source, self.random.between(1, 65_535) as u16));
                let seq = self.random.word() as u32;
                let port = *self.random.pick(&[GUEST_PORT, super::conversation::PORT]);
                Segment { window: 5000, ..Segment::bare(from, Self::endpoint(port), SYN, seq, 0) }
                    .encode(Macs { from: MAC, to: VICTIM_MAC })
            })
            .collect()
    }

    /// A segment in the name of the honest peer of a connection, with numbers that can only be
    /// guessed.
    fn pretend(&mut self) -> Option<Vec<u8>> {
        let observed = self.observed.borrow();
        let frame = observed.others.get(self.random.index(observed.others.len()))?;
        // The opener of a connection accepts the first SYN from the right port: RFC 9293 section
        // 3.5 requires it.
        let real = Segment::decode(frame).filter(|real| !real.has(SYN))?;
        let flags = *self.random.pick(&[RST, RST | ACK, SYN, SYN | ACK, ACK, ACK | PSH, FIN | ACK, 0, 0xff]);
        let (seq, ack) = (self.random.word() as u32, self.random.word() as u32);
        let payload = vec![0x66; self.random.below(600) as usize];
        let bare = Segment::bare(real.to, real.from, flags, seq, ack);
        Some(Segment { window: 100, payload: &payload, ..bare }.encode(Macs { from: MAC, to: VICTIM_MAC }))
    }

    /// An ICMP error about a real packet.
    fn lie(&mut self) -> Option<Vec<u8>> {
        let observed = self.observed.borrow();
        let frame = observed.others.get(self.random.index(observed.others.len()))?;
        // Before a connection is established, such an error rightly ends the attempt.
        Segment::decode(frame).filter(|real| !real.has(SYN))?;
        let code = *self.random.pick(&[0, 1, 2, 3, 4, 4, 4, 4, 13]);
        let mtu = *self.random.pick(&[0, 68, 296, 576, 1000, 1499, 1500, 65_535]);
        let router: IpAddr = Ipv4Addr::new(192, 0, 2, 9).into();
        icmp_error(Macs { from: MAC, to: VICTIM_MAC }, router, 3, code, mtu, frame)
    }

    fn noise(&mut self) -> Vec<u8> {
        let mut body = vec![0; self.random.between(0, 1400) as usize];
        self.random.fill(&mut body);
        let protocol = *self.random.pick(&[1, 2, 6, 17, 50, 58, 255]);
        let mut frame = packet(
            Macs { from: MAC, to: VICTIM_MAC },
            ADDRESS.into(),
            VICTIM.into(),
            protocol,
            self.random.below(4) as u8,
            &body,
        );
        for _ in 0..self.random.below(4) {
            let at = self.random.index(frame.len().min(60));
            frame[at] = self.random.word() as u8;
        }
        if self.random.chance(300) {
            let keep = self.random.index(frame.len());
            frame.truncate(keep);
        }
        frame
    }

    /// Random violations on one of its own connections.
    fn violate(&mut self, index: usize) -> Vec<Vec<u8>> {
        let babble = self.babble();
        let random = &mut self.random;
        let own = &mut self.connections[index];
        let Some(irs) = own.irs else { return Vec::new() };
        let (from, to) = (SocketAddr::from((ADDRESS, own.port)), Self::endpoint(GUEST_PORT));
        let next = own.iss.wrapping_add(1 + own.sent);
        let stamps = own.stamp.map(|stamp| (random.word() as u32 % 4 + own.sent, stamp));
        let mut options = Options { timestamps: stamps, ..Options::default() };
        let mut segment = Segment { window: own.window, ..Segment::bare(from, to, ACK, next, own.end) };
        let data = vec![0x42; random.between(1, 1400) as usize];
        let behind = own.end.wrapping_sub(irs);
        let mut many = 1;
        match random.below(20) {
            0 | 1 => {
                segment.payload = &data;
                own.sent += data.len() as u32;
            }
            2 => {
                // Data that it sent before, with different bytes.
                segment.seq = next.wrapping_sub(random.below(3000) as u32);
                segment.payload = &data;
            }
            3 => {
                segment.seq = next.wrapping_add(random.below(100_000) as u32);
                segment.payload = &data;
            }
            4 => segment.flags = random.word() as u8,
            5 => (segment.seq, segment.ack) = (random.word() as u32, random.word() as u32),
            6 => {
                many = 40;
                segment.ack = own.end.wrapping_sub(behind.min(40));
            }
            7 => many = 12,
            8 => segment.ack = own.end.wrapping_add(random.between(1, 200_000) as u32),
            9 | 10 => {
                options.timestamps = None;
                options.blocks = random.between(1, 4) as usize;
                let base = own.end.wrapping_sub(behind);
                for block in &mut options.sack {
                    let left = base.wrapping_add(random.below(u64::from(behind) + 3000) as u32);
                    *block = (left, left.wrapping_add(random.below(5000) as u32).wrapping_sub(100));
                }
                segment.ack = base.wrapping_add(random.below(u64::from(behind) + 1) as u32);
            }
            11 | 12 => {
                own.window = *random.pick(&[0, 1, 7, 500, 65_535]);
                segment.window = own.window;
            }
            13 => segment.flags = FIN | ACK,
            14 => {
                segment.flags = RST;
                segment.seq = next.wrapping_add(random.below(2) as u32 * random.below(1000) as u32);
            }
            15 => segment.flags = SYN,
            16 => options.timestamps = Some((random.word() as u32, random.word() as u32)),
            17 => {
                many = 30;
                segment.payload = &data[..1];
                own.sent += 30;
            }
            18 => {
                segment.flags |= URG;
                segment.payload = &data;
            }
            _ => segment.ack = segment.ack.wrapping_sub(random.below(u64::from(behind) + 1) as u32),
        }
        let bytes = if random.chance(50) { babble } else { options.bytes() };
        segment.options = &bytes;
        let macs = Macs { from: MAC, to: VICTIM_MAC };
        (0..many)
            .map(|number| {
                let mut one = segment;
                match many {
                    40 => one.ack = one.ack.wrapping_add(number),
                    30 => one.seq = one.seq.wrapping_add(number),
                    _ => {}
                }
                one.encode(macs)
            })
            .collect()
    }
}
