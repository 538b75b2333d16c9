//! What users have: the sums over all inodes, against the items that say them.

use std::collections::BTreeMap;

use super::finding::{Finding, Findings};
use crate::base::Inode;
use crate::items;
use crate::pool::Item;
use crate::quota::{Amount, Quota};

/// What sets wrong sums right.
const LOST: &str = "nothing; `sietch fs quota FOLDER --recount` counts again";

/// The module's header describes it.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// What inodes add up to.
    used: BTreeMap<u32, Amount>,
    /// What the items say.
    said: BTreeMap<u32, Quota>,
    /// The mark that users are counted, and how many have a limit.
    limited: Option<u64>,
}

impl Users {
    /// An inode counts at its owner.
    pub(super) fn inode(&mut self, inode: &Inode) {
        let used = self.used.entry(inode.uid).or_default();
        *used = used.plus(Amount { blocks: inode.blocks, inodes: 1 });
    }

    /// The item of a user.
    pub(super) fn user(&mut self, item: &Item<'_>, findings: &mut Findings) {
        match (items::user_of(item.key), items::read_user(item.value)) {
            (Some(uid), Some(quota)) => drop(self.said.insert(uid, quota)),
            _ => {
                let what = format!("what user {} has cannot be read", item.key.offset);
                let lost = "the user's limit; `sietch fs quota FOLDER --recount` counts again";
                findings.add(Finding { inode: None, ..Finding::of(item, what) }.losing(lost));
            }
        }
    }

    /// The mark that users are counted.
    pub(super) fn counted(&mut self, item: &Item<'_>, findings: &mut Findings) {
        match items::read_counted(item.value).filter(|_| item.key == items::COUNTED_KEY) {
            Some(limited) => self.limited = Some(limited),
            None => {
                let what = "the number of users with a limit cannot be read".to_owned();
                findings.add(Finding { inode: None, ..Finding::of(item, what) }.losing(LOST));
            }
        }
    }

    /// Whether users are counted, as far as that can be read.
    pub(super) fn are_counted(&self) -> bool {
        self.limited.is_some()
    }

    /// Judges the sums, after the walk. A pool whose users were never counted has none.
    pub(super) fn judge(&self, home: &str, findings: &mut Findings) {
        let Some(limited) = self.limited else { return };
        let mut users: Vec<u32> = self.used.keys().chain(self.said.keys()).copied().collect();
        users.sort_unstable();
        users.dedup();
        for uid in users {
            let used = self.used.get(&uid).copied().unwrap_or_default();
            let said = self.said.get(&uid).copied().unwrap_or_default().used;
            if used != said {
                let what = format!(
                    "user {uid} has {} blocks and {} inodes, and the item says {} and {}",
                    used.blocks, used.inodes, said.blocks, said.inodes
                );
                findings.add(Finding::of_pool(home, what).losing(LOST));
            }
        }
        let counted = self.said.values().filter(|quota| quota.limit != Amount::ZERO).count() as u64;
        if counted != limited {
            let what = format!("{counted} users have a limit, and the mark says {limited}");
            findings.add(Finding::of_pool(home, what).losing(LOST));
        }
    }
}
