//! Listeners at work: what arrives, and how it reaches the program.
//!
//! 1. A listener has the service's end of its pair and, in host addressing, the kernel's listening
//!    socket. Both are watched.
//! 2. An arrival goes into the pair at once. If the pair is full it waits here; then the kernel's
//!    socket is not watched either, so that the kernel's own backlog fills, and the pair is watched
//!    for room.
//! 3. More than the backlog do not wait ([`super::backlog`]): who connects then is sent to the
//!    kernel, where it is treated as the kernel treats it.
//! 4. When the last holder of the placeholder is gone, the pair hangs up: the port is free, and
//!    what waits is closed, which resets it, unless another process has a listener of the same
//!    kernel's socket.
//! 5. A message that is none costs the application this listener. So does a kernel's socket that
//!    does not listen any more: its name may be somebody else's by now, so it is asked again before
//!    each connection.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use sietch_protocol::socket_service::{
    Arrival, ArrivalKind, BacklogChange, Descriptors, Name, receive_all, send_message,
};
use zerocopy::IntoBytes as _;

use super::expendable::NoAnswer;
use super::publish::LeadsTo;
use super::run::{Service, Token};
use super::table::{ConnectionId, ListenerId};
use super::{administration, kernel, limits, registry};

/// Whose descriptors are closed if that is not known: no user has this number.
pub(super) const NOBODY: u32 = u32::MAX;

/// A listener's descriptors, and who waits.
#[derive(Debug)]
pub(super) struct Open {
    /// The service's end.
    pub pair: OwnedFd,
    /// The placeholder's cookie.
    pub cookie: u64,
    /// The kernel's listening socket.
    pub kernel: Option<OwnedFd>,
    /// A port of the host that was published for another listener, whose pair this is.
    pub leads_to: Option<LeadsTo>,
    pub waiting: VecDeque<Waiting>,
    /// The cookie of the kernel's socket: those who have the same are one listener to the kernel.
    pub group: u64,
    /// What is watched on the pair, and whether the kernel's socket is.
    watched: (EventFlags, bool),
    /// An arrival was not sent though there was room: nobody tells when that is over.
    short: bool,
}

/// An arrival that the pair had no room for.
#[derive(Debug)]
pub(super) enum Waiting {
    /// The accepting end's placeholder; its memory is in the registry.
    Stream(ConnectionId, OwnedFd),
    /// A socket of the kernel.
    Kernel(Arrival, OwnedFd),
}

/// What became of an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handed {
    /// It lies in the pair.
    Over,
    /// The pair is full; it was not sent.
    Full,
    /// Nobody is there.
    Gone,
}

impl Open {
    /// A listener that nobody has come to yet, and that is not watched.
    pub fn new(pair: OwnedFd, cookie: u64, kernel: Option<OwnedFd>, leads_to: Option<LeadsTo>) -> Self {
        let group = kernel.as_ref().and_then(|kernel| registry::cookie(kernel).ok()).unwrap_or(cookie);
        let watched = (EventFlags::empty(), false);
        Self { pair, cookie, kernel, leads_to, waiting: VecDeque::new(), group, watched, short: false }
    }

    /// What is watched on a listener with room. What the program says over a pair is for the
    /// listener to which a published port leads.
    fn events(&self) -> EventFlags {
        if self.leads_to.is_some() { EventFlags::empty() } else { EventFlags::IN.union(EventFlags::RDHUP) }
    }
}

impl Service {
    /// The listener that a connection to `remote` goes to. Those that are found and do not listen
    /// any more are closed.
    pub(super) fn find_listening(&mut self, namespace: u64, remote: SocketAddr) -> Option<ListenerId> {
        loop {
            let id = self.table.find(namespace, remote)?;
            match self.still_listens(id) {
                Ok(true) => return Some(id),
                Ok(false) => self.close_listener(id),
                // Whoever holds it up is not served; the kernel has its listener too.
                Err(_) => return None,
            }
        }
    }

    fn still_listens(&self, id: ListenerId) -> Result<bool, NoAnswer> {
        let (Some(open), Some(listener)) = (self.open.get(&id), self.table.listener(id)) else {
            return Ok(false);
        };
        let Some(kernel) = &open.kernel else { return Ok(false) };
        let name = listener.name;
        self.expendable.ask(listener.application.uid, kernel, move |fd| kernel::listens_at(fd, name))
    }

