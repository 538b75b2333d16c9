//! What arrived on a connection before it ended, and its application has not yet read.
//!
//! 1. Linux keeps what came before a reset, and a program reads it before it gets the error. The
//!    engine keeps it only until its events are taken again. So what the application's ring has no
//!    room for is copied out of the engine.
//! 2. The connection stays, without a flow ([`Phase::Undelivered`]). Its application gets the rest
//!    as it makes room, then the error. What it sends is discarded, as by a peer that has ended.
//! 3. A connection that is reset before it is accepted stays at its listener. The application that
//!    accepts it reads what it brought, then gets the error.
//! 4. The bytes of an application, and of a VNIC, are bounded ([`UNDELIVERED_BYTES`]); beyond that
//!    the error comes at once. So is the time in which an application reads nothing
//!    ([`UNDELIVERED_TIMEOUT`]). An arrival that is not accepted for that long loses its bytes, and
//!    keeps its error.
//! 5. [`ENDED_ARRIVALS`](crate::tcp::limits::ENDED_ARRIVALS) bounds the ended arrivals that stay.
//!    Beyond it an arrival that ends leaves its queue.

use rustix::io::Errno;
use sietch_net::{CloseReason, Engine, FlowId};
use sietch_structures::Key;

use super::application::Application;
use super::connection::{Connection, Phase, Undelivered, UndeliveredAt, error_of};
use super::state::Host;
use crate::tcp::channel::Channel;
use crate::tcp::limits::{
    CONNECTION_BYTES, UNDELIVERED_BYTES, UNDELIVERED_BYTES_PER_APPLICATION, UNDELIVERED_TIMEOUT,
};

/// Stale deadlines are removed when there are this many more than two for each place with bytes.
const STALE: usize = 64;

impl<C: Channel> Host<C> {
    /// Copies what a closed flow has left out of the engine. Beyond the bounds it copies nothing.
    fn keep_undelivered(&mut self, flow: FlowId, application: Key, error: Errno) -> Undelivered {
        let (first, second) = self.engine.received(flow);
        let count = first.len() + second.len();
        let mut undelivered = Undelivered { bytes: Vec::new(), given: 0, error, application };
        let Some(owner) = self.applications.get_mut(application) else { return undelivered };
        if owner.undelivered + count <= UNDELIVERED_BYTES_PER_APPLICATION
            && self.undelivered_bytes + count <= UNDELIVERED_BYTES
        {
            undelivered.bytes = [first, second].concat();
            owner.undelivered += count;
            self.undelivered_bytes += count;
            self.undelivered_count += usize::from(count > 0);
        }
        undelivered
    }

    /// Ends a connection with an error, once its application has read everything.
    pub(super) fn abort_when_delivered(&mut self, key: Key, flow: FlowId, error: Errno) {
        let Some(application) = self.connections.get(key).map(|connection| connection.application) else {
            return;
        };
        let undelivered = self.keep_undelivered(flow, application, error);
        let Some(connection) = self.connections.get_mut(key) else { return };
        if undelivered.bytes.is_empty() {
            connection.channel.abort_with(error);
            return self.remove(key);
        }
        connection.phase = Phase::Undelivered;
        connection.blocked = false;
        connection.full = true;
        connection.undelivered = Some(Box::new(undelivered));
        self.set_deadline(UndeliveredAt::Connection(key), self.now.saturating_add(UNDELIVERED_TIMEOUT));
        self.activate(key);
    }

    fn is_kept(&self, kept: UndeliveredAt) -> bool {
        let undelivered = match kept {
            UndeliveredAt::Connection(key) => {
                self.connections.get(key).and_then(|found| found.undelivered.as_deref())
            }
            UndeliveredAt::Arrival(flow) => self.ended.get(&flow),
        };
        undelivered.is_some_and(|undelivered| !undelivered.bytes.is_empty())
    }

    /// Sets a deadline for undelivered bytes, if there are any.
    fn set_deadline(&mut self, kept: UndeliveredAt, until: u64) {
        if !self.is_kept(kept) {
            return;
        }
        self.undelivered.push_back((until, kept));
        if self.undelivered.len() > STALE + 2 * self.undelivered_count {
            let mut all = std::mem::take(&mut self.undelivered);
            all.retain(|(_, kept)| self.is_kept(*kept));
            self.undelivered = all;
        }
    }

    /// Keeps a connection that ended while it waited at a listener, with what it brought.
    pub(super) fn keep_arrival(&mut self, flow: FlowId, reason: CloseReason) {
        let Some(&key) = self.binding_of_arrival.get(&flow) else { return };
        if self.ended.len() >= self.max_ended {
            return self.forget_arrival(flow, key);
        }
        let Some(application) = self.ports.get(key).map(|binding| binding.name.application) else { return };
        let undelivered = self.keep_undelivered(flow, application, error_of(reason));
        self.ended.insert(flow, undelivered);
        self.set_deadline(UndeliveredAt::Arrival(flow), self.now.saturating_add(UNDELIVERED_TIMEOUT));
    }

