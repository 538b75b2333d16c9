//! Listeners at work: what arrives, and how it reaches the program.
//!
//! 1. A listener has the service's end of its pair and, in host addressing, the kernel's listening socket. Both are watched.
//! 2. An arrival goes into the pair at once. If the pair is full it waits here; then the kernel's socket is not watched either, so that the kernel's own
//!    backlog fills, and the pair is watched for room. Room means that three quarters of it are free, so that nobody is woken for each.
//! 3. More than the backlog do not wait: who connects then is sent to the kernel, where it is treated as the kernel treats it.
//! 4. When the last holder of the placeholder is gone, the pair hangs up: the port is free, and what waits is closed, which resets it.
//! 5. A message that is none costs the application this listener. So does a kernel's socket that does not listen
//!    any more: its name may be somebody else's by now, so it is asked again before each connection.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use sietch_protocol::socket_service::{
    Arrival, ArrivalKind, Descriptors, Name, Relisten, receive_all, send_message,
};
use sietch_socket::kernel::unreceived;
use zerocopy::IntoBytes as _;

use super::publish::LeadsTo;
use super::run::{Service, Token};
use super::table::{ConnectionId, ListenerId};
use super::{administration, kernel, limits};

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
    /// What is watched on a listener with room. What the program says over a pair is for the listener to which a published port leads.
    fn events(&self) -> EventFlags {
        if self.leads_to.is_some() { EventFlags::empty() } else { EventFlags::IN.union(EventFlags::RDHUP) }
    }
}

impl Service {
    /// Whether a connection would be beyond the backlog. As in the kernel, a backlog of n lets n + 1 wait.
    pub(super) fn is_full(&self, id: ListenerId) -> bool {
        let (Some(open), Some(listener)) = (self.open.get(&id), self.table.listener(id)) else { return true };
        let in_pair = unreceived(&open.pair).unwrap_or(0).div_ceil(self.message_size);
        let waiting = u64::from(in_pair) + open.waiting.len() as u64;
        waiting > u64::from(listener.backlog.min(limits::MOST_BACKLOG))
    }

    /// The listener that a connection to `remote` goes to. Those that are found and do not listen any
    /// more are closed.
    pub(super) fn find_listening(&mut self, namespace: u64, remote: SocketAddr) -> Option<ListenerId> {
        loop {
            let id = self.table.find(namespace, remote)?;
            if self.still_listens(id) {
                return Some(id);
            }
            self.close_listener(id);
        }
    }

    fn still_listens(&self, id: ListenerId) -> bool {
        let (Some(open), Some(listener)) = (self.open.get(&id), self.table.listener(id)) else {
            return false;
        };
        open.kernel.as_ref().is_some_and(|kernel| kernel::listens_at(kernel, listener.name))
    }

    /// Gives a connection to a listener, or lets it wait there.
    pub(super) fn hand_over(&mut self, id: ListenerId, what: Waiting) -> Handed {
        let Some(open) = self.open.get(&id) else { return Handed::Gone };
        let handed = if open.waiting.is_empty() { self.send(id, &what) } else { Handed::Full };
        if handed == Handed::Full
            && let Some(open) = self.open.get_mut(&id)
        {
            open.waiting.push_back(what);
            self.watch(id);
        }
        handed
    }

