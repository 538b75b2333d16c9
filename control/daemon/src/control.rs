//! The one task that decides. It handles one [`Event`] after another and owns all state.
//!
//! 1. A name is looked up in `sietch.toml`; the kernel's word on the client's uid decides; a name
//!    that is revoked or held is refused, naming the holder.
//! 2. Granting: a number from the state, the record into the state, then the device. Ending: the
//!    device, then the record. So whatever a crash leaves is found by [`Control::restore`].
//! 3. A grant ends when it is released, when its process ends (pidfd), when its living process has
//!    been without a connection for [`GRACE`], or when it is revoked. After a restart of the daemon
//!    a process that lives keeps its grants without connecting.
//! 4. Making or changing an area ([`storage`]) can take long, so it happens on a blocking thread
//!    and comes back as an event; nothing else waits for it. Making a VNIC takes milliseconds and
//!    is done in place.
//! 5. Areas on volumes of extents are reached through the service core ([`brokered`]).
//! 6. Revoking works without the application: VNICs by their programs and veth, VSAs by their
//!    inode, links ([`links`]) by a word in their memory that both sides look at.

mod admin;
mod brokered;
mod grants;
mod inquiry;
mod links;
mod names;
mod ports;
mod storage;
mod views;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use sietch_protocol::message::{MAX_HELD, is_name};
use sietch_protocol::{ErrorKind, ErrorReply, Notice, PROTOCOL, Reply, Request, Welcome};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::configuration::Configuration;
use crate::device::{UplinkBefore, VnicDevices, VnicPlan};
use crate::identity::Process;
use crate::metrics::Counters;
use crate::state::{Device, GrantRecord, Remembered, State, StateError};
use crate::volume::{Handed, Place, Volumes, Work};
use crate::{Error, VERSION};

/// How long a living process may be without a connection before its grants end: enough for an
/// application to reconnect, short enough that a name is not blocked by one that never will.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
/// How often areas in use are looked at. A holder can fill at most what it writes in this time.
pub(crate) const INSPECTION: Duration = Duration::from_secs(30);
/// How often the rings of VNICs are looked at. A holder can make the kernel walk over wrong entries
/// for that long; an honest one costs three reads of memory a look.
pub(crate) const PATROL: Duration = Duration::from_millis(50);
/// Warnings kept for Status, the newest.
const MAX_WARNINGS: usize = 32;

/// Metrics pages of one connection: a page a layer, and every page holds a descriptor of ours. The
/// service core has one a port.
pub(crate) const MOST_PAGES: usize = 8;

