//! What applications ask of a VNIC, judged and answered.
//!
//! 1. Only applications of the VNIC's user are heard (and root's).
//! 2. BIND reserves a name; the answer carries what holds it. LISTEN takes a reservation, or
//!    reserves and listens at once. CONNECT begins from a reservation's port, or any.
//! 3. A destination that is the host's loopback is not this VNIC's: the kernel has it.
//! 4. ADOPT answers for placeholders of this VNIC: who has one may have its memory, and hear how
//!    its connection stands (INFORMATION).

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use sietch_protocol::socket_service::{
    Arrival, ArrivalKind, Name, ONLY_IPV6, REUSED_ADDRESS, Reply, ReplyKind, Request, RequestKind,
    SHARED_PORT,
};
use sietch_ring::stream::Memory;

use super::{Asked, Device, Pair, Placeholder, Reservation, Token, Vnic, Within};
use crate::sockets::table::{Application, Connection, Names};
use crate::sockets::{Command, ListenerPair, Paired};
use crate::tcp::information;
use crate::tcp::limits::BACKLOG;
use crate::tcp::link::{Link, names};
use crate::tcp::ports;

/// Bytes that an arrival takes of a pair's buffer, roughly: its own, and the kernel's bookkeeping.
const MESSAGE: usize = 1024;
/// Arrivals in a pair; the others wait in the service, which can close them.
const IN_PAIR: usize = 64;

/// An answer, and what goes with it and is closed here.
pub(super) type Answer = (Reply, Vec<OwnedFd>);

/// What stands for a VNIC where network namespaces are told apart: no number that the kernel gives
/// to one (those count up from 1).
fn namespace(name: &str) -> u64 {
    // FNV-1a.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, hash) | 1 << 63
}

impl<Q: Device> Vnic<Q> {
    pub(super) fn answer(&mut self, asked: Asked) {
        let Asked { uid, administers, request, kind, sent, pair, rehearsal, socket } = asked;
        let sees = |share: &crate::tcp::Share| {
            let own = administers || (uid != 0 && share.uid == uid);
            own && request.user().is_none_or(|meant| kind != RequestKind::Revoke || meant == share.uid)
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
            RequestKind::Hello => Ok((Reply::welcome(0, &crate::sockets::BUILD), Vec::new())),
            RequestKind::Bind => self.bind(uid, &request),
            RequestKind::Listen => self.listen(uid, &request, sent.first(), pair),
            RequestKind::Connect => self.connect(uid, &request, sent.first()),
            RequestKind::List => self.list(sees),
            RequestKind::Revoke if rehearsal => self.rehearse(sees, request.application),
            RequestKind::Revoke => self.revoke(sees, request.application),
            RequestKind::Adopt => match sent.first() {
                Some(sent) => self.adopt(sent),
                None => Err(Errno::INVAL),
            },
            RequestKind::Information => match sent.first() {
                Some(sent) => self.inform(sent),
                None => Err(Errno::INVAL),
            },
            _ => Err(Errno::OPNOTSUPP),
        };
        let (reply, given) = answer.unwrap_or_else(|error| (Reply::refused(error), Vec::new()));
        // Who does not wait for the answer has hung up: what was given hangs up too.
        sent.answer(socket, reply, given);
    }

    fn wanted(&mut self, uid: u32, request: &Request) -> Result<ports::Name, Errno> {
        let local = request.local.address().unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
        Ok(ports::Name {
            local,
            v6_only: request.flags & ONLY_IPV6 != 0,
            reuse_address: request.flags & REUSED_ADDRESS != 0,
            reuse_port: request.flags & SHARED_PORT != 0,
            uid,
            application: self.host.application(request.application, uid),
        })
    }

