//! Bytes between applications and engine, and who is looked at for them.
//!
//! 1. Out: pieces of the application's ring go into the engine's send buffer, copied once. If that
//!    takes less than there is, the connection is *blocked* until the engine has room: what it
//!    sends meanwhile stays in its ring.
//! 2. In: what the engine has received in order goes into the application's ring, and is consumed.
//!    If that is *full*, the rest stays in the engine.
//! 3. Ends follow the bytes: FIN when everything that was sent before it was taken, end of stream
//!    when everything received was delivered.
//! 4. Before all that, socket options that the application has changed are told to the engine. What
//!    was written under a cork has a time at which it goes.
//! 5. Who had his share of a turn is left for the next; the list is turned by one then, so that
//!    none of an application's connections is always the last.

use super::{Application, Connection, Host, Phase, unread};
use crate::tcp::channel::{Channel, Wanted};
use crate::tcp::limits::{APPLICATION_TURN_BYTES, CORKED, TURN_BYTES, WARM};

/// What became of a connection in this turn.
enum Pumped {
    /// Something moved, or could in the next turn.
    Moved,
    /// It had its share.
    Deferred,
    /// Nothing.
    Nothing,
    /// It is over.
    Gone,
}

impl<C: Channel> Connection<C> {
    pub(super) fn disarm(&mut self) {
        let armed = std::mem::take(&mut self.armed);
        if armed != Wanted::default() {
            self.channel.disarm(armed);
        }
    }

    /// What its application could do that we wait for.
    fn wanted(&self) -> Wanted {
        Wanted { data: !self.blocked && !self.send_ended, room: self.full }
    }

    /// Whether the application has done something that we wait for.
    fn has_news(&self) -> bool {
        let wanted = self.wanted();
        (wanted.data && (self.channel.has_sent() || self.channel.has_ended() || self.channel.has_settings()))
            || (wanted.room && self.channel.has_room())
    }
}

impl<C: Channel> Host<C> {
    /// Pumps every active connection. Says whether anything moved.
    pub(super) fn pump_all(&mut self) -> bool {
        let mut active = std::mem::take(&mut self.active);
        let (mut moved, mut deferred) = (false, false);
        active.retain(|key| match self.pump(*key) {
            Pumped::Moved => {
                moved = true;
                true
            }
            Pumped::Deferred => {
                (moved, deferred) = (true, true);
                true
            }
            Pumped::Nothing => !self.cool(*key, WARM, None),
            Pumped::Gone => false,
        });
        if deferred && active.len() > 1 {
            active.rotate_left(1);
        }
        active.append(&mut self.active);
        self.active = active;
        moved
    }

    /// Arms a connection on which nothing has moved for `patience`, among many if it is for a
    /// sleep. Says whether it needs no more looking at.
    fn cool(&mut self, key: u64, patience: u64, sleep: Option<u64>) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return true };
        if self.now.saturating_sub(connection.moved_at) < patience {
            return false;
        }
        let wanted = connection.wanted();
        if wanted != Wanted::default() {
            match sleep {
                Some(sleep) => connection.channel.arm_among_many(wanted, sleep),
                None => connection.channel.arm(wanted),
            }
            connection.armed = wanted;
        }
        if connection.has_news() {
            connection.disarm();
            return false;
        }
        connection.active = false;
        true
    }

    /// Arms everybody, for the loop is about to sleep. `false`: somebody has done something
    /// meanwhile, do not sleep.
    pub fn rest(&mut self) -> bool {
        let mut active = std::mem::take(&mut self.active);
        self.sleep = self.sleep.wrapping_add(1).max(1);
        let sleep = self.sleep;
        active.retain(|key| {
            let warm =
                self.connections.get(*key).is_some_and(|one| self.now.saturating_sub(one.moved_at) < WARM);
            // The others are not looked at after it, so they ring for themselves.
            let cooled = self.cool(*key, 0, warm.then_some(sleep));
            if cooled && warm {
                self.resting.push(*key);
            }
            !cooled
        });
        self.active = active;
        self.active.is_empty()
    }

    /// The loop has slept, or did not come to it: those that were in use just before need not ring
    /// to be looked at.
    pub fn wake(&mut self) {
        for key in std::mem::take(&mut self.resting) {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            if connection.active || matches!(connection.phase, Phase::Connecting | Phase::Over) {
                continue;
            }
            connection.active = true;
            connection.disarm();
            self.active.push(key);
        }
    }

    fn pump(&mut self, key: u64) -> Pumped {
        let Some(connection) = self.connections.get_mut(key) else { return Pumped::Gone };
        if connection.phase == Phase::Over {
            connection.active = false;
            return Pumped::Gone;
        }
        let Some(application) = self.applications.get_mut(connection.application) else {
            self.abort(key);
            return Pumped::Gone;
        };
        if application.turn != self.turns {
            (application.turn, application.out, application.into) =
                (self.turns, APPLICATION_TURN_BYTES, APPLICATION_TURN_BYTES);
        }
        if let Some(settings) = connection.channel.take_settings() {
            let before = connection.settings.take().map(|before| *before).unwrap_or_default();
            settings.apply(&before, &mut self.engine, connection.flow);
            connection.settings = Some(Box::new(settings));
        }
        if connection.phase == Phase::Unread {
            return self.pump_unread(key);
        }
        let sent = send(&mut self.engine, connection, application);
        if sent > 0
            && !connection.corked
            && connection.settings.as_ref().is_some_and(|settings| settings.corked)
        {
            connection.corked = true;
            self.engine.set_corked(connection.flow, true);
            self.corked.push_back((self.now.saturating_add(CORKED), key));
        }
        let received = receive(&mut self.engine, connection, application);
        connection.channel.ring(&mut application.rung);
        self.counters.sent_bytes += sent as u64;
        self.counters.received_bytes += received as u64;
        if sent + received > 0 {
            connection.moved_at = self.now;
        }
        if connection.channel.is_broken() {
            connection.channel.break_off(rustix::io::Errno::CONNRESET);
            self.abort(key);
            return Pumped::Gone;
        }
        let (flow, leaving) = (connection.flow, connection.phase == Phase::Leaving);
        if leaving && !self.engine.received(flow).0.is_empty() {
            // Nobody will read it (RFC 2525 section 2.17).
            self.abort(key);
            return Pumped::Gone;
        }
        if leaving && !connection.channel.has_sent() {
            self.engine.close(flow);
            self.remove(key);
            return Pumped::Gone;
        }
        if application.out == 0 || application.into == 0 {
            self.counters.deferred += 1;
            return Pumped::Deferred;
        }
        if sent + received > 0 { Pumped::Moved } else { Pumped::Nothing }
    }
}

