//! A client of a file system that another process serves.
//!
//! An operation that waits for the service asks each second whether that runs ([`Remote::probe`]).
//! If nothing comes for [`SILENCE`] of these seconds, as when the service is stopped, the operation
//! ends with `ETIMEDOUT`: a program that waits for FUSE cannot be killed. The client goes on when
//! the service does. Within a program, which can be killed, operations wait for as long as it
//! takes. Operations that wait without the client ([`Service::begin_wait`]) count a second
//! together.

use std::io::Write as _;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use sietch_disk::nvm::Mapped;
use sietch_disk::{AreaQueue, OpenError};
use sietch_fs::client::{DigestWait, Message, Service};
use sietch_fs::file_system::{Pending, PendingSync};
use sietch_fs::inode::InodeNumber;
use sietch_fs::lease::{Mode, Release};
use sietch_fs::log::{Durability as LogDurability, LogIdentity, LogWriter, Mirror};
use sietch_fs::pool::{Reader, Root};
use sietch_fs::{Client, Digested, Fault};
use sietch_protocol::frame::{self, Frame, FrameReader, Progress as Reading};

use super::SOCKET;
use super::fence::Fence;
use super::inbox::{Attention, Inbox};
use super::messages::{Answer, Hello, Notice, Progress, Request, VERSION, Welcome};
use crate::fs::description::Durability;
use crate::fs::error::StoreError;
use crate::fs::logs::DISK_BLOCK;
use crate::fs::media::{self, KEPT_BLOCKS, Medium};
use crate::fs::pacing::{self, Pacer};
use crate::fs::syncs::Syncs;

/// The part of a log after which the service gets to know of it again.
const REPORT_PART: u64 = 8;

/// Why one that only reads must leave.
const NEEDED: &str = "the media are nearly full, and the blocks that the check reads are needed; check when less is written, or \
     while it is not served";

/// A client, and what looks after it.
pub struct Attached {
    /// The descriptors that it has, if [`attach_within`] made it.
    pub descriptors: Vec<RawFd>,
    /// Its operations.
    pub client: Client<Remote, Mapped>,
    /// For the thread that looks after it while no operation runs.
    pub attention: Attention,
    /// When an operation survives a loss of power.
    pub durability: Durability,
    /// The front end makes each change durable before it returns.
    pub syncs_each: bool,
    /// The process that serves.
    pub service: i32,
}

/// The service, as a client in another process has it.
pub struct Remote {
    inbox: Arc<Inbox>,
    socket: UnixStream,
    receiver: Option<JoinHandle<()>>,
    base: Digested<Reader<AreaQueue>>,
    fence: Fence,
    syncs: Option<Syncs>,
    /// Number of the progress that is known here.
    seen: u64,
    /// The log is digested up to here.
    digested: u64,
    /// The log has no record before this position that is not digested.
    read: u64,
    budget: u64,
    /// How often room was returned.
    returns: u64,
    /// The log has records up to here.
    logged: u64,
    /// The service knows of records up to here.
    reported: u64,
    /// After so many bytes it gets to know.
    step: u64,
    pacer: Pacer,
    /// When the pacer's clock began.
    begun: Instant,
    /// Frames that did not fit the socket: of a client that the service does not answer, at most
    /// one for each lease and file that it has.
    unsent: Vec<u8>,
    /// Notices that had arrived at the last probe.
    probed: Option<u64>,
    /// Times that an operation waited for [`Remote::probes_after`] since then, and nothing arrived.
    silent: u32,
    /// How long to wait before a probe.
    probes_after: Duration,
    /// An operation waits for as long as it takes.
    is_patient: bool,
    /// When an operation that waits without the client last began to, or was counted.
    waits_since: Option<Instant>,
}

/// How long a service may take to accept a client. A digest on a slow disk takes less.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an operation waits before it asks whether the service runs.
const PROBES_AFTER: Duration = Duration::from_secs(1);
/// So many waits without a word, of an operation or of several, and the service does not answer.
/// They are counted, not measured: where client and service were both frozen, they go on together.
const SILENCE: u32 = 10;
/// After this time an operation that waits without the client for a message looks whether the
/// service runs. Those behind it in a queue wait at the same time.
const LOOKS_AGAIN: Duration = Duration::from_millis(100);
/// How long to wait before the next try to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// Whether a process serves the file system in `folder`, also one that is stopped. It does not
/// wait.
pub fn is_served(folder: &Path) -> bool {
    matches!(try_connect(&folder.join(SOCKET)), Ok(_) | Err(Errno::AGAIN))
}

