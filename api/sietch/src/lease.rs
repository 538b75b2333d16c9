//! Holding what was granted: a thread that keeps the control connection, so that the data loop
//! never reads a socket of the control plane.
//!
//! 1. The thread sleeps on the connection and on a stop signal, without a time limit: an idle lease
//!    costs nothing.
//! 2. A revocation sets the grant's flag and rings the doorbell, an eventfd. The data loop has the
//!    doorbell among what it sleeps on, and looks at its grants' flags when it rings.
//! 3. When the daemon goes away, grants stay usable: the devices do not need it. The thread
//!    reconnects, waiting from [`FIRST_PAUSE`] up to [`LONGEST_PAUSE`] between tries, tells the new
//!    daemon what is held, and shares the counter pages again. What the daemon does not confirm
//!    counts as revoked.
//! 4. A lease that is dropped gives back what it holds, so that somebody else can have it at once.
//!    A daemon that does not answer within [`RELEASE_TIMEOUT`] finds out by itself, when the
//!    process ends or stays away.
//! 5. What the daemon asks (the sockets of a VNIC, a copy of its frames) goes to the data loop
//!    ([`crate::inquiry`]), and comes back through this thread. A capture ends when the connection
//!    breaks, for nobody could end it any more.
//! 6. Questions about the view of an area go the same way ([`crate::view`]).
//! 7. A daemon that says that it shuts down takes the devices with it: [`Lease::is_ending`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use sietch_net::Engine;
use sietch_nic::capture::Tap;
use sietch_protocol::view::{ViewError, ViewReply};
use sietch_protocol::{CallError, Connection, Notice, sealed};

use crate::doorbell::Doorbell;
use crate::error::Error;
use crate::grant::Grant;
use crate::inquiry::{Inquiries, Question, Told, Wanted, report};
use crate::view::{Asked, Questions, Seen, View};

/// The first pause before reconnecting: a restarted daemon is back within tens of milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause: one attempt costs about 50 microseconds, so that a day without a daemon costs
/// a second of processor time.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long the daemon may take to answer when adopting.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long giving back may take: whoever ends does not wait for a daemon that hangs.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// A counter page that the daemon was given.
#[derive(Debug)]
pub(crate) struct SharedPage {
    pub(crate) label: String,
    pub(crate) page: OwnedFd,
}

/// What the thread and the application share.
#[derive(Debug)]
struct Shared {
    doorbell: OwnedFd,
    stop: OwnedFd,
    inquiries: Inquiries,
    questions: Questions,
    ending: AtomicBool,
    connected: AtomicBool,
}

impl Shared {
    fn ring(&self) {
        // It can only fail when the counter is full, and then the doorbell is ringing already.
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }
}

/// A view's reply that has not been sent yet; see [`Lease::prepare_view_reply`].
#[derive(Debug)]
pub struct PreparedReply {
    id: u64,
    reply: Seen,
}

/// Grants that are held until this is dropped, or the process ends.
#[derive(Debug)]
pub struct Lease {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Lease {
    pub(crate) fn start(keeper: Parts) -> Result<Self, Error> {
        let path = keeper.path.clone();
        let failed = |source: io::Error| Error::Lease { path: path.clone(), source };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            doorbell: eventfd(0, flags).map_err(|cause| failed(cause.into()))?,
            stop: eventfd(0, flags).map_err(|cause| failed(cause.into()))?,
            inquiries: Inquiries::new().map_err(|cause| failed(cause.into()))?,
            questions: Questions::default(),
            ending: AtomicBool::new(false),
            connected: AtomicBool::new(true),
        });
        let keeper = Keeper { parts: keeper, shared: Arc::clone(&shared), captures: Vec::new() };
        let thread = std::thread::Builder::new()
            .name("sietch-lease".to_owned())
            .spawn(move || keeper.run())
            .map_err(failed)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What becomes readable when a grant was revoked or the daemon ends. Poll it beside the
    /// device's doorbells, call [`Lease::clear_doorbell`], then look at the grants.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.shared.doorbell.as_fd()
    }

    /// Makes the doorbell quiet until it rings again. Call it *before* looking at the grants.
    pub fn clear_doorbell(&self) {
        let mut count = [0; 8];
        // Nothing to read means that it was quiet.
        let _ = rustix::io::read(&self.shared.doorbell, &mut count);
    }

    /// Answers the daemon's questions about `grants`, which this thread drives with `engine` over
    /// `queue`: `sietch ss` and `sietch capture`. Call it once an iteration; without a question it
    /// costs one load. [`crate::Stack`] and [`crate::Runtime`] call it themselves.
    #[inline]
    pub fn answer_diagnostics<Q: Doorbell>(&self, grants: &[Grant], engine: &Engine, queue: &mut Q) {
        if self.shared.inquiries.is_asked() {
            self.shared.inquiries.answer(grants, engine, queue);
        }
    }

    /// Whether a request about a view waits: one load.
    #[inline]
    pub fn has_view_request(&self) -> bool {
        self.shared.questions.is_asked()
    }

    /// Answers one request about the area of `grant` with what `view` returns. Call it once an
    /// iteration, if [`Lease::has_view_request`]. Returns whether another request about the area
    /// waits, or this one again: then the next iteration should come soon.
    pub fn answer_view_request(&self, grant: &Grant, view: &mut dyn View) -> bool {
        if !self.has_view_request() {
            return false;
        }
        let (reply, more) = self.prepare_view_reply(grant, view);
        if let Some(reply) = reply {
            self.send_view_reply(reply);
        }
        more
    }

    /// As [`Lease::answer_view_request`], but the reply is returned instead of sent. A program whose
    /// data must be durable before it is shown calls [`Lease::send_view_reply`] once it is.
    pub fn prepare_view_reply(&self, grant: &Grant, view: &mut dyn View) -> (Option<PreparedReply>, bool) {
        let (answered, more) = self.shared.questions.answer(grant.id(), view);
        (answered.map(|(id, reply)| PreparedReply { id, reply }), more)
    }

    /// Sends a reply that [`Lease::prepare_view_reply`] made.
    pub fn send_view_reply(&self, reply: PreparedReply) {
        self.shared.inquiries.tell(reply.id, Told::Seen(Box::new(reply.reply)));
    }

    /// Whether the daemon said that it shuts down and takes its devices along.
    pub fn is_ending(&self) -> bool {
        self.shared.ending.load(Ordering::Acquire)
    }

    /// Whether the daemon is there now. Grants work without it.
    pub fn is_connected(&self) -> bool {
        self.shared.connected.load(Ordering::Acquire)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // As with the doorbell: a full counter is a signal already.
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// What a [`crate::Client`] turns into.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) connection: Connection,
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) grants: Vec<Grant>,
    pub(crate) pages: Vec<SharedPage>,
    /// Grants of areas of which a view is shown.
    pub(crate) views: Vec<u64>,
}

