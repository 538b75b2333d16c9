//! Storage areas: names, owners, quotas, and the work that changes them.
//!
//! 1. A name is a path `/VOLUME/NAME`, or the name of a `[[vsa]]`, or of an area on the volume
//!    `main` ([`Control::resolve`]).
//! 2. An area belongs to one uid: that of its `[[vsa]]`, else the uid it was created for. That user
//!    and administrators may resize, trim and remove it. Creating an area takes a quota on the
//!    volume, or an administrator.
//! 3. A user's areas on a volume never exceed its quota. Areas that are being created or grown
//!    count too. Areas of `sietch.toml` count, but are granted even beyond the quota: the author of
//!    that file has decided.
//! 4. Work on an area runs on a blocking thread and comes back as [`Event::Worked`]. Until then no
//!    other request can open or change the area.
//! 5. An area that is held can grow. Only its holder may shrink or trim it. Nothing can remove it
//!    while it is held.

mod brokered;
mod inspection;
mod reading;
mod views;

use std::sync::Arc;

use sietch_protocol::storage::split;
use sietch_protocol::{
    AreaPage, AreaStatus, AreaUsage, ErrorKind, ErrorReply, MAIN_VOLUME, QuotaStatus, Reply, Request,
    VolumeStatus,
};
use tokio::sync::oneshot;

use super::controller::{Control, refuse, state_failed};
use super::event::{Answer, Event};
use super::grants::key;
use super::tables::Pending;
use crate::configuration::Vsa;
use crate::identity::Process;
use crate::log_budget;
use crate::state::Device;
use crate::volume::{AreaChange, AreaDescriptors, AreaInfo, AreaPath, Volume};

pub(super) use brokered::shown_area;

/// Areas of one answer: with their holders they fit a frame.
const PAGE: usize = 64;
/// The most areas on one volume: a listing reads each of them.
pub(crate) const MAX_AREAS: usize = 1024;
/// The page of counters in which the holder of an area says how full its log is.
const LOG_PAGE: &str = "log";
/// The unit of an area's size and of what is trimmed.
const BLOCK: u64 = sietch_disk::BLOCK as u64;

impl Control {
    /// What a client means by `text`.
    pub(super) fn resolve(&self, text: &str) -> Result<AreaPath, ErrorReply> {
        let Some((volume, name)) = split(text) else {
            let shown: String = text.chars().take(80).collect::<String>().escape_debug().collect();
            let fix = "write /VOLUME/NAME or NAME, each of 1 to 32 letters, digits, `-` and `_`";
            return Err(refuse(
                ErrorKind::Invalid,
                format!("VSA {shown}"),
                "that is no name of an area",
                fix,
            ));
        };
        let named = self.configuration.vsas.iter().find(|vsa| vsa.name == name);
        let volume = match (volume, named) {
            (Some(volume), _) => volume.to_owned(),
            (None, Some(vsa)) => vsa.volume.clone(),
            (None, None) => MAIN_VOLUME.to_owned(),
        };
        Ok(AreaPath { volume, name: name.to_owned() })
    }

    /// The `[[vsa]]` that names the area at `path`.
    pub(super) fn configured(&self, path: &AreaPath) -> Option<&Vsa> {
        self.configuration.vsas.iter().find(|vsa| vsa.name == path.name && vsa.volume == path.volume)
    }

    /// User and size of an area, be it there or only in `sietch.toml`.
    pub(super) fn describe(&self, path: &AreaPath) -> Option<(u32, u64)> {
        let found = self.volumes.get(&path.volume).and_then(|volume| volume.find(&path.name));
        match (self.configured(path), found) {
            (Some(vsa), Some(found)) if found.recorded => Some((vsa.uid, found.size)),
            (Some(vsa), _) => Some((vsa.uid, vsa.size)),
            (None, Some(found)) => Some((found.uid?, found.size)),
            (None, None) => None,
        }
    }

