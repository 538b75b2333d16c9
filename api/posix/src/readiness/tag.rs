//! The data of a stream in the kernel's epoll: the slot's number, and the program's events in bits
//! that mean nothing to a Unix socket.
//!
//! The program that comes after an exec reads both back ([`crate::readiness::inherit`]).
//!
//! The program may register kernel descriptors with any data, those with [`TAG`] included. Such
//! data are kept in a table of the process, and the kernel gets the entry's number as that of a
//! slot that does not exist ([`replacement`], [`own_data`]). Almost no program has any. A relative
//! of a fork and a program after exec do not know entries made by this process later.

use std::ffi::c_int;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::system::sys::Errno;

/// Upper 20 bits of the kernel's data for what is ours: no address of a program (not canonical) and
/// no small number. Below are 18 bits of the slot's number and 26 of the program's data, for a
/// program that inherits the epoll over exec ([`crate::readiness::inherit`]).
pub(crate) const TAG: u64 = 0x5ce7_c000_0000_0000;

/// The bits of [`TAG`].
pub(crate) const TAG_MASK: u64 = !0x0fff_ffff_ffff;

/// Bits of the program's data that the kernel is given.
pub(crate) const DATA_BITS: u32 = 26;

/// Entries of [`REPLACED`].
const MAX_REPLACED: usize = 256;

/// Slots of an epoll at most: what remains of 18 bits is more than a process has memory maps for (a
/// connection takes two).
pub(crate) const MAX_SLOTS: usize = (1 << 18) - MAX_REPLACED;

/// Data of the program with [`TAG`], in the order in which they were first registered; 0 for none.
static REPLACED: [AtomicU64; MAX_REPLACED] = [const { AtomicU64::new(0) }; MAX_REPLACED];

/// The kernel's data for a slot.
pub(crate) const fn tagged(number: u32, data: u64) -> u64 {
    let most = (1 << DATA_BITS) - 1;
    TAG | (number as u64) << DATA_BITS | if data < most { data } else { most }
}

/// The number in the kernel's data for what is ours.
pub(crate) const fn number(data: u64) -> u32 {
    ((data & !TAG_MASK) >> DATA_BITS) as u32
}

/// What the kernel is given for data of the program.
///
/// # Errors
/// `ENOSPC`: the program has registered too many different data with [`TAG`].
pub(crate) fn replacement(data: u64) -> Result<u64, Errno> {
    if data & TAG_MASK != TAG {
        return Ok(data);
    }
    for (entry, number) in REPLACED.iter().zip(MAX_SLOTS as u32..) {
        match entry.compare_exchange(0, data, SeqCst, Acquire) {
            Ok(_) => return Ok(tagged(number, data)),
            Err(known) if known == data => return Ok(tagged(number, data)),
            Err(_) => {}
        }
    }
    Err(libc::ENOSPC)
}

/// The program's data in what the kernel reports; none if it is of a slot.
#[inline]
pub(crate) fn own_data(data: u64) -> Option<u64> {
    if data & TAG_MASK == TAG { replaced(data) } else { Some(data) }
}

#[cold]
fn replaced(data: u64) -> Option<u64> {
    let entry = REPLACED.get((number(data) as usize).checked_sub(MAX_SLOTS)?)?;
    Some(entry.load(Acquire)).filter(|own| *own != 0)
}

/// Whether there are data for which the kernel was given others.
#[inline]
pub(crate) fn any_replaced() -> bool {
    REPLACED[0].load(Relaxed) != 0
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_data_of_a_program_are_found_again_up_to_a_number() {
        for data in [0, 5, u64::MAX, TAG - 1, TAG | !TAG_MASK, TAG + !TAG_MASK + 1] {
            assert_eq!(replacement(data).map(own_data), Ok(Some(data)));
        }
        assert_eq!(own_data(tagged(7, 5)), None);
        assert_eq!(own_data(tagged(MAX_SLOTS as u32 - 1, 5)), None);
        let refused = (0..).find(|number| replacement(TAG | number).is_err()).expect("a bound");
        assert!((1..=MAX_REPLACED as u64).contains(&refused));
        assert_eq!(replacement(TAG | (refused - 1)).map(own_data), Ok(Some(TAG | (refused - 1))));
    }
}
