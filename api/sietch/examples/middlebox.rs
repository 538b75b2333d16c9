//! An IP middlebox: spreads the flows to one port over several servers by rewriting addresses, as a
//! load balancer in front of them does (network address translation). It has no TCP of its own:
//! each frame is changed in place and sent on, never copied.
//!
//! 1. A flow's first packet chooses the next server, and a source port of the middlebox that stands
//!    for the client.
//! 2. Packets to the served port go to the flow's server, from the middlebox and that port. Packets
//!    from a server to that port go back to the client.
//! 3. Checksums are adjusted by the change (RFC 1624). The time to live decreases as at any router.
//! 4. Servers' link addresses are requested by ARP, once a second until they answer. Clients' are
//!    taken from their packets.
//! 5. The table is bounded; a new flow replaces the oldest one.
//!
//! `cargo run --release -p sietch --example middlebox -- --vnic NAME --backend 10.77.0.3:80
//! --backend 10.77.0.4:80 [--port 80]`
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};

use sietch::nic::{Frame, NicQueue, Offloads};

/// Flows remembered.
const FLOWS: usize = 16_384;
/// The first source port that stands for a client.
const FIRST_PORT: u16 = 32_768;
/// Between two questions for a link address.
const ASK_EVERY: u64 = 1_000_000_000;

const IPV4: [u8; 2] = [8, 0];
const ARP: [u8; 2] = [8, 6];
const TCP: u8 = 6;
const UDP: u8 = 17;

/// One end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct End {
    address: [u8; 4],
    port: [u8; 2],
}

impl End {
    fn new(address: SocketAddrV4) -> Self {
        Self { address: address.ip().octets(), port: address.port().to_be_bytes() }
    }
}

#[derive(Debug)]
struct Server {
    end: End,
    mac: Option<[u8; 6]>,
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    protocol: u8,
    client: End,
    client_mac: [u8; 6],
    server: usize,
}

/// The middlebox.
#[derive(Debug)]
pub(crate) struct Middlebox {
    served: End,
    servers: Vec<Server>,
    /// By our source port, counted from [`FIRST_PORT`].
    flows: Vec<Flow>,
    by_client: HashMap<(u8, End), usize>,
    /// Places in `flows`, oldest first.
    ages: VecDeque<usize>,
    asked_at: Option<u64>,
    frames: Vec<Frame>,
}