struct Keeper {
    parts: Parts,
    shared: Arc<Shared>,
    /// Captures that were begun: question and grant.
    captures: Vec<(u64, u64)>,
}

/// Why a wait ended.
enum Woken {
    Stop,
    Other,
}

/// The number of a question whose answer nobody waits for: the end of a capture.
const NOBODY: u64 = u64::MAX;

impl Keeper {
    fn run(mut self) {
        loop {
            match self.listen() {
                Woken::Stop => return self.give_back(),
                Woken::Other => self.shared.connected.store(false, Ordering::Release),
            }
            self.shared.questions.clear();
            for (_, grant) in std::mem::take(&mut self.captures) {
                self.ask(NOBODY, grant, Wanted::EndCapture);
            }
            if matches!(self.reconnect(), Woken::Stop) {
                return;
            }
            self.shared.connected.store(true, Ordering::Release);
        }
    }

    /// Tells the daemon that nothing is held any more.
    fn give_back(&mut self) {
        self.parts.connection.set_timeout(RELEASE_TIMEOUT);
        for grant in self.parts.grants.iter().filter(|grant| !grant.is_revoked()) {
            match self.parts.connection.release(grant.id()) {
                // It may have ended a moment ago.
                Ok(()) | Err(CallError::Refused(_)) => grant.revoke(),
                Err(_) => return,
            }
        }
    }

    /// Handles notices until the connection breaks or the lease ends.
    fn listen(&mut self) -> Woken {
        if self.attend().is_err() {
            return Woken::Other;
        }
        loop {
            // Answering waits for the daemon, and notices that come meanwhile are kept: they are
            // looked for last.
            for (id, told) in self.shared.inquiries.take_answers() {
                if self.inform(id, told).is_err() {
                    return Woken::Other;
                }
            }
            loop {
                match self.parts.connection.take_notice() {
                    Ok(Some((notice, descriptors))) => self.notice(&notice, descriptors),
                    Ok(None) => break,
                    Err(_) => return Woken::Other,
                }
            }
            if matches!(self.wait(Some(self.parts.connection.as_fd()), None), Woken::Stop) {
                return Woken::Stop;
            }
        }
    }

    /// Says that this connection answers for what is held.
    fn attend(&mut self) -> Result<(), CallError> {
        let held = self.parts.grants.iter().filter(|grant| !grant.is_revoked());
        let held: Vec<u64> = held.map(Grant::id).collect();
        let views = self.parts.views.iter().filter(|grant| held.contains(grant)).copied().collect();
        // A lease that is dropped meanwhile waits for this.
        self.parts.connection.set_timeout(ADOPT_TIMEOUT);
        refused_is_fine(self.parts.connection.attend_with_views(held, views))
    }

    fn ask(&self, id: u64, grant: u64, wanted: Wanted) {
        self.shared.inquiries.ask(Question { id, grant, wanted });
        self.shared.ring();
    }

