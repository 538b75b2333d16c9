//! The service of a file system: its socket, and a session for each client.
//!
//! 1. [`serve()`] opens the media, recovers all logs, starts the [`hub`](super::hub), and listens.
//! 2. A session is two threads: one takes what the client says and hands it to the hub, the other
//!    sends what the hub says. A client that sends more than the hub takes waits, and
//!    its probes are answered.
//! 3. A session begins with a greeting, for which a client has [`GREETING`]. Only the user that
//!    serves, and root, may be clients.
//!    The first one answers probes itself: a client gets to know that the service runs, however
//!    long the hub digests.
//! 4. When a session ends, its client is gone. Its number is free when its log is digested.

use std::collections::{BTreeSet, VecDeque};
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sietch_fs::lease::{ClientNumber, Times};
use sietch_fs::mover::Moves;
use sietch_fs::pool::MediumUse;
use sietch_fs::shared::SharedDigest;
use sietch_protocol::frame::{self, FrameReader, FrameWriter, Progress as Reading};
use sietch_ring::socket_pair::refuse_descriptors;

use super::fence::{self, Fence};
use super::hub::{Event, Hub, Joining, REQUESTS};
use super::messages::{Answer, Hello, Notice, Request, VERSION, Welcome};
use super::moving::Moving;
use super::{MAX_CLIENTS, SOCKET};
use crate::fs::create;
use crate::fs::description::Description;
use crate::fs::error::StoreError;
use crate::fs::logs::{self, Files, Noted, numbered};
use crate::fs::media::{self, Medium};
use crate::fs::mover;
use crate::fs::recovery::recover;
use crate::fs::requests::Digesting;

/// How long a client may take for its greeting.
const GREETING: Duration = Duration::from_secs(5);
/// Notices that a client has not taken: more than all revocations of what a client keeps.
const NOTICES: usize = 1 << 16;
/// Requests of a session for which the hub has no place, before the session reads no more.
const WAITING: usize = 64;
/// How often such a session tries again.
const RETRY: Duration = Duration::from_millis(5);
/// Sessions that have not been greeted count too.
const MAX_SESSIONS: usize = 2 * MAX_CLIENTS as usize;

/// A file system that is served.
pub struct Server {
    /// What it is made of.
    pub description: Description,
    /// Records that logs had from before.
    pub recovered: u64,
    /// Its socket.
    pub socket: PathBuf,
    events: SyncSender<Event>,
    moving: Arc<Moving>,
    listener: UnixListener,
    accepting: Option<JoinHandle<()>>,
    hub: Option<JoinHandle<Result<(), String>>>,
    noted: Option<Noted>,
}

/// What sessions share.
struct Sessions {
    description: Description,
    media: Vec<Medium>,
    events: SyncSender<Event>,
    state: Mutex<SessionsState>,
}

#[derive(Default)]
struct SessionsState {
    count: usize,
    numbers: BTreeSet<u32>,
}

impl Sessions {
    fn state(&self) -> std::sync::MutexGuard<'_, SessionsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number behind `after` that no client has.
    fn take_number(&self, after: u32) -> Option<u32> {
        let mut state = self.state();
        let number = (after + 1..=MAX_CLIENTS).find(|number| !state.numbers.contains(number))?;
        state.numbers.insert(number);
        Some(number)
    }

    /// A number and the files of its log. A client that was fenced and still runs has its memory
    /// mapped, and so the lock on it: then the next number is taken.
    fn take_log(&self) -> Result<(u32, Files), String> {
        let mut cause = format!("it has {MAX_CLIENTS} clients; end one of them");
        let mut last = 0;
        while let Some(number) = self.take_number(last) {
            match Files::open(&numbered(&self.description.log, number)) {
                Ok(files) => return Ok((number, files)),
                Err(error) => cause = error.to_string(),
            }
            self.state().numbers.remove(&number);
            last = number;
        }
        Err(cause)
    }
}

