//! Which extents move, and where to.
//!
//! 1. A round begins when a medium is at its high watermark or is leaving, when pins changed, when
//!    pinned files may have new data, or when enough was read that something may be hot. It knows
//!    how many blocks should leave each medium, and how many each one takes.
//! 2. The *warmth* of an extent is how often it was read lately, and how lately its file was
//!    written. A round takes extents up to a warmth. One that found none is followed by one that
//!    takes warmer ones, up to [`WARMEST`]; after that, nothing happens until the pool changes.
//! 3. Everything leaves a medium that is *leaving*, whatever its warmth, to any other one.
//! 4. What is taken waits in a list for its destination and direction. A list that fills a job is
//!    ready, and at the end of a round every list is.

use std::collections::BTreeMap;

use super::limits::{JOB_BLOCKS, JOB_EXTENTS, READS};
use super::owner::{Now, View};
use super::pins::Pins;
use crate::heat::Heat;
use crate::inode::{InodeNumber, Kind, Timestamp};
use crate::items::{self, Extent};
use crate::pool::limits::MAX_MEDIA;
use crate::pool::{Class, MediumUse};
use crate::tree::Key;

/// Reads of a region since some minutes that make it hot.
const HOT: u8 = 4;
/// Warmth of what was read and written just now.
const WARMEST: u8 = 15 + 3;
/// Nanoseconds between two rounds that look for new data of pinned files.
const PIN_ROUNDS: u64 = 10_000_000_000;
/// The shortest and the longest pause after a move for which there was no room, in nanoseconds: old
/// blocks are used again when the clients have taken notice, which takes them some time.
const PAUSE: (u64, u64) = (100_000_000, 60_000_000_000);

const FIRST: Key = Key { object: items::NO_INODE + 1, kind: 0, offset: 0 };

/// Which way data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    Slower,
    Faster,
}

/// An extent that is to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub inode: InodeNumber,
    pub extent: Extent,
}

/// Extents that are to move to one medium.
pub(super) type List = (u8, Direction);

#[derive(Debug, Default)]
struct Waiting {
    candidates: Vec<Candidate>,
    blocks: u64,
}

/// The inode that the hand is at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Current {
    pub inode: u64,
    pub kind: Option<Kind>,
    pub mtime: Timestamp,
    pub pin: Option<Class>,
}

/// Whether there is something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Now,
    /// At this time, in nanoseconds.
    At(u64),
    No,
}

/// See the module's account.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Where the hand is; `None`: between two rounds.
    pub at: Option<Key>,
    pub current: Current,
    /// Extents that this round took.
    found: u64,
    warmth: u8,
    /// Of each medium: it was at its high watermark, and is not at its low one yet.
    is_draining: [bool; MAX_MEDIA],
    /// Of each medium: it was leaving when the round began.
    is_leaving: [bool; MAX_MEDIA],
    /// Of each medium: blocks that this round should take from it.
    take: [u64; MAX_MEDIA],
    /// Of each medium: blocks that may come to it because they are read often.
    bring: [u64; MAX_MEDIA],
    /// Of each medium: blocks that it has room for.
    room: [u64; MAX_MEDIA],
    waiting: BTreeMap<List, Waiting>,
    /// The generation of which a round found nothing at the largest warmth.
    settled: Option<u64>,
    /// When a move is tried again for which there was no room, and the pause before that.
    postponed: Option<u64>,
    pause: u64,
    pin_changes: Option<u64>,
    pub has_pins: bool,
    /// Of the last round: the generation, its time, and the reads before it.
    last: (u64, u64, u64),
}

/// Blocks that may go to media of a slower class than `class`.
fn room_below(media: &[MediumUse], class: Class) -> bool {
    media.iter().any(|other| other.class > class && other.below_high() > 0)
}

