//! Which application listens where, which are connected, and what each has: names and numbers, no
//! descriptors.
//!
//! 1. **Applications** are identified by user and id. One exists while it has a listener or a
//!    connection.
//! 2. **Listeners** are found by network namespace and port. Among those that match the
//!    destination, a specific address comes before a wildcard, and IPv4 before IPv6, as in the
//!    kernel. Several with the same name (`SO_REUSEPORT`) are served in rotation.
//! 3. **Connections** have a pair of names that no other has. A connecting socket without a port
//!    gets one ([`limits::FIRST_EPHEMERAL`]).
//! 4. The address of a connecting socket without one is what the kernel would take for a
//!    destination on this host. That is the destination itself, or 127.0.0.1 for all of
//!    127.0.0.0/8.
//! 5. Everything is bounded for each application and for each user, because a program chooses its
//!    application's id itself.
//!
//! Callers read names from kernel sockets, so the kernel decides which program has which name.

pub(super) mod canonical_name;
mod ports;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::limits;
use crate::requests::application::{Application, Connection, Names};
use canonical_name::{CanonicalName, source};
use ports::PortSets;

/// A listener's number, never used twice.
pub(super) type ListenerId = u64;
/// A connection's number, never used twice.
pub(super) type ConnectionId = u64;

/// A listener.
#[derive(Debug, Clone)]
pub(super) struct Listener {
    /// The application that listens.
    pub application: Application,
    /// The network namespace.
    pub namespace: u64,
    /// The name of the kernel's socket.
    pub name: SocketAddr,
    /// It is an IPv6 socket that takes no IPv4.
    pub only_ipv6: bool,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// A process that holds it, for display.
    pub pid: i32,
}

impl Listener {
    /// Returns whether a connection to `remote` in this network namespace matches it.
    pub(super) fn is_reached_at(&self, namespace: u64, remote: SocketAddr) -> bool {
        self.namespace == namespace
            && self.name.port() == remote.port()
            && score(self, CanonicalName::of(remote)).is_some()
    }
}

/// Why a listener or connection is not added. The program goes to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableError {
    /// Too many applications.
    Applications,
    /// The application or its user has too many listeners.
    Listeners,
    /// The application or its user has too many connections.
    Connections,
    /// No port is free for these two names.
    Ports,
    /// The connecting socket's name has a connection to this destination already.
    Taken,
}

/// What an application has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// The number of listeners.
    pub listeners: usize,
    /// The number of connections that it made.
    pub connections: usize,
    /// The number of connections to its listeners.
    pub accepted: usize,
}

impl Usage {
    fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// What distinguishes a connection: the namespace, the source and the destination.
type ConnectionKey = (u64, CanonicalName, CanonicalName);

/// The listeners and connections of all applications.
#[derive(Debug, Default)]
pub(super) struct Table {
    applications: BTreeMap<Application, Usage>,
    /// The usage of each user, and the number of its applications.
    users: BTreeMap<u32, (Usage, usize)>,
    listeners: BTreeMap<ListenerId, Listener>,
    /// Listeners by namespace and port, in the order of their rotation.
    by_port: HashMap<(u64, u16), Vec<ListenerId>>,
    connections: BTreeMap<ConnectionId, Connection>,
    by_names: HashMap<ConnectionKey, ConnectionId>,
    /// The ports that connections use.
    used_ports: PortSets,
    last: u64,
    /// Where the search for an ephemeral port starts: among our own, and among the kernel's.
    cursors: [u16; 2],
}

impl Table {
    /// Makes an empty table that searches ephemeral ports from an arbitrary one on. A new service
    /// does not know the connections of one that ended, and should not start with the ports that
    /// they use.
    pub(super) fn beginning_at(random: u16) -> Self {
        let of = |first: u16, last: u16| first + random % (last - first + 1);
        let kernels = of(limits::FIRST_KERNEL_EPHEMERAL, limits::FIRST_EPHEMERAL - 1);
        Self { cursors: [of(limits::FIRST_EPHEMERAL, u16::MAX), kernels], ..Self::default() }
    }

