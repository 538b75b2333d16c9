//! VNICs for unmodified programs: acquired from the daemon at their first use, then driven by the
//! threads of [`sietch_service::tcp`].
//!
//! 1. The socket service passes on every request that names a VNIC. One thread ([`Desk`]) finds the
//!    VNIC and forwards the request. A request for a VNIC that is not acquired yet goes to a second
//!    thread ([`Keeper`]), which acquires it from the daemon as any application does, however long
//!    that takes. The daemon grants only VNICs that `sietch.toml` marks as `served`. Lists and
//!    revocations of all VNICs stay on the first thread: they wait neither for the daemon nor
//!    behind users' requests.
//! 2. Each VNIC has a lease of its own: it can be revoked alone, and `sietch ss` and `sietch
//!    capture` see it.
//! 3. Each VNIC shares a page named `tcp-NAME` with the daemon: its counters, and how busy its
//!    threads are, for `sietch stat` and `sietch top`.
//! 4. A service that replaces another may have to wait until the other has released the VNIC
//!    ([`HAND_OVER`]). The one that ends resets all connections, so that both sides notice, before
//!    it releases the VNIC ([`Vnics::join`]).
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
/// How long to wait for a VNIC that another service holds: a service that is ending needs
/// milliseconds, and programs wait for answers no longer than
/// [`sietch_protocol::socket_service::ANSWER_MS`].
const HAND_OVER: Duration = Duration::from_secs(3);
/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(20);
/// How long not to wait again for a VNIC that another service has kept for all of [`HAND_OVER`]:
/// each such VNIC delays all others for a tenth of the time.
const KEPT: Duration = Duration::from_secs(30);

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

/// The queue of the requests of one VNIC.
struct Line {
    orders: Sender<VnicRequest>,
    bell: OwnedFd,
    page: Metrics,
}

/// The state that both threads share.
#[derive(Default)]
struct State {
    lines: BTreeMap<String, Line>,
    /// Refuses applications that were revoked.
    gate: RevocationFilter,
}

type Shared = Arc<Mutex<State>>;

fn lock(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Forwards a request to its VNIC; returns the request if the VNIC is not acquired.
    fn pass_on(&mut self, asked: VnicRequest) -> Option<(String, VnicRequest)> {
        let asked = self.gate.admit(asked)?;
        let Some(name) = asked.request.vnic().map(str::to_owned) else {
            asked.refuse(Errno::INVAL);
            return None;
        };
        let Some(line) = self.lines.get(&name) else { return Some((name, asked)) };
        if let Err(lost) = line.orders.send(asked) {
            // It has just ended.
            lost.0.refuse(Errno::NETDOWN);
        }
        let _ = rustix::io::write(&line.bell, &1_u64.to_ne_bytes());
        None
    }
}

/// Requests that have arrived and wait: an administrator's come first.
#[derive(Default)]
struct Waiting([VecDeque<VnicRequest>; 2]);

impl Waiting {
    fn push(&mut self, asked: VnicRequest) {
        self.0[usize::from(!asked.administers)].push_back(asked);
    }

    fn pop(&mut self) -> Option<VnicRequest> {
        self.0.iter_mut().find_map(VecDeque::pop_front)
    }
}

/// Forwards requests, and queries all VNICs at once. It waits for VNICs alone, and for those as
/// long as [`fan_out`] allows.
struct Desk {
    state: Shared,
    /// The commands by which VNICs report connections between their programs.
    commands: CommandSender,
    keeper: Sender<VnicRequest>,
}

