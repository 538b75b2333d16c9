//! The loop of the storage broker.
//!
//! 1. Take commands, then run one iteration of the broker. Events for the control plane go to it by
//!    a channel and an eventfd.
//! 2. While requests flow, repeat. Between iterations the loop yields its core (`sched_yield`): on
//!    a small machine the applications that are served may need it.
//! 3. After [`SPIN`] without a request, arm every doorbell. If nothing has arrived meanwhile, sleep
//!    on all of them, on the devices and on the doorbell of the commands; disarm after waking. So
//!    an idle broker uses no processor.
//! 4. Publish the counters before sleeping, and every [`snapshot::INTERVAL`] while busy.
//! 5. Check for applications that have hung up after each sleep, and every [`snapshot::INTERVAL`].
//! 6. A device whose queue breaks ends only its own volume: its areas answer with EIO until the
//!    process ends.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sietch_disk::broker::BrokerHost;
use sietch_disk::uring::UringOptions;
use sietch_disk::{AreaQueue, BlockingQueue, DiskQueue as _, OpenError, UringQueue};

use super::Broker;
use super::commands::{Command, EventSink};
use super::limits::DEVICE_DEPTH;
use super::metrics::AreaReport;
use crate::limits::SPIN;
use crate::snapshot::{self, Snapshot};

/// Runs a broker until [`Command::Stop`] arrives, or no sender of commands is left. `doorbell` is a
/// non-blocking descriptor that becomes readable when a command was sent. `snapshot` shows the
/// counters of the areas.
///
/// # Errors
/// Those of `poll(2)`.
pub fn run(
    commands: &Receiver<Command>,
    doorbell: &OwnedFd,
    sink: &EventSink,
    snapshot: &Snapshot<Vec<AreaReport>>,
) -> io::Result<()> {
    let mut broker = Broker::<AreaQueue>::default();
    let start = Instant::now();
    let (mut busy_at, mut published_at) = (0, 0);
    loop {
        match commands.try_recv() {
            Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
            Ok(command) => {
                apply(&mut broker, command);
                continue;
            }
            Err(TryRecvError::Empty) => {}
        }
        let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if broker.poll() {
            busy_at = now;
        }
        send_events(&mut broker, sink);
        let spinning = now - busy_at < SPIN;
        if !spinning || now - published_at >= snapshot::INTERVAL {
            published_at = now;
            snapshot.publish(broker.counters().map(|(id, counters)| AreaReport { id, counters }).collect());
            for host in broker.hosts_mut() {
                host.poll_hang_up();
            }
        }
        // A queue without a doorbell has completed its operations already.
        let completed = broker.queues().any(|queue| queue.in_flight() > 0 && queue.doorbell().is_none());
        if spinning || completed {
            std::thread::yield_now();
            continue;
        }
        sleep(&mut broker, doorbell)?;
    }
}

fn send_events(broker: &mut Broker<AreaQueue>, sink: &EventSink) {
    let mut any = false;
    for event in broker.take_events() {
        any = true;
        // The receiver may have ended.
        let _ = sink.events.send(event);
    }
    if any {
        let _ = rustix::io::write(&sink.doorbell, &1_u64.to_ne_bytes());
    }
}

/// Arms the doorbells and sleeps until one is notified, unless something has arrived meanwhile.
fn sleep(broker: &mut Broker<AreaQueue>, doorbell: &OwnedFd) -> io::Result<()> {
    let mut waiting = false;
    for host in broker.hosts_mut() {
        waiting |= host.arm();
    }
    let mut woken = false;
    if !waiting {
        let mut entries = vec![PollFd::new(doorbell, PollFlags::IN)];
        entries.extend(broker.hosts().map(|host| PollFd::from_borrowed_fd(host.as_fd(), PollFlags::IN)));
        let devices = broker.queues().filter_map(AreaQueue::doorbell);
        entries.extend(devices.map(|device| PollFd::from_borrowed_fd(device, PollFlags::IN)));
        // A lost wake-up of a device would stall a request, so a device with operations in flight
        // is polled now and then.
        let limit = (broker.in_flight() > 0).then_some(Duration::from_millis(100));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut entries, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        woken = entries.iter().any(|entry| entry.revents().intersects(PollFlags::HUP | PollFlags::ERR));
        // An eventfd or a socket: the content does not matter.
        let _ = rustix::io::read(doorbell, &mut [0_u8; 256]);
    }
    for host in broker.hosts_mut() {
        host.disarm();
        if woken {
            host.poll_hang_up();
        }
    }
    Ok(())
}

/// Opens the queue that the areas of a volume share.
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

fn apply(broker: &mut Broker<AreaQueue>, command: Command) {
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
        Command::Attach { id, volume, extents, fds, layout, uid, reply } => {
            let attached =
                BrokerHost::open(fds, layout, uid).map_err(|cause| format!("area {id}: {cause}")).and_then(
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
