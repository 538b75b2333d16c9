//! Requests, judged and answered.
//!
//! 1. A request was copied once and parsed; here it meets its descriptors. The kernel says what
//!    they are: a name, a namespace, whether the socket listens.
//! 2. An invalid request is refused with an error number. A request beyond a limit gets
//!    [`ReplyKind::UseKernel`]: the program continues with the kernel.
//! 3. An address of a connection is accepted only if it is loopback, or the kernel's routes say
//!    that it belongs to the host. The names of the two sockets prove nothing, because a program
//!    can bind to any address (IP_FREEBIND).
//! 4. Sockets that are bound to an interface or a VRF are left to the kernel, which knows what can
//!    reach them.

mod administration;
mod forwarding;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sietch_protocol::socket_service::{
    Action, Descriptors, Name, REJOIN, Reply, ReplyKind, Request, RequestKind,
};
use sietch_ring::socket_pair::refuse_descriptors;
use sietch_ring::stream::Memory;
use sietch_socket::kernel::namespace as namespace_of;

use super::answer::{Answer, Caller};
use super::build::BUILD;
use super::kernel::{self, TcpSocket};
use super::limits;
use super::listeners::backlog;
use super::listeners::entry::{Delivery, OpenListener, PendingConnection, PublishTarget};
use super::registry::{self, Placeholder};
use super::relays::Destination;
use super::state::SocketService;
use super::table::{ConnectionId, Listener, ListenerId, TableError};
use crate::requests::application::{Application, Connection, page_names};

/// A listener that is about to be opened.
struct NewListener {
    id: ListenerId,
    /// The service's end of its pair.
    pair: OwnedFd,
    placeholder: OwnedFd,
    kernel: TcpSocket,
}

impl SocketService {
    /// Checks and answers a request.
    pub(super) fn answer(
        &mut self,
        caller: Caller,
        request: &Request,
        kind: RequestKind,
        mut sent: Descriptors,
    ) -> Answer {
        let application = Application { uid: caller.uid, id: request.application };
        let first = sent[0].take();
        let more: Vec<OwnedFd> = sent.iter_mut().filter_map(Option::take).collect();
        let malformed = match kind {
            RequestKind::Listen => !more.is_empty() && request.flags & REJOIN != 0,
            RequestKind::Relay => more.len() != 1,
            _ => !more.is_empty(),
        };
        let revoked =
            matches!(kind, RequestKind::Listen | RequestKind::Connect) && self.revoked.contains(application);
        if malformed || revoked {
            let counter = if malformed { &mut self.counters.malformed } else { &mut self.counters.denied };
            *counter += 1;
            let answer = Answer::refused(if malformed { Errno::INVAL } else { Errno::ACCESS });
            return answer.having_spent(first.into_iter().chain(more).collect());
        }
        let answer = match (kind, first) {
            (RequestKind::Listen, Some(socket)) => {
                self.counters.listen_requests += 1;
                return self.listen(caller, application, request, socket, more);
            }
            (RequestKind::Connect, Some(socket)) => {
                self.counters.connect_requests += 1;
                return match self.connect(application, request, &socket) {
                    // The program has the placeholder instead: it cannot see when this is closed.
                    Ok(mut answer) if let Some((id, _)) = answer.memory => {
                        // While the connection exists, its name stays in use in the kernel too.
                        match answer.bound {
                            true => answer.later.extend(self.bound_sockets.insert(id, socket)),
                            false => answer.later.push(socket),
                        }
                        answer
                    }
                    answer => answer.unwrap_or_else(Answer::refused).having_spent(vec![socket]),
                };
            }
            (RequestKind::Adopt, Some(socket)) => {
                self.counters.adopt_requests += 1;
                return self.adopt(&socket).having_spent(vec![socket]);
            }
            (RequestKind::Relay, Some(placeholder)) => {
                let (reply, spent) = match self.relay(caller.uid, placeholder, more.first()) {
                    Ok(()) => (Reply::new(ReplyKind::Done), None),
                    Err((error, placeholder)) => (Reply::refused(error), Some(placeholder)),
                };
                Answer::from(reply).having_spent(more.into_iter().chain(spent).collect())
            }
            (RequestKind::Hello, None) => self.hello(caller, request),
            (RequestKind::List, None) => self.list(caller),
            (RequestKind::Revoke, None) => self.revoke(caller, request),
            (_, first) => Answer::refused(Errno::OPNOTSUPP).having_spent(first.into_iter().collect()),
        };
        self.counters.other_requests += 1;
        answer
    }

