//! Copies between the library and addresses that the program passed.
//!
//! A bad address gives `EFAULT`, as it does from the kernel. The copies of this module fault where
//! the address is not mapped; [`crate::signal::faults`] answers those faults. [`copy_in`] and
//! [`write_if_possible`] have the kernel copy, for code that runs before faults are answered.

use std::ptr;

use sietch_ring::guarded;

use crate::signal::faults::are_answered;
use crate::system::kernel::process;
use crate::system::seccomp;
use crate::system::sys::{self, Errno, address, address_mut, syscall};

/// Copies from an address that the program passed, which may not be mapped.
///
/// # Errors
/// `EFAULT`.
#[allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "an address of a program, which may be any; only a sandbox makes this code read it"
)]
pub(crate) fn copy_in(from: *const u8, to: &mut [u8]) -> Result<(), Errno> {
    let own = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let foreign = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: to.len() };
    // SAFETY: touches no memory.
    let process = unsafe { sys::raw_syscall(libc::SYS_getpid, [0; 6]) }.cast_unsigned();
    let arguments = [process, address(&raw const own), 1, address(&raw const foreign), 1, 0];
    // SAFETY: the kernel writes `to.len()` bytes to `to`; it checks the address that it reads.
    match unsafe { sys::syscall(libc::SYS_process_vm_readv, arguments) } {
        Ok(bytes) if bytes == to.len() => Ok(()),
        Ok(_) | Err(libc::EFAULT) => Err(libc::EFAULT),
        // A sandbox forbids the call: then copy as any function of the C library does.
        Err(_) if !from.is_null() => {
            // SAFETY: the caller of the C library's function promised it.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
            Ok(())
        }
        Err(_) => Err(libc::EFAULT),
    }
}

/// Writes a value to the program, if it can be written there: the kernel tries. A restricted
/// process goes without.
pub(crate) fn write_if_possible<T>(to: *mut T, value: &T) {
    if seccomp::is_restricted() {
        return;
    }
    let own = [address(ptr::from_ref(value)), size_of::<T>()];
    let other = [address_mut(to), size_of::<T>()];
    let process = process() as usize;
    // SAFETY: the kernel reads the value, and writes where the program has let it.
    let _ = unsafe {
        let (own, other) = (address(own.as_ptr()), address(other.as_ptr()));
        syscall(libc::SYS_process_vm_writev, [process, own, 1, other, 1, 0])
    };
}

/// Below it no program has anything: the kernel keeps the first page free.
const LOWEST_ADDRESS: usize = 4096;

/// At it the kernel's own addresses begin, on every machine of 64 bits.
const END_OF_ADDRESSES: usize = 1 << 56;

/// Whether so many bytes at an address can be a program's at all: not a null pointer or an offset
/// from one, and not an error code. Unmapped addresses in between are not found.
#[inline]
pub(crate) fn is_address<T>(pointer: *const T, bytes: usize) -> bool {
    let start = pointer.addr();
    (LOWEST_ADDRESS..END_OF_ADDRESSES).contains(&start) && bytes <= END_OF_ADDRESSES - start
}

/// Whether so many bytes of the program can be read. What another thread unmaps afterwards is not
/// found, and without [`install`](crate::signal::faults::install) no unmapped address is.
#[inline]
pub(crate) fn is_readable<T>(from: *const T, bytes: usize) -> bool {
    is_address(from, bytes) && (!are_answered() || guarded::is_readable(from, bytes))
}

/// As [`is_readable`], for what the library writes.
#[inline]
pub(crate) fn is_writable<T>(to: *mut T, bytes: usize) -> bool {
    is_address(to, bytes) && (!are_answered() || guarded::is_writable(to, bytes))
}

/// Copies a value in.
///
/// # Safety
/// The program has given the address for this.
///
/// # Errors
/// `EFAULT`.
#[inline]
pub(crate) unsafe fn read<T: Copy>(from: *const T) -> Result<T, Errno> {
    if !is_address(from, size_of::<T>()) {
        return Err(libc::EFAULT);
    }
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    // SAFETY: the caller upholds this function's contract; a fault is answered, or ends the process
    // as in any function of the C library.
    unsafe {
        match guarded::copy(value.as_mut_ptr().cast(), from.cast(), size_of::<T>()) {
            Ok(()) => Ok(value.assume_init()),
            Err(_) => Err(libc::EFAULT),
        }
    }
}

/// Copies bytes out.
///
/// # Safety
/// As [`read`].
///
/// # Errors
/// `EFAULT`.
#[inline]
pub(crate) unsafe fn write_bytes(to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Errno> {
    if bytes == 0 {
        return Ok(());
    }
    if !is_address(to, bytes) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { guarded::copy(to, from, bytes) }.map_err(|_| libc::EFAULT)
}

/// Copies a value out.
///
/// # Safety
/// As [`read`].
///
/// # Errors
/// `EFAULT`.
#[inline]
pub(crate) unsafe fn write<T: Copy>(to: *mut T, value: T) -> Result<(), Errno> {
    // SAFETY: the caller upholds this function's contract.
    unsafe { write_bytes(to.cast(), (&raw const value).cast(), size_of::<T>()) }
}

/// Copies an event of epoll in.
///
/// # Safety
/// As [`read`].
///
/// # Errors
/// `EFAULT`.
#[inline]
pub(crate) unsafe fn read_event(from: *const libc::epoll_event) -> Result<libc::epoll_event, Errno> {
    if !is_address(from, size_of::<libc::epoll_event>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller upholds this function's contract.
    let (events, data) = unsafe { guarded::load_event(from) }.map_err(|_| libc::EFAULT)?;
    Ok(libc::epoll_event { events, u64: data })
}

/// Copies an event of epoll out.
///
/// # Safety
/// As [`read`].
///
/// # Errors
/// `EFAULT`.
#[inline]
pub(crate) unsafe fn write_event(to: *mut libc::epoll_event, events: u32, data: u64) -> Result<(), Errno> {
    if !is_address(to, size_of::<libc::epoll_event>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { guarded::store_event(to, events, data) }.map_err(|_| libc::EFAULT)
}
