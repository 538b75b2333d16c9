//! Digests logs into the pool.
//!
//! 1. [`Digest::digest`] reads records from where the log was applied last, up to a bound, and adds
//!    each to an overlay of its own over the pool. An invalid one ends the batch: nothing of it and
//!    nothing behind it is applied, and the caller quarantines the log.
//! 2. The overlay is the net effect of the batch: what was created and removed is not in it, and of
//!    data that were overwritten only the last. [`flush`] writes it: data to new blocks, then
//!    items.
//! 3. How far the log was applied is an item too. One commit of the pool makes all of it current.
//!    So a crash leaves the batch whole or not at all, and the next digest begins at the right
//!    record.
//! 4. Before anything is changed, the batch's blocks are counted. A batch that might not fit is
//!    made smaller. Where not even one record fits, the digest fails with [`Fault::Full`] and has
//!    changed nothing.
//! 5. The commit also has what users have then ([`users`]).
//! 6. A freed file with many extents is removed over several commits ([`Digest::reap`]), so that no
//!    batch takes long because of it. Many small ones are removed by one. Which files are to be
//!    removed is kept in memory: a program may have any number of files open that have no name.
//!
//! What it must never do: apply a part of a batch; take lost bytes for zeros; trust what a client
//! may still write, after it was judged: data get their checksum from the copy that goes to the
//! pool.

mod flip;
mod flush;
#[cfg(test)]
mod tests;
mod users;

use std::collections::BTreeSet;
use std::ops::Range;

use sietch_disk::DiskQueue;
use sietch_disk::nvm::Medium;

use crate::base::{Base as _, Inode};
use crate::change::{Change, Record};
use crate::digested::Digested;
use crate::error::Fault;
use crate::inode::{InodeNumber, Kind, Timestamp};
use crate::items::{self, LogState};
use crate::lease::{Anything, Judge, TREE};
use crate::limits::MAX_RECORD_DATA;
use crate::log::{LogIdentity, LogReader, RingError};
use crate::overlay::apply::{Refusal, apply};
use crate::overlay::{Overlay, State};
use crate::pin::PIN;
use crate::pool::{Counters, FreeBlocks, Pool, Root};
use crate::tree::Key;
pub use flip::{Flipped, Moved};
use flush::Flush;

/// Records of a batch, at most. More of them coalesce better, and keep the log's space longer.
pub const MAX_BATCH_RECORDS: u64 = 65_536;
/// Bytes of the log in a batch, at most, one record more or less.
pub const MAX_BATCH_BYTES: u64 = 256 << 20;
/// The same, unless [`Digest::set_batch_records`] and [`Digest::set_batch_bytes`] say others.
const BATCH_RECORDS: u64 = 16_384;
const BATCH_BYTES: u64 = 32 << 20;
const _: () = assert!(MAX_RECORD_DATA as u64 * 8 <= BATCH_BYTES);

/// Items that an effect changes, on average at most: of an entry, its inode and its directory; of
/// data, the extents around.
const ITEMS_PER_EFFECT: u64 = 3;

/// Inodes without a name that one commit frees or removes, at most: they are some blocks of the
/// tree.
pub const FREED_AT_ONCE: usize = 256;

/// What a batch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// How far the log is applied now.
    pub state: LogState,
    /// How far the log was read: there may be pads behind the last record.
    pub read: u64,
    /// Records that were read.
    pub records: u64,
    /// Data bytes of those records.
    pub data: u64,
    /// Blocks that those records were promised.
    pub promised: u64,
    /// Records without which the net effect would be the same.
    pub records_saved: u64,
    /// Data bytes that did not reach the pool, because later records made them pointless.
    pub data_saved: u64,
    /// Blocks of data that were written.
    pub blocks_written: u64,
    /// The first record that was not applied, and why: the log is not digested beyond it.
    pub invalid: Option<Invalid>,
    /// Blocks that records changed partly, and whose other bytes are lost: what was damaged, and
    /// where.
    pub damage: Vec<String>,
    /// Inodes that lost their last name, and that a client may still have open.
    pub orphans: Vec<InodeNumber>,
    /// Whether more records may be there.
    pub more: bool,
}