/// Puts the true checksum where a kernel of this machine left the sum of the pseudo-header
/// ([`Offloads::unfinished`]).
fn finish_checksum(head: &mut [u8], tail: &[u8]) -> Option<()> {
    let packet = head.get_mut(14..)?;
    let (20.., 0x45) = (packet.len(), *packet.first()?) else { return None };
    let at = match packet[9] {
        TCP => 36,
        UDP => 26,
        _ => return None,
    };
    let length = usize::from(u16::from_be_bytes([packet[2], packet[3]])).checked_sub(20)?;
    let sum = |bytes: &[u8]| -> u64 {
        let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        bytes.chunks(2).map(word).sum()
    };
    let fold = |mut sum: u64| {
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    };
    let pseudo = fold(sum(&packet[12..20]) + u64::from(packet[9]) + length as u64);
    if packet.get(at..at + 2)? != pseudo.to_be_bytes() {
        return None;
    }
    // The pseudo-header's sum is in the field already.
    let segment: Vec<u8> = packet[20..].iter().chain(tail).copied().take(length).collect();
    let checksum = match !fold(sum(&segment)) {
        0 => 0xffff_u16,
        sum => sum,
    };
    packet[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

impl Middlebox {
    /// Serves `served` (an address of ours) by `servers`.
    pub(crate) fn new(served: SocketAddrV4, servers: &[SocketAddrV4]) -> Self {
        let server = |address: &SocketAddrV4| Server { end: End::new(*address), mac: None };
        Self {
            served: End::new(served),
            servers: servers.iter().map(server).collect(),
            flows: Vec::new(),
            by_client: HashMap::new(),
            ages: VecDeque::new(),
            asked_at: None,
            frames: Vec::new(),
        }
    }

    /// Receives a batch of frames and forwards them. Returns whether any frame arrived.
    ///
    /// # Errors
    /// The device is unusable.
    pub(crate) fn iterate<Q: NicQueue>(&mut self, queue: &mut Q, now: u64) -> std::io::Result<bool> {
        let mac = queue.mac();
        let Offloads { checksums, unfinished } = queue.offloads();
        let sums = !checksums;
        if self.asked_at.is_none_or(|at| now - at >= ASK_EVERY) {
            self.asked_at = Some(now);
            self.ask(queue, mac);
        }
        let mut frames = std::mem::take(&mut self.frames);
        let received = queue.receive(&mut frames, 64);
        for mut frame in frames.drain(..) {
            if unfinished {
                let tail = queue.tail(&frame).to_vec();
                finish_checksum(queue.bytes_mut(&mut frame), &tail);
            }
            if self.rewrite(queue.bytes_mut(&mut frame), mac, sums) {
                // A frame that exceeds the ring's room is lost, as at any router.
                if let Err(full) = queue.transmit(frame) {
                    queue.release(full.into_frame());
                }
            } else {
                queue.release(frame);
            }
        }
        self.frames = frames;
        queue.flush()?;
        Ok(received > 0)
    }

    /// Changes a frame into the one to be sent; false: there is none.
    fn rewrite(&mut self, bytes: &mut [u8], mac: [u8; 6], sums: bool) -> bool {
        match bytes.get(12..14) {
            Some(kind) if kind == ARP => self.answer(bytes, mac),
            Some(kind) if kind == IPV4 => self.translate(bytes, mac, sums).is_some(),
            _ => false,
        }
    }

    fn translate(&mut self, bytes: &mut [u8], mac: [u8; 6], sums: bool) -> Option<()> {
        let sender: [u8; 6] = bytes.get(6..12)?.try_into().ok()?;
        let packet = bytes.get_mut(14..)?;
        // Version 4 without options, no fragment, time to live.
        if packet.len() < 28 || packet[0] != 0x45 || packet[6] & 0x3f != 0 || packet[7] != 0 || packet[8] < 2
        {
            return None;
        }
        let protocol = packet[9];
        let sum = match protocol {
            TCP => 36,
            UDP => 26,
            _ => return None,
        };
        let end = |address: usize, port: usize| -> Option<End> {
            let address = packet.get(address..address + 4)?.try_into().ok()?;
            Some(End { address, port: packet.get(port..port + 2)?.try_into().ok()? })
        };
        let (from, to) = (end(12, 20)?, end(16, 22)?);
        let (new_from, new_to, next) = if to == self.served {
            let place = self.flow(protocol, from, sender);
            let server = &self.servers[self.flows[place].server];
            let port = (FIRST_PORT + place as u16).to_be_bytes();
            (End { address: self.served.address, port }, server.end, server.mac?)
        } else if to.address == self.served.address {
            let place = usize::from(u16::from_be_bytes(to.port).checked_sub(FIRST_PORT)?);
            let flow = self.flows.get(place)?;
            if flow.protocol != protocol || self.servers[flow.server].end != from {
                return None;
            }
            (self.served, flow.client, flow.client_mac)
        } else {
            return None;
        };
        let mut head = [0; 12];
        head[..4].copy_from_slice(&packet[8..12]);
        head[4..].copy_from_slice(&packet[12..20]);
        packet[8] -= 1;
        packet[12..16].copy_from_slice(&new_from.address);
        packet[16..20].copy_from_slice(&new_to.address);
        packet[20..22].copy_from_slice(&new_from.port);
        packet[22..24].copy_from_slice(&new_to.port);
        let old_time = [head[0], head[1]];
        let new_time = [packet[8], packet[9]];
        adjust(
            packet,
            10,
            &[(&old_time, &new_time), (&head[4..8], &new_from.address), (&head[8..], &new_to.address)],
        );
        let absent = protocol == UDP && packet.get(sum..sum + 2)? == [0, 0];
        if sums && !absent && packet.len() >= sum + 2 {
            let changes: [(&[u8], &[u8]); 4] = [
                (&from.address, &new_from.address),
                (&to.address, &new_to.address),
                (&from.port, &new_from.port),
                (&to.port, &new_to.port),
            ];
            adjust(packet, sum, &changes);
        }
        bytes[..6].copy_from_slice(&next);
        bytes[6..12].copy_from_slice(&mac);
        Some(())
    }

    /// The place of a client's flow, a new one if need be.
    fn flow(&mut self, protocol: u8, client: End, client_mac: [u8; 6]) -> usize {
        if let Some(place) = self.by_client.get(&(protocol, client)) {
            return *place;
        }
        let mut place = self.flows.len();
        if place == FLOWS {
            place = self.ages.pop_front().unwrap_or(0);
            let old = self.flows[place];
            self.by_client.remove(&(old.protocol, old.client));
        }
        let server = self.by_client.len() % self.servers.len();
        let flow = Flow { protocol, client, client_mac, server };
        if place == self.flows.len() {
            self.flows.push(flow);
        } else {
            self.flows[place] = flow;
        }
        self.by_client.insert((protocol, client), place);
        self.ages.push_back(place);
        place
    }

    /// ARP: answers requests for the middlebox, and learns servers' link addresses.
    fn answer(&mut self, bytes: &mut [u8], mac: [u8; 6]) -> bool {
        if bytes.len() < 42 || bytes[14..20] != [0, 1, 8, 0, 6, 4] {
            return false;
        }
        let mut sender = [0; 10];
        sender.copy_from_slice(&bytes[22..32]);
        let (link, address) = sender.split_at(6);
        for server in self.servers.iter_mut().filter(|server| server.end.address == address) {
            server.mac = link.try_into().ok();
        }
        if bytes[20..22] != [0, 1] || bytes[38..42] != self.served.address {
            return false;
        }
        bytes[..6].copy_from_slice(link);
        bytes[6..12].copy_from_slice(&mac);
        bytes[21] = 2;
        bytes[22..28].copy_from_slice(&mac);
        bytes[28..32].copy_from_slice(&self.served.address);
        bytes[32..42].copy_from_slice(&sender);
        true
    }

    /// Requests the link addresses that are not known.
    fn ask<Q: NicQueue>(&self, queue: &mut Q, mac: [u8; 6]) {
        for server in self.servers.iter().filter(|server| server.mac.is_none()) {
            let Some(mut frame) = queue.allocate(42) else { return };
            let bytes = queue.bytes_mut(&mut frame);
            bytes.fill(0);
            bytes[..6].fill(0xff);
            bytes[6..12].copy_from_slice(&mac);
            bytes[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
            bytes[22..28].copy_from_slice(&mac);
            bytes[28..32].copy_from_slice(&self.served.address);
            bytes[38..42].copy_from_slice(&server.end.address);
            if let Err(full) = queue.transmit(frame) {
                queue.release(full.into_frame());
            }
        }
    }
}

/// Adjusts the checksum at `place` to words that changed from the first to the second of each pair
/// (RFC 1624, equation 3).
fn adjust(packet: &mut [u8], place: usize, changes: &[(&[u8], &[u8])]) {
    let word = |bytes: &[u8]| u32::from(bytes[0]) << 8 | u32::from(bytes[1]);
    let mut sum = !word(&packet[place..]) & 0xffff;
    for (old, new) in changes {
        for (old, new) in old.chunks_exact(2).zip(new.chunks_exact(2)) {
            sum += (!word(old) & 0xffff) + word(new);
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[place..place + 2].copy_from_slice(&(!sum as u16).to_be_bytes());
}

#[allow(dead_code, reason = "the tests take this file as a module")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = sietch::Arguments::from_env()?;
    let servers: Vec<SocketAddrV4> = arguments.values("--backend")?;
    if servers.is_empty() {
        return Err("name the servers: --backend ADDRESS:PORT, once for each server".into());
    }
    let (client, vnic) = arguments.acquire()?;
    let address: Ipv4Addr = vnic.description.address;
    let port = arguments.value("--port")?.unwrap_or(80);
    let mut middlebox = Middlebox::new(SocketAddrV4::new(address, port), &servers);
    let mut queue = vnic.queue;
    let held = sietch::HeldGrants { grants: vec![vnic.grant], lease: client.hold()? };
    let mut idle = sietch::IdlePolicy::with_grants(held);
    loop {
        let now = sietch::clock::now();
        let busy = middlebox.iterate(&mut queue, now)?;
        idle.after_iteration(&mut queue, now, busy, Some(now + ASK_EVERY))?;
    }
}