    /// Answers a request whose socket cannot be examined: it is left to the kernel.
    fn not_examined(&mut self) -> Answer {
        self.counters.limited += 1;
        Answer::use_kernel()
    }

    fn listen(
        &mut self,
        caller: Caller,
        application: Application,
        request: &Request,
        socket: OwnedFd,
        published: Vec<OwnedFd>,
    ) -> Answer {
        match self.try_listen(caller, application, request, &socket) {
            Ok(NewListener { id, pair, placeholder, kernel }) => {
                let name = kernel.name;
                // The sent socket becomes the listener's, or is closed with the answer.
                let (mut held, mut spent) = (None, None);
                let kept = if request.flags & REJOIN == 0 {
                    held = Some(socket);
                    Ok(())
                } else {
                    spent = Some(socket);
                    self.kernel_socket_of_same_name(id).map(|own| held = Some(own))
                };
                let opened = kept.and_then(|()| {
                    let cookie = registry::cookie_of(&placeholder)?;
                    if !published.is_empty() {
                        let leads_to = PublishTarget { vnic: None, name: name.to_string() };
                        self.publish(caller, request, &pair, &leads_to, published)?;
                    }
                    self.open_listener(id, OpenListener::new(pair, cookie, held.take(), None))?;
                    self.change_backlog(id, request.backlog);
                    Ok(())
                });
                let answer = match opened {
                    Ok(()) => {
                        let reply = Reply { local: name.into(), ..Reply::new(ReplyKind::Listening) };
                        Answer::with(reply, placeholder)
                    }
                    Err(error) => {
                        self.table.close(id);
                        Answer::refused(error)
                    }
                };
                answer.having_spent(held.into_iter().chain(spent).collect())
            }
            Err(answer) => answer.having_spent(published.into_iter().chain([socket]).collect()),
        }
    }

    fn try_listen(
        &mut self,
        caller: Caller,
        application: Application,
        request: &Request,
        socket: &OwnedFd,
    ) -> Result<NewListener, Box<Answer>> {
        let no = |error: Errno| Box::new(Answer::refused(error));
        kernel::check_socket(socket).map_err(no)?;
        let examined = self.calls.call(caller.uid, socket, TcpSocket::of);
        let mut tcp = examined.map_err(|_| Box::new(self.not_examined()))?.map_err(no)?;
        if request.flags & REJOIN != 0 {
            // The namespace is the socket's; everything else is the existing listener's.
            let wanted = request.local.address().ok_or(no(Errno::INVAL))?;
            let same = |listener: &&Listener| {
                (listener.application, listener.namespace, listener.name)
                    == (application, tcp.namespace, wanted)
            };
            let found = self.table.listeners().map(|(_, listener)| listener).find(same);
            let found = found.ok_or(no(Errno::NOENT))?;
            tcp = TcpSocket { name: found.name, only_ipv6: found.only_ipv6, listens: true, ..tcp };
        }
        if !tcp.listens {
            return Err(no(Errno::INVAL));
        }
        if tcp.is_bound_to_interface {
            self.counters.unmatched += 1;
            return Err(Box::new(Answer::use_kernel()));
        }
        if !self.rules.allow(Action::Listen, caller.uid, tcp.name) {
            self.counters.denied += 1;
            return Err(no(Errno::ACCESS));
        }
        if !self.has_descriptors(caller.uid, limits::DESCRIPTORS_PER_LISTENER) {
            self.counters.limited += 1;
            return Err(Box::new(Answer::use_kernel()));
        }
        let (pair, placeholder) = self.pair(request.backlog).map_err(|_| Box::new(Answer::use_kernel()))?;
        let listener = Listener {
            application,
            namespace: tcp.namespace,
            name: tcp.name,
            only_ipv6: tcp.only_ipv6,
            backlog: request.backlog,
            pid: caller.pid,
        };
        match self.table.listen(listener) {
            Ok(id) => Ok(NewListener { id, pair, placeholder, kernel: tcp }),
            Err(_) => {
                self.counters.limited += 1;
                Err(Box::new(Answer::use_kernel()))
            }
        }
    }

