//! Requests on their way in: accepting them, their limits, and reading their one message.
//!
//! 1. Programs and administrators have a listening socket each. A user gets no more of the free
//!    requests than it leaves to others; administrators have a reserve of their own.
//! 2. An admitted request waits in `pending` until its message has arrived, or its time is up.
//! 3. A message is read once, with its descriptors. One of another size, or with too many
//!    descriptors, is refused.
//! 4. In one iteration each user is answered a bounded number of times.
//! 5. A rejected request is not read. The program then uses the kernel. A thread closes its socket,
//!    because descriptors in it may take long to close.
//! 6. All users share the kernel's queue. While requests arrive faster than they are answered, many
//!    are accepted in one iteration. What a user has beyond its open requests is rejected, so that
//!    others' requests do not wait behind it.
//! 7. A request that hands everything over to a successor is the last one. What waits in the queues
//!    behind it is the successor's: this service would change state that it has given away.
//!
//! Nothing here blocks: the close of a foreign descriptor never runs on the service's thread.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags};
use sietch_protocol::administration;
use sietch_protocol::socket_service::{
    Descriptors, REQUEST_BYTES, Reply, ReplyKind, Request, RequestKind, receive_all,
};
use sietch_ring::socket_pair::refuse_descriptors;
use sietch_socket::kernel::peer;

use super::answer::{Answer, Caller};
use super::build::BUILD;
use super::kernel;
use super::limits;
use super::listeners::entry::UNKNOWN_UID;
use super::state::{PendingRequest, SocketService, Token, WARN_INTERVAL};

/// The socket over which a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entrance {
    Programs,
    Administrators,
}

