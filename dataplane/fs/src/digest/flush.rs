//! Writes the net effect of a batch to the pool.
//!
//! 1. Data go to new blocks, in runs as long as the pool has them. A block that a record covers
//!    only partly is completed from what is there. Room that was reserved and never written is
//!    used in place: nothing durable refers to its content.
//! 2. Blocks whose bytes are all gone (holes, truncation) are freed. Behind the end of the file,
//!    the last block has zeros.
//! 3. Then the entries, attributes and the inode itself become items.

use std::ops::Range;

use sietch_disk::nvm::Medium;
use sietch_disk::{Buffer, DiskQueue};

use crate::base::{Base as _, Inode};
use crate::digested::Digested;
use crate::error::Fault;
use crate::inode::InodeNumber;
use crate::items::{self, EXTENT_BLOCKS, Extent, FREED, KEPT};
use crate::limits::BLOCK;
use crate::name::{Cookie, SLOTS};
use crate::overlay::ranges::{Ranges, Source};
use crate::overlay::{State, Value};
use crate::pool::{Class, Counters, Pool, Run};
use crate::quota;
use crate::tree::Key;

use super::users::Users;

/// Extents that one step removes of a freed file.
pub(super) const REAPED: usize = 4096;

/// Blocks that are prepared together: a large write of a disk, and what stays in the processor's
/// cache from the log to the medium.
const CHUNK: u64 = 256;

const BLOCK_BYTES: u64 = BLOCK as u64;

/// For work that has no log.
pub(super) struct NoLog;

impl Medium for NoLog {
    fn len(&self) -> usize {
        0
    }

    fn load(&self, _: usize, out: &mut [u8]) {
        out.fill(0);
    }

    fn store(&mut self, _: usize, _: &[u8]) {}

    fn fence(&mut self) {}

    fn description(&self) -> &'static str {
        "no log"
    }
}

/// Data bytes that the states take from the log, and blocks that they need.
pub(super) fn demand(states: &[(InodeNumber, State)]) -> (u64, u64) {
    let (mut bytes, mut blocks) = (0, 0);
    for (_, state) in states {
        bytes += state.ranges.logged_bytes();
        blocks += written_blocks(&state.ranges).iter().map(|range| range.end - range.start).sum::<u64>();
    }
    (bytes, blocks)
}

/// The blocks of the base that are cut, other than those that get new content.
pub(super) fn cut_blocks(ranges: &Ranges) -> impl Iterator<Item = Range<u64>> {
    let visible = Some(ranges.visible()).filter(|visible| *visible != u64::MAX);
    let behind = visible.map(|visible| visible.div_ceil(BLOCK_BYTES)..u64::MAX);
    let holes = ranges.pieces().filter(|(_, source)| *source == Source::Hole);
    behind.into_iter().chain(holes.map(|(range, _)| whole_blocks(&range)).filter(|hole| !hole.is_empty()))
}

/// The blocks that are all in a range of bytes.
fn whole_blocks(range: &Range<u64>) -> Range<u64> {
    range.start.div_ceil(BLOCK_BYTES)..range.end / BLOCK_BYTES
}

/// The blocks that get new content: those with logged bytes, and those that are cut.
fn written_blocks(ranges: &Ranges) -> Vec<Range<u64>> {
    let mut blocks: Vec<Range<u64>> = Vec::new();
    let mut add = |range: Range<u64>| match blocks.last_mut() {
        Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
        _ => blocks.push(range),
    };
    for (range, source) in ranges.pieces() {
        let (first, end) = (range.start / BLOCK_BYTES, range.end.div_ceil(BLOCK_BYTES));
        if source != Source::Hole || end - first <= 2 {
            add(first..end);
            continue;
        }
        if !range.start.is_multiple_of(BLOCK_BYTES) {
            add(first..first + 1);
        }
        if !range.end.is_multiple_of(BLOCK_BYTES) {
            add(end - 1..end);
        }
    }
    blocks
}

