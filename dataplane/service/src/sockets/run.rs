//! The loop of the socket service.
//!
//! 1. It sleeps until a program connects, a request or a connection arrives, a socket hangs up, or
//!    a command comes. So an idle service uses no processor. While there are connections whose end
//!    the kernel does not report, it wakes every [`limits::SWEEP`] to find those that are closed.
//! 2. Each iteration takes what is ready, a bounded amount of each kind.
//! 3. A request is one message (`intake.rs`): it is received, judged and answered, and its
//!    connection is closed. A request that does not arrive in time is closed as well.
//! 4. When descriptors or memory are exhausted, the service pauses for a moment and tries again.
//!
//! No input ends the loop: an error of an application's socket ends only that socket.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventFlags};
use rustix::io::Errno;
use sietch_protocol::socket_service::Rules;
use sietch_ring::stream::RegionSizes;

use super::commands::{Command, LocalConnection};
use super::limits;
use super::metrics::SocketReport;
use super::state::{FreedSocket, PendingRequest, SocketService, Token};
use super::state_transfer;
use super::table::ListenerId;
use crate::snapshot::Snapshot;

/// What the service needs at its start.
#[derive(Debug)]
pub struct Options {
    /// The socket on which programs connect.
    pub socket: Source,
    /// The socket on which administrators connect ([`sietch_protocol::administration`]). Without it
    /// there are no administrators. A predecessor passes its own.
    pub administrators: Option<OwnedFd>,
    /// Which users may listen and connect where.
    pub rules: Rules,
    /// The sizes of the rings of connections.
    pub region_sizes: RegionSizes,
}

/// Where the socket on which programs connect comes from.
#[derive(Debug)]
pub enum Source {
    /// A listening Unix SEQPACKET socket.
    New(OwnedFd),
    /// A connection to a service that answered
    /// [`sietch_protocol::socket_service::ReplyKind::Handover`]: its socket, and all its state.
    Predecessor(OwnedFd),
}

