//! The async API: tasks of one thread around one queue, run by a small executor of its own.
//!
//! One iteration:
//!
//! 1. Take a batch of frames. The engine turns them into events, each of which wakes at most two
//!    tasks (`dispatch`).
//! 2. Wake the sleeping tasks whose deadline has passed (`deadlines`).
//! 3. Run the tasks that were woken, each to its next `await`, up to a bound (`tasks`). They read
//!    from receive rings and fill send rings.
//! 4. Submit storage requests and take completions (`state::Driver`).
//! 5. Send for every flow what its windows allow, and ring the doorbell once.
//!
//! After an iteration in which nothing happened the runtime spins or sleeps ([`crate::idle`]).
//! Everything is of one thread: a [`Net`] and what it makes are not `Send`, and nothing is locked.
//! Wakers may go to other threads: that is how events from elsewhere come in.
//!
//! Futures are ordinary ones: combinators such as `join!` and `select!` work, and dropping a future
//! cancels it.
//!
//! The files are layers: the tables (`tasks`, `deadlines`, `sockets`), what the loop and all
//! handles share (`state`), the handles (`join`, `time`, `tcp`, `udp`, `streams`, `disk`,
//! `durable`) and the events for them (`dispatch`), and the loop, which is here.

mod deadlines;
mod disk;
mod dispatch;
mod durable;
mod join;
mod sockets;
mod state;
mod streams;
mod tasks;
mod tcp;
mod time;
mod udp;

use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::rc::Rc;

use sietch_net::{Config, Engine, Event};
use sietch_nic::NicQueue;
use sietch_ring::spin::Spin;
use sietch_stream::poller::SleepLimit;

use crate::clock;
use crate::device::{Doorbell, NoDevice};
use crate::idle::{HeldGrants, IdlePolicy};
use state::Core;

pub use disk::Disk;
pub use durable::{Durable, DurableLog, DurableMap, DurableQueue, DurableStoredMap, QueueEntry, Structure};
pub use join::{Aborted, JoinHandle};
pub use state::Net;
pub use streams::{Stream, StreamListener, Streams};
pub use tcp::{ReadHalf, TcpListener, TcpStream, WriteHalf};
pub use time::{Elapsed, Interval, Sleep};
pub use udp::UdpSocket;

/// Nanoseconds that [`Runtime::run`] continues after its future is done, so that the last writes
/// are acknowledged.
const LINGER: u64 = 1_000_000_000;

/// An executor around one queue.
#[derive(Debug)]
pub struct Runtime<Q: NicQueue> {
    net: Net,
    queue: Q,
    idle: IdlePolicy,
    events: Vec<Event>,
}

impl<Q: NicQueue> Runtime<Q> {
    /// An engine as configured on `queue`, and no task yet.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new(queue: Q, config: &Config) -> io::Result<Self> {
        let engine = Engine::new(config, queue.mac(), queue.mtu());
        let net = Net(Rc::new(Core::new(engine)?));
        Ok(Self { net, queue, idle: IdlePolicy::default(), events: Vec::new() })
    }

    /// Makes its loop end with an error when one of these grants is revoked.
    #[must_use]
    pub fn with_grants(mut self, held: HeldGrants) -> Self {
        self.idle.held = Some(held);
        self
    }

    /// Spins as `spin` defines before it sleeps.
    #[must_use]
    pub fn with_spin(mut self, spin: Spin) -> Self {
        self.idle.spin = spin;
        self
    }

    /// The handle with which tasks use the network.
    pub fn net(&self) -> Net {
        self.net.clone()
    }

    /// The queue.
    pub fn queue(&self) -> &Q {
        &self.queue
    }

    /// Tasks that have not ended.
    pub fn tasks(&self) -> usize {
        self.net.0.tasks.len()
    }

    /// Runs one iteration at `now`, in nanoseconds of a clock that only grows. Returns whether
    /// anything happened: if not, the next one can wait until [`Runtime::next_deadline`] or the
    /// doorbell.
    ///
    /// # Errors
    /// The device is unusable, or a disk queue is broken.
    pub fn iterate(&mut self, now: u64) -> io::Result<bool> {
        let core = &*self.net.0;
        core.now.set(now);
        let (received, more) = {
            let mut engine = core.engine.borrow_mut();
            let taken = engine.receive(&mut self.queue, now);
            engine.take_events(&mut self.events);
            taken
        };
        let mut stored = Ok(false);
        let ran = core.tasks.iterate(
            || {
                dispatch::dispatch(core, &mut self.events);
                core.deadlines.expire(now);
            },
            || stored = core.poll_drivers(),
        );
        let emitted = core.engine.borrow_mut().emit(&mut self.queue, now)?;
        for bound in &*core.bound.borrow() {
            bound.writer.wake();
        }
        Ok(stored? || ran || received > 0 || more || emitted.sent > 0 || emitted.more)
    }

    /// When the next iteration is due even if nothing arrives.
    pub fn next_deadline(&self) -> Option<u64> {
        let core = &*self.net.0;
        if core.tasks.is_ready() || core.drivers.borrow().iter().any(|driver| driver.must_poll()) {
            return Some(core.now.get());
        }
        let drivers = core.drivers.borrow();
        let driven = drivers.iter().filter_map(|driver| driver.next_deadline());
        let own = [core.engine.borrow().next_deadline(), core.deadlines.earliest()];
        own.into_iter().flatten().chain(driven).min()
    }
}

