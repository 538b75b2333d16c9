//! The script's side of each connection: translates the script's numbers to numbers on the wire and
//! back.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::payload::byte_at;
use crate::packet::{ACK, Body, FLAGS, Icmp, Packet, SYN, Tcp, TcpOption};
use crate::script::{self, Content, IcmpError, Script, Segment};

/// The peer's port where the script gives none and the host did not connect to it.
const REMOTE_PORT: u16 = 50_000;
/// The host's port to which such a peer connects.
const LOCAL_PORT: u16 = 8080;
const RST: u8 = 0x04;
/// IPv4 peer, of the addresses for documentation (RFC 5737).
const REMOTE4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// IPv6 peer (RFC 3849).
const REMOTE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// One connection as the script sees it.
#[derive(Clone, Debug, Default)]
struct Peer {
    /// The host's port.
    local_port: Option<u16>,
    /// The offset from the script's numbers of the host's stream.
    offset: Option<u32>,
    /// The offset from the script's timestamps of the host.
    stamp_offset: Option<u32>,
    /// The peer's initial sequence number.
    initial: Option<u32>,
    /// That of a SYN which the host has not answered yet.
    offered: Option<u32>,
    /// How far the host's initial sequence number has moved since the last connection with the same
    /// endpoints.
    advance: Option<i64>,
    /// Whether the host opened it.
    active: bool,
}

/// All connections of a script, by the peer's port.
#[derive(Debug)]
pub(super) struct Peers {
    local: IpAddr,
    remote: IpAddr,
    peers: BTreeMap<u16, Peer>,
    /// The connection of a packet without ports.
    usual: Option<u16>,
    /// The one that a SYN was last exchanged on.
    latest: Option<u16>,
}

impl Peers {
    pub(super) fn new(script: &Script) -> Self {
        let (local, remote) = if script.ipv6 {
            (script.settings.local6.into(), REMOTE6.into())
        } else {
            (script.settings.local.into(), REMOTE4.into())
        };
        Self { local, remote, peers: BTreeMap::new(), usual: None, latest: None }
    }

    pub(super) fn ipv6(&self) -> bool {
        self.local.is_ipv6()
    }

    pub(super) fn local_address(&self) -> IpAddr {
        self.local
    }

    pub(super) fn remote_address(&self) -> IpAddr {
        self.remote
    }

    /// The host opens a connection to this port.
    pub(super) fn connecting(&mut self, port: u16) {
        self.usual.get_or_insert(port);
        self.peers.insert(port, Peer { active: true, ..Peer::default() });
    }

    pub(super) fn isn_advance(&self) -> Option<i64> {
        self.peers.get(&self.latest?)?.advance
    }

    fn port(&mut self, named: Option<u16>) -> u16 {
        named.unwrap_or_else(|| *self.usual.get_or_insert(REMOTE_PORT))
    }

    /// Builds the packet that the script sends, and returns its description.
    pub(super) fn build(&mut self, packet: &script::Packet) -> Result<(Vec<u8>, String), String> {
        let port = self.port(packet.peer);
        let (local, remote) = (self.local, self.remote);
        let peer = self.peers.entry(port).or_default();
        let body = match &packet.content {
            Content::Tcp(segment) => Body::Tcp(peer.segment(port, segment)),
            Content::Icmp(error) => Body::Icmp(peer.error(port, (local, remote), error)),
        };
        let ecn = packet.ecn.first().copied().unwrap_or(0);
        let built = Packet { source: remote, destination: local, ecn, dont_fragment: true, body };
        let mut bytes = built.build();
        let text = describe_expected(packet);
        if packet.corrupt {
            let place = bytes.len() - 1;
            bytes[place] ^= 0x55;
        }
        Ok((bytes, text))
    }

