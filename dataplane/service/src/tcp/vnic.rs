//! A VNIC that is served: its queue, its host, and everything of its applications that the kernel
//! knows of.
//!
//! 1. What an application asks ([`Asked`]) comes from the socket service, which has read it and
//!    knows from the kernel who it is. It is answered here, over the connection on which it came
//!    (`vnic/requests.rs`).
//! 2. Everything of an application that can ring or hang up is in one epoll: placeholders of
//!    connections, pairs of listeners, reservations. The epoll itself can be slept on, so a VNIC
//!    with all that belongs to it goes from one thread to another as one value.
//! 3. [`Vnic::turn`]: requests, doorbells (at most every [`LOOK`]), one turn of the host, arrivals
//!    to their listeners.
//! 4. [`Vnic::rest`] makes it ready to sleep on [`Vnic::doorbells`].
//!
//! Two applications on one VNIC that connect to one another get memory of their own and the service
//! is out of their way, as in host addressing; the socket service is told of it ([`Registrar`]),
//! and keeps it among its own.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Receiver;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sietch_net::Engine;
use sietch_nic::NicQueue;
use sietch_protocol::socket_service::{
    Arrival, ArrivalKind, BACKLOG_CHANGE_BYTES, BacklogChange, Descriptors, Reply, Request, RequestKind,
    receive_message, send_message,
};
use sietch_ring::stream::RegionSizes;
use zerocopy::IntoBytes as _;

use super::host::{self, Host, Share};
use super::link::Link;
use super::metrics::Counters;
use super::ports::Ports;
use crate::sockets::revoked::Revoked;
use crate::sockets::{ListenerPair, Registrar, Sent};

mod administration;
mod requests;
#[cfg(test)]
mod tests;

/// Nanoseconds between two looks at the doorbells of a VNIC that is busy: a look is a system call.
/// What was in use just before need not ring, and who rings for something else sleeps or has slept,
/// beside which this is short.
pub const LOOK: u64 = 20_000;
/// Events taken in one look.
const EVENTS: usize = 64;
/// Requests taken in one turn.
const REQUESTS: usize = 32;
/// Connections handed to one listener in one turn.
const ARRIVALS: usize = 32;
/// Nanoseconds for which nothing is handed over to a listener when descriptors or memory are short:
/// as the socket service rests.
const REST: u64 = 50_000_000;

/// Whether something is short that comes back without a word of it.
fn is_shortage(error: Errno) -> bool {
    matches!(error, Errno::TOOMANYREFS | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)
}

/// The queue of a VNIC as a thread that serves it needs it.
pub trait Device: NicQueue {
    /// What becomes readable when frames arrive; without one the queue is looked at again and
    /// again.
    fn doorbell(&self) -> Option<BorrowedFd<'_>>;

    /// Asks to be rung; `false`: something has arrived already.
    fn arm(&mut self) -> bool {
        true
    }

    /// Takes that back.
    fn disarm(&mut self) {}

    /// What becomes readable when [`Device::attend`] has something to do.
    fn control(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Answers what the control plane asks about the VNIC. Cheap when it asks nothing.
    fn attend(&mut self, _engine: &Engine) {}

    /// Whether the control plane took it back.
    fn is_revoked(&mut self) -> bool {
        false
    }
}

/// Who may use a VNIC, and for what: what the control plane has granted.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The user whose applications may; root's may too.
    pub uid: u32,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Local ports that the filters let through.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Networks that it may talk to; none of a family: nobody of it, unless there are none at all.
    pub peers: Vec<(IpAddr, u8)>,
}

impl Access {
    fn allows_peer(&self, peer: IpAddr) -> bool {
        let inside = |(network, prefix): &(IpAddr, u8)| match (network, peer) {
            (IpAddr::V4(network), IpAddr::V4(peer)) => {
                same_bits(u128::from(network.to_bits()) << 96, u128::from(peer.to_bits()) << 96, *prefix)
            }
            (IpAddr::V6(network), IpAddr::V6(peer)) => same_bits(network.to_bits(), peer.to_bits(), *prefix),
            _ => false,
        };
        self.peers.is_empty() || self.peers.iter().any(inside)
    }
}

