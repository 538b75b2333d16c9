//! What the loop and all handles of tasks share: the engine, the time, and the tables of tasks,
//! deadlines and sockets.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use sietch_net::Engine;
use sietch_stream::poller::SleepLimit;

use super::deadlines::Deadlines;
use super::sockets::{BoundPort, Connections, ListeningPort};
use super::tasks::Tasks;
use crate::device::DiskDoorbell;

/// A device that the loop drives beside the network.
pub(super) trait Driver {
    /// Submits queued requests and takes the completions. Returns whether anything completed.
    ///
    /// # Errors
    /// The device's queue is broken.
    fn poll(&self, now: u64) -> io::Result<bool>;

    /// Whether requests are in flight and no doorbell announces their completion, so that the loop
    /// must poll instead of sleeping.
    fn must_poll(&self) -> bool;

    /// When the device has work to do even if nothing completes, in nanoseconds of the loop's
    /// clock.
    fn next_deadline(&self) -> Option<u64> {
        None
    }

    /// Has the doorbell announce whatever happens from now on, before the loop sleeps. Returns how
    /// long the loop may sleep.
    fn prepare_sleep(&self) -> SleepLimit {
        SleepLimit::Unlimited
    }

    /// The descriptor that is readable when something has completed.
    fn doorbell(&self) -> Option<Rc<OwnedFd>>;
}

/// A duplicate of a queue's doorbell: the queue itself is borrowed while the loop works.
pub(super) fn duplicate_doorbell<D: DiskDoorbell>(queue: &D) -> io::Result<Option<Rc<OwnedFd>>> {
    let doorbell = queue.doorbell().map(|doorbell| doorbell.try_clone_to_owned()).transpose()?;
    Ok(doorbell.map(Rc::new))
}

/// What the loop and all handles share.
pub(super) struct Core {
    pub(super) engine: RefCell<Engine>,
    /// The time of this iteration.
    pub(super) now: Cell<u64>,
    pub(super) tasks: Tasks,
    pub(super) deadlines: Deadlines,
    pub(super) connections: RefCell<Connections>,
    pub(super) listening: RefCell<Vec<Rc<ListeningPort>>>,
    pub(super) bound: RefCell<Vec<Rc<BoundPort>>>,
    pub(super) drivers: RefCell<Vec<Rc<dyn Driver>>>,
}

impl Core {
    pub(super) fn new(engine: Engine) -> io::Result<Self> {
        Ok(Self {
            engine: RefCell::new(engine),
            now: Cell::new(0),
            tasks: Tasks::new()?,
            deadlines: Deadlines::default(),
            connections: RefCell::default(),
            listening: RefCell::default(),
            bound: RefCell::default(),
            drivers: RefCell::default(),
        })
    }

    /// Prepares every device beside the network for a sleep. Returns how long it may be.
    pub(super) fn prepare_sleep(&self) -> SleepLimit {
        let drivers = self.drivers.borrow();
        drivers.iter().fold(SleepLimit::Unlimited, |limit, driver| limit.shorter(driver.prepare_sleep()))
    }

    /// Polls every device beside the network. Returns whether anything completed.
    pub(super) fn poll_drivers(&self) -> io::Result<bool> {
        let mut busy = false;
        for driver in &*self.drivers.borrow() {
            busy |= driver.poll(self.now.get())?;
        }
        Ok(busy)
    }
}

/// The network as tasks use it: it makes connections, sockets, tasks and timers. Clones share one
/// runtime.
#[derive(Clone)]
pub struct Net(pub(super) Rc<Core>);

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Net").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Net {
    /// The time of this iteration, in nanoseconds of the clock that drives the loop.
    pub fn now(&self) -> u64 {
        self.0.now.get()
    }

    /// Calls `access` with the engine itself. No task runs meanwhile.
    ///
    /// # Panics
    /// `access` must not use the network through this [`Net`]: the engine is borrowed.
    pub fn with_engine<R>(&self, access: impl FnOnce(&mut Engine) -> R) -> R {
        access(&mut self.0.engine.borrow_mut())
    }
}
