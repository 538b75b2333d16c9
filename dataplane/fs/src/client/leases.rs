//! Leases as a client keeps them.
//!
//! 1. An operation says what it needs where it looks at an inode ([`Client::need`]). Where the
//!    client lacks a lease the operation stops. Nothing was changed by then, because an operation
//!    changes something only with its commit, and the commit asks first.
//! 2. [`Client::operation`] then acquires all that the operation was found to need, in the order of
//!    inode numbers, and runs the operation again. While it waits for one lease it does not give
//!    back those before it in that order. So clients never wait for each other in a circle. It does
//!    give them back when a revocation is urgent, and begins anew: what it waits for may be held by
//!    a client that does not answer.
//! 3. Leases stay after the operation. Between operations, and while it waits for one, the client
//!    answers revocations ([`Client::answer`]): it names the end of its log, and says whether the
//!    inode stays here without a name. An operation that waits for the digest or for room has all
//!    of its leases. It keeps them until a revocation is urgent, and then stops and runs again
//!    ([`Client::answer_within`]), unless it has changed something by then. Within a try
//!    ([`super::tries`]) it does not wait: it ends, and others run ([`super::places`]).
//! 4. With a grant the client changes to the newest root, and drops from its overlay what that has.
//!    So it sees what others did, and never a state of its own from before.
//! 5. A new inode needs no request: its number belongs to this client. A revocation may name such a
//!    number before it was used: then it is not used.
//! 6. The end of what keeps an inode without a name frees it if this client has it alone. Otherwise
//!    the service does, which knows who else has it open. A lease on an inode that lost its name
//!    and its last reference before the lease came goes back, so that the service frees the inode.
//!
//! What it must never do: release a lease while an operation runs; make a record without the leases
//! that it needs.

use foldhash::fast::RandomState;
use hashbrown::HashSet;
use rustix::io::Errno;
use sietch_disk::nvm::Medium;

use super::held::Hold;
use super::places::Needs;
use super::{Client, Message, Service};
use crate::change::Change;
use crate::inode::{InodeNumber, Kind};
use crate::lease::{Mode, Release, Revocation, TREE};

impl<S: Service<M>, M: Medium> Client<S, M> {
    /// Sets how many leases the client keeps at most, instead of
    /// [`crate::lease::MAX_KEPT`].
    pub fn keep_leases(&mut self, most: usize) {
        self.leases.most = most;
    }

    /// Runs an operation, with all leases that it needs.
    pub(super) fn operation<T>(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.tries.begin_operation();
        if !S::IS_SHARED {
            return work(self);
        }
        self.answer(false);
        // A client that was fenced does not see what others change.
        self.check_going()?;
        self.evict();
        loop {
            // A service that cannot wait says EAGAIN; the same operation goes on here later.
            self.acquire_needs()?;
            if !self.tries.is_on {
                self.leases.needs.begin_run();
            }
            (self.leases.is_stopped, self.leases.has_committed) = (false, false);
            let result = work(self);
            if self.leases.is_stopped {
                // Leases of limits are not worth asking for beforehand.
                if self.leases.waits || self.leases.lacks_limits_alone() {
                    continue;
                }
                self.end_operation();
                return Err(Errno::AGAIN);
            }
            // The operations of a try have their leases together.
            if !self.tries.is_on && !matches!(result, Err(Errno::AGAIN)) {
                self.end_operation();
            }
            return result;
        }
    }

    pub(super) fn end_operation(&mut self) {
        self.leases.needs = Needs::default();
        self.tries.end_operation();
        self.reconsider();
    }

    /// Answers revocations that were put off, as far as the operation does not keep their leases
    /// any more.
    fn reconsider(&mut self) {
        for revocation in std::mem::take(&mut self.leases.deferred) {
            self.revoked(revocation);
        }
    }

    /// The operation that got `EAGAIN` is not called again.
    pub fn abandon(&mut self) {
        self.end_operation();
        self.cancel_unwanted();
    }

