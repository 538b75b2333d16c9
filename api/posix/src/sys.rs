//! System calls without the C library: no errno until the caller wants it, nothing interposed, safe
//! in signal handlers.
//!
//! 1. [`call`] is the processor's instruction. It answers the kernel's value: negative numbers down
//!    to -4095 are errnos.
//! 2. [`Outcome`] is that value taken apart. Functions of this crate answer it among themselves.
//! 3. [`give`] turns an outcome into what the C library answers: -1 and errno, or the value (errno
//!    untouched).

use std::ffi::{c_int, c_long, c_void};
use std::ptr;

use crate::confined;

/// The number of an error (`errno.h`).
pub type Errno = c_int;

/// What a system call answers.
pub type Outcome = Result<usize, Errno>;

/// Bytes of a signal set, as the kernel has it.
pub const SIGNAL_SET: usize = 8;

/// Highest errno that the kernel answers as a negative number.
const LARGEST_ERRNO: isize = 4095;

/// Makes a system call.
///
/// # Safety
/// As the system call with that number and those arguments.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
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
pub unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
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

/// Takes a kernel's answer apart.
#[inline]
pub fn outcome(answer: isize) -> Outcome {
    if (-LARGEST_ERRNO..0).contains(&answer) {
        Err(Errno::try_from(-answer).unwrap_or(libc::EINVAL))
    } else {
        Ok(answer.cast_unsigned())
    }
}

/// Makes a system call and takes its answer apart.
///
/// # Safety
/// As [`call`].
#[inline]
pub unsafe fn ask(number: c_long, arguments: [usize; 6]) -> Outcome {
    // SAFETY: the caller's promise.
    outcome(unsafe { call(number, arguments) })
}