    /// Adds a listener.
    ///
    /// # Errors
    /// [`TableError::Applications`], [`TableError::Listeners`].
    pub(super) fn listen(&mut self, listener: Listener) -> Result<ListenerId, TableError> {
        let usage = self.usage_of(listener.application)?;
        let of_user = self.of_user(listener.application.uid);
        if usage.listeners >= limits::LISTENERS_PER_APPLICATION
            || of_user.listeners >= limits::LISTENERS_PER_USER
        {
            return Err(TableError::Listeners);
        }
        let id = self.next();
        self.increase(listener.application, |usage| usage.listeners += 1);
        self.by_port.entry((listener.namespace, listener.name.port())).or_default().push(id);
        self.listeners.insert(id, listener);
        Ok(id)
    }

    /// Returns the listener that a connection to `remote` goes to. Listeners of one name are served
    /// in rotation.
    pub(super) fn find(&mut self, namespace: u64, remote: SocketAddr) -> Option<ListenerId> {
        let to = CanonicalName::of(remote);
        let fits = self.by_port.get_mut(&(namespace, remote.port()))?;
        let score = |id: &ListenerId| self.listeners.get(id).and_then(|listener| score(listener, to));
        let (at, _) = fits
            .iter()
            .enumerate()
            .filter_map(|(at, id)| Some((at, score(id)?)))
            // The first of the best; it moves to the end, so the others come first next time.
            .min_by_key(|&(at, score)| (std::cmp::Reverse(score), at))?;
        let id = fits.remove(at);
        fits.push(id);
        Some(id)
    }

