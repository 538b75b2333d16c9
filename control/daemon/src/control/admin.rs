//! Requests of administrators: status, counters, revoke, restore, reload.
//!
//! 1. *Status* is made from the devices themselves, not from the records: a VNIC whose veth is
//!    missing shows a problem.
//! 2. *Counters* are sent one group at a time; a cursor names the next. The pages of applications
//!    are untrusted. A page that cannot be read shows as empty.
//! 3. *Revoke* first records that the names are revoked, then ends the grants. So a crash in
//!    between leaves no revoked name usable. The answer has a line for each grant: what stops its
//!    holder now. Where the state cannot be written, the grants end all the same: the holder of an
//!    area may be what has filled the disk. The record is tried again then, and each second.
//!
//! The caller has checked that the client is an administrator.

use std::collections::{BTreeSet, HashMap};

use sietch_protocol::{
    ErrorKind, ErrorReply, GrantStatus, MemoryModel, Protection, Reply, Request, SOCKETS_PAGE, Stat,
    StatGroup, Status, Target, VnicKind, VnicStatus, VsaStatus,
};

use tokio::sync::oneshot;

use super::areas::shown_area;
use super::controller::{Control, refuse, state_failed};
use super::event::Answer;
use super::grants::key;
use crate::configuration::MAX_DEVICES;
use crate::options::VERSION;
use crate::state::{Device, GrantRecord, StateError};
use crate::volume::AreaPath;

impl Control {
    /// Requests whose answer needs the devices.
    pub(super) fn administer_later(&mut self, request: Request, answer: oneshot::Sender<Answer>) {
        match request {
            Request::Status => self.show_status(answer),
            Request::Stat { cursor } => self.stat(cursor, answer),
            Request::Revoke { target } => match self.revoke(target) {
                Ok(lines) => {
                    tokio::task::spawn_local(async move {
                        let mut done = Vec::new();
                        for line in lines {
                            // A line that never comes: the daemon ends.
                            done.extend(line.await.ok());
                        }
                        let _ = answer.send(Reply::Revoked(done).into());
                    });
                }
                Err(error) => {
                    self.respond(answer, Err(error));
                }
            },
            _ => {}
        }
    }

    pub(super) fn administer(&mut self, request: Request) -> Result<Reply, ErrorReply> {
        match request {
            Request::Restore { name } => self.restore_name(&name).map(|()| Reply::Done),
            Request::Reload => self.reload().map(|()| Reply::Done),
            Request::Shutdown => Ok(Reply::Done),
            _ => Err(refuse(
                ErrorKind::Invalid,
                "request",
                "it is none of an administrator",
                "see the protocol",
            )),
        }
    }

    /// The status. `problems`: why VNICs that are held pass no frames, by name.
    pub(super) fn status(&self, mut problems: HashMap<String, String>) -> Status {
        let network = self.devices.support();
        let vnic_protection = match &network {
            Ok(_) => Protection::KernelEnforced,
            Err(why) => Protection::None(why.clone()),
        };
        let vnics = self.configuration.vnics.iter().map(|vnic| {
            let record = self.holder(&vnic.name, true);
            let interface = record.and_then(|record| match &record.device {
                Device::Vnic(plan) => Some(plan.host_interface.clone()),
                Device::Link(_) | Device::Port(_) | Device::Vsa { .. } => None,
            });
            VnicStatus {
                name: vnic.name.clone(),
                uid: vnic.uid,
                kind: VnicKind::Veth,
                address: vnic.address,
                address6: vnic.ipv6.map(|(own, _)| own),
                mac: vnic.mac,
                interface,
                peer: None,
                protection: vnic_protection.clone(),
                rate: vnic.rate,
                revoked: self.revoked.contains(&key("VNIC", &vnic.name)),
                holder: record.map(|record| self.grant_status(record)),
                problem: problems.remove(&vnic.name),
            }
        });
        let mut vnics: Vec<VnicStatus> = vnics.chain(self.link_ends()).chain(self.switch_ports()).collect();
        vnics.sort_by(|a, b| a.name.cmp(&b.name));
        let vsas = self.vsas();
        Status {
            pid: std::process::id(),
            version: VERSION.to_owned(),
            generation: self.state.starts,
            configuration: self.configuration.path.display().to_string(),
            data: self.data.display().to_string(),
            network,
            service: self.service(),
            uplink: self.uplink.clone(),
            connections: u32::try_from(self.clients.len()).unwrap_or(u32::MAX),
            vnics,
            vsas,
            warnings: self
                .volumes
                .iter()
                .filter_map(|volume| volume.warning())
                .chain(self.unfit_areas())
                .chain(self.without_effect())
                .chain(self.warnings.kept())
                .collect(),
        }
    }