/// The blocks with reserved room, each once however often it was reserved.
fn reserved_blocks(ranges: &Ranges) -> Vec<Range<u64>> {
    let blocks = |range: Range<u64>| range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
    let mut all: Vec<_> = ranges.reserved().map(blocks).collect();
    all.sort_unstable_by_key(|blocks| blocks.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for blocks in all {
        match merged.last_mut() {
            Some(last) if blocks.start <= last.end => last.end = last.end.max(blocks.end),
            _ => merged.push(blocks),
        }
    }
    merged
}

/// The work of one batch.
pub(super) struct Flush<'a, D: DiskQueue, M> {
    digested: &'a mut Digested<Pool<D>>,
    counters: &'a mut Counters,
    log: &'a M,
    /// Changes of the tree, and blocks, that the batch needs: a reservation leaves them alone.
    demand: (u64, u64),
    /// Blocks of them that were not taken yet.
    left: u64,
    written: u64,
    /// Blocks of which a part is lost.
    lost: Vec<(InodeNumber, u64)>,
    damage: Vec<String>,
    /// Inodes that lost their last name, and may still be open.
    orphans: Vec<InodeNumber>,
    /// Inodes that were freed, and of which a part is left.
    freed: Vec<InodeNumber>,
    users: Users,
}

/// What a batch did.
pub(super) struct Effects {
    /// Blocks of data that were written.
    pub written: u64,
    /// What could not be read.
    pub damage: Vec<String>,
    /// Inodes that lost their last name, and may still be open.
    pub orphans: Vec<InodeNumber>,
    /// Inodes that were freed, and of which a part is left.
    pub freed: Vec<InodeNumber>,
}

impl<'a, D: DiskQueue, M: Medium> Flush<'a, D, M> {
    pub(super) fn new(
        digested: &'a mut Digested<Pool<D>>,
        counters: &'a mut Counters,
        log: &'a M,
        demand: (u64, u64),
    ) -> Self {
        digested.store.set_demand(demand.1);
        Self {
            digested,
            counters,
            log,
            demand,
            left: demand.1,
            written: 0,
            lost: Vec::new(),
            damage: Vec::new(),
            orphans: Vec::new(),
            freed: Vec::new(),
            users: Users::default(),
        }
    }

    /// Writes what users have now.
    pub(super) fn end(mut self) -> Result<Effects, Fault> {
        self.users.write(self.digested, &mut self.damage)?;
        let Self { written, damage, orphans, freed, .. } = self;
        Ok(Effects { written, damage, orphans, freed })
    }

    /// Writes what changed of one inode.
    pub(super) fn state(&mut self, inode: InodeNumber, state: &State) -> Result<(), Fault> {
        let Some(mut new) = state.inode else {
            if !state.is_new {
                self.digested.store.insert(items::orphan_key(inode), &[FREED])?;
                if !self.remove(inode)? {
                    self.freed.push(inode);
                }
            }
            return Ok(());
        };
        let old = if state.is_new { None } else { self.digested.inode(inode)? };
        new.blocks = old.map_or(0, |old| old.blocks);
        self.data(inode, &mut new, &state.ranges)?;
        for (cookie, entry) in &state.entries {
            let key = items::entry_key(inode, *cookie);
            match entry.target {
                Some((target, kind)) => {
                    self.digested.store.insert(key, &items::write_entry(target, kind, &entry.name))?;
                }
                None if state.is_new => {}
                None => drop(self.digested.store.remove(key)?),
            }
        }
        let is_effect = |value: &Value| value.value.is_some() || !state.is_new;
        for ((_, name), value) in state.xattrs.iter().filter(|(_, value)| is_effect(value)) {
            if inode == InodeNumber::ROOT && quota::is_about(name) {
                self.limit(name, value);
            } else {
                self.xattr(inode, name, value)?;
            }
        }
        if let Some(target) = &state.target {
            for (piece, bytes) in target.chunks(items::PIECE).enumerate() {
                let key = Key { object: inode.0, kind: items::TARGET, offset: piece as u64 };
                self.digested.store.insert(key, bytes)?;
            }
        }
        match (old.map(|old| old.links), new.links) {
            (Some(0), 0) => {}
            (_, 0) => {
                self.orphans.push(inode);
                self.digested.store.insert(items::orphan_key(inode), &[KEPT])?;
            }
            (Some(0), _) => drop(self.digested.store.remove(items::orphan_key(inode))?),
            _ => {}
        }
        if old.is_none() {
            self.counters.inodes += 1;
        }
        self.users.changed(old.as_ref(), Some(&new));
        self.digested.store.insert(items::inode_key(inode), &items::write_inode(&new))
    }