/// Connects to a socket. `EAGAIN`: too many wait for its process already.
fn try_connect(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket.into())
}

/// Connects, and waits until `deadline` for a process that is busy.
fn connect(path: &Path, deadline: Instant) -> Result<UnixStream, String> {
    loop {
        match try_connect(path) {
            Ok(socket) => return Ok(socket),
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            Err(Errno::AGAIN) => return Err(unresponsive(None)),
            Err(errno) => return Err(errno.to_string()),
        }
    }
}

/// The cause where a process has the socket and does not answer.
fn unresponsive(process: Option<i32>) -> String {
    let (who, signal) = match process {
        Some(pid) => (format!("process {pid}"), format!("`kill -CONT {pid}`")),
        None => ("its process".to_owned(), "SIGCONT".to_owned()),
    };
    format!(
        "{who} listens there and does not answer; if it is stopped, continue it ({signal}), else end it and start it again"
    )
}

/// Waits for the answer to the greeting, which may come in pieces.
fn answer(socket: &UnixStream, deadline: Instant) -> Result<Option<Frame>, String> {
    let mut reader = FrameReader::new();
    socket.set_nonblocking(true).map_err(|error| error.to_string())?;
    loop {
        match reader.read(socket).map_err(|error| error.to_string())? {
            Reading::Ready(frame) => {
                socket.set_nonblocking(false).map_err(|error| error.to_string())?;
                return Ok(Some(frame));
            }
            Reading::Blocked => {}
            Reading::Closed => return Err("it closed the connection".to_owned()),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let timeout = Timespec::try_from(left).map_err(|error| error.to_string())?;
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.to_string()),
        }
    }
}

/// Becomes a client of the process that serves the file system in `folder`.
///
/// # Errors
/// See [`StoreError`]; [`StoreError::Service`]: no process serves it, or it refuses, or does not
/// answer for 10 s.
pub fn attach(folder: &Path) -> Result<Attached, StoreError> {
    attach_by(folder, Opening { is_within: false, descriptors: Vec::new() }, PATIENCE)
}

/// As [`attach`], within a program that knows nothing of it, and may fork: the client has no
/// io_uring, and all of its descriptors are known. Their numbers are beyond those that the program
/// gets and expects: the lowest free ones.
///
/// # Errors
/// As of [`attach`].
pub fn attach_within(folder: &Path) -> Result<Attached, StoreError> {
    attach_by(folder, Opening { is_within: true, descriptors: Vec::new() }, PATIENCE)
}

/// Numbers from here on are within the soft limit that most programs have (1024).
const LOWEST_WITHIN: RawFd = 512;

/// How a client opens files.
struct Opening {
    is_within: bool,
    descriptors: Vec<RawFd>,
}

impl Opening {
    fn note(&mut self, file: impl AsFd) {
        self.descriptors.push(file.as_fd().as_raw_fd());
    }

    /// Gives a descriptor its number. Where there is no higher one it stays as it is.
    fn place(&self, file: OwnedFd) -> OwnedFd {
        let placed =
            self.is_within.then(|| rustix::io::fcntl_dupfd_cloexec(&file, LOWEST_WITHIN).ok()).flatten();
        placed.unwrap_or(file)
    }

    fn area(&mut self, file: OwnedFd, bytes: u64) -> Result<AreaQueue, OpenError> {
        if self.is_within {
            return self.log_disk(file, bytes);
        }
        sietch_disk::open_area(file, bytes)
    }

    /// The disk of a log, on which a thread waits for each write.
    fn log_disk(&mut self, file: OwnedFd, bytes: u64) -> Result<AreaQueue, OpenError> {
        if self.is_within {
            self.note(&file);
        }
        sietch_disk::open_without_ring(file, bytes)
    }
}

fn attach_by(folder: &Path, opening: Opening, patience: Duration) -> Result<Attached, StoreError> {
    let Joined { remote, writer, log, durability, syncs_each, service, descriptors } =
        join(folder, opening, patience)?;
    let attention = Attention { inbox: Arc::clone(&remote.inbox), seen: 0 };
    let client = Client::new(remote, writer, log);
    Ok(Attached { descriptors, client, attention, durability, syncs_each, service })
}

