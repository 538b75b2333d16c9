//! What an administrator asks: who has what, and that somebody shall have it no longer.
//!
//! 1. Root and the service's own user see and revoke everything, others what is theirs.
//! 2. A list travels in a sealed memfd, as JSON ([`Listing`]).
//! 3. To revoke an application closes its listeners and resets its connections: both private pages say that the connection failed (`ECONNRESET`), and
//!    the common memory says something that each end takes for a reset. Who sleeps in a call is woken by whoever may reach into its process:
//!    the list has the numbers of the sockets for that ([`Cut`]). What the application asks for from then on is refused.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sietch_protocol::socket_service::{Reply, ReplyKind, Request};
use sietch_ring::stream::{Memory, STATE_OFFSET, layout, state};

use super::limits;
use super::requests::{Answer, Caller};
use super::run::Service;
use super::table::{Application, ConnectionId};

/// Connections that a list names: it is for people, and made in one go.
pub const LISTED: usize = 4096;

/// Who has what.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// Applications.
    pub applications: Vec<ListedApplication>,
    /// Listeners.
    pub listeners: Vec<ListedListener>,
    /// Connections between two programs; those of the kernel are the kernel's to list.
    pub connections: Vec<ListedConnection>,
    /// Connections beyond [`LISTED`].
    pub omitted: usize,
}

/// An application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedApplication {
    /// Its id, 32 hexadecimal digits.
    pub id: String,
    /// Its user.
    pub uid: u32,
    /// Listeners that it has.
    pub listeners: usize,
    /// Connections that it made.
    pub connections: usize,
    /// Connections to its listeners.
    pub accepted: usize,
}

/// A listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedListener {
    /// The application.
    pub application: String,
    /// The process that listened.
    pub pid: i32,
    /// Where.
    pub name: SocketAddr,
    /// The network namespace's cookie.
    pub namespace: u64,
    /// How many may wait.
    pub backlog: u32,
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

/// What a revocation ended: cookies of the placeholders.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Listeners that were closed.
    pub listeners: usize,
    /// Connections that were reset, by the cookies of their two placeholders.
    pub connections: Vec<[u64; 2]>,
}

fn hexadecimal(id: [u8; 16]) -> String {
    use std::fmt::Write as _;
    id.iter().fold(String::with_capacity(32), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Makes both ends of a connection take it for reset.
///
/// # Errors
/// Those of `pwrite(2)`.
pub(super) fn cut(memory: &Memory) -> rustix::io::Result<()> {
    let mut verdict = [0; 8];
    verdict[..4].copy_from_slice(&state::FAILED.to_ne_bytes());
    verdict[4..].copy_from_slice(&Errno::CONNRESET.raw_os_error().to_ne_bytes());
    for page in &memory.private {
        rustix::io::pwrite(page, &verdict, STATE_OFFSET as u64)?;
    }
    for direction in 0..2 {
        let tail = std::mem::offset_of!(layout::Common, directions)
            + direction * size_of::<layout::Direction>()
            + std::mem::offset_of!(layout::Direction, producer)
            + std::mem::offset_of!(layout::Producer, tail);
        rustix::io::pwrite(&memory.common, &u64::MAX.to_ne_bytes(), tail as u64)?;
    }
    Ok(())
}

impl Service {
    /// Whether a caller may see and end what is not its own.
    pub(super) fn is_privileged(&self, caller: Caller) -> bool {
        caller.uid == 0 || caller.uid == rustix::process::geteuid().as_raw()
    }

    pub(super) fn list(&mut self, caller: Caller) -> Answer {
        // What is missing twice is gone.
        self.sweep_now();
        self.sweep_now();
        let all = self.is_privileged(caller);
        let sees = |application: Application| all || application.uid == caller.uid;
        let applications = self.table.applications().filter(|(application, _)| sees(*application));
        let applications = applications.map(|(application, holding)| ListedApplication {
            id: hexadecimal(application.id),
            uid: application.uid,
            listeners: holding.listeners,
            connections: holding.connections,
            accepted: holding.accepted,
        });
        let listeners = self.table.listeners().filter(|(_, listener)| sees(listener.application));
        let listeners = listeners.map(|(_, listener)| ListedListener {
            application: hexadecimal(listener.application.id),
            pid: listener.pid,
            name: listener.name,
            namespace: listener.namespace,
            backlog: listener.backlog,
        });
        let seen = || self.table.connections().filter(|(_, found)| sees(found.client) || sees(found.server));
        let connections = seen().take(LISTED).map(|(_, found)| ListedConnection {
            applications: [hexadecimal(found.client.id), hexadecimal(found.server.id)],
            local: found.names.local,
            peer: found.names.peer,
        });
        let listing = Listing {
            applications: applications.collect(),
            listeners: listeners.collect(),
            connections: connections.collect(),
            omitted: seen().count().saturating_sub(LISTED),
        };
        told(&listing)
    }

    pub(super) fn revoke(&mut self, caller: Caller, request: &Request) -> Answer {
        let all = self.is_privileged(caller);
        let meant = |application: Application| {
            application.id == request.application && (all || application.uid == caller.uid)
        };
        let listeners: Vec<_> =
            self.table.listeners().filter(|(_, found)| meant(found.application)).map(|(id, _)| id).collect();
        let connections =
            self.table.connections().filter(|(_, found)| meant(found.client) || meant(found.server));
        let connections: Vec<ConnectionId> = connections.map(|(id, _)| id).collect();
        if listeners.is_empty() && connections.is_empty() {
            return Answer::refused(Errno::SRCH);
        }
        // It would register its listeners again: that is what it does when a service is gone.
        self.revoked.push_back(request.application);
        if self.revoked.len() > limits::REVOKED {
            self.revoked.pop_front();
        }
        let mut ended = Cut { listeners: listeners.len(), connections: Vec::new() };
        listeners.into_iter().for_each(|id| self.close_listener(id));
        for id in connections {
            // What waited at a listener has gone with it.
            let Some(entry) = self.registry.get(id) else { continue };
            if let Err(error) = cut(&entry.memory) {
                tracing::warn!("a connection is not reset: {error}");
                continue;
            }
            ended.connections.push(entry.cookies);
        }
        self.counters.revoked += 1;
        told(&ended)
    }
}

/// An answer with a text in a sealed memfd.
fn told(what: &impl Serialize) -> Answer {
    let made = serde_json::to_vec(what)
        .map_err(|_| Errno::NOMEM)
        .and_then(|text| sietch_protocol::sealed::make("sietch-list", &text).map_err(|_| Errno::NOMEM));
    match made {
        Ok(file) => {
            debug_assert!(
                sietch_protocol::sealed::check(file.as_fd(), u64::MAX).is_ok(),
                "it was just sealed"
            );
            Answer::with(Reply::new(ReplyKind::Listed), file)
        }
        Err(error) => Answer::refused(error),
    }
}
