//! Cancellation of threads (`pthread_cancel(3)`).
//!
//! 1. glibc ends a cancelled thread by unwinding its stack, from the place where the cancellation
//!    acts. Frames that hold a lock or a reference must not be unwound in that way. So it never
//!    acts inside a call of this library: the call returns first, and [`leave`] ends the thread.
//! 2. [`syscall`] makes a system call in which a call sleeps. Around it the cancellation type is
//!    asynchronous, so glibc's signal ends the sleep. Below it is a cleanup record, as C's
//!    `pthread_cleanup_push` makes one: the unwinding ends there ([`catch`]). From then on the
//!    thread is *caught*. The call gets [`CANCELLED`], returns as after any error, and releases
//!    what it holds on the way.
//! 3. An exported function that is a cancellation point begins with [`enter`] and ends with
//!    [`leave`]: it acts on a request that is pending, before anything was done. The others begin
//!    with [`hold`] and end with [`release`]. In all of them the type is deferred. That costs one
//!    load until the program cancels a thread or chooses the asynchronous type for the first time
//!    ([`cancel`], [`set_type`]). `close` is no cancellation point: this library, too, calls it.
//! 4. A handler of the program that interrupts a call runs with cancellation disabled ([`pause`]):
//!    otherwise it could unwind the interrupted call. A request acts when the handler has returned.
//!    A thread notes its calls ([`CALLS`]) from the first one on that begins when a thread may be
//!    cancelled. Until then each of its handlers counts as interrupting a call, because that call
//!    may have begun before.
//! 5. A handler that jumps out of a sleep takes its record along ([`jumped`]). The record is noted
//!    before it is registered, and until it is no longer: so a jump finds it at any time, and asks
//!    glibc whether it is registered. The call that it leaves does not restore the asynchronous
//!    type, so the jump does once it has arrived ([`arrived`]). Before that, a request would unwind
//!    frames that the jump has abandoned.

use std::arch::naked_asm;
use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr};

use crate::system::by_number::{self, ByNumber};
use crate::system::sys::{self, Errno, Outcome};

/// `PTHREAD_CANCEL_DISABLE` of `<pthread.h>`.
const DISABLE: c_int = 1;

/// `PTHREAD_CANCEL_DEFERRED` of `<pthread.h>`.
const DEFERRED: c_int = 0;

/// `PTHREAD_CANCEL_ASYNCHRONOUS` of `<pthread.h>`.
const ASYNCHRONOUS: c_int = 1;

/// What a sleep returns to a thread that is caught. The program never sees it.
pub(crate) const CANCELLED: Errno = libc::ECANCELED;

/// Words of a `__pthread_unwind_buf_t` at least: a `jmp_buf` without a signal set, and four
/// pointers.
const RECORD: usize = 32;

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
    fn pthread_exit(value: *mut c_void) -> !;
}

unsafe extern "C" {
    fn __pthread_register_cancel(record: *mut c_void);
    fn __pthread_unregister_cancel(record: *mut c_void);
    fn __sigsetjmp(to: *mut c_void, mask: c_int) -> c_int;
}

/// Whether a thread may have been cancelled, or may have the asynchronous type.
static USED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is in a call that [`enter`] or [`hold`] began, or may be.
    static CALLS: Cell<bool> = const { Cell::new(true) };
    /// Whether this thread is caught.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
    /// Where the outermost noted call of this thread is on its stack, and the type before it.
    static OUTERMOST: Cell<Option<(usize, c_int)>> = const { Cell::new(None) };
    /// State and type before the outermost handler that has paused them.
    static PAUSED: Cell<Option<Paused>> = const { Cell::new(None) };
    /// The innermost record of a sleep.
    static SLEEP: Cell<*const Sleep> = const { Cell::new(std::ptr::null()) };
}

static SET_TYPE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static CANCEL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Finds the C library's functions that this library exports too: for the constructor.
pub(crate) fn resolve(look_up: fn(&str) -> *mut c_void) {
    SET_TYPE.store(look_up("pthread_setcanceltype\0"), Release);
    CANCEL.store(look_up("pthread_cancel\0"), Release);
}