impl Desk {
    /// Runs until every sender is dropped.
    fn run(self, asked: &Receiver<VnicRequest>) {
        let mut waiting = Waiting::default();
        loop {
            asked.try_iter().for_each(|asked| waiting.push(asked));
            let next = waiting.pop().map_or_else(|| asked.recv(), Ok);
            let Ok(next) = next else { return };
            if next.request.vnic().is_some() {
                let absent = lock(&self.state).pass_on(next);
                if let Some((_, asked)) = absent
                    && let Err(lost) = self.keeper.send(asked)
                {
                    lost.0.refuse(Errno::NETDOWN);
                }
                continue;
            }
            let State { lines, gate } = &mut *lock(&self.state);
            let lines = lines
                .values()
                .map(|Line { orders, bell, .. }| RequestQueue { requests: orders, doorbell: bell });
            fan_out(next, lines, Some(&self.commands), gate);
        }
    }
}

/// VNICs that another service did not release, and when that was known.
#[derive(Debug, Default)]
struct Kept(BTreeMap<String, Instant>);

impl Kept {
    /// How long to wait for another service that has the VNIC.
    fn patience(&self, name: &str, now: Instant) -> Duration {
        match self.0.get(name) {
            Some(at) if now.saturating_duration_since(*at) < KEPT => Duration::ZERO,
            _ => HAND_OVER,
        }
    }

    /// It is ours.
    fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The wait was in vain. Only names that the daemon knows come here.
    fn note(&mut self, name: &str, now: Instant) {
        self.0.retain(|_, at| now.saturating_duration_since(*at) < KEPT);
        self.0.insert(name.to_owned(), now);
    }
}

/// Acquires VNICs, and publishes their counters.
struct Keeper {
    socket: PathBuf,
    kept: Kept,
    pool: Pool<Served>,
    board: Arc<Snapshot<PoolReport>>,
    state: Shared,
    commands: CommandSender,
}

/// The threads that keep the VNICs.
pub(super) struct Vnics([JoinHandle<()>; 2]);

