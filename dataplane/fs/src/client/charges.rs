//! What a client has logged for users with limits: see `quota`.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use crate::quota::Amount;

/// What this client has logged for users with a limit.
#[derive(Debug, Default)]
pub(super) struct Charges {
    /// Whether a user has a limit; `None`: not known of this generation.
    pub is_limited: Option<bool>,
    /// What was known last.
    was_limited: bool,
    /// Users that may have less when all of the log is digested and what it freed is free.
    freed: HashSet<u32, RandomState>,
    /// Nothing was noted of users since then.
    is_unknown: bool,
    /// By the positions of the records.
    logged: VecDeque<(u64, u32, Amount)>,
    sums: HashMap<u32, Amount, RandomState>,
}

impl Charges {
    /// Everything before `position` is digested, or at least the base is a newer one.
    pub(super) fn digested(&mut self, position: u64) {
        self.is_limited = None;
        while let Some((logged, uid, amount)) = self.logged.front().copied()
            && logged < position
        {
            self.logged.pop_front();
            if let Some(sum) = self.sums.get_mut(&uid) {
                *sum = sum.minus(amount);
                if *sum == Amount::ZERO {
                    self.sums.remove(&uid);
                }
            }
        }
    }

    /// The base says whether a user has a limit. From the first one on, more is noted.
    pub(super) fn known(&mut self, is_limited: bool) {
        self.is_unknown |= is_limited && !self.was_limited;
        (self.is_limited, self.was_limited) = (Some(is_limited), is_limited);
    }

    /// Whether it is noted which users have less.
    pub(super) fn notes_freed(&self) -> bool {
        self.was_limited
    }

    /// A user may have less when that is digested.
    pub(super) fn freed(&mut self, uid: u32) {
        self.freed.insert(uid);
    }

    /// All of the log is digested, and what it freed is free.
    pub(super) fn all_digested(&mut self) {
        self.freed.clear();
        self.is_unknown = false;
    }

    /// Whether a user may have less, or less pending, when all of the log is digested.
    pub(super) fn may_shrink(&self, uid: u32) -> bool {
        self.is_unknown || self.freed.contains(&uid) || self.sums.contains_key(&uid)
    }

    /// The record at `position` counts until it is digested.
    pub(super) fn log(&mut self, position: u64, charge: Charge) {
        let Charge { uid, amount } = charge;
        if amount == Amount::ZERO {
            // To overwrite a block needs nothing, and its digest gives nothing back.
            return;
        }
        self.logged.push_back((position, uid, amount));
        let sum = self.sums.entry(uid).or_default();
        *sum = sum.plus(amount);
    }

    /// What a user has beyond the digested state.
    pub(super) fn pending(&self, uid: u32) -> Amount {
        self.sums.get(&uid).copied().unwrap_or_default()
    }
}

/// What a record counts for a user until it is digested.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Charge {
    pub uid: u32,
    pub amount: Amount,
}

impl Charge {
    /// The part that a record of a few blocks counts; the rest stays.
    pub(super) fn split(&mut self, blocks: u64) -> Self {
        let part = Amount { blocks: blocks.min(self.amount.blocks), inodes: self.amount.inodes };
        self.amount = self.amount.minus(part);
        Self { uid: self.uid, amount: part }
    }
}