    fn notice(&mut self, notice: &Notice, mut descriptors: Vec<OwnedFd>) {
        match *notice {
            Notice::Revoked { grant, generation, .. } => {
                let named = |held: &&Grant| held.id() == grant && held.generation() == generation;
                if let Some(held) = self.parts.grants.iter().find(named) {
                    held.revoke();
                }
            }
            Notice::Inquiry { id, grant } => self.ask(id, grant, Wanted::Sockets),
            Notice::Capture { id, grant } => {
                // Mapping the ring takes long: it is done here and not in the loop.
                match descriptors.pop().map(Tap::open) {
                    Some(Ok(tap)) => {
                        self.captures.push((id, grant));
                        self.ask(id, grant, Wanted::Capture(Box::new(tap)));
                    }
                    Some(Err(error)) => self.shared.inquiries.refuse(id, error.to_string()),
                    None => {}
                }
            }
            Notice::View { id, grant, uid, ref question } => {
                let question = question.clone();
                self.shared.questions.put(Asked { id, grant, uid, question, since: Instant::now() });
            }
            Notice::EndCapture { id, grant } => {
                self.captures.retain(|(begun, _)| *begun != id);
                self.ask(NOBODY, grant, Wanted::EndCapture);
            }
            // For the service core, which has no lease, and for who starts it.
            Notice::Port(_)
            | Notice::Unplug { .. }
            | Notice::Volume { .. }
            | Notice::Area(_)
            | Notice::Reshape { .. }
            | Notice::Detach { .. }
            | Notice::Reloaded => {}
            Notice::ShuttingDown { .. } => self.shared.ending.store(true, Ordering::Release),
        }
        self.shared.ring();
    }

    /// Sends what a loop said on to who asked.
    fn inform(&mut self, id: u64, told: Told) -> Result<(), CallError> {
        if id == NOBODY {
            return Ok(());
        }
        let connection = &mut self.parts.connection;
        let sent = match told {
            Told::Seen(seen) => show(connection, id, *seen),
            Told::Done => connection.answer_inquiry(id, Ok(0), None),
            Told::Refused(why) => connection.answer_inquiry(id, Err(why), None),
            Told::Sockets(sockets, count) => {
                let reports: Vec<_> = sockets.iter().map(report).collect();
                match sietch_protocol::sockets::write(&reports) {
                    Ok((file, omitted)) => {
                        let omitted = omitted + (count - reports.len()) as u64;
                        connection.answer_inquiry(id, Ok(omitted), Some(file.as_fd()))
                    }
                    Err(error) => connection.answer_inquiry(id, Err(error.to_string()), None),
                }
            }
        };
        // Too late is no reason to lose the connection.
        refused_is_fine(sent)
    }

    /// Tries until the daemon is there and knows what is held, or the lease ends.
    fn reconnect(&mut self) -> Woken {
        let mut pause = FIRST_PAUSE;
        loop {
            if matches!(self.wait(None, Some(pause)), Woken::Stop) {
                return Woken::Stop;
            }
            if self.adopt().is_ok() {
                return Woken::Other;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn adopt(&mut self) -> Result<(), CallError> {
        let mut connection = Connection::connect(&self.parts.path, &self.parts.name, ADOPT_TIMEOUT)?;
        let held: Vec<&Grant> = self.parts.grants.iter().filter(|grant| !grant.is_revoked()).collect();
        let answers = connection.adopt(held.iter().map(|grant| grant.held()).collect())?;
        let mut lost = false;
        for grant in held {
            let confirmed = answers.iter().any(|answer| answer.grant == grant.id() && answer.held);
            if !confirmed {
                grant.revoke();
                lost = true;
            }
        }
        for shared in &self.parts.pages {
            // Counters that the daemon does not want are no reason to lose the grants.
            refused_is_fine(connection.publish_metrics(&shared.label, shared.page.as_fd()))?;
        }
        self.shared.ending.store(false, Ordering::Release);
        self.parts.connection = connection;
        if lost {
            self.shared.ring();
        }
        Ok(())
    }

    /// Sleeps until `socket` is readable, a loop has answered, `limit` has passed, or the lease
    /// ends.
    fn wait(&self, socket: Option<BorrowedFd<'_>>, limit: Option<Duration>) -> Woken {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut watched = vec![PollFd::new(&self.shared.stop, PollFlags::IN)];
        if socket.is_some() {
            watched.push(PollFd::from_borrowed_fd(self.shared.inquiries.bell(), PollFlags::IN));
        }
        watched.extend(socket.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)));
        match poll(&mut watched, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) if watched[0].revents().is_empty() => Woken::Other,
            _ => Woken::Stop,
        }
    }
}

/// Answers a question about a view.
fn show(connection: &mut Connection, id: u64, seen: Seen) -> Result<(), CallError> {
    let (answer, bytes) = match seen {
        Ok(seen) => seen,
        Err(refusal) => return connection.answer_view(id, Err(refusal), None),
    };
    if answer != ViewReply::Piece {
        return connection.answer_view(id, Ok(answer), None);
    }
    match sealed::make("sietch-view", &bytes) {
        Ok(piece) => connection.answer_view(id, Ok(answer), Some(piece.as_fd())),
        Err(error) => connection.answer_view(id, Err(ViewError::Failed(error.to_string())), None),
    }
}

/// A refusal leaves the connection whole.
fn refused_is_fine(result: Result<(), CallError>) -> Result<(), CallError> {
    match result {
        Err(CallError::Refused(_)) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
