//! Granting, ending and adopting.
//!
//! 1. *Granting.* The name must exist for the client's uid, and be neither revoked nor held. The
//!    grant is recorded in the state, then its device is made. A device that cannot be made takes
//!    the record along. The file of an area is made on a blocking thread; [`Event::Area`] reports
//!    its end.
//! 2. *Ending* (released, or the process ended): the device first, the record last. So a crash in
//!    between leaves a record that the next start finds.
//! 3. *Revoking.* The same for a living process. Its device stops working first, then the holder
//!    gets a notice. The answer says what stops the holder from now on.
//! 4. *Adopting.* A process that reconnects after a restart of the daemon names its grants, and
//!    keeps each one whose process and generation match the record.
//! 5. *Checking rings.* A process whose rings make the kernel walk over invalid entries is killed,
//!    and its VNIC stays revoked.

use std::time::Instant;

use sietch_protocol::{
    AdoptedGrant, ErrorKind, ErrorReply, HeldGrant, MemoryModel, Notice, Protection, QueueLayout, Reply,
    VnicGrant, VnicKind, VsaGrant,
};
use tokio::sync::oneshot;

use super::controller::{Control, refuse, state_failed};
use super::event::{Answer, Event};
use super::tables::Pending;
use crate::device::{OpenedVnic, RingViolation, VnicDevices, VnicPlan};
use crate::identity::Process;
use crate::log_budget;
use crate::state::{Device, GrantRecord};
use crate::volume::{AreaDescriptors, AreaPath};

impl<D: VnicDevices> Control<D> {
    /// Plans of the VNICs that are held.
    pub(super) fn plans(&self) -> impl Iterator<Item = &VnicPlan> {
        self.grants.values().filter_map(|record| match &record.device {
            Device::Vnic(plan) => Some(&**plan),
            Device::Link(_) | Device::Port(_) | Device::Vsa { .. } => None,
        })
    }

    /// The process that holds the VNIC (`vnic`) or VSA `name`.
    pub(super) fn holder(&self, name: &str, vnic: bool) -> Option<&GrantRecord> {
        self.grants.values().find(|record| record.name == name && record.device.is_vnic() == vnic)
    }

    /// Whether `uid` may have `name` now.
    fn check(&self, name: &str, vnic: bool, owner: Option<u32>, uid: u32) -> Result<(), ErrorReply> {
        let sort = if vnic { "VNIC" } else { "VSA" };
        let shown: String = name.chars().take(40).collect::<String>().escape_debug().collect();
        let what = format!("{sort} {shown}");
        let file = self.configuration.path.display();
        let Some(owner) = owner else {
            let fix = format!("add it to {file} and `sietch reload`, or use a name that exists");
            return Err(refuse(ErrorKind::Unknown, what, "there is none of that name", fix));
        };
        if owner != uid {
            let cause = format!("it is for uid {owner}, and this process runs as uid {uid}");
            return Err(refuse(
                ErrorKind::Denied,
                what,
                cause,
                format!("run as that user, or change uid in {file}"),
            ));
        }
        if self.revoked.contains(&key(sort, name)) {
            let fix = format!("`sietch restore {shown}` permits it again");
            return Err(refuse(ErrorKind::Revoked, what, "it was revoked", fix));
        }
        if let Some(holder) = self.holder(name, vnic) {
            let cause = format!(
                "pid {} (`{}`, uid {}) has it under grant {}",
                holder.process.pid, holder.client, holder.process.uid, holder.grant
            );
            let fix = format!("end that process, or `sietch revoke {shown}`");
            return Err(refuse(ErrorKind::Busy, what, cause, fix));
        }
        Ok(())
    }

    /// Writes a grant down before its device is made.
    pub(super) fn record(
        &mut self,
        connection: u64,
        name: &str,
        device: impl FnOnce(u64) -> Device,
    ) -> Result<GrantRecord, ErrorReply> {
        let client = self.client(connection)?;
        let (process, client) = (client.process.clone(), client.name.clone());
        let grant = self.state.next().map_err(|error| state_failed(&error))?;
        let generation = self.state.next().map_err(|error| state_failed(&error))?;
        let device = device(generation);
        let record = GrantRecord { grant, generation, name: name.to_owned(), device, process, client };
        self.state.keep(&record).map_err(|error| state_failed(&error))?;
        self.grants.insert(grant, record.clone());
        Ok(record)
    }

