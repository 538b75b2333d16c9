//! Signal handlers of the program: they end a wait, and never run in the middle of a change.
//!
//! 1. The kernel ends a sleep with EINTR when a handler has run. A wait that still polls shared
//!    memory must end the same way, so it has to know that a handler ran. Therefore the calls that
//!    install handlers are intercepted. The kernel is given [`trampoline`] with the program's flags
//!    and mask; [`ACTIONS`] keeps the program's handler. The trampoline counts ([`count`], per
//!    thread) and then calls the handler. A query for the old action returns the program's.
//! 2. `SIG_DFL`, `SIG_IGN` and the signals of faults ([`is_fault`]) stay as they are. The first two
//!    run nothing. A fault is caused by the thread itself, and language runtimes depend on its
//!    exact handling. SIGSEGV and SIGBUS go through [`faults`] instead.
//! 3. While a thread changes state that its own handlers may use too (a lock of this crate), it is
//!    in a [`Section`]. A signal that arrives then is deferred: the trampoline remembers it and
//!    returns with every signal blocked but those two. At the end of the section the library sends
//!    the signal to the thread again and unblocks it. The kernel then runs the handler, as if the
//!    signal had arrived a moment later. So no handler waits for a lock of the thread that it
//!    interrupted, and `siglongjmp` never leaves a section.
//! 4. All state is atomics and thread-local cells without destructors. Nothing is allocated. A
//!    child of fork has a copy; exec resets handlers in the kernel and forgets the rest.
//!
//! A handler that was installed by a raw system call is known to the kernel alone: it runs
//! anywhere, and ends only sleeps.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, compiler_fence};

use crate::signal::disposition::{original, resend, set_mask};
use crate::signal::faults;
use crate::system::by_number::{self, ByNumber};
use crate::system::cancellation;
use crate::system::sys::{Errno, Outcome};

/// One past the highest signal.
const SIGNALS: usize = 65;

/// `SIG_HOLD` of `<signal.h>`, for `sigset`.
pub(crate) const SIG_HOLD: usize = 2;

/// The program's action for a signal.
#[derive(Debug)]
struct Action {
    handler: AtomicUsize,
    /// The flags as the program gave them.
    flags: AtomicU32,
    /// The first word of `sa_mask`: all that the kernel knows.
    mask: AtomicU64,
}

static ACTIONS: [Action; SIGNALS] =
    [const { Action { handler: AtomicUsize::new(0), flags: AtomicU32::new(0), mask: AtomicU64::new(0) } };
        SIGNALS];

/// Signals whose handlers `signal` installs without `SA_RESTART` (`siginterrupt`).
static INTERRUPTING: [AtomicBool; SIGNALS] = [const { AtomicBool::new(false) }; SIGNALS];

type Handler = unsafe extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void);

struct Local {
    count: Cell<u32>,
    /// Handlers among them that were installed without `SA_RESTART`.
    interrupting: Cell<u32>,
    depth: Cell<u32>,
    /// Handlers of the program that have begun and not returned.
    running: Cell<u32>,
    /// Calls that wait, within one another's handlers ([`crate::signal::longjmp`]).
    waiting: Cell<usize>,
    /// The signal that was deferred, 0 for none.
    deferred: Cell<c_int>,
    information: UnsafeCell<MaybeUninit<libc::siginfo_t>>,
    /// The thread's mask before it.
    mask: Cell<u64>,
}

thread_local! {
    static LOCAL: Local = const { Local {
        count: Cell::new(0),
        interrupting: Cell::new(0),
        depth: Cell::new(0),
        running: Cell::new(0),
        waiting: Cell::new(0),
        deferred: Cell::new(0),
        information: UnsafeCell::new(MaybeUninit::uninit()),
        mask: Cell::new(0),
    } };
}

/// How many handlers have run in this thread (wrapping).
#[inline]
pub(crate) fn count() -> u32 {
    LOCAL.with(|local| local.count.get())
}

/// How many of them were installed without `SA_RESTART`: those end `read` and its like with EINTR.
#[inline]
pub(crate) fn interrupting() -> u32 {
    LOCAL.with(|local| local.interrupting.get())
}

/// Whether this thread is in a handler of the program, which may have interrupted the C library's
/// allocator.
#[inline]
pub(crate) fn is_running() -> bool {
    LOCAL.with(|local| local.running.get() != 0)
}

/// A handler jumps to `stack`: none is counted any more. Returns as [`cancellation::jumped`].
pub(crate) fn jumped(stack: usize) -> bool {
    LOCAL.with(|local| local.running.set(0));
    by_number::set_active(ByNumber::No);
    cancellation::jumped(stack)
}

/// How many calls of this thread wait.
#[inline]
pub(crate) fn waiting() -> usize {
    LOCAL.with(|local| local.waiting.get())
}

/// Sets it.
#[inline]
pub(crate) fn set_waiting(calls: usize) {
    LOCAL.with(|local| local.waiting.set(calls));
}

