//! `syscall(2)`: numbers that concern sockets and files go where the C library's functions go, all
//! others to the kernel. What is not ours goes to the kernel, never to a function of the C
//! library's name, which may be another library's that calls `syscall` itself ([`by_number`]). A
//! thread with the asynchronous type of cancellation is cancelled in the kernel's calls, and where
//! one of ours sleeps.
//!
//! io_uring would work on placeholders. Under Sietch it does not exist, as in a kernel that is
//! built without it: programs with another way use that one (libuv, and so Node and uvloop).
//! liburing makes its system calls itself, and is not intercepted.

use std::ffi::{c_int, c_long, c_uint};
use std::ptr;

use libc::timespec;

use crate::calls::data::{message, splice, transfer};
use crate::calls::descriptor::control;
use crate::calls::files;
use crate::calls::process::{credentials, exec, lifetime, seccomp};
use crate::calls::socket::{accept, bind, connect, create, listen, names, shutdown};
use crate::calls::{options, wait};
use crate::context;
use crate::descriptor::description;
use crate::signal::user_memory;
use crate::system::by_number::{self, ByNumber};
use crate::system::cancellation::{self, Before};
use crate::system::{kernel, multiplexing, sys};

/// `syscall(2)`.
///
/// # Safety
/// As the system call.
pub unsafe fn syscall(number: c_long, a: [usize; 6]) -> c_long {
    let kind = cancellation::hold();
    let active = if kind.is_asynchronous() { ByNumber::Cancellable } else { ByNumber::Whole };
    let before = by_number::set_active(active);
    // SAFETY: the caller upholds this function's contract.
    let answer = unsafe { sized_call(number, a, kind) };
    by_number::set_active(before);
    // SAFETY: nothing is held.
    unsafe { cancellation::leave(kind) };
    answer
}

/// Those that answer a size or an address.
///
/// # Safety
/// As the system call.
unsafe fn sized_call(number: c_long, a: [usize; 6], kind: Before) -> c_long {
    let int = |index: usize| a[index] as c_int;
    // SAFETY: in all arms the caller's promise is that of the call with this number.
    let answer = unsafe {
        match number {
            libc::SYS_read => files::read(int(0), a[1] as _, a[2]),
            libc::SYS_write => files::write(int(0), a[1] as _, a[2]),
            libc::SYS_readv => files::readv(int(0), a[1] as _, int(2)),
            libc::SYS_writev => files::writev(int(0), a[1] as _, int(2)),
            libc::SYS_recvfrom => transfer::recvfrom(int(0), a[1] as _, a[2], int(3), a[4] as _, a[5] as _),
            libc::SYS_sendto => transfer::sendto(int(0), a[1] as _, a[2], int(3), a[4] as _, a[5] as _),
            libc::SYS_sendmsg => files::sendmsg(int(0), a[1] as _, int(2)),
            libc::SYS_recvmsg => message::recvmsg(int(0), a[1] as _, int(2)),
            libc::SYS_sendfile => files::sendfile(int(0), int(1), a[2] as _, a[3]),
            libc::SYS_fgetxattr => control::fgetxattr(int(0), a[1] as _, a[2] as _, a[3]),
            libc::SYS_splice => files::splice(int(0), a[1] as _, int(2), a[3] as _, a[4], a[5] as c_uint),
            libc::SYS_tee => splice::tee(int(0), int(1), a[2], a[3] as c_uint),
            // The fifth argument is the upper half of the offset where registers have 32 bits.
            libc::SYS_preadv2 => files::preadv2(int(0), a[1] as _, int(2), a[3].cast_signed() as i64, int(5)),
            libc::SYS_pwritev2 => {
                files::pwritev2(int(0), a[1] as _, int(2), a[3].cast_signed() as i64, int(5))
            }
            libc::SYS_copy_file_range => {
                files::copy_file_range(int(0), a[1] as _, int(2), a[3] as _, a[4], a[5] as c_uint)
            }
            libc::SYS_mmap => {
                let offset = a[5].cast_signed() as i64;
                return files::mmap(a[0] as _, a[1], int(2), int(3), int(4), offset).addr() as c_long;
            }
            libc::SYS_pread64 => files::pread(int(0), a[1] as _, a[2], a[3].cast_signed() as i64),
            libc::SYS_pwrite64 => files::pwrite(int(0), a[1] as _, a[2], a[3].cast_signed() as i64),
            libc::SYS_preadv => files::preadv(int(0), a[1] as _, int(2), a[3].cast_signed() as i64),
            libc::SYS_pwritev => files::pwritev(int(0), a[1] as _, int(2), a[3].cast_signed() as i64),
            libc::SYS_lseek => files::lseek(int(0), a[1].cast_signed() as i64, int(2)) as isize,
            _ => return int_call(number, a, kind),
        }
    };
    answer as c_long
}