    /// Adds a connection to `listener`. `local` is the connecting socket's name, if it is bound:
    /// its address may be unspecified and its port 0.
    ///
    /// # Errors
    /// [`TableError`]; a missing listener counts as [`TableError::Ports`].
    pub(super) fn connect(
        &mut self,
        client: Application,
        listener: ListenerId,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<ConnectionId, TableError> {
        self.may_connect(client)?;
        let Some(target) = self.listeners.get(&listener) else { return Err(TableError::Ports) };
        let (namespace, server, listening) = (target.namespace, target.application, target.name);
        let to = CanonicalName::of(remote);
        let from = source_of(local, to);
        if from.ip.is_ipv4() != to.ip.is_ipv4()
            || (from.scope != to.scope && from.scope != 0 && to.scope != 0)
        {
            return Err(TableError::Ports);
        }
        let port = match from.port {
            0 => self.ephemeral(namespace, from, to).ok_or(TableError::Ports)?,
            port => port,
        };
        let from = CanonicalName { port, ..from };
        let pair = (namespace, from, to);
        if self.by_names.contains_key(&pair) {
            return Err(TableError::Taken);
        }
        let (six, listens_six) = (remote.is_ipv6(), listening.is_ipv6());
        let names = Names { local: from.shown(six), peer: to.shown(six) };
        let accepted = Names { local: to.shown(listens_six), peer: from.shown(listens_six) };
        let id = self.next();
        self.increase(client, |usage| usage.connections += 1);
        self.increase(server, |usage| usage.accepted += 1);
        self.by_names.insert(pair, id);
        self.used_ports.take(namespace, from, to);
        self.connections.insert(id, Connection { client, server, namespace, names, accepted });
        Ok(id)
    }

    /// Returns whether a socket that is bound to a name has a connection to `remote` already,
    /// whichever program listens there now.
    pub(super) fn is_taken(&self, namespace: u64, local: SocketAddr, remote: SocketAddr) -> bool {
        let to = CanonicalName::of(remote);
        self.by_names.contains_key(&(namespace, source_of(Some(local), to), to))
    }

    /// Adds a listener of a predecessor, with its number and without checking limits.
    pub(super) fn restore_listener(&mut self, id: ListenerId, listener: Listener) {
        self.last = self.last.max(id);
        self.increase(listener.application, |usage| usage.listeners += 1);
        self.by_port.entry((listener.namespace, listener.name.port())).or_default().push(id);
        self.listeners.insert(id, listener);
    }

    /// Adds a connection of a predecessor, with its number and without checking limits.
    pub(super) fn restore_connection(&mut self, id: ConnectionId, connection: Connection) {
        self.last = self.last.max(id);
        self.increase(connection.client, |usage| usage.connections += 1);
        self.increase(connection.server, |usage| usage.accepted += 1);
        let (namespace, from, to) = key_of(&connection);
        self.by_names.insert((namespace, from, to), id);
        self.used_ports.take(namespace, from, to);
        self.connections.insert(id, connection);
    }

    /// Adds a connection that was made on a VNIC, unless its application has too many.
    pub(super) fn add(&mut self, connection: Connection) -> Option<ConnectionId> {
        self.may_connect(connection.client).ok()?;
        let id = self.next();
        self.restore_connection(id, connection);
        Some(id)
    }

    /// Removes a listener. Its connections stay.
    pub(super) fn close(&mut self, id: ListenerId) -> Option<Listener> {
        let listener = self.listeners.remove(&id)?;
        let port = (listener.namespace, listener.name.port());
        if let Some(ids) = self.by_port.get_mut(&port) {
            ids.retain(|&other| other != id);
            if ids.is_empty() {
                self.by_port.remove(&port);
            }
        }
        self.decrease(listener.application, |usage| usage.listeners -= 1);
        Some(listener)
    }

    /// Removes a connection; its names are free.
    pub(super) fn disconnect(&mut self, id: ConnectionId) -> Option<Connection> {
        let connection = self.connections.remove(&id)?;
        let (namespace, from, to) = key_of(&connection);
        // Of two with the same names, the index has the later one.
        if self.by_names.get(&(namespace, from, to)) == Some(&id) {
            self.by_names.remove(&(namespace, from, to));
            self.used_ports.free(namespace, from, to);
        }
        self.decrease(connection.client, |usage| usage.connections -= 1);
        self.decrease(connection.server, |usage| usage.accepted -= 1);
        Some(connection)
    }

    /// Changes the backlog of a listener.
    pub(super) fn set_backlog(&mut self, id: ListenerId, backlog: u32) {
        if let Some(listener) = self.listeners.get_mut(&id) {
            listener.backlog = backlog;
        }
    }

    /// Moves a listener to the end of its port's order: the others of its name come first next
    /// time.
    pub(super) fn rotate(&mut self, id: ListenerId) {
        let Some(listener) = self.listeners.get(&id) else { return };
        if let Some(ids) = self.by_port.get_mut(&(listener.namespace, listener.name.port()))
            && let Some(at) = ids.iter().position(|&other| other == id)
        {
            ids.remove(at);
            ids.push(id);
        }
    }

    /// Returns how many listeners at the same port come before this one.
    pub(super) fn rotation(&self, id: ListenerId) -> Option<usize> {
        let listener = self.listeners.get(&id)?;
        self.by_port.get(&(listener.namespace, listener.name.port()))?.iter().position(|&other| other == id)
    }

    /// Iterates over the listeners with the same name as this one, including itself.
    pub(super) fn of_same_name(&self, id: ListenerId) -> impl Iterator<Item = ListenerId> {
        let own = self.listeners.get(&id);
        let listeners = own.and_then(|own| self.by_port.get(&(own.namespace, own.name.port())));
        listeners
            .into_iter()
            .flatten()
            .copied()
            .filter(move |other| self.listeners.get(other).map(|other| other.name) == own.map(|own| own.name))
    }

    /// Returns a listener.
    pub(super) fn listener(&self, id: ListenerId) -> Option<&Listener> {
        self.listeners.get(&id)
    }

    /// Returns a connection.
    pub(super) fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(&id)
    }

    /// Iterates over all listeners.
    pub(super) fn listeners(&self) -> impl Iterator<Item = (ListenerId, &Listener)> {
        self.listeners.iter().map(|(&id, listener)| (id, listener))
    }

