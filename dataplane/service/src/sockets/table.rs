//! Who listens where, who is connected to whom, and what each application has: names and numbers,
//! no descriptors.
//!
//! 1. **Applications** are known by user and id. One exists while it has a listener or a
//!    connection.
//! 2. **Listeners** are found by network namespace and port; among those that fit the destination
//!    the one with the address itself comes before a wildcard, and IPv4 before IPv6, as in the
//!    kernel. Several with the same name (`SO_REUSEPORT`) have their turns one after the other.
//! 3. **Connections** have a pair of names that no other has. A connecting socket without a port
//!    gets one ([`limits::FIRST_EPHEMERAL`]).
//! 4. The address of a connecting socket without one is what the kernel would take for a
//!    destination on this host: the destination itself, or 127.0.0.1 for all of 127.0.0.0/8.
//! 5. Everything is bounded for each application, and for each user: a program names its
//!    application itself.
//!
//! Which name is whose is the kernel's word: callers read addresses from kernel sockets.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use self::ports::Ports;
use super::limits;

mod ports;

/// An application: its user, and the id that groups its processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Application {
    /// From SO_PEERCRED.
    pub uid: u32,
    /// From its requests.
    pub id: [u8; 16],
}

/// A listener's number, never used twice.
pub type ListenerId = u64;
/// A connection's number, never used twice.
pub type ConnectionId = u64;

/// Somebody listens.
#[derive(Debug, Clone)]
pub struct Listener {
    /// Whose it is.
    pub application: Application,
    /// The network namespace.
    pub namespace: u64,
    /// As the kernel's socket says it.
    pub name: SocketAddr,
    /// An IPv6 socket that takes no IPv4.
    pub only_ipv6: bool,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// A process that holds it, for display.
    pub pid: i32,
}

/// Two ends are connected.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Who connected.
    pub client: Application,
    /// Who listens.
    pub server: Application,
    /// The network namespace.
    pub namespace: u64,
    /// The names as the connecting side sees them.
    pub names: Names,
    /// The names as the accepting side sees them.
    pub accepted: Names,
}

/// The two names of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// This end's.
    pub local: SocketAddr,
    /// The other's.
    pub peer: SocketAddr,
}

/// Why something is not entered. Whoever asked goes to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// Too many applications.
    Applications,
    /// Too many listeners of the application.
    Listeners,
    /// Too many connections of the application.
    Connections,
    /// No port is left for these two names.
    Ports,
    /// The name that the connecting socket is bound to has a connection to this destination
    /// already.
    Taken,
}

/// What an application has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holding {
    /// Listeners.
    pub listeners: usize,
    /// Connections that it made.
    pub connections: usize,
    /// Connections to its listeners.
    pub accepted: usize,
}

impl Holding {
    fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// A name in one form: IPv4-mapped addresses as IPv4; a scope where the address means nothing
/// without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    ip: IpAddr,
    scope: u32,
    port: u16,
}

impl Place {
    fn of(name: SocketAddr) -> Self {
        let ip = name.ip().to_canonical();
        let scope = match (name, ip) {
            (SocketAddr::V6(name), IpAddr::V6(ip)) if ip.is_unicast_link_local() => name.scope_id(),
            _ => 0,
        };
        Self { ip, scope, port: name.port() }
    }

    /// As a socket of the family shows it.
    fn shown(self, six: bool) -> SocketAddr {
        match mapped(six, self.ip) {
            IpAddr::V6(ip) => SocketAddrV6::new(ip, self.port, 0, self.scope).into(),
            ip => SocketAddr::new(ip, self.port),
        }
    }
}

/// The names of a connection.
type Pair = (u64, Place, Place);

/// See the module.
#[derive(Debug, Default)]
pub struct Table {
    applications: BTreeMap<Application, Holding>,
    /// The same by user, and how many applications it has.
    users: BTreeMap<u32, (Holding, usize)>,
    listeners: BTreeMap<ListenerId, Listener>,
    /// In the order in which they have their turns.
    ports: HashMap<(u64, u16), Vec<ListenerId>>,
    connections: BTreeMap<ConnectionId, Connection>,
    pairs: HashMap<Pair, ConnectionId>,
    /// The ports in those.
    taken: Ports,
    last: u64,
    /// Where the next ephemeral port is looked for: among our own, and among the kernel's.
    cursors: [u16; 2],
}

