//! The loop of the socket service.
//!
//! 1. It sleeps until somebody connects, asks, arrives, hangs up, or a command comes. An idle
//!    service uses no processor; while there are connections of which the kernel does not tell when
//!    they are gone it wakes every [`limits::SWEEP`] to see which are.
//! 2. Each turn takes what is ready, a bounded amount of each.
//! 3. A request is one message: it is received, judged, answered, and its connection closed. What
//!    does not come in time is closed as well.
//! 4. When descriptors or memory are short it rests for a moment, and asks again.
//!
//! No input ends the loop: errors of an application's socket end that socket.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use sietch_protocol::administration;
use sietch_protocol::socket_service::{
    ARRIVAL_BYTES, Descriptors, REQUEST_BYTES, Reply, ReplyKind, Request, RequestKind, Rules, receive_all,
    send_message,
};
use sietch_ring::stream::{Memory, RegionSizes};
use sietch_socket::kernel::{peer, refuse_descriptors, unreceived};
use zerocopy::IntoBytes as _;

use super::administration::Cut;
use super::closer::{Closer, Outgoing};
use super::counters::{Board, Counters, Shown};
use super::expendable::Expendable;
use super::handover;
use super::limits;
use super::listeners::{NOBODY, Open};
use super::registry::Registry;
use super::requests::{Answer, Caller};
use super::revoked::Revoked;
use super::table::{Connection, ConnectionId, ListenerId, Table};
use super::users::Unmapped;
use crate::tcp::Asked;

/// Pauses when something is short.
const REST: Duration = Duration::from_millis(50);

/// How often it is said.
const COMPLAIN: Duration = Duration::from_secs(60);

/// What is needed to serve.
#[derive(Debug)]
pub struct Options {
    /// Where programs ask.
    pub socket: Source,
    /// Where administrators ask ([`sietch_protocol::administration`]); without one nobody
    /// administers. A predecessor gives its own.
    pub administrators: Option<OwnedFd>,
    /// Who may what.
    pub rules: Rules,
    /// Sizes of connections' rings.
    pub geometry: RegionSizes,
}

/// Where the socket comes from on which programs ask.
#[derive(Debug)]
pub enum Source {
    /// A listening Unix SEQPACKET socket.
    New(OwnedFd),
    /// A connection to a service that answered
    /// [`sietch_protocol::socket_service::ReplyKind::Handover`]: its socket, and all that it has.
    Predecessor(OwnedFd),
}

/// What the service is told.
#[derive(Debug)]
pub enum Command {
    /// Other rules from now on; what is there stays.
    Rules(Rules),
    /// Look now which connections are gone.
    Sweep,
    /// Where requests go that name a VNIC; without one they are refused.
    Vnics(Sender<Asked>),
    /// Two programs of one VNIC were connected: from now on it is a connection as those of the
    /// host's addresses are.
    Enter(Box<Paired>),
    /// VNICs have ended what they had of an application. Its end here, and the answer, are still to
    /// come.
    Cut(Box<Asked>, Cut),
    /// End the loop.
    Stop,
}

/// A connection between two programs that was made elsewhere.
#[derive(Debug)]
pub struct Paired {
    /// Who, and where.
    pub connection: Connection,
    /// What both ends have.
    pub memory: Memory,
    /// Their placeholders.
    pub cookies: [u64; 2],
}

/// How others tell the service something.
#[derive(Debug)]
pub struct Registrar {
    /// To its loop.
    pub commands: Sender<Command>,
    /// What wakes it.
    pub bell: OwnedFd,
}

impl Registrar {
    /// Tells it. A service that has ended hears nothing, and needs nothing.
    pub fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Another one.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { commands: self.commands.clone(), bell: self.bell.try_clone()? })
    }
}

/// What an event is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Token {
    Server,
    /// The administrators' socket.
    Administrators,
    Bell,
    Request(u64),
    Pair(ListenerId),
    Kernel(ListenerId),
    Ends,
}

impl Token {
    fn word(self) -> u64 {
        match self {
            Self::Server => 0,
            Self::Bell => 1,
            Self::Request(number) => number << 3 | 2,
            Self::Pair(id) => id << 3 | 3,
            Self::Kernel(id) => id << 3 | 4,
            Self::Ends => 5,
            Self::Administrators => 6,
        }
    }