    /// Takes requests back that no operation waits for.
    fn cancel_unwanted(&mut self) {
        let requested = self.leases.requested.keys().copied();
        let unwanted: Vec<_> = requested.filter(|inode| !self.leases.is_waited_for(*inode)).collect();
        for inode in unwanted {
            self.leases.requested.remove(&inode);
            self.service.cancel_lease(inode);
        }
    }

    /// The operation needs a lease.
    ///
    /// # Errors
    /// The client does not have it: the operation returns, and runs again.
    pub(super) fn need(&mut self, inode: InodeNumber, mode: Mode) -> Result<(), Errno> {
        if !S::IS_SHARED {
            return Ok(());
        }
        if self.leases.uses(inode, mode) {
            self.leases.needs.used(inode);
            return Ok(());
        }
        debug_assert!(!self.leases.has_committed, "an operation that changed something needs {inode}");
        self.leases.needs.lacks(inode, mode);
        self.leases.is_stopped = true;
        Err(Errno::AGAIN)
    }

    /// The operation needs the leases for a change.
    ///
    /// # Errors
    /// As of [`Client::need`].
    pub(super) fn need_for(&mut self, change: &Change<'_>) -> Result<(), Errno> {
        if !S::IS_SHARED {
            return Ok(());
        }
        for inode in change.needs().inodes() {
            self.need(inode, Mode::Exclusive)?;
        }
        for inode in change.moves() {
            if self.inode(inode)?.kind == Kind::Directory {
                self.need(TREE, Mode::Exclusive)?;
            }
        }
        Ok(())
    }

    /// A change was logged.
    pub(super) fn changed(&mut self, change: &Change<'_>) {
        if !S::IS_SHARED {
            return;
        }
        self.leases.has_committed = true;
        if let Change::Create { inode, .. } = *change {
            self.leases
                .insert(inode, Hold { mode: Mode::Exclusive, serial: 0, is_sole: true, is_used: true });
        }
    }

    /// Acquires what the operation was found to need: all of it is there on return.
    fn acquire_needs(&mut self) -> Result<(), Errno> {
        let needs: Vec<_> = self.leases.needs.modes.iter().map(|(inode, mode)| (*inode, *mode)).collect();
        for (inode, mode) in needs {
            if self.leases.has(inode, mode) {
                continue;
            }
            self.leases.needs.wait_for(inode);
            // What was kept while a later one was waited for is not kept now.
            self.reconsider();
            let acquired = self.acquire(inode, mode);
            if !matches!(acquired, Ok(()) | Err(Errno::AGAIN)) {
                self.abandon();
            }
            acquired?;
        }
        Ok(())
    }

    fn acquire(&mut self, inode: InodeNumber, mode: Mode) -> Result<(), Errno> {
        let ends = self.tries.may_repeat();
        let mut pending = None;
        loop {
            self.answer(false);
            self.check_going()?;
            if self.leases.has(inode, mode) {
                return Ok(());
            }
            if let Some(errno) = self.leases.needs.refused.take() {
                return Err(errno);
            }
            let may_wait = !ends || self.may_take_place();
            let requested = self.leases.requested.get(&inode);
            if may_wait && requested.is_none_or(|requested| *requested < mode) {
                self.cancel_unwanted();
                self.service.request_lease(inode, mode)?;
                self.leases.requested.insert(inode, mode);
                continue;
            }
            if let Some(pending) = pending {
                // Nothing has come since it was made.
                return Err(if may_wait { self.take_place(pending) } else { self.queue_for_place(pending) });
            }
            pending = if ends { self.service.begin_wait_message()? } else { None };
            if pending.is_none() {
                self.service.wait_message()?;
            }
        }
    }

