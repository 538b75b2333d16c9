//! The hand, which passes over all items of the tree.
//!
//! 1. It notes of each inode its kind, its time and its pin, which come before its extents, and
//!    adds the extents that should move to the lists of [`scan`](super::scan).
//! 2. It skips entries: nothing of a directory moves. Between two rounds, the directories that pin
//!    files are walked.
//! 3. It stops after some items, and goes on in the next step, in whatever generation is the
//!    current one then.

use sietch_disk::DiskQueue;

use super::Mover;
use super::owner::{Now, View};
use super::scan::{Candidate, Current};
use crate::base::Base as _;
use crate::digested::Digested;
use crate::error::Fault;
use crate::inode::{InodeNumber, Kind, Timestamp};
use crate::items::{self, Extent};
use crate::pin::{self, PIN};
use crate::pool::{Class, Copier};
use crate::tree::Key;

/// Items that the hand passes in a step: less than a millisecond if they are in memory.
const ITEMS: usize = 512;
/// Ages of a file in seconds, at which it gets colder by one.
const AGES: [i64; 3] = [10, 60, 600];

/// How lately a file was written: 3 to 0.
fn youth(mtime: Timestamp, now: Timestamp) -> u8 {
    let age = now.seconds.saturating_sub(mtime.seconds);
    AGES.into_iter().map(|limit| u8::from(age < limit)).sum()
}

impl Mover {
    /// Moves the hand, or walks over the directories that pin files.
    pub(super) fn look<D: DiskQueue>(
        &mut self,
        base: &mut Digested<Copier<D>>,
        view: &View,
        now: Now,
    ) -> Result<(), Fault> {
        if self.scan.at.is_none() && self.pins.is_walking() {
            if self.pins.walk(base, ITEMS)? {
                self.begin_round(view, now);
            }
            return Ok(());
        }
        if self.scan.at.is_none() {
            // What is not remembered is found in each round, and moves in none.
            if self.unreadable.has_forgotten() && self.moves.runs == self.runs_before {
                self.scan.settle(view);
                self.unreadable.begin_round();
                return Ok(());
            }
            self.begin_round(view, now);
        }
        for _ in 0..ITEMS {
            let Some(at) = self.scan.at else { break };
            let Some((key, value)) = base.store_mut().reader().next(at)? else {
                self.scan.end_round(view);
                self.pins.end_round();
                break;
            };
            self.scan.at = Some(self.item(base, view, now, (key, &value))?);
        }
        Ok(())
    }

    fn begin_round(&mut self, view: &View, now: Now) {
        self.runs_before = self.moves.runs;
        self.unreadable.begin_round();
        self.scan.begin_round(view, &self.heat, now, &self.is_broken);
        self.pins.begin_round();
    }

    /// Looks at an item; where the hand goes on.
    fn item<D: DiskQueue>(
        &mut self,
        base: &mut Digested<Copier<D>>,
        view: &View,
        now: Now,
        (key, value): (Key, &[u8]),
    ) -> Result<Key, Fault> {
        let inode = InodeNumber(key.object);
        if self.scan.current.inode != key.object {
            self.scan.current = Current { inode: key.object, ..Current::default() };
        }
        let current = &mut self.scan.current;
        let next = match key.offset.checked_add(1) {
            Some(offset) => Key { offset, ..key },
            None => Key { offset: 0, kind: key.kind.saturating_add(1), ..key },
        };
        match key.kind {
            items::INODE => {
                if let Some(found) = items::read_inode(value) {
                    (current.kind, current.mtime) = (Some(found.kind), found.mtime);
                }
            }
            items::XATTR if items::read_xattr(value).is_some_and(|(name, ..)| name == PIN) => {
                let class = base.xattr(inode, PIN)?.and_then(|value| pin::class(&value));
                self.scan.has_pins |= class.is_some();
                match (current.kind, class) {
                    (Some(Kind::Directory), Some(class)) => self.pins.add_directory(inode, class),
                    _ => current.pin = class,
                }
            }
            // Nothing of a directory moves.
            items::ENTRY => return Ok(Key { object: key.object, kind: items::EXTENT, offset: 0 }),
            items::EXTENT => {
                if let Some(extent) = items::read_extent(key.offset, value) {
                    self.extent(view, now, inode, extent);
                }
            }
            // Pieces of attributes.
            kind if kind > items::EXTENT => {
                return Ok(Key { object: key.object.saturating_add(1), kind: 0, offset: 0 });
            }
            _ => {}
        }
        Ok(next)
    }

    fn extent(&mut self, view: &View, now: Now, inode: InodeNumber, extent: Extent) {
        let from = extent.run.medium;
        let is_leaving = view.media.get(usize::from(from)).is_some_and(|medium| medium.is_leaving);
        // Room that was reserved is where its data should come first.
        let stays = extent.is_unwritten() || self.unreadable.fails(from);
        if stays && !is_leaving {
            return;
        }
        let Some(extent) = self.unreadable.readable_part(inode, extent) else { return };
        let current = self.scan.current;
        // A class may be gone since the pin was set.
        let is_there = |class: &Class| view.media.iter().any(|it| it.blocks > 0 && it.class == *class);
        let pin = current.pin.filter(is_there).or_else(|| self.pins.inherited(inode).filter(is_there));
        let warmth = (self.heat.of(inode, extent.first), youth(current.mtime, now.time));
        self.scan.add(&view.media, Candidate { inode, extent }, pin, warmth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_get_colder_with_age() {
        let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
        let ages = [0, 9, 10, 59, 60, 599, 600, 1 << 40].map(|age| youth(at(1000), at(1000 + age)));
        assert_eq!(ages, [3, 3, 2, 2, 1, 1, 0, 0]);
        // A clock that was set back.
        assert_eq!(youth(at(1000), at(0)), 3);
        assert_eq!(youth(at(i64::MIN), at(i64::MAX)), 0);
    }
}
