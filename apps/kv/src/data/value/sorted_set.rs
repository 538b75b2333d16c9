//! A sorted set: packed while it is small, else an index by name and a tree by score.
//!
//! 1. A packed set has two entries for each member, its name and its score, in order of scores and
//!    names; see [`small`].
//! 2. It becomes a [`Big`] one when its length or a name passes Redis' thresholds ([`Rules`]), and
//!    never back.
//! 3. Thresholds that were set to more than this crate packs at most convert it earlier. OBJECT
//!    ENCODING then still says what Redis would: [`Big::listpack`] keeps that.
//! 4. A big set holds each name once, shared by index and tree.

mod small;

use std::sync::Arc;

use self::small::{member_content, score_bytes};
use super::counted_tree::{CountedTree, Entry, compare};
use super::form::{Form, Large, View};
use super::limits::{MOST_PACKED_BYTES, MOST_PACKED_ENTRIES};
use super::packed::{Encoded, Entries, Packed, PackedRef, Text};
use super::rules::Rules;
use crate::data::index::{Index, Keyed};
use crate::foundation::allocation::allocation;

/// A member as the index by name holds it.
#[derive(Clone, Debug)]
struct Member {
    name: Arc<[u8]>,
    score: f64,
}

impl Keyed for Member {
    fn key(&self) -> &[u8] {
        &self.name
    }
}

/// A sorted set value. Scores are never NaN.
#[derive(Clone, Debug, Default)]
pub(crate) struct SortedSet(Form<Big>);

/// A sorted set that is not small.
#[derive(Clone, Debug)]
struct Big {
    index: Index<Member>,
    order: CountedTree,
    /// Bytes of the names' allocations.
    bytes: usize,
    /// Bytes of the members in effects, at most.
    content: usize,
    /// It never passed Redis' thresholds.
    listpack: bool,
}

/// What an `Arc<[u8]>` of this length allocates: two counts before the bytes.
fn name_bytes(length: usize) -> usize {
    allocation(length + 2 * size_of::<usize>())
}

impl Large for Big {
    fn len(&self) -> usize {
        self.order.len()
    }

    fn memory(&self) -> usize {
        self.index.memory() + self.order.memory() + self.bytes
    }

    fn content(&self) -> usize {
        self.content
    }

    fn release(&mut self, budget: usize) -> bool {
        let tree = self.order.release(budget);
        self.index.release(budget) && tree
    }
}

impl Big {
    fn new(seed: u64, listpack: bool) -> Self {
        Self { index: Index::new(seed), order: CountedTree::default(), bytes: 0, content: 0, listpack }
    }

    fn add(&mut self, name: &[u8], score: f64) {
        self.bytes += name_bytes(name.len());
        self.content += member_content(name, score);
        let name: Arc<[u8]> = name.into();
        self.index.insert(Member { name: name.clone(), score });
        self.order.insert(Entry { score, name });
    }

    fn remove(&mut self, name: &[u8]) -> Option<f64> {
        let score = self.index.remove(name)?.score;
        self.order.remove(score, name);
        self.bytes -= name_bytes(name.len());
        self.content -= member_content(name, score);
        Some(score)
    }

    /// Gives a member another score.
    fn change(&mut self, name: &[u8], from: f64, to: f64) {
        if let Some(member) = self.index.get_mut(name) {
            member.score = to;
            self.order.remove(from, name);
            self.order.insert(Entry { score: to, name: member.name.clone() });
            self.content = self.content - score_bytes(from) + score_bytes(to);
        }
    }
}

/// A sorted set that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SortedSetRef<'a>(View<'a, Big>);

impl<'a> SortedSetRef<'a> {
    /// The sorted set of this packed form.
    pub(super) fn of_packed(packed: PackedRef<'a>) -> Self {
        Self(View::Packed(packed))
    }

    /// A copy.
    pub(super) fn to_sorted_set(self) -> SortedSet {
        SortedSet(self.0.to_form())
    }