/// A record that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Position of the record in its log.
    pub position: u64,
    /// What is wrong with it.
    pub cause: String,
}

/// Why nothing was digested.
#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    /// A medium failed, or there is no room.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The memory is no log.
    #[error("not the memory of a log")]
    Ring(#[from] RingError),
    /// Blocks that the batch needs are free, but readers of an older generation may still read
    /// them.
    #[error("free blocks are still read by clients; digest when they have advanced")]
    Held,
    /// An earlier batch failed half-way.
    #[error("an earlier batch failed; open the pool again")]
    Stopped,
    /// The log has another seed.
    #[error("log {log} has another seed: none of its records can be read with this one")]
    Seed {
        /// Its number.
        log: u32,
    },
}

/// The module's header describes it.
pub struct Digest<D: DiskQueue> {
    digested: Digested<Pool<D>>,
    counters: Counters,
    /// Why users are not counted.
    uncounted: Option<String>,
    /// A batch failed half-way: what is in memory is of no use.
    is_stopped: bool,
    least_epoch: u32,
    batch_records: u64,
    batch_bytes: u64,
    /// Records that the next batch begins with: twice what fitted last. A full pool takes few at a
    /// time, and finding that out anew for each batch would take the square of the log's length.
    fitting: u64,
    /// Batches that changed a pin.
    pin_changes: u64,
    /// Inodes that were freed and are not removed, once the pool was searched for them.
    freed: Option<BTreeSet<InodeNumber>>,
}

impl<D: DiskQueue> Digest<D> {
    /// Digests into `pool`, and creates its root directory, of root, if it has none.
    ///
    /// # Errors
    /// A medium failed.
    pub fn new(pool: Pool<D>, now: Timestamp) -> Result<Self, Fault> {
        Self::with_owner(pool, now, (0, 0))
    }

    /// As [`Digest::new`]; the root directory belongs to this user and group.
    ///
    /// # Errors
    /// A medium failed.
    pub fn with_owner(pool: Pool<D>, now: Timestamp, (uid, gid): (u32, u32)) -> Result<Self, Fault> {
        let mut digested = Digested::new(pool);
        let mut counters = digested.store.root().counters;
        let key = items::inode_key(InodeNumber::ROOT);
        let is_new = digested.store.get(key)?.is_none();
        if is_new {
            digested.store.insert(key, &items::write_inode(&root_directory(now, uid, gid)))?;
            counters = Counters { inodes: 1, next_inode: InodeNumber::ROOT.0 + 1 };
        }
        let was_counted = digested.limited_users()?.is_some();
        let uncounted = if was_counted { None } else { count_first(&mut digested)? };
        let is_counted = uncounted.is_none();
        if is_new || is_counted != was_counted {
            digested.store.commit(counters)?;
        }
        Ok(Self {
            digested,
            counters,
            uncounted,
            is_stopped: false,
            least_epoch: 0,
            batch_records: BATCH_RECORDS,
            batch_bytes: BATCH_BYTES,
            fitting: MAX_BATCH_RECORDS,
            pin_changes: 0,
            freed: None,
        })
    }

    /// Counts all inodes again, and replaces what is stored of users; limits stay. Returns whether
    /// there is room for it.
    ///
    /// # Errors
    /// As of [`Digest::digest`].
    pub fn recount(&mut self) -> Result<bool, DigestError> {
        self.stopping(|digest| {
            let is_counted = users::count(&mut digest.digested)?;
            if is_counted {
                digest.digested.store.commit(digest.counters)?;
                digest.uncounted = None;
            }
            Ok(is_counted)
        })
    }

    /// Why users are not counted, so that limits are not enforced, if that is so.
    pub fn uncounted(&self) -> Option<&str> {
        self.uncounted.as_deref()
    }

    /// Sets how many records a batch has at most, no more than [`MAX_BATCH_RECORDS`].
    pub fn set_batch_records(&mut self, records: u64) {
        self.batch_records = records.min(MAX_BATCH_RECORDS);
    }

