//! The state of the control task, and what every part of it uses: clients, watches, notices,
//! refusals.
//!
//! 1. [`Control`] owns everything that the daemon decides with. One task owns it, so it needs no
//!    lock. The other files of this folder add the methods of one subject each.
//! 2. A *client* is a connection; a *watch* is for a process. A process may have several
//!    connections, and its grants outlive each of them.
//! 3. Notices go to a connection's outbox and never wait. A connection whose outbox is full does
//!    not read, and is closed.
//! 4. A refusal names what was refused, the cause, and the fix ([`refuse`]).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sietch_protocol::closer::SentDescriptor;
use sietch_protocol::{ErrorKind, ErrorReply, Notice, Reply};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::event::{Answer, Event, LeftArea, Outgoing};
use super::tables::{Brokered, Closing, Diagnostics, LinkPairs, Pending, SwitchPorts, ViewRequests};
use super::warnings::Warnings;
use crate::allowance::UserAllowances;
use crate::configuration::Configuration;
use crate::device::UplinkBefore;
use crate::device::worker::Devices;
use crate::granted::GrantedDescriptor;
use crate::identity::Process;
use crate::metrics::Counters;
use crate::state::{GrantRecord, State, StateError};
use crate::volume::Volumes;

/// How long a living process may be without a connection before its grants end: enough for an
/// application to reconnect, short enough that a name is not blocked by one that never will.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
/// How often areas in use are checked. A holder can fill at most what it writes in this time.
pub(crate) const INSPECTION: Duration = Duration::from_secs(1);
/// How often the rings of VNICs are checked. For that long, a holder can make the kernel walk over
/// invalid entries. A check of an honest holder's rings costs three memory reads.
pub(crate) const RING_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Why a holder loses what the service core served.
pub(super) const SERVICE_CORE_ENDED: &str = "the service core has ended; acquire it again when one runs";

/// Metrics pages of one connection: a page a layer, and every page holds a descriptor of ours. The
/// service core has one a port.
pub(crate) const MOST_PAGES: usize = 8;

/// A connected client.
pub(super) struct Client {
    pub(super) process: Process,
    /// Whether the connection came over the administrators' socket.
    pub(super) administers: bool,
    /// As it calls itself; empty before the handshake.
    pub(super) name: String,
    pub(super) outbox: mpsc::Sender<Outgoing>,
    /// Its metrics pages by label.
    pub(super) pages: Vec<(String, SentDescriptor)>,
    /// The grants for which the connection answers queries. `None` if it never registered for
    /// notices.
    pub(super) attends: Option<BTreeSet<u64>>,
    /// Those of them of which it serves a view.
    pub(super) views: BTreeSet<u64>,
}

impl Client {
    /// Whether it answers for `grant`.
    pub(super) fn attends(&self, grant: u64) -> bool {
        self.attends.as_ref().is_some_and(|attends| attends.contains(&grant))
    }
}

/// A process that holds a grant or is connected.
pub(super) struct Watch {
    /// The task that reports the end of the process.
    pub(super) watcher: AbortHandle,
    /// Grows when the process connects: an older [`Event::Alone`] does not count.
    pub(super) epoch: u64,
}

/// The state of the daemon, which one task owns.
pub(crate) struct Control {
    pub(super) configuration: Configuration,
    /// The configuration at the start of this daemon.
    pub(super) first: Configuration,
    pub(super) data: PathBuf,
    pub(super) state: State,
    pub(super) volumes: Volumes,
    pub(super) devices: Devices,
    pub(super) uplink: Option<String>,
    /// Whether `sietch up` runs this daemon, and starts the store of `[kv]`.
    pub(super) starts_store: bool,
    /// The settings of the uplink before a daemon changed them, as the state has them.
    pub(super) uplink_kept: Option<UplinkBefore>,
    pub(super) counters: Rc<RefCell<Counters>>,
    /// The seconds that devices of each user have taken.
    pub(super) device_seconds: Rc<RefCell<UserAllowances>>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) clients: BTreeMap<u64, Client>,
    pub(super) watches: HashMap<Process, Watch>,
    pub(super) grants: BTreeMap<u64, GrantRecord>,
    /// Grants whose VNIC is being made.
    pub(super) opening: BTreeSet<u64>,
    /// Grants whose VNIC is being removed.
    pub(super) closing: BTreeMap<u64, Closing>,
    /// A check of the rings runs.
    pub(super) checks_rings: bool,
    /// `vnic NAME` and `vsa NAME`.
    pub(super) revoked: BTreeSet<String>,
    /// Those of them that could not be written to the state yet.
    pub(super) unrecorded: BTreeSet<String>,
    /// Areas whose grant has ended, by their labels: the former holder may have kept a descriptor.
    pub(super) left: BTreeMap<String, LeftArea>,
    /// VSAs that are being made, opened or changed, by their labels.
    pub(super) preparing: BTreeMap<String, Pending>,
    /// Links whose ends are held.
    pub(super) links: LinkPairs,
    /// The service core and its ports.
    pub(super) ports: SwitchPorts,
    /// Volumes and areas that the service core has.
    pub(super) brokered: Brokered,
    /// Questions to applications, and captures.
    pub(super) diagnostics: Diagnostics,
    /// Requests about views of areas.
    pub(super) views: ViewRequests,
    pub(super) warnings: Warnings,
}