    /// Starts the work of `request`, or answers at once.
    pub(super) fn store(&mut self, connection: u64, request: Request, answer: oneshot::Sender<Answer>) {
        let begun = match request {
            Request::CreateVsa { name, size, uid } => self.begin_create(connection, &name, size, uid),
            Request::ResizeVsa { name, size } => self.begin_resize(connection, &name, size),
            Request::TrimVsa { name, offset, length } => self.begin_trim(connection, &name, offset, length),
            Request::DeleteVsa { name } => self.begin_delete(connection, &name),
            Request::ListVsas { cursor } => {
                let page = self.list_areas(connection, cursor);
                self.respond(answer, page.map(|page| Reply::Areas(page).into()));
                return;
            }
            _ => {
                let volumes = self.list_volumes(connection);
                self.respond(answer, volumes.map(|volumes| Reply::Volumes(volumes).into()));
                return;
            }
        };
        match begun {
            Ok((path, volume, change, pending)) => {
                let first = self.shorten_first(&path, &volume, change, connection, pending, answer);
                if let Some(answer) = first {
                    self.preparing.insert(path.label(), pending);
                    self.begin_work(path, volume, change, connection, answer);
                }
            }
            Err(error) => {
                self.respond(answer, Err(error));
            }
        }
    }

    /// Runs `work` on a blocking thread. [`Event::Worked`] reports its end.
    pub(super) fn begin_work(
        &mut self,
        path: AreaPath,
        volume: Arc<Volume>,
        change: AreaChange,
        connection: u64,
        answer: oneshot::Sender<Answer>,
    ) {
        let events = self.events.clone();
        let requester = self.client(connection).ok().map(|client| client.process.clone());
        let holder = self.holder(&path.label(), false).map(|record| &record.process);
        let held = holder.is_some();
        let by_holder = held && holder == requester.as_ref();
        tokio::task::spawn_local(async move {
            let name = path.name.clone();
            let done = tokio::task::spawn_blocking(move || {
                volume.work(&name, change, held)?;
                // The holder is sent the descriptors that the area consists of now.
                let mapped_anew = by_holder && matches!(change, AreaChange::Resize { .. });
                mapped_anew.then(|| volume.remap(&name)).transpose()
            });
            let done = done.await;
            let result = done.unwrap_or_else(|_| {
                let what = format!("VSA {}", path.full());
                Err(refuse(
                    ErrorKind::Failed,
                    what,
                    "the work was interrupted",
                    "see `sietch vsa list`, and try again",
                ))
            });
            // The send fails only when the daemon has ended.
            let _ = events.send(Event::Worked { path, change, result, requester, answer }).await;
        });
    }

    /// A change of an area is done.
    pub(super) fn worked(
        &mut self,
        path: &AreaPath,
        change: AreaChange,
        result: Result<Option<AreaDescriptors>, ErrorReply>,
        requester: Option<&Process>,
        answer: oneshot::Sender<Answer>,
    ) {
        self.preparing.remove(&path.label());
        let outcome = result.and_then(|opened| {
            if requester.is_none_or(|requester| log_budget::admits(requester.uid, &path.name)) {
                tracing::info!(area = path.full(), ?change, "done");
            }
            self.counters.borrow_mut().areas_changed += 1;
            match change {
                AreaChange::Delete => Ok(Reply::Done.into()),
                AreaChange::Resize { size } => {
                    self.resized(path, size)?;
                    // A grant may have ended or been revoked meanwhile.
                    let holder = self.holder(&path.label(), false).map(|record| &record.process);
                    let opened = opened.filter(|_| holder.is_some() && holder == requester);
                    let mut answer = self.area_answer(path)?;
                    if let (Some(opened), Reply::Area(area)) = (opened, &mut answer.body) {
                        area.segments = opened.lengths;
                        answer.descriptors = opened.files.into_iter().map(Into::into).collect();
                    }
                    Ok(answer)
                }
                AreaChange::Create { .. } | AreaChange::Trim { .. } => self.area_answer(path),
            }
        });
        if outcome.is_ok() {
            // A service core that serves the area is notified before its holder.
            match self.lengthen_after(path, change, answer) {
                Some(answer) => self.respond(answer, outcome),
                None => return,
            };
        } else {
            self.respond(answer, outcome);
        }
    }

