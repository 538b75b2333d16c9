//! Calls that wait with a signal mask, made without the C library's function: the kernel also needs
//! the size of the mask.

use std::os::fd::AsRawFd as _;
use std::ptr;

use super::*;

/// No signal; what comes after it is no part of it for the kernel.
fn none() -> libc::sigset_t {
    // SAFETY: zeros are a value of it.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes one set.
    unsafe { libc::sigemptyset(&raw mut set) };
    set
}

/// A stream's end that has a byte to read, and the other one.
fn readable() -> (std::os::unix::net::UnixStream, std::os::unix::net::UnixStream) {
    let (mut one, other) = std::os::unix::net::UnixStream::pair().expect("descriptors");
    std::io::Write::write_all(&mut one, b"x").expect("room for a byte");
    (other, one)
}

#[test]
fn an_epoll_is_waited_for_with_a_mask() {
    let (stream, _other) = readable();
    // SAFETY: touches no memory.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    // SAFETY: one event is read.
    assert_eq!(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), &raw mut event) }, 0);
    let (mask, time) = (none(), timespec { tv_sec: 5, tv_nsec: 0 });
    for (number, until) in [(libc::SYS_epoll_pwait, 5000), (libc::SYS_epoll_pwait2, address(&raw const time))]
    {
        let mut found = libc::epoll_event { events: 0, u64: 0 };
        let to = address_mut(&raw mut found);
        let arguments = [epoll as usize, to, 1, until, address(&raw const mask), 0];
        // SAFETY: one event is written; time and mask are read.
        let outcome = unsafe { system_call(number, arguments) };
        assert_eq!((outcome, { found.u64 }), (Ok(1), 7), "{number}");
    }
    let _ = crate::system::kernel::close(epoll);
}

#[test]
fn descriptors_are_waited_for_with_a_mask_and_the_time_is_left_as_it_was() {
    let (stream, _other) = readable();
    let (mask, time) = (none(), timespec { tv_sec: 5, tv_nsec: 0 });
    let (mask, until) = (address(&raw const mask), address(&raw const time));
    let mut entry = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let arguments = [address_mut(&raw mut entry), 1, until, mask, 0, 0];
    // SAFETY: one entry is written; time and mask are read.
    assert_eq!(unsafe { system_call(libc::SYS_ppoll, arguments) }, Ok(1));
    // SAFETY: zeros are an empty set.
    let mut set: libc::fd_set = unsafe { std::mem::zeroed() };
    // SAFETY: the number is far below the size of a set.
    unsafe { libc::FD_SET(stream.as_raw_fd(), &raw mut set) };
    let count = stream.as_raw_fd() as usize + 1;
    let arguments = [count, address_mut(&raw mut set), address(ptr::null::<u8>()), 0, until, mask];
    // SAFETY: one set is written; time and mask are read.
    assert_eq!(unsafe { system_call(libc::SYS_pselect6, arguments) }, Ok(1));
    assert_eq!((time.tv_sec, time.tv_nsec), (5, 0));
}