/// Serves the file system in `folder`. `ended` is called when the service ends by itself.
///
/// # Errors
/// See [`StoreError`].
pub fn serve(folder: &Path, ended: impl FnOnce() + Send + 'static) -> Result<Server, StoreError> {
    let mut description = Description::read(folder)?;
    let media = media::open_all(folder, &mut description)?;
    logs::leave_taken_folder(folder, &mut description)?;
    let members = media.iter().map(Medium::member).collect::<Result<Vec<_>, _>>()?;
    let (digest, _, recovered) = recover(members, &description)?;
    create::forget(folder);
    let noted = logs::note(folder, &description);
    logs::collect(&description);
    let root = digest.root();
    let socket = folder.join(SOCKET);
    let fail = |action| {
        let path = socket.clone();
        move |source| StoreError::Io { path, action, source }
    };
    // The media are locked: what is there belongs to no living service.
    remove_socket(&socket)?;
    let listener = UnixListener::bind(&socket).map_err(fail("make the socket"))?;
    // Descriptors come from here alone. An older kernel takes those of a client, which may make the
    // thread that closes them wait; only its own user and root are clients.
    let _ = refuse_descriptors(&listener);
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600))
        .map_err(fail("set its mode"))?;
    let (events, received) = sync_channel(REQUESTS);
    let waking = events.clone();
    // If there is no place, the hub is awake.
    let moving = Arc::new(Moving::new(Box::new(move || drop(waking.try_send(Event::Move)))));
    // The mover waits for the hub. Clients read the media themselves: their reads are not counted.
    let digesting: Arc<dyn Digesting> = moving.clone();
    mover::start(&digesting, &media, root, &description, Arc::default())?;
    let hub = Hub::new(SharedDigest::new(digest, Times::default()), Arc::clone(&moving));
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    let closing = Closing { moving: Arc::clone(&moving), ended: Some(ended) };
    let hub = thread("sietch-fs-hub").spawn(move || {
        let _closing = closing;
        hub.run(&received)
    });
    let hub = hub.map_err(fail("start its thread"))?;
    let accepted = listener.try_clone().map_err(fail("duplicate the socket"));
    // If something fails from here on, it ends the hub.
    let mut server = Server {
        description: description.clone(),
        recovered,
        socket: socket.clone(),
        events: events.clone(),
        moving,
        listener,
        accepting: None,
        hub: Some(hub),
        noted,
    };
    let accepted = accepted?;
    let sessions = Sessions { description, media, events, state: Mutex::default() };
    let accepting = thread("sietch-fs-accept").spawn(move || accept(&accepted, &Arc::new(sessions)));
    server.accepting = Some(accepting.map_err(fail("start its thread"))?);
    Ok(server)
}

/// Removes a socket that is there, and nothing else.
fn remove_socket(path: &Path) -> Result<(), StoreError> {
    match path.symlink_metadata() {
        Ok(found) if found.file_type().is_socket() => {
            let fail = |source| StoreError::Io { path: path.to_owned(), action: "remove it", source };
            std::fs::remove_file(path).map_err(fail)
        }
        Ok(_) => Err(StoreError::NoSocket { path: path.to_owned() }),
        // If it is there all the same, it cannot be made.
        Err(_) => Ok(()),
    }
}

/// Nothing is done for the mover any more, whatever ended the hub.
struct Closing<F: FnOnce()> {
    moving: Arc<Moving>,
    ended: Option<F>,
}

impl<F: FnOnce()> Drop for Closing<F> {
    fn drop(&mut self) {
        self.moving.requests().close();
        if let Some(ended) = self.ended.take() {
            ended();
        }
    }
}

impl Server {
    /// The sums of what was moved between media.
    pub fn moves(&self) -> Moves {
        self.moving.requests().moves()
    }

    /// How full each medium is, the home first.
    pub fn media(&self) -> Vec<MediumUse> {
        self.moving.media()
    }

    /// Ends the service: clients get `EIO` from now on, and their logs are digested.
    ///
    /// # Errors
    /// Why not everything could be digested; it is still in the logs.
    pub fn end(mut self) -> Result<(), String> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), String> {
        // If something else is there now, it stays.
        drop(remove_socket(&self.socket));
        // It wakes `accept(2)`.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(accepting) = self.accepting.take() {
            // It runs nothing that panics.
            drop(accepting.join());
        }
        // The hub must still answer it.
        self.moving.requests().end_mover();
        // It may have ended by itself.
        let _ = self.events.send(Event::End);
        match self.hub.take().map(JoinHandle::join) {
            Some(Ok(result)) => {
                result?;
                self.noted.take().into_iter().for_each(Noted::digested);
                Ok(())
            }
            Some(Err(_)) => Err("its thread panicked; start it again".to_owned()),
            None => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(cause) = self.stop() {
            tracing::error!("{cause}");
        }
    }
}

fn accept(listener: &UnixListener, sessions: &Arc<Sessions>) {
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            // It was shut down: the service ends.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return,
            Err(error) => {
                tracing::warn!("cannot take a client: {error}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if sessions.state().count >= MAX_SESSIONS {
            continue;
        }
        sessions.state().count += 1;
        let own = Arc::clone(sessions);
        let begun = std::thread::Builder::new().name("sietch-fs-session".to_owned()).spawn(move || {
            session(&own, &stream);
            own.state().count -= 1;
        });
        if let Err(error) = begun {
            tracing::warn!("cannot take a client: {error}");
            sessions.state().count -= 1;
        }
    }
}

