//! Copies to and from memory that may not be mapped, and checks of it. They return the fault
//! instead of ending the process.
//!
//! The library answers calls of unmodified programs. Their buffers may not be mapped, which the
//! kernel answers with EFAULT. The kernel may also refuse a page of memory that a peer shares when
//! a copy touches it (`stream::refused_pages`).
//!
//! 1. All such accesses are in a few routines of assembly, whose instructions are in one range.
//!    They use no stack and call nothing, so at each of their instructions the stack pointer is at
//!    the return address.
//! 2. The handler of SIGSEGV and SIGBUS calls [`recover`]. If the program counter is in the
//!    range, the handler makes the routine return the address of the fault. No setup precedes an
//!    access, so an access without a fault costs nothing extra.
//! 3. No record says that a copy is in progress, so none can be stale. A fault of a signal handler
//!    that has interrupted a copy has a program counter outside of the range.
//! 4. A copy that has met a fault may have written anything up to it. Callers count none of it, as
//!    Linux does with the piece of a TCP stream that it could not copy whole.
//!
//! Up to 128 bytes a copy is straight code of moves that overlap. Beyond, it is a loop of 32-byte
//! moves to aligned addresses (16-byte moves without AVX). From 64 bytes to 4 MiB that was as fast
//! as the C library's `memcpy`. `rep movsb` was slower by half up to 1 KiB, and where source and
//! destination are aligned differently.
//!
//! On other processors than x86-64 the accesses are ordinary ones, and a fault ends the process.

use std::num::NonZeroUsize;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Bytes of the smallest page on every supported machine: probes are at most this far apart.
const PAGE: usize = 4096;

/// The address at which a copy met no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault(pub NonZeroUsize);

#[cfg(all(target_arch = "x86_64", not(miri)))]
std::arch::global_asm!(include_str!("guarded/x86_64.s"));

#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe extern "C" {
    /// Copies; 0, or the address of the fault.
    fn sietch_guarded_copy(to: *mut u8, from: *const u8, length: usize) -> usize;
    /// As above, for more than 128 bytes, whatever the processor has.
    #[cfg(test)]
    fn sietch_guarded_copy_narrow(to: *mut u8, from: *const u8, length: usize) -> usize;
    /// Whether long copies may use AVX.
    static sietch_guarded_has_wide: AtomicU8;
    /// Reads a byte.
    fn sietch_guarded_read(from: *const u8) -> usize;
    /// Writes a byte back that it reads, in one step.
    fn sietch_guarded_write(to: *mut u8) -> usize;
    /// Reads `events` into the first word of `to`, `data` into the second.
    fn sietch_guarded_load_event(from: *const libc::epoll_event, to: *mut [u64; 2]) -> usize;
    /// Writes both fields.
    fn sietch_guarded_store_event(to: *mut libc::epoll_event, events: u32, data: u64) -> usize;
    static sietch_guarded_begin: u8;
    static sietch_guarded_end: u8;
    /// A return.
    static sietch_guarded_landing: u8;
}

/// Checks once what the processor has. Without that check long copies are slower.
pub(crate) fn prepare() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::is_x86_feature_detected!("avx") {
        // SAFETY: a byte of this module's.
        unsafe { &sietch_guarded_has_wide }.store(1, Relaxed);
    }
}

/// Copies `length` bytes.
///
/// # Safety
/// Only the caller may depend on the bytes at `to`, which may be any address; the two ranges do not
/// overlap.
///
/// # Errors
/// [`Fault`], where a handler calls [`recover`]; without one a fault ends the process.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> Result<(), Fault> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: the caller's promise.
        let fault = unsafe { sietch_guarded_copy(to, from, length) };
        NonZeroUsize::new(fault).map_or(Ok(()), |fault| Err(Fault(fault)))
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
        Ok(())
    }
}

/// Reads `events` and `data` of an event of epoll, each by a load of its own. A program has mostly
/// just written the two, and a wider load would wait until both stores have left the processor's
/// store buffer.
///
/// # Safety
/// The read affects only the caller, which may pass any address.
///
/// # Errors
/// As [`copy`].
#[inline]
pub unsafe fn load_event(from: *const libc::epoll_event) -> Result<(u32, u64), Fault> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let mut fields = [0; 2];
        // SAFETY: the caller's promise.
        let fault = unsafe { sietch_guarded_load_event(from, &raw mut fields) };
        NonZeroUsize::new(fault).map_or(Ok((fields[0] as u32, fields[1])), |fault| Err(Fault(fault)))
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        // SAFETY: the caller's promise.
        let event = unsafe { from.read_unaligned() };
        Ok((event.events, event.u64))
    }
}

/// Writes an event of epoll, each field by a store of its own.
///
/// # Safety
/// As [`copy`].
///
/// # Errors
/// As [`copy`].
#[inline]
pub unsafe fn store_event(to: *mut libc::epoll_event, events: u32, data: u64) -> Result<(), Fault> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: the caller's promise.
        let fault = unsafe { sietch_guarded_store_event(to, events, data) };
        NonZeroUsize::new(fault).map_or(Ok(()), |fault| Err(Fault(fault)))
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        // SAFETY: the caller's promise.
        unsafe { to.write_unaligned(libc::epoll_event { events, u64: data }) };
        Ok(())
    }
}

/// Whether each page of so many bytes can be read now.
#[inline]
pub fn is_readable<T>(from: *const T, length: usize) -> bool {
    each_page(from.cast(), length, |_byte| {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: reads, and a fault is answered.
        unsafe {
            sietch_guarded_read(_byte) == 0
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        true
    })
}

/// Whether each page of so many bytes can be written now. Nothing is changed.
#[inline]
pub fn is_writable<T>(to: *mut T, length: usize) -> bool {
    each_page(to.cast_const().cast(), length, |_byte| {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: writes what is there, in one step, and a fault is answered.
        unsafe {
            sietch_guarded_write(_byte.cast_mut()) == 0
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        true
    })
}

#[inline]
fn each_page(start: *const u8, length: usize, probe: impl Fn(*const u8) -> bool) -> bool {
    let Some(last) = length.checked_sub(1) else { return true };
    let mut at = 0;
    while at < last {
        if !probe(start.wrapping_add(at)) {
            return false;
        }
        at += PAGE;
    }
    probe(start.wrapping_add(last))
}

/// If the interrupted instruction is one of this module's: makes its routine return the address of
/// the fault. For a handler of SIGSEGV and SIGBUS; calls nothing and uses no memory of the thread's
/// own.
///
/// # Safety
/// What the kernel gave to the handler, of a signal that the kernel itself raised for a fault.
pub(crate) unsafe fn recover(address: usize, context: *mut libc::ucontext_t) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let (begin, end) = (&raw const sietch_guarded_begin, &raw const sietch_guarded_end);
        // SAFETY: the caller's.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        let counter = registers[libc::REG_RIP as usize] as usize;
        if !(begin.addr()..end.addr()).contains(&counter) {
            return false;
        }
        // For an address that is none on this machine the kernel names 0.
        registers[libc::REG_RAX as usize] = address.max(1) as i64;
        registers[libc::REG_RIP as usize] = (&raw const sietch_guarded_landing).addr() as i64;
        true
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = (address, context);
        false
    }
}

// The routines are assembly, which Miri does not run.
#[cfg(all(test, not(miri)))]
mod tests;
