//! Ports of the host that lead to a listener elsewhere: `sietch run --publish`.
//!
//! 1. `sietch run` writes [`PUBLISH_VARIABLE`]; the library in the program reads it. Each entry is
//!    `ADDRESS:HOST_PORT:PORT`, commas between them.
//! 2. A program that listens on PORT creates a kernel socket that listens on ADDRESS:HOST_PORT, in
//!    the family of its own socket ([`Published::in_family`]). It sends that socket with
//!    [`super::RequestKind::Listen`]. So the kernel decides whether a program may publish a port.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The variable with the ports to be published.
pub const PUBLISH_VARIABLE: &str = "SIETCH_PUBLISH";
/// Ports that one program may publish. Each takes a few words of every process, and no user lists
/// this many by hand.
pub const MAX_PUBLISHED: usize = 32;
/// Of these, those that lead to one port: they travel beside the listener's own descriptor.
pub const MAX_PUBLISHED_PER_PORT: usize = super::MAX_DESCRIPTORS - 1;

/// Which addresses a listening socket accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketFamily {
    /// An `AF_INET` socket.
    Ipv4,
    /// An `AF_INET6` socket with `IPV6_V6ONLY`.
    Ipv6Only,
    /// An `AF_INET6` socket that accepts IPv4 as well.
    DualStack,
}

/// A port of the host, and where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Where the host answers.
    pub host: SocketAddr,
    /// The program's own port.
    pub port: u16,
}

impl Published {
    /// Of a text as [`fmt::Display`] writes it. Allocates nothing.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let (host, port) = (host.parse::<SocketAddr>().ok()?, port.parse().ok()?);
        (host.port() != 0 && port != 0).then_some(Self { host, port })
    }

    /// The host's address in the form that a listening socket of `family` can bind. A program gets
    /// connections of the family in which it listens. So a dual-stack socket binds an IPv4 address
    /// in its IPv4-mapped form, and an IPv4 socket binds `0.0.0.0` for `::`. `None`: a socket of
    /// that family cannot bind the address.
    pub fn in_family(&self, family: SocketFamily) -> Option<SocketAddr> {
        let ip = match (self.host.ip(), family) {
            (IpAddr::V4(ip), SocketFamily::DualStack) => IpAddr::V6(ip.to_ipv6_mapped()),
            (IpAddr::V4(_), SocketFamily::Ipv6Only) => return None,
            (IpAddr::V6(ip), SocketFamily::Ipv4) => match ip.to_ipv4_mapped() {
                Some(ip) => IpAddr::V4(ip),
                None => IpAddr::V4((ip == Ipv6Addr::UNSPECIFIED).then_some(Ipv4Addr::UNSPECIFIED)?),
            },
            (ip, _) => ip,
        };
        Some(SocketAddr::new(ip, self.host.port()))
    }
}

impl fmt::Display for Published {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_port_is_read_as_it_is_written() {
        for text in ["127.0.0.1:80:8080", "[::1]:80:8080", "0.0.0.0:1:65535"] {
            assert_eq!(Published::parse(text).map(|found| found.to_string()).as_deref(), Some(text));
        }
        for wrong in
            ["", "80", "80:80", "127.0.0.1:0:80", "127.0.0.1:80:0", "::1:80:80", "a:1:2", "127.0.0.1:80:"]
        {
            assert_eq!(Published::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_program_is_given_connections_of_its_own_family() {
        use SocketFamily::{DualStack, Ipv4, Ipv6Only};
        let of = |text: &str, family| {
            let published = Published::parse(text).expect("a published port");
            published.in_family(family).map(|address| address.to_string())
        };
        let (four, six, mapped) = ("127.0.0.1:80:1", "[::1]:80:1", "[::ffff:127.0.0.1]:80");
        assert_eq!(of(four, Ipv4).as_deref(), Some("127.0.0.1:80"));
        assert_eq!(of(four, DualStack).as_deref(), Some(mapped));
        assert_eq!(of(four, Ipv6Only), None);
        assert_eq!(of(six, Ipv6Only).as_deref(), Some("[::1]:80"));
        assert_eq!(of(six, Ipv4), None);
        assert_eq!(of("[::]:80:1", Ipv4).as_deref(), Some("0.0.0.0:80"));
        assert_eq!(of("[::]:80:1", DualStack).as_deref(), Some("[::]:80"));
        assert_eq!(of("[::ffff:127.0.0.1]:80:1", Ipv4).as_deref(), Some("127.0.0.1:80"));
    }
}
