//! A sorted set: one sorted vector while it is small, else an index by name and a tree by score.

use std::sync::Arc;

use super::counted_tree::{CountedTree, Entry, compare};
use super::limits::{SMALL_SORTED_SET_BYTES, SMALL_SORTED_SET_ENTRIES};
use super::size::{allocation, argument};
use crate::data::index::{Index, Keyed};

/// Characters of the longest score: a sign, 17 digits, a point and an exponent.
const LONGEST_SCORE: usize = 24;

/// Bytes of a score in an effect, at most: whole scores are as long as they are, with a sign.
fn score_bytes(score: f64) -> usize {
    let whole = score.trunc() == score && score.abs() < 1e16;
    argument(if whole {
        crate::foundation::text::number::digits(score.abs() as u64) + 1
    } else {
        LONGEST_SCORE
    })
}

/// A member as the index by name holds it.
#[derive(Clone, Debug)]
pub(super) struct Member {
    name: Arc<[u8]>,
    score: f64,
}

impl Keyed for Member {
    fn key(&self) -> &[u8] {
        &self.name
    }
}

/// A sorted set value. Scores are never NaN.
#[derive(Clone, Debug)]
pub(crate) struct SortedSet {
    members: Members,
    /// Bytes of the names' allocations.
    bytes: usize,
    /// Bytes of the members in effects, at most.
    content: usize,
    seed: u64,
}

#[derive(Clone, Debug)]
enum Members {
    Small(Vec<Entry>),
    Big { index: Box<Index<Member>>, order: CountedTree },
}

/// What an `Arc<[u8]>` of this length allocates: two counts before the bytes.
fn name_bytes(length: usize) -> usize {
    allocation(length + 2 * size_of::<usize>())
}

impl SortedSet {
    /// An empty sorted set. `seed`: see [`Index::new`].
    pub(crate) fn new(seed: u64) -> Self {
        Self { members: Members::Small(Vec::new()), bytes: 0, content: 0, seed }
    }

    /// The set of these members, which have different names.
    pub(crate) fn of(seed: u64, members: &[(Vec<u8>, f64)]) -> Self {
        let mut set = Self::new(seed);
        let long = |(name, _): &(Vec<u8>, f64)| name.len() > SMALL_SORTED_SET_BYTES;
        if members.len() > SMALL_SORTED_SET_ENTRIES || members.iter().any(long) {
            set.convert();
        }
        for (name, score) in members {
            set.insert(name, *score);
        }
        set
    }

    /// Members.
    pub(crate) fn len(&self) -> usize {
        match &self.members {
            Members::Small(entries) => entries.len(),
            Members::Big { order, .. } => order.len(),
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What OBJECT ENCODING says.
    pub(crate) fn encoding(&self) -> &'static str {
        match &self.members {
            Members::Small(_) => "listpack",
            Members::Big { .. } => "skiplist",
        }
    }

    /// Estimated bytes on the heap.
    pub(crate) fn memory(&self) -> usize {
        self.bytes
            + match &self.members {
                Members::Small(entries) => allocation(entries.capacity() * size_of::<Entry>()),
                Members::Big { index, order } => index.memory() + order.memory(),
            }
    }

    /// Bytes of the members in effects, at most.
    pub(crate) fn content(&self) -> usize {
        self.content
    }

    /// The score of a member.
    pub(crate) fn score(&self, name: &[u8]) -> Option<f64> {
        match &self.members {
            Members::Small(entries) => {
                entries.iter().find(|entry| *entry.name == *name).map(|entry| entry.score)
            }
            Members::Big { index, .. } => index.get(name).map(|member| member.score),
        }
    }

    /// Sets the score of a member and returns the one it had.
    pub(crate) fn insert(&mut self, name: &[u8], score: f64) -> Option<f64> {
        let old = self.score(name);
        if let Some(old_score) = old {
            let score = self.stored(score);
            // The same score (0 and -0 too) changes nothing.
            if old_score != score {
                self.content = self.content - score_bytes(old_score) + score_bytes(score);
                self.move_member(name, old_score, score);
            }
            return old;
        }
        if self.len() >= SMALL_SORTED_SET_ENTRIES || name.len() > SMALL_SORTED_SET_BYTES {
            self.convert();
        }
        let score = self.stored(score);
        self.bytes += name_bytes(name.len());
        self.content += argument(name.len()) + score_bytes(score);
        self.put(Entry { score, name: name.into() });
        None
    }

    /// What becomes of a score here: a small set does not know -0, as in Redis, where it holds
    /// whole scores as integers.
    pub(crate) fn stored(&self, score: f64) -> f64 {
        if matches!(self.members, Members::Small(_)) { score + 0.0 } else { score }
    }

    /// From now on it knows -0: it was recorded of a set that did.
    pub(crate) fn know_negative_zero(&mut self) {
        self.convert();
    }

    fn put(&mut self, entry: Entry) {
        match &mut self.members {
            Members::Small(entries) => {
                let position = entries.partition_point(|old| {
                    compare((old.score, &old.name), (entry.score, &entry.name)).is_lt()
                });
                entries.insert(position, entry);
            }
            Members::Big { index, order } => {
                index.insert(Member { name: entry.name.clone(), score: entry.score });
                order.insert(entry);
            }
        }
    }

    fn move_member(&mut self, name: &[u8], from: f64, to: f64) {
        match &mut self.members {
            Members::Small(entries) => {
                if let Some(position) = entries.iter().position(|entry| *entry.name == *name) {
                    let mut entry = entries.remove(position);
                    entry.score = to;
                    self.put(entry);
                }
            }
            Members::Big { index, order } => {
                if let Some(member) = index.get_mut(name) {
                    member.score = to;
                    order.remove(from, name);
                    order.insert(Entry { score: to, name: member.name.clone() });
                }
            }
        }
    }

    fn convert(&mut self) {
        if let Members::Small(entries) = &mut self.members {
            let entries = std::mem::take(entries);
            let mut index = Index::new(self.seed);
            for entry in &entries {
                index.insert(Member { name: entry.name.clone(), score: entry.score });
            }
            let order = CountedTree::from_sorted(entries);
            self.members = Members::Big { index: Box::new(index), order };
        }
    }

    /// Takes a member out and returns its score.
    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<f64> {
        let score = match &mut self.members {
            Members::Small(entries) => {
                let position = entries.iter().position(|entry| *entry.name == *name)?;
                entries.remove(position).score
            }
            Members::Big { index, order } => {
                let member = index.remove(name)?;
                order.remove(member.score, name);
                member.score
            }
        };
        self.bytes -= name_bytes(name.len());
        self.content -= argument(name.len()) + score_bytes(score);
        Some(score)
    }

    /// How many members come before this one.
    pub(crate) fn rank(&self, name: &[u8]) -> Option<usize> {
        let score = self.score(name)?;
        Some(self.partition_point(&|other, other_name| compare((other, other_name), (score, name)).is_lt()))
    }

    /// Members at the front for which `before(score, name)` holds; it must hold for none after the
    /// first for which it does not.
    pub(crate) fn partition_point(&self, before: &dyn Fn(f64, &[u8]) -> bool) -> usize {
        match &self.members {
            Members::Small(entries) => entries.partition_point(|entry| before(entry.score, &entry.name)),
            Members::Big { order, .. } => order.partition_point(before),
        }
    }

    /// `count` members from rank `start` on, in order; if `reverse`, ranks count from the end and
    /// go backwards.
    pub(crate) fn range(&self, start: usize, count: usize, reverse: bool) -> Range<'_> {
        let count = count.min(self.len().saturating_sub(start));
        let next = if reverse { (self.len() - start.min(self.len())).wrapping_sub(1) } else { start };
        Range { set: self, leaf: &[], position: 0, next, left: count, reverse }
    }

