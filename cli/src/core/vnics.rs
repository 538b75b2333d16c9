//! VNICs for unmodified programs: acquired from the daemon when somebody first asks for one, then driven by the threads of [`sietch_service::tcp`].
//!
//! 1. The socket service hands over what programs ask that name a VNIC. A thread of its own looks which VNIC that is, and passes it on; a VNIC that it does not have yet
//!    it asks the daemon for, as any application does. The daemon gives out only those that `sietch.toml` says are `served`.
//! 2. Each VNIC has a lease of its own: it is revoked by itself, and `sietch ss` and `sietch capture` see it.
//! 3. What each has counted, and how busy its threads are, is shared with the daemon on a page named `tcp-NAME`, for `sietch stat` and `sietch top`.
//! 4. A service that takes another's place may have to wait until that one has let go of the VNIC ([`HAND_OVER`]). The one that ends resets all
//!    connections, for both sides to hear, before it lets go ([`Vnics::join`]).
//! 5. One that has ended (revoked, or its device is gone) is forgotten; who asks next has it acquired anew, or refused.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sietch::net::Engine;
use sietch::nic::{Foreign, Frame, NicQueue, Offloads, TransmitError};
use sietch::{Client, Doorbell as _, Grant, Kind, Lease, Metrics, VnicQueue, clock};
use sietch_protocol::{CallError, ErrorKind, VnicGrant};
use sietch_service::sockets::Registrar;
use sietch_service::tcp::gather;
use sietch_service::tcp::{Access, Asked, Board, Counters, Device, Options, Pool, Ports, Vnic, VnicShown};

/// How often counters are put on their pages, while there is a VNIC.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long a VNIC that another service has is waited for: one that is ending needs milliseconds, and programs wait for answers no longer than
/// [`sietch_protocol::socket_service::ANSWER_MS`].
const HAND_OVER: Duration = Duration::from_secs(3);
/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(20);

/// A VNIC's queue, and whether it is still ours.
#[derive(Debug)]
struct Served {
    // Before the lease: what is given back is not in use any more.
    queue: VnicQueue,
    grant: [Grant; 1],
    lease: Lease,
}

impl NicQueue for Served {
    fn mac(&self) -> [u8; 6] {
        self.queue.mac()
    }

    fn mtu(&self) -> usize {
        self.queue.mtu()
    }

    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        self.queue.receive(out, limit)
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.queue.bytes(frame)
    }

    fn tail(&self, frame: &Frame) -> Foreign<'_> {
        self.queue.tail(frame)
    }

    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        self.queue.bytes_mut(frame)
    }

    fn allocate(&mut self, length: usize) -> Option<Frame> {
        self.queue.allocate(length)
    }

    fn offloads(&self) -> Offloads {
        self.queue.offloads()
    }

    fn release(&mut self, frame: Frame) {
        self.queue.release(frame);
    }

    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
        self.queue.transmit(frame)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.queue.flush()
    }

    fn free_buffers(&self) -> usize {
        self.queue.free_buffers()
    }

    fn must_flush_again(&self) -> bool {
        self.queue.must_flush_again()
    }
}

impl Device for Served {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.queue.doorbell()
    }

    fn arm(&mut self) -> bool {
        self.queue.arm()
    }

    fn disarm(&mut self) {
        self.queue.disarm();
        self.lease.clear_doorbell();
    }

    fn control(&self) -> Option<BorrowedFd<'_>> {
        Some(self.lease.doorbell())
    }

    fn attend(&mut self, engine: &Engine) {
        self.lease.answer(&self.grant, engine, &mut self.queue);
    }

    fn is_revoked(&mut self) -> bool {
        self.grant[0].is_revoked() || self.lease.is_ending()
    }
}

/// Where requests of one VNIC go.
struct Line {
    orders: Sender<Asked>,
    bell: OwnedFd,
    page: Metrics,
}

