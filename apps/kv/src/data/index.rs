//! An extendible hash: a hash table that never rehashes as a whole and that can be scanned while it
//! changes.
//!
//! 1. Every key has a 64-bit hash. The *top* `depth` bits of it select a slot of the directory, and
//!    the slot names a segment. A segment of local depth `d` is named by `2^(depth - d)`
//!    neighbouring slots and holds exactly the keys whose top `d` bits equal its prefix.
//! 2. A segment is a dense vector of elements and a small open-addressing table of their positions
//!    (`index/segment.rs`). The table is given the hash rotated by half a word, because within a
//!    segment the top bits are all the same.
//! 3. A segment that is full ([`SEGMENT_LIMIT`]) splits by its next bit; when its local depth is
//!    the directory's, the directory doubles first. A split moves at most [`SEGMENT_LIMIT`]
//!    elements: the longest pause of an insertion, apart from the directory's own copy of 4 bytes a
//!    segment. A split that would separate nothing, or give the directory more slots than there are
//!    elements for ([`ELEMENTS_A_SLOT`]), is put off until the segment is twice as full.
//! 4. After a removal two sibling segments that together hold few elements merge, and the directory
//!    halves when no segment needs its last bit: memory returns after mass deletion. The two
//!    thresholds are far apart, so that alternating insertions and removals do not split and merge
//!    all the time.
//! 5. Order by hash is independent of splits and merges. A scan's cursor is a position in that
//!    order (the top 48 bits of the hash), so an element that is present during the whole of a scan
//!    is returned by it, and each call moves forward: whatever happens in between.
//! 6. The hash is SipHash-1-3 with a key that no client knows and that differs for each index
//!    ([`Seeds`]): clients cannot choose keys that collide in one segment.
//! 7. Segments are kept dense in one vector (the last one takes the position of a removed one).
//!
//! An element of `n` bytes takes about `1.1 n + 5` bytes: a share of the vector's spare capacity,
//! and one to two buckets of three bytes.

mod segment;

use siphasher::sip::SipHasher13;

use self::segment::Segment;
use crate::foundation::allocation::allocation;

/// Elements at which a segment splits: what a table of 256 buckets takes at its load limit of 7/8.
pub(crate) const SEGMENT_LIMIT: usize = 224;

/// Siblings merge when together they hold at most this: a quarter of a segment, far from the next
/// split.
const MERGE_LIMIT: usize = SEGMENT_LIMIT / 4;

/// Deepest directory: 2^26 slots, for about ten thousand million elements. Past it segments grow
/// instead.
const DEPTH_LIMIT: u32 = 26;

/// Fewest elements for each slot of the directory. Hashes that are spread evenly leave more than
/// fifty; with fewer the directory would grow because of collisions, which it cannot separate.
const ELEMENTS_A_SLOT: usize = 8;

/// Bits of a scan cursor: exact in the doubles that some clients keep numbers in, and fine
/// enough that hardly ever two elements share a position.
pub(crate) const CURSOR_BITS: u32 = 48;

/// Tries of [`Index::random`] before it accepts any element: even in an index that was just thinned
/// out, one in ten succeeds.
const RANDOM_TRIES: usize = 100;

/// What an [`Index`] may hold.
pub(crate) trait Keyed {
    /// The bytes that identify the element. They must not change while it is in an index.
    fn key(&self) -> &[u8];
}

impl Keyed for Box<[u8]> {
    fn key(&self) -> &[u8] {
        self
    }
}

/// A hash table of `T`; see the module documentation.
#[derive(Clone)]
pub(crate) struct Index<T> {
    /// `2^depth` numbers of segments.
    directory: Vec<u32>,
    segments: Vec<Segment<T>>,
    /// Segments at each local depth.
    at_depth: [u32; DEPTH_LIMIT as usize + 1],
    depth: u32,
    len: usize,
    /// Bytes of all segments' allocations.
    segment_bytes: usize,
    seed: u64,
    /// Elements that a segment is given room for when it grows, while many are expected.
    expected: usize,
}