    /// Duplicates the kernel's listening socket of another listener with the same name.
    fn kernel_socket_of_same_name(&self, id: ListenerId) -> Result<OwnedFd, Errno> {
        let own = self.table.listener(id).ok_or(Errno::NOENT)?;
        let same = |other: &Listener| {
            (other.application, other.namespace, other.name) == (own.application, own.namespace, own.name)
        };
        let mut others = self.table.listeners().filter(|&(other, listener)| other != id && same(listener));
        let kernel =
            others.find_map(|(other, _)| self.listeners.get(&other).and_then(|open| open.kernel.as_ref()));
        kernel.ok_or(Errno::NOENT)?.try_clone().map_err(|_| Errno::MFILE)
    }

    /// Makes a listener's pair: the service's end and the placeholder.
    pub(in crate::sockets) fn pair(&self, backlog: u32) -> Result<(OwnedFd, OwnedFd), Errno> {
        let (pair, placeholder) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // The program sends none over it. An older kernel returns an error; what comes there is
        // closed by the closer.
        let _ = refuse_descriptors(&pair);
        backlog::size_pair(&pair, self.message_size, backlog)?;
        Ok((pair, placeholder))
    }

    /// Answers CONNECT. If a program under Sietch listens at the address, pairs the two programs
    /// ([`Self::make`]); otherwise the kernel connects.
    fn connect(
        &mut self,
        application: Application,
        request: &Request,
        socket: &OwnedFd,
    ) -> Result<Answer, Errno> {
        kernel::check_socket(socket)?;
        let fd = socket.as_fd();
        let about = |fd: BorrowedFd<'_>| (TcpSocket::of(fd), kernel::peer(fd).is_some());
        let Ok((tcp, connected)) = self.calls.call(application.uid, socket, about) else {
            return Ok(self.not_examined());
        };
        let tcp = tcp?;
        let remote = request.remote.address().ok_or(Errno::AFNOSUPPORT)?;
        if tcp.listens || connected {
            return Err(Errno::ISCONN);
        }
        if tcp.is_bound_to_interface {
            self.counters.unmatched += 1;
            return Ok(Answer::use_kernel());
        }
        // First of all: the kernel's own connect would make a second connection of these two names.
        let taken = |own: &Self| tcp.name.port() != 0 && own.table.is_taken(tcp.namespace, tcp.name, remote);
        if taken(self) && (!self.reap() || taken(self)) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let Some(listener) = self.find_listening(tcp.namespace, remote) else {
            self.counters.unmatched += 1;
            return Ok(self.unless_closing(tcp.namespace, remote));
        };
        if self.listeners.get(&listener).is_some_and(|open| open.takes_no_memory) {
            self.counters.limited += 1;
            return Ok(self.unless_closing(tcp.namespace, remote));
        }
        if !self.rules.allow(Action::Connect, application.uid, remote) {
            self.counters.denied += 1;
            return Err(Errno::ACCESS);
        }
        let bound = tcp.name.port() != 0 || !tcp.name.ip().is_unspecified();
        let from_here = bound && !tcp.name.ip().is_unspecified();
        let is_local = |address| kernel::is_local(fd, tcp.namespace, address);
        if !is_local(remote) || (from_here && tcp.name.ip() != remote.ip() && !is_local(tcp.name)) {
            // One of the names may belong to another host.
            return Ok(Answer::use_kernel());
        }
        if !self.has_room(listener)
            || !self.has_descriptors(application.uid, limits::DESCRIPTORS_PER_CONNECTION)
        {
            self.counters.limited += 1;
            self.sweep_if_full();
            return Ok(Answer::use_kernel());
        }
        let name = bound.then_some(tcp.name);
        let mut made = self.table.connect(application, listener, name, remote);
        if made.is_err() && self.reap() {
            made = self.table.connect(application, listener, name, remote);
        }
        let answer = match made {
            Ok(id) => match self.make(id, listener) {
                Ok(answer) => return Ok(Answer { bound: tcp.name.port() != 0, ..answer }),
                Err(error) => {
                    // The kernel may have the resources that this service lacks.
                    tracing::debug!("a connection is left to the kernel: {error}");
                    self.forget(id);
                    self.registry.remove(id);
                    self.counters.limited += 1;
                    Ok(self.unless_closing(tcp.namespace, remote))
                }
            },
            // The kernel's error in this case.
            Err(TableError::Taken) => Err(Errno::ADDRNOTAVAIL),
            Err(full) => {
                self.counters.limited += 1;
                if full != TableError::Ports || self.registry.added() > 0 {
                    self.sweep_if_full();
                }
                Ok(Answer::use_kernel())
            }
        };
        // The backlog entry that was kept for it is free.
        self.watch(listener);
        answer
    }