impl Runtime<NoDevice> {
    /// A runtime without a VNIC, for programs that use streams or storage alone.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn without_device() -> io::Result<Self> {
        // No frame ever carries the address, and no secret is worth guessing.
        Self::new(NoDevice::new()?, &Config::new(Ipv4Addr::LOCALHOST, 8, [0; 16]))
    }
}

impl<Q: Doorbell> Runtime<Q> {
    /// Runs `main` as a task, and every task that it spawns, until `main` is done. The others are
    /// dropped then. Their last writes are still sent, if the peers accept them within a second.
    ///
    /// # Errors
    /// The device is unusable, or the daemon revoked it.
    pub fn run<T: 'static, F>(mut self, main: impl FnOnce(Net) -> F) -> io::Result<T>
    where
        F: Future<Output = T> + 'static,
    {
        self.net.0.now.set(clock::now());
        let main = self.net.spawn(main(self.net()));
        let value = loop {
            if let Some(value) = main.take() {
                break value;
            }
            self.poll()?;
        };
        self.clear();
        let limit = clock::now().saturating_add(LINGER);
        while self.net.0.engine.borrow().population().0 > 0 && clock::now() < limit {
            self.poll_until(Some(limit))?;
        }
        Ok(value)
    }

    /// Runs one iteration on the monotonic clock. After an iteration in which nothing happened,
    /// spins for a moment or sleeps. Returns whether anything happened.
    ///
    /// # Errors
    /// As [`Runtime::run`].
    pub fn poll(&mut self) -> io::Result<bool> {
        self.poll_until(None)
    }

    fn poll_until(&mut self, until: Option<u64>) -> io::Result<bool> {
        self.idle.check()?;
        self.idle.answer_diagnostics(&self.net.0.engine.borrow(), &mut self.queue);
        let now = clock::now();
        if self.iterate(now)? {
            self.idle.spin.busy(now);
            return Ok(true);
        }
        let deadline = [self.next_deadline(), until].into_iter().flatten().min();
        if self.idle.is_sleep_due(now, deadline) {
            self.sleep(now, deadline)?;
        }
        Ok(false)
    }

    fn sleep(&mut self, now: u64, deadline: Option<u64>) -> io::Result<()> {
        let core = &*self.net.0;
        core.tasks.arm();
        let limit = core.prepare_sleep();
        let deadline = match limit {
            SleepLimit::Nanoseconds(limit) => {
                Some(deadline.unwrap_or(u64::MAX).min(now.saturating_add(limit)))
            }
            SleepLimit::None | SleepLimit::Unlimited => deadline,
        };
        let slept = if core.tasks.is_ready() || limit == SleepLimit::None {
            Ok(())
        } else {
            let drivers = core.drivers.borrow();
            let mut others: Vec<BorrowedFd<'_>> = vec![core.tasks.doorbell()];
            let doorbells: Vec<_> = drivers.iter().filter_map(|driver| driver.doorbell()).collect();
            others.extend(doorbells.iter().map(|doorbell| doorbell.as_fd()));
            self.idle.sleep(&mut self.queue, now, deadline, &others)
        };
        core.tasks.disarm();
        slept
    }
}

impl<Q: NicQueue> Runtime<Q> {
    /// Drops all tasks and what they hold.
    fn clear(&self) {
        let core = &*self.net.0;
        core.tasks.clear();
        // Ports and tasks hold the core, and it holds them.
        core.listening.borrow_mut().clear();
        core.bound.borrow_mut().clear();
        core.drivers.borrow_mut().clear();
    }
}

impl<Q: NicQueue> Drop for Runtime<Q> {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests;
