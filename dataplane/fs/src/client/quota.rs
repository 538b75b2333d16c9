//! Limits of users: what a client refuses with `EDQUOT`, as Linux does.
//!
//! 1. An inode and its blocks count at its owner, not at the user that writes. An operation of user
//!    0 counts too, and is never refused.
//! 2. A user's usage is what the digested state says, and what this client has logged for the user
//!    since ([`super::charges`]). What others have logged and not digested is not known here: a
//!    client that adds to a usage has leases of the limit ([`crate::lease::quota`]).
//! 3. Where no user has a limit, an operation pays one comparison. The base says so, once for each
//!    generation.
//! 4. What is logged counts with the most that it may need. If that does not fit, the blocks that
//!    the file has already are looked up; of a reservation over very many extents, not all of them
//!    ([`LOOKED_AT`]). If it still does not fit, and the log has something that
//!    makes less of the user's, the client waits until the operation fits, or until all of its log
//!    is digested and what was removed is free: then usage is exact. Only then it refuses. A user
//!    who tries again and again makes nothing wait: nothing of this user is left in the log.
//! 5. A user that may set limits is shown exact usage: the client waits until what its log has is
//!    digested, and what that freed is free. Where others go on to log, it waits for a few commits
//!    more ([`SETTLING`]), not until they stop. Other users are shown what is digested: they make
//!    nothing wait.
//! 6. A limit holds from its digest on, which the client waits for. The try of a front end does
//!    not: the kernel keeps all others from the root directory until the answer. To show the limit
//!    then waits.
//! 7. `chown` is allowed to user 0 alone, so it is never refused, and counts at the new owner.
//!
//! What it must never do: refuse because of records that are pointless by now; refuse what needs
//! nothing, as to overwrite a block.

use std::ops::Range;

use rustix::io::Errno;
use sietch_disk::nvm::Medium;

use super::charges::Charge;
use super::room::ROOM_WAITS;
use super::{Client, Service};
use crate::access::{Caller, Credentials};
use crate::base::{Base as _, Data};
use crate::change::{Change, NewAttributes};
use crate::file_system::XattrMode;
use crate::inode::{InodeNumber, Kind, Timestamp};
use crate::lease::Mode;
use crate::lease::quota::{Limited, SHARE_PART, SLOTS, slot, slots};
use crate::limits::BLOCK;
use crate::quota::{self, Amount, Quota};

/// Bytes of a list of users, at most: less than the largest value of an attribute, by one line.
const LISTED: usize = 60 << 10;
/// Extents that a reservation looks at, at most, inside its range and around it: a range may have
/// millions, and all operations wait meanwhile.
const LOOKED_AT: u64 = 1024;
/// Commits that an operation waits for when all that was logged before it is digested, at most:
/// what its user has removed is free after some of them. Others log meanwhile, without an end.
const QUOTA_WAITS: u32 = 1024;
/// Commits that are waited for before usage is shown, when all that was logged before is digested
/// and others log more.
const SETTLING: u32 = 2;
const BLOCK_BYTES: u64 = BLOCK as u64;

/// What an operation needs of its owner's quota.
#[derive(Clone, Debug)]
pub(super) enum Need {
    /// An inode.
    Inode,
    /// Data are written to a range of a file's bytes.
    Data(InodeNumber, Range<u64>),
    /// Room is reserved for a range of a file's bytes.
    Room(InodeNumber, Range<u64>),
}

impl Need {
    fn blocks(range: &Range<u64>) -> Range<u64> {
        range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
    }