fn same_bits(one: u128, other: u128, bits: u8) -> bool {
    bits == 0 || (one ^ other).leading_zeros() >= u32::from(bits)
}

/// What an application asks, as the socket service read it.
#[derive(Debug)]
pub struct Asked {
    /// Its user, as the kernel says.
    pub uid: u32,
    /// It came over the administrators' socket.
    pub administers: bool,
    /// What it asks.
    pub request: Request,
    /// The same, parsed.
    pub kind: RequestKind,
    /// What came with it, which no thread of a VNIC closes.
    pub sent: Sent,
    /// For [`RequestKind::Listen`]: the pair that the listener is to have, the service's end and
    /// the placeholder, where the socket service has a part in it (published ports). Shut down when
    /// the listener closes.
    pub pair: Option<ListenerPair>,
    /// For [`RequestKind::Revoke`]: nothing is ended, and the answer says whose application is
    /// meant.
    pub rehearsal: bool,
    /// Where the answer goes.
    pub socket: OwnedFd,
}

impl Asked {
    /// Answers with an error number.
    pub fn refuse(self, error: Errno) {
        self.sent.answer(self.socket, Reply::refused(error), Vec::new());
    }
}

/// A listener's pair, the service's end.
#[derive(Debug)]
struct Pair {
    socket: OwnedFd,
    /// The placeholder's.
    cookie: u64,
    application: u64,
    /// It took no more: it says when it does.
    full: bool,
    /// Connections of the same VNIC that the pair had no room for.
    within: VecDeque<Within>,
}

/// An end of a connection between two applications of the VNIC, on its way to who accepts it.
#[derive(Debug)]
struct Within {
    arrival: Arrival,
    /// Placeholder, common memory, private page.
    descriptors: [OwnedFd; 3],
}

/// A reserved name that is not listened on, and the service's end of what holds it.
#[derive(Debug)]
struct Reservation {
    socket: OwnedFd,
    cookie: u64,
}

/// What a placeholder's number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placeholder {
    Connection(u64),
    Listener(u64),
    Reservation(u64),
}

/// See the module.
#[derive(Debug)]
pub struct Vnic<Q> {
    name: String,
    access: Access,
    geometry: RegionSizes,
    queue: Q,
    host: Host<Link>,
    epoll: OwnedFd,
    orders: Receiver<Asked>,
    /// Rung when an order was sent.
    bell: OwnedFd,
    registrar: Option<Registrar>,
    /// Ids of applications that get nothing any more: they ask at once when they hear that they
    /// have nothing.
    revoked: Revoked,
    pairs: BTreeMap<u64, Pair>,
    reservations: BTreeMap<u64, Reservation>,
    placeholders: HashMap<u64, Placeholder>,
    /// Cookies by connection, to be forgotten with it.
    cookies: HashMap<u64, u64>,
    /// Listeners that get nothing before a time, for descriptors or memory were short.
    short: BTreeSet<u64>,
    short_until: u64,
    next_port: u16,
    looked_at: u64,
    now: u64,
    /// Nanoseconds for which its turns had something to do since the last sample, and before.
    pub(super) busy: u64,
    pub(super) worked: u64,
}

/// Events say whom they are about by key and, in the bits that no index has, by kind.
#[derive(Clone, Copy)]
enum Token {
    Bell,
    Connection(u64),
    Pair(u64),
    Reservation(u64),
}

const KIND: u64 = 0xc000_0000;

impl Token {
    fn word(self) -> u64 {
        match self {
            Self::Bell => 0,
            Self::Connection(key) => key,
            Self::Pair(key) => key | 0x4000_0000,
            Self::Reservation(key) => key | 0x8000_0000,
        }
    }

