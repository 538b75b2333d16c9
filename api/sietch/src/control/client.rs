//! Acquiring devices from the daemon.

use std::os::fd::AsFd;
use std::path::Path;

use sietch_protocol::connection::DEFAULT_TIMEOUT;
use sietch_protocol::{AreaStatus, Connection, HeldGrant, VnicKind, Welcome};

use super::lease::{Lease, Session, SharedPage};
use crate::device::{Grant, GrantedVnic, GrantedVsa, Vnic, Vsa};
use crate::error::Error;
use crate::metrics::Metrics;

/// A connection to the daemon, before the application starts its data loop.
///
/// Acquire devices, share counters, then [`Client::hold`] all of it.
#[derive(Debug)]
pub struct Client {
    session: Session,
}

impl Client {
    /// Connects to the daemon at `path` (see [`crate::socket_path`]) as `name`, which is for
    /// display alone.
    ///
    /// # Errors
    /// [`Error::Control`]: no daemon, or one of another version.
    pub fn connect(path: &Path, name: &str) -> Result<Self, Error> {
        let session = Session {
            connection: Connection::connect(path, name, DEFAULT_TIMEOUT)?,
            path: path.to_owned(),
            name: name.to_owned(),
            grants: Vec::new(),
            pages: Vec::new(),
            views: Vec::new(),
        };
        Ok(Self { session })
    }

    /// The daemon's version and process, as it reported them.
    pub fn daemon(&self) -> &Welcome {
        self.session.connection.welcome()
    }

    /// Acquires the VNIC `name` without mapping its rings. Frames pass after [`Client::bind_vnic`].
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon has ended.
    pub fn acquire_vnic_descriptors(&mut self, name: &str) -> Result<GrantedVnic, Error> {
        let (description, descriptors) = self.session.connection.acquire_vnic(name)?;
        let held = HeldGrant { grant: description.grant, generation: description.generation };
        let grant = Grant::new(held, description.name.clone(), description.protection.clone());
        self.session.grants.push(grant.clone());
        Ok(GrantedVnic { grant, description, descriptors })
    }

    /// Binds the veth VNIC of `grant`, whose rings must be mapped: from now on frames pass.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, which ends the grant, or the daemon has ended.
    pub fn bind_vnic(&mut self, grant: &Grant) -> Result<(), Error> {
        Ok(self.session.connection.bind_vnic(grant.id())?)
    }

    /// Acquires the VNIC `name`, maps its queue, and binds it. A VNIC that cannot be used is
    /// released.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon has ended; [`Error::Queue`]: its memory cannot be
    /// mapped.
    pub fn acquire_vnic(&mut self, name: &str) -> Result<Vnic, Error> {
        let granted = self.acquire_vnic_descriptors(name)?;
        let (grant, kind) = (granted.grant.clone(), granted.description.kind);
        let opened = Vnic::open(granted).and_then(|vnic| {
            if kind == VnicKind::Veth {
                self.bind_vnic(&grant)?;
            }
            Ok(vnic)
        });
        if opened.is_err() {
            // If the daemon has ended or has ended the grant already, there is nothing to release.
            let _ = self.release(&grant);
            grant.revoke();
            self.session.grants.retain(|held| held.id() != grant.id());
        }
        opened
    }

    /// Acquires the storage area `name` with a queue over it.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon has ended; [`Error::Area`]: its file cannot be
    /// driven.
    pub fn acquire_vsa(&mut self, name: &str) -> Result<Vsa, Error> {
        Vsa::open(self.acquire_vsa_descriptors(name)?)
    }

    /// Acquires the storage area `name` without making a queue for it.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon has ended.
    pub fn acquire_vsa_descriptors(&mut self, name: &str) -> Result<GrantedVsa, Error> {
        let (description, files) = self.session.connection.acquire_vsa_descriptors(name)?;
        let held = HeldGrant { grant: description.grant, generation: description.generation };
        let grant = Grant::new(held, description.name.clone(), description.protection.clone());
        self.session.grants.push(grant.clone());
        Ok(GrantedVsa { grant, description, files })
    }

