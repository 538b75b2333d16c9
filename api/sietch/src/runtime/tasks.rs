//! Tasks of one thread, and how they are woken.
//!
//! 1. A task is a boxed future in a slot of a table. Its waker holds the slot's number and a mark
//!    that says whether the task is queued already; the waker is made once a slot, and a clone of
//!    it is a count.
//! 2. A wake-up within the runtime's own turn pushes the number on a list of the thread: no lock,
//!    no system call.
//! 3. A wake-up from elsewhere (another thread, or between turns) takes a lock, and rings the bell
//!    if the loop sleeps. The loop says that it is about to sleep *before* it looks at the list for
//!    the last time, and the waker puts the task on the list *before* it looks whether the loop
//!    sleeps: one of the two sees the other.
//! 4. A turn runs at most a bound of tasks, so that tasks which wake each other cannot keep packets
//!    waiting.
//! 5. A stale waker, of a task that has ended, wakes the slot's next task for nothing: harmless.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};

/// Tasks run in one turn: enough for every frame of a batch to wake one, and bounded.
const TURN: usize = 256;

/// Numbers runtimes.
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The runtime whose turn it is in this thread, or 0.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    /// Tasks that it shall run.
    static READY: RefCell<VecDeque<u32>> = const { RefCell::new(VecDeque::new()) };
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// What wakers of a runtime share.
#[derive(Debug)]
struct Ready {
    id: u64,
    /// Woken from elsewhere.
    remote: Mutex<Vec<u32>>,
    has_remote: AtomicBool,
    asleep: AtomicBool,
    bell: OwnedFd,
}

impl Ready {
    fn push(&self, index: u32) {
        if CURRENT.get() == self.id {
            READY.with_borrow_mut(|ready| ready.push_back(index));
            return;
        }
        self.remote.lock().unwrap_or_else(PoisonError::into_inner).push(index);
        self.has_remote.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            // It can only fail when the counter is full, and then the bell is ringing already.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }
}

/// The waker of a slot.
#[derive(Debug)]
struct Mark {
    index: u32,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Mark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.push(self.index);
        }
    }
}

struct Slot {
    task: Option<Task>,
    used: bool,
    /// It shall be dropped instead of run.
    aborted: bool,
    mark: Arc<Mark>,
    waker: Waker,
}

/// All tasks of a runtime.
pub(super) struct Tasks {
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    ready: Arc<Ready>,
    /// What is left over between turns.
    waiting: RefCell<VecDeque<u32>>,
}

/// Makes the runtime the thread's current one until it is dropped.
struct Turn<'a> {
    tasks: &'a Tasks,
    before: u64,
}

impl<'a> Turn<'a> {
    fn begin(tasks: &'a Tasks) -> Self {
        let before = CURRENT.replace(tasks.ready.id);
        READY.with_borrow_mut(|ready| std::mem::swap(ready, &mut tasks.waiting.borrow_mut()));
        Self { tasks, before }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        READY.with_borrow_mut(|ready| std::mem::swap(ready, &mut self.tasks.waiting.borrow_mut()));
        CURRENT.set(self.before);
    }
}