/// Serves one client, from its greeting to its end.
fn session(sessions: &Sessions, stream: &UnixStream) {
    let refuse = |cause: String| {
        let answer = frame::encode(&Answer::Refused(cause));
        // A client that is gone needs no answer.
        answer.into_iter().for_each(|bytes| drop((&*stream).write_all(&bytes)));
    };
    let process = match greet(stream) {
        Ok(process) => process,
        Err(cause) => return refuse(cause),
    };
    let refuse = |cause: String| {
        tracing::warn!("process {process} is refused: {cause}");
        refuse(cause);
    };
    let (number, files) = match sessions.take_log() {
        Ok(taken) => taken,
        Err(cause) => return refuse(cause),
    };
    if let Err(cause) = serve_client(sessions, stream, process, number, &files) {
        refuse(cause);
    }
    // With the lock on them, before another session takes the number.
    drop(files);
    sessions.state().numbers.remove(&number);
}

/// Takes the greeting of a client that may be one; its process.
fn greet(stream: &UnixStream) -> Result<i32, String> {
    let peer = rustix::net::sockopt::socket_peercred(stream).map_err(|error| error.to_string())?;
    if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
        return Err("it serves its own user; use its mount".to_owned());
    }
    stream.set_read_timeout(Some(GREETING)).map_err(|error| error.to_string())?;
    let frame = match FrameReader::new().read(stream).map_err(|error| error.to_string())? {
        Reading::Ready(frame) => frame,
        Reading::Blocked | Reading::Closed => return Err("no greeting came".to_owned()),
    };
    let hello: Hello = frame::decode(&frame.text).map_err(|error| error.to_string())?;
    if hello.version != VERSION {
        let theirs = hello.version;
        return Err(format!("it speaks version {VERSION}, and the client {theirs}; use one build"));
    }
    stream.set_read_timeout(None).map_err(|error| error.to_string())?;
    Ok(peer.pid.as_raw_nonzero().get())
}

fn serve_client(
    sessions: &Sessions,
    stream: &UnixStream,
    process: i32,
    number: u32,
    files: &Files,
) -> Result<(), String> {
    let client = ClientNumber(number);
    let description = &sessions.description;
    let log = numbered(&description.log, number);
    let memory = files.memory.try_clone().map_err(|error| error.to_string())?;
    let (memory, _) = media::log_memory(memory, &log.memory, log.bytes).map_err(|error| error.to_string())?;
    let word = fence::memory().map_err(|error| error.to_string())?;
    let fence = Fence::open(&word).map_err(|error| error.to_string())?;
    let (notices, said) = sync_channel(NOTICES);
    let (answer, answered) = sync_channel(1);
    let own_notices = notices.clone();
    let closing = stream.try_clone().map_err(|error| error.to_string())?;
    let hang_up = Box::new(move || drop(closing.shutdown(std::net::Shutdown::Both)));
    let (log_bytes, seed) = (log.bytes, log.seed);
    let joining = Joining { client, process, memory, log_bytes, seed, fence, notices, hang_up, answer };
    let ended = || "the service has ended".to_owned();
    sessions.events.send(Event::Join(joining)).map_err(|_| ended())?;
    let outcome =
        answered.recv().map_err(|_| ended()).and_then(|answer| answer).and_then(|(state, progress)| {
            let welcome = Welcome {
                log: number,
                epoch: state.epoch,
                seed: log.seed,
                position: state.position,
                sequence: state.sequence,
                log_bytes: log.bytes,
                durability: description.durability(),
                has_disk: files.disk.is_some(),
                media: description.media.clone(),
                progress,
            };
            let mut descriptors: Vec<BorrowedFd<'_>> = vec![files.memory.as_fd(), word.as_fd()];
            descriptors.extend(files.disk.as_ref().map(OwnedFd::as_fd));
            descriptors.extend(sessions.media.iter().map(Medium::as_fd));
            welcome_client(stream, welcome, descriptors)
        });
    if outcome.is_ok() {
        converse(&sessions.events, stream, client, (own_notices, said));
    }
    let (done, buried) = sync_channel(1);
    if sessions.events.send(Event::Gone(client, done)).is_ok() {
        // Until its log is digested. If the hub has ended, the channel is closed.
        let _ = buried.recv();
    }
    outcome
}

