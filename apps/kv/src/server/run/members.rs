//! The threads of all cores but the first, which the main thread is.
//!
//! 1. [`Members::start`] starts a thread for each. The thread opens its kernel sockets, and its
//!    poller for clients through memory, and reports whether that succeeded.
//! 2. A member has no listener, no VNIC and no disk. Core 0 passes clients to it, and writes its
//!    effects to the log ([`crate::server::cores`]). It sleeps on its sockets and on the doorbell
//!    of its channels. While nothing happens it has no timer.
//! 3. It ends when core 0 says so, after its clients' last replies were sent.
//! 4. A member that ends for any other reason (its sockets' queue is broken, or it panics) takes a
//!    part of the keys with it. [`Members::failure`] reports it, and the store ends: what was
//!    acknowledged is in the log. A supervisor then restarts it.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use sietch::VnicQueue;
use sietch::disk::AreaQueue;
use sietch_ring::thread_doorbell::EventDoorbell;
use sietch_socket::{Choice, SocketQueue};

use super::doorbells::{CORES, STREAMS, watch};
use super::pace::Pace;
use super::process::clock;
use crate::server::Error;
use crate::server::cores::channels::Channels;
use crate::server::metrics::MemberCounters;
use crate::server::reactor::Reactor;
use crate::server::transport::spread::Intake;
use crate::server::transport::streams::StreamTransport;
use crate::shard::{Placement, Shard};

/// Longest wait for the members at the end: their effects are durable by then, and only their
/// clients' sockets are closed.
const END_LIMIT: Duration = Duration::from_secs(2);
/// Pause between two checks of their threads.
const END_PAUSE: Duration = Duration::from_millis(1);

/// What the thread of a member starts with.
pub(super) struct Member {
    /// Its shard, recovered.
    pub(super) shard: Box<Shard>,
    /// Which of the shards that is.
    pub(super) placement: Placement,
    /// Its channels to the other cores.
    pub(super) channels: Channels,
    /// How it gets clients.
    pub(super) intake: Intake,
    /// Where it leaves its counters.
    pub(super) counters: MemberCounters,
    /// How its kernel sockets are served.
    pub(super) choice: Choice,
}

/// The members' threads.
#[derive(Debug)]
pub(super) struct Members {
    threads: Vec<JoinHandle<Result<(), Error>>>,
    /// Whether a member has ended.
    ended: Arc<AtomicBool>,
}

/// Notes the end of a member, also one by a panic, and wakes core 0.
struct EndNotice {
    ended: Arc<AtomicBool>,
    coordinator: EventDoorbell,
}

impl Drop for EndNotice {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.coordinator.notify();
    }
}

impl Members {
    /// Starts the threads, and waits until all of them serve. `coordinator` is the doorbell of
    /// core 0.
    ///
    /// # Errors
    /// A thread cannot be started, or cannot open its devices.
    pub(super) fn start(members: Vec<Member>, coordinator: &EventDoorbell) -> Result<Self, Error> {
        let mut all = Self { threads: Vec::new(), ended: Arc::default() };
        let (started, starts) = channel();
        for member in members {
            let started = started.clone();
            all.spawn(member.placement.own(), coordinator, move || member.run(started))?;
        }
        drop(started);
        let serving = starts.iter().count();
        if serving < all.threads.len() {
            return Err(all.wait_for_failure());
        }
        Ok(all)
    }

