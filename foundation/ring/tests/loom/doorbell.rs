//! A stream's waiters and its doorbell: two waiters at one end, in threads or in processes, and the
//! other end that notifies, closes or is killed.
//!
//! The doorbell is modelled as the kernel's socket: a byte that is written wakes every thread that
//! sleeps there. A *level* sleep ends while a byte is there. An *edge* sleep ends for a byte that
//! was written since it was last asked, if one still is there then. A lost wake-up is a deadlock,
//! which loom reports. [`old`] is a protocol that loses some: it shows that this model detects
//! that.

// Not loom's, whose drop is a step of the model: a deadlock must be able to unwind.
use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use sietch_ring::stream::waiters::{self, Drain};

/// The kernel's part.
#[derive(Default)]
struct Socket {
    bytes: u32,
    written: u32,
    hung_up: bool,
}

/// One end as both sides see it, with the kernel's part.
struct Endpoint {
    socket: Mutex<Socket>,
    changed: Condvar,
    waiting: [AtomicU64; 2],
    answered: [AtomicU64; 2],
    /// Bytes to read, and room to write.
    there: [AtomicU32; 2],
    draining: AtomicU32,
    /// The thread that was killed.
    dead: AtomicU32,
}

const DATA: usize = 0;
const ROOM: usize = 1;

/// Where a waiter is killed.
#[derive(Clone, Copy, PartialEq)]
enum Killed {
    Asleep,
    Draining,
    Draining1,
}

impl Endpoint {
    fn new() -> Arc<Self> {
        let word = || AtomicU64::new(0);
        Arc::new(Self {
            // A byte of the past is there.
            socket: Mutex::new(Socket { bytes: 1, written: 1, hung_up: false }),
            changed: Condvar::new(),
            waiting: [word(), word()],
            answered: [word(), word()],
            there: [AtomicU32::new(0), AtomicU32::new(0)],
            draining: AtomicU32::new(0),
            dead: AtomicU32::new(0),
        })
    }

    fn kernel<R>(&self, with: impl FnOnce(&mut Socket) -> R) -> R {
        with(&mut self.socket.lock().expect("no thread panics with it"))
    }

    fn sleep(&self, until: impl Fn(&mut Socket) -> bool) {
        let mut socket = self.socket.lock().expect("no thread panics with it");
        while !socket.hung_up && !until(&mut socket) {
            socket = self.changed.wait(socket).expect("no thread panics with it");
        }
    }

    fn write(&self) {
        self.kernel(|socket| (socket.bytes, socket.written) = (socket.bytes + 1, socket.written + 1));
        self.changed.notify_all();
    }

    fn close(&self) {
        self.kernel(|socket| socket.hung_up = true);
        self.changed.notify_all();
    }

    /// The other end makes something ready and notifies.
    fn publish(&self, want: usize) {
        self.there[want].fetch_add(1, Ordering::AcqRel);
        if let Some(request) = waiters::due(&self.waiting[want], &self.answered[want]) {
            self.write();
            waiters::answer(&self.answered[want], request);
        }
    }

    fn take(&self, want: usize) -> bool {
        let word = &self.there[want];
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |there| there.checked_sub(1)).is_ok()
    }

    fn is_ready(&self, want: usize) -> bool {
        self.there[want].load(Ordering::Acquire) != 0 || self.kernel(|socket| socket.hung_up)
    }

    fn count(&self) -> u32 {
        self.waiting.iter().map(waiters::count).sum()
    }

    fn arm(&self, want: usize) {
        waiters::arm(&self.waiting[want]);
        loop {
            let at_it = waiters::is_draining(&self.draining);
            if at_it == 0 {
                return;
            }
            if self.dead.load(Ordering::Acquire) == at_it {
                self.draining.store(0, Ordering::Release);
            } else {
                thread::yield_now();
            }
            waiters::arm_again(&self.waiting[want]);
        }
    }

    /// A call that waits, by `thread`, or is killed.
    fn wait(&self, want: usize, thread: u32, killed: Option<Killed>) {
        while !self.take(want) {
            if self.kernel(|socket| socket.hung_up) {
                return;
            }
            let mut quiet = false;
            if let Some(drain) = Drain::begin(&self.draining, thread) {
                if killed == Some(Killed::Draining) {
                    std::mem::forget(drain);
                    break;
                }
                quiet = self.count() == 0;
                if quiet {
                    self.kernel(|socket| socket.bytes = 0);
                }
                if killed == Some(Killed::Draining1) {
                    std::mem::forget(drain);
                    break;
                }
            }
            let seen = self.kernel(|socket| socket.written);
            self.arm(want);
            if killed.is_some() {
                break;
            }
            if !self.is_ready(want) {
                if quiet {
                    self.sleep(|socket| socket.bytes != 0);
                } else {
                    self.sleep(|socket| socket.bytes != 0 && socket.written != seen);
                }
            }
            waiters::disarm(&self.waiting[want]);
        }
        if killed.is_some() {
            self.dead.store(thread, Ordering::Release);
        }
    }
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // More switches than the loss of a wake-up in the old protocol takes.
    builder.preemption_bound = Some(3);
    builder.check(run);
}

