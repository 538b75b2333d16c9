//! What is in flight: runs of sequence numbers that were sent at about the same time and have the
//! same state.
//!
//! ```text
//! una                                                            max
//!  |--------|-----------|------|----------------|-----------------|
//!    sent 1   sent 2      lost   sacked           sent 3 (newest)
//! ```
//!
//! 1. Runs are contiguous from the oldest unacknowledged number to the highest sent. Each holds its
//!    end, the time of its last transmission, and marks. Data sent within one grain of time, a
//!    small part of the round trip, extend the newest run. A window is therefore some dozens of
//!    runs however many segments it has, and a request with its response touches one run and no
//!    heap.
//! 2. A cumulative acknowledgement removes runs from the front. It yields the round-trip sample
//!    (RFC 6298; by Karn's rule not from retransmitted data) and the newest delivered transmission
//!    for RACK (RFC 8985).
//! 3. A SACK block splits runs at its edges and marks those between (RFC 2018). Marked data stay,
//!    because the receiver may renege until it acknowledges cumulatively;
//!    [`Scoreboard::forget_sacked`] removes all marks then.
//! 4. [`Scoreboard::detect`] is RACK's loss detection: data sent before something that has arrived,
//!    by more than the reordering window, are lost. Lost data leave the pipe until they are
//!    retransmitted (RFC 6675).
//!
//! There are at most [`RUNS`] runs. A split beyond that first merges neighbours of the same state.
//! If that does not help, the split does not happen, and bytes count as in flight that the peer
//! reported as received. That errs towards a late retransmission, never towards data believed
//! delivered that were not. A peer that acknowledges every other byte thus costs bounded memory and
//! a bounded scan per block.

use std::collections::VecDeque;

use crate::limits::RUNS;
use crate::packet::sequence::Seq;

/// Marks of a run.
pub(crate) mod mark {
    /// The receiver reported these bytes as received.
    pub(crate) const SACKED: u8 = 1 << 0;
    /// Lost, and not retransmitted yet.
    pub(crate) const LOST: u8 = 1 << 1;
    /// Sent more than once.
    pub(crate) const RETRANSMITTED: u8 = 1 << 2;
    /// Merged from runs that were sent at different times: `sent` is the latest.
    pub(crate) const COARSE: u8 = 1 << 3;
}

/// Bytes up to `end`, from where the run before ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    /// When they were sent last.
    pub sent: u64,
    pub end: Seq,
    pub marks: u8,
}

impl Run {
    const fn has(&self, marks: u8) -> bool {
        self.marks & marks != 0
    }
}

const _: () = assert!(size_of::<Run>() == 16);

/// What an acknowledgement, cumulative or selective, delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// Newly delivered bytes.
    pub bytes: u32,
    /// Of them, those that were sent once.
    pub original: u32,
    /// When the oldest and the newest of the bytes that a cumulative acknowledgement covers were
    /// sent. Zero unless all of them were sent once and their time is known exactly.
    pub oldest: u64,
    pub newest: u64,
    /// Of what was delivered, what was sent last: when, up to where, and whether it had been sent
    /// before (RACK.segment).
    pub latest: Option<(u64, Seq, bool)>,
    /// The lowest end of what was delivered and sent once: below what was delivered before, it was
    /// overtaken.
    pub lowest_original: Option<Seq>,
    /// Some of it was sent more than once.
    pub retransmitted: bool,
}

impl Delivered {
    fn take(&mut self, run: Run, bytes: u32) {
        if run.has(mark::SACKED) {
            return;
        }
        self.bytes += bytes;
        let retransmitted = run.has(mark::RETRANSMITTED);
        if retransmitted {
            self.retransmitted = true;
        } else {
            self.original += bytes;
            self.lowest_original = Some(self.lowest_original.map_or(run.end, |lowest| lowest.min(run.end)));
        }
        let later = |(sent, end, _): (u64, Seq, bool)| sent_after((run.sent, run.end), (sent, end));
        if self.latest.is_none_or(later) {
            self.latest = Some((run.sent, run.end, retransmitted));
        }
    }
}