    /// Sets how many bytes of the log a batch has at most: no more than [`MAX_BATCH_BYTES`].
    pub fn set_batch_bytes(&mut self, bytes: u64) {
        self.batch_bytes = bytes.min(MAX_BATCH_BYTES);
    }

    /// Whether a batch failed half-way: the pool must be opened again.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// The pool, as it was committed last.
    pub fn root(&self) -> Root {
        self.digested.store.root()
    }

    /// The pool itself.
    pub fn pool(&mut self) -> &mut Pool<D> {
        &mut self.digested.store
    }

    /// What was digested.
    pub fn base(&mut self) -> &mut Digested<Pool<D>> {
        &mut self.digested
    }

    /// Gives the pool back.
    pub fn into_pool(self) -> Pool<D> {
        self.digested.store
    }

    /// Batches so far that changed a pin ([`PIN`]).
    pub fn pin_changes(&self) -> u64 {
        self.pin_changes
    }

    /// How far a log was applied.
    ///
    /// # Errors
    /// A medium failed.
    pub fn log_state(&mut self, log: u32) -> Result<LogState, Fault> {
        self.digested.log(log)
    }

    /// The numbers of all logs that ever had an epoch.
    ///
    /// # Errors
    /// A medium failed.
    pub fn logs(&mut self) -> Result<Vec<u32>, Fault> {
        let (mut from, mut numbers) = (items::log_key(0), Vec::new());
        while let Some((key, _)) = self.digested.store.next(from)?.filter(|(key, _)| items::is_log(*key)) {
            // A log's number has 32 bits.
            numbers.extend(u32::try_from(key.offset).ok());
            let Some(offset) = key.offset.checked_add(1) else { break };
            from.offset = offset;
        }
        Ok(numbers)
    }

    /// No later epoch of a log is before this one. A pool that is restored from a copy would begin
    /// an epoch again that the log has records of: those of the history that was given up. So this
    /// is larger each time that the pool is opened, as a clock is.
    pub fn set_least_epoch(&mut self, least: u32) {
        self.least_epoch = least;
    }

    /// Begins a new epoch of a log, in which records of earlier ones are not valid, and returns its
    /// state. The log must be digested to its end, and its writer must not have begun. `seed` is
    /// that of the log's identity.
    ///
    /// # Errors
    /// As of [`Digest::digest`].
    pub fn begin_epoch(&mut self, log: u32, seed: u64) -> Result<LogState, DigestError> {
        let mut state = self.digested.log(log)?;
        if !state.is_of(seed) {
            return Err(DigestError::Seed { log });
        }
        state.epoch = state.epoch.saturating_add(1).max(self.least_epoch);
        state.seed_sum = LogState::sum(seed);
        self.stopping(|digest| {
            digest.digested.store.use_reserve(true);
            digest.digested.store.insert(items::log_key(log), &items::write_log(state))?;
            digest.digested.store.commit(digest.counters)?;
            Ok(state)
        })
    }

    /// Digests one batch of the log in `medium`, which begins where the log was applied last.
    /// `seed` is that of the log's identity.
    ///
    /// # Errors
    /// A medium failed, or there is no room ([`Fault::Full`]). Nothing durable has changed. Unless
    /// the batch was too large for the pool, the digest is stopped, and the pool must be opened
    /// again.
    pub fn digest<M: Medium>(&mut self, medium: &M, log: u32, seed: u64) -> Result<Batch, DigestError> {
        self.digest_judged(medium, log, seed, &mut Anything)
    }