    /// Leaves a connection to the kernel. If a listener of that name was closed and its socket is
    /// not closed yet, the kernel would connect to that socket. The answer says so, and the program
    /// asks again.
    fn unless_closing(&mut self, namespace: u64, remote: SocketAddr) -> Answer {
        let mut answer = Answer::use_kernel();
        if self.closing.has(namespace, remote) {
            answer.reply.errno = Errno::BUSY.raw_os_error().unsigned_abs();
        }
        answer
    }

    /// Answers HELLO. With a name, the answer says whether a socket that used that name is still
    /// being closed.
    fn hello(&mut self, caller: Caller, request: &Request) -> Answer {
        let limit = u32::try_from(limits::CONNECTIONS_PER_APPLICATION).unwrap_or(u32::MAX);
        let mut reply = Reply::welcome(limit, &BUILD);
        let Some(name) = request.local.address() else { return reply.into() };
        self.close_hung_up(name.port());
        self.reap();
        if self.closer.is_closing_named(caller.uid) {
            reply.errno = Errno::BUSY.raw_os_error().unsigned_abs();
        }
        let own = self.to_close.extract_if(.., |freed| freed.uid == caller.uid);
        let (own, marks): (Vec<_>, Vec<_>) = own.map(|freed| (freed.socket, freed.mark)).unzip();
        let marks = marks.into_iter().flatten().collect();
        Answer { marks, ..Answer::from(reply).having_spent(own) }
    }

