//! VNICs for unmodified programs: acquired from the daemon at their first use, then driven by the
//! threads of [`sietch_service::tcp`].
//!
//! 1. The socket service forwards every request that names a VNIC. One thread ([`Dispatcher`])
//!    finds the VNIC and forwards the request. A request for a VNIC that is not acquired yet goes
//!    to a second thread ([`Acquirer`]). That thread acquires the VNIC from the daemon as any
//!    application does, however long that takes. The daemon grants only VNICs that `sietch.toml`
//!    marks as `served`. Lists and revocations of all VNICs stay on the first thread: they wait
//!    neither for the daemon nor behind users' requests.
//! 2. Each VNIC has a lease of its own: it can be revoked alone, and `sietch ss` and `sietch
//!    capture` see it.
//! 3. Each VNIC shares a page named `tcp-NAME` with the daemon: its counters, and how busy its
//!    threads are, for `sietch stat` and `sietch top`.
//! 4. A service that replaces another may have to wait until the other has released the VNIC
//!    ([`HANDOVER_WAIT`]). The service that ends resets all connections, so that both sides notice.
//!    Then it releases the VNIC ([`VnicThreads::join`]).
//! 5. A VNIC that has ended (revoked, or its device was removed) is forgotten. The next request
//!    acquires it again, or is refused.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sietch::net::Engine;
use sietch::nic::{Frame, NicQueue, Offloads, TransmitError, Untrusted};
use sietch::{Client, Doorbell as _, Grant, Kind, Lease, Metrics, VnicQueue, clock};
use sietch_protocol::{CallError, ErrorKind, VnicGrant};
use sietch_service::Snapshot;
use sietch_service::sockets::CommandSender;
use sietch_service::tcp::{
    Access, Counters, Device, Options, Pool, PoolReport, RequestQueue, RevocationFilter, Vnic, VnicReport,
    VnicRequest, fan_out, source_ports,
};

/// How often counters are copied to their pages, while there is a VNIC.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long to wait for a VNIC that another service holds. A service that is ending needs
/// milliseconds, and programs wait for replies no longer than
/// [`sietch_protocol::socket_service::ANSWER_MS`].
const HANDOVER_WAIT: Duration = Duration::from_secs(3);
/// Between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How long not to wait again for a VNIC that another service held during all of [`HANDOVER_WAIT`]:
/// each such VNIC delays all others for a tenth of the time.
const SKIP_FOR: Duration = Duration::from_secs(30);

/// A VNIC's queue, and whether it is still ours.
#[derive(Debug)]
struct Served {
    // Dropped before the lease, so that a released device is no longer in use.
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

    fn tail(&self, frame: &Frame) -> Untrusted<'_> {
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

    fn diagnostics(&self) -> Option<BorrowedFd<'_>> {
        Some(self.lease.doorbell())
    }

    fn answer_diagnostics(&mut self, engine: &Engine) {
        self.lease.answer_diagnostics(&self.grant, engine, &mut self.queue);
    }

    fn is_revoked(&mut self) -> bool {
        self.grant[0].is_revoked() || self.lease.is_ending()
    }
}

/// The channel to the thread of one VNIC, and the page of its counters.
struct RequestChannel {
    requests: Sender<VnicRequest>,
    doorbell: OwnedFd,
    page: Metrics,
}

/// The state that both threads share.
#[derive(Default)]
struct State {
    channels: BTreeMap<String, RequestChannel>,
    /// Refuses applications that were revoked.
    revocations: RevocationFilter,
}

type Shared = Arc<Mutex<State>>;

fn lock(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Forwards a request to its VNIC; returns the request if the VNIC is not acquired.
    fn forward(&mut self, request: VnicRequest) -> Option<(String, VnicRequest)> {
        let request = self.revocations.admit(request)?;
        let Some(name) = request.request.vnic().map(str::to_owned) else {
            request.refuse(Errno::INVAL);
            return None;
        };
        let Some(channel) = self.channels.get(&name) else { return Some((name, request)) };
        if let Err(lost) = channel.requests.send(request) {
            // It has just ended.
            lost.0.refuse(Errno::NETDOWN);
        }
        let _ = rustix::io::write(&channel.doorbell, &1_u64.to_ne_bytes());
        None
    }
}

/// Requests that have arrived and wait: an administrator's come first.
#[derive(Default)]
struct Waiting([VecDeque<VnicRequest>; 2]);