/// No handler of the program runs in this thread while one of these exists. They nest.
///
/// Points to the thread's own state, because finding that takes a call. The pointer also keeps the
/// section in its thread.
#[derive(Debug)]
pub(crate) struct Section(NonNull<Local>);

impl Section {
    /// Enters.
    #[inline]
    pub(crate) fn enter() -> Self {
        let local = LOCAL.with(|local| {
            local.depth.set(local.depth.get() + 1);
            NonNull::from(local)
        });
        compiler_fence(SeqCst);
        Self(local)
    }
}

impl Drop for Section {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        // SAFETY: this thread's, because a section is not `Send`. It has no destructor, so it stays
        // until the thread has ended.
        let local = unsafe { self.0.as_ref() };
        let depth = local.depth.get() - 1;
        local.depth.set(depth);
        compiler_fence(SeqCst);
        if depth == 0 && local.deferred.get() != 0 {
            deliver(local);
        }
    }
}

/// Delivers the deferred signal. Every signal but [`FAULTS`] is blocked up to here.
#[cold]
fn deliver(local: &Local) {
    let signal = local.deferred.replace(0);
    let mask = local.mask.get();
    // SAFETY: written by the trampoline before it set `deferred`.
    let information = unsafe { (*local.information.get()).assume_init_ref() };
    if let Some(action) = ACTIONS.get(signal.cast_unsigned() as usize)
        && action.flags.load(Relaxed).cast_signed() & libc::SA_RESETHAND != 0
    {
        // The kernel has reset it already; it is due once more.
        let again = composed(action, trampoline as *const () as usize);
        // SAFETY: an action on the stack.
        let _ = unsafe { original(signal, &raw const again, ptr::null_mut()) };
    }
    resend(signal, information);
    set_mask(libc::SIG_SETMASK, mask);
}

/// Blocks all signals in the calling thread; the mask before, for [`restore`].
pub(crate) fn block_all() -> u64 {
    set_mask(libc::SIG_SETMASK, u64::MAX)
}

/// Blocks, in the calling thread, all signals but those by which the C library changes the user of
/// all threads and ends one: what a thread of this library is begun with. The mask before.
pub(crate) fn block_for_threads() -> u64 {
    set_mask(libc::SIG_SETMASK, !(bit(32) | bit(33)))
}

/// Gives the calling thread the mask that [`block_all`] has taken.
pub(crate) fn restore(before: u64) {
    set_mask(libc::SIG_SETMASK, before);
}

/// Signals by which the kernel reports memory faults, never deferred: a thread that blocked them
/// would end in a section by a fault that [`faults`] answers.
const FAULTS: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS);

/// The handler that the kernel calls.
extern "C-unwind" fn trampoline(signal: c_int, information: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(action) = ACTIONS.get(signal.cast_unsigned() as usize) else { return };
    let defer = LOCAL.with(|local| {
        local.count.set(local.count.get().wrapping_add(1));
        if action.flags.load(Relaxed).cast_signed() & libc::SA_RESTART == 0 {
            local.interrupting.set(local.interrupting.get().wrapping_add(1));
        }
        if local.depth.get() == 0 {
            return false;
        }
        // SAFETY: the kernel passes both; nothing else is put deferred: every signal that comes
        // here has been blocked since something was.
        unsafe {
            (*local.information.get()).write(*information);
            let mask = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
            let before = mask.read();
            local.mask.set(before);
            mask.write(before | !FAULTS);
        }
        local.deferred.set(signal);
        true
    });
    let handler = action.handler.load(Acquire);
    if defer || handler <= libc::SIG_IGN {
        return;
    }
    LOCAL.with(|local| local.running.set(local.running.get() + 1));
    let by_number = by_number::set_active(ByNumber::No);
    let paused = (waiting() != 0 || cancellation::is_in_call()).then(cancellation::pause);
    // SAFETY: the program's handler, of one argument or of three; the first is passed the same way
    // in both.
    unsafe { std::mem::transmute::<usize, Handler>(handler)(signal, information, context) };
    LOCAL.with(|local| local.running.set(local.running.get().saturating_sub(1)));
    by_number::set_active(by_number);
    if let Some(paused) = paused {
        // SAFETY: nothing is held.
        unsafe { cancellation::resume(paused) };
    }
}

/// Signals that a thread brings upon itself.
const fn is_fault(signal: c_int) -> bool {
    matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS
    )
}

fn composed(action: &Action, handler: usize) -> libc::sigaction {
    // SAFETY: zeroes are an action: the default, nothing blocked.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = action.flags.load(Relaxed).cast_signed() | libc::SA_SIGINFO;
    // SAFETY: a signal set is longer than a word.
    unsafe { (&raw mut new.sa_mask).cast::<u64>().write(action.mask.load(Relaxed)) };
    new
}