    pub(super) async fn acquire_vnic(&mut self, connection: u64, name: &str) -> Result<Answer, ErrorReply> {
        let uid = self.client(connection)?.process.uid;
        if let Some((link, side)) = self.configuration.link_end(name) {
            let link = link.clone();
            self.check(name, true, Some(link.ends[side].uid), uid)?;
            return self.acquire_link(connection, &link, side);
        }
        if let Some(port) = self.configuration.port(name).cloned() {
            self.check(name, true, Some(port.uid), uid)?;
            return self.acquire_port(connection, &port);
        }
        let vnic = self.configuration.vnics.iter().find(|vnic| vnic.name == name).cloned();
        let service = self.configuration.service_uid;
        let holder = vnic.as_ref().map(|vnic| if vnic.served { service } else { vnic.uid });
        self.check(name, true, holder, uid)?;
        let Some(vnic) = vnic else {
            return Err(refuse(
                ErrorKind::Unknown,
                "VNIC",
                "there is none of that name",
                "see `sietch status`",
            ));
        };
        if let Err(why) = self.devices.support() {
            let (cause, fix) = why.split_once("; ").unwrap_or((&why, "use `--net linux`"));
            return Err(refuse(ErrorKind::Unsupported, format!("VNIC {name}"), cause, fix));
        }
        let record = self.record(connection, name, |generation| {
            Device::Vnic(Box::new(VnicPlan::new(&vnic, generation)))
        })?;
        let Device::Vnic(plan) = &record.device else {
            return Err(refuse(
                ErrorKind::Failed,
                format!("VNIC {name}"),
                "its record is of another sort",
                "retry",
            ));
        };
        if let Err(error) = self.remember_uplink().await {
            self.forget(record.grant);
            return Err(refuse(ErrorKind::Failed, "state", error.cause, error.fix));
        }
        let began = Instant::now();
        let opened = self.devices.open(plan).await;
        self.charge(uid, began);
        match opened {
            Ok(opened) => {
                self.counters.borrow_mut().grants += 1;
                self.log_grant(&record, "VNIC granted");
                self.record_opened(record.grant, opened.mtu, opened.cookie);
                let user = vnic.served.then_some(vnic.uid);
                Ok(vnic_answer(&record, plan, opened, user))
            }
            Err(error) => {
                self.forget(record.grant);
                Err(refuse(ErrorKind::Failed, error.what, error.cause, error.fix))
            }
        }
    }

    /// Lets frames pass to a process that has mapped the rings. Revokes a VNIC that cannot be
    /// bound.
    pub(super) async fn bind_vnic(&mut self, connection: u64, grant: u64) -> Result<(), ErrorReply> {
        let process = &self.client(connection)?.process;
        let record = self.grants.get(&grant).filter(|record| record.process == *process).cloned();
        let Some(GrantRecord { device: Device::Vnic(plan), .. }) = record else {
            return Err(refuse(
                ErrorKind::Unknown,
                format!("grant {grant}"),
                "this process has no veth VNIC under it",
                "name one that was given to this process",
            ));
        };
        if let Err(error) = self.devices.bind(&plan).await {
            self.end(grant, "it could not be bound").await;
            return Err(refuse(ErrorKind::Failed, error.what, error.cause, error.fix));
        }
        Ok(())
    }

    /// Whether a VNIC of the kernel is held.
    pub(crate) fn has_vnics(&self) -> bool {
        self.plans().next().is_some()
    }

