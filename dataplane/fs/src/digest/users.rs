//! What a batch changes of the usage of users, and the first count of all inodes.
//!
//! 1. The flush says what each inode was and is ([`Users::changed`]). The differences are summed in
//!    memory, by owner.
//! 2. At the end of the batch, one item of each user that differs is written, before the commit of
//!    the batch: usage and inodes become current together.
//! 3. A pool from before users were counted has no mark. Its inodes are counted once, when a digest
//!    opens it ([`count`]): all items and the mark are one commit. Where they do not fit, or
//!    an inode cannot be read, the pool stays as it is, and the next start counts.
//!
//! What it must never do: overflow, whatever items say; stop a digest because of a user's item.

use std::collections::BTreeMap;

use sietch_disk::DiskQueue;

use crate::base::{Base as _, Inode};
use crate::digested::Digested;
use crate::error::Fault;
use crate::inode::InodeNumber;
use crate::items;
use crate::pool::Pool;
use crate::quota::{Amount, Quota};
use crate::tree::Key;

/// What changes of a user.
#[derive(Clone, Copy, Debug, Default)]
struct Difference {
    gained: Amount,
    lost: Amount,
    limit: Option<Amount>,
}

/// The module's header describes it.
#[derive(Debug, Default)]
pub(super) struct Users {
    differences: BTreeMap<u32, Difference>,
}

/// What an inode counts at its owner.
fn amount(inode: &Inode) -> Amount {
    Amount { blocks: inode.blocks, inodes: 1 }
}

impl Users {
    /// An inode changes from `old` to `new`; `None`: it does not exist.
    pub(super) fn changed(&mut self, old: Option<&Inode>, new: Option<&Inode>) {
        let counted = |inode: Option<&Inode>| inode.map(|inode| (inode.uid, inode.blocks));
        if counted(old) == counted(new) {
            return;
        }
        if let Some(old) = old {
            let lost = &mut self.differences.entry(old.uid).or_default().lost;
            *lost = lost.plus(amount(old));
        }
        if let Some(new) = new {
            let gained = &mut self.differences.entry(new.uid).or_default().gained;
            *gained = gained.plus(amount(new));
        }
    }

    /// A user gets a limit.
    pub(super) fn limit(&mut self, uid: u32, limit: Amount) {
        self.differences.entry(uid).or_default().limit = Some(limit);
    }

    /// Writes what differs. Items that could not be read are named in `damage`.
    pub(super) fn write<D: DiskQueue>(
        self,
        digested: &mut Digested<Pool<D>>,
        damage: &mut Vec<String>,
    ) -> Result<(), Fault> {
        if self.differences.is_empty() {
            return Ok(());
        }
        let counted = digested.limited_users()?;
        let (mut come, mut gone) = (0, 0);
        for (uid, difference) in self.differences {
            let value = digested.store.get(items::user_key(uid))?;
            let old = value.as_ref().map(|value| items::read_user(value)).unwrap_or(Some(Quota::default()));
            if old.is_none() {
                damage.push(unreadable(uid));
            }
            let is_damaged = old.is_none();
            let old = old.unwrap_or_default();
            let used = match counted {
                Some(_) => old.used.plus(difference.gained).minus(difference.lost),
                None => old.used,
            };
            let new = Quota { used, limit: difference.limit.unwrap_or(old.limit) };
            let is_limited = |quota: &Quota| quota.limit != Amount::ZERO;
            come += u64::from(!is_limited(&old) && is_limited(&new));
            gone += u64::from(is_limited(&old) && !is_limited(&new));
            if new != old || is_damaged {
                put(digested, uid, &new)?;
            }
        }
        if let Some(limited) = counted.filter(|_| come != gone) {
            let limited = limited.saturating_add(come).saturating_sub(gone);
            digested.store.insert(items::COUNTED_KEY, &items::write_counted(limited))?;
        }
        Ok(())
    }
}

fn unreadable(uid: u32) -> String {
    format!(
        "what user {uid} has and may have cannot be read, and counts from 0; \
         unmount, and run `sietch fs quota FOLDER --recount`"
    )
}

/// Writes the item of a user, or removes one that says nothing.
fn put<D: DiskQueue>(digested: &mut Digested<Pool<D>>, uid: u32, quota: &Quota) -> Result<(), Fault> {
    let key = items::user_key(uid);
    if *quota == Quota::default() {
        return digested.store.remove(key).map(drop);
    }
    digested.store.insert(key, &items::write_user(quota))
}

/// The items of all users without their usage, and what has a key there and is none.
fn stored<D: DiskQueue>(digested: &mut Digested<Pool<D>>) -> Result<(BTreeMap<u32, Quota>, Vec<Key>), Fault> {
    let (mut quotas, mut wrong) = (BTreeMap::new(), Vec::new());
    let mut from = items::user_key(0);
    while let Some((key, value)) = digested.store.next(from)?
        && key.object == items::NO_INODE
        && (key.kind == items::USER || key.kind == items::COUNTED)
    {
        match (items::user_of(key), items::read_user(&value)) {
            (Some(uid), Some(quota)) => {
                quotas.insert(uid, Quota { limit: quota.limit, used: Amount::ZERO });
            }
            _ if key == items::COUNTED_KEY => {}
            _ => wrong.push(key),
        }
        from = key;
        match key.offset.checked_add(1) {
            Some(offset) => from.offset = offset,
            None if key.kind == items::USER => from = items::COUNTED_KEY,
            None => break,
        }
    }
    Ok((quotas, wrong))
}

/// Counts all inodes, and replaces the items of all users; limits stay. Returns whether there is
/// room for the items. The caller commits.
pub(super) fn count<D: DiskQueue>(digested: &mut Digested<Pool<D>>) -> Result<bool, Fault> {
    let (mut quotas, wrong) = stored(digested)?;
    let mut from = items::inode_key(InodeNumber::ROOT);
    while let Some((key, value)) = digested.store.next(from)? {
        if key.kind == items::INODE
            && let Some(inode) = items::read_inode(&value)
        {
            let used = &mut quotas.entry(inode.uid).or_default().used;
            *used = used.plus(amount(&inode));
        }
        let Some(next) = key.object.checked_add(1) else { break };
        from = items::inode_key(InodeNumber(next));
    }
    digested.store.use_reserve(false);
    if !digested.store.has_room((quotas.len() + wrong.len()) as u64 + 1, 0) {
        return Ok(false);
    }
    for key in wrong {
        digested.store.remove(key)?;
    }
    let limited = quotas.values().filter(|quota| quota.limit != Amount::ZERO).count() as u64;
    for (uid, quota) in &quotas {
        put(digested, *uid, quota)?;
    }
    digested.store.insert(items::COUNTED_KEY, &items::write_counted(limited))?;
    Ok(true)
}