impl Scan {
    /// Whether there is something to do.
    pub(super) fn wanted(&mut self, view: &View, heat: &Heat, pins: &Pins, now: Now) -> Wanted {
        let media = &view.media;
        let leaves = media.iter().any(|medium| medium.is_leaving && medium.used() > 0);
        if !leaves && media.iter().all(|medium| medium.class == media[0].class) {
            return Wanted::No;
        }
        for (medium, is_draining) in media.iter().zip(&mut self.is_draining) {
            *is_draining = medium.above_low() > 0 && (*is_draining || medium.is_at_high());
        }
        if self.at.is_some() || pins.is_walking() || !self.waiting.is_empty() {
            return Wanted::Now;
        }
        if let Some(later) = self.postponed.filter(|later| now.nanoseconds < *later) {
            return Wanted::At(later);
        }
        self.postponed = None;
        let generation = view.root.generation;
        let drains = media
            .iter()
            .zip(self.is_draining)
            .any(|(medium, is_draining)| is_draining && room_below(media, medium.class));
        let is_settled = self.settled == Some(generation);
        if self.pin_changes != Some(view.pin_changes) || ((drains || leaves) && !is_settled) {
            return Wanted::Now;
        }
        let (last, time, reads) = self.last;
        // They begin anew when heat ages.
        let new = heat.reads().checked_sub(reads).unwrap_or(heat.reads());
        let takes = |fast: &MediumUse| {
            fast.below_low() > 0 && media.iter().any(|slow| slow.class > fast.class && slow.used() > 0)
        };
        let due = time.saturating_add(PIN_ROUNDS);
        let has_pins = self.has_pins || pins.has_directories();
        let follows_pins = has_pins && generation != last;
        if (new >= READS && media.iter().any(takes)) || (follows_pins && now.nanoseconds >= due) {
            Wanted::Now
        } else if follows_pins {
            Wanted::At(due)
        } else {
            Wanted::No
        }
    }

    /// A list that is ready.
    pub(super) fn ready(&self) -> Option<List> {
        let is_over = self.at.is_none();
        let is_ready = |waiting: &Waiting| {
            is_over || waiting.blocks >= u64::from(JOB_BLOCKS) || waiting.candidates.len() >= JOB_EXTENTS
        };
        self.waiting.iter().find(|(_, waiting)| is_ready(waiting)).map(|(list, _)| *list)
    }

    /// Blocks that wait in a list, up to those of a job.
    pub(super) fn blocks(&self, list: List) -> u64 {
        self.waiting.get(&list).map_or(0, |waiting| waiting.blocks.min(u64::from(JOB_BLOCKS)))
    }

    /// Takes what a job moves from a list.
    pub(super) fn take_job(&mut self, list: List) -> Vec<Candidate> {
        let Some(waiting) = self.waiting.get_mut(&list) else { return Vec::new() };
        let mut blocks = 0;
        let fits = |candidate: &&Candidate| {
            blocks += candidate.extent.run.blocks;
            blocks <= JOB_BLOCKS
        };
        let count = waiting.candidates.iter().take(JOB_EXTENTS).take_while(fits).count();
        let taken: Vec<Candidate> = waiting.candidates.drain(..count).collect();
        waiting.blocks -= taken.iter().map(|taken| u64::from(taken.extent.run.blocks)).sum::<u64>();
        if waiting.candidates.is_empty() {
            self.waiting.remove(&list);
        }
        taken
    }

    /// Forgets what waits for a medium, because the pool has no room for the move now. It is found
    /// again after a pause, which gets longer each time.
    pub(super) fn postpone(&mut self, medium: u8, now: Now) {
        self.forget(medium);
        self.pause = (2 * self.pause).clamp(PAUSE.0, PAUSE.1);
        self.postponed = Some(now.nanoseconds.saturating_add(self.pause));
    }

    /// A move was made: there was room.
    pub(super) fn has_moved(&mut self) {
        self.pause = 0;
    }

    /// Forgets what waits for a medium.
    pub(super) fn forget(&mut self, medium: u8) {
        self.waiting.retain(|(other, _), _| *other != medium);
    }

    /// Begins a round. Media that are `broken` get nothing.
    pub(super) fn begin_round(&mut self, view: &View, heat: &Heat, now: Now, broken: &[bool; MAX_MEDIA]) {
        self.at = Some(FIRST);
        self.current = Current::default();
        self.found = 0;
        self.has_pins = false;
        self.pin_changes = Some(view.pin_changes);
        self.last = (view.root.generation, now.nanoseconds, heat.reads());
        for (at, medium) in view.media.iter().enumerate().take(MAX_MEDIA) {
            self.take[at] = if self.is_draining[at] { medium.above_low() } else { 0 };
            self.bring[at] = medium.below_low();
            self.room[at] = medium.below_high();
            if broken[at] || medium.is_leaving {
                (self.bring[at], self.room[at]) = (0, 0);
            }
            if medium.is_leaving {
                self.take[at] = medium.used();
            }
            self.is_leaving[at] = medium.is_leaving;
        }
    }