    fn of(word: u64) -> Self {
        let key = word & !KIND;
        match word & KIND {
            0 if word == 0 => Self::Bell,
            0x4000_0000 => Self::Pair(key),
            0x8000_0000 => Self::Reservation(key),
            _ => Self::Connection(key),
        }
    }
}

impl<Q: Device> Vnic<Q> {
    /// Serves `queue` with `engine`. `bell` is a non-blocking descriptor that becomes readable when
    /// an order was sent; `registrar` is told of connections between two applications of this VNIC.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new(
        name: String,
        access: Access,
        queue: Q,
        engine: Engine,
        orders: Receiver<Asked>,
        bell: OwnedFd,
        registrar: Option<Registrar>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &bell, EventData::new_u64(Token::Bell.word()), EventFlags::IN)?;
        let ports = Ports::new(access.addresses.clone(), access.ports.clone());
        Ok(Self {
            name,
            access,
            geometry: RegionSizes::default(),
            queue,
            host: Host::new(engine, ports),
            epoll,
            orders,
            bell,
            registrar,
            revoked: Revoked::default(),
            pairs: BTreeMap::new(),
            reservations: BTreeMap::new(),
            placeholders: HashMap::new(),
            cookies: HashMap::new(),
            short: BTreeSet::new(),
            short_until: 0,
            next_port: 0,
            looked_at: 0,
            now: 0,
            busy: 0,
            worked: 0,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is over.
    pub fn is_revoked(&mut self) -> bool {
        self.queue.is_revoked()
    }

    /// What was counted, and what each application has.
    pub fn shown(&self) -> (Counters, Vec<Share>) {
        (self.host.counters(), self.host.shares().map(|(_, share)| share).collect())
    }

    /// One turn. Says whether anything happened.
    ///
    /// # Errors
    /// The device is gone.
    pub fn turn(&mut self, now: u64) -> io::Result<bool> {
        self.now = now;
        self.queue.attend(self.host.engine());
        let mut busy = false;
        if now.saturating_sub(self.looked_at) >= LOOK {
            busy |= self.look();
        }
        busy |= self.host.turn(&mut self.queue, now)?;
        while let Some(key) = self.host.next_removed() {
            if let Some(cookie) = self.cookies.remove(&key) {
                self.placeholders.remove(&cookie);
            }
        }
        while let Some(claim) = self.host.next_news() {
            busy = true;
            self.hand_over(claim);
        }
        if !self.short.is_empty() && self.short_until <= now {
            busy = true;
            for claim in std::mem::take(&mut self.short) {
                self.watch_pair(claim, false);
                self.hand_over(claim);
            }
        }
        Ok(busy)
    }

    /// Makes ready to sleep. `false`: there is something to do.
    pub fn rest(&mut self) -> bool {
        self.host.rest() && self.queue.arm()
    }

    /// Back from sleep.
    pub fn wake(&mut self) {
        self.queue.disarm();
        self.host.wake();
        self.looked_at = 0;
    }

    /// What to sleep on. `None` among them: the queue has no doorbell.
    pub fn doorbells(&self) -> [Option<BorrowedFd<'_>>; 3] {
        [Some(self.epoll.as_fd()), self.queue.doorbell(), self.queue.control()]
    }

    /// When the next turn is due though nobody rings.
    pub fn next_deadline(&self) -> Option<u64> {
        let short = (!self.short.is_empty()).then_some(self.short_until);
        [self.host.next_deadline(), short].into_iter().flatten().min()
    }

    /// Takes what has rung. Says whether anything had.
    fn look(&mut self) -> bool {
        self.looked_at = self.now;
        let mut places = [const { MaybeUninit::uninit() }; EVENTS];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut places, Some(&none)) else {
            // Interrupted: the next look is soon.
            return false;
        };
        let mut asked = false;
        for event in &*events {
            let flags = { event.flags };
            let gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            match Token::of({ event.data }.u64()) {
                // Last: epoll tells of events in no order, and who closes a name and asks for it
                // again has closed it before.
                Token::Bell => asked = true,
                Token::Connection(key) if gone => {
                    self.forget_connection(key);
                    self.host.departed(key);
                }
                Token::Connection(key) => self.host.rung(key),
                Token::Pair(claim) if gone => self.close(claim),
                Token::Pair(claim) => self.attend_pair(claim, flags),
                Token::Reservation(claim) => self.give_up(claim),
            }
        }
        let any = !events.is_empty();
        if asked {
            self.take_orders();
        }
        any
    }

    fn take_orders(&mut self) {
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        for _ in 0..REQUESTS {
            let Ok(asked) = self.orders.try_recv() else { return };
            self.answer(asked);
        }
        // More may wait.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// The application's end of a connection hung up: it does so for ever, so it is not watched any
    /// more.
    fn forget_connection(&mut self, key: u64) {
        if let Some(link) = self.host.channel(key) {
            let _ = epoll::delete(&self.epoll, link.doorbell());
        }
    }

    /// Gives a listener the connections that wait for it.
    fn hand_over(&mut self, claim: u64) {
        if !self.hand_over_within(claim) {
            return;
        }
        for _ in 0..ARRIVALS {
            let Some(pair) = self.pairs.get(&claim).filter(|pair| !pair.full) else { return };
            let application = pair.application;
            let Some(arrival) = self.host.next_arrival(claim) else { return };
            match self.offer(claim, application, &arrival) {
                Ok(()) => self.host.taken(claim),
                Err(Errno::AGAIN) => {
                    self.host.put_back(claim, arrival);
                    self.watch_pair(claim, true);
                    return;
                }
                Err(error) if is_shortage(error) => {
                    self.host.put_back(claim, arrival);
                    return self.is_short(claim);
                }
                Err(_) => {
                    self.host.abandon(arrival.flow);
                    self.host.taken(claim);
                }
            }
        }
        // The rest has its turn with the pair's next event, which is at once.
        self.watch_pair(claim, true);
    }

    /// The same with those of this VNIC. `false`: the pair took no more.
    fn hand_over_within(&mut self, claim: u64) -> bool {
        let Some(pair) = self.pairs.get_mut(&claim).filter(|pair| !pair.full) else { return false };
        while let Some(within) = pair.within.front() {
            let descriptors = within.descriptors.each_ref().map(AsFd::as_fd);
            let message = within.arrival.as_bytes();
            match send_message(pair.socket.as_fd(), message, &descriptors, SendFlags::DONTWAIT) {
                Err(Errno::AGAIN) => {
                    self.watch_pair(claim, true);
                    return false;
                }
                Err(error) if is_shortage(error) => {
                    self.is_short(claim);
                    return false;
                }
                // Lost with its listener, if not handed over: who connected hears a reset.
                Ok(()) | Err(_) => drop(pair.within.pop_front()),
            }
        }
        true
    }

    /// Descriptors or memory are short, and the pair has room: epoll would tell of that again and
    /// again.
    fn is_short(&mut self, claim: u64) {
        let Some(pair) = self.pairs.get_mut(&claim) else { return };
        pair.full = true;
        if self.short.is_empty() {
            self.short_until = self.now.saturating_add(REST);
        }
        self.short.insert(claim);
    }

    fn offer(&mut self, claim: u64, application: u64, arrival: &host::Arrival) -> Result<(), Errno> {
        let no = |error: io::Error| error.raw_os_error().map_or(Errno::NOMEM, Errno::from_raw_os_error);
        let made = Link::make(self.geometry, arrival.local, arrival.remote, false).map_err(no)?;
        let message = Arrival::new(ArrivalKind::Stream, arrival.local.into(), arrival.remote.into());
        let [common, page] = made.link.memory();
        let descriptors = [made.handout.placeholder.as_fd(), common, page];
        let Some(pair) = self.pairs.get(&claim) else { return Err(Errno::CONNABORTED) };
        send_message(pair.socket.as_fd(), message.as_bytes(), &descriptors, SendFlags::DONTWAIT)?;
        self.enter(arrival.flow, application, made.link, made.handout.cookie).map(|_| ())
    }

    /// Takes a connection among those that are served.
    fn enter(
        &mut self,
        flow: sietch_net::FlowId,
        application: u64,
        link: Link,
        cookie: u64,
    ) -> Result<u64, Errno> {
        let key = self.host.attach(flow, application, link).map_err(|_| Errno::CONNABORTED)?;
        if let Some(link) = self.host.channel(key) {
            let data = EventData::new_u64(Token::Connection(key).word());
            if let Err(error) = epoll::add(&self.epoll, link.doorbell(), data, EventFlags::IN) {
                // Nothing would tell when its application has gone.
                self.host.cut(key, error);
                return Err(Errno::CONNABORTED);
            }
        }
        self.cookies.insert(key, cookie);
        self.placeholders.insert(cookie, Placeholder::Connection(key));
        Ok(key)
    }

    fn watch_pair(&mut self, claim: u64, full: bool) {
        let Some(pair) = self.pairs.get_mut(&claim) else { return };
        pair.full = full;
        let flags = if full { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        let _ =
            epoll::modify(&self.epoll, &pair.socket, EventData::new_u64(Token::Pair(claim).word()), flags);
    }

    /// Something about a listener's pair: a message of its application, or room.
    fn attend_pair(&mut self, claim: u64, flags: EventFlags) {
        let Some(pair) = self.pairs.get(&claim) else { return };
        if flags.contains(EventFlags::IN) {
            let mut bytes = [0; BACKLOG_CHANGE_BYTES];
            let mut received = Descriptors::default();
            let found = receive_message(pair.socket.as_fd(), &mut bytes, &mut received, RecvFlags::DONTWAIT);
            match found.map(|(length, _)| BacklogChange::parse(bytes.get(..length).unwrap_or_default())) {
                Ok(Ok(change)) => {
                    let _ = self.host.listen(claim, change.backlog);
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                // A message that is none costs the application this listener.
                Ok(Err(_)) | Err(_) => return self.close(claim),
            }
        }
        if flags.contains(EventFlags::OUT) {
            self.watch_pair(claim, false);
            self.hand_over(claim);
        }
    }

    /// The last holder of a listener is gone.
    fn close(&mut self, claim: u64) {
        if let Some(pair) = self.pairs.remove(&claim) {
            self.placeholders.remove(&pair.cookie);
            let _ = epoll::delete(&self.epoll, &pair.socket);
            hang_up(&pair);
        }
        self.host.release(claim);
    }

    /// The last holder of a reservation is gone, or it turned into a listener.
    fn give_up(&mut self, claim: u64) {
        if let Some(reservation) = self.reservations.remove(&claim) {
            self.placeholders.remove(&reservation.cookie);
            let _ = epoll::delete(&self.epoll, &reservation.socket);
            if !self.pairs.contains_key(&claim) {
                self.host.release(claim);
            }
        }
    }

    /// Ends everything: the VNIC was taken back or is gone, or the service ends. Peers are sent
    /// resets, if that is still possible.
    pub fn end(&mut self, error: Errno) {
        self.host.end(error);
        self.host.send_last(&mut self.queue);
        self.pairs.values().for_each(hang_up);
        self.pairs.clear();
        self.reservations.clear();
        self.placeholders.clear();
        self.cookies.clear();
    }

    /// Where one of this VNIC's own listeners would be for `remote`.
    fn own_listener(&self, remote: SocketAddr) -> Option<u64> {
        self.host.ports().is_ours(remote.ip()).then(|| self.host.ports().listener(remote, self.now))?
    }
}

/// Others may hold the service's end too: closing it would not be its end.
fn hang_up(pair: &Pair) {
    let _ = rustix::net::shutdown(&pair.socket, rustix::net::Shutdown::Both);
}

impl Device for sietch_nic::shm::Endpoint {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn arm(&mut self) -> bool {
        !Self::arm(self)
    }

    fn disarm(&mut self) {
        Self::disarm(self);
    }

    fn is_revoked(&mut self) -> bool {
        !self.is_alive()
    }
}
