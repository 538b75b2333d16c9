//! The poll-style API: a queue and an engine in one thread, driven by the application's own loop.
//!
//! 1. [`Stack::poll`] does one turn: sends what the application has queued since the last one,
//!    takes a batch of frames, runs the timers that are due, and says whether anything happened. If
//!    the turn before found nothing, it spins or sleeps first, so that a loop around it is all
//!    there is to write.
//! 2. [`Stack::next_event`] tells what happened. Received bytes lie in the engine until they are
//!    consumed: borrow them (`stack.engine.received`), consume what was understood (`consume`),
//!    answer (`send`). Or let buffers change hands, so that nothing is copied on this side:
//!    `receive_zero_copy` hands over what has arrived, `send_zero_copy` shares bytes until they are
//!    acknowledged.
//! 3. Engine and queue are public: nothing is hidden from who wants all of it.
//! 4. [`Stack::turn`] is the same without a clock and without sleeping, for simulations and for who
//!    has a loop of their own.
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

use crate::clock;
use crate::doorbell::Doorbell;
use crate::rest::IdlePolicy;

/// A queue with its engine.
#[derive(Debug)]
pub struct Stack<Q: NicQueue> {
    /// The TCP/IP engine.
    pub engine: Engine,
    /// The queue that it drives.
    pub queue: Q,
    rest: IdlePolicy,
    /// In reverse order: the next one is the last.
    events: Vec<Event>,
    now: u64,
    busy: bool,
}

impl<Q: NicQueue> Stack<Q> {
    /// An engine as configured on `queue`.
    pub fn new(queue: Q, config: &Config) -> Self {
        let engine = Engine::new(config, queue.mac(), queue.mtu());
        Self { engine, queue, rest: IdlePolicy::default(), events: Vec::new(), now: 0, busy: true }
    }

    /// The time of the turn, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// What happened next. Events that are left when the next turn begins are kept.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// When the next turn is due even if nothing arrives.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.events.is_empty() { self.engine.next_deadline() } else { Some(self.now) }
    }

    /// One turn at `now`: sends what is queued, takes a batch of frames, runs timers. Says whether
    /// anything happened.
    ///
    /// # Errors
    /// The device is gone.
    pub fn turn(&mut self, now: u64) -> io::Result<bool> {
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

crate::rest::resting!(Stack);

impl<Q: Doorbell> Stack<Q> {
    /// One turn on the monotonic clock. If the one before found nothing to do, spins for a moment,
    /// or sleeps until a doorbell rings, a timer is due, or `until` has come. Says whether anything
    /// happened.
    ///
    /// # Errors
    /// The device is gone, or the control plane took it back.
    #[inline]
    pub fn poll(&mut self, until: Option<u64>) -> io::Result<bool> {
        self.rest.check()?;
        self.rest.answer(&self.engine, &mut self.queue);
        let now = clock::now();
        if self.turn(now)? {
            self.rest.spin.busy(now);
            return Ok(true);
        }
        let deadline = [self.engine.next_deadline(), until].into_iter().flatten().min();
        if self.rest.is_sleepy(now, deadline) {
            self.rest.sleep(&mut self.queue, now, deadline, &[])?;
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
