//! Socket addresses in one form, so that they can be compared.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// A socket address in canonical form: IPv4-mapped addresses as IPv4, and a scope only where the
/// address needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CanonicalName {
    pub ip: IpAddr,
    pub scope: u32,
    pub port: u16,
}

impl CanonicalName {
    pub(super) fn of(name: SocketAddr) -> Self {
        let ip = name.ip().to_canonical();
        let scope = match (name, ip) {
            (SocketAddr::V6(name), IpAddr::V6(ip)) if ip.is_unicast_link_local() => name.scope_id(),
            _ => 0,
        };
        Self { ip, scope, port: name.port() }
    }

    /// Returns the address as a socket of the family shows it.
    pub(super) fn shown(self, six: bool) -> SocketAddr {
        match mapped(six, self.ip) {
            IpAddr::V6(ip) => SocketAddrV6::new(ip, self.port, 0, self.scope).into(),
            ip => SocketAddr::new(ip, self.port),
        }
    }
}

/// Returns the address from which the kernel connects to an address of this host.
pub(super) fn source(to: IpAddr) -> IpAddr {
    match to {
        IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        other => other,
    }
}

/// Returns an address as a socket of the family shows it.
fn mapped(six: bool, ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if six => IpAddr::V6(ip.to_ipv6_mapped()),
        other => other,
    }
}

/// Returns whether an address belongs to every host.
pub(in crate::sockets) fn is_loopback(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip == Ipv6Addr::LOCALHOST,
    }
}
