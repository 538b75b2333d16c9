//! The data of one file that are not digested: which ranges are in the log, and what they hide.
//!
//! 1. [`Ranges`] maps ranges of the file to their [`Source`]. Ranges do not overlap; a newer one
//!    cuts what it covers from older ones. A range that is not in it is in the digested state.
//! 2. A truncation hides all digested data behind it: [`Ranges::visible`] is the end of what the
//!    digested state may show. Truncations are kept with their log positions, because a digest can
//!    stop between two of them. An older one that is no shorter than a newer one says nothing.
//! 3. A hole or a truncation that ends inside a block with data leaves [`Source::Zeros`] there, so
//!    that the block stays one with data (`SEEK_DATA`).
//! 4. [`Ranges::expire`] drops what was logged before a position: the digested state has it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::limits::{BLOCK, MAX_RECORD_DATA};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Where the bytes of a range are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// In the log, the first one at this position.
    Log(u64),
    /// Nowhere: they are zeros in a block that has data.
    Zeros,
    /// Nowhere: they are zeros, and need no blocks.
    Hole,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    source: Source,
    /// Position of the record that made it.
    logged: u64,
}

/// A stretch of a file, as a reader or the digest meets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Bytes of the file.
    pub range: Range<u64>,
    /// Where they are; `None`: in the digested state.
    pub source: Option<Source>,
}

/// The module's header describes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    pieces: BTreeMap<u64, Piece>,
    /// The range that each record put, in the order of records: its pieces are in there.
    put: VecDeque<(u64, Range<u64>)>,
    /// Bytes of pieces that are in the log: a `stat` must not add up thousands.
    logged_bytes: u64,
    /// Log position and size of truncations; both grow.
    truncations: VecDeque<(u64, u64)>,
    /// Ranges with reserved room, and the position of their record: for the digest alone.
    reserved: Vec<(Range<u64>, u64)>,
}