impl Vnics {
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
pub(super) fn start(socket: &Path, commands: CommandSender) -> io::Result<(Sender<VnicRequest>, Vnics)> {
    let (sender, asked) = channel();
    let (absent, wanted) = channel();
    let pool = Pool::start(Options::default())?;
    let (board, state) = (pool.report(), Shared::default());
    let desk = Desk { state: Arc::clone(&state), commands: commands.try_clone()?, keeper: absent };
    let mut keeper =
        Keeper { socket: socket.to_owned(), kept: Kept::default(), pool, board, state, commands };
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    let keeps = thread("sietch-vnics").spawn(move || keeper.run(&wanted))?;
    let passes_on = thread("sietch-desk").spawn(move || desk.run(&asked))?;
    Ok((sender, Vnics([passes_on, keeps])))
}

impl Keeper {
    /// Acquires requested VNICs until every sender is dropped.
    fn run(&mut self, wanted: &Receiver<VnicRequest>) {
        loop {
            let next = if lock(&self.state).lines.is_empty() {
                wanted.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                wanted.recv_timeout(INTERVAL)
            };
            for name in self.pool.take_ended() {
                lock(&self.state).lines.remove(&name);
            }
            match next {
                Ok(asked) => self.pass_on(asked),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.show();
        }
    }

    fn pass_on(&mut self, asked: VnicRequest) {
        // It may be there by now.
        let absent = lock(&self.state).pass_on(asked);
        let Some((name, asked)) = absent else { return };
        match self.acquire(&name) {
            Ok(line) => {
                tracing::info!("VNIC {name} is served");
                let mut state = lock(&self.state);
                state.lines.insert(name, line);
                // Its program may have been revoked meanwhile.
                state.pass_on(asked);
            }
            Err((error, cause)) => {
                tracing::warn!("VNIC {name}: {cause}");
                asked.refuse(error);
            }
        }
    }

    /// Asks the daemon for a VNIC and has it served.
    fn acquire(&mut self, name: &str) -> Result<Line, (Errno, String)> {
        let failed = |cause: &dyn std::fmt::Display| (Errno::NETDOWN, cause.to_string());
        let mut client = Client::connect(&self.socket, "service").map_err(|cause| failed(&cause))?;
        let began = Instant::now();
        let patience = self.kept.patience(name, began);
        let mut acquired = client.acquire_vnic(name);
        while let Err(sietch::Error::Control(CallError::Refused(reply))) = &acquired
            && reply.kind == ErrorKind::Busy
        {
            if began.elapsed() >= patience {
                // A VNIC that was skipped is waited for again after its time.
                if !patience.is_zero() {
                    self.kept.note(name, Instant::now());
                }
                break;
            }
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
        self.kept.forget(name);
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
        let bell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|cause| failed(&cause))?;
        let own = bell.try_clone().map_err(|cause| failed(&cause))?;
        let (orders, received) = channel();
        let commands = self.commands.try_clone().map_err(|cause| failed(&cause))?;
        let vnic = Vnic::new(name.to_owned(), access, device, engine, received, own, Some(commands))
            .map_err(|cause| failed(&cause))?;
        self.pool.add(vnic).map_err(|cause| failed(&cause))?;
        Ok(Line { orders, bell, page })
    }

    /// Copies the VNICs' counters to their pages.
    fn show(&mut self) {
        let lines = &mut lock(&self.state).lines;
        for (thread, shown) in self.board.read() {
            for vnic in &shown.vnics {
                let Some(line) = lines.get_mut(&vnic.name) else { continue };
                line.page.set_all(0, values(thread as u64, shown.busy, vnic));
                if let Err(cause) = line.page.publish(clock::now()) {
                    tracing::warn!("{}: its counters are not shown: {cause}", line.page.label());
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

    fn ask(vnics: &Sender<VnicRequest>, kind: RequestKind, vnic: Option<&str>) -> OwnedFd {
        let (own, socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("descriptors");
        let mut request = Request::new(kind, [7; 16]);
        vnic.into_iter().for_each(|vnic| request.set_vnic(vnic));
        let (descriptors, administers) = (RequestDescriptors::default(), vnic.is_none());
        let asked = VnicRequest {
            uid: 0,
            administers,
            request,
            kind,
            descriptors,
            pair: None,
            dry_run: false,
            socket,
        };
        vnics.send(asked).expect("a thread receives it");
        own
    }

    #[test]
    fn a_vnic_that_another_service_keeps_is_waited_for_once_in_a_while() {
        let (mut kept, begun) = (Kept::default(), Instant::now());
        assert_eq!(kept.patience("v0", begun), HAND_OVER);
        kept.note("v0", begun);
        assert_eq!((kept.patience("v0", begun), kept.patience("v1", begun)), (Duration::ZERO, HAND_OVER));
        kept.note("v1", begun + KEPT / 2);
        let then = begun + KEPT;
        assert_eq!((kept.patience("v0", then), kept.patience("v1", then)), (HAND_OVER, Duration::ZERO));
        kept.note("v0", then);
        assert_eq!((kept.patience("v0", then), kept.0.len()), (Duration::ZERO, 2));
        // Acquired, and lost again: its next holder may be about to release it.
        kept.forget("v0");
        assert_eq!(kept.patience("v0", then), HAND_OVER);
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
        let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
        let (vnics, threads) = start(&path, CommandSender { commands, doorbell: bell }).expect("threads");
        let program = ask(&vnics, RequestKind::Connect, Some("v0"));
        let call = rustix::net::accept(&daemon).expect("it asks for the VNIC");
        let administrator = ask(&vnics, RequestKind::List, None);
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
    fn an_administrator_comes_before_users_that_asked_earlier() {
        let (vnics, asked) = channel();
        let users = [(); 3].map(|()| ask(&vnics, RequestKind::Connect, Some("v0")));
        let administrator = ask(&vnics, RequestKind::List, None);
        let mut waiting = Waiting::default();
        asked.try_iter().for_each(|asked| waiting.push(asked));
        let order: Vec<bool> = std::iter::from_fn(|| waiting.pop()).map(|asked| asked.administers).collect();
        assert_eq!(order, [true, false, false, false]);
        drop((users, administrator));
    }
}
