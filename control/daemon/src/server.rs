//! The socket: start, accept, frames, and the limits that keep hostile clients cheap.
//!
//! 1. [`serve`] sets everything up in an order that a second daemon or a crash cannot disturb:
//!    lock, configuration, state, adoption, socket. It ends when [`Control`] ends, and then removes
//!    what was set up.
//! 2. Each connection has a task. It reads one request, passes it to the control task, and writes
//!    the answer. Only then it reads on: a client cannot queue work. Notices may be written in
//!    between.
//! 3. Administrators use a socket of their own ([`sietch_protocol::administration`]), with a limit
//!    of its own ([`MAX_ADMINISTRATORS`]): many other clients cannot keep them out. The
//!    public socket accepts no request for administration.
//! 4. A client costs at most: one task, one frame of input, [`OUTBOX`] notices,
//!    [`MAX_CONNECTIONS_PER_UID`] connections for its user, and [`REQUESTS_PER_SECOND`] requests.
//!    The daemon drops it if its handshake or a started frame takes longer than [`READ_LIMIT`], or
//!    if it does not read an answer within [`WRITE_LIMIT`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use sietch_protocol::frame::{Frame, MAX_DESCRIPTORS, Progress, decode, encode};
use sietch_protocol::message::{ClientFrame, ErrorKind, ErrorReply, Reply, ServerFrame};
use sietch_protocol::{FrameError, FrameReader, FrameWriter, administration};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::configuration::Configuration;
use crate::control::{Answer, Control, Event, MOST_PAGES, Outgoing};
use crate::device::VnicDevices;
use crate::directories::{file_error, make_directory};
use crate::error::Error;
use crate::identity::{Process, stable_hash};
use crate::locations::Locations;
use crate::lock::Lock;
use crate::metrics::Counters;
use crate::options::Options;
use crate::state::State;
use crate::volume::Volumes;

/// Connections in all, if the limit of open files has room for them ([`connection_limit`]): each
/// costs a task.
pub(crate) const MAX_CONNECTIONS: usize = 256;
/// Open files that the daemon raises its limit to where it may: what [`MAX_CONNECTIONS`] and all
/// devices need, several times.
const OPEN_FILES: u64 = 65_536;
/// Open files of one connection: socket, pidfd, what rides on a frame that has begun to arrive, and
/// its pages of counters.
const FILES_OF_CONNECTION: usize = 2 + MAX_DESCRIPTORS + MOST_PAGES;
/// Open files that no client gets: devices, volumes, administrators, the pages of the service core,
/// and what revoking opens.
const RESERVED_FILES: usize = 512;
/// Connections of one user, so that one user cannot lock the others out. Uid 0 is no exception: a
/// container's root has it too.
pub(crate) const MAX_CONNECTIONS_PER_UID: usize = 32;
/// Connections of administrators, beside the others: commands of people, `sietch up`, mounts.
pub(crate) const MAX_ADMINISTRATORS: usize = 32;
/// For the handshake, and from a frame's first byte to its last. An honest client needs
/// microseconds.
pub(crate) const READ_LIMIT: Duration = Duration::from_secs(5);
/// For the client to take an answer.
pub(crate) const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// Notices waiting for one client: one for each grant it can hold and a few more.
pub(crate) const OUTBOX: usize = 160;
/// Requests that a client may make a second on average. The daemon stops reading from a client that
/// makes more.
pub(crate) const REQUESTS_PER_SECOND: u32 = 200;
/// Requests it may make at once.
pub(crate) const REQUEST_BURST: u32 = 400;
/// Events waiting for the control task: one for each connection.
const EVENTS: usize = MAX_CONNECTIONS;
/// How long the end waits for last answers and notices to be taken.
const FAREWELL: Duration = Duration::from_secs(1);

