//! A VNIC that is served: its queue, its host, and the descriptors of its applications.
//!
//! 1. The socket service has read each request ([`VnicRequest`]), and knows from the kernel which
//!    user sent it. The VNIC answers it, over the connection on which it came (`vnic/requests.rs`).
//! 2. One epoll set has every descriptor of an application that can notify or hang up: placeholders
//!    of connections, pairs of listeners, reservations. A thread can sleep on the epoll descriptor
//!    itself, so a VNIC moves from one thread to another as one value.
//! 3. [`Vnic::poll`] handles requests and doorbells (at most every [`POLL_INTERVAL`]), runs one
//!    iteration of the host, and delivers arrivals to their listeners.
//! 4. [`Vnic::prepare_sleep`] makes it ready for a sleep on [`Vnic::doorbells`].
//!
//! Two applications on one VNIC that connect to each other get memory of their own. The service is
//! out of the path, as on the host's addresses. The socket service adds the connection to its own
//! ([`CommandSender`]).
//!
//! Layers, lowest first: `access` and `device`, `state`, `listeners`, `administration`, `requests`,
//! this file.

mod access;
mod administration;
mod device;
mod listeners;
mod requests;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Receiver;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use sietch_net::Engine;
use sietch_protocol::socket_service::{BACKLOG_CHANGE_BYTES, BacklogChange, Descriptors, receive_message};
use sietch_ring::stream::RegionSizes;
use sietch_structures::Key;

use super::host::{ApplicationUsage, Host};
use super::metrics::Counters;
use super::ports::Ports;
use crate::requests::revocation::RevocationList;
use crate::requests::vnic::VnicRequest;
use crate::sockets::CommandSender;
use listeners::hang_up;
use state::Token;

pub use access::Access;
pub use device::Device;
pub use state::Vnic;

