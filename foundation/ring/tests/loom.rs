//! Every interleaving, within loom's memory model, of the ring and of the doorbell's protocol.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p sietch-ring --test loom --release`
#![cfg(loom)]

#[path = "loom/channel.rs"]
mod channel;
#[path = "loom/doorbell.rs"]
mod doorbell;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sietch_ring::{Consumer, Producer, RingMemory, need_wakeup, tail_hint};

const CAPACITY: u32 = 2;

/// A ring whose slots loom watches: an access that the index protocol does not order is a failure.
struct Watched {
    producer: AtomicU32,
    newest: AtomicU64,
    consumer: AtomicU32,
    flags: AtomicU32,
    slots: [UnsafeCell<u32>; CAPACITY as usize],
}

/// With the newest entry beside the index, or without: one word less to interleave.
struct Memory(Arc<Watched>, bool);

impl Watched {
    /// Starts just before the indices wrap.
    fn ends(led: bool) -> (Producer<u32, Memory>, Consumer<u32, Memory>) {
        let memory = Arc::new(Self {
            producer: AtomicU32::new(u32::MAX),
            newest: AtomicU64::new(0),
            consumer: AtomicU32::new(u32::MAX),
            flags: AtomicU32::new(0),
            slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        let producer = Producer::attach(Memory(Arc::clone(&memory), led));
        let consumer = Consumer::attach(Memory(memory, led));
        (producer.expect("equal words"), consumer.expect("equal words"))
    }
}

impl RingMemory<u32> for Memory {
    fn capacity(&self) -> u32 {
        CAPACITY
    }
    fn producer(&self) -> &AtomicU32 {
        &self.0.producer
    }
    fn consumer(&self) -> &AtomicU32 {
        &self.0.consumer
    }
    fn flags(&self) -> &AtomicU32 {
        &self.0.flags
    }
    fn read(&self, index: u32) -> u32 {
        // SAFETY: loom checks that no write is concurrent.
        self.0.slots[(index % CAPACITY) as usize].with(|slot| unsafe { *slot })
    }
    fn read_newest(&self, index: u32) -> u32 {
        let newest = self.1.then(|| tail_hint::load(&self.0.newest, index)).flatten();
        newest.map_or_else(|| self.read(index), |entry| entry as u32)
    }
    fn note_newest(&self, index: u32) {
        if self.1 {
            tail_hint::store(&self.0.newest, index, u64::from(self.read(index)));
        }
    }
    fn write(&self, index: u32, entry: u32) {
        // SAFETY: loom checks that no other access is concurrent.
        self.0.slots[(index % CAPACITY) as usize].with_mut(|slot| unsafe { *slot = entry });
    }
}

#[test]
fn entries_arrive_whole_and_in_order() {
    loom::model(|| {
        const ENTRIES: u32 = 3;
        let (mut producer, mut consumer) = Watched::ends(true);
        let pusher = thread::spawn(move || {
            for entry in 1..=ENTRIES {
                while producer.push(entry).is_err() {
                    thread::yield_now();
                }
                producer.submit();
            }
            assert_eq!(producer.violations(), 0);
        });
        for expected in 1..=ENTRIES {
            let entry = loop {
                match consumer.pop() {
                    Some(entry) => break entry,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(entry, expected);
            consumer.release();
        }
        assert_eq!(consumer.violations(), 0);
        pusher.join().expect("the producer's assertions hold");
    });
}

#[test]
fn a_batch_is_seen_whole() {
    loom::model(|| {
        let (mut producer, mut consumer) = Watched::ends(true);
        let pusher = thread::spawn(move || {
            producer.push(1).expect("two slots");
            producer.push(2).expect("two slots");
            producer.submit();
        });
        let seen = consumer.ready(CAPACITY);
        assert!(seen == 0 || seen == 2, "{seen} entries of a batch of two");
        if seen == 2 {
            assert_eq!((consumer.pop(), consumer.pop()), (Some(1), Some(2)));
        }
        pusher.join().expect("the producer has room");
    });
}

/// An eventfd: a signal stays until it is taken.
struct Event {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    fn raise(&self) {
        *self.raised.lock().expect("no thread panics with it") = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut raised = self.raised.lock().expect("no thread panics with it");
        while !*raised {
            raised = self.changed.wait(raised).expect("no thread panics with it");
        }
        *raised = false;
    }
}

/// The consumer sleeps whenever the ring is empty. A lost wake-up is a deadlock, which loom
/// reports. `claim` is given the word and what it keeps between two calls.
fn wakes(arm: fn(&AtomicU32), disarm: fn(&AtomicU32), claim: fn(&AtomicU32, &mut u32) -> bool) {
    loom::model(move || {
        const ENTRIES: u32 = 2;
        let (mut producer, mut consumer) = Watched::ends(false);
        let event = Arc::new(Event { raised: Mutex::new(false), changed: Condvar::new() });
        let doorbell = Arc::clone(&event);
        let pusher = thread::spawn(move || {
            let mut kept = 0;
            for entry in 1..=ENTRIES {
                producer.push(entry).expect("two slots");
                producer.submit();
                if claim(&producer.memory().0.flags, &mut kept) {
                    doorbell.raise();
                }
            }
        });
        let mut expected = 1;
        while expected <= ENTRIES {
            if let Some(entry) = consumer.pop() {
                assert_eq!(entry, expected);
                expected += 1;
                continue;
            }
            arm(&consumer.memory().0.flags);
            if consumer.ready(1) == 0 {
                event.wait();
            }
            disarm(&consumer.memory().0.flags);
        }
        pusher.join().expect("the producer has room");
    });
}

#[test]
fn no_wake_up_is_lost() {
    wakes(need_wakeup::arm, need_wakeup::disarm, |word, _| need_wakeup::claim(word));
}

/// The same with a word that the notifier can only read.
#[test]
fn no_wake_up_is_lost_with_a_counted_word() {
    wakes(need_wakeup::arm_counted, need_wakeup::disarm_counted, |word, notified| {
        need_wakeup::claim_counted(|| word.load(loom::sync::atomic::Ordering::Relaxed), notified)
    });
}

/// A waiter that finds nothing after it has armed is notified; no request is answered twice.
#[test]
fn a_counted_waiter_is_not_lost() {
    use sietch_ring::stream::waiters;
    loom::model(|| {
        let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU32::new(0)));
        let theirs = Arc::clone(&words);
        let notifier = thread::spawn(move || {
            let (waiting, answered, published, notified) = &*theirs;
            published.store(1, Ordering::Release);
            for _ in 0..2 {
                if let Some(request) = waiters::due(waiting, answered) {
                    notified.fetch_add(1, Ordering::AcqRel);
                    waiters::answer(answered, request);
                }
            }
        });
        let (waiting, _, published, notified) = &*words;
        waiters::arm(waiting);
        let sleeps = published.load(Ordering::Acquire) == 0;
        if !sleeps {
            waiters::disarm(waiting);
        }
        notifier.join().expect("notifier");
        let notified = notified.load(Ordering::Acquire);
        assert!(!sleeps || notified == 1, "asleep without a notification");
        assert!(notified <= 1);
    });
}

/// A thread sleeps for two streams and is notified once: it sees whatever was published, or it is
/// notified after it began to sleep.
#[test]
fn one_notification_wakes_a_sleeper_for_many_streams() {
    use sietch_ring::stream::waiters;
    loom::model(|| {
        #[derive(Default)]
        struct Stream {
            waiting: AtomicU64,
            answered: AtomicU64,
            sleep: AtomicU64,
            published: AtomicU64,
        }
        let words = Arc::new(([Stream::default(), Stream::default()], AtomicU32::new(0)));
        let theirs = Arc::clone(&words);
        let notifier = thread::spawn(move || {
            let (streams, notified) = &*theirs;
            let mut known = 0;
            for stream in streams {
                stream.published.store(1, Ordering::Release);
                let due = waiters::due_unless(&stream.waiting, &stream.answered, &stream.sleep, |sleep| {
                    sleep == known
                });
                if let Some((request, sleep)) = due {
                    notified.fetch_add(1, Ordering::AcqRel);
                    waiters::answer(&stream.answered, request);
                    known = sleep;
                }
            }
        });
        let (streams, notified) = &*words;
        for stream in streams {
            // Nothing else waits.
            assert!(waiters::arm_among_many(&stream.waiting).is_some());
            stream.sleep.store(7, Ordering::Release);
        }
        loom::sync::atomic::fence(Ordering::SeqCst);
        let seen = streams.iter().filter(|stream| stream.published.load(Ordering::Acquire) != 0).count();
        notifier.join().expect("notifier");
        assert!(
            seen == streams.len() || notified.load(Ordering::Acquire) != 0,
            "asleep without a notification"
        );
    });
}

/// A consumer that sees a byte of the next region sees that the producer has moved.
#[test]
fn a_move_is_seen_before_the_bytes_after_it() {
    use sietch_ring::stream::layout::{moved, tail};
    loom::model(|| {
        let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let theirs = Arc::clone(&words);
        let producer = thread::spawn(move || {
            let (published, left) = &*theirs;
            published.store(tail::word(4, 0), Ordering::Release);
            left.store(moved::word(4, 15), Ordering::Release);
            published.store(tail::word(6, 0), Ordering::Release);
        });
        let (published, left) = &*words;
        let seen = tail::position(published.load(Ordering::Acquire));
        let word = left.load(Ordering::Acquire);
        if seen > 4 {
            assert_eq!((moved::at(word), moved::log2(word)), (4, 15));
        }
        producer.join().expect("producer");
    });
}
