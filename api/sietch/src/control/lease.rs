//! Holding grants: a thread that keeps the connection to the daemon, so that the data loop never
//! reads that socket.
//!
//! 1. The thread sleeps on the connection and on a stop signal, without a time limit: an idle lease
//!    costs nothing.
//! 2. A revocation sets the grant's flag and rings the doorbell, an eventfd. The data loop sleeps
//!    on the doorbell too, and checks the flags of its grants when it rings.
//! 3. When the daemon goes away, grants stay usable: the devices do not need it. The thread
//!    reconnects, waiting from [`FIRST_PAUSE`] up to [`LONGEST_PAUSE`] between tries. It names its
//!    grants to the new daemon and shares the counter pages again. A grant that the daemon does not
//!    confirm counts as revoked.
//! 4. A lease that is dropped releases its grants, so that another process can acquire them at
//!    once. A daemon that does not answer within [`RELEASE_TIMEOUT`] releases them by itself, when
//!    the process ends or stays disconnected.
//! 5. The daemon's questions (the sockets of a VNIC, a copy of its frames) go to the data loop
//!    ([`super::diagnostics`]), and the answers come back through this thread. A capture ends when
//!    the connection breaks, because no message could end it any more.
//! 6. Requests about the view of an area go the same way ([`crate::view`]).
//! 7. A daemon that announces its shutdown removes the devices: [`Lease::is_ending`].

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

use super::diagnostics::{Answer, Query, Question, Questions, report};
use crate::device::{Doorbell, Grant};
use crate::error::Error;
use crate::view::{PendingRequest, RequestQueue, View, ViewOutcome};

/// The first pause before reconnecting: a restarted daemon is back within tens of milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause: one attempt costs about 50 microseconds, so that a day without a daemon costs
/// a second of processor time.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long the daemon may take to answer when adopting.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long releasing may take: a process that ends does not wait for a daemon that hangs.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// A counter page that the daemon was given.
#[derive(Debug)]
pub(super) struct SharedPage {
    pub(super) label: String,
    pub(super) page: OwnedFd,
}

/// What the thread and the application share.
#[derive(Debug)]
struct Shared {
    doorbell: OwnedFd,
    stop: OwnedFd,
    questions: Questions,
    view_requests: RequestQueue,
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
    reply: ViewOutcome,
}

/// Grants that are held until this is dropped, or the process ends.
#[derive(Debug)]
pub struct Lease {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Lease {
    pub(super) fn start(session: Session) -> Result<Self, Error> {
        let path = session.path.clone();
        let failed = |source: io::Error| Error::Lease { path: path.clone(), source };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            doorbell: eventfd(0, flags).map_err(|cause| failed(cause.into()))?,
            stop: eventfd(0, flags).map_err(|cause| failed(cause.into()))?,
            questions: Questions::new().map_err(|cause| failed(cause.into()))?,
            view_requests: RequestQueue::default(),
            ending: AtomicBool::new(false),
            connected: AtomicBool::new(true),
        });
        let thread = LeaseThread { session, shared: Arc::clone(&shared), captures: Vec::new() };
        let thread = std::thread::Builder::new()
            .name("sietch-lease".to_owned())
            .spawn(move || thread.run())
            .map_err(failed)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The descriptor that is readable when a grant was revoked or the daemon ends. Poll it beside
    /// the device's doorbells, call [`Lease::clear_doorbell`], then check the grants.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.shared.doorbell.as_fd()
    }

    /// Clears the doorbell until it rings again. Call it *before* checking the grants.
    pub fn clear_doorbell(&self) {
        let mut count = [0; 8];
        // An empty eventfd means that it was not notified.
        let _ = rustix::io::read(&self.shared.doorbell, &mut count);
    }

    /// Answers the daemon's questions about `grants`, which this thread drives with `engine` over
    /// `queue`: `sietch ss` and `sietch capture`. Call it once an iteration; without a question it
    /// costs one load. [`crate::Stack`] and [`crate::Runtime`] call it themselves.
    #[inline]
    pub fn answer_diagnostics<Q: Doorbell>(&self, grants: &[Grant], engine: &Engine, queue: &mut Q) {
        if self.shared.questions.has_questions() {
            self.shared.questions.answer(grants, engine, queue);
        }
    }

    /// Whether a request about a view waits: one load.
    #[inline]
    pub fn has_view_request(&self) -> bool {
        self.shared.view_requests.has_requests()
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

    /// As [`Lease::answer_view_request`], but the reply is returned instead of sent. A program
    /// whose data must be durable before it is shown calls [`Lease::send_view_reply`] once it is.
    pub fn prepare_view_reply(&self, grant: &Grant, view: &mut dyn View) -> (Option<PreparedReply>, bool) {
        let (answered, more) = self.shared.view_requests.answer(grant.id(), view);
        (answered.map(|(id, reply)| PreparedReply { id, reply }), more)
    }

    /// Sends a reply that [`Lease::prepare_view_reply`] made.
    pub fn send_view_reply(&self, reply: PreparedReply) {
        self.shared.questions.push_answer(reply.id, Answer::View(Box::new(reply.reply)));
    }

    /// Whether the daemon has announced that it shuts down and removes its devices.
    pub fn is_ending(&self) -> bool {
        self.shared.ending.load(Ordering::Acquire)
    }

    /// Whether the connection to the daemon is open. Grants work without it.
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

/// A connection to the daemon with everything that was acquired over it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) grants: Vec<Grant>,
    pub(super) pages: Vec<SharedPage>,
    /// Grants of areas of which a view is served.
    pub(super) views: Vec<u64>,
}

