//! Requests that are answered elsewhere: by a VNIC, or by all of them.
//!
//! 1. What names a VNIC goes to whoever serves VNICs ([`Asked`]), with what was sent along. Rules
//!    and revocations are judged here first.
//! 2. A list, or the end of an application, is asked of all VNICs as well; what this service knows
//!    goes along. What an application has here ends before VNICs are asked, if it is said whose it
//!    is: by an administrator (`ID@UID`), or by its user, who means no other's.
//! 3. Until it is answered such a request counts as an open one of its user. What was sent along
//!    comes back to the closer ([`Sent`]): no thread of a VNIC hangs in a close.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::sockopt;
use sietch_protocol::socket_service::{Action, Descriptors, Reply, ReplyKind, Request, RequestKind};

use super::administration::{Cut, told};
use super::closer::Sent;
use super::requests::{Answer, Caller};
use super::run::Service;
use super::table::Application;
use crate::tcp::Asked;
use crate::tcp::gather::read;

impl Service {
    /// Whether a request is one about a VNIC. What a socket is that was inherited, this service
    /// knows itself if it is one of its own.
    pub(super) fn is_for_vnic(&self, request: &Request, kind: RequestKind, sent: &Descriptors) -> bool {
        let own = match kind {
            RequestKind::Adopt => sent[0].as_ref().is_some_and(|sent| self.registry.find(sent).is_some()),
            RequestKind::Listen | RequestKind::Connect | RequestKind::Bind | RequestKind::Information => {
                false
            }
            _ => true,
        };
        request.vnic().is_some() && !own
    }

    /// Has the VNICs add to an answer what they know; what this service knows goes along.
    pub(super) fn ask_vnics(&mut self, asked: Asked) {
        let Some(vnics) = &self.vnics else { return };
        let Err(lost) = vnics.send(asked) else { return };
        if lost.0.kind == RequestKind::Revoke {
            return self.finish_revocation(lost.0, Cut::default());
        }
        let Asked { uid, socket, mut sent, .. } = lost.0;
        let answer = match sent.take_first() {
            Some(own) => Answer::with(Reply::new(ReplyKind::Listed), own),
            None => Answer::refused(Errno::SRCH),
        };
        self.send_answer(uid, socket, answer);
    }

    /// Lists, or revokes, here and on all VNICs.
    pub(super) fn administer_everywhere(
        &mut self,
        caller: Caller,
        request: Request,
        kind: RequestKind,
        received: Descriptors,
        socket: OwnedFd,
    ) {
        let own = match kind {
            // Where it is said whose application is meant, what it has here ends at once. Else
            // nothing is ended before everybody has said whose it is.
            RequestKind::Revoke
                if (caller.administers && request.user().is_none())
                    && received.iter().all(Option::is_none) =>
            {
                self.rehearse(caller, &request)
            }
            _ => self.answer(caller, &request, kind, received),
        };
        if own.reply.kind() == ReplyKind::Refused && own.reply.error() != Errno::SRCH {
            return self.send_answer(caller.uid, socket, own);
        }
        let sent = self.sent_on(caller, own.own);
        let (uid, administers) = (caller.uid, caller.administers);
        self.ask_vnics(Asked { uid, administers, request, kind, sent, pair: None, rehearsal: false, socket });
    }

    /// VNICs have ended what they had of an application: what this service has is ended, and both
    /// are told.
    pub(super) fn finish_revocation(&mut self, asked: Asked, on_vnics: Cut) {
        let Asked { uid, administers, request, socket, sent, .. } = asked;
        let caller = Caller { uid, pid: 0, administers };
        // What was ended here at once.
        let mut all: Cut = sent.first().and_then(read).unwrap_or_default();
        all.add(on_vnics);
        let cut = match self.cut(caller, &request) {
            Ok(cut) => {
                all.add(cut);
                Ok(all)
            }
            Err(Errno::SRCH) if !all.users.is_empty() => Ok(all),
            Err(error) => Err(error),
        };
        if let Ok(cut) = &cut {
            self.remember(caller, request.application, &cut.users);
        }
        self.send_answer(uid, socket, told(cut));
    }

    /// Whether the rules allow what is asked of a VNIC. Its own filters, peers and user are judged
    /// there.
    fn rules_allow(&self, caller: Caller, request: &Request, kind: RequestKind) -> bool {
        let (action, name) = match kind {
            RequestKind::Listen => (Action::Listen, request.local),
            RequestKind::Connect => (Action::Connect, request.remote),
            _ => return true,
        };
        match name.address() {
            Some(name) => self.rules.allow(action, caller.uid, name),
            // A reservation may hold any name: the library always says which.
            None => self.rules.0.is_empty(),
        }
    }

    pub(super) fn pass_on(
        &mut self,
        caller: Caller,
        request: Request,
        kind: RequestKind,
        mut descriptors: Descriptors,
        socket: OwnedFd,
    ) {
        self.counters.asked_other += 1;
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
        let sent = self.sent_on(caller, descriptors);
        let asked = Asked { uid, administers, request, kind, sent, pair, rehearsal: false, socket };
        match &self.vnics {
            Some(vnics) => {
                if let Err(lost) = vnics.send(asked) {
                    lost.0.refuse(Errno::NETDOWN);
                }
            }
            None if asked.kind == RequestKind::Adopt => {
                asked.sent.answer(asked.socket, Reply::new(ReplyKind::Unknown), Vec::new());
            }
            None => asked.refuse(Errno::NODEV),
        }
    }

    /// What came with a request that is answered elsewhere: as long as it is not, the request
    /// counts as open.
    pub(super) fn sent_on(&mut self, caller: Caller, descriptors: Descriptors) -> Sent {
        self.elsewhere.retain(|_, counted| Arc::strong_count(counted) > 1);
        let counted = Arc::clone(self.elsewhere.entry(caller.bucket()).or_default());
        Sent::new(caller.uid, descriptors, self.closer.clone(), counted)
    }

    /// Requests of a user that are answered elsewhere.
    pub(super) fn elsewhere_of(&self, bucket: Option<u32>) -> usize {
        self.elsewhere.get(&bucket).map_or(0, |counted| Arc::strong_count(counted) - 1)
    }
}