    /// Creates the storage area `name` (`/VOLUME/NAME`, or `NAME` on the volume `main`) of `size`
    /// zeroed bytes, for this process' user, who needs a quota on the volume.
    ///
    /// # Errors
    /// [`Error::Control`]: refused (the volume is full, the quota is spent, the name is taken), or
    /// the daemon has ended.
    pub fn create_vsa(&mut self, name: &str, size: u64) -> Result<AreaStatus, Error> {
        Ok(self.session.connection.create_vsa(name, size, None)?)
    }

    /// Resizes the storage area `vsa`, which this process holds. Its data stays, bytes that are
    /// added are zeros, bytes that are cut off are lost. Its queue is created again, and must be
    /// idle. With the size that it has already, this adopts a size that an administrator has set.
    ///
    /// A process that has given its client to [`Client::hold`] connects another one for this: the
    /// daemon compares processes, not connections.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, and the area is as before; [`Error::Area`]: its queue has
    /// requests in flight, or cannot be created again.
    pub fn resize_vsa(&mut self, vsa: &mut Vsa, size: u64) -> Result<(), Error> {
        vsa.check_idle()?;
        let (area, files) = self.session.connection.resize_held_vsa(&vsa.description.name, size)?;
        vsa.reopen(area.size, area.segments, files)
    }

    /// Zeroes a range of the storage area `vsa`, which this process holds; without a length, up to
    /// its end. The blocks stay allocated: a later write there neither waits for new blocks nor
    /// finds the volume full.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon has ended.
    pub fn trim_vsa(&mut self, vsa: &Vsa, offset: u64, length: Option<u64>) -> Result<(), Error> {
        self.session.connection.trim_vsa(&vsa.description.name, offset, length)?;
        Ok(())
    }

    /// Removes the storage area `name`, which no process may hold, and its data.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon has ended.
    pub fn delete_vsa(&mut self, name: &str) -> Result<(), Error> {
        Ok(self.session.connection.delete_vsa(name)?)
    }

    /// The storage areas of this process' user, in the order of their paths.
    ///
    /// # Errors
    /// [`Error::Control`]: the daemon has ended.
    pub fn vsas(&mut self) -> Result<Vec<AreaStatus>, Error> {
        Ok(self.session.connection.vsas()?)
    }

    /// Shares a page of counters with the daemon, which reads it on demand.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon has ended; [`Error::Lease`]: no file descriptor
    /// is left.
    pub fn share_metrics(&mut self, metrics: &Metrics) -> Result<(), Error> {
        self.session.connection.publish_metrics(metrics.label(), metrics.as_fd())?;
        let page = metrics
            .as_fd()
            .try_clone_to_owned()
            .map_err(|source| Error::Lease { path: self.session.path.clone(), source })?;
        self.session.pages.push(SharedPage { label: metrics.label().to_owned(), page });
        Ok(())
    }

    /// Declares that this process serves a view of the storage area of `grant` once it is held: it
    /// answers with [`Lease::answer_view_request`].
    pub fn serve_view(&mut self, grant: &Grant) {
        self.session.views.push(grant.id());
    }

    /// Releases a grant. Its queue must be dropped first.
    ///
    /// # Errors
    /// [`Error::Control`]: the daemon has ended.
    pub fn release(&mut self, grant: &Grant) -> Result<(), Error> {
        self.session.connection.release(grant.id())?;
        grant.revoke();
        self.session.grants.retain(|held| held.id() != grant.id());
        Ok(())
    }

    /// Holds everything that was acquired, with a thread that reads the daemon's notices and
    /// reconnects to it.
    ///
    /// # Errors
    /// [`Error::Lease`]: no thread or file descriptor is left.
    pub fn hold(self) -> Result<Lease, Error> {
        Lease::start(self.session)
    }
}
