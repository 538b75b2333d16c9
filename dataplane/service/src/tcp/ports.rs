//! The TCP ports of a VNIC, and the applications that have bound them.
//!
//! 1. A *binding* is a name, an address of the VNIC (or any) and a port, that an application has
//!    bound. The application may listen on it.
//! 2. Two bindings collide as two bound sockets of Linux do: same port and overlapping addresses,
//!    unless both allow it. With SO_REUSEPORT those of one user always may share; with SO_REUSEADDR
//!    any two may, as long as neither listens.
//! 3. The listener for a connection is one with the exact address, else one for any address. Of
//!    several (SO_REUSEPORT) a hash of the peer selects one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use rustix::io::Errno;
use sietch_structures::{Key, Slab};

use super::limits::BINDINGS;

/// A name that an application binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BoundName {
    /// The address, of the VNIC or unspecified, and the port; 0 for a free one.
    pub local: SocketAddr,
    /// For `[::]`: not for IPv4 as well.
    pub v6_only: bool,
    /// SO_REUSEADDR.
    pub reuse_address: bool,
    /// SO_REUSEPORT.
    pub reuse_port: bool,
    /// The user of the application.
    pub uid: u32,
    /// The key of the application in its host.
    pub application: Key,
}

/// The queue of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListenQueue {
    /// The most connections that may wait.
    pub backlog: u32,
    /// The number of connections that wait.
    pub waiting: u32,
}

/// A bound name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    /// The name, with its port.
    pub name: BoundName,
    /// The queue of its listener, if the application listens.
    pub listening: Option<ListenQueue>,
}

/// Why a name cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BindError {
    /// The address does not belong to this VNIC.
    #[error("{0} is no address of this VNIC: bind that, or the unspecified one")]
    NotOurs(IpAddr),
    /// The VNIC's filters drop everything for this port.
    #[error("port {0} is not among the VNIC's tcp_ports: add it in sietch.toml")]
    Filtered(u16),
    /// Another binding has it.
    #[error("port {0} is in use on this VNIC: end the program that has it, or choose another")]
    InUse(u16),
    /// No port is free.
    #[error("no port of the VNIC's tcp_ports is free")]
    NoneFree,
    /// There are too many bindings.
    #[error("too many ports are bound: close some")]
    TooMany,
}

impl BindError {
    /// Returns the error number of Linux for this case.
    pub(super) const fn errno(self) -> Errno {
        match self {
            Self::NotOurs(_) => Errno::ADDRNOTAVAIL,
            Self::Filtered(_) => Errno::ACCESS,
            Self::InUse(_) | Self::NoneFree => Errno::ADDRINUSE,
            Self::TooMany => Errno::NOBUFS,
        }
    }
}

/// Returns the source ports of connections that bind none: the widest allowed range.
pub fn source_ports(allowed: &[RangeInclusive<u16>]) -> Option<(u16, u16)> {
    let wide = |range: &&RangeInclusive<u16>| range.end().saturating_sub(*range.start());
    let widest = allowed.iter().filter(|range| !range.is_empty()).max_by_key(wide)?;
    Some((*widest.start().max(&1), *widest.end()))
}

/// All bindings of a VNIC.
#[derive(Debug)]
pub(super) struct Ports {
    addresses: Vec<IpAddr>,
    allowed: Vec<RangeInclusive<u16>>,
    bindings: Slab<Binding>,
    by_port: BTreeMap<u16, Vec<Key>>,
    /// Where the search for a free port continues.
    next: u16,
}

impl Ports {
    /// Makes a table without bindings. `addresses` are the VNIC's, `allowed` the ports that its
    /// filters let through.
    pub(super) fn new(addresses: Vec<IpAddr>, allowed: Vec<RangeInclusive<u16>>) -> Self {
        Self { addresses, allowed, bindings: Slab::default(), by_port: BTreeMap::new(), next: 0 }
    }

    /// Returns whether the filters let a port through.
    pub(super) fn is_allowed(&self, port: u16) -> bool {
        self.allowed.iter().any(|range| range.contains(&port))
    }