    fn of(word: u64) -> Option<Self> {
        let number = word >> 3;
        match word & 7 {
            0 => Some(Self::Server),
            1 => Some(Self::Bell),
            2 => Some(Self::Request(number)),
            3 => Some(Self::Pair(number)),
            4 => Some(Self::Kernel(number)),
            5 => Some(Self::Ends),
            6 => Some(Self::Administrators),
            _ => None,
        }
    }
}

/// A request that is open.
#[derive(Debug)]
struct Asking {
    socket: OwnedFd,
    caller: Caller,
    until: Instant,
}

/// The state of the loop. Each file of this folder has its part of what it does.
#[derive(Debug)]
pub(super) struct Service {
    epoll: OwnedFd,
    pub server: OwnedFd,
    pub administrators: Option<OwnedFd>,
    /// A successor has everything, or it was told to stop.
    over: bool,
    asking: BTreeMap<u64, Asking>,
    /// Requests by user; those of administrators are counted together.
    users: BTreeMap<Option<u32>, usize>,
    /// Requests that were answered in this turn, by user.
    answered: BTreeMap<Option<u32>, usize>,
    /// Requests of each user that are answered elsewhere: as many as there are holders.
    pub elsewhere: BTreeMap<Option<u32>, Arc<()>>,
    last: u64,
    resting: Option<Instant>,
    /// When it was last said that descriptors are short.
    complained: Option<Instant>,
    /// The same of users whose closes hang.
    complained_of_closes: Option<Instant>,
    swept_at: Instant,
    /// Ends were closed; when they are looked at.
    bury_at: Option<Instant>,
    pub table: Table,
    pub registry: Registry,
    pub open: BTreeMap<ListenerId, Open>,
    /// The backlogs that kernel's sockets were left, by [`Open::group`].
    pub left: HashMap<u64, u32>,
    /// The kernel's sockets of connections whose program was bound to a name.
    pub names: BTreeMap<ConnectionId, OwnedFd>,
    /// What held a name, and whose it was: closed in this turn.
    pub freed: Vec<(u32, OwnedFd)>,
    pub closer: Closer,
    /// Users that are not served, for nothing tells one from the other.
    unmapped: Unmapped,
    /// It was said that there are some.
    said_unmapped: bool,
    pub expendable: Expendable,
    pub rules: Rules,
    pub revoked: Revoked,
    /// Lists by user within a second, since its first.
    pub listed: BTreeMap<u32, (Instant, u32)>,
    pub vnics: Option<Sender<Asked>>,
    pub geometry: RegionSizes,
    pub counters: Counters,
    /// What an arrival takes of a pair, in the kernel's measure.
    pub message_size: u32,
    /// Descriptors for connections and listeners.
    pub most_descriptors: usize,
}