fn welcome_client(
    stream: &UnixStream,
    welcome: Welcome,
    descriptors: Vec<BorrowedFd<'_>>,
) -> Result<(), String> {
    let bytes = frame::encode(&Answer::Welcome(Box::new(welcome))).map_err(|error| error.to_string())?;
    let mut writer = FrameWriter::new(bytes, descriptors).map_err(|error| error.to_string())?;
    writer.write(stream).map(drop).map_err(|error| error.to_string())
}

/// Passes requests on, as long as the hub has a place.
///
/// # Errors
/// The hub has ended.
fn pass_on(
    events: &SyncSender<Event>,
    client: ClientNumber,
    waiting: &mut VecDeque<Request>,
) -> Result<(), ()> {
    while let Some(request) = waiting.pop_front() {
        match events.try_send(Event::Request(client, request)) {
            Ok(()) => {}
            Err(TrySendError::Full(Event::Request(_, request))) => {
                waiting.push_front(request);
                return Ok(());
            }
            Err(_) => return Err(()),
        }
    }
    Ok(())
}

/// Whether something to read, or the end, comes within that time.
fn is_readable(stream: &UnixStream, within: Duration) -> bool {
    let limit = Timespec::try_from(within).ok();
    let mut entries = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut entries, limit.as_ref()).is_ok_and(|ready| ready > 0)
}

/// Passes what the client says to the hub, and the other way round, until one of them ends.
fn converse(
    events: &SyncSender<Event>,
    stream: &UnixStream,
    client: ClientNumber,
    (notices, said): (SyncSender<Notice>, Receiver<Notice>),
) {
    let Ok(sending) = stream.try_clone() else { return };
    let sender = std::thread::Builder::new().name("sietch-fs-notices".to_owned()).spawn(move || {
        for notice in said {
            let is_last = matches!(notice, Notice::Ended(_));
            let Ok(bytes) = frame::encode(&notice) else { break };
            if (&sending).write_all(&bytes).is_err() || is_last {
                break;
            }
        }
        // The session's other thread wakes.
        let _ = sending.shutdown(std::net::Shutdown::Both);
    });
    let Ok(sender) = sender else { return };
    let mut reader = FrameReader::new();
    // Requests for which the hub has no place.
    let mut waiting = VecDeque::new();
    loop {
        if pass_on(events, client, &mut waiting).is_err() {
            break;
        }
        // Meanwhile the client may ask whether the service runs.
        if !waiting.is_empty() && (waiting.len() >= WAITING || !is_readable(stream, RETRY)) {
            if waiting.len() >= WAITING {
                std::thread::sleep(RETRY);
            }
            continue;
        }
        let Ok(Reading::Ready(frame)) = reader.read(stream) else { break };
        let Ok(request) = frame::decode::<Request>(&frame.text) else { break };
        if matches!(request, Request::Probe) {
            // The service is the hub. One that has ended, a panic included, drops its end.
            if matches!(events.try_send(Event::Move), Err(TrySendError::Disconnected(_))) {
                break;
            }
            // If there is no place, the client has enough to read.
            let _ = notices.try_send(Notice::Runs);
            continue;
        }
        waiting.push_back(request);
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
    // The hub drops its end of the channel when it hears that the client is gone, and this function
    // the other one.
    drop(sender);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(stream: &UnixStream, request: &Request) {
        let bytes = frame::encode(request).expect("it fits a frame");
        (&*stream).write_all(&bytes).expect("the session reads");
    }

    #[test]
    fn a_probe_is_answered_while_the_hub_has_no_place_for_a_request() {
        let (own, stream) = UnixStream::pair().expect("descriptors");
        let (events, received) = sync_channel(1);
        events.send(Event::Move).expect("there is one place");
        let (notices, heard) = sync_channel(4);
        let client = ClientNumber(1);
        let session = std::thread::spawn(move || converse(&events, &stream, client, (notices, heard)));
        for _ in 0..3 {
            said(&own, &Request::Numbers);
        }
        said(&own, &Request::Probe);
        own.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        let Ok(Reading::Ready(answer)) = FrameReader::<OwnedFd>::new().read(&own) else {
            panic!("no answer came to the probe")
        };
        assert!(matches!(frame::decode(&answer.text), Ok(Notice::Runs)));
        // Nothing is lost or overtaken.
        let mut requests = 0;
        while requests < 3 {
            let event = received.recv_timeout(Duration::from_secs(20)).expect("what waits follows");
            requests += usize::from(matches!(event, Event::Request(ClientNumber(1), Request::Numbers)));
        }
        drop((own, received));
        session.join().expect("it does not panic");
    }
}