    /// Removes an ended connection from the queue of its listener.
    fn forget_arrival(&mut self, flow: FlowId, binding: Key) {
        self.binding_of_arrival.remove(&flow);
        if let Some(waiting) = self.arrivals.get_mut(&binding) {
            waiting.retain(|arrival| arrival.flow != flow);
        }
        self.dequeued(binding);
    }

    /// Forgets a connection that ended while it waited at a listener.
    pub(super) fn forget_ended(&mut self, flow: FlowId) {
        if let Some(undelivered) = self.ended.remove(&flow) {
            self.drop_undelivered(&undelivered);
        }
    }

    /// Gives a connection that ended while it waited at a listener its channel.
    pub(super) fn attach_ended(
        &mut self,
        undelivered: Undelivered,
        application: Key,
        channel: C,
    ) -> Result<Key, C> {
        if !self.may_connect(application) {
            self.drop_undelivered(&undelivered);
            return Err(channel);
        }
        let connection = Connection {
            undelivered: Some(Box::new(undelivered)),
            accepted: true,
            ..Connection::new(channel, FlowId::NONE, application, Phase::Undelivered, self.now)
        };
        let key = self.insert(connection);
        self.set_deadline(UndeliveredAt::Connection(key), self.now.saturating_add(UNDELIVERED_TIMEOUT));
        Ok(key)
    }

    /// Ends connections of which nothing was read for too long.
    pub(super) fn expire_undelivered(&mut self) {
        while let Some(&(until, kept)) = self.undelivered.front()
            && (until <= self.now || !self.is_kept(kept))
        {
            self.undelivered.pop_front();
            match kept {
                UndeliveredAt::Connection(key) => self.end_if_nothing_is_read(key),
                UndeliveredAt::Arrival(flow) => self.clear_arrival(flow),
            }
        }
    }

    fn end_if_nothing_is_read(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else { return };
        let deadline = connection.moved_at.saturating_add(UNDELIVERED_TIMEOUT);
        if deadline > self.now {
            return self.set_deadline(UndeliveredAt::Connection(key), deadline);
        }
        self.end_undelivered(key);
    }

    /// Drops the bytes of an arrival; its error stays.
    fn clear_arrival(&mut self, flow: FlowId) {
        if let Some(undelivered) = self.ended.remove(&flow) {
            self.drop_undelivered(&undelivered);
            self.ended.insert(flow, Undelivered { bytes: Vec::new(), ..undelivered });
        }
    }

    /// Delivers the error, and removes the connection.
    fn end_undelivered(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let Some(error) = connection.undelivered.as_ref().map(|undelivered| undelivered.error) {
            connection.channel.abort_with(error);
        }
        self.remove(key);
    }

    /// Ends a connection if its application was given everything. Returns whether it has ended.
    pub(super) fn end_if_read(&mut self, key: Key) -> bool {
        let read = |connection: &Connection<C>| {
            connection
                .undelivered
                .as_ref()
                .is_some_and(|undelivered| undelivered.given == undelivered.bytes.len())
        };
        let over = self.connections.get(key).is_some_and(read);
        if over {
            self.end_undelivered(key);
        }
        over
    }
}

/// Gives kept bytes to the application. Returns how many.
pub(super) fn deliver<C: Channel>(connection: &mut Connection<C>, application: &mut Application) -> usize {
    let Some(undelivered) = connection.undelivered.as_mut() else { return 0 };
    let left = undelivered.bytes.get(undelivered.given..).unwrap_or_default();
    let offered = left.len().min(CONNECTION_BYTES).min(application.receive_budget);
    let given = connection.channel.deliver(&left[..offered]).min(offered);
    undelivered.given += given;
    connection.full = given < offered;
    application.receive_budget -= given;
    application.usage.received += given as u64;
    given
}

/// Discards what the application sends to a peer that has ended.
pub(super) fn discard<C: Channel>(connection: &mut Connection<C>, application: &mut Application) {
    if !connection.send_ended {
        let limit = CONNECTION_BYTES.min(application.send_budget);
        application.send_budget -= connection.channel.drain(limit, |piece| piece.len()).min(limit);
        connection.send_ended = connection.channel.has_ended();
    }
}

/// Gives the application what the engine has received on a closed connection, as far as there is
/// room: it came before the end. Returns how many bytes.
pub(super) fn receive_last<C: Channel>(engine: &mut Engine, connection: &mut Connection<C>) -> usize {
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
