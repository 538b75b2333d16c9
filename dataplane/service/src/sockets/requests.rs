//! What is asked, judged, and answered.
//!
//! 1. A request was copied once and parsed; here it meets its descriptors. The kernel is asked what
//!    they are: a name, a namespace, whether it listens.
//! 2. What does not fit is refused with an error number. What a limit forbids is
//!    [`ReplyKind::UseKernel`]: the program goes on with the kernel.
//! 3. An address of a connection is believed only if it is loopback or the kernel's routes say that
//!    it is the host's. What the two sockets are bound to proves nothing: a program can bind to any
//!    address (IP_FREEBIND).
//! 4. Sockets that are bound to an interface or a VRF are left to the kernel, which knows what can
//!    reach them.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sietch_protocol::socket_service::{
    Action, Descriptors, MAX_DESCRIPTORS, Name, REJOIN, Reply, ReplyKind, Request, RequestKind,
};
use sietch_ring::stream::Memory;

use super::kernel::{self, Tcp};
use super::listeners::{Handed, Open, Waiting};
use super::publish::LeadsTo;
use super::registry::{self, Placeholder};
use super::run::Service;
use super::table::{Application, ConnectionId, Full, Listener, ListenerId};

/// Who asks, as the kernel says it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub uid: u32,
    /// 0: it lives outside the PID namespace of the service.
    pub pid: i32,
    /// It came over the administrators' socket. No uid alone is an administrator: a container's
    /// root has uid 0 too.
    pub administers: bool,
}

impl Caller {
    /// For whom its open requests are counted; `None`: administrators.
    pub fn bucket(self) -> Option<u32> {
        (!self.administers).then_some(self.uid)
    }

    /// Whether it may see and end what this application has. Uid 0 is shared by host and
    /// containers: it sees nothing here.
    pub fn may_see(self, application: Application) -> bool {
        self.administers || (self.uid != 0 && application.uid == self.uid)
    }
}

/// An answer, and which descriptors go with it.
#[derive(Debug)]
pub(super) struct Answer {
    pub reply: Reply,
    /// Sent, and then closed here.
    pub own: [Option<OwnedFd>; MAX_DESCRIPTORS],
    /// Sent behind those, and kept: the common memory and the private page of this end.
    pub memory: Option<(ConnectionId, usize)>,
    /// What came with the request and is not kept: closed before the answer is sent.
    pub spent: Vec<OwnedFd>,
    /// The same, but nobody sees when it is closed: after the answer.
    pub later: Vec<OwnedFd>,
    /// The program's socket was bound to a name, which the connection that was made has.
    pub bound: bool,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self {
            reply,
            own: [const { None }; MAX_DESCRIPTORS],
            memory: None,
            spent: Vec::new(),
            later: Vec::new(),
            bound: false,
        }
    }
}

impl Answer {
    pub fn with(reply: Reply, descriptor: OwnedFd) -> Self {
        let mut answer = Self::from(reply);
        answer.own[0] = Some(descriptor);
        answer
    }

    pub fn refused(errno: Errno) -> Self {
        Reply::refused(errno).into()
    }

    fn not_ours() -> Self {
        Reply::new(ReplyKind::UseKernel).into()
    }

    pub fn having_spent(self, spent: Vec<OwnedFd>) -> Self {
        Self { spent, ..self }
    }
}

