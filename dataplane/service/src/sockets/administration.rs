//! What an administrator asks: who has what, and that somebody shall have it no longer.
//!
//! 1. Who comes over the administrators' socket sees and revokes everything, others what is theirs.
//!    Uid 0 is nobody's own: over the socket for everybody it sees nothing, for it may be a
//!    container's.
//! 2. A list travels in a sealed memfd, as JSON ([`Listing`]).
//! 3. To revoke an application closes its listeners and resets its connections: both private pages
//!    say that the connection failed (`ECONNRESET`), and the common memory says something that each
//!    end takes for a reset. Who sleeps in a call is woken by whoever may reach into its process:
//!    the list has the numbers of the sockets for that ([`Cut`]). What the application asks for
//!    from then on is refused.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sietch_protocol::socket_service::{Reply, ReplyKind, Request};
use sietch_ring::stream::{Memory, STATE_OFFSET, layout, state};

use super::limits;
use super::publish::LeadsTo;
use super::requests::{Answer, Caller};
use super::revoked::By;
use super::run::Service;
use super::table::{Application, Connection, ConnectionId};

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

/// An application, on the host's addresses or on one VNIC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The VNIC; none: the host's addresses.
    #[serde(default)]
    pub vnic: Option<String>,
    /// Bytes that it has sent and received over its connections.
    #[serde(default)]
    pub sent: u64,
    /// See above.
    #[serde(default)]
    pub received: u64,
    /// Bytes of memory in which its connections lie, so far as they were touched.
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
    /// Where.
    pub name: SocketAddr,
    /// The network namespace's cookie.
    pub namespace: u64,
    /// How many may wait.
    pub backlog: u32,
    /// A published port: the listener to which it leads, with its VNIC's name before it if it is on
    /// one.
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

/// What a revocation ended: cookies of the placeholders.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Listeners that were closed.
    pub listeners: usize,
    /// Connections that were reset, by the cookies of their two placeholders.
    pub connections: Vec<[u64; 2]>,
    /// The users whose application it was.
    #[serde(default)]
    pub users: BTreeSet<u32>,
}

impl Cut {
    /// What something else has ended of the same.
    pub(super) fn add(&mut self, other: Self) {
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
        rustix::io::pwrite(&memory.common, &u64::MAX.to_ne_bytes(), tail_of(direction))?;
    }
    Ok(())
}

/// What has gone over an application's connections, and what they take.
#[derive(Debug, Clone, Copy, Default)]
struct Traffic {
    sent: u64,
    received: u64,
    memory: u64,
}

/// How many bytes each end of a connection says that it has sent. Two programs write these words:
/// they are believed for what is shown, and for nothing else.
fn positions(memory: &Memory) -> [u64; 2] {
    std::array::from_fn(|direction| {
        let mut word = [0; 8];
        match rustix::io::pread(&memory.common, &mut word, tail_of(direction)) {
            Ok(8) => layout::tail::position(u64::from_ne_bytes(word)),
            _ => 0,
        }
    })
}

/// Where in the common memory what a direction's producer publishes is.
const fn tail_of(direction: usize) -> u64 {
    (std::mem::offset_of!(layout::Common, directions)
        + direction * size_of::<layout::Direction>()
        + std::mem::offset_of!(layout::Direction, producer)
        + std::mem::offset_of!(layout::Producer, tail)) as u64
}

impl Service {
    /// By application, of the first [`LISTED`] connections that the caller sees: each takes three
    /// questions to the kernel, and who asks is answered by the thread that serves all. The memory
    /// of a connection counts half for each of its ends.
    fn traffic(&self, caller: Caller) -> HashMap<Application, Traffic> {
        let mut traffic: HashMap<Application, Traffic> = HashMap::new();
        let sees = |found: &Connection| caller.may_see(found.client) || caller.may_see(found.server);
        for (id, found) in self.table.connections().filter(|(_, found)| sees(found)).take(LISTED) {
            let Some(entry) = self.registry.get(id) else { continue };
            let [forth, back] = positions(&entry.memory);
            let blocks =
                rustix::fs::fstat(&entry.memory.common).map_or(0, |stat| stat.st_blocks.unsigned_abs());
            for (application, sent, received) in [(found.client, forth, back), (found.server, back, forth)] {
                let of = traffic.entry(application).or_default();
                of.sent = of.sent.saturating_add(sent);
                of.received = of.received.saturating_add(received);
                of.memory += blocks * 512 / 2;
            }
        }
        traffic
    }

    /// Whether a user may have one more list now. Administrators may.
    fn may_list(&mut self, caller: Caller) -> bool {
        let now = Instant::now();
        self.listed.retain(|_, (since, _)| now.duration_since(*since) < Duration::from_secs(1));
        let (_, count) = self.listed.entry(caller.uid).or_insert((now, 0));
        *count += 1;
        caller.administers || *count <= limits::LISTS_PER_SECOND
    }

