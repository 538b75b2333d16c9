//! The digested state as a [`Base`]: items of the tree, and blocks of the pool.
//!
//! 1. An inode, an entry or an attribute is one look-up in the tree. The slots of a name's hash are
//!    neighbours there.
//! 2. Data are read in whole blocks, and each block must have the checksum that its extent says.
//!    Otherwise the read fails with what is damaged and where; no such byte is returned.
//! 3. Data in memory are copied to the caller block by block, and each block is checked there,
//!    where the processor's cache has it. Those of a disk are read in one request for each extent.
//! 4. Blocks of disks that were read may be kept ([`Digested::keep_blocks`]). One that is kept is
//!    verified like one that is read.
//! 5. A directory's or file's items are neighbours, so that a listing and a sequential read touch
//!    few nodes.

use std::ops::Range;
use std::sync::Arc;

use sietch_disk::{Buffer, DiskQueue};

use crate::base::{Base, Data, Entry, Inode, NameAt};
use crate::error::Fault;
use crate::file_system::DirectoryEntry;
use crate::heat::{self, Heat};
use crate::inode::InodeNumber;
use crate::items::{self, Extent, LogState};
use crate::limits::{BLOCK, MAX_XATTR_VALUE};
use crate::name::{Cookie, NameKey, SLOTS};
use crate::pool::{BlockCache, Class, Copier, Pool, Reader, Run};
use crate::quota::Quota;
use crate::tree::Key;

/// Blocks that are read at least where a file is read in sequence, of one extent.
const AHEAD: u64 = 32;

/// Items and blocks: the pool of the digest, or a reader of what it committed.
///
/// # Errors
/// All methods: a medium failed, or a node does not have its checksum.
pub trait Store {
    /// The key of the name hashes.
    fn name_key(&self) -> NameKey;
    /// The item with this key.
    fn get(&mut self, key: Key) -> Result<Option<Vec<u8>>, Fault>;
    /// The first item at or behind `from`.
    fn next(&mut self, from: Key) -> Result<Option<(Key, Vec<u8>)>, Fault>;
    /// The last item at or before `from`.
    fn previous(&mut self, from: Key) -> Result<Option<(Key, Vec<u8>)>, Fault>;
    /// The bytes of a run.
    fn read(&mut self, run: Run) -> Result<Buffer, Fault>;
    /// Copies the bytes of a run, where that needs no request. Returns whether it did.
    fn read_now(&mut self, run: Run, out: &mut [u8]) -> Result<bool, Fault> {
        let _ = (run, out);
        Ok(false)
    }
    /// Blocks for data: free ones, and all.
    fn free_blocks(&self) -> (u64, u64);
    /// Inodes in use.
    fn inodes(&self) -> u64;
    /// Whether there is a medium of this class.
    fn has_class(&self, class: Class) -> bool;
}

/// The module's header describes it.
pub struct Digested<S> {
    pub(crate) store: S,
    /// Counts what is read, if the mover wants to know.
    heat: Option<Counting>,
    /// A block of which a part is wanted.
    block: Box<[u8; BLOCK]>,
    /// Blocks of slow media that were read, if they are kept.
    cache: Option<BlockCache>,
}

/// A reader that counts what it reads.
struct Counting {
    heat: Arc<Heat>,
    /// The region that was read last, and how often since it was counted.
    last: (InodeNumber, u64),
    repeats: u8,
}

/// Reads of one region without another in between that count as one: a program that reads a file
/// from front to back does not make it hot.
const REPEATS: u8 = 32;

impl Counting {
    fn count(&mut self, inode: InodeNumber, block: u64) {
        let region = (inode, block / heat::REGION);
        self.repeats += 1;
        if region != self.last || self.repeats == REPEATS {
            (self.last, self.repeats) = (region, 0);
            self.heat.count(inode, block);
        }
    }
}

/// Reports an item that no writer makes.
fn damaged<T>(key: Key, found: Option<T>) -> Result<T, Fault> {
    found.ok_or_else(|| Fault::Damaged {
        medium: "the tree".to_owned(),
        what: format!("the item of kind {} of inode {}", key.kind, key.object),
        offset: key.offset,
        cause: "no writer makes such a value".to_owned(),
    })
}

