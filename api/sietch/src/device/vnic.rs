//! A VNIC ready to be driven: its queue, and the engine that fits it.

use sietch_net::{Config, Engine, Ipv6Config};
use sietch_nic::af_xdp::{self, Granted};
use sietch_nic::shm::{self, Endpoint, EndpointFds};
use sietch_protocol::{Network6, QueueLayout, VnicDescriptors, VnicGrant};

use super::grant::Grant;
use super::vnic_queue::VnicQueue;
use crate::error::Error;

/// A VNIC as the daemon granted it, with its rings not yet mapped.
#[derive(Debug)]
pub struct GrantedVnic {
    /// Whether it is still held.
    pub grant: Grant,
    /// Addresses, ports, peers, rate and layout.
    pub description: VnicGrant,
    /// An AF_XDP socket and its memory, or one side of shared memory.
    pub descriptors: VnicDescriptors,
}

/// A VNIC that this process drives.
#[derive(Debug)]
pub struct Vnic {
    /// Whether it is still held.
    pub grant: Grant,
    /// Addresses, ports, peers and rate.
    pub description: VnicGrant,
    /// Its queue pair. One thread owns it.
    pub queue: VnicQueue,
}

impl Vnic {
    /// Maps what the daemon granted: rings and buffers of an AF_XDP socket, or both regions of a
    /// link.
    pub(crate) fn open(granted: GrantedVnic) -> Result<Self, Error> {
        let GrantedVnic { grant, description, descriptors } = granted;
        let mtu = usize::try_from(description.mtu).unwrap_or(usize::MAX);
        let mac = description.mac.0;
        let name = || description.name.clone();
        let queue = match (description.layout, descriptors) {
            (QueueLayout::AfXdp(shape), VnicDescriptors::AfXdp { socket, umem }) => {
                let granted = Granted { socket, umem, layout: socket_layout(shape) };
                let opened = af_xdp::Queue::open(granted, mac, mtu)
                    .map_err(|source| Error::Queue { name: name(), source })?;
                opened.with_unfinished_checksums(shape.unfinished_checksums).into()
            }
            (QueueLayout::Shared(shape), VnicDescriptors::Shared(side)) => {
                let layout = shm::LinkLayout { slots: shape.slots, data: shape.data };
                // This process serves no other user.
                let fds = EndpointFds::received([side.own, side.peer, side.doorbell], u32::MAX);
                let opened = Endpoint::open(fds, layout, mac, mtu);
                opened.map_err(|source| Error::Link { name: name(), source })?.into()
            }
            _ => return Err(Error::Kind { name: name(), kind: description.kind }),
        };
        Ok(Self { grant, description, queue })
    }

    /// The configuration of an engine for this VNIC: its addresses, and `secret`, sixteen bytes of
    /// true randomness.
    pub fn engine_config(&self, secret: [u8; 16]) -> Config {
        let mut config = Config::new(self.description.address, self.description.prefix, secret);
        config.gateway = self.description.gateway;
        // The previous holder of these addresses may have had another MAC.
        config.announce = true;
        let gateway = self.description.gateway6;
        let v6 =
            |network: Network6| Ipv6Config { addresses: vec![(network.address, network.prefix)], gateway };
        config.ipv6 = self.description.address6.map(v6);
        config
    }

    /// An engine for this VNIC with the default limits; `secret` is sixteen bytes of true
    /// randomness.
    pub fn engine(&self, secret: [u8; 16]) -> Engine {
        use sietch_nic::NicQueue as _;
        Engine::new(&self.engine_config(secret), self.queue.mac(), self.queue.mtu())
    }
}

/// The shape of an AF_XDP queue, converted from the daemon's message to the queue's own type.
#[must_use]
pub fn socket_layout(shape: sietch_protocol::XskLayout) -> af_xdp::XskLayout {
    af_xdp::XskLayout {
        ifindex: shape.ifindex,
        queue: shape.queue,
        chunk_size: shape.chunk_size,
        chunks: shape.chunks,
        fill: shape.fill,
        completion: shape.completion,
        receive: shape.receive,
        transmit: shape.transmit,
        runs: shape.runs,
        run_chunks: shape.run_chunks,
    }
}
