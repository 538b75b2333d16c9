//! The tasks of a runtime, which all run on its thread, and how they are woken.
//!
//! 1. A task is a boxed future in a slot of a table. Its waker holds the slot's number and a flag
//!    that says whether the task is queued already. The waker is made once for each slot; cloning
//!    it increments a count.
//! 2. A wake-up within the runtime's own iteration pushes the number on a list of the thread: no
//!    lock, no system call.
//! 3. A wake-up from elsewhere (another thread, or between iterations) takes a lock, and writes to
//!    the doorbell if the loop sleeps. The loop says that it is about to sleep *before* it checks
//!    the list for the last time, and the waker puts the task on the list *before* it checks
//!    whether the loop sleeps. So one of the two sees the other.
//! 4. An iteration runs at most [`TASKS_PER_ITERATION`] tasks, so that tasks which wake each other
//!    cannot keep packets waiting.
//! 5. A stale waker, of a task that has ended, wakes the slot's next task without need: harmless.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};

/// Tasks that one iteration runs at most: enough for every frame of a batch to wake one.
const TASKS_PER_ITERATION: usize = 256;

/// Numbers runtimes.
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The runtime whose iteration runs on this thread, or 0.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    /// Tasks that it is to run.
    static READY: RefCell<VecDeque<u32>> = const { RefCell::new(VecDeque::new()) };
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// What wakers of a runtime share.
#[derive(Debug)]
struct WakeQueue {
    id: u64,
    /// Woken from elsewhere.
    remote: Mutex<Vec<u32>>,
    has_remote: AtomicBool,
    asleep: AtomicBool,
    doorbell: OwnedFd,
}

impl WakeQueue {
    fn push(&self, index: u32) {
        if CURRENT.get() == self.id {
            READY.with_borrow_mut(|ready| ready.push_back(index));
            return;
        }
        self.remote.lock().unwrap_or_else(PoisonError::into_inner).push(index);
        self.has_remote.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            // It can only fail when the counter is full, and then the descriptor is readable
            // already.
            let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
        }
    }
}

/// The waker of a slot.
#[derive(Debug)]
struct TaskWaker {
    index: u32,
    queued: AtomicBool,
    ready: Arc<WakeQueue>,
}

impl Wake for TaskWaker {
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
    /// The task is to be dropped instead of run.
    aborted: bool,
    state: Arc<TaskWaker>,
    waker: Waker,
}

/// All tasks of a runtime.
pub(super) struct Tasks {
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    ready: Arc<WakeQueue>,
    /// Tasks to run that are left over between iterations.
    waiting: RefCell<VecDeque<u32>>,
}

/// Makes the runtime the thread's current one until this is dropped.
struct CurrentRuntime<'a> {
    tasks: &'a Tasks,
    before: u64,
}

impl<'a> CurrentRuntime<'a> {
    fn enter(tasks: &'a Tasks) -> Self {
        let before = CURRENT.replace(tasks.ready.id);
        READY.with_borrow_mut(|ready| std::mem::swap(ready, &mut tasks.waiting.borrow_mut()));
        Self { tasks, before }
    }
}

impl Drop for CurrentRuntime<'_> {
    fn drop(&mut self) {
        READY.with_borrow_mut(|ready| std::mem::swap(ready, &mut self.tasks.waiting.borrow_mut()));
        CURRENT.set(self.before);
    }
}

impl Tasks {
    pub(super) fn new() -> io::Result<Self> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ready = WakeQueue {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            remote: Mutex::new(Vec::new()),
            has_remote: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            doorbell,
        };
        Ok(Self {
            slots: RefCell::default(),
            free: RefCell::default(),
            ready: Arc::new(ready),
            waiting: RefCell::default(),
        })
    }

    /// Adds a task; it runs in this iteration or the next.
    pub(super) fn spawn(&self, task: Task) -> u32 {
        let mut slots = self.slots.borrow_mut();
        let free = self.free.borrow_mut().pop();
        let index = free.unwrap_or_else(|| {
            // Memory ends long before four thousand million tasks.
            let index = slots.len() as u32;
            let ready = Arc::clone(&self.ready);
            let state = Arc::new(TaskWaker { index, queued: AtomicBool::new(false), ready });
            let waker = Waker::from(Arc::clone(&state));
            slots.push(Slot { task: None, used: false, aborted: false, state, waker });
            index
        });
        let slot = &mut slots[index as usize];
        slot.task = Some(task);
        slot.used = true;
        slot.aborted = false;
        slot.state.wake_by_ref();
        index
    }

    /// Drops a task when it is its turn to run next.
    pub(super) fn abort(&self, index: u32) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(index as usize) {
            slot.aborted = true;
            slot.state.wake_by_ref();
        }
    }

    /// Calls `first` as the thread's current runtime, runs the tasks that were woken, then calls
    /// `last`. Returns whether any task ran.
    pub(super) fn iterate(&self, first: impl FnOnce(), last: impl FnOnce()) -> bool {
        let _current = CurrentRuntime::enter(self);
        first();
        self.take_remote();
        let mut ran = 0;
        while ran < TASKS_PER_ITERATION {
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
            slot.state.queued.store(false, Ordering::Release);
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

    /// Announces that the loop is about to sleep: check [`Tasks::is_ready`] once more, then sleep
    /// on [`Tasks::doorbell`].
    pub(super) fn arm(&self) {
        self.ready.asleep.store(true, Ordering::SeqCst);
    }

    /// The loop is awake.
    pub(super) fn disarm(&self) {
        if self.ready.asleep.swap(false, Ordering::SeqCst) {
            // Nothing to read means that no task was woken meanwhile.
            let _ = rustix::io::read(&self.ready.doorbell, &mut [0; 8]);
        }
    }

    /// The descriptor that is readable when a task was woken from elsewhere.
    pub(super) fn doorbell(&self) -> BorrowedFd<'_> {
        self.ready.doorbell.as_fd()
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

/// The task that waits for one event: one at most, the last one to register.
#[derive(Default)]
pub(super) struct WakerCell(Cell<Option<Waker>>);

impl std::fmt::Debug for WakerCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WakerCell")
    }
}

impl WakerCell {
    /// The task of `context` waits from now on, in place of the one before.
    pub(super) fn set(&self, context: &Context<'_>) {
        let before = self.0.take().filter(|waker| waker.will_wake(context.waker()));
        self.0.set(Some(before.unwrap_or_else(|| context.waker().clone())));
    }

    /// Wakes the task that waits, if any.
    pub(super) fn wake(&self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}
