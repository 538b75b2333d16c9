//! The file system as one application has it: operations, a log and what is below it.
//!
//! 1. An operation reads inodes and entries through the [`overlay`](crate::overlay), checks
//!    permissions and existence, and makes one change of itself.
//! 2. [`Client::commit`] appends the change to the log. When that returns, the operation is as
//!    durable as the log. Then the change is applied to the overlay.
//! 3. When the log has no room, the client waits for the service ([`Service::wait`]). What the
//!    service has digested, the client drops from the overlay, and only then the log may write
//!    there again. It does so in steps ([`DROP_STEP`]): no operation takes long because a batch was
//!    large. Until then base and overlay say the same.
//! 4. Room for data is promised before it is used ([`room`]). Removing always works.
//! 5. An inode whose last name goes is freed by a record of its own, when nothing keeps it any more
//!    ([`references`]). After a crash, recovery does it.
//!
//! 6. Where other clients have logs too, an operation runs under [`leases`].
//! 7. Where users have limits, [`quota`] checks what an operation adds.
//! 8. A front end whose users share the client waits in their place ([`tries`]).
//!
//! What it must never do: acknowledge what is not in the log; make a record that the digest
//! refuses; read a part of the log that may be overwritten.

mod attributes;
mod charges;
mod current_try;
mod data;
mod held;
mod leases;
mod moved;
mod names;
mod operations;
pub(crate) mod places;
pub(crate) mod question;
mod quota;
mod references;
mod room;
mod tries;
mod xattr_names;
mod xattrs;

use std::collections::VecDeque;
use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};
use rustix::io::Errno;
use sietch_disk::nvm::Medium;

use crate::access::{Credentials, EXECUTE};
use crate::base::{Base, Inode};
use crate::change::{Change, Record};
use crate::error::Fault;
use crate::file_system::{Handle, OpenMode, Pending, PendingSync};
use crate::inode::{Attributes, InodeNumber, Kind, Timestamp};
use crate::lease::{Grant, Mode, Release, Revocation};
use crate::limits::BLOCK;
use crate::log::{AppendError, LogWriter};
use crate::overlay::Overlay;
use crate::overlay::apply::{Refusal, apply_own};
use charges::Charges;
use current_try::{FOLLOWING, Try};
use held::Leases;
use moved::Moved;
use references::References;
use xattr_names::XattrNames;

/// The part of a pool that stays free for what removing and digesting need, and its bounds in
/// blocks: the reserves of the pool, and a chunk for its nodes.
const SPARE_PART: u64 = 32;
const SPARE_BLOCKS: (u64, u64) = (64, 2048);
/// Bytes of the log that an operation drops from the overlay at a time: some thousand records.
const DROP_STEP: u64 = 1 << 20;
/// After this part of a step was logged, the next one is dropped: faster than the log grows.
const DROP_PART: u64 = 2;

/// The service, as a client sees it.
pub trait Service<M: Medium> {
    /// The digested state.
    type Base: Base;

    /// The digested state as of the last [`Service::poll`] or [`Service::wait`] that reported
    /// progress.
    fn base(&mut self) -> &mut Self::Base;

    /// Whether the log was digested further: then the base now has everything before the position
    /// that is returned.
    fn poll(&mut self) -> Option<u64>;

    /// Waits until the log is digested further; `None` when all of it is, up to the position that
    /// [`Service::logged`] was given last.
    ///
    /// # Errors
    /// The service is gone, or has no room: the errno of the operation that waits.
    fn wait(&mut self) -> Result<Option<u64>, Errno>;

    /// As [`Service::wait`], for one that does not wait itself.
    ///
    /// # Errors
    /// As of [`Service::wait`].
    fn begin_wait(&mut self) -> Result<DigestWait, Errno> {
        Ok(self.wait()?.map_or(DigestWait::Complete, DigestWait::Digested))
    }

    /// The log has records up to `position`. If the digest does not keep up, it waits a little.
    fn logged(&mut self, position: u64);

    /// As [`Service::logged`], for one that does not wait itself: what it is to wait for.
    fn logged_without_pause(&mut self, position: u64) -> Option<Box<dyn Pending>> {
        self.logged(position);
        None
    }

