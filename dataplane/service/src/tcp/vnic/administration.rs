//! Who has what on a VNIC, and that somebody shall have it no longer.
//!
//! 1. Who comes over the administrators' socket sees and revokes everything, others what is theirs.
//! 2. To revoke an application closes its listeners and resets its connections, for both sides to
//!    hear. What it asks for after that is refused by the socket service, which remembers it.
//!    Connections between two programs of a VNIC are the socket service's own affair.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use sietch_protocol::socket_service::{Reply, ReplyKind};

use super::host::Share;
use super::requests::Answer;
use super::{Device, Vnic};
use crate::sockets::administration::{
    Cut, LISTED, ListedApplication, ListedConnection, ListedListener, Listing, hexadecimal, sealed,
};
use crate::sockets::revoked::By;
use crate::sockets::table::Application;

fn listed(file: OwnedFd) -> Answer {
    (Reply::new(ReplyKind::Listed), vec![file])
}

impl<Q: Device> Vnic<Q> {
    pub(super) fn list(&mut self, sees: impl Fn(&Share) -> bool) -> Result<Answer, Errno> {
        let mut listing = Listing::default();
        let shares: Vec<_> = self.host.shares().filter(|(_, share)| sees(share)).collect();
        for (application, share) in shares {
            let id = hexadecimal(share.id);
            let connections = self.host.connections_of(application);
            let mut memory = 0;
            for key in &connections {
                memory += self.host.channel(*key).map_or(0, |link| link.bytes_used());
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
            let claims: Vec<_> = self.host.ports().of_application(application).collect();
            let listeners = claims.iter().filter_map(|(_, claim)| Some((claim.name.local, claim.listening?)));
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
                uid: share.uid,
                connections: connections.len() - share.accepted as usize,
                accepted: share.accepted as usize,
                vnic: Some(self.name.clone()),
                sent: share.sent,
                received: share.received,
                memory,
            });
        }
        sealed(&listing).map(listed)
    }

    /// Whose application would be revoked.
    pub(super) fn rehearse(&self, sees: impl Fn(&Share) -> bool, id: [u8; 16]) -> Result<Answer, Errno> {
        let meant = self.host.shares().filter(|(_, share)| share.id == id && sees(share));
        let users = meant.map(|(_, share)| share.uid).collect();
        sealed(&Cut { users, ..Cut::default() }).map(listed)
    }

    pub(super) fn revoke(&mut self, sees: impl Fn(&Share) -> bool, id: [u8; 16]) -> Result<Answer, Errno> {
        let meant = self.host.shares().filter(|(_, share)| share.id == id && sees(share));
        let meant: Vec<u64> = meant.map(|(application, _)| application).collect();
        if meant.is_empty() {
            return Err(Errno::SRCH);
        }
        let mut cut = Cut::default();
        for application in meant {
            if let Some(share) = self.host.application_of(application) {
                self.revoked.insert(Application { uid: share.uid, id }, By::Administrator);
                cut.users.insert(share.uid);
            }
            let claims: Vec<u64> =
                self.host.ports().of_application(application).map(|(key, _)| key).collect();
            for claim in claims {
                cut.listeners += usize::from(self.pairs.contains_key(&claim));
                self.give_up(claim);
                self.close(claim);
            }
            for key in self.host.connections_of(application) {
                cut.connections.extend(self.cookies.get(&key).map(|cookie| [*cookie; 2]));
            }
            self.host.revoke(application, Errno::CONNRESET);
        }
        sealed(&cut).map(listed)
    }
}