/// Runs the daemon.
pub(crate) async fn serve<D, F>(options: Options, make: F) -> Result<(), Error>
where
    D: VnicDevices + 'static,
    F: FnOnce(&str) -> D,
{
    // The first step, so that a signal during the start takes effect after the start.
    let signals = Signals::new()?;
    let locations = Locations::of_this_user();
    let configuration =
        Configuration::load_or_create(options.configuration.as_deref().unwrap_or(&locations.configuration))?;
    let data = options.data.or_else(|| configuration.daemon.data.clone()).unwrap_or(locations.data);
    let socket = options.socket.or_else(|| configuration.daemon.socket.clone()).unwrap_or(locations.socket);
    // Others could lock a file that they can open, and so keep the daemon from starting.
    make_directory(&data, 0o700)?;
    let lock = Lock::take(&data)?;
    let (state, remembered) = State::open(&data)?;
    let volumes = Volumes::open(&data, &configuration.volumes, None)?;
    // The same data directory has the same name, whatever path leads to it.
    let real = data.canonicalize().map_err(|error| file_error(&data, "resolve it", error))?;
    let instance = format!("{:08x}", stable_hash(&[real.as_os_str().as_encoded_bytes()]) >> 32);
    let devices = make(&instance);
    let counters = Rc::new(RefCell::new(Counters::default()));
    let (events, incoming) = mpsc::channel(EVENTS);
    let mut control = Control::new(
        configuration,
        data,
        state,
        volumes,
        devices,
        options.uplink,
        counters.clone(),
        events.clone(),
    );
    control.restore(remembered).await?;
    let listeners = Listeners { open: listen(&socket)?, administrators: listen_for_administrators(&socket)? };
    if let Some(ready) = options.ready {
        // The process that waited for it may have ended.
        let _ = rustix::io::write(&ready, b"1");
    }
    tracing::info!(socket = %socket.display(), "ready");
    let (stop, stopped) = oneshot::channel();
    let acceptor = tokio::task::spawn_local(accept(listeners, events, counters, stopped));
    let finished = control_loop(&mut control, incoming, signals).await;
    // The name is removed first: no client may connect to a daemon that ends.
    if let Err(error) = std::fs::remove_file(&socket) {
        tracing::warn!(%error, socket = %socket.display(), "the socket could not be removed");
    }
    administration::remove(&socket);
    control.close_clients();
    drop(stop);
    // A client that has not read its last notice by then never will.
    let _ = timeout(FAREWELL, acceptor).await;
    tracing::info!("ended");
    drop(lock);
    finished
}

struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        use tokio::signal::unix::{SignalKind, signal};
        let fail = |source| Error::Start { action: "handle signals", source };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(fail)?,
            terminate: signal(SignalKind::terminate()).map_err(fail)?,
        })
    }
}

async fn control_loop<D: VnicDevices>(
    control: &mut Control<D>,
    mut incoming: mpsc::Receiver<Event>,
    mut signals: Signals,
) -> Result<(), Error> {
    let mut inspection = tokio::time::interval(crate::control::INSPECTION);
    let mut ring_check = tokio::time::interval(crate::control::RING_CHECK_INTERVAL);
    ring_check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            event = incoming.recv() => match event {
                Some(event) => event,
                None => Event::Stop("its event queue ended"),
            },
            _ = inspection.tick() => Event::Inspect,
            _ = ring_check.tick(), if control.has_vnics() => Event::CheckRings,
            _ = signals.interrupt.recv() => Event::Stop("SIGINT"),
            _ = signals.terminate.recv() => Event::Stop("SIGTERM"),
        };
        if control.handle(event).await.is_break() {
            return Ok(());
        }
    }
}

/// Binds the socket. The lock is held, so a socket that is there belongs to a daemon that is dead.
fn listen(path: &Path) -> Result<UnixListener, Error> {
    if let Some(directory) = path.parent() {
        make_directory(directory, 0o755)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => {
            let source = io::Error::other("something that is no socket has that name");
            return Err(file_error(path, "make the socket", source));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            let pid = "unknown (it has another data directory)".to_owned();
            return Err(Error::AlreadyRunning { path: path.into(), pid });
        }
        Ok(_) => std::fs::remove_file(path)
            .map_err(|error| file_error(path, "remove a dead daemon's socket", error))?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(|error| file_error(path, "make the socket", error))?;
    // Every user may connect: the uid decides on each request, and administration has another
    // socket.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
        .map_err(|error| file_error(path, "open the socket to all users", error))?;
    Ok(listener)
}

/// Binds the socket of administrators. What has its name is of a dead daemon, as with the other.
fn listen_for_administrators(open: &Path) -> Result<UnixListener, Error> {
    let path = administration::administrator_socket(open);
    let failed = |error| file_error(&path, "make the administrators' socket", error);
    let socket = administration::listen(open, rustix::net::SocketType::STREAM).map_err(failed)?;
    UnixListener::from_std(socket.into()).map_err(failed)
}

/// Where clients come from.
struct Listeners {
    open: UnixListener,
    administrators: UnixListener,
}

impl Listeners {
    /// The next connection, and whether it is an administrator's.
    async fn accept(&self) -> io::Result<(UnixStream, bool)> {
        tokio::select! {
            accepted = self.administrators.accept() => accepted.map(|(stream, _)| (stream, true)),
            accepted = self.open.accept() => accepted.map(|(stream, _)| (stream, false)),
        }
    }
}

/// Connections by user.
type ConnectionCounts = Rc<RefCell<HashMap<ConnectionOwner, usize>>>;

/// The user that a connection counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ConnectionOwner {
    Administrator,
    User(u32),
}