    /// The sent packet, in the words of a script.
    pub(super) fn describe(&self, bytes: &[u8]) -> String {
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(reason) => return format!("a packet with {reason}"),
        };
        let Body::Tcp(tcp) = &packet.body else { return format!("{:?}", packet.body) };
        let peer = self.peers.get(&tcp.destination);
        let offset = peer.and_then(|peer| peer.offset).unwrap_or(if tcp.has(SYN) { tcp.seq } else { 0 });
        let stamps = peer.and_then(|peer| peer.stamp_offset).unwrap_or(0);
        let own = peer.map_or(0, |peer| peer.own_offset(tcp.has(SYN)));
        let shown = Segment {
            flags: tcp.flags,
            seq: tcp.seq.wrapping_sub(offset),
            length: tcp.payload.len() as u32,
            ack: tcp.has(ACK).then_some(tcp.ack.wrapping_sub(own)),
            window: Some(tcp.window),
            urgent: None,
            options: Some(relative(&tcp.options, stamps, own)),
        };
        let name = if self.usual == Some(tcp.destination) { None } else { Some(tcp.destination) };
        let content = Content::Tcp(shown);
        describe_expected(&script::Packet { peer: name, ecn: vec![packet.ecn], corrupt: false, content })
    }

    pub(super) fn describe_expected(&self, packet: &script::Packet) -> String {
        describe_expected(packet)
    }

    /// Compares a sent packet with the script's expectation. The error names the first difference.
    pub(super) fn compare(&mut self, expected: &script::Packet, bytes: &[u8]) -> Result<(), String> {
        let packet = Packet::parse(bytes)?;
        if packet.source != self.local || packet.destination != self.remote {
            return Err(format!("it goes from {} to {}", packet.source, packet.destination));
        }
        if !expected.ecn.is_empty() && !expected.ecn.contains(&packet.ecn) {
            return Err(format!("its ECN field is {}", ecn_name(packet.ecn)));
        }
        let (Content::Tcp(wanted), Body::Tcp(tcp)) = (&expected.content, &packet.body) else {
            return Err("it is of another protocol".into());
        };
        let port = self.port(expected.peer);
        let peer = self.peers.entry(port).or_default();
        peer.compare(port, wanted, tcp)?;
        if tcp.has(SYN) {
            self.latest = Some(port);
        }
        Ok(())
    }
}

impl Peer {
    /// The offset from the script's numbers of its own stream. As in packetdrill, a SYN carries the
    /// number in the script, and later numbers count from it.
    fn own_offset(&self, syn: bool) -> u32 {
        if syn { 0 } else { self.initial.unwrap_or(0) }
    }

    /// The segment that the script sends.
    fn segment(&mut self, port: u16, segment: &Segment) -> Tcp {
        if segment.flags & SYN != 0 {
            self.offered = Some(segment.seq);
            self.initial.get_or_insert(segment.seq);
        }
        let offset = self.offset.unwrap_or(0);
        let syn = segment.flags & SYN != 0;
        let seq = segment.seq.wrapping_add(self.own_offset(syn));
        // The first byte of data has number one.
        let first = seq.wrapping_sub(self.initial.unwrap_or(0)).wrapping_add(u32::from(syn));
        let payload = (0..segment.length).map(|at| byte_at(u64::from(first.wrapping_add(at)))).collect();
        let stamps = self.stamp_offset.unwrap_or(0);
        let options = segment.options.iter().flatten().map(|option| match option {
            TcpOption::Timestamps(value, echo) if *echo != 0 => {
                TcpOption::Timestamps(*value, echo.wrapping_add(stamps))
            }
            TcpOption::Sack(blocks) => TcpOption::Sack(
                blocks
                    .iter()
                    .map(|(start, end)| (start.wrapping_add(offset), end.wrapping_add(offset)))
                    .collect(),
            ),
            other => other.clone(),
        });
        Tcp {
            source: port,
            destination: self.local_port.unwrap_or(LOCAL_PORT),
            seq,
            ack: segment.ack.map_or(0, |ack| ack.wrapping_add(offset)),
            flags: segment.flags,
            window: segment.window.unwrap_or(0xffff),
            urgent: segment.urgent.unwrap_or(0),
            options: options.collect(),
            payload,
        }
    }

