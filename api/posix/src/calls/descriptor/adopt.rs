//! Descriptors that came from elsewhere: over exec, or in a message.
//!
//! 1. A placeholder is a Unix socket without a name whose other end has none either. A holder may
//!    query the service about it; to hold it is all the right that this takes. A kernel TCP socket
//!    that is at most bound may still listen or connect, and is treated as one that this program
//!    made. A socket that listens or is connected stays the kernel's.
//! 2. The constructor checks everything in `/proc/self/fd`, read with system calls into the stack.
//!    After an exec two descriptors of one socket become two descriptions; their common state is in
//!    the end's private page. Locks that a thread of the former program held are freed
//!    ([`Endpoint::free_after_exec`](sietch_ring::stream::Endpoint::free_after_exec)).
//! 3. The C library's `stdin`, `stdout` and `stderr` read descriptors 0, 1 and 2 without a call
//!    that could be intercepted. Streams there are replaced (`calls::data::stdio`).

use std::ffi::c_int;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::Ordering::Relaxed;

use libc::msghdr;

use crate::calls::data::stdio;
use crate::calls::socket::create;
use crate::context;
use crate::descriptor::description::{self, Kind, set_listener_name, socket_flag};
use crate::descriptor::table;
use crate::listener::kernel_socket;
use crate::readiness::inherit;
use crate::service::client::{self, Adopted};
use crate::system::kernel;
use crate::system::sys::{self, address, address_mut, signed};

/// Descriptors that one message can carry (`SCM_MAX_FD`).
pub(crate) const MAX_DESCRIPTORS: usize = 253;

/// Whether a descriptor may be a placeholder: a connected Unix socket, stream or of packets, both
/// sides without names.
fn may_be_ours(fd: c_int) -> bool {
    let option = |name| kernel::socket_option(fd, libc::SOL_SOCKET, name);
    if option(libc::SO_DOMAIN) != Ok(libc::AF_UNIX)
        || !matches!(option(libc::SO_TYPE), Ok(libc::SOCK_STREAM | libc::SOCK_SEQPACKET))
    {
        return false;
    }
    nameless(fd, libc::SYS_getsockname) && nameless(fd, libc::SYS_getpeername)
}

fn nameless(fd: c_int, call: libc::c_long) -> bool {
    let mut name = [0_u8; 110];
    let mut length: libc::socklen_t = 110;
    let (to, size) = (address_mut(name.as_mut_ptr()), address_mut(&raw mut length));
    // SAFETY: the kernel writes at most 110 bytes, and the length.
    unsafe { sys::syscall(call, [signed(fd), to, size, 0, 0, 0]) }.is_ok() && length == 2
}

/// Takes a TCP socket of the kernel into the table if it neither listens nor is connected, nor
/// about to be.
fn adopt_unused(fd: c_int) {
    /// `TCP_CLOSE` of `struct tcp_info`.
    const CLOSED: u8 = 7;
    let option = |level, name| kernel::socket_option(fd, level, name);
    let is = |name, value| option(libc::SOL_SOCKET, name) == Ok(value);
    let Ok(domain @ (libc::AF_INET | libc::AF_INET6)) = option(libc::SOL_SOCKET, libc::SO_DOMAIN) else {
        return;
    };
    let tcp = is(libc::SO_TYPE, libc::SOCK_STREAM) && is(libc::SO_PROTOCOL, libc::IPPROTO_TCP);
    // The first of its bytes is the state.
    let state = option(libc::IPPROTO_TCP, libc::TCP_INFO).map(|word| word.to_ne_bytes()[0]);
    if tcp && is(libc::SO_ACCEPTCONN, 0) && state == Ok(CLOSED) {
        create::remember_inherited(fd, domain);
    }
}

/// Queries the service about a descriptor, and puts it into the table if it is ours.
pub(crate) fn adopt(fd: c_int) -> bool {
    if table::is_ours(fd) {
        drop(table::remove(fd));
    }
    let Some(context) = context::get() else { return false };
    if !may_be_ours(fd) {
        adopt_unused(fd);
        return false;
    }
    let held = match client::adopt(context, fd) {
        Ok(Adopted::Stream(end)) => {
            let family = u16::from_ne_bytes([end.names().local[0], end.names().local[1]]);
            let held = description::describe(Kind::Stream, Some(end));
            if let Some(held) = &held {
                held.socket.domain.store(u32::from(family), Relaxed);
            }
            held
        }
        Ok(Adopted::Listener(name, backlog, kernel)) => {
            let held = description::describe(Kind::Listener, None);
            if let Some(held) = &held {
                held.socket
                    .domain
                    .store(u32::from(u16::from_ne_bytes([name.bytes[0], name.bytes[1]])), Relaxed);
                let backlog = backlog.unwrap_or(libc::SOMAXCONN.cast_unsigned());
                held.socket.backlog.store(backlog, Relaxed);
                set_listener_name(held, &name);
                // Whether the program had chosen the port is not known.
                held.socket.flags.fetch_or(socket_flag::BOUND, Relaxed);
                if let Some(kernel) = &kernel {
                    kernel_socket::keep_socket(held, kernel.as_raw_fd());
                }
            }
            held
        }
        Ok(Adopted::Unknown) | Err(_) => None,
    };
    held.is_some_and(|held| table::put(fd, &held))
}