    /// Records that the holder of the area has `size` bytes from now on.
    fn resized(&mut self, path: &AreaPath, size: u64) -> Result<(), ErrorReply> {
        let Some(grant) = self.holder(&path.label(), false).map(|record| record.grant) else {
            return Ok(());
        };
        let Some(record) = self.grants.get_mut(&grant) else { return Ok(()) };
        record.device = Device::Vsa { size };
        self.state.keep(record).map_err(|error| state_failed(&error))
    }

    pub(super) fn area_answer(&self, path: &AreaPath) -> Result<Answer, ErrorReply> {
        let volume = self.volumes.of(path)?;
        let found = volume.find(&path.name).ok_or_else(|| unknown(path))?;
        Ok(Reply::Area(Box::new(self.area_status(volume, path, &found))).into())
    }

    /// How full the area `label` is, as its holder says. Its page is untrusted, and only shown.
    pub(super) fn usage(&self, label: &str) -> Option<AreaUsage> {
        let holder = self.holder(label, false)?;
        let of_holder = self.clients.values().filter(|client| client.process == holder.process);
        let (_, page) = of_holder.flat_map(|client| &client.pages).find(|(layer, _)| layer == LOG_PAGE)?;
        let metrics = sietch_protocol::metrics::read(page).ok()?;
        let value = |name| metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value);
        Some(AreaUsage { used: value("used_bytes")?, full: value("full") == Some(1) })
    }

    pub(super) fn area_status(&self, volume: &Volume, path: &AreaPath, found: &AreaInfo) -> AreaStatus {
        let configured = self.configured(path);
        AreaStatus {
            path: path.full(),
            uid: found.uid.or(configured.map(|vsa| vsa.uid)).unwrap_or(u32::MAX),
            size: found.size,
            allocated: found.allocated,
            extents: found.extents,
            segments: Vec::new(),
            configured: configured.is_some(),
            protection: self.protection(volume),
            revoked: self.revoked.contains(&key("VSA", &path.label())),
            holder: self.holder(&path.label(), false).map(|record| self.grant_status(record)),
            modified: volume.modified(&found.name),
            usage: self.usage(&path.label()),
            view: self.holder(&path.label(), false).is_some_and(|record| self.viewer(record).is_some()),
        }
    }

    fn list_areas(&self, connection: u64, cursor: u32) -> Result<AreaPage, ErrorReply> {
        let uid = self.client(connection)?.process.uid;
        let all = self.check_administrator(connection).is_ok();
        let mut areas = Vec::new();
        for volume in self.volumes.iter() {
            for found in volume.list() {
                if all || found.uid == Some(uid) {
                    let path = AreaPath { volume: volume.definition.name.clone(), name: found.name.clone() };
                    areas.push(self.area_status(volume, &path, &found));
                }
            }
        }
        areas.sort_by(|a, b| a.path.cmp(&b.path));
        let first = usize::try_from(cursor).unwrap_or(usize::MAX).min(areas.len());
        let next = first.saturating_add(PAGE);
        let more = next < areas.len();
        let page = areas.drain(first..next.min(areas.len())).collect();
        Ok(AreaPage { areas: page, next: u32::try_from(next).ok().filter(|_| more) })
    }

    fn list_volumes(&self, connection: u64) -> Result<Vec<VolumeStatus>, ErrorReply> {
        let uid = self.client(connection)?.process.uid;
        let all = self.check_administrator(connection).is_ok();
        let statuses = self.volumes.iter().map(|volume| {
            let (capacity, free) = volume.room();
            let areas = volume.list();
            let quotas = volume.definition.quotas.iter().filter(|quota| all || quota.uid == uid);
            VolumeStatus {
                name: volume.definition.name.clone(),
                kind: volume.definition.kind,
                path: volume.place(),
                broken: volume.failure(),
                capacity,
                free,
                areas: u32::try_from(areas.len()).unwrap_or(u32::MAX),
                model: volume.model(),
                durability: volume.durability().to_owned(),
                quotas: quotas
                    .map(|quota| QuotaStatus {
                        uid: quota.uid,
                        bytes: quota.bytes,
                        used: used(&areas, quota.uid),
                    })
                    .collect(),
            }
        });
        Ok(statuses.collect())
    }

    /// Whether `more` bytes on `volume` are within what `uid` may have.
    fn check_quota(
        &self,
        connection: u64,
        path: &AreaPath,
        uid: u32,
        more: u64,
        all: &[AreaInfo],
    ) -> Result<(), ErrorReply> {
        let volume = self.volumes.of(path)?;
        let what = format!("VSA {}", path.full());
        let file = self.configuration.path.display();
        let Some(quota) = volume.definition.quota(uid) else {
            if self.check_administrator(connection).is_ok() {
                return Ok(());
            }
            let cause = format!("uid {uid} has no quota on volume {}", path.volume);
            let fix = format!("add a [[volume.quota]] to {file}, or ask an administrator");
            return Err(refuse(ErrorKind::Denied, what, cause, fix));
        };
        let on_volume = |label: &String| AreaPath::from_label(label).volume == path.volume;
        let pending = self.preparing.iter().filter(|(label, pending)| pending.uid == uid && on_volume(label));
        let pending: u64 = pending.map(|(_, pending)| pending.more).sum();
        let used = used(all, uid).saturating_add(pending);
        if used.saturating_add(more) <= quota {
            return Ok(());
        }
        let cause = format!(
            "{more} bytes more are over the quota of uid {uid} on volume {}: {used} of {quota} bytes are used",
            path.volume
        );
        let fix = format!("delete or shrink areas, or raise the quota in {file}");
        Err(refuse(ErrorKind::Limit, what, cause, fix))
    }

    fn begin_create(
        &mut self,
        connection: u64,
        name: &str,
        size: u64,
        uid: Option<u32>,
    ) -> Result<Begun, ErrorReply> {
        let own = self.client(connection)?.process.uid;
        let uid = uid.unwrap_or(own);
        let path = self.resolve(name)?;
        let what = format!("VSA {}", path.full());
        if uid != own {
            self.check_administrator(connection)?;
        }
        check_whole(&what, &[size])?;
        let volume = Arc::clone(self.volumes.of(&path)?);
        self.check_idle(&path)?;
        let namesake = self.configuration.vsas.iter().find(|vsa| vsa.name == path.name);
        if let Some(vsa) = namesake.filter(|vsa| vsa.volume == path.volume || path.volume == MAIN_VOLUME) {
            let cause = format!("sietch.toml has given that name to an area of uid {}", vsa.uid);
            let fix = "choose another name; that area is made when it is first acquired";
            return Err(refuse(ErrorKind::Invalid, what, cause, fix));
        }
        let all = volume.list();
        if all.iter().any(|area| area.name == path.name) {
            // The error reveals that the area exists even to users that may not open it: names are
            // global.
            let fix = "choose another name, or `sietch vsa delete` it first";
            return Err(refuse(ErrorKind::Busy, what, "there is an area of that name", fix));
        }
        if all.len() + self.preparing.len() >= MAX_AREAS {
            let cause = format!("the volume has its most areas, {MAX_AREAS}");
            return Err(refuse(ErrorKind::Limit, what, cause, "delete some, or use another volume"));
        }
        self.check_quota(connection, &path, uid, size, &all)?;
        Ok((path, volume, AreaChange::Create { uid, size }, Pending { uid, more: size }))
    }

    fn begin_resize(&mut self, connection: u64, name: &str, size: u64) -> Result<Begun, ErrorReply> {
        let (path, volume, found) = self.own_area(connection, name)?;
        let what = format!("VSA {}", path.full());
        check_whole(&what, &[size])?;
        let uid = found.uid.unwrap_or(u32::MAX);
        if size < found.size {
            self.check_quiet(&path)?;
            self.check_not_anothers(connection, &path, "shortened")?;
        } else {
            let more = size.saturating_sub(found.charge);
            self.check_quota(connection, &path, uid, more, &volume.list())?;
        }
        let more = size.saturating_sub(found.charge);
        Ok((path, volume, AreaChange::Resize { size }, Pending { uid, more }))
    }

    fn begin_trim(
        &mut self,
        connection: u64,
        name: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Begun, ErrorReply> {
        let (path, volume, found) = self.own_area(connection, name)?;
        let what = format!("VSA {}", path.full());
        let length = length.unwrap_or(found.size.saturating_sub(offset));
        check_whole(&what, &[length])?;
        let inside = offset.checked_add(length).is_some_and(|end| end <= found.size);
        if !inside || !offset.is_multiple_of(BLOCK) {
            let cause = format!("{length} bytes from {offset} are not blocks of its {} bytes", found.size);
            let fix = format!("name a range inside it that begins at a multiple of {BLOCK}");
            return Err(refuse(ErrorKind::Invalid, what, cause, fix));
        }
        self.check_quiet(&path)?;
        self.check_not_anothers(connection, &path, "trimmed")?;
        Ok((path, volume, AreaChange::Trim { offset, length }, Pending::OPENING))
    }

    fn begin_delete(&mut self, connection: u64, name: &str) -> Result<Begun, ErrorReply> {
        let (path, volume, _) = self.own_area(connection, name)?;
        if let Some(holder) = self.holder(&path.label(), false) {
            let cause = format!("pid {} (`{}`) has it", holder.process.pid, holder.client);
            let fix = format!("end that process, or `sietch revoke {}`", path.label());
            return Err(refuse(ErrorKind::Busy, format!("VSA {}", path.full()), cause, fix));
        }
        self.check_quiet(&path)?;
        Ok((path, volume, AreaChange::Delete, Pending::OPENING))
    }

    /// An area that is there and that this client may change.
    fn own_area(&self, connection: u64, name: &str) -> Result<(AreaPath, Arc<Volume>, AreaInfo), ErrorReply> {
        let uid = self.client(connection)?.process.uid;
        let path = self.resolve(name)?;
        let volume = Arc::clone(self.volumes.of(&path)?);
        let found = volume.find(&path.name).ok_or_else(|| unknown(&path))?;
        if found.uid != Some(uid) && self.check_administrator(connection).is_err() {
            let cause = format!("it is not for uid {uid}");
            return Err(refuse(
                ErrorKind::Denied,
                format!("VSA {}", path.full()),
                cause,
                "run as its user, or as an administrator",
            ));
        }
        self.check_idle(&path)?;
        Ok((path, volume, found))
    }

    pub(super) fn check_idle(&self, path: &AreaPath) -> Result<(), ErrorReply> {
        if !self.preparing.contains_key(&path.label()) {
            return Ok(());
        }
        let what = format!("VSA {}", path.label());
        Err(refuse(ErrorKind::Busy, what, "it is being made or changed", "try again in a while"))
    }

    /// What another process holds is not taken from under it.
    fn check_not_anothers(&self, connection: u64, path: &AreaPath, verb: &str) -> Result<(), ErrorReply> {
        let process = &self.client(connection)?.process;
        match self.holder(&path.label(), false) {
            Some(holder) if holder.process != *process => {
                let cause = format!(
                    "pid {} (`{}`) has it, and only it may have it {verb}",
                    holder.process.pid, holder.client
                );
                let fix = "ask through that process, or end it first";
                Err(refuse(ErrorKind::Busy, format!("VSA {}", path.full()), cause, fix))
            }
            _ => Ok(()),
        }
    }
}

/// What is to be done, to what, and what it counts for meanwhile.
type Begun = (AreaPath, Arc<Volume>, AreaChange, Pending);

fn used(areas: &[AreaInfo], uid: u32) -> u64 {
    areas.iter().filter(|area| area.uid == Some(uid)).map(|area| area.charge).sum()
}

pub(super) fn unknown(path: &AreaPath) -> ErrorReply {
    let what = format!("VSA {}", path.full());
    refuse(ErrorKind::Unknown, what, "there is none of that name", "see `sietch vsa list`, or create it")
}

fn check_whole(what: &str, sizes: &[u64]) -> Result<(), ErrorReply> {
    match sizes.iter().find(|&&size| size == 0 || !size.is_multiple_of(BLOCK)) {
        None => Ok(()),
        Some(size) => {
            let cause = format!("{size} bytes are not a positive multiple of {BLOCK}");
            Err(refuse(ErrorKind::Invalid, what, cause, "write it in MiB or GiB"))
        }
    }
}
