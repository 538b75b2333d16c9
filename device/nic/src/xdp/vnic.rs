//! A VNIC's two programs and their maps, from the daemon's side.
//!
//! 1. [`VnicPrograms::install`] makes the maps, loads both programs over them, writes the rules,
//!    and attaches: first the transmit filter, then the receive filter. A process that gets the
//!    socket after that is restricted by both.
//! 2. [`VnicPrograms::update`] rewrites the maps; the programs stay. What is added is added first,
//!    what is taken away is taken away before it returns. Each map word changes at once, a set of
//!    them does not. A frame in between may meet the old port set and the new address, each of
//!    which was granted.
//! 3. [`VnicPrograms::set_enabled`] with `false` is revocation: one word, and every later frame is
//!    dropped.
//! 4. Dropping the value closes fds and changes nothing on the wire. [`VnicPrograms::adopt`] finds
//!    the programs of an earlier daemon by asking the interfaces, and checks names, shapes, magic
//!    and recorded interfaces before it believes them.
//! 5. [`VnicPrograms::detach`] removes the programs, and only these. Deleting the veth does too.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::assembler::{Instruction, MapReference};
use super::counters::{DirectionCounters, VnicCounters};
use super::error::XdpError;
use super::frame::Context;
use super::kernel::{Buffers, Map, Program};
use super::layout::{
    BUCKET, CONFIG, CONFIG_WORDS, COST_SHIFT, MAGIC, MAXIMUM_PEERS, MAXIMUM_QUEUES, PEERS, PEERS6,
    PORT_WORDS, PORTS, QUEUES, RECEIVE_COUNTERS, TIME_SHIFT, TRANSMIT_COUNTERS, UPLINK, Word, address_word,
    mac_word, words6,
};
#[cfg(test)]
use super::layout::{word_address, word_mac};
use super::netlink::{self, Expect};
use super::receive::{self, ReceiveMaps};
use super::transmit::{self, TransmitMaps};
use crate::namespace::Namespace;

/// Bytes a second. Below it a full frame would wait for more than a second.
pub(crate) const MINIMUM_RATE: u64 = 1_000;
/// Bytes a second: eight terabit. Above it the cost of a byte would lose precision.
pub(crate) const MAXIMUM_RATE: u64 = 1_000_000_000_000;
/// Bytes. The longest frame in one buffer is shorter; a bucket smaller than a frame would never let
/// that frame pass.
pub(crate) const MINIMUM_BURST: u64 = 4_096;
/// The same for frames in several buffers, of which the longest has 65549 bytes.
pub const MINIMUM_LARGE_BURST: u64 = 128 << 10;
/// Units of 2^-6 ns, thirteen days: `burst / rate` beyond it is no limit but a mistake.
pub(crate) const MAXIMUM_WINDOW: u64 = 1 << 56;

/// An IPv4 prefix such as 10.0.0.0/8, its host bits zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ipv4Prefix {
    address: Ipv4Addr,
    length: u8,
}

impl Ipv4Prefix {
    /// The prefix of `length` bits that `address` is in; `None` above 32 bits.
    pub fn new(address: Ipv4Addr, length: u8) -> Option<Self> {
        if length > 32 {
            return None;
        }
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        Some(Self { address: Ipv4Addr::from_bits(address.to_bits() & mask), length })
    }

    /// Its length in bits.
    #[cfg(test)]
    pub(crate) fn length(self) -> u8 {
        self.length
    }

    /// Whether `address` is in it.
    pub(crate) fn contains(self, address: Ipv4Addr) -> bool {
        Self::new(address, self.length) == Some(self)
    }

    fn key(self) -> [u8; 8] {
        let mut key = [0; 8];
        key[..4].copy_from_slice(&u32::from(self.length).to_ne_bytes());
        key[4..].copy_from_slice(&self.address.octets());
        key
    }
}

/// An IPv6 prefix such as fd00::/8, its host bits zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ipv6Prefix {
    address: Ipv6Addr,
    length: u8,
}

