//! Nodes in memory.
//!
//! 1. A node has a *frame*, found by its block. The frame counts only for a pointer with the same
//!    generation and checksum: a block that was written again is never taken for the old node.
//! 2. A *dirty* node belongs to the change that is being made. Its pointer has the generation of
//!    that change and no checksum yet. It stays until it is written.
//! 3. Clean nodes are bounded. Where there are too many, the clock hand takes one that was not used
//!    since it last passed.

use hashbrown::HashMap;

use super::node::{Node, Pointer};

/// A place for a node in a [`Cache`]. It is valid until a clean node is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame(u32);

#[derive(Debug)]
struct Content {
    pointer: Pointer,
    node: Node,
    state: State,
    /// Since the clock hand passed.
    used: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Vacant,
    Clean,
    Dirty,
}

/// See the module's account.
#[derive(Debug)]
pub(crate) struct Cache {
    index: HashMap<u32, u32, foldhash::fast::FixedState>,
    contents: Vec<Content>,
    vacant: Vec<u32>,
    hand: usize,
    clean: usize,
    dirty: usize,
    limit: usize,
}

impl Cache {
    /// A cache for `limit` clean nodes, at least two.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            index: HashMap::default(),
            contents: Vec::new(),
            vacant: Vec::new(),
            hand: 0,
            clean: 0,
            dirty: 0,
            limit: limit.max(2),
        }
    }

    /// Nodes that are not written yet.
    pub(crate) fn dirty(&self) -> usize {
        self.dirty
    }

    /// The frame of a node that is in memory.
    #[inline]
    pub(crate) fn find(&mut self, pointer: Pointer) -> Option<Frame> {
        let frame = *self.index.get(&pointer.block)?;
        let content = self.contents.get_mut(frame as usize)?;
        let is_it = match content.state {
            State::Dirty => content.pointer.generation == pointer.generation,
            State::Clean => content.pointer == pointer,
            State::Vacant => false,
        };
        if is_it {
            content.used = true;
            return Some(Frame(frame));
        }
        None
    }

    #[inline]
    pub(crate) fn node(&self, frame: Frame) -> &Node {
        &self.contents[frame.0 as usize].node
    }

    pub(crate) fn node_mut(&mut self, frame: Frame) -> &mut Node {
        &mut self.contents[frame.0 as usize].node
    }

    #[inline]
    pub(crate) fn pointer(&self, frame: Frame) -> Pointer {
        self.contents[frame.0 as usize].pointer
    }

    pub(crate) fn is_dirty(&self, frame: Frame) -> bool {
        self.contents[frame.0 as usize].state == State::Dirty
    }

    /// Adds a node that was read. Another one may go.
    pub(crate) fn add_clean(&mut self, pointer: Pointer, node: Node) -> Frame {
        while self.clean >= self.limit && self.evict() {}
        self.clean += 1;
        self.add(pointer, node, State::Clean)
    }

    /// Adds a node that was made.
    pub(crate) fn add_dirty(&mut self, pointer: Pointer, node: Node) -> Frame {
        self.dirty += 1;
        self.add(pointer, node, State::Dirty)
    }

    fn add(&mut self, pointer: Pointer, node: Node, state: State) -> Frame {
        let content = Content { pointer, node, state, used: true };
        let frame = match self.vacant.pop() {
            Some(frame) => {
                self.contents[frame as usize] = content;
                frame
            }
            None => {
                self.contents.push(content);
                // Fewer nodes than blocks.
                (self.contents.len() - 1) as u32
            }
        };
        self.bind(pointer.block, frame);
        Frame(frame)
    }

    fn bind(&mut self, block: u32, frame: u32) {
        if let Some(older) = self.index.insert(block, frame)
            && older != frame
        {
            self.vacate(older);
        }
    }

    /// A node moves to a new place, where the change may write it.
    pub(crate) fn make_dirty(&mut self, frame: Frame, pointer: Pointer) {
        let content = &mut self.contents[frame.0 as usize];
        let old = std::mem::replace(&mut content.pointer, pointer);
        if content.state == State::Clean {
            (self.clean, self.dirty) = (self.clean - 1, self.dirty + 1);
        }
        content.state = State::Dirty;
        content.node.set_generation(pointer.generation);
        self.index.remove(&old.block);
        self.bind(pointer.block, frame.0);
    }

    /// A node has its checksum.
    pub(crate) fn set_checksum(&mut self, frame: Frame, checksum: u32) {
        self.contents[frame.0 as usize].pointer.checksum = checksum;
    }

    /// A node was written, and its pointer is final.
    pub(crate) fn make_clean(&mut self, frame: Frame) {
        let content = &mut self.contents[frame.0 as usize];
        if content.state == State::Dirty {
            content.state = State::Clean;
            (self.clean, self.dirty) = (self.clean + 1, self.dirty - 1);
        }
    }

    /// Takes away what is too much.
    pub(crate) fn trim(&mut self) {
        while self.clean > self.limit && self.evict() {}
    }

    /// A node goes.
    pub(crate) fn remove(&mut self, frame: Frame) {
        let block = self.contents[frame.0 as usize].pointer.block;
        if self.index.get(&block) == Some(&frame.0) {
            self.index.remove(&block);
        }
        self.vacate(frame.0);
    }

    fn vacate(&mut self, frame: u32) {
        let content = &mut self.contents[frame as usize];
        match content.state {
            State::Vacant => return,
            State::Clean => self.clean -= 1,
            State::Dirty => self.dirty -= 1,
        }
        content.state = State::Vacant;
        content.node = Node::vacant();
        self.vacant.push(frame);
    }

    /// Takes a clean node away; `false` if there is none.
    fn evict(&mut self) -> bool {
        if self.clean == 0 {
            return false;
        }
        // The second time round, none is marked as used.
        for _ in 0..2 * self.contents.len() + 1 {
            self.hand = if self.hand + 1 < self.contents.len() { self.hand + 1 } else { 0 };
            let content = &mut self.contents[self.hand];
            if content.state != State::Clean {
                continue;
            }
            if !std::mem::take(&mut content.used) {
                // As many as nodes.
                self.remove(Frame(self.hand as u32));
                return true;
            }
        }
        false
    }
}