/// Serves until [`Command::Stop`] arrives, no sender of commands is left, or a successor has taken
/// over. `doorbell` is a non-blocking descriptor that becomes readable when a command was sent.
/// `snapshot` shows what the service has and counts.
///
/// # Errors
/// Those of the start, and of epoll itself.
pub fn run(
    options: Options,
    commands: &Receiver<Command>,
    doorbell: &OwnedFd,
    snapshot: &Snapshot<SocketReport>,
) -> io::Result<()> {
    let Options { socket, administrators, rules, region_sizes } = options;
    let mut service = match socket {
        Source::New(socket) => SocketService::new(socket, administrators, rules, region_sizes)?,
        Source::Predecessor(predecessor) => {
            let begun = state_transfer::begin(predecessor.as_fd())?;
            let mut service = SocketService::new(begun.socket, begun.administrators, rules, region_sizes)?;
            begun.closes.into_iter().for_each(|closes| service.registry.inherit(closes));
            service.inherit(predecessor.as_fd())?;
            service
        }
    };
    service.add(&service.server, Token::Server, EventFlags::IN)?;
    if let Some(administrators) = &service.administrators {
        service.add(administrators, Token::Administrators, EventFlags::IN)?;
    }
    service.add(doorbell, Token::Commands, EventFlags::IN)?;
    if let Some(closes) = service.registry.close_events() {
        service.add(closes, Token::Closes, EventFlags::IN)?;
    }
    let mut events = Vec::with_capacity(256);
    loop {
        let now = Instant::now();
        service.run_timers(now);
        service.close_freed();
        service.close_connections();
        service.answered.clear();
        snapshot.publish(service.report());
        let limit = service.next_deadline().map(|at| at.saturating_duration_since(now));
        let limit = limit.and_then(|limit| Timespec::try_from(limit + Duration::from_millis(1)).ok());
        events.clear();
        match epoll::wait(&service.epoll, rustix::buffer::spare_capacity(&mut events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Commands first: epoll reports events in no order, and a request may depend on a command.
        service.apply_commands(commands);
        // Then new requests, if epoll may have no room to report them among all the waiting ones.
        let has_accepted = service.is_crowded() && service.retry_at.is_none();
        if has_accepted {
            service.accept_requests();
        }
        for event in &events {
            if service.stopping {
                break;
            }
            let Event { flags, data } = *event;
            match Token::of(data.u64()) {
                Some(Token::Server) if has_accepted => {}
                Some(Token::Server) => service.accept_requests(),
                Some(Token::Administrators) => service.accept_administrators(),
                Some(Token::Commands) => {
                    let _ = rustix::io::read(doorbell, &mut [0_u8; 64]);
                }
                Some(Token::Request(number)) => service.read_request(number),
                Some(Token::Pair(id)) => service.pair_event(id, flags),
                Some(Token::Kernel(id)) => service.kernel_event(id, flags),
                Some(Token::Closes) => service.reap_soon(),
                None => {}
            }
        }
        if service.stopping {
            service.close_connections();
            return Ok(());
        }
    }
}

impl SocketService {
    fn apply_commands(&mut self, commands: &Receiver<Command>) {
        loop {
            match commands.try_recv() {
                Ok(Command::Rules(rules)) => self.rules = rules,
                Ok(Command::Vnics(vnics)) => self.vnics = Some(vnics),
                Ok(Command::Sweep) => self.sweep_now(),
                Ok(Command::AddConnection(local)) => self.add_connection(*local),
                Ok(Command::FinishRevocation(request, on_vnics)) => {
                    self.finish_revocation(*request, on_vnics)
                }
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return self.stopping = true,
                Err(TryRecvError::Empty) => return,
            }
        }
    }

    /// Adds a connection that was made on a VNIC. So it is found after exec and in messages,
    /// listed, revoked, and transferred to a successor. Beyond the limits it works without all of
    /// that.
    fn add_connection(&mut self, local: LocalConnection) {
        if !self.has_descriptors(local.connection.client.uid, limits::DESCRIPTORS_PER_CONNECTION) {
            return;
        }
        if let Some(id) = self.table.add(local.connection) {
            // Its placeholders are not watched here: a sweep finds that it is closed.
            self.registry.insert(id, local.memory, local.cookies, [None, None]);
        }
    }

    /// Has the sockets closed that kept a name.
    pub(super) fn close_freed(&mut self) {
        for FreedSocket { uid, socket, mark } in self.to_close.drain(..) {
            self.closer.close_marked(uid, socket, mark);
        }
    }

    /// Does what is due at `now`.
    fn run_timers(&mut self, now: Instant) {
        while let Some((&number, request)) = self.pending.first_key_value()
            && request.until <= now
        {
            if let Some(PendingRequest { socket, caller, .. }) = self.take_request(number) {
                self.reject(caller.uid, socket);
            }
        }
        let many = self.registry.added() >= limits::SWEEP_AFTER.max(self.registry.len() / 2);
        if self.registry.unwatched() > 0 && (many || now - self.swept_at >= limits::SWEEP) {
            self.sweep_now();
        }
        if self.reap_at.is_some_and(|at| at <= now) {
            self.reap();
        }
        if self.retry_at.is_some_and(|until| until <= now) {
            self.retry_at = None;
            self.modify(&self.server, Token::Server, EventFlags::IN);
            let all: Vec<ListenerId> = self.listeners.keys().copied().collect();
            all.into_iter().for_each(|id| self.retry(id));
        }
    }

    /// Returns when [`SocketService::run_timers`] has something to do.
    fn next_deadline(&self) -> Option<Instant> {
        // Requests expire in the order of their numbers.
        let request = self.pending.first_key_value().map(|(_, request)| request.until);
        let sweep = (self.registry.unwatched() > 0).then(|| self.swept_at + limits::SWEEP);
        [request, sweep, self.retry_at, self.reap_at].into_iter().flatten().min()
    }

    /// Schedules the removal of closed connections. Where one placeholder is closed, its peer and
    /// others are about to be.
    fn reap_soon(&mut self) {
        self.reap_at.get_or_insert_with(|| Instant::now() + limits::REAP_DELAY);
        if let Some(closes) = self.registry.close_events() {
            self.modify(closes, Token::Closes, EventFlags::empty());
        }
    }

    fn report(&self) -> SocketReport {
        SocketReport {
            applications: self.table.applications().count(),
            listeners: self.listeners.len(),
            connections: self.registry.len(),
            requests: self.pending.len(),
            counters: self.counters,
        }
    }
}
