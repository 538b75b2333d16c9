//! A VNIC ready to be driven: its queue, and the engine that fits it.

use sietch_net::{Config, Engine};
use sietch_nic::af_xdp::{self, Granted};
use sietch_nic::shm::{self, Endpoint, EndpointFds};
use sietch_protocol::{QueueGeometry, VnicDescriptors, VnicGrant};

use crate::client::VnicParts;
use crate::error::Error;
use crate::grant::Grant;

/// A VNIC that this process drives.
#[derive(Debug)]
pub struct Vnic {
    /// Whether it is still held.
    pub grant: Grant,
    /// Addresses, ports, peers and rate.
    pub description: VnicGrant,
    /// Its queue pair. One thread owns it.
    pub queue: af_xdp::Queue,
}

impl Vnic {
    /// Maps the rings and buffers of what the daemon handed out.
    pub(crate) fn open(parts: VnicParts) -> Result<Self, Error> {
        let VnicParts { grant, description, descriptors } = parts;
        let (QueueGeometry::AfXdp(shape), VnicDescriptors::AfXdp { socket, umem: memory }) =
            (description.geometry, descriptors)
        else {
            return Err(Error::Kind { name: description.name, kind: description.kind });
        };
        let geometry = af_xdp::Geometry {
            ifindex: shape.ifindex,
            queue: shape.queue,
            chunk_size: shape.chunk_size,
            chunks: shape.chunks,
            fill: shape.fill,
            completion: shape.completion,
            receive: shape.receive,
            transmit: shape.transmit,
        };
        let granted = Granted { socket, umem: memory, geometry };
        let mtu = usize::try_from(description.mtu).unwrap_or(usize::MAX);
        let queue = af_xdp::Queue::open(granted, description.mac.0, mtu)
            .map_err(|source| Error::Queue { name: description.name.clone(), source })?;
        Ok(Self { grant, description, queue })
    }

    /// What an engine for this VNIC is told: its addresses, and sixteen bytes of true randomness.
    pub fn engine_config(&self, secret: [u8; 16]) -> Config {
        let mut config = Config::new(self.description.address, self.description.prefix, secret);
        config.gateway = self.description.gateway;
        config
    }

    /// An engine for this VNIC with the default limits; `secret` is sixteen bytes of true randomness.
    pub fn engine(&self, secret: [u8; 16]) -> Engine {
        use sietch_nic::NicQueue as _;
        Engine::new(&self.engine_config(secret), self.queue.mac(), self.queue.mtu())
    }
}

impl VnicParts {
    /// Maps the memory of a shared-memory VNIC: an end of a link, or a port of the switch. One thread owns the endpoint.
    ///
    /// # Errors
    /// [`Error::Kind`]: it is none; [`Error::Link`]: its memory cannot be used.
    pub fn open_shared(self) -> Result<(Grant, VnicGrant, Endpoint), Error> {
        let Self { grant, description, descriptors } = self;
        let (QueueGeometry::Shared(shape), VnicDescriptors::Shared(parts)) =
            (description.geometry, descriptors)
        else {
            return Err(Error::Kind { name: description.name, kind: description.kind });
        };
        let geometry = shm::Geometry { slots: shape.slots, data: shape.data };
        let mtu = usize::try_from(description.mtu).unwrap_or(usize::MAX);
        let fds = EndpointFds { own: parts.own, peer: parts.peer, bell: parts.bell };
        let endpoint = Endpoint::open(fds, geometry, description.mac.0, mtu)
            .map_err(|source| Error::Link { name: description.name.clone(), source })?;
        Ok((grant, description, endpoint))
    }
}
