//! The state of a host. The other files of this folder are layers above it; each adds the methods
//! of its subject to [`Host`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;

use sietch_net::{Engine, Event, FlowId};
use sietch_structures::{Key, Slab};

use super::application::Application;
use super::connection::{Connection, Phase, Undelivered, UndeliveredAt};
use crate::tcp::channel::Channel;
use crate::tcp::limits::ENDED_ARRIVALS;
use crate::tcp::metrics::Counters;
use crate::tcp::ports::Ports;

/// A connection that has no channel yet: one that came to a listener, or one that was just begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewConnection {
    /// Its flow, for [`Host::attach`].
    pub flow: FlowId,
    /// The address of this end.
    pub local: SocketAddr,
    /// The address of the peer.
    pub remote: SocketAddr,
}

/// An engine with the applications that use its VNIC.
#[derive(Debug)]
pub(crate) struct Host<C> {
    pub(super) engine: Engine,
    pub(super) ports: Ports,
    pub(super) connections: Slab<Connection<C>>,
    pub(super) applications: Slab<Application>,
    /// Keys of applications by id and user.
    pub(super) by_id: HashMap<([u8; 16], u32), Key>,
    /// Connections that wait to be accepted, by binding.
    pub(super) arrivals: BTreeMap<Key, VecDeque<NewConnection>>,
    /// Bindings with new arrivals since [`Host::next_ready_listener`].
    pub(super) ready_listeners: VecDeque<Key>,
    /// Keys of the connections that are relayed in every iteration.
    pub(super) active: Vec<Key>,
    /// Keys of the connections that are armed only for the time of a sleep.
    pub(super) armed_for_sleep: Vec<Key>,
    /// The number of the last sleep.
    pub(super) sleep: u64,
    /// Connections in [`Phase::Flushing`], with their deadlines, in the order of those.
    pub(super) flushing: VecDeque<(u64, Key)>,
    /// Connections with bytes under a cork, with their deadlines, in the order of those.
    pub(super) corked: VecDeque<(u64, Key)>,
    /// Where undelivered bytes are kept, with their deadlines, in the order of those.
    pub(super) undelivered: VecDeque<(u64, UndeliveredAt)>,
    /// The sum of all undelivered bytes.
    pub(super) undelivered_bytes: usize,
    /// The number of places that have such bytes.
    pub(super) undelivered_count: usize,
    /// The binding at which each arrival waits.
    pub(super) binding_of_arrival: HashMap<FlowId, Key>,
    /// What arrivals that ended before they were accepted have brought.
    pub(super) ended: HashMap<FlowId, Undelivered>,
    /// The most entries of [`Host::ended`].
    pub(super) max_ended: usize,
    pub(super) events: Vec<Event>,
    /// Keys of removed connections, until [`Host::next_removed`] takes them.
    pub(super) removed: Vec<Key>,
    pub(super) now: u64,
    pub(super) iterations: u64,
    pub(super) counters: Counters,
}

/// Returns the number of a host's first sleep. A process may use several hosts, and remembers for
/// all of them together which sleeps it has notified. So each host counts from a random number.
fn first_sleep() -> u64 {
    RandomState::new().hash_one(()) << 32
}

impl<C: Channel> Host<C> {
    /// Makes a host without applications.
    pub(crate) fn new(engine: Engine, ports: Ports) -> Self {
        Self {
            engine,
            ports,
            connections: Slab::default(),
            applications: Slab::default(),
            by_id: HashMap::new(),
            arrivals: BTreeMap::new(),
            ready_listeners: VecDeque::new(),
            active: Vec::new(),
            armed_for_sleep: Vec::new(),
            sleep: first_sleep(),
            flushing: VecDeque::new(),
            corked: VecDeque::new(),
            undelivered: VecDeque::new(),
            undelivered_bytes: 0,
            undelivered_count: 0,
            binding_of_arrival: HashMap::new(),
            ended: HashMap::new(),
            max_ended: ENDED_ARRIVALS,
            events: Vec::new(),
            removed: Vec::new(),
            now: 0,
            iterations: 0,
            counters: Counters::default(),
        }
    }

    /// Returns whether an application may have one more connection.
    pub(crate) fn may_connect(&self, application: Key) -> bool {
        self.applications.get(application).is_some_and(|application| {
            application.usage.connections < crate::tcp::limits::CONNECTIONS_PER_APPLICATION
        })
    }

    /// Relays a connection in every iteration from now on.
    pub(super) fn activate(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.active || matches!(connection.phase, Phase::Connecting | Phase::Closed) {
            return;
        }
        connection.active = true;
        connection.moved_at = self.now;
        connection.disarm();
        self.active.push(key);
    }

    /// Adds a connection, and counts it.
    pub(super) fn insert(&mut self, connection: Connection<C>) -> Key {
        let (application, accepted) = (connection.application, connection.accepted);
        let key = self.connections.insert(connection);
        if let Some(application) = self.applications.get_mut(application) {
            application.usage.connections += 1;
            application.usage.accepted += u32::from(accepted);
        }
        if accepted {
            self.counters.accepted += 1;
            self.activate(key);
        }
        key
    }

    /// Removes a connection, and counts it no longer.
    pub(super) fn remove(&mut self, key: Key) {
        let Some(connection) = self.connections.remove(key) else { return };
        self.removed.push(key);
        if let Some(undelivered) = &connection.undelivered {
            self.drop_undelivered(undelivered);
        }
        if let Some(application) = self.applications.get_mut(connection.application) {
            application.usage.connections = application.usage.connections.saturating_sub(1);
            let accepted = u32::from(connection.accepted);
            application.usage.accepted = application.usage.accepted.saturating_sub(accepted);
        }
        self.forget_unused(connection.application);
    }

    /// Resets a connection's peer, and removes the connection.
    pub(super) fn abort(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else { return };
        self.counters.aborted += 1;
        self.engine.abort(connection.flow);
        self.remove(key);
    }

    /// Counts undelivered bytes no longer.
    pub(super) fn drop_undelivered(&mut self, undelivered: &Undelivered) {
        let count = undelivered.bytes.len();
        self.undelivered_bytes = self.undelivered_bytes.saturating_sub(count);
        self.undelivered_count = self.undelivered_count.saturating_sub(usize::from(count > 0));
        if let Some(owner) = self.applications.get_mut(undelivered.application) {
            owner.undelivered = owner.undelivered.saturating_sub(count);
        }
    }

    /// Forgets an application that has neither a connection nor a binding.
    pub(super) fn forget_unused(&mut self, key: Key) {
        let Some(application) = self.applications.get(key) else { return };
        let usage = application.usage;
        if usage.connections == 0 && usage.bindings == 0 {
            self.by_id.remove(&(usage.id, usage.uid));
            self.applications.remove(key);
        }
    }

    /// Gives the engine the backlog of a port: the arrivals that may still wait there.
    pub(super) fn update_backlog(&mut self, port: u16) {
        self.engine.set_backlog(port, self.ports.room(port));
    }

    /// Records that one connection less waits at a listener: it was delivered, or it has ended.
    pub(crate) fn dequeued(&mut self, binding: Key) {
        if let Some(queue) = self.ports.queue(binding) {
            queue.waiting = queue.waiting.saturating_sub(1);
        }
        if let Some(port) = self.ports.get(binding).map(|binding| binding.name.local.port()) {
            self.update_backlog(port);
        }
    }
}