    /// The most that it may be.
    fn most(&self) -> Amount {
        match self {
            Self::Inode => Amount { blocks: 0, inodes: 1 },
            Self::Data(_, range) | Self::Room(_, range) => {
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
        if caller.uid == 0 {
            return Ok(Some(most));
        }
        if S::IS_SHARED {
            self.need_limits(&quota, owner, need)?;
        }
        if quota.allows(self.charges.pending(owner), most.amount) {
            return Ok(Some(most));
        }
        let mut found = self.fitting(owner, need)?;
        if found.is_some() {
            return Ok(found);
        }
        let may_wait = self.tries.waited.quota.commits < QUOTA_WAITS;
        if may_wait && self.charges.may_shrink(owner) && self.may_ever_fit(&quota, owner, need)? {
            let end = self.tries.waited.quota.since(self.log.next_position());
            self.digest_until(&mut |client| {
                found = client.fitting(owner, need)?;
                let waited = &mut client.tries.waited.quota;
                waited.commits += u32::from(client.digested >= end);
                Ok(found.is_some() || waited.commits >= QUOTA_WAITS)
            })?;
        } else {
            self.progress();
        }
        if found.is_none() {
            found = self.fitting(owner, need)?;
        }
        found.map(Some).ok_or(Errno::DQUOT)
    }

    /// Needs the leases under which a client adds to what a user has: see [`crate::lease::quota`].
    fn need_limits(&mut self, quota: &Quota, owner: u32, need: &Need) -> Result<(), Errno> {
        let pending = self.charges.pending(owner);
        let is_share = |more: u64, pending: u64, used: u64, limit: u64| {
            let share = limit / SHARE_PART;
            let others = share.saturating_mul(u64::from(SLOTS));
            more == 0 || pending.saturating_add(more) <= share && used.saturating_add(others) <= limit
        };
        let are_shares = |more: Amount| {
            let Quota { used, limit } = quota;
            let blocks = is_share(more.blocks, pending.blocks, used.blocks, limit.blocks);
            let inodes = is_share(more.inodes, pending.inodes, used.inodes, limit.inodes);
            (blocks || limit.blocks == 0, inodes || limit.inodes == 0)
        };
        let mut more = need.most();
        if are_shares(more) != (true, true) {
            // To overwrite needs nothing.
            more = self.amount(need)?;
        }
        let (blocks, inodes) = are_shares(more);
        let mut result = Ok(());
        let limits = [
            (Limited::Blocks, more.blocks, quota.limit.blocks, blocks),
            (Limited::Inodes, more.inodes, quota.limit.inodes, inodes),
        ];
        for (limited, more, limit, is_share) in limits {
            if more == 0 || limit == 0 {
                continue;
            }
            if is_share {
                result = result.and(self.need(slot(owner, limited, self.number), Mode::Exclusive));
                continue;
            }
            for number in slots(owner, limited) {
                // All of them become known before the operation stops.
                result = self.need(InodeNumber(number), Mode::Exclusive).and(result);
            }
        }
        result
    }

    /// Needs the leases of the client's own slot, under which it makes less of what a user has.
    fn need_slots(&mut self, uid: u32) -> Result<(), Errno> {
        let limit = self.quota(uid)?.limit;
        for (limited, limit) in [(Limited::Blocks, limit.blocks), (Limited::Inodes, limit.inodes)] {
            if limit > 0 {
                self.need(slot(uid, limited, self.number), Mode::Exclusive)?;
            }
        }
        Ok(())
    }

    /// Whether an operation could be allowed if its owner had nothing else. If not, others do not
    /// wait for what is removed.
    fn may_ever_fit(&mut self, quota: &Quota, owner: u32, need: &Need) -> Result<bool, Errno> {
        let most = need.most();
        let there = match need {
            Need::Inode => 0,
            Need::Data(inode, _) | Need::Room(inode, _) => {
                let inode = *inode;
                self.see(|_, base| base.inode(inode))?.map_or(0, |found| found.blocks)
            }
        };
        let blocks = there.saturating_add(self.charges.pending(owner).blocks);
        let least = most.minus(Amount { blocks, inodes: 0 });
        Ok(Quota { used: Amount::ZERO, ..*quota }.allows(Amount::ZERO, least))
    }

    /// What an operation counts, if its owner may have it.
    fn fitting(&mut self, owner: u32, need: &Need) -> Result<Option<Charge>, Errno> {
        let amount = self.amount(need)?;
        let (quota, pending) = (self.quota(owner)?, self.charges.pending(owner));
        Ok(quota.allows(pending, amount).then_some(Charge { uid: owner, amount }))
    }

    /// What an operation needs beyond what the file has already.
    fn amount(&mut self, need: &Need) -> Result<Amount, Errno> {
        let (inode, range, extents) = match need {
            Need::Inode => return Ok(need.most()),
            // As many as the data that are written have blocks.
            Need::Data(inode, range) => (*inode, range, u64::MAX),
            Need::Room(inode, range) => (*inode, range, LOOKED_AT),
        };
        // No more can be there than the inode has.
        let all = self.see(|_, base| base.inode(inode))?.map_or(0, |found| found.blocks);
        if all == 0 {
            return Ok(need.most());
        }
        let there = self.there(inode, Need::blocks(range), (all, extents))?;
        Ok(need.most().minus(Amount { blocks: there, inodes: 0 }))
    }

    /// How many of some blocks a file has already, which has `all` in the digested state. If that
    /// takes more than so many extents, it is fewer than there are.
    fn there(
        &mut self,
        inode: InodeNumber,
        blocks: Range<u64>,
        (all, extents): (u64, u64),
    ) -> Result<u64, Errno> {
        self.see(|overlay, base| {
            // The digest may cut what the base has before it applies the record that this is for.
            let kept = overlay.state(inode).map(|state| state.ranges.kept(&blocks));
            let kept = kept.unwrap_or_else(|| vec![blocks.clone()]);
            let (mut there, mut left) = (0, extents);
            for part in &kept {
                there += base.allocated(inode, part.clone(), &mut left)?;
            }
            if left > 0 || kept != [blocks.clone()] {
                return Ok(there);
            }
            // What is not around it is in it.
            let mut left = extents;
            let before = base.allocated(inode, 0..blocks.start, &mut left)?;
            let around = before + base.allocated(inode, blocks.end..u64::MAX, &mut left)?;
            Ok(if left > 0 { all.saturating_sub(around) } else { there })
        })
    }

    /// Waits until all that the log has is digested, and what it freed is free: for a few commits.
    /// What the operation looked up before may change meanwhile.
    fn digest_all(&mut self) -> Result<(), Errno> {
        let end = self.tries.waited.shown.since(self.log.next_position());
        if self.has_settled(end) {
            return Ok(());
        }
        self.digest_until(&mut |client| {
            client.tries.waited.shown.commits += u32::from(client.digested >= end);
            client.answer_all();
            Ok(client.has_settled(end))
        })
    }

    /// Whether usage can be shown of the log up to `end`.
    fn has_settled(&self, end: u64) -> bool {
        let most = if self.log.next_position() > end { SETTLING } else { ROOM_WAITS };
        self.tries.waited.shown.commits >= most
    }

    /// Waits until all of the log is digested, and what it freed is free, or until it is enough. A
    /// large file that was removed is free in many steps.
    fn digest_until(
        &mut self,
        is_enough: &mut dyn FnMut(&mut Self) -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        self.service.logged(self.log.next_position());
        loop {
            if self.wait_for_digest()?.is_none() {
                self.charges.all_digested();
                self.progress();
                // What is left in the overlay is not digested.
                self.drop_digested(u64::MAX);
                return Ok(());
            }
            self.drop_digested(u64::MAX);
            if is_enough(self)? {
                return Ok(());
            }
        }
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

    /// Notes whose usage a change makes less. A change that frees nothing is not noted: a user
    /// could make it again and again before what is refused, and each time all would wait.
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
        let Some(found) = self.see(|overlay, base| overlay.inode(base, inode))? else { return Ok(()) };
        let frees = match *change {
            // The block with the new end stays.
            Change::Truncate { size, .. } => {
                size < found.size && self.has_blocks(inode, size.next_multiple_of(BLOCK_BYTES)..u64::MAX)?
            }
            Change::Punch { offset, length, .. } => self.punch_frees(inode, offset..offset + length)?,
            Change::SetAttributes { attributes, .. } => attributes.uid != Some(found.uid),
            // It has no name, or loses one.
            _ => found.kind == Kind::Directory || found.links <= 1,
        };
        if frees {
            // Without the leases, others learn later of what is free. An operation that has changed
            // something gets none, nor does the end of a handle, which is no operation.
            let may_need = !self.leases.has_committed && !matches!(change, Change::Free { .. });
            if S::IS_SHARED && may_need {
                self.need_slots(found.uid)?;
            }
            self.charges.freed(found.uid);
        }
        Ok(())
    }

    /// Whether a hole frees a block: one that is all within it, or one without data at its edge.
    fn punch_frees(&mut self, inode: InodeNumber, hole: Range<u64>) -> Result<bool, Errno> {
        let whole = hole.start.next_multiple_of(BLOCK_BYTES)..hole.end - hole.end % BLOCK_BYTES;
        if !whole.is_empty() && self.has_blocks(inode, whole)? {
            return Ok(true);
        }
        for edge in [hole.start, hole.end].into_iter().filter(|edge| !edge.is_multiple_of(BLOCK_BYTES)) {
            let start = edge - edge % BLOCK_BYTES;
            let block = start..start + BLOCK_BYTES;
            if self.has_blocks(inode, block.clone())?
                && !matches!(self.data_blocks(inode, block, &mut 1)?, Data::Found(_))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a file has room of its own in whole blocks, digested or not.
    fn has_blocks(&mut self, inode: InodeNumber, range: Range<u64>) -> Result<bool, Errno> {
        self.see(|overlay, base| {
            let state = overlay.state(inode);
            if state.is_some_and(|state| state.ranges.has_blocks(&range)) {
                return Ok(true);
            }
            let is_new = state.is_some_and(|state| state.is_new);
            Ok(!is_new && base.allocated(inode, Need::blocks(&range), &mut { 1 })? > 0)
        })
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

    /// Sets a limit, which is there if it is not "none": by user 0, or the owner of the root
    /// directory. It holds for this client when this returns; in a try, when it is digested.
    pub(super) fn set_limit(
        &mut self,
        caller: Caller<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        self.need(InodeNumber::ROOT, Mode::Exclusive)?;
        if !self.may_limit(caller.credentials)? {
            return Err(Errno::PERM);
        }
        let uid = quota::user(name).filter(|_| quota::limit(value).is_some()).ok_or(Errno::INVAL)?;
        self.check_counted()?;
        let is_there = self.quota(uid)?.limit != Amount::ZERO;
        match mode {
            XattrMode::Create if is_there => return Err(Errno::EXIST),
            XattrMode::Replace if !is_there => return Err(Errno::NODATA),
            _ => {}
        }
        // No longer than two numbers.
        let change = Change::SetXattr { inode: InodeNumber::ROOT, name, length: value.len() as u32 };
        self.commit_with(caller.now, change, value)?;
        if self.tries.is_on { Ok(()) } else { self.digest_all() }
    }

    /// What one user has, or a list of users: with all that is logged, for who may set limits.
    /// Other users see their own usage as it is digested.
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
