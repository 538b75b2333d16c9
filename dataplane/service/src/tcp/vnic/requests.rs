//! Requests about a VNIC, judged and answered.
//!
//! 1. Only applications of the VNIC's user are served (and root's).
//! 2. BIND reserves a name; the answer carries the socket that keeps it. LISTEN takes a
//!    reservation, or binds and listens at once. CONNECT uses a reservation's port, or any.
//! 3. A destination on the host's loopback is not the VNIC's: the request goes to the kernel.
//! 4. ADOPT answers for placeholders of this VNIC: an application that has one may have its memory,
//!    and the state of its connection (INFORMATION).

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use sietch_protocol::closer::PeerSocket;
use sietch_protocol::socket_service::{
    Arrival, ArrivalKind, Name, ONLY_IPV6, REUSED_ADDRESS, Reply, ReplyKind, Request, RequestKind,
    SHARED_PORT,
};
use sietch_ring::socket_pair;
use sietch_ring::stream::Memory;
use sietch_socket::kernel::is_hung_up;
use sietch_structures::Key;

use super::device::Device;
use super::state::{Answer, LocalArrival, Pair, Placeholder, Reservation, Token, Vnic};
use crate::requests::application::{Application, Connection, Names, page_names};
use crate::requests::descriptors::ListenerPair;
use crate::requests::vnic::VnicRequest;
use crate::sockets::{BUILD, Command, LocalConnection};
use crate::tcp::host::ApplicationUsage;
use crate::tcp::limits::BACKLOG;
use crate::tcp::ports::{BindError, BoundName};
use crate::tcp::stream_channel::{Opening, StreamChannel};
use crate::tcp::tcp_info;

/// The approximate size of an arrival in a pair's buffer, with the kernel's bookkeeping.
const MESSAGE: usize = 1024;
/// The most arrivals in a pair; the others wait in the service, which can close them.
const IN_PAIR: usize = 64;

/// Returns the number that identifies a VNIC where network namespaces are distinguished. The kernel
/// counts its own up from 1, so it never gives this number.
fn namespace(name: &str) -> u64 {
    // FNV-1a.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, hash) | 1 << 63
}

impl<Q: Device> Vnic<Q> {
    /// Answers a request.
    pub(super) fn answer(&mut self, request: VnicRequest) {
        let VnicRequest { uid, administers, request, kind, descriptors, pair, dry_run, socket } = request;
        let sees = |usage: &ApplicationUsage| {
            let own = administers || (uid != 0 && usage.uid == uid);
            own && request.user().is_none_or(|meant| kind != RequestKind::Revoke || meant == usage.uid)
        };
        let administration = matches!(kind, RequestKind::List | RequestKind::Revoke);
        let allowed = uid == self.access.uid || uid == 0 || administration;
        let answer = match kind {
            _ if !allowed => Err(Errno::ACCESS),
            RequestKind::Listen | RequestKind::Connect | RequestKind::Bind
                if self.revoked.contains(Application { uid, id: request.application }) =>
            {
                Err(Errno::ACCESS)
            }
            RequestKind::Hello => Ok((Reply::welcome(0, &BUILD), Vec::new())),
            RequestKind::Bind => self.bind(uid, &request),
            RequestKind::Listen => self.listen(uid, &request, descriptors.first(), pair),
            RequestKind::Connect => self.connect(uid, &request, descriptors.first()),
            RequestKind::List => self.list(sees),
            RequestKind::Revoke if dry_run => self.dry_run_revocation(sees, request.application),
            RequestKind::Revoke => self.revoke(sees, request.application),
            RequestKind::Adopt => match descriptors.first() {
                Some(placeholder) => self.adopt(placeholder),
                None => Err(Errno::INVAL),
            },
            RequestKind::Information => match descriptors.first() {
                Some(placeholder) => self.inform(placeholder),
                None => Err(Errno::INVAL),
            },
            _ => Err(Errno::OPNOTSUPP),
        };
        let (reply, given) = answer.unwrap_or_else(|error| (Reply::refused(error), Vec::new()));
        // If the application no longer waits, the descriptors of the answer hang up too.
        descriptors.answer(socket, reply, given);
    }