    /// Checks the rings of all VNICs. A process that makes the kernel walk over invalid entries is
    /// killed. Its VNIC stays revoked, because a restarted process would do the same.
    pub(super) async fn check_rings(&mut self) {
        for RingViolation { host_interface, what } in self.devices.check_rings() {
            let of = |record: &&GrantRecord| matches!(&record.device, Device::Vnic(plan) if plan.host_interface == host_interface);
            let Some(record) = self.grants.values().find(of).cloned() else { continue };
            let killed = record.process.kill();
            self.devices.repair_rings(&host_interface);
            let (name, pid) = (&record.name, record.process.pid);
            let how = match killed {
                Ok(()) => "the process was killed".to_owned(),
                Err(error) => format!("the process could not be killed ({error})"),
            };
            self.warn(format!(
                "VNIC {name}: {what}, which costs the host time; {how} (pid {pid}), and the VNIC is revoked; `sietch restore {name}` lets \
                 it be used again"
            ));
            let revoked = key("VNIC", name);
            if let Err(error) = self.state.set_revoked(&revoked, true) {
                self.warn(error.to_string());
            }
            self.revoked.insert(revoked);
            self.counters.borrow_mut().holders_killed += 1;
            let why = format!("{what}; see `sietch status`");
            self.revoke_with(&record, &why).await;
        }
    }

    /// Remembers the MTU of a VNIC, which may be smaller than the requested one, and the cookie of
    /// its socket.
    fn record_opened(&mut self, grant: u64, mtu: u32, socket: u64) {
        let Some(record) = self.grants.get_mut(&grant) else { return };
        let Device::Vnic(plan) = &mut record.device else { return };
        (plan.mtu, plan.socket) = (mtu, socket);
        if let Err(error) = self.state.keep(record) {
            self.warn(error.to_string());
        }
    }

    /// The part of AcquireVsa before the file is made.
    pub(super) fn begin_vsa(&mut self, connection: u64, name: &str) -> Result<GrantRecord, ErrorReply> {
        let uid = self.client(connection)?.process.uid;
        let path = self.resolve(name)?;
        let described = self.describe(&path);
        let label = path.label();
        self.check(&label, false, described.map(|(owner, _)| owner), uid)?;
        self.volumes.of(&path)?;
        self.check_idle(&path)?;
        self.check_served(&path)?;
        let size = described.map_or(0, |(_, size)| size);
        self.record(connection, &label, |_| Device::Vsa { size })
    }

    /// Creates or opens the file on a blocking thread. [`Event::Area`] reports its end.
    pub(super) fn prepare_area(&mut self, record: GrantRecord, answer: oneshot::Sender<Answer>) {
        let Device::Vsa { size } = record.device else { return };
        let name = record.name.clone();
        let path = AreaPath::from_label(&name);
        self.preparing.insert(name.clone(), Pending::OPENING);
        let volume = self.volumes.of(&path).cloned();
        let events = self.events.clone();
        tokio::task::spawn_local(async move {
            let uid = record.process.uid;
            let made = tokio::task::spawn_blocking(move || volume?.prepare(&path.name, uid, size)).await;
            let result = made.unwrap_or_else(|_| {
                Err(refuse(
                    ErrorKind::Failed,
                    format!("VSA {name}"),
                    "making it was interrupted",
                    "try again",
                ))
            });
            let event = Event::Area { grant: record.grant, name, result, answer };
            // The send fails only when the daemon has ended. Then the file is closed here.
            let _ = events.send(event).await;
        });
    }

    /// Stops every process that has the area `label` open from writing to it.
    fn fence(&self, label: &str) -> Result<String, String> {
        let path = AreaPath::from_label(label);
        let volume = self.volumes.of(&path).map_err(|error| error.to_string())?;
        volume.fence(&path.name)
    }

    /// Checks that the area `label` still has `size` bytes, and fixes its size.
    pub(super) fn check_size(&self, label: &str, size: u64) -> Option<String> {
        let path = AreaPath::from_label(label);
        self.volumes.get(&path.volume)?.check_size(&path.name, size)
    }