    /// A user gets a limit, by an attribute that was judged.
    fn limit(&mut self, name: &[u8], value: &Value) {
        let limit = value.value.as_deref().and_then(quota::limit);
        if let (Some(uid), Some(limit)) = (quota::user(name), limit) {
            self.users.limit(uid, limit);
        }
    }

    /// Removes an inode that nothing refers to, and returns whether nothing is left of it. Of a
    /// large file it removes a part, and the orphan's item stays.
    pub(super) fn remove(&mut self, inode: InodeNumber) -> Result<bool, Fault> {
        let Some(mut old) = self.digested.inode(inode)? else {
            self.digested.store.remove(items::orphan_key(inode))?;
            return Ok(true);
        };
        let whole = old;
        if !self.cut(inode, &mut old, 0..u64::MAX, REAPED)? {
            self.users.changed(Some(&whole), Some(&old));
            self.digested.store.insert(items::inode_key(inode), &items::write_inode(&old))?;
            return Ok(false);
        }
        // What is left of the inode: its own item, pieces of a target, attributes.
        let mut from = Key { object: inode.0, kind: 0, offset: 0 };
        while let Some((key, _)) = self.digested.store.next(from)?
            && key.object == inode.0
        {
            self.digested.store.remove(key)?;
            from = key;
        }
        self.digested.store.remove(items::orphan_key(inode))?;
        self.users.changed(Some(&whole), None);
        self.counters.inodes = self.counters.inodes.saturating_sub(1);
        Ok(true)
    }

    fn data(&mut self, inode: InodeNumber, new: &mut Inode, ranges: &Ranges) -> Result<(), Fault> {
        if ranges.is_empty() {
            return Ok(());
        }
        let visible = ranges.visible();
        if visible != u64::MAX {
            self.cut(inode, new, visible.div_ceil(BLOCK_BYTES)..u64::MAX, usize::MAX)?;
        }
        for blocks in written_blocks(ranges) {
            let mut first = blocks.start;
            while first < blocks.end {
                let end = blocks.end.min(first + CHUNK);
                self.blocks(inode, new, ranges, first..end)?;
                first = end;
            }
        }
        for (range, source) in ranges.pieces() {
            let whole = whole_blocks(&range);
            if source == Source::Hole && !whole.is_empty() {
                self.cut(inode, new, whole, usize::MAX)?;
            }
        }
        for blocks in reserved_blocks(ranges) {
            self.reserve(inode, new, blocks)?;
        }
        Ok(())
    }

    /// Gives a few blocks their new content.
    fn blocks(
        &mut self,
        inode: InodeNumber,
        new: &mut Inode,
        ranges: &Ranges,
        blocks: Range<u64>,
    ) -> Result<(), Fault> {
        let start = blocks.start * BLOCK_BYTES;
        let count = (blocks.end - blocks.start) as usize;
        let mut data = self.digested.store.buffer(count * BLOCK);
        let mut has_data = vec![false; count];
        for stretch in ranges.stretches(start..blocks.end * BLOCK_BYTES) {
            let bytes =
                &mut data[(stretch.range.start - start) as usize..(stretch.range.end - start) as usize];
            let first = stretch.range.start / BLOCK_BYTES - blocks.start;
            let end = stretch.range.end.div_ceil(BLOCK_BYTES) - blocks.start;
            let covered = &mut has_data[first as usize..end as usize];
            match stretch.source {
                Some(Source::Log(position)) => {
                    self.log.load((position % self.log.len() as u64) as usize, bytes);
                    covered.fill(true);
                }
                Some(Source::Zeros) => {
                    bytes.fill(0);
                    covered.fill(true);
                }
                Some(Source::Hole) => bytes.fill(0),
                None => {
                    self.complete(inode, stretch.range.start, bytes)?;
                    for (block, covered) in (blocks.start + first..).zip(covered) {
                        *covered |= self.has_data(inode, block)?;
                    }
                }
            }
        }
        let mut at = blocks.start;
        while at < blocks.end {
            let kept = &has_data[(at - blocks.start) as usize..];
            let end = at + kept.iter().take_while(|has| **has == kept[0]).count() as u64;
            if !kept[0] {
                self.cut(inode, new, at..end, usize::MAX)?;
                at = end;
                continue;
            }
            let run = self.room(inode, new, at..end)?;
            let end = at + u64::from(run.blocks);
            let from = (at - blocks.start) as usize * BLOCK;
            let length = run.blocks as usize * BLOCK;
            let bytes = if length == count * BLOCK {
                std::mem::replace(&mut data, Buffer::new(0))
            } else {
                let mut bytes = self.digested.store.buffer(length);
                bytes[..length].copy_from_slice(&data[from..from + length]);
                bytes
            };
            let mut checksums: Vec<u32> = bytes[..length].chunks_exact(BLOCK).map(items::checksum).collect();
            for (block, checksum) in (at..).zip(&mut checksums) {
                if self.lost.contains(&(inode, block)) {
                    *checksum = !*checksum;
                }
            }
            self.digested.store.write(run, bytes)?;
            self.written += u64::from(run.blocks);
            new.blocks += u64::from(run.blocks);
            self.insert(inode, &Extent { first: at, run, checksums })?;
            at = end;
        }
        if !data.is_empty() {
            self.digested.store.keep_buffer(data);
        }
        Ok(())
    }