    /// The ICMP error that the script sends: from the peer's address, about a segment of the
    /// host's.
    fn error(&self, port: u16, (local, remote): (IpAddr, IpAddr), error: &IcmpError) -> Icmp {
        let quoted = Packet {
            source: local,
            destination: remote,
            ecn: 0,
            dont_fragment: true,
            body: Body::Tcp(Tcp {
                source: self.local_port.unwrap_or(LOCAL_PORT),
                destination: port,
                seq: error.quoted.0.wrapping_add(self.offset.unwrap_or(0)),
                flags: ACK,
                payload: vec![0; error.quoted.1 as usize],
                ..Tcp::default()
            }),
        };
        let mut payload = quoted.build();
        // An IPv4 router quotes at least the header and eight bytes; an IPv6 one all that fits the
        // smallest MTU.
        payload.truncate(if local.is_ipv4() { 28 } else { 1232 });
        Icmp { kind: error.kind, code: error.code, rest: error.mtu, payload }
    }

    fn compare(&mut self, port: u16, wanted: &Segment, tcp: &Tcp) -> Result<(), String> {
        if tcp.destination != port {
            return Err(format!("it goes to port {}", tcp.destination));
        }
        if self.active && self.local_port.is_none() {
            self.local_port = Some(tcp.source);
        }
        let local_port = self.local_port.unwrap_or(LOCAL_PORT);
        if tcp.source != local_port {
            return Err(format!("it comes from port {}", tcp.source));
        }
        if tcp.flags != wanted.flags {
            return Err(format!("its flags are {}", flags_text(tcp.flags)));
        }
        if tcp.has(SYN) {
            self.learn(wanted, tcp);
        }
        let seq = wanted.seq.wrapping_add(self.offset.unwrap_or(0));
        // A reset to a host without a connection carries a bare zero.
        let bare = tcp.has(RST) && wanted.seq == 0 && tcp.seq == 0;
        if tcp.seq != seq && !bare {
            return Err(format!("its sequence number is {}", tcp.seq.wrapping_sub(self.offset.unwrap_or(0))));
        }
        if tcp.payload.len() != wanted.length as usize {
            return Err(format!("it carries {} bytes", tcp.payload.len()));
        }
        let own = self.own_offset(tcp.has(SYN));
        if wanted.ack.is_some_and(|ack| ack.wrapping_add(own) != tcp.ack) {
            return Err(format!("it acknowledges {}", tcp.ack.wrapping_sub(own)));
        }
        if wanted.window.is_some_and(|window| window != tcp.window) {
            return Err(format!("its window is {}", tcp.window));
        }
        if wanted.urgent.is_some_and(|urgent| urgent != tcp.urgent) {
            return Err(format!("its urgent pointer is {}", tcp.urgent));
        }
        let first = wanted.seq.wrapping_add(u32::from(tcp.has(SYN)));
        let intact =
            (0..).zip(&tcp.payload).all(|(at, byte)| byte_at(u64::from(first.wrapping_add(at))) == *byte);
        if !intact {
            return Err("its payload is not what the application wrote".into());
        }
        self.compare_options(wanted, tcp)
    }

    /// A SYN of the host's fixes what the script's numbers mean, unless it is the same one again.
    fn learn(&mut self, wanted: &Segment, tcp: &Tcp) {
        let offset = tcp.seq.wrapping_sub(wanted.seq);
        if self.offset == Some(offset) || (self.offset.is_some() && self.offered.is_none()) {
            return;
        }
        self.advance = self.offset.map(|before| i64::from(offset.wrapping_sub(before)));
        self.offset = Some(offset);
        self.stamp_offset = None;
        if let Some(offered) = self.offered.take() {
            self.initial = Some(offered);
        }
    }