    /// Numbers for new inodes, which no other client gets.
    ///
    /// # Errors
    /// The service is gone.
    fn inode_numbers(&mut self) -> Result<Range<u64>, Errno>;

    /// Makes the log durable before `position`, where appending alone does not. `None`: it is.
    ///
    /// # Errors
    /// Its medium failed.
    fn sync(&mut self, log: &mut LogWriter<M>, position: u64) -> Result<Option<Box<dyn PendingSync>>, Errno>;

    /// A fault that an operation met.
    fn report(&mut self, fault: &Fault);

    /// Whether other clients have logs too: then operations need leases, and the service has all
    /// of what follows.
    const IS_SHARED: bool = false;

    /// Asks for a lease. The answer is a message.
    ///
    /// # Errors
    /// The service is gone, or refuses.
    fn request_lease(&mut self, inode: InodeNumber, mode: Mode) -> Result<(), Errno> {
        let _ = (inode, mode);
        Ok(())
    }

    /// The lease is not needed any more. It may have been granted meanwhile.
    fn cancel_lease(&mut self, inode: InodeNumber) {
        let _ = inode;
    }

    /// Gives a lease back, or a part of it.
    fn release_lease(&mut self, release: Release) {
        let _ = release;
    }

    /// An inode is not open here any more, and this client has no lease on it, or not the only
    /// one.
    fn unreferenced(&mut self, inode: InodeNumber) {
        let _ = inode;
    }

    /// Blocks that undigested records may need, if the service shares room out: as of the last
    /// progress, less what was returned.
    fn budget(&mut self) -> Option<u64> {
        None
    }

    /// Asks for a budget of so many blocks. The answer is a message.
    ///
    /// # Errors
    /// The service is gone.
    fn request_room(&mut self, blocks: u64) -> Result<(), Errno> {
        let _ = blocks;
        Ok(())
    }

    /// Says that the budget may be this small.
    fn return_room(&mut self, keeps: u64) {
        let _ = keeps;
    }

    /// The next message.
    fn message(&mut self) -> Option<Message> {
        None
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// The service is gone. `EAGAIN`: it cannot wait; the caller of the operation calls it again
    /// later, and nothing was done.
    fn wait_message(&mut self) -> Result<(), Errno> {
        Err(Errno::AGAIN)
    }

    /// As [`Service::wait_message`], for an operation that does not wait itself: what waits until
    /// the next message comes, or for a part of a second. `None`: only the caller can wait.
    ///
    /// # Errors
    /// The service is gone.
    fn begin_wait_message(&mut self) -> Result<Option<Box<dyn Pending>>, Errno> {
        Ok(None)
    }

    /// Whether the service does not take records of this client any more.
    fn is_fenced(&self) -> bool {
        false
    }
}

/// What [`Service::begin_wait`] finds.
pub enum DigestWait {
    /// The log is digested up to here.
    Digested(u64),
    /// All of it is digested.
    Complete,
    /// Nothing has changed: this waits until something has, or for a second.
    Pending(Box<dyn Pending>),
}

/// What a service says to one of several clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// It has a lease.
    Granted(Grant),
    /// It must release one.
    Revoked(Revocation),
    /// It does not get the lease that it asked for.
    Refused {
        /// On this inode.
        inode: InodeNumber,
        /// What the operation returns that waits for it.
        errno: Errno,
    },
    /// Whether it got the room that it asked for.
    Room(bool),
    /// It must return room that it did not promise.
    RecallRoom,
    /// It must read the newest root: others need blocks of an older one.
    Advance,
}

/// An open file or directory.
#[derive(Clone, Copy, Debug)]
struct Open {
    inode: InodeNumber,
    mode: OpenMode,
}