    /// Takes messages of the service. While an operation `is_running`, no lease is released.
    pub(super) fn answer(&mut self, is_running: bool) {
        if !self.leases.places.is_empty() && self.leases.places.clear_left() && !is_running {
            self.reconsider();
        }
        while let Some(message) = self.service.message() {
            match message {
                Message::Granted(grant) => {
                    self.progress();
                    self.drop_digested(u64::MAX);
                    self.leases.requested.remove(&grant.inode);
                    let hold = Hold {
                        mode: grant.mode,
                        serial: grant.serial,
                        is_sole: grant.is_sole,
                        is_used: false,
                    };
                    self.leases.insert(grant.inode, hold);
                    self.leases.known_open.remove(&grant.inode);
                    self.give_back_removed(grant.inode);
                }
                Message::Revoked(revocation) if is_running => self.leases.deferred.push(revocation),
                Message::Revoked(revocation) => self.revoked(revocation),
                // One for a request that was cancelled meanwhile says nothing to a later one.
                Message::Refused { inode, errno } => self.leases.refuse(inode, errno),
                Message::Room(is_there) => self.room_is_there(is_there),
                Message::RecallRoom => self.service.return_room(self.promised_blocks),
                // Every message says it; there may be nothing else to do.
                Message::Advance => self.progress(),
            }
        }
    }

    /// Takes messages of the service in an operation that waits.
    ///
    /// # Errors
    /// A lease had to be released: the operation returns, and runs again.
    pub(super) fn answer_within(&mut self) -> Result<(), Errno> {
        if !S::IS_SHARED {
            return Ok(());
        }
        self.answer(true);
        self.check_going()?;
        if self.leases.has_committed || !self.leases.deferred.iter().any(|revocation| revocation.is_urgent) {
            return Ok(());
        }
        self.reconsider();
        self.leases.is_stopped = true;
        Err(Errno::AGAIN)
    }

    /// Answers what is to be answered, in an operation that needs no lease any more.
    pub(super) fn answer_all(&mut self) {
        if S::IS_SHARED {
            self.answer(false);
            self.reconsider();
        }
    }

    /// Answers a revocation, at once or after the operation that needs the lease.
    fn revoked(&mut self, revocation: Revocation) {
        let Revocation { inode, serial, may_share, is_urgent } = revocation;
        let held = self.leases.held.get(&inode).map(|hold| hold.serial);
        if held.is_some_and(|held| held != 0 && held != serial) {
            return;
        }
        if self.leases.is_pinned(inode) && !is_urgent {
            self.leases.deferred.push(revocation);
            return;
        }
        // What was granted may be gone before it was used. A request that still waits is the same.
        self.leases.requested.remove(&inode);
        if held.is_none() && self.numbers.contains(&inode.0) {
            self.leases.lost_numbers.insert(inode);
        }
        self.release_lease(inode, serial, may_share && held.is_some());
    }

    /// Releases a lease, or what is more than a shared one.
    fn release_lease(&mut self, inode: InodeNumber, serial: u64, shares: bool) {
        if let Some(hold) = self.leases.held.get_mut(&inode).filter(|_| shares) {
            *hold = Hold { mode: Mode::Shared, serial, is_sole: false, is_used: hold.is_used };
        } else {
            self.leases.held.remove(&inode);
            self.without_capabilities.remove(&inode);
            self.xattr_names.forget(inode);
        }
        let is_referenced = self.keeps_removed(inode);
        if !shares {
            if is_referenced {
                self.leases.known_open.insert(inode);
            } else {
                self.leases.known_open.remove(&inode);
            }
        }
        let position = self.log.next_position();
        self.service.release_lease(Release { inode, serial, shares, position, is_referenced });
    }

    /// Releases a lease that nothing needs now.
    pub(super) fn give_up_lease(&mut self, inode: InodeNumber) {
        if self.leases.is_pinned(inode) || self.check_going().is_err() {
            return;
        }
        if let Some(serial) = self.leases.held.get(&inode).map(|hold| hold.serial) {
            self.release_lease(inode, serial, false);
        }
    }