    /// Members.
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// What OBJECT ENCODING says.
    pub(crate) fn encoding(self) -> &'static str {
        if self.is_listpack() { "listpack" } else { "skiplist" }
    }

    /// Whether Redis would hold it in a listpack.
    fn is_listpack(self) -> bool {
        !matches!(self.0, View::Large(big) if !big.listpack)
    }

    /// Bytes on the heap.
    pub(crate) fn memory(self) -> usize {
        self.0.memory()
    }

    /// Bytes of the members in effects, at most.
    pub(crate) fn content(self) -> usize {
        self.0.content()
    }

    /// The score of a member.
    pub(crate) fn score(self, name: &[u8]) -> Option<f64> {
        match self.0 {
            View::Packed(packed) => {
                let at = packed.find(&Encoded::new(name), 2)?;
                Some(small::read_member(packed.bytes(), at).score)
            }
            View::Large(big) => big.index.get(name).map(|member| member.score),
        }
    }

    /// What becomes of a score here: a set in a listpack does not know -0, as in Redis, where it
    /// holds whole scores as integers.
    pub(crate) fn stored(self, score: f64) -> f64 {
        if self.is_listpack() { score + 0.0 } else { score }
    }

    /// How many members come before this one.
    pub(crate) fn rank(self, name: &[u8]) -> Option<usize> {
        if let View::Packed(packed) = self.0 {
            let wanted = Encoded::new(name);
            return small::members(packed).position(|member| wanted.is_at(packed.bytes(), member.at));
        }
        let score = self.score(name)?;
        Some(self.partition_point(&|other, other_name| compare((other, other_name), (score, name)).is_lt()))
    }

    /// Members at the front for which `before(score, name)` holds; it must hold for none after the
    /// first for which it does not.
    pub(crate) fn partition_point(self, before: &dyn Fn(f64, &[u8]) -> bool) -> usize {
        match self.0 {
            View::Packed(packed) => {
                small::members(packed).take_while(|member| before(member.score, &member.name.text())).count()
            }
            View::Large(big) => big.order.partition_point(before),
        }
    }

    /// `count` members from rank `start` on, in order; if `reverse`, ranks count from the end and
    /// go backwards.
    pub(crate) fn range(self, start: usize, count: usize, reverse: bool) -> Range<'a> {
        let count = count.min(self.len().saturating_sub(start));
        let next = if reverse { (self.len() - start.min(self.len())).wrapping_sub(1) } else { start };
        Range(match self.0 {
            View::Packed(packed) if count == 0 => RangeForm::Packed(packed.iter(), 0, reverse),
            View::Packed(packed) => {
                let (from, to) = if reverse {
                    (packed.start(), packed.nth(2 * (next + 1)))
                } else {
                    (packed.nth(2 * next), packed.end())
                };
                RangeForm::Packed(Entries::between(packed.bytes(), from, to), count, reverse)
            }
            View::Large(big) => {
                let order = &big.order;
                RangeForm::Tree(TreeRange { order, leaf: &[], position: 0, next, left: count, reverse })
            }
        })
    }

    /// A random member.
    pub(crate) fn random(self, next: &mut dyn FnMut() -> u64) -> Option<(Text<'a>, f64)> {
        if self.is_empty() {
            return None;
        }
        let rank = (next() % self.len() as u64) as usize;
        self.range(rank, 1, false).next()
    }

    /// See [`Index::scan`]; a packed set is returned whole, in order.
    pub(crate) fn scan(self, cursor: u64, count: usize, found: &mut dyn FnMut(&[u8], f64)) -> u64 {
        match self.0 {
            View::Packed(packed) => {
                small::members(packed).for_each(|member| found(&member.name.text(), member.score));
                0
            }
            View::Large(big) => {
                big.index.scan(cursor, count, &mut |member| found(&member.name, member.score))
            }
        }
    }
}