/// An outcome as the C library answers it.
#[inline]
pub fn give(outcome: Outcome) -> isize {
    match outcome {
        Ok(value) => value.cast_signed(),
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// [`give`] for calls that answer an `int`.
#[inline]
pub fn give_int(outcome: Outcome) -> c_int {
    c_int::try_from(give(outcome)).unwrap_or(c_int::MAX)
}

/// What a function in the C library's manner answered, taken apart.
#[inline]
pub fn outcome_of(answer: isize) -> Outcome {
    if answer < 0 { Err(errno()) } else { Ok(answer.cast_unsigned()) }
}

/// Sets the calling thread's errno.
#[inline]
pub fn set_errno(errno: Errno) {
    // SAFETY: the C library's address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno };
}

/// The calling thread's errno.
#[inline]
pub fn errno() -> Errno {
    // SAFETY: the C library's address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

/// An argument that is a descriptor or another signed number, as the kernel wants it in a register.
#[inline]
pub const fn signed(value: c_int) -> usize {
    (value as isize).cast_unsigned()
}

/// `close(2)`, the kernel's.
pub fn close(fd: c_int) -> Outcome {
    // SAFETY: closing a number touches no memory of ours.
    unsafe { ask(libc::SYS_close, [signed(fd), 0, 0, 0, 0, 0]) }
}

/// `fcntl(2)` with a number, the kernel's.
pub fn fcntl(fd: c_int, command: c_int, argument: usize) -> Outcome {
    // SAFETY: used with commands whose argument is a number.
    unsafe { ask(libc::SYS_fcntl, [signed(fd), signed(command), argument, 0, 0, 0]) }
}

/// `dup3(2)`, the kernel's.
pub fn dup3(old: c_int, new: c_int, flags: c_int) -> Outcome {
    // SAFETY: touches no memory.
    unsafe { ask(libc::SYS_dup3, [signed(old), signed(new), signed(flags), 0, 0, 0]) }
}

/// `socket(2)`, the kernel's.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Outcome {
    // SAFETY: touches no memory.
    unsafe { ask(libc::SYS_socket, [signed(domain), signed(kind), signed(protocol), 0, 0, 0]) }
}

/// `recvfrom(2)` of a placeholder without a name, the kernel's, into `out`.
pub fn receive(fd: c_int, out: &mut [u8], flags: c_int) -> Outcome {
    if confined::is_confined() {
        return confined::receive(fd, out, flags);
    }
    let to = out.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes at most `out.len()` bytes there.
    unsafe { ask(libc::SYS_recvfrom, [signed(fd), to, out.len(), signed(flags), 0, 0]) }
}

/// `sendto(2)` of a placeholder without a name, the kernel's.
pub fn send(fd: c_int, bytes: &[u8], flags: c_int) -> Outcome {
    if confined::is_confined() {
        return confined::send(fd, bytes);
    }
    let from = bytes.as_ptr().expose_provenance();
    // SAFETY: the kernel reads `bytes.len()` bytes there.
    unsafe { ask(libc::SYS_sendto, [signed(fd), from, bytes.len(), signed(flags), 0, 0]) }
}

/// `ppoll(2)` of some descriptors, at most for `timeout` (none: for ever).
pub fn poll(descriptors: &mut [libc::pollfd], timeout: Option<libc::timespec>) -> Outcome {
    let mut timeout = timeout;
    let until = timeout.as_mut().map_or(0, |time| std::ptr::from_mut(time).expose_provenance());
    let first = descriptors.as_mut_ptr().expose_provenance();
    #[cfg(target_arch = "x86_64")]
    if confined::is_confined() {
        let nanoseconds = timeout.map(|time| {
            let seconds = time.tv_sec.cast_unsigned().saturating_mul(1_000_000_000);
            seconds.saturating_add(time.tv_nsec.cast_unsigned())
        });
        // SAFETY: the kernel writes into the entries.
        return unsafe { confined::poll(first, descriptors.len(), nanoseconds) };
    }
    // SAFETY: the kernel writes into the entries and the time, both of which outlive the call.
    unsafe { ask(libc::SYS_ppoll, [first, descriptors.len(), until, 0, 8, 0]) }
}

/// `getsockopt(2)` of an `int`, the kernel's.
pub fn socket_option(fd: c_int, level: c_int, name: c_int) -> Result<c_int, Errno> {
    let mut value: c_int = 0;
    let mut length: libc::socklen_t = 4;
    let (to, size) = (
        std::ptr::from_mut(&mut value).expose_provenance(),
        std::ptr::from_mut(&mut length).expose_provenance(),
    );
    // SAFETY: the kernel writes at most `length` bytes to `value`, and the length.
    unsafe { ask(libc::SYS_getsockopt, [signed(fd), signed(level), signed(name), to, size, 0]) }
        .map(|_| value)
}

/// `setsockopt(2)` of an `int`, the kernel's.
pub fn set_socket_option(fd: c_int, level: c_int, name: c_int, value: c_int) -> Outcome {
    let from = std::ptr::from_ref(&value).expose_provenance();
    // SAFETY: the kernel reads four bytes there.
    unsafe { ask(libc::SYS_setsockopt, [signed(fd), signed(level), signed(name), from, 4, 0]) }
}

/// `getpid(2)`.
pub fn process() -> u32 {
    // SAFETY: touches no memory.
    unsafe { call(libc::SYS_getpid, [0; 6]) }.cast_unsigned() as u32
}

/// `gettid(2)`.
pub fn thread() -> u32 {
    // SAFETY: touches no memory.
    unsafe { call(libc::SYS_gettid, [0; 6]) }.cast_unsigned() as u32
}

/// Nanoseconds of the monotonic clock.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the vDSO's clock writes the time there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Sends `SIGPIPE` to the calling thread, as the kernel does for a write that nobody can read.
pub fn raise_sigpipe() {
    // SAFETY: touches no memory.
    unsafe {
        let process = call(libc::SYS_getpid, [0; 6]).cast_unsigned();
        let thread = call(libc::SYS_gettid, [0; 6]).cast_unsigned();
        call(libc::SYS_tgkill, [process, thread, signed(libc::SIGPIPE), 0, 0, 0]);
    }
}

/// Writes a value to the program, if it can be written there: the kernel tries. A process that gave
/// up system calls goes without.
pub fn write_if_possible<T>(to: *mut T, value: &T) {
    if confined::is_confined() {
        return;
    }
    let own = [address(ptr::from_ref(value)), size_of::<T>()];
    let other = [address_mut(to), size_of::<T>()];
    let process = process() as usize;
    // SAFETY: the kernel reads the value, and writes where the program has let it.
    let _ = unsafe {
        let (own, other) = (address(own.as_ptr()), address(other.as_ptr()));
        ask(libc::SYS_process_vm_writev, [process, own, 1, other, 1, 0])
    };
}

/// An address as a register's value.
pub fn address<T>(pointer: *const T) -> usize {
    pointer.expose_provenance()
}

/// An address of something that the kernel or another function writes.
pub fn address_mut<T>(pointer: *mut T) -> usize {
    pointer.expose_provenance()
}

/// An address from a register's value.
pub fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

/// Below it no program has anything: the kernel keeps the first page free.
const LOWEST_ADDRESS: usize = 4096;

/// At it the kernel's own addresses begin, on every machine of 64 bits.
const END_OF_ADDRESSES: usize = 1 << 56;

/// Whether so many bytes at an address can be a program's at all: neither a null pointer, or one
/// that was counted on from there, nor an error taken for an address. What is not mapped in between
/// is not found out.
#[inline]
pub fn is_address<T>(pointer: *const T, bytes: usize) -> bool {
    let start = pointer.addr();
    (LOWEST_ADDRESS..END_OF_ADDRESSES).contains(&start) && bytes <= END_OF_ADDRESSES - start
}