/// Refuses a block of a written extent that does not have its checksum.
fn verify(inode: InodeNumber, extent: &Extent, index: usize, block: &[u8]) -> Result<(), Fault> {
    let expected = &extent.checksums[index];
    if items::checksum(block) != *expected {
        return Err(Fault::Damaged {
            medium: format!("medium {}", extent.run.medium),
            what: format!("block {} of inode {inode}", extent.first + index as u64),
            offset: (u64::from(extent.run.start) + index as u64) * BLOCK as u64,
            cause: "its checksum differs".to_owned(),
        });
    }
    Ok(())
}

/// Names the blocks of a file that a medium could not read.
fn of_file(fault: Fault, inode: InodeNumber, blocks: Range<u64>) -> Fault {
    match fault {
        Fault::Medium { medium, action, offset, length, source } => {
            let blocks = match blocks.end - blocks.start {
                1 => format!("block {}", blocks.start),
                _ => format!("blocks {} to {}", blocks.start, blocks.end - 1),
            };
            let medium = format!("{medium}: {blocks} of inode {inode}");
            Fault::Medium { medium, action, offset, length, source }
        }
        other => other,
    }
}

impl<S> Digested<S> {
    /// What `store` has.
    pub fn new(store: S) -> Self {
        Self { store, heat: None, block: Box::new([0; BLOCK]), cache: None }
    }

    /// Keeps so many blocks that were read from slow media, so that a read of the same soon is none
    /// of the medium.
    pub fn keep_blocks(&mut self, blocks: usize) {
        self.cache = Some(BlockCache::new(blocks));
    }

    /// Counts in `heat` what is read from now on.
    pub fn count_in(&mut self, heat: Arc<Heat>) {
        self.heat = Some(Counting { heat, last: (InodeNumber(0), 0), repeats: 0 });
    }

    /// The store.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }
}

impl<S: Store> Digested<S> {
    /// The extent that has block `block` of a file, or else the first one behind it.
    pub(crate) fn extent_from(&mut self, inode: InodeNumber, block: u64) -> Result<Option<Extent>, Fault> {
        let key = items::extent_key(inode, block);
        let is_extent = |found: &Key| found.object == inode.0 && found.kind == items::EXTENT;
        if let Some((found, value)) = self.store.previous(key)?
            && is_extent(&found)
        {
            let extent = damaged(found, items::read_extent(found.offset, &value))?;
            if extent.end() > block {
                return Ok(Some(extent));
            }
        }
        let Some((found, value)) = self.store.next(key)?.filter(|(found, _)| is_extent(found)) else {
            return Ok(None);
        };
        damaged(found, items::read_extent(found.offset, &value)).map(Some)
    }

    /// Reads an extent's blocks and checks them.
    pub(crate) fn read_extent(&mut self, inode: InodeNumber, extent: &Extent) -> Result<Buffer, Fault> {
        if extent.is_unwritten() {
            return Ok(Buffer::new(extent.run.blocks as usize * BLOCK));
        }
        let read = self.store.read(extent.run);
        let data = read.map_err(|fault| of_file(fault, inode, extent.first..extent.end()))?;
        for (index, block) in data.chunks_exact(BLOCK).enumerate() {
            verify(inode, extent, index, block)?;
        }
        Ok(data)
    }

    /// Copies a part of an extent from memory: `out`, and `skip` bytes before it, which are less
    /// than a block. Returns whether it did; `false`: the data are not in memory.
    fn copy_extent(
        &mut self,
        inode: InodeNumber,
        extent: &Extent,
        skip: usize,
        out: &mut [u8],
    ) -> Result<bool, Fault> {
        let end = skip + out.len();
        for index in 0..extent.run.blocks as usize {
            let run = Run { start: extent.run.start + index as u32, blocks: 1, ..extent.run };
            let (first, behind) = (index * BLOCK, (index + 1) * BLOCK);
            let wanted = first.max(skip)..behind.min(end);
            let part = &mut out[wanted.start - skip..wanted.end - skip];
            let is_whole = part.len() == BLOCK;
            let block = if is_whole { &mut *part } else { &mut self.block[..] };
            if !self.store.read_now(run, block)? {
                return Ok(false);
            }
            if let Err(fault) = verify(inode, extent, index, block) {
                block.fill(0);
                return Err(fault);
            }
            if !is_whole {
                part.copy_from_slice(&self.block[wanted.start - first..wanted.end - first]);
            }
        }
        Ok(true)
    }

