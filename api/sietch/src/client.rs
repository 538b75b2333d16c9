//! Asking the daemon for devices.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use sietch_protocol::connection::DEFAULT_TIMEOUT;
use sietch_protocol::{AreaStatus, Connection, HeldGrant, VnicDescriptors, VnicGrant, VnicKind, Welcome};

use crate::error::Error;
use crate::grant::Grant;
use crate::lease::{Lease, Parts, SharedPage};
use crate::metrics::Metrics;
use crate::vnic::Vnic;
use crate::vsa::{GrantedVsa, Vsa};

/// A VNIC as the daemon handed it out: what it is, and what it is made of.
#[derive(Debug)]
pub struct GrantedVnic {
    /// Whether it is still held.
    pub grant: Grant,
    /// Addresses, ports, peers, rate and geometry.
    pub description: VnicGrant,
    /// An AF_XDP socket and its memory, or one side of shared memory.
    pub descriptors: VnicDescriptors,
}

/// A connection to the daemon, before the application starts its data loop.
///
/// Acquire devices, share counters, then [`Client::hold`] it all.
#[derive(Debug)]
pub struct Client {
    parts: Parts,
}

impl Client {
    /// Connects to the daemon at `path` (see [`crate::socket_path`]) as `name`, which is for
    /// display alone.
    ///
    /// # Errors
    /// [`Error::Control`]: no daemon, or one of another version.
    pub fn connect(path: &Path, name: &str) -> Result<Self, Error> {
        let connection = Connection::connect(path, name, DEFAULT_TIMEOUT)?;
        Ok(Self::over(connection, path.to_owned(), name))
    }

    pub(crate) fn over(connection: Connection, path: PathBuf, name: &str) -> Self {
        let name = name.to_owned();
        Self {
            parts: Parts { connection, path, name, grants: Vec::new(), pages: Vec::new(), views: Vec::new() },
        }
    }

    /// What the daemon said of itself.
    pub fn daemon(&self) -> &Welcome {
        self.parts.connection.welcome()
    }

    /// Opens the VNIC `name` without touching its rings. Frames pass after [`Client::bind_vnic`].
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon is gone.
    pub fn acquire_vnic_descriptors(&mut self, name: &str) -> Result<GrantedVnic, Error> {
        let (description, descriptors) = self.parts.connection.acquire_vnic(name)?;
        let held = HeldGrant { grant: description.grant, generation: description.generation };
        let grant = Grant::new(held, description.name.clone(), description.protection.clone());
        self.parts.grants.push(grant.clone());
        Ok(GrantedVnic { grant, description, descriptors })
    }

    /// Says that the rings of the veth VNIC of `grant` are mapped: from now on frames pass.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, which ends the grant, or the daemon is gone.
    pub fn bind_vnic(&mut self, grant: &Grant) -> Result<(), Error> {
        Ok(self.parts.connection.bind_vnic(grant.id())?)
    }

    /// Opens the VNIC `name`, maps its queue, and has frames pass. What cannot be used is given
    /// back.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon is gone; [`Error::Queue`]: its memory cannot be mapped.
    pub fn acquire_vnic(&mut self, name: &str) -> Result<Vnic, Error> {
        let parts = self.acquire_vnic_descriptors(name)?;
        let (grant, kind) = (parts.grant.clone(), parts.description.kind);
        let opened = Vnic::open(parts).and_then(|vnic| {
            if kind == VnicKind::Veth {
                self.bind_vnic(&grant)?;
            }
            Ok(vnic)
        });
        if opened.is_err() {
            // A daemon that is gone, or has ended the grant already, has nothing to give back.
            let _ = self.release(&grant);
            grant.revoke();
            self.parts.grants.retain(|held| held.id() != grant.id());
        }
        opened
    }

    /// Opens the storage area `name` with a queue over it.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon is gone; [`Error::Area`]: its file cannot be driven.
    pub fn acquire_vsa(&mut self, name: &str) -> Result<Vsa, Error> {
        Vsa::open(self.acquire_vsa_descriptors(name)?)
    }

