//! An engine with the applications that use its VNIC, sans-I/O.
//!
//! One iteration ([`Host::poll`]):
//!
//! 1. The engine takes a batch of frames. A connection with an event becomes *active*.
//! 2. Every active connection is relayed (`host/relay.rs`): bytes from its application into the
//!    engine, bytes from the engine to its application, and the ends of both streams. Each
//!    connection, and each application, moves a bounded number of bytes.
//! 3. The engine sends for all of them and notifies the device once.
//!
//! A connection on which nothing has moved for [`ARM_DELAY`](super::limits::ARM_DELAY) is *armed*:
//! its application notifies the host from then on. It costs nothing until the application does
//! ([`Host::notified`]), or the engine has an event. When the loop is about to sleep, all are armed
//! ([`Host::prepare_sleep`]). Those that are armed only for the sleep become active again
//! afterwards ([`Host::wake`]). One notification wakes the loop, so these are armed with the number
//! of the sleep, by which each application knows whether it has already notified it. The same holds
//! the other way: an application that sleeps for many connections is notified once
//! ([`sietch_ring::stream::waiters`]).
//!
//! Flow control is that of both sides: a full ring leaves bytes in the engine, whose window closes.
//! A full send buffer leaves bytes in the ring, which fills.
//!
//! Handshakes complete without the application. An established connection waits at its listener
//! ([`Host::next_arrival`]) until the caller makes a channel for it ([`Host::attach`]). Connections
//! that wait, or were sent to the application and not yet accepted, count against the backlog; the
//! engine completes no handshake beyond that.
//!
//! Connections end as on Linux:
//!
//! | the application | the peer gets |
//! | --- | --- |
//! | shuts down sending | FIN after all data |
//! | closes, or dies, having read everything | the same; RST if it sends any more |
//! | closes, or dies, with something unread; or requests it | RST |
//!
//! | the peer | the application gets |
//! | --- | --- |
//! | FIN | end of stream after all data |
//! | RST, silence, unreachable | all data, then ECONNRESET, ETIMEDOUT, EHOSTUNREACH |
//!
//! `host/undelivered.rs` keeps the data of the last row.
//!
//! Layers, lowest first: `application` and `connection`, `state`, `undelivered`, `relay`, this
//! file.

mod application;
mod connection;
mod relay;
mod state;
#[cfg(test)]
mod tests;
mod undelivered;

use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;
use sietch_net::{CloseReason, ConnectError, Engine, Event, EventKind, FlowId};
use sietch_nic::NicQueue;
use sietch_ring::stream::Hangup;
use sietch_ring::stream::waiters::NotifiedSleeps;
use sietch_structures::Key;

use super::channel::Channel;
use super::limits::{BACKLOG, BINDINGS_PER_APPLICATION, FINAL_EMISSIONS, FLUSH_TIMEOUT};
use super::metrics::Counters;
use super::ports::{BindError, BoundName, Ports};
use application::Application;
use connection::{Connection, Phase, error_of};

pub use application::ApplicationUsage;
pub(super) use state::{Host, NewConnection};

impl<C: Channel> Host<C> {
    /// Returns the engine.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the ports and their bindings.
    pub(super) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Returns the counters and gauges.
    pub(super) fn counters(&self) -> Counters {
        Counters {
            connections: self.connections.len() as u64,
            active: self.active.len() as u64,
            bindings: self.ports.len() as u64,
            ..self.counters
        }
    }

    /// Iterates over the applications and their usage.
    pub(super) fn usages(&self) -> impl Iterator<Item = (Key, ApplicationUsage)> {
        self.applications.iter().map(|(key, application)| (key, application.usage))
    }

    /// Returns the usage of an application.
    pub(super) fn usage_of(&self, application: Key) -> Option<ApplicationUsage> {
        self.applications.get(application).map(|application| application.usage)
    }

    /// Returns the keys of an application's connections.
    pub(super) fn connections_of(&self, application: Key) -> Vec<Key> {
        let own = self.connections.iter().filter(|(_, connection)| connection.application == application);
        own.map(|(key, _)| key).collect()
    }

    /// Returns the key of the application with this id and user, and adds it if it is new. It is
    /// forgotten when it has nothing any more.
    pub(super) fn application(&mut self, id: [u8; 16], uid: u32) -> Key {
        if let Some(key) = self.by_id.get(&(id, uid)) {
            return *key;
        }
        let usage =
            ApplicationUsage { id, uid, connections: 0, accepted: 0, bindings: 0, sent: 0, received: 0 };
        let key = self.applications.insert(Application {
            usage,
            iteration: 0,
            send_budget: 0,
            receive_budget: 0,
            notified: NotifiedSleeps::default(),
            undelivered: 0,
        });
        self.by_id.insert((id, uid), key);
        key
    }