impl Waiting {
    fn push(&mut self, request: VnicRequest) {
        self.0[usize::from(!request.administers)].push_back(request);
    }

    fn pop(&mut self) -> Option<VnicRequest> {
        self.0.iter_mut().find_map(VecDeque::pop_front)
    }
}

/// Forwards requests, and queries all VNICs at once. It waits for nothing but VNICs, and for those
/// as long as [`fan_out`] allows.
struct Dispatcher {
    state: Shared,
    /// The commands by which VNICs report connections between their programs.
    commands: CommandSender,
    acquirer: Sender<VnicRequest>,
}

impl Dispatcher {
    /// Runs until every sender is dropped.
    fn run(self, requests: &Receiver<VnicRequest>) {
        let mut waiting = Waiting::default();
        loop {
            requests.try_iter().for_each(|request| waiting.push(request));
            let next = waiting.pop().map_or_else(|| requests.recv(), Ok);
            let Ok(next) = next else { return };
            if next.request.vnic().is_some() {
                let absent = lock(&self.state).forward(next);
                if let Some((_, request)) = absent
                    && let Err(lost) = self.acquirer.send(request)
                {
                    lost.0.refuse(Errno::NETDOWN);
                }
                continue;
            }
            let State { channels, revocations } = &mut *lock(&self.state);
            let channels = channels
                .values()
                .map(|RequestChannel { requests, doorbell, .. }| RequestQueue { requests, doorbell });
            fan_out(next, channels, Some(&self.commands), revocations);
        }
    }
}

/// VNICs that another service did not release, and when the wait for each ended.
#[derive(Debug, Default)]
struct HeldElsewhere(BTreeMap<String, Instant>);

impl HeldElsewhere {
    /// How long to wait for another service that has the VNIC.
    fn max_wait(&self, name: &str, now: Instant) -> Duration {
        match self.0.get(name) {
            Some(at) if now.saturating_duration_since(*at) < SKIP_FOR => Duration::ZERO,
            _ => HANDOVER_WAIT,
        }
    }

    /// This service holds it now.
    fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The wait was in vain. Only names that the daemon knows come here.
    fn note_timeout(&mut self, name: &str, now: Instant) {
        self.0.retain(|_, at| now.saturating_duration_since(*at) < SKIP_FOR);
        self.0.insert(name.to_owned(), now);
    }
}

/// Acquires VNICs, and publishes their counters.
struct Acquirer {
    socket: PathBuf,
    held_elsewhere: HeldElsewhere,
    pool: Pool<Served>,
    report: Arc<Snapshot<PoolReport>>,
    state: Shared,
    commands: CommandSender,
}

/// The threads that keep the VNICs.
pub(super) struct VnicThreads([JoinHandle<()>; 2]);

impl VnicThreads {
    /// Waits until all VNICs have ended: they do once every sender of requests is dropped.
    pub(super) fn join(self) {
        for thread in self.0 {
            // One that panicked has nothing any more.
            let _ = thread.join();
        }
    }
}

/// Starts the threads. The owner of the sender passes requests to them.
///
/// # Errors
/// No descriptors or threads are left.
pub(super) fn start(
    socket: &Path,
    commands: CommandSender,
) -> io::Result<(Sender<VnicRequest>, VnicThreads)> {
    let (sender, requests) = channel();
    let (absent, wanted) = channel();
    let pool = Pool::start(Options::default())?;
    let (report, state) = (pool.report(), Shared::default());
    let dispatcher =
        Dispatcher { state: Arc::clone(&state), commands: commands.try_clone()?, acquirer: absent };
    let mut acquirer = Acquirer {
        socket: socket.to_owned(),
        held_elsewhere: HeldElsewhere::default(),
        pool,
        report,
        state,
        commands,
    };
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    let acquires = thread("sietch-vnics").spawn(move || acquirer.run(&wanted))?;
    let dispatches = thread("sietch-dispatch").spawn(move || dispatcher.run(&requests))?;
    Ok((sender, VnicThreads([dispatches, acquires])))
}