    /// Gives a connection to a listener or to another one of its group, or lets it wait there.
    pub(super) fn hand_over(&mut self, id: ListenerId, what: Waiting) -> Handed {
        let group = self.group(id);
        let nobody_waits =
            group.iter().all(|id| self.open.get(id).is_none_or(|open| open.waiting.is_empty()));
        for &mate in group.iter().filter(|_| nobody_waits) {
            match self.send(mate, &what) {
                Handed::Over => {
                    self.let_go(id, what, false);
                    self.watch(id);
                    return Handed::Over;
                }
                Handed::Full => {}
                Handed::Gone => self.close_listener(mate),
            }
        }
        // All of a group wait at one, so that they stay in order.
        let first = group.into_iter().filter(|id| self.open.contains_key(id)).min();
        let Some((first, open)) = first.and_then(|id| Some((id, self.open.get_mut(&id)?))) else {
            self.let_go(id, what, false);
            return Handed::Gone;
        };
        open.waiting.push_back(what);
        self.watch(first);
        Handed::Full
    }

    fn send(&mut self, id: ListenerId, what: &Waiting) -> Handed {
        let Some(open) = self.open.get(&id) else { return Handed::Gone };
        if !self.pair_has_room(id) {
            return Handed::Full;
        }
        let pair = open.pair.as_fd();
        let sent = match what {
            Waiting::Kernel(arrival, socket) => deliver(pair, arrival, &[socket.as_fd()]),
            Waiting::Stream(connection, placeholder) => {
                let (Some(found), Some(entry)) =
                    (self.table.connection(*connection), self.registry.get(*connection))
                else {
                    return Handed::Over;
                };
                let names = found.accepted;
                let arrival = Arrival::new(ArrivalKind::Stream, names.local.into(), names.peer.into());
                let memory = &entry.memory;
                let descriptors = [placeholder.as_fd(), memory.common.as_fd(), memory.private[1].as_fd()];
                deliver(pair, &arrival, &descriptors)
            }
        };
        match sent {
            Ok(()) => Handed::Over,
            Err(Errno::AGAIN) => Handed::Full,
            // Too many descriptors in flight, or no memory: as if it were full.
            Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {
                if let Some(open) = self.open.get_mut(&id) {
                    open.short = true;
                }
                self.rest();
                Handed::Full
            }
            Err(_) => Handed::Gone,
        }
    }

    /// Closes this service's copy of what was handed over. A socket of the kernel may have been
    /// accepted and closed by then, to linger, and an end of a stream that has waited may hold what
    /// its client sent: those are the closer's. An end that nobody has had before is closed at
    /// once, so that the other hears in time who has closed it.
    pub(super) fn let_go(&self, id: ListenerId, what: Waiting, has_waited: bool) {
        let socket = match what {
            Waiting::Kernel(_, socket) => socket,
            Waiting::Stream(_, placeholder) if has_waited => placeholder,
            Waiting::Stream(..) => return,
        };
        let uid = self.table.listener(id).map_or(NOBODY, |found| found.application.uid);
        self.closer.close(uid, socket);
    }

    /// Whether an arrival fits into a listener's pair. One of a group has one at a time: what lies
    /// in a pair no other process can take.
    fn pair_has_room(&self, id: ListenerId) -> bool {
        let alone = self.table.of_same_name(id).nth(1).is_none() || self.group(id).len() == 1;
        let most = if alone { limits::IN_PAIR } else { 1 };
        self.open.get(&id).is_some_and(|open| self.in_pair(open) < most)
    }