/// Checks the descriptors that arrived with a message over a Unix socket.
///
/// # Safety
/// The message is as `recvmsg` left it.
pub(crate) unsafe fn adopt_received(message: &msghdr) {
    if message.msg_controllen == 0 || message.msg_control.is_null() {
        return;
    }
    // SAFETY: the kernel filled the control data in, well formed.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(this) = header.as_ref() {
            if this.cmsg_level == libc::SOL_SOCKET && this.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(this).cast_const();
                let bytes = this.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                for index in 0..(bytes / size_of::<c_int>()).min(MAX_DESCRIPTORS) {
                    let mut number = [0; size_of::<c_int>()];
                    std::ptr::copy_nonoverlapping(
                        data.add(index * number.len()),
                        number.as_mut_ptr(),
                        number.len(),
                    );
                    adopt(c_int::from_ne_bytes(number));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Adopts what exec left open. To be called once, before `main`.
pub(crate) fn adopt_inherited() {
    each_descriptor(|fd| {
        if !adopt(fd) {
            return;
        }
        // Before `main` this thread holds no lock.
        if let Some(held) = table::find(fd)
            && let Some(end) = held.end()
        {
            end.free_after_exec();
        }
        if fd <= 2 {
            stdio::replace_standard(fd);
        }
    });
    // Only now is known which of the sockets in them are streams.
    each_descriptor(|fd| {
        if !table::is_ours(fd) && is_epoll(fd) {
            inherit::read(fd);
        }
    });
}

/// Whether a descriptor is an epoll, as its link in `/proc` says.
fn is_epoll(fd: c_int) -> bool {
    const NAME: &[u8] = b"anon_inode:[eventpoll]";
    let mut path = [0_u8; 32];
    let (mut digits, mut rest) = ([b'0'; 10], fd.unsigned_abs());
    let mut first = digits.len();
    while first == digits.len() || rest != 0 {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let name = b"/proc/self/fd/".iter().chain(&digits[first..]);
    path.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
    let mut link = [0_u8; 64];
    let arguments =
        [signed(libc::AT_FDCWD), address(path.as_ptr()), address_mut(link.as_mut_ptr()), link.len(), 0, 0];
    // SAFETY: the kernel reads the path, which ends with a zero, and writes at most so many bytes.
    let length = unsafe { sys::syscall(libc::SYS_readlinkat, arguments) };
    length.is_ok_and(|length| link.get(..length) == Some(NAME))
}

/// Calls `each` for every open descriptor.
fn each_descriptor(mut each: impl FnMut(c_int)) {
    let path = c"/proc/self/fd";
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let arguments = [signed(libc::AT_FDCWD), address(path.as_ptr()), signed(flags), 0, 0, 0];
    // SAFETY: the kernel reads the path.
    let Ok(directory) = (unsafe { sys::syscall(libc::SYS_openat, arguments) }) else { return };
    let mut entries = [0_u64; 256];
    loop {
        let arguments = [directory, address_mut(entries.as_mut_ptr()), size_of_val(&entries), 0, 0, 0];
        // SAFETY: the kernel writes at most so many bytes.
        let Ok(bytes @ 1..) = (unsafe { sys::syscall(libc::SYS_getdents64, arguments) }) else { break };
        each_entry(&entries, bytes, |fd| {
            if fd as usize != directory {
                each(fd);
            }
        });
    }
    let _ = kernel::close(directory as c_int);
}

/// Calls `each` for every name that is a number, in what `getdents64` wrote.
fn each_entry(entries: &[u64; 256], length: usize, mut each: impl FnMut(c_int)) {
    let byte = |at: usize| entries.get(at / 8).map_or(0, |word| word.to_ne_bytes()[at % 8]);
    let mut at = 0;
    while at + 19 < length {
        let size = usize::from(u16::from_ne_bytes([byte(at + 16), byte(at + 17)]));
        let mut number = None;
        for place in at + 19..at + size {
            match byte(place) {
                digit @ b'0'..=b'9' => {
                    number = Some(number.unwrap_or(0).min(c_int::MAX / 20) * 10 + c_int::from(digit - b'0'));
                }
                0 => break,
                _ => {
                    number = None;
                    break;
                }
            }
        }
        if let Some(fd) = number {
            each(fd);
        }
        at += size.max(20);
    }
}