impl Ipv6Prefix {
    /// The prefix of `length` bits that `address` is in; `None` above 128 bits.
    pub fn new(address: Ipv6Addr, length: u8) -> Option<Self> {
        if length > 128 {
            return None;
        }
        let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        Some(Self { address: Ipv6Addr::from_bits(address.to_bits() & mask), length })
    }

    /// Whether `address` is in it.
    pub(crate) fn contains(self, address: Ipv6Addr) -> bool {
        Self::new(address, self.length) == Some(self)
    }

    fn key(self) -> [u8; 20] {
        let mut key = [0; 20];
        key[..4].copy_from_slice(&u32::from(self.length).to_ne_bytes());
        key[4..].copy_from_slice(&self.address.octets());
        key
    }
}

/// What a VNIC may send and receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnicSpec {
    /// Its MAC.
    pub mac: [u8; 6],
    /// Its address.
    pub address: Ipv4Addr,
    /// Its IPv6 address. With one it has the link-local address that follows from its MAC, too.
    pub address6: Option<Ipv6Addr>,
    /// TCP ports it may serve, or use as a client.
    pub tcp_ports: Vec<RangeInclusive<u16>>,
    /// UDP ports it may serve, or use as a client.
    pub udp_ports: Vec<RangeInclusive<u16>>,
    /// Peers over IPv4. If both lists are empty, every address is a peer.
    pub peers: Vec<Ipv4Prefix>,
    /// Peers over IPv6. If empty beside a prefix of no bits in `peers`, every address is a peer,
    /// too.
    pub peers6: Vec<Ipv6Prefix>,
    /// Bytes a second it may send, Ethernet headers included. `None`: no limit.
    pub rate: Option<u64>,
    /// Bytes it may send at once after a pause. Without a rate it means nothing.
    pub burst: u64,
    /// Interface index of the physical interface behind it. `None`: frames go to the host's stack.
    pub uplink: Option<u32>,
    /// MAC of the host's end of the veth.
    pub host_mac: [u8; 6],
    /// Generation of the grant, for readers of the configuration.
    pub generation: u64,
}

type PortSets = [u64; 2 * PORT_WORDS];

impl VnicSpec {
    /// Checks that the rules can be enforced as written.
    ///
    /// # Errors
    /// [`XdpError::Rules`] says which cannot.
    pub fn validate(&self) -> Result<(), XdpError> {
        let refuse = |text: String| Err(XdpError::Rules(text));
        for (what, mac) in [("MAC", self.mac), ("host MAC", self.host_mac)] {
            if mac[0] & 1 != 0 || mac == [0; 6] {
                return refuse(format!("{what} {mac:02x?} is not one interface's"));
            }
        }
        let address = self.address;
        if address.is_unspecified() || address.is_loopback() || address.octets()[0] >= 224 {
            return refuse(format!("{address} is not a host's address"));
        }
        if let Some(address) = self.address6
            && (address.is_multicast()
                || address.is_unicast_link_local()
                // The unspecified address, the loopback's, and those that stand for IPv4 addresses.
                || address.segments()[..4] == [0; 4])
        {
            return refuse(format!("{address} is not a host's own IPv6 address"));
        }
        if let Some(range) = (self.tcp_ports.iter().chain(&self.udp_ports)).find(|r| r.is_empty()) {
            return refuse(format!("port range {range:?} is empty: write the lower port first"));
        }
        let peers = self.peers.len().max(self.peers6.len());
        if peers > MAXIMUM_PEERS as usize {
            return refuse(format!("{peers} peer prefixes, more than {MAXIMUM_PEERS}: join some"));
        }
        if self.uplink == Some(0) {
            return refuse("interface index 0 is no uplink".to_owned());
        }
        self.bucket().map(|_| ())
    }

    fn names_no_peer(&self) -> bool {
        self.peers.is_empty() && self.peers6.is_empty()
    }

    /// Whether some IPv4 address is no peer.
    pub(crate) fn is_restricted(&self) -> bool {
        !self.names_no_peer() && self.peers.iter().all(|prefix| prefix.length > 0)
    }

    /// The same over IPv6. A list of all addresses that says nothing of IPv6 does not restrict
    /// IPv6.
    pub(crate) fn is_restricted6(&self) -> bool {
        let unrestricted = self.peers6.is_empty() && !self.is_restricted();
        !unrestricted && self.peers6.iter().all(|prefix| prefix.length > 0)
    }