/// What the control task is told.
pub(crate) enum Event {
    /// A client has connected.
    Connected {
        connection: u64,
        process: Process,
        administers: bool,
        pidfd: OwnedFd,
        outbox: mpsc::Sender<Outgoing>,
    },
    /// It asks something.
    Request { connection: u64, request: Request, descriptors: Vec<OwnedFd>, answer: oneshot::Sender<Answer> },
    /// It has gone.
    Disconnected { connection: u64 },
    /// A process has ended.
    Exited(Process),
    /// A process has been without a connection for [`GRACE`], unless `epoch` is over.
    Alone { process: Process, epoch: u64 },
    /// The area of a grant is made and open, or not.
    Area { grant: u64, name: String, result: Result<Handed, ErrorReply>, answer: oneshot::Sender<Answer> },
    /// Something was done to an area, or not; with what `asker`, if it holds the area, is to map
    /// from now on.
    Worked {
        place: Place,
        work: Work,
        result: Result<Option<Handed>, ErrorReply>,
        asker: Option<Process>,
        answer: oneshot::Sender<Answer>,
    },
    /// An application was asked something, and its time is up.
    Overdue { question: u64 },
    /// The same of a question about a view.
    ViewOverdue { question: u64 },
    /// Look at the areas.
    Inspect,
    /// Look at the rings of VNICs.
    Patrol,
    /// End.
    Stop(&'static str),
}

/// A notice on its way to a client.
pub(crate) struct Outgoing {
    pub notice: Notice,
    pub descriptors: Vec<OwnedFd>,
}

/// To a request.
pub(crate) struct Answer {
    pub body: Reply,
    pub descriptors: Vec<OwnedFd>,
}

impl From<Reply> for Answer {
    fn from(body: Reply) -> Self {
        Self { body, descriptors: Vec::new() }
    }
}

/// A connected client.
struct Client {
    process: Process,
    /// It came over the administrators' socket.
    administers: bool,
    /// As it calls itself; empty before the handshake.
    name: String,
    outbox: mpsc::Sender<Outgoing>,
    /// Its metrics pages by label.
    pages: Vec<(String, OwnedFd)>,
    /// Grants whose inquiries it answers; none if it has never said that it reads notices.
    attends: Option<BTreeSet<u64>>,
    /// Those of them of which it shows a view.
    views: BTreeSet<u64>,
}

impl Client {
    /// Whether it answers for `grant`.
    fn attends(&self, grant: u64) -> bool {
        self.attends.as_ref().is_some_and(|attends| attends.contains(&grant))
    }
}

/// A process that holds a grant or is connected.
struct Watch {
    /// Tells of its end.
    watcher: AbortHandle,
    /// Grows when the process connects: an older [`Event::Alone`] does not count.
    epoch: u64,
}

/// See the module.
pub(crate) struct Control<D> {
    configuration: Configuration,
    data: PathBuf,
    state: State,
    volumes: Volumes,
    devices: D,
    uplink: Option<String>,
    /// What it was like before a daemon changed it, as the state has it.
    uplink_kept: Option<UplinkBefore>,
    counters: Rc<RefCell<Counters>>,
    events: mpsc::Sender<Event>,
    clients: BTreeMap<u64, Client>,
    watches: HashMap<Process, Watch>,
    grants: BTreeMap<u64, GrantRecord>,
    /// `vnic NAME` and `vsa NAME`.
    revoked: BTreeSet<String>,
    /// VSAs that are being made, opened or changed, by their labels.
    preparing: BTreeMap<String, storage::Pending>,
    /// Links whose ends are held.
    links: links::Links,
    /// The service core and its ports.
    ports: ports::Ports,
    /// What it has of volumes and areas.
    brokered: brokered::Brokered,
    /// What applications were asked.
    inquiries: inquiry::Inquiries,
    /// What they were asked about their areas.
    views: views::Views,
    warnings: Vec<String>,
}

/// A refusal.
fn refuse(
    kind: ErrorKind,
    what: impl Into<String>,
    cause: impl Into<String>,
    fix: impl Into<String>,
) -> ErrorReply {
    ErrorReply { kind, what: what.into(), cause: cause.into(), fix: fix.into() }
}

fn state_failed(error: &crate::state::StateError) -> ErrorReply {
    refuse(ErrorKind::Failed, format!("state {}", error.path.display()), &error.cause, &error.fix)
}

impl<D: VnicDevices> Control<D> {
    #[allow(clippy::too_many_arguments)] // each is a thing of its own that the start has made
    pub(crate) fn new(
        configuration: Configuration,
        data: PathBuf,
        state: State,
        volumes: Volumes,
        devices: D,
        uplink: Option<String>,
        counters: Rc<RefCell<Counters>>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self {
            configuration,
            data,
            state,
            volumes,
            devices,
            uplink,
            uplink_kept: None,
            counters,
            events,
            clients: BTreeMap::new(),
            watches: HashMap::new(),
            grants: BTreeMap::new(),
            revoked: BTreeSet::new(),
            preparing: BTreeMap::new(),
            links: links::Links::default(),
            ports: ports::Ports::default(),
            brokered: brokered::Brokered::default(),
            inquiries: inquiry::Inquiries::default(),
            views: views::Views::default(),
            warnings: Vec::new(),
        }
    }