/// As [`attach`], for one that changes nothing: what the service has committed until now stays
/// readable until [`Remote::must_leave`] says otherwise.
pub(super) fn attach_reader(folder: &Path) -> Result<(Remote, Root), StoreError> {
    let opening = Opening { is_within: false, descriptors: Vec::new() };
    let mut remote = join(folder, opening, PATIENCE)?.remote;
    let root = remote.base.store_mut().root();
    Ok((remote, root))
}

/// What a process has that has joined.
struct Joined {
    remote: Remote,
    writer: LogWriter<Mapped>,
    log: u32,
    durability: Durability,
    syncs_each: bool,
    service: i32,
    descriptors: Vec<RawFd>,
}

fn join(folder: &Path, mut opening: Opening, patience: Duration) -> Result<Joined, StoreError> {
    let path = folder.join(SOCKET);
    let failed = |cause: String| StoreError::Service { path: path.clone(), cause };
    let deadline = Instant::now() + patience;
    let socket = connect(&path, deadline).map_err(failed)?;
    let mut socket = UnixStream::from(opening.place(socket.into()));
    let service =
        rustix::net::sockopt::socket_peercred(&socket).map_err(|error| failed(error.to_string()))?;
    if service.uid != rustix::process::geteuid() && !service.uid.is_root() {
        return Err(failed(format!("uid {} listens there", service.uid.as_raw())));
    }
    let process = service.pid.as_raw_nonzero().get();
    send(&mut socket, &Hello { version: VERSION }).map_err(|error| failed(error.to_string()))?;
    let frame =
        answer(&socket, deadline).map_err(failed)?.ok_or_else(|| failed(unresponsive(Some(process))))?;
    let welcome = match frame::decode(&frame.text).map_err(|error| failed(error.to_string()))? {
        Answer::Welcome(welcome) => welcome,
        Answer::Refused(cause) => return Err(failed(cause)),
    };
    let durability = welcome.durability;
    let syncs_each = welcome.has_disk && durability == Durability::Operation;
    let inbox = Arc::new(Inbox::new(welcome.progress.clone()));
    let log = welcome.log;
    let descriptors = frame.descriptors.into_iter().map(|file| opening.place(file)).collect();
    let (remote, writer) = Remote::new(*welcome, descriptors, socket, inbox, &path, &mut opening)?;
    let descriptors = opening.descriptors;
    Ok(Joined { remote, writer, log, durability, syncs_each, service: process, descriptors })
}

fn send<T: serde::Serialize>(socket: &mut UnixStream, message: &T) -> std::io::Result<()> {
    let bytes = frame::encode(message).map_err(std::io::Error::other)?;
    socket.write_all(&bytes)
}

/// Sends what there is room for, and removes it. Returns whether that was all.
fn send_at_once(socket: &UnixStream, bytes: &mut Vec<u8>) -> std::io::Result<bool> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let mut sent = 0;
    let all = loop {
        match rustix::net::send(socket, &bytes[sent..], flags) {
            Ok(now) if sent + now == bytes.len() => break Ok(true),
            Ok(now) => sent += now,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                bytes.drain(..sent);
                return Ok(false);
            }
            Err(error) => break Err(error.into()),
        }
    };
    bytes.clear();
    all
}

