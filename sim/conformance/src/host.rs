//! A machine of one engine in virtual time: sockets by number, a clock that the script moves, and a
//! wire whose other end is the script.
//!
//! 1. The engine is polled after every call and every packet that arrives, so their effects happen
//!    at the same instant.
//! 2. [`Host::advance_to`] moves the clock, and stops at every deadline of the engine on the way:
//!    timers fire exactly when they are due.
//! 3. The packets that the engine sends are kept with their time, without link header, until
//!    [`Host::take_sent`].
//! 4. ARP requests and neighbour solicitations are answered at once for every address: the script's
//!    side has any address. Scripts do not see them.
//!
//! `socket` has the state of a socket, `sockets` the calls, `options` the socket options,
//! `settings` the machine's settings.

use std::collections::{BTreeMap, VecDeque};

use sietch_net::{Config, Engine, Event};
use sietch_nic::wire::{WireQueue, WireTap, tapped};

mod options;
mod settings;
mod socket;
mod sockets;

pub use options::OptionValue;
pub use settings::{Settings, SettingsError};
pub use socket::{Errno, Outcome, PollEntry};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;
/// The time at which a machine starts. It is not zero, because differences to earlier times would
/// be negative.
pub const START: u64 = 1000 * SECOND;
/// Link address of the machine.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Link address of every other host.
const REMOTE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Frame buffers of the machine's queue: more than any script has in flight.
const BUFFERS: u32 = 8192;
/// The lowest socket number: 0 to 2 are in use in every process.
const FIRST_FD: i32 = 3;
/// Iterations at one instant after which the engine counts as stuck.
const MAX_ITERATIONS: usize = 10_000;
const LINK_HEADER: usize = 14;

/// A packet that the engine sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The time in nanoseconds.
    pub at: u64,
    /// The IP packet.
    pub bytes: Vec<u8>,
}

/// The machine.
#[derive(Debug)]
pub struct Host {
    engine: Engine,
    queue: WireQueue,
    tap: WireTap,
    now: u64,
    sent: VecDeque<Sent>,
    events: Vec<Event>,
    sockets: BTreeMap<i32, socket::Socket>,
    settings: Settings,
    /// The lowest number that a socket gets.
    first_fd: i32,
}

impl Host {
    /// A machine that has just started, at [`START`].
    pub fn new(settings: &Settings) -> Self {
        let (queue, tap) = tapped(MAC, settings.mtu, BUFFERS);
        let config: Config = settings.config();
        let mut host = Self {
            engine: Engine::new(&config, MAC, settings.mtu),
            queue,
            tap,
            now: START,
            sent: VecDeque::new(),
            events: Vec::new(),
            sockets: BTreeMap::new(),
            settings: settings.clone(),
            first_fd: FIRST_FD,
        };
        host.poll_engine();
        host
    }

    /// Numbers sockets from `first` on.
    pub const fn number_from(&mut self, first: i32) {
        self.first_fd = first;
    }

    /// The virtual time in nanoseconds.
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// When the engine's next timer is due.
    pub fn next_deadline(&self) -> Option<u64> {
        self.engine.next_deadline()
    }

    /// The settings of the machine.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Moves the clock to `time`, running every deadline on the way. Does nothing if that time has
    /// passed.
    pub fn advance_to(&mut self, time: u64) {
        while self.engine.next_deadline().is_some_and(|deadline| deadline <= time) {
            self.step(time);
        }
        self.now = self.now.max(time);
        self.poll_engine();
    }

    /// Moves the clock until the engine has sent something, at most to `limit`. Returns whether it
    /// has.
    pub fn advance_until_sent(&mut self, limit: u64) -> bool {
        while self.sent.is_empty() && self.engine.next_deadline().is_some_and(|deadline| deadline <= limit) {
            self.step(limit);
        }
        !self.sent.is_empty()
    }

    /// Moves to the next deadline, which is before `limit`.
    fn step(&mut self, limit: u64) {
        let before = self.now;
        for _ in 0..MAX_ITERATIONS {
            let Some(deadline) = self.engine.next_deadline().filter(|deadline| *deadline <= limit) else {
                return;
            };
            self.now = self.now.max(deadline);
            self.poll_engine();
            if self.now > before || !self.sent.is_empty() {
                return;
            }
        }
        panic!("the engine has a deadline at {before} that polling does not clear");
    }

    /// Puts an IP packet on the wire to the machine. Returns false if it is too long for it.
    pub fn receive(&mut self, packet: &[u8]) -> bool {
        let ethertype: [u8; 2] =
            if packet.first().is_some_and(|first| first >> 4 == 6) { [0x86, 0xdd] } else { [8, 0] };
        let mut frame = Vec::with_capacity(LINK_HEADER + packet.len());
        frame.extend(MAC);
        frame.extend(REMOTE_MAC);
        frame.extend(ethertype);
        frame.extend(packet);
        let delivered = self.tap.deliver(&frame);
        self.poll_engine();
        delivered
    }