    /// Returns the name that a request binds.
    fn requested_name(&mut self, uid: u32, request: &Request) -> BoundName {
        let local = request.local.address().unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
        BoundName {
            local,
            v6_only: request.flags & ONLY_IPV6 != 0,
            reuse_address: request.flags & REUSED_ADDRESS != 0,
            reuse_port: request.flags & SHARED_PORT != 0,
            uid,
            application: self.host.application(request.application, uid),
        }
    }

    fn watch(&self, socket: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, EventData::new_u64(token.word()), EventFlags::IN)
    }

    fn bind(&mut self, uid: u32, request: &Request) -> Result<Answer, Errno> {
        let binding = self.bind_requested(uid, request)?;
        let made = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .and_then(|(own, given)| Ok((sockopt::socket_cookie(&given)?, peer_socket(own, uid), given)))
            .and_then(|(cookie, own, given)| {
                self.watch(&own, Token::Reservation(binding))?;
                Ok((cookie, own, given))
            });
        let (cookie, socket, given) = match made {
            Ok(made) => made,
            Err(error) => {
                self.host.release(binding);
                return Err(error);
            }
        };
        self.placeholders.insert(cookie, Placeholder::Reservation(binding));
        self.reservations.insert(binding, Reservation { socket, cookie });
        Ok((Reply { local: self.local_name(binding), ..Reply::new(ReplyKind::Bound) }, vec![given]))
    }

    /// Binds the requested name, also if its last holder has closed it and no event has reported
    /// that yet.
    fn bind_requested(&mut self, uid: u32, request: &Request) -> Result<Key, Errno> {
        let name = self.requested_name(uid, request);
        let refused = match self.host.bind(name) {
            Ok(binding) => return Ok(binding),
            Err(refused) => refused,
        };
        let closed = self.pairs.iter().filter(|(_, pair)| is_hung_up(&pair.socket));
        let listeners: Vec<Key> = closed.map(|(&binding, _)| binding).collect();
        let closed = self.reservations.iter().filter(|(_, held)| is_hung_up(&held.socket));
        let reservations: Vec<Key> = closed.map(|(&binding, _)| binding).collect();
        if listeners.is_empty() && reservations.is_empty() {
            return Err(refused.errno());
        }
        listeners.into_iter().for_each(|binding| self.close(binding));
        reservations.into_iter().for_each(|binding| self.close_reservation(binding));
        let name = self.requested_name(uid, request);
        self.host.bind(name).map_err(BindError::errno)
    }

    fn local_name(&self, binding: Key) -> Name {
        self.host.ports().get(binding).map_or(Name::NONE, |binding| binding.name.local.into())
    }

    /// Returns the binding of a reservation that came with the request.
    fn reserved(&self, sent: Option<&OwnedFd>) -> Option<Key> {
        match self.placeholders.get(&sockopt::socket_cookie(sent?).ok()?) {
            Some(Placeholder::Reservation(binding)) => Some(*binding),
            _ => None,
        }
    }

    fn listen(
        &mut self,
        uid: u32,
        request: &Request,
        sent: Option<&OwnedFd>,
        pair: Option<ListenerPair>,
    ) -> Result<Answer, Errno> {
        let binding = match self.reserved(sent) {
            // The socket service has checked the name in the request, so the two must agree.
            Some(binding) if request.local.length != 0 && request.local != self.local_name(binding) => {
                return Err(Errno::INVAL);
            }
            Some(binding) => binding,
            None => self.bind_requested(uid, request)?,
        };
        let opened = self.open(binding, uid, request, pair);
        if opened.is_err() && !self.reservations.contains_key(&binding) {
            self.host.release(binding);
        }
        let placeholder = opened?;
        // The listener keeps the name now.
        self.close_reservation(binding);
        Ok((Reply { local: self.local_name(binding), ..Reply::new(ReplyKind::Listening) }, vec![placeholder]))
    }

    /// Listens on a binding, and returns the placeholder.
    fn open(
        &mut self,
        binding: Key,
        uid: u32,
        request: &Request,
        pair: Option<ListenerPair>,
    ) -> Result<OwnedFd, Errno> {
        let application =
            self.host.ports().get(binding).map(|binding| binding.name.application).ok_or(Errno::NOENT)?;
        // If the pair is not taken out below, its owner closes it.
        let made = match pair {
            Some(pair) => pair,
            None => own_pair(request.backlog)?.into(),
        };
        let [pair, placeholder] = made.ends().ok_or(Errno::INVAL)?;
        let cookie = sockopt::socket_cookie(placeholder)?;
        self.host.listen(binding, request.backlog).map_err(BindError::errno)?;
        self.watch(pair, Token::Pair(binding))?;
        let [pair, placeholder] = made.take().ok_or(Errno::INVAL)?;
        let socket = peer_socket(pair, uid);
        self.placeholders.insert(cookie, Placeholder::Listener(binding));
        self.pairs.insert(binding, Pair { socket, cookie, application, full: false, local: VecDeque::new() });
        Ok(placeholder)
    }

    fn connect(&mut self, uid: u32, request: &Request, sent: Option<&OwnedFd>) -> Result<Answer, Errno> {
        let remote = request.remote.address().ok_or(Errno::AFNOSUPPORT)?;
        let address = remote.ip().to_canonical();
        if address.is_loopback() {
            return Ok((Reply::new(ReplyKind::UseKernel), Vec::new()));
        }
        let remote = SocketAddr::new(address, remote.port());
        let from = match self.reserved(sent) {
            Some(binding) => self.host.ports().get(binding).map(|binding| binding.name.local.port()),
            None => request.local.address().map(|local| local.port()).filter(|port| *port != 0),
        };
        if from.is_some_and(|port| !self.host.ports().is_allowed(port)) {
            return Err(Errno::ACCESS);
        }
        let application = self.host.application(request.application, uid);
        if self.host.ports().is_ours(address) {
            let client = Application { uid, id: request.application };
            return self.connect_within((application, client), from, remote);
        }
        if !self.access.allows_peer(address) {
            return Err(Errno::ACCESS);
        }
        let begun = self.host.begin(application, from, remote, self.now)?;
        let of = (Opening::Connecting, uid);
        let made = match StreamChannel::make(self.region_sizes, begun.local, begun.remote, of) {
            Ok(made) => made,
            Err(_) => {
                self.host.abandon(begun.flow);
                return Err(Errno::NOBUFS);
            }
        };
        let given = self.duplicate_memory(&made.channel)?;
        let reply = Reply {
            local: begun.local.into(),
            remote: begun.remote.into(),
            ..Reply::new(ReplyKind::Connecting)
        };
        self.attach(begun.flow, application, made.channel, made.application_end.cookie)?;
        let mut descriptors = vec![made.application_end.placeholder];
        descriptors.extend(given);
        Ok((reply, descriptors))
    }

    /// Duplicates the descriptors of a connection's memory.
    fn duplicate_memory(&self, channel: &StreamChannel) -> Result<Vec<OwnedFd>, Errno> {
        channel.memory().into_iter().map(|fd| fd.try_clone_to_owned().map_err(|_| Errno::MFILE)).collect()
    }

    /// Connects two applications of this VNIC.
    fn connect_within(
        &mut self,
        (application, client): (Key, Application),
        from: Option<u16>,
        remote: SocketAddr,
    ) -> Result<Answer, Errno> {
        let mut found = self.own_listener(remote);
        // Its last holder has closed it, and no event has reported that yet.
        while let Some(binding) = found
            && self.pairs.get(&binding).is_some_and(|pair| is_hung_up(&pair.socket))
        {
            self.close(binding);
            found = self.own_listener(remote);
        }
        let binding = found.ok_or(Errno::CONNREFUSED)?;
        if !self.host.may_connect(application) {
            return Err(Errno::NOBUFS);
        }
        let backlog = self.backlog_of(binding);
        let pair = self.pairs.get(&binding).filter(|pair| pair.local.len() <= backlog as usize);
        let server = self.host.usage_of(pair.ok_or(Errno::CONNREFUSED)?.application);
        let server = server.map_or(client, |usage| Application { uid: usage.uid, id: usage.id });
        let port = from.unwrap_or_else(|| {
            self.next_port = self.next_port.wrapping_add(1);
            32_768 + self.next_port % 28_000
        });
        let local = SocketAddr::new(remote.ip(), port);
        let memory =
            Memory::create(self.region_sizes, [page_names(local, remote), page_names(remote, local)])
                .map_err(|_| Errno::NOBUFS)?;
        memory.reset_until_accepted().map_err(|_| Errno::NOBUFS)?;
        let (zero, one) = socket_pair::pair(SocketFlags::empty())?;
        let arrival = Arrival::new(ArrivalKind::Stream, remote.into(), local.into());
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|_| Errno::MFILE);
        let cookies = [sockopt::socket_cookie(&zero)?, sockopt::socket_cookie(&one)?];
        let refuses = socket_pair::refuses_descriptors(&one);
        let placeholder = PeerSocket::new(one, refuses, client.uid);
        let accepting = [copy(&memory.common)?, copy(&memory.private[1])?];
        let given = vec![zero, copy(&memory.common)?, copy(&memory.private[0])?];
        if let Some(socket_service) = &self.socket_service {
            let connection = Connection {
                client,
                server,
                namespace: namespace(&self.name),
                names: Names { local, peer: remote },
                accepted: Names { local: remote, peer: local },
            };
            // Before an application has an end of it, and could send a request about that end.
            socket_service.send(Command::AddConnection(Box::new(LocalConnection {
                connection,
                memory,
                cookies,
            })));
        }
        if let Some(pair) = self.pairs.get_mut(&binding) {
            pair.local.push_back(LocalArrival { arrival, placeholder, memory: accepting });
        }
        self.deliver(binding);
        let reply = Reply { local: local.into(), remote: remote.into(), ..Reply::new(ReplyKind::Connected) };
        Ok((reply, given))
    }

    /// Answers the state of a connection.
    fn inform(&self, placeholder: &OwnedFd) -> Result<Answer, Errno> {
        let cookie = sockopt::socket_cookie(placeholder).map_err(|_| Errno::NOTSOCK)?;
        let Some(Placeholder::Connection(key)) = self.placeholders.get(&cookie) else {
            return Err(Errno::NOTCONN);
        };
        let flow = self.host.flow(*key).and_then(|flow| self.host.engine().flow_info(flow));
        let flow = flow.ok_or(Errno::NOTCONN)?;
        let waiting = u32::try_from(flow.unsent_or_unacknowledged).unwrap_or(u32::MAX);
        let mut reply = Reply { limit: waiting, ..Reply::new(ReplyKind::Information) };
        reply.spare[..tcp_info::BYTES].copy_from_slice(&tcp_info::of(&flow));
        Ok((reply, Vec::new()))
    }

    fn backlog_of(&self, binding: Key) -> u32 {
        self.host.ports().get(binding).and_then(|binding| binding.listening).map_or(0, |it| it.backlog)
    }

    /// Answers what a placeholder represents.
    fn adopt(&mut self, placeholder: &OwnedFd) -> Result<Answer, Errno> {
        let cookie = sockopt::socket_cookie(placeholder).map_err(|_| Errno::NOTSOCK)?;
        let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(|_| Errno::MFILE);
        match self.placeholders.get(&cookie).copied() {
            Some(Placeholder::Connection(key)) => {
                let Some(channel) = self.host.channel(key) else {
                    return Ok((Reply::new(ReplyKind::Unknown), Vec::new()));
                };
                let [common, page] = channel.memory();
                Ok((Reply::new(ReplyKind::Stream), vec![copy(common)?, copy(page)?]))
            }
            Some(Placeholder::Listener(binding)) => {
                let limit = self.backlog_of(binding).saturating_add(1);
                let local = self.local_name(binding);
                Ok((Reply { local, limit, ..Reply::new(ReplyKind::Listener) }, Vec::new()))
            }
            Some(Placeholder::Reservation(_)) | None => Ok((Reply::new(ReplyKind::Unknown), Vec::new())),
        }
    }
}

/// Makes a listener's pair: the service's end and the placeholder.
fn own_pair(backlog: u32) -> Result<[OwnedFd; 2], Errno> {
    let (pair, placeholder) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // The kernel doubles the size.
    let messages = (backlog.clamp(1, BACKLOG) as usize).min(IN_PAIR);
    sockopt::set_socket_send_buffer_size(&pair, messages * MESSAGE / 2)?;
    Ok([pair, placeholder])
}

/// The service's end of a pair whose other end has an application of `uid`. It refuses descriptors,
/// which the thread of a VNIC would have to close, if the kernel can.
fn peer_socket(own: OwnedFd, uid: u32) -> PeerSocket {
    let refuses = socket_pair::refuse_descriptors(&own).is_ok();
    PeerSocket::new(own, refuses, uid)
}
