//! The thread that has the digest and the table of leases.
//!
//! 1. It takes what clients say in the order of arrival, and hands it to
//!    [`SharedDigest`].
//! 2. Then it digests what clients wait for, and one batch of each log that is due: its client
//!    waits for room, a quarter of it is full, or its records are old ([`LINGER`]).
//!    When nothing was digested for a while, it gives back room that the last batches needed
//!    meanwhile: what a program removed is room for data without a further change.
//! 3. Then it says to each client what is new: first what was committed, then grants and
//!    revocations, so that a client that gets a lease has the root that goes with it.
//! 4. What it says goes to a queue of bounded length. A client whose queue is full does not read:
//!    its connection is closed, and its log digested.
//! 5. It does what the thread that moves data asks for, once each time ([`Moving`]): that takes
//!    some milliseconds at most.
//! 6. If a medium fails, all clients get to know, and the thread ends.
//!
//! What it must never do: wait for a client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::{Duration, Instant};

use sietch_disk::AreaQueue;
use sietch_disk::nvm::Mapped;
use sietch_fs::LogState;
use sietch_fs::client::Message;
use sietch_fs::digest::DigestError;
use sietch_fs::inode::InodeNumber;
use sietch_fs::lease::{ClientNumber, Release};
use sietch_fs::shared::SharedDigest;

use super::fence::Fence;
use super::messages::{Notice, Progress, Request, mode};
use super::moving::Moving;
use crate::fs::pacing::Speed;
use crate::fs::requests::Digesting as _;

/// How long records gather: long enough for a file that is written, synchronised and removed.
const LINGER: Duration = Duration::from_millis(500);
/// The part of a log at which it is digested at once.
const FULL_ENOUGH: u64 = 4;
/// Inode numbers that a client gets at a time.
const NUMBERS: u64 = 1 << 12;
/// How long the thread waits for clients that still read blocks which it needs.
const HELD_PAUSE: Duration = Duration::from_millis(2);
/// Requests that wait for the thread, and that it takes before anything else is done: so a client
/// that answered in time is not taken for one that did not.
pub(super) const REQUESTS: usize = 1024;
/// Records of a batch: clients wait for leases meanwhile.
const BATCH_RECORDS: u64 = 4096;

/// What the thread is asked to do.
pub(super) enum Event {
    /// A client comes.
    Join(Joining),
    /// A client says something.
    Request(ClientNumber, Request),
    /// A client is gone.
    Gone(ClientNumber, SyncSender<()>),
    /// The mover asks for something.
    Move,
    /// The service ends.
    End,
}

/// A client that comes.
pub(super) struct Joining {
    pub client: ClientNumber,
    /// Its process.
    pub process: i32,
    pub memory: Mapped,
    pub log_bytes: u64,
    pub seed: u64,
    pub fence: Fence,
    /// Where notices go.
    pub notices: SyncSender<Notice>,
    /// Closes the connection.
    pub hang_up: Box<dyn Fn() + Send>,
    pub answer: SyncSender<Result<(LogState, Progress), String>>,
}

struct Peer {
    process: i32,
    notices: SyncSender<Notice>,
    hang_up: Box<dyn Fn() + Send>,
    log_bytes: u64,
    /// What was reported to it last.
    reported: Option<Progress>,
    returns: u64,
    logged: u64,
    is_waiting: bool,
    /// Since when its log has records that are not digested.
    since: Option<Instant>,
    speed: Speed,
    /// When a batch of its log was committed last, if the next one was due then, and the position
    /// up to which the log was read.
    committed: Option<(Instant, u64)>,
    /// It takes no notices any more, or knows that it ended.
    is_closed: bool,
}

/// The module's header describes it.
pub(super) struct Hub {
    shared: SharedDigest<AreaQueue, Mapped>,
    peers: BTreeMap<ClientNumber, Peer>,
    /// Clients that are gone and whose end could not be finished; the sessions that wait for it.
    dying: Vec<(ClientNumber, SyncSender<()>)>,
    moving: Arc<Moving>,
    begin: Instant,
    is_held: bool,
    /// The generation of the pool, and since when it is that.
    generation: (u64, Instant),
}