impl Acquirer {
    /// Acquires requested VNICs until every sender is dropped.
    fn run(&mut self, wanted: &Receiver<VnicRequest>) {
        loop {
            let next = if lock(&self.state).channels.is_empty() {
                wanted.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                wanted.recv_timeout(INTERVAL)
            };
            for name in self.pool.take_ended() {
                lock(&self.state).channels.remove(&name);
            }
            match next {
                Ok(request) => self.forward(request),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.publish_counters();
        }
    }

    fn forward(&mut self, request: VnicRequest) {
        // It may be there by now.
        let absent = lock(&self.state).forward(request);
        let Some((name, request)) = absent else { return };
        match self.acquire(&name) {
            Ok(channel) => {
                tracing::info!("VNIC {name} is served");
                let mut state = lock(&self.state);
                state.channels.insert(name, channel);
                // Its program may have been revoked meanwhile.
                state.forward(request);
            }
            Err((error, cause)) => {
                tracing::warn!("VNIC {name}: {cause}");
                request.refuse(error);
            }
        }
    }

    /// Acquires a VNIC from the daemon, and has a thread of the pool serve it.
    fn acquire(&mut self, name: &str) -> Result<RequestChannel, (Errno, String)> {
        let failed = |cause: &dyn std::fmt::Display| (Errno::NETDOWN, cause.to_string());
        let mut client = Client::connect(&self.socket, "service").map_err(|cause| failed(&cause))?;
        let began = Instant::now();
        let max_wait = self.held_elsewhere.max_wait(name, began);
        let mut acquired = client.acquire_vnic(name);
        while let Err(sietch::Error::Control(CallError::Refused(reply))) = &acquired
            && reply.kind == ErrorKind::Busy
        {
            if began.elapsed() >= max_wait {
                // A VNIC that was skipped is waited for again after its time.
                if !max_wait.is_zero() {
                    self.held_elsewhere.note_timeout(name, Instant::now());
                }
                break;
            }
            std::thread::sleep(RETRY_PAUSE);
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
        self.held_elsewhere.forget(name);
        let page = page(name).map_err(|cause| failed(&cause))?;
        client.share_metrics(&page).map_err(|cause| failed(&cause))?;
        let mut secret = [0; 16];
        getrandom(&mut secret, GetRandomFlags::empty()).map_err(|cause| failed(&cause))?;
        let access = access(&vnic.description);
        let mut config = vnic.engine_config(secret);
        if let Some(range) = source_ports(&access.ports) {
            config.source_ports = range;
        }
        let engine = Engine::new(&config, vnic.queue.mac(), vnic.queue.mtu());
        let lease = client.hold().map_err(|cause| failed(&cause))?;
        let device = Served { queue: vnic.queue, grant: [vnic.grant], lease };
        let doorbell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|cause| failed(&cause))?;
        let vnic_doorbell = doorbell.try_clone().map_err(|cause| failed(&cause))?;
        let (requests, received) = channel();
        let commands = self.commands.try_clone().map_err(|cause| failed(&cause))?;
        let vnic =
            Vnic::new(name.to_owned(), access, device, engine, received, vnic_doorbell, Some(commands))
                .map_err(|cause| failed(&cause))?;
        self.pool.add(vnic).map_err(|cause| failed(&cause))?;
        Ok(RequestChannel { requests, doorbell, page })
    }

    /// Copies the VNICs' counters to their pages.
    fn publish_counters(&mut self) {
        let channels = &mut lock(&self.state).channels;
        for (thread, shown) in self.report.read() {
            for vnic in &shown.vnics {
                let Some(channel) = channels.get_mut(&vnic.name) else { continue };
                channel.page.set_all(0, values(thread as u64, shown.busy, vnic));
                if let Err(cause) = channel.page.publish(clock::now()) {
                    tracing::warn!("{}: its counters are not shown: {cause}", channel.page.label());
                }
            }
        }
    }
}

/// Which users may use a VNIC, and for what.
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
    let gauges = ["thread", "thread.busy", "busy", "applications", "connections", "active", "bindings"];
    let counters = [
        "accepted",
        "connected",
        "failed",
        "aborted",
        "reset",
        "unmatched",
        "sent.bytes",
        "received.bytes",
        "notifications",
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
fn values(thread: u64, busy: u32, vnic: &VnicReport) -> [u64; 18] {
    let Counters {
        accepted,
        connected,
        failed,
        aborted,
        reset,
        unmatched,
        sent_bytes,
        received_bytes,
        notifications,
        deferred,
        connections,
        active,
        bindings,
    } = vnic.counters;
    [
        thread,
        busy.into(),
        vnic.busy.into(),
        vnic.usages.len() as u64,
        connections,
        active,
        bindings,
        accepted,
        connected,
        failed,
        aborted,
        reset,
        unmatched,
        sent_bytes,
        received_bytes,
        notifications,
        deferred,
        vnic.worked,
    ]
}

#[cfg(test)]
mod tests {
    use rustix::net::{
        AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, recv, socket_with, socketpair,
    };
    use sietch_protocol::socket_service::{Request, RequestKind};
    use sietch_service::sockets::RequestDescriptors;

    use super::*;

    fn send(vnics: &Sender<VnicRequest>, kind: RequestKind, vnic: Option<&str>) -> OwnedFd {
        let (own, socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("descriptors");
        let mut request = Request::new(kind, [7; 16]);
        vnic.into_iter().for_each(|vnic| request.set_vnic(vnic));
        let (descriptors, administers) = (RequestDescriptors::default(), vnic.is_none());
        let request = VnicRequest {
            uid: 0,
            administers,
            request,
            kind,
            descriptors,
            pair: None,
            dry_run: false,
            socket,
        };
        vnics.send(request).expect("a thread receives it");
        own
    }

    #[test]
    fn a_vnic_that_another_service_holds_is_waited_for_once_in_a_while() {
        let (mut held_elsewhere, begun) = (HeldElsewhere::default(), Instant::now());
        assert_eq!(held_elsewhere.max_wait("v0", begun), HANDOVER_WAIT);
        held_elsewhere.note_timeout("v0", begun);
        assert_eq!(
            (held_elsewhere.max_wait("v0", begun), held_elsewhere.max_wait("v1", begun)),
            (Duration::ZERO, HANDOVER_WAIT)
        );
        held_elsewhere.note_timeout("v1", begun + SKIP_FOR / 2);
        let then = begun + SKIP_FOR;
        assert_eq!(
            (held_elsewhere.max_wait("v0", then), held_elsewhere.max_wait("v1", then)),
            (HANDOVER_WAIT, Duration::ZERO)
        );
        held_elsewhere.note_timeout("v0", then);
        assert_eq!((held_elsewhere.max_wait("v0", then), held_elsewhere.0.len()), (Duration::ZERO, 2));
        // Acquired and lost again: its next holder may be about to release it.
        held_elsewhere.forget("v0");
        assert_eq!(held_elsewhere.max_wait("v0", then), HANDOVER_WAIT);
    }

    #[test]
    fn a_request_of_an_administrator_does_not_wait_for_a_hanging_daemon() {
        let path = std::env::temp_dir().join(format!("sietch-vnics-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        // A daemon that accepts connections, and sends nothing.
        let daemon = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .expect("a descriptor");
        rustix::net::bind(&daemon, &SocketAddrUnix::new(&path).expect("a path")).expect("a free name");
        rustix::net::listen(&daemon, 16).expect("bound");
        let (commands, _orders) = channel();
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
        let (vnics, threads) = start(&path, CommandSender { commands, doorbell }).expect("threads");
        let program = send(&vnics, RequestKind::Connect, Some("v0"));
        let call = rustix::net::accept(&daemon).expect("it requests the VNIC");
        let administrator = send(&vnics, RequestKind::List, None);
        let answered = recv(&administrator, &mut [0_u8; 1][..], RecvFlags::empty()).expect("an answer");
        assert_eq!(answered.0, 1);
        let waits = recv(&program, &mut [0_u8; 1][..], RecvFlags::DONTWAIT);
        assert_eq!(waits.err(), Some(Errno::AGAIN), "the daemon has said nothing");
        drop((call, daemon, vnics));
        assert_eq!(recv(&program, &mut [0_u8; 1][..], RecvFlags::empty()).expect("an answer").0, 1);
        threads.join();
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn a_request_of_an_administrator_comes_before_earlier_requests_of_users() {
        let (vnics, requests) = channel();
        let users = [(); 3].map(|()| send(&vnics, RequestKind::Connect, Some("v0")));
        let administrator = send(&vnics, RequestKind::List, None);
        let mut waiting = Waiting::default();
        requests.try_iter().for_each(|request| waiting.push(request));
        let order: Vec<bool> =
            std::iter::from_fn(|| waiting.pop()).map(|request| request.administers).collect();
        assert_eq!(order, [true, false, false, false]);
        drop((users, administrator));
    }
}
