//! The C library's own functions (the originals), for descriptors that are not ours.
//!
//! 1. [`resolve`] looks up the originals once, before `main`: the next definition behind this
//!    library in loading order. A call that is made earlier, by the constructor of another library,
//!    becomes the system call itself. So does a function that an older C library lacks (glibc 2.34:
//!    `epoll_pwait2`).
//! 2. The original is preferred to the system call because it is a cancellation point, and because
//!    other libraries may interpose it. A call that the program makes by number goes to the kernel
//!    ([`by_number`]).

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use crate::system::by_number::{self, ByNumber};
use crate::system::sys::{self, Outcome, SIGNAL_SET, address, address_mut};
use crate::system::{cancellation, kernel};

/// The number of a function of the C library that is no system call.
const NO_CALL: c_long = libc::SYS_getpid;

/// An approximate count of calls to the C library so far.
static CALLS: AtomicU32 = AtomicU32::new(0);

/// Changes whenever this process makes a call of the C library's: what it does to a kernel's
/// descriptor may make another one ready.
#[inline]
pub(crate) fn calls() -> u32 {
    CALLS.load(Relaxed)
}

/// Two threads at once may count one; the number has changed all the same.
#[inline]
pub(crate) fn count() {
    CALLS.store(CALLS.load(Relaxed).wrapping_add(1), Relaxed);
}

/// Makes the system call that a function of the C library makes, with that function's
/// arguments. The kernel also needs the size of a signal set; it writes the remaining time into a
/// copy.
///
/// # Safety
/// As the C library's function.
unsafe fn system_call(number: c_long, mut arguments: [usize; 6]) -> Outcome {
    let place = if number == libc::SYS_ppoll { 2 } else { 4 };
    let is_timed = matches!(number, libc::SYS_ppoll | libc::SYS_pselect6) && arguments[place] != 0;
    // SAFETY: the caller upholds this function's contract: a time is there.
    let mut time = is_timed.then(|| unsafe { *(arguments[place] as *const timespec) });
    if let Some(time) = &mut time {
        arguments[place] = address_mut(time);
    }
    let mask_and_size = [arguments[5], SIGNAL_SET];
    match number {
        libc::SYS_ppoll => arguments[4] = SIGNAL_SET,
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => arguments[5] = SIGNAL_SET,
        libc::SYS_pselect6 => arguments[5] = address(mask_and_size.as_ptr()),
        _ => {}
    }
    // SAFETY: the caller upholds this function's contract; what was put in is valid until the call
    // is over. The C library's functions that sleep are cancellation points, so the caller holds
    // nothing at one.
    unsafe {
        if by_number::active() == ByNumber::Cancellable && sleeps(number) {
            return cancellation::syscall(number, arguments);
        }
        sys::syscall(number, arguments)
    }
}

/// Whether the C library's function of this number may sleep.
fn sleeps(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if matches!(number, libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait) {
        return true;
    }
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_preadv2
            | libc::SYS_pwritev2
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_accept4
            | libc::SYS_connect
            | libc::SYS_splice
            | libc::SYS_ppoll
            | libc::SYS_pselect6
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
    )
}