impl<C: Channel> Host<C> {
    /// The same for one with which the engine is done.
    fn pump_unread(&mut self, key: u64) -> Pumped {
        let Some(connection) = self.connections.get_mut(key) else { return Pumped::Gone };
        let Some(application) = self.applications.get_mut(connection.application) else {
            return Pumped::Gone;
        };
        unread::discard(connection, application);
        let given = unread::give(connection, application);
        connection.channel.ring(&mut application.rung);
        self.counters.received_bytes += given as u64;
        if given > 0 {
            connection.moved_at = self.now;
        }
        let deferred = application.out == 0 || application.into == 0;
        if connection.channel.is_broken() {
            connection.channel.break_off(rustix::io::Errno::CONNRESET);
            self.remove(key);
            return Pumped::Gone;
        }
        if self.end_if_read(key) {
            return Pumped::Gone;
        }
        self.counters.deferred += u64::from(deferred);
        match (deferred, given) {
            (true, _) => Pumped::Deferred,
            (false, 0) => Pumped::Nothing,
            (false, _) => Pumped::Moved,
        }
    }
}

/// From the application to the engine.
fn send<C: Channel>(
    engine: &mut sietch_net::Engine,
    connection: &mut Connection<C>,
    application: &mut Application,
) -> usize {
    let flow = connection.flow;
    let mut sent = 0;
    if !connection.blocked && !connection.send_ended {
        let mut refused = false;
        sent = connection.channel.drain(TURN_BYTES.min(application.out), |piece| {
            let taken = engine.send_untrusted(flow, piece);
            refused |= taken < piece.len();
            taken
        });
        connection.blocked = refused;
        application.out -= sent.min(application.out);
        application.share.sent += sent as u64;
    }
    if !connection.send_ended && connection.phase == Phase::Open && connection.channel.has_ended() {
        connection.send_ended = true;
        engine.shutdown_send(flow);
    }
    sent
}

/// From the engine to the application.
fn receive<C: Channel>(
    engine: &mut sietch_net::Engine,
    connection: &mut Connection<C>,
    application: &mut Application,
) -> usize {
    let (flow, mut received) = (connection.flow, 0);
    if connection.phase != Phase::Open {
        return 0;
    }
    connection.full = false;
    let limit = TURN_BYTES.min(application.into);
    while received < limit {
        // The second piece comes in the next round, when it has become the first.
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
    application.into -= received;
    application.share.received += received as u64;
    if !connection.told_end && engine.at_end(flow) {
        connection.told_end = true;
        connection.channel.finish();
    }
    received
}

/// What the engine has received on a connection that is over goes to the application, as far as it
/// has room: it came before the end. Returns how many bytes that are.
pub(super) fn receive_last<C: Channel>(
    engine: &mut sietch_net::Engine,
    connection: &mut Connection<C>,
) -> usize {
    let mut received = 0;
    loop {
        let (bytes, _) = engine.received(connection.flow);
        if bytes.is_empty() {
            return received;
        }
        let offered = bytes.len();
        let taken = connection.channel.deliver(bytes).min(offered);
        engine.consume(connection.flow, taken);
        received += taken;
        if taken < offered {
            return received;
        }
    }
}