/// The module's header describes it.
pub struct Client<S, M: Medium> {
    service: S,
    log: LogWriter<M>,
    /// The log's number.
    number: u32,
    overlay: Overlay,
    handles: HashMap<Handle, Open, RandomState>,
    next_handle: u64,
    /// Handles and references of each inode that has some.
    references: HashMap<InodeNumber, References, RandomState>,
    /// Files without a name that may still get one.
    linkable: HashSet<InodeNumber, RandomState>,
    /// Files that are known to have no capabilities.
    without_capabilities: HashSet<InodeNumber, RandomState>,
    numbers: Range<u64>,
    /// The base has all records before this position. Those that the log has not reclaimed are in
    /// the overlay too.
    digested: u64,
    /// Bytes of the log that are dropped from the overlay at a time.
    drop_step: u64,
    /// The next step is dropped when the log ends here.
    drop_at: u64,
    /// Blocks that records need, by the positions of the records.
    promised: VecDeque<(u64, u64)>,
    promised_blocks: u64,
    /// A record is in the log and not in the overlay: nothing more can be said.
    is_failed: bool,
    leases: Leases,
    charges: Charges,
    moved: Moved,
    xattr_names: XattrNames,
    tries: Try,
}

impl<S: Service<M>, M: Medium> Client<S, M> {
    /// A client whose log has the number `number`.
    pub fn new(service: S, log: LogWriter<M>, number: u32) -> Self {
        let digested = log.reclaimed();
        Self {
            service,
            log,
            number,
            overlay: Overlay::default(),
            handles: HashMap::default(),
            next_handle: 1,
            references: HashMap::default(),
            linkable: HashSet::default(),
            without_capabilities: HashSet::default(),
            numbers: 0..0,
            digested,
            drop_step: DROP_STEP,
            drop_at: 0,
            promised: VecDeque::new(),
            promised_blocks: 0,
            is_failed: false,
            leases: Leases::default(),
            charges: Charges::default(),
            moved: Moved::default(),
            xattr_names: XattrNames::default(),
            tries: Try::default(),
        }
    }

    /// The service.
    pub fn service(&mut self) -> &mut S {
        &mut self.service
    }

    /// The log.
    pub fn log(&self) -> &LogWriter<M> {
        &self.log
    }

    /// Ends the client; what it logged stays.
    pub fn into_parts(self) -> (S, LogWriter<M>) {
        (self.service, self.log)
    }

    /// Takes notice of what was digested, and answers the service. Front ends that are idle call
    /// it, so that memory is returned, and other clients get on.
    pub fn advance(&mut self) {
        while self.advance_by_step() {}
    }

    /// As [`Client::advance`], for front ends with operations that wait meanwhile: whether there is
    /// more to do.
    pub fn advance_by_step(&mut self) -> bool {
        self.progress();
        let has_more = self.drop_digested(self.drop_step);
        if S::IS_SHARED {
            self.answer(false);
        }
        has_more
    }

    /// Sets how many bytes of the log are dropped from the overlay at a time.
    pub fn drop_by(&mut self, step: u64) {
        self.drop_step = step.max(1);
    }

    /// Takes notice of what was digested.
    fn progress(&mut self) {
        if let Some(position) = self.service.poll() {
            self.digested(position);
        }
    }

    /// The base has all records before `position`.
    fn digested(&mut self, position: u64) {
        self.digested = position;
        self.log.note_digested(position);
        self.charges.digested(position);
        while let Some((logged, blocks)) = self.promised.front().copied()
            && logged < position
        {
            self.promised.pop_front();
            self.promised_blocks -= blocks;
        }
    }

    /// Drops from the overlay what was digested, so many bytes of the log, which has their space
    /// again. Returns whether there is more.
    fn drop_digested(&mut self, bytes: u64) -> bool {
        let reclaimed = self.log.reclaimed();
        let position = self.digested.min(reclaimed.saturating_add(bytes));
        if position > reclaimed {
            self.overlay.expire(position);
            self.log.reclaim(position);
        }
        position < self.digested
    }

    /// Takes notice of what was digested, and drops a part of it now and then.
    fn keep_up(&mut self) {
        self.progress();
        let end = self.log.next_position();
        if end >= self.drop_at {
            self.drop_at = end.saturating_add(self.drop_step / DROP_PART);
            self.drop_digested(self.drop_step);
        }
    }

