//! What all algorithms share: a window, a threshold, and what they were before the last reduction.

use crate::limits::{INITIAL_WINDOW, LARGEST_WINDOW};

/// A congestion window in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub size: u32,
    pub threshold: u32,
    /// Bytes acknowledged since the window last grew by a segment.
    counted: u32,
    /// Size and threshold before the last reduction.
    before: Option<(u32, u32)>,
}

impl Window {
    /// The initial window (RFC 6928).
    pub(super) const fn new(mss: u32) -> Self {
        Self { size: mss * INITIAL_WINDOW, threshold: u32::MAX, counted: 0, before: None }
    }

    /// Continues from another algorithm's window.
    pub(super) fn resume(&mut self, size: u32, threshold: u32) {
        *self = Self { size, threshold, counted: 0, before: None };
    }

    #[inline]
    pub(super) const fn in_slow_start(&self) -> bool {
        self.size < self.threshold
    }

    #[inline]
    pub(super) fn grow(&mut self, bytes: u32) {
        self.size = self.size.saturating_add(bytes).min(LARGEST_WINDOW);
    }

    /// Slow start with appropriate byte counting (RFC 3465). Its bound of two segments is for
    /// receivers that acknowledge every other segment; ours, and those behind receive offload,
    /// acknowledge once a batch, so the bound is the window.
    #[inline]
    pub(super) fn grow_exponentially(&mut self, bytes: u32) {
        self.grow(bytes.min(self.size));
    }

    /// A segment more for each window that was acknowledged (RFC 5681 section 3.1, RFC 3465 section
    /// 2.1).
    #[inline]
    pub(super) fn grow_linearly(&mut self, bytes: u32, mss: u32) {
        self.counted = self.counted.saturating_add(bytes);
        if self.counted >= self.size {
            self.counted -= self.size;
            self.grow(mss);
        }
    }

    /// Slow start below the threshold, else a segment a window.
    #[inline]
    pub(super) fn grow_as_reno(&mut self, bytes: u32, mss: u32) {
        if self.in_slow_start() {
            self.grow_exponentially(bytes);
        } else {
            self.grow_linearly(bytes, mss);
        }
    }

    /// Window and threshold become `size`, at least two segments (RFC 5681 equation 4).
    pub(super) fn reduce(&mut self, size: u32, mss: u32) {
        self.before = Some((self.size, self.threshold));
        self.threshold = size.max(2 * mss);
        self.size = self.threshold;
        self.counted = 0;
    }

    /// The threshold becomes `size`, at least two segments; the window, one.
    pub(super) fn collapse(&mut self, size: u32, mss: u32) {
        self.reduce(size, mss);
        self.size = mss;
    }

    /// RFC 9937, completion steps: recovery ends with the window that it aimed at.
    pub(super) fn leave_recovery(&mut self) {
        self.size = self.threshold;
        self.counted = 0;
    }

    /// Undoes the last reduction, once.
    pub(super) fn undo(&mut self) -> bool {
        let Some((size, threshold)) = self.before.take() else { return false };
        self.size = self.size.max(size);
        self.threshold = self.threshold.max(threshold);
        true
    }

    /// RFC 5681 section 4.1: after a long idle time the capacity of the path is unknown. The
    /// threshold remembers what it was.
    pub(super) fn restart(&mut self, mss: u32) {
        if self.threshold != u32::MAX {
            self.threshold = self.threshold.max(self.size / 4 * 3);
        }
        self.size = self.size.min(mss * INITIAL_WINDOW);
        self.counted = 0;
    }
}
