//! Requests to all VNICs at once: a list of what each application has, and the end of one.
//!
//! 1. The socket service has answered for the host's addresses; its answer comes along with the
//!    request.
//! 2. All VNICs get the request at the same time, each over a pair of its own, as a program would
//!    send it. A VNIC that does not answer within [`PATIENCE`] has nothing to report, so all of
//!    them together take no longer.
//! 3. The answers are merged into one.
//! 4. A revocation takes two rounds. A program chooses its application's id itself, and another
//!    user may have copied it. First every VNIC answers whose application it is; nothing ends if
//!    several users have one. Then it ends as that user's alone: on VNICs first, then in the socket
//!    service, which answers. If the request already named the user, the socket service has ended
//!    its part before.
//! 5. The [`RevocationFilter`] refuses what the application requests of VNICs from the first round
//!    on. Its requests may be queued behind the revocation. A VNIC on which it has nothing, or that
//!    is acquired later, has no record of the revocation.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use serde::de::DeserializeOwned;
use sietch_protocol::socket_service::{
    Descriptors, REPLY_BYTES, Reply, ReplyKind, RequestKind, receive_message,
};

use crate::requests::application::Application;
use crate::requests::descriptors::RequestDescriptors;
use crate::requests::listing::{Listing, Revocation, sealed, unseal};
use crate::requests::revocation::{RevocationList, RevokedBy};
use crate::requests::vnic::VnicRequest;
use crate::sockets::{Command, CommandSender};

/// How long a VNIC may take to answer: an iteration takes a millisecond at most.
const PATIENCE: Duration = Duration::from_millis(500);

/// The request queue of a VNIC.
#[derive(Clone, Copy, Debug)]
pub struct RequestQueue<'a> {
    /// The channel.
    pub requests: &'a Sender<VnicRequest>,
    /// The eventfd that wakes the VNIC.
    pub doorbell: &'a OwnedFd,
}

/// Refuses requests of revoked applications on their way to a VNIC.
#[derive(Debug, Default)]
pub struct RevocationFilter(RevocationList);

impl RevocationFilter {
    /// Returns a request that may go to its VNIC, and refuses one of a revoked application.
    pub fn admit(&self, request: VnicRequest) -> Option<VnicRequest> {
        let wants = matches!(request.kind, RequestKind::Listen | RequestKind::Connect | RequestKind::Bind);
        if wants && self.0.contains(Application { uid: request.uid, id: request.request.application }) {
            request.refuse(Errno::ACCESS);
            return None;
        }
        Some(request)
    }
}

/// Sends a request to all VNICs, and answers it.
pub fn fan_out<'a>(
    mut request: VnicRequest,
    vnics: impl Iterator<Item = RequestQueue<'a>>,
    socket_service: Option<&CommandSender>,
    filter: &mut RevocationFilter,
) {
    let own = request.descriptors.first();
    let answer = match request.kind {
        RequestKind::List => {
            let mut all: Listing = own.and_then(unseal).unwrap_or_default();
            for found in ask_all::<Listing>(&request, &vnics.collect::<Vec<_>>()) {
                all.applications.extend(found.applications);
                all.listeners.extend(found.listeners);
                all.connections.extend(found.connections);
                all.omitted += found.omitted;
            }
            sealed(&all)
        }
        RequestKind::Revoke => {
            let owners: Revocation = own.and_then(unseal).unwrap_or_default();
            let vnics: Vec<_> = vnics.collect();
            match revoke(&mut request, owners.users, &vnics, filter) {
                Ok(ended) => match socket_service {
                    Some(socket_service) => {
                        return socket_service.send(Command::FinishRevocation(Box::new(request), ended));
                    }
                    None => sealed(&ended),
                },
                Err(error) => Err(error),
            }
        }
        _ => Err(Errno::OPNOTSUPP),
    };
    match answer {
        Ok(file) => request.descriptors.answer(request.socket, Reply::new(ReplyKind::Listed), vec![file]),
        Err(error) => request.refuse(error),
    }
}

/// Ends an application on all VNICs, if one user has it. `users` have it on the host's addresses.
fn revoke(
    request: &mut VnicRequest,
    mut users: BTreeSet<u32>,
    vnics: &[RequestQueue<'_>],
    filter: &mut RevocationFilter,
) -> Result<Revocation, Errno> {
    request.dry_run = true;
    users.extend(ask_all::<Revocation>(request, vnics).into_iter().flat_map(|found| found.users));
    request.dry_run = false;
    let user = *users.first().ok_or(Errno::SRCH)?;
    if users.len() > 1 {
        return Err(Errno::NOTUNIQ);
    }
    // A user that copies the id from now on is not affected.
    request.request.set_user(user);
    let by = if request.administers { RevokedBy::Administrator } else { RevokedBy::Owner };
    filter.0.insert(Application { uid: user, id: request.request.application }, by);
    // The revocation is remembered even if the application has closed everything since the first
    // round.
    let mut all = Revocation { users, ..Revocation::default() };
    for found in ask_all::<Revocation>(request, vnics) {
        all.listeners += found.listeners;
        all.connections.extend(found.connections);
    }
    Ok(all)
}

/// Returns the answers of the VNICs, in their order. A VNIC that refuses, has nothing or has ended
/// is left out.
fn ask_all<T: DeserializeOwned>(request: &VnicRequest, vnics: &[RequestQueue<'_>]) -> Vec<T> {
    let waiting: Vec<OwnedFd> = vnics.iter().filter_map(|vnic| send(request, *vnic)).collect();
    let until = Instant::now() + PATIENCE;
    waiting.iter().filter_map(|own| receive(own, until)).collect()
}

/// Sends a request to one VNIC. Returns the socket on which the answer arrives.
fn send(request: &VnicRequest, vnic: RequestQueue<'_>) -> Option<OwnedFd> {
    let (own, socket) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
    let &VnicRequest { uid, administers, request, kind, dry_run, .. } = request;
    let descriptors = RequestDescriptors::default();
    vnic.requests
        .send(VnicRequest { uid, administers, request, kind, descriptors, pair: None, dry_run, socket })
        .ok()?;
    let _ = rustix::io::write(vnic.doorbell, &1_u64.to_ne_bytes());
    Some(own)
}

/// Waits for one answer.
fn receive<T: DeserializeOwned>(own: &OwnedFd, until: Instant) -> Option<T> {
    // At least a millisecond, so that an answer that is there already is received.
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    set_socket_timeout(own, Timeout::Recv, Some(left)).ok()?;
    let (mut bytes, mut received) = ([0; REPLY_BYTES], Descriptors::default());
    let (length, _) = receive_message(own.as_fd(), &mut bytes, &mut received, RecvFlags::empty()).ok()?;
    Reply::parse(bytes.get(..length)?).ok().filter(|reply| reply.kind() == ReplyKind::Listed)?;
    unseal(received[0].as_ref()?)
}
