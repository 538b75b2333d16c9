//! What the server does when a device ends with the process at its other end; the requests
//! themselves are in `reacquire.rs`.

use std::net::SocketAddr;

use sietch::Doorbell as _;
use sietch::disk::AreaQueue;

use super::Server;
use super::devices::open_transport;
use super::doorbells::{AREA_GRANTED, LINK_GRANTED, LINK_LEASE, VNIC, watch};
use super::reacquire::Reacquisition;
use crate::server::{Error, LogWriter};

/// Nanoseconds between two attempts to listen again.
const LISTEN_PAUSE: u64 = 1_000_000_000;

impl Server {
    /// The socket service has revoked the store, and ended its listening socket. Clients of the
    /// kernel are served by a new one, which the service does not get.
    pub(super) fn note_revocation(&mut self, address: SocketAddr) {
        tracing::warn!(
            "the socket service has revoked the store: clients through memory were reset, and {address} is served through the kernel alone until the store is started again"
        );
        self.unserved = Some((address, 0));
    }

    /// Listens on the address that nothing serves, if that is due at `now`. It may fail for a
    /// while: another program has taken the address, or no descriptor is left.
    pub(super) fn listen_again(&mut self, now: u64) {
        let Some((address, _)) = self.unserved.filter(|(_, due)| *due <= now) else { return };
        // Without kernel sockets nothing can serve it, and no attempt is due.
        let again = match self.reactor.sockets_mut().map(|sockets| sockets.listen(address)) {
            None | Some(Ok(_)) => None,
            Some(Err(cause)) => {
                tracing::warn!("{address} is not served: {cause}; it is tried again");
                Some((address, now.saturating_add(LISTEN_PAUSE)))
            }
        };
        self.unserved = again;
    }

    /// Requests the area again if its service core ended. Until it is granted, the store serves
    /// reads and refuses writes.
    pub(super) fn reacquire_area(&mut self) {
        let is_lost = |log_writer: &LogWriter<AreaQueue>| {
            log_writer.log().failed().is_some() && log_writer.log().disk().is_over()
        };
        if self.reacquiring_area.is_some() || self.stopping || !self.reactor.log_writer().is_some_and(is_lost)
        {
            return;
        }
        let (path, name) = (self.path.clone(), self.area.clone());
        let started = Reacquisition::area(path, name).and_then(|reacquiring_area| {
            if let Some(sockets) = self.reactor.sockets_mut() {
                sockets.watch(reacquiring_area.doorbell().try_clone_to_owned()?, AREA_GRANTED)?;
            }
            Ok(reacquiring_area)
        });
        match started {
            Ok(reacquiring_area) => self.reacquiring_area = Some(reacquiring_area),
            Err(cause) => tracing::warn!("the storage area is not requested again: {cause}"),
        }
    }

    /// The request for the area ended. If it was granted, the store must restart.
    pub(super) fn end_area_reacquisition(&mut self) {
        let Some(sockets) = self.reactor.sockets_mut() else { return };
        sockets.unwatch(AREA_GRANTED);
        if let Some(reacquiring_area) = &mut self.reacquiring_area
            && reacquiring_area.is_granted()
        {
            self.area_granted = true;
        }
    }

    /// Drops the rest of the VNIC, because its memory stays pinned as long as its socket is open. A
    /// link is acquired again.
    pub(super) fn forget_vnic(&mut self) {
        self.vnic_grant = None;
        self.link_lease = None;
        if let Some(sockets) = self.reactor.sockets_mut() {
            sockets.unwatch(VNIC);
            sockets.unwatch(LINK_LEASE);
        }
        let Some((path, name)) =
            self.link.clone().filter(|_| !self.stopping && self.reacquiring_link.is_none())
        else {
            return;
        };
        let started = Reacquisition::vnic(path, name).and_then(|reacquiring_link| {
            if let Some(sockets) = self.reactor.sockets_mut() {
                sockets.watch(reacquiring_link.doorbell().try_clone_to_owned()?, LINK_GRANTED)?;
            }
            Ok(reacquiring_link)
        });
        match started {
            Ok(reacquiring_link) => self.reacquiring_link = Some(reacquiring_link),
            Err(cause) => tracing::warn!("the link is not requested again: {cause}"),
        }
    }

    /// Serves on the link that the control plane granted again.
    pub(super) fn adopt_link(&mut self) -> Result<(), Error> {
        if let Some(sockets) = self.reactor.sockets_mut() {
            sockets.unwatch(LINK_GRANTED);
        }
        let Some((vnic, lease)) = self.reacquiring_link.take().and_then(Reacquisition::take) else {
            return Ok(());
        };
        let name = vnic.grant.name().to_owned();
        let (transport, grant) = open_transport(vnic, &name, self.port)?;
        if let Some(sockets) = self.reactor.sockets_mut() {
            watch(sockets, lease.doorbell(), LINK_LEASE)?;
            if let Some(doorbell) = transport.queue().doorbell() {
                watch(sockets, doorbell, VNIC)?;
            }
        }
        self.reactor.attach_vnic(transport);
        self.vnic_grant = Some(grant);
        self.link_lease = Some(lease);
        tracing::info!("VNIC {name} was acquired again");
        Ok(())
    }
}
