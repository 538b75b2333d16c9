//! The cores of a store with several shards: what they tell each other, and what each does with it.
//!
//! 1. Each core is a thread with a reactor. Core 0, the [`coordinator`], writes the one log; the
//!    others are [`member`]s. All have a shard, and serve clients.
//! 2. Cores share nothing. They exchange messages by value ([`message`]), and messages from one
//!    core to another arrive in order ([`links`]). All rules rest on that order.
//! 3. A core takes messages at the beginning of an iteration and sends at its end: first effects
//!    and dumps, then commands, replies and announcements for other shards, then its own shard if
//!    it is wanted.
//! 4. Commands of other shards' clients count as input: they wait while no command may run, and
//!    while another core has the shard.
//! 5. What a shard announces to clients of others shows what it has done. So it leaves its core
//!    when a reply would: once all effects before it are durable.
//! 6. A core reports the announcements that it has delivered to its clients. While more than
//!    [`MOST_UNDELIVERED`] bytes for one core are undelivered, the sender runs no command outside a
//!    section: a slow core holds back those that announce, and no announcement is lost. A core
//!    delivers whenever it has its shard, also while it runs no command itself, so two cores never
//!    wait for each other.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use sietch::disk::DiskQueue;

use super::log_writer::LogWriter;
use super::transport::spread::Intake;
use crate::foundation::settings::Durability;
use crate::shard::{Announcements, Now, Placement, Shard};

pub(super) mod channels;
mod coordinator;
pub(super) mod links;
mod member;
pub(super) mod message;

use coordinator::Coordinator;
use links::Links;
use member::Member;
use message::Message;

/// Messages that one iteration takes: enough for a few of each peer, few enough that clients are
/// served in between.
const MESSAGES_AT_ONCE: usize = 256;

/// Bytes of announcements for one core that may be undelivered: those of many iterations, and less
/// than one subscriber may have outstanding.
const MOST_UNDELIVERED: u64 = 8 << 20;

/// What a core does beside serving its clients.
enum Role {
    Coordinator(Coordinator),
    Member(Member),
}

/// A core's side of everything that concerns the other cores.
pub(super) struct Cores {
    placement: Placement,
    links: Box<dyn Links>,
    role: Role,
    /// Messages for the shard, which wait until commands may run.
    inbox: VecDeque<(usize, Message)>,
    /// Announcements for other shards, each with the position of the log that it waits for.
    announced: VecDeque<(u64, usize, Announcements)>,
    /// By core: bytes of announcements that it has not delivered.
    undelivered: Vec<u64>,
    /// Whether the last flush has passed on everything.
    passed_on: bool,
}

impl Cores {
    /// The core of this shard, with its ends of the queues to all others.
    pub(super) fn new(placement: Placement, durability: Durability, links: Box<dyn Links>) -> Self {
        let role = match placement.own() {
            0 => Role::Coordinator(Coordinator::new(placement.count())),
            _ => Role::Member(Member::new(durability)),
        };
        Self {
            placement,
            links,
            role,
            inbox: VecDeque::new(),
            announced: VecDeque::new(),
            undelivered: vec![0; placement.count()],
            passed_on: true,
        }
    }

