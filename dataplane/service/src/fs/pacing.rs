//! How fast a client logs where the digest does not keep up.
//!
//! A log that is full gets room when a batch is committed, so the operation that finds it full
//! would wait for a whole batch, after thousands that did not wait. Instead many operations wait a
//! little, before the log is full:
//!
//! 1. A client is paced while more than half of its log is not digested. The digest has enough to
//!    do then, so it never waits for a client that is paced.
//! 2. The digest says how long it takes for a MiB of the log ([`Speed`]). A client may log as fast
//!    where a quarter of its log is room; with more room faster, with less room slower, in
//!    proportion. While a batch is digested, the room shrinks by a part of itself in a given time,
//!    and is not used up. On average a quarter of the log is room, and the client logs as fast as
//!    the digest takes.
//! 3. A batch of data that are pointless takes far less time than the next one. So a slower batch
//!    counts at once, and a faster one little. A batch that is late is taken for a slower one
//!    before it is done.
//! 4. Each [`STEP`] bytes the client reads its clock, and adds the time that those bytes may take.
//!    When it is [`PAUSE`] ahead of that, it waits so long, or until a commit ([`Pacer::step`]).
//! 5. Between two steps, and where it is not paced, an operation compares two numbers.
//!
//! What it must never do: wait without an end; wait where the digest has nothing to do.

use std::time::Duration;

/// A client is paced where the room of its log is less than this part of it. The digest begins with
/// as much at the latest.
const PACED_PART: u64 = 2;
/// A client logs as fast as the digest takes where the room is this part of the log.
const EVEN_PART: u64 = 4;
/// Less room than this part of the log counts as this part.
const LEAST_PART: u64 = 64;
/// Bytes of the log between two looks at the clock, at most; a smaller log has as many steps as one
/// of a MiB.
const STEP: u64 = 16 << 10;
const STEPS: u64 = 64;
/// How long an operation waits. Shorter waits are more of them, and end late by more of themselves.
pub(super) const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_NANOS: f64 = PAUSE.as_nanos() as f64;
/// Before anything was digested: about 1 GB/s.
const START: u64 = 1_000_000;
/// What a batch counts in the average if it was faster. One that was slower replaces it.
const FASTER_WEIGHT: f64 = 0.25;
/// Smaller batches say nothing of larger ones.
const LEAST_BATCH: u64 = 1 << 20;
const MIB: f64 = (1 << 20) as f64;

/// How long the digest takes for a MiB of a log, by the last batches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    nanos: f64,
}

impl Default for Speed {
    fn default() -> Self {
        Self { nanos: START as f64 }
    }
}

impl Speed {
    /// A batch of so many bytes of the log took this time.
    pub(super) fn took(&mut self, bytes: u64, time: Duration) {
        if bytes >= LEAST_BATCH {
            let nanos = time.as_nanos() as f64 * MIB / bytes as f64;
            let weight = if nanos < self.nanos { FASTER_WEIGHT } else { 1.0 };
            self.nanos += weight * (nanos - self.nanos);
        }
    }

    /// Nanoseconds for a MiB.
    pub(super) fn nanos(self) -> u64 {
        self.nanos as u64
    }
}

/// See the module's account.
#[derive(Debug)]
pub(super) struct Pacer {
    /// Bytes of the log.
    log: u64,
    /// Bytes between two steps.
    step: u64,
    /// Position of the next step.
    next: u64,
    paced: Option<Paced>,
}

/// A client that is paced. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Paced {
    /// The log ended here at the last step.
    logged: u64,
    /// The client may have logged so much at this time.
    due: f64,
    /// The log is digested up to here since then.
    digested: u64,
    since: f64,
    /// Bytes of the last batch.
    batch: u64,
}

impl Pacer {
    /// For a log of so many bytes.
    pub(super) fn new(log: u64) -> Self {
        Self { log, step: STEP.min(log / STEPS).max(1), next: 0, paced: None }
    }

    /// Whether [`Pacer::step`] is to be called, after the log has got records up to `logged`.
    #[inline]
    pub(super) fn is_due(&self, logged: u64) -> bool {
        logged >= self.next
    }

    /// The log has records up to `logged`, of which those before `digested` are digested, at a
    /// speed of `nanos` for a MiB. `now` is in nanoseconds. Returns whether the client is to wait
    /// for [`PAUSE`], or until more is digested.
    pub(super) fn step(&mut self, now: u64, logged: u64, digested: u64, nanos: u64) -> bool {
        let room = self.log.saturating_sub(logged.saturating_sub(digested));
        let paced_from = self.log / PACED_PART;
        if room > paced_from {
            self.next = logged + (room - paced_from);
            self.paced = None;
            return false;
        }
        self.next = logged + self.step;
        let now = now as f64;
        let batch = self.log / EVEN_PART;
        let Some(paced) = &mut self.paced else {
            self.paced = Some(Paced { logged, due: now, digested, since: now, batch });
            return false;
        };
        if digested > paced.digested {
            paced.batch = digested - paced.digested;
            (paced.digested, paced.since) = (digested, now);
        }
        let late = (now - paced.since) * MIB / paced.batch as f64;
        let slowdown = (self.log / EVEN_PART) as f64 / room.max(self.log / LEAST_PART).max(1) as f64;
        let bytes = logged.saturating_sub(paced.logged) as f64;
        let takes = bytes / MIB * late.max(nanos as f64) * slowdown;
        // A client that waited for something else, or longer than it had to, may catch up a little.
        let due = paced.due.max(now - PAUSE_NANOS) + takes;
        // One wait for each step, whatever is missing.
        (paced.logged, paced.due) = (logged, due.min(now + PAUSE_NANOS));
        due >= now + PAUSE_NANOS
    }
}

#[cfg(test)]
mod tests;