/// Sets the type; the one before. Acts on a request if the type becomes asynchronous.
///
/// # Safety
/// No frame up to the next cleanup record holds anything, if `new` is asynchronous.
#[inline]
unsafe fn exchange_type(new: c_int) -> c_int {
    let mut before = DEFERRED;
    // SAFETY: the caller upholds this function's contract.
    unsafe { set_type_of_thread(new, &raw mut before) };
    before
}

/// # Safety
/// As `pthread_setcanceltype(3)`, and as [`exchange_type`].
unsafe fn set_type_of_thread(new: c_int, before: *mut c_int) -> c_int {
    let pointer = SET_TYPE.load(Acquire);
    if pointer.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: the C library's function of that name has this type.
    let function = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(c_int, *mut c_int) -> c_int>(pointer)
    };
    // SAFETY: the caller upholds this function's contract.
    unsafe { function(new, before) }
}

/// `pthread_setcanceltype(3)`.
///
/// # Safety
/// As `pthread_setcanceltype(3)`.
pub unsafe fn set_type(new: c_int, before: *mut c_int) -> c_int {
    if new == ASYNCHRONOUS {
        USED.store(true, Relaxed);
    }
    // SAFETY: the caller upholds this function's contract; nothing of this library is held.
    unsafe { set_type_of_thread(new, before) }
}

/// `pthread_cancel(3)`.
///
/// # Safety
/// As `pthread_cancel(3)`.
pub unsafe fn cancel(thread: c_ulong) -> c_int {
    USED.store(true, Relaxed);
    let pointer = CANCEL.load(Acquire);
    if pointer.is_null() {
        return libc::ESRCH;
    }
    // SAFETY: the C library's function of that name has this type.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(c_ulong) -> c_int>(pointer) };
    // SAFETY: the caller upholds this function's contract.
    unsafe { function(thread) }
}

/// Whether a thread may have been cancelled.
pub(crate) fn is_used() -> bool {
    USED.load(Relaxed)
}

/// What a thread had before a call, for [`leave`] and [`release`].
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// The type.
    kind: c_int,
    /// What [`CALLS`] is after the call. None: the call is not noted.
    calls: Option<bool>,
    /// Whether it is the thread's [`OUTERMOST`].
    is_outermost: bool,
}

impl Before {
    const UNUSED: Self = Self { kind: DEFERRED, calls: None, is_outermost: false };

    /// Whether a thread of this type is cancelled anywhere.
    pub(crate) fn is_asynchronous(self) -> bool {
        self.kind == ASYNCHRONOUS
    }
}

/// Begins a function that is a cancellation point.
///
/// # Safety
/// The caller holds nothing that must be dropped.
#[inline(always)]
pub unsafe fn enter() -> Before {
    if !USED.load(Relaxed) {
        return Before::UNUSED;
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { enter_used() }
}

#[cold]
unsafe fn enter_used() -> Before {
    let before = hold_used();
    // SAFETY: nothing is held (`enter`).
    unsafe { pthread_testcancel() };
    before
}

/// Begins another function: the thread is not cancelled in it.
#[inline(always)]
#[must_use]
pub fn hold() -> Before {
    if USED.load(Relaxed) { hold_used() } else { Before::UNUSED }
}

#[cold]
fn hold_used() -> Before {
    // A handler's call ends in what it has interrupted; any other call ends in the program.
    let calls = Some(CALLS.replace(true) && PAUSED.get().is_some());
    // SAFETY: the deferred type acts on no request.
    let kind = unsafe { exchange_type(DEFERRED) };
    let frame = (&raw const kind).addr();
    // One that is further down has ended, in a way that was not noticed.
    let is_outermost = OUTERMOST.get().is_none_or(|(outer, _)| outer < frame);
    if is_outermost {
        OUTERMOST.set(Some((frame, kind)));
    }
    Before { kind, calls, is_outermost }
}

/// Goes on after [`release`] as before it.
pub(crate) fn hold_again(before: Before) {
    if before.calls.is_some() {
        let _ = hold_used();
    }
}

/// Ends a function that began with [`hold`].
///
/// # Safety
/// The caller holds nothing that must be dropped.
#[inline(always)]
pub unsafe fn release(before: Before) {
    if USED.load(Relaxed) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { release_used(before) };
    }
}

