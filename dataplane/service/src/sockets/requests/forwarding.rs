//! Requests that VNICs answer: one of them, or all.
//!
//! 1. A request that names a VNIC goes to the VNIC's thread ([`VnicRequest`]), with its
//!    descriptors. Rules and revocations are checked here first.
//! 2. A list, or the end of an application, goes to all VNICs as well, together with this service's
//!    own answer. If the request says whose application is meant, what it has here ends first. It
//!    does when an administrator names the user (`ID@UID`), or a user revokes its own.
//! 3. Until it is answered, such a request counts as an open one of its user. Its descriptors
//!    return to the closer, so no thread of a VNIC hangs in a close.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::sockopt;
use sietch_protocol::socket_service::{Action, Descriptors, Reply, ReplyKind, Request, RequestKind};

use crate::requests::application::Application;
use crate::requests::descriptors::RequestDescriptors;
use crate::requests::listing::{Revocation, unseal};
use crate::requests::vnic::VnicRequest;
use crate::sockets::answer::{Answer, Caller};
use crate::sockets::state::SocketService;

impl SocketService {
    /// Returns whether a VNIC answers a request. This service answers ADOPT about its own
    /// placeholders.
    pub(in crate::sockets) fn is_for_vnic(
        &self,
        request: &Request,
        kind: RequestKind,
        sent: &Descriptors,
    ) -> bool {
        let own = match kind {
            RequestKind::Adopt => sent[0].as_ref().is_some_and(|sent| self.registry.find(sent).is_some()),
            RequestKind::Listen | RequestKind::Connect | RequestKind::Bind | RequestKind::Information => {
                false
            }
            // A VNIC has no kernel's sockets.
            RequestKind::Relay => true,
            _ => true,
        };
        request.vnic().is_some() && !own
    }

    /// Sends a request to all VNICs, which add their part to this service's answer.
    fn send_to_vnics(&mut self, request: VnicRequest) {
        let Some(vnics) = &self.vnics else { return };
        let Err(lost) = vnics.send(request) else { return };
        if lost.0.kind == RequestKind::Revoke {
            return self.finish_revocation(lost.0, Revocation::default());
        }
        let VnicRequest { uid, socket, mut descriptors, .. } = lost.0;
        let answer = match descriptors.take_first() {
            Some(own) => Answer::with(Reply::new(ReplyKind::Listed), own),
            None => Answer::refused(Errno::SRCH),
        };
        self.send_answer(uid, socket, answer);
    }

    /// Lists or revokes, here and on all VNICs.
    pub(in crate::sockets) fn administer_with_vnics(
        &mut self,
        caller: Caller,
        request: Request,
        kind: RequestKind,
        received: Descriptors,
        socket: OwnedFd,
    ) {
        let own = match kind {
            // If the request says whose application is meant, what it has here ends at once. Else
            // nothing ends before all VNICs have answered whose it is.
            RequestKind::Revoke
                if (caller.administers && request.user().is_none())
                    && received.iter().all(Option::is_none) =>
            {
                self.dry_run_revocation(caller, &request)
            }
            _ => self.answer(caller, &request, kind, received),
        };
        if own.reply.kind() == ReplyKind::Refused && own.reply.error() != Errno::SRCH {
            return self.send_answer(caller.uid, socket, own);
        }
        let descriptors = self.count_forwarded(caller, own.own);
        let (uid, administers) = (caller.uid, caller.administers);
        self.send_to_vnics(VnicRequest {
            uid,
            administers,
            request,
            kind,
            descriptors,
            pair: None,
            dry_run: false,
            socket,
        });
    }

    /// Finishes a revocation after the VNICs have ended their part: ends this service's part, and
    /// answers with both.
    pub(in crate::sockets) fn finish_revocation(&mut self, revoke: VnicRequest, on_vnics: Revocation) {
        let VnicRequest { uid, administers, request, socket, descriptors, .. } = revoke;
        let caller = Caller { uid, pid: 0, administers };
        // What ended here at once.
        let mut all: Revocation = descriptors.first().and_then(unseal).unwrap_or_default();
        all.add(on_vnics);
        let ended = match self.end_application(caller, &request) {
            Ok(ended) => {
                all.add(ended);
                Ok(all)
            }
            Err(Errno::SRCH) if !all.users.is_empty() => Ok(all),
            Err(error) => Err(error),
        };
        if let Ok(ended) = &ended {
            self.remember_revoked(caller, request.application, &ended.users);
        }
        self.send_answer(uid, socket, Answer::sealed(ended));
    }