    fn send(&mut self, id: ListenerId, what: &Waiting) -> Handed {
        let Some(open) = self.open.get(&id) else { return Handed::Gone };
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
            // Too many descriptors in flight, or no memory: as if it were full.
            Err(Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {
                Handed::Full
            }
            Err(_) => Handed::Gone,
        }
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

    /// Sends what waits.
    pub(super) fn drain(&mut self, id: ListenerId) {
        loop {
            let Some(first) = self.open.get_mut(&id).and_then(|open| open.waiting.pop_front()) else { break };
            match self.send(id, &first) {
                Handed::Over => {}
                Handed::Full => {
                    if let Some(open) = self.open.get_mut(&id) {
                        open.waiting.push_front(first);
                    }
                    // Where the pair itself has room, something else was short: that nobody tells of.
                    self.rest();
                    break;
                }
                Handed::Gone => return self.close_listener(id),
            }
        }
        self.watch(id);
    }

    /// Closes the listeners at a port whose last holder is gone. The loop has not come to them yet, and somebody
    /// asks for their name.
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
                    let Ok(message) = Relisten::parse(bytes.get(..length).unwrap_or_default()) else {
                        self.counters.malformed += 1;
                        return false;
                    };
                    self.table.set_backlog(id, message.backlog);
                }
                Ok(_) => {
                    self.counters.malformed += 1;
                    return false;
                }
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            }
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

    fn accept_from_kernel(&mut self, id: ListenerId) {
        for _ in 0..limits::PER_TURN {
            let Some(open) = self.open.get(&id) else { return };
            let Some(listening) = open.kernel.as_ref().filter(|_| open.waiting.is_empty()) else { return };
            self.watchdog.begin(listening);
            let accepted = kernel::accept(listening);
            self.watchdog.end();
            match accepted {
                Ok(socket) => {
                    let name = |address: Option<std::net::SocketAddr>| address.map_or(Name::NONE, Name::from);
                    let arrival = Arrival::new(
                        ArrivalKind::Kernel,
                        name(kernel::local(&socket)),
                        name(kernel::peer(&socket)),
                    );
                    match self.hand_over(id, Waiting::Kernel(arrival, socket)) {
                        Handed::Over | Handed::Full => self.counters.handed_over += 1,
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
                    self.watch_kernel(id, false);
                    return self.is_short();
                }
                // It listens no more: somebody shut it down.
                Err(_) => return self.close_listener(id),
            }
        }
    }

    /// Watches what there is to watch on a listener now.
    pub(super) fn watch(&mut self, id: ListenerId) {
        let Some(open) = self.open.get(&id) else { return };
        let full = !open.waiting.is_empty();
        let flags = if full { open.events() | EventFlags::OUT } else { open.events() };
        self.modify(&open.pair, Token::Pair(id), flags);
        self.watch_kernel(id, !full);
    }

    fn watch_kernel(&self, id: ListenerId, yes: bool) {
        let Some(kernel) = self.open.get(&id).and_then(|open| open.kernel.as_ref()) else { return };
        let flags = if yes { EventFlags::IN } else { EventFlags::empty() };
        self.modify(kernel, Token::Kernel(id), flags);
    }

    /// Enters a listener's descriptors.
    ///
    /// # Errors
    /// Those of epoll.
    pub(super) fn open_listener(&mut self, id: ListenerId, open: Open) -> Result<(), Errno> {
        self.add(&open.pair, Token::Pair(id), open.events())?;
        if let Some(kernel) = &open.kernel {
            self.add(kernel, Token::Kernel(id), EventFlags::IN)?;
        }
        if open.leads_to.is_none() {
            self.registry.insert_listener(id, open.cookie);
        }
        self.open.insert(id, open);
        Ok(())
    }

    /// Takes a listener out: its port is free, and what waits is reset.
    pub(super) fn close_listener(&mut self, id: ListenerId) {
        let uid = self.table.close(id).map_or(NOBODY, |listener| listener.application.uid);
        let Some(open) = self.open.remove(&id) else { return };
        self.counters.closed += 1;
        self.remove(&open.pair);
        if open.leads_to.is_none() {
            self.registry.remove_listener(open.cookie);
            // Published ports have this pair too: closing it here would not be its end.
            let _ = rustix::net::shutdown(&open.pair, Shutdown::Both);
        }
        for waiting in open.waiting {
            let socket = match waiting {
                Waiting::Kernel(_, socket) => socket,
                Waiting::Stream(connection, placeholder) => {
                    self.forget(connection);
                    if let Some(entry) = self.registry.remove(connection) {
                        // Whoever connected sees a reset, not an end. A page that cannot be written says less.
                        let _ = administration::cut(&entry.memory);
                    }
                    placeholder
                }
            };
            self.closer.close(uid, socket);
        }
        // What the program has said and nobody has read.
        self.closer.close(uid, open.pair);
        if let Some(kernel) = open.kernel {
            // Others may hold it too: then its entry would outlive this descriptor.
            self.remove(&kernel);
            self.freed.push((uid, kernel));
        }
    }
}

fn deliver(pair: BorrowedFd<'_>, arrival: &Arrival, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    send_message(pair, arrival.as_bytes(), descriptors, SendFlags::DONTWAIT)
}
