//! Listeners at work: how connections reach the listening program.
//!
//! 1. A listener has the service's end of its pair and the kernel's listening socket. Both are
//!    watched.
//! 2. A connection goes into the pair at once. If the pair is full, the connection waits here. Then
//!    the kernel's socket is not watched, so the kernel's own backlog fills, and the pair is
//!    watched for room.
//! 3. No more connections wait than the backlog allows (`backlog.rs`). A program that connects
//!    beyond that is sent to the kernel, which treats it as usual.
//! 4. When the last holder of the placeholder closes it, the pair hangs up. Then the port is free,
//!    and waiting connections are closed, which resets them, unless another process has a listener
//!    of the same kernel's socket.
//! 5. The kernel's socket of a closed listener is closed a little later, by another thread. Until
//!    then the kernel would still connect to it ([`closing`]).
//! 6. An invalid message costs the application this listener. So does a kernel's socket that no
//!    longer listens. Another program may have its name by now, so the socket is checked before
//!    each connection.

pub(super) mod backlog;
pub(super) mod closing;
pub(super) mod entry;
mod publish;

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use sietch_protocol::socket_service::{
    Arrival, ArrivalKind, BacklogChange, Descriptors, Name, RESET_UNTIL_ACCEPTED, receive_all, send_message,
};
use sietch_socket::kernel::is_hung_up;
use zerocopy::IntoBytes as _;

use super::kernel::blocking_calls::CallError;
use super::registry::memory;
use super::state::{FreedSocket, SocketService, Token};
use super::table::ListenerId;
use super::{kernel, limits};
use entry::{Delivery, OpenListener, PendingConnection, UNKNOWN_UID};

/// Whether a delivered connection was sent at once or had waited in the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveredCopy {
    Fresh,
    Waited,
}

impl SocketService {
    /// Returns the listener that a connection to `remote` goes to. Closes those that no longer
    /// listen.
    pub(super) fn find_listening(&mut self, namespace: u64, remote: SocketAddr) -> Option<ListenerId> {
        loop {
            let id = self.table.find(namespace, remote)?;
            match self.still_listens(id) {
                Ok(true) => return Some(id),
                Ok(false) => self.close_listener(id),
                // A program that blocks the call is not served; the kernel has its listener too.
                Err(_) => return None,
            }
        }
    }

    pub(super) fn still_listens(&self, id: ListenerId) -> Result<bool, CallError> {
        let (Some(open), Some(listener)) = (self.listeners.get(&id), self.table.listener(id)) else {
            return Ok(false);
        };
        let Some(kernel) = &open.kernel else { return Ok(false) };
        // No event has reported it yet.
        if is_hung_up(&open.pair) {
            return Ok(false);
        }
        let (name, only_ipv6) = (listener.name, listener.only_ipv6);
        self.calls.call(listener.application.uid, kernel, move |fd| kernel::listens_at(fd, name, only_ipv6))
    }

    /// Delivers a connection to a listener or to another one of its group, or lets it wait there.
    pub(super) fn deliver(&mut self, id: ListenerId, what: PendingConnection) -> Delivery {
        let group = self.group(id);
        let none_waits =
            group.iter().all(|id| self.listeners.get(id).is_none_or(|open| open.waiting.is_empty()));
        for &member in group.iter().filter(|_| none_waits) {
            match self.send(member, &what) {
                Delivery::Sent => {
                    self.close_copy(id, what, DeliveredCopy::Fresh);
                    self.watch(id);
                    return Delivery::Sent;
                }
                Delivery::Full => {}
                Delivery::Closed => self.close_listener(member),
            }
        }
        // All connections of a group wait at one listener, so that they stay in order.
        let first = group.into_iter().filter(|id| self.listeners.contains_key(id)).min();
        let Some((first, open)) = first.and_then(|id| Some((id, self.listeners.get_mut(&id)?))) else {
            self.close_copy(id, what, DeliveredCopy::Fresh);
            return Delivery::Closed;
        };
        open.waiting.push_back(what);
        self.watch(first);
        Delivery::Full
    }

    fn send(&mut self, id: ListenerId, what: &PendingConnection) -> Delivery {
        let Some(open) = self.listeners.get(&id) else { return Delivery::Closed };
        if !self.pair_has_room(id) {
            return Delivery::Full;
        }
        let pair = open.pair.as_fd();
        let sent = match what {
            PendingConnection::Kernel(arrival, socket) => send_arrival(pair, arrival, &[socket.as_fd()]),
            PendingConnection::Stream(connection, placeholder) => {
                let (Some(found), Some(entry)) =
                    (self.table.connection(*connection), self.registry.get(*connection))
                else {
                    return Delivery::Sent;
                };
                let names = found.accepted;
                let arrival = Arrival::new(ArrivalKind::Stream, names.local.into(), names.peer.into());
                let memory = &entry.memory;
                let descriptors = [placeholder.as_fd(), memory.common.as_fd(), memory.private[1].as_fd()];
                send_arrival(pair, &arrival, &descriptors)
            }
        };
        match sent {
            Ok(()) => Delivery::Sent,
            Err(Errno::AGAIN) => Delivery::Full,
            // Too many descriptors in flight, or no memory: treated like a full pair.
            Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {
                if let Some(open) = self.listeners.get_mut(&id) {
                    open.exhausted = true;
                }
                self.pause();
                Delivery::Full
            }
            Err(_) => Delivery::Closed,
        }
    }

