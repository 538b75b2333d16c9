//! `siglongjmp` out of a call that waits: the alarm idiom.
//!
//! 1. A handler that jumps abandons the call that it interrupted, which never returns. What the
//!    call holds (a counted waiter, a sleeper, a reference, a descriptor) would be held for ever.
//!    So each call that waits is registered, by thread, with a function that releases what it holds
//!    ([`Abandon`]).
//! 2. The C library's jumps are intercepted. Before a jump happens, the interrupted frames are
//!    still whole. Registered calls whose frames are below the target stack pointer are released
//!    then ([`abandon_below`]). Where the target cannot be read (processors other than x86-64), no
//!    call is released.
//! 3. Copies and locks run in a section ([`crate::signal::handlers`]), in which no handler runs. So
//!    does every change of what a call holds.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::signal::handlers::{self, Section};
#[cfg(target_arch = "x86_64")]
use crate::system::cancellation;
use crate::system::originals;

/// Calls of one thread that sleep within one another's handlers, two entries each at most: further
/// calls are not registered.
const MAX_CALLS: usize = 8;

/// The resources of a waiting call.
pub(crate) trait Abandon {
    /// Releases it, in place of the call's return.
    ///
    /// # Safety
    /// `this` was registered; its frames are whole and will not be returned to.
    unsafe fn abandon(this: *const Self);
}

/// One call: where what it holds is on the stack, and the function that releases it.
type Record = (usize, unsafe fn(usize));

thread_local! {
    static CALLS: [Cell<Record>; MAX_CALLS] = const { [const { Cell::new((0, nothing)) }; MAX_CALLS] };
}

fn nothing(_address: usize) {}

unsafe fn abandon_at<C: Abandon>(address: usize) {
    // SAFETY: the caller upholds this function's contract, and the address is that of a `C`.
    unsafe { C::abandon(std::ptr::with_exposed_provenance(address)) }
}

/// Registers a call that will wait. What it holds stays where it is until [`unregister`].
pub(crate) fn register<C: Abandon>(call: *const C) {
    // A handler that comes in between uses the same entry.
    let _section = Section::enter();
    let depth = handlers::waiting();
    CALLS.with(|calls| {
        if let Some(entry) = calls.get(depth) {
            entry.set((call.expose_provenance(), abandon_at::<C>));
        }
    });
    handlers::set_waiting(depth + 1);
}

/// The last one has ended.
pub(crate) fn unregister() {
    handlers::set_waiting(handlers::waiting().saturating_sub(1));
}

/// A call that is registered until this is dropped.
#[derive(Debug)]
pub(crate) struct Registered(());

/// As [`register`].
pub(crate) fn registered<C: Abandon>(call: *const C) -> Registered {
    register(call);
    Registered(())
}

impl Drop for Registered {
    fn drop(&mut self) {
        unregister();
    }
}

/// Releases the calls whose frames a jump to `stack` abandons.
pub(crate) fn abandon_below(stack: usize) {
    while let Some(last) = handlers::waiting().checked_sub(1) {
        match CALLS.with(|calls| calls.get(last).map(Cell::get)) {
            Some((frame, _)) if frame >= stack => return,
            Some((frame, leave)) => {
                unregister();
                // SAFETY: the frame is of a call of this thread that a handler has interrupted, so
                // it is whole; it is never returned to.
                unsafe { leave(frame) };
            }
            None => unregister(),
        }
    }
}

/// Of the stack pointer among the registers of a `jmp_buf` (sysdeps/x86_64/jmpbuf-offsets.h).
#[cfg(target_arch = "x86_64")]
const STACK: usize = 6;

/// Of the address to which it jumps.
#[cfg(target_arch = "x86_64")]
const ADDRESS: usize = 7;

/// A `sigjmp_buf`: eight registers, whether there is a mask, and the mask.
#[cfg(target_arch = "x86_64")]
type Target = [std::mem::MaybeUninit<usize>; 25];

/// The C library's PTR_DEMANGLE.
#[cfg(target_arch = "x86_64")]
fn demangle(mut value: usize) -> usize {
    // SAFETY: reads the C library's guard of this thread.
    unsafe {
        std::arch::asm!("ror {0}, 17", "xor {0}, qword ptr fs:[0x30]", inout(reg) value, options(nostack));
    }
    value
}

/// Its PTR_MANGLE.
#[cfg(target_arch = "x86_64")]
fn mangle(mut value: usize) -> usize {
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("xor {0}, qword ptr fs:[0x30]", "rol {0}, 17", inout(reg) value, options(nostack));
    }
    value
}

/// Where a jump goes by way of [`cancellation::arrived`], as if the place from which it was set had
/// called that.
///
/// # Safety
/// `to` is what `setjmp(3)` of the C library has written. The jump follows.
#[cfg(target_arch = "x86_64")]
unsafe fn by_way_of_arrived(to: *const c_void) -> Target {
    // SAFETY: the caller upholds this function's contract.
    let mut target = unsafe { to.cast::<Target>().read() };
    // SAFETY: both registers are written. The word below the stack pointer of a frame that has
    // called `setjmp` belongs to the frames that the jump abandons.
    unsafe {
        let stack = demangle(target[STACK].assume_init()) - size_of::<usize>();
        let back = std::ptr::with_exposed_provenance_mut::<usize>(stack);
        back.write_volatile(demangle(target[ADDRESS].assume_init()));
        target[STACK].write(mangle(stack));
    }
    target[ADDRESS].write(mangle(arrive as *const () as usize));
    target
}

/// Where such a jump arrives. It keeps what `setjmp` returns.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn arrive() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "push rax",
        ".cfi_adjust_cfa_offset 8",
        "call {arrived}",
        "pop rax",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        arrived = sym cancellation::arrived,
    )
}

/// The stack pointer that a jump goes to; 0 if that cannot be read.
///
/// # Safety
/// `to` is what `setjmp(3)` of the C library has written.
unsafe fn stack_of(to: *const c_void) -> usize {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller upholds this function's contract; a `jmp_buf` has eight registers.
    return demangle(unsafe { to.cast::<usize>().add(STACK).read() });
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = to;
        0
    }
}

/// The C library's jump.
static ORIGINAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Finds the C library's jump: for the constructor, before the program runs.
pub(crate) fn resolve() {
    ORIGINAL.store(originals::look_up("siglongjmp\0"), Release);
}

/// `longjmp(3)`, `siglongjmp(3)`, and what `_FORTIFY_SOURCE` makes of them: all restore the mask if
/// it was saved.
///
/// # Safety
/// As `longjmp(3)`.
pub unsafe fn jump(to: *const c_void, value: c_int) -> ! {
    // SAFETY: the caller upholds this function's contract.
    let stack = unsafe { stack_of(to) };
    abandon_below(stack);
    let is_asynchronous = handlers::jumped(stack);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller upholds this function's contract.
    let target = is_asynchronous.then(|| unsafe { by_way_of_arrived(to) });
    #[cfg(target_arch = "x86_64")]
    let to = target.as_ref().map_or(to, |target| target.as_ptr().cast());
    // Elsewhere the thread keeps the deferred type.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = is_asynchronous;
    let pointer = ORIGINAL.load(Acquire);
    if pointer.is_null() {
        std::process::abort();
    }
    // SAFETY: the C library's function of that name has this type; the rest is the caller's
    // promise.
    unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_void, c_int) -> !>(pointer)(
            to, value,
        )
    }
}
