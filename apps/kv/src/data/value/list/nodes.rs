//! The nodes of a big list.
//!
//! 1. A node takes entries until it has the bytes, or the entries, that `list-max-listpack-size`
//!    allows ([`ListNode`]); an entry that is longer has a node of its own.
//! 2. An insertion into a full node splits it. A removal merges a node with a neighbour when both
//!    together have at most [`MERGE_BYTES`], far from the next split.
//! 3. No node is empty.

use std::collections::VecDeque;

use super::node::{Node, content_of, matching};
use crate::data::value::form::Large;
use crate::data::value::packed::{Content, Encoded, Entries, read};
use crate::foundation::allocation::allocation;
use crate::foundation::settings::ListNode;

/// Neighbours merge when together they have at most this: half of the smallest node by bytes.
const MERGE_BYTES: usize = 2 << 10;

/// A big list.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    nodes: VecDeque<Node>,
    len: usize,
    /// Bytes of the nodes' allocations.
    bytes: usize,
    /// Bytes of the elements in effects.
    content: usize,
}

impl Large for Nodes {
    fn len(&self) -> usize {
        self.len
    }

    fn memory(&self) -> usize {
        allocation(self.nodes.capacity() * size_of::<Node>()) + self.bytes
    }

    fn content(&self) -> usize {
        self.content
    }

    fn release(&mut self, budget: usize) -> bool {
        let mut left = budget;
        while left > 0
            && let Some(node) = self.nodes.pop_back()
        {
            self.bytes -= node.memory();
            self.len -= node.count();
            left = left.saturating_sub(node.count());
        }
        self.nodes.is_empty()
    }
}

impl Nodes {
    /// A list of entries that are packed already.
    pub(super) fn of(entries: &[u8], count: usize, content: usize) -> Self {
        let nodes: VecDeque<Node> =
            (count > 0).then(|| Node::of_packed(entries, count)).into_iter().collect();
        let bytes = nodes.iter().map(Node::memory).sum();
        Self { nodes, len: count, bytes, content }
    }

    /// Changes the node number `number`, and counts its bytes.
    fn change<R>(&mut self, number: usize, change: impl FnOnce(&mut Node) -> R) -> R {
        let node = &mut self.nodes[number];
        self.bytes -= node.memory();
        let result = change(node);
        self.bytes += node.memory();
        result
    }

    fn insert_node(&mut self, number: usize, node: Node) {
        self.bytes += node.memory();
        self.nodes.insert(number, node);
    }

    /// Removes the node number `number` if it is empty, or merges it with a neighbour if both are
    /// small.
    fn tidy(&mut self, number: usize) {
        if self.nodes[number].count() == 0 {
            self.remove_node(number);
        } else if number + 1 < self.nodes.len() && self.are_small(number) {
            self.merge(number);
        } else if number > 0 && self.are_small(number - 1) {
            self.merge(number - 1);
        }
    }

    fn are_small(&self, number: usize) -> bool {
        self.nodes[number].used() + self.nodes[number + 1].used() <= MERGE_BYTES
    }

    /// Merges a node with the next one.
    fn merge(&mut self, number: usize) {
        if let Some(next) = self.remove_node(number + 1) {
            self.change(number, |node| node.append(&next));
        }
    }

    fn remove_node(&mut self, number: usize) -> Option<Node> {
        let node = self.nodes.remove(number)?;
        self.bytes -= node.memory();
        if self.nodes.capacity() > 4 * self.nodes.len() + 4 {
            self.nodes.shrink_to(2 * self.nodes.len());
        }
        Some(node)
    }

    /// Puts an entry, which takes `content` bytes in effects, at one end.
    pub(super) fn push(&mut self, front: bool, entry: &Encoded<'_>, content: usize, limit: ListNode) {
        self.len += 1;
        self.content += content;
        let number = if front { 0 } else { self.nodes.len().saturating_sub(1) };
        let end = self.nodes.get(number);
        if end.is_some_and(|node| allows(node, entry, limit)) {
            return self
                .change(number, |node| if front { node.push_front(entry) } else { node.push_back(entry) });
        }
        if end.is_some() {
            self.change(number, Node::seal);
        }
        self.insert_node(if front { 0 } else { self.nodes.len() }, Node::of_entry(entry));
    }

