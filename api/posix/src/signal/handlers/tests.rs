use std::sync::Mutex;
use std::sync::atomic::AtomicI32;

use super::*;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static SEEN: AtomicI32 = AtomicI32::new(0);
static VALUE: AtomicI32 = AtomicI32::new(0);

extern "C" fn simple(signal: c_int) {
    SEEN.store(signal, SeqCst);
}

extern "C" fn informed(signal: c_int, information: *mut libc::siginfo_t, _context: *mut c_void) {
    SEEN.store(signal, SeqCst);
    // SAFETY: the kernel passes it, and it was queued with a value.
    VALUE.store(unsafe { (*information).si_value() }.sival_ptr.addr() as i32, SeqCst);
}

fn request(handler: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: zeroes are an action.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    (new.sa_sigaction, new.sa_flags) = (handler, flags);
    new
}

fn swap(signal: c_int, new: &libc::sigaction) -> libc::sigaction {
    let mut old = request(0, 0);
    // SAFETY: both outlive the call.
    unsafe { action(signal, new, &raw mut old) }.expect("sigaction");
    old
}

fn raise(signal: c_int) {
    // SAFETY: the handler is installed.
    unsafe { libc::raise(signal) };
}

#[test]
fn the_program_sees_its_own_handlers_and_flags() {
    let _alone = ONE_AT_A_TIME.lock();
    let first = simple as *const () as usize;
    let old = swap(libc::SIGUSR1, &request(first, libc::SA_RESTART));
    assert_eq!(old.sa_sigaction, libc::SIG_DFL);
    let second = informed as *const () as usize;
    let old = swap(libc::SIGUSR1, &request(second, libc::SA_SIGINFO));
    assert_eq!(old.sa_sigaction, first);
    assert_eq!(old.sa_flags & (libc::SA_SIGINFO | libc::SA_RESTART), libc::SA_RESTART);
    let old = swap(libc::SIGUSR1, &request(libc::SIG_IGN, 0));
    assert_eq!((old.sa_sigaction, old.sa_flags & libc::SA_SIGINFO), (second, libc::SA_SIGINFO));
    let old = swap(libc::SIGUSR1, &request(libc::SIG_DFL, 0));
    assert_eq!(old.sa_sigaction, libc::SIG_IGN);
    // SAFETY: reads nothing.
    assert_eq!(unsafe { action(99, ptr::null(), ptr::null_mut()) }, Err(libc::EINVAL));
}

#[test]
fn handlers_run_and_are_counted() {
    let _alone = ONE_AT_A_TIME.lock();
    let handler = simple as *const () as usize;
    assert_eq!(bsd_signal(libc::SIGUSR1, handler), Ok(libc::SIG_DFL));
    let before = (count(), interrupting());
    raise(libc::SIGUSR1);
    assert_eq!(SEEN.swap(0, SeqCst), libc::SIGUSR1);
    assert_eq!((count(), interrupting()), (before.0.wrapping_add(1), before.1));
    interrupt(libc::SIGUSR1, true).expect("siginterrupt");
    raise(libc::SIGUSR1);
    assert_eq!(interrupting(), before.1.wrapping_add(1));
    interrupt(libc::SIGUSR1, false).expect("siginterrupt");
    assert_eq!(bsd_signal(libc::SIGUSR1, libc::SIG_DFL), Ok(handler));
    assert_eq!(bsd_signal(0, handler), Err(libc::EINVAL));
}

#[test]
fn a_signal_in_a_section_comes_at_its_end_with_its_information() {
    let _alone = ONE_AT_A_TIME.lock();
    swap(libc::SIGUSR2, &request(informed as *const () as usize, libc::SA_SIGINFO));
    SEEN.store(0, SeqCst);
    {
        let _outer = Section::enter();
        let inner = Section::enter();
        let value = libc::sigval { sival_ptr: ptr::without_provenance_mut(77) };
        // SAFETY: a signal to this very thread.
        unsafe { libc::pthread_sigqueue(libc::pthread_self(), libc::SIGUSR2, value) };
        drop(inner);
        assert_eq!(SEEN.load(SeqCst), 0, "a handler ran within a section");
        let blocked = set_mask(libc::SIG_BLOCK, 0);
        assert_eq!(blocked & FAULTS, 0, "faults within the section end the process");
        assert_ne!(blocked & bit(libc::SIGUSR1), 0, "another signal would be put aside in its place");
    }
    assert_eq!((SEEN.load(SeqCst), VALUE.load(SeqCst)), (libc::SIGUSR2, 77));
    assert_eq!(set_mask(libc::SIG_BLOCK, 0) & bit(libc::SIGUSR2), 0, "the signal stayed blocked");
    swap(libc::SIGUSR2, &request(libc::SIG_DFL, 0));
}

#[test]
fn a_one_shot_handler_runs_once_even_if_it_was_deferred() {
    let _alone = ONE_AT_A_TIME.lock();
    let handler = simple as *const () as usize;
    sysv_signal(libc::SIGUSR2, handler).expect("sysv_signal");
    SEEN.store(0, SeqCst);
    let section = Section::enter();
    raise(libc::SIGUSR2);
    drop(section);
    assert_eq!(SEEN.swap(0, SeqCst), libc::SIGUSR2);
    let now = swap(libc::SIGUSR2, &request(libc::SIG_DFL, 0));
    assert_eq!(now.sa_sigaction, libc::SIG_DFL);
}

#[test]
fn sigset_holds_and_releases() {
    let _alone = ONE_AT_A_TIME.lock();
    let handler = simple as *const () as usize;
    assert_eq!(sigset(libc::SIGUSR1, handler), Ok(libc::SIG_DFL));
    assert_eq!(sigset(libc::SIGUSR1, SIG_HOLD), Ok(handler));
    SEEN.store(0, SeqCst);
    raise(libc::SIGUSR1);
    assert_eq!(SEEN.load(SeqCst), 0);
    assert_eq!(sigset(libc::SIGUSR1, handler), Ok(SIG_HOLD));
    assert_eq!(SEEN.swap(0, SeqCst), libc::SIGUSR1);
    sigset(libc::SIGUSR1, libc::SIG_DFL).expect("sigset");
}
