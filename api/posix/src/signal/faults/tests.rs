use super::*;

/// Forks a child that runs `what` and nothing else; returns its wait status. The child is ended if
/// it takes seconds of the processor.
fn in_a_child(what: impl FnOnce() -> bool) -> c_int {
    let seconds = libc::rlimit { rlim_cur: 10, rlim_max: 10 };
    // SAFETY: the child calls what may be called in a child of a process with threads: no
    // allocation, no lock of the C library.
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

unsafe extern "C" fn of_the_program(_: c_int) {}

fn address_of_the_program() -> usize {
    of_the_program as *const () as usize
}

#[test]
fn a_holder_that_lives_is_waited_for_and_a_dead_one_is_not() {
    let own = kernel::thread();
    let dead = std::thread::spawn(kernel::thread).join().expect("a thread id");
    // Joined, it may still be on its way out of the kernel.
    while stream::is_running(dead) {
        std::thread::yield_now();
    }
    assert!(
        (0..50 * OWNER_CHECK_EVERY).all(|checks| !is_lost(own, checks, false)),
        "the lock of a holder that runs is broken"
    );
    let word = AtomicU32::new(dead);
    assert!(take(&word, own, false));
    assert_eq!(word.load(Relaxed), own);
    assert!(!take(&word, own, false), "a handler of the same thread does not wait for it");
    assert_eq!(word.load(Relaxed), own);
}

#[test]
fn only_its_holder_releases_the_lock() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let own = kernel::thread();
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
fn a_child_of_fork_does_not_wait_for_a_thread_of_its_parent() {
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

#[test]
fn a_signal_sent_before_the_program_ignored_it_does_nothing() {
    let status = in_a_child(|| {
        ProgramAction::of(libc::SIGBUS).handler.store(libc::SIG_IGN, Relaxed);
        // SAFETY: zeros are a value of both, and say that a process has sent it.
        let (mut information, mut context) =
            unsafe { (std::mem::zeroed::<libc::siginfo_t>(), std::mem::zeroed::<libc::ucontext_t>()) };
        handler(libc::SIGBUS, &raw mut information, (&raw mut context).cast());
        true
    });
    assert_eq!(status, 0);
}

#[test]
fn a_handler_that_comes_while_the_default_is_installed_is_not_lost() {
    let status = in_a_child(|| {
        let mut action = none();
        action.sa_sigaction = address_of_the_program();
        // What another thread has done since the default was found.
        ProgramAction::of(libc::SIGBUS).set(&action);
        let installed = install_default(libc::SIGBUS, libc::SIG_DFL);
        let mut now = none();
        // SAFETY: an action on the stack.
        let previous = unsafe { original(libc::SIGBUS, ptr::null(), &raw mut now) };
        !installed && previous.is_ok() && now.sa_sigaction == ours()
    });
    assert_eq!(status, 0);
}
