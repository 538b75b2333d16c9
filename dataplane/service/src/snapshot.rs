//! A status that one thread publishes and other threads read.
//!
//! The loop that owns the status copies it here at most every [`INTERVAL`] while it is busy, and
//! once before it sleeps. So a reader never wakes a sleeping loop.

use std::sync::{Mutex, PoisonError};

/// Nanoseconds between two publications of a busy loop. Readers poll about once a second.
pub(crate) const INTERVAL: u64 = 100_000_000;

/// The last published status.
#[derive(Debug, Default)]
pub struct Snapshot<T>(Mutex<T>);

impl<T> Snapshot<T> {
    /// Returns a copy of the last published status.
    pub fn read(&self) -> T
    where
        T: Clone,
    {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the status.
    pub(crate) fn publish(&self, status: T) {
        self.update(|current| *current = status);
    }

    /// Changes the status in place, for a status that several threads share.
    pub(crate) fn update(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
