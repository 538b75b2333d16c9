//! The maps that programs and daemon share: names, shapes and words. `docs/spec/xdp.md` draws them.
//!
//! All words are in host order unless they hold bytes of a frame. A MAC or an IPv4 address is
//! stored as the number that a load of its bytes from the frame gives. So programs compare without
//! swapping.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::kernel::{MapKind, MapShape, NO_PREALLOCATION, READ_ONLY_TO_PROGRAMS};

/// First word of every configuration: "SIETCHX" and the version of this layout.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"SIETCHX\x03");

/// Words of a VNIC's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Word {
    /// [`MAGIC`].
    Magic,
    /// 0: drop everything, both ways. 1: rules apply.
    Enabled,
    /// The VNIC's MAC: six bytes as in a frame, then two zero bytes.
    Mac,
    /// The VNIC's address: four bytes as in a frame, then four zero bytes.
    Address,
    /// The MAC of the host's end, laid out as [`Word::Mac`].
    HostMac,
    /// 1: IPv4 addresses of the other side must match the peer list. 0: any will do.
    PeersRestricted,
    /// Interface index of the uplink, 0: frames go to the host.
    Uplink,
    /// Cost of a byte: units of 2^-22 ns. 0: no limit.
    CostPerByte,
    /// How far the bucket may run ahead of the clock: units of 2^-6 ns.
    Window,
    /// The rate as given, bytes a second.
    Rate,
    /// The burst as given, bytes.
    Burst,
    /// The grant's generation.
    Generation,
    /// Interface index of the application's end.
    ApplicationInterface,
    /// Interface index of the peer's end.
    PeerInterface,
    /// The receive queue of the application's end.
    Queue,
    /// First half of the VNIC's IPv6 address, bytes as in a frame. 0: no IPv6.
    Address6High,
    /// Its second half.
    Address6Low,
    /// Second half of the link-local address.
    LinkLocal,
    /// Second half of the group in which the address is solicited.
    Solicited,
    /// The same for the link-local address.
    SolicitedLinkLocal,
    /// 1: IPv6 addresses of the other side must match their peer list. 0: any will do.
    PeersRestricted6,
}

/// Words in a configuration.
pub(crate) const CONFIG_WORDS: usize = Word::PeersRestricted6 as usize + 1;
const _: () = assert!(CONFIG_WORDS == 21);

impl Word {
    /// Offset in bytes, as an instruction encodes it.
    pub(super) const fn offset(self) -> i16 {
        self as i16 * 8
    }
}

/// The token bucket counts in 2^-6 ns: 64-bit time then lasts nine years of uptime.
pub(crate) const TIME_SHIFT: i32 = 6;
/// The cost of a byte has 16 more fractional bits, so that 10 GB/s is met within 0.01 %.
pub(crate) const COST_SHIFT: i32 = 16;

/// Bits of one protocol's port set, and words that hold them.
pub(crate) const PORT_WORDS: usize = 65_536 / 64;
/// Prefixes in a peer list. A tenant's list is written by hand; each costs about 100 bytes of
/// kernel memory.
pub(crate) const MAXIMUM_PEERS: u32 = 1_024;
/// Receive queues an application's end may have. The daemon makes veths of one queue.
pub(crate) const MAXIMUM_QUEUES: u32 = 64;
/// VNICs behind one uplink.
pub(crate) const MAXIMUM_VNICS: u32 = 1_024;
/// Rows of a counter map; greater than any program uses, so that a new reason does not change the
/// shape.
pub(crate) const COUNTER_ROWS: u32 = 32;

const fn array(name: &'static str, value: u32, entries: u32, flags: u32) -> MapShape {
    MapShape { name, kind: MapKind::Array, key: 4, value, entries, flags }
}

const fn counters(name: &'static str) -> MapShape {
    MapShape { name, kind: MapKind::PerCpuArray, key: 4, value: 16, entries: COUNTER_ROWS, flags: 0 }
}