macro_rules! calls {
    ($($name:ident = $number:ident ( $($argument:ident : $type:ty),* ) -> $answer:ty;)*) => {
        #[allow(non_upper_case_globals)]
        mod pointers {
            use super::*;
            $(pub(crate) static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)*
        }

        /// Looks up all of them.
        pub(crate) fn resolve() {
            $(pointers::$name.store(look_up(concat!(stringify!($name), "\0")), Release);)*
            fcntl_pointer.store(look_up("fcntl\0"), Release);
            fork_pointer.store(look_up("fork\0"), Release);
            bare_fork_pointer.store(look_up("_Fork\0"), Release);
            clone_pointer.store(look_up("clone\0"), Release);
            openat_pointer.store(look_up("openat\0"), Release);
        }

        $(
            /// The C library's function of this name.
            ///
            /// # Safety
            /// As the C library's function.
            #[inline]
            pub(crate) unsafe fn $name($($argument: $type),*) -> $answer {
                count();
                let pointer = pointers::$name.load(Acquire);
                if pointer.is_null() || by_number::is_active() && libc::$number != NO_CALL {
                    let mut arguments = [0_usize; 6];
                    let given = [$($argument as usize),*];
                    arguments[..given.len()].copy_from_slice(&given);
                    // SAFETY: the caller upholds this function's contract; the system call takes
                    // the same arguments, and what `system_call` adds.
                    return sys::to_c(unsafe { system_call(libc::$number, arguments) }) as $answer;
                }
                // SAFETY: the function of that name in the C library has this type.
                let function = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $answer>(pointer)
                };
                // SAFETY: the caller upholds this function's contract.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

calls! {
    read = SYS_read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t;
    write = SYS_write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t;
    readv = SYS_readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    writev = SYS_writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    close = SYS_close(fd: c_int) -> c_int;
    connect = SYS_connect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int;
    accept4 = SYS_accept4(fd: c_int, name: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    sendto = SYS_sendto(fd: c_int, from: *const c_void, length: size_t, flags: c_int, name: *const sockaddr, name_length: socklen_t) -> ssize_t;
    recvfrom = SYS_recvfrom(fd: c_int, to: *mut c_void, length: size_t, flags: c_int, name: *mut sockaddr, name_length: *mut socklen_t) -> ssize_t;
    sendmsg = SYS_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    recvmsg = SYS_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    sendmmsg = SYS_sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    recvmmsg = SYS_recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    sendfile = SYS_sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice = SYS_splice(from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, length: size_t, flags: c_uint) -> ssize_t;
    tee = SYS_tee(from: c_int, to: c_int, length: size_t, flags: c_uint) -> ssize_t;
    listen = SYS_listen(fd: c_int, backlog: c_int) -> c_int;
    shutdown = SYS_shutdown(fd: c_int, how: c_int) -> c_int;
    getsockopt = SYS_getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    setsockopt = SYS_setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    getsockname = SYS_getsockname(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int;
    getpeername = SYS_getpeername(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int;
    ioctl = SYS_ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int;
    fgetxattr = SYS_fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t;
    ppoll = SYS_ppoll(descriptors: *mut libc::pollfd, count: libc::nfds_t, timeout: *const timespec, mask: *const libc::sigset_t) -> c_int;
    pselect = SYS_pselect6(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set, timeout: *const timespec, mask: *const libc::sigset_t) -> c_int;
    epoll_pwait = SYS_epoll_pwait(epfd: c_int, events: *mut libc::epoll_event, most: c_int, timeout: c_int, mask: *const libc::sigset_t) -> c_int;
    epoll_pwait2 = SYS_epoll_pwait2(epfd: c_int, events: *mut libc::epoll_event, most: c_int, timeout: *const timespec, mask: *const libc::sigset_t) -> c_int;
    pread = SYS_pread64(fd: c_int, to: *mut c_void, length: size_t, offset: off_t) -> ssize_t;
    pwrite = SYS_pwrite64(fd: c_int, from: *const c_void, length: size_t, offset: off_t) -> ssize_t;
    lseek = SYS_lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    ftruncate = SYS_ftruncate(fd: c_int, length: off_t) -> c_int;
    fsync = SYS_fsync(fd: c_int) -> c_int;
    fdatasync = SYS_fdatasync(fd: c_int) -> c_int;
    mmap = SYS_mmap(at: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
    copy_file_range = SYS_copy_file_range(from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, length: size_t, flags: c_uint) -> ssize_t;
    setuid = SYS_setuid(uid: libc::uid_t) -> c_int;
    setgid = SYS_setgid(gid: libc::gid_t) -> c_int;
    setreuid = SYS_setreuid(real: libc::uid_t, effective: libc::uid_t) -> c_int;
    setregid = SYS_setregid(real: libc::gid_t, effective: libc::gid_t) -> c_int;
    setresuid = SYS_setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int;
    setresgid = SYS_setresgid(real: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t) -> c_int;
    setfsuid = SYS_setfsuid(uid: libc::uid_t) -> c_int;
    setfsgid = SYS_setfsgid(gid: libc::gid_t) -> c_int;
    setgroups = SYS_setgroups(count: size_t, groups: *const libc::gid_t) -> c_int;
    capset = SYS_capset(header: *mut c_void, data: *const c_void) -> c_int;
    chroot = SYS_chroot(path: *const c_char) -> c_int;
    pivot_root = SYS_pivot_root(new: *const c_char, old: *const c_char) -> c_int;
    unshare = SYS_unshare(flags: c_int) -> c_int;
    setns = SYS_setns(fd: c_int, kind: c_int) -> c_int;
    initgroups = SYS_getpid(user: *const c_char, group: libc::gid_t) -> c_int;
    mkostemps = SYS_getpid(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int;
    system = SYS_getpid(command: *const c_char) -> c_int;
    popen = SYS_getpid(command: *const c_char, kind: *const c_char) -> *mut c_void;
    fclose = SYS_getpid(stream: *mut c_void) -> c_int;
    fdopen = SYS_getpid(fd: c_int, mode: *const c_char) -> *mut c_void;
}

#[allow(non_upper_case_globals)]
static fcntl_pointer: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

#[allow(non_upper_case_globals)]
static fork_pointer: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

#[allow(non_upper_case_globals)]
static bare_fork_pointer: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

#[allow(non_upper_case_globals)]
static clone_pointer: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

#[allow(non_upper_case_globals)]
static openat_pointer: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The C library's `openat`.
///
/// # Safety
/// As `openat(2)`.
pub(crate) unsafe fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: usize) -> c_int {
    let pointer = openat_pointer.load(Acquire);
    if pointer.is_null() || by_number::is_active() {
        let arguments = [sys::signed(folder), address(path), sys::signed(flags), mode, 0, 0];
        // SAFETY: the caller upholds this function's contract.
        return sys::to_c_int(unsafe { sys::syscall(libc::SYS_openat, arguments) });
    }
    // SAFETY: the C library's `openat` has this type.
    let function = unsafe {
        std::mem::transmute::<
            *mut c_void,
            unsafe extern "C-unwind" fn(c_int, *const c_char, c_int, ...) -> c_int,
        >(pointer)
    };
    // SAFETY: the caller upholds this function's contract.
    unsafe { function(folder, path, flags, mode) }
}

/// The C library's `fcntl`.
///
/// # Safety
/// As `fcntl(2)`.
pub(crate) unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    let pointer = fcntl_pointer.load(Acquire);
    if pointer.is_null() || by_number::is_active() {
        return sys::to_c_int(kernel::fcntl(fd, command, argument));
    }
    // SAFETY: the C library's `fcntl` has this type.
    let function = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(c_int, c_int, ...) -> c_int>(pointer)
    };
    // SAFETY: the caller upholds this function's contract.
    unsafe { function(fd, command, argument) }
}

/// The C library's `fork`.
///
/// # Safety
/// As `fork(2)`.
pub(crate) unsafe fn fork() -> c_int {
    // SAFETY: the caller upholds this function's contract.
    unsafe { forking(fork_pointer.load(Acquire)) }
}

/// The C library's `_Fork`, which runs no handlers. `ENOSYS` before glibc 2.34.
///
/// # Safety
/// As `_Fork(3)`.
pub(crate) unsafe fn bare_fork() -> c_int {
    // SAFETY: the caller upholds this function's contract.
    unsafe { forking(bare_fork_pointer.load(Acquire)) }
}

/// The C library's `clone`. `more`: what is behind the argument.
///
/// # Safety
/// As `clone(2)`.
pub(crate) unsafe fn clone(
    run: unsafe extern "C" fn(*mut c_void) -> c_int,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    more: [*mut c_void; 3],
) -> c_int {
    type Clone = unsafe extern "C" fn(
        unsafe extern "C" fn(*mut c_void) -> c_int,
        *mut c_void,
        c_int,
        *mut c_void,
        ...
    ) -> c_int;
    let pointer = clone_pointer.load(Acquire);
    if pointer.is_null() {
        return sys::to_c_int(Err(libc::ENOSYS));
    }
    // SAFETY: the C library's `clone` has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, Clone>(pointer) };
    let [number, storage, cleared] = more;
    // SAFETY: the caller upholds this function's contract.
    unsafe { function(run, stack, flags, argument, number, storage, cleared) }
}

/// # Safety
/// A `fork` of the C library's, or null; as of that.
unsafe fn forking(pointer: *mut c_void) -> c_int {
    if pointer.is_null() {
        sys::set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: both have this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(pointer) };
    // SAFETY: the caller upholds this function's contract.
    unsafe { function() }
}

/// A function of the C library, or of another library behind this one; null if there is none.
/// `name` ends with a zero.
pub(crate) fn look_up(name: &str) -> *mut c_void {
    CStr::from_bytes_with_nul(name.as_bytes()).map_or(std::ptr::null_mut(), |name| {
        // SAFETY: a text with a zero behind it.
        unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
    })
}

#[cfg(test)]
mod tests;
