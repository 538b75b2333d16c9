//! Relays bytes between applications and engine, and arms connections that are idle.
//!
//! 1. Out: pieces of the application's ring go into the engine's send buffer, copied once. If the
//!    buffer takes less than there is, the connection is *blocked* until the engine has room;
//!    further bytes stay in the ring.
//! 2. In: what the engine has received in order goes into the application's ring, and is consumed.
//!    If the ring is *full*, the rest stays in the engine.
//! 3. Ends follow the bytes: FIN when everything that was sent before it was taken, end of stream
//!    when everything received was delivered.
//! 4. Before that, the engine gets the socket options that the application has changed. Bytes that
//!    were written under a cork get a deadline.
//! 5. A connection of an application that has used its budget is left for the next iteration. Then
//!    the list is rotated by one, so that no connection of an application is always the last.

use sietch_net::Engine;
use sietch_structures::Key;

use super::application::Application;
use super::connection::{Connection, Phase};
use super::state::Host;
use super::undelivered;
use crate::tcp::channel::{Channel, WakeOn};
use crate::tcp::limits::{APPLICATION_BYTES, ARM_DELAY, CONNECTION_BYTES, CORK_TIMEOUT};

/// The result of relaying a connection in one iteration.
enum Relayed {
    /// Bytes moved.
    Moved,
    /// Its application has used its budget.
    Deferred,
    /// Nothing moved.
    Nothing,
    /// The connection was removed.
    Closed,
}

impl<C: Channel> Host<C> {
    /// Relays every active connection. Returns whether anything moved.
    pub(super) fn relay_all(&mut self) -> bool {
        let mut active = std::mem::take(&mut self.active);
        let (mut moved, mut deferred) = (false, false);
        active.retain(|key| match self.relay(*key) {
            Relayed::Moved => {
                moved = true;
                true
            }
            Relayed::Deferred => {
                (moved, deferred) = (true, true);
                true
            }
            Relayed::Nothing => !self.arm_if_idle(*key, ARM_DELAY, None),
            Relayed::Closed => false,
        });
        if deferred && active.len() > 1 {
            active.rotate_left(1);
        }
        active.append(&mut self.active);
        self.active = active;
        moved
    }

