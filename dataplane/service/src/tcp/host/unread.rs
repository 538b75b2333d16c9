//! What arrived on a connection before it ended, and its application has not read.
//!
//! 1. Linux keeps what came before a reset, and a program reads it before it hears of the reset.
//!    The engine keeps it until its events are taken again: what the application's ring has no room
//!    for is copied out of the engine.
//! 2. The connection stays, without a flow ([`Phase::Unread`]). Its application gets the rest as it
//!    makes room, then the error. What it sends is thrown away, as by a peer that is gone.
//! 3. A connection that is reset before it is accepted waits on at its listener. Who accepts it
//!    reads what it brought, then hears of the reset.
//! 4. The bytes of an application, and of a VNIC, are bounded ([`UNREAD_BYTES`]): beyond that the
//!    error comes at once. So is the time in which an application reads nothing ([`UNREAD`]). An
//!    arrival that nobody accepts for so long loses its bytes, and keeps its error.
//! 5. [`ENDED_ARRIVALS`](crate::tcp::limits::ENDED_ARRIVALS) bounds the arrivals that wait on.
//!    Beyond it an arrival that ends leaves its queue.

use rustix::io::Errno;
use sietch_net::{CloseReason, FlowId};

use super::{Application, Connection, Host, Phase};
use crate::tcp::channel::{Channel, Wanted};
use crate::tcp::limits::{TURN_BYTES, UNREAD, UNREAD_BYTES, UNREAD_BYTES_OF_APPLICATION};

/// See the module.
#[derive(Debug)]
pub(super) struct Unread {
    bytes: Vec<u8>,
    /// How many of them the application was given.
    given: usize,
    /// What it hears after them.
    error: Errno,
    /// For whom they are counted.
    application: u64,
}

/// Where unread bytes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// At a connection, by its key.
    Connection(u64),
    /// At an arrival, by its flow.
    Arrival(FlowId),
}

/// Deadlines beyond two for each place with bytes, before stale ones are removed.
const STALE: usize = 64;

/// What an application is told of an end.
pub(super) fn error_of(reason: CloseReason) -> Errno {
    match reason {
        CloseReason::Normal => Errno::CONNABORTED,
        CloseReason::Reset => Errno::CONNRESET,
        CloseReason::TimedOut => Errno::TIMEDOUT,
        CloseReason::Refused => Errno::CONNREFUSED,
        CloseReason::Unreachable => Errno::HOSTUNREACH,
    }
}

impl<C: Channel> Host<C> {
    /// Copies out of the engine what a flow that is over has left. Beyond the bounds that is
    /// nothing.
    fn keep_unread(&mut self, flow: FlowId, application: u64, error: Errno) -> Unread {
        let (first, second) = self.engine.received(flow);
        let count = first.len() + second.len();
        let mut unread = Unread { bytes: Vec::new(), given: 0, error, application };
        let Some(owner) = self.applications.get_mut(application) else { return unread };
        if owner.unread + count <= UNREAD_BYTES_OF_APPLICATION && self.unread_bytes + count <= UNREAD_BYTES {
            unread.bytes = [first, second].concat();
            owner.unread += count;
            self.unread_bytes += count;
            self.unread_count += usize::from(count > 0);
        }
        unread
    }

    /// It is counted no longer.
    pub(super) fn drop_unread(&mut self, unread: &Unread) {
        let count = unread.bytes.len();
        self.unread_bytes = self.unread_bytes.saturating_sub(count);
        self.unread_count = self.unread_count.saturating_sub(usize::from(count > 0));
        if let Some(owner) = self.applications.get_mut(unread.application) {
            owner.unread = owner.unread.saturating_sub(count);
        }
    }

    /// A connection ended with an error, and its ring may be full.
    pub(super) fn break_off_when_read(&mut self, key: u64, flow: FlowId, error: Errno) {
        let Some(application) = self.connections.get(key).map(|connection| connection.application) else {
            return;
        };
        let unread = self.keep_unread(flow, application, error);
        let Some(connection) = self.connections.get_mut(key) else { return };
        if unread.bytes.is_empty() {
            connection.channel.break_off(error);
            return self.remove(key);
        }
        connection.phase = Phase::Unread;
        connection.blocked = false;
        connection.full = true;
        connection.unread = Some(Box::new(unread));
        self.limit_time(Kept::Connection(key), self.now.saturating_add(UNREAD));
        self.activate(key);
    }

    fn is_kept(&self, kept: Kept) -> bool {
        let unread = match kept {
            Kept::Connection(key) => self.connections.get(key).and_then(|found| found.unread.as_deref()),
            Kept::Arrival(flow) => self.ended.get(&flow),
        };
        unread.is_some_and(|unread| !unread.bytes.is_empty())
    }

    /// Sets a deadline for unread bytes, if there are any.
    fn limit_time(&mut self, kept: Kept, until: u64) {
        if !self.is_kept(kept) {
            return;
        }
        self.unread.push_back((until, kept));
        if self.unread.len() > STALE + 2 * self.unread_count {
            let mut all = std::mem::take(&mut self.unread);
            all.retain(|(_, kept)| self.is_kept(*kept));
            self.unread = all;
        }
    }