    /// Iterates over all connections.
    pub(super) fn connections(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> {
        self.connections.iter().map(|(&id, connection)| (id, connection))
    }

    /// Iterates over all applications and their usage.
    pub(super) fn applications(&self) -> impl Iterator<Item = (Application, Usage)> {
        self.applications.iter().map(|(&application, &usage)| (application, usage))
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn usage_of(&self, application: Application) -> Result<Usage, TableError> {
        match self.applications.get(&application) {
            Some(&usage) => Ok(usage),
            None if self.applications.len() >= limits::APPLICATIONS
                || self
                    .users
                    .get(&application.uid)
                    .is_some_and(|&(_, count)| count >= limits::APPLICATIONS_PER_USER) =>
            {
                Err(TableError::Applications)
            }
            None => Ok(Usage::default()),
        }
    }

    fn may_connect(&self, client: Application) -> Result<(), TableError> {
        let (own, of_user) = (self.usage_of(client)?.connections, self.of_user(client.uid).connections);
        let fits = own < limits::CONNECTIONS_PER_APPLICATION && of_user < limits::CONNECTIONS_PER_USER;
        if fits { Ok(()) } else { Err(TableError::Connections) }
    }

    /// Returns what all applications of a user have.
    pub(super) fn of_user(&self, uid: u32) -> Usage {
        self.users.get(&uid).map_or_else(Usage::default, |&(usage, _)| usage)
    }

    fn increase(&mut self, application: Application, change: impl Fn(&mut Usage)) {
        let (of_user, applications) = self.users.entry(application.uid).or_default();
        change(of_user);
        let usage = self.applications.entry(application).or_default();
        *applications += usize::from(usage.is_empty());
        change(usage);
    }

    fn decrease(&mut self, application: Application, change: impl Fn(&mut Usage)) {
        let Some(usage) = self.applications.get_mut(&application) else { return };
        change(usage);
        let is_empty = usage.is_empty();
        if is_empty {
            self.applications.remove(&application);
        }
        if let Some((of_user, applications)) = self.users.get_mut(&application.uid) {
            change(of_user);
            *applications -= usize::from(is_empty);
            if of_user.is_empty() {
                self.users.remove(&application.uid);
            }
        }
    }

    /// Returns a free port for a connection between these two names.
    fn ephemeral(&mut self, namespace: u64, from: CanonicalName, to: CanonicalName) -> Option<u16> {
        let find = |range, start| self.used_ports.find(namespace, from, to, range, start);
        let own = (limits::FIRST_EPHEMERAL, u16::MAX);
        let kernels = (limits::FIRST_KERNEL_EPHEMERAL, limits::FIRST_EPHEMERAL - 1);
        let port = find(own, self.cursors[0]).or_else(|| find(kernels, self.cursors[1]))?;
        self.cursors[usize::from(port < limits::FIRST_EPHEMERAL)] = port.wrapping_add(1);
        Some(port)
    }
}

/// Returns what distinguishes a connection.
fn key_of(connection: &Connection) -> ConnectionKey {
    (
        connection.namespace,
        CanonicalName::of(connection.names.local),
        CanonicalName::of(connection.names.peer),
    )
}

/// Returns the source of a connection to `to`. `local` is the socket's name, if it is bound: its
/// address may be unspecified and its port 0.
fn source_of(local: Option<SocketAddr>, to: CanonicalName) -> CanonicalName {
    match local.map(CanonicalName::of) {
        Some(from) if !from.ip.is_unspecified() => from,
        from => CanonicalName { ip: source(to.ip), scope: to.scope, port: from.map_or(0, |from| from.port) },
    }
}

/// Returns how well a listener matches a destination, if it does.
fn score(listener: &Listener, to: CanonicalName) -> Option<u8> {
    let own = listener.name.ip();
    let canonical_name = CanonicalName::of(listener.name);
    if (canonical_name.ip, canonical_name.scope) == (to.ip, to.scope) && !own.is_unspecified() {
        return Some(3);
    }
    match (own, to.ip) {
        (IpAddr::V4(own), IpAddr::V4(_)) if own.is_unspecified() => Some(2),
        (IpAddr::V6(own), IpAddr::V6(_)) if own.is_unspecified() => Some(2),
        (IpAddr::V6(own), IpAddr::V4(_)) if own.is_unspecified() && !listener.only_ipv6 => Some(1),
        // ::ffff:0.0.0.0 is a wildcard of IPv4 alone.
        (IpAddr::V6(own), IpAddr::V4(_)) if own == Ipv4Addr::UNSPECIFIED.to_ipv6_mapped() => Some(2),
        _ => None,
    }
}