/// Whether the first was sent after the second (RFC 8985 section 6.1, RACK_sent_after).
pub(crate) fn sent_after(first: (u64, Seq), second: (u64, Seq)) -> bool {
    first.0 > second.0 || (first.0 == second.0 && first.1.after(second.1))
}

/// The runs of one flow.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    /// The last run, if there is any. It is not in `older`, so that a flow with one burst in flight
    /// needs no heap.
    newest: Run,
    /// When the newest run was begun.
    begun: u64,
    /// Data sent within so much time are one run.
    grain: u64,
    older: VecDeque<Run>,
    /// Where the first run begins.
    start: Seq,
    any: bool,
    sacked: u32,
    lost: u32,
}

impl Scoreboard {
    /// Forgets everything: from `start` on, nothing was sent.
    pub(crate) fn reset(&mut self, start: Seq) {
        *self = Self { start, grain: self.grain, ..Self::default() };
    }

    /// Bytes that the receiver reported beyond the cumulative acknowledgement.
    #[inline]
    pub(crate) const fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Bytes that are lost and not retransmitted.
    #[inline]
    pub(crate) const fn lost(&self) -> u32 {
        self.lost
    }

    /// Runs there are.
    pub(crate) fn len(&self) -> usize {
        self.older.len() + usize::from(self.any)
    }

    /// Sets the time within which sent data are one run.
    #[inline]
    pub(crate) fn set_grain(&mut self, grain: u64) {
        self.grain = grain;
    }

    /// Bytes up to `end` were sent for the first time.
    #[inline]
    pub(crate) fn sent(&mut self, end: Seq, now: u64) {
        if self.any {
            if self.newest.marks == 0 && now.wrapping_sub(self.begun) <= self.grain {
                self.newest.end = end;
                self.newest.sent = now;
                return;
            }
            self.push_newest(now);
        }
        self.any = true;
        self.begun = now;
        let marks = self.newest.marks & mark::COARSE;
        self.newest = Run { sent: now, end, marks };
    }

    /// Makes room for another newest run. If there is none, the newest is merged into the next one.
    fn push_newest(&mut self, now: u64) {
        if self.older.len() + 1 >= RUNS {
            self.open();
            self.join();
            self.close();
        }
        if self.older.len() + 1 >= RUNS {
            let bytes = self.newest.end.since(self.newest_start());
            self.uncount(self.newest, bytes);
            self.newest = Run { sent: now, end: self.newest.end, marks: mark::COARSE };
        } else {
            self.older.push_back(self.newest);
            self.newest.marks = 0;
        }
    }

    fn newest_start(&self) -> Seq {
        self.older.back().map_or(self.start, |run| run.end)
    }

    /// Everything before `una` is acknowledged.
    #[inline]
    pub(crate) fn acknowledge(&mut self, una: Seq) -> Delivered {
        if self.older.is_empty() && self.newest.marks == 0 && self.any {
            let bytes = una.since(self.start);
            self.start = una;
            let Run { sent, end, .. } = self.newest;
            self.any = una.before(end);
            return Delivered {
                bytes,
                original: bytes,
                oldest: sent,
                newest: sent,
                latest: Some((sent, end.min(una), false)),
                lowest_original: None,
                retransmitted: false,
            };
        }
        self.acknowledge_runs(una)
    }

    fn acknowledge_runs(&mut self, una: Seq) -> Delivered {
        let mut delivered = Delivered::default();
        let mut timed = true;
        self.open();
        while self.start.before(una)
            && let Some(run) = self.older.front_mut()
        {
            let whole = !run.end.after(una);
            let end = if whole { run.end } else { una };
            let bytes = end.since(self.start);
            let run = Run { end, ..*run };
            delivered.take(run, bytes);
            timed &= !run.has(mark::RETRANSMITTED) && (whole || !run.has(mark::COARSE));
            if !run.has(mark::SACKED) {
                delivered.oldest = if delivered.oldest == 0 { run.sent } else { delivered.oldest };
                delivered.newest = run.sent;
            }
            if whole {
                self.older.pop_front();
            }
            self.uncount(run, bytes);
            self.start = end;
        }
        self.start = self.start.max(una);
        self.close();
        if !timed {
            (delivered.oldest, delivered.newest) = (0, 0);
        }
        delivered
    }