    /// Returns whether the rules allow a request about a VNIC. The VNIC checks its own filters,
    /// peers and user.
    fn rules_allow(&self, caller: Caller, request: &Request, kind: RequestKind) -> bool {
        let (action, name) = match kind {
            RequestKind::Listen => (Action::Listen, request.local),
            RequestKind::Connect => (Action::Connect, request.remote),
            _ => return true,
        };
        match name.address() {
            Some(name) => self.rules.allow(action, caller.uid, name),
            // A reservation may have any name, and the library always sends it: without one only an
            // empty set of rules allows the request.
            None => self.rules.0.is_empty(),
        }
    }

    /// Checks a request that names a VNIC, and forwards it.
    pub(in crate::sockets) fn forward(
        &mut self,
        caller: Caller,
        request: Request,
        kind: RequestKind,
        mut descriptors: Descriptors,
        socket: OwnedFd,
    ) {
        self.counters.other_requests += 1;
        let wants = matches!(kind, RequestKind::Listen | RequestKind::Connect | RequestKind::Bind);
        let application = Application { uid: caller.uid, id: request.application };
        let revoked = wants && self.revoked.contains(application);
        if revoked || !self.rules_allow(caller, &request, kind) {
            self.counters.denied += 1;
            let spent = descriptors.into_iter().flatten().collect();
            return self.send_answer(caller.uid, socket, Answer::refused(Errno::ACCESS).having_spent(spent));
        }
        let pair = if kind == RequestKind::Listen && self.vnics.is_some() {
            self.publish_for_vnic(caller, &request, &mut descriptors)
        } else {
            Ok(None)
        };
        let pair = match pair {
            Ok(pair) => pair,
            Err(error) => {
                let spent = descriptors.into_iter().flatten().collect();
                return self.send_answer(caller.uid, socket, Answer::refused(error).having_spent(spent));
            }
        };
        if let Some(file) = descriptors[0].take_if(|sent| sockopt::socket_type(sent).is_err()) {
            self.counters.malformed += 1;
            let spent = std::iter::once(file).chain(descriptors.into_iter().flatten()).collect();
            return self.send_answer(caller.uid, socket, Answer::refused(Errno::NOTSOCK).having_spent(spent));
        }
        let (uid, administers) = (caller.uid, caller.administers);
        let descriptors = self.count_forwarded(caller, descriptors);
        let forwarded =
            VnicRequest { uid, administers, request, kind, descriptors, pair, dry_run: false, socket };
        match &self.vnics {
            Some(vnics) => {
                if let Err(lost) = vnics.send(forwarded) {
                    lost.0.refuse(Errno::NETDOWN);
                }
            }
            None if forwarded.kind == RequestKind::Adopt => {
                forwarded.descriptors.answer(forwarded.socket, Reply::new(ReplyKind::Unknown), Vec::new());
            }
            None => forwarded.refuse(Errno::NODEV),
        }
    }

    /// Wraps the descriptors of a request that is forwarded. Until they are dropped, the request
    /// counts as open.
    fn count_forwarded(&mut self, caller: Caller, descriptors: Descriptors) -> RequestDescriptors {
        self.forwarded.retain(|_, counted| Arc::strong_count(counted) > 1);
        let counted = Arc::clone(self.forwarded.entry(caller.bucket()).or_default());
        RequestDescriptors::new(caller.uid, descriptors, self.closer.clone(), counted)
    }

    /// Returns the number of a user's requests that were forwarded and are not yet answered.
    pub(in crate::sockets) fn forwarded_of(&self, bucket: Option<u32>) -> usize {
        self.forwarded.get(&bucket).map_or(0, |counted| Arc::strong_count(counted) - 1)
    }
}