    /// Copies a part of an extent as [`Digested::copy_extent`] does, if all of it was kept and
    /// still has its checksums.
    fn copy_kept(&mut self, inode: InodeNumber, extent: &Extent, skip: usize, out: &mut [u8]) -> bool {
        let Some(cache) = &mut self.cache else { return false };
        let mut done = 0;
        for index in 0..extent.checksums.len() {
            let place = (extent.run.medium, extent.run.start + index as u32);
            let Some(block) =
                cache.get(place).filter(|block| verify(inode, extent, index, &block[..]).is_ok())
            else {
                return false;
            };
            let wanted = (index * BLOCK).max(skip)..((index + 1) * BLOCK).min(skip + out.len());
            let part = &block[wanted.start - index * BLOCK..wanted.end - index * BLOCK];
            out[done..done + part.len()].copy_from_slice(part);
            done += part.len();
        }
        true
    }

    /// Keeps blocks that were read and have their checksums.
    fn keep(&mut self, extent: &Extent, data: &[u8]) {
        let Some(cache) = &mut self.cache else { return };
        let (blocks, _) = data.as_chunks::<BLOCK>();
        for (block, number) in blocks.iter().zip(extent.run.start..) {
            cache.put((extent.run.medium, number), block);
        }
    }

    /// The part of an extent to read where `part` is wanted: more behind it, if what is before it
    /// was read lately.
    fn ahead(&self, extent: &Extent, part: &Extent) -> Extent {
        let before = part.run.start.checked_sub(1).filter(|_| part.first > extent.first);
        let is_sequence = before.zip(self.cache.as_ref());
        if is_sequence.is_some_and(|(block, cache)| cache.has((part.run.medium, block))) {
            return extent.part(part.first, part.end().max(part.first + AHEAD).min(extent.end()));
        }
        extent.part(part.first, part.end())
    }

    /// How far a log was applied.
    pub(crate) fn log(&mut self, log: u32) -> Result<LogState, Fault> {
        let key = items::log_key(log);
        match self.store.get(key)? {
            Some(value) => damaged(key, items::read_log(&value)),
            None => Ok(LogState::default()),
        }
    }

    /// The item that has an extended attribute, with the cookie at which it is.
    pub(crate) fn xattr_item(
        &mut self,
        inode: InodeNumber,
        name: &[u8],
    ) -> Result<Option<(Cookie, Vec<u8>)>, Fault> {
        let first = self.store.name_key().cookie(name);
        let mut from = items::xattr_key(inode, first, 0);
        while let Some((key, value)) = self.store.next(from)?
            && key.object == inode.0
            && key.kind == items::XATTR
            && key.offset < first.0 + SLOTS
        {
            let (found, _, _) = damaged(key, items::read_xattr(&value))?;
            if found == name {
                return Ok(Some((Cookie(key.offset), value)));
            }
            from.offset = key.offset + 1;
        }
        Ok(None)
    }

    /// Items that an extended attribute has.
    pub(crate) fn xattr_items(&mut self, inode: InodeNumber, name: &[u8]) -> Result<u64, Fault> {
        let Some((_, value)) = self.xattr_item(inode, name)? else { return Ok(0) };
        let length = items::read_xattr(&value).map_or(0, |(_, length, _)| length.min(MAX_XATTR_VALUE));
        Ok(items::xattr_items(length) as u64)
    }
}

impl<S: Store> Base for Digested<S> {
    fn name_key(&self) -> NameKey {
        self.store.name_key()
    }

    fn inode(&mut self, inode: InodeNumber) -> Result<Option<Inode>, Fault> {
        let key = items::inode_key(inode);
        let Some(value) = self.store.get(key)? else { return Ok(None) };
        damaged(key, items::read_inode(&value)).map(Some)
    }

    fn entry(&mut self, directory: InodeNumber, name: &[u8]) -> Result<Option<Entry>, Fault> {
        let first = self.store.name_key().cookie(name);
        let mut from = items::entry_key(directory, first);
        while let Some((key, value)) = self.store.next(from)?
            && key.object == directory.0
            && key.kind == items::ENTRY
            && key.offset < first.0 + SLOTS
        {
            let (entry, found) = damaged(key, items::read_entry(Cookie(key.offset), &value))?;
            if found == name {
                return Ok(Some(entry));
            }
            from.offset = key.offset + 1;
        }
        Ok(None)
    }