    /// The receiver reports the bytes from `first` up to but without `last`. Those in flight are
    /// marked.
    pub(crate) fn sack(&mut self, first: Seq, last: Seq, delivered: &mut Delivered) {
        self.open();
        if let Some(from) = self.split(first) {
            // Without room for the far edge, the run across it keeps its state.
            let to =
                self.split(last).unwrap_or_else(|| self.older.partition_point(|run| !run.end.after(last)));
            for at in from..to {
                let (run, bytes) = self.run(at);
                if run.has(mark::SACKED) {
                    continue;
                }
                delivered.take(run, bytes);
                self.uncount(run, bytes);
                self.older[at].marks = run.marks & !mark::LOST | mark::SACKED;
                self.sacked += bytes;
            }
        }
        self.close();
    }

    /// RACK_detect_loss (RFC 8985 section 6.2 step 5): marks as lost what was sent before `latest`
    /// and longer than `patience` ago. Returns the bytes marked, and when the next of what was sent
    /// before `latest` will have waited as long.
    pub(crate) fn detect(&mut self, latest: (u64, Seq), patience: u64, now: u64) -> (u32, Option<u64>) {
        let (mut marked, mut next) = (0, None);
        self.open();
        for at in 0..self.older.len() {
            let (run, bytes) = self.run(at);
            // Within one tick, a retransmission may have been sent before or after new data.
            let overtaken = if run.has(mark::RETRANSMITTED) {
                latest.0 > run.sent
            } else {
                sent_after(latest, (run.sent, run.end))
            };
            if run.has(mark::SACKED | mark::LOST) || !overtaken {
                continue;
            }
            let due = run.sent.saturating_add(patience);
            if due <= now {
                self.older[at].marks |= mark::LOST;
                marked += bytes;
            } else {
                // All of them at once when the last is due, as in the RFC.
                next = next.max(Some(due));
            }
        }
        self.lost += marked;
        self.close();
        (marked, next)
    }

    /// Marks as lost what was sent at `before` or earlier and was not delivered, and the first
    /// bytes whenever they were sent.
    pub(crate) fn mark_lost(&mut self, before: u64) {
        self.open();
        for at in 0..self.older.len() {
            let (run, bytes) = self.run(at);
            if !run.has(mark::SACKED | mark::LOST) && (at == 0 || run.sent <= before) {
                self.older[at].marks |= mark::LOST;
                self.lost += bytes;
            }
        }
        self.close();
    }

    /// Marks the first `bytes` as lost, unless they were delivered.
    pub(crate) fn mark_first_lost(&mut self, bytes: u32) {
        self.open();
        let end = self.older.back().map_or(self.start, |run| run.end).min(self.start.plus(bytes));
        let to = self.split(end).unwrap_or(1);
        for at in 0..to.min(self.older.len()) {
            let (run, bytes) = self.run(at);
            if !run.has(mark::SACKED | mark::LOST) {
                self.older[at].marks |= mark::LOST;
                self.lost += bytes;
            }
        }
        self.close();
    }

    /// Nothing is lost: bytes that counted as lost are in flight.
    pub(crate) fn clear_lost(&mut self) {
        self.open();
        self.older.iter_mut().for_each(|run| run.marks &= !mark::LOST);
        self.lost = 0;
        self.close();
    }

    /// The first bytes that are lost.
    pub(crate) fn first_lost(&self) -> Option<(Seq, Seq)> {
        if self.lost == 0 {
            return None;
        }
        let mut start = self.start;
        for run in self.older.iter().chain(self.any.then_some(&self.newest)) {
            if run.has(mark::LOST) {
                return Some((start, run.end));
            }
            start = run.end;
        }
        None
    }

