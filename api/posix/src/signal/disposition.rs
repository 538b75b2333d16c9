//! Signal state that the kernel keeps: dispositions, through the C library's `sigaction`, and the
//! calling thread's mask.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::system::sys::{self, Outcome};

/// The C library's `sigaction`.
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

/// Calls the C library's `sigaction`.
///
/// # Safety
/// As `sigaction(2)`.
pub(crate) unsafe fn original(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> Outcome {
    let mut address = ORIGINAL.load(Acquire);
    if address == 0 {
        address = resolve();
    }
    if address == 0 {
        return Err(libc::ENOSYS);
    }
    // SAFETY: the C library's function of that name has this signature; the arguments are the
    // caller's promise.
    match unsafe { std::mem::transmute::<usize, Sigaction>(address)(signal, new, old) } {
        0 => Ok(0),
        _ => Err(sys::errno()),
    }
}

/// Finds the C library's `sigaction`: for the constructor, before the program runs.
pub(crate) fn resolve() -> usize {
    // SAFETY: a name that ends in zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr()) }.addr();
    ORIGINAL.store(found, Release);
    found
}

/// An action of zeros: the default, nothing blocked.
pub(crate) fn none() -> libc::sigaction {
    // SAFETY: zeros are a value of it.
    unsafe { std::mem::zeroed() }
}

/// The first word of a set of signals: all that the kernel knows.
pub(crate) fn word_of(set: &libc::sigset_t) -> u64 {
    // SAFETY: a signal set is longer than a word.
    unsafe { ptr::from_ref(set).cast::<u64>().read() }
}

/// Puts that word into a set.
pub(crate) fn put_word(set: &mut libc::sigset_t, word: u64) {
    // SAFETY: as in `word_of`.
    unsafe { ptr::from_mut(set).cast::<u64>().write(word) };
}

/// `rt_sigprocmask(2)`; the mask before.
pub(crate) fn set_mask(how: c_int, mask: u64) -> u64 {
    let mut before: u64 = 0;
    let (new, old) = (sys::address(&raw const mask), sys::address_mut(&raw mut before));
    // SAFETY: the kernel reads and writes eight bytes each, on this stack.
    unsafe { sys::raw_syscall(libc::SYS_rt_sigprocmask, [sys::signed(how), new, old, 8, 0, 0]) };
    before
}

/// Sends a signal to the calling thread, with what is known of it.
pub(crate) fn resend(signal: c_int, information: *const libc::siginfo_t) {
    // SAFETY: the kernel reads the information, and checks it.
    unsafe {
        let process = sys::raw_syscall(libc::SYS_getpid, [0; 6]).cast_unsigned();
        let thread = sys::raw_syscall(libc::SYS_gettid, [0; 6]).cast_unsigned();
        let from = sys::address(information);
        sys::raw_syscall(libc::SYS_rt_tgsigqueueinfo, [process, thread, sys::signed(signal), from, 0, 0]);
    }
}
