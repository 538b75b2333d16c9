//! A node of the tree: one block. The page `docs/spec/fs-pool.md` shows it as a picture.
//!
//! 1. A header, then a slot for each item in the order of their keys, then room. The values fill
//!    the end of the block from the back, in the order of the slots. So a value's length follows
//!    from its place and that of the value before it, and equal items give equal bytes.
//! 2. A leaf has level 0, and values of the tree's user. The values of other nodes are [`Pointer`]s
//!    to nodes one level below. The key in a slot is then the lower bound of the keys there. The
//!    bound of the first slot is not used: it is that of the node.
//! 3. The CRC32C in the header covers all that follows it. Its seed comes from the pool's identity
//!    and the number of the block, so a node of another pool or of another place does not validate.
//! 4. A pointer repeats the node's generation and its CRC. So an older node at the right place,
//!    left there by a lost write, does not validate either.
//! 5. [`Node::parse`] verifies everything that the other functions rely on. They never panic on
//!    what it has accepted.

use sietch_disk::Buffer;
use sietch_structures::{crc32c, crc32c_from};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::key::Key;
use crate::limits::BLOCK;

/// Longest value, in bytes. A node has room for three of them, so that a node that is split in two
/// always has room for the item that did not fit.
pub const MAX_VALUE: usize = 1200;

/// The highest level of a node. Nodes have about 60 children at least, so 12 levels are more than
/// 32 bits of block numbers can fill.
pub(crate) const MAX_LEVEL: u8 = 12;

/// A node with fewer bytes of items is merged with a sibling, where both fit one node.
pub(crate) const MERGE_BELOW: usize = ROOM / 3;

const MAGIC: u32 = u32::from_le_bytes(*b"SFTN");

/// Before the slots.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: U32,
    /// CRC32C of everything after this field.
    checksum: U32,
    /// Generation of the commit that wrote the node.
    generation: U64,
    level: u8,
    reserved: u8,
    /// Items.
    count: U16,
    reserved_too: U32,
}

/// An item's key, and where its value begins in the block.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Slot {
    object: U64,
    offset: U64,
    position: U16,
    kind: u8,
    reserved: u8,
}

/// What leads to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pointer {
    /// Its block on the home medium.
    pub block: u32,
    /// Generation of the commit that wrote it.
    pub generation: u64,
    /// The CRC in its header; 0 until the node is sealed.
    pub checksum: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPointer {
    block: U32,
    checksum: U32,
    generation: U64,
}

const HEADER: usize = size_of::<Header>();
const SLOT: usize = size_of::<Slot>();
const CHECKED_FROM: usize = 8;
/// Bytes of a pointer in a node.
pub(crate) const POINTER: usize = size_of::<RawPointer>();
/// Bytes for items.
pub(crate) const ROOM: usize = BLOCK - HEADER;

const _: () = assert!(HEADER == 24 && SLOT == 20 && POINTER == 16);
const _: () = assert!(std::mem::offset_of!(Header, generation) == CHECKED_FROM);
const _: () = assert!(3 * (SLOT + MAX_VALUE) <= ROOM);
const _: () = assert!(BLOCK <= u16::MAX as usize && BLOCK == sietch_disk::BLOCK);

impl Slot {
    fn new(key: Key, position: usize) -> Self {
        Self {
            object: U64::new(key.object),
            offset: U64::new(key.offset),
            // Inside a block.
            position: U16::new(position as u16),
            kind: key.kind,
            reserved: 0,
        }
    }

    #[inline]
    fn key(&self) -> Key {
        Key::new(self.object.get(), self.kind, self.offset.get())
    }
}

impl Pointer {
    fn to_bytes(self) -> [u8; POINTER] {
        let raw = RawPointer {
            block: U32::new(self.block),
            checksum: U32::new(self.checksum),
            generation: U64::new(self.generation),
        };
        let mut bytes = [0; POINTER];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        RawPointer::read_from_bytes(bytes).map_or_else(
            |_| Self::default(),
            |raw| Self {
                block: raw.block.get(),
                generation: raw.generation.get(),
                checksum: raw.checksum.get(),
            },
        )
    }
}

/// Bytes that an item with a value of `length` bytes takes.
pub(crate) const fn item_bytes(length: usize) -> usize {
    SLOT + length
}

/// The seed of all nodes of the pool with this identity.
pub(crate) fn seed(identity: u128) -> u32 {
    // The CRC has 32 bits.
    crc32c(&identity.to_le_bytes())
}

