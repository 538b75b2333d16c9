//! Requests of administrators: a list of what each application has, and the revocation of an
//! application.
//!
//! 1. Over the administrators' socket a caller sees and revokes everything; other callers see and
//!    revoke what is their own. Over the programs' socket uid 0 sees nothing, because it may be a
//!    container's root.
//! 2. A list travels in a sealed memfd, as JSON ([`Listing`]).
//! 3. Revoking an application closes its listeners and resets its connections. Both private pages
//!    say that the connection failed (`ECONNRESET`), and the common memory gets values that each
//!    end takes for a reset. A caller that may reach into the processes wakes those that sleep in a
//!    call: the answer has the cookies of the sockets for that ([`Revocation`]). Later requests of
//!    the application are refused.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sietch_protocol::socket_service::Request;

use crate::requests::application::{Application, Connection};
use crate::requests::listing::{
    LISTED, ListedApplication, ListedConnection, ListedListener, Listing, Revocation, hexadecimal,
};
use crate::requests::revocation::RevokedBy;
use crate::sockets::answer::{Answer, Caller};
use crate::sockets::limits;
use crate::sockets::listeners::entry::PublishTarget;
use crate::sockets::registry::memory::{positions, reset};
use crate::sockets::state::SocketService;
use crate::sockets::table::ConnectionId;

/// The bytes of an application's connections, and their memory.
#[derive(Debug, Clone, Copy, Default)]
struct Traffic {
    sent: u64,
    received: u64,
    memory: u64,
}

impl SocketService {
    /// Returns the traffic by application, of the first [`LISTED`] connections that the caller
    /// sees. Each takes three system calls, and the thread that serves all programs makes them. The
    /// memory of a connection counts half for each of its ends.
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

    /// Returns whether a user may have one more list now. Administrators always may.
    fn may_list(&mut self, caller: Caller) -> bool {
        let now = Instant::now();
        self.list_rates.retain(|_, (since, _)| now.duration_since(*since) < Duration::from_secs(1));
        let (_, count) = self.list_rates.entry(caller.uid).or_insert((now, 0));
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
        let applications = applications.map(|(application, usage)| {
            let Traffic { sent, received, memory } = traffic.get(&application).copied().unwrap_or_default();
            ListedApplication {
                id: hexadecimal(application.id),
                uid: application.uid,
                listeners: usage.listeners,
                connections: usage.connections,
                accepted: usage.accepted,
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
            leads_to: self
                .listeners
                .get(&id)
                .and_then(|open| open.leads_to.as_ref())
                .map(PublishTarget::to_string),
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
        Answer::sealed(Ok(listing))
    }

    /// Returns the users whose application of this id a caller may revoke. If there are several,
    /// one copied the other's id, so nothing is revoked.
    fn owners(&self, caller: Caller, request: &Request) -> Result<BTreeSet<u32>, Errno> {
        let all = self.table.applications().map(|(application, _)| application);
        let users: BTreeSet<u32> =
            all.filter(|found| is_meant(caller, request, *found)).map(|found| found.uid).collect();
        if users.len() > 1 { Err(Errno::NOTUNIQ) } else { Ok(users) }
    }

    /// Answers whose application would be revoked.
    pub(super) fn dry_run_revocation(&self, caller: Caller, request: &Request) -> Answer {
        Answer::sealed(
            self.owners(caller, request).map(|users| Revocation { users, ..Revocation::default() }),
        )
    }

    pub(super) fn revoke(&mut self, caller: Caller, request: &Request) -> Answer {
        Answer::sealed(self.end_application(caller, request))
    }

    /// Refuses later requests of these users' applications of this id.
    pub(super) fn remember_revoked(&mut self, caller: Caller, id: [u8; 16], users: &BTreeSet<u32>) {
        let by = if caller.administers { RevokedBy::Administrator } else { RevokedBy::Owner };
        users.iter().for_each(|&uid| self.revoked.insert(Application { uid, id }, by));
    }

    /// Ends what an application has.
    ///
    /// # Errors
    /// [`Errno::NOTUNIQ`]: several users have an application of this id. [`Errno::SRCH`]: it has
    /// nothing.
    pub(super) fn end_application(&mut self, caller: Caller, request: &Request) -> Result<Revocation, Errno> {
        let users = self.owners(caller, request)?;
        let meant = |application: Application| is_meant(caller, request, application);
        let listeners: Vec<_> =
            self.table.listeners().filter(|(_, found)| meant(found.application)).map(|(id, _)| id).collect();
        let connections =
            self.table.connections().filter(|(_, found)| meant(found.client) || meant(found.server));
        let connections: Vec<ConnectionId> = connections.map(|(id, _)| id).collect();
        if listeners.is_empty() && connections.is_empty() {
            return Err(Errno::SRCH);
        }
        // A revocation that includes VNICs comes here twice, and counts once.
        let id = request.application;
        let is_new = users.iter().any(|&uid| !self.revoked.contains(Application { uid, id }));
        self.counters.revoked += u64::from(is_new);
        self.remember_revoked(caller, id, &users);
        let mut ended = Revocation { listeners: listeners.len(), connections: Vec::new(), users };
        for id in listeners {
            // The program holds the kernel's socket too. If it blocks this call, that one stays
            // open.
            let owner = self.table.listener(id).map(|found| found.application.uid);
            if let Some((uid, kernel)) =
                owner.zip(self.listeners.get(&id).and_then(|open| open.kernel.as_ref()))
            {
                let shut =
                    |kernel: BorrowedFd<'_>| rustix::net::shutdown(kernel, rustix::net::Shutdown::Both);
                let _ = self.calls.call(uid, kernel, shut);
            }
            self.close_listener(id);
        }
        for id in connections {
            // A connection that waited at a closed listener is closed already.
            let Some(entry) = self.registry.get(id) else { continue };
            if let Err(error) = reset(&entry.memory) {
                tracing::warn!("a connection is not reset: {error}");
                continue;
            }
            ended.connections.push(entry.cookies);
        }
        Ok(ended)
    }
}

/// Returns whether a revocation concerns this application.
fn is_meant(caller: Caller, request: &Request, application: Application) -> bool {
    application.id == request.application
        && caller.may_see(application)
        && request.user().is_none_or(|uid| uid == application.uid)
}