    /// The areas that `sietch.toml` names, and those that are held.
    fn vsas(&self) -> Vec<VsaStatus> {
        let named = self.configuration.vsas.iter();
        let mut paths: Vec<AreaPath> = named
            .map(|vsa| AreaPath { volume: vsa.volume.clone(), name: vsa.name.clone() })
            .chain(
                self.grants
                    .values()
                    .filter(|record| !record.device.is_vnic())
                    .map(|record| AreaPath::from_label(&record.name)),
            )
            .collect();
        paths.sort_by_key(AreaPath::label);
        paths.dedup();
        let statuses = paths.iter().take(2 * MAX_DEVICES).filter_map(|path| {
            let label = path.label();
            let volume = self.volumes.get(&path.volume)?;
            let (uid, size) = self.describe(path)?;
            Some(VsaStatus {
                uid,
                size,
                path: volume.location(&path.name),
                protection: self.protection(volume),
                model: volume.model().filter(MemoryModel::slows),
                revoked: self.revoked.contains(&key("VSA", &label)),
                holder: self.holder(&label, false).map(|record| self.grant_status(record)),
                usage: self.usage(&label),
                name: label,
            })
        });
        statuses.collect()
    }

    /// Both ends of every link.
    fn link_ends(&self) -> impl Iterator<Item = VnicStatus> {
        let sides = self.configuration.links.iter().flat_map(|link| [(link, 0), (link, 1)]);
        sides.map(|(link, side)| {
            let end = &link.ends[side];
            VnicStatus {
                name: end.name.clone(),
                uid: end.uid,
                kind: VnicKind::Link,
                address: end.address,
                address6: end.address6,
                mac: end.mac,
                interface: Some(format!("link {}", link.name)),
                peer: Some(link.ends[1 - side].name.clone()),
                protection: Protection::PointToPoint,
                rate: None,
                revoked: self.revoked.contains(&key("VNIC", &end.name)),
                holder: self.holder(&end.name, true).map(|record| self.grant_status(record)),
                problem: None,
            }
        })
    }

    /// Every port of the switch.
    fn switch_ports(&self) -> impl Iterator<Item = VnicStatus> {
        self.configuration.ports.iter().map(|port| VnicStatus {
            name: port.name.clone(),
            uid: port.uid,
            kind: VnicKind::Switch,
            address: port.address,
            address6: port.address6,
            mac: port.mac,
            interface: Some("switch".to_owned()),
            peer: None,
            protection: match self.service() {
                Some(_) => Protection::BrokerMediated,
                None => Protection::None(
                    "no service core runs; start `sietch service`, or let `sietch up` do so".to_owned(),
                ),
            },
            rate: port.rate,
            revoked: self.revoked.contains(&key("VNIC", &port.name)),
            holder: self.holder(&port.name, true).map(|record| self.grant_status(record)),
            problem: None,
        })
    }

    pub(super) fn grant_status(&self, record: &GrantRecord) -> GrantStatus {
        GrantStatus {
            grant: record.grant,
            generation: record.generation,
            pid: record.process.pid,
            uid: record.process.uid,
            client: record.client.clone(),
            connected: self.clients.values().any(|client| client.process == record.process),
        }
    }

    /// Group 0 is the daemon's, then one for each VNIC of the kernel that is held, then one for
    /// each page published: of applications, and of ports, areas and sockets by the service core.
    fn stat(&self, cursor: u32, answer: oneshot::Sender<Answer>) {
        let position = usize::try_from(cursor).unwrap_or(usize::MAX);
        let plans: Vec<_> = self.plans().collect();
        let ports: BTreeSet<String> = self.held_ports().collect();
        let mut pages = Vec::new();
        for (connection, client) in &self.clients {
            let serves = self.serves(*connection);
            // The service core shows ports, by their names; those that have ended are of no
            // interest. The same for areas, whose pages are named after their grants.
            let area = |label: &str| shown_area(&self.grants, label);
            let shown = client.pages.iter();
            let port = |label: &str| ports.contains(label);
            let shown = shown.filter(|(label, _)| {
                !serves || port(label) || area(label).is_some() || label.as_str() == SOCKETS_PAGE
            });
            let source = |label: &str| match area(label).filter(|_| serves) {
                Some(area) => format!("vsa {area}"),
                None if serves && port(label) => format!("vnic {label}"),
                None => label.to_owned(),
            };
            pages.extend(shown.map(|(label, page)| (client.process.pid, source(label), page)));
        }
        let total = 1 + plans.len() + pages.len();
        let next = (position + 1 < total).then(|| cursor.saturating_add(1));
        let group = if position == 0 {
            let metrics = self.counters.borrow().list();
            Some(StatGroup { source: "daemon".to_owned(), pid: Some(std::process::id()), metrics })
        } else if let Some(plan) = plans.get(position - 1) {
            let (source, metrics) = (format!("vnic {}", plan.name), self.devices.counters(plan));
            tokio::task::spawn_local(async move {
                let group = Some(StatGroup { source, pid: None, metrics: metrics.await });
                let _ = answer.send(Reply::Stat(Box::new(Stat { group, next })).into());
            });
            return;
        } else {
            pages.get(position - 1 - plans.len()).map(|(pid, source, page)| {
                // A page that cannot be read is the application's own fault and shows as empty.
                let metrics = sietch_protocol::metrics::read(page).unwrap_or_default();
                StatGroup { source: source.clone(), pid: Some(*pid), metrics }
            })
        };
        // It fails only if the client has disconnected.
        let _ = answer.send(Reply::Stat(Box::new(Stat { group, next })).into());
    }

