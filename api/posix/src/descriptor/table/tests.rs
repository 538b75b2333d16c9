//! The table: what a program does with descriptors, and what threads do to each other.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::descriptor::description::{DESCRIPTORS, Kind, describe, hold};

/// Descriptors that no test process has: the tests never make system calls on them.
const FIRST: c_int = 500_000;

#[test]
fn a_descriptor_that_was_never_put_is_not_ours() {
    assert!(!is_ours(FIRST) && find(FIRST).is_none());
    assert!(!is_ours(-1) && find(-1).is_none());
    assert!(find(c_int::MAX).is_none() && !is_ours(c_int::MIN));
}

#[test]
fn duplicates_share_a_description_until_the_last_is_removed() {
    let new = describe(Kind::Pending, None).expect("memory");
    assert!(put(FIRST + 1, &new) && put(FIRST + 2, &new));
    let identity = new.identity();
    drop(new);
    assert_eq!(find(FIRST + 1).expect("put").identity(), identity);
    assert_eq!(find(FIRST + 2).expect("put").descriptors(), 2);
    drop(remove(FIRST + 1).expect("put"));
    assert!(find(FIRST + 1).is_none());
    let last = remove(FIRST + 2).expect("put");
    assert_eq!((last.descriptors(), last.kind()), (0, Kind::Pending));
    drop(last);
    assert!(remove(FIRST + 2).is_none());
}

#[test]
fn a_description_in_use_outlives_its_descriptor_and_is_another_afterwards() {
    let new = describe(Kind::Listener, None).expect("memory");
    let (number, identity) = (new.number(), new.identity());
    put(FIRST + 3, &new);
    let in_use = find(FIRST + 3).expect("put");
    drop((remove(FIRST + 3), new));
    assert_eq!(in_use.kind(), Kind::Listener);
    drop(in_use);
    // A new owner of the same memory is not mistaken for it.
    assert!(hold(identity).is_none());
    let mut others = Vec::new();
    for _ in 0..64 {
        let other = describe(Kind::Pending, None).expect("memory");
        assert_ne!(other.identity(), identity);
        let same = other.number() == number;
        others.push(other);
        if same {
            break;
        }
    }
}

#[test]
fn a_description_at_a_descriptor_is_replaced_by_the_next() {
    let (first, second) = (describe(Kind::Pending, None), describe(Kind::Listener, None));
    let (first, second) = (first.expect("memory"), second.expect("memory"));
    put(FIRST + 4, &first);
    put(FIRST + 4, &second);
    assert_eq!(first.descriptors(), 0);
    assert_eq!(find(FIRST + 4).expect("put").identity(), second.identity());
    let mut seen = Vec::new();
    each_of(&second, |fd| seen.push(fd));
    assert_eq!(seen, [FIRST + 4]);
    remove(FIRST + 4);
}

#[test]
fn numbers_beyond_the_table_are_refused() {
    let new = describe(Kind::Pending, None).expect("memory");
    assert!(!put(c_int::try_from(DESCRIPTORS).expect("small"), &new));
    assert!(!put(-1, &new));
    assert_eq!(new.descriptors(), 0);
}

/// One thread closes and opens, others look up: what they find is always whole and of the kind that
/// was put there.
#[test]
fn look_ups_race_with_closing_and_opening() {
    const ROUNDS: usize = if cfg!(miri) { 50 } else { 20_000 };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    if let Some(held) = find(FIRST + 5) {
                        assert_eq!(held.kind(), Kind::Pending);
                        assert!(held.socket.backlog.load(Ordering::Acquire) == 77);
                    }
                }
            });
        }
        for _ in 0..ROUNDS {
            let new = describe(Kind::Pending, None).expect("memory");
            new.socket.backlog.store(77, Ordering::Release);
            put(FIRST + 5, &new);
            drop(new);
            drop(remove(FIRST + 5));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(find(FIRST + 5).is_none());
}
