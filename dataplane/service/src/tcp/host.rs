//! An engine with the applications that live on its VNIC, sans-I/O.
//!
//! One turn ([`Host::turn`]):
//!
//! 1. The engine takes a batch of frames. What happened to a connection makes it *active*.
//! 2. Every active connection is pumped (`host/pump.rs`): bytes from its application into the
//!    engine, bytes from the engine to its application, ends both ways. So much a turn for each,
//!    and for each application.
//! 3. The engine sends for all of them and rings once.
//!
//! A connection on which nothing has moved for a while ([`super::limits::WARM`]), or at all when
//! the loop is about to sleep ([`Host::rest`]), is *armed*: its application rings from then on, and
//! it costs nothing until it does ([`Host::rung`]), or the engine has news of it. Who was armed for
//! a sleep alone is looked at again afterwards ([`Host::wake`]): one ring wakes the loop, so they
//! are armed with a number by which each application knows whether it has rung for this sleep. The
//! same the other way: an application that sleeps for many connections is rung once
//! ([`sietch_ring::stream::waiters`]).
//!
//! Flow control is what the two sides have: a full ring leaves bytes in the engine, whose window
//! closes; a full send buffer leaves bytes in the ring, which fills.
//!
//! Handshakes complete without the application. A connection that came about waits at its listener
//! ([`Host::next_arrival`]) for somebody to make a channel for it ([`Host::attach`]); those that
//! wait, and are handed over but not taken, count against the backlog, and the engine completes no
//! handshake beyond that.
//!
//! The ends, towards the network as Linux has them:
//!
//! | the application | the peer gets |
//! | --- | --- |
//! | shuts down sending | FIN after all data |
//! | closes, or dies, having read everything | the same; RST if it sends any more |
//! | closes, or dies, with something unread; or asked for it | RST |
//!
//! | the peer | the application gets |
//! | --- | --- |
//! | FIN | end of stream after all data |
//! | RST, silence, unreachable | all data, then ECONNRESET, ETIMEDOUT, EHOSTUNREACH (`host/unread.rs`) |

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;
use sietch_net::{CloseReason, ConnectError, Engine, Event, EventKind, FlowId};
use sietch_nic::NicQueue;
use sietch_ring::stream::waiters::NotifiedSleeps;

use super::channel::{Channel, Departure, Wanted};
use super::limits::{
    BACKLOG, CLAIMS_OF_APPLICATION, CONNECTIONS_OF_APPLICATION, ENDED_ARRIVALS, LAST_BYTES, LAST_TURNS,
};
use super::metrics::Counters;
use super::ports::{Name, Ports, Refused};
use super::settings::Settings;
use super::slots::Slots;

mod pump;
#[cfg(test)]
mod tests;
mod unread;

use unread::{Kept, Unread};

/// The number of a host's first sleep. A process may use several hosts, and remembers of all
/// together for which it has rung: so they count from places of their own.
fn first_sleep() -> u64 {
    RandomState::new().hash_one(()) << 32
}

/// A connection that came about and has no channel yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// To be given to [`Host::attach`].
    pub flow: FlowId,
    /// Our end.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
}

/// What an application has of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// What groups its processes.
    pub id: [u8; 16],
    /// Its user.
    pub uid: u32,
    /// Connections.
    pub connections: u32,
    /// Those of them that came to its listeners.
    pub accepted: u32,
    /// Ports reserved or listened on.
    pub claims: u32,
    /// Bytes that it has sent to the network.
    pub sent: u64,
    /// Bytes that it was given.
    pub received: u64,
}

#[derive(Debug)]
struct Application {
    share: Share,
    /// The turn for which the two below are meant: bytes it may still move, out and in.
    turn: u64,
    out: usize,
    into: usize,
    /// For which of its sleeps it was rung.
    rung: NotifiedSleeps,
    /// Bytes that are kept for it of connections that are over.
    unread: usize,
}

/// How a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Asked for.
    Connecting,
    /// There.
    Open,
    /// The application is gone; what it sent is on its way into the engine.
    Leaving,
    /// The engine is done with it; the application has still to read what came before that
    /// (`host/unread.rs`).
    Unread,
    /// The engine is done with it; the application has still to let go.
    Over,
}