impl Table {
    /// An empty one that looks for ephemeral ports from an arbitrary one on. Connections of a
    /// service that died are not known to the next: it should not begin with the very ports that
    /// they have.
    pub fn beginning_at(random: u16) -> Self {
        let of = |first: u16, last: u16| first + random % (last - first + 1);
        let kernels = of(limits::FIRST_KERNEL_EPHEMERAL, limits::FIRST_EPHEMERAL - 1);
        Self { cursors: [of(limits::FIRST_EPHEMERAL, u16::MAX), kernels], ..Self::default() }
    }

    /// Enters a listener.
    ///
    /// # Errors
    /// [`Full::Applications`], [`Full::Listeners`].
    pub fn listen(&mut self, listener: Listener) -> Result<ListenerId, Full> {
        let holding = self.holding(listener.application)?;
        let of_user = self.of_user(listener.application.uid);
        if holding.listeners >= limits::LISTENERS_PER_APPLICATION
            || of_user.listeners >= limits::LISTENERS_PER_USER
        {
            return Err(Full::Listeners);
        }
        let id = self.next();
        self.more(listener.application, |holding| holding.listeners += 1);
        self.ports.entry((listener.namespace, listener.name.port())).or_default().push(id);
        self.listeners.insert(id, listener);
        Ok(id)
    }

    /// The listener that a connection to `remote` goes to; among several with one name the next.
    pub fn find(&mut self, namespace: u64, remote: SocketAddr) -> Option<ListenerId> {
        let to = Place::of(remote);
        let fits = self.ports.get_mut(&(namespace, remote.port()))?;
        let score = |id: &ListenerId| self.listeners.get(id).and_then(|listener| score(listener, to));
        let (at, _) = fits
            .iter()
            .enumerate()
            .filter_map(|(at, id)| Some((at, score(id)?)))
            // The first of the best: the others of its name come before it next time.
            .min_by_key(|&(at, score)| (std::cmp::Reverse(score), at))?;
        let id = fits.remove(at);
        fits.push(id);
        Some(id)
    }