    fn compare_options(&mut self, wanted: &Segment, tcp: &Tcp) -> Result<(), String> {
        let Some(options) = &wanted.options else { return Ok(()) };
        let stamp = |options: &[TcpOption]| {
            options.iter().find_map(|option| match option {
                TcpOption::Timestamps(value, _) => Some(*value),
                _ => None,
            })
        };
        if let (None, Some(wanted), Some(found)) = (self.stamp_offset, stamp(options), stamp(&tcp.options)) {
            self.stamp_offset = Some(found.wrapping_sub(wanted));
        }
        let found = relative(&tcp.options, self.stamp_offset.unwrap_or(0), self.own_offset(tcp.has(SYN)));
        if found != *options {
            return Err(format!("its options are <{}>", options_text(&found)));
        }
        Ok(())
    }
}

/// Options of the host with timestamps, and the numbers of the script's stream, as the script
/// counts them.
fn relative(options: &[TcpOption], stamps: u32, own: u32) -> Vec<TcpOption> {
    options
        .iter()
        .map(|option| match option {
            TcpOption::Timestamps(value, echo) => TcpOption::Timestamps(value.wrapping_sub(stamps), *echo),
            TcpOption::Sack(blocks) => TcpOption::Sack(
                blocks.iter().map(|(start, end)| (start.wrapping_sub(own), end.wrapping_sub(own))).collect(),
            ),
            other => other.clone(),
        })
        .collect()
}

fn describe_expected(packet: &script::Packet) -> String {
    let mut text = packet.peer.map_or_else(String::new, |peer| format!(":{peer} "));
    for ecn in packet.ecn.iter().filter(|ecn| **ecn != 0) {
        text += &format!("[{}] ", ecn_name(*ecn));
    }
    if packet.corrupt {
        text += "[badsum] ";
    }
    match &packet.content {
        Content::Icmp(error) => {
            let (seq, length) = error.quoted;
            text + &format!(
                "icmp type {} code {} mtu {} [{seq}:{}({length})]",
                error.kind,
                error.code,
                error.mtu,
                seq.wrapping_add(length)
            )
        }
        Content::Tcp(segment) => {
            let end = segment.seq.wrapping_add(segment.length);
            text += &format!("{} {}:{end}({})", flags_text(segment.flags), segment.seq, segment.length);
            if let Some(ack) = segment.ack {
                text += &format!(" ack {ack}");
            }
            if let Some(window) = segment.window {
                text += &format!(" win {window}");
            }
            match &segment.options {
                None => text + " <...>",
                Some(options) if options.is_empty() => text,
                Some(options) => text + &format!(" <{}>", options_text(options)),
            }
        }
    }
}

fn flags_text(flags: u8) -> String {
    // The acknowledgement's dot comes last of the common ones, as scripts write it.
    let order = ['S', 'F', 'R', 'P', 'E', 'W', 'U', '.'];
    let text: String = order
        .iter()
        .filter(|letter| FLAGS.iter().any(|(name, bit)| name == *letter && flags & bit != 0))
        .collect();
    if text.is_empty() { "-".into() } else { text }
}

fn ecn_name(ecn: u8) -> &'static str {
    ["noecn", "ect1", "ect0", "ce"][usize::from(ecn & 3)]
}

fn options_text(options: &[TcpOption]) -> String {
    let one = |option: &TcpOption| match option {
        TcpOption::End => "eol".into(),
        TcpOption::Nop => "nop".into(),
        TcpOption::Mss(mss) => format!("mss {mss}"),
        TcpOption::WindowScale(shift) => format!("wscale {shift}"),
        TcpOption::SackPermitted => "sackOK".into(),
        TcpOption::Sack(blocks) => {
            blocks.iter().fold("sack".into(), |text: String, (start, end)| format!("{text} {start}:{end}"))
        }
        TcpOption::Timestamps(value, echo) => format!("TS val {value} ecr {echo}"),
        TcpOption::Unknown(kind, _) => format!("unknown {kind}"),
    };
    options.iter().map(one).collect::<Vec<String>>().join(",")
}
