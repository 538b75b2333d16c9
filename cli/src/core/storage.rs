//! The storage role of a service core: areas on volumes of extents, for applications that must not
//! have the volume (docs/spec/broker.md).
//!
//! 1. One thread drives the devices ([`sietch_service::broker`]). This side passes the daemon's
//!    notices to it, and reports the outcome to the daemon. A notice brings a volume's descriptor,
//!    an area with its end of the shared memory, new extents of an area, or the end of an area.
//! 2. An area stays registered until no operation of it is in flight, also for a daemon that was
//!    restarted meanwhile.
//! 3. Each area shares a page of counters with the daemon, named after the grant.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use sietch::disk::broker::{BrokerFds, BrokerLayout};
use sietch::{Kind, Metrics, clock};
use sietch_protocol::storage::{AreaExtent, AreaGrant, HeldArea, HeldStorage};
use sietch_protocol::{CallError, Connection, Notice};
use sietch_service::Snapshot;
use sietch_service::broker::{AreaCounters, AreaReport, Command, Event, EventSink, Refusal, Span, run};

/// An area that is served.
struct Area {
    generation: u64,
    name: String,
    /// Its counters' page, and whether the daemon has it.
    page: Option<Metrics>,
    shared: bool,
}

/// See the module.
pub(super) struct Storage {
    commands: Sender<Command>,
    doorbell: OwnedFd,
    events: Receiver<Event>,
    outcome_doorbell: OwnedFd,
    report: Arc<Snapshot<Vec<AreaReport>>>,
    thread: JoinHandle<std::io::Result<()>>,
    volumes: BTreeSet<String>,
    /// By grant.
    areas: BTreeMap<u64, Area>,
}

