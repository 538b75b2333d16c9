//! The order of a big sorted set: a B+tree with counts, by score and then by name.
//!
//! 1. A leaf holds up to [`FAN`] entries, an inner node up to [`FAN`] children. Beside each child
//!    is a *lower bound*: not greater than any entry of the child, and greater than every entry
//!    of the child before it. A removal leaves bounds alone; they stay true.
//! 2. Each node knows how many entries are below it, so a rank is found, or turned into an entry,
//!    in O(log n).
//! 3. Ranges by score, by name and by rank are all ranges of ranks:
//!    [`CountedTree::partition_point`] finds their ends.
//! 4. A node that is full splits; a node that becomes empty goes; one that becomes small is joined
//!    with a neighbour if both fit in three quarters of a node.

use std::cmp::Ordering;
use std::sync::Arc;

/// Entries of a leaf, children of an inner node: three levels for a quarter of a million members,
/// four for sixteen million.
const FAN: usize = 64;

/// Neighbours that together hold at most this are joined.
const JOIN: usize = FAN * 3 / 4;

/// One member with its score.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Never NaN.
    pub score: f64,
    /// Shared with the index by name.
    pub name: Arc<[u8]>,
}

/// The order of members: by score, then by bytes. `-0` and `0` are the same score.
pub(crate) fn compare(a: (f64, &[u8]), b: (f64, &[u8])) -> Ordering {
    a.0.partial_cmp(&b.0).unwrap_or(Ordering::Equal).then_with(|| a.1.cmp(b.1))
}

impl Entry {
    fn pair(&self) -> (f64, &[u8]) {
        (self.score, &self.name)
    }
}

/// Entries in order.
#[derive(Clone, Debug)]
pub(super) struct CountedTree {
    root: Node,
}

#[derive(Clone, Debug)]
enum Node {
    Leaf(Vec<Entry>),
    Inner { count: usize, bounds: Vec<Entry>, children: Vec<Node> },
}

impl Default for CountedTree {
    fn default() -> Self {
        Self { root: Node::Leaf(Vec::new()) }
    }
}

impl CountedTree {
    /// Entries.
    pub(super) fn len(&self) -> usize {
        self.root.count()
    }

    /// Puts an entry in, which must not be there.
    pub(super) fn insert(&mut self, entry: Entry) {
        if let Some((bound, right)) = self.root.insert(entry) {
            let left = std::mem::replace(&mut self.root, Node::Leaf(Vec::new()));
            let count = left.count() + right.count();
            // The first bound is never compared: everything below the second belongs to the first
            // child.
            let bounds = vec![bound.clone(), bound];
            self.root = Node::Inner { count, bounds, children: vec![left, right] };
        }
    }

    /// Takes an entry out; whether it was there.
    pub(super) fn remove(&mut self, score: f64, name: &[u8]) -> bool {
        let removed = self.root.remove((score, name));
        while let Node::Inner { children, .. } = &mut self.root {
            match children.len() {
                0 => self.root = Node::Leaf(Vec::new()),
                1 => {
                    if let Some(only) = children.pop() {
                        self.root = only;
                    }
                }
                _ => break,
            }
        }
        removed
    }

    /// Entries at the front for which `before` holds; it must hold for none after the first for
    /// which it does not.
    pub(super) fn partition_point(&self, before: &dyn Fn(f64, &[u8]) -> bool) -> usize {
        let mut node = &self.root;
        let mut rank = 0;
        loop {
            match node {
                Node::Leaf(entries) => {
                    return rank + entries.partition_point(|entry| before(entry.score, &entry.name));
                }
                Node::Inner { bounds, children, .. } => {
                    let position = bounds[1..].partition_point(|bound| before(bound.score, &bound.name));
                    rank += children[..position].iter().map(Node::count).sum::<usize>();
                    node = &children[position];
                }
            }
        }
    }

    /// The leaf that holds the entry of this rank, and its position there.
    pub(super) fn leaf(&self, rank: usize) -> Option<(&[Entry], usize)> {
        let mut node = &self.root;
        let mut left = rank;
        loop {
            match node {
                Node::Leaf(entries) => return (left < entries.len()).then_some((entries, left)),
                Node::Inner { children, .. } => {
                    let mut next = None;
                    for child in children {
                        if left < child.count() {
                            next = Some(child);
                            break;
                        }
                        left -= child.count();
                    }
                    node = next?;
                }
            }
        }
    }

