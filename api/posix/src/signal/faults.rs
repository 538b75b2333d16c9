//! SIGSEGV and SIGBUS: faults of the library are answered, all others reach the program.
//!
//! 1. With the first connection, listener or accepted socket of ours, a handler of the library is
//!    installed in the kernel for both signals ([`install`]). A program without any keeps its
//!    dispositions unchanged. [`PROGRAM_ACTIONS`] holds the actions of the program; `sigaction` and
//!    its relatives change and return that ([`action`]).
//! 2. A fault of a copy between the program's memory and a ring, or of a check of a call's
//!    arguments, ends the copy with EFAULT. A page of a ring that the kernel refuses resets its
//!    connection ([`sietch_ring::stream::refused_pages`]). The program counter and the address say
//!    where the fault was.
//! 3. Any other fault goes to the program's handler, with the kernel's arguments. The kernel has
//!    our handler with the program's flags and mask, so the stack, the mask and restarts are as the
//!    program requested. Only SA_RESETHAND is emulated here, because a fault of ours must not use
//!    it up.
//! 4. Where the program has the default action, the handler installs the default in the kernel and
//!    sends the signal again with its information. When the handler returns, the process ends at
//!    the place of the fault, with the same status and core.
//! 5. A signal that the program ignores stays ignored in the kernel: exec keeps that, and no call
//!    is interrupted by it. Faults end such a process, as they end any process that ignores them.
//!    They also end a thread that blocks the signal.
//! 6. A process that is about to be restricted by seccomp ([`restrict`]) could not do step 4. Where
//!    it has the default action, our handler is installed with SA_RESETHAND, so the first fault
//!    removes it. A process that is restricted before its first connection gets no handler.
//!
//! The handler uses no thread-local memory and takes no lock. A child of fork has a copy of all of
//! it; exec resets handlers.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use sietch_ring::stream::{self, refused_pages};

use crate::signal::disposition::{self, none, original, put_word, word_of};
use crate::system::sys::{self, Errno, Outcome};
use crate::system::{fork, kernel, processor};

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The kernel's for x86-64; elsewhere the bit means nothing. The C library sets it with every
/// action.
const RESTORER: c_int = 0x0400_0000;

/// Checks of a held lock between two yields, and between two queries whether its holder runs.
const SPINS: u32 = 100;

const OWNER_CHECK_EVERY: u32 = 10_000;

/// Checks of a process that may neither yield nor query the kernel: some seconds.
const RESTRICTED_CHECKS: u32 = 1 << 27;

/// The disposition that the program has set.
#[derive(Debug)]
struct ProgramAction {
    handler: AtomicUsize,
    flags: AtomicU32,
    mask: AtomicU64,
}

static PROGRAM_ACTIONS: [ProgramAction; 2] = [const {
    ProgramAction { handler: AtomicUsize::new(0), flags: AtomicU32::new(0), mask: AtomicU64::new(0) }
}; 2];

/// Whether our handlers are installed in the kernel.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Whether the process may be restricted by seccomp.
static RESTRICTED: AtomicBool = AtomicBool::new(false);

/// The thread that changes what the kernel knows, or 0; where there is no memory for
/// [`fork::forgotten_by_fork`].
static CHANGING: AtomicU32 = AtomicU32::new(0);

impl ProgramAction {
    fn of(signal: c_int) -> &'static Self {
        &PROGRAM_ACTIONS[usize::from(signal == libc::SIGBUS)]
    }

    /// As the kernel would return it.
    fn get(&self) -> libc::sigaction {
        let mut action = none();
        action.sa_sigaction = self.handler.load(Acquire);
        action.sa_flags = self.flags.load(Relaxed).cast_signed();
        put_word(&mut action.sa_mask, self.mask.load(Relaxed));
        action
    }

    fn set(&self, action: &libc::sigaction) {
        self.flags.store(action.sa_flags.cast_unsigned(), Relaxed);
        self.mask.store(word_of(&action.sa_mask), Relaxed);
        self.handler.store(action.sa_sigaction, Release);
    }
}

