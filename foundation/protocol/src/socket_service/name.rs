//! Socket names as they travel: a raw `sockaddr_in` or `sockaddr_in6` and its length.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `AF_INET` and `AF_INET6` of Linux.
const IPV4: u16 = 2;
const IPV6: u16 = 10;
/// Bytes of a `sockaddr_in` and of a `sockaddr_in6`.
const IPV4_BYTES: u32 = 16;
const IPV6_BYTES: u32 = 28;

/// A socket name: `bytes[..length]` is what the kernel would put into a `sockaddr`. Length 0: none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Name {
    /// The raw `sockaddr`.
    pub bytes: [u8; 28],
    /// How much of it counts: 0, 16 or 28.
    pub length: u32,
}

const _: () = assert!(size_of::<Name>() == 32);

impl Name {
    /// No name.
    pub const NONE: Self = Self { bytes: [0; 28], length: 0 };

    /// Whether this is no name, an IPv4 or an IPv6 one.
    pub(crate) fn is_valid(&self) -> bool {
        self.length == 0 || self.address().is_some()
    }

    /// The address, if it is one.
    pub fn address(&self) -> Option<SocketAddr> {
        let bytes = &self.bytes;
        let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        match (family, self.length) {
            (IPV4, IPV4_BYTES) => {
                let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
                Some(SocketAddr::V4(SocketAddrV4::new(ip, port)))
            }
            (IPV6, IPV6_BYTES) => {
                let flow = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
                let mut ip = [0; 16];
                ip.copy_from_slice(&bytes[8..24]);
                let scope = u32::from_ne_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
                Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope)))
            }
            _ => None,
        }
    }

    /// The address with an IPv4-mapped one as the IPv4 address that it stands for.
    pub fn canonical(&self) -> Option<(IpAddr, u16)> {
        self.address().map(|address| (address.ip().to_canonical(), address.port()))
    }
}

impl From<SocketAddr> for Name {
    fn from(address: SocketAddr) -> Self {
        let mut bytes = [0; 28];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, length) = match address {
            SocketAddr::V4(address) => {
                bytes[4..8].copy_from_slice(&address.ip().octets());
                (IPV4, IPV4_BYTES)
            }
            SocketAddr::V6(address) => {
                bytes[4..8].copy_from_slice(&address.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&address.ip().octets());
                bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
                (IPV6, IPV6_BYTES)
            }
        };
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        Self { bytes, length }
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.address() {
            Some(address) => write!(formatter, "{address}"),
            None => formatter.write_str("-"),
        }
    }
}
