//! A list: packed while it is small, else a chain of packed nodes.
//!
//! 1. Up to [`SMALL_LIST_BYTES`] a list is one [`Packed`]. Past them, or past the size of a node
//!    that `list-max-listpack-size` allows, it becomes [`Nodes`], and never one [`Packed`] again.
//!    OBJECT ENCODING says quicklist of both, as Redis 7.0 does.
//! 2. A push and a pop at either end take constant time, but for the small list, whose bytes all
//!    move.
//! 3. An index is found by walking nodes from the nearer end, and then the entries of one node.

mod node;
mod nodes;

use self::node::{content_of, matching};
use self::nodes::Nodes;
use super::form::{Form, View};
use super::packed::{Content, Encoded, Entries, Packed, PackedRef, Text, before, read};
use super::rules::Rules;
use super::size::argument;

/// Most bytes of a list that is one [`Packed`]: a push at its front moves all of them.
const SMALL_LIST_BYTES: usize = 1 << 10;

/// A list value.
#[derive(Clone, Debug, Default)]
pub(crate) struct List(Form<Nodes>);

/// A list that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListRef<'a>(View<'a, Nodes>);

impl<'a> ListRef<'a> {
    /// The list of this packed form.
    pub(super) fn of_packed(packed: PackedRef<'a>) -> Self {
        Self(View::Packed(packed))
    }

    /// A copy.
    pub(super) fn to_list(self) -> List {
        List(self.0.to_form())
    }

    /// Elements.
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    /// Bytes on the heap.
    pub(crate) fn memory(self) -> usize {
        self.0.memory()
    }

    /// Bytes of the elements in effects.
    pub(crate) fn content(self) -> usize {
        self.0.content()
    }

    /// The element at `index`, counted from the front.
    pub(crate) fn get(self, index: usize) -> Option<Text<'a>> {
        match self.0 {
            View::Packed(packed) if index < packed.len() => {
                Some(read(packed.bytes(), packed.nth(index)).0.text())
            }
            View::Packed(_) => None,
            View::Large(nodes) => nodes.get(index).map(Content::text),
        }
    }

    /// All elements from the front, or from the back if reversed (`rev`).
    pub(crate) fn iter(self) -> impl DoubleEndedIterator<Item = Text<'a>> {
        let (small, nodes) = match self.0 {
            View::Packed(packed) => (packed.iter(), None),
            View::Large(nodes) => (Entries::between(&[], 0, 0), Some(nodes)),
        };
        small.chain(nodes.into_iter().flat_map(|nodes| nodes.iter())).map(Content::text)
    }

    /// The elements from `start` on, found without walking those before it one by one.
    pub(crate) fn iter_from(self, start: usize) -> impl Iterator<Item = Text<'a>> {
        let (first, nodes) = match self.0 {
            View::Packed(packed) => {
                let at = packed.nth(start.min(packed.len()));
                (Entries::between(packed.bytes(), at, packed.end()), None)
            }
            View::Large(nodes) => {
                let (first, rest) = nodes.iter_from(start);
                (first, Some(rest))
            }
        };
        first.chain(nodes.into_iter().flatten()).map(Content::text)
    }
}