/// `sigaction(2)`.
///
/// # Safety
/// As `sigaction(2)`.
pub(crate) unsafe fn action(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> Outcome {
    if faults::are_of(signal) {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { faults::action(signal, new, old) };
    }
    let slot = usize::try_from(signal).ok().and_then(|signal| ACTIONS.get(signal));
    let Some(slot) = slot.filter(|_| !is_fault(signal)) else {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { original(signal, new, old) };
    };
    let ours = trampoline as *const () as usize;
    let before = (slot.handler.load(Acquire), slot.flags.load(Relaxed), slot.mask.load(Relaxed));
    let mut given;
    let mut passed = new;
    if !new.is_null() {
        // SAFETY: the caller upholds this function's contract.
        given = unsafe { *new };
        if given.sa_sigaction > libc::SIG_IGN && given.sa_sigaction != ours {
            slot.mask.store(
                // SAFETY: a signal set is longer than a word.
                unsafe { (&raw const given.sa_mask).cast::<u64>().read() },
                Relaxed,
            );
            slot.flags.store(given.sa_flags.cast_unsigned(), Relaxed);
            slot.handler.store(given.sa_sigaction, Release);
            given.sa_sigaction = ours;
            given.sa_flags |= libc::SA_SIGINFO;
        }
        passed = &raw const given;
    }
    // SAFETY: the program's action, or a copy of it with the trampoline; `old` is the caller's.
    let answer = unsafe { original(signal, passed, old) };
    if answer.is_err() {
        slot.mask.store(before.2, Relaxed);
        slot.flags.store(before.1, Relaxed);
        slot.handler.store(before.0, Release);
    } else if !old.is_null() {
        // SAFETY: the C library has just written it.
        let old = unsafe { &mut *old };
        if old.sa_sigaction == ours {
            old.sa_sigaction = before.0;
            if before.1.cast_signed() & libc::SA_SIGINFO == 0 {
                old.sa_flags &= !libc::SA_SIGINFO;
            }
        }
    }
    answer
}

/// Installs `handler` with `flags` and `mask`; the handler before.
fn install(signal: c_int, handler: usize, flags: c_int, mask: u64) -> Result<usize, Errno> {
    let made =
        Action { handler: AtomicUsize::new(handler), flags: AtomicU32::new(0), mask: AtomicU64::new(mask) };
    let mut new = composed(&made, handler);
    new.sa_flags = flags;
    // SAFETY: zeroes are an action.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both on the stack.
    unsafe { action(signal, &raw const new, &raw mut old) }.map(|_| old.sa_sigaction)
}

const fn bit(signal: c_int) -> u64 {
    if signal < 1 || signal > 64 { 0 } else { 1 << (signal - 1) }
}

/// `signal(3)` as BSD and the GNU C library have it: the handler stays, calls are restarted, the
/// signal is blocked meanwhile.
pub(crate) fn bsd_signal(signal: c_int, handler: usize) -> Result<usize, Errno> {
    let known = usize::try_from(signal).ok().and_then(|signal| INTERRUPTING.get(signal));
    if known.is_none() || signal < 1 || handler == libc::SIG_ERR {
        return Err(libc::EINVAL);
    }
    let restart = if known.is_some_and(|on| on.load(Relaxed)) { 0 } else { libc::SA_RESTART };
    install(signal, handler, restart, bit(signal))
}

/// `sysv_signal(3)`: the handler is forgotten when it runs.
pub(crate) fn sysv_signal(signal: c_int, handler: usize) -> Result<usize, Errno> {
    if signal < 1 || handler == libc::SIG_ERR {
        return Err(libc::EINVAL);
    }
    install(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER, 0)
}

/// `siginterrupt(3)`.
pub(crate) fn interrupt(signal: c_int, on: bool) -> Outcome {
    // SAFETY: zeroes are an action.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: on the stack.
    unsafe { action(signal, ptr::null(), &raw mut now) }?;
    if let Some(known) = INTERRUPTING.get(signal.cast_unsigned() as usize) {
        known.store(on, Relaxed);
    }
    now.sa_flags = if on { now.sa_flags & !libc::SA_RESTART } else { now.sa_flags | libc::SA_RESTART };
    // SAFETY: on the stack.
    unsafe { action(signal, &raw const now, ptr::null_mut()) }
}

/// `sigset(3)` of System V: installs, or holds the signal; the handler before, `SIG_HOLD` if it was
/// held.
pub(crate) fn sigset(signal: c_int, handler: usize) -> Result<usize, Errno> {
    if handler == libc::SIG_ERR || !(1..65).contains(&signal) {
        return Err(libc::EINVAL);
    }
    if handler == SIG_HOLD {
        // SAFETY: zeroes are an action.
        let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: on the stack.
        unsafe { action(signal, ptr::null(), &raw mut now) }?;
        let before = set_mask(libc::SIG_BLOCK, bit(signal));
        return Ok(if before & bit(signal) == 0 { now.sa_sigaction } else { SIG_HOLD });
    }
    let old = install(signal, handler, 0, 0)?;
    let before = set_mask(libc::SIG_UNBLOCK, bit(signal));
    Ok(if before & bit(signal) == 0 { old } else { SIG_HOLD })
}

#[cfg(test)]
mod tests;
