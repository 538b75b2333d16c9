use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Doorbell;
use crate::mapping::Mapping;

fn ends() -> (Doorbell, Doorbell) {
    let memory = Arc::new(Mapping::anonymous(4096).expect("a page of memory"));
    let sleeper = Doorbell::new(Arc::clone(&memory), 64).expect("the word is inside");
    let event = rustix::io::fcntl_dupfd_cloexec(&sleeper, 0).expect("a descriptor to spare");
    let ringer = Doorbell::attach(event, memory, 64).expect("the word is inside");
    (sleeper, ringer)
}

/// Whether the doorbell is readable; waits for it for at most `seconds`.
fn rung(doorbell: &Doorbell, seconds: i64) -> bool {
    let mut fds = [PollFd::new(doorbell, PollFlags::IN)];
    let patience = Timespec { tv_sec: seconds, tv_nsec: 0 };
    poll(&mut fds, Some(&patience)).expect("poll on an eventfd") == 1
}

#[test]
fn rings_only_a_sleeper_that_asked() {
    let (sleeper, ringer) = ends();
    assert!(!ringer.ring().expect("an eventfd"));
    assert!(!rung(&sleeper, 0));
    sleeper.arm();
    assert!(ringer.ring().expect("an eventfd"));
    assert!(!ringer.ring().expect("an eventfd"), "one request, one ring");
    assert!(rung(&sleeper, 0));
    sleeper.disarm().expect("an eventfd");
    assert!(!rung(&sleeper, 0));
}

#[test]
fn a_disarmed_doorbell_is_silent() {
    let (sleeper, ringer) = ends();
    sleeper.arm();
    sleeper.disarm().expect("an eventfd");
    assert!(!ringer.ring().expect("an eventfd"));
    assert!(!rung(&sleeper, 0));
}

#[test]
fn a_word_outside_the_mapping_is_refused() {
    let memory = Arc::new(Mapping::anonymous(4096).expect("a page of memory"));
    for offset in [4096, 4094, 2, usize::MAX, usize::MAX - 3] {
        assert!(Doorbell::new(Arc::clone(&memory), offset).is_err(), "offset {offset}");
    }
}

#[test]
fn a_sleeper_misses_nothing_across_threads() {
    const ITEMS: u64 = 20_000;
    let (sleeper, ringer) = ends();
    let published = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for item in 1..=ITEMS {
                published.store(item, Ordering::Release);
                ringer.ring().expect("an eventfd");
            }
        });
        let mut seen = 0;
        while seen < ITEMS {
            let now = published.load(Ordering::Acquire);
            if now != seen {
                seen = now;
                continue;
            }
            sleeper.arm();
            if published.load(Ordering::Acquire) == seen {
                // The limit is there for a broken doorbell alone, which it turns into a failure.
                assert!(rung(&sleeper, 30), "woken for item {}", seen + 1);
            }
            sleeper.disarm().expect("an eventfd");
        }
    });
}