    /// Reads what is left of blocks that the log covers partly. A block that cannot be read is
    /// lost: its new version gets a wrong checksum, so that it cannot be read either, until all of
    /// it is written. Otherwise one rotten block would keep every later record from being digested.
    fn complete(&mut self, inode: InodeNumber, offset: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        if self.digested.read(inode, offset, bytes).is_ok() {
            return Ok(());
        }
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end {
            let block = at / BLOCK_BYTES;
            let next = end.min((block + 1) * BLOCK_BYTES);
            let part = &mut bytes[(at - offset) as usize..(next - offset) as usize];
            match self.digested.read(inode, at, part) {
                Ok(()) => {}
                Err(fault) if fault.is_unreadable() => {
                    part.fill(0);
                    // A block has two such parts, before and behind what the log has.
                    if !self.lost.contains(&(inode, block)) {
                        self.lost.push((inode, block));
                        self.damage.push(fault.to_string());
                    }
                }
                Err(fault) => return Err(fault),
            }
            at = next;
        }
        Ok(())
    }

    /// Whether a block has data that were digested.
    fn has_data(&mut self, inode: InodeNumber, block: u64) -> Result<bool, Fault> {
        let found = self.digested.extent_from(inode, block)?;
        Ok(found.is_some_and(|extent| extent.first <= block && !extent.is_unwritten()))
    }

    /// Room for the first of `blocks`, or more of them. What was there is cut.
    fn room(&mut self, inode: InodeNumber, new: &mut Inode, blocks: Range<u64>) -> Result<Run, Fault> {
        let found = self.digested.extent_from(inode, blocks.start)?;
        let mut end = blocks.end;
        if let Some(extent) = found
            && extent.is_unwritten()
            && extent.first < blocks.end
        {
            if extent.first <= blocks.start {
                let part = extent.part(blocks.start, blocks.end.min(extent.end()));
                self.take(inode, new, &extent, part.first..part.end())?;
                return Ok(part.run);
            }
            end = extent.first;
        }
        // At most CHUNK.
        let run = self.digested.store.allocate(Class::Nvm, (end - blocks.start) as u32)?;
        self.left = self.left.saturating_sub(u64::from(run.blocks));
        self.digested.store.set_demand(self.left);
        self.cut(inode, new, blocks.start..blocks.start + u64::from(run.blocks), usize::MAX)?;
        Ok(run)
    }

    /// Puts an extent of any length where nothing is.
    fn insert(&mut self, inode: InodeNumber, extent: &Extent) -> Result<(), Fault> {
        let mut first = extent.first;
        while first < extent.end() {
            let end = extent.end().min(first + u64::from(EXTENT_BLOCKS));
            let part = extent.part(first, end);
            self.digested.store.insert(items::extent_key(inode, first), &items::write_extent(&part))?;
            first = end;
        }
        Ok(())
    }

    /// Takes `blocks` out of an extent that has them; their room stays in use.
    fn take(
        &mut self,
        inode: InodeNumber,
        new: &mut Inode,
        extent: &Extent,
        blocks: Range<u64>,
    ) -> Result<(), Fault> {
        self.digested.store.remove(items::extent_key(inode, extent.first))?;
        if extent.first < blocks.start {
            self.insert(inode, &extent.part(extent.first, blocks.start))?;
        }
        if blocks.end < extent.end() {
            self.insert(inode, &extent.part(blocks.end, extent.end()))?;
        }
        new.blocks = new.blocks.saturating_sub(blocks.end - blocks.start);
        Ok(())
    }

