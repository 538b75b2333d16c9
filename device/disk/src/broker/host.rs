//! The service core's side of a brokered area.
//!
//! 1. [`BrokerHost::take`] copies one submission out of its ring. It is refused while the
//!    completion ring could not hold the completion of everything that was taken. So an application
//!    that does not take its completions waits for itself.
//! 2. [`BrokerHost::complete`] queues a completion, [`BrokerHost::publish`] shows all of them at
//!    once, frees the submissions' slots, and notifies the application if it sleeps.
//! 3. A word that is impossible, or a hang-up, ends it: [`BrokerHost::is_over`].

use std::os::fd::{AsFd, BorrowedFd};

use sietch_ring::{Consumer, MappedRing, Producer};

use super::grant::BrokerFds;
use super::layout::{BrokerLayout, Completed, Submission};
use super::region::{Region, Side};
use crate::OpenError;

/// See the module's account. One thread owns it.
#[derive(Debug)]
pub struct BrokerHost {
    region: Region,
    layout: BrokerLayout,
    submissions: Consumer<Submission, MappedRing<Submission>>,
    completions: Producer<Completed, MappedRing<Completed>>,
    /// Taken and not yet completed.
    outstanding: u32,
    rings: u64,
}

impl BrokerHost {
    /// Opens what the control plane passed, for an application of the user `uid`.
    ///
    /// # Errors
    /// [`OpenError::Broker`] and others: the memory is not what it should be. What the application
    /// may have written there already is no error.
    pub fn open(fds: BrokerFds, layout: BrokerLayout, uid: u32) -> Result<Self, OpenError> {
        let (region, rings) = Region::open(fds, layout, Side::Host(uid))?;
        let broken = |_| OpenError::Broker { cause: "its rings contradict each other".to_owned() };
        Ok(Self {
            region,
            layout,
            submissions: Consumer::attach(rings.submissions).map_err(broken)?,
            completions: Producer::attach(rings.completions).map_err(broken)?,
            outstanding: 0,
            rings: 0,
        })
    }

    /// Its shape.
    pub fn layout(&self) -> BrokerLayout {
        self.layout
    }

    /// A copy of the next request. Validate the copy.
    pub fn take(&mut self) -> Option<Submission> {
        let wanted = self.outstanding.saturating_add(1);
        if self.completions.room(wanted) < wanted {
            return None;
        }
        let taken = self.submissions.pop();
        self.outstanding += u32::from(taken.is_some());
        taken
    }

    /// Whether `length` bytes at `data` are in the data region.
    pub fn holds(&self, data: u32, length: usize) -> bool {
        self.region.holds(data, length)
    }

    /// Copies data of the application's out. They may change meanwhile: what was copied counts.
    /// `false` if they are not in its data region.
    #[must_use = "false means that nothing was copied"]
    pub fn read(&self, data: u32, out: &mut [u8]) -> bool {
        self.region.read(data, out)
    }

    /// Copies data into the application's buffers. `false` if that is not in its data region.
    #[must_use = "false means that nothing was copied"]
    pub fn write(&self, data: u32, bytes: &[u8]) -> bool {
        self.region.write(data, bytes)
    }

    /// Says what became of a request that was taken: 0, or an error number.
    pub fn complete(&mut self, token: u64, error: i32) {
        self.outstanding = self.outstanding.saturating_sub(1);
        // There is room: see `take`. An application that took it back has broken its own ring.
        let _ = self.completions.push(Completed { token, status: -error.abs(), zero: 0 });
    }

    /// Shows the application what was completed, and lets it submit more.
    pub fn publish(&mut self) {
        self.submissions.release();
        if self.completions.submit() > 0 && self.region.notify() {
            self.rings += 1;
        }
    }

    /// Times that the application was notified.
    pub fn notifications(&self) -> u64 {
        self.rings
    }

    /// Words of the application's that were impossible.
    pub fn violations(&self) -> u64 {
        self.submissions.violations() + self.completions.violations()
    }

    /// Whether it is over: the application has hung up, or broken a ring.
    pub fn is_over(&self) -> bool {
        self.region.is_hung_up() || self.violations() > 0
    }

    /// Polls the kernel whether the application has hung up. A system call.
    pub fn poll_hang_up(&mut self) -> bool {
        self.region.poll_hang_up();
        self.is_over()
    }

    /// Requests a notification. Returns whether there is something already: then do not sleep.
    pub fn arm(&mut self) -> bool {
        self.region.arm();
        self.has_work() || self.is_over()
    }

    fn has_work(&mut self) -> bool {
        let wanted = self.outstanding.saturating_add(1);
        // A submission that waits for room among the completions needs no poll: the application
        // notifies when it has made room.
        self.completions.room(wanted) >= wanted && self.submissions.ready(1) > 0
    }

    /// Takes the request back.
    pub fn disarm(&mut self) {
        self.region.disarm();
    }
}

impl AsFd for BrokerHost {
    /// Readable when the application has notified, POLLHUP when it has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.doorbell()
    }
}