    /// A connection that waits at a listener has ended: it waits on, with what it brought.
    pub(super) fn keep_arrival(&mut self, flow: FlowId, reason: CloseReason) {
        let Some(&key) = self.arrived_at.get(&flow) else { return };
        if self.ended.len() >= self.most_ended {
            return self.forget_arrival(flow, key);
        }
        let Some(application) = self.ports.get(key).map(|claim| claim.name.application) else { return };
        let unread = self.keep_unread(flow, application, error_of(reason));
        self.ended.insert(flow, unread);
        self.limit_time(Kept::Arrival(flow), self.now.saturating_add(UNREAD));
    }

    /// Takes a connection that has ended out of the queue of its listener.
    fn forget_arrival(&mut self, flow: FlowId, claim: u64) {
        self.arrived_at.remove(&flow);
        if let Some(waiting) = self.arrivals.get_mut(&claim) {
            waiting.retain(|arrival| arrival.flow != flow);
        }
        self.taken(claim);
    }

    /// Forgets a connection that ended while it waited at a listener.
    pub(super) fn forget_ended(&mut self, flow: FlowId) {
        if let Some(unread) = self.ended.remove(&flow) {
            self.drop_unread(&unread);
        }
    }

    /// Gives one that ended while it waited at a listener its channel.
    pub(super) fn attach_ended(&mut self, unread: Unread, application: u64, channel: C) -> Result<u64, C> {
        if !self.may_connect(application) {
            self.drop_unread(&unread);
            return Err(channel);
        }
        let connection = Connection {
            unread: Some(Box::new(unread)),
            accepted: true,
            ..Connection::new(channel, FlowId::NONE, application, Phase::Unread, self.now)
        };
        let key = self.attached(connection);
        self.limit_time(Kept::Connection(key), self.now.saturating_add(UNREAD));
        Ok(key)
    }

    /// Those of which nothing is read do not stay for ever.
    pub(super) fn end_those_unread(&mut self) {
        while let Some(&(until, kept)) = self.unread.front()
            && (until <= self.now || !self.is_kept(kept))
        {
            self.unread.pop_front();
            match kept {
                Kept::Connection(key) => self.end_if_nothing_is_read(key),
                Kept::Arrival(flow) => self.clear_arrival(flow),
            }
        }
    }

    fn end_if_nothing_is_read(&mut self, key: u64) {
        let Some(connection) = self.connections.get(key) else { return };
        let patient = connection.moved_at.saturating_add(UNREAD);
        if patient > self.now {
            return self.limit_time(Kept::Connection(key), patient);
        }
        self.end_unread(key);
    }

    /// Drops the bytes of an arrival; its error stays.
    fn clear_arrival(&mut self, flow: FlowId) {
        if let Some(unread) = self.ended.remove(&flow) {
            self.drop_unread(&unread);
            self.ended.insert(flow, Unread { bytes: Vec::new(), ..unread });
        }
    }

    /// The error, and the end.
    fn end_unread(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let Some(error) = connection.unread.as_ref().map(|unread| unread.error) {
            connection.channel.break_off(error);
        }
        self.remove(key);
    }

    /// Ends a connection of which everything was given to its application; whether that is so.
    pub(super) fn end_if_read(&mut self, key: u64) -> bool {
        let read = |connection: &Connection<C>| {
            connection.unread.as_ref().is_some_and(|unread| unread.given == unread.bytes.len())
        };
        let over = self.connections.get(key).is_some_and(read);
        if over {
            self.end_unread(key);
        }
        over
    }
}

/// From what was kept to the application. Returns how many bytes it was given.
pub(super) fn give<C: Channel>(connection: &mut Connection<C>, application: &mut Application) -> usize {
    let Some(unread) = connection.unread.as_mut() else { return 0 };
    let left = unread.bytes.get(unread.given..).unwrap_or_default();
    let offered = left.len().min(TURN_BYTES).min(application.into);
    let given = connection.channel.deliver(&left[..offered]).min(offered);
    unread.given += given;
    connection.full = given < offered;
    application.into -= given;
    application.share.received += given as u64;
    given
}

/// What the application sends to a peer that is gone.
pub(super) fn discard<C: Channel>(connection: &mut Connection<C>, application: &mut Application) {
    if !connection.send_ended {
        let limit = TURN_BYTES.min(application.out);
        application.out -= connection.channel.drain(limit, |piece| piece.len()).min(limit);
        connection.send_ended = connection.channel.has_ended();
    }
}

impl<C> Connection<C> {
    pub(super) fn new(channel: C, flow: FlowId, application: u64, phase: Phase, now: u64) -> Self {
        Self {
            channel,
            flow,
            application,
            phase,
            active: false,
            armed: Wanted::default(),
            blocked: false,
            full: false,
            send_ended: false,
            told_end: false,
            moved_at: now,
            settings: None,
            corked: false,
            accepted: false,
            unread: None,
        }
    }
}