/// See the module.
struct Keeper {
    socket: PathBuf,
    pool: Pool<Served>,
    board: Arc<Board>,
    lines: BTreeMap<String, Line>,
    /// Whom VNICs tell of connections between their programs.
    registrar: Registrar,
    /// Refuses applications that were revoked.
    gate: gather::Gate,
}

/// The thread that keeps the VNICs.
pub(super) struct Vnics(JoinHandle<()>);

impl Vnics {
    /// Waits until all VNICs have ended. They do when nobody can send requests any more.
    pub(super) fn join(self) {
        // One that panicked has nothing any more.
        let _ = self.0.join();
    }
}

/// Starts the thread; who has the sender hands over requests.
///
/// # Errors
/// No descriptors or threads are left.
pub(super) fn start(socket: &Path, registrar: Registrar) -> io::Result<(Sender<Asked>, Vnics)> {
    let (sender, asked) = channel();
    let pool = Pool::start(Options::default())?;
    let board = pool.board();
    let (socket, lines, gate) = (socket.to_owned(), BTreeMap::new(), gather::Gate::default());
    let mut keeper = Keeper { socket, pool, board, lines, registrar, gate };
    let name = "sietch-vnics".to_owned();
    let thread = std::thread::Builder::new().name(name).spawn(move || keeper.run(&asked))?;
    Ok((sender, Vnics(thread)))
}

impl Keeper {
    /// Passes requests on until nobody can send any more.
    fn run(&mut self, asked: &Receiver<Asked>) {
        loop {
            let next = if self.lines.is_empty() {
                asked.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                asked.recv_timeout(INTERVAL)
            };
            for name in self.pool.take_ended() {
                self.lines.remove(&name);
            }
            match next {
                Ok(asked) if asked.request.vnic().is_none() => {
                    let lines = self.lines.values();
                    let lines = lines.map(|Line { orders, bell, .. }| gather::Line { orders, bell });
                    gather::gather(asked, lines, Some(&self.registrar), &mut self.gate);
                }
                Ok(asked) => self.pass_on(asked),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.show();
        }
    }

    fn pass_on(&mut self, asked: Asked) {
        let Some(asked) = self.gate.admit(asked) else { return };
        let Some(name) = asked.request.vnic().map(str::to_owned) else { return asked.refuse(Errno::INVAL) };
        if !self.lines.contains_key(&name) {
            match self.acquire(&name) {
                Ok(line) => {
                    tracing::info!("VNIC {name} is served");
                    self.lines.insert(name.clone(), line);
                }
                Err((error, cause)) => {
                    tracing::warn!("VNIC {name}: {cause}");
                    return asked.refuse(error);
                }
            }
        }
        let Some(line) = self.lines.get(&name) else { return };
        if let Err(lost) = line.orders.send(asked) {
            // It has just ended.
            lost.0.refuse(Errno::NETDOWN);
        }
        let _ = rustix::io::write(&line.bell, &1_u64.to_ne_bytes());
    }

    /// Asks the daemon for a VNIC and has it served.
    fn acquire(&mut self, name: &str) -> Result<Line, (Errno, String)> {
        let failed = |cause: &dyn std::fmt::Display| (Errno::NETDOWN, cause.to_string());
        let mut client = Client::connect(&self.socket, "service").map_err(|cause| failed(&cause))?;
        let began = Instant::now();
        let mut acquired = client.acquire_vnic(name);
        while let Err(sietch::Error::Control(CallError::Refused(reply))) = &acquired
            && reply.kind == ErrorKind::Busy
            && began.elapsed() < HAND_OVER
        {
            std::thread::sleep(AGAIN);
            acquired = client.acquire_vnic(name);
        }
        let vnic = acquired.map_err(|cause| {
            let error = match &cause {
                sietch::Error::Control(CallError::Refused(reply)) => match reply.kind {
                    ErrorKind::Unknown => Errno::NODEV,
                    ErrorKind::Denied => Errno::ACCESS,
                    _ => Errno::NETDOWN,
                },
                _ => Errno::NETDOWN,
            };
            (error, cause.to_string())
        })?;
        let page = page(name).map_err(|cause| failed(&cause))?;
        client.share_metrics(&page).map_err(|cause| failed(&cause))?;
        let mut secret = [0; 16];
        getrandom(&mut secret, GetRandomFlags::empty()).map_err(|cause| failed(&cause))?;
        let access = access(&vnic.description);
        let mut config = vnic.engine_config(secret);
        if let Some(range) = Ports::source_ports(&access.ports) {
            config.source_ports = range;
        }
        let engine = Engine::new(&config, vnic.queue.mac(), vnic.queue.mtu());
        let lease = client.hold().map_err(|cause| failed(&cause))?;
        let device = Served { queue: vnic.queue, grant: [vnic.grant], lease };
        let bell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|cause| failed(&cause))?;
        let own = bell.try_clone().map_err(|cause| failed(&cause))?;
        let (orders, received) = channel();
        let registrar = self.registrar.try_clone().map_err(|cause| failed(&cause))?;
        let vnic = Vnic::new(name.to_owned(), access, device, engine, received, own, Some(registrar))
            .map_err(|cause| failed(&cause))?;
        self.pool.add(vnic).map_err(|cause| failed(&cause))?;
        Ok(Line { orders, bell, page })
    }