#[cold]
unsafe fn release_used(before: Before) {
    // Before the type: from then on the thread may end here.
    if before.is_outermost {
        OUTERMOST.set(None);
    }
    if before.kind == ASYNCHRONOUS {
        // SAFETY: nothing is held (`release`).
        unsafe { exchange_type(ASYNCHRONOUS) };
    }
    if let Some(calls) = before.calls {
        CALLS.set(calls);
    }
}

/// Ends a function that began with [`enter`]. A thread that was cancelled meanwhile ends here.
///
/// # Safety
/// The caller holds nothing that must be dropped.
#[inline(always)]
pub unsafe fn leave(before: Before) {
    if USED.load(Relaxed) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { leave_used(before) };
    }
}

#[cold]
unsafe fn leave_used(before: Before) {
    // The thread's cleanup handlers make calls that are as good as any.
    if CAUGHT.replace(false) {
        // SAFETY: nothing is held (`leave`). The value is `PTHREAD_CANCELED`.
        unsafe { pthread_exit(std::ptr::without_provenance_mut(usize::MAX)) };
    }
    // SAFETY: as above.
    unsafe { release_used(before) };
}

/// The thread is not cancelled while one of these exists. They nest.
#[derive(Debug)]
pub(crate) struct Whole(c_int);

impl Whole {
    /// Begins.
    #[inline]
    pub(crate) fn begin() -> Self {
        Self(set_state(DISABLE))
    }
}

impl Drop for Whole {
    #[inline]
    fn drop(&mut self) {
        set_state(self.0);
    }
}

fn set_state(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: writes the state before. A request acts only if the type is asynchronous, which it is
    // only above a cleanup record of this file.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// State and type of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paused {
    state: c_int,
    kind: c_int,
    is_outermost: bool,
}

/// Disables cancellation for a handler that has interrupted a call.
pub(crate) fn pause() -> Paused {
    // The type first: glibc's signal asks for the type alone.
    // SAFETY: the deferred type acts on no request.
    let kind = unsafe { exchange_type(DEFERRED) };
    let paused = Paused { kind, state: set_state(DISABLE), is_outermost: PAUSED.get().is_none() };
    if paused.is_outermost {
        PAUSED.set(Some(paused));
    }
    paused
}

/// The handler has returned. Acts on a request if the handler has interrupted a sleep.
///
/// # Safety
/// The caller holds nothing that must be dropped.
pub(crate) unsafe fn resume(paused: Paused) {
    if paused.is_outermost {
        PAUSED.set(None);
    }
    set_state(paused.state);
    // SAFETY: the caller upholds this function's contract. The type is asynchronous only if the
    // interrupted frames are those of `sleep_asynchronously`, which has a cleanup record.
    unsafe { exchange_type(paused.kind) };
}

/// A handler jumps to `stack` (0: not known): the records below are no longer registered. Returns
/// whether the thread has the asynchronous type once the jump has arrived ([`arrived`]).
pub(crate) fn jumped(stack: usize) -> bool {
    CALLS.set(false);
    let paused = PAUSED.take();
    if let Some(paused) = paused {
        set_state(paused.state);
    }
    let slept = !SLEEP.get().is_null();
    let mut last = SLEEP.get();
    while !last.is_null() && (stack == 0 || last.addr() < stack) {
        // SAFETY: its frames are whole until the jump, and it is the thread's last record. The
        // deferred type acts on no request.
        unsafe {
            let record = (*last).record.get().cast();
            if is_last(record) {
                __pthread_unregister_cancel(record);
            }
            exchange_type(DEFERRED);
            (*last).end();
        }
        last = SLEEP.get();
    }
    match OUTERMOST.get() {
        Some((frame, kind)) if stack == 0 || frame < stack => {
            OUTERMOST.set(None);
            kind == ASYNCHRONOUS
        }
        // The handler was paused, but it has interrupted no call.
        None => !slept && paused.is_some_and(|paused| paused.kind == ASYNCHRONOUS),
        Some(_) => false,
    }
}

