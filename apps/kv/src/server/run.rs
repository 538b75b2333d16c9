//! Runs the server on real devices, from start to end.
//!
//! 1. Acquire the storage area (unless no log is kept) and the VNIC from the control plane;
//!    recover; open the transports; report that the store serves.
//! 2. Iterate. After an iteration in which nothing happened, poll for as long as that has paid
//!    lately ([`super::idle`]), then sleep on every doorbell.
//! 3. A revoked VNIC is closed with its clients; everything else continues. A VNIC that was a link
//!    is acquired again ([`super::reacquire`]). So is an area whose service core ended: once it is
//!    granted, the store ends, and its supervisor restarts it. At SIGTERM, SIGINT, SHUTDOWN, or the
//!    end of the daemon, the server stops reading, makes all effects durable, and closes the log in
//!    order.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::RecvFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};
use sietch::disk::{AreaQueue, DiskQueue as _};
use sietch::{Client, Doorbell as _, GrantedVsa, Idle, Lease, StartupReport, Vnic, VnicQueue};
use sietch_socket::{Choice, SocketQueue};

use super::idle::IdlePolicy;
use super::key_view::KeyView;
use super::latency::LatencyAttribution;
use super::metrics::MetricsPages;
use super::reacquire::Reacquisition;
use super::reactor::Reactor;
use super::transport::vnic::VnicTransport;
use super::{Error, LogWriter, NetChoice, Options, recover};
use crate::data::keyspace::ShutdownMode;
use crate::foundation::metrics::{Recovery, Usage};
use crate::foundation::settings::Settings;
use crate::shard::{LONG_ITERATION_NS, Now, Shard};

/// Tokens of the doorbells.
const LEASE: u64 = 1;
const SIGNAL: u64 = 2;
const VNIC: u64 = 3;
const DISK: u64 = 4;
const LINK_LEASE: u64 = 5;
const LINK_GRANTED: u64 = 6;
const AREA_GRANTED: u64 = 7;

/// Longest wait for the disk at the end: less than the limit of `sietch up`, so that the log can
/// still be closed.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(20);

/// Pause between two polls of the disk while the store ends.
const SHUTDOWN_PAUSE: Duration = Duration::from_millis(1);

/// Descriptors reserved for other uses than clients: standard streams, rings, devices, counter
/// pages, the control connection, and one to refuse a client with. Redis reserves 32.
const RESERVED_DESCRIPTORS: usize = 64;

type ServerReactor = Reactor<VnicQueue, AreaQueue>;

/// Serves until it is requested to stop.
///
/// # Errors
/// The store cannot start, or its log fails at the end.
pub fn run(options: Options) -> Result<(), Error> {
    let files = raise_file_limit();
    let signals = signals()?;
    let mut server = Server::start(options, signals, files)?;
    let outcome = server.serve();
    let ended = server.end();
    outcome.and(ended)
}

/// Raises the limit of open files to the hard limit, and returns it.
fn raise_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // With fewer descriptors the store serves fewer connections, which is no reason to fail.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let files = getrlimit(Resource::Nofile).current;
    files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// Whether the machine has one core. A server pinned to one core of several still polls.
fn has_single_core() -> bool {
    std::fs::read_to_string("/sys/devices/system/cpu/online").is_ok_and(|cores| cores.trim() == "0")
}

/// A stream that becomes readable at SIGTERM or SIGINT.
fn signals() -> Result<UnixStream, Error> {
    let system = |cause| Error::System { action: "watching for signals", cause };
    let (reader, writer) = UnixStream::pair().map_err(system)?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let writer = writer.try_clone().map_err(system)?;
        signal_hook::low_level::pipe::register(signal, writer).map_err(system)?;
    }
    Ok(reader)
}

/// Both clocks, read once per iteration.
fn clock() -> Now {
    let nanoseconds = |clock| {
        let time = clock_gettime(clock);
        // Both are positive on every running Linux.
        (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
    };
    Now { monotonic_ns: nanoseconds(ClockId::Monotonic), unix_ms: nanoseconds(ClockId::Realtime) / 1_000_000 }
}

fn random_bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|cause| Error::System { action: "reading random bytes", cause: cause.into() })?;
    Ok(bytes)
}