impl List {
    /// An empty list.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The list, to be read.
    #[inline]
    pub(crate) fn view(&self) -> ListRef<'_> {
        ListRef(self.0.view())
    }

    /// The list of this packed form.
    pub(super) fn of_packed(packed: Packed) -> Self {
        Self(Form::Packed(packed))
    }

    /// Its packed form.
    ///
    /// # Errors
    /// The list is in its other form.
    pub(super) fn into_packed(self) -> Result<Packed, Self> {
        self.0.into_packed().map_err(Self)
    }

    /// The small list, if an entry of `growth` more bytes keeps it small; else the nodes.
    fn grown(&mut self, growth: usize, more: usize, rules: &Rules) -> &mut Form<Nodes> {
        if let Form::Packed(packed) = &mut self.0 {
            let node = rules.limits.list_node();
            let fits = packed.view().end() + growth <= SMALL_LIST_BYTES.min(node.bytes);
            if !fits || packed.view().len() + more > node.entries {
                let entries = &packed.view().bytes()[packed.view().start()..];
                let nodes = Nodes::of(entries, packed.view().len(), packed.view().content());
                self.0 = Form::Large(Box::new(nodes));
            }
        }
        &mut self.0
    }

    /// Puts an element after the last.
    pub(crate) fn push_back(&mut self, element: &[u8], rules: &Rules) {
        self.push(false, element, rules);
    }

    /// Puts an element at one end.
    pub(crate) fn push(&mut self, front: bool, element: &[u8], rules: &Rules) {
        let entry = Encoded::new(element);
        match self.grown(entry.size(), 1, rules) {
            Form::Packed(packed) => {
                let at = if front { packed.view().start() } else { packed.view().end() };
                packed.splice(at, 0, &[entry]);
                packed.count(1, argument(element.len()) as isize);
            }
            Form::Large(nodes) => {
                nodes.push(front, &entry, argument(element.len()), rules.limits.list_node())
            }
        }
    }

    /// Takes the element at one end.
    pub(crate) fn pop(&mut self, front: bool) -> Option<Box<[u8]>> {
        match &mut self.0 {
            Form::Large(nodes) => nodes.pop(front),
            Form::Packed(packed) if packed.view().len() == 0 => None,
            Form::Packed(packed) => {
                let at = if front {
                    packed.view().start()
                } else {
                    before(packed.view().bytes(), packed.view().end())
                };
                let element = Box::from(&*read(packed.view().bytes(), at).0.text());
                remove_at(packed, at);
                Some(element)
            }
        }
    }

    /// Replaces the element at `index`; false if there is none.
    pub(crate) fn set(&mut self, index: usize, element: &[u8], rules: &Rules) -> bool {
        if index >= self.view().len() {
            return false;
        }
        let entry = Encoded::new(element);
        match self.grown(entry.size(), 0, rules) {
            Form::Packed(packed) => {
                let at = packed.view().nth(index);
                let (content, end) = read(packed.view().bytes(), at);
                let old = content_of(content);
                packed.splice(at, end - at, &[entry]);
                packed.count(0, argument(element.len()) as isize - old as isize);
            }
            Form::Large(nodes) => {
                nodes.set(index, &entry, argument(element.len()), rules.limits.list_node());
            }
        }
        true
    }

    /// Puts an element before the one at `index`, which may be the length.
    pub(crate) fn insert(&mut self, index: usize, element: &[u8], rules: &Rules) {
        let entry = Encoded::new(element);
        match self.grown(entry.size(), 1, rules) {
            Form::Packed(packed) => {
                let at = packed.view().nth(index);
                packed.splice(at, 0, &[entry]);
                packed.count(1, argument(element.len()) as isize);
            }
            Form::Large(nodes) => {
                nodes.insert(index, &entry, argument(element.len()), rules.limits.list_node());
            }
        }
    }

    /// Removes up to `limit` elements equal to `element`, from the front or from the back, and
    /// returns how many, and how many of them were among the first `head` elements.
    pub(crate) fn remove_equal(
        &mut self,
        element: &[u8],
        limit: usize,
        from_back: bool,
        head: usize,
    ) -> (usize, usize) {
        let entry = Encoded::new(element);
        match &mut self.0 {
            Form::Large(nodes) => nodes.remove_equal(&entry, argument(element.len()), limit, from_back, head),
            Form::Packed(packed) => {
                let mut matches =
                    matching(packed.view().bytes(), packed.view().start(), packed.view().end(), &entry);
                let take = matches.len().min(limit);
                if from_back {
                    matches.drain(..matches.len() - take);
                }
                matches.truncate(take);
                // From the last one on, so that the others stay where they are.
                for &(_, at) in matches.iter().rev() {
                    remove_at(packed, at);
                }
                (take, matches.iter().filter(|&&(number, _)| number < head).count())
            }
        }
    }

    /// Keeps `count` elements from `start` on.
    pub(crate) fn trim(&mut self, start: usize, count: usize) {
        let len = self.view().len();
        let start = start.min(len);
        let end = start.saturating_add(count).min(len);
        match &mut self.0 {
            Form::Large(nodes) => nodes.trim(start, end),
            Form::Packed(packed) => {
                let kept = packed.view().nth(end) - packed.view().nth(start);
                let dropped =
                    Entries::between(packed.view().bytes(), packed.view().nth(end), packed.view().end())
                        .chain(Entries::between(
                            packed.view().bytes(),
                            packed.view().start(),
                            packed.view().nth(start),
                        ));
                let content: usize = dropped.map(content_of).sum();
                packed.resize(packed.view().nth(end), packed.view().end() - packed.view().nth(end), 0);
                packed.resize(packed.view().start(), packed.view().end() - packed.view().start() - kept, 0);
                if len > 0 {
                    packed.count((end - start) as isize - len as isize, -(content as isize));
                }
            }
        }
    }

    /// Drops about `budget` elements; whether nothing is left.
    pub(crate) fn release(&mut self, budget: usize) -> bool {
        self.0.release(budget)
    }
}

/// Removes the element at `at` from a small list.
fn remove_at(packed: &mut Packed, at: usize) {
    let (content, end) = read(packed.view().bytes(), at);
    let content = content_of(content);
    packed.resize(at, end - at, 0);
    packed.count(-1, -(content as isize));
}
