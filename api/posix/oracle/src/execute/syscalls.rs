//! Safe wrappers of libc's socket calls.
//!
//! 1. Every pointer is made here, from a slice that outlives the call.
//! 2. A length is never greater than its slice, so a call never writes past it.
//! 3. Each wrapper returns the value or the errno ([`Returned`]) and interprets neither.

use std::ptr;

use super::errno::Returned;

/// A length for the kernel; a slice is never longer than that type can say.
fn socklen(length: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(length).unwrap_or(libc::socklen_t::MAX)
}

/// An operand of a program as an `int` argument.
pub(super) fn int(value: i64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Makes a safe function of a libc function that takes numbers only.
macro_rules! numbers_only {
    ($( $(#[$doc:meta])* $name:ident ( $( $argument:ident ),* ) = $function:path; )*) => {
        $( $(#[$doc])*
        pub(super) fn $name($( $argument: i32 ),*) -> Returned {
            // SAFETY: numbers only; the kernel checks them.
            Returned::of(unsafe { $function($( $argument ),*) })
        } )*
    };
}

numbers_only! {
    /// `socket`.
    socket(family, kind, protocol) = libc::socket;
    /// `listen`.
    listen(fd, backlog) = libc::listen;
    /// `shutdown`.
    shutdown(fd, how) = libc::shutdown;
    /// `close`.
    close(fd) = libc::close;
    /// `dup`.
    dup(fd) = libc::dup;
    /// `dup2`.
    dup2(fd, onto) = libc::dup2;
    /// `dup3`.
    dup3(fd, onto, flags) = libc::dup3;
    /// `epoll_create1`.
    epoll_create(flags) = libc::epoll_create1;
}

/// `close_range`.
pub(super) fn close_range(from: u32, to: u32) -> Returned {
    // SAFETY: numbers only.
    Returned::of(unsafe { libc::close_range(from, to, 0) })
}

/// `fcntl` with a number.
pub(super) fn fcntl(fd: i32, command: i32, argument: i32) -> Returned {
    // SAFETY: numbers only, for the commands that the executor uses.
    Returned::of(unsafe { libc::fcntl(fd, command, argument) })
}

/// `eventfd`.
pub(super) fn eventfd(value: u32, flags: i32) -> Returned {
    // SAFETY: numbers only.
    Returned::of(unsafe { libc::eventfd(value, flags) })
}

/// `ioctl` with a number in memory.
pub(super) fn ioctl(fd: i32, request: libc::c_ulong, value: &mut i32) -> Returned {
    // SAFETY: the requests that the executor uses read or write one int.
    Returned::of(unsafe { libc::ioctl(fd, request, ptr::from_mut(value)) })
}

/// `bind`.
pub(super) fn bind(fd: i32, address: &[u8]) -> Returned {
    // SAFETY: the slice outlives the call.
    Returned::of(unsafe { libc::bind(fd, address.as_ptr().cast(), socklen(address.len())) })
}

/// `connect`.
pub(super) fn connect(fd: i32, address: &[u8]) -> Returned {
    // SAFETY: the slice outlives the call.
    Returned::of(unsafe { libc::connect(fd, address.as_ptr().cast(), socklen(address.len())) })
}

/// A call that writes an address.
#[derive(Clone, Copy)]
pub(super) enum Naming {
    /// `accept`.
    Accept,
    /// `getsockname`.
    Own,
    /// `getpeername`.
    Peer,
}

/// A call that writes an address of at most `room` bytes; also the length that it returns.
pub(super) fn name(call: Naming, fd: i32, bytes: &mut [u8], room: usize) -> (Returned, usize) {
    let mut length = socklen(room.min(bytes.len()));
    let function = match call {
        Naming::Accept => libc::accept,
        Naming::Own => libc::getsockname,
        Naming::Peer => libc::getpeername,
    };
    // SAFETY: the slice has at least `length` bytes; both outlive the call.
    let returned = Returned::of(unsafe { function(fd, bytes.as_mut_ptr().cast(), &raw mut length) });
    (returned, usize::try_from(length).unwrap_or(0))
}

/// `accept4` without an address.
pub(super) fn accept(fd: i32, flags: i32) -> Returned {
    // SAFETY: without an address there is nothing to write.
    Returned::of(unsafe { libc::accept4(fd, ptr::null_mut(), ptr::null_mut(), flags) })
}

/// `read`.
pub(super) fn read(fd: i32, bytes: &mut [u8]) -> Returned {
    // SAFETY: the slice outlives the call.
    Returned::of_length(unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) })
}

/// `write`.
pub(super) fn write(fd: i32, bytes: &[u8]) -> Returned {
    // SAFETY: the slice outlives the call.
    Returned::of_length(unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) })
}

/// `recv`.
pub(super) fn recv(fd: i32, bytes: &mut [u8], flags: i32) -> Returned {
    // SAFETY: the slice outlives the call.
    Returned::of_length(unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) })
}

