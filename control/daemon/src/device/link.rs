//! One end of a point-to-point link, as it is granted and remembered.
//!
//! 1. A [`LinkPlan`] describes one end completely. It is kept in the state; the descriptors are
//!    not. Each end has its own. The daemon keeps those that revoke the link
//!    ([`sietch_nic::shm::Revocation`]) only while it runs.
//! 2. Ends that carry the same `pair` were made together. Each pair has fresh, zeroed memory: no
//!    data passes from one holder to the next.

use serde::{Deserialize, Serialize};
use sietch_nic::shm::{EndpointFds, LinkLayout, Pair, create_pair};
use sietch_protocol::{
    LinkPeer, Mac, Network, Network6, Protection, QueueLayout, SharedLayout, VnicGrant, VnicKind,
};

use super::DeviceError;
use crate::configuration::Link;
use crate::granted::GrantedDescriptor;

/// Everything about one end that is granted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LinkPlan {
    pub(crate) name: String,
    pub(crate) link: String,
    /// 0 or 1: which end of the file it is.
    pub(crate) side: usize,
    /// What the two ends that were made together share.
    pub(crate) pair: u64,
    pub(crate) mac: Mac,
    pub(crate) address: Network,
    pub(crate) address6: Option<Network6>,
    pub(crate) peer: LinkPeer,
    pub(crate) mtu: u32,
    pub(crate) layout: SharedLayout,
}

impl LinkPlan {
    /// End `side` of `link`, of the pair `pair`.
    pub(crate) fn new(link: &Link, side: usize, pair: u64) -> Self {
        let side = side & 1;
        let (own, other) = (&link.ends[side], &link.ends[1 - side]);
        Self {
            name: own.name.clone(),
            link: link.name.clone(),
            side,
            pair,
            mac: own.mac,
            address: own.address,
            address6: own.address6,
            peer: LinkPeer {
                name: other.name.clone(),
                mac: other.mac,
                address: other.address.address,
                address6: other.address6.map(|network| network.address),
            },
            mtu: link.mtu,
            layout: SharedLayout { slots: link.slots, data: link.data },
        }
    }

    /// Makes the memory and the doorbell of the pair.
    ///
    /// # Errors
    /// No memory or no descriptors are left.
    pub(crate) fn create(&self) -> Result<Pair, DeviceError> {
        create(self.layout, self.pair, || format!("link {}", self.link))
    }

    /// The description that its holder receives.
    pub(crate) fn grant(&self, grant: u64, generation: u64) -> VnicGrant {
        VnicGrant {
            grant,
            generation,
            name: self.name.clone(),
            kind: VnicKind::Link,
            interface: format!("link {}", self.link),
            mac: self.mac,
            address: self.address.address,
            prefix: self.address.prefix,
            address6: self.address6,
            gateway: None,
            gateway6: None,
            gateway_mac: None,
            host_address: None,
            peer: Some(self.peer.clone()),
            mtu: self.mtu,
            layout: QueueLayout::Shared(self.layout),
            protection: Protection::PointToPoint,
            tcp_ports: Vec::new(),
            udp_ports: Vec::new(),
            peers: vec![Network::EVERYONE],
            peers6: Vec::new(),
            rate: None,
            user: None,
        }
    }
}

/// Memory and doorbell between two sides; `what` names them in an error.
pub(super) fn create(
    shape: SharedLayout,
    generation: u64,
    what: impl FnOnce() -> String,
) -> Result<Pair, DeviceError> {
    let layout = LinkLayout { slots: shape.slots, data: shape.data };
    create_pair(layout, generation).map_err(|error| DeviceError {
        what: what(),
        cause: format!("cannot make its memory: {error}"),
        fix: "see whether memory and open files are at a limit (`ulimit -n`)".to_owned(),
    })
}

/// In the order in which they are passed.
pub(crate) fn descriptors(end: EndpointFds) -> Vec<GrantedDescriptor> {
    vec![end.own.into(), end.peer.into(), GrantedDescriptor::Peer(end.doorbell)]
}
