//! `sietch service`: a service core. It has four roles, each on threads of its own:
//!
//! * the software switch between the VNICs of kind `switch` ([`sietch_service::switch`]);
//! * the storage broker: areas on volumes of extents ([`storage`], [`sietch_service::broker`]);
//! * the socket service of unmodified programs ([`sockets`]), which needs no daemon and can run
//!   alone;
//! * the TCP host of the VNICs that it serves to such programs ([`vnics`]).
//!
//! 1. The service core registers with the daemon. The daemon sends it its ports with their rules,
//!    one after the other, and a notice for each port that has ended. Volumes and areas work the
//!    same way.
//! 2. The main thread talks to the daemon and passes its notices to the threads of the roles. It
//!    moves no packet and no block.
//! 3. Each port has a page of counters that it shares with the daemon, for `sietch stat`.
//! 4. If the daemon ends, traffic continues. The service core reconnects, and reports its ports,
//!    volumes and areas.
//! 5. At SIGTERM or SIGINT it resets the connections of the VNICs that it serves, so that both
//!    sides notice. Then it ends.
//! 6. If a thread ends by itself, the process ends too: the state of its device is unknown.

mod sockets;
mod storage;
mod vnics;

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sietch::nic::shm::{EndpointFds, LinkLayout};
use sietch::nic::xdp::{Ipv4Prefix, Ipv6Prefix, Reason, VnicSpec};
use sietch::{Kind, Metrics, clock};
use sietch_protocol::{CallError, Connection, ErrorKind, HeldGrant, Notice, PortGrant, PortRange};
use sietch_service::Snapshot;
use sietch_service::sockets::Rules;
use sietch_service::switch::{Command, PortCounters, PortReport};

use crate::arguments::ServiceArguments;
use crate::error::Error;
use crate::output;
use crate::paths;
use crate::privilege;
use sockets::Sockets;
use storage::Storage;

/// How long the daemon may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How often this thread checks whether the switch has lost a port, and whether the daemon runs
/// again.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long a predecessor may take to end after the handover (it resets its VNICs' connections),
/// and how often this is checked.
const HANDOVER_WAIT: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// The least burst of a VNIC: a segmentation-sized burst; and its share of a second's bytes: a
/// millisecond's.
const MIN_BURST: u64 = 64 * 1024;
const BURST_SHARE: u64 = 1000;

/// The state of the main thread: the switch and its ports, and the other roles that the daemon's
/// notices concern.
struct Core {
    commands: Sender<Command>,
    doorbell: OwnedFd,
    lost_ports: Receiver<u64>,
    ports_report: Arc<Snapshot<Vec<PortReport>>>,
    /// Ports by grant.
    ports: BTreeMap<u64, Port>,
    storage: Storage,
    /// The socket service; none if its socket could not be made.
    sockets: Option<Sockets>,
}

/// A port that is served.
struct Port {
    generation: u64,
    /// Its counters' page, and whether the daemon has it.
    page: Option<Metrics>,
    shared: bool,
}

