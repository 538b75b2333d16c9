//! Spawning tasks, and the handles that wait for them.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::state::Net;
use super::tasks::WakerCell;

/// What a task leaves for its [`JoinHandle`].
struct Outcome<T> {
    value: Cell<Option<T>>,
    joiner: WakerCell,
    ended: Cell<bool>,
}

/// Marks a task as ended when it is dropped, whatever ended it.
struct EndGuard<T>(Rc<Outcome<T>>);

impl<T> Drop for EndGuard<T> {
    fn drop(&mut self) {
        self.0.ended.set(true);
        self.0.joiner.wake();
    }
}

/// A spawned task. Await it for its value; dropped, the task continues.
pub struct JoinHandle<T> {
    outcome: Rc<Outcome<T>>,
    net: Net,
    index: u32,
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinHandle").field("task", &self.index).finish_non_exhaustive()
    }
}

/// A task was aborted before it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task was aborted before it was done")]
pub struct Aborted;

impl<T> JoinHandle<T> {
    /// Ends the task: it is dropped instead of run the next time.
    pub fn abort(&self) {
        if !self.outcome.ended.get() {
            self.net.0.tasks.abort(self.index);
        }
    }

    /// The task's value, once it is done, and once only.
    pub(super) fn take(&self) -> Option<T> {
        self.outcome.value.take()
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.outcome.ended.get()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Aborted>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(value) = self.outcome.value.take() {
            return Poll::Ready(Ok(value));
        }
        if self.outcome.ended.get() {
            return Poll::Ready(Err(Aborted));
        }
        self.outcome.joiner.set(context);
        Poll::Pending
    }
}

impl Net {
    /// Runs `future` as a task of its own.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let outcome = Rc::new(Outcome {
            value: Cell::new(None),
            joiner: WakerCell::default(),
            ended: Cell::new(false),
        });
        let guard = EndGuard(Rc::clone(&outcome));
        let index = self.0.tasks.spawn(Box::pin(async move {
            let value = future.await;
            guard.0.value.set(Some(value));
        }));
        JoinHandle { outcome, net: self.clone(), index }
    }
}