struct Server {
    reactor: ServerReactor,
    lease: Lease,
    report: MetricsPages,
    /// The key view of the area, if there is one.
    key_view: Option<KeyView>,
    vnic_grant: Option<sietch::Grant>,
    /// The socket of the daemon and the name of the VNIC, if it is a link: it is acquired again
    /// when its peer ends.
    link: Option<(PathBuf, String)>,
    /// The lease of a link that was acquired again.
    link_lease: Option<Lease>,
    reacquiring_link: Option<Reacquisition<(Vnic, Lease)>>,
    /// The socket of the daemon, and the reacquisition of an area whose service core ended.
    path: PathBuf,
    reacquiring_area: Option<Reacquisition<()>>,
    area_granted: bool,
    area: String,
    port: u16,
    stopping: bool,
    /// Readable at SIGTERM and SIGINT.
    signals: UnixStream,
}

/// The environment variable that names the password file. Its content, without the line end, is the
/// initial `requirepass` of the default user.
const PASSWORD_FILE: &str = "SIETCH_KV_PASSWORD_FILE";

/// The warning for a VNIC without a password.
const OPEN_VNIC: &str = "the VNIC serves without a password, and protected mode is for kernel sockets alone: every host that the VNIC's filters let through may read and write everything; set one in the file that SIETCH_KV_PASSWORD_FILE names";

fn require_password(shard: &mut Shard) -> Result<(), Error> {
    let Some(path) = std::env::var_os(PASSWORD_FILE) else { return Ok(()) };
    let path = PathBuf::from(path);
    let password = std::fs::read(&path).map_err(|cause| Error::Password { path: path.clone(), cause })?;
    let password = password.trim_ascii_end();
    if password.is_empty() {
        let cause = std::io::Error::other("it is empty");
        return Err(Error::Password { path, cause });
    }
    shard.require_password(password);
    Ok(())
}

/// The settings of the shard.
#[expect(clippy::field_reassign_with_default, reason = "what is only shown is private to the settings")]
fn settings(options: &Options) -> Settings {
    let mut settings = Settings::default();
    settings.maxmemory = options.maxmemory;
    settings.policy = options.policy;
    settings.durability = options.durability;
    settings.port = options.port;
    settings.bind = options.listen.map(|address| address.ip().to_string()).unwrap_or_default();
    settings
}

/// The VNIC's transport, or the reason why there is none.
struct Network {
    transport: Option<(VnicTransport<VnicQueue>, sietch::Grant)>,
    /// Its IPv6 address.
    v6: Option<SocketAddr>,
    reason: Option<String>,
}