/// Where an element is, as long as none is inserted or removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    segment: usize,
    position: u16,
}

fn in_table(hash: u64) -> u64 {
    hash.rotate_left(32)
}

/// The seed of an index in which all keys collide.
#[cfg(test)]
const COLLIDING: u64 = 0xc011_1d1e;

#[inline]
fn hash_bytes(seed: u64, key: &[u8]) -> u64 {
    #[cfg(test)]
    if seed == COLLIDING {
        return 0;
    }
    SipHasher13::new_with_keys(seed, !seed).hash(key)
}

/// Gives seeds that a client cannot guess, whatever it knows of those given before: each is the
/// hash of a number under a secret.
#[derive(Debug)]
pub(crate) struct Seeds {
    secret: u64,
    given: u64,
}

/// A seed that is computed only if an index is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed {
    secret: u64,
    number: u64,
}

impl Seeds {
    /// Seeds that all come from this one, which must be unpredictable.
    pub(crate) fn new(secret: u64) -> Self {
        Self { secret, given: 0 }
    }

    /// The next seed, not yet computed.
    #[inline]
    pub(crate) fn reserve(&mut self) -> Seed {
        self.given += 1;
        Seed { secret: self.secret, number: self.given }
    }

    /// The next seed.
    pub(crate) fn next(&mut self) -> u64 {
        self.reserve().compute()
    }
}

impl Seed {
    /// The seed.
    pub(crate) fn compute(self) -> u64 {
        hash_bytes(self.secret, &self.number.to_le_bytes())
    }
}

fn position(hash: u64) -> u64 {
    hash >> (64 - CURSOR_BITS)
}

impl<T: Keyed> Index<T> {
    /// An empty index. `seed` decides the order of elements; it must be unpredictable to clients.
    pub(crate) fn new(seed: u64) -> Self {
        let mut at_depth = [0; DEPTH_LIMIT as usize + 1];
        at_depth[0] = 1;
        Self {
            directory: vec![0],
            segments: vec![Segment::new(0, 0, SEGMENT_LIMIT)],
            at_depth,
            depth: 0,
            len: 0,
            segment_bytes: 0,
            seed,
            expected: 0,
        }
    }

    /// Prepares for `count` elements in all: splits every segment at once as often as they would
    /// split it one after the other, and lets a segment grow at once to the size that it will have.
    /// The count may be wrong: what it is too large costs the heads of segments, until
    /// [`Index::end_expecting`].
    pub(crate) fn expect(&mut self, count: usize) {
        let usual = SEGMENT_LIMIT * 3 / 4;
        let mut depth = 0;
        while depth < DEPTH_LIMIT && count >> depth > usual {
            depth += 1;
        }
        self.expected = (count >> depth) + (count >> depth >> 3);
        let mut number = 0;
        while number < self.segments.len() {
            // A new segment goes to the end, and is split in its turn.
            if self.segments[number].depth < depth { self.split(number) } else { number += 1 }
        }
    }

    /// Merges what was split for elements that have not come.
    pub(crate) fn end_expecting(&mut self) {
        if std::mem::take(&mut self.expected) == 0 {
            return;
        }
        let mut number = 0;
        while number < self.segments.len() {
            let before = self.segments.len();
            self.merge(number);
            // Another one has taken the place of one that was merged.
            number += usize::from(self.segments.len() == before);
        }
    }

    /// Elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that the index itself takes, without what its elements point at.
    pub(crate) fn memory(&self) -> usize {
        allocation(self.directory.capacity() * size_of::<u32>())
            + allocation(self.segments.capacity() * size_of::<Segment<T>>())
            + self.segment_bytes
    }