    /// Enters a connection to `listener`. `local` is the connecting socket's name, if it is bound:
    /// its address may be unspecified and its port 0.
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Panics
    /// Never: a listener that is not there counts as [`Full::Ports`] as well.
    pub fn connect(
        &mut self,
        client: Application,
        listener: ListenerId,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<ConnectionId, Full> {
        self.may_connect(client)?;
        let Some(target) = self.listeners.get(&listener) else { return Err(Full::Ports) };
        let (namespace, server, listening) = (target.namespace, target.application, target.name);
        let to = Place::of(remote);
        let from = from(local, to);
        if from.ip.is_ipv4() != to.ip.is_ipv4()
            || (from.scope != to.scope && from.scope != 0 && to.scope != 0)
        {
            return Err(Full::Ports);
        }
        let port = match from.port {
            0 => self.ephemeral(namespace, from, to).ok_or(Full::Ports)?,
            port => port,
        };
        let from = Place { port, ..from };
        let pair = (namespace, from, to);
        if self.pairs.contains_key(&pair) {
            return Err(Full::Taken);
        }
        let (six, listens_six) = (remote.is_ipv6(), listening.is_ipv6());
        let names = Names { local: from.shown(six), peer: to.shown(six) };
        let accepted = Names { local: to.shown(listens_six), peer: from.shown(listens_six) };
        let id = self.next();
        self.more(client, |holding| holding.connections += 1);
        self.more(server, |holding| holding.accepted += 1);
        self.pairs.insert(pair, id);
        self.taken.take(namespace, from, to);
        self.connections.insert(id, Connection { client, server, namespace, names, accepted });
        Ok(id)
    }

    /// Whether a socket that is bound to a name has a connection to `remote` already: as for
    /// [`Table::connect`], and whoever listens there now.
    pub fn is_taken(&self, namespace: u64, local: SocketAddr, remote: SocketAddr) -> bool {
        let to = Place::of(remote);
        self.pairs.contains_key(&(namespace, from(Some(local), to), to))
    }

    /// Enters a listener that a predecessor had, with its number and without judging it.
    pub fn restore_listener(&mut self, id: ListenerId, listener: Listener) {
        self.last = self.last.max(id);
        self.more(listener.application, |holding| holding.listeners += 1);
        self.ports.entry((listener.namespace, listener.name.port())).or_default().push(id);
        self.listeners.insert(id, listener);
    }

    /// The same for a connection.
    pub fn restore_connection(&mut self, id: ConnectionId, connection: Connection) {
        self.last = self.last.max(id);
        self.more(connection.client, |holding| holding.connections += 1);
        self.more(connection.server, |holding| holding.accepted += 1);
        let (namespace, from, to) = pair(&connection);
        self.pairs.insert((namespace, from, to), id);
        self.taken.take(namespace, from, to);
        self.connections.insert(id, connection);
    }

    /// Enters a connection that came about elsewhere (on a VNIC), unless its application has too
    /// many.
    pub fn enter(&mut self, connection: Connection) -> Option<ConnectionId> {
        self.may_connect(connection.client).ok()?;
        let id = self.next();
        self.restore_connection(id, connection);
        Some(id)
    }

    /// Takes a listener out. Its connections go on.
    pub fn close(&mut self, id: ListenerId) -> Option<Listener> {
        let listener = self.listeners.remove(&id)?;
        let port = (listener.namespace, listener.name.port());
        if let Some(ids) = self.ports.get_mut(&port) {
            ids.retain(|&other| other != id);
            if ids.is_empty() {
                self.ports.remove(&port);
            }
        }
        self.less(listener.application, |holding| holding.listeners -= 1);
        Some(listener)
    }

    /// Takes a connection out; its names are free.
    pub fn disconnect(&mut self, id: ConnectionId) -> Option<Connection> {
        let connection = self.connections.remove(&id)?;
        let (namespace, from, to) = pair(&connection);
        // Of two with the same names, the later one is entered here.
        if self.pairs.get(&(namespace, from, to)) == Some(&id) {
            self.pairs.remove(&(namespace, from, to));
            self.taken.free(namespace, from, to);
        }
        self.less(connection.client, |holding| holding.connections -= 1);
        self.less(connection.server, |holding| holding.accepted -= 1);
        Some(connection)
    }

    /// Another backlog for a listener.
    pub fn set_backlog(&mut self, id: ListenerId, backlog: u32) {
        if let Some(listener) = self.listeners.get_mut(&id) {
            listener.backlog = backlog;
        }
    }

    /// A listener has had its turn: the others of its name come before it next time.
    pub fn had_turn(&mut self, id: ListenerId) {
        let Some(listener) = self.listeners.get(&id) else { return };
        if let Some(ids) = self.ports.get_mut(&(listener.namespace, listener.name.port()))
            && let Some(at) = ids.iter().position(|&other| other == id)
        {
            ids.remove(at);
            ids.push(id);
        }
    }

    /// How many at a listener's port come before it.
    pub fn turn(&self, id: ListenerId) -> Option<usize> {
        let listener = self.listeners.get(&id)?;
        self.ports.get(&(listener.namespace, listener.name.port()))?.iter().position(|&other| other == id)
    }

    /// Listeners with the same name as this one, itself among them.
    pub fn of_same_name(&self, id: ListenerId) -> impl Iterator<Item = ListenerId> {
        let own = self.listeners.get(&id);
        let mates = own.and_then(|own| self.ports.get(&(own.namespace, own.name.port())));
        mates
            .into_iter()
            .flatten()
            .copied()
            .filter(move |other| self.listeners.get(other).map(|other| other.name) == own.map(|own| own.name))
    }

    /// A listener.
    pub fn listener(&self, id: ListenerId) -> Option<&Listener> {
        self.listeners.get(&id)
    }

    /// A connection.
    pub fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(&id)
    }

    /// All listeners.
    pub fn listeners(&self) -> impl Iterator<Item = (ListenerId, &Listener)> {
        self.listeners.iter().map(|(&id, listener)| (id, listener))
    }

