//! The poll-style API: a queue and an engine in one thread, driven by the application's own loop.
//!
//! 1. [`Stack::poll`] runs one iteration: it sends what the application has queued, takes a batch
//!    of frames, runs the timers that are due, and returns whether anything happened. If not, it
//!    spins or sleeps, so the application only writes a loop around it.
//! 2. [`Stack::next_event`] returns what happened. Received bytes stay in the engine until they are
//!    consumed: borrow them (`stack.engine.received`), consume them (`consume`), answer (`send`).
//!    Without a copy on this side: `receive_zero_copy` returns the buffer in which bytes arrived,
//!    `send_zero_copy` shares bytes until they are acknowledged.
//! 3. Engine and queue are public, for programs that need all of them.
//! 4. [`Stack::iterate`] is the same without a clock and without sleeping, for simulations and for
//!    programs with a loop of their own.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sietch::net::EventKind;
//!
//! let mut stack = sietch::Stack::from_args()?; // --vnic NAME
//! stack.engine.listen(7, 128)?;
//! loop {
//!     stack.poll(None)?;
//!     while let Some(event) = stack.next_event() {
//!         if event.kind == EventKind::Readable {
//!             let (bytes, _) = stack.engine.received(event.flow);
//!             let bytes = bytes.to_vec();
//!             let taken = stack.engine.send(event.flow, &bytes);
//!             stack.engine.consume(event.flow, taken);
//!         }
//!     }
//! }
//! # }
//! ```

use std::io;

use sietch_net::{Config, Engine, Event};
use sietch_nic::NicQueue;
use sietch_ring::spin::Spin;

use crate::clock;
use crate::device::Doorbell;
use crate::idle::{HeldGrants, IdlePolicy};

/// A queue with its engine.
#[derive(Debug)]
pub struct Stack<Q: NicQueue> {
    /// The TCP/IP engine.
    pub engine: Engine,
    /// The queue that it drives.
    pub queue: Q,
    idle: IdlePolicy,
    /// In reverse order: the next one is the last.
    events: Vec<Event>,
    now: u64,
    busy: bool,
}

impl<Q: NicQueue> Stack<Q> {
    /// An engine as configured on `queue`.
    pub fn new(queue: Q, config: &Config) -> Self {
        let engine = Engine::new(config, queue.mac(), queue.mtu());
        Self { engine, queue, idle: IdlePolicy::default(), events: Vec::new(), now: 0, busy: true }
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

    /// The time of the last iteration, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The next event. Events that are left when the next iteration begins are kept.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// When the next iteration is due even if nothing arrives.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.events.is_empty() { self.engine.next_deadline() } else { Some(self.now) }
    }

    /// Runs one iteration at `now`, in nanoseconds of a clock that only grows: sends queued data,
    /// receives a batch of frames, runs timers. Returns whether anything happened.
    ///
    /// # Errors
    /// The device is unusable.
    pub fn iterate(&mut self, now: u64) -> io::Result<bool> {
        self.now = now;
        let emitted = self.engine.emit(&mut self.queue, now)?;
        let (received, more) = self.engine.receive(&mut self.queue, now);
        self.events.reverse();
        self.engine.take_events(&mut self.events);
        self.events.reverse();
        self.busy = received > 0 || more || emitted.sent > 0 || emitted.more || !self.events.is_empty();
        Ok(self.busy)
    }
}

impl<Q: Doorbell> Stack<Q> {
    /// Runs one iteration on the monotonic clock. If it found nothing to do, spins for a moment, or
    /// sleeps until a doorbell rings, a timer is due, or `until` has passed. Returns whether
    /// anything happened.
    ///
    /// # Errors
    /// The device is unusable, or the daemon revoked it.
    #[inline]
    pub fn poll(&mut self, until: Option<u64>) -> io::Result<bool> {
        self.idle.check()?;
        self.idle.answer_diagnostics(&self.engine, &mut self.queue);
        let now = clock::now();
        if self.iterate(now)? {
            self.idle.spin.busy(now);
            return Ok(true);
        }
        let deadline = [self.engine.next_deadline(), until].into_iter().flatten().min();
        if self.idle.is_sleep_due(now, deadline) {
            self.idle.sleep(&mut self.queue, now, deadline, &[])?;
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