    /// Makes the memory and the placeholders of a connection, and gives the accepting end to its
    /// listener.
    fn make(&mut self, id: ConnectionId, listener: ListenerId) -> std::io::Result<Answer> {
        let connection = self.table.connection(id).ok_or(std::io::ErrorKind::NotFound)?;
        let (own, accepted) = (connection.names, connection.accepted);
        let names = [page_names(own.local, own.peer), page_names(accepted.local, accepted.peer)];
        let memory = Memory::create(self.region_sizes, names)?;
        memory.reset_until_accepted()?;
        let ([first, second], cookies) = registry::placeholders()?;
        let watches = self.registry.watch([&first, &second]);
        self.registry.insert(id, memory, cookies, watches);
        match self.deliver(listener, PendingConnection::Stream(id, second)) {
            Delivery::Sent | Delivery::Full => {}
            Delivery::Closed => {
                self.close_listener(listener);
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
        }
        self.counters.connected += 1;
        let reply = Reply {
            local: Name::from(own.local),
            remote: Name::from(own.peer),
            ..Reply::new(ReplyKind::Connected)
        };
        let mut answer = Answer::with(reply, first);
        answer.memory = Some((id, 0));
        Ok(answer)
    }

    /// Relays a connection for a program that cannot map it ([`super::relays`]), once. Returns the
    /// placeholder with an error.
    ///
    /// A process with a listener's placeholder may accept what arrived there, and makes this
    /// service connect nowhere else: the connection must have arrived at that listener, and it must
    /// listen at that name now.
    fn relay(
        &mut self,
        uid: u32,
        placeholder: OwnedFd,
        listener: Option<&OwnedFd>,
    ) -> Result<(), (Errno, OwnedFd)> {
        let found = (self.registry.find(&placeholder), listener.and_then(|sent| self.registry.find(sent)));
        let (Some(Placeholder::End(id, 1)), Some(Placeholder::Listener(listener))) = found else {
            return Err((Errno::INVAL, placeholder));
        };
        let (Some(connection), Some(entry)) = (self.table.connection(id), self.registry.get(id)) else {
            return Err((Errno::NOTCONN, placeholder));
        };
        let Some(arrived) = self.arrived_at(connection, listener).filter(|_| !entry.relayed) else {
            return Err((Errno::INVAL, placeholder));
        };
        if !matches!(self.still_listens(arrived), Ok(true)) {
            return Err((Errno::CONNREFUSED, placeholder));
        }
        let (names, namespace) = (connection.accepted, connection.namespace);
        let kernel = self.listeners.get(&arrived).and_then(|open| open.kernel.as_ref());
        let entrance = kernel.and_then(|kernel| namespace_of(kernel).ok());
        for id in [listener, arrived] {
            if let Some(open) = self.listeners.get_mut(&id) {
                open.takes_no_memory = true;
            }
        }
        self.relays.begin(uid, placeholder, &entry.memory, Destination { names, namespace, entrance })?;
        self.registry.note_relayed(id);
        self.counters.relayed += 1;
        Ok(())
    }

    /// Returns where a connection that `listener` accepted has arrived: there, at another listener
    /// of the same socket, or at a port that is published for it.
    fn arrived_at(&self, connection: &Connection, listener: ListenerId) -> Option<ListenerId> {
        let (accepting, open) = (self.table.listener(listener)?, self.listeners.get(&listener)?);
        let (names, namespace) = (connection.accepted, connection.namespace);
        let mut listeners = self.listeners.iter().filter(|&(&id, other)| {
            let Some(own) = self.table.listener(id) else { return false };
            let leads_here = other.leads_to.is_some() && own.application == accepting.application;
            (other.group == open.group || leads_here)
                && own.application == connection.server
                && own.is_reached_at(namespace, names.local)
        });
        listeners.next().map(|(&id, _)| id)
    }

    fn adopt(&self, socket: &OwnedFd) -> Answer {
        match self.registry.find(socket) {
            Some(Placeholder::End(id, end)) => {
                let mut reply = Reply::new(ReplyKind::Stream);
                if let Some(connection) = self.table.connection(id) {
                    let names = if end == 0 { connection.names } else { connection.accepted };
                    (reply.local, reply.remote) = (names.local.into(), names.peer.into());
                }
                Answer { memory: Some((id, end)), ..Answer::from(reply) }
            }
            Some(Placeholder::Listener(id)) => {
                let mut reply = Reply::new(ReplyKind::Listener);
                if let Some(listener) = self.table.listener(id) {
                    reply.local = listener.name.into();
                    reply.limit = listener.backlog.saturating_add(1);
                }
                let mut answer = Answer::from(reply);
                // The program keeps it in case this service ends. Without it, it makes a new one
                // then.
                let kernel = self.listeners.get(&id).and_then(|open| open.kernel.as_ref());
                answer.own[0] = kernel.and_then(|kernel| kernel.try_clone().ok());
                answer
            }
            None => Reply::new(ReplyKind::Unknown).into(),
        }
    }
}
