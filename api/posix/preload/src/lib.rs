//! The library that `sietch run` preloads: the C library's calls, each forwarded to
//! `sietch-posix`.
//!
//! Nothing but exports. The variadic ones (`fcntl`, `ioctl`, `prctl`, `syscall`) take their
//! arguments as numbers: on the machines that Sietch runs on a variadic caller passes them in the
//! same registers.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use sietch_posix::calls::{data, descriptor, files as calls, options, process, socket, syscall};
use sietch_posix::{Build, MAGIC};

mod dlopen;
mod exec;
mod export;
mod files;
mod variadic;
mod wait;

use export::{check, export, function, points};

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Which build this is, for `sietch run` to read from the file. Exported, or the linker would leave
/// it out.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".sietch.build")]
pub static SIETCH_BUILD: Build = Build::own(MAGIC);

/// AddressSanitizer asks here for its options, unless the program itself answers. It would end a
/// program in which another library comes before its own. Its functions are behind this library's,
/// which call them.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

extern "C" fn begin() {
    process::begin();
    files::begin();
}

extern "C" fn end() {
    process::end();
}

points! {
    connect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int => socket::connect(fd, name, length);
    __connect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int => socket::connect(fd, name, length);
    accept(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int => socket::accept4(fd, name, length, 0);
    accept4(fd: c_int, name: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int => socket::accept4(fd, name, length, flags);
}

export! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int => socket::socket(domain, kind, protocol);
    bind(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int => socket::bind(fd, name, length);
    listen(fd: c_int, backlog: c_int) -> c_int => socket::listen(fd, backlog);
    shutdown(fd: c_int, how: c_int) -> c_int => socket::shutdown(fd, how);
    getsockname(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int => socket::getsockname(fd, name, length);
    getpeername(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int => socket::getpeername(fd, name, length);
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int => options::getsockopt(fd, level, name, value, length);
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int => options::setsockopt(fd, level, name, value, length);
    sockatmark(fd: c_int) -> c_int => descriptor::sockatmark(fd);
    fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t => descriptor::fgetxattr(fd, name, value, size);
}

points! {
    read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t => calls::read(fd, to, length);
    __read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t => calls::read(fd, to, length);
    write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t => calls::write(fd, from, length);
    __write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t => calls::write(fd, from, length);
    readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t => calls::readv(fd, vectors, count);
    writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t => calls::writev(fd, vectors, count);
    preadv2(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t => calls::preadv2(fd, vectors, count, offset, flags);
    preadv64v2(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t => calls::preadv2(fd, vectors, count, offset, flags);
    pwritev2(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t => calls::pwritev2(fd, vectors, count, offset, flags);
    pwritev64v2(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t => calls::pwritev2(fd, vectors, count, offset, flags);
    recv(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t => data::recvfrom(fd, to, length, flags, std::ptr::null_mut(), std::ptr::null_mut());
    __recv(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t => data::recvfrom(fd, to, length, flags, std::ptr::null_mut(), std::ptr::null_mut());
    recvfrom(fd: c_int, to: *mut c_void, length: size_t, flags: c_int, name: *mut sockaddr, name_length: *mut socklen_t) -> ssize_t => data::recvfrom(fd, to, length, flags, name, name_length);
    send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t => data::sendto(fd, from, length, flags, std::ptr::null(), 0);
    __send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t => data::sendto(fd, from, length, flags, std::ptr::null(), 0);
    sendto(fd: c_int, from: *const c_void, length: size_t, flags: c_int, name: *const sockaddr, name_length: socklen_t) -> ssize_t => data::sendto(fd, from, length, flags, name, name_length);
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t => calls::sendmsg(fd, message, flags);
    __sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t => calls::sendmsg(fd, message, flags);
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t => data::recvmsg(fd, message, flags);
    __recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t => data::recvmsg(fd, message, flags);
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int => calls::sendmmsg(fd, messages, count, flags);
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int => data::recvmmsg(fd, messages, count, flags, timeout);
    sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t => calls::sendfile(out, from, offset, count);
    sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t => calls::sendfile(out, from, offset, count);
    splice(from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, length: size_t, flags: c_uint) -> ssize_t => calls::splice(from, from_offset, to, to_offset, length, flags);
    tee(from: c_int, to: c_int, length: size_t, flags: c_uint) -> ssize_t => data::tee(from, to, length, flags);
}

export! {
    fdopen(fd: c_int, mode: *const c_char) -> *mut c_void => calls::fdopen(fd, mode);
}

points! {
    __read_chk(fd: c_int, to: *mut c_void, length: size_t, room: size_t) -> ssize_t => {
        check(length, room);
        calls::read(fd, to, length)
    };
    __recv_chk(fd: c_int, to: *mut c_void, length: size_t, room: size_t, flags: c_int) -> ssize_t => {
        check(length, room);
        data::recvfrom(fd, to, length, flags, std::ptr::null_mut(), std::ptr::null_mut())
    };
    __recvfrom_chk(fd: c_int, to: *mut c_void, length: size_t, room: size_t, flags: c_int, name: *mut sockaddr, name_length: *mut socklen_t) -> ssize_t => {
        check(length, room);
        data::recvfrom(fd, to, length, flags, name, name_length)
    };
}

export! {
    close(fd: c_int) -> c_int => calls::close(fd);
    __close(fd: c_int) -> c_int => calls::close(fd);
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int => calls::close_range(first, last, flags);
    closefrom(first: c_int) => calls::closefrom(first);
    dup(old: c_int) -> c_int => calls::dup(old);
    dup2(old: c_int, new: c_int) -> c_int => calls::dup2(old, new);
    __dup2(old: c_int, new: c_int) -> c_int => calls::dup2(old, new);
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int => calls::dup3(old, new, flags);
    fcntl(fd: c_int, command: c_int, argument: size_t) -> c_int => calls::fcntl(fd, command, argument);
    fcntl64(fd: c_int, command: c_int, argument: size_t) -> c_int => calls::fcntl(fd, command, argument);
    __fcntl(fd: c_int, command: c_int, argument: size_t) -> c_int => calls::fcntl(fd, command, argument);
    ioctl(fd: c_int, request: c_ulong, argument: size_t) -> c_int => descriptor::ioctl(fd, request, argument);
    vfork() -> c_int => process::fork();
    __vfork() -> c_int => process::fork();
}

function! {
    _exit(status: c_int) -> ! => process::exit(status);
    _Exit(status: c_int) -> ! => process::exit(status);
    syscall(number: c_long, a: size_t, b: size_t, c: size_t, d: size_t, e: size_t, f: size_t) -> c_long => syscall::syscall(number, [a, b, c, d, e, f]);
}

function! {
    pthread_cancel(thread: c_ulong) -> c_int => process::cancel(thread);
    pthread_setcanceltype(new: c_int, before: *mut c_int) -> c_int => process::set_type(new, before);
}