#[derive(Debug)]
struct Connection<C> {
    channel: C,
    flow: FlowId,
    application: u64,
    phase: Phase,
    /// In the list of those looked at in every turn.
    active: bool,
    /// What was asked of the channel.
    armed: Wanted,
    /// The engine took less than there was: it will say when it takes more.
    blocked: bool,
    /// The application's ring was full.
    full: bool,
    /// Our FIN is queued.
    send_ended: bool,
    /// The application was told that the peer has ended.
    told_end: bool,
    /// When something last moved.
    moved_at: u64,
    /// Its socket options, once it has set any.
    settings: Option<Box<Settings>>,
    /// Something was written since it was corked: there is a time at which that goes.
    corked: bool,
    /// It came to a listener.
    accepted: bool,
    /// Of one that is over.
    unread: Option<Box<Unread>>,
}

/// See the module.
#[derive(Debug)]
pub struct Host<C> {
    engine: Engine,
    ports: Ports,
    connections: Slots<Connection<C>>,
    applications: Slots<Application>,
    by_id: HashMap<([u8; 16], u32), u64>,
    /// Arrivals by claim.
    arrivals: BTreeMap<u64, VecDeque<Arrival>>,
    /// Claims at which somebody has arrived since the last look.
    news: VecDeque<u64>,
    active: Vec<u64>,
    /// Those that are armed for the time of a sleep only.
    resting: Vec<u64>,
    /// The number of the last sleep.
    sleep: u64,
    /// Those whose application is gone, and until when they may take; in the order of that.
    leaving: VecDeque<(u64, u64)>,
    /// Those that hold something back under a cork, and until when; in the order of that.
    corked: VecDeque<(u64, u64)>,
    /// Where unread bytes are kept, and until when; in the order of that.
    unread: VecDeque<(u64, Kept)>,
    /// Bytes that are kept of all those.
    unread_bytes: usize,
    /// How many of those have bytes.
    unread_count: usize,
    /// The claims at which arrivals wait.
    arrived_at: HashMap<FlowId, u64>,
    /// What is left of arrivals that ended before they were accepted.
    ended: HashMap<FlowId, Unread>,
    /// How many those may be.
    most_ended: usize,
    events: Vec<Event>,
    /// Connections that are over, until somebody takes note.
    removed: Vec<u64>,
    now: u64,
    turns: u64,
    counters: Counters,
}

impl<C: Channel> Host<C> {
    /// Nobody is there yet.
    pub fn new(engine: Engine, ports: Ports) -> Self {
        Self {
            engine,
            ports,
            connections: Slots::default(),
            applications: Slots::default(),
            by_id: HashMap::new(),
            arrivals: BTreeMap::new(),
            news: VecDeque::new(),
            active: Vec::new(),
            resting: Vec::new(),
            sleep: first_sleep(),
            leaving: VecDeque::new(),
            corked: VecDeque::new(),
            unread: VecDeque::new(),
            unread_bytes: 0,
            unread_count: 0,
            arrived_at: HashMap::new(),
            ended: HashMap::new(),
            most_ended: ENDED_ARRIVALS,
            events: Vec::new(),
            removed: Vec::new(),
            now: 0,
            turns: 0,
            counters: Counters::default(),
        }
    }