    /// The errno of a fault, which the service reports.
    fn failed(&mut self, fault: &Fault) -> Errno {
        self.service.report(fault);
        match fault {
            Fault::Full { .. } => Errno::NOSPC,
            _ => Errno::IO,
        }
    }

    /// Looks something up in the overlay, above the base.
    fn see<T>(&mut self, look: impl FnOnce(&Overlay, &mut S::Base) -> Result<T, Fault>) -> Result<T, Errno> {
        look(&self.overlay, self.service.base()).map_err(|fault| self.failed(&fault))
    }

    /// An inode that exists.
    fn inode(&mut self, inode: InodeNumber) -> Result<Inode, Errno> {
        self.need(inode, Mode::Shared)?;
        self.see(|overlay, base| overlay.inode(base, inode))?.ok_or(Errno::NOENT)
    }

    /// What `stat` reports of an inode that exists.
    fn stat(&mut self, inode: InodeNumber) -> Result<Attributes, Errno> {
        let found = self.inode(inode)?;
        let mut blocks = found.blocks;
        if let Some(state) = self.overlay.state(inode) {
            blocks += state.ranges.logged_bytes().div_ceil(BLOCK as u64);
        }
        Ok(attributes_of(inode, &found, blocks))
    }

    /// A directory that the caller may search.
    fn directory(&mut self, caller: &Credentials, inode: InodeNumber) -> Result<Attributes, Errno> {
        let found = self.stat(inode)?;
        if found.kind != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        caller.check(&found, EXECUTE)?;
        Ok(found)
    }

    /// Logs a change that may need room, and applies it.
    fn commit_with(&mut self, now: Timestamp, change: Change<'_>, data: &[u8]) -> Result<(), Errno> {
        let size = match change {
            Change::Truncate { inode, .. } => self.inode(inode)?.size,
            _ => 0,
        };
        let blocks = change.blocks(size);
        if blocks == 0 {
            return self.commit(now, change, data);
        }
        self.reserve(blocks)?;
        let position = self.log.next_position();
        self.commit(now, change, data)?;
        self.promised.push_back((position, blocks));
        self.promised_blocks += blocks;
        Ok(())
    }

    /// Logs a change and applies it.
    fn commit(&mut self, now: Timestamp, change: Change<'_>, data: &[u8]) -> Result<(), Errno> {
        self.check_going()?;
        self.need_for(&change)?;
        self.note_freed(&change)?;
        self.keep_up();
        self.leave_room_for_following()?;
        let appended = loop {
            match self.log.append(now, &change, data) {
                Ok(appended) => break appended,
                Err(AppendError::Full) if self.digested > self.log.reclaimed() => {
                    self.drop_digested(self.drop_step);
                }
                Err(AppendError::Full) => {
                    self.service.logged(self.log.next_position());
                    self.wait_for_digest()?.ok_or(Errno::NOSPC)?;
                }
                Err(AppendError::Invalid(_)) => return Err(Errno::INVAL),
            }
        };
        let record = Record {
            sequence: appended.sequence,
            position: appended.position.clone(),
            time: now,
            change,
            data: (appended.data, data),
        };
        self.report_logged(appended.position.end);
        // A client that is fenced now may have been fenced before: the record may be lost.
        self.check_going()?;
        match apply_own(&mut self.overlay, self.service.base(), self.number, &record) {
            Ok(_) => {
                self.moved.note(&change);
                self.changed(&change);
                Ok(())
            }
            Err(refusal) => {
                self.is_failed = true;
                let fault = match refusal {
                    Refusal::Fault(fault) => fault,
                    Refusal::Invalid(cause) => Fault::Damaged {
                        medium: "the log".to_owned(),
                        what: "a record that this client made".to_owned(),
                        offset: record.position.start,
                        cause: cause.to_owned(),
                    },
                };
                Err(self.failed(&fault))
            }
        }
    }