    /// As [`Digest::digest`], for one of several logs: `judge` says whether the writer of the log
    /// may change what a record changes.
    ///
    /// # Errors
    /// As there.
    pub fn digest_judged<M: Medium>(
        &mut self,
        medium: &M,
        log: u32,
        seed: u64,
        judge: &mut impl Judge,
    ) -> Result<Batch, DigestError> {
        if self.is_stopped {
            return Err(DigestError::Stopped);
        }
        let state = self.digested.log(log)?;
        if !state.is_of(seed) {
            return Err(DigestError::Seed { log });
        }
        let identity = LogIdentity { log, epoch: state.epoch, seed };
        let mut most = self.fitting.min(self.batch_records);
        let (mut batch, states, demand) = loop {
            let mut reader = LogReader::new(medium, identity, state.position, state.sequence + 1)?;
            let mut batch = Batch { state, ..Batch::default() };
            let overlay = self.gather(log, &mut reader, &mut batch, (most, judge))?;
            if batch.records == 0 {
                return Ok(batch);
            }
            let effects = overlay.effects();
            batch.records_saved = batch.records.saturating_sub(overlay.needed());
            let states = overlay.into_states();
            let (logged, blocks) = flush::demand(&states);
            batch.data_saved = batch.data.saturating_sub(logged);
            let changes = effects.saturating_mul(ITEMS_PER_EFFECT).saturating_add(users_of(&states));
            let cut = self.cut_items(&states)?;
            if self.makes_room(changes.saturating_add(cut), blocks, batch.records)? {
                break (batch, states, (changes, blocks));
            }
            most = batch.records / 2;
            self.fitting = most;
        };
        self.fitting = most.saturating_mul(2).min(MAX_BATCH_RECORDS);
        let pin = (self.digested.name_key().cookie(PIN), PIN.into());
        self.pin_changes += u64::from(states.iter().any(|(_, state)| state.xattrs.contains_key(&pin)));
        let effects = self.stopping(|digest| {
            let mut flush = Flush::new(&mut digest.digested, &mut digest.counters, medium, demand);
            for (inode, state) in states {
                flush.state(inode, &state)?;
            }
            let effects = flush.end()?;
            digest.digested.store.set_demand(0);
            let key = items::log_key(log);
            digest.digested.store.insert(key, &items::write_log(batch.state))?;
            digest.digested.store.commit(digest.counters)?;
            Ok(effects)
        })?;
        self.freed.iter_mut().for_each(|freed| freed.extend(&effects.freed));
        (batch.blocks_written, batch.damage, batch.orphans) =
            (effects.written, effects.damage, effects.orphans);
        Ok(batch)
    }

    /// Whether a batch surely fits. One that does not is made smaller, down to one record. That one
    /// may take what the pool reserves for removals: what a client logged was promised to it.
    fn makes_room(&mut self, changes: u64, blocks: u64, records: u64) -> Result<bool, DigestError> {
        let pool = &mut self.digested.store;
        pool.use_reserve(false);
        if pool.has_room(changes, blocks) {
            return Ok(true);
        }
        if records > 1 {
            return Ok(false);
        }
        pool.use_reserve(true);
        let (free, _) = pool.free_blocks();
        if free < blocks {
            return Err(Fault::Full { medium: "the pool".to_owned(), wanted: blocks }.into());
        }
        if !pool.has_room(changes, blocks) && pool.is_holding() {
            return Err(DigestError::Held);
        }
        Ok(true)
    }

    /// Items that change where extents are cut, at most: each extent, and the run that it frees.
    /// And those of the values of attributes that go: they are far apart in the tree.
    fn cut_items(&mut self, states: &[(InodeNumber, State)]) -> Result<u64, Fault> {
        let mut items: u64 = 0;
        for (inode, state) in states.iter().filter(|(_, state)| !state.is_new) {
            items = items.saturating_add(self.cut_extents(*inode, state)?.saturating_mul(2));
        }
        for (inode, state) in states.iter().filter(|(_, state)| !state.is_new && state.inode.is_some()) {
            for (_, name) in state.xattrs.keys() {
                items = items.saturating_add(self.digested.xattr_items(*inode, name)?);
            }
        }
        Ok(items)
    }

    /// Extents that are cut, at most. Those of a file with a hole are counted in the hole: if all
    /// of its blocks counted, each hole would be a batch of its own.
    fn cut_extents(&mut self, inode: InodeNumber, state: &State) -> Result<u64, Fault> {
        if state.inode.is_some() {
            let mut left = MAX_BATCH_RECORDS;
            for blocks in flush::cut_blocks(&state.ranges) {
                self.digested.allocated(inode, blocks, &mut left)?;
            }
            if left > 0 {
                return Ok(MAX_BATCH_RECORDS - left);
            }
        }
        let blocks = self.digested.inode(inode)?.map_or(0, |old| old.blocks);
        Ok(if state.inode.is_none() { blocks.min(flush::REAPED as u64) } else { blocks })
    }