    /// Closes this service's copy of a delivered connection.
    ///
    /// The program may have accepted and closed a socket of the kernel by then, so that it lingers.
    /// An end of a stream that has waited may hold descriptors that its client sent. The closer
    /// closes both. A fresh end is closed at once, so that the other end learns in time which side
    /// closed it.
    pub(super) fn close_copy(&self, id: ListenerId, what: PendingConnection, copy: DeliveredCopy) {
        let socket = match what {
            PendingConnection::Kernel(_, socket) => socket,
            PendingConnection::Stream(_, placeholder) if copy == DeliveredCopy::Waited => placeholder,
            PendingConnection::Stream(..) => return,
        };
        let uid = self.table.listener(id).map_or(UNKNOWN_UID, |found| found.application.uid);
        self.closer.close(uid, socket);
    }

    /// Returns whether an arrival fits into a listener's pair. A listener of a group has one at a
    /// time, because no other process can take what is queued in its pair.
    fn pair_has_room(&self, id: ListenerId) -> bool {
        let alone = self.table.of_same_name(id).nth(1).is_none() || self.group(id).len() == 1;
        let most = if alone { limits::IN_PAIR } else { 1 };
        self.listeners.get(&id).is_some_and(|open| self.in_pair(open) < most)
    }

    /// Handles an event of a pair: it has room, a message, or has hung up.
    pub(super) fn pair_event(&mut self, id: ListenerId, flags: EventFlags) {
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            return self.close_listener(id);
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP) && !self.read_messages(id) {
            return self.close_listener(id);
        }
        if flags.contains(EventFlags::OUT) {
            self.drain(id);
        }
    }

    /// Tries again after descriptors or memory were exhausted.
    pub(super) fn retry(&mut self, id: ListenerId) {
        if let Some(open) = self.listeners.get_mut(&id) {
            open.exhausted = false;
        }
        self.drain(id);
    }

    /// Sends what waits at a listener or at others of its group, and accepts more from the kernel.
    /// The members rotate: the loop may handle several members that have accepted at once, and
    /// the order of events must not decide.
    pub(super) fn drain(&mut self, id: ListenerId) {
        let group = self.group(id);
        for &holder in &group {
            while let Some(first) = self.listeners.get_mut(&holder).and_then(|open| open.waiting.pop_front())
            {
                let mut members = group.clone();
                members.sort_by_key(|&member| self.table.rotation(member));
                let mut sent = members.into_iter().map(|member| (member, self.send(member, &first)));
                let sent = sent.find(|(_, sent)| *sent != Delivery::Full);
                if let Some((member, Delivery::Sent)) = sent {
                    self.table.rotate(member);
                    self.close_copy(member, first, DeliveredCopy::Waited);
                    continue;
                }
                if let Some(open) = self.listeners.get_mut(&holder) {
                    open.waiting.push_front(first);
                }
                return match sent {
                    Some((closed, _)) => self.close_listener(closed),
                    None => self.watch(id),
                };
            }
        }
        self.accept_from_kernel(id);
    }

    /// Closes the listeners at a port whose last holder has closed them. A program needs their name
    /// before the loop has handled their hang-up.
    pub(super) fn close_hung_up(&mut self, port: u16) {
        let hung_up = |open: &OpenListener| is_hung_up(&open.pair);
        let at_port = self.table.listeners().filter(|(_, listener)| listener.name.port() == port);
        let closed: Vec<ListenerId> =
            at_port.map(|(id, _)| id).filter(|id| self.listeners.get(id).is_some_and(hung_up)).collect();
        closed.into_iter().for_each(|id| self.close_listener(id));
    }

    /// Reads the program's messages on the pair. Returns whether all were valid.
    fn read_messages(&mut self, id: ListenerId) -> bool {
        for _ in 0..limits::BATCH {
            let Some(open) = self.listeners.get(&id) else { return true };
            let uid = self.table.listener(id).map_or(UNKNOWN_UID, |listener| listener.application.uid);
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
        // The watch is edge-triggered: modifying it reports what is left.
        if let Some(open) = self.listeners.get(&id) {
            self.modify(&open.pair, Token::Pair(id), open.watched.0);
        }
        true
    }

    /// Handles an event of the kernel's socket: connections have arrived, or it no longer listens.
    /// Then it hangs up, which epoll reports in every iteration, so the listener is closed.
    pub(super) fn kernel_event(&mut self, id: ListenerId, flags: EventFlags) {
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            return self.close_listener(id);
        }
        self.accept_from_kernel(id);
    }

    /// Accepts connections from the kernel's queue, as many as may wait here.
    pub(super) fn accept_from_kernel(&mut self, id: ListenerId) {
        let mut group = self.group(id);
        group.sort_by_key(|&id| self.table.rotation(id));
        let queued = if self.waits_in_kernel(id) { self.in_kernel(id) } else { 0 };
        let here = self.waiting_here(&group);
        let backlog = self.table.listener(id).map_or(0, |listener| listener.backlog);
        let room = backlog::most_here(backlog).saturating_sub(here);
        let some = queued.min(room).min(limits::BATCH as u32);
        // First, because accepting makes room in the kernel's queue.
        self.leave_to_kernel(id, here + some);
        self.accept_some(id, &group, some);
        self.watch(id);
    }

    fn accept_some(&mut self, id: ListenerId, group: &[ListenerId], some: u32) {
        for index in 0..some as usize {
            // Round robin in the group, so that a member that never accepts holds one connection.
            let next = group.iter().cycle().skip(index).take(group.len());
            let Some(&next) = next.into_iter().find(|&&id| self.pair_has_room(id)) else { return };
            let Some(open) = self.listeners.get(&id) else { return };
            let Some(listening) = open.kernel.as_ref().filter(|_| open.waiting.is_empty()) else { return };
            let Some(uid) = self.table.listener(id).map(|listener| listener.application.uid) else { return };
            let accepted = match self.calls.call(uid, listening, |fd: BorrowedFd<'_>| kernel::accept(fd)) {
                Ok(accepted) => accepted,
                // Tried again after a pause.
                Err(CallError::NoResources | CallError::OverBudget) => Err(Errno::MFILE),
                Err(CallError::TimedOut) => {
                    // A program that blocks `accept` loses its listener. The shutdown wakes the
                    // blocked call.
                    let shut = |fd: BorrowedFd<'_>| rustix::net::shutdown(fd, Shutdown::Both);
                    let _ = self.calls.call(uid, listening, shut);
                    return self.close_listener(id);
                }
            };
            match accepted {
                Ok(socket) => {
                    let name = |address: Option<SocketAddr>| address.map_or(Name::NONE, Name::from);
                    // The program does not have this socket yet, so it cannot block these calls.
                    let (local, peer) = (name(kernel::local(&socket)), name(kernel::peer(&socket)));
                    let mut arrival = Arrival::new(ArrivalKind::Kernel, local, peer);
                    if kernel::reset_on_close(&socket) {
                        arrival.flags |= RESET_UNTIL_ACCEPTED;
                    }
                    match self.deliver(next, PendingConnection::Kernel(arrival, socket)) {
                        Delivery::Sent | Delivery::Full => {
                            self.counters.kernel_accepted += 1;
                            self.table.rotate(next);
                        }
                        Delivery::Closed => return self.close_listener(id),
                    }
                }
                Err(Errno::AGAIN) => return,
                // The client has closed, or the network failed (accept(2)).
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
                    if let Some(open) = self.listeners.get_mut(&id) {
                        open.exhausted = true;
                    }
                    return self.pause_for_resources();
                }
                // It no longer listens: a program shut it down.
                Err(_) => return self.close_listener(id),
            }
        }
    }

    /// Updates what is watched on a listener and on the others of its group, and gives the kernel
    /// its part of the backlog.
    pub(super) fn watch(&mut self, id: ListenerId) {
        let group = self.group(id);
        let here = self.waiting_here(&group);
        let backlog = self.table.listener(id).map_or(0, |listener| listener.backlog);
        self.leave_to_kernel(id, here);
        let room = here < backlog::most_here(backlog);
        let waits =
            group.iter().any(|id| self.listeners.get(id).is_some_and(|open| !open.waiting.is_empty()));
        for id in group {
            let fits = self.pair_has_room(id);
            let Some(open) = self.listeners.get_mut(&id) else { continue };
            let accepts = room && fits && !waits && !open.exhausted;
            // Edge-triggered: one event for each arrival that is taken, not one while there is
            // room.
            let wakes = !open.exhausted && (waits || !room || !fits || backlog::is_tight(backlog, here));
            let once = EventFlags::OUT | EventFlags::ET;
            let flags = if wakes { open.events() | once } else { open.events() };
            let (before, accepted) = std::mem::replace(&mut open.watched, (flags, accepts));
            let Some(open) = self.listeners.get(&id) else { continue };
            if before != flags {
                self.modify(&open.pair, Token::Pair(id), flags);
            }
            if let Some(kernel) = open.kernel.as_ref().filter(|_| accepted != accepts) {
                let flags = if accepts { EventFlags::IN } else { EventFlags::empty() };
                self.modify(kernel, Token::Kernel(id), flags);
            }
        }
    }

    /// Opens a listener: stores and watches its descriptors.
    ///
    /// # Errors
    /// `ENOBUFS`: the kernel's socket has too many listeners. Those of epoll.
    pub(super) fn open_listener(&mut self, id: ListenerId, mut open: OpenListener) -> Result<(), Errno> {
        let members = self.listeners.values().filter(|other| other.group == open.group).count();
        let entered = if members >= limits::LISTENERS_OF_ONE_SOCKET {
            self.counters.limited += 1;
            Err(Errno::NOBUFS)
        } else {
            open.watched = (open.events(), true);
            self.watch_both(id, &open)
        };
        if let Err(error) = entered {
            let uid = self.table.listener(id).map_or(UNKNOWN_UID, |listener| listener.application.uid);
            self.closer.close_all(uid, open.kernel.into_iter().chain([open.pair]).collect());
            return Err(error);
        }
        if open.leads_to.is_none() {
            self.registry.insert_listener(id, open.cookie);
        }
        self.listeners.insert(id, open);
        self.watch(id);
        Ok(())
    }

    fn watch_both(&self, id: ListenerId, open: &OpenListener) -> Result<(), Errno> {
        self.add(&open.pair, Token::Pair(id), open.events())?;
        let Some(kernel) = &open.kernel else { return Ok(()) };
        // Others may hold the pair, so its epoll entry would outlive this descriptor.
        self.add(kernel, Token::Kernel(id), EventFlags::IN).inspect_err(|_| self.remove(&open.pair))
    }

    /// Closes a listener: its port is free, and waiting connections are reset, or go to another one
    /// of its group.
    pub(super) fn close_listener(&mut self, id: ListenerId) {
        let successor = self.group(id).get(1).copied();
        let listener = self.table.close(id);
        let uid = listener.as_ref().map_or(UNKNOWN_UID, |listener| listener.application.uid);
        let Some(open) = self.listeners.remove(&id) else { return };
        self.counters.closed += 1;
        self.remove(&open.pair);
        if open.leads_to.is_none() {
            self.registry.remove_listener(open.cookie);
            // Published ports share this pair, so closing this descriptor would not end it.
            let _ = rustix::net::shutdown(&open.pair, Shutdown::Both);
        }
        match successor.and_then(|successor| self.listeners.get_mut(&successor)) {
            Some(successor) => successor.waiting.extend(open.waiting),
            None => {
                let left = self.kernel_backlogs.remove(&open.group);
                let backlog = listener.as_ref().map_or(0, |listener| listener.backlog);
                if let Some(kernel) =
                    open.kernel.as_ref().filter(|_| left.is_some_and(|left| left != backlog))
                {
                    let restore = move |fd: BorrowedFd<'_>| kernel::restore_backlog(fd, backlog);
                    let _ = self.calls.call(uid, kernel, restore);
                }
                open.waiting.into_iter().for_each(|waiting| self.reset_waiting(uid, waiting));
            }
        }
        // Messages of the program may be unread in it.
        self.closer.close(uid, open.pair);
        if let Some(kernel) = open.kernel {
            // Others may hold it too, so its epoll entry would outlive this descriptor.
            self.remove(&kernel);
            // With a successor the kernel's socket still listens.
            let mark = listener.filter(|_| successor.is_none()).map(|listener| self.closing.add(listener));
            self.to_close.push(FreedSocket { uid, socket: kernel, mark });
        }
        if let Some(successor) = successor {
            self.watch(successor);
            // If it has room, this reports an event, and it takes what waits.
            if let Some(open) = self.listeners.get(&successor) {
                self.modify(&open.pair, Token::Pair(successor), open.watched.0);
            }
        }
    }

    /// Closes a connection that will not be accepted.
    fn reset_waiting(&mut self, uid: u32, waiting: PendingConnection) {
        let socket = match waiting {
            PendingConnection::Kernel(_, socket) => socket,
            PendingConnection::Stream(connection, placeholder) => {
                self.forget(connection);
                if let Some(entry) = self.registry.remove(connection) {
                    // The client sees a reset, not an end. If the page cannot be written, it sees
                    // an end.
                    let _ = memory::reset(&entry.memory);
                }
                placeholder
            }
        };
        self.closer.close(uid, socket);
    }
}

fn send_arrival(
    pair: BorrowedFd<'_>,
    arrival: &Arrival,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    send_message(pair, arrival.as_bytes(), descriptors, SendFlags::DONTWAIT)
}