    fn revoke(&mut self, target: Target) -> Result<Vec<oneshot::Receiver<String>>, ErrorReply> {
        let records: Vec<GrantRecord> = match &target {
            Target::Grant(grant) => self.grants.get(grant).cloned().into_iter().collect(),
            Target::Name(name) => {
                let area = self.resolve(name).map(|path| path.label()).ok();
                let named = |record: &&GrantRecord| match record.device.is_vnic() {
                    true => record.name == *name,
                    false => Some(&record.name) == area.as_ref(),
                };
                self.grants.values().filter(named).cloned().collect()
            }
        };
        let mut keys: Vec<String> =
            records.iter().map(|record| key(record.device.sort(), &record.name)).collect();
        if let Target::Name(name) = &target {
            let vnic = self.configuration.vnics.iter().any(|vnic| vnic.name == *name)
                || self.configuration.link_end(name).is_some()
                || self.configuration.port(name).is_some();
            let area = self.resolve(name).ok().filter(|path| self.describe(path).is_some());
            keys.extend(vnic.then(|| key("VNIC", name)));
            keys.extend(area.map(|path| key("VSA", &path.label())));
        }
        keys.sort();
        keys.dedup();
        if keys.is_empty() {
            let what = match target {
                Target::Grant(grant) => format!("grant {grant}"),
                Target::Name(name) => {
                    format!("name {}", name.chars().take(40).collect::<String>().escape_debug())
                }
            };
            return Err(refuse(ErrorKind::Unknown, what, "there is none", "see `sietch status`"));
        }
        self.unrecorded.extend(keys.iter().cloned());
        self.revoked.extend(keys.iter().cloned());
        self.record_revoked();
        let mut lines = Vec::new();
        for record in &records {
            lines.push(self.revoke_held(record));
        }
        if let Some(error) = self.record_revoked() {
            let (lines_of, line) = oneshot::channel();
            let _ = lines_of.send(format!(
                "revoked until this daemon ends, and not recorded yet: {error}; it is tried again each second"
            ));
            lines.push(line);
        }
        for idle in keys {
            if !records.iter().any(|record| key(record.device.sort(), &record.name) == idle) {
                let (lines_of, line) = oneshot::channel();
                let _ = lines_of.send(format!("{idle}: refused from now on; no process held it"));
                lines.push(line);
            }
        }
        Ok(lines)
    }

    fn restore_name(&mut self, name: &str) -> Result<(), ErrorReply> {
        let mut lifted = false;
        let area = self.resolve(name).map(|path| path.label()).unwrap_or_default();
        for key in [key("VNIC", name), key("VSA", &area)] {
            if self.revoked.contains(&key) {
                if !self.unrecorded.remove(&key) {
                    self.state.set_revoked(&key, false).map_err(|error| state_failed(&error))?;
                }
                self.revoked.remove(&key);
                lifted = true;
            }
        }
        if lifted {
            return Ok(());
        }
        let shown: String = name.chars().take(40).collect::<String>().escape_debug().collect();
        Err(refuse(ErrorKind::Unknown, format!("name {shown}"), "it is not revoked", "see `sietch status`"))
    }

    /// Writes revocations to the state that are not there. Returns why that is not possible.
    pub(super) fn record_revoked(&mut self) -> Option<StateError> {
        while let Some(key) = self.unrecorded.first() {
            if let Err(error) = self.state.set_revoked(key, true) {
                return Some(error);
            }
            self.unrecorded.pop_first();
        }
        None
    }
}
