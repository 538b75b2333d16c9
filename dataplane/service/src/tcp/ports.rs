//! Who has which TCP port of a VNIC.
//!
//! 1. A *claim* is a name, an address of the VNIC (or any) and a port, that an application has
//!    bound. It may listen on it.
//! 2. Two claims collide as two bound sockets of Linux do: same port and overlapping addresses,
//!    unless both allow it: with SO_REUSEPORT those of one user always, with SO_REUSEADDR as long
//!    as neither listens.
//! 3. The listener for a connection is one whose address is the very one, else one for any address.
//!    Of several (SO_REUSEPORT) a hash of the peer picks.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use rustix::io::Errno;

use super::limits::CLAIMS;
use super::slots::Slots;

/// What an application binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The address, of the VNIC or unspecified, and the port; 0 for one that is free.
    pub local: SocketAddr,
    /// Of `[::]`: not for IPv4 as well.
    pub v6_only: bool,
    /// SO_REUSEADDR.
    pub reuse_address: bool,
    /// SO_REUSEPORT.
    pub reuse_port: bool,
    /// The user.
    pub uid: u32,
    /// The place of its application among those of the host.
    pub application: u64,
}

/// A listener's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listening {
    /// Most connections that may wait.
    pub backlog: u32,
    /// Those that do.
    pub waiting: u32,
}

/// A name that somebody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// As it was bound, with its port.
    pub name: Name,
    /// Whether it is listened on.
    pub listening: Option<Listening>,
}

/// Why a name cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is not an address of this VNIC.
    #[error("{0} is no address of this VNIC: bind that, or the unspecified one")]
    NotOurs(IpAddr),
    /// The VNIC's filters let nothing through there.
    #[error("port {0} is not among the VNIC's tcp_ports: add it in sietch.toml")]
    Filtered(u16),
    /// Somebody else has it.
    #[error("port {0} is in use on this VNIC: end who has it, or choose another")]
    InUse(u16),
    /// None is free.
    #[error("no port of the VNIC's tcp_ports is free")]
    NoneFree,
    /// There are too many.
    #[error("too many ports are bound: close some")]
    TooMany,
}

impl Refused {
    /// As Linux says it.
    pub const fn errno(self) -> Errno {
        match self {
            Self::NotOurs(_) => Errno::ADDRNOTAVAIL,
            Self::Filtered(_) => Errno::ACCESS,
            Self::InUse(_) | Self::NoneFree => Errno::ADDRINUSE,
            Self::TooMany => Errno::NOBUFS,
        }
    }
}

/// Every claim of a VNIC.
#[derive(Debug)]
pub struct Ports {
    addresses: Vec<IpAddr>,
    allowed: Vec<RangeInclusive<u16>>,
    claims: Slots<Claim>,
    by_port: BTreeMap<u16, Vec<u64>>,
    /// Where the search for a free port goes on.
    next: u16,
}

impl Ports {
    /// Nobody has any. `addresses` are the VNIC's, `allowed` what its filters let through.
    pub fn new(addresses: Vec<IpAddr>, allowed: Vec<RangeInclusive<u16>>) -> Self {
        Self { addresses, allowed, claims: Slots::default(), by_port: BTreeMap::new(), next: 0 }
    }

    /// Whether the filters let the port through.
    pub fn is_allowed(&self, port: u16) -> bool {
        self.allowed.iter().any(|range| range.contains(&port))
    }