/// Serves until [`Command::Stop`] comes, or nobody can send one any more. `bell` is a non-blocking
/// descriptor that becomes readable when a command was sent; `board` shows what there is. Returns
/// as well when a successor has taken everything over.
///
/// # Errors
/// Those of the start, and of epoll itself.
pub fn run(options: Options, commands: &Receiver<Command>, bell: &OwnedFd, board: &Board) -> io::Result<()> {
    let Options { socket, administrators, rules, geometry } = options;
    let mut service = match socket {
        Source::New(socket) => Service::new(socket, administrators, rules, geometry)?,
        Source::Predecessor(predecessor) => {
            let begun = handover::begin(predecessor.as_fd())?;
            let mut service = Service::new(begun.socket, begun.administrators, rules, geometry)?;
            begun.ends.into_iter().for_each(|ends| service.registry.inherit(ends));
            service.inherit(predecessor.as_fd())?;
            service
        }
    };
    service.add(&service.server, Token::Server, EventFlags::IN)?;
    if let Some(administrators) = &service.administrators {
        service.add(administrators, Token::Administrators, EventFlags::IN)?;
    }
    service.add(bell, Token::Bell, EventFlags::IN)?;
    if let Some(ends) = service.registry.ends() {
        service.add(ends, Token::Ends, EventFlags::IN)?;
    }
    let mut events = Vec::with_capacity(256);
    loop {
        let now = Instant::now();
        service.tend(now);
        service.freed.drain(..).for_each(|(uid, freed)| service.closer.close(uid, freed));
        service.answered.clear();
        board.note(service.shown());
        let limit = service.next_deadline().map(|at| at.saturating_duration_since(now));
        let limit = limit.and_then(|limit| Timespec::try_from(limit + Duration::from_millis(1)).ok());
        events.clear();
        match epoll::wait(&service.epoll, rustix::buffer::spare_capacity(&mut events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Before what was asked after a command: events come in no order.
        service.obey(commands);
        for event in &events {
            if service.over {
                return Ok(());
            }
            let Event { flags, data } = *event;
            match Token::of(data.u64()) {
                Some(Token::Server) => service.welcome(),
                Some(Token::Administrators) => service.welcome_administrators(),
                Some(Token::Bell) => {
                    let _ = rustix::io::read(bell, &mut [0_u8; 64]);
                }
                Some(Token::Request(number)) => service.read(number),
                Some(Token::Pair(id)) => service.attend(id, flags),
                Some(Token::Kernel(id)) => service.attend_kernel(id, flags),
                Some(Token::Ends) => service.bury_soon(),
                None => {}
            }
        }
        if service.over {
            return Ok(());
        }
    }
}

impl Service {
    fn new(
        socket: OwnedFd,
        administrators: Option<OwnedFd>,
        rules: Rules,
        geometry: RegionSizes,
    ) -> io::Result<Self> {
        super::kernel::do_not_wait(&socket)?;
        if let Some(administrators) = &administrators {
            super::kernel::do_not_wait(administrators)?;
        }
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            server: socket,
            administrators,
            over: false,
            asking: BTreeMap::new(),
            users: BTreeMap::new(),
            answered: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            last: 0,
            resting: None,
            complained: None,
            complained_of_closes: None,
            swept_at: Instant::now(),
            bury_at: None,
            table: Table::beginning_at(u16::from_ne_bytes(random()?)),
            registry: Registry::default(),
            open: BTreeMap::new(),
            left: HashMap::new(),
            names: BTreeMap::new(),
            freed: Vec::new(),
            closer: Closer::default(),
            unmapped: Unmapped::here(),
            said_unmapped: false,
            expendable: Expendable::default(),
            rules,
            revoked: Revoked::default(),
            listed: BTreeMap::new(),
            vnics: None,
            geometry,
            counters: Counters::default(),
            message_size: message_size()?,
            most_descriptors: limits::raise_descriptors().saturating_sub(limits::SPARE_DESCRIPTORS),
        })
    }

    fn obey(&mut self, commands: &Receiver<Command>) {
        loop {
            match commands.try_recv() {
                Ok(Command::Rules(rules)) => self.rules = rules,
                Ok(Command::Vnics(vnics)) => self.vnics = Some(vnics),
                Ok(Command::Sweep) => self.sweep_now(),
                Ok(Command::Enter(paired)) => self.enter(*paired),
                Ok(Command::Cut(asked, on_vnics)) => self.finish_revocation(*asked, on_vnics),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return self.over = true,
                Err(TryRecvError::Empty) => return,
            }
        }
    }

    /// Whether a user may have so many descriptors more. None are taken that are kept for requests,
    /// and some are always left to other users.
    pub fn has_descriptors(&self, uid: u32, more: usize) -> bool {
        let held = self.table.of_user(uid);
        let own = descriptors_of(held.connections, held.listeners) + self.closer.waiting_of(uid);
        limits::has_share(own, more, self.free_descriptors())
    }

    /// Descriptors that nobody has.
    fn free_descriptors(&self) -> usize {
        let all = descriptors_of(self.registry.len(), self.open.len()) + self.closer.waiting();
        self.most_descriptors.saturating_sub(all)
    }

    /// Whether what this user sends can be closed. If not, none of its requests is read.
    fn can_close_for(&self, uid: u32) -> bool {
        self.closer.has_place(uid)
            && self.closer.waiting_of(uid) < limits::most_unclosed(self.free_descriptors())
    }

    /// Takes a connection over that was made on a VNIC: it is found after exec and in messages,
    /// listed, revoked, and handed to a successor. Beyond the limits it is nothing of that, and
    /// goes on all the same.
    fn enter(&mut self, paired: Paired) {
        if !self.has_descriptors(paired.connection.client.uid, limits::DESCRIPTORS_PER_CONNECTION) {
            return;
        }
        if let Some(id) = self.table.enter(paired.connection) {
            // Nobody watches its ends here: it is found to be gone when the kernel is asked.
            self.registry.insert(id, paired.memory, paired.cookies, [None, None]);
        }
    }

    /// Takes new requests.
    fn welcome(&mut self) {
        for _ in 0..limits::PER_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.server, flags) {
                Ok(socket) => self.let_in(socket, false),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    self.modify(&self.server, Token::Server, EventFlags::empty());
                    return self.is_short();
                }
            }
        }
    }

    /// Takes new requests of administrators, some in a turn: people ask them.
    fn welcome_administrators(&mut self) {
        for _ in 0..limits::ADMINISTRATORS {
            let Some(administrators) = &self.administrators else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(administrators, flags) {
                Ok(socket) => {
                    let who = peer(&socket);
                    if who.as_ref().is_ok_and(|who| administration::shares_namespaces(who.pid)) {
                        self.let_in(socket, true);
                        continue;
                    }
                    tracing::warn!("an administrator from another user or PID namespace is turned away");
                    self.turn_away(who.map_or(NOBODY, |who| who.uid), socket);
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // Short of descriptors: those that are kept for administrators are in use, and
                // their requests end soon.
                Err(_) => return,
            }
        }
    }

    fn let_in(&mut self, socket: OwnedFd, administers: bool) {
        let Ok(who) = peer(&socket) else { return self.turn_away(NOBODY, socket) };
        // It is only shown.
        let pid = who.pid.map_or(0, |pid| pid.as_raw_nonzero().get());
        let caller = Caller { uid: who.uid, pid, administers };
        let bucket = caller.bucket();
        let own = self.users.get(&bucket).copied().unwrap_or(0) + self.elsewhere_of(bucket);
        let full = if administers {
            own >= limits::ADMINISTRATORS
        } else {
            let administrators = self.users.get(&None).copied().unwrap_or(0);
            // Of few places nobody gets more than it leaves.
            let elsewhere: usize =
                self.elsewhere.values().map(|counted| Arc::strong_count(counted) - 1).sum();
            let free = (limits::REQUESTS + administrators).saturating_sub(self.asking.len() + elsewhere);
            own >= limits::REQUESTS_PER_USER.min(free) || !self.can_close_for(caller.uid)
        };
        if full {
            return self.turn_away(caller.uid, socket);
        }
        self.last += 1;
        let number = self.last;
        if self.add(&socket, Token::Request(number), EventFlags::IN).is_err() {
            return self.turn_away(caller.uid, socket);
        }
        *self.users.entry(caller.bucket()).or_default() += 1;
        self.asking
            .insert(number, Asking { socket, caller, until: Instant::now() + limits::REQUEST_PATIENCE });
        // It is most often there already.
        self.read(number);
    }

    /// Closes a connection whose request nobody reads: who asked goes to the kernel. What lies in
    /// it is closed by a thread, or waits where it takes no place of others.
    fn turn_away(&mut self, uid: u32, socket: OwnedFd) {
        self.counters.turned_away += 1;
        if super::kernel::holds_nothing(&socket) {
            return;
        }
        if self.can_close_for(uid) {
            return self.closer.close(uid, socket);
        }
        self.closer.put_away(uid, socket);
        if self.complained_of_closes.is_none_or(|at| at.elapsed() >= COMPLAIN) {
            self.complained_of_closes = Some(Instant::now());
            tracing::warn!(
                "user {uid}: descriptors that it sent hang in their close; its requests are left to the kernel until they are closed"
            );
        }
    }

    /// Whether one more request of this user is answered in this turn.
    fn has_turn(&mut self, caller: Caller) -> bool {
        let answered = self.answered.entry(caller.bucket()).or_default();
        *answered += 1;
        *answered <= limits::PER_TURN_AND_USER
    }

    /// Reads a request, if it has come, and answers.
    fn read(&mut self, number: u64) {
        let Some(caller) = self.asking.get(&number).map(|asking| asking.caller) else { return };
        // What is ready and not read makes the next turn come at once.
        if !self.has_turn(caller) {
            return;
        }
        let Some(asking) = self.asking.get(&number) else { return };
        let uid = asking.caller.uid;
        // One more than a request has, so that a longer message is told apart.
        let mut bytes = [0; REQUEST_BYTES + 1];
        let mut received = Descriptors::default();
        let found =
            receive_all(asking.socket.as_fd(), &mut bytes, &mut received, RecvFlags::DONTWAIT, |sent| {
                self.closer.close(uid, sent)
            });
        if matches!(found, Err(Errno::AGAIN | Errno::INTR)) {
            return;
        }
        let Some(Asking { socket, caller, .. }) = self.dismiss(number) else { return };
        let (length, complete) = match found {
            Ok((length, complete)) => (length, complete),
            Err(_) => return self.closer.close(uid, socket),
        };
        let Some(socket) = self.with_nothing_more(uid, socket) else {
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
                match self.hand_everything(&socket) {
                    Ok(()) => self.over = true,
                    Err(error) => {
                        tracing::warn!("a successor took nothing over, and this service goes on: {error}")
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
                return self.pass_on(caller, request, kind, received, socket);
            }
            Ok((request, kind @ (RequestKind::List | RequestKind::Revoke)))
                if complete && request.vnic().is_none() && self.vnics.is_some() =>
            {
                return self.administer_everywhere(caller, request, kind, received, socket);
            }
            Ok((request, kind)) if complete => self.answer(caller, &request, kind, received),
            // This service has no descriptors left for what was sent along, which is nothing to the
            // kernel.
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
                // Of another version, perhaps: it learns which one is here.
                let answer = Answer::from(Reply::refused(Errno::PROTO).from_build(&super::BUILD));
                answer.having_spent(received.into_iter().flatten().collect())
            }
        };
        self.send_answer(uid, socket, answer);
    }

    /// A user that has no number here goes to the kernel. `EOVERFLOW` is the kernel's own word for
    /// such numbers.
    fn answer_unmapped(&mut self, kind: RequestKind) -> Answer {
        self.counters.denied += 1;
        if !std::mem::replace(&mut self.said_unmapped, true) {
            tracing::warn!(
                "users without a number in the user namespace of this service (/proc/self/uid_map) are not served: the kernel shows all of them as one"
            );
        }
        match kind {
            RequestKind::Listen | RequestKind::Connect => Reply::new(ReplyKind::UseKernel).into(),
            RequestKind::Adopt => Reply::new(ReplyKind::Unknown).into(),
            _ => Answer::refused(Errno::OVERFLOW),
        }
    }

    /// The socket of a request that was read, if nothing else lies in it, as it must be while who
    /// asks waits for the answer. Else it is closed elsewhere: with it what lies in it is closed,
    /// which takes as long as its sender likes.
    fn with_nothing_more(&self, uid: u32, socket: OwnedFd) -> Option<OwnedFd> {
        // Before Linux 6.16 something may come still.
        let _ = refuse_descriptors(&socket);
        // No room for descriptors, and they are not taken out: nothing is closed by this.
        match rustix::net::recv(&socket, &mut [0; 1][..], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Err(Errno::AGAIN) => Some(socket),
            _ => {
                self.closer.close(uid, socket);
                None
            }
        }
    }

    /// An answer that nobody takes is lost; what was made for it is found to be gone later.
    pub(super) fn send_answer(&self, uid: u32, socket: OwnedFd, answer: Answer) {
        let Answer { mut reply, own, memory, spent, mut later, bound: _ } = answer;
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
            // The thread that closes them answers, with descriptors of its own.
            let copies = kept.iter().map(|kept| kept.try_clone_to_owned());
            if let Ok(copies) = copies.collect::<io::Result<Vec<_>>>() {
                let descriptors = own.into_iter().chain(copies).collect();
                self.closer.close_and_answer(uid, spent, Outgoing { socket, reply, descriptors });
                return self.closer.close_answered(uid, later);
            }
            self.closer.close_all(uid, spent);
        }
        let descriptors: Vec<_> = own.iter().map(AsFd::as_fd).chain(kept).collect();
        let _ = send_message(socket.as_fd(), reply.as_bytes(), &descriptors, SendFlags::DONTWAIT);
        // What was made here is closed at once: others notice its end, and nothing lies in it.
        drop(own);
        later.push(socket);
        self.closer.close_answered(uid, later);
    }

    fn dismiss(&mut self, number: u64) -> Option<Asking> {
        let asking = self.asking.remove(&number)?;
        let bucket = asking.caller.bucket();
        if let Some(count) = self.users.get_mut(&bucket) {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&bucket);
            }
        }
        self.remove(&asking.socket);
        Some(asking)
    }

    /// What is due by the clock.
    fn tend(&mut self, now: Instant) {
        while let Some((&number, asking)) = self.asking.first_key_value()
            && asking.until <= now
        {
            if let Some(Asking { socket, caller, .. }) = self.dismiss(number) {
                self.turn_away(caller.uid, socket);
            }
        }
        let many = self.registry.made() >= limits::SWEEP_AFTER.max(self.registry.len() / 2);
        if self.registry.unwatched() > 0 && (many || now - self.swept_at >= limits::SWEEP) {
            self.sweep_now();
        }
        if self.bury_at.is_some_and(|at| at <= now) {
            self.bury();
        }
        if self.resting.is_some_and(|until| until <= now) {
            self.resting = None;
            self.modify(&self.server, Token::Server, EventFlags::IN);
            let all: Vec<ListenerId> = self.open.keys().copied().collect();
            all.into_iter().for_each(|id| self.try_again(id));
        }
    }

    /// When the loop must look again though nothing happens.
    fn next_deadline(&self) -> Option<Instant> {
        // Requests have their time in the order of their numbers.
        let request = self.asking.first_key_value().map(|(_, asking)| asking.until);
        let sweep = (self.registry.unwatched() > 0).then(|| self.swept_at + limits::SWEEP);
        [request, sweep, self.resting, self.bury_at].into_iter().flatten().min()
    }

    /// Descriptors or memory are short: who comes waits in the kernel's queue, for accept(2) takes
    /// nobody out for whom it has no number. Those of connections that are gone may help.
    pub(super) fn is_short(&mut self) {
        self.counters.short += 1;
        if self.complained.is_none_or(|at| at.elapsed() >= COMPLAIN) {
            self.complained = Some(Instant::now());
            tracing::warn!(
                "no descriptors are left: new connections wait; raise the hard limit of the service (`ulimit -Hn`, LimitNOFILE)"
            );
        }
        self.sweep_now();
        self.rest();
    }

    /// Something is short: asks again in a moment.
    pub(super) fn rest(&mut self) {
        self.resting.get_or_insert_with(|| Instant::now() + REST);
    }

    /// Placeholders were closed. Where one is closed, its peer and others are about to be.
    fn bury_soon(&mut self) {
        self.bury_at.get_or_insert_with(|| Instant::now() + limits::BURY);
        if let Some(ends) = self.registry.ends() {
            self.modify(ends, Token::Ends, EventFlags::empty());
        }
    }

    /// Takes out the connections of which the kernel has told the end; whether there were any.
    pub(super) fn bury(&mut self) -> bool {
        let gone = self.registry.bury();
        self.counters.swept += gone.len() as u64;
        for &id in &gone {
            self.forget(id);
        }
        if self.bury_at.take().is_some()
            && let Some(ends) = self.registry.ends()
        {
            self.modify(ends, Token::Ends, EventFlags::IN);
        }
        !gone.is_empty()
    }

    /// Looks which connections are gone.
    pub(super) fn sweep_now(&mut self) {
        self.bury();
        if self.registry.unwatched() == 0 {
            return;
        }
        self.counters.sweeps += 1;
        self.swept_at = Instant::now();
        match self.registry.sweep() {
            Ok(gone) => {
                self.counters.swept += gone.len() as u64;
                gone.into_iter().for_each(|id| self.forget(id));
            }
            Err(error) => tracing::warn!("connections that are gone cannot be told: {error}"),
        }
    }

    /// The same for a list, of whomever: all of them together do not have it done more often than a
    /// person can tell.
    pub(super) fn sweep_for_list(&mut self) {
        if self.swept_at.elapsed() >= limits::SWEEP_FOR_LISTS {
            self.sweep_now();
        } else {
            self.bury();
        }
    }

    /// The same, but at most every [`REST`].
    pub(super) fn sweep_if_full(&mut self) {
        if self.swept_at.elapsed() >= REST {
            self.sweep_now();
        }
    }

    pub(super) fn add(&self, what: impl AsFd, token: Token, flags: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, what, EventData::new_u64(token.word()), flags)
    }

    pub(super) fn modify(&self, what: impl AsFd, token: Token, flags: EventFlags) {
        // It is in the set: nothing else can fail.
        let _ = epoll::modify(&self.epoll, what, EventData::new_u64(token.word()), flags);
    }

    pub(super) fn remove(&self, what: impl AsFd) {
        let _ = epoll::delete(&self.epoll, what);
    }

    fn shown(&self) -> Shown {
        Shown {
            applications: self.table.applications().count(),
            listeners: self.open.len(),
            connections: self.registry.len(),
            requests: self.asking.len(),
            counters: self.counters,
        }
    }
}

/// Descriptors that count for so many connections and listeners.
fn descriptors_of(connections: usize, listeners: usize) -> usize {
    connections * limits::DESCRIPTORS_PER_CONNECTION + listeners * limits::DESCRIPTORS_PER_LISTENER
}

fn random<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bits = [0; BYTES];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())?;
    Ok(bits)
}

/// What one arrival takes of a pair.
fn message_size() -> io::Result<u32> {
    let (one, _other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    send_message(one.as_fd(), &[0; ARRIVAL_BYTES], &[], SendFlags::DONTWAIT)?;
    Ok(unreceived(&one)?.max(1))
}