    /// Puts what was noted on the VNICs' pages.
    fn show(&mut self) {
        for (thread, shown) in self.board.read() {
            for vnic in &shown.vnics {
                let Some(line) = self.lines.get_mut(&vnic.name) else { continue };
                line.page.set_all(0, values(thread as u64, shown.busy, vnic));
                if let Err(cause) = line.page.publish(clock::now()) {
                    tracing::warn!("{}: its counters are not shown: {cause}", line.page.label());
                }
            }
        }
    }
}

/// Who may use a VNIC, and for what.
fn access(granted: &VnicGrant) -> Access {
    let mut peers: Vec<(IpAddr, u8)> =
        granted.peers.iter().map(|network| (network.address.into(), network.prefix)).collect();
    if granted.peers6.is_empty() && peers.iter().any(|(_, prefix)| *prefix == 0) {
        peers.clear();
    }
    peers.extend(granted.peers6.iter().map(|network| (network.address.into(), network.prefix)));
    let mut addresses: Vec<IpAddr> = vec![granted.address.into()];
    addresses.extend(granted.address6.map(|network| IpAddr::from(network.address)));
    Access {
        // Only a VNIC that is served is given to the service core, and then its user is said.
        uid: granted.user.unwrap_or(0),
        addresses,
        ports: granted.tcp_ports.iter().map(|range| range.first..=range.last).collect(),
        peers,
    }
}

/// The page of a VNIC.
fn page(name: &str) -> Result<Metrics, sietch::MetricsError> {
    let gauges = ["thread", "thread.busy", "busy", "applications", "connections", "active", "claims"];
    let counters = [
        "accepted",
        "connected",
        "failed",
        "aborted",
        "reset",
        "unwanted",
        "sent.bytes",
        "received.bytes",
        "rings",
        "deferred",
        "busy.ns",
    ];
    let entries: Vec<(&str, Kind)> = gauges
        .map(|name| (name, Kind::Gauge))
        .into_iter()
        .chain(counters.map(|name| (name, Kind::Counter)))
        .collect();
    Metrics::new(&format!("tcp-{name}"), &entries)
}

/// In the order of the names of a page.
fn values(thread: u64, busy: u32, vnic: &VnicShown) -> [u64; 18] {
    let Counters {
        accepted,
        connected,
        failed,
        aborted,
        reset,
        unwanted,
        sent_bytes,
        received_bytes,
        rings,
        deferred,
        connections,
        active,
        claims,
    } = vnic.counters;
    [
        thread,
        busy.into(),
        vnic.busy.into(),
        vnic.shares.len() as u64,
        connections,
        active,
        claims,
        accepted,
        connected,
        failed,
        aborted,
        reset,
        unwanted,
        sent_bytes,
        received_bytes,
        rings,
        deferred,
        vnic.worked,
    ]
}