impl Tasks {
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ready = Ready {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            remote: Mutex::new(Vec::new()),
            has_remote: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            bell,
        };
        Ok(Self {
            slots: RefCell::default(),
            free: RefCell::default(),
            ready: Arc::new(ready),
            waiting: RefCell::default(),
        })
    }

    /// Adds a task; it runs in this turn or the next.
    pub(super) fn spawn(&self, task: Task) -> u32 {
        let mut slots = self.slots.borrow_mut();
        let free = self.free.borrow_mut().pop();
        let index = free.unwrap_or_else(|| {
            // Memory ends long before four thousand million tasks.
            let index = slots.len() as u32;
            let ready = Arc::clone(&self.ready);
            let mark = Arc::new(Mark { index, queued: AtomicBool::new(false), ready });
            let waker = Waker::from(Arc::clone(&mark));
            slots.push(Slot { task: None, used: false, aborted: false, mark, waker });
            index
        });
        let slot = &mut slots[index as usize];
        slot.task = Some(task);
        slot.used = true;
        slot.aborted = false;
        slot.mark.wake_by_ref();
        index
    }

    /// Has a task dropped at its next turn.
    pub(super) fn abort(&self, index: u32) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(index as usize) {
            slot.aborted = true;
            slot.mark.wake_by_ref();
        }
    }

    /// Does `first` as the thread's current runtime, runs woken tasks, then does `last`. Returns
    /// whether any ran.
    pub(super) fn turn(&self, first: impl FnOnce(), last: impl FnOnce()) -> bool {
        let _turn = Turn::begin(self);
        first();
        self.take_remote();
        let mut ran = 0;
        while ran < TURN {
            let Some(index) = READY.with_borrow_mut(VecDeque::pop_front) else { break };
            self.run(index);
            ran += 1;
        }
        last();
        ran > 0
    }

    fn take_remote(&self) {
        if self.ready.has_remote.swap(false, Ordering::SeqCst) {
            let mut remote = self.ready.remote.lock().unwrap_or_else(PoisonError::into_inner);
            READY.with_borrow_mut(|ready| ready.extend(remote.drain(..)));
        }
    }

    fn run(&self, index: u32) {
        let (mut task, waker) = {
            let mut slots = self.slots.borrow_mut();
            let slot = &mut slots[index as usize];
            slot.mark.queued.store(false, Ordering::Release);
            let Some(task) = slot.task.take() else { return };
            if slot.aborted {
                slot.used = false;
                drop(slots);
                // Dropping a task may wake and spawn others: nothing is borrowed.
                drop(task);
                self.free.borrow_mut().push(index);
                return;
            }
            (task, slot.waker.clone())
        };
        let outcome = task.as_mut().poll(&mut Context::from_waker(&waker));
        if outcome.is_pending() {
            self.slots.borrow_mut()[index as usize].task = Some(task);
            return;
        }
        drop(task);
        self.slots.borrow_mut()[index as usize].used = false;
        self.free.borrow_mut().push(index);
    }

    /// Whether a task waits to be run.
    pub(super) fn is_ready(&self) -> bool {
        !self.waiting.borrow().is_empty() || self.ready.has_remote.load(Ordering::SeqCst)
    }

    /// Says that the loop is about to sleep: look at [`Tasks::is_ready`] once more, then sleep on
    /// [`Tasks::bell`].
    pub(super) fn arm(&self) {
        self.ready.asleep.store(true, Ordering::SeqCst);
    }

    /// The loop is awake.
    pub(super) fn disarm(&self) {
        if self.ready.asleep.swap(false, Ordering::SeqCst) {
            // Nothing to read means that it did not ring.
            let _ = rustix::io::read(&self.ready.bell, &mut [0; 8]);
        }
    }

    /// What rings when a task was woken from elsewhere.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.ready.bell.as_fd()
    }

    /// Drops all tasks.
    pub(super) fn clear(&self) {
        loop {
            let task = self.slots.borrow_mut().iter_mut().find_map(|slot| slot.task.take());
            // Nothing is borrowed while a task is dropped: it may drop or spawn others.
            if task.is_none() {
                return;
            }
        }
    }

    /// Tasks that have not ended.
    pub(super) fn len(&self) -> usize {
        self.slots.borrow().iter().filter(|slot| slot.used).count()
    }
}

/// Who waits for one thing: one task at most, the last that asked.
#[derive(Default)]
pub(super) struct Waiting(Cell<Option<Waker>>);

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waiting")
    }
}

impl Waiting {
    /// The task of `context` waits from now on.
    pub(super) fn set(&self, context: &Context<'_>) {
        let before = self.0.take().filter(|waker| waker.will_wake(context.waker()));
        self.0.set(Some(before.unwrap_or_else(|| context.waker().clone())));
    }

    /// Wakes who waits, if anybody does.
    pub(super) fn wake(&self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}

/// What a task leaves for who waits for it.
struct Outcome<T> {
    value: Cell<Option<T>>,
    waiting: Waiting,
    over: Cell<bool>,
}

/// Says that a task is over when it is dropped, whatever ended it.
struct Ending<T>(std::rc::Rc<Outcome<T>>);

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        self.0.over.set(true);
        self.0.waiting.wake();
    }
}

/// A task that runs by itself. Await it for its value; drop it and the task goes on.
pub struct JoinHandle<T> {
    outcome: std::rc::Rc<Outcome<T>>,
    net: super::Net,
    index: u32,
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinHandle").field("task", &self.index).finish_non_exhaustive()
    }
}

/// A task was ended before it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task was aborted before it was done")]
pub struct Aborted;

impl<T> JoinHandle<T> {
    /// Ends the task: it is dropped at its next turn.
    pub fn abort(&self) {
        if !self.outcome.over.get() {
            self.net.0.tasks.abort(self.index);
        }
    }

    /// The task's value, once it is done.
    pub(super) fn take(&self) -> Option<T> {
        self.outcome.value.take()
    }

    /// Whether the task is over.
    pub fn is_finished(&self) -> bool {
        self.outcome.over.get()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Aborted>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(value) = self.outcome.value.take() {
            return Poll::Ready(Ok(value));
        }
        if self.outcome.over.get() {
            return Poll::Ready(Err(Aborted));
        }
        self.outcome.waiting.set(context);
        Poll::Pending
    }
}

pub(super) fn spawn<T: 'static>(
    net: &super::Net,
    future: impl Future<Output = T> + 'static,
) -> JoinHandle<T> {
    let outcome = std::rc::Rc::new(Outcome {
        value: Cell::new(None),
        waiting: Waiting::default(),
        over: Cell::new(false),
    });
    let ending = Ending(std::rc::Rc::clone(&outcome));
    let index = net.0.tasks.spawn(Box::pin(async move {
        let value = future.await;
        ending.0.value.set(Some(value));
    }));
    JoinHandle { outcome, net: net.clone(), index }
}
