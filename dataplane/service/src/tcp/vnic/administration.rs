//! Requests of administrators about a VNIC: a list of what each application has, and the end of an
//! application.
//!
//! 1. Over the administrators' socket a caller sees and revokes everything; other callers see and
//!    revoke what is their own.
//! 2. Revoking an application closes its listeners and resets its connections, for both sides. The
//!    socket service remembers it, and refuses its later requests. Connections between two programs
//!    of a VNIC belong to the socket service.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use sietch_protocol::socket_service::{Reply, ReplyKind};
use sietch_structures::Key;

use super::device::Device;
use super::state::{Answer, Vnic};
use crate::requests::application::Application;
use crate::requests::listing::{
    LISTED, ListedApplication, ListedConnection, ListedListener, Listing, Revocation, hexadecimal, sealed,
};
use crate::requests::revocation::RevokedBy;
use crate::tcp::host::ApplicationUsage;

fn listed(file: OwnedFd) -> Answer {
    (Reply::new(ReplyKind::Listed), vec![file])
}

impl<Q: Device> Vnic<Q> {
    /// Lists what the applications have that the caller sees.
    pub(super) fn list(&mut self, sees: impl Fn(&ApplicationUsage) -> bool) -> Result<Answer, Errno> {
        let mut listing = Listing::default();
        let usages: Vec<_> = self.host.usages().filter(|(_, usage)| sees(usage)).collect();
        for (application, usage) in usages {
            let id = hexadecimal(usage.id);
            let connections = self.host.connections_of(application);
            let mut memory = 0;
            for key in &connections {
                memory += self.host.channel(*key).map_or(0, |channel| channel.bytes_used());
                let flow = self.host.flow(*key).and_then(|flow| self.host.engine().flow_info(flow));
                let Some(flow) = flow else { continue };
                if listing.connections.len() >= LISTED {
                    listing.omitted += 1;
                    continue;
                }
                listing.connections.push(ListedConnection {
                    applications: [id.clone(), String::new()],
                    local: flow.local,
                    peer: flow.remote,
                });
            }
            let bindings: Vec<_> = self.host.ports().of_application(application).collect();
            let listeners =
                bindings.iter().filter_map(|(_, binding)| Some((binding.name.local, binding.listening?)));
            listing.listeners.extend(listeners.clone().map(|(name, listening)| ListedListener {
                application: id.clone(),
                pid: 0,
                name,
                namespace: 0,
                backlog: listening.backlog,
                leads_to: None,
                vnic: Some(self.name.clone()),
            }));
            listing.applications.push(ListedApplication {
                listeners: listeners.count(),
                id,
                uid: usage.uid,
                connections: connections.len() - usage.accepted as usize,
                accepted: usage.accepted as usize,
                vnic: Some(self.name.clone()),
                sent: usage.sent,
                received: usage.received,
                memory,
            });
        }
        sealed(&listing).map(listed)
    }

    /// Answers whose application would be revoked.
    pub(super) fn dry_run_revocation(
        &self,
        sees: impl Fn(&ApplicationUsage) -> bool,
        id: [u8; 16],
    ) -> Result<Answer, Errno> {
        let meant = self.host.usages().filter(|(_, usage)| usage.id == id && sees(usage));
        let users = meant.map(|(_, usage)| usage.uid).collect();
        sealed(&Revocation { users, ..Revocation::default() }).map(listed)
    }

    /// Ends what an application has.
    ///
    /// # Errors
    /// [`Errno::SRCH`]: it has nothing.
    pub(super) fn revoke(
        &mut self,
        sees: impl Fn(&ApplicationUsage) -> bool,
        id: [u8; 16],
    ) -> Result<Answer, Errno> {
        let meant = self.host.usages().filter(|(_, usage)| usage.id == id && sees(usage));
        let meant: Vec<Key> = meant.map(|(application, _)| application).collect();
        if meant.is_empty() {
            return Err(Errno::SRCH);
        }
        let mut ended = Revocation::default();
        for application in meant {
            if let Some(usage) = self.host.usage_of(application) {
                self.revoked.insert(Application { uid: usage.uid, id }, RevokedBy::Administrator);
                ended.users.insert(usage.uid);
            }
            let bindings: Vec<Key> =
                self.host.ports().of_application(application).map(|(key, _)| key).collect();
            for binding in bindings {
                ended.listeners += usize::from(self.pairs.contains_key(&binding));
                self.close_reservation(binding);
                self.close(binding);
            }
            for key in self.host.connections_of(application) {
                ended.connections.extend(self.cookies.get(&key).map(|cookie| [*cookie; 2]));
            }
            self.host.revoke(application, Errno::CONNRESET);
        }
        sealed(&ended).map(listed)
    }
}