    /// The other cores.
    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.placement.own();
        (0..self.placement.count()).filter(move |&peer| peer != own)
    }

    /// Takes what has arrived. `shard` is not there while the
    /// coordinator has it.
    pub(super) fn receive<D: DiskQueue>(
        &mut self,
        shard: &mut Option<Box<Shard>>,
        log_writer: &mut Option<LogWriter<D>>,
        intake: &mut Intake,
    ) -> bool {
        let mut count = 0;
        while count < MESSAGES_AT_ONCE
            && let Some((from, message)) = self.links.receive()
        {
            count += 1;
            match (message, &mut self.role, &mut *shard) {
                (
                    message @ (Message::Requests(_) | Message::Replies(_) | Message::Announcements(_)),
                    _,
                    _,
                ) => self.inbox.push_back((from, message)),
                (Message::Delivered(bytes), ..) => self.undelivered[from] -= bytes,
                (Message::Client(client), _, _) => intake.arrive(client),
                (message, Role::Member(member), shard) => member.take(message, shard),
                (message, Role::Coordinator(coordinator), Some(shard)) => {
                    coordinator.take(from, message, shard, log_writer.as_mut());
                }
                // The coordinator's own shard is always here.
                (_, Role::Coordinator(_), None) => {}
            }
        }
        count > 0
    }

    /// Has the shard act on what other shards have sent. Commands may run.
    pub(super) fn serve(&mut self, shard: &mut Shard, now: Now) -> bool {
        let busy = !self.inbox.is_empty();
        for (from, message) in self.inbox.drain(..) {
            match message {
                Message::Requests(requests) => shard.serve_requests(from, requests, now),
                Message::Replies(replies) => shard.accept_replies(from, replies, now),
                Message::Announcements(list) => deliver(shard, from, list, &mut *self.links, now),
                _ => {}
            }
        }
        busy
    }

    /// Sends the shard's clients what others have announced, while no command may run. Returns
    /// whether there was anything.
    pub(super) fn deliver(&mut self, shard: &mut Shard, now: Now) -> bool {
        let before = self.inbox.len();
        for (from, message) in std::mem::take(&mut self.inbox) {
            match message {
                Message::Announcements(list) => deliver(shard, from, list, &mut *self.links, now),
                message => self.inbox.push_back((from, message)),
            }
        }
        self.inbox.len() < before
    }

    /// Runs an exclusive section, if everything is here for it. `held`: the log has no room.
    pub(super) fn run_section<D: DiskQueue>(
        &mut self,
        shard: &mut Option<Box<Shard>>,
        log_writer: &mut Option<LogWriter<D>>,
        held: bool,
        now: Now,
    ) -> bool {
        match &mut self.role {
            Role::Coordinator(coordinator) => coordinator.run_section(shard, log_writer.as_mut(), held, now),
            Role::Member(_) => false,
        }
    }

    /// The shards of all members, if they are here.
    pub(super) fn others(&mut self) -> &mut [Box<Shard>] {
        match &mut self.role {
            Role::Coordinator(coordinator) => coordinator.others(),
            Role::Member(_) => &mut [],
        }
    }

    /// Does a member's part of what the log writer does elsewhere: sends effects and seals replies.
    pub(super) fn send_effects(&mut self, shard: &mut Shard) -> bool {
        match &mut self.role {
            Role::Coordinator(_) => {
                // There is no log.
                shard.journal().clear();
                shard.seal(0);
                false
            }
            Role::Member(member) => member.iterate(shard, &mut *self.links),
        }
    }

    /// Sends what the shard has for others, what the log has for members, and new clients. Gives
    /// the shard to the coordinator, or others back. `held`: no command may run.
    pub(super) fn conclude<D: DiskQueue>(
        &mut self,
        shard: &mut Option<Box<Shard>>,
        log_writer: &mut Option<LogWriter<D>>,
        intake: &mut Intake,
        held: bool,
    ) {
        for (core, client) in intake.take_leaving() {
            self.links.send(core, Message::Client(client));
        }
        let position = self.position(log_writer.as_ref());
        if let Some(shard) = shard {
            for peer in self.peers() {
                exchange(shard, peer, &mut *self.links);
                if let Some((position, _)) = position
                    && let Some(list) = shard.take_announcements(peer)
                {
                    self.undelivered[peer] += list.bytes();
                    self.announced.push_back((position, peer, list));
                }
            }
            match &mut self.role {
                Role::Coordinator(coordinator) => {
                    coordinator.conclude(shard, log_writer.as_mut(), held, &mut *self.links);
                }
                Role::Member(member) => member.ask(shard, &mut *self.links),
            }
        }
        let failed = match &self.role {
            Role::Coordinator(_) => log_writer.as_ref().is_some_and(LogWriter::has_failed),
            Role::Member(member) => member.has_failed(),
        };
        if failed {
            // What they show was lost. Later ones wait for nothing.
            for (_, peer, list) in self.announced.iter_mut().filter(|(wanted, ..)| *wanted > 0) {
                self.undelivered[*peer] -= list.bytes();
                list.forget_shown();
                self.undelivered[*peer] += list.bytes();
            }
        }
        if let Some((_, durable)) = position {
            while let Some((_, peer, list)) = self.announced.pop_front_if(|(wanted, ..)| *wanted <= durable) {
                self.links.send(peer, Message::Announcements(list));
            }
        }
        if let Role::Member(member) = &mut self.role {
            member.lend(shard, &mut *self.links);
            // A shard that is away may have replies that can leave.
            let passed_on = self.passed_on && self.inbox.is_empty() && shard.is_some();
            member.report_stopped(passed_on, &mut *self.links);
        }
    }

    /// The position in the log of what the shard has done, and the last that is durable. `None`
    /// while effects of this core have no position yet.
    fn position<D: DiskQueue>(&self, log_writer: Option<&LogWriter<D>>) -> Option<(u64, u64)> {
        match &self.role {
            Role::Coordinator(_) => log_writer.map_or(Some((0, 0)), LogWriter::own_position),
            Role::Member(member) => Some(member.position()),
        }
    }

    /// Passes messages on. If some are left, their receivers wake this core once there is room.
    pub(super) fn flush(&mut self) {
        self.passed_on = self.links.flush();
    }

    /// See [`Links::arm`].
    pub(super) fn arm(&mut self) -> bool {
        self.links.arm()
    }

    /// See [`Links::disarm`].
    pub(super) fn disarm(&mut self) {
        self.links.disarm();
    }

    /// See [`Links::wait`].
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.links.wait(timeout)
    }

    /// Whether commands wait for the log, as far as a member knows, or for another core to deliver.
    pub(super) fn is_held(&self) -> bool {
        self.awaits_delivery() || matches!(&self.role, Role::Member(member) if member.is_held())
    }

    /// Whether another core must deliver announcements before commands may run.
    fn awaits_delivery(&self) -> bool {
        self.undelivered.iter().any(|&bytes| bytes > MOST_UNDELIVERED)
    }

    /// Whether only a message can let this core go on: its shard is away, or it is a member that
    /// waits for the log or for another core to deliver.
    pub(super) fn waits_for_message(&self, has_shard: bool) -> bool {
        !has_shard || matches!(&self.role, Role::Member(_)) && self.is_held()
    }

    /// Whether replies or commands wait for another core.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaits_delivery()
            || match &self.role {
                Role::Coordinator(coordinator) => coordinator.is_waiting(),
                Role::Member(member) => member.is_awaited(),
            }
    }

    /// Whether the next iteration has something to do although nothing arrives.
    pub(super) fn has_more(&self) -> bool {
        match &self.role {
            Role::Coordinator(_) => false,
            Role::Member(member) => member.has_more_to_dump(),
        }
    }

    /// Whether all shards are here ([`Cores::shown`]). If not, this asks for them: they are here
    /// between some later iteration and the next.
    pub(super) fn show(&mut self) -> bool {
        match &mut self.role {
            Role::Coordinator(coordinator) => coordinator.show(),
            Role::Member(_) => false,
        }
    }

    /// The shards of all members, if they are here.
    pub(super) fn shown(&self) -> &[Box<Shard>] {
        match &self.role {
            Role::Coordinator(coordinator) => coordinator.shown(),
            Role::Member(_) => &[],
        }
    }

    /// Has all members stop, if this is the coordinator.
    pub(super) fn stop(&mut self) {
        if let Role::Coordinator(coordinator) = &mut self.role {
            coordinator.stop(&mut *self.links);
        }
    }

    /// Has all members end, if this is the coordinator.
    pub(super) fn end(&mut self) {
        if let Role::Coordinator(coordinator) = &mut self.role {
            coordinator.end(&mut *self.links);
            self.flush();
        }
    }

    /// Whether this core must take no input any more: the coordinator has said so.
    pub(super) fn is_stopping(&self) -> bool {
        matches!(&self.role, Role::Member(member) if member.is_stopping())
    }

    /// Whether this core is a member that must end.
    pub(super) fn has_ended(&self) -> bool {
        matches!(&self.role, Role::Member(member) if member.has_ended())
    }

    /// Whether all members have stopped, if this is the coordinator.
    pub(super) fn all_stopped(&self) -> bool {
        matches!(&self.role, Role::Coordinator(coordinator) if coordinator.all_stopped())
    }
}

/// Sends a shard's clients what another core has announced, and reports that to it.
fn deliver(shard: &mut Shard, from: usize, list: Announcements, links: &mut dyn Links, now: Now) {
    links.send(from, Message::Delivered(list.bytes()));
    shard.accept_announcements(from, list, now);
}

/// Sends what a shard has for another.
fn exchange(shard: &mut Shard, peer: usize, links: &mut dyn Links) {
    if let Some(requests) = shard.take_requests(peer) {
        links.send(peer, Message::Requests(requests));
    }
    if let Some(replies) = shard.take_replies(peer) {
        links.send(peer, Message::Replies(replies));
    }
}