impl Server {
    fn start(mut options: Options, signals: UnixStream, files: usize) -> Result<Self, Error> {
        let path = options.control_socket.take().unwrap_or_else(sietch::socket_path);
        let mut client = Client::connect(&path, "kv")?;
        let mut settings = settings(&options);
        settings.maxclients = settings.maxclients.min(files.saturating_sub(RESERVED_DESCRIPTORS)).max(1);
        let mut shard = Shard::new(settings, u64::from_ne_bytes(random_bytes()?));
        require_password(&mut shard)?;
        if let Some(address) = options.listen
            && !address.ip().is_loopback()
        {
            tracing::warn!(
                "the store listens on {address}, which other hosts may reach, and their connections are not encrypted; without a password it refuses them (CONFIG SET requirepass, protected-mode)"
            );
        }
        let log = open_log(&options, &mut client, &mut shard)?;
        let key_view = log.as_ref().map(|log| KeyView::new(log.grant.clone()));
        let (log_writer, storage) = log.map(|log| (log.log_writer, log.description)).unzip();
        let network = open_network(&options, &mut client)?;
        if network.transport.is_some() && !shard.is_protected() {
            tracing::warn!("{OPEN_VNIC}");
        }
        let (mut sockets, kernel) = open_sockets(&options)?;
        if network.transport.is_none() && kernel.is_none() {
            return Err(Error::NoWayIn);
        }
        watch(&mut sockets, signals.as_fd(), SIGNAL)?;
        if let Some(doorbell) = log_writer.as_ref().and_then(|log_writer| log_writer.log().disk().doorbell())
        {
            watch(&mut sockets, doorbell, DISK)?;
        }
        let (transport, vnic_grant) = network.transport.unzip();
        let ready = StartupReport {
            network: transport.as_ref().map_or("linux", |transport| transport.queue().medium()).into(),
            reason: network.reason,
            vnic: transport.as_ref().map(VnicTransport::address),
            vnic6: network.v6,
            kernel,
            storage: storage.unwrap_or_default(),
            durability: options.durability.name().into(),
            keys: shard.keys() as u64,
        };
        let addresses = ready
            .vnic
            .iter()
            .chain(&ready.vnic6)
            .chain(&ready.kernel)
            .map(|address| address.ip().to_string());
        let directory =
            std::env::current_dir().map_or_else(|_| String::new(), |path| path.display().to_string());
        shard.show_bind_and_dir(addresses.collect::<Vec<_>>().join(" "), directory);
        if let Some(doorbell) = transport.as_ref().and_then(|transport| transport.queue().doorbell()) {
            watch(&mut sockets, doorbell, VNIC)?;
        }
        let link =
            transport.as_ref().is_some_and(|transport| matches!(transport.queue(), VnicQueue::Link(_)));
        let link = link.then_some((path.clone(), options.vnic));
        let reactor = Reactor::new(shard, log_writer, transport, Some(sockets));
        let report = MetricsPages::new(&reactor).map_err(sietch::Error::from)?;
        for page in report.pages() {
            client.share_metrics(page)?;
        }
        let lease = client.hold()?;
        let mut server = Self {
            reactor,
            lease,
            report,
            key_view,
            vnic_grant,
            link,
            link_lease: None,
            reacquiring_link: None,
            path,
            reacquiring_area: None,
            area_granted: false,
            area: options.vsa,
            port: options.port,
            stopping: false,
            signals,
        };
        if let Some(sockets) = server.reactor.sockets_mut() {
            watch(sockets, server.lease.doorbell(), LEASE)?;
        }
        if let Some(pipe) = options.ready {
            ready
                .announce(pipe)
                .map_err(|cause| Error::System { action: "reporting that it serves", cause })?;
        }
        Ok(server)
    }

    /// Iterates until the store must stop.
    fn serve(&mut self) -> Result<(), Error> {
        let mut doorbells = Vec::new();
        let mut idle_policy = IdlePolicy::new(has_single_core());
        // When the last iteration began, unless the server has slept or yielded the core since.
        let mut before = None;
        let mut latency = LatencyAttribution::default();
        latency.refresh();
        while !self.stopping {
            let now = clock();
            if let Some(before) = before.replace(now.monotonic_ns) {
                let took = now.monotonic_ns.saturating_sub(before);
                self.reactor.note_iteration(took);
                if took >= LONG_ITERATION_NS {
                    latency.long_iteration();
                    self.reactor.note_latency(&latency);
                }
            }
            let iteration = self
                .reactor
                .iterate(now)
                .map_err(|cause| Error::System { action: "kernel sockets", cause })?;
            self.reactor.take_doorbells(&mut doorbells);
            for doorbell in doorbells.drain(..) {
                self.handle_doorbell(doorbell);
            }
            if let Some(cause) = self.reactor.take_vnic_failure() {
                tracing::warn!("the VNIC has failed: {cause}; its clients were closed");
                self.forget_vnic();
            }
            self.reacquire_area();
            if self.area_granted {
                return Err(Error::AreaReturned { name: self.area.clone() });
            }
            if self.reactor.shard().shutdown_requested().is_some() {
                self.stopping = true;
            }
            // While the reactor takes no input, it reports no doorbell either.
            self.stopping |= self.reactor.is_held() && is_readable(&self.signals);
            let more_requests = self.answer_key_view(now);
            if iteration.busy || more_requests {
                idle_policy.busy(now.monotonic_ns);
                if self.report.is_due(now.monotonic_ns) {
                    self.update(now);
                    latency.refresh();
                    before = None;
                }
                continue;
            }
            if iteration.disk && self.disk_needs_iterations() {
                continue;
            }
            match idle_policy.idle(now.monotonic_ns, iteration.disk, self.reactor.vnic().is_some()) {
                Idle::Poll => std::hint::spin_loop(),
                // The time of other threads on the core does not count as a long iteration.
                Idle::Yield => {
                    before = None;
                    rustix::thread::sched_yield();
                }
                Idle::Sleep => {
                    before = None;
                    self.sleep(now, iteration.deadline)?;
                }
            }
        }
        Ok(())
    }

