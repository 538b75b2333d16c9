//! Ports of the host that lead to a listener elsewhere: `sietch run --publish`.
//!
//! 1. `sietch run` writes [`PUBLISH_VARIABLE`]; the library in the program reads it. Each entry is
//!    `ADDRESS:HOST_PORT:PORT`, commas between them.
//! 2. Who listens on PORT makes a kernel's socket that listens on ADDRESS:HOST_PORT, in the family
//!    of its own socket ([`Published::in_family`]), and sends it with
//!    [`super::RequestKind::Listen`]. So whoever publishes a port may have it, as the kernel says.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The variable with the ports to be published.
pub const PUBLISH_VARIABLE: &str = "SIETCH_PUBLISH";
/// Ports that one program may publish: each is a few words of every process, and nobody counts as
/// many by hand.
pub const MOST_PUBLISHED: usize = 32;
/// Of these, those that lead to one port: they travel beside the listener's own descriptor.
pub const MOST_PUBLISHED_OF_PORT: usize = super::MOST_DESCRIPTORS - 1;

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

    /// The host's name for a socket of IPv6 or IPv4: a program is given connections of the family
    /// in which it listens. IPv4 addresses are mapped for a socket of both, and `::` is `0.0.0.0`
    /// for IPv4 alone. None: such a socket cannot have it.
    pub fn in_family(&self, six: bool, only_six: bool) -> Option<SocketAddr> {
        let ip = match self.host.ip() {
            IpAddr::V4(ip) if six => IpAddr::V6((!only_six).then_some(ip)?.to_ipv6_mapped()),
            IpAddr::V6(ip) if !six => match ip.to_ipv4_mapped() {
                Some(ip) => IpAddr::V4(ip),
                None => IpAddr::V4((ip == Ipv6Addr::UNSPECIFIED).then_some(Ipv4Addr::UNSPECIFIED)?),
            },
            ip => ip,
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
        let of = |text: &str, six, only_six| {
            Published::parse(text).expect("it is one").in_family(six, only_six).map(|name| name.to_string())
        };
        let (four, six, mapped) = ("127.0.0.1:80:1", "[::1]:80:1", "[::ffff:127.0.0.1]:80");
        assert_eq!(of(four, false, false).as_deref(), Some("127.0.0.1:80"));
        assert_eq!(of(four, true, false).as_deref(), Some(mapped));
        assert_eq!(of(four, true, true), None);
        assert_eq!(of(six, true, true).as_deref(), Some("[::1]:80"));
        assert_eq!(of(six, false, false), None);
        assert_eq!(of("[::]:80:1", false, false).as_deref(), Some("0.0.0.0:80"));
        assert_eq!(of("[::]:80:1", true, false).as_deref(), Some("[::]:80"));
        assert_eq!(of("[::ffff:127.0.0.1]:80:1", false, false).as_deref(), Some("127.0.0.1:80"));
    }
}