impl Remote {
    fn new(
        welcome: Welcome,
        descriptors: Vec<OwnedFd>,
        socket: UnixStream,
        inbox: Arc<Inbox>,
        path: &Path,
        opening: &mut Opening,
    ) -> Result<(Self, LogWriter<Mapped>), StoreError> {
        opening.note(&socket);
        let failed = |cause: &str| StoreError::Service { path: path.to_owned(), cause: cause.to_owned() };
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or_else(|| failed("a descriptor is missing"));
        let (memory, word) = (next()?, next()?);
        let disk = if welcome.has_disk { Some(next()?) } else { None };
        let fence = Fence::open(&word).map_err(|error| failed(&error.to_string()))?;
        let bytes = welcome.log_bytes;
        let (memory, sync_memory) = media::log_memory(memory, path, bytes)?;
        let identity = LogIdentity { log: welcome.log, epoch: welcome.epoch, seed: welcome.seed };
        let durability = match disk {
            Some(_) => LogDurability::Sync { block: DISK_BLOCK },
            None => LogDurability::Operation,
        };
        let mut writer = LogWriter::new(memory, identity, durability)
            .map_err(|source| StoreError::Ring { path: path.to_owned(), source })?;
        writer.continue_at(welcome.position, welcome.sequence + 1);
        let syncs = match disk {
            Some(disk) => {
                let queue = opening
                    .log_disk(disk, bytes)
                    .map_err(|source| StoreError::Queue { path: path.to_owned(), source })?;
                let mirror = Mirror::new(queue, &writer);
                let mirror = mirror.map_err(|source| StoreError::Mirror { path: path.to_owned(), source })?;
                Some(Syncs::new(mirror, Arc::new(sync_memory)))
            }
            None => None,
        };
        let mut members = Vec::new();
        for medium in welcome.media {
            let medium = Medium::of_descriptor(next()?, medium);
            members.push(medium.member_by(&mut |file, bytes| opening.area(file, bytes))?);
        }
        let progress = &welcome.progress;
        let root = progress.root().ok_or_else(|| failed("it named no root"))?;
        let mut base = Digested::new(Reader::new(members, root)?);
        base.keep_blocks(KEPT_BLOCKS);
        let receiving = socket.try_clone().map_err(|error| failed(&error.to_string()))?;
        let receiving = UnixStream::from(opening.place(receiving.into()));
        opening.note(&receiving);
        let delivered = Arc::clone(&inbox);
        let receiver = std::thread::Builder::new()
            .name("sietch-fs-client".to_owned())
            .spawn(move || receive(&receiving, &delivered))
            .map_err(|error| failed(&error.to_string()))?;
        let remote = Self {
            seen: 0,
            digested: progress.digested,
            read: progress.read,
            budget: progress.budget,
            returns: 0,
            logged: welcome.position,
            reported: welcome.position,
            step: bytes / REPORT_PART,
            pacer: Pacer::new(bytes),
            begun: Instant::now(),
            unsent: Vec::new(),
            probed: None,
            silent: 0,
            probes_after: PROBES_AFTER,
            is_patient: opening.is_within,
            waits_since: None,
            inbox,
            socket,
            receiver: Some(receiver),
            base,
            fence,
            syncs,
        };
        Ok((remote, writer))
    }

    /// Why the service takes nothing more from this client, if that is so.
    pub fn ended(&self) -> Option<String> {
        self.inbox.cause()
    }

    /// For one that only reads: answers what the service asks for, and says why the state that was
    /// committed when it came may not be readable any more.
    pub(super) fn must_leave(&mut self) -> Option<String> {
        while let Some(message) = self.inbox.message() {
            match message {
                Message::RecallRoom => self.return_room(0),
                Message::Advance => return Some(NEEDED.to_owned()),
                _ => {}
            }
        }
        // The word says it before blocks are used again, even if the notice is still on its way.
        self.ended().or_else(|| self.is_fenced().then(|| NEEDED.to_owned()))
    }

    fn send(&mut self, request: &Request) {
        match frame::encode(request) {
            Ok(bytes) => self.unsent.extend(bytes),
            Err(error) => self.inbox.end(format!("a request cannot be encoded: {error}")),
        }
        self.flush();
    }

    /// Sends what is unsent. It waits for room as long as an operation waits for an answer: a
    /// service that is stopped reads nothing.
    fn flush(&mut self) {
        loop {
            match send_at_once(&self.socket, &mut self.unsent) {
                Ok(true) => return,
                Ok(false) if self.is_silent() => return,
                Ok(false) => self.wait_for_room_to_send(),
                Err(error) => {
                    self.inbox.end(format!("its service cannot be reached: {error}"));
                    return;
                }
            }
        }
    }

    #[cold]
    fn wait_for_room_to_send(&mut self) {
        let mut writable = [PollFd::new(&self.socket, PollFlags::OUT)];
        let limit = Timespec::try_from(self.probes_after).ok();
        if !matches!(poll(&mut writable, limit.as_ref()), Ok(0)) {
            return;
        }
        if self.is_probe_due()
            && let Ok(bytes) = frame::encode(&Request::Probe)
        {
            self.unsent.extend(bytes);
        }
    }

    /// Fails where the service does not answer: what is asked for then would be asked for by each
    /// operation again, and wait in vain.
    fn must_answer(&mut self) -> Result<(), Errno> {
        if !self.unsent.is_empty() {
            self.flush();
        }
        if self.is_silent() { Err(Errno::TIMEDOUT) } else { Ok(()) }
    }

    /// Waits for what `take` waits for until a time. It fails if the service does not answer.
    fn wait_for<T>(
        &mut self,
        mut take: impl FnMut(&Inbox, Instant) -> Result<Option<T>, Errno>,
    ) -> Result<T, Errno> {
        loop {
            let is_silent = self.is_silent();
            let time = if is_silent { Duration::ZERO } else { self.probes_after };
            if let Some(taken) = take(&self.inbox, Instant::now() + time)? {
                return Ok(taken);
            }
            if is_silent {
                return Err(Errno::TIMEDOUT);
            }
            self.probe();
        }
    }

