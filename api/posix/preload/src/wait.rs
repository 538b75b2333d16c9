//! epoll, poll, select and signals.

use std::ffi::{c_int, c_void};

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use sietch_posix::calls::{signal, wait};

use crate::export::{export, function, points};

points! {
    epoll_wait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int => wait::epoll_pwait(epfd, events, most, timeout, std::ptr::null());
    epoll_pwait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int => wait::epoll_pwait(epfd, events, most, timeout, mask);
    epoll_pwait2(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int => wait::epoll_pwait2(epfd, events, most, timeout, mask);
    poll(descriptors: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int => wait::poll(descriptors, count, timeout);
    __poll(descriptors: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int => wait::poll(descriptors, count, timeout);
    __poll_chk(descriptors: *mut pollfd, count: nfds_t, timeout: c_int, _size: size_t) -> c_int => wait::poll(descriptors, count, timeout);
    ppoll(descriptors: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int => wait::ppoll(descriptors, count, timeout, mask);
    __ppoll_chk(descriptors: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, _size: size_t) -> c_int => wait::ppoll(descriptors, count, timeout, mask);
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int => wait::select(count, read, write, except, timeout);
    __select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int => wait::select(count, read, write, except, timeout);
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int => wait::pselect(count, read, write, except, timeout, mask);
}

export! {
    epoll_create(size: c_int) -> c_int => wait::epoll_create(size);
    epoll_create1(flags: c_int) -> c_int => wait::epoll_create1(flags);
    epoll_ctl(epfd: c_int, call: c_int, fd: c_int, event: *mut epoll_event) -> c_int => wait::epoll_ctl(epfd, call, fd, event);
    sigaction(signal: c_int, new: *const c_void, old: *mut c_void) -> c_int => signal::sigaction(signal, new.cast(), old.cast());
    __sigaction(signal: c_int, new: *const c_void, old: *mut c_void) -> c_int => signal::sigaction(signal, new.cast(), old.cast());
    signal(signal: c_int, handler: usize) -> usize => signal::signal(signal, handler);
    bsd_signal(signal: c_int, handler: usize) -> usize => signal::signal(signal, handler);
    ssignal(signal: c_int, handler: usize) -> usize => signal::signal(signal, handler);
    sysv_signal(signal: c_int, handler: usize) -> usize => signal::sysv_signal(signal, handler);
    __sysv_signal(signal: c_int, handler: usize) -> usize => signal::sysv_signal(signal, handler);
    sigset(signal: c_int, handler: usize) -> usize => signal::sigset(signal, handler);
    siginterrupt(signal: c_int, on: c_int) -> c_int => signal::siginterrupt(signal, on);
}

function! {
    longjmp(to: *const c_void, value: c_int) -> ! => signal::longjmp(to, value);
    _longjmp(to: *const c_void, value: c_int) -> ! => signal::longjmp(to, value);
    siglongjmp(to: *const c_void, value: c_int) -> ! => signal::longjmp(to, value);
    __longjmp_chk(to: *const c_void, value: c_int) -> ! => signal::longjmp(to, value);
}
