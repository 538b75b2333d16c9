//! `[[vnic]] kind = "switch"`: a VNIC of shared memory whose other end is the software switch.
//!
//! 1. It has the ports, peers and rate of any VNIC; the switch, on a service core, enforces them
//!    after the ring.
//! 2. Ports of the switch are one network segment: no two share an address or a MAC.

use sietch_nic::shm;
use sietch_protocol::types::{Mac, Network, Network6, PortRange, Rate};
use toml::Spanned;

use super::addresses::{by_family, is_granted6};
use super::error::ConfigurationError;
use super::limits::{MAX_PEERS, MAX_PORT_RANGES, USUAL_PORT_MTU};
use super::rules::{Rules, derived_mac, is_host};
use super::vnics::VnicText;

/// The user that the service core runs as when the daemon is root: outside what distributions give
/// out, and without a login.
pub(super) const SERVICE_UID: u32 = 61871;

/// A VNIC of the switch that one user may have.
#[derive(Debug, Clone, PartialEq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// The user.
    pub uid: u32,
    /// Its address and network.
    pub address: Network,
    /// Its IPv6 address and network.
    pub address6: Option<Network6>,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Local TCP ports.
    pub tcp_ports: Vec<PortRange>,
    /// Local UDP ports.
    pub udp_ports: Vec<PortRange>,
    /// Networks of IPv4 it may talk to.
    pub peers: Vec<Network>,
    /// Networks of IPv6 it may talk to. None beside a network of no bits in `peers`: every address.
    pub peers6: Vec<Network6>,
    /// What it may send.
    pub rate: Option<Rate>,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// Frames in flight each way.
    pub slots: u32,
    /// Bytes for frames in flight each way.
    pub data: u32,
}

impl Rules<'_> {
    /// Checks one VNIC of the switch. `taken` are the names of VNICs so far.
    pub(super) fn port(
        &self,
        text: VnicText,
        machine: &str,
        others: &[Port],
        taken: &[String],
    ) -> Result<Port, ConfigurationError> {
        let name = self.name("VNIC", &text.name, taken.contains(text.name.get_ref()))?;
        let (what, at) = (format!("VNIC {name}"), text.name.span().start);
        let refuse = |cause: String, fix: &str| Err(self.refuse(at, what.clone(), cause, fix));
        let address = *text.address.get_ref();
        if text.host_address.is_some() || text.host_address6.is_some() {
            let fix = "remove host_address and host_address6";
            return refuse("the host is not on the switch".to_owned(), fix);
        }
        if text.served {
            let cause = "served is for VNICs whose other end is the host".to_owned();
            return refuse(cause, "remove it, or remove `kind`");
        }
        let address6 = text.address6.map(Spanned::into_inner);
        if !is_host(address.address.into()) || address6.is_some_and(|six| !is_granted6(six.address)) {
            return refuse("its address is no address of a host".to_owned(), "give it a unicast address");
        }
        if text.tcp_ports.len().max(text.udp_ports.len()) > MAX_PORT_RANGES || text.peers.len() > MAX_PEERS {
            let cause = format!("more than {MAX_PORT_RANGES} ranges of ports or {MAX_PEERS} peers");
            return refuse(cause, "join neighbouring ones");
        }
        if text.peers.is_empty() {
            let cause = "peers is empty, so it could reach no address".to_owned();
            return refuse(cause, "omit it to permit every address");
        }
        let mac = match text.mac {
            Some(mac) if !mac.get_ref().is_unicast() => {
                let cause = format!("{} is no address of one station", mac.get_ref());
                return refuse(cause, "make the first byte even, or leave mac out");
            }
            Some(mac) => mac.into_inner(),
            None => derived_mac(machine, &name, "vnic"),
        };
        let collides = |other: &&Port| {
            other.address.address == address.address
                || other.mac == mac
                || address6.is_some_and(|six| other.address6.is_some_and(|its| its.address == six.address))
        };
        if let Some(other) = others.iter().find(collides) {
            let cause = format!("VNIC {} has one of its addresses too", other.name);
            return refuse(cause, "give each VNIC its own addresses");
        }
        let uid = self.uid(&what, &text.uid)?;
        let (mtu, shm::LinkLayout { slots, data }) =
            self.shape(at, &what, text.mtu, USUAL_PORT_MTU, text.memory, address6.is_some())?;
        let (peers, peers6) = by_family(&text.peers);
        Ok(Port {
            name,
            uid,
            address,
            address6,
            mac,
            tcp_ports: text.tcp_ports,
            udp_ports: text.udp_ports,
            peers,
            peers6,
            rate: text.rate,
            mtu,
            slots,
            data,
        })
    }
}