    /// Starts the thread of core `own`, which does `work`.
    fn spawn(
        &mut self,
        own: usize,
        coordinator: &EventDoorbell,
        work: impl FnOnce() -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let notice = EndNotice { ended: Arc::clone(&self.ended), coordinator: coordinator.clone() };
        let thread = std::thread::Builder::new()
            .name(format!("sietch-kv-{own}"))
            .spawn(move || {
                let _notice = notice;
                work()
            })
            .map_err(|cause| Error::System { action: "starting a thread for each shard", cause })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Why a member has ended, if one has.
    pub(super) fn failure(&mut self) -> Option<Error> {
        (!self.all_run()).then(|| self.wait_for_failure())
    }

    /// Why a member has ended. It has given notice, and its thread is about to end.
    fn wait_for_failure(&mut self) -> Error {
        let over = loop {
            if let Some(over) = self.threads.iter().position(JoinHandle::is_finished) {
                break over;
            }
            std::thread::sleep(END_PAUSE);
        };
        match self.threads.swap_remove(over).join() {
            Ok(Err(cause)) => cause,
            Ok(Ok(())) | Err(_) => Error::MemberEnded,
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Whether every member still runs.
    pub(super) fn all_run(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }

    /// Waits for the end of all members, which core 0 has requested, for [`END_LIMIT`] at most.
    /// `iterate` passes on what still waits for them.
    pub(super) fn join(self, mut iterate: impl FnMut()) {
        let limit = clock().monotonic_ns.saturating_add(END_LIMIT.as_nanos() as u64);
        for thread in self.threads {
            while !thread.is_finished() && clock().monotonic_ns < limit {
                iterate();
                std::thread::sleep(END_PAUSE);
            }
            // The end of the process ends the others.
            if thread.is_finished() && !matches!(thread.join(), Ok(Ok(()))) {
                tracing::warn!("{}", Error::MemberEnded);
            }
        }
    }
}

impl Member {
    fn run(self, started: Sender<()>) -> Result<(), Error> {
        let Self { shard, placement, channels, intake, mut counters, choice } = self;
        let failed = |cause| Error::System { action: "kernel sockets", cause };
        let mut sockets = SocketQueue::open(choice)?;
        let doorbell = channels.doorbell().clone();
        watch(&mut sockets, doorbell.as_fd(), CORES)?;
        let streams = StreamTransport::without_listener()
            .map_err(|cause| Error::System { action: "serving clients through memory", cause })?;
        watch(&mut sockets, streams.doorbell(), STREAMS)?;
        let mut reactor: Reactor<VnicQueue, AreaQueue> = Reactor::new(shard, None, None, Some(sockets));
        reactor.join(placement, Box::new(channels));
        reactor.share_clients(intake);
        reactor.attach_streams(streams);
        // Core 0 waits for this. If it has ended, so does the process.
        let _ = started.send(());
        drop(started);
        let mut doorbells = Vec::new();
        let mut pace = Pace::new(placement.count());
        while !reactor.has_ended() {
            let now = clock();
            pace.begin(&mut reactor, now.monotonic_ns);
            let iteration = reactor.iterate(now).map_err(failed)?;
            reactor.take_doorbells(&mut doorbells);
            if doorbells.drain(..).any(|token| token == CORES) {
                doorbell.clear();
            }
            if iteration.busy {
                pace.busy(now.monotonic_ns);
                if counters.is_due(now.monotonic_ns) {
                    counters.update(&reactor, now.monotonic_ns);
                    pace.published();
                }
            } else if pace.rests(now.monotonic_ns, iteration.disk, reactor.has_rings()) {
                let again = counters.update(&reactor, now.monotonic_ns);
                let deadline = [iteration.deadline, again].into_iter().flatten().min();
                let timeout = deadline.map(|due| Duration::from_nanos(due.saturating_sub(now.monotonic_ns)));
                if timeout != Some(Duration::ZERO) {
                    reactor.sleep(timeout).map_err(|cause| Error::System { action: "sleeping", cause })?;
                }
            }
        }
        reactor.close_clients(clock()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn the_end_of_a_member_wakes_core_0_and_is_reported() {
        let panics: fn() -> Result<(), Error> = || std::panic::resume_unwind(Box::new("a member's panic"));
        let fails: fn() -> Result<(), Error> = || Err(Error::NoWayIn);
        for (work, expected) in [(panics, "thread of a shard"), (fails, "neither a VNIC")] {
            let doorbell = EventDoorbell::new().expect("a descriptor");
            let mut members = Members { threads: Vec::new(), ended: Arc::default() };
            let (release, wait) = channel::<()>();
            let waits = move || {
                let _ = wait.recv();
                Ok(())
            };
            members.spawn(1, &doorbell, waits).expect("a thread");
            assert!(members.failure().is_none() && members.all_run());
            doorbell.arm();
            members.spawn(2, &doorbell, work).expect("a thread");
            let asleep = poll(&mut [PollFd::new(&doorbell, PollFlags::IN)], None);
            assert_eq!(asleep, Ok(1), "core 0 sleeps no longer");
            let failure = members.failure().expect("a member has ended");
            assert!(failure.to_string().contains(expected), "{failure}");
            drop(release);
            members.join(|| {});
        }
    }
}