impl SortedSet {
    /// An empty sorted set.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The sorted set, to be read.
    #[inline]
    pub(crate) fn view(&self) -> SortedSetRef<'_> {
        SortedSetRef(self.0.view())
    }

    /// The sorted set of this packed form.
    pub(super) fn of_packed(packed: Packed) -> Self {
        Self(Form::Packed(packed))
    }

    /// Its packed form.
    ///
    /// # Errors
    /// The sorted set is in its other form.
    pub(super) fn into_packed(self) -> Result<Packed, Self> {
        self.0.into_packed().map_err(Self)
    }

    /// The set of these members, which have different names.
    pub(crate) fn of(rules: &Rules, members: &[(Vec<u8>, f64)]) -> Self {
        let mut set = Self::new();
        let long = |(name, _): &(Vec<u8>, f64)| name.len() > rules.limits.zset_value;
        if members.len() > rules.limits.zset_entries || members.iter().any(long) {
            set.convert(rules, false);
        }
        for (name, score) in members {
            set.insert(name, *score, rules);
        }
        set
    }

    /// Sets the score of a member and returns the one it had.
    pub(crate) fn insert(&mut self, name: &[u8], score: f64, rules: &Rules) -> Option<f64> {
        let old = self.view().score(name);
        if let Some(old_score) = old {
            let score = self.view().stored(score);
            // The same score (0 and -0 too) changes nothing.
            if old_score != score {
                match &mut self.0 {
                    Form::Packed(packed) => {
                        small::remove(packed, name);
                        small::insert(packed, name, score);
                    }
                    Form::Large(big) => big.change(name, old_score, score),
                }
            }
            return old;
        }
        if self.view().len() >= rules.limits.zset_entries || name.len() > rules.limits.zset_value {
            self.convert(rules, false);
        } else if let Form::Packed(packed) = &self.0
            && (packed.view().len() >= MOST_PACKED_ENTRIES
                || packed.view().end() + name.len() > MOST_PACKED_BYTES)
        {
            self.convert(rules, true);
        }
        let score = self.view().stored(score);
        match &mut self.0 {
            Form::Packed(packed) => small::insert(packed, name, score),
            Form::Large(big) => big.add(name, score),
        }
        None
    }

    /// From now on it knows -0: it was recorded of a set that did.
    pub(crate) fn know_negative_zero(&mut self, rules: &Rules) {
        self.convert(rules, false);
    }

    /// Makes a packed set a big one. Without `listpack` it is one in the eyes of Redis, too.
    fn convert(&mut self, rules: &Rules, listpack: bool) {
        if let Form::Packed(packed) = &self.0 {
            let mut big = Big::new(rules.seed.compute(), listpack);
            for member in small::members(packed.view()) {
                big.add(&member.name.text(), member.score);
            }
            self.0 = Form::Large(Box::new(big));
        }
        if let Form::Large(big) = &mut self.0 {
            big.listpack &= listpack;
        }
    }

    /// Takes a member out and returns its score.
    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<f64> {
        match &mut self.0 {
            Form::Packed(packed) => small::remove(packed, name),
            Form::Large(big) => big.remove(name),
        }
    }

    /// Takes out `count` members from rank `start` on, and returns them in order.
    pub(crate) fn remove_range(&mut self, start: usize, count: usize) -> Vec<(Vec<u8>, f64)> {
        let taken: Vec<(Vec<u8>, f64)> =
            self.view().range(start, count, false).map(|(name, score)| (name.to_vec(), score)).collect();
        for (name, _) in &taken {
            self.remove(name);
        }
        taken
    }

    /// Drops about `budget` members; whether nothing is left.
    pub(crate) fn release(&mut self, budget: usize) -> bool {
        self.0.release(budget)
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        if let Form::Large(big) = &self.0 {
            assert_eq!(big.index.len(), big.order.len());
            big.order.check();
        }
    }
}

/// Members in order; see [`SortedSetRef::range`].
pub(crate) struct Range<'a>(RangeForm<'a>);

enum RangeForm<'a> {
    /// So many of these entries, backwards if the last word says so.
    Packed(Entries<'a>, usize, bool),
    Tree(TreeRange<'a>),
}

impl<'a> Iterator for Range<'a> {
    type Item = (Text<'a>, f64);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            RangeForm::Tree(range) => range.next(),
            RangeForm::Packed(_, 0, _) => None,
            RangeForm::Packed(entries, left, reverse) => {
                *left -= 1;
                let (name, score) = if *reverse {
                    let score = entries.next_back()?;
                    (entries.next_back()?, score)
                } else {
                    (entries.next()?, entries.next()?)
                };
                Some((name.text(), small::score_of(score)))
            }
        }
    }
}

/// Members of a tree in order.
struct TreeRange<'a> {
    order: &'a CountedTree,
    leaf: &'a [Entry],
    position: usize,
    /// Rank of the next member.
    next: usize,
    left: usize,
    reverse: bool,
}

impl<'a> Iterator for TreeRange<'a> {
    type Item = (Text<'a>, f64);

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        if self.position >= self.leaf.len() {
            (self.leaf, self.position) = self.order.leaf(self.next)?;
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
        Some((Text::Bytes(&entry.name), entry.score))
    }
}
