//! The loop of the storage broker.
//!
//! 1. Take commands, then let the broker turn. What the control plane waits for goes to it by a
//!    channel and a bell.
//! 2. While requests flow, turn again; between turns the core is offered to whoever wants it
//!    (`sched_yield`), for on a small machine the applications that are served may need it.
//! 3. After [`SPIN`] without a request arm every doorbell. If nothing has come meanwhile, sleep on
//!    all of them, on the devices and on the command's bell; awake again, disarm. An idle broker
//!    uses no processor.
//! 4. What areas have counted is put on a board before the loop sleeps, and every [`NOTED`] while
//!    it does not.
//! 5. An application that has hung up is seen when the loop wakes from sleep, and every [`NOTED`].
//! 6. A device whose queue breaks ends nothing but its own volume: its areas answer with EIO until
//!    the process ends.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sietch_disk::broker::{BrokerFds, BrokerHost, BrokerLayout};
use sietch_disk::uring::UringOptions;
use sietch_disk::{AreaQueue, BlockingQueue, DiskQueue as _, OpenError, UringQueue};

use super::limits::DEVICE_DEPTH;
use super::{AreaCounters, AreaId, Broker, Event, Span};
use crate::run::{NOTED, SPIN};

/// What all areas have counted, for other threads to read.
#[derive(Debug, Default)]
pub struct Board(Mutex<Vec<AreaReport>>);

/// What an area did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaReport {
    /// Its grant's number.
    pub id: AreaId,
    /// What it counted.
    pub counters: AreaCounters,
}

impl Board {
    /// What was noted last.
    pub fn read(&self) -> Vec<AreaReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, reports: Vec<AreaReport>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reports;
    }
}

/// What a storage broker is told.
#[derive(Debug)]
pub enum Command {
    /// Serve areas of a volume. Its queue is made by the thread that drives it.
    Volume {
        /// Its name.
        name: String,
        /// The file or device.
        file: OwnedFd,
        /// Bytes of it.
        capacity: u64,
        /// Hears how it is driven, or why it is not.
        reply: Sender<Result<String, String>>,
    },
    /// Serve an area.
    Attach {
        /// Its grant's number.
        id: AreaId,
        /// Its volume's name.
        volume: String,
        /// Where it lies there.
        extents: Vec<Span>,
        /// Our side of its memory.
        fds: BrokerFds,
        /// The memory's shape.
        geometry: BrokerLayout,
        /// Hears whether it is served, or why not.
        reply: Sender<Result<(), String>>,
    },
    /// Give an area other extents. [`Event::Reshaped`] follows, unless they are refused.
    Reshape {
        /// Its grant's number.
        id: AreaId,
        /// Where it lies from now on.
        extents: Vec<Span>,
        /// Hears why not.
        reply: Sender<Result<(), String>>,
    },
    /// Take nothing more from an area. [`Event::Detached`] follows.
    Detach(AreaId),
    /// End the loop.
    Stop,
}

/// Who hears of events: a channel, and an eventfd that is written when something was sent.
#[derive(Debug)]
pub struct Told {
    /// The channel.
    pub events: Sender<Event>,
    /// The bell.
    pub bell: OwnedFd,
}

/// Runs a broker until [`Command::Stop`] comes, or nobody can send one any more. `bell` is a
/// non-blocking descriptor that becomes readable when a command was sent.
///
/// # Errors
/// Those of `poll(2)`.
pub fn run(commands: &Receiver<Command>, bell: &OwnedFd, told: &Told, board: &Board) -> io::Result<()> {
    let mut broker = Broker::<AreaQueue>::default();
    let start = Instant::now();
    let (mut busy_at, mut noted_at) = (0, 0);
    loop {
        match commands.try_recv() {
            Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
            Ok(command) => {
                obey(&mut broker, command);
                continue;
            }
            Err(TryRecvError::Empty) => {}
        }
        let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if broker.turn() {
            busy_at = now;
        }
        tell(&mut broker, told);
        let awake = now - busy_at < SPIN;
        if !awake || now - noted_at >= NOTED {
            noted_at = now;
            board.note(broker.counters().map(|(id, counters)| AreaReport { id, counters }).collect());
            for host in broker.hosts_mut() {
                host.look();
            }
        }
        // A queue without a doorbell has its completions there already.
        let at_hand = broker.queues().any(|queue| queue.in_flight() > 0 && queue.doorbell().is_none());
        if awake || at_hand {
            std::thread::yield_now();
            continue;
        }
        sleep(&mut broker, bell)?;
    }
}

