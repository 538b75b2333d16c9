use super::*;

/// What a child of fork ends with. It runs `what` and nothing else, and is ended if that takes seconds of the processor.
fn in_a_child(what: impl FnOnce() -> bool) -> c_int {
    let seconds = libc::rlimit { rlim_cur: 10, rlim_max: 10 };
    // SAFETY: the child calls what may be called in a child of a process with threads: no allocation, no lock of the C library.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::setrlimit(libc::RLIMIT_CPU, &raw const seconds);
            libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
            libc::_exit(c_int::from(!what()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    }
}

#[test]
fn a_holder_that_lives_is_waited_for_and_a_dead_one_is_not() {
    let own = sys::thread();
    let dead = std::thread::spawn(sys::thread).join().expect("a thread id");
    // Joined, it may still be on its way out of the kernel.
    while stream::lives(dead) {
        std::thread::yield_now();
    }
    assert!(
        (0..50 * DEAD).all(|looks| !is_lost(own, looks, false)),
        "the lock of a holder that lives is broken"
    );
    let word = AtomicU32::new(dead);
    assert!(take(&word, own, false));
    assert_eq!(word.load(Relaxed), own);
    assert!(!take(&word, own, false), "a handler of the same thread does not wait for it");
    assert_eq!(word.load(Relaxed), own);
}

#[test]
fn only_its_holder_lets_go_of_the_lock() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let own = sys::thread();
    WORD.store(own, Relaxed);
    drop(Changing { word: &WORD, own, holds: false, mask: None });
    assert_eq!(WORD.load(Relaxed), own, "a change within a change");
    WORD.store(own + 1, Relaxed);
    drop(Changing { word: &WORD, own, holds: true, mask: None });
    assert_eq!(WORD.load(Relaxed), own + 1, "another's");
    WORD.store(own, Relaxed);
    drop(Changing { word: &WORD, own, holds: true, mask: None });
    assert_eq!(WORD.load(Relaxed), 0);
}

#[test]
fn a_child_of_fork_does_not_wait_for_a_thread_that_has_not_come_along() {
    let (held, holds) = std::sync::mpsc::channel();
    let (over, until) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            let changing = Changing::begin();
            held.send(()).expect("the test waits");
            until.recv().expect_err("nothing is sent");
            drop(changing);
        });
        holds.recv().expect("it has the lock");
        let status = in_a_child(|| Changing::begin().holds);
        drop(over);
        assert_eq!(status, 0);
    });
}
