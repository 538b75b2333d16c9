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
//!
//! VNICs of the kernel have a file of their own (`vnics`).

use std::time::Instant;

use sietch_protocol::{
    AdoptedGrant, ErrorKind, ErrorReply, HeldGrant, MemoryModel, Notice, Protection, Reply, VsaGrant,
};
use tokio::sync::oneshot;

use super::controller::{Control, refuse, state_failed};
use super::event::{Answer, Event, LeftArea};
use super::tables::{Ending, Pending, Waiter};
use crate::configuration::{Link, Port, Vnic};
use crate::device::VnicPlan;
use crate::identity::Process;
use crate::log_budget;
use crate::state::{Device, GrantRecord};
use crate::volume::{AreaDescriptors, AreaPath};

/// A VNIC of `sietch.toml`, by how it is made.
enum Granted {
    Veth(Vnic),
    End(Link, usize),
    Port(Port),
}

impl Control {
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

    /// Grants a VNIC, or begins to make it. A name whose last holder is being removed is granted
    /// after that.
    pub(super) fn acquire_vnic(&mut self, connection: u64, name: String, answer: oneshot::Sender<Answer>) {
        let closing = self.holder(&name, true).map(|holder| holder.grant);
        let closing = closing.filter(|grant| self.closing.contains_key(grant));
        if let (Some(grant), Ok(_)) = (closing, self.client(connection)) {
            // It is closing: this succeeds.
            let _ = self.wait_for_close(grant, Waiter::Acquisition { connection, name, answer });
            return;
        }
        let outcome = match self.find_vnic(connection, &name) {
            Ok(Granted::Veth(vnic)) => return self.acquire_veth(connection, &vnic, answer),
            Ok(Granted::End(link, side)) => self.acquire_link(connection, &link, side),
            Ok(Granted::Port(port)) => self.acquire_port(connection, &port),
            Err(error) => Err(error),
        };
        self.respond(answer, outcome);
    }

    /// The VNIC of this name, which the client may have now.
    fn find_vnic(&self, connection: u64, name: &str) -> Result<Granted, ErrorReply> {
        let uid = self.client(connection)?.process.uid;
        if let Some((link, side)) = self.configuration.link_end(name) {
            self.check(name, true, Some(link.ends[side].uid), uid)?;
            return Ok(Granted::End(link.clone(), side));
        }
        if let Some(port) = self.configuration.port(name) {
            self.check(name, true, Some(port.uid), uid)?;
            return Ok(Granted::Port(port.clone()));
        }
        let vnic = self.configuration.vnics.iter().find(|vnic| vnic.name == name);
        let service = self.configuration.service_uid;
        let holder = vnic.map(|vnic| if vnic.served { service } else { vnic.uid });
        self.check(name, true, holder, uid)?;
        let none = || refuse(ErrorKind::Unknown, "VNIC", "there is none of that name", "see `sietch status`");
        vnic.cloned().map(Granted::Veth).ok_or_else(none)
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
                    // It was revoked by an administrator: the client cannot repeat this.
                    self.warn(None, format!("VSA {name}: {why}"));
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
        Answer { body, descriptors: opened.files.into_iter().map(Into::into).collect() }
    }

    /// Ends a grant of this process, and answers when its device is removed.
    pub(super) fn release(&mut self, connection: u64, grant: u64, answer: oneshot::Sender<Answer>) {
        let held = self.client(connection).map(|client| &client.process).and_then(|process| {
            let fix = "name one that was given to this process";
            let none =
                || refuse(ErrorKind::Unknown, format!("grant {grant}"), "this process does not have it", fix);
            self.grants.get(&grant).filter(|record| record.process == *process).map(|_| ()).ok_or_else(none)
        });
        if let Err(error) = held {
            self.respond(answer, Err(error));
            return;
        }
        self.end(grant, "released");
        if let Err(Waiter::Release(answer)) = self.wait_for_close(grant, Waiter::Release(answer)) {
            self.respond(answer, Ok(Reply::Done.into()));
        }
    }

    pub(super) fn adopt(&self, process: &Process, held: HeldGrant) -> AdoptedGrant {
        let reason = match self.grants.get(&held.grant) {
            Some(record) if record.process != *process => "another process has it",
            Some(record) if record.generation != held.generation => "it is of another generation",
            Some(_) if !self.closing.contains_key(&held.grant) => "",
            _ => "it was released or revoked",
        };
        AdoptedGrant { grant: held.grant, held: reason.is_empty(), reason: reason.to_owned() }
    }

    /// Ends every grant of `process`.
    pub(super) fn end_all(&mut self, process: &Process, why: &str) {
        let of_process =
            |(grant, record): (&u64, &GrantRecord)| (record.process == *process).then_some(*grant);
        for grant in self.grants.iter().filter_map(of_process).collect::<Vec<_>>() {
            self.end(grant, why);
        }
    }