    /// Adopts what an earlier daemon left and removes what belongs to nobody.
    pub(crate) async fn restore(&mut self, remembered: Remembered) -> Result<(), Error> {
        self.revoked = remembered.revoked;
        self.uplink_kept = remembered.uplink;
        // Before anything of it is changed: this daemon may not come to its end.
        self.remember_uplink().await?;
        for (grant, record) in remembered.grants {
            let pidfd = record.process.open();
            let adopted = match (&record.device, &pidfd) {
                (_, None) => Err("its process has ended".to_owned()),
                // The two ends of a link hold all there is of it, as do holder and switch of a
                // port.
                (Device::Vsa { .. } | Device::Link(_) | Device::Port(_), Some(_)) => Ok(()),
                (Device::Vnic(plan), Some(pidfd)) => {
                    let adopted = self.devices.adopt(plan, record.process.pid, pidfd.as_fd());
                    adopted.await.map_err(|error| error.to_string())
                }
            };
            match (adopted, pidfd) {
                (Ok(()), Some(pidfd)) => {
                    self.watch(&record.process, pidfd);
                    tracing::info!(grant, name = record.name, pid = record.process.pid, "adopted");
                    self.grants.insert(grant, record);
                    self.counters.borrow_mut().grants_adopted += 1;
                }
                (adopted, _) => {
                    let why = adopted.err().unwrap_or_default();
                    tracing::info!(grant, name = record.name, why, "not adopted");
                    self.unmake(&record).await;
                    self.counters.borrow_mut().orphans_removed += 1;
                    self.state.forget(grant)?;
                }
            }
        }
        self.drop_lonely_ends();
        let plans: Vec<VnicPlan> = self.plans().cloned().collect();
        match self.devices.remove_others(&plans.iter().collect::<Vec<_>>()).await {
            Ok(removed) => self.counters.borrow_mut().orphans_removed += removed.len() as u64,
            Err(error) => self.warn(error.to_string()),
        }
        Ok(())
    }

    /// Remembers what the uplink was like, as soon as there is one.
    pub(super) async fn remember_uplink(&mut self) -> Result<(), StateError> {
        let before = self.devices.uplink_before(self.uplink_kept.clone()).await;
        if before.is_some() && before != self.uplink_kept {
            self.state.keep_uplink(before.as_ref())?;
            self.uplink_kept = before;
        }
        Ok(())
    }

