//! Deadlines of sleeping tasks, in a tree by time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::Waker;

/// A deadline and a number that distinguishes it from others at the same time.
pub(super) type DeadlineKey = (u64, u64);

/// Deadlines and the tasks that they wake.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    waiting: RefCell<BTreeMap<DeadlineKey, Waker>>,
    next: Cell<u64>,
}

impl Deadlines {
    /// A new key for `deadline`.
    pub(super) fn key(&self, deadline: u64) -> DeadlineKey {
        self.next.set(self.next.get() + 1);
        (deadline, self.next.get())
    }

    /// Wakes `waker` at the deadline of `key`.
    pub(super) fn set(&self, key: DeadlineKey, waker: Waker) {
        self.waiting.borrow_mut().insert(key, waker);
    }

    /// Removes a deadline.
    pub(super) fn remove(&self, key: DeadlineKey) {
        self.waiting.borrow_mut().remove(&key);
    }

    /// The earliest deadline.
    pub(super) fn earliest(&self) -> Option<u64> {
        self.waiting.borrow().first_key_value().map(|(key, _)| key.0)
    }

    /// Wakes every task whose deadline has passed.
    pub(super) fn expire(&self, now: u64) {
        loop {
            let due = {
                let mut waiting = self.waiting.borrow_mut();
                match waiting.first_entry() {
                    Some(first) if first.key().0 <= now => first.remove(),
                    _ => return,
                }
            };
            due.wake();
        }
    }
}