    /// Whether nothing came for so long that the service does not run.
    fn is_silent(&mut self) -> bool {
        !self.is_patient && self.silent >= SILENCE && self.probed == Some(self.inbox.arrivals())
    }

    /// Asks whether the service runs, unless it was asked and nothing has arrived since.
    #[cold]
    fn probe(&mut self) {
        if self.is_probe_due() {
            self.send(&Request::Probe);
        }
    }

    /// Counts a wait without a word. Returns whether something had come since the last one.
    fn is_probe_due(&mut self) -> bool {
        let arrivals = Some(self.inbox.arrivals());
        if self.probed == arrivals {
            self.silent = self.silent.saturating_add(1);
            return false;
        }
        (self.probed, self.silent) = (arrivals, 0);
        true
    }

    /// Counts a wait without a word of operations that wait without the client: once a second.
    fn count_waits(&mut self) {
        let since = *self.waits_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.probes_after {
            self.waits_since = Some(Instant::now());
            self.probe();
        }
    }

    /// Whether to wait a little, because the digest does not keep up.
    #[cold]
    fn pace(&mut self) -> Option<Pause> {
        let (digested, speed) = self.inbox.pace();
        // Nanoseconds of 584 years.
        let now = self.begun.elapsed().as_nanos() as u64;
        let waits = self.pacer.step(now, self.logged, digested, speed);
        waits.then(|| Pause { inbox: Arc::clone(&self.inbox), digested })
    }

    /// Reports what was logged while an earlier report was not digested, if that is digested now:
    /// no operation may follow that would.
    fn report_late(&mut self) {
        if self.reported <= self.read && self.read < self.logged {
            self.reported = self.logged;
            self.send(&Request::Logged(self.logged));
        }
    }

    /// Takes progress: the position up to which the log is in the root.
    fn take(&mut self, progress: &Progress) -> Option<u64> {
        let root = progress.root()?;
        if root.generation != self.base.store_mut().root().generation {
            self.base.store_mut().advance(root);
            self.send(&Request::Reads(root.generation));
        }
        self.read = progress.read;
        self.report_late();
        // A budget from before room was returned is too large.
        self.budget =
            if progress.returns == self.returns { progress.budget } else { self.budget.min(progress.budget) };
        self.digested = progress.digested;
        Some(self.digested)
    }
}

/// A pause of a client that is faster than the digest.
struct Pause {
    inbox: Arc<Inbox>,
    digested: u64,
}

impl Pending for Pause {
    fn wait(&mut self) {
        self.inbox.pause(self.digested, pacing::PAUSE);
    }
}

/// Waits for progress after a number.
struct NextProgress {
    inbox: Arc<Inbox>,
    seen: u64,
    time: Duration,
}

impl Pending for NextProgress {
    fn wait(&mut self) {
        // If the client has ended, the next try returns it.
        let _ = self.inbox.wait_progress(self.seen, Instant::now() + self.time);
    }
}

/// Waits for a message after a number.
struct NextMessage {
    inbox: Arc<Inbox>,
    seen: u64,
    until: Instant,
}

impl Pending for NextMessage {
    fn wait(&mut self) {
        // If the client has ended, the next try returns it.
        let _ = self.inbox.wait_next_message(self.seen, self.until);
    }
}