    fn entry_from(&mut self, directory: InodeNumber, from: Cookie) -> Result<Option<DirectoryEntry>, Fault> {
        let from = items::entry_key(directory, from);
        let Some((key, value)) = self.store.next(from)? else { return Ok(None) };
        if key.object != directory.0 || key.kind != items::ENTRY {
            return Ok(None);
        }
        let (entry, name) = damaged(key, items::read_entry(Cookie(key.offset), &value))?;
        Ok(Some(DirectoryEntry {
            cookie: entry.cookie,
            name: name.into(),
            inode: entry.inode,
            kind: entry.kind,
        }))
    }

    fn target(&mut self, inode: InodeNumber) -> Result<Vec<u8>, Fault> {
        let mut target = Vec::new();
        let mut key = Key { object: inode.0, kind: items::TARGET, offset: 0 };
        while let Some(piece) = self.store.get(key)? {
            target.extend_from_slice(&piece);
            key.offset += 1;
        }
        damaged(key, (!target.is_empty()).then_some(target))
    }

    fn xattr(&mut self, inode: InodeNumber, name: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        let Some((cookie, value)) = self.xattr_item(inode, name)? else { return Ok(None) };
        let key = items::xattr_key(inode, cookie, 0);
        let (_, length, first) = damaged(key, items::read_xattr(&value))?;
        damaged(key, (length <= MAX_XATTR_VALUE).then_some(()))?;
        let mut found = first.to_vec();
        let mut piece = 1;
        while found.len() < length {
            let key = items::xattr_key(inode, cookie, piece);
            let next = self.store.get(key)?;
            found.extend_from_slice(&damaged(key, next.filter(|next| !next.is_empty()))?);
            piece += 1;
        }
        damaged(key, (found.len() == length).then_some(found)).map(Some)
    }

    fn xattr_from(&mut self, inode: InodeNumber, from: Cookie) -> Result<Option<NameAt>, Fault> {
        let found = self.store.next(items::xattr_key(inode, from, 0))?;
        let is_xattr = |key: &Key| key.object == inode.0 && key.kind == items::XATTR;
        let Some((key, value)) = found.filter(|(key, _)| is_xattr(key)) else { return Ok(None) };
        let (name, _, _) = damaged(key, items::read_xattr(&value))?;
        Ok(Some((Cookie(key.offset), name.into())))
    }

    fn read(&mut self, inode: InodeNumber, offset: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end {
            let block = at / BLOCK as u64;
            let rest = &mut bytes[(at - offset) as usize..];
            let Some(extent) = self.extent_from(inode, block)? else {
                rest.fill(0);
                return Ok(());
            };
            let start = (extent.first * BLOCK as u64).clamp(at, end);
            let (hole, rest) = rest.split_at_mut((start - at) as usize);
            hole.fill(0);
            if start == end {
                return Ok(());
            }
            let from = start / BLOCK as u64;
            let to = extent.end().min(end.div_ceil(BLOCK as u64));
            if let Some(counting) = &mut self.heat {
                counting.count(inode, from);
            }
            let part = extent.part(from, to);
            let stop = (to * BLOCK as u64).min(end);
            let skip = (start - from * BLOCK as u64) as usize;
            let wanted = &mut rest[..(stop - start) as usize];
            if part.is_unwritten() {
                wanted.fill(0);
            } else if !self.copy_extent(inode, &part, skip, wanted)?
                && !self.copy_kept(inode, &part, skip, wanted)
            {
                let ahead = self.ahead(&extent, &part);
                let data = self.read_extent(inode, &ahead)?;
                wanted.copy_from_slice(&data[skip..][..wanted.len()]);
                self.keep(&ahead, &data);
            }
            at = stop;
        }
        Ok(())
    }

    fn data_in(&mut self, inode: InodeNumber, range: Range<u64>, extents: &mut u64) -> Result<Data, Fault> {
        let mut block = range.start / BLOCK as u64;
        while let Some(extent) = self.extent_from(inode, block)?
            && extent.first < range.end.div_ceil(BLOCK as u64)
        {
            if !extent.is_unwritten() {
                let start = (extent.first * BLOCK as u64).max(range.start);
                return Ok(Data::Found(start..extent.end() * BLOCK as u64));
            }
            block = extent.end();
            *extents = extents.saturating_sub(1);
            if *extents == 0 {
                return Ok(Data::NotBefore(block * BLOCK as u64));
            }
        }
        Ok(Data::None)
    }

    fn free_blocks(&self) -> (u64, u64) {
        self.store.free_blocks()
    }

    fn inodes(&self) -> u64 {
        self.store.inodes()
    }

