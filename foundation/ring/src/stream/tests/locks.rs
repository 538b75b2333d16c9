//! Locks that their holders do not release.

use super::*;

#[test]
#[cfg_attr(miri, ignore = "Miri has no other processes")]
fn a_lock_of_the_dead_is_taken_over_and_one_s_own_is_not_waited_for() {
    let [mine, _theirs] = pair(SMALL);
    let held = mine.receive().expect("free");
    assert!(mine.receive().is_none(), "a handler must not wait for its own thread");
    drop(held);
    // A thread that ends while it holds it.
    std::thread::scope(|scope| {
        scope.spawn(|| std::mem::forget(mine.receive().expect("free")));
    });
    assert!(mine.receive().is_some());
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no other processes")]
fn a_lock_of_a_killed_process_that_was_not_reaped_is_taken_over() {
    use std::os::unix::process::CommandExt as _;
    let [mine, _theirs] = pair(SMALL);
    let mut program = std::process::Command::new("sleep");
    let held = std::sync::Arc::new(mine);
    let end = std::sync::Arc::clone(&held);
    // SAFETY: the child stores into shared memory and calls gettid(2), no more.
    unsafe {
        program.arg("1000").pre_exec(move || {
            crate::stream::after_fork();
            std::mem::forget((end.receive(), end.send()));
            end.private().doorbell.draining.store(holder(), Ordering::Relaxed);
            Ok(())
        })
    };
    let mut child = program.spawn().expect("sleep(1)");
    let id = child.id();
    assert_eq!(held.private().sending.lock.load(Ordering::Relaxed) & ((1 << 22) - 1), id);
    assert!(is_running(id));
    child.kill().expect("a child");
    let pid = rustix::process::Pid::from_child(&child);
    let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
    rustix::process::waitid(rustix::process::WaitId::Pid(pid), ended).expect("a child");
    assert!(!is_running(id), "it has ended, and keeps its number until it is reaped");
    assert!(held.receive().is_some());
    assert!(held.send().is_some());
    held.arm(Want::Data);
    assert!(!held.is_draining());
    child.wait().expect("a child");
}

#[test]
fn locks_that_an_exec_left_under_this_threads_number_are_freed() {
    let [mine, _theirs] = pair(SMALL);
    let draining = &mine.private().doorbell.draining;
    std::mem::forget((mine.receive().expect("free"), mine.send().expect("free")));
    draining.store(holder(), Ordering::Relaxed);
    assert!(mine.receive().is_none() && mine.send().is_none() && !mine.drain(0, |_| None));
    mine.free_after_exec();
    assert!(mine.receive().is_some() && mine.send().is_some() && mine.drain(0, |_| None));
    // A lock of another thread stays.
    draining.store(holder() ^ 1, Ordering::Relaxed);
    mine.free_after_exec();
    assert!(mine.is_draining());
}

#[test]
#[cfg_attr(miri, ignore = "it sleeps for seconds")]
fn a_lock_that_is_never_released_ends_the_call_and_does_not_delay_a_close() {
    let [mine, theirs] = pair(SMALL);
    write(&mine, &[1; 10]);
    // This process's first thread runs as long as it does. Threads of another namespace cannot be
    // checked from here.
    let first = std::process::id() | mine.private().sending.lock.load(Ordering::Relaxed);
    let held = mine.send().expect("free");
    let mark = mine.private().sending.lock.load(Ordering::Relaxed) >> 22 << 22;
    drop(held);
    for word in [first | mark, (mark ^ 1 << 31) | 7] {
        mine.private().sending.lock.store(word, Ordering::Relaxed);
        mine.private().receiving.lock.store(word, Ordering::Relaxed);
        assert!(mine.receive().is_none(), "{word:x}");
        assert!(mine.send().is_none(), "{word:x}");
        assert_eq!(
            mine.private().sending.lock.load(Ordering::Relaxed),
            word,
            "it was not taken from a holder"
        );
        mine.closing();
        assert!(theirs.is_closing(), "the hint comes all the same");
    }
}