    /// The same beyond what an empty index takes.
    pub(crate) fn growth(&self) -> usize {
        let empty = allocation(size_of::<u32>()) + allocation(size_of::<Segment<T>>());
        self.memory().saturating_sub(empty)
    }

    #[inline]
    fn slot(&self, hash: u64) -> usize {
        if self.depth == 0 { 0 } else { (hash >> (64 - self.depth)) as usize }
    }

    fn segment_of(&self, hash: u64) -> &Segment<T> {
        &self.segments[self.directory[self.slot(hash)] as usize]
    }

    /// The element of this key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&T> {
        let hash = hash_bytes(self.seed, key);
        self.segment_of(hash).find(in_table(hash), |element| element.key() == key)
    }

    /// An element that is probably that of this key: only the table is read, and the key's bytes
    /// are not compared.
    #[inline]
    pub(crate) fn probable(&self, key: &[u8]) -> Option<&T> {
        self.probable_hashed(hash_bytes(self.seed, key))
    }

    /// The same of a key whose hash is known.
    #[inline]
    pub(crate) fn probable_hashed(&self, hash: u64) -> Option<&T> {
        self.segment_of(hash).find(in_table(hash), |_| true)
    }

    /// Reads the head of the segment for this hash, so that the processor fetches its memory.
    #[inline]
    pub(crate) fn prefetch_segment(&self, hash: u64) -> usize {
        self.segment_of(hash).len()
    }

    /// The element beside which a new one of this hash goes.
    #[inline]
    pub(crate) fn neighbour(&self, hash: u64) -> Option<&T> {
        self.segment_of(hash).elements().last()
    }

    /// The element of this key, whose hash is known, to be changed; its key must stay.
    #[inline]
    pub(crate) fn get_hashed_mut(&mut self, hash: u64, key: &[u8]) -> Option<&mut T> {
        let number = self.directory[self.slot(hash)] as usize;
        self.segments[number].find_mut(in_table(hash), |element| element.key() == key)
    }

    /// The hash of a key here. It stays the same as long as the index exists.
    pub(crate) fn hash_of(&self, key: &[u8]) -> u64 {
        hash_bytes(self.seed, key)
    }

    /// An element whose key has this hash and for which `is` holds.
    pub(crate) fn find_hashed(&self, hash: u64, is: impl Fn(&T) -> bool) -> Option<&T> {
        self.segment_of(hash)
            .find(in_table(hash), |element| is(element) && hash_bytes(self.seed, element.key()) == hash)
    }

    /// Whether there is an element of this key.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.get(key).is_some()
    }

    /// Where the element of this key is.
    pub(crate) fn locate(&self, key: &[u8]) -> Option<Location> {
        let hash = hash_bytes(self.seed, key);
        let segment = self.directory[self.slot(hash)] as usize;
        let position = self.segments[segment].position(in_table(hash), |element| element.key() == key)?;
        Some(Location { segment, position })
    }

    /// The element at a location, to be changed; its key must stay.
    ///
    /// # Panics
    /// There is none: an element was removed since.
    #[inline]
    pub(crate) fn at_mut(&mut self, location: Location) -> &mut T {
        self.segments[location.segment].at_mut(location.position)
    }

    /// The element of this key, to be changed; its key must stay.
    pub(crate) fn get_mut(&mut self, key: &[u8]) -> Option<&mut T> {
        self.get_hashed_mut(hash_bytes(self.seed, key), key)
    }

    /// Inserts `element`, and returns the element of the same key that it replaces.
    pub(crate) fn insert(&mut self, element: T) -> Option<T> {
        let hash = hash_bytes(self.seed, element.key());
        let number = self.directory[self.slot(hash)] as usize;
        let found = self.segments[number].find_mut(in_table(hash), |old| old.key() == element.key());
        if let Some(old) = found {
            return Some(std::mem::replace(old, element));
        }
        self.insert_new(hash, element);
        None
    }

    /// Inserts an element with this hash whose key is not there.
    pub(crate) fn insert_new(&mut self, hash: u64, element: T) {
        let (seed, expected) = (self.seed, self.expected);
        let mut number = self.directory[self.slot(hash)] as usize;
        while self.segments[number].len() >= self.segments[number].limit as usize {
            if !self.may_split(number) {
                let limit = &mut self.segments[number].limit;
                *limit = limit.saturating_mul(2);
                break;
            }
            self.split(number);
            number = self.directory[self.slot(hash)] as usize;
        }
        let segment = &mut self.segments[number];
        self.segment_bytes -= segment.memory();
        let hasher = |other: &T| in_table(hash_bytes(seed, other.key()));
        if expected > 0 {
            segment.grow_to(expected, hasher);
        }
        segment.add(in_table(hash), element, hasher);
        self.segment_bytes += segment.memory();
        self.len += 1;
    }

    /// Takes the element of this key out.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<T> {
        let hash = hash_bytes(self.seed, key);
        let number = self.directory[self.slot(hash)] as usize;
        let seed = self.seed;
        let hasher = |other: &T| in_table(hash_bytes(seed, other.key()));
        let element = self.segments[number].remove(in_table(hash), |old| old.key() == key, hasher)?;
        self.len -= 1;
        self.merge(number);
        Some(element)
    }

    /// Whether to split a segment is allowed and separates something.
    fn may_split(&self, number: usize) -> bool {
        let segment = &self.segments[number];
        if segment.depth == DEPTH_LIMIT {
            return false;
        }
        if segment.depth == self.depth && (2 << self.depth) * ELEMENTS_A_SLOT > self.len {
            return false;
        }
        let side = |element: &T| hash_bytes(self.seed, element.key()) >> (63 - segment.depth) & 1;
        let mut sides = segment.elements().iter().map(side);
        let first = sides.next();
        sides.any(|side| Some(side) != first)
    }

    /// Splits a segment in two by its next bit.
    fn split(&mut self, number: usize) {
        if self.segments[number].depth == self.depth {
            self.directory = self.directory.iter().flat_map(|&segment| [segment, segment]).collect();
            self.depth += 1;
        }
        let seed = self.seed;
        let low = &mut self.segments[number];
        let bit = 63 - low.depth;
        self.segment_bytes -= low.memory();
        let all = low.drain();
        let depth = low.depth + 1;
        (low.prefix, low.depth, low.limit) = (low.prefix << 1, depth, SEGMENT_LIMIT as u32);
        let mut high = Segment::new(low.prefix | 1, depth, SEGMENT_LIMIT);
        // Each key is read once: most of the time goes to memory that is not in a cache.
        let hashes: Vec<u64> = all.iter().map(|element| hash_bytes(seed, element.key())).collect();
        let many = hashes.iter().filter(|&&hash| hash >> bit & 1 == 1).count();
        low.reserve(all.len() - many + 1);
        high.reserve(many + 1);
        for (element, hash) in all.into_iter().zip(hashes) {
            let half = if hash >> bit & 1 == 1 { &mut high } else { &mut *low };
            half.add(in_table(hash), element, |other| in_table(hash_bytes(seed, other.key())));
        }
        self.segment_bytes += low.memory() + high.memory();
        self.at_depth[depth as usize - 1] -= 1;
        self.at_depth[depth as usize] += 2;
        let (first, count) = high.slots(self.depth);
        let new = self.segments.len() as u32;
        self.directory[first..first + count].fill(new);
        self.segments.push(high);
    }

    /// Merges a segment that has become small with its sibling, as long as that is possible.
    fn merge(&mut self, mut number: usize) {
        loop {
            let segment = &self.segments[number];
            if segment.depth == 0 || segment.len() > MERGE_LIMIT {
                break;
            }
            let prefix = segment.prefix ^ 1;
            let slot = (prefix as usize) << (self.depth - segment.depth);
            let sibling = self.directory[slot] as usize;
            let other = &self.segments[sibling];
            if other.depth != segment.depth || other.len() + segment.len() > MERGE_LIMIT {
                break;
            }
            number = self.join(number, sibling);
        }
        self.shrink(number);
        self.halve();
    }

    /// Moves the elements of `from` into its sibling `into`, and returns where the result is.
    fn join(&mut self, into: usize, from: usize) -> usize {
        let seed = self.seed;
        self.segment_bytes -= self.segments[from].memory() + self.segments[into].memory();
        let (taken, kept) = (self.segments[from].drain(), self.segments[into].drain());
        let segment = &mut self.segments[into];
        segment.reserve(taken.len() + kept.len());
        for element in taken.into_iter().chain(kept) {
            let hash = in_table(hash_bytes(seed, element.key()));
            segment.add(hash, element, |other| in_table(hash_bytes(seed, other.key())));
        }
        self.segment_bytes += segment.memory();
        self.at_depth[segment.depth as usize] -= 2;
        self.at_depth[segment.depth as usize - 1] += 1;
        segment.limit = SEGMENT_LIMIT as u32;
        segment.prefix >>= 1;
        segment.depth -= 1;
        self.name(into);
        // The last segment takes the position of the removed one.
        self.segments.swap_remove(from);
        if from < self.segments.len() {
            self.name(from);
        }
        if self.segments.capacity() > 4 * self.segments.len() + 4 {
            self.segments.shrink_to(2 * self.segments.len());
        }
        if into == self.segments.len() { from } else { into }
    }

    /// Makes the directory name segment `number` in all its slots.
    fn name(&mut self, number: usize) {
        let (first, count) = self.segments[number].slots(self.depth);
        self.directory[first..first + count].fill(number as u32);
    }

    /// Gives a nearly empty segment a smaller table.
    fn shrink(&mut self, number: usize) {
        let seed = self.seed;
        let segment = &mut self.segments[number];
        self.segment_bytes -= segment.memory();
        segment.shrink(|other| in_table(hash_bytes(seed, other.key())));
        self.segment_bytes += segment.memory();
    }

    /// Halves the directory while no segment needs its last bit.
    fn halve(&mut self) {
        while self.depth > 0 && self.at_depth[self.depth as usize] == 0 {
            let half = self.directory.len() / 2;
            for slot in 0..half {
                self.directory[slot] = self.directory[2 * slot];
            }
            self.directory.truncate(half);
            self.directory.shrink_to_fit();
            self.depth -= 1;
        }
    }

    /// All elements, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.segments.iter().flat_map(|segment| segment.elements())
    }

    /// An element, each nearly as probable as any other. `next` gives random words.
    pub(crate) fn random(&self, next: &mut dyn FnMut() -> u64) -> Option<&T> {
        if self.len == 0 {
            return None;
        }
        let mut last = None;
        for _ in 0..RANDOM_TRIES {
            let word = next();
            let slot = self.slot(word);
            let segment = &self.segments[self.directory[slot] as usize];
            // A segment of depth d is hit with probability 2^-d, so each of its elements must be
            // taken with a probability in proportion to 2^d.
            let elements = segment.elements();
            let range = if self.depth == 0 {
                elements.len()
            } else {
                elements.len().max(SEGMENT_LIMIT) << (self.depth - segment.depth)
            };
            let choice = (next() % range.max(1) as u64) as usize;
            if let Some(element) = elements.get(choice) {
                return Some(element);
            }
            if last.is_none() {
                last = elements.first();
            }
        }
        last.or_else(|| self.iter().next())
    }

    /// Calls `found` with about `count` elements from `cursor` on (0: from the start) and returns
    /// the cursor to go on with, 0 at the end. At least one element is visited unless the end is
    /// reached.
    pub(crate) fn scan(&self, cursor: u64, count: usize, found: &mut dyn FnMut(&T)) -> u64 {
        let end = 1u64 << CURSOR_BITS;
        let mut at = cursor;
        let mut left = count.max(1);
        let mut chosen: Vec<(u64, &T)> = Vec::new();
        while at < end {
            let segment = self.segment_of(at << (64 - CURSOR_BITS));
            chosen.clear();
            for element in segment.elements() {
                let hash_position = position(hash_bytes(self.seed, element.key()));
                if hash_position >= at {
                    chosen.push((hash_position, element));
                }
            }
            if chosen.len() > left {
                chosen.sort_unstable_by_key(|&(hash_position, _)| hash_position);
                let last = chosen[left - 1].0;
                for &(hash_position, element) in &chosen {
                    if hash_position > last {
                        break;
                    }
                    found(element);
                }
                return if last + 1 < end { last + 1 } else { 0 };
            }
            for &(_, element) in &chosen {
                found(element);
            }
            left -= chosen.len();
            at = (segment.prefix + 1) << (CURSOR_BITS - segment.depth);
            if left == 0 && at < end {
                return at;
            }
        }
        0
    }

    /// Calls `found` with elements from `cursor` on, in the order of their positions, until it
    /// returns false, and returns the cursor to go on with, 0 at the end. Elements that share a
    /// position with the last one are visited as well.
    pub(crate) fn scan_while(&self, cursor: u64, found: &mut dyn FnMut(&T) -> bool) -> u64 {
        let end = 1u64 << CURSOR_BITS;
        let mut at = cursor;
        let mut last = None;
        let mut chosen: Vec<(u64, &T)> = Vec::new();
        while at < end && last.is_none() {
            let segment = self.segment_of(at << (64 - CURSOR_BITS));
            chosen.clear();
            let hash_positions = segment.elements().iter().map(|element| {
                let hash_position = position(hash_bytes(self.seed, element.key()));
                (hash_position, element)
            });
            chosen.extend(hash_positions.filter(|&(hash_position, _)| hash_position >= at));
            chosen.sort_unstable_by_key(|&(hash_position, _)| hash_position);
            for &(hash_position, element) in &chosen {
                if let Some(last) = last.filter(|&last| last < hash_position) {
                    return last + 1;
                }
                if !found(element) {
                    last = Some(hash_position);
                }
            }
            at = (segment.prefix + 1) << (CURSOR_BITS - segment.depth);
        }
        if at < end { at } else { 0 }
    }

    /// Calls `found` with all elements from `cursor` on that share its segment, at most
    /// [`SEGMENT_LIMIT`] as a rule, and returns the cursor to go on with, 0 at the end. What
    /// [`Index::scan`] does in steps that need no order within a segment, and so no sorting and no
    /// second look at the same elements.
    pub(crate) fn scan_segment(&self, cursor: u64, found: &mut dyn FnMut(&T)) -> u64 {
        let segment = self.segment_of(cursor << (64 - CURSOR_BITS));
        let shift = CURSOR_BITS - segment.depth;
        let whole = cursor == segment.prefix << shift;
        for element in segment.elements() {
            if whole || position(hash_bytes(self.seed, element.key())) >= cursor {
                found(element);
            }
        }
        let end = (segment.prefix + 1) << shift;
        if end < 1 << CURSOR_BITS { end } else { 0 }
    }

    /// Drops about `budget` elements (whole segments) and returns whether nothing is left. For
    /// freeing a huge index in slices: after the first call it may only be released further.
    pub(crate) fn release(&mut self, budget: usize) -> bool {
        let mut done = 0;
        while done < budget {
            let Some(segment) = self.segments.pop() else {
                break;
            };
            done += segment.len().max(1);
            self.len -= segment.len();
            self.segment_bytes -= segment.memory();
        }
        self.segments.is_empty()
    }
}

impl<T> std::fmt::Debug for Index<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("len", &self.len).field("depth", &self.depth).finish()
    }
}

#[cfg(test)]
mod tests;