    fn has_class(&self, class: Class) -> bool {
        self.store.has_class(class)
    }

    fn allocated(&mut self, inode: InodeNumber, blocks: Range<u64>, extents: &mut u64) -> Result<u64, Fault> {
        let (mut at, mut count) = (blocks.start, 0);
        while at < blocks.end
            && *extents > 0
            && let Some(extent) = self.extent_from(inode, at)?
        {
            *extents -= 1;
            let (first, end) = (extent.first.max(at), extent.end().min(blocks.end));
            count += end.saturating_sub(first);
            at = extent.end();
        }
        Ok(count)
    }

    fn limited_users(&mut self) -> Result<Option<u64>, Fault> {
        let value = self.store.get(items::COUNTED_KEY)?;
        // A mark that cannot be read is none: the next start counts again.
        Ok(value.and_then(|value| items::read_counted(&value)))
    }

    fn quota_from(&mut self, uid: u32) -> Result<Option<(u32, Quota)>, Fault> {
        let mut from = items::user_key(uid);
        while let Some((key, value)) = self.store.next(from)?
            && let Some(uid) = items::user_of(key)
        {
            // One that cannot be read has no limit. The check names it.
            if let Some(quota) = items::read_user(&value) {
                return Ok(Some((uid, quota)));
            }
            from.offset = key.offset + 1;
        }
        Ok(None)
    }
}

impl<D: DiskQueue> Store for Pool<D> {
    fn name_key(&self) -> NameKey {
        Self::name_key(self)
    }

    fn get(&mut self, key: Key) -> Result<Option<Vec<u8>>, Fault> {
        Self::get(self, key)
    }

    fn next(&mut self, from: Key) -> Result<Option<(Key, Vec<u8>)>, Fault> {
        Self::next(self, from)
    }

    fn previous(&mut self, from: Key) -> Result<Option<(Key, Vec<u8>)>, Fault> {
        Self::previous(self, from)
    }

    fn read(&mut self, run: Run) -> Result<Buffer, Fault> {
        Self::read(self, run)
    }

    fn free_blocks(&self) -> (u64, u64) {
        Self::free_blocks(self)
    }

    fn inodes(&self) -> u64 {
        self.root().counters.inodes
    }

    fn has_class(&self, class: Class) -> bool {
        Self::has_class(self, class)
    }
}

impl<D: DiskQueue> Store for Reader<D> {
    fn name_key(&self) -> NameKey {
        Self::name_key(self)
    }

    fn get(&mut self, key: Key) -> Result<Option<Vec<u8>>, Fault> {
        Self::get(self, key)
    }

    fn next(&mut self, from: Key) -> Result<Option<(Key, Vec<u8>)>, Fault> {
        Self::next(self, from)
    }

    fn previous(&mut self, from: Key) -> Result<Option<(Key, Vec<u8>)>, Fault> {
        Self::previous(self, from)
    }

    fn read(&mut self, run: Run) -> Result<Buffer, Fault> {
        Self::read(self, run)
    }

    fn read_now(&mut self, run: Run, out: &mut [u8]) -> Result<bool, Fault> {
        Self::read_now(self, run, out)
    }

    fn free_blocks(&self) -> (u64, u64) {
        (self.root().free, self.root().total)
    }

    fn inodes(&self) -> u64 {
        self.root().counters.inodes
    }

    fn has_class(&self, class: Class) -> bool {
        Self::has_class(self, class)
    }
}

impl<D: DiskQueue> Store for Copier<D> {
    fn name_key(&self) -> NameKey {
        self.as_reader().name_key()
    }

    fn get(&mut self, key: Key) -> Result<Option<Vec<u8>>, Fault> {
        self.reader().get(key)
    }

    fn next(&mut self, from: Key) -> Result<Option<(Key, Vec<u8>)>, Fault> {
        self.reader().next(from)
    }

    fn previous(&mut self, from: Key) -> Result<Option<(Key, Vec<u8>)>, Fault> {
        self.reader().previous(from)
    }

    fn read(&mut self, run: Run) -> Result<Buffer, Fault> {
        self.reader().read(run)
    }

    fn free_blocks(&self) -> (u64, u64) {
        (self.as_reader().root().free, self.as_reader().root().total)
    }

    fn inodes(&self) -> u64 {
        self.as_reader().root().counters.inodes
    }

    fn has_class(&self, class: Class) -> bool {
        self.as_reader().has_class(class)
    }
}
