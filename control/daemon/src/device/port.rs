//! A port of the software switch, as it is granted and remembered.

use serde::{Deserialize, Serialize};
use sietch_nic::shm::Pair;
use sietch_protocol::{
    Mac, Network, Network6, PortGrant, PortRange, Protection, QueueLayout, Rate, SharedLayout, VnicGrant,
    VnicKind,
};

use super::DeviceError;
use crate::configuration::Port;
use crate::configuration::derived_mac;

/// Everything about one port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PortPlan {
    pub(crate) name: String,
    pub(crate) mac: Mac,
    pub(crate) address: Network,
    pub(crate) address6: Option<Network6>,
    pub(crate) tcp_ports: Vec<PortRange>,
    pub(crate) udp_ports: Vec<PortRange>,
    pub(crate) peers: Vec<Network>,
    #[serde(default)]
    pub(crate) peers6: Vec<Network6>,
    pub(crate) rate: Option<Rate>,
    pub(crate) mtu: u32,
    pub(crate) layout: SharedLayout,
}

impl PortPlan {
    /// The plan for a VNIC of `sietch.toml`.
    pub(crate) fn new(port: &Port) -> Self {
        Self {
            name: port.name.clone(),
            mac: port.mac,
            address: port.address,
            address6: port.address6,
            tcp_ports: port.tcp_ports.clone(),
            udp_ports: port.udp_ports.clone(),
            peers: port.peers.clone(),
            peers6: port.peers6.clone(),
            rate: port.rate,
            mtu: port.mtu,
            layout: SharedLayout { slots: port.slots, data: port.data },
        }
    }

    /// Makes the memory and the doorbell between the holder and the switch.
    ///
    /// # Errors
    /// No memory or no descriptors are left.
    pub(crate) fn create(&self, generation: u64) -> Result<Pair, DeviceError> {
        super::link::create(self.layout, generation, || format!("VNIC {}", self.name))
    }

    /// The description that its holder receives.
    pub(crate) fn grant(&self, grant: u64, generation: u64) -> VnicGrant {
        VnicGrant {
            grant,
            generation,
            name: self.name.clone(),
            kind: VnicKind::Switch,
            interface: "switch".to_owned(),
            mac: self.mac,
            address: self.address.address,
            prefix: self.address.prefix,
            address6: self.address6,
            gateway: None,
            gateway6: None,
            gateway_mac: None,
            host_address: None,
            peer: None,
            mtu: self.mtu,
            layout: QueueLayout::Shared(self.layout),
            protection: Protection::BrokerMediated,
            tcp_ports: self.tcp_ports.clone(),
            udp_ports: self.udp_ports.clone(),
            peers: self.peers.clone(),
            peers6: self.peers6.clone(),
            rate: self.rate,
            user: None,
        }
    }

    /// The description that the service core receives, which enforces it.
    pub(crate) fn port(&self, grant: u64, generation: u64, uid: u32) -> PortGrant {
        PortGrant {
            grant,
            generation,
            name: self.name.clone(),
            mac: self.mac,
            switch_mac: derived_mac("", &self.name, "switch"),
            address: self.address.address,
            address6: self.address6.map(|network| network.address),
            tcp_ports: self.tcp_ports.clone(),
            udp_ports: self.udp_ports.clone(),
            peers: self.peers.clone(),
            peers6: self.peers6.clone(),
            rate: self.rate,
            mtu: self.mtu,
            layout: self.layout,
            uid,
        }
    }
}
