//! The tree under the mount, and its inode numbers.
//!
//! 1. The root holds volumes; a volume holds areas, and the views of areas whose holders show one.
//! 2. An inode number is a hash of the path, so it stays the same from one lookup to the next. If
//!    two paths collide, the second gets the next free number.
//! 3. A number is kept as long as the kernel references it: the kernel reports how many lookups
//!    (`lookup`) it has forgotten.

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
    /// The node with this number.
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

    /// Counts a lookup of `node`, and returns its number.
    pub(super) fn looked_up(&mut self, node: &Node) -> u64 {
        let number = self.number(node);
        if number != ROOT {
            self.known.entry(number).or_insert_with(|| Known { node: node.clone(), lookups: 0 }).lookups += 1;
        }
        number
    }

    /// The kernel has forgotten `lookups` lookups of `number`.
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
    fn a_number_names_one_node_until_the_kernel_has_forgotten_every_lookup() {
        let mut nodes = Nodes::default();
        let (a, b) = (Node::Area("/main/a".to_owned()), Node::Volume("main".to_owned()));
        let (first, second) = (nodes.looked_up(&a), nodes.looked_up(&b));
        assert_ne!(first, second);
        assert_eq!(nodes.looked_up(&a), first);
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
        assert_eq!(nodes.looked_up(&a), number + 1);
        assert_eq!((nodes.get(number), nodes.get(number + 1)), (Some(b), Some(a)));
    }
}