    /// Reads the records of a batch into an overlay, `most` of them, as far as they are valid.
    fn gather<M: Medium>(
        &mut self,
        log: u32,
        reader: &mut LogReader<'_, M>,
        batch: &mut Batch,
        (most, judge): (u64, &mut impl Judge),
    ) -> Result<Overlay, Fault> {
        let start = batch.state.position;
        let mut overlay = Overlay::default();
        loop {
            batch.read = batch.state.position;
            if batch.records == most || batch.state.position - start >= self.batch_bytes {
                batch.more = true;
                return Ok(overlay);
            }
            let record = match reader.next() {
                Ok(Some(record)) => record,
                Ok(None) => {
                    batch.read = reader.position();
                    return Ok(overlay);
                }
                Err(damage) => {
                    let position = batch.state.position;
                    batch.invalid = Some(Invalid { position, cause: damage.to_string() });
                    return Ok(overlay);
                }
            };
            if let Err(cause) = self.take(log, &mut overlay, &record, (batch, judge))? {
                batch.invalid = Some(Invalid { position: record.position.start, cause });
                return Ok(overlay);
            }
            batch.records += 1;
            batch.data += record.data.1.len() as u64;
            batch.state =
                LogState { sequence: record.sequence, position: record.position.end, ..batch.state };
        }
    }

    /// Judges a record, and adds it to the overlay. Returns why it is not valid.
    fn take(
        &mut self,
        log: u32,
        overlay: &mut Overlay,
        record: &Record<'_>,
        (batch, judge): (&mut Batch, &mut impl Judge),
    ) -> Result<Result<(), String>, Fault> {
        // Numbers are durable before a client gets them: see `inode_numbers`.
        if matches!(record.change, Change::Create { inode, .. } if inode.0 >= self.counters.next_inode) {
            return Ok(Err("a number that no client got".to_owned()));
        }
        if !self.may(overlay, record, judge)? {
            return Ok(Err("an inode on which its client has no lease".to_owned()));
        }
        let blocks = self.blocks(overlay, record)?;
        if let Some(budget) = judge.budget() {
            let left = budget.saturating_sub(batch.promised);
            if blocks > left {
                return Ok(Err(format!(
                    "it needs {blocks} blocks, and client {log} has {left} of its budget left"
                )));
            }
        }
        match apply(overlay, &mut self.digested, log, record) {
            Ok(_) => {
                batch.promised = batch.promised.saturating_add(blocks);
                Ok(Ok(()))
            }
            Err(Refusal::Invalid(cause)) => Ok(Err(cause.to_owned())),
            Err(Refusal::Fault(fault)) => Err(fault),
        }
    }

    /// Whether the writer of a record may change what the record changes.
    fn may(&mut self, overlay: &Overlay, record: &Record<'_>, judge: &mut impl Judge) -> Result<bool, Fault> {
        let position = record.position.start;
        let needs = record.change.needs();
        if !needs.inodes().all(|inode| judge.may_change(inode, position))
            || !needs.created.is_none_or(|inode| judge.may_create(inode, position))
        {
            return Ok(false);
        }
        for inode in record.change.moves() {
            let moved = overlay.inode(&mut self.digested, inode)?;
            if moved.is_some_and(|moved| moved.kind == Kind::Directory) {
                return Ok(judge.may_change(TREE, position));
            }
        }
        Ok(true)
    }

    /// Blocks that the client has promised for a record.
    fn blocks(&mut self, overlay: &Overlay, record: &Record<'_>) -> Result<u64, Fault> {
        let size = match record.change {
            Change::Truncate { inode, .. } => {
                overlay.inode(&mut self.digested, inode)?.map_or(0, |found| found.size)
            }
            _ => 0,
        };
        Ok(record.change.blocks(size))
    }

