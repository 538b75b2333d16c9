//! Which segments are free.
//!
//! 1. Allocation goes round the area (next fit), so that streams are in ascending order and
//!    recovery can guess where to read ahead.
//! 2. Log and snapshot together may use [`Space::budget`] segments: less than half. The next
//!    snapshot is written in the rest. It is never larger than the log and the snapshot that it
//!    replaces, so compaction always has room.
//! 3. Before the area shrinks, segments beyond its new end are given out no more
//!    ([`Space::restrict`]), and do not count any more.

/// See the module's account.
pub(crate) struct Space {
    used: Vec<bool>,
    /// Free segments before `limit`.
    free: u32,
    cursor: u32,
    /// Segments from here on are not given out.
    limit: u32,
}

impl Space {
    pub(crate) fn new(count: u32) -> Self {
        Self { used: vec![false; count as usize], free: count, cursor: 0, limit: count }
    }

    /// Marks a segment as used; `false` if it was already.
    pub(crate) fn mark(&mut self, segment: u32) -> bool {
        let used = &mut self.used[segment as usize];
        let fresh = !*used;
        *used = true;
        self.free -= u32::from(fresh && segment < self.limit);
        fresh
    }

    /// Continues allocation at `segment`, modulo the number of segments.
    pub(crate) fn seek(&mut self, segment: u32) {
        self.cursor = segment % self.count();
    }

    /// Takes a free segment.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let count = self.count();
        let segment = (0..count)
            .map(|step| (self.cursor + step) % count)
            .find(|&segment| !self.used[segment as usize])?;
        self.mark(segment);
        self.cursor = (segment + 1) % count;
        Some(segment)
    }

    /// Returns a segment.
    pub(crate) fn release(&mut self, segment: u32) {
        let used = &mut self.used[segment as usize];
        self.free += u32::from(*used && segment < self.limit);
        *used = false;
    }

    /// Gives out no segment from `limit` on, which is not beyond the end.
    pub(crate) fn restrict(&mut self, limit: u32) {
        self.limit = limit;
        self.cursor %= limit;
        let used = self.used[..limit as usize].iter().filter(|used| **used).count();
        // Made from a u32.
        self.free = limit - used as u32;
    }

    /// Takes [`Space::restrict`] back.
    pub(crate) fn lift_restriction(&mut self) {
        // Made from a u32.
        self.restrict(self.used.len() as u32);
    }

    /// There are `count` segments now. The removed ones were free.
    pub(crate) fn resize(&mut self, count: u32) {
        self.used.resize(count as usize, false);
        self.lift_restriction();
    }

    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Segments that may be given out.
    pub(crate) fn count(&self) -> u32 {
        self.limit
    }

    /// Segments that log and snapshot may use together. Two less than half: one is lost where a
    /// restart leaves a segment, one where the snapshot ends.
    pub(crate) fn budget(&self) -> u32 {
        Self::budget_of(self.count())
    }

    /// [`Space::budget`] in an area of `count` segments.
    pub(crate) fn budget_of(count: u32) -> u32 {
        (count - 2) / 2
    }

    /// Segments that an area needs at least for a budget of `live`.
    pub(crate) fn count_for(live: u32) -> u32 {
        live.saturating_mul(2).saturating_add(2)
    }

    /// Part of the budget that only appends which shrink the state may use: a full store must be
    /// able to delete.
    pub(crate) fn shrink_reserve(&self) -> u32 {
        (self.budget() / 16).max(2)
    }
}