    /// Opens the storage area `name` without making a queue for it.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon is gone.
    pub fn acquire_vsa_descriptors(&mut self, name: &str) -> Result<GrantedVsa, Error> {
        let (description, files) = self.parts.connection.acquire_vsa_descriptors(name)?;
        let held = HeldGrant { grant: description.grant, generation: description.generation };
        let grant = Grant::new(held, description.name.clone(), description.protection.clone());
        self.parts.grants.push(grant.clone());
        Ok(GrantedVsa { grant, description, files })
    }

    /// Makes the storage area `name` (`/VOLUME/NAME`, or `NAME` on the volume `main`) of `size`
    /// zeroed bytes, for this process' user. That takes a quota on the volume.
    ///
    /// # Errors
    /// [`Error::Control`]: refused (the volume is full, the quota is spent, the name is taken), or the daemon is gone.
    pub fn create_vsa(&mut self, name: &str, size: u64) -> Result<AreaStatus, Error> {
        Ok(self.parts.connection.create_vsa(name, size, None)?)
    }

    /// Gives the storage area `vsa`, which this process holds, another size: its data stays, what
    /// is added is zeros, what is cut off is gone. Its queue is made anew, and must be idle. With
    /// the size that it has already, this takes over what an administrator has made of it.
    ///
    /// A process that has given its client to [`Client::hold`] connects another one for this: what
    /// counts is that it is the same process.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, and the area is as before; [`Error::Area`]: its queue has requests in flight, or cannot be made anew.
    pub fn resize_vsa(&mut self, vsa: &mut Vsa, size: u64) -> Result<(), Error> {
        vsa.check_idle()?;
        let (area, files) = self.parts.connection.resize_held_vsa(&vsa.description.name, size)?;
        vsa.reopen(area.size, area.segments, files)
    }

    /// Makes a range of the storage area `vsa`, which this process holds, read as zeros, without a
    /// length up to its end. Its blocks stay its own: a later write there neither waits for new
    /// ones nor finds the volume full.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon is gone.
    pub fn trim_vsa(&mut self, vsa: &Vsa, offset: u64, length: Option<u64>) -> Result<(), Error> {
        self.parts.connection.trim_vsa(&vsa.description.name, offset, length)?;
        Ok(())
    }

    /// Removes the storage area `name`, which nobody holds, and its data.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon is gone.
    pub fn delete_vsa(&mut self, name: &str) -> Result<(), Error> {
        Ok(self.parts.connection.delete_vsa(name)?)
    }

    /// The storage areas of this process' user, in the order of their paths.
    ///
    /// # Errors
    /// [`Error::Control`]: the daemon is gone.
    pub fn vsas(&mut self) -> Result<Vec<AreaStatus>, Error> {
        Ok(self.parts.connection.vsas()?)
    }

    /// Shows the daemon a page of counters; it reads them when somebody asks.
    ///
    /// # Errors
    /// [`Error::Control`]: refused, or the daemon is gone; [`Error::Lease`]: no file descriptor is left.
    pub fn share_metrics(&mut self, metrics: &Metrics) -> Result<(), Error> {
        self.parts.connection.publish_metrics(metrics.label(), metrics.as_fd())?;
        let page = metrics
            .as_fd()
            .try_clone_to_owned()
            .map_err(|source| Error::Lease { path: self.parts.path.clone(), source })?;
        self.parts.pages.push(SharedPage { label: metrics.label().to_owned(), page });
        Ok(())
    }

    /// Says that this process shows a view of the storage area of `grant`, once it is held: it
    /// answers with [`Lease::answer_view_request`].
    pub fn serve_view(&mut self, grant: &Grant) {
        self.parts.views.push(grant.id());
    }

    /// Gives a grant back. Its queue must be dropped first.
    ///
    /// # Errors
    /// [`Error::Control`]: the daemon is gone.
    pub fn release(&mut self, grant: &Grant) -> Result<(), Error> {
        self.parts.connection.release(grant.id())?;
        grant.revoke();
        self.parts.grants.retain(|held| held.id() != grant.id());
        Ok(())
    }

    /// Holds everything acquired, with a thread that listens to the daemon and reconnects to it.
    ///
    /// # Errors
    /// [`Error::Lease`]: no thread or file descriptor is left.
    pub fn hold(self) -> Result<Lease, Error> {
        Lease::start(self.parts)
    }
}