    /// Does what changes the pool: if it fails, nothing more is done.
    fn stopping<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, DigestError> {
        let done = work(self);
        self.is_stopped = done.is_err();
        Ok(done?)
    }

    /// Numbers for `count` new inodes, which no other client gets, also after a crash.
    ///
    /// # Errors
    /// As of [`Digest::digest`].
    pub fn inode_numbers(&mut self, count: u64) -> Result<Range<u64>, DigestError> {
        let first = self.counters.next_inode;
        self.stopping(|digest| {
            digest.counters.next_inode = first.saturating_add(count);
            digest.digested.store.commit(digest.counters)?;
            Ok(first..digest.counters.next_inode)
        })
    }

    /// Removes some more of the files that were freed; `false` when none is left.
    ///
    /// # Errors
    /// As of [`Digest::digest`].
    pub fn reap(&mut self) -> Result<bool, DigestError> {
        let inodes = self.reapable()?;
        if inodes.is_empty() {
            return Ok(false);
        }
        let removed = self.stopping(|digest| {
            digest.digested.store.use_reserve(true);
            let mut flush = Flush::new(&mut digest.digested, &mut digest.counters, &flush::NoLog, (0, 0));
            let mut removed = Vec::new();
            for inode in inodes {
                if flush.remove(inode)? {
                    removed.push(inode);
                }
            }
            flush.end()?;
            digest.digested.store.commit(digest.counters)?;
            Ok(removed)
        })?;
        let freed = self.freed.get_or_insert_default();
        for inode in removed {
            freed.remove(&inode);
        }
        Ok(true)
    }

    /// The files that one commit removes, or of which it removes a part.
    fn reapable(&mut self) -> Result<Vec<InodeNumber>, DigestError> {
        let freed = match self.freed.take() {
            Some(freed) => freed,
            None => self.search_freed()?,
        };
        let first: Vec<_> = freed.iter().copied().take(FREED_AT_ONCE).collect();
        self.freed = Some(freed);
        let (mut inodes, mut changes) = (Vec::new(), 0);
        for inode in first {
            let blocks = self.digested.inode(inode)?.map_or(0, |old| old.blocks);
            let more = blocks.min(flush::REAPED as u64) * 2 + ITEMS_PER_EFFECT + 1;
            if !inodes.is_empty() && !self.may_reap(changes + more) {
                break;
            }
            inodes.push(inode);
            changes += more;
            if changes > flush::REAPED as u64 * 2 {
                break;
            }
        }
        // One fits, or there will not be more room.
        if inodes.len() == 1 && !self.may_reap(changes) && self.digested.store.is_holding() {
            return Err(DigestError::Held);
        }
        Ok(inodes)
    }

    /// Whether removals that change so many items surely fit.
    fn may_reap(&mut self, changes: u64) -> bool {
        let pool = &mut self.digested.store;
        pool.use_reserve(true);
        pool.has_room(changes, 0)
    }

    /// The inodes that were freed before the pool was opened.
    fn search_freed(&mut self) -> Result<BTreeSet<InodeNumber>, Fault> {
        let (mut from, mut freed) = (items::orphan_key(InodeNumber(0)), BTreeSet::new());
        while let Some((key, value)) = self.orphan(from)? {
            if value.first() == Some(&items::FREED) {
                freed.insert(InodeNumber(key.offset));
            }
            from.offset = key.offset.saturating_add(1);
        }
        Ok(freed)
    }

    /// Gives blocks for nodes that are spare back to the data, by a commit. Returns whether there
    /// were some. A batch gives back what is free before its commit; nothing follows the last one.
    ///
    /// # Errors
    /// As of [`Digest::digest`].
    pub fn give_nodes_back(&mut self) -> Result<bool, DigestError> {
        if !self.digested.store.has_spare_chunks(FreeBlocks::Now) {
            return Ok(false);
        }
        self.stopping(|digest| {
            digest.digested.store.commit(digest.counters)?;
            Ok(true)
        })
    }