impl SocketService {
    /// Returns whether requests arrive faster than they are answered.
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded >= limits::CROWDED
    }

    /// Accepts new requests.
    pub(super) fn accept_requests(&mut self) {
        for _ in 0..if self.is_crowded() { limits::BATCH_CROWDED } else { limits::BATCH } {
            if self.stopping {
                return;
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.server, flags) {
                Ok(socket) => self.admit(socket, Entrance::Programs),
                Err(Errno::AGAIN) => return self.crowded = self.crowded.saturating_sub(1),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    self.modify(&self.server, Token::Server, EventFlags::empty());
                    return self.pause_for_resources();
                }
            }
        }
        self.crowded = limits::CROWDED.min(self.crowded + 1);
    }

    /// Accepts new requests of administrators. People send them, so a few an iteration are enough.
    pub(super) fn accept_administrators(&mut self) {
        for _ in 0..limits::ADMINISTRATORS {
            if self.stopping {
                return;
            }
            let Some(administrators) = &self.administrators else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(administrators, flags) {
                Ok(socket) => {
                    let sender = peer(&socket);
                    if sender.as_ref().is_ok_and(|sender| administration::shares_namespaces(sender.pid)) {
                        self.admit(socket, Entrance::Administrators);
                        continue;
                    }
                    tracing::warn!(
                        "a request of an administrator is rejected: it comes from another user or PID namespace"
                    );
                    self.reject(sender.map_or(UNKNOWN_UID, |sender| sender.uid), socket);
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // No descriptors: those that are kept for administrators are in use, and their
                // requests end soon.
                Err(_) => return,
            }
        }
    }

    /// Admits a request, unless its user has too many.
    fn admit(&mut self, socket: OwnedFd, entrance: Entrance) {
        let Ok(sender) = peer(&socket) else { return self.reject(UNKNOWN_UID, socket) };
        // Only for display.
        let pid = sender.pid.map_or(0, |pid| pid.as_raw_nonzero().get());
        let administers = entrance == Entrance::Administrators;
        let caller = Caller { uid: sender.uid, pid, administers };
        let bucket = caller.bucket();
        let own = self.pending_by_user.get(&bucket).copied().unwrap_or(0) + self.forwarded_of(bucket);
        let full = if administers {
            own >= limits::ADMINISTRATORS
        } else {
            let administrators = self.pending_by_user.get(&None).copied().unwrap_or(0);
            // A user gets no more of the free requests than it leaves to others.
            let forwarded: usize =
                self.forwarded.values().map(|counted| Arc::strong_count(counted) - 1).sum();
            let free = (limits::REQUESTS + administrators).saturating_sub(self.pending.len() + forwarded);
            own >= limits::REQUESTS_PER_USER.min(free) || !self.can_close_for(caller.uid)
        };
        if full {
            return self.reject(caller.uid, socket);
        }
        self.last_request += 1;
        let number = self.last_request;
        if self.add(&socket, Token::Request(number), EventFlags::IN).is_err() {
            return self.reject(caller.uid, socket);
        }
        *self.pending_by_user.entry(caller.bucket()).or_default() += 1;
        self.pending.insert(
            number,
            PendingRequest { socket, caller, until: Instant::now() + limits::REQUEST_PATIENCE },
        );
        // Most often the message is there already.
        self.read_request(number);
    }

    /// Has a connection closed without reading its request; the program goes to the kernel.
    pub(super) fn reject(&mut self, uid: u32, socket: OwnedFd) {
        self.counters.rejected += 1;
        self.unread.entry(uid).or_default().push(socket);
    }

    /// Closes the connections that are over since the last iteration.
    ///
    /// A user that floods the service has many that were not read. A thread closes them, because
    /// one wake-up costs less than examining each. It gets no more while it is late.
    pub(super) fn close_connections(&mut self) {
        for (uid, sockets) in std::mem::take(&mut self.spent) {
            self.closer.close_answered(uid, sockets);
        }
        for (uid, sockets) in std::mem::take(&mut self.unread) {
            let is_late = || self.closer.waiting_of(uid) >= limits::BATCH_CROWDED;
            if sockets.len() >= limits::UNREAD_TOGETHER && !is_late() && self.can_close_for(uid) {
                self.closer.close_all(uid, sockets);
            } else {
                sockets.into_iter().for_each(|socket| self.close_unread(uid, socket));
            }
        }
    }

    /// Closes a connection whose request was not read. A thread closes the descriptors in it, or
    /// they are parked where they take no descriptor of others.
    fn close_unread(&mut self, uid: u32, socket: OwnedFd) {
        if kernel::holds_nothing(&socket) {
            return;
        }
        if self.can_close_for(uid) {
            return self.closer.close(uid, socket);
        }
        self.closer.park(uid, socket);
        if self.warned_of_closes_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
            self.warned_of_closes_at = Some(Instant::now());
            tracing::warn!(
                "uid {uid}: closing descriptors that it sent hangs; its requests are rejected until they are closed"
            );
        }
    }

    /// Returns whether one more request of this user is answered in this iteration.
    fn may_answer_now(&mut self, caller: Caller) -> bool {
        let answered = self.answered.entry(caller.bucket()).or_default();
        *answered += 1;
        *answered <= limits::BATCH_PER_USER
    }

    /// Reads a request, if it has arrived, and answers it.
    pub(super) fn read_request(&mut self, number: u64) {
        let Some(caller) = self.pending.get(&number).map(|request| request.caller) else { return };
        // An unread request makes the next iteration come at once.
        if !self.may_answer_now(caller) {
            return;
        }
        let Some(pending) = self.pending.get(&number) else { return };
        let uid = pending.caller.uid;
        // One byte more than a request has, so that a longer message is detected.
        let mut bytes = [0; REQUEST_BYTES + 1];
        let mut received = Descriptors::default();
        let found =
            receive_all(pending.socket.as_fd(), &mut bytes, &mut received, RecvFlags::DONTWAIT, |sent| {
                self.closer.close(uid, sent)
            });
        if matches!(found, Err(Errno::AGAIN | Errno::INTR)) {
            return;
        }
        let Some(PendingRequest { socket, caller, .. }) = self.take_request(number) else { return };
        let (length, complete) = match found {
            Ok((length, complete)) => (length, complete),
            Err(_) => return self.closer.close(uid, socket),
        };
        let Some(socket) = self.if_empty(uid, socket) else {
            received.into_iter().flatten().for_each(|sent| self.closer.close(uid, sent));
            self.counters.malformed += u64::from(length != 0);
            return;
        };
        let parsed = Request::parse(bytes.get(..length).unwrap_or_default());
        let answer = match parsed {
            Ok((_, kind)) if caller.administers && !kind.is_administrative() => {
                Answer::refused(Errno::OPNOTSUPP).having_spent(received.into_iter().flatten().collect())
            }
            Ok((_, RequestKind::TakeOver)) if caller.administers => {
                match self.transfer_all(&socket) {
                    Ok(()) => self.stopping = true,
                    Err(error) => {
                        tracing::warn!(
                            "the state transfer to a successor failed, and this service goes on: {error}"
                        )
                    }
                }
                let close = received.into_iter().flatten().chain([socket]).collect();
                return self.closer.close_all(uid, close);
            }
            Ok((_, kind)) if self.unmapped.contains(uid) => {
                let sent = received.into_iter().flatten().collect();
                self.answer_unmapped(kind).having_spent(sent)
            }
            Ok((request, kind)) if complete && self.is_for_vnic(&request, kind, &received) => {
                return self.forward(caller, request, kind, received, socket);
            }
            Ok((request, kind @ (RequestKind::List | RequestKind::Revoke)))
                if complete && request.vnic().is_none() && self.vnics.is_some() =>
            {
                return self.administer_with_vnics(caller, request, kind, received, socket);
            }
            Ok((request, kind)) if complete => self.answer(caller, &request, kind, received),
            // This service has no descriptors left for those that were sent. The kernel needs none.
            Ok((_, RequestKind::Connect)) => {
                self.counters.limited += 1;
                let answer = Answer::from(Reply::new(ReplyKind::UseKernel));
                answer.having_spent(received.into_iter().flatten().collect())
            }
            _ => {
                if length == 0 {
                    let close = received.into_iter().flatten().chain([socket]).collect();
                    return self.closer.close_all(uid, close);
                }
                self.counters.malformed += 1;
                // Perhaps the sender is another version: the answer says which one this is.
                let answer = Answer::from(Reply::refused(Errno::PROTO).from_build(&BUILD));
                answer.having_spent(received.into_iter().flatten().collect())
            }
        };
        self.send_answer(uid, socket, answer);
    }

    /// Sends a user without a uid here to the kernel. `EOVERFLOW` is the kernel's own error for
    /// such users.
    fn answer_unmapped(&mut self, kind: RequestKind) -> Answer {
        self.counters.denied += 1;
        if !std::mem::replace(&mut self.warned_of_unmapped, true) {
            tracing::warn!(
                "users without a uid in the user namespace of this service (/proc/self/uid_map) are not served: the kernel shows all of them as one"
            );
        }
        match kind {
            RequestKind::Listen | RequestKind::Connect => Reply::new(ReplyKind::UseKernel).into(),
            RequestKind::Adopt => Reply::new(ReplyKind::Unknown).into(),
            _ => Answer::refused(Errno::OVERFLOW),
        }
    }

    /// Returns the socket of a request that was read, if nothing else is queued in it. A program
    /// that waits for its answer has sent nothing else. Otherwise the socket is closed like one
    /// that was not read, because closing what is queued in it takes as long as the sender likes.
    fn if_empty(&mut self, uid: u32, socket: OwnedFd) -> Option<OwnedFd> {
        // Before Linux 6.16 this fails, and descriptors may still arrive.
        let _ = refuse_descriptors(&socket);
        // A peek without room for descriptors takes none out, so it closes none.
        match rustix::net::recv(&socket, &mut [0; 1][..], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Err(Errno::AGAIN) => Some(socket),
            _ => {
                self.unread.entry(uid).or_default().push(socket);
                None
            }
        }
    }

    /// Takes an open request out.
    pub(super) fn take_request(&mut self, number: u64) -> Option<PendingRequest> {
        let request = self.pending.remove(&number)?;
        let bucket = request.caller.bucket();
        if let Some(count) = self.pending_by_user.get_mut(&bucket) {
            *count -= 1;
            if *count == 0 {
                self.pending_by_user.remove(&bucket);
            }
        }
        self.remove(&request.socket);
        Some(request)
    }
}