/// A jump has arrived, out of a call of a thread with the asynchronous type: that type again. Acts
/// on a request.
pub(crate) extern "C-unwind" fn arrived() {
    // SAFETY: the frames above are the program's.
    unsafe { exchange_type(ASYNCHRONOUS) };
}

/// Whether a record is the last one that is registered in this thread. A record that is registered
/// names the one before it.
fn is_last(record: *const c_void) -> bool {
    let mut next = [0_usize; RECORD];
    let to = next.as_mut_ptr().cast();
    // SAFETY: it outlives its registration, in which nothing is called.
    unsafe {
        __pthread_register_cancel(to);
        __pthread_unregister_cancel(to);
    }
    std::hint::black_box(&next).contains(&record.addr())
}

/// Whether a handler of this thread may have interrupted a call.
pub(crate) fn is_in_call() -> bool {
    CALLS.get() || !SLEEP.get().is_null()
}

/// A cleanup record, which stays where it is until it is no longer registered.
struct Sleep {
    record: UnsafeCell<MaybeUninit<[usize; RECORD]>>,
    /// The one that a handler has interrupted.
    outer: *const Sleep,
}

impl Sleep {
    /// Its end, however it ended.
    fn end(&self) {
        SLEEP.set(self.outer);
    }
}

/// Runs `body`, in which the thread may be cancelled.
///
/// # Errors
/// [`CANCELLED`].
///
/// # Safety
/// `body` calls only what may be unwound, and holds nothing meanwhile.
pub(crate) unsafe fn catch<F: FnOnce() -> R + Copy, R: Copy>(body: F) -> Result<R, Errno> {
    unsafe extern "C-unwind" fn run<F: FnOnce() -> R + Copy, R: Copy>(data: *mut c_void) {
        let data = data.cast::<(F, Option<R>)>();
        // SAFETY: `catch` passes this, and waits for the answer.
        unsafe { (*data).1 = Some(((*data).0)()) };
    }
    if CAUGHT.get() {
        return Err(CANCELLED);
    }
    let sleep = Sleep { record: UnsafeCell::new(MaybeUninit::uninit()), outer: SLEEP.get() };
    let mut data = (body, None);
    let (work, record) = ((&raw mut data).cast(), sleep.record.get().cast());
    // SAFETY: both outlive the call; the rest is the caller's promise.
    let is_cancelled = unsafe { run_above_record(run::<F, R>, work, record, &raw const sleep) } != 0;
    sleep.end();
    match data.1.filter(|_| !is_cancelled) {
        Some(answer) => Ok(answer),
        None => {
            CAUGHT.set(true);
            USED.store(true, Relaxed);
            Err(CANCELLED)
        }
    }
}

/// Notes the record of this thread that is about to be registered.
extern "C" fn note(sleep: *const Sleep) {
    SLEEP.set(sleep);
}

/// Makes a system call in which a call of the program sleeps. A cancelled thread gets
/// [`CANCELLED`]. A call that the program makes by number is no cancellation point, but a thread
/// with the asynchronous type is cancelled in it.
///
/// # Safety
/// As the system call. What it changes is lost if the thread is cancelled.
pub(crate) unsafe fn syscall(number: c_long, arguments: [usize; 6]) -> Outcome {
    if by_number::active() == ByNumber::Whole {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { sys::syscall(number, arguments) };
    }
    let sleep = || {
        // SAFETY: the caller upholds this function's contract, and nothing is held.
        unsafe {
            exchange_type(ASYNCHRONOUS);
            let answer = sys::raw_syscall(number, arguments);
            exchange_type(DEFERRED);
            answer
        }
    };
    // SAFETY: the C library's functions can be unwound, and so can the instruction.
    sys::outcome(unsafe { catch(sleep) }?)
}