    /// Whether it may talk with that address.
    pub(crate) fn is_peer6(&self, other: Ipv6Addr) -> bool {
        !self.is_restricted6() || self.peers6.iter().any(|prefix| prefix.contains(other))
    }

    /// The link-local address that follows from the MAC (RFC 4291 appendix A).
    pub const fn link_local(&self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.mac;
        Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// The cost of a byte and the window, in the units of [`Word`].
    fn bucket(&self) -> Result<(u64, u64), XdpError> {
        let Some(rate) = self.rate else {
            return Ok((0, 0));
        };
        if !(MINIMUM_RATE..=MAXIMUM_RATE).contains(&rate) {
            return Err(XdpError::Rules(format!(
                "a rate of {rate} bytes/s is not between {MINIMUM_RATE} and {MAXIMUM_RATE}"
            )));
        }
        if self.burst < MINIMUM_BURST {
            return Err(XdpError::Rules(format!(
                "a burst of {} bytes would stop full frames for ever: give {MINIMUM_BURST} or more",
                self.burst
            )));
        }
        let second = 1_000_000_000_u128 << TIME_SHIFT;
        // Rounded up: never faster than granted.
        let cost = (second << COST_SHIFT).div_ceil(u128::from(rate));
        let window = (u128::from(self.burst) * cost) >> COST_SHIFT;
        if window > u128::from(MAXIMUM_WINDOW) {
            return Err(XdpError::Rules(format!(
                "a burst of {} bytes takes over a week to fill at {rate} bytes/s: lower it",
                self.burst
            )));
        }
        // With the bounds above both are below 2^57.
        Ok((cost as u64, window as u64))
    }

    fn port_sets(&self) -> Box<PortSets> {
        let mut sets: Box<PortSets> = Box::new([0; 2 * PORT_WORDS]);
        for (base, ranges) in [(0, &self.tcp_ports), (PORT_WORDS, &self.udp_ports)] {
            for port in ranges.iter().cloned().flatten() {
                sets[base + usize::from(port) / 64] |= 1 << (port % 64);
            }
        }
        sets
    }
}

/// The enforced protection of one VNIC.
#[derive(Debug)]
pub struct VnicPrograms {
    receive: Program,
    transmit: Program,
    maps: VnicMaps,
    words: [u64; CONFIG_WORDS],
    port_sets: Box<PortSets>,
}

#[derive(Debug)]
struct VnicMaps {
    config: Map,
    ports: Map,
    peers: Map,
    peers6: Map,
    queues: Map,
    uplink: Map,
    receive_counters: Map,
    transmit_counters: Map,
}

fn load(
    name: &'static str,
    code: Result<Vec<Instruction>, super::assembler::AssembleError>,
    buffers: Buffers,
) -> Result<Program, XdpError> {
    let code = code.map_err(|source| XdpError::Assemble { program: name, source })?;
    Program::load(name, &code, buffers)
}

impl VnicMaps {
    fn create() -> Result<Self, XdpError> {
        Ok(Self {
            config: Map::create(CONFIG)?,
            ports: Map::create(PORTS)?,
            peers: Map::create(PEERS)?,
            peers6: Map::create(PEERS6)?,
            queues: Map::create(QUEUES)?,
            uplink: Map::create(UPLINK)?,
            receive_counters: Map::create(RECEIVE_COUNTERS)?,
            transmit_counters: Map::create(TRANSMIT_COUNTERS)?,
        })
    }