    /// Takes the element at one end.
    pub(super) fn pop(&mut self, front: bool) -> Option<Box<[u8]>> {
        let number = if front { 0 } else { self.nodes.len().checked_sub(1)? };
        let node = self.nodes.get(number)?;
        let (at, _) = node.end_entry(front);
        let content = read(node.bytes(), at).0;
        let element = Box::from(&*content.text());
        self.len -= 1;
        self.content -= content_of(content);
        if node.count() == 1 {
            self.remove_node(number);
        } else {
            self.change(number, |node| node.pop(front));
        }
        Some(element)
    }

    /// The node that holds `index`, and the entry's number within it.
    fn find(&self, index: usize) -> Option<(usize, usize)> {
        if index >= self.len {
            return None;
        }
        if index < self.len / 2 {
            let mut left = index;
            for (number, node) in self.nodes.iter().enumerate() {
                if left < node.count() {
                    return Some((number, left));
                }
                left -= node.count();
            }
        } else {
            let mut left = self.len - index;
            for (number, node) in self.nodes.iter().enumerate().rev() {
                if left <= node.count() {
                    return Some((number, node.count() - left));
                }
                left -= node.count();
            }
        }
        None
    }

    /// The element at `index`.
    pub(super) fn get(&self, index: usize) -> Option<Content<'_>> {
        let (number, entry) = self.find(index)?;
        let node = &self.nodes[number];
        Some(read(node.bytes(), node.position(entry)).0)
    }

    /// Replaces the element at `index`, which exists.
    pub(super) fn set(&mut self, index: usize, entry: &Encoded<'_>, content: usize, limit: ListNode) {
        let Some((number, within)) = self.find(index) else { return };
        let node = &self.nodes[number];
        let at = node.position(within);
        let (old, end) = read(node.bytes(), at);
        self.content -= content_of(old);
        if node.count() == 1 || node.used() - (end - at) + entry.size() <= limit.bytes {
            self.content += content;
            self.change(number, |node| node.splice(at, end - at, 1, Some(entry)));
            return;
        }
        // The node would be too large: the new element takes the place of the old one in another.
        self.len -= 1;
        self.change(number, |node| node.splice(at, end - at, 1, None));
        self.insert(index, entry, content, limit);
    }

    /// Puts an entry before the element at `index`, which may be the length.
    pub(super) fn insert(&mut self, index: usize, entry: &Encoded<'_>, content: usize, limit: ListNode) {
        let Some((number, within)) = self.find(index) else {
            return self.push(false, entry, content, limit);
        };
        self.len += 1;
        self.content += content;
        let node = &self.nodes[number];
        let at = node.position(within);
        if allows(node, entry, limit) {
            return self.change(number, |node| node.splice(at, 0, 0, Some(entry)));
        }
        if within > 0 {
            let second = self.change(number, |node| node.split(at, within));
            self.insert_node(number + 1, second);
            if allows(&self.nodes[number], entry, limit) {
                return self.change(number, |node| node.push_back(entry));
            }
            if allows(&self.nodes[number + 1], entry, limit) {
                return self.change(number + 1, |node| node.splice(0, 0, 0, Some(entry)));
            }
            self.insert_node(number + 1, Node::of_entry(entry));
        } else if number > 0 && allows(&self.nodes[number - 1], entry, limit) {
            self.change(number - 1, |node| node.push_back(entry));
        } else {
            self.insert_node(number, Node::of_entry(entry));
        }
    }

    /// See [`List::remove_equal`](super::List::remove_equal).
    pub(super) fn remove_equal(
        &mut self,
        entry: &Encoded<'_>,
        content: usize,
        limit: usize,
        from_back: bool,
        head: usize,
    ) -> (usize, usize) {
        let (mut removed, mut removed_of_head) = (0, 0);
        // Elements that were passed, from the end where the search began.
        let mut passed = 0;
        for step in 0..self.nodes.len() {
            let number = if from_back { self.nodes.len() - 1 - step } else { step };
            let node = &self.nodes[number];
            let first = if from_back { self.len - passed - node.count() } else { passed };
            passed += node.count();
            let mut matches = matching(node.bytes(), node.start(), node.end(), entry);
            let take = matches.len().min(limit - removed);
            if from_back {
                matches.drain(..matches.len() - take);
            }
            matches.truncate(take);
            removed += take;
            removed_of_head += matches.iter().filter(|&&(within, _)| first + within < head).count();
            if take > 0 {
                self.change(number, |node| node.remove_all(&matches, entry.size()));
            }
            if removed == limit {
                break;
            }
        }
        if removed > 0 {
            self.len -= removed;
            self.content -= removed * content;
            self.merge_all();
        }
        (removed, removed_of_head)
    }

    /// Removes empty nodes and merges small neighbours.
    fn merge_all(&mut self) {
        let mut merged: VecDeque<Node> = VecDeque::new();
        for node in self.nodes.drain(..).filter(|node| node.count() > 0) {
            match merged.back_mut() {
                Some(last) if last.used() + node.used() <= MERGE_BYTES => last.append(&node),
                _ => merged.push_back(node),
            }
        }
        self.bytes = merged.iter().map(Node::memory).sum();
        self.nodes = merged;
    }

    /// Keeps the elements from `start` to `end`.
    pub(super) fn trim(&mut self, start: usize, end: usize) {
        self.drop_back(self.len - end);
        self.drop_front(start);
    }

    fn drop_front(&mut self, mut count: usize) {
        while count > 0
            && let Some(node) = self.nodes.front()
        {
            if node.count() <= count {
                count -= node.count();
                self.drop_node(0);
                continue;
            }
            let at = node.position(count);
            let content: usize = Entries::between(node.bytes(), node.start(), at).map(content_of).sum();
            self.drop_entries(0, node.start(), at, count, content);
            return;
        }
    }

    fn drop_back(&mut self, mut count: usize) {
        while count > 0
            && let Some(node) = self.nodes.back()
        {
            let last = self.nodes.len() - 1;
            if node.count() <= count {
                count -= node.count();
                self.drop_node(last);
                continue;
            }
            let at = node.position(node.count() - count);
            let content: usize = node.iter_from(at).map(content_of).sum();
            self.drop_entries(last, at, node.end(), count, content);
            return;
        }
    }

    fn drop_node(&mut self, number: usize) {
        if let Some(node) = self.remove_node(number) {
            self.len -= node.count();
            self.content -= node.iter().map(content_of).sum::<usize>();
        }
    }

    /// Drops `count` entries between two positions of a node.
    fn drop_entries(&mut self, number: usize, from: usize, to: usize, count: usize, content: usize) {
        self.len -= count;
        self.content -= content;
        self.change(number, |node| node.splice(from, to - from, count, None));
        self.tidy(number);
    }

    /// All elements.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = Content<'_>> {
        self.nodes.iter().flat_map(Node::iter)
    }

    /// The elements of the first node from `start` on, and those of the other nodes.
    pub(super) fn iter_from(&self, start: usize) -> (Entries<'_>, impl Iterator<Item = Content<'_>>) {
        let (number, first) = match self.find(start) {
            Some((number, within)) => {
                let node = &self.nodes[number];
                (number + 1, node.iter_from(node.position(within)))
            }
            None => (self.nodes.len(), Entries::between(&[], 0, 0)),
        };
        (first, self.nodes.range(number..).flat_map(Node::iter))
    }
}

/// Whether a node takes one more entry.
fn allows(node: &Node, entry: &Encoded<'_>, limit: ListNode) -> bool {
    node.used() + entry.size() <= limit.bytes && node.count() < limit.entries
}