    /// Binds a name.
    ///
    /// # Errors
    /// See [`BindError`].
    pub(super) fn bind(&mut self, name: BoundName) -> Result<Key, BindError> {
        let Some(application) = self.applications.get(name.application) else {
            return Err(BindError::TooMany);
        };
        if application.usage.bindings >= BINDINGS_PER_APPLICATION {
            return Err(BindError::TooMany);
        }
        let bound = self.ports.bind(name);
        match bound {
            Ok(_) => {
                if let Some(application) = self.applications.get_mut(name.application) {
                    application.usage.bindings += 1;
                }
            }
            Err(_) => self.forget_unused(name.application),
        }
        bound
    }

    /// Listens on a bound name, or changes the backlog.
    ///
    /// # Errors
    /// [`BindError::InUse`]: another binding of that port listens.
    pub(super) fn listen(&mut self, binding: Key, backlog: u32) -> Result<(), BindError> {
        self.ports.listen(binding, backlog.clamp(1, BACKLOG))?;
        let Some(port) = self.ports.get(binding).map(|binding| binding.name.local.port()) else {
            return Ok(());
        };
        // The engine listens already if the binding is not the first one of its port.
        let listened = self.engine.listen(port, 1);
        self.arrivals.entry(binding).or_default();
        self.update_backlog(port);
        match listened {
            Ok(()) | Err(sietch_net::ListenError::InUse(_)) => Ok(()),
            Err(sietch_net::ListenError::Full) => Err(BindError::TooMany),
        }
    }

    /// Releases a name. Connections that wait there are reset; those that were delivered continue.
    pub(super) fn release(&mut self, binding: Key) {
        for arrival in self.arrivals.remove(&binding).unwrap_or_default() {
            self.binding_of_arrival.remove(&arrival.flow);
            self.abandon(arrival.flow);
        }
        let Some((released, last)) = self.ports.release(binding) else { return };
        let port = released.name.local.port();
        if last {
            self.engine.unlisten(port);
        } else {
            self.update_backlog(port);
        }
        if let Some(application) = self.applications.get_mut(released.name.application) {
            application.usage.bindings = application.usage.bindings.saturating_sub(1);
        }
        self.forget_unused(released.name.application);
    }

    /// Takes the next connection that waits at a listener. It counts against the backlog until
    /// [`Host::dequeued`].
    pub(super) fn next_arrival(&mut self, binding: Key) -> Option<NewConnection> {
        let arrival = self.arrivals.get_mut(&binding)?.pop_front()?;
        self.binding_of_arrival.remove(&arrival.flow);
        Some(arrival)
    }

    /// Takes the key of a removed connection, so that the caller can forget what it keeps under it.
    pub(super) fn next_removed(&mut self) -> Option<Key> {
        self.removed.pop()
    }

    /// Takes a listener with new arrivals.
    pub(super) fn next_ready_listener(&mut self) -> Option<Key> {
        self.ready_listeners.pop_front()
    }

    /// Puts an arrival back, as the next one.
    pub(super) fn put_back(&mut self, binding: Key, arrival: NewConnection) {
        match self.arrivals.get_mut(&binding) {
            Some(waiting) => {
                self.binding_of_arrival.insert(arrival.flow, binding);
                waiting.push_front(arrival);
            }
            None => self.abandon(arrival.flow),
        }
    }

    /// Begins a connection, from `port` or any. The caller attaches or abandons it at once.
    ///
    /// # Errors
    /// Those of connect(2).
    pub(super) fn begin(
        &mut self,
        application: Key,
        port: Option<u16>,
        remote: SocketAddr,
        now: u64,
    ) -> Result<NewConnection, Errno> {
        self.now = self.now.max(now);
        if !self.may_connect(application) {
            return Err(Errno::NOBUFS);
        }
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let begun = self.engine.connect_from(port, remote, self.now);
        let flow = begun.map_err(|cause| match cause {
            ConnectError::NoRoute(_) => Errno::NETUNREACH,
            // A listener of this VNIC would have been found before.
            ConnectError::Ourselves(_) => Errno::CONNREFUSED,
            ConnectError::NoPort(_) | ConnectError::PortInUse(_) => Errno::ADDRNOTAVAIL,
            ConnectError::NoFlow => Errno::NOBUFS,
        })?;
        let local = self.engine.flow_info(flow).map(|info| info.local).ok_or(Errno::NOBUFS)?;
        Ok(NewConnection { flow, local, remote })
    }