    /// Whether a medium was leaving when the round began.
    pub(super) fn is_leaving(&self, medium: u8) -> bool {
        self.is_leaving.get(usize::from(medium)).is_some_and(|is_leaving| *is_leaving)
    }

    /// Nothing more can be moved before the pool changes.
    pub(super) fn settle(&mut self, view: &View) {
        self.settled = Some(view.root.generation);
    }

    /// The hand has passed everything.
    pub(super) fn end_round(&mut self, view: &View) {
        self.at = None;
        let is_missing = self.take.iter().any(|blocks| *blocks > 0);
        if !is_missing {
            self.warmth = 0;
        } else if self.found == 0 {
            if self.warmth >= WARMEST {
                self.settled = Some(view.root.generation);
            }
            self.warmth = (2 * self.warmth + 1).min(WARMEST);
        }
    }

    /// A medium of a class, with room for `blocks` that `room` counts: where most room is.
    fn of_class(media: &[MediumUse], room: &[u64; MAX_MEDIA], class: Class, blocks: u64) -> Option<usize> {
        let fits = |at: &usize| media[*at].class == class && room[*at] >= blocks;
        (0..media.len()).filter(fits).max_by_key(|at| room[*at])
    }

    /// Adds an extent to the list of where it should go, if it should go anywhere.
    pub(super) fn add(
        &mut self,
        media: &[MediumUse],
        candidate: Candidate,
        pin: Option<Class>,
        warmth: (u8, u8),
    ) {
        if let Some(list) = self.judge(media, &candidate.extent, pin, warmth) {
            self.add_part(list, candidate);
        }
    }

    /// Adds a part of an extent to the list from which the extent was taken.
    pub(super) fn add_part(&mut self, list: List, candidate: Candidate) {
        let waiting = self.waiting.entry(list).or_default();
        waiting.blocks += u64::from(candidate.extent.run.blocks);
        waiting.candidates.push(candidate);
    }

    /// Where an extent should go, and notes that it goes there.
    fn judge(
        &mut self,
        media: &[MediumUse],
        extent: &Extent,
        pin: Option<Class>,
        (reads, youth): (u8, u8),
    ) -> Option<List> {
        let from = usize::from(extent.run.medium);
        let class = media.get(from)?.class;
        let blocks = u64::from(extent.run.blocks);
        let all = [Class::Nvm, Class::Ssd, Class::Hdd];
        let to = match pin {
            _ if media[from].is_leaving => {
                // Where its pin says, or else on the same class, a slower one, a faster one.
                let slower = all.into_iter().filter(|other| *other > class);
                let faster = all.into_iter().rev().filter(|other| *other < class);
                let classes = pin.into_iter().chain([class]).chain(slower).chain(faster);
                classes.into_iter().find_map(|other| Self::of_class(media, &self.room, other, blocks))
            }
            Some(pin) if pin == class => None,
            Some(pin) => Self::of_class(media, &self.room, pin, blocks),
            None if self.take[from] > 0 && reads + youth <= self.warmth => {
                let mut slower = all.into_iter().filter(|other| *other > class);
                slower.find_map(|other| Self::of_class(media, &self.room, other, blocks))
            }
            None if reads >= HOT => {
                let mut faster = all.into_iter().filter(|other| *other < class);
                faster.find_map(|other| Self::of_class(media, &self.bring, other, blocks))
            }
            None => None,
        }?;
        self.take[from] = self.take[from].saturating_sub(blocks);
        self.room[to] -= blocks.min(self.room[to]);
        self.bring[to] -= blocks.min(self.bring[to]);
        self.found += 1;
        let direction = if media[to].class >= class { Direction::Slower } else { Direction::Faster };
        // At most MAX_MEDIA.
        Some((to as u8, direction))
    }
}