    /// Whether `address` is one of the VNIC's.
    pub fn is_ours(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address.to_canonical())
    }

    /// The VNIC's addresses.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Where connections that name no port begin: the widest range of what is allowed.
    pub fn source_ports(allowed: &[RangeInclusive<u16>]) -> Option<(u16, u16)> {
        let wide = |range: &&RangeInclusive<u16>| range.end().saturating_sub(*range.start());
        let widest = allowed.iter().filter(|range| !range.is_empty()).max_by_key(wide)?;
        Some((*widest.start().max(&1), *widest.end()))
    }

    /// Gives `name` away.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn claim(&mut self, mut name: Name) -> Result<u64, Refused> {
        if self.claims.len() >= CLAIMS {
            return Err(Refused::TooMany);
        }
        let address = name.local.ip().to_canonical();
        if !is_any(address) && !self.is_ours(address) {
            return Err(Refused::NotOurs(address));
        }
        if name.local.port() == 0 {
            name.local.set_port(self.free_port().ok_or(Refused::NoneFree)?);
        }
        let port = name.local.port();
        if !self.is_allowed(port) {
            return Err(Refused::Filtered(port));
        }
        let others = self.by_port.get(&port).into_iter().flatten();
        let collides = |other: &Claim| collide(&other.name, &name, other.listening.is_some());
        if others.filter_map(|key| self.claims.get(*key)).any(collides) {
            return Err(Refused::InUse(port));
        }
        let key = self.claims.insert(Claim { name, listening: None });
        self.by_port.entry(port).or_default().push(key);
        Ok(key)
    }

    /// A port that nobody has, in turn.
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

    /// Listens on a claim, or changes its backlog.
    ///
    /// # Errors
    /// [`Refused::InUse`]: somebody else listens there; two may be bound with SO_REUSEADDR, one may listen.
    pub fn listen(&mut self, key: u64, backlog: u32) -> Result<(), Refused> {
        let Some(claim) = self.claims.get(key).copied() else { return Err(Refused::NoneFree) };
        let port = claim.name.local.port();
        let others = self.by_port.get(&port).into_iter().flatten().filter(|other| **other != key);
        let collides = |other: &Claim| other.listening.is_some() && collide(&other.name, &claim.name, true);
        if others.filter_map(|other| self.claims.get(*other)).any(collides) {
            return Err(Refused::InUse(port));
        }
        if let Some(claim) = self.claims.get_mut(key) {
            claim.listening.get_or_insert_default().backlog = backlog;
        }
        Ok(())
    }

    /// Takes a claim back. Says whether its port is listened on by nobody any more.
    pub fn release(&mut self, key: u64) -> Option<(Claim, bool)> {
        let claim = self.claims.remove(key)?;
        let port = claim.name.local.port();
        if let Some(keys) = self.by_port.get_mut(&port) {
            keys.retain(|other| *other != key);
            if keys.is_empty() {
                self.by_port.remove(&port);
            }
        }
        Some((claim, self.listeners(port).next().is_none()))
    }

    /// What a key names.
    pub fn get(&self, key: u64) -> Option<&Claim> {
        self.claims.get(key)
    }

    /// A listener's queue.
    pub fn queue(&mut self, key: u64) -> Option<&mut Listening> {
        self.claims.get_mut(key)?.listening.as_mut()
    }

    fn listeners(&self, port: u16) -> impl Iterator<Item = (u64, &Claim)> {
        let keys = self.by_port.get(&port).into_iter().flatten();
        keys.filter_map(|key| Some((*key, self.claims.get(*key).filter(|claim| claim.listening.is_some())?)))
    }

    /// Who listens for a connection to `local`; `hash` of its peer picks one of several.
    pub fn listener(&self, local: SocketAddr, hash: u64) -> Option<u64> {
        let address = local.ip().to_canonical();
        let rank = |claim: &Claim| {
            let own = claim.name.local.ip();
            match own.to_canonical() {
                exact if exact == address => 3,
                IpAddr::V4(any) if any.is_unspecified() && address.is_ipv4() => 2,
                IpAddr::V6(any) if any.is_unspecified() && address.is_ipv6() => 2,
                IpAddr::V6(any) if any.is_unspecified() && !claim.name.v6_only => 1,
                _ => 0,
            }
        };
        let best =
            self.listeners(local.port()).map(|(_, claim)| rank(claim)).max().filter(|rank| *rank > 0)?;
        let candidates: Vec<u64> = self
            .listeners(local.port())
            .filter(|(_, claim)| rank(claim) == best)
            .map(|(key, _)| key)
            .collect();
        candidates.get((hash % candidates.len().max(1) as u64) as usize).copied()
    }

    /// Connections that may still wait at all listeners of a port: what the engine's backlog is to
    /// be.
    pub fn room(&self, port: u16) -> u32 {
        let room = |(_, claim): (u64, &Claim)| {
            claim.listening.map_or(0, |listening| listening.backlog.saturating_sub(listening.waiting))
        };
        self.listeners(port).map(room).fold(0, u32::saturating_add)
    }

    /// How many claims there are.
    pub fn len(&self) -> usize {
        self.claims.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// The claims of an application.
    pub fn of_application(&self, application: u64) -> impl Iterator<Item = (u64, Claim)> + '_ {
        self.claims
            .iter()
            .filter(move |(_, claim)| claim.name.application == application)
            .map(|(key, claim)| (key, *claim))
    }

    /// Keys of all claims.
    pub fn keys(&self) -> Vec<u64> {
        self.claims.keys()
    }
}

fn is_any(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(Ipv4Addr::UNSPECIFIED) | IpAddr::V6(Ipv6Addr::UNSPECIFIED))
}

/// Whether two names on one port exclude each other; `listening`: whether one of them is listened
/// on.
fn collide(one: &Name, other: &Name, listening: bool) -> bool {
    if !overlap(one, other) {
        return false;
    }
    let ports = one.reuse_port && other.reuse_port && one.uid == other.uid;
    let addresses = one.reuse_address && other.reuse_address && !listening;
    !ports && !addresses
}

fn overlap(one: &Name, other: &Name) -> bool {
    let (a, b) = (one.local.ip().to_canonical(), other.local.ip().to_canonical());
    match (a.is_ipv4(), b.is_ipv4()) {
        (true, true) | (false, false) => a == b || is_any(a) || is_any(b),
        (true, false) => is_any(b) && !other.v6_only,
        (false, true) => is_any(a) && !one.v6_only,
    }
}

#[cfg(test)]
mod tests;