    fn watch(&self, socket: &OwnedFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, EventData::new_u64(token.word()), EventFlags::IN)
    }

    fn bind(&mut self, uid: u32, request: &Request) -> Result<Answer, Errno> {
        let name = self.wanted(uid, request)?;
        let claim = self.host.bind(name).map_err(ports::Refused::errno)?;
        let made = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .and_then(|(own, given)| Ok((sockopt::socket_cookie(&given)?, takes_no_descriptors(own), given)))
            .and_then(|(cookie, own, given)| {
                self.watch(&own, Token::Reservation(claim))?;
                Ok((cookie, own, given))
            });
        let (cookie, socket, given) = match made {
            Ok(made) => made,
            Err(error) => {
                self.host.release(claim);
                return Err(error);
            }
        };
        self.placeholders.insert(cookie, Placeholder::Reservation(claim));
        self.reservations.insert(claim, Reservation { socket, cookie });
        Ok((Reply { local: self.local_name(claim), ..Reply::new(ReplyKind::Bound) }, vec![given]))
    }

    fn local_name(&self, claim: u64) -> Name {
        self.host.ports().get(claim).map_or(Name::NONE, |claim| claim.name.local.into())
    }

    /// The claim of a reservation that was sent along, if one was.
    fn reserved(&self, sent: Option<&OwnedFd>) -> Option<u64> {
        match self.placeholders.get(&sockopt::socket_cookie(sent?).ok()?) {
            Some(Placeholder::Reservation(claim)) => Some(*claim),
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
        let claim = match self.reserved(sent) {
            // What was judged is the name that the request says.
            Some(claim) if request.local.length != 0 && request.local != self.local_name(claim) => {
                return Err(Errno::INVAL);
            }
            Some(claim) => claim,
            None => {
                let name = self.wanted(uid, request)?;
                self.host.bind(name).map_err(ports::Refused::errno)?
            }
        };
        let opened = self.open(claim, request, pair);
        if opened.is_err() && !self.reservations.contains_key(&claim) {
            self.host.release(claim);
        }
        let placeholder = opened?;
        // The listener holds the name now.
        self.give_up(claim);
        Ok((Reply { local: self.local_name(claim), ..Reply::new(ReplyKind::Listening) }, vec![placeholder]))
    }

    /// Listens on a claim; the placeholder.
    fn open(&mut self, claim: u64, request: &Request, pair: Option<ListenerPair>) -> Result<OwnedFd, Errno> {
        let application =
            self.host.ports().get(claim).map(|claim| claim.name.application).ok_or(Errno::NOENT)?;
        // Where it is not taken out, something else closes it.
        let made = match pair {
            Some(pair) => pair,
            None => own_pair(request.backlog)?.into(),
        };
        let [pair, placeholder] = made.ends().ok_or(Errno::INVAL)?;
        let cookie = sockopt::socket_cookie(placeholder)?;
        self.host.listen(claim, request.backlog).map_err(ports::Refused::errno)?;
        self.watch(pair, Token::Pair(claim))?;
        let [pair, placeholder] = made.take().ok_or(Errno::INVAL)?;
        self.placeholders.insert(cookie, Placeholder::Listener(claim));
        self.pairs
            .insert(claim, Pair { socket: pair, cookie, application, full: false, within: VecDeque::new() });
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
            Some(claim) => self.host.ports().get(claim).map(|claim| claim.name.local.port()),
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
        let made = match Link::make(self.geometry, begun.local, begun.remote, true) {
            Ok(made) => made,
            Err(_) => {
                self.host.abandon(begun.flow);
                return Err(Errno::NOBUFS);
            }
        };
        let given = self.give(&made.link)?;
        let reply = Reply {
            local: begun.local.into(),
            remote: begun.remote.into(),
            ..Reply::new(ReplyKind::Connecting)
        };
        self.enter(begun.flow, application, made.link, made.handout.cookie)?;
        let mut descriptors = vec![made.handout.placeholder];
        descriptors.extend(given);
        Ok((reply, descriptors))
    }

    /// Copies of the descriptors of a connection's memory.
    fn give(&self, link: &Link) -> Result<Vec<OwnedFd>, Errno> {
        link.memory().into_iter().map(|fd| fd.try_clone_to_owned().map_err(|_| Errno::MFILE)).collect()
    }

    /// Connects two applications of this VNIC.
    fn connect_within(
        &mut self,
        (application, client): (u64, Application),
        from: Option<u16>,
        remote: SocketAddr,
    ) -> Result<Answer, Errno> {
        let claim = self.own_listener(remote).ok_or(Errno::CONNREFUSED)?;
        if !self.host.may_connect(application) {
            return Err(Errno::NOBUFS);
        }
        let backlog = self.backlog_of(claim);
        let pair = self.pairs.get(&claim).filter(|pair| pair.within.len() <= backlog as usize);
        let server = self.host.application_of(pair.ok_or(Errno::CONNREFUSED)?.application);
        let server = server.map_or(client, |share| Application { uid: share.uid, id: share.id });
        let port = from.unwrap_or_else(|| {
            self.next_port = self.next_port.wrapping_add(1);
            32_768 + self.next_port % 28_000
        });
        let local = SocketAddr::new(remote.ip(), port);
        let memory = Memory::create(self.geometry, [names(local, remote), names(remote, local)])
            .map_err(|_| Errno::NOBUFS)?;
        memory.reset_until_accepted().map_err(|_| Errno::NOBUFS)?;
        let (zero, one) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let zero = takes_no_descriptors(zero);
        let arrival = Arrival::new(ArrivalKind::Stream, remote.into(), local.into());
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|_| Errno::MFILE);
        let cookies = [sockopt::socket_cookie(&zero)?, sockopt::socket_cookie(&one)?];
        let descriptors = [one, copy(&memory.common)?, copy(&memory.private[1])?];
        let given = vec![zero, copy(&memory.common)?, copy(&memory.private[0])?];
        if let Some(registrar) = &self.registrar {
            let connection = Connection {
                client,
                server,
                namespace: namespace(&self.name),
                names: Names { local, peer: remote },
                accepted: Names { local: remote, peer: local },
            };
            // Before anybody has an end of it, who could ask about that.
            registrar.tell(Command::Enter(Box::new(Paired { connection, memory, cookies })));
        }
        if let Some(pair) = self.pairs.get_mut(&claim) {
            pair.within.push_back(Within { arrival, descriptors });
        }
        self.hand_over(claim);
        let reply = Reply { local: local.into(), remote: remote.into(), ..Reply::new(ReplyKind::Connected) };
        Ok((reply, given))
    }

    /// How a connection stands.
    fn inform(&self, sent: &OwnedFd) -> Result<Answer, Errno> {
        let cookie = sockopt::socket_cookie(sent).map_err(|_| Errno::NOTSOCK)?;
        let Some(Placeholder::Connection(key)) = self.placeholders.get(&cookie) else {
            return Err(Errno::NOTCONN);
        };
        let flow = self.host.flow(*key).and_then(|flow| self.host.engine().flow_info(flow));
        let flow = flow.ok_or(Errno::NOTCONN)?;
        let waiting = u32::try_from(flow.unsent_or_unacknowledged).unwrap_or(u32::MAX);
        let mut reply = Reply { limit: waiting, ..Reply::new(ReplyKind::Information) };
        reply.spare[..information::BYTES].copy_from_slice(&information::of(&flow));
        Ok((reply, Vec::new()))
    }

    fn backlog_of(&self, claim: u64) -> u32 {
        self.host.ports().get(claim).and_then(|claim| claim.listening).map_or(0, |it| it.backlog)
    }

    fn adopt(&mut self, sent: &OwnedFd) -> Result<Answer, Errno> {
        let cookie = sockopt::socket_cookie(sent).map_err(|_| Errno::NOTSOCK)?;
        let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(|_| Errno::MFILE);
        match self.placeholders.get(&cookie).copied() {
            Some(Placeholder::Connection(key)) => {
                let Some(link) = self.host.channel(key) else {
                    return Ok((Reply::new(ReplyKind::Unknown), Vec::new()));
                };
                let [common, page] = link.memory();
                Ok((Reply::new(ReplyKind::Stream), vec![copy(common)?, copy(page)?]))
            }
            Some(Placeholder::Listener(claim)) => {
                let limit = self.backlog_of(claim).saturating_add(1);
                let local = self.local_name(claim);
                Ok((Reply { local, limit, ..Reply::new(ReplyKind::Listener) }, Vec::new()))
            }
            Some(Placeholder::Reservation(_)) | None => Ok((Reply::new(ReplyKind::Unknown), Vec::new())),
        }
    }
}

/// A listener's pair: the service's end and the placeholder.
fn own_pair(backlog: u32) -> Result<[OwnedFd; 2], Errno> {
    let (pair, placeholder) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // The kernel doubles it.
    let messages = (backlog.clamp(1, BACKLOG) as usize).min(IN_PAIR);
    sockopt::set_socket_send_buffer_size(&pair, messages * MESSAGE / 2)?;
    Ok([takes_no_descriptors(pair), placeholder])
}

/// The service's end of something whose other end a program has: nothing comes over it that a
/// thread of a VNIC would have to close. Before Linux 6.16 it may.
pub(super) fn takes_no_descriptors(own: OwnedFd) -> OwnedFd {
    // Of an older kernel's error nothing follows.
    let _ = sietch_socket::kernel::refuse_descriptors(&own);
    own
}