fn two(first: usize, second: usize) {
    model(move || {
        let end = Endpoint::new();
        let (a, b) = (Arc::clone(&end), Arc::clone(&end));
        let a = thread::spawn(move || a.wait(first, 1, None));
        let b = thread::spawn(move || b.wait(second, 2, None));
        end.publish(first);
        end.publish(second);
        a.join().expect("a waiter");
        b.join().expect("a waiter");
        assert_eq!(end.count(), 0);
    });
}

#[test]
fn one_waits_for_data_and_one_for_room() {
    two(DATA, ROOM);
}

#[test]
fn two_wait_for_data() {
    two(DATA, DATA);
}

#[test]
fn the_other_end_closes() {
    model(|| {
        let end = Endpoint::new();
        let (a, b) = (Arc::clone(&end), Arc::clone(&end));
        let a = thread::spawn(move || a.wait(DATA, 1, None));
        let b = thread::spawn(move || b.wait(ROOM, 2, None));
        end.publish(DATA);
        end.close();
        a.join().expect("a waiter");
        b.join().expect("a waiter");
    });
}

#[test]
fn one_of_two_is_killed() {
    for killed in [Killed::Asleep, Killed::Draining, Killed::Draining1] {
        model(move || {
            let end = Endpoint::new();
            let (a, b) = (Arc::clone(&end), Arc::clone(&end));
            let a = thread::spawn(move || a.wait(DATA, 1, None));
            let b = thread::spawn(move || b.wait(ROOM, 2, Some(killed)));
            end.publish(ROOM);
            end.publish(DATA);
            a.join().expect("a waiter");
            b.join().expect("the killed one");
        });
    }
}

/// The other end's notifier is killed before it writes the byte; another holder of that end goes
/// on.
#[test]
fn a_killed_notifier_still_owes_the_byte() {
    model(|| {
        let end = Endpoint::new();
        let a = Arc::clone(&end);
        let a = thread::spawn(move || a.wait(DATA, 1, None));
        end.there[DATA].fetch_add(1, Ordering::AcqRel);
        let _ = waiters::due(&end.waiting[DATA], &end.answered[DATA]);
        end.publish(DATA);
        a.join().expect("a waiter");
    });
}

/// A protocol in which the notifier takes waiters off the count, and any waiter takes any byte.
mod old {
    use super::*;

    fn wait(end: &Endpoint, want: usize) {
        while !end.take(want) {
            end.kernel(|socket| socket.bytes = 0);
            waiters::arm(&end.waiting[want]);
            if !end.is_ready(want) {
                end.sleep(|socket| socket.bytes != 0);
                end.kernel(|socket| socket.bytes = socket.bytes.saturating_sub(1));
            } else {
                waiters::disarm(&end.waiting[want]);
            }
        }
    }

    fn publish(end: &Endpoint, want: usize) {
        end.there[want].fetch_add(1, Ordering::AcqRel);
        loom::sync::atomic::fence(Ordering::SeqCst);
        for _ in 0..end.waiting[want].swap(0, Ordering::AcqRel) & 3 {
            end.write();
        }
    }

    fn two(first: usize, second: usize) {
        model(move || {
            let end = Endpoint::new();
            let (a, b) = (Arc::clone(&end), Arc::clone(&end));
            let a = thread::spawn(move || wait(&a, first));
            let b = thread::spawn(move || wait(&b, second));
            publish(&end, first);
            publish(&end, second);
            a.join().expect("a waiter");
            b.join().expect("a waiter");
        });
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn one_waits_for_data_and_one_for_room() {
        two(DATA, ROOM);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn two_wait_for_data() {
        two(DATA, DATA);
    }
}
