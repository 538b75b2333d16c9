//! Persistent memory that keeps only what its contract promises (see `sietch_disk::nvm`).
//!
//! 1. [`Memory`] survives a crash: it has a durable image, and the stores since the last fence.
//!    Loads return the newest value. Clones are the same memory.
//! 2. A fence makes the newest value of every word durable.
//! 3. Each store and each fence is a *boundary*. [`Memory::power_off_at`] cuts the power at the
//!    n-th, which then has no effect, nor does anything after it.
//!    Memories that are [`Memory::joined`] lose their power together.
//! 4. [`Memory::crash`] decides each word of 8 bytes alone: its durable value or any newer one.
//! 5. [`Memory::ignore_fences`] is the mutation that a test of durability must notice.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use sietch_disk::nvm::{Medium, TEAR};

use crate::Random;

#[derive(Debug)]
struct State {
    durable: Vec<u8>,
    newest: Vec<u8>,
    /// Stores since the last fence, oldest first: the first word of each, and how many.
    unfenced: Vec<(usize, usize)>,
    /// The words of these stores, in the same order.
    stored: Vec<u8>,
    boundaries: u64,
    off_at: Option<u64>,
    /// Whether the power is off, for all that it feeds.
    off: Rc<Cell<bool>>,
    fences_ignored: bool,
}

/// The module's header describes it.
#[derive(Debug, Clone)]
pub struct Memory {
    state: Rc<RefCell<State>>,
}

impl Memory {
    /// Zeroed memory of `bytes`, a multiple of [`TEAR`].
    pub fn new(bytes: usize) -> Self {
        Self {
            state: Rc::new(RefCell::new(State {
                durable: vec![0; bytes],
                newest: vec![0; bytes],
                unfenced: Vec::new(),
                stored: Vec::new(),
                boundaries: 0,
                off_at: None,
                off: Rc::default(),
                fences_ignored: false,
            })),
        }
    }

    /// The same memory, which from now on loses its power when `other` does, and the other way
    /// round.
    #[must_use]
    pub fn joined(self, other: &Self) -> Self {
        self.state.borrow_mut().off = Rc::clone(&other.state.borrow().off);
        self
    }

    /// Boundaries passed so far.
    pub fn boundaries(&self) -> u64 {
        self.state.borrow().boundaries
    }

    /// Cuts the power at the `boundary`-th boundary from the beginning (the first is 1).
    pub fn power_off_at(&self, boundary: u64) {
        self.state.borrow_mut().off_at = Some(boundary);
    }

    /// Whether the power is off: results since then do not count.
    pub fn is_off(&self) -> bool {
        self.state.borrow().off.get()
    }

    /// From now on a fence does nothing.
    pub fn ignore_fences(&self) {
        self.state.borrow_mut().fences_ignored = true;
    }

    /// Restores power after a loss: every word without a fence is old or new at random.
    pub fn crash(&self, dice: &mut Random) {
        let state = &mut *self.state.borrow_mut();
        let stored = std::mem::take(&mut state.stored);
        let mut stored = stored.as_chunks::<TEAR>().0.iter();
        let mut newer = BTreeMap::<usize, Vec<_>>::new();
        for (first, count) in state.unfenced.drain(..) {
            for (word, value) in (first..first + count).zip(stored.by_ref()) {
                newer.entry(word).or_default().push(*value);
            }
        }
        for (word, values) in newer {
            if let Some(newer) = dice.index(values.len() + 1).checked_sub(1) {
                state.durable[word * TEAR..][..TEAR].copy_from_slice(&values[newer]);
            }
        }
        state.newest.copy_from_slice(&state.durable);
        state.off.set(false);
        state.off_at = None;
    }
}

impl State {
    /// Passes a boundary; `false` when there is no power for the next operation.
    fn boundary(&mut self) -> bool {
        self.boundaries += 1;
        self.off.set(self.off.get() || self.off_at.is_some_and(|at| self.boundaries >= at));
        !self.off.get()
    }
}

impl Medium for Memory {
    fn len(&self) -> usize {
        self.state.borrow().newest.len()
    }

    fn load(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.state.borrow().newest[offset..offset + out.len()]);
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        let state = &mut *self.state.borrow_mut();
        if !state.boundary() {
            return;
        }
        state.newest[offset..offset + bytes.len()].copy_from_slice(bytes);
        let words = bytes.as_chunks::<TEAR>().0;
        state.unfenced.push((offset / TEAR, words.len()));
        state.stored.extend_from_slice(words.as_flattened());
    }

    fn fence(&mut self) {
        let state = &mut *self.state.borrow_mut();
        if !state.boundary() || state.fences_ignored {
            return;
        }
        for (first, count) in state.unfenced.drain(..) {
            let at = first * TEAR..(first + count) * TEAR;
            state.durable[at.clone()].copy_from_slice(&state.newest[at]);
        }
        state.stored.clear();
    }

    fn description(&self) -> &'static str {
        "simulated persistent memory"
    }
}
