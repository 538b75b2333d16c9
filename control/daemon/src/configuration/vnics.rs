//! `[[vnic]]`: a VNIC whose other end is the host, behind a veth pair.
//!
//! 1. The VNIC and the host have one address each, of one network. `address6` and `host_address6`
//!    come together, for the same reason.
//! 2. The text type is shared with the ports of the switch ([`super::ports`]), which have other
//!    rules.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Deserialize;
use sietch_protocol::types::{Mac, Network, Network6, PortRange, Rate, Size};
use toml::Spanned;

use super::addresses::{Peer, all_peers, by_family, is_granted6};
use super::error::ConfigurationError;
use super::limits::{MAX_MTU, MAX_PEERS, MAX_PORT_RANGES, MIN_MTU, MIN_MTU6, USUAL_VNIC_MTU};
use super::rules::{Rules, User, derived_mac};

/// A VNIC that one user may have.
#[derive(Debug, Clone, PartialEq)]
pub struct Vnic {
    /// Its name.
    pub name: String,
    /// The user.
    pub uid: u32,
    /// Its address and network.
    pub address: Network,
    /// The host's address on its veth pair.
    pub host_address: Ipv4Addr,
    /// Its IPv6 address and network, and the host's address in it.
    pub ipv6: Option<(Network6, Ipv6Addr)>,
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
    /// Whether the service core has it, for programs of the user that link no engine.
    pub served: bool,
}

/// The kinds that a `[[vnic]]` may have.
#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum KindText {
    #[default]
    Veth,
    Switch,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VnicText {
    pub(super) name: Spanned<String>,
    pub(super) uid: Spanned<User>,
    #[serde(default)]
    pub(super) kind: KindText,
    pub(super) address: Spanned<Network>,
    pub(super) address6: Option<Spanned<Network6>>,
    pub(super) host_address: Option<Ipv4Addr>,
    pub(super) host_address6: Option<Ipv6Addr>,
    pub(super) mac: Option<Spanned<Mac>>,
    #[serde(default)]
    pub(super) tcp_ports: Vec<PortRange>,
    #[serde(default)]
    pub(super) udp_ports: Vec<PortRange>,
    #[serde(default = "all_peers")]
    pub(super) peers: Vec<Peer>,
    pub(super) rate: Option<Rate>,
    pub(super) mtu: Option<Spanned<u32>>,
    pub(super) memory: Option<Spanned<Size>>,
    #[serde(default)]
    pub(super) served: bool,
}

impl Rules<'_> {
    /// Checks one VNIC. `others` are the VNICs so far.
    pub(super) fn vnic(
        &self,
        vnic: VnicText,
        machine: &str,
        others: &[Vnic],
    ) -> Result<Vnic, ConfigurationError> {
        let taken = others.iter().any(|other| other.name == *vnic.name.get_ref());
        let name = self.name("VNIC", &vnic.name, taken)?;
        let what = format!("VNIC {name}");
        let at = vnic.name.span().start;
        let refuse = |cause: String, fix: &str| Err(self.refuse(at, what.clone(), cause, fix));
        let address = *vnic.address.get_ref();
        let Some(host) = vnic.host_address else {
            return refuse("it has no host_address".to_owned(), "give the host an address of its network");
        };
        if vnic.memory.is_some() {
            let cause = "memory is for VNICs of the switch".to_owned();
            return refuse(cause, "remove it, or write `kind = \"switch\"`");
        }
        let mtu = vnic.mtu.as_ref().map_or(USUAL_VNIC_MTU, |mtu| *mtu.get_ref());
        let usable = |ip: Ipv4Addr| {
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast())
        };
        if !usable(address.address) || !usable(host) || address.address == host {
            return refuse(
                format!("{} and {host} are not addresses of two hosts", address.address),
                "give VNIC and host one unicast address each",
            );
        }
        if !address.contains(host) {
            return refuse(format!("{host} is not in {address}"), "choose a host_address of that network");
        }
        if let Some(other) = others.iter().find(|other| other.address.address == address.address) {
            let cause = format!("{} is VNIC {}'s address too", address.address, other.name);
            return refuse(cause, "give each VNIC its own address");
        }
        if !(MIN_MTU..=MAX_MTU).contains(&mtu) {
            let cause = format!("an mtu of {mtu} is not between {MIN_MTU} and {MAX_MTU}");
            return refuse(cause, "leave it out for the usual one");
        }
        if vnic.tcp_ports.len().max(vnic.udp_ports.len()) > MAX_PORT_RANGES || vnic.peers.len() > MAX_PEERS {
            let cause = format!("more than {MAX_PORT_RANGES} ranges of ports or {MAX_PEERS} peers");
            return refuse(cause, "join neighbouring ones");
        }
        if vnic.peers.is_empty() {
            return refuse(
                "peers is empty, so it could reach no address".to_owned(),
                "omit it to permit every address",
            );
        }
        let ipv6 = match pair6(&vnic, mtu, others) {
            Ok(ipv6) => ipv6,
            Err((cause, fix)) => return refuse(cause, fix),
        };
        let mac = match vnic.mac {
            Some(mac) if !mac.get_ref().is_unicast() => {
                let cause = format!("{} is no address of one station", mac.get_ref());
                return refuse(cause, "make the first byte even, or leave mac out");
            }
            Some(mac) => mac.into_inner(),
            None => derived_mac(machine, &name, "vnic"),
        };
        let (peers, peers6) = by_family(&vnic.peers);
        Ok(Vnic {
            uid: self.uid(&what, &vnic.uid)?,
            name,
            address,
            host_address: host,
            ipv6,
            mac,
            tcp_ports: vnic.tcp_ports,
            udp_ports: vnic.udp_ports,
            peers,
            peers6,
            rate: vnic.rate,
            mtu,
            served: vnic.served,
        })
    }
}

/// The IPv6 address of a VNIC behind a veth pair and that of its host. The error is a
/// cause and a fix.
fn pair6(
    vnic: &VnicText,
    mtu: u32,
    others: &[Vnic],
) -> Result<Option<(Network6, Ipv6Addr)>, (String, &'static str)> {
    let (own, host) = match (vnic.address6.as_ref().map(|own| *own.get_ref()), vnic.host_address6) {
        (None, None) => return Ok(None),
        (Some(own), Some(host)) => (own, host),
        _ => return Err(("address6 or host_address6 alone".to_owned(), "write both, or none")),
    };
    if !is_granted6(own.address) || !is_granted6(host) || own.address == host {
        let cause = format!("{} and {host} are not addresses of two hosts", own.address);
        return Err((cause, "give VNIC and host one unicast address each, as in fd00::2/64 and fd00::1"));
    }
    if !own.contains(host) {
        return Err((format!("{host} is not in {own}"), "choose a host_address6 of that network"));
    }
    let taken = |other: &&Vnic| other.ipv6.is_some_and(|(taken, _)| taken.address == own.address);
    if let Some(other) = others.iter().find(taken) {
        let cause = format!("{} is VNIC {}'s address too", own.address, other.name);
        return Err((cause, "give each VNIC its own address"));
    }
    if mtu < MIN_MTU6 {
        let cause = format!("an mtu of {mtu} is too small for IPv6");
        return Err((cause, "give it 1280 or more, or leave out address6"));
    }
    Ok(Some((own, host)))
}