    /// Answers requests of the key view. Returns whether another iteration should follow soon.
    fn answer_key_view(&mut self, now: Now) -> bool {
        let Some(key_view) = &mut self.key_view else { return false };
        let Some(log_writer) = self.reactor.log_writer() else { return false };
        // Effects that are not in the log yet have no sequence to wait for.
        let sequence = (!log_writer.is_blocked()).then(|| log_writer.log().last());
        let more = key_view.answer(&self.lease, self.reactor.shard().store(), now, sequence);
        // An answer must never show effects that a failed log lacks.
        let partly = log_writer.is_awaited() || log_writer.has_failed();
        key_view.send_answers(&self.lease, if partly { log_writer.log().durable() } else { u64::MAX });
        more
    }

    /// Whether the disk has a request in flight that only another iteration completes, because the
    /// disk has no doorbell.
    fn disk_needs_iterations(&self) -> bool {
        let disk = self.reactor.log_writer().map(|log_writer| log_writer.log().disk());
        disk.is_some_and(|disk| disk.in_flight() > 0 && disk.doorbell().is_none())
    }

    /// Requests the area again if its service core ended. Until it is granted, the store serves
    /// reads and refuses writes.
    fn reacquire_area(&mut self) {
        let is_lost = |log_writer: &LogWriter<AreaQueue>| {
            log_writer.log().failed().is_some() && log_writer.log().disk().is_over()
        };
        if self.reacquiring_area.is_some() || self.stopping || !self.reactor.log_writer().is_some_and(is_lost)
        {
            return;
        }
        let (path, name) = (self.path.clone(), self.area.clone());
        let started = Reacquisition::area(path, name).and_then(|reacquiring_area| {
            if let Some(sockets) = self.reactor.sockets_mut() {
                sockets.watch(reacquiring_area.doorbell().try_clone_to_owned()?, AREA_GRANTED)?;
            }
            Ok(reacquiring_area)
        });
        match started {
            Ok(reacquiring_area) => self.reacquiring_area = Some(reacquiring_area),
            Err(cause) => tracing::warn!("the storage area is not requested again: {cause}"),
        }
    }

    /// The request for the area ended. If it was granted, the store must restart.
    fn end_area_reacquisition(&mut self) {
        let Some(sockets) = self.reactor.sockets_mut() else { return };
        sockets.unwatch(AREA_GRANTED);
        if let Some(reacquiring_area) = &mut self.reacquiring_area
            && reacquiring_area.is_granted()
        {
            self.area_granted = true;
        }
    }

    /// Drops the rest of the VNIC, because its memory stays pinned as long as its socket is open. A
    /// link is acquired again.
    fn forget_vnic(&mut self) {
        self.vnic_grant = None;
        self.link_lease = None;
        if let Some(sockets) = self.reactor.sockets_mut() {
            sockets.unwatch(VNIC);
            sockets.unwatch(LINK_LEASE);
        }
        let Some((path, name)) =
            self.link.clone().filter(|_| !self.stopping && self.reacquiring_link.is_none())
        else {
            return;
        };
        let started = Reacquisition::vnic(path, name).and_then(|reacquiring_link| {
            if let Some(sockets) = self.reactor.sockets_mut() {
                sockets.watch(reacquiring_link.doorbell().try_clone_to_owned()?, LINK_GRANTED)?;
            }
            Ok(reacquiring_link)
        });
        match started {
            Ok(reacquiring_link) => self.reacquiring_link = Some(reacquiring_link),
            Err(cause) => tracing::warn!("the link is not requested again: {cause}"),
        }
    }