impl Hub {
    pub(super) fn new(mut shared: SharedDigest<AreaQueue, Mapped>, moving: Arc<Moving>) -> Self {
        shared.digest_mut().set_batch_records(BATCH_RECORDS);
        let (peers, dying, begin) = (BTreeMap::new(), Vec::new(), Instant::now());
        Self { shared, peers, dying, moving, begin, is_held: false, generation: (0, begin) }
    }

    /// Serves until it is asked to end.
    ///
    /// # Errors
    /// Why it cannot go on. All clients know.
    pub(super) fn run(mut self, events: &Receiver<Event>) -> Result<(), String> {
        let result = self.serve(events).map_err(|error| error.to_string());
        self.moving.requests().close();
        let cause = match &result {
            Ok(()) => "its service has ended".to_owned(),
            Err(cause) => format!("nothing is digested any more: {cause}"),
        };
        let ended = self.end(&cause);
        result.and(ended.map_err(|error| error.to_string()))
    }

    fn serve(&mut self, events: &Receiver<Event>) -> Result<(), DigestError> {
        loop {
            let event = events.recv_timeout(self.patience());
            // Before anything is done: deadlines count from then.
            let now = u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.shared.set_time(now);
            match event {
                Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Ok(event) => {
                    self.handle(event)?;
                    for _ in 0..REQUESTS {
                        match events.try_recv() {
                            Ok(Event::End) => return Ok(()),
                            Ok(event) => self.handle(event)?,
                            Err(_) => break,
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.pass(now)?;
        }
    }

    /// Does what is due at `now`, after what clients have said.
    fn pass(&mut self, now: u64) -> Result<(), DigestError> {
        self.is_held = false;
        // Clients know what they are asked before the time for their answer begins.
        self.notify();
        self.shared.tick(now)?;
        let stepped = self.shared.step();
        let has_stepped = matches!(stepped, Ok(true));
        self.held(stepped.map(drop))?;
        self.digest_due()?;
        self.bury()?;
        self.give_back()?;
        self.serve_mover(has_stepped);
        self.notify();
        Ok(())
    }

    /// How long nothing is to be done if no client says anything.
    fn patience(&self) -> Duration {
        if self.shared.has_steps() && !self.is_held {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let elapsed = self.begin.elapsed();
        let timer = self.shared.next_time().map(|time| Duration::from_nanos(time).saturating_sub(elapsed));
        let old = self.peers.values().filter_map(|peer| peer.since).min();
        let old = old.map(|since| (since + LINGER).saturating_duration_since(now));
        let may_give = !self.is_held && self.shared.may_give_back();
        let quiet = may_give.then(|| (self.generation.1 + LINGER).saturating_duration_since(now));
        let waits = self.peers.values().any(|peer| peer.is_waiting) || !self.dying.is_empty() || self.is_held;
        let waits = waits.then_some(HELD_PAUSE);
        [timer, old, quiet, waits].into_iter().flatten().min().unwrap_or(Duration::from_secs(3600))
    }

    fn handle(&mut self, event: Event) -> Result<(), DigestError> {
        match event {
            Event::Join(joining) => self.join(joining),
            Event::Request(client, request) => self.request(client, request),
            Event::Gone(client, done) => {
                self.peers.remove(&client);
                self.dying.push((client, done));
                Ok(())
            }
            Event::Move | Event::End => Ok(()),
        }
    }

    /// Does what the mover asks for.
    fn serve_mover(&mut self, has_stepped: bool) {
        let is_busy = has_stepped || self.is_held || self.peers.values().any(|peer| peer.is_waiting);
        if self.moving.serve(self.shared.digest_mut(), is_busy, self.is_held) {
            self.shared.has_changed();
        }
    }

    fn join(&mut self, joining: Joining) -> Result<(), DigestError> {
        let Joining { client, process, memory, log_bytes, seed, mut fence, notices, hang_up, answer } =
            joining;
        let state = self.shared.join(client, memory, seed)?;
        self.shared.set_fence(client, Box::new(move || fence.set()));
        let mut peer = Peer {
            process,
            notices,
            hang_up,
            log_bytes,
            reported: None,
            returns: 0,
            logged: state.position,
            is_waiting: false,
            since: None,
            speed: Speed::default(),
            committed: None,
            is_closed: false,
        };
        match progress_of(&self.shared, client, &peer) {
            Some(progress) => {
                peer.reported = Some(progress.clone());
                self.peers.insert(client, peer);
                // A session that is gone says so by an event of its own.
                let _ = answer.try_send(Ok((state, progress)));
            }
            None => drop(answer.try_send(Err("it was ended at once".to_owned()))),
        }
        Ok(())
    }

    fn request(&mut self, client: ClientNumber, request: Request) -> Result<(), DigestError> {
        // Nothing is taken of a client that was ended.
        let is_served = self.shared.is_served(client);
        let Some(peer) = self.peers.get_mut(&client).filter(|_| is_served) else { return Ok(()) };
        match request {
            Request::Logged(position) | Request::Wait(position) => {
                peer.is_waiting |= matches!(request, Request::Wait(_));
                peer.logged = peer.logged.max(position);
                self.shared.logged(client, peer.logged);
                Ok(())
            }
            Request::Reads(generation) => {
                self.shared.reads(client, generation);
                Ok(())
            }
            Request::Numbers => {
                let numbers = self.shared.inode_numbers(client, NUMBERS)?;
                peer.say(Notice::Numbers { start: numbers.start, end: numbers.end });
                Ok(())
            }
            Request::Lease { inode, exclusive } => {
                self.shared.request_lease(client, InodeNumber(inode), mode(exclusive))
            }
            Request::Cancel(inode) => self.shared.cancel_lease(client, InodeNumber(inode)),
            Request::Release { inode, serial, shares, position, referenced } => {
                let inode = InodeNumber(inode);
                let release = Release { inode, serial, shares, position, is_referenced: referenced };
                // The client counts it as a report: no other one may follow.
                peer.logged = peer.logged.max(position);
                self.shared.logged(client, peer.logged);
                self.shared.release_lease(client, release)
            }
            Request::Closed(inode) => {
                self.shared.unreferenced(client, InodeNumber(inode));
                Ok(())
            }
            Request::Room(blocks) => self.shared.request_room(client, blocks),
            Request::ReturnRoom(keeps) => {
                peer.returns += 1;
                self.shared.return_room(client, keeps)
            }
            // Its session answers it.
            Request::Probe => Ok(()),
        }
    }

    /// Digests one batch of each log that is due.
    fn digest_due(&mut self) -> Result<(), DigestError> {
        let now = Instant::now();
        let clients: Vec<_> = self.peers.keys().copied().collect();
        for client in clients {
            let is_behind = self.shared.is_behind(client);
            let read = self.shared.progress(client).map_or(0, |progress| progress.read);
            let Some(peer) = self.peers.get_mut(&client) else { continue };
            if !is_behind {
                (peer.since, peer.is_waiting, peer.committed) = (None, false, None);
                continue;
            }
            let since = *peer.since.get_or_insert(now);
            let is_full = peer.logged.saturating_sub(read) >= peer.log_bytes / FULL_ENOUGH;
            if peer.is_waiting || is_full || now - since >= LINGER {
                let (begun, from) = peer.committed.unwrap_or_else(|| (Instant::now(), read));
                let digested = self.shared.digest(client).map(drop);
                self.held(digested)?;
                self.committed(client, from, begun);
            } else {
                peer.committed = None;
            }
        }
        Ok(())
    }

    /// A batch of a client's log was committed, which was read up to `read` when the one before it
    /// was committed, or this one begun: what other logs took in between counts.
    fn committed(&mut self, client: ClientNumber, read: u64, begun: Instant) {
        let after = self.shared.progress(client).map_or(read, |progress| progress.read);
        if let Some(peer) = self.peers.get_mut(&client)
            && after > read
        {
            let now = Instant::now();
            peer.speed.took(after - read, now - begun);
            peer.committed = Some((now, after));
        }
    }

    /// Gives room back when nothing was committed for a while: the next batch would take it again.
    fn give_back(&mut self) -> Result<(), DigestError> {
        let generation = self.shared.digest_mut().root().generation;
        if generation != self.generation.0 {
            self.generation = (generation, Instant::now());
        }
        if self.generation.1.elapsed() < LINGER {
            return Ok(());
        }
        let given = self.shared.give_back();
        self.held(given)
    }

    /// Goes on with the ends of clients that are gone.
    fn bury(&mut self) -> Result<(), DigestError> {
        for (client, done) in std::mem::take(&mut self.dying) {
            match self.shared.died(client) {
                // The session waits for it, so that its number is free again.
                Ok(()) => drop(done.try_send(())),
                Err(DigestError::Held) => self.dying.push((client, done)),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Blocks are still read by clients, which were asked to go on: it is tried again.
    fn held(&mut self, result: Result<(), DigestError>) -> Result<(), DigestError> {
        match result {
            Err(DigestError::Held) => {
                self.is_held = true;
                Ok(())
            }
            other => other,
        }
    }

    /// Says to clients what is new.
    fn notify(&mut self) {
        for (client, peer) in self.peers.iter_mut().filter(|(_, peer)| !peer.is_closed) {
            if let Some(cause) = self.shared.ended(*client) {
                tracing::warn!("client {} (process {}) is ended: {cause}", client.0, peer.process);
                peer.say(Notice::Ended(cause.to_owned()));
                peer.is_closed = true;
                continue;
            }
            let progress = progress_of(&self.shared, *client, peer);
            if progress.is_some() && progress != peer.reported {
                peer.reported.clone_from(&progress);
                progress.into_iter().for_each(|progress| peer.say(Notice::Progress(progress)));
            }
            while let Some(message) = self.shared.message(*client) {
                peer.say(match message {
                    Message::Granted(grant) => Notice::granted(grant),
                    Message::Revoked(revocation) => Notice::revoked(revocation),
                    Message::Refused { inode, errno } => Notice::refused(inode, errno),
                    Message::Room(is_there) => Notice::Room(is_there),
                    Message::RecallRoom => Notice::RecallRoom,
                    Message::Advance => Notice::Advance,
                });
            }
        }
    }

    /// Ends all clients, and digests what they logged.
    fn end(&mut self, cause: &str) -> Result<(), DigestError> {
        for peer in self.peers.values_mut() {
            peer.say(Notice::Ended(cause.to_owned()));
        }
        let mut all: Vec<_> = self.peers.keys().copied().collect();
        all.extend(self.dying.iter().map(|(client, _)| *client));
        let mut first = Ok(());
        // A log may need blocks that are free when all others have ended.
        all.retain(|client| match self.shared.died(*client) {
            Ok(()) => false,
            Err(DigestError::Held) => true,
            Err(error) => {
                first = std::mem::replace(&mut first, Ok(())).and(Err(error));
                false
            }
        });
        for client in all {
            first = first.and(self.shared.died(client));
        }
        first
    }
}

impl Peer {
    fn say(&mut self, notice: Notice) {
        if self.is_closed {
            return;
        }
        match self.notices.try_send(notice) {
            Ok(()) => return,
            Err(TrySendError::Full(_)) => {
                tracing::warn!("the client of process {} is ended: it reads no notices", self.process);
            }
            // Its connection is gone.
            Err(TrySendError::Disconnected(_)) => {}
        }
        // Its session ends, and with that the client.
        self.is_closed = true;
        (self.hang_up)();
    }
}

/// What a client is to know.
fn progress_of(
    shared: &SharedDigest<AreaQueue, Mapped>,
    client: ClientNumber,
    peer: &Peer,
) -> Option<Progress> {
    let progress = shared.progress(client)?;
    Some(Progress {
        root: progress.root.to_bytes().to_vec(),
        digested: progress.digested,
        read: progress.read,
        budget: progress.budget,
        returns: peer.returns,
        speed: peer.speed.nanos(),
    })
}

#[cfg(test)]
mod tests;