    /// Resets a connection for which no channel could be made.
    pub(super) fn abandon(&mut self, flow: FlowId) {
        self.forget_ended(flow);
        self.engine.abort(flow);
    }

    /// Gives a connection its channel. Returns the key by which it is notified.
    ///
    /// # Errors
    /// Returns the channel if the connection has ended meanwhile, or the application has too many.
    pub(super) fn attach(&mut self, flow: FlowId, application: Key, channel: C) -> Result<Key, C> {
        if let Some(undelivered) = self.ended.remove(&flow) {
            return self.attach_ended(undelivered, application, channel);
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
        let key = self.insert(connection);
        self.engine.set_user(flow, key.to_word());
        Ok(key)
    }

    /// Returns the channel of a connection.
    pub(super) fn channel(&mut self, key: Key) -> Option<&mut C> {
        self.connections.get_mut(key).map(|connection| &mut connection.channel)
    }

    /// Handles a notification by the application of a connection.
    pub(super) fn notified(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.channel.clear_notification();
        self.counters.notifications += 1;
        match connection.phase {
            // It is not relayed, so nothing else would end it before the engine does.
            Phase::Connecting if connection.channel.is_broken() => self.reset(key, Errno::CONNRESET),
            Phase::Closed if connection.channel.is_broken() => self.remove(key),
            _ => self.activate(key),
        }
    }

    /// Handles the hang-up of a connection: the last holder of the application's end has closed it.
    pub(super) fn hung_up(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let flow = connection.flow;
        let has_unread = !self.engine.received(flow).0.is_empty();
        match (connection.phase, connection.channel.hung_up()) {
            (Phase::Closed | Phase::Undelivered, _) => self.remove(key),
            (Phase::Connecting, _) => {
                self.engine.close(flow);
                self.remove(key);
            }
            (_, Hangup::Finished) if !has_unread => {
                if connection.phase != Phase::Flushing {
                    connection.phase = Phase::Flushing;
                    self.flushing.push_back((self.now.saturating_add(FLUSH_TIMEOUT), key));
                }
                self.activate(key);
            }
            _ => self.abort(key),
        }
    }

    /// Runs one iteration at `now`, in nanoseconds. Returns whether anything happened; then the
    /// next one should come soon.
    ///
    /// # Errors
    /// The device was removed.
    pub(super) fn poll<Q: NicQueue>(&mut self, queue: &mut Q, now: u64) -> io::Result<bool> {
        self.now = self.now.max(now);
        self.iterations += 1;
        let (received, more) = self.engine.receive(queue, now);
        let happened = self.take_events();
        let moved = self.relay_all();
        self.expire_flushing();
        self.expire_undelivered();
        self.expire_corks();
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
        match (event.kind, Key::from_word(event.user)) {
            (EventKind::Accepted { remote, .. }, _) => self.arrive(event.flow, remote),
            (EventKind::Connected, Some(key)) => self.connected(key),
            (EventKind::Readable | EventKind::PeerClosed, Some(key)) => self.activate(key),
            (EventKind::Writable, Some(key)) => {
                if let Some(connection) = self.connections.get_mut(key) {
                    connection.blocked = false;
                }
                self.activate(key);
            }
            (EventKind::Closed(reason), Some(key)) => self.over(key, reason),
            // Without a channel it still waits at its listener.
            (EventKind::Closed(reason), None) => self.keep_arrival(event.flow, reason),
            (EventKind::Datagram { .. }, _) | (_, None) => {}
        }
    }

    /// Queues a connection whose handshake is complete.
    fn arrive(&mut self, flow: FlowId, remote: SocketAddr) {
        let Some(local) = self.engine.flow_info(flow).map(|info| info.local) else { return };
        let hash = u64::from(remote.port()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let Some(binding) = self.ports.listener(local, hash) else {
            self.counters.unmatched += 1;
            self.engine.abort(flow);
            return;
        };
        if let Some(queue) = self.ports.queue(binding) {
            queue.waiting += 1;
        }
        self.update_backlog(local.port());
        let waiting = self.arrivals.entry(binding).or_default();
        waiting.push_back(NewConnection { flow, local, remote });
        self.binding_of_arrival.insert(flow, binding);
        if !self.ready_listeners.contains(&binding) {
            self.ready_listeners.push_back(binding);
        }
    }

    fn connected(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.phase = Phase::Open;
        connection.channel.establish();
        connection.channel.notify(&mut NotifiedSleeps::default());
        self.counters.connected += 1;
        self.activate(key);
    }

    /// Handles the end of a connection in the engine.
    fn over(&mut self, key: Key, reason: CloseReason) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let error = error_of(reason);
        if connection.phase == Phase::Open {
            self.counters.received_bytes += undelivered::receive_last(&mut self.engine, connection) as u64;
        }
        let flow = std::mem::replace(&mut connection.flow, FlowId::NONE);
        match connection.phase {
            Phase::Connecting => {
                connection.phase = Phase::Closed;
                connection.channel.fail(error);
                connection.channel.notify(&mut NotifiedSleeps::default());
                self.counters.failed += 1;
            }
            Phase::Open if reason == CloseReason::Normal => {
                connection.phase = Phase::Closed;
                if !std::mem::replace(&mut connection.end_delivered, true) {
                    connection.channel.finish();
                }
                connection.channel.notify(&mut NotifiedSleeps::default());
            }
            Phase::Open => {
                self.counters.reset += 1;
                self.abort_when_delivered(key, flow, error);
            }
            Phase::Flushing => self.remove(key),
            Phase::Undelivered | Phase::Closed => {}
        }
    }

    /// Resets connections whose application has closed and whose peer takes nothing for too long.
    fn expire_flushing(&mut self) {
        while let Some(&(until, key)) = self.flushing.front() {
            let there = self.connections.get(key).is_some();
            if there && until > self.now {
                break;
            }
            self.flushing.pop_front();
            if there {
                self.abort(key);
            }
        }
    }

    /// Sends what was written under a cork when its deadline has passed.
    fn expire_corks(&mut self) {
        while let Some(&(_, key)) = self.corked.front().filter(|(until, _)| *until <= self.now) {
            self.corked.pop_front();
            if let Some(connection) = self.connections.get_mut(key) {
                connection.corked = false;
                self.engine.set_corked(connection.flow, false);
            }
        }
    }

    /// Returns the flow of a connection.
    pub(super) fn flow(&self, key: Key) -> Option<FlowId> {
        self.connections.get(key).map(|connection| connection.flow)
    }

    /// Returns when the next iteration is due even without frames and notifications.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        let flushing = self.flushing.front().map(|(until, _)| *until);
        let corked = self.corked.front().map(|(until, _)| *until);
        let undelivered = self.undelivered.front().map(|(until, _)| *until);
        [self.engine.next_deadline(), flushing, corked, undelivered].into_iter().flatten().min()
    }