    /// Serves on the link that the control plane granted again.
    fn adopt_link(&mut self) -> Result<(), Error> {
        if let Some(sockets) = self.reactor.sockets_mut() {
            sockets.unwatch(LINK_GRANTED);
        }
        let Some((vnic, lease)) = self.reacquiring_link.take().and_then(Reacquisition::take) else {
            return Ok(());
        };
        let name = vnic.grant.name().to_owned();
        let (transport, grant) = open_transport(vnic, &name, self.port)?;
        if let Some(sockets) = self.reactor.sockets_mut() {
            watch(sockets, lease.doorbell(), LINK_LEASE)?;
            if let Some(doorbell) = transport.queue().doorbell() {
                watch(sockets, doorbell, VNIC)?;
            }
        }
        self.reactor.attach_vnic(transport);
        self.vnic_grant = Some(grant);
        self.link_lease = Some(lease);
        tracing::info!("VNIC {name} was acquired again");
        Ok(())
    }

    fn sleep(&mut self, now: Now, deadline: Option<u64>) -> Result<(), Error> {
        let again = if self.report.is_due(now.monotonic_ns) {
            self.update(now)
        } else {
            self.report.update(&self.reactor, now.monotonic_ns)
        };
        let deadline = [deadline, again].into_iter().flatten().min();
        let timeout = deadline.map(|due| Duration::from_nanos(due.saturating_sub(now.monotonic_ns)));
        if timeout == Some(Duration::ZERO) {
            return Ok(());
        }
        self.reactor.sleep(timeout).map_err(|cause| Error::System { action: "sleeping", cause })
    }

    /// Publishes counters and resource usage.
    fn update(&mut self, now: Now) -> Option<u64> {
        // Without /proc the usage stays 0.
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        self.reactor.note_usage(Usage::parse(&stat, rustix::param::page_size() as u64));
        self.report.update(&self.reactor, now.monotonic_ns)
    }

    fn handle_doorbell(&mut self, doorbell: u64) {
        match doorbell {
            SIGNAL => self.stopping = true,
            AREA_GRANTED => self.end_area_reacquisition(),
            LINK_GRANTED => {
                if let Err(cause) = self.adopt_link() {
                    tracing::warn!("the link cannot be used: {cause}");
                }
            }
            LEASE | LINK_LEASE => {
                self.lease.clear_doorbell();
                if let Some(lease) = &self.link_lease {
                    lease.clear_doorbell();
                }
                if self.vnic_grant.as_ref().is_some_and(sietch::Grant::is_revoked) {
                    tracing::warn!("the VNIC was revoked; its clients were closed");
                    self.reactor.detach_vnic();
                    self.forget_vnic();
                }
                if let (Some(grant), Some(transport)) = (&self.vnic_grant, self.reactor.vnic_mut()) {
                    // Either lease may hold the VNIC.
                    for lease in std::iter::once(&self.lease).chain(&self.link_lease) {
                        transport.answer(lease, grant);
                    }
                }
                if self.lease.is_ending() {
                    self.stopping = true;
                }
            }
            // The iteration polls queue and disk anyway.
            _ => {}
        }
    }