    pub(super) fn list(&mut self, caller: Caller) -> Answer {
        if !self.may_list(caller) {
            self.counters.limited += 1;
            return Answer::refused(Errno::AGAIN);
        }
        self.sweep_for_list();
        let sees = |application: Application| caller.may_see(application);
        let traffic = self.traffic(caller);
        let applications = self.table.applications().filter(|(application, _)| sees(*application));
        let applications = applications.map(|(application, holding)| {
            let Traffic { sent, received, memory } = traffic.get(&application).copied().unwrap_or_default();
            ListedApplication {
                id: hexadecimal(application.id),
                uid: application.uid,
                listeners: holding.listeners,
                connections: holding.connections,
                accepted: holding.accepted,
                vnic: None,
                sent,
                received,
                memory,
            }
        });
        let listeners = self.table.listeners().filter(|(_, listener)| sees(listener.application));
        let listeners = listeners.map(|(id, listener)| ListedListener {
            application: hexadecimal(listener.application.id),
            pid: listener.pid,
            name: listener.name,
            namespace: listener.namespace,
            backlog: listener.backlog,
            leads_to: self.open.get(&id).and_then(|open| open.leads_to.as_ref()).map(LeadsTo::to_string),
            vnic: None,
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
        told(Ok(listing))
    }

    /// The users whose application of this id a caller may revoke. Of several, one took the other's
    /// number: it is not to be revoked with it.
    fn whose(&self, caller: Caller, request: &Request) -> Result<BTreeSet<u32>, Errno> {
        let all = self.table.applications().map(|(application, _)| application);
        let users: BTreeSet<u32> =
            all.filter(|found| is_meant(caller, request, *found)).map(|found| found.uid).collect();
        if users.len() > 1 { Err(Errno::NOTUNIQ) } else { Ok(users) }
    }

    /// Whose application would be revoked.
    pub(super) fn rehearse(&self, caller: Caller, request: &Request) -> Answer {
        told(self.whose(caller, request).map(|users| Cut { users, ..Cut::default() }))
    }

    pub(super) fn revoke(&mut self, caller: Caller, request: &Request) -> Answer {
        told(self.cut(caller, request))
    }

    /// What these users' applications of an id ask for from now on is refused.
    pub(super) fn remember(&mut self, caller: Caller, id: [u8; 16], users: &BTreeSet<u32>) {
        let by = if caller.administers { By::Administrator } else { By::ItsUser };
        users.iter().for_each(|&uid| self.revoked.insert(Application { uid, id }, by));
    }

    /// Ends what an application has.
    ///
    /// # Errors
    /// [`Errno::NOTUNIQ`]; [`Errno::SRCH`]: it has nothing.
    pub(super) fn cut(&mut self, caller: Caller, request: &Request) -> Result<Cut, Errno> {
        let users = self.whose(caller, request)?;
        let meant = |application: Application| is_meant(caller, request, application);
        let listeners: Vec<_> =
            self.table.listeners().filter(|(_, found)| meant(found.application)).map(|(id, _)| id).collect();
        let connections =
            self.table.connections().filter(|(_, found)| meant(found.client) || meant(found.server));
        let connections: Vec<ConnectionId> = connections.map(|(id, _)| id).collect();
        if listeners.is_empty() && connections.is_empty() {
            return Err(Errno::SRCH);
        }
        // Who asked all VNICs as well asks here twice.
        let id = request.application;
        let is_new = users.iter().any(|&uid| !self.revoked.contains(Application { uid, id }));
        self.counters.revoked += u64::from(is_new);
        self.remember(caller, id, &users);
        let mut ended = Cut { listeners: listeners.len(), connections: Vec::new(), users };
        for id in listeners {
            // The program has the kernel's socket too, and may hold it: then that listens on.
            let owner = self.table.listener(id).map(|found| found.application.uid);
            if let Some((uid, kernel)) = owner.zip(self.open.get(&id).and_then(|open| open.kernel.as_ref())) {
                let shut =
                    |kernel: BorrowedFd<'_>| rustix::net::shutdown(kernel, rustix::net::Shutdown::Both);
                let _ = self.expendable.ask(uid, kernel, shut);
            }
            self.close_listener(id);
        }
        for id in connections {
            // What waited at a listener has gone with it.
            let Some(entry) = self.registry.get(id) else { continue };
            if let Err(error) = cut(&entry.memory) {
                tracing::warn!("a connection is not reset: {error}");
                continue;
            }
            ended.connections.push(entry.cookies);
        }
        Ok(ended)
    }
}

/// Whether a revocation is about this application.
fn is_meant(caller: Caller, request: &Request, application: Application) -> bool {
    application.id == request.application
        && caller.may_see(application)
        && request.user().is_none_or(|uid| uid == application.uid)
}

/// A text in a sealed memfd.
///
/// # Errors
/// [`Errno::NOMEM`].
pub(crate) fn sealed(what: &impl Serialize) -> Result<OwnedFd, Errno> {
    let text = serde_json::to_vec(what).map_err(|_| Errno::NOMEM)?;
    let file = sietch_protocol::sealed::make("sietch-list", &text).map_err(|_| Errno::NOMEM)?;
    debug_assert!(sietch_protocol::sealed::check(file.as_fd(), u64::MAX).is_ok(), "it was just sealed");
    Ok(file)
}

/// An answer with a text in a sealed memfd, or why there is none.
pub(super) fn told(what: Result<impl Serialize, Errno>) -> Answer {
    match what.and_then(|what| sealed(&what)) {
        Ok(file) => Answer::with(Reply::new(ReplyKind::Listed), file),
        Err(error) => Answer::refused(error),
    }
}
