//! The data of a stream in the kernel's epoll: the slot's number, and the program's events in bits
//! that mean nothing to a Unix socket.
//!
//! The program that comes after an exec reads both back ([`crate::readiness::inherit`]).

use std::ffi::c_int;

/// Upper 20 bits of the kernel's data for what is ours: no address of a program (not canonical) and
/// no small number. Below are 18 bits of the slot's number and 26 of the program's data, for a
/// program that inherits the epoll over exec ([`crate::readiness::inherit`]).
pub(crate) const TAG: u64 = 0x5ce7_c000_0000_0000;

/// The bits of [`TAG`].
pub(crate) const TAG_MASK: u64 = !0x0fff_ffff_ffff;

/// Bits of the program's data that the kernel is given.
pub(crate) const DATA_BITS: u32 = 26;

/// Slots of an epoll at most: 18 bits hold more than a process has memory maps for (a connection
/// takes two).
pub(crate) const MAX_SLOTS: usize = 1 << 18;

/// The kernel's data for a slot.
pub(crate) const fn tagged(number: u32, data: u64) -> u64 {
    let most = (1 << DATA_BITS) - 1;
    TAG | (number as u64) << DATA_BITS | if data < most { data } else { most }
}

/// Events that are registered with the kernel, and the bit of each.
const ENCODED_EVENTS: [(c_int, u32); 11] = [
    (libc::EPOLLIN, 14),
    (libc::EPOLLPRI, 15),
    (libc::EPOLLOUT, 16),
    (libc::EPOLLRDNORM, 17),
    (libc::EPOLLRDBAND, 18),
    (libc::EPOLLWRNORM, 19),
    (libc::EPOLLWRBAND, 20),
    (libc::EPOLLMSG, 21),
    (libc::EPOLLRDHUP, 22),
    (libc::EPOLLONESHOT, 23),
    (libc::EPOLLET, 24),
];

/// Marks that the other bits are set.
const ENCODED: u32 = 1 << 25;

/// Events in bits that mean nothing to a Unix socket.
pub(crate) fn encoded(events: u32) -> u32 {
    if events & libc::EPOLLEXCLUSIVE as u32 != 0 {
        return 0;
    }
    let bits = ENCODED_EVENTS.iter().filter(|(event, _)| events & *event as u32 != 0);
    bits.fold(ENCODED, |all, (_, bit)| all | 1 << bit)
}

pub(crate) fn decoded(events: u32) -> u32 {
    if events & ENCODED == 0 {
        return libc::EPOLLIN as u32;
    }
    let bits = ENCODED_EVENTS.iter().filter(|(_, bit)| events & 1 << bit != 0);
    bits.fold(0, |all, (event, _)| all | *event as u32)
}