/// Calls `work` with `data` above a cleanup record. 1: the thread was cancelled meanwhile.
///
/// `setjmp` returns twice, which only an assembler's function may rely on.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn run_above_record(
    work: unsafe extern "C-unwind" fn(*mut c_void),
    data: *mut c_void,
    record: *mut c_void,
    sleep: *const Sleep,
) -> c_int {
    naked_asm!(
        ".cfi_startproc",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbx, 0",
        "push r12",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r12, 0",
        "push r13",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r13, 0",
        "push r14",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r14, 0",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rbx, rdi",
        "mov r12, rsi",
        "mov r13, rdx",
        "mov r14, rcx",
        "mov rdi, r13",
        "xor esi, esi",
        "call {setjmp}@PLT",
        "test eax, eax",
        "jnz 2f",
        "mov rdi, r14",
        "call {note}",
        "mov rdi, r13",
        "call {register}@PLT",
        "mov rdi, r12",
        "call rbx",
        "xor ebx, ebx",
        "jmp 3f",
        "2: mov ebx, 1",
        "3: mov rdi, r13",
        "call {unregister}@PLT",
        "mov eax, ebx",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop r14",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r14",
        "pop r13",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r13",
        "pop r12",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r12",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbx",
        "ret",
        ".cfi_endproc",
        setjmp = sym __sigsetjmp,
        register = sym __pthread_register_cancel,
        note = sym note,
        unregister = sym __pthread_unregister_cancel,
    )
}

/// As on the other machine.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn run_above_record(
    work: unsafe extern "C-unwind" fn(*mut c_void),
    data: *mut c_void,
    record: *mut c_void,
    sleep: *const Sleep,
) -> c_int {
    naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-48]!",
        ".cfi_def_cfa_offset 48",
        ".cfi_offset x29, -48",
        ".cfi_offset x30, -40",
        "stp x19, x20, [sp, #16]",
        ".cfi_offset x19, -32",
        ".cfi_offset x20, -24",
        "stp x21, x22, [sp, #32]",
        ".cfi_offset x21, -16",
        ".cfi_offset x22, -8",
        "mov x29, sp",
        "mov x19, x0",
        "mov x20, x1",
        "mov x21, x2",
        "mov x22, x3",
        "mov x0, x21",
        "mov w1, wzr",
        "bl {setjmp}",
        "cbnz w0, 2f",
        "mov x0, x22",
        "bl {note}",
        "mov x0, x21",
        "bl {register}",
        "mov x0, x20",
        "blr x19",
        "mov w19, wzr",
        "b 3f",
        "2: mov w19, #1",
        "3: mov x0, x21",
        "bl {unregister}",
        "mov w0, w19",
        "ldp x21, x22, [sp, #32]",
        "ldp x19, x20, [sp, #16]",
        "ldp x29, x30, [sp], #48",
        "ret",
        ".cfi_endproc",
        setjmp = sym __sigsetjmp,
        register = sym __pthread_register_cancel,
        note = sym note,
        unregister = sym __pthread_unregister_cancel,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sleep that is noted, with its record registered or not, and a jump out of it.
    fn jump_out(registered: bool) {
        let sleep = Sleep { record: UnsafeCell::new(MaybeUninit::uninit()), outer: SLEEP.get() };
        note(&raw const sleep);
        if registered {
            // SAFETY: until the jump.
            unsafe { __pthread_register_cancel(sleep.record.get().cast()) };
        }
        jumped((&raw const sleep).addr() + 1);
    }

    #[test]
    fn a_jump_out_of_a_sleep_leaves_the_records_before_it() {
        let body = || {
            let outer = SLEEP.get();
            // SAFETY: the one of this call.
            let is_last = || is_last(unsafe { (*outer).record.get() }.cast::<c_void>());
            [true, false, true, false].map(|registered| {
                jump_out(registered);
                is_last() && SLEEP.get() == outer
            })
        };
        // SAFETY: nothing is cancelled here.
        assert_eq!(unsafe { catch(body) }, Ok([true; 4]));
        assert!(SLEEP.get().is_null());
    }
}