    /// Takes the oldest packet that the engine has sent.
    pub fn take_sent(&mut self) -> Option<Sent> {
        self.sent.pop_front()
    }

    /// The oldest packet that the engine has sent, without taking it.
    pub fn next_sent(&self) -> Option<&Sent> {
        self.sent.front()
    }

    /// Polls the engine until it has nothing more to do at this instant.
    fn poll_engine(&mut self) {
        for _ in 0..MAX_ITERATIONS {
            // A wire in memory never fails.
            let more = self.engine.poll(&mut self.queue, self.now).is_ok_and(|result| result.more);
            let mut events = std::mem::take(&mut self.events);
            self.engine.take_events(&mut events);
            for event in events.drain(..) {
                self.take_event(&event);
            }
            self.events = events;
            let answered = self.collect();
            if !more && !answered {
                return;
            }
        }
        panic!("the engine never becomes idle at {}", self.now);
    }

    /// Takes the sent frames. Returns whether one of them was a request that got an answer.
    fn collect(&mut self) -> bool {
        let mut answered = false;
        while let Some(frame) = self.tap.take_transmitted() {
            match frame[12..14] {
                [8, 6] => answered |= self.answer_arp(&frame),
                _ if is_discovery(&frame) => answered |= self.answer_solicitation(&frame),
                _ => self.sent.push_back(Sent { at: self.now, bytes: frame[LINK_HEADER..].to_vec() }),
            }
        }
        answered
    }

    fn answer_arp(&self, frame: &[u8]) -> bool {
        let Some(question) = frame.get(LINK_HEADER..LINK_HEADER + 28).filter(|arp| arp[7] == 1) else {
            return false;
        };
        let mut answer = Vec::from(MAC);
        answer.extend(REMOTE_MAC);
        answer.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        answer.extend(REMOTE_MAC);
        answer.extend(&question[24..28]);
        answer.extend(MAC);
        answer.extend(&question[14..18]);
        self.tap.deliver(&answer)
    }

    /// Answers a neighbour solicitation (RFC 4861 section 4.3) with an advertisement; other
    /// messages of that protocol get none.
    fn answer_solicitation(&self, frame: &[u8]) -> bool {
        const SOLICITATION: u8 = 135;
        const ADVERTISEMENT: u8 = 136;
        let packet = &frame[LINK_HEADER..];
        let asker: Option<[u8; 16]> = packet.get(8..24).and_then(|bytes| bytes.try_into().ok());
        let target: Option<[u8; 16]> = packet.get(48..64).and_then(|bytes| bytes.try_into().ok());
        let (Some(asker), Some(target)) = (asker, target) else { return false };
        // Duplicate address detection has no source address. No other host has our address, so the
        // probe gets no answer.
        if packet[40] != SOLICITATION || asker == [0; 16] {
            return false;
        }
        let mut payload = Vec::from(target);
        payload.extend([2, 1]);
        payload.extend(REMOTE_MAC);
        let advertisement = crate::packet::Packet {
            source: std::net::Ipv6Addr::from(target).into(),
            destination: std::net::Ipv6Addr::from(asker).into(),
            ecn: 0,
            dont_fragment: true,
            // Solicited, override.
            body: crate::packet::Body::Icmp(crate::packet::Icmp {
                kind: ADVERTISEMENT,
                code: 0,
                rest: 0x6000_0000,
                payload,
            }),
        };
        let mut answer = Vec::from(MAC);
        answer.extend(REMOTE_MAC);
        answer.extend([0x86, 0xdd]);
        let mut bytes = advertisement.build();
        // Neighbour discovery accepts only packets that no router has forwarded (hop limit 255).
        bytes[7] = 255;
        answer.extend(bytes);
        self.tap.deliver(&answer)
    }
}

/// Whether a frame carries router or neighbour discovery, or multicast listener reports: these
/// concern the link, not the script.
fn is_discovery(frame: &[u8]) -> bool {
    let Some(packet) = frame.get(LINK_HEADER..).filter(|packet| packet.len() > 48) else { return false };
    let (protocol, kind) = match packet[6] {
        // Hop-by-hop options, as before a multicast listener report.
        0 => (packet[40], packet[48]),
        protocol => (protocol, packet[40]),
    };
    frame[12..14] == [0x86, 0xdd]
        && protocol == crate::packet::ICMP6
        && (matches!(kind, 133..=137) || matches!(kind, 130..=132 | 143))
}
