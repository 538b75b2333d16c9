//! Limits of users: what a client refuses with `EDQUOT`, as Linux does.
//!
//! 1. An inode and its blocks count at its owner, not at the user that writes. An operation of user
//!    0 counts too, and is never refused.
//! 2. A user's usage is what the digested state says, and what this client has logged for the user
//!    since ([`super::charges`]). What others have logged and not digested is not known here.
//! 3. Where no user has a limit, an operation pays one comparison. The base says so, once for each
//!    generation.
//! 4. What is logged counts with the most that it may need. If that does not fit, the blocks that
//!    the file has already are looked up. If it still does not fit, and the log has something of
//!    the user, the client waits until all of its log is digested: then usage is exact. Only then
//!    it refuses. A user who tries again and again makes nothing wait: nothing of this user is left
//!    in the log.
//! 5. Who may set limits is shown exact usage: the client waits until all of its log is digested.
//!    Other users are shown what is digested, so that they make nothing wait.
//! 6. `chown` is allowed to user 0 alone, so it is never refused, and counts at the new owner.
//!
//! What it must never do: refuse because of records that are pointless by now; refuse what needs
//! nothing, as to overwrite a block.

use std::ops::Range;

use rustix::io::Errno;
use sietch_disk::nvm::Medium;

use super::charges::Charge;
use super::{Client, ROOM_WAITS, Service};
use crate::access::{Caller, Credentials};
use crate::base::Base as _;
use crate::change::{Change, NewAttributes};
use crate::inode::{InodeNumber, Timestamp};
use crate::lease::Mode;
use crate::limits::BLOCK;
use crate::quota::{self, Amount, Quota};

/// Bytes of a list of users, at most: less than the largest value of an attribute, by one line.
const LISTED: usize = 60 << 10;

/// What an operation needs of its owner's quota.
#[derive(Clone, Debug)]
pub(super) enum Need {
    /// An inode.
    Inode,
    /// A range of a file's bytes has blocks.
    Bytes(InodeNumber, Range<u64>),
}

impl Need {
    fn blocks(range: &Range<u64>) -> Range<u64> {
        range.start / BLOCK as u64..range.end.div_ceil(BLOCK as u64)
    }

    /// The most that it may be.
    fn most(&self) -> Amount {
        match self {
            Self::Inode => Amount { blocks: 0, inodes: 1 },
            Self::Bytes(_, range) => {
                let Range { start, end } = Self::blocks(range);
                Amount { blocks: end.saturating_sub(start), inodes: 0 }
            }
        }
    }
}

impl<S: Service<M>, M: Medium> Client<S, M> {
    /// Whether a user has a limit.
    fn has_limits(&mut self) -> Result<bool, Errno> {
        if let Some(is_limited) = self.charges.is_limited {
            return Ok(is_limited);
        }
        let limited = self.see(|_, base| base.limited_users())?;
        let is_limited = limited.is_some_and(|users| users > 0);
        self.charges.known(is_limited);
        Ok(is_limited)
    }

    fn quota(&mut self, uid: u32) -> Result<Quota, Errno> {
        let found = self.see(|_, base| base.quota_from(uid))?;
        Ok(found.filter(|(user, _)| *user == uid).map(|(_, quota)| quota).unwrap_or_default())
    }

    /// Checks that `owner` may have what an operation needs; what its record then counts.
    pub(super) fn charge(
        &mut self,
        caller: &Credentials,
        owner: u32,
        need: &Need,
    ) -> Result<Option<Charge>, Errno> {
        if !self.has_limits()? {
            return Ok(None);
        }
        let quota = self.quota(owner)?;
        if quota.limit == Amount::ZERO {
            return Ok(None);
        }
        let most = Charge { uid: owner, amount: need.most() };
        if caller.uid == 0 || quota.allows(self.charges.pending(owner), most.amount) {
            return Ok(Some(most));
        }
        let exact = self.exact(need)?;
        if quota.allows(self.charges.pending(owner), exact) {
            return Ok(Some(Charge { uid: owner, amount: exact }));
        }
        if self.charges.may_shrink(owner) {
            self.digest_all()?;
        } else {
            self.progress();
        }
        let (quota, exact) = (self.quota(owner)?, self.exact(need)?);
        let is_allowed = quota.allows(self.charges.pending(owner), exact);
        is_allowed.then_some(Some(Charge { uid: owner, amount: exact })).ok_or(Errno::DQUOT)
    }

    /// What an operation needs beyond what the digested state has.
    fn exact(&mut self, need: &Need) -> Result<Amount, Errno> {
        let most = need.most();
        let Need::Bytes(inode, range) = need else { return Ok(most) };
        let (inode, blocks) = (*inode, Need::blocks(range));
        // The digest may cut what the base has before it applies the record that this is for.
        if self.overlay.state(inode).is_some_and(|state| state.ranges.cuts(range)) {
            return Ok(most);
        }
        let there = self.see(|_, base| base.allocated(inode, blocks))?;
        Ok(most.minus(Amount { blocks: there, inodes: 0 }))
    }