/// The state of the thread.
struct LeaseThread {
    session: Session,
    shared: Arc<Shared>,
    /// Captures that have begun: the ids of question and grant.
    captures: Vec<(u64, u64)>,
}

/// Why a wait ended.
enum Woken {
    Stop,
    Other,
}

/// The id of a question without an answer: the end of a capture.
const UNANSWERED: u64 = u64::MAX;

impl LeaseThread {
    fn run(mut self) {
        loop {
            match self.listen() {
                Woken::Stop => return self.release_all(),
                Woken::Other => self.shared.connected.store(false, Ordering::Release),
            }
            self.shared.view_requests.clear();
            for (_, grant) in std::mem::take(&mut self.captures) {
                self.ask(UNANSWERED, grant, Query::EndCapture);
            }
            if matches!(self.reconnect(), Woken::Stop) {
                return;
            }
            self.shared.connected.store(true, Ordering::Release);
        }
    }

    /// Releases all grants.
    fn release_all(&mut self) {
        self.session.connection.set_timeout(RELEASE_TIMEOUT);
        for grant in self.session.grants.iter().filter(|grant| !grant.is_revoked()) {
            match self.session.connection.release(grant.id()) {
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
            // Sending an answer waits for the daemon, and notices that arrive meanwhile are queued:
            // so notices are taken last.
            for (id, answer) in self.shared.questions.take_answers() {
                if self.send_answer(id, answer).is_err() {
                    return Woken::Other;
                }
            }
            loop {
                match self.session.connection.take_notice() {
                    Ok(Some((notice, descriptors))) => self.notice(&notice, descriptors),
                    Ok(None) => break,
                    Err(_) => return Woken::Other,
                }
            }
            if matches!(self.wait(Some(self.session.connection.as_fd()), None), Woken::Stop) {
                return Woken::Stop;
            }
        }
    }

    /// Declares that this connection answers for the grants that are held.
    fn attend(&mut self) -> Result<(), CallError> {
        let held = self.session.grants.iter().filter(|grant| !grant.is_revoked());
        let held: Vec<u64> = held.map(Grant::id).collect();
        let views = self.session.views.iter().filter(|grant| held.contains(grant)).copied().collect();
        // Dropping the lease waits for this call.
        self.session.connection.set_timeout(ADOPT_TIMEOUT);
        ignore_refusal(self.session.connection.attend_with_views(held, views))
    }

    fn ask(&self, id: u64, grant: u64, query: Query) {
        self.shared.questions.ask(Question { id, grant, query });
        self.shared.ring();
    }

    fn notice(&mut self, notice: &Notice, mut descriptors: Vec<OwnedFd>) {
        match *notice {
            Notice::Revoked { grant, generation, .. } => {
                let named = |held: &&Grant| held.id() == grant && held.generation() == generation;
                if let Some(held) = self.session.grants.iter().find(named) {
                    held.revoke();
                }
            }
            Notice::Inquiry { id, grant } => self.ask(id, grant, Query::Sockets),
            Notice::Capture { id, grant } => {
                // Mapping the ring takes long, so the thread does it and not the loop.
                match descriptors.pop().map(Tap::open) {
                    Some(Ok(tap)) => {
                        self.captures.push((id, grant));
                        self.ask(id, grant, Query::Capture(Box::new(tap)));
                    }
                    Some(Err(error)) => {
                        self.shared.questions.push_answer(id, Answer::Refused(error.to_string()))
                    }
                    None => {}
                }
            }
            Notice::View { id, grant, uid, ref question } => {
                let request = question.clone();
                let since = Instant::now();
                self.shared.view_requests.push(PendingRequest { id, grant, uid, request, since });
            }
            Notice::EndCapture { id, grant } => {
                self.captures.retain(|(begun, _)| *begun != id);
                self.ask(UNANSWERED, grant, Query::EndCapture);
            }
            // For the service core, which has no lease, and for the process that starts it.
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

    /// Sends a loop's answer to the daemon.
    fn send_answer(&mut self, id: u64, answer: Answer) -> Result<(), CallError> {
        if id == UNANSWERED {
            return Ok(());
        }
        let connection = &mut self.session.connection;
        let sent = match answer {
            Answer::View(outcome) => send_view_reply(connection, id, *outcome),
            Answer::Done => connection.answer_inquiry(id, Ok(0), None),
            Answer::Refused(why) => connection.answer_inquiry(id, Err(why), None),
            Answer::Sockets(sockets, count) => {
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
        // The daemon refuses an answer that is too late, and the connection stays open.
        ignore_refusal(sent)
    }

    /// Tries until a daemon has adopted the grants, or the lease ends.
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
        let mut connection = Connection::connect(&self.session.path, &self.session.name, ADOPT_TIMEOUT)?;
        let held: Vec<&Grant> = self.session.grants.iter().filter(|grant| !grant.is_revoked()).collect();
        let answers = connection.adopt(held.iter().map(|grant| grant.held()).collect())?;
        let mut lost = false;
        for grant in held {
            let confirmed = answers.iter().any(|answer| answer.grant == grant.id() && answer.held);
            if !confirmed {
                grant.revoke();
                lost = true;
            }
        }
        for shared in &self.session.pages {
            // If the daemon refuses the counters, the grants stay valid.
            ignore_refusal(connection.publish_metrics(&shared.label, shared.page.as_fd()))?;
        }
        self.shared.ending.store(false, Ordering::Release);
        self.session.connection = connection;
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
            watched.push(PollFd::from_borrowed_fd(self.shared.questions.doorbell(), PollFlags::IN));
        }
        watched.extend(socket.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)));
        match poll(&mut watched, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) if watched[0].revents().is_empty() => Woken::Other,
            _ => Woken::Stop,
        }
    }
}

/// Sends the reply to a request about a view.
fn send_view_reply(connection: &mut Connection, id: u64, outcome: ViewOutcome) -> Result<(), CallError> {
    let (reply, bytes) = match outcome {
        Ok(reply) => reply,
        Err(error) => return connection.answer_view(id, Err(error), None),
    };
    if reply != ViewReply::Piece {
        return connection.answer_view(id, Ok(reply), None);
    }
    match sealed::make("sietch-view", &bytes) {
        Ok(piece) => connection.answer_view(id, Ok(reply), Some(piece.as_fd())),
        Err(error) => connection.answer_view(id, Err(ViewError::Failed(error.to_string())), None),
    }
}

/// Drops a refusal, which leaves the connection usable.
fn ignore_refusal(result: Result<(), CallError>) -> Result<(), CallError> {
    match result {
        Err(CallError::Refused(_)) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