    /// Stops reading, makes the effects durable and sends their replies, closes the clients, then
    /// closes the log in order.
    fn end(self) -> Result<(), Error> {
        let Self { mut reactor, lease, area, .. } = self;
        tracing::info!(
            "the store ends: it reads no more input, and the effects of earlier commands become durable"
        );
        let save = reactor.shard().shutdown_requested() != Some(ShutdownMode::NoSave);
        reactor.stop_input();
        let limit = clock().monotonic_ns.saturating_add(SHUTDOWN_LIMIT.as_nanos() as u64);
        let late = loop {
            if !save {
                break false;
            }
            let now = clock();
            let caught_up = reactor.log_writer().is_none_or(LogWriter::is_caught_up);
            // The iteration after the last write sends its reply.
            if reactor.iterate(now).is_err() || caught_up {
                break false;
            }
            if now.monotonic_ns > limit {
                break true;
            }
            if let Some(sockets) = reactor.sockets_mut() {
                let _ = sockets.wait(Some(SHUTDOWN_PAUSE));
            }
        };
        if let Err(cause) = reactor.close_clients(clock()) {
            tracing::debug!("clients were not closed in order: {cause}");
        }
        let closed = match reactor.into_log_writer() {
            // The disk does not answer within the limit. To close the log, or to drop its queue,
            // would wait once more; the end of the process releases both.
            Some(log_writer) if late => {
                std::mem::forget(log_writer);
                Err(Error::Unfinished { name: area })
            }
            Some(log_writer) if save && log_writer.log().failed().is_none() => log_writer
                .into_log()
                .close()
                .map(drop)
                .map_err(|cause| Error::LogFailed { name: area, cause }),
            _ => Ok(()),
        };
        drop(lease);
        closed
    }
}

/// Whether a stream has bytes to read; they are not consumed.
fn is_readable(stream: &UnixStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    rustix::net::recv(stream, &mut [0u8; 1], flags).is_ok_and(|(count, _)| count > 0)
}

fn watch(sockets: &mut SocketQueue, doorbell: std::os::fd::BorrowedFd<'_>, token: u64) -> Result<(), Error> {
    let system = |cause| Error::System { action: "watching a doorbell", cause };
    let copy: OwnedFd = doorbell.try_clone_to_owned().map_err(system)?;
    sockets.watch(copy, token).map_err(system)
}

/// A recovered log.
struct OpenLog {
    log_writer: LogWriter<AreaQueue>,
    /// A description of the disk queue.
    description: String,
    grant: sietch::Grant,
}

/// Acquires the storage area and recovers from it. `None` if the store runs without a log.
fn open_log(options: &Options, client: &mut Client, shard: &mut Shard) -> Result<Option<OpenLog>, Error> {
    if !options.durability.keeps_log() {
        tracing::info!("durability none: there is no log, and every key is lost when the store ends");
        return Ok(None);
    }
    let area = client.acquire_vsa_descriptors(&options.vsa)?;
    let grant = area.grant.clone();
    client.serve_view(&grant);
    let (disk, description) = open_disk(options, area)?;
    let identity = u128::from_ne_bytes(random_bytes()?);
    let begin = clock();
    let (log_writer, report) =
        recover::recover(&options.vsa, disk, shard, options.durability, identity, begin)?;
    let elapsed = clock().monotonic_ns.saturating_sub(begin.monotonic_ns);
    let recovery = Recovery::new(&report, elapsed, shard.keys() as u64);
    shard.persistence_mut().recovery = recovery;
    tracing::info!("{recovery}");
    Ok(Some(OpenLog { log_writer, description, grant }))
}

fn open_disk(options: &Options, mut area: GrantedVsa) -> Result<(AreaQueue, String), Error> {
    let failed = |cause| Error::Area { name: options.vsa.clone(), cause };
    let disk = match area.files.pop() {
        Some(file) if options.without_io_uring && !area.is_memory() => {
            let queue = sietch::disk::BlockingQueue::open(file, area.description.size).map_err(failed)?;
            AreaQueue::Blocking(queue, "not wanted".into())
        }
        file => {
            area.files.extend(file);
            area.queue()?
        }
    };
    let description = disk.description();
    Ok((disk, description))
}

fn open_sockets(options: &Options) -> Result<(SocketQueue, Option<SocketAddr>), Error> {
    let choice = if options.without_io_uring { Choice::Epoll } else { Choice::Automatic };
    let mut sockets = SocketQueue::open(choice)?;
    let bound = options.listen.map(|address| sockets.listen(address)).transpose()?;
    Ok((sockets, bound))
}