fn tell(broker: &mut Broker<AreaQueue>, told: &Told) {
    let mut any = false;
    for event in broker.take_events() {
        any = true;
        // Nobody may want to know.
        let _ = told.events.send(event);
    }
    if any {
        let _ = rustix::io::write(&told.bell, &1_u64.to_ne_bytes());
    }
}

/// Arms the doorbells and sleeps until one rings, unless something has come meanwhile.
fn sleep(broker: &mut Broker<AreaQueue>, bell: &OwnedFd) -> io::Result<()> {
    let mut waiting = false;
    for host in broker.hosts_mut() {
        waiting |= host.arm();
    }
    let mut woken = false;
    if !waiting {
        let mut entries = vec![PollFd::new(bell, PollFlags::IN)];
        entries.extend(broker.hosts().map(|host| PollFd::from_borrowed_fd(host.as_fd(), PollFlags::IN)));
        let devices = broker.queues().filter_map(AreaQueue::doorbell);
        entries.extend(devices.map(|device| PollFd::from_borrowed_fd(device, PollFlags::IN)));
        // With something at a device a lost wake-up would cost a whole request; it is looked at now
        // and then.
        let limit = (broker.in_flight() > 0).then_some(Duration::from_millis(100));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut entries, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        woken = entries.iter().any(|entry| entry.revents().intersects(PollFlags::HUP | PollFlags::ERR));
        // An eventfd or a socket; whatever is there, it woke us.
        let _ = rustix::io::read(bell, &mut [0_u8; 256]);
    }
    for host in broker.hosts_mut() {
        host.disarm();
        if woken {
            host.look();
        }
    }
    Ok(())
}

/// A queue for several areas together.
fn open(file: OwnedFd, capacity: u64) -> Result<AreaQueue, OpenError> {
    let spare = file
        .try_clone()
        .map_err(|source| OpenError::Io { action: "duplicate the volume's descriptor", source })?;
    let options = UringOptions { depth: DEVICE_DEPTH, ..UringOptions::default() };
    match UringQueue::open(file, capacity, options) {
        Ok(queue) => Ok(AreaQueue::Uring(Box::new(queue))),
        Err(OpenError::Unavailable { cause }) => {
            Ok(AreaQueue::Blocking(BlockingQueue::open(spare, capacity)?, cause))
        }
        Err(other) => Err(other),
    }
}

fn obey(broker: &mut Broker<AreaQueue>, command: Command) {
    match command {
        Command::Volume { name, file, capacity, reply } => {
            let added = open(file, capacity).map_err(|cause| format!("volume {name}: {cause}"));
            let added = added.and_then(|queue| {
                let how = queue.description();
                let kept = |_| format!("volume {name}: it is served already");
                broker.add_volume(&name, queue).map(|()| how).map_err(kept)
            });
            let _ = reply.send(added);
        }
        Command::Attach { id, volume, extents, fds, geometry, reply } => {
            let attached =
                BrokerHost::open(fds, geometry).map_err(|cause| format!("area {id}: {cause}")).and_then(
                    |host| broker.attach(id, &volume, &extents, host).map_err(|error| error.to_string()),
                );
            let _ = reply.send(attached);
        }
        Command::Reshape { id, extents, reply } => {
            let reshaped = broker.reshape(id, &extents).map_err(|cause| format!("area {id}: {cause}"));
            let _ = reply.send(reshaped);
        }
        Command::Detach(id) => broker.detach(id),
        Command::Stop => {}
    }
}