    /// Resets every connection, with `error` for its application, and releases every port: the VNIC
    /// was revoked, or was removed.
    pub(super) fn end(&mut self, error: Errno) {
        for key in self.ports.keys() {
            self.release(key);
        }
        self.connections.keys().collect::<Vec<_>>().into_iter().for_each(|key| self.reset(key, error));
        self.active.clear();
        self.armed_for_sleep.clear();
        self.flushing.clear();
        self.corked.clear();
        self.undelivered.clear();
    }

    /// Ends a connection for both sides: its application gets `error`, its peer a reset.
    pub(super) fn reset(&mut self, key: Key, error: Errno) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        match connection.phase {
            Phase::Connecting => {
                connection.channel.fail(error);
                connection.channel.notify(&mut NotifiedSleeps::default());
            }
            Phase::Open | Phase::Undelivered => connection.channel.abort_with(error),
            Phase::Flushing | Phase::Closed => {}
        }
        self.abort(key);
    }

    /// Ends everything of an application: its bindings, and its connections, which get `error`.
    pub(super) fn revoke(&mut self, application: Key, error: Errno) {
        let bindings: Vec<Key> = self.ports.of_application(application).map(|(key, _)| key).collect();
        bindings.into_iter().for_each(|binding| self.release(binding));
        self.connections_of(application).into_iter().for_each(|key| self.reset(key, error));
    }

    /// Sends the resets of connections that [`Host::end`] has ended, before the device is released.
    pub(super) fn send_resets<Q: NicQueue>(&mut self, queue: &mut Q) {
        for _ in 0..FINAL_EMISSIONS {
            match self.engine.emit(queue, self.now) {
                Ok(emitted) if emitted.sent > 0 || emitted.more => {}
                // All are sent; or the device was removed, and the peers time out.
                Ok(_) | Err(_) => return,
            }
        }
    }
}
