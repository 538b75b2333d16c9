//! System calls without the C library: they set no errno, nothing is interposed, and they are safe
//! in signal handlers.
//!
//! 1. [`raw_syscall`] is the processor's instruction. It returns the kernel's value; negative
//!    numbers down to -4095 are errnos.
//! 2. [`Outcome`] is that value as a `Result`. Functions of this crate return it among themselves.
//! 3. [`to_c`] converts an outcome to the result of a C library function: -1 and errno, or the
//!    value (errno unchanged).

use std::ffi::{c_int, c_long, c_void};

/// The number of an error (`errno.h`).
pub(crate) type Errno = c_int;

/// The result of a system call.
pub(crate) type Outcome = Result<usize, Errno>;

/// Bytes of a signal set, as the kernel has it.
pub(crate) const SIGNAL_SET: usize = 8;

/// Highest errno that the kernel returns as a negative number.
const LARGEST_ERRNO: isize = 4095;

/// Makes a system call.
///
/// # Safety
/// As the system call with that number and those arguments.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn raw_syscall(number: c_long, arguments: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: the instruction's registers are those of the kernel's convention, what it destroys is
    // listed; the rest is the caller's promise.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    answer
}

/// Makes a system call.
///
/// # Safety
/// As the system call with that number and those arguments.
#[cfg(target_arch = "aarch64")]
#[inline]
pub(crate) unsafe fn raw_syscall(number: c_long, arguments: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: the instruction's registers are those of the kernel's convention; the rest is the
    // caller's promise.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") arguments[0] as isize => answer,
            in("x1") arguments[1],
            in("x2") arguments[2],
            in("x3") arguments[3],
            in("x4") arguments[4],
            in("x5") arguments[5],
            options(nostack)
        );
    }
    answer
}

/// A kernel's return value as an outcome.
#[inline]
pub(crate) fn outcome(answer: isize) -> Outcome {
    if (-LARGEST_ERRNO..0).contains(&answer) {
        Err(Errno::try_from(-answer).unwrap_or(libc::EINVAL))
    } else {
        Ok(answer.cast_unsigned())
    }
}

/// Makes a system call; its outcome.
///
/// # Safety
/// As [`raw_syscall`].
#[inline]
pub(crate) unsafe fn syscall(number: c_long, arguments: [usize; 6]) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    outcome(unsafe { raw_syscall(number, arguments) })
}

/// An outcome as the C library returns it.
#[inline]
pub(crate) fn to_c(outcome: Outcome) -> isize {
    match outcome {
        Ok(value) => value.cast_signed(),
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// [`to_c`] for calls that return an `int`.
#[inline]
pub(crate) fn to_c_int(outcome: Outcome) -> c_int {
    c_int::try_from(to_c(outcome)).unwrap_or(c_int::MAX)
}

/// The outcome of a function that returns as the C library's do.
#[inline]
pub(crate) fn from_c(answer: isize) -> Outcome {
    if answer < 0 { Err(errno()) } else { Ok(answer.cast_unsigned()) }
}

/// Sets the calling thread's errno.
#[inline]
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the C library's address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno };
}

/// The calling thread's errno.
#[inline]
pub(crate) fn errno() -> Errno {
    // SAFETY: the C library's address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

/// A descriptor or another signed number as a register argument for the kernel.
#[inline]
pub(crate) const fn signed(value: c_int) -> usize {
    (value as isize).cast_unsigned()
}

/// An address as a register's value.
pub(crate) fn address<T>(pointer: *const T) -> usize {
    pointer.expose_provenance()
}

/// An address of something that the kernel or another function writes.
pub(crate) fn address_mut<T>(pointer: *mut T) -> usize {
    pointer.expose_provenance()
}

/// An address from a register's value.
pub(crate) fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}