    pub(super) fn area_ready(
        &mut self,
        grant: u64,
        name: &str,
        result: Result<AreaDescriptors, ErrorReply>,
        answer: oneshot::Sender<Answer>,
    ) {
        self.preparing.remove(name);
        let record = self.grants.get(&grant).cloned();
        let outcome = match (result, record) {
            (Ok(AreaDescriptors { layout: Some(layout), .. }), Some(record)) => {
                let attached = self.attach(&record, &layout);
                match &attached {
                    Ok(_) => {
                        self.counters.borrow_mut().grants += 1;
                        self.log_grant(&record, "VSA granted through the service core");
                    }
                    Err(_) => self.forget(grant),
                }
                attached
            }
            (Ok(opened), Some(record)) => {
                self.counters.borrow_mut().grants += 1;
                self.log_grant(&record, "VSA granted");
                Ok(self.vsa_answer(&record, opened))
            }
            (Ok(_), None) => {
                // Revoked meanwhile: the area that was just opened for writing is closed to writing
                // again.
                if self.revoked.contains(&key("VSA", name))
                    && let Err(why) = self.fence(name)
                {
                    self.warn(format!("VSA {name}: {why}"));
                }
                Err(refuse(
                    ErrorKind::Revoked,
                    format!("VSA {name}"),
                    "it was released or revoked meanwhile",
                    "try again",
                ))
            }
            (Err(error), _) => {
                self.forget(grant);
                Err(error)
            }
        };
        self.respond(answer, outcome);
    }

    pub(super) fn vsa_answer(&self, record: &GrantRecord, opened: AreaDescriptors) -> Answer {
        let size = match record.device {
            Device::Vsa { size } => size,
            Device::Vnic(_) | Device::Link(_) | Device::Port(_) => 0,
        };
        let path = AreaPath::from_label(&record.name);
        let volume = self.volumes.get(&path.volume);
        let body = Reply::Vsa(Box::new(VsaGrant {
            grant: record.grant,
            generation: record.generation,
            name: record.name.clone(),
            size,
            protection: volume
                .map_or_else(|| Protection::None(String::new()), |volume| self.protection(volume)),
            path: volume.map_or_else(String::new, |volume| volume.location(&path.name)),
            segments: opened.lengths,
            model: volume.and_then(|volume| volume.model()).filter(MemoryModel::slows),
            broker: None,
        }));
        Answer { body, descriptors: opened.files }
    }

    pub(super) async fn release(&mut self, connection: u64, grant: u64) -> Result<(), ErrorReply> {
        let process = &self.client(connection)?.process;
        if self.grants.get(&grant).is_none_or(|record| record.process != *process) {
            let fix = "name one that was given to this process";
            return Err(refuse(
                ErrorKind::Unknown,
                format!("grant {grant}"),
                "this process does not have it",
                fix,
            ));
        }
        self.end(grant, "released").await;
        Ok(())
    }

    pub(super) fn adopt(&self, process: &Process, held: HeldGrant) -> AdoptedGrant {
        let reason = match self.grants.get(&held.grant) {
            Some(record) if record.process != *process => "another process has it",
            Some(record) if record.generation != held.generation => "it is of another generation",
            Some(_) => "",
            None => "it was released or revoked",
        };
        AdoptedGrant { grant: held.grant, held: reason.is_empty(), reason: reason.to_owned() }
    }

    /// Ends every grant of `process`.
    pub(super) async fn end_all(&mut self, process: &Process, why: &str) {
        let of_process =
            |(grant, record): (&u64, &GrantRecord)| (record.process == *process).then_some(*grant);
        for grant in self.grants.iter().filter_map(of_process).collect::<Vec<_>>() {
            self.end(grant, why).await;
        }
    }

    /// Ends one grant: the device first, the record last.
    pub(super) async fn end(&mut self, grant: u64, why: &str) {
        let Some(record) = self.grants.get(&grant).cloned() else { return };
        self.unmake(&record).await;
        self.forget(grant);
        self.counters.borrow_mut().grants_ended += 1;
        if log_budget::admits(record.process.uid) {
            tracing::info!(grant, name = record.name, why, "{} grant ended", record.device.sort());
        }
        self.unwatch(&record.process);
    }

    /// Removes the device of a grant.
    pub(super) async fn unmake(&mut self, record: &GrantRecord) {
        let began = Instant::now();
        let failed = match &record.device {
            Device::Vnic(plan) => self.devices.close(plan).await.err().map(|error| error.to_string()),
            Device::Link(plan) => {
                self.cut(record, plan);
                None
            }
            Device::Port(_) => {
                self.unplug(record);
                None
            }
            Device::Vsa { .. } if self.is_brokered(&record.name) => {
                self.detach(record);
                None
            }
            Device::Vsa { size } => self.check_size(&record.name, *size),
        };
        self.charge(record.process.uid, began);
        if let Some(warning) = failed {
            self.warn(warning);
        }
    }

