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

/// The stack pointer that a jump goes to; 0 if that cannot be read.
///
/// # Safety
/// `to` is what `setjmp(3)` of the C library has written.
unsafe fn stack_of(to: *const c_void) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        /// Of the stack pointer among the registers of a `jmp_buf`
        /// (sysdeps/x86_64/jmpbuf-offsets.h).
        const STACK: usize = 6;
        // SAFETY: the caller upholds this function's contract; a `jmp_buf` has eight registers.
        let mut value = unsafe { to.cast::<usize>().add(STACK).read() };
        // SAFETY: reads the C library's guard of this thread; as its PTR_DEMANGLE.
        unsafe {
            std::arch::asm!("ror {0}, 17", "xor {0}, qword ptr fs:[0x30]", inout(reg) value, options(nostack));
        }
        value
    }
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
    handlers::jumped(stack);
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