    /// Estimated bytes of the tree, without the names.
    pub(super) fn memory(&self) -> usize {
        // Leaves are about two thirds full.
        self.len() * size_of::<Entry>() * 3 / 2
    }

    /// Drops about `budget` entries at the end; whether nothing is left.
    pub(super) fn release(&mut self, budget: usize) -> bool {
        let mut left = budget;
        self.root.release(&mut left);
        self.len() == 0
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        self.root.check();
    }
}

impl Node {
    fn count(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner { count, .. } => *count,
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner { children, .. } => children.len(),
        }
    }

    /// Inserts below. Returns a new right neighbour with its bound if this node had to split.
    fn insert(&mut self, entry: Entry) -> Option<(Entry, Node)> {
        match self {
            Self::Leaf(entries) => {
                let position = entries.partition_point(|old| compare(old.pair(), entry.pair()).is_lt());
                let at_end = position == entries.len();
                entries.insert(position, entry);
                if entries.len() <= FAN {
                    return None;
                }
                // Growing at the end leaves full leaves behind.
                let right = entries.split_off(if at_end { FAN } else { FAN / 2 });
                Some((right[0].clone(), Self::Leaf(right)))
            }
            Self::Inner { count, bounds, children } => {
                *count += 1;
                let position =
                    bounds[1..].partition_point(|bound| compare(bound.pair(), entry.pair()).is_le());
                let (bound, right) = children[position].insert(entry)?;
                bounds.insert(position + 1, bound);
                children.insert(position + 1, right);
                if children.len() <= FAN {
                    return None;
                }
                let at = if position + 2 == children.len() { FAN } else { FAN / 2 };
                let children = children.split_off(at);
                let bounds = bounds.split_off(at);
                let moved = children.iter().map(Node::count).sum();
                *count -= moved;
                Some((bounds[0].clone(), Self::Inner { count: moved, bounds, children }))
            }
        }
    }

    fn remove(&mut self, pair: (f64, &[u8])) -> bool {
        match self {
            Self::Leaf(entries) => {
                let found = entries.binary_search_by(|old| compare(old.pair(), pair));
                if let Ok(position) = found {
                    entries.remove(position);
                }
                found.is_ok()
            }
            Self::Inner { count, bounds, children } => {
                let position = bounds[1..].partition_point(|bound| compare(bound.pair(), pair).is_le());
                if !children[position].remove(pair) {
                    return false;
                }
                *count -= 1;
                if children[position].size() == 0 {
                    children.remove(position);
                    bounds.remove(position);
                } else if position + 1 < children.len()
                    && children[position].size() + children[position + 1].size() <= JOIN
                {
                    join(bounds, children, position);
                } else if position > 0 && children[position - 1].size() + children[position].size() <= JOIN {
                    join(bounds, children, position - 1);
                }
                true
            }
        }
    }

    fn release(&mut self, left: &mut usize) {
        match self {
            Self::Leaf(entries) => {
                *left = left.saturating_sub(entries.len().max(1));
                entries.clear();
            }
            Self::Inner { count, bounds, children } => {
                while *left > 0
                    && let Some(child) = children.last_mut()
                {
                    child.release(left);
                    if child.count() == 0 {
                        children.pop();
                        bounds.pop();
                    }
                }
                *count = children.iter().map(Node::count).sum();
            }
        }
    }

    #[cfg(test)]
    fn check(&self) {
        if let Self::Inner { count, bounds, children } = self {
            assert_eq!(*count, children.iter().map(Node::count).sum::<usize>());
            assert_eq!(bounds.len(), children.len());
            assert!(children.len() <= FAN && !children.is_empty());
            for child in children {
                assert!(child.size() > 0);
                child.check();
            }
        }
    }
}

/// Joins a child with the one after it.
fn join(bounds: &mut Vec<Entry>, children: &mut Vec<Node>, position: usize) {
    let right = children.remove(position + 1);
    let right_bound = bounds.remove(position + 1);
    match (&mut children[position], right) {
        (Node::Leaf(left), Node::Leaf(right)) => left.extend(right),
        (
            Node::Inner { count, bounds, children },
            Node::Inner { count: more, bounds: mut more_bounds, children: more_children },
        ) => {
            *count += more;
            // A first bound may be stale (it is never compared); here it becomes one that is.
            more_bounds[0] = right_bound;
            bounds.extend(more_bounds);
            children.extend(more_children);
        }
        // All children of a node have the same height.
        _ => unreachable!("children of one height"),
    }
}
