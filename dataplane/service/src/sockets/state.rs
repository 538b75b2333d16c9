//! The state of the socket service, and what every part of it does with that state. That is the
//! epoll set, the descriptor budget, answers, and the removal of closed connections.
//!
//! The other files of this folder are layers above this one. Each adds the methods of its subject
//! to [`SocketService`].

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use sietch_protocol::closer::{Closer, Outgoing, PeerSocket};
use sietch_protocol::socket_service::{ARRIVAL_BYTES, Reply, ReplyKind, Rules, send_message};
use sietch_ring::socket_pair::pairs_refuse_descriptors;
use sietch_ring::stream::RegionSizes;
use sietch_socket::kernel::unreceived;
use zerocopy::IntoBytes as _;

use super::answer::{Answer, Caller};
use super::kernel;
use super::kernel::blocking_calls::BlockingCalls;
use super::kernel::users::UnmappedUsers;
use super::limits;
use super::listeners::closing::ClosingListeners;
use super::listeners::entry::OpenListener;
use super::metrics::Counters;
use super::registry::Registry;
use super::relays::Relays;
use super::table::{ConnectionId, ListenerId, Table};
use crate::requests::revocation::RevocationList;
use crate::requests::vnic::VnicRequest;

/// How long the service pauses when descriptors or memory are exhausted.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The least time between two warnings of one kind.
pub(super) const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// What an epoll event is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Token {
    /// The socket on which programs connect.
    Server,
    /// The socket on which administrators connect.
    Administrators,
    /// The doorbell of the commands.
    Commands,
    /// An open request, by its number.
    Request(u64),
    /// The service's end of a listener's pair.
    Pair(ListenerId),
    /// The kernel's listening socket of a listener.
    Kernel(ListenerId),
    /// The kernel's events about closed placeholders.
    Closes,
}

impl Token {
    fn word(self) -> u64 {
        match self {
            Self::Server => 0,
            Self::Commands => 1,
            Self::Request(number) => number << 3 | 2,
            Self::Pair(id) => id << 3 | 3,
            Self::Kernel(id) => id << 3 | 4,
            Self::Closes => 5,
            Self::Administrators => 6,
        }
    }

    pub(super) fn of(word: u64) -> Option<Self> {
        let number = word >> 3;
        match word & 7 {
            0 => Some(Self::Server),
            1 => Some(Self::Commands),
            2 => Some(Self::Request(number)),
            3 => Some(Self::Pair(number)),
            4 => Some(Self::Kernel(number)),
            5 => Some(Self::Closes),
            6 => Some(Self::Administrators),
            _ => None,
        }
    }
}

/// A request that has connected and was not yet read.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub socket: OwnedFd,
    pub caller: Caller,
    pub until: Instant,
}

/// A socket of the kernel that kept a name.
#[derive(Debug)]
pub(super) struct FreedSocket {
    pub uid: u32,
    pub socket: OwnedFd,
    /// Of a listening socket: shows that it is open.
    pub mark: Option<Arc<()>>,
}

/// The state of the loop.
#[derive(Debug)]
pub(super) struct SocketService {
    pub epoll: OwnedFd,
    /// The socket on which programs connect.
    pub server: OwnedFd,
    /// The socket on which administrators connect.
    pub administrators: Option<OwnedFd>,
    /// A successor has taken over, or a command said to stop.
    pub stopping: bool,
    /// Open requests by number.
    pub pending: BTreeMap<u64, PendingRequest>,
    /// The number of open requests by user; those of administrators are counted together.
    pub pending_by_user: BTreeMap<Option<u32>, usize>,
    /// Requests that were answered in this iteration, by user.
    pub answered: BTreeMap<Option<u32>, usize>,
    /// Connections that are not read any more, by user: closed at the end of this iteration.
    pub unread: BTreeMap<u32, Vec<OwnedFd>>,
    /// The same of answered requests, with sockets that were sent and keep no name.
    pub spent: BTreeMap<u32, Vec<OwnedFd>>,
    /// The number of iterations that left requests in the kernel's queue, less those that did not.
    pub crowded: usize,
    /// Requests that were forwarded to VNICs and are not yet answered, by user: one reference each.
    pub forwarded: BTreeMap<Option<u32>, Arc<()>>,
    /// The number of the last request.
    pub last_request: u64,
    /// When to try again after descriptors or memory were exhausted.
    pub retry_at: Option<Instant>,
    /// When the service last logged that descriptors are exhausted.
    pub warned_at: Option<Instant>,
    /// When the service last logged that a user's closes hang.
    pub warned_of_closes_at: Option<Instant>,
    pub swept_at: Instant,
    /// When to read the kernel's events about closed placeholders.
    pub reap_at: Option<Instant>,
    pub table: Table,
    pub registry: Registry,
    pub listeners: BTreeMap<ListenerId, OpenListener>,
    /// The backlogs that were given to the kernel's sockets, by [`OpenListener::group`].
    pub kernel_backlogs: HashMap<u64, u32>,
    /// The kernel's sockets that keep the names of connections whose program had bound one.
    pub bound_sockets: BTreeMap<ConnectionId, OwnedFd>,
    /// Sockets that kept a name: closed at the end of this iteration.
    pub to_close: Vec<FreedSocket>,
    /// The names of closed listeners whose kernel socket is still open here.
    pub closing: ClosingListeners,
    pub closer: Closer,
    /// Users that are not served, because the kernel shows all of them under one uid.
    pub unmapped: UnmappedUsers,
    /// The log has a message about such users already.
    pub warned_of_unmapped: bool,
    pub calls: BlockingCalls,
    pub relays: Relays,
    pub rules: Rules,
    pub revoked: RevocationList,
    /// The number of lists by user within a second, and when that second began.
    pub list_rates: BTreeMap<u32, (Instant, u32)>,
    /// Where requests about VNICs go.
    pub vnics: Option<Sender<VnicRequest>>,
    pub region_sizes: RegionSizes,
    pub counters: Counters,
    /// The size of one arrival in a pair's queue, as the kernel counts it.
    pub message_size: u32,
    /// The number of descriptors for connections and listeners.
    pub most_descriptors: usize,
}