    /// Takes out `count` members from rank `start` on, and returns them in order.
    pub(crate) fn remove_range(&mut self, start: usize, count: usize) -> Vec<(Vec<u8>, f64)> {
        let taken: Vec<(Vec<u8>, f64)> =
            self.range(start, count, false).map(|(name, score)| (name.to_vec(), score)).collect();
        for (name, _) in &taken {
            self.remove(name);
        }
        taken
    }

    /// A random member.
    pub(crate) fn random(&self, next: &mut dyn FnMut() -> u64) -> Option<(&[u8], f64)> {
        if self.is_empty() {
            return None;
        }
        let rank = (next() % self.len() as u64) as usize;
        self.range(rank, 1, false).next()
    }

    /// See [`Index::scan`]; a small set is returned whole, in order.
    pub(crate) fn scan(&self, cursor: u64, count: usize, found: &mut dyn FnMut(&[u8], f64)) -> u64 {
        match &self.members {
            Members::Small(entries) => {
                entries.iter().for_each(|entry| found(&entry.name, entry.score));
                0
            }
            Members::Big { index, .. } => {
                index.scan(cursor, count, &mut |member| found(&member.name, member.score))
            }
        }
    }

    /// Drops about `budget` members; whether nothing is left.
    pub(crate) fn release(&mut self, budget: usize) -> bool {
        match &mut self.members {
            Members::Small(_) => true,
            Members::Big { index, order } => {
                let tree = order.release(budget);
                index.release(budget) && tree
            }
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        if let Members::Big { index, order } = &self.members {
            assert_eq!(index.len(), order.len());
            order.check();
        }
    }
}

/// Members in order; see [`SortedSet::range`].
pub(crate) struct Range<'a> {
    set: &'a SortedSet,
    leaf: &'a [Entry],
    position: usize,
    /// Rank of the next member.
    next: usize,
    left: usize,
    reverse: bool,
}

impl<'a> Iterator for Range<'a> {
    type Item = (&'a [u8], f64);

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        if self.position >= self.leaf.len() {
            (self.leaf, self.position) = match &self.set.members {
                Members::Small(entries) => (entries.as_slice(), self.next),
                Members::Big { order, .. } => order.leaf(self.next)?,
            };
        }
        let entry = self.leaf.get(self.position)?;
        self.left -= 1;
        if self.reverse {
            self.next = self.next.wrapping_sub(1);
            // Before the first position wraps round past the leaf's end: the next leaf is looked
            // up.
            self.position = self.position.wrapping_sub(1);
        } else {
            self.next += 1;
            self.position += 1;
        }
        Some((&entry.name, entry.score))
    }
}