fn checksum(seed: u32, block: u32, bytes: &[u8]) -> u32 {
    crc32c_from(seed ^ block, bytes)
}

/// Where a node is divided to make room, and where the new item goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    /// Items that stay.
    pub keeps: usize,
    /// The new item's place in the right node; `None`: it stays in the left one, at its place.
    pub right: Option<usize>,
}

/// See the module's account.
#[derive(Debug)]
pub(crate) struct Node {
    bytes: Buffer,
}

impl Node {
    /// A node without items.
    pub(crate) fn new(level: u8, generation: u64) -> Self {
        let mut bytes = Buffer::new(BLOCK);
        let header = Header {
            magic: U32::new(MAGIC),
            checksum: U32::new(0),
            generation: U64::new(generation),
            level,
            reserved: 0,
            count: U16::new(0),
            reserved_too: U32::new(0),
        };
        bytes[..HEADER].copy_from_slice(header.as_bytes());
        Self { bytes }
    }

    /// Stands where no node is: without items, without memory.
    pub(crate) fn vacant() -> Self {
        Self { bytes: Buffer::new(0) }
    }

    /// The node that a block holds, if it is the one that `pointer` names.
    ///
    /// # Errors
    /// What does not fit.
    pub(crate) fn parse(bytes: Buffer, seed: u32, pointer: Pointer, level: u8) -> Result<Self, String> {
        let Some(whole) = bytes.get(..BLOCK) else { return Err("it is not a whole block".into()) };
        let Ok((header, _)) = Header::read_from_prefix(whole) else {
            return Err("it is not a whole block".into());
        };
        if header.magic.get() != MAGIC {
            return Err("there is no node".into());
        }
        let found = checksum(seed, pointer.block, &whole[CHECKED_FROM..]);
        if header.checksum.get() != found {
            return Err(format!("its checksum is {found:08x} and should be {:08x}", header.checksum.get()));
        }
        if header.generation.get() != pointer.generation || found != pointer.checksum {
            let (has, wanted) = (header.generation.get(), pointer.generation);
            return Err(format!("it is another node (generation {has}, wanted {wanted}): a write was lost"));
        }
        if header.level != level {
            return Err(format!("its level is {} and should be {level}", header.level));
        }
        let node = Self { bytes };
        node.validate(usize::from(header.count.get()))?;
        Ok(node)
    }

    /// Whether the slots are what the module's account says.
    fn validate(&self, count: usize) -> Result<(), String> {
        if HEADER + count * SLOT > BLOCK {
            return Err(format!("it cannot have {count} items"));
        }
        if count == 0 && self.level() > 0 {
            return Err("it has no children".into());
        }
        let is_leaf = self.level() == 0;
        let (mut end, mut before) = (BLOCK, None);
        for (at, slot) in self.slots().iter().enumerate() {
            let (start, key) = (usize::from(slot.position.get()), slot.key());
            let length = end.checked_sub(start).ok_or_else(|| format!("the value of item {at} overlaps"))?;
            if start < HEADER + count * SLOT || length > MAX_VALUE || (!is_leaf && length != POINTER) {
                return Err(format!("the value of item {at} has an impossible place"));
            }
            if before.is_some_and(|before| before >= key) {
                return Err(format!("item {at} is not in the order of the keys"));
            }
            (end, before) = (start, Some(key));
        }
        Ok(())
    }

    /// Computes the checksum, for this place.
    pub(crate) fn seal(&mut self, seed: u32, block: u32) -> u32 {
        let found = checksum(seed, block, &self.bytes[CHECKED_FROM..]);
        if let Ok((header, _)) = Header::mut_from_prefix(&mut self.bytes) {
            header.checksum = U32::new(found);
        }
        found
    }

    /// Gives the block away to be written.
    pub(crate) fn take_bytes(&mut self) -> Buffer {
        std::mem::replace(&mut self.bytes, Buffer::new(0))
    }

    /// Gets the block back.
    pub(crate) fn return_bytes(&mut self, bytes: Buffer) {
        self.bytes = bytes;
    }

    #[inline]
    fn header(&self) -> Option<&Header> {
        Header::ref_from_prefix(&self.bytes).ok().map(|(header, _)| header)
    }

    fn set_count(&mut self, count: usize) {
        if let Ok((header, _)) = Header::mut_from_prefix(&mut self.bytes) {
            // At most as many as a block has.
            header.count = U16::new(count as u16);
        }
    }

    pub(crate) fn set_generation(&mut self, generation: u64) {
        if let Ok((header, _)) = Header::mut_from_prefix(&mut self.bytes) {
            header.generation = U64::new(generation);
        }
    }