impl Storage {
    /// Starts the thread.
    ///
    /// # Errors
    /// No descriptors or threads are left.
    pub(super) fn start() -> std::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (doorbell, outcome_doorbell) = (eventfd(0, flags)?, eventfd(0, flags)?);
        let (commands, received) = channel();
        let (sender, events) = channel();
        let report = Arc::<Snapshot<Vec<AreaReport>>>::default();
        let (thread_doorbell, thread_report) = (doorbell.try_clone()?, Arc::clone(&report));
        let sink = EventSink { events: sender, doorbell: outcome_doorbell.try_clone()? };
        let thread = std::thread::Builder::new()
            .name("sietch-broker".to_owned())
            .spawn(move || run(&received, &thread_doorbell, &sink, &thread_report))?;
        let (volumes, areas) = (BTreeSet::new(), BTreeMap::new());
        Ok(Self { commands, doorbell, events, outcome_doorbell, report, thread, volumes, areas })
    }

    /// Whether the thread has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// The outcome of the thread.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn join(self) -> std::io::Result<()> {
        drop(self.commands);
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
        self.thread.join().unwrap_or_else(|_| Err(std::io::Error::other("it panicked")))
    }

    /// Readable when there is an outcome to report to the daemon.
    pub(super) fn outcome_doorbell(&self) -> BorrowedFd<'_> {
        self.outcome_doorbell.as_fd()
    }

    /// Everything that is served, for a daemon that may not know it.
    pub(super) fn held(&mut self) -> HeldStorage {
        self.areas.values_mut().for_each(|area| area.shared = false);
        let area = |(&grant, area): (&u64, &Area)| HeldArea {
            grant,
            generation: area.generation,
            name: area.name.clone(),
        };
        HeldStorage {
            volumes: self.volumes.iter().cloned().collect(),
            areas: self.areas.iter().map(area).collect(),
        }
    }

    fn send(&self, command: Command) {
        // The caller notices a thread that has ended; a full eventfd counter is already readable.
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }

    /// Sends a command that has a reply, and waits for the reply.
    fn request<T>(&self, command: impl FnOnce(Sender<Result<T, String>>) -> Command) -> Result<T, String> {
        let (reply, answer) = channel();
        self.send(command(reply));
        answer.recv().unwrap_or_else(|_| Err("the broker has ended".to_owned()))
    }

    /// Carries out a notice of the daemon, if it is about storage.
    pub(super) fn handle(&mut self, notice: &Notice, descriptors: Vec<OwnedFd>) {
        match notice {
            Notice::Volume { name, bytes } => self.add_volume(name, *bytes, descriptors),
            Notice::Area(area) => self.add_area(area, descriptors),
            Notice::Reshape { grant, extents } => {
                let (id, extents) = (*grant, spans(extents));
                if let Err(cause) = self.request(|reply| Command::Reshape { id, extents, reply }) {
                    tracing::error!("{cause}");
                }
            }
            Notice::Detach { grant } => self.send(Command::Detach(*grant)),
            _ => {}
        }
    }

    fn add_volume(&mut self, name: &str, capacity: u64, descriptors: Vec<OwnedFd>) {
        let Ok([file]) = <[OwnedFd; 1]>::try_from(descriptors) else {
            tracing::error!("volume {name}: it came without its descriptor");
            return;
        };
        let named = name.to_owned();
        match self.request(|reply| Command::Volume { name: named, file, capacity, reply }) {
            Ok(how) => {
                tracing::info!("volume {name} is here: {how}");
                self.volumes.insert(name.to_owned());
            }
            Err(cause) => tracing::error!("{cause}"),
        }
    }

    fn add_area(&mut self, area: &AreaGrant, descriptors: Vec<OwnedFd>) {
        let Ok([memory, doorbell]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            tracing::error!("VSA {}: it came without its descriptors", area.name);
            return;
        };
        let shape = area.shape;
        let attached = self.request(|reply| Command::Attach {
            id: area.grant,
            volume: area.volume.clone(),
            extents: spans(&area.extents),
            fds: BrokerFds { memory, doorbell },
            layout: BrokerLayout { slots: shape.slots, data: shape.data, block: shape.block },
            uid: area.uid,
            reply,
        });
        match attached {
            Ok(()) => {
                let page = page(area.grant).map_err(|cause| tracing::warn!("VSA {}: {cause}", area.name));
                let (generation, name) = (area.generation, area.name.clone());
                self.areas.insert(area.grant, Area { generation, name, page: page.ok(), shared: false });
                tracing::info!(grant = area.grant, "VSA {} is served", area.name);
            }
            // Closing the descriptors notifies the holder.
            Err(cause) => tracing::error!("VSA {}: {cause}", area.name),
        }
    }

    /// Reports outcomes to the daemon.
    ///
    /// # Errors
    /// The daemon has ended.
    pub(super) fn report(&mut self, connection: &mut Connection) -> Result<(), CallError> {
        let _ = rustix::io::read(&self.outcome_doorbell, &mut [0_u8; 8]);
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Detached(grant) => {
                    self.areas.remove(&grant);
                    connection.detached(grant)?;
                }
                Event::Reshaped(grant) => connection.reshaped(grant)?,
                Event::Broken { volume, cause } => tracing::error!(
                    "volume {volume}: {cause}; its areas answer with I/O errors until the service core is started again, the others continue: check the disk"
                ),
            }
        }
        Ok(())
    }

    /// Copies the areas' counters to their pages.
    ///
    /// # Errors
    /// The daemon has ended.
    pub(super) fn publish_counters(&mut self, connection: &mut Connection) -> Result<(), CallError> {
        for report in self.report.read() {
            let Some(area) = self.areas.get_mut(&report.id) else { continue };
            let Some(page) = &mut area.page else { continue };
            page.set_all(0, values(&report.counters));
            if let Err(cause) = page.publish(clock::now()) {
                tracing::warn!("VSA {}: its counters are not shown: {cause}", area.name);
            }
            if !area.shared {
                connection.publish_metrics(page.label(), page.as_fd())?;
                area.shared = true;
            }
        }
        Ok(())
    }
}

fn spans(extents: &[AreaExtent]) -> Vec<Span> {
    extents.iter().map(|extent| Span { start: extent.start, length: extent.length }).collect()
}

/// The page of an area.
fn page(grant: u64) -> Result<Metrics, sietch::MetricsError> {
    let mut names: Vec<String> = [
        "reads",
        "read.bytes",
        "writes",
        "written.bytes",
        "flushes",
        "discards",
        "failed",
        "cancelled",
        "notifications",
        "violations",
    ]
    .map(str::to_owned)
    .into();
    names.extend(Refusal::ALL.map(|refusal| format!("refused.{}", refusal.name())));
    let mut entries: Vec<(&str, Kind)> = names.iter().map(|name| (name.as_str(), Kind::Counter)).collect();
    entries.push(("in_flight", Kind::Gauge));
    Metrics::new(&format!("vsa-{grant}"), &entries)
}

/// In the order of the names of a page.
fn values(counted: &AreaCounters) -> Vec<u64> {
    let mut values = vec![
        counted.reads,
        counted.read_bytes,
        counted.writes,
        counted.written_bytes,
        counted.flushes,
        counted.discards,
        counted.failed,
        counted.cancelled,
        counted.notifications,
        counted.violations,
    ];
    values.extend(counted.refused);
    values.push(counted.in_flight);
    values
}