    /// Releases leases that were not used lately, if there are too many.
    fn evict(&mut self) {
        if self.leases.held.len() > self.leases.most {
            let left = self.leases.most / 8 * 7;
            while self.leases.held.len() > left
                && let Some((inode, hold)) = self.leases.next_unused()
            {
                self.release_lease(inode, hold.serial, false);
            }
        }
        if self.leases.order.len() > 2 * self.leases.most + self.leases.held.len() {
            let held = &self.leases.held;
            let mut seen: HashSet<InodeNumber, RandomState> = HashSet::default();
            self.leases.order.retain(|inode| held.contains_key(inode) && seen.insert(*inode));
        }
    }

    /// Waits for a lease, whatever [`crate::file_system::Leased::set_waits`] says.
    pub(super) fn wait_for_lease(&mut self, inode: InodeNumber, mode: Mode) -> Result<(), Errno> {
        let waits = std::mem::replace(&mut self.leases.waits, true);
        let result = self.operation(|client| client.need(inode, mode));
        self.leases.waits = waits;
        result
    }

    /// Whether the client may look at an inode that an operation does not look at.
    pub(super) fn holds(&self, inode: InodeNumber) -> bool {
        !S::IS_SHARED || self.leases.has(inode, Mode::Shared)
    }

    /// The last reference to an inode went.
    pub(super) fn closed(&mut self, inode: InodeNumber) {
        self.linkable.remove(&inode);
        if self.leases.known_open.remove(&inode) {
            self.service.unreferenced(inode);
        }
    }

    /// Whether this client frees an inode that has neither a name nor a reference here. If not, the
    /// service does.
    pub(super) fn frees(&mut self, inode: InodeNumber) -> bool {
        if !S::IS_SHARED {
            return true;
        }
        let is_alone = self.has_alone(inode);
        if !is_alone {
            self.service.unreferenced(inode);
        }
        is_alone
    }

    /// Whether no other client has the inode or a reference to it.
    fn has_alone(&self, inode: InodeNumber) -> bool {
        let hold = self.leases.held.get(&inode);
        hold.is_some_and(|hold| hold.mode == Mode::Exclusive && hold.is_sole)
    }

    /// A lease came: if the inode has neither a name nor a reference by now, the lease goes back
    /// after the operations that wait for it. The service leaves an inode to the client that has it
    /// alone, and here nothing is left that would free it.
    fn give_back_removed(&mut self, inode: InodeNumber) {
        if !self.has_alone(inode) || self.keeps_removed(inode) {
            return;
        }
        // A fault shows where an operation looks at the inode.
        let found = self.overlay.inode(self.service.base(), inode);
        if found.is_ok_and(|found| found.is_some_and(|found| found.links == 0)) {
            self.release_later(inode, false);
        }
    }

    /// Releases the lease on an inode after the operation.
    pub(super) fn leave_to_service(&mut self, inode: InodeNumber) {
        self.release_later(inode, true);
    }

    fn release_later(&mut self, inode: InodeNumber, is_urgent: bool) {
        if let Some(serial) = self.leases.held.get(&inode).map(|hold| hold.serial) {
            let revocation = Revocation { inode, serial, may_share: false, is_urgent };
            self.leases.deferred.push(revocation);
        }
    }

    /// Whether a number can be used for a new inode.
    pub(super) fn is_usable_number(&mut self, number: u64) -> bool {
        !S::IS_SHARED || !self.leases.lost_numbers.remove(&InodeNumber(number))
    }

    /// Whether the client was neither fenced nor ended.
    pub(super) fn is_alive(&self) -> bool {
        let is_ended = S::IS_SHARED && self.service.is_fenced();
        !self.is_failed && !is_ended
    }

    /// A client that was fenced does nothing more.
    pub(super) fn check_going(&mut self) -> Result<(), Errno> {
        if S::IS_SHARED && self.service.is_fenced() {
            self.is_failed = true;
        }
        if self.is_failed { Err(Errno::IO) } else { Ok(()) }
    }
}