/// Nanoseconds between two polls of the doorbells of a busy VNIC, because a poll is a system call.
/// Connections in use need no notification. An application that notifies sleeps or has slept, and
/// this delay is short beside that.
const POLL_INTERVAL: u64 = 20_000;
/// Events taken in one poll.
const EVENTS: usize = 64;
/// Requests taken in one iteration.
const REQUESTS: usize = 32;
impl<Q: Device> Vnic<Q> {
    /// Serves `queue` with `engine`. `doorbell` is a non-blocking descriptor that becomes readable
    /// when a request was sent. `socket_service` gets the connections between two applications of
    /// this VNIC.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new(
        name: String,
        access: Access,
        queue: Q,
        engine: Engine,
        requests: Receiver<VnicRequest>,
        doorbell: OwnedFd,
        socket_service: Option<CommandSender>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &doorbell, EventData::new_u64(Token::Requests.word()), EventFlags::IN)?;
        let ports = Ports::new(access.addresses.clone(), access.ports.clone());
        Ok(Self {
            name,
            access,
            region_sizes: RegionSizes::default(),
            queue,
            host: Host::new(engine, ports),
            epoll,
            requests,
            doorbell,
            socket_service,
            revoked: RevocationList::default(),
            pairs: BTreeMap::new(),
            reservations: BTreeMap::new(),
            placeholders: HashMap::new(),
            cookies: HashMap::new(),
            paused: BTreeSet::new(),
            retry_at: 0,
            next_port: 0,
            polled_at: 0,
            now: 0,
            busy: 0,
            worked: 0,
        })
    }

    /// Returns its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the control plane has revoked it.
    pub(super) fn is_revoked(&mut self) -> bool {
        self.queue.is_revoked()
    }

    /// Returns the counters, and the usage of each application.
    pub(super) fn report(&self) -> (Counters, Vec<ApplicationUsage>) {
        (self.host.counters(), self.host.usages().map(|(_, usage)| usage).collect())
    }

    /// Runs one iteration. Returns whether anything happened.
    ///
    /// # Errors
    /// The device was removed.
    pub(super) fn poll(&mut self, now: u64) -> io::Result<bool> {
        self.now = now;
        self.queue.answer_diagnostics(self.host.engine());
        let mut busy = false;
        if now.saturating_sub(self.polled_at) >= POLL_INTERVAL {
            busy |= self.poll_doorbells();
        }
        busy |= self.host.poll(&mut self.queue, now)?;
        while let Some(key) = self.host.next_removed() {
            if let Some(cookie) = self.cookies.remove(&key) {
                self.placeholders.remove(&cookie);
            }
        }
        while let Some(binding) = self.host.next_ready_listener() {
            busy = true;
            self.deliver(binding);
        }
        if !self.paused.is_empty() && self.retry_at <= now {
            busy = true;
            for binding in std::mem::take(&mut self.paused) {
                self.watch_pair(binding, false);
                self.deliver(binding);
            }
        }
        Ok(busy)
    }

    /// Prepares for a sleep. Returns false if there is something to do.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        self.host.prepare_sleep() && self.queue.arm()
    }

    /// Continues after a sleep.
    pub(super) fn wake(&mut self) {
        self.queue.disarm();
        self.host.wake();
        self.polled_at = 0;
    }

    /// Returns the descriptors to sleep on: the applications', the queue's, the control plane's.
    /// The second is `None` if the queue has no doorbell.
    pub(super) fn doorbells(&self) -> [Option<BorrowedFd<'_>>; 3] {
        [Some(self.epoll.as_fd()), self.queue.doorbell(), self.queue.diagnostics()]
    }

    /// Returns when the next iteration is due even without notifications.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        let retry = (!self.paused.is_empty()).then_some(self.retry_at);
        [self.host.next_deadline(), retry].into_iter().flatten().min()
    }

    /// Handles the events of all doorbells. Returns whether there were any.
    fn poll_doorbells(&mut self) -> bool {
        self.polled_at = self.now;
        let mut buffer = [const { MaybeUninit::uninit() }; EVENTS];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut buffer, Some(&none)) else {
            // Interrupted: the next poll is soon.
            return false;
        };
        let mut has_requests = false;
        for event in &*events {
            let flags = { event.flags };
            let hung_up = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            match Token::of({ event.data }.u64()) {
                // Last: epoll reports events in no order, and a program that closes a name and
                // binds it again has closed it before.
                Token::Requests => has_requests = true,
                Token::Connection(key) if hung_up => {
                    self.unwatch_connection(key);
                    self.host.hung_up(key);
                }
                Token::Connection(key) => self.host.notified(key),
                Token::Pair(binding) if hung_up => self.close(binding),
                Token::Pair(binding) => self.pair_event(binding, flags),
                Token::Reservation(binding) => self.close_reservation(binding),
            }
        }
        let any = !events.is_empty();
        if has_requests {
            self.take_requests();
        }
        any
    }

    fn take_requests(&mut self) {
        let _ = rustix::io::read(&self.doorbell, &mut [0_u8; 8]);
        for _ in 0..REQUESTS {
            let Ok(request) = self.requests.try_recv() else { return };
            self.answer(request);
        }
        // More may wait, for the next poll.
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }

    /// Watches a connection no longer: its hang-up would be reported in every poll.
    fn unwatch_connection(&mut self, key: Key) {
        if let Some(channel) = self.host.channel(key) {
            let _ = epoll::delete(&self.epoll, channel.doorbell());
        }
    }

    /// Handles an event of a listener's pair: a message of its application, or room.
    fn pair_event(&mut self, binding: Key, flags: EventFlags) {
        let Some(pair) = self.pairs.get(&binding) else { return };
        if flags.contains(EventFlags::IN) {
            let mut bytes = [0; BACKLOG_CHANGE_BYTES];
            let mut received = Descriptors::default();
            let found = receive_message(pair.socket.as_fd(), &mut bytes, &mut received, RecvFlags::DONTWAIT);
            match found.map(|(length, _)| BacklogChange::parse(bytes.get(..length).unwrap_or_default())) {
                Ok(Ok(change)) => {
                    let _ = self.host.listen(binding, change.backlog);
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                // An invalid message costs the application this listener.
                Ok(Err(_)) | Err(_) => return self.close(binding),
            }
        }
        if flags.contains(EventFlags::OUT) {
            self.watch_pair(binding, false);
            self.deliver(binding);
        }
    }

    /// Ends everything: the VNIC was revoked or removed, or the service ends. Sends resets to the
    /// peers, if that is still possible.
    pub(super) fn end(&mut self, error: Errno) {
        self.host.end(error);
        self.host.send_resets(&mut self.queue);
        self.pairs.values().for_each(hang_up);
        self.pairs.clear();
        self.reservations.clear();
        self.placeholders.clear();
        self.cookies.clear();
    }
}
