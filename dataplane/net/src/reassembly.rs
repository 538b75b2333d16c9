//! Which bytes beyond the next expected one have arrived.
//!
//! 1. The bytes themselves lie in the receive ring, at their place. Here are only their ranges, sorted, apart
//!    from each other, at most [`REASSEMBLY_RANGES`].
//! 2. A new range swallows those that it touches. One that would be a range too many is refused: its segment counts as lost.
//! 3. When the next expected byte reaches the first range, that range is taken over whole.

use crate::limits::REASSEMBLY_RANGES;
use crate::sequence::Seq;

/// Ranges of sequence numbers that arrived ahead of their turn.
#[derive(Debug, Default)]
pub struct Reassembly {
    ranges: Vec<(Seq, Seq)>,
}

impl Reassembly {
    /// Whether nothing is waiting.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, first byte and byte after the last, in order.
    pub fn ranges(&self) -> &[(Seq, Seq)] {
        &self.ranges
    }

    /// Notes that the bytes from `start` up to but without `end` are there. Returns whether it could. An empty range is noted for nothing.
    pub fn insert(&mut self, mut start: Seq, mut end: Seq) -> bool {
        if !start.before(end) {
            return true;
        }
        let first = self.ranges.partition_point(|range| range.1.before(start));
        let last = self.ranges.partition_point(|range| !range.0.after(end));
        if first < last {
            start = start.min(self.ranges[first].0);
            end = end.max(self.ranges[last - 1].1);
        } else if self.ranges.len() >= REASSEMBLY_RANGES {
            return false;
        }
        self.ranges.splice(first..last, [(start, end)]);
        true
    }

    /// Given the next expected byte, takes over what follows it without a gap and returns the new next expected byte.
    pub fn advance(&mut self, next: Seq) -> Seq {
        let reached = self.ranges.partition_point(|range| !range.0.after(next));
        let next = self.ranges[..reached].iter().fold(next, |next, range| next.max(range.1));
        self.ranges.drain(..reached);
        next
    }
}

#[cfg(test)]
mod tests;