/// Raises the limit of open files; how many there may be.
fn raise_open_files() -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let more = Some(OPEN_FILES);
    let enough = maximum.is_none_or(|maximum| maximum >= OPEN_FILES);
    // Root may have more than it was started with. For others, and where a sandbox forbids it,
    // fewer clients are served.
    if enough || setrlimit(Resource::Nofile, Rlimit { current: more, maximum: more }).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    let now = getrlimit(Resource::Nofile).current;
    now.map_or(usize::MAX, |now| usize::try_from(now).unwrap_or(usize::MAX))
}

/// Connections for which there are open files, whatever rides on them: clients never take those
/// that revoking needs.
fn connection_limit(open_files: usize) -> usize {
    (open_files.saturating_sub(RESERVED_FILES) / FILES_OF_CONNECTION).clamp(2, MAX_CONNECTIONS)
}

/// Whether one more connection fits.
fn has_room(counts: &HashMap<ConnectionOwner, usize>, owner: ConnectionOwner, limit: usize) -> bool {
    let own = counts.get(&owner).copied().unwrap_or(0);
    match owner {
        ConnectionOwner::Administrator => own < MAX_ADMINISTRATORS,
        ConnectionOwner::User(_) => {
            let others = |(of, count): (&ConnectionOwner, &usize)| {
                if *of == ConnectionOwner::Administrator { 0 } else { *count }
            };
            // When the limit is low, no user gets more than it leaves free: some are always free
            // for another user.
            let free = limit.saturating_sub(counts.iter().map(others).sum());
            own < MAX_CONNECTIONS_PER_UID.min(free)
        }
    }
}

/// Accepts until `stop` is dropped, then waits for the connections that are left.
async fn accept(
    listeners: Listeners,
    events: mpsc::Sender<Event>,
    counters: Rc<RefCell<Counters>>,
    mut stop: oneshot::Receiver<()>,
) {
    let (counts, limit) = (ConnectionCounts::default(), connection_limit(raise_open_files()));
    let mut tasks = JoinSet::new();
    let mut next = 0_u64;
    loop {
        let (stream, administers) = tokio::select! {
            accepted = listeners.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // The likely cause is a lack of descriptors. Connected clients continue, and
                    // new ones wait.
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            Some(_) = tasks.join_next() => continue,
            _ = &mut stop => break,
        };
        let Ok(peer) = stream.peer_cred() else { continue };
        let owner =
            if administers { ConnectionOwner::Administrator } else { ConnectionOwner::User(peer.uid()) };
        if administers && !administration::shares_namespaces(peer.pid().and_then(Pid::from_raw)) {
            counters.borrow_mut().connections_refused += 1;
            refuse_connection(
                &stream,
                "it comes from another user or PID namespace",
                "administer from the daemon's own",
            );
            continue;
        }
        if !has_room(&counts.borrow(), owner, limit) {
            counters.borrow_mut().connections_refused += 1;
            refuse_connection(&stream, "too many connections", "close some");
            continue;
        }
        next += 1;
        counters.borrow_mut().connections += 1;
        *counts.borrow_mut().entry(owner).or_default() += 1;
        let (events, counters, counts) = (events.clone(), counters.clone(), counts.clone());
        tasks.spawn_local(async move {
            connection(next, stream, administers, events, counters).await;
            if let Some(count) = counts.borrow_mut().get_mut(&owner) {
                *count -= 1;
            }
            counts.borrow_mut().retain(|_, count| *count > 0);
        });
    }
    drop((listeners, events));
    while tasks.join_next().await.is_some() {}
}

/// Sends the reason and closes the connection. Whether the client reads it does not matter.
fn refuse_connection(stream: &UnixStream, cause: &str, fix: &str) {
    let error = ErrorReply {
        kind: ErrorKind::Limit,
        what: "connection".to_owned(),
        cause: cause.to_owned(),
        fix: fix.to_owned(),
    };
    let frame = ServerFrame::Reply { id: 0, body: Reply::Error(error) };
    if let Ok(bytes) = encode(&frame)
        && let Ok(mut writer) = FrameWriter::<OwnedFd>::new(bytes, Vec::new())
    {
        let _ = writer.write(stream);
    }
}

