//! What each application has, and what a revocation ended: JSON in a sealed memfd.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most bytes of a list that is read back.
const MOST: u64 = 64 << 20;

/// Most connections in one list: people read it, and it is made in one go.
pub(crate) const LISTED: usize = 4096;

/// What each application has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The applications.
    pub applications: Vec<ListedApplication>,
    /// The listeners.
    pub listeners: Vec<ListedListener>,
    /// Connections between two programs. The kernel lists its own.
    pub connections: Vec<ListedConnection>,
    /// The number of connections beyond [`LISTED`].
    pub omitted: usize,
}

/// An application, on the host's addresses or on one VNIC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedApplication {
    /// Its id, 32 hexadecimal digits.
    pub id: String,
    /// Its user.
    pub uid: u32,
    /// The number of its listeners.
    pub listeners: usize,
    /// The number of connections that it made.
    pub connections: usize,
    /// The number of connections to its listeners.
    pub accepted: usize,
    /// The VNIC; none: the host's addresses.
    #[serde(default)]
    pub vnic: Option<String>,
    /// Bytes that it has sent over its connections.
    #[serde(default)]
    pub sent: u64,
    /// Bytes that it has received.
    #[serde(default)]
    pub received: u64,
    /// Bytes of memory of its connections that were touched.
    #[serde(default)]
    pub memory: u64,
}

/// A listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedListener {
    /// The application.
    pub application: String,
    /// The process that listened.
    pub pid: i32,
    /// The address and port.
    pub name: SocketAddr,
    /// The network namespace's cookie.
    pub namespace: u64,
    /// Connections that may wait.
    pub backlog: u32,
    /// For a published port: the listener to which it leads, after its VNIC's name if it is on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leads_to: Option<String>,
    /// The VNIC; none: the host's addresses.
    #[serde(default)]
    pub vnic: Option<String>,
}

/// A connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedConnection {
    /// The application that connected, and the one that listened.
    pub applications: [String; 2],
    /// The names, as the connecting side has them.
    pub local: SocketAddr,
    /// The other side's.
    pub peer: SocketAddr,
}

/// What a revocation ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// The number of listeners that were closed.
    pub listeners: usize,
    /// The connections that were reset, by the cookies of their two placeholders.
    pub connections: Vec<[u64; 2]>,
    /// The users whose application it was.
    #[serde(default)]
    pub users: BTreeSet<u32>,
}

impl Revocation {
    /// Adds what another part of the service ended of the same application.
    pub(crate) fn add(&mut self, other: Self) {
        self.listeners += other.listeners;
        let known: BTreeSet<[u64; 2]> = self.connections.iter().copied().collect();
        self.connections.extend(other.connections.into_iter().filter(|found| !known.contains(found)));
        self.users.extend(other.users);
    }
}

pub(crate) fn hexadecimal(id: [u8; 16]) -> String {
    use std::fmt::Write as _;
    id.iter().fold(String::with_capacity(32), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Writes a value as JSON into a sealed memfd.
///
/// # Errors
/// [`Errno::NOMEM`].
pub(crate) fn sealed(what: &impl Serialize) -> Result<OwnedFd, Errno> {
    let text = serde_json::to_vec(what).map_err(|_| Errno::NOMEM)?;
    let file = sietch_protocol::sealed::make("sietch-list", &text).map_err(|_| Errno::NOMEM)?;
    debug_assert!(sietch_protocol::sealed::check(file.as_fd(), u64::MAX).is_ok(), "it was just sealed");
    Ok(file)
}

/// Reads a value that [`sealed`] wrote.
pub(crate) fn unseal<T: DeserializeOwned>(file: &OwnedFd) -> Option<T> {
    serde_json::from_slice(&sietch_protocol::sealed::read(file, MOST).ok()?).ok()
}