    /// Frees every inode that has no name, and returns how many. No client may have a reference to
    /// one: right after a start, when all logs were digested.
    ///
    /// # Errors
    /// As of [`Digest::digest`].
    pub fn free_orphans(&mut self) -> Result<u64, DigestError> {
        self.freed = None;
        self.stopping(|digest| {
            let mut freed = 0;
            let mut from = items::orphan_key(InodeNumber(0));
            while let Some((key, _)) = digest.orphan(from)? {
                digest.digested.store.insert(key, &[items::FREED])?;
                from.offset = key.offset + 1;
                freed += 1;
            }
            if freed > 0 {
                digest.digested.store.commit(digest.counters)?;
            }
            Ok(freed)
        })
    }

    /// The first inode at or behind `from` that has no name, and is not freed.
    ///
    /// # Errors
    /// A medium failed.
    pub fn kept_orphan(&mut self, from: InodeNumber) -> Result<Option<InodeNumber>, Fault> {
        let mut from = items::orphan_key(from);
        while let Some((key, value)) = self.orphan(from)? {
            if value.first() == Some(&items::KEPT) {
                return Ok(Some(InodeNumber(key.offset)));
            }
            from.offset = key.offset.saturating_add(1);
        }
        Ok(None)
    }

    /// Whether an inode has no name, and is not freed.
    ///
    /// # Errors
    /// A medium failed.
    pub fn is_unnamed(&mut self, inode: InodeNumber) -> Result<bool, Fault> {
        let value = self.digested.store.get(items::orphan_key(inode))?;
        Ok(value.is_some_and(|value| value.first() == Some(&items::KEPT)))
    }

    /// Frees those of these inodes that have no name, by one commit; how many. No client may have
    /// one of them open, and no log a record of it that is not digested. [`Digest::reap`] removes
    /// them. At most [`FREED_AT_ONCE`] can be given.
    ///
    /// # Errors
    /// As of [`Digest::digest`].
    pub fn free_unnamed(&mut self, inodes: &[InodeNumber]) -> Result<usize, DigestError> {
        let mut kept = Vec::with_capacity(inodes.len());
        for inode in inodes.iter().take(FREED_AT_ONCE) {
            if self.is_unnamed(*inode)? {
                kept.push(*inode);
            }
        }
        if kept.is_empty() {
            return Ok(0);
        }
        self.stopping(|digest| {
            digest.digested.store.use_reserve(true);
            for inode in &kept {
                digest.digested.store.insert(items::orphan_key(*inode), &[items::FREED])?;
            }
            digest.digested.store.commit(digest.counters)?;
            Ok(())
        })?;
        self.freed.iter_mut().for_each(|freed| freed.extend(&kept));
        Ok(kept.len())
    }

    /// The first item of an inode without a name at or behind `from`.
    fn orphan(&mut self, from: Key) -> Result<Option<(Key, Vec<u8>)>, Fault> {
        let found = self.digested.store.next(from)?;
        Ok(found.filter(|(key, _)| key.object == from.object && key.kind == from.kind))
    }
}

/// Counts the users of a pool from before they were counted. Returns why that is not possible now.
fn count_first<D: DiskQueue>(digested: &mut Digested<Pool<D>>) -> Result<Option<String>, Fault> {
    match users::count(digested) {
        Ok(true) => Ok(None),
        Ok(false) => Ok(Some("there is no room for the sums; remove files".to_owned())),
        Err(fault) if fault.is_unreadable() => Ok(Some(fault.to_string())),
        Err(fault) => Err(fault),
    }
}

/// Items of users that a batch changes, at most: one an owner, and the number of limits.
fn users_of(states: &[(InodeNumber, State)]) -> u64 {
    let owners: BTreeSet<u32> = states.iter().flat_map(|(_, state)| state.owners()).collect();
    owners.len() as u64 + 1
}

/// An empty root directory.
fn root_directory(now: Timestamp, uid: u32, gid: u32) -> Inode {
    Inode {
        kind: Kind::Directory,
        mode: 0o755,
        links: 2,
        uid,
        gid,
        device: 0,
        size: 0,
        blocks: 0,
        parent: InodeNumber::ROOT.0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        applied: (0, 0),
    }
}