    /// Arms a connection on which nothing has moved for `delay`. `sleep` is the number of the
    /// sleep, if it is armed for one. Returns whether it is inactive now.
    fn arm_if_idle(&mut self, key: Key, delay: u64, sleep: Option<u64>) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return true };
        if self.now.saturating_sub(connection.moved_at) < delay {
            return false;
        }
        let wake_on = connection.wake_on();
        if wake_on != WakeOn::default() {
            match sleep {
                Some(sleep) => connection.channel.arm_among_many(wake_on, sleep),
                None => connection.channel.arm(wake_on),
            }
            connection.armed = wake_on;
        }
        if connection.is_ready() {
            connection.disarm();
            return false;
        }
        connection.active = false;
        true
    }

    /// Arms all connections, because the loop is about to sleep. Returns false if an application
    /// has done something meanwhile: then the loop does not sleep.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        let mut active = std::mem::take(&mut self.active);
        self.sleep = self.sleep.wrapping_add(1).max(1);
        let sleep = self.sleep;
        active.retain(|key| {
            let recent = self
                .connections
                .get(*key)
                .is_some_and(|one| self.now.saturating_sub(one.moved_at) < ARM_DELAY);
            // The others stay inactive after the sleep, so each notifies for itself.
            let armed = self.arm_if_idle(*key, 0, recent.then_some(sleep));
            if armed && recent {
                self.armed_for_sleep.push(*key);
            }
            !armed
        });
        self.active = active;
        self.active.is_empty()
    }

    /// Makes the connections active again that were armed only for the sleep, whether or not the
    /// loop has slept.
    pub(crate) fn wake(&mut self) {
        for key in std::mem::take(&mut self.armed_for_sleep) {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            if connection.active || matches!(connection.phase, Phase::Connecting | Phase::Closed) {
                continue;
            }
            connection.active = true;
            connection.disarm();
            self.active.push(key);
        }
    }

    fn relay(&mut self, key: Key) -> Relayed {
        let Some(connection) = self.connections.get_mut(key) else { return Relayed::Closed };
        if connection.phase == Phase::Closed {
            connection.active = false;
            return Relayed::Closed;
        }
        let Some(application) = self.applications.get_mut(connection.application) else {
            self.abort(key);
            return Relayed::Closed;
        };
        if application.iteration != self.iterations {
            application.iteration = self.iterations;
            application.send_budget = APPLICATION_BYTES;
            application.receive_budget = APPLICATION_BYTES;
        }
        if let Some(socket_options) = connection.channel.take_socket_options() {
            let before = connection.socket_options.take().map(|before| *before).unwrap_or_default();
            socket_options.apply(&before, &mut self.engine, connection.flow);
            connection.socket_options = Some(Box::new(socket_options));
        }
        if connection.phase == Phase::Undelivered {
            return self.relay_undelivered(key);
        }
        let sent = send(&mut self.engine, connection, application);
        if sent > 0
            && !connection.corked
            && connection.socket_options.as_ref().is_some_and(|socket_options| socket_options.corked)
        {
            connection.corked = true;
            self.engine.set_corked(connection.flow, true);
            self.corked.push_back((self.now.saturating_add(CORK_TIMEOUT), key));
        }
        let received = receive(&mut self.engine, connection, application);
        connection.channel.notify(&mut application.notified);
        self.counters.sent_bytes += sent as u64;
        self.counters.received_bytes += received as u64;
        if sent + received > 0 {
            connection.moved_at = self.now;
        }
        if connection.channel.is_broken() {
            connection.channel.abort_with(rustix::io::Errno::CONNRESET);
            self.abort(key);
            return Relayed::Closed;
        }
        let (flow, flushing) = (connection.flow, connection.phase == Phase::Flushing);
        if flushing && !self.engine.received(flow).0.is_empty() {
            // It will not be read (RFC 2525 section 2.17).
            self.abort(key);
            return Relayed::Closed;
        }
        if flushing && !connection.channel.has_sent() {
            self.engine.close(flow);
            self.remove(key);
            return Relayed::Closed;
        }
        if application.send_budget == 0 || application.receive_budget == 0 {
            self.counters.deferred += 1;
            return Relayed::Deferred;
        }
        if sent + received > 0 { Relayed::Moved } else { Relayed::Nothing }
    }

    /// Relays a connection that the engine has closed.
    fn relay_undelivered(&mut self, key: Key) -> Relayed {
        let Some(connection) = self.connections.get_mut(key) else { return Relayed::Closed };
        let Some(application) = self.applications.get_mut(connection.application) else {
            return Relayed::Closed;
        };
        undelivered::discard(connection, application);
        let given = undelivered::deliver(connection, application);
        connection.channel.notify(&mut application.notified);
        self.counters.received_bytes += given as u64;
        if given > 0 {
            connection.moved_at = self.now;
        }
        let deferred = application.send_budget == 0 || application.receive_budget == 0;
        if connection.channel.is_broken() {
            connection.channel.abort_with(rustix::io::Errno::CONNRESET);
            self.remove(key);
            return Relayed::Closed;
        }
        if self.end_if_read(key) {
            return Relayed::Closed;
        }
        self.counters.deferred += u64::from(deferred);
        match (deferred, given) {
            (true, _) => Relayed::Deferred,
            (false, 0) => Relayed::Nothing,
            (false, _) => Relayed::Moved,
        }
    }
}

/// Moves bytes from the application to the engine.
fn send<C: Channel>(
    engine: &mut Engine,
    connection: &mut Connection<C>,
    application: &mut Application,
) -> usize {
    let flow = connection.flow;
    let mut sent = 0;
    if !connection.blocked && !connection.send_ended {
        let mut refused = false;
        sent = connection.channel.drain(CONNECTION_BYTES.min(application.send_budget), |piece| {
            let taken = engine.send_untrusted(flow, piece);
            refused |= taken < piece.len();
            taken
        });
        connection.blocked = refused;
        application.send_budget -= sent.min(application.send_budget);
        application.usage.sent += sent as u64;
    }
    if !connection.send_ended && connection.phase == Phase::Open && connection.channel.has_ended() {
        connection.send_ended = true;
        engine.shutdown_send(flow);
    }
    sent
}

/// Moves bytes from the engine to the application.
fn receive<C: Channel>(
    engine: &mut Engine,
    connection: &mut Connection<C>,
    application: &mut Application,
) -> usize {
    let (flow, mut received) = (connection.flow, 0);
    if connection.phase != Phase::Open {
        return 0;
    }
    connection.full = false;
    let limit = CONNECTION_BYTES.min(application.receive_budget);
    while received < limit {
        // The second piece follows in the next round, when it has become the first.
        let (bytes, _) = engine.received(flow);
        let offered = bytes.len().min(limit - received);
        if offered == 0 {
            break;
        }
        let taken = connection.channel.deliver(&bytes[..offered]).min(offered);
        engine.consume(flow, taken);
        received += taken;
        if taken < offered {
            connection.full = true;
            break;
        }
    }
    application.receive_budget -= received;
    application.usage.received += received as u64;
    if !connection.end_delivered && engine.at_end(flow) {
        connection.end_delivered = true;
        connection.channel.finish();
    }
    received
}