/// Acquires the VNIC, if one is requested. With [`NetChoice::Auto`] a refusal is not an error.
fn open_network(options: &Options, client: &mut Client) -> Result<Network, Error> {
    if options.net == NetChoice::Linux {
        return Ok(Network { transport: None, v6: None, reason: Some("--net linux".into()) });
    }
    let vnic = match client.acquire_vnic(&options.vnic) {
        Ok(vnic) => vnic,
        Err(cause) if options.net == NetChoice::Auto => {
            return Ok(Network { transport: None, v6: None, reason: Some(cause.to_string()) });
        }
        Err(cause) => return Err(cause.into()),
    };
    let v6 = vnic.description.address6.map(|network| SocketAddr::from((network.address, options.port)));
    Ok(Network { transport: Some(open_transport(vnic, &options.vnic, options.port)?), v6, reason: None })
}

fn open_transport(
    vnic: Vnic,
    name: &str,
    port: u16,
) -> Result<(VnicTransport<VnicQueue>, sietch::Grant), Error> {
    let engine = vnic.engine(random_bytes()?);
    let listen = |cause| Error::Listen { name: name.to_owned(), cause };
    let transport =
        VnicTransport::open(vnic.queue, engine, vnic.description.address, port).map_err(listen)?;
    Ok((transport, vnic.grant))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;

    use super::*;

    /// The environment is a process's: this test runs itself again with the variable.
    #[test]
    fn the_password_file_is_what_requirepass_is_at_the_start() {
        const AGAIN: &str = "SIETCH_KV_TEST_PASSWORD";
        if let Ok(expected) = std::env::var(AGAIN) {
            let mut shard = Shard::new(Settings::default(), 42);
            let read = require_password(&mut shard);
            assert_eq!(read.is_ok(), expected != "none", "{read:?}");
            assert_eq!(shard.is_protected(), !matches!(&*expected, "none" | "unset"));
            if shard.is_protected() {
                let address = SocketAddr::from(([127, 0, 0, 1], 9));
                let client = shard.connect(address, address, clock()).expect("the first client");
                let commands = format!("GET a\r\nAUTH wrong\r\nAUTH {expected}\r\nGET a\r\n");
                shard.feed(client, commands.as_bytes(), clock());
                shard.seal(0);
                let said = String::from_utf8_lossy(shard.output(client)).into_owned();
                let lines: Vec<&str> = said.lines().collect();
                assert!(lines[0].starts_with("-NOAUTH") && lines[1].starts_with("-WRONGPASS"), "{said}");
                assert_eq!(lines[2..], ["+OK", "$-1"]);
            }
            return;
        }
        let directory = std::env::temp_dir();
        let path = directory.join(format!("sietch-kv-password-{}", std::process::id()));
        let again = |content: Option<&str>, expected: &str| {
            let mut command = Command::new(std::env::current_exe().expect("this test"));
            command.args([
                "--exact",
                "server::run::tests::the_password_file_is_what_requirepass_is_at_the_start",
            ]);
            command.env(AGAIN, expected).env_remove(PASSWORD_FILE);
            if let Some(content) = content {
                std::fs::write(&path, content).expect("a temporary file");
                command.env(PASSWORD_FILE, &path);
            }
            let output = command.output().expect("it starts");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && text.contains("1 passed"), "{expected}: {text}");
        };
        again(Some("secret\n"), "secret");
        again(Some("\n"), "none");
        again(None, "unset");
        std::fs::remove_file(&path).expect("it was written");
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command
            .args(["--exact", "server::run::tests::the_password_file_is_what_requirepass_is_at_the_start"]);
        command.env(AGAIN, "none").env(PASSWORD_FILE, &path);
        assert!(command.output().expect("it starts").status.success(), "a file that is not there");
    }

    #[test]
    fn a_signal_stays_readable_until_it_is_consumed() {
        let (reader, mut writer) = UnixStream::pair().expect("sockets are there");
        assert!(!is_readable(&reader));
        writer.write_all(&[1]).expect("there is room");
        assert!(is_readable(&reader) && is_readable(&reader));
    }
}
