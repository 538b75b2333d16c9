//! The headers that all frames between two ends have in common, ready to be copied: one cache line
//! that only sending touches.
//!
//! ```text
//!  IPv4  0          14     34      38
//!        | Ethernet | IPv4 | ports |
//!
//!  IPv6  0          14     54      58      60     62     64
//!        | Ethernet | IPv6 | ports | facts |     sums     |
//! ```
//!
//! 1. [`Template::new`] writes everything but the lengths and the checksums, and sums up once what
//!    never changes.
//! 2. [`Template::write`] copies it to a frame, sets the length, and completes the IPv4 header's
//!    checksum with it: no header is summed on the way out.
//! 3. The addresses and ports of a flow live here and nowhere else: [`Template::remote`] and its
//!    like read them back.

use super::{Address, AddressIndex, checksum, ethernet, ipv4, ipv6};

/// Bytes of link header, the longer of the network headers, and ports.
const BYTES: usize = ethernet::HEADER + ipv6::HEADER + 4;
const V4_END: usize = ethernet::HEADER + ipv4::HEADER;
const V6_END: usize = ethernet::HEADER + ipv6::HEADER;

/// Bytes of the network header of packets to `remote`.
pub(crate) const fn network_header(remote: &Address) -> usize {
    if remote.is_v4() { ipv4::HEADER } else { ipv6::HEADER }
}

/// Both ends of a path: what a template is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Our link address.
    pub mac: [u8; 6],
    /// The next hop's link address.
    pub next_hop: [u8; 6],
    /// Our address.
    pub local: Address,
    /// The peer's address, of the same family.
    pub remote: Address,
    /// Our port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
}

/// Headers to be copied.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Template {
    bytes: [u8; BYTES],
    /// Which of our addresses is the source: an index of the caller's.
    pub(crate) local_index: AddressIndex,
    /// Bytes before the transport header.
    network_end: u8,
    /// The sum of the pseudo-header without its length, folded.
    pseudo: u16,
    /// The sum of the IPv4 header without its length, folded.
    header: u16,
}

const _: () = assert!(size_of::<Template>() == 64);

impl Default for Template {
    fn default() -> Self {
        Self {
            bytes: [0; BYTES],
            local_index: AddressIndex::V4,
            network_end: V4_END as u8,
            pseudo: 0,
            header: 0,
        }
    }
}

impl Template {
    /// The headers of packets of `protocol` along `path`.
    pub fn new(path: &Path, protocol: u8) -> Self {
        let mut template = Self::default();
        let bytes = &mut template.bytes;
        let v4 = path.local.v4_bytes().zip(path.remote.v4_bytes());
        let ethertype = if v4.is_some() { ethernet::IPV4 } else { ethernet::IPV6 };
        let link = ethernet::Header { destination: path.next_hop, source: path.mac, ethertype };
        let (first, rest) = bytes.split_at_mut(ethernet::HEADER);
        if let Some(first) = first.first_chunk_mut() {
            link.emit(first);
        }
        let end = if v4.is_some() {
            if let Some(header) = rest.first_chunk_mut() {
                ipv4::emit(header, path.local.low(), path.remote.low(), protocol, 0);
                header[2..4].fill(0);
                header[10..12].fill(0);
                template.header = checksum::fold(checksum::sum(header));
            }
            V4_END
        } else {
            if let Some(header) = rest.first_chunk_mut() {
                ipv6::emit(header, &path.local, &path.remote, protocol, ipv6::HOP_LIMIT, 0);
            }
            V6_END
        };
        template.network_end = end as u8;
        template.pseudo = checksum::fold(checksum::pseudo_header(&path.local, &path.remote, protocol, 0));
        template.bytes[end..end + 2].copy_from_slice(&path.local_port.to_be_bytes());
        template.bytes[end + 2..end + 4].copy_from_slice(&path.remote_port.to_be_bytes());
        template
    }

    /// Whether it is for IPv6.
    #[inline]
    pub(crate) const fn is_v6(&self) -> bool {
        self.network_end as usize == V6_END
    }

    /// Bytes before the transport header: 34 or 54.
    #[inline]
    pub(crate) const fn network_end(&self) -> usize {
        self.network_end as usize
    }

