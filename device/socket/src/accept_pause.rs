//! The pause after an accept that found no descriptor.
//!
//! 1. Another accept would fail at once, over and over. So listeners are left alone until a
//!    connection of this queue has ended, which frees a descriptor.
//! 2. Descriptors also become free elsewhere, in this process and in the system, without a notice.
//!    So listeners are tried again after [`PAUSE`], and a sleep lasts no longer than until then.

use std::time::{Duration, Instant};

/// How long listeners are left alone: an accept in vain each time costs a few microseconds.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether accepting pauses, and since when.
#[derive(Debug, Default)]
pub(crate) struct AcceptPause(Option<Instant>);

impl AcceptPause {
    pub(crate) fn begin(&mut self) {
        self.0 = Some(Instant::now());
    }

    /// Ends a pause. False: there was none.
    pub(crate) fn end(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Ends a pause that has lasted long enough. False: there was none such.
    pub(crate) fn end_if_over(&mut self) -> bool {
        self.0.take_if(|begun| begun.elapsed() >= PAUSE).is_some()
    }

    /// The longest sleep of a caller that would sleep for `timeout`.
    pub(crate) fn limit(&self, timeout: Option<Duration>) -> Option<Duration> {
        let Some(begun) = self.0 else { return timeout };
        let left = PAUSE.saturating_sub(begun.elapsed());
        Some(timeout.map_or(left, |timeout| timeout.min(left)))
    }
}
