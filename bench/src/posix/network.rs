//! Where servers run, and how the bench checks that they listen.
//!
//! 1. On the loopback, which all programs share.
//! 2. Behind a veth pair, in a network namespace of the kernel's servers ([`Behind`]). The link is
//!    of the same kind as that of a VNIC; the client is at the host's end.
//! 3. On a VNIC over AF_XDP, whose other end is also the host.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use super::program::words;
use super::sietch;
use super::variants::Location;
use crate::error::Error;
use crate::process::Namespace;

/// Both ends of the kernel's veth pair.
const FAR: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 2);
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 1);

/// How long a VNIC may take to refuse a connection to a port without a listener.
const REFUSAL: Duration = Duration::from_millis(200);

/// The address of servers.
pub(super) fn host(place: Location) -> Ipv4Addr {
    match place {
        Location::Loopback => Ipv4Addr::LOCALHOST,
        Location::Veth => FAR,
        Location::Vnic => sietch::ADDRESS,
    }
}

/// The network namespace of the kernel's servers. Dropping it removes the namespace.
#[derive(Debug)]
pub(super) struct Behind(Namespace);

impl Behind {
    /// Creates the namespace.
    pub(super) fn create() -> Result<Self, Error> {
        Namespace::create(&FAR.to_string(), &NEAR.to_string()).map(Self)
    }

    /// A command that runs in the namespace.
    pub(super) fn enter(&self, command: Vec<OsString>) -> Vec<OsString> {
        [words(&["ip", "netns", "exec", self.0.name()]), command].concat()
    }
}

/// Whether a socket listens there. A kernel socket is looked up in the tables of the namespace of
/// process `pid`: a probe would connect, and iperf3 takes every connection for a client. A listener
/// on a VNIC is in no table of the kernel, so it is probed.
pub(super) fn is_listening(place: Location, pid: u32, address: SocketAddr) -> bool {
    if place == Location::Vnic {
        return TcpStream::connect_timeout(&address, REFUSAL).is_ok();
    }
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    listens(&text, u32::from_le_bytes(host(place).octets()), address.port())
}

/// Whether a table like `/proc/net/tcp` has a listener at an address, given as the word in memory.
fn listens(table: &str, host: u32, port: u16) -> bool {
    // State 0A is LISTEN.
    let address = format!("{host:08X}:{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next() == Some(&address) && fields.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_its_own_address() {
        let table = "  sl  local_address rem_address   st\n   0: 0200540A:1C84 00000000:0000 0A 00000000\n";
        let far = u32::from_le_bytes(FAR.octets());
        assert!(listens(table, far, 7300));
        assert!(!listens(table, far, 7301));
        assert!(!listens(table, u32::from_le_bytes(NEAR.octets()), 7300));
        assert!(!listens(&table.replace(" 0A ", " 01 "), far, 7300));
    }
}