    /// Writes link and network headers and the ports for a transport header and payload of `length`
    /// bytes together. The transport's checksum starts with the sum that it returns.
    ///
    /// # Panics
    /// If `out` is shorter than that.
    #[inline]
    pub fn write(&self, out: &mut [u8], length: usize) -> u64 {
        let short = length as u16;
        if self.is_v6() {
            let out = out.first_chunk_mut::<BYTES>().expect("the caller sized the frame");
            *out = self.bytes;
            out[18..20].copy_from_slice(&short.to_be_bytes());
        } else {
            let from = self.bytes.first_chunk::<{ V4_END + 4 }>().expect("it is longer");
            let out = out.first_chunk_mut::<{ V4_END + 4 }>().expect("the caller sized the frame");
            *out = *from;
            let total = ((length + ipv4::HEADER) as u16).to_be_bytes();
            out[16..18].copy_from_slice(&total);
            let check = checksum::finish(u64::from(self.header) + u64::from(u16::from_ne_bytes(total)));
            out[24..26].copy_from_slice(&check);
        }
        u64::from(self.pseudo) + u64::from(u16::from_ne_bytes(short.to_be_bytes()))
    }

    /// Sets ECT(0) in the packet that was written to `out` (RFC 3168 section 5): routers may mark
    /// it.
    #[cold]
    pub(crate) fn set_ect0(&self, out: &mut [u8]) {
        if self.is_v6() {
            out[15] |= 0x20;
            return;
        }
        out[15] |= 2;
        // The sum has grown by two (RFC 1624).
        let sum = u32::from(!u16::from_be_bytes([out[24], out[25]])) + 2;
        let check = !((sum & 0xffff) + (sum >> 16)) as u16;
        out[24..26].copy_from_slice(&check.to_be_bytes());
    }

    /// Sets the upper six bits of the traffic class.
    pub fn set_traffic_class(&mut self, class: u8) {
        if self.is_v6() {
            self.bytes[14] = self.bytes[14] & 0xf0 | class >> 4;
            self.bytes[15] = self.bytes[15] & 0x0f | class << 4;
        } else {
            self.bytes[15] = class;
            self.sum_header();
        }
    }

    /// Sets the hop limit, or time to live.
    pub fn set_hop_limit(&mut self, hops: u8) {
        if self.is_v6() {
            self.bytes[21] = hops;
        } else {
            self.bytes[22] = hops;
            self.sum_header();
        }
    }

    /// Sums the IPv4 header up again; its length and checksum are zero here.
    fn sum_header(&mut self) {
        self.header = checksum::fold(checksum::sum(&self.bytes[ethernet::HEADER..V4_END]));
    }

    /// The peer's address.
    pub fn remote(&self) -> Address {
        self.address(30, 38)
    }

    /// Our address.
    pub fn local(&self) -> Address {
        self.address(26, 22)
    }

    fn address(&self, v4_at: usize, v6_at: usize) -> Address {
        if self.is_v6() {
            self.bytes[v6_at..].first_chunk().copied().map_or(Address::UNSPECIFIED, Address::from_octets)
        } else {
            let bytes = self.bytes[v4_at..].first_chunk().copied().unwrap_or_default();
            Address::v4(u32::from_be_bytes(bytes))
        }
    }

    /// Our port.
    pub fn local_port(&self) -> u16 {
        let end = self.network_end();
        u16::from_be_bytes([self.bytes[end], self.bytes[end + 1]])
    }

    /// The peer's port.
    pub fn remote_port(&self) -> u16 {
        let end = self.network_end();
        u16::from_be_bytes([self.bytes[end + 2], self.bytes[end + 3]])
    }

    /// The next hop's link address.
    pub fn next_hop(&self) -> [u8; 6] {
        self.bytes.first_chunk().copied().unwrap_or_default()
    }

    /// Sends to another next hop from now on.
    pub(crate) fn set_next_hop(&mut self, mac: [u8; 6]) {
        self.bytes[..6].copy_from_slice(&mac);
    }

    /// What it was made of.
    pub fn path(&self) -> Path {
        let mac = self.bytes[6..].first_chunk().copied().unwrap_or_default();
        Path {
            mac,
            next_hop: self.next_hop(),
            local: self.local(),
            remote: self.remote(),
            local_port: self.local_port(),
            remote_port: self.remote_port(),
        }
    }
}
