//! The async API: tasks of one thread around one queue, run by a small executor of its own.
//!
//! One turn:
//!
//! 1. Take a batch of frames; the engine turns them into events, each of which wakes at most two
//!    tasks (`tcp`, `udp`).
//! 2. Wake the sleepers that are due (`time`).
//! 3. Run the tasks that were woken, to their next `await` each, up to a bound (`tasks`). They read
//!    from receive rings and fill send rings.
//! 4. Hand storage requests on and take those that have finished (`storage`).
//! 5. Send for every flow what its windows allow, and ring the doorbell once.
//!
//! After a turn in which nothing happened it spins or sleeps (`rest`). Everything is of one thread:
//! a [`Net`] and what it makes are not `Send`, and nothing is locked. Wakers may go to other
//! threads: that is how news from elsewhere come in.
//!
//! Futures are ordinary ones: combinators such as `join!` and `select!` work, and so does dropping
//! a future to cancel it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::rc::Rc;

use sietch_net::{Config, Engine, Event};
use sietch_nic::NicQueue;

use crate::clock;
use crate::doorbell::Doorbell;
use crate::rest::IdlePolicy;

mod storage;
mod structure;
mod tasks;
mod tcp;
mod time;
mod udp;

pub use storage::Disk;
pub use structure::{Durable, DurableLog, DurableMap, DurableQueue, DurableStoredMap, QueueEntry, Structure};
pub use tasks::{Aborted, JoinHandle};
pub use tcp::{ReadHalf, TcpListener, TcpStream, WriteHalf};
pub use time::{Elapsed, Interval, Sleep};
pub use udp::UdpSocket;

/// How long [`Runtime::run`] goes on after its future is done, so that what was written last is
/// acknowledged.
const LINGER: u64 = 1_000_000_000;

/// What the loop and all handles share.
struct Core {
    engine: RefCell<Engine>,
    now: Cell<u64>,
    tasks: tasks::Tasks,
    deadlines: time::Deadlines,
    connections: RefCell<tcp::Connections>,
    ports: RefCell<Vec<Rc<tcp::Port>>>,
    bound: RefCell<Vec<Rc<udp::Bound>>>,
    drivers: RefCell<Vec<Rc<dyn storage::Driver>>>,
}

/// The network as tasks see it: makes connections, sockets, tasks and timers. Clones name the same.
#[derive(Clone)]
pub struct Net(Rc<Core>);

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Net").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Net {
    /// Runs `future` as a task of its own.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        tasks::spawn(self, future)
    }

    /// Lets `look` use the engine itself. No task runs meanwhile; do not keep anything of it.
    pub fn with_engine<R>(&self, look: impl FnOnce(&mut Engine) -> R) -> R {
        look(&mut self.0.engine.borrow_mut())
    }
}

/// An executor around one queue.
#[derive(Debug)]
pub struct Runtime<Q: NicQueue> {
    net: Net,
    queue: Q,
    rest: IdlePolicy,
    events: Vec<Event>,
}

impl<Q: NicQueue> Runtime<Q> {
    /// An engine as configured on `queue`, and no task yet.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new(queue: Q, config: &Config) -> io::Result<Self> {
        let engine = Engine::new(config, queue.mac(), queue.mtu());
        let core = Core {
            engine: RefCell::new(engine),
            now: Cell::new(0),
            tasks: tasks::Tasks::new()?,
            deadlines: time::Deadlines::default(),
            connections: RefCell::default(),
            ports: RefCell::default(),
            bound: RefCell::default(),
            drivers: RefCell::default(),
        };
        Ok(Self { net: Net(Rc::new(core)), queue, rest: IdlePolicy::default(), events: Vec::new() })
    }

    /// What tasks are given.
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

    /// One turn at `now`. Says whether anything happened: if not, the next one can wait until
    /// [`Runtime::next_deadline`] or the doorbell.
    ///
    /// # Errors
    /// The device is gone, or a disk queue is broken.
    pub fn turn(&mut self, now: u64) -> io::Result<bool> {
        let core = &*self.net.0;
        core.now.set(now);
        let (received, more) = {
            let mut engine = core.engine.borrow_mut();
            let taken = engine.receive(&mut self.queue, now);
            engine.take_events(&mut self.events);
            taken
        };
        let mut stored = Ok(false);
        let ran = core.tasks.turn(
            || {
                tcp::dispatch(&self.net, &mut self.events);
                core.deadlines.expire(now);
            },
            || stored = drive(core),
        );
        let emitted = core.engine.borrow_mut().emit(&mut self.queue, now)?;
        for bound in &*core.bound.borrow() {
            bound.writer.wake();
        }
        Ok(stored? || ran || received > 0 || more || emitted.sent > 0 || emitted.more)
    }

    /// When the next turn is due even if nothing arrives.
    pub fn next_deadline(&self) -> Option<u64> {
        let core = &*self.net.0;
        if core.tasks.is_ready() || core.drivers.borrow().iter().any(|driver| driver.must_turn()) {
            return Some(core.now.get());
        }
        let drivers = core.drivers.borrow();
        let driven = drivers.iter().filter_map(|driver| driver.next_deadline());
        let rest = [core.engine.borrow().next_deadline(), core.deadlines.earliest()];
        rest.into_iter().flatten().chain(driven).min()
    }
}

fn drive(core: &Core) -> io::Result<bool> {
    let mut busy = false;
    for driver in &*core.drivers.borrow() {
        busy |= driver.turn(core.now.get())?;
    }
    Ok(busy)
}

crate::rest::resting!(Runtime);

impl<Q: Doorbell> Runtime<Q> {
    /// Runs `main` as a task, and every task that it spawns, until it is done. The others are
    /// dropped then; what they had written is still sent, if the peers take it within a second.
    ///
    /// # Errors
    /// The device is gone, or the control plane took it back.
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

    /// One turn on the monotonic clock; after a turn in which nothing happened, spins for a moment
    /// or sleeps. Says whether anything happened.
    ///
    /// # Errors
    /// As [`Runtime::run`].
    pub fn poll(&mut self) -> io::Result<bool> {
        self.poll_until(None)
    }

    fn poll_until(&mut self, until: Option<u64>) -> io::Result<bool> {
        self.rest.check()?;
        self.rest.answer(&self.net.0.engine.borrow(), &mut self.queue);
        let now = clock::now();
        if self.turn(now)? {
            self.rest.spin.busy(now);
            return Ok(true);
        }
        let deadline = [self.next_deadline(), until].into_iter().flatten().min();
        if self.rest.is_sleepy(now, deadline) {
            self.sleep(now, deadline)?;
        }
        Ok(false)
    }

    fn sleep(&mut self, now: u64, deadline: Option<u64>) -> io::Result<()> {
        let core = &*self.net.0;
        core.tasks.arm();
        let slept = if core.tasks.is_ready() {
            Ok(())
        } else {
            let drivers = core.drivers.borrow();
            let mut others: Vec<BorrowedFd<'_>> = vec![core.tasks.bell()];
            let bells: Vec<_> = drivers.iter().filter_map(|driver| driver.doorbell()).collect();
            others.extend(bells.iter().map(|bell| bell.as_fd()));
            self.rest.sleep(&mut self.queue, now, deadline, &others)
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
        core.ports.borrow_mut().clear();
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
