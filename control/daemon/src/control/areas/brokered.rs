//! Areas on volumes of extents, which applications reach through the service core.
//!
//! 1. Granting: the daemon sends the service core the volume's descriptor, unless the core has it.
//!    Then it sends the area's extents with one end of a queue pair in shared memory. The
//!    application gets the other end. The daemon keeps neither end.
//! 2. Ending (released, revoked, process dead): the daemon sends `detach` to the core. The core
//!    accepts no more requests, and sends `detached` when none is in flight. Until then the area is
//!    *leaving*, and every request for it waits without a limit.
//! 3. An area that is held changes its extents by `reshape`. Growing: the volume first, then the
//!    core, then the answer. Shrinking: the core first, when nothing is in flight, then the volume.
//! 4. When a service core ends, its grants end. Requests that it had sent to a device may still
//!    complete. The volume's lock shows when none can any more. Before that, no area is granted,
//!    shortened or removed.
//! 5. A restart of the daemon disturbs no application. The core reports what it has: grants that it
//!    does not name have ended, and areas that no process holds are detached.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sietch_disk::broker::{BrokerLayout, create_pair, peer_socket};
use sietch_protocol::message::MAX_HELD;
use sietch_protocol::{AreaGrant, BrokerShape, HeldStorage};
use sietch_protocol::{ErrorKind, ErrorReply, HeldGrant, Notice, Protection, Reply, Request, VolumeKind};
use tokio::sync::oneshot;

use crate::control::controller::{Control, SERVICE_CORE_ENDED, refuse};
use crate::control::event::{Answer, Event};
use crate::control::tables::{AfterReshape, Brokered, Pending, WaitingRequest};
use crate::granted::GrantedDescriptor;
use crate::state::{Device, GrantRecord};
use crate::volume::{AreaChange, AreaDescriptors, AreaLayout, AreaPath, Volume};

/// How long a request waits for the last requests of a service core that has ended: they land
/// within milliseconds on a disk that works.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

impl Control {
    /// Whether the area is on a volume of extents.
    pub(in crate::control) fn is_brokered(&self, label: &str) -> bool {
        let volume = self.volumes.get(&AreaPath::from_label(label).volume);
        volume.is_some_and(|volume| volume.definition.kind == VolumeKind::Extents)
    }

    /// What currently keeps a holder inside its area on `volume`.
    pub(in crate::control) fn protection(&self, volume: &Volume) -> Protection {
        match volume.protection() {
            Protection::BrokerMediated if self.brokered.service.is_none() => {
                Protection::None(format!("{NO_CORE}; {START}"))
            }
            other => other,
        }
    }

    /// Queues a request that must wait until an area has left the service core. Returns any other
    /// request to the caller.
    pub(in crate::control) fn wait_for_broker(
        &mut self,
        connection: u64,
        request: Request,
        answer: oneshot::Sender<Answer>,
    ) -> Option<(Request, oneshot::Sender<Answer>)> {
        let name = match &request {
            Request::AcquireVsa { name }
            | Request::ResizeVsa { name, .. }
            | Request::TrimVsa { name, .. }
            | Request::DeleteVsa { name } => name,
            _ => return Some((request, answer)),
        };
        let Ok(path) = self.resolve(name) else { return Some((request, answer)) };
        let label = path.label();
        if self.brokered.leaving.values().any(|leaving| *leaving == label) {
            self.brokered.waiting.push(WaitingRequest { label, connection, request, answer });
            return None;
        }
        let wanted = self.brokered.service.is_some() || !matches!(request, Request::AcquireVsa { .. });
        if wanted && self.check_quiet(&path).is_err() {
            // The kernel may be about to close what a core had that has just ended.
            let now = Instant::now();
            let until = *self.brokered.deadlines.entry(connection).or_insert(now + PATIENCE);
            if now < until {
                self.ask_again(WaitingRequest { label, connection, request, answer }, PAUSE);
                return None;
            }
        }
        self.brokered.deadlines.remove(&connection);
        Some((request, answer))
    }

