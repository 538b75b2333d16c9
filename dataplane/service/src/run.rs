//! The loop of a service core.
//!
//! 1. Take commands, then let the switch turn.
//! 2. While frames flow, turn again; between turns the core is offered to whoever wants it
//!    (`sched_yield`), for on a small machine the applications that are served may need it.
//! 3. After [`SPIN`] without a frame arm every doorbell. If nothing has come meanwhile, sleep on
//!    all of them and on the command's bell; awake again, disarm. An idle switch uses no processor.
//!    A port that waits for its rate rings for nothing: the loop sleeps until it may go on.
//! 4. What ports have counted is put on a board before the loop sleeps, and every [`NOTED`] while
//!    it does not: who shows it wakes nobody.
//! 5. A port whose peer hung up, or whose link was revoked, is taken out and reported as gone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sietch_nic::shm::{Endpoint, EndpointFds, LinkLayout};
use sietch_nic::xdp::VnicSpec;

use crate::counters::PortCounters;
use crate::switch::{PortId, Switch};

/// Nanoseconds without a frame after which the loop sleeps: several times what a wake-up costs (10
/// to 15 us).
pub const SPIN: u64 = 50_000;

/// Nanoseconds between two notes on the board of a busy loop: whoever watches looks once a second.
pub const NOTED: u64 = 100_000_000;

/// What all ports have counted, for other threads to read.
#[derive(Debug, Default)]
pub struct Board(Mutex<Vec<PortReport>>);

impl Board {
    /// What was noted last.
    pub fn read(&self) -> Vec<PortReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, reports: Vec<PortReport>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reports;
    }
}

/// What a service core is told.
#[derive(Debug)]
pub enum Command {
    /// Add a port.
    Add {
        /// Its grant's number.
        id: PortId,
        /// What its holder may do.
        spec: VnicSpec,
        /// Our side of its link.
        fds: EndpointFds,
        /// The link's shape.
        geometry: LinkLayout,
        /// The link's MTU.
        mtu: usize,
        /// Hears whether it was added, or why not.
        reply: Sender<Result<(), String>>,
    },
    /// Give a port other rules.
    Update {
        /// Its grant's number.
        id: PortId,
        /// What its holder may do from now on.
        spec: VnicSpec,
        /// Hears whether it was done, or why not.
        reply: Sender<Result<(), String>>,
    },
    /// Take a port out.
    Remove(PortId),
    /// Report all ports.
    Report(Sender<Vec<PortReport>>),
    /// End the loop.
    Stop,
}

/// What a port did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// Its grant's number.
    pub id: PortId,
    /// What it counted.
    pub counters: PortCounters,
}

/// Runs a switch until [`Command::Stop`] comes, or nobody can send one any more. `bell` is a
/// non-blocking descriptor that becomes readable when a command was sent (an eventfd, a socket);
/// `gone` hears of each port that ended by itself; `board` shows what ports count.
///
/// # Errors
/// Those of `poll(2)`.
pub fn run(
    commands: &Receiver<Command>,
    bell: &OwnedFd,
    gone: &Sender<PortId>,
    board: &Board,
) -> io::Result<()> {
    let mut switch = Switch::<Endpoint>::default();
    let start = Instant::now();
    let (mut busy_at, mut noted_at) = (0, 0);
    loop {
        match commands.try_recv() {
            Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
            Ok(command) => {
                obey(&mut switch, command);
                continue;
            }
            Err(TryRecvError::Empty) => {}
        }
        let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if switch.turn(now) {
            busy_at = now;
        }
        for id in switch.take_dead() {
            // Nobody may want to know.
            let _ = gone.send(id);
        }
        let awake = now - busy_at < SPIN;
        if !awake || now - noted_at >= NOTED {
            noted_at = now;
            board.note(report(&switch));
        }
        if awake {
            std::thread::yield_now();
            continue;
        }
        sleep(&mut switch, bell, now)?;
        let over: Vec<PortId> =
            switch.queues_mut().filter_map(|(id, queue)| (!queue.is_alive()).then_some(id)).collect();
        for id in over {
            switch.remove(id);
            let _ = gone.send(id);
        }
    }
}

/// Arms the doorbells and sleeps until one rings or a port's rate lets it go on, unless something
/// has come meanwhile.
fn sleep(switch: &mut Switch<Endpoint>, bell: &OwnedFd, now: u64) -> io::Result<()> {
    let mut waiting = false;
    for queue in switch.watched_queues_mut() {
        waiting |= queue.arm();
    }
    if !waiting {
        let limit = switch.held_until().map(|until| Duration::from_nanos(until.saturating_sub(now)));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut entries = vec![PollFd::new(bell, PollFlags::IN)];
        entries.extend(switch.queues().map(|queue| PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN)));
        match poll(&mut entries, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // An eventfd or a socket; whatever is there, it woke us.
        let _ = rustix::io::read(bell, &mut [0_u8; 256]);
    }
    // Of ports that are not armed too: one may have rung before it had to wait.
    for (_, queue) in switch.queues_mut() {
        queue.disarm();
    }
    Ok(())
}

fn report(switch: &Switch<Endpoint>) -> Vec<PortReport> {
    let one = |id| switch.counters(id).map(|counters| PortReport { id, counters });
    switch.ids().filter_map(one).collect()
}

fn obey(switch: &mut Switch<Endpoint>, command: Command) {
    match command {
        Command::Add { id, spec, fds, geometry, mtu, reply } => {
            let added = Endpoint::open(fds, geometry, spec.host_mac, mtu)
                .map_err(|error| format!("port {id}: {error}"))
                .and_then(|queue| switch.add(id, spec, queue).map_err(|error| error.to_string()));
            let _ = reply.send(added);
        }
        Command::Update { id, spec, reply } => {
            let updated = match switch.update(id, spec) {
                Ok(true) => Ok(()),
                Ok(false) => Err(format!("port {id}: there is no such port")),
                Err(error) => Err(error.to_string()),
            };
            let _ = reply.send(updated);
        }
        Command::Remove(id) => {
            switch.remove(id);
        }
        Command::Report(reply) => {
            let _ = reply.send(report(switch));
        }
        Command::Stop => {}
    }
}