/// A refusal.
pub(super) fn refuse(
    kind: ErrorKind,
    what: impl Into<String>,
    cause: impl Into<String>,
    fix: impl Into<String>,
) -> ErrorReply {
    ErrorReply { kind, what: what.into(), cause: cause.into(), fix: fix.into() }
}

pub(super) fn state_failed(error: &StateError) -> ErrorReply {
    refuse(ErrorKind::Failed, format!("state {}", error.path.display()), &error.cause, &error.fix)
}

impl Control {
    #[allow(clippy::too_many_arguments)] // each is a thing of its own that the start has made
    pub(crate) fn new(
        configuration: Configuration,
        data: PathBuf,
        state: State,
        volumes: Volumes,
        devices: Devices,
        uplink: Option<String>,
        starts_store: bool,
        counters: Rc<RefCell<Counters>>,
        device_seconds: Rc<RefCell<UserAllowances>>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self {
            first: configuration.clone(),
            configuration,
            data,
            state,
            volumes,
            devices,
            uplink,
            starts_store,
            uplink_kept: None,
            counters,
            device_seconds,
            events,
            clients: BTreeMap::new(),
            watches: HashMap::new(),
            grants: BTreeMap::new(),
            opening: BTreeSet::new(),
            closing: BTreeMap::new(),
            checks_rings: false,
            revoked: BTreeSet::new(),
            unrecorded: BTreeSet::new(),
            left: BTreeMap::new(),
            preparing: BTreeMap::new(),
            links: LinkPairs::default(),
            ports: SwitchPorts::default(),
            brokered: Brokered::default(),
            diagnostics: Diagnostics::default(),
            views: ViewRequests::default(),
            warnings: Warnings::default(),
        }
    }

    pub(super) fn respond(
        &self,
        answer: oneshot::Sender<Answer>,
        outcome: Result<Answer, ErrorReply>,
    ) -> bool {
        let answered = outcome.unwrap_or_else(|error| {
            self.counters.borrow_mut().requests_refused += 1;
            Reply::Error(error).into()
        });
        // A client that has disconnected gets no answer. Its grants end by their own rules.
        answer.send(answered).is_ok()
    }

    /// The client of a connection that has completed its handshake.
    pub(super) fn client(&self, connection: u64) -> Result<&Client, ErrorReply> {
        self.clients
            .get(&connection)
            .filter(|client| !client.name.is_empty())
            .ok_or_else(|| refuse(ErrorKind::Invalid, "connection", "no handshake yet", "send Hello first"))
    }

    pub(super) fn check_administrator(&self, connection: u64) -> Result<(), ErrorReply> {
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

    /// Watches for the end of `process`, once.
    pub(super) fn watch(&mut self, process: &Process, pidfd: OwnedFd) {
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
            // A pidfd that cannot be polled is treated as an end: a grant that cannot be revoked
            // is not kept.
            if let Ok(pidfd) = registered {
                let _ = pidfd.readable().await;
            }
            let _ = events.send(Event::Exited(ended)).await;
        });
        self.watches.insert(process.clone(), Watch { watcher: watcher.abort_handle(), epoch: 0 });
    }

    pub(super) fn unwatch(&mut self, process: &Process) {
        let connected = self.clients.values().any(|client| client.process == *process);
        let holds = self.grants.values().any(|record| record.process == *process);
        if !connected
            && !holds
            && let Some(watch) = self.watches.remove(process)
        {
            watch.watcher.abort();
        }
    }

    /// Counts time in which devices of `uid` were made or removed.
    pub(super) fn charge(&self, uid: u32, took: Duration) {
        let now = Instant::now();
        self.device_seconds.borrow_mut().of(uid, now).charge(took.as_secs_f64(), now);
    }

    /// Warns in the log and in Status. `user` has caused it; none: no client can.
    pub(super) fn warn(&mut self, user: Option<u32>, warning: String) {
        if self.warnings.add(user, &warning) {
            tracing::warn!(warning);
        }
    }

    /// Sends a notice to every connection of `process`. A connection whose outbox is full does not
    /// read, and is closed.
    pub(super) fn notify(&mut self, process: &Process, notice: &Notice) {
        let of_process =
            |(connection, client): (&u64, &Client)| (client.process == *process).then_some(*connection);
        for connection in self.clients.iter().filter_map(of_process).collect::<Vec<_>>() {
            self.send_notice(connection, notice.clone(), Vec::new());
        }
    }

    /// Sends a notice to one connection, which is closed if its outbox is full. Returns whether the
    /// notice was sent.
    pub(super) fn send_notice(
        &mut self,
        connection: u64,
        notice: Notice,
        descriptors: Vec<GrantedDescriptor>,
    ) -> bool {
        let Some(client) = self.clients.get(&connection) else { return false };
        let sent = client.outbox.try_send(Outgoing { notice, descriptors }).is_ok();
        if !sent {
            self.disconnected(connection);
        }
        sent
    }

    /// Closes all connections; notices that are queued are still written.
    pub(crate) fn close_clients(&mut self) {
        self.clients.clear();
    }
}