    /// The engine, for who looks inside.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Who has which port.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        Counters {
            connections: self.connections.len() as u64,
            active: self.active.len() as u64,
            claims: self.ports.len() as u64,
            ..self.counters
        }
    }

    /// What each application has.
    pub fn shares(&self) -> impl Iterator<Item = (u64, Share)> {
        self.applications.iter().map(|(key, application)| (key, application.share))
    }

    /// What an application has.
    pub fn application_of(&self, application: u64) -> Option<Share> {
        self.applications.get(application).map(|application| application.share)
    }

    /// The connections of an application.
    pub fn connections_of(&self, application: u64) -> Vec<u64> {
        let own = self.connections.iter().filter(|(_, connection)| connection.application == application);
        own.map(|(key, _)| key).collect()
    }

    /// The application of that name and user; it is forgotten when it has nothing any more.
    pub fn application(&mut self, id: [u8; 16], uid: u32) -> u64 {
        if let Some(key) = self.by_id.get(&(id, uid)) {
            return *key;
        }
        let share = Share { id, uid, connections: 0, accepted: 0, claims: 0, sent: 0, received: 0 };
        let rung = NotifiedSleeps::default();
        let key = self.applications.insert(Application { share, turn: 0, out: 0, into: 0, rung, unread: 0 });
        self.by_id.insert((id, uid), key);
        key
    }

    fn settle_application(&mut self, key: u64) {
        let Some(application) = self.applications.get(key) else { return };
        let share = application.share;
        if share.connections == 0 && share.claims == 0 {
            self.by_id.remove(&(share.id, share.uid));
            self.applications.remove(key);
        }
    }

    /// Reserves a name.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn bind(&mut self, name: Name) -> Result<u64, Refused> {
        let Some(application) = self.applications.get(name.application) else { return Err(Refused::TooMany) };
        if application.share.claims >= CLAIMS_OF_APPLICATION {
            return Err(Refused::TooMany);
        }
        let claimed = self.ports.claim(name);
        match claimed {
            Ok(_) => {
                if let Some(application) = self.applications.get_mut(name.application) {
                    application.share.claims += 1;
                }
            }
            Err(_) => self.settle_application(name.application),
        }
        claimed
    }

    /// Listens on a reserved name, or changes the backlog.
    ///
    /// # Errors
    /// [`Refused::InUse`]: another claim of that port is listened on.
    pub fn listen(&mut self, claim: u64, backlog: u32) -> Result<(), Refused> {
        self.ports.listen(claim, backlog.clamp(1, BACKLOG))?;
        let Some(port) = self.ports.get(claim).map(|claim| claim.name.local.port()) else { return Ok(()) };
        // It is listened on already if the claim is not the first one of its port.
        let listened = self.engine.listen(port, 1);
        self.arrivals.entry(claim).or_default();
        self.set_backlog(port);
        match listened {
            Ok(()) | Err(sietch_net::ListenError::InUse(_)) => Ok(()),
            Err(sietch_net::ListenError::Full) => Err(Refused::TooMany),
        }
    }

    fn set_backlog(&mut self, port: u16) {
        self.engine.set_backlog(port, self.ports.room(port));
    }

    /// Gives a name back. Connections that wait there are reset; those that were handed over go on.
    pub fn release(&mut self, claim: u64) {
        for arrival in self.arrivals.remove(&claim).unwrap_or_default() {
            self.arrived_at.remove(&arrival.flow);
            self.abandon(arrival.flow);
        }
        let Some((released, last)) = self.ports.release(claim) else { return };
        let port = released.name.local.port();
        if last {
            self.engine.unlisten(port);
        } else {
            self.set_backlog(port);
        }
        if let Some(application) = self.applications.get_mut(released.name.application) {
            application.share.claims = application.share.claims.saturating_sub(1);
        }
        self.settle_application(released.name.application);
    }

    /// The next connection that waits at a listener. It counts against the backlog until
    /// [`Host::taken`].
    pub fn next_arrival(&mut self, claim: u64) -> Option<Arrival> {
        let arrival = self.arrivals.get_mut(&claim)?.pop_front()?;
        self.arrived_at.remove(&arrival.flow);
        Some(arrival)
    }

    /// A connection that is over since the last look: whoever keeps something under its key forgets
    /// it.
    pub fn next_removed(&mut self) -> Option<u64> {
        self.removed.pop()
    }

    /// A listener at which somebody has arrived since this was last asked about it.
    pub fn next_news(&mut self) -> Option<u64> {
        self.news.pop_front()
    }

    /// Puts an arrival back, as the next one.
    pub fn put_back(&mut self, claim: u64, arrival: Arrival) {
        match self.arrivals.get_mut(&claim) {
            Some(waiting) => {
                self.arrived_at.insert(arrival.flow, claim);
                waiting.push_front(arrival);
            }
            None => self.abandon(arrival.flow),
        }
    }

    /// One connection less waits at a listener: it was handed over, or is gone.
    pub fn taken(&mut self, claim: u64) {
        if let Some(queue) = self.ports.queue(claim) {
            queue.waiting = queue.waiting.saturating_sub(1);
        }
        if let Some(port) = self.ports.get(claim).map(|claim| claim.name.local.port()) {
            self.set_backlog(port);
        }
    }

    /// Whether an application may have one more connection.
    pub fn may_connect(&self, application: u64) -> bool {
        self.applications
            .get(application)
            .is_some_and(|application| application.share.connections < CONNECTIONS_OF_APPLICATION)
    }

    /// Begins a connection, from `port` or any. To be attached, or abandoned, at once.
    ///
    /// # Errors
    /// As connect(2) has them.
    pub fn begin(
        &mut self,
        application: u64,
        port: Option<u16>,
        remote: SocketAddr,
        now: u64,
    ) -> Result<Arrival, Errno> {
        self.now = self.now.max(now);
        if !self.may_connect(application) {
            return Err(Errno::NOBUFS);
        }
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let begun = self.engine.connect_from(port, remote, self.now);
        let flow = begun.map_err(|cause| match cause {
            ConnectError::NoRoute(_) => Errno::NETUNREACH,
            // Who listens there was looked for before.
            ConnectError::Ourselves(_) => Errno::CONNREFUSED,
            ConnectError::NoPort(_) | ConnectError::PortInUse(_) => Errno::ADDRNOTAVAIL,
            ConnectError::NoFlow => Errno::NOBUFS,
        })?;
        let local = self.engine.flow_info(flow).map(|info| info.local).ok_or(Errno::NOBUFS)?;
        Ok(Arrival { flow, local, remote })
    }

    /// Resets a connection for which no channel could be made.
    pub fn abandon(&mut self, flow: FlowId) {
        self.forget_ended(flow);
        self.engine.abort(flow);
    }

    /// Gives a connection its channel: one that has arrived, or one that was begun. Returns the key
    /// by which it is rung, or the channel if the connection has ended meanwhile or the application
    /// has too many.
    ///
    /// # Errors
    /// The channel.
    pub fn attach(&mut self, flow: FlowId, application: u64, channel: C) -> Result<u64, C> {
        if let Some(unread) = self.ended.remove(&flow) {
            return self.attach_ended(unread, application, channel);
        }
        let state = self.engine.flow_info(flow).map(|info| info.state);
        let there = self.may_connect(application) && !self.engine.is_over(flow);
        let Some(state) = state.filter(|_| there) else {
            self.engine.abort(flow);
            return Err(channel);
        };
        let connecting = state == sietch_net::State::SynSent;
        let phase = if connecting { Phase::Connecting } else { Phase::Open };
        let connection = Connection {
            accepted: !connecting,
            ..Connection::new(channel, flow, application, phase, self.now)
        };
        let key = self.attached(connection);
        self.engine.set_user(flow, key);
        Ok(key)
    }

    fn attached(&mut self, connection: Connection<C>) -> u64 {
        let (application, accepted) = (connection.application, connection.accepted);
        let key = self.connections.insert(connection);
        if let Some(application) = self.applications.get_mut(application) {
            application.share.connections += 1;
            application.share.accepted += u32::from(accepted);
        }
        if accepted {
            self.counters.accepted += 1;
            self.activate(key);
        }
        key
    }

    /// The channel of a connection, for who has to tell its application something.
    pub fn channel(&mut self, key: u64) -> Option<&mut C> {
        self.connections.get_mut(key).map(|connection| &mut connection.channel)
    }

    /// The application of a connection has rung.
    pub fn rung(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.channel.answer();
        self.counters.rings += 1;
        self.activate(key);
    }

    /// The last holder of an application's end is gone.
    pub fn departed(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let flow = connection.flow;
        let unread = !self.engine.received(flow).0.is_empty();
        match (connection.phase, connection.channel.departed()) {
            (Phase::Over | Phase::Unread, _) => self.remove(key),
            (Phase::Connecting, _) => {
                self.engine.close(flow);
                self.remove(key);
            }
            (_, Departure::Finished) if !unread => {
                if connection.phase != Phase::Leaving {
                    connection.phase = Phase::Leaving;
                    self.leaving.push_back((self.now.saturating_add(LAST_BYTES), key));
                }
                self.activate(key);
            }
            _ => self.abort(key),
        }
    }

    /// Resets a connection's peer and forgets it.
    fn abort(&mut self, key: u64) {
        let Some(connection) = self.connections.get(key) else { return };
        self.counters.aborted += 1;
        self.engine.abort(connection.flow);
        self.remove(key);
    }

    fn remove(&mut self, key: u64) {
        let Some(connection) = self.connections.remove(key) else { return };
        self.removed.push(key);
        if let Some(unread) = &connection.unread {
            self.drop_unread(unread);
        }
        if let Some(application) = self.applications.get_mut(connection.application) {
            application.share.connections = application.share.connections.saturating_sub(1);
            let accepted = u32::from(connection.accepted);
            application.share.accepted = application.share.accepted.saturating_sub(accepted);
        }
        self.settle_application(connection.application);
    }

    /// Has a connection looked at in every turn from now on.
    fn activate(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.active || matches!(connection.phase, Phase::Connecting | Phase::Over) {
            return;
        }
        connection.active = true;
        connection.moved_at = self.now;
        connection.disarm();
        self.active.push(key);
    }

    /// One turn at `now`, in nanoseconds. Says whether anything happened; then the next one should
    /// come soon.
    ///
    /// # Errors
    /// The device is gone.
    pub fn turn<Q: NicQueue>(&mut self, queue: &mut Q, now: u64) -> io::Result<bool> {
        self.now = self.now.max(now);
        self.turns += 1;
        let (received, more) = self.engine.receive(queue, now);
        let happened = self.take_events();
        let moved = self.pump_all();
        self.end_those_that_linger();
        self.end_those_unread();
        self.uncork_those_that_waited();
        let emitted = self.engine.emit(queue, now)?;
        Ok(received > 0 || more || happened || moved || emitted.sent > 0 || emitted.more)
    }

    fn take_events(&mut self) -> bool {
        let mut events = std::mem::take(&mut self.events);
        self.engine.take_events(&mut events);
        let happened = !events.is_empty();
        for event in events.drain(..) {
            self.handle(event);
        }
        self.events = events;
        happened
    }

    fn handle(&mut self, event: Event) {
        match event.kind {
            EventKind::Accepted { remote, .. } => self.arrive(event.flow, remote),
            EventKind::Connected => self.connected(event.user),
            EventKind::Readable | EventKind::PeerClosed => self.activate(event.user),
            EventKind::Writable => {
                if let Some(connection) = self.connections.get_mut(event.user) {
                    connection.blocked = false;
                }
                self.activate(event.user);
            }
            EventKind::Closed(reason) if event.user == 0 => self.keep_arrival(event.flow, reason),
            EventKind::Closed(reason) => self.over(event.user, reason),
            EventKind::Datagram { .. } => {}
        }
    }

    /// A handshake is complete.
    fn arrive(&mut self, flow: FlowId, remote: SocketAddr) {
        let Some(local) = self.engine.flow_info(flow).map(|info| info.local) else { return };
        let hash = u64::from(remote.port()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let Some(claim) = self.ports.listener(local, hash) else {
            self.counters.unwanted += 1;
            self.engine.abort(flow);
            return;
        };
        if let Some(queue) = self.ports.queue(claim) {
            queue.waiting += 1;
        }
        self.set_backlog(local.port());
        let waiting = self.arrivals.entry(claim).or_default();
        waiting.push_back(Arrival { flow, local, remote });
        self.arrived_at.insert(flow, claim);
        if !self.news.contains(&claim) {
            self.news.push_back(claim);
        }
    }

    fn connected(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.phase = Phase::Open;
        connection.channel.establish();
        connection.channel.ring(&mut NotifiedSleeps::default());
        self.counters.connected += 1;
        self.activate(key);
    }

    /// The engine is done with a connection.
    fn over(&mut self, key: u64, reason: CloseReason) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let error = unread::error_of(reason);
        if connection.phase == Phase::Open {
            self.counters.received_bytes += pump::receive_last(&mut self.engine, connection) as u64;
        }
        let flow = std::mem::replace(&mut connection.flow, FlowId::NONE);
        match connection.phase {
            Phase::Connecting => {
                connection.phase = Phase::Over;
                connection.channel.fail(error);
                connection.channel.ring(&mut NotifiedSleeps::default());
                self.counters.failed += 1;
            }
            Phase::Open if reason == CloseReason::Normal => {
                connection.phase = Phase::Over;
                if !std::mem::replace(&mut connection.told_end, true) {
                    connection.channel.finish();
                }
                connection.channel.ring(&mut NotifiedSleeps::default());
            }
            Phase::Open => {
                self.counters.reset += 1;
                self.break_off_when_read(key, flow, error);
            }
            Phase::Leaving => self.remove(key),
            Phase::Unread | Phase::Over => {}
        }
    }

    /// Those whose application is gone, and whose peer takes nothing, do not stay for ever.
    fn end_those_that_linger(&mut self) {
        while let Some(&(until, key)) = self.leaving.front() {
            let there = self.connections.get(key).is_some();
            if there && until > self.now {
                break;
            }
            self.leaving.pop_front();
            if there {
                self.abort(key);
            }
        }
    }

    /// What was written under a cork goes after a while, whatever the application does.
    fn uncork_those_that_waited(&mut self) {
        while let Some(&(until, key)) = self.corked.front().filter(|(until, _)| *until <= self.now) {
            debug_assert!(until <= self.now);
            self.corked.pop_front();
            if let Some(connection) = self.connections.get_mut(key) {
                connection.corked = false;
                self.engine.set_corked(connection.flow, false);
            }
        }
    }

    /// The flow of a connection, for who has to tell of it.
    pub fn flow(&self, key: u64) -> Option<FlowId> {
        self.connections.get(key).map(|connection| connection.flow)
    }

    /// When the next turn is due even if nothing arrives and nobody rings.
    pub fn next_deadline(&self) -> Option<u64> {
        let leaving = self.leaving.front().map(|(until, _)| *until);
        let corked = self.corked.front().map(|(until, _)| *until);
        let unread = self.unread.front().map(|(until, _)| *until);
        [self.engine.next_deadline(), leaving, corked, unread].into_iter().flatten().min()
    }

    /// Resets every connection, tells every application `error`, and gives every port back: the
    /// VNIC was revoked, or is gone.
    pub fn end(&mut self, error: Errno) {
        for key in self.ports.keys() {
            self.release(key);
        }
        self.connections.keys().into_iter().for_each(|key| self.cut(key, error));
        self.active.clear();
        self.resting.clear();
        self.leaving.clear();
        self.corked.clear();
        self.unread.clear();
    }

    /// Ends a connection, both ways: its application hears `error`.
    pub fn cut(&mut self, key: u64, error: Errno) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        match connection.phase {
            Phase::Connecting => {
                connection.channel.fail(error);
                connection.channel.ring(&mut NotifiedSleeps::default());
            }
            Phase::Open | Phase::Unread => connection.channel.break_off(error),
            Phase::Leaving | Phase::Over => {}
        }
        self.abort(key);
    }

    /// Takes everything from an application: its ports, and its connections, which end with
    /// `error`.
    pub fn revoke(&mut self, application: u64, error: Errno) {
        let claims: Vec<u64> = self.ports.of_application(application).map(|(key, _)| key).collect();
        claims.into_iter().for_each(|claim| self.release(claim));
        self.connections_of(application).into_iter().for_each(|key| self.cut(key, error));
    }

    /// Sends what is due to be sent: the resets of connections that [`Host::end`] has ended, before
    /// the device is let go.
    pub fn send_last<Q: NicQueue>(&mut self, queue: &mut Q) {
        for _ in 0..LAST_TURNS {
            match self.engine.emit(queue, self.now) {
                Ok(emitted) if emitted.sent > 0 || emitted.more => {}
                // All sent; or the device is gone, and the peers find out by themselves.
                Ok(_) | Err(_) => return,
            }
        }
    }
}