    /// All connections.
    pub fn connections(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> {
        self.connections.iter().map(|(&id, connection)| (id, connection))
    }

    /// All applications and what they have.
    pub fn applications(&self) -> impl Iterator<Item = (Application, Holding)> {
        self.applications.iter().map(|(&application, &holding)| (application, holding))
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn holding(&self, application: Application) -> Result<Holding, Full> {
        match self.applications.get(&application) {
            Some(&holding) => Ok(holding),
            None if self.applications.len() >= limits::APPLICATIONS
                || self
                    .users
                    .get(&application.uid)
                    .is_some_and(|&(_, count)| count >= limits::APPLICATIONS_PER_USER) =>
            {
                Err(Full::Applications)
            }
            None => Ok(Holding::default()),
        }
    }

    fn may_connect(&self, client: Application) -> Result<(), Full> {
        let (own, of_user) = (self.holding(client)?.connections, self.of_user(client.uid).connections);
        let fits = own < limits::CONNECTIONS_PER_APPLICATION && of_user < limits::CONNECTIONS_PER_USER;
        if fits { Ok(()) } else { Err(Full::Connections) }
    }

    /// What all applications of a user have.
    pub fn of_user(&self, uid: u32) -> Holding {
        self.users.get(&uid).map_or_else(Holding::default, |&(holding, _)| holding)
    }

    fn more(&mut self, application: Application, change: impl Fn(&mut Holding)) {
        let (of_user, applications) = self.users.entry(application.uid).or_default();
        change(of_user);
        let holding = self.applications.entry(application).or_default();
        *applications += usize::from(holding.is_empty());
        change(holding);
    }

    fn less(&mut self, application: Application, change: impl Fn(&mut Holding)) {
        let Some(holding) = self.applications.get_mut(&application) else { return };
        change(holding);
        let is_gone = holding.is_empty();
        if is_gone {
            self.applications.remove(&application);
        }
        if let Some((of_user, applications)) = self.users.get_mut(&application.uid) {
            change(of_user);
            *applications -= usize::from(is_gone);
            if of_user.is_empty() {
                self.users.remove(&application.uid);
            }
        }
    }

    /// A port that makes a pair of names that nobody has.
    fn ephemeral(&mut self, namespace: u64, from: Place, to: Place) -> Option<u16> {
        let find = |range, start| self.taken.find(namespace, from, to, range, start);
        let own = (limits::FIRST_EPHEMERAL, u16::MAX);
        let kernels = (limits::FIRST_KERNEL_EPHEMERAL, limits::FIRST_EPHEMERAL - 1);
        let port = find(own, self.cursors[0]).or_else(|| find(kernels, self.cursors[1]))?;
        self.cursors[usize::from(port < limits::FIRST_EPHEMERAL)] = port.wrapping_add(1);
        Some(port)
    }
}

/// What makes a connection different from all others.
fn pair(connection: &Connection) -> Pair {
    (connection.namespace, Place::of(connection.names.local), Place::of(connection.names.peer))
}

/// Where a socket connects from to `to`. `local` is its name, if it is bound: its address may be
/// unspecified and its port 0.
fn from(local: Option<SocketAddr>, to: Place) -> Place {
    match local.map(Place::of) {
        Some(from) if !from.ip.is_unspecified() => from,
        from => Place { ip: source(to.ip), scope: to.scope, port: from.map_or(0, |from| from.port) },
    }
}

/// How well a listener fits a destination, if it does.
fn score(listener: &Listener, to: Place) -> Option<u8> {
    let own = listener.name.ip();
    let place = Place::of(listener.name);
    if (place.ip, place.scope) == (to.ip, to.scope) && !own.is_unspecified() {
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

/// The address from which the kernel connects to an address of this host.
fn source(to: IpAddr) -> IpAddr {
    match to {
        IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        other => other,
    }
}

/// An address as a socket of the family shows it.
fn mapped(six: bool, ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if six => IpAddr::V6(ip.to_ipv6_mapped()),
        other => other,
    }
}

/// Whether an address belongs to every host.
pub fn is_loopback(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip == Ipv6Addr::LOCALHOST,
    }
}