    /// Submits a request again after a delay.
    fn ask_again(&self, waiting: WaitingRequest, after: Duration) {
        let WaitingRequest { connection, request, answer, .. } = waiting;
        let events = self.events.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(after).await;
            let event = Event::Request { connection, request, descriptors: Vec::new(), answer };
            // The send fails only when the daemon has ended.
            let _ = events.send(event).await;
        });
    }

    /// Submits the waiting requests again whose area is not leaving any more.
    fn wake(&mut self) {
        let Brokered { leaving, waiting, .. } = &mut self.brokered;
        let (still, ready): (Vec<_>, Vec<_>) = std::mem::take(waiting)
            .into_iter()
            .partition(|one| leaving.values().any(|label| *label == one.label));
        *waiting = still;
        for waiting in ready {
            self.ask_again(waiting, Duration::ZERO);
        }
    }

    /// Whether nothing of a service core that is unknown here can reach the volume of `path`.
    pub(in crate::control) fn check_quiet(&self, path: &AreaPath) -> Result<(), ErrorReply> {
        if !self.is_brokered(&path.label()) || self.brokered.volumes.contains(&path.volume) {
            return Ok(());
        }
        let what = format!("VSA {}", path.full());
        match self.volumes.of(path)?.is_leased() {
            Ok(false) => Ok(()),
            Ok(true) => {
                let cause = "a service core that this daemon does not know has the volume, or its last requests are under way";
                Err(refuse(
                    ErrorKind::Busy,
                    what,
                    cause,
                    "try again; stop that service core if this persists",
                ))
            }
            Err(cause) => Err(refuse(ErrorKind::Failed, what, cause, "see whether the volume is there")),
        }
    }

    /// Whether the area at `path` could be granted through the service core.
    pub(in crate::control) fn check_served(&self, path: &AreaPath) -> Result<(), ErrorReply> {
        if !self.is_brokered(&path.label()) {
            return Ok(());
        }
        if self.brokered.service.is_none() {
            return Err(refuse(ErrorKind::Unsupported, format!("VSA {}", path.label()), NO_CORE, START));
        }
        let brokered = |record: &&GrantRecord| !record.device.is_vnic() && self.is_brokered(&record.name);
        let served = self.grants.values().filter(brokered).count() + self.brokered.leaving.len();
        if served >= MAX_HELD {
            // What it has it must be able to say in one message.
            let cause = format!("the service core has its most areas, {MAX_HELD}");
            let fix = "release some, or put areas on a volume of kind \"directory\"";
            return Err(refuse(ErrorKind::Limit, format!("VSA {}", path.label()), cause, fix));
        }
        self.check_quiet(path)
    }

    /// Attaches an area to the service core, and sends the other end to the requester.
    pub(in crate::control) fn attach(
        &mut self,
        record: &GrantRecord,
        layout: &AreaLayout,
    ) -> Result<Answer, ErrorReply> {
        let path = AreaPath::from_label(&record.name);
        let what = format!("VSA {}", record.name);
        let Some(service) = self.brokered.service else {
            return Err(refuse(ErrorKind::Unsupported, what, NO_CORE, START));
        };
        let failed = |cause: String| {
            refuse(
                ErrorKind::Failed,
                format!("VSA {}", record.name),
                cause,
                "see the logs of daemon and service core",
            )
        };
        let unread = || failed("the service core does not read".to_owned());
        if !self.brokered.volumes.contains(&path.volume) {
            self.check_quiet(&path)?;
            let (file, bytes) = self.volumes.of(&path)?.lease().map_err(failed)?;
            let notice = Notice::Volume { name: path.volume.clone(), bytes };
            if !self.send_notice(service, notice, vec![file.into()]) {
                return Err(unread());
            }
            self.brokered.volumes.insert(path.volume.clone());
        }
        let broker_layout = BrokerLayout::usual(layout.block);
        let pair = create_pair(broker_layout, record.generation)
            .map_err(|error| failed(format!("cannot make its memory: {error}")))?;
        let shape =
            BrokerShape { slots: broker_layout.slots, data: broker_layout.data, block: broker_layout.block };
        let grant = AreaGrant {
            grant: record.grant,
            generation: record.generation,
            name: record.name.clone(),
            volume: path.volume,
            extents: layout.extents.clone(),
            shape,
            uid: record.process.uid,
        };
        let doorbell = GrantedDescriptor::Peer(peer_socket(pair.host.doorbell, record.process.uid));
        let descriptors = vec![pair.host.memory.into(), doorbell];
        if !self.send_notice(service, Notice::Area(Box::new(grant)), descriptors) {
            return Err(unread());
        }
        let descriptors = [pair.application.memory, pair.application.doorbell].map(Into::into).into();
        let nothing = AreaDescriptors { files: Vec::new(), lengths: Vec::new(), layout: None };
        let Answer { body: Reply::Vsa(mut grant), .. } = self.vsa_answer(record, nothing) else {
            return Err(failed("its answer is of another sort".to_owned()));
        };
        grant.broker = Some(shape);
        Ok(Answer { body: Reply::Vsa(grant), descriptors })
    }

    /// Detaches an area from the service core. Returns a text that says what now stops its previous
    /// holder.
    pub(in crate::control) fn detach(&mut self, record: &GrantRecord) -> String {
        self.abandon(record.grant);
        let notice = Notice::Detach { grant: record.grant };
        let Some(service) = self.brokered.service else {
            return "no service core runs, so its requests reach nothing".to_owned();
        };
        self.brokered.leaving.insert(record.grant, record.name.clone());
        if self.send_notice(service, notice, Vec::new()) {
            "the service core accepts no more requests, and finishes those under way".to_owned()
        } else {
            "the service core does not read and was disconnected: end it".to_owned()
        }
    }

    /// Ends what waits for a grant's new extents.
    fn abandon(&mut self, grant: u64) {
        match self.brokered.reshaping.remove(&grant) {
            Some(AfterReshape::Answer(path, answer)) => {
                let outcome = self.area_answer(&path);
                self.respond(answer, outcome);
            }
            Some(AfterReshape::Change(path, _, _, _, answer)) => {
                self.preparing.remove(&path.label());
                let what = format!("VSA {}", path.full());
                let cause = "it was released or revoked, or the service core has ended, meanwhile";
                self.respond(answer, Err(refuse(ErrorKind::Failed, what, cause, "try again")));
            }
            None => {}
        }
    }

    /// The service core has released an area.
    pub(in crate::control) fn detached(&mut self, connection: u64, grant: u64) -> Result<Reply, ErrorReply> {
        self.check_broker(connection)?;
        self.brokered.leaving.remove(&grant);
        self.wake();
        Ok(Reply::Done)
    }

    /// The service core has the new extents of an area.
    pub(in crate::control) fn reshaped(&mut self, connection: u64, grant: u64) -> Result<Reply, ErrorReply> {
        self.check_broker(connection)?;
        match self.brokered.reshaping.remove(&grant) {
            Some(AfterReshape::Answer(path, answer)) => {
                let outcome = self.area_answer(&path);
                self.respond(answer, outcome);
            }
            Some(AfterReshape::Change(path, volume, change, requester, answer)) => {
                self.begin_work(path, volume, change, requester, answer);
            }
            None => {}
        }
        Ok(Reply::Done)
    }

    fn check_broker(&self, connection: u64) -> Result<(), ErrorReply> {
        if self.brokered.service == Some(connection) {
            return Ok(());
        }
        let cause = "this connection is not the service core's";
        Err(refuse(ErrorKind::Denied, "request", cause, "say Serve first"))
    }

    /// The grant under which a process holds the area at `path` through the service core.
    fn brokered_grant(&self, path: &AreaPath) -> Option<u64> {
        let label = path.label();
        self.brokered.service?;
        self.holder(&label, false).filter(|_| self.is_brokered(&label)).map(|record| record.grant)
    }

    /// Before a change of an area: if the service core must give up the end of the area first, the
    /// change begins when it has, and `None` is returned.
    pub(in crate::control) fn shorten_first(
        &mut self,
        path: &AreaPath,
        volume: &Arc<Volume>,
        change: AreaChange,
        requester: u64,
        pending: Pending,
        answer: oneshot::Sender<Answer>,
    ) -> Option<oneshot::Sender<Answer>> {
        let AreaChange::Resize { size } = change else { return Some(answer) };
        let (Some(grant), Some(service)) = (self.brokered_grant(path), self.brokered.service) else {
            return Some(answer);
        };
        let layout = volume.layout(&path.name).filter(|layout| size < layout.bytes());
        let Some(layout) = layout else { return Some(answer) };
        self.preparing.insert(path.label(), pending);
        let after = AfterReshape::Change(path.clone(), Arc::clone(volume), change, requester, answer);
        self.brokered.reshaping.insert(grant, after);
        self.send_notice(service, Notice::Reshape { grant, extents: layout.first(size) }, Vec::new());
        None
    }

    /// Handles an area that has grown. Returns whether the service core must be notified before the
    /// holder.
    pub(in crate::control) fn lengthen_after(
        &mut self,
        path: &AreaPath,
        change: AreaChange,
        answer: oneshot::Sender<Answer>,
    ) -> Option<oneshot::Sender<Answer>> {
        let AreaChange::Resize { .. } = change else { return Some(answer) };
        let (Some(grant), Some(service)) = (self.brokered_grant(path), self.brokered.service) else {
            return Some(answer);
        };
        let layout = self.volumes.get(&path.volume).and_then(|volume| volume.layout(&path.name));
        let Some(layout) = layout else { return Some(answer) };
        self.brokered.reshaping.insert(grant, AfterReshape::Answer(path.clone(), answer));
        self.send_notice(service, Notice::Reshape { grant, extents: layout.extents }, Vec::new());
        None
    }

    /// The service core has connected, and reports which storage it has.
    pub(in crate::control) fn serve_storage(&mut self, connection: u64, held: &HeldStorage) {
        self.brokered.service = Some(connection);
        self.brokered.volumes = held.volumes.iter().cloned().collect();
        self.brokered.leaving.clear();
        for area in &held.areas {
            let current = |record: &GrantRecord| {
                record.generation == area.generation && record.name == area.name && !record.device.is_vnic()
            };
            if self.grants.get(&area.grant).is_some_and(current) {
                // A previous daemon may have died while it made it longer or shorter.
                let path = AreaPath::from_label(&area.name);
                let layout = self.volumes.get(&path.volume).and_then(|volume| volume.layout(&path.name));
                if let Some(AreaLayout { extents, .. }) = layout {
                    self.send_notice(connection, Notice::Reshape { grant: area.grant, extents }, Vec::new());
                }
            } else {
                self.brokered.leaving.insert(area.grant, area.name.clone());
                self.send_notice(connection, Notice::Detach { grant: area.grant }, Vec::new());
            }
        }
        let kept: Vec<HeldGrant> = held
            .areas
            .iter()
            .map(|area| HeldGrant { grant: area.grant, generation: area.generation })
            .collect();
        self.end_areas(&kept);
        self.wake();
    }

    /// A connection has closed. Ends the storage grants if it was the connection that serves
    /// storage.
    pub(in crate::control) fn storage_core_closed(&mut self, connection: u64) {
        self.brokered.deadlines.remove(&connection);
        if self.brokered.service.take_if(|service| *service == connection).is_none() {
            return;
        }
        self.brokered.volumes.clear();
        self.brokered.leaving.clear();
        for grant in self.brokered.reshaping.keys().copied().collect::<Vec<_>>() {
            self.abandon(grant);
        }
        self.end_areas(&[]);
        self.wake();
    }

    /// Ends the grants of all areas on volumes of extents but those that the service core has.
    fn end_areas(&mut self, but: &[HeldGrant]) {
        let lost = |record: &&GrantRecord| {
            let kept =
                but.iter().any(|held| held.grant == record.grant && held.generation == record.generation);
            matches!(record.device, Device::Vsa { .. })
                && !kept
                // Those that are being made are not with it yet.
                && !self.preparing.contains_key(&record.name)
                && self.is_brokered(&record.name)
        };
        for record in self.grants.values().filter(lost).cloned().collect::<Vec<_>>() {
            self.leave(&record, SERVICE_CORE_ENDED);
        }
    }

    /// Volumes whose definition has changed are others than those that the service core has.
    pub(in crate::control) fn forget_volumes(&mut self) {
        let volumes = &self.volumes;
        self.brokered.volumes.retain(|name| volumes.get(name).is_some());
    }
}

const NO_CORE: &str = "no service core that serves storage runs, which is to reach the volume for it";
const START: &str = "start `sietch service`, or let `sietch up` do so";

/// The label of the area whose counters a page of the service core shows.
pub(in crate::control) fn shown_area<'grants>(
    grants: &'grants BTreeMap<u64, GrantRecord>,
    page: &str,
) -> Option<&'grants str> {
    let grant: u64 = page.strip_prefix("vsa-")?.parse().ok()?;
    let record = grants.get(&grant).filter(|record| !record.device.is_vnic())?;
    Some(&record.name)
}
