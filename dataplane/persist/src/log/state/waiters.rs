//! Tasks and functions that wait for records to become durable.
//!
//! 1. Sequences grow, and so do the sequences of waiters, nearly: the list is kept in order and
//!    [`crate::Log::poll`] serves its front.
//! 2. After a failure all waiters are called at once: nothing will become durable any more.

use std::collections::VecDeque;
use std::task::Waker;

use crate::error::Failure;
use crate::log::options::Sequence;

/// The action when a record is durable, or never will be.
pub enum Waiter {
    /// A task is woken; it reads [`crate::Log::durable`] and [`crate::Log::failed`].
    Wake(Waker),
    /// A function is called. It has no access to the log.
    Call(Box<dyn FnOnce(Result<Sequence, Failure>) + Send>),
}

impl Waiter {
    /// Calls `function` with the durable sequence, or with why there will be none.
    pub fn call(function: impl FnOnce(Result<Sequence, Failure>) + Send + 'static) -> Self {
        Self::Call(Box::new(function))
    }

    fn notify(self, durable: Sequence, failure: Option<&Failure>) {
        match self {
            Self::Wake(waker) => waker.wake(),
            Self::Call(function) => function(failure.map_or(Ok(durable), |failure| Err(failure.clone()))),
        }
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Wake(_) => "Waiter::Wake",
            Self::Call(_) => "Waiter::Call",
        })
    }
}

/// Waiters in the order of their sequences.
#[derive(Default)]
pub(in crate::log) struct Waiters {
    list: VecDeque<(Sequence, Waiter)>,
}

impl Waiters {
    pub(in crate::log) fn insert(&mut self, sequence: Sequence, waiter: Waiter) {
        let place = self.list.partition_point(|(other, _)| *other <= sequence);
        self.list.insert(place, (sequence, waiter));
    }

    /// Calls the waiters whose record is durable, or all of them after a failure.
    pub(in crate::log) fn notify(&mut self, durable: Sequence, failure: Option<&Failure>) {
        while let Some((sequence, _)) = self.list.front()
            && (*sequence <= durable || failure.is_some())
        {
            let reached = *sequence <= durable;
            if let Some((_, waiter)) = self.list.pop_front() {
                waiter.notify(durable, failure.filter(|_| !reached));
            }
        }
    }
}