    /// Frees what is in `blocks`, `most` extents of it; whether nothing is left.
    fn cut(
        &mut self,
        inode: InodeNumber,
        new: &mut Inode,
        blocks: Range<u64>,
        most: usize,
    ) -> Result<bool, Fault> {
        for _ in 0..most {
            let found = self.digested.extent_from(inode, blocks.start)?;
            let Some(extent) = found.filter(|extent| extent.first < blocks.end) else { return Ok(true) };
            let part = extent.part(extent.first.max(blocks.start), extent.end().min(blocks.end));
            self.take(inode, new, &extent, part.first..part.end())?;
            self.digested.store.free(part.run)?;
        }
        Ok(false)
    }

    /// Reserves room where there is none. A pool without room reserves less, and what the rest of
    /// the batch and removals need is left alone: the client has counted what it promised, so that
    /// happens only to a client that does not.
    fn reserve(&mut self, inode: InodeNumber, new: &mut Inode, blocks: Range<u64>) -> Result<(), Fault> {
        let mut at = blocks.start;
        while at < blocks.end {
            let next = self.digested.extent_from(inode, at)?;
            let (gap, then) = match next {
                Some(extent) if extent.first <= at => (at, extent.end()),
                Some(extent) => (extent.first.min(blocks.end), extent.first),
                None => (blocks.end, blocks.end),
            };
            while at < gap {
                let mut wanted = (gap - at).min(CHUNK);
                while !self.has_room_for(wanted) {
                    wanted /= 2;
                    if wanted == 0 {
                        return Ok(());
                    }
                }
                // At most CHUNK.
                let run = match self.digested.store.allocate(Class::Nvm, wanted as u32) {
                    Ok(run) => run,
                    Err(Fault::Full { .. }) => return Ok(()),
                    Err(fault) => return Err(fault),
                };
                new.blocks += u64::from(run.blocks);
                self.insert(inode, &Extent { first: at, run, checksums: Vec::new() })?;
                at += u64::from(run.blocks);
            }
            at = at.max(then);
        }
        Ok(())
    }

    /// Whether a run of so many blocks can be reserved.
    fn has_room_for(&mut self, blocks: u64) -> bool {
        let pool = &mut self.digested.store;
        let uses_reserve = pool.use_reserve(false);
        let extents = blocks.div_ceil(u64::from(EXTENT_BLOCKS));
        let has_room = pool.has_room(self.demand.0 + extents, self.demand.1 + blocks);
        pool.use_reserve(uses_reserve);
        has_room
    }

    fn xattr(&mut self, inode: InodeNumber, name: &[u8], value: &Value) -> Result<(), Fault> {
        let mut place = None;
        if let Some((cookie, _)) = self.digested.xattr_item(inode, name)? {
            self.digested.store.remove(items::xattr_key(inode, cookie, 0))?;
            let mut piece = 1;
            while self.digested.store.remove(items::xattr_key(inode, cookie, piece))? {
                piece += 1;
            }
            place = Some(cookie);
        }
        let Some(value) = &value.value else { return Ok(()) };
        let first = self.digested.name_key().cookie(name).0;
        let mut slots = (first..first + SLOTS).map(Cookie);
        while place.is_none()
            && let Some(cookie) = slots.next()
        {
            let taken = self.digested.store.get(items::xattr_key(inode, cookie, 0))?.is_some();
            place = (!taken).then_some(cookie);
        }
        let Some(cookie) = place else {
            return Err(Fault::Full { medium: "the slots of an attribute's name".to_owned(), wanted: 1 });
        };
        self.digested.store.insert(items::xattr_key(inode, cookie, 0), &items::write_xattr(name, value))?;
        let rest = value.get(items::FIRST_PIECE..).unwrap_or(&[]);
        for (index, bytes) in rest.chunks(items::PIECE).enumerate() {
            self.digested.store.insert(items::xattr_key(inode, cookie, index + 1), bytes)?;
        }
        Ok(())
    }
}