    /// Returns whether `address` belongs to the VNIC.
    pub(super) fn is_ours(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address.to_canonical())
    }

    /// Binds `name`, and returns the key of the binding.
    ///
    /// # Errors
    /// See [`BindError`].
    pub(super) fn bind(&mut self, mut name: BoundName) -> Result<Key, BindError> {
        if self.bindings.len() >= BINDINGS {
            return Err(BindError::TooMany);
        }
        let address = name.local.ip().to_canonical();
        if !is_any(address) && !self.is_ours(address) {
            return Err(BindError::NotOurs(address));
        }
        if name.local.port() == 0 {
            name.local.set_port(self.free_port().ok_or(BindError::NoneFree)?);
        }
        let port = name.local.port();
        if !self.is_allowed(port) {
            return Err(BindError::Filtered(port));
        }
        let others = self.by_port.get(&port).into_iter().flatten();
        let collides = |other: &Binding| collide(&other.name, &name, other.listening.is_some());
        if others.filter_map(|key| self.bindings.get(*key)).any(collides) {
            return Err(BindError::InUse(port));
        }
        let key = self.bindings.insert(Binding { name, listening: None });
        self.by_port.entry(port).or_default().push(key);
        Ok(key)
    }

    /// Returns a free port; successive calls go round the allowed ports.
    fn free_port(&mut self) -> Option<u16> {
        let all: u32 = self.allowed.iter().map(|range| range.len() as u32).sum();
        for _ in 0..all {
            self.next = self.next.wrapping_add(1);
            let mut rest = u32::from(self.next) % all;
            for range in &self.allowed {
                let count = range.len() as u32;
                if rest < count {
                    let port = range.start() + rest as u16;
                    if port != 0 && !self.by_port.contains_key(&port) {
                        return Some(port);
                    }
                    break;
                }
                rest -= count;
            }
        }
        None
    }

    /// Listens on a binding, or changes its backlog.
    ///
    /// # Errors
    /// [`BindError::InUse`]: another application listens there. With SO_REUSEADDR two may be
    /// bound, but only one may listen.
    pub(super) fn listen(&mut self, key: Key, backlog: u32) -> Result<(), BindError> {
        let Some(binding) = self.bindings.get(key).copied() else { return Err(BindError::NoneFree) };
        let port = binding.name.local.port();
        let others = self.by_port.get(&port).into_iter().flatten().filter(|other| **other != key);
        let collides =
            |other: &Binding| other.listening.is_some() && collide(&other.name, &binding.name, true);
        if others.filter_map(|other| self.bindings.get(*other)).any(collides) {
            return Err(BindError::InUse(port));
        }
        if let Some(binding) = self.bindings.get_mut(key) {
            binding.listening.get_or_insert_default().backlog = backlog;
        }
        Ok(())
    }

    /// Releases a binding. Returns it, and whether its port has no listener any more.
    pub(super) fn release(&mut self, key: Key) -> Option<(Binding, bool)> {
        let binding = self.bindings.remove(key)?;
        let port = binding.name.local.port();
        if let Some(keys) = self.by_port.get_mut(&port) {
            keys.retain(|other| *other != key);
            if keys.is_empty() {
                self.by_port.remove(&port);
            }
        }
        Some((binding, self.listeners(port).next().is_none()))
    }

    /// Returns the binding of a key.
    pub(super) fn get(&self, key: Key) -> Option<&Binding> {
        self.bindings.get(key)
    }

    /// Returns the queue of a listener.
    pub(super) fn queue(&mut self, key: Key) -> Option<&mut ListenQueue> {
        self.bindings.get_mut(key)?.listening.as_mut()
    }

    fn listeners(&self, port: u16) -> impl Iterator<Item = (Key, &Binding)> {
        let keys = self.by_port.get(&port).into_iter().flatten();
        keys.filter_map(|key| {
            Some((*key, self.bindings.get(*key).filter(|binding| binding.listening.is_some())?))
        })
    }

    /// Returns the listener for a connection to `local`; `hash` of its peer selects one of several.
    pub(super) fn listener(&self, local: SocketAddr, hash: u64) -> Option<Key> {
        let address = local.ip().to_canonical();
        let rank = |binding: &Binding| {
            let own = binding.name.local.ip();
            match own.to_canonical() {
                exact if exact == address => 3,
                IpAddr::V4(any) if any.is_unspecified() && address.is_ipv4() => 2,
                IpAddr::V6(any) if any.is_unspecified() && address.is_ipv6() => 2,
                IpAddr::V6(any) if any.is_unspecified() && !binding.name.v6_only => 1,
                _ => 0,
            }
        };
        let best =
            self.listeners(local.port()).map(|(_, binding)| rank(binding)).max().filter(|rank| *rank > 0)?;
        let candidates: Vec<Key> = self
            .listeners(local.port())
            .filter(|(_, binding)| rank(binding) == best)
            .map(|(key, _)| key)
            .collect();
        candidates.get((hash % candidates.len().max(1) as u64) as usize).copied()
    }

    /// Returns how many more connections may wait at the listeners of a port: the engine's backlog.
    pub(super) fn room(&self, port: u16) -> u32 {
        let room = |(_, binding): (Key, &Binding)| {
            binding.listening.map_or(0, |listening| listening.backlog.saturating_sub(listening.waiting))
        };
        self.listeners(port).map(room).fold(0, u32::saturating_add)
    }

    /// Returns the number of bindings.
    pub(super) fn len(&self) -> usize {
        self.bindings.len()
    }

    /// Iterates over the bindings of an application.
    pub(super) fn of_application(&self, application: Key) -> impl Iterator<Item = (Key, Binding)> + '_ {
        self.bindings
            .iter()
            .filter(move |(_, binding)| binding.name.application == application)
            .map(|(key, binding)| (key, *binding))
    }

    /// Returns the keys of all bindings.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.bindings.keys().collect()
    }
}

fn is_any(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(Ipv4Addr::UNSPECIFIED) | IpAddr::V6(Ipv6Addr::UNSPECIFIED))
}

/// Returns whether two names on one port exclude each other. `listening`: an application listens on
/// one of them.
fn collide(one: &BoundName, other: &BoundName, listening: bool) -> bool {
    if !overlap(one, other) {
        return false;
    }
    let ports = one.reuse_port && other.reuse_port && one.uid == other.uid;
    let addresses = one.reuse_address && other.reuse_address && !listening;
    !ports && !addresses
}

fn overlap(one: &BoundName, other: &BoundName) -> bool {
    let (a, b) = (one.local.ip().to_canonical(), other.local.ip().to_canonical());
    match (a.is_ipv4(), b.is_ipv4()) {
        (true, true) | (false, false) => a == b || is_any(a) || is_any(b),
        (true, false) => is_any(b) && !other.v6_only,
        (false, true) => is_any(a) && !one.v6_only,
    }
}

#[cfg(test)]
mod tests;