    /// Items.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.header().map_or(0, |header| usize::from(header.count.get()))
    }

    #[inline]
    pub(crate) fn level(&self) -> u8 {
        self.header().map_or(0, |header| header.level)
    }

    #[inline]
    fn slots(&self) -> &[Slot] {
        let rest = self.bytes.get(HEADER..).unwrap_or_default();
        <[Slot]>::ref_from_prefix_with_elems(rest, self.count()).map_or(&[], |(slots, _)| slots)
    }

    fn slots_mut(&mut self) -> &mut [Slot] {
        let count = self.count();
        let rest = self.bytes.get_mut(HEADER..).unwrap_or_default();
        <[Slot]>::mut_from_prefix_with_elems(rest, count).map_or(&mut [], |(slots, _)| slots)
    }

    /// Where the value of item `at` begins; the end of the block before the first one.
    fn position(&self, at: usize) -> usize {
        self.slots().get(at).map_or(BLOCK, |slot| usize::from(slot.position.get()))
    }

    /// Where the values of the items before `at` begin.
    fn end(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(BLOCK, |before| self.position(before))
    }

    /// Bytes that the items take.
    pub(crate) fn used(&self) -> usize {
        let count = self.count();
        count * SLOT + (BLOCK - self.end(count))
    }

    /// Whether a further item with a value of `length` bytes fits.
    pub(crate) fn fits(&self, length: usize) -> bool {
        self.used() + item_bytes(length) <= ROOM
    }

    /// The key of item `at`.
    #[inline]
    pub(crate) fn key(&self, at: usize) -> Option<Key> {
        self.slots().get(at).map(Slot::key)
    }

    /// The value of item `at`.
    pub(crate) fn value(&self, at: usize) -> &[u8] {
        if at >= self.count() {
            return &[];
        }
        self.bytes.get(self.position(at)..self.end(at)).unwrap_or_default()
    }

    /// Where the key is, or where it would be inserted.
    #[inline]
    pub(crate) fn search(&self, key: &Key) -> Result<usize, usize> {
        self.slots().binary_search_by(|slot| slot.key().cmp(key))
    }

    /// The child that covers the key.
    #[inline]
    pub(crate) fn child_for(&self, key: &Key) -> usize {
        match self.search(key) {
            Ok(at) => at,
            Err(at) => at.saturating_sub(1),
        }
    }

    /// What leads to child `at`.
    #[inline]
    pub(crate) fn child(&self, at: usize) -> Pointer {
        Pointer::from_bytes(self.value(at))
    }

    pub(crate) fn set_child(&mut self, at: usize, pointer: Pointer) {
        self.replace(at, &pointer.to_bytes());
    }

    /// Inserts a child.
    pub(crate) fn insert_child(&mut self, at: usize, key: Key, pointer: Pointer) {
        self.insert(at, key, &pointer.to_bytes());
    }

    /// Whether a key at this place is in the order of the keys.
    pub(crate) fn has_place(&self, at: usize, key: &Key) -> bool {
        let before = at.checked_sub(1).and_then(|before| self.key(before));
        before.is_none_or(|before| before < *key) && self.key(at).is_none_or(|next| *key < next)
    }

    /// Changes the bound of child `at`, which stays between those beside it.
    fn set_bound(&mut self, at: usize, key: Key) {
        let position = self.position(at);
        if let Some(slot) = self.slots_mut().get_mut(at) {
            *slot = Slot::new(key, position);
        }
    }

    /// Removes a child. The next one takes over the bound of the first.
    pub(crate) fn remove_child(&mut self, at: usize) {
        let bound = self.key(at).filter(|_| at == 0);
        self.remove(at);
        if let Some(bound) = bound {
            self.set_bound(0, bound);
        }
    }

    /// Inserts an item that fits at its place.
    pub(crate) fn insert(&mut self, at: usize, key: Key, value: &[u8]) {
        let (count, length) = (self.count(), value.len());
        debug_assert!(at <= count && self.fits(length));
        debug_assert!(self.has_place(at, &key), "{key} at {at} is out of order");
        let (lowest, end) = (self.end(count), self.end(at));
        self.bytes.copy_within(lowest..end, lowest - length);
        self.bytes[end - length..end].copy_from_slice(value);
        let slot = HEADER + at * SLOT;
        self.bytes.copy_within(slot..HEADER + count * SLOT, slot + SLOT);
        self.bytes[slot..slot + SLOT].copy_from_slice(Slot::new(key, end - length).as_bytes());
        self.set_count(count + 1);
        for slot in &mut self.slots_mut()[at + 1..] {
            // The item fits, so it does not go below zero.
            slot.position -= U16::new(length as u16);
        }
    }

    /// Removes an item.
    pub(crate) fn remove(&mut self, at: usize) {
        let count = self.count();
        if at >= count {
            return;
        }
        let (lowest, start, end) = (self.end(count), self.position(at), self.end(at));
        let length = end - start;
        self.bytes.copy_within(lowest..start, lowest + length);
        self.bytes[lowest..lowest + length].fill(0);
        let slot = HEADER + at * SLOT;
        self.bytes.copy_within(slot + SLOT..HEADER + count * SLOT, slot);
        self.bytes[HEADER + (count - 1) * SLOT..HEADER + count * SLOT].fill(0);
        self.set_count(count - 1);
        for slot in &mut self.slots_mut()[at..] {
            // At most the end of the block.
            slot.position += U16::new(length as u16);
        }
    }

    /// Replaces the value of an item by one that fits.
    pub(crate) fn replace(&mut self, at: usize, value: &[u8]) {
        let (start, end) = (self.position(at), self.end(at));
        if value.len() == end - start {
            self.bytes[start..end].copy_from_slice(value);
        } else if let Some(key) = self.key(at) {
            self.remove(at);
            self.insert(at, key, value);
        }
    }

    /// Where to divide the node, so that an item with a value of `length` bytes, which does not
    /// fit, fits at place `at`.
    pub(crate) fn divide_for(&self, at: usize, length: usize) -> Division {
        let count = self.count();
        if at == count {
            // Keys that come in order leave full nodes behind.
            return Division { keeps: count, right: Some(0) };
        }
        let total = self.used() + item_bytes(length);
        let (mut left, mut taken) = (0, 0);
        while taken < count && 2 * left < total {
            let existing = if taken > at { taken - 1 } else { taken };
            let bytes = if taken == at { length } else { self.end(existing) - self.position(existing) };
            left += item_bytes(bytes);
            taken += 1;
        }
        if at < taken {
            Division { keeps: taken - 1, right: None }
        } else {
            Division { keeps: taken, right: Some(at - taken) }
        }
    }

    /// Moves all items but the first `keeps` to a new node.
    pub(crate) fn split_off(&mut self, keeps: usize) -> Self {
        let count = self.count();
        let generation = self.header().map_or(0, |header| header.generation.get());
        let mut right = Self::new(self.level(), generation);
        right.append_from(self, keeps, None);
        let (lowest, end) = (self.end(count), self.end(keeps));
        self.bytes[lowest..end].fill(0);
        self.bytes[HEADER + keeps * SLOT..HEADER + count * SLOT].fill(0);
        self.set_count(keeps);
        right
    }

    /// Appends the items of the right sibling, which fit. In a node with children, the bound of its
    /// first child becomes `bound`, that of the sibling.
    pub(crate) fn append(&mut self, right: &Self, bound: Key) {
        self.append_from(right, 0, (self.level() > 0).then_some(bound));
    }

    fn append_from(&mut self, other: &Self, from: usize, bound: Option<Key>) {
        let (count, more) = (self.count(), other.count() - from);
        let (lowest, high) = (other.end(other.count()), other.end(from));
        let end = self.end(count);
        let length = high - lowest;
        self.bytes[end - length..end].copy_from_slice(&other.bytes[lowest..high]);
        let slots = HEADER + count * SLOT..HEADER + (count + more) * SLOT;
        self.bytes[slots].copy_from_slice(other.slots()[from..].as_bytes());
        self.set_count(count + more);
        for (at, slot) in self.slots_mut()[count..].iter_mut().enumerate() {
            // Inside a block.
            slot.position = U16::new((usize::from(slot.position.get()) + end - high) as u16);
            if let (0, Some(bound)) = (at, bound) {
                *slot = Slot::new(bound, usize::from(slot.position.get()));
            }
        }
    }

    /// A copy of the node.
    pub(crate) fn copy(&self) -> Self {
        let mut bytes = Buffer::new(self.bytes.len());
        bytes.copy_from_slice(&self.bytes);
        Self { bytes }
    }
}

/// Makes the checksum of hostile bytes right.
#[cfg(test)]
pub(crate) fn reseal(bytes: &mut [u8], seed: u32, block: u32) -> u32 {
    let found = checksum(seed, block, &bytes[CHECKED_FROM..BLOCK]);
    bytes[4..8].copy_from_slice(&found.to_le_bytes());
    found
}

#[cfg(test)]
mod tests;