/// Delivers what the service says, until it says nothing more.
fn receive(socket: &UnixStream, inbox: &Inbox) {
    let mut reader = FrameReader::new();
    let cause = loop {
        match reader.read(socket) {
            Ok(Reading::Ready(frame)) => match frame::decode::<Notice>(&frame.text) {
                Ok(notice) => inbox.deliver(notice),
                Err(error) => break error.to_string(),
            },
            Ok(Reading::Blocked) => {}
            Ok(Reading::Closed) => break "its service has ended".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    inbox.end(cause);
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The service sees it, and the receiver ends.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(receiver) = self.receiver.take() {
            // It runs nothing that panics.
            drop(receiver.join());
        }
    }
}

impl Service<Mapped> for Remote {
    type Base = Digested<Reader<AreaQueue>>;

    const IS_SHARED: bool = true;

    fn base(&mut self) -> &mut Self::Base {
        &mut self.base
    }

    fn poll(&mut self) -> Option<u64> {
        if !self.unsent.is_empty() {
            self.flush();
        }
        let (number, progress) = self.inbox.progress(self.seen)?;
        self.seen = number;
        self.take(&progress)
    }

    fn wait(&mut self) -> Result<Option<u64>, Errno> {
        if let Some(position) = self.poll() {
            return Ok(Some(position));
        }
        if self.read >= self.logged {
            return Ok(None);
        }
        self.must_answer()?;
        self.reported = self.logged;
        self.send(&Request::Wait(self.logged));
        let seen = self.seen;
        self.wait_for(|inbox, end| inbox.wait_digest(seen, end))?;
        // A lease that is to be released at once does not wait for a commit.
        Ok(Some(self.poll().unwrap_or(self.digested)))
    }

    fn begin_wait(&mut self) -> Result<DigestWait, Errno> {
        if let Some(position) = self.poll() {
            self.waits_since = None;
            return Ok(DigestWait::Digested(position));
        }
        if self.read >= self.logged {
            return Ok(DigestWait::Complete);
        }
        self.count_waits();
        self.must_answer()?;
        self.reported = self.logged;
        self.send(&Request::Wait(self.logged));
        let (inbox, seen, time) = (Arc::clone(&self.inbox), self.seen, self.probes_after);
        Ok(DigestWait::Pending(Box::new(NextProgress { inbox, seen, time })))
    }

    fn logged(&mut self, position: u64) {
        if let Some(mut pause) = self.logged_without_pause(position) {
            pause.wait();
        }
    }

    fn logged_without_pause(&mut self, position: u64) -> Option<Box<dyn Pending>> {
        self.logged = position;
        if self.reported <= self.read || position - self.reported >= self.step {
            self.reported = position;
            self.send(&Request::Logged(position));
        }
        if !self.pacer.is_due(position) {
            return None;
        }
        self.pace().map(|pause| Box::new(pause) as Box<dyn Pending>)
    }

    fn inode_numbers(&mut self) -> Result<Range<u64>, Errno> {
        self.must_answer()?;
        self.send(&Request::Numbers);
        self.wait_for(Inbox::wait_numbers)
    }

    fn sync(
        &mut self,
        log: &mut LogWriter<Mapped>,
        position: u64,
    ) -> Result<Option<Box<dyn PendingSync>>, Errno> {
        self.syncs.as_mut().map_or(Ok(None), |syncs| syncs.begin(log, position))
    }

    fn report(&mut self, fault: &Fault) {
        // From then on blocks that it reads may be used again: that is no damage.
        if !self.is_fenced() {
            tracing::error!("{fault}");
        }
    }

    fn request_lease(&mut self, inode: InodeNumber, mode: Mode) -> Result<(), Errno> {
        self.must_answer()?;
        self.send(&Request::lease(inode, mode));
        Ok(())
    }

    fn cancel_lease(&mut self, inode: InodeNumber) {
        self.send(&Request::Cancel(inode.0));
    }

    fn release_lease(&mut self, release: Release) {
        // The service takes it for a report, too.
        self.reported = self.reported.max(release.position);
        self.send(&Request::release(release));
    }

    fn unreferenced(&mut self, inode: InodeNumber) {
        self.send(&Request::Closed(inode.0));
    }

    fn budget(&mut self) -> Option<u64> {
        Some(self.budget)
    }

    fn request_room(&mut self, blocks: u64) -> Result<(), Errno> {
        self.must_answer()?;
        self.send(&Request::Room(blocks));
        Ok(())
    }

    fn return_room(&mut self, keeps: u64) {
        self.budget = self.budget.min(keeps);
        self.returns += 1;
        self.send(&Request::ReturnRoom(keeps));
    }

    fn message(&mut self) -> Option<Message> {
        let message = self.inbox.message()?;
        self.waits_since = None;
        Some(message)
    }

    fn wait_message(&mut self) -> Result<(), Errno> {
        self.wait_for(Inbox::wait_message)
    }

    fn begin_wait_message(&mut self) -> Result<Option<Box<dyn Pending>>, Errno> {
        self.count_waits();
        self.must_answer()?;
        let inbox = Arc::clone(&self.inbox);
        let (seen, until) = (inbox.delivered(), Instant::now() + LOOKS_AGAIN);
        Ok(Some(Box::new(NextMessage { inbox, seen, until })))
    }

    fn is_fenced(&self) -> bool {
        self.inbox.has_ended() || self.fence.is_set()
    }
}

#[cfg(test)]
mod tests;