impl Service {
    /// Does what is asked.
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
        let strange = !more.is_empty() && (kind != RequestKind::Listen || request.flags & REJOIN != 0);
        let revoked =
            matches!(kind, RequestKind::Listen | RequestKind::Connect) && self.revoked.contains(application);
        if strange || revoked {
            let counter = if strange { &mut self.counters.malformed } else { &mut self.counters.denied };
            *counter += 1;
            let answer = Answer::refused(if strange { Errno::INVAL } else { Errno::ACCESS });
            return answer.having_spent(first.into_iter().chain(more).collect());
        }
        let answer = match (kind, first) {
            (RequestKind::Listen, Some(socket)) => {
                self.counters.asked_listen += 1;
                return self.listen(caller, application, request, socket, more);
            }
            (RequestKind::Connect, Some(socket)) => {
                self.counters.asked_connect += 1;
                return match self.connect(application, request, &socket) {
                    // Its program has something else in its place: nobody sees when this is closed.
                    Ok(mut answer) if let Some((id, _)) = answer.memory => {
                        // While the connection lives its name is taken in the kernel too.
                        match answer.bound {
                            true => answer.later.extend(self.names.insert(id, socket)),
                            false => answer.later.push(socket),
                        }
                        answer
                    }
                    answer => answer.unwrap_or_else(Answer::refused).having_spent(vec![socket]),
                };
            }
            (RequestKind::Adopt, Some(socket)) => {
                self.counters.asked_adopt += 1;
                return self.adopt(&socket).having_spent(vec![socket]);
            }
            (RequestKind::Hello, None) => self.hello(caller, request),
            (RequestKind::List, None) => self.list(caller),
            (RequestKind::Revoke, None) => self.revoke(caller, request),
            (_, first) => Answer::refused(Errno::OPNOTSUPP).having_spent(first.into_iter().collect()),
        };
        self.counters.asked_other += 1;
        answer
    }

    /// The answer about a socket of which nothing can be learned: what it is, the kernel knows.
    fn held_up(&mut self) -> Answer {
        self.counters.limited += 1;
        Answer::not_ours()
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
            Ok((id, pair, placeholder, kernel)) => {
                let name = kernel.name;
                // What was sent is the listener's, or closed elsewhere, whatever comes of this.
                let (mut held, mut spent) = (None, None);
                let kept = if request.flags & REJOIN == 0 {
                    held = Some(socket);
                    Ok(())
                } else {
                    spent = Some(socket);
                    self.of_same_name(id).map(|own| held = Some(own))
                };
                let opened = kept.and_then(|()| {
                    let cookie = registry::cookie(&placeholder)?;
                    if !published.is_empty() {
                        let leads_to = LeadsTo { vnic: None, name: name.to_string() };
                        self.publish(caller, request, &pair, &leads_to, published)?;
                    }
                    self.open_listener(id, Open::new(pair, cookie, held.take(), None))?;
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

    #[allow(clippy::type_complexity)]
    fn try_listen(
        &mut self,
        caller: Caller,
        application: Application,
        request: &Request,
        socket: &OwnedFd,
    ) -> Result<(ListenerId, OwnedFd, OwnedFd, Tcp), Box<Answer>> {
        let no = |error: Errno| Box::new(Answer::refused(error));
        kernel::check_socket(socket).map_err(no)?;
        let asked = self.expendable.ask(caller.uid, socket, Tcp::of);
        let mut tcp = asked.map_err(|_| Box::new(self.held_up()))?.map_err(no)?;
        if request.flags & REJOIN != 0 {
            // The socket says in which namespace; the listener that is there says the rest.
            let wanted = request.local.address().ok_or(no(Errno::INVAL))?;
            let same = |listener: &&Listener| {
                (listener.application, listener.namespace, listener.name)
                    == (application, tcp.namespace, wanted)
            };
            let found = self.table.listeners().map(|(_, listener)| listener).find(same);
            let found = found.ok_or(no(Errno::NOENT))?;
            tcp = Tcp { name: found.name, only_ipv6: found.only_ipv6, listens: true, ..tcp };
        }
        if !tcp.listens {
            return Err(no(Errno::INVAL));
        }
        if tcp.of_interface {
            self.counters.not_ours += 1;
            return Err(Box::new(Answer::not_ours()));
        }
        if !self.rules.allow(Action::Listen, caller.uid, tcp.name) {
            self.counters.denied += 1;
            return Err(no(Errno::ACCESS));
        }
        if !self.has_descriptors(caller.uid, super::limits::DESCRIPTORS_PER_LISTENER) {
            self.counters.limited += 1;
            return Err(Box::new(Answer::not_ours()));
        }
        let (pair, placeholder) = self.pair(request.backlog).map_err(|_| Box::new(Answer::not_ours()))?;
        let listener = Listener {
            application,
            namespace: tcp.namespace,
            name: tcp.name,
            only_ipv6: tcp.only_ipv6,
            backlog: request.backlog,
            pid: caller.pid,
        };
        match self.table.listen(listener) {
            Ok(id) => Ok((id, pair, placeholder, tcp)),
            Err(_) => {
                self.counters.limited += 1;
                Err(Box::new(Answer::not_ours()))
            }
        }
    }

    /// Another descriptor for the kernel's listening socket of a listener with the same name as
    /// this one.
    fn of_same_name(&self, id: ListenerId) -> Result<OwnedFd, Errno> {
        let own = self.table.listener(id).ok_or(Errno::NOENT)?;
        let same = |other: &Listener| {
            (other.application, other.namespace, other.name) == (own.application, own.namespace, own.name)
        };
        let mut others = self.table.listeners().filter(|&(other, listener)| other != id && same(listener));
        let kernel =
            others.find_map(|(other, _)| self.open.get(&other).and_then(|open| open.kernel.as_ref()));
        kernel.ok_or(Errno::NOENT)?.try_clone().map_err(|_| Errno::MFILE)
    }

    /// A listener's pair: the service's end and the placeholder.
    pub(super) fn pair(&self, backlog: u32) -> Result<(OwnedFd, OwnedFd), Errno> {
        let (pair, placeholder) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        super::backlog::size_pair(&pair, self.message_size, backlog)?;
        Ok((pair, placeholder))
    }

    fn connect(
        &mut self,
        application: Application,
        request: &Request,
        socket: &OwnedFd,
    ) -> Result<Answer, Errno> {
        kernel::check_socket(socket)?;
        let fd = std::os::fd::AsFd::as_fd(socket);
        let about = |fd: BorrowedFd<'_>| (Tcp::of(fd), kernel::peer(fd).is_some());
        let Ok((tcp, connected)) = self.expendable.ask(application.uid, socket, about) else {
            return Ok(self.held_up());
        };
        let tcp = tcp?;
        let remote = request.remote.address().ok_or(Errno::AFNOSUPPORT)?;
        if tcp.listens || connected {
            return Err(Errno::ISCONN);
        }
        if tcp.of_interface {
            self.counters.not_ours += 1;
            return Ok(Answer::not_ours());
        }
        // Before anything else: the kernel's own connect would make a second connection of these
        // two names.
        let taken = |own: &Self| tcp.name.port() != 0 && own.table.is_taken(tcp.namespace, tcp.name, remote);
        if taken(self) && (!self.bury() || taken(self)) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let Some(listener) = self.find_listening(tcp.namespace, remote) else {
            self.counters.not_ours += 1;
            return Ok(Answer::not_ours());
        };
        if !self.rules.allow(Action::Connect, application.uid, remote) {
            self.counters.denied += 1;
            return Err(Errno::ACCESS);
        }
        let bound = tcp.name.port() != 0 || !tcp.name.ip().is_unspecified();
        let from_here = bound && !tcp.name.ip().is_unspecified();
        let is_local = |address| kernel::is_local(fd, tcp.namespace, address);
        if !is_local(remote) || (from_here && tcp.name.ip() != remote.ip() && !is_local(tcp.name)) {
            // The one or the other name may be anybody's.
            return Ok(Answer::not_ours());
        }
        if !self.has_room(listener)
            || !self.has_descriptors(application.uid, super::limits::DESCRIPTORS_PER_CONNECTION)
        {
            self.counters.limited += 1;
            self.sweep_if_full();
            return Ok(Answer::not_ours());
        }
        let name = bound.then_some(tcp.name);
        let mut made = self.table.connect(application, listener, name, remote);
        if made.is_err() && self.bury() {
            made = self.table.connect(application, listener, name, remote);
        }
        let answer = match made {
            Ok(id) => match self.make(id, listener) {
                Ok(answer) => return Ok(Answer { bound: tcp.name.port() != 0, ..answer }),
                Err(error) => {
                    // What it was short of, the kernel may have.
                    tracing::debug!("a connection is left to the kernel: {error}");
                    self.forget(id);
                    self.registry.remove(id);
                    self.counters.limited += 1;
                    Ok(Answer::not_ours())
                }
            },
            // As the kernel says it.
            Err(Full::Taken) => Err(Errno::ADDRNOTAVAIL),
            Err(full) => {
                self.counters.limited += 1;
                if full != Full::Ports || self.registry.made() > 0 {
                    self.sweep_if_full();
                }
                Ok(Answer::not_ours())
            }
        };
        // The place that was kept for it is free.
        self.watch(listener);
        answer
    }

    /// A connection is gone: its names are free.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.disconnect(id) else { return };
        if let Some(socket) = self.names.remove(&id) {
            self.freed.push((connection.client.uid, socket));
        }
    }

    /// Answers a hello. One with a name waits until that name is free, if what held it is gone.
    fn hello(&mut self, caller: Caller, request: &Request) -> Answer {
        let limit = u32::try_from(super::limits::CONNECTIONS_PER_APPLICATION).unwrap_or(u32::MAX);
        let mut reply = Reply::welcome(limit, &super::BUILD);
        let Some(name) = request.local.address() else { return reply.into() };
        self.close_those_that_hung_up(name.port());
        self.bury();
        if self.closer.is_at(caller.uid) {
            reply.errno = Errno::BUSY.raw_os_error().unsigned_abs();
        }
        let own = self.freed.extract_if(.., |(uid, _)| *uid == caller.uid).map(|(_, freed)| freed);
        let own = own.collect();
        Answer::from(reply).having_spent(own)
    }

    /// Makes the memory and the placeholders of a connection, and gives the accepting end to its
    /// listener.
    fn make(&mut self, id: ConnectionId, listener: ListenerId) -> std::io::Result<Answer> {
        let connection = self.table.connection(id).ok_or(std::io::ErrorKind::NotFound)?;
        let (own, accepted) = (connection.names, connection.accepted);
        let names = [registry::names(own.local, own.peer), registry::names(accepted.local, accepted.peer)];
        let memory = Memory::create(self.geometry, names)?;
        memory.reset_until_accepted()?;
        let ([first, second], cookies) = registry::placeholders()?;
        // Whoever accepts could send descriptors over the other end before this copy is closed.
        // Before Linux 6.16 it may.
        let _ = sietch_socket::kernel::refuse_descriptors(&first);
        let watches = self.registry.watch([&first, &second]);
        self.registry.insert(id, memory, cookies, watches);
        match self.hand_over(listener, Waiting::Stream(id, second)) {
            Handed::Over | Handed::Full => {}
            Handed::Gone => {
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
                // What its program keeps over the death of this service; short of descriptors it
                // makes a new one then.
                let kernel = self.open.get(&id).and_then(|open| open.kernel.as_ref());
                answer.own[0] = kernel.and_then(|kernel| kernel.try_clone().ok());
                answer
            }
            None => Reply::new(ReplyKind::Unknown).into(),
        }
    }
}