    /// The bucket's map is the transmit program's own: nothing else needs it.
    fn load_programs(&self, buffers: Buffers) -> Result<(Program, Program), XdpError> {
        let context = match buffers {
            Buffers::One => Context::KERNEL,
            Buffers::Several => Context::KERNEL_SEVERAL,
        };
        let of = |map: &Map| MapReference::of(map.as_fd());
        let receive = receive::assemble(
            ReceiveMaps {
                config: of(&self.config),
                ports: of(&self.ports),
                peers: of(&self.peers),
                peers6: of(&self.peers6),
                queues: of(&self.queues),
                counters: of(&self.receive_counters),
            },
            context,
        );
        let bucket = Map::create(BUCKET)?;
        let transmit = transmit::assemble(
            TransmitMaps {
                config: of(&self.config),
                ports: of(&self.ports),
                peers: of(&self.peers),
                peers6: of(&self.peers6),
                bucket: of(&bucket),
                uplink: of(&self.uplink),
                counters: of(&self.transmit_counters),
            },
            context,
        );
        Ok((load(receive::NAME, receive, buffers)?, load(transmit::NAME, transmit, buffers)?))
    }
}

impl VnicPrograms {
    /// Installs the rules and attaches both filters, for frames that are in `buffers`. `xsk` is the
    /// application's AF_XDP socket, with its UMEM registered; `queue` the receive queue that it is,
    /// or will be, bound to.
    ///
    /// # Errors
    /// [`XdpError`]; then nothing stays attached.
    pub fn install(
        spec: &VnicSpec,
        application_ifindex: u32,
        peer_ifindex: u32,
        socket: (BorrowedFd<'_>, u32),
        buffers: Buffers,
    ) -> Result<Self, XdpError> {
        Self::install_in(spec, (application_ifindex, None), peer_ifindex, socket, buffers)
    }

    /// The same with the application's end in a namespace of its own.
    ///
    /// # Errors
    /// [`XdpError`]; then nothing stays attached.
    pub fn install_in(
        spec: &VnicSpec,
        (application_ifindex, namespace): (u32, Option<&Namespace>),
        peer_ifindex: u32,
        (xsk, queue): (BorrowedFd<'_>, u32),
        buffers: Buffers,
    ) -> Result<Self, XdpError> {
        let programs = Self::load(spec, application_ifindex, peer_ifindex, queue, buffers)?;
        programs.set_socket(xsk)?;
        netlink::attach(peer_ifindex, programs.transmit.as_fd(), Expect::Nothing)?;
        let attach = || netlink::attach(application_ifindex, programs.receive.as_fd(), Expect::Nothing);
        let attached = match namespace {
            None => attach(),
            Some(namespace) => namespace.enter(attach).unwrap_or_else(|source| {
                let what = "enter its network namespace";
                Err(XdpError::Interface { ifindex: application_ifindex, what, source })
            }),
        };
        if let Err(error) = attached {
            // The first error is the one to report.
            let _ = netlink::detach(peer_ifindex, programs.transmit.as_fd());
            return Err(error);
        }
        Ok(programs)
    }

    /// All of [`VnicPrograms::install`] but the socket and the interfaces.
    pub(super) fn load(
        spec: &VnicSpec,
        application_ifindex: u32,
        peer_ifindex: u32,
        queue: u32,
        buffers: Buffers,
    ) -> Result<Self, XdpError> {
        spec.validate()?;
        if buffers == Buffers::Several && spec.rate.is_some() && spec.burst < MINIMUM_LARGE_BURST {
            return Err(XdpError::Rules(format!(
                "a burst of {} bytes would stop large frames for ever: give {MINIMUM_LARGE_BURST} or more",
                spec.burst
            )));
        }
        if queue >= MAXIMUM_QUEUES {
            return Err(XdpError::Rules(format!("queue {queue} is not below {MAXIMUM_QUEUES}")));
        }
        let maps = VnicMaps::create()?;
        let (receive, transmit) = maps.load_programs(buffers)?;
        let mut words = [0; CONFIG_WORDS];
        words[Word::Magic as usize] = MAGIC;
        words[Word::Enabled as usize] = 1;
        words[Word::ApplicationInterface as usize] = u64::from(application_ifindex);
        words[Word::PeerInterface as usize] = u64::from(peer_ifindex);
        words[Word::Queue as usize] = u64::from(queue);
        let mut programs = Self { receive, transmit, maps, words, port_sets: Box::new([0; 2 * PORT_WORDS]) };
        programs.update(spec)?;
        Ok(programs)
    }

    /// Finds the filters that an earlier process attached to this pair of interfaces. The
    /// application's interface may be in the namespace that this one knows by a number.
    ///
    /// # Errors
    /// [`XdpError::Foreign`] if what is there, if anything, is not Sietch's or not of this version.
    pub fn adopt(
        (application_ifindex, namespace): (u32, Option<i32>),
        peer_ifindex: u32,
    ) -> Result<Self, XdpError> {
        let found = super::attached_program(application_ifindex, namespace, receive::NAME);
        let (receive, receive_info) = found?;
        let (transmit, transmit_info) = super::attached_program(peer_ifindex, None, transmit::NAME)?;
        let ours = |shape| receive.map(&receive_info, application_ifindex, shape);
        let theirs = |shape| transmit.map(&transmit_info, peer_ifindex, shape);
        for shape in [CONFIG, PORTS, PEERS, PEERS6] {
            if ours(shape)?.0 != theirs(shape)?.0 {
                return Err(XdpError::Foreign {
                    ifindex: peer_ifindex,
                    reason: format!(
                        "its filter and that of interface {application_ifindex} belong to different VNICs"
                    ),
                });
            }
        }
        let maps = VnicMaps {
            config: ours(CONFIG)?.1,
            ports: ours(PORTS)?.1,
            peers: ours(PEERS)?.1,
            peers6: ours(PEERS6)?.1,
            queues: ours(QUEUES)?.1,
            uplink: theirs(UPLINK)?.1,
            receive_counters: ours(RECEIVE_COUNTERS)?.1,
            transmit_counters: theirs(TRANSMIT_COUNTERS)?.1,
        };
        let words = read_words(&maps.config)?;
        for (word, expected) in [
            (Word::Magic, MAGIC),
            (Word::ApplicationInterface, u64::from(application_ifindex)),
            (Word::PeerInterface, u64::from(peer_ifindex)),
        ] {
            if words[word as usize] != expected {
                return Err(XdpError::Foreign {
                    ifindex: application_ifindex,
                    reason: format!("its configuration has another {word:?}"),
                });
            }
        }
        let mut port_sets: Box<PortSets> = Box::new([0; 2 * PORT_WORDS]);
        for (index, word) in port_sets.iter_mut().enumerate() {
            let mut value = [0; 8];
            maps.ports.lookup(&(index as u32).to_ne_bytes(), &mut value)?;
            *word = u64::from_ne_bytes(value);
        }
        Ok(Self { receive, transmit, maps, words, port_sets })
    }

    /// Puts another socket on the VNIC's queue.
    ///
    /// # Errors
    /// The kernel's refusal: the fd is no AF_XDP socket, or has no UMEM yet.
    pub(crate) fn set_socket(&self, xsk: BorrowedFd<'_>) -> Result<(), XdpError> {
        // Bounded when it was set.
        let queue = self.words[Word::Queue as usize] as u32;
        self.maps.queues.update(&queue.to_ne_bytes(), &xsk.as_raw_fd().to_ne_bytes())
    }

    /// Makes `spec` the rules. Whether the VNIC is enabled does not change.
    ///
    /// # Errors
    /// [`XdpError::Rules`] before anything changed, or the kernel's refusal in between: call again,
    /// or revoke.
    pub(crate) fn update(&mut self, spec: &VnicSpec) -> Result<(), XdpError> {
        spec.validate()?;
        let (cost, window) = spec.bucket()?;
        for peer in &spec.peers {
            self.maps.peers.update(&peer.key(), &1_u32.to_ne_bytes())?;
        }
        for peer in &spec.peers6 {
            self.maps.peers6.update(&peer.key(), &1_u32.to_ne_bytes())?;
        }
        let wanted = spec.port_sets();
        for (index, (now, new)) in self.port_sets.iter_mut().zip(&*wanted).enumerate() {
            if now != new {
                let key = (index as u32).to_ne_bytes();
                self.maps.ports.update(&key, &new.to_ne_bytes())?;
                *now = *new;
            }
        }
        if let Some(uplink) = spec.uplink {
            let key = 0_u32.to_ne_bytes();
            self.maps.uplink.update(&key, &uplink.to_ne_bytes())?;
        }
        for (word, value) in [
            (Word::Mac, mac_word(spec.mac)),
            (Word::Address, address_word(spec.address)),
            (Word::HostMac, mac_word(spec.host_mac)),
            (Word::PeersRestricted, u64::from(spec.is_restricted())),
            (Word::PeersRestricted6, u64::from(spec.is_restricted6())),
            (Word::Uplink, u64::from(spec.uplink.unwrap_or(0))),
            (Word::CostPerByte, cost),
            (Word::Window, window),
            (Word::Rate, spec.rate.unwrap_or(0)),
            (Word::Burst, spec.burst),
            (Word::Generation, spec.generation),
        ] {
            self.words[word as usize] = value;
        }
        for (word, value) in words6(spec.address6, spec.link_local()) {
            self.words[word as usize] = value;
        }
        self.write_words()?;
        let keys: Vec<_> = spec.peers.iter().map(|peer| peer.key().to_vec()).collect();
        let keys6: Vec<_> = spec.peers6.iter().map(|peer| peer.key().to_vec()).collect();
        for (map, wanted) in [(&self.maps.peers, keys), (&self.maps.peers6, keys6)] {
            for key in map.keys()? {
                if !wanted.contains(&key) {
                    map.delete(&key)?;
                }
            }
        }
        if spec.uplink.is_none() {
            self.maps.uplink.delete(&0_u32.to_ne_bytes())?;
        }
        Ok(())
    }

    /// `false` drops every frame of the VNIC from now on, both ways; `true` applies the rules
    /// again.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_enabled(&mut self, enabled: bool) -> Result<(), XdpError> {
        self.words[Word::Enabled as usize] = u64::from(enabled);
        self.write_words()
    }

    fn write_words(&self) -> Result<(), XdpError> {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.maps.config.update(&0_u32.to_ne_bytes(), &bytes)
    }

    /// Whether frames may pass.
    #[cfg(test)]
    pub(crate) fn is_enabled(&self) -> bool {
        self.words[Word::Enabled as usize] != 0
    }

    /// The grant's generation.
    pub fn generation(&self) -> u64 {
        self.words[Word::Generation as usize]
    }

    /// The VNIC's MAC.
    #[cfg(test)]
    pub(crate) fn mac(&self) -> [u8; 6] {
        word_mac(self.words[Word::Mac as usize])
    }

    /// The VNIC's address.
    #[cfg(test)]
    pub(crate) fn address(&self) -> Ipv4Addr {
        word_address(self.words[Word::Address as usize])
    }

    /// Interface indices of the application's end and the peer's end.
    fn interfaces(&self) -> (u32, u32) {
        // Both were stored from u32.
        (
            self.words[Word::ApplicationInterface as usize] as u32,
            self.words[Word::PeerInterface as usize] as u32,
        )
    }

    /// What the filters counted since they were loaded.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn counters(&self) -> Result<VnicCounters, XdpError> {
        Ok(VnicCounters {
            received: DirectionCounters::read(&self.maps.receive_counters)?,
            transmitted: DirectionCounters::read(&self.maps.transmit_counters)?,
        })
    }

    /// Removes both filters from their interfaces. Interfaces that are deleted are no error.
    ///
    /// An application that still has its socket would send unfiltered after this: delete the veth
    /// instead, or revoke and switch the application's end off first.
    ///
    /// # Errors
    /// A filter was replaced, or the kernel refused.
    pub fn detach(self) -> Result<(), XdpError> {
        let (application, peer) = self.interfaces();
        // The transmit filter last: it is the one that others rely on.
        let received = super::detach_if_there(application, &self.receive);
        let transmitted = super::detach_if_there(peer, &self.transmit);
        received.and(transmitted)
    }

    /// The receive program, to run it over test frames.
    #[cfg(test)]
    pub(crate) fn receive_program(&self) -> &Program {
        &self.receive
    }

    /// The transmit program, to run it over test frames.
    #[cfg(test)]
    pub(crate) fn transmit_program(&self) -> &Program {
        &self.transmit
    }
}

fn read_words(config: &Map) -> Result<[u64; CONFIG_WORDS], XdpError> {
    let mut bytes = [0; CONFIG_WORDS * 8];
    config.lookup(&0_u32.to_ne_bytes(), &mut bytes)?;
    let mut words = [0; CONFIG_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Ok(words)
}
