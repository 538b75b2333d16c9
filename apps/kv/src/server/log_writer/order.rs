//! What several cores have done and what the log does not have yet, in the order in which it
//! arrived; and which records of the log each core waits for.
//!
//! 1. The log has one order, that of [`Queued`]. A member's effects are in it as they were sent,
//!    and an exclusive section follows everything that it could see.
//! 2. A dump of a member is in it too. When it is next, all earlier effects of that member
//!    are in the log and no later ones, so the last sequence of the log is that of the dump.
//! 3. A member counts its own records. [`Positions`] knows which record of the log each number
//!    stands for, until it is durable.

use std::collections::VecDeque;

/// What waits to go into the log.
pub(in crate::server) enum Queued {
    /// Effects of this core, or of an exclusive section.
    Own(Vec<u8>),
    /// Effects of a member.
    Record {
        /// The member.
        member: usize,
        /// The number that it has given the record.
        number: u64,
        /// The record.
        record: Vec<u8>,
    },
    /// From here on each member's number stands for everything before: the replies of an exclusive
    /// section may show all of it. By member; the first is unused.
    Section(Vec<u64>),
    /// Clients of a member wait until everything before is durable, even if the log is flushed
    /// rarely.
    Sync {
        /// The member.
        member: usize,
        /// Its last number.
        number: u64,
    },
    /// Dumps of a member.
    Dumped {
        /// The member.
        member: usize,
        /// The snapshot that they are for.
        snapshot: u64,
        /// Encoded effects.
        pieces: Vec<Vec<u8>>,
        /// Whether the member has dumped everything.
        complete: bool,
    },
}

/// How far the log has a member's records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::server) struct Progress {
    /// Records up to this number are in the log.
    pub(in crate::server) appended: u64,
    /// Records up to this number are durable.
    pub(in crate::server) durable: u64,
    /// Bytes of all its dumps that were taken, or dropped.
    pub(in crate::server) dumped: u64,
}

/// The members' numbers.
#[derive(Debug, Default)]
pub(super) struct Positions {
    /// Sequence, member, and the number that is durable with it, in order of the sequence.
    marks: VecDeque<(u64, usize, u64)>,
    /// By member; the first is unused.
    members: Vec<Progress>,
    reported: Vec<Progress>,
}

impl Positions {
    /// Of so many cores.
    pub(super) fn new(cores: usize) -> Self {
        let members = vec![Progress::default(); cores];
        Self { marks: VecDeque::new(), reported: members.clone(), members }
    }

    /// Notes that a record is in the log.
    pub(super) fn appended(&mut self, member: usize, number: u64) {
        let progress = &mut self.members[member];
        progress.appended = progress.appended.max(number);
    }

    /// Notes that so many bytes of a member's dumps were taken or dropped.
    pub(super) fn dumped(&mut self, member: usize, bytes: usize) {
        self.members[member].dumped += bytes as u64;
    }

    /// Notes that a number is durable when the record `sequence` is.
    pub(super) fn mark(&mut self, sequence: u64, member: usize, number: u64) {
        self.marks.push_back((sequence, member, number));
    }

    /// Notes that everything up to `sequence` is durable.
    pub(super) fn durable(&mut self, sequence: u64) {
        while let Some(&(wanted, member, number)) = self.marks.front()
            && wanted <= sequence
        {
            self.marks.pop_front();
            let progress = &mut self.members[member];
            progress.durable = progress.durable.max(number);
        }
    }

    /// Whether a member waits for a record.
    pub(super) fn is_awaited(&self) -> bool {
        !self.marks.is_empty()
    }

    /// The progress of a member, if it has changed since the last call.
    pub(super) fn take_news(&mut self, member: usize) -> Option<Progress> {
        let now = self.members[member];
        let before = std::mem::replace(&mut self.reported[member], now);
        (before != now).then_some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_durable_with_their_records_and_reported_once() {
        let mut positions = Positions::new(3);
        positions.appended(1, 1);
        positions.mark(10, 1, 1);
        positions.appended(2, 1);
        positions.mark(11, 2, 1);
        positions.appended(1, 2);
        positions.mark(12, 1, 2);
        positions.durable(11);
        assert_eq!(positions.take_news(1), Some(Progress { appended: 2, durable: 1, dumped: 0 }));
        assert_eq!(positions.take_news(2), Some(Progress { appended: 1, durable: 1, dumped: 0 }));
        assert_eq!(positions.take_news(1), None);
        assert!(positions.is_awaited());
        positions.durable(12);
        assert_eq!(positions.take_news(1), Some(Progress { appended: 2, durable: 2, dumped: 0 }));
        assert!(!positions.is_awaited());
    }
}