    /// The bytes from `first` up to but without `last` were retransmitted.
    pub(crate) fn retransmitted(&mut self, first: Seq, last: Seq, now: u64) {
        self.open();
        if let Some(from) = self.split(first) {
            let to = self.split(last).unwrap_or_else(|| self.older.len().min(from + 1));
            for at in from..to {
                let (run, bytes) = self.run(at);
                if run.has(mark::SACKED) {
                    continue;
                }
                self.uncount(run, bytes);
                self.older[at].marks = run.marks & !mark::LOST | mark::RETRANSMITTED;
                self.older[at].sent = now;
            }
            // A retransmitted burst is one run.
            if to == from + 1
                && from > 0
                && self.older[from - 1].marks == self.older[from].marks
                && self.older[from - 1].sent == now
            {
                self.older.remove(from - 1);
            }
        }
        self.close();
    }

    /// Whether the receiver reported the first bytes, and yet does not acknowledge them: it has
    /// reneged.
    pub(crate) fn is_reneged(&self) -> bool {
        self.older.front().or(self.any.then_some(&self.newest)).is_some_and(|run| run.has(mark::SACKED))
    }

    /// Discards all selective acknowledgements (RFC 2018 section 8).
    pub(crate) fn forget_sacked(&mut self) {
        self.open();
        self.older.iter_mut().for_each(|run| run.marks &= !mark::SACKED);
        self.sacked = 0;
        self.close();
    }

    /// Whether at least three runs or two segments' worth of bytes and one more were delivered
    /// beyond a gap (RFC 6675 IsLost, RFC 8985's DupThresh).
    pub(crate) fn is_threshold_reached(&self, mss: u32) -> bool {
        let runs = self.older.iter().chain(self.any.then_some(&self.newest));
        self.sacked > 2 * mss || runs.filter(|run| run.has(mark::SACKED)).take(3).count() == 3
    }

    /// Moves the newest run to the others, so that all are in one list.
    fn open(&mut self) {
        if std::mem::take(&mut self.any) {
            self.older.push_back(self.newest);
        }
    }

    fn close(&mut self) {
        if let Some(newest) = self.older.pop_back() {
            self.newest = newest;
            self.any = true;
        } else if self.older.capacity() > RUNS / 4 {
            self.older = VecDeque::new();
        }
        // Data sent from now on begin a new run: the time or the state of the newest run may have
        // changed.
        self.begun = 0;
    }

    fn run(&self, at: usize) -> (Run, u32) {
        let start = if at == 0 { self.start } else { self.older[at - 1].end };
        (self.older[at], self.older[at].end.since(start))
    }

    /// Takes the bytes of a run out of the sums.
    fn uncount(&mut self, run: Run, bytes: u32) {
        if run.has(mark::SACKED) {
            self.sacked -= bytes;
        } else if run.has(mark::LOST) {
            self.lost -= bytes;
        }
    }

    /// Makes a run begin at `at` and returns its index; the index after the last if `at` is the
    /// end. `None` if there is no room for one more.
    fn split(&mut self, at: Seq) -> Option<usize> {
        let begins = |board: &Self| board.older.partition_point(|run| !run.end.after(at));
        let place = begins(self);
        if self.run_start(place) == at {
            return Some(place);
        }
        if self.older.len() >= RUNS {
            self.join();
        }
        let place = begins(self);
        if self.run_start(place) == at {
            return Some(place);
        }
        if self.older.len() >= RUNS || place >= self.older.len() {
            return None;
        }
        let run = self.older[place];
        self.older.insert(place, Run { end: at, ..run });
        Some(place + 1)
    }

    fn run_start(&self, place: usize) -> Seq {
        if place == 0 { self.start } else { self.older[place - 1].end }
    }

    /// Merges neighbours in the same state.
    fn join(&mut self) {
        let fate = |run: &Run| run.marks & (mark::SACKED | mark::LOST | mark::RETRANSMITTED);
        let mut kept: usize = 0;
        for at in 1..self.older.len() {
            let run = self.older[at];
            let last = &mut self.older[kept];
            if fate(last) == fate(&run) {
                let coarse = if last.sent == run.sent { 0 } else { mark::COARSE };
                let marks = last.marks | run.marks | coarse;
                *last = Run { sent: last.sent.max(run.sent), end: run.end, marks };
            } else {
                kept += 1;
                self.older[kept] = run;
            }
        }
        self.older.truncate(kept + 1);
    }
}

#[cfg(test)]
mod tests;