/// Why a connection ended.
enum End {
    Closed,
    Slow(&'static str),
    Broken(FrameError),
}

impl From<FrameError> for End {
    fn from(error: FrameError) -> Self {
        Self::Broken(error)
    }
}

async fn connection(
    number: u64,
    stream: UnixStream,
    administers: bool,
    events: mpsc::Sender<Event>,
    counters: Rc<RefCell<Counters>>,
) {
    let (process, pidfd) = match Process::of_peer(&stream) {
        Ok(identity) => identity,
        Err(why) => return refuse_connection(&stream, why.cause, why.fix),
    };
    let pid = process.pid;
    let (outbox, notices) = mpsc::channel(OUTBOX);
    let event = Event::Connected { connection: number, process, administers, pidfd, outbox };
    if events.send(event).await.is_err() {
        return;
    }
    let end = serve_requests(number, &stream, &events, notices).await;
    match end {
        End::Closed => {}
        End::Slow(what) => {
            counters.borrow_mut().slow_clients += 1;
            refuse_connection(&stream, what, "reconnect");
            tracing::warn!(pid, what, "client dropped");
        }
        End::Broken(error) => {
            counters.borrow_mut().protocol_errors += 1;
            refuse_connection(&stream, &error.to_string(), "use programs of one version");
            tracing::warn!(pid, %error, "client dropped");
        }
    }
    // The control task outlives the connections, except at the very end.
    let _ = events.send(Event::Disconnected { connection: number }).await;
}

/// How many requests a client may still make now.
struct Allowance {
    left: f64,
    at: Instant,
}

impl Allowance {
    /// Counts one request; the time to wait before the next is read.
    fn spend(&mut self, now: Instant) -> Duration {
        let earned = now.duration_since(self.at).as_secs_f64() * f64::from(REQUESTS_PER_SECOND);
        self.left = (self.left + earned).min(f64::from(REQUEST_BURST)) - 1.0;
        self.at = now;
        Duration::from_secs_f64((-self.left / f64::from(REQUESTS_PER_SECOND)).max(0.0))
    }
}

async fn serve_requests(
    number: u64,
    stream: &UnixStream,
    events: &mpsc::Sender<Event>,
    mut notices: mpsc::Receiver<Outgoing>,
) -> End {
    let mut reader = FrameReader::new();
    let mut allowance = Allowance { left: f64::from(REQUEST_BURST), at: Instant::now() };
    let mut greeted = false;
    loop {
        let arrived = tokio::select! {
            biased;
            notice = notices.recv() => {
                let Some(Outgoing { notice, descriptors }) = notice else { return End::Closed };
                if let Err(end) = write(stream, &ServerFrame::Notice(notice), descriptors).await {
                    return end;
                }
                continue;
            }
            arrived = read(stream, &mut reader, greeted) => arrived,
        };
        let frame = match arrived {
            Ok(Some(frame)) => frame,
            Ok(None) => return End::Closed,
            Err(end) => return end,
        };
        let ClientFrame { id, request } = match decode(&frame.text) {
            Ok(frame) => frame,
            Err(error) => return error.into(),
        };
        greeted = true;
        let pause = allowance.spend(Instant::now());
        let (answer, answered) = oneshot::channel();
        let event = Event::Request { connection: number, request, descriptors: frame.descriptors, answer };
        if events.send(event).await.is_err() {
            return End::Closed;
        }
        if let Err(end) = deliver(stream, id, answered, &mut notices).await {
            return end;
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
}

/// Waits for the answer to request `id` and writes it; notices go out meanwhile.
async fn deliver(
    stream: &UnixStream,
    id: u64,
    mut answered: oneshot::Receiver<Answer>,
    notices: &mut mpsc::Receiver<Outgoing>,
) -> Result<(), End> {
    loop {
        tokio::select! {
            biased;
            answer = &mut answered => {
                let Ok(Answer { body, descriptors }) = answer else { return Err(End::Closed) };
                return write(stream, &ServerFrame::Reply { id, body }, descriptors).await;
            }
            notice = notices.recv() => match notice {
                Some(Outgoing { notice, descriptors }) => {
                    write(stream, &ServerFrame::Notice(notice), descriptors).await?;
                }
                None => {
                    // The daemon ends; its last answer is still on the way.
                    let Ok(Answer { body, descriptors }) = answered.await else { return Err(End::Closed) };
                    return write(stream, &ServerFrame::Reply { id, body }, descriptors).await;
                }
            }
        }
    }
}

/// The next frame; `None` when the client closed the connection between two.
async fn read(stream: &UnixStream, reader: &mut FrameReader, greeted: bool) -> Result<Option<Frame>, End> {
    // Only a client that has begun something is on the clock: an idle connection is no fault. What
    // it has begun when this is cancelled by a notice gets a new limit; notices are few.
    let mut deadline = (!greeted || reader.in_frame()).then(|| Instant::now() + READ_LIMIT);
    loop {
        let attempt = stream.try_io(Interest::READABLE, || match reader.read(stream) {
            Ok(Progress::Blocked) => Err(io::ErrorKind::WouldBlock.into()),
            other => Ok(other),
        });
        match attempt {
            Ok(Ok(Progress::Ready(frame))) => return Ok(Some(frame)),
            Ok(Ok(Progress::Closed | Progress::Blocked)) => return Ok(None),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => {}
        }
        if deadline.is_none() && reader.in_frame() {
            deadline = Some(Instant::now() + READ_LIMIT);
        }
        let ready = stream.readable();
        let waited = match deadline {
            None => ready.await,
            Some(deadline) => tokio::select! {
                ready = ready => ready,
                () = sleep_until(deadline) => return Err(End::Slow("it did not finish what it began to send")),
            },
        };
        waited.map_err(|error| End::Broken(FrameError::Socket(error)))?;
    }
}

async fn write(stream: &UnixStream, frame: &ServerFrame, descriptors: Vec<OwnedFd>) -> Result<(), End> {
    let bytes = match encode(frame) {
        Ok(bytes) => bytes,
        Err(error) => {
            tracing::error!(%error, "an answer does not fit a frame");
            return Err(error.into());
        }
    };
    let mut writer = FrameWriter::new(bytes, descriptors)?;
    let all = async {
        loop {
            let attempt = stream.try_io(Interest::WRITABLE, || match writer.write(stream) {
                Ok(Progress::Blocked) => Err(io::Error::from(Errno::AGAIN)),
                other => Ok(other),
            });
            match attempt {
                Ok(Ok(Progress::Ready(()))) => return Ok(()),
                Ok(Ok(_)) => return Err(End::Closed),
                Ok(Err(error)) => return Err(End::Broken(error)),
                Err(_) => stream.writable().await.map_err(|error| End::Broken(FrameError::Socket(error)))?,
            }
        }
    };
    timeout(WRITE_LIMIT, all).await.unwrap_or(Err(End::Slow("it did not read what it was sent")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_sends_requests_without_end_is_limited_to_the_rate() {
        let mut now = Instant::now();
        let (begin, mut accepted) = (now, 0);
        let mut allowance = Allowance { left: f64::from(REQUEST_BURST), at: now };
        while now < begin + Duration::from_secs(60) {
            now += allowance.spend(now);
            accepted += 1;
            assert!(accepted > REQUEST_BURST || now == begin, "the burst passes at once");
        }
        let most = REQUEST_BURST + 60 * REQUESTS_PER_SECOND;
        assert!((most - 1..=most + 1).contains(&accepted), "{accepted} of {most}");
        // A client that was idle may send a burst of that size again, and no more.
        now += Duration::from_secs(3600);
        let at_once = (0..2 * REQUEST_BURST).filter(|_| allowance.spend(now).is_zero()).count();
        assert_eq!(at_once, REQUEST_BURST as usize);
    }

    #[test]
    fn clients_never_take_the_files_that_are_kept_for_revoking() {
        for open_files in [1024, 4096, 65_536, 1 << 20] {
            let most = connection_limit(open_files) * FILES_OF_CONNECTION + RESERVED_FILES;
            assert!(most <= open_files, "{most} of {open_files}");
        }
    }

    #[test]
    fn a_connection_remains_free_after_one_user_has_opened_all_it_may() {
        for limit in [connection_limit(1024), MAX_CONNECTIONS] {
            let mut counts = HashMap::new();
            for uid in 0..8 {
                assert!(has_room(&counts, ConnectionOwner::User(uid), limit), "{uid} of {limit}: {counts:?}");
                while has_room(&counts, ConnectionOwner::User(uid), limit) {
                    *counts.entry(ConnectionOwner::User(uid)).or_default() += 1;
                }
                let all: usize = counts.values().sum();
                assert!(all < limit && counts[&ConnectionOwner::User(uid)] <= MAX_CONNECTIONS_PER_UID);
                if all + 1 == limit {
                    break;
                }
            }
            assert!(has_room(&counts, ConnectionOwner::Administrator, limit));
        }
    }
}