    /// Waits until all of the log is digested, and what it freed is free.
    fn digest_all(&mut self) -> Result<(), Errno> {
        let end = self.log.next_position();
        self.service.logged(end);
        let mut waits = 0;
        while waits < ROOM_WAITS
            && let Some(position) = self.service.wait()?
        {
            self.digested(position);
            waits += u32::from(position >= end);
            if S::IS_SHARED {
                self.answer(true);
                self.check_going()?;
            }
        }
        if waits < ROOM_WAITS {
            self.charges.all_digested();
        }
        self.progress();
        // What is left in the overlay is not digested.
        self.drop_digested(u64::MAX);
        Ok(())
    }

    /// Logs a change, and counts it until it is digested.
    pub(super) fn commit_charged(
        &mut self,
        now: Timestamp,
        change: Change<'_>,
        data: &[u8],
        charge: Option<Charge>,
    ) -> Result<(), Errno> {
        let Some(charge) = charge else { return self.commit_with(now, change, data) };
        let position = self.log.next_position();
        self.commit_with(now, change, data)?;
        self.charges.log(position, charge);
        Ok(())
    }

    /// Notes whose usage a change makes less.
    pub(super) fn note_freed(&mut self, change: &Change<'_>) -> Result<(), Errno> {
        if !self.charges.notes_freed() {
            return Ok(());
        }
        let inode = match *change {
            Change::Unlink { inode, .. }
            | Change::Free { inode }
            | Change::Truncate { inode, .. }
            | Change::Punch { inode, .. }
            | Change::SetAttributes { inode, attributes: NewAttributes { uid: Some(_), .. } }
            | Change::Rename { replaced: Some(inode), exchange: false, .. } => inode,
            _ => return Ok(()),
        };
        if let Some(found) = self.see(|overlay, base| overlay.inode(base, inode))? {
            self.charges.freed(found.uid);
        }
        Ok(())
    }

    /// What an inode counts at a new owner. It stays at the old one until that is digested.
    pub(super) fn charge_owner(&mut self, inode: InodeNumber, uid: u32) -> Result<Option<Charge>, Errno> {
        if !self.has_limits()? || self.quota(uid)?.limit == Amount::ZERO {
            return Ok(None);
        }
        let found = self.stat(inode)?;
        let blocks = found.blocks / (BLOCK as u64 / 512);
        Ok((found.uid != uid).then_some(Charge { uid, amount: Amount { blocks, inodes: 1 } }))
    }

    /// Sets a limit: by user 0, or the owner of the root directory. It holds for this client when
    /// this returns.
    pub(super) fn set_limit(&mut self, caller: Caller<'_>, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        self.need(InodeNumber::ROOT, Mode::Exclusive)?;
        if !self.may_limit(caller.credentials)? {
            return Err(Errno::PERM);
        }
        if quota::user(name).is_none() || quota::limit(value).is_none() {
            return Err(Errno::INVAL);
        }
        self.check_counted()?;
        // No longer than two numbers.
        let change = Change::SetXattr { inode: InodeNumber::ROOT, name, length: value.len() as u32 };
        self.commit_with(caller.now, change, value)?;
        self.digest_all()
    }

    /// What one user has, or a list of users: with all that is logged, for who may set limits. Other
    /// users see their own usage as it is digested.
    pub(super) fn shown_quotas(&mut self, caller: Caller<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let may_all = self.may_limit(caller.credentials)?;
        if let Some(uid) = quota::user(name) {
            if !may_all && caller.credentials.uid != uid {
                return Err(Errno::PERM);
            }
            self.check_counted()?;
            // Every other user could make all wait, again and again.
            if may_all {
                self.digest_all()?;
            } else {
                self.progress();
            }
            return Ok(self.quota(uid)?.line(uid).into_bytes());
        }
        let first = quota::first_listed(name).ok_or(Errno::NODATA)?;
        if !may_all {
            return Err(Errno::PERM);
        }
        self.check_counted()?;
        self.digest_all()?;
        let (mut lines, mut from) = (String::new(), Some(first));
        while let Some(uid) = from
            && lines.len() < LISTED
            && let Some((uid, quota)) = self.see(|_, base| base.quota_from(uid))?
        {
            lines += &quota.line(uid);
            from = uid.checked_add(1);
        }
        Ok(lines.into_bytes())
    }

    /// Users are counted in this pool.
    fn check_counted(&mut self) -> Result<(), Errno> {
        let counted = self.see(|_, base| base.limited_users())?;
        counted.map(drop).ok_or(Errno::OPNOTSUPP)
    }

    fn may_limit(&mut self, who: &Credentials) -> Result<bool, Errno> {
        Ok(who.uid == 0 || who.uid == self.inode(InodeNumber::ROOT)?.uid)
    }
}