/// Serves until it is ended.
///
/// # Errors
/// [`Error::Control`]: no daemon at the start, or it refuses; [`Error::Privilege`];
/// [`Error::Start`]: no thread.
pub(crate) fn run(arguments: &ServiceArguments, socket: &Path) -> Result<(), Error> {
    // Signals are handled first, so that one that arrives during the start is not lost.
    let stopping = stop_flag()?;
    let path = arguments.sockets.clone().unwrap_or_else(|| paths::sockets_beside(socket));
    // The socket is made before privileges are given up.
    let listening = Sockets::open(&path, arguments.succeed);
    if let Some(account) = arguments.run_as {
        privilege::give_up(account)?;
    }
    if let Some(parent) = arguments.parent {
        privilege::follow(parent)?;
    }
    if arguments.sockets_only {
        return sockets::run_alone(listening?, path, Rules(arguments.rule.clone()), &stopping);
    }
    let failed = |source| Error::Start { what: "the switch", source };
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let doorbell = eventfd(0, flags).map_err(|error| failed(error.into()))?;
    let (commands, received) = channel();
    let (lost, lost_ports) = channel();
    let switch_doorbell = doorbell.try_clone().map_err(failed)?;
    let report = Arc::<Snapshot<Vec<PortReport>>>::default();
    let switch_report = Arc::clone(&report);
    let switch = std::thread::Builder::new()
        .name("sietch-switch".to_owned())
        .spawn(move || sietch_service::switch::run(&received, &switch_doorbell, &lost, &switch_report))
        .map_err(failed)?;
    let broker = |source| Error::Start { what: "the storage broker", source };
    let storage = Storage::start().map_err(broker)?;
    let rules = Rules(arguments.rule.clone());
    let sockets = listening.and_then(|listening| Sockets::start(listening, path, rules));
    let mut warning = String::new();
    let sockets = sockets
        .map_err(|cause| {
            warning = format!("{cause}; this service core does not serve programs under `sietch run`");
            tracing::warn!("{warning}");
        })
        .ok();
    let mut vnic_threads = None;
    if let Some(sockets) = &sockets {
        let started = sockets.command_sender().and_then(|sender| vnics::start(socket, sender));
        let (requests, thread) = started.map_err(|source| Error::Start { what: "the VNICs", source })?;
        sockets.serve_vnics(requests);
        vnic_threads = Some(thread);
    }
    let mut core = Core {
        commands,
        doorbell,
        lost_ports,
        ports_report: report,
        ports: BTreeMap::new(),
        storage,
        sockets,
    };
    let mut connection = core.first_connection(socket, arguments.succeed)?;
    if arguments.parent.is_some() {
        // The process that started this one waits for this line, and shows it.
        output::print(&format!("{}\n", warning.replace('\n', " ")))?;
    }
    tracing::info!("serving");
    let sockets_ended = |core: &Core| core.sockets.as_ref().is_some_and(Sockets::is_finished);
    let continues = || !stopping.load(Ordering::Acquire);
    while !switch.is_finished() && !core.storage.is_finished() && !sockets_ended(&core) && continues() {
        match core.listen(&mut connection) {
            Ok(()) => {}
            Err(cause) => {
                tracing::warn!("{cause}; the ports continue, and the service core reconnects to the daemon");
                if let Some(new) = core.reconnect(socket, &stopping)? {
                    connection = new;
                    tracing::info!("reconnected to the daemon");
                }
            }
        }
    }
    if sockets_ended(&core) || !continues() {
        // A successor has the socket service. The other roles have no successor; their clients
        // reconnect.
        let ended = core.sockets.map_or(Ok(()), Sockets::join);
        vnic_threads.into_iter().for_each(vnics::VnicThreads::join);
        return ended;
    }
    if core.storage.is_finished() {
        return core.storage.join().map_err(broker);
    }
    match switch.join() {
        Ok(Ok(())) => Ok(()),
        Ok(Err(source)) => Err(failed(source)),
        Err(_) => Err(failed(std::io::Error::other("it panicked"))),
    }
}

/// A flag that becomes true when a signal ends this process.
fn stop_flag() -> Result<Arc<AtomicBool>, Error> {
    let stopping = Arc::new(AtomicBool::new(false));
    for signal in crate::signals::ENDING {
        signal_hook::flag::register(signal, Arc::clone(&stopping))
            .map_err(|source| Error::Start { what: "the service core", source })?;
    }
    crate::signals::handled();
    Ok(stopping)
}

impl Core {
    fn connect(&mut self, socket: &Path) -> Result<Connection, CallError> {
        self.remove_lost_ports();
        let mut connection = Connection::connect_as_administrator(socket, "service", ANSWER_TIMEOUT)?;
        let held = self.ports.iter().map(|(&grant, port)| HeldGrant { grant, generation: port.generation });
        connection.serve_with_storage(held.collect(), self.storage.held())?;
        self.ports.values_mut().for_each(|port| port.shared = false);
        self.sockets.iter_mut().for_each(Sockets::share_again);
        Ok(connection)
    }

    /// The first connection. A successor waits until the daemon has seen its predecessor end.
    fn first_connection(&mut self, socket: &Path, succeeds: bool) -> Result<Connection, CallError> {
        let until = Instant::now() + HANDOVER_WAIT;
        loop {
            match self.connect(socket) {
                Err(CallError::Refused(reply))
                    if succeeds && reply.kind == ErrorKind::Busy && Instant::now() < until =>
                {
                    std::thread::sleep(RETRY_PAUSE);
                }
                other => return other,
            }
        }
    }

    /// Connects as soon as the daemon runs again; none if a signal ends this process before.
    fn reconnect(&mut self, socket: &Path, stopping: &AtomicBool) -> Result<Option<Connection>, CallError> {
        loop {
            std::thread::sleep(POLL_INTERVAL);
            let connected = self.connect(socket);
            if stopping.load(Ordering::Acquire) {
                return Ok(None);
            }
            match connected {
                Err(CallError::Connect { .. } | CallError::Closed | CallError::Frame(_)) => {}
                other => return other.map(Some),
            }
        }
    }

    fn remove_lost_ports(&mut self) {
        while let Ok(grant) = self.lost_ports.try_recv() {
            self.ports.remove(&grant);
        }
    }