    /// Logs that a process has a device.
    pub(super) fn log_grant(&self, record: &GrantRecord, what: &str) {
        if log_budget::admits(record.process.uid) {
            tracing::info!(grant = record.grant, name = record.name, pid = record.process.pid, "{what}");
        }
    }

    pub(super) fn forget(&mut self, grant: u64) {
        self.grants.remove(&grant);
        self.captured_has_ended(grant);
        self.view_has_ended(grant);
        // A record that remains is found by the next start, with its process ended.
        if let Err(error) = self.state.forget(grant) {
            self.warn(error.to_string());
        }
    }

    /// Revokes a held device and notifies its holder. Returns a text that says what now stops the
    /// holder.
    pub(super) async fn revoke_held(&mut self, record: &GrantRecord) -> String {
        self.revoke_with(record, "revoked by an administrator").await
    }

    /// The same, for this reason.
    async fn revoke_with(&mut self, record: &GrantRecord, why: &str) -> String {
        let (sort, name, pid) = (record.device.sort(), &record.name, record.process.pid);
        let line = match &record.device {
            Device::Vnic(plan) => match self.devices.close(plan).await {
                Ok(()) => format!("{sort} {name}: taken from pid {pid}; its interface is removed"),
                Err(error) => {
                    self.warn(error.to_string());
                    format!("{sort} {name}: taken from pid {pid}, but {error}")
                }
            },
            Device::Link(plan) => {
                let how = self.cut(record, plan);
                format!("{sort} {name}: taken from pid {pid}; {how}")
            }
            Device::Port(_) => {
                let how = self.unplug(record);
                format!("{sort} {name}: taken from pid {pid}; {how}")
            }
            Device::Vsa { .. } if self.is_brokered(name) => {
                let how = self.detach(record);
                format!("{sort} {name}: taken from pid {pid}; {how}")
            }
            Device::Vsa { .. } => match self.fence(name) {
                Ok(how) => format!("{sort} {name}: taken from pid {pid}; {how}"),
                Err(why) => format!(
                    "{sort} {name}: refused from now on, but pid {pid} can still write to it ({why}); end that process"
                ),
            },
        };
        self.forget(record.grant);
        self.counters.borrow_mut().grants_revoked += 1;
        let notice = Notice::Revoked {
            grant: record.grant,
            generation: record.generation,
            name: name.clone(),
            reason: why.to_owned(),
        };
        self.notify(&record.process, &notice);
        self.unwatch(&record.process);
        tracing::info!(grant = record.grant, line, "revoked");
        line
    }
}

/// How `revoked` names a device.
pub(super) fn key(sort: &str, name: &str) -> String {
    format!("{} {name}", sort.to_ascii_lowercase())
}

fn vnic_answer(record: &GrantRecord, plan: &VnicPlan, opened: OpenedVnic, user: Option<u32>) -> Answer {
    let body = Reply::Vnic(Box::new(VnicGrant {
        grant: record.grant,
        generation: record.generation,
        name: plan.name.clone(),
        kind: VnicKind::Veth,
        interface: plan.application_interface.clone(),
        mac: plan.mac,
        address: plan.address.address,
        prefix: plan.address.prefix,
        address6: plan.ipv6.map(|(own, _)| own),
        gateway: Some(plan.host_address),
        gateway6: plan.ipv6.map(|(_, host)| host),
        gateway_mac: opened.gateway_mac,
        host_address: Some(plan.host_address),
        peer: None,
        mtu: opened.mtu,
        layout: QueueLayout::AfXdp(opened.layout),
        protection: Protection::KernelEnforced,
        tcp_ports: plan.tcp_ports.clone(),
        udp_ports: plan.udp_ports.clone(),
        peers: plan.peers.clone(),
        peers6: plan.peers6.clone(),
        rate: plan.rate,
        user,
    }));
    Answer { body, descriptors: vec![opened.xsk, opened.umem] }
}
