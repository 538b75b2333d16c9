//! One connection: frames in, answers and notices out, and the limits on its client.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use sietch_protocol::closer::limits::most_unclosed;
use sietch_protocol::closer::{Closer, PeerSocket, SentDescriptor};
use sietch_protocol::frame::{Frame, Progress, decode, encode};
use sietch_protocol::message::{ClientFrame, Request, ServerFrame};
use sietch_protocol::{FrameError, FrameReader, FrameWriter};
use tokio::io::Interest;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::limits::{OUTBOX, READ_LIMIT, REQUESTS, WRITE_LIMIT};
use super::socket::{ADMINISTRATORS, ClientSocket, refuse_connection};
use crate::allowance::{Allowance, UserAllowances};
use crate::control::{Answer, Event, Outgoing};
use crate::granted::GrantedDescriptor;
use crate::identity::Process;
use crate::log_budget;
use crate::metrics::Counters;

/// What descriptors arrive as: threads close them, wherever they are dropped.
type Reader = FrameReader<SentDescriptor>;

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

/// What all connections share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) events: mpsc::Sender<Event>,
    pub(super) counters: Rc<RefCell<Counters>>,
    /// The seconds that devices of each user have taken.
    pub(super) device_seconds: Rc<RefCell<UserAllowances>>,
    /// Closes what clients sent.
    pub(super) closer: Closer,
    /// Descriptors that may wait to be closed.
    pub(super) spare_files: usize,
}

impl Shared {
    /// Whether descriptors of this user can be closed: otherwise nothing that it sends is read.
    pub(super) fn closes(&self, uid: u32) -> bool {
        if uid == ADMINISTRATORS {
            return true;
        }
        let free = self.spare_files.saturating_sub(self.closer.waiting() + PeerSocket::waiting());
        let own = self.closer.waiting_of(uid) + PeerSocket::waiting_of(uid);
        self.closer.has_thread_for(uid) && own < most_unclosed(free)
    }
}

/// A connection that is within the limits of its user.
pub(super) struct Admitted {
    pub(super) socket: ClientSocket,
    pub(super) administers: bool,
    /// The time until it is served.
    pub(super) pause: Duration,
}

/// Serves one connection to its end.
pub(super) async fn connection(number: u64, admitted: Admitted, shared: Shared) {
    let Admitted { socket, administers, pause } = admitted;
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    let (process, pidfd) = match Process::of_peer(&socket) {
        Ok(identity) => identity,
        Err(why) => return refuse_connection(&socket, why.cause, why.fix),
    };
    let Shared { events, counters, .. } = &shared;
    let (pid, uid) = (process.pid, process.uid);
    let (outbox, notices) = mpsc::channel(OUTBOX);
    let event = Event::Connected { connection: number, process, administers, pidfd, outbox };
    if events.send(event).await.is_err() {
        return;
    }
    let end = serve_requests(number, &socket, &shared, notices).await;
    match end {
        End::Closed => {}
        End::Slow(what) => {
            counters.borrow_mut().slow_clients += 1;
            refuse_connection(&socket, what, "reconnect");
            if log_budget::admits(uid, what) {
                tracing::warn!(pid, uid, what, "client dropped");
            }
        }
        End::Broken(error) => {
            counters.borrow_mut().protocol_errors += 1;
            let error = error.to_string();
            refuse_connection(&socket, &error, "use programs of one version");
            if log_budget::admits(uid, &error) {
                tracing::warn!(pid, uid, error, "client dropped");
            }
        }
    }
    // The control task outlives the connections, except at the very end.
    let _ = events.send(Event::Disconnected { connection: number }).await;
}

async fn serve_requests(
    number: u64,
    stream: &ClientSocket,
    shared: &Shared,
    mut notices: mpsc::Receiver<Outgoing>,
) -> End {
    let mut reader = Reader::new();
    let mut allowance = Allowance::new(REQUESTS, std::time::Instant::now());
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
            arrived = read(stream, shared, &mut reader, greeted) => arrived,
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
        let pause = allowance.spend(std::time::Instant::now());
        if matches!(request, Request::AcquireVnic { .. }) {
            let debt = shared
                .device_seconds
                .borrow_mut()
                .of(stream.uid(), std::time::Instant::now())
                .debt(std::time::Instant::now());
            tokio::time::sleep(debt).await;
        }
        let (answer, answered) = oneshot::channel();
        let event = Event::Request { connection: number, request, descriptors: frame.descriptors, answer };
        if shared.events.send(event).await.is_err() {
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
    stream: &ClientSocket,
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
async fn read(
    stream: &ClientSocket,
    shared: &Shared,
    reader: &mut Reader,
    greeted: bool,
) -> Result<Option<Frame<SentDescriptor>>, End> {
    // Only a client that has begun something is on the clock: an idle connection is no fault. What
    // it has begun when this is cancelled by a notice gets a new limit; notices are few.
    let own = |descriptor| SentDescriptor::new(descriptor, stream.uid(), stream.closer());
    let mut deadline = (!greeted || reader.in_frame()).then(|| Instant::now() + READ_LIMIT);
    loop {
        // As many as a message can have may come with each read.
        if !shared.closes(stream.uid()) {
            return Err(End::Slow("it sent descriptors whose closing does not end"));
        }
        let attempt = stream.try_io(Interest::READABLE, || match reader.read_with(&**stream, &own) {
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

async fn write(
    stream: &ClientSocket,
    frame: &ServerFrame,
    descriptors: Vec<GrantedDescriptor>,
) -> Result<(), End> {
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
            let attempt = stream.try_io(Interest::WRITABLE, || match writer.write(&**stream) {
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