    /// Ends one grant: the device first, the record last.
    pub(super) fn end(&mut self, grant: u64, why: &str) {
        let Some(record) = self.grants.get(&grant).cloned() else { return };
        match &record.device {
            Device::Vnic(plan) => self.close_veth(&record, plan, Ending::Ended(why.to_owned())),
            _ => {
                self.unmake(&record);
                self.ended(&record, why);
            }
        }
    }

    /// The device of a grant is removed.
    pub(super) fn ended(&mut self, record: &GrantRecord, why: &str) {
        self.forget(record.grant);
        self.counters.borrow_mut().grants_ended += 1;
        if log_budget::admits(record.process.uid, why) {
            tracing::info!(
                grant = record.grant,
                name = record.name,
                why,
                "{} grant ended",
                record.device.sort()
            );
        }
        self.unwatch(&record.process);
    }

    /// Removes the device of a grant, if it is no VNIC of the kernel.
    pub(super) fn unmake(&mut self, record: &GrantRecord) {
        let began = Instant::now();
        match &record.device {
            Device::Vnic(_) => {}
            Device::Link(plan) => {
                self.cut(record, plan);
            }
            Device::Port(_) => {
                self.unplug(record);
            }
            Device::Vsa { .. } if self.is_brokered(&record.name) => {
                self.detach(record);
            }
            Device::Vsa { size } => {
                if let Some(warning) = self.check_size(&record.name, *size) {
                    self.warn(Some(record.process.uid), warning);
                }
            }
        }
        self.charge(record.process.uid, began.elapsed());
    }

    /// Logs that a process has a device.
    pub(super) fn log_grant(&self, record: &GrantRecord, what: &str) {
        if log_budget::admits(record.process.uid, what) {
            tracing::info!(grant = record.grant, name = record.name, pid = record.process.pid, "{what}");
        }
    }

    pub(super) fn forget(&mut self, grant: u64) {
        let record = self.grants.remove(&grant);
        let user = record.as_ref().map(|record| record.process.uid);
        if let Some(record) = record.filter(|record| !record.device.is_vnic()) {
            self.left.insert(record.name, LeftArea { uid: record.process.uid, at: Instant::now() });
        }
        self.captured_has_ended(grant);
        self.view_has_ended(grant);
        // A record that remains is found by the next start, with its process ended.
        if let Err(error) = self.state.forget(grant) {
            self.warn(user, error.to_string());
        }
    }

    /// Revokes a held device and notifies its holder. The future returns a text that says what now
    /// stops the holder.
    pub(super) fn revoke_held(&mut self, record: &GrantRecord) -> oneshot::Receiver<String> {
        const WHY: &str = "revoked by an administrator";
        let (lines, line) = oneshot::channel();
        let text = match &record.device {
            Device::Vnic(plan) => {
                self.close_veth(record, plan, Ending::Revoked(WHY.to_owned()));
                // It is closing: this succeeds.
                let _ = self.wait_for_close(record.grant, Waiter::Revocation(lines));
                return line;
            }
            Device::Link(plan) => Ok(self.cut(record, plan)),
            Device::Port(_) => Ok(self.unplug(record)),
            Device::Vsa { .. } if self.is_brokered(&record.name) => Ok(self.detach(record)),
            Device::Vsa { .. } => self.fence(&record.name),
        };
        let (sort, name, pid) = (record.device.sort(), &record.name, record.process.pid);
        let stopped = text.is_ok();
        let text = match text {
            Ok(how) => format!("{sort} {name}: taken from pid {pid}; {how}"),
            Err(why) => format!(
                "{sort} {name}: refused from now on, but pid {pid} can still write to it ({why}); end that process"
            ),
        };
        self.taken(record, WHY, &text);
        if stopped && !self.has_grown(&record.name) {
            self.left.remove(&record.name);
        }
        // The receiver is here.
        let _ = lines.send(text);
        line
    }

    /// A revoked device has stopped working: notifies its holder.
    pub(super) fn taken(&mut self, record: &GrantRecord, why: &str, line: &str) {
        self.forget(record.grant);
        self.counters.borrow_mut().grants_revoked += 1;
        let notice = Notice::Revoked {
            grant: record.grant,
            generation: record.generation,
            name: record.name.clone(),
            reason: why.to_owned(),
        };
        self.notify(&record.process, &notice);
        self.unwatch(&record.process);
        tracing::info!(grant = record.grant, line, "revoked");
    }
}

/// How `revoked` names a device.
pub(super) fn key(sort: &str, name: &str) -> String {
    format!("{} {name}", sort.to_ascii_lowercase())
}
