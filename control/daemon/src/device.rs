//! The interface between decisions and devices: what the daemon requires of VNICs, however they are
//! made.
//!
//! 1. A [`VnicPlan`] describes one VNIC completely. It is kept in the state, so that a later daemon
//!    can adopt or remove the device even if `sietch.toml` has changed by then.
//! 2. [`VnicDevices::open`] makes the device and returns the two descriptors that are the
//!    capability. The daemon passes them on. When the holder has mapped the rings,
//!    [`VnicDevices::bind`] lets frames pass, and only a mapping of the rings is kept.
//! 3. [`VnicDevices::check_rings`] finds holders whose rings cost the host time.
//!    [`VnicDevices::close`] first stops the traffic (programs drop everything), then removes the
//!    device. It also handles devices that are incomplete or already removed.
//! 4. [`KernelDevices`] makes real devices; tests have theirs in memory.
//! 5. One thread has the devices ([`worker`]): making one takes long.
//! 6. Links ([`link`]) and ports of the switch ([`port`]) need no privilege and no such interface:
//!    they are memory and a pair of sockets.

mod holder;
mod kernel;
pub(crate) mod link;
pub(crate) mod port;
mod queue;
mod veth;
pub(crate) mod worker;

use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};
use sietch_protocol::metrics::Metric;
use sietch_protocol::{Mac, Network, Network6, PortRange, Rate, XskLayout};

use crate::configuration::{Vnic, derived_mac};
use crate::identity::stable_hash;

pub use kernel::KernelDevices;

/// The longest interface name: IFNAMSIZ less its NUL.
const MAX_INTERFACE_NAME: usize = 15;

/// Everything about one VNIC that is granted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VnicPlan {
    /// Its name.
    pub name: String,
    /// Of its grant.
    pub generation: u64,
    /// The end of the veth pair that the host sees.
    pub host_interface: String,
    /// The end that the XSK is bound to.
    pub application_interface: String,
    /// The VNIC's Ethernet address.
    pub mac: Mac,
    /// The host end's Ethernet address.
    pub host_mac: Mac,
    /// The VNIC's address and network.
    pub address: Network,
    /// The host end's address.
    pub host_address: Ipv4Addr,
    /// The VNIC's IPv6 address and network, and the host end's address in it. (Missing in the state
    /// of daemons that knew none.)
    #[serde(default)]
    pub ipv6: Option<(Network6, Ipv6Addr)>,
    /// The largest IP packet, in bytes. The device may have less ([`OpenedVnic::mtu`]).
    pub mtu: u32,
    /// Local TCP ports let through.
    pub tcp_ports: Vec<PortRange>,
    /// Local UDP ports let through.
    pub udp_ports: Vec<PortRange>,
    /// Networks of IPv4 it may talk to.
    pub peers: Vec<Network>,
    /// Networks of IPv6 it may talk to. None beside a network of no bits in `peers`: every address.
    #[serde(default)]
    pub peers6: Vec<Network6>,
    /// What it may send.
    pub rate: Option<Rate>,
    /// The cookie of the socket that was passed to the holder. A later daemon finds the socket
    /// among the holder's descriptors by it. It is 0 in the state of daemons that kept none.
    #[serde(default)]
    pub socket: u64,
}

impl VnicPlan {
    /// The plan for a VNIC of `sietch.toml`.
    pub fn new(vnic: &Vnic, generation: u64) -> Self {
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let (host_interface, application_interface) = interface_names(&vnic.name);
        Self {
            name: vnic.name.clone(),
            generation,
            host_interface,
            application_interface,
            mac: vnic.mac,
            host_mac: derived_mac(machine.trim(), &vnic.name, "host"),
            address: vnic.address,
            host_address: vnic.host_address,
            ipv6: vnic.ipv6,
            mtu: vnic.mtu,
            tcp_ports: vnic.tcp_ports.clone(),
            udp_ports: vnic.udp_ports.clone(),
            peers: vnic.peers.clone(),
            peers6: vnic.peers6.clone(),
            rate: vnic.rate,
            socket: 0,
        }
    }
}

/// `sv-NAME` and `sv-NAME-a`; a long name is cut and made unique by a hash.
fn interface_names(name: &str) -> (String, String) {
    let host = format!("sv-{name}");
    let host = if host.len() + 2 <= MAX_INTERFACE_NAME {
        host
    } else {
        // Names are ASCII (`is_name`), so cutting at a byte is cutting at a letter.
        let start: String = name.chars().take(5).collect();
        format!("sv-{start}{:04x}", stable_hash(&[name.as_bytes()]) & 0xffff)
    };
    let application = format!("{host}-a");
    (host, application)
}

