//! The groups whose packets we take (RFC 3376, RFC 3810), and when routers and switches get
//! reports.
//!
//! 1. Joining and leaving are reported at once and once more a second later, because a report may
//!    be lost.
//! 2. A query is answered with all groups after a random part of the time that it allows, so that
//!    not all hosts answer at once. The engine's secret determines that part. Another query
//!    meanwhile is answered by the same report.
//! 3. There are at most [`GROUPS`] groups: a report of all of them fits the smallest packet.

use crate::limits::{GROUPS, NEVER, SECOND};
use crate::packet::Address;

pub(crate) mod multicast;

/// What a report says of a group (RFC 3376 section 4.2.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Change {
    /// Joined, as before.
    Wanted = 2,
    /// Left.
    Left = 3,
    /// Joined since the last report.
    Joined = 4,
}

/// The groups.
#[derive(Debug)]
pub(crate) struct Groups {
    /// Each with the number of its joins.
    joined: Vec<(Address, u32)>,
    /// Changes to report, and when.
    due: Vec<(u64, Address, Change)>,
    /// When to answer a query, by family.
    answer_at: [Option<u64>; 2],
    /// The earliest of all these times.
    next: u64,
}

impl Default for Groups {
    fn default() -> Self {
        Self { joined: Vec::new(), due: Vec::new(), answer_at: [None; 2], next: NEVER }
    }
}

impl Groups {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.joined.is_empty()
    }

    /// Whether packets for `group` are wanted.
    pub(super) fn contains(&self, group: &Address) -> bool {
        self.joined.iter().any(|(address, _)| address == group)
    }

    /// Joins a group. False if there are too many.
    pub(super) fn join(&mut self, group: Address, now: u64) -> bool {
        if let Some(entry) = self.joined.iter_mut().find(|(address, _)| *address == group) {
            entry.1 += 1;
            return true;
        }
        if self.joined.len() >= GROUPS {
            return false;
        }
        self.joined.push((group, 1));
        self.schedule_reports(group, Change::Joined, now);
        true
    }

    /// Leaves a group. False if it was not joined.
    pub(super) fn leave(&mut self, group: Address, now: u64) -> bool {
        let Some(place) = self.joined.iter().position(|(address, _)| *address == group) else { return false };
        self.joined[place].1 -= 1;
        if self.joined[place].1 == 0 {
            self.joined.remove(place);
            self.schedule_reports(group, Change::Left, now);
        }
        true
    }

    fn schedule_reports(&mut self, group: Address, change: Change, now: u64) {
        self.due.retain(|(_, address, _)| *address != group);
        self.due.extend([(now, group, change), (now + SECOND, group, change)]);
        self.note_next();
    }

    /// A router queries the groups of a family and waits for `within` nanoseconds.
    pub(super) fn queried(&mut self, v4: bool, within: u64, random: u64, now: u64) {
        let at = &mut self.answer_at[usize::from(!v4)];
        if at.is_none() && self.joined.iter().any(|(group, _)| group.is_v4() == v4) {
            *at = Some(now + random % within.max(1));
            self.note_next();
        }
    }

    /// When the next report is due.
    #[inline]
    pub(super) const fn deadline(&self) -> u64 {
        self.next
    }

    fn note_next(&mut self) {
        let changes = self.due.iter().map(|due| due.0);
        self.next = changes.chain(self.answer_at.into_iter().flatten()).min().unwrap_or(NEVER);
    }

    /// The changes to report now.
    pub(super) fn take_due(&mut self, now: u64) -> Vec<(Address, Change)> {
        let mut all: Vec<_> = self.due.iter().filter(|due| due.0 <= now).map(|due| (due.1, due.2)).collect();
        self.due.retain(|due| due.0 > now);
        for (place, at) in self.answer_at.iter_mut().enumerate() {
            if at.is_some_and(|at| at <= now) {
                *at = None;
                let family = self.joined.iter().filter(|(group, _)| group.is_v4() == (place == 0));
                all.extend(family.map(|(group, _)| (*group, Change::Wanted)));
            }
        }
        self.note_next();
        all
    }
}
