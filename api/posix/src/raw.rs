//! `syscall(2)`: numbers that concern sockets go where the C library's functions go, all others to the kernel.
//!
//! io_uring would work on placeholders. Under Sietch it is not there, as with a kernel that is
//! built without it: programs that have another way take that (libuv, and so Node and uvloop).
//! liburing makes its system calls itself and does not come here.

use std::ffi::{c_int, c_long, c_uint};

use crate::{
    accept, confined, context, data, descriptor, exec, file, message, options_of, process, socket, sys,
};

/// `syscall(2)`.
///
/// # Safety
/// As the system call.
pub unsafe fn syscall(number: c_long, a: [usize; 6]) -> c_long {
    let int = |index: usize| a[index] as c_int;
    // SAFETY: in all arms the caller's promise is that of the call with this number.
    let answer = unsafe {
        match number {
            libc::SYS_read => data::read(int(0), a[1] as _, a[2]),
            libc::SYS_write => data::write(int(0), a[1] as _, a[2]),
            libc::SYS_readv => data::readv(int(0), a[1] as _, int(2)),
            libc::SYS_writev => data::writev(int(0), a[1] as _, int(2)),
            libc::SYS_recvfrom => data::recvfrom(int(0), a[1] as _, a[2], int(3), a[4] as _, a[5] as _),
            libc::SYS_sendto => data::sendto(int(0), a[1] as _, a[2], int(3), a[4] as _, a[5] as _),
            libc::SYS_sendmsg => message::sendmsg(int(0), a[1] as _, int(2)),
            libc::SYS_recvmsg => message::recvmsg(int(0), a[1] as _, int(2)),
            libc::SYS_sendfile => file::sendfile(int(0), int(1), a[2] as _, a[3]),
            libc::SYS_splice => file::splice(int(0), a[1] as _, int(2), a[3] as _, a[4], a[5] as c_uint),
            libc::SYS_tee => file::tee(int(0), int(1), a[2], a[3] as c_uint),
            _ => return small(number, a),
        }
    };
    answer as c_long
}

/// Those that answer an int.
///
/// # Safety
/// As the system call.
unsafe fn small(number: c_long, a: [usize; 6]) -> c_long {
    let int = |index: usize| a[index] as c_int;
    // SAFETY: in all arms the caller's promise is that of the call with this number.
    let answer = unsafe {
        match number {
            libc::SYS_socket => socket::socket(int(0), int(1), int(2)),
            libc::SYS_bind => socket::bind(int(0), a[1] as _, a[2] as c_uint),
            libc::SYS_listen => socket::listen(int(0), int(1)),
            libc::SYS_connect => socket::connect(int(0), a[1] as _, a[2] as c_uint),
            libc::SYS_accept => accept::accept4(int(0), a[1] as _, a[2] as _, 0),
            libc::SYS_accept4 => accept::accept4(int(0), a[1] as _, a[2] as _, int(3)),
            libc::SYS_shutdown => socket::shutdown(int(0), int(1)),
            libc::SYS_getsockname => socket::getsockname(int(0), a[1] as _, a[2] as _),
            libc::SYS_getpeername => socket::getpeername(int(0), a[1] as _, a[2] as _),
            libc::SYS_getsockopt => options_of::getsockopt(int(0), int(1), int(2), a[3] as _, a[4] as _),
            libc::SYS_setsockopt => options_of::setsockopt(int(0), int(1), int(2), a[3] as _, a[4] as c_uint),
            libc::SYS_sendmmsg => message::sendmmsg(int(0), a[1] as _, a[2] as c_uint, int(3)),
            libc::SYS_recvmmsg => message::recvmmsg(int(0), a[1] as _, a[2] as c_uint, int(3), a[4] as _),
            libc::SYS_close => descriptor::close(int(0)),
            libc::SYS_close_range => descriptor::close_range(a[0] as c_uint, a[1] as c_uint, int(2)),
            libc::SYS_dup => descriptor::dup(int(0)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => descriptor::dup2(int(0), int(1)),
            libc::SYS_dup3 => descriptor::dup3(int(0), int(1), int(2)),
            libc::SYS_fcntl => descriptor::fcntl(int(0), int(1), a[2]),
            libc::SYS_ioctl => descriptor::ioctl(int(0), a[1] as _, a[2]),
            libc::SYS_prctl => confined::prctl(int(0), [a[1] as _, a[2] as _, a[3] as _, a[4] as _]),
            libc::SYS_seccomp => confined::seccomp(a[0], a[1], a[2]),
            libc::SYS_exit_group => process::exit(int(0)),
            libc::SYS_execve => exec::execve(a[0] as _, a[1] as _, a[2] as _),
            libc::SYS_execveat => exec::execveat(int(0), a[1] as _, a[2] as _, a[3] as _, int(4)),
            libc::SYS_io_uring_setup if context::get().is_some() => sys::give_int(Err(libc::ENOSYS)),
            _ => return sys::give(sys::ask(number, a)) as c_long,
        }
    };
    c_long::from(answer)
}