    /// Handles one event; `Break` ends the daemon.
    pub(crate) async fn handle(&mut self, event: Event) -> ControlFlow<()> {
        match event {
            Event::Connected { connection, process, administers, pidfd, outbox } => {
                self.watch(&process, pidfd);
                let (attends, views) = (None, BTreeSet::new());
                let (name, pages) = (String::new(), Vec::new());
                let client = Client { process, administers, name, outbox, pages, attends, views };
                self.clients.insert(connection, client);
            }
            Event::Request { connection, request, descriptors, answer } => {
                return self.request(connection, request, descriptors, answer).await;
            }
            Event::Disconnected { connection } => self.disconnected(connection),
            Event::Exited(process) => self.exited(&process).await,
            Event::Alone { process, epoch } => {
                let connected = self.clients.values().any(|client| client.process == process);
                if !connected && self.watches.get(&process).is_some_and(|watch| watch.epoch == epoch) {
                    self.end_all(&process, "its process has not reconnected").await;
                }
            }
            Event::Area { grant, name, result, answer } => self.area_ready(grant, &name, result, answer),
            Event::Worked { place, work, result, asker, answer } => {
                self.worked(&place, work, result, asker.as_ref(), answer);
            }
            Event::Overdue { question } => self.overdue(question),
            Event::ViewOverdue { question } => self.view_overdue(question),
            Event::Inspect => self.inspect(),
            Event::Patrol => self.patrol().await,
            Event::Stop(why) => {
                tracing::info!(why, "ending");
                self.take_down(why).await;
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    async fn request(
        &mut self,
        connection: u64,
        request: Request,
        descriptors: Vec<OwnedFd>,
        answer: oneshot::Sender<Answer>,
    ) -> ControlFlow<()> {
        let stop = matches!(request, Request::Shutdown);
        let Some((request, answer)) = self.wait_for_broker(connection, request, answer) else {
            return ControlFlow::Continue(());
        };
        self.counters.borrow_mut().requests += 1;
        let outcome = match request {
            Request::AcquireVsa { name } => match self.begin_vsa(connection, &name) {
                Ok(record) => {
                    self.prepare_area(record, answer);
                    return ControlFlow::Continue(());
                }
                Err(error) => Err(error),
            },
            Request::CreateVsa { .. }
            | Request::ResizeVsa { .. }
            | Request::TrimVsa { .. }
            | Request::DeleteVsa { .. }
            | Request::ListVsas { .. }
            | Request::Volumes => {
                self.store(connection, request, answer);
                return ControlFlow::Continue(());
            }
            Request::ReadVsa { name } => self.open_for_reading(connection, &name),
            Request::ReadVsaAt { name, offset, length } => {
                self.read_piece(connection, &name, offset, length, answer);
                return ControlFlow::Continue(());
            }
            Request::View { name, question } => {
                self.look_into(connection, &name, question, answer);
                return ControlFlow::Continue(());
            }
            Request::Sockets { vnic } => {
                self.ask(connection, &vnic, descriptors, inquiry::Sort::Sockets, answer);
                return ControlFlow::Continue(());
            }
            Request::Capture { vnic } => {
                self.ask(connection, &vnic, descriptors, inquiry::Sort::Capture, answer);
                return ControlFlow::Continue(());
            }
            other => self.answer(connection, other, descriptors).await,
        };
        let stop = stop && outcome.is_ok();
        if stop {
            self.take_down("asked to").await;
        }
        self.respond(answer, outcome);
        if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn respond(&self, answer: oneshot::Sender<Answer>, outcome: Result<Answer, ErrorReply>) -> bool {
        let answered = outcome.unwrap_or_else(|error| {
            self.counters.borrow_mut().requests_refused += 1;
            Reply::Error(error).into()
        });
        // A client that has gone takes no answer; its grants end by their own rules.
        answer.send(answered).is_ok()
    }

    async fn answer(
        &mut self,
        connection: u64,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answer, ErrorReply> {
        if let Request::Hello { protocol, client } = request {
            return self.hello(connection, protocol, client).map(Into::into);
        }
        self.client(connection)?;
        match request {
            Request::AcquireVnic { name } => self.acquire_vnic(connection, &name).await,
            Request::BindVnic { grant } => {
                self.bind_vnic(connection, grant).await?;
                Ok(Reply::Done.into())
            }
            Request::Serve { ports, storage } => {
                self.serve(connection, &ports, storage.as_ref()).map(Into::into)
            }
            Request::Detached { grant } => self.detached(connection, grant).map(Into::into),
            Request::Reshaped { grant } => self.reshaped(connection, grant).map(Into::into),
            Request::Attend { grants, views } => self.attend(connection, &grants, &views).map(Into::into),
            Request::Show { id, outcome } => self.shown(connection, id, outcome, descriptors).map(Into::into),
            Request::Inform { id, outcome } => {
                self.inform(connection, id, outcome, descriptors).map(Into::into)
            }
            Request::Release { grant } => {
                self.release(connection, grant).await?;
                Ok(Reply::Done.into())
            }
            Request::Adopt { grants } => {
                if grants.len() > MAX_HELD {
                    let cause = format!("{} grants are over the limit of {MAX_HELD}", grants.len());
                    return Err(refuse(ErrorKind::Limit, "adopt", cause, "name them in parts"));
                }
                let process = self.client(connection)?.process.clone();
                let held = grants.iter().map(|held| self.adopt(&process, *held)).collect();
                Ok(Reply::Adopted(held).into())
            }
            Request::PublishMetrics { label } => self.publish(connection, label, descriptors).map(Into::into),
            other => {
                self.check_administrator(connection)?;
                self.administer(other).await.map(Into::into)
            }
        }
    }

    fn hello(&mut self, connection: u64, protocol: u32, client: String) -> Result<Reply, ErrorReply> {
        if protocol != PROTOCOL {
            let cause = format!("the client speaks protocol {protocol}, this daemon {PROTOCOL}");
            return Err(refuse(ErrorKind::Version, "handshake", cause, "use programs of one version"));
        }
        if !is_name(&client) {
            let fix = "use 1 to 32 letters, digits, `-` and `_`";
            return Err(refuse(ErrorKind::Invalid, "handshake", "the client's name is no name", fix));
        }
        let administrator = self.check_administrator(connection).is_ok();
        if let Some(entry) = self.clients.get_mut(&connection) {
            entry.name = client;
        }
        let (daemon, generation) = (VERSION.to_owned(), self.state.starts);
        Ok(Reply::Welcome(Welcome { protocol, daemon, generation, pid: std::process::id(), administrator }))
    }

    /// The client of a connection that has shaken hands.
    fn client(&self, connection: u64) -> Result<&Client, ErrorReply> {
        self.clients
            .get(&connection)
            .filter(|client| !client.name.is_empty())
            .ok_or_else(|| refuse(ErrorKind::Invalid, "connection", "no handshake yet", "send Hello first"))
    }

    fn check_administrator(&self, connection: u64) -> Result<(), ErrorReply> {
        let client = self.clients.get(&connection);
        if client.is_some_and(|client| client.administers) {
            return Ok(());
        }
        let uid = client.map_or(u32::MAX, |client| client.process.uid);
        let cause = format!("uid {uid} is no administrator over the socket that is open to everybody");
        let fix = format!(
            "run it as root or the daemon's own user, who reach the socket in the folder `{}` beside it",
            sietch_protocol::administration::FOLDER
        );
        Err(refuse(ErrorKind::Denied, "request", cause, fix))
    }

    fn publish(
        &mut self,
        connection: u64,
        label: String,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Reply, ErrorReply> {
        let invalid =
            |cause: String| refuse(ErrorKind::Invalid, "metrics page", cause, "make it with metrics::Page");
        if !is_name(&label) {
            return Err(invalid("the label is no name".to_owned()));
        }
        let [page] = <[OwnedFd; 1]>::try_from(descriptors)
            .map_err(|given| invalid(format!("{} descriptors instead of one", given.len())))?;
        sietch_protocol::metrics::check_sealed(&page).map_err(|error| invalid(error.to_string()))?;
        let serves = self.serves(connection);
        let most = if serves { 2 * MAX_HELD } else { MOST_PAGES };
        let ports: BTreeSet<String> = if serves { self.held_ports().collect() } else { BTreeSet::new() };
        let shown = |grants: &BTreeMap<u64, GrantRecord>, label: &str| {
            !serves || ports.contains(label) || brokered::shown(grants, label).is_some()
        };
        let grants = &self.grants;
        if let Some(client) = self.clients.get_mut(&connection) {
            // Pages of ports that have ended make place.
            client.pages.retain(|(other, _)| *other != label && shown(grants, other));
            if client.pages.len() >= most {
                return Err(refuse(
                    ErrorKind::Limit,
                    "metrics page",
                    format!("this connection shows {most} already"),
                    "put more counters on one page",
                ));
            }
            client.pages.push((label, page));
        }
        Ok(Reply::Done)
    }

    /// Learns of the end of `process`, once.
    fn watch(&mut self, process: &Process, pidfd: OwnedFd) {
        if let Some(watch) = self.watches.get_mut(process) {
            watch.epoch += 1;
            return;
        }
        let (events, ended) = (self.events.clone(), process.clone());
        let watcher = tokio::task::spawn_local(async move {
            // Deprecated because an `AsRawFd` may change its answer; an `OwnedFd` does not. What
            // replaces it is unsafe.
            #[allow(deprecated)]
            let registered = AsyncFd::with_interest(pidfd, Interest::READABLE);
            // A pidfd that cannot be polled is treated as an end: a grant that cannot be taken back
            // is not kept.
            if let Ok(pidfd) = registered {
                let _ = pidfd.readable().await;
            }
            let _ = events.send(Event::Exited(ended)).await;
        });
        self.watches.insert(process.clone(), Watch { watcher: watcher.abort_handle(), epoch: 0 });
    }

    fn disconnected(&mut self, connection: u64) {
        self.inquirer_gone(connection);
        self.viewer_gone(connection);
        self.service_gone(connection);
        let Some(client) = self.clients.remove(&connection) else { return };
        let process = client.process;
        if self.clients.values().any(|other| other.process == process) {
            return;
        }
        if self.grants.values().any(|record| record.process == process) {
            let epoch = self.watches.get(&process).map_or(0, |watch| watch.epoch);
            let events = self.events.clone();
            tokio::task::spawn_local(async move {
                tokio::time::sleep(GRACE).await;
                let _ = events.send(Event::Alone { process, epoch }).await;
            });
        } else {
            self.unwatch(&process);
        }
    }

    fn unwatch(&mut self, process: &Process) {
        let connected = self.clients.values().any(|client| client.process == *process);
        let holds = self.grants.values().any(|record| record.process == *process);
        if !connected
            && !holds
            && let Some(watch) = self.watches.remove(process)
        {
            watch.watcher.abort();
        }
    }

    async fn exited(&mut self, process: &Process) {
        // A child may have inherited the socket: it is not the process that the kernel named.
        self.clients.retain(|_, client| client.process != *process);
        self.end_all(process, "its process has ended").await;
        self.watches.remove(process);
    }

    fn warn(&mut self, warning: String) {
        tracing::warn!(warning);
        if self.warnings.last() == Some(&warning) {
            return;
        }
        if self.warnings.len() == MAX_WARNINGS {
            self.warnings.remove(0);
        }
        self.warnings.push(warning);
    }

    /// Tells every connection of `process`. One whose outbox is full does not read: it is let go.
    fn notify(&mut self, process: &Process, notice: &Notice) {
        let of_process =
            |(connection, client): (&u64, &Client)| (client.process == *process).then_some(*connection);
        for connection in self.clients.iter().filter_map(of_process).collect::<Vec<_>>() {
            self.tell(connection, notice.clone(), Vec::new());
        }
    }

    /// Tells one connection. One whose outbox is full is let go. Says whether it was told.
    fn tell(&mut self, connection: u64, notice: Notice, descriptors: Vec<OwnedFd>) -> bool {
        let Some(client) = self.clients.get(&connection) else { return false };
        let told = client.outbox.try_send(Outgoing { notice, descriptors }).is_ok();
        if !told {
            self.disconnected(connection);
        }
        told
    }

    async fn take_down(&mut self, why: &str) {
        let notice = Notice::ShuttingDown { reason: why.to_owned() };
        for client in self.clients.values() {
            // Whoever does not read its notices is told by the end of its connection.
            let _ = client.outbox.try_send(Outgoing { notice: notice.clone(), descriptors: Vec::new() });
        }
        for grant in self.grants.keys().copied().collect::<Vec<_>>() {
            self.end(grant, "the daemon ends").await;
        }
        self.devices.finish().await;
        if self.uplink_kept.take().is_some()
            && let Err(error) = self.state.keep_uplink(None)
        {
            tracing::warn!(%error, "what the uplink was like is remembered still");
        }
    }

    /// Lets all clients go; what they were sent still reaches them.
    pub(crate) fn close_clients(&mut self) {
        self.clients.clear();
    }
}