    /// The pair has room, something to say, or has hung up.
    pub(super) fn attend(&mut self, id: ListenerId, flags: EventFlags) {
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            return self.close_listener(id);
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP) && !self.listen_to(id) {
            return self.close_listener(id);
        }
        if flags.contains(EventFlags::OUT) {
            self.drain(id);
        }
    }

    /// What was short may be there again.
    pub(super) fn try_again(&mut self, id: ListenerId) {
        if let Some(open) = self.open.get_mut(&id) {
            open.short = false;
        }
        self.drain(id);
    }

    /// Sends what waits at a listener or at others of its group, and takes more from the kernel.
    /// Whoever of the group is next gets it, and not who was heard first: the loop may come to
    /// several that have accepted at once.
    pub(super) fn drain(&mut self, id: ListenerId) {
        let group = self.group(id);
        for &holder in &group {
            while let Some(first) = self.open.get_mut(&holder).and_then(|open| open.waiting.pop_front()) {
                let mut mates = group.clone();
                mates.sort_by_key(|&mate| self.table.turn(mate));
                let mut sent = mates.into_iter().map(|mate| (mate, self.send(mate, &first)));
                let sent = sent.find(|(_, sent)| *sent != Handed::Full);
                if let Some((mate, Handed::Over)) = sent {
                    self.table.had_turn(mate);
                    self.let_go(mate, first, true);
                    continue;
                }
                if let Some(open) = self.open.get_mut(&holder) {
                    open.waiting.push_front(first);
                }
                return match sent {
                    Some((gone, _)) => self.close_listener(gone),
                    None => self.watch(id),
                };
            }
        }
        self.accept_from_kernel(id);
    }

    /// Closes the listeners at a port whose last holder is gone. The loop has not come to them yet,
    /// and somebody asks for their name.
    pub(super) fn close_those_that_hung_up(&mut self, port: u16) {
        let gone = |open: &Open| {
            let mut pair = [PollFd::new(&open.pair, PollFlags::empty())];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut pair, Some(&now)).is_ok() && pair[0].revents().contains(PollFlags::HUP)
        };
        let at_port = self.table.listeners().filter(|(_, listener)| listener.name.port() == port);
        let gone: Vec<ListenerId> =
            at_port.map(|(id, _)| id).filter(|id| self.open.get(id).is_some_and(gone)).collect();
        gone.into_iter().for_each(|id| self.close_listener(id));
    }

    /// Takes what the program says over its placeholder; whether it made sense.
    fn listen_to(&mut self, id: ListenerId) -> bool {
        for _ in 0..limits::PER_TURN {
            let Some(open) = self.open.get(&id) else { return true };
            let uid = self.table.listener(id).map_or(NOBODY, |listener| listener.application.uid);
            let mut bytes = [0; 64];
            let mut received = Descriptors::default();
            let found =
                receive_all(open.pair.as_fd(), &mut bytes, &mut received, RecvFlags::DONTWAIT, |sent| {
                    self.closer.close(uid, sent)
                });
            let strange =
                received.iter_mut().filter_map(Option::take).map(|sent| self.closer.close(uid, sent)).count();
            match found {
                Ok((0, _)) => return false,
                Ok((length, true)) if strange == 0 => {
                    let Ok(message) = BacklogChange::parse(bytes.get(..length).unwrap_or_default()) else {
                        self.counters.malformed += 1;
                        return false;
                    };
                    self.change_backlog(id, message.backlog);
                }
                Ok(_) => {
                    self.counters.malformed += 1;
                    return false;
                }
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            }
        }
        // It is told of what is left only if it is watched anew.
        if let Some(open) = self.open.get(&id) {
            self.modify(&open.pair, Token::Pair(id), open.watched.0);
        }
        true
    }

    /// Connections have come over the kernel, or its socket does not listen any more: then it hangs
    /// up, which is told again and again.
    pub(super) fn attend_kernel(&mut self, id: ListenerId, flags: EventFlags) {
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            return self.close_listener(id);
        }
        self.accept_from_kernel(id);
    }

    /// Takes connections of the kernel's queue, as many as may wait here.
    pub(super) fn accept_from_kernel(&mut self, id: ListenerId) {
        let mut group = self.group(id);
        group.sort_by_key(|&id| self.table.turn(id));
        let queued = if self.waits_in_kernel(id) { self.in_kernel(id) } else { 0 };
        let here = self.waiting_here(&group);
        let backlog = self.table.listener(id).map_or(0, |listener| listener.backlog);
        let room = super::backlog::most_here(backlog).saturating_sub(here);
        let some = queued.min(room).min(limits::PER_TURN as u32);
        // Before they leave room in the kernel's queue.
        self.leave_to_kernel(id, here + some);
        self.accept_some(id, &group, some);
        self.watch(id);
    }

    fn accept_some(&mut self, id: ListenerId, group: &[ListenerId], some: u32) {
        for turn in 0..some as usize {
            // Each of the group in its turn, so that one that never accepts has one of them.
            let next = group.iter().cycle().skip(turn).take(group.len());
            let Some(&next) = next.into_iter().find(|&&id| self.pair_has_room(id)) else { return };
            let Some(open) = self.open.get(&id) else { return };
            let Some(listening) = open.kernel.as_ref().filter(|_| open.waiting.is_empty()) else { return };
            let Some(uid) = self.table.listener(id).map(|listener| listener.application.uid) else { return };
            let accepted = match self.expendable.ask(uid, listening, |fd: BorrowedFd<'_>| kernel::accept(fd))
            {
                Ok(accepted) => accepted,
                // It is asked again after a rest.
                Err(NoAnswer::Short | NoAnswer::Spent) => Err(Errno::MFILE),
                Err(NoAnswer::HeldUp) => {
                    // Whoever keeps `accept` waiting loses its listener. What waits there is woken
                    // by this.
                    let shut = |fd: BorrowedFd<'_>| rustix::net::shutdown(fd, Shutdown::Both);
                    let _ = self.expendable.ask(uid, listening, shut);
                    return self.close_listener(id);
                }
            };
            match accepted {
                Ok(socket) => {
                    let name = |address: Option<std::net::SocketAddr>| address.map_or(Name::NONE, Name::from);
                    // Its program does not have it yet: nobody holds these up.
                    let arrival = Arrival::new(
                        ArrivalKind::Kernel,
                        name(kernel::local(&socket)),
                        name(kernel::peer(&socket)),
                    );
                    match self.hand_over(next, Waiting::Kernel(arrival, socket)) {
                        Handed::Over | Handed::Full => {
                            self.counters.handed_over += 1;
                            self.table.had_turn(next);
                        }
                        Handed::Gone => return self.close_listener(id),
                    }
                }
                Err(Errno::AGAIN) => return,
                // The client has gone again, or the network failed it (accept(2)).
                Err(
                    Errno::INTR
                    | Errno::CONNABORTED
                    | Errno::PROTO
                    | Errno::NETDOWN
                    | Errno::NOPROTOOPT
                    | Errno::HOSTDOWN
                    | Errno::NONET
                    | Errno::HOSTUNREACH
                    | Errno::OPNOTSUPP
                    | Errno::NETUNREACH
                    | Errno::PERM
                    | Errno::TIMEDOUT,
                ) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    if let Some(open) = self.open.get_mut(&id) {
                        open.short = true;
                    }
                    return self.is_short();
                }
                // It listens no more: somebody shut it down.
                Err(_) => return self.close_listener(id),
            }
        }
    }

    /// Watches what there is to watch now on a listener and on the others of its group, and leaves
    /// the kernel its part of the backlog.
    pub(super) fn watch(&mut self, id: ListenerId) {
        let group = self.group(id);
        let here = self.waiting_here(&group);
        let backlog = self.table.listener(id).map_or(0, |listener| listener.backlog);
        self.leave_to_kernel(id, here);
        let room = here < super::backlog::most_here(backlog);
        let waits = group.iter().any(|id| self.open.get(id).is_some_and(|open| !open.waiting.is_empty()));
        for id in group {
            let fits = self.pair_has_room(id);
            let Some(open) = self.open.get_mut(&id) else { continue };
            let accepts = room && fits && !waits && !open.short;
            // Told once for each arrival that is taken, and not for as long as there is room.
            let wakes = !open.short && (waits || !room || !fits || super::backlog::is_tight(backlog, here));
            let once = EventFlags::OUT | EventFlags::ET;
            let flags = if wakes { open.events() | once } else { open.events() };
            let (before, accepted) = std::mem::replace(&mut open.watched, (flags, accepts));
            let Some(open) = self.open.get(&id) else { continue };
            if before != flags {
                self.modify(&open.pair, Token::Pair(id), flags);
            }
            if let Some(kernel) = open.kernel.as_ref().filter(|_| accepted != accepts) {
                let flags = if accepts { EventFlags::IN } else { EventFlags::empty() };
                self.modify(kernel, Token::Kernel(id), flags);
            }
        }
    }

    /// Enters a listener's descriptors.
    ///
    /// # Errors
    /// `ENOBUFS`: there are as many of this kernel's socket as there may be. Those of epoll.
    pub(super) fn open_listener(&mut self, id: ListenerId, mut open: Open) -> Result<(), Errno> {
        let mates = self.open.values().filter(|other| other.group == open.group).count();
        let entered = if mates >= limits::LISTENERS_OF_ONE_SOCKET {
            self.counters.limited += 1;
            Err(Errno::NOBUFS)
        } else {
            open.watched = (open.events(), true);
            self.watch_both(id, &open)
        };
        if let Err(error) = entered {
            let uid = self.table.listener(id).map_or(NOBODY, |listener| listener.application.uid);
            self.closer.close_all(uid, open.kernel.into_iter().chain([open.pair]).collect());
            return Err(error);
        }
        if open.leads_to.is_none() {
            self.registry.insert_listener(id, open.cookie);
        }
        self.open.insert(id, open);
        self.watch(id);
        Ok(())
    }

    fn watch_both(&self, id: ListenerId, open: &Open) -> Result<(), Errno> {
        self.add(&open.pair, Token::Pair(id), open.events())?;
        let Some(kernel) = &open.kernel else { return Ok(()) };
        // Others may hold the pair: its entry would outlive this descriptor.
        self.add(kernel, Token::Kernel(id), EventFlags::IN).inspect_err(|_| self.remove(&open.pair))
    }

    /// Takes a listener out: its port is free, and what waits is reset, or goes to another one of
    /// its group.
    pub(super) fn close_listener(&mut self, id: ListenerId) {
        let mate = self.group(id).get(1).copied();
        let listener = self.table.close(id);
        let uid = listener.as_ref().map_or(NOBODY, |listener| listener.application.uid);
        let Some(open) = self.open.remove(&id) else { return };
        self.counters.closed += 1;
        self.remove(&open.pair);
        if open.leads_to.is_none() {
            self.registry.remove_listener(open.cookie);
            // Published ports have this pair too: closing it here would not be its end.
            let _ = rustix::net::shutdown(&open.pair, Shutdown::Both);
        }
        match mate.and_then(|mate| self.open.get_mut(&mate)) {
            Some(mate) => mate.waiting.extend(open.waiting),
            None => {
                let left = self.left.remove(&open.group);
                let backlog = listener.map_or(0, |listener| listener.backlog);
                if let Some(kernel) =
                    open.kernel.as_ref().filter(|_| left.is_some_and(|left| left != backlog))
                {
                    let restore = move |fd: BorrowedFd<'_>| kernel::restore_backlog(fd, backlog);
                    let _ = self.expendable.ask(uid, kernel, restore);
                }
                open.waiting.into_iter().for_each(|waiting| self.reset_waiting(uid, waiting));
            }
        }
        // What the program has said and nobody has read.
        self.closer.close(uid, open.pair);
        if let Some(kernel) = open.kernel {
            // Others may hold it too: then its entry would outlive this descriptor.
            self.remove(&kernel);
            self.freed.push((uid, kernel));
        }
        if let Some(mate) = mate {
            self.watch(mate);
            // It has room, perhaps: then it is told so, and takes what waits.
            if let Some(open) = self.open.get(&mate) {
                self.modify(&open.pair, Token::Pair(mate), open.watched.0);
            }
        }
    }

    /// Closes a connection that nobody will accept.
    fn reset_waiting(&mut self, uid: u32, waiting: Waiting) {
        let socket = match waiting {
            Waiting::Kernel(_, socket) => socket,
            Waiting::Stream(connection, placeholder) => {
                self.forget(connection);
                if let Some(entry) = self.registry.remove(connection) {
                    // Whoever connected sees a reset, not an end. A page that cannot be written
                    // says less.
                    let _ = administration::cut(&entry.memory);
                }
                placeholder
            }
        };
        self.closer.close(uid, socket);
    }
}

fn deliver(pair: BorrowedFd<'_>, arrival: &Arrival, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    send_message(pair, arrival.as_bytes(), descriptors, SendFlags::DONTWAIT)
}