    /// Waits until a record that may have to follow the next one has room in the log, too.
    fn leave_room_for_following(&mut self) -> Result<(), Errno> {
        while self.tries.may_repeat() && self.log.room() < FOLLOWING {
            if self.digested > self.log.reclaimed() {
                self.drop_digested(self.drop_step);
                continue;
            }
            self.service.logged(self.log.next_position());
            if self.wait_for_digest()?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// A number for a new inode.
    fn new_number(&mut self) -> Result<InodeNumber, Errno> {
        loop {
            if let Some(number) = self.numbers.next() {
                if self.is_usable_number(number) {
                    return Ok(InodeNumber(number));
                }
                continue;
            }
            self.numbers = self.service.inode_numbers()?;
            if self.numbers.is_empty() {
                return Err(Errno::NOSPC);
            }
        }
    }

    /// Frees an inode that has neither names nor references.
    fn free_if_unused(&mut self, now: Timestamp, inode: InodeNumber) -> Result<(), Errno> {
        if self.keeps_removed(inode) {
            return Ok(());
        }
        let found = self.see(|overlay, base| overlay.inode(base, inode))?;
        if found.is_some_and(|found| found.links == 0) && self.frees(inode) {
            self.linkable.remove(&inode);
            self.without_capabilities.remove(&inode);
            match self.commit(now, Change::Free { inode }, &[]) {
                // What the operation did is done; the service frees it when the lease ends.
                Err(Errno::AGAIN | Errno::TIMEDOUT) if S::IS_SHARED => self.leave_to_service(inode),
                other => other?,
            }
        }
        Ok(())
    }

    fn open_handle(&mut self, inode: InodeNumber, mode: OpenMode) -> Handle {
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        self.handles.insert(handle, Open { inode, mode });
        self.references.entry(inode).or_default().kept += 1;
        handle
    }

    fn handle(&self, handle: Handle) -> Result<Open, Errno> {
        self.handles.get(&handle).copied().ok_or(Errno::BADF)
    }

    /// Whether the inode stays here after its last name.
    fn keeps_removed(&self, inode: InodeNumber) -> bool {
        self.references.get(&inode).is_some_and(|references| references.keep_removed(S::IS_SHARED))
    }

    /// After an operation that removed a name of an inode.
    fn removed(&mut self, now: Timestamp, inode: InodeNumber) -> Result<(), Errno> {
        if self.references.contains_key(&inode) {
            let found = self.see(|overlay, base| overlay.inode(base, inode))?;
            if let Some(references) = self.references.get_mut(&inode) {
                references.is_removed_here = found.is_some_and(|found| found.links == 0);
            }
        }
        self.free_if_unused(now, inode)
    }

    /// Handles or references of an inode go.
    fn drop_references(&mut self, inode: InodeNumber, take: impl FnOnce(&mut References)) {
        let Some(references) = self.references.get_mut(&inode) else { return };
        take(references);
        if references.is_empty() {
            self.references.remove(&inode);
        } else if references.keep_removed(S::IS_SHARED) {
            return;
        }
        if !self.holds(inode) {
            self.closed(inode);
            return;
        }
        // It cannot be tried again.
        self.tries.has_logged = true;
        // The last change of the inode is the time: nothing can see it any more.
        if let Ok(Some(found)) = self.see(|overlay, base| overlay.inode(base, inode))
            && found.links == 0
        {
            // If it cannot be logged, recovery frees the inode.
            let _ = self.free_if_unused(found.ctime, inode);
        }
    }
}

/// Blocks of a pool of so many that no client may promise.
pub(crate) fn spare_blocks(total: u64) -> u64 {
    (total / SPARE_PART).clamp(SPARE_BLOCKS.0, SPARE_BLOCKS.1)
}

/// What `stat` reports of an inode whose data take `blocks`.
fn attributes_of(inode: InodeNumber, found: &Inode, blocks: u64) -> Attributes {
    Attributes {
        inode,
        kind: found.kind,
        mode: found.mode,
        links: found.links,
        uid: found.uid,
        gid: found.gid,
        device: found.device,
        size: found.size,
        blocks: blocks * (BLOCK as u64 / 512),
        atime: found.atime,
        mtime: found.mtime,
        ctime: found.ctime,
        btime: found.btime,
    }
}
