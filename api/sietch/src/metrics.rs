//! Counters that the daemon shows in `sietch stat`.
//!
//! 1. The names are fixed when the page is made. The data loop owns the [`Metrics`]: setting a
//!    value is one store into its own memory.
//! 2. [`Metrics::publish`] makes the values visible, at most once in [`INTERVAL`], and only if one
//!    changed. The loop calls it before it sleeps.
//! 3. When it is too early, `publish` returns until when the loop may sleep. So the last change
//!    before a pause is published as well, and a loop without changes sleeps without a time limit:
//!    an idle application has no timer.

use std::os::fd::{AsFd, BorrowedFd};

use sietch_protocol::metrics::Page;
pub use sietch_protocol::metrics::{Kind, MetricsError};

/// Nanoseconds between two publications. `sietch stat --watch` shows seconds; three system calls at
/// this rate are under 0.01 % of a core.
pub const INTERVAL: u64 = 100_000_000;

/// A page of counters and gauges under one label.
#[derive(Debug)]
pub struct Metrics {
    label: String,
    page: Page,
    values: Vec<u64>,
    changed: bool,
    published: u64,
}

impl Metrics {
    /// A page whose entry `i` is `entries[i]`, all 0. Names are 1 to 48 of `a-z 0-9 _ .`, as in
    /// `tcp.segments_in`.
    ///
    /// # Errors
    /// See [`MetricsError`].
    pub fn new(label: &str, entries: &[(&str, Kind)]) -> Result<Self, MetricsError> {
        Ok(Self {
            label: label.to_owned(),
            page: Page::create(entries)?,
            values: vec![0; entries.len()],
            changed: false,
            published: 0,
        })
    }

    /// The name under which `sietch stat` shows the counters.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Sets entry `index`. An index past the end does nothing.
    pub fn set(&mut self, index: usize, value: u64) {
        if let Some(slot) = self.values.get_mut(index)
            && *slot != value
        {
            *slot = value;
            self.page.set(index, value);
            self.changed = true;
        }
    }

    /// Sets the entries from `first` on, in order.
    pub fn set_all(&mut self, first: usize, values: impl IntoIterator<Item = u64>) {
        for (offset, value) in values.into_iter().enumerate() {
            self.set(first + offset, value);
        }
    }

    /// Makes the values visible, unless nothing changed or the last time was less than [`INTERVAL`]
    /// before `now` (nanoseconds of any clock that only grows). Returns when to call it again if
    /// changes wait.
    ///
    /// # Errors
    /// [`MetricsError::Io`]: the kernel refused to write to the page.
    pub fn publish(&mut self, now: u64) -> Result<Option<u64>, MetricsError> {
        if !self.changed {
            return Ok(None);
        }
        let due = self.published.saturating_add(INTERVAL);
        if self.published != 0 && now < due {
            return Ok(Some(due));
        }
        self.page.publish()?;
        self.changed = false;
        self.published = now.max(1);
        Ok(None)
    }
}

impl AsFd for Metrics {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.page.as_fd()
    }
}

#[cfg(test)]
mod tests;
