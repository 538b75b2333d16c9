//! What there is under the mount, and the numbers by which the kernel knows it.
//!
//! 1. The root holds volumes, a volume holds areas and the views of those whose holders show one.
//! 2. A number is made from the path, so that it stays the same from one look to the next; should
//!    two paths share one, the second gets the next that is free.
//! 3. A number is kept for as long as the kernel remembers it: it says how often it was told of one
//!    (`lookup`) and how many of these it has forgotten.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::views::Path;

/// The number of the root.
pub(super) const ROOT: u64 = 1;

/// Something under the mount.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// The mounted directory.
    Root,
    /// A directory of areas.
    Volume(String),
    /// A file: the bytes of an area, by its path `/VOLUME/NAME`.
    Area(String),
    /// Something in the view of an area.
    View(Path),
}

struct Known {
    node: Node,
    lookups: u64,
}

/// The numbers that the kernel knows.
#[derive(Default)]
pub(super) struct Nodes {
    known: HashMap<u64, Known>,
}

impl Nodes {
    /// What `number` stands for.
    pub(super) fn get(&self, number: u64) -> Option<Node> {
        if number == ROOT {
            return Some(Node::Root);
        }
        self.known.get(&number).map(|known| known.node.clone())
    }

    /// The number that `node` has, or would get.
    pub(super) fn number(&self, node: &Node) -> u64 {
        if *node == Node::Root {
            return ROOT;
        }
        let mut hasher = DefaultHasher::new();
        node.hash(&mut hasher);
        // The numbers up to the root's are taken.
        let mut number = hasher.finish().max(ROOT + 1);
        while self.known.get(&number).is_some_and(|known| known.node != *node) {
            number = number.wrapping_add(1).max(ROOT + 1);
        }
        number
    }

    /// The kernel is told of `node`, once more.
    pub(super) fn told(&mut self, node: &Node) -> u64 {
        let number = self.number(node);
        if number != ROOT {
            self.known.entry(number).or_insert_with(|| Known { node: node.clone(), lookups: 0 }).lookups += 1;
        }
        number
    }

    /// The kernel has forgotten `lookups` of the times that it was told of `number`.
    pub(super) fn forget(&mut self, number: u64, lookups: u64) {
        if let Some(known) = self.known.get_mut(&number) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                self.known.remove(&number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_one_thing_until_the_kernel_has_forgotten_it_as_often_as_it_was_told() {
        let mut nodes = Nodes::default();
        let (a, b) = (Node::Area("/main/a".to_owned()), Node::Volume("main".to_owned()));
        let (first, second) = (nodes.told(&a), nodes.told(&b));
        assert_ne!(first, second);
        assert_eq!(nodes.told(&a), first);
        nodes.forget(first, 1);
        assert_eq!(nodes.get(first), Some(a.clone()));
        nodes.forget(first, 1);
        assert_eq!(nodes.get(first), None);
        assert_eq!(nodes.number(&a), first, "another number for the same path");
        assert_eq!(nodes.get(ROOT), Some(Node::Root));
        nodes.forget(ROOT, 5);
        assert_eq!(nodes.get(ROOT), Some(Node::Root));
    }

    #[test]
    fn two_paths_that_share_a_number_get_two() {
        let mut nodes = Nodes::default();
        let (a, b) = (Node::Area("/main/a".to_owned()), Node::Area("/main/b".to_owned()));
        let number = nodes.number(&a);
        nodes.known.insert(number, Known { node: b.clone(), lookups: 1 });
        assert_eq!(nodes.told(&a), number + 1);
        assert_eq!((nodes.get(number), nodes.get(number + 1)), (Some(b), Some(a)));
    }
}