impl SocketService {
    pub(super) fn new(
        socket: OwnedFd,
        administrators: Option<OwnedFd>,
        rules: Rules,
        region_sizes: RegionSizes,
    ) -> io::Result<Self> {
        kernel::set_nonblocking(&socket)?;
        if let Some(administrators) = &administrators {
            kernel::set_nonblocking(administrators)?;
        }
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            server: socket,
            administrators,
            stopping: false,
            pending: BTreeMap::new(),
            pending_by_user: BTreeMap::new(),
            answered: BTreeMap::new(),
            unread: BTreeMap::new(),
            spent: BTreeMap::new(),
            crowded: 0,
            forwarded: BTreeMap::new(),
            last_request: 0,
            retry_at: None,
            warned_at: None,
            warned_of_closes_at: None,
            swept_at: Instant::now(),
            reap_at: None,
            table: Table::beginning_at(u16::from_ne_bytes(random()?)),
            registry: Registry::default(),
            listeners: BTreeMap::new(),
            kernel_backlogs: HashMap::new(),
            bound_sockets: BTreeMap::new(),
            to_close: Vec::new(),
            closing: ClosingListeners::default(),
            closer: Closer::default(),
            unmapped: UnmappedUsers::here(),
            warned_of_unmapped: false,
            calls: BlockingCalls::default(),
            relays: Relays::default(),
            rules,
            revoked: RevocationList::default(),
            list_rates: BTreeMap::new(),
            vnics: None,
            region_sizes,
            counters: Counters::default(),
            message_size: message_size()?,
            most_descriptors: limits::raise_descriptors().saturating_sub(limits::SPARE_DESCRIPTORS),
        })
    }

    /// Returns whether a user may have `more` descriptors. Those that are kept for requests are not
    /// touched, and some are always left to other users.
    pub(super) fn has_descriptors(&self, uid: u32, more: usize) -> bool {
        let held = self.table.of_user(uid);
        let own = descriptors_of(held.connections, held.listeners) + self.unclosed_of(uid);
        limits::has_share(own, more, self.free_descriptors())
    }

    /// Returns the number of free descriptors.
    fn free_descriptors(&self) -> usize {
        let all = descriptors_of(self.registry.len(), self.listeners.len()) + self.closer.waiting();
        self.most_descriptors.saturating_sub(all + PeerSocket::waiting())
    }

    /// Returns how many descriptors of a user wait to be closed: what it sent, and ends of pairs in
    /// which it may have sent something.
    fn unclosed_of(&self, uid: u32) -> usize {
        self.closer.waiting_of(uid) + PeerSocket::waiting_of(uid)
    }

    /// Returns whether descriptors that this user sends can be closed. If not, its requests are not
    /// read.
    pub(super) fn can_close_for(&self, uid: u32) -> bool {
        self.closer.has_thread_for(uid)
            && self.unclosed_of(uid) < limits::most_unclosed(self.free_descriptors())
    }

    /// Sends an answer. If it is not read it is lost; the connection that was made for it is found
    /// to be closed later.
    pub(super) fn send_answer(&mut self, uid: u32, socket: OwnedFd, answer: Answer) {
        let Answer { mut reply, own, memory, spent, marks, mut later, bound: _ } = answer;
        let mut kept = Vec::new();
        if let Some((id, end)) = memory {
            match self.registry.get(id) {
                Some(entry) => kept.extend([entry.memory.common.as_fd(), entry.memory.private[end].as_fd()]),
                None => reply = Reply::refused(Errno::CONNREFUSED),
            }
        }
        let refused = reply.kind() == ReplyKind::Refused;
        let own: Vec<_> = own.into_iter().flatten().filter(|_| !refused).collect();
        if !spent.is_empty() {
            // The thread that closes them sends the answer, so it needs copies of what is kept.
            let copies = kept.iter().map(|kept| kept.try_clone_to_owned());
            if let Ok(copies) = copies.collect::<io::Result<Vec<_>>>() {
                let descriptors = own.into_iter().chain(copies).collect();
                let answer = Outgoing { socket, reply, descriptors, are_empty: pairs_refuse_descriptors() };
                self.closer.close_and_answer(uid, (spent, marks), answer);
                return self.spent.entry(uid).or_default().append(&mut later);
            }
            self.closer.close_all(uid, spent);
        }
        let descriptors: Vec<_> = own.iter().map(AsFd::as_fd).chain(kept).collect();
        let _ = send_message(socket.as_fd(), reply.as_bytes(), &descriptors, SendFlags::DONTWAIT);
        if pairs_refuse_descriptors() {
            // Closed at once: this process made them, nothing is queued in them, and others watch
            // for their end.
            drop(own);
        } else {
            // The accepting program may have sent something over its placeholder already.
            later.extend(own);
        }
        later.push(socket);
        self.spent.entry(uid).or_default().append(&mut later);
    }

    /// Removes a connection from the table: its names are free.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.disconnect(id) else { return };
        if let Some(socket) = self.bound_sockets.remove(&id) {
            self.to_close.push(FreedSocket { uid: connection.client.uid, socket, mark: None });
        }
    }

    /// Descriptors or memory are exhausted: pauses, and frees those of closed connections. New
    /// connections wait in the kernel's queue, because accept(2) takes none out without a
    /// descriptor.
    pub(super) fn pause_for_resources(&mut self) {
        self.counters.exhausted += 1;
        if self.warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
            self.warned_at = Some(Instant::now());
            tracing::warn!(
                "no descriptors are left: new connections wait; raise the hard limit of the service (`ulimit -Hn`, LimitNOFILE)"
            );
        }
        self.sweep_now();
        self.pause();
    }

    /// Tries again after [`RETRY_DELAY`].
    pub(super) fn pause(&mut self) {
        self.retry_at.get_or_insert_with(|| Instant::now() + RETRY_DELAY);
    }

    /// Removes the connections whose end the kernel has reported. Returns whether there were any.
    pub(super) fn reap(&mut self) -> bool {
        let closed = self.registry.reap();
        self.counters.swept += closed.len() as u64;
        for &id in &closed {
            self.forget(id);
        }
        if self.reap_at.take().is_some()
            && let Some(closes) = self.registry.close_events()
        {
            self.modify(closes, Token::Closes, EventFlags::IN);
        }
        !closed.is_empty()
    }

    /// Removes the connections that are closed, including those that the kernel does not report.
    pub(super) fn sweep_now(&mut self) {
        self.reap();
        if self.registry.unwatched() == 0 {
            return;
        }
        self.counters.sweeps += 1;
        self.swept_at = Instant::now();
        match self.registry.sweep() {
            Ok(closed) => {
                self.counters.swept += closed.len() as u64;
                closed.into_iter().for_each(|id| self.forget(id));
            }
            Err(error) => tracing::warn!("closed connections cannot be found: {error}"),
        }
    }

    /// The same for a list, at most every [`limits::SWEEP_FOR_LISTS`] for all users together.
    pub(super) fn sweep_for_list(&mut self) {
        if self.swept_at.elapsed() >= limits::SWEEP_FOR_LISTS {
            self.sweep_now();
        } else {
            self.reap();
        }
    }

    /// The same, at most every [`RETRY_DELAY`].
    pub(super) fn sweep_if_full(&mut self) {
        if self.swept_at.elapsed() >= RETRY_DELAY {
            self.sweep_now();
        }
    }

    pub(super) fn add(&self, what: impl AsFd, token: Token, flags: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, what, EventData::new_u64(token.word()), flags)
    }

    pub(super) fn modify(&self, what: impl AsFd, token: Token, flags: EventFlags) {
        // It cannot fail: the descriptor is in the set.
        let _ = epoll::modify(&self.epoll, what, EventData::new_u64(token.word()), flags);
    }

    pub(super) fn remove(&self, what: impl AsFd) {
        let _ = epoll::delete(&self.epoll, what);
    }
}

/// Returns the number of descriptors that count for these connections and listeners.
fn descriptors_of(connections: usize, listeners: usize) -> usize {
    connections * limits::DESCRIPTORS_PER_CONNECTION + listeners * limits::DESCRIPTORS_PER_LISTENER
}

fn random<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bits = [0; BYTES];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())?;
    Ok(bits)
}

/// Returns the size of one arrival in a pair's queue, as the kernel counts it.
fn message_size() -> io::Result<u32> {
    let (one, _other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    send_message(one.as_fd(), &[0; ARRIVAL_BYTES], &[], SendFlags::DONTWAIT)?;
    Ok(unreceived(&one)?.max(1))
}