/// Held while the kernel's dispositions change. No handler runs in this thread meanwhile.
///
/// The word is the holder's thread id. In a child of fork it is 0 again, because the holder does
/// not exist there; a child of vfork has the parent's. So a running holder releases the lock, and
/// is waited for, however long others have its processor. Only the lock of a dead holder is taken
/// over.
struct Changing {
    word: &'static AtomicU32,
    own: u32,
    /// Whether this value has it. Not, within a change of the same thread: a handler of a
    /// restricted process, whose signals cannot be blocked.
    holds: bool,
    mask: Option<u64>,
}

impl Changing {
    fn begin() -> Self {
        let restricted = RESTRICTED.load(Relaxed);
        // A filter that allows sigaction need not allow sigprocmask or gettid.
        let mask = (!restricted).then(|| disposition::set_mask(libc::SIG_SETMASK, u64::MAX));
        let own = if restricted { stream::thread() } else { kernel::thread() };
        let word = fork::forgotten_by_fork().unwrap_or(&CHANGING);
        Self { word, own, holds: take(word, own, restricted), mask }
    }
}

/// Takes the lock. False: the caller has it already.
fn take(word: &AtomicU32, own: u32, restricted: bool) -> bool {
    let mut checks: u32 = 0;
    loop {
        let owner = word.load(Relaxed);
        if owner == own {
            return false;
        }
        let free = owner == 0 || is_lost(owner, checks, restricted);
        if free && word.compare_exchange(owner, own, Acquire, Relaxed).is_ok() {
            return true;
        }
        checks = checks.wrapping_add(1);
        if !restricted && checks.is_multiple_of(SPINS) {
            processor::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// Whether an owner that was seen so many times in a row or more will never release the lock.
fn is_lost(owner: u32, checks: u32, restricted: bool) -> bool {
    if restricted {
        return checks >= RESTRICTED_CHECKS;
    }
    checks != 0 && checks.is_multiple_of(OWNER_CHECK_EVERY) && !stream::is_running(owner)
}

impl Drop for Changing {
    fn drop(&mut self) {
        if self.holds {
            // If it is another's by now, that one has it.
            let _ = self.word.compare_exchange(self.own, 0, Release, Relaxed);
        }
        if let Some(mask) = self.mask {
            disposition::set_mask(libc::SIG_SETMASK, mask);
        }
    }
}

fn ours() -> usize {
    handler as *const () as usize
}

/// The action to install in the kernel for the program's action.
fn composed(wanted: &libc::sigaction) -> libc::sigaction {
    let mut new = *wanted;
    if wanted.sa_sigaction == libc::SIG_IGN || wanted.sa_sigaction == ours() {
        return new;
    }
    new.sa_sigaction = ours();
    new.sa_flags = if wanted.sa_sigaction == libc::SIG_DFL {
        let once = if RESTRICTED.load(Relaxed) { libc::SA_RESETHAND } else { 0 };
        libc::SA_SIGINFO | libc::SA_ONSTACK | once
    } else {
        wanted.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO
    };
    new
}

/// Begins to answer faults, if that has not begun. A process that may be restricted does not begin.
#[inline]
pub(crate) fn install() {
    if !ACTIVE.load(Acquire) && !RESTRICTED.load(Relaxed) {
        begin();
    }
}

#[cold]
fn begin() {
    let before = sys::errno();
    refused_pages::prepare();
    let _changing = Changing::begin();
    if ACTIVE.swap(true, AcqRel) {
        return;
    }
    for signal in SIGNALS {
        let mut now = none();
        // SAFETY: actions on the stack.
        unsafe {
            if original(signal, ptr::null(), &raw mut now).is_err() || now.sa_sigaction == ours() {
                continue;
            }
            ProgramAction::of(signal).set(&now);
            let _ = original(signal, &composed(&now), ptr::null_mut());
        }
    }
    sys::set_errno(before);
}

/// The process is about to be restricted by seccomp.
pub(crate) fn restrict() {
    RESTRICTED.store(true, Relaxed);
    if !ACTIVE.load(Acquire) {
        return;
    }
    for signal in SIGNALS {
        let wanted = ProgramAction::of(signal).get();
        let mut now = none();
        // SAFETY: actions on the stack.
        unsafe {
            let previous = original(signal, ptr::null(), &raw mut now);
            if previous.is_ok() && now.sa_sigaction == ours() && wanted.sa_sigaction == libc::SIG_DFL {
                let _ = original(signal, &composed(&wanted), ptr::null_mut());
            }
        }
    }
}

/// Whether faults are answered in this process.
#[inline]
pub(crate) fn are_answered() -> bool {
    ACTIVE.load(Relaxed)
}

/// Whether a signal's dispositions go through [`action`].
pub(crate) fn are_of(signal: c_int) -> bool {
    SIGNALS.contains(&signal) && ACTIVE.load(Acquire)
}

/// `sigaction(2)` of one of the two.
///
/// # Safety
/// As `sigaction(2)`.
pub(crate) unsafe fn action(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> Outcome {
    // Before anything is held: the address may be bad, and a handler of the program may jump away.
    // SAFETY: the caller upholds this function's contract.
    let given = (!new.is_null()).then(|| unsafe { *new });
    let previous = change(signal, given.as_ref())?;
    if !old.is_null() {
        // SAFETY: the caller upholds this function's contract.
        unsafe { *old = previous };
    }
    Ok(0)
}

/// Installs what is given, and returns what was there before.
fn change(signal: c_int, given: Option<&libc::sigaction>) -> Result<libc::sigaction, Errno> {
    let _changing = Changing::begin();
    let kept = ProgramAction::of(signal);
    let before = kept.get();
    let mut now = none();
    let passed = given.map_or_else(none, composed);
    if let Some(given) = given.filter(|given| given.sa_sigaction != ours()) {
        // As the C library and the kernel change it.
        let mut wanted = *given;
        wanted.sa_flags |= if cfg!(target_arch = "x86_64") { RESTORER } else { 0 };
        let never = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
        put_word(&mut wanted.sa_mask, word_of(&given.sa_mask) & !never);
        kept.set(&wanted);
    }
    let new = given.map_or(ptr::null(), |_| &raw const passed);
    // SAFETY: actions on the stack.
    if let Err(errno) = unsafe { original(signal, new, &raw mut now) } {
        kept.set(&before);
        return Err(errno);
    }
    if now.sa_sigaction != ours() {
        return Ok(now);
    }
    let restorer = if before.sa_flags & RESTORER == 0 { None } else { now.sa_restorer };
    Ok(libc::sigaction { sa_restorer: restorer, ..before })
}

type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The handler that the kernel calls.
extern "C" fn handler(signal: c_int, information: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: called by the kernel.
    if unsafe { refused_pages::handle_fault(signal, information, context.cast()) } {
        return;
    }
    let kept = ProgramAction::of(signal);
    loop {
        let wanted = kept.handler.load(Acquire);
        if wanted > libc::SIG_IGN {
            if kept.flags.load(Relaxed).cast_signed() & libc::SA_RESETHAND != 0 {
                let _ = kept.handler.compare_exchange(wanted, libc::SIG_DFL, AcqRel, Relaxed);
            }
            // SAFETY: the program's handler, of one argument or of three; the first is passed the
            // same way in both.
            unsafe { std::mem::transmute::<usize, Handler>(wanted)(signal, information, context) };
            return;
        }
        // SAFETY: the kernel's.
        let sent = unsafe { (*information).si_code } <= 0;
        if wanted == libc::SIG_IGN && sent {
            // The program began to ignore it while it was on its way. A fault cannot be ignored.
            return;
        }
        if RESTRICTED.load(Relaxed) {
            return;
        }
        if install_default(signal, wanted) {
            return disposition::resend(signal, information);
        }
    }
}

/// Installs the default in the kernel. False: the program has set another action meanwhile, which
/// is installed again.
fn install_default(signal: c_int, wanted: usize) -> bool {
    let kept = ProgramAction::of(signal);
    // SAFETY: an action on the stack.
    let _ = unsafe { original(signal, &none(), ptr::null_mut()) };
    // After that: a change that comes through this module is either seen now, or gives the kernel
    // its own action afterwards.
    if kept.handler.load(Acquire) == wanted {
        return true;
    }
    // SAFETY: as above.
    let _ = unsafe { original(signal, &composed(&kept.get()), ptr::null_mut()) };
    false
}

#[cfg(test)]
mod tests;