impl Ranges {
    /// Whether the digested state has everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.truncations.is_empty() && self.reserved.is_empty()
    }

    /// Puts `range` at `source`, by a record at position `logged`.
    pub(crate) fn put(&mut self, range: Range<u64>, source: Source, logged: u64) {
        if range.is_empty() {
            return;
        }
        // Appends are the common case: nothing is there to be cut.
        if self.pieces.last_key_value().is_some_and(|(_, last)| last.end > range.start) {
            self.cut(range.clone());
        }
        self.insert(range.start, Piece { end: range.end, source, logged });
        self.put.push_back((logged, range));
    }

    /// Adds a piece where none is.
    fn insert(&mut self, start: u64, piece: Piece) {
        self.logged_bytes += piece.logged_bytes(start);
        self.pieces.insert(start, piece);
    }

    fn remove(&mut self, start: u64) {
        if let Some(piece) = self.pieces.remove(&start) {
            self.logged_bytes -= piece.logged_bytes(start);
        }
    }

    /// Removes `range` from the pieces.
    fn cut(&mut self, range: Range<u64>) {
        let Range { start, end } = range;
        if let Some((&first, &piece)) = self.pieces.range(..start).next_back()
            && piece.end > start
        {
            self.remove(first);
            self.insert(first, Piece { end: start, ..piece });
            if piece.end > end {
                self.insert(end, piece.behind(end - first));
            }
        }
        while let Some((&first, &piece)) = self.pieces.range(start..end).next() {
            self.remove(first);
            if piece.end > end {
                self.insert(end, piece.behind(end - first));
            }
        }
    }

    /// The file was cut at `size` by a record at position `logged`.
    pub(crate) fn truncate(&mut self, size: u64, logged: u64) {
        self.cut(size..u64::MAX);
        while self.truncations.back().is_some_and(|(_, older)| *older >= size) {
            self.truncations.pop_back();
        }
        self.truncations.push_back((logged, size));
        for (range, _) in &mut self.reserved {
            range.end = range.end.min(size);
        }
        self.reserved.retain(|(range, _)| !range.is_empty());
    }

    /// Room was reserved for `range` by a record at position `logged`.
    pub(crate) fn reserve(&mut self, range: Range<u64>, logged: u64) {
        self.reserved.push((range, logged));
    }

    /// The ranges with reserved room.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = Range<u64>> {
        self.reserved.iter().map(|(range, _)| range.clone())
    }

    /// Whether records gave room to a part of a range.
    pub(crate) fn has_blocks(&self, range: &Range<u64>) -> bool {
        let is_reserved = |(other, _): &(Range<u64>, u64)| other.start < range.end && range.start < other.end;
        self.pieces_in(range).any(|(_, source)| source != Source::Hole)
            || self.reserved.iter().any(is_reserved)
    }

    /// The pieces that have a part of a range, in order.
    fn pieces_in(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, Source)> {
        let Range { start, end } = *range;
        let before = self.pieces.range(..start).next_back().filter(|(_, piece)| piece.end > start);
        let within = self.pieces.range(start..end.max(start));
        before.into_iter().chain(within).map(|(first, piece)| (*first..piece.end, piece.source))
    }

    /// The parts of some blocks of which records take nothing that the base has: no hole begins or
    /// ends in them, and no truncation is before them.
    pub(crate) fn kept(&self, blocks: &Range<u64>) -> Vec<Range<u64>> {
        let end = blocks.end.min(self.visible().div_ceil(BLOCK_BYTES));
        let (mut at, mut kept) = (blocks.start, Vec::new());
        let bytes = at * BLOCK_BYTES..end * BLOCK_BYTES;
        for (hole, _) in self.pieces_in(&bytes).filter(|(_, source)| *source == Source::Hole) {
            let first = hole.start / BLOCK_BYTES;
            if at < first {
                kept.push(at..first);
            }
            at = at.max(hole.end.div_ceil(BLOCK_BYTES));
        }
        if at < end {
            kept.push(at..end);
        }
        kept
    }

    /// Digested data at and behind this byte are gone.
    pub(crate) fn visible(&self) -> u64 {
        self.truncations.front().map_or(u64::MAX, |(_, size)| *size)
    }

    /// The stretches that make up `range`, in order. What a truncation hides is a hole.
    pub(crate) fn stretches(&self, range: Range<u64>) -> Stretches<'_> {
        Stretches { ranges: self, at: range.start, end: range.end }
    }

    /// The pieces, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (Range<u64>, Source)> {
        self.pieces.iter().map(|(start, piece)| (*start..piece.end, piece.source))
    }

    /// Bytes of the file that are in the log.
    pub(crate) fn logged_bytes(&self) -> u64 {
        self.logged_bytes
    }

    /// Records that would put the same: one for data in a row, up to the most that it has.
    pub(crate) fn records(&self) -> usize {
        let mut records = 0;
        // The range of the last record, if it has data.
        let mut last: Option<Range<u64>> = None;
        for (range, source) in self.pieces() {
            let is_data = matches!(source, Source::Log(_));
            if let Some(last) = &mut last
                && is_data
                && range.start == last.end
                && range.end - last.start <= MAX_RECORD_DATA as u64
            {
                last.end = range.end;
            } else {
                records += 1;
                last = is_data.then_some(range);
            }
        }
        records + usize::from(!self.truncations.is_empty()) + self.reserved.len()
    }

    /// Drops what was logged before `position`. That takes time for what is dropped, not for what
    /// stays: a client that appends to a file does it after each batch.
    pub(crate) fn expire(&mut self, position: u64) {
        let mut expired = Vec::new();
        while let Some((_, range)) = self.put.pop_front_if(|(logged, _)| *logged < position) {
            let pieces = self.pieces.range(range);
            expired.extend(pieces.filter(|(_, piece)| piece.logged < position).map(|(start, _)| *start));
            expired.drain(..).for_each(|start| self.remove(start));
        }
        self.reserved.retain(|(_, logged)| *logged >= position);
        while self.truncations.front().is_some_and(|(logged, _)| *logged < position) {
            self.truncations.pop_front();
        }
    }
}

impl Piece {
    /// Its bytes in the log, if it begins at `start`.
    fn logged_bytes(&self, start: u64) -> u64 {
        if matches!(self.source, Source::Log(_)) { self.end - start } else { 0 }
    }

    /// What is left of it behind its first `bytes`.
    fn behind(self, bytes: u64) -> Self {
        let source = match self.source {
            Source::Log(position) => Source::Log(position + bytes),
            other => other,
        };
        Self { source, ..self }
    }
}

/// See [`Ranges::stretches`].
pub(crate) struct Stretches<'a> {
    ranges: &'a Ranges,
    at: u64,
    end: u64,
}

impl Iterator for Stretches<'_> {
    type Item = Stretch;

    fn next(&mut self) -> Option<Stretch> {
        if self.at >= self.end {
            return None;
        }
        let at = self.at;
        if let Some((&start, &piece)) = self.ranges.pieces.range(..=at).next_back()
            && piece.end > at
        {
            let end = piece.end.min(self.end);
            self.at = end;
            return Some(Stretch { range: at..end, source: Some(piece.behind(at - start).source) });
        }
        let mut end =
            self.ranges.pieces.range(at..).next().map_or(self.end, |(start, _)| *start.min(&self.end));
        let visible = self.ranges.visible();
        let source = if at < visible {
            end = end.min(visible);
            None
        } else {
            Some(Source::Hole)
        };
        self.at = end;
        Some(Stretch { range: at..end, source })
    }
}