/// The part for the application, and the part that the daemon keeps.
#[derive(Debug)]
pub struct OpenedVnic {
    /// The AF_XDP socket.
    pub xsk: OwnedFd,
    /// The memfd of its UMEM.
    pub umem: OwnedFd,
    /// Their shape.
    pub layout: XskLayout,
    /// The gateway's Ethernet address, if it is known without a query.
    pub gateway_mac: Option<Mac>,
    /// The largest IP packet, in bytes: what was planned, or what the kernel and the uplink allow.
    pub mtu: u32,
    /// The number by which the kernel distinguishes this socket from all others (`SO_COOKIE`), for
    /// [`VnicPlan::socket`].
    pub cookie: u64,
}

/// A holder whose rings cost the host time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingViolation {
    /// [`VnicPlan::host_interface`].
    pub host_interface: String,
    /// What it did.
    pub what: String,
}

/// Why a device could not be made, adopted or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {cause}; {fix}")]
pub struct DeviceError {
    /// As in `veth sv-kv`.
    pub what: String,
    /// What failed and why.
    pub cause: String,
    /// What to do.
    pub fix: String,
}

/// A device that an earlier daemon made.
#[derive(Debug)]
pub struct Adoption {
    /// As it was made.
    pub plan: VnicPlan,
    /// The process that uses it.
    pub pid: u32,
    /// The same.
    pub pidfd: OwnedFd,
}

/// What an uplink was like before a daemon changed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkBefore {
    /// Its number, in that boot: another interface, or another boot, has settings of its own.
    pub ifindex: u32,
    /// See above.
    pub boot: String,
    /// It took tags of 802.1Q off received frames.
    pub customer_tags: bool,
    /// The same of 802.1ad.
    pub service_tags: bool,
}

/// Makes and removes VNICs.
pub trait VnicDevices {
    /// One line on what enforces the filters here, or why VNICs cannot be had.
    ///
    /// # Errors
    /// Why there are none and what to do, for display.
    fn support(&self) -> Result<String, String>;

    /// What the uplink is like before this daemon changes it, to be remembered before it does.
    /// `remembered` is what an earlier daemon, which did not come to its clean end, found. `None`:
    /// there is no uplink, or not yet.
    fn uplink_before(
        &mut self,
        _remembered: Option<UplinkBefore>,
    ) -> impl Future<Output = Option<UplinkBefore>> {
        std::future::ready(None)
    }

    /// Makes the device of `plan`. Replaces what an earlier attempt left of it.
    fn open(&mut self, plan: &VnicPlan) -> impl Future<Output = Result<OpenedVnic, DeviceError>>;

    /// Lets frames pass: the holder has mapped the rings.
    fn bind(&mut self, plan: &VnicPlan) -> impl Future<Output = Result<(), DeviceError>>;

    /// Takes charge of devices that an earlier daemon made, and returns a result for each. All of
    /// them together take no longer than one whose holder is hostile.
    fn adopt(&mut self, adoptions: Vec<Adoption>) -> impl Future<Output = Vec<Result<(), DeviceError>>>;

    /// Checks whether the device exists and works.
    ///
    /// # Errors
    /// The reason why no frame passes, or which part of its protection is missing, for display.
    fn examine(&self, plan: &VnicPlan) -> impl Future<Output = Result<(), String>>;

    /// Checks the rings of all holders. The VNICs returned here get no more frames, and the
    /// kernel's walk over their entries has ended. Their process must be stopped before it starts
    /// another walk.
    fn check_rings(&mut self) -> Vec<RingViolation>;

    /// Ends the kernel's walk over a holder's entries once more, when the holder is stopped.
    fn repair_rings(&mut self, host_interface: &str);

    /// Stops the traffic and removes the device. Nothing there is no error.
    fn close(&mut self, plan: &VnicPlan) -> impl Future<Output = Result<(), DeviceError>>;

    /// Removes devices that this daemon instance once made and that are not in `keep`. Removes the
    /// entries of other VNICs from the uplink. Returns the names of the removed devices.
    fn remove_others(&mut self, keep: &[&VnicPlan])
    -> impl Future<Output = Result<Vec<String>, DeviceError>>;

    /// Releases what all VNICs share (the uplink's program), at the daemon's clean end.
    fn finish(&mut self) -> impl Future<Output = ()>;

    /// The device's counters; empty if there is no such device.
    fn counters(&self, plan: &VnicPlan) -> Vec<Metric>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_fit_the_kernel_and_differ() {
        assert_eq!(interface_names("kv"), ("sv-kv".into(), "sv-kv-a".into()));
        let (first, _) = interface_names("a-very-long-name-of-a-service-01");
        let (second, application) = interface_names("a-very-long-name-of-a-service-02");
        assert_ne!(first, second);
        assert!(application.len() <= MAX_INTERFACE_NAME);
        let (_, longest) = interface_names("ten-letter");
        assert_eq!(longest.len(), MAX_INTERFACE_NAME);
    }
}