/// `send`.
pub(super) fn send(fd: i32, bytes: &[u8], flags: i32) -> Returned {
    // SAFETY: the slice outlives the call.
    Returned::of_length(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// `recvfrom`; also the length of the address.
pub(super) fn recvfrom(
    fd: i32,
    bytes: &mut [u8],
    flags: i32,
    name: &mut [u8],
    room: usize,
) -> (Returned, usize) {
    let mut length = socklen(room.min(name.len()));
    // SAFETY: both slices outlive the call, and `name` has at least `length` bytes.
    let returned = Returned::of_length(unsafe {
        libc::recvfrom(
            fd,
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            flags,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    });
    (returned, usize::try_from(length).unwrap_or(0))
}

/// `sendto`.
pub(super) fn sendto(fd: i32, bytes: &[u8], flags: i32, name: &[u8]) -> Returned {
    // SAFETY: both slices outlive the call.
    Returned::of_length(unsafe {
        libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, name.as_ptr().cast(), socklen(name.len()))
    })
}

/// Two buffers as the kernel takes them.
pub(super) fn vectors(first: &mut [u8], second: &mut [u8]) -> [libc::iovec; 2] {
    [first, second].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
}

/// `readv` into two buffers.
pub(super) fn readv(fd: i32, first: &mut [u8], second: &mut [u8]) -> Returned {
    let vectors = vectors(first, second);
    // SAFETY: both slices outlive the call.
    Returned::of_length(unsafe { libc::readv(fd, vectors.as_ptr(), 2) })
}

/// `writev` of two buffers.
pub(super) fn writev(fd: i32, first: &mut [u8], second: &mut [u8]) -> Returned {
    let vectors = vectors(first, second);
    // SAFETY: both slices outlive the call.
    Returned::of_length(unsafe { libc::writev(fd, vectors.as_ptr(), 2) })
}

/// `setsockopt` of bytes, as long as `length` says.
pub(super) fn setsockopt(fd: i32, level: i32, option: i32, bytes: &[u8; 64], length: i64) -> Returned {
    // A length beyond the buffer would make the kernel read other memory; it refuses a negative
    // one before it reads.
    let length = u32::try_from(length.clamp(-1, 64) & 0xffff_ffff).unwrap_or(0);
    // SAFETY: the array has as many bytes as `length` says.
    Returned::of(unsafe { libc::setsockopt(fd, level, option, bytes.as_ptr().cast(), length) })
}

/// `getsockopt` into bytes; also the length that it returns.
pub(super) fn getsockopt(
    fd: i32,
    level: i32,
    option: i32,
    bytes: &mut [u8; 256],
    room: i64,
) -> (Returned, u32) {
    let mut length = u32::try_from(room.clamp(-1, 256) & 0xffff_ffff).unwrap_or(0);
    // SAFETY: the array has as many bytes as `length` says.
    let returned = Returned::of(unsafe {
        libc::getsockopt(fd, level, option, bytes.as_mut_ptr().cast(), &raw mut length)
    });
    (returned, length)
}

/// `pipe2`.
pub(super) fn pipe(flags: i32) -> (Returned, [i32; 2]) {
    let mut ends = [-1; 2];
    // SAFETY: the array has two elements.
    (Returned::of(unsafe { libc::pipe2(ends.as_mut_ptr(), flags) }), ends)
}

/// `socketpair` of Unix stream sockets.
pub(super) fn socketpair(flags: i32) -> (Returned, [i32; 2]) {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_STREAM | flags;
    // SAFETY: the array has two elements.
    (Returned::of(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) }), ends)
}

/// A file in memory.
pub(super) fn memfd() -> Returned {
    // SAFETY: a name that ends with a zero.
    Returned::of(unsafe { libc::memfd_create(c"program".as_ptr(), libc::MFD_ALLOW_SEALING) })
}

/// Seals a file in memory against writes: the kernel reads bytes sent by `sendfile` only when
/// they are received.
pub(super) fn seal(fd: i32) {
    // SAFETY: numbers only.
    unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
}

/// `sendfile` from an offset, or from the file's position (-1); also the offset afterwards.
pub(super) fn sendfile(out: i32, input: i32, offset: i64, count: usize) -> (Returned, i64) {
    let mut position = offset;
    let pointer = if offset < 0 { ptr::null_mut() } else { &raw mut position };
    // SAFETY: the offset outlives the call.
    (Returned::of_length(unsafe { libc::sendfile(out, input, pointer, count) }), position)
}

/// `splice` without offsets.
pub(super) fn splice(input: i32, out: i32, length: usize) -> Returned {
    // SAFETY: without offsets there is nothing to write.
    Returned::of_length(unsafe { libc::splice(input, ptr::null_mut(), out, ptr::null_mut(), length, 0) })
}

/// The position of a file, for what `sendfile` did to it.
pub(super) fn position(fd: i32) -> Returned {
    // SAFETY: numbers only.
    Returned::of(unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) })
}

/// `lseek` to the start.
pub(super) fn rewind(fd: i32) {
    // SAFETY: numbers only.
    unsafe { libc::lseek(fd, 0, libc::SEEK_SET) };
}

/// Whether `fd` can be read within that time; for the director and for waits that are no part of a
/// call.
pub(super) fn wait_for(fd: i32, events: i16, milliseconds: i32) -> bool {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut entry, 1, milliseconds) == 1 }
}