/// Those that answer an int.
///
/// # Safety
/// As the system call.
unsafe fn int_call(number: c_long, a: [usize; 6], kind: Before) -> c_long {
    let int = |index: usize| a[index] as c_int;
    // SAFETY: in all arms the caller's promise is that of the call with this number.
    let answer = unsafe {
        match number {
            libc::SYS_socket => create::socket(int(0), int(1), int(2)),
            libc::SYS_bind => bind::bind(int(0), a[1] as _, a[2] as c_uint),
            libc::SYS_listen => listen::listen(int(0), int(1)),
            libc::SYS_connect => connect::connect(int(0), a[1] as _, a[2] as c_uint),
            libc::SYS_accept => accept::accept4(int(0), a[1] as _, a[2] as _, 0),
            libc::SYS_accept4 => accept::accept4(int(0), a[1] as _, a[2] as _, int(3)),
            libc::SYS_shutdown => shutdown::shutdown(int(0), int(1)),
            libc::SYS_getsockname => names::getsockname(int(0), a[1] as _, a[2] as _),
            libc::SYS_getpeername => names::getpeername(int(0), a[1] as _, a[2] as _),
            libc::SYS_getsockopt => options::getsockopt(int(0), int(1), int(2), a[3] as _, a[4] as _),
            libc::SYS_setsockopt => options::setsockopt(int(0), int(1), int(2), a[3] as _, a[4] as c_uint),
            libc::SYS_sendmmsg => files::sendmmsg(int(0), a[1] as _, a[2] as c_uint, int(3)),
            libc::SYS_recvmmsg => message::recvmmsg(int(0), a[1] as _, a[2] as c_uint, int(3), a[4] as _),
            libc::SYS_close => files::close(int(0)),
            libc::SYS_close_range => files::close_range(a[0] as c_uint, a[1] as c_uint, int(2)),
            libc::SYS_dup => files::dup(int(0)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => files::dup2(int(0), int(1)),
            libc::SYS_dup3 => files::dup3(int(0), int(1), int(2)),
            libc::SYS_fcntl => files::fcntl(int(0), int(1), a[2]),
            libc::SYS_ioctl => control::ioctl(int(0), a[1] as _, a[2]),
            libc::SYS_prctl => seccomp::prctl(int(0), [a[1] as _, a[2] as _, a[3] as _, a[4] as _]),
            libc::SYS_seccomp => seccomp::seccomp(a[0], a[1], a[2]),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => files::open(a[0] as _, int(1), a[2]),
            libc::SYS_openat => files::openat(int(0), a[1] as _, int(2), a[3]),
            libc::SYS_fsync => files::fsync(int(0), files::Extent::All),
            libc::SYS_fdatasync => files::fsync(int(0), files::Extent::Data),
            libc::SYS_syncfs => files::syncfs(int(0)),
            libc::SYS_sync => {
                files::sync();
                0
            }
            libc::SYS_ftruncate => files::ftruncate(int(0), a[1].cast_signed() as i64),
            libc::SYS_fstat => files::fstat(int(0), a[1] as _),
            libc::SYS_exit_group => lifetime::exit(int(0)),
            libc::SYS_execve => exec::execve(a[0] as _, a[1] as _, a[2] as _),
            libc::SYS_execveat => exec::execveat(int(0), a[1] as _, a[2] as _, a[3] as _, int(4)),
            libc::SYS_io_uring_setup if context::get().is_some() => sys::to_c_int(Err(libc::ENOSYS)),
            _ => return waiting_call(number, a, kind),
        }
    };
    c_long::from(answer)
}

/// Those that wait, and all that are the kernel's alone.
///
/// # Safety
/// As the system call.
unsafe fn waiting_call(number: c_long, a: [usize; 6], kind: Before) -> c_long {
    let (number, a) = lifetime::apart_by_number(number, a);
    let int = |index: usize| a[index] as c_int;
    // SAFETY: the caller upholds this function's contract.
    if let Some(answer) = unsafe { credentials::system_call(number, a) } {
        return answer;
    }
    let polls = number == libc::SYS_ppoll || number == libc::SYS_pselect6;
    #[cfg(target_arch = "x86_64")]
    let polls = polls || number == libc::SYS_poll || number == libc::SYS_select;
    if polls && !description::has_sockets() {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { of_kernel(number, a, kind) };
    }
    // The kernel refuses the size of a mask that it does not know, if there is a mask.
    let fits = |mask: usize, size: usize| mask == 0 || size == sys::SIGNAL_SET;
    // SAFETY: in all arms the caller's promise is that of the call with this number.
    let answer = unsafe {
        match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => wait::epoll_create(int(0)),
            libc::SYS_epoll_create1 => wait::epoll_create1(int(0)),
            libc::SYS_epoll_ctl => wait::epoll_ctl(int(0), int(1), int(2), a[3] as _),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => wait::epoll_pwait(int(0), a[1] as _, int(2), int(3), ptr::null()),
            libc::SYS_epoll_pwait if fits(a[4], a[5]) => {
                wait::epoll_pwait(int(0), a[1] as _, int(2), int(3), a[4] as _)
            }
            libc::SYS_epoll_pwait2 if fits(a[4], a[5]) => {
                wait::epoll_pwait2(int(0), a[1] as _, int(2), a[3] as _, a[4] as _)
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => wait::poll(a[0] as _, a[1] as _, int(2)),
            libc::SYS_ppoll if fits(a[3], a[4]) => {
                with_remaining_time(a[2], |time| wait::ppoll(a[0] as _, a[1] as _, time, a[3] as _))
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => wait::select(int(0), a[1] as _, a[2] as _, a[3] as _, a[4] as _),
            libc::SYS_pselect6 => match mask_and_size(a[5]) {
                Some([mask, size]) if fits(mask, size) => with_remaining_time(a[4], |time| {
                    wait::pselect(int(0), a[1] as _, a[2] as _, a[3] as _, time, mask as _)
                }),
                _ => return of_kernel(number, a, kind),
            },
            _ => return lifetime::forked(number, of_kernel(number, a, kind)),
        }
    };
    c_long::from(answer)
}

/// A call that is the kernel's alone, in which a thread that has the asynchronous type of
/// cancellation is cancelled as without this library.
///
/// # Safety
/// As the system call.
unsafe fn of_kernel(number: c_long, a: [usize; 6], kind: Before) -> c_long {
    // SAFETY: the caller upholds this function's contract. Nothing is held.
    let answer = unsafe {
        cancellation::release(kind);
        sys::to_c(sys::syscall(number, a)) as c_long
    };
    cancellation::hold_again(kind);
    answer
}

/// The last argument of `pselect6`: where the mask is, and its size. None: no program has anything
/// there.
///
/// # Safety
/// A pair of numbers, or null, or for the kernel to refuse.
unsafe fn mask_and_size(pair: usize) -> Option<[usize; 2]> {
    let pair = sys::pointer(pair).cast::<[usize; 2]>();
    if pair.is_null() {
        return Some([0, 0]);
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { user_memory::read(pair) }.ok()
}

/// Makes a call that leaves the time unchanged, and then writes the remaining time, as these system
/// calls do.
///
/// # Safety
/// `time` is that of a `timespec`, or null, or for the kernel to refuse.
unsafe fn with_remaining_time(time: usize, call: impl FnOnce(*const timespec) -> c_int) -> c_int {
    let place = sys::pointer(time).cast::<timespec>();
    if place.is_null() {
        return call(place);
    }
    // SAFETY: the caller upholds this function's contract.
    let Ok(given) = (unsafe { user_memory::read(place) }) else { return call(place) };
    let (Ok(seconds), Ok(rest)) = (u64::try_from(given.tv_sec), u64::try_from(given.tv_nsec)) else {
        return call(place);
    };
    let whole = seconds.saturating_mul(1_000_000_000).saturating_add(rest);
    let began = kernel::now();
    let answer = call(&raw const given);
    if whole != 0 {
        let left = multiplexing::timespec(whole.saturating_sub(kernel::now().saturating_sub(began)));
        user_memory::write_if_possible(place, &left);
    }
    answer
}
