//! The loop of the software switch.
//!
//! 1. Take commands, then run one iteration of the switch.
//! 2. While frames flow, repeat. Between iterations the loop yields its core (`sched_yield`): on a
//!    small machine the applications that are served may need it.
//! 3. After [`SPIN`] without a frame, arm every doorbell. If nothing has arrived meanwhile, sleep
//!    on all of them and on the doorbell of the commands; disarm after waking. So an idle switch
//!    uses no processor. A port that waits for its rate is not armed: the loop sleeps until it may
//!    continue.
//! 4. Publish the counters before sleeping, and every [`snapshot::INTERVAL`] while busy. So a
//!    reader never wakes the loop.
//! 5. Remove and report a port whose peer hung up, or whose link was revoked.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sietch_nic::shm::Endpoint;

use super::Switch;
use super::commands::Command;
use super::id::PortId;
use super::metrics::PortReport;
use crate::limits::SPIN;
use crate::snapshot::{self, Snapshot};

/// Runs a switch until [`Command::Stop`] arrives, or no sender of commands is left. `doorbell` is a
/// non-blocking descriptor that becomes readable when a command was sent (an eventfd, a socket).
/// `ended` receives each port that ended by itself; `snapshot` shows the counters of the ports.
///
/// # Errors
/// Those of `poll(2)`.
pub fn run(
    commands: &Receiver<Command>,
    doorbell: &OwnedFd,
    ended: &Sender<PortId>,
    snapshot: &Snapshot<Vec<PortReport>>,
) -> io::Result<()> {
    let mut switch = Switch::<Endpoint>::default();
    let start = Instant::now();
    let (mut busy_at, mut published_at) = (0, 0);
    loop {
        match commands.try_recv() {
            Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
            Ok(command) => {
                apply(&mut switch, command);
                continue;
            }
            Err(TryRecvError::Empty) => {}
        }
        let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if switch.poll(now) {
            busy_at = now;
        }
        for id in switch.take_dead() {
            // The receiver may have ended.
            let _ = ended.send(id);
        }
        let spinning = now - busy_at < SPIN;
        if !spinning || now - published_at >= snapshot::INTERVAL {
            published_at = now;
            snapshot.publish(report(&switch));
        }
        if spinning {
            std::thread::yield_now();
            continue;
        }
        sleep(&mut switch, doorbell, now)?;
        let over: Vec<PortId> =
            switch.queues_mut().filter_map(|(id, queue)| (!queue.is_alive()).then_some(id)).collect();
        for id in over {
            switch.remove(id);
            let _ = ended.send(id);
        }
    }
}

/// Arms the doorbells and sleeps until one is notified or a port's rate lets it continue, unless
/// something has arrived meanwhile.
fn sleep(switch: &mut Switch<Endpoint>, doorbell: &OwnedFd, now: u64) -> io::Result<()> {
    let mut waiting = false;
    for queue in switch.polled_queues_mut() {
        waiting |= queue.arm();
    }
    if !waiting {
        let limit = switch.next_deadline().map(|until| Duration::from_nanos(until.saturating_sub(now)));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut entries = vec![PollFd::new(doorbell, PollFlags::IN)];
        entries.extend(switch.queues().map(|queue| PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN)));
        match poll(&mut entries, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // An eventfd or a socket: the content does not matter.
        let _ = rustix::io::read(doorbell, &mut [0_u8; 256]);
    }
    // Ports that were not armed too: such a port may have been notified before it had to wait.
    for (_, queue) in switch.queues_mut() {
        queue.disarm();
    }
    Ok(())
}

fn report(switch: &Switch<Endpoint>) -> Vec<PortReport> {
    let one = |id| switch.counters(id).map(|counters| PortReport { id, counters });
    switch.ids().filter_map(one).collect()
}

fn apply(switch: &mut Switch<Endpoint>, command: Command) {
    match command {
        Command::Add { id, spec, fds, layout, mtu, reply } => {
            let added = Endpoint::open(fds, layout, spec.host_mac, mtu)
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
