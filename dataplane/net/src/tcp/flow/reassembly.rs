//! Which bytes beyond the next expected one have arrived.
//!
//! 1. The bytes themselves are in the receive ring, at their final position. This module keeps only
//!    their ranges: sorted, disjoint, at most [`REASSEMBLY_RANGES`].
//! 2. A new range merges with those that it touches. One that would exceed the bound is refused,
//!    and its segment counts as lost.
//! 3. When the next expected byte reaches the first range, that range is delivered whole.
//! 4. A few sequence numbers record in which order ranges grew. RFC 2018 section 4 calls for the
//!    latest first and for repetition of earlier ones, so that the loss of an ACK does no harm.
//!
//! Invariant: a range is not removed before the next expected byte has passed it, because it was
//! reported to the peer. The exception is memory pressure, which drops everything beyond a gap at
//! once (`out_of_order`).

use crate::limits::REASSEMBLY_RANGES;
use crate::packet::sequence::Seq;
use crate::packet::tcp::SackBlocks;

/// Ranges whose order is remembered: as many as ever fit a segment.
const REMEMBERED: usize = 4;

/// Ranges of sequence numbers that arrived out of order.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    ranges: Vec<(Seq, Seq)>,
    /// A number in each of the ranges that grew last, the latest first.
    latest: [Seq; REMEMBERED],
    remembered: u8,
}

impl Reassembly {
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, first byte and byte after the last, in order.
    pub(crate) fn ranges(&self) -> &[(Seq, Seq)] {
        &self.ranges
    }

    /// Notes that the bytes from `start` up to but without `end` are there. Returns whether it
    /// could. An empty range changes nothing.
    pub(crate) fn insert(&mut self, mut start: Seq, mut end: Seq) -> bool {
        if !start.before(end) {
            return true;
        }
        let seen = start;
        let first = self.ranges.partition_point(|range| range.1.before(start));
        let last = self.ranges.partition_point(|range| !range.0.after(end));
        if first < last {
            start = start.min(self.ranges[first].0);
            end = end.max(self.ranges[last - 1].1);
        } else if self.ranges.len() >= REASSEMBLY_RANGES {
            return false;
        }
        self.ranges.splice(first..last, [(start, end)]);
        self.remember(seen, start, end);
        true
    }

    /// Puts `seen` in front, and drops what names the same range.
    fn remember(&mut self, seen: Seq, start: Seq, end: Seq) {
        let mut latest = [seen; REMEMBERED];
        let mut kept = 1;
        for &other in &self.latest[..usize::from(self.remembered)] {
            let elsewhere = other.before(start) || !other.before(end);
            if elsewhere && kept < REMEMBERED {
                latest[kept] = other;
                kept += 1;
            }
        }
        self.latest = latest;
        self.remembered = kept as u8;
    }

    /// Given the next expected byte, takes over what follows it without a gap and returns the new
    /// next expected byte.
    pub(crate) fn advance(&mut self, next: Seq) -> Seq {
        let reached = self.ranges.partition_point(|range| !range.0.after(next));
        let next = self.ranges[..reached].iter().fold(next, |next, range| next.max(range.1));
        self.ranges.drain(..reached);
        next
    }

    /// What of `start` up to but without `end` is there already: the first such piece.
    pub(crate) fn duplicate(&self, start: Seq, end: Seq) -> Option<(Seq, Seq)> {
        let at = self.ranges.partition_point(|range| !range.1.after(start));
        let range = self.ranges.get(at)?;
        let piece = (range.0.max(start), range.1.min(end));
        piece.0.before(piece.1).then_some(piece)
    }

    /// Appends up to `count` ranges to `out` for an acknowledgement that `following` others follow
    /// at once. Segments of one batch would all get the same answer, and ranges beyond those that
    /// fit would never be reported. So the last acknowledgement reports the latest ranges, and the
    /// ones before it report lower and lower ranges.
    pub(crate) fn report_in_turn(&self, following: usize, count: usize, out: &mut SackBlocks) {
        let ranges = self.ranges.len();
        if following == 0 || ranges <= count || count == 0 {
            self.report(count, out);
            return;
        }
        let highest = ranges - 1 - following * count % ranges;
        (0..count).for_each(|below| out.push(self.ranges[(highest + ranges - below) % ranges]));
    }

    /// Appends up to `count` ranges to `out`: those that grew last, then others.
    pub(crate) fn report(&self, count: usize, out: &mut SackBlocks) {
        let mut reported = [usize::MAX; REMEMBERED];
        let mut left = count;
        for (place, &seen) in reported.iter_mut().zip(&self.latest[..usize::from(self.remembered)]) {
            let at = self.ranges.partition_point(|range| !range.1.after(seen));
            let Some(range) = self.ranges.get(at).filter(|range| !range.0.after(seen)) else { continue };
            if left == 0 {
                return;
            }
            out.push(*range);
            *place = at;
            left -= 1;
        }
        let others = self.ranges.iter().enumerate().filter(|(at, _)| !reported.contains(at));
        others.take(left).for_each(|(_, range)| out.push(*range));
    }
}

#[cfg(test)]
mod tests;