    /// Handles the notices that have come, or waits a moment for one.
    fn listen(&mut self, connection: &mut Connection) -> Result<(), CallError> {
        self.remove_lost_ports();
        self.publish_counters(connection)?;
        while let Some((notice, descriptors)) = connection.take_notice()? {
            match notice {
                Notice::Port(port) => self.add_port(&port, descriptors),
                Notice::Unplug { grant } => {
                    self.ports.remove(&grant);
                    self.send(Command::Remove(grant));
                }
                other => self.storage.handle(&other, descriptors),
            }
        }
        self.storage.report(connection)?;
        self.storage.publish_counters(connection)?;
        if let Some(sockets) = &mut self.sockets {
            sockets.publish_counters(connection)?;
        }
        let limit = Timespec::try_from(POLL_INTERVAL).ok();
        // The caller calls again, whether the poll was interrupted or not.
        let mut entries = [connection.as_fd(), self.storage.outcome_doorbell()]
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        let _ = poll(&mut entries, limit.as_ref());
        Ok(())
    }

    /// Copies the ports' counters to their pages.
    fn publish_counters(&mut self, connection: &mut Connection) -> Result<(), CallError> {
        for report in self.ports_report.read() {
            let Some(port) = self.ports.get_mut(&report.id) else { continue };
            let Some(page) = &mut port.page else { continue };
            page.set_all(0, values(&report.counters));
            if let Err(cause) = page.publish(clock::now()) {
                tracing::warn!("{}: its counters are not shown: {cause}", page.label());
            }
            if !port.shared {
                connection.publish_metrics(page.label(), page.as_fd())?;
                port.shared = true;
            }
        }
        Ok(())
    }

    fn send(&self, command: Command) {
        // The caller notices a switch that has ended; a full eventfd counter is already readable.
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }

    fn add_port(&mut self, port: &PortGrant, descriptors: Vec<OwnedFd>) {
        let Ok(descriptors) = <[OwnedFd; 3]>::try_from(descriptors) else {
            tracing::error!("VNIC {}: its port came without its descriptors", port.name);
            return;
        };
        let (reply, answer) = channel();
        self.send(Command::Add {
            id: port.grant,
            spec: specification(port),
            fds: EndpointFds::received(descriptors, port.uid),
            layout: LinkLayout { slots: port.layout.slots, data: port.layout.data },
            mtu: usize::try_from(port.mtu).unwrap_or(usize::MAX),
            reply,
        });
        match answer.recv() {
            Ok(Ok(())) => {
                let page = page(&port.name).map_err(|cause| tracing::warn!("VNIC {}: {cause}", port.name));
                let served = Port { generation: port.generation, page: page.ok(), shared: false };
                self.ports.insert(port.grant, served);
                tracing::info!(grant = port.grant, "VNIC {} is on the switch", port.name);
            }
            // Closing the descriptors notifies the holder.
            Ok(Err(cause)) => tracing::error!("VNIC {}: {cause}", port.name),
            Err(_) => {}
        }
    }
}

/// The page of a port: the counters of a kernel VNIC, by the same names, and those that only the
/// switch has.
fn page(name: &str) -> Result<Metrics, sietch::MetricsError> {
    let mut names: Vec<String> = Vec::new();
    for direction in ["received", "transmitted"] {
        names.extend(["frames", "bytes"].map(|what| format!("{direction}.{what}")));
        names.extend(Reason::ALL.map(|reason| format!("{direction}.dropped.{}", reason.name())));
    }
    names.extend(["received.dropped.full", "received.dropped.oversize"].map(str::to_owned));
    let entries: Vec<(&str, Kind)> = names.iter().map(|name| (name.as_str(), Kind::Counter)).collect();
    Metrics::new(name, &entries)
}

/// In the order of the names of a page.
fn values(counted: &PortCounters) -> Vec<u64> {
    let mut values = vec![counted.received_frames, counted.received_bytes];
    values.extend(counted.receive_drops);
    values.extend([counted.sent_frames, counted.sent_bytes]);
    values.extend(counted.send_drops);
    values.extend([counted.receive_full, counted.receive_oversize]);
    values
}

fn specification(port: &PortGrant) -> VnicSpec {
    let ranges = |ports: &[PortRange]| ports.iter().map(|range| range.first..=range.last).collect();
    let rate = port.rate.map(|rate| rate.bytes_per_second);
    VnicSpec {
        mac: port.mac.0,
        address: port.address,
        address6: port.address6,
        tcp_ports: ranges(&port.tcp_ports),
        udp_ports: ranges(&port.udp_ports),
        peers: port.peers.iter().filter_map(|peer| Ipv4Prefix::new(peer.address, peer.prefix)).collect(),
        peers6: port.peers6.iter().filter_map(|peer| Ipv6Prefix::new(peer.address, peer.prefix)).collect(),
        rate,
        burst: rate.map_or(0, |rate| (rate / BURST_SHARE).max(MIN_BURST)),
        uplink: None,
        host_mac: port.switch_mac.0,
        generation: port.generation,
    }
}
