//! The way from a directory up to the root, which a rename follows to learn whether the directory
//! is below another one.
//!
//! A tree may be 65,536 directories deep, so the way is followed in steps, between which others use
//! the file system. A directory on it that moves meanwhile begins it anew.

use foldhash::fast::RandomState;
use hashbrown::HashSet;

use crate::inode::InodeNumber;

/// Directories above one, at most: a path of `PATH_MAX` bytes has fewer, but a tree can be moved
/// deeper. A deeper one is refused rather than followed for ever.
pub(crate) const MAX_DEPTH: usize = 1 << 16;
/// Directories that a step passes: far more than paths have.
const STEP: usize = 256;

/// The ways of a rename that is done in steps: of the new directory, and of the old one.
#[derive(Debug, Default)]
pub struct Ways(pub(crate) [Ascent; 2]);

/// What a step of an ascent has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Whether the directory is the other one, or somewhere below it.
    IsBelow(bool),
    /// The way is broken, or longer than any that is followed.
    NoWay,
    /// Nothing yet.
    Unfinished,
}

/// The module's header describes it.
#[derive(Debug)]
pub(crate) struct Ascent {
    /// Whether the first one is below the second one.
    question: Option<(InodeNumber, InodeNumber)>,
    at: InodeNumber,
    passed: HashSet<InodeNumber, RandomState>,
    /// What the caller knew when the way was valid last.
    stamp: Stamp,
}

/// When a way was valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The grant under which no other client moves a directory.
    pub grant: u64,
    /// Entries that this client has moved.
    pub moves: u64,
}

impl Default for Ascent {
    fn default() -> Self {
        let at = InodeNumber::ROOT;
        Self { question: None, at, passed: HashSet::default(), stamp: Stamp::default() }
    }
}

impl Ascent {
    /// Takes a step. `moved` are the inodes that moved last, the newest last.
    pub(crate) fn step<E>(
        &mut self,
        question: (InodeNumber, InodeNumber),
        stamp: Stamp,
        moved: impl DoubleEndedIterator<Item = InodeNumber> + ExactSizeIterator,
        mut parent: impl FnMut(InodeNumber) -> Result<Option<InodeNumber>, E>,
    ) -> Result<Found, E> {
        let new = stamp.moves - self.stamp.moves;
        let is_valid = self.question == Some(question)
            && self.stamp.grant == stamp.grant
            && new <= moved.len() as u64
            && !moved.rev().take(new as usize).any(|inode| self.passed.contains(&inode));
        if !is_valid {
            (self.question, self.at) = (Some(question), question.0);
            self.passed.clear();
        }
        self.stamp = stamp;
        for _ in 0..STEP {
            if self.at == question.1 || self.at == InodeNumber::ROOT {
                return Ok(Found::IsBelow(self.at == question.1));
            }
            if self.passed.len() == MAX_DEPTH || !self.passed.insert(self.at) {
                return Ok(Found::NoWay);
            }
            match parent(self.at)? {
                Some(above) => self.at = above,
                None => return Ok(Found::NoWay),
            }
        }
        Ok(Found::Unfinished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps until something is found, in a chain of directories from 2 on; what it was, and steps.
    fn climb(ascent: &mut Ascent, from: u64, above: u64) -> (Found, usize) {
        for steps in 1.. {
            let parent = |inode: InodeNumber| Ok::<_, ()>(Some(InodeNumber(inode.0 - 1)));
            let question = (InodeNumber(from), InodeNumber(above));
            let found = ascent.step(question, Stamp::default(), [].into_iter(), parent).expect("a way");
            if found != Found::Unfinished {
                return (found, steps);
            }
        }
        unreachable!("it ends");
    }

    #[test]
    fn a_way_is_followed_in_steps() {
        let root = InodeNumber::ROOT.0;
        assert_eq!(climb(&mut Ascent::default(), root, root), (Found::IsBelow(true), 1));
        assert_eq!(climb(&mut Ascent::default(), root + 200, root + 7), (Found::IsBelow(true), 1));
        assert_eq!(climb(&mut Ascent::default(), root + 200, 1 << 20), (Found::IsBelow(false), 1));
        let steps = 10_000_usize.div_ceil(STEP);
        assert_eq!(climb(&mut Ascent::default(), root + 10_000, 1 << 20), (Found::IsBelow(false), steps));
        let deep = root + MAX_DEPTH as u64;
        assert_eq!(climb(&mut Ascent::default(), deep, 1 << 20).0, Found::IsBelow(false));
        assert_eq!(climb(&mut Ascent::default(), deep + 2, 1 << 20).0, Found::NoWay);
    }

    /// Only what moves on the way begins it anew.
    #[test]
    fn a_way_begins_anew_when_it_changes() {
        let (mut asked, mut ascent) = (0, Ascent::default());
        let question = (InodeNumber(5000), InodeNumber(1 << 20));
        let mut step = |grant, moves: u64, moved: &[u64]| {
            asked = 0;
            let mut first = None;
            let parent = |inode: InodeNumber| {
                first.get_or_insert(inode);
                asked += 1;
                Ok::<_, ()>(Some(InodeNumber(inode.0 - 1)))
            };
            let moved = moved.iter().copied().map(InodeNumber);
            let found = ascent.step(question, Stamp { grant, moves }, moved, parent).expect("a way");
            assert_eq!(found, Found::Unfinished);
            first.expect("a step").0
        };
        assert_eq!(step(1, 0, &[]), 5000);
        assert_eq!(step(1, 0, &[]), 5000 - STEP as u64);
        // One ahead, and one elsewhere.
        assert_eq!(step(1, 2, &[100, 9999]), 5000 - 2 * STEP as u64);
        assert_eq!(step(1, 3, &[100, 9999, 4990]), 5000, "it moved");
        assert_eq!(step(1, 3, &[100, 9999, 4990]), 5000 - STEP as u64, "that was before");
        assert_eq!(step(2, 3, &[]), 5000, "others had the lease");
        assert_eq!(step(2, 5, &[9999]), 5000, "what else moved is not known");
    }
}