/// One row of [`Word`]s; one map for both programs of a VNIC.
pub(super) const CONFIG: MapShape = array("sietch_config", CONFIG_WORDS as u32 * 8, 1, READ_ONLY_TO_PROGRAMS);
/// Bit sets: 1,024 words of TCP ports, then 1,024 of UDP ports.
pub(super) const PORTS: MapShape = array("sietch_ports", 8, 2 * PORT_WORDS as u32, READ_ONLY_TO_PROGRAMS);
/// Prefix length (host order) and address (as in a frame) to nothing in particular.
pub(crate) const PEERS: MapShape = MapShape {
    name: "sietch_peers",
    kind: MapKind::PrefixTrie,
    key: 8,
    value: 4,
    // A list is replaced by adding the new prefixes before the old ones go.
    entries: 2 * MAXIMUM_PEERS,
    flags: NO_PREALLOCATION | READ_ONLY_TO_PROGRAMS,
};
/// The same for IPv6: prefix length (host order) and address to nothing in particular.
pub(crate) const PEERS6: MapShape = MapShape { name: "sietch_peers6", key: 20, ..PEERS };
/// One word: the time at which the bucket is full again.
pub(crate) const BUCKET: MapShape = array("sietch_bucket", 8, 1, 0);
/// Queue to AF_XDP socket.
pub(crate) const QUEUES: MapShape = MapShape {
    name: "sietch_queues",
    kind: MapKind::Sockets,
    key: 4,
    value: 4,
    entries: MAXIMUM_QUEUES,
    flags: 0,
};
/// The one uplink.
pub(super) const UPLINK: MapShape =
    MapShape { name: "sietch_uplink", kind: MapKind::Devices, key: 4, value: 4, entries: 1, flags: 0 };
/// What the receive program did: frames and bytes a row.
pub(crate) const RECEIVE_COUNTERS: MapShape = counters("sietch_rx_count");
/// What the transmit program did: frames and bytes a row.
pub(crate) const TRANSMIT_COUNTERS: MapShape = counters("sietch_tx_count");

/// One row: [`MAGIC`] and the uplink's interface index.
pub(crate) const UPLINK_CONFIG: MapShape = array("sietch_up_conf", 16, 1, READ_ONLY_TO_PROGRAMS);
/// Address (as in a frame) to MAC (as [`Word::Mac`]).
pub(crate) const VNICS: MapShape = MapShape {
    name: "sietch_vnics",
    kind: MapKind::Hash,
    key: 4,
    value: 8,
    entries: MAXIMUM_VNICS,
    flags: READ_ONLY_TO_PROGRAMS,
};
/// IPv6 address to MAC (as [`Word::Mac`]) and the VNIC's IPv4 address (as in a frame): the key of
/// its device.
pub(crate) const VNICS6: MapShape = MapShape { name: "sietch_vnics6", key: 16, value: 16, ..VNICS };
/// Address (as in a frame) to the peer's end of the VNIC.
pub(crate) const VNIC_DEVICES: MapShape = MapShape {
    name: "sietch_vnic_if",
    kind: MapKind::DeviceHash,
    key: 4,
    value: 4,
    entries: MAXIMUM_VNICS,
    flags: 0,
};
/// What the uplink's program did: frames and bytes a row.
pub(crate) const UPLINK_COUNTERS: MapShape = counters("sietch_up_count");

/// A MAC as the number that programs compare: six bytes as in a frame, then two zero bytes.
pub(crate) const fn mac_word(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_ne_bytes([a, b, c, d, e, f, 0, 0])
}

/// The inverse of [`mac_word`].
pub(crate) const fn word_mac(word: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, _, _] = word.to_ne_bytes();
    [a, b, c, d, e, f]
}

/// An address as the number that programs compare.
pub(crate) const fn address_word(address: Ipv4Addr) -> u64 {
    u32::from_ne_bytes(address.octets()) as u64
}

/// Eight bytes of a frame as the number that a load of them gives.
pub(super) const fn word_of(bytes: [u8; 8]) -> u64 {
    u64::from_ne_bytes(bytes)
}

/// The words of a VNIC's IPv6: both halves of `address`; the second of its link-local address; the
/// second halves of the groups in which the two are solicited. Zeroes without one.
pub(crate) fn words6(address: Option<Ipv6Addr>, link_local: Ipv6Addr) -> [(Word, u64); 5] {
    let half = |address: Ipv6Addr, from: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&address.octets()[from..from + 8]);
        word_of(bytes)
    };
    let solicited = |address: Ipv6Addr| {
        let [.., a, b, c] = address.octets();
        word_of([0, 0, 0, 1, 0xff, a, b, c])
    };
    let (own, local) = (address, address.map(|_| link_local));
    [
        (Word::Address6High, own.map_or(0, |own| half(own, 0))),
        (Word::Address6Low, own.map_or(0, |own| half(own, 8))),
        (Word::LinkLocal, local.map_or(0, |local| half(local, 8))),
        (Word::Solicited, own.map_or(0, solicited)),
        (Word::SolicitedLinkLocal, local.map_or(0, solicited)),
    ]
}

/// The inverse of [`address_word`].
#[cfg(test)]
pub(crate) const fn word_address(word: u64) -> Ipv4Addr {
    let [a, b, c, d] = (word as u32).to_ne_bytes();
    Ipv4Addr::new(a, b, c, d)
}
